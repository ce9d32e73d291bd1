"""How far the indices of a kernel reach, as far as lengths and scalar arguments tell.

Only accesses that every iteration makes are looked at, so what is found here happens in every
launch in which the loops around the access are not empty. That lets a call be refused before it
reads or writes beyond an array, without checking a single index while it runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from .. import ir
from ..ir import Quantity, QuantitySum, Value
from ..records import record
from .builder import Builder
from .linear import Linear


@record
class ReachAnalysis:
    """Finds `ir.Reach`es.

    Attributes
    ----------
    builder : Builder
        Knows the definitions of values.
    quantities : mapping of int to Quantity
        By the number of their values, what is known before a launch: scalar parameters, and all
        lengths of array parameters. Other arrays are the kernel's own and long enough.
    """

    builder: Builder
    quantities: Mapping[int, Quantity]

    def of(self, body: Iterable[ir.Statement], loops: tuple[ir.For, ...]) -> Iterator[ir.Reach]:
        """What the statements reach that run in every iteration of all of the loops."""
        ranges = [self._range(loop) for loop in loops]
        if None in ranges:
            return
        known = tuple(bounds for bounds in ranges if bounds is not None)
        for statement in body:
            match statement:
                case ir.Load(array=array, indices=indices, line=line):
                    yield from self._access(array, indices, line, loops, known)
                case ir.Store(array=array, indices=indices, line=line):
                    yield from self._access(array, indices, line, loops, known)
                case ir.For():
                    yield from self.of(statement.body.body, (*loops, statement))

    def _range(self, loop: ir.For) -> tuple[QuantitySum, QuantitySum] | None:
        """Smallest value and end of the range of a loop whose step is 1 or -1."""
        least, greatest = self._extremes(loop)
        if least is None or greatest is None:
            return None
        start, end = self._sum(least), self._sum(greatest.plus(Linear((), 1)))
        return None if start is None or end is None else (start, end)

    def _extremes(self, loop: ir.For) -> tuple[Linear | None, Linear | None]:
        start, stop = self.builder.linear(loop.start), self.builder.linear(loop.stop)
        step = self.builder.known_integer(loop.step)
        if step == 1:
            return start, stop.plus(Linear((), -1))
        return (stop.plus(Linear((), 1)), start) if step == -1 else (None, None)

    def _access(
        self,
        array: str,
        indices: tuple[Value, ...],
        line: int,
        loops: tuple[ir.For, ...],
        ranges: tuple[tuple[QuantitySum, QuantitySum], ...],
    ) -> Iterator[ir.Reach]:
        for axis, index in enumerate(indices):
            if (array, axis) not in self.quantities.values():
                return
            low, high = self._span(index, loops)
            greatest = self._sum(high)
            if greatest is not None and greatest.terms == (((array, axis), 1),):
                # Below its own length, whatever that is.
                greatest = None if greatest.constant < 0 else greatest
            least = None if self.builder.is_at_least_0(index) else self._sum(low)
            if least is not None or greatest is not None:
                yield ir.Reach(array, axis, least, greatest, ranges, line)

    def _span(self, index: Value, loops: tuple[ir.For, ...]) -> tuple[Linear, Linear]:
        """Smallest and largest value of an index, in terms of what is outside of the loops."""
        low = high = self.builder.linear(index)
        for loop in loops:
            number = loop.body.parameters[0].number
            least, greatest = self._extremes(loop)
            assert least is not None
            assert greatest is not None
            factor = low.coefficient(number)
            first, last = (least, greatest) if factor >= 0 else (greatest, least)
            low = low.without(number).plus(first, factor)
            high = high.without(number).plus(last, factor)
        return low, high

    def _sum(self, form: Linear) -> QuantitySum | None:
        if any(number not in self.quantities for number, _ in form.terms):
            return None
        terms = tuple((self.quantities[number], factor) for number, factor in form.terms)
        return QuantitySum(terms, form.constant)
