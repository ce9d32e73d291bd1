"""Calls of math functions that give the same bits in every position of a loop.

A loop that LLVM vectorises computes most samples in vectors and the rest one by one. Calling the
vector library for the former and libm for the latter would give a sample different bits depending
on where it stands. So every function is called through one wrapper for single values, which uses
the routine that `turnout_cpu.vector_math` names; the vectoriser may replace calls of the wrapper
by that very routine, and by nothing else. Code that is written in vectors from the start calls the
same routine on all of its lanes.
"""

from __future__ import annotations

from collections.abc import Iterable

from turnout.plugin import ir

from . import vector_math
from .text import FunctionText, ModuleText, ValueType, type_of
from .vector_math import VectorFunction

_PURE = "nounwind willreturn memory(none)"
# Inlining would hide the call from the vectoriser; without `noinline` it comes first.
_WRAPPER = f"noinline {_PURE}"
# `nobuiltin`: LLVM knows functions by name and would fold constant arguments or turn pow(x, 2.0)
# into x * x, which gives other bits than the call at run time.
_LIBM_CALL = f"nobuiltin {_PURE}"
_HARMLESS = 0.5
"""An ordinary argument of every function."""


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


def call_in_lanes(
    function: FunctionText,
    operation: str,
    kind: ValueType,
    operands: tuple[str, ...],
    isa: vector_math.Isa | None,
    mask: str | None,
) -> str:
    """Call a math function on vectors, for the lanes of `mask` or all; the rest is arbitrary."""
    module, dtype, lanes = function.module, kind.dtype, kind.lanes
    vector = routine(operation, dtype, isa)
    if vector is None:
        return _call_each_lane(function, operation, kind, operands, mask)
    scalar = type_of(dtype)
    name = vector.symbol
    _declare(module, vector, scalar)
    if lanes != vector.lanes:
        name = f"turnout_{operation}_{dtype}_inline_{lanes}"
        lines = _resized(scalar, vector, lanes)
        _define(module, name, str(kind), vector.arity, lines, attributes=_PURE)
    if mask is not None:
        # Special cases are slow in the whole vector.
        condition, harmless = kind.like(ir.bool_), kind.literal(_HARMLESS)
        operands = tuple(
            function.value(f"select {condition} {mask}, {kind} {operand}, {kind} {harmless}")
            for operand in operands
        )
    arguments = ", ".join(f"{kind} {operand}" for operand in operands)
    return function.value(f"call {kind} @{name}({arguments}) {_PURE}")


def _call_each_lane(
    function: FunctionText,
    operation: str,
    kind: ValueType,
    operands: tuple[str, ...],
    mask: str | None,
) -> str:
    """Call the wrapper for one value in every lane that counts, in a loop over them."""
    dtype, lanes = kind.dtype, kind.lanes
    wrapper, name = f"turnout_{operation}_{dtype}", f"turnout_{operation}_{dtype}_each_{lanes}"
    scalar, bits = type_of(dtype), f"i{lanes}"
    _define_libm_wrapper(function.module, wrapper, operation, dtype)
    places = range(len(operands))
    arguments = ", ".join(f"{scalar} %y{k}" for k in places)
    condition = kind.like(ir.bool_)
    text = [
        f"define internal {kind} @{name}({_arguments(str(kind), 'x', len(operands))}, "
        f"{condition} %mask) {_WRAPPER} {{",
        "entry:",
        f"  %all = bitcast {condition} %mask to {bits}",
        "  br label %loop",
        "loop:",
        f"  %left = phi {bits} [ %all, %entry ], [ %left.next, %more ]",
        f"  %result = phi {kind} [ zeroinitializer, %entry ], [ %result.next, %more ]",
        f"  %is.done = icmp eq {bits} %left, 0",
        "  br i1 %is.done, label %done, label %more",
        "more:",
        f"  %lane = call {bits} @llvm.cttz.{bits}({bits} %left, i1 true)",
        *(f"  %y{k} = extractelement {kind} %x{k}, {bits} %lane" for k in places),
        f"  %z = call {scalar} @{wrapper}({arguments}) {_PURE}",
        f"  %result.next = insertelement {kind} %result, {scalar} %z, {bits} %lane",
        f"  %others = sub {bits} %left, 1",
        f"  %left.next = and {bits} %left, %others",
        "  br label %loop",
        "done:",
        f"  ret {kind} %result",
        "}",
    ]
    function.module.define(name, "\n".join(text))
    given = ", ".join(f"{kind} {operand}" for operand in operands)
    mask = mask or condition.literal(True)
    return function.value(f"call {kind} @{name}({given}, {condition} {mask}) {_PURE}")


