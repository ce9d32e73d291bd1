"""The trial engine: decides which candidate a call runs, and finds the fastest.

It knows no kernels, arrays or devices: a :class:`Tuner` has named candidates, a plan that says how
often each is tried, a clock, and is given a timer. Every call of :meth:`Tuner.run` runs exactly one
candidate, so candidates need not be idempotent. Until each candidate was warmed up and timed, calls
are *trials*, in round-robin order; then the candidate with the lowest time is remembered for that
geometry, and a caller's fast path finds it in :attr:`Tuner.decided` without taking a lock.

Threads: one thread at a time holds a trial of a geometry; the others run the incumbent untimed.
The lock is held for bookkeeping alone, never while a candidate, a timer or a report runs.
"""

from __future__ import annotations

import itertools
import math
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from .errors import BackendError, CallError, ConfigurationError

Timer = Callable[[Callable[[], None]], int]
"""Runs the work it is given exactly once and returns the nanoseconds that took."""

Clock = Callable[[], float]
"""Returns seconds that never run backwards, like :func:`time.monotonic`."""


@dataclass(frozen=True)
class TrialPlan:
    """How often each candidate is tried, and when everything is tried again.

    Attributes
    ----------
    warmup : int
        Untimed runs of each candidate before the first timed one.
    active : int
        Timed runs of each candidate; candidates are compared by the median.
    repeat_after_count : int
        Restart all trials of a geometry after this many decided calls; 0: never.
    repeat_after_seconds : float
        Restart all trials of a geometry this many seconds after the decision; 0: never.

    Raises
    ------
    ConfigurationError
        When a value is of the wrong type or out of range.
    """

    warmup: int = 3
    active: int = 1
    repeat_after_count: int = 0
    repeat_after_seconds: float = 1.0

    def __post_init__(self) -> None:
        check_count("warmup", self.warmup, at_least=0)
        check_count("active", self.active, at_least=1)
        check_count("repeat_after_count", self.repeat_after_count, at_least=0)
        seconds = self.repeat_after_seconds
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
            raise ConfigurationError(
                f"repeat_after_seconds={seconds!r} is not allowed: give a number of seconds that "
                "is 0 (never repeat the trials) or more"
            )


