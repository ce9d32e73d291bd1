"""The text of a native entry, from the arguments of CPython's calling convention to the result.

The function is written in the order in which it runs: device, arguments by position and keyword,
the value of each, the checks that the core makes too, packed slots (`turnout_cpu.emit`), arrays to
return, launches. Whatever is not as it must be goes to the block ``python``, which hands the call
over; no place that goes there owns anything.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turnout.plugin import NO_DEFAULT, CallLimit, DirectCall, DirectParameter, DirectRun, ir

from . import interpreter as layout
from .body import SLOT_BYTES, slots
from .text import FunctionText, ModuleText, storage_type_of, type_of

NAME = "direct_call"
"""Symbol of the function."""

LARGEST = 2**63 - 1

_PYTHON, _CLEAR = "python", "clear"
"""Labels: leave the call to Python; clear the exception before that."""


@dataclass(frozen=True)
class _Scalar:
    """A number in the type in which launchers take it, as it is stored."""

    dtype: ir.DType
    value: str


@dataclass(frozen=True)
class _Array:
    """Where an array is; strides are in bytes. A result has no address until it is allocated."""

    dtype: ir.DType
    data: str
    extents: tuple[str, ...]
    strides: tuple[str, ...]
    is_contiguous: str = "true"


def scratch_bytes(scratch: ir.Scratch) -> int:
    """Memory that a scratch array takes."""
    size = scratch.dtype.itemsize
    for extent in scratch.shape:
        size *= extent
    return size


def buffer_bytes(call: DirectCall) -> int:
    """How much scratch memory that is not filled a call takes."""
    return sum(scratch_bytes(each) for each in call.scratch if not each.is_filled)


class EntryText:
    """Writes the function and collects the words of its table.

    Attributes
    ----------
    words : list of int
        The table; complete once the text is written.
    kept : list of object
        Objects that the table points to and the `DirectCall` does not hold.
    """

    def __init__(self, call: DirectCall) -> None:
        self.call = call
        self.words: list[int] = []
        self.kept: list[object] = []
        self.function = FunctionText(ModuleText())
        self.value = self.function.value
        self.write = self.function.write
        self._allocations: list[str] = []
        self._places: dict[str, int] = {}
        # Scratch memory that is not filled is that of the entry: too much for the stack. The
        # system gives its pages when they are first written.
        self.buffer = np.zeros(buffer_bytes(call), np.uint8)
        self.buffer_used = 0
        self.is_buffer_taken = ctypes.c_int64(0)
        self.kept.append(self.buffer)

    def text(self) -> str:
        """The function of the builtin; it calls ``i64 @size<n>(ptr slots)`` for each launch."""
        call = self.call
        self.device()
        given = self.given()
        arguments = [self.argument(*each) for each in zip(call.parameters, given, strict=True)]
        samples = self.samples(arguments)
        self.check(arguments)

        every = [*arguments, _Scalar(ir.i64, samples)]
        every += [self.result(each.dtype, each.width, samples) for each in call.results]
        every += [self.scratch(each) for each in call.scratch]
        packed = [self.packed(run, every) for run in call.runs]
        sizes = [self.value(f"call i64 @size{n}(ptr {packed[n]})") for n in range(len(packed))]
        thresholds = [self.address(f"threshold {n}", r.launcher.threshold) for n, r in self.runs()]
        for size, threshold in zip(sizes, thresholds, strict=True):
            self.require(self.value(f"icmp sle i64 {size}, {self.shared(threshold)}"))
        if call.limit is not None:
            self.count_down(call.limit, arguments)

        returned = self.returned(samples, packed)
        self.launch(packed, sizes, thresholds)
        if not call.results:
            self.call_python("void", "Py_IncRef", f"ptr {returned}")
        self.write(f"ret ptr {returned}")
        self.leave()
        return self.definition()

    def definition(self) -> str:
        """The text of what has been written."""
        header = f"define ptr @{NAME}(ptr %self, ptr %args, i64 %nargs, ptr %names) {{"
        table = [
            f"  %table.item = getelementptr i8, ptr %self, i64 {layout.TUPLE_ITEMS + 8}",
            "  %table.object = load ptr, ptr %table.item",
            f"  %table = getelementptr i8, ptr %table.object, i64 {layout.BYTES_VALUE}",
        ]
        return "\n".join([header, "entry:", *self._allocations, *table, *self.function.lines, "}"])

    def runs(self) -> Iterable[tuple[int, Any]]:
        """The launches with their numbers; their launchers are those of this package."""
        return enumerate(self.call.runs)

    # -- the table ---------------------------------------------------------------------------------

    def word(self, key: str, word: int, kind: str = "ptr") -> str:
        """Read a word of the table; `key` tells words apart, the same in every process."""
        place = self._places.setdefault(key, len(self.words))
        if place == len(self.words):
            self.words.append(word)
        pointer = self.value(f"getelementptr i8, ptr %table, i64 {8 * place}")
        return self.value(f"load {kind}, ptr {pointer}, align 8")

    def python_object(self, key: str, value: object) -> str:
        """The address of an object."""
        self.kept.append(value)
        return self.word(key, id(value))

    def address(self, key: str, variable: Any) -> str:
        """The address of a ctypes variable."""
        self.kept.append(variable)
        return self.word(key, ctypes.addressof(variable))

    def shared(self, address: str) -> str:
        """Read an integer that other threads may write."""
        return self.value(f"load atomic i64, ptr {address} monotonic, align 8")

    def call_python(self, result: str, name: str, *arguments: str) -> str:
        """Call a function of the interpreter."""
        function = self.word(name, layout.function_address(name))
        instruction = f"call {result} {function}({', '.join(arguments)})"
        if result == "void":
            self.write(instruction)
            return ""
        return self.value(instruction)

    # -- control -----------------------------------------------------------------------------------

    def require(self, condition: str, otherwise: str = _PYTHON) -> None:
        """Go on if a condition holds."""
        (right,) = self.function.new_labels("right")
        expected = self.value(f"call i1 @llvm.expect.i1(i1 {condition}, i1 true)")
        self.function.branch(expected, right, otherwise)
        self.function.start(right)

    def all_of(self, conditions: Iterable[str]) -> str:
        """Whether all conditions hold."""
        combined = "true"
        for condition in conditions:
            combined = self.value(f"and i1 {combined}, {condition}")
        return combined

    def any_of(self, conditions: Iterable[str]) -> str:
        """Whether a condition holds."""
        combined = "false"
        for condition in conditions:
            combined = self.value(f"or i1 {combined}, {condition}")
        return combined

    def stack(self, content: str) -> str:
        """Memory of this call."""
        name = self.function.new_value()
        self._allocations.append(f"  {name} = alloca {content}, align 16")
        return name

    def field(self, pointer: str, place: int, kind: str) -> str:
        """Read a field of an object."""
        address = self.value(f"getelementptr i8, ptr {pointer}, i64 {place}")
        return self.value(f"load {kind}, ptr {address}")

    def leave(self) -> None:
        """The ways out to Python."""
        self.function.start(_CLEAR)
        self.call_python("void", "PyErr_Clear")
        self.function.jump(_PYTHON)
        self.function.start(_PYTHON)
        fallback = self.field("%self", layout.TUPLE_ITEMS, "ptr")
        untouched = (f"ptr {fallback}", "ptr %args", "i64 %nargs", "ptr %names")
        self.write(f"ret ptr {self.call_python('ptr', 'PyObject_Vectorcall', *untouched)}")

    # -- device and arguments ----------------------------------------------------------------------

    def device(self) -> None:
        """Go on if the device in force is the one of the call."""
        choice = self.call.device
        found = self.stack("ptr")
        variable = self.python_object("used", choice.used)
        in_use = (f"ptr {variable}", "ptr null", f"ptr {found}")
        status = self.call_python("i32", "PyContextVar_Get", *in_use)
        self.require(self.value(f"icmp eq i32 {status}, 0"), _CLEAR)
        used = self.value(f"load ptr, ptr {found}")
        # Others hold it: the interpreter, or the context that was just asked.
        self.call_python("void", "Py_DecRef", f"ptr {used}")
        default = self.value(f"load ptr, ptr {self.address('default', choice.default)}")
        is_none = self.value(f"icmp eq ptr {used}, {self.python_object('None', None)}")
        chosen = self.value(f"select i1 {is_none}, ptr {default}, ptr {used}")
        self.require(
            self.value(f"icmp eq ptr {chosen}, {self.python_object('device', choice.context)}")
        )

    def given(self) -> list[str]:
        """The argument of every parameter, defaults included."""
        parameters = self.call.parameters
        count, start = len(parameters), self.function.start
        positional = sum(parameter.takes_position for parameter in parameters)
        bound = self.stack(f"[{count} x ptr]")
        has_no_names = self.value("icmp eq ptr %names, null")
        is_complete = self.value(f"icmp eq i64 %nargs, {count if positional == count else -1}")
        is_in_order = self.all_of((has_no_names, is_complete))
        (given, bind) = self.function.new_labels("given", "bind")
        before = self.function.block
        self.function.branch(is_in_order, given, bind)

        start(bind)
        self.require(self.value(f"icmp ule i64 %nargs, {positional}"))
        self.bind(parameters, bound, has_no_names)
        after = self.function.block
        self.function.jump(given)

        start(given)
        values = self.value(f"phi ptr [ %args, %{before} ], [ {bound}, %{after} ]")
        return [self.field(values, 8 * place, "ptr") for place in range(count)]

    def bind(self, parameters: Sequence[DirectParameter], bound: str, has_no_names: str) -> None:
        """Fill `bound` with defaults, then what came by position, then what came by keyword."""
        function, value = self.function, self.value
        for number, parameter in enumerate(parameters):
            default = "null"
            if parameter.default is not NO_DEFAULT:
                default = self.python_object(f"default {number}", parameter.default)
            self.write(f"store ptr {default}, ptr {self.element(bound, number)}")
        count, positions, copy, more, done, keywords, match, take, complete = function.new_labels(
            "count", "positions", "copy", "more", "done", "keywords", "match", "take", "complete"
        )
        before = function.block
        function.branch(has_no_names, positions, count)
        function.start(count)
        length = self.field("%names", layout.TUPLE_LENGTH, "i64")
        function.jump(positions)

        place, next_place = function.new_value(), function.new_value()
        function.start(positions)
        named = value(f"phi i64 [ 0, %{before} ], [ {length}, %{count} ]")
        function.jump(copy)
        function.start(copy)
        self.write(f"{place} = phi i64 [ 0, %{positions} ], [ {next_place}, %{more} ]")
        function.branch(value(f"icmp slt i64 {place}, %nargs"), more, done)
        function.start(more)
        self.write(f"store ptr {self.item('%args', place)}, ptr {self.element(bound, place)}")
        self.write(f"{next_place} = add i64 {place}, 1")
        function.jump(copy)
        function.start(done)
        function.jump(keywords)

        keyword_number, next_number = function.new_value(), function.new_value()
        function.start(keywords)
        self.write(f"{keyword_number} = phi i64 [ 0, %{done} ], [ {next_number}, %{take} ]")
        function.branch(value(f"icmp slt i64 {keyword_number}, {named}"), match, complete)
        function.start(match)
        items = value(f"getelementptr i8, ptr %names, i64 {layout.TUPLE_ITEMS}")
        keyword = self.item(items, keyword_number)
        target = "-1"
        for own_place, parameter in enumerate(parameters):
            if parameter.takes_keyword:
                # Keywords of a call are interned; one that is not is left to Python.
                own = self.python_object(f"name {own_place}", sys.intern(parameter.name))
                is_own = value(f"icmp eq ptr {keyword}, {own}")
                target = value(f"select i1 {is_own}, i64 {own_place}, i64 {target}")
        # Unknown, or given by position too.
        function.branch(value(f"icmp sge i64 {target}, %nargs"), take, _PYTHON)
        function.start(take)
        given_at = value(f"add i64 %nargs, {keyword_number}")
        self.write(f"store ptr {self.item('%args', given_at)}, ptr {self.element(bound, target)}")
        self.write(f"{next_number} = add i64 {keyword_number}, 1")
        function.jump(keywords)

        function.start(complete)
        found = [self.item(bound, place) for place in range(len(parameters))]
        self.require(self.all_of(value(f"icmp ne ptr {each}, null") for each in found))

    def element(self, array: str, place: object) -> str:
        """Address of one pointer of an array of them."""
        return self.value(f"getelementptr ptr, ptr {array}, i64 {place}")

    def item(self, array: str, place: object) -> str:
        """One pointer of an array of them."""
        return self.value(f"load ptr, ptr {self.element(array, place)}")

    def argument(self, parameter: DirectParameter, given: str) -> _Array | _Scalar:
        """Read an argument of the exact type that the parameter takes."""
        wanted = parameter.python_type
        expected = self.python_object(f"type {wanted.__module__}.{wanted.__qualname__}", wanted)
        found = self.field(given, layout.TYPE, "ptr")
        self.require(self.value(f"icmp eq ptr {found}, {expected}"))
        if parameter.rank:
            return self.array(parameter, given)
        scalar = _Scalar(parameter.dtype, self.scalar(parameter, given))
        if parameter.literal is not None:
            self.require(self.is_literal(scalar, parameter))
        return scalar

    # -- arrays ------------------------------------------------------------------------------------

    def array(self, parameter: DirectParameter, given: str) -> _Array:
        rank = self.field(given, layout.ARRAY_RANK, "i32")
        self.require(self.value(f"icmp eq i32 {rank}, {parameter.rank}"))
        self.require_dtype(parameter.dtype, given)
        is_contiguous = "true"
        if parameter.is_written:
            flags = self.field(given, layout.ARRAY_FLAGS, "i32")
            self.require(self.has_flag(flags, layout.IS_WRITABLE))
            is_contiguous = self.has_flag(flags, layout.IS_CONTIGUOUS)
            if parameter.is_contiguous:
                self.require(is_contiguous)
        extents = self.field(given, layout.ARRAY_EXTENTS, "ptr")
        strides = self.field(given, layout.ARRAY_STRIDES, "ptr")
        axes = range(parameter.rank)
        lengths = tuple(self.field(extents, 8 * axis, "i64") for axis in axes)
        known = [
            (length, self.word(f"length {parameter.name} {axis}", wanted, "i64"))
            for axis, (length, wanted) in enumerate(zip(lengths, parameter.shape, strict=False))
            if wanted is not None
        ]
        if known:
            self.require(self.all_of(self.value(f"icmp eq i64 {x}, {y}") for x, y in known))
        return _Array(
            parameter.dtype,
            self.field(given, layout.ARRAY_DATA, "ptr"),
            lengths,
            tuple(self.field(strides, 8 * axis, "i64") for axis in axes),
            is_contiguous,
        )

    def has_flag(self, flags: str, wanted: int) -> str:
        """Whether one of the wanted flags is set."""
        return self.value(f"icmp ne i32 {self.value(f'and i32 {flags}, {wanted}')}, 0")

    def require_dtype(self, dtype: ir.DType, given: str) -> None:
        """Go on if the elements are of a type; objects other than NumPy's own one may say so."""
        function = self.function
        found = self.field(given, layout.ARRAY_DTYPE, "ptr")
        own = self.python_object(f"dtype {dtype}", dtype.dtype)
        look, right = function.new_labels("look", "dtype")
        is_own = self.value(f"icmp eq ptr {found}, {own}")
        expected = self.value(f"call i1 @llvm.expect.i1(i1 {is_own}, i1 true)")
        function.branch(expected, right, look)
        function.start(look)
        number = self.field(found, layout.DTYPE_NUMBER, "i32")
        numbers = layout.equal_dtype_numbers(dtype)
        is_type = self.any_of(self.value(f"icmp eq i32 {number}, {each}") for each in numbers)
        order = self.field(found, layout.DTYPE_BYTE_ORDER, "i8")
        is_native = self.value(f"icmp ne i8 {order}, {ord(layout.OTHER_BYTE_ORDER)}")
        function.branch(self.all_of((is_type, is_native)), right, _PYTHON)
        function.start(right)

    def samples(self, arguments: Sequence[_Array | _Scalar]) -> str:
        """The number of samples, on which the arrays must agree; 0 where nothing counts them."""
        count = ""
        conditions = []
        for parameter, argument in zip(self.call.parameters, arguments, strict=True):
            if isinstance(argument, _Scalar):
                continue
            if parameter.width:
                conditions.append(f"icmp eq i64 {argument.extents[0]}, {parameter.width}")
            if parameter.counts_samples:
                count = count or argument.extents[-1]
                if count != argument.extents[-1]:
                    conditions.append(f"icmp eq i64 {argument.extents[-1]}, {count}")
        if conditions:
            self.require(self.all_of(map(self.value, conditions)))
        return count or "0"

    def result(self, dtype: ir.DType, width: int, samples: str) -> _Array:
        """The layout of an array to return."""
        row_bytes = self.value(f"mul i64 {samples}, {dtype.itemsize}")
        item_bytes = str(dtype.itemsize)
        if width:
            return _Array(dtype, "", (str(width), samples), (row_bytes, item_bytes))
        return _Array(dtype, "", (samples,), (item_bytes,))

    def scratch(self, scratch: ir.Scratch) -> _Array:
        """Memory of this call: on the stack where it is filled, else part of the buffer."""
        size_bytes = scratch_bytes(scratch)
        if scratch.is_filled:
            data = self.stack(f"[{size_bytes} x i8]")
            zeros = f"ptr align 16 {data}, i8 0, i64 {size_bytes}, i1 false"
            self.write(f"call void @llvm.memset.p0.i64({zeros})")
        else:
            buffer = self.word("buffer", self.buffer.ctypes.data)
            data = self.value(f"getelementptr i8, ptr {buffer}, i64 {self.buffer_used}")
            self.buffer_used += size_bytes
        strides = [scratch.dtype.itemsize]
        for extent in reversed(scratch.shape[1:]):
            strides.insert(0, strides[0] * extent)
        axes = tuple(map(str, scratch.shape))
        return _Array(scratch.dtype, data, axes, tuple(map(str, strides[: len(axes)])))

    # -- scalars -----------------------------------------------------------------------------------

    def scalar(self, parameter: DirectParameter, given: str) -> str:
        """The number that a scalar is converted to; see `turnout.arguments`."""
        source, held = parameter.python_type, parameter.dtype
        if source is int and held.is_float:
            number = self.call_python("double", "PyLong_AsDouble", f"ptr {given}")
            is_error = self.value(f"fcmp oeq double {number}, -1.0")
            failed, right = self.function.new_labels("failed", "real")
            self.function.branch(is_error, failed, right)
            self.function.start(failed)
            error = self.call_python("ptr", "PyErr_Occurred")
            self.function.branch(self.value(f"icmp eq ptr {error}, null"), right, _CLEAR)
            self.function.start(right)
            return self.as_float(ir.f64, held, number)
        if source is int:
            overflow = self.stack("i32")
            pointers = (f"ptr {given}", f"ptr {overflow}")
            number = self.call_python("i64", "PyLong_AsLongLongAndOverflow", *pointers)
            fits = self.value(f"icmp eq i32 {self.value(f'load i32, ptr {overflow}')}, 0")
            self.require(fits)
            return self.as_integer(ir.i64, held, number)
        if source is bool:
            is_true = self.value(f"icmp eq ptr {given}, {self.python_object('True', True)}")
            dtype, number = ir.bool_, self.value(f"zext i1 {is_true} to i8")
        else:
            dtype = layout.HELD_TYPES[source]
            number = self.field(given, layout.SCALAR_VALUE, storage_type_of(dtype))
        if held.is_float:
            return self.as_float(dtype, held, number)
        return number if held.is_bool else self.as_integer(dtype, held, number)

    def as_float(self, dtype: ir.DType, held: ir.DType, number: str) -> str:
        if not dtype.is_float:
            # By way of a double, which rounds twice for float32, as Python's float() does.
            convert = "sitofp" if dtype.kind == "i" else "uitofp"
            number = self.value(f"{convert} {storage_type_of(dtype)} {number} to double")
            dtype = ir.f64
        if dtype is held:
            return number
        convert = "fptrunc" if dtype is ir.f64 else "fpext"
        return self.value(f"{convert} {type_of(dtype)} {number} to {type_of(held)}")

    def as_integer(self, dtype: ir.DType, held: ir.DType, number: str) -> str:
        given, wanted = storage_type_of(dtype), storage_type_of(held)
        if not dtype.is_bool:
            compare = "s" if dtype.kind == "i" else "u"
            limits = []
            if dtype.minimum < held.minimum:
                limits.append(f"icmp {compare}ge {given} {number}, {held.minimum}")
            if dtype.maximum > held.maximum:
                limits.append(f"icmp {compare}le {given} {number}, {held.maximum}")
            if limits:
                self.require(self.all_of(map(self.value, limits)))
        if dtype.bits == held.bits:
            return number
        extend = "sext" if dtype.kind == "i" else "zext"
        convert = "trunc" if dtype.bits > held.bits else extend
        return self.value(f"{convert} {given} {number} to {wanted}")

    def is_literal(self, scalar: _Scalar, parameter: DirectParameter) -> str:
        """Whether a number has the bits of the one that the parameter takes."""
        stored = np.asarray(parameter.literal, parameter.dtype.dtype)
        bits = 8 * stored.itemsize
        wanted = self.word(f"literal {parameter.name}", int(stored.view(f"u{bits // 8}")), "i64")
        given = scalar.value
        if parameter.dtype.is_float:
            given = self.value(f"bitcast {storage_type_of(parameter.dtype)} {given} to i{bits}")
        if bits < 64:
            wanted = self.value(f"trunc i64 {wanted} to i{bits}")
        return self.value(f"icmp eq i{bits} {given}, {wanted}")

    # -- checks ------------------------------------------------------------------------------------

    def check(self, arguments: Sequence[_Array | _Scalar]) -> None:
        """What must hold of values together; in the order of `turnout.kernel.Executable`."""
        for parameter, argument in zip(self.call.parameters, arguments, strict=True):
            if parameter.is_written and isinstance(argument, _Array):
                self.require_distinct_elements(argument)
        for first, second, may_coincide in self.call.overlaps:
            a, b = arguments[first], arguments[second]
            if isinstance(a, _Array) and isinstance(b, _Array):
                self.require_apart(a, b, may_coincide)
        places = {parameter.name: n for n, parameter in enumerate(self.call.parameters)}
        for reach in self.call.reaches:
            self.require(self.is_reached(reach, places, arguments))

    def require_distinct_elements(self, array: _Array) -> None:
        """Go on if no two elements share memory: each axis steps over those inside of it."""
        right, look = self.function.new_labels("distinct", "steps")
        self.function.branch(array.is_contiguous, right, look)
        self.function.start(look)
        inner_last = list(zip(array.extents, array.strides, strict=True))
        conditions = [self.steps_over(array, inner_last[::-1]), self.steps_over(array, inner_last)]
        self.function.branch(self.any_of(conditions), right, _PYTHON)
        self.function.start(right)

    def steps_over(self, array: _Array, axes: Iterable[tuple[str, str]]) -> str:
        """Whether each axis steps over the ones before it; no elements are no problem."""
        reach = str(array.dtype.itemsize)
        conditions = []
        for extent, stride in axes:
            step = self.magnitude(stride)
            is_long = self.value(f"icmp sgt i64 {extent}, 1")
            is_short = self.value(f"xor i1 {is_long}, true")
            is_over = self.value(f"icmp sge i64 {step}, {reach}")
            conditions.append(self.any_of((is_short, is_over)))
            span = self.value(f"mul i64 {step}, {self.value(f'sub i64 {extent}, 1')}")
            longer = self.value(f"add i64 {span}, {reach}")
            reach = self.value(f"select i1 {is_long}, i64 {longer}, i64 {reach}")
        return self.all_of(conditions)

    def magnitude(self, number: str) -> str:
        return self.value(f"call i64 @llvm.abs.i64(i64 {number}, i1 false)")

    def require_apart(self, a: _Array, b: _Array, may_coincide: bool) -> None:
        """Go on if two arrays share no memory, or where allowed are the same elements.

        Addresses wrap only for arrays that reach beyond the address space, which have no memory.
        """
        value = self.value
        (a_start, a_inner), (b_start, b_inner) = self.start(a), self.start(b)
        ends = []
        for array, start, inner in ((a, a_start, a_inner), (b, b_start, b_inner)):
            outer = value(f"sub i64 {array.extents[0]}, 1")
            outer = value(f"mul i64 {outer}, {self.magnitude(array.strides[0])}")
            ends.append(value(f"add i64 {start}, {value(f'add i64 {outer}, {inner}')}"))
        conditions = [f"icmp ule i64 {ends[0]}, {b_start}", f"icmp ule i64 {ends[1]}, {a_start}"]
        conditions += [f"icmp eq i64 {extent}, 0" for array in (a, b) for extent in array.extents]
        fits = [value(condition) for condition in conditions]
        if may_coincide and len(a.extents) == len(b.extents) and a.dtype is b.dtype:
            fits.append(self.is_same_view(a, b))
        right, look = self.function.new_labels("apart", "interleaved")
        self.function.branch(self.any_of(fits), right, look)
        self.function.start(look)
        interleave = self.interleave(a, b, value(f"sub i64 {b_start}, {a_start}"), a_inner, b_inner)
        self.function.branch(interleave, right, _PYTHON)
        self.function.start(right)

    def start(self, array: _Array) -> tuple[str, str]:
        """The lowest address of an array, and the bytes that one step on axis 0 spans."""
        value = self.value
        start = value(f"ptrtoint ptr {array.data} to i64")
        inner = str(array.dtype.itemsize)
        for axis, (extent, stride) in enumerate(zip(array.extents, array.strides, strict=True)):
            last = value(f"sub i64 {extent}, 1")
            least = value(f"call i64 @llvm.smin.i64(i64 {stride}, i64 0)")
            start = value(f"add i64 {start}, {value(f'mul i64 {last}, {least}')}")
            if axis:
                span = value(f"mul i64 {last}, {self.magnitude(stride)}")
                inner = value(f"add i64 {inner}, {span}")
        return start, inner

    def interleave(self, a: _Array, b: _Array, distance: str, a_inner: str, b_inner: str) -> str:
        """Whether arrays lie side by side in the steps of axis 0, as columns of a matrix do."""
        value = self.value
        step, other = self.magnitude(a.strides[0]), self.magnitude(b.strides[0])
        divisor = value(f"call i64 @llvm.umax.i64(i64 {step}, i64 1)")
        # The least number of at least 0 that is congruent to the distance.
        rest = value(f"srem i64 {distance}, {divisor}")
        lifted = value(f"add i64 {rest}, {divisor}")
        is_negative = value(f"icmp slt i64 {rest}, 0")
        offset = value(f"select i1 {is_negative}, i64 {lifted}, i64 {rest}")
        end = value(f"add i64 {offset}, {b_inner}")
        conditions = (
            f"icmp eq i64 {step}, {other}",
            f"icmp sge i64 {offset}, {a_inner}",
            f"icmp sle i64 {end}, {step}",
        )
        return self.all_of(map(value, conditions))

    def is_same_view(self, a: _Array, b: _Array) -> str:
        value = self.value
        conditions = [value(f"icmp eq ptr {a.data}, {b.data}")]
        for axis, extent in enumerate(a.extents):
            conditions.append(value(f"icmp eq i64 {extent}, {b.extents[axis]}"))
            is_alike = value(f"icmp eq i64 {a.strides[axis]}, {b.strides[axis]}")
            # The stride of an axis of one element says nothing.
            conditions.append(self.any_of((is_alike, value(f"icmp sle i64 {extent}, 1"))))
        return self.all_of(conditions)

    def is_reached(
        self, reach: ir.Reach, places: dict[str, int], arguments: Sequence[_Array | _Scalar]
    ) -> str:
        """Whether an array is long enough for the indices of a run, in 128 bits: nothing wraps."""

        def quantity(name: str, axis: int | None) -> str:
            argument = arguments[places[name]]
            if isinstance(argument, _Array):
                return self.value(f"sext i64 {argument.extents[axis or 0]} to i128")
            extend = "sext" if argument.dtype.kind == "i" else "zext"
            given = storage_type_of(argument.dtype)
            return self.value(f"{extend} {given} {argument.value} to i128")

        def total(each: ir.QuantitySum) -> str:
            result = str(each.constant)
            for (name, axis), factor in each.terms:
                term = self.value(f"mul i128 {quantity(name, axis)}, {factor}")
                result = self.value(f"add i128 {result}, {term}")
            return result

        within = []
        if reach.least is not None:
            within.append(self.value(f"icmp sge i128 {total(reach.least)}, 0"))
        if reach.greatest is not None:
            length = quantity(reach.array, reach.axis)
            within.append(self.value(f"icmp slt i128 {total(reach.greatest)}, {length}"))
        is_empty = [
            self.value(f"icmp sge i128 {total(first)}, {total(end)}") for first, end in reach.ranges
        ]
        return self.any_of((self.all_of(within), *is_empty))

    def count_down(self, limit: CallLimit, arguments: Sequence[_Array | _Scalar]) -> None:
        """Go on if the limit allows a call of this size, and take one away."""
        measured, size = arguments[limit.place], "1"
        assert isinstance(measured, _Array)
        for extent in measured.extents:
            size = self.value(f"mul i64 {size}, {extent}")
        left = self.address("limit left", limit.left)
        least, most = (
            self.shared(self.address(f"limit {name}", variable))
            for name, variable in (("least", limit.least), ("most", limit.most))
        )
        count = self.shared(left)
        conditions = (
            f"icmp sgt i64 {count}, 0",
            f"icmp sge i64 {size}, {least}",
            f"icmp sle i64 {size}, {most}",
        )
        self.require(self.all_of(map(self.value, conditions)))
        less = self.value(f"sub i64 {count}, 1")
        self.write(f"store atomic i64 {less}, ptr {left} monotonic, align 8")

    # -- launches ----------------------------------------------------------------------------------

    def packed(self, run: DirectRun, every: Sequence[_Array | _Scalar]) -> str:
        """The slots of a launch, on the stack."""
        first = slots(run.unit)
        packed = self.stack(f"[{max(1, first[''])} x i64]")
        for parameter, place in zip(run.unit.parameters, run.places, strict=True):
            argument, slot = every[place], first[parameter.name]
            if isinstance(argument, _Scalar):
                self.pack(packed, slot, storage_type_of(argument.dtype), argument.value)
                continue
            if argument.data:
                self.pack(packed, slot, "ptr", argument.data)
            for number, word in enumerate((*argument.extents, *argument.strides)):
                self.pack(packed, slot + 1 + number, "i64", word)
        return packed

    def pack(self, packed: str, slot: int, kind: str, value: str) -> None:
        pointer = self.value(f"getelementptr i8, ptr {packed}, i64 {SLOT_BYTES * slot}")
        self.write(f"store {kind} {value}, ptr {pointer}, align {SLOT_BYTES}")

    def returned(self, samples: str, packed: Sequence[str]) -> str:
        """What the call returns: allocated, owned, its memory in the slots of the launches."""
        results = self.call.results
        if not results:
            return self.python_object("None", None)
        number = self.call_python("ptr", "PyLong_FromLongLong", f"i64 {samples}")
        self.check_memory(number)
        returned = ""
        if self.call.returns_tuple:
            returned = self.call_python("ptr", "PyTuple_New", f"i64 {len(results)}")
            self.check_memory(returned, number)
        argument = self.stack("ptr")
        self.write(f"store ptr {number}, ptr {argument}")
        for place, result in enumerate(results):
            allocate = self.python_object(f"allocate {place}", result.allocate)
            given = (f"ptr {allocate}", f"ptr {argument}", "i64 1", "ptr null")
            array = self.call_python("ptr", "PyObject_Vectorcall", *given)
            self.check_memory(array, number, returned)
            if returned:  # the tuple owns it from here on
                item = (f"ptr {returned}", f"i64 {place}", f"ptr {array}")
                self.call_python("i32", "PyTuple_SetItem", *item)
            data = self.field(array, layout.ARRAY_DATA, "ptr")
            own_place = len(self.call.parameters) + 1 + place
            for run, run_slots in zip(self.call.runs, packed, strict=True):
                first = slots(run.unit)
                for parameter, taken in zip(run.unit.parameters, run.places, strict=True):
                    if taken == own_place:
                        self.pack(run_slots, first[parameter.name], "ptr", data)
        self.call_python("void", "Py_DecRef", f"ptr {number}")
        return returned or array

    def check_memory(self, made: str, *owned: str) -> None:
        """Give back what is owned and let the exception pass, if something could not be made."""
        right, failed = self.function.new_labels("made", "failed")
        self.function.branch(self.value(f"icmp ne ptr {made}, null"), right, failed)
        self.function.start(failed)
        for each in filter(None, owned):
            self.call_python("void", "Py_DecRef", f"ptr {each}")
        self.write("ret ptr null")
        self.function.start(right)

    def launch(
        self, packed: Sequence[str], sizes: Sequence[str], thresholds: Sequence[str]
    ) -> None:
        """Run all units, without the interpreter lock where that may take long."""
        function = self.function
        if self.buffer_used:
            # Another thread may be in it: that call makes memory of its own, from Python.
            taken = self.address("taken", self.is_buffer_taken)
            before = self.value(f"atomicrmw xchg ptr {taken}, i64 1 acquire, align 8")
            self.require(self.value(f"icmp eq i64 {before}, 0"))
        takes_long = self.any_of(
            self.value(f"icmp sgt i64 {size}, {self.word(f'limit {n}', limit, 'i64')}")
            for n, (size, limit) in enumerate(zip(sizes, self.limits(), strict=True))
        )
        release, run, restore, end = function.new_labels("release", "run", "restore", "end")
        before = function.block
        function.branch(takes_long, release, run)
        function.start(release)
        saved = self.call_python("ptr", "PyEval_SaveThread")
        function.jump(run)
        function.start(run)
        state = self.value(f"phi ptr [ null, %{before} ], [ {saved}, %{release} ]")
        for number, (run_slots, size) in enumerate(zip(packed, sizes, strict=True)):
            self.run(number, run_slots, size, thresholds[number])
        function.branch(takes_long, restore, end)
        function.start(restore)
        self.call_python("void", "PyEval_RestoreThread", f"ptr {state}")
        function.jump(end)
        function.start(end)
        if self.buffer_used:
            self.write(f"store atomic i64 0, ptr {taken} release, align 8")

    def limits(self) -> list[int]:
        return [run.launcher.holding_limit for _, run in self.runs()]

    def run(self, number: int, packed: str, size: str, threshold: str) -> None:
        """Run one unit; one whose rounds are not known is timed, for those that come after."""
        function, launcher = self.function, dict(self.runs())[number].launcher
        entry = self.word(f"entry {number}", launcher.address)
        launch, end = function.new_labels("launch", "launched")
        function.branch(self.value(f"icmp sgt i64 {size}, 0"), launch, end)
        function.start(launch)
        call = f"call i64 {entry}(ptr {packed}, i64 0, i64 {LARGEST})"
        if launcher.holding_limit or not layout.clock_address():
            self.value(call)
        else:
            self.timed(number, call, size, threshold, launcher)
        function.jump(end)
        function.start(end)

    def timed(self, number: int, call: str, size: str, threshold: str, launcher: Any) -> None:
        """Lower the threshold below `size` where the launch took long."""
        function, value = self.function, self.value
        slow_ns = self.shared(self.address(f"slow {number}", launcher.slow_ns))
        is_timed = value(f"icmp ne i64 {slow_ns}, {LARGEST}")
        clock, work, stop, lower, end = function.new_labels("clock", "work", "stop", "lower", "end")
        before = function.block
        function.branch(is_timed, clock, work)
        function.start(clock)
        now_ns = self.now_ns()
        function.jump(work)
        function.start(work)
        started_ns = value(f"phi i64 [ 0, %{before} ], [ {now_ns}, %{clock} ]")
        value(call)
        function.branch(is_timed, stop, end)
        function.start(stop)
        elapsed_ns = value(f"sub i64 {self.now_ns()}, {started_ns}")
        function.branch(value(f"icmp sgt i64 {elapsed_ns}, {slow_ns}"), lower, end)
        function.start(lower)
        less = value(f"sub i64 {size}, 1")
        value(f"atomicrmw min ptr {threshold}, i64 {less} monotonic, align 8")
        function.jump(end)
        function.start(end)

    def now_ns(self) -> str:
        """Nanoseconds of the monotonic clock."""
        clock = self.word("clock", layout.clock_address())
        moment = self.stack("[2 x i64]")
        self.value(f"call i32 {clock}(i32 {time.CLOCK_MONOTONIC}, ptr {moment})")
        seconds = self.field(moment, 0, "i64")
        nanoseconds = self.value(f"mul i64 {seconds}, 1000000000")
        return self.value(f"add i64 {nanoseconds}, {self.field(moment, 8, 'i64')}")
