"""The trial engine: decides which candidate a call runs, and finds the fastest.

It knows no kernels, arrays or devices: a :class:`Tuner` has named candidates, a plan that says how
often each is tried, a clock, and is given a timer. Every call of :meth:`Tuner.run` runs exactly one
candidate, so candidates need not be idempotent. Until each candidate was warmed up and timed, calls
are *trials*, in round-robin order; then the fastest candidate is remembered for that geometry, and
a caller's fast path finds it in :attr:`Tuner.decided` without taking a lock. What is tried next and
who is the fastest is decided in :mod:`turnout.trials`.

Threads: one thread at a time holds a trial of a geometry; the others run the incumbent untimed.
The lock is held for bookkeeping alone, never while a candidate, a timer, a hook or a report runs.
"""

from __future__ import annotations

import itertools
import math
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from .decision_table import UNLIMITED, DecisionTable, Loan
from .errors import BackendError, CallError, PlacementError
from .ranking import median
from .records import record
from .trials import (
    DEFAULT_SECONDS,
    C,
    Candidate,
    Decision,
    Known,
    Phase,
    TrialPlan,
    Trials,
    check_count,
)

__all__ = ["Candidate", "Case", "Clock", "Decided", "Decision", "Examined", "Hooks", "Known"]
__all__ += ["Timer", "TrialPlan", "Tuner", "median"]

R = TypeVar("R")

Timer = Callable[[Callable[[], None]], int]
"""Runs the work it is given exactly once and returns the nanoseconds that took."""

Clock = Callable[[], float]
"""Returns seconds that never run backwards, like :func:`time.monotonic`."""

_WAITING_CALL_NS = 5_000
"""What a call takes in turnout itself while nothing is decided."""

_LEAST_CALLS_BETWEEN_LOOKS = 1000
"""How often the clock is looked at, at most, when an evaluation is paid for but not yet due."""

_LOOK_NS = 10_000
"""What that takes."""


@record
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


class Hooks(Generic[C]):
    """What a call lets the tuner ask and tells it; override what the caller can do.

    They are called without the lock, by the thread that made the call.

    Attributes
    ----------
    admits_again : bool
        Whether `admit` is asked again whenever candidates are measured again.
    """

    admits_again = False

    def may_measure(self) -> bool:
        """Whether this call may be a trial; where not, the candidate in use runs."""
        return True

    def recall(self) -> Known | None:
        """Return what earlier processes measured for this geometry; asked once."""
        return None

    def admit(self, candidates: Sequence[C]) -> Mapping[C, str]:
        """Return why some candidates must not be tried; asked before any of them runs.

        Some may have been asked about before. Two threads may ask at once. Those that are refused
        are never tried for this geometry.
        """
        return {}

    def prepare(self, candidate: C) -> None:
        """Get ready for a trial; what this takes is not timed."""

    def restore(self, candidate: C, error: BaseException) -> bool:
        """Put the arguments back as they were before a trial raised; return whether they are.

        Where they are, the same call goes on with another candidate.
        """
        return False

    def decided(self, decision: Decision) -> None:
        """Take note of a new decision, and of what was measured for it."""


_NO_HOOKS: Hooks[Any] = Hooks()


