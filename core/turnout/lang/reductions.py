"""Reductions: scalars to which the iterations of a loop only ever add, or do alike.

Such a loop runs in parallel, in an order that depends on nothing but the number of its positions:

* Positions are cut into blocks of `BLOCK`. In a block position ``p`` belongs to lane ``p % LANES``;
  each lane combines its positions in order.
* Block ``b`` belongs to group ``b % GROUPS``, which combines its blocks lane by lane, in order.
* The lanes of a group, and then the groups, are combined by a pairwise tree: the first half of the
  values with the second half, element by element, until one is left.
* The value from before the loop is combined with the result of that.

A lane, block or group without positions holds the identity of the operation, which changes no bit
of what it is combined with. In a nest of loops a block has positions of one row, or whole rows.
Neighbouring lanes read neighbouring elements, which is what vectors and GPUs are fast at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from .. import ir
from ..ir import DType, Region, Value, i64
from ..ir.transform import rename
from ..records import record
from .builder import Builder
from .loops import trip_count

LANES = 32
"""Enough for four vectors of doubles in flight, and the width of the groups in which GPUs run."""

BLOCK = 64 * LANES
"""Positions of a block: few, so that errors stay small and there are many blocks to share."""

GROUPS = 512
"""At most so many partial results per lane, in memory of a fixed size."""

_REACHED = {
    "add": "add",
    "subtract": "add",
    "multiply": "multiply",
    "minimum": "minimum",
    "maximum": "maximum",
    "bit_and": "bit_and",
    "bit_or": "bit_or",
    "bit_xor": "bit_xor",
}
"""By which operation parts are combined that were reached by another."""

_CHOICES = {
    "less": "minimum",
    "less_equal": "minimum",
    "greater": "maximum",
    "greater_equal": "maximum",
}
"""What ``select(compare(x, y), x, y)`` is between integers."""

NOUNS = {
    "add": "sum",
    "multiply": "product",
    "minimum": "minimum",
    "maximum": "maximum",
    "bit_and": "conjunction",
    "bit_or": "disjunction",
    "bit_xor": "exclusive or",
}


def identity(operation: str, dtype: DType) -> int | float | bool:
    """The value that changes no bit of what it is combined with."""
    if operation == "add":
        return -0.0 if dtype.is_float else 0
    if operation == "multiply":
        return 1
    if operation in ("minimum", "maximum"):
        is_minimum = operation == "minimum"
        if dtype.is_float:
            return math.inf if is_minimum else -math.inf
        return dtype.maximum if is_minimum else dtype.minimum
    if operation == "bit_and":
        return True if dtype.is_bool else (-1 if dtype.kind == "i" else dtype.maximum)
    return False if dtype.is_bool else 0


def reached_by(loop: ir.For) -> tuple[str, ...] | None:
    """The operations by which the values that a loop carries are combined.

    None where one of them is used for anything else in the loop.
    """
    chains = _Chains(loop)
    if not chains.region(loop.body):
        return None
    for place, value in enumerate(loop.body.yields):
        if chains.owner.get(value.number) != place:
            return None
    found = [{_REACHED.get(name, name) for name in names} for names in chains.operations]
    if any(len(operations) != 1 for operations in found):
        return None
    return tuple(operations.pop() for operations in found)


class _Chains:
    """Follows each carried value through a loop body: what it becomes, and by which operations."""

    def __init__(self, loop: ir.For) -> None:
        carried = loop.body.parameters[1:]
        self.owner = {value.number: place for place, value in enumerate(carried)}
        self.operations: list[set[str]] = [set() for _ in carried]
        # Comparisons of a carried value, with their operation and operands.
        self._compared: dict[int, tuple[str, tuple[Value, ...]]] = {}

    def region(self, region: Region) -> bool:
        """Whether all statements use carried values as reductions may."""
        return all(self._statement(statement) for statement in region.body)

    def _is_free(self, values: Iterable[Value]) -> bool:
        return all(v.number not in self.owner and v.number not in self._compared for v in values)

    def _statement(self, statement: ir.Statement) -> bool:
        if isinstance(statement, ir.Compute):
            return self._compute(statement)
        if isinstance(statement, ir.For | ir.While):
            return self._loop(statement)
        if not self._is_free(statement.operands):
            return False
        return not statement.regions or self._arms(statement)

    def _compute(self, statement: ir.Compute) -> bool:
        result, operation, operands = statement.result, statement.operation, statement.operands
        owners = [self.owner.get(operand.number) for operand in operands]
        if operation == "select":
            return self._select(result, operands)
        if self._is_free(operands):
            return True
        if len(operands) != 2 or None not in owners:
            return False
        owner = owners[0] if owners[1] is None else owners[1]
        if owner is None:
            return False
        if operation in _CHOICES and operands[0].dtype.is_integer:
            self._compared[result.number] = operation, operands
            return True
        if operation not in _REACHED or (operation == "subtract" and owners[0] is None):
            return False
        other = operands[owners.index(None)]
        self.operations[owner].add(operation)
        self.owner[result.number] = owner
        return other.number not in self._compared

    def _select(self, result: Value, operands: tuple[Value, ...]) -> bool:
        condition, *sides = operands
        operation, compared = self._compared.get(condition.number, ("", ()))
        if operation:
            if tuple(sides) != compared:
                return False
            owner = next(self.owner[s.number] for s in sides if s.number in self.owner)
            self.operations[owner].add(_CHOICES[operation])
            self.owner[result.number] = owner
            return True
        return self._is_free([condition]) and self._joined(result, sides)

    def _joined(self, result: Value, values: Sequence[Value]) -> bool:
        """A value that is one of others, which must be of one chain or of none."""
        owners = {self.owner.get(value.number) for value in values}
        if any(value.number in self._compared for value in values) or len(owners) > 1:
            return False
        (owner,) = owners
        if owner is not None:
            self.owner[result.number] = owner
        return True

    def _arms(self, statement: ir.Statement) -> bool:
        if not all(self.region(arm) for arm in statement.regions):
            return False
        return all(
            self._joined(result, [arm.yields[place] for arm in statement.regions])
            for place, result in enumerate(statement.results)
        )

    def _loop(self, loop: ir.For | ir.While) -> bool:
        if isinstance(loop, ir.For):
            receivers = [loop.body.parameters[1:], loop.results]
            if not self._is_free((loop.start, loop.stop, loop.step)):
                return False
        else:
            receivers = [loop.condition.parameters, loop.body.parameters, loop.results]
        for values in receivers:
            for value, before in zip(values, loop.initial, strict=True):
                if not self._joined(value, [before]):
                    return False
        if not all(self.region(region) for region in loop.regions):
            return False
        if isinstance(loop, ir.While) and not self._is_free(loop.condition.yields):
            return False
        return all(
            self.owner.get(after.number) == self.owner.get(before.number)
            and after.number not in self._compared
            for after, before in zip(loop.body.yields, loop.initial, strict=True)
        )


@record
class PartialSums:
    """One accumulator of a reduction: its operation, and where its partial results are.

    Attributes
    ----------
    operation : str
    dtype : DType
    lanes, groups, chunks : str
        Scratch arrays: of each group and lane, of each group, of every `LANES` groups.
    """

    operation: str
    dtype: DType
    lanes: str
    groups: str
    chunks: str

    @property
    def scratch(self) -> tuple[ir.Scratch, ...]:
        """The arrays; every element that is read was written before."""
        shapes = ((GROUPS, LANES), (GROUPS,), (GROUPS // LANES,))
        names = (self.lanes, self.groups, self.chunks)
        return tuple(
            ir.Scratch(name, self.dtype, shape, is_filled=False)
            for name, shape in zip(names, shapes, strict=True)
        )


@record
class Row:
    """The loops of a nest; `before` has, per loop, the statements in front of the next one."""

    loops: tuple[ir.For, ...]
    before: tuple[tuple[ir.Statement, ...], ...]
    body: tuple[ir.Statement, ...]


Loops = tuple[list[ir.For], tuple[ir.Statement, ...]]
"""A parallel loop nest and the statements of its innermost body."""


class Reduction:
    """Writes the statements that run one reduction.

    Parameters
    ----------
    build : Builder
    nest : Row
        The loops that carry the accumulators.
    sums : sequence of PartialSums
        One per accumulator.

    Attributes
    ----------
    sizes : list of Statement
        Numbers that depend on arguments alone, for the ranges of the nests.
    """

    def __init__(self, build: Builder, nest: Row, sums: Sequence[PartialSums]) -> None:
        self.build, self.nest, self.sums = build, nest, sums
        with build.nested() as self.sizes:
            self._zero, self._one = build.constant(0, i64), build.constant(1, i64)
            self._lanes = build.constant(LANES, i64)
            self._trips = [
                trip_count(build, f.start, f.stop, f.step, build.known_integer(f.step))
                for f in nest.loops
            ]
            self._length = self._trips[-1]
            self._plan_blocks()
            several = build.compute("greater", self._groups, self._one)
            self._several = several
            self._joined = build.compute("select", several, self._groups, self._zero)
            self._chunks = self._rounded_up(self._joined, LANES)

    def _plan_blocks(self) -> None:
        """How many blocks there are, and what they consist of."""
        build = self.build
        self._cuts = self._rounded_up(self._length, BLOCK)
        self._blocks = self._cuts
        if len(self._trips) > 1:
            rows = self._trips[0]
            for trips in self._trips[1:-1]:
                rows = build.compute("multiply", rows, trips)
            self._items = build.compute("multiply", rows, self._cuts)
            block = build.constant(BLOCK, i64)
            longest = build.compute("minimum", self._length, block)
            longest = build.compute("maximum", longest, self._one)
            self._share = build.compute("floor_divide", block, longest)
            rest = build.compute("subtract", self._share, self._one)
            total = build.compute("add", self._items, rest)
            self._blocks = build.compute("floor_divide", total, self._share)
        self._groups = build.compute("minimum", self._blocks, build.constant(GROUPS, i64))

    def _rounded_up(self, value: Value, divisor: int) -> Value:
        """``ceil(value / divisor)`` of a value of at least 0 and a power of two."""
        build = self.build
        total = build.compute("add", value, build.constant(divisor - 1, i64))
        return build.compute("shift_right", total, build.constant(divisor.bit_length() - 1, i64))

    # -- the parallel nests ----------------------------------------------------------------------

    def nests(self) -> list[Loops]:
        """The loops over groups and lanes, over groups, and over chunks of groups."""
        return [self._sum_lanes(), self._join_lanes(), self._join_groups()]

    def _parallel(self, *extents: Value) -> tuple[list[ir.For], list[Value]]:
        positions = [self.build.value(i64) for _ in extents]
        loops = [
            ir.For((), self._zero, extent, self._one, (), Region((position,), ()))
            for extent, position in zip(extents, positions, strict=True)
        ]
        return loops, positions

    def _identities(self) -> tuple[Value, ...]:
        return tuple(
            self.build.constant(identity(each.operation, each.dtype), each.dtype)
            for each in self.sums
        )

    def _combined(self, first: Sequence[Value], second: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(
            self.build.compute(each.operation, *pair)
            for each, *pair in zip(self.sums, first, second, strict=True)
        )

    def _sum_lanes(self) -> Loops:
        build = self.build
        loops, (group, lane) = self._parallel(self._groups, self._lanes)
        with build.nested() as body:
            step = build.constant(GROUPS, i64)
            totals = self._for(
                (group, self._blocks, step),
                self._identities(),
                lambda block, before: self._combined(before, self._block(block, lane)),
            )
            for each, total in zip(self.sums, totals, strict=True):
                build.emit(ir.Store(each.lanes, (group, lane), total))
        return loops, tuple(body)

    def _block(self, block: Value, lane: Value) -> tuple[Value, ...]:
        """What one lane has of a block."""
        build = self.build
        if len(self._trips) == 1:
            return self._positions(block, lane, self._identities())
        first = build.compute("multiply", block, self._share)
        end = build.compute("minimum", build.compute("add", first, self._share), self._items)
        return self._for(
            (first, end, self._one),
            self._identities(),
            lambda item, before: self._row(item, lane, before),
        )

    def _row(self, item: Value, lane: Value, before: tuple[Value, ...]) -> tuple[Value, ...]:
        """What one lane has of a row, or of the part of it that is in one block."""
        build = self.build
        cut = build.compute("remainder", item, self._cuts)
        rest = build.compute("floor_divide", item, self._cuts)
        places: list[Value] = []
        for trips in reversed(self._trips[1:-1]):
            places.insert(0, build.compute("remainder", rest, trips))
            rest = build.compute("floor_divide", rest, trips)
        places.insert(0, rest)
        for loop, statements, place in zip(
            self.nest.loops[:-1], self.nest.before, places, strict=True
        ):
            self._define_index(loop, loop.body.parameters[0], place)
            for statement in statements:
                build.emit(statement)
        return self._positions(cut, lane, before)

    def _positions(self, cut: Value, lane: Value, before: tuple[Value, ...]) -> tuple[Value, ...]:
        """Combine `before` with the positions of one lane in one block of the innermost loop."""
        build, region = self.build, self.nest.loops[-1].body
        start = build.compute("multiply", cut, build.constant(BLOCK, i64))
        left = build.compute("subtract", self._length, start)
        count = build.compute("minimum", left, build.constant(BLOCK, i64))
        first = build.compute("add", start, lane)
        shift = build.constant(LANES.bit_length() - 1, i64)
        whole = build.compute("shift_right", count, shift)
        if not _can_be_repeated(self.nest.body):
            # Some lanes have one round more than others.
            missing = build.compute("subtract", count, lane)
            missing = build.compute("add", missing, build.constant(LANES - 1, i64))
            rounds = build.compute("shift_right", missing, shift)
            return self._rounds(first, rounds, before, region)
        sums = self._rounds(first, whole, before, region)
        # One round more, of the lanes for which there is a position.
        covered = build.compute("multiply", whole, self._lanes)
        is_left = build.compute("less", lane, build.compute("subtract", count, covered))
        with build.nested() as last:
            index, body, yields = self._repeated(region, sums)
            self._define_index(self.nest.loops[-1], index, build.compute("add", first, covered))
            for statement in body:
                build.emit(statement)
        results = tuple(build.value(value.dtype) for value in sums)
        then = Region((), tuple(last), yields)
        build.emit(ir.If(results, is_left, then, Region((), (), sums)))
        return results

    def _rounds(
        self, first: Value, rounds: Value, before: tuple[Value, ...], region: Region
    ) -> tuple[Value, ...]:
        """The positions from `first` on in steps of `LANES`."""
        build = self.build
        counter = build.value(i64)
        with build.nested() as body:
            place = build.compute("add", first, build.compute("multiply", counter, self._lanes))
            self._define_index(self.nest.loops[-1], region.parameters[0], place)
            for statement in self.nest.body:
                build.emit(statement)
        results = tuple(build.value(value.dtype) for value in before)
        inner = Region((counter, *region.parameters[1:]), tuple(body), region.yields)
        bounds = self._zero, rounds, self._one
        build.emit(ir.For(results, *bounds, before, inner, line=self.nest.loops[-1].line))
        return results

    def _repeated(
        self, region: Region, sums: tuple[Value, ...]
    ) -> tuple[Value, tuple[ir.Statement, ...], tuple[Value, ...]]:
        """The innermost body again, with values of its own: its index, statements and yields."""
        index, *carried = region.parameters
        names = dict(zip(carried, sums, strict=True))
        defined = [index]
        for statement in ir.statements(self.nest.body):
            defined += statement.results
            for inner in statement.regions:
                defined += inner.parameters
        names |= {value: self.build.value(value.dtype) for value in defined}
        yields = tuple(names.get(value, value) for value in region.yields)
        return names[index], rename(self.nest.body, names), yields

    def _define_index(self, loop: ir.For, index: Value, place: Value) -> None:
        """Give a range variable its value at a place of the range."""
        build = self.build
        if build.known_integer(loop.step) != 1:
            place = build.compute("multiply", place, loop.step)
        build.emit(ir.Compute(index, "add", (loop.start, place)))

    def _for(
        self,
        bounds: tuple[Value, Value, Value],
        initial: tuple[Value, ...],
        body: Callable[[Value, tuple[Value, ...]], tuple[Value, ...]],
    ) -> tuple[Value, ...]:
        build = self.build
        index = build.value(i64)
        parameters = tuple(build.value(value.dtype) for value in initial)
        with build.nested() as block:
            yields = body(index, parameters)
        results = tuple(build.value(value.dtype) for value in initial)
        region = Region((index, *parameters), tuple(block), yields)
        build.emit(ir.For(results, *bounds, initial, region))
        return results

    # -- what joins the parts --------------------------------------------------------------------

    def _join_lanes(self) -> Loops:
        build = self.build
        loops, (group,) = self._parallel(self._joined)
        with build.nested() as body:
            for each in self.sums:
                build.emit(ir.Store(each.groups, (group,), self._tree_of_lanes(each, group)))
        return loops, tuple(body)

    def _join_groups(self) -> Loops:
        build = self.build
        loops, (chunk,) = self._parallel(self._chunks)
        with build.nested() as body:
            first = build.compute("multiply", chunk, self._lanes)
            for each in self.sums:
                joined = self._tree_of(each, each.groups, first, self._groups, LANES)
                build.emit(ir.Store(each.chunks, (chunk,), joined))
        return loops, tuple(body)

    def result(self) -> tuple[Value, ...]:
        """All positions together; to be emitted where code runs in order."""
        build = self.build
        none = build.compute("equal", self._groups, self._zero)
        with build.nested() as of_chunks:
            joined = tuple(
                self._tree_of(each, each.chunks, self._zero, self._chunks, GROUPS // LANES)
                for each in self.sums
            )
        with build.nested() as of_lanes:
            lanes = tuple(self._tree_of_lanes(each, self._zero) for each in self.sums)
        with build.nested() as of_none:
            nothing = self._identities()
        with build.nested() as of_few:
            few = tuple(build.value(each.dtype) for each in self.sums)
            sides = Region((), tuple(of_none), nothing), Region((), tuple(of_lanes), lanes)
            build.emit(ir.If(few, none, *sides))
        results = tuple(build.value(each.dtype) for each in self.sums)
        sides = Region((), tuple(of_chunks), joined), Region((), tuple(of_few), few)
        build.emit(ir.If(results, self._several, *sides))
        return results

    def _tree_of_lanes(self, each: PartialSums, group: Value) -> Value:
        build = self.build
        values = []
        for lane in range(LANES):
            value = build.value(each.dtype)
            build.emit(ir.Load(value, each.lanes, (group, build.constant(lane, i64))))
            values.append(value)
        return self._tree(each.operation, values)

    def _tree_of(
        self, each: PartialSums, array: str, first: Value, count: Value, width: int
    ) -> Value:
        """The elements from `first` on as far as there are any, at most `width`."""
        build = self.build
        last = build.compute("subtract", count, self._one)
        nothing = build.constant(identity(each.operation, each.dtype), each.dtype)
        values = []
        for offset in range(width):
            place = build.compute("add", first, build.constant(offset, i64))
            value = build.value(each.dtype)
            there = build.compute("minimum", place, last)
            build.emit(ir.Load(value, array, (there,)))
            exists = build.compute("less_equal", place, last)
            values.append(build.compute("select", exists, value, nothing))
        return self._tree(each.operation, values)

    def _tree(self, operation: str, values: list[Value]) -> Value:
        """The first half with the second half, until one is left."""
        while len(values) > 1:
            half = len(values) // 2
            values = [
                self.build.compute(operation, *pair)
                for pair in zip(values[:half], values[half:], strict=True)
            ]
        return values[0]


def _can_be_repeated(body: Iterable[ir.Statement]) -> bool:
    """Whether a body may stand twice in a unit, and is not too long for that."""
    simple = ir.Constant | ir.Compute | ir.Cast | ir.Extent | ir.Load | ir.Store | ir.If
    every = list(ir.statements(body))
    return len(every) <= 64 and all(isinstance(statement, simple) for statement in every)
