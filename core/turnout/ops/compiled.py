"""Operations compiled for one exact size, and the cache of them.

The plugin of the device's backend compiles them, where it offers that (`turnout.offers`); anywhere
else they are kernels of this package.
"""

from __future__ import annotations

import operator
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from ..backends import DeviceContext, active, to_numpy
from ..errors import CallError
from ..offers import CompiledOperation, offered
from ..records import record
from . import kernels
from .operation import FLOATS, INTEGERS, dtype_of, takes

_MOST_ENTRIES = 1024

Sizes = tuple[int, ...]
Shapes = Mapping[str, tuple[int, ...]]


@record
class CacheInfo:
    """What the cache of compiled operations holds.

    Attributes
    ----------
    entries : int
        Compiled operations.
    hits, misses : int
        How often one was asked for that was there, and how often one had to be compiled.
    bytes : int
        What their code and constants take, as far as their compilers tell.
    """

    entries: int
    hits: int
    misses: int
    bytes: int


# -- for users ------------------------------------------------------------------------------------


def compile_dot(n: int, dtype: Any) -> Callable[..., Any]:
    """Compile the dot product of two vectors of `n` elements, for the active device.

    Parameters
    ----------
    n : int
    dtype : dtype-like
        float32, float64 or a type of integers.

    Returns
    -------
    callable
        ``f(a, b)`` returns a scalar of that type. It takes arrays of exactly this size and type,
        of any strides. The same sizes, type and device give the same object.

    Raises
    ------
    CallError
        When `n` is no whole number from 0 on, or the type is another one; the function raises it
        for other arrays.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> dot = tn.ops.compile_dot(3, np.float64)
    >>> print(dot(np.array([1.0, 2.0, 3.0]), np.array([1.0, 10.0, 100.0])))
    321.0
    """
    return compiled("dot", _checked_sizes("dot", n=n), _checked_dtype("dot", dtype))


def compile_gemv(m: int, n: int, dtype: Any) -> Callable[..., Any]:
    """Compile the product of an (m, n) matrix and a vector of n elements, for the active device.

    Parameters
    ----------
    m, n : int
    dtype : dtype-like
        float32, float64 or a type of integers.

    Returns
    -------
    callable
        ``f(a, x, out)`` writes `out`, of m elements, and returns it. Otherwise like
        `compile_matmul`.

    Raises
    ------
    CallError
        Like `compile_matmul`.
    """
    return compiled("gemv", _checked_sizes("gemv", m=m, n=n), _checked_dtype("gemv", dtype))


def compile_matmul(m: int, n: int, k: int, dtype: Any) -> Callable[..., Any]:
    """Compile the product of an (m, k) and a (k, n) matrix, for the active device.

    Parameters
    ----------
    m, n, k : int
    dtype : dtype-like
        float32, float64 or a type of integers.

    Returns
    -------
    callable
        ``f(a, b, out)`` writes `out`, of shape (m, n), and returns it. It takes arrays of exactly
        these sizes and this type, of any strides; `out` may share memory with the others, and gets
        what it would get otherwise. The same sizes, type and device give the same object.

    Raises
    ------
    CallError
        When a size is no whole number from 0 on, or the type is another one; the function raises it
        for other arrays.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> matmul = tn.ops.compile_matmul(2, 1, 3, np.float64)
    >>> matmul(np.arange(6.0).reshape(2, 3), np.ones((3, 1)), np.empty((2, 1)))
    array([[ 3.],
           [12.]])
    """
    sizes = _checked_sizes("matmul", m=m, n=n, k=k)
    return compiled("matmul", sizes, _checked_dtype("matmul", dtype))


def cache_info() -> CacheInfo:
    """Return how many compiled operations there are, and how often they were asked for.

    Returns
    -------
    CacheInfo
    """
    return _cache.info()


def cache_clear() -> None:
    """Forget all compiled operations, and the counts; those in use stay usable."""
    _cache.clear()


