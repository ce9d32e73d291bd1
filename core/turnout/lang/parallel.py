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


@dataclass(frozen=True)
class Affine:
    """``scale * i + sum(coefficient * value) + constant`` of one loop variable i."""

    scale: int
    terms: tuple[tuple[int, int], ...]
    constant: int

    def plus(self, other: Affine, sign: int) -> Affine:
        terms = dict(self.terms)
        for number, coefficient in other.terms:
            terms[number] = terms.get(number, 0) + sign * coefficient
        kept = tuple(sorted((n, c) for n, c in terms.items() if c))
        return Affine(self.scale + sign * other.scale, kept, self.constant + sign * other.constant)

    def times(self, factor: int) -> Affine:
        terms = tuple((n, c * factor) for n, c in self.terms if factor)
        return Affine(self.scale * factor, terms, self.constant * factor)


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

    def affine(self, value: Value, index: Value, constants: dict[int, int]) -> Affine | None:
        """`value` as an affine function of the loop variable `index`, or None."""
        if value.number == index.number:
            return Affine(1, (), 0)
        if value.number in constants:
            return Affine(0, (), constants[value.number])
        if value.number not in self.varying:
            return Affine(0, ((value.number, 1),), 0)
        match self.definitions.get(value.number):
            case ir.Constant(_, constant):
                return Affine(0, (), int(constant))
            case ir.Cast(result, operand) if result.dtype is ir.i64 and operand.dtype.is_integer:
                # Widening keeps the value; u64 to i64 wraps only where the index is out of range.
                return self.affine(operand, index, constants)
            case ir.Compute(_, ("add" | "subtract") as operation, (left, right)):
                sides = [self.affine(side, index, constants) for side in (left, right)]
                if sides[0] is None or sides[1] is None:
                    return None
                return sides[0].plus(sides[1], 1 if operation == "add" else -1)
            case ir.Compute(_, "multiply", (left, right)):
                sides = [self.affine(side, index, constants) for side in (left, right)]
                for factor, other in (sides, reversed(sides)):
                    is_constant = factor is not None and not factor.scale and not factor.terms
                    if is_constant and factor is not None and other is not None:
                        return other.times(factor.constant)
        return None

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
        first = forms[0]
        if first is None or first.scale == 0:
            return False
        if any(f is None or (f.scale, f.terms) != (first.scale, first.terms) for f in forms):
            return False
        offsets = {form.constant for form in forms if form is not None}
        distance = abs(first.scale * stride)
        return all(x == y or (x - y) % distance for x in offsets for y in offsets)

    def why_shared(self, array: str, index: Value, constants: dict[int, int]) -> str:
        """Words for the first access of `array` that is not private to the iteration."""
        accesses = [access for access in self.accesses if access.array == array]
        store = next(access for access in accesses if access.is_store)
        affine = [[self.affine(v, index, constants) for v in a.indices] for a in accesses]
        own = affine[accesses.index(store)]
        if not any(form is not None and form.scale for form in own):
            return (
                f"{array!r} is stored to at line {store.line} at an index that is not a constant "
                "multiple of the loop variable plus a constant"
            )
        for access, forms in zip(accesses, affine, strict=True):
            if forms != own:
                verb = "stored to" if access.is_store else "read"
                return (
                    f"{array!r} is stored to at line {store.line} and {verb} at line {access.line} "
                    "at an index that may belong to another iteration"
                )
        return f"{array!r} is stored to at line {store.line} by several iterations"
