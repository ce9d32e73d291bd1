"""Verification: which implementations of an operation give the right result.

All that may run are run once, on copies of the caller's arguments, and their results are compared:
the arguments that they write, and what they return. Before that, arguments whose content cannot
matter are filled with NaN, so that an implementation that does nothing is found even where the
right result was there already.

Who is right says ``reference=``. Otherwise it is the majority; where there is none, nobody is
trusted more than the others, and the implementation that was registered first counts as right.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, get_args

import numpy as np

from .comparison import Leaves, Tolerances, compare, frozen, leaves
from .copies import WorkingCopies, walk
from .discovery import describe
from .errors import CallError, ConfigurationError, KernelError
from .records import record
from .tuning import Candidate
from .written import Access

Array = np.ndarray[Any, Any]
C = TypeVar("C", bound=Candidate)
When = Literal["always", "once", "never"]
Run = Callable[[C, tuple[Any, ...], dict[str, Any]], Any]

RETURNED = "the returned value"


@record
class Verification:
    """The settings of an operation.

    Attributes
    ----------
    when : {"always", "once", "never"}
        Before the trials of a geometry; or only before its first ones; or not at all.
    reference : str or None
        The implementation that counts as right.
    tolerances : Tolerances
    """

    when: When
    reference: str | None
    tolerances: Tolerances


NO_VERIFICATION = Verification("never", None, Tolerances())


def verification(
    verify: Any, reference: str | None, tolerances: Mapping[Any, Any] | None
) -> Verification:
    """Check the settings that users give.

    Raises
    ------
    ConfigurationError
        When one is not allowed, or has no meaning without the others.
    """
    if verify not in get_args(When):
        raise ConfigurationError(
            f"verify={verify!r} is not allowed: give 'always', 'once' or 'never'"
        )
    if reference is not None and not isinstance(reference, str):
        raise ConfigurationError(
            f"reference={reference!r} is not allowed: give the name of an implementation"
        )
    if verify == "never" and (reference is not None or tolerances is not None):
        raise ConfigurationError(
            "reference= and tolerances= are for verification, which is off: give verify='once' or "
            "verify='always', too"
        )
    return Verification(verify, reference, Tolerances(tolerances))


@record
class Verdict:
    """What a verification found.

    Attributes
    ----------
    trusted : str or None
        The implementation whose results count as right; None where none could be run.
    refused : mapping of str to str
        By name of an implementation that is wrong, why.
    note : str
        Why `trusted` is trusted.
    """

    trusted: str | None
    refused: Mapping[str, str]
    note: str


def verify(
    candidates: Sequence[C],
    run: Run[C],
    bound: inspect.BoundArguments,
    accesses: Mapping[str, Access],
    settings: Verification,
) -> Verdict:
    """Find out which candidates give the right results.

    Parameters
    ----------
    candidates : sequence of Candidate
        Those that may run with these arguments, in registration order.
    run : callable
        ``run(candidate, arguments, keywords)`` runs one on arguments in the caller's order.
    bound : inspect.BoundArguments
        The caller's arguments, defaults applied. Their arrays are read, never written.
    accesses : mapping of str to Access
        All arguments that any of the candidates writes.
    settings : Verification

    Returns
    -------
    Verdict
        A candidate that raises is refused, unless all do; then the arguments are at fault. One that
        raises a `CallError` is neither refused nor trusted.

    Raises
    ------
    KernelError
        When what is written cannot be copied.
    """
    copies = WorkingCopies(bound, accesses)
    if copies.problem is not None:
        raise KernelError(f"the results cannot be verified: {copies.problem}")
    rounds = _Rounds(copies, run, accesses, settings)
    groups, raised = rounds.first(candidates)
    if not groups:
        return Verdict(None, {}, "no implementation could be run on copies of the arguments")
    trusted, note = _trusted(groups, settings.reference, raised)
    refused = {name: f"it raised {reason}" for name, reason in raised.items()}
    refused |= _refusals(groups, trusted, settings.tolerances)
    groups = rounds.second(trusted)
    if len(groups) > 1:
        trusted, note = _trusted(groups, settings.reference, {})
        refused |= _refusals(groups, trusted, settings.tolerances)
    return Verdict(trusted.members[0].name, refused, note)


@dataclass(eq=False)
class _Group(Generic[C]):
    """Candidates whose results agree.

    Attributes
    ----------
    results : mapping
        Those of the first of them.
    is_idle : bool
        Whether it wrote nothing and returned nothing.
    before : mapping
        What the written arguments held before it ran.
    """

    members: list[C]
    results: Leaves
    is_idle: bool
    before: Leaves


class _Rounds(Generic[C]):
    """Runs candidates on the same copies, one after the other, and groups them by results."""

    def __init__(
        self,
        copies: WorkingCopies,
        run: Run[C],
        accesses: Mapping[str, Access],
        settings: Verification,
    ) -> None:
        self._copies = copies
        self._run = run
        self._accesses = accesses
        self._settings = settings
        self._poisoned = [name for name, access in accesses.items() if access == "output"]

    def first(self, candidates: Iterable[C]) -> tuple[list[_Group[C]], dict[str, str]]:
        """Run them on the caller's values; also return what was raised, by name."""
        return self._grouped(candidates, {})

    def second(self, trusted: _Group[C]) -> list[_Group[C]]:
        """Run those that agree again where the first round cannot tell them apart.

        Nobody said whether some arguments are read before they are written, so these held the
        caller's values. Elements that the trusted one left as they were may be right because an
        earlier call wrote them. Here they get other values of the same array. (Made-up values might
        be indices that lead out of an array.)
        """
        unknown = [name for name, access in self._accesses.items() if access == "unknown"]
        own_arrays = self._copies.own_arrays(unknown)
        replaced: dict[int, Array] = {}
        for name in unknown:
            for place, value in walk(self._copies.original(name), repr(name)):
                before, after = trusted.before.get(place), trusted.results.get(place)
                if id(value) in own_arrays and isinstance(before, np.ndarray):
                    kept = _is_kept(before, after)
                    if kept.any():
                        replaced[id(value)] = _with_other_values(before, kept)
        if not replaced or len(trusted.members) < 2:
            return [trusted]
        with np.errstate(all="ignore"):
            groups, _ = self._grouped(trusted.members, replaced)
        return groups

    def _grouped(
        self, candidates: Iterable[C], replaced: Mapping[int, Any]
    ) -> tuple[list[_Group[C]], dict[str, str]]:
        groups: list[_Group[C]] = []
        raised: dict[str, str] = {}
        before: Leaves | None = None
        # The reference comes first, so that all others are compared with it.
        for candidate in sorted(candidates, key=lambda c: c.name != self._settings.reference):
            bound = self._copies.fresh(self._poisoned, replaced)
            if before is None:
                before = frozen(self._written(bound))
            try:
                returned = self._run(candidate, bound.args, bound.kwargs)
            except CallError:
                continue
            except Exception as error:
                raised[candidate.name] = describe(error)
                continue
            results = self._written(bound) | leaves(returned, RETURNED)
            group = self._agreeing(groups, results)
            if group is not None:
                group.members.append(candidate)
            else:
                kept = frozen(results)
                is_idle = returned is None and _are_kept(before, kept)
                groups.append(_Group([candidate], kept, is_idle, before))
        return groups, raised

    def _written(self, bound: inspect.BoundArguments) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in self._accesses:
            if name in bound.arguments:
                found |= leaves(bound.arguments[name], repr(name))
        return found

    def _agreeing(self, groups: Iterable[_Group[C]], results: Leaves) -> _Group[C] | None:
        tolerances = self._settings.tolerances
        return next((g for g in groups if compare(results, g.results, tolerances) is None), None)


