"""Whether a loop whose iterations are independent may be declared parallel to LLVM.

Positions of the iteration space, and iterations of an ``independent`` loop, may run in any order.
So LLVM need not look for dependences between them, and nothing has to be proven about aliasing:
``llvm.loop.parallel_accesses`` says so. But for such a loop LLVM keeps no record of dependences
*inside* one iteration either, and when it combines accesses of a constant stride of two elements or
more (``a[2 * i]`` with ``a[2 * i + 1]``) it moves loads up to the first and stores down to the last
of them, past accesses that stand between. Where that could change what one iteration sees, the loop
is not declared parallel; LLVM then vectorises it with run-time checks of its own.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from turnout.plugin import ir, statements

LINE_BYTES = 64
"""What processors move between memory and caches at once, or more."""


def may_declare_parallel(
    body: ir.Region,
    arrays: Collection[str],
    dense: Collection[str] = (),
    counters: Collection[str] = (),
) -> bool:
    """Whether ``llvm.loop.parallel_accesses`` keeps the meaning of a loop.

    Parameters
    ----------
    body : ir.Region
        The body of loops whose iterations are independent; its parameters count them.
    arrays : collection of str
        Names of the array parameters; local arrays are never declared.
    dense : collection of str
        Those of them that have the strides of `dense_strides`.
    counters : collection of str
        Arrays to which counts are added after the loops (`turnout_cpu.counters`).
    """
    if has_atomic_updates(body, counters):
        return False
    stored = movable_store = False
    for access in _Indices(body, arrays, dense).accesses(body):
        if movable_store or (access.is_movable and stored and not access.is_store):
            return False
        stored = stored or access.is_store
        movable_store = access.is_store and access.is_movable
    return True


def dense_strides(array: ir.ArrayParameter) -> tuple[int, ...]:
    """Bytes per step on each axis of an array without gaps, where its shape tells them.

    Empty for arrays of one axis, and where more than the first length is open.
    """
    inner = array.shape[1:]
    if not inner or None in inner:
        return ()
    strides = [array.dtype.itemsize]
    for length in reversed(inner):
        strides.insert(0, strides[0] * (length or 0))
    return tuple(strides)


def has_neighbours_along(unit: ir.Unit, axis: int) -> bool:
    """Whether elements that are neighbours in memory belong to neighbours on an axis."""
    varying = {unit.body.parameters[axis].number}
    for statement in statements(unit.body.body):
        if isinstance(statement, ir.Load | ir.Store):
            if statement.indices and statement.indices[-1].number in varying:
                return True
        elif not varying.isdisjoint(operand.number for operand in statement.operands):
            varying |= {result.number for result in statement.results}
    return False


def bytes_per_position(unit: ir.Unit) -> dict[str, int]:
    """By array, the bytes from one position to the next, where vectors would gather from it.

    That is where each position has a piece of its own of an array of known shape, no smaller than a
    line of the caches, and runs through without loops, so that LLVM makes vectors of positions.
    Empty where there is no such array.
    """
    if len(unit.extents) != 1:
        return {}
    position = unit.body.parameters[0].number
    steps: dict[str, int] = {}
    for statement in statements(unit.body.body):
        if isinstance(statement, ir.For | ir.While):
            return {}
        if isinstance(statement, ir.Load | ir.Store) and statement.array in unit.arrays:
            strides = dense_strides(unit.arrays[statement.array])
            if strides and strides[0] >= LINE_BYTES and statement.indices[0].number == position:
                steps[statement.array] = strides[0]
    return steps


def has_atomic_updates(body: ir.Region, counters: Collection[str] = ()) -> bool:
    """Whether iterations update elements that they share, other than those of private counters."""
    return any(
        isinstance(statement, ir.Store)
        and statement.combine is not None
        and statement.array not in counters
        for statement in statements(body.body)
    )


def local_bytes(body: ir.Region) -> int:
    """How much memory the local arrays of one position take."""
    arrays = (each for each in statements(body.body) if isinstance(each, ir.LocalArray))
    return sum(math.prod(each.shape) * each.dtype.itemsize for each in arrays)


def has_guarded_bytes(body: ir.Region) -> bool:
    """Whether one-byte elements are accessed under a condition, which LLVM gets wrong with AVX-512.

    LLVM 22 runs such an access on 8 of the 16 lanes of a register, under a mask whose upper half it
    has to clear. Where it spills that mask, for example around the call of a math function, it
    saves the mask from before the clearing (it takes the clearing ``kmovb`` for a plain copy), and
    8 bytes beyond the vector are written. Without AVX512DQ, which brings ``kmovb``, LLVM clears the
    mask by shifts, and keeps the result.
    """

    def has_bytes(region: ir.Region, is_guarded: bool) -> bool:
        for statement in region.body:
            element = _element_type(statement)
            if is_guarded and element is not None and element.bits == 8:
                return True
            guards = is_guarded or isinstance(statement, ir.If | ir.Switch)
            if any(has_bytes(inner, guards) for inner in statement.regions):
                return True
        return False

    return has_bytes(body, False)


def _element_type(statement: ir.Statement) -> ir.DType | None:
    match statement:
        case ir.Load(result):
            return result.dtype
        case ir.Store(value=value):
            return value.dtype
    return None


@dataclass(frozen=True)
class _Access:
    is_store: bool
    is_movable: bool


class _Indices:
    """Knows how values change from one iteration to the next."""

    def __init__(
        self, body: ir.Region, arrays: Collection[str], dense: Collection[str] = ()
    ) -> None:
        self.arrays = arrays
        self.dense = dense
        # Numbers of the values that change; those in `advancing` do so by one.
        self.advancing = {value.number for value in body.parameters}
        self.varying = set(self.advancing)

    def accesses(self, region: ir.Region) -> Iterator[_Access]:
        """The accesses to arrays in the order of the text, those of inner loops twice."""
        for statement in region.body:
            match statement:
                case ir.Load(_, array, indices) | ir.Store(array, indices) if array in self.arrays:
                    is_store = isinstance(statement, ir.Store)
                    yield _Access(is_store, self.has_constant_stride(array, indices))
            self.learn(statement)
            rounds = 2 if isinstance(statement, ir.For | ir.While) else 1
            for inner in statement.regions * rounds:
                yield from self.accesses(inner)

    def has_constant_stride(self, array: str, indices: tuple[ir.Value, ...]) -> bool:
        """Whether LLVM might find a constant stride of several elements."""
        # The strides of all axes but the last one are known at run time only, as a rule.
        if array in self.dense and self.changes(index.number for index in indices[:-1]):
            return True
        last = {index.number for index in indices[-1:]}
        return self.changes(last) and not last <= self.advancing

    def changes(self, numbers: Iterable[int]) -> bool:
        return not self.varying.isdisjoint(numbers)

    def learn(self, statement: ir.Statement) -> None:
        """Note which of the values that `statement` defines change, and how."""
        operands = {operand.number for operand in statement.operands}
        results = {result.number for result in statement.results}
        match statement:
            case ir.Constant() | ir.Compute() | ir.Cast() | ir.Extent():
                if not self.changes(operands):
                    return
                varying = operands & self.varying
                shifts = getattr(statement, "operation", "") in ("add", "subtract")
                if shifts and len(varying) < len(operands) and varying <= self.advancing:
                    self.advancing |= results
            case ir.For(start=start, stop=stop, step=step):
                index, *carried = statement.body.parameters
                results |= {value.number for value in carried}
                if self.changes({start.number, stop.number, step.number}):
                    results.add(index.number)
            case _:
                for region in statement.regions:
                    results |= {value.number for value in region.parameters}
        self.varying |= results
