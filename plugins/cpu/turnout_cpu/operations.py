"""How each operation of the IR is spelt in LLVM IR, on values of one type.

One entry of `SPELLINGS` per row of the core's table of operations, except for the math functions,
which `turnout_cpu.mathematics` turns into calls. An entry takes the function that is being written,
the type of the operands and their names; it returns the name of the result.
"""

from __future__ import annotations

from collections.abc import Callable
from string import Template

from turnout.plugin import ir

from .text import FunctionText, literal, type_of

Spelling = Callable[..., str]


def cast(function: FunctionText, source: ir.DType, target: ir.DType, operand: str) -> str:
    """Convert a value, with the meaning of `turnout.ir.Cast`."""
    if source is target:
        return operand
    given, wanted = type_of(source), type_of(target)
    if target.is_bool:
        # `une` makes NaN true.
        comparison = "fcmp une" if source.is_float else "icmp ne"
        return function.value(f"{comparison} {given} {operand}, {literal(source, 0)}")
    if source.is_float and target.is_integer:
        signedness = "s" if target.kind == "i" else "u"
        name = f"@llvm.fpto{signedness}i.sat.{wanted}.f{source.bits}"
        return function.value(f"call {wanted} {name}({given} {operand})")
    return function.value(f"{_conversion(source, target)} {given} {operand} to {wanted}")


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

    def spell(function: FunctionText, dtype: ir.DType, x: str, y: str) -> str:
        instruction = f"{real} {function.flags}" if dtype.is_float else f"{bits} "
        return function.value(f"{instruction}{type_of(dtype)} {x}, {y}")

    return spell


def _comparison(real: str, signed: str, unsigned: str) -> Spelling:
    by_kind = {
        "f": f"fcmp {real}",
        "i": f"icmp {signed}",
        "u": f"icmp {unsigned}",
        "b": f"icmp {unsigned}",
    }

    def spell(function: FunctionText, dtype: ir.DType, x: str, y: str) -> str:
        return function.value(f"{by_kind[dtype.kind]} {type_of(dtype)} {x}, {y}")

    return spell


def _intrinsic(*, real: str = "", signed: str = "", unsigned: str = "") -> Spelling:
    """One LLVM intrinsic per kind of operand."""
    by_kind = {"f": real, "i": signed, "u": unsigned}

    def spell(function: FunctionText, dtype: ir.DType, *operands: str) -> str:
        return intrinsic(function, by_kind[dtype.kind], dtype, *operands)

    return spell


def intrinsic(function: FunctionText, name: str, dtype: ir.DType, *operands: str) -> str:
    """Call an LLVM intrinsic whose operands and result all have type `dtype`."""
    wanted = type_of(dtype)
    flags = function.flags if dtype.is_float else ""
    suffix = f"f{dtype.bits}" if dtype.is_float else wanted
    arguments = ", ".join(f"{wanted} {operand}" for operand in operands)
    return function.value(f"call {flags}{wanted} @llvm.{name}.{suffix}({arguments})")


def _choose(function: FunctionText, dtype: ir.DType, condition: str, x: str, y: str) -> str:
    wanted = type_of(dtype)
    return function.value(f"select i1 {condition}, {wanted} {x}, {wanted} {y}")


def _helper(text: str, **words: str) -> Spelling:
    """A call of an internal function of two operands, defined once per module and type."""

    def spell(function: FunctionText, dtype: ir.DType, x: str, y: str) -> str:
        wanted = type_of(dtype)
        name = f"@turnout_{words['name']}_{dtype}"
        definition = Template(text).substitute(
            words,
            function=f"internal {wanted} {name}({wanted} %x, {wanted} %y)",
            type=wanted,
            suffix=f"f{dtype.bits}",
            signed="true" if dtype.kind == "i" else "false",
        )
        function.module.define(name, definition)
        return function.value(f"call {wanted} {name}({wanted} {x}, {wanted} {y})")

    return spell


