"""The iteration space of a unit as ranges of positions count it.

Positions are counted in the order of nested loops. The axes at the end whose extents are constants
are run whole and count as one position, because LLVM unrolls such loops.
"""

from __future__ import annotations

import math

from turnout.plugin import ir, statements

MOST_STATEMENTS = 4096
"""Statements of a unit, once trailing axes are written out."""


def split_axes(unit: ir.Unit) -> int:
    """Number of leading axes over which ranges count; at least 1 where there is an axis."""
    constants = _constants(unit)
    count = len(unit.extents)
    while count > 1 and unit.extents[count - 1].number in constants:
        count -= 1
    return count


def elements_per_position(unit: ir.Unit) -> int:
    """How many points of the iteration space count as one position."""
    constants = _constants(unit)
    product = 1
    for extent in unit.extents[split_axes(unit) :]:
        product *= max(0, int(constants[extent.number]))
    return product


def written_axes(unit: ir.Unit) -> tuple[int, ...]:
    """The lengths of the axes at the end that are written out, in units for known shapes.

    Then what one position loads serves its neighbours, and LLVM makes vectors of what they compute.
    """
    if not any(array.shape for array in unit.arrays.values()):
        return ()
    constants = _constants(unit)
    lengths: tuple[int, ...] = ()
    size = sum(1 for _ in statements(unit.body.body))
    for extent in reversed(unit.extents[split_axes(unit) :]):
        length = max(0, int(constants[extent.number]))
        size *= length
        if size > MOST_STATEMENTS:
            break
        lengths = (length, *lengths)
    return lengths


def constant_size(unit: ir.Unit) -> int | None:
    """How many points the iteration space has, where each extent is a constant."""
    constants = _constants(unit)
    if any(extent.number not in constants for extent in unit.extents):
        return None
    return math.prod(max(0, int(constants[extent.number])) for extent in unit.extents)


def constant_length(unit: ir.Unit) -> int | None:
    """The length of the innermost axis, where there is one and it is a constant."""
    length = _constants(unit).get(unit.extents[-1].number) if unit.extents else None
    return None if length is None else int(length)


def _constants(unit: ir.Unit) -> dict[int, int | float | bool]:
    constants = (each for each in unit.prologue if isinstance(each, ir.Constant))
    return {each.result.number: each.value for each in constants}
