"""Segmented dispatches: one unit per class over an index list, the units that make the lists.

A segmented unit is replaced by several. `Segmentation.classify` computes the class of every
position and nothing else; the partition units sort the positions by class, stably; each unit of
`Segmentation.branches` then runs one class, its arms in place of the dispatches. Nothing here knows
devices: what makes the lists are units too, so they run wherever the kernel runs.

Positions are numbered in row-major order (*linear* positions). The class of a position is
``clamp(selector, 0, K - 1)``; classes of several dispatches are joined in mixed radix, the first
dispatch most significant. A dispatch that control does not reach counts as class 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from . import ir
from .errors import KernelError
from .ir import Value, i64, statements, u8, u32, u64
from .ir.transform import fresh_values, rename, rewritten, with_regions
from .lang.cleanup import without_dead_code
from .lower import dispatch_groups, region_with_policies
from .records import record

MAXIMUM_UNITS = 64
"""Most joint classes, each of which is a unit of its own."""

BLOCK = 4096
"""How many positions one position of a partition unit takes, in order."""

CARRIED_COUNTERS = 8
"""Up to so many classes are counted in carried values, which compilers keep in vectors."""


@record
class ExtraNames:
    """Names of the parameters that segmented units have besides the original ones.

    Attributes
    ----------
    classes : str
        u8, one element per linear position: what ``classify`` writes.
    order : str
        i64: linear positions, those of a class side by side.
    start, count : str
        i64 scalars: a launch runs ``order[start : start + count]``.
    now : str
        u8, one element per linear position: the classes that guarded units compare with theirs.
    """

    classes: str
    order: str
    start: str
    count: str
    now: str

    @classmethod
    def without(cls, taken: Iterable[str]) -> ExtraNames:
        """Names that are not among those that are taken."""
        taken = set(taken)
        names = []
        for name in ("class", "order", "start", "count", "now"):
            unique = f"dispatch_{name}"
            while unique in taken:
                unique += "_"
            names.append(unique)
        return cls(*names)

    @property
    def in_order(self) -> tuple[str, ...]:
        """All of them."""
        return self.classes, self.order, self.start, self.count, self.now


@record
class Segmentation:
    """What takes the place of a unit with segmented dispatches.

    Attributes
    ----------
    groups : tuple of str
        The segmented dispatches in source order.
    sizes : tuple of int
        How many classes each has.
    classify : Unit
        ``classes[linear position] = joint class``; parameters: those of the original unit that it
        needs, ``classes``.
    branches : tuple of Unit
        One per joint class. Parameters: those of the original unit that it needs, ``order``,
        ``start``, ``count``.
    guarded : tuple of Unit
        The same, but a position runs only where ``now`` has the unit's class; ``now`` is the last
        parameter.
    listed : Unit
        The original computation of all classes over an index list; parameters as of a branch.
    """

    groups: tuple[str, ...]
    sizes: tuple[int, ...]
    classify: ir.Unit
    branches: tuple[ir.Unit, ...]
    guarded: tuple[ir.Unit, ...]
    listed: ir.Unit

    @property
    def classes(self) -> int:
        """How many joint classes there are."""
        return prod(self.sizes)


def check_split(unit: ir.Unit, groups: Iterable[str]) -> dict[str, int]:
    """Check that `split` can split a unit, without doing it.

    Returns
    -------
    dict of str to int
        The dispatches in source order, and how many classes each has.

    Raises
    ------
    KernelError
        As `split` does.
    """
    sizes = {name: len(dispatch.arms) for name, dispatch in _dispatches(unit, groups).items()}
    _check_number_of_units(unit, tuple(sizes), tuple(sizes.values()))
    for name in sizes:
        if problem := _split_problem(unit, name):
            raise KernelError(
                f"kernel {unit.name!r}, dispatch {name!r}: policy 'segmented' needs the class of "
                f"every position before the run, but {problem}; "
                "use 'switch', 'predicated' or 'auto'"
            )
    return sizes


def split(unit: ir.Unit, groups: Iterable[str], names: ExtraNames) -> Segmentation:
    """Split a unit by the classes of some of its dispatches.

    Parameters
    ----------
    unit : Unit
        Unit with dispatches; those that are not segmented stay in the new units.
    groups : iterable of str
        Names of the dispatches to segment, in any order.
    names : ExtraNames
        Names that no parameter of the unit has.

    Returns
    -------
    Segmentation

    Raises
    ------
    KernelError
        If there are more than `MAXIMUM_UNITS` joint classes, or the class of a dispatch is not
        known before the run: it has a `classification_problem`, or is in a loop that changes it.
    """
    chosen = check_split(unit, groups)
    unit = _with_early_selectors(unit, set(chosen))
    found = tuple(chosen)
    sizes = tuple(chosen.values())
    switched = replace(unit, body=_with_switches(unit.body, found))
    branches, guarded = [], []
    for number, arms in enumerate(product(*map(range, sizes))):
        body, values = list[ir.Statement](), dict[Value, Value]()
        _choose_arms(unit.body.body, dict(zip(found, arms, strict=True)), body, values)
        branch = replace(unit, body=replace(unit.body, body=rename(body, values)))
        name = f"{unit.name}__k{number}"
        branches.append(over_a_list(branch, name, names))
        guarded.append(over_a_list(branch, name, names, number))
    return Segmentation(
        found,
        sizes,
        _classifier(switched, found, sizes, names.classes),
        tuple(branches),
        tuple(guarded),
        over_a_list(switched, f"{unit.name}__listed", names),
    )


def classification_problem(unit: ir.Unit, group: str) -> str:
    """Say why the class of a dispatch cannot be computed before the unit runs, or ``""``.

    It cannot where the dispatch stands in a loop, because a position has many classes then, nor
    where its class depends on a load from an array that the unit has stored to by then.
    """
    if _is_in_loop(unit.body.body, group):
        return "it is in a loop"
    return _late_class_problem(unit, group)


def _split_problem(unit: ir.Unit, group: str) -> str:
    """Say why a unit cannot be split by the class of a dispatch, or ``""``.

    In a loop a position has one class where nothing that the loop changes decides it.
    """
    early = _with_early_selectors(unit, {group})
    changing = _defined_in_loops(early.body.body)
    if any(d.name == group and d.selector in changing for d in dispatch_groups(early)):
        return "it is in a loop, which may change its class"
    return _late_class_problem(early, group)


def _late_class_problem(unit: ir.Unit, group: str) -> str:
    body, classes = _with_classes(unit, [group], 0, fresh_values(unit))
    needed = {value for s in statements(_slice(body, classes, set())) for value in s.results}
    late = _late_load(body, needed, set(unit.arrays), set())
    return f"its class is read from {late.array!r} after a store to it" if late else ""


def _dispatches(unit: ir.Unit, groups: Iterable[str]) -> dict[str, ir.Dispatch]:
    """Give the dispatches with these names, in source order."""
    every = {dispatch.name: dispatch for dispatch in dispatch_groups(unit)}
    wanted = set(groups)
    if unknown := wanted - every.keys():
        raise KernelError(
            f"kernel {unit.name!r} has no dispatch {', '.join(map(repr, sorted(unknown)))}; "
            f"its dispatches are {', '.join(map(repr, every)) or 'none'}"
        )
    return {name: dispatch for name, dispatch in every.items() if name in wanted}


def _check_number_of_units(unit: ir.Unit, groups: Sequence[str], sizes: Sequence[int]) -> None:
    if prod(sizes) <= MAXIMUM_UNITS:
        return
    listed = ", ".join(f"{name!r} ({size})" for name, size in zip(groups, sizes, strict=True))
    one_of_them = "it" if len(groups) == 1 else "one of them"
    raise KernelError(
        f"kernel {unit.name!r}: its segmented dispatches {listed} make {prod(sizes)} joint "
        f"classes; at most {MAXIMUM_UNITS} are allowed, because each is a unit of its own; "
        f"use 'switch', 'predicated' or 'auto' for {one_of_them}"
    )


# -- units over an index list ----------------------------------------------------------------------


def _with_switches(region: ir.Region, groups: Iterable[str]) -> ir.Region:
    """Declare policy "switch" for some dispatches."""
    return region_with_policies(region, dict.fromkeys(groups, "switch"))


def _choose_arms(
    body: Iterable[ir.Statement],
    arms: Mapping[str, int],
    chosen: list[ir.Statement],
    values: dict[Value, Value],
) -> None:
    """Append `body` to `chosen` with one arm in place of each dispatch of `arms`.

    `values` receives what to use in place of the results of those dispatches.
    """
    for statement in body:
        if isinstance(statement, ir.Dispatch) and statement.name in arms:
            arm = statement.arms[arms[statement.name]]
            _choose_arms(arm.body, arms, chosen, values)
            for result, value in zip(statement.results, arm.yields, strict=True):
                values[result] = values.get(value, value)
            continue
        regions = []
        for region in statement.regions:
            inner: list[ir.Statement] = []
            _choose_arms(region.body, arms, inner, values)
            regions.append(replace(region, body=tuple(inner)))
        chosen.append(with_regions(statement, regions))


def over_a_list(unit: ir.Unit, name: str, names: ExtraNames, guard: int | None = None) -> ir.Unit:
    """Run a unit over listed positions; with `guard` only those whose class is that now."""
    fresh = fresh_values(unit)
    start, count, place = fresh(i64), fresh(i64), fresh(i64)
    extra: list[ir.Parameter] = [
        ir.ArrayParameter(names.order, i64, 1),
        ir.ScalarParameter(names.start, start),
        ir.ScalarParameter(names.count, count),
    ]
    write = _Writer(fresh)
    linear = write.load(names.order, i64, write.compute("add", start, place))
    inner = write
    if guard is not None:
        extra.append(ir.ArrayParameter(names.now, u8, 1))
        inner = _Writer(fresh)
    inner.at(linear, unit, unit.body.body)
    if guard is not None:
        now = write.load(names.now, u8, linear)
        holds = write.compute("equal", now, write.constant(guard, u8))
        write.body.append(ir.If((), holds, inner.region(), ir.Region((), ())))
    body = write.region(place)
    return _reduced(unit, name, unit.prologue, (count,), body, extra, set(unit.arrays))


def _reduced(
    unit: ir.Unit,
    name: str,
    prologue: Iterable[ir.Statement],
    extents: tuple[Value, ...],
    body: ir.Region,
    extra: Sequence[ir.Parameter],
    outputs: set[str],
) -> ir.Unit:
    """Make a unit with what stores to `outputs` need of a body, a prologue and of parameters.

    Parameters are those of `unit`, then `extra`.
    """
    body = replace(body, body=_slice(body.body, (), outputs))
    prologue = without_dead_code(prologue, {*extents, *_uses(body.body)})
    everything = list(statements((*prologue, *body.body)))
    values = {*extents, *_uses(everything)}
    measured = {s.array for s in everything if isinstance(s, ir.Extent)}
    loaded = {s.array for s in everything if isinstance(s, ir.Load)}
    updated = {s.array for s in everything if isinstance(s, ir.Store) and s.combine}
    stored = {s.array for s in everything if isinstance(s, ir.Store)}
    parameters: list[ir.Parameter] = []
    for parameter in unit.parameters:
        if isinstance(parameter, ir.ScalarParameter):
            if parameter.value in values:
                parameters.append(parameter)
        elif parameter.name in measured | loaded | stored:
            is_read = parameter.is_read and parameter.name in loaded | updated
            is_written = parameter.name in stored
            parameters.append(replace(parameter, is_read=is_read, is_written=is_written))
    reduced = replace(
        unit,
        name=name,
        parameters=(*parameters, *extra),
        prologue=prologue,
        extents=extents,
        body=body,
    )
    ir.verify(reduced)
    return reduced


def _uses(body: Iterable[ir.Statement]) -> Iterator[Value]:
    """Every value that a body uses, more than once where it does."""
    for statement in statements(body):
        yield from statement.operands
        for region in statement.regions:
            yield from region.yields


# -- the classes of a position ---------------------------------------------------------------------


def _classifier(
    unit: ir.Unit, groups: Sequence[str], sizes: Sequence[int], classes: str
) -> ir.Unit:
    fresh = fresh_values(unit)
    body, values = _with_classes(unit, groups, 0, fresh)
    write = _Writer(fresh)
    write.body += body
    joint = write.mixed_radix(values, [write.constant(size) for size in sizes])
    linear = write.mixed_radix(unit.body.parameters, unit.extents)
    write.store(classes, write.cast(joint, u8), linear)
    written = ir.ArrayParameter(classes, u8, 1, is_read=False, is_written=True)
    name, region = f"{unit.name}__cls", write.region(*unit.body.parameters)
    return _reduced(unit, name, unit.prologue, unit.extents, region, [written], {classes})


def _with_classes(
    unit: ir.Unit, groups: Sequence[str], elsewhere: int, fresh: Callable[[ir.DType], Value]
) -> tuple[list[ir.Statement], list[Value]]:
    """Give the body of a unit that also computes the class of each of `groups`, and the classes.

    The class is `elsewhere` where control does not reach the dispatch. Of dispatches in loops the
    selector is known before.
    """
    body, classes = _classified(unit.body.body, set(groups), elsewhere, fresh)
    return body, [classes[group] for group in groups]


def _classified(
    body: Iterable[ir.Statement],
    groups: set[str],
    elsewhere: int,
    fresh: Callable[[ir.DType], Value],
) -> tuple[list[ir.Statement], dict[str, Value]]:
    write, classes = _Writer(fresh), dict[str, Value]()
    for statement in body:
        if isinstance(statement, ir.Dispatch) and statement.name in groups:
            classes[statement.name] = write.class_of(statement)
        if isinstance(statement, ir.For | ir.While):
            for each in statements([statement]):
                if isinstance(each, ir.Dispatch) and each.name in groups:
                    classes[each.name] = write.class_of(each)
            write.body.append(statement)
            continue
        blocks = [_classified(r.body, groups, elsewhere, fresh) for r in statement.regions]
        inner = [name for _, found in blocks for name in found]
        if not inner:
            write.body.append(statement)
            continue
        regions = []
        for region, (lines, found) in zip(statement.regions, blocks, strict=True):
            arm = _Writer(fresh, lines)
            values = [found[n] if n in found else arm.constant(elsewhere) for n in inner]
            regions.append(replace(arm.region(), yields=(*region.yields, *values)))
        results = tuple(fresh(i64) for _ in inner)
        classes.update(zip(inner, results, strict=True))
        extended = with_regions(statement, regions)
        assert isinstance(extended, ir.If | ir.Switch | ir.Dispatch)
        write.body.append(replace(extended, results=(*statement.results, *results)))
    return write.body, classes


def _is_in_loop(body: Iterable[ir.Statement], group: str) -> bool:
    return any(
        isinstance(inner, ir.Dispatch) and inner.name == group
        for loop in statements(body)
        if isinstance(loop, ir.For | ir.While)
        for region in loop.regions
        for inner in statements(region.body)
    )


def _defined_in_loops(body: Iterable[ir.Statement]) -> set[Value]:
    """What is defined anew in each round of a loop."""
    return {
        value
        for loop in statements(body)
        if isinstance(loop, ir.For | ir.While)
        for region in loop.regions
        for value in _defined_in(region)
    }


def _defined_in(region: ir.Region) -> Iterator[Value]:
    yield from region.parameters
    for statement in region.body:
        yield from statement.results
        for inner in statement.regions:
            yield from _defined_in(inner)


def _with_early_selectors(unit: ir.Unit, groups: set[str]) -> ir.Unit:
    """Compute the selectors of dispatches before the loops around them, where that is possible.

    It is where a selector is computed, without memory, from what was there before the loop.
    """
    return replace(unit, body=replace(unit.body, body=tuple(_early(unit.body.body, groups))))


def _early(body: Iterable[ir.Statement], groups: set[str]) -> Iterator[ir.Statement]:
    for statement in body:
        if isinstance(statement, ir.For | ir.While):
            yield from _early_of_loop(statement, groups)
            continue
        regions = [replace(r, body=tuple(_early(r.body, groups))) for r in statement.regions]
        yield with_regions(statement, regions)


def _early_of_loop(loop: ir.For | ir.While, groups: set[str]) -> Iterator[ir.Statement]:
    inside = list(statements([loop]))
    changing = _defined_in_loops([loop])
    pure = {each.results[0]: each for each in inside if ir.is_pure(each)}
    early: dict[Value, ir.Statement] = {}

    def is_early(value: Value) -> bool:
        if value not in changing or value in early:
            return True
        definition = pure.get(value)
        if definition is None or not all(map(is_early, definition.operands)):
            return False
        early[value] = definition
        return True

    for each in inside:
        if isinstance(each, ir.Dispatch) and each.name in groups:
            is_early(each.selector)
    yield from early.values()
    regions = [
        rewritten(r, lambda _, s: () if early.keys() & {*s.results} else (s,)) for r in loop.regions
    ]
    yield with_regions(loop, regions)


def _slice(
    body: Sequence[ir.Statement], used: Sequence[Value], outputs: set[str]
) -> tuple[ir.Statement, ...]:
    """What stores to `outputs` and the values in `used` need of a body.

    Also without loops and local arrays that nothing else needs: the classifier has run those that
    only classes needed.
    """
    arrays, values = set(outputs), set(used)
    local = {s.array for s in statements(body) if isinstance(s, ir.LocalArray)}
    while True:
        kept = without_dead_code(_needed(body, arrays, values), used)
        more_arrays = {s.array for s in statements(kept) if isinstance(s, ir.Load)} & local
        more_values = set(_uses(kept))
        if more_arrays <= arrays and more_values <= values:
            return kept
        arrays |= more_arrays
        values |= more_values


def _needed(
    body: Iterable[ir.Statement], arrays: set[str], values: set[Value]
) -> Iterator[ir.Statement]:
    """Leave out stores to other arrays than `arrays`, and while loops that serve neither."""
    for statement in body:
        if isinstance(statement, ir.Store | ir.LocalArray) and statement.array not in arrays:
            continue
        regions = [
            replace(region, body=tuple(_needed(region.body, arrays, values)))
            for region in statement.regions
        ]
        needed = with_regions(statement, regions)
        stores = any(isinstance(inner, ir.Store) for inner in statements([needed]))
        if isinstance(needed, ir.While) and not stores and values.isdisjoint(needed.results):
            continue
        yield needed


def _late_load(
    body: Iterable[ir.Statement], needed: set[Value], arrays: set[str], stored: set[str]
) -> ir.Load | None:
    """Find a load of a needed value from one of `arrays` that is in `stored` by then.

    `stored` receives the arrays that the body stores to.
    """
    for statement in body:
        if isinstance(statement, ir.Load):
            if statement.result in needed and statement.array in arrays & stored:
                return statement
        elif isinstance(statement, ir.Store):
            stored.add(statement.array)
        elif isinstance(statement, ir.For | ir.While):
            # What one round stores, the next one may load.
            stored.update(s.array for s in statements([statement]) if isinstance(s, ir.Store))
        after = [set(stored) for _ in statement.regions]
        for region, own in zip(statement.regions, after, strict=True):
            if late := _late_load(region.body, needed, arrays, own):
                return late
        stored.update(*after)
    return None


# -- counters --------------------------------------------------------------------------------------


def with_counters(unit: ir.Unit, groups: Mapping[str, str]) -> ir.Unit:
    """Count the classes of dispatches where they are evaluated, in loops and arms too.

    Parameters
    ----------
    unit : Unit
    groups : mapping of str to str
        For each dispatch to count the name of a new array parameter (u32, one element per class),
        to which 1 is added atomically at every evaluation.

    Returns
    -------
    Unit
        The unit with the counters as its last parameters, in the order of `groups`.
    """
    _dispatches(unit, groups)
    fresh = fresh_values(unit)
    counted = replace(
        unit,
        parameters=(*unit.parameters, *(_counter(array) for array in groups.values())),
        body=_counted(unit.body, groups, fresh),
    )
    ir.verify(counted)
    return counted


def _counter(array: str) -> ir.ArrayParameter:
    return ir.ArrayParameter(array, u32, 1, is_read=True, is_written=True)


def _counted(
    region: ir.Region, groups: Mapping[str, str], fresh: Callable[[ir.DType], Value]
) -> ir.Region:
    write = _Writer(fresh)
    for statement in region.body:
        if isinstance(statement, ir.Dispatch) and statement.name in groups:
            number = write.class_of(statement)
            write.store(groups[statement.name], write.constant(1, u32), number, combine="add")
        regions = [_counted(inner, groups, fresh) for inner in statement.regions]
        write.body.append(with_regions(statement, regions))
    return replace(region, body=tuple(write.body))


def counting_units(unit: ir.Unit, groups: Mapping[str, str]) -> tuple[ir.Unit, ...]:
    """Make units that count classes before `unit` runs, with one atomic addition per block.

    They add the same numbers as `with_counters` does, for a fraction of the cost.

    Parameters
    ----------
    unit : Unit
    groups : mapping of str to str
        For each dispatch to count the name of an array parameter (u32, one element per class).

    Returns
    -------
    tuple of Unit
        One per dispatch in the order of `groups`, called ``<unit>__mix<i>``. Parameters: those of
        `unit` that it needs, the counter. Segmented dispatches that a class depends on are
        switches in them.

    Raises
    ------
    KernelError
        If a dispatch has a `classification_problem`; those take `with_counters`.
    """
    dispatches = _dispatches(unit, groups)
    for name in dispatches:
        if problem := classification_problem(unit, name):
            raise KernelError(
                f"kernel {unit.name!r}, dispatch {name!r}: its classes cannot be counted before "
                f"the run, because {problem}"
            )
    segmented = [d.name for d in dispatch_groups(unit) if d.policy == "segmented"]
    switched = replace(unit, body=_with_switches(unit.body, segmented))
    return tuple(
        _counting_unit(switched, f"{unit.name}__mix{number}", dispatches[group], array)
        for number, (group, array) in enumerate(groups.items())
    )


def _counting_unit(unit: ir.Unit, name: str, dispatch: ir.Dispatch, array: str) -> ir.Unit:
    fresh = fresh_values(unit)
    size = len(dispatch.arms)
    # The number after the last class stands for positions that do not reach the dispatch.
    body, (number,) = _with_classes(unit, [dispatch.name], size, fresh)

    launch, write = _Writer(fresh, list(unit.prologue)), _Writer(fresh)
    total = launch.total(unit.extents)
    blocks = launch.blocks(total)
    block = fresh(i64)

    def classify(inner: _Writer, linear: Value) -> Value:
        inner.at(linear, unit, body)
        return number

    def put(inner: _Writer, number: Value, count: Value) -> None:
        inner.store(array, count, number, combine="add")

    write.count(write.block(block, total), size, classify, put)
    region = write.region(block)
    return _reduced(unit, name, launch.body, (blocks,), region, [_counter(array)], {array})


SAMPLED_AT_ONCE = 32
"""How many positions one position of a sampling unit looks at."""

_FRACTION = 2**16
_SCATTER = 40503
"""Its multiples, as parts of `_FRACTION`, are spread evenly: 65536 divided by the golden ratio."""


def sampling_unit(unit: ir.Unit, group: str, array: str, most: int) -> ir.Unit:
    """Make a unit that counts the classes of some positions, as `counting_units` does of all.

    One position is taken of each of `most` equally long stretches, somewhere else in each, so that
    classes in regular patterns are counted as often as they occur; all, where there are no more.

    Parameters
    ----------
    unit : Unit
    group : str
        A dispatch without a `classification_problem`.
    array : str
        Name of the counters (u32, one element per class).
    most : int
        How many positions are looked at.

    Returns
    -------
    Unit
        ``<unit>__sample``, with parameters as those of `counting_units`.
    """
    dispatch = _dispatches(unit, [group])[group]
    segmented = [d.name for d in dispatch_groups(unit) if d.policy == "segmented"]
    unit = replace(unit, body=_with_switches(unit.body, segmented))
    fresh = fresh_values(unit)
    size = len(dispatch.arms)
    body, (number,) = _with_classes(unit, [group], size, fresh)

    launch, write = _Writer(fresh, list(unit.prologue)), _Writer(fresh)
    total = launch.total(unit.extents)
    count = launch.compute("minimum", total, launch.constant(most))
    divisor = launch.compute("maximum", count, launch.constant(1))
    stretch = launch.compute("floor_divide", total, divisor)
    parts = launch.compute("multiply", total, launch.constant(_FRACTION))
    step = launch.compute("floor_divide", parts, divisor)
    blocks = launch.blocks(count, SAMPLED_AT_ONCE)
    block = fresh(i64)

    def classify(inner: _Writer, place: Value) -> Value:
        scattered = inner.compute("multiply", place, inner.constant(_SCATTER))
        part = inner.compute("remainder", scattered, inner.constant(_FRACTION))
        start = inner.compute("multiply", place, step)
        exact = inner.compute("add", start, inner.compute("multiply", part, stretch))
        linear = inner.compute("floor_divide", exact, inner.constant(_FRACTION))
        inner.at(linear, unit, body)
        return number

    def put(inner: _Writer, number: Value, found: Value) -> None:
        inner.store(array, found, number, combine="add")

    write.count(write.block(block, count, SAMPLED_AT_ONCE), size, classify, put)
    region, name = write.region(block), f"{unit.name}__sample"
    return _reduced(unit, name, launch.body, (blocks,), region, [_counter(array)], {array})


# -- partition units -------------------------------------------------------------------------------
# A stable counting sort. One position takes one block, in order, so the result does not depend on
# how many threads run it.


def count_classes(classes: int) -> ir.Unit:
    """Make the unit that counts the positions of each class in each block.

    Parameters
    ----------
    classes : int
        How many joint classes there are.

    Returns
    -------
    Unit
        Parameters: ``classes`` u8[samples]; ``counts`` i64[classes, blocks], written, where
        ``blocks = ceil(samples / BLOCK)``; ``samples`` i64.
    """
    partition = _Partition(f"count_classes{classes}")
    partition.array("classes", u8)
    partition.array("counts", i64, 2, is_read=False, is_written=True)
    block, bounds = partition.blocks()

    def classify(inner: _Writer, position: Value) -> Value:
        return inner.load("classes", u8, position)

    def put(inner: _Writer, number: Value, count: Value) -> None:
        inner.store("counts", inner.cast(count, i64), number, block)

    partition.write.count(bounds, classes, classify, put)
    return partition.unit()


def starts_of(classes: int) -> ir.Unit:
    """Make the unit that turns counts into places: where each class starts in each block.

    Parameters
    ----------
    classes : int
        How many joint classes there are.

    Returns
    -------
    Unit
        A unit that runs once. Parameters: ``counts`` i64[classes, blocks], replaced by its
        exclusive running sum in the order (class, block); ``offsets`` i64[classes + 1], written:
        where each class starts, and the total.
    """
    partition = _Partition(f"starts_of{classes}")
    partition.array("counts", i64, 2, is_written=True)
    partition.array("offsets", i64, is_read=False, is_written=True)
    blocks = partition.extent("counts", 1)
    write = partition.write
    zero, end = write.constant(0), write.constant(classes)

    def of_class(outer: _Writer, number: Value, total: Value) -> list[Value]:
        outer.store("offsets", total, number)

        def of_block(inner: _Writer, block: Value, start: Value) -> list[Value]:
            count = inner.load("counts", i64, number, block)
            inner.store("counts", start, number, block)
            return [inner.compute("add", start, count)]

        return list(outer.loop((zero, blocks), [total], of_block))

    (total,) = write.loop((zero, end), [zero], of_class)
    write.store("offsets", total, end)
    return partition.unit()


def scatter_order(classes: int) -> ir.Unit:
    """Make the unit that writes the positions sorted by class, those of a class ascending.

    Parameters
    ----------
    classes : int
        How many joint classes there are.

    Returns
    -------
    Unit
        Parameters: ``classes`` u8[samples]; ``starts`` i64[classes, blocks] as `starts_of` leaves
        them; ``order`` i64[samples], written; ``samples`` i64.
    """
    partition = _Partition(f"scatter_order{classes}")
    partition.array("classes", u8)
    partition.array("starts", i64, 2)
    partition.array("order", i64, is_read=False, is_written=True)
    block, bounds = partition.blocks()
    write = partition.write
    write.body.append(ir.LocalArray("places", i64, (classes,)))

    def begin(inner: _Writer, number: Value) -> list[Value]:
        inner.store("places", inner.load("starts", i64, number, block), number)
        return []

    def place(inner: _Writer, position: Value) -> list[Value]:
        number = inner.cast(inner.load("classes", u8, position), i64)
        free = inner.load("places", i64, number)
        inner.store("order", position, free)
        inner.store("places", inner.compute("add", free, inner.constant(1)), number)
        return []

    write.loop((write.constant(0), write.constant(classes)), [], begin)
    write.loop(bounds, [], place)
    return partition.unit()


def compare_classes() -> ir.Unit:
    """Make the unit that counts in each block how many positions have another class now.

    Returns
    -------
    Unit
        Parameters: ``kept`` and ``now``, u8[samples]; ``changed`` i64[1, blocks], written, which
        `starts_of` ``(1)`` turns into places; ``samples`` i64.
    """
    partition = _Partition("compare_classes")
    partition.array("kept", u8)
    partition.array("now", u8)
    partition.array("changed", i64, 2, is_read=False, is_written=True)
    block, bounds = partition.blocks()
    write = partition.write

    def compare(inner: _Writer, position: Value, count: Value) -> list[Value]:
        differs = inner.cast(_differs(inner, position), u32)
        return [inner.compute("add", count, differs)]

    (count,) = write.loop(bounds, [write.constant(0, u32)], compare)
    write.store("changed", write.cast(count, i64), write.constant(0), block)
    return partition.unit()


def collect_changed() -> ir.Unit:
    """Make the unit that lists the positions that have another class now, ascending.

    Returns
    -------
    Unit
        Parameters: ``kept`` and ``now``, u8[samples]; ``starts`` i64[1, blocks], what `starts_of`
        ``(1)`` makes of `compare_classes`; ``order`` i64, written, one element per changed
        position; ``samples`` i64.
    """
    partition = _Partition("collect_changed")
    partition.array("kept", u8)
    partition.array("now", u8)
    partition.array("starts", i64, 2)
    partition.array("order", i64, is_read=False, is_written=True)
    block, bounds = partition.blocks()
    write = partition.write

    def collect(inner: _Writer, position: Value, free: Value) -> list[Value]:
        differs = _differs(inner, position)
        listing = _Writer(inner.fresh)
        listing.store("order", position, free)
        inner.body.append(ir.If((), differs, listing.region(), ir.Region((), ())))
        return [inner.compute("add", free, inner.cast(differs, i64))]

    write.loop(bounds, [write.load("starts", i64, write.constant(0), block)], collect)
    return partition.unit()


def _differs(write: _Writer, position: Value) -> Value:
    kept, now = write.load("kept", u8, position), write.load("now", u8, position)
    return write.compute("not_equal", kept, now)


# -- writing units ---------------------------------------------------------------------------------

Bounds = tuple[Value, Value]
"""First position and end."""


class _Writer:
    """Appends statements to a body; most methods give the value that they define."""

    def __init__(
        self, fresh: Callable[[ir.DType], Value], body: list[ir.Statement] | None = None
    ) -> None:
        self.fresh = fresh
        self.body = [] if body is None else body

    def region(self, *parameters: Value) -> ir.Region:
        return ir.Region(parameters, tuple(self.body))

    def constant(self, value: int, dtype: ir.DType = i64) -> Value:
        self.body.append(ir.Constant(result := self.fresh(dtype), value))
        return result

    def compute(self, operation: str, *operands: Value) -> Value:
        is_bool = ir.OPERATIONS[operation].result == "bool"
        result = self.fresh(ir.bool_ if is_bool else operands[-1].dtype)
        self.body.append(ir.Compute(result, operation, operands))
        return result

    def cast(self, operand: Value, dtype: ir.DType) -> Value:
        self.body.append(ir.Cast(result := self.fresh(dtype), operand))
        return result

    def load(self, array: str, dtype: ir.DType, *indices: Value) -> Value:
        self.body.append(ir.Load(result := self.fresh(dtype), array, indices))
        return result

    def store(self, array: str, value: Value, *indices: Value, combine: str | None = None) -> None:
        self.body.append(ir.Store(array, indices, value, combine))

    def loop(
        self,
        bounds: Bounds,
        initial: Sequence[Value],
        write: Callable[..., Sequence[Value]],
    ) -> tuple[Value, ...]:
        """Write a loop; `write` takes a writer, the index and the carried values."""
        step = self.constant(1)
        inner, index = _Writer(self.fresh), self.fresh(i64)
        carried = [self.fresh(value.dtype) for value in initial]
        yields = tuple(write(inner, index, *carried))
        body = replace(inner.region(index, *carried), yields=yields)
        results = tuple(self.fresh(value.dtype) for value in initial)
        self.body.append(ir.For(results, *bounds, step, tuple(initial), body))
        return results

    def class_of(self, dispatch: ir.Dispatch) -> Value:
        """Clamp the selector on the full integer."""
        selector, last = dispatch.selector, len(dispatch.arms) - 1
        if selector.dtype is u64:
            # Before the conversion, which keeps the low bits only.
            selector = self.compute("minimum", selector, self.constant(last, u64))
            return self.cast(selector, i64)
        number = selector if selector.dtype is i64 else self.cast(selector, i64)
        number = self.compute("maximum", number, self.constant(0))
        return self.compute("minimum", number, self.constant(last))

    def mixed_radix(self, digits: Sequence[Value], sizes: Sequence[Value]) -> Value:
        """Join digits to one number, the first most significant."""
        if not digits:
            return self.constant(0)
        number = digits[0]
        for digit, size in zip(digits[1:], sizes[1:], strict=True):
            number = self.compute("add", self.compute("multiply", number, size), digit)
        return number

    def at(self, linear: Value, unit: ir.Unit, body: Iterable[ir.Statement]) -> None:
        """Append statements of the body of `unit` for one linear position."""
        positions = {}
        axes = list(zip(unit.body.parameters, unit.extents, strict=True))
        for position, extent in reversed(axes[1:]):
            positions[position] = self.compute("remainder", linear, extent)
            linear = self.compute("floor_divide", linear, extent)
        for position, _ in axes[:1]:
            positions[position] = linear
        self.body += rename(body, positions)

    def total(self, extents: Sequence[Value]) -> Value:
        """Count positions; extents may be negative."""
        total = self.constant(1)
        for extent in extents:
            length = self.compute("maximum", extent, self.constant(0))
            total = self.compute("multiply", total, length)
        return total

    def blocks(self, total: Value, length: int = BLOCK) -> Value:
        """Count blocks."""
        rounded = self.compute("add", total, self.constant(length - 1))
        return self.compute("floor_divide", rounded, self.constant(length))

    def block(self, number: Value, total: Value, length: int = BLOCK) -> Bounds:
        """Give the positions of one block."""
        size = self.constant(length)
        first = self.compute("multiply", number, size)
        return first, self.compute("minimum", self.compute("add", first, size), total)

    def count(
        self,
        bounds: Bounds,
        classes: int,
        classify: Callable[[_Writer, Value], Value],
        put: Callable[[_Writer, Value, Value], None],
    ) -> None:
        """Count the classes of some positions, at most 2**32 - 1.

        `classify` gives the class of a position, `classes` where it is not to be counted; `put`
        takes a class (i64) and its count (u32).
        """
        if classes <= CARRIED_COUNTERS:
            self._count_in_values(bounds, classes, classify, put)
        else:
            self._count_in_array(bounds, classes, classify, put)

    def _count_in_values(
        self,
        bounds: Bounds,
        classes: int,
        classify: Callable[[_Writer, Value], Value],
        put: Callable[[_Writer, Value, Value], None],
    ) -> None:
        def count(inner: _Writer, position: Value, *counts: Value) -> list[Value]:
            number = classify(inner, position)
            sums = []
            for each, before in enumerate(counts):
                is_it = inner.compute("equal", number, inner.constant(each, number.dtype))
                sums.append(inner.compute("add", before, inner.cast(is_it, u32)))
            return sums

        counts = self.loop(bounds, [self.constant(0, u32)] * classes, count)
        for each, value in enumerate(counts):
            put(self, self.constant(each), value)

    def _count_in_array(
        self,
        bounds: Bounds,
        classes: int,
        classify: Callable[[_Writer, Value], Value],
        put: Callable[[_Writer, Value, Value], None],
    ) -> None:
        counts = "private_counts"
        self.body.append(ir.LocalArray(counts, u32, (classes + 1,)))

        def count(inner: _Writer, position: Value) -> list[Value]:
            number = inner.cast(classify(inner, position), i64)
            before = inner.load(counts, u32, number)
            inner.store(counts, inner.compute("add", before, inner.constant(1, u32)), number)
            return []

        def finish(inner: _Writer, number: Value) -> list[Value]:
            put(inner, number, inner.load(counts, u32, number))
            return []

        self.loop(bounds, [], count)
        self.loop((self.constant(0), self.constant(classes)), [], finish)


class _Partition:
    """A partition unit in the making."""

    def __init__(self, name: str) -> None:
        self.empty = ir.Unit(name, (), (), (), ir.Region((), ()))
        self.launch = _Writer(fresh_values(self.empty))
        self.write = _Writer(self.launch.fresh)
        self.parameters: list[ir.Parameter] = []
        self.extents: tuple[Value, ...] = ()
        self.positions: tuple[Value, ...] = ()

    def array(
        self,
        name: str,
        dtype: ir.DType,
        rank: int = 1,
        *,
        is_read: bool = True,
        is_written: bool = False,
    ) -> None:
        self.parameters.append(ir.ArrayParameter(name, dtype, rank, is_read, is_written))

    def extent(self, array: str, axis: int) -> Value:
        self.launch.body.append(ir.Extent(result := self.launch.fresh(i64), array, axis))
        return result

    def blocks(self) -> tuple[Value, Bounds]:
        """Iterate over blocks of the parameter ``samples``; give the block and its bounds."""
        samples, block, only = (self.launch.fresh(i64) for _ in range(3))
        self.parameters.append(ir.ScalarParameter("samples", samples))
        total = self.launch.total([samples])
        # The last axis has one position, so that no backend runs neighbouring blocks in the lanes
        # of a vector: the loop over a block, along memory, is what is worth vectors.
        self.extents = self.launch.blocks(total), self.launch.constant(1)
        self.positions = block, only
        return block, self.write.block(block, total)

    def unit(self) -> ir.Unit:
        unit = replace(
            self.empty,
            parameters=tuple(self.parameters),
            prologue=tuple(self.launch.body),
            extents=self.extents,
            body=self.write.region(*self.positions),
        )
        ir.verify(unit)
        return unit


def counted(
    plan: ir.Plan, counters: Mapping[str, str], *, has_private_counters: bool = False
) -> ir.Plan:
    """Count the classes of dispatches of a plan.

    Parameters
    ----------
    plan : Plan
        As it is before dispatches are lowered.
    counters : mapping of str to str
        As of `with_counters`; each dispatch may be in one unit of the plan.
    has_private_counters : bool
        Whether code counts few classes where they are evaluated for next to nothing.

    Returns
    -------
    Plan
        With units that count before those of the dispatches, where their classes are known then and
        counting on the way would cost more.
    """
    if not counters:
        return plan
    steps: list[ir.Step] = []
    for step in plan.steps:
        if isinstance(step, ir.Run):
            unit = step.unit
            own = {d.name: d for d in dispatch_groups(unit) if d.name in counters}
            apart = [
                name
                for name, dispatch in own.items()
                if not (has_private_counters and is_cheap_on_the_way(dispatch))
                and not classification_problem(unit, name)
            ]
            inline = {name: counters[name] for name in own if name not in apart}
            before = counting_units(unit, {name: counters[name] for name in apart})
            steps += [ir.Run(each) for each in before]
            step = replace(step, unit=with_counters(unit, inline) if inline else unit)
        steps.append(step)
    return ir.Plan(tuple(steps))


def is_cheap_on_the_way(dispatch: ir.Dispatch) -> bool:
    """Whether counting a dispatch where it is evaluated costs little, with private counters."""
    return dispatch.policy != "segmented" and len(dispatch.arms) <= CARRIED_COUNTERS
