"""Expressions of a kernel: constants, names, arithmetic, comparisons, arrays."""

from __future__ import annotations

import ast
import operator
import types
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from .. import ir
from ..ir import DType, Value, bool_, f64, i64
from .annotations import as_dtype
from .scope import CHOICE, Scope
from .syntax import refusal
from .values import (
    ArrayValue,
    Known,
    Number,
    Scalar,
    TupleValue,
    VectorValue,
    Weak,
    describe,
    is_number,
    is_undefined,
    result_type,
    strong,
    type_of,
)

BINARY = {
    ast.Add: ("add", "+", operator.add),
    ast.Sub: ("subtract", "-", operator.sub),
    ast.Mult: ("multiply", "*", operator.mul),
    ast.Div: ("divide", "/", operator.truediv),
    ast.FloorDiv: ("floor_divide", "//", operator.floordiv),
    ast.Mod: ("remainder", "%", operator.mod),
    ast.Pow: ("pow", "**", operator.pow),
    ast.BitAnd: ("bit_and", "&", operator.and_),
    ast.BitOr: ("bit_or", "|", operator.or_),
    ast.BitXor: ("bit_xor", "^", operator.xor),
    ast.LShift: ("shift_left", "<<", operator.lshift),
    ast.RShift: ("shift_right", ">>", operator.rshift),
}
MAXIMUM_BITS = 1024
"""How large the Python integers of constant expressions may become."""

_COMPARE = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}


