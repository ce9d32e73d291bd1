"""What the operations of this package have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import ParamSpec, TypeVar

from ..perf import PerformanceDispatcher, perf_dispatch
from ..written import Mutates

P = ParamSpec("P")
R = TypeVar("R")

PACKAGE = "turnout.ops"


def operation(
    *, get_geometry_hash: Callable[..., Hashable] | None = None, mutates: Mutates | None = None
) -> Callable[[Callable[P, R]], PerformanceDispatcher[P, R]]:
    """Make an operation that is called ``turnout.ops.<name>``; a decorator, like `perf_dispatch`.

    Its calls are raced until the difference is resolved: they are short, and one sample would tell
    little.
    """

    def decorate(prototype: Callable[P, R]) -> PerformanceDispatcher[P, R]:
        prototype.__module__ = PACKAGE
        return perf_dispatch(
            get_geometry_hash=get_geometry_hash, mutates=mutates, warmup=1, active="auto"
        )(prototype)

    return decorate
