# mypy: ignore-errors
"""Operations as kernels: what runs on every backend, whatever its plugin offers.

Sums are in the order of the index, with a rounding after each product and each addition, so that
all backends give the same bits.
"""

from __future__ import annotations

import functools

import numpy as np

from ..ir import from_numpy
from ..kernel import Kernel, kernel
from ..lang import NDArray


@functools.cache
def dot(dtype: np.dtype) -> Kernel:
    """Return the kernel ``dot(a, b, out)``, which writes ``out[0]``."""
    number = from_numpy(dtype)

    @kernel
    def dot(a: NDArray[number, 1], b: NDArray[number, 1], out: NDArray[number, 1]) -> None:
        for i in range(out.shape[0]):
            total = number(0)
            for p in range(a.shape[0]):
                total += a[p] * b[p]
            out[i] = total

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
