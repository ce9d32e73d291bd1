"""The default geometry of a call: everything about its arguments that decides its speed.

It is computed at every call of an operation without ``get_geometry_hash``, so it reads attributes
that are at hand on the host: shapes, dtypes, strides; never the contents of an array. Beside what
`describe` says of each argument it holds the active device, on which kernels run that get host
arrays.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable
from typing import Any

import numpy as np

from .backends import home


def describe(value: object) -> object:
    """Return what one argument contributes to the default geometry.

    Parameters
    ----------
    value : object
        An argument of the call.

    Returns
    -------
    hashable
        For an array its type, shape, dtype, device and whether it is C-contiguous (for which axes
        of length 1 and empty arrays do not matter). For strings, booleans, enum members, types and
        None the value; for numbers and all else only the type. For lists, tuples, dicts and
        dataclasses the same of each member, one level deep. Keeps no array alive.
    """
    if type(value) is np.ndarray:
        return value.shape, value.dtype, value.flags.c_contiguous
    members = _members(value)
    if members is None:
        return _describe_leaf(value)
    return type(value), *map(_describe_leaf, members)


def leaves(values: Iterable[object]) -> list[object]:
    """Return the values, with the members of containers in place of these."""
    found: list[object] = []
    for value in values:
        members = _members(value)
        found += [value] if members is None else members
    return found


def _members(value: object) -> list[object] | None:
    """Return what a container holds, in an order of its own; None for anything else."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, dict):
        items = sorted(value.items(), key=lambda item: str(item[0]))
        return [part for item in items for part in item]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return None


def _describe_leaf(value: Any) -> object:
    if value is None or isinstance(value, (str, bool, enum.Enum, type, np.dtype)):
        return type(value), value
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:
        return type(value)
    return type(value), tuple(shape), dtype, _is_c_contiguous(value), _device(value)


def _is_c_contiguous(array: Any) -> bool:
    is_contiguous = getattr(array, "is_contiguous", None)  # PyTorch, whose strides are a method
    if callable(is_contiguous):
        return bool(is_contiguous())
    strides = getattr(array, "strides", None)
    if strides is None or 0 in array.shape:
        return True
    expected = array.dtype.itemsize
    for length, stride in zip(reversed(array.shape), reversed(strides), strict=True):
        if length != 1 and stride != expected:
            return False
        expected *= length
    return True


def _device(array: Any) -> object:
    owner = home(array)
    if owner is not None:
        return owner.name
    dlpack_device = getattr(array, "__dlpack_device__", None)
    if callable(dlpack_device):
        return tuple(dlpack_device())
    return str(getattr(array, "device", ""))
