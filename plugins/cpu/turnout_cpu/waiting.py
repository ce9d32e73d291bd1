"""Branches whose lanes wait until they fill a vector.

A branch that few lanes take costs a whole vector each time. In code in explicit vectors, positions
that are about to take such a branch may wait instead: they are written into a queue, one for each
branch, and left out of what follows. As soon as a queue holds a vector of them, their whole body
runs, from its beginning; what is left in the queues runs at the end. Positions are independent of
each other, so the order in which they run is no matter, and until a position waits it must not have
written anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from turnout.plugin import ir, statements

from .lanes import Forms, cost_of_operation

COST_OF_WAITING = 12
"""About how many additions of vectors take the time that one position loses by waiting: it is
written down, its inputs are gathered, its outputs scattered."""

MINIMUM_LANES = 2
"""Branches for which not even so many lanes may wait are not worth it (benchmarks/NOTES.md)."""

COST_OF_LOOP = 100
"""About how many additions of vectors take the time of a loop with some rounds."""

MAXIMUM_QUEUES = 64
"""Each takes the memory of two vectors of positions on the stack."""


def waiting_branches(
    unit: ir.Unit, forms: Forms, lanes: int, counters: Collection[str] = ()
) -> list[tuple[ir.If, int]]:
    """The branches whose lanes may wait, in the order of the text, and how many of the lanes.

    They are the costly ones with next to nothing to do where the condition does not hold, in a body
    with one axis that has not stored anything yet; what it has counted before the first of them in
    `counters` stays counted.
    """
    if len(unit.extents) != 1:
        return []
    return list(_waiting_branches(unit, forms, lanes, counters))[:MAXIMUM_QUEUES]


def _waiting_branches(
    unit: ir.Unit, forms: Forms, lanes: int, counters: Collection[str] = ()
) -> Iterator[tuple[ir.If, int]]:
    has_found = False
    for statement in unit.body.body:
        if isinstance(statement, ir.Store) and statement.array in counters and not has_found:
            continue
        if isinstance(statement, ir.If) and forms.is_varying(statement.condition):
            most = min(_work(statement.then) // COST_OF_WAITING, lanes // 2)
            is_one_sided = all(isinstance(each, ir.Constant) for each in statement.otherwise.body)
            if is_one_sided and most >= MINIMUM_LANES:
                yield statement, most
                has_found = True
        inside = statements([statement])
        if any(isinstance(each, ir.Store) and each.array in unit.arrays for each in inside):
            return


def _work(region: ir.Region) -> int:
    """About how many additions of vectors a region takes; a loop runs some rounds."""
    return sum(
        COST_OF_LOOP
        if isinstance(statement, ir.For | ir.While)
        else cost_of_operation(getattr(statement, "operation", ""))
        for statement in statements(region.body)
    )
