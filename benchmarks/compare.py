"""One comparison: who takes part, who is right, who is faster, and which targets are met."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .measure import Budget, Clock, Spread, Timing, alternate, quiet_clock, speedup, timed

Arrays = tuple[np.ndarray[Any, Any], ...]

SUBJECT = "turnout"
"""Times of the others are shown as multiples of the time of the contender of this name."""


# -- right or wrong --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tolerance:
    """How far a result may be from the expected one; without arguments: not at all.

    Attributes
    ----------
    relative, absolute : float
        A value may differ by ``absolute + relative * abs(expected)``. NaN equals NaN.
    """

    relative: float = 0.0
    absolute: float = 0.0

    def problem(self, results: Arrays, expected: Arrays) -> str:
        """Empty when every array is right, else what is wrong."""
        if len(results) != len(expected):
            return f"wrong: gives {len(results)} arrays instead of {len(expected)}"
        found = (self._problem(*pair) for pair in zip(results, expected, strict=True))
        return next(filter(None, found), "")

    def _problem(self, result: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> str:
        if result.shape != expected.shape:
            return f"wrong: shape {result.shape} instead of {expected.shape}"
        is_right = np.isclose(
            result, expected, rtol=self.relative, atol=self.absolute, equal_nan=True
        )
        count = int(is_right.size - is_right.sum())
        if not count:
            return ""
        place = np.unravel_index(int(np.argmin(is_right)), is_right.shape)
        return (
            f"wrong: {count} of {is_right.size} values, the first at {tuple(map(int, place))}: "
            f"{result[place]} instead of {expected[place]}"
        )


EXACT = Tolerance()


def poison(arrays: Arrays) -> None:
    """Fill arrays with what no kernel gives, so that a value that is not written is found."""
    for array in arrays:
        array.fill(np.nan if array.dtype.kind == "f" else 0x5A)


# -- who takes part --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contender:
    """Something that is timed.

    Attributes
    ----------
    name : str
        What the tables call it.
    statement, names, setup
        As in `measure.timed`.
    results : callable
        Runs the statement's work once on poisoned outputs and gives what it wrote.
    tolerance : Tolerance
        How far from the expected results that may be.
    """

    name: str
    statement: str
    names: Mapping[str, Any]
    results: Callable[[], Arrays]
    tolerance: Tolerance = EXACT
    setup: str = "pass"


@dataclass(frozen=True)
class Absent:
    """Somebody who does not take part, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Target:
    """What turnout promises: `fast` takes at most 1/`at_least` of the time of `slow`.

    Attributes
    ----------
    row : str
        In whose row of the table it is shown; that of `slow` by default.
    """

    slow: str
    at_least: float
    fast: str = SUBJECT
    row: str = ""

    @property
    def text(self) -> str:
        """In full."""
        comparison = "as fast as" if self.at_least >= 1 else "of"
        return f"{self.fast} {self.goal} {comparison} {self.slow}"

    @property
    def goal(self) -> str:
        """In few words."""
        if self.at_least >= 1:
            return f"at least {self.at_least:g}x"
        return f"at most {1 / self.at_least:.3g}x the time"

    def measured(self, ratio: Spread) -> str:
        """How many times as fast `fast` is, in the words of `text`."""
        if self.at_least >= 1:
            return f"{ratio.median:.2f}x ({ratio.low:.2f} to {ratio.high:.2f})"
        return f"{1 / ratio.median:.2f}x the time ({1 / ratio.high:.2f} to {1 / ratio.low:.2f})"


# -- what comes out --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """A target and what was measured; `met` is None where somebody did not take part."""

    text: str
    goal: str
    measured: str
    met: bool | None


