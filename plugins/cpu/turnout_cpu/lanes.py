"""How values differ between neighbouring positions of the innermost axis of an iteration space.

Code in explicit vectors (`turnout_cpu.vector_body`) runs several such positions at once, one per
lane. What is the same for all of them is computed once, what counts up with the position needs no
vector where it is an index, and only the rest is held in vectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import chain

from turnout.plugin import ir

from . import vector_math

Loop = ir.For | ir.While


COSTLY = 16
"""Cost of an operation that is a call or a loop, where an addition costs 1."""

_COSTLY = {*vector_math.ARITY, "floor_divide", "remainder", "fmod", "integer_power"}
_DIVISIONS = {"divide", "sqrt", "rsqrt"}


def cost_of_operation(operation: str) -> int:
    """About how many additions of vectors take the time of an operation."""
    if operation in _COSTLY:
        return COSTLY
    return 4 if operation in _DIVISIONS else 1


class Form(Enum):
    """What the lanes hold of one value."""

    UNIFORM = "the same in all lanes that run"
    CONSECUTIVE = "one more in each lane than in the one before"
    VARYING = "anything"


class Forms:
    """The form of every value of a unit, and which loops run until no lane is left.

    A value inside of a branch or a loop is uniform if it is the same in the lanes that are there.

    Parameters
    ----------
    unit : ir.Unit
        A unit with an iteration space.
    position : Form
        That of the innermost position.
    """

    def __init__(self, unit: ir.Unit, position: Form = Form.CONSECUTIVE) -> None:
        # Values that are missing are uniform.
        self._forms = {unit.body.parameters[-1].number: position}
        self._local: set[str] = set()
        self._ones: set[int] = set()
        self._masked: set[int] = set()
        self._statements(chain(unit.prologue, unit.body.body))

    def of(self, value: ir.Value) -> Form:
        """The form of a value."""
        return self._forms.get(value.number, Form.UNIFORM)

    def is_varying(self, value: ir.Value) -> bool:
        """Whether a value is held in a vector."""
        return self.of(value) is Form.VARYING

    def are_uniform(self, values: Iterable[ir.Value]) -> bool:
        """Whether all of the values are the same in all lanes."""
        return all(self.of(value) is Form.UNIFORM for value in values)

    def are_consecutive(self, indices: Sequence[ir.Value]) -> bool:
        """Whether the lanes' elements are neighbours on the last axis of an array."""
        if not indices or not self.are_uniform(indices[:-1]):
            return False
        return self.of(indices[-1]) is Form.CONSECUTIVE

    def is_masked(self, loop: Loop) -> bool:
        """Whether lanes may need different numbers of rounds."""
        return id(loop) in self._masked

    def _statements(self, body: Iterable[ir.Statement]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, statement: ir.Statement) -> None:
        match statement:
            case ir.Constant(result, value) if value == 1:
                self._ones.add(result.number)
            case ir.Compute(result, operation, operands):
                self._forms[result.number] = self._computed(operation, operands)
            case ir.Cast(result, operand):
                is_uniform = self.of(operand) is Form.UNIFORM
                self._forms[result.number] = Form.UNIFORM if is_uniform else Form.VARYING
            case ir.LocalArray(array):
                self._local.add(array)
            case ir.Load(result, array, indices):
                is_uniform = array not in self._local and self.are_uniform(indices)
                self._forms[result.number] = Form.UNIFORM if is_uniform else Form.VARYING
            case ir.If(results, condition) | ir.Switch(results, condition):
                arms = statement.regions
                for arm in arms:
                    self._statements(arm.body)
                if not self.are_uniform([condition]):
                    self._set(results, [Form.VARYING] * len(results))
                    return
                yields = [[self.of(value) for value in arm.yields] for arm in arms]
                self._set(results, [_join(*forms) for forms in zip(*yields, strict=True)])
            case ir.For():
                self._for(statement)
            case ir.While():
                self._while(statement)

    def _set(self, values: Sequence[ir.Value], forms: Sequence[Form]) -> None:
        for value, form in zip(values, forms, strict=True):
            self._forms[value.number] = form

    def _computed(self, operation: str, operands: tuple[ir.Value, ...]) -> Form:
        factors = [operand for operand in operands if operand.number not in self._ones]
        if operation == "multiply" and len(factors) == 1:
            return self.of(factors[0])
        match operation, *(self.of(operand) for operand in operands):
            case "add", Form.CONSECUTIVE, Form.UNIFORM:
                return Form.CONSECUTIVE
            case "add", Form.UNIFORM, Form.CONSECUTIVE:
                return Form.CONSECUTIVE
            case "subtract", Form.CONSECUTIVE, Form.UNIFORM:
                return Form.CONSECUTIVE
        return Form.UNIFORM if self.are_uniform(operands) else Form.VARYING

    def _for(self, loop: ir.For) -> None:
        index, *carried = loop.body.parameters
        # Lanes that take other numbers of rounds still count together from a common start.
        starts = self.of(loop.start) if self.are_uniform([loop.step]) else Form.VARYING
        self._forms[index.number] = starts
        if not self.are_uniform([loop.start, loop.stop, loop.step]):
            self._masked.add(id(loop))
        self._carried(loop, [carried])

    def _while(self, loop: ir.While) -> None:
        self._carried(loop, [loop.condition.parameters, loop.body.parameters])
        if not self.are_uniform(loop.condition.yields):
            self._masked.add(id(loop))
            self._set(loop.results, [Form.VARYING] * len(loop.results))

    def _carried(self, loop: Loop, parameters: Sequence[Sequence[ir.Value]]) -> None:
        """Find the forms of carried values, which depend on themselves."""
        forms, is_stable = [self.of(value) for value in loop.initial], False
        while not is_stable:
            for values in parameters:
                self._set(values, forms)
            for region in loop.regions:
                self._statements(region.body)
            before, forms = forms, self._joined(forms, loop.regions[-1].yields)
            is_stable = forms == before
        # Lanes leave a masked loop with what the values were in their last round.
        self._set(loop.results, [Form.VARYING] * len(forms) if self.is_masked(loop) else forms)

    def _joined(self, forms: Sequence[Form], yields: Sequence[ir.Value]) -> list[Form]:
        pairs = zip(forms, yields, strict=True)
        return [_join(form, self.of(value)) for form, value in pairs]


def _join(*forms: Form) -> Form:
    return forms[0] if len(set(forms)) == 1 else Form.VARYING
