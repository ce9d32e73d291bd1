"""Calls of math functions that give the same bits in every position of a loop.

A loop that LLVM vectorises computes most samples in vectors and the rest one by one. Calling the
vector library for the former and libm for the latter would give a sample different bits depending
on where it stands. So every function is called through one wrapper for single values, which uses
the routine that `turnout_cpu.vector_math` names; the vectoriser may replace calls of the wrapper
by that very routine, and by nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable

from turnout.plugin import ir

from . import vector_math
from .text import FunctionText, ModuleText, type_of
from .vector_math import VectorFunction

_PURE = "nounwind willreturn memory(none)"
# Inlining would hide the call from the vectoriser; without `noinline` it comes first.
_WRAPPER = f"noinline {_PURE}"
# `nobuiltin`: LLVM knows functions by name and would fold constant arguments or turn pow(x, 2.0)
# into x * x, which gives other bits than the call at run time.
_LIBM_CALL = f"nobuiltin {_PURE}"


def call(
    function: FunctionText,
    operation: str,
    dtype: ir.DType,
    operands: tuple[str, ...],
    isa: vector_math.Isa | None,
) -> str:
    """Call the wrapper of a math function, defining it where it is missing."""
    wrapper = f"turnout_{operation}_{dtype}"
    vector = routine(operation, dtype, isa)
    scalar = type_of(dtype)
    attributes = _PURE
    if vector is None:
        _define_libm_wrapper(function.module, wrapper, operation, dtype)
    else:
        variants = _define_vector_wrapper(function.module, wrapper, scalar, vector)
        attributes += f' "vector-function-abi-variant"="{variants}"'
    arguments = ", ".join(f"{scalar} {operand}" for operand in operands)
    return function.value(f"call {scalar} @{wrapper}({arguments}) {attributes}")


def routine(operation: str, dtype: ir.DType, isa: vector_math.Isa | None) -> VectorFunction | None:
    """Find the vector routine of a math function, None where libm computes it."""
    return vector_math.vector_function(operation, _width(dtype), isa)


def _width(dtype: ir.DType) -> vector_math.Dtype:
    return "f32" if dtype.bits == 32 else "f64"


def _define_libm_wrapper(module: ModuleText, wrapper: str, operation: str, dtype: ir.DType) -> None:
    symbol = vector_math.libm_symbol(operation, _width(dtype))
    scalar, arity = type_of(dtype), vector_math.ARITY[operation]
    module.define(symbol, f"declare {scalar} @{symbol}({', '.join([scalar] * arity)})")
    lines = [f"%result = call {scalar} @{symbol}({_arguments(scalar, 'x', arity)}) {_LIBM_CALL}"]
    _define(module, wrapper, scalar, arity, lines)


def _define_vector_wrapper(
    module: ModuleText, wrapper: str, scalar: str, vector: VectorFunction
) -> str:
    """Define the wrapper and its vector forms; return the value of the variant attribute."""
    lanes, arity = vector.lanes, vector.arity
    wide = f"<{lanes} x {scalar}>"
    module.define(vector.symbol, f"declare {wide} @{vector.symbol}({', '.join([wide] * arity)})")
    lines = []
    for k in range(arity):
        lines += [
            f"%i{k} = insertelement {wide} poison, {scalar} %x{k}, i32 0",
            f"%v{k} = shufflevector {wide} %i{k}, {wide} poison, <{lanes} x i32> zeroinitializer",
        ]
    lines += [
        f"%r = call {wide} @{vector.symbol}({_arguments(wide, 'v', arity)}) {_PURE}",
        f"%result = extractelement {wide} %r, i32 0",
    ]
    _define(module, wrapper, scalar, arity, lines)
    # LLVM would drop an argument that is the same constant in every call, after which the vector
    # forms do not fit the call any more.
    module.keep(wrapper)
    # Loops that mix float32 and float64 run both at one number of lanes.
    if scalar == "float":
        other, lines = lanes // 2, _halved(scalar, vector)
    else:
        other, lines = lanes * 2, _doubled(scalar, vector)
    resized = f"{wrapper}_{other}"
    _define(module, resized, f"<{other} x {scalar}>", arity, lines)
    module.keep(resized)
    variants = []
    for width, name in ((lanes, vector.symbol), (other, resized)):
        masked = f"{wrapper}_masked_{width}"
        _define_masked(module, masked, scalar, width, arity, name)
        module.keep(masked)
        variants += [
            vector_math.variant(wrapper, width, arity, name),
            vector_math.variant(wrapper, width, arity, masked, is_masked=True),
        ]
    return ",".join(variants)


def _define_masked(
    module: ModuleText, name: str, scalar: str, lanes: int, arity: int, callee: str
) -> None:
    """Define the form for calls in a branch, with a mask of the lanes that take it.

    The other lanes get a harmless argument, because special cases are slow in the whole vector; and
    where no lane takes the branch, the routine does not run.
    """
    wide, mask = f"<{lanes} x {scalar}>", f"<{lanes} x i1>"
    harmless = f"splat ({scalar} 0.5)"
    lines = [
        f"%bits = bitcast {mask} %mask to i{lanes}",
        f"%is.idle = icmp eq i{lanes} %bits, 0",
        "br i1 %is.idle, label %idle, label %busy",
        "idle:",
        f"ret {wide} zeroinitializer",
        "busy:",
        *(f"%v{k} = select {mask} %mask, {wide} %x{k}, {wide} {harmless}" for k in range(arity)),
        f"%result = call {wide} @{callee}({_arguments(wide, 'v', arity)}) {_PURE}",
    ]
    _define(module, name, wide, arity, lines, f", {mask} %mask")


def _halved(scalar: str, vector: VectorFunction) -> list[str]:
    """The routine on half its lanes: they are given twice, and half of the result is used."""
    half = vector.lanes // 2
    narrow, wide = f"<{half} x {scalar}>", f"<{vector.lanes} x {scalar}>"
    twice = _mask([*range(half), *range(half)])
    return [
        *(
            f"%v{k} = shufflevector {narrow} %x{k}, {narrow} poison, {twice}"
            for k in range(vector.arity)
        ),
        f"%r = call {wide} @{vector.symbol}({_arguments(wide, 'v', vector.arity)}) {_PURE}",
        f"%result = shufflevector {wide} %r, {wide} poison, {_mask(range(half))}",
    ]


def _doubled(scalar: str, vector: VectorFunction) -> list[str]:
    """The routine on twice its lanes: it is called on each half."""
    lanes = vector.lanes
    narrow, wide = f"<{lanes} x {scalar}>", f"<{lanes * 2} x {scalar}>"
    lines = []
    for half, first in (("low", 0), ("high", lanes)):
        mask = _mask(range(first, first + lanes))
        lines += [
            f"%{half}{k} = shufflevector {wide} %x{k}, {wide} poison, {mask}"
            for k in range(vector.arity)
        ]
        arguments = _arguments(narrow, half, vector.arity)
        lines.append(f"%{half} = call {narrow} @{vector.symbol}({arguments}) {_PURE}")
    both = _mask(range(lanes * 2))
    return [*lines, f"%result = shufflevector {narrow} %low, {narrow} %high, {both}"]


def _define(
    module: ModuleText, name: str, wanted: str, arity: int, lines: list[str], mask: str = ""
) -> None:
    """Define a function of `arity` arguments ``%x<k>`` whose lines compute ``%result``."""
    parameters = _arguments(wanted, "x", arity) + mask
    header = f"define internal {wanted} @{name}({parameters}) {_WRAPPER} {{"
    module.define(name, "\n  ".join([header, *lines, f"ret {wanted} %result"]) + "\n}")


def _arguments(wanted: str, prefix: str, arity: int) -> str:
    return ", ".join(f"{wanted} %{prefix}{k}" for k in range(arity))


def _mask(lanes: Iterable[int]) -> str:
    entries = [f"i32 {lane}" for lane in lanes]
    return f"<{len(entries)} x i32> <{', '.join(entries)}>"