def _checked_sizes(operation: str, **sizes: Any) -> Sizes:
    checked = []
    for name, size in sizes.items():
        is_whole = hasattr(size, "__index__") and not isinstance(size, bool | np.bool_)
        if not is_whole or operator.index(size) < 0:
            raise CallError(
                f"compile_{operation}: {name} must be a whole number from 0 on, not {size!r}"
            )
        checked.append(operator.index(size))
    return tuple(checked)


def _checked_dtype(operation: str, dtype: Any) -> np.dtype[Any]:
    allowed = ", ".join(each.name for each in FLOATS + INTEGERS)
    problem = f"compile_{operation}: dtype must be one of {allowed}, not {dtype!r}"
    try:
        found: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        raise CallError(problem) from None
    if dtype is None or found not in FLOATS + INTEGERS:
        raise CallError(problem)
    return found


# -- compilation ----------------------------------------------------------------------------------


def compiled(
    operation: str,
    sizes: Sizes,
    dtype: np.dtype[Any],
    context: DeviceContext | None = None,
) -> Callable[..., Any]:
    """Return an operation for one exact size, compiled at the first time.

    Parameters
    ----------
    operation : {"dot", "gemv", "matmul"}
    sizes : tuple of int
    dtype : dtype
    context : DeviceContext, optional
        Default: the active device.
    """
    from . import linear_algebra  # its operations call this module

    linear_algebra.OPERATIONS[operation].prepare()  # plugins make their offers there
    context = context or active()
    key = (operation, sizes, dtype, context)
    return _cache.get(key, lambda: _compile(operation, sizes, dtype, context)).function


def cached(
    operation: str,
    sizes: Sizes,
    dtype: np.dtype[Any],
    context: DeviceContext,
    make: Callable[[], Callable[..., Any]],
) -> Callable[..., Any]:
    """Return what the cache has for these sizes, type and device, made at the first time."""
    key = (operation, sizes, dtype, context)
    return _cache.get(key, lambda: CompiledOperation(make(), memory_bytes=0)).function


def _compile(
    operation: str, sizes: Sizes, dtype: np.dtype[Any], context: DeviceContext
) -> CompiledOperation:
    careful = _Careful(operation, _SHAPES[operation](*sizes), dtype)
    compile = offered(operation, context.device.target.backend)
    made = None if compile is None else compile(sizes, dtype, context.device, careful)
    if made is None:
        function = _FROM_KERNEL[operation](dtype, context, careful)
        made = CompiledOperation(function, memory_bytes=0)  # shared by all sizes
    careful.function = made.function
    return made


def _of_dot(n: int) -> Shapes:
    return {"a": (n,), "b": (n,)}


def _of_gemv(m: int, n: int) -> Shapes:
    return {"a": (m, n), "x": (n,), "out": (m,)}


def _of_matmul(m: int, n: int, k: int) -> Shapes:
    return {"a": (m, k), "b": (k, n), "out": (m, n)}


_SHAPES: dict[str, Callable[..., Shapes]] = {
    "dot": _of_dot,
    "gemv": _of_gemv,
    "matmul": _of_matmul,
}


class _Careful:
    """Calls a compiled function with arguments that it does not take as they are."""

    def __init__(self, operation: str, shapes: Shapes, dtype: np.dtype[Any]) -> None:
        self.operation, self.shapes, self.dtype = operation, shapes, dtype
        self.function: Callable[..., Any]

    def __call__(self, *arguments: Any) -> Any:
        self.check(arguments)
        given = dict(zip(self.shapes, arguments, strict=True))
        out = given.pop("out", None)
        inputs = [_plain(value) for value in given.values()]
        if out is None:
            return self.function(*inputs)
        if not out.flags.writeable:
            raise CallError(f"compiled {self.operation}: out cannot be written")
        made = np.empty(out.shape, self.dtype)
        self.function(*inputs, made)
        np.copyto(out, made, casting="same_kind")
        return out

    def check(self, arguments: Sequence[Any]) -> None:
        """Raise a CallError unless the arguments are arrays of the right sizes and type."""
        expected = ", ".join(self.shapes)
        if len(arguments) != len(self.shapes):
            raise CallError(
                f"compiled {self.operation} takes {len(self.shapes)} arrays ({expected}), "
                f"{len(arguments)} were given"
            )
        for (name, shape), value in zip(self.shapes.items(), arguments, strict=True):
            if not self._fits(name, shape, value):
                is_array = hasattr(value, "shape") and hasattr(value, "dtype")
                what = f"{value.dtype}{list(value.shape)}" if is_array else type(value).__name__
                raise CallError(
                    f"compiled {self.operation}: {name} must be {self.dtype}{list(shape)}, not "
                    f"{what}: turnout.ops.{self.operation} takes any sizes"
                )

    def _fits(self, name: str, shape: tuple[int, ...], value: Any) -> bool:
        if not hasattr(value, "dtype") or tuple(getattr(value, "shape", ())) != shape:
            return False
        return takes(value, self.dtype) if name == "out" else dtype_of(value) == self.dtype


