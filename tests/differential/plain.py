"""What the names of a generated kernel mean when it runs as plain Python over NumPy scalars.

Independent of turnout: indexing an array gives NumPy scalars, so Python itself evaluates the kernel
with NumPy's types. Only what the language defines and NumPy leaves open or refuses is written out
here: casts of floats to integers, stores of wide integers, signed zeros of minimum and maximum, the
width of float functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import isfinite
from types import SimpleNamespace
from typing import Any

import numpy as np

from turnout.conformance.reductions import combined

from .kinds import SCALARS


class _Annotation:
    """Any annotation: nothing looks at it."""

    def __getitem__(self, item: object) -> _Annotation:
        return self


class PlainArray(np.ndarray[Any, Any]):
    """An array whose elements keep the low bits of wider integers, as those of kernels do."""

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(value, np.generic):
            value = value.astype(self.dtype)
        super().__setitem__(index, value)


class _Cast:
    """An element type that is called as a cast, and that NumPy takes as a dtype."""

    def __init__(self, scalar: type[np.generic]) -> None:
        self.dtype = np.dtype(scalar)

    def __call__(self, value: Any) -> Any:
        if self.dtype.kind in "iu" and isinstance(value, float | np.floating):
            return self.dtype.type(self.saturated(value))
        return self.dtype.type(value)

    def saturated(self, value: Any) -> int:
        limits = np.iinfo(self.dtype)
        if np.isnan(value):
            return 0
        if not isfinite(value):
            return int(limits.max if value > 0 else limits.min)
        return max(int(limits.min), min(int(limits.max), int(value)))


def _is_weak(value: Any) -> bool:
    return type(value) in (int, float)


def _common(values: Sequence[Any]) -> list[Any]:
    """Values in their common type; Python numbers stay what they are among themselves."""
    if all(_is_weak(value) for value in values):
        is_float = any(type(value) is float for value in values)
        return [float(value) if is_float else value for value in values]
    scalar = np.result_type(*values).type
    return [scalar(value) for value in values]


def _float_function(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    def function(*arguments: Any) -> Any:
        if all(_is_weak(argument) for argument in arguments):
            result = evaluate(*[np.float64(argument) for argument in arguments])
            return result if result.dtype == bool else float(result)
        dtype = np.result_type(*arguments)
        if dtype.kind != "f":
            dtype = np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)
        return evaluate(*[dtype.type(argument) for argument in arguments])

    return function


def _rounding(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    """A function that leaves integers as they are."""
    in_float = _float_function(evaluate)

    def function(value: Any) -> Any:
        return value if isinstance(value, int | np.integer) else in_float(value)

    return function


def _number_function(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    def function(*arguments: Any) -> Any:
        values = _common(arguments)
        if _is_weak(values[0]):
            return type(values[0])(evaluate(*values))
        return evaluate(*values)

    return function


def _minimum(x: Any, y: Any) -> Any:
    if x == 0 and y == 0:
        return x if np.signbit(x) else y
    return np.minimum(x, y)


def _maximum(x: Any, y: Any) -> Any:
    if x == 0 and y == 0:
        return y if np.signbit(x) else x
    return np.maximum(x, y)


minimum = _number_function(_minimum)
maximum = _number_function(_maximum)


def _select(condition: Any, a: Any, b: Any) -> Any:
    first, second = _common((a, b))
    return first if condition else second


def _index(value: Any, count: int) -> Any:
    return np.int64(max(0, min(count - 1, _Cast(np.int64).saturated(value))))


def _dispatch(kind: Any, branches: Sequence[Any], policy: str = "") -> Any:
    return _common(branches)[max(0, min(len(branches) - 1, int(kind)))]


def _rsqrt(x: Any) -> Any:
    return type(x)(1) / np.sqrt(x)


def _fma(x: Any, y: Any, z: Any) -> Any:
    if not all(isfinite(value) for value in (x, y, z)):
        return z if isfinite(x) and isfinite(y) else x * y + z
    exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
    if exact == 0:
        return x * y + z if 0 in (x, y, z) else type(x)(0)
    return _rounded(exact, type(x))


def _rounded(exact: Fraction, scalar: type[np.floating[Any]]) -> Any:
    """The nearest float, ties to even, from integer arithmetic."""
    information = np.finfo(scalar)
    precision, smallest = information.nmant + 1, int(information.minexp) - information.nmant
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length() - precision
    while magnitude >= Fraction(2) ** (exponent + precision):
        exponent += 1
    exponent = max(exponent, smallest)
    whole = round(magnitude / Fraction(2) ** exponent)  # Python rounds ties to even
    if whole * Fraction(2) ** exponent > Fraction(float(information.max)):
        return scalar(np.inf if exact > 0 else -np.inf)
    rounded = scalar(float(whole * Fraction(2) ** exponent))
    return rounded if exact > 0 else -rounded


def _vector(*components: Any) -> Any:
    return np.array(_common(components))


def _sum(vector: Any) -> Any:
    total = vector[0]
    for component in vector[1:]:
        total = total + component
    return total


def _cross(a: Any, b: Any) -> Any:
    pairs = ((1, 2), (2, 0), (0, 1))
    return np.array([a[i] * b[j] - a[j] * b[i] for i, j in pairs])


def _identity(value: Any) -> Any:
    return value


MATH = SimpleNamespace(
    sqrt=_float_function(np.sqrt),
    rsqrt=_float_function(_rsqrt),
    fma=_float_function(_fma),
    copysign=_float_function(np.copysign),
    isnan=_float_function(np.isnan),
    isinf=_float_function(np.isinf),
    floor=_rounding(np.floor),
    ceil=_rounding(np.ceil),
    round=_rounding(np.rint),
    trunc=_rounding(np.trunc),
    abs=_number_function(np.absolute),
    sign=_number_function(np.sign),
    minimum=minimum,
    maximum=maximum,
    clip=lambda x, low, high: minimum(maximum(x, low), high),
    select=_select,
    index=_index,
    dispatch=_dispatch,
    zeros=lambda shape, dtype: np.zeros(shape, dtype.dtype).view(PlainArray),
    vector=_vector,
    sum=_sum,
    dot=lambda a, b: _sum(a * b),
    norm=lambda v: np.sqrt(_sum(v * v)),
    cross=_cross,
    inf=np.inf,
    nan=np.nan,
)


class Parts:
    """Collects what a loop adds to a float or multiplies it by, for the order of reductions."""

    def __init__(self, operator: str, kind: _Cast) -> None:
        self.operator, self.dtype = operator, kind.dtype
        self.parts: list[tuple[Any, Any]] = []

    def put(self, position: Any, value: Any) -> None:
        self.parts.append((position, -value if self.operator == "-" else value))

    def joined(self, before: Any, shape: Any) -> Any:
        operation, identity = (np.multiply, 1.0) if self.operator == "*" else (np.add, -0.0)
        terms = np.full(shape, identity, self.dtype)
        for position, value in self.parts:
            terms[position] = value
        return operation(before, combined(terms, operation, identity))


NAMESPACE: dict[str, Any] = {
    **{name: _Cast(scalar) for name, scalar in SCALARS.items()},
    **dict.fromkeys(
        ("NDArray", "Param", "Scalar", "Index", "Vector", "Mutable", "Terminated"), _Annotation()
    ),
    "kernel": _identity,
    "tm": MATH,
    "tn": SimpleNamespace(func=_identity, serial=_identity, parallel=_identity),
    "POLICY": "switch",
    "PARTS": Parts,
}
