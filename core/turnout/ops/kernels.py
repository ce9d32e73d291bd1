# mypy: ignore-errors
"""Operations as kernels: what runs on every backend, whatever its plugin offers.

There is a rounding after each product and each addition. Sums are in the order of the index, those
of `dot` in the order of reductions, so that all backends give the same bits.
"""

from __future__ import annotations

import functools

import numpy as np

from .. import math as tm
from ..ir import from_numpy, i32
from ..kernel import Kernel, kernel
from ..lang import NDArray, serial


@functools.cache
def dot(dtype: np.dtype) -> Kernel:
    """Return the kernel ``dot(a, b, out)``, which writes ``out[0]``."""
    number = from_numpy(dtype)

    @kernel
    def dot(a: NDArray[number, 1], b: NDArray[number, 1], out: NDArray[number, 1]) -> None:
        total = number(0)
        for p in range(a.shape[0]):
            total += a[p] * b[p]
        out[0] = total

    return dot


@functools.cache
def gemv(dtype: np.dtype) -> Kernel:
    """Return the kernel ``gemv(a, x, out)``."""
    number = from_numpy(dtype)

    @kernel
    def gemv(a: NDArray[number, 2], x: NDArray[number, 1], out: NDArray[number, 1]) -> None:
        for i in range(out.shape[0]):
            total = number(0)
            for p in range(x.shape[0]):
                total += a[i, p] * x[p]
            out[i] = total

    return gemv


@functools.cache
def matmul(dtype: np.dtype) -> Kernel:
    """Return the kernel ``matmul(a, b, out)``."""
    number = from_numpy(dtype)

    @kernel
    def matmul(a: NDArray[number, 2], b: NDArray[number, 2], out: NDArray[number, 2]) -> None:
        for i in range(out.shape[0]):
            for j in range(out.shape[1]):
                total = number(0)
                for p in range(b.shape[0]):
                    total += a[i, p] * b[p, j]
                out[i, j] = total

    return matmul


def batched_matmul(dtype: np.dtype, m: int, n: int, k: int) -> Kernel:
    """Return the kernel ``batched_matmul(a, b, out)`` for stacks of (m, k) and (k, n) matrices.

    The innermost loop is the one over a row of the result, which stays in registers.
    """
    number = from_numpy(dtype)

    @kernel
    def batched_matmul(
        a: NDArray[number, 3], b: NDArray[number, 3], out: NDArray[number, 3]
    ) -> None:
        for s in range(out.shape[0]):
            for i in serial(range(m)):
                row = tm.zeros(n, number)
                for p in range(k):
                    factor = a[s, i, p]
                    for j in range(n):
                        row[j] += factor * b[s, p, j]
                for j in range(n):
                    out[s, i, j] = row[j]

    return batched_matmul


_WRITTEN_OUT = 8
"""Up to this size all loops over a matrix are written out; above it compiling would take long."""


def batched_cholesky(dtype: np.dtype, n: int) -> Kernel:
    """Return the kernel ``batched_cholesky(a, out, failed)`` for stacks of (n, n) matrices.

    It reads the lower triangles alone. ``failed[s]`` becomes 1 where matrix s is not positive
    definite, else 0.
    """
    number = from_numpy(dtype)

    @kernel
    def batched_cholesky(
        a: NDArray[number, 3], out: NDArray[number, 3], failed: NDArray[i32, 1]
    ) -> None:
        for s in range(out.shape[0]):
            has_failed = i32(0)
            factor = tm.zeros(n * n, number)
            for j in range(n):
                square = a[s, j, j]
                for p in range(j):
                    square -= factor[j * n + p] * factor[j * n + p]
                if not square > 0:  # NaN, too
                    has_failed = i32(1)
                root = tm.sqrt(square)
                factor[j * n + j] = root
                reciprocal = 1 / root
                for i in range(j + 1, n):
                    rest = a[s, i, j]
                    for p in range(j):
                        rest -= factor[i * n + p] * factor[j * n + p]
                    factor[i * n + j] = rest * reciprocal
            for i in range(n):
                for j in range(n):
                    out[s, i, j] = factor[i * n + j]
            failed[s] = has_failed

    if n > _WRITTEN_OUT:
        return batched_cholesky
    return batched_cholesky.specialise(a=(None, n, n), out=(None, n, n))