_DIVISION = """\
; Python's division of floats as NumPy computes it: from the exact fmod, the quotient snapped to the
; nearest integer, zeros of the right sign, and what IEEE division gives for a zero divisor.
define $function nounwind willreturn memory(none) {
  %fmod = frem $type %x, %y
  %ratio = fdiv $type %x, %y
  %y.nonzero = fcmp une $type %y, 0.0
  br i1 %y.nonzero, label %divide, label %by.zero
by.zero:
  ret $type $by_zero
divide:
  %difference = fsub $type %x, %fmod
  %quotient = fdiv $type %difference, %y
  %y.negative = fcmp olt $type %y, 0.0
  %fmod.negative = fcmp olt $type %fmod, 0.0
  %signs.differ = xor i1 %y.negative, %fmod.negative
  %fmod.nonzero = fcmp une $type %fmod, 0.0
  %adjust = and i1 %fmod.nonzero, %signs.differ
  %zero = call $type @llvm.copysign.$suffix($type 0.0, $type %y)
  %fmod.plus.y = fadd $type %fmod, %y
  %fmod.or.zero = select i1 %fmod.nonzero, $type %fmod, $type %zero
  %remainder = select i1 %adjust, $type %fmod.plus.y, $type %fmod.or.zero
  %quotient.less.one = fsub $type %quotient, 1.0
  %div = select i1 %adjust, $type %quotient.less.one, $type %quotient
  %floor = call $type @llvm.floor.$suffix($type %div)
  %lost = fsub $type %div, %floor
  %too.low = fcmp ogt $type %lost, 0.5
  %floor.plus.one = fadd $type %floor, 1.0
  %snapped = select i1 %too.low, $type %floor.plus.one, $type %floor
  %div.nonzero = fcmp une $type %div, 0.0
  %signed.zero = call $type @llvm.copysign.$suffix($type 0.0, $type %ratio)
  %floor_divide = select i1 %div.nonzero, $type %snapped, $type %signed.zero
  ret $type %$name
}"""

_float_floor_divide = _helper(_DIVISION, name="floor_divide", by_zero="%ratio")
_float_remainder = _helper(_DIVISION, name="remainder", by_zero="%fmod")

_integer_power = _helper(
    """\
; Repeated squaring; a negative exponent gives 1 // x**-y truncated: 0 except for x = 1 and x = -1.
define $function nounwind willreturn memory(none) {
entry:
  %below.zero = icmp slt $type %y, 0
  %negative = and i1 %below.zero, $signed
  br i1 %negative, label %reciprocal, label %loop
loop:
  %power = phi $type [ 1, %entry ], [ %power.next, %more ]
  %square = phi $type [ %x, %entry ], [ %square.next, %more ]
  %left = phi $type [ %y, %entry ], [ %left.next, %more ]
  %finished = icmp eq $type %left, 0
  br i1 %finished, label %done, label %more
more:
  %odd = trunc $type %left to i1
  %product = mul $type %power, %square
  %power.next = select i1 %odd, $type %product, $type %power
  %square.next = mul $type %square, %square
  %left.next = lshr $type %left, 1
  br label %loop
done:
  ret $type %power
reciprocal:
  %is.one = icmp eq $type %x, 1
  %is.minus.one = icmp eq $type %x, -1
  %y.odd = trunc $type %y to i1
  %alternating = select i1 %y.odd, $type -1, $type 1
  %minus.one.or.zero = select i1 %is.minus.one, $type %alternating, $type 0
  %result = select i1 %is.one, $type 1, $type %minus.one.or.zero
  ret $type %result
}""",
    name="integer_power",
)


def _floor_divide(function: FunctionText, dtype: ir.DType, x: str, y: str) -> str:
    if dtype.is_float:
        return _float_floor_divide(function, dtype, x, y)
    return _integer_division(function, dtype, x, y)[0]


def _remainder(function: FunctionText, dtype: ir.DType, x: str, y: str) -> str:
    if dtype.is_float:
        return _float_remainder(function, dtype, x, y)
    return _integer_division(function, dtype, x, y)[1]


