"""The product of small matrices in one piece: every size is a constant, nothing is packed."""

from __future__ import annotations

from collections.abc import Iterator

from turnout.plugin import ir

from .block import CHAINS, DEPTH, GROUP, Operands, balanced, largest_block, product
from .machine import Machine
from .writer import Lanes, Writer, power_of_two

NAME = "small_matmul"
LARGEST_BYTES = 32 * 1024
"""Of each operand: both of them stay in the first or second level cache, in any order."""


def is_small(m: int, n: int, k: int, itemsize: int) -> bool:
    """Whether a product is best written as one piece."""
    return k <= DEPTH and m * k * itemsize <= LARGEST_BYTES and n * k * itemsize <= LARGEST_BYTES


def small_matmul_text(m: int, n: int, k: int, dtype: ir.DType, machine: Machine) -> str:
    """A function ``void (a, b, out)`` of contiguous matrices of at least one element."""
    code = Writer(dtype, machine)
    item, shape = dtype.itemsize, largest_block(machine)
    operands = Operands(k * item, item, GROUP * item, n * item)
    first_row = 0
    for row_blocks, rows in balanced(m, shape.rows):
        with code.repeated(row_blocks) as row_block:
            row = code.add(code.multiply(row_block, rows), first_row)
            a = code.at("%a", code.multiply(row, k * item))
            out = code.at("%out", code.multiply(row, n * item))
            first_bytes = 0
            for column_blocks, columns in _column_blocks(n, rows, code.lanes, shape.vectors):
                width_bytes = sum(lanes.used for lanes in columns) * item
                with code.repeated(column_blocks) as column_block:
                    column = code.add(code.multiply(column_block, width_bytes), first_bytes)
                    b, corner = code.at("%b", column), code.at(out, column)
                    sums = product(code, a, b, k, rows, columns, operands)
                    _store(code, sums, columns, corner, n * item)
                first_bytes += column_blocks * width_bytes
        first_row += row_blocks * rows
    code.write("ret void")
    header = f"define void @{NAME}(ptr noalias %a, ptr noalias %b, ptr noalias %out) nounwind"
    return code.function(header)


def _column_blocks(n: int, rows: int, width: int, most: int) -> Iterator[tuple[int, list[Lanes]]]:
    """Blocks of columns: how many of a kind there are, and their vectors."""
    # Of few rows a block takes more vectors, for as many independent sums as hide the latency.
    most = max(most, -(-CHAINS // rows))
    whole, rest = divmod(n, most * width)
    if whole:
        yield whole, [Lanes(width, width)] * most
    if rest:
        full, used = divmod(rest, width)
        vectors = [Lanes(width, width)] * full
        yield 1, [*vectors, Lanes(power_of_two(used), used)] if used else vectors


def _store(
    code: Writer, sums: list[list[str]], columns: list[Lanes], out: str, row_bytes: int
) -> None:
    for row, vectors in enumerate(sums):
        offset = row * row_bytes
        for vector, lanes in zip(vectors, columns, strict=True):
            code.store(vector, code.at(out, offset), lanes)
            offset += lanes.count * code.item_bytes
