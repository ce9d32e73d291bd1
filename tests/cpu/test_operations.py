"""Every row of the table of operations, every cast, against their meaning in NumPy."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit_builder import UnitBuilder

import turnout_cpu
from turnout.plugin import OPERATIONS, Options, ir

_KINDS = {"float": "f", "integer": "iu", "number": "fiu", "bits": "iub", "any": "fiub"}
EXACT_CASES = [
    (name, dtype)
    for name, row in OPERATIONS.items()
    if row.is_exact
    for dtype in ir.ALL_DTYPES
    if dtype.kind in _KINDS[row.operands]
]
MATH_CASES = [
    (name, dtype)
    for name, row in OPERATIONS.items()
    if not row.is_exact
    for dtype in (ir.f32, ir.f64)
]


def special_values(dtype: ir.DType) -> list:
    """Values at which definitions differ: zeros, limits, halves, infinities, NaN."""
    if dtype.is_bool:
        return [False, True]
    if dtype.is_float:
        limits = np.finfo(dtype.dtype)
        positive = [
            0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 7.25, 1e-3, 0.1, 0.3, 1e10, 1e300 if dtype.bits == 64
            else 1e38, float(limits.max), float(limits.tiny), float(limits.smallest_subnormal),
            np.inf,
        ]  # fmt: skip
        return [*positive, *(-x for x in positive), np.nan]
    small = [0, 1, 2, 3, 5, 7, dtype.bits - 1, dtype.bits, dtype.bits + 1]
    limits = [dtype.maximum, dtype.maximum - 1, dtype.minimum, dtype.minimum + 1]
    negative = [-x for x in small[1:]] if dtype.kind == "i" else []
    return small + limits + negative


def operands_of(name: str, dtype: ir.DType, arity: int) -> list[np.ndarray]:
    values = [np.array(special_values(dtype), dtype.dtype)] * arity
    if name == "select":
        values[0] = np.array([False, True])
    grids = np.meshgrid(*values, indexing="ij")
    return [grid.ravel() for grid in grids]


def operation_unit(name: str, dtype: ir.DType) -> ir.Unit:
    row = OPERATIONS[name]
    b = UnitBuilder(f"{name}_{dtype}")
    types = [dtype] * row.arity
    if name == "select":
        types[0] = ir.bool_
    names = [b.array(f"x{k}", kind) for k, kind in enumerate(types)]
    b.array("out", ir.bool_ if row.result == "bool" else dtype, written=True)
    (i,) = b.space("out")
    values = [b.load(array, kind, i) for array, kind in zip(names, types, strict=True)]
    b.store("out", b.compute(name, *values), i)
    return b.unit()


def evaluate(name: str, operands: list[np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(OPERATIONS[name].evaluate(*operands))


def assert_same_bits(actual: np.ndarray, expected: np.ndarray, operands: list[np.ndarray]) -> None:
    """Equal in every bit, but any NaN is as good as another."""
    assert actual.dtype == expected.dtype
    same = actual.view(f"u{actual.itemsize}") == expected.view(f"u{actual.itemsize}")
    if actual.dtype.kind == "f":
        same |= np.isnan(actual) & np.isnan(expected)
    first = np.flatnonzero(~same)[:5]
    shown = [[x[k] for x in operands] + [actual[k], expected[k]] for k in first]
    assert same.all(), f"operands, actual, expected: {shown}"


@pytest.mark.parametrize(("name", "dtype"), EXACT_CASES, ids=str)
def test_exact_operations_agree_with_numpy(load, name, dtype):
    operands = operands_of(name, dtype, OPERATIONS[name].arity)
    expected = evaluate(name, operands)
    out = np.zeros_like(expected)
    load(operation_unit(name, dtype))((*operands, out), out.size)
    assert_same_bits(out, expected, operands)


@pytest.mark.parametrize(("name", "dtype"), MATH_CASES, ids=str)
def test_math_functions_keep_their_budget(load, name, dtype):
    operands = operands_of(name, dtype, OPERATIONS[name].arity)
    wide = [operand.astype(np.float64) for operand in operands]
    with np.errstate(over="ignore"):
        expected = evaluate(name, wide).astype(dtype.dtype)
    out = np.zeros_like(expected)
    load(operation_unit(name, dtype))((*operands, out), out.size)
    budget = OPERATIONS[name].ulp_f32 if dtype is ir.f32 else OPERATIONS[name].ulp_f64
    for *x, actual, wanted in zip(*operands, out, expected, strict=True):
        is_close = actual == wanted or abs(actual - wanted) <= budget * np.spacing(abs(wanted))
        is_nan = math.isnan(actual) and math.isnan(wanted)
        assert is_close or is_nan, (x, actual, wanted)


@pytest.mark.parametrize(
    ("source", "target"), list(itertools.product(ir.ALL_DTYPES, ir.ALL_DTYPES)), ids=str
)
def test_casts(load, source, target):
    values = np.array(special_values(source), source.dtype)
    b = UnitBuilder(f"cast_{source}_{target}")
    b.array("x", source)
    b.array("out", target, written=True)
    (i,) = b.space("x")
    b.store("out", b.cast(target, b.load("x", source, i)), i)
    out = np.zeros(values.size, target.dtype)
    load(b.unit())((values, out), values.size)
    assert_same_bits(out, _converted(values, source, target), [values])


def _converted(values: np.ndarray, source: ir.DType, target: ir.DType) -> np.ndarray:
    if source.is_float and target.is_integer:
        exact = [
            0
            if math.isnan(x)
            else target.maximum
            if x >= target.maximum
            else target.minimum
            if x <= target.minimum
            else int(x)
            for x in values.tolist()
        ]
        return np.array(exact, target.dtype)
    with np.errstate(all="ignore"):
        return values.astype(target.dtype)


@pytest.mark.parametrize("dtype", [ir.f32, ir.f64], ids=str)
def test_float_division_on_random_numbers(load, dtype):
    units = {name: load(operation_unit(name, dtype)) for name in ("floor_divide", "remainder")}

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.floats(width=dtype.bits), min_size=2, max_size=20))
    def check(numbers):
        x = np.array(numbers, dtype.dtype)
        operands = [x[:-1].copy(), x[1:].copy()]
        for name, launcher in units.items():
            out = np.zeros(x.size - 1, dtype.dtype)
            launcher((*operands, out), out.size)
            assert_same_bits(out, evaluate(name, operands), operands)

    check()


def test_bool_arrays_take_any_nonzero_byte_for_true(load):
    x = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    out = np.zeros(4, np.bool_)
    load(operation_unit("bit_not", ir.bool_))((x, out), 4)
    assert out.view(np.uint8).tolist() == [1, 0, 0, 0]


def test_operations_are_not_contracted(load):
    """x * x - y is rounded twice, as written, also where the processor has a fused operation."""
    b = UnitBuilder("contraction")
    b.array("x", ir.f64)
    b.array("y", ir.f64)
    b.array("out", ir.f64, written=True)
    (i,) = b.space("x")
    x, y = b.load("x", ir.f64, i), b.load("y", ir.f64, i)
    b.store("out", b.compute("subtract", b.compute("multiply", x, x), y), i)
    x = np.random.default_rng(0).normal(size=1001)
    y, out = x * x, np.ones(1001)
    load(b.unit())((x, y, out), x.size)
    assert (out == 0).all()


def test_fast_math_lets_llvm_reassociate_and_keeps_nan(load, device):
    b = UnitBuilder("relaxed", fast_math=True)
    b.array("x", ir.f64)
    b.array("out", ir.f64, written=True)
    (i,) = b.space("x")
    x = b.load("x", ir.f64, i)
    b.store("out", b.compute("subtract", b.compute("add", x, 1.0), x), i)
    unit = b.unit()
    options = Options(keep_text=True)
    text = turnout_cpu.turnout_compile(unit, device.target, options).metadata["text:llvm-ir"]
    assert "fadd reassoc nsz arcp contract afn double" in text
    assert "nnan" not in text
    out = np.zeros(1)
    load(unit)((np.array([1e300]), out), 1)
    assert out[0] == 1.0
