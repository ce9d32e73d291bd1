"""Proof that the iterations of a loop are independent, or the reason why that is not known.

A loop is independent when every array that it stores to is accessed only at indices that are
private to the iteration: on one axis, every access has the index ``scale * i + offset`` with one
constant scale, the rest of it the same in all iterations, and offsets of which no two can meet in
different iterations. Nothing is assumed about arrays being distinct: that the memory of a stored
array overlaps no other argument is checked at every call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
    body : iterable of Statement
        The body of the loop, or of the innermost loop of a perfect nest.
    inside : iterable of Statement
        Every statement that is run per iteration; values that they define vary.
    """

    def __init__(self, body: Iterable[ir.Statement]) -> None:
        inside = list(ir.statements(body))
        self.definitions = {
            result.number: statement for statement in inside for result in statement.results
        }
        self.varying = set(self.definitions)
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

    def affine(self, value: Value, index: Value, constants: dict[int, int]) -> Linear | None:
        """`value` as ``scale * index`` plus what all iterations share, or None."""

        def definition(value: Value) -> ir.Statement | None:
            if value.number in constants:
                return ir.Constant(value, constants[value.number])
            return self.definitions.get(value.number)

        form = linear_form(value, definition)
        leaves = {number for number, _ in form.terms} - {index.number}
        return None if leaves & self.varying else form

    def is_private(
        self, arrays: Sequence[str], index: Value, stride: int, constants: dict[int, int]
    ) -> bool:
        """Whether no two iterations meet in `arrays`, taken as one and the same array."""
        accesses = [access for access in self.accesses if access.array in arrays]
        rank = len(accesses[0].indices)
        return any(
            self._axis_is_private(
                [access.indices[axis] for access in accesses], index, stride, constants
            )
            for axis in range(rank)
        )

    def _axis_is_private(
        self, indices: list[Value], index: Value, stride: int, constants: dict[int, int]
    ) -> bool:
        forms = [self.affine(value, index, constants) for value in indices]
        terms = {form.terms if form else None for form in forms}
        scale = forms[0].coefficient(index.number) if forms[0] else 0
        if len(terms) > 1 or scale == 0:
            return False
        offsets = {form.constant for form in forms if form}
        return all(x == y or (x - y) % (scale * stride) for x in offsets for y in offsets)

    def _may_wrap(self, value: Value, index: Value, constants: dict[int, int]) -> bool:
        """Whether an index would be private, were it not for its meaning where it is negative."""
        match self.definitions.get(value.number):
            case ir.Compute(_, "select", (_, _, given)):
                form = self.affine(given, index, constants)
                return form is not None and form.coefficient(index.number) != 0
        return False

    def why_shared(self, array: str, index: Value, constants: dict[int, int]) -> str:
        """Words for the first access of `array` that is not private to the iteration."""
        accesses = [access for access in self.accesses if access.array == array]
        store = next(access for access in accesses if access.is_store)
        affine = [[self.affine(v, index, constants) for v in a.indices] for a in accesses]
        own = affine[accesses.index(store)]
        if not any(form and form.coefficient(index.number) for form in own):
            how = "at an index that is not a constant multiple of the loop variable plus a constant"
            if any(self._may_wrap(value, index, constants) for value in store.indices):
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
