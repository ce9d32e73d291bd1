"""Units written by hand: a builder with one method per kind of statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from turnout.plugin import ir

Value = ir.Value


class UnitBuilder:
    """Collects parameters and statements; `unit` verifies and returns the unit.

    A value stands for itself; a Python number becomes a constant of the type that is needed.
    """

    def __init__(self, name: str = "example", *, fast_math: bool = False) -> None:
        self.name = name
        self.fast_math = fast_math
        self.parameters: list[ir.Parameter] = []
        self.prologue: list[ir.Statement] = []
        self.extents: list[Value] = []
        self.positions: list[Value] = []
        self.body: list[ir.Statement] = []
        self._current = self.body
        self._count = 0

    def value(self, dtype: ir.DType) -> Value:
        self._count += 1
        return ir.Value(self._count, dtype)

    def array(self, name: str, dtype: ir.DType, rank: int = 1, *, written: bool = False) -> str:
        self.parameters.append(ir.ArrayParameter(name, dtype, rank, True, written))
        return name

    def scalar(self, name: str, dtype: ir.DType) -> Value:
        value = self.value(dtype)
        self.parameters.append(ir.ScalarParameter(name, value))
        return value

    def space(self, array: str, *axes: int) -> list[Value]:
        """Iterate over these axes of an array; returns the positions."""
        for axis in axes or (0,):
            extent = self.value(ir.i64)
            self.prologue.append(ir.Extent(extent, array, axis))
            self.extents.append(extent)
            self.positions.append(self.value(ir.i64))
        return self.positions

    def fixed_axis(self, extent: int) -> Value:
        """One more axis, of a constant extent; returns its position."""
        self.extents.append(self.value(ir.i64))
        self.prologue.append(ir.Constant(self.extents[-1], extent))
        self.positions.append(self.value(ir.i64))
        return self.positions[-1]

    def add(self, statement: ir.Statement) -> None:
        self._current.append(statement)

    def constant(self, dtype: ir.DType, value: Any) -> Value:
        result = self.value(dtype)
        self.add(ir.Constant(result, float(value) if dtype.is_float else value))
        return result

    def compute(self, operation: str, *operands: Any) -> Value:
        dtype = next(o.dtype for o in reversed(operands) if isinstance(o, ir.Value))
        values = tuple(o if isinstance(o, ir.Value) else self.constant(dtype, o) for o in operands)
        is_bool = ir.OPERATIONS[operation].result == "bool"
        result = self.value(ir.bool_ if is_bool else dtype)
        self.add(ir.Compute(result, operation, values))
        return result

    def cast(self, dtype: ir.DType, operand: Value) -> Value:
        result = self.value(dtype)
        self.add(ir.Cast(result, operand))
        return result

    def extent(self, array: str, axis: int = 0) -> Value:
        result = self.value(ir.i64)
        self.add(ir.Extent(result, array, axis))
        return result

    def local(self, name: str, dtype: ir.DType, *shape: int) -> str:
        self.add(ir.LocalArray(name, dtype, shape))
        return name

    def _indices(self, indices: Sequence[Any]) -> tuple[Value, ...]:
        return tuple(i if isinstance(i, ir.Value) else self.constant(ir.i64, i) for i in indices)

    def load(self, array: str, dtype: ir.DType, *indices: Any) -> Value:
        values = self._indices(indices)
        result = self.value(dtype)
        self.add(ir.Load(result, array, values))
        return result

    def store(self, array: str, value: Value, *indices: Any, combine: str | None = None) -> None:
        self.add(ir.Store(array, self._indices(indices), value, combine))

    def region(self, parameters: Sequence[Value], write: Callable[..., Any]) -> ir.Region:
        outer, self._current = self._current, []
        yields = write(*parameters)
        if yields is None:
            yields = ()
        elif isinstance(yields, ir.Value):
            yields = (yields,)
        region = ir.Region(tuple(parameters), tuple(self._current), tuple(yields))
        self._current = outer
        return region

    def if_(self, condition: Value, then: Callable, otherwise: Callable = lambda: None) -> Any:
        regions = self.region((), then), self.region((), otherwise)
        results = tuple(self.value(v.dtype) for v in regions[0].yields)
        self.add(ir.If(results, condition, *regions))
        return results[0] if len(results) == 1 else results

    def switch(self, selector: Value, *arms: Callable) -> Any:
        regions = tuple(self.region((), arm) for arm in arms)
        results = tuple(self.value(v.dtype) for v in regions[0].yields)
        self.add(ir.Switch(results, selector, regions))
        return results[0] if len(results) == 1 else results

    def for_(
        self,
        bounds: Sequence[Any],
        initial: Sequence[Value],
        body: Callable,
        line: int = 0,
        *,
        independent: bool = False,
    ) -> Any:
        start, stop, step = self._indices(bounds)
        parameters = [self.value(ir.i64), *(self.value(v.dtype) for v in initial)]
        region = self.region(parameters, body)
        results = tuple(self.value(v.dtype) for v in initial)
        loop = ir.For(results, start, stop, step, tuple(initial), region, independent, line=line)
        self.add(loop)
        return results[0] if len(results) == 1 else results

    def while_(
        self, initial: Sequence[Value], condition: Callable, body: Callable, line: int = 0
    ) -> Any:
        regions = [
            self.region([self.value(v.dtype) for v in initial], write)
            for write in (condition, body)
        ]
        results = tuple(self.value(v.dtype) for v in initial)
        self.add(ir.While(results, tuple(initial), *regions, line=line))
        return results[0] if len(results) == 1 else results

    def unit(self) -> ir.Unit:
        unit = ir.Unit(
            self.name,
            tuple(self.parameters),
            tuple(self.prologue),
            tuple(self.extents),
            ir.Region(tuple(self.positions), tuple(self.body)),
            self.fast_math,
        )
        ir.verify(unit)
        return unit


def drag(dtype: ir.DType = ir.f64, form: str = "switch") -> ir.Unit:
    """The drag kernel of the design: three formulas, one with an exponential."""
    b = UnitBuilder(f"drag_{form}")
    dt = b.scalar("dt", dtype)
    b.array("regime", ir.i64)
    b.array("v", dtype)
    b.array("v_new", dtype, written=True)
    (i,) = b.space("v")
    r = b.load("regime", ir.i64, i)
    v = b.load("v", dtype, i)

    def linear() -> Value:
        return b.compute("multiply", -0.1, v)

    def quadratic() -> Value:
        return b.compute("multiply", b.compute("multiply", -0.4, v), b.compute("abs", v))

    def exponential() -> Value:
        e = b.compute("exp", b.compute("multiply", b.compute("negative", v), v))
        return b.compute("multiply", b.compute("multiply", -2.0, v), e)

    if form == "switch":
        a = b.switch(r, linear, quadratic, exponential)
    else:
        values = linear(), quadratic(), exponential()
        rest = b.compute("select", b.compute("equal", r, 1), values[1], values[2])
        a = b.compute("select", b.compute("less_equal", r, 0), values[0], rest)
    b.store("v_new", b.compute("add", v, b.compute("multiply", dt, a)), i)
    return b.unit()
