"""The measuring engine: alternating runs of several calls, and what their times say.

A time on a shared machine means little by itself, so nothing is measured alone. A round runs every
call once, in an order that moves on by one from round to round, and figures are compared as ratios
of medians. The spread of a ratio is that of the ratios within single rounds, where both calls met
the same state of the machine.
"""

from __future__ import annotations

import statistics
import time
import timeit
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Clock = Callable[[], Any]
"""Gives nanoseconds, or moments whose difference is nanoseconds."""

TimedCall = Callable[[int], float]
"""Runs something so many times, and gives the nanoseconds that all of it took."""

MAXIMUM_CALLS = 1 << 20


LEAST_NS = 0.01
"""Less than any clock here can tell from nothing."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time on two clocks; moments are subtracted like numbers.

    The time between two of them is that of the day or that which the process was computing, all
    its threads together, whichever is less. On an idle machine both are the same for work of one
    thread. Where other programs run too, the time of the day favours short samples, which fit
    between two turns of theirs; where idle threads of a peer spin, CPU time counts them as work.
    """

    elapsed_ns: int
    cpu_ns: int

    def __sub__(self, earlier: Moment) -> int:
        return min(self.elapsed_ns - earlier.elapsed_ns, self.cpu_ns - earlier.cpu_ns)


def now() -> Moment:
    """The present moment."""
    return Moment(time.perf_counter_ns(), time.process_time_ns())


def quiet_clock() -> Clock:
    """A clock for the work of one thread, which other programs disturb as little as may be."""
    is_fine = time.get_clock_info("process_time").resolution <= 1e-6
    return now if is_fine else time.perf_counter_ns


@dataclass(frozen=True)
class Budget:
    """How long to measure.

    Attributes
    ----------
    seconds : float
        No round begins after this much time, once there are `minimum_rounds`.
    minimum_rounds, maximum_rounds : int
        How many samples of each call there are.
    sample_ns : int
        Fast calls are repeated within one sample until it takes at least this long.
    """

    seconds: float
    minimum_rounds: int = 9
    maximum_rounds: int = 301
    sample_ns: int = 500_000


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Timing:
    """Nanoseconds that one call took, once per round."""

    samples_ns: tuple[float, ...]

    @property
    def spread(self) -> Spread:
        """Median and quartiles, in nanoseconds."""
        return spread(self.samples_ns)

    @property
    def median_ns(self) -> float:
        """The median."""
        return statistics.median(self.samples_ns)

    def minus(self, other: Timing) -> Timing:
        """What this call took beyond another one, round by round.

        What noise has made nothing or less counts as `LEAST_NS`, so that ratios are numbers.
        """
        pairs = zip(self.samples_ns, other.samples_ns, strict=True)
        return Timing(tuple(max(own - others, LEAST_NS) for own, others in pairs))


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles; of a single value, that value."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def speedup(timing: Timing, baseline: Timing) -> Spread:
    """How many times faster than `baseline` a call is.

    Returns
    -------
    Spread
        The ratio of the medians, and the quartiles of the ratios within rounds.
    """
    pairs = zip(baseline.samples_ns, timing.samples_ns, strict=True)
    within = spread([others / own for others, own in pairs])
    return Spread(baseline.median_ns / timing.median_ns, within.low, within.high)


def timed(
    statement: str,
    names: Mapping[str, Any],
    *,
    setup: str = "pass",
    clock: Clock,
) -> TimedCall:
    """Make a timed call of a Python statement, which runs without the garbage collector.

    Parameters
    ----------
    statement : str
        What is timed. A call is written as a user writes it, because Python spends other time on
        ``f(a, b)`` than on ``f(*arguments)``.
    names : mapping of str to object
        What the names in `statement` and `setup` mean.
    setup : str
        Runs before each sample, untimed.
    clock : callable
        Gives nanoseconds.
    """
    return timeit.Timer(statement, setup, timer=clock, globals=dict(names)).timeit


def alternate(
    calls: Mapping[str, TimedCall], budget: Budget, clock: Callable[[], int] = time.perf_counter_ns
) -> dict[str, Timing]:
    """Measure several calls in turn.

    Parameters
    ----------
    calls : mapping of str to callable
        What is measured, by name.
    budget : Budget
        How long.
    clock : callable
        Gives nanoseconds; for the budget.

    Returns
    -------
    dict of str to Timing
        By name, as many samples of each, in nanoseconds per call.
    """
    deadline = clock() + int(budget.seconds * 1e9)
    counts = {name: _calls_per_sample(call, budget.sample_ns) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = deque(calls)
    rounds = 0
    while rounds < budget.maximum_rounds:
        if rounds >= budget.minimum_rounds and clock() >= deadline:
            break
        for name in order:
            calls[name](1)  # untimed: nobody pays for caches that the one before has left cold
            samples[name].append(calls[name](counts[name]) / counts[name])
        order.rotate(-1)
        rounds += 1
    return {name: Timing(tuple(values)) for name, values in samples.items()}


def _calls_per_sample(call: TimedCall, sample_ns: int) -> int:
    call(1)  # whatever happens only once
    count = 1
    while count < MAXIMUM_CALLS and call(count) < sample_ns:
        count *= 2
    return count
