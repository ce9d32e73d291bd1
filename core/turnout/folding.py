"""Code of a unit with what is known of it put in: constants folded, short loops written out.

A `Folder` goes through statements in the order in which they run and writes them anew. What it
knows of a value is a literal, or another value that holds the same. So exact operations on literals
become literals, branches on them the branch that is taken, loops with few rounds the statements of
these rounds; what was computed or loaded before is not computed or loaded again, and private arrays
that are only indexed by literals vanish. The order of operations on floats stays as it is, and with
it every bit of the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from . import ir
from .ir.transform import fresh_values, with_regions

MOST_STATEMENTS = 4096
"""Statements of a unit above which no loop is written out any more."""

MOST_ROUNDS = 64
"""Rounds of a loop that is written out."""

MOST_INDEPENDENT_ROUNDS = 16
"""The same of a loop whose rounds are independent, which compilers turn into vectors."""

MOST_FOLLOWED_ELEMENTS = 1024
"""Elements of a private array up to which it is followed what each of them holds."""

Literal = int | float | bool
Element = tuple[str, tuple[int, ...]]
"""An element of an array: the numbers of the values that index it."""


class _TooLargeError(Exception):
    """The statements of a loop become too many."""


class Folder:
    """Rewrites the statements of one unit.

    Parameters
    ----------
    unit : Unit
    shapes : mapping of str to tuple of int or None
        Lengths of axes of array parameters.
    scalars : mapping of str to literal
        What scalar parameters are; each in the range of its type.
    apart : collection of pairs of str
        Array parameters that share no memory.
    alike : collection of pairs of str
        Array parameters that share no memory, or lie on each other element by element.
    """

    def __init__(
        self,
        unit: ir.Unit,
        shapes: Mapping[str, tuple[int | None, ...]],
        scalars: Mapping[str, Literal],
        apart: Iterable[tuple[str, str]] = (),
        alike: Iterable[tuple[str, str]] = (),
    ) -> None:
        self.fresh = fresh_values(unit)
        self.shapes = shapes
        self.parameters = set(unit.arrays)
        self.apart = {frozenset(pair) for pair in apart}
        self.alike = {frozenset(pair) for pair in alike}
        self.constants: list[ir.Constant] = []
        """Literals that statements use and nobody has defined yet."""
        self.locals: dict[str, tuple[int, ...]] = {}
        """The private arrays that are declared so far, with their shapes."""
        self._literals: dict[int, Literal] = {}
        self._shared_constants: dict[tuple[ir.DType, str], ir.Value] = {}
        self._values: dict[int, ir.Value] = {}
        self._computed: dict[tuple[object, ...], ir.Value] = {}
        self._elements: dict[Element, ir.Value] = {}
        self._names: dict[str, str] = {}
        self._copies = 0
        self._count = 0
        self._limit = MOST_STATEMENTS
        for parameter in unit.parameters:
            if isinstance(parameter, ir.ScalarParameter) and parameter.name in scalars:
                literal = self.constant(scalars[parameter.name], parameter.dtype)
                self._values[parameter.value.number] = literal

    # -- values ----------------------------------------------------------------------------------

    def constant(self, value: Literal, dtype: ir.DType) -> ir.Value:
        """The one value that holds a literal of a type."""
        key = (dtype, repr(value))
        found = self._shared_constants.get(key)
        if found is None:
            found = self._shared_constants[key] = self.fresh(dtype)
            self._literals[found.number] = value
            self.constants.append(ir.Constant(found, value))
        return found

    def value(self, value: ir.Value) -> ir.Value:
        """What holds `value` in the new code."""
        return self._values.get(value.number, value)

    def values(self, values: Iterable[ir.Value]) -> tuple[ir.Value, ...]:
        """What holds each of `values` in the new code."""
        return tuple(map(self.value, values))

    def literal(self, value: ir.Value) -> Literal | None:
        """What a value of the new code is known to be."""
        return self._literals.get(value.number)

    def define(self, value: ir.Value) -> ir.Value:
        """A value of the new code that nothing is known of, for one of the old code."""
        new = self.fresh(value.dtype) if self._copies else value
        self._values[value.number] = new
        return new

    # -- statements ------------------------------------------------------------------------------

    def block(self, body: Iterable[ir.Statement]) -> list[ir.Statement]:
        """The statements that take the place of `body`."""
        written: list[ir.Statement] = []
        for statement in body:
            for new in self.statement(statement):
                written.append(new)
                self._count += 1
                if self._copies and self._count > self._limit:
                    raise _TooLargeError
        return written

    def region(self, region: ir.Region) -> ir.Region:
        """A region that may run or not, so that nothing it learns holds after it."""
        computed, elements = dict(self._computed), dict(self._elements)
        parameters = tuple(map(self.define, region.parameters))
        body = tuple(self.block(region.body))
        new = ir.Region(parameters, body, self.values(region.yields))
        self._computed, self._elements = computed, elements
        return new

    def statement(self, statement: ir.Statement) -> Iterable[ir.Statement]:
        match statement:
            case ir.Constant(result, value):
                self._values[result.number] = self.constant(value, result.dtype)
                return ()
            case ir.Extent(result, array, axis):
                return self._extent(statement, result, array, axis)
            case ir.Compute(result, operation, operands):
                return self._compute(result, operation, self.values(operands))
            case ir.Cast(result, operand):
                return self._cast(result, self.value(operand))
            case ir.LocalArray():
                return self._local_array(statement)
            case ir.Load(result, array, indices):
                return self._load(statement, result, self._name(array), self.values(indices))
            case ir.Store(array, indices, value):
                return self._store(
                    statement, self._name(array), self.values(indices), self.value(value)
                )
            case ir.If(results, condition, then, otherwise):
                known = self.literal(self.value(condition))
                if known is not None:
                    return self._inlined(then if known else otherwise, results)
            case ir.Switch(results, selector, arms):
                known = self.literal(self.value(selector))
                if known is not None:
                    return self._inlined(arms[max(0, min(int(known), len(arms) - 1))], results)
            case ir.For():
                return self._for(statement)
        return self._nested(statement)

    def _same(self, result: ir.Value, value: ir.Value) -> tuple[()]:
        self._values[result.number] = value
        return ()

    def _pure(
        self, result: ir.Value, key: tuple[object, ...], make: Callable[[ir.Value], ir.Statement]
    ) -> Iterable[ir.Statement]:
        """A statement that computes what `key` says, unless that was computed before."""
        if key in self._computed:
            return self._same(result, self._computed[key])
        new = self.define(result)
        self._computed[key] = new
        return (make(new),)

    def _extent(
        self, statement: ir.Extent, result: ir.Value, array: str, axis: int
    ) -> Iterable[ir.Statement]:
        shape = self.shapes.get(array) or self.locals.get(array, ())
        length = shape[axis] if shape else None
        if length is not None:
            return self._same(result, self.constant(length, ir.i64))
        key = ("extent", array, axis)
        return self._pure(result, key, lambda new: replace(statement, result=new))

    def _compute(
        self, result: ir.Value, operation: str, operands: tuple[ir.Value, ...]
    ) -> Iterable[ir.Statement]:
        known = [self.literal(operand) for operand in operands]
        if operation == "select" and known[0] is not None:
            return self._same(result, operands[1] if known[0] else operands[2])
        literal = _evaluated(operation, operands, known, result.dtype)
        if literal is not None:
            return self._same(result, self.constant(literal, result.dtype))
        simpler = self._simplified(operation, operands, known)
        if simpler is not None:
            return self._same(result, simpler)
        key = (operation, *(operand.number for operand in operands))
        return self._pure(result, key, lambda new: ir.Compute(new, operation, operands))

    def _simplified(
        self, operation: str, operands: tuple[ir.Value, ...], known: Sequence[Literal | None]
    ) -> ir.Value | None:
        """What an operation on integers or bools gives where one operand decides that."""
        if len(operands) != 2 or operands[1].dtype.is_float:
            return None
        left, right = operands
        kind = "bool" if right.dtype.is_bool else "integer"
        if (kind, operation, known[1]) in _NEUTRAL_ON_THE_RIGHT:
            return left
        for literal, own, other in ((known[0], left, right), (known[1], right, left)):
            if (kind, operation, literal) in _NEUTRAL:
                return other
            if (kind, operation, literal) in _ABSORBING:
                return own
        return None

    def _cast(self, result: ir.Value, operand: ir.Value) -> Iterable[ir.Statement]:
        known = self.literal(operand)
        if known is not None:
            with np.errstate(all="ignore"):
                converted = ir.convert(operand.dtype(known), result.dtype)
            return self._same(result, self.constant(converted.item(), result.dtype))
        key = ("cast", operand.number, result.dtype)
        return self._pure(result, key, lambda new: ir.Cast(new, operand))

    # -- memory ----------------------------------------------------------------------------------

    def _name(self, array: str) -> str:
        return self._names.get(array, array)

    def _local_array(self, statement: ir.LocalArray) -> Iterable[ir.Statement]:
        array = statement.array
        while array in self.locals or array in self.parameters:
            array += "_"
        self._names[statement.array] = array
        self.locals[array] = statement.shape
        for element in [element for element in self._elements if element[0] == array]:
            del self._elements[element]
        if math.prod(statement.shape) <= MOST_FOLLOWED_ELEMENTS:
            zero = self.constant(_zero(statement.dtype), statement.dtype)
            for index in np.ndindex(*statement.shape):
                numbers = [self.constant(at, ir.i64).number for at in index]
                self._elements[array, tuple(numbers)] = zero
        return (replace(statement, array=array),)

    def _load(
        self, statement: ir.Load, result: ir.Value, array: str, indices: tuple[ir.Value, ...]
    ) -> Iterable[ir.Statement]:
        element = element_of(array, indices)
        if element in self._elements:
            return self._same(result, self._elements[element])
        new = self._elements[element] = self.define(result)
        return (replace(statement, array=array, result=new, indices=indices),)

    def _store(
        self, statement: ir.Store, array: str, indices: tuple[ir.Value, ...], value: ir.Value
    ) -> Iterable[ir.Statement]:
        element = element_of(array, indices)
        self._forget(lambda other: self.may_meet(element, other))
        if statement.combine is None:
            self._elements[element] = value
        return (replace(statement, array=array, indices=indices, value=value),)

    def _forget(self, is_changed: Callable[[Element], bool]) -> None:
        self._elements = {
            element: value for element, value in self._elements.items() if not is_changed(element)
        }

    def may_meet(self, stored: Element, other: Element) -> bool:
        """Whether a store to one element may change another one, or is to the same."""
        if not self._may_overlap(stored[0], other[0]):
            return False
        pair = frozenset((stored[0], other[0]))
        if len(pair) == 2 and pair not in self.alike:
            return True
        return not any(
            x != y and x in self._literals and y in self._literals
            for x, y in zip(stored[1], other[1], strict=True)
        )

    def _may_overlap(self, first: str, second: str) -> bool:
        if first == second:
            return True
        if first in self.locals or second in self.locals:
            return False
        return frozenset((first, second)) not in self.apart

    def _forget_stores_in(self, regions: Iterable[ir.Region]) -> None:
        stored = {
            self._name(statement.array)
            for region in regions
            for statement in ir.statements(region.body)
            if isinstance(statement, ir.Store)
        }
        if stored:
            self._forget(lambda other: any(self._may_overlap(each, other[0]) for each in stored))

    # -- control flow ----------------------------------------------------------------------------

    def _inlined(self, region: ir.Region, results: Sequence[ir.Value]) -> Iterable[ir.Statement]:
        body = self.block(region.body)
        self._count -= len(body)  # whoever takes them counts them
        for result, value in zip(results, self.values(region.yields), strict=True):
            self._values[result.number] = value
        return body

    def _nested(self, statement: ir.Statement) -> Iterable[ir.Statement]:
        """A statement with regions that stay regions."""
        if isinstance(statement, ir.For | ir.While):
            self._forget_stores_in(statement.regions)  # a round sees what those before it stored
        names = {each: self.value(each) for each in statement.operands}
        regions = [self.region(region) for region in statement.regions]
        self._forget_stores_in(statement.regions)
        names |= {each: self.define(each) for each in statement.results}
        bare = with_regions(statement, [ir.Region((), ()) for _ in regions])
        (renamed,) = ir.rename([bare], names)
        return (with_regions(renamed, regions),)

    def _for(self, loop: ir.For) -> Iterable[ir.Statement]:
        bounds = [self.literal(self.value(each)) for each in (loop.start, loop.stop, loop.step)]
        if any(bound is None for bound in bounds):
            return self._nested(loop)
        start, stop, step = (int(bound or 0) for bound in bounds)
        rounds = range(start, stop, step) if step else range(0)
        if not _pays(loop, len(rounds)):
            return self._nested(loop)
        before = self._state()
        try:
            return self._written_out(loop, rounds)
        except _TooLargeError:
            self._restore(before)
            if self._copies:
                raise  # what is around it is written out, and too large with this loop as it is
            return self._nested(loop)

    def _written_out(self, loop: ir.For, rounds: range) -> list[ir.Statement]:
        index, *carried = loop.body.parameters
        values = self.values(loop.initial)
        written: list[ir.Statement] = []
        with self._copying():
            for position in rounds:
                self._values[index.number] = self.constant(position, ir.i64)
                self._values.update(zip((each.number for each in carried), values, strict=True))
                written += self.block(loop.body.body)
                values = self.values(loop.body.yields)
        self._count -= len(written)  # whoever takes them counts them
        self._values.update(zip((each.number for each in loop.results), values, strict=True))
        return written

    @contextmanager
    def _copying(self) -> Iterator[None]:
        self._copies += 1
        try:
            yield
        finally:
            self._copies -= 1

    def _state(self) -> tuple[Any, ...]:
        return (
            self._computed.copy(),
            self._elements.copy(),
            self._names.copy(),
            self.locals.copy(),
            self._count,
        )

    def _restore(self, state: tuple[Any, ...]) -> None:
        self._computed, self._elements, self._names, self.locals, self._count = state


def _pays(loop: ir.For, rounds: int) -> bool:
    """Whether to write a loop out, as far as that does not depend on what becomes of its rounds."""
    if rounds <= 1:
        return True
    if any(isinstance(statement, ir.Dispatch) for statement in ir.statements(loop.body.body)):
        return False  # policies and counters know a dispatch by its name
    return rounds <= (MOST_INDEPENDENT_ROUNDS if loop.independent else MOST_ROUNDS)


def element_of(array: str, indices: Iterable[ir.Value]) -> Element:
    """What tells one element of an array from others."""
    return array, tuple(index.number for index in indices)


def _zero(dtype: ir.DType) -> Literal:
    return False if dtype.is_bool else 0.0 if dtype.is_float else 0


def _evaluated(
    operation: str,
    operands: Sequence[ir.Value],
    known: Sequence[Literal | None],
    dtype: ir.DType,
) -> Literal | None:
    """The result of an operation on literals, None where that is not the same everywhere."""
    row = ir.OPERATIONS[operation]
    if None in known or not row.is_exact:
        return None
    arrays = [np.array([v], operand.dtype) for v, operand in zip(known, operands, strict=True)]
    with np.errstate(all="ignore"):
        result = np.asarray(row.evaluate(*arrays), dtype)[0]
    # Literals have one NaN, processors have several.
    return None if result != result else result.item()


_NEUTRAL = {
    ("integer", "add", 0), ("integer", "multiply", 1), ("integer", "bit_or", 0),
    ("integer", "bit_xor", 0), ("bool", "bit_and", True), ("bool", "bit_or", False),
    ("bool", "bit_xor", False),
}  # fmt: skip
"""Kind, operation and literal: with it the operation gives the other operand."""

_NEUTRAL_ON_THE_RIGHT = {
    ("integer", "subtract", 0), ("integer", "floor_divide", 1), ("integer", "shift_left", 0),
    ("integer", "shift_right", 0),
}  # fmt: skip

_ABSORBING = {
    ("integer", "multiply", 0), ("integer", "bit_and", 0), ("bool", "bit_and", False),
    ("bool", "bit_or", True),
}  # fmt: skip
"""The same: the operation gives the literal."""
