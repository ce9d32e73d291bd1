"""Operations on stacks of many small matrices.

Each has the implementations ``numpy``, for arrays of NumPy, and ``compiled``, a kernel for matrices
of exactly one size, whose loops the compiler can write out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..backends import DeviceContext, to_numpy
from ..errors import CallError
from . import kernels
from .compiled import cached
from .operation import (
    FLOATS,
    are_numpy,
    check_arrays,
    check_out,
    device_of,
    dtype_of,
    empty,
    operation,
    place_of,
)

_LARGEST = 32
"""Rows and columns of matrices that are small enough for `compiled`."""

_COMPILING_MS = 100.0
_NOT_POSITIVE = "Matrix is not positive definite"


def _check_matmul(a: Any, b: Any, out: Any) -> None:
    axes = {"a": "(..., m, k)", "b": "(..., k, n)"}
    check_arrays("batched_matmul", {"a": a, "b": b}, axes)
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2]:
        raise CallError(
            "batched_matmul: a and b must have the shapes (..., m, k) and (..., k, n) with the "
            f"same axes in front, they have {tuple(a.shape)} and {tuple(b.shape)}"
        )
    check_out("batched_matmul", out, (*a.shape[:-1], b.shape[-1]), a)


def _check_cholesky(a: Any, out: Any) -> None:
    check_arrays("batched_cholesky", {"a": a}, {"a": "(..., n, n)"}, FLOATS)
    if a.shape[-1] != a.shape[-2]:
        raise CallError(
            f"batched_cholesky: a must have the shape (..., n, n), not {tuple(a.shape)}"
        )
    check_out("batched_cholesky", out, tuple(a.shape), a)


@operation(mutates={"out": "output"}, check=_check_matmul)
def batched_matmul(a: Any, b: Any, out: Any = None) -> Any:
    """Return the products of many pairs of matrices.

    Parameters
    ----------
    a : array, shape (..., m, k)
    b : array, shape (..., k, n)
        Of the same type, float32, float64 or integers, and with the same axes in front.
    out : array, shape (..., m, n), optional
        Gets the result. It may share memory with the others.

    Returns
    -------
    array, shape (..., m, n)
        `out`, or a new array.

    Raises
    ------
    CallError
        When the arguments are anything else, or their types or shapes do not fit.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> a = np.array([[[1.0, 2.0]], [[3.0, 4.0]]])
    >>> tn.ops.batched_matmul(a, np.ones((2, 2, 1)))
    array([[[3.]],
    <BLANKLINE>
           [[7.]]])
    """


@operation(mutates={"out": "output"}, check=_check_cholesky)
def batched_cholesky(a: Any, out: Any = None) -> Any:
    """Return the Cholesky factors of many symmetric positive definite matrices.

    Parameters
    ----------
    a : array, shape (..., n, n)
        float32 or float64. Only the lower triangles are read.
    out : array, shape (..., n, n), optional
        Gets the result. It may share memory with `a`.

    Returns
    -------
    array, shape (..., n, n)
        `out`, or a new array: lower triangular matrices L with ``a = L @ L.T``.

    Raises
    ------
    numpy.linalg.LinAlgError
        When a matrix is not positive definite, or has a NaN; `out` then holds nothing of use.
    CallError
        When the arguments are anything else.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> tn.ops.batched_cholesky(np.array([[[4.0, 2.0], [2.0, 2.0]]]))
    array([[[2., 0.],
            [1., 1.]]])
    """


# -- NumPy ----------------------------------------------------------------------------------------


@batched_matmul.register(
    name="numpy",
    per_geometry=True,
    is_compatible=lambda a, b, out: are_numpy(a, b),
    version=np.__version__,
)
def _matmul_numpy(a: Any, b: Any, out: Any) -> Callable[..., Any]:
    return np.matmul


@batched_cholesky.register(
    name="numpy", is_compatible=lambda a, out: are_numpy(a), version=np.__version__
)
def _cholesky_numpy(a: Any, out: Any) -> Any:
    factors = np.linalg.cholesky(a)
    # Some libraries that NumPy is built with take NaN for positive, and some do not.
    if np.isnan(factors.diagonal(axis1=-2, axis2=-1)).any():
        raise np.linalg.LinAlgError(_NOT_POSITIVE)
    if out is None:
        return factors
    out[...] = factors
    return out


# -- kernels --------------------------------------------------------------------------------------


def _is_compilable(*arrays: Any) -> bool | str:
    present = [each for each in arrays if each is not None]
    found = device_of(*present)
    if isinstance(found, str):
        return found
    if 0 in present[0].shape or 0 in present[-1].shape:
        return "there is nothing to compute"
    sizes = [size for each in present for size in each.shape[-2:]]
    if max(sizes) > _LARGEST:
        return f"matrices of more than {_LARGEST} rows or columns are left to libraries"
    if not found.is_host and len(present[0].shape) != 3:
        return "on a device the stack must have one axis in front of the matrices"
    return True


def _as_stack(array: Any) -> Any:
    """The same matrices with one axis in front; a copy where NumPy cannot view them so."""
    return array.reshape((math.prod(array.shape[:-2]), *array.shape[-2:]))


def _writing(
    run: Callable[..., None], context: DeviceContext, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Callable[..., Any]:
    """Return what calls `run` with stacks, a result of this shape last, and returns the result."""
    has_one_axis = len(shape) == 3

    def write(arrays: tuple[Any, ...], out: Any) -> Any:
        stacks = arrays if has_one_axis else tuple(map(_as_stack, arrays))
        if has_one_axis and _is_writable_in_place(out, dtype, arrays):
            run(*stacks, out)
            return out
        made = empty(context, shape, dtype)
        run(*stacks, made if has_one_axis else _as_stack(made))
        if out is None:
            return made
        out[...] = made
        return out

    return write


def _is_writable_in_place(out: Any, dtype: np.dtype[Any], arrays: tuple[Any, ...]) -> bool:
    if out is None or out.dtype != dtype:
        return False
    # On a device, where nobody can tell whether memory is common, the kernel refuses that.
    is_on_host = isinstance(out, np.ndarray)
    return not (is_on_host and any(np.may_share_memory(out, each) for each in arrays))


@batched_matmul.register(
    name="compiled",
    per_geometry=True,
    make_ms=_COMPILING_MS,
    is_compatible=lambda a, b, out: _is_compilable(a, b),
    version="1",
)
def _matmul_compiled(a: Any, b: Any, out: Any) -> Callable[..., Any]:
    (m, k), n = a.shape[-2:], b.shape[-1]
    context, dtype, shape = place_of(a, b), dtype_of(a), (*a.shape[:-1], n)
    run = cached(
        "batched_matmul",
        (m, n, k),
        dtype,
        context,
        lambda: kernels.batched_matmul(dtype, m, n, k).on(context.name),
    )
    write = _writing(run, context, shape, dtype)
    return lambda a, b, out: write((a, b), out)


@batched_cholesky.register(
    name="compiled",
    per_geometry=True,
    make_ms=_COMPILING_MS,
    is_compatible=lambda a, out: _is_compilable(a),
    version="1",
)
def _cholesky_compiled(a: Any, out: Any) -> Callable[..., Any]:
    context, dtype, shape = place_of(a), dtype_of(a), tuple(a.shape)
    n, count = shape[-1], math.prod(shape[:-2])
    kernel = cached(
        "batched_cholesky",
        (n,),
        dtype,
        context,
        lambda: kernels.batched_cholesky(dtype, n).on(context.name),
    )

    def run(a: Any, out: Any) -> None:
        failed = empty(context, (count,), np.dtype(np.int32))
        kernel(a, out, failed)
        if to_numpy(failed).any():
            raise np.linalg.LinAlgError(_NOT_POSITIVE)

    write = _writing(run, context, shape, dtype)
    return lambda a, out: write((a,), out)
