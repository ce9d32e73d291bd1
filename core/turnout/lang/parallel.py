"""Proof that the iterations of a loop are independent, or the reason why that is not known.

A loop is independent when every array that it stores to is accessed only at indices that are
private to the iteration: on one axis, every access has the index ``scale * i + offset`` with one
constant scale, the rest of it the same in all iterations, and offsets of which no two can meet in
different iterations. Nothing is assumed about arrays being distinct: that the memory of a stored
array overlaps no other argument is checked at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from .. import ir
from ..ir import Value
from .linear import Linear, linear_form


@dataclass(frozen=True)
class Access:
    """One load or store in a loop."""

    array: str
    indices: tuple[Value, ...]
    line: int
    is_store: bool


class LoopAnalysis:
    """The accesses of a loop body and what is known about their indices.

    Parameters
    ----------
    loops : sequence of For
        A loop, or the loops of a perfect nest.
    body : iterable of Statement
        The body of the innermost of them.
    known_integer : callable
        The constant that a value is, or None.
    """

    def __init__(
        self,
        loops: Sequence[ir.For],
        body: Iterable[ir.Statement],
        known_integer: Callable[[Value], int | None],
    ) -> None:
        self.loops = loops
        self.known_integer = known_integer
        inside = list(ir.statements(body))
        self.definitions = {
            result.number: statement for statement in inside for result in statement.results
        }
        self.varying = set(self.definitions)
        self.varying.update(loop.body.parameters[0].number for loop in loops)
        for statement in inside:
            for region in statement.regions:
                self.varying.update(value.number for value in region.parameters)
        self.locals = {s.array for s in inside if isinstance(s, ir.LocalArray)}
        self.accesses = [
            Access(s.array, s.indices, s.line, isinstance(s, ir.Store))
            for s in inside
            if isinstance(s, ir.Load | ir.Store) and s.array not in self.locals
        ]

    @property
    def stored(self) -> list[str]:
        """Arrays that the loop stores to, in order of their first store."""
        return list(dict.fromkeys(access.array for access in self.accesses if access.is_store))

    def affine(self, value: Value, index: Value) -> Linear | None:
        """`value` as ``scale * index`` plus what all iterations share, or None."""

        def definition(value: Value) -> ir.Statement | None:
            constant = self.known_integer(value)
            if constant is not None:
                return ir.Constant(value, constant)
            return self.definitions.get(value.number)

        form = linear_form(value, definition)
        leaves = {number for number, _ in form.terms} - {index.number}
        return None if leaves & self.varying else form

    def are_private(self, arrays: Sequence[str]) -> bool:
        """Whether no two iterations meet in `arrays`, taken as one and the same array."""
        return all(self._are_private_in(arrays, loop) for loop in self.loops)

    def _are_private_in(self, arrays: Sequence[str], loop: ir.For) -> bool:
        accesses = [access for access in self.accesses if access.array in arrays]
        rank = len(accesses[0].indices)
        return any(
            self._axis_is_private([access.indices[axis] for access in accesses], loop)
            for axis in range(rank)
        )

    def dependence(self) -> str:
        """Why iterations may depend on each other; "" where they do not."""
        for array in self.stored:
            for loop in self.loops:
                if not self._are_private_in((array,), loop):
                    return self._why_shared(array, loop.body.parameters[0])
        return ""

    def _axis_is_private(self, indices: list[Value], loop: ir.For) -> bool:
        index = loop.body.parameters[0]
        stride = self.known_integer(loop.step)
        stride = 1 if stride is None else stride
        forms = [self.affine(value, index) for value in indices]
        terms = {form.terms if form else None for form in forms}
        scale = forms[0].coefficient(index.number) if forms[0] else 0
        if len(terms) > 1 or scale == 0:
            return False
        offsets = {form.constant for form in forms if form}
        return all(x == y or (x - y) % (scale * stride) for x in offsets for y in offsets)

    def _may_wrap(self, value: Value, index: Value) -> bool:
        """Whether an index would be private, were it not for its meaning where it is negative."""
        match self.definitions.get(value.number):
            case ir.Compute(_, "select", (_, _, given)):
                form = self.affine(given, index)
                return form is not None and form.coefficient(index.number) != 0
        return False

    def _why_shared(self, array: str, index: Value) -> str:
        """Words for the first access of `array` that is not private to the iteration."""
        accesses = [access for access in self.accesses if access.array == array]
        store = next(access for access in accesses if access.is_store)
        affine = [[self.affine(v, index) for v in a.indices] for a in accesses]
        own = affine[accesses.index(store)]
        if not any(form and form.coefficient(index.number) for form in own):
            how = "at an index that is not a constant multiple of the loop variable plus a constant"
            if any(self._may_wrap(value, index) for value in store.indices):
                how = (
                    "at an index that may be negative, which counts from the end; "
                    "write max(..., 0) for a bound that is not"
                )
            return f"{array!r} is stored to at line {store.line} {how}"
        for access, forms in zip(accesses, affine, strict=True):
            if forms != own:
                verb = "stored to" if access.is_store else "read"
                return (
                    f"{array!r} is stored to at line {store.line} and {verb} at line {access.line} "
                    "at an index that may belong to another iteration"
                )
        return f"{array!r} is stored to at line {store.line} by several iterations"
