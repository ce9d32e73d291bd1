"""Kernels over stacks, called with arrays of any number of axes in front."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..backends import DeviceContext
from .operation import empty, stored


def is_stack_of(context: DeviceContext, array: Any, axes: int) -> bool | str:
    """Whether `writing` works for arrays of this shape, or why not."""
    if context.is_host or len(array.shape) == axes + 1:
        return True
    if hasattr(array, "reshape") and array.flags.c_contiguous:
        return True
    return f"on {context.name} there must be one axis in front of the last {axes}"


def writing(
    run: Callable[..., None],
    context: DeviceContext,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    axes: int,
) -> Callable[..., Any]:
    """Return what calls a kernel over stacks with arrays of any shape, and returns the result.

    Parameters
    ----------
    run : callable
        Takes stacks, with one axis in front, then other arguments, and the result to write.
    context : DeviceContext
        Where all arrays are.
    shape : tuple of int
        Of the result.
    dtype : dtype
    axes : int
        How many axes of the arrays, and of the result, do not belong to the stack.

    Returns
    -------
    callable
        ``write(arrays, out, others=())``; `out` may be None.
    """
    has_one_axis = len(shape) == axes + 1

    def as_stack(array: Any) -> Any:
        # A copy where NumPy cannot view the elements so.
        front = math.prod(array.shape[: len(array.shape) - axes])
        return array.reshape((front, *array.shape[len(array.shape) - axes :]))

    def write(arrays: tuple[Any, ...], out: Any, others: tuple[Any, ...] = ()) -> Any:
        stacks = arrays if has_one_axis else tuple(map(as_stack, arrays))
        if has_one_axis and is_written_in_place(out, dtype, (*arrays, *others)):
            run(*stacks, *others, out)
            return out
        made = empty(context, shape, dtype)
        run(*stacks, *others, made if has_one_axis else as_stack(made))
        return stored(made, out)

    return write


def is_written_in_place(out: Any, dtype: np.dtype[Any], arrays: Sequence[Any]) -> bool:
    """Whether a kernel may write its result, of this type, to `out` while it reads `arrays`."""
    if out is None or out.dtype != dtype:
        return False
    if not isinstance(out, np.ndarray):
        return True  # nobody can tell whether memory is common: the kernel refuses that
    return not any(
        np.may_share_memory(out, each) for each in arrays if isinstance(each, np.ndarray)
    )
