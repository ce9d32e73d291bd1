"""The product of matrices of any size and any strides: one module for an element type.

The loops are those of Goto and van de Geijn ("Anatomy of high-performance matrix multiplication",
2008): a strip of B, `DEPTH` rows deep, is packed; for it block after block of A is packed, so that
it fits the second level cache; and each block of A meets each panel of the strip, which stays in
the first level cache meanwhile. Packing brings the elements into the order in which the
micro-kernel reads them, so from there on strides do not matter.

The module has one entry, ``i64 large_matmul(ptr slots, i64 first, i64 last)``, in the form that the
thread pool takes. Its positions are tiles of the result, which have nothing in common but what they
read. What it returns says nothing.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from turnout.plugin import ir

from .block import DEPTH, GROUP, Operands, Shape, largest_block, product
from .machine import Machine
from .packing import packing_text
from .writer import Lanes, Writer

NAME = "large_matmul"
_ALIGNMENT = 64
_STRIP_BYTES = 4 * 1024 * 1024
"""Of packed B. It lies in the last cache, or in memory: panels are read in order."""

_TILES_PER_THREAD = 3
"""Enough that a thread that comes late does not leave the others waiting; each tile packs alone."""


class Slot(IntEnum):
    """The words of the entry's argument; strides are in bytes."""

    A = 0
    A_ROW = 1
    A_COLUMN = 2
    B = 3
    B_ROW = 4
    B_COLUMN = 5
    OUT = 6
    OUT_ROW = 7
    OUT_COLUMN = 8
    M = 9
    N = 10
    K = 11
    TILE_ROWS = 12
    TILE_COLUMNS = 13
    BLOCK_ROWS = 14
    STRIP_COLUMNS = 15

    FAILED = 16
    """Address of a word that becomes 1 where there is no memory for packing."""


class Tiling(NamedTuple):
    """How a product is cut up; no result depends on it."""

    tile_rows: int
    tile_columns: int
    block_rows: int
    strip_columns: int


