"""Builtins that take the arrays of a user, check them, and run the generated code.

They are native entries like those of kernels (`turnout_cpu.native_entry`), made of the same parts:
whatever is not as it must be goes to the Python path. Sizes and addresses are in the table, so the
text depends on the operation and the element type alone, and callables for any number of sizes
share one piece of code.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from turnout.plugin import NO_DEFAULT, DirectCall, DirectParameter, ir

from .. import interpreter as layout
from ..entry_text import LARGEST, NAME, EntryText
from ..text import type_of
from .code import Code, entry_code
from .large_matmul import Tiling

Builtin = Callable[..., Any]

IS_C_CONTIGUOUS = 0x1
_TP_ALLOC = 47
"""Number of the slot of a type that holds the function which makes its objects."""


class OperationText(EntryText):
    """What the texts of all operations have in common.

    Parameters
    ----------
    name : str
        Of the operation.
    dtype : DType
        Of the elements of every array.
    shapes : mapping of str to tuple of int
        The arrays in order; the one called ``out`` is written and returned.
    python : callable
        The Python path.
    """

    def __init__(
        self,
        name: str,
        dtype: ir.DType,
        shapes: Mapping[str, tuple[int, ...]],
        python: Callable[..., Any],
    ) -> None:
        inputs = [each for each in shapes if each != "out"]
        parameters = tuple(
            DirectParameter(
                name=each,
                takes_position=True,
                takes_keyword=False,
                default=NO_DEFAULT,
                python_type=np.ndarray,
                dtype=dtype,
                rank=len(shape),
                width=0,
                counts_samples=False,
                is_written=each == "out",
            )
            for each, shape in shapes.items()
        )
        overlaps = tuple((n, len(inputs), False) for n in range(len(inputs) * ("out" in shapes)))
        # It runs on this processor, whatever device is in force, and launches no unit.
        nothing: Any = None
        super().__init__(
            DirectCall(
                name=name,
                parameters=parameters,
                overlaps=overlaps,
                reaches=(),
                results=(),
                returns_tuple=False,
                scratch=(),
                runs=(),
                target=nothing,
                device=nothing,
                fallback=python,
                cached=nothing,
            )
        )
        self.dtype = dtype
        self.objects = self.given()
        arguments = [self.argument(*each) for each in zip(parameters, self.objects, strict=True)]
        self.arrays = cast("list[Any]", arguments)
        self.require(self.all_of(self.extents_agree(shapes)))
        self.check(arguments)

    def extents_agree(self, shapes: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
        """Whether each array has its shape; the sizes are words of the table."""
        for array, (name, shape) in zip(self.arrays, shapes.items(), strict=True):
            for axis, size in enumerate(shape):
                wanted = self.word(f"{name} {axis}", size, "i64")
                yield self.value(f"icmp eq i64 {array.extents[axis]}, {wanted}")

    def are_contiguous(self, *places: int) -> str:
        """Whether arrays lie in C's order without gaps."""
        flags = (self.field(self.objects[n], layout.ARRAY_FLAGS, "i32") for n in places)
        return self.all_of(self.has_flag(each, IS_C_CONTIGUOUS) for each in flags)

    def write_return(self) -> None:
        """Return the last argument."""
        self.call_python("void", "Py_IncRef", f"ptr {self.objects[-1]}")
        self.write(f"ret ptr {self.objects[-1]}")

    def run_alone(self, run: Run, entry: str, slots: Sequence[tuple[str, str]]) -> None:
        """Run all positions in this thread, unless several are to share them."""
        several = self.shared(self.address("several", run.has_several_threads))
        has_one = self.value(f"icmp eq i64 {several}, 0")
        is_short = self.value(f"icmp eq i64 {self.word('is long', run.is_long, 'i64')}, 0")
        self.require(self.any_of((has_one, is_short)))
        packed = self.stack(f"[{len(slots)} x i64]")
        for number, (kind, value) in enumerate(slots):
            self.pack(packed, number, kind, value)
        takes_long = self.value(f"icmp ne i64 {self.word('releases', run.releases, 'i64')}, 0")
        release, work, restore, end = self.function.new_labels("release", "work", "restore", "end")
        before = self.function.block
        self.function.branch(takes_long, release, work)
        self.function.start(release)
        saved = self.call_python("ptr", "PyEval_SaveThread")
        self.function.jump(work)
        self.function.start(work)
        state = self.value(f"phi ptr [ null, %{before} ], [ {saved}, %{release} ]")
        self.value(f"call i64 {entry}(ptr {packed}, i64 0, i64 {LARGEST})")
        self.function.branch(takes_long, restore, end)
        self.function.start(restore)
        self.call_python("void", "PyEval_RestoreThread", f"ptr {state}")
        self.function.jump(end)
        self.function.start(end)


@dataclass(frozen=True)
class Run:
    """How a builtin runs code that takes slots and a range of positions.

    Attributes
    ----------
    releases, is_long : bool
        Whether it takes long enough to release the interpreter lock, and to be worth threads.
    has_several_threads : c_int64
        Not 0 where launches may use more than one.
    """

    releases: bool
    is_long: bool
    has_several_threads: ctypes.c_int64


