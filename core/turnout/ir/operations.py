"""The one table of operations: typing, meaning in NumPy, and accuracy.

To add an operation: one row here, one spelling in `turnout.math` if users call it by name, one
lowering in each backend, one kernel in the conformance suite (which reads this table and fails when
a row has no kernel).

A row's ``evaluate`` is the definition: it is called with NumPy arrays (or scalars) of exactly the
operand types and gives exactly the result type. Backends agree with it bit for bit, except for
rows with a ULP budget, which name how far a backend may be from the exact value.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..records import record
from .types import DType

Operands = Literal["float", "integer", "number", "bits", "any"]
Result = Literal["same", "bool"]
Array = NDArray[Any]


@record
class Operation:
    """One row of the table.

    Attributes
    ----------
    name : str
        Name in the IR and, for math functions, in `turnout.math`.
    arity : int
        Number of operands. All have one type, except the condition of ``select``.
    operands : {"float", "integer", "number", "bits", "any"}
        Allowed operand kinds; "number" is float or integer, "bits" is integer or bool.
    result : {"same", "bool"}
        The type of the result: that of the (last) operand, or bool.
    evaluate : callable
        The meaning, on NumPy arrays.
    ulp_f32, ulp_f64 : float
        Budget in units in the last place against the exact value; 0 means bit-equal everywhere.
    """

    name: str
    arity: int
    operands: Operands
    result: Result
    evaluate: Callable[..., Any]
    ulp_f32: float = 0.0
    ulp_f64: float = 0.0

    @property
    def is_exact(self) -> bool:
        """Whether every backend gives the same bits."""
        return self.ulp_f32 == 0 and self.ulp_f64 == 0


def _integer_or(zero_divisor: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """Division where a zero divisor gives 0, as the language defines for integers."""

    def evaluate(x: Array, y: Array) -> Array:
        if x.dtype.kind == "f":
            return zero_divisor(x, y)
        safe = np.where(y == 0, np.ones_like(y), y)
        return np.where(y == 0, np.zeros_like(x), zero_divisor(x, safe))

    return evaluate


def _power(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f":
        return np.power(x, y)
    # NumPy refuses negative integer exponents; the language gives the exact quotient 1 // x**-y
    # truncated towards zero, which is 0 except for x = 1 and x = -1.
    if x.dtype.kind == "u":
        return np.power(x, y)
    magnitude = np.power(x, np.maximum(y, 0))
    odd = (y & 1) == 1
    unit = np.where(x == 1, 1, np.where(x == -1, np.where(odd, -1, 1), 0)).astype(x.dtype)
    return np.where(y < 0, unit, magnitude)


def _minimum(x: Array, y: Array) -> Array:
    """IEEE 754-2019 minimum: NaN propagates and -0 is less than +0 (NumPy leaves zeros open)."""
    if x.dtype.kind != "f":
        return np.minimum(x, y)
    return np.where((x == 0) & (y == 0), np.where(np.signbit(x), x, y), np.minimum(x, y))


def _maximum(x: Array, y: Array) -> Array:
    """IEEE 754-2019 maximum: NaN propagates and +0 is greater than -0."""
    if x.dtype.kind != "f":
        return np.maximum(x, y)
    return np.where((x == 0) & (y == 0), np.where(np.signbit(x), y, x), np.maximum(x, y))


def _elementwise(function: Callable[..., float]) -> Callable[..., Array]:
    """Evaluate a Python float function element by element, in double precision."""

    def evaluate(*operands: Array) -> Array:
        result = np.frompyfunc(function, len(operands), 1)(
            *(np.asarray(operand, np.float64) for operand in operands)
        )
        return np.asarray(result, np.float64).astype(operands[0].dtype)

    return evaluate


def _fma(x: float, y: float, z: float) -> float:
    """Exact fused multiply-add of doubles through rationals."""
    if not (math.isfinite(x) and math.isfinite(y)):
        return x * y + z
    if not math.isfinite(z):
        return z  # also where the product of doubles would overflow to the other infinity
    from fractions import Fraction

    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        # An exact zero takes the sign of the ordinary sum of the signed zero product and z.
        return x * y + z if x == 0 or y == 0 or z == 0 else 0.0
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _fma32(x: float, y: float, z: float) -> float:
    """Fused multiply-add of floats, rounded once to single precision (see `_fma_any`)."""
    product = x * y  # exact: 24 + 24 bits fit into a double
    total = product + z
    if not math.isfinite(total):
        return total
    # Round the sum to odd, so that the final rounding to single precision is the only one.
    error = (product - (total - (total - product))) + (z - (total - product))
    if error != 0 and (np.float64(total).view(np.int64) & 1) == 0:
        return math.nextafter(total, math.inf if error > 0 else -math.inf)
    return total


def _fma_any(x: Array, y: Array, z: Array) -> Array:
    return _elementwise(_fma32 if np.asarray(x).dtype == np.float32 else _fma)(x, y, z)


def _rsqrt(x: Array) -> Array:
    return np.divide(np.ones_like(x), np.sqrt(x))


def _row(
    name: str,
    arity: int,
    operands: Operands,
    evaluate: Callable[..., Any],
    result: Result = "same",
    ulp: tuple[float, float] = (0.0, 0.0),
) -> Operation:
    return Operation(name, arity, operands, result, evaluate, *ulp)


_ROWS = (
    # Arithmetic. Integers wrap; a zero divisor gives 0; // and % floor as in Python.
    _row("add", 2, "number", np.add),
    _row("subtract", 2, "number", np.subtract),
    _row("multiply", 2, "number", np.multiply),
    _row("divide", 2, "float", np.divide),
    _row("floor_divide", 2, "number", _integer_or(np.floor_divide)),
    _row("remainder", 2, "number", _integer_or(np.remainder)),
    _row("fmod", 2, "float", np.fmod),
    _row("negative", 1, "number", np.negative),
    _row("abs", 1, "number", np.absolute),
    _row("sign", 1, "number", np.sign),
    _row("integer_power", 2, "integer", _power),
    # Bits. Shifts by the width or more (or by a negative count) shift everything out.
    _row("bit_and", 2, "bits", np.bitwise_and),
    _row("bit_or", 2, "bits", np.bitwise_or),
    _row("bit_xor", 2, "bits", np.bitwise_xor),
    _row("bit_not", 1, "bits", np.invert),
    _row("shift_left", 2, "integer", np.left_shift),
    _row("shift_right", 2, "integer", np.right_shift),
    # Comparison and choice.
    _row("equal", 2, "any", np.equal, "bool"),
    _row("not_equal", 2, "any", np.not_equal, "bool"),
    _row("less", 2, "any", np.less, "bool"),
    _row("less_equal", 2, "any", np.less_equal, "bool"),
    _row("greater", 2, "any", np.greater, "bool"),
    _row("greater_equal", 2, "any", np.greater_equal, "bool"),
    _row("select", 3, "any", np.where),
    _row("minimum", 2, "number", _minimum),
    _row("maximum", 2, "number", _maximum),
    # Exact float functions.
    _row("sqrt", 1, "float", np.sqrt),
    _row("rsqrt", 1, "float", _rsqrt),
    _row("floor", 1, "float", np.floor),
    _row("ceil", 1, "float", np.ceil),
    _row("round", 1, "float", np.rint),
    _row("trunc", 1, "float", np.trunc),
    _row("copysign", 2, "float", np.copysign),
    _row("fma", 3, "float", _fma_any),
    _row("isnan", 1, "float", np.isnan, "bool"),
    _row("isinf", 1, "float", np.isinf, "bool"),
    # Math functions: each backend uses its own library, within the budget. Budgets are the largest
    # errors measured over glibc, its vector library and NumPy, with a margin (benchmarks/NOTES.md).
    _row("exp", 1, "float", np.exp, ulp=(4, 4)),
    _row("exp2", 1, "float", np.exp2, ulp=(4, 3)),
    _row("expm1", 1, "float", np.expm1, ulp=(3, 4)),
    _row("log", 1, "float", np.log, ulp=(5, 3)),
    _row("log2", 1, "float", np.log2, ulp=(3, 3)),
    _row("log10", 1, "float", np.log10, ulp=(4, 3)),
    _row("log1p", 1, "float", np.log1p, ulp=(3, 3)),
    _row("cbrt", 1, "float", np.cbrt, ulp=(4, 4)),
    _row("sin", 1, "float", np.sin, ulp=(3, 5)),
    _row("cos", 1, "float", np.cos, ulp=(3, 5)),
    _row("tan", 1, "float", np.tan, ulp=(5, 5)),
    _row("asin", 1, "float", np.arcsin, ulp=(4, 4)),
    _row("acos", 1, "float", np.arccos, ulp=(3, 3)),
    _row("atan", 1, "float", np.arctan, ulp=(3, 3)),
    _row("atan2", 2, "float", np.arctan2, ulp=(4, 4)),
    _row("sinh", 1, "float", np.sinh, ulp=(3, 3)),
    _row("cosh", 1, "float", np.cosh, ulp=(3, 3)),
    _row("tanh", 1, "float", np.tanh, ulp=(3, 3)),
    _row("pow", 2, "float", np.power, ulp=(2, 2)),
    _row("hypot", 2, "float", np.hypot, ulp=(2, 3)),
    _row("erf", 1, "float", _elementwise(math.erf), ulp=(5, 3)),
)


def convert(value: Any, target: DType) -> Any:
    """The meaning of `turnout.ir.Cast` on NumPy arrays and scalars."""
    if value.dtype.kind != "f" or not target.is_integer:
        return value.astype(target.dtype)
    whole = np.trunc(value)
    # Both limits are powers of two or 0, so they are exact as floats.
    below, above = whole < float(target.minimum), whole >= float(target.maximum + 1)
    inside = np.where(below | above | np.isnan(whole), 0, whole).astype(target.dtype)
    limited = np.where(above, target(target.maximum), inside)
    return np.where(below, target(target.minimum), limited)[()]


OPERATIONS: dict[str, Operation] = {row.name: row for row in _ROWS}
