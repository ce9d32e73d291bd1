"""The intermediate representation: operations, verifier, printer, transforms."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnout import ir
from turnout.ir import ALL_DTYPES, OPERATIONS, DType, Value, bool_, f32, f64, i8, i32, i64, u8
from turnout.ir.transform import fresh_values, rename, with_regions

from .units import UnitBuilder, bits, random_unit

FLOATS = (f32, f64)
INTEGERS = tuple(dtype for dtype in ALL_DTYPES if dtype.is_integer)
KINDS = {"float": "f", "integer": "iu", "number": "fiu", "bits": "iub", "any": "fiub"}
NAN, INF = math.nan, math.inf


def evaluate(operation: str, *operands: Any) -> Any:
    with np.errstate(all="ignore"):
        return OPERATIONS[operation].evaluate(*operands)


def allowed(operation: ir.Operation) -> list[DType]:
    return [dtype for dtype in ALL_DTYPES if dtype.kind in KINDS[operation.operands]]


def typed_rows() -> list[Any]:
    rows = [(name, dtype) for name, row in OPERATIONS.items() for dtype in allowed(row)]
    return [pytest.param(*row, id=f"{row[0]}-{row[1]}") for row in rows]


# ---- operations: types -------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "dtype"), typed_rows())
def test_operation_gives_exactly_its_type_for_arrays_and_scalars(name: str, dtype: DType) -> None:
    row = OPERATIONS[name]
    expected = np.dtype(bool) if row.result == "bool" else dtype.dtype
    operands = [dtype(1)] * row.arity
    if name == "select":
        operands[0] = np.True_
    assert np.asarray(evaluate(name, *operands)).dtype == expected
    arrays = [np.full(5, operand) for operand in operands]
    result = evaluate(name, *arrays)
    assert (result.dtype, result.shape) == (expected, (5,))
    assert all(
        array.dtype == operand.dtype for array, operand in zip(arrays, operands, strict=True)
    )


# ---- operations on integers: Python's unbounded integers, wrapped --------------------------------


def wrapped(value: int, dtype: DType) -> int:
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if value > dtype.maximum else value


def integer_power(x: int, y: int, dtype: DType) -> int:
    if y >= 0:
        return pow(x, y, 1 << dtype.bits)
    return {1: 1, -1: -1 if y % 2 else 1}.get(x, 0)


INTEGER_MODEL: dict[str, Callable[..., int]] = {
    "add": lambda x, y, _: x + y,
    "subtract": lambda x, y, _: x - y,
    "multiply": lambda x, y, _: x * y,
    "floor_divide": lambda x, y, _: x // y if y else 0,
    "remainder": lambda x, y, _: x % y if y else 0,
    "negative": lambda x, _: -x,
    "abs": lambda x, _: abs(x),
    "sign": lambda x, _: (x > 0) - (x < 0),
    "integer_power": integer_power,
    "bit_and": lambda x, y, _: x & y,
    "bit_or": lambda x, y, _: x | y,
    "bit_xor": lambda x, y, _: x ^ y,
    "bit_not": lambda x, _: ~x,
    "shift_left": lambda x, y, dtype: x << y if 0 <= y < dtype.bits else 0,
    "shift_right": lambda x, y, dtype: x >> y if 0 <= y < dtype.bits else -(x < 0),
    "equal": lambda x, y, _: x == y,
    "not_equal": lambda x, y, _: x != y,
    "less": lambda x, y, _: x < y,
    "less_equal": lambda x, y, _: x <= y,
    "greater": lambda x, y, _: x > y,
    "greater_equal": lambda x, y, _: x >= y,
    "minimum": lambda x, y, _: min(x, y),
    "maximum": lambda x, y, _: max(x, y),
}


def test_every_integer_operation_has_a_model() -> None:
    takes_integers = {name for name, row in OPERATIONS.items() if "i" in KINDS[row.operands]}
    assert takes_integers == set(INTEGER_MODEL) | {"select"}


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", INTEGER_MODEL)
def test_integer_operation_is_that_of_python_wrapped(name: str, dtype: DType) -> None:
    near = [-9, -8, -3, -2, -1, 0, 1, 2, 3, 7, 8, dtype.bits - 1, dtype.bits, dtype.bits + 1]
    extremes = [dtype.minimum, dtype.minimum + 1, dtype.maximum - 1, dtype.maximum]
    values = [value for value in near + extremes if dtype.minimum <= value <= dtype.maximum]
    row = OPERATIONS[name]
    cases = list(product(values, repeat=row.arity))
    operands = [np.array(column, dtype) for column in zip(*cases, strict=True)]
    expected = [int(INTEGER_MODEL[name](*case, dtype)) for case in cases]
    if row.result == "same":
        expected = [wrapped(value, dtype) for value in expected]
    result = evaluate(name, *operands).tolist()
    assert dict(zip(cases, result, strict=True)) == dict(zip(cases, expected, strict=True))
    scalars = [evaluate(name, *(dtype(value) for value in case)).item() for case in cases]
    assert scalars == expected


@pytest.mark.parametrize(
    ("name", "operands", "expected"),
    [
        ("floor_divide", (-(2**31), -1), -(2**31)),
        ("remainder", (-(2**31), -1), 0),
        ("floor_divide", (7, 0), 0),
        ("remainder", (7, 0), 0),
        ("floor_divide", (-7, 2), -4),
        ("remainder", (-7, 2), 1),
        ("remainder", (7, -2), -1),
        ("abs", (-(2**31),), -(2**31)),
        ("shift_left", (1, 32), 0),
        ("shift_left", (1, -1), 0),
        ("shift_right", (-8, 40), -1),
        ("shift_right", (8, 40), 0),
        ("integer_power", (3, 21), 1870418611),
        ("integer_power", (0, -1), 0),
        ("integer_power", (-1, -3), -1),
        ("integer_power", (2, -1), 0),
    ],
)
def test_integer_corner_cases_by_hand(name: str, operands: tuple[int, ...], expected: int) -> None:
    assert evaluate(name, *(i32(operand) for operand in operands)) == expected


def test_bits_and_comparisons_of_bools() -> None:
    x, y = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    assert evaluate("bit_and", x, y).tolist() == [False, False, False, True]
    assert evaluate("bit_or", x, y).tolist() == [False, True, True, True]
    assert evaluate("bit_xor", x, y).tolist() == [False, True, True, False]
    assert evaluate("bit_not", x).tolist() == [True, True, False, False]
    assert evaluate("less", x, y).tolist() == [False, True, False, False]


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_select_takes_the_second_operand_where_true(dtype: DType) -> None:
    taken = evaluate("select", np.array([True, False]), np.ones(2, dtype), np.zeros(2, dtype))
    assert taken.tolist() == [1, 0]


# ---- exact operations on floats: IEEE 754 --------------------------------------------------------


def ieee_divide(x: float, y: float) -> float:
    if y != 0 or math.isnan(x):
        return x / y if y != 0 else NAN
    return NAN if x == 0 else math.copysign(INF, x) * math.copysign(1.0, y)


def whole(rounding: Callable[[float], int]) -> Callable[[float], float]:
    return lambda x: math.copysign(float(rounding(x)), x) if math.isfinite(x) else x


def ieee_sqrt(x: float) -> float:
    return math.sqrt(x) if not x < 0 else NAN


def ieee_fmod(x: float, y: float) -> float:
    return NAN if math.isinf(x) or y == 0 else math.fmod(x, y)


def smaller(x: float, y: float) -> float:
    if math.isnan(x) or math.isnan(y):
        return NAN
    return min((x, y), key=lambda value: (value, math.copysign(1.0, value)))


def larger(x: float, y: float) -> float:
    return -smaller(-x, -y)


FLOAT_MODEL: dict[str, Callable[..., float]] = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "divide": ieee_divide,
    "fmod": ieee_fmod,
    "floor_divide": lambda x, y: x // y if y != 0 else ieee_divide(x, y),
    "remainder": lambda x, y: x % y if y != 0 and not math.isinf(x) else NAN,
    "negative": lambda x: -x,
    "abs": abs,
    "sign": lambda x: NAN if math.isnan(x) else float((x > 0) - (x < 0)),
    "equal": lambda x, y: x == y,
    "not_equal": lambda x, y: x != y,
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
    "minimum": smaller,
    "maximum": larger,
    "sqrt": ieee_sqrt,
    "rsqrt": lambda x: ieee_divide(1.0, ieee_sqrt(x)),
    "floor": whole(math.floor),
    "ceil": whole(math.ceil),
    "round": whole(round),
    "trunc": whole(math.trunc),
    "copysign": math.copysign,
    "isnan": math.isnan,
    "isinf": math.isinf,
}

# Sums, products and quotients of these are exact in f32 or correctly rounded through f64.
SPECIAL = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    3.0,
    -7.0,
    8.25,
    2.0**20,
    INF,
    -INF,
    NAN,
]
EXTREME = {
    f32: [2.0**-149, -(2.0**-126), 3.4028234663852886e38, -3.4028234663852886e38],
    f64: [5e-324, -2.2250738585072014e-308, 1.7976931348623157e308, -1.7976931348623157e308],
}


def test_every_exact_float_operation_has_a_model() -> None:
    exact = {n for n, row in OPERATIONS.items() if row.is_exact and "f" in KINDS[row.operands]}
    assert exact == set(FLOAT_MODEL) | {"select", "fma"}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", FLOAT_MODEL)
def test_exact_float_operation_is_that_of_ieee_754(name: str, dtype: DType) -> None:
    # f32 goes through the f64 model: only // and % need operands whose results are exact there.
    floors = name in ("floor_divide", "remainder") and dtype is f32
    values = SPECIAL if floors else SPECIAL + EXTREME[dtype]
    cases = list(product(values, repeat=OPERATIONS[name].arity))
    operands = [np.array(column, dtype) for column in zip(*cases, strict=True)]
    result = evaluate(name, *operands)
    with np.errstate(all="ignore"):
        if name == "rsqrt" and dtype is f32:
            roots = [ieee_sqrt(x) for (x,) in cases]
            expected = np.array([ieee_divide(1.0, float(np.float32(r))) for r in roots], dtype)
        else:
            expected = np.array([FLOAT_MODEL[name](*case) for case in cases], result.dtype)
    for case, got, want in zip(cases, result, expected, strict=True):
        assert bits(got) == bits(want), f"{name}{case} gives {got}, not {want}"


def test_float_floor_division_agrees_with_python_on_many_values() -> None:
    generator = np.random.default_rng(5)
    x, y = generator.normal(size=(2, 2000)) * np.exp(generator.normal(size=(2, 2000)) * 3)
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    assert evaluate("floor_divide", x, y).tolist() == [p // q for p, q in pairs]
    assert evaluate("remainder", x, y).tolist() == [p % q for p, q in pairs]


def nearest(exact: Fraction, dtype: DType) -> float:
    """Round a rational to the nearest float of a type, ties to even, by comparing neighbours."""
    significand, lowest = (24, -149) if dtype is f32 else (53, -1074)
    magnitude = abs(exact)
    exponent = lowest
    while magnitude >= Fraction(2) ** (exponent + significand):
        exponent += 1
    quotient = magnitude / Fraction(2) ** exponent
    mantissa = math.floor(quotient)
    rest = quotient - mantissa
    mantissa += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and mantissa % 2 == 1)
    rounded = mantissa * Fraction(2) ** exponent
    limit = Fraction(2) ** (128 if dtype is f32 else 1024)
    return math.copysign(INF if rounded >= limit else float(rounded), 1 if exact > 0 else -1)


def check_fma(x: float, y: float, z: float, dtype: DType) -> None:
    x, y, z = (float(dtype(operand)) for operand in (x, y, z))
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    expected = nearest(exact, dtype) if exact else x * y + z if 0 in (x, y) else 0.0
    assert bits(evaluate("fma", dtype(x), dtype(y), dtype(z))) == bits(dtype(expected))


@given(
    x=st.floats(width=32, allow_nan=False, allow_infinity=False),
    y=st.floats(width=32, allow_nan=False, allow_infinity=False),
    z=st.floats(width=32, allow_nan=False, allow_infinity=False),
)
@example(1.0 + 2.0**-23, 1.0 + 2.0**-23, 2.0**-60)
@example(1.0 + 2.0**-12, 1.0 + 2.0**-12, 2.0**-80)
@example(2.0**-75, 2.0**-75, 2.0**-149)
@example(-(2.0**-75), 2.0**-75, 2.0**-126)
@example(2.0**64, 2.0**64, -(2.0**80))
@example(1.0, -1.0, 1.0)
@example(-0.0, 1.0, -0.0)
def test_fma_of_floats_is_rounded_once(x: float, y: float, z: float) -> None:
    with np.errstate(all="ignore"):
        check_fma(x, y, z, f32)


@given(
    x=st.floats(allow_nan=False, allow_infinity=False),
    y=st.floats(allow_nan=False, allow_infinity=False),
    z=st.floats(allow_nan=False, allow_infinity=False),
)
@example(1.0 + 2.0**-52, 1.0 + 2.0**-52, -1.0)
@example(2.0**-600, 2.0**-600, 5e-324)
@example(-(2.0**-538), 2.0**-538, 0.0)
@example(1e200, 1e200, -1e308)
@example(1e-320, 0.5, 1e-320)
@example(-0.0, 1.0, -0.0)
def test_fma_of_doubles_is_rounded_once(x: float, y: float, z: float) -> None:
    check_fma(x, y, z, f64)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        ((INF, 0.0, 1.0), NAN),
        ((INF, 1.0, -INF), NAN),
        ((INF, -2.0, 1.0), -INF),
        ((1e38, -1e38, INF), INF),
        ((2.0, 3.0, -INF), -INF),
        ((NAN, 1.0, 1.0), NAN),
        ((1.0, 1.0, NAN), NAN),
    ],
)
def test_fma_of_infinities_and_nans(
    operands: tuple[float, ...], expected: float, dtype: DType
) -> None:
    assert bits(evaluate("fma", *(dtype(x) for x in operands))) == bits(dtype(expected))


def test_fma_adds_an_infinity_to_a_product_that_doubles_cannot_hold() -> None:
    assert evaluate("fma", f64(1e300), f64(-1e300), f64(INF)) == INF
    assert evaluate("fma", f64(1e300), f64(-1e300), f64(1.0)) == -INF


def test_fma_avoids_double_rounding() -> None:
    # The exact sums lie just beside the middle of two floats, on which rounding to f64 puts them.
    above = f32(1.0 + 2.0**-12), f32(1.0 + 2.0**-12), f32(2.0**-80)
    assert f32(float(above[0]) * float(above[1]) + float(above[2])) == f32(1.0 + 2.0**-11)
    assert evaluate("fma", *above) == f32(1.0 + 2.0**-11 + 2.0**-23)
    below = f32(1.0 + 2.0**-12), f32(1.0 + 3 * 2.0**-12), f32(-(2.0**-80))
    assert f32(float(below[0]) * float(below[1]) + float(below[2])) == f32(
        1.0 + 2.0**-10 + 2.0**-22
    )
    assert evaluate("fma", *below) == f32(1.0 + 2.0**-10 + 2.0**-23)


# ---- math functions: within their budget of the exact value --------------------------------------

MATH_DOMAIN: dict[str, tuple[str, float, float]] = {
    "exp": ("exp", -80, 80),
    "exp2": ("exp2", -100, 100),
    "expm1": ("expm1", -20, 40),
    "log": ("log", 1e-6, 1e6),
    "log2": ("log2", 1e-6, 1e6),
    "log10": ("log10", 1e-6, 1e6),
    "log1p": ("log1p", -0.99, 1e3),
    "cbrt": ("cbrt", 1e-9, 1e9),
    "sin": ("sin", -50, 50),
    "cos": ("cos", -50, 50),
    "tan": ("tan", -50, 50),
    "asin": ("asin", -1, 1),
    "acos": ("acos", -1, 1),
    "atan": ("atan", -50, 50),
    "atan2": ("atan2", -50, 50),
    "sinh": ("sinh", -50, 50),
    "cosh": ("cosh", -50, 50),
    "tanh": ("tanh", -20, 20),
    "pow": ("power", 1e-3, 20),
    "hypot": ("hypot", -50, 50),
    "erf": ("erf", -5, 5),
}
EXACT: dict[str, Callable[..., Any]] = {"exp2": lambda x: mpmath.power(2, x)}


def test_every_function_with_a_budget_is_compared_with_exact_values() -> None:
    assert set(MATH_DOMAIN) == {name for name, row in OPERATIONS.items() if not row.is_exact}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", MATH_DOMAIN)
def test_math_function_stays_within_its_budget(name: str, dtype: DType) -> None:
    exact_name, low, high = MATH_DOMAIN[name]
    row = OPERATIONS[name]
    generator = np.random.default_rng(11)
    operands = generator.uniform(low, high, (row.arity, 200)).astype(dtype)
    result = evaluate(name, *operands)
    budget = row.ulp_f32 if dtype is f32 else row.ulp_f64
    exact_function = EXACT.get(name) or getattr(mpmath, exact_name)
    with mpmath.workprec(200):
        for *case, got in zip(*operands, result, strict=True):
            exact = exact_function(*(mpmath.mpf(float(x)) for x in case))
            ulp = float(np.spacing(np.abs(dtype(float(exact)))))
            assert abs(mpmath.mpf(float(got)) - exact) <= budget * ulp, (name, case, got)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("name", "operands", "expected"),
    [
        ("exp", (-INF,), 0.0),
        ("exp", (INF,), INF),
        ("exp", (-0.0,), 1.0),
        ("expm1", (-0.0,), -0.0),
        ("log", (0.0,), -INF),
        ("log", (-1.0,), NAN),
        ("log1p", (-1.0,), -INF),
        ("cbrt", (-8.0,), -2.0),
        ("cbrt", (-0.0,), -0.0),
        ("sin", (INF,), NAN),
        ("sin", (-0.0,), -0.0),
        ("asin", (2.0,), NAN),
        ("atan2", (-0.0, 1.0), -0.0),
        ("tanh", (-INF,), -1.0),
        ("pow", (0.0, 0.0), 1.0),
        ("pow", (NAN, 0.0), 1.0),
        ("pow", (-2.0, 3.0), -8.0),
        ("pow", (-2.0, 0.5), NAN),
        ("pow", (-0.0, -1.0), -INF),
        ("hypot", (INF, NAN), INF),
        ("erf", (INF,), 1.0),
        ("erf", (-0.0,), -0.0),
        ("erf", (NAN,), NAN),
    ],
)
def test_math_function_at_special_values(
    name: str, operands: tuple[float, ...], expected: float, dtype: DType
) -> None:
    arrays = [np.full(2, x, dtype) for x in operands]
    assert bits(evaluate(name, *arrays)) == bits(np.full(2, expected, dtype))


# ---- verifier ------------------------------------------------------------------------------------


def simple_unit(*statements: ir.Statement, **changes: Any) -> ir.Unit:
    """Build a unit over the elements of ``a`` and ``b`` with the given body."""
    unit = ir.Unit(
        name="unit",
        parameters=(
            ir.ArrayParameter("a", f64, 1),
            ir.ArrayParameter("b", f64, 1, is_read=False, is_written=True),
            ir.ScalarParameter("c", Value(0, f32)),
        ),
        prologue=(ir.Extent(Value(1, i64), "a", 0),),
        extents=(Value(1, i64),),
        body=ir.Region((Value(2, i64),), statements),
    )
    return replace(unit, **changes)


C, EXTENT, POSITION = Value(0, f32), Value(1, i64), Value(2, i64)
NEW, OTHER = Value(3, f64), Value(4, f64)
FLAG = ir.Constant(Value(5, bool_), True)
LOAD = ir.Load(NEW, "a", (POSITION,))
EMPTY = ir.Region((), ())


def test_well_formed_units_pass() -> None:
    ir.verify(simple_unit())
    ir.verify(simple_unit(LOAD, ir.Store("b", (POSITION,), NEW)))
    ir.verify(every_statement())
    ir.verify(simple_unit(prologue=(), extents=(), body=EMPTY))


@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        ([LOAD, LOAD], "%3 is defined twice"),
        ([ir.Cast(EXTENT, C)], "%1 is defined twice"),
        ([ir.Compute(NEW, "sqrt", (OTHER,))], "%4 is used before or outside its definition"),
        ([ir.Compute(NEW, "sqrt", (Value(0, f64),))], "%0 is used with another type, f64"),
        ([FLAG, ir.If((), FLAG.result, ir.Region((), (LOAD,)), EMPTY),
          ir.Store("b", (POSITION,), NEW)], "%3 is used before or outside its definition"),
        ([ir.Compute(NEW, "tango", (C,))], "unknown operation tango"),
        ([ir.Compute(C, "add", (C,))], "add takes 2 operands"),
        ([LOAD, ir.Compute(OTHER, "add", (NEW, C))], "operands of add differ"),
        ([FLAG, ir.Compute(Value(6, bool_), "sqrt", (FLAG.result,))], "sqrt does not take"),
        ([ir.Compute(Value(6, i64), "divide", (EXTENT, POSITION))], "divide does not take"),
        ([ir.Compute(NEW, "sqrt", (C,))], "sqrt gives f32, not f64"),
        ([ir.Compute(Value(6, f32), "less", (C, C))], "less gives bool_, not f32"),
        ([ir.Compute(Value(6, f32), "select", (C, C, C))], "the condition of select is not bool"),
        ([ir.Constant(Value(6, i8), 128)], "constant 128 does not fit i8"),
        ([ir.Constant(Value(6, u8), -1)], "constant -1 does not fit u8"),
        ([ir.Constant(Value(6, i64), True)], "constant True does not fit i64"),
        ([ir.Constant(Value(6, i64), 1.0)], "constant 1.0 does not fit i64"),
        ([ir.Constant(Value(6, f64), 1)], "constant 1 does not fit f64"),
        ([ir.Constant(Value(6, bool_), 1)], "constant 1 does not fit bool_"),
        ([ir.Extent(Value(6, i64), "z", 0)], "extent of unknown array z"),
        ([ir.Extent(Value(6, i64), "a", 1)], "array a has no axis 1"),
        ([ir.Extent(Value(6, i32), "a", 0)], "an extent is i64"),
        ([ir.LocalArray("a", f64, (2,))], "array a is declared twice"),
        ([ir.LocalArray("l", f64, (2,)), ir.LocalArray("l", f64, (2,))], "l is declared twice"),
        ([FLAG, ir.If((), FLAG.result, ir.Region((), (ir.LocalArray("l", f64, (2,)),)), EMPTY),
          ir.Load(NEW, "l", (POSITION,))], "array l is unknown or out of scope"),
        ([ir.Load(NEW, "z", (POSITION,))], "array z is unknown or out of scope"),
        ([ir.Load(NEW, "a", ())], "a has 1 axes, 0 indices given"),
        ([ir.Load(Value(6, f32), "a", (POSITION,))], "a holds f64, not f32"),
        ([ir.Load(NEW, "b", (POSITION,))], "b is not read"),
        ([ir.Cast(Value(6, i32), C), ir.Load(NEW, "a", (Value(6, i32),))], "indices are i64"),
        ([LOAD, ir.Store("a", (POSITION,), NEW)], "a is not written"),
        ([ir.Store("b", (POSITION,), C)], "b holds f64, not f32"),
        ([LOAD, ir.Store("b", (POSITION,), NEW, "tango")], "unknown operation tango"),
        ([LOAD, ir.Store("b", (POSITION,), NEW, "less")], "less gives bool_, not f64"),
        ([LOAD, ir.Store("b", (POSITION,), NEW, "sqrt")], "sqrt takes 1 operands"),
        ([LOAD, ir.Store("b", (POSITION,), NEW, "bit_or")], "bit_or does not take"),
        ([ir.If((), C, EMPTY, EMPTY)], "condition %0 is not bool"),
        ([FLAG, ir.If((NEW,), FLAG.result, EMPTY, EMPTY)], "region yields"),
        ([FLAG, ir.If((), FLAG.result, ir.Region((NEW,), ()), EMPTY)], "region takes"),
        ([FLAG, ir.If((Value(6, f32),), FLAG.result, ir.Region((), (), (C,)), EMPTY)],
         "region yields"),
        ([ir.Switch((), C, (EMPTY,))], "selector %0 is not an integer"),
        ([ir.Switch((), POSITION, ())], "a switch needs an arm"),
        ([ir.Dispatch((), C, (EMPTY,), "auto", "g")], "selector %0 is not an integer"),
        ([ir.Dispatch((Value(6, f32),), POSITION, (ir.Region((), (), (C,)), EMPTY), "auto", "g")],
         "region yields"),
        ([ir.For((), C, EXTENT, EXTENT, (), ir.Region((NEW,), ()))], "loop bounds are"),
        ([ir.For((NEW,), EXTENT, EXTENT, EXTENT, (C,), EMPTY)], "carried values change type"),
        ([ir.For((), EXTENT, EXTENT, EXTENT, (), EMPTY)], "region takes"),
        ([ir.For((Value(6, f32),), EXTENT, EXTENT, EXTENT, (C,),
                 ir.Region((Value(7, i64), Value(8, f32)), ()))], "region yields"),
        ([ir.While((NEW,), (C,), EMPTY, EMPTY)], "carried values change type"),
        ([ir.While((), (), EMPTY, EMPTY)], "region yields"),
        ([ir.While((Value(6, f32),), (C,),
                   ir.Region((Value(7, f32),), (FLAG,), (FLAG.result,)), EMPTY)], "region takes"),
        ([ir.While((Value(6, f32),), (C,), ir.Region((Value(7, f32),), (FLAG,), (FLAG.result,)),
                   ir.Region((Value(8, f32),), (), (Value(7, f32),)))], "%7 is used before"),
    ],
)  # fmt: skip
def test_malformed_statement_is_refused(statements: list[ir.Statement], problem: str) -> None:
    with pytest.raises(ir.VerificationError) as caught:
        ir.verify(simple_unit(*statements))
    assert str(caught.value).startswith("unit unit: ")
    assert problem in str(caught.value)


INPUT = ir.ArrayParameter("n", i64, 0)
LOADED = Value(6, i64)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"name": "my kernel"}, "the name is not a C identifier"),
        ({"name": "größe"}, "the name is not a C identifier"),
        ({"parameters": (ir.ArrayParameter("a", f64, 1),) * 2}, "parameter names repeat"),
        ({"parameters": (ir.ArrayParameter("a", f64, 1), ir.ScalarParameter("s", EXTENT))},
         "%1 is defined twice"),
        ({"prologue": (ir.LocalArray("l", f64, (1,)),)}, "the prologue may only compute and load"),
        ({"prologue": (ir.Constant(EXTENT, 0), ir.Load(OTHER, "x", (EXTENT,))),
          "parameters": (ir.ArrayParameter("x", f64, 1, True, True),)},
         "the prologue loads x, which is written"),
        ({"parameters": (INPUT,), "prologue": (ir.Load(LOADED, "n", ()),), "extents": (LOADED,)},
         "extent %6 depends on a load"),
        ({"parameters": (INPUT,), "extents": (EXTENT,),
          "prologue": (ir.Load(LOADED, "n", ()), ir.Compute(EXTENT, "abs", (LOADED,)))},
         "extent %1 depends on a load"),
        ({"extents": (C,)}, "extents are i64"),
        ({"extents": (Value(9, i64),)}, "%9 is used before or outside its definition"),
        ({"extents": ()}, "one position per extent"),
        ({"body": ir.Region((POSITION,), (), (POSITION,))}, "region yields"),
        ({"body": ir.Region((NEW,), ())}, "region takes"),
    ],
)  # fmt: skip
def test_malformed_unit_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ir.VerificationError) as caught:
        ir.verify(simple_unit(**changes))
    assert problem in str(caught.value)


def test_the_prologue_may_load_inputs() -> None:
    builder = UnitBuilder()
    builder.array("n", f64, 0)
    builder.load("n", dtype=f64)
    assert len(builder.finish([], lambda: None).prologue) == 1


def test_verification_takes_time_linear_in_the_length() -> None:
    statements = [ir.Constant(Value(number, f64), 1.0) for number in range(10, 60_000)]
    ir.verify(simple_unit(*statements))


# ---- printer -------------------------------------------------------------------------------------


def every_statement() -> ir.Unit:
    builder = UnitBuilder("everything")
    builder.array("x", f64, 1)
    builder.array("y", f64, 1, written=True)
    builder.array("n", i32, 2, read=False, written=True)
    builder.array("z", u8, 0, read=False)
    scale = builder.scalar("scale", f32)
    extent = builder.extent("x", 0)
    columns = builder.extent("n", 1)

    def body(i: Value, j: Value) -> None:
        element = builder.load("x", i, dtype=f64)
        wide = builder.cast(scale, f64)
        scaled = builder.compute("multiply", element, wide)
        zero, one = builder.constant(0), builder.constant(1)
        builder.local("table", f64, 2, 3)
        builder.store("table", zero, one, value=scaled)
        is_less = builder.compute("less", i, j)
        (limited,) = builder.branch(is_less, lambda: [scaled], lambda: [element])
        builder.branch(is_less, lambda: builder.store("y", i, value=limited, combine="add"))
        (picked,) = builder.switch(j, lambda: [limited], lambda: [builder.constant(-0.0, f64)])
        (chosen,) = builder.dispatch(
            j, lambda: [picked], lambda: [builder.constant(0.1, f64)], policy="auto", name="kind"
        )
        (total,) = builder.loop(
            (zero, j, one), [chosen], lambda k, sum: [builder.compute("add", sum, element)]
        )
        builder.loop((zero, j, one), [], lambda k: None)
        (last,) = builder.loop_while(
            [total],
            lambda value: [builder.compute("less", value, element)],
            lambda value: [builder.compute("add", value, value)],
        )
        builder.store("y", i, value=last)

    return builder.finish([extent, columns], body)


GOLDEN = """\
unit everything
  parameter in x: f64[rank 1]
  parameter inout y: f64[rank 1]
  parameter out n: i32[rank 2]
  parameter unused z: u8[rank 0]
  parameter %0: f32 = scale
  %1: i64 = extent(x, 0)
  %2: i64 = extent(n, 1)
  for each (%3 < %1, %4 < %2):
    %5: f64 = x[%3]
    %6: f64 = cast(%0)
    %7: f64 = multiply(%5, %6)
    %8: i64 = 0
    %9: i64 = 1
    local table: f64[2, 3]
    table[%8, %9] = %7
    %10: bool_ = less(%3, %4)
    %11: f64 = if %10:
      yield %7
    else:
      yield %5
    if %10:
      atomic add y[%3] = %11
    %13: f64 = switch clamp(%4):
    case 0:
      yield %11
    case 1:
      %12: f64 = -0.0
      yield %12
    %15: f64 = dispatch kind policy auto clamp(%4):
    case 0:
      yield %13
    case 1:
      %14: f64 = 0.1
      yield %14
    %19: f64 = for %16 in range(%8, %4, %9) carrying (%17: f64 = %15):
      %18: f64 = add(%17, %5)
      yield %18
    for %20 in range(%8, %4, %9):
    %25: f64 = while carrying (%21: f64 = %19):
      %22: bool_ = less(%21, %5)
      yield %22
    do (%23):
      %24: f64 = add(%23, %23)
      yield %24
    y[%3] = %25
