"""What native code must know of the interpreter: its functions, and how it lays out objects.

CPython's objects are read field by field, because asking for a buffer takes ten times as long. The
places of the fields are those of the C headers of CPython and NumPy; `layout_problem` compares each
of them with what Python code sees, and native entries are made only where all agree.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from turnout.plugin import ir

HEADER_BYTES = object.__basicsize__
"""Reference count and type; the first field of an object follows."""

TYPE = HEADER_BYTES - 8
"""Place of the type in every object."""

TUPLE_LENGTH = HEADER_BYTES
TUPLE_ITEMS = tuple.__basicsize__
BYTES_VALUE = bytes.__basicsize__ - 1
SCALAR_VALUE = HEADER_BYTES
"""Place of the value in a float and in a NumPy scalar of at most eight bytes."""

ARRAY_DATA = HEADER_BYTES
ARRAY_RANK = HEADER_BYTES + 8  # an int
ARRAY_EXTENTS = HEADER_BYTES + 16
ARRAY_STRIDES = HEADER_BYTES + 24
ARRAY_DTYPE = HEADER_BYTES + 40
ARRAY_FLAGS = HEADER_BYTES + 48  # an int
IS_CONTIGUOUS = 0x1 | 0x2  # in C's order, in Fortran's order
IS_WRITABLE = 0x400

DTYPE_BYTE_ORDER = HEADER_BYTES + 10  # a char
DTYPE_NUMBER = HEADER_BYTES + 12  # an int
OTHER_BYTE_ORDER = ">" if sys.byteorder == "little" else "<"

FUNCTIONS = (
    "PyCFunction_NewEx",
    "PyContextVar_Get",
    "PyErr_Clear",
    "PyErr_Occurred",
    "PyEval_RestoreThread",
    "PyEval_SaveThread",
    "PyLong_AsDouble",
    "PyLong_AsLongLongAndOverflow",
    "PyLong_FromLongLong",
    "PyObject_Vectorcall",
    "PyTuple_New",
    "PyTuple_SetItem",
    "PyType_GetSlot",
    "Py_DecRef",
    "Py_IncRef",
)
"""The functions of CPython's C interface that a native entry calls."""


class MethodDefinition(ctypes.Structure):
    """CPython's ``PyMethodDef``."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


FASTCALL_WITH_KEYWORDS = 0x0080 | 0x0002
"""Flags of a builtin that takes ``(self, args, nargs, kwnames)``."""


def builtin(definition: MethodDefinition, owner: object) -> Callable[..., Any]:
    """Make a builtin function that owns `owner`, which must keep `definition` and its code."""
    prototype = ctypes.PYFUNCTYPE(
        ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p
    )
    make = prototype(function_address("PyCFunction_NewEx"))
    made: Callable[..., Any] = make(ctypes.addressof(definition), owner, None)
    return made


@functools.cache
def function_address(name: str) -> int:
    """Address of a function of CPython, or of the C library behind it; 0 where there is none."""
    function = getattr(ctypes.pythonapi, name, None)
    return 0 if function is None else ctypes.cast(function, ctypes.c_void_p).value or 0


@functools.cache
def clock_address() -> int:
    """Address of C's ``clock_gettime``; 0 where there is none."""
    return function_address("clock_gettime") if hasattr(time, "CLOCK_MONOTONIC") else 0


@functools.cache
def layout_problem() -> str:
    """Why objects of this interpreter cannot be read natively; empty where they can."""
    if sys.implementation.name != "cpython":
        return f"{sys.implementation.name} has no objects in CPython's form"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "without the interpreter lock, arrays may change while they are read"
    if ctypes.sizeof(ctypes.c_void_p) != 8:
        return "addresses have not 64 bits"
    missing = [name for name in FUNCTIONS if not function_address(name)]
    if missing:
        return f"CPython has no {', '.join(missing)}"
    return next((f"{what} is laid out otherwise" for what in _differences()), "")


