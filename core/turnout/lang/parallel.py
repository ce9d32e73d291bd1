"""Proof that the iterations of a loop are independent, or the reason why that is not known.

A loop is independent when every array that it stores to is accessed only at indices that are
private to the iteration: on one axis, every access has the index ``scale * i + offset`` with one
constant scale, the rest of it the same in all iterations, and offsets of which no two can meet in
different iterations. Nothing is assumed about arrays being distinct: that the memory of a stored
array overlaps no other argument is checked at every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from .. import ir
from ..ir import Value
from ..records import record
from .linear import Linear, linear_form


@record
class Access:
    """One load or store in a loop."""

    array: str
    indices: tuple[Value, ...]
    line: int
    is_store: bool


Kind = Literal[
    "same element",
    "index of another loop",
    "computed index",
    "negative index",
    "other element",
    "perhaps another element",
]


@record
class Dependence:
    """Accesses in which iterations of a loop may meet.

    Attributes
    ----------
    kind : str
        What is known about the index of the store, or of the other access where there is one.
    array : str
    store : Access
        The first store to the array.
    other : Access or None
        What accesses elements that another iteration stores to.
    """

    kind: Kind
    array: str
    store: Access
    other: Access | None = None


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
        self.inner_indices = {
            loop.body.parameters[0].number for loop in inside if isinstance(loop, ir.For)
        }
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
        form = linear_form(value, self._definition)
        leaves = {number for number, _ in form.terms} - {index.number}
        return None if leaves & self.varying else form

    def _definition(self, value: Value) -> ir.Statement | None:
        constant = self.known_integer(value)
        if constant is not None:
            return ir.Constant(value, constant)
        return self.definitions.get(value.number)

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

    def dependence(self) -> Dependence | None:
        """How iterations may depend on each other; None where they do not."""
        for array in self.stored:
            for loop in self.loops:
                if not self._are_private_in((array,), loop):
                    return self._conflict(array, loop)
        return None

    def _axis_is_private(self, indices: list[Value], loop: ir.For) -> bool:
        index = loop.body.parameters[0]
        forms = [self.affine(value, index) for value in indices]
        terms = {form.terms if form else None for form in forms}
        scale = forms[0].coefficient(index.number) if forms[0] else 0
        if len(terms) > 1 or scale == 0:
            return False
        offsets = {form.constant for form in forms if form}
        step = scale * self._stride(loop)
        return all(x == y or (x - y) % step for x in offsets for y in offsets)

    def _stride(self, loop: ir.For) -> int:
        stride = self.known_integer(loop.step)
        return 1 if stride is None else stride

    def _may_wrap(self, value: Value, index: Value) -> bool:
        """Whether an index would be private, were it not for its meaning where it is negative."""
        match self.definitions.get(value.number):
            case ir.Compute(_, "select", (_, _, given)):
                form = self.affine(given, index)
                return form is not None and form.coefficient(index.number) != 0
        return False

    def _is_index_of_inner_loops(self, value: Value) -> bool:
        """Whether an index is made of the variables of loops inside of this one, and constants."""
        form = linear_form(value, self._definition)
        return self.varying.intersection(n for n, _ in form.terms) <= self.inner_indices

    def _conflict(self, array: str, loop: ir.For) -> Dependence:
        """The first access of `array` that is not private to the iteration."""
        index = loop.body.parameters[0]
        accesses = [access for access in self.accesses if access.array == array]
        store = next(access for access in accesses if access.is_store)
        affine = [[self.affine(v, index) for v in a.indices] for a in accesses]
        own = affine[accesses.index(store)]
        if not any(form and form.coefficient(index.number) for form in own):
            if any(self._may_wrap(value, index) for value in store.indices):
                return Dependence("negative index", array, store)
            if all(own):
                return Dependence("same element", array, store)
            if all(self._is_index_of_inner_loops(value) for value in store.indices):
                return Dependence("index of another loop", array, store)
            return Dependence("computed index", array, store)
        for access, forms in zip(accesses, affine, strict=True):
            pairs = [(x, y) for x, y in zip(own, forms, strict=True) if x and y]
            is_shifted = len(pairs) == len(own) and all(x.terms == y.terms for x, y in pairs)
            if not is_shifted:
                return Dependence("perhaps another element", array, store, access)
            steps = [x.coefficient(index.number) * self._stride(loop) for x, _ in pairs]
            apart = [x.constant - y.constant for x, y in pairs]
            if any(apart) and not any(a % s if s else a for a, s in zip(apart, steps, strict=True)):
                return Dependence("other element", array, store, access)
        return Dependence("perhaps another element", array, store)
