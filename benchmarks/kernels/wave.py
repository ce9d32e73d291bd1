"""Math functions: several of them on every sample."""

from __future__ import annotations

import numpy as np

import turnout.math as tm
from turnout import Mutable, Scalar

from ..cases import Case, Data
from ..compare import Tolerance

EPSILON = 2.0**-52

case = Case(
    "wave",
    "exp, sin, log1p and tanh of every sample",
    sizes=(200_000,),
    tolerance=Tolerance(relative=1e-9, absolute=1e-9),
    # At most 5 units in the last place for each function; the terms are below 1 and 3.
    own_tolerance=Tolerance(relative=0.0, absolute=40 * EPSILON),
)


@case.data
def data(size: int, random: np.random.Generator) -> Data:
    return Data((random.normal(scale=2.0, size=size),), (np.empty(size),))


@case.turnout
def wave(x: Scalar, y: Mutable[Scalar]):
    y = tm.exp(-x * x) * tm.sin(3.0 * x) + tm.log1p(abs(x)) * tm.tanh(x)


@case.numba
def wave_loops(x, y):
    for i in range(x.shape[0]):
        y[i] = np.exp(-x[i] * x[i]) * np.sin(3.0 * x[i]) + np.log1p(abs(x[i])) * np.tanh(x[i])


@case.expected
def expected(x):
    y = np.empty_like(x)
    wave_numpy(x, y)
    return (y,)


@case.version("NumPy")
def wave_numpy(x, y):
    y[:] = np.exp(-x * x) * np.sin(3.0 * x) + np.log1p(np.abs(x)) * np.tanh(x)


@case.built("NumExpr")
def wave_numexpr():
    import numexpr

    numexpr.set_num_threads(1)
    expression = "exp(-x * x) * sin(3.0 * x) + log1p(abs(x)) * tanh(x)"
    return lambda x, y: numexpr.evaluate(expression, {"x": x}, {}, out=y)
