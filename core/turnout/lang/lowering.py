"""Statements and expressions of a Python function as IR.

One `FunctionLowering` per function body: that of the kernel, and one per inlined helper. Locals
live in an environment from names to operands; an assignment rebinds a name, and where control flow
joins, names that differ are merged into values of the joining statement. Early exits (``break``,
``continue``, ``return``) become flags in the environment, under names that start with ``$``.
"""

from __future__ import annotations

import ast
import inspect
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

from .. import ir
from ..errors import KernelError
from ..ir import DType, Region, Value, bool_, f64, i64
from ..math import MATH_FUNCTIONS as _MATH
from ..math import MathFunction, equivalent, float_type
from . import names as free_names
from .annotations import as_dtype
from .builder import Builder, TypingError
from .names import FreeNames, Func
from .source import FunctionSource, parse_function
from .values import (
    ArrayValue,
    Known,
    Number,
    Operand,
    RangeValue,
    Scalar,
    Undefined,
    VectorValue,
    Weak,
    describe,
    describe_operand,
    fits,
    is_number,
    result_type,
    strong,
    type_of,
    weakness,
)

POLICIES = ("switch", "predicated", "auto")


@dataclass(frozen=True)
class TupleValue:
    """A tuple or list display."""

    items: tuple[Any, ...]


@dataclass
class Context:
    """What the lowering of one kernel shares between its own body and inlined helpers."""

    builder: Builder
    read_plane: Callable[[str], Operand]
    sample_index: Number | None = None
    sample_count: Number | None = None
    asserted_loops: int = 0
    dispatch_count: int = 0
    dispatch_names: list[str] = field(default_factory=list)
    local_count: int = 0
    call_stack: list[Func] = field(default_factory=list)


@dataclass(frozen=True)
class PlaneInput:
    """A per-sample parameter that has not been read or assigned yet."""

    name: str