def _plain(value: Any) -> np.ndarray[Any, Any]:
    return np.require(value, requirements=("C", "A", "E"))


# -- the core's own: kernels -----------------------------------------------------------------------


def _dot_from_kernel(
    dtype: np.dtype[Any], context: DeviceContext, careful: _Careful
) -> Callable[..., Any]:
    run = kernels.dot(dtype).on(context.name)

    def dot(*arguments: Any) -> Any:
        careful.check(arguments)
        on_device = all(map(context.memory.owns, arguments))
        out = context.zeros((1,), dtype) if on_device else np.zeros(1, dtype)
        run(*arguments, out)
        return to_numpy(out)[0]

    return dot


def _matrix_from_kernel(
    make: Callable[[np.dtype[Any]], Any],
) -> Callable[[np.dtype[Any], DeviceContext, _Careful], Callable[..., Any]]:
    def from_kernel(
        dtype: np.dtype[Any], context: DeviceContext, careful: _Careful
    ) -> Callable[..., Any]:
        run = make(dtype).on(context.name)
        shapes = tuple(careful.shapes.values())

        def compiled(a: Any, b: Any, out: Any) -> Any:
            try:
                if (a.shape, b.shape, out.shape) == shapes:
                    run(a, b, out)
                    return out
            except (AttributeError, CallError):
                # What is no array, or shares memory; on a device the error is the kernel's to word.
                if not all(isinstance(each, np.ndarray) for each in (a, b, out)):
                    careful.check((a, b, out))
                    raise
            return careful(a, b, out)

        return compiled

    return from_kernel


_FROM_KERNEL: dict[str, Callable[..., Callable[..., Any]]] = {
    "dot": _dot_from_kernel,
    "gemv": _matrix_from_kernel(kernels.gemv),
    "matmul": _matrix_from_kernel(kernels.matmul),
}


# -- the cache ------------------------------------------------------------------------------------


class _Entry:
    """A compiled operation that one thread makes while others wait for it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.made: CompiledOperation | None = None


class _Cache:
    """Compiled operations; the one asked for longest ago makes room."""

    def __init__(self, most_entries: int) -> None:
        self._most_entries = most_entries
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self._hits = self._misses = 0

    def get(self, key: Hashable, make: Callable[[], CompiledOperation]) -> CompiledOperation:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._misses += 1
                entry = self._entries[key] = _Entry()
                if len(self._entries) > self._most_entries:
                    self._entries.popitem(last=False)
            else:
                self._hits += 1
                self._entries.move_to_end(key)
        with entry.lock:
            if entry.made is None:
                try:
                    entry.made = make()
                except BaseException:
                    with self._lock:
                        if self._entries.get(key) is entry:
                            del self._entries[key]
                    raise
            return entry.made

    def info(self) -> CacheInfo:
        with self._lock:
            made = [entry.made for entry in self._entries.values() if entry.made is not None]
            memory_bytes = sum(each.memory_bytes for each in made)
            return CacheInfo(len(made), self._hits, self._misses, memory_bytes)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._hits = self._misses = 0

    def forget_other_threads(self) -> None:
        """After a fork, in the child: the threads that were compiling do not exist here."""
        self._lock = threading.Lock()
        for key in [key for key, entry in self._entries.items() if entry.made is None]:
            del self._entries[key]


_cache = _Cache(_MOST_ENTRIES)

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_cache.forget_other_threads)
