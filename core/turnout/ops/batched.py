"""Operations on stacks of many small matrices.

Each has the implementations ``numpy``, for arrays of NumPy, and ``compiled``, a kernel for matrices
of exactly one size, whose loops the compiler can write out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..backends import to_numpy
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
from .stacking import is_stack_of, writing

_LARGEST = 32
"""Rows and columns of matrices that are small enough for `compiled`."""

_LARGEST_WRITTEN_OUT = 8
"""Beyond this, compiling takes the longer, the more is written out, and gains little."""

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
    return is_stack_of(found, present[0], axes=2)


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
    write = writing(run, context, shape, dtype, axes=2)
    return lambda a, b, out: write((a, b), out)


@batched_cholesky.register(
    name="compiled",
    per_geometry=True,
    make_ms=_COMPILING_MS,
    is_compatible=lambda a, out: _is_compilable(a),
    version="2",
)
def _cholesky_compiled(a: Any, out: Any) -> Callable[..., Any]:
    return _cholesky(a, is_written_out=False)


def _is_small(a: Any, out: Any) -> bool | str:
    if a.shape[-1] > _LARGEST_WRITTEN_OUT:
        return f"loops over more than {_LARGEST_WRITTEN_OUT} rows are not written out"
    return _is_compilable(a)


@batched_cholesky.register(
    name="compiled_written_out",
    per_geometry=True,
    make_ms=_COMPILING_MS,
    is_compatible=_is_small,
    version="2",
)
def _cholesky_written_out(a: Any, out: Any) -> Callable[..., Any]:
    return _cholesky(a, is_written_out=True)


def _cholesky(a: Any, is_written_out: bool) -> Callable[..., Any]:
    context, dtype, shape = place_of(a), dtype_of(a), tuple(a.shape)
    n, count = shape[-1], math.prod(shape[:-2])

    def make() -> Callable[..., Any]:
        kernel = kernels.batched_cholesky(dtype, n)
        if is_written_out:
            kernel = kernel.specialise(a=(None, n, n), out=(None, n, n))
        return kernel.on(context.name)

    name = "batched_cholesky written out" if is_written_out else "batched_cholesky"
    kernel = cached(name, (n,), dtype, context, make)

    def run(a: Any, out: Any) -> None:
        failed = empty(context, (count,), np.dtype(np.int32))
        kernel(a, out, failed)
        if to_numpy(failed).any():
            raise np.linalg.LinAlgError(_NOT_POSITIVE)

    write = writing(run, context, shape, dtype, axes=2)
    return lambda a, out: write((a,), out)
