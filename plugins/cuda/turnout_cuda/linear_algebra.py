"""CuPy, and cuBLAS below it, as implementations of operations of ``turnout.ops``.

The functions whose names begin with ``register`` are entry points of the group
``turnout.implementations``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_WRITES_OUT = {"out": "output"}


def register_dot(operation: Any) -> None:
    """Register ``cupy.dot``, whose result is brought to the host."""

    def make(a: Any, b: Any) -> Callable[..., Any]:
        import cupy

        def dot(a: Any, b: Any) -> Any:
            with a.device:
                return cupy.dot(a, b).get()[()]

        return dot

    operation.register(
        name="cupy", is_compatible=_are_on_one_gpu, mutates=(), per_geometry=True, version="1"
    )(make)


def register_gemv(operation: Any) -> None:
    """Register ``cupy.matmul`` for a matrix and a vector."""

    def make(a: Any, x: Any, out: Any) -> Callable[..., Any]:
        product = _product()
        return lambda a, x, out: product(a, x, out)

    operation.register(
        name="cupy",
        is_compatible=lambda a, x, out: _are_on_one_gpu(a, x, out),
        mutates=_WRITES_OUT,
        per_geometry=True,
        version="1",
    )(make)


def register_matmul(operation: Any) -> None:
    """Register ``cupy.matmul``, for two matrices or stacks of them."""

    def make(a: Any, b: Any, out: Any) -> Callable[..., Any]:
        return _product()

    operation.register(
        name="cupy",
        is_compatible=lambda a, b, out: _are_on_one_gpu(a, b, out),
        mutates=_WRITES_OUT,
        per_geometry=True,
        version="1",
    )(make)


def register_reduction(operation: Any) -> None:
    """Register CuPy's function of the operation's name; a scalar is brought to the host."""
    name = operation.__name__

    def make(a: Any, axis: int | None, out: Any) -> Callable[..., Any]:
        import cupy

        function = getattr(cupy, name)
        if name in ("argmax", "argmin") and a.dtype.kind == "f":
            function = _with_first_nan(cupy, function)

        def reduce(a: Any, axis: int | None, out: Any) -> Any:
            with a.device:
                result = function(a, axis=axis)
                if out is not None:
                    out[...] = result
                    return out
                return result if result.shape else result.get()[()]

        return reduce

    operation.register(
        name="cupy",
        is_compatible=lambda a, axis, out: _are_on_one_gpu(a, out),
        mutates=_WRITES_OUT,
        per_geometry=True,
        version="1",
    )(make)


def _with_first_nan(cupy: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Of several NaN CuPy gives the place of any; the operations give that of the first one."""

    def place(a: Any, axis: int | None) -> Any:
        is_nan = cupy.isnan(a)
        first = cupy.argmax(is_nan, axis=axis)
        return cupy.where(cupy.any(is_nan, axis=axis), first, function(a, axis=axis))

    return place


def _product() -> Callable[..., Any]:
    import cupy

    def product(a: Any, b: Any, out: Any) -> Any:
        with a.device:
            return cupy.matmul(a, b) if out is None else cupy.matmul(a, b, out=out)

    return product


def _are_on_one_gpu(*arrays: Any) -> bool | str:
    """Whether all are CuPy's own, on one GPU; CuPy was imported by whoever made them."""
    cupy = sys.modules.get("cupy")
    present = [each for each in arrays if each is not None]
    if cupy is None or not all(isinstance(each, cupy.ndarray) for each in present):
        return "an array is none of CuPy"
    is_on_one = len({each.device.id for each in present}) == 1
    return True if is_on_one else "the arrays are on different GPUs"
