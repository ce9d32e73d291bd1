"""Sums, extremes and cumulative sums, of a whole array or along an axis.

Each has the implementations ``numpy``, for arrays of NumPy, and ``kernel``, which runs anywhere.
Plugins register others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..backends import to_numpy
from ..errors import CallError
from ..kernel import Kernel
from ..perf import PerformanceDispatcher
from ..records import record
from . import reduction_kernels as kernels
from .operation import (
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
from .stacking import is_written_in_place

_COMPILING_MS = 60.0


def total_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type of sums, NumPy's own: integers are added in 64 bits."""
    return np.dtype({"i": np.int64, "u": np.uint64}.get(dtype.kind, dtype))


def _same(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype


def _place(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.int64)


_RESULTS: Mapping[str, Callable[[np.dtype[Any]], np.dtype[Any]]] = {
    "sum": total_type,
    "max": _same,
    "min": _same,
    "argmax": _place,
    "argmin": _place,
    "cumsum": total_type,
}
"""The type of results, by that of elements."""


# -- shapes ---------------------------------------------------------------------------------------


@record
class Along:
    """Where a reduction goes.

    Attributes
    ----------
    form : str
        The form of the kernel: ``"whole"``, ``"rows"`` or ``"columns"``.
    shape : tuple of int
        How the kernel sees the array: ``(n,)``, ``(rows, n)`` or ``(before, n, after)``.
    """

    form: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], axis: int | None) -> Along:
        """Describe the reduction of an array along an axis, or of all of it for None."""
        if axis is None or len(shape) == 1:
            return cls("whole", (math.prod(shape),))
        axis %= len(shape)
        before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        if after == 1:
            return cls("rows", (before, shape[axis]))
        return cls("columns", (before, shape[axis], after))

    @property
    def reduced(self) -> tuple[int, ...]:
        """The shape of the kernel's result, where a number is left of each n."""
        if self.form == "whole":
            return (1,)
        return (self.shape[0], *self.shape[2:])


def _check_axis(name: str, a: Any, axis: Any) -> None:
    if axis is None:
        return
    rank = len(a.shape)
    is_whole = isinstance(axis, int | np.integer) and not isinstance(axis, bool)
    if not is_whole or not -rank <= axis < rank:
        allowed = f", or an axis from {-rank} to {rank - 1}" if rank else ""
        raise CallError(
            f"{name}: axis must be None for all elements{allowed} of a, which has the shape "
            f"{tuple(a.shape)}; not {axis!r}"
        )


