"""The engine of the benchmarks: what it measures, whom it marks, what it says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from benchmarks import instructions, kernels, machine, peers, report, suite
from benchmarks.__main__ import main
from benchmarks.cases import Case, Data
from benchmarks.compare import (
    EXACT,
    Absent,
    Contender,
    Row,
    Target,
    Tolerance,
    Verdict,
    compare,
    geometric_mean,
    judge,
)
from benchmarks.measure import (
    LEAST_NS,
    Budget,
    Moment,
    Spread,
    Timing,
    alternate,
    speedup,
    spread,
    timed,
)
from click.testing import CliRunner

SHORTEST = Budget(seconds=0, minimum_rounds=2, sample_ns=1)
TITLE = ("group", "case", 3)


class Clock:
    """A clock that stands still unless it is told otherwise."""

    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns

    def call(self, duration_ns: int, log: list[str], name: str) -> Callable[[int], float]:
        """Something that takes so long each time."""

        def run(count: int) -> float:
            log.append(name)
            self.now_ns += count * duration_ns
            return count * duration_ns

        return run


# -- statistics ------------------------------------------------------------------------------------


def test_spread_is_the_median_and_the_quartiles() -> None:
    # Quartiles of 1..5 that include both ends stand on the second and fourth value.
    assert spread([5.0, 1.0, 4.0, 2.0, 3.0]) == Spread(3.0, 2.0, 4.0)
    # Between two values: a quarter, half and three quarters of the way from 10 to 20.
    assert spread([10.0, 20.0]) == Spread(15.0, 12.5, 17.5)
    assert spread([7.0]) == Spread(7.0, 7.0, 7.0)


def test_speedup_is_the_ratio_of_medians_with_the_spread_within_rounds() -> None:
    fast, slow = Timing((1.0, 2.0, 4.0)), Timing((10.0, 10.0, 10.0))
    # Medians 2 and 10; within rounds 10, 5 and 2.5, whose quartiles are 3.75 and 7.5.
    assert speedup(fast, slow) == Spread(5.0, 3.75, 7.5)


def test_one_timing_minus_another_goes_round_by_round() -> None:
    assert Timing((5.0, 9.0)).minus(Timing((1.0, 2.0))) == Timing((4.0, 7.0))
    assert Timing((5.0, 1.0)).minus(Timing((5.0, 2.0))) == Timing((LEAST_NS, LEAST_NS))


def test_geometric_mean() -> None:
    assert geometric_mean([0.5, 2.0, 8.0]) == pytest.approx(2.0)


# -- measuring -------------------------------------------------------------------------------------


def test_rounds_alternate_and_their_order_moves_on() -> None:
    clock, log = Clock(), []
    calls = {name: clock.call(1000, log, name) for name in "abc"}
    budget = Budget(seconds=0, minimum_rounds=3, sample_ns=1000)
    timings = alternate(calls, budget, clock)
    # Each call runs once to warm up and once to find out how often it fits into a sample; then once
    # untimed and once timed in each round.
    assert "".join(log) == "aabbcc" + "aabbcc" + "bbccaa" + "ccaabb"
    assert timings == {name: Timing((1000.0,) * 3) for name in "abc"}


def test_fast_calls_are_repeated_until_a_sample_is_long_enough() -> None:
    clock, log = Clock(), []
    counts: list[int] = []
    call = clock.call(100, log, "call")

    def counting(count: int) -> float:
        counts.append(count)
        return call(count)

    timings = alternate({"call": counting}, Budget(0, minimum_rounds=2, sample_ns=750), clock)
    assert counts == [1, 1, 2, 4, 8, 1, 8, 1, 8]
    assert timings["call"].samples_ns == (100.0, 100.0)


def test_measuring_ends_with_the_time_or_with_the_greatest_number_of_rounds() -> None:
    def rounds(budget: Budget) -> int:
        clock = Clock()
        # The warm-up and the first try take 2 ms of the time, and every round another 2.
        call = clock.call(1_000_000, [], "call")
        return len(alternate({"call": call}, budget, clock)["call"].samples_ns)

    assert rounds(Budget(seconds=0.012, minimum_rounds=2)) == 5
    assert rounds(Budget(seconds=0, minimum_rounds=4)) == 4
    assert rounds(Budget(seconds=1, maximum_rounds=20)) == 20


def test_a_statement_is_timed_with_the_clock_given_and_its_setup_is_not() -> None:
    clock = Clock()

    def advance(nanoseconds: int) -> None:
        clock.now_ns += nanoseconds

    call = timed("advance(30)", {"advance": advance}, setup="advance(1000)", clock=clock)
    assert call(4) == 120


def test_between_two_moments_the_smaller_of_both_times_counts() -> None:
    start = Moment(elapsed_ns=1000, cpu_ns=500)
    # Another program had the CPU for a while; two threads computed at once.
    assert Moment(elapsed_ns=1900, cpu_ns=700) - start == 200
    assert Moment(elapsed_ns=1100, cpu_ns=700) - start == 100


# -- right or wrong --------------------------------------------------------------------------------


def test_a_tolerance_says_what_is_wrong_and_where() -> None:
    expected = (np.array([1.0, 2.0, np.nan]),)
    assert EXACT.problem((np.array([1.0, 2.0, np.nan]),), expected) == ""
    close = (np.array([1.0, 2.0 + 1e-9, np.nan]),)
    assert EXACT.problem(close, expected).startswith("wrong: 1 of 3 values, the first at (1,): ")
    assert Tolerance(relative=1e-8).problem(close, expected) == ""
    assert Tolerance(absolute=1e-8).problem(close, expected) == ""
    assert Tolerance(1e-10).problem(close, expected) != ""


def test_a_tolerance_compares_shapes_and_numbers_of_results() -> None:
    one = np.zeros(1)
    assert EXACT.problem((np.zeros(2),), (one,)) == "wrong: shape (2,) instead of (1,)"
    assert EXACT.problem((one, one), (one,)) == "wrong: gives 2 arrays instead of 1"


def contender(name: str, value: float) -> Contender:
    return Contender(name, "call()", {"call": lambda: None}, lambda: (np.full(3, value),))


def test_a_wrong_contender_is_marked_and_still_measured() -> None:
    contenders = [contender("turnout", 1.0), contender("hasty", 2.0)]
    right, wrong = compare(TITLE, contenders, (np.ones(3),), SHORTEST)
    assert (right.problem, right.ratio) == ("", 1.0)
    assert wrong.problem == "wrong: 3 of 3 values, the first at (0,): 2.0 instead of 1.0"
    assert wrong.median_ns is not None
    assert report.is_wrong(wrong)
    assert not report.is_wrong(right)


def test_a_contender_that_raises_is_shown_and_the_others_go_on() -> None:
    def fails() -> Any:
        raise ValueError("no such shape\nmore text")

    contenders = [Contender("broken", "call()", {"call": fails}, fails), contender("turnout", 1.0)]
    broken, turnout = compare(TITLE, contenders, (np.ones(3),), SHORTEST)
    assert broken.problem == "failed: ValueError: no such shape"
    assert broken.median_ns is None
    assert turnout.median_ns is not None


def test_a_missing_contender_is_listed_and_leaves_its_target_open() -> None:
    absent = Absent("Numba", "not installed: python -m pip install numba")
    target = Target("Numba", 3.0)
    _, row = compare(TITLE, [contender("turnout", 1.0), absent], (np.ones(3),), SHORTEST, [target])
    assert row.problem == "not installed: python -m pip install numba"
    assert row.verdicts == [
        Verdict("turnout at least 3x as fast as Numba", "at least 3x", "not measured", None)
    ]


# -- targets ---------------------------------------------------------------------------------------


def judged(target: Target, turnout: float, other: float, problem: str = "") -> Verdict:
    rows = [Row(*TITLE, "turnout", problem=problem), Row(*TITLE, "other")]
    judge(rows, {"turnout": Timing((turnout,)), "other": Timing((other,))}, [target])
    (verdict,) = rows[1].verdicts
    return verdict


def test_targets_are_met_or_not() -> None:
    texts = "turnout at least 3x as fast as other", "at least 3x"
    assert judged(Target("other", 3.0), 2.0, 6.0) == Verdict(*texts, "3.00x (3.00 to 3.00)", True)
    assert judged(Target("other", 3.0), 2.0, 5.9) == Verdict(*texts, "2.95x (2.95 to 2.95)", False)
    texts = "turnout at most 3x the time of other", "at most 3x the time"
    measured = "4.00x the time (4.00 to 4.00)"
    assert judged(Target("other", 1 / 3), 8.0, 2.0) == Verdict(*texts, measured, False)


def test_a_wrong_subject_meets_no_target() -> None:
    verdict = judged(Target("other", 3.0), 1.0, 100.0, problem="wrong: 1 of 3 values")
    assert (verdict.measured, verdict.met) == ("turnout is wrong", False)


def test_the_mean_of_the_kernels_needs_all_of_them() -> None:
    (verdict,) = suite.mean_row([2.0, 0.5, 8.0]).verdicts
    assert (verdict.measured, verdict.met) == ("2.00x", True)
    (verdict,) = suite.mean_row([1.0, 1.0]).verdicts
    assert (verdict.measured, verdict.met) == ("1.00x", False)
    (verdict,) = suite.mean_row([2.0, None]).verdicts
    assert verdict.met is None


# -- kernels ---------------------------------------------------------------------------------------


@pytest.fixture
def only_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where no peer but NumPy is installed."""
    is_installed = property(lambda peer: peer.module in ("turnout", "numpy"))
    monkeypatch.setattr(peers.Peer, "is_installed", is_installed)


