"""What an expression of a kernel is while it is compiled, and the types it takes.

The rule for types is NumPy's (NEP 50): Python numbers are *weak* and take the type of what they
meet. Literals, lengths, range variables, Python numbers given for a `Param`, and whatever is
computed from these alone are weak.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any, Literal

import numpy as np

from .. import ir
from ..ir import DType, bool_, f64, i64
from ..records import record

Weak = Literal["int", "float"]


@record
class Known:
    """A compile-time constant: a number, string, type, function, module, enum, tuple or None."""

    value: Any


@record
class Number:
    """A run-time scalar; `weak` is set where it is a Python int or float in NumPy's eyes."""

    value: ir.Value
    weak: Weak | None = None


@record
class VectorValue:
    """A vector of run-time scalars or known numbers."""

    items: tuple[Scalar, ...]


@record
class ArrayValue:
    """An array, or the part of one that is left after its first axes were indexed.

    `asserted_loops` counts the tn.parallel loops around its declaration: in loops inside of these,
    iterations share it.
    """

    name: str
    dtype: DType
    extents: tuple[Number | Known, ...]
    prefix: tuple[ir.Value, ...] = ()
    is_writable: bool = True
    asserted_loops: int = 0

    @property
    def rank(self) -> int:
        return len(self.extents) - len(self.prefix)


@record
class RangeValue:
    """``range(...)`` to iterate over; `intent` is "serial" or "parallel" where it is wrapped."""

    bounds: tuple[Scalar, ...]
    intent: str = ""


@record
class Undefined:
    """A local that may have no value here, and why."""

    reason: str


@record
class TupleValue:
    """A tuple or list display."""

    items: tuple[Any, ...]


@record
class PlaneInput:
    """A per-sample parameter that has not been read or assigned yet."""

    name: str


Scalar = Known | Number
Operand = Known | Number | VectorValue | ArrayValue | RangeValue | Undefined


def is_number(value: object) -> bool:
    """Whether `value` is a compile-time number."""
    return isinstance(value, bool | int | float | np.bool_ | np.integer | np.floating)


def known_dtype(value: Any) -> DType | Weak:
    """The type of a compile-time number: strong for NumPy scalars and bool, else weak."""
    if isinstance(value, bool | np.bool_):
        return bool_
    if isinstance(value, np.generic):
        dtype = ir.from_numpy(value.dtype)
        if dtype is None:
            raise TypeError(f"{value!r} has the type {value.dtype}, which kernels do not have")
        return dtype
    return "int" if isinstance(value, int) else "float"


def type_of(value: Scalar) -> DType | Weak:
    """The strong type of a scalar, or "int" / "float" where it is weak."""
    if isinstance(value, Known):
        return known_dtype(value.value)
    return value.weak or value.value.dtype


def result_type(types: Iterable[DType | Weak]) -> DType | Weak:
    """``np.result_type`` with weak Python numbers."""
    strong: DType | None = None
    weak: Weak | None = None
    for item in types:
        if isinstance(item, DType):
            strong = item if strong is None else ir.promote(strong, item)
        else:
            weak = "float" if "float" in (item, weak) else "int"
    if strong is None:
        assert weak is not None
        return weak
    if weak is None or strong.is_float:
        return strong
    if weak == "float":
        return f64
    return i64 if strong.is_bool else strong


def strong(dtype: DType | Weak) -> DType:
    """The type in which a value is held: weak ints are int64, weak floats float64."""
    if isinstance(dtype, DType):
        return dtype
    return i64 if dtype == "int" else f64


def weakness(dtype: DType | Weak) -> Weak | None:
    """The `weak` of a `Number` of this type."""
    return None if isinstance(dtype, DType) else dtype


def describe(dtype: DType | Weak) -> str:
    """A type in words, for messages."""
    return dtype.name if isinstance(dtype, DType) else f"a Python {dtype}"


def describe_operand(value: Operand) -> str:
    """An operand in words, for messages."""
    match value:
        case Known(constant):
            if is_number(constant):
                return f"the number {constant!r}"
            if isinstance(constant, ModuleType):
                return f"the module {constant.__name__}"
            return f"{type(constant).__name__} {constant!r}"
        case Number():
            return f"a scalar of type {describe(type_of(value))}"
        case VectorValue(items):
            return f"a vector of width {len(items)}"
        case ArrayValue():
            return f"the array {value.name!r} ({value.rank} axes left to index)"
        case RangeValue():
            return "a range"
        case Undefined(reason):
            return f"undefined ({reason})"


def fits(value: Any, dtype: DType) -> bool:
    """Whether a known Python int is in the range of an integer type."""
    return dtype.minimum <= int(value) <= dtype.maximum


@record
class Retyped:
    """A value before a loop, carried with a wider type."""

    value: Scalar
    dtype: DType | Weak


def is_same(first: Any, second: Any) -> bool:
    """Whether two operands are one, so that paths that give them need no join."""
    if first is second:
        return True
    if isinstance(first, Known) and isinstance(second, Known):
        if type(first.value) is not type(second.value):
            return False
        if isinstance(first.value, float):
            return bool(first.value.hex() == second.value.hex())
        return bool(first.value == second.value)
    return bool(type(first) is type(second) and first == second)


def is_undefined(value: Any) -> bool:
    """Whether a local has, or may have, no value."""
    return value is None or isinstance(value, Undefined)


def width_of(value: Any) -> int | None:
    """0 for a scalar, the width of a vector, None for what cannot be carried or merged."""
    if isinstance(value, VectorValue):
        return len(value.items)
    if isinstance(value, Number | Retyped):
        return 0
    return 0 if isinstance(value, Known) and is_number(value.value) else None


def scalars_of(operand: Any) -> tuple[Any, ...]:
    """The components of a vector, or the scalar itself."""
    return operand.items if isinstance(operand, VectorValue) else (operand,)


def types_of(operand: Any) -> list[DType | Weak]:
    """The types of the components of an operand that a loop carries."""
    return [
        item.dtype if isinstance(item, Retyped) else type_of(item) for item in scalars_of(operand)
    ]


def values_of(carried: dict[str, Any]) -> tuple[ir.Value, ...]:
    """The SSA values of carried operands, in order."""
    return tuple(item.value for operand in carried.values() for item in scalars_of(operand))


def zero_like(value: Any) -> Any:
    """Zeros of the type of an operand, or `Undefined` where it is no number."""
    if isinstance(value, VectorValue | TupleValue):
        return type(value)(tuple(zero_like(item) for item in value.items))
    if width_of(value) is None:
        return Undefined("it is no number")
    dtype = type_of(value)
    if dtype == "int":
        return Known(0)
    if dtype == "float":
        return Known(0.0)
    assert isinstance(dtype, DType)
    return Known(dtype.dtype.type(0)) if not dtype.is_bool else Known(False)
