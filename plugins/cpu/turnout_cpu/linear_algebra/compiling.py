"""From sizes to callables: which code runs a size, who has compiled it, and how it is called.

A callable is a builtin (`entry`) in front of a Python path, which is the whole callable where the
interpreter has no native entries. The Python path runs what is worth several threads, and hands
whatever is not an array of the right form to the function that the caller gave for that.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from turnout.plugin import CompiledOperation, Device, ir, num_threads, on_num_threads_change

from .. import interpreter, threads
from . import entry
from .code import Code
from .inner_products import (
    COLUMNS,
    DOT,
    LARGEST_UNROLLED,
    ROWS,
    columns_text,
    dot_text,
    partials,
    rows_text,
)
from .large_matmul import NAME as LARGE_MATMUL
from .large_matmul import Tiling, large_matmul_text, split, tile_count, tiling
from .machine import host, second_level_cache_bytes
from .small_matmul import NAME as SMALL_MATMUL
from .small_matmul import is_small, small_matmul_text

Array = np.ndarray[Any, np.dtype[Any]]
Otherwise = Callable[..., Any]

_RELEASING_STEPS = 500_000
"""Multiplications from which on a call releases the interpreter lock; they take some 10 us."""

_THREAD_STEPS = 8_000_000
"""Multiplications that are worth a thread; they take some 100 us."""

_CACHED_BYTES = 24 << 20
"""More comes from memory. Asking for it ahead gains 10 to 20 % there, and loses as much below."""

_THREAD_BYTES = 1 << 20
"""Bytes of a matrix that are worth a thread where each element is used once."""


def compile_matmul(
    sizes: tuple[int, ...], dtype: np.dtype[Any], device: Device, otherwise: Otherwise
) -> CompiledOperation | None:
    """Make ``f(a, b, out)`` for a of shape (m, k), b of (k, n) and out of (m, n).

    Every element of the result is a sum in the order of k: chains of 256 fused multiply-adds, whose
    results are added in order. It has the same bits for any strides, alignment and number of
    threads. With ``u`` the unit roundoff of the type and ``g = k u / (1 - k u)``, its error is at
    most ``g * (abs(a) @ abs(b))`` (N. Higham, "Accuracy and Stability of Numerical Algorithms",
    2nd ed., section 3.5), as long as nothing over- or underflows. NaN and infinities go through as
    in any such sum. Integers wrap.

    Parameters
    ----------
    sizes : tuple of int
        m, n and k.
    dtype : dtype
        float32, float64, int32 or int64.
    device : Device
        The processor of this process.
    otherwise : callable
        Takes every other call.

    Returns
    -------
    CompiledOperation or None
        None for other types.
    """
    element = _element(dtype)
    if element is None:
        return None
    return _Matmul(sizes, element, otherwise).compiled()


def compile_gemv(
    sizes: tuple[int, ...], dtype: np.dtype[Any], device: Device, otherwise: Otherwise
) -> CompiledOperation | None:
    """Make ``f(a, x, out)`` for a of shape (m, n), x of (n,) and out of (m,).

    Where the rows of `a` are dense, each element of the result is what `compile_dot` gives for a
    row. Where its columns are, it is one chain of multiply-adds in their order, with the error
    bound of `compile_matmul`.

    Parameters and result are those of `compile_matmul`.
    """
    element = _element(dtype)
    if element is None:
        return None
    return _Gemv(sizes, element, otherwise).compiled()


def compile_dot(
    sizes: tuple[int, ...], dtype: np.dtype[Any], device: Device, otherwise: Otherwise
) -> CompiledOperation | None:
    """Make ``f(a, b)``, which returns a scalar of the arrays' type.

    `turnout_cpu.linear_algebra.inner_products` tells in which order terms are added: in p partial
    sums, 32 of float64 or 64 of float32, which are then added in halves. With ``q = ceil(n / p) +
    log2(p)`` and the unit roundoff ``u`` the error is at most ``q u / (1 - q u)`` times the sum of
    ``abs(a * b)`` (Higham, section 3.1: no term passes more than q roundings), as long as nothing
    over- or underflows.

    Parameters and result are those of `compile_matmul`.
    """
    element = _element(dtype)
    if element is None:
        return None
    return _Dot(sizes, element, otherwise).compiled()


def _element(dtype: np.dtype[Any]) -> ir.DType | None:
    offered = (ir.f32, ir.f64, ir.i32, ir.i64)
    return next((each for each in offered if each.dtype == dtype), None)


# -- code ------------------------------------------------------------------------------------------


@functools.cache
def _large_matmul(dtype: ir.DType) -> Code:
    return Code(large_matmul_text(dtype, host()), LARGE_MATMUL, host())


@functools.cache
def _gemv_columns(dtype: ir.DType) -> Code:
    return Code(columns_text(dtype, host()), COLUMNS, host())


@functools.cache
def _gemv_rows(dtype: ir.DType) -> Code:
    return Code(rows_text(None, dtype, host()), ROWS, host())


@functools.cache
def _dot(dtype: ir.DType, prefetches: bool) -> Code:
    return Code(dot_text(None, dtype, host(), prefetches=prefetches), DOT, host())


_has_several_threads = ctypes.c_int64(0)


def _learn_threads() -> None:
    _has_several_threads.value = num_threads() > 1


on_num_threads_change(_learn_threads)

_Positions = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_char_p, ctypes.c_int64, ctypes.c_int64)


# -- callables -------------------------------------------------------------------------------------


class _Operation:
    """The Python path of a callable."""

    def __init__(
        self, dtype: ir.DType, shapes: dict[str, tuple[int, ...]], otherwise: Otherwise
    ) -> None:
        self.dtype = dtype
        self.shapes = shapes
        self.otherwise = otherwise
        _learn_threads()

    def __call__(self, *arguments: Any) -> Any:
        if not self.takes(arguments):
            return self.otherwise(*arguments)
        return self.run(*arguments)

    def run(self, *arrays: Array) -> Any:
        """Compute with arrays of the right form."""
        raise NotImplementedError

    def takes(self, arguments: Sequence[Any]) -> bool:
        """Whether arguments are arrays of NumPy of the right type and shapes, and out is apart."""
        if len(arguments) != len(self.shapes):
            return False
        for array, shape in zip(arguments, self.shapes.values(), strict=True):
            if type(array) is not np.ndarray or array.dtype != self.dtype.dtype:
                return False
            if array.shape != shape:
                return False
        if "out" not in self.shapes:
            return True
        *inputs, out = arguments
        if not out.flags.writeable or not _has_distinct_elements(out):
            return False
        return out.size == 0 or not any(np.may_share_memory(out, each) for each in inputs)


def _has_distinct_elements(array: Array) -> bool:
    """Whether each axis steps over the smaller ones, so that no two elements share memory."""
    if array.size == 0:
        return True
    axes = zip(array.strides, array.shape, strict=True)
    reach = array.itemsize
    for stride, length in sorted((abs(stride), length) for stride, length in axes if length > 1):
        if stride < reach:
            return False
        reach += stride * (length - 1)
    return True


class _Matmul(_Operation):
    def __init__(self, sizes: tuple[int, ...], dtype: ir.DType, otherwise: Otherwise) -> None:
        self.m, self.n, self.k = m, n, k = sizes
        super().__init__(dtype, {"a": (m, k), "b": (k, n), "out": (m, n)}, otherwise)
        self.steps = m * n * k
        self.large: Code | None = None
        self.large_address = ctypes.c_int64(0)

    def compiled(self) -> CompiledOperation:
        """Choose the code and make the callable."""
        if self.steps == 0 or interpreter.layout_problem():
            return CompiledOperation(self, memory_bytes=0)
        small = None
        if is_small(self.m, self.n, self.k, self.dtype.itemsize):
            text = small_matmul_text(self.m, self.n, self.k, self.dtype, host())
            small = Code(text, SMALL_MATMUL, host())
        else:
            self.any_strides()
        run = entry.Run(
            self.steps >= _RELEASING_STEPS, self.steps >= 2 * _THREAD_STEPS, _has_several_threads
        )
        tilings = self.tiles(self.m, self.n), self.tiles(self.n, self.m)
        builtin = entry.matmul(
            self.dtype, self.shapes, small, self.large_address, run, tilings, self
        )
        return CompiledOperation(builtin, small.memory_bytes if small else 0)

    def any_strides(self) -> Code:
        """The code for matrices of any strides, which small ones may never need."""
        if self.large is None:
            self.large = _large_matmul(self.dtype)
            self.large_address.value = self.large.address
        return self.large

    def tiles(self, m: int, n: int) -> Tiling:
        return tiling(m, n, self.k, self.dtype, host(), second_level_cache_bytes())

    def run(self, *arrays: Array) -> Array:
        a, b, out = arrays
        if self.steps == 0:
            out[...] = 0
            return out
        if out.strides[0] == out.itemsize != out.strides[1]:
            self._multiply(b.T, a.T, out.T)
        else:
            self._multiply(a, b, out)
        return out

    def _multiply(self, *arrays: Array) -> None:
        m, n = arrays[-1].shape
        count = min(num_threads(), max(1, self.steps // _THREAD_STEPS))
        tiles = self.tiles(m, n)
        if count > 1:
            tiles = split(tiles, count)
        failed = ctypes.c_int64(0)
        words = [word for each in arrays for word in (each.ctypes.data, *each.strides)]
        words += [m, n, self.k, *tiles, ctypes.addressof(failed)]
        slots = struct.pack(f"={len(words)}q", *words)
        _run(self.any_strides().address, slots, tile_count(m, n, tiles), count)
        if failed.value:
            raise MemoryError("matmul: there is no memory for packing the matrices")


class _Gemv(_Operation):
    def __init__(self, sizes: tuple[int, ...], dtype: ir.DType, otherwise: Otherwise) -> None:
        self.m, self.n = m, n = sizes
        super().__init__(dtype, {"a": (m, n), "x": (n,), "out": (m,)}, otherwise)
        self.steps = m * n
        self.is_shared = n > LARGEST_UNROLLED * partials(dtype)
        self.codes = self._codes() if self.steps else []

    def _codes(self) -> list[Code]:
        """For columns that are dense, and for rows."""
        columns = _gemv_columns(self.dtype)
        if self.is_shared:
            return [columns, _gemv_rows(self.dtype)]
        return [columns, Code(rows_text(self.n, self.dtype, host()), ROWS, host())]

    def compiled(self) -> CompiledOperation:
        if self.steps == 0 or interpreter.layout_problem():
            return CompiledOperation(self, memory_bytes=0)
        is_long = self.steps * self.dtype.itemsize >= 2 * _THREAD_BYTES
        run = entry.Run(self.steps >= _RELEASING_STEPS, is_long, _has_several_threads)
        builtin = entry.gemv(self.dtype, self.shapes, self.codes, run, self)
        memory_bytes = 0 if self.is_shared else self.codes[1].memory_bytes
        return CompiledOperation(builtin, memory_bytes)

    def run(self, *arrays: Array) -> Array:
        a, x, out = arrays
        if self.steps == 0:
            out[...] = 0
            return out
        if a.itemsize not in a.strides:
            a = np.ascontiguousarray(a)
        axis = 1 if a.strides[1] == a.itemsize else 0
        x = np.ascontiguousarray(x)
        result = out if out.flags.c_contiguous else np.empty_like(out, order="C")
        words = (a.ctypes.data, *a.strides, x.ctypes.data, result.ctypes.data, self.m, self.n)
        count = min(num_threads(), max(1, self.steps * a.itemsize // _THREAD_BYTES))
        _run(self.codes[axis].address, struct.pack("=7q", *words), self.m, count)
        if result is not out:
            out[...] = result
        return out


class _Dot(_Operation):
    def __init__(self, sizes: tuple[int, ...], dtype: ir.DType, otherwise: Otherwise) -> None:
        (self.size,) = sizes
        super().__init__(dtype, {"a": sizes, "b": sizes}, otherwise)
        self.is_shared = self.size > LARGEST_UNROLLED * partials(dtype)
        self.code = self._code() if self.size else None

    def _code(self) -> Code:
        if self.is_shared:
            return _dot(self.dtype, 2 * self.size * self.dtype.itemsize > _CACHED_BYTES)
        return Code(dot_text(self.size, self.dtype, host()), DOT, host())

    def compiled(self) -> CompiledOperation:
        if self.code is None:
            return CompiledOperation(self, memory_bytes=0)
        memory_bytes = 0 if self.is_shared else self.code.memory_bytes
        if interpreter.layout_problem():
            return CompiledOperation(self, memory_bytes)
        builtin = entry.dot(self.dtype, self.shapes, self.code, self)
        return CompiledOperation(builtin, memory_bytes)

    def run(self, *arrays: Array) -> Any:
        scalar = self.dtype.dtype.type
        if self.code is None:
            return scalar(0)
        a, b = map(np.ascontiguousarray, arrays)
        element = np.ctypeslib.as_ctypes_type(self.dtype.dtype)
        native = ctypes.CFUNCTYPE(element, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        return scalar(native(self.code.address)(a.ctypes.data, b.ctypes.data, self.size))


def _run(address: int, slots: bytes, positions: int, count: int) -> None:
    """Run all positions, in several threads where they are worth it."""
    if count > 1:
        threads.pool().run(address, slots, positions, count)
    else:
        _Positions(address)(slots, 0, threads.WHOLE)
