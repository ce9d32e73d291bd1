"""Functions for use inside kernels; outside of them they evaluate with NumPy.

Types follow NumPy: integers given to a float function become float64 (float32 for types of 16 bits
or less), float32 stays float32, and a function of Python numbers alone gives a Python number.
Accuracy is stated in units in the last place (ULP) in `turnout.ir.operations`.

Examples
--------
>>> import numpy as np, turnout.math as tm
>>> tm.clip(np.array([-1.0, 0.25, 7.0]), 0.0, 1.0)
array([0.  , 0.25, 1.  ])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from .ir import OPERATIONS, DType, f32, f64

Rule = Literal["float", "number", "special"]


class MathFunction:
    """A function that kernels may call.

    Attributes
    ----------
    name : str
    operation : str or None
        Its row in the table of operations; None for functions with a meaning of their own.
    rule : {"float", "number", "special"}
        Whether integers are converted to float, kept, or the function has rules of its own.
    parameters : tuple of str
        Names of its parameters.
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[str],
        document: str,
        rule: Rule,
        evaluate: Callable[..., Any] | None = None,
    ) -> None:
        self.name = self.__name__ = self.__qualname__ = name
        self.__module__ = __name__
        self.__doc__ = document
        self.parameters = tuple(parameters)
        self.rule = rule
        self.operation = name if evaluate is None else None
        self._evaluate = evaluate

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if self._evaluate is not None:
            return self._evaluate(*arguments, **keywords)
        if keywords or len(arguments) != len(self.parameters):
            raise TypeError(f"{self.name} takes the arguments {', '.join(self.parameters)}")
        arrays = [np.asarray(argument) for argument in arguments]
        dtype = np.result_type(*arguments)
        if self.rule == "float" and dtype.kind != "f":
            dtype = np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)
        if self.rule == "number" and dtype.kind != "f" and self.operation in _INTEGER_UNCHANGED:
            return arguments[0]
        assert self.operation is not None
        result = OPERATIONS[self.operation].evaluate(*(array.astype(dtype) for array in arrays))
        return result[()] if isinstance(result, np.ndarray) else result

    def __repr__(self) -> str:
        return f"<turnout.math.{self.name}>"

    def __reduce__(self) -> str:
        return self.name


_INTEGER_UNCHANGED = frozenset({"floor", "ceil", "round", "trunc"})
"""Float functions that leave integers as they are, as NumPy 2 does."""


def _float(name: str, document: str, *parameters: str) -> MathFunction:
    return MathFunction(name, parameters or ("x",), document, "float")


def _number(name: str, document: str, *parameters: str) -> MathFunction:
    return MathFunction(name, parameters or ("x",), document, "number")


exp = _float("exp", "e to the power x.")
exp2 = _float("exp2", "2 to the power x.")
expm1 = _float("expm1", "e to the power x, minus 1, exact near 0.")
log = _float("log", "Natural logarithm.")
log2 = _float("log2", "Logarithm to base 2.")
log10 = _float("log10", "Logarithm to base 10.")
log1p = _float("log1p", "Natural logarithm of 1 + x, exact near 0.")
sqrt = _float("sqrt", "Square root, correctly rounded.")
cbrt = _float("cbrt", "Cube root.")
rsqrt = _float("rsqrt", "1 / sqrt(x), with both operations correctly rounded.")
sin = _float("sin", "Sine of an angle in radians.")
cos = _float("cos", "Cosine of an angle in radians.")
tan = _float("tan", "Tangent of an angle in radians.")
asin = _float("asin", "Arc sine in radians.")
acos = _float("acos", "Arc cosine in radians.")
atan = _float("atan", "Arc tangent in radians.")
atan2 = _float("atan2", "Angle in radians of the point (x, y).", "y", "x")
sinh = _float("sinh", "Hyperbolic sine.")
cosh = _float("cosh", "Hyperbolic cosine.")
tanh = _float("tanh", "Hyperbolic tangent.")
erf = _float("erf", "Error function.")
pow = _float("pow", "x to the power y, as floats.", "x", "y")
hypot = _float("hypot", "sqrt(x*x + y*y) without overflow on the way.", "x", "y")
copysign = _float("copysign", "The magnitude of x with the sign of y.", "x", "y")
fmod = _float("fmod", "Remainder of x / y with the sign of x, exact; as C's fmod.", "x", "y")
fma = _float("fma", "x * y + z rounded once.", "x", "y", "z")
isnan = _float("isnan", "Whether x is not a number.")
isinf = _float("isinf", "Whether x is positive or negative infinity.")
floor = _number("floor", "Largest integral value not above x; integers stay as they are.")
ceil = _number("ceil", "Smallest integral value not below x; integers stay as they are.")
round = _number("round", "Nearest integral value, ties to even; integers stay as they are.")
trunc = _number("trunc", "The integral part of x; integers stay as they are.")
abs = _number("abs", "Absolute value; that of the smallest integer wraps to itself.")
sign = _number("sign", "-1, 0 or 1 (0 for -0.0); NaN stays NaN.")
minimum = _number("minimum", "The smaller value; NaN wins, and -0.0 is below 0.0.", "x", "y")
maximum = _number("maximum", "The larger value; NaN wins, and 0.0 is above -0.0.", "x", "y")


def _clip(x: Any, low: Any, high: Any) -> Any:
    return minimum(maximum(x, low), high)


