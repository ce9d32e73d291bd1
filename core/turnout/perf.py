"""``perf_dispatch``: one operation, several implementations, the fastest is found while it runs.

It turns a prototype into a :class:`PerformanceDispatcher`; what that does when it is called, and
how, is in :mod:`turnout.dispatcher`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, ParamSpec, TypeVar, overload

from .dispatcher import PerformanceDispatcher
from .settings import settings
from .tuning import Clock, Timer, TrialPlan
from .written import Mutates

__all__ = ["PerformanceDispatcher", "perf_dispatch"]

P = ParamSpec("P")
R = TypeVar("R")


@overload
def perf_dispatch(prototype: Callable[P, R], /) -> PerformanceDispatcher[P, R]: ...


@overload
def perf_dispatch(
    *,
    get_geometry_hash: Callable[..., Hashable] | None = None,
    warmup: int = 3,
    active: int | Literal["auto"] = 1,
    repeat_after_count: int | None = None,
    repeat_after_seconds: float | None = None,
    exploration_budget: float = 0.05,
    recent_samples: int = 9,
    max_geometries: int = 1024,
    timer: Timer | None = None,
    clock: Clock = time.monotonic,
    mutates: Mutates | None = None,
    verify: Literal["always", "once", "never"] = "never",
    reference: str | None = None,
    tolerances: Mapping[Any, Any] | None = None,
    check: Callable[..., object] | None = None,
) -> Callable[[Callable[P, R]], PerformanceDispatcher[P, R]]: ...


def perf_dispatch(
    prototype: Callable[..., Any] | None = None,
    /,
    *,
    get_geometry_hash: Callable[..., Hashable] | None = None,
    warmup: int = 3,
    active: int | Literal["auto"] = 1,
    repeat_after_count: int | None = None,
    repeat_after_seconds: float | None = None,
    exploration_budget: float = 0.05,
    recent_samples: int = 9,
    max_geometries: int = 1024,
    timer: Timer | None = None,
    clock: Clock = time.monotonic,
    mutates: Mutates | None = None,
    verify: Literal["always", "once", "never"] = "never",
    reference: str | None = None,
    tolerances: Mapping[Any, Any] | None = None,
    check: Callable[..., object] | None = None,
) -> Any:
    """Make an operation that runs the fastest of its registered implementations.

    Parameters
    ----------
    prototype : function
        Gives the operation its name, parameters and defaults. Its body never runs.
    get_geometry_hash : callable, optional
        Called with the operation's arguments; what it returns, any hashable value, is the geometry
        under which a decision is remembered. Default: shapes, dtypes, memory layout and device of
        the arrays, types of numbers, values of strings and booleans (:mod:`turnout.geometry`).
    warmup : int
        Untimed calls of each implementation before the first timed one.
    active : int or "auto"
        Timed calls of each implementation; the lowest median wins, and where medians do not differ
        significantly the implementation in use, else the one registered first. ``"auto"``: from 5
        up to 30 timed calls, until the difference is resolved or a tie; those that are clearly
        slower are dropped before.
    repeat_after_count : int, optional
        Measure everything again after exactly this many decided calls of a geometry; 0: never.
    repeat_after_seconds : float, optional
        Measure everything again this many seconds after the decision; 0: never. Given one of these
        two, the other one is off. Given neither, an operation measures again after one second or
        more, as far as `exploration_budget` allows.
    exploration_budget : float
        The greatest share of the time spent in this operation that measuring again may take, where
        no ``repeat_after`` is given; 0: never measure again.
    recent_samples : int
        How many of an implementation's latest timed calls count when it is measured again.
    max_geometries : int
        How many geometries are remembered; the one decided longest ago makes room.
    timer : callable, optional
        How a call is timed: runs the work it is given once, returns nanoseconds. Default: the timer
        of the device that the arguments are on, which waits for the device before and after.
    clock : callable, optional
        Seconds for `repeat_after_seconds`.
    mutates : iterable of str, or mapping of str to {"output", "update"}, optional
        The parameters whose arrays are written by implementations that do not say so themselves.
        See `PerformanceDispatcher.register`.
    verify : {"never", "once", "always"}
        Whether implementations are run on copies of the arguments, and their results compared,
        before one of them may run: before the first trials of a geometry, or before all, those that
        measure again, too. One whose results differ is never tried, and `explain` shows where they
        do.
    reference : str, optional
        The implementation that counts as right in that. Default: the majority; where there is
        none, the one that was registered first.
    tolerances : mapping, optional
        By element type the relative tolerance of that comparison, or a pair of the relative and
        the absolute one. Default: half of the digits of floats must agree, and all else be equal.
    check : callable, optional
        Called with the arguments of calls for whose geometry nothing is decided yet, before any
        implementation is chosen; raises where they are wrong, whatever runs.

    Returns
    -------
    PerformanceDispatcher
        The operation; or, when called without a prototype, a decorator that makes it.

    Raises
    ------
    ConfigurationError
        When a number is out of range, or another value not allowed.
    KernelError
        When the prototype is not a plain function.

    Examples
    --------
    >>> import numpy as np
    >>> @perf_dispatch(get_geometry_hash=lambda a, b: hash(a.shape + b.shape))
    ... def double(a, b): ...
    >>> @double.register
    ... def double_numpy(a, b):
    ...     np.multiply(a, 2, out=b)
    >>> a, b = np.arange(3.0), np.empty(3)
    >>> double(a, b)
    >>> b
    array([0., 2., 4.])
    """
    plan = TrialPlan(
        warmup,
        active,
        repeat_after_count,
        repeat_after_seconds,
        exploration_budget,
        recent_samples,
    )

    given = settings(
        get_geometry_hash,
        plan,
        max_geometries,
        timer,
        clock,
        mutates,
        verify,
        reference,
        tolerances,
        check,
    )

    def decorate(prototype: Callable[..., Any]) -> PerformanceDispatcher[..., Any]:
        return PerformanceDispatcher(prototype, given)

    return decorate if prototype is None else decorate(prototype)
