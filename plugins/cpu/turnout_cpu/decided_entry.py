"""The builtin in front of an operation: it finds the function of a decided call, and calls that.

It is a native entry like those of kernels (`turnout_cpu.native_entry`). It reads the geometry of
the arguments field by field, looks in the table of decisions, and calls what is there with the same
arguments. All else goes to the Python path.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from turnout.plugin import NO_DEFAULT, DecidedCalls, DirectCall, DirectParameter, ir

from . import interpreter as layout
from .entry_text import EntryText
from .linear_algebra.entry import IS_C_CONTIGUOUS, made_builtin


def make_decided_entry(calls: DecidedCalls) -> Callable[..., Any] | None:
    """Make the builtin for one operation.

    Returns
    -------
    builtin or None
        None where the interpreter is not of the form that native code knows.
    """
    if layout.layout_problem():
        return None
    return made_builtin(_DecidedText(calls), calls)


class _DecidedText(EntryText):
    def __init__(self, calls: DecidedCalls) -> None:
        self.calls = calls
        parameters = tuple(
            DirectParameter(
                name=each,
                takes_position=True,
                takes_keyword=True,
                default=NO_DEFAULT if each in calls.arrays else None,
                python_type=np.ndarray,
                dtype=ir.f64,  # of any type: that is part of the key
                rank=0,
                width=0,
                counts_samples=False,
                is_written=False,
            )
            for each in (*calls.arrays, *calls.optional)
        )
        nothing: Any = None  # it launches no unit
        super().__init__(
            DirectCall(
                name=calls.name,
                parameters=parameters,
                overlaps=(),
                reaches=(),
                results=(),
                returns_tuple=False,
                scratch=(),
                runs=(),
                target=nothing,
                device=calls.device,
                fallback=calls.fallback,
                cached=nothing,
            )
        )
        self.device()
        given = self.given()
        self.are_arrays(given[: len(calls.arrays)])
        self.call_found(self.slot(self.key(given)), given)

    def are_arrays(self, given: list[str]) -> None:
        """Go on if these are arrays of NumPy's own type."""
        array = self.python_object("type", np.ndarray)
        types = (self.field(each, layout.TYPE, "ptr") for each in given)
        self.require(self.all_of(self.value(f"icmp eq ptr {each}, {array}") for each in types))

    def key(self, given: list[str]) -> list[str]:
        """The words that tell the geometry."""
        value, count = self.value, len(self.calls.arrays)
        self.zero = self.stack("i64")
        self.write(f"store i64 0, ptr {self.zero}")
        key = [self.element_type(given[0])]
        for each in given[:count]:
            key += self.shape(each)
        none = self.python_object("None", None)
        for place, each in enumerate(given[count:]):
            is_none = value(f"icmp eq ptr {each}, {none}")
            bit = value(f"select i1 {is_none}, i64 {self.calls.table.optional_bit(place)}, i64 0")
            key[1] = value(f"or i64 {key[1]}, {bit}")
        return key

    def element_type(self, array: str) -> str:
        dtype = self.field(array, layout.ARRAY_DTYPE, "ptr")
        number = self.value(f"zext i32 {self.field(dtype, layout.DTYPE_NUMBER, 'i32')} to i64")
        order = self.field(dtype, layout.DTYPE_BYTE_ORDER, "i8")
        is_other = self.value(f"icmp eq i8 {order}, {ord(layout.OTHER_BYTE_ORDER)}")
        bit = self.value(f"select i1 {is_other}, i64 {self.calls.table.OTHER_BYTE_ORDER}, i64 0")
        return self.value(f"or i64 {number}, {bit}")

    def shape(self, array: str) -> list[str]:
        """A word for axes and layout, then the lengths."""
        value = self.value
        rank = self.field(array, layout.ARRAY_RANK, "i32")
        self.require(value(f"icmp ule i32 {rank}, {self.calls.table.MOST_AXES}"))
        flags = self.field(array, layout.ARRAY_FLAGS, "i32")
        is_contiguous = self.has_flag(flags, IS_C_CONTIGUOUS)
        bit = value(f"select i1 {is_contiguous}, i64 {self.calls.table.IS_CONTIGUOUS}, i64 0")
        words = [value(f"or i64 {value(f'zext i32 {rank} to i64')}, {bit}")]
        extents = self.field(array, layout.ARRAY_EXTENTS, "ptr")
        for axis in range(self.calls.table.MOST_AXES):
            has_axis = value(f"icmp ugt i32 {rank}, {axis}")
            there = value(f"getelementptr i8, ptr {extents}, i64 {8 * axis}")
            place = value(f"select i1 {has_axis}, ptr {there}, ptr {self.zero}")
            words.append(value(f"load i64, ptr {place}"))
        return words

    def slot(self, key: list[str]) -> str:
        """Go on if the table has the key; gives the address of its slot."""
        value, table = self.value, self.calls.table
        total = "0"
        for word, factor in zip(key, table.factors, strict=True):
            total = value(f"add i64 {total}, {value(f'mul i64 {word}, {factor}')}")
        number = value(f"lshr i64 {total}, {64 - self.calls.table.SLOT_BITS}")
        offset = value(f"mul i64 {number}, {8 * table.slot_words}")
        slot = value(f"getelementptr i8, ptr {self.address('table', table.words)}, i64 {offset}")
        words = (self.field(slot, 8 * (self.calls.table.KEY + n), "i64") for n in range(len(key)))
        pairs = zip(words, key, strict=True)
        self.require(self.all_of(value(f"icmp eq i64 {one}, {other}") for one, other in pairs))
        return slot

    def call_found(self, slot: str, given: list[str]) -> None:
        """Call the function of a slot, if there is one that may be called."""
        value = self.value
        function = self.field(slot, 8 * self.calls.table.FUNCTION, "ptr")
        left = self.field(slot, 8 * self.calls.table.LEFT, "i64")
        is_there = value(f"icmp ne ptr {function}, null")
        self.require(self.all_of((is_there, value(f"icmp sgt i64 {left}, 0"))))
        counter = value(f"getelementptr i8, ptr {slot}, i64 {8 * self.calls.table.LEFT}")
        self.write(f"store i64 {value(f'sub i64 {left}, 1')}, ptr {counter}")
        arguments = self.stack(f"[{len(given)} x ptr]")
        for place, each in enumerate(given):
            self.write(f"store ptr {each}, ptr {self.element(arguments, place)}")
        # While it runs, other threads may take it out of the table.
        self.call_python("void", "Py_IncRef", f"ptr {function}")
        call = (f"ptr {function}", f"ptr {arguments}", f"i64 {len(given)}", "ptr null")
        result = self.call_python("ptr", "PyObject_Vectorcall", *call)
        self.call_python("void", "Py_DecRef", f"ptr {function}")
        self.write(f"ret ptr {result}")