@pytest.mark.usefixtures("only_numpy")
@pytest.mark.parametrize("case", kernels.cases(), ids=lambda case: case.name)
def test_kernels_compute_what_numpy_computes(case: Case) -> None:
    rows = {row.name: row for row in case.measure("kernels", 12, SHORTEST)}
    assert rows["turnout"].problem == ""
    assert rows["NumPy"].problem == ""
    assert rows["Numba"].problem == "not installed: python -m pip install numba"


@pytest.mark.usefixtures("only_numpy")
def test_outputs_that_are_not_written_are_found() -> None:
    case = Case("idle", "does nothing", [4], tolerance=EXACT, own_tolerance=EXACT)
    case.data(lambda size, random: Data((np.zeros(size),), (np.zeros(size),)))
    case.expected(lambda x: (np.zeros_like(x),))
    case.version("NumPy")(lambda x, out: None)
    (row,) = case.measure("kernels", 4, SHORTEST)
    assert row.problem == "wrong: 4 of 4 values, the first at (0,): nan instead of 0.0"


@pytest.mark.usefixtures("only_numpy")
def test_every_group_lists_who_is_missing() -> None:
    rows = [row for rows in suite.GROUPS["dispatch"](SHORTEST) for row in rows]
    assert rows[-1].problem == "not installed: python -m pip install quadrants"
    assert [verdict.met for row in rows for verdict in row.verdicts] == [None, None]
    assert all(row.median_ns is not None for row in rows[:-1])