def _integer_division(function: FunctionText, dtype: ir.DType, x: str, y: str) -> tuple[str, str]:
    """Quotient and remainder; a zero divisor gives 0 for both."""
    wanted = type_of(dtype)
    value = function.value
    is_zero = value(f"icmp eq {wanted} {y}, 0")
    if dtype.kind == "u":
        divisor = value(f"select i1 {is_zero}, {wanted} 1, {wanted} {y}")
        quotient = value(f"udiv {wanted} {x}, {divisor}")
        remainder = value(f"urem {wanted} {x}, {divisor}")
    else:
        # Dividing by -1 is negating, which wraps; LLVM leaves the smallest integer over -1
        # undefined and the processor traps on it.
        is_minus_one = value(f"icmp eq {wanted} {y}, -1")
        unsafe = value(f"or i1 {is_zero}, {is_minus_one}")
        divisor = value(f"select i1 {unsafe}, {wanted} 1, {wanted} {y}")
        truncated = value(f"sdiv {wanted} {x}, {divisor}")
        left = value(f"srem {wanted} {x}, {divisor}")
        signs = value(f"xor {wanted} {left}, {divisor}")
        signs_differ = value(f"icmp slt {wanted} {signs}, 0")
        is_inexact = value(f"icmp ne {wanted} {left}, 0")
        adjust = value(f"and i1 {signs_differ}, {is_inexact}")
        one = value(f"zext i1 {adjust} to {wanted}")
        floored = value(f"sub {wanted} {truncated}, {one}")
        correction = value(f"select i1 {adjust}, {wanted} {divisor}, {wanted} 0")
        remainder = value(f"add {wanted} {left}, {correction}")
        negated = value(f"sub {wanted} 0, {x}")
        quotient = value(f"select i1 {is_minus_one}, {wanted} {negated}, {wanted} {floored}")
    return (
        value(f"select i1 {is_zero}, {wanted} 0, {wanted} {quotient}"),
        value(f"select i1 {is_zero}, {wanted} 0, {wanted} {remainder}"),
    )


def _fmod(function: FunctionText, dtype: ir.DType, x: str, y: str) -> str:
    return function.value(f"frem {type_of(dtype)} {x}, {y}")


def _negative(function: FunctionText, dtype: ir.DType, x: str) -> str:
    wanted = type_of(dtype)
    if dtype.is_float:
        return function.value(f"fneg {wanted} {x}")
    return function.value(f"sub {wanted} 0, {x}")


def _abs(function: FunctionText, dtype: ir.DType, x: str) -> str:
    wanted = type_of(dtype)
    if dtype.is_float:
        return intrinsic(function, "fabs", dtype, x)
    if dtype.kind == "u":
        return x
    return function.value(f"call {wanted} @llvm.abs.{wanted}({wanted} {x}, i1 false)")


def _sign(function: FunctionText, dtype: ir.DType, x: str) -> str:
    one, zero = literal(dtype, 1), literal(dtype, 0)
    positive = SPELLINGS["greater"](function, dtype, x, zero)
    if dtype.kind == "u":
        return _choose(function, dtype, positive, one, zero)
    negative = SPELLINGS["less"](function, dtype, x, zero)
    result = _choose(function, dtype, negative, literal(dtype, -1), zero)
    result = _choose(function, dtype, positive, one, result)
    if dtype.is_integer:
        return result
    is_nan = function.value(f"fcmp uno {type_of(dtype)} {x}, {x}")
    return _choose(function, dtype, is_nan, x, result)


def _bit_not(function: FunctionText, dtype: ir.DType, x: str) -> str:
    ones = "true" if dtype.is_bool else "-1"
    return function.value(f"xor {type_of(dtype)} {x}, {ones}")


def _shift_left(function: FunctionText, dtype: ir.DType, x: str, count: str) -> str:
    return _shift_or_zero(function, dtype, "shl", x, count)


def _shift_right(function: FunctionText, dtype: ir.DType, x: str, count: str) -> str:
    if dtype.kind == "u":
        return _shift_or_zero(function, dtype, "lshr", x, count)
    # The largest count fills with the sign; a negative count is a large unsigned one.
    wanted = type_of(dtype)
    limited = intrinsic(function, "umin", dtype, count, str(dtype.bits - 1))
    return function.value(f"ashr {wanted} {x}, {limited}")


def _shift_or_zero(function: FunctionText, dtype: ir.DType, shift: str, x: str, count: str) -> str:
    # The shift is poison for a large count, which the select does not let through.
    fits = function.value(f"icmp ult {type_of(dtype)} {count}, {dtype.bits}")
    shifted = function.value(f"{shift} {type_of(dtype)} {x}, {count}")
    return _choose(function, dtype, fits, shifted, "0")


def _rsqrt(function: FunctionText, dtype: ir.DType, x: str) -> str:
    root = intrinsic(function, "sqrt", dtype, x)
    one = literal(dtype, 1.0)
    return function.value(f"fdiv {function.flags}{type_of(dtype)} {one}, {root}")


def _isnan(function: FunctionText, dtype: ir.DType, x: str) -> str:
    return function.value(f"fcmp uno {type_of(dtype)} {x}, {x}")


def _isinf(function: FunctionText, dtype: ir.DType, x: str) -> str:
    magnitude = intrinsic(function, "fabs", dtype, x)
    infinity = literal(dtype, float("inf"))
    return function.value(f"fcmp oeq {type_of(dtype)} {magnitude}, {infinity}")


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
