"""Implementations of an operation, and which of them a call may choose from."""

from __future__ import annotations

import dataclasses
import functools
import reprlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

from .errors import KernelError
from .identity import implementation_digest
from .signatures import is_accepted
from .tuning import Candidate, Case
from .written import Writes


@dataclasses.dataclass(frozen=True, eq=False)
class Implementation(Candidate):
    """A registered implementation.

    Attributes
    ----------
    writes : Writes
        What it writes, as far as that is known.
    is_compatible : callable or None
        None when it takes any arguments.
    version : str or None
        What its author says it is.
    is_installed : bool
        Whether the entry point of an installed distribution registered it.

    Its `function` is a `PerGeometry` where it has a `make`; whether that is compatible is asked
    once per geometry, too.
    """

    writes: Writes
    is_compatible: Callable[..., object] | None = None
    version: str | None = None
    is_installed: bool = False

    @functools.cached_property
    def digest(self) -> str | None:
        """What it is made of; None where nobody can know. It is found out when first asked for."""
        return implementation_digest(self.function, self.version)


class PerGeometry:
    """An implementation whose function is made for each geometry, from its first arguments."""

    def __init__(self, make: Callable[..., Callable[..., Any]]) -> None:
        functools.update_wrapper(self, make)
        self.make = make

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.make(*arguments, **keywords)(*arguments, **keywords)


def checks(registered: Iterable[Implementation]) -> list[tuple[str, Callable[..., object]]]:
    """Return every ``is_compatible`` that each call asks, with the name of an implementation.

    The variants of a tunable implementation share theirs.
    """
    return _checks(each for each in registered if each.make is None)


def _checks(registered: Iterable[Implementation]) -> list[tuple[str, Callable[..., object]]]:
    found: dict[int, tuple[str, Callable[..., object]]] = {}
    for each in registered:
        if each.is_compatible is not None:
            found.setdefault(id(each.is_compatible), (each.name, each.is_compatible))
    return list(found.values())


def narrow(
    label: str,
    geometry: Hashable,
    registered: tuple[Implementation, ...],
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
) -> tuple[Case[Implementation], dict[str, str]]:
    """Return what there is to choose from, and why the other implementations are left out."""
    try:
        hash(geometry)
    except TypeError:
        raise KernelError(
            f"{label}: the geometry {reprlib.repr(geometry)} of type "
            f"{type(geometry).__name__} cannot be hashed: get_geometry_hash must return a "
            "number, a string or a tuple of them, for example hash(a.shape)"
        ) from None
    answers: dict[int, object] = {}
    accepted: dict[int, bool] = {id(None): True}
    for name, is_compatible in _checks(registered):
        answer = answers[id(is_compatible)] = is_compatible(*arguments, **keywords)
        accepted[id(is_compatible)] = is_accepted(name, answer)
    candidates = []
    refusals = {}
    for each in registered:
        if accepted[id(each.is_compatible)]:
            candidates.append(each)
            continue
        answer = answers[id(each.is_compatible)]
        is_reason = isinstance(answer, str) and answer.strip()
        refusals[each.name] = str(answer if is_reason else f"is_compatible returned {answer!r}")
    asked = [accepted[id(is_compatible)] for _, is_compatible in checks(registered)]
    key = (geometry, *asked) if asked else geometry
    return Case(geometry, key, tuple(candidates), registered), refusals


def nothing_compatible(label: str, operation: str, refusals: Mapping[str, str]) -> str:
    """Return the message for a call that no implementation takes."""
    if not refusals:
        return f"{label} has no implementation: register at least one with @{operation}.register"
    reasons = "".join(f"\n  {name}: {reason}" for name, reason in refusals.items())
    return f"no implementation of {label} is compatible with these arguments:{reasons}"