# -- report ----------------------------------------------------------------------------------------


def results() -> dict[str, list[Row]]:
    missed = Verdict(
        "turnout at least 3x as fast as Numba", "at least 3x", "2.00x (1.90 to 2.10)", False
    )
    own = Row("drag", "drag", 100, "turnout", 1500.0, 1400.0, 1600.0, 1.0, 1.0, 1.0, 9)
    numba = Row(
        "drag", "drag", 100, "Numba", 3000.0, 2900.0, 3100.0, 2.0, 1.9, 2.1, 9, "", [missed]
    )
    absent = Row("drag", "drag", 100, "hawk", problem="not installed: python -m pip install hawk")
    return {"drag": [own, numba, absent]}


def test_tables_name_a_case_once_and_give_times_with_units() -> None:
    own, numba, absent = report.table_lines(results()["drag"])
    assert own == ("drag", "100", "turnout", "1.50 us", "1.40 us to 1.60 us", "1", "")
    assert numba[:2] == ("", "")
    assert numba[5] == "2.00 (1.90 to 2.10)"
    assert numba[6] == "NOT MET (at least 3x): 2.00x (1.90 to 2.10)"
    assert absent[3:] == ("", "", "", "not installed: python -m pip install hawk")


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0 ns"), (12.34, "12.3 ns"), (1234, "1.23 us"), (45.6e6, "45.6 ms"), (2e9, "2.00 s")],
)
def test_durations_have_a_fitting_unit(nanoseconds: float, text: str) -> None:
    assert report.duration(nanoseconds) == text