class Decided(Generic[C]):
    """An entry of :attr:`Tuner.decided`, laid out for a caller's fast path.

    It holds while ``clock() < expires`` and ``next(calls, None) is not None``; a fast path leaves
    out the test of a limit that the plan does not set.
    """

    __slots__ = (
        "_loan",
        "calls",
        "candidate",
        "decision",
        "due",
        "expires",
        "function",
        "granted",
        "is_dropped",
    )

    def __init__(self, candidate: C, decision: Decision) -> None:
        self.candidate = candidate
        self.function: Callable[..., Any] = (
            candidate.function if candidate.make is None else self._make
        )
        self.decision = decision
        self.expires = math.inf
        self.due = math.inf  # with a budget: no evaluation before this time
        self.is_dropped = False  # whether `Tuner.decided` has it no more
        self._loan: Loan | None = None
        self.grant(None)

    def _make(self, *arguments: Any, **keywords: Any) -> Any:
        self.function = self.candidate.function_for(arguments, keywords)
        return self.function(*arguments, **keywords)

    def grant(self, calls: int | None) -> None:
        """Let this many calls pass before the next look; None: any number."""
        self.granted = calls
        self.calls: Iterator[object] = _UNLIMITED if calls is None else iter(range(calls))

    @property
    def remaining(self) -> int:
        """How many of the granted calls are left."""
        if self.granted is None:
            return 0
        lent = 0 if self._loan is None else self._loan.left
        return operator.length_hint(self.calls) + lent

    def spend(self, calls: int) -> None:
        """Count calls that were made without taking them from `calls`, all at once."""
        if self.granted is not None:
            self._take_back()
            self.calls = iter(range(max(0, self.remaining - calls)))

    def use(self) -> bool:
        """Take one of the granted calls; returns whether there was one."""
        return next(self.calls, None) is not None

    def lend(self, table: DecisionTable, key: Sequence[int]) -> bool:
        """Take one of the granted calls, and let those who read a table take all others."""
        self._take_back()
        if not self.use():
            return False
        if self.function == self._make:
            return True  # this call makes the function
        left = UNLIMITED
        if self.granted is not None:
            left, self.calls = operator.length_hint(self.calls), iter(())
        self._loan = table.lend(key, self.function, left)
        if self.is_dropped:  # since it was looked up
            self._take_back()
        return True

    def drop(self) -> None:
        """Let nobody find this decision any more."""
        self.is_dropped = True
        self._take_back()

    def _take_back(self) -> None:
        """Take back the calls that were lent and not made."""
        loan, self._loan = self._loan, None
        if loan is None:
            return
        left = loan.end()
        if self.granted is not None:
            self.calls = iter(range(operator.length_hint(self.calls) + left))

    @property
    def elapsed_ns(self) -> float:
        """What the granted calls that were made took, by the median of the samples."""
        samples = self.decision.samples.get(self.candidate.name)
        if self.granted is None or not samples:
            return 0.0
        return (self.granted - self.remaining) * median(samples)


class _Turn(NamedTuple, Generic[C]):
    """What one call does, and the decision that was taken on the way there."""

    candidate: C
    phase: Phase
    decision: Decision | None = None


