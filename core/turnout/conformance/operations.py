"""One kernel per row of the table of operations and element type, and one per pair of a cast."""

# Without ``from __future__ import annotations``: the annotations of these kernels name closure
# variables, which only annotations that are evaluated where they stand can see.
# mypy: disable-error-code="valid-type,no-untyped-def,untyped-decorator"

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import turnout as tn
import turnout.math as tm
from turnout import NDArray, Param, bool_
from turnout.plugin import OPERATIONS, Operation, ir

from .cases import Case, anything, capabilities, edges, operand_rows

NOT_CORRECTLY_ROUNDED_EVERYWHERE = ("divide", "sqrt", "rsqrt")
"""Exact operations that some devices do not round correctly in f32: a capability."""

_KINDS = {"float": "f", "integer": "iu", "number": "fiu", "bits": "iub", "any": "fiub"}


@tn.func
def add(x, y):
    return x + y


@tn.func
def subtract(x, y):
    return x - y


@tn.func
def multiply(x, y):
    return x * y


@tn.func
def divide(x, y):
    return x / y


@tn.func
def floor_divide(x, y):
    return x // y


@tn.func
def remainder(x, y):
    return x % y


@tn.func
def negative(x):
    return -x


@tn.func
def integer_power(x, y):
    return x**y


@tn.func
def bit_and(x, y):
    return x & y


@tn.func
def bit_or(x, y):
    return x | y


@tn.func
def bit_xor(x, y):
    return x ^ y


@tn.func
def bit_not(x):
    return ~x


@tn.func
def shift_left(x, y):
    return x << y


@tn.func
def shift_right(x, y):
    return x >> y


@tn.func
def equal(x, y):
    return x == y


@tn.func
def not_equal(x, y):
    return x != y


@tn.func
def less(x, y):
    return x < y


@tn.func
def less_equal(x, y):
    return x <= y


@tn.func
def greater(x, y):
    return x > y


@tn.func
def greater_equal(x, y):
    return x >= y


_OPERATORS = {
    helper.__name__: helper
    for helper in (
        add, subtract, multiply, divide, floor_divide, remainder, negative, integer_power,
        bit_and, bit_or, bit_xor, bit_not, shift_left, shift_right,
        equal, not_equal, less, less_equal, greater, greater_equal,
    )
}  # fmt: skip


def spelling(name: str) -> Any:
    """How kernels spell an operation: an operator, a function of turnout.math, or None."""
    return _OPERATORS.get(name) or getattr(tm, name, None)


def _unary(function: Any, dtype: Any, result: Any) -> Callable[..., Any]:
    def apply(x: NDArray[dtype, 1], out: NDArray[result, 1]) -> None:
        for i in range(out.shape[0]):
            out[i] = function(x[i])

    return apply


def _binary(function: Any, dtype: Any, result: Any) -> Callable[..., Any]:
    def apply(x: NDArray[dtype, 1], y: NDArray[dtype, 1], out: NDArray[result, 1]) -> None:
        for i in range(out.shape[0]):
            out[i] = function(x[i], y[i])

    return apply


def _ternary(function: Any, dtype: Any, result: Any) -> Callable[..., Any]:
    first = bool_ if function is tm.select else dtype

    def apply(
        x: NDArray[first, 1], y: NDArray[dtype, 1], z: NDArray[dtype, 1], out: NDArray[result, 1]
    ) -> None:
        for i in range(out.shape[0]):
            out[i] = function(x[i], y[i], z[i])

    return apply


def _guarded_unary(function: Any, dtype: Any) -> Callable[..., Any]:
    def apply(
        taken: NDArray[bool_, 1],
        u: Param[dtype],
        x: NDArray[dtype, 1],
        out: NDArray[dtype, 1],
        uniform: NDArray[dtype, 1],
    ) -> None:
        for i in range(out.shape[0]):
            if taken[i]:
                out[i] = function(x[i])
            uniform[i] = function(u)

    return apply


def _guarded_binary(function: Any, dtype: Any) -> Callable[..., Any]:
    def apply(
        taken: NDArray[bool_, 1],
        u: Param[dtype],
        v: Param[dtype],
        x: NDArray[dtype, 1],
        y: NDArray[dtype, 1],
        out: NDArray[dtype, 1],
        uniform: NDArray[dtype, 1],
    ) -> None:
        for i in range(out.shape[0]):
            if taken[i]:
                out[i] = function(x[i], y[i])
            uniform[i] = function(u, v)

    return apply


