"""Reductions over parallel loops: one order on every device, for every number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from . import kernels
from .compare import assert_same_bits
from .device import DeviceUnderTest
from .reductions import combined

SIZES = (0, 1, 2, 31, 32, 33, 100, 2047, 2048, 2049, 4095, 40_000, 65_537, 2048 * 1025 + 7)


def _wide_range(size: int, dtype: Any) -> NDArray[Any]:
    """Numbers of which every order of addition gives another sum."""
    random = np.random.default_rng(size)
    numbers = random.standard_normal(size) * 2.0 ** random.integers(-12, 13, size)
    return numbers.astype(dtype)


@pytest.mark.parametrize("size", SIZES)
def test_a_sum_has_the_documented_order(device: DeviceUnderTest, size: int) -> None:
    """Whatever the size, the bits are those of the order that is written down."""
    numbers, out = _wide_range(size, np.float32), np.zeros(1, np.float32)
    device.run(kernels.total_of_floats, numbers, out)
    expected = np.float32(0) + combined(numbers, np.add, -0.0)
    assert_same_bits(out, np.array([expected]), f"the sum of {size} numbers")


@pytest.mark.needs("f64")
@pytest.mark.parametrize("size", SIZES)
def test_a_sum_of_doubles_has_the_documented_order(device: DeviceUnderTest, size: int) -> None:
    """As of float32."""
    numbers, out = _wide_range(size, np.float64), np.zeros(1)
    device.run(kernels.total_of_doubles, numbers, out)
    expected = 0.0 + combined(numbers, np.add, -0.0)
    assert_same_bits(out, np.array([expected]), f"the sum of {size} numbers")


@pytest.mark.parametrize(
    "shape", [(0, 4), (4, 0), (1, 1), (700, 3), (5, 1024), (5, 1025), (3, 2048), (3, 5000)]
)
def test_a_nest_has_the_documented_order(device: DeviceUnderTest, shape: tuple[int, int]) -> None:
    """Blocks have whole rows, or parts of one."""
    random = np.random.default_rng(shape)
    numbers = (1 + random.standard_normal(shape) * 0.01).astype(np.float32)
    out = np.zeros(1, np.float32)
    device.run(kernels.product_of_table, numbers, out)
    expected = np.float32(1) * combined(numbers, np.multiply, 1)
    assert_same_bits(out, np.array([expected]), f"the product of a table of {shape}")


@pytest.mark.parametrize("step", [-1, 2, -3])
def test_views_are_reduced_like_copies(device: DeviceUnderTest, step: int) -> None:
    """The order is one of positions, wherever the elements are."""
    memory = _wide_range(30_000, np.float32)
    view, out = memory[::step], np.zeros((2, 1), np.float32)
    device.run(kernels.total_of_floats, view, out[0])
    device.run(kernels.total_of_floats, view.copy(), out[1])
    assert_same_bits(out[0], out[1], f"the sum of a view with step {step}")


def test_the_error_is_bounded(device: DeviceUnderTest) -> None:
    """The bound of docs/kernels.md, where every addition rounds in one direction."""
    size = 1_000_000
    numbers, out = np.full(size, 0.1, np.float32), np.zeros(1, np.float32)
    device.run(kernels.total_of_floats, numbers, out)
    exact = float(np.float32(0.1)) * size
    additions = 64 + -(-size // (2048 * 1024)) + 3 * 32
    assert abs(float(out[0]) - exact) <= additions * 2.0**-24 * exact * 1.001