def tiling(m: int, n: int, k: int, dtype: ir.DType, machine: Machine, l2_bytes: int) -> Tiling:
    """One tile, in blocks and strips for the caches; of at least one element."""
    shape = largest_block(machine)
    rows, columns = shape.rows, shape.vectors * (machine.vector_bytes // dtype.itemsize)
    depth_bytes = min(k, DEPTH) * dtype.itemsize
    block_rows = _even(m, l2_bytes // 2 // depth_bytes, rows)
    return Tiling(m, n, block_rows, _even(n, _STRIP_BYTES // depth_bytes, columns))


def split(tiles: Tiling, threads: int) -> Tiling:
    """Cut the one tile into enough for so many threads, none of them much longer than wide."""
    rows, columns = tiles.tile_rows, tiles.tile_columns
    parts = 1
    while parts < threads * _TILES_PER_THREAD:
        if rows >= columns:
            rows = -(-rows // 2)
        else:
            columns = -(-columns // 2)
        parts *= 2
    return tiles._replace(tile_rows=rows, tile_columns=columns)


def tile_count(m: int, n: int, tiles: Tiling) -> int:
    """How many tiles there are: the positions of the entry."""
    return -(-m // tiles.tile_rows) * -(-n // tiles.tile_columns)


def _even(total: int, most: int, multiple: int) -> int:
    """Parts in multiples, of about `most`, so that the last one is not much smaller."""
    parts = -(-total // max(most, multiple))
    return -(-total // (parts * multiple)) * multiple


def large_matmul_text(dtype: ir.DType, machine: Machine) -> str:
    """The module."""
    shape = largest_block(machine)
    heights = _heights(shape.rows)
    texts = ["declare ptr @malloc(i64)", "declare void @free(ptr)"]
    texts += [packing_text(dtype, machine, shape.vectors), _put_text(dtype, machine)]
    for vectors in range(1, shape.vectors + 1):
        texts += [_kernel_text(dtype, machine, rows, vectors) for rows in heights]
        texts.append(_panel_text(dtype, machine, heights, vectors))
    texts += [_tile_text(dtype, machine, shape, heights), _entry_text(dtype, machine, shape)]
    return "\n".join(texts)


def _heights(most: int) -> list[int]:
    """Rows of micro-kernels: the largest one, and about half of each for the rest."""
    heights = [most]
    while heights[-1] > 1:
        heights.append(heights[-1] // 2)
    return heights


# -- micro-kernels ---------------------------------------------------------------------------------


def _kernel_text(dtype: ir.DType, machine: Machine, rows: int, vectors: int) -> str:
    """``void kernel_<rows>_<vectors>(a, b, depth, out, row, column, rows, columns, adds)``."""
    code = Writer(dtype, machine)
    item, full = dtype.itemsize, Lanes(code.lanes, code.lanes)
    width = vectors * code.lanes
    operands = Operands(GROUP * item, item, rows * GROUP * item, width * item)
    block = code.value(f"alloca [{rows * width} x {code.element}], align {machine.vector_bytes}")
    sums = product(code, "%a", "%b", "%depth", rows, [full] * vectors, operands)

    dense, add, put, edge = code.new_labels("dense", "add", "put", "edge")
    conditions = [
        code.is_equal("%column", item),
        code.is_equal("%columns", width),
        code.is_equal("%rows", rows),
    ]
    both = code.value(f"and i1 {conditions[0]}, {conditions[1]}")
    code.branch(code.value(f"and i1 {both}, {conditions[2]}"), dense, edge)
    code.start(dense)
    code.branch("%adds", add, put)
    for label in (add, put):
        code.start(label)
        target = "%out"
        for row in range(rows):
            for number in range(vectors):
                place, vector = code.at(target, number * machine.vector_bytes), sums[row][number]
                if label == add:
                    vector = code.sum(code.load(place, full), vector, code.lanes)
                code.store(vector, place, full)
            target = code.at(target, "%row")
        code.write("ret void")

    code.start(edge)
    for row in range(rows):
        for number in range(vectors):
            place = code.at(block, row * width * item + number * machine.vector_bytes)
            code.store(sums[row][number], place, full)
    arguments = f"ptr {block}, i64 {width * item}, ptr %out, i64 %row, i64 %column"
    code.write(f"call void @put({arguments}, i64 %rows, i64 %columns, i1 %adds)")
    code.write("ret void")
    header = (
        f"define internal void @kernel_{rows}_{vectors}(ptr noalias %a, ptr noalias %b, i64 %depth,"
        " ptr noalias %out, i64 %row, i64 %column, i64 %rows, i64 %columns, i1 %adds)"
        " nounwind noinline"
    )
    return code.function(header)


def _put_text(dtype: ir.DType, machine: Machine) -> str:
    """``void put(block, block_row, out, row, column, rows, columns, adds)``: part of a block."""
    code = Writer(dtype, machine)
    item = dtype.itemsize
    with code.loop(0, "%rows", 1) as row:
        source = code.at("%block", code.multiply(row.index, "%block_row"))
        target = code.at("%out", code.multiply(row.index, "%row"))
        dense, strided, done = code.new_labels("dense", "strided", "done")
        code.branch(code.is_equal("%column", item), dense, strided)
        code.start(dense)
        with code.loop(0, "%columns", code.lanes) as column:
            mask = code.mask_of_first(code.subtract("%columns", column.index), code.lanes)
            offset = code.multiply(column.index, item)
            place = code.at(target, offset)
            vector = code.load(code.at(source, offset), Lanes(code.lanes, code.lanes))
            # Lanes that are not stored may hold anything.
            before = code.load_where(place, code.lanes, mask)
            total = code.sum(before, vector, code.lanes)
            kind = code.vector(code.lanes)
            chosen = code.value(f"select i1 %adds, {kind} {total}, {kind} {vector}")
            code.store_where(chosen, place, code.lanes, mask)
        code.jump(done)
        code.start(strided)
        with code.loop(0, "%columns", 1) as column:
            place = code.at(target, code.multiply(column.index, "%column"))
            element = code.load_element(code.at(source, code.multiply(column.index, item)))
            total = code.sum(code.load_element(place), element, 1)
            chosen = code.value(
                f"select i1 %adds, {code.element} {total}, {code.element} {element}"
            )
            code.store_element(chosen, place)
        code.jump(done)
        code.start(done)
    code.write("ret void")
    header = (
        "define internal void @put(ptr noalias %block, i64 %block_row, ptr noalias %out, i64 %row,"
        " i64 %column, i64 %rows, i64 %columns, i1 %adds) nounwind noinline"
    )
    return code.function(header)


def _panel_text(dtype: ir.DType, machine: Machine, heights: list[int], vectors: int) -> str:
    """``void panel_<vectors>(packed_a, b, depth, out, row, column, rows, columns, adds)``.

    Every row of a packed block of A meets one panel of B.
    """
    code = Writer(dtype, machine)
    height_bytes = code.multiply("%padded", dtype.itemsize)
    with code.loop(0, "%rows", heights[0]) as loop:
        left = code.subtract("%rows", loop.index)
        rows = code.smaller(left, heights[0])
        a = code.at("%a", code.multiply(loop.index, height_bytes))
        out = code.at("%out", code.multiply(loop.index, "%row"))
        done = code.new_labels("done")[0]
        # From the smallest that suffices, and the largest first, which most of them are.
        for height, next_height in zip(heights, [*heights[1:], 0], strict=True):
            if next_height:
                run, following = code.new_labels("run", "following")
                condition = code.value(f"icmp sgt i64 {rows}, {next_height}")
                code.branch(condition, run, following)
                code.start(run)
            arguments = (
                f"ptr {a}, ptr %b, i64 %depth, ptr {out}, i64 %row, i64 %column, i64 {rows},"
                " i64 %columns, i1 %adds"
            )
            code.write(f"call void @kernel_{height}_{vectors}({arguments})")
            code.jump(done)
            if next_height:
                code.start(following)
        code.start(done)
    code.write("ret void")
    header = (
        f"define internal void @panel_{vectors}(ptr noalias %a, ptr noalias %b, i64 %depth,"
        " i64 %padded, ptr noalias %out, i64 %row, i64 %column, i64 %rows, i64 %columns, i1 %adds)"
        " nounwind noinline"
    )
    return code.function(header)


# -- tiles -----------------------------------------------------------------------------------------


def _tile_text(dtype: ir.DType, machine: Machine, shape: Shape, heights: list[int]) -> str:
    """``void tile(slots, packed_a, packed_b, first_row, rows, first_column, columns)``."""
    code = Writer(dtype, machine)
    item = dtype.itemsize
    width = shape.vectors * code.lanes
    slot = {each: _slot(code, each) for each in Slot if each < Slot.M}
    depth_total, block_rows = _slot(code, Slot.K), _slot(code, Slot.BLOCK_ROWS)
    strip_columns = _slot(code, Slot.STRIP_COLUMNS)
    a = _element(code, slot[Slot.A], "%first_row", slot[Slot.A_ROW])
    b = _element(code, slot[Slot.B], "%first_column", slot[Slot.B_COLUMN])
    out = _element(code, slot[Slot.OUT], "%first_row", slot[Slot.OUT_ROW])
    out = _element(code, out, "%first_column", slot[Slot.OUT_COLUMN])

    with code.loop(0, "%columns", strip_columns) as strip:
        strip_width = code.smaller(strip_columns, code.subtract("%columns", strip.index))
        strip_b = _element(code, b, strip.index, slot[Slot.B_COLUMN])
        strip_out = _element(code, out, strip.index, slot[Slot.OUT_COLUMN])
        with code.loop(0, depth_total, DEPTH) as level:
            depth = code.smaller(DEPTH, code.subtract(depth_total, level.index))
            depth_bytes = code.multiply(depth, item)
            rounded = code.add(depth, GROUP - 1)
            padded = code.value(f"and i64 {rounded}, {-GROUP}")
            level_a = _element(code, a, level.index, slot[Slot.A_COLUMN])
            level_b = _element(code, strip_b, level.index, slot[Slot.B_ROW])
            adds = code.value(f"icmp ne i64 {level.index}, 0")

            with code.loop(0, strip_width, width) as panel:
                columns = code.smaller(width, code.subtract(strip_width, panel.index))
                packed = code.at("%packed_b", code.multiply(panel.index, depth_bytes))
                source = _element(code, level_b, panel.index, slot[Slot.B_COLUMN])
                strides = f"i64 {slot[Slot.B_ROW]}, i64 {slot[Slot.B_COLUMN]}"
                rounded = code.add(columns, code.lanes - 1)
                packed_width = code.value(f"and i64 {rounded}, {-code.lanes}")
                arguments = f"ptr {packed}, ptr {source}, i64 {columns}, i64 {packed_width}"
                code.write(f"call void @pack_b({arguments}, i64 {depth}, {strides})")

            with code.loop(0, "%rows", block_rows) as block:
                rows = code.smaller(block_rows, code.subtract("%rows", block.index))
                block_a = _element(code, level_a, block.index, slot[Slot.A_ROW])
                block_out = _element(code, strip_out, block.index, slot[Slot.OUT_ROW])
                with code.loop(0, rows, shape.rows) as panel:
                    some = code.smaller(shape.rows, code.subtract(rows, panel.index))
                    panel_bytes = code.multiply(panel.index, item)
                    packed = code.at("%packed_a", code.multiply(panel_bytes, padded))
                    source = _element(code, block_a, panel.index, slot[Slot.A_ROW])
                    height = _height(code, heights, some)
                    strides = f"i64 {slot[Slot.A_ROW]}, i64 {slot[Slot.A_COLUMN]}"
                    arguments = f"ptr {packed}, ptr {source}, i64 {some}, i64 {height}"
                    code.write(f"call void @pack_a({arguments}, i64 {depth}, {strides})")
                with code.loop(0, strip_width, width) as panel:
                    columns = code.smaller(width, code.subtract(strip_width, panel.index))
                    packed = code.at("%packed_b", code.multiply(panel.index, depth_bytes))
                    target = _element(code, block_out, panel.index, slot[Slot.OUT_COLUMN])
                    strides = f"i64 {slot[Slot.OUT_ROW]}, i64 {slot[Slot.OUT_COLUMN]}"
                    arguments = (
                        f"ptr %packed_a, ptr {packed}, i64 {depth}, i64 {padded}, ptr {target},"
                        f" {strides}, i64 {rows}, i64 {columns}, i1 {adds}"
                    )
                    _call_panel(code, shape.vectors, columns, arguments)
    code.write("ret void")
    header = (
        "define internal void @tile(ptr %slots, ptr noalias %packed_a, ptr noalias %packed_b,"
        " i64 %first_row, i64 %rows, i64 %first_column, i64 %columns) nounwind noinline"
    )
    return code.function(header)


def _entry_text(dtype: ir.DType, machine: Machine, shape: Shape) -> str:
    code = Writer(dtype, machine)
    item = dtype.itemsize
    rows, columns = _slot(code, Slot.M), _slot(code, Slot.N)
    tile_rows, tile_columns = _slot(code, Slot.TILE_ROWS), _slot(code, Slot.TILE_COLUMNS)
    across = _parts(code, columns, tile_columns)
    total = code.multiply(across, _parts(code, rows, tile_rows))
    end = code.smaller("%last", total)

    depth = code.smaller(_slot(code, Slot.K), DEPTH)
    depth_bytes = code.multiply(code.add(depth, GROUP - 1), item)
    # Blocks are multiples of the largest panels, and so is what a smaller tile is rounded up to.
    a_bytes = code.multiply(_slot(code, Slot.BLOCK_ROWS), depth_bytes)
    a_bytes = code.value(f"and i64 {code.add(a_bytes, _ALIGNMENT - 1)}, {-_ALIGNMENT}")
    b_bytes = code.multiply(_slot(code, Slot.STRIP_COLUMNS), depth_bytes)
    needed = code.add(code.add(a_bytes, b_bytes), _ALIGNMENT)
    memory = code.value(f"call ptr @malloc(i64 {needed})")
    failed, work = code.new_labels("failed", "work")
    code.branch(code.value(f"icmp eq ptr {memory}, null"), failed, work)
    code.start(failed)
    flag = _slot(code, Slot.FAILED)
    code.write(f"store atomic i64 1, ptr {flag} monotonic, align 8")
    code.write("ret i64 0")

    code.start(work)
    address = code.value(f"ptrtoint ptr {memory} to i64")
    skipped = code.value(f"and i64 {code.value(f'sub i64 0, {address}')}, {_ALIGNMENT - 1}")
    packed_a = code.at(memory, skipped)
    packed_b = code.at(packed_a, a_bytes)
    with code.loop("%first", end, 1) as tile:
        first_row = code.multiply(code.value(f"udiv i64 {tile.index}, {across}"), tile_rows)
        first_column = code.multiply(code.value(f"urem i64 {tile.index}, {across}"), tile_columns)
        some_rows = code.smaller(tile_rows, code.subtract(rows, first_row))
        some_columns = code.smaller(tile_columns, code.subtract(columns, first_column))
        arguments = f"ptr %slots, ptr {packed_a}, ptr {packed_b}, i64 {first_row}"
        arguments += f", i64 {some_rows}, i64 {first_column}, i64 {some_columns}"
        code.write(f"call void @tile({arguments})")
    code.write(f"call void @free(ptr {memory})")
    code.write("ret i64 0")
    return code.function(f"define i64 @{NAME}(ptr %slots, i64 %first, i64 %last) nounwind")


def _slot(code: Writer, slot: Slot) -> str:
    is_pointer = slot in (Slot.A, Slot.B, Slot.OUT, Slot.FAILED)
    place = code.at("%slots", 8 * slot)
    return code.value(f"load {'ptr' if is_pointer else 'i64'}, ptr {place}, align 8")


def _element(code: Writer, start: str, index: str, stride: str) -> str:
    return code.at(start, code.multiply(index, stride))


def _parts(code: Writer, total: str, each: str) -> str:
    return code.value(f"udiv i64 {code.subtract(code.add(total, each), 1)}, {each}")


def _height(code: Writer, heights: list[int], rows: str) -> str:
    """The rows of the micro-kernel for so many rows."""
    height = str(heights[0])
    for each in heights[1:]:
        is_enough = code.value(f"icmp sle i64 {rows}, {each}")
        height = code.value(f"select i1 {is_enough}, i64 {each}, i64 {height}")
    return height


def _call_panel(code: Writer, vectors: int, columns: str, arguments: str) -> None:
    """Call the function for as many vectors as the columns take."""
    done = code.new_labels("done")[0]
    for number in range(vectors, 1, -1):
        call, narrower = code.new_labels("call", "narrower")
        is_wide = code.value(f"icmp sgt i64 {columns}, {(number - 1) * code.lanes}")
        code.branch(is_wide, call, narrower)
        code.start(call)
        code.write(f"call void @panel_{number}({arguments})")
        code.jump(done)
        code.start(narrower)
    code.write(f"call void @panel_1({arguments})")
    code.jump(done)
    code.start(done)
