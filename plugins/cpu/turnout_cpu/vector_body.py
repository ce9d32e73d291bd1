"""A body that runs several neighbouring positions at once, one in each lane of explicit vectors.

LLVM's vectoriser works from the inside out: it takes a loop without inner loops and asks whether
several rounds can run at once. Here the iteration space is known to be independent, so all control
flow inside of it can be run in lanes, with a mask of the lanes that take part: a branch runs its
arms one after the other, each only if some lane takes it; a loop runs until no lane is left, and
lanes that are done keep their values. Lanes that do not take part never touch memory.

The last positions, fewer than there are lanes, run the same code under a mask. Positions that take
a rare and costly branch wait until they fill a vector (`turnout_cpu.waiting`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from turnout.plugin import Options, ir

from . import mathematics, vector_math
from .accesses import has_guarded_bytes
from .body import SPACE_TAG, ArrayLayout, Body, Vectors
from .lanes import COSTLY, Form, Forms, cost_of_operation
from .operations import SPELLINGS, any_true, cast
from .text import ModuleText, ValueType, storage_type_of, type_of
from .waiting import waiting_branches

LANES_TAG = "turnout.lanes"
"""Metadata by which `turnout_cpu.report` knows loops in explicit vectors; with their lanes."""

SKIP_COST = COSTLY
"""From which cost on a jump, which may be mispredicted, is worth skipping an arm."""

_MUST_SKIP = 1_000_000


@dataclass(frozen=True)
class Queue:
    """Where positions wait for a branch, where their number is, and how many lanes may wait."""

    positions: str
    count: str
    most: int


class VectorBody(Body):
    """One function that runs the positions of a unit in explicit vectors, where rows are dense."""

    def __init__(
        self,
        unit: ir.Unit,
        module: ModuleText,
        vectors: Vectors,
        options: Options,
        name: str,
        lanes: int,
    ) -> None:
        super().__init__(
            unit, module, vectors, options, name, has_dense_rows=True, is_reported=True
        )
        self.lanes = lanes
        self.written = ()  # the last axis is that of the lanes
        self.forms = Forms(unit)
        self.lane_numbers = f"<{', '.join(f'i64 {lane}' for lane in range(lanes))}>"
        # Which lanes run what is being written; None stands for all. It is never empty, except in
        # arms that are not worth a jump.
        self.mask: str | None = None
        # Those that are left of all where some wait.
        self.mask_of_rest = ""
        # LLVM gets masks of 8 bytes wrong, unless the unit is compiled without an instruction.
        self.has_safe_byte_masks = lanes != 8 or has_guarded_bytes(unit.body)
        self.waiting_branches = self.find_waiting_branches()

    def find_waiting_branches(self) -> list[tuple[ir.If, int]]:
        # What follows runs under a mask then.
        is_slow = any(array.dtype.bits <= 8 for array in self.unit.arrays.values())
        if is_slow and not self.has_safe_byte_masks:
            return []
        return waiting_branches(self.unit, self.forms, self.lanes, self.counters)

    # The iteration space

    def innermost(self, first: str, stop: str, properties: Sequence[str]) -> None:
        function = self.function
        (position,) = self.unit.body.parameters[-1:]
        last_full = function.value(f"sub i64 {stop}, {self.lanes}")
        queues = {id(branch): self.queue(most) for branch, most in self.waiting_branches}

        def condition(base: str) -> str:
            return function.value(f"icmp sle i64 {base}, {last_full}")

        def body(base: str) -> list[str]:
            self.names[position.number] = base
            with self.under(None):
                for statement in self.unit.body.body:
                    if isinstance(statement, ir.If) and id(statement) in queues:
                        self.wait(statement.condition, base, queues[id(statement)])
                    self.statement(statement)
            return [function.value(f"add nsw i64 {base}, {self.lanes}")]

        (rest,) = self.repeat([("i64", first)], condition, body, self.loop(SPACE_TAG))
        remainder, done = function.new_labels("remainder", "done")
        is_left = function.value(f"icmp slt i64 {rest}, {stop}")
        function.branch(is_left, remainder, done)
        function.start(remainder)
        left = self.splat("i64", function.value(f"sub i64 {stop}, {rest}"))
        wide = self.kind(ir.i64)
        self.names[position.number] = rest
        with self.under(function.value(f"icmp ugt {wide} {left}, {self.lane_numbers}")):
            self.statements(self.unit.body.body)
        function.jump(done)
        function.start(done)
        for queue in queues.values():
            self.run_rest(queue)

    # Positions that wait

    def queue(self, most: int) -> Queue:
        """An empty queue, with room for a vector of positions behind one that is nearly full."""
        positions, count = self.function.new_value(), self.function.new_value()
        self.allocations += [
            f"  {positions} = alloca [{2 * self.lanes} x i64], align 64",
            f"  {count} = alloca i64",
        ]
        self.function.write(f"store i64 0, ptr {count}")
        return Queue(positions, count, most)

    def wait(self, condition_of_branch: ir.Value, base: str, queue: Queue) -> None:
        """Let the lanes that take a branch wait if they are few; the mask loses them."""
        function, value, lanes = self.function, self.function.value, self.lanes
        condition, bits = self.kind(ir.bool_), f"i{self.lanes}"
        taking = self.narrowed(self.in_lanes(condition_of_branch))
        before, everyone = function.block, self.mask_in_lanes()
        given = value(f"bitcast {condition} {taking} to {bits}")
        number = value(f"call {bits} @llvm.ctpop.{bits}({bits} {given})")
        few, full, fitting, go_on = function.new_labels("few", "full", "fitting", "on")
        # No lane at all is a large unsigned number here.
        less = value(f"sub {bits} {number}, 1")
        function.branch(value(f"icmp ult {bits} {less}, {queue.most}"), few, go_on)

        function.start(few)
        count = value(f"load i64, ptr {queue.count}")
        total = self.write_down(base, given, queue.positions, count)
        others = value(f"xor {condition} {taking}, {condition.literal(True)}")
        rest = value(f"and {condition} {everyone}, {others}")
        before_full = function.block
        function.branch(value(f"icmp uge i64 {total}, {lanes}"), full, fitting)

        function.start(full)
        self.run_waiting(queue, str(lanes))
        behind = value(f"getelementptr i64, ptr {queue.positions}, i64 {lanes}")
        moved = value(f"load {self.kind(ir.i64)}, ptr {behind}, align 8")
        function.write(f"store {self.kind(ir.i64)} {moved}, ptr {queue.positions}, align 8")
        left = value(f"sub i64 {total}, {lanes}")
        function.jump(fitting)

        function.start(fitting)
        count = value(f"phi i64 [ {total}, %{before_full} ], [ {left}, %{full} ]")
        function.write(f"store i64 {count}, ptr {queue.count}")
        function.jump(go_on)

        function.start(go_on)
        self.mask = self.mask_of_rest = value(
            f"phi {condition} [ {rest}, %{fitting} ], [ {everyone}, %{before} ]"
        )

    def write_down(self, base: str, given: str, positions: str, count: str) -> str:
        """Write the positions of the lanes in the bits `given` behind others; their new number."""
        value, bits = self.function.value, f"i{self.lanes}"

        def some_are_left(left: str, number: str) -> str:
            return value(f"icmp ne {bits} {left}, 0")

        def write_one(left: str, number: str) -> list[str]:
            lane = value(f"call {bits} @llvm.cttz.{bits}({bits} {left}, i1 true)")
            position = value(f"add i64 {base}, {value(f'zext {bits} {lane} to i64')}")
            end = value(f"getelementptr i64, ptr {positions}, i64 {number}")
            self.function.write(f"store i64 {position}, ptr {end}")
            others = value(f"and {bits} {left}, {value(f'sub {bits} {left}, 1')}")
            return [others, value(f"add i64 {number}, 1")]

        start = [(bits, given), ("i64", count)]
        return self.repeat(start, some_are_left, write_one, super().loop(""))[1]

    def run_rest(self, queue: Queue) -> None:
        """Run what is left of a queue."""
        function = self.function
        left, done = function.new_labels("left", "done")
        count = function.value(f"load i64, ptr {queue.count}")
        function.branch(function.value(f"icmp ne i64 {count}, 0"), left, done)
        function.start(left)
        self.run_waiting(queue, count)
        function.jump(done)
        function.start(done)

    def run_waiting(self, queue: Queue, count: str) -> None:
        """Run the first positions of a queue."""
        self.function.write(
            f"call void @{waiting_name(self.name)}(ptr %args, ptr {queue.positions}, i64 {count})"
        )

    @contextmanager
    def independent(self, body: ir.Region | None) -> Iterator[list[str]]:
        """There is nothing left to declare to LLVM's vectoriser."""
        yield []

    def loop(self, tag: str, properties: Sequence[str] = ()) -> str:
        return super().loop(tag, [*properties, f'!{{!"{LANES_TAG}", !"{self.lanes}"}}'])

    # Values: `names` holds a scalar for uniform ones, that of lane 0 for consecutive ones, and a
    # vector for the rest.

    def kind(self, dtype: ir.DType) -> ValueType:
        return ValueType(dtype, self.lanes)

    def stored_kind(self, array: ArrayLayout) -> ValueType:
        """The type in memory: a bool is one byte, as in NumPy."""
        return self.kind(ir.u8 if array.dtype.is_bool else array.dtype)

    def value_type(self, value: ir.Value) -> str:
        return str(self.kind(value.dtype)) if self.forms.is_varying(value) else type_of(value.dtype)

    def passed(self, values: Sequence[ir.Value], receivers: Sequence[ir.Value]) -> tuple[str, ...]:
        return tuple(
            self.in_lanes(value) if self.forms.is_varying(receiver) else self.names[value.number]
            for value, receiver in zip(values, receivers, strict=True)
        )

    def in_lanes(self, value: ir.Value) -> str:
        """A value as a vector."""
        name, kind = self.names[value.number], self.kind(value.dtype)
        if self.forms.is_varying(value):
            return name
        if value.number in self.constants:
            return kind.literal(self.constants[value.number])
        wide = self.splat(type_of(value.dtype), name)
        if self.forms.of(value) is Form.UNIFORM:
            return wide
        return self.function.value(f"add {kind} {wide}, {self.lane_numbers}")

    def splat(self, scalar: str, name: str) -> str:
        """One scalar in every lane."""
        wide = f"<{self.lanes} x {scalar}>"
        first = self.function.value(f"insertelement {wide} poison, {scalar} {name}, i32 0")
        zeros = f"<{self.lanes} x i32> zeroinitializer"
        return self.function.value(f"shufflevector {wide} {first}, {wide} poison, {zeros}")

    def choose(self, dtype: ir.DType, mask: str, chosen: str, otherwise: str) -> str:
        """Lanes of one value or of another."""
        return SPELLINGS["select"](self.function, self.kind(dtype), mask, chosen, otherwise)

    # Masks

    @contextmanager
    def under(self, mask: str | None) -> Iterator[None]:
        """Write what runs in these lanes only."""
        outer, self.mask = self.mask, mask
        yield
        self.mask = outer

    def mask_in_lanes(self) -> str:
        return self.mask or self.kind(ir.bool_).literal(True)

    def narrowed(self, condition: str) -> str:
        """The lanes that run and for which a condition holds."""
        if self.mask is None:
            return condition
        return self.function.value(f"and {self.kind(ir.bool_)} {self.mask}, {condition}")

    # Statements

    def statement(self, statement: ir.Statement) -> None:
        match statement:
            case ir.Compute(result, operation, operands) if self.forms.is_varying(result):
                self.names[result.number] = self.compute_in_lanes(operation, operands)
            case ir.Cast(result, operand) if self.forms.is_varying(result):
                kinds = self.kind(operand.dtype), self.kind(result.dtype)
                wide = self.in_lanes(operand)
                self.names[result.number] = cast(self.function, *kinds, wide)
            case ir.Load(result, array, indices) if self.forms.is_varying(result):
                self.names[result.number] = self.load_in_lanes(self.arrays[array], indices)
            case ir.If(results, condition, then, otherwise) if self.forms.is_varying(condition):
                chosen = self.in_lanes(condition)
                inverse = self.function.value(
                    f"xor {self.kind(ir.bool_)} {chosen}, {self.kind(ir.bool_).literal(True)}"
                )
                self.choice(results, [(chosen, then), (inverse, otherwise)])
            case ir.Switch(results, selector, arms) if self.forms.is_varying(selector):
                self.choice(results, self.cases(selector, arms))
            case ir.For() if self.forms.is_masked(statement):
                self.masked_for(statement)
            case ir.While() if self.forms.is_masked(statement):
                self.masked_while(statement)
            case _:
                super().statement(statement)

    def compute_in_lanes(self, operation: str, operands: Sequence[ir.Value]) -> str:
        names = tuple(self.in_lanes(operand) for operand in operands)
        kind = self.kind(operands[-1].dtype)
        if operation in vector_math.ARITY:
            return mathematics.call_in_lanes(
                self.function, operation, kind, names, self.vectors.isa, self.mask
            )
        return SPELLINGS[operation](self.function, kind, *names)

    def count(self, array: str, index: ir.Value) -> None:
        value, wide = self.function.value, self.kind(ir.i64)
        chosen = self.in_lanes(index)
        *counts, last = self.counts[array]
        for element, count in enumerate(counts):
            is_meant = value(f"icmp eq {wide} {chosen}, {wide.literal(element)}")
            self.add_to_count(count, self.number_of(self.narrowed(is_meant)))
        # All of them here, which takes no time: `counted` takes away the others.
        self.add_to_count(last, str(self.lanes) if self.mask is None else self.number_of(self.mask))

    def number_of(self, mask: str) -> str:
        """How many lanes are in a mask, as i64."""
        bits, value = f"i{self.lanes}", self.function.value
        given = value(f"bitcast {self.kind(ir.bool_)} {mask} to {bits}")
        number = value(f"call {bits} @llvm.ctpop.{bits}({bits} {given})")
        return value(f"zext {bits} {number} to i64") if self.lanes < 64 else number

    def counted(self, array: str) -> list[str]:
        *others, every = super().counted(array)
        last = every
        for other in others:
            last = self.function.value(f"sub i64 {last}, {other}")
        return [*others, last]

    # Branches

    def cases(
        self, selector: ir.Value, arms: Sequence[ir.Region]
    ) -> Iterator[tuple[str, ir.Region]]:
        """The arms of a switch that a selector can reach, with the lanes that take them."""
        kind, chosen = self.kind(selector.dtype), self.in_lanes(selector)
        last = min(len(arms) - 1, selector.dtype.maximum)
        if last == 0:
            yield self.kind(ir.bool_).literal(True), arms[0]
            return
        for number, arm in enumerate(arms[: last + 1]):
            relation = {0: "less_equal", last: "greater_equal"}.get(number, "equal")
            yield SPELLINGS[relation](self.function, kind, chosen, kind.literal(number)), arm

    def choice(self, results: Sequence[ir.Value], arms: Iterable[tuple[str, ir.Region]]) -> None:
        """Run each arm in the lanes that take it, and put their values together."""
        conditions, values = [], []
        for condition, arm in arms:
            conditions.append(condition)
            with self.under(self.narrowed(condition)):
                values.append(self.arm(arm, results))
        for place, result in enumerate(results):
            chosen = values[-1][place]
            for condition, names in zip(conditions[-2::-1], values[-2::-1], strict=True):
                chosen = self.choose(result.dtype, condition, names[place], chosen)
            self.names[result.number] = chosen

    def arm(self, arm: ir.Region, results: Sequence[ir.Value]) -> tuple[str, ...]:
        """Run an arm under the mask, unless no lane takes it and a jump is worth it."""
        if self.cost(arm) < SKIP_COST:
            self.statements(arm.body)
            return self.passed(arm.yields, results)
        function = self.function
        taken, done = function.new_labels("taken", "done")
        before = function.block
        function.branch(any_true(function, self.lanes, self.mask_in_lanes()), taken, done)
        function.start(taken)
        self.statements(arm.body)
        names, after = self.passed(arm.yields, results), function.block
        function.jump(done)
        function.start(done)
        return tuple(
            function.value(
                f"phi {self.value_type(result)} "
                f"[ {name}, %{after} ], [ zeroinitializer, %{before} ]"
            )
            for result, name in zip(results, names, strict=True)
        )

    def cost(self, region: ir.Region) -> int:
        """About how many instructions a region takes; a great many if it must not run idly."""
        return sum(self.cost_of(statement) for statement in region.body)

    def cost_of(self, statement: ir.Statement) -> int:
        match statement:
            case ir.Compute(result, operation) if self.forms.is_varying(result):
                return cost_of_operation(operation)
            case ir.Store(array=array) if array in self.counters:
                return 2 * self.counters[array]
            case ir.Load(indices=indices) | ir.Store(indices=indices):
                # What is uniform is read without a mask.
                if self.forms.are_uniform(indices):
                    return _MUST_SKIP
                return 1 if self.forms.are_consecutive(indices) else self.lanes
            case ir.If() | ir.Switch():
                return 1 + sum(self.cost(region) for region in statement.regions)
            case ir.For() | ir.While() | ir.LocalArray():
                return _MUST_SKIP
        return 1

    # Loops

    def masked_while(self, statement: ir.While) -> None:
        def holds(*carried: str) -> str:
            self.bind(statement.condition.parameters, carried)
            self.statements(statement.condition.body)
            return self.in_lanes(statement.condition.yields[0])

        self.masked_loop(statement, statement.body.parameters, [], [], holds)

    def masked_for(self, statement: ir.For) -> None:
        kind, function = self.kind(ir.i64), self.function
        index, *parameters = statement.body.parameters
        start, stop, step = statement.start, self.in_lanes(statement.stop), statement.step
        by_one = self.constants.get(step.number) == 1
        (stride,) = self.passed([step], [index])
        counters, strides = self.carried([start], [index]), [stride]
        if not by_one:
            left = self.rounds(kind, self.in_lanes(start), stop, self.in_lanes(step))
            counters.append((str(kind), left))
            strides.append(kind.literal(-1))

        def holds(current: str, *rest: str) -> str:
            self.names[index.number] = current
            if by_one:
                return function.value(f"icmp slt {kind} {self.in_lanes(index)}, {stop}")
            return function.value(f"icmp ne {kind} {rest[0]}, {kind.literal(0)}")

        self.masked_loop(statement, parameters, counters, strides, holds)

    def masked_loop(
        self,
        statement: ir.For | ir.While,
        parameters: Sequence[ir.Value],
        counters: Sequence[tuple[str, str]],
        strides: Sequence[str],
        condition: Callable[..., str],
    ) -> None:
        """Repeat until the condition holds in no lane; lanes that are done keep their values.

        Counters have a type and a first value, and go on by their stride in all lanes;
        `condition` takes them and the parameters.
        """
        function, varying = self.function, self.forms.is_varying
        mask_type, body = str(self.kind(ir.bool_)), statement.regions[-1]
        # What is the same in all lanes that run differs between those that are done.
        common = [k for k, value in enumerate(parameters) if not varying(value)]
        initial = self.carried(statement.initial, parameters)
        initial += self.carried(
            [statement.initial[k] for k in common], [statement.results[k] for k in common]
        )
        begin = len(counters)
        end = begin + len(parameters)
        inside = ""

        def some_lane_holds(active: str, *state: str) -> str:
            nonlocal inside
            with self.under(active):
                inside = self.narrowed(condition(*state[:end]))
            return any_true(function, self.lanes, inside)

        def advance(active: str, *state: str) -> list[str]:
            runs = inside
            with self.under(runs):
                self.bind(parameters, state[begin:end])
                self.statements(body.body)
                following = list(self.passed(body.yields, parameters))
                following += [self.in_lanes(body.yields[k]) for k in common]
            for place, ((wanted, _), before) in enumerate(zip(initial, state[begin:], strict=True)):
                if place not in common:
                    after = following[place]
                    following[place] = function.value(
                        f"select {mask_type} {runs}, {wanted} {after}, {wanted} {before}"
                    )
            counted = [
                function.value(f"add {wanted} {current}, {stride}")
                for (wanted, _), current, stride in zip(
                    counters, state[:begin], strides, strict=True
                )
            ]
            return [runs, *counted, *following]

        state = [(mask_type, self.mask_in_lanes()), *counters, *initial]
        loop = self.loop(str(statement.line or ""))
        _, *last = self.repeat(state, some_lane_holds, advance, loop)
        for place, number in enumerate(common, start=end):
            last[begin + number] = last[place]
        self.bind(statement.results, last[begin:end])

    # Memory

    def local_array(self, array: str, dtype: ir.DType, shape: tuple[int, ...]) -> None:
        """One array per lane; the lanes of an element are neighbours."""
        strides = [dtype.itemsize * self.lanes]
        for extent in reversed(shape):
            strides.insert(0, strides[0] * extent)
        size_bytes = strides.pop(0)
        if array in self.arrays:
            pointer = self.arrays[array].pointer  # the remainder takes that of the full vectors
        else:
            pointer = self.function.new_value()
            self.allocations.append(f"  {pointer} = alloca [{size_bytes} x i8], align 64")
        filled = f"ptr align 64 {pointer}, i8 0, i64 {size_bytes}, i1 false"
        self.function.write(f"call void @llvm.memset.p0.i64({filled})")
        extents = tuple(map(str, shape))
        self.arrays[array] = ArrayLayout(
            dtype, pointer, extents, tuple(map(str, strides)), has_dense_rows=False, is_local=True
        )

    def load_in_lanes(self, array: ArrayLayout, indices: Sequence[ir.Value]) -> str:
        kind, value = self.stored_kind(array), self.function.value
        if array.is_local and self.forms.are_uniform(indices):
            stored = value(f"load {kind}, ptr {self.first_element(array, indices)}, align 1")
        elif self.is_row(array, indices):
            stored = self.load_row(kind, self.first_element(array, indices))
        else:
            stored = self.gather(kind, self.elements(array, indices))
        # Any byte but 0 is true, as in NumPy.
        return (
            value(f"icmp ne {kind} {stored}, {kind.literal(0)}") if array.dtype.is_bool else stored
        )

    def store(
        self, array: str, indices: Sequence[ir.Value], value: ir.Value, combine: str | None
    ) -> None:
        assert combine is None, "units with atomic updates have no explicit vectors"
        layout = self.arrays[array]
        kind = self.stored_kind(layout)
        stored = cast(self.function, self.kind(value.dtype), kind, self.in_lanes(value))
        if layout.is_local and self.forms.are_uniform(indices):
            self.store_local(kind, stored, self.first_element(layout, indices))
        elif self.is_row(layout, indices):
            self.store_row(kind, stored, self.first_element(layout, indices))
        else:
            self.scatter(kind, stored, self.elements(layout, indices))

    def is_row(self, array: ArrayLayout, indices: Sequence[ir.Value]) -> bool:
        """Whether the lanes access neighbours in memory, in a way that a mask is safe for."""
        if array.is_local or not self.forms.are_consecutive(indices):
            return False
        # Gathers and scatters of bytes become branches.
        return self.mask is None or array.dtype.bits > 8 or self.has_safe_byte_masks

    def load_row(self, kind: ValueType, pointer: str) -> str:
        if self.mask is None:
            return self.function.value(f"load {kind}, ptr {pointer}, align 1")
        arguments = f"ptr align 1 {pointer}, {self.masked(kind)}, {kind} zeroinitializer"
        name = f"@llvm.masked.load.{kind.suffix}.p0"
        return self.function.value(f"call {kind} {name}({arguments})")

    def store_row(self, kind: ValueType, stored: str, pointer: str) -> None:
        if self.mask is None:
            self.function.write(f"store {kind} {stored}, ptr {pointer}, align 1")
            return
        arguments = f"{kind} {stored}, ptr align 1 {pointer}, {self.masked(kind)}"
        name = f"@llvm.masked.store.{kind.suffix}.p0"
        masked_store = f"call void {name}({arguments})"
        if self.mask != self.mask_of_rest:
            self.function.write(masked_store)
            return
        # Usually no lane waits, and processors that wait for a mask before they go on lose by it.
        function = self.function
        whole, part, stored_all = function.new_labels("whole", "part", "stored")
        bits = function.value(f"bitcast {self.masked(kind)} to i{self.lanes}")
        is_whole = function.value(f"icmp eq i{self.lanes} {bits}, -1")
        function.branch(is_whole, whole, part)
        function.start(whole)
        function.write(f"store {kind} {stored}, ptr {pointer}, align 1")
        function.jump(stored_all)
        function.start(part)
        function.write(masked_store)
        function.jump(stored_all)
        function.start(stored_all)

    def gather(self, kind: ValueType, pointers: str) -> str:
        given = f"<{self.lanes} x ptr> align 1 {pointers}, {self.masked(kind)}"
        name = f"@llvm.masked.gather.{kind.suffix}.v{self.lanes}p0"
        arguments = f"{given}, {kind} zeroinitializer"
        return self.function.value(f"call {kind} {name}({arguments})")

    def scatter(self, kind: ValueType, stored: str, pointers: str) -> None:
        given = f"<{self.lanes} x ptr> align 1 {pointers}, {self.masked(kind)}"
        name = f"@llvm.masked.scatter.{kind.suffix}.v{self.lanes}p0"
        self.function.write(f"call void {name}({kind} {stored}, {given})")

    def store_local(self, kind: ValueType, stored: str, pointer: str) -> None:
        if self.mask is not None:
            # Nobody else reads or writes the element. Unlike a masked store this keeps the array
            # in registers where that is possible.
            before = self.function.value(f"load {kind}, ptr {pointer}, align 1")
            stored = self.function.value(
                f"select {self.masked(kind)}, {kind} {stored}, {kind} {before}"
            )
        self.function.write(f"store {kind} {stored}, ptr {pointer}, align 1")

    def masked(self, kind: ValueType) -> str:
        return f"{kind.like(ir.bool_)} {self.mask_in_lanes()}"

    def first_element(self, array: ArrayLayout, indices: Sequence[ir.Value]) -> str:
        """Address of the element of lane 0, out of range where that lane does not take part."""
        return self.address(array, self.named(indices), is_in_range=False)

    def elements(self, array: ArrayLayout, indices: Sequence[ir.Value]) -> str:
        """Address of the element of each lane."""
        value, wide = self.function.value, self.kind(ir.i64)
        is_far = [self.forms.of(index) is not Form.UNIFORM for index in indices]
        if array.has_dense_rows and is_far[-1] and not any(is_far[:-1]):
            # The processor adds an index to a base by itself.
            row = self.address(array, (*self.named(indices[:-1]), "0"), is_in_range=False)
            wanted, last = storage_type_of(array.dtype), self.in_lanes(indices[-1])
            return value(f"getelementptr {wanted}, ptr {row}, {wide} {last}")
        near = tuple(
            "0" if far else self.names[index.number]
            for index, far in zip(indices, is_far, strict=True)
        )
        base = self.address(array, near, is_in_range=False)
        width = array.dtype.itemsize if array.is_local else 0
        offsets = f"<{', '.join(f'i64 {lane * width}' for lane in range(self.lanes))}>"
        strides = (
            [*array.strides[:-1], str(array.dtype.itemsize)]
            if array.has_dense_rows
            else array.strides
        )
        for index, stride, far in zip(indices, strides, is_far, strict=True):
            if far:
                term = value(f"mul {wide} {self.in_lanes(index)}, {self.splat('i64', stride)}")
                offsets = value(f"add {wide} {offsets}, {term}")
        return value(f"getelementptr i8, ptr {base}, {wide} {offsets}")


