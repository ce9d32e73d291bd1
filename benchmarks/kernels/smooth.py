"""Recurrence: exponential smoothing of every row, where each value needs the one before."""

from __future__ import annotations

import numpy as np

from turnout import NDArray, Param, f64

from ..cases import Case, Data
from ..compare import EXACT, Tolerance

case = Case(
    "smooth",
    "exponential smoothing of rows of 1,000 values; the size is the number of rows",
    sizes=(500,),
    tolerance=Tolerance(relative=1e-10, absolute=1e-10),
    own_tolerance=EXACT,
)


@case.data
def data(size: int, random: np.random.Generator) -> Data:
    x = random.normal(size=(size, 1000))
    return Data((0.1, x), (np.empty_like(x),))


@case.turnout
def smooth(weight: Param, x: NDArray[f64, 2], y: NDArray[f64, 2]) -> None:
    for i in range(x.shape[0]):
        state = 0.0
        for j in range(x.shape[1]):
            state = state + weight * (x[i, j] - state)
            y[i, j] = state


@case.numba
def smooth_loops(weight, x, y):
    for i in range(x.shape[0]):
        state = 0.0
        for j in range(x.shape[1]):
            state = state + weight * (x[i, j] - state)
            y[i, j] = state


@case.expected
def expected(weight, x):
    y = np.empty_like(x)
    smooth_numpy(weight, x, y)
    return (y,)


@case.version("NumPy")
def smooth_numpy(weight, x, y):
    state = np.zeros(x.shape[0])
    for j in range(x.shape[1]):
        state = state + weight * (x[:, j] - state)
        y[:, j] = state