def test_markdown_and_the_summary_say_what_is_not_met() -> None:
    text = report.markdown(results(), machine.describe())
    assert "### drag" in text
    assert "| drag | 100 | turnout | 1.50 us | 1.40 us to 1.60 us | 1 |  |" in text
    assert "Targets: 0 met, 1 not met, 0 open (a peer did not run)." in text
    assert "Not met: drag n=100: turnout at least 3x as fast as Numba: 2.00x (1.90 to 2.10)" in text


def test_json_has_the_machine_and_every_row(tmp_path: Any) -> None:
    described = machine.describe()
    path = report.write(tmp_path / "new", machine.file_name(described), results(), described)
    content = json.loads(path.read_text())
    assert content["machine"] == described
    assert content["groups"]["drag"][1]["median_ns"] == 3000.0
    assert content["groups"]["drag"][1]["verdicts"][0]["met"] is False


def test_files_are_named_by_date_and_cpu_alone() -> None:
    described = {"date": "2025-03-01", "cpu": "Intel(R) Xeon/E5 @ 2.60GHz znver5"}
    assert machine.file_name(described) == "2025-03-01-intel-xeon-e5-2-60ghz-znver5"


def test_what_is_kept_of_the_environment_has_no_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    monkeypatch.setenv("TURNOUT_CACHE_DIR", "/somebody")
    kept = machine.describe()["environment"]
    assert kept["OPENBLAS_CORETYPE"] == "Haswell"
    assert "TURNOUT_CACHE_DIR" not in kept


def test_the_command_explains_itself() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for option in ("--group", "--quick", "--save", "--output", "--markdown", "instructions"):
        assert option in result.output


# -- instruction counts ----------------------------------------------------------------------------

BUILD = instructions.Build("CPython 3.11.7", "GCC", "haswell", {"numpy": "2.0"})


def kept(launch: float, dispatch: float) -> dict[str, Any]:
    build = {
        "python": "CPython 3.11.7",
        "compiler": "GCC",
        "target": "haswell",
        "versions": {"numpy": "2.0"},
    }
    counts = {"launch": launch, "dispatch": dispatch, "build": build}
    return {"tolerance": 0.03, "counts": {instructions.this_python(): counts}}


def test_dumps_are_read_by_section_and_counted_per_call() -> None:
    sections = {"loop": 100, "launch": 2100, "dispatch": 5000, "implementation": 1000}
    dumps = [
        f"version: 1\ndesc: Trigger: Client Request: {name}\n\nfn=(1)\ntotals: {total}\n"
        for name, total in sections.items()
    ]
    counted = instructions.parse_dumps([*dumps, "desc: Trigger: Program termination\ntotals: 9\n"])
    assert counted == sections
    assert instructions.per_call(counted, 10) == instructions.Counts(launch=200, dispatch=400)


def test_a_count_that_grew_is_named_and_one_that_shrank_is_not() -> None:
    counts = instructions.Counts(launch=1031, dispatch=900)
    assert instructions.grown(counts, BUILD, kept(1000, 1000)) == [
        "launch: 1,031 instructions, 1,000 were kept: +3.1%, at most +3.0% is allowed"
    ]
    assert instructions.grown(instructions.Counts(1030, 1), BUILD, kept(1000, 1000)) == []


def test_counts_of_another_build_are_not_compared() -> None:
    other = instructions.Build("CPython 3.11.7", "Clang", "haswell", {"numpy": "2.0"})
    with pytest.raises(instructions.NotPossibleError, match=r"compiler: 'Clang' instead of 'GCC'"):
        instructions.grown(instructions.Counts(1, 1), other, kept(1, 1))
    with pytest.raises(instructions.NotPossibleError, match=r"no counts are kept for CPython"):
        instructions.grown(instructions.Counts(1, 1), BUILD, {"tolerance": 0.03, "counts": {}})


def test_without_valgrind_the_command_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert instructions.command(check=True, is_kept=False) == instructions.NOT_POSSIBLE
    assert "valgrind is not installed" in capsys.readouterr().out
