"""Floating point as IEEE 754 has it: nothing contracted, reassociated or flushed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from turnout.plugin import ir

from . import kernels
from .cases import anything, edges
from .compare import assert_same_bits
from .device import DeviceUnderTest
from .operations import operation_kernel

WIDTHS = [
    pytest.param(np.float32, id="f32"),
    pytest.param(np.float64, id="f64", marks=pytest.mark.needs("f64")),
]


@pytest.mark.parametrize("width", WIDTHS)
def test_no_contraction(device: DeviceUnderTest, width: Any) -> None:
    """The product is rounded before it is added, unlike in a fused multiply-add."""
    epsilon = np.finfo(width).eps
    a = np.full(67, 1 + epsilon, width)
    c = np.full(67, -(1 + 2 * epsilon), width)
    added, subtracted = device.run(kernels.contraction, a, a.copy(), c)
    assert_same_bits(added, np.zeros(67, width), "a * b + c")
    assert_same_bits(subtracted, np.full(67, 2 * c[0]), "c - a * b")


@pytest.mark.parametrize("width", WIDTHS)
def test_no_reassociation(device: DeviceUnderTest, width: Any) -> None:
    """Operations are done in the order of the source."""
    huge = np.finfo(width).max
    a = np.array([1e10, huge, huge, 1, -huge] * 13, width)
    b = np.array([1e-10, huge, -huge, 1e-20, 1e-10] * 13, width)
    c = np.array([-1e10, -huge, huge, -1, huge] * 13, width)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = (a + b - a, (a + b) + c, a * b * c)
    for got, right in zip(device.run(kernels.association, a, b, c), expected, strict=True):
        assert_same_bits(got, right, "a sum or product of three", [a, b, c])


@pytest.mark.parametrize("width", WIDTHS)
def test_signed_zeros(device: DeviceUnderTest, width: Any) -> None:
    """``x + 0.0`` is not ``x``, and ``0.0 - x`` is not ``-x``."""
    x = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan] * 9, width)
    zero = width(0)
    with np.errstate(invalid="ignore"):
        expected = (x + zero, x - zero, x * zero, zero - x, -x)
    for got, right in zip(device.run(kernels.signed_zeros, x), expected, strict=True):
        assert_same_bits(got, right, "an expression with zero", [x])


@pytest.mark.parametrize("width", WIDTHS)
def test_nan_compares_with_nothing(device: DeviceUnderTest, width: Any) -> None:
    """And ``min`` and ``max`` give what Python's give."""
    x = np.array([np.nan, 1.0, np.nan, 0.0, -0.0, 2.0] * 11, width)
    y = np.array([1.0, np.nan, np.nan, -0.0, 0.0, 1.0] * 11, width)
    less, not_less, unequal, low, high = device.run(kernels.nan_comparisons, x, y)
    assert less.tolist() == [0, 0, 0, 0, 0, 0] * 11
    assert not_less.tolist() == [1, 1, 1, 1, 1, 1] * 11
    assert unequal.tolist() == [1, 0, 1, 0, 0, 0] * 11
    pairs = list(zip(x, y, strict=True))
    assert_same_bits(low, np.array([min(a, b) for a, b in pairs]), "min", [x, y])
    assert_same_bits(high, np.array([max(a, b) for a, b in pairs]), "max", [x, y])


@pytest.mark.parametrize("width", WIDTHS)
def test_subnormals_are_kept(device: DeviceUnderTest, width: Any) -> None:
    """As operands and as results."""
    info = np.finfo(width)
    x = np.array([info.tiny, info.smallest_subnormal, -info.tiny, info.tiny * 3] * 17, width)
    for factor in (0.5, 1.0, 0.75, 2.0, 1 / info.eps):
        (got,) = device.run(kernels.scaled, x, factor)
        assert_same_bits(got, x * width(factor), f"subnormals times {factor}", [x])


@pytest.mark.needs("correct_rounding")
def test_division_is_rounded_correctly(device: DeviceUnderTest) -> None:
    """The quotient in f64, rounded once more, is the right one in f32."""
    random = np.random.default_rng(7)
    x = np.concatenate([anything(random, ir.f32, 20_000), np.repeat(edges(ir.f32), 55)])
    y = np.concatenate([anything(random, ir.f32, 20_000), np.tile(edges(ir.f32), 55)])
    got = np.zeros_like(x)
    device.run(operation_kernel("divide", ir.f32), x, y, got)
    with np.errstate(all="ignore"):
        exact = (x.astype(np.float64) / y.astype(np.float64)).astype(np.float32)
    assert_same_bits(got, exact, "f32 division", [x, y])


@pytest.mark.needs("correct_rounding")
def test_square_root_is_rounded_correctly(device: DeviceUnderTest) -> None:
    """The same for the root."""
    x = np.concatenate([anything(np.random.default_rng(8), ir.f32, 20_000), edges(ir.f32)])
    got = np.zeros_like(x)
    device.run(operation_kernel("sqrt", ir.f32), x, got)
    with np.errstate(all="ignore"):
        exact = np.sqrt(x.astype(np.float64)).astype(np.float32)
    assert_same_bits(got, exact, "f32 square root", [x])
