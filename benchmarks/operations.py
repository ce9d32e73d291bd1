"""Products of vectors and matrices: code for the exact size, NumPy's BLAS, and Numba's loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import turnout as tn

from .cases import SEED
from .compare import SUBJECT, Absent, Arrays, Contender, Row, Target, Tolerance, compare
from .measure import Budget
from .peers import numba_compiled

GROUP = "operations"
NUMPY, NUMBA, OPERATION = "NumPy", "Numba fastmath", "turnout.ops"

DTYPES = (np.float64, np.float32)
SIDES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
LENGTHS = (16, 64, 256, 1024, 4096, 65_536, 4_000_000)
MATRIX_SIDES = (16, 64, 256, 1024, 4096)

LARGEST_SMALL_SIDE = 64
LEAST_SIDE_TO_PICK = 32
"""Side from which on an operation takes hardly longer than what it picks."""
LARGEST_CACHED_LENGTH = 4096
LARGEST_OF_LOOPS = 256
"""Side of the largest matrices that plain loops multiply; they take too long for larger ones."""

CALLS_TO_SETTLE = 20

Function = Callable[..., Any]


@dataclass(frozen=True)
class Problem:
    """One operation at one size.

    Attributes
    ----------
    name : str
        The case, with the type.
    size : int
        Its side or length.
    inputs, outputs : tuple of arrays
        Arguments; a call without outputs returns a scalar.
    functions : dict of str to callable
        Who computes it.
    targets : sequence of Target
        What turnout promises.
    """

    name: str
    size: int
    inputs: Arrays
    outputs: Arrays
    functions: dict[str, Function]
    targets: Sequence[Target]


def measure(budget: Budget) -> Iterator[list[Row]]:
    """All rows of the group."""
    for problem in _problems():
        yield _compared(problem, budget)


def _problems() -> Iterator[Problem]:
    random = np.random.default_rng(SEED)
    for dtype in DTYPES:
        suffix = np.dtype(dtype).name
        for side in SIDES:
            a, b = random.random((2, side, side)).astype(dtype)
            is_small = side <= LARGEST_SMALL_SIDE
            picks = side >= LEAST_SIDE_TO_PICK
            yield Problem(
                f"matmul {suffix}",
                side,
                (a, b),
                (np.empty((side, side), dtype),),
                {
                    SUBJECT: tn.ops.compile_matmul(side, side, side, dtype),
                    OPERATION: _decided(tn.ops.matmul, a, b, np.empty((side, side), dtype)),
                    NUMPY: np.matmul,
                    **_numba(_matmul_loops, side <= LARGEST_OF_LOOPS),
                },
                [
                    Target(NUMPY, 1.0 if is_small else 0.9),
                    *([Target(SUBJECT, 0.95, OPERATION, OPERATION)] if picks else []),
                ],
            )
        for length in LENGTHS:
            a, b = random.random((2, length)).astype(dtype)
            is_cached = length <= LARGEST_CACHED_LENGTH
            yield Problem(
                f"dot {suffix}",
                length,
                (a, b),
                (),
                {
                    SUBJECT: tn.ops.compile_dot(length, dtype),
                    NUMPY: np.dot,
                    **_numba(_dot_loop, True),
                },
                [Target(NUMPY, 1.0 if is_cached else 0.9)],
            )
        for order in ("C", "F"):
            for side in MATRIX_SIDES:
                a = np.asarray(random.random((side, side)), dtype, order=order)
                x = random.random(side).astype(dtype)
                yield Problem(
                    f"gemv {suffix}, order {order}",
                    side,
                    (a, x),
                    (np.empty(side, dtype),),
                    {
                        SUBJECT: tn.ops.compile_gemv(side, side, dtype),
                        NUMPY: np.matmul,
                        **_numba(_gemv_loops, order == "C"),
                    },
                    [Target(NUMPY, 0.9)],
                )


def _decided(operation: Any, *arguments: Any) -> Function:
    """An operation after its trials."""
    operation.tune(*arguments)
    for _ in range(CALLS_TO_SETTLE):
        operation(*arguments)
    return operation


def _compared(problem: Problem, budget: Budget) -> list[Row]:
    steps = problem.inputs[0].shape[-1]
    expected = problem.inputs[0].astype(np.longdouble) @ problem.inputs[1].astype(np.longdouble)
    unit = float(np.finfo(problem.inputs[0].dtype).eps)
    # All terms are positive, so the bound of any order of the sum is relative.
    tolerance = Tolerance(relative=2 * steps * unit)
    contenders = [
        _contender(name, function, problem, tolerance)
        for name, function in problem.functions.items()
    ]
    title = (GROUP, problem.name, problem.size)
    return compare(title, contenders, (np.asarray(expected, float),), budget, problem.targets)


def _contender(
    name: str, function: Function, problem: Problem, tolerance: Tolerance
) -> Contender | Absent:
    if isinstance(function, str):
        return Absent(name, function)

    def results() -> Arrays:
        for array in problem.outputs:
            array.fill(np.nan)
        returned = function(*problem.inputs, *problem.outputs)
        return problem.outputs or (np.asarray(returned),)

    arguments = [f"x{n}" for n in range(len(problem.inputs) + len(problem.outputs))]
    values = dict(zip(arguments, [*problem.inputs, *problem.outputs], strict=True))
    statement = f"call({', '.join(arguments)})"
    return Contender(name, statement, {"call": function, **values}, results, tolerance)


# -- Numba -----------------------------------------------------------------------------------------


def _numba(loops: Function, takes_part: bool) -> dict[str, Any]:
    return {NUMBA: numba_compiled(loops, fastmath=True)} if takes_part else {}


def _matmul_loops(a, b, out):
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            out[i, j] = 0
        for k in range(a.shape[1]):
            for j in range(b.shape[1]):
                out[i, j] += a[i, k] * b[k, j]


def _dot_loop(a, b):
    total = a.dtype.type(0)
    for i in range(a.shape[0]):
        total += a[i] * b[i]
    return total


def _gemv_loops(a, x, out):
    for i in range(a.shape[0]):
        total = a.dtype.type(0)
        for j in range(a.shape[1]):
            total += a[i, j] * x[j]
        out[i] = total
