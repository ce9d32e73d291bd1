"""Products of vectors and matrices, as operations.

Each has the implementations ``numpy``, for arrays of NumPy, and ``compiled``, code for exactly the
sizes of a call on the device of its arrays (`turnout.ops.compiled`). Plugins register others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import CallError
from ..perf import PerformanceDispatcher
from .compiled import compiled
from .operation import are_numpy, check_arrays, check_out, device_of, dtype_of, operation, place_of

COMPILING_MS = 30.0


def _check_length(operation: str, along: str, one: int, other: int) -> None:
    if one != other:
        raise CallError(f"{operation}: {along} must agree, they are {one} and {other}")


def _check_dot(a: Any, b: Any) -> None:
    check_arrays("dot", {"a": a, "b": b}, {"a": "(n,)", "b": "(n,)"})
    _check_length("dot", "the lengths of a and b", a.shape[0], b.shape[0])


def _check_gemv(a: Any, x: Any, out: Any) -> None:
    check_arrays("gemv", {"a": a, "x": x}, {"a": "(m, n)", "x": "(n,)"})
    _check_length("gemv", "the columns of a and the length of x", a.shape[1], x.shape[0])
    check_out("gemv", out, (a.shape[0],), a)


def _check_matmul(a: Any, b: Any, out: Any) -> None:
    check_arrays("matmul", {"a": a, "b": b}, {"a": "(m, k)", "b": "(k, n)"})
    _check_length("matmul", "the columns of a and the rows of b", a.shape[1], b.shape[0])
    check_out("matmul", out, (a.shape[0], b.shape[1]), a)


@operation(mutates=(), check=_check_dot)
def dot(a: Any, b: Any) -> Any:
    """Return the dot product of two vectors.

    Parameters
    ----------
    a, b : array, shape (n,)
        Of one type: float32, float64 or integers; of any strides. Arrays of NumPy or of a device.

    Returns
    -------
    scalar
        Of the same type. Where the vectors are on a device, it is waited for.

    Raises
    ------
    CallError
        When the arguments are anything else, or their types or lengths differ.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> print(tn.ops.dot(np.array([1.0, 2.0]), np.array([3.0, 4.0])))
    11.0
    """


@operation(mutates={"out": "output"}, check=_check_gemv)
def gemv(a: Any, x: Any, out: Any = None) -> Any:
    """Return the product of a matrix and a vector.

    Parameters
    ----------
    a : array, shape (m, n)
    x : array, shape (n,)
        Of the same type: float32, float64 or integers; of any strides.
    out : array, shape (m,), optional
        Gets the result. It may share memory with the others.

    Returns
    -------
    array, shape (m,)
        `out`, or a new array.

    Raises
    ------
    CallError
        When the arguments are anything else, or their types or lengths differ.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> tn.ops.gemv(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([10.0, 1.0]))
    array([12., 34.])
    """


@operation(mutates={"out": "output"}, check=_check_matmul)
def matmul(a: Any, b: Any, out: Any = None) -> Any:
    """Return the product of two matrices.

    Parameters
    ----------
    a : array, shape (m, k)
    b : array, shape (k, n)
        Of the same type: float32, float64 or integers; of any strides.
    out : array, shape (m, n), optional
        Gets the result. It may share memory with the others.

    Returns
    -------
    array, shape (m, n)
        `out`, or a new array.

    Raises
    ------
    CallError
        When the arguments are anything else, or their types or lengths differ.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> tn.ops.matmul(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[10.0], [1.0]]))
    array([[12.],
           [34.]])
    """


OPERATIONS: Mapping[str, PerformanceDispatcher[..., Any]] = {
    "dot": dot,
    "gemv": gemv,
    "matmul": matmul,
}


# -- implementations ------------------------------------------------------------------------------


@dot.register(
    name="numpy",
    per_geometry=True,
    is_compatible=lambda a, b: are_numpy(a, b),
    version=np.__version__,
)
def _dot_numpy(a: Any, b: Any) -> Callable[..., Any]:
    return np.dot


@gemv.register(
    name="numpy",
    per_geometry=True,
    is_compatible=lambda a, x, out: are_numpy(a, x),
    version=np.__version__,
)
def _gemv_numpy(a: Any, x: Any, out: Any) -> Callable[..., Any]:
    return np.matmul


@matmul.register(
    name="numpy",
    per_geometry=True,
    is_compatible=lambda a, b, out: are_numpy(a, b),
    version=np.__version__,
)
def _matmul_numpy(a: Any, b: Any, out: Any) -> Callable[..., Any]:
    return np.matmul


def _is_compilable(*arrays: Any) -> bool | str:
    found = device_of(*(each for each in arrays if each is not None))
    return found if isinstance(found, str) else True


def _with_result(
    function: Callable[..., Any], shape: tuple[int, ...], a: Any
) -> Callable[..., Any]:
    """Make results for a function that writes them."""
    context, dtype = place_of(a), dtype_of(a)
    make = np.empty if context.is_host else context.zeros

    def with_result(a: Any, b: Any, out: Any) -> Any:
        return function(a, b, make(shape, dtype))

    return with_result


@dot.register(
    name="compiled",
    per_geometry=True,
    make_ms=COMPILING_MS,
    version="1",
    is_compatible=lambda a, b: _is_compilable(a, b),
)
def _dot_compiled(a: Any, b: Any) -> Callable[..., Any]:
    return compiled("dot", (a.shape[0],), dtype_of(a), place_of(a, b))


@gemv.register(
    name="compiled",
    per_geometry=True,
    make_ms=COMPILING_MS,
    version="1",
    is_compatible=lambda a, x, out: _is_compilable(a, x),
)
def _gemv_compiled(a: Any, x: Any, out: Any) -> Callable[..., Any]:
    function = compiled("gemv", tuple(a.shape), dtype_of(a), place_of(a, x))
    return function if out is not None else _with_result(function, (a.shape[0],), a)


@matmul.register(
    name="compiled",
    per_geometry=True,
    make_ms=COMPILING_MS,
    version="1",
    is_compatible=lambda a, b, out: _is_compilable(a, b),
)
def _matmul_compiled(a: Any, b: Any, out: Any) -> Callable[..., Any]:
    (m, k), n = a.shape, b.shape[1]
    function = compiled("matmul", (m, n, k), dtype_of(a), place_of(a, b))
    return function if out is not None else _with_result(function, (m, n), a)
