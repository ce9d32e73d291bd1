"""Loops of a kernel: ranges, while, unrolling, and the values that they carry."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from .. import ir
from ..ir import DType, Region, Value, bool_, i64
from ..records import record
from .builder import Builder
from .calls import MAXIMUM_UNROLL, CallLowering
from .linear import Linear
from .scope import RETURNED, VALUE
from .syntax import (
    assigned_names,
    breaks,
    contains,
    exits_early,
    names_of_changed_items,
)
from .values import (
    Known,
    Number,
    PlaneInput,
    RangeValue,
    Retyped,
    Scalar,
    Undefined,
    VectorValue,
    describe,
    is_undefined,
    result_type,
    scalars_of,
    strong,
    type_of,
    types_of,
    values_of,
    weakness,
    width_of,
    zero_like,
)


@record
class LoweredBody:
    """The body of a loop: what holds after it, and how to make the loop of it.

    `statement` is called with the results of the loop, the values that it carries on entry, and
    those that its body gives to the next iteration.
    """

    environment: dict[str, Any]
    block: list[ir.Statement]
    statement: Callable[[tuple[Value, ...], tuple[Value, ...], tuple[Value, ...]], ir.Statement]


_AFTER_LOOP = "it is the variable of a loop that has ended; assign it to another name in the loop"


class LoopLowering(CallLowering):
    """Lowers loops; other statements are in `FunctionLowering`."""

    @abstractmethod
    def sequence(self, steps: Sequence[Callable[[], None]]) -> None:
        """Run steps of lowering, with those after a possible exit in a branch of their own."""

    @abstractmethod
    def assign(self, target: ast.expr, value: Any) -> None:
        """Bind or store a value."""

    def statement_For(self, node: ast.For) -> None:  # noqa: N802
        if node.orelse:
            self.fail(node.orelse[0], "for ... else is not part of the kernel language")
        iterable = self.expression(node.iter)
        if not isinstance(iterable, RangeValue):
            self.unroll(node, self.items_of(iterable, node.iter))
            return
        if not isinstance(node.target, ast.Name):
            self.fail(node.target, "the target of a loop over a range must be a name")
        bounds = self.range_bounds(iterable, node)
        if _known_int(bounds[2]) == 0:
            self.fail(node.iter, "the step of a range must not be zero")
        asserted = iterable.intent == "parallel"
        self.context.asserted_loops += asserted
        try:
            if exits_early(node.body):
                if asserted:
                    self.fail(node, "a tn.parallel loop cannot be left by break or return")
                self.counted_while(node, node.target.id, bounds)
            else:
                self.counted_for(node, node.target.id, bounds, iterable.intent)
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
        if len(items) > MAXIMUM_UNROLL:
            self.fail(node, f"at most {MAXIMUM_UNROLL} items can be unrolled; loop over a range")
        broken, continued = self.exit_names()

        def iteration(item: Any) -> None:
            self.environment[continued] = Known(False)
            self.assign(node.target, item)
            with self.inside_loop(broken, continued):
                self.block(node.body)

        self.environment[broken] = Known(False)
        with self.inside_loop(broken, ""):
            self.sequence([partial(iteration, item) for item in items])
        del self.environment[broken]
        self.environment.pop(continued, None)

    def exit_names(self) -> tuple[str, str]:
        """Names of the flags for break and continue of a loop that starts here."""
        depth = len(self.loop_exits)
        return f"$broken{depth}", f"$continued{depth}"

    @contextmanager
    def inside_loop(self, broken: str, continued: str) -> Iterator[None]:
        """Let break and continue set these flags; an empty name where that is not possible."""
        self.loop_exits.append((broken, continued))
        try:
            yield
        finally:
            self.loop_exits.pop()

    def counted_for(
        self, node: ast.For, target: str, bounds: tuple[Scalar, Scalar, Scalar], intent: str
    ) -> None:
        start, stop, step = self.loop_bounds(bounds)
        _, continued = self.exit_names()

        def lower(carried: dict[str, Any]) -> LoweredBody:
            index = self.builder.value(i64)
            self.assume_in_range(index, start, stop, bounds[2])

            def body() -> None:
                self.environment |= carried
                self.environment[target] = Number(index, "int")
                self.environment[continued] = Known(False)
                with self.inside_loop("", continued):
                    self.block(node.body)

            environment, block = self.arm(body)
            return LoweredBody(
                environment,
                block,
                lambda results, initial, following: ir.For(
                    results,
                    start,
                    stop,
                    step,
                    initial,
                    Region((index, *values_of(carried)), tuple(block), following),
                    intent=intent,
                    line=self.line(node),
                ),
            )

        self.loop(node, self.changed_names(node) - {target}, lower)
        self.environment[target] = Undefined(_AFTER_LOOP)

    def loop_bounds(self, bounds: tuple[Scalar, Scalar, Scalar]) -> tuple[Value, Value, Value]:
        start, stop, step = (self.builder.materialise(bound, i64) for bound in bounds)
        return start, stop, step

    def assume_in_range(self, index: Value, start: Value, stop: Value, step: Scalar) -> None:
        """Record the bounds of a range variable."""
        known_step = _known_int(step)
        if known_step is None:
            return
        first, end = self.builder.linear(start), self.builder.linear(stop)
        if known_step > 0:
            self.builder.assume_between(index, first, end.plus(Linear((), -1)))
        else:
            self.builder.assume_between(index, end.plus(Linear((), 1)), first)

    def statement_While(self, node: ast.While) -> None:  # noqa: N802
        if node.orelse:
            self.fail(node.orelse[0], "while ... else is not part of the kernel language")
        if contains([node.test], ast.NamedExpr):
            node = _tested_inside(node)
        never_ends = isinstance(node.test, ast.Constant) and node.test.value
        if never_ends and not exits_early(node.body):
            self.fail(node, "this loop never ends: it has no break and no return")
        self.while_loop(node, self.changed_names(node), lambda: self.condition(node.test))

    def counted_while(
        self, node: ast.For, target: str, bounds: tuple[Scalar, Scalar, Scalar]
    ) -> None:
        """A loop over a range that may be left early."""
        build = self.builder
        first, last, stride = self.loop_bounds(bounds)
        trips = trip_count(build, first, last, stride, _known_int(bounds[2]))
        counter = f"$counter{len(self.loop_exits)}"
        self.environment[counter] = Known(0)

        def test() -> Scalar:
            return build.compare("less", self.environment[counter], Number(trips, "int"))

        def advance() -> None:
            count = build.materialise(self.environment[counter], i64)
            offset = build.compute("multiply", count, stride)
            index = build.compute("add", first, offset)
            self.assume_in_range(index, first, last, bounds[2])
            self.environment[target] = Number(index, "int")
            one = build.constant(1, i64)
            self.environment[counter] = Number(build.compute("add", count, one), "int")

        self.while_loop(node, self.changed_names(node) - {target} | {counter}, test, advance)
        del self.environment[counter]
        self.environment[target] = Undefined(_AFTER_LOOP)

    def while_loop(
        self,
        node: ast.For | ast.While,
        assigned: set[str],
        test: Callable[[], Scalar],
        advance: Callable[[], None] = lambda: None,
    ) -> None:
        broken, continued = self.exit_names()
        self.environment[broken] = Known(False)
        flags = [broken] if breaks(node.body) else []
        if contains(node.body, ast.Return):
            flags.append(RETURNED)
            # Values returned from inside of the loop are carried out of it; see `widened` too.
            assigned = assigned | {name for name in self.environment if name.startswith(VALUE)}
        assigned = assigned | set(flags)

        def lower(carried: dict[str, Any]) -> LoweredBody:
            tested = {name: self.fresh_like(operand) for name, operand in carried.items()}
            outcome: list[Value] = []

            def condition() -> None:
                self.environment |= tested
                outcome.append(self.guarded_condition(flags, test))

            _, condition_block = self.arm(condition)

            def body() -> None:
                self.environment |= carried
                self.environment[continued] = Known(False)
                for flag in flags:
                    self.environment[flag] = Known(False)  # else the condition had failed
                advance()
                with self.inside_loop(broken, continued):
                    self.block(node.body)

            environment, block = self.arm(body)
            return LoweredBody(
                environment,
                block,
                lambda results, initial, following: ir.While(
                    results,
                    initial,
                    Region(values_of(tested), tuple(condition_block), tuple(outcome)),
                    Region(values_of(carried), tuple(block), following),
                    line=self.line(node),
                ),
            )

        self.loop(node, assigned, lower)
        del self.environment[broken]

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

    # -- carried values --------------------------------------------------------------------------

    def changed_names(self, node: ast.For | ast.While) -> set[str]:
        """Names that the body of a loop binds, vectors with a component assigned included."""
        changed = assigned_names(node.body)
        for name in names_of_changed_items(node.body):
            value = self.environment.get(name)
            if isinstance(value, PlaneInput):
                value = self.context.read_plane(value.name)
            if isinstance(value, VectorValue):
                changed.add(name)
        return changed

    def loop(
        self,
        node: ast.stmt,
        assigned: set[str],
        lower: Callable[[dict[str, Any]], LoweredBody],
    ) -> None:
        """A loop that carries the assigned names that have a value before it.

        The types of carried values are those before the loop joined with those after its body;
        where the body changes a type, it is lowered again with the joined one, until nothing
        changes.
        """
        names = sorted(name for name in assigned if not is_undefined(self.environment.get(name)))
        for name in assigned.difference(names):
            self.environment[name] = Undefined(
                "it is first assigned inside of a loop, which may run no iteration; assign it "
                "before the loop"
            )
        entry = {name: self.carried_entry(name, node) for name in names}
        while True:
            state = self.snapshot()
            initial = tuple(
                value for operand in entry.values() for value in self.materialise_all(operand)
            )
            carried = {name: self.fresh_like(operand) for name, operand in entry.items()}
            for name, operand in carried.items():
                for item in scalars_of(operand):
                    self.builder.label(item.value, name)
            body = lower(carried)
            widened = self.widened(entry, body.environment, node)
            if widened is None:
                break
            entry = widened
            self.restore(state)
        with self.builder.reopened(body.block):
            following = tuple(
                value
                for name, operand in entry.items()
                for value in self.materialise_as(body.environment[name], operand)
            )
        after = {name: self.fresh_like(operand) for name, operand in entry.items()}
        self.builder.emit(body.statement(values_of(after), initial, following))
        self.environment |= after

    def carried_entry(self, name: str, node: ast.stmt) -> Any:
        value = self.environment[name]
        if isinstance(value, PlaneInput):
            value = self.read(name, node)
        if width_of(value) is None:
            self.fail(
                node,
                f"{name!r} is {self.describe(value)} before this loop and assigned inside of it; "
                "only numbers and vectors can change from iteration to iteration",
            )
        return value

    def widened(
        self, entry: dict[str, Any], environment: dict[str, Any], node: ast.stmt
    ) -> dict[str, Any] | None:
        """The entry values with types that hold after the body too, or None where they do."""
        result = dict(entry)
        for name, before in entry.items():
            after = environment[name]
            if isinstance(after, PlaneInput):
                after = self.context.read_plane(after.name)
                environment[name] = after
            if is_undefined(after) or width_of(after) != width_of(before):
                self.fail(
                    node,
                    f"{name!r} is {self.describe(before)} before this loop and "
                    f"{self.describe(after)} after an iteration",
                )
            result[name] = self.widen(before, after)
        for name, value in environment.items():
            is_returned = name.startswith(VALUE) and name not in entry
            if is_returned and value is not self.environment.get(name):
                if width_of(value) is None:
                    self.fail(node, f"cannot return {self.describe(value)} out of a loop")
                result[name] = zero_like(value)
        unchanged = result.keys() == entry.keys() and all(
            types_of(result[name]) == types_of(entry[name]) for name in entry
        )
        return None if unchanged else result

    def widen(self, before: Any, after: Any) -> Any:
        if isinstance(before, VectorValue):
            pairs = zip(before.items, after.items, strict=True)
            return VectorValue(tuple(self.widen(x, y) for x, y in pairs))
        (held,) = types_of(before)
        joined = result_type([held, type_of(after)])
        if joined == held:
            return before
        return Retyped(before.value if isinstance(before, Retyped) else before, joined)

    def materialise_all(self, operand: Any) -> Iterator[Value]:
        for item in scalars_of(operand):
            if isinstance(item, Retyped):
                yield self.builder.materialise(item.value, strong(item.dtype))
            else:
                yield self.builder.materialise(item)

    def materialise_as(self, operand: Any, model: Any) -> Iterator[Value]:
        for item, like in zip(scalars_of(operand), scalars_of(model), strict=True):
            yield self.builder.materialise(item, strong(types_of(like)[0]))

    def fresh_like(self, operand: Any) -> Any:
        """Fresh values of the types of a carried operand."""
        if isinstance(operand, VectorValue):
            return VectorValue(tuple(self.fresh_like(item) for item in operand.items))
        (dtype,) = types_of(operand)
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


def _known_int(value: Scalar) -> int | None:
    return int(value.value) if isinstance(value, Known) else None


def _tested_inside(node: ast.While) -> ast.While:
    """The loop with its test as the first statement of its body, which sees what the test binds."""
    leave = ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Break()], [])
    loop = ast.While(ast.Constant(True), [leave, *node.body], [])
    for made in (leave, leave.test, leave.body[0], loop, loop.test):
        ast.copy_location(made, node)
    return loop


def trip_count(
    build: Builder, start: Value, stop: Value, step: Value, known_step: int | None
) -> Value:
    """``len(range(start, stop, step))`` as i64; a step of 0 gives 0."""
    zero = build.constant(0, i64)
    if known_step is None:
        forward = build.compute("greater", step, zero)
        low = build.compute("select", forward, start, stop)
        high = build.compute("select", forward, stop, start)
    else:
        low, high = (start, stop) if known_step > 0 else (stop, start)
    if known_step in (1, -1) and build.known_integer(low) == 0:
        return high if build.is_at_least_0(high) else build.compute("maximum", high, zero)
    runs = build.compute("less", low, high)
    trips = build.compute("subtract", high, low)
    if known_step not in (1, -1):
        if known_step is None:
            runs = build.compute("bit_and", runs, build.compute("not_equal", step, zero))
        # The distance of two int64 always fits into uint64.
        one = build.constant(1, ir.u64)
        last = build.compute("subtract", build.cast(trips, ir.u64), one)
        stride = build.cast(build.compute("abs", step), ir.u64)
        count = build.compute("add", build.compute("floor_divide", last, stride), one)
        trips = build.cast(count, i64)
    return build.compute("select", runs, trips, zero)
