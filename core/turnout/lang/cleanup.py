"""Removal of statements and carried values that nothing uses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .. import ir
from ..ir import Region, Value


def without_dead_code(
    body: Iterable[ir.Statement], used: Iterable[Value] = ()
) -> tuple[ir.Statement, ...]:
    """`body` without what contributes neither to a store nor to the values in `used`."""
    live = {value.number for value in used}
    return _block(tuple(body), live)


def _block(body: tuple[ir.Statement, ...], live: set[int]) -> tuple[ir.Statement, ...]:
    """The statements of a block that are needed, given what is live after it; extends `live`."""
    kept = []
    for statement in reversed(body):
        needed = _statement(statement, live)
        if needed is not None:
            kept.append(needed)
            live.update(value.number for value in needed.operands)
    return tuple(reversed(kept))


def _statement(statement: ir.Statement, live: set[int]) -> ir.Statement | None:
    match statement:
        case ir.Store() | ir.LocalArray():
            return statement
        case ir.For():
            return _for(statement, live)
        case ir.While():
            # A while loop may be endless for a reason only its author knows: never removed.
            live.update(value.number for value in statement.condition.yields)
            body = _region(statement.body, live)
            return replace(statement, body=body, condition=_region(statement.condition, live))
        case ir.If(results, _, then, otherwise):
            arms = _arms(results, (then, otherwise), live)
            if arms is None:
                return None
            return replace(statement, results=arms[0], then=arms[1][0], otherwise=arms[1][1])
        case ir.Switch(results, _, regions) | ir.Dispatch(results, _, regions):
            arms = _arms(results, regions, live)
            return arms and replace(statement, results=arms[0], arms=arms[1])
    return statement if any(value.number in live for value in statement.results) else None


def _region(region: Region, live: set[int]) -> Region:
    live.update(value.number for value in region.yields)
    return replace(region, body=_block(region.body, live))


def _arms(
    results: tuple[Value, ...], arms: tuple[Region, ...], live: set[int]
) -> tuple[tuple[Value, ...], tuple[Region, ...]] | None:
    kept = [number for number, value in enumerate(results) if value.number in live]
    regions = []
    for arm in arms:
        yields = tuple(arm.yields[number] for number in kept)
        regions.append(_region(replace(arm, yields=yields), live))
    if not kept and not any(region.body for region in regions):
        return None
    return tuple(results[number] for number in kept), tuple(regions)


def _for(loop: ir.For, live: set[int]) -> ir.For | None:
    """A loop without the carried values that neither its body nor anything after it reads."""
    index, *carried = loop.body.parameters
    kept = [n for n, value in enumerate(loop.results) if value.number in live]
    while True:
        inner = set(live)
        inner.update(loop.body.yields[n].number for n in kept)
        body = _block(loop.body.body, inner)
        read = [n for n in range(len(carried)) if n not in kept and carried[n].number in inner]
        if not read:
            break
        kept = sorted([*kept, *read])
    live.update(inner)
    if not kept and not body:
        return None
    return replace(
        loop,
        results=tuple(loop.results[n] for n in kept),
        initial=tuple(loop.initial[n] for n in kept),
        body=Region(
            (index, *(carried[n] for n in kept)),
            body,
            tuple(loop.body.yields[n] for n in kept),
        ),
    )
