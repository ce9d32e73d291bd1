"""Which routine computes each math function on the CPU: glibc's vector library or libm.

A kernel must compute the same bits wherever a sample stands: in the vectorised part of a loop, in
the remainder, in a branch. So each function has exactly one routine per compile target: the vector
symbol of `vector_function`, also for single values, or where there is none the libm symbol of
`libm_symbol`, also inside vectorised loops. Two properties of libmvec make the first choice safe:
the bits of a lane depend neither on its position nor on the other lanes, and special values are
those of C99 Annex F, which NumPy gives too. Both hold for every function, type and width
(benchmarks/NOTES.md, "Vector math on the CPU"); the tests repeat them on the installed library.

How LLVM is made to use a vector symbol, here `pow` of float64 with AVX-512::

    declare <8 x double> @_ZGVeN8vv_pow(<8 x double>, <8 x double>)

    define internal double @tn_pow_f64(double %x, double %y) #0 {
      %x0 = insertelement <8 x double> poison, double %x, i32 0
      %xs = shufflevector <8 x double> %x0, <8 x double> poison, <8 x i32> zeroinitializer
      %y0 = insertelement <8 x double> poison, double %y, i32 0
      %ys = shufflevector <8 x double> %y0, <8 x double> poison, <8 x i32> zeroinitializer
      %v = call <8 x double> @_ZGVeN8vv_pow(<8 x double> %xs, <8 x double> %ys)
      %r = extractelement <8 x double> %v, i32 0
      ret double %r
    }

    define void @kernel(...) #1 { ... %r = call double @tn_pow_f64(double %a, double %b) #2 ... }

    attributes #0 = { noinline nounwind willreturn memory(none) }
    attributes #1 = { nounwind "prefer-vector-width"="512" }
    attributes #2 = { nounwind willreturn memory(none) "vector-function-abi-variant"=
        "_ZGV_LLVM_N8vv_tn_pow_f64(_ZGVeN8vv_pow)" }

* The variant string comes from `variant` and belongs to the call. `noinline` keeps the call until
  the vectoriser sees it. `memory(none) nounwind` let the vectoriser run the call in every lane of
  an `if` or `switch`.
* The vectoriser's cost model refuses some branches with calls at two lanes (SSE4);
  "llvm.loop.vectorize.enable" on the loop overrules it.
* "prefer-vector-width" is `VECTOR_BITS[isa]`; with less, vector loops call the wrapper lane by
  lane. "min-legal-vector-width" must stay absent: a 0 there splits 512-bit arguments.
* Loops that mix float32 and float64 run at one number of lanes for both, so each function wants a
  second width: float64 twice `lanes`, float32 half of it. That is an internal function with the
  wrapper's attributes that calls the same symbol twice on the halves, or once on the lanes given
  twice, appended to the variant string after a comma. LLVM sees its name in that string alone, so
  it must be listed in `@llvm.compiler.used`; the library's symbols need not be.
* One lane with a special case (say log of a negative number) makes its vector about eight times
  slower. For calls in a branch there is a masked form, an internal function again, since libmvec
  has none: it gives the lanes that do not take the branch a harmless argument, and skips the
  routine where no lane takes it.
* A libm symbol is called with the attributes `nobuiltin nounwind willreturn memory(none)`. Without
  `nobuiltin` LLVM turns `pow(x, 2.0)` into `x * x`, `pow(2.0, x)` into `exp2(x)` and folds constant
  arguments: other bits as soon as an argument is a constant.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Collection
from typing import Literal, NamedTuple

Dtype = Literal["f32", "f64"]
Isa = Literal["b", "d", "e"]

LIBRARY_NAME = "libmvec.so.1"
"""What `ctypes` and LLVM load to find the symbols."""

VECTOR_BITS: dict[Isa, int] = {"e": 512, "d": 256, "b": 128}
"""Width of a vector register of each instruction set, in bits; the widest comes first."""

# What glibc itself asks of the processor before it runs its AVX-512, AVX2 and SSE4 code. With less
# it would run other code behind the same symbol, scalar by scalar.
_REQUIRED_FEATURES: dict[Isa, frozenset[str]] = {
    "e": frozenset({"avx512f", "avx512dq"}),
    "d": frozenset({"avx2", "fma"}),
    "b": frozenset({"sse4.1"}),
}

ARITY = {
    "exp": 1, "exp2": 1, "expm1": 1, "log": 1, "log2": 1, "log10": 1, "log1p": 1, "cbrt": 1,
    "sin": 1, "cos": 1, "tan": 1, "asin": 1, "acos": 1, "atan": 1, "sinh": 1, "cosh": 1, "tanh": 1,
    "erf": 1, "atan2": 2, "pow": 2, "hypot": 2,
}  # fmt: skip
"""Number of arguments of each operation that a library computes."""


class VectorFunction(NamedTuple):
    """A function of glibc's vector library.

    Attributes
    ----------
    symbol : str
        Its name in the library.
    lanes : int
        Number of values in each argument and in the result.
    arity : int
        Number of arguments.
    """

    symbol: str
    lanes: int
    arity: int


def vector_isa(features: Collection[str]) -> Isa | None:
    """Choose the widest instruction set of libmvec that a processor runs.

    Parameters
    ----------
    features : collection of str
        LLVM's names of the processor's features, such as ``"avx2"``.

    Returns
    -------
    str or None
        ``"e"`` (AVX-512), ``"d"`` (AVX2), ``"b"`` (SSE4), or None where libmvec has no use.

    Examples
    --------
    >>> vector_isa({"sse4.1", "avx2", "fma"})
    'd'
    >>> vector_isa({"neon"}) is None
    True
    """
    for isa, required in _REQUIRED_FEATURES.items():
        if required.issubset(features):
            return isa
    return None


def vector_function(operation: str, dtype: Dtype, isa: Isa | None) -> VectorFunction | None:
    """Find the vector routine of an operation in the library of this machine.

    Parameters
    ----------
    operation : str
        A key of `ARITY`.
    dtype : {"f32", "f64"}
        Type of arguments and result.
    isa : {"e", "d", "b"} or None
        What `vector_isa` chose for the compile target.

    Returns
    -------
    VectorFunction or None
        None where the library lacks it: then `libm_symbol` is called everywhere.

    Raises
    ------
    KeyError
        The operation is not one that a library computes.
    """
    arity = ARITY[operation]
    if isa is None:
        return None
    function = _candidate(operation, dtype, isa, arity)
    return function if function.symbol in available_symbols() else None


def libm_symbol(operation: str, dtype: Dtype) -> str:
    """Name the routine of the C library for one value.

    Parameters
    ----------
    operation : str
        A key of `ARITY`.
    dtype : {"f32", "f64"}
        Type of arguments and result.

    Returns
    -------
    str
        The C name, with the suffix ``f`` for float32.

    Raises
    ------
    KeyError
        The operation is not one that a library computes.

    Examples
    --------
    >>> libm_symbol("pow", "f64"), libm_symbol("pow", "f32")
    ('pow', 'powf')
    """
    if operation not in ARITY:
        raise KeyError(operation)
    return operation + ("f" if dtype == "f32" else "")


def variant(wrapper: str, lanes: int, arity: int, symbol: str, *, is_masked: bool = False) -> str:
    """Spell one entry of LLVM's attribute ``"vector-function-abi-variant"``.

    Parameters
    ----------
    wrapper : str
        The function for one value that the loop calls.
    lanes, arity : int
        Number of values in a vector, number of arguments.
    symbol : str
        The function that stands for it in a vectorised loop.
    is_masked : bool
        Whether that function also takes the mask of the lanes that count, for calls in a branch.

    Returns
    -------
    str
        The entry; several are joined with commas.

    Examples
    --------
    >>> variant("tn_pow_f64", 8, 2, "_ZGVeN8vv_pow")
    '_ZGV_LLVM_N8vv_tn_pow_f64(_ZGVeN8vv_pow)'
    """
    mask = "M" if is_masked else "N"
    return f"_ZGV_LLVM_{mask}{lanes}{'v' * arity}_{wrapper}({symbol})"


@functools.cache
def available_symbols() -> frozenset[str]:
    """Read which vector routines this machine's libmvec has, once per process.

    Returns
    -------
    frozenset of str
        Symbols; empty where there is no libmvec (macOS, Windows, musl) or one of another
        processor family. Part of what identifies a compile target.
    """
    try:
        library = ctypes.CDLL(LIBRARY_NAME)
    except OSError:
        return frozenset()
    dtypes: tuple[Dtype, ...] = ("f32", "f64")
    candidates = (
        _candidate(operation, dtype, isa, arity).symbol
        for operation, arity in ARITY.items()
        for dtype in dtypes
        for isa in VECTOR_BITS
    )
    return frozenset(symbol for symbol in candidates if hasattr(library, symbol))


def _candidate(operation: str, dtype: Dtype, isa: Isa, arity: int) -> VectorFunction:
    """Name the routine as the x86-64 vector function ABI does, be it there or not."""
    lanes = VECTOR_BITS[isa] // (32 if dtype == "f32" else 64)
    name = libm_symbol(operation, dtype)
    return VectorFunction(f"_ZGV{isa}N{lanes}{'v' * arity}_{name}", lanes, arity)
