"""Packing: elements of a matrix in the order in which the micro-kernel reads them.

What is packed of A is a panel of some rows: groups of `GROUP` steps along k, in each of them the
rows, in each row the steps. So a panel is read from front to back, and where rows are dense they
are packed without a shuffle. Of B it is a panel of some columns, row after row. Elements that a
panel lacks at the edge are 0: what is computed with them is not stored.

Where the other axis is dense, squares are transposed in registers, and what is left over goes
element by element, as everything does where no axis is dense.
"""

from __future__ import annotations

from turnout.plugin import ir

from .block import GROUP
from .machine import Machine
from .writer import Lanes, Writer

_SIDE = 4
"""Rows and columns of the squares."""


def packing_text(dtype: ir.DType, machine: Machine, vectors: int) -> str:
    """The functions ``pack_a`` and ``pack_b``; whole panels of B have so many vectors."""
    return "\n".join(
        [
            _copy_text(dtype, machine),
            _transpose_text(dtype, machine),
            _pack_a_text(dtype, machine),
            _pack_b_text(dtype, machine, vectors),
        ]
    )


def _pack_a_text(dtype: ir.DType, machine: Machine) -> str:
    """``void pack_a(packed, a, rows, height, depth, row, column)``; strides are in bytes."""
    code = Writer(dtype, machine)
    item, group = dtype.itemsize, Lanes(GROUP, GROUP)
    row_bytes = GROUP * item
    group_bytes = code.multiply("%height", row_bytes)
    whole = code.value(f"and i64 %depth, {-GROUP}")
    groups = code.value(f"udiv i64 {code.add('%depth', GROUP - 1)}, {GROUP}")
    with code.when(code.value("icmp slt i64 %rows, %height")):
        _fill(code, code.multiply(groups, group_bytes))

    along_k, look, along_m, strided, end = code.new_labels("k", "look", "m", "strided", "end")
    code.branch(code.is_equal("%column", item), along_k, look)
    code.start(along_k)
    with code.loop(0, "%rows", 1) as row:
        source = code.at("%a", code.multiply(row.index, "%row"))
        target = code.at("%packed", code.multiply(row.index, row_bytes))
        with code.loop(0, whole, GROUP, ("ptr", source), ("ptr", target)) as steps:
            read, write = steps.values
            code.store(code.load(read, group), write, group)
            steps.following = [code.at(read, row_bytes), code.at(write, group_bytes)]
        read, write = steps.values
        with code.loop(whole, "%depth", 1, ("ptr", read), ("ptr", write)) as steps:
            read, write = steps.values
            code.store_element(code.load_element(read), write)
            steps.following = [code.at(read, item), code.at(write, item)]
    code.jump(end)

    layout = f"i64 {row_bytes}, i64 {item}, i64 {group_bytes}"
    code.start(look)
    code.branch(code.is_equal("%row", item), along_m, strided)
    code.start(along_m)
    squares = code.value(f"and i64 %rows, {-_SIDE}")
    code.write(
        f"call void @transpose(ptr %packed, ptr %a, i64 {squares}, i64 {whole}, i64 %column,"
        f" i64 {row_bytes}, i64 {group_bytes})"
    )
    source, rest = "ptr %packed, ptr %a", "i64 %row, i64 %column"
    code.write(
        f"call void @copy({source}, i64 {squares}, i64 %rows, i64 0, i64 {whole}, {rest}, {layout})"
    )
    code.write(
        f"call void @copy({source}, i64 0, i64 %rows, i64 {whole}, i64 %depth, {rest}, {layout})"
    )
    code.jump(end)
    code.start(strided)
    code.write(f"call void @copy({source}, i64 0, i64 %rows, i64 0, i64 %depth, {rest}, {layout})")
    code.jump(end)
    code.start(end)
    code.write("ret void")
    return code.function(
        "define internal void @pack_a(ptr noalias %packed, ptr noalias %a, i64 %rows, i64 %height,"
        " i64 %depth, i64 %row, i64 %column) nounwind noinline"
    )


