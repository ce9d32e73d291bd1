"""Units and plans for known sizes: lengths, scalars and the number of samples as literals.

`specialised_plan` puts them into each unit of a plan and lets `turnout.folding` do the rest. Units
keep their parameters, so that they are launched as before; what they compute no longer depends on
those that are known, and array parameters say their shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from . import ir
from .folding import Element, Folder, Literal, element_of
from .ir.transform import with_regions
from .lang.cleanup import without_dead_code

Shapes = Mapping[str, tuple[int | None, ...]]
"""Shapes of arrays by name; None is a length that stays open."""


def specialised_plan(plan: ir.Plan, shapes: Shapes, scalars: Mapping[str, Literal]) -> ir.Plan:
    """Give a plan for known lengths of arrays and known scalars.

    Parameters
    ----------
    plan : Plan
        With dispatches that are not lowered yet, and no `Split`.
    shapes : mapping of str to tuple of int or None
    scalars : mapping of str to literal
        By the names of scalar parameters, ``samples`` for the number of samples of per-sample
        units; each in the range of the type that the units have for it.

    Returns
    -------
    Plan
        The same steps. Called with these sizes it gives the same bits; with others it is wrong.
    """
    shapes = dict(shapes)
    shapes |= {step.name: step.shape for step in plan.steps if isinstance(step, ir.Scratch)}

    def changed(step: ir.Step) -> ir.Step:
        if not isinstance(step, ir.Run):
            return step
        unit = specialised_unit(step.unit, shapes, scalars, step.exclusive, step.elementwise)
        quantities = _quantities(shapes, scalars)
        reaches = (reach for reach in step.reaches if not _always_holds(reach, quantities))
        return replace(step, unit=unit, reaches=tuple(reaches))

    return ir.Plan(tuple(map(changed, plan.steps)))


def specialised_unit(
    unit: ir.Unit,
    shapes: Shapes,
    scalars: Mapping[str, Literal],
    exclusive: Iterable[tuple[str, str]] = (),
    elementwise: Iterable[tuple[str, str]] = (),
) -> ir.Unit:
    """Give a unit for known lengths of arrays and known scalars; see `specialised_plan`."""
    folder = Folder(unit, shapes, scalars, exclusive, elementwise)
    prologue = folder.block(unit.prologue)
    extents = folder.values(unit.extents)
    prologue = [*folder.constants, *prologue]
    folder.constants.clear()
    body = _without_overwritten_stores(folder.block(unit.body.body), folder)
    body = _without_unread_arrays([*folder.constants, *body])
    needed = without_dead_code(body)
    used = _used(needed)
    new = replace(
        unit,
        parameters=tuple(_with_shape(parameter, shapes) for parameter in unit.parameters),
        prologue=without_dead_code(prologue, (*extents, *used)),
        extents=extents,
        body=replace(unit.body, body=needed),
        apart=tuple(exclusive),
    )
    ir.verify(new)
    return new


def _with_shape(parameter: ir.Parameter, shapes: Shapes) -> ir.Parameter:
    if isinstance(parameter, ir.ScalarParameter) or parameter.name not in shapes:
        return parameter
    return replace(parameter, shape=shapes[parameter.name])


def _used(body: Iterable[ir.Statement]) -> Iterator[ir.Value]:
    for statement in ir.statements(body):
        yield from statement.operands
        for region in statement.regions:
            yield from region.yields


def _quantities(shapes: Shapes, scalars: Mapping[str, Literal]) -> dict[ir.Quantity, int]:
    known: dict[ir.Quantity, int] = {
        (name, None): value for name, value in scalars.items() if type(value) is int
    }
    for name, shape in shapes.items():
        known |= {(name, axis): n for axis, n in enumerate(shape) if n is not None}
    return known


def _always_holds(reach: ir.Reach, known: Mapping[ir.Quantity, int]) -> bool:
    """Whether arrays of these lengths are long enough, so that calls need not see to it."""
    length = known.get((reach.array, reach.axis))
    for total, least, end in ((reach.least, 0, None), (reach.greatest, None, length)):
        if total is None:
            continue
        if any(quantity not in known for quantity, _ in total.terms):
            return False
        index = sum(factor * known[quantity] for quantity, factor in total.terms) + total.constant
        if least is not None and index < least:
            return False
        if least is None and (end is None or index >= end):
            return False
    return True


# -- arrays that need not be written ---------------------------------------------------------------


def _without_unread_arrays(body: Iterable[ir.Statement]) -> tuple[ir.Statement, ...]:
    """The statements without private arrays that nothing loads from."""
    body = tuple(body)
    every = list(ir.statements(body))
    declared = {s.array for s in every if isinstance(s, ir.LocalArray)}
    read = {s.array for s in every if isinstance(s, ir.Load | ir.Extent)}
    unread = declared - read

    def kept(statements: Iterable[ir.Statement]) -> Iterator[ir.Statement]:
        for statement in statements:
            if not (isinstance(statement, ir.LocalArray | ir.Store) and statement.array in unread):
                regions = [replace(r, body=tuple(kept(r.body))) for r in statement.regions]
                yield with_regions(statement, regions)

    return tuple(kept(body)) if unread else body


def _without_overwritten_stores(
    body: Iterable[ir.Statement], folder: Folder
) -> tuple[ir.Statement, ...]:
    """The statements without stores to elements that are stored to again before any load of them.

    Statements with regions end what is known, and inside of them nothing is changed.
    """
    overwritten: set[Element] = set()
    kept: list[ir.Statement] = []
    for statement in reversed(list(body)):
        if statement.regions:
            overwritten.clear()
        elif isinstance(statement, ir.Load):
            loaded = element_of(statement.array, statement.indices)
            overwritten = {each for each in overwritten if not folder.may_meet(loaded, each)}
        elif isinstance(statement, ir.Store):
            element = element_of(statement.array, statement.indices)
            if element in overwritten and statement.combine is None:
                continue
            if statement.combine is not None:
                overwritten = {each for each in overwritten if not folder.may_meet(element, each)}
            else:
                overwritten.add(element)
        kept.append(statement)
    return tuple(reversed(kept))