def waiting_name(body: str) -> str:
    """Name of the function that runs the positions that wait in a body."""
    return f"{body}.waiting"


class WaitingBody(VectorBody):
    """The function ``void (ptr args, ptr positions, i64 count)`` that runs the body of a unit.

    It runs as many positions as there are lanes, or fewer.
    """

    def __init__(
        self,
        unit: ir.Unit,
        module: ModuleText,
        vectors: Vectors,
        options: Options,
        name: str,
        lanes: int,
    ) -> None:
        super().__init__(unit, module, vectors, options, name, lanes)
        self.forms = Forms(unit, Form.VARYING)

    def text(self) -> str:
        for parameter in self.unit.parameters:
            self.parameter(parameter)
        self.statements(self.unit.prologue)
        self.start_counts()
        value, wide, condition = self.function.value, self.kind(ir.i64), self.kind(ir.bool_)
        mask = value(f"icmp ugt {wide} {self.splat('i64', '%count')}, {self.lane_numbers}")
        stored = value(f"load {wide}, ptr %positions, align 8")
        # What stands behind the last position is anything.
        (position,) = self.unit.body.parameters
        self.names[position.number] = value(
            f"select {condition} {mask}, {wide} {stored}, {wide} zeroinitializer"
        )
        with self.under(mask):
            self.statements(list(self.uncounted()))
        self.add_counts()
        self.function.write("ret void")
        header = (
            f"define internal void @{waiting_name(self.name)}(ptr noalias readonly %args, "
            f"ptr noalias readonly %positions, i64 %count) noinline nounwind alignstack(64) "
            f'"prefer-vector-width"="{self.vectors.bits}" {{'
        )
        return "\n".join([header, "entry:", *self.allocations, *self.function.lines, "}"])

    def uncounted(self) -> Iterator[ir.Statement]:
        """The body, without counting what was counted before a position began to wait."""
        (first, _), *_ = self.waiting_branches
        has_begun = False
        for statement in self.unit.body.body:
            has_begun = has_begun or statement is first
            if has_begun or getattr(statement, "array", None) not in self.counters:
                yield statement
