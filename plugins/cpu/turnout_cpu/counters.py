"""Counters that a body keeps for itself until it is done.

Where all that a unit does with an array is to count, and few of its elements can be meant, each
thread counts in values of its own, which LLVM keeps in registers, and adds them to the elements at
the end. So counting needs no order among positions, and no atomic instruction for each of them.
"""

from __future__ import annotations

from itertools import chain

from turnout.plugin import Options, ir, statements

MOST_ELEMENTS = 8
"""Each position compares its own with all of them."""


def private_counters(unit: ir.Unit, options: Options) -> dict[str, int]:
    """The arrays that a unit only counts in, and how many elements from the first on can be meant.

    Parameters
    ----------
    unit : ir.Unit
        What is compiled.
    options : Options
        How it is compiled. Where indices are checked, each is where it is used.
    """
    if options.debug or not unit.extents:
        return {}
    every = list(statements(chain(unit.prologue, unit.body.body)))
    known = {value.number: each for each in every for value in each.results}
    found: dict[str, int] = {}
    refused: set[str] = set()
    for statement in every:
        match statement:
            case ir.Store(array, (index,), value, "add"):
                elements = _elements(index, known)
                if value.dtype.is_integer and _constant(value, known) == 1 and elements:
                    found[array] = max(found.get(array, 0), elements)
                else:
                    refused.add(array)
            case ir.Load(array=array) | ir.Store(array=array):
                refused.add(array)
    local = {each.array for each in every if isinstance(each, ir.LocalArray)}
    return {a: elements for a, elements in found.items() if a not in refused | local}


def _elements(index: ir.Value, known: dict[int, ir.Statement]) -> int:
    """How many values an index can have, which is never negative; 0 for too many."""
    match known.get(index.number):
        case ir.Constant(_, value):
            elements = int(value) + 1
        case ir.Cast(result, operand) if _keeps_numbers(operand.dtype, result.dtype):
            return _elements(operand, known)
        case ir.Compute(_, "minimum", operands):
            limits = (_constant(operand, known) for operand in operands)
            elements = min((int(limit) + 1 for limit in limits if limit is not None), default=0)
        case _:
            return 0
    return elements if 0 < elements <= MOST_ELEMENTS else 0


def _keeps_numbers(source: ir.DType, wanted: ir.DType) -> bool:
    """Whether each integer that is no negative index stays what it is."""
    is_same_kind = source.minimum == 0 or wanted.minimum < 0
    return source.is_integer and wanted.bits >= source.bits and is_same_kind


def _constant(value: ir.Value, known: dict[int, ir.Statement]) -> int | float | bool | None:
    definition = known.get(value.number)
    return definition.value if isinstance(definition, ir.Constant) else None
