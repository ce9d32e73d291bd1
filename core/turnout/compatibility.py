"""Implementations of an operation, and which of them a call may choose from."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from .errors import KernelError
from .signatures import is_accepted
from .tuning import Candidate, Case


@dataclasses.dataclass(frozen=True, eq=False)
class Implementation(Candidate):
    """A registered implementation.

    Attributes
    ----------
    is_compatible : callable or None
        None when it takes any arguments.
    is_installed : bool
        Whether the entry point of an installed distribution registered it.
    """

    is_compatible: Callable[..., object] | None = None
    is_installed: bool = False


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
    candidates = []
    refusals = {}
    answers = []
    for implementation in registered:
        if implementation.is_compatible is not None:
            answer = implementation.is_compatible(*arguments, **keywords)
            answers.append(is_accepted(implementation.name, answer))
            if not answers[-1]:
                is_reason = isinstance(answer, str) and answer.strip()
                reason = answer if is_reason else f"is_compatible returned {answer!r}"
                refusals[implementation.name] = str(reason)
                continue
        candidates.append(implementation)
    key = (geometry, *answers) if answers else geometry
    return Case(geometry, key, tuple(candidates), registered), refusals


def nothing_compatible(label: str, operation: str, refusals: Mapping[str, str]) -> str:
    """Return the message for a call that no implementation takes."""
    if not refusals:
        return f"{label} has no implementation: register at least one with @{operation}.register"
    reasons = "".join(f"\n  {name}: {reason}" for name, reason in refusals.items())
    return f"no implementation of {label} is compatible with these arguments:{reasons}"