def check_count(name: str, value: object, at_least: int) -> None:
    """Raise a ConfigurationError unless `value` is an integer of `at_least` or more."""
    is_integer = hasattr(value, "__index__") and not isinstance(value, bool)
    if not is_integer or operator.index(value) < at_least:  # type: ignore[arg-type]
        raise ConfigurationError(
            f"{name}={value!r} is not allowed: give an integer of {at_least} or more"
        )


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to do the work; `name` is unique within a tuner."""

    name: str
    function: Callable[..., Any]


C = TypeVar("C", bound=Candidate)
R = TypeVar("R")
Phase = Literal["warmup", "active", "untimed"]


@dataclass(frozen=True)
class Decision:
    """What is known about one geometry.

    Attributes
    ----------
    geometry : hashable
        The key under which the decision is remembered.
    chosen : str or None
        Name of the candidate in use; None while the first trials run.
    samples : dict of str to tuple of int
        Per candidate the elapsed nanoseconds of its timed runs, in the order they ran.
    reason : str
        Why `chosen` was chosen, or how far the trials are.
    """

    geometry: Hashable
    chosen: str | None
    samples: dict[str, tuple[int, ...]]
    reason: str


@dataclass(frozen=True)
class Case(Generic[C]):
    """What one call asks the tuner to choose from.

    Attributes
    ----------
    geometry : hashable
        Trials and samples are kept per geometry.
    key : hashable
        Decisions are remembered per key: the geometry, and whatever narrowed the candidates down.
    candidates : tuple of Candidate
        Those that may run here, in registration order; at least one.
    registered : tuple of Candidate
        The value of :attr:`Tuner.candidates` from which they were narrowed down. No decision is
        remembered when another candidate was added since then.
    """

    geometry: Hashable
    key: Hashable
    candidates: tuple[C, ...]
    registered: tuple[C, ...]


class Decided(Generic[C]):
    """An entry of :attr:`Tuner.decided`, laid out for a caller's fast path.

    It holds while ``clock() < expires`` and ``next(calls, None) is not None``; a fast path leaves
    out the test of a limit that the plan does not set.
    """

    __slots__ = ("calls", "candidate", "decision", "expires", "function")

    def __init__(
        self, candidate: C, decision: Decision, expires: float, calls: Iterator[object]
    ) -> None:
        self.candidate = candidate
        self.function = candidate.function
        self.decision = decision
        self.expires = expires
        self.calls = calls


class _Record(Generic[C]):
    """What was measured for one geometry."""

    __slots__ = ("failures", "holder", "incumbent", "keys", "samples", "warmups")

    def __init__(self) -> None:
        self.warmups: dict[str, int] = {}
        self.samples: dict[str, list[int]] = {}
        self.failures: dict[str, str] = {}  # what disqualified candidates raised, as text
        self.incumbent: C | None = None  # the last winner
        self.holder: object | None = None  # the call that holds the trial
        self.keys: set[Hashable] = set()  # the decisions that rest on this record

    def next_trial(self, plan: TrialPlan, candidates: tuple[C, ...]) -> tuple[C, Phase] | None:
        """Return the next candidate and its phase; None when all trials are done."""
        warmups = [self.warmups.get(candidate.name, 0) for candidate in candidates]
        if min(warmups) < plan.warmup:
            return candidates[warmups.index(min(warmups))], "warmup"
        timed = [len(self.samples.get(candidate.name, ())) for candidate in candidates]
        if min(timed) < plan.active:
            return candidates[timed.index(min(timed))], "active"
        return None

    def qualified(self, candidates: tuple[C, ...]) -> tuple[C, ...]:
        """Return the candidates that raised in no trial."""
        return tuple(c for c in candidates if c.name not in self.failures)

    def disqualify(self, candidate: C, candidates: tuple[C, ...], error: Exception) -> None:
        """Try a candidate that raised no more, unless all did: then the input was at fault."""
        # Only the text is kept: the exception would keep its frames and their arrays alive.
        self.failures[candidate.name] = f"{type(error).__name__}: {error}"
        if not self.qualified(candidates):
            for each in candidates:
                del self.failures[each.name]

    def add(self, candidate: C, elapsed_ns: int | None) -> None:
        """Count one finished trial; `elapsed_ns` is None for a warm-up."""
        if elapsed_ns is None:
            self.warmups[candidate.name] = self.warmups.get(candidate.name, 0) + 1
        else:
            self.samples.setdefault(candidate.name, []).append(elapsed_ns)

    def forget(self, candidates: tuple[C, ...]) -> None:
        for candidate in candidates:
            self.warmups.pop(candidate.name, None)
            self.samples.pop(candidate.name, None)

    def fastest(self, candidates: tuple[C, ...]) -> C:
        """Return the lowest median; ties go to the incumbent, then to the earlier candidate."""
        return min(
            candidates,
            key=lambda c: (median(self.samples[c.name]), c is not self.incumbent),
        )

    def in_use(self, candidates: tuple[C, ...]) -> C:
        """Return who runs, untimed, while there is no decision."""
        if self.incumbent is not None and self.incumbent in candidates:
            return self.incumbent
        return candidates[0]

    def samples_of(self, candidates: tuple[C, ...]) -> dict[str, tuple[int, ...]]:
        return {c.name: tuple(self.samples[c.name]) for c in candidates if c.name in self.samples}


class _Turn(NamedTuple, Generic[C]):
    """What one call does, and the decision that was taken on the way there."""

    candidate: C
    phase: Phase
    decision: Decision | None = None


class Tuner(Generic[C]):
    """Runs one candidate per call and remembers the fastest one for each geometry.

    Parameters
    ----------
    plan : TrialPlan
        How often each candidate is tried.
    report : callable
        Called with each new :class:`Decision`, without the lock.
    clock : callable
        Seconds for `plan.repeat_after_seconds`.
    max_geometries : int
        How many geometries are remembered; the one decided longest ago makes room.

    Attributes
    ----------
    candidates : tuple of Candidate
        In registration order. Replaced when one is added, never changed.
    decided : dict of hashable to Decided
        By :attr:`Case.key`. The same dict for the tuner's whole life, to be read without a lock.
    """

    def __init__(
        self,
        plan: TrialPlan,
        report: Callable[[Decision], None],
        clock: Clock = time.monotonic,
        max_geometries: int = 1024,
    ) -> None:
        check_count("max_geometries", max_geometries, at_least=1)
        self.candidates: tuple[C, ...] = ()
        self.decided: dict[Hashable, Decided[C]] = {}
        self._plan = plan
        self._report = report
        self._clock = clock
        self._max_geometries = max_geometries
        self._records: dict[Hashable, _Record[C]] = {}  # the one decided longest ago comes first
        # Re-entrant, because signal handlers and finalisers may call the tuner at any point.
        self._lock = threading.RLock()
        _tuners.add(self)

    def add(self, candidate: C) -> bool:
        """Append a candidate; samples of the others are kept, so only it has trials to run.

        Returns False, and changes nothing, when its name is taken.
        """
        with self._lock:
            if any(candidate.name == other.name for other in self.candidates):
                return False
            self.candidates = (*self.candidates, candidate)
            self._forget_decisions()
        return True

    def remove(self, candidates: tuple[C, ...]) -> None:
        """Take candidates out again, with whatever was measured of them."""
        with self._lock:
            self.candidates = tuple(c for c in self.candidates if c not in candidates)
            self._forget_decisions()
            for record in self._records.values():
                record.forget(candidates)
                for candidate in candidates:
                    record.failures.pop(candidate.name, None)

    def renew(self, candidates: Sequence[C]) -> None:
        """Put candidates in the places of those of the same names; what was measured stays."""
        renewed = {candidate.name: candidate for candidate in candidates}
        with self._lock:
            self.candidates = tuple(renewed.get(c.name, c) for c in self.candidates)
            for record in self._records.values():
                if record.incumbent is not None:
                    record.incumbent = renewed.get(record.incumbent.name, record.incumbent)
            for key, old in self.decided.items():
                candidate = renewed.get(old.candidate.name, old.candidate)
                self.decided[key] = Decided(candidate, old.decision, old.expires, old.calls)

    def reset(self) -> None:
        """Forget all decisions and samples; the candidates stay."""
        with self._lock:
            self.decided.clear()
            self._records.clear()

    def run(self, case: Case[C], work: Callable[[C], R], timer: Timer) -> R:
        """Run one candidate of `case`: the next trial, or else, untimed, the one in use.

        Parameters
        ----------
        case : Case
            The geometry and the candidates that may run.
        work : callable
            Runs the candidate it is given and returns the caller's result.
        timer : Timer
            Times the run if it is a timed trial.

        Returns
        -------
        object
            What `work` returned. If it raises, the exception passes and the trial does not count.
            A candidate that raised in a trial is not tried again for this geometry, unless all of
            them did, or what it raised is a `CallError`, which says that the caller is at fault.
        """
        record = self._record(case.geometry)
        holder = object()
        try:
            turn = self._take_turn(case, record, holder)
            result, elapsed_ns = self._run_turn(case, record, turn, work, timer)
            decision = turn.decision
            if turn.phase != "untimed":
                decision = self._finish_trial(case, record, turn.candidate, elapsed_ns)
        finally:
            # Whatever ended this call, an interrupt too, must not keep others from their trials.
            if record.holder is holder:
                record.holder = None
        if decision is not None:
            self._report(decision)
        return result

    def _run_turn(
        self,
        case: Case[C],
        record: _Record[C],
        turn: _Turn[C],
        work: Callable[[C], R],
        timer: Timer,
    ) -> tuple[R, int | None]:
        """Run the candidate of a turn; elapsed nanoseconds are None where it is not timed."""
        if turn.phase == "untimed":
            return work(turn.candidate), None

        def attempt() -> R:
            try:
                return work(turn.candidate)
            except CallError:
                raise
            except Exception as error:
                with self._lock:
                    record.disqualify(turn.candidate, case.candidates, error)
                raise

        return _run_timed(attempt, timer) if turn.phase == "active" else (attempt(), None)

    def settle(self, case: Case[C], candidate: C, reason: str) -> None:
        """Decide for `candidate` for good, without trials."""
        record = self._record(case.geometry)
        decision = Decision(case.geometry, candidate.name, {}, reason)
        decided = Decided(candidate, decision, math.inf, _UNLIMITED)
        if self._remember(case, record, decided):
            self._report(decision)

    def decision(self, case: Case[C]) -> Decision | None:
        """Return what is known about `case`; None when its geometry is not known."""
        with self._lock:
            decided = self.decided.get(case.key)
            if decided is not None:
                return decided.decision
            record = self._records.get(case.geometry)
            if record is None:
                return None
            candidates = record.qualified(case.candidates)
            samples = record.samples_of(candidates)
            warmups = sum(record.warmups.get(c.name, 0) for c in candidates)
            done = warmups + sum(map(len, samples.values()))
            planned = (self._plan.warmup + self._plan.active) * len(candidates)
            chosen = record.incumbent.name if record.incumbent in candidates else None
            reason = f"{done} of {planned} trials done{_left_out(case, record)}"
            return Decision(case.geometry, chosen, samples, reason)

    def _record(self, geometry: Hashable) -> _Record[C]:
        with self._lock:
            record = self._records.get(geometry)
            if record is None:
                if len(self._records) >= self._max_geometries:
                    oldest = self._records.pop(next(iter(self._records)))
                    for key in oldest.keys:
                        self.decided.pop(key, None)
                record = self._records[geometry] = _Record()
            return record

    def _take_turn(self, case: Case[C], record: _Record[C], holder: object) -> _Turn[C]:
        with self._lock:
            decided = self.decided.get(case.key)
            if decided is not None and not self._is_expired(decided):
                return _Turn(decided.candidate, "untimed")  # another thread decided just now
            candidates = record.qualified(case.candidates)
            if record.holder is not None:
                return _Turn(record.in_use(candidates), "untimed")
            if decided is not None:
                del self.decided[case.key]
                record.forget(candidates)
            trial = record.next_trial(self._plan, candidates)
            if trial is None:
                winner, decision = self._decide(case, record)
                return _Turn(winner, "untimed", decision)
            record.holder = holder
            return _Turn(*trial)

    def _finish_trial(
        self, case: Case[C], record: _Record[C], candidate: C, elapsed_ns: int | None
    ) -> Decision | None:
        """Count the trial; after the last one, return the decision that it completes."""
        with self._lock:
            record.add(candidate, elapsed_ns)
            if record.next_trial(self._plan, record.qualified(case.candidates)) is not None:
                return None
            return self._decide(case, record)[1]

    def _decide(self, case: Case[C], record: _Record[C]) -> tuple[C, Decision | None]:
        """Return the fastest candidate, and the decision if it could be remembered."""
        plan = self._plan
        candidates = record.qualified(case.candidates)
        winner = record.fastest(candidates)
        reason = f"lowest median of {plan.active} timed call{'s' if plan.active > 1 else ''} each"
        reason += _left_out(case, record)
        samples = record.samples_of(candidates)
        decision = Decision(case.geometry, winner.name, samples, reason)
        seconds = plan.repeat_after_seconds
        expires = self._clock() + seconds if seconds else math.inf
        calls = iter(range(plan.repeat_after_count)) if plan.repeat_after_count else _UNLIMITED
        remembered = self._remember(case, record, Decided(winner, decision, expires, calls))
        return winner, decision if remembered else None

    def _remember(self, case: Case[C], record: _Record[C], decided: Decided[C]) -> bool:
        with self._lock:
            if case.registered is not self.candidates:
                return False  # a candidate that this decision does not know was added meanwhile
            if self._records.get(case.geometry) is not record:
                return False  # the geometry was evicted or reset meanwhile
            self._records[case.geometry] = self._records.pop(case.geometry)
            record.incumbent = decided.candidate
            record.keys.add(case.key)
            self.decided[case.key] = decided
            return True

    def _is_expired(self, decided: Decided[C]) -> bool:
        if self._clock() >= decided.expires:
            return True
        return decided.calls is not _UNLIMITED and operator.length_hint(decided.calls) == 0

    def _forget_decisions(self) -> None:
        self.decided.clear()
        for record in self._records.values():
            record.keys.clear()

    def _forget_other_threads(self) -> None:
        self._lock = threading.RLock()
        for record in self._records.values():
            record.holder = None


def _left_out(case: Case[C], record: _Record[C]) -> str:
    """Words for the candidates that are not tried, and what they raised."""
    failed = [c.name for c in case.candidates if c.name in record.failures]
    return "".join(f"; without {name!r}, which raised {record.failures[name]}" for name in failed)


def _run_timed(work: Callable[[], R], timer: Timer) -> tuple[R, int]:
    results: list[R] = []
    elapsed_ns = timer(lambda: results.append(work()))
    if len(results) != 1:
        raise BackendError(
            f"a timer must run the work it is given exactly once, {timer!r} ran it "
            f"{len(results)} times: each run has side effects that the caller asked for once"
        )
    return results[0], elapsed_ns


def median(samples: Sequence[int]) -> float:
    """Return the median, which for an even number of samples is the mean of the middle two."""
    ordered = sorted(samples)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


_UNLIMITED: Iterator[object] = itertools.repeat(0)

_tuners: weakref.WeakSet[Tuner[Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # The threads that held a lock or a trial in the parent do not exist in the child.
    for tuner in _tuners:
        tuner._forget_other_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
