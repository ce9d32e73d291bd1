"""How each operation of the IR is written in C, on values of one type.

What takes more than an expression becomes a helper function, named after the operation and the
type. Signed arithmetic is done on unsigned numbers of at least 32 bits: they wrap, and narrower
ones would become signed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from string import Template

import numpy as np

from .. import ir
from .dialects import Dialect


class Helpers:
    """The helper functions that a text needs, each defined once, in the order of their use."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.definitions: dict[str, str] = {}
        self.needs: set[str] = set()

    def define(self, name: str, text: str, **words: str) -> str:
        """Define a function unless it is there; gives its name."""
        if name not in self.definitions:
            self.definitions[name] = Template(text).substitute(
                words, name=name, function=self.dialect.function, space=self.dialect.space
            )
        return name


def literal(dialect: Dialect, dtype: ir.DType, value: int | float | bool) -> str:
    """A constant that has its type, or one that converts to it without loss."""
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.is_float:
        return _float_literal(dtype, float(value))
    number = int(value)
    suffix = "" if dtype.bits < 32 or dtype.kind == "i" else "u"
    if dtype.bits == 64:
        suffix += dialect.long_suffix
    if dtype.bits >= 32 and number == dtype.minimum < 0:
        return f"({number + 1}{suffix} - 1)"  # C has no negative literals
    return f"({number}{suffix})" if number < 0 else f"{number}{suffix}"


def _float_literal(dtype: ir.DType, value: float) -> str:
    with np.errstate(over="ignore"):
        rounded = dtype.dtype.type(value)
    if not math.isfinite(rounded):
        bits = int(rounded.view(f"u{dtype.itemsize}"))
        return f"{dtype}_from_bits({bits:#x}{'u' if dtype.bits == 32 else 'ul'})"
    # The shortest decimal that is read back as this number.
    text = str(rounded) + ("f" if dtype.bits == 32 else "")
    return f"({text})" if text.startswith("-") else text


def unsigned(dtype: ir.DType) -> str:
    """The type in which arithmetic of an integer type wraps."""
    return "u64" if dtype.bits == 64 else "u32"


def cast(helpers: Helpers, source: ir.DType, target: ir.DType, x: str) -> str:
    """A conversion, with the meaning of `turnout.ir.Cast`."""
    if source is target:
        return x
    if target.is_bool:
        return f"({x} != 0)"
    if source.is_float and target.is_integer:
        return f"{_saturating(helpers, source, target)}({x})"
    return f"({target}){x}"


def _saturating(helpers: Helpers, source: ir.DType, target: ir.DType) -> str:
    spell = helpers.dialect
    # Both limits are powers of two or 0, so they are exact as floats; NaN fails all comparisons.
    below = "x >= $least ? ($target)x : x < $least ? $minimum : 0"
    return helpers.define(
        f"{target}_from_{source}",
        f"$function $target $name($source x) {{\n    return x >= $beyond ? $maximum : {below};\n}}",
        source=str(source),
        target=str(target),
        beyond=literal(spell, source, float(target.maximum + 1)),
        least=literal(spell, source, float(target.minimum)),
        maximum=literal(spell, target, target.maximum),
        minimum=literal(spell, target, target.minimum),
    )


def compute(helpers: Helpers, name: str, dtype: ir.DType, operands: tuple[str, ...]) -> str:
    """An expression for one operation; `dtype` is the type of the (last) operand."""
    spelling = _SPELLINGS.get(name)
    if spelling is not None:
        return spelling(helpers, dtype, *operands)
    call = _call_math(helpers, dtype, name, *operands)
    if name in helpers.dialect.nan_passes_by:
        (x,) = operands
        return f"({x} != {x} ? {x} : {call})"
    return call


Spelling = Callable[..., str]


def _wrapping(operator: str) -> Spelling:
    def spell(helpers: Helpers, dtype: ir.DType, x: str, y: str) -> str:
        if dtype.is_float:
            return f"{x} {operator} {y}"
        wide = unsigned(dtype)
        return f"({dtype})(({wide}){x} {operator} ({wide}){y})"

    return spell


def _bits(operator: str) -> Spelling:
    def spell(helpers: Helpers, dtype: ir.DType, x: str, y: str) -> str:
        # Narrow operands become int, and the result converts back.
        return f"({_name(dtype)})({x} {operator} {y})"

    return spell


