"""The micro-kernel: a block of the product that stays in registers while it runs along k.

For each k a row of B is loaded, in vectors, and each of the block's elements of A is multiplied
with all of it. Each element of the block is one chain of multiply-adds in the order of k, whatever
the block's size, so the same element has the same bits in every block that it may be part of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .machine import Machine
from .writer import Lanes, Writer

DEPTH = 256
"""Steps along k that one chain takes. Longer sums are sums of such chains, in order.

A block's share of B then fits the first level cache with any registers (32 KiB for vectors of 64
bytes). It is the same for every machine, because the bits of results depend on it.
"""

CHAINS = 8
"""Independent sums that keep the multipliers busy: two of them, with a latency of four cycles."""

GROUP = 4
"""Steps along k in one round of the loop."""


@dataclass(frozen=True)
class Shape:
    """The largest block of a machine, in rows and vectors."""

    rows: int
    vectors: int


def largest_block(machine: Machine) -> Shape:
    """The block that loads least per multiplication and leaves registers for the operands."""
    if machine.registers >= 32:
        # One vector of 64 bytes holds many columns already: few vectors waste few at the edge.
        return Shape(14, 2) if machine.vector_bytes >= 64 else Shape(6, 4)
    return Shape(6, 2) if machine.is_fused else Shape(5, 2)


@dataclass(frozen=True)
class Operands:
    """Where a block finds its elements, in bytes from the pointers of a group of steps.

    Attributes
    ----------
    a_row, a_step, a_group : int
        From row to row, from step to step, from group to group of A.
    b_step : int
        From step to step of B.
    """

    a_row: int
    a_step: int
    a_group: int
    b_step: int


def product(
    code: Writer,
    a: str,
    b: str,
    depth: int | str,
    rows: int,
    columns: Sequence[Lanes],
    operands: Operands,
) -> list[list[str]]:
    """Write the product of `rows` rows of A and the vectors `columns` of B.

    Parameters
    ----------
    code : Writer
        Where it is written.
    a, b : str
        Pointers to the first elements.
    depth : int or str
        Number of steps along k, known now or when it runs.
    rows : int
        Rows of the block.
    columns : sequence of Lanes
        Its vectors, side by side.
    operands : Operands
        Where the elements are.

    Returns
    -------
    list of list of str
        A vector for each row and each of `columns`.
    """
    sums = [code.start_vector(lanes.count) for _ in range(rows) for lanes in columns]
    if isinstance(depth, int) and depth <= 2 * GROUP:
        for step in range(depth):
            sums = _step(code, a, b, step, sums, rows, columns, operands)
        return _in_rows(sums, rows)

    kinds = [str(code.vector(lanes.count)) for _ in range(rows) for lanes in columns]
    whole: int | str
    if isinstance(depth, int):
        whole = depth - depth % GROUP
    else:
        whole = code.value(f"and i64 {depth}, {-GROUP}")
    carried = [("ptr", a), ("ptr", b), *zip(kinds, sums, strict=True)]
    with code.loop(0, whole, GROUP, *carried) as loop:
        a_here, b_here, *sums = loop.values
        for step in range(GROUP):
            sums = _step(code, a_here, b_here, step, sums, rows, columns, operands)
        a_next = code.at(a_here, operands.a_group)
        loop.following = [a_next, code.at(b_here, GROUP * operands.b_step), *sums]
    a, b, *sums = loop.values
    if isinstance(depth, int):
        for step in range(depth % GROUP):
            sums = _step(code, a, b, step, sums, rows, columns, operands)
        return _in_rows(sums, rows)

    carried = [("ptr", a), ("ptr", b), *zip(kinds, sums, strict=True)]
    with code.loop(whole, depth, 1, *carried) as loop:
        a_here, b_here, *sums = loop.values
        sums = _step(code, a_here, b_here, 0, sums, rows, columns, operands)
        b_next = code.at(b_here, operands.b_step)
        loop.following = [code.at(a_here, operands.a_step), b_next, *sums]
    return _in_rows(loop.values[2:], rows)


def _step(
    code: Writer,
    a: str,
    b: str,
    step: int,
    sums: Sequence[str],
    rows: int,
    columns: Sequence[Lanes],
    operands: Operands,
) -> list[str]:
    """One step along k."""
    loaded = []
    offset = step * operands.b_step
    for lanes in columns:
        loaded.append(code.load(code.at(b, offset), lanes))
        offset += lanes.count * code.item_bytes
    result = []
    for row in range(rows):
        place = code.at(a, row * operands.a_row + step * operands.a_step)
        element = code.load_element(place)
        for number, lanes in enumerate(columns):
            factor = code.splat(element, lanes.count)
            before = sums[row * len(columns) + number]
            result.append(code.multiply_add(factor, loaded[number], before, lanes.count))
    return result


def _in_rows(sums: Sequence[str], rows: int) -> list[list[str]]:
    width = len(sums) // rows
    return [list(sums[row * width : (row + 1) * width]) for row in range(rows)]


def balanced(total: int, most: int) -> list[tuple[int, int]]:
    """Parts of at most `most` that differ by one at most: how many there are, and their size."""
    parts = -(-total // most)
    size, larger = divmod(total, parts)
    return [(count, each) for count, each in ((larger, size + 1), (parts - larger, size)) if count]
