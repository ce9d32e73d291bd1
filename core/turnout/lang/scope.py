"""Names and values of one function body, and how they join where control flow joins.

Locals live in an environment from names to operands; an assignment rebinds a name. Where branches
meet, names that differ are merged into results of the joining statement.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeGuard

from .. import ir
from ..ir import DType, Region, Value, bool_
from .builder import Builder, TypingError
from .names import FreeNames, Func
from .source import FunctionSource
from .syntax import assigned_names
from .values import (
    Known,
    Number,
    Operand,
    PlaneInput,
    Scalar,
    TupleValue,
    Undefined,
    VectorValue,
    describe,
    describe_operand,
    is_number,
    is_same,
    is_undefined,
    result_type,
    strong,
    type_of,
    weakness,
    width_of,
    zero_like,
)

RETURNED = "$returned"
"""Name of the flag that a return has been reached."""
VALUE = "$value"
"""With a number appended, names of the values that a return gives."""
CHOICE = "$choice"
"""Name of the value of the conditional expression that is being lowered."""


@dataclass
class Context:
    """What the lowering of one kernel shares between its own body and inlined helpers."""

    builder: Builder
    read_plane: Callable[[str], Operand]
    parameters: Container[str]
    sample_index: Number | None = None
    sample_count: Number | None = None
    asserted_loops: int = 0
    dispatch_count: int = 0
    dispatch_names: list[str] = field(default_factory=list)
    local_count: int = 0
    call_stack: list[Func] = field(default_factory=list)
    call_line: int = 0

    def fresh_array(self, name: str) -> str:
        """`name`, or a longer one where a parameter of the kernel is called so."""
        while name in self.parameters:
            name += "_"
        return name


class Scope:
    """The environment of one function body and the builder it emits into."""

    def __init__(
        self,
        context: Context,
        source: FunctionSource,
        free: FreeNames,
        environment: dict[str, Any],
    ) -> None:
        self.context = context
        self.builder = context.builder
        self.source = source
        self.free = free
        self.environment = environment
        self.environment[RETURNED] = Known(False)
        self.loop_exits: list[tuple[str, str]] = []
        self.locals = {
            *environment,
            *assigned_names(source.tree.body),
        }
        self.return_count: int | None = None

    # -- errors and names ------------------------------------------------------------------------

    def line(self, node: ast.stmt | ast.expr) -> int:
        """The line in the kernel's own source: that of the call for inlined helpers."""
        return self.context.call_line or node.lineno

    def fail(self, node: ast.AST, message: str) -> NoReturn:
        raise self.source.error(message, node)

    @contextmanager
    def at(self, node: ast.AST) -> Iterator[None]:
        """Give a broken type rule its place in the source."""
        try:
            yield
        except TypingError as error:
            raise self.source.error(str(error), node) from None

    def read(self, name: str, node: ast.AST) -> Any:
        if name in self.locals:
            value = self.environment.get(name)
            if value is None:
                self.fail(node, f"{name!r} has no value here; assign it before this line")
            if isinstance(value, Undefined):
                self.fail(node, f"{name!r} may have no value here: {value.reason}")
            if isinstance(value, PlaneInput):
                return self.context.read_plane(value.name)
            return value
        try:
            return self.free.resolve(name)
        except (LookupError, TypeError) as error:
            self.fail(node, str(error))

    def describe(self, value: Any) -> str:
        if isinstance(value, TupleValue):
            return f"a tuple or list of {len(value.items)}"
        if isinstance(value, PlaneInput):
            return f"the parameter {value.name!r}"
        if value is None:
            return "undefined"
        return describe_operand(value)

    def as_scalar(self, value: Any, node: ast.AST) -> Scalar:
        if isinstance(value, Number) or (isinstance(value, Known) and is_number(value.value)):
            return value
        self.fail(node, f"a number is needed here, not {self.describe(value)}")

    def items_of(self, value: Any, node: ast.AST) -> Sequence[Any]:
        match value:
            case TupleValue(items) | VectorValue(items):
                return items
            case Known(tuple() as items):
                return [Known(item) for item in items]
        self.fail(node, f"{self.describe(value)} has no items; loop over a range")

    # -- joining ---------------------------------------------------------------------------------

    def branch(
        self, condition: Number, then: Callable[[], None], otherwise: Callable[[], None]
    ) -> None:
        """An `ir.If` whose arms are lowered by the two callables."""
        self.join_arms(condition, [self.arm(then), self.arm(otherwise)])

    def join_arms(
        self, condition: Number, arms: Sequence[tuple[dict[str, Any], list[ir.Statement]]]
    ) -> None:
        """An `ir.If` of two arms that are lowered already."""
        (then, _), (otherwise, _) = arms
        for name, value in then.items():
            # A flag that one side sets and the other clears is the condition itself.
            other = otherwise.get(name)
            if _is_flag(value) and _is_flag(other) and value.value is not other.value:
                flag = condition if value.value else self.builder.logical_not(condition)
                then[name] = otherwise[name] = flag
        results, yields = self.merge(arms)
        regions = [
            Region((), tuple(block), tuple(values))
            for (_, block), values in zip(arms, yields, strict=True)
        ]
        self.builder.emit(
            ir.If(results, self.builder.materialise(condition, bool_), regions[0], regions[1])
        )

    def arm(self, lower: Callable[[], None]) -> tuple[dict[str, Any], list[ir.Statement]]:
        before = self.environment
        self.environment = dict(before)
        with self.builder.nested() as block:
            lower()
        after, self.environment = self.environment, before
        return after, block

    def merge(
        self, arms: Sequence[tuple[dict[str, Any], list[ir.Statement]]]
    ) -> tuple[tuple[Value, ...], list[list[Value]]]:
        """Join the environments of several arms into the current one."""
        results: list[Value] = []
        yields: list[list[Value]] = [[] for _ in arms]
        names = dict.fromkeys(name for environment, _ in arms for name in environment)
        for name in names:
            values = [environment.get(name) for environment, _ in arms]
            blocks = [block for _, block in arms]
            self.environment[name] = self.join(name, values, blocks, results, yields)
        return tuple(results), yields

    def join(
        self,
        name: str,
        values: list[Any],
        blocks: list[list[ir.Statement]],
        results: list[Value],
        yields: list[list[Value]],
    ) -> Any:
        """One operand that stands for `values`, one of which each arm gives."""
        if all(is_same(value, values[0]) for value in values):
            return values[0]
        values = [
            self.context.read_plane(value.name) if isinstance(value, PlaneInput) else value
            for value in values
        ]
        defined = [value for value in values if not is_undefined(value)]
        if len(defined) < len(values):
            if not (defined and name.startswith(VALUE)):
                return Undefined("it is assigned on some of the paths that lead here only")
            # A path that does not return skips every use of the returned value.
            values = [zero_like(defined[0]) if is_undefined(v) else v for v in values]
        kinds = {(type(v), len(v.items)) if hasattr(v, "items") else width_of(v) for v in values}
        if None in kinds or len(kinds) > 1:
            given = " and ".join(dict.fromkeys(self.describe(value) for value in values))
            return Undefined(f"it is {given} on the paths that lead here")
        if kinds == {0}:
            return self.join_scalars(values, blocks, results, yields)
        rows = zip(*(value.items for value in values), strict=True)
        if isinstance(values[0], VectorValue):
            return VectorValue(
                tuple(self.join_scalars(list(row), blocks, results, yields) for row in rows)
            )
        items = [self.join(name, list(row), blocks, results, yields) for row in rows]
        return next((i for i in items if isinstance(i, Undefined)), TupleValue(tuple(items)))

    def join_scalars(
        self,
        values: list[Any],
        blocks: list[list[ir.Statement]],
        results: list[Value],
        yields: list[list[Value]],
    ) -> Number:
        dtype = result_type([type_of(value) for value in values])
        result = self.builder.value(strong(dtype))
        results.append(result)
        for value, block, row in zip(values, blocks, yields, strict=True):
            with self.builder.reopened(block):
                row.append(self.builder.materialise(value, strong(dtype)))
        return Number(result, weakness(dtype))

    def convert_to_store(self, value: Scalar, dtype: DType, node: ast.AST, where: str) -> Number:
        """`value` as `dtype` under NumPy's same_kind rule, or an error with the fix."""
        if isinstance(value, Known) and not is_number(value.value):
            self.fail(node, f"{where} holds {dtype}, not {self.describe(value)}")
        given = type_of(value)
        allowed = ir.can_store(strong(given), dtype) or (given == "int" and dtype.is_integer)
        if not allowed:
            self.fail(
                node,
                f"{where} holds {dtype}, and a value of type {describe(given)} does not convert to "
                f"it by itself; write {dtype.name.rstrip('_')}(...) where that is meant",
            )
        return Number(self.builder.materialise(value, dtype))


def _is_flag(value: Any) -> TypeGuard[Known]:
    return isinstance(value, Known) and type(value.value) is bool
