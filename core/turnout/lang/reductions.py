"""Reductions: scalars to which the iterations of a loop only ever add, or do alike.

Such a loop runs in parallel, in an order that depends on nothing but the number of its positions:

* Positions are cut into blocks of `BLOCK`. In a block position ``p`` belongs to lane ``p % LANES``;
  each lane combines its positions in order.
* Block ``b`` belongs to group ``b % GROUPS``, which combines its blocks lane by lane, in order.
* Lane by lane, and in order, `LANES` neighbouring groups are combined, and then all of these.
* The lanes are combined in order, and the value from before the loop with the result of that.

A lane, block or group without positions holds the identity of the operation, which changes no bit
of what it is combined with. In a nest of loops a block has positions of one row, or whole rows.
Neighbouring lanes read neighbouring elements, which is what vectors and GPUs are fast at.

Python's ``min`` and ``max`` of floats keep the value that they have unless another is less, or
greater. So NaN never replaces a number, and of equal zeros the first one stays, which no tree over
lanes can know. Each lane therefore keeps where it found its value, and the zero that was found
first decides the sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

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

GROUPS = LANES * LANES
"""At most so many, so that partial results fit into memory of a fixed size."""

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

_FIRST = {"less": "min", "greater": "max"}
"""What it is between floats where ``y`` is what was found before: Python's function."""

_EXTREMES = {"min": ("minimum", "less"), "max": ("maximum", "greater")}
"""By which operation values of Python's functions are combined, and which comparison decides."""

_NOWHERE = i64.maximum
"""The place of a lane that found nothing."""

