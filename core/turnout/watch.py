"""Calls of one size, as `turnout.policy` watches them: their mix, their form, how many there were.

After a choice a `Watch` lets the chosen form run a number of calls by itself, which it counts. Then
it tells the operation of them, and another look at the mix is due.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, NamedTuple

from .compatibility import Implementation
from .mix import Counts, Mix
from .ranking import median
from .tuning import Decided

CALLS_PER_LOOK = 64
"""From one look at the mix to the next, unless that would take more than `LOOKING_SHARE`."""

LOOKING_SHARE = 0.01
"""The greatest share of the time that looking at the mix may take after a choice."""

_MIXES_KEPT = 15
_LONGEST_LOOK_NS = 1_000_000
"""A look that took longer was interrupted, or the first one."""


class Known(NamedTuple):
    """A mix that calls had, and what is expected of the forms for it."""

    mix: Mix
    estimates_ns: dict[str, float]
    ruled_out: dict[str, str]


class Watch:
    """Calls of one size: their mix, and the form that runs them until the next look.

    Threads share it, and may lose count of calls.

    Attributes
    ----------
    bits : int
        Of the number of samples.
    function : callable
        The form in use.
    form : str
        Its name.
    call_ns : float
        What calls took, with all that the program does from one to the next; 0: nobody knows.
    calls_left : int
        How many calls it may run.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.function: Callable[..., Any] = _not_chosen
        self.form = ""
        self.call_ns = 0.0
        self.calls_left = 0
        self._granted = 0
        self._granted_at_ns = 0
        self._decided: Decided[Implementation] | None = None
        self._known: list[Known] = []  # the one that calls have now comes last
        self._since_look: float = math.inf
        self._calls_per_look = CALLS_PER_LOOK

    @property
    def mix(self) -> Mix | None:
        """The mix at the last look; None where it cannot be told."""
        return self._known[-1].mix if self._known else None

    @property
    def estimates_ns(self) -> dict[str, float]:
        """What a sample of this mix is expected to take, by form."""
        return self._known[-1].estimates_ns if self._known else {}

    @property
    def ruled_out(self) -> dict[str, str]:
        """Why some forms are not tried for this mix."""
        return self._known[-1].ruled_out if self._known else {}

    # -- looks

    @property
    def is_look_due(self) -> bool:
        """Whether the mix may have changed."""
        return self._since_look >= self._calls_per_look

    def looked(self, counts: Counts | None, expect: Callable[[Mix], Known]) -> None:
        """Note what was seen; `expect` says what is expected of a mix that is new."""
        self._since_look = 0
        if counts is None:
            return
        fitting = [each for each in reversed(self._known) if each.mix.fits(counts)]
        if fitting:
            self._known.remove(fitting[0])
            self._known.append(fitting[0])
            return
        self._known = [*self._known[-_MIXES_KEPT:], expect(Mix.of(counts))]

    # -- calls

    def tried(self) -> None:
        """Count a call that the operation has run."""
        self._since_look += 1

    def grant(self, decided: Decided[Implementation], spent_ns: int) -> None:
        """Let the form that was decided on run this call and more; to decide took `spent_ns`."""
        self._decided = decided
        self.function, self.form = decided.function, decided.candidate.name
        if not self.call_ns:
            self.call_ns = median(decided.decision.samples.get(self.form) or (0,))
        self._calls_per_look = CALLS_PER_LOOK
        if self.call_ns:
            spent_ns = min(spent_ns, _LONGEST_LOOK_NS)
            cheap = int(spent_ns / (LOOKING_SHARE * self.call_ns))
            self._calls_per_look = max(CALLS_PER_LOOK, cheap)
        # More than the operation grants does no harm: it hears of them before it is asked again.
        calls = max(1, self._calls_per_look - int(self._since_look))
        self._granted, self.calls_left = calls, calls - 1
        self._granted_at_ns = perf_counter_ns()

    def account(self, now_ns: int) -> None:
        """Tell the operation how many calls the form has run, and let it run no more."""
        if self._decided is not None:
            served = max(1, self._granted - self.calls_left)
            self._decided.spend(served)
            self._since_look += served
            self._decided = None
            self.call_ns = (now_ns - self._granted_at_ns) / served
        self._granted = self.calls_left = 0


def _not_chosen(*args: Any, **keywords: Any) -> None:
    raise AssertionError("no form is chosen yet")