_NUMPY_DTYPES = [np.dtype(code) for code in np.typecodes["AllInteger"] + "?fd"]
"""Those that kernels take; several may be equal, for example those of C's long and long long."""

HELD_TYPES = {float: ir.f64} | {
    each.type: held for each in _NUMPY_DTYPES if (held := ir.from_numpy(each)) is not None
}
"""Scalar types whose objects hold a number in one field, and how."""

SCALAR_TYPES = {bool, int, *HELD_TYPES}
"""Types of scalars whose value native code can read."""


def equal_dtype_numbers(dtype: ir.DType) -> list[int]:
    """NumPy's numbers of the dtypes that equal `dtype`."""
    return sorted({each.num for each in _NUMPY_DTYPES if each == dtype.dtype})


def _word(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def _int(address: int) -> int:
    return ctypes.c_int.from_address(address).value


def _differences() -> Iterator[str]:
    """What is not where it is expected. Each field is read only after those that lead to it."""
    items = (1.5, "item", b"\x01\x02")
    if _word(id(items) + TYPE) != id(tuple) or _word(id(items) + TUPLE_LENGTH) != len(items):
        yield "a tuple"
    if [_word(id(items) + TUPLE_ITEMS + 8 * n) for n in range(3)] != [id(each) for each in items]:
        yield "a tuple"
    if ctypes.string_at(id(items[2]) + BYTES_VALUE, 3) != b"\x01\x02\x00":
        yield "a bytes object"
    for scalar_type, held in HELD_TYPES.items():
        scalar = scalar_type(1)
        stored = ctypes.string_at(id(scalar) + SCALAR_VALUE, held.itemsize)
        if stored != np.array(scalar).tobytes():
            yield f"a {scalar_type.__name__}"
    for array in _sample_arrays():
        yield from _array_differences(array)


def _sample_arrays() -> list[np.ndarray[tuple[int, ...], np.dtype[np.generic]]]:
    vector = np.arange(12.0)
    matrix = vector.reshape(3, 4)
    read_only = np.arange(3, dtype=np.int8)
    read_only.flags.writeable = False
    return [
        vector,
        vector[3::2],
        vector[::-1],
        vector[:0],
        matrix,
        matrix.T,
        matrix[1:, ::-2],
        matrix[:, 1],
        np.broadcast_to(vector, (2, 12)),
        np.arange(24, dtype=np.uint16).reshape(2, 3, 4),
        np.zeros((1, 2, 3, 4), np.bool_, order="F"),
        np.zeros((), np.float32),
        np.zeros(3, f"{OTHER_BYTE_ORDER}i4"),
        np.zeros(3, np.longlong),
        read_only,
    ]


def _array_differences(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Iterator[str]:
    start, rank = id(array), array.ndim
    if _word(start + TYPE) != id(np.ndarray) or _int(start + ARRAY_RANK) != rank:
        yield "an array"
        return
    if _word(start + ARRAY_DATA) != array.__array_interface__["data"][0]:
        yield "an array's data"
    flags, is_contiguous = _int(start + ARRAY_FLAGS), array.flags.forc
    if (flags & IS_CONTIGUOUS != 0) != is_contiguous:
        yield "an array's contiguity"
    if (flags & IS_WRITABLE != 0) != array.flags.writeable:
        yield "an array's writability"
    if _word(start + ARRAY_DTYPE) != id(array.dtype):
        yield "an array's dtype"
        return
    dtype = array.dtype
    if ctypes.string_at(id(dtype) + DTYPE_BYTE_ORDER, 1).decode() != dtype.byteorder:
        yield "a dtype's byte order"
    if _int(id(dtype) + DTYPE_NUMBER) != dtype.num:
        yield "a dtype's number"
    for field, values in ((ARRAY_EXTENTS, array.shape), (ARRAY_STRIDES, array.strides)):
        if rank and tuple((ctypes.c_int64 * rank).from_address(_word(start + field))) != values:
            yield "an array's shape"