class ExpressionLowering(Scope):
    """Lowers expressions; calls are in `CallLowering`."""

    def expression(self, node: ast.expr) -> Any:
        method = getattr(self, f"expression_{type(node).__name__}", None)
        if method is None:
            self.fail(node, refusal(node))
        with self.at(node):
            return method(node)

    def scalar(self, node: ast.expr) -> Scalar:
        return self.as_scalar(self.expression(node), node)

    def condition(self, node: ast.expr) -> Scalar:
        value = self.expression(node)
        if isinstance(value, Known):
            return Known(bool(value.value))
        return self.builder.truth(self.as_scalar(value, node))

    def expression_Constant(self, node: ast.Constant) -> Known:  # noqa: N802
        if isinstance(node.value, complex | bytes) or node.value is ...:
            self.fail(node, f"{node.value!r} is not part of the kernel language")
        return Known(node.value)

    def expression_Name(self, node: ast.Name) -> Any:  # noqa: N802
        return self.read(node.id, node)

    def expression_Tuple(self, node: ast.Tuple) -> TupleValue:  # noqa: N802
        return TupleValue(tuple(self.expression(item) for item in node.elts))

    def expression_List(self, node: ast.List) -> TupleValue:  # noqa: N802
        return TupleValue(tuple(self.expression(item) for item in node.elts))

    def expression_Attribute(self, node: ast.Attribute) -> Any:  # noqa: N802
        base = self.expression(node.value)
        match base:
            case ArrayValue():
                return self.array_attribute(base, node)
            case Known(types.ModuleType() | type() as owner) if hasattr(owner, node.attr):
                try:
                    return self.free.attribute(owner, node.attr)
                except TypeError as error:
                    self.fail(node, str(error))
            case Known(value) if node.attr == "value" and not is_number(value):
                return Known(getattr(value, "value", None))
            case Known() | Number() if node.attr == "value":
                return base  # an enum member is already the number it stands for
            case Known() | Number() if node.attr == "dtype" and self.is_strong(base):
                return Known(type_of(base))
        self.fail(node, f"{self.describe(base)} has no attribute {node.attr!r} in a kernel")

    def is_strong(self, value: Any) -> bool:
        """Whether a scalar has a type of its own, as NumPy's scalars have."""
        is_scalar = isinstance(value, Number) or is_number(value.value)
        return is_scalar and isinstance(type_of(value), DType)

    def array_attribute(self, array: ArrayValue, node: ast.Attribute) -> Any:
        extents = array.extents[len(array.prefix) :]
        match node.attr:
            case "shape":
                return TupleValue(extents)
            case "ndim":
                return Known(array.rank)
            case "dtype":
                return Known(array.dtype)
            case "size":
                total: Scalar = Known(1)
                for extent in extents:
                    total = self.fold_or_compute(node, ast.Mult, total, extent)
                return total
        self.fail(node, f"an array has no attribute {node.attr!r} in a kernel; use shape or ndim")

    # -- arithmetic ------------------------------------------------------------------------------

    def expression_BinOp(self, node: ast.BinOp) -> Any:  # noqa: N802
        return self.binary(
            node, type(node.op), self.expression(node.left), self.expression(node.right)
        )

    def binary(self, node: ast.AST, kind: type[ast.operator], left: Any, right: Any) -> Any:
        vectors = [operand for operand in (left, right) if isinstance(operand, VectorValue)]
        if not vectors:
            return self.fold_or_compute(
                node, kind, self.as_scalar(left, node), self.as_scalar(right, node)
            )
        width = len(vectors[0].items)
        sides = [self.broadcast(side, width, node) for side in (left, right)]
        return VectorValue(
            tuple(self.fold_or_compute(node, kind, x, y) for x, y in zip(*sides, strict=True))
        )

    def broadcast(self, value: Any, width: int, node: ast.AST) -> tuple[Scalar, ...]:
        if isinstance(value, Number) or (isinstance(value, Known) and is_number(value.value)):
            return (value,) * width
        items = tuple(self.as_scalar(item, node) for item in self.items_of(value, node))
        if len(items) != width:
            self.fail(node, f"vectors of width {width} and {len(items)} do not combine")
        return items

    def fold_or_compute(
        self, node: ast.AST, kind: type[ast.operator], left: Scalar, right: Scalar
    ) -> Scalar:
        if kind not in BINARY:
            self.fail(node, "@ is not part of the kernel language; write the loops")
        name, symbol, python = BINARY[kind]
        if isinstance(left, Known) and isinstance(right, Known):
            return self.fold(node, symbol, python, left.value, right.value)
        dtype = result_type([type_of(left), type_of(right)])
        return self.compute(node, name, symbol, left, right, dtype)

    def fold(
        self, node: ast.AST, symbol: str, python: Callable[[Any, Any], Any], left: Any, right: Any
    ) -> Known:
        try:
            too_large = symbol in ("**", "<<") and right > MAXIMUM_BITS
            value = None if too_large else python(left, right)
        except (ArithmeticError, TypeError, ValueError) as error:
            self.fail(node, f"{left!r} {symbol} {right!r} has no value: {error}")
        if too_large or (type(value) is int and value.bit_length() > MAXIMUM_BITS):
            self.fail(node, f"the value of this {symbol} is too large for a kernel")
        if not is_number(value):
            self.fail(node, f"{left!r} {symbol} {right!r} is {value!r}, which kernels do not have")
        return Known(value)

    def compute(
        self,
        node: ast.AST,
        name: str,
        symbol: str,
        left: Scalar,
        right: Scalar,
        dtype: DType | Weak,
    ) -> Scalar:
        build = self.builder
        in_float = strong(dtype).is_float
        in_bool = strong(dtype).is_bool
        if name in ("bit_and", "bit_or", "bit_xor", "shift_left", "shift_right") and in_float:
            floats = left if strong(type_of(left)).is_float else right
            self.fail(
                node,
                f"{symbol} needs integers, and one side is of type {describe(type_of(floats))}; "
                f"convert it with an integer type such as i32(...), or use * or / instead",
            )
        if name == "divide" and not in_float:
            dtype = "float" if isinstance(dtype, str) else f64
        elif name == "pow":
            return self.power(node, left, right, dtype)
        elif in_bool and name == "subtract":
            self.fail(node, "- is not defined between bools; use ^ for exclusive or")
        elif in_bool and name in ("add", "multiply"):
            name = "bit_or" if name == "add" else "bit_and"
        elif in_bool and name in ("floor_divide", "remainder", "shift_left", "shift_right"):
            dtype = ir.i8
        return build.arithmetic(name, (left, right), dtype)

    def power(self, node: ast.AST, base: Scalar, exponent: Scalar, dtype: DType | Weak) -> Scalar:
        build = self.builder
        if strong(dtype).is_bool:
            dtype = ir.i8
        if isinstance(exponent, Known) and exponent.value in (2, 3):
            # The cube has two roundings, so it is within the error that `pow` is allowed.
            operand = build.number(base, dtype)
            square = build.arithmetic("multiply", (operand, operand), dtype)
            if exponent.value == 2:
                return square
            return build.arithmetic("multiply", (square, operand), dtype)
        if strong(dtype).is_float:
            if isinstance(exponent, Known) and exponent.value == 0.5:
                return build.arithmetic("sqrt", (base,), dtype)
            if isinstance(exponent, Known) and exponent.value == -1:
                return build.arithmetic("divide", (Known(1), base), dtype)
            return build.arithmetic("pow", (base, exponent), dtype)
        if isinstance(exponent, Known) and exponent.value < 0:
            self.fail(node, "an integer to a negative power is no integer; convert it to a float")
        return build.arithmetic("integer_power", (base, exponent), dtype)

    def expression_UnaryOp(self, node: ast.UnaryOp) -> Any:  # noqa: N802
        operand = self.expression(node.operand)
        if isinstance(node.op, ast.Not):
            return self.builder.logical_not(self.as_scalar(operand, node.operand))
        if isinstance(operand, VectorValue):
            return VectorValue(tuple(self.unary(node, item) for item in operand.items))
        return self.unary(node, self.as_scalar(operand, node.operand))

    def unary(self, node: ast.UnaryOp, operand: Scalar) -> Scalar:
        dtype = type_of(operand)
        match node.op:
            case ast.UAdd():
                return operand
            case ast.USub():
                if isinstance(operand, Known):
                    return Known(-operand.value)
                if strong(dtype).is_bool:
                    self.fail(node, "- is not defined for a bool; use `not`")
                return self.builder.arithmetic("negative", (operand,), dtype)
        if strong(dtype).is_float:
            self.fail(node, f"~ needs an integer or bool, not {describe(dtype)}")
        if isinstance(operand, Known):
            value = operand.value
            return Known(not value if strong(dtype).is_bool else ~value)
        return self.builder.arithmetic("bit_not", (operand,), dtype)

    # -- truth and choice ------------------------------------------------------------------------

    def expression_BoolOp(self, node: ast.BoolOp) -> Any:  # noqa: N802
        value = self.scalar(node.values[0])
        for operand in node.values[1:]:
            value = self.short_circuit(
                value, partial(self.scalar, operand), isinstance(node.op, ast.And)
            )
        return value

    def short_circuit(self, left: Scalar, right: Callable[[], Scalar], is_and: bool) -> Scalar:
        """Python's ``and`` / ``or``: the right side is evaluated only where it decides."""
        build = self.builder
        if isinstance(left, Known):
            return right() if bool(left.value) is is_and else left

        def choose(side: Callable[[], Scalar]) -> None:
            self.environment[CHOICE] = side()

        before = self.environment
        environment, block = decided = self.arm(partial(choose, right))
        other = environment[CHOICE]
        is_truth = all(type_of(side) is bool_ for side in (left, other))
        binds = any(v is not before.get(n) for n, v in environment.items() if n != CHOICE)
        if is_truth and not binds and all(ir.is_pure(statement) for statement in block):
            for statement in block:
                build.emit(statement)
            return build.logical("bit_and" if is_and else "bit_or", left, other)
        kept = self.arm(partial(choose, lambda: left))
        condition = build.truth(left)
        assert isinstance(condition, Number)
        self.join_arms(condition, [decided, kept] if is_and else [kept, decided])
        joined: Scalar = self.environment.pop(CHOICE)
        return joined

    def expression_Compare(self, node: ast.Compare) -> Any:  # noqa: N802
        return self.chain(node, self.expression(node.left), 0)

    def chain(self, node: ast.Compare, left: Any, position: int) -> Scalar:
        """A chained comparison from one of its operators on; stops at the first that fails."""
        right = self.expression(node.comparators[position])
        result = self.comparison(node, node.ops[position], left, right)
        if position + 1 == len(node.ops):
            return result
        return self.short_circuit(
            result, lambda: self.chain(node, right, position + 1), is_and=True
        )

    def comparison(self, node: ast.Compare, kind: ast.cmpop, left: Any, right: Any) -> Scalar:
        if isinstance(left, Known) and isinstance(right, Known):
            return self.known_comparison(node, kind, left.value, right.value)
        if type(kind) not in _COMPARE:
            self.fail(node, "only == != < <= > >= compare run-time values in a kernel")
        return self.builder.compare(
            _COMPARE[type(kind)], self.as_scalar(left, node), self.as_scalar(right, node)
        )

    def known_comparison(self, node: ast.Compare, kind: ast.cmpop, left: Any, right: Any) -> Known:
        python: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
            ast.Eq: operator.eq,
            ast.NotEq: operator.ne,
            ast.Lt: operator.lt,
            ast.LtE: operator.le,
            ast.Gt: operator.gt,
            ast.GtE: operator.ge,
            ast.Is: operator.is_,
            ast.IsNot: operator.is_not,
            ast.In: lambda x, y: x in y,
            ast.NotIn: lambda x, y: x not in y,
        }
        if isinstance(left, DType) or isinstance(right, DType):
            # NumPy's spellings of a type are equal to it.
            left, right = as_dtype(left) or left, as_dtype(right) or right
        try:
            return Known(bool(python[type(kind)](left, right)))
        except TypeError as error:
            self.fail(node, f"cannot compare {left!r} and {right!r}: {error}")

    def expression_IfExp(self, node: ast.IfExp) -> Any:  # noqa: N802
        condition = self.condition(node.test)
        if isinstance(condition, Known):
            return self.expression(node.body if condition.value else node.orelse)

        def evaluate(arm: ast.expr) -> None:
            self.environment[CHOICE] = self.expression(arm)

        self.branch(condition, partial(evaluate, node.body), partial(evaluate, node.orelse))
        value = self.environment.pop(CHOICE)
        if is_undefined(value):
            self.fail(node, f"the two sides of this expression do not join: {value.reason}")
        return value

    # -- arrays ----------------------------------------------------------------------------------

    def expression_Subscript(self, node: ast.Subscript) -> Any:  # noqa: N802
        base = self.expression(node.value)
        if isinstance(base, TupleValue | VectorValue) or (
            isinstance(base, Known) and isinstance(base.value, tuple | str)
        ):
            return self.known_item(base, node)
        if not isinstance(base, ArrayValue):
            self.fail(node, f"{self.describe(base)} cannot be indexed")
        array = self.indexed(base, node)
        if array.rank:
            return array
        return self.load(array, array.prefix, node)

    def known_item(self, base: Any, node: ast.Subscript) -> Any:
        index = self.known_index(base, node)
        return Known(base.value[index]) if isinstance(base, Known) else base.items[index]

    def known_index(self, base: Any, node: ast.Subscript) -> int:
        """The constant index of a subscript of a vector, tuple or string."""
        index = self.expression(node.slice)
        if not (isinstance(index, Known) and type(index.value) is int):
            self.fail(
                node.slice,
                f"the index into {self.describe(base)} must be a constant; use a local array "
                "(turnout.math.zeros) for indices that are known at run time only",
            )
        items = base.value if isinstance(base, Known) else base.items
        if not -len(items) <= index.value < len(items):
            self.fail(node.slice, f"index {index.value} is out of range for {len(items)} items")
        return index.value % len(items)

    def indexed(self, array: ArrayValue, node: ast.Subscript) -> ArrayValue:
        """`array` with the indices of a subscript added to those it has."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(parts) > array.rank:
            self.fail(node, f"array {array.name!r} has {len(array.extents)} axes only")
        prefix = list(array.prefix)
        for part in parts:
            if isinstance(part, ast.Slice | ast.Starred):
                self.fail(part, refusal(part))
            prefix.append(self.index_value(array, len(prefix), part))
        return replace(array, prefix=tuple(prefix))

    def index_value(self, array: ArrayValue, axis: int, node: ast.expr) -> Value:
        """An index with Python's meaning of negative ones, as i64."""
        build = self.builder
        index = self.scalar(node)
        dtype = type_of(index)
        if dtype != "int" and not (isinstance(dtype, DType) and dtype.is_integer):
            self.fail(node, f"an index must be an integer, not {describe(dtype)}")
        extent = array.extents[axis]
        if isinstance(extent, Known) and isinstance(index, Known):
            if not -extent.value <= index.value < extent.value:
                self.fail(node, f"index {index.value} is out of range for length {extent.value}")
            return build.constant(index.value % extent.value, i64)
        value = build.materialise(index, i64)
        if build.is_at_least_0(value):
            return value
        if isinstance(index, Known):
            return build.arithmetic("add", (index, extent), "int").value
        length = build.materialise(extent, i64)
        wrapped = build.compute("add", value, length)
        negative = build.compute("less", value, build.constant(0, i64))
        return build.compute("select", negative, wrapped, value)

    def element(self, base: Any, node: ast.Subscript) -> tuple[ArrayValue, tuple[Value, ...]]:
        """The array and the complete index of an element that is assigned to."""
        if not isinstance(base, ArrayValue):
            self.fail(node, f"cannot assign to an item of {self.describe(base)}")
        if not base.is_writable:
            self.fail(
                node,
                f"{base.name!r} is a table, which the per-sample form only reads; declare an "
                "output as Mutable[...], or use the array form",
            )
        array = self.indexed(base, node)
        if array.rank:
            self.fail(node, f"assign to single elements: {array.rank} more indices are needed")
        return base, array.prefix

    def load(self, array: ArrayValue, indices: tuple[Value, ...], node: ast.expr) -> Number:
        result = self.builder.value(array.dtype)
        self.builder.emit(ir.Load(result, array.name, indices, line=self.line(node)))
        return Number(result)
