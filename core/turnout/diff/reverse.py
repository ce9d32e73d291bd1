"""A per-sample unit and the arrays of its derivatives in, the unit that computes those out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from .. import ir
from ..errors import KernelError
from ..ir.transform import with_regions
from ..lang.builder import Builder
from ..lang.cleanup import without_dead_code
from ..records import record
from .activity import Activity
from .bars import Bars
from .replay import TAPE, Scope
from .sweep import Sweep


@record
class Request:
    """What is to be computed.

    Attributes
    ----------
    name : str
        Of the unit.
    seeds : mapping of str to ArrayParameter
        For each output with derivatives, the array that holds those of the result with respect to
        its elements.
    gradients : mapping of str to ArrayParameter
        For each input whose derivatives are asked for, the array they go to: overwritten, but for
        tables, to whose arrays they are added. For a scalar parameter it has one element per
        sample.
    widths : mapping of str to int
        The number of components of those inputs that are vectors.
    tables : frozenset of str
        The inputs that any sample may read.
    mask : str
        The mask of samples that are skipped, empty where there is none.
    policies : mapping of str to str
        Policies of dispatches by name, where not what they declare.
    """

    name: str
    seeds: Mapping[str, ir.ArrayParameter]
    gradients: Mapping[str, ir.ArrayParameter]
    widths: Mapping[str, int]
    tables: frozenset[str]
    mask: str
    policies: Mapping[str, str]


def reverse_unit(unit: ir.Unit, request: Request) -> ir.Unit:
    """The unit that computes derivatives of a per-sample unit.

    Its parameters are the inputs of `unit` under their names, then the seeds, the gradients, and
    the scalars of `unit`. It reads every plane before it writes one, except that tables' gradients,
    which share no memory with others, are updated at any time.

    Parameters
    ----------
    unit : Unit
        One position per sample, dispatches not lowered.
    request : Request

    Raises
    ------
    KernelError
        For a unit with arrays that are private to a sample.
    """
    for statement in ir.statements(unit.body.body):
        if isinstance(statement, ir.LocalArray) and not statement.array.startswith(TAPE):
            raise KernelError(
                f"kernel {unit.name} keeps values in a local array (turnout.math.zeros), through "
                "which vjp does not differentiate; use vectors, or values that a loop carries"
            )
    made = _Reverse(unit, request).unit()
    ir.verify(made)
    return made


class _Reverse:
    def __init__(self, original: ir.Unit, request: Request) -> None:
        self.original = original
        self.request = request
        self.build = build = Builder()
        self.scope = Scope()
        self.inputs = [
            replace(array, is_written=False)
            for array in original.arrays.values()
            if array.is_read or not array.is_written
        ]
        self.scalars = [p for p in original.parameters if isinstance(p, ir.ScalarParameter)]
        for scalar in self.scalars:
            self.scope.values[scalar.value] = build.value(scalar.dtype)
        names = [parameter.name for parameter in original.parameters]
        names += [array.name for array in (*request.seeds.values(), *request.gradients.values())]
        asked = set(request.gradients)
        activity = Activity(
            original.body.body,
            asked.intersection(original.arrays),
            [scalar.value for scalar in self.scalars if scalar.name in asked],
        )
        tables = {name: a for name, a in request.gradients.items() if name in request.tables}
        local = (s.array for s in ir.statements(original.body.body) if isinstance(s, ir.LocalArray))
        self.sweep = Sweep(
            build, activity, request.seeds, tables, chain(names, local), request.policies
        )

    def unit(self) -> ir.Unit:
        build, original, scope = self.build, self.original, self.scope
        with build.nested() as prologue:
            self.sweep.replay(original.prologue, scope)
        (position,) = original.body.parameters
        scope.values[position] = build.value(ir.i64)
        before, guard, content = self._split(original.body.body)
        with build.nested() as body:
            self.sweep.replay(before, scope)
            with build.nested() as work:
                self._work(before, content)
            if guard is None:
                for statement in work:
                    build.emit(statement)
            else:
                live = scope.values[guard.condition]
                build.emit(ir.If((), live, ir.Region((), tuple(work)), ir.Region((), ())))
        statements = _cleaned(body)
        gradients = self.request.gradients.values()
        parameters: tuple[ir.Parameter, ...] = (
            *(_as_used(array, statements) for array in self.inputs),
            *(
                replace(seed, is_read=True, is_written=False)
                for seed in self.request.seeds.values()
            ),
            *(replace(gradient, is_read=False, is_written=True) for gradient in gradients),
            *(replace(scalar, value=scope.values[scalar.value]) for scalar in self.scalars),
        )
        return ir.Unit(
            self.request.name,
            parameters,
            tuple(prologue),
            tuple(scope.values[extent] for extent in original.extents),
            ir.Region((scope.values[position],), _with_distinct_names(statements)),
            original.fast_math,
        )

    def _split(
        self, body: tuple[ir.Statement, ...]
    ) -> tuple[Sequence[ir.Statement], ir.If | None, Sequence[ir.Statement]]:
        """What runs for every sample, the test of the mask, and what runs where it is not set."""
        if not self.request.mask:
            return (), None, body
        # All that skipped samples must not do stands in one branch, after the loads of planes.
        place, guard = next((n, s) for n, s in enumerate(body) if isinstance(s, ir.If))
        return body[:place], guard, guard.then.body

    def _work(self, before: Sequence[ir.Statement], content: Sequence[ir.Statement]) -> None:
        scope, sweep, bars = self.scope, self.sweep, Bars()
        sweep.replay(content, scope)
        sweep.sweep((*before, *content), scope, bars)
        for name, gradient in self.request.gradients.items():
            if name in self.request.tables:
                continue
            totals = self._elements(name, (*before, *content), bars)
            for component, value in totals:
                place = [] if component is None else [self.build.constant(component, ir.i64)]
                indices = (*place, scope.values[self.original.body.parameters[0]])
                self.build.emit(ir.Store(gradient.name, indices, value))

    def _elements(
        self, name: str, content: Iterable[ir.Statement], bars: Bars
    ) -> list[tuple[int | None, ir.Value]]:
        """The derivatives of one sample with respect to an input, by component for a vector."""
        width = self.request.widths.get(name, 0)
        found: dict[int | None, list[ir.Value]] = {n: [] for n in range(width)} or {None: []}
        numbers: dict[ir.Value, int] = {}
        for statement in content:
            if isinstance(statement, ir.Constant) and type(statement.value) is int:
                numbers[statement.result] = statement.value
            if isinstance(statement, ir.Load) and statement.array == name:
                component = numbers[statement.indices[0]] if width else None
                found[component] += _value_in(bars, statement.result)
        for scalar in self.scalars:
            if scalar.name == name:
                found[None] += _value_in(bars, scalar.value)
        dtype = self.request.gradients[name].dtype
        return [(component, self._sum(values, dtype)) for component, values in found.items()]

    def _sum(self, values: list[ir.Value], dtype: ir.DType) -> ir.Value:
        if not values:
            return self.build.constant(0.0, dtype)
        total, *others = values
        for value in others:
            total = self.build.compute("add", total, value)
        return self.build.cast(total, dtype)


def _value_in(bars: Bars, value: ir.Value) -> list[ir.Value]:
    return [bars[value].value] if value in bars else []


def _as_used(array: ir.ArrayParameter, body: Iterable[ir.Statement]) -> ir.ArrayParameter:
    loads = (s for s in ir.statements(body) if isinstance(s, ir.Load))
    return replace(array, is_read=any(load.array == array.name for load in loads))


def _cleaned(body: Iterable[ir.Statement]) -> tuple[ir.Statement, ...]:
    """`body` without what nothing needs, local arrays that nothing reads included."""
    body = without_dead_code(body)
    while True:
        inside = list(ir.statements(body))
        read = {s.array for s in inside if isinstance(s, ir.Load)}
        unread = {s.array for s in inside if isinstance(s, ir.LocalArray)} - read
        if not unread:
            return body
        body = without_dead_code(_without_arrays(body, unread))


def _without_arrays(body: Iterable[ir.Statement], names: set[str]) -> Iterator[ir.Statement]:
    for statement in body:
        if isinstance(statement, ir.LocalArray | ir.Store) and statement.array in names:
            continue
        yield with_regions(
            statement,
            [
                replace(region, body=tuple(_without_arrays(region.body, names)))
                for region in statement.regions
            ],
        )


def _with_distinct_names(body: Iterable[ir.Statement]) -> tuple[ir.Statement, ...]:
    """The dispatches that come from one get its name, all but the first with a number."""
    inside = [s for s in ir.statements(body) if isinstance(s, ir.Dispatch)]
    counts: Counter[str] = Counter()
    taken = {dispatch.name for dispatch in inside}

    def distinct(name: str) -> str:
        counts[name] += 1
        if counts[name] == 1:
            return name
        while f"{name}_{counts[name] - 1}" in taken:
            counts[name] += 1
        return f"{name}_{counts[name] - 1}"

    def renamed(body: Iterable[ir.Statement]) -> Iterator[ir.Statement]:
        for statement in body:
            if isinstance(statement, ir.Dispatch):
                statement = replace(statement, name=distinct(statement.name))
            yield with_regions(
                statement,
                [replace(each, body=tuple(renamed(each.body))) for each in statement.regions],
            )

    return tuple(renamed(body))
