"""Calls with arrays that are too short for what every launch indexes are refused beforehand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from language_support import DEVICES

import turnout as tn
from turnout import CallError, NDArray, OutOfBoundsError, Param, f64, i64


@tn.func
def put(b: Any, i: Any, x: Any) -> None:
    b[i] = x


@tn.kernel
def double(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0]):
        put(b, i, a[i] * 2)


@tn.kernel
def backwards(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0] - 1, -1, -1):
        b[i] = a[i]


@tn.kernel
def matmul(a: NDArray[f64, 2], b: NDArray[f64, 2], c: NDArray[f64, 2]) -> None:
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            total = 0.0
            for k in range(a.shape[1]):
                total += a[i, k] * b[k, j]
            c[i, j] = total


@tn.kernel
def first_n(a: NDArray[f64, 1], n: Param, b: NDArray[f64, 1]) -> None:
    for i in range(n):
        b[2 * i + 1] = a[i]


@tn.kernel
def scan(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
    for i in range(1, a.shape[0]):
        a[i] = a[i - 1] + b[i]


@tn.kernel
def last(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
    b[0] = a[-1]


@tn.kernel
def conditional(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0]):
        if i < b.shape[0]:
            b[i] = a[i]


@tn.kernel
def early(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0]):
        if a[i] < 0:
            break
        b[i] = a[i]


@tn.kernel
def gather(a: NDArray[f64, 1], at: NDArray[i64, 1], b: NDArray[f64, 1]) -> None:
    for i in range(at.shape[0]):
        b[i] = a[at[i]]


@tn.kernel
def triangle(n: Param, a: NDArray[f64, 1]) -> None:
    for i in range(n):
        for j in range(i):
            a[j] = 1.0


@tn.kernel(debug=True)
def checked(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0]):
        b[i] = a[i]


ones, zeros = np.ones, np.zeros


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kernel", "arguments", "problem"),
    [
        (double, (ones(4), zeros(3)), r"argument 'b' has shape \(3,\), and line \d+ of the kernel "
         r"indexes its axis 0 up to 3"),
        (backwards, (ones(4), zeros(3)), "'b' .* up to 3$"),
        (matmul, (ones((3, 4)), ones((3, 6)), zeros((3, 6))), "'b' .* axis 0 up to 3$"),
        (matmul, (ones((3, 4)), ones((4, 6)), zeros((2, 5))), "(?s)'c' .* axis 0 up to 2\n.* 'c' "
         r".* axis 1 up to 5$"),
        (first_n, (ones(4), 5, zeros(20)), "'a' .* up to 4$"),
        (first_n, (ones(5), 5, zeros(9)), "'b' .* up to 9$"),
        (scan, (ones(4), ones(3)), "'b' .* up to 3$"),
        (last, (ones(0), zeros(1)), "'a' .* down to -1$"),
        (last, (ones(1), zeros(0)), "'b' .* up to 0$"),
    ],
)  # fmt: skip
def test_too_short(device: str, kernel: tn.Kernel, arguments: Any, problem: str) -> None:
    before = [np.copy(argument) for argument in arguments]
    with pytest.raises(CallError, match=problem):
        kernel(*arguments, device=device)
    for argument, old in zip(arguments, before, strict=True):
        np.testing.assert_array_equal(argument, old)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [
        (double, (ones(4), zeros(4))),
        (double, (ones(4), zeros(9))),
        (double, (ones(0), zeros(0))),
        (backwards, (ones(4), zeros(4))),
        (backwards, (ones(0), zeros(0))),
        (matmul, (ones((0, 4)), ones((3, 6)), zeros((2, 5)))),
        (matmul, (ones((3, 0)), ones((0, 6)), zeros((3, 6)))),
        (first_n, (ones(5), 5, zeros(10))),
        (first_n, (ones(0), 0, zeros(0))),
        (first_n, (ones(0), -3, zeros(0))),
        (scan, (ones(1), ones(0))),
        (last, (ones(1), zeros(1))),
        (conditional, (ones(4), zeros(3))),
        (early, (-ones(4), zeros(0))),
        (gather, (ones(2), np.array([1, -2, 0]), zeros(3))),
        (triangle, (3, zeros(2))),
    ],
)
def test_long_enough(device: str, kernel: tn.Kernel, arguments: Any) -> None:
    kernel(*arguments, device=device)


@pytest.mark.parametrize("device", DEVICES)
def test_debug_tells_the_first_index_that_is_out(device: str) -> None:
    with pytest.raises(OutOfBoundsError, match="index 3 is out of bounds for axis 0 of 'b'"):
        checked(ones(5), zeros(3), device=device)
