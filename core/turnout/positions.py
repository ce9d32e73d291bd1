"""How many positions an iteration space has, evaluated on the host before a launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import ir

Count = Callable[[tuple[Any, ...]], int]


def position_count(unit: ir.Unit) -> Count:
    """A function from the arguments of `unit` to the size of its iteration space.

    Parameters
    ----------
    unit : Unit

    Returns
    -------
    callable
        Takes the arguments in the order of ``unit.parameters``; gives 1 for a unit that runs once.
    """
    factors = [_evaluation(unit, extent) for extent in unit.extents]
    if not factors:
        return lambda args: 1
    if len(factors) == 1:
        (only,) = factors
        return lambda args: max(0, only(args))

    def count(args: tuple[Any, ...]) -> int:
        total = 1
        for factor in factors:
            total *= max(0, factor(args))
        return total

    return count


def _evaluation(unit: ir.Unit, value: ir.Value) -> Count:
    """A function that computes one integer of the prologue."""
    places = {parameter.name: n for n, parameter in enumerate(unit.parameters)}
    for parameter in unit.parameters:
        if isinstance(parameter, ir.ScalarParameter) and parameter.value == value:
            place = places[parameter.name]
            return lambda args: int(args[place])
    definitions = {r.number: s for s in unit.prologue for r in s.results}
    definition = definitions[value.number]
    if isinstance(definition, ir.Extent):
        place, axis = places[definition.array], definition.axis
        return lambda args: int(args[place].shape[axis])
    return lambda args: int(_Evaluator(unit, args, definitions).value(value))


class _Evaluator:
    """Evaluates prologue statements with NumPy scalars, each at most once."""

    def __init__(
        self, unit: ir.Unit, args: tuple[Any, ...], definitions: dict[int, ir.Statement]
    ) -> None:
        self._definitions = definitions
        self._arrays: dict[str, Any] = {}
        self._known: dict[int, Any] = {}
        for parameter, argument in zip(unit.parameters, args, strict=True):
            if isinstance(parameter, ir.ScalarParameter):
                self._known[parameter.value.number] = parameter.dtype(argument)
            else:
                self._arrays[parameter.name] = argument

    def value(self, value: ir.Value) -> Any:
        if value.number not in self._known:
            with np.errstate(all="ignore"):
                result = self._evaluate(self._definitions[value.number])
            self._known[value.number] = value.dtype(result)
        return self._known[value.number]

    def _evaluate(self, statement: ir.Statement) -> Any:
        match statement:
            case ir.Constant(_, constant):
                return constant
            case ir.Extent(_, array, axis):
                return self._arrays[array].shape[axis]
            case ir.Compute(_, operation, operands):
                arrays = [np.asarray(self.value(operand)) for operand in operands]
                return ir.OPERATIONS[operation].evaluate(*arrays)
            case ir.Cast(result, operand):
                return ir.convert(np.asarray(self.value(operand)), result.dtype)
        raise AssertionError(f"extents depend on {statement}, which is not pure")
