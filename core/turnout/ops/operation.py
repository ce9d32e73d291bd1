"""What the operations of this package have in common."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ..backends import DeviceContext, active, home
from ..errors import CallError
from ..kernel import Kernel
from ..perf import PerformanceDispatcher
from ..settings import settings
from ..signatures import generate_flat_geometry
from ..tuning import TrialPlan
from ..written import Mutates

P = ParamSpec("P")
R = TypeVar("R")

PACKAGE = "turnout.ops"

FLOATS = tuple(np.dtype(name) for name in ("float32", "float64"))
INTEGERS = tuple(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64))

_BUDGET = 0.01
"""Share of the time that looking at a decision again may take."""


def operation(
    *,
    mutates: Mutates | None = None,
    check: Callable[..., object] | None = None,
    values: Sequence[str] = (),
) -> Callable[[Callable[P, R]], PerformanceDispatcher[P, R]]:
    """Make an operation that is called ``turnout.ops.<name>``; a decorator, like `perf_dispatch`.

    Its calls are raced until the difference is resolved: they are short, and one sample would tell
    little. Where all others are clearly slower, the decision holds; where not, it is looked at
    again, ever more rarely, because what happened beside the first race may have spoiled it. The
    geometry does not tell what ``out`` is, nor the types of arrays after the first: implementations
    see to these themselves.

    Parameters
    ----------
    mutates : iterable or mapping, optional
        As of `perf_dispatch`.
    check : callable, optional
        As of `perf_dispatch`; see `check_arrays`.
    values : sequence of str
        Parameters that are part of the geometry themselves, such as an axis.
    """

    def decorate(prototype: Callable[P, R]) -> PerformanceDispatcher[P, R]:
        prototype.__module__ = PACKAGE
        given = settings(
            generate_flat_geometry(inspect.signature(prototype), values),
            TrialPlan(warmup=1, active="auto", exploration_budget=_BUDGET, settles=True),
            mutates=mutates,
            check=check,
        )
        return PerformanceDispatcher(prototype, given)

    return decorate


# -- arguments ------------------------------------------------------------------------------------


def check_arrays(
    operation: str,
    arrays: Mapping[str, Any],
    ranks: Mapping[str, str],
    dtypes: Sequence[np.dtype[Any]] = FLOATS + INTEGERS,
) -> None:
    """Raise a CallError unless these are arrays of one type, each with the axes that it must have.

    Parameters
    ----------
    operation : str
    arrays : mapping of str to object
        By parameter.
    ranks : mapping of str to str
        The axes of each array in words, for example ``"(m, k)"``; ``...`` stands for any number
        of axes.
    dtypes : sequence of dtype
        The element types that are allowed.
    """
    first = next(iter(arrays))
    for name, value in arrays.items():
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            raise CallError(
                f"{operation}: {name} must be an array, not {type(value).__name__}: convert it "
                "with numpy.asarray"
            )
        axes = ranks[name]
        is_stack = "..." in axes
        count = axes.count(",") + (not axes.endswith(",)")) - is_stack
        if len(value.shape) < count if is_stack else len(value.shape) != count:
            raise CallError(
                f"{operation}: {name} must have the shape {axes}, not {tuple(value.shape)}"
            )
        dtype = dtype_of(value)
        if dtype not in dtypes:
            raise CallError(
                f"{operation}: {name} has elements of type {value.dtype}: give one of "
                f"{', '.join(each.name for each in dtypes)}"
            )
        if dtype != dtype_of(arrays[first]):
            raise CallError(
                f"{operation}: {first} is {arrays[first].dtype} and {name} {value.dtype}: convert "
                "one of them with .astype, so that all have one type"
            )


def dtype_of(array: Any) -> np.dtype[Any]:
    """Return the element type as NumPy's; that of objects for what NumPy does not know."""
    if isinstance(array.dtype, np.dtype):
        return array.dtype
    try:
        return np.dtype(str(array.dtype).rpartition(".")[2])
    except TypeError:
        return np.dtype(object)


def check_out(operation: str, out: Any, shape: tuple[int, ...], like: Any) -> None:
    """Raise a CallError unless `out` is None, or an array that takes the result, as in NumPy."""
    if out is None:
        return
    given = getattr(out, "shape", None)
    if given is None or tuple(given) != shape or not takes(out, dtype_of(like)):
        what = type(out).__name__ if given is None else f"{out.dtype} of shape {tuple(given)}"
        raise CallError(
            f"{operation}: out must be an array like the result, {like.dtype} of shape {shape}, "
            f"not {what}"
        )
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise CallError(f"{operation}: out is read-only: give an array that may be written")


def takes(out: Any, dtype: np.dtype[Any]) -> bool:
    """Whether results of a type may be stored: of the same type, or of another one of its kind."""
    return np.can_cast(dtype, dtype_of(out), "same_kind")


# -- compatibility --------------------------------------------------------------------------------


def are_numpy(*arrays: Any) -> bool | str:
    """Whether NumPy takes all of these; else why not."""
    others = {type(each).__name__ for each in arrays if not isinstance(each, np.ndarray)}
    return f"NumPy does not take {', '.join(sorted(others))}" if others else True


def device_of(*arrays: Any) -> DeviceContext | str:
    """Return the device on which code of turnout works on these arrays where they are; or why not.

    Arrays of NumPy go to the active device, if that works in the memory of the host.
    """
    homes = [home(each) for each in arrays]
    first = homes[0]
    if any(each is not first for each in homes):
        return "the arrays are in different places"
    if first is not None:
        return first
    if any(type(each) is not np.ndarray for each in arrays):
        return "an array is neither NumPy's own nor one of a device"
    context = active()
    if not context.is_host:
        return f"the arrays are on the host, and {context.name} has a memory of its own"
    if context.backend.name == "reference":
        return "the reference backend evaluates by NumPy"
    return context


def place_of(*arrays: Any) -> DeviceContext:
    """Return the device of arrays for which `device_of` has one."""
    found = device_of(*arrays)
    assert isinstance(found, DeviceContext)
    return found


@functools.cache
def on_device(kernel: Kernel, device: str) -> Kernel:
    """Return a kernel for a device, the same one each time, which keeps what it has loaded."""
    return kernel.on(device)


def empty(context: DeviceContext, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Make an array on a device; what it holds does not matter."""
    return np.empty(shape, dtype) if context.is_host else context.zeros(shape, dtype)


def stored(result: Any, out: Any) -> Any:
    """Return `out` with a result in it, or the result itself where there is no `out`."""
    if out is None:
        return result
    out[...] = result
    return out
