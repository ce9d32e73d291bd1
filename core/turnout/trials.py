"""What is tried next, and who wins: the plan of trials and the state of one geometry.

Nothing here knows threads, clocks or kernels. :mod:`turnout.tuning` asks :class:`Trials`, under its
lock, for the next trial, tells it what came of that, and asks it for the choice when there is no
trial left.

The first evaluation of a geometry makes the trials that the plan names. A repeated one adds its
samples to the recent ones of earlier evaluations. It repeats the first in every detail when the
user gave a schedule. Otherwise it lives on a budget: one warm-up of each candidate, then samples
until nothing speaks against the candidate in use, or until the difference is resolved.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from . import ranking
from .errors import ConfigurationError
from .ranking import median
from .records import record

DEFAULT_SECONDS = 1.0
"""Without a schedule, the least time between a decision and the next evaluation."""

_AUTO_LEAST, _AUTO_MOST = 5, 30
_BUDGETED_LEAST = 3


class Quota(NamedTuple):
    """How many trials of a candidate an evaluation makes."""

    warmup: int
    least: int
    """Timed trials before candidates are compared."""
    most: int
    """Timed trials after which candidates that are not told apart count as a tie."""


@record
class TrialPlan:
    """How often each candidate is tried, and when everything is tried again.

    Attributes
    ----------
    warmup : int
        Untimed runs of each candidate before the first timed one.
    active : int or "auto"
        Timed runs of each candidate; ``"auto"``: until the difference is resolved or a tie.
    repeat_after_count : int or None
        Restart all trials of a geometry after this many decided calls; 0: never.
    repeat_after_seconds : float or None
        Restart all trials of a geometry this many seconds after the decision; 0: never. Where only
        one of the two is given, the other one is off; where neither is, `exploration_budget` holds.
    exploration_budget : float
        The greatest share of the operation's time that trials after the first decision may take,
        where no ``repeat_after`` is given; 0: never repeat the trials.
    recent_samples : int
        How many of a candidate's latest samples count, however many evaluations they come from.
    settles : bool
        Whether decisions on a budget become final: where all others are clearly slower at once; and
        where not, each evaluation that confirms one doubles the time until the next.

    Raises
    ------
    ConfigurationError
        When a value is of the wrong type or out of range.
    """

    warmup: int = 3
    active: int | Literal["auto"] = 1
    repeat_after_count: int | None = None
    repeat_after_seconds: float | None = None
    exploration_budget: float = 0.05
    recent_samples: int = ranking.TIE_FROM
    settles: bool = False

    def __post_init__(self) -> None:
        check_count("warmup", self.warmup, at_least=0)
        if self.active != "auto":
            check_count("active", self.active, at_least=1, or_else=' or "auto"')
        if self.repeat_after_count is not None:
            check_count("repeat_after_count", self.repeat_after_count, at_least=0)
        if self.repeat_after_seconds is not None and not _is_number(self.repeat_after_seconds):
            raise ConfigurationError(
                f"repeat_after_seconds={self.repeat_after_seconds!r} is not allowed: give a number "
                "of seconds that is 0 (never repeat the trials) or more"
            )
        if not _is_number(self.exploration_budget) or self.exploration_budget > 1:
            raise ConfigurationError(
                f"exploration_budget={self.exploration_budget!r} is not allowed: give a number "
                "from 0 (never repeat the trials) to 1, for example 0.05 for 5 % of the time"
            )
        check_count("recent_samples", self.recent_samples, at_least=1)

    @property
    def is_budgeted(self) -> bool:
        """Whether the budget says when trials are repeated, and not a schedule of the user."""
        return self.repeat_after_count is None and self.repeat_after_seconds is None

    @property
    def counts_calls(self) -> bool:
        """Whether decided calls must be counted."""
        return bool(self.exploration_budget if self.is_budgeted else self.repeat_after_count)

    @property
    def first(self) -> Quota:
        """Trials of a candidate that was never tried."""
        if self.active == "auto":
            return Quota(self.warmup, _AUTO_LEAST, _AUTO_MOST)
        return Quota(self.warmup, self.active, self.active)

    @property
    def repeated(self) -> Quota:
        """Trials of a candidate that has samples."""
        if not self.is_budgeted:
            return self.first
        warmup = min(self.warmup, 1)
        if self.active == "auto":
            return Quota(warmup, _AUTO_LEAST, _AUTO_MOST)
        least = max(self.active, min(_BUDGETED_LEAST, self.recent_samples))
        return Quota(warmup, least, max(least, self.recent_samples))


def check_count(name: str, value: object, at_least: int, or_else: str = "") -> None:
    """Raise a ConfigurationError unless `value` is an integer of `at_least` or more."""
    is_integer = hasattr(value, "__index__") and not isinstance(value, bool)
    if not is_integer or operator.index(value) < at_least:  # type: ignore[arg-type]
        raise ConfigurationError(
            f"{name}={value!r} is not allowed: give an integer of {at_least} or more{or_else}"
        )


def _is_number(value: object) -> bool:
    """Whether it is a number of 0 or more."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