NOUNS = {
    "add": "sum",
    "multiply": "product",
    "minimum": "minimum",
    "maximum": "maximum",
    "min": "minimum",
    "max": "maximum",
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
        # Comparisons of a carried value: what they choose, and between which operands.
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
        if operands[0].dtype.is_integer and operation in _CHOICES:
            self._compared[result.number] = _CHOICES[operation], operands
            return True
        if operation in _FIRST and owners[0] is None and operands[0].dtype.is_float:
            self._compared[result.number] = _FIRST[operation], operands
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
            self.operations[owner].add(operation)
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
class PartialResults:
    """What an operation combines, and the scratch array that has its partial results.

    The array has a column per lane and a row per group, then a row for each `LANES` groups, then
    one for all. Every element that is read was written before.
    """

    operation: str
    dtype: DType
    array: str

    @property
    def scratch(self) -> ir.Scratch:
        return ir.Scratch(self.array, self.dtype, (GROUPS + LANES + 1, LANES), is_filled=False)


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
    operations : sequence of str
        One per accumulator, see `reached_by`.
    partial : callable
        Makes the memory for what is combined by an operation: takes that, the type, and how many
        the reduction has already.

    Attributes
    ----------
    sizes : list of Statement
        Numbers that depend on arguments alone, for the ranges of the nests.
    """

    def __init__(
        self,
        build: Builder,
        nest: Row,
        operations: Sequence[str],
        partial: Callable[[str, DType, int], PartialResults],
    ) -> None:
        self.build, self.nest, self.operations = build, nest, operations
        carried = zip(operations, nest.loops[0].results, strict=True)
        wanted = [(_EXTREMES.get(name, (name,))[0], value.dtype) for name, value in carried]
        # Behind the accumulators stands where those are that Python's min and max have found.
        self._found = [place for place, name in enumerate(operations) if name in _EXTREMES]
        wanted += [("minimum", i64)] * len(self._found)
        self.sums = [partial(*each, place) for place, each in enumerate(wanted)]
        with build.nested() as self.sizes:
            self._zero, self._one = build.constant(0, i64), build.constant(1, i64)
            self._lanes = build.constant(LANES, i64)
            self._trips = [
                trip_count(build, f.start, f.stop, f.step, build.known_integer(f.step))
                for f in nest.loops
            ]
            self._length = self._trips[-1]
            self._plan_blocks()
            self._several = build.compute("greater", self._groups, self._one)
            chunks = self._rounded_up(self._groups, LANES)
            self._chunks = build.compute("select", self._several, chunks, self._zero)
            self._once = build.compute("minimum", self._chunks, self._one)

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
        """The loops over groups, over chunks of groups, and once; each over the lanes, too."""
        return [self._sum_groups(), self._join_groups(), self._join_chunks()]

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

    def _sum_groups(self) -> Loops:
        build = self.build
        loops, (group, lane) = self._parallel(self._groups, self._lanes)
        with build.nested() as body:
            step = build.constant(GROUPS, i64)
            totals = self._for(
                (group, self._blocks, step),
                self._identities(),
                lambda block, before: self._combined(before, self._block(block, lane)),
            )
            self._store(totals, group, lane)
        return loops, tuple(body)

    def _block(self, block: Value, lane: Value) -> tuple[Value, ...]:
        """What one lane has of a block."""
        build = self.build
        if len(self._trips) == 1:
            return self._positions(block, lane, self._zero, self._identities())
        first = build.compute("multiply", block, self._share)
        end = build.compute("minimum", build.compute("add", first, self._share), self._items)
        # Either a block has several whole rows, or there are several cuts of each row.
        row = build.compute("floor_divide", first, self._cuts)
        cut = build.compute("remainder", first, self._cuts)
        shift = build.compute("subtract", row, first)
        return self._for(
            (first, end, self._one),
            self._identities(),
            lambda item, before: self._row(build.compute("add", item, shift), cut, lane, before),
        )

    def _row(
        self, row: Value, cut: Value, lane: Value, before: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        """Combine `before` with what one lane has of a row, or of the part of it in one block."""
        build = self.build
        offset = build.compute("multiply", row, self._length)
        rest = row
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
        return self._positions(cut, lane, offset, before)

    def _positions(
        self, cut: Value, lane: Value, offset: Value, before: tuple[Value, ...]
    ) -> tuple[Value, ...]:
        """Combine `before` with the positions of one lane in one block of the innermost loop.

        `offset` is the number of positions in the rows before this one.
        """
        sums = before[: len(self.operations)]
        nowhere = (self.build.constant(_NOWHERE, i64),) * len(self._found)
        state = self._lane_positions(cut, lane, offset, (*sums, *nowhere))
        return (*state[: len(sums)], *self._keys(state, before[len(sums) :]))

    def _keys(self, state: tuple[Value, ...], before: Sequence[Value]) -> Iterator[Value]:
        """Where the first zero is, and its sign in the lowest bit."""
        build = self.build
        for place, found, key in zip(
            self._found, state[len(self.operations) :], before, strict=True
        ):
            value = state[place]
            nowhere = build.constant(_NOWHERE, i64)
            is_zero = build.compute("equal", value, build.constant(0, value.dtype))
            is_new = build.compute("less", found, nowhere)
            sign = build.compute("copysign", build.constant(1, value.dtype), value)
            is_negative = build.compute("less", sign, build.constant(0, value.dtype))
            bit = build.cast(is_negative, i64)
            double = build.compute("add", found, found)
            new = build.compute("add", double, bit)
            counts = build.compute("bit_and", is_zero, is_new)
            new = build.compute("select", counts, new, nowhere)
            yield build.compute("minimum", key, new)

    def _lane_positions(
        self, cut: Value, lane: Value, offset: Value, before: tuple[Value, ...]
    ) -> tuple[Value, ...]:
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
            return self._rounds(first, rounds, offset, before, region)
        sums = self._rounds(first, whole, offset, before, region)
        # One round more, of the lanes for which there is a position.
        covered = build.compute("multiply", whole, self._lanes)
        is_left = build.compute("less", lane, build.compute("subtract", count, covered))
        with build.nested() as last:
            index, body, yields = self._repeated(region, sums)
            place = build.compute("add", first, covered)
            self._define_index(self.nest.loops[-1], index, place)
            for statement in body:
                build.emit(statement)
            yields = (*yields, *self._places(sums, yields, place, offset))
        results = tuple(build.value(value.dtype) for value in sums)
        then = Region((), tuple(last), yields)
        build.emit(ir.If(results, is_left, then, Region((), (), sums)))
        return results

    def _places(
        self, before: tuple[Value, ...], after: tuple[Value, ...], place: Value, offset: Value
    ) -> Iterator[Value]:
        """Where the values are that Python's min and max have found, after one iteration more."""
        build = self.build
        for number, found in zip(self._found, before[len(self.operations) :], strict=True):
            _, comparison = _EXTREMES[self.operations[number]]
            is_new = build.compute(comparison, after[number], before[number])
            here = build.compute("add", place, offset)
            yield build.compute("select", is_new, here, found)

    def _rounds(
        self,
        first: Value,
        rounds: Value,
        offset: Value,
        before: tuple[Value, ...],
        region: Region,
    ) -> tuple[Value, ...]:
        """The positions from `first` on in steps of `LANES`."""
        build = self.build
        counter = build.value(i64)
        places = before[len(self.operations) :]
        state = (*region.parameters[1:], *(build.value(value.dtype) for value in places))
        with build.nested() as body:
            place = build.compute("add", first, build.compute("multiply", counter, self._lanes))
            self._define_index(self.nest.loops[-1], region.parameters[0], place)
            for statement in self.nest.body:
                build.emit(statement)
            yields = (*region.yields, *self._places(state, region.yields, place, offset))
        results = tuple(build.value(value.dtype) for value in before)
        inner = Region((counter, *state), tuple(body), yields)
        bounds = self._zero, rounds, self._one
        build.emit(ir.For(results, *bounds, before, inner, line=self.nest.loops[-1].line))
        return results

    def _repeated(
        self, region: Region, sums: tuple[Value, ...]
    ) -> tuple[Value, tuple[ir.Statement, ...], tuple[Value, ...]]:
        """The innermost body again, with values of its own: its index, statements and yields."""
        index, *carried = region.parameters
        names = dict(zip(carried, sums[: len(carried)], strict=True))
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

    def _join_groups(self) -> Loops:
        """Lane by lane, `LANES` groups each."""
        build = self.build
        loops, (chunk, lane) = self._parallel(self._chunks, self._lanes)
        with build.nested() as body:
            first = build.compute("multiply", chunk, self._lanes)
            end = build.compute("add", first, self._lanes)
            end = build.compute("minimum", end, self._groups)
            totals = self._in_order(first, end, lambda group: (group, lane))
            row = build.compute("add", chunk, build.constant(GROUPS, i64))
            self._store(totals, row, lane)
        return loops, tuple(body)

    def _join_chunks(self) -> Loops:
        """Lane by lane, what `_join_groups` left; once where there are several groups."""
        build = self.build
        loops, (_, lane) = self._parallel(self._once, self._lanes)
        with build.nested() as body:
            first = build.constant(GROUPS, i64)
            end = build.compute("add", first, self._chunks)
            totals = self._in_order(first, end, lambda row: (row, lane))
            self._store(totals, build.constant(GROUPS + LANES, i64), lane)
        return loops, tuple(body)

    def finish(self, initial: Sequence[Value], results: Sequence[Value]) -> None:
        """Define the results of the loop; to be emitted where code runs in order."""
        build, totals = self.build, self._totals()
        keys = dict(zip(self._found, totals[len(results) :], strict=True))
        for place, (operation, before, result) in enumerate(
            zip(self.operations, initial, results, strict=True)
        ):
            total = totals[place]
            if place not in keys:
                build.emit(ir.Compute(result, operation, (before, total)))
                continue
            zero, one = build.constant(0, total.dtype), build.constant(1, total.dtype)
            bit = build.compute("bit_and", keys[place], self._one)
            is_negative = build.compute("equal", bit, self._one)
            sign = build.compute("select", is_negative, build.compute("negative", one), one)
            is_zero = build.compute("equal", total, zero)
            first_zero = build.compute("copysign", zero, sign)
            total = build.compute("select", is_zero, first_zero, total)
            is_better = build.compute(_EXTREMES[operation][1], total, before)
            build.emit(ir.Compute(result, "select", (is_better, total, before)))

    def _totals(self) -> tuple[Value, ...]:
        """The lanes of the only group, or of all of them; none where there is no position."""
        build = self.build
        last = build.constant(GROUPS + LANES, i64)
        row = build.compute("select", self._several, last, self._zero)
        some = build.compute("minimum", self._groups, self._one)
        count = build.compute("multiply", some, self._lanes)
        return self._in_order(self._zero, count, lambda lane: (row, lane))

    def _in_order(
        self, first: Value, end: Value, place_of: Callable[[Value], tuple[Value, Value]]
    ) -> tuple[Value, ...]:
        """Combine the partial results of `first` to `end`; `place_of` says where each is."""

        def body(index: Value, before: tuple[Value, ...]) -> tuple[Value, ...]:
            values = []
            for each in self.sums:
                values.append(self.build.value(each.dtype))
                self.build.emit(ir.Load(values[-1], each.array, place_of(index)))
            return self._combined(before, values)

        return self._for((first, end, self._one), self._identities(), body)

    def _store(self, totals: Sequence[Value], *place: Value) -> None:
        for each, total in zip(self.sums, totals, strict=True):
            self.build.emit(ir.Store(each.array, place, total))


def _can_be_repeated(body: Iterable[ir.Statement]) -> bool:
    """Whether a body may stand twice in a unit, and is not too long for that."""
    simple = ir.Constant | ir.Compute | ir.Cast | ir.Extent | ir.Load | ir.Store | ir.If
    every = list(ir.statements(body))
    return len(every) <= 64 and all(isinstance(statement, simple) for statement in every)
