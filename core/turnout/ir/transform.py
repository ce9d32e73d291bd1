"""Helpers to rewrite units: fresh values, renamed values, statements with other regions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count

from . import nodes as ir
from .types import DType, bool_
from .walk import statements


def fresh_values(unit: ir.Unit) -> Callable[[DType], ir.Value]:
    """Give a function that makes values with numbers that `unit` does not use."""
    numbers = count(1 + max((value.number for value in _definitions(unit)), default=-1))
    return lambda dtype: ir.Value(next(numbers), dtype)


def _definitions(unit: ir.Unit) -> Iterator[ir.Value]:
    for parameter in unit.parameters:
        if isinstance(parameter, ir.ScalarParameter):
            yield parameter.value
    yield from unit.body.parameters
    for statement in statements(chain(unit.prologue, unit.body.body)):
        yield from statement.results
        for region in statement.regions:
            yield from region.parameters


def with_regions(statement: ir.Statement, regions: Sequence[ir.Region]) -> ir.Statement:
    """Give the statement with other regions, as many as it has."""
    match statement:
        case ir.If():
            then, otherwise = regions
            return replace(statement, then=then, otherwise=otherwise)
        case ir.Switch() | ir.Dispatch():
            return replace(statement, arms=tuple(regions))
        case ir.For():
            (body,) = regions
            return replace(statement, body=body)
        case ir.While():
            condition, body = regions
            return replace(statement, condition=condition, body=body)
        case _:
            return statement


def rewritten(
    region: ir.Region,
    change: Callable[[ir.Statement, ir.Statement], Iterable[ir.Statement]],
) -> ir.Region:
    """Give a region with statements replaced, at any depth.

    Parameters
    ----------
    region : Region
    change : callable
        Takes a statement, and the same with what became of its regions; gives what takes its place.
    """
    body: list[ir.Statement] = []
    for statement in region.body:
        regions = [rewritten(inner, change) for inner in statement.regions]
        body += change(statement, with_regions(statement, regions))
    return replace(region, body=tuple(body))


def rename(
    body: Iterable[ir.Statement], names: Mapping[ir.Value, ir.Value]
) -> tuple[ir.Statement, ...]:
    """Give the statements with values replaced, where they are defined and where they are used."""
    return tuple(_renamed(statement, names) for statement in body)


def _renamed(statement: ir.Statement, names: Mapping[ir.Value, ir.Value]) -> ir.Statement:
    def one(value: ir.Value) -> ir.Value:
        return names.get(value, value)

    def many(values: Iterable[ir.Value]) -> tuple[ir.Value, ...]:
        return tuple(one(value) for value in values)

    statement = with_regions(
        statement,
        [
            ir.Region(many(region.parameters), rename(region.body, names), many(region.yields))
            for region in statement.regions
        ],
    )
    match statement:
        case ir.Constant(result) | ir.Extent(result):
            return replace(statement, result=one(result))
        case ir.Compute(result, _, operands):
            return replace(statement, result=one(result), operands=many(operands))
        case ir.Cast(result, operand):
            return replace(statement, result=one(result), operand=one(operand))
        case ir.LocalArray():
            return statement
        case ir.Load(result, _, indices):
            return replace(statement, result=one(result), indices=many(indices))
        case ir.Store(_, indices, value):
            return replace(statement, indices=many(indices), value=one(value))
        case ir.If(results, condition):
            return replace(statement, results=many(results), condition=one(condition))
        case ir.Switch(results, selector) | ir.Dispatch(results, selector):
            return replace(statement, results=many(results), selector=one(selector))
        case ir.For(results, start, stop, step, initial):
            return replace(
                statement,
                results=many(results),
                start=one(start),
                stop=one(stop),
                step=one(step),
                initial=many(initial),
            )
        case ir.While(results, initial):
            return replace(statement, results=many(results), initial=many(initial))


def class_conditions(
    selector: ir.Value, classes: int, fresh: Callable[[DType], ir.Value]
) -> tuple[list[ir.Statement], list[ir.Value]]:
    """Give statements that compute whether a selector chooses a class, and their results by class.

    The first and the last one hold beyond the range of classes too.
    """
    body: list[ir.Statement] = []
    conditions = []
    for number in range(classes):
        relation = {0: "less_equal", classes - 1: "greater_equal"}.get(number, "equal")
        limit, condition = fresh(selector.dtype), fresh(bool_)
        body += [
            ir.Constant(limit, number),
            ir.Compute(condition, relation, (selector, limit)),
        ]
        conditions.append(condition)
    return body, conditions


def selects(
    results: Sequence[ir.Value],
    conditions: Sequence[ir.Value],
    values: Sequence[Sequence[ir.Value]],
    fresh: Callable[[DType], ir.Value],
) -> Iterator[ir.Statement]:
    """Choose among the values of two or more classes by a chain of ``select``."""
    last = len(values) - 1
    chosen = values[last]
    for number in reversed(range(last)):
        chain = results if number == 0 else tuple(fresh(value.dtype) for value in chosen)
        for result, taken, otherwise in zip(chain, values[number], chosen, strict=True):
            yield ir.Compute(result, "select", (conditions[number], taken, otherwise))
        chosen = chain


def zeros(values: Iterable[ir.Value], fresh: Callable[[DType], ir.Value]) -> ir.Region:
    """Give a region that yields zeros in place of `values`."""
    constants = tuple(ir.Constant(fresh(v.dtype), _zero(v.dtype)) for v in values)
    return ir.Region((), constants, tuple(constant.result for constant in constants))


def _zero(dtype: DType) -> int | float | bool:
    return False if dtype.is_bool else 0.0 if dtype.is_float else 0
