"""Several steps of a per-sample kernel in one launch: the loop over the steps inside of the unit.

A step of such a kernel reads and writes the elements of its own sample, and reads tables that
nobody writes. So it is the same whether all samples take a step before any takes the next one, or
each sample takes all of its steps at once. The second needs one launch, and the elements of a
sample stay where they are near. They are read and written in each step, as by launches of their
own; so arrays may be the same memory as others, and every result has the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from . import ir
from .ir.transform import fresh_values
from .lower import segmented_groups


def stepped(plan: ir.Plan, steps: str) -> ir.Plan | None:
    """Give a plan that takes any number of steps, where that is the same as so many runs.

    Parameters
    ----------
    plan : Plan
        The plan of one step, before dispatches are lowered.
    steps : str
        Name for the new parameter of its unit, an i64: the number of steps.

    Returns
    -------
    Plan or None
        None where steps of several samples may meet (in scratch memory, in elements that are not a
        sample's own, between units), for relaxed arithmetic, which may be relaxed in another way in
        a loop, and for segmented dispatches, whose classes may change from one step to the next.
    """
    match plan.steps:
        case (ir.Run() as run,) if _steps_are_private(run) and not segmented_groups(run.unit):
            return ir.Plan((replace(run, unit=_repeated(run.unit, steps)),))
    return None


def _repeated(unit: ir.Unit, steps: str) -> ir.Unit:
    fresh = fresh_values(unit)
    count, zero, one, step = (fresh(ir.i64) for _ in range(4))
    loop = ir.For((), zero, count, one, (), ir.Region((step,), unit.body.body))
    repeated = replace(
        unit,
        name=f"{unit.name}__steps",
        parameters=(*unit.parameters, ir.ScalarParameter(steps, count)),
        prologue=(*unit.prologue, ir.Constant(zero, 0), ir.Constant(one, 1)),
        body=replace(unit.body, body=(loop,)),
    )
    ir.verify(repeated)
    return repeated


def _steps_are_private(run: ir.Run) -> bool:
    """Whether a position uses no element that another one writes."""
    unit = run.unit
    if len(unit.extents) != 1 or unit.fast_math:
        return False
    apart = {frozenset(pair) for pair in run.exclusive}
    (position,) = unit.body.parameters
    elsewhere = _accessed_elsewhere(unit.body.body, position)
    elsewhere |= _accessed_elsewhere(unit.prologue, None)
    written = {array.name for array in unit.arrays.values() if array.is_written}
    return elsewhere.isdisjoint(written) and all(
        frozenset((array, output)) in apart for array in elsewhere for output in written
    )


def _accessed_elsewhere(body: Iterable[ir.Statement], position: ir.Value | None) -> set[str]:
    """The arrays of which elements are accessed that are not those of a position."""
    every = list(ir.statements(body))
    local = {each.array for each in every if isinstance(each, ir.LocalArray)}
    return {
        each.array
        for each in every
        if isinstance(each, ir.Load | ir.Store)
        and each.array not in local
        and (each.indices[-1:] != (position,) or getattr(each, "combine", None))
    }