def kernel_named(name: str, function: Callable[..., Any]) -> tn.Kernel:
    """A kernel of a function that a factory made, under a name that tells which one it is."""
    function.__name__ = function.__qualname__ = name
    return tn.kernel(function)


@functools.cache
def operation_kernel(name: str, dtype: ir.DType) -> tn.Kernel:
    """``out[i] = operation(x[i], ...)`` for operands of one type."""
    row = OPERATIONS[name]
    if spelling(name) is None:
        raise LookupError(
            f"the operation {name!r} has no kernel in the conformance suite: give it a function of "
            "this name in turnout.math, or an operator in turnout.conformance.operations"
        )
    make = {1: _unary, 2: _binary, 3: _ternary}[row.arity]
    result = bool_ if row.result == "bool" else dtype
    return kernel_named(f"{name}_{dtype}", make(spelling(name), dtype, result))


@functools.cache
def guarded_kernel(name: str, dtype: ir.DType) -> tn.Kernel:
    """The operation under a condition in `out`, and of numbers for the launch in `uniform`."""
    make = {1: _guarded_unary, 2: _guarded_binary}[OPERATIONS[name].arity]
    return kernel_named(f"guarded_{name}_{dtype}", make(spelling(name), dtype))


def operand_dtypes(row: Operation, dtype: ir.DType) -> tuple[ir.DType, ...]:
    """The types of the operands of a row that is used for `dtype`."""
    return (bool_, dtype, dtype) if row.name == "select" else (dtype,) * row.arity


def typed_rows() -> Iterator[tuple[Operation, ir.DType, tuple[str, ...]]]:
    """Every row of the table with every type that it allows, and the capabilities it needs."""
    for row in OPERATIONS.values():
        for dtype in ir.ALL_DTYPES:
            if dtype.kind in _KINDS[row.operands]:
                rounds = row.name in NOT_CORRECTLY_ROUNDED_EVERYWHERE and dtype is ir.f32
                needs = ("correct_rounding",) if rounds else ()
                yield row, dtype, capabilities(dtype) + needs


def _operation_case(row: Operation, dtype: ir.DType, needs: tuple[str, ...]) -> Case:
    kernel = operation_kernel(row.name, dtype)
    result = bool_ if row.result == "bool" else dtype

    def arguments(random: np.random.Generator, size: int) -> tuple[Any, ...]:
        return *operand_rows(random, operand_dtypes(row, dtype), size), np.zeros(size, result)

    return Case(kernel.__name__, kernel, arguments, needs, as_python=False)


def _cast(source: Any, target: Any) -> Callable[..., Any]:
    def cast(x: NDArray[source, 1], out: NDArray[target, 1]) -> None:
        for i in range(out.shape[0]):
            out[i] = target(x[i])

    return cast


@functools.cache
def cast_kernel(source: ir.DType, target: ir.DType) -> tn.Kernel:
    """``out[i] = target(x[i])``."""
    return kernel_named(f"cast_{source}_to_{target}", _cast(source, target))


def typed_casts() -> Iterator[tuple[ir.DType, ir.DType, tuple[str, ...]]]:
    """Every pair of types, and the capabilities that its cast needs."""
    for source in ir.ALL_DTYPES:
        for target in ir.ALL_DTYPES:
            yield source, target, capabilities(source, target)


def cast_operands(random: np.random.Generator, source: ir.DType, size: int) -> Any:
    """Values to cast: edges, the limits of all integer types as floats, and random values."""
    values = [edges(source)]
    if source.is_float:
        limits = [
            float(limit) + step
            for dtype in ir.ALL_DTYPES
            if dtype.is_integer
            for limit in (dtype.minimum, dtype.maximum)
            for step in (-1.0, -0.5, 0.0, 0.5, 1.0)
        ]
        exact = np.array(limits, source)
        values += [exact, np.nextafter(exact, -np.inf), np.nextafter(exact, np.inf)]
    return np.resize(np.concatenate([*values, anything(random, source, 200)]), size)


def _cast_case(source: ir.DType, target: ir.DType, needs: tuple[str, ...]) -> Case:
    kernel = cast_kernel(source, target)

    def arguments(random: np.random.Generator, size: int) -> tuple[Any, ...]:
        return cast_operands(random, source, size), np.zeros(size, target)

    return Case(kernel.__name__, kernel, arguments, needs, as_python=False)


def operation_cases() -> tuple[Case, ...]:
    """Every operation in every type."""
    return tuple(_operation_case(*row) for row in typed_rows() if spelling(row[0].name))


def cast_cases() -> tuple[Case, ...]:
    """Every cast."""
    return tuple(_cast_case(*pair) for pair in typed_casts())