def _pack_b_text(dtype: ir.DType, machine: Machine, vectors: int) -> str:
    """``void pack_b(packed, b, columns, width, depth, row, column)``; strides are in bytes."""
    code = Writer(dtype, machine)
    item, full = dtype.itemsize, Lanes(code.lanes, code.lanes)
    row_bytes = code.multiply("%width", item)
    layout = f"i64 {item}, i64 {row_bytes}, i64 {code.multiply(row_bytes, GROUP)}"
    whole, look, edge, along_k, strided, end = code.new_labels(
        "whole", "look", "edge", "k", "strided", "end"
    )
    is_whole = code.is_equal("%columns", vectors * code.lanes)
    is_dense = code.is_equal("%column", item)
    code.branch(code.value(f"and i1 {is_dense}, {is_whole}"), whole, look)

    code.start(whole)
    with code.loop(0, "%depth", 1, ("ptr", "%b"), ("ptr", "%packed")) as steps:
        read, write = steps.values
        for number in range(vectors):
            here = number * machine.vector_bytes
            code.store(code.load(code.at(read, here), full), code.at(write, here), full)
        steps.following = [code.at(read, "%row"), code.at(write, row_bytes)]
    code.jump(end)

    code.start(look)
    with code.when(code.value("icmp slt i64 %columns, %width")):
        _fill(code, code.multiply("%depth", row_bytes))
    code.branch(code.is_equal("%row", item), along_k, edge)

    code.start(along_k)
    squares = code.value(f"and i64 %columns, {-_SIDE}")
    steps_whole = code.value(f"and i64 %depth, {-_SIDE}")
    code.write(
        f"call void @transpose(ptr %packed, ptr %b, i64 {steps_whole}, i64 {squares}, i64 %column,"
        f" i64 {row_bytes}, i64 {_SIDE * item})"
    )
    source, rest = "ptr %packed, ptr %b", "i64 %column, i64 %row"
    code.write(
        f"call void @copy({source}, i64 {squares}, i64 %columns, i64 0, i64 {steps_whole}, {rest},"
        f" {layout})"
    )
    code.write(
        f"call void @copy({source}, i64 0, i64 %columns, i64 {steps_whole}, i64 %depth, {rest},"
        f" {layout})"
    )
    code.jump(end)

    code.start(edge)
    code.branch(is_dense, "dense.edge", strided)
    code.start("dense.edge")
    with code.loop(0, "%columns", code.lanes) as column:
        mask = code.mask_of_first(code.subtract("%columns", column.index), code.lanes)
        offset = code.multiply(column.index, item)
        carried = (("ptr", code.at("%b", offset)), ("ptr", code.at("%packed", offset)))
        with code.loop(0, "%depth", 1, *carried) as steps:
            read, write = steps.values
            code.store(code.load_where(read, code.lanes, mask), write, full)
            steps.following = [code.at(read, "%row"), code.at(write, row_bytes)]
    code.jump(end)
    code.start(strided)
    code.write(
        f"call void @copy({source}, i64 0, i64 %columns, i64 0, i64 %depth, {rest}, {layout})"
    )
    code.jump(end)
    code.start(end)
    code.write("ret void")
    return code.function(
        "define internal void @pack_b(ptr noalias %packed, ptr noalias %b, i64 %columns,"
        " i64 %width, i64 %depth, i64 %row, i64 %column) nounwind noinline"
    )


def _fill(code: Writer, size_bytes: int | str) -> None:
    code.write(f"call void @llvm.memset.p0.i64(ptr %packed, i8 0, i64 {size_bytes}, i1 false)")


def _copy_text(dtype: ir.DType, machine: Machine) -> str:
    """Copy element by element, rows and steps from a first one to an end.

    In the target, rows are ``to_row`` apart, steps ``to_step``, groups of steps ``to_group``.
    """
    code = Writer(dtype, machine)
    with code.loop("%row", "%rows", 1) as row:
        source = code.at("%source", code.multiply(row.index, "%from_row"))
        target = code.at("%target", code.multiply(row.index, "%to_row"))
        with code.loop("%step", "%steps", 1) as step:
            read = code.at(source, code.multiply(step.index, "%from_step"))
            group = code.value(f"udiv i64 {step.index}, {GROUP}")
            rest = code.value(f"and i64 {step.index}, {GROUP - 1}")
            offset = code.add(code.multiply(group, "%to_group"), code.multiply(rest, "%to_step"))
            code.store_element(code.load_element(read), code.at(target, offset))
    code.write("ret void")
    return code.function(
        "define internal void @copy(ptr noalias %target, ptr noalias %source, i64 %row, i64 %rows,"
        " i64 %step, i64 %steps, i64 %from_row, i64 %from_step, i64 %to_row, i64 %to_step,"
        " i64 %to_group) nounwind noinline"
    )


def _transpose_text(dtype: ir.DType, machine: Machine) -> str:
    """Transpose squares: rows are dense in the source, columns in the target.

    Columns are ``from_column`` apart in the source, rows ``to_row`` in the target, and columns of
    squares ``to_square``.
    """
    code = Writer(dtype, machine)
    dense = Lanes(_SIDE, _SIDE)
    with code.loop(0, "%columns", _SIDE) as column:
        source = code.at("%source", code.multiply(column.index, "%from_column"))
        square = code.value(f"udiv i64 {column.index}, {_SIDE}")
        target = code.at("%target", code.multiply(square, "%to_square"))
        with code.loop(0, "%rows", _SIDE) as row:
            read = code.at(source, code.multiply(row.index, code.item_bytes))
            vectors = []
            for _ in range(_SIDE):
                vectors.append(code.load(read, dense))
                read = code.at(read, "%from_column")
            pairs = [
                code.shuffled(a, b, _SIDE, range(2 * _SIDE))
                for a, b in zip(vectors[::2], vectors[1::2], strict=True)
            ]
            write = code.at(target, code.multiply(row.index, "%to_row"))
            for n in range(_SIDE):
                lanes = range(n, n + _SIDE * _SIDE, _SIDE)
                code.store(code.shuffled(pairs[0], pairs[1], 2 * _SIDE, lanes), write, dense)
                write = code.at(write, "%to_row")
    code.write("ret void")
    return code.function(
        "define internal void @transpose(ptr noalias %target, ptr noalias %source, i64 %rows,"
        " i64 %columns, i64 %from_column, i64 %to_row, i64 %to_square) nounwind noinline"
    )
