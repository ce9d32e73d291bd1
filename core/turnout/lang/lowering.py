"""Statements of a Python function as IR.

One `FunctionLowering` per function body: that of the kernel, and one per inlined helper. Early
exits (``break``, ``continue``, ``return``) become flags in the environment, under names that start
with ``$``; what follows a possible exit runs only where its flag is not set.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from .. import ir
from ..ir import Value
from .annotations import as_dtype
from .expressions import BINARY
from .loops import LoopLowering
from .scope import RETURNED, VALUE
from .syntax import (
    construct,
    refusal,
)
from .values import (
    ArrayValue,
    Known,
    Number,
    RangeValue,
    Scalar,
    TupleValue,
    VectorValue,
    describe,
    result_type,
    type_of,
)

_ATOMIC = ("add", "subtract", "multiply", "bit_and", "bit_or", "bit_xor")


class FunctionLowering(LoopLowering):
    """Lowers the body of one function into the builder's current block."""

    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Lower statements up to the first certain exit; what follows a possible one is guarded."""
        self.sequence([partial(self.statement, statement) for statement in statements])

    def sequence(self, steps: Sequence[Callable[[], None]]) -> None:
        """Run steps of lowering, with those after a possible exit in a branch of their own."""
        for position, step in enumerate(steps):
            step()
            exits = [RETURNED, *(filter(None, self.loop_exits[-1]) if self.loop_exits else ())]
            stop: Scalar = Known(False)
            for flag in exits:
                stop = self.builder.logical("bit_or", stop, self.environment[flag])
            if isinstance(stop, Number):
                self.guard(stop, exits, steps[position + 1 :])
            if isinstance(stop, Number) or stop.value:
                return

    def guard(
        self, stop: Number, exits: Iterable[str], steps: Sequence[Callable[[], None]]
    ) -> None:
        """Run steps only where no exit was taken, which `stop` tells."""
        possible = [flag for flag in exits if isinstance(self.environment[flag], Number)]

        def skip() -> None:
            if len(possible) == 1:
                self.environment[possible[0]] = Known(True)

        def go_on() -> None:
            self.environment |= dict.fromkeys(possible, Known(False))
            self.sequence(steps)

        self.branch(stop, skip, go_on)

    def statement(self, node: ast.stmt) -> None:
        method = getattr(self, f"statement_{type(node).__name__}", None)
        if method is None:
            self.fail(node, refusal(node))
        with self.at(node):
            method(node)

    def statement_Pass(self, node: ast.Pass) -> None:  # noqa: N802
        pass

    def statement_Expr(self, node: ast.Expr) -> None:  # noqa: N802
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str | type(...)):
            return  # a docstring or an ellipsis
        self.expression(node.value)

    def statement_Assign(self, node: ast.Assign) -> None:  # noqa: N802
        value = self.expression(node.value)
        for target in node.targets:
            self.assign(target, value)

    def statement_AnnAssign(self, node: ast.AnnAssign) -> None:  # noqa: N802
        if node.value is None:
            self.fail(node, "an annotation without a value declares nothing in a kernel; assign it")
        value = self.expression(node.value)
        dtype = as_dtype(self.expression(node.annotation).value) if value is not None else None
        if dtype is not None and isinstance(value, Known | Number):
            value = self.convert_to_store(value, dtype, node, "the annotation")
        self.assign(node.target, value)

    def expression_NamedExpr(self, node: ast.NamedExpr) -> Any:  # noqa: N802
        value = self.expression(node.value)
        self.assign(node.target, value)
        return value

    def assign(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(name):
                if isinstance(value, RangeValue):
                    self.fail(target, "a range can only be iterated over")
                self.environment[name] = value
            case ast.Tuple(targets) | ast.List(targets):
                items = self.items_of(value, target)
                if len(items) != len(targets) or any(isinstance(t, ast.Starred) for t in targets):
                    self.fail(target, f"cannot unpack {len(items)} values into this target")
                for part, item in zip(targets, items, strict=True):
                    self.assign(part, item)
            case ast.Subscript():
                self.store(target, value)
            case _:
                self.fail(target, f"cannot assign to {construct(target)} in a kernel")

    def store(self, target: ast.Subscript, value: Any) -> None:
        base = self.expression(target.value)
        if isinstance(base, VectorValue):
            self.store_component(base, target, value)
        else:
            array, indices = self.element(base, target)
            self.store_element(array, indices, value, target)

    def store_component(self, vector: VectorValue, target: ast.Subscript, value: Any) -> None:
        """``v[1] = x``: binds v to a vector with one component replaced."""
        if not isinstance(target.value, ast.Name):
            self.fail(target, "give this vector a name to assign one of its components")
        items = list(vector.items)
        items[self.known_index(vector, target)] = self.as_scalar(value, target)
        self.environment[target.value.id] = VectorValue(tuple(items))

    def store_element(
        self, array: ArrayValue, indices: tuple[Value, ...], value: Any, node: ast.stmt | ast.expr
    ) -> None:
        if not isinstance(value, Known | Number):
            self.fail(node, f"an array element cannot hold {self.describe(value)}")
        converted = self.convert_to_store(value, array.dtype, node, f"array {array.name!r}")
        self.builder.emit(ir.Store(array.name, indices, converted.value, line=self.line(node)))

    def statement_AugAssign(self, node: ast.AugAssign) -> None:  # noqa: N802
        target, operator = node.target, type(node.op)
        if isinstance(target, ast.Name):
            current = self.read(target.id, target)
            value = self.binary(node, operator, current, self.expression(node.value))
            self.environment[target.id] = value
            return
        if not isinstance(target, ast.Subscript):
            self.fail(target, f"cannot assign to {construct(target)} in a kernel")
        base = self.expression(target.value)
        if isinstance(base, VectorValue):
            current = base.items[self.known_index(base, target)]
            value = self.binary(node, operator, current, self.expression(node.value))
            self.store_component(base, target, value)
            return
        array, indices = self.element(base, target)
        if array.asserted_loops < self.context.asserted_loops:
            self.store_atomically(node, array, indices, self.expression(node.value))
            return
        current = self.load(array, indices, target)
        value = self.binary(node, operator, current, self.expression(node.value))
        self.store_element(array, indices, value, node)

    def store_atomically(
        self, node: ast.AugAssign, array: ArrayValue, indices: tuple[Value, ...], value: Any
    ) -> None:
        name, symbol, _ = BINARY.get(type(node.op), ("", "@", None))
        if name not in _ATOMIC or not isinstance(value, Known | Number):
            self.fail(
                node,
                f"in a tn.parallel loop {symbol}= on an array is atomic, which exists for "
                "+= -= *= &= |= ^= with a scalar",
            )
        dtype = array.dtype
        if dtype.is_float and result_type([dtype, type_of(value)]) is not dtype:
            self.fail(
                node,
                f"in a tn.parallel loop {symbol}= on an array is atomic, in its type {dtype}; "
                f"convert the value, which is of type {describe(type_of(value))}, by {dtype}(...)",
            )
        if dtype.is_bool:
            name = {"add": "bit_or", "multiply": "bit_and"}.get(name, name)
        if dtype.is_bool and name == "subtract":
            self.fail(node, "- is not defined between bools; use ^ for exclusive or")
        converted = self.convert_to_store(value, dtype, node, f"array {array.name!r}")
        self.builder.emit(
            ir.Store(array.name, indices, converted.value, combine=name, line=self.line(node))
        )

    def statement_If(self, node: ast.If) -> None:  # noqa: N802
        condition = self.condition(node.test)
        if isinstance(condition, Known):
            self.block(node.body if condition.value else node.orelse)
            return
        self.branch(condition, lambda: self.block(node.body), lambda: self.block(node.orelse))

    def statement_Return(self, node: ast.Return) -> None:  # noqa: N802
        value = self.expression(node.value) if node.value is not None else Known(None)
        items: tuple[Any, ...] = ()
        if not (isinstance(value, Known) and value.value is None):
            items = value.items if isinstance(value, TupleValue) else (value,)
            for item in items:
                if isinstance(item, RangeValue):
                    self.fail(node, f"cannot return {self.describe(item)}")
        shape = -1 if not items else len(items) if isinstance(value, TupleValue) else 0
        if self.return_count not in (None, shape):
            self.fail(node, "every return of a function must give the same number of values")
        self.return_count = shape
        for number, item in enumerate(items):
            self.environment[f"{VALUE}{number}"] = item
        self.environment[RETURNED] = Known(True)

    def statement_Break(self, node: ast.Break) -> None:  # noqa: N802
        self.leave(node, 0)

    def statement_Continue(self, node: ast.Continue) -> None:  # noqa: N802
        self.leave(node, 1)

    def leave(self, node: ast.stmt, which: int) -> None:
        if not self.loop_exits or not self.loop_exits[-1][which]:
            self.fail(node, f"{construct(node)} is not possible here")
        self.environment[self.loop_exits[-1][which]] = Known(True)