def routine(operation: str, dtype: ir.DType, isa: vector_math.Isa | None) -> VectorFunction | None:
    """Find the vector routine of a math function, None where libm computes it."""
    return vector_math.vector_function(operation, _width(dtype), isa)


def has_routine(operation: str, dtype: ir.DType, isa: vector_math.Isa | None) -> bool:
    """Whether an operation is a math function with a vector routine."""
    return operation in vector_math.ARITY and routine(operation, dtype, isa) is not None


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
    _declare(module, vector, scalar)
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
    other = lanes // 2 if scalar == "float" else lanes * 2
    resized = f"{wrapper}_{other}"
    lines = _resized(scalar, vector, other)
    # Vectors wait on the stack for the second call; see `turnout_cpu.body.SIGNATURE`.
    attributes = f"{_WRAPPER} alignstack(64)"
    _define(module, resized, f"<{other} x {scalar}>", arity, lines, attributes=attributes)
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
    harmless = f"splat ({scalar} {_HARMLESS})"
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


def _declare(module: ModuleText, vector: VectorFunction, scalar: str) -> None:
    wide = f"<{vector.lanes} x {scalar}>"
    arguments = ", ".join([wide] * vector.arity)
    module.define(vector.symbol, f"declare {wide} @{vector.symbol}({arguments})")


def _resized(scalar: str, vector: VectorFunction, lanes: int) -> list[str]:
    """The routine on fewer lanes, which are repeated, or on more of them, a part at a time."""
    wide, given = f"<{vector.lanes} x {scalar}>", f"<{lanes} x {scalar}>"
    lines, parts = [], []
    for first in range(0, lanes, vector.lanes):
        mask = _mask((first + lane) % lanes for lane in range(vector.lanes))
        for k in range(vector.arity):
            operands = f"{given} %x{k}, {given} poison"
            lines.append(f"%part{first}.{k} = shufflevector {operands}, {mask}")
        arguments = _arguments(wide, f"part{first}.", vector.arity)
        lines.append(f"%r{first} = call {wide} @{vector.symbol}({arguments}) {_PURE}")
        parts.append(f"%r{first}")
    return [*lines, *_joined(scalar, parts, vector.lanes, lanes)]


def _joined(scalar: str, parts: list[str], width: int, lanes: int) -> list[str]:
    """Put parts of `width` lanes together, two at a time; the last one gives ``%result``."""
    lines = []
    while width < lanes:
        both, pairs = _mask(range(2 * width)), list(zip(parts[::2], parts[1::2], strict=True))
        parts = [f"{low}.{2 * width}" for low, _ in pairs]
        narrow = f"<{width} x {scalar}>"
        lines += [
            f"{name} = shufflevector {narrow} {low}, {narrow} {high}, {both}"
            for name, (low, high) in zip(parts, pairs, strict=True)
        ]
        width *= 2
    wide, first = f"<{width} x {scalar}>", _mask(range(lanes))
    return [*lines, f"%result = shufflevector {wide} {parts[0]}, {wide} poison, {first}"]


def _define(
    module: ModuleText,
    name: str,
    wanted: str,
    arity: int,
    lines: list[str],
    mask: str = "",
    attributes: str = _WRAPPER,
) -> None:
    """Define a function of `arity` arguments ``%x<k>`` whose lines compute ``%result``."""
    parameters = _arguments(wanted, "x", arity) + mask
    header = f"define internal {wanted} @{name}({parameters}) {attributes} {{"
    module.define(name, "\n  ".join([header, *lines, f"ret {wanted} %result"]) + "\n}")


def _arguments(wanted: str, prefix: str, arity: int) -> str:
    return ", ".join(f"{wanted} %{prefix}{k}" for k in range(arity))


def _mask(lanes: Iterable[int]) -> str:
    entries = [f"i32 {lane}" for lane in lanes]
    return f"<{len(entries)} x i32> <{', '.join(entries)}>"
