"""What each operation contributes to the derivatives of its operands.

A row of `PARTIALS` has one function per operand, or None where the operand carries no derivative.
The function is given the derivative of the result, `bar`, the result `r` and the operands, and
writes the contribution as arithmetic on `Term`s. Operations without a row have a derivative of 0
everywhere, or give no floats. At points where there is no derivative one of the two sides counts:
`abs` has 1 at 0, `minimum` and `maximum` follow the first of two equal operands, `hypot` has 0
at the origin, and powers of 0 do not change with the exponent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from .. import ir
from ..lang.builder import Builder


class Term:
    """A value together with the builder that emits arithmetic on it."""

    def __init__(self, build: Builder, value: ir.Value) -> None:
        self.build = build
        self.value = value

    def of(self, other: Term | float) -> Term:
        """Another operand; Python numbers become constants of the same type."""
        if isinstance(other, Term):
            return other
        return Term(self.build, self.build.constant(other, self.value.dtype))

    def call(self, operation: str, *others: Term | float) -> Term:
        operands = (self, *(self.of(other) for other in others))
        return Term(self.build, self.build.compute(operation, *(o.value for o in operands)))

    def select(self, taken: Term | float, otherwise: Term | float) -> Term:
        """`taken` where this condition holds, else `otherwise`; one of them is a term."""
        like = taken if isinstance(taken, Term) else otherwise
        assert isinstance(like, Term)
        return self.call("select", like.of(taken), like.of(otherwise))

    def __neg__(self) -> Term:
        return self.call("negative")

    def __add__(self, other: Term | float) -> Term:
        return self.call("add", other)

    def __radd__(self, other: float) -> Term:
        return self.of(other).call("add", self)

    def __sub__(self, other: Term | float) -> Term:
        return self.call("subtract", other)

    def __rsub__(self, other: float) -> Term:
        return self.of(other).call("subtract", self)

    def __mul__(self, other: Term | float) -> Term:
        return self.call("multiply", other)

    def __rmul__(self, other: float) -> Term:
        return self.of(other).call("multiply", self)

    def __truediv__(self, other: Term | float) -> Term:
        return self.call("divide", other)


Partial = Callable[..., Term]


def _same(bar: Term, *_: Term) -> Term:
    return bar


def _opposite(bar: Term, *_: Term) -> Term:
    return -bar


def _atan2(bar: Term, r: Term, y: Term, x: Term, numerator: Term) -> Term:
    radius = y.call("hypot", x)
    return bar * (numerator / radius / radius)


def _hypot(bar: Term, r: Term, side: Term) -> Term:
    return bar * r.call("equal", 0.0).select(0.0, side / r)


def _power_of_base(bar: Term, r: Term, x: Term, y: Term) -> Term:
    slope = y * x.call("pow", y - 1.0)
    return bar * y.call("equal", 0.0).select(0.0, slope)


def _power_of_exponent(bar: Term, r: Term, x: Term, y: Term) -> Term:
    return bar * x.call("equal", 0.0).select(0.0, r * x.call("log"))


def _sign_of(x: Term) -> Term:
    return x.of(1.0).call("copysign", x)


PARTIALS: Mapping[str, tuple[Partial | None, ...]] = {
    "add": (_same, _same),
    "subtract": (_same, _opposite),
    "multiply": (lambda bar, r, x, y: bar * y, lambda bar, r, x, y: bar * x),
    "divide": (lambda bar, r, x, y: bar / y, lambda bar, r, x, y: -(bar / y) * r),
    "negative": (_opposite,),
    "remainder": (_same, lambda bar, r, x, y: -bar * x.call("floor_divide", y)),
    "fmod": (_same, lambda bar, r, x, y: -bar * (x / y).call("trunc")),
    "abs": (lambda bar, r, x: x.call("less", 0.0).select(-bar, bar),),
    "sqrt": (lambda bar, r, x: bar * 0.5 / r,),
    "rsqrt": (lambda bar, r, x: bar * -0.5 * (r / x),),
    "copysign": (lambda bar, r, x, y: bar * (_sign_of(x) * _sign_of(y)), None),
    "fma": (lambda bar, r, x, y, z: bar * y, lambda bar, r, x, y, z: bar * x, _same),
    "exp": (lambda bar, r, x: bar * r,),
    "exp2": (lambda bar, r, x: bar * (r * math.log(2)),),
    "expm1": (lambda bar, r, x: bar * x.call("exp"),),
    "log": (lambda bar, r, x: bar / x,),
    "log2": (lambda bar, r, x: bar / x * (1 / math.log(2)),),
    "log10": (lambda bar, r, x: bar / x * (1 / math.log(10)),),
    "log1p": (lambda bar, r, x: bar / (1.0 + x),),
    "cbrt": (lambda bar, r, x: bar / (3.0 * (r * r)),),
    "sin": (lambda bar, r, x: bar * x.call("cos"),),
    "cos": (lambda bar, r, x: -bar * x.call("sin"),),
    "tan": (lambda bar, r, x: bar * (1.0 + r * r),),
    "asin": (lambda bar, r, x: bar / ((1.0 - x) * (1.0 + x)).call("sqrt"),),
    "acos": (lambda bar, r, x: -bar / ((1.0 - x) * (1.0 + x)).call("sqrt"),),
    "atan": (lambda bar, r, x: bar / (1.0 + x * x),),
    "atan2": (
        lambda bar, r, y, x: _atan2(bar, r, y, x, x),
        lambda bar, r, y, x: -_atan2(bar, r, y, x, y),
    ),
    "sinh": (lambda bar, r, x: bar * x.call("cosh"),),
    "cosh": (lambda bar, r, x: bar * x.call("sinh"),),
    "tanh": (lambda bar, r, x: bar * ((1.0 - r) * (1.0 + r)),),
    "pow": (_power_of_base, _power_of_exponent),
    "hypot": (lambda bar, r, x, y: _hypot(bar, r, x), lambda bar, r, x, y: _hypot(bar, r, y)),
    "erf": (lambda bar, r, x: bar * (-(x * x)).call("exp") * (2 / math.sqrt(math.pi)),),
}

SECOND_IS_CHOSEN: Mapping[str, str] = {"minimum": "greater", "maximum": "less"}
"""Operations that give one of two operands, and the comparison (first, second) that holds where
that is the second."""

KEEPS_ZERO = frozenset({"add", "subtract", "negative", "abs", "copysign"})
"""Operations whose contribution is 0 wherever `bar` is, whatever the operands are."""


def is_differentiable(operation: str, operand: int) -> bool:
    """Whether an operand of an operation carries a derivative."""
    if operation == "select":
        return operand > 0
    if operation in SECOND_IS_CHOSEN:
        return True
    row = PARTIALS.get(operation, ())
    return operand < len(row) and row[operand] is not None
