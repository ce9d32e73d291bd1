"""Units of which each position repeats its whole body: many positions do each round together.

Positions are independent of each other, so it is the same whether each runs all of its rounds or a
stretch of positions runs the first round, then the second one. A stretch keeps what it reads and
writes in the nearest cache, and its positions need not wait for their own last round as those of
one vector would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from turnout.plugin import Options, ir, statements

from .body import Body, Vectors
from .text import ModuleText

STRETCH = 2048
"""Positions that do a round together; three arrays of f64 take 48 KiB then."""


def repeated(unit: ir.Unit, options: Options) -> ir.For | None:
    """The loop that a whole body stands in, if nothing but memory tells its rounds apart.

    Only loops that no source has: what became of the others is reported.

    Parameters
    ----------
    unit : ir.Unit
        What is compiled.
    options : Options
        How it is compiled. Of indices that are out of bounds the first one is to be reported.
    """
    match unit.body.body:
        case (ir.For(initial=(), line=0) as loop,) if len(unit.extents) == 1 and not options.debug:
            inside = [loop.body, *(r for s in statements(loop.body.body) for r in s.regions)]
            used = {v for region in inside for s in region.body for v in s.operands}
            used.update(value for region in inside for value in region.yields)
            # Its bounds are the same for all positions where they stand before the body.
            is_uniform = unit.body.parameters[0] not in loop.operands
            return loop if is_uniform and used.isdisjoint(loop.body.parameters) else None
    return None


def one_round(unit: ir.Unit, loop: ir.For) -> ir.Unit:
    """The unit that runs the body of the loop once."""
    return replace(unit, body=replace(unit.body, body=loop.body.body))


class SteppingBody(Body):
    """One function that calls another one, which runs a round, for stretches of positions."""

    def __init__(
        self,
        unit: ir.Unit,
        module: ModuleText,
        vectors: Vectors,
        options: Options,
        name: str,
        loop: ir.For,
        one_round: str,
    ) -> None:
        super().__init__(
            unit, module, vectors, options, name, has_dense_rows=False, is_reported=False
        )
        self.counters = {}  # the other function counts
        self.loop_of_rounds = loop
        self.one_round = one_round

    def innermost(self, first: str, stop: str, properties: Sequence[str]) -> None:
        value, rounds = self.function.value, self.loop_of_rounds
        bounds = self.named((rounds.start, rounds.stop, rounds.step))

        def is_left(begin: str) -> str:
            return value(f"icmp slt i64 {begin}, {stop}")

        def stretch(begin: str) -> list[str]:
            left = value(f"sub i64 {stop}, {begin}")
            length = value(f"call i64 @llvm.smin.i64(i64 {left}, i64 {STRETCH})")
            end = value(f"add i64 {begin}, {length}")

            def one(index: str) -> list[str]:
                value(f"call i64 @{self.one_round}(ptr %args, i64 {begin}, i64 {end})")
                return []

            self.counted_loop(*bounds, [], one, self.loop(""))
            return [end]

        self.repeat([("i64", first)], is_left, stretch, self.loop(""))
