"""How each operation of the IR is spelt in LLVM IR, on values of one type.

One entry of `SPELLINGS` per row of the core's table of operations, except for the math functions,
which `turnout_cpu.mathematics` turns into calls. An entry takes the function that is being written,
the type of the operands, which may be vectors, and their names; it returns the name of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from string import Template

from turnout.plugin import ir

from .text import FunctionText, ValueType

Spelling = Callable[..., str]


def cast(function: FunctionText, source: ValueType, target: ValueType, operand: str) -> str:
    """Convert a value, with the meaning of `turnout.ir.Cast`; both types have as many lanes."""
    given, wanted = source.dtype, target.dtype
    if given is wanted:
        return operand
    if wanted.is_bool:
        # `une` makes NaN true.
        comparison = "fcmp une" if given.is_float else "icmp ne"
        return function.value(f"{comparison} {source} {operand}, {source.literal(0)}")
    if given.is_float and wanted.is_integer:
        return _saturated(function, source, target, operand)
    return function.value(f"{_conversion(given, wanted)} {source} {operand} to {target}")


def _saturated(function: FunctionText, source: ValueType, target: ValueType, operand: str) -> str:
    """Float to integer. LLVM has an intrinsic for it, but takes vectors apart lane by lane."""
    value = function.value
    minimum, maximum = target.dtype.minimum, target.dtype.maximum
    signedness = "s" if target.dtype.kind == "i" else "u"
    condition = source.like(ir.bool_)
    # Both limits are powers of two or 0, so they are exact as floats; NaN is on neither side.
    is_above = value(f"fcmp oge {source} {operand}, {source.literal(float(maximum + 1))}")
    reaches = value(f"fcmp oge {source} {operand}, {source.literal(float(minimum))}")
    fits = value(f"xor {condition} {reaches}, {is_above}")
    # What does not fit must not be converted: LLVM leaves the result undefined.
    safe = _choose(function, source, fits, operand, source.literal(0.0))
    result = value(f"fpto{signedness}i {source} {safe} to {target}")
    result = _choose(function, target, is_above, target.literal(maximum), result)
    if minimum == 0:
        return result
    is_below = value(f"fcmp olt {source} {operand}, {source.literal(float(minimum))}")
    return _choose(function, target, is_below, target.literal(minimum), result)


def _conversion(source: ir.DType, target: ir.DType) -> str:
    if source.is_float:
        return "fpext" if target.bits > source.bits else "fptrunc"
    if target.is_float:
        return "sitofp" if source.kind == "i" else "uitofp"
    if source.is_bool:
        return "zext"
    if source.bits == target.bits:
        return "bitcast"
    if source.bits > target.bits:
        return "trunc"
    return "sext" if source.kind == "i" else "zext"


def _instruction(*, real: str = "", bits: str = "") -> Spelling:
    """One LLVM instruction for floats and one for integers, and bools where they are allowed."""

    def spell(function: FunctionText, kind: ValueType, x: str, y: str) -> str:
        instruction = f"{real} {function.flags}" if kind.dtype.is_float else f"{bits} "
        return function.value(f"{instruction}{kind} {x}, {y}")

    return spell


def _comparison(real: str, signed: str, unsigned: str) -> Spelling:
    by_kind = {
        "f": f"fcmp {real}",
        "i": f"icmp {signed}",
        "u": f"icmp {unsigned}",
        "b": f"icmp {unsigned}",
    }

    def spell(function: FunctionText, kind: ValueType, x: str, y: str) -> str:
        return function.value(f"{by_kind[kind.dtype.kind]} {kind} {x}, {y}")

    return spell


def _intrinsic(*, real: str = "", signed: str = "", unsigned: str = "") -> Spelling:
    """One LLVM intrinsic per kind of operand."""
    by_kind = {"f": real, "i": signed, "u": unsigned}

    def spell(function: FunctionText, kind: ValueType, *operands: str) -> str:
        return intrinsic(function, by_kind[kind.dtype.kind], kind, *operands)

    return spell


def intrinsic(function: FunctionText, name: str, kind: ValueType, *operands: str) -> str:
    """Call an LLVM intrinsic whose operands and result all have the type `kind`."""
    flags = function.flags if kind.dtype.is_float else ""
    arguments = ", ".join(f"{kind} {operand}" for operand in operands)
    return function.value(f"call {flags}{kind} @llvm.{name}.{kind.suffix}({arguments})")


def _choose(function: FunctionText, kind: ValueType, condition: str, x: str, y: str) -> str:
    return function.value(f"select {kind.like(ir.bool_)} {condition}, {kind} {x}, {kind} {y}")


def any_true(function: FunctionText, lanes: int, condition: str) -> str:
    """Whether a condition holds in some lane."""
    if lanes == 1:
        return condition
    bits = function.value(f"bitcast <{lanes} x i1> {condition} to i{lanes}")
    return function.value(f"icmp ne i{lanes} {bits}, 0")


def _helper(text: str, **words: str) -> Spelling:
    """A call of an internal function of two operands, defined once per module and type."""

    def spell(function: FunctionText, kind: ValueType, x: str, y: str) -> str:
        name = f"@turnout_{words['name']}_{kind.dtype}_{kind.lanes}"
        condition = kind.like(ir.bool_)
        definition = Template(text).substitute(
            words,
            function=f"internal {kind} {name}({kind} %x, {kind} %y)",
            type=kind,
            suffix=kind.suffix,
            condition=condition,
            lanes=str(kind.lanes),
            zero=kind.literal(0),
            one=kind.literal(1),
            minus_one=kind.literal(-1),
            half=kind.literal(0.5),
            signed=condition.literal(kind.dtype.kind == "i"),
        )
        function.module.define(name, definition)
        return function.value(f"call {kind} {name}({kind} {x}, {kind} {y})")

    return spell


_DIVISION = """\
; Python's division of floats as NumPy computes it: from the exact fmod, the quotient snapped to the
; nearest integer, zeros of the right sign, and what IEEE division gives for a zero divisor.
define $function nounwind willreturn memory(none) {
  %fmod = frem $type %x, %y
  %ratio = fdiv $type %x, %y
  %y.nonzero = fcmp une $type %y, $zero
  %difference = fsub $type %x, %fmod
  %quotient = fdiv $type %difference, %y
  %y.negative = fcmp olt $type %y, $zero
  %fmod.negative = fcmp olt $type %fmod, $zero
  %signs.differ = xor $condition %y.negative, %fmod.negative
  %fmod.nonzero = fcmp une $type %fmod, $zero
  %adjust = and $condition %fmod.nonzero, %signs.differ
  %zero = call $type @llvm.copysign.$suffix($type $zero, $type %y)
  %fmod.plus.y = fadd $type %fmod, %y
  %fmod.or.zero = select $condition %fmod.nonzero, $type %fmod, $type %zero
  %remainder = select $condition %adjust, $type %fmod.plus.y, $type %fmod.or.zero
  %quotient.less.one = fsub $type %quotient, $one
  %div = select $condition %adjust, $type %quotient.less.one, $type %quotient
  %floor = call $type @llvm.floor.$suffix($type %div)
  %lost = fsub $type %div, %floor
  %too.low = fcmp ogt $type %lost, $half
  %floor.plus.one = fadd $type %floor, $one
  %snapped = select $condition %too.low, $type %floor.plus.one, $type %floor
  %div.nonzero = fcmp une $type %div, $zero
  %signed.zero = call $type @llvm.copysign.$suffix($type $zero, $type %ratio)
  %floor_divide = select $condition %div.nonzero, $type %snapped, $type %signed.zero
  %result = select $condition %y.nonzero, $type %$name, $type $by_zero
  ret $type %result
}"""

_float_floor_divide = _helper(_DIVISION, name="floor_divide", by_zero="%ratio")
_float_remainder = _helper(_DIVISION, name="remainder", by_zero="%fmod")


_integer_power = _helper(
    """\
