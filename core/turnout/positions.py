"""What the host computes before a launch: how many positions there are, how far indices reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    scalars, shapes = _leaves(unit, value, definitions)
    known: dict[tuple[Any, ...], int] = {}

    def evaluate(args: tuple[Any, ...]) -> int:
        key = (*[args[place] for place in scalars], *[args[place].shape for place in shapes])
        count = known.get(key)
        if count is None:
            if len(known) >= _EXTENTS_KEPT:
                known.clear()
            count = known[key] = int(_Evaluator(unit, args, definitions).value(value))
        return count

    return evaluate


_EXTENTS_KEPT = 64
"""Of how many calls the extent is remembered, which takes longer to compute than to look up."""


def _leaves(
    unit: ir.Unit, value: ir.Value, definitions: Mapping[int, ir.Statement]
) -> tuple[list[int], list[int]]:
    """The places of the scalars, and of the arrays whose shapes, an extent depends on."""
    scalars: set[str] = set()
    shapes: set[str] = set()
    names = {p.value.number: p.name for p in unit.parameters if isinstance(p, ir.ScalarParameter)}
    waiting, seen = [value], set[int]()
    while waiting:
        number = waiting.pop().number
        if number in names:
            scalars.add(names[number])
        elif number not in seen:
            seen.add(number)
            statement = definitions[number]
            if isinstance(statement, ir.Extent):
                shapes.add(statement.array)
            waiting += statement.operands
    places = [(n, parameter.name) for n, parameter in enumerate(unit.parameters)]
    return [n for n, name in places if name in scalars], [n for n, name in places if name in shapes]


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


def reach_check(
    reaches: Sequence[ir.Reach], places: Mapping[str, int]
) -> Callable[[Sequence[Any]], bool]:
    """A function that tells whether arrays are long enough for what every launch indexes.

    Parameters
    ----------
    reaches : sequence of Reach
    places : mapping of str to int
        Where the arguments stand in the sequence that the function takes.

    Returns
    -------
    callable
        Written out as one expression, because it is evaluated at every call.
    """
    conditions = [_spelt_condition(reach, places) for reach in reaches]
    source = f"lambda a: {' and '.join(conditions) or 'True'}"
    check: Callable[[Sequence[Any]], bool] = eval(source, {"__builtins__": {}})
    return check


def reach_problems(
    reaches: Sequence[ir.Reach], places: Mapping[str, int], arguments: Sequence[Any]
) -> list[str]:
    """Words for the arrays that are too short."""
    problems = []
    for reach in reaches:
        if reach_check((reach,), places)(arguments):
            continue
        shape = tuple(arguments[places[reach.array]].shape)
        spans = {
            word: eval(_spelt_sum(total, places), {"__builtins__": {}}, {"a": arguments})
            for word, total in (("down to", reach.least), ("up to", reach.greatest))
            if total is not None
        }
        shown = " and ".join(f"{word} {index}" for word, index in spans.items())
        problems.append(
            f"argument {reach.array!r} has shape {shape}, and line {reach.line} of the kernel "
            f"indexes its axis {reach.axis} {shown}"
        )
    return list(dict.fromkeys(problems))


def _spelt_condition(reach: ir.Reach, places: Mapping[str, int]) -> str:
    length = _spelt_quantity((reach.array, reach.axis), places)
    parts = [
        f"{_spelt_sum(start, places)} >= {_spelt_sum(end, places)}" for start, end in reach.ranges
    ]
    within = []
    if reach.least is not None:
        within.append(f"{_spelt_sum(reach.least, places)} >= 0")
    if reach.greatest is not None:
        within.append(f"{_spelt_sum(reach.greatest, places)} < {length}")
    return f"({' and '.join(within)} or {' or '.join(parts) or 'False'})"


def _spelt_sum(total: ir.QuantitySum, places: Mapping[str, int]) -> str:
    terms = [f"{factor} * {_spelt_quantity(q, places)}" for q, factor in total.terms]
    return " + ".join([*terms, str(total.constant)]) if terms else str(total.constant)


def _spelt_quantity(quantity: ir.Quantity, places: Mapping[str, int]) -> str:
    name, axis = quantity
    return f"a[{places[name]}]" if axis is None else f"a[{places[name]}].shape[{axis}]"
