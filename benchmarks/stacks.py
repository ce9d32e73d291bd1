"""Many small matrices at once, and what an operation adds to a call with one pair of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import turnout as tn

from .cases import SEED
from .compare import (
    SUBJECT,
    Absent,
    Arrays,
    Contender,
    Row,
    Target,
    Tolerance,
    Verdict,
    compare,
    make_row,
    poison,
)
from .measure import Budget, Timing, alternate, quiet_clock, timed
from .peers import numba_compiled

GROUP = "stacks"
NUMPY, NUMBA = "NumPy", "Numba"

COUNT = 100_000
PRODUCT_SIDES = (3, 4, 6, 8, 12)
FACTOR_SIDES = (3, 6, 12)
PROMISED_SIDE, PROMISED_RATIO = 6, 3.0

OVERHEAD_SIDES = (4, 8, 16, 32, 48)
OVERHEAD_AT_MOST_NS = 400.0
OVERHEAD = "turnout.ops.matmul, overhead"
CODE = "the code alone"

UNIT = float(np.finfo(np.float64).eps)

Function = Callable[..., Any]


def measure(budget: Budget) -> Iterator[list[Row]]:
    """All rows of the group."""
    random = np.random.default_rng(SEED)
    for side in FACTOR_SIDES:
        yield _factors(random, side, budget)
    for side in PRODUCT_SIDES:
        yield _products(random, side, budget)
    for side in OVERHEAD_SIDES:
        yield _overhead(random, side, budget)


def _factors(random: np.random.Generator, side: int, budget: Budget) -> list[Row]:
    roots = random.standard_normal((COUNT, side, side))
    matrices = roots @ roots.transpose(0, 2, 1) + side * np.eye(side)
    out = np.empty_like(matrices)
    tn.ops.batched_cholesky.tune(matrices, out)
    functions = {
        SUBJECT: lambda a, out: tn.ops.batched_cholesky(a, out),
        NUMPY: lambda a, out: np.linalg.cholesky(a),
        NUMBA: numba_compiled(_cholesky_loops),
    }
    targets = [Target(NUMPY, PROMISED_RATIO)] if side == PROMISED_SIDE else []
    expected = np.linalg.cholesky(matrices)
    title = (GROUP, f"Cholesky, {COUNT:,} of float64", side)
    return _compared(title, functions, (matrices,), out, expected, budget, targets)


def _products(random: np.random.Generator, side: int, budget: Budget) -> list[Row]:
    a, b = random.random((2, COUNT, side, side))
    out = np.empty_like(a)
    tn.ops.batched_matmul.tune(a, b, out)
    functions = {
        SUBJECT: tn.ops.batched_matmul,
        NUMPY: np.matmul,
        NUMBA: numba_compiled(_product_loops),
    }
    title = (GROUP, f"products, {COUNT:,} of float64", side)
    return _compared(title, functions, (a, b), out, a @ b, budget, [])


def _compared(
    title: tuple[str, str, int],
    functions: dict[str, Any],
    inputs: Arrays,
    out: np.ndarray[Any, Any],
    expected: np.ndarray[Any, Any],
    budget: Budget,
    targets: list[Target],
) -> list[Row]:
    tolerance = Tolerance(relative=100 * UNIT, absolute=100 * UNIT)

    def contender(name: str, function: Any) -> Contender | Absent:
        if isinstance(function, str):
            return Absent(name, function)

        def results() -> Arrays:
            poison((out,))
            return (function(*inputs, out),)

        names = {f"x{number}": array for number, array in enumerate((*inputs, out))}
        statement = f"call({', '.join(names)})"
        return Contender(name, statement, {"call": function, **names}, results, tolerance)

    contenders = [contender(*each) for each in functions.items()]
    return compare(title, contenders, (expected,), budget, targets)


# -- what the choice costs -------------------------------------------------------------------------


def _overhead(random: np.random.Generator, side: int, budget: Budget) -> list[Row]:
    a, b = random.random((2, side, side))
    out = np.empty_like(a)
    tn.ops.matmul.tune(a, b, out)
    is_compiled = tn.ops.matmul.decision(a, b, out).chosen == "compiled"
    alone = tn.ops.compile_matmul(side, side, side, a.dtype) if is_compiled else np.matmul
    names = {"a": a, "b": b, "out": out}
    calls = {
        name: timed("call(a, b, out)", {"call": call, **names}, clock=quiet_clock())
        for name, call in {CODE: alone, OVERHEAD: tn.ops.matmul}.items()
    }
    timings = alternate(calls, budget)
    added: dict[str, Timing] = {OVERHEAD: timings[OVERHEAD].minus(timings[CODE])}
    title = (GROUP, "matmul float64, one pair", side)
    row = make_row(title, OVERHEAD, added, subject="")
    assert row.median_ns is not None
    goal = f"at most {OVERHEAD_AT_MOST_NS:g} ns"
    is_met = row.median_ns <= OVERHEAD_AT_MOST_NS
    row.verdicts.append(Verdict(f"{OVERHEAD}: {goal}", goal, f"{row.median_ns:.0f} ns", is_met))
    return [make_row(title, CODE, timings, subject=""), row]


# -- Numba -----------------------------------------------------------------------------------------


def _product_loops(a, b, out):
    for s in range(out.shape[0]):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                total = 0.0
                for k in range(b.shape[1]):
                    total += a[s, i, k] * b[s, k, j]
                out[s, i, j] = total
    return out


def _cholesky_loops(a, out):
    n = a.shape[1]
    for s in range(a.shape[0]):
        for j in range(n):
            square = a[s, j, j]
            for k in range(j):
                square -= out[s, j, k] * out[s, j, k]
            if not square > 0:
                raise ValueError("Matrix is not positive definite")
            root = np.sqrt(square)
            out[s, j, j] = root
            for i in range(j + 1, n):
                rest = a[s, i, j]
                for k in range(j):
                    rest -= out[s, i, k] * out[s, j, k]
                out[s, i, j] = rest / root
                out[s, j, i] = 0.0
    return out
