"""From the statements of an array-form kernel to the units of its plan.

Top-level loops whose iterations are independent become units with an iteration space; all other
statements, in runs, become units that run once. What a unit needs from outside of it is recomputed
in its prologue where it depends on arguments alone, and passed through scratch memory otherwise.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from .. import ir
from ..errors import KernelError
from ..ir import Region, Value, i64
from ..ir.transform import with_regions
from . import notes
from .builder import Builder
from .cleanup import without_dead_code
from .loops import trip_count
from .notes import LoopNote, Refusal, Spelling
from .parallel import LoopAnalysis
from .reach import ReachAnalysis
from .reductions import PartialResults, Reduction, Row, reached_by
from .source import FunctionSource


@dataclass
class _Nest:
    """A parallel loop nest: the loops, and the statements of the innermost body.

    `written` is the nest as its author wrote it, where it was made of another one: what accesses
    may meet is found there. It is empty where nothing can.
    """

    loops: list[ir.For]
    body: tuple[ir.Statement, ...]
    written: _Nest | None = None


@dataclass
class _Group:
    """Statements that become one unit."""

    nest: _Nest | None
    statements: list[ir.Statement] = field(default_factory=list)


class ArrayPlan:
    """Builds the plan of an array-form kernel."""

    def __init__(
        self,
        name: str,
        source: FunctionSource,
        builder: Builder,
        parameters: tuple[ir.Parameter, ...],
        fast_math: bool,
    ) -> None:
        self.name = name
        self.source = source
        self.builder = builder
        self.parameters = parameters
        self.fast_math = fast_math
        self.notes: list[LoopNote] = []
        self.partial: dict[tuple[ir.DType, int], PartialResults] = {}
        self.reach = ReachAnalysis(builder, _quantities(builder, parameters))
        self.host: dict[int, ir.Statement | None] = {
            p.value.number: None for p in parameters if isinstance(p, ir.ScalarParameter)
        }

    def build(self, statements: Iterable[ir.Statement]) -> ir.Plan:
        """The plan that runs the statements in order."""
        body = without_dead_code(statements)
        scratch = [s for s in body if isinstance(s, ir.LocalArray)]
        statements = (s for s in body if not isinstance(s, ir.LocalArray))
        groups = self._groups(self._without_branches(statements))
        values = self._passed_values(groups)
        steps: list[ir.Step] = [ir.Scratch(s.array, s.dtype, s.shape) for s in scratch]
        steps += [ir.Scratch(name, value.dtype, (1,)) for value, name in values.values()]
        partial = [results.scratch for results in self.partial.values()]
        steps += partial
        arrays: dict[str, tuple[ir.DType, int]] = {
            p.name: (p.dtype, p.rank) for p in self.parameters if isinstance(p, ir.ArrayParameter)
        }
        arrays |= {s.array: (s.dtype, len(s.shape)) for s in scratch}
        arrays |= {name: (value.dtype, 1) for value, name in values.values()}
        arrays |= {s.name: (s.dtype, len(s.shape)) for s in partial}
        for number, group in enumerate(groups):
            steps.append(self._run(group, number if len(groups) > 1 else None, arrays, values))
        return ir.Plan(tuple(steps))

    # -- grouping --------------------------------------------------------------------------------

    def _without_branches(
        self, body: Iterable[ir.Statement], guards: tuple[tuple[Value, bool], ...] = ()
    ) -> Iterator[ir.Statement]:
        """The statements, with branches on arguments moved into the ranges of loops inside of them.

        A loop in a branch that is not taken becomes one over an empty range, so that it can be a
        unit. `guards` are the conditions around the statements, and which of their sides these are.
        """
        for statement in body:
            if isinstance(statement, ir.If) and self._can_move(statement):
                for side, holds in ((statement.then, True), (statement.otherwise, False)):
                    inner = (*guards, (statement.condition, holds))
                    yield from self._without_branches(side.body, inner)
            elif not guards or ir.is_pure(statement):
                yield statement
            elif isinstance(statement, ir.For):
                yield from self._guarded_loop(statement, guards)
            else:
                for condition, holds in reversed(guards):
                    sides = Region((), (statement,)), Region((), ())
                    then, otherwise = sides if holds else reversed(sides)
                    statement = ir.If((), condition, then, otherwise)
                yield statement

    def _can_move(self, branch: ir.If) -> bool:
        inside = [statement for region in branch.regions for statement in region.body]
        return (
            branch.condition.number in self.host
            and not branch.results
            and any(isinstance(statement, ir.For) for statement in ir.statements(inside))
            and all(
                ir.is_pure(s) or not (s.results or isinstance(s, ir.LocalArray)) for s in inside
            )
        )

    def _guarded_loop(
        self, loop: ir.For, guards: tuple[tuple[Value, bool], ...]
    ) -> Iterator[ir.Statement]:
        stop = loop.stop
        with self.builder.nested() as selects:
            for condition, holds in guards:
                sides = (stop, loop.start) if holds else (loop.start, stop)
                stop = self.builder.compute("select", condition, *sides)
        yield from selects
        yield replace(loop, stop=stop)

    def _groups(self, body: Iterable[ir.Statement]) -> list[_Group]:
        groups: list[_Group] = []
        for statement in body:
            if ir.is_pure(statement) and all(v.number in self.host for v in statement.operands):
                self.host.update((value.number, statement) for value in statement.results)
                continue
            reduced = self._reduction(statement) if isinstance(statement, ir.For) else None
            if reduced is not None:
                nests, joined = reduced
                groups += [_Group(nest) for nest in nests]
                groups.append(_Group(None, joined))
                continue
            nest = self._nest(statement) if isinstance(statement, ir.For) else None
            if nest is not None:
                groups.append(_Group(nest))
                continue
            self._note_loops_in_order(statement)
            if not groups or groups[-1].nest is not None:
                groups.append(_Group(None))
            groups[-1].statements.append(_plain_updates(statement, self.builder))
        return groups or [_Group(None)]

    # -- reductions ------------------------------------------------------------------------------

    def _reduction(self, loop: ir.For) -> tuple[list[_Nest], list[ir.Statement]] | None:
        """The parallel nests that a loop becomes whose carried values are reductions.

        And the statements, to be run in order after them, that define its results.
        """
        operations = reached_by(loop) if loop.results and loop.intent != "serial" else None
        if operations is None or not self._is_known(loop):
            return None
        if loop.intent != "parallel" and self._shares(loop):
            return None
        row = self._rows(loop)
        names = [self.builder.label(value) for value in loop.body.parameters[1:]]
        reason = notes.reduced(names, operations)
        for each in row.loops:
            self._keep(LoopNote(each.line, True, reason))
        loops, body = list(row.loops), row.body
        written = _Nest(loops, (*(s for part in row.before for s in part), *body))
        row = replace(row, body=self._inner_loops(self._private_updates(loops, body)))
        reduction = Reduction(self.builder, row, operations, self._partial)
        for statement in reduction.sizes:
            self.host.update((value.number, statement) for value in statement.results)
        first, *others = reduction.nests()
        nests = [_Nest(*first, written), *(_Nest(*other, _Nest([], ())) for other in others)]
        with self.builder.nested() as joined:
            reduction.finish(loop.initial, loop.results)
        return nests, joined

    def _rows(self, loop: ir.For) -> Row:
        """A loop and those perfectly nested in it that carry the same values."""
        loops, body = [loop], loop.body.body
        before: list[tuple[ir.Statement, ...]] = []
        while body and isinstance(body[-1], ir.For):
            inner, outer = body[-1], loops[-1].body
            if inner.initial != outer.parameters[1:] or inner.results != outer.yields:
                break
            varying = self._perfect_prefix(body[:-1], may_load=True)
            if varying is None or inner.intent == "serial" or not self._is_known(inner):
                break
            content = (*(s for part in before for s in part), *varying, *inner.body.body)
            is_asserted = inner.intent == loop.intent == "parallel"
            if not is_asserted and self._analysis([*loops, inner], content).dependence():
                break
            loops.append(inner)
            before.append(varying)
            body = inner.body.body
        return Row(tuple(loops), tuple(before), body)

    def _partial(self, operation: str, dtype: ir.DType, place: int) -> PartialResults:
        """Memory for partial results; that of one loop is free again for the next."""
        results = self.partial.get((dtype, place))
        if results is None:
            name = self._fresh_name(f"partial{len(self.partial)}")
            results = self.partial[dtype, place] = PartialResults(operation, dtype, name)
        return replace(results, operation=operation)

    def _is_known(self, loop: ir.For) -> bool:
        """Whether the range of a loop depends on arguments alone."""
        return all(bound.number in self.host for bound in (loop.start, loop.stop, loop.step))

    def _note_loops_in_order(self, statement: ir.Statement) -> None:
        """Notes for the loops of a statement that runs once, in order."""
        if isinstance(statement, ir.While):
            self._note_in_order(statement, self._ends_early(statement))
        is_loop = isinstance(statement, ir.For | ir.While)
        refusal = notes.IN_ORDERED_LOOP if is_loop else notes.IN_BRANCH
        for region in statement.regions:
            for inner in region.body:
                if isinstance(inner, ir.For):
                    self._note_in_order(inner, refusal)
                self._note_loops_in_order(inner)

    def _note_in_order(self, loop: ir.For | ir.While, refusal: Refusal) -> None:
        self._keep(LoopNote(loop.line, False, refusal.reason, refusal.advice))

    def _note_inside(self, loop: ir.For | ir.While, found: str) -> None:
        reason = f"it runs inside of a parallel loop; {found}"
        self._keep(LoopNote(loop.line, False, reason, is_inside_parallel=True))

    def _keep(self, note: LoopNote) -> None:
        if note not in self.notes:
            self.notes.append(note)

    def _nest(self, loop: ir.For) -> _Nest | None:
        """`loop` as a parallel nest, or None with a note of the reason."""
        refusal = self._refusal(loop)
        if refusal:
            if loop.intent == "parallel":
                raise KernelError(
                    f"this loop is declared tn.parallel, but {refusal.reason}",
                    self.source.line_location(loop.line),
                )
            self._note_in_order(loop, refusal)
            return None
        loops, body = [loop], loop.body.body
        proven = "its iterations are independent"
        reason = "declared tn.parallel" if loop.intent == "parallel" else proven
        self._keep(LoopNote(loop.line, True, reason))
        while body and isinstance(body[-1], ir.For):
            inner = body[-1]
            varying = self._perfect_prefix(body[:-1])
            if varying is None or not self._extends(loops, inner, varying):
                break
            reason = "its iterations are independent of each other and of the outer"
            self._keep(LoopNote(inner.line, True, reason))
            loops.append(inner)
            body = (*varying, *inner.body.body)
        return _Nest(loops, self._inner_loops(self._private_updates(loops, body)))

    def _private_updates(
        self, loops: list[ir.For], body: tuple[ir.Statement, ...]
    ) -> tuple[ir.Statement, ...]:
        """In a parallel nest an update of an element of one iteration need not be atomic."""
        analysis = self._analysis(loops, body)
        private = {array for array in analysis.stored if analysis.are_private((array,))}
        return _rewritten(body, self.builder, private)

    def _refusal(self, loop: ir.For) -> Refusal | None:
        if loop.intent == "serial":
            return notes.DECLARED_SERIAL
        if loop.results:
            return self._carries(loop)
        if not self._is_known(loop):
            return notes.UNKNOWN_RANGE
        if loop.intent == "parallel":
            return None
        return self._shares(loop)

    def _shares(self, loop: ir.For) -> Refusal | None:
        analysis = self._analysis([loop], loop.body.body)
        dependence = analysis.dependence()
        if dependence is None:
            return None
        return notes.shared(dependence, Spelling(self.source, analysis.accesses))

    def _analysis(self, loops: Sequence[ir.For], body: Iterable[ir.Statement]) -> LoopAnalysis:
        return LoopAnalysis(loops, body, self.builder.known_integer)

    def _perfect_prefix(
        self, prefix: tuple[ir.Statement, ...], *, may_load: bool = False
    ) -> tuple[ir.Statement, ...] | None:
        """What stands before an inner loop, less what can move into the prologue.

        None where something there is not pure, so that the loops are not perfectly nested.
        """
        varying: list[ir.Statement] = []
        for statement in prefix:
            if may_load and isinstance(statement, ir.Load):
                varying.append(statement)
                continue
            if not ir.is_pure(statement):
                return None
            if all(operand.number in self.host for operand in statement.operands):
                self.host.update((value.number, statement) for value in statement.results)
            else:
                varying.append(statement)
        return tuple(varying)

    def _extends(
        self, loops: list[ir.For], inner: ir.For, prefix: tuple[ir.Statement, ...]
    ) -> bool:
        """Whether `inner` can become one more axis of the iteration space."""
        if inner.results or inner.intent == "serial":
            return False
        if not self._is_known(inner):
            return False
        return not self._analysis([*loops, inner], (*prefix, *inner.body.body)).dependence()

    def _inner_loops(self, body: tuple[ir.Statement, ...]) -> tuple[ir.Statement, ...]:
        """Mark the loops inside of a parallel nest that are independent themselves."""
        return tuple(self._marked(statement) for statement in body)

    def _marked(self, statement: ir.Statement) -> ir.Statement:
        marked = with_regions(
            statement,
            [replace(r, body=self._inner_loops(r.body)) for r in statement.regions],
        )
        if isinstance(marked, ir.While):
            self._note_inside(marked, notes.WHILE.reason)
        if isinstance(marked, ir.For):
            refusal = self._inner_refusal(marked)
            found = refusal.reason if refusal else "its iterations are independent too"
            self._note_inside(marked, found)
            return replace(marked, independent=refusal is None)
        return marked

    def _inner_refusal(self, loop: ir.For) -> Refusal | None:
        if loop.intent == "serial":
            return notes.DECLARED_SERIAL
        if loop.results:
            return self._carries(loop)
        if any(isinstance(s, ir.Store) and s.combine for s in ir.statements(loop.body.body)):
            return notes.UPDATES_SHARED
        return self._shares(loop)

    def _carries(self, loop: ir.For) -> Refusal:
        names = sorted({self.builder.label(value) for value in loop.body.parameters[1:]})
        return notes.carried(names)

    def _ends_early(self, loop: ir.While) -> Refusal:
        """For a loop whose end is found while it runs: a `while`, or a `for` that is left early."""
        is_for = any(
            isinstance(node, ast.For) and node.lineno == loop.line
            for node in ast.walk(self.source.tree)
        )
        return notes.LEFT_EARLY if is_for else notes.WHILE

    # -- values that pass from unit to unit ------------------------------------------------------

    def _passed_values(self, groups: list[_Group]) -> dict[int, tuple[Value, str]]:
        """Values that one unit computes and another needs, with the scratch array of each."""
        owners: dict[int, int] = {}
        for position, group in enumerate(groups):
            for statement in group.statements:
                owners.update((value.number, position) for value in statement.results)
        passed: dict[int, tuple[Value, str]] = {}
        for position, group in enumerate(groups):
            for value in _free_values(self._content(group)):
                if owners.get(value.number, position) != position and value.number not in passed:
                    passed[value.number] = (value, self._fresh_name(f"passed{len(passed)}"))
        return passed

    def _fresh_name(self, name: str) -> str:
        while any(parameter.name == name for parameter in self.parameters):
            name += "_"
        return name

    def _content(self, group: _Group) -> tuple[ir.Statement, ...]:
        return group.nest.body if group.nest else tuple(group.statements)

    # -- units -----------------------------------------------------------------------------------

    def _run(
        self,
        group: _Group,
        number: int | None,
        arrays: dict[str, tuple[ir.DType, int]],
        passed: dict[int, tuple[Value, str]],
    ) -> ir.Run:
        name = self.name if number is None else f"{self.name}_{number}"
        with self.builder.nested() as prologue:
            if group.nest:
                extents, region = self._space(group.nest)
            else:
                extents, region = (), Region((), self._with_passed_stores(group, passed))
        content = (*prologue, *region.body)
        needed = [*_free_values(content), *extents]
        setup = self._setup(needed, region.parameters, prologue, passed)
        parameters = self._parameters((*setup, *region.body), arrays)
        unit = ir.Unit(name, parameters, setup, extents, region, self.fast_math)
        ir.verify(unit)
        if not group.nest:
            reaches = tuple(dict.fromkeys(self.reach.of(group.statements, ())))
            return ir.Run(unit, reaches=reaches)
        nest = group.nest.written or group.nest
        reaches = tuple(dict.fromkeys(self.reach.of(nest.body, tuple(nest.loops))))
        return ir.Run(unit, *self._overlap_rules(nest, unit), reaches)

    def _space(self, nest: _Nest) -> tuple[tuple[Value, ...], Region]:
        build = self.builder
        extents, positions = [], []
        with build.nested() as indices:
            for loop in nest.loops:
                index = loop.body.parameters[0]
                starts_at_0 = build.known_integer(loop.start) == 0
                if starts_at_0 and build.known_integer(loop.step) == 1:
                    positions.append(index)
                    continue
                position = build.value(i64)
                positions.append(position)
                offset = build.compute("multiply", position, loop.step)
                build.emit(ir.Compute(index, "add", (loop.start, offset)))
        for loop in nest.loops:
            known_step = build.known_integer(loop.step)
            extents.append(trip_count(build, loop.start, loop.stop, loop.step, known_step))
        return tuple(extents), Region(tuple(positions), (*indices, *nest.body))

    def _with_passed_stores(
        self, group: _Group, passed: dict[int, tuple[Value, str]]
    ) -> tuple[ir.Statement, ...]:
        defined = {value.number for s in group.statements for value in s.results}
        with self.builder.nested() as stores:
            for number, (value, array) in passed.items():
                if number in defined:
                    zero = self.builder.constant(0, i64)
                    self.builder.emit(ir.Store(array, (zero,), value))
        return (*group.statements, *stores)

    def _setup(
        self,
        needed: list[Value],
        positions: tuple[Value, ...],
        prologue: list[ir.Statement],
        passed: dict[int, tuple[Value, str]],
    ) -> tuple[ir.Statement, ...]:
        """The prologue: what the unit needs from outside, then its own `prologue`."""
        setup: list[ir.Statement] = []
        done = {value.number for statement in prologue for value in statement.results}
        done |= {position.number for position in positions}

        def require(value: Value) -> None:
            if value.number in done:
                return
            done.add(value.number)
            if value.number in passed:
                with self.builder.reopened(setup):
                    zero = self.builder.constant(0, i64)
                    setup.append(ir.Load(value, passed[value.number][1], (zero,)))
                return
            definition = self.host[value.number]
            if definition is not None:
                for operand in definition.operands:
                    require(operand)
                setup.append(definition)

        for value in needed:
            require(value)
        return without_dead_code((*setup, *prologue), needed)

    def _parameters(
        self, content: tuple[ir.Statement, ...], arrays: dict[str, tuple[ir.DType, int]]
    ) -> tuple[ir.Parameter, ...]:
        """The parameters that the statements use, in the kernel's order, then scratch arrays."""
        every = list(ir.statements(content))
        local = {s.array for s in every if isinstance(s, ir.LocalArray)}
        read = {s.array for s in every if isinstance(s, ir.Load)}
        read |= {s.array for s in every if isinstance(s, ir.Store) and s.combine}
        written = {s.array for s in every if isinstance(s, ir.Store)}
        measured = {s.array for s in every if isinstance(s, ir.Extent)}
        used = {value.number for statement in every for value in _uses(statement)}
        order = {parameter.name: n for n, parameter in enumerate(self.parameters)}
        result: list[ir.Parameter] = []
        for parameter in self.parameters:
            if isinstance(parameter, ir.ScalarParameter) and parameter.value.number in used:
                result.append(parameter)
        for name, (dtype, rank) in arrays.items():
            if name in (read | written | measured) - local:
                access = name in read, name in written
                is_scratch = name not in order
                result.append(
                    ir.ArrayParameter(name, dtype, rank, *access, is_contiguous=is_scratch)
                )
        return tuple(sorted(result, key=lambda p: order.get(p.name, len(order))))

    def _overlap_rules(
        self, nest: _Nest, unit: ir.Unit
    ) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
        """Pairs of arrays that must not overlap, and pairs that may be the same memory."""
        analysis = self._analysis(nest.loops, nest.body)
        accessed = list(dict.fromkeys(access.array for access in analysis.accesses))
        exclusive, elementwise = [], []
        for position, first in enumerate(accessed):
            for second in accessed[position + 1 :]:
                a, b = unit.arrays[first], unit.arrays[second]
                if not (a.is_written or b.is_written):
                    continue
                alike = (a.dtype, a.rank) == (b.dtype, b.rank)
                if alike and self._may_coincide((first, second), nest.body, analysis):
                    elementwise.append((first, second))
                else:
                    exclusive.append((first, second))
        return tuple(exclusive), tuple(elementwise)

    def _may_coincide(
        self, pair: tuple[str, str], body: tuple[ir.Statement, ...], analysis: LoopAnalysis
    ) -> bool:
        if not analysis.are_private(pair):
            return False
        for statement in ir.statements(body):
            if isinstance(statement, ir.For) and statement.independent:
                inner = self._analysis([statement], statement.body.body)
                is_accessed = any(access.array in pair for access in inner.accesses)
                if is_accessed and not inner.are_private(pair):
                    return False
        return True


