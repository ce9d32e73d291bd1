"""The way back through statements: derivatives of results become those of operands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from .. import ir
from ..ir.transform import with_regions
from ..lang.builder import Builder
from .activity import Activity
from .bars import Bar, Bars
from .partials import KEEPS_ZERO, PARTIALS, SECOND_IS_CHOSEN, Term, is_differentiable
from .replay import Replay, Scope
from .rewind import Rewind


class Sweep(Replay):
    """Goes backwards through statements that were replayed.

    Parameters
    ----------
    build : Builder
    activity : Activity
    seeds : mapping of str to ArrayParameter
        For each output, the array that holds the derivatives that the caller gives.
    tables : mapping of str to ArrayParameter
        For each table, the array to which its derivatives are added.
    names : iterable of str
        Of all parameters.
    policies : mapping of str to str
        Policies of dispatches by name, where not what they declare.
    """

    def __init__(
        self,
        build: Builder,
        activity: Activity,
        seeds: Mapping[str, ir.ArrayParameter],
        tables: Mapping[str, ir.ArrayParameter],
        names: Iterable[str],
        policies: Mapping[str, str],
    ) -> None:
        super().__init__(build, names, policies)
        self.activity = activity
        self.seeds = seeds
        self.tables = tables

    # -- conditions ------------------------------------------------------------------------------

    def both(self, first: ir.Value | None, second: ir.Value) -> ir.Value:
        return second if first is None else self.build.compute("bit_and", first, second)

    def either(self, first: ir.Value | None, second: ir.Value | None) -> ir.Value | None:
        if first is None or second is None or first == second:
            return None if first is None or second is None else first
        return self.build.compute("bit_or", first, second)

    def add(self, bars: Bars, value: ir.Value, bar: Bar) -> None:
        """Add a contribution to the derivative with respect to a value."""
        if value not in self.activity:
            return
        before = bars.get(value)
        if before is not None:
            total = self.build.compute("add", before.value, bar.value)
            bar = Bar(total, self.either(before.live, bar.live))
        bars[value] = bar

    def zero(self, dtype: ir.DType) -> Bar:
        """The derivative with respect to a value that nothing uses."""
        return Bar(self.build.constant(0.0, dtype), self.build.constant(False, ir.bool_))

    # -- statements ------------------------------------------------------------------------------

    def sweep(self, body: Sequence[ir.Statement], scope: Scope, bars: Bars) -> None:
        """Go back through `body`, which was replayed in `scope`.

        `bars` holds the derivatives with respect to what the body gives on, and in the end those
        with respect to what it takes from outside.
        """
        for statement in body:
            if isinstance(statement, ir.LocalArray) and statement.array in self.activity.arrays:
                scope.bars[statement.array] = self.fresh_array()
                self.build.emit(replace(statement, array=scope.bars[statement.array]))
        for statement in reversed(body):
            self._sweep(statement, scope, bars)

    def _sweep(self, statement: ir.Statement, scope: Scope, bars: Bars) -> None:
        match statement:
            case ir.Compute(result):
                if result in bars:
                    self._compute(statement, scope, bars, bars.pop(result))
            case ir.Cast(result, operand):
                if result in bars:
                    bar = bars.pop(result)
                    cast = self.build.cast(bar.value, operand.dtype)
                    self.add(bars, operand, Bar(cast, bar.live))
            case ir.Load(result, array):
                if result in bars and (array in self.tables or array in scope.bars):
                    self._load(statement, scope, bars.pop(result))
            case ir.Store(_, _, value):
                if value in self.activity:
                    self._store(statement, scope, bars)
            case ir.If() | ir.Switch() | ir.Dispatch():
                self._branch(statement, scope, bars)
            case ir.For() | ir.While():
                self._loop(statement, scope, bars)

    def _compute(self, statement: ir.Compute, scope: Scope, bars: Bars, bar: Bar) -> None:
        operation, operands = statement.operation, statement.operands
        values = [scope.values[operand] for operand in operands]
        if operation == "select":
            self._choice(bars, bar, values[0], operands[1], operands[2])
            return
        if operation in SECOND_IS_CHOSEN:
            second = self.build.compute(SECOND_IS_CHOSEN[operation], *values)
            self._choice(bars, bar, second, operands[1], operands[0])
            return
        given, result, *terms = (
            Term(self.build, value)
            for value in (bar.value, scope.values[statement.result], *values)
        )
        for place, operand in enumerate(operands):
            if operand not in self.activity or not is_differentiable(operation, place):
                continue
            partial = PARTIALS[operation][place]
            assert partial is not None
            contribution = partial(given, result, *terms).value
            if operation not in KEEPS_ZERO:
                contribution = self._where_live(bar.live, contribution)
            self.add(bars, operand, Bar(contribution, bar.live))

    def _where_live(self, live: ir.Value | None, value: ir.Value) -> ir.Value:
        if live is None:
            return value
        return self.build.compute("select", live, value, self.build.constant(0.0, value.dtype))

    def _choice(
        self, bars: Bars, bar: Bar, condition: ir.Value, taken: ir.Value, otherwise: ir.Value
    ) -> None:
        """The derivative goes to the chosen operand."""
        build = self.build
        if taken in self.activity:
            value = self._where_live(condition, bar.value)
            self.add(bars, taken, Bar(value, self.both(bar.live, condition)))
        if otherwise in self.activity:
            condition = build.compute("bit_not", condition)
            value = self._where_live(condition, bar.value)
            self.add(bars, otherwise, Bar(value, self.both(bar.live, condition)))

    # -- memory ----------------------------------------------------------------------------------

    def _load(self, statement: ir.Load, scope: Scope, bar: Bar) -> None:
        """Elements of tables and tapes are read any number of times, so derivatives are added."""
        array = statement.array
        table = self.tables.get(array)
        name = scope.bars[array] if table is None else table.name
        indices = tuple(scope.values[index] for index in statement.indices)
        with self.build.nested() as block:
            value = bar.value if table is None else self.build.cast(bar.value, table.dtype)
            self.build.emit(ir.Store(name, indices, value, "add", statement.line))
        if bar.live is None:
            for each in block:
                self.build.emit(each)
        else:
            self.build.emit(ir.If((), bar.live, ir.Region((), tuple(block)), ir.Region((), ())))

    def _store(self, statement: ir.Store, scope: Scope, bars: Bars) -> None:
        """The derivative of what is stored is that of the element, which nothing else changes."""
        seed = self.seeds.get(statement.array)
        name = scope.bars[statement.array] if seed is None else seed.name
        dtype = statement.value.dtype if seed is None else seed.dtype
        indices = tuple(scope.values[index] for index in statement.indices)
        loaded = self.build.value(dtype)
        self.build.emit(ir.Load(loaded, name, indices, statement.line))
        self.add(bars, statement.value, Bar(self.build.cast(loaded, statement.value.dtype)))

    def has_active_stores(self, regions: Iterable[ir.Region]) -> bool:
        """Whether derivatives enter these regions from memory."""
        return any(
            isinstance(statement, ir.Store) and statement.value in self.activity
            for region in regions
            for statement in ir.statements(region.body)
        )

    # -- branches --------------------------------------------------------------------------------

    def _branch(self, statement: ir.If | ir.Switch | ir.Dispatch, scope: Scope, bars: Bars) -> None:
        """A branch on the same condition: each arm computes its primal again and goes back."""
        given = [bars.pop(result, None) for result in statement.results]
        if not any(given) and not self.has_active_stores(statement.regions):
            return
        blocks: list[list[ir.Statement]] = []
        found: list[Bars] = []
        for arm in statement.regions:
            inner, inner_bars = scope.again(), Bars()
            with self.build.nested() as block:
                self.replay(arm.body, inner)
                for value, bar in zip(arm.yields, given, strict=True):
                    if bar is not None:
                        self.add(inner_bars, value, bar)
                self.sweep(arm.body, inner, inner_bars)
            blocks.append(block)
            found.append(inner_bars)
        captured = sorted({v for each in found for v in each}, key=lambda value: value.number)
        yields: list[list[ir.Value]] = [[] for _ in found]
        joined: list[tuple[ir.Value, Bar]] = []
        for value in captured:
            arms = [each.get(value) for each in found]
            result, live = self.build.value(value.dtype), None
            if any(bar is None or bar.live is not None for bar in arms):
                live = self.build.value(ir.bool_)
            joined.append((value, Bar(result, live)))
            for block, row, bar in zip(blocks, yields, arms, strict=True):
                with self.build.reopened(block):
                    row += self._given(bar, value.dtype, with_live=live is not None)
        results = [v for _, bar in joined for v in (bar.value, bar.live) if v is not None]
        made = self._header(statement, scope, tuple(results))
        arms_made = (
            ir.Region((), tuple(block), tuple(row))
            for block, row in zip(blocks, yields, strict=True)
        )
        self.build.emit(with_regions(made, tuple(arms_made)))
        for value, bar in joined:
            self.add(bars, value, bar)

    def _given(self, bar: Bar | None, dtype: ir.DType, with_live: bool) -> list[ir.Value]:
        """What an arm yields for a value from outside, None where it does not use it."""
        if bar is None:
            bar = self.zero(dtype)
        if not with_live:
            return [bar.value]
        return [bar.value, bar.live or self.build.constant(True, ir.bool_)]

    def _header(
        self,
        statement: ir.If | ir.Switch | ir.Dispatch,
        scope: Scope,
        results: tuple[ir.Value, ...],
    ) -> ir.Statement:
        """The statement with other results, and its operands as they are now."""
        match statement:
            case ir.If(_, condition):
                return replace(statement, results=results, condition=scope.values[condition])
            case ir.Switch(_, selector):
                return replace(statement, results=results, selector=scope.values[selector])
            case ir.Dispatch(_, selector, _, policy, name):
                return replace(
                    statement,
                    results=results,
                    selector=scope.values[selector],
                    policy=self.policies.get(name, policy),
                )

    # -- loops -----------------------------------------------------------------------------------

    def _loop(self, loop: ir.For | ir.While, scope: Scope, bars: Bars) -> None:
        """A loop that runs backwards over the values that the loop carried."""
        given = [bars.pop(result, None) for result in loop.results]
        if not any(given) and not self.has_active_stores([loop.body]):
            return
        rewound = Rewind(self, loop, scope)
        last = [
            bar or self.zero(result.dtype)
            for result, bar in zip(loop.results, given, strict=True)
            if result in self.activity
        ]
        first, captured = rewound.run(last)
        initial = [v for v, r in zip(loop.initial, loop.results, strict=True) if r in self.activity]
        for value, bar in (*zip(initial, first, strict=True), *captured.items()):
            self.add(bars, value, bar)
