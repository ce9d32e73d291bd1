"""Sums of products of neighbouring elements: ``dot``, and ``gemv`` in both orders of a matrix.

A dot product has as many partial sums as `PARTIAL_BYTES` hold: term number ``i`` goes to partial
sum ``i % partials``, in order, and the partial sums are added in halves: the one at ``i + partials
/ 2`` to the one at ``i``, and so on. That order is the same for every machine. An element of the
product of a matrix in C's order and a vector is such a dot product; of a matrix in Fortran's order
it is one chain in the order of the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

from turnout.plugin import ir

from .machine import Machine
from .writer import Lanes, Writer

DOT, ROWS, COLUMNS = "dot", "gemv_rows", "gemv_columns"
PARTIAL_BYTES = 256
"""Four vectors of 64 bytes, or eight of 32: as many as hide the latency of one operation."""

LARGEST_UNROLLED = 4
"""Rounds over all partial sums that are written one after the other."""

_COLUMNS_AT_ONCE = 8
_LINE_BYTES = 64
_AHEAD_BYTES = 4096
"""One page, which is where the prefetching of processors ends."""


class Slot(IntEnum):
    """The words of the argument of `ROWS` and `COLUMNS`; strides are in bytes."""

    A = 0
    A_ROW = 1
    A_COLUMN = 2
    X = 3
    OUT = 4
    M = 5
    N = 6


def partials(dtype: ir.DType) -> int:
    """How many partial sums there are."""
    return PARTIAL_BYTES // dtype.itemsize


def dot_text(n: int | None, dtype: ir.DType, machine: Machine, *, prefetches: bool = False) -> str:
    """A function ``element dot(a, b, n)``; `n` is a constant of at least 1, or None.

    It asks for memory ahead of time if it `prefetches`, which pays for what is in no cache.
    """
    code = Writer(dtype, machine)
    length = "%n" if n is None else n
    (total,) = _dots(code, ["%a"], "%b", length, prefetches=prefetches)
    code.write(f"ret {code.element} {total}")
    return code.function(f"define {code.element} @{DOT}(ptr %a, ptr %b, i64 %n) nounwind")


def rows_text(n: int | None, dtype: ir.DType, machine: Machine) -> str:
    """``i64 gemv_rows(slots, first, last)``: rows of a matrix whose rows are dense.

    Their length is a constant of at least 1, or None.
    """
    code = Writer(dtype, machine)
    a, x, out, rows = (_slot(code, each) for each in (Slot.A, Slot.X, Slot.OUT, Slot.M))
    columns = _slot(code, Slot.N) if n is None else n
    row_bytes = _slot(code, Slot.A_ROW)
    end = code.smaller("%last", rows)
    at_once = _rows_at_once(machine)
    whole = code.subtract(end, code.value(f"urem i64 {code.subtract(end, '%first')}, {at_once}"))
    for first, last, count in (("%first", whole, at_once), (whole, end, 1)):
        with code.loop(first, last, count) as loop:
            start = code.at(a, code.multiply(loop.index, row_bytes))
            starts = [start]
            for _ in range(count - 1):
                starts.append(code.at(starts[-1], row_bytes))
            target = code.at(out, code.multiply(loop.index, code.item_bytes))
            for number, total in enumerate(_dots(code, starts, x, columns)):
                code.store_element(total, code.at(target, number * code.item_bytes))
        if at_once == 1:
            break
    code.write("ret i64 0")
    return code.function(f"define i64 @{ROWS}(ptr %slots, i64 %first, i64 %last) nounwind")


def _rows_at_once(machine: Machine) -> int:
    """Rows that share what is loaded of the vector, where there are registers for their sums."""
    vectors = PARTIAL_BYTES // machine.vector_bytes
    return max(1, (machine.registers - vectors) // vectors - 2)


def _dots(
    code: Writer, rows: Sequence[str], x: str, length: int | str, *, prefetches: bool = False
) -> list[str]:
    """The dot products of one vector with each of several rows."""
    if isinstance(length, int) and length <= LARGEST_UNROLLED * partials(code.dtype):
        return _dots_in_line(code, rows, x, length)
    return _dots_in_loop(code, rows, x, length, prefetches)


def _dots_in_line(code: Writer, rows: Sequence[str], x: str, length: int) -> list[str]:
    count, vectors = code.lanes, PARTIAL_BYTES // code.machine.vector_bytes
    start = code.start_vector(count)
    sums = [[start] * vectors for _ in rows]
    for first in range(0, length, count):
        # Lanes beyond the end add -0.0, which changes nothing.
        lanes = Lanes(count, min(count, length - first))
        place, offset = first // count % vectors, first * code.item_bytes
        shared = code.load(code.at(x, offset), lanes)
        for row, own in zip(rows, sums, strict=True):
            factor = code.load(code.at(row, offset), lanes, start)
            own[place] = code.multiply_add(factor, shared, own[place], count)
    return [_folded(code, own) for own in sums]


def _dots_in_loop(
    code: Writer, rows: Sequence[str], x: str, length: int | str, prefetches: bool
) -> list[str]:
    count, vector_bytes = code.lanes, code.machine.vector_bytes
    vectors, step = PARTIAL_BYTES // vector_bytes, partials(code.dtype)
    start, full, kind = code.start_vector(count), Lanes(count, count), str(code.vector(count))
    sums = [[start] * vectors for _ in rows]
    whole = code.value(f"and i64 {length}, {-step}")
    carried = [("ptr", x), *(("ptr", row) for row in rows)]
    carried += [(kind, each) for own in sums for each in own]
    with code.loop(0, whole, step, *carried) as loop:
        x_here, rows_here, sums = _unpacked(loop.values, len(rows), vectors)
        if prefetches:
            for pointer in (x_here, *rows_here):
                for offset in range(0, PARTIAL_BYTES, _LINE_BYTES):
                    code.prefetch(code.at(pointer, _AHEAD_BYTES + offset))
        for number in range(vectors):
            offset = number * vector_bytes
            shared = code.load(code.at(x_here, offset), full)
            for row, own in zip(rows_here, sums, strict=True):
                factor = code.load(code.at(row, offset), full)
                own[number] = code.multiply_add(factor, shared, own[number], count)
        pointers = [code.at(each, PARTIAL_BYTES) for each in (x_here, *rows_here)]
        loop.following = [*pointers, *(each for own in sums for each in own)]
    x, rows, sums = _unpacked(loop.values, len(rows), vectors)

    # What is left; lanes beyond the end add -0.0.
    rest = code.subtract(length, whole)
    before = [each for own in sums for each in own]
    look, some, done = code.new_labels("look", "some", "done")
    code.jump(look)
    code.start(look)
    code.branch(code.is_equal(rest, 0), done, some)
    code.start(some)
    sums = [list(own) for own in sums]
    for number in range(vectors):
        offset = number * vector_bytes
        mask = code.mask_of_first(code.subtract(rest, number * count), count)
        shared = code.load_where(code.at(x, offset), count, mask)
        for row, own in zip(rows, sums, strict=True):
            factor = code.load_where(code.at(row, offset), count, mask, start)
            own[number] = code.multiply_add(factor, shared, own[number], count)
    after, last_block = [each for own in sums for each in own], code.block
    code.jump(done)
    code.start(done)
    joined = [
        code.value(f"phi {kind} [ {old}, %{look} ], [ {new}, %{last_block} ]")
        for old, new in zip(before, after, strict=True)
    ]
    return [_folded(code, joined[n * vectors : (n + 1) * vectors]) for n in range(len(rows))]


def _unpacked(
    values: Sequence[str], rows: int, vectors: int
) -> tuple[str, list[str], list[list[str]]]:
    sums = values[1 + rows :]
    own = [list(sums[n * vectors : (n + 1) * vectors]) for n in range(rows)]
    return values[0], list(values[1 : 1 + rows]), own


def _folded(code: Writer, sums: Sequence[str]) -> str:
    """The sum of all partial sums, in halves; those that nothing was added to are left out."""
    count = code.lanes
    start, vectors = code.start_vector(count), list(sums)
    while len(vectors) > 1:
        half = len(vectors) // 2
        pairs = zip(vectors[:half], vectors[half:], strict=True)
        vectors = [a if b == start else code.sum(a, b, count) for a, b in pairs]
    total = vectors[0]
    while count > 1:
        kind, half = code.vector(count), count // 2
        if half == 1:
            halves = [code.value(f"extractelement {kind} {total}, i64 {n}") for n in range(2)]
        else:
            halves = [
                code.shuffled(total, "poison", count, range(first, first + half))
                for first in (0, half)
            ]
        total = code.sum(halves[0], halves[1], half)
        count = half
    return total


def columns_text(dtype: ir.DType, machine: Machine) -> str:
    """``i64 gemv_columns(slots, first, last)``: rows of a matrix whose columns are dense.

    Some columns at a time are multiplied and added to the whole result.
    """
    code = Writer(dtype, machine)
    a, x, out, rows, columns = (
        _slot(code, each) for each in (Slot.A, Slot.X, Slot.OUT, Slot.M, Slot.N)
    )
    column_bytes = _slot(code, Slot.A_COLUMN)
    end = code.smaller("%last", rows)
    length = code.subtract(end, "%first")
    offset = code.multiply("%first", code.item_bytes)
    a, out = code.at(a, offset), code.at(out, offset)
    whole = code.subtract(columns, code.value(f"urem i64 {columns}, {_COLUMNS_AT_ONCE}"))
    for first, last, count in ((0, whole, _COLUMNS_AT_ONCE), (whole, columns, 1)):
        with code.loop(first, last, count) as loop:
            start = code.at(a, code.multiply(loop.index, column_bytes))
            starts, factors = [start], []
            for _ in range(count - 1):
                starts.append(code.at(starts[-1], column_bytes))
            place = code.at(x, code.multiply(loop.index, code.item_bytes))
            for number in range(count):
                element = code.load_element(code.at(place, number * code.item_bytes))
                factors.append(code.splat(element, code.lanes))
            is_first = code.is_equal(loop.index, 0)
            _add_columns(code, starts, factors, out, length, is_first)
    code.write("ret i64 0")
    return code.function(f"define i64 @{COLUMNS}(ptr %slots, i64 %first, i64 %last) nounwind")


def _add_columns(
    code: Writer,
    starts: Sequence[str],
    factors: Sequence[str],
    out: str,
    length: str,
    is_first: str,
) -> None:
    count, kind = code.lanes, code.vector(code.lanes)
    full, whole = Lanes(count, count), code.value(f"and i64 {length}, {-count}")
    for first, last in ((0, whole), (whole, length)):
        with code.loop(first, last, count) as loop:
            offset = code.multiply(loop.index, code.item_bytes)
            target = code.at(out, offset)
            mask = ""
            if first != 0:
                mask = code.mask_of_first(code.subtract(length, loop.index), count)

            def load(place: str, mask: str = mask) -> str:
                return code.load_where(place, count, mask) if mask else code.load(place, full)

            before = f"{kind} {load(target)}"
            total = code.value(f"select i1 {is_first}, {kind} {code.start_vector(count)}, {before}")
            for start, factor in zip(starts, factors, strict=True):
                total = code.multiply_add(factor, load(code.at(start, offset)), total, count)
            if mask:
                code.store_where(total, target, count, mask)
            else:
                code.store(total, target, full)


def _slot(code: Writer, slot: Slot) -> str:
    kind = "ptr" if slot in (Slot.A, Slot.X, Slot.OUT) else "i64"
    return code.value(f"load {kind}, ptr {code.at('%slots', 8 * slot)}, align 8")
