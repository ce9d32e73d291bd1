"""Integer values as linear combinations of others: what bounds and independence are proven with."""

from __future__ import annotations

from collections.abc import Callable

from .. import ir
from ..ir import Value, i64
from ..records import record

_MAXIMUM_DEPTH = 24


@record
class Linear:
    """``sum(coefficient * value) + constant``; `terms` hold numbers of values and coefficients."""

    terms: tuple[tuple[int, int], ...] = ()
    constant: int = 0

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """Add `factor` times the other."""
        terms = dict(self.terms)
        for number, coefficient in other.terms:
            terms[number] = terms.get(number, 0) + factor * coefficient
        kept = tuple(sorted((n, c) for n, c in terms.items() if c))
        return Linear(kept, self.constant + factor * other.constant)

    def coefficient(self, number: int) -> int:
        """The coefficient of a value."""
        return dict(self.terms).get(number, 0)

    def without(self, number: int) -> Linear:
        """Leave out the term of a value."""
        return Linear(tuple(t for t in self.terms if t[0] != number), self.constant)


def linear_form(
    value: Value, definition: Callable[[Value], ir.Statement | None], depth: int = _MAXIMUM_DEPTH
) -> Linear:
    """`value` in terms of values that `definition` does not define, or not linearly."""
    leaf = Linear(((value.number, 1),))
    if depth == 0:
        return leaf
    match definition(value):
        case ir.Constant(_, constant) if type(constant) is int:
            return Linear((), constant)
        case ir.Cast(result, operand) if result.dtype is i64 and operand.dtype.is_integer:
            return linear_form(operand, definition, depth - 1)
        case ir.Compute(result, ("add" | "subtract" | "multiply") as operation, operands) if (
            result.dtype is i64
        ):
            left, right = (linear_form(side, definition, depth - 1) for side in operands)
            if operation != "multiply":
                return left.plus(right, 1 if operation == "add" else -1)
            for factor, other in ((left, right), (right, left)):
                if not factor.terms:
                    return Linear().plus(other, factor.constant)
    return leaf
