"""What keeps one call right while implementations are tried on it, and remembers what it measured.

What the call may write is put aside before each trial, so that another implementation can go on
where one raised. Implementations are verified before the first of them runs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from .backends import is_capturing
from .compatibility import Implementation
from .copies import Snapshot
from .errors import CompileError, KernelError, PlacementError, Unavailable
from .kernel import Kernel
from .remembering import Memory
from .tuning import Case, Decision, Hooks, Known
from .verification import Verification, verify
from .written import Access, combined

_BEFORE_A_LAUNCH = (KernelError, CompileError, PlacementError, Unavailable)


class Safeguards(Hooks[Implementation]):
    """The hooks of one call.

    Parameters
    ----------
    case : Case
    bound : inspect.BoundArguments
        All arguments of the call, defaults applied.
    verification : Verification
    memory : Memory
    functions : dict of Implementation to callable
        Gets what is made for this call before it is timed.
    puts_aside : bool
        Whether what a trial may write is kept, so that another one can go on where it raised.
    """

    def __init__(
        self,
        case: Case[Implementation],
        bound: inspect.BoundArguments,
        verification: Verification,
        memory: Memory,
        functions: dict[Implementation, Callable[..., Any]],
        *,
        puts_aside: bool = True,
    ) -> None:
        self._case = case
        self._bound = bound
        self._verification = verification
        self._memory = memory
        self._functions = functions
        self._puts_aside = puts_aside
        self._snapshot: Snapshot | None = None
        self._problem = ""  # why there is none
        self.admits_again = verification.when == "always"

    @cached_property
    def accesses(self) -> Mapping[str, Access]:
        """All arguments that the implementations write, as far as that is known."""
        return combined(implementation.writes for implementation in self._case.candidates)

    @property
    def written(self) -> Collection[str]:
        """The arguments that may be written: all, unless each implementation says which."""
        is_known = all(each.writes.accesses is not None for each in self._case.candidates)
        return self.accesses if is_known else self._bound.arguments

    def may_measure(self) -> bool:
        return not is_capturing()

    def recall(self) -> Known | None:
        return self._memory.recall(self._case, self._bound)

    def decided(self, decision: Decision) -> None:
        self._memory.keep(self._case, self._bound, decision)

    def admit(self, candidates: Sequence[Implementation]) -> Mapping[Implementation, str]:
        if self._verification.when == "never":
            return {}
        known = [each for each in candidates if each.writes.accesses is not None]
        verdict = verify(known, _run, self._bound, self.accesses, self._verification)
        unknown = "it is not known what it writes: register it with mutates=, which may be empty"
        refused = {each: unknown for each in candidates if each not in known}
        for each in known:
            if each.name in verdict.refused:
                refused[each] = f"{verdict.refused[each.name]}; {verdict.note}"
        return refused

    def prepare(self, candidate: Implementation) -> None:
        if candidate.make is not None:
            # What it raises the trial raises again, where it counts against the candidate.
            with suppress(Exception):
                made = candidate.function_for(self._bound.args, self._bound.kwargs)
                self._functions[candidate] = made
        self._snapshot = None  # before another one is made: two would be twice the memory
        if candidate.writes.accesses is None or not self._puts_aside:
            return
        try:
            self._snapshot = Snapshot(self._bound, self.accesses)
            self._problem = self._snapshot.problem or ""
        except MemoryError:
            self._problem = "there is no memory for a copy of what it writes"

    def restore(self, candidate: Implementation, error: BaseException) -> bool:
        if isinstance(candidate.function, Kernel) and isinstance(error, _BEFORE_A_LAUNCH):
            return True  # a kernel that does not compile has not touched the arguments
        if not self._puts_aside:
            return False
        is_known = candidate.writes.accesses is not None
        if is_known and self._snapshot is not None and self._snapshot.restore():
            return True
        if isinstance(error, Exception):
            unknown = f"it is not known what {candidate.name!r} writes"
            error.add_note(
                "no other implementation was tried in its place, because "
                f"{self._problem if is_known else unknown}; "
                "register it with mutates=, which may be empty"
            )
        return False


def _run(candidate: Implementation, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    return candidate.function(*arguments, **keywords)