def _quantities(builder: Builder, parameters: tuple[ir.Parameter, ...]) -> dict[int, ir.Quantity]:
    """What is known before a launch, by the numbers of the values that hold it."""
    quantities: dict[int, ir.Quantity] = {}
    for parameter in parameters:
        if isinstance(parameter, ir.ScalarParameter):
            quantities[parameter.value.number] = (parameter.name, None)
            continue
        for axis in range(parameter.rank):
            length = builder.extent(parameter.name, axis)
            quantities[length.number] = (parameter.name, axis)
    return quantities


def _uses(statement: ir.Statement) -> Iterable[Value]:
    yield from statement.operands
    for region in statement.regions:
        yield from region.yields


def _free_values(body: tuple[ir.Statement, ...]) -> list[Value]:
    """Values that the statements use and do not define, in order of first use."""
    defined: set[int] = set()
    used: dict[int, Value] = {}
    for statement in ir.statements(body):
        defined.update(value.number for value in statement.results)
        for region in statement.regions:
            defined.update(value.number for value in region.parameters)
        for value in _uses(statement):
            used.setdefault(value.number, value)
    return [value for number, value in used.items() if number not in defined]


def _rewritten(
    body: tuple[ir.Statement, ...], builder: Builder, arrays: set[str] | None
) -> tuple[ir.Statement, ...]:
    """Atomic updates of `arrays` (of all where None) as load, operation and store."""
    result: list[ir.Statement] = []
    for statement in body:
        if (
            isinstance(statement, ir.Store)
            and statement.combine is not None
            and (arrays is None or statement.array in arrays)
        ):
            with builder.reopened(result):
                old = builder.value(statement.value.dtype)
                builder.emit(ir.Load(old, statement.array, statement.indices, statement.line))
                new = builder.compute(statement.combine, old, statement.value)
                builder.emit(replace(statement, value=new, combine=None))
            continue
        result.append(_updated_inside(statement, builder, arrays))
    return tuple(result)


def _updated_inside(
    statement: ir.Statement, builder: Builder, arrays: set[str] | None
) -> ir.Statement:
    regions = [replace(r, body=_rewritten(r.body, builder, arrays)) for r in statement.regions]
    return with_regions(statement, regions)


def _plain_updates(statement: ir.Statement, builder: Builder) -> ir.Statement:
    """In a statement that runs in order no update needs to be atomic."""
    return _updated_inside(statement, builder, None)
