"""Checks that a unit is well formed; run after every construction and transform of units."""

from __future__ import annotations

from collections.abc import Iterable

from . import nodes as ir
from .operations import OPERATIONS
from .types import bool_, i64


class VerificationError(AssertionError):
    """A unit is malformed: a defect of whoever built it, never of a user's kernel."""


def verify(unit: ir.Unit) -> None:
    """Raise `VerificationError` unless `unit` is well formed.

    Checked: every value is defined once, before its use and in scope; operand and result types fit
    the table of operations; regions take and yield what their statement needs; arrays are in scope
    and indexed by as many i64 values as they have axes; parameters are loaded and stored only where
    declared read and written; the prologue only computes and loads inputs, extents only compute.
    """
    _Verifier(unit).run()


class _Verifier:
    def __init__(self, unit: ir.Unit) -> None:
        self.unit = unit
        self.seen: set[int] = set()
        self.ranks = {array.name: (array.dtype, array.rank) for array in unit.arrays.values()}
        # Values by number and arrays by name, in the order in which they came into scope.
        self.scope: dict[int | str, ir.Value | None] = dict.fromkeys(self.ranks)

    def run(self) -> None:
        unit = self.unit
        is_identifier = unit.name.isidentifier() and unit.name.isascii()
        self.check(is_identifier, "the name is not a C identifier")
        names = [parameter.name for parameter in unit.parameters]
        self.check(len(set(names)) == len(names), f"parameter names repeat: {names}")
        self.define(p.value for p in unit.parameters if isinstance(p, ir.ScalarParameter))
        self.statements(unit.prologue)
        self.prologue()
        self.use(unit.extents)
        self.check(all(extent.dtype is i64 for extent in unit.extents), "extents are i64")
        self.check(len(unit.body.parameters) == len(unit.extents), "one position per extent")
        self.region(unit.body, [i64] * len(unit.extents), [])

    def prologue(self) -> None:
        arrays = self.unit.arrays
        loaded: set[ir.Value] = set()
        for statement in self.unit.prologue:
            if isinstance(statement, ir.Load):
                is_input = not arrays[statement.array].is_written
                self.check(is_input, f"the prologue loads {statement.array}, which is written")
                loaded.add(statement.result)
                continue
            self.check(
                ir.is_pure(statement), f"the prologue may only compute and load: {statement}"
            )
            if loaded.intersection(statement.operands):
                loaded.update(statement.results)
        for extent in self.unit.extents:
            self.check(extent not in loaded, f"extent {extent} depends on a load")

    def check(self, holds: bool, problem: str) -> None:
        if not holds:
            raise VerificationError(f"unit {self.unit.name}: {problem}")

    def define(self, values: Iterable[ir.Value]) -> None:
        for value in values:
            self.check(value.number not in self.seen, f"{value} is defined twice")
            self.seen.add(value.number)
            self.scope[value.number] = value

    def use(self, values: Iterable[ir.Value]) -> None:
        for value in values:
            defined = self.scope.get(value.number)
            self.check(defined is not None, f"{value} is used before or outside its definition")
            self.check(defined == value, f"{value} is used with another type, {value.dtype}")

    def region(self, region: ir.Region, parameters: list[object], yields: list[object]) -> None:
        given = [value.dtype for value in region.parameters]
        self.check(given == parameters, f"region takes {given}, its statement gives {parameters}")
        outside = len(self.scope)
        self.define(region.parameters)
        self.statements(region.body)
        self.use(region.yields)
        returned = [value.dtype for value in region.yields]
        self.check(returned == yields, f"region yields {returned}, its statement needs {yields}")
        while len(self.scope) > outside:
            self.scope.popitem()

    def statements(self, body: tuple[ir.Statement, ...]) -> None:
        for statement in body:
            self.use(statement.operands)
            self.statement(statement)
            self.define(statement.results)

    def statement(self, statement: ir.Statement) -> None:
        types: list[object] = [value.dtype for value in statement.results]
        match statement:
            case ir.Constant(result, value):
                self.constant(result, value)
            case ir.Compute(result, operation, operands):
                self.compute(result, operation, operands)
            case ir.Cast():
                pass
            case ir.Extent(result, array, axis):
                known = self.unit.arrays.get(array)
                self.check(known is not None, f"extent of unknown array {array}")
                assert known is not None
                self.check(0 <= axis < known.rank, f"array {array} has no axis {axis}")
                self.check(result.dtype is i64, "an extent is i64")
            case ir.LocalArray(array, dtype, shape):
                self.check(array not in self.ranks, f"array {array} is declared twice")
                self.ranks[array] = (dtype, len(shape))
                self.scope[array] = None
            case ir.Load(result, array, indices):
                self.element(array, indices, result)
                parameter = self.unit.arrays.get(array)
                self.check(parameter is None or parameter.is_read, f"{array} is not read")
            case ir.Store(array, indices, value, combine):
                self.element(array, indices, value)
                if combine is not None:
                    self.compute(value, combine, (value, value))
                parameter = self.unit.arrays.get(array)
                self.check(parameter is None or parameter.is_written, f"{array} is not written")
            case ir.If(_, condition, then, otherwise):
                self.check(condition.dtype is bool_, f"condition {condition} is not bool")
                self.region(then, [], types)
                self.region(otherwise, [], types)
            case ir.Switch(_, selector, arms) | ir.Dispatch(_, selector, arms):
                self.check(selector.dtype.is_integer, f"selector {selector} is not an integer")
                self.check(len(arms) >= 1, "a switch needs an arm")
                for arm in arms:
                    self.region(arm, [], types)
            case ir.For(_, start, stop, step, initial, body):
                bounds = [start.dtype, stop.dtype, step.dtype]
                self.check(bounds == [i64] * 3, f"loop bounds are {bounds}, not i64")
                self.check([v.dtype for v in initial] == types, "carried values change type")
                self.region(body, [i64, *types], types)
            case ir.While(_, initial, condition, body):
                self.check([v.dtype for v in initial] == types, "carried values change type")
                self.region(condition, types, [bool_])
                self.region(body, types, types)

    def constant(self, result: ir.Value, value: object) -> None:
        dtype = result.dtype
        if dtype.is_bool:
            fits = isinstance(value, bool)
        elif dtype.is_float:
            fits = isinstance(value, float)
        else:
            fits = type(value) is int and dtype.minimum <= value <= dtype.maximum
        self.check(fits, f"constant {value!r} does not fit {dtype}")

    def compute(self, result: ir.Value, name: str, operands: tuple[ir.Value, ...]) -> None:
        operation = OPERATIONS.get(name)
        self.check(operation is not None, f"unknown operation {name}")
        assert operation is not None
        self.check(len(operands) == operation.arity, f"{name} takes {operation.arity} operands")
        types = [operand.dtype for operand in operands]
        if name == "select":
            self.check(types[0] is bool_, "the condition of select is not bool")
            types = types[1:]
        self.check(len(set(types)) == 1, f"operands of {name} differ: {types}")
        allowed = {"float": "f", "integer": "iu", "number": "fiu", "bits": "iub", "any": "fiub"}
        self.check(types[0].kind in allowed[operation.operands], f"{name} does not take {types[0]}")
        expected = bool_ if operation.result == "bool" else types[-1]
        self.check(result.dtype is expected, f"{name} gives {expected}, not {result.dtype}")

    def element(self, array: str, indices: tuple[ir.Value, ...], value: ir.Value) -> None:
        self.check(array in self.scope, f"array {array} is unknown or out of scope")
        dtype, rank = self.ranks[array]
        self.check(len(indices) == rank, f"{array} has {rank} axes, {len(indices)} indices given")
        self.check(all(index.dtype is i64 for index in indices), "indices are i64")
        self.check(value.dtype is dtype, f"{array} holds {dtype}, not {value.dtype}")
