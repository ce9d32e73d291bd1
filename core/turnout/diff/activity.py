"""Which values of a unit depend on the inputs whose derivatives are asked for."""

from __future__ import annotations

from collections.abc import Iterable

from .. import ir
from .partials import is_differentiable


class Activity:
    """The values that carry derivatives, and the local arrays that hold such values.

    Parameters
    ----------
    body : iterable of Statement
    arrays : iterable of str
        Array parameters whose elements are differentiated.
    scalars : iterable of Value
        Scalar parameters that are.
    """

    def __init__(
        self, body: Iterable[ir.Statement], arrays: Iterable[str], scalars: Iterable[ir.Value]
    ) -> None:
        body = tuple(body)
        self.arrays = set(arrays)
        self.local = {s.array for s in ir.statements(body) if isinstance(s, ir.LocalArray)}
        self.values = {scalar for scalar in scalars if scalar.dtype.is_float}
        found = -1
        # Values carried by loops and elements of local arrays reach statements before their own.
        while found != len(self.values) + len(self.arrays):
            found = len(self.values) + len(self.arrays)
            self._block(body)

    def __contains__(self, value: ir.Value) -> bool:
        return value in self.values

    def _mark(self, value: ir.Value, depends: bool) -> None:
        if depends and value.dtype.is_float:
            self.values.add(value)

    def _block(self, body: Iterable[ir.Statement]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, statement: ir.Statement) -> None:
        values = self.values
        match statement:
            case ir.Compute(result, operation, operands):
                depends = (
                    operand in values and is_differentiable(operation, place)
                    for place, operand in enumerate(operands)
                )
                self._mark(result, any(depends))
            case ir.Cast(result, operand):
                self._mark(result, operand in values)
            case ir.Load(result, array):
                self._mark(result, array in self.arrays)
            case ir.Store(array, _, value):
                if value in values and array in self.local:
                    self.arrays.add(array)
            case ir.If() | ir.Switch() | ir.Dispatch():
                for arm in statement.regions:
                    self._block(arm.body)
                    for result, given in zip(statement.results, arm.yields, strict=True):
                        self._mark(result, given in values)
            case ir.For(results, _, _, _, initial, body):
                self._carried(results, initial, body.parameters[1:], body.yields)
                self._block(body.body)
            case ir.While(results, initial, condition, body):
                self._carried(results, initial, condition.parameters, body.yields)
                self._carried(results, initial, body.parameters, body.yields)
                self._block(body.body)

    def _carried(self, *values: tuple[ir.Value, ...]) -> None:
        for same in zip(*values, strict=True):
            depends = any(value in self.values for value in same)
            for value in same:
                self._mark(value, depends)
