"""Loops in reverse: the iterations from the last to the first, each at the values it started with.

The values that a loop carries are computed again and kept in local arrays on the way, the *tape*:
all of them where it is known that they are few. Otherwise the iterations are divided into at most
`PIECES` of equal length, of which only the first values are kept; each piece is divided again when
its turn comes, and what is between is computed from the nearest values that were kept. So memory is
bounded, and up to 1024 iterations are computed three times, more of them more often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from .. import ir
from ..lang.loops import trip_count
from .bars import Bar, Bars
from .partials import Term
from .replay import Scope

if TYPE_CHECKING:
    from .sweep import Sweep

TAPE_BYTES = 2**14
"""How much memory of a sample the tape of one loop may take."""
PIECES = 64, 16
"""Into how many pieces a loop is divided, and into how many each of these. Memory for the latter is
filled with zeros for every piece."""

State = tuple[ir.Value, ...]
Step = Callable[[ir.Value, list[Bar]], tuple[list[Bar], Bars]]


class Rewind:
    """The reverse of one loop.

    Parameters
    ----------
    sweep : Sweep
    loop : For or While
    scope : Scope
        Where the loop was replayed.
    """

    def __init__(self, sweep: Sweep, loop: ir.For | ir.While, scope: Scope) -> None:
        self.sweep = sweep
        self.build = sweep.build
        self.loop = loop
        self.scope = scope
        self.state_bytes = sum(value.dtype.itemsize for value in loop.initial)

    def run(self, last: list[Bar]) -> tuple[list[Bar], Bars]:
        """Go from derivatives of the active results to those of their initial values.

        Returns
        -------
        list of Bar, dict of Value to Bar
            The latter of the values that the body takes from outside.
        """
        loop, scope, build = self.loop, self.scope, self.build
        initial = tuple(scope.values[value] for value in loop.initial)
        trips = self._trips(loop) if isinstance(loop, ir.For) else scope.trips[id(loop)]
        zero = build.constant(0, ir.i64)
        most = build.upper_bound(trips)
        if most is not None and most * self.state_bytes <= TAPE_BYTES:
            return self._taped(trips, max(most, 1), initial, last)
        return self._in_pieces(zero, trips, initial, last, PIECES)

    def _trips(self, loop: ir.For) -> ir.Value:
        build = self.build
        first, last, stride = (self.scope.values[v] for v in (loop.start, loop.stop, loop.step))
        start, stop, step = (build.known_integer(value) for value in (first, last, stride))
        if start is not None and stop is not None and step is not None:
            return build.constant(len(range(start, stop, step)) if step else 0, ir.i64)
        return trip_count(build, first, last, stride, step)

    # -- orders ----------------------------------------------------------------------------------

    def _taped(
        self, trips: ir.Value, most: int, initial: State, last: list[Bar]
    ) -> tuple[list[Bar], Bars]:
        """All values are kept."""
        one = self.build.constant(1, ir.i64)
        tape = self._record(most, trips, initial, lambda trip, state: self._ahead(trip, one, state))
        return self._backwards(
            trips, last, lambda trip, bars: self._iteration(trip, self._kept(tape, trip), bars)
        )

    def _in_pieces(
        self,
        first: ir.Value,
        trips: ir.Value,
        initial: State,
        last: list[Bar],
        divisions: Sequence[int],
    ) -> tuple[list[Bar], Bars]:
        """The reverse of `trips` iterations from number `first` on, which start at `initial`."""
        begin = Term(self.build, first)
        if not divisions:
            return self._backwards(
                trips,
                last,
                lambda offset, bars: self._iteration(
                    (begin + Term(self.build, offset)).value,
                    self._ahead(first, offset, initial),
                    bars,
                ),
            )
        pieces = max(2, min(divisions[0], TAPE_BYTES // max(self.state_bytes, 1)))
        count = Term(self.build, trips)
        length = ((count + (pieces - 1)).call("floor_divide", pieces)).call("maximum", 1)
        # The last ones may be empty; to count the others would take a division that processors do
        # not have for vectors.
        used = count.call("minimum", pieces)

        def start(piece: ir.Value) -> tuple[ir.Value, ir.Value]:
            """The first iteration of a piece, and how many it has."""
            offset = Term(self.build, piece) * length
            return (begin + offset).value, length.call("minimum", count - offset).value

        tape = self._record(
            pieces, used.value, initial, lambda piece, state: self._ahead(*start(piece), state)
        )
        return self._backwards(
            used.value,
            last,
            lambda piece, bars: self._in_pieces(
                *start(piece), self._kept(tape, piece), bars, divisions[1:]
            ),
        )

    # -- forwards --------------------------------------------------------------------------------

    def _bound(self, trip: ir.Value, state: State) -> Scope:
        """A scope for the body in iteration number `trip`."""
        loop, inner = self.loop, self.scope.again()
        parameters = loop.body.parameters
        if isinstance(loop, ir.For):
            start, step = (Term(self.build, self.scope.values[v]) for v in (loop.start, loop.step))
            inner.values[parameters[0]] = (start + Term(self.build, trip) * step).value
            parameters = parameters[1:]
        inner.values.update(zip(parameters, state, strict=True))
        return inner

    def _ahead(self, first: ir.Value, trips: ir.Value, state: State) -> State:
        """What is carried after `trips` more iterations, the next of which has number `first`."""

        def step(trip: ir.Value, state: State) -> State:
            number = (Term(self.build, first) + Term(self.build, trip)).value
            inner = self._bound(number, state)
            self.sweep.replay(self.loop.body.body, inner)
            return tuple(inner.values[value] for value in self.loop.body.yields)

        if self.build.known_integer(trips) == 1:
            return step(self.build.constant(0, ir.i64), state)
        return self._forwards(trips, state, step)

    def _forwards(
        self, trips: ir.Value, state: State, step: Callable[[ir.Value, State], State]
    ) -> State:
        build = self.build
        zero, one = (build.constant(number, ir.i64) for number in (0, 1))
        trip, carried = build.value(ir.i64), self.sweep.fresh(state)
        with build.nested() as block:
            following = step(trip, carried)
        results = self.sweep.fresh(state)
        body = ir.Region((trip, *carried), tuple(block), following)
        build.emit(ir.For(results, zero, trips, one, state, body, line=self.loop.line))
        return results

    def _record(
        self,
        length: int,
        trips: ir.Value,
        initial: State,
        step: Callable[[ir.Value, State], State],
    ) -> list[tuple[str, ir.DType]]:
        """Keep what is carried before each of `trips` steps."""
        tape = [(self.sweep.fresh_array(), value.dtype) for value in initial]
        for array, dtype in tape:
            self.build.emit(ir.LocalArray(array, dtype, (length,)))

        def kept(trip: ir.Value, state: State) -> State:
            for (array, _), value in zip(tape, state, strict=True):
                self.build.emit(ir.Store(array, (trip,), value))
            return step(trip, state)

        self._forwards(trips, initial, kept)
        return tape

    def _kept(self, tape: Sequence[tuple[str, ir.DType]], place: ir.Value) -> State:
        loaded = []
        for array, dtype in tape:
            loaded.append(self.build.value(dtype))
            self.build.emit(ir.Load(loaded[-1], array, (place,)))
        return tuple(loaded)

    # -- backwards -------------------------------------------------------------------------------

    def _iteration(self, trip: ir.Value, state: State, bars: list[Bar]) -> tuple[list[Bar], Bars]:
        """The reverse of one iteration, which starts at `state`."""
        sweep, body = self.sweep, self.loop.body
        inner = self._bound(trip, state)
        sweep.replay(body.body, inner)
        found: Bars = {}
        active = [value for value in body.parameters if value in sweep.activity]
        yields = (
            value
            for value, result in zip(body.yields, self.loop.results, strict=True)
            if result in sweep.activity
        )
        for value, bar in zip(yields, bars, strict=True):
            sweep.add(found, value, bar)
        sweep.sweep(body.body, inner, found)
        before = [found[v] if v in found else sweep.zero(v.dtype) for v in active]
        return before, {value: bar for value, bar in found.items() if value not in active}

    def _backwards(self, trips: ir.Value, last: list[Bar], step: Step) -> tuple[list[Bar], Bars]:
        """A loop from number ``trips - 1`` down to 0 that carries derivatives.

        Derivatives of what its body takes from outside are added up. Conditions under which
        derivatives matter are carried only where there are any, which the body itself may decide.
        """
        has_live = [bar.live is not None for bar in last]
        while True:
            made = self._attempt(trips, last, step, has_live)
            if isinstance(made, tuple):
                return made
            has_live = made

    def _attempt(
        self, trips: ir.Value, last: list[Bar], step: Step, has_live: list[bool]
    ) -> tuple[list[Bar], Bars] | list[bool]:
        """The loop, or which derivatives need conditions where `has_live` names too few."""
        build = self.build
        index = build.value(ir.i64)
        carried = [
            self._fresh(bar.value.dtype, live) for bar, live in zip(last, has_live, strict=True)
        ]
        with build.nested() as block:
            place = Term(build, trips) - 1 - Term(build, index)
            before, found = step(place.value, carried)
            needed = [
                bar.live is not None or had for bar, had in zip(before, has_live, strict=True)
            ]
            if needed != has_live:
                return needed
            sums = {
                value: self._fresh(value.dtype, bar.live is not None)
                for value, bar in found.items()
            }
            following = [
                v
                for bar, live in zip(before, has_live, strict=True)
                for v in self._spread(bar, live)
            ]
            for value, bar in found.items():
                added = build.compute("add", sums[value].value, bar.value)
                following.append(added)
                before_live = sums[value].live
                if before_live is not None and bar.live is not None:
                    following.append(build.compute("bit_or", before_live, bar.live))
        entry = [
            v for bar, live in zip(last, has_live, strict=True) for v in self._spread(bar, live)
        ]
        for value, total in sums.items():
            entry += self._spread(self.sweep.zero(value.dtype), total.live is not None)
        after = [
            self._fresh(bar.value.dtype, bar.live is not None) for bar in (*carried, *sums.values())
        ]
        zero, one = (build.constant(number, ir.i64) for number in (0, 1))
        parameters = (index, *_values((*carried, *sums.values())))
        build.emit(
            ir.For(
                _values(after),
                zero,
                trips,
                one,
                tuple(entry),
                ir.Region(parameters, tuple(block), tuple(following)),
                line=self.loop.line,
            )
        )
        captured = dict(zip(sums, after[len(last) :], strict=True))
        return after[: len(last)], {v: self._if_any(trips, bar) for v, bar in captured.items()}

    def _fresh(self, dtype: ir.DType, with_live: bool) -> Bar:
        live = self.build.value(ir.bool_) if with_live else None
        return Bar(self.build.value(dtype), live)

    def _spread(self, bar: Bar, with_live: bool) -> list[ir.Value]:
        if not with_live:
            return [bar.value]
        return [bar.value, bar.live or self.build.constant(True, ir.bool_)]

    def _if_any(self, trips: ir.Value, bar: Bar) -> Bar:
        """A sum over iterations matters only where there are any."""
        known = self.build.known_integer(trips)
        if bar.live is not None or (known is not None and known > 0):
            return bar
        return Bar(bar.value, Term(self.build, trips).call("greater", 0).value)


def _values(bars: Sequence[Bar]) -> tuple[ir.Value, ...]:
    return tuple(v for bar in bars for v in (bar.value, bar.live) if v is not None)
