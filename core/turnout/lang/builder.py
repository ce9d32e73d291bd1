"""Emission of IR statements: numbering of values, blocks, typed arithmetic, lower bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from .. import ir
from ..ir import DType, Value, bool_, i64
from .linear import Linear, linear_form
from .values import (
    Known,
    Number,
    Scalar,
    Weak,
    fits,
    is_number,
    result_type,
    strong,
    type_of,
    weakness,
)


class TypingError(Exception):
    """A type rule is broken; the front end adds the place in the source."""


class Builder:
    """Appends statements to the current block.

    Every method that takes a `Scalar` folds known operands where the result is known.
    """

    def __init__(self) -> None:
        self._count = 0
        self.block: list[ir.Statement] = []
        self._outermost = self.block
        self._entry: list[ir.Statement] = []
        self._extents: dict[tuple[str, int], Value] = {}
        self._definitions: dict[int, ir.Statement] = {}
        self._python_ints: set[int] = set()
        self._ranges: dict[int, tuple[Linear | None, Linear | None]] = {}
        self._labels: dict[int, str] = {}

    def value(self, dtype: DType) -> Value:
        """A fresh SSA value."""
        self._count += 1
        return Value(self._count - 1, dtype)

    def label(self, value: Value, name: str | None = None) -> str:
        """The name of the local that `value` stands for; given once, read later."""
        if name is not None:
            self._labels[value.number] = name
        return repr(self._labels.get(value.number, "a value"))

    def emit(self, statement: ir.Statement) -> None:
        """Append a statement to the current block."""
        self.block.append(statement)
        for result in statement.results:
            self._definitions[result.number] = statement

    @contextmanager
    def nested(self) -> Iterator[list[ir.Statement]]:
        """Collect the statements emitted inside into a block of their own."""
        outer, self.block = self.block, []
        try:
            yield self.block
        finally:
            self.block = outer

    @contextmanager
    def reopened(self, block: list[ir.Statement]) -> Iterator[None]:
        """Append to a block that was collected before."""
        outer, self.block = self.block, block
        try:
            yield
        finally:
            self.block = outer

    @property
    def at_top(self) -> bool:
        """Whether statements are emitted outside of every loop, branch and sample."""
        return self.block is self._outermost

    def entry(self) -> tuple[ir.Statement, ...]:
        """Statements that belong before all others: lengths of arrays."""
        return tuple(self._entry)

    # -- scalars ---------------------------------------------------------------------------------

    def constant(self, value: bool | int | float, dtype: DType) -> Value:
        result = self.value(dtype)
        self.emit(ir.Constant(result, _as_constant(value, dtype)))
        return result

    def compute(self, operation: str, *operands: Value) -> Value:
        row = ir.OPERATIONS[operation]
        result = self.value(bool_ if row.result == "bool" else operands[-1].dtype)
        self.emit(ir.Compute(result, operation, operands))
        return result

    def cast(self, operand: Value, dtype: DType) -> Value:
        if operand.dtype is dtype:
            return operand
        result = self.value(dtype)
        self.emit(ir.Cast(result, operand))
        return result

    def extent(self, array: str, axis: int) -> Value:
        """The length of an axis of an array parameter, read once at the entry of the kernel."""
        if (array, axis) not in self._extents:
            result = self.value(i64)
            statement = ir.Extent(result, array, axis)
            self._entry.append(statement)
            self._definitions[result.number] = statement
            self._extents[array, axis] = result
        return self._extents[array, axis]

    def materialise(self, scalar: Scalar, dtype: DType | None = None) -> Value:
        """The SSA value of a scalar, converted to `dtype` (its own type where None).

        Raises
        ------
        TypingError
            Where a Python int does not fit an integer type.
        """
        dtype = dtype or strong(type_of(scalar))
        if isinstance(scalar, Number):
            return self.cast(scalar.value, dtype)
        value = scalar.value
        if dtype.is_integer and type(value) is int and not fits(value, dtype):
            raise TypingError(f"the Python integer {value} does not fit into {dtype}")
        return self.constant(value, dtype)

    def number(self, scalar: Scalar, dtype: DType | Weak | None = None) -> Number:
        """A scalar as a run-time `Number` of the given (possibly weak) type."""
        dtype = dtype or type_of(scalar)
        return Number(self.materialise(scalar, strong(dtype)), weakness(dtype))

    def arithmetic(self, operation: str, operands: Sequence[Scalar], dtype: DType | Weak) -> Number:
        """One operation on operands converted to `dtype`; the result keeps its weakness."""
        values = [self.materialise(operand, strong(dtype)) for operand in operands]
        result = self.compute(operation, *values)
        if dtype == "int":
            self._python_ints.add(result.number)
        return Number(result, None if result.dtype is bool_ else weakness(dtype))

    def truth(self, scalar: Scalar) -> Scalar:
        """Python's truth of a number: not zero."""
        if isinstance(scalar, Known):
            return Known(bool(scalar.value))
        return Number(self.cast(scalar.value, bool_))

    def logical_not(self, scalar: Scalar) -> Scalar:
        truth = self.truth(scalar)
        if isinstance(truth, Known):
            return Known(not truth.value)
        return Number(self.compute("bit_not", truth.value))

    def logical(self, operation: str, left: Scalar, right: Scalar) -> Scalar:
        """``bit_and`` or ``bit_or`` of two truths, folded where one is known."""
        absorbing = operation == "bit_or"
        for one, other in ((left, right), (right, left)):
            if isinstance(one, Known):
                return Known(absorbing) if bool(one.value) is absorbing else self.truth(other)
        assert isinstance(left, Number)
        assert isinstance(right, Number)
        return Number(
            self.compute(operation, self.cast(left.value, bool_), self.cast(right.value, bool_))
        )

    def compare(self, operation: str, left: Scalar, right: Scalar) -> Scalar:
        """A comparison as NumPy 2 defines it: exact between all integer types."""
        types = [type_of(left), type_of(right)]
        if isinstance(left, Known) and isinstance(right, Known):
            return Known(bool(_FOLD[operation](left.value, right.value)))
        if all((isinstance(t, str) and t == "int") or _is_integral(t) for t in types):
            return self._compare_integers(operation, left, right)
        return self.arithmetic(operation, (left, right), result_type(types))

    def _compare_integers(self, operation: str, left: Scalar, right: Scalar) -> Scalar:
        for this, other, is_swapped in ((left, right, False), (right, left, True)):
            if isinstance(this, Known) and isinstance(other, Number):
                outside = _outside(int(this.value), strong(type_of(other)))
                if outside:
                    # Out of the other's range: the answer is the same for all its values.
                    sides = (0, outside) if is_swapped else (outside, 0)
                    return Known(bool(_FOLD[operation](*sides)))
                dtype = strong(type_of(other))
                return self.arithmetic(operation, (left, right), dtype)
        dtypes = [strong(type_of(left)), strong(type_of(right))]
        common = ir.promote(*dtypes)
        if not common.is_float:
            return self.arithmetic(operation, (left, right), common)
        return self._compare_mixed_signs(operation, left, right)

    def _compare_mixed_signs(self, operation: str, left: Scalar, right: Scalar) -> Scalar:
        """Signed against u64: compare as u64 where the signed side is not negative."""
        assert isinstance(left, Number)
        assert isinstance(right, Number)
        signed_is_left = left.value.dtype.kind == "i"
        signed = left if signed_is_left else right
        negative = self.compute("less", signed.value, self.constant(0, signed.value.dtype))
        both = [self.cast(side.value, ir.u64) for side in (left, right)]
        ordinary = self.compute(operation, *both)
        sides = (-1, 0) if signed_is_left else (0, -1)
        if_negative = self.constant(bool(_FOLD[operation](*sides)), bool_)
        return Number(self.compute("select", negative, if_negative, ordinary))

    # -- facts -----------------------------------------------------------------------------------

    def assume_between(self, value: Value, low: Linear | None, high: Linear | None) -> None:
        """Record bounds of `value`, both included, in terms of values defined before it."""
        self._ranges[value.number] = low, high

    def linear(self, value: Value) -> Linear:
        """`value` as a linear combination that no overflow can falsify.

        Python's integers do not overflow, so that a kernel in which theirs would is wrong anyway;
        those of NumPy's types wrap.
        """

        def definition(value: Value) -> ir.Statement | None:
            statement = self._definitions.get(value.number)
            match statement:
                case ir.Compute() if value.number not in self._python_ints:
                    return None
                case ir.Cast(_, operand) if operand.dtype is ir.u64:
                    return None
            return statement

        return linear_form(value, definition)

    def known_integer(self, value: Value) -> int | None:
        """The integer that `value` is, or None where it is known at run time only."""
        definition = self._definitions.get(value.number)
        if isinstance(definition, ir.Constant) and type(definition.value) is int:
            return definition.value
        return None

    def upper_bound(self, value: Value) -> int | None:
        """A number that `value` (an integer) is never above, or None where none is known."""
        match self._definitions.get(value.number):
            case ir.Constant(_, int(known)):
                return known
            case ir.Compute(_, "minimum", operands):
                bounds = [self.upper_bound(operand) for operand in operands]
                return min((bound for bound in bounds if bound is not None), default=None)
            case ir.Compute(_, "maximum", (first, second)):
                pair = self.upper_bound(first), self.upper_bound(second)
                return None if pair[0] is None or pair[1] is None else max(pair[0], pair[1])
        return None

    def is_at_least_0(self, value: Value) -> bool:
        """Whether `value` is known not to be negative."""
        bound = self.lower_bound(value)
        return bound is not None and bound >= 0

    def lower_bound(self, value: Value, depth: int = 8) -> int | None:
        """A number that `value` (an integer) is never below, or None where none is known."""
        if depth == 0:
            return None
        form = self.linear(value)
        # Bounds are in terms of values defined earlier, so the latest one is replaced first.
        while ranged := [number for number, _ in form.terms if number in self._ranges]:
            number = max(ranged)
            low, high = self._ranges[number]
            coefficient = form.coefficient(number)
            bound = low if coefficient > 0 else high
            if bound is None:
                return None
            form = form.without(number).plus(bound, coefficient)
        total = form.constant
        for number, coefficient in form.terms:
            least = self._bound_of(number, depth - 1)
            if coefficient < 0 or least is None:
                return None
            total += coefficient * least
        return total

    def _bound_of(self, number: int, depth: int) -> int | None:
        """A lower bound of a value that is no linear combination of others."""
        match self._definitions.get(number):
            case ir.Extent():
                return 0
            case ir.Cast(result, operand) if operand.dtype.is_bool and result.dtype.is_integer:
                return 0
            case ir.Compute(result, operation, operands) if result.dtype.kind == "i":
                return self._bound_of_compute(operation, operands, depth)
            case statement if statement and statement.results[0].dtype.kind == "u":
                return 0
        return None

    def _bound_of_compute(
        self, operation: str, operands: tuple[Value, ...], depth: int
    ) -> int | None:
        if operation == "select":
            operands = operands[1:]
        bounds = [self.lower_bound(operand, depth) for operand in operands]
        known = [bound for bound in bounds if bound is not None]
        if operation == "maximum":
            return max(known, default=None)
        if operation == "bit_and":
            return 0 if max(known, default=-1) >= 0 else None
        if len(known) < len(bounds):
            return None
        if operation in ("minimum", "select"):
            return min(known)
        if operation in ("floor_divide", "remainder", "shift_right") and min(known) >= 0:
            return 0
        return None


