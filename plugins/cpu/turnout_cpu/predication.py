"""The lowering of predicated dispatches for vectors: costly formulas run only where one is wanted.

The core's lowering evaluates every arm for every sample. Here an arm that costs more than a jump
stands under its own condition, so that `turnout_cpu.vector_body` skips it for vectors in which no
lane takes it, and lets the lanes of rare and very costly ones wait until they fill a vector. What
remains is the same: cheap arms are evaluated for all, and selects choose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import chain, count

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
    return replace(unit, body=_replaced(unit.body, site, list(_selection(unit, site, arms))))


def _selection(
    unit: ir.Unit, site: ir.Dispatch, arms: Sequence[ir.Region]
) -> Iterator[ir.Statement]:
    """The arms one after the other, then a chain of selects."""
    fresh, selector = _fresh_values(unit), site.selector
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


def _replaced(region: ir.Region, site: ir.Dispatch, instead: Sequence[ir.Statement]) -> ir.Region:
    def body() -> Iterator[ir.Statement]:
        for statement in region.body:
            if statement is site:
                yield from instead
            else:
                yield _with_regions(statement, lambda inner: _replaced(inner, site, instead))

    return replace(region, body=tuple(body()))


def _with_regions(
    statement: ir.Statement, change: Callable[[ir.Region], ir.Region]
) -> ir.Statement:
    """The statement with each of its regions changed."""
    changed: dict[str, object] = {}
    for field in fields(statement):
        value = getattr(statement, field.name)
        if isinstance(value, ir.Region):
            changed[field.name] = change(value)
        elif field.name == "arms":
            changed[field.name] = tuple(map(change, value))
    return replace(statement, **changed) if changed else statement


def _fresh_values(unit: ir.Unit) -> Callable[[ir.DType], ir.Value]:
    numbers = count(1 + max((value.number for value in _definitions(unit)), default=-1))
    return lambda dtype: ir.Value(next(numbers), dtype)


def _definitions(unit: ir.Unit) -> Iterable[ir.Value]:
    for parameter in unit.parameters:
        if isinstance(parameter, ir.ScalarParameter):
            yield parameter.value
    yield from unit.body.parameters
    for statement in statements(chain(unit.prologue, unit.body.body)):
        yield from statement.results
        for region in statement.regions:
            yield from region.parameters


def _zero(dtype: ir.DType) -> int | float | bool:
    return False if dtype.is_bool else 0.0 if dtype.is_float else 0
