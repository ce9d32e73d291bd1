"""Small linear algebra: a system of three equations per sample, by Cramer's rule."""

from __future__ import annotations

import numpy as np

from turnout import NDArray, f64

from ..cases import Case, Data
from ..compare import EXACT, Tolerance

case = Case(
    "solve",
    "three linear equations per sample, by Cramer's rule",
    sizes=(100_000,),
    tolerance=Tolerance(relative=1e-9, absolute=1e-9),
    own_tolerance=EXACT,
)


@case.data
def data(size: int, random: np.random.Generator) -> Data:
    a = random.normal(size=(size, 3, 3)) + 4 * np.eye(3)
    return Data((a, random.normal(size=(size, 3))), (np.empty((size, 3)),))


@case.turnout
def solve(a: NDArray[f64, 3], b: NDArray[f64, 2], x: NDArray[f64, 2]) -> None:
    for i in range(a.shape[0]):
        c00 = a[i, 1, 1] * a[i, 2, 2] - a[i, 1, 2] * a[i, 2, 1]
        c01 = a[i, 1, 2] * a[i, 2, 0] - a[i, 1, 0] * a[i, 2, 2]
        c02 = a[i, 1, 0] * a[i, 2, 1] - a[i, 1, 1] * a[i, 2, 0]
        c10 = a[i, 0, 2] * a[i, 2, 1] - a[i, 0, 1] * a[i, 2, 2]
        c11 = a[i, 0, 0] * a[i, 2, 2] - a[i, 0, 2] * a[i, 2, 0]
        c12 = a[i, 0, 1] * a[i, 2, 0] - a[i, 0, 0] * a[i, 2, 1]
        c20 = a[i, 0, 1] * a[i, 1, 2] - a[i, 0, 2] * a[i, 1, 1]
        c21 = a[i, 0, 2] * a[i, 1, 0] - a[i, 0, 0] * a[i, 1, 2]
        c22 = a[i, 0, 0] * a[i, 1, 1] - a[i, 0, 1] * a[i, 1, 0]
        determinant = a[i, 0, 0] * c00 + a[i, 0, 1] * c01 + a[i, 0, 2] * c02
        x[i, 0] = (c00 * b[i, 0] + c10 * b[i, 1] + c20 * b[i, 2]) / determinant
        x[i, 1] = (c01 * b[i, 0] + c11 * b[i, 1] + c21 * b[i, 2]) / determinant
        x[i, 2] = (c02 * b[i, 0] + c12 * b[i, 1] + c22 * b[i, 2]) / determinant


@case.numba
def solve_loops(a, b, x):
    for i in range(a.shape[0]):
        c00 = a[i, 1, 1] * a[i, 2, 2] - a[i, 1, 2] * a[i, 2, 1]
        c01 = a[i, 1, 2] * a[i, 2, 0] - a[i, 1, 0] * a[i, 2, 2]
        c02 = a[i, 1, 0] * a[i, 2, 1] - a[i, 1, 1] * a[i, 2, 0]
        c10 = a[i, 0, 2] * a[i, 2, 1] - a[i, 0, 1] * a[i, 2, 2]
        c11 = a[i, 0, 0] * a[i, 2, 2] - a[i, 0, 2] * a[i, 2, 0]
        c12 = a[i, 0, 1] * a[i, 2, 0] - a[i, 0, 0] * a[i, 2, 1]
        c20 = a[i, 0, 1] * a[i, 1, 2] - a[i, 0, 2] * a[i, 1, 1]
        c21 = a[i, 0, 2] * a[i, 1, 0] - a[i, 0, 0] * a[i, 1, 2]
        c22 = a[i, 0, 0] * a[i, 1, 1] - a[i, 0, 1] * a[i, 1, 0]
        determinant = a[i, 0, 0] * c00 + a[i, 0, 1] * c01 + a[i, 0, 2] * c02
        x[i, 0] = (c00 * b[i, 0] + c10 * b[i, 1] + c20 * b[i, 2]) / determinant
        x[i, 1] = (c01 * b[i, 0] + c11 * b[i, 1] + c21 * b[i, 2]) / determinant
        x[i, 2] = (c02 * b[i, 0] + c12 * b[i, 1] + c22 * b[i, 2]) / determinant


@case.expected
def expected(a, b):
    # The same operations in the same order, a whole column at a time.
    (p, q, r), (s, t, u), (v, w, z) = a.transpose(1, 2, 0)
    cofactors = (
        (t * z - u * w, u * v - s * z, s * w - t * v),
        (r * w - q * z, p * z - r * v, q * v - p * w),
        (q * u - r * t, r * s - p * u, p * t - q * s),
    )
    c0, c1, c2 = cofactors
    determinant = p * c0[0] + q * c0[1] + r * c0[2]
    columns = [
        (c0[k] * b[:, 0] + c1[k] * b[:, 1] + c2[k] * b[:, 2]) / determinant for k in range(3)
    ]
    return (np.stack(columns, axis=1),)


@case.version("NumPy")
def solve_numpy(a, b, x):
    x[:] = np.linalg.solve(a, b[:, :, None])[:, :, 0]
