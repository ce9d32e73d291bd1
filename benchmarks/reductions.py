"""Reductions and running sums of vectors: turnout's choice, NumPy, and Numba's loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import turnout as tn

from .cases import SEED
from .compare import SUBJECT, Absent, Arrays, Contender, Row, Target, Tolerance, compare
from .measure import Budget
from .peers import numba_compiled

GROUP = "reductions"
NUMPY, NUMBA = "NumPy", "Numba fastmath"

DTYPES = (np.float64, np.float32, np.int64)
LENGTHS = (1_000, 100_000, 1_000_000, 10_000_000)
LARGEST_CACHED_LENGTH = 1_000_000
CALLS_TO_SETTLE = 20

Function = Callable[..., Any]


def measure(budget: Budget) -> Iterator[list[Row]]:
    """All rows of the group."""
    random = np.random.default_rng(SEED)
    for name, loop in _LOOPS.items():
        for dtype in DTYPES:
            for length in LENGTHS:
                # Of integers, too, many are distinct, and sums stay far from what overflows.
                a = (random.random(length) * 2**20).astype(dtype)
                yield _compared(name, a, loop, budget)


def _compared(name: str, a: np.ndarray[Any, Any], loop: Function, budget: Budget) -> list[Row]:
    is_running = name == "cumsum"
    operation, library = getattr(tn.ops, name), getattr(np, name)
    is_sum = is_running or name == "sum"
    wide = a.astype(np.longdouble) if is_sum and a.dtype.kind == "f" else a
    expected = np.asarray(library(wide), float)
    outputs: Arrays = (np.empty(a.shape, a.dtype),) if is_running else ()
    unit = float(np.finfo(a.dtype).eps) if a.dtype.kind == "f" else 0.0
    # All terms are positive, so the bound of any order of the sum is relative.
    tolerance = Tolerance(relative=2 * a.size * unit if is_sum else 0.0)
    operation.tune(a, None, *outputs)
    for _ in range(CALLS_TO_SETTLE):
        operation(a, None, *outputs)
    functions = {
        SUBJECT: operation,
        NUMPY: (lambda a, axis, out: np.cumsum(a, axis, out=out)) if is_running else library,
        NUMBA: numba_compiled(loop, _REORDERED),
    }
    contenders = [_contender(*each, a, outputs, tolerance) for each in functions.items()]
    title = (GROUP, f"{name} {a.dtype.name}", a.size)
    targets = [Target(NUMPY, 0.9)] if a.size >= LARGEST_CACHED_LENGTH else []
    return compare(title, contenders, (expected,), budget, targets)


def _contender(
    name: str,
    function: Any,
    a: np.ndarray[Any, Any],
    outputs: Arrays,
    tolerance: Tolerance,
) -> Contender | Absent:
    if isinstance(function, str):
        return Absent(name, function)

    def results() -> Arrays:
        for array in outputs:
            array.fill(0)
        returned = function(a, None, *outputs)
        return outputs or (np.asarray(returned),)

    statement = "call(a, None, out)" if outputs else "call(a, None)"
    values = {"call": function, "a": a, **({"out": outputs[0]} if outputs else {})}
    return Contender(name, statement, values, results, tolerance)


# -- Numba -----------------------------------------------------------------------------------------


_REORDERED = frozenset({"reassoc", "nsz", "contract"})
"""Only sums may be reordered: NaN would not be seen by loops that are told that there is none."""


def _sum_loop(a, axis):
    total = a.dtype.type(0)
    for i in range(a.shape[0]):
        total += a[i]
    return total


def _max_loop(a, axis):
    best = a[0]
    for i in range(a.shape[0]):
        if a[i] > best or a[i] != a[i]:
            best = a[i]
        if best != best:
            break
    return best


def _argmax_loop(a, axis):
    best, place = a[0], 0
    for i in range(a.shape[0]):
        if a[i] > best or (a[i] != a[i] and best == best):
            best, place = a[i], i
    return place


def _cumsum_loop(a, axis, out):
    total = a.dtype.type(0)
    for i in range(a.shape[0]):
        total += a[i]
        out[i] = total


_LOOPS = {
    "sum": _sum_loop,
    "max": _max_loop,
    "argmax": _argmax_loop,
    "cumsum": _cumsum_loop,
}
