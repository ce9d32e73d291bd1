"""Emission of the statements of a unit once more, in another unit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from .. import ir
from ..ir.transform import with_regions
from ..lang.builder import Builder

TAPE = "tape"
"""How the names of local arrays begin that hold what loops need on their way back."""


class Scope:
    """What stands for the values and local arrays of the original at one place.

    Attributes
    ----------
    values : dict of Value to Value
    arrays : dict of str to str
    bars : dict of str to str
        The arrays that hold the derivatives of the elements of local arrays.
    owned : set of str
        Local arrays whose declaration belongs to what is emitted now, so that stores to them do
        too. All others hold their final elements already.
    trips : dict of int to Value
        How often ``while`` loops ran, by the identity of their statements.
    """

    def __init__(self) -> None:
        self.values: dict[ir.Value, ir.Value] = {}
        self.arrays: dict[str, str] = {}
        self.bars: dict[str, str] = {}
        self.owned: set[str] = set()
        self.trips: dict[int, ir.Value] = {}

    def nested(self) -> Scope:
        """For a region of what is emitted."""
        scope = Scope()
        scope.values, scope.arrays = dict(self.values), dict(self.arrays)
        scope.bars, scope.trips = dict(self.bars), dict(self.trips)
        scope.owned = set(self.owned)
        return scope

    def again(self) -> Scope:
        """For statements that ran before and are repeated for the values in them."""
        scope = self.nested()
        scope.owned = set()
        return scope


class Replay:
    """Emits statements of the original unit with fresh values.

    Stores to parameters are left out: nothing of the original is to be written again.
    """

    def __init__(self, build: Builder, names: Iterable[str], policies: Mapping[str, str]) -> None:
        self.build = build
        self.policies = policies
        self._taken = set(names)

    def fresh_array(self) -> str:
        """A name for a local array."""
        number = len(self._taken)
        while f"{TAPE}{number}" in self._taken:
            number += 1
        self._taken.add(f"{TAPE}{number}")
        return f"{TAPE}{number}"

    def fresh(self, values: Iterable[ir.Value]) -> tuple[ir.Value, ...]:
        return tuple(self.build.value(value.dtype) for value in values)

    def replay(self, body: Iterable[ir.Statement], scope: Scope) -> None:
        for statement in body:
            self._replay(statement, scope)

    def _replay(self, statement: ir.Statement, scope: Scope) -> None:
        def one(value: ir.Value) -> ir.Value:
            return scope.values[value]

        def many(values: Iterable[ir.Value]) -> tuple[ir.Value, ...]:
            return tuple(scope.values[value] for value in values)

        results = self.fresh(statement.results)
        made: ir.Statement
        match statement:
            case ir.Constant() | ir.Extent():
                made = replace(statement, result=results[0])
            case ir.Compute(_, _, operands):
                made = replace(statement, result=results[0], operands=many(operands))
            case ir.Cast(_, operand):
                made = ir.Cast(results[0], one(operand))
            case ir.LocalArray(array):
                scope.arrays[array] = self.fresh_array()
                scope.owned.add(array)
                made = replace(statement, array=scope.arrays[array])
            case ir.Load(_, array, indices):
                name = scope.arrays.get(array, array)
                made = replace(statement, result=results[0], array=name, indices=many(indices))
            case ir.Store(array, indices, value):
                if array not in scope.owned:
                    return
                name = scope.arrays[array]
                made = replace(statement, array=name, indices=many(indices), value=one(value))
            case ir.If(_, condition):
                made = replace(statement, results=results, condition=one(condition))
                made = with_regions(made, self._arms(statement, scope))
            case ir.Switch(_, selector):
                made = replace(statement, results=results, selector=one(selector))
                made = with_regions(made, self._arms(statement, scope))
            case ir.Dispatch(_, selector, _, policy, name):
                policy = self.policies.get(name, policy)
                made = replace(statement, results=results, selector=one(selector), policy=policy)
                made = with_regions(made, self._arms(statement, scope))
            case ir.For(_, start, stop, step, initial, body):
                made = ir.For(
                    results,
                    one(start),
                    one(stop),
                    one(step),
                    many(initial),
                    self._region(body, scope),
                    line=statement.line,
                )
            case ir.While():
                made = self._counting(statement, results, scope)
        self.build.emit(made)
        # Of a loop that counts its iterations, the count comes last.
        scope.values.update(zip(statement.results, results, strict=True))

    def _arms(self, statement: ir.Statement, scope: Scope) -> list[ir.Region]:
        return [self._region(arm, scope) for arm in statement.regions]

    def _region(
        self,
        region: ir.Region,
        scope: Scope,
        more: tuple[ir.Value, ...] = (),
        close: Callable[[], Sequence[ir.Value]] = tuple,
    ) -> ir.Region:
        """A region again; it also takes `more`, and yields what `close` gives at its end."""
        inner = scope.nested()
        parameters = self.fresh(region.parameters)
        inner.values.update(zip(region.parameters, parameters, strict=True))
        with self.build.nested() as block:
            self.replay(region.body, inner)
            yields = (*(inner.values[value] for value in region.yields), *close())
        return ir.Region((*parameters, *more), tuple(block), yields)

    def _counting(self, loop: ir.While, results: tuple[ir.Value, ...], scope: Scope) -> ir.While:
        """A ``while`` loop that also counts its iterations."""
        build = self.build
        initial = (*(scope.values[value] for value in loop.initial), build.constant(0, ir.i64))
        tested, count, total = (build.value(ir.i64) for _ in range(3))
        condition = self._region(loop.condition, scope, (tested,))
        body = self._region(
            loop.body,
            scope,
            (count,),
            lambda: (build.compute("add", count, build.constant(1, ir.i64)),),
        )
        scope.trips[id(loop)] = total
        return ir.While((*results, total), initial, condition, body, line=loop.line)
