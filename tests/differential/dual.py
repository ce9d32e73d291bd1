"""Derivatives by another method: one sample of a unit is run on numbers that carry a tangent.

Only what a sample really runs is evaluated, and a choice follows the chosen side, so that nothing
but the taken way can contribute. A tangent of None says that a value does not depend on the input.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnout import ir

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Dual:
    """A number, its tangent, and the size of the terms that add up to the tangent."""

    value: Any
    tangent: float | None = None
    size: float = 0.0


SLOPES: Mapping[str, tuple[Callable[..., float] | None, ...]] = {
    "add": (lambda x, y: 1.0, lambda x, y: 1.0),
    "subtract": (lambda x, y: 1.0, lambda x, y: -1.0),
    "multiply": (lambda x, y: y, lambda x, y: x),
    "divide": (lambda x, y: 1 / y, lambda x, y: -x / y**2),
    "negative": (lambda x: -1.0,),
    "remainder": (lambda x, y: 1.0, lambda x, y: -np.floor_divide(x, y)),
    "fmod": (lambda x, y: 1.0, lambda x, y: -np.trunc(x / y)),
    "abs": (lambda x: -1.0 if x < 0 else 1.0,),
    "sqrt": (lambda x: 0.5 * x**-0.5,),
    "rsqrt": (lambda x: -0.5 * x**-1.5,),
    "copysign": (lambda x, y: np.copysign(1, x) * np.copysign(1, y), None),
    "fma": (lambda x, y, z: y, lambda x, y, z: x, lambda x, y, z: 1.0),
    "exp": (np.exp,),
    "exp2": (lambda x: np.exp2(x) * math.log(2),),
    "expm1": (np.exp,),
    "log": (lambda x: 1 / x,),
    "log2": (lambda x: 1 / (x * math.log(2)),),
    "log10": (lambda x: 1 / (x * math.log(10)),),
    "log1p": (lambda x: 1 / (1 + x),),
    "cbrt": (lambda x: 1 / (3 * np.cbrt(x) ** 2),),
    "sin": (np.cos,),
    "cos": (lambda x: -np.sin(x),),
    "tan": (lambda x: 1 / np.cos(x) ** 2,),
    "asin": (lambda x: 1 / np.sqrt(1 - x * x),),
    "acos": (lambda x: -1 / np.sqrt(1 - x * x),),
    "atan": (lambda x: 1 / (1 + x * x),),
    "atan2": (lambda y, x: x / (x * x + y * y), lambda y, x: -y / (x * x + y * y)),
    "sinh": (np.cosh,),
    "cosh": (np.sinh,),
    "tanh": (lambda x: 1 - np.tanh(x) ** 2,),
    "pow": (
        lambda x, y: 0.0 if y == 0 else y * np.power(x, y - 1),
        lambda x, y: 0.0 if x == 0 else np.power(x, y) * np.log(x),
    ),
    "hypot": (
        lambda x, y: x / np.hypot(x, y) if x or y else 0.0,
        lambda x, y: y / np.hypot(x, y) if x or y else 0.0,
    ),
    "erf": (lambda x: 2 / math.sqrt(math.pi) * np.exp(-x * x),),
}


def _sum(first: Dual, second: Dual) -> Dual:
    tangents = [d.tangent for d in (first, second) if d.tangent is not None]
    tangent = sum(tangents) if tangents else None
    return Dual(first.value + second.value, tangent, first.size + second.size)


class Sample:
    """One sample of a per-sample unit.

    Parameters
    ----------
    unit : Unit
    arguments : mapping of str to object
        Arrays and numbers by parameter.
    position : int
        The sample.
    seed : str, tuple of int
        The parameter, and for an array the element, whose tangent is 1.
    """

    def __init__(
        self,
        unit: ir.Unit,
        arguments: Mapping[str, Any],
        position: int,
        seed: tuple[str, tuple[int, ...]],
    ) -> None:
        self.arguments = arguments
        self.seed = seed
        self.local: dict[str, dict[tuple[int, ...], Dual]] = {}
        self.stored: dict[tuple[str, tuple[int, ...]], Dual] = {}
        self.values: dict[ir.Value, Dual] = {}
        for parameter in unit.parameters:
            if isinstance(parameter, ir.ScalarParameter):
                value = parameter.dtype(arguments[parameter.name])
                tangent = 1.0 if seed == (parameter.name, ()) else None
                self.values[parameter.value] = Dual(value, tangent, 1.0)
        self.values[unit.body.parameters[0]] = Dual(np.int64(position))
        with np.errstate(all="ignore"):
            self.run(unit.prologue)
            self.run(unit.body.body)

    def run(self, body: Iterable[ir.Statement]) -> None:
        for statement in body:
            self.statement(statement)

    def region(self, region: ir.Region, given: Iterable[Dual] = ()) -> list[Dual]:
        self.values.update(zip(region.parameters, given, strict=True))
        self.run(region.body)
        return [self.values[value] for value in region.yields]

    def statement(self, statement: ir.Statement) -> None:
        values = self.values
        operands = [values[operand] for operand in statement.operands]
        match statement:
            case ir.Constant(result, value):
                values[result] = Dual(result.dtype(value))
            case ir.Compute(result, operation, _):
                values[result] = self.compute(result, operation, operands)
            case ir.Cast(result, operand):
                value = ir.convert(np.asarray(values[operand].value), result.dtype)
                tangent = values[operand].tangent if result.dtype.is_float else None
                values[result] = Dual(value, tangent, values[operand].size)
            case ir.Extent(result, array, axis):
                values[result] = Dual(np.int64(self.arguments[array].shape[axis]))
            case ir.LocalArray(array):
                self.local[array] = {}
            case ir.Load(result, array, indices):
                place = tuple(int(values[index].value) for index in indices)
                if array in self.local:
                    values[result] = self.local[array].get(place, Dual(result.dtype(0)))
                else:
                    tangent = 1.0 if self.seed == (array, place) else None
                    values[result] = Dual(self.arguments[array][place], tangent, 1.0)
            case ir.Store(array, indices, value, combine):
                place = tuple(int(values[index].value) for index in indices)
                stored = values[value]
                if array in self.local:
                    self.local[array][place] = stored
                    return
                if combine and (array, place) in self.stored:
                    stored = _sum(self.stored[array, place], stored)
                self.stored[array, place] = stored
            case ir.If(results, _, then, otherwise):
                taken = then if operands[0].value else otherwise
                values.update(zip(results, self.region(taken), strict=True))
            case ir.Switch(results, _, arms) | ir.Dispatch(results, _, arms):
                arm = arms[min(max(int(operands[0].value), 0), len(arms) - 1)]
                values.update(zip(results, self.region(arm), strict=True))
            case ir.For(results, _, _, _, _, loop):
                start, stop, step = (int(operand.value) for operand in operands[:3])
                carried = operands[3:]
                for index in range(start, stop, step) if step else ():
                    carried = self.region(loop, [Dual(np.int64(index)), *carried])
                values.update(zip(results, carried, strict=True))
            case ir.While(results, _, condition, loop):
                carried = operands
                while self.region(condition, carried)[0].value:
                    carried = self.region(loop, carried)
                values.update(zip(results, carried, strict=True))

    def compute(self, result: ir.Value, operation: str, operands: list[Dual]) -> Dual:
        arguments = [np.asarray(operand.value) for operand in operands]
        value = np.asarray(ir.OPERATIONS[operation].evaluate(*arguments))[()]
        if operation == "select":
            return operands[1] if operands[0].value else operands[2]
        if not result.dtype.is_float:
            return Dual(value)
        if operation in ("minimum", "maximum"):
            x, y = (operand.value for operand in operands)
            is_second = x > y if operation == "minimum" else x < y
            return operands[int(is_second)]
        tangent, size = None, 0.0
        points = [float(operand.value) for operand in operands]
        for operand, slope in zip(operands, SLOPES.get(operation, ()), strict=False):
            if operand.tangent is not None and slope is not None:
                # Where it is infinite in the type of the result, so it is there.
                steepness = np.float64(result.dtype(slope(*map(np.float64, points))))
                part = steepness * operand.tangent
                tangent = part if tangent is None else tangent + part
                size += abs(steepness) * operand.size
        return Dual(value, tangent, size)