@dataclass(frozen=True, eq=False)
class Candidate:
    """One way to do the work.

    Attributes
    ----------
    name : str
        Unique within a tuner.
    function : callable
        Does it, for any arguments.
    make : callable or None
        Takes the arguments of a call, and returns the function that does it faster for all
        arguments of the same geometry.
    make_ns : float
        What `make` takes about. It is tried for a geometry only when the calls of that geometry
        have taken as long, so that trying it at most doubles their time.
    """

    name: str
    function: Callable[..., Any]
    make: Callable[..., Callable[..., Any]] | None = field(default=None, kw_only=True)
    make_ns: float = field(default=0.0, kw_only=True)

    def function_for(
        self, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """Return the function for all arguments with the geometry of these."""
        return self.function if self.make is None else self.make(*arguments, **keywords)


C = TypeVar("C", bound=Candidate)
Phase = Literal["warmup", "active", "untimed", "waiting"]
Source = Literal["measured", "remembered", "given"]
Regime = Literal["calls", "copies"]


@record
class Decision:
    """What is known about one geometry.

    Attributes
    ----------
    geometry : hashable
        The key under which the decision is remembered.
    chosen : str or None
        Name of the candidate in use; None while the first trials run.
    samples : dict of str to tuple of int
        Per candidate the elapsed nanoseconds of its recent timed runs, in the order they ran.
    reason : str
        Why `chosen` was chosen, or how far the trials are.
    source : str
        ``"measured"`` by this process, ``"remembered"`` (it rests on samples that were given to the
        tuner alone), or ``"given"`` without samples.
    regime : str
        What the latest samples are times of: ``"calls"`` of the program, on its own data and with
        the caches as it leaves them, or runs on ``"copies"`` of one call's arguments.
    new_samples : dict of str to tuple of int
        What was measured since the decision before.
    """

    geometry: Hashable
    chosen: str | None
    samples: dict[str, tuple[int, ...]]
    reason: str
    source: Source = "measured"
    regime: Regime = "calls"
    new_samples: dict[str, tuple[int, ...]] = field(default_factory=dict, compare=False, repr=False)


class Known(NamedTuple):
    """What earlier processes measured: samples by candidate, and who was in use."""

    samples: Mapping[str, Sequence[int]]
    chosen: str | None
    origin: str = ""
    """When and by whom that was, for people."""


class Trials(Generic[C]):
    """What was measured for one geometry, and what is to be measured next.

    The names of candidates are the keys of all that is kept, and only text is kept of what they
    raised: an exception would keep its frames and their arrays alive.
    """

    __slots__ = (
        "_fresh",
        "_is_measured",
        "_new_samples",
        "_plan",
        "_repeated",
        "admitted",
        "admitting",
        "confirmations",
        "decided_ns",
        "explored_ns",
        "failures",
        "holder",
        "incumbent",
        "is_admitted_again",
        "is_recalled",
        "keys",
        "origin",
        "refusals",
        "regime",
        "samples",
        "waited_ns",
        "warmups",
    )

    def __init__(self, plan: TrialPlan) -> None:
        self._plan = plan
        self.samples: dict[str, list[int]] = {}
        self.warmups: dict[str, int] = {}  # of the current evaluation, like the next
        self._fresh: dict[str, int] = {}
        self._repeated: set[str] = set()  # who had samples when the evaluation began
        self._new_samples: dict[str, list[int]] = {}  # not yet part of a decision
        self._is_measured = False  # whether any sample was taken by this process
        self.failures: dict[str, str] = {}  # who raised, unless all did
        self.refusals: dict[str, str] = {}  # who was not admitted, for good
        self.admitted: set[str] = set()  # of whom it was asked whether they may be tried
        self.admitting: set[int] = set()  # the threads that are asking
        self.is_admitted_again = False  # whether it is to be asked once more
        self.incumbent: C | None = None  # the last winner
        self.explored_ns = 0.0  # what trials of repeated evaluations took
        self.decided_ns = 0.0  # what decided calls took, as far as they were counted
        self.holder: object | None = None  # the call that holds the trial
        self.keys: set[Hashable] = set()  # the decisions that rest on this
        self.regime: Regime = "calls"  # of the latest samples
        self.is_recalled = False  # whether earlier processes were asked what they know
        self.origin = ""  # of what they knew
        self.confirmations = 0  # evaluations in a row that chose the one in use
        self.waited_ns = 0.0  # what calls took while candidates were not yet worth making

    # -- what is tried next

    def next_trial(self, candidates: Sequence[C]) -> tuple[C, Phase] | None:
        """Return the next candidate and its phase; None when all trials are done."""
        cold = [c for c in candidates if self._warmups(c) < self._quota(c).warmup]
        if cold:
            return min(cold, key=self._warmups), "warmup"
        wanting = [c for c in candidates if self._count(c) < self._least(c, candidates)]
        if not wanting:
            unresolved = self._unresolved(candidates)
            wanting = [c for c in unresolved if self._count(c) < self._quota(c).most]
        return (min(wanting, key=self._count), "active") if wanting else None

    def worthwhile(self, candidates: Sequence[C]) -> Sequence[C]:
        """Return the candidates that are worth making by now; all, where that leaves none."""
        worthwhile = [
            c for c in candidates if c.make_ns <= self.waited_ns or c.name in self.samples
        ]
        return worthwhile or candidates

    def _warmups(self, candidate: C) -> int:
        return self.warmups.get(candidate.name, 0)

    def _count(self, candidate: C) -> int:
        """Return the timed trials of this evaluation."""
        return self._fresh.get(candidate.name, 0)

    def _quota(self, candidate: C) -> Quota:
        return self._plan.repeated if candidate.name in self._repeated else self._plan.first

    def _least(self, candidate: C, candidates: Sequence[C]) -> int:
        quota = self._quota(candidate)
        is_exact = quota.least == quota.most
        return 1 if not is_exact and self._is_clearly_slower(candidate, candidates) else quota.least

    def _is_clearly_slower(self, candidate: C, candidates: Sequence[C]) -> bool:
        own, measured = self.samples.get(candidate.name), self._measured(candidates)
        if own is None:
            return False
        return ranking.is_clearly_slower(own, measured[ranking.fastest(measured)])

    def _unresolved(self, candidates: Sequence[C]) -> Sequence[C]:
        """Return the candidates between which more samples may have to decide."""
        measured = self._measured(candidates)
        if ranking.fastest(measured) is self.incumbent:
            return ()  # nothing speaks against the one in use
        rivals = ranking.contenders(measured)
        if len(rivals) == 1 or ranking.is_tie(measured[c] for c in rivals):
            return ()
        return rivals

    def _measured(self, candidates: Iterable[C]) -> dict[C, list[int]]:
        return {c: self.samples[c.name] for c in candidates if c.name in self.samples}

    def repeat(self, candidates: Iterable[C]) -> None:
        """Begin another evaluation of candidates."""
        for candidate in candidates:
            self.warmups.pop(candidate.name, None)
            self._fresh.pop(candidate.name, None)
            if candidate.name in self.samples:
                self._repeated.add(candidate.name)

    # -- what came of it

    def add_warmup(self, candidate: C) -> None:
        self.warmups[candidate.name] = self._warmups(candidate) + 1
        if candidate.name in self._repeated:
            self.explored_ns += median(self.samples[candidate.name])

    def add_sample(self, candidate: C, elapsed_ns: int) -> None:
        name = candidate.name
        count = self._count(candidate) + 1
        self._keep([*self.samples.get(name, ()), elapsed_ns], candidate, count)
        self._new_samples.setdefault(name, []).append(elapsed_ns)
        self._is_measured, self.regime = True, "calls"
        if name in self._repeated:
            self.explored_ns += elapsed_ns

    def _keep(self, samples: list[int], candidate: C, count: int) -> None:
        kept = max(self._plan.recent_samples, count)
        self.samples[candidate.name] = samples[-kept:]
        # After the samples: an interrupt in between must not leave a count without samples.
        self._fresh[candidate.name] = count

    def recall(self, known: Known, candidates: Iterable[C]) -> None:
        """Take what earlier processes measured as if it were the beginning of this evaluation."""
        for candidate in candidates:
            earlier = list(known.samples.get(candidate.name, ()))
            if earlier:
                own = self.samples.get(candidate.name, [])
                self._keep(earlier + own, candidate, self._count(candidate) + len(earlier))
                self.warmups[candidate.name] = self._plan.warmup
            if candidate.name == known.chosen and self.incumbent is None:
                self.incumbent = candidate
        self.origin = known.origin

    def adopt(self, tuned: Trials[C]) -> None:
        """Take what was measured on copies in the place of earlier samples."""
        self.samples |= tuned.samples
        self._new_samples |= tuned._new_samples
        self.warmups |= tuned.warmups
        self._fresh |= tuned._fresh
        self._is_measured, self.regime = True, "copies"

    def qualified(self, candidates: Iterable[C]) -> tuple[C, ...]:
        """Return those that were not refused and did not fail; all, where that leaves none."""
        candidates = tuple(candidates)
        for left_out in (self.left_out, self.refusals):
            left = tuple(c for c in candidates if c.name not in left_out)
            if left:
                return left
        return candidates

    @property
    def left_out(self) -> dict[str, str]:
        """Why candidates are not tried, by name."""
        return self.failures | self.refusals

    def disqualify(self, failed: Mapping[C, str], candidates: Sequence[C]) -> None:
        """Try those that failed no more, unless all did: then the input was at fault."""
        self.failures |= {candidate.name: reason for candidate, reason in failed.items()}
        if self.left_out.keys() >= {candidate.name for candidate in candidates}:
            for each in candidates:
                self.failures.pop(each.name, None)

    def is_to_admit(self, candidates: Iterable[C]) -> bool:
        """Whether it must be asked of some of them whether they may be tried."""
        return not self.admitted.issuperset([c.name for c in candidates])

    def admit(self, candidates: Iterable[C], refusals: Mapping[C, str]) -> None:
        """Note which candidates may be tried, and who may not, for good."""
        self.admitted |= {candidate.name for candidate in candidates}
        self.refusals |= {candidate.name: reason for candidate, reason in refusals.items()}
        self.is_admitted_again = False

    def forget(self, candidates: Iterable[C]) -> None:
        """Drop all that is known of candidates that are taken away."""
        for candidate in candidates:
            name = candidate.name
            for known in (self.warmups, self._fresh, self.samples, self._new_samples):
                known.pop(name, None)
            self.failures.pop(name, None)
            self.refusals.pop(name, None)
            self._repeated.discard(name)
            self.admitted.discard(name)

    # -- who wins

    def in_use(self, candidates: Sequence[C]) -> C:
        """Return who runs, untimed, while there is no decision."""
        if self.incumbent is not None and self.incumbent in candidates:
            return self.incumbent
        return candidates[0]

    def choose(self, candidates: Sequence[C]) -> tuple[C, str]:
        """Return the winner and why: the one in use if it may be the fastest, else the first."""
        measured = self._measured(candidates)
        rivals = ranking.contenders(measured)
        is_in_use = self.incumbent in rivals
        winner = self.incumbent if self.incumbent is not None and is_in_use else rivals[0]
        if winner is ranking.fastest(measured):
            counts = {len(samples) for samples in measured.values()}
            count = len(measured[winner])
            reason = f"lowest median of {count} timed call{'s' if count > 1 else ''}"
            reason += " each" if len(counts) == 1 else ""
        else:
            reason = "already in use" if is_in_use else "registered first"
        others = [repr(each.name) for each in rivals if each is not winner]
        if others:
            reason += f"; no significant difference to {', '.join(others)}"
        return winner, reason

    def is_clear(self, candidates: Sequence[C], winner: C) -> bool:
        """Whether more samples could hardly change that a candidate is the fastest."""
        measured = self._measured(candidates)
        own = measured[winner]
        return all(
            ranking.is_clearly_slower(samples, own)
            for candidate, samples in measured.items()
            if candidate is not winner
        )

    def decision(
        self, geometry: Hashable, candidates: Sequence[C], chosen: C | None, reason: str
    ) -> Decision:
        """Return a decision between candidates, with the samples that are new since the last."""
        samples = {c.name: tuple(own) for c, own in self._measured(candidates).items()}
        name = None if chosen is None else chosen.name
        source: Source = "measured" if self._is_measured or chosen is None else "remembered"
        if source == "remembered" and self.origin:
            reason += f" ({self.origin})"
        new = {name: tuple(own) for name, own in self._new_samples.items()}
        return Decision(geometry, name, samples, reason, source, self.regime, new)

    def tell(self) -> None:
        """Note that a decision holds all samples up to now."""
        self._new_samples = {}

    def progress(self, candidates: Sequence[C]) -> str:
        """Say how far the trials are."""
        done = sum(self._warmups(c) + self._count(c) for c in candidates)
        quotas = [self._quota(c) for c in candidates]
        planned = sum(quota.warmup + quota.least for quota in quotas)
        is_exact = all(quota.least == quota.most for quota in quotas)
        return f"{done} of {'' if is_exact else 'at least '}{planned} trials done"

    # -- the budget

    def calls_before_repeating(self, candidates: Sequence[C], winner: C) -> int:
        """Return how many more decided calls pay for the trials of another evaluation."""
        budget = self._plan.exploration_budget
        explored_ns = self.explored_ns + self._repeating_ns(candidates)
        missing_ns = explored_ns * (1 - budget) / budget - self.decided_ns
        return max(0, math.ceil(missing_ns / max(median(self.samples[winner.name]), 1)))

    def _repeating_ns(self, candidates: Sequence[C]) -> float:
        """Return what another evaluation takes at most, as far as the samples tell."""
        measured = self._measured(candidates)
        rivals = ranking.contenders(measured)
        quota = self._plan.repeated
        total_ns = 0.0
        for candidate, samples in measured.items():
            timed = quota.most if candidate in rivals else self._least(candidate, candidates)
            total_ns += (quota.warmup + timed) * median(samples)
        return total_ns

    def exploration_share(self, pending_ns: float) -> float:
        """Return which share of its time the operation spent on repeated evaluations.

        `pending_ns` is what decided calls took that are not accounted for yet.
        """
        total_ns = self.explored_ns + self.decided_ns + pending_ns
        return self.explored_ns / total_ns if total_ns else 0.0
