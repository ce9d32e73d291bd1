"""The body of a unit for threads that share its positions: updates are atomic instructions.

It is several times slower than `turnout_cpu.body.Body`, which one thread runs alone, and needs
elements that are aligned to their size.
"""

from __future__ import annotations

from collections.abc import Sequence

from turnout.plugin import ir

from .body import Body
from .text import storage_type_of, type_of

_INSTRUCTIONS = {
    "add": "add", "subtract": "sub", "bit_and": "and", "bit_or": "or", "bit_xor": "xor",
}  # fmt: skip
"""Operations on integers that the processor has as one instruction."""


class SharingBody(Body):
    """One function that runs positions of a unit while other threads run others."""

    def store(
        self, array: str, indices: Sequence[ir.Value], value: ir.Value, combine: str | None
    ) -> None:
        if combine is None:
            super().store(array, indices, value, combine)
            return
        layout, operand = self.arrays[array], self.names[value.number]
        pointer = self.element(array, indices)
        instruction = _INSTRUCTIONS.get(combine) if layout.dtype.is_integer else None
        if instruction is None:
            self.exchange(layout.dtype, pointer, operand, combine)
            return
        wanted = type_of(layout.dtype)
        # Threads meet at the end of a launch, which orders everything else.
        self.function.value(f"atomicrmw {instruction} ptr {pointer}, {wanted} {operand} monotonic")

    def exchange(self, dtype: ir.DType, pointer: str, operand: str, combine: str) -> None:
        """Compute the new value of an element until no other thread wrote it meanwhile."""
        function = self.function
        bits = f"i{8 if dtype.is_bool else dtype.bits}"
        attempt, done = function.new_labels("attempt", "done")
        first = function.value(
            f"load atomic {bits}, ptr {pointer} monotonic, align {dtype.itemsize}"
        )
        before = function.block
        function.jump(attempt)
        function.start(attempt)
        at, seen = len(function.lines), function.new_value()
        stored = seen
        if dtype.is_float:
            stored = function.value(f"bitcast {bits} {seen} to {storage_type_of(dtype)}")
        current = self.from_storage(dtype, stored)
        new = self.compute(combine, dtype, (current, operand))
        if dtype.is_float:
            new = function.value(f"bitcast {type_of(dtype)} {new} to {bits}")
        elif dtype.is_bool:
            new = function.value(f"zext i1 {new} to {bits}")
        pair = function.value(
            f"cmpxchg weak ptr {pointer}, {bits} {seen}, {bits} {new} monotonic monotonic"
        )
        found = function.value(f"extractvalue {{ {bits}, i1 }} {pair}, 0")
        is_written = function.value(f"extractvalue {{ {bits}, i1 }} {pair}, 1")
        # What a failed attempt found is known only now.
        function.lines.insert(
            at, f"  {seen} = phi {bits} [ {first}, %{before} ], [ {found}, %{function.block} ]"
        )
        function.branch(is_written, done, attempt)
        function.start(done)
