"""Exact results and error bounds for operations of linear algebra."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

FLOATS = ("float32", "float64")
EDGES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 70)


def sampled_sizes(count: int, axes: int, seed: int = 0) -> Iterator[tuple[int, ...]]:
    """Sizes from 0 to 70: every value on every axis, with each other value at random."""
    random = np.random.default_rng(seed)
    for size, axis in itertools.product(range(71), range(axes)):
        sizes = [int(random.choice(EDGES)) for _ in range(axes)]
        sizes[axis] = size
        if size in EDGES or (size + axis) % count == 0:
            yield tuple(sizes)


def numbers(random: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Numbers of very different magnitudes."""
    return (random.standard_normal(shape) * 2.0 ** random.integers(-8, 9, shape)).astype(dtype)


def assert_product(found: Any, a: Any, b: Any) -> None:
    """Each element is a sum of k rounded products: in any order off by k + 1 roundings at most."""
    exact = np.longdouble(a) @ np.longdouble(b)
    magnitude = np.abs(np.longdouble(a)) @ np.abs(np.longdouble(b))
    terms = a.shape[-1]
    unit = np.longdouble(np.finfo(a.dtype).eps) / 2 + np.finfo(np.longdouble).eps
    assert np.shape(found) == np.shape(exact)
    assert np.asarray(found).dtype == a.dtype
    assert np.all(np.abs(found - exact) <= (terms + 1) * unit * magnitude)


def layouts(array: Any) -> Iterator[Any]:
    """The same elements as they are, transposed, strided, reversed, and at an odd address."""
    yield array
    yield np.asfortranarray(array)
    wide = np.zeros(tuple(2 * length for length in array.shape), array.dtype)
    view = wide[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    yield view
    backwards = tuple(slice(None, None, -1) for _ in array.shape)
    yield np.ascontiguousarray(array[backwards])[backwards]
    memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
    unaligned = memory.view(array.dtype).reshape(array.shape)
    unaligned[...] = array
    yield unaligned
