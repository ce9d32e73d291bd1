"""The size of an iteration space, computed on the host, against Python's own ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import turnout as tn
from turnout import NDArray, Param, Scalar, f64, i64, ir
from turnout.positions import position_count


@tn.kernel
def ranged(a: NDArray[i64, 1], start: Param[i64], stop: Param[i64], step: Param[i64]) -> None:
    for i in tn.parallel(range(start, stop, step)):
        a[i] = i


@tn.kernel
def halved(a: NDArray[i64, 1], n: Param[i64]) -> None:
    for i in range(n // 2 - 1, -1, -1):
        a[i] = i


@tn.kernel
def nested(a: NDArray[f64, 3]) -> None:
    for i in range(1, a.shape[0] - 1):
        for j in range(0, a.shape[1], 2):
            for k in range(a.shape[2]):
                a[i, j, k] = 1


@tn.kernel
def truncated(a: NDArray[i64, 1], x: Param[f64]) -> None:
    for i in tn.parallel(range(int(x * a.shape[0]))):
        a[i] = i


@tn.kernel
def smaller(a: NDArray[i64, 1], b: NDArray[i64, 1]) -> None:
    for i in range(min(a.shape[0], b.shape[0])):
        a[i] = b[i]


@tn.kernel
def serial(a: NDArray[i64, 1]) -> None:
    for i in tn.serial(range(a.shape[0])):
        a[i] = i


@tn.kernel
def samples_kernel(x: Scalar) -> Scalar:
    return x + 1


def unit_of(kernel: tn.Kernel) -> ir.Unit:
    (unit,) = kernel.lower(kernel.default_types()).plan.units
    return unit


def counted(kernel: tn.Kernel, **arguments: Any) -> int:
    unit = unit_of(kernel)
    args = tuple(arguments[parameter.name] for parameter in unit.parameters)
    return position_count(unit)(args)


NUMBERS = st.integers(-50, 50)


@given(start=NUMBERS, stop=NUMBERS, step=NUMBERS.filter(bool))
def test_any_range_with_bounds_of_the_call(start: int, stop: int, step: int) -> None:
    a = np.zeros(1, np.int64)
    assert counted(ranged, a=a, start=start, stop=stop, step=step) == len(range(start, stop, step))


@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [
        (0, 2**62, 1),
        (-(2**61), 2**61 - 1, 3),
        (2**61, -(2**61) + 1, -7),
        (-(2**61), 2**61, 2**60),
        (0, 2**31 + 7, 1),
    ],
)
def test_ranges_beyond_32_bits(start: int, stop: int, step: int) -> None:
    a = np.zeros(1, np.int64)
    numbers = range(start, stop, step)
    expected = (numbers[-1] - start) // step + 1  # its len() is limited to 63 bits
    assert counted(ranged, a=a, start=start, stop=stop, step=step) == expected


@pytest.mark.parametrize("n", [-3, 0, 1, 2, 3, 9, 10])
def test_a_computed_bound(n: int) -> None:
    assert counted(halved, a=np.zeros(9, np.int64), n=n) == len(range(n // 2 - 1, -1, -1))


@pytest.mark.parametrize(
    "shape", [(5, 4, 3), (2, 4, 3), (1, 1, 1), (0, 5, 5), (5, 0, 5), (4, 5, 0)]
)
def test_a_nest_is_a_product(shape: tuple[int, int, int]) -> None:
    expected = len(range(1, shape[0] - 1)) * len(range(0, shape[1], 2)) * shape[2]
    assert counted(nested, a=np.zeros(shape)) == expected


@pytest.mark.parametrize(
    ("x", "expected"), [(0.5, 5), (0.99, 9), (0.0, 0), (-1.0, 0), (float("nan"), 0)]
)
def test_a_bound_from_a_float(x: float, expected: int) -> None:
    assert counted(truncated, a=np.zeros(10, np.int64), x=x) == expected


def test_the_smaller_of_two_lengths() -> None:
    a, b = np.zeros(3, np.int64), np.zeros(8, np.int64)
    assert counted(smaller, a=a, b=b) == 3
    assert counted(smaller, a=b, b=a) == 3


def test_a_unit_without_a_space_runs_once() -> None:
    assert counted(serial, a=np.zeros(0, np.int64)) == 1


def test_samples_are_what_the_call_says() -> None:
    unit = unit_of(samples_kernel)
    place = [parameter.name for parameter in unit.parameters].index("samples")
    args: list[Any] = [np.zeros(4), np.zeros(4), None]
    for samples in (0, 3, 2**40):
        args[place] = samples
        assert position_count(unit)(tuple(args)) == samples