_BINARY = {
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
_COMPARE = {
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
}
_ATOMIC = ("add", "subtract", "multiply", "bit_and", "bit_or", "bit_xor")
_VALUE = "$value"
_RETURNED = "$returned"
_MAXIMUM_UNROLL = 1024
_MAXIMUM_DEPTH = 64


class FunctionLowering:
    """Lowers the body of one function into the builder's current block."""

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
        self.environment[_RETURNED] = Known(False)
        self.loop_exits: list[tuple[str, str]] = []
        self.locals = {
            *environment,
            *_assigned_names(source.tree.body),
        }
        self.return_count: int | None = None
        # Of the loop that is being lowered: its carried values on entry, after its body, and the
        # environment and block of the body.
        self.initial: tuple[Value, ...] = ()
        self.next_values: tuple[Value, ...] = ()
        self.after_body: tuple[dict[str, Any], list[ir.Statement]] = ({}, [])

    # -- errors and names ------------------------------------------------------------------------

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
                value = self.environment[name] = self.context.read_plane(value.name)
            return value
        try:
            return self.free.resolve(name)
        except (LookupError, TypeError) as error:
            self.fail(node, str(error))

    # -- statements ------------------------------------------------------------------------------

    def block(self, statements: Sequence[ast.stmt]) -> None:
        """Lower statements up to the first certain exit; what follows a possible one is guarded."""
        for position, statement in enumerate(statements):
            self.statement(statement)
            stop = self.exit_flag()
            if isinstance(stop, Known):
                if stop.value:
                    return
                continue
            rest = statements[position + 1 :]
            if rest:
                self.branch(stop, lambda: None, lambda: self.block(rest))  # noqa: B023
            return

    def exit_flag(self) -> Scalar:
        """Whether the statements that follow are to be skipped."""
        flag: Scalar = Known(False)
        of_loop = self.loop_exits[-1] if self.loop_exits else ()
        for name in (_RETURNED, *filter(None, of_loop)):
            flag = self.builder.logical("bit_or", flag, self.environment[name])
        return flag

    def statement(self, node: ast.stmt) -> None:
        method = getattr(self, f"statement_{type(node).__name__}", None)
        if method is None:
            self.fail(node, f"{_construct(node)} is not part of the kernel language")
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
                self.fail(target, f"cannot assign to {_construct(target)} in a kernel")

    def store(self, target: ast.Subscript, value: Any) -> None:
        if self.assign_component(target, value):
            return
        array, indices = self.element(target)
        if not isinstance(value, Known | Number):
            self.fail(target, f"an array element cannot hold {self.describe(value)}")
        converted = self.convert_to_store(value, array.dtype, target, f"array {array.name!r}")
        assert isinstance(converted, Number)
        self.builder.emit(
            ir.Store(array.name, indices, converted.value, line=target.lineno)
        )

    def assign_component(self, target: ast.Subscript, value: Any) -> bool:
        """``v[1] = x`` where v is a vector: rebinds v with one component replaced."""
        if not isinstance(target.value, ast.Name) or target.value.id not in self.locals:
            return False
        vector = self.read(target.value.id, target.value)
        if not isinstance(vector, VectorValue):
            return False
        self.known_item(vector, target)  # checks the index
        position = self.expression(target.slice).value % len(vector.items)
        items = list(vector.items)
        items[position] = self.as_scalar(value, target)
        self.environment[target.value.id] = VectorValue(tuple(items))
        return True

    def convert_to_store(self, value: Scalar, dtype: DType, node: ast.AST, where: str) -> Number:
        """`value` as `dtype` under NumPy's same_kind rule, or an error with the fix."""
        given = type_of(value)
        allowed = ir.can_store(strong(given), dtype) or (given == "int" and dtype.is_integer)
        if not allowed:
            self.fail(
                node,
                f"{where} holds {dtype}, and a value of type {describe(given)} does not convert to "
                f"it by itself; write {dtype.name.rstrip('_')}(...) where that is meant",
            )
        with self.at(node):
            return Number(self.builder.materialise(value, dtype))

    def statement_AugAssign(self, node: ast.AugAssign) -> None:  # noqa: N802
        if isinstance(node.target, ast.Name):
            current = self.read(node.target.id, node.target)
            value = self.expression(node.value)
            self.environment[node.target.id] = self.binary(node, type(node.op), current, value)
            return
        if not isinstance(node.target, ast.Subscript):
            self.fail(node.target, f"cannot assign to {_construct(node.target)} in a kernel")
        if isinstance(self.expression(node.target.value), VectorValue):
            current = self.expression_Subscript(node.target)
            result = self.binary(node, type(node.op), current, self.expression(node.value))
            self.assign_component(node.target, result)
            return
        array, indices = self.element(node.target)
        value = self.expression(node.value)
        if self.context.asserted_loops and array.name in self.context_arrays():
            self.store_atomically(node, array, indices, value)
            return
        current = self.load(array, indices, node.target)
        result = self.binary(node, type(node.op), current, value)
        if not isinstance(result, Known | Number):
            self.fail(node, f"an array element cannot hold {self.describe(result)}")
        converted = self.convert_to_store(result, array.dtype, node, f"array {array.name!r}")
        self.builder.emit(ir.Store(array.name, indices, converted.value, line=node.lineno))

    def context_arrays(self) -> set[str]:
        """Arrays that several iterations can share: all but local ones."""
        return {
            value.name
            for value in self.environment.values()
            if isinstance(value, ArrayValue) and not value.name.startswith("local")
        }

    def store_atomically(
        self, node: ast.AugAssign, array: ArrayValue, indices: tuple[Value, ...], value: Any
    ) -> None:
        name, symbol, _ = _BINARY.get(type(node.op), ("", "@", None))
        if name not in _ATOMIC or not isinstance(value, Known | Number):
            self.fail(
                node,
                f"in a tn.parallel loop {symbol}= on an array is atomic, which exists for "
                "+= -= *= &= |= ^= with a scalar",
            )
        converted = self.convert_to_store(value, array.dtype, node, f"array {array.name!r}")
        self.builder.emit(
            ir.Store(array.name, indices, converted.value, combine=name, line=node.lineno)
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
                if isinstance(item, TupleValue | RangeValue):
                    self.fail(node, f"cannot return {self.describe(item)}")
        shape = -1 if not items else len(items) if isinstance(value, TupleValue) else 0
        if self.return_count not in (None, shape):
            self.fail(node, "every return of a function must give the same number of values")
        self.return_count = shape
        for number, item in enumerate(items):
            self.environment[f"{_VALUE}{number}"] = item
        self.environment[_RETURNED] = Known(True)

    def statement_Break(self, node: ast.Break) -> None:  # noqa: N802
        self.leave(node, 0)

    def statement_Continue(self, node: ast.Continue) -> None:  # noqa: N802
        self.leave(node, 1)

    def leave(self, node: ast.stmt, which: int) -> None:
        if not self.loop_exits or not self.loop_exits[-1][which]:
            self.fail(node, f"{_construct(node)} is not possible here")
        self.environment[self.loop_exits[-1][which]] = Known(True)

    # -- control flow ----------------------------------------------------------------------------

    def branch(
        self, condition: Number, then: Callable[[], None], otherwise: Callable[[], None]
    ) -> None:
        """An `ir.If` whose arms are lowered by the two callables."""
        arms = [self.arm(then), self.arm(otherwise)]
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
            if all(_same(value, values[0]) for value in values):
                self.environment[name] = values[0]
                continue
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
        values = [
            self.context.read_plane(value.name) if isinstance(value, PlaneInput) else value
            for value in values
        ]
        defined = [value for value in values if not _is_undefined(value)]
        if len(defined) < len(values):
            if not name.startswith(_VALUE):
                return Undefined("it is assigned on some of the paths that lead here only")
            # A path that does not return skips every use of the returned value.
            values = [_zero_like(defined[0]) if _is_undefined(v) else v for v in values]
        widths = {_width(value) for value in values}
        if None in widths or len(widths) > 1:
            return Undefined("it is something else on each path that leads here")
        if widths == {0}:
            return self.join_scalars(values, blocks, results, yields)
        rows = zip(*(value.items for value in values), strict=True)
        return VectorValue(
            tuple(self.join_scalars(list(row), blocks, results, yields) for row in rows)
        )

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

    def statement_For(self, node: ast.For) -> None:  # noqa: N802
        if node.orelse:
            self.fail(node.orelse[0], "for ... else is not part of the kernel language")
        iterable = self.expression(node.iter)
        if not isinstance(iterable, RangeValue):
            self.unroll(node, self.items_of(iterable, node.iter))
            return
        if not isinstance(node.target, ast.Name):
            self.fail(node.target, "the target of a loop over a range must be a name")
        start, stop, step = self.range_bounds(iterable, node)
        if isinstance(step, Known) and step.value == 0:
            self.fail(node.iter, "the step of a range must not be zero")
        asserted = iterable.intent == "parallel"
        self.context.asserted_loops += asserted
        try:
            if _exits_early(node.body):
                if asserted:
                    self.fail(node, "a tn.parallel loop cannot be left by break or return")
                self.counted_while(node, node.target.id, start, stop, step)
            else:
                self.counted_for(node, node.target.id, (start, stop, step), iterable.intent)
        finally:
            self.context.asserted_loops -= asserted

    def range_bounds(self, iterable: RangeValue, node: ast.For) -> tuple[Scalar, Scalar, Scalar]:
        start: Scalar = Known(0)
        step: Scalar = Known(1)
        if len(iterable.bounds) == 1:
            stop = iterable.bounds[0]
        else:
            start, stop = iterable.bounds[:2]
            step = iterable.bounds[2] if len(iterable.bounds) == 3 else step
        for bound in (start, stop, step):
            dtype = type_of(bound)
            if dtype != "int" and not (isinstance(dtype, DType) and dtype.is_integer):
                self.fail(node.iter, f"range takes integers, not {describe(dtype)}")
        return start, stop, step

    def unroll(self, node: ast.For, items: Sequence[Any]) -> None:
        if _contains(node.body, ast.Break | ast.Continue):
            self.fail(node, "break and continue work in loops over a range only")
        if len(items) > _MAXIMUM_UNROLL:
            self.fail(node, f"at most {_MAXIMUM_UNROLL} items can be unrolled; loop over a range")
        for item in items:
            self.assign(node.target, item)
            self.block(node.body)

    def counted_for(
        self, node: ast.For, target: str, bounds: tuple[Scalar, Scalar, Scalar], intent: str
    ) -> None:
        start, stop, step = (self.builder.materialise(bound, i64) for bound in bounds)
        continued = f"$continued{len(self.loop_exits)}"

        def lower(carried: dict[str, Any]) -> Callable[[tuple[Value, ...]], ir.Statement]:
            index = self.builder.value(i64)
            self.assume_index_bound(index, start, stop, bounds[2])
            parameters = _values_of(carried)

            def body() -> None:
                self.environment.update(carried)
                self.environment[target] = Number(index, "int")
                self.environment[continued] = Known(False)
                self.loop_exits.append(("", continued))
                self.block_in_loop(node.body, ("", continued))

            environment, block = self.arm(body)
            self.after_body = (environment, block)
            return lambda results: ir.For(
                results,
                start,
                stop,
                step,
                self.initial,
                Region((index, *parameters), tuple(block), self.next_values),
                intent=intent,
                line=node.lineno,
            )

        self.loop(node, {*_assigned_names(node.body)} - {target}, lower)
        self.environment[target] = Undefined("it is the variable of a loop, read after the loop")

    def block_in_loop(self, body: Sequence[ast.stmt], exits: tuple[str, str]) -> None:
        try:
            self.block(body)
        finally:
            self.loop_exits.pop()

    def assume_index_bound(self, index: Value, start: Value, stop: Value, step: Scalar) -> None:
        """Record what is known about the smallest value of a range variable."""
        if not isinstance(step, Known):
            return
        bound = self.builder.lower_bound(start if step.value > 0 else stop)
        if bound is not None:
            self.builder.assume_at_least(index, bound if step.value > 0 else bound + 1)

    def loop(
        self,
        node: ast.stmt,
        assigned: set[str],
        lower: Callable[[dict[str, Any]], Callable[[tuple[Value, ...]], ir.Statement]],
    ) -> None:
        """A loop that carries the assigned names that have a value before it.

        The types of carried values are those before the loop joined with those after its body;
        where the body changes a type, it is lowered again with the joined one, until nothing
        changes.
        """
        names = sorted(
            name for name in assigned if not _is_undefined(self.environment.get(name))
        )
        for name in sorted(assigned - set(names)):
            self.environment[name] = Undefined("it is first assigned inside of a loop")
        entry = {name: self.carried_entry(name, node) for name in names}
        while True:
            state = self.snapshot()
            self.initial = tuple(
                value for operand in entry.values() for value in self.materialise_all(operand)
            )
            carried = {name: self.fresh_like(operand) for name, operand in entry.items()}
            for name, operand in carried.items():
                for item in _scalars(operand):
                    self.builder.label(item.value, name)
            finish = lower(carried)
            environment, block = self.after_body
            widened = self.widened(entry, environment, assigned, node)
            if widened is not None:
                entry = widened
                self.restore(state)
                continue
            with self.builder.reopened(block):
                self.next_values = tuple(
                    value
                    for name, operand in entry.items()
                    for value in self.materialise_as(environment[name], operand)
                )
            after = {name: self.fresh_like(operand) for name, operand in entry.items()}
            self.builder.emit(finish(_values_of(after)))
            self.environment.update(after)
            return

    def carried_entry(self, name: str, node: ast.stmt) -> Any:
        value = self.environment[name]
        if isinstance(value, PlaneInput):
            value = self.read(name, node)
        if _width(value) is None:
            self.fail(
                node,
                f"{name!r} is {self.describe(value)} before this loop and assigned inside of it; "
                "only numbers and vectors can change from iteration to iteration",
            )
        return value

    def widened(
        self, entry: dict[str, Any], environment: dict[str, Any], assigned: set[str], node: ast.stmt
    ) -> dict[str, Any] | None:
        """The entry values with types that hold after the body too, or None where they do."""
        result = dict(entry)
        for name, before in entry.items():
            after = environment[name]
            if isinstance(after, PlaneInput):
                after = self.context.read_plane(after.name)
                environment[name] = after
            if _is_undefined(after) or _width(after) != _width(before):
                self.fail(
                    node,
                    f"{name!r} is {self.describe(before)} before this loop and "
                    f"{self.describe(after)} after an iteration",
                )
            result[name] = self.widen(before, after)
        for name in environment:
            # A value returned from inside of the loop is carried out of it.
            if name.startswith(_VALUE) and name not in entry and name in assigned:
                if not _is_undefined(environment[name]):
                    result[name] = _zero_like(environment[name])
        unchanged = result.keys() == entry.keys() and all(
            _types(result[name]) == _types(entry[name]) for name in entry
        )
        return None if unchanged else result

    def widen(self, before: Any, after: Any) -> Any:
        if isinstance(before, VectorValue):
            pairs = zip(before.items, after.items, strict=True)
            return VectorValue(tuple(self.widen(x, y) for x, y in pairs))
        (held,) = _types(before)
        joined = result_type([held, type_of(after)])
        if joined == held:
            return before
        return _Retyped(before.value if isinstance(before, _Retyped) else before, joined)

    def materialise_all(self, operand: Any) -> Iterator[Value]:
        for item in _scalars(operand):
            if isinstance(item, _Retyped):
                yield self.builder.materialise(item.value, strong(item.dtype))
            else:
                yield self.builder.materialise(item)

    def materialise_as(self, operand: Any, model: Any) -> Iterator[Value]:
        for item, like in zip(_scalars(operand), _scalars(model), strict=True):
            yield self.builder.materialise(item, strong(_types(like)[0]))

    def fresh_like(self, operand: Any) -> Any:
        """Fresh values of the types of a carried operand."""
        if isinstance(operand, VectorValue):
            return VectorValue(tuple(self.fresh_like(item) for item in operand.items))
        (dtype,) = _types(operand)
        return Number(self.builder.value(strong(dtype)), weakness(dtype))

    def snapshot(self) -> tuple[int, int, list[str], int, dict[str, Any]]:
        context = self.context
        return (
            len(self.builder.block),
            context.dispatch_count,
            list(context.dispatch_names),
            context.local_count,
            dict(self.environment),
        )

    def restore(self, state: tuple[int, int, list[str], int, dict[str, Any]]) -> None:
        length, count, names, local_count, environment = state
        del self.builder.block[length:]
        self.context.dispatch_count = count
        self.context.dispatch_names = names
        self.context.local_count = local_count
        self.environment = environment

    def counted_while(
        self, node: ast.For, target: str, start: Scalar, stop: Scalar, step: Scalar
    ) -> None:
        """A loop over a range that may be left early."""
        build = self.builder
        first, last, stride = (build.materialise(bound, i64) for bound in (start, stop, step))
        trips = trip_count(build, first, last, stride, step)
        counter = f"$counter{len(self.loop_exits)}"
        self.environment[counter] = Known(0)
        self.locals.add(counter)

        def test() -> Scalar:
            count = self.environment[counter]
            return build.compare("less", count, Number(trips, "int"))

        def advance() -> None:
            count = build.materialise(self.environment[counter], i64)
            offset = build.compute("multiply", count, stride)
            index = build.compute("add", first, offset)
            self.assume_index_bound(index, first, last, step)
            self.environment[target] = Number(index, "int")
            one = build.constant(1, i64)
            self.environment[counter] = Number(build.compute("add", count, one), "int")

        self.while_loop(node, test, advance, {counter})
        self.environment[target] = Undefined("it is the variable of a loop, read after the loop")

    def statement_While(self, node: ast.While) -> None:  # noqa: N802
        if node.orelse:
            self.fail(node.orelse[0], "while ... else is not part of the kernel language")
        never_ends = isinstance(node.test, ast.Constant) and node.test.value
        if never_ends and not _exits_early(node.body):
            self.fail(node, "this loop never ends: it has no break and no return")
        self.while_loop(node, lambda: self.condition(node.test), lambda: None, set())

    def while_loop(
        self,
        node: ast.For | ast.While,
        test: Callable[[], Scalar],
        advance: Callable[[], None],
        counters: set[str],
    ) -> None:
        depth = len(self.loop_exits)
        broken, continued = f"$broken{depth}", f"$continued{depth}"
        self.environment[broken] = Known(False)
        assigned = {*_assigned_names(node.body), *counters}
        if isinstance(node, ast.For):
            assigned -= {node.target.id}  # type: ignore[attr-defined]
        flags = [broken] if _breaks(node.body) else []
        if _contains(node.body, ast.Return):
            flags.append(_RETURNED)
            assigned |= {f"{_VALUE}{number}" for number in range(16)}
        assigned |= set(flags)

        def lower(carried: dict[str, Any]) -> Callable[[tuple[Value, ...]], ir.Statement]:
            tested = {name: self.fresh_like(operand) for name, operand in carried.items()}
            outcome: list[Value] = []

            def condition() -> None:
                self.environment.update(tested)
                outcome.append(self.guarded_condition(flags, test))

            _, condition_block = self.arm(condition)

            def body() -> None:
                self.environment.update(carried)
                self.environment[continued] = Known(False)
                for flag in flags:
                    self.environment[flag] = Known(False)  # else the condition had failed
                advance()
                self.loop_exits.append((broken, continued))
                self.block_in_loop(node.body, (broken, continued))

            environment, block = self.arm(body)
            self.after_body = (environment, block)
            return lambda results: ir.While(
                results,
                self.initial,
                Region(_values_of(tested), tuple(condition_block), tuple(outcome)),
                Region(_values_of(carried), tuple(block), self.next_values),
                line=node.lineno,
            )

        self.loop(node, assigned, lower)
        self.environment.pop(broken, None)

    def guarded_condition(self, flags: list[str], test: Callable[[], Scalar]) -> Value:
        """The loop goes on: no flag is set and, evaluated only then, the test holds."""
        build = self.builder
        stop: Scalar = Known(False)
        for flag in flags:
            stop = build.logical("bit_or", stop, self.environment[flag])
        if isinstance(stop, Known):
            return build.materialise(build.truth(test()), bool_)
        with build.nested() as block:
            tested = build.materialise(build.truth(test()), bool_)
        if all(ir.is_pure(statement) for statement in block):
            for statement in block:
                build.emit(statement)
            return build.compute("bit_and", build.compute("bit_not", stop.value), tested)
        with build.nested() as skipped:
            false = build.constant(False, bool_)
        result = build.value(bool_)
        build.emit(
            ir.If(
                (result,),
                stop.value,
                Region((), tuple(skipped), (false,)),
                Region((), tuple(block), (tested,)),
            )
        )
        return result

    # -- expressions -----------------------------------------------------------------------------

    def expression(self, node: ast.expr) -> Any:
        method = getattr(self, f"expression_{type(node).__name__}", None)
        if method is None:
            self.fail(node, f"{_construct(node)} is not part of the kernel language")
        return method(node)

    def scalar(self, node: ast.expr) -> Scalar:
        return self.as_scalar(self.expression(node), node)

    def as_scalar(self, value: Any, node: ast.AST) -> Scalar:
        if isinstance(value, Number) or (isinstance(value, Known) and is_number(value.value)):
            return value
        self.fail(node, f"a number is needed here, not {self.describe(value)}")

    def condition(self, node: ast.expr) -> Scalar:
        value = self.expression(node)
        if isinstance(value, Known):
            return Known(bool(value.value))
        return self.builder.truth(self.as_scalar(value, node))

    def describe(self, value: Any) -> str:
        if isinstance(value, TupleValue):
            return f"a tuple or list of {len(value.items)}"
        if isinstance(value, PlaneInput):
            return f"the parameter {value.name!r}"
        if value is None:
            return "undefined"
        return describe_operand(value)

    def items_of(self, value: Any, node: ast.AST) -> Sequence[Any]:
        match value:
            case TupleValue(items) | VectorValue(items):
                return items
            case Known(tuple() as items):
                return [Known(item) for item in items]
        self.fail(node, f"{self.describe(value)} has no items; loop over a range")

    def expression_Constant(self, node: ast.Constant) -> Known:  # noqa: N802
        if isinstance(node.value, complex | bytes) or node.value is ...:
            self.fail(node, f"{node.value!r} is not part of the kernel language")
        return Known(node.value)

    def expression_Name(self, node: ast.Name) -> Any:  # noqa: N802
        return self.read(node.id, node)

    def expression_NamedExpr(self, node: ast.NamedExpr) -> Any:  # noqa: N802
        value = self.expression(node.value)
        self.assign(node.target, value)
        return value

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
                    return Known(free_names.constant(getattr(owner, node.attr), node.attr))
                except TypeError as error:
                    self.fail(node, str(error))
            case Known(value) if node.attr == "value" and not is_number(value):
                return Known(getattr(value, "value", None))
            case Known() | Number() if node.attr == "value":
                return base  # an enum member is already the number it stands for
            case Number() if node.attr == "dtype":
                return Known(base.value.dtype)
        self.fail(node, f"{self.describe(base)} has no attribute {node.attr!r} in a kernel")

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
        if not isinstance(value, VectorValue):
            return (self.as_scalar(value, node),) * width
        if len(value.items) != width:
            self.fail(node, f"vectors of width {width} and {len(value.items)} do not combine")
        return value.items

    def fold_or_compute(
        self, node: ast.AST, kind: type[ast.operator], left: Scalar, right: Scalar
    ) -> Scalar:
        if kind not in _BINARY:
            self.fail(node, "@ is not part of the kernel language; write the loops")
        name, symbol, python = _BINARY[kind]
        if isinstance(left, Known) and isinstance(right, Known):
            return self.fold(node, symbol, python, left.value, right.value)
        dtype = result_type([type_of(left), type_of(right)])
        with self.at(node):
            return self.compute(node, name, symbol, left, right, dtype)

    def fold(
        self, node: ast.AST, symbol: str, python: Callable[[Any, Any], Any], left: Any, right: Any
    ) -> Known:
        try:
            return Known(python(left, right))
        except (ArithmeticError, TypeError, ValueError) as error:
            self.fail(node, f"{left!r} {symbol} {right!r} has no value: {error}")

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
        if isinstance(exponent, Known) and exponent.value == 2:
            operand = build.number(base, dtype)
            return build.arithmetic("multiply", (operand, operand), dtype)
        if strong(dtype).is_float:
            if isinstance(exponent, Known) and exponent.value == 0.5:
                return build.arithmetic("sqrt", (base,), dtype)
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

    def expression_BoolOp(self, node: ast.BoolOp) -> Any:  # noqa: N802
        value = self.scalar(node.values[0])
        for operand in node.values[1:]:
            value = self.short_circuit(value, operand, isinstance(node.op, ast.And))
        return value

    def short_circuit(self, left: Scalar, right: ast.expr, is_and: bool) -> Scalar:
        """Python's ``and`` / ``or``: the right side is evaluated only where it decides."""
        build = self.builder
        if isinstance(left, Known):
            return self.scalar(right) if bool(left.value) is is_and else left
        before = dict(self.environment)
        with build.nested() as block:
            other = self.scalar(right)
        assigns = any(self.environment.get(name) is not before.get(name) for name in self.environment)
        if assigns:
            self.fail(right, "an assignment inside of `and` / `or` is not part of the language")
        is_truth = all(type_of(side) is bool_ for side in (left, other))
        if is_truth and all(ir.is_pure(statement) for statement in block):
            for statement in block:
                build.emit(statement)
            return build.logical("bit_and" if is_and else "bit_or", left, other)
        dtype = result_type([type_of(left), type_of(other)])
        condition = build.truth(left)
        assert isinstance(condition, Number)
        with build.reopened(block):
            evaluated = build.materialise(other, strong(dtype))
        with build.nested() as short:
            kept = build.materialise(left, strong(dtype))
        result = build.value(strong(dtype))
        regions = [Region((), tuple(block), (evaluated,)), Region((), tuple(short), (kept,))]
        then, otherwise = regions if is_and else reversed(regions)
        build.emit(ir.If((result,), condition.value, then, otherwise))
        return Number(result, weakness(dtype))

    def expression_Compare(self, node: ast.Compare) -> Any:  # noqa: N802
        left = self.expression(node.left)
        result: Scalar = Known(True)
        for kind, right_node in zip(node.ops, node.comparators, strict=True):
            # A chained comparison evaluates its operands once; none of them has side effects, so
            # that the later ones may be evaluated although an earlier comparison failed.
            right = self.expression(right_node)
            outcome = self.comparison(node, kind, left, right)
            result = self.builder.logical("bit_and", result, outcome)
            left = right
        return result

    def comparison(self, node: ast.Compare, kind: ast.cmpop, left: Any, right: Any) -> Scalar:
        if isinstance(left, Known) and isinstance(right, Known):
            return self.known_comparison(node, kind, left.value, right.value)
        if type(kind) not in _COMPARE:
            self.fail(node, "only == != < <= > >= compare run-time values in a kernel")
        with self.at(node):
            return self.builder.compare(
                _COMPARE[type(kind)], self.as_scalar(left, node), self.as_scalar(right, node)
            )

    def known_comparison(
        self, node: ast.Compare, kind: ast.cmpop, left: Any, right: Any
    ) -> Known:
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
        try:
            return Known(bool(python[type(kind)](left, right)))
        except TypeError as error:
            self.fail(node, f"cannot compare {left!r} and {right!r}: {error}")

    def expression_IfExp(self, node: ast.IfExp) -> Any:  # noqa: N802
        condition = self.condition(node.test)
        if isinstance(condition, Known):
            return self.expression(node.body if condition.value else node.orelse)
        name = f"{_VALUE}-if{node.lineno}.{node.col_offset}"

        def evaluate(arm: ast.expr) -> Callable[[], None]:
            def lower() -> None:
                self.environment[name] = self.expression(arm)

            return lower

        self.branch(condition, evaluate(node.body), evaluate(node.orelse))
        value = self.environment.pop(name)
        if _is_undefined(value):
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
        item = items[index.value]
        return Known(item) if isinstance(base, Known) else item

    def indexed(self, array: ArrayValue, node: ast.Subscript) -> ArrayValue:
        """`array` with the indices of a subscript added to those it has."""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if len(parts) > array.rank:
            self.fail(node, f"array {array.name!r} has {len(array.extents)} axes only")
        prefix = list(array.prefix)
        for part in parts:
            if isinstance(part, ast.Slice | ast.Starred):
                self.fail(part, "slices are not part of the kernel language; write a loop")
            prefix.append(self.index_value(array, len(prefix), part))
        return ArrayValue(array.name, array.dtype, array.extents, tuple(prefix), array.is_writable)

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
        with self.at(node):
            value = build.materialise(index, i64)
        if build.is_at_least_0(value):
            return value
        length = build.materialise(extent, i64)
        wrapped = build.compute("add", value, length)
        if isinstance(index, Known):
            return wrapped
        negative = build.compute("less", value, build.constant(0, i64))
        return build.compute("select", negative, wrapped, value)

    def element(self, node: ast.Subscript) -> tuple[ArrayValue, tuple[Value, ...]]:
        """The array and the complete index of an element that is assigned to."""
        base = self.expression(node.value)
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
        self.builder.emit(ir.Load(result, array.name, indices, line=node.lineno))
        return Number(result)

    # -- calls -----------------------------------------------------------------------------------

    def expression_Call(self, node: ast.Call) -> Any:  # noqa: N802
        if isinstance(node.func, ast.Attribute) and node.func.attr == "astype":
            return self.method_astype(node)
        callee = self.expression(node.func)
        function = callee.value if isinstance(callee, Known) else None
        if isinstance(function, Func):
            return self.inline(node, function)
        meaning = equivalent(function)
        if meaning is not None:
            return self.math_call(node, meaning)
        if function in (free_names.serial, free_names.parallel):
            return self.loop_intent(node, function.__name__)  # type: ignore[union-attr]
        if any(function is builtin for builtin in free_names.BUILTINS):
            return self.builtin_call(node, function)
        dtype = as_dtype(function) if function is not None else None
        if dtype is not None:
            return self.cast_call(node, dtype)
        self.fail(
            node,
            f"{ast.unparse(node.func)} cannot be called in a kernel; decorate a helper with "
            "turnout.func, or use a function of turnout.math",
        )

    def positional(self, node: ast.Call, minimum: int, maximum: int) -> list[Any]:
        name = ast.unparse(node.func)
        if node.keywords or any(isinstance(item, ast.Starred) for item in node.args):
            self.fail(node, f"{name} takes plain positional arguments in a kernel")
        if not minimum <= len(node.args) <= maximum:
            count = str(minimum) if minimum == maximum else f"{minimum} to {maximum}"
            self.fail(node, f"{name} takes {count} arguments, {len(node.args)} given")
        return [self.expression(argument) for argument in node.args]

    def method_astype(self, node: ast.Call) -> Any:
        assert isinstance(node.func, ast.Attribute)
        (spelled,) = self.positional(node, 1, 1)
        dtype = as_dtype(spelled.value) if isinstance(spelled, Known) else None
        if dtype is None:
            self.fail(node, "astype takes an element type such as f32")
        return self.cast_value(self.expression(node.func.value), dtype, node)

    def cast_call(self, node: ast.Call, dtype: DType) -> Any:
        (value,) = self.positional(node, 1, 1)
        return self.cast_value(value, dtype, node)

    def cast_value(self, value: Any, dtype: DType, node: ast.AST) -> Any:
        if isinstance(value, VectorValue):
            return VectorValue(tuple(self.cast_value(item, dtype, node) for item in value.items))
        scalar = self.as_scalar(value, node)
        if isinstance(scalar, Number):
            return Number(self.builder.cast(scalar.value, dtype))
        if dtype.is_integer and type(scalar.value) is int and not fits(scalar.value, dtype):
            self.fail(node, f"the Python integer {scalar.value} does not fit into {dtype}")
        return Number(self.builder.constant(scalar.value, dtype))

    def loop_intent(self, node: ast.Call, intent: str) -> RangeValue:
        (iterable,) = self.positional(node, 1, 1)
        if not isinstance(iterable, RangeValue):
            self.fail(node, f"tn.{intent} takes a range, as in tn.{intent}(range(n))")
        return RangeValue(iterable.bounds, intent)

    def builtin_call(self, node: ast.Call, function: Any) -> Any:
        build = self.builder
        if function is range:
            bounds = self.positional(node, 1, 3)
            return RangeValue(tuple(self.as_scalar(bound, node) for bound in bounds))
        if function is len:
            (value,) = self.positional(node, 1, 1)
            if isinstance(value, ArrayValue):
                return value.extents[len(value.prefix)]
            return Known(len(self.items_of(value, node)))
        if function is abs:
            return self.math_call(node, _MATH["abs"])
        if function is round:
            self.fail(node, "round gives a Python int; use turnout.math.round, or i64(x)")
        if function in (min, max):
            values = self.positional(node, 2, 64)
            return self.extreme(node, function is min, values)
        (value,) = self.positional(node, 1, 1)
        scalar = self.as_scalar(value, node)
        if function is bool:
            return build.truth(scalar)
        if isinstance(scalar, Known):
            return Known(function(scalar.value))
        weak: Weak = "int" if function is int else "float"
        return Number(build.cast(scalar.value, strong(weak)), weak)

    def extreme(self, node: ast.Call, is_minimum: bool, values: list[Any]) -> Scalar:
        """Python's min / max: the first of the values that no later one beats."""
        build = self.builder
        best = self.as_scalar(values[0], node)
        for value in values[1:]:
            candidate = self.as_scalar(value, node)
            if isinstance(best, Known) and isinstance(candidate, Known):
                best = Known((min if is_minimum else max)(best.value, candidate.value))
                continue
            dtype = result_type([type_of(best), type_of(candidate)])
            with self.at(node):
                sides = [build.number(side, dtype) for side in (candidate, best)]
            wins = build.compute("less" if is_minimum else "greater", *(s.value for s in sides))
            chosen = build.compute("select", wins, *(side.value for side in sides))
            best = Number(chosen, weakness(dtype))
        return best

    def inline(self, node: ast.Call, function: Func) -> Any:
        stack = self.context.call_stack
        if function in stack or len(stack) >= _MAXIMUM_DEPTH:
            self.fail(node, f"{function.__name__} calls itself; helpers are inlined, use a loop")
        try:
            bound = inspect.signature(function.function).bind(
                *(self.expression(argument) for argument in node.args),
                **{
                    keyword.arg: self.expression(keyword.value)
                    for keyword in node.keywords
                    if keyword.arg is not None
                },
            )
        except TypeError as error:
            self.fail(node, f"{function.__name__}: {error}")
        for name, parameter in bound.signature.parameters.items():
            if name not in bound.arguments:
                bound.arguments[name] = Known(free_names.constant(parameter.default, name))
        source = parse_function(function.function, function.lines)
        stack.append(function)
        try:
            body = FunctionLowering(self.context, source, function.names, dict(bound.arguments))
            body.block(source.tree.body)
        finally:
            stack.pop()
        return body.returned(node, self)

    def returned(self, node: ast.AST, caller: FunctionLowering) -> Any:
        """What the function gives its caller, once its body is lowered."""
        flag = self.environment[_RETURNED]
        if self.return_count in (None, -1):
            return Known(None)
        if not (isinstance(flag, Known) and flag.value):
            caller.fail(
                node, f"{self.source.tree.name} returns a value on some of its paths only"
            )
        count = max(1, self.return_count or 0)
        values = tuple(self.environment[f"{_VALUE}{number}"] for number in range(count))
        for value in values:
            if _is_undefined(value):
                caller.fail(node, f"{self.source.tree.name} returns different things on its paths")
        return TupleValue(values) if self.return_count else values[0]

    # -- math functions --------------------------------------------------------------------------

    def math_call(self, node: ast.Call, function: MathFunction) -> Any:
        if function.rule == "special":
            return getattr(self, f"math_{function.name}")(node)
        count = len(function.parameters)
        arguments = self.positional(node, count, count)
        vectors = [argument for argument in arguments if isinstance(argument, VectorValue)]
        if not vectors:
            scalars = [self.as_scalar(argument, node) for argument in arguments]
            return self.math_scalar(node, function, scalars)
        width = len(vectors[0].items)
        columns = [self.broadcast(argument, width, node) for argument in arguments]
        rows = zip(*columns, strict=True)
        return VectorValue(tuple(self.math_scalar(node, function, list(row)) for row in rows))

    def math_scalar(
        self, node: ast.AST, function: MathFunction, operands: Sequence[Scalar]
    ) -> Scalar:
        operation = function.operation
        assert operation is not None
        dtype = result_type([type_of(operand) for operand in operands])
        in_float = strong(dtype).is_float
        if not in_float and operation in ("floor", "ceil", "round", "trunc"):
            return operands[0]
        if not in_float and (function.rule == "float" or strong(dtype).is_bool):
            dtype = "float" if isinstance(dtype, str) else float_type(dtype)
        with self.at(node):
            return self.builder.arithmetic(operation, operands, dtype)

    def operation(self, name: str, node: ast.AST, *operands: Scalar) -> Scalar:
        """A math function by name, applied to operands that are already evaluated."""
        return self.math_scalar(node, _MATH[name], operands)

    def math_clip(self, node: ast.Call) -> Any:
        x, low, high = self.positional(node, 3, 3)
        width = len(x.items) if isinstance(x, VectorValue) else 0
        if width:
            rows = zip(*(self.broadcast(v, width, node) for v in (x, low, high)), strict=True)
            return VectorValue(tuple(self.clip(node, *row) for row in rows))
        return self.clip(node, *(self.as_scalar(v, node) for v in (x, low, high)))

    def clip(self, node: ast.AST, x: Scalar, low: Scalar, high: Scalar) -> Scalar:
        return self.operation("minimum", node, self.operation("maximum", node, x, low), high)

    def math_select(self, node: ast.Call) -> Any:
        test, a, b = self.positional(node, 3, 3)
        condition = self.builder.truth(self.as_scalar(test, node))
        if isinstance(condition, Known):
            return a if condition.value else b
        vectors = [side for side in (a, b) if isinstance(side, VectorValue)]
        if vectors:
            width = len(vectors[0].items)
            rows = zip(self.broadcast(a, width, node), self.broadcast(b, width, node), strict=True)
            return VectorValue(tuple(self.choose(node, condition, x, y) for x, y in rows))
        return self.choose(node, condition, self.as_scalar(a, node), self.as_scalar(b, node))

    def choose(self, node: ast.AST, condition: Number, a: Scalar, b: Scalar) -> Number:
        dtype = result_type([type_of(a), type_of(b)])
        with self.at(node):
            sides = [self.builder.materialise(side, strong(dtype)) for side in (a, b)]
        chosen = self.builder.compute("select", condition.value, *sides)
        return Number(chosen, weakness(dtype))

    def math_index(self, node: ast.Call) -> Number:
        x, n = (self.as_scalar(value, node) for value in self.positional(node, 2, 2))
        if strong(type_of(n)).is_float:
            self.fail(node, "the second argument of index is a count, an integer")
        build = self.builder
        truncated = build.materialise(Number(build.materialise(x)), i64)
        zero, one = build.constant(0, i64), build.constant(1, i64)
        last = build.compute("subtract", build.materialise(n, i64), one)
        clamped = build.compute("minimum", truncated, last)
        return Number(build.compute("maximum", clamped, zero))

    def math_vector(self, node: ast.Call) -> VectorValue:
        items = self.positional(node, 1, _MAXIMUM_UNROLL)
        return self.as_vector(TupleValue(tuple(items)), node)

    def as_vector(self, value: Any, node: ast.AST) -> VectorValue:
        """A vector, or a tuple or list of numbers as one; all components get one type."""
        if isinstance(value, VectorValue):
            return value
        scalars = [self.as_scalar(item, node) for item in self.items_of(value, node)]
        dtype = result_type([type_of(scalar) for scalar in scalars])
        return VectorValue(tuple(self.builder.number(scalar, dtype) for scalar in scalars))

    def vectors(self, node: ast.Call, count: int, width: int | None = None) -> list[Any]:
        values = [self.as_vector(value, node) for value in self.positional(node, count, count)]
        widths = {len(value.items) for value in values}
        if len(widths) > 1 or (width is not None and widths != {width}):
            needed = f"width {width}" if width else "one width"
            self.fail(node, f"vectors of {needed} are needed, given: {sorted(widths)}")
        return [value.items for value in values]

    def products(self, node: ast.Call, a: Sequence[Scalar], b: Sequence[Scalar]) -> Scalar:
        total: Scalar | None = None
        for x, y in zip(a, b, strict=True):
            product = self.fold_or_compute(node, ast.Mult, x, y)
            total = (
                product if total is None else self.fold_or_compute(node, ast.Add, total, product)
            )
        assert total is not None
        return total

    def math_dot(self, node: ast.Call) -> Scalar:
        a, b = self.vectors(node, 2)
        return self.products(node, a, b)

    def math_norm(self, node: ast.Call) -> Scalar:
        (v,) = self.vectors(node, 1)
        return self.operation("sqrt", node, self.products(node, v, v))

    def math_cross(self, node: ast.Call) -> VectorValue:
        a, b = self.vectors(node, 2, width=3)

        def component(i: int, j: int) -> Scalar:
            left = self.fold_or_compute(node, ast.Mult, a[i], b[j])
            right = self.fold_or_compute(node, ast.Mult, a[j], b[i])
            return self.fold_or_compute(node, ast.Sub, left, right)

        return VectorValue((component(1, 2), component(2, 0), component(0, 1)))

    def math_sum(self, node: ast.Call) -> Scalar:
        (v,) = self.vectors(node, 1)
        total: Scalar = v[0]
        for item in v[1:]:
            total = self.fold_or_compute(node, ast.Add, total, item)
        return total

    def math_sample_index(self, node: ast.Call) -> Number:
        return self.sample_fact(node, self.context.sample_index)

    def math_sample_count(self, node: ast.Call) -> Number:
        return self.sample_fact(node, self.context.sample_count)

    def sample_fact(self, node: ast.Call, fact: Number | None) -> Number:
        self.positional(node, 0, 0)
        if fact is None:
            self.fail(node, "samples exist in the per-sample form only; use the loop's variable")
        return fact

    def math_zeros(self, node: ast.Call) -> ArrayValue:
        arguments = {
            **dict(zip(("shape", "dtype"), node.args, strict=False)),
            **{keyword.arg or "": keyword.value for keyword in node.keywords},
        }
        if not {"shape"} <= arguments.keys() <= {"shape", "dtype"} or len(node.args) > 2:
            self.fail(node, "a local array is made by zeros(shape, dtype)")
        shape = self.expression(arguments["shape"])
        lengths = [shape] if isinstance(shape, Known) and type(shape.value) is int else None
        lengths = lengths or list(self.items_of(shape, node))
        for length in lengths:
            is_length = isinstance(length, Known) and type(length.value) is int
            if not is_length or length.value < 1:
                self.fail(node, "the shape of a local array must be constant and positive")
        dtype: DType | None = f64
        if "dtype" in arguments:
            spelled = self.expression(arguments["dtype"])
            dtype = as_dtype(spelled.value) if isinstance(spelled, Known) else None
        if dtype is None:
            self.fail(node, "the dtype of a local array must be an element type such as f32")
        name = f"local{self.context.local_count}"
        self.context.local_count += 1
        self.builder.emit(ir.LocalArray(name, dtype, tuple(item.value for item in lengths)))
        return ArrayValue(name, dtype, tuple(lengths))

    def math_dispatch(self, node: ast.Call) -> Any:
        arguments = {
            **dict(zip(("kind", "branches", "policy", "name"), node.args, strict=False)),
            **{keyword.arg or "": keyword.value for keyword in node.keywords},
        }
        if not {"kind", "branches"} <= arguments.keys() <= {"kind", "branches", "policy", "name"}:
            self.fail(node, "dispatch takes kind, branches, policy and name")
        branches = arguments["branches"]
        if not isinstance(branches, ast.List | ast.Tuple):
            self.fail(branches, f"branches must be a list or tuple, not {_construct(branches)}")
        if len(branches.elts) < 2:
            self.fail(branches, f"dispatch needs at least two branches, {len(branches.elts)} given")
        policy = self.option(arguments, "policy", "switch", node)
        if policy not in POLICIES:
            self.fail(
                arguments["policy"], f"unknown policy {policy!r}; allowed: {', '.join(POLICIES)}"
            )
        kind = self.scalar(arguments["kind"])
        dtype = type_of(kind)
        if not strong(dtype).is_integer:
            self.fail(
                arguments["kind"],
                f"the class of a dispatch must be an integer, not {describe(dtype)}; "
                "use turnout.math.index(x, n) to make one from a float",
            )
        name = self.group_name(arguments, node)
        selector = self.builder.materialise(kind)
        return self.dispatch_arms(branches, selector, policy, name)

    def option(
        self, arguments: dict[str, ast.expr], key: str, default: str, node: ast.AST
    ) -> str:
        if key not in arguments:
            return default
        value = self.expression(arguments[key])
        if not (isinstance(value, Known) and isinstance(value.value, str)):
            self.fail(arguments[key], f"{key} must be a string, not {self.describe(value)}")
        return value.value

    def group_name(self, arguments: dict[str, ast.expr], node: ast.Call) -> str:
        name = self.option(arguments, "name", f"dispatch{self.context.dispatch_count}", node)
        if not name.isidentifier():
            self.fail(node, f"the name of a dispatch must be an identifier, not {name!r}")
        if name in self.context.dispatch_names:
            self.fail(node, f"there already is a dispatch called {name!r} in this kernel")
        self.context.dispatch_count += 1
        self.context.dispatch_names.append(name)
        return name

    def dispatch_arms(
        self, branches: ast.List | ast.Tuple, selector: Value, policy: str, name: str
    ) -> Any:
        values: list[Any] = []

        def evaluate(branch: ast.expr) -> Callable[[], None]:
            def lower() -> None:
                value = self.expression(branch)
                if isinstance(value, TupleValue):
                    value = self.as_vector(value, branch)
                values.append(value)

            return lower

        blocks = [self.arm(evaluate(branch))[1] for branch in branches.elts]
        self.check_branches(branches, values)
        results: list[Value] = []
        yields: list[list[Value]] = [[] for _ in blocks]
        with self.at(branches):
            joined = self.join(name, values, blocks, results, yields)
        arms = tuple(
            Region((), tuple(block), tuple(row)) for block, row in zip(blocks, yields, strict=True)
        )
        self.builder.emit(ir.Dispatch(tuple(results), selector, arms, policy, name))
        return joined

    def check_branches(self, branches: ast.List | ast.Tuple, values: list[Any]) -> None:
        """All branches of one type; Python numbers take the type of the others."""
        widths = []
        for branch, value in zip(branches.elts, values, strict=True):
            width = _width(value)
            if width is None:
                self.fail(branch, f"a branch must be a number or vector: {self.describe(value)}")
            widths.append(width)
        kinds = {t for value in values for t in _types(value) if isinstance(t, DType)}
        if len(set(widths)) > 1 or len(kinds) > 1:
            given = ", ".join(self.describe(value) for value in values)
            self.fail(branches, f"all branches of a dispatch must be of one type; given: {given}")


@dataclass(frozen=True)
class _Retyped:
    """A value before a loop, carried with a wider type."""

    value: Scalar
    dtype: DType | Weak


def trip_count(build: Builder, start: Value, stop: Value, step: Value, known: Scalar) -> Value:
    """``len(range(start, stop, step))`` as i64; a step of 0 gives 0."""
    if isinstance(known, Known) and known.value == 1:
        counts_from_0 = build.known_integer(start) == 0
        distance = stop if counts_from_0 else build.compute("subtract", stop, start)
        if build.is_at_least_0(distance):
            return distance
        return build.compute("maximum", distance, build.constant(0, i64))
    zero, one = build.constant(0, i64), build.constant(1, i64)
    positive = build.compute("greater", step, zero)
    distance = build.compute("subtract", stop, start)
    backward = build.compute("subtract", start, stop)
    span = build.compute("select", positive, distance, backward)
    stride = build.compute("abs", step)
    rounded = build.compute("add", span, build.compute("subtract", stride, one))
    return build.compute("maximum", build.compute("floor_divide", rounded, stride), zero)


def _construct(node: ast.AST) -> str:
    names = {
        "Lambda": "a lambda",
        "ListComp": "a comprehension",
        "SetComp": "a comprehension",
        "DictComp": "a comprehension",
        "GeneratorExp": "a generator expression",
        "Dict": "a dict",
        "Set": "a set",
        "JoinedStr": "an f-string",
        "With": "with",
        "Try": "try",
        "Raise": "raise",
        "Assert": "assert",
        "FunctionDef": "a nested function",
        "ClassDef": "a class",
        "Import": "import",
        "ImportFrom": "import",
        "Delete": "del",
        "Global": "global",
        "Nonlocal": "nonlocal",
        "Break": "break",
        "Continue": "continue",
        "Match": "match",
        "Yield": "yield",
        "Await": "await",
        "Slice": "a slice",
        "Starred": "a starred expression",
    }
    name = type(node).__name__
    return names.get(name, f"{name.lower()} syntax")


def _assigned_names(statements: Iterable[ast.AST]) -> set[str]:
    """Names that the statements bind, nested ones included."""
    return {
        node.id
        for statement in statements
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _contains(statements: Iterable[ast.AST], kinds: Any) -> bool:
    return any(isinstance(n, kinds) for statement in statements for n in ast.walk(statement))


def _breaks(statements: Iterable[ast.stmt]) -> bool:
    """Whether the body of a loop contains a break of that loop."""
    for statement in statements:
        if isinstance(statement, ast.Break):
            return True
        if isinstance(statement, ast.For | ast.While):
            continue
        nested = [
            *getattr(statement, "body", ()),
            *getattr(statement, "orelse", ()),
        ]
        if _breaks(nested):
            return True
    return False


def _exits_early(statements: Sequence[ast.stmt]) -> bool:
    return _breaks(statements) or _contains(statements, ast.Return)


def _same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    if isinstance(first, Known) and isinstance(second, Known):
        if type(first.value) is not type(second.value):
            return False
        if isinstance(first.value, float):
            return first.value.hex() == second.value.hex()
        return bool(first.value == second.value)
    return bool(type(first) is type(second) and first == second)


def _is_undefined(value: Any) -> bool:
    return value is None or isinstance(value, Undefined)


def _width(value: Any) -> int | None:
    """0 for a scalar, the width of a vector, None for what cannot be carried or merged."""
    if isinstance(value, VectorValue):
        return len(value.items)
    if isinstance(value, Number | _Retyped):
        return 0
    return 0 if isinstance(value, Known) and is_number(value.value) else None


def _scalars(operand: Any) -> tuple[Any, ...]:
    return operand.items if isinstance(operand, VectorValue) else (operand,)


def _types(operand: Any) -> list[DType | Weak]:
    return [
        item.dtype if isinstance(item, _Retyped) else type_of(item) for item in _scalars(operand)
    ]


def _values_of(carried: dict[str, Any]) -> tuple[Value, ...]:
    return tuple(
        item.value for operand in carried.values() for item in _scalars(operand)
    )


def _zero_like(value: Any) -> Any:
    if isinstance(value, VectorValue):
        return VectorValue(tuple(_zero_like(item) for item in value.items))
    dtype = type_of(value)
    if dtype == "int":
        return Known(0)
    if dtype == "float":
        return Known(0.0)
    assert isinstance(dtype, DType)
    return Known(dtype.dtype.type(0)) if not dtype.is_bool else Known(False)


__all__ = ["Context", "FunctionLowering", "KernelError", "PlaneInput", "TupleValue", "trip_count"]
