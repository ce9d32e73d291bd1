"""Comparison of results: bit for bit, or in units in the last place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def assert_same_bits(got: Array, expected: Array, what: str, inputs: Sequence[Array] = ()) -> None:
    """Fail unless two arrays have one dtype, one shape and the same bits; all NaNs are equal.

    Parameters
    ----------
    got, expected : numpy.ndarray
    what : str
        What was computed, for the message.
    inputs : sequence of numpy.ndarray
        Arrays of the same length whose elements the message shows.
    """
    _assert_same_kind(got, expected, what)
    differs = _bits(got) != _bits(expected)
    if got.dtype.kind == "f":
        differs &= ~(np.isnan(got) & np.isnan(expected))
    _fail_where(differs, got, expected, what, inputs, "differs from")


def assert_within_ulp(
    got: Array, expected: Array, budget: float, what: str, inputs: Sequence[Array] = ()
) -> None:
    """Fail unless every element is at most `budget` units in the last place away.

    NaN agrees with NaN only, and zeros have one sign. The largest number and infinity are
    neighbours.
    """
    _assert_same_kind(got, expected, what)
    differs = ~(ulp_distance(got, expected) <= budget)
    _fail_where(differs, got, expected, what, inputs, f"is more than {budget} ULP from")


def assert_accurate_f32(
    got: Array, exact: Array, budget: float, what: str, inputs: Sequence[Array] = ()
) -> None:
    """Fail unless every float32 is at most `budget` units in the last place from a float64."""
    with np.errstate(over="ignore"):
        rounded = exact.astype(np.float32)
    _assert_same_kind(got, rounded, what)
    # Infinity stands for the number that would follow the largest one.
    limit = 2.0**128
    error = np.abs(np.clip(got.astype(np.float64), -limit, limit) - np.clip(exact, -limit, limit))
    largest = np.finfo(np.float32).max
    _, exponent = np.frexp(np.clip(exact, -largest, largest))
    unit = np.ldexp(1.0, np.maximum(exponent - 24, -149))
    accurate = (error <= budget * unit) | (np.isnan(got) & np.isnan(exact))
    what = f"{what}, against {exact.dtype}"
    _fail_where(~accurate, got, rounded, what, inputs, f"is more than {budget} ULP from")


def ulp_distance(got: Array, expected: Array) -> Array:
    """How many floats lie between two arrays of floats, as float64; infinite where they clash."""
    a, b = _ordinals(got), _ordinals(expected)
    # The difference of 64-bit ordinals needs 64 unsigned bits.
    apart = np.maximum(a, b).view(np.uint64) - np.minimum(a, b).view(np.uint64)
    distance = apart.astype(np.float64)
    clash = np.isnan(got) != np.isnan(expected)
    clash |= (got == 0) & (expected == 0) & (np.signbit(got) != np.signbit(expected))
    agree = np.isnan(got) & np.isnan(expected)
    return np.where(clash, np.inf, np.where(agree, 0.0, distance))


def _ordinals(values: Array) -> Array:
    """The place of each float in the order of all floats; both zeros have place 0."""
    bits = _bits(values).view(f"i{values.dtype.itemsize}")
    return np.where(bits < 0, np.iinfo(bits.dtype).min - bits, bits).astype(np.int64)


def _bits(values: Array) -> Array:
    contiguous = np.ascontiguousarray(values).reshape(values.shape)
    return contiguous.view(f"u{values.dtype.itemsize}")


def _assert_same_kind(got: Array, expected: Array, what: str) -> None:
    if got.dtype != expected.dtype or got.shape != expected.shape:
        raise AssertionError(
            f"{what}: got {got.dtype} of shape {got.shape}, "
            f"expected {expected.dtype} of shape {expected.shape}"
        )


def _fail_where(
    differs: Array, got: Array, expected: Array, what: str, inputs: Sequence[Array], relation: str
) -> None:
    if not differs.any():
        return
    place = tuple(int(axis) for axis in np.argwhere(differs)[0])
    given = ", ".join(repr(values[place]) for values in inputs)
    raise AssertionError(
        f"{what}: {int(differs.sum())} of {differs.size} values are wrong. First at {place}"
        f"{f', for the operands {given}' if given else ''}: got {got[place]!r}, which {relation} "
        f"{expected[place]!r}"
    )