def _index(x: Any, n: int) -> Any:
    if np.asarray(x).dtype.kind in "iub":
        wide = np.uint64 if np.asarray(x).dtype.kind == "u" else np.int64
        return np.clip(np.asarray(x, wide), 0, max(n - 1, 0)).astype(np.int64)[()]
    truncated = np.trunc(np.nan_to_num(np.asarray(x, np.float64), nan=0.0, posinf=n, neginf=0))
    return np.clip(truncated, 0, n - 1).astype(np.int64)[()]


def _dispatch(kind: Any, branches: Any, policy: str = "switch", name: str | None = None) -> Any:
    choices = [np.asarray(branch) for branch in branches]
    return np.choose(np.clip(kind, 0, len(choices) - 1), choices)[()]


def _cross(a: Any, b: Any) -> list[Any]:
    return [
        a[1] * b[2] - a[2] * b[1],
        a[2] * b[0] - a[0] * b[2],
        a[0] * b[1] - a[1] * b[0],
    ]


def _sum(v: Any) -> Any:
    total = v[0]
    for component in v[1:]:
        total = total + component
    return total


def _dot(a: Any, b: Any) -> Any:
    return _sum([x * y for x, y in zip(a, b, strict=True)])


def _special(
    name: str, document: str, parameters: Sequence[str], evaluate: Callable[..., Any]
) -> MathFunction:
    return MathFunction(name, parameters, document, "special", evaluate)


clip = _special(
    "clip", "minimum(maximum(x, low), high), as numpy.clip.", ("x", "low", "high"), _clip
)
select = _special(
    "select",
    "a where the condition holds, else b; both are evaluated.",
    ("condition", "a", "b"),
    np.where,
)
index = _special(
    "index", "x truncated and clamped to 0..n-1 as int64; NaN gives 0.", ("x", "n"), _index
)
dispatch = _special(
    "dispatch",
    """One of K formulas per sample: ``branches[clamp(kind, 0, K - 1)]``.

    Only the chosen branch is evaluated, as far as anyone can tell: the value, NaN and errors of the
    others never show. `policy` chooses how the choice is compiled, never what it gives: "switch",
    "predicated" (every branch evaluated, one kept) or "auto" (left to turnout).

    Parameters
    ----------
    kind : integer
        The class; values outside of 0..K-1 count as the nearest one.
    branches : list or tuple of at least two expressions
        All of one type.
    policy : {"switch", "predicated", "auto"}
    name : str, optional
        Name of the group; ``dispatch0``, ``dispatch1``, ... in source order where not given.
    """,
    ("kind", "branches", "policy", "name"),
    _dispatch,
)
dot = _special("dot", "Sum of the products of the components of two vectors.", ("a", "b"), _dot)
norm = _special(
    "norm", "Euclidean length of a vector: sqrt(dot(v, v)).", ("v",), lambda v: sqrt(_dot(v, v))
)
cross = _special("cross", "Cross product of two vectors of width 3.", ("a", "b"), _cross)
sum = _special("sum", "Sum of the components of a vector, from the first on.", ("v",), _sum)
vector = _special(
    "vector", "A vector of the given components.", ("components",), lambda *v: np.stack(v)
)


def _zeros(shape: int | tuple[int, ...], dtype: Any = f64) -> Any:
    return np.zeros(shape, dtype)


zeros = _special(
    "zeros",
    "A local array of constant shape, filled with zeros; private to one sample or iteration.",
    ("shape", "dtype"),
    _zeros,
)
sample_index = _special(
    "sample_index",
    "Position of the sample in the batch, in the per-sample form.",
    (),
    lambda: _only_in_kernels("sample_index"),
)
sample_count = _special(
    "sample_count",
    "Number of samples of the launch, in the per-sample form.",
    (),
    lambda: _only_in_kernels("sample_count"),
)


def _only_in_kernels(name: str) -> Any:
    raise TypeError(f"turnout.math.{name}() has a meaning inside per-sample kernels only")


pi = np.pi
e = np.e
inf = np.inf
nan = np.nan

MATH_FUNCTIONS: dict[str, MathFunction] = {
    name: value for name, value in list(globals().items()) if isinstance(value, MathFunction)
}
__all__ = [*sorted(MATH_FUNCTIONS), "e", "inf", "nan", "pi"]

_NUMPY_SPELLINGS = {
    np.arcsin: asin,
    np.arccos: acos,
    np.arctan: atan,
    np.arctan2: atan2,
    np.power: pow,
    np.absolute: abs,
    np.rint: round,
    np.where: select,
    np.clip: clip,
    np.zeros: zeros,
}


def equivalent(function: Any) -> MathFunction | None:
    """The math function that a function of NumPy or of Python's ``math`` means inside a kernel."""
    import math

    if isinstance(function, MathFunction):
        return function
    try:
        spelled = _NUMPY_SPELLINGS.get(function)
    except TypeError:  # unhashable
        return None
    if spelled is not None:
        return spelled
    if isinstance(function, np.ufunc):
        return MATH_FUNCTIONS.get(function.__name__)
    name = getattr(function, "__name__", "")
    if name and getattr(math, name, None) is function and name not in ("floor", "ceil", "trunc"):
        return MATH_FUNCTIONS.get({"fabs": "abs"}.get(name, name))
    return None


def float_type(dtype: DType) -> DType:
    """The type in which a float function evaluates an argument of `dtype`."""
    if dtype.is_float:
        return dtype
    return f32 if dtype.bits <= 16 else f64
