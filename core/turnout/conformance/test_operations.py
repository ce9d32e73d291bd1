"""Every operation and cast in every type, on edge values and random ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from turnout.plugin import OPERATIONS, Operation, ir

from .accuracy import CORRECTLY_ROUNDED
from .cases import capabilities, operand_rows
from .compare import assert_accurate_f32, assert_same_bits, assert_within_ulp
from .device import DeviceUnderTest, outcome, reference
from .operations import (
    cast_kernel,
    cast_operands,
    guarded_kernel,
    operand_dtypes,
    operation_kernel,
    typed_casts,
    typed_rows,
)

SIZE = 3001  # more than all pairs of edges, odd
INEXACT = [name for name, row in OPERATIONS.items() if not row.is_exact]


def parameter(values: tuple[Any, ...], needs: Iterable[str], name: str) -> Any:
    """A pytest parameter that is skipped on devices without a capability."""
    return pytest.param(*values, marks=pytest.mark.needs(*needs), id=name)


def typed(names: Iterable[str]) -> list[Any]:
    """Parameters ``row, dtype`` for some operations."""
    return [
        parameter((row, dtype), needs, f"{row.name}-{dtype}")
        for row, dtype, needs in typed_rows()
        if row.name in names
    ]


def random_operands(row: Operation, dtype: ir.DType, size: int = SIZE) -> tuple[Any, ...]:
    """Edge values and random ones."""
    random = np.random.default_rng(len(row.name) + dtype.bits)
    return operand_rows(random, operand_dtypes(row, dtype), size)


@pytest.mark.parametrize(("row", "dtype"), typed(OPERATIONS))
def test_operation(device: DeviceUnderTest, row: Operation, dtype: ir.DType) -> None:
    """Exact operations give the same bits; the others agree as far as two budgets allow."""
    kernel = operation_kernel(row.name, dtype)
    operands = random_operands(row, dtype)
    arguments = (*operands, np.zeros(SIZE, ir.bool_ if row.result == "bool" else dtype))
    got = outcome(device, kernel, arguments)[-1]
    expected = outcome(reference(), kernel, arguments)[-1]
    if row.is_exact:
        assert_same_bits(got, expected, kernel.__name__, operands)
    else:
        budget = row.ulp_f32 if dtype is ir.f32 else row.ulp_f64
        assert_within_ulp(got, expected, 2 * budget, kernel.__name__, operands)


@pytest.mark.parametrize("name", INEXACT)
def test_accuracy_f32(device: DeviceUnderTest, name: str) -> None:
    """Math functions are within their budget of the exact value."""
    row = OPERATIONS[name]
    operands = random_operands(row, ir.f32)
    kernel = operation_kernel(name, ir.f32)
    got = outcome(device, kernel, (*operands, np.zeros(SIZE, np.float32)))[-1]
    with np.errstate(all="ignore"):
        exact = row.evaluate(*(operand.astype(np.float64) for operand in operands))
    assert_accurate_f32(got, exact, row.ulp_f32, kernel.__name__, operands)


@pytest.mark.needs("f64")
@pytest.mark.parametrize("name", INEXACT)
def test_accuracy_f64(device: DeviceUnderTest, name: str) -> None:
    """The same in f64, where exact values come from a table."""
    rows = [[float.fromhex(text) for text in row] for row in CORRECTLY_ROUNDED[name]]
    *operands, exact = (np.array(column) for column in zip(*rows, strict=True))
    kernel = operation_kernel(name, ir.f64)
    got = outcome(device, kernel, (*operands, np.zeros_like(exact)))[-1]
    assert_within_ulp(got, exact, OPERATIONS[name].ulp_f64, kernel.__name__, operands)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        parameter((source, target), needs, f"{source}-{target}")
        for source, target, needs in typed_casts()
    ],
)
def test_cast(device: DeviceUnderTest, source: ir.DType, target: ir.DType) -> None:
    """Integers wrap, floats saturate to integers, NaN becomes 0 and is true."""
    values = cast_operands(np.random.default_rng(5), source, 501)
    kernel = cast_kernel(source, target)
    got = outcome(device, kernel, (values, np.zeros(501, target)))[-1]
    with np.errstate(all="ignore"):
        expected = _converted(values, target)
    assert_same_bits(got, expected, kernel.__name__, [values])


def _converted(values: Any, target: ir.DType) -> Any:
    """The casts of the language in Python's unbounded integers."""
    if values.dtype.kind != "f" or not target.is_integer:
        return values.astype(target)

    def saturated(value: float) -> int:
        if np.isnan(value):
            return 0
        if np.isinf(value):
            return target.maximum if value > 0 else target.minimum
        return min(max(int(value), target.minimum), target.maximum)

    return np.array([saturated(float(value)) for value in values], target)


FLOAT_TYPES = [parameter((t,), capabilities(t), str(t)) for t in (ir.f32, ir.f64)]


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize("name", INEXACT)
def test_same_bits_in_any_company(device: DeviceUnderTest, name: str, dtype: ir.DType) -> None:
    """What a sample gives does not depend on the batch, its place in it, or its neighbours."""
    size = 83
    row = OPERATIONS[name]
    kernel = operation_kernel(name, dtype)
    operands = random_operands(row, dtype, size)
    out = np.zeros(size, dtype)
    whole = outcome(device, kernel, (*operands, out))[-1]

    def check(what: str, part: slice, got: Any) -> None:
        given = [operand[part] for operand in operands]
        assert_same_bits(got, whole[part], f"{kernel.__name__}, {what}", given)

    for place in range(size):
        one = slice(place, place + 1)
        check("alone", one, _run_part(device, kernel, operands, one, dtype))
    for what, part in {
        "shifted by 1": slice(1, None),
        "shifted by 3": slice(3, None),
        "the first half": slice(0, 40),
        "the second half": slice(40, None),
        "reversed": slice(None, None, -1),
        "every third": slice(None, None, 3),
    }.items():
        check(what, part, _run_part(device, kernel, operands, part, dtype))

    taken = np.arange(size) % 3 != 1
    uniform_place = size // 2
    numbers = [float(operand[uniform_place]) for operand in operands]
    guarded, uniform = outcome(
        device,
        guarded_kernel(name, dtype),
        (taken, *numbers, *operands, np.zeros(size, dtype), np.zeros(size, dtype)),
    )[-2:]
    assert_same_bits(guarded[taken], whole[taken], f"{kernel.__name__}, under a condition")
    expected = np.full(size, whole[uniform_place])
    assert_same_bits(uniform, expected, f"{kernel.__name__}({numbers}), the same for all samples")


def _run_part(
    device: DeviceUnderTest, kernel: Any, operands: tuple[Any, ...], part: slice, dtype: ir.DType
) -> Any:
    views = [operand[part] for operand in operands]
    out = np.zeros(len(views[0]), dtype)
    device.run(kernel, *views, out)
    return out