_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "equal": lambda x, y: x == y,
    "not_equal": lambda x, y: x != y,
    "less": lambda x, y: x < y,
    "less_equal": lambda x, y: x <= y,
    "greater": lambda x, y: x > y,
    "greater_equal": lambda x, y: x >= y,
}


def _is_integral(dtype: DType | Weak) -> bool:
    return isinstance(dtype, DType) and dtype.kind in "iu"


def _outside(value: int, dtype: DType) -> int:
    """-1 below the range of an integer type, 1 above, 0 inside."""
    if dtype.is_bool:
        return 0
    return -1 if value < dtype.minimum else 1 if value > dtype.maximum else 0


def _as_constant(value: Any, dtype: DType) -> bool | int | float:
    """A known number as the literal of an `ir.Constant`."""
    if not is_number(value):
        raise TypingError(f"{value!r} is not a number")
    if dtype.is_bool:
        return bool(value)
    if dtype.is_float:
        try:
            with np.errstate(over="ignore"):
                return float(dtype.dtype.type(value))
        except OverflowError:
            raise TypingError(f"the Python integer {value} does not fit into {dtype}") from None
    if isinstance(value, float | np.floating):
        return saturated(float(value), dtype)
    return wrapped(int(value), dtype)


def wrapped(value: int, dtype: DType) -> int:
    """The low bits of an integer, as an integer of `dtype`."""
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if value > dtype.maximum else value


def saturated(value: float, dtype: DType) -> int:
    """A float as an integer of `dtype`: truncated, clamped to its range, NaN as 0."""
    if value != value:
        return 0
    if value in (float("inf"), float("-inf")):
        return dtype.maximum if value > 0 else dtype.minimum
    return max(dtype.minimum, min(dtype.maximum, int(value)))