def _without(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    """Return the shape that a reduction leaves."""
    if axis is None:
        return ()
    axis %= len(shape)
    return (*shape[:axis], *shape[axis + 1 :])


def _check(name: str, a: Any, axis: Any, out: Any, shape_of: Callable[..., Any]) -> None:
    check_arrays(name, {"a": a}, {"a": "(...)"})
    _check_axis(name, a, axis)
    check_out(name, out, shape_of(tuple(a.shape), axis), np.empty(0, _RESULTS[name](dtype_of(a))))


def _check_nonempty(name: str, a: Any, axis: int | None) -> None:
    if (math.prod(a.shape) if axis is None else a.shape[axis]) == 0:
        along = "" if axis is None else f" along axis {axis}"
        raise CallError(
            f"{name}: a has the shape {tuple(a.shape)}, so there is no element{along} to find: "
            "leave out empty arrays"
        )


def _check_sum(a: Any, axis: Any, out: Any) -> None:
    _check("sum", a, axis, out, _without)


def _check_extreme(name: str) -> Callable[..., None]:
    def check(a: Any, axis: Any, out: Any) -> None:
        _check(name, a, axis, out, _without)
        _check_nonempty(name, a, axis)

    return check


def _check_cumsum(a: Any, axis: Any, out: Any) -> None:
    _check("cumsum", a, axis, out, _shape_of_cumsum)


def _shape_of_cumsum(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return (math.prod(shape),) if axis is None else shape


# -- operations -----------------------------------------------------------------------------------


@operation(mutates={"out": "output"}, check=_check_sum, values=("axis",))
def sum(a: Any, axis: int | None = None, out: Any = None) -> Any:
    """Return the sum of all elements, or the sums along an axis.

    Parameters
    ----------
    a : array, shape (...)
        float32, float64 or integers. Integers are added in 64 bits, and wrap, as in NumPy.
    axis : int, optional
        The axis along which to add; all elements by default.
    out : array, optional
        Gets the result, whose shape is that of `a` without the axis.

    Returns
    -------
    scalar or array
        A scalar of NumPy without `axis`; a device is waited for. Else `out`, or a new array. Each
        sum of n floats differs from the exact one by less than ``n * eps / 2`` times the sum of
        their magnitudes, to first order in eps.

    Raises
    ------
    CallError
        When the arguments are anything else.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> a = np.array([[1, 2], [3, 4]], np.int8)
    >>> int(tn.ops.sum(a)), tn.ops.sum(a, axis=0)
    (10, array([4, 6]))
    """


@operation(mutates={"out": "output"}, check=_check_extreme("max"), values=("axis",))
def max(a: Any, axis: int | None = None, out: Any = None) -> Any:
    """Return the greatest element, or the greatest ones along an axis.

    Parameters
    ----------
    a : array, shape (...)
        float32, float64 or integers. Where there is a NaN it is the result.
    axis : int, optional
        The axis along which to look, which must not be empty; all elements by default.
    out : array, optional
        Gets the result, whose shape is that of `a` without the axis.

    Returns
    -------
    scalar or array
        A scalar of NumPy without `axis`; a device is waited for. Else `out`, or a new array.

    Raises
    ------
    CallError
        When the arguments are anything else, or there is no element.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> a = np.array([[1.0, 2.0], [4.0, 0.0]])
    >>> print(tn.ops.max(a), tn.ops.max(a, axis=1))
    4.0 [2. 4.]
    """


@operation(mutates={"out": "output"}, check=_check_extreme("min"), values=("axis",))
def min(a: Any, axis: int | None = None, out: Any = None) -> Any:
    """Return the least element, or the least ones along an axis.

    Parameters
    ----------
    a : array, shape (...)
        float32, float64 or integers. Where there is a NaN it is the result.
    axis : int, optional
        The axis along which to look, which must not be empty; all elements by default.
    out : array, optional
        Gets the result, whose shape is that of `a` without the axis.

    Returns
    -------
    scalar or array
        A scalar of NumPy without `axis`; a device is waited for. Else `out`, or a new array.

    Raises
    ------
    CallError
        When the arguments are anything else, or there is no element.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> a = np.array([[1.0, 2.0], [4.0, 0.0]])
    >>> print(tn.ops.min(a), tn.ops.min(a, axis=1))
    0.0 [1. 0.]
    """


@operation(mutates={"out": "output"}, check=_check_extreme("argmax"), values=("axis",))
def argmax(a: Any, axis: int | None = None, out: Any = None) -> Any:
    """Return where the greatest element is, or the greatest ones along an axis are.

    Parameters
    ----------
    a : array, shape (...)
        float32, float64 or integers. Of equal ones the first counts, and the first NaN
        where there is one.
    axis : int, optional
        The axis along which to look, which must not be empty; all elements by default.
    out : array, optional
        Gets the result, whose shape is that of `a` without the axis.

    Returns
    -------
    scalar or array
        An int64 scalar of NumPy without `axis`, which is the place in `a.ravel()`; a device is
        waited for. Else `out`, or a new array of int64.

    Raises
    ------
    CallError
        When the arguments are anything else, or there is no element.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> a = np.array([[1.0, 2.0], [4.0, 0.0]])
    >>> print(tn.ops.argmax(a), tn.ops.argmax(a, axis=1))
    2 [1 0]
    """


@operation(mutates={"out": "output"}, check=_check_extreme("argmin"), values=("axis",))
def argmin(a: Any, axis: int | None = None, out: Any = None) -> Any:
    """Return where the least element is, or the least ones along an axis are.

    Parameters
    ----------
    a : array, shape (...)
        float32, float64 or integers. Of equal ones the first counts, and the first NaN
        where there is one.
    axis : int, optional
        The axis along which to look, which must not be empty; all elements by default.
    out : array, optional
        Gets the result, whose shape is that of `a` without the axis.

    Returns
    -------
    scalar or array
        An int64 scalar of NumPy without `axis`, which is the place in `a.ravel()`; a device is
        waited for. Else `out`, or a new array of int64.

    Raises
    ------
    CallError
        When the arguments are anything else, or there is no element.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> a = np.array([[1.0, 2.0], [4.0, 0.0]])
    >>> print(tn.ops.argmin(a), tn.ops.argmin(a, axis=1))
    3 [0 1]
    """


@operation(mutates={"out": "output"}, check=_check_cumsum, values=("axis",))
def cumsum(a: Any, axis: int | None = None, out: Any = None) -> Any:
    """Return the sums of all elements up to each one, or of those along an axis.

    Parameters
    ----------
    a : array, shape (...)
        float32, float64 or integers. Integers are added in 64 bits, and wrap, as in NumPy.
    axis : int, optional
        The axis along which to add; by default that of ``a.ravel()``.
    out : array, optional
        Gets the result, whose shape is that of `a`, or ``(a.size,)`` without `axis`. It may share
        memory with `a`.

    Returns
    -------
    array
        `out`, or a new array. A sum of n floats differs from the exact one by less than
        ``n * eps / 2`` times the sum of their magnitudes, to first order in eps.

    Raises
    ------
    CallError
        When the arguments are anything else.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> tn.ops.cumsum(np.array([1.0, 2.0, 4.0]))
    array([1., 3., 7.])
    """


OPERATIONS: Mapping[str, PerformanceDispatcher[..., Any]] = {
    "sum": sum,
    "max": max,
    "min": min,
    "argmax": argmax,
    "argmin": argmin,
    "cumsum": cumsum,
}


# -- NumPy ----------------------------------------------------------------------------------------


# What NumPy's functions of these names call, without a microsecond of Python.
_REDUCE = {"sum": np.add.reduce, "max": np.maximum.reduce, "min": np.minimum.reduce}


def _register_numpy(name: str) -> None:
    function = _REDUCE.get(name) or getattr(np, name)

    @OPERATIONS[name].register(
        name="numpy",
        per_geometry=True,
        is_compatible=lambda a, axis, out: are_numpy(a),
        version=np.__version__,
    )
    def make(a: Any, axis: int | None, out: Any) -> Callable[..., Any]:
        dtype = _RESULTS[name](dtype_of(a))

        def reduce(a: Any, axis: int | None, out: Any) -> Any:
            if out.dtype == dtype:
                return function(a, axis=axis, out=out)
            return stored(function(a, axis), out)

        return function if out is None else reduce


for _name in OPERATIONS:
    _register_numpy(_name)


# -- kernels --------------------------------------------------------------------------------------

_KERNELS: Mapping[str, Callable[[str, np.dtype[Any]], Kernel]] = {
    "sum": lambda form, dtype: kernels.sum_of(form, dtype, total_type(dtype)),
    "max": lambda form, dtype: kernels.extreme_of(form, dtype, True),
    "min": lambda form, dtype: kernels.extreme_of(form, dtype, False),
    "argmax": lambda form, dtype: kernels.place_of_extreme(form, dtype, True),
    "argmin": lambda form, dtype: kernels.place_of_extreme(form, dtype, False),
    "cumsum": lambda form, dtype: kernels.cumulative_sum_of(form, dtype, total_type(dtype)),
}


def _is_reducible(a: Any, axis: int | None, out: Any) -> bool | str:
    """Whether kernels take an array as it is, or NumPy copies it into an order that they take."""
    found = device_of(a) if out is None else device_of(a, out)
    if isinstance(found, str):
        return found
    if found.is_host or Along.of(tuple(a.shape), axis).shape == tuple(a.shape):
        return True
    if hasattr(a, "reshape") and a.flags.c_contiguous:
        return True
    return f"on {found.name} arrays of several axes must be contiguous"


def _register_kernel(name: str) -> None:
    make_run = _cumulative if name == "cumsum" else _reducing

    @OPERATIONS[name].register(
        name="kernel",
        per_geometry=True,
        make_ms=_COMPILING_MS,
        is_compatible=_is_reducible,
        version="1",
    )
    def make(a: Any, axis: int | None, out: Any) -> Callable[..., Any]:
        return make_run(name, a, axis)


def _reducing(name: str, a: Any, axis: int | None) -> Callable[..., Any]:
    context, along = place_of(a), Along.of(tuple(a.shape), axis)
    kernel = on_device(_KERNELS[name](along.form, dtype_of(a)), context.name)
    dtype, shape = _RESULTS[name](dtype_of(a)), _without(tuple(a.shape), axis)

    def reduce(a: Any, axis: int | None, out: Any) -> Any:
        made = empty(context, along.reduced, dtype)
        kernel(_seen_as(a, along.shape), made)
        if out is None and not shape:
            return to_numpy(made)[0]
        return stored(_seen_as(made, shape), out)

    return reduce


def _cumulative(name: str, a: Any, axis: int | None) -> Callable[..., Any]:
    context, along = place_of(a), Along.of(tuple(a.shape), axis)
    if along.form == "whole" and context.is_host:
        along = Along("rows", (1, *along.shape))
    kernel = on_device(_KERNELS[name](along.form, dtype_of(a)), context.name)
    dtype, shape = total_type(dtype_of(a)), _shape_of_cumsum(tuple(a.shape), axis)
    blocks = -(-math.prod(along.shape) // kernels.BLOCK)

    def accumulate(a: Any, axis: int | None, out: Any) -> Any:
        is_in_place = is_written_in_place(out, dtype, (a,)) and _is_viewed(out, along.shape)
        made = out if is_in_place else empty(context, shape, dtype)
        between = (empty(context, (blocks,), dtype),) if along.form == "whole" else ()
        kernel(_seen_as(a, along.shape), *between, _seen_as(made, along.shape))
        return made if is_in_place else stored(made, out)

    return accumulate


def _seen_as(array: Any, shape: tuple[int, ...]) -> Any:
    """Return the elements of an array in another shape; a copy where NumPy cannot view them so."""
    return array if array.shape == shape else array.reshape(shape)


def _is_viewed(array: Any, shape: tuple[int, ...]) -> bool:
    return bool(array.shape == shape or array.flags.c_contiguous)


for _name in OPERATIONS:
    _register_kernel(_name)