; Repeated squaring; a negative exponent gives 1 // x**-y truncated: 0 except for x = 1 and x = -1.
define $function nounwind willreturn memory(none) {
entry:
  %below.zero = icmp slt $type %y, $zero
  %negative = and $condition %below.zero, $signed
  %exponent = select $condition %negative, $type $zero, $type %y
  br label %loop
loop:
  %power = phi $type [ $one, %entry ], [ %power.next, %more ]
  %square = phi $type [ %x, %entry ], [ %square.next, %more ]
  %left = phi $type [ %exponent, %entry ], [ %left.next, %more ]
  %is.left = icmp ne $type %left, $zero
  %bits = bitcast $condition %is.left to i$lanes
  %finished = icmp eq i$lanes %bits, 0
  br i1 %finished, label %done, label %more
more:
  %odd = trunc $type %left to $condition
  %product = mul $type %power, %square
  %power.next = select $condition %odd, $type %product, $type %power
  %square.next = mul $type %square, %square
  %left.next = lshr $type %left, $one
  br label %loop
done:
  %is.one = icmp eq $type %x, $one
  %is.minus.one = icmp eq $type %x, $minus_one
  %y.odd = trunc $type %y to $condition
  %alternating = select $condition %y.odd, $type $minus_one, $type $one
  %minus.one.or.zero = select $condition %is.minus.one, $type %alternating, $type $zero
  %reciprocal = select $condition %is.one, $type $one, $type %minus.one.or.zero
  %result = select $condition %negative, $type %reciprocal, $type %power
  ret $type %result
}""",
    name="integer_power",
)


def _floor_divide(function: FunctionText, kind: ValueType, x: str, y: str) -> str:
    if kind.dtype.is_float:
        return _float_floor_divide(function, kind, x, y)
    return _integer_division(function, kind, x, y)[0]


def _remainder(function: FunctionText, kind: ValueType, x: str, y: str) -> str:
    if kind.dtype.is_float:
        return _float_remainder(function, kind, x, y)
    return _integer_division(function, kind, x, y)[1]


def _integer_division(function: FunctionText, kind: ValueType, x: str, y: str) -> tuple[str, str]:
    """Quotient and remainder; a zero divisor gives 0 for both."""
    value = function.value
    zero, one, condition = kind.literal(0), kind.literal(1), kind.like(ir.bool_)
    is_zero = value(f"icmp eq {kind} {y}, {zero}")
    if kind.dtype.kind == "u":
        divisor = _choose(function, kind, is_zero, one, y)
        quotient = value(f"udiv {kind} {x}, {divisor}")
        remainder = value(f"urem {kind} {x}, {divisor}")
    else:
        # Dividing by -1 is negating, which wraps; LLVM leaves the smallest integer over -1
        # undefined and the processor traps on it.
        is_minus_one = value(f"icmp eq {kind} {y}, {kind.literal(-1)}")
        unsafe = value(f"or {condition} {is_zero}, {is_minus_one}")
        divisor = _choose(function, kind, unsafe, one, y)
        truncated = value(f"sdiv {kind} {x}, {divisor}")
        left = value(f"srem {kind} {x}, {divisor}")
        signs = value(f"xor {kind} {left}, {divisor}")
        signs_differ = value(f"icmp slt {kind} {signs}, {zero}")
        is_inexact = value(f"icmp ne {kind} {left}, {zero}")
        adjust = value(f"and {condition} {signs_differ}, {is_inexact}")
        less = value(f"zext {condition} {adjust} to {kind}")
        floored = value(f"sub {kind} {truncated}, {less}")
        correction = _choose(function, kind, adjust, divisor, zero)
        remainder = value(f"add {kind} {left}, {correction}")
        negated = value(f"sub {kind} {zero}, {x}")
        quotient = _choose(function, kind, is_minus_one, negated, floored)
    return (
        _choose(function, kind, is_zero, zero, quotient),
        _choose(function, kind, is_zero, zero, remainder),
    )


def _fmod(function: FunctionText, kind: ValueType, x: str, y: str) -> str:
    return function.value(f"frem {kind} {x}, {y}")


def _negative(function: FunctionText, kind: ValueType, x: str) -> str:
    if kind.dtype.is_float:
        return function.value(f"fneg {kind} {x}")
    return function.value(f"sub {kind} {kind.literal(0)}, {x}")


def _abs(function: FunctionText, kind: ValueType, x: str) -> str:
    if kind.dtype.is_float:
        return intrinsic(function, "fabs", kind, x)
    if kind.dtype.kind == "u":
        return x
    return function.value(f"call {kind} @llvm.abs.{kind.suffix}({kind} {x}, i1 false)")


def _sign(function: FunctionText, kind: ValueType, x: str) -> str:
    one, zero = kind.literal(1), kind.literal(0)
    positive = SPELLINGS["greater"](function, kind, x, zero)
    if kind.dtype.kind == "u":
        return _choose(function, kind, positive, one, zero)
    negative = SPELLINGS["less"](function, kind, x, zero)
    result = _choose(function, kind, negative, kind.literal(-1), zero)
    result = _choose(function, kind, positive, one, result)
    if kind.dtype.is_integer:
        return result
    is_nan = function.value(f"fcmp uno {kind} {x}, {x}")
    return _choose(function, kind, is_nan, x, result)


def _bit_not(function: FunctionText, kind: ValueType, x: str) -> str:
    ones = kind.literal(True if kind.dtype.is_bool else -1)
    return function.value(f"xor {kind} {x}, {ones}")


def _shift_left(function: FunctionText, kind: ValueType, x: str, count: str) -> str:
    return _shift_or_zero(function, kind, "shl", x, count)


def _shift_right(function: FunctionText, kind: ValueType, x: str, count: str) -> str:
    if kind.dtype.kind == "u":
        return _shift_or_zero(function, kind, "lshr", x, count)
    # The largest count fills with the sign; a negative count is a large unsigned one.
    limited = intrinsic(function, "umin", kind, count, kind.literal(kind.dtype.bits - 1))
    return function.value(f"ashr {kind} {x}, {limited}")


def _shift_or_zero(function: FunctionText, kind: ValueType, shift: str, x: str, count: str) -> str:
    # The shift is poison for a large count, which the select does not let through.
    fits = function.value(f"icmp ult {kind} {count}, {kind.literal(kind.dtype.bits)}")
    shifted = function.value(f"{shift} {kind} {x}, {count}")
    return _choose(function, kind, fits, shifted, kind.literal(0))


def _rsqrt(function: FunctionText, kind: ValueType, x: str) -> str:
    root = intrinsic(function, "sqrt", kind, x)
    one = kind.literal(1.0)
    return function.value(f"fdiv {function.flags}{kind} {one}, {root}")


def _isnan(function: FunctionText, kind: ValueType, x: str) -> str:
    return function.value(f"fcmp uno {kind} {x}, {x}")


def _isinf(function: FunctionText, kind: ValueType, x: str) -> str:
    magnitude = intrinsic(function, "fabs", kind, x)
    infinity = kind.literal(float("inf"))
    return function.value(f"fcmp oeq {kind} {magnitude}, {infinity}")


SPELLINGS: dict[str, Spelling] = {
    # User arithmetic wraps, so no `nsw` or `nuw` here.
    "add": _instruction(real="fadd", bits="add"),
    "subtract": _instruction(real="fsub", bits="sub"),
    "multiply": _instruction(real="fmul", bits="mul"),
    "divide": _instruction(real="fdiv"),
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "fmod": _fmod,
    "negative": _negative,
    "abs": _abs,
    "sign": _sign,
    "integer_power": _integer_power,
    "bit_and": _instruction(bits="and"),
    "bit_or": _instruction(bits="or"),
    "bit_xor": _instruction(bits="xor"),
    "bit_not": _bit_not,
    "shift_left": _shift_left,
    "shift_right": _shift_right,
    "equal": _comparison("oeq", "eq", "eq"),
    "not_equal": _comparison("une", "ne", "ne"),
    "less": _comparison("olt", "slt", "ult"),
    "less_equal": _comparison("ole", "sle", "ule"),
    "greater": _comparison("ogt", "sgt", "ugt"),
    "greater_equal": _comparison("oge", "sge", "uge"),
    "select": _choose,
    "minimum": _intrinsic(real="minimum", signed="smin", unsigned="umin"),
    "maximum": _intrinsic(real="maximum", signed="smax", unsigned="umax"),
    "sqrt": _intrinsic(real="sqrt"),
    "rsqrt": _rsqrt,
    "floor": _intrinsic(real="floor"),
    "ceil": _intrinsic(real="ceil"),
    "round": _intrinsic(real="roundeven"),
    "trunc": _intrinsic(real="trunc"),
    "copysign": _intrinsic(real="copysign"),
    "fma": _intrinsic(real="fma"),
    "isnan": _isnan,
    "isinf": _isinf,
}