def _comparison(operator: str) -> Spelling:
    return lambda helpers, dtype, x, y: f"{x} {operator} {y}"


def _math(function: str) -> Spelling:
    def spell(helpers: Helpers, dtype: ir.DType, *operands: str) -> str:
        return _call_math(helpers, dtype, function, *operands)

    return spell


def _call_math(helpers: Helpers, dtype: ir.DType, function: str, *operands: str) -> str:
    return f"{helpers.dialect.math(function, dtype)}({', '.join(operands)})"


def _helper(operation: str, *, real: str = "", signed: str = "", unsigned_: str = "") -> Spelling:
    """A call of a function with one text per kind of operand."""
    texts = {"f": real, "i": signed, "u": unsigned_}

    def spell(helpers: Helpers, dtype: ir.DType, *operands: str) -> str:
        def function(name: str) -> str:
            return helpers.dialect.math(name, dtype) if dtype.is_float else ""

        dialect, is_float = helpers.dialect, dtype.is_float
        name = helpers.define(
            f"{operation}_{dtype}",
            texts[dtype.kind],
            T=str(dtype),
            U=unsigned(dtype),
            fmod=function("fmod"),
            floor=function("floor"),
            copysign=function("copysign"),
            zero=literal(dialect, dtype, 0),
            one=literal(dialect, dtype, 1),
            half=literal(dialect, dtype, 0.5) if is_float else "",
            bits=str(dtype.bits),
        )
        return f"{name}({', '.join(operands)})"

    return spell


_EXTREMUM = """\
$function $T $name($T x, $T y) {{
    if (x != x) return x;
    if (y != y) return y;
    if (x < y) return {less};
    if (y < x) return {greater};
    /* Equal numbers have equal bits, but for the sign of zero. */
    return ${{T}}_from_bits(bits_from_$T(x) {operator} bits_from_$T(y));
}}"""

_minimum = _helper("minimum", real=_EXTREMUM.format(less="x", greater="y", operator="|"))
_maximum = _helper("maximum", real=_EXTREMUM.format(less="y", greater="x", operator="&"))


def _extremum(of_floats: Spelling, operator: str) -> Spelling:
    def spell(helpers: Helpers, dtype: ir.DType, x: str, y: str) -> str:
        if dtype.is_float:
            return of_floats(helpers, dtype, x, y)
        return f"({x} {operator} {y} ? {x} : {y})"

    return spell


_floor_divide = _helper(
    "floor_divide",
    real="""\
$function $T $name($T x, $T y) {
    const $T ratio = x / y;
    if (y == $zero) return ratio;
    /* The quotient of the exact remainder is an integer or next to one. */
    const $T rest = $fmod(x, y);
    $T quotient = (x - rest) / y;
    if (rest != $zero && (y < $zero) != (rest < $zero)) quotient = quotient - $one;
    if (quotient == $zero) return $copysign($zero, ratio);
    const $T whole = $floor(quotient);
    return quotient - whole > $half ? whole + $one : whole;
}""",
    signed="""\
$function $T $name($T x, $T y) {
    if (y == 0) return 0;
    if (y == -1) return ($T)(($U)0 - ($U)x);
    return ($T)(x / y - ((x % y != 0 && (x < 0) != (y < 0)) ? 1 : 0));
}""",
    unsigned_="""\
$function $T $name($T x, $T y) {
    return y == 0 ? 0 : x / y;
}""",
)

_remainder = _helper(
    "remainder",
    real="""\
$function $T $name($T x, $T y) {
    const $T rest = $fmod(x, y);
    if (y == $zero) return rest;
    if (rest == $zero) return $copysign($zero, y);
    return (y < $zero) != (rest < $zero) ? rest + y : rest;
}""",
    signed="""\
$function $T $name($T x, $T y) {
    if (y == 0 || y == -1) return 0;
    const $T rest = x % y;
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}""",
    unsigned_="""\
$function $T $name($T x, $T y) {
    return y == 0 ? 0 : x % y;
}""",
)

