"""What a call costs before any work is done: 4 and 100 samples, calls of several shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import turnout as tn
from turnout import NDArray, Param, f64

from .cases import SEED
from .compare import EXACT, Absent, Arrays, Contender, Row, Target, Tolerance, compare, poison
from .measure import Budget
from .peers import PEERS

GROUP = "launch"
SIZES = (4, 100)

TARGETS = (
    Target("Numba", 1.0),
    Target("Numba", 1 / 3, fast="turnout, keywords", row="turnout, keywords"),
    Target("Numba", 1 / 3, fast="turnout, views", row="turnout, views"),
)

Vector = NDArray[f64, 1]


# -- kernels that do next to nothing ---------------------------------------------------------------


def one_loop(a):
    for i in range(a.shape[0]):
        a[i] = 0.5 * i


def four_loop(a, b, c, d):
    for i in range(d.shape[0]):
        d[i] = a[i] * b[i] + c[i]


def eight_loop(a, b, c, d, e, f, g, h):
    for i in range(h.shape[0]):
        h[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i]


def mixed_loop(a, scale, b, shift, count, c):
    for i in range(c.shape[0]):
        c[i] = a[i] * scale + b[i] * shift + count


@tn.kernel
def one(a: Vector) -> None:
    for i in range(a.shape[0]):
        a[i] = 0.5 * i


@tn.kernel
def four(a: Vector, b: Vector, c: Vector, d: Vector) -> None:
    for i in range(d.shape[0]):
        d[i] = a[i] * b[i] + c[i]


@tn.kernel
def eight(
    a: Vector, b: Vector, c: Vector, d: Vector, e: Vector, f: Vector, g: Vector, h: Vector
) -> None:
    for i in range(h.shape[0]):
        h[i] = a[i] + b[i] + c[i] + d[i] + e[i] + f[i] + g[i]


@tn.kernel
def mixed(a: Vector, scale: Param, b: Vector, shift: Param, count: Param, c: Vector) -> None:
    for i in range(c.shape[0]):
        c[i] = a[i] * scale + b[i] * shift + count


# -- calls -----------------------------------------------------------------------------------------


Arguments = dict[str, Any]
"""By name, in the order of the parameters; the last one is the output."""


def _dense(loop: Callable[..., None], size: int, scalars: Arguments) -> Arguments:
    random = np.random.default_rng(SEED)
    names = loop.__code__.co_varnames[: loop.__code__.co_argcount]
    return {name: scalars.get(name, random.normal(size=size)) for name in names}


def _views(arguments: Arguments) -> Arguments:
    """The same values, every other element of longer arrays."""
    views = dict(arguments)
    for name, value in arguments.items():
        if isinstance(value, np.ndarray):
            views[name] = np.zeros(2 * value.size)[::2]
            views[name][:] = value
    return views


def _contender(
    name: str, call: Callable[..., None], arguments: Arguments, by_keyword: bool = False
) -> Contender:
    given = [f"{each}={each}" if by_keyword else each for each in arguments]
    output = list(arguments.values())[-1]

    def results() -> Arrays:
        poison((output,))
        call(**arguments) if by_keyword else call(*arguments.values())
        return (output.copy(),)

    tolerance = EXACT if name.startswith("turnout") else Tolerance(relative=1e-12)
    names = {**arguments, "call": call}
    return Contender(name, f"call({', '.join(given)})", names, results, tolerance)


def _compare(
    name: str,
    kernel: Any,
    loop: Callable[..., None],
    compiled: Any,
    dense: Arguments,
    budget: Budget,
) -> list[Row]:
    views = _views(dense)
    contenders: list[Contender | Absent] = [
        _contender("turnout", kernel, dense),
        _contender("turnout, keywords", kernel, dense, by_keyword=True),
        _contender("turnout, views", kernel, views),
    ]
    numba = PEERS["Numba"]
    for name_of_peer, arguments in (("Numba", dense), ("Numba, views", views)):
        if compiled is None:
            contenders.append(Absent(name_of_peer, numba.what_is_missing))
        else:
            contenders.append(_contender(name_of_peer, compiled, arguments))
    (expected,) = _contender("Python", loop, dense).results()
    size = expected.size
    return compare((GROUP, name, size), contenders, (expected,), budget, TARGETS)


def _kernels() -> Iterator[tuple[str, Any, Callable[..., None], Arguments]]:
    yield "1 array", one, one_loop, {}
    yield "4 arrays", four, four_loop, {}
    yield "8 arrays", eight, eight_loop, {}
    yield "3 arrays, 3 numbers", mixed, mixed_loop, {"scale": 2.0, "shift": 0.5, "count": 3}


def _numba(loop: Callable[..., None]) -> Any:
    if not PEERS["Numba"].is_installed:
        return None
    from numba import njit

    return njit(loop)


def measure(budget: Budget) -> Iterator[list[Row]]:
    """All rows of the group, comparison by comparison."""
    for name, kernel, loop, scalars in _kernels():
        compiled = _numba(loop)
        for size in SIZES:
            yield _compare(name, kernel, loop, compiled, _dense(loop, size, scalars), budget)
