# mypy: ignore-errors
"""Reductions as kernels, each in three forms.

``whole`` reduces all elements of a vector in the order of reductions (`turnout.lang.reductions`).
``rows`` reduces the rows of a matrix: sums and extremes through partial ones, as in
`turnout.ops.row_kernels`. ``columns`` reduces the middle axis of three, in order, so that
neighbouring elements of the last axis go together.
"""

# Annotations are evaluated at once: their types are variables of the functions around.

import functools

import numpy as np

from .. import math as tm
from ..ir import from_numpy, i64
from ..kernel import Kernel, kernel
from ..lang import NDArray
from .row_kernels import PARTS

BLOCK = 1024
"""Elements that one thread of a device adds up in order, in a cumulative sum."""


@functools.cache
def sum_of(form: str, dtype: np.dtype, result: np.dtype) -> Kernel:
    """Return the kernel ``sum(a, out)`` of a form, which adds up numbers of the type of `out`."""
    number, total_type = from_numpy(dtype), from_numpy(result)

    @kernel
    def whole(a: NDArray[number, 1], out: NDArray[total_type, 1]) -> None:
        total = total_type(0)
        for p in range(a.shape[0]):
            total += total_type(a[p])
        out[0] = total

    @kernel
    def rows(a: NDArray[number, 2], out: NDArray[total_type, 1]) -> None:
        blocks = a.shape[1] // PARTS
        for r in range(out.shape[0]):
            parts = tm.zeros(PARTS, total_type)
            for b in range(blocks):
                for p in range(PARTS):
                    parts[p] += total_type(a[r, b * PARTS + p])
            total = total_type(0)
            for p in range(PARTS):
                total += parts[p]
            for j in range(blocks * PARTS, a.shape[1]):
                total += total_type(a[r, j])
            out[r] = total

    @kernel
    def columns(a: NDArray[number, 3], out: NDArray[total_type, 2]) -> None:
        for r in range(out.shape[0]):
            for c in range(out.shape[1]):
                total = total_type(0)
                for j in range(a.shape[1]):
                    total += total_type(a[r, j, c])
                out[r, c] = total

    return {"whole": whole, "rows": rows, "columns": columns}[form]


@functools.cache
def extreme_of(form: str, dtype: np.dtype, is_greatest: bool) -> Kernel:
    """Return the kernel ``extreme(a, out)`` of a form: NaN where there is one."""
    number = from_numpy(dtype)
    better = tm.maximum if is_greatest else tm.minimum

    @kernel
    def whole(a: NDArray[number, 1], out: NDArray[number, 1]) -> None:
        found = a[0]
        for p in range(a.shape[0]):
            found = better(found, a[p])
        out[0] = found

    @kernel
    def rows(a: NDArray[number, 2], out: NDArray[number, 1]) -> None:
        blocks = a.shape[1] // PARTS
        for r in range(out.shape[0]):
            found = a[r, 0]
            parts = tm.zeros(PARTS, number)
            for p in range(PARTS):
                parts[p] = found
            for b in range(blocks):
                for p in range(PARTS):
                    parts[p] = better(parts[p], a[r, b * PARTS + p])
            for p in range(PARTS):
                found = better(found, parts[p])
            for j in range(blocks * PARTS, a.shape[1]):
                found = better(found, a[r, j])
            out[r] = found

    @kernel
    def columns(a: NDArray[number, 3], out: NDArray[number, 2]) -> None:
        for r in range(out.shape[0]):
            for c in range(out.shape[1]):
                found = a[r, 0, c]
                for j in range(1, a.shape[1]):
                    found = better(found, a[r, j, c])
                out[r, c] = found

    return {"whole": whole, "rows": rows, "columns": columns}[form]


