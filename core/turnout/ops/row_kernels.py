# mypy: ignore-errors
"""Operations along the rows of a matrix, as kernels.

Sums and maxima of a row go through partial ones: position j belongs to number j modulo 16, and what
remains at the end of the row is added last. So rows are read in vectors, and sums have about a
sixteenth of the error of sums in order.
"""

from __future__ import annotations

import functools

import numpy as np

from .. import math as tm
from ..ir import from_numpy
from ..kernel import Kernel, kernel
from ..lang import NDArray, Param

PARTS = 16


@functools.cache
def softmax(dtype: np.dtype) -> Kernel:
    """Return the kernel ``softmax(a, row, out)``; `row` has room for a number for each row."""
    number = from_numpy(dtype)

    @kernel
    def softmax(a: NDArray[number, 2], row: NDArray[number, 1], out: NDArray[number, 2]) -> None:
        blocks = a.shape[1] // PARTS
        for r in range(out.shape[0]):
            largest = a[r, 0]
            parts = tm.zeros(PARTS, number)
            for p in range(PARTS):
                parts[p] = largest
            for b in range(blocks):
                for p in range(PARTS):
                    parts[p] = tm.maximum(parts[p], a[r, b * PARTS + p])
            for p in range(PARTS):
                largest = tm.maximum(largest, parts[p])
            for j in range(blocks * PARTS, a.shape[1]):
                largest = tm.maximum(largest, a[r, j])
            row[r] = largest
        for r in range(out.shape[0]):
            for j in range(out.shape[1]):
                out[r, j] = tm.exp(a[r, j] - row[r])
        for r in range(out.shape[0]):
            parts = tm.zeros(PARTS, number)
            for b in range(blocks):
                for p in range(PARTS):
                    parts[p] += out[r, b * PARTS + p]
            total = number(0)
            for p in range(PARTS):
                total += parts[p]
            for j in range(blocks * PARTS, a.shape[1]):
                total += out[r, j]
            row[r] = 1 / total
        for r in range(out.shape[0]):
            for j in range(out.shape[1]):
                out[r, j] = out[r, j] * row[r]

    return softmax


@functools.cache
def layernorm(dtype: np.dtype) -> Kernel:
    """Return the kernel ``layernorm(a, gain, bias, epsilon, out)``."""
    number = from_numpy(dtype)

    @kernel
    def layernorm(
        a: NDArray[number, 2],
        gain: NDArray[number, 1],
        bias: NDArray[number, 1],
        epsilon: Param[number],
        out: NDArray[number, 2],
    ) -> None:
        length = a.shape[1]
        blocks = length // PARTS
        for r in range(out.shape[0]):
            parts = tm.zeros(PARTS, number)
            for b in range(blocks):
                for p in range(PARTS):
                    parts[p] += a[r, b * PARTS + p]
            total = number(0)
            for p in range(PARTS):
                total += parts[p]
            for j in range(blocks * PARTS, length):
                total += a[r, j]
            mean = total / length
            squares = tm.zeros(PARTS, number)
            for b in range(blocks):
                for p in range(PARTS):
                    difference = a[r, b * PARTS + p] - mean
                    squares[p] += difference * difference
            total = number(0)
            for p in range(PARTS):
                total += squares[p]
            for j in range(blocks * PARTS, length):
                difference = a[r, j] - mean
                total += difference * difference
            scale = 1 / tm.sqrt(total / length + epsilon)
            for j in range(length):
                out[r, j] = (a[r, j] - mean) * scale * gain[j] + bias[j]

    return layernorm


@functools.cache
def conv1d(dtype: np.dtype) -> Kernel:
    """Return the kernel ``conv1d(a, w, out)``."""
    number = from_numpy(dtype)

    @kernel
    def conv1d(a: NDArray[number, 2], w: NDArray[number, 1], out: NDArray[number, 2]) -> None:
        for r in range(out.shape[0]):
            for i in range(out.shape[1]):
                total = number(0)
                for j in range(w.shape[0]):
                    total += a[r, i + j] * w[j]
                out[r, i] = total

    return conv1d
