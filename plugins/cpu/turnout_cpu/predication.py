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
    fresh, selector = ir.fresh_values(unit), site.selector
    last = len(arms) - 1
    conditions, values = [], []
    for number, arm in enumerate(arms):
        relation = {0: "less_equal", last: "greater_equal"}.get(number, "equal")
        limit, condition = fresh(selector.dtype), fresh(ir.bool_)
        yield ir.Constant(limit, number)
        yield ir.Compute(condition, relation, (selector, limit))
        conditions.append(condition)
        if not _is_costly(arm) and _is_harmless(arm):
            yield from arm.body
            values.append(arm.yields)
            continue
        guarded = tuple(fresh(value.dtype) for value in arm.yields)
        zeros = tuple(ir.Constant(fresh(v.dtype), _zero(v.dtype)) for v in arm.yields)
        otherwise = ir.Region((), zeros, tuple(zero.result for zero in zeros))
        yield ir.If(guarded, condition, arm, otherwise)
        values.append(guarded)

    chosen = values[last]
    for number in reversed(range(last)):
        results = site.results if number == 0 else tuple(fresh(v.dtype) for v in chosen)
        for result, taken, otherwise_value in zip(results, values[number], chosen, strict=True):
            yield ir.Compute(result, "select", (conditions[number], taken, otherwise_value))
        chosen = results


def _is_costly(arm: ir.Region) -> bool:
    """Whether skipping an arm may pay for the jump around it."""
    return any(isinstance(s, ir.For | ir.While) for s in statements(arm.body)) or (
        sum(cost_of_operation(getattr(s, "operation", "")) for s in statements(arm.body))
        >= GUARD_COST
    )


def _is_harmless(arm: ir.Region) -> bool:
    """Whether an arm may run for other classes: an index may be in range for its own one only."""
    return not any(isinstance(s, ir.Load | ir.Store | ir.LocalArray) for s in statements(arm.body))


def _zero(dtype: ir.DType) -> int | float | bool:
    return False if dtype.is_bool else 0.0 if dtype.is_float else 0
