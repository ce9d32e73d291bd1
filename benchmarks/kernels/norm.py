"""Reduction: a sum of squares in a loop whose order counts."""

from __future__ import annotations

import numpy as np

from turnout import NDArray, f64

from ..cases import Case, Data
from ..compare import EXACT, Tolerance

case = Case(
    "norm",
    "sum of squares, added up one after the other",
    sizes=(1_000_000,),
    tolerance=Tolerance(relative=1e-11),
    own_tolerance=EXACT,
)


@case.data
def data(size: int, random: np.random.Generator) -> Data:
    return Data((random.normal(size=size),), (np.empty(1),))


@case.turnout
def norm(a: NDArray[f64, 1], out: NDArray[f64, 1]) -> None:
    total = 0.0
    for i in range(a.shape[0]):
        total += a[i] * a[i]
    out[0] = total


@case.numba
def norm_loops(a, out):
    total = 0.0
    for i in range(a.shape[0]):
        total += a[i] * a[i]
    out[0] = total


@case.expected
def expected(a):
    # `cumsum` adds one after the other, where `sum` adds in pairs.
    return (np.cumsum(a * a)[-1:],)


@case.version("NumPy")
def norm_numpy(a, out):
    out[0] = np.sum(a * a)