@dataclass
class Row:
    """A line of the table.

    Attributes
    ----------
    median_ns, low_ns, high_ns : float or None
        Nanoseconds per call and the quartiles around them.
    ratio, ratio_low, ratio_high : float or None
        The time as a multiple of that of the subject of the comparison.
    rounds : int
        How many samples there are.
    problem : str
        Empty, or why there is no time, or in what the result is wrong.
    """

    group: str
    case: str
    size: int | None
    name: str
    median_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    rounds: int = 0
    problem: str = ""
    verdicts: list[Verdict] = field(default_factory=list)


def compare(
    title: tuple[str, str, int | None],
    contenders: Sequence[Contender | Absent],
    expected: Arrays,
    budget: Budget,
    targets: Sequence[Target] = (),
    clock: Clock | None = None,
) -> list[Row]:
    """Check, measure and judge.

    Parameters
    ----------
    title : tuple
        Group, case and size of the rows.
    contenders : sequence of Contender or Absent
        A contender that fails or is wrong gets a row that says so.
    expected : tuple of arrays
        What every contender has to compute.
    budget : Budget
        How long to measure.
    targets : sequence of Target
        What is promised of these contenders.
    clock : callable, optional
        What times are read from; by default `measure.quiet_clock`, for work of one thread.

    Returns
    -------
    list of Row
        One for each contender, in the order given.
    """
    problems = {each.name: _problem(each, expected) for each in contenders}
    clock = clock or quiet_clock()
    calls = {
        each.name: timed(each.statement, each.names, setup=each.setup, clock=clock)
        for each in contenders
        if isinstance(each, Contender) and not problems[each.name].startswith("failed")
    }
    timings = alternate(calls, budget)
    rows = [
        make_row(title, each.name, timings, SUBJECT, problems[each.name]) for each in contenders
    ]
    judge(rows, timings, targets)
    return rows


def _problem(contender: Contender | Absent, expected: Arrays) -> str:
    if isinstance(contender, Absent):
        return contender.why
    try:
        return contender.tolerance.problem(contender.results(), expected)
    except Exception as error:  # whatever a peer raises; its row shows it, and the others are shown
        return failure(error)


def failure(error: Exception) -> str:
    """The text of a row whose contender raised."""
    lines = str(error).strip().splitlines() or [""]
    return f"failed: {type(error).__name__}: {lines[0][:200]}"


def make_row(
    title: tuple[str, str, int | None],
    name: str,
    timings: Mapping[str, Timing],
    subject: str,
    problem: str = "",
) -> Row:
    """The line of one contender; without times where it was not measured."""
    row = Row(*title, name, problem=problem)
    timing = timings.get(name)
    if timing is None:
        return row
    times = timing.spread
    row.median_ns, row.low_ns, row.high_ns = times.median, times.low, times.high
    row.rounds = len(timing.samples_ns)
    if subject in timings:
        ratio = speedup(timings[subject], timing)
        row.ratio, row.ratio_low, row.ratio_high = ratio.median, ratio.low, ratio.high
    return row


def judge(rows: Sequence[Row], timings: Mapping[str, Timing], targets: Sequence[Target]) -> None:
    """Put a verdict on every target into the row that it belongs to."""
    by_name = {row.name: row for row in rows}
    for target in targets:
        row = by_name.get(target.row or target.slow)
        if row is not None:
            row.verdicts.append(_verdict(target, by_name, timings))


def _verdict(target: Target, rows: Mapping[str, Row], timings: Mapping[str, Timing]) -> Verdict:
    if target.fast not in timings:
        return Verdict(target.text, target.goal, f"{target.fast} did not run", False)
    if rows[target.fast].problem:
        return Verdict(target.text, target.goal, f"{target.fast} is wrong", False)
    if target.slow not in timings:
        return Verdict(target.text, target.goal, "not measured", None)
    ratio = speedup(timings[target.fast], timings[target.slow])
    return Verdict(
        target.text, target.goal, target.measured(ratio), ratio.median >= target.at_least
    )


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios."""
    return math.exp(math.fsum(map(math.log, values)) / len(values))