"""


def test_text_of_every_kind_of_statement() -> None:
    assert ir.format_unit(every_statement()) == GOLDEN


def test_text_of_a_unit_without_iteration_space() -> None:
    unit = ir.Unit("once", (), (), (), ir.Region((), (FLAG,)), fast_math=True)
    assert ir.format_unit(unit) == "unit once fast_math\n  once:\n    %5: bool_ = True\n"


def test_text_of_a_plan() -> None:
    plan = ir.Plan((ir.Scratch("order", i64, (4, 2)), ir.Run(simple_unit())))
    assert ir.format_plan(plan) == "scratch order: i64[4, 2]\nrun unit(a, b, c)\n"


def test_text_tells_constants_apart() -> None:
    texts = {
        ir.format_unit(simple_unit(ir.Constant(NEW, value)))
        for value in (0.0, -0.0, 1.0, math.nextafter(1.0, 2.0), NAN, INF, -INF)
    }
    assert len(texts) == 7


def test_text_ignores_source_lines() -> None:
    here, there = (ir.Load(NEW, "a", (POSITION,), line=line) for line in (1, 2))
    assert ir.format_unit(simple_unit(here)) == ir.format_unit(simple_unit(there))
    assert here == there


def test_text_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "from turnout import ir\n"
        "from units import random_unit\n"
        "print(ir.format_unit(random_unit(3, 'predicated')), end='')\n"
    )
    expected = ir.format_unit(random_unit(3, "predicated"))
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        environment["PYTHONPATH"] = os.pathsep.join([*sys.path, str(Path(__file__).parent)])
        text = subprocess.run(
            [sys.executable, "-c", program], env=environment, check=True, capture_output=True
        ).stdout
        assert text.decode() == expected


# ---- walks and transforms ------------------------------------------------------------------------


def test_statements_walks_outer_before_inner() -> None:
    kinds = [type(s).__name__ for s in ir.statements(every_statement().body.body)]
    assert kinds[:6] == ["Load", "Cast", "Compute", "Constant", "Constant", "LocalArray"]
    assert kinds[6:11] == ["Store", "Compute", "If", "If", "Store"]
    assert kinds[11:15] == ["Switch", "Constant", "Dispatch", "Constant"]
    assert kinds[15:] == ["For", "Compute", "For", "While", "Compute", "Compute", "Store"]


def test_fresh_values_do_not_collide() -> None:
    fresh = fresh_values(every_statement())
    assert [fresh(f32), fresh(i64)] == [Value(26, f32), Value(27, i64)]
    assert fresh_values(ir.Unit("u", (), (), (), EMPTY))(f32) == Value(0, f32)


def test_rename_reaches_every_use_and_definition() -> None:
    unit = every_statement()
    names: dict[Value, Value] = {}
    for statement in ir.statements(unit.body.body):
        parameters = [value for region in statement.regions for value in region.parameters]
        for value in (*statement.operands, *statement.results, *parameters):
            names[value] = Value(value.number + 100, value.dtype)
    renamed = replace(unit, extents=(), body=ir.Region((), rename(unit.body.body, names)))
    body = ir.format_unit(unit).partition("for each (%3 < %1, %4 < %2):")[2]
    expected = re.sub(r"%(\d+)", lambda match: f"%{int(match[1]) + 100}", body)
    assert ir.format_unit(renamed).partition("once:")[2] == expected


def test_with_regions_replaces_every_region() -> None:
    for statement in ir.statements(every_statement().body.body):
        replaced = with_regions(statement, [EMPTY] * len(statement.regions))
        assert replaced.regions == (EMPTY,) * len(statement.regions)
        assert (replaced.operands, replaced.results) == (statement.operands, statement.results)