def _trusted(
    groups: Sequence[_Group[C]], reference: str | None, raised: Collection[str]
) -> tuple[_Group[C], str]:
    """The group that is right, and why."""
    for group in groups:
        if any(candidate.name == reference for candidate in group.members):
            return group, f"{reference!r} is the named reference"
    note = ""
    if reference is not None:
        note = "raised an exception" if reference in raised else "cannot run with these arguments"
        note = f"the named reference {reference!r} {note}; "
    count = sum(len(group.members) for group in groups)
    # The first of equally strong ones, which was registered first.
    best = max(groups, key=lambda group: (not group.is_idle, len(group.members)))
    agreeing, name = len(best.members), best.members[0].name
    if len(groups) == 1:
        return best, f"{note}all {count} agree" if count > 1 else f"{note}only {name!r} could run"
    if 2 * agreeing > count:
        return best, f"{note}{agreeing} of {count} agree"
    if any(g is not best and g.is_idle for g in groups) and sum(not g.is_idle for g in groups) == 1:
        return best, f"{note}only {name!r} writes anything"
    return best, (
        f"{note}there is no majority among {count}, so that the first registered of them, {name!r},"
        " counts as right; name the right one with reference="
    )


def _refusals(
    groups: Iterable[_Group[C]], trusted: _Group[C], tolerances: Tolerances
) -> dict[str, str]:
    refused: dict[str, str] = {}
    for group in groups:
        if group is trusted:
            continue
        difference = compare(group.results, trusted.results, tolerances)
        reason = f"its result differs from that of {trusted.members[0].name!r}: {difference}"
        refused |= {candidate.name: reason for candidate in group.members}
    return refused


def _are_kept(before: Leaves, after: Leaves) -> bool:
    for place, held in before.items():
        now = after.get(place)
        if isinstance(held, np.ndarray):
            if not _is_kept(held, now).all():
                return False
        elif held is not now and held != now:
            return False
    return True


def _is_kept(before: Array, after: Any) -> Array:
    """Which elements are what they were before; none where the arrays do not correspond."""
    corresponds = isinstance(after, np.ndarray) and (after.shape, after.dtype) == (
        before.shape,
        before.dtype,
    )
    if not corresponds:
        return np.zeros(before.shape, np.bool_)
    return np.asarray((before == after) | ((before != before) & (after != after)))


def _with_other_values(array: Array, where: Array) -> Array:
    """The array, with other values of it at some places; 0 or 1 where it has no other ones."""
    if array.dtype.kind not in "biufc":
        return array
    other = np.roll(array.reshape(-1), 1).reshape(array.shape)
    other = np.where(_is_kept(array, other), (array == 0).astype(array.dtype), other)
    return np.where(where, other, array)