_POWER_LOOP = """\
    $U power = 1, square = ($U)x, left = ($U)y;
    for (; left != 0; left >>= 1) {
        if (left & 1) power *= square;
        square *= square;
    }
    return ($T)power;
}"""

_integer_power = _helper(
    "integer_power",
    signed="""\
$function $T $name($T x, $T y) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? ((y & 1) ? -1 : 1) : 0;
"""
    + _POWER_LOOP,
    unsigned_="$function $T $name($T x, $T y) {\n" + _POWER_LOOP,
)

_shift_left = _helper(
    "shift_left",
    signed="""\
$function $T $name($T x, $T count) {
    return ($U)count < $bits ? ($T)(($U)x << count) : 0;
}""",
    unsigned_="""\
$function $T $name($T x, $T count) {
    return count < $bits ? ($T)(($U)x << count) : 0;
}""",
)

_shift_right = _helper(
    "shift_right",
    # A negative count is a large unsigned one; the largest fills with the sign.
    signed="""\
$function $T $name($T x, $T count) {
    return x >> (($U)count < $bits ? count : $bits - 1);
}""",
    unsigned_="""\
$function $T $name($T x, $T count) {
    return count < $bits ? x >> count : 0;
}""",
)


def _negative(helpers: Helpers, dtype: ir.DType, x: str) -> str:
    if dtype.is_float:
        return f"-{x}"
    wide = unsigned(dtype)
    return f"({dtype})(({wide})0 - ({wide}){x})"


def _abs(helpers: Helpers, dtype: ir.DType, x: str) -> str:
    if dtype.is_float:
        return _call_math(helpers, dtype, "fabs", x)
    if dtype.kind == "u":
        return x
    return f"({x} < 0 ? {_negative(helpers, dtype, x)} : {x})"


def _sign(helpers: Helpers, dtype: ir.DType, x: str) -> str:
    zero, one = literal(helpers.dialect, dtype, 0), literal(helpers.dialect, dtype, 1)
    if dtype.kind == "u":
        return f"({x} > 0 ? {one} : {zero})"
    minus_one = literal(helpers.dialect, dtype, -1)
    otherwise = f"{x} == 0 ? {zero} : {x}" if dtype.is_float else zero
    return f"({x} > 0 ? {one} : {x} < 0 ? {minus_one} : {otherwise})"


def _bit_not(helpers: Helpers, dtype: ir.DType, x: str) -> str:
    return f"!{x}" if dtype.is_bool else f"({dtype})~{x}"


def _rsqrt(helpers: Helpers, dtype: ir.DType, x: str) -> str:
    one = literal(helpers.dialect, dtype, 1)
    return f"{one} / {_call_math(helpers, dtype, 'sqrt', x)}"


def _isinf(helpers: Helpers, dtype: ir.DType, x: str) -> str:
    infinity = literal(helpers.dialect, dtype, math.inf)
    return f"{_call_math(helpers, dtype, 'fabs', x)} == {infinity}"


def _name(dtype: ir.DType) -> str:
    return "bool" if dtype.is_bool else str(dtype)


_SPELLINGS: dict[str, Spelling] = {
    "add": _wrapping("+"),
    "subtract": _wrapping("-"),
    "multiply": _wrapping("*"),
    "divide": lambda helpers, dtype, x, y: f"{x} / {y}",
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "negative": _negative,
    "abs": _abs,
    "sign": _sign,
    "integer_power": _integer_power,
    "bit_and": _bits("&"),
    "bit_or": _bits("|"),
    "bit_xor": _bits("^"),
    "bit_not": _bit_not,
    "shift_left": _shift_left,
    "shift_right": _shift_right,
    "equal": _comparison("=="),
    "not_equal": _comparison("!="),
    "less": _comparison("<"),
    "less_equal": _comparison("<="),
    "greater": _comparison(">"),
    "greater_equal": _comparison(">="),
    "select": lambda helpers, dtype, condition, x, y: f"({condition} ? {x} : {y})",
    "minimum": _extremum(_minimum, "<"),
    "maximum": _extremum(_maximum, ">"),
    "rsqrt": _rsqrt,
    "round": _math("rint"),
    "isnan": lambda helpers, dtype, x: f"{x} != {x}",
    "isinf": _isinf,
}
"""The rows of the table of operations that are not called as C calls them."""
