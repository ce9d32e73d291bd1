"""The trial engine, with a fake clock and fake times: exact sequences of who runs when."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable, Sequence

import pytest
from concurrency_support import WAIT_S, in_threads

from turnout.errors import BackendError, CallError, ConfigurationError
from turnout.tuning import Candidate, Case, Decision, Hooks, Known, TrialPlan, Tuner


class Bench:
    """A tuner whose candidates take the nanoseconds of `elapsed_ns` and log that they ran."""

    def __init__(self, plan: TrialPlan, names: str, max_geometries: int = 1024) -> None:
        self.now = 0.0
        self.ran: list[str] = []
        self.timed: list[str] = []
        self.reports: list[Decision] = []
        self.elapsed_ns = dict.fromkeys(names, 100)
        self.tuner: Tuner[Candidate] = Tuner(
            plan, self.reports.append, lambda: self.now, max_geometries
        )
        for name in names:
            self.tuner.add([Candidate(name, lambda: None)])

    def case(self, geometry: object = "g", names: str | None = None) -> Case[Candidate]:
        registered = self.tuner.candidates
        chosen = tuple(c for c in registered if names is None or c.name in names)
        key = (geometry, *(c.name for c in chosen))
        return Case(geometry, key, chosen, registered)

    def timer(self, work: Callable[[], None]) -> int:
        work()
        self.timed.append(self.ran[-1])
        return self.elapsed_ns[self.ran[-1]]

    def work(self, candidate: Candidate) -> str:
        self.ran.append(candidate.name)
        return candidate.name

    def run(self, calls: int, geometry: object = "g", names: str | None = None) -> str:
        """Make some calls, as a fast path would, and return who ran in each."""
        ran = ""
        for _ in range(calls):
            case = self.case(geometry, names)
            decided = self.tuner.decided.get(case.key)
            if (
                decided is not None
                and self.now < decided.expires
                and next(decided.calls, None) is not None
            ):
                ran += self.work(decided.candidate)
            else:
                ran += self.tuner.run(case, self.work, self.timer)
        return ran


def test_warm_up_and_trials_are_round_robin_and_the_lowest_time_wins() -> None:
    bench = Bench(TrialPlan(warmup=3, active=1, repeat_after_seconds=0), "AB")
    bench.elapsed_ns = {"A": 200, "B": 100}
    assert bench.run(6) == "ABABAB"
    assert bench.timed == []
    assert bench.tuner.decision(bench.case()) == Decision("g", None, {}, "6 of 8 trials done")
    assert bench.run(2) == "AB"
    assert bench.timed == ["A", "B"]
    expected = Decision("g", "B", {"A": (200,), "B": (100,)}, "lowest median of 1 timed call each")
    assert bench.tuner.decision(bench.case()) == expected
    assert bench.reports == [expected]
    assert bench.run(50) == "B" * 50
    assert bench.timed == ["A", "B"]


def test_without_warm_up_each_candidate_is_timed_before_one_wins() -> None:
    bench = Bench(TrialPlan(warmup=0, active=2, repeat_after_seconds=0), "ABC")
    bench.elapsed_ns["C"] = 10
    assert bench.run(6) == "ABCABC"
    assert bench.timed == list("ABCABC")
    assert bench.run(3) == "CCC"


def test_several_timed_calls_are_judged_by_their_median() -> None:
    bench = Bench(TrialPlan(warmup=0, active=3, repeat_after_seconds=0), "AB")
    times = iter([100, 90, 101, 90, 9000, 1000])  # A: 100, 101, 9000; B: 90, 90, 1000

    def timer(work: Callable[[], None]) -> int:
        work()
        return next(times)

    for _ in range(6):
        bench.tuner.run(bench.case(), bench.work, timer)
    decision = bench.tuner.decision(bench.case())
    assert decision is not None
    assert decision.samples == {"A": (100, 101, 9000), "B": (90, 90, 1000)}
    assert decision.chosen == "B"
    assert decision.reason == "lowest median of 3 timed calls each"


def test_ties_go_to_the_earlier_candidate_and_later_to_the_incumbent() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_count=2, repeat_after_seconds=0), "AB")
    assert bench.run(4) == "ABAA"
    bench.elapsed_ns["B"] = 50
    assert bench.run(4) == "ABBB"
    bench.elapsed_ns["B"] = 100  # a tie again: B stays
    assert bench.run(4) == "ABBB"


def test_trials_restart_from_scratch_after_a_number_of_additional_calls() -> None:
    plan = TrialPlan(warmup=1, active=1, repeat_after_count=3, repeat_after_seconds=0)
    bench = Bench(plan, "AB")
    bench.elapsed_ns["A"] = 50
    assert bench.run(4 + 3) == "ABAB" + "AAA"
    bench.elapsed_ns["A"] = 500
    assert bench.run(4 + 3) == "ABAB" + "BBB"
    assert bench.timed == list("ABAB")
    samples = {"A": (50, 500), "B": (100, 100)}
    assert bench.tuner.decision(bench.case()).samples == samples  # type: ignore
    assert bench.reports[-1].new_samples == {"A": (500,), "B": (100,)}


def test_recent_samples_count_however_many_evaluations_they_come_from() -> None:
    plan = TrialPlan(
        warmup=0, active=2, repeat_after_count=1, repeat_after_seconds=0, recent_samples=3
    )
    bench = Bench(plan, "AB")
    for elapsed_ns in (50, 60, 70):
        bench.elapsed_ns["A"] = elapsed_ns
        bench.run(5)
    samples = {"A": (60, 70, 70), "B": (100, 100, 100)}
    assert bench.tuner.decision(bench.case()).samples == samples  # type: ignore


def test_trials_restart_after_seconds_since_the_decision() -> None:
    bench = Bench(TrialPlan(warmup=1, active=1, repeat_after_seconds=2.0), "AB")
    bench.now = 10.0
    assert bench.run(4) == "ABAB"
    bench.now = 11.999
    assert bench.run(3) == "AAA"
    bench.now = 12.0
    bench.elapsed_ns["A"] = 500
    assert bench.run(2) == "AB"
    decision = bench.tuner.decision(bench.case())
    assert decision is not None
    assert decision.chosen == "A"  # still in use
    assert decision.reason == "2 of 4 trials done"
    assert bench.run(5) == "ABBBB"


def test_whichever_trigger_comes_first_restarts_the_trials() -> None:
    plan = TrialPlan(warmup=0, active=1, repeat_after_count=5, repeat_after_seconds=1.0)
    bench = Bench(plan, "AB")
    assert bench.run(2 + 2) == "ABAA"
    bench.now = 1.0
    assert bench.run(2 + 5 + 2) == "AB" + "AAAAA" + "AB"


def test_geometries_are_measured_independently() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB")
    bench.elapsed_ns = {"A": 1, "B": 2}
    assert bench.run(1, "small") == "A"
    bench.elapsed_ns = {"A": 3, "B": 2}
    assert bench.run(3, "large") == "ABB"
    assert bench.run(3, "small") == "BAA"
    assert bench.tuner.decision(bench.case("unknown")) is None


def test_alternating_geometries_are_each_measured_once() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB")
    for _ in range(20):
        bench.run(1, "x")
        bench.run(1, "y")
    assert len(bench.timed) == 4


def test_candidates_share_their_samples_between_the_sets_they_are_in() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "ABC")
    bench.elapsed_ns = {"A": 3, "B": 2, "C": 1}
    assert bench.run(4, names="ABC") == "ABCC"
    assert bench.run(2, names="AB") == "BB"  # decided from the samples, without a trial
    assert bench.timed == list("ABC")
    assert [report.chosen for report in bench.reports] == ["C", "B"]


def test_a_new_candidate_is_tried_alone_and_the_samples_of_the_others_are_kept() -> None:
    bench = Bench(TrialPlan(warmup=2, active=1, repeat_after_seconds=0), "AB")
    bench.run(6)
    assert bench.tuner.add([Candidate("C", lambda: None)]) is None
    bench.elapsed_ns["C"] = 1
    assert bench.run(5) == "CCCCC"
    assert bench.timed == list("ABC")


def test_names_are_unique() -> None:
    bench = Bench(TrialPlan(), "AB")
    assert bench.tuner.add([Candidate("D", lambda: None), Candidate("A", lambda: None)]) == "A"
    assert [c.name for c in bench.tuner.candidates] == ["A", "B"]


def test_a_removed_candidate_leaves_nothing_behind() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB")
    bench.run(3)
    removed = bench.tuner.candidates[1]
    bench.tuner.remove((removed,))
    bench.tuner.add([removed])
    assert bench.run(2) == "BA"
    assert bench.timed == list("ABB")


def test_renewed_candidates_take_over_what_was_measured() -> None:
    plan = TrialPlan(warmup=0, active=1, repeat_after_count=2, repeat_after_seconds=10)
    bench = Bench(plan, "ABC")
    bench.elapsed_ns["B"] = 50
    assert bench.run(3) == "ABC"
    old = bench.tuner.candidates
    before = bench.tuner.decision(bench.case())
    a, b = (Candidate(name, lambda: None) for name in "AB")
    bench.tuner.renew([b, a])
    assert bench.tuner.candidates == (a, b, old[2])
    assert bench.tuner.decision(bench.case()) == before
    assert bench.tuner.decided[bench.case().key].function is b.function
    bench.elapsed_ns["B"] = 100
    assert bench.run(2) == "BB"
    assert bench.run(3) == "ABC"  # the count went on
    assert bench.tuner.decided[bench.case().key].candidate is b  # as the incumbent, of a tie


def test_reset_forgets_everything_but_the_candidates() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB")
    bench.run(5)
    bench.tuner.reset()
    assert bench.tuner.decision(bench.case()) is None
    assert bench.run(3) == "ABA"


def test_the_geometry_decided_longest_ago_makes_room() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB", max_geometries=2)
    bench.run(1, "x")
    bench.run(2, "y")
    bench.run(1, "x")  # x is decided after y
    bench.run(1, "z")
    assert bench.tuner.decision(bench.case("y")) is None
    assert bench.tuner.decision(bench.case("x")).chosen == "A"  # type: ignore
    assert len(bench.tuner.decided) == 1
    for geometry in range(1000):
        bench.run(3, geometry)
    assert len(bench.tuner.decided) == 2


def test_settled_cases_are_decided_for_good() -> None:
    bench = Bench(TrialPlan(repeat_after_count=1, repeat_after_seconds=1.0), "A")
    case = bench.case()
    bench.tuner.settle(case, case.candidates[0], "the only one")
    bench.now = 1e9
    assert bench.run(5) == "AAAAA"
    assert bench.timed == []
    assert bench.reports == [Decision("g", "A", {}, "the only one", "given")]
    bench.tuner.settle(case, case.candidates[0], "the only one")
    assert len(bench.reports) == 1


@pytest.mark.parametrize("failing_call", range(4))
@pytest.mark.parametrize("error", [CallError, KeyboardInterrupt, SystemExit])
def test_an_interrupted_trial_does_not_count_and_is_repeated(
    failing_call: int, error: type[BaseException]
) -> None:
    bench = Bench(TrialPlan(warmup=1, active=1, repeat_after_seconds=0), "AB")
    bench.run(failing_call)

    def fail(candidate: Candidate) -> str:
        raise error("boom")

    for _ in range(2):
        with pytest.raises(error, match="boom"):
            bench.tuner.run(bench.case(), fail, bench.timer)
    assert bench.run(6 - failing_call) == "ABABAA"[failing_call:]
    assert bench.timed == list("AB")


def raising(name: str, error: BaseException) -> Callable[[Candidate], str]:
    """Work in which one candidate, or all for the name "", raises."""

    def work(candidate: Candidate) -> str:
        if candidate.name == name or not name:
            raise error
        return candidate.name

    return work


@pytest.mark.parametrize("error", [ValueError("boom"), RuntimeError("boom"), MemoryError("boom")])
@pytest.mark.parametrize("failing_call", [1, 4])
def test_a_candidate_that_raised_in_a_trial_is_not_tried_again(
    failing_call: int, error: Exception
) -> None:
    bench = Bench(TrialPlan(warmup=1, active=1, repeat_after_seconds=5), "ABC")
    bench.run(failing_call)
    with pytest.raises(type(error), match="boom"):
        bench.tuner.run(bench.case(), raising("B", error), bench.timer)
    bench.run(10)
    decision = bench.tuner.decision(bench.case())
    assert decision is not None
    assert decision.chosen == "A"
    assert "B" not in decision.samples
    assert decision.reason.endswith(f"; without 'B', which raised {type(error).__name__}: boom")
    # Nor when everything is measured again.
    bench.now += 10
    assert "B" not in bench.run(10)
    bench.tuner.reset()
    assert "B" in bench.run(3)


def test_where_all_candidates_raise_the_input_is_at_fault() -> None:
    bench = Bench(TrialPlan(warmup=1, active=1, repeat_after_seconds=0), "AB")
    for _ in range(2):
        with pytest.raises(ValueError, match="boom"):
            bench.tuner.run(bench.case(), raising("", ValueError("boom")), bench.timer)
    assert bench.run(6) == "ABABAA"


class Recorder(Hooks[Candidate]):
    """Hooks that say what they are told to, and remember what they were asked."""

    def __init__(
        self,
        known: Known | None = None,
        refusals: dict[str, str] | None = None,
        restores: bool = False,
    ) -> None:
        self.known = known
        self.refusals = refusals or {}
        self.restores = restores
        self.asked: list[str] = []
        self.decisions: list[Decision] = []

    def recall(self) -> Known | None:
        self.asked.append("recall")
        return self.known

    def admit(self, candidates: Sequence[Candidate]) -> dict[Candidate, str]:
        self.asked.append("admit " + "".join(candidate.name for candidate in candidates))
        return {c: self.refusals[c.name] for c in candidates if c.name in self.refusals}

    def restore(self, candidate: Candidate, error: BaseException) -> bool:
        self.asked.append(f"restore {candidate.name}")
        return self.restores

    def decided(self, decision: Decision) -> None:
        self.decisions.append(decision)


def run_with(bench: Bench, hooks: Recorder, calls: int) -> str:
    return "".join(
        bench.tuner.run(bench.case(), bench.work, bench.timer, hooks) for _ in range(calls)
    )


def test_where_arguments_are_restored_the_call_goes_on_with_another_candidate() -> None:
    bench = Bench(TrialPlan(warmup=1, active=1, repeat_after_seconds=0), "ABC")
    hooks = Recorder(restores=True)
    work = raising("A", ValueError("boom"))
    assert bench.tuner.run(bench.case(), work, bench.timer, hooks) == "B"
    assert hooks.asked[-1] == "restore A"
    assert bench.run(6) == "BCBCBB"  # the untimed run does not count
    assert "without 'A', which raised ValueError: boom" in bench.reports[-1].reason


def test_where_all_raise_and_arguments_are_restored_the_first_exception_passes() -> None:
    bench = Bench(TrialPlan(warmup=1, active=1, repeat_after_seconds=0), "ABC")

    def work(candidate: Candidate) -> str:
        raise ValueError(candidate.name)

    hooks = Recorder(restores=True)
    with pytest.raises(ValueError, match=r"^A$"):
        bench.tuner.run(bench.case(), work, bench.timer, hooks)
    assert hooks.asked[-3:] == ["restore A", "restore B", "restore C"]
    assert bench.run(7) == "ABCABCA"  # none was left out


def test_an_interrupt_restores_the_arguments_and_passes() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB")
    hooks = Recorder(restores=True)
    with pytest.raises(KeyboardInterrupt):
        bench.tuner.run(bench.case(), raising("A", KeyboardInterrupt()), bench.timer, hooks)
    assert hooks.asked[-1] == "restore A"
    assert bench.run(3) == "ABA"


def test_a_candidate_may_be_refused_before_its_first_trial() -> None:
    bench = Bench(TrialPlan(warmup=1, active=1, repeat_after_seconds=0), "ABC")
    hooks = Recorder(refusals={"A": "which does not compile", "C": "whose results are wrong"})
    assert run_with(bench, hooks, 4) == "BBBB"
    assert hooks.asked == ["recall", "admit ABC"]
    reason = hooks.decisions[0].reason
    assert reason.endswith(
        "without 'A', which does not compile; without 'C', whose results are wrong"
    )
    examined = bench.tuner.examine(bench.case())
    assert examined.failures == {"A": "which does not compile", "C": "whose results are wrong"}


def test_where_all_are_refused_none_is() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB")
    hooks = Recorder(refusals={"A": "no", "B": "no"})
    assert run_with(bench, hooks, 3) == "ABA"
    assert hooks.asked == ["recall", "admit AB"]


def test_who_was_refused_stays_refused_when_all_others_raise() -> None:
    bench = Bench(TrialPlan(warmup=0, active=2, repeat_after_seconds=0), "ABC")
    hooks = Recorder(refusals={"A": "whose results are wrong"}, restores=True)

    def work(candidate: Candidate) -> str:
        raise ValueError(candidate.name)

    with pytest.raises(ValueError, match=r"^B$"):
        bench.tuner.run(bench.case(), work, bench.timer, hooks)
    assert run_with(bench, hooks, 5) == "BCBCB"


def test_who_is_admitted_is_asked_again_where_candidates_are_measured_again() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_count=2), "AB")
    hooks = Recorder()
    hooks.admits_again = True
    assert run_with(bench, hooks, 2) == "AB"
    hooks.refusals = {"A": "whose results are wrong"}
    assert bench.run(2) == "AA"  # as many as the schedule says; then A is found to be wrong
    assert run_with(bench, hooks, 3) == "BBB"
    assert hooks.asked == ["recall", "admit AB", "admit AB"]


def test_a_wrong_candidate_that_was_chosen_is_dropped_in_every_decision() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "ABC")
    first = bench.tuner.candidates
    wide, narrow = Case("g", "wide", first, first), Case("g", "narrow", first[:2], first)
    for case in (narrow, narrow, narrow):
        bench.tuner.run(case, bench.work, bench.timer, Recorder())
    assert bench.tuner.decided["narrow"].candidate.name == "A"
    hooks = Recorder(refusals={"A": "whose results are wrong"})
    bench.tuner.run(wide, bench.work, bench.timer, hooks)  # C is new, so all are asked about
    assert "narrow" not in bench.tuner.decided
    assert bench.tuner.run(narrow, bench.work, bench.timer, hooks) == "B"


def test_what_is_remembered_is_asked_about_before_it_runs() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB")
    hooks = Recorder(Known({"A": (10,), "B": (20,)}, "A", "by others"), {"A": "which is wrong"})
    assert run_with(bench, hooks, 2) == "BB"
    assert hooks.decisions[0].reason == (
        "lowest median of 1 timed call each; without 'A', which is wrong (by others)"
    )


def test_threads_ask_for_themselves_and_run_nothing_that_was_not_admitted() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB")
    barrier = threading.Barrier(4)

    class Waiting(Recorder):
        def admit(self, candidates: Sequence[Candidate]) -> dict[Candidate, str]:
            barrier.wait(WAIT_S)  # all threads are in the middle of asking
            return super().admit(candidates)

    hooks = Waiting(refusals={"A": "whose results are wrong"})
    in_threads(4, lambda: bench.tuner.run(bench.case(), bench.work, bench.timer, hooks))
    assert bench.ran == ["B"] * 4
    assert hooks.asked.count("admit AB") == 4


def test_a_candidate_that_calls_the_operation_while_it_is_asked_about() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB")

    class Calling(Recorder):
        def admit(self, candidates: Sequence[Candidate]) -> dict[Candidate, str]:
            self.asked.append(bench.tuner.run(bench.case(), bench.work, bench.timer, self))
            return super().admit(candidates)

    hooks = Calling()
    assert run_with(bench, hooks, 3) == "ABA"
    assert hooks.asked == ["recall", "A", "admit AB"]


def test_what_earlier_processes_measured_needs_no_trials() -> None:
    bench = Bench(TrialPlan(warmup=3, active=1, repeat_after_seconds=0), "ABC")
    hooks = Recorder(Known({"A": (30, 31), "B": (10, 11), "gone": (1,)}, "B"))
    bench.elapsed_ns["C"] = 20
    assert run_with(bench, hooks, 6) == "CCCCBB"  # only the new one is tried
    assert hooks.decisions == bench.reports
    assert hooks.decisions[0].samples == {"A": (30, 31), "B": (10, 11), "C": (20,)}
    assert hooks.decisions[0].new_samples == {"C": (20,)}
    assert hooks.decisions[0].source == "measured"


def test_a_decision_that_is_remembered_says_so() -> None:
    bench = Bench(TrialPlan(warmup=3, active=1, repeat_after_seconds=0), "AB")
    hooks = Recorder(Known({"A": (100,), "B": (100,)}, "B"))
    assert run_with(bench, hooks, 2) == "BB"  # it is entitled to ties here too
    assert bench.timed == []
    assert hooks.decisions[0].source == "remembered"
    assert hooks.decisions[0].new_samples == {}


def test_tuning_on_copies_decides_at_once() -> None:
    bench = Bench(TrialPlan(warmup=1, active=1, repeat_after_seconds=0), "ABC")
    tried: list[str] = []

    def sample(candidate: Candidate) -> int:
        if candidate.name == "C":
            raise ValueError("boom")
        return {"A": 30, "B": 20}[candidate.name]

    bench.tuner.tune(bench.case(), sample, progress=lambda each: tried.append(each.name))
    assert tried[:3] == ["A", "B", "A"]
    assert bench.run(3) == "BBB"
    decision = bench.tuner.decision(bench.case())
    assert decision is not None
    assert decision.regime == "copies"
    assert decision.new_samples["B"] == (20,) * 5
    assert decision.reason.endswith("without 'C', which raised ValueError: boom")


def test_tuning_where_all_raise_passes_the_first_exception() -> None:
    bench = Bench(TrialPlan(), "AB")

    def sample(candidate: Candidate) -> int:
        raise ValueError(candidate.name)

    with pytest.raises(ValueError, match=r"^A$"):
        bench.tuner.tune(bench.case(), sample)
    assert bench.run(2) == "AB"


def test_hooks_are_called_without_the_lock() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB")

    class Asking(Recorder):
        def admit(self, candidates: Sequence[Candidate]) -> dict[Candidate, str]:
            in_threads(1, lambda: bench.tuner.decision(bench.case()))
            return super().admit(candidates)

    assert run_with(bench, Asking(), 3) == "ABA"


def test_only_the_text_of_a_failure_is_kept() -> None:
    class WitnessError(ValueError):
        pass

    bench = Bench(TrialPlan(warmup=1, active=1, repeat_after_seconds=0), "AB")
    error = WitnessError("boom")
    reference = weakref.ref(error)
    with pytest.raises(WitnessError):
        bench.tuner.run(bench.case(), raising("A", error), bench.timer)
    del error
    gc.collect()
    assert reference() is None


def test_a_failing_timer_releases_the_trial() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB")

    def broken(work: Callable[[], None]) -> int:
        raise OSError("no device")

    with pytest.raises(OSError, match="no device"):
        bench.tuner.run(bench.case(), bench.work, broken)
    assert bench.run(3) == "ABA"


@pytest.mark.parametrize("times", [0, 2])
def test_a_timer_must_run_its_work_once(times: int) -> None:
    bench = Bench(TrialPlan(warmup=0), "AB")

    def timer(work: Callable[[], None]) -> int:
        for _ in range(times):
            work()
        return 1

    with pytest.raises(BackendError, match=rf"exactly once, .* ran it {times} times"):
        bench.tuner.run(bench.case(), bench.work, timer)


def test_a_nested_call_of_the_same_geometry_runs_untimed() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB")

    def work(candidate: Candidate) -> str:
        bench.ran.append(candidate.name)
        if len(bench.ran) % 2:
            return candidate.name + bench.tuner.run(bench.case(), work, bench.timer)
        return candidate.name

    assert bench.tuner.run(bench.case(), work, lambda w: (w(), 5)[1]) == "AA"
    assert bench.tuner.run(bench.case(), work, lambda w: (w(), 4)[1]) == "BA"
    decision = bench.tuner.decision(bench.case())
    assert decision is not None
    assert decision.samples == {"A": (5,), "B": (4,)}


def test_a_nested_call_of_another_geometry_has_its_own_trial() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB")

    def outer(candidate: Candidate) -> str:
        return candidate.name + bench.run(1, "inner")

    assert [bench.tuner.run(bench.case("outer"), outer, lambda w: (w(), 1)[1]) for _ in "12"] == [
        "AA",
        "BB",
    ]
    assert bench.timed == ["A", "B"]


def test_while_one_thread_holds_a_trial_the_others_run_the_first_or_the_incumbent() -> None:
    plan = TrialPlan(warmup=0, active=1, repeat_after_count=1, repeat_after_seconds=0)
    bench = Bench(plan, "AB")
    others: list[str] = []

    def call_from_others(candidate: Candidate) -> str:
        in_threads(3, lambda: others.append(bench.tuner.run(bench.case(), bench.work, bench.timer)))
        return candidate.name

    def run_trial(elapsed_ns: int) -> str:
        return bench.tuner.run(bench.case(), call_from_others, lambda work: (work(), elapsed_ns)[1])

    assert run_trial(20) == "A"
    assert run_trial(10) == "B"
    assert others == ["A"] * 6  # the first one, because nothing was decided
    assert bench.run(1) == "B"
    others.clear()
    assert run_trial(1) == "A"
    assert run_trial(20) == "B"
    assert others == ["B"] * 6  # the incumbent
    assert bench.timed == []
    assert bench.run(1) == "A"


def test_a_decision_is_not_remembered_when_a_candidate_was_added_during_its_last_trial() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB")
    bench.elapsed_ns["C"] = 1
    bench.run(1)

    def add(candidate: Candidate) -> str:
        bench.tuner.add([Candidate("C", lambda: None)])
        return bench.work(candidate)

    assert bench.tuner.run(bench.case(), add, bench.timer) == "B"
    assert bench.tuner.decided == {}
    assert bench.run(2) == "CC"
    assert bench.timed == list("ABC")


@pytest.mark.parametrize("meanwhile", ["reset", "evict"])
def test_a_decision_is_not_remembered_when_its_geometry_was_dropped(meanwhile: str) -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB", max_geometries=1)
    bench.run(1)

    def drop(candidate: Candidate) -> str:
        if meanwhile == "reset":
            bench.tuner.reset()
        else:
            bench.run(1, "another")
        return bench.work(candidate)

    bench.tuner.run(bench.case(), drop, bench.timer)
    assert bench.tuner.decided == {}


def test_many_threads_measure_each_candidate_as_often_as_planned() -> None:
    bench = Bench(TrialPlan(warmup=2, active=3, repeat_after_seconds=0), "ABC")
    lock = threading.Lock()
    timed: list[str] = []
    barrier = threading.Barrier(8)

    def call() -> None:
        def work(candidate: Candidate) -> str:
            name.append(candidate.name)
            return candidate.name

        def timer(run: Callable[[], None]) -> int:
            run()
            with lock:
                timed.append(name[-1])
            return {"A": 3, "B": 1, "C": 2}[name[-1]]

        barrier.wait()
        for _ in range(100):
            name: list[str] = []
            bench.tuner.run(bench.case(), work, timer)

    in_threads(8, call)
    assert timed == list("ABCABCABC")
    assert bench.tuner.decision(bench.case()).chosen == "B"  # type: ignore


def test_reports_are_made_without_the_lock() -> None:
    seen: list[object] = []

    def report(decision: Decision) -> None:
        in_threads(1, lambda: seen.append(tuner.decision(case)))

    tuner: Tuner[Candidate] = Tuner(TrialPlan(warmup=0), report)
    tuner.add([Candidate("A", lambda: None), Candidate("B", lambda: None)])
    case = Case("g", "g", tuner.candidates, tuner.candidates)
    for _ in "AB":
        tuner.run(case, lambda candidate: None, lambda work: (work(), 1)[1])
    assert [decision.chosen for decision in seen] == ["A"]  # type: ignore


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_during_a_trial_of_another_thread_measures_on() -> None:
    bench = Bench(TrialPlan(warmup=0, active=1, repeat_after_seconds=0), "AB")
    is_in_trial, may_end = threading.Event(), threading.Event()

    def hold(candidate: Candidate) -> str:
        is_in_trial.set()
        assert may_end.wait(60)
        return bench.work(candidate)

    holder = threading.Thread(target=lambda: bench.tuner.run(bench.case(), hold, bench.timer))
    holder.start()
    assert is_in_trial.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(0 if bench.run(3) == "ABA" and bench.timed == ["A", "B"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    may_end.set()
    holder.join()
    assert bench.run(2) == "BA"


@pytest.mark.parametrize(
    ("setting", "value", "least"),
    [
        ("warmup", -1, 0),
        ("warmup", 1.0, 0),
        ("warmup", True, 0),
        ("active", 0, 1),
        ("active", "1", 1),
        ("repeat_after_count", -1, 0),
        ("repeat_after_count", 0.5, 0),
        ("recent_samples", 0, 1),
    ],
)
def test_counts_are_checked(setting: str, value: object, least: int) -> None:
    message = rf"{setting}={value!r} is not allowed: give an integer of {least} or more"
    with pytest.raises(ConfigurationError, match=message):
        TrialPlan(**{setting: value})  # type: ignore[arg-type]


def test_active_is_a_count_or_auto() -> None:
    with pytest.raises(ConfigurationError, match='give an integer of 1 or more or "auto"'):
        TrialPlan(active="all")  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan"), "1", None, True])
def test_the_budget_is_checked(value: object) -> None:
    message = rf"exploration_budget={value!r} is not allowed: give a number from 0 .* to 1"
    with pytest.raises(ConfigurationError, match=message):
        TrialPlan(exploration_budget=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [-0.1, float("nan"), "1", True])
def test_seconds_are_checked(value: object) -> None:
    message = rf"repeat_after_seconds={value!r} is not allowed: give a number of seconds"
    with pytest.raises(ConfigurationError, match=message):
        TrialPlan(repeat_after_seconds=value)  # type: ignore[arg-type]


def test_the_number_of_geometries_is_checked() -> None:
    with pytest.raises(ConfigurationError, match="max_geometries=0 is not allowed"):
        Bench(TrialPlan(), "A", max_geometries=0)