@functools.cache
def place_of_extreme(form: str, dtype: np.dtype, is_greatest: bool) -> Kernel:
    """Return the kernel ``place(a, out)`` of a form: where the extreme is first, or the first NaN.

    NaN is the only number that differs from itself.
    """
    number = from_numpy(dtype)
    better = tm.maximum if is_greatest else tm.minimum

    @kernel
    def whole(a: NDArray[number, 1], out: NDArray[i64, 1]) -> None:
        found = a[0]
        for p in range(a.shape[0]):
            found = better(found, a[p])
        place = a.shape[0]
        for p in range(a.shape[0]):
            if a[p] == found or a[p] != a[p]:
                place = min(place, p)
        out[0] = place

    @kernel
    def rows(a: NDArray[number, 2], out: NDArray[i64, 1]) -> None:
        length = a.shape[1]
        blocks = length // PARTS
        for r in range(out.shape[0]):
            found = a[r, 0]
            parts = tm.zeros(PARTS, number)
            for p in range(PARTS):
                parts[p] = found
            for b in range(blocks):
                for p in range(PARTS):
                    parts[p] = better(parts[p], a[r, b * PARTS + p])
            for p in range(PARTS):
                found = better(found, parts[p])
            for j in range(blocks * PARTS, length):
                found = better(found, a[r, j])
            places = tm.zeros(PARTS, i64)
            for p in range(PARTS):
                places[p] = length
            for b in range(blocks):
                for p in range(PARTS):
                    element = a[r, b * PARTS + p]
                    is_it = element == found or element != element
                    places[p] = min(places[p], tm.select(is_it, b * PARTS + p, length))
            place = length
            for p in range(PARTS):
                place = min(place, places[p])
            for j in range(blocks * PARTS, length):
                if a[r, j] == found or a[r, j] != a[r, j]:
                    place = min(place, j)
            out[r] = place

    @kernel
    def columns(a: NDArray[number, 3], out: NDArray[i64, 2]) -> None:
        for r in range(out.shape[0]):
            for c in range(out.shape[1]):
                found = a[r, 0, c]
                place = 0
                for j in range(1, a.shape[1]):
                    best = better(found, a[r, j, c])
                    if best != found and found == found:
                        place = j
                    found = best
                out[r, c] = place

    return {"whole": whole, "rows": rows, "columns": columns}[form]


@functools.cache
def cumulative_sum_of(form: str, dtype: np.dtype, result: np.dtype) -> Kernel:
    """Return the kernel ``cumsum(a, out)`` of a form; ``whole`` also takes `starts`, to work in.

    ``whole`` adds up blocks of `BLOCK` elements first, so that a device has many to work on: it
    takes ``(a, starts, out)``, where `starts` has room for a number for each block.
    """
    number, total_type = from_numpy(dtype), from_numpy(result)

    @kernel
    def whole(
        a: NDArray[number, 1], starts: NDArray[total_type, 1], out: NDArray[total_type, 1]
    ) -> None:
        for b in range(starts.shape[0]):
            total = total_type(0)
            for j in range(b * BLOCK, min((b + 1) * BLOCK, a.shape[0])):
                total += total_type(a[j])
            starts[b] = total
        before = total_type(0)
        for b in range(starts.shape[0]):
            block = starts[b]
            starts[b] = before
            before = before + block
        for b in range(starts.shape[0]):
            running = starts[b]
            for j in range(b * BLOCK, min((b + 1) * BLOCK, a.shape[0])):
                running = running + total_type(a[j])
                out[j] = running

    @kernel
    def rows(a: NDArray[number, 2], out: NDArray[total_type, 2]) -> None:
        for r in range(out.shape[0]):
            running = total_type(0)
            for j in range(out.shape[1]):
                running = running + total_type(a[r, j])
                out[r, j] = running

    @kernel
    def columns(a: NDArray[number, 3], out: NDArray[total_type, 3]) -> None:
        for r in range(out.shape[0]):
            for c in range(out.shape[2]):
                out[r, 0, c] = total_type(a[r, 0, c])
            for j in range(1, out.shape[1]):
                for c in range(out.shape[2]):
                    out[r, j, c] = out[r, j - 1, c] + total_type(a[r, j, c])

    return {"whole": whole, "rows": rows, "columns": columns}[form]
