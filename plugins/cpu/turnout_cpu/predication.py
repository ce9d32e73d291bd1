"""The lowering of predicated dispatches for vectors: costly formulas run only where one is wanted.

The core's lowering evaluates every arm for every sample. Here an arm that costs more than a jump
stands under its own condition, so that `turnout_cpu.vector_body` skips it for vectors in which no
lane takes it, and lets the lanes of rare and very costly ones wait until they fill a vector. What
remains is the same: cheap arms are evaluated for all, and selects choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from turnout.plugin import ir, statements

from .lanes import COSTLY, cost_of_operation

GUARD_COST = COSTLY
"""From which cost on an arm gets a condition of its own."""


def lowered(unit: ir.Unit, site: ir.Dispatch) -> ir.Unit | None:
    """Give the unit with one predicated dispatch lowered, None where no arm is worth a condition.

    Parameters
    ----------
    unit : ir.Unit
        The unit, which may hold other dispatches.
    site : ir.Dispatch
        The dispatch in it.
    """
    # A narrow selector cannot reach the arms beyond its largest value.
    arms = site.arms[: site.selector.dtype.maximum + 1]
    if len(arms) == 1 or not any(_is_costly(arm) for arm in arms):
        return None
    instead = list(_selection(unit, site, arms))

    def change(statement: ir.Statement, rebuilt: ir.Statement) -> list[ir.Statement]:
        return instead if statement is site else [rebuilt]

    return replace(unit, body=ir.rewritten(unit.body, change))


def _selection(
    unit: ir.Unit, site: ir.Dispatch, arms: Sequence[ir.Region]
) -> Iterator[ir.Statement]:
    """The arms one after the other, then a chain of selects."""
    fresh = ir.fresh_values(unit)
    comparisons, conditions = ir.class_conditions(site.selector, len(arms), fresh)
    yield from comparisons
    values = []
    for condition, arm in zip(conditions, arms, strict=True):
        if not _is_costly(arm) and _is_harmless(arm):
            yield from arm.body
            values.append(arm.yields)
            continue
        guarded = tuple(fresh(value.dtype) for value in arm.yields)
        yield ir.If(guarded, condition, arm, ir.zeros(arm.yields, fresh))
        values.append(guarded)
    yield from ir.selects(site.results, conditions, values, fresh)


def _is_costly(arm: ir.Region) -> bool:
    """Whether skipping an arm may pay for the jump around it."""
    return any(isinstance(s, ir.For | ir.While) for s in statements(arm.body)) or (
        sum(cost_of_operation(getattr(s, "operation", "")) for s in statements(arm.body))
        >= GUARD_COST
    )


def _is_harmless(arm: ir.Region) -> bool:
    """Whether an arm may run for other classes: an index may be in range for its own one only."""
    return not any(isinstance(s, ir.Load | ir.Store | ir.LocalArray) for s in statements(arm.body))
