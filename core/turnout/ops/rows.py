"""Operations along the last axis: softmax, layer normalisation, convolution.

Each has the implementations ``numpy``, for arrays of NumPy, and ``kernel``, which runs anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..backends import array as put
from ..errors import CallError
from . import row_kernels
from .operation import (
    FLOATS,
    are_numpy,
    check_arrays,
    check_out,
    device_of,
    dtype_of,
    empty,
    on_device,
    operation,
    place_of,
    stored,
)
from .stacking import is_stack_of, writing

_COMPILING_MS = 100.0


def _check_softmax(a: Any, out: Any) -> None:
    check_arrays("softmax", {"a": a}, {"a": "(..., n)"}, FLOATS)
    check_out("softmax", out, tuple(a.shape), a)


def _check_layernorm(a: Any, gain: Any, bias: Any, epsilon: Any, out: Any) -> None:
    given = {"gain": gain, "bias": bias}
    arrays = {"a": a} | {name: value for name, value in given.items() if value is not None}
    axes = {"a": "(..., n)", "gain": "(n,)", "bias": "(n,)"}
    check_arrays("layernorm", arrays, axes, FLOATS)
    for name in arrays:
        if arrays[name].shape[-1] != a.shape[-1]:
            raise CallError(
                f"layernorm: the last axis of a and the length of {name} must agree, they are "
                f"{a.shape[-1]} and {arrays[name].shape[-1]}"
            )
    is_number = isinstance(epsilon, float | int | np.floating) and not isinstance(epsilon, bool)
    if not is_number or not epsilon >= 0:
        raise CallError(f"layernorm: epsilon must be a number from 0 on, not {epsilon!r}")
    check_out("layernorm", out, tuple(a.shape), a)


def _check_conv1d(a: Any, w: Any, out: Any) -> None:
    check_arrays("conv1d", {"a": a, "w": w}, {"a": "(..., n)", "w": "(k,)"})
    if not 1 <= w.shape[0] <= a.shape[-1]:
        raise CallError(
            f"conv1d: w must have from 1 to as many elements as the last axis of a, which has "
            f"{a.shape[-1]}, not {w.shape[0]}"
        )
    check_out("conv1d", out, _shape_of_conv1d(a, w), a)


def _shape_of_conv1d(a: Any, w: Any) -> tuple[int, ...]:
    return (*a.shape[:-1], a.shape[-1] - w.shape[0] + 1)


@operation(mutates={"out": "output"}, check=_check_softmax)
def softmax(a: Any, out: Any = None) -> Any:
    """Return ``exp(a) / exp(a).sum()`` along the last axis.

    Parameters
    ----------
    a : array, shape (..., n)
        float32 or float64. The greatest number of a row is taken from the others first, so that
        nothing overflows.
    out : array, shape (..., n), optional
        Gets the result. It may share memory with `a`.

    Returns
    -------
    array, shape (..., n)
        `out`, or a new array.

    Raises
    ------
    CallError
        When the arguments are anything else.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> tn.ops.softmax(np.array([0.0, 0.0])), tn.ops.softmax(np.array([1000.0, 0.0]))
    (array([0.5, 0.5]), array([1., 0.]))
    """


@operation(mutates={"out": "output"}, check=_check_layernorm)
def layernorm(
    a: Any, gain: Any = None, bias: Any = None, epsilon: float = 1e-5, out: Any = None
) -> Any:
    """Return rows that are shifted and scaled to mean 0 and variance 1.

    Parameters
    ----------
    a : array, shape (..., n)
        float32 or float64.
    gain, bias : array, shape (n,), optional
        The result is multiplied by `gain`, then `bias` is added.
    epsilon : float
        Is added to the variance of each row before its root is taken.
    out : array, shape (..., n), optional
        Gets the result. It may share memory with the others.

    Returns
    -------
    array, shape (..., n)
        `out`, or a new array.

    Raises
    ------
    CallError
        When the arguments are anything else, or their types or lengths differ.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> tn.ops.layernorm(np.array([[1.0, 3.0]]), epsilon=0.0)
    array([[-1.,  1.]])
    """


@operation(mutates={"out": "output"}, check=_check_conv1d)
def conv1d(a: Any, w: Any, out: Any = None) -> Any:
    """Return the sums of the products of `w` and each part of the last axis that is as long.

    ``out[..., i] = sum(a[..., i + j] * w[j] for j in range(k))``: what `numpy.correlate` gives in
    mode ``"valid"`` for real numbers, and what networks call a convolution.

    Parameters
    ----------
    a : array, shape (..., n)
    w : array, shape (k,)
        Of the same type, float32, float64 or integers, with k from 1 to n.
    out : array, shape (..., n - k + 1), optional
        Gets the result. It may share memory with the others.

    Returns
    -------
    array, shape (..., n - k + 1)
        `out`, or a new array.

    Raises
    ------
    CallError
        When the arguments are anything else, or their types or lengths do not fit.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> tn.ops.conv1d(np.array([1.0, 2.0, 4.0, 8.0]), np.array([-1.0, 1.0]))
    array([1., 2., 4.])
    """


# -- NumPy ----------------------------------------------------------------------------------------


@softmax.register(name="numpy", is_compatible=lambda a, out: are_numpy(a), version="1")
def _softmax_numpy(a: Any, out: Any) -> Any:
    if not a.size:
        return stored(a.copy(), out)
    with np.errstate(invalid="ignore"):  # infinities make NaN, as in any implementation
        exponentials = np.exp(a - a.max(axis=-1, keepdims=True))
        exponentials /= exponentials.sum(axis=-1, keepdims=True)
    return stored(exponentials, out)


@layernorm.register(
    name="numpy",
    is_compatible=lambda a, gain, bias, epsilon, out: are_numpy(a),
    version="1",
)
def _layernorm_numpy(a: Any, gain: Any, bias: Any, epsilon: float, out: Any) -> Any:
    if not a.size:
        return stored(a.copy(), out)
    with np.errstate(invalid="ignore", divide="ignore"):
        difference = a - a.mean(axis=-1, keepdims=True)
        variance = np.square(difference).mean(axis=-1, keepdims=True)
        result = difference / np.sqrt(variance + a.dtype.type(epsilon))
    if gain is not None:
        result *= gain
    if bias is not None:
        result += bias
    return stored(result, out)


@conv1d.register(name="numpy", is_compatible=lambda a, w, out: are_numpy(a, w), version="1")
def _conv1d_numpy(a: Any, w: Any, out: Any) -> Any:
    if a.ndim == 1:
        return stored(np.correlate(a, w, "valid"), out)
    windows = np.lib.stride_tricks.sliding_window_view(a, len(w), axis=-1)
    return stored(windows @ w, out)


# -- kernels --------------------------------------------------------------------------------------


def _is_compatible(*arrays: Any) -> bool | str:
    present = [each for each in arrays if each is not None]
    found = device_of(*present)
    if isinstance(found, str):
        return found
    if 0 in present[0].shape:
        return "there is nothing to compute"
    return is_stack_of(found, present[0], axes=1)


@softmax.register(
    name="kernel",
    per_geometry=True,
    make_ms=_COMPILING_MS,
    is_compatible=lambda a, out: _is_compatible(a),
    version="1",
)
def _softmax_kernel(a: Any, out: Any) -> Callable[..., Any]:
    context, dtype, shape = place_of(a), dtype_of(a), tuple(a.shape)
    kernel, rows = on_device(row_kernels.softmax(dtype), context.name), math.prod(shape[:-1])

    def run(a: Any, out: Any) -> None:
        kernel(a, empty(context, (rows,), dtype), out)

    write = writing(run, context, shape, dtype, axes=1)
    return lambda a, out: write((a,), out)


@layernorm.register(
    name="kernel",
    per_geometry=True,
    make_ms=_COMPILING_MS,
    is_compatible=lambda a, gain, bias, epsilon, out: _is_compatible(a, gain, bias),
    version="1",
)
def _layernorm_kernel(a: Any, gain: Any, bias: Any, epsilon: float, out: Any) -> Callable[..., Any]:
    context, dtype, shape = place_of(a), dtype_of(a), tuple(a.shape)
    kernel = on_device(row_kernels.layernorm(dtype), context.name)
    ones = put(np.ones(shape[-1], dtype), context.name) if gain is None else None
    zeros = put(np.zeros(shape[-1], dtype), context.name) if bias is None else None
    write = writing(kernel, context, shape, dtype, axes=1)

    def layernorm(a: Any, gain: Any, bias: Any, epsilon: float, out: Any) -> Any:
        others = (ones if gain is None else gain, zeros if bias is None else bias, float(epsilon))
        return write((a,), out, others)

    return layernorm


@conv1d.register(
    name="kernel",
    per_geometry=True,
    make_ms=_COMPILING_MS,
    is_compatible=lambda a, w, out: _is_compatible(a, w),
    version="1",
)
def _conv1d_kernel(a: Any, w: Any, out: Any) -> Callable[..., Any]:
    context, dtype = place_of(a), dtype_of(a)
    kernel = on_device(row_kernels.conv1d(dtype), context.name)
    write = writing(kernel, context, _shape_of_conv1d(a, w), dtype, axes=1)
    return lambda a, w, out: write((a,), out, (w,))