@record
class Examined:
    """All that is known of one case, for explanations.

    Attributes
    ----------
    decision : Decision or None
        None when nothing is known of the geometry.
    samples : dict of str to tuple of int
        Of all candidates that were ever timed, those that failed or do not fit included.
    warmups : dict of str to int
        Untimed runs in the current evaluation.
    failures : dict of str to str
        Why candidates are not tried.
    exploration_share : float or None
        The share of the operation's time that trials after the first decision took up to now; None
        where decided calls are not counted.
    """

    decision: Decision | None
    samples: dict[str, tuple[int, ...]]
    warmups: dict[str, int]
    failures: dict[str, str]
    exploration_share: float | None


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
        # Python reads a plain dict faster than a subclass that would do what `_put` and `_take` do.
        self.decided: dict[Hashable, Decided[C]] = {}
        self._plan = plan
        self._report = report
        self._clock = clock
        self._max_geometries = max_geometries
        self._trials: dict[Hashable, Trials[C]] = {}  # the one decided longest ago comes first
        # Re-entrant, because signal handlers and finalisers may call the tuner at any point.
        self._lock = threading.RLock()
        _tuners.add(self)

    # -- candidates

    def add(self, candidates: Sequence[C]) -> str | None:
        """Append candidates; samples of the others are kept, so only these have trials to run.

        Returns a name that is taken, if there is one; then nothing is changed.
        """
        with self._lock:
            taken = {candidate.name for candidate in self.candidates}
            for candidate in candidates:
                if candidate.name in taken:
                    return candidate.name
            self.candidates = (*self.candidates, *candidates)
            self._forget_decisions()
        return None

    def remove(self, candidates: tuple[C, ...]) -> None:
        """Take candidates out again, with whatever was measured of them."""
        with self._lock:
            self.candidates = tuple(c for c in self.candidates if c not in candidates)
            self._forget_decisions()
            for trials in self._trials.values():
                trials.forget(candidates)

    def renew(self, candidates: Sequence[C]) -> None:
        """Put candidates in the places of those of the same names; what was measured stays."""
        renewed = {candidate.name: candidate for candidate in candidates}
        with self._lock:
            self.candidates = tuple(renewed.get(c.name, c) for c in self.candidates)
            for trials in self._trials.values():
                if trials.incumbent is not None:
                    trials.incumbent = renewed.get(trials.incumbent.name, trials.incumbent)
            for key, old in self.decided.items():
                new = Decided(renewed.get(old.candidate.name, old.candidate), old.decision)
                new.expires, new.due = old.expires, old.due
                old.drop()
                new.granted, new.calls = old.granted, old.calls
                self._put(key, new)

    def reset(self) -> None:
        """Forget all decisions and samples; the candidates stay."""
        with self._lock:
            self._take_all()
            self._trials.clear()

    def _put(self, key: Hashable, decided: Decided[C]) -> None:
        """Let a decision be found, in place of one that was there."""
        before = self.decided.get(key)
        self.decided[key] = decided
        if before is not None and before is not decided:
            before.drop()

    def _take(self, key: Hashable) -> Decided[C] | None:
        """Remove a decision, and return it."""
        decided = self.decided.pop(key, None)
        if decided is not None:
            decided.drop()
        return decided

    def _take_all(self) -> None:
        """Remove all decisions."""
        for key in list(self.decided):
            self._take(key)

    def _forget_decisions(self) -> None:
        for key, decided in list(self.decided.items()):
            trials = self._trials.get(decided.decision.geometry)
            if trials is not None:
                self._retire(key, trials)
                trials.keys.discard(key)
        self._take_all()

    def _retire(self, key: Hashable, trials: Trials[C]) -> None:
        """Drop a decision, and account for the calls that it served."""
        decided = self._take(key)
        if decided is not None:
            trials.decided_ns += decided.elapsed_ns

    # -- one call

    def run(
        self,
        case: Case[C],
        work: Callable[[C], R],
        timer: Timer,
        hooks: Hooks[C] = _NO_HOOKS,
    ) -> R:
        """Run one candidate of `case`: the next trial, or else, untimed, the one in use.

        Parameters
        ----------
        case : Case
            The geometry and the candidates that may run.
        work : callable
            Runs the candidate it is given and returns the caller's result.
        timer : Timer
            Times the run if it is a timed trial.
        hooks : Hooks

        Returns
        -------
        object
            What `work` returned. If it raises in a trial, that does not count, and the candidate is
            not tried again for this geometry, unless all of them raise, or what it raised is a
            `CallError`, which says that the caller is at fault (but for a `PlacementError`, which
            says that the arguments are not where the candidate runs). The exception passes, unless
            the hooks restored the arguments: then the others run until one returns; if none does,
            the first exception passes.
        """
        trials = self._known(case, hooks)
        holder = object()
        try:
            turn = self._admitted_turn(case, trials, holder, hooks)
            if turn.phase == "untimed":
                result, decision = work(turn.candidate), turn.decision
            elif turn.phase == "waiting":
                begin_ns = time.perf_counter_ns()
                result, decision = work(turn.candidate), None
                trials.waited_ns += time.perf_counter_ns() - begin_ns + _WAITING_CALL_NS
            else:
                result, decision = self._run_trial(case, trials, turn, work, timer, hooks)
        finally:
            # Whatever ended this call, an interrupt too, must not keep others from their trials.
            if trials.holder is holder:
                trials.holder = None
        self._tell(decision, hooks)
        return result

    def _known(self, case: Case[C], hooks: Hooks[C]) -> Trials[C]:
        """Return the trials of a geometry, with what earlier processes know of it."""
        with self._lock:
            trials = self._trials_of(case.geometry)
            is_recalled, trials.is_recalled = trials.is_recalled, True
        known = None if is_recalled else hooks.recall()
        if known is not None:
            with self._lock:
                trials.recall(known, self.candidates)
        return trials

    def _trials_of(self, geometry: Hashable) -> Trials[C]:
        trials = self._trials.get(geometry)
        if trials is None:
            if len(self._trials) >= self._max_geometries:
                oldest = self._trials.pop(next(iter(self._trials)))
                for key in oldest.keys:
                    self._take(key)
            trials = self._trials[geometry] = Trials(self._plan)
        return trials

    def _admitted_turn(
        self, case: Case[C], trials: Trials[C], holder: object, hooks: Hooks[C]
    ) -> _Turn[C]:
        """Take a turn, after it was asked which candidates may be tried."""
        may_measure = hooks.may_measure()  # before the lock is held: others answer
        while True:
            turn = self._take_turn(case, trials, holder, hooks, may_measure)
            if turn is not None:
                return turn
            self._admit(case, trials, hooks)

    def _admit(self, case: Case[C], trials: Trials[C], hooks: Hooks[C]) -> None:
        """Ask which candidates may be tried, and leave the others out."""
        thread = threading.get_ident()
        candidates = trials.qualified(case.candidates)
        trials.admitting.add(thread)
        try:
            refusals = hooks.admit(candidates)
        finally:
            trials.admitting.discard(thread)
        with self._lock:
            trials.admit(candidates, refusals)
            refused = {candidate.name for candidate in refusals}
            for key in [key for key in trials.keys if key in self.decided]:
                if self.decided[key].candidate.name in refused:
                    self._retire(key, trials)

    def _take_turn(
        self,
        case: Case[C],
        trials: Trials[C],
        holder: object,
        hooks: Hooks[C],
        may_measure: bool,
    ) -> _Turn[C] | None:
        """Return what this call does; None where it must first be asked who may be tried."""
        with self._lock:
            decided = self.decided.get(case.key)
            if decided is not None and not self._is_expired(decided, case, trials):
                return _Turn(decided.candidate, "untimed")  # another thread decided just now
            candidates = trials.qualified(case.candidates)
            if not may_measure:
                return _Turn(trials.in_use(candidates), "untimed")
            worthwhile = trials.worthwhile(candidates)
            if len(worthwhile) < len(candidates):
                return _Turn(trials.in_use(worthwhile), "waiting")
            is_free = trials.holder in (None, holder)
            if decided is not None and is_free:
                self._retire(case.key, trials)
                trials.repeat(candidates)
                trials.is_admitted_again = hooks.admits_again
            is_asking = threading.get_ident() in trials.admitting  # an implementation calls back
            is_due = trials.is_to_admit(candidates) or (is_free and trials.is_admitted_again)
            if is_due and not is_asking:
                if is_free:
                    trials.holder = holder
                return None
            if is_asking or not is_free:
                return _Turn(trials.in_use(candidates), "untimed")
            trial = trials.next_trial(candidates)
            if trial is None:
                winner, decision = self._decide(case, trials)
                return _Turn(winner, "untimed", decision)
            trials.holder = holder
            return _Turn(*trial)

    def _run_trial(
        self,
        case: Case[C],
        trials: Trials[C],
        turn: _Turn[C],
        work: Callable[[C], R],
        timer: Timer,
        hooks: Hooks[C],
    ) -> tuple[R, Decision | None]:
        """Run a trial; after the last one, return the decision that it completes, too."""
        candidate = turn.candidate
        raised: list[BaseException] = []

        def attempt() -> R:
            try:
                return work(candidate)
            except BaseException as error:
                raised.append(error)
                raise

        hooks.prepare(candidate)
        try:
            if turn.phase == "active":
                result, elapsed_ns = _run_timed(attempt, timer)
            else:
                result, elapsed_ns = attempt(), None
        except BaseException as error:
            # What the timer itself raises says nothing about the candidate.
            if error not in raised or _is_the_callers(error):
                raise
            is_restored = hooks.restore(candidate, error)
            if not isinstance(error, Exception):
                raise
            if not is_restored:
                self._disqualify({candidate: _text(error)}, case, trials)
                raise
            return self._run_others(case, trials, candidate, error, work, hooks), None
        finally:
            raised.clear()  # it would keep the frames of the call alive
        with self._lock:
            if elapsed_ns is None:
                trials.add_warmup(candidate)
            else:
                trials.add_sample(candidate, elapsed_ns)
            if trials.next_trial(trials.qualified(case.candidates)) is not None:
                return result, None
            return result, self._decide(case, trials)[1]

    def _run_others(
        self,
        case: Case[C],
        trials: Trials[C],
        failed: C,
        first: Exception,
        work: Callable[[C], R],
        hooks: Hooks[C],
    ) -> R:
        """Run the first other candidate that does not raise, untimed."""
        failures = {failed: _text(first)}
        for candidate in trials.qualified(case.candidates):
            if candidate is failed:
                continue
            try:
                result = work(candidate)
            except Exception as error:
                if _is_the_callers(error):
                    raise
                failures[candidate] = _text(error)
                if hooks.restore(candidate, error):
                    continue
                self._disqualify(failures, case, trials)
                raise
            self._disqualify(failures, case, trials)
            return result
        raise first  # all of them: the input is at fault

    def _disqualify(self, failures: dict[C, str], case: Case[C], trials: Trials[C]) -> None:
        with self._lock:
            trials.disqualify(failures, case.candidates)

    # -- decisions

    def _decide(self, case: Case[C], trials: Trials[C]) -> tuple[C, Decision | None]:
        """Return the fastest candidate, and the decision if it could be remembered."""
        candidates = trials.qualified(case.candidates)
        winner, reason = trials.choose(candidates)
        reason += _left_out(case, trials)
        decision = trials.decision(case.geometry, candidates, winner, reason)
        decided = Decided(winner, decision)
        plan = self._plan
        is_confirmed = winner is trials.incumbent
        trials.confirmations = trials.confirmations + 1 if is_confirmed else 0
        if plan.is_budgeted:
            doublings = trials.confirmations if plan.settles else 0
            decided.due = self._clock() + DEFAULT_SECONDS * 2**doublings
        elif plan.repeat_after_seconds:
            decided.expires = self._clock() + plan.repeat_after_seconds
        is_final = plan.settles and trials.is_clear(candidates, winner)
        if plan.counts_calls and not is_final:
            decided.grant(
                plan.repeat_after_count or trials.calls_before_repeating(candidates, winner)
            )
        if not self._remember(case, trials, decided):
            return winner, None
        trials.tell()
        return winner, decision

    def _remember(self, case: Case[C], trials: Trials[C], decided: Decided[C]) -> bool:
        with self._lock:
            if case.registered is not self.candidates:
                return False  # a candidate that this decision does not know was added meanwhile
            if self._trials.get(case.geometry) is not trials:
                return False  # the geometry was evicted or reset meanwhile
            self._trials[case.geometry] = self._trials.pop(case.geometry)
            trials.incumbent = decided.candidate
            trials.keys.add(case.key)
            self._put(case.key, decided)
            return True

    def _is_expired(self, decided: Decided[C], case: Case[C], trials: Trials[C]) -> bool:
        if self._clock() >= decided.expires:
            return True
        if decided.granted is None or decided.remaining:
            return False
        if not self._plan.is_budgeted:
            return True
        trials.decided_ns += decided.elapsed_ns
        if self._clock() < decided.due:
            decided.grant(self._calls_between_looks(decided))
            return False
        candidates = trials.qualified(case.candidates)
        missing = trials.calls_before_repeating(candidates, decided.candidate)
        decided.grant(missing)
        return not missing

    def _calls_between_looks(self, decided: Decided[C]) -> int:
        """Those of a plan that settles take a hundred times as long as looking at the clock."""
        if not self._plan.settles:
            return _LEAST_CALLS_BETWEEN_LOOKS
        call_ns = max(1.0, median(decided.decision.samples[decided.candidate.name]))
        return max(_LEAST_CALLS_BETWEEN_LOOKS, math.ceil(100 * _LOOK_NS / call_ns))

    def settle(self, case: Case[C], candidate: C, reason: str) -> None:
        """Decide for `candidate` for good, without trials."""
        decided = self.decided.get(case.key)
        if decided is not None and decided.candidate is candidate:
            return
        with self._lock:
            trials = self._trials_of(case.geometry)
        decision = Decision(case.geometry, candidate.name, {}, reason, "given")
        if self._remember(case, trials, Decided(candidate, decision)):
            self._report(decision)

    def _tell(self, decision: Decision | None, hooks: Hooks[C]) -> None:
        if decision is not None:
            self._report(decision)
            hooks.decided(decision)

    # -- without a call

    def standing(self, case: Case[C]) -> Decided[C] | None:
        """The decision that holds for a case; None where its candidates are to be tried."""
        with self._lock:
            decided = self.decided.get(case.key)
            if decided is None:
                return None
            trials = self._trials[decided.decision.geometry]
            return None if self._is_expired(decided, case, trials) else decided

    def tune(
        self,
        case: Case[C],
        sample: Callable[[C], int],
        hooks: Hooks[C] = _NO_HOOKS,
        progress: Callable[[C], None] = lambda candidate: None,
    ) -> None:
        """Make all trials of a new evaluation now, and decide.

        Parameters
        ----------
        case : Case
        sample : callable
            Runs a candidate on copies of the arguments and returns nanoseconds per run.
        hooks : Hooks
        progress : callable
            Called after each trial.

        Raises
        ------
        Exception
            The first one that a candidate raised, if all of them did.
        """
        trials = self._known(case, hooks)
        trials.is_admitted_again = hooks.admits_again
        fresh: Trials[C] = Trials(replace(self._plan, active="auto"))
        failures: dict[C, str] = {}
        first: Exception | None = None
        while True:
            candidates = [c for c in trials.qualified(case.candidates) if c not in failures]
            if trials.is_admitted_again or trials.is_to_admit(candidates):
                self._admit(case, trials, hooks)
                continue
            if not candidates and first is not None:
                raise first
            trial = fresh.next_trial(candidates)
            if trial is None:
                break
            candidate, phase = trial
            try:
                elapsed_ns = sample(candidate)
            except Exception as error:
                if _is_the_callers(error):
                    raise
                failures[candidate] = _text(error)
                first = first or error
                continue
            if phase == "warmup":
                fresh.add_warmup(candidate)
            else:
                fresh.add_sample(candidate, elapsed_ns)
            progress(candidate)
        with self._lock:
            trials.disqualify(failures, case.candidates)
            trials.adopt(fresh)
            _, decision = self._decide(case, trials)
        self._tell(decision, hooks)

    def decision(self, case: Case[C]) -> Decision | None:
        """Return what is known about `case`; None when its geometry is not known."""
        return self.examine(case).decision

    def examine(self, case: Case[C]) -> Examined:
        """Return all that is known about `case`, without changing anything."""
        with self._lock:
            trials = self._trials.get(case.geometry)
            if trials is None:
                return Examined(None, {}, {}, {}, None)
            decided = self.decided.get(case.key)
            return Examined(
                self._progress(case, trials) if decided is None else decided.decision,
                {name: tuple(samples) for name, samples in trials.samples.items()},
                dict(trials.warmups),
                trials.left_out,
                self._exploration_share(trials),
            )

    def _progress(self, case: Case[C], trials: Trials[C]) -> Decision:
        candidates = trials.qualified(case.candidates)
        chosen = trials.incumbent if trials.incumbent in candidates else None
        reason = trials.progress(candidates) + _left_out(case, trials)
        return trials.decision(case.geometry, candidates, chosen, reason)

    def _exploration_share(self, trials: Trials[C]) -> float | None:
        if not self._plan.counts_calls:
            return None
        pending = [self.decided[key].elapsed_ns for key in trials.keys if key in self.decided]
        return trials.exploration_share(sum(pending))

    def _forget_other_threads(self) -> None:
        self._lock = threading.RLock()
        for trials in self._trials.values():
            trials.holder = None
            trials.admitting.clear()


def _left_out(case: Case[C], trials: Trials[C]) -> str:
    """Words for the candidates that are not tried, and why."""
    reasons = trials.left_out
    left_out = [c.name for c in case.candidates if c.name in reasons]
    return "".join(f"; without {name!r}, {reasons[name]}" for name in left_out)


def _text(error: Exception) -> str:
    return f"which raised {type(error).__name__}: {error}"


def _run_timed(work: Callable[[], R], timer: Timer) -> tuple[R, int]:
    results: list[R] = []
    elapsed_ns = timer(lambda: results.append(work()))
    if len(results) != 1:
        raise BackendError(
            f"a timer must run the work it is given exactly once, {timer!r} ran it "
            f"{len(results)} times: each run has side effects that the caller asked for once"
        )
    return results[0], elapsed_ns


_UNLIMITED: Iterator[object] = itertools.repeat(0)

_tuners: weakref.WeakSet[Tuner[Any]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    # The threads that held a lock or a trial in the parent do not exist in the child.
    for tuner in _tuners:
        tuner._forget_other_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _is_the_callers(error: BaseException) -> bool:
    """Whether the caller is at fault, so that an error says nothing about a candidate."""
    return isinstance(error, CallError) and not isinstance(error, PlacementError)
