"""The function that runs the positions of a unit: loops over the iteration space, then statements.

Every SSA value of the unit becomes the name of an LLVM value, regions become basic blocks, and what
regions yield becomes phi nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from turnout.plugin import CompileError, Options, ir

from . import mathematics, vector_math
from .accesses import dense_strides, has_neighbours_along, may_declare_parallel
from .counters import private_counters
from .operations import SPELLINGS, cast
from .pace import runs_alone
from .space import constant_length, split_axes, written_axes
from .text import (
    FAST_MATH_FLAGS,
    FunctionText,
    ModuleText,
    ValueType,
    literal,
    storage_type_of,
    type_of,
)

LOOP_TAG = "turnout.loop"
"""Metadata by which `turnout_cpu.report` finds a loop again; its value is the source line."""

SPACE_TAG = "space"
"""Instead of a line: the innermost loop over the iteration space."""

UNROLLED_LOOPS = 8
"""Up to how many times LLVM may write out loops because they stand in a loop of constant length."""

SLOT_BYTES = 8

SIGNATURE = "(ptr noalias readonly %args, i64 %begin, i64 %end) nounwind alignstack(64)"
"""Of the entry point and of both bodies; nothing else refers to the slots.

Vectors that wait on the stack, for example for a call, must not lie across two lines of the cache:
then loops take up to three times as long, depending on where the stack of a thread begins.
"""


@dataclass(frozen=True)
class Vectors:
    """What the target offers to vector code.

    Attributes
    ----------
    isa : {"e", "d", "b"} or None
        Instruction set of the vector math library, None where there is none.
    bits : int
        Preferred width of vectors.
    """

    isa: vector_math.Isa | None
    bits: int


def slots(unit: ir.Unit) -> dict[str, int]:
    """Number of the first slot of each parameter; ``""`` is the slot of the violation record."""
    first: dict[str, int] = {}
    number = 0
    for parameter in unit.parameters:
        first[parameter.name] = number
        number += 1 + 2 * parameter.rank if isinstance(parameter, ir.ArrayParameter) else 1
    first[""] = number
    return first


def load_slot(function: FunctionText, number: int, wanted: str) -> str:
    """Read one slot of the arguments."""
    pointer = function.value(f"getelementptr i8, ptr %args, i64 {number * SLOT_BYTES}")
    return function.value(f"load {wanted}, ptr {pointer}, align {SLOT_BYTES}")


@dataclass(frozen=True)
class ArrayLayout:
    """An array parameter or local array: where it is and how it is laid out."""

    dtype: ir.DType
    pointer: str
    extents: tuple[str, ...]
    strides: tuple[str, ...]
    """Bytes per step on each axis."""
    has_dense_rows: bool
    is_local: bool = False
    aliasing: str = ""
    """Metadata of its loads and stores: which other arrays it shares no memory with."""


class Body:
    """One function that runs the positions of a unit."""

    def __init__(
        self,
        unit: ir.Unit,
        module: ModuleText,
        vectors: Vectors,
        options: Options,
        name: str,
        *,
        has_dense_rows: bool,
        is_reported: bool,
        is_ordered: bool = False,
    ) -> None:
        self.unit = unit
        self.vectors = vectors
        self.options = options
        self.name = name
        self.has_dense_rows = has_dense_rows
        self.is_reported = is_reported
        self.is_ordered = is_ordered  # one position after the other
        self.function = FunctionText(module, FAST_MATH_FLAGS if unit.fast_math else "")
        # Metadata of loads and stores: which of the surrounding loops are declared parallel.
        self.access_groups: tuple[str, ...] = ()
        self.slots = slots(unit)
        self.names: dict[int, str] = {}
        self.constants: dict[int, int | float | bool] = {}
        self.arrays: dict[str, ArrayLayout] = {}
        self.allocations: list[str] = []
        self.aliasing = self.known_aliasing()
        # The strides of other arrays are not known, so that neighbours are not known to be such.
        self.written = written_axes(unit) if has_dense_rows else ()
        self.sites = 0
        self.counters = private_counters(unit, options)
        # Where the counts of each element are.
        self.counts: dict[str, list[str]] = {}

    def text(self) -> str:
        for parameter in self.unit.parameters:
            self.parameter(parameter)
        self.statements(self.unit.prologue)
        self.sites = 0  # those of the body are counted
        self.start_counts()
        with self.independent(self.unit.body if self.unit.extents else None) as properties:
            self.space(properties)
        self.add_counts()
        self.function.write("ret i64 0")
        attributes = f'"prefer-vector-width"="{self.vectors.bits}"'
        if any(array.shape for array in self.unit.arrays.values()):
            # A few neighbours that are filled with zeros would become one store of another type,
            # which keeps LLVM from making vectors of the loop.
            attributes += ' "no-builtin-memset"'
        header = f"define internal i64 @{self.name}{SIGNATURE} {attributes} {{"
        return "\n".join([header, "entry:", *self.allocations, *self.function.lines, "}"])

    def parameter(self, parameter: ir.Parameter) -> None:
        first = self.slots[parameter.name]
        if isinstance(parameter, ir.ScalarParameter):
            stored = load_slot(self.function, first, storage_type_of(parameter.dtype))
            self.names[parameter.value.number] = self.from_storage(parameter.dtype, stored)
            return
        rank = parameter.rank
        pointer = load_slot(self.function, first, "ptr")
        extents = [load_slot(self.function, first + 1 + k, "i64") for k in range(rank)]
        strides = [load_slot(self.function, first + 1 + rank + k, "i64") for k in range(rank)]
        for axis, length in enumerate(parameter.shape):
            extents[axis] = extents[axis] if length is None else str(length)
        if self.has_dense_rows and (dense := dense_strides(parameter)):
            strides = list(map(str, dense))
        self.arrays[parameter.name] = ArrayLayout(
            parameter.dtype,
            pointer,
            tuple(extents),
            tuple(strides),
            has_dense_rows=rank > 0 and self.has_dense_rows,
            aliasing=self.aliasing.get(parameter.name, ""),
        )

    def known_aliasing(self) -> dict[str, str]:
        """Metadata of loads and stores of arrays that are known to lie apart from others."""
        others: dict[str, list[str]] = {}
        for first, second in self.unit.apart:
            others.setdefault(first, []).append(second)
            others.setdefault(second, []).append(first)
        metadata = self.function.module.metadata
        if not others:
            return {}
        domain = metadata("distinct !{{self}}")
        scopes = {array: metadata(f"distinct !{{{{self}}, {domain}}}") for array in others}
        lists = {array: metadata(f"!{{{scope}}}") for array, scope in scopes.items()}
        return {
            array: f", !alias.scope {lists[array]}, !noalias "
            + metadata(f"!{{{', '.join(scopes[each] for each in others[array])}}}")
            for array in others
        }

    # The iteration space

    def space(self, properties: Sequence[str]) -> None:
        """Loops over the positions ``[begin, end)`` of the iteration space, the body inside.

        Positions are counted in the order of nested loops. The axes at the end whose extents are
        constants are run whole and count as one position, because such loops are unrolled: here
        where `written_axes` says so, else by LLVM.
        """
        extents = self.unit.extents
        if not extents:
            self.statements(self.unit.body.body)
            return
        value = self.function.value
        lengths = [
            value(f"call i64 @llvm.smax.i64(i64 {self.names[extent.number]}, i64 0)")
            for extent in extents
        ]
        # How many positions one step on each split axis passes; the last one is 1.
        steps = ["1"]
        for length in reversed(lengths[1 : split_axes(self.unit)]):
            steps.insert(0, value(f"mul i64 {length}, {steps[0]}"))
        total = value(f"mul i64 {lengths[0]}, {steps[0]}")
        begin, end = "0", total  # constants leave no remainder
        if not runs_alone(self.unit):
            begin = value("call i64 @llvm.smax.i64(i64 %begin, i64 0)")
            end = value(f"call i64 @llvm.smin.i64(i64 %end, i64 {total})")
            end = value(f"call i64 @llvm.smax.i64(i64 {end}, i64 {begin})")
        self.axis(0, begin, end, lengths, steps, properties)

    def axis(
        self,
        axis: int,
        begin: str,
        end: str,
        lengths: Sequence[str],
        steps: Sequence[str],
        properties: Sequence[str],
    ) -> None:
        """The loop over one axis and those inside of it, for the positions ``[begin, end)``."""
        value = self.function.value
        is_innermost = axis == len(lengths) - 1 - len(self.written)
        if axis >= len(steps):
            first, stop, step = "0", lengths[axis], ""
        elif axis == len(steps) - 1:
            first, stop, step = begin, end, ""
        else:
            # An axis of length 0 further in leaves no position, so any step will do.
            step = steps[axis]
            divisor = value(f"call i64 @llvm.umax.i64(i64 {step}, i64 1)")
            first = value(f"udiv i64 {begin}, {divisor}")
            last = value(f"add i64 {end}, {divisor}")
            last = value(f"sub i64 {last}, 1")
            stop = value(f"udiv i64 {last}, {divisor}")

        if is_innermost:
            self.innermost(first, stop, properties)
            return
        final = begin_in_first = end_in_last = ""
        if step:
            final = value(f"sub i64 {stop}, 1")
            begin_in_first = self.distance(begin, first, step)
            end_in_last = self.distance(end, final, step)

        def body(position: str) -> list[str]:
            self.names[self.unit.body.parameters[axis].number] = position
            if step:
                is_first = value(f"icmp eq i64 {position}, {first}")
                inner_begin = value(f"select i1 {is_first}, i64 {begin_in_first}, i64 0")
                is_final = value(f"icmp eq i64 {position}, {final}")
                inner_end = value(f"select i1 {is_final}, i64 {end_in_last}, i64 {step}")
            else:
                inner_begin = inner_end = ""
            self.axis(axis + 1, inner_begin, inner_end, lengths, steps, properties)
            return []

        self.upward_loop(first, stop, [], body, self.loop("", properties))

    def distance(self, position: str, outer: str, step: str) -> str:
        """How far a position is from the beginning of an outer axis' round; at least 0."""
        value = self.function.value
        before = value(f"mul i64 {outer}, {step}")
        # The mask tells LLVM so. A maximum would do too, but LLVM computes it in the inner loop.
        return value(f"and i64 {value(f'sub i64 {position}, {before}')}, {2**63 - 1}")

    def innermost(self, first: str, stop: str, properties: Sequence[str]) -> None:
        """The loop over the last axis that is not written out, from `first` to `stop`."""
        parameters = self.unit.body.parameters
        innermost = len(parameters) - 1 - len(self.written)

        def body(position: str) -> list[str]:
            self.names[parameters[innermost].number] = position
            for places in itertools.product(*map(range, self.written)):
                for parameter, place in zip(parameters[innermost + 1 :], places, strict=True):
                    self.names[parameter.number] = str(place)
                self.statements(self.unit.body.body)
            return []

        has_loops = any(isinstance(each, ir.For | ir.While) for each in self.unit.body.body)
        is_gathering = bool(self.written) and not has_neighbours_along(self.unit, innermost)
        if is_gathering or self.is_ordered:
            # Vectors along the axes that are written out need no gathering.
            properties = [*properties, '!{!"llvm.loop.vectorize.enable", i1 false}']
        elif (has_loops and (constant_length(self.unit) or 0) > UNROLLED_LOOPS) or (
            runs_alone(self.unit) and innermost < split_axes(self.unit)
        ):
            # LLVM would write out short loops of known length before it makes vectors of them.
            properties = [*properties, '!{!"llvm.loop.unroll.disable"}']
        self.upward_loop(first, stop, [], body, self.loop(SPACE_TAG, properties))

    @contextmanager
    def independent(self, body: ir.Region | None) -> Iterator[list[str]]:
        """Declare the loops around `body` parallel where that is safe; None stands for no loop.

        Gives the properties of these loops; what is written inside of the `with` is their body.
        """
        arrays = {name: a for name, a in self.unit.arrays.items() if name not in self.counters}
        dense = {name for name, a in arrays.items() if self.has_dense_rows and dense_strides(a)}
        if (
            body is None
            or self.options.debug
            or not may_declare_parallel(body, arrays, dense, self.counters)
        ):
            yield []
            return
        outer = self.access_groups
        group = self.function.module.metadata("distinct !{}")
        self.access_groups = (*outer, group)
        yield [f'!{{!"llvm.loop.parallel_accesses", {group}}}']
        self.access_groups = outer

    def loop(self, tag: str, properties: Sequence[str] = ()) -> str:
        """Metadata of a loop; LLVM keeps entries it does not know."""
        module = self.function.module
        entries = list(properties)
        if tag and self.is_reported:
            entries.append(f'!{{!"{LOOP_TAG}", !"{tag}"}}')
        references = [module.metadata(entry) for entry in entries]
        return module.metadata(f"distinct !{{{', '.join(['{self}', *references])}}}")

    def upward_loop(
        self,
        first: str,
        stop: str,
        initial: Sequence[tuple[str, str]],
        body: Callable[..., list[str]],
        loop: str,
    ) -> list[str]:
        """``for index in range(first, stop)``; returns the names of the last carried values."""
        function = self.function

        def condition(index: str, *carried: str) -> str:
            return function.value(f"icmp slt i64 {index}, {stop}")

        def step(index: str, *carried: str) -> list[str]:
            following = body(index, *carried)
            # The index is below `stop` here, so it cannot wrap.
            return [function.value(f"add nsw i64 {index}, 1"), *following]

        return self.repeat([("i64", first), *initial], condition, step, loop)[1:]

    def repeat(
        self,
        initial: Sequence[tuple[str, str]],
        condition: Callable[..., str],
        body: Callable[..., list[str]],
        loop: str,
    ) -> list[str]:
        """Run `body` while `condition` holds; both take the carried values, `body` gives the next.

        `initial` has the LLVM type and the name of each value that is carried into the first round.
        Returns the names of the carried values at which the condition failed.
        """
        function = self.function
        header, inside, done = function.new_labels("loop", "body", "done")
        before = function.block
        function.jump(header)
        function.start(header)
        at = len(function.lines)
        carried = [function.new_value() for _ in initial]
        function.branch(condition(*carried), inside, done)
        function.start(inside)
        following = body(*carried)
        latch = function.block
        function.write(f"br label %{header}, !llvm.loop {loop}")
        # The values that come from the end of the body are known only now.
        function.lines[at:at] = [
            f"  {name} = phi {wanted} [ {value}, %{before} ], [ {after}, %{latch} ]"
            for name, (wanted, value), after in zip(carried, initial, following, strict=True)
        ]
        function.start(done)
        return carried

    # Statements

    def statements(self, body: Sequence[ir.Statement]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, statement: ir.Statement) -> None:
        match statement:
            case ir.Constant(result, value):
                self.constants[result.number] = value
                self.names[result.number] = literal(result.dtype, value)
            case ir.Compute(result, operation, operands):
                self.names[result.number] = self.compute(
                    operation, operands[-1].dtype, self.named(operands)
                )
            case ir.Cast(result, operand):
                self.names[result.number] = cast(
                    self.function,
                    ValueType(operand.dtype),
                    ValueType(result.dtype),
                    self.names[operand.number],
                )
            case ir.Extent(result, array, axis):
                self.names[result.number] = self.arrays[array].extents[axis]
            case ir.LocalArray(array, dtype, shape):
                self.local_array(array, dtype, shape)
            case ir.Load(result, array, indices):
                pointer = self.element(array, indices)
                self.names[result.number] = self.read(self.arrays[array], pointer)
            case ir.Store(array, (index,)) if array in self.counters:
                self.count(array, index)
            case ir.Store(array, indices, value, combine):
                self.store(array, indices, value, combine)
            case ir.If(results, condition, then, otherwise):
                self.branch_to_arms(
                    results,
                    (then, otherwise),
                    lambda labels: self.function.branch(self.names[condition.number], *labels),
                )
            case ir.Switch(results, selector, arms):
                self.switch(results, selector, arms)
            case ir.Dispatch(name=name):
                where = f"dispatch {name!r} of unit {self.unit.name!r}"
                raise CompileError("cpu", f"{where} is not lowered; the core does that first")
            case ir.For():
                self.for_loop(statement)
            case ir.While():
                self.while_loop(statement)

    def named(self, values: Sequence[ir.Value]) -> tuple[str, ...]:
        return tuple(self.names[value.number] for value in values)

    def value_type(self, value: ir.Value) -> str:
        """LLVM type of what `names` holds for a value."""
        return type_of(value.dtype)

    def passed(self, values: Sequence[ir.Value], receivers: Sequence[ir.Value]) -> tuple[str, ...]:
        """Names of values that become those of other values, which a region or loop defines."""
        return self.named(values)

    def carried(
        self, values: Sequence[ir.Value], receivers: Sequence[ir.Value]
    ) -> list[tuple[str, str]]:
        """Types and names of values that a loop carries into its first round."""
        types = map(self.value_type, receivers)
        return list(zip(types, self.passed(values, receivers), strict=True))

    def bind(self, values: Sequence[ir.Value], names: Sequence[str]) -> None:
        for value, name in zip(values, names, strict=True):
            self.names[value.number] = name

    def compute(self, operation: str, dtype: ir.DType, operands: tuple[str, ...]) -> str:
        if operation in vector_math.ARITY:
            return mathematics.call(self.function, operation, dtype, operands, self.vectors.isa)
        return SPELLINGS[operation](self.function, ValueType(dtype), *operands)

    # Memory

    def local_array(self, array: str, dtype: ir.DType, shape: tuple[int, ...]) -> None:
        strides = [dtype.itemsize]
        for extent in reversed(shape):
            strides.insert(0, strides[0] * extent)
        size_bytes = strides.pop(0)
        pointer = self.function.new_value()
        # In the entry block, so that a loop does not grow the stack.
        self.allocations.append(f"  {pointer} = alloca [{size_bytes} x i8], align 16")
        filled = f"ptr align 16 {pointer}, i8 0, i64 {size_bytes}, i1 false"
        self.function.write(f"call void @llvm.memset.p0.i64({filled})")
        self.arrays[array] = ArrayLayout(
            dtype,
            pointer,
            tuple(map(str, shape)),
            tuple(map(str, strides)),
            has_dense_rows=len(shape) > 0,
            is_local=True,
        )

    def element(self, array: str, indices: Sequence[ir.Value]) -> str:
        """Address of one element; in debug mode its indices are checked first."""
        layout, names = self.arrays[array], self.named(indices)
        if self.options.debug:
            for axis, index in enumerate(names):
                self.check_index(axis, index, layout.extents[axis])
            self.sites += 1
        return self.address(layout, names, is_in_range=True)

    def address(self, layout: ArrayLayout, indices: Sequence[str], *, is_in_range: bool) -> str:
        """Address of one element."""
        function = self.function
        # Nothing wraps where the indices are in range; elsewhere the access is undefined.
        nsw, inbounds = ("nsw ", "inbounds ") if is_in_range else ("", "")
        outer = len(indices) - 1 if layout.has_dense_rows else len(indices)
        offset = "0"
        for index, stride in zip(indices[:outer], layout.strides[:outer], strict=True):
            term = function.value(f"mul {nsw}i64 {index}, {stride}")
            offset = function.value(f"add {nsw}i64 {offset}, {term}")
        pointer = function.value(f"getelementptr {inbounds}i8, ptr {layout.pointer}, i64 {offset}")
        if not layout.has_dense_rows:
            return pointer
        wanted = storage_type_of(layout.dtype)
        return function.value(f"getelementptr {inbounds}{wanted}, ptr {pointer}, i64 {indices[-1]}")

    def check_index(self, axis: int, index: str, extent: str) -> None:
        function = self.function
        bad, good = function.new_labels("outside", "inside")
        # A negative index is a large unsigned one.
        fits = function.value(f"icmp ult i64 {index}, {extent}")
        function.branch(fits, good, bad)
        function.start(bad)
        record = load_slot(function, self.slots[""], "ptr")
        for number, value in enumerate((self.sites, axis, index, extent)):
            field = function.value(f"getelementptr i64, ptr {record}, i64 {number}")
            function.write(f"store i64 {value}, ptr {field}")
        function.write("ret i64 1")
        function.start(good)

    def access(self, array: ArrayLayout) -> str:
        """What stands behind a load or store: it may be misaligned, it may be part of the loops."""
        if array.is_local or not self.access_groups:
            return f", align 1{array.aliasing}"
        groups = self.access_groups[0]
        if len(self.access_groups) > 1:
            groups = self.function.module.metadata(f"!{{{', '.join(self.access_groups)}}}")
        return f", align 1, !llvm.access.group {groups}{array.aliasing}"

    def read(self, array: ArrayLayout, pointer: str) -> str:
        wanted = storage_type_of(array.dtype)
        stored = self.function.value(f"load {wanted}, ptr {pointer}{self.access(array)}")
        return self.from_storage(array.dtype, stored)

    def from_storage(self, dtype: ir.DType, stored: str) -> str:
        # Any byte but 0 is true, as in NumPy.
        return self.function.value(f"icmp ne i8 {stored}, 0") if dtype.is_bool else stored

    def store(
        self, array: str, indices: Sequence[ir.Value], value: ir.Value, combine: str | None
    ) -> None:
        layout, stored = self.arrays[array], self.names[value.number]
        pointer = self.element(array, indices)
        if combine is not None:
            # One thread runs this body, so reading and writing back is an atomic update.
            current = self.read(layout, pointer)
            stored = self.compute(combine, layout.dtype, (current, stored))
        if layout.dtype.is_bool:
            stored = self.function.value(f"zext i1 {stored} to i8")
        self.function.write(
            f"store {storage_type_of(layout.dtype)} {stored}, ptr {pointer}{self.access(layout)}"
        )

    # Counters

    def start_counts(self) -> None:
        for array, elements in self.counters.items():
            self.counts[array] = [self.function.new_value() for _ in range(elements)]
            for count in self.counts[array]:
                self.allocations.append(f"  {count} = alloca i64")
                self.function.write(f"store i64 0, ptr {count}")

    def count(self, array: str, index: ir.Value) -> None:
        """Count an element of a private counter."""
        value = self.function.value
        for element, count in enumerate(self.counts[array]):
            is_meant = value(f"icmp eq i64 {self.names[index.number]}, {element}")
            self.add_to_count(count, value(f"zext i1 {is_meant} to i64"))

    def add_to_count(self, count: str, number: str) -> None:
        before = self.function.value(f"load i64, ptr {count}")
        after = self.function.value(f"add i64 {before}, {number}")
        self.function.write(f"store i64 {after}, ptr {count}")

    def counted(self, array: str) -> list[str]:
        """How often each element was counted."""
        return [self.function.value(f"load i64, ptr {count}") for count in self.counts[array]]

    def add_counts(self) -> None:
        """Add what was counted to the elements, of which there may be fewer than were possible."""
        function = self.function
        for array in self.counters:
            layout = self.arrays[array]
            wanted = type_of(layout.dtype)
            for element, found in enumerate(self.counted(array)):
                counted, done = function.new_labels("counted", "done")
                function.branch(function.value(f"icmp ne i64 {found}, 0"), counted, done)
                function.start(counted)
                if wanted != "i64":
                    found = function.value(f"trunc i64 {found} to {wanted}")
                pointer = self.address(layout, (str(element),), is_in_range=True)
                self.add_to_element(layout.dtype, pointer, found)
                function.jump(done)
                function.start(done)

    def add_to_element(self, dtype: ir.DType, pointer: str, count: str) -> None:
        """Other threads may add at the same time, except where elements are not aligned."""
        function, wanted = self.function, type_of(dtype)
        number = function.value(f"ptrtoint ptr {pointer} to i64")
        offset = function.value(f"and i64 {number}, {dtype.itemsize - 1}")
        aligned, apart, added = function.new_labels("aligned", "apart", "added")
        function.branch(function.value(f"icmp eq i64 {offset}, 0"), aligned, apart)
        function.start(aligned)
        function.value(f"atomicrmw add ptr {pointer}, {wanted} {count} monotonic")
        function.jump(added)
        function.start(apart)
        before = function.value(f"load {wanted}, ptr {pointer}, align 1")
        after = function.value(f"add {wanted} {before}, {count}")
        function.write(f"store {wanted} {after}, ptr {pointer}, align 1")
        function.jump(added)
        function.start(added)

    # Control flow

    def branch_to_arms(
        self,
        results: Sequence[ir.Value],
        arms: Sequence[ir.Region],
        branch: Callable[[list[str]], None],
    ) -> None:
        """Run one of `arms`, chosen by the jump that `branch` writes; join their values."""
        function = self.function
        *labels, join = function.new_labels(*(f"arm{k}" for k in range(len(arms))), "join")
        branch(labels)
        incoming = []
        for label, arm in zip(labels, arms, strict=True):
            function.start(label)
            self.statements(arm.body)
            incoming.append((self.passed(arm.yields, results), function.block))
            function.jump(join)
        function.start(join)
        for position, result in enumerate(results):
            choices = ", ".join(f"[ {names[position]}, %{block} ]" for names, block in incoming)
            self.names[result.number] = function.value(f"phi {self.value_type(result)} {choices}")

    def switch(
        self, results: Sequence[ir.Value], selector: ir.Value, arms: Sequence[ir.Region]
    ) -> None:
        wanted = type_of(selector.dtype)
        chosen = self.names[selector.number]
        # A type too narrow for the last arm cannot hold a larger selector either.
        last = str(min(len(arms) - 1, selector.dtype.maximum))
        if selector.dtype.kind == "i":
            chosen = self.compute("maximum", selector.dtype, (chosen, "0"))
        chosen = self.compute("minimum", selector.dtype, (chosen, last))

        def branch(labels: list[str]) -> None:
            cases = " ".join(
                f"{wanted} {number}, label %{label}"
                for number, label in enumerate(labels[:-1])
                if number <= selector.dtype.maximum
            )
            self.function.write(f"switch {wanted} {chosen}, label %{labels[-1]} [ {cases} ]")

        self.branch_to_arms(results, arms, branch)

    def region(
        self, region: ir.Region, parameters: Sequence[str], receivers: Sequence[ir.Value]
    ) -> list[str]:
        """Write a region; returns the names of its yields, which become those of `receivers`."""
        self.bind(region.parameters, parameters)
        self.statements(region.body)
        return list(self.passed(region.yields, receivers))

    def while_loop(self, statement: ir.While) -> None:
        condition = statement.condition
        last = self.repeat(
            self.carried(statement.initial, statement.results),
            lambda *carried: self.region(condition, carried, condition.yields)[0],
            lambda *carried: self.region(statement.body, carried, statement.results),
            self.loop(str(statement.line or "")),
        )
        self.bind(statement.results, last)

    def for_loop(self, statement: ir.For) -> None:
        start, stop, step = self.named((statement.start, statement.stop, statement.step))
        initial = self.carried(statement.initial, statement.results)

        def body(index: str, *carried: str) -> list[str]:
            return self.region(statement.body, (index, *carried), statement.results)

        with self.independent(statement.body if statement.independent else None) as properties:
            loop = self.loop(str(statement.line or ""), properties)
            if self.constants.get(statement.step.number) == 1:
                last = self.upward_loop(start, stop, initial, body, loop)
            else:
                last = self.counted_loop(start, stop, step, initial, body, loop)
        self.bind(statement.results, last)

    def counted_loop(
        self,
        start: str,
        stop: str,
        step: str,
        initial: Sequence[tuple[str, str]],
        body: Callable[..., list[str]],
        loop: str,
    ) -> list[str]:
        """``for index in range(start, stop, step)`` for any step; 0 gives no rounds."""
        function = self.function
        # Counting rounds lets the index wrap after the last one.
        rounds = self.rounds(ValueType(ir.i64), start, stop, step)

        def condition(left: str, index: str, *carried: str) -> str:
            return function.value(f"icmp ne i64 {left}, 0")

        def advance(left: str, index: str, *carried: str) -> list[str]:
            following = body(index, *carried)
            return [
                function.value(f"sub i64 {left}, 1"),
                function.value(f"add i64 {index}, {step}"),
                *following,
            ]

        counters = [("i64", rounds), ("i64", start)]
        return self.repeat([*counters, *initial], condition, advance, loop)[2:]

    def rounds(self, kind: ValueType, start: str, stop: str, step: str) -> str:
        """Length of ``range(start, stop, step)`` as an unsigned number."""
        value, condition = self.function.value, kind.like(ir.bool_)
        zero, one = kind.literal(0), kind.literal(1)
        is_upward = value(f"icmp sgt {kind} {step}, {zero}")
        low = value(f"select {condition} {is_upward}, {kind} {start}, {kind} {stop}")
        high = value(f"select {condition} {is_upward}, {kind} {stop}, {kind} {start}")
        size = value(f"call {kind} @llvm.abs.{kind.suffix}({kind} {step}, i1 false)")
        is_some = value(f"icmp slt {kind} {low}, {high}")
        is_moving = value(f"icmp ne {kind} {size}, {zero}")
        runs = value(f"and {condition} {is_some}, {is_moving}")
        divisor = value(f"select {condition} {is_moving}, {kind} {size}, {kind} {one}")
        # The distance may exceed the signed range, but not the unsigned one.
        distance = value(f"sub {kind} {high}, {low}")
        before_last = value(f"sub {kind} {distance}, {one}")
        whole = value(f"udiv {kind} {before_last}, {divisor}")
        count = value(f"add {kind} {whole}, {one}")
        return value(f"select {condition} {runs}, {kind} {count}, {kind} {zero}")
