"""Hand-written units: a small builder that numbers values and nests regions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from turnout import ir, reference
from turnout.ir import DType, Value, bool_, f64, i64

Yields = Sequence[Value] | None
"""What the function that writes a region returns: the values it yields, None for none."""


class UnitBuilder:
    """Builds one unit: statements go to the prologue until `finish` writes the body."""

    def __init__(self, name: str = "unit") -> None:
        self.name = name
        self.parameters: list[ir.Parameter] = []
        self.statements: list[ir.Statement] = []
        self.count = 0

    def value(self, dtype: DType) -> Value:
        self.count += 1
        return Value(self.count - 1, dtype)

    def array(
        self, name: str, dtype: DType, rank: int = 1, *, read: bool = True, written: bool = False
    ) -> str:
        self.parameters.append(ir.ArrayParameter(name, dtype, rank, read, written))
        return name

    def scalar(self, name: str, dtype: DType) -> Value:
        value = self.value(dtype)
        self.parameters.append(ir.ScalarParameter(name, value))
        return value

    def constant(self, value: float, dtype: DType = i64) -> Value:
        result = self.value(dtype)
        self.statements.append(ir.Constant(result, value))
        return result

    def compute(self, operation: str, *operands: Value) -> Value:
        is_bool = ir.OPERATIONS[operation].result == "bool"
        result = self.value(bool_ if is_bool else operands[-1].dtype)
        self.statements.append(ir.Compute(result, operation, operands))
        return result

    def cast(self, operand: Value, dtype: DType) -> Value:
        result = self.value(dtype)
        self.statements.append(ir.Cast(result, operand))
        return result

    def extent(self, array: str, axis: int = 0) -> Value:
        result = self.value(i64)
        self.statements.append(ir.Extent(result, array, axis))
        return result

    def local(self, name: str, dtype: DType, *shape: int) -> str:
        self.statements.append(ir.LocalArray(name, dtype, shape))
        return name

    def load(self, array: str, *indices: Value, dtype: DType) -> Value:
        result = self.value(dtype)
        self.statements.append(ir.Load(result, array, indices))
        return result

    def store(self, array: str, *indices: Value, value: Value, combine: str | None = None) -> None:
        self.statements.append(ir.Store(array, indices, value, combine))

    def region(self, write: Callable[..., Yields], parameters: Sequence[DType] = ()) -> ir.Region:
        outer, self.statements = self.statements, []
        values = tuple(self.value(dtype) for dtype in parameters)
        yields = tuple(write(*values) or ())
        region = ir.Region(values, tuple(self.statements), yields)
        self.statements = outer
        return region

    def results(self, region: ir.Region) -> tuple[Value, ...]:
        return tuple(self.value(value.dtype) for value in region.yields)

    def branch(
        self,
        condition: Value,
        then: Callable[[], Yields],
        otherwise: Callable[[], Yields] = lambda: None,
    ) -> tuple[Value, ...]:
        regions = self.region(then), self.region(otherwise)
        results = self.results(regions[0])
        self.statements.append(ir.If(results, condition, *regions))
        return results

    def switch(self, selector: Value, *arms: Callable[[], Yields]) -> tuple[Value, ...]:
        regions = tuple(self.region(arm) for arm in arms)
        results = self.results(regions[0])
        self.statements.append(ir.Switch(results, selector, regions))
        return results

    def dispatch(
        self,
        selector: Value,
        *arms: Callable[[], Yields],
        policy: str = "auto",
        name: str = "dispatch0",
    ) -> tuple[Value, ...]:
        regions = tuple(self.region(arm) for arm in arms)
        results = self.results(regions[0])
        self.statements.append(ir.Dispatch(results, selector, regions, policy, name))
        return results

    def loop(
        self,
        bounds: tuple[Value, Value, Value],
        initial: Sequence[Value],
        body: Callable[..., Yields],
    ) -> tuple[Value, ...]:
        region = self.region(body, [i64, *(value.dtype for value in initial)])
        results = self.results(region)
        self.statements.append(ir.For(results, *bounds, tuple(initial), region))
        return results

    def loop_while(
        self,
        initial: Sequence[Value],
        condition: Callable[..., Yields],
        body: Callable[..., Yields],
    ) -> tuple[Value, ...]:
        types = [value.dtype for value in initial]
        regions = self.region(condition, types), self.region(body, types)
        results = tuple(self.value(dtype) for dtype in types)
        self.statements.append(ir.While(results, tuple(initial), *regions))
        return results

    def finish(
        self, extents: Sequence[Value], body: Callable[..., None], *, verify: bool = True
    ) -> ir.Unit:
        """Write the body, whose positions run below `extents`, and close the unit."""
        prologue = tuple(self.statements)
        region = self.region(body, [i64] * len(extents))
        unit = ir.Unit(self.name, tuple(self.parameters), prologue, tuple(extents), region)
        if verify:
            ir.verify(unit)
        return unit


def run(unit: ir.Unit, *args: Any) -> None:
    """Run a unit on the reference backend."""
    reference.turnout_launch(unit)(args, 1)


def elementwise(operation: str, *dtypes: DType) -> ir.Unit:
    """Build the unit that applies one operation to arrays ``x0``, ``x1``, ... into ``out``."""
    builder = UnitBuilder(operation)
    inputs = [builder.array(f"x{number}", dtype) for number, dtype in enumerate(dtypes)]
    is_bool = ir.OPERATIONS[operation].result == "bool"
    builder.array("out", bool_ if is_bool else dtypes[-1], read=False, written=True)
    extent = builder.extent(inputs[0])

    def body(position: Value) -> None:
        operands = [
            builder.load(array, position, dtype=dtype)
            for array, dtype in zip(inputs, dtypes, strict=True)
        ]
        builder.store("out", position, value=builder.compute(operation, *operands))

    return builder.finish([extent], body)


def bits(array: np.ndarray[Any, Any]) -> bytes:
    """Give the bytes of an array in which every NaN is the same one."""
    array = np.array(array)
    if array.dtype.kind == "f":
        array[np.isnan(array)] = np.nan
    return array.tobytes()


class RandomBody:
    """Writes a random body in which every position reads and writes its own elements.

    The arrays are ``x`` (f64), ``k`` (i64), both one element per position, a table ``t`` of 8 f64
    and ``out`` (f64). Numbers stay finite enough to compare, loops are short.
    """

    def __init__(self, builder: UnitBuilder, seed: int, policy: str) -> None:
        self.builder = builder
        self.random = random.Random(seed)
        self.policy = policy
        self.names = 0

    def write(self, position: Value) -> None:
        builder = self.builder
        self.position = position
        floats = [builder.load("x", position, dtype=f64), builder.constant(0.75, f64)]
        integers = [builder.load("k", position, dtype=i64), builder.constant(3)]
        result = self.block(floats, integers, depth=3)
        builder.store("out", position, value=result)

    def block(self, floats: list[Value], integers: list[Value], depth: int) -> Value:
        """Write a few statements and give one float that depends on them."""
        floats, integers = list(floats), list(integers)
        for _ in range(self.random.randint(2, 4)):
            writers = [self.arithmetic, self.access, self.local]
            if depth:
                writers += [self.branch, self.choice, self.choice, self.loop, self.loop_while]
            floats.append(self.random.choice(writers)(floats, integers, depth - 1))
            integers.append(self.integer(integers))
        return self.builder.compute("add", floats[-1], floats[-2])

    def integer(self, integers: list[Value]) -> Value:
        operation = self.random.choice(["add", "multiply", "floor_divide", "bit_xor", "minimum"])
        return self.builder.compute(operation, *self.random.choices(integers, k=2))

    def below(self, integers: list[Value], limit: int) -> Value:
        """Write an integer from 0 to `limit` - 1."""
        value = self.random.choice(integers)
        return self.builder.compute("remainder", value, self.builder.constant(limit))

    def condition(self, floats: list[Value]) -> Value:
        return self.builder.compute("less", *self.random.choices(floats, k=2))

    def arithmetic(self, floats: list[Value], integers: list[Value], depth: int) -> Value:
        operation = self.random.choice(["add", "subtract", "multiply", "minimum", "tanh", "pow"])
        arity = ir.OPERATIONS[operation].arity
        return self.builder.compute(operation, *self.random.choices(floats, k=arity))

    def access(self, floats: list[Value], integers: list[Value], depth: int) -> Value:
        if self.random.random() < 0.3:
            self.builder.store("out", self.position, value=self.random.choice(floats))
            return self.builder.load("out", self.position, dtype=f64)
        return self.builder.load("t", self.below(integers, 8), dtype=f64)

    def local(self, floats: list[Value], integers: list[Value], depth: int) -> Value:
        self.names += 1
        array = self.builder.local(f"local{self.names}", f64, 2, 3)
        row, column = self.below(integers, 2), self.below(integers, 3)
        self.builder.store(array, row, column, value=self.random.choice(floats))
        return self.builder.load(array, self.below(integers, 2), column, dtype=f64)

    def branch(self, floats: list[Value], integers: list[Value], depth: int) -> Value:
        def arm() -> Yields:
            return [self.block(floats, integers, depth)]

        (result,) = self.builder.branch(self.condition(floats), arm, arm)
        return result

    def choice(self, floats: list[Value], integers: list[Value], depth: int) -> Value:
        def arm() -> Yields:
            first = self.block(floats, integers, depth)
            return [first, self.random.choice(floats)]

        self.names += 1
        selector = self.builder.compute(
            "subtract", self.below(integers, 6), self.builder.constant(1)
        )
        arms = [arm] * self.random.randint(2, 4)
        name = f"dispatch{self.names}"
        results = self.builder.dispatch(selector, *arms, policy=self.policy, name=name)
        return self.builder.compute("add", *results)

    def loop(self, floats: list[Value], integers: list[Value], depth: int) -> Value:
        def body(index: Value, carried: Value) -> Yields:
            return [self.block([*floats, carried], [*integers, index], depth)]

        step = self.random.choice([1, 2, -1])
        bounds = self.below(integers, 4), self.below(integers, 5), self.builder.constant(step)
        (result,) = self.builder.loop(bounds, [self.random.choice(floats)], body)
        return result

    def loop_while(self, floats: list[Value], integers: list[Value], depth: int) -> Value:
        builder = self.builder

        def condition(left: Value, carried: Value) -> Yields:
            return [builder.compute("greater", left, builder.constant(0))]

        def body(left: Value, carried: Value) -> Yields:
            value = self.block([*floats, carried], [*integers, left], depth)
            return [builder.compute("subtract", left, builder.constant(1)), value]

        initial = [self.below(integers, 4), self.random.choice(floats)]
        return builder.loop_while(initial, condition, body)[1]


def random_unit(seed: int, policy: str = "switch") -> ir.Unit:
    """Build a unit with a `RandomBody`; its parameters are ``x``, ``k``, ``t`` and ``out``."""
    builder = UnitBuilder(f"random{seed}")
    builder.array("x", f64)
    builder.array("k", i64)
    builder.array("t", f64)
    builder.array("out", f64, written=True)
    extent = builder.extent("x")
    return builder.finish([extent], RandomBody(builder, seed, policy).write)


def random_arguments(seed: int, count: int) -> tuple[np.ndarray[Any, Any], ...]:
    """Give arguments of a `random_unit` with `count` positions."""
    generator = np.random.default_rng(seed)
    return (
        generator.normal(size=count),
        generator.integers(-9, 9, count),
        generator.normal(size=8),
        np.zeros(count),
    )
