"""Text of units: what people read in `turnout show`, and what is digested for the binary cache.

The text determines the unit: every type, constant and name is in it, floats in full precision, and
nothing else is (no line numbers, no object identities).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from . import nodes as ir


def format_unit(unit: ir.Unit) -> str:
    """Readable text of a unit."""
    lines = [f"unit {unit.name}{' fast_math' if unit.fast_math else ''}"]
    lines += [f"  parameter {_parameter(parameter)}" for parameter in unit.parameters]
    lines += [f"  apart {first}, {second}" for first, second in unit.apart]
    lines += _indented(unit.prologue)
    space = ", ".join(
        f"{position} < {extent}"
        for position, extent in zip(unit.body.parameters, unit.extents, strict=True)
    )
    lines.append(f"  for each ({space}):" if unit.extents else "  once:")
    lines += ["  " + line for line in _indented(unit.body.body)]
    return "\n".join(lines) + "\n"


def format_plan(plan: ir.Plan) -> str:
    """Readable text of a plan: its steps by name, without the bodies of units."""
    lines = []
    for step in plan.steps:
        if isinstance(step, ir.Scratch):
            filled = "" if step.is_filled else " of anything"
            lines.append(f"scratch {step.name}: {step.dtype}{list(step.shape)}{filled}")
        elif isinstance(step, ir.Split):
            lines.append(f"split {step.run.unit.name} into {len(step.branches)} classes:")
            lines += ["  " + line for part in step.parts for line in format_plan(part).splitlines()]
        else:
            arguments = ", ".join(parameter.name for parameter in step.unit.parameters)
            lines.append(f"run {step.unit.name}({arguments})")
    return "\n".join(lines) + "\n"


def _parameter(parameter: ir.Parameter) -> str:
    if isinstance(parameter, ir.ScalarParameter):
        return f"{parameter.value}: {parameter.dtype} = {parameter.name}"
    access = {(True, True): "inout", (True, False): "in", (False, True): "out"}.get(
        (parameter.is_read, parameter.is_written), "unused"
    )
    axes = f"rank {parameter.rank}"
    if parameter.shape:
        axes = " x ".join("?" if n is None else str(n) for n in parameter.shape)
    order = ", contiguous" if parameter.is_contiguous else ""
    return f"{access} {parameter.name}: {parameter.dtype}[{axes}{order}]"


def _indented(body: Iterable[ir.Statement]) -> list[str]:
    return ["  " + line for statement in body for line in _statement(statement)]


def _typed(values: Iterable[ir.Value]) -> str:
    return ", ".join(f"{value}: {value.dtype}" for value in values)


def _names(values: Iterable[ir.Value]) -> str:
    return ", ".join(str(value) for value in values)


def _assigned(results: tuple[ir.Value, ...]) -> str:
    return f"{_typed(results)} = " if results else ""


def _region(region: ir.Region) -> Iterator[str]:
    yield from _indented(region.body)
    if region.yields:
        yield f"  yield {_names(region.yields)}"


def _element(array: str, indices: tuple[ir.Value, ...]) -> str:
    return f"{array}[{_names(indices)}]"


def _statement(statement: ir.Statement) -> Iterator[str]:
    match statement:
        case ir.Constant(result, value):
            yield f"{_typed([result])} = {value!r}"
        case ir.Compute(result, operation, operands):
            yield f"{_typed([result])} = {operation}({_names(operands)})"
        case ir.Cast(result, operand):
            yield f"{_typed([result])} = cast({operand})"
        case ir.Extent(result, array, axis):
            yield f"{_typed([result])} = extent({array}, {axis})"
        case ir.LocalArray(array, dtype, shape):
            yield f"local {array}: {dtype}{list(shape)}"
        case ir.Load(result, array, indices):
            yield f"{_typed([result])} = {_element(array, indices)}"
        case ir.Store(array, indices, value, combine):
            how = f"atomic {combine} " if combine else ""
            yield f"{how}{_element(array, indices)} = {value}"
        case ir.If(results, condition, then, otherwise):
            yield f"{_assigned(results)}if {condition}:"
            yield from _region(then)
            if otherwise.body or otherwise.yields:
                yield "else:"
                yield from _region(otherwise)
        case ir.Switch(results, selector, arms):
            yield f"{_assigned(results)}switch clamp({selector}):"
            yield from _arms(arms)
        case ir.Dispatch(results, selector, arms, policy, name):
            yield f"{_assigned(results)}dispatch {name} policy {policy} clamp({selector}):"
            yield from _arms(arms)
        case ir.For(results, start, stop, step, initial, body, independent):
            index, *carried = body.parameters
            order = "independent " if independent else ""
            yield (
                f"{_assigned(results)}{order}for {index} in range({start}, {stop}, {step})"
                f"{_carrying(carried, initial)}:"
            )
            yield from _region(body)
        case ir.While(results, initial, condition, body):
            yield f"{_assigned(results)}while{_carrying(condition.parameters, initial)}:"
            yield from _region(condition)
            yield f"do ({_names(body.parameters)}):"
            yield from _region(body)


def _arms(arms: tuple[ir.Region, ...]) -> Iterator[str]:
    for number, arm in enumerate(arms):
        yield f"case {number}:"
        yield from _region(arm)


def _carrying(parameters: Iterable[ir.Value], initial: tuple[ir.Value, ...]) -> str:
    pairs = ", ".join(
        f"{parameter}: {parameter.dtype} = {value}"
        for parameter, value in zip(parameters, initial, strict=True)
    )
    return f" carrying ({pairs})" if pairs else ""