def matmul(
    dtype: ir.DType,
    shapes: Mapping[str, tuple[int, ...]],
    small: Code | None,
    large_address: ctypes.c_int64,
    run: Run,
    tilings: tuple[Tiling, Tiling],
    python: Builtin,
) -> Builtin:
    """The builtin of a product of matrices.

    Contiguous ones are multiplied by `small` where there is such code, all others by that at
    `large_address`, once there is one. The tilings are that of the product and, for a result whose
    columns are dense, that of the transposed product of the transposed matrices.
    """
    text = OperationText("matmul", dtype, shapes, python)
    if small is not None:
        in_one_piece, any_strides = text.function.new_labels("piece", "strides")
        text.function.branch(text.are_contiguous(0, 1, 2), in_one_piece, any_strides)
        text.function.start(in_one_piece)
        pointers = ", ".join(f"ptr {array.data}" for array in text.arrays)
        text.write(f"call void {text.word('small', small.address)}({pointers})")
        text.write_return()
        text.function.start(any_strides)

    a, b, out = text.arrays
    starts_dense, ends_dense = (
        text.value(f"icmp eq i64 {stride}, {dtype.itemsize}") for stride in out.strides
    )
    is_swapped = text.value(f"select i1 {ends_dense}, i1 false, i1 {starts_dense}")

    def chosen(kind: str, swapped: str, usual: str) -> tuple[str, str]:
        choice = f"select i1 {is_swapped}, {kind} {swapped}, {kind} {usual}"
        return kind, text.value(choice)

    slots = []
    for usual, swapped in ((a, b), (b, a), (out, out)):
        slots.append(chosen("ptr", swapped.data, usual.data))
        slots.append(chosen("i64", swapped.strides[1], usual.strides[0]))
        slots.append(chosen("i64", swapped.strides[0], usual.strides[1]))
    m, n, k = a.extents[0], b.extents[1], a.extents[1]
    slots += [chosen("i64", n, m), chosen("i64", m, n), ("i64", k)]
    for name, *sizes in zip(Tiling._fields, *tilings, strict=True):
        usual, swapped = (text.word(f"{name} {n}", size, "i64") for n, size in enumerate(sizes))
        slots.append(chosen("i64", swapped, usual))
    failed = text.stack("i64")
    text.write(f"store i64 0, ptr {failed}")
    address = text.shared(text.address("large", large_address))
    text.require(text.value(f"icmp ne i64 {address}, 0"))
    entry = text.value(f"inttoptr i64 {address} to ptr")
    text.run_alone(run, entry, [*slots, ("ptr", failed)])
    # Python finds that there is no memory, and says so.
    text.require(text.value(f"icmp eq i64 {text.value(f'load i64, ptr {failed}')}, 0"))
    text.write_return()
    return made_builtin(text, small)


def gemv(
    dtype: ir.DType,
    shapes: Mapping[str, tuple[int, ...]],
    codes: Sequence[Code],
    run: Run,
    python: Builtin,
) -> Builtin:
    """The builtin of the product of a matrix and a dense vector.

    The two functions of `codes` take matrices that are dense along axis 0, and along axis 1.
    """
    text = OperationText("gemv", dtype, shapes, python)
    a, x, out = text.arrays
    text.require(text.are_contiguous(1, 2))
    is_dense = [text.value(f"icmp eq i64 {each}, {dtype.itemsize}") for each in a.strides]
    text.require(text.any_of(is_dense))
    columns, rows = (text.word(f"axis {axis}", each.address) for axis, each in enumerate(codes))
    entry = text.value(f"select i1 {is_dense[1]}, ptr {rows}, ptr {columns}")
    slots = [("ptr", a.data), ("i64", a.strides[0]), ("i64", a.strides[1]), ("ptr", x.data)]
    slots += [("ptr", out.data), ("i64", a.extents[0]), ("i64", a.extents[1])]
    text.run_alone(run, entry, slots)
    text.write_return()
    return made_builtin(text, codes)


def dot(
    dtype: ir.DType, shapes: Mapping[str, tuple[int, ...]], code: Code, python: Builtin
) -> Builtin:
    """The builtin of a dot product of contiguous vectors; returns a scalar of NumPy."""
    text = OperationText("dot", dtype, shapes, python)
    text.require(text.are_contiguous(0, 1))
    a, b = text.arrays
    element = type_of(dtype)
    arguments = f"ptr {a.data}, ptr {b.data}, i64 {a.extents[0]}"
    total = text.value(f"call {element} {text.word('entry', code.address)}({arguments})")
    # As the type itself would make an object, but without a Python float in between.
    allocate = text.word("allocate", _allocator(dtype))
    scalar_type = text.python_object("scalar type", dtype.dtype.type)
    made = text.value(f"call ptr {allocate}(ptr {scalar_type}, i64 0)")
    text.check_memory(made)
    place = text.value(f"getelementptr i8, ptr {made}, i64 {layout.SCALAR_VALUE}")
    text.write(f"store {element} {total}, ptr {place}")
    text.write(f"ret ptr {made}")
    return made_builtin(text, code)


@functools.cache
def _allocator(dtype: ir.DType) -> int:
    """Address of the function that makes scalars of a type."""
    prototype = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_int)
    address = prototype(layout.function_address("PyType_GetSlot"))(dtype.dtype.type, _TP_ALLOC)
    return int(address)


def made_builtin(text: EntryText, owned: object) -> Builtin:
    """Make the builtin of a text that is complete but for the ways out to Python."""
    text.leave()
    code = entry_code(text.definition(), NAME)
    table = struct.pack(f"={len(text.words)}Q", *text.words)
    method = layout.MethodDefinition(
        text.call.name.encode(), code.address, layout.FASTCALL_WITH_KEYWORDS, None
    )
    return layout.builtin(method, (text.call.fallback, table, method, code, owned, text.kept))
