"""Policies that are chosen while the program runs: mixes, estimates, calls of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from language_support import DEVICES

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, NDArray, Param, Scalar, f64, forecast, i64, policy, watch
from turnout.direct import CallLimit
from turnout.mix import SAMPLES, Mix, Sampler
from turnout.perf import perf_dispatch
from turnout.policy import SMALLEST_SPLIT, Automatic
from turnout.safeguards import Safeguards
from turnout.watch import CALLS_PER_LOOK

HAS_CPU = "cpu" in tn.backends()
on_cpu = pytest.mark.skipif(not HAS_CPU, reason="turnout-cpu is not installed")

LARGE = 20_000
SMALL = 1000


def drag_function(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    a = tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)], policy="auto")
    v_new = v + dt * a


def in_a_loop_function(regime: Index, v: Scalar, out: Mutable[Scalar]):
    total = v
    for k in range(3):
        total = total + tm.dispatch(regime + k, [v, 2 * v], policy="auto")
    out = total


def arguments(n: int, costly: float = 1 / 3) -> tuple[Any, ...]:
    """Of drag, with this share of the last class."""
    random = np.random.default_rng(n)
    cheap = random.integers(0, 2, n)
    regime = np.where(random.random(n) < costly, 2, cheap)
    return 0.1, regime, random.normal(size=n), np.empty(n)


def expected(given: tuple[Any, ...]) -> np.ndarray[Any, Any]:
    result = np.empty(given[1].size)
    tn.resolve_dispatch(tn.kernel(drag_function), {"dispatch0": "switch"})(*given[:3], result)
    return result


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """How long each form takes by a timer that a test sets; on the CPU backend.

    Looks at the mix take no time, and no form is estimated to be faster than another one.
    """
    found = {"switch": 3000, "predicated": 1000, "segmented": 2000}
    candidate = ""
    prepare = Safeguards.prepare

    def noted(self: Safeguards, tried: Any) -> None:
        nonlocal candidate
        candidate = tried.name
        prepare(self, tried)

    def timer(work: Any) -> int:
        work()
        return found[candidate]

    monkeypatch.setattr(Safeguards, "prepare", noted)
    for module in (policy, watch):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: 0)
    monkeypatch.setattr(policy, "perf_dispatch", partial(perf_dispatch, timer=timer))
    monkeypatch.setattr(
        forecast.Forecast, "estimates", lambda self, shares: dict.fromkeys(self._forms, 1.0)
    )
    with tn.use("cpu"):
        yield found


def automatic(kernel: tn.Kernel) -> Automatic:
    (found,) = [each for each in kernel._executables.values() if isinstance(each, Automatic)]
    return found


def decide(kernel: tn.Kernel, given: tuple[Any, ...], **options: Any) -> Any:
    """Call until a form is chosen; the explanation."""
    for _ in range(200):
        kernel(*given, **options)
        explanation = kernel.explain(*given)
        if explanation.chosen is not None:
            return explanation
    raise AssertionError(f"undecided: {explanation}")


# ---- mixes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counts", "levels"),
    [
        (((512, 512),), "00"),
        (((128,) * 8,), "1" * 8),
        (((1014, 10),), "03"),
        (((1024, 0),), "05"),
        (((1020, 4), (50, 950, 24)), "04+202"),
        (((0, 0, 0),), "555"),
    ],
)
def test_levels(counts: Any, levels: str) -> None:
    mix = Mix.of(counts)
    assert str(mix) == levels
    assert mix.fits(counts)


def test_shares() -> None:
    assert Mix.of(((3, 1), (0, 0))).shares == ((0.75, 0.25), (0.0, 0.0))


@hypothesis.given(st.lists(st.floats(0.001, 1), min_size=2, max_size=8), st.integers(0, 2**32))
def test_chance_hardly_ever_makes_another_mix(weights: list[float], seed: int) -> None:
    shares = np.array(weights) / sum(weights)
    random = np.random.default_rng(seed)
    mix = Mix.of((tuple(np.rint(SAMPLES * shares).astype(int).tolist()),))
    # At the edge of a level half of the samples are beyond it; they still fit.
    samples = random.multinomial(SAMPLES, shares, size=200).tolist()
    fitting = sum(mix.fits((tuple(counts),)) for counts in samples)
    assert fitting >= 0.94 * len(samples)


@pytest.mark.parametrize(
    ("before", "after"),
    [((512, 512), (1014, 10)), ((1014, 10), (900, 124)), ((1024, 0), (1014, 10))],
)
def test_a_change_of_the_mix_is_seen(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    assert not Mix.of((before,)).fits((after,))
    assert not Mix.of((after,)).fits((before[::-1],))


@pytest.mark.parametrize("device", DEVICES)
def test_a_sampler_counts_what_a_call_would_take(device: str) -> None:
    @tn.kernel
    def two(a: Index, v: Scalar, out: Mutable[Scalar]):
        first = tm.dispatch(tm.sample_index() // 100 + a, [v, 2 * v], policy="auto", name="first")
        out = first + tm.dispatch(tm.index(v, 3), [v, 1.0, 0.0], policy="auto", name="second")

    v = np.array([0.5, 1.5, 2.5, 9.0] * 75)
    values = (np.zeros(300, np.int64), v, np.full(300, -9.0))
    sampler = sampler_of(two, values, device, ["first", "second"])
    assert sampler.groups == ("first", "second")
    assert sampler.counts(values, None) == ((100, 200), (75, 75, 150))
    assert sampler.counts(values, 100) == ((100, 0), (25, 25, 50))
    assert (values[2] == -9).all()
    assert sampler.counts((np.zeros(299, np.int64), *values[1:]), None) is None


def sampler_of(kernel: tn.Kernel, values: Any, device: str, groups: list[str]) -> Sampler:
    kernel = kernel.on(device)
    kernel(*values, steps=0)
    (executable,) = kernel._executables.values()
    return Sampler(getattr(executable, "executable", executable), groups)


@pytest.mark.parametrize("device", DEVICES)
def test_classes_that_are_not_known_before_the_run_have_no_mix(device: str) -> None:
    @tn.kernel
    def chained(kind: NDArray[i64, 1], v: NDArray[f64, 1], out: NDArray[f64, 1]) -> None:
        for i in range(v.shape[0]):
            out[i] = tm.dispatch(kind[i], [1.0, 2.0], policy="auto", name="first")
        for i in range(v.shape[0]):
            out[i] = out[i] + tm.dispatch(
                tm.index(out[i], 3), [0.0, v[i], 9.0], policy="auto", name="second"
            )

    values = (np.arange(10) % 2, np.ones(10), np.zeros(10))
    sampler = sampler_of(chained, values, device, ["first", "second"])
    assert sampler.groups == ("first",)
    assert sampler.counts(values, None) == ((5, 5),)

    values = (np.arange(10), np.ones(10), np.zeros(10))
    sampler = sampler_of(tn.kernel(in_a_loop_function), values, device, ["dispatch0"])
    assert sampler.groups == ()
    assert sampler.counts(values, None) is None


# ---- the mix in the decision -------------------------------------------------------------------


@on_cpu
def test_each_mix_has_a_decision_of_its_own(times: dict[str, int]) -> None:
    kernel = tn.kernel(drag_function)
    often, rarely = arguments(LARGE, 0.4), arguments(LARGE, 0.01)
    told = decide(kernel, often)
    assert told.chosen == "predicated"
    assert told.mix["dispatch0"] == pytest.approx((0.3, 0.3, 0.4), abs=0.06)
    assert "mix of dispatch0: " in str(told)

    times["segmented"] = 10
    for _ in range(3):
        calls = 0
        while kernel.explain(*rarely).chosen != "segmented":
            kernel(*rarely)
            calls += 1
            assert calls < 3 * CALLS_PER_LOOK
        assert rarely[-1].tobytes() == expected(rarely).tobytes()
        assert kernel.explain(*rarely).geometry[1] == "003"
        calls = 0
        while kernel.explain(*often).chosen != "predicated":
            kernel(*often)
            calls += 1
            assert calls <= CALLS_PER_LOOK + 1  # it is decided, and has to be seen only
        assert often[-1].tobytes() == expected(often).tobytes()


@on_cpu
def test_a_decision_is_not_taken_over_from_another_mix(times: dict[str, int]) -> None:
    assert decide(tn.kernel(drag_function), arguments(LARGE, 0.4)).source == "measured"
    again = tn.kernel(drag_function)
    assert again.explain(*arguments(LARGE, 0.01)).geometry[1] == "003"
    times["segmented"] = 10
    assert decide(again, arguments(LARGE, 0.01)).chosen == "segmented"


@on_cpu
def test_loops_have_no_mix(times: dict[str, int]) -> None:
    kernel = tn.kernel(in_a_loop_function)
    given = (np.arange(SMALL), np.ones(SMALL), np.empty(SMALL))
    told = decide(kernel, given)
    assert told.chosen == "predicated"
    assert told.mix == {}
    assert told.geometry[1] == ""


# ---- what is ruled out -------------------------------------------------------------------------


@on_cpu
def test_what_is_far_behind_is_not_tried(
    times: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    estimates = {"switch": 9.0, "predicated": 2.0, "segmented": 5.9}
    monkeypatch.setattr(forecast.Forecast, "estimates", lambda self, shares: estimates)
    told = decide(tn.kernel(drag_function), arguments(LARGE))
    assert told.chosen == "predicated"
    assert told.estimates_ns == estimates
    switch, predicated, segmented = told.implementations
    assert switch.refusal == "it is estimated to take 4.5 times as long as 'predicated'"
    assert switch.warmups == len(switch.samples_ns) == 0
    assert predicated.samples_ns
    assert segmented.samples_ns
    assert "estimates per sample: switch 9 ns, predicated 2 ns, segmented 5.9 ns" in str(told)


@on_cpu
def test_a_forced_policy_is_not_ruled_out(
    times: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_FORCE", "drag_function.dispatch0:segmented")
    kernel = tn.kernel(drag_function)
    for n in (10, SMALL, LARGE):
        given = arguments(n)
        for _ in range(3):
            kernel(*given)
        assert given[-1].tobytes() == expected(given).tobytes()
        told = kernel.explain(*given)
        assert [each.name for each in told.implementations] == ["segmented"]
        assert told.mix == {}


@on_cpu
def test_estimates_follow_the_mix() -> None:
    @tn.kernel
    def costly(regime: Index, v: Scalar, out: Mutable[Scalar]):
        out = tm.dispatch(
            regime,
            [-v, tm.exp(v) + tm.sin(v) + tm.cos(v) + tm.log(v) + tm.exp(-v) + tm.sin(2 * v)],
            policy="auto",
        )

    kernel = costly.on("cpu")
    values = (np.zeros(9, np.int64), np.ones(9), np.ones(9))
    kernel(*values, steps=0)
    forms = {name: {"dispatch0": name} for name in ("switch", "predicated", "segmented")}
    estimate = forecast.Forecast(automatic(kernel).executable, forms).estimates
    never, rarely, often = (
        estimate({"dispatch0": shares}) for shares in ((1, 0), (0.99, 0.01), (0.5, 0.5))
    )
    for form in forms:
        assert 0 < never[form] < rarely[form] < often[form]
    assert forecast.ruled_out(rarely).keys() == {"segmented"}
    assert estimate({"dispatch0": (0.0, 0.0)}) == dict.fromkeys(forms, 0.0)


def test_nothing_is_ruled_out_where_nothing_takes_time() -> None:
    assert forecast.ruled_out({"switch": 0.0, "predicated": 0.0}) == {}


def test_what_a_wrong_prediction_takes() -> None:
    """One that costs 9 ns, on a machine that is interrupted now and then."""
    calls = 0

    def elapsed_ns(rounds: np.ndarray[Any, Any]) -> float:
        nonlocal calls
        calls += 1
        wrong = np.count_nonzero(np.diff(rounds))
        return 2.0 * rounds.sum() + 9.0 * wrong + (1e9 if calls == 5 else 0)

    assert forecast.measured_misprediction_ns(elapsed_ns) == pytest.approx(9, rel=0.05)
    assert forecast.measured_misprediction_ns(lambda rounds: -float(calls)) == 0


@on_cpu
def test_the_loops_of_that_measurement_run() -> None:
    rounds, result = np.array([1, 3, 0, 2]), np.zeros(1, np.int64)
    forecast._walk.on("cpu")(rounds, result)
    state = 1
    for sample, count in enumerate(rounds.tolist()):
        for _ in range(count):
            state = (state * 5) ^ sample
    assert result[0] == state


# ---- calls of every kind -----------------------------------------------------------------------


@on_cpu
def test_calls_with_counters_run_the_chosen_form(times: dict[str, int]) -> None:
    kernel = tn.kernel(drag_function)
    given = arguments(LARGE)
    counts = np.bincount(given[1], minlength=3)
    mix = np.zeros(3, np.uint32)
    decided = decide(kernel, given, dispatch0_mix=mix)
    assert decided.chosen == "predicated"
    calls = mix.sum() // LARGE
    assert mix.tolist() == (calls * counts).tolist()
    forms = automatic(kernel).forms
    untouched = {name: len(form._executables) for name, form in forms.items()}
    for call in range(1, 2 * CALLS_PER_LOOK):
        given[-1][:] = -9
        kernel(*given, dispatch0_mix=mix)
        assert mix.tolist() == ((calls + call) * counts).tolist()
        assert given[-1].tobytes() == expected(given).tobytes()
    assert untouched == {name: len(form._executables) for name, form in forms.items()}
    times["segmented"] = 10
    kernel(*given)
    assert kernel.explain(*given).chosen == "predicated"  # decided for calls without them, too


@on_cpu
def test_calls_of_some_samples_run_the_chosen_form(times: dict[str, int]) -> None:
    kernel = tn.kernel(drag_function)
    given = arguments(4 * LARGE)
    times["segmented"] = 10
    for _ in range(60):
        given[-1][:] = -9
        kernel(*given, samples=LARGE)
        assert given[-1][:LARGE].tobytes() == expected(given)[:LARGE].tobytes()
        assert (given[-1][LARGE:] == -9).all()
    watched = automatic(kernel)._watches[LARGE.bit_length()]
    assert watched.form == "segmented"
    assert watched.calls_left > 0
    assert automatic(kernel)._watches.keys() == {LARGE.bit_length()}
    mix = np.zeros(3, np.uint32)
    kernel(*given, samples=LARGE, steps=3, dispatch0_mix=mix)
    assert mix.tolist() == (3 * np.bincount(given[1][:LARGE], minlength=3)).tolist()


@on_cpu
def test_a_wrong_counter_is_refused_while_forms_are_tried(times: dict[str, int]) -> None:
    kernel = tn.kernel(drag_function)
    for wrong in (np.zeros(2, np.uint32), np.zeros(3)):
        for _ in range(2):
            with pytest.raises(tn.CallError, match="uint32 with at least 3 elements"):
                kernel(*arguments(LARGE), dispatch0_mix=wrong)
    with pytest.raises(tn.CallError, match="unknown argument 'dispatch1_mix'"):
        kernel(*arguments(LARGE), dispatch1_mix=np.zeros(3, np.uint32))
    assert decide(kernel, arguments(LARGE)).chosen == "predicated"


@on_cpu
def test_steps_are_taken_at_once_after_the_choice(times: dict[str, int]) -> None:
    @tn.kernel
    def grown(kind: Index, x: Mutable[Scalar]):
        x = x + tm.dispatch(kind, [1.0, 2.0], policy="auto")

    kind, x, taken = np.arange(LARGE) % 2, np.zeros(LARGE), 0
    for steps in (1, 5, 200, 0, 7, 300):
        grown(kind, x, steps=steps)
        taken += steps
        assert x.tolist() == (taken * (1.0 + kind)).tolist()
    assert grown.explain(kind, x).chosen == "predicated"


@on_cpu
def test_calls_by_keyword_run_the_chosen_form(times: dict[str, int]) -> None:
    @tn.kernel
    def scaled(kind: Index, *, v: Scalar, out: Mutable[Scalar]):
        out = tm.dispatch(kind, [v, 2 * v], policy="auto")

    kind, v, out = np.arange(LARGE) % 2, np.ones(LARGE), np.empty(LARGE)
    for _ in range(40):
        out[:] = -9
        scaled(kind, v=v, out=out)
        assert out.tolist() == (1.0 + kind).tolist()
    assert scaled.explain(kind, v=v, out=out).chosen == "predicated"


# ---- machine code for short calls --------------------------------------------------------------


def machine_code(kernel: tn.Kernel, given: tuple[Any, ...]) -> CallLimit:
    """Call until machine code runs the chosen form; what limits it."""
    decide(kernel, given)
    for _ in range(3 * CALLS_PER_LOOK):
        kernel(*given)
        shortcut = automatic(kernel)._shortcut
        if shortcut is not None and shortcut._limit.left.value > 0:
            return shortcut._limit
    pytest.skip("this interpreter has no machine code for calls")


@on_cpu
@pytest.mark.parametrize("n", [256, SMALL])
def test_short_calls_reach_machine_code(times: dict[str, int], n: int) -> None:
    kernel, given = tn.kernel(drag_function), arguments(n)
    limit = machine_code(kernel, given)
    limit.left.value = 10
    for left in reversed(range(10)):
        given[-1][:] = -9
        kernel(*given)
        assert limit.left.value == left
        assert given[-1].tobytes() == expected(given).tobytes()
    kernel(*given)
    assert limit.left.value == 0


@on_cpu
def test_other_calls_are_handed_on_by_it(times: dict[str, int]) -> None:
    kernel, given = tn.kernel(drag_function), arguments(SMALL)
    limit = machine_code(kernel, given)
    for n in (0, 10, 255, 400, 2048, LARGE):
        limit.left.value = 10
        other = arguments(n)
        kernel(*other)
        assert other[-1].tobytes() == expected(other).tobytes()
        assert limit.left.value in (0, 10)
    narrow = [a.astype(np.float32) if a.dtype == np.float64 else a for a in given[1:]]
    kernel(0.1, *narrow)
    single = narrow[-1].copy()
    tn.kernel(drag_function).on("cpu")(0.1, *narrow[:-1], single)
    assert narrow[-1].tobytes() == single.tobytes()
    with pytest.raises(tn.CallError, match="v_new"):
        kernel(*given[:3], given[3][:-1])
    with tn.use("reference"):
        kernel(*given)
    assert given[-1] == pytest.approx(expected(given), rel=1e-13)


@on_cpu
def test_sizes_in_turn_keep_their_forms(times: dict[str, int]) -> None:
    kernel = tn.kernel(drag_function)
    sizes = [arguments(n) for n in (SMALL, 3000, SMALLEST_SPLIT)]
    for given in sizes:
        decide(kernel, given)
    for _ in range(3 * CALLS_PER_LOOK):
        for given in sizes:
            given[-1][:] = -9
            kernel(*given)
            assert given[-1].tobytes() == expected(given).tobytes()
    for given in sizes:
        assert kernel.explain(*given).chosen == "predicated"


@on_cpu
def test_threads_share_what_is_chosen(times: dict[str, int]) -> None:
    kernel = tn.kernel(drag_function)

    def run(seed: int) -> bool:
        given = arguments(SMALL + 500 * (seed % 3), (0.01, 0.4)[seed % 2])
        with tn.use("cpu"):
            wanted = expected(given).tobytes()
            for _ in range(3 * CALLS_PER_LOOK):
                given[-1][:] = -9
                kernel(*given)
                if given[-1].tobytes() != wanted:
                    return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(8)))


@on_cpu
def test_repeated_calls_pay_for_another_evaluation(times: dict[str, int]) -> None:
    """The operation hears of the calls that it does not see."""
    kernel, given = tn.kernel(drag_function), arguments(LARGE)
    decide(kernel, given)
    found = automatic(kernel)
    watched = found._watches[LARGE.bit_length()]
    decided = found.operation.standing(found._geometry(watched), given, {})
    assert decided is not None
    assert decided.granted is not None
    before = decided.remaining
    for _ in range(2 * CALLS_PER_LOOK):
        kernel(*given)
    assert before - 2 * CALLS_PER_LOOK <= decided.remaining <= before - CALLS_PER_LOOK


def test_a_limit_is_of_calls_and_sizes() -> None:
    limit = CallLimit(1)
    assert (limit.left.value, limit.least.value, limit.most.value) == (0, 0, 0)
    limit.allow(7, 512, 1023)
    assert (limit.left.value, limit.least.value, limit.most.value) == (7, 512, 1023)


# ---- errors ------------------------------------------------------------------------------------


@on_cpu
def test_an_error_of_a_trial_is_that_of_the_kernel(times: dict[str, int]) -> None:
    @tn.kernel(debug=True)
    def read(kind: Index, place: Index, table: NDArray[f64, 1], out: Mutable[Scalar]):
        out = tm.dispatch(kind, [table[place], -table[place]], policy="auto")

    kind, place = np.arange(SMALL) % 2, np.arange(SMALL) % 10
    given = (kind, place, np.arange(10.0), np.empty(SMALL))
    wrong = (kind, np.full(SMALL, 10), *given[2:])
    for _ in range(5):
        with pytest.raises(tn.OutOfBoundsError, match="index 10 is out of bounds") as caught:
            read(*wrong)
        assert not any("mutates" in note for note in getattr(caught.value, "__notes__", ()))
    assert decide(read, given).chosen == "predicated"
    assert given[-1].tolist() == np.where(kind, -1.0 * place, place).tolist()
    with pytest.raises(tn.OutOfBoundsError):
        read(*wrong)
