"""The native entry of kernel calls: right values, everything odd left to Python, nothing leaked."""

from __future__ import annotations

import asyncio
import copy
import ctypes
import gc
import itertools
import pickle
import re
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from language_support import function_from
from numpy.lib.stride_tricks import as_strided

import turnout as tn
import turnout.math as tm
from turnout import (
    CallError,
    Index,
    Mutable,
    NDArray,
    Param,
    Scalar,
    Terminated,
    Vector,
    f32,
    f64,
    i8,
    i64,
    u8,
    u64,
)
from turnout.kernel import Executable, Kernel
from turnout.plugin import ir
from turnout_cpu import compiler, interpreter, native_entry
from turnout_cpu.launcher import CpuLauncher

pytestmark = pytest.mark.skipif(
    bool(interpreter.layout_problem()), reason=interpreter.layout_problem() or "native entries"
)


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    tn.set_default_device("cpu")
    tn.set_num_threads(1)  # else launches are measured at first, which is left to Python
    yield
    tn.set_default_device(None)
    tn.set_num_threads(None)


class PythonPathError(Exception):
    """A call took the Python path, as far as the checks of an executable."""


@contextmanager
def only_native() -> Iterator[None]:
    """Let every call fail that is not checked and run by native code."""
    with pytest.MonkeyPatch.context() as patch:

        def refuse(*args: Any) -> None:
            raise PythonPathError

        patch.setattr(Executable, "__call__", refuse)
        yield


@contextmanager
def python_calls() -> Iterator[list[str]]:
    """The devices of the calls that take the Python path."""
    devices: list[str] = []
    run = Executable.__call__

    def recorded(self: Executable, *args: Any) -> Any:
        devices.append(str(self.context.device))
        return run(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executable, "__call__", recorded)
        yield devices


def fresh(kernel: Any) -> Any:
    """The kernel as it was before its first call."""
    return tn.kernel(kernel.__wrapped__)


def native(kernel: Any, *args: Any, **keywords: Any) -> Any:
    """Call until there is a native entry, then call that one."""
    for _ in range(2):
        kernel(*args, **keywords)
    with only_native():
        return kernel(*args, **keywords)


def message(kernel: Any, *args: Any, **keywords: Any) -> str:
    with pytest.raises(tn.TurnoutError) as caught:
        kernel(*args, **keywords)
    return str(caught.value)


@tn.kernel
def saxpy(a: Param, x: Scalar, y: Scalar, out: Mutable[Scalar]):
    out = a * x + y


@tn.kernel
def double(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0]):
        b[i] = a[i] * 2


@tn.kernel
def shifted(x: Scalar, by: Param = 2) -> Scalar:
    return x + by


@tn.kernel
def spin(flag: NDArray[i64, 1], count: NDArray[i64, 1]) -> None:
    """Run until another thread sets the flag."""
    while flag[0] == 0:
        count[0] += 1


# -- values ----------------------------------------------------------------------------------------


SUMS = """
@tn.kernel
def k(a: NDArray[held, {rank}], b: NDArray[held, {rank}], out: NDArray[held, {rank}]) -> None:
    {loops}: out[{i}] = a[{i}] if b[{i}] == a[{i}] else b[{i}]
"""


def chooser(held: ir.DType, rank: int) -> Any:
    """A kernel over one to four axes that gives what is in `b`."""
    names = "ijkm"[:rank]
    loops = ":\n    ".join(
        f"{'    ' * n}for {name} in range(out.shape[{n}])" for n, name in enumerate(names)
    )
    return function_from(SUMS.format(rank=rank, loops=loops, i=", ".join(names)), held=held)


STORE = """
@tn.kernel
def k(value: Param[held], out: NDArray[held, 1]) -> None:
    out[0] = value
"""


def layouts(array: np.ndarray) -> Iterator[np.ndarray]:
    """The same elements, laid out in several ways."""
    yield array
    yield np.asfortranarray(array)
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    yield wide[..., ::2]
    backwards = tuple(slice(None, None, -1) for _ in array.shape)
    yield array[backwards].copy()[backwards]
    shifted_bytes = np.zeros(array.nbytes + 1, np.uint8)[1:]
    shifted_array = shifted_bytes.view(array.dtype).reshape(array.shape)
    shifted_array[...] = array
    yield shifted_array
    axes = range(array.ndim)[::-1]
    yield np.ascontiguousarray(array.transpose(axes)).transpose(axes)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ir.ALL_DTYPES, ids=str)
def test_every_type_rank_and_layout(dtype: ir.DType, rank: int) -> None:
    kernel = chooser(dtype, rank)
    shape = (3, 2, 4, 5)[:rank]
    numbers = np.random.default_rng(7).integers(0, 100, (2, *shape))
    a, b = (numbers % 2 if dtype.is_bool else numbers).astype(dtype.dtype)
    for first, out in itertools.product(layouts(a), layouts(np.zeros_like(a))):
        assert native(kernel, first, b, out) is None
        assert (out == b).all()
    # What is only read may have several elements in one place.
    row = a.reshape(-1)[:1]
    with only_native():
        kernel(np.broadcast_to(row[0], shape), np.broadcast_to(row, shape), out)
    assert (out == row).all()
    # No elements at all.
    empty = np.zeros((0, *shape[1:]), dtype.dtype)
    with only_native():
        kernel(empty, empty, empty)


SOURCES = [bool, int, *interpreter.HELD_TYPES]


def is_taken(held: ir.DType, source: type) -> bool:
    kind = np.dtype(source).kind
    if held.is_bool:
        return kind == "b"
    return held.is_float or kind in "biu"


@pytest.mark.parametrize("held", ir.ALL_DTYPES, ids=str)
def test_every_scalar_is_converted_as_python_does(held: ir.DType) -> None:
    store = function_from(STORE, held=held)
    for source in SOURCES:
        if not is_taken(held, source):
            continue
        kernel, out = fresh(store), np.zeros(1, held.dtype)
        for number in (0, 1, 100, -1, 0.1, 1e300, 2**53 + 1, -(2**63), 2**63 - 1, 2**64 - 1):
            with np.errstate(all="ignore"):
                try:
                    value = source(number)
                    wanted = held.dtype.type(float(value) if held.is_float else int(value))
                except OverflowError:
                    continue
            if source(1) == value:  # the first value makes the entry
                native(kernel, value, out)
            kernel(value, out)
            assert out.tobytes() == wanted.tobytes(), (source, number)


@pytest.mark.parametrize("source", SOURCES)
def test_scalars_at_the_ends_of_their_type_are_taken_natively(source: type) -> None:
    dtype = np.dtype(source)
    store = function_from(STORE, held=ir.from_numpy(dtype))
    out = np.zeros(1, dtype)
    if dtype.kind == "b":
        values = [source(False), source(True)]
    elif dtype.kind == "f":
        largest = float(np.finfo(dtype).max)
        values = [source(each) for each in (largest, -largest, "nan", "inf", -0.0, 5e-324)]
    else:
        values = [source(np.iinfo(dtype).min), source(np.iinfo(dtype).max), source(7)]
    for value in values:
        native(store, value, out)
        assert out.tobytes() == dtype.type(value).tobytes()


def test_numbers_of_every_type_side_by_side() -> None:
    @tn.kernel
    def mixed(
        a: Param, b: Param, x: NDArray[f64, 1], c: Param, d: Param[i8], e: Param[f32], f: Param
    ) -> None:
        x[0] = a + b + c + d + e
        x[1] = 1.0 if f else 0.0

    for numbers in itertools.product((3, np.int16(3)), (0.5, np.float32(0.5)), (True, np.False_)):
        a, b, f = numbers
        out = np.zeros(2)
        kernel = fresh(mixed)
        native(kernel, a, b, out, np.uint8(200), np.int64(-5), 0.25, f)
        assert out.tolist() == [3 + 0.5 + 200 - 5 + 0.25, float(f)]


def test_results_are_new_arrays() -> None:
    @tn.kernel
    def both(x: Scalar, v: Vector[3], i: Index) -> tuple[Scalar, Vector[3], Index]:
        return x + 1, v * x, i * 2

    x, v, i = np.arange(4.0), np.arange(12.0).reshape(3, 4), np.arange(4)
    a, b, c = native(both, x, v, i)
    with only_native():
        again = both(x, v, i)
    assert isinstance(again, tuple)
    assert not any(np.may_share_memory(p, q) for p, q in zip(again, (a, b, c), strict=True))
    assert (a == x + 1).all()
    assert (b == v * x).all()
    assert (c == i * 2).all()
    assert [r.dtype for r in again] == [np.float64, np.float64, np.int64]
    for r in again:
        assert type(r) is np.ndarray
        assert r.flags.owndata
        assert r.flags.writeable
        assert r.flags.c_contiguous
    alone = native(shifted, x)
    assert type(alone) is np.ndarray
    assert alone.tolist() == [2.0, 3.0, 4.0, 5.0]
    with only_native():
        assert shifted(x[:0]).shape == (0,)
        assert [r.shape for r in both(x[:0], v[:, :0], i[:0])] == [(0,), (3, 0), (0,)]


def test_samples_that_the_mask_skips_are_zero_in_results() -> None:
    @tn.kernel
    def skipping(x: Scalar, done: Terminated) -> Scalar:
        return x + 1

    done = np.array([False, True, False, True])
    assert native(skipping, np.arange(4.0), done).tolist() == [1.0, 0.0, 3.0, 0.0]


def test_several_units_with_scratch_memory_between_them() -> None:
    @tn.kernel
    def centred(a: NDArray[f64, 1], out: NDArray[f64, 1]) -> None:
        total = 0.0
        for i in tn.serial(range(a.shape[0])):
            total += a[i]
        for i in range(a.shape[0]):
            out[i] = a[i] - total / a.shape[0]
        for i in range(a.shape[0] // 2):
            out[i] = -out[i]

    out = np.zeros(4)
    for _ in range(3):  # scratch memory starts from zero each time
        native(centred, np.array([1.0, 2.0, 3.0, 6.0]), out)
        assert out.tolist() == [2.0, 1.0, 0.0, 3.0]


def test_iteration_spaces_that_are_computed() -> None:
    @tn.kernel
    def every(a: NDArray[i64, 1], start: Param, step: Param, n: Param) -> None:
        for i in range(start, a.shape[0] // 2 + n, step):
            a[i] = 1

    for start, step, n in ((0, 1, 5), (3, 2, 4), (9, -3, -9), (2, 1, -5), (0, 1, -5), (5, -1, 9)):
        a = np.zeros(10, np.int64)
        native(every, a, start, step, n)
        wanted = np.zeros(10, np.int64)
        wanted[list(range(start, 5 + n, step))] = 1
        assert a.tolist() == wanted.tolist()


def test_an_iteration_space_that_needs_a_math_function_has_no_entry() -> None:
    @tn.kernel
    def rooted(a: NDArray[i64, 1], x: Param) -> None:
        for i in range(i64(tm.exp(x))):
            a[i] = 1

    a = np.zeros(10, np.int64)
    for _ in range(4):
        rooted(a, 1.1)
    assert a.tolist() == [1] * 3 + [0] * 7


def test_elements_that_several_positions_update() -> None:
    @tn.kernel
    def histogram(index: NDArray[i64, 1], counts: NDArray[i64, 1]) -> None:
        for i in range(index.shape[0]):
            counts[index[i]] += 1

    counts = np.zeros(3, np.int64)
    native(histogram, np.array([0, 2, 2, 1, 2]), counts)
    assert counts.tolist() == [3, 3, 9]


@settings(deadline=None)  # the first example compiles
@given(
    st.lists(st.floats(-1e30, 1e30), max_size=20),
    st.integers(-(2**62), 2**62),
    st.sampled_from([1, 2, -1, -3]),
)
def test_any_numbers(numbers: list[float], factor: int, step: int) -> None:
    x = np.repeat(np.array(numbers, np.float64), abs(step))[::step]
    out = np.zeros(len(x))
    native(PRODUCT, x, factor, out)
    assert (out == x * factor).all()


@tn.kernel
def PRODUCT(x: NDArray[f64, 1], k: Param, out: NDArray[f64, 1]) -> None:  # noqa: N802
    for i in range(x.shape[0]):
        out[i] = x[i] * k


# -- counters --------------------------------------------------------------------------------------


@tn.kernel
def drag(regime: Index, v: Scalar, out: Mutable[Scalar]):
    out = tm.dispatch(regime, [-0.1 * v, -0.4 * v * v, tm.exp(v)], policy="switch")


@tn.kernel
def twice(a: Index, b: Index, v: Mutable[Scalar]):
    v = v + tm.dispatch(a, [1.0, 2.0], name="outer", policy="predicated")
    one = 1.0
    v = v * tm.dispatch(b, [one, 1, 1, 1, 1, one, 1, 1, 1, 1, 1, 1], name="inner", policy="switch")


def classes(kind: np.ndarray, count: int) -> np.ndarray:
    return np.bincount(np.clip(kind, 0, count - 1), minlength=count)


@pytest.mark.parametrize("samples", [0, 1, 7, 1000])
def test_counters_add_what_each_call_counts(samples: int) -> None:
    random = np.random.default_rng(samples)
    regime = random.integers(-2, 6, samples)
    v, out = random.normal(size=samples), np.zeros(samples)
    mix = np.array([7, 0, 2**32 - 1, 99], np.uint32)
    expected = mix.copy()
    kernel = fresh(drag)
    native(kernel, regime, v, out, dispatch0_mix=mix)
    with only_native():
        kernel(dispatch0_mix=mix, v=v, out=out, regime=regime)
    expected[:3] += (4 * classes(regime, 3)).astype(np.uint32)
    assert mix.tolist() == expected.tolist()


def test_counters_of_several_dispatches() -> None:
    random = np.random.default_rng(5)
    a, b = random.integers(-3, 4, 500), random.integers(-5, 20, 500)
    outer, inner = np.zeros(2, np.uint32), np.zeros(12, np.uint32)
    kernel, v = fresh(twice), np.ones(500)
    native(kernel, a, b, v, outer_mix=outer, inner_mix=inner)
    for _ in range(2):
        kernel(a, b, v, inner_mix=inner)
    kernel(a, b, v)
    with only_native():
        kernel(a, b, v, inner_mix=inner)
        kernel(a, b, v, inner_mix=inner, outer_mix=outer)
    assert outer.tolist() == (4 * classes(a, 2)).tolist()
    assert inner.tolist() == (7 * classes(b, 12)).tolist()
    expected = np.ones(500)
    for _ in range(8):
        expected += np.array([1.0, 2.0])[np.clip(a, 0, 1)]
    assert v.tolist() == expected.tolist()


MIX, MEMORY = np.zeros(3, np.uint32), np.zeros(4, np.int64)
WRONG_COUNTERS: dict[str, Any] = {
    "wrong dtype": np.zeros(3, np.int32),
    "other byte order": np.zeros(3, MIX.dtype.newbyteorder()),
    "wrong rank": np.zeros((3, 1), np.uint32),
    "too short": np.zeros(2, np.uint32),
    "with gaps": np.zeros(6, np.uint32)[::2],
    "backwards": np.zeros(3, np.uint32)[::-1],
    "read-only": np.broadcast_to(np.uint32(0), 3),
    "list": [0, 0, 0],
    "None": None,
    "number": 0,
    "selector": MEMORY.view(np.uint32),
}


@pytest.mark.parametrize("case", WRONG_COUNTERS)
def test_wrong_counters_get_the_message_of_the_python_path(case: str) -> None:
    v, out, mix = np.ones(4), np.full(4, -9.0), np.zeros(3, np.uint32)
    kernel = fresh(drag)
    native(kernel, MEMORY, v, np.zeros(4), dispatch0_mix=mix)
    wrong = {"dispatch0_mix": WRONG_COUNTERS[case]}
    assert message(kernel, MEMORY, v, out, **wrong) == message(fresh(drag), MEMORY, v, out, **wrong)
    assert out.tolist() == [-9.0] * 4
    assert not MEMORY.any()
    with only_native():
        kernel(MEMORY, v, out, dispatch0_mix=mix)  # nothing is left behind
    assert mix.tolist() == [16, 0, 0]


# -- keywords and defaults -------------------------------------------------------------------------


def test_keywords_in_any_order() -> None:
    x, y, out = np.arange(3.0), np.ones(3), np.zeros(3)
    native(saxpy, 2, x, y, out)
    given_ = {"a": 3, "x": x, "y": y, "out": out}
    for count in range(5):
        by_position = list(given_.values())[:count]
        for names in itertools.permutations(list(given_)[count:]):
            out[:] = 0
            with only_native():
                saxpy(*by_position, **{name: given_[name] for name in names})
            assert out.tolist() == [1.0, 4.0, 7.0]


def test_defaults() -> None:
    x = np.arange(3.0)
    assert native(shifted, x).tolist() == [2.0, 3.0, 4.0]
    with only_native():
        assert shifted(x, 5).tolist() == [5.0, 6.0, 7.0]
        assert shifted(by=5, x=x).tolist() == [5.0, 6.0, 7.0]
        assert shifted(x=x).tolist() == [2.0, 3.0, 4.0]


def test_parameters_that_take_only_positions_or_only_keywords() -> None:
    @tn.kernel
    def strict(x: Scalar, /, y: Scalar, *, k: Param, m: Param = 10) -> Scalar:
        return x + y * k + m

    x, y = np.arange(2.0), np.ones(2)
    assert native(strict, x, y, k=2).tolist() == [12.0, 13.0]
    with only_native():
        assert strict(x, k=2, y=y, m=0).tolist() == [2.0, 3.0]
        assert strict(x, m=0, k=2, y=y).tolist() == [2.0, 3.0]
    new = fresh(strict)
    for args, keywords in (
        ((x, y, 2), {}),
        ((x, y), {}),
        ((), {"x": x, "y": y, "k": 2}),
        ((x, y), {"k": 2, "y": y}),
        ((x, y), {"k": 2, "z": 1}),
    ):
        assert message(strict, *args, **keywords) == message(new, *args, **keywords)


def test_names_that_are_not_interned() -> None:
    x, y, out = np.arange(3.0), np.ones(3), np.zeros(3)
    native(saxpy, 2, x, y, out)
    name = "".join(["o", "u", "t"])
    assert name is not sys.intern("out")
    saxpy(2, x, y, **{name: out})
    assert out.tolist() == [1.0, 3.0, 5.0]


# -- what is left to Python ------------------------------------------------------------------------


class Subclass(np.ndarray):
    pass


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


X, Y, OUT, BUFFER = np.arange(4.0), np.ones(4), np.zeros(4), np.zeros(5)
WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "wrong dtype": ((2, X.astype("f4"), Y, OUT), {}),
    "dtype that kernels do not have": ((2, X.astype("c16"), Y, OUT), {}),
    "other byte order": ((2, X.astype(X.dtype.newbyteorder()), Y, OUT), {}),
    "wrong rank": ((2, X.reshape(2, 2), Y, OUT), {}),
    "array of rank 0": ((2, np.array(1.0), Y, OUT), {}),
    "array for a number": ((X, X, Y, OUT), {}),
    "number for an array": ((2, 1.0, Y, OUT), {}),
    "list": ((2, [1.0], Y, OUT), {}),
    "None": ((None, X, Y, OUT), {}),
    "masked array": ((2, np.ma.array(X), Y, OUT), {}),
    "lengths that differ": ((2, X, Y[:3], OUT), {}),
    "read-only output": ((2, X, Y, read_only(np.zeros(4))), {}),
    "output that overlaps itself": ((2, X, Y, as_strided(OUT, (4,), (4,))), {}),
    "output whose elements are one": ((2, X, Y, as_strided(OUT, (4,), (0,))), {}),
    "output that overlaps an input": ((2, BUFFER[1:], Y, BUFFER[:-1]), {}),
    "int that is too large": ((2**64, X, Y, OUT), {}),
    "too few arguments": ((2, X, Y), {}),
    "too many arguments": ((2, X, Y, OUT, OUT), {}),
    "no argument": ((), {}),
    "unknown keyword": ((2, X, Y), {"output": OUT}),
    "argument given twice": ((2, X, Y, OUT), {"a": 2}),
    "too many samples": ((2, X, Y, OUT), {"samples": 5}),
    "unknown device": ((2, X, Y, OUT), {"device": "nowhere"}),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls_get_the_message_of_the_python_path(case: str) -> None:
    args, keywords = WRONG[case]
    kernel = fresh(saxpy)
    native(kernel, 2, X, Y, OUT)
    assert message(kernel, *args, **keywords) == message(fresh(saxpy), *args, **keywords)
    with only_native():
        kernel(2, X, Y, OUT)  # nothing is left behind


def test_arrays_that_are_too_short() -> None:
    @tn.kernel
    def gather(a: NDArray[f64, 1], n: Param, out: NDArray[f64, 1]) -> None:
        for i in range(n):
            out[i] = a[2 * i + 1]

    a, out = np.arange(9.0), np.zeros(5)
    native(gather, a, 4, out)
    assert out.tolist() == [1.0, 3.0, 5.0, 7.0, 0.0]
    with only_native():
        for n in (0, -1, -(2**63)):
            gather(a[:0], n, out[:0])
    new = fresh(gather)
    for n in (5, 6, 2**62, 2**63 - 1):
        assert message(gather, a, n, out) == message(new, a, n, out)
        assert "has shape (9,), and line" in message(gather, a, n, out)
    assert message(gather, a, 4, out[:3]) == message(new, a, 4, out[:3])


def test_odd_arrays_that_are_right_take_the_python_path() -> None:
    unpickled = pickle.loads(pickle.dumps(X))
    assert unpickled.dtype is not X.dtype
    described = np.dtype("f8", metadata={"unit": "m"})
    kernel = fresh(double)
    native(kernel, X, OUT)
    for given_ in (unpickled, X.view(X.dtype.newbyteorder("<")), X.astype(described)):
        out = np.zeros(4)
        with only_native():
            kernel(given_, out)
        assert out.tolist() == [0.0, 2.0, 4.0, 6.0]
    with python_calls() as calls:
        kernel(X.view(Subclass), out)
        kernel(X, out.view(Subclass))
    assert calls == ["cpu:0"] * 2


def test_equal_types_of_several_names() -> None:
    @tn.kernel
    def twice(a: NDArray[i64, 1], out: NDArray[i64, 1]) -> None:
        for i in range(a.shape[0]):
            out[i] = 2 * a[i]

    a = np.arange(3)
    native(twice, a, np.zeros(3, np.int64))
    for code in ("q", "l", "i8", "n"):
        if np.dtype(code) == np.int64:
            out = np.zeros(3, code)
            with only_native():
                twice(a.astype(code), out)
            assert out.tolist() == [0, 2, 4]
    assert message(twice, a.astype("u8"), out).startswith("kernel twice: argument 'a' has the dty")


def test_arrays_that_lie_between_each_other() -> None:
    matrix = np.arange(12.0).reshape(4, 3)
    native(double, matrix[:, 0], matrix[:, 2])
    assert matrix[:, 2].tolist() == [0.0, 6.0, 12.0, 18.0]
    line = np.arange(8.0)
    native(double, line[::2], line[1::2])
    assert line.tolist() == [0.0, 0.0, 2.0, 4.0, 4.0, 8.0, 6.0, 12.0]
    native(double, line[1::2], line[::-2][::-1][:4])


def test_exactly_the_same_array_may_be_given_twice() -> None:
    x = np.arange(4.0)
    native(double, x, x)
    assert x.tolist() == [0.0, 8.0, 16.0, 24.0]
    with only_native():
        double(x, x[:])
        double(x[1:2], x[1:2:5])
    assert x.tolist() == [0.0, 32.0, 32.0, 48.0]


@settings(deadline=None)  # the first example compiles
@given(st.data())
def test_overlap_is_judged_as_numpy_does(data: st.DataObject) -> None:
    """Views that the entry takes share nothing, or are the same."""
    buffer = np.arange(40.0)

    def view() -> np.ndarray:
        start = data.draw(st.integers(0, 39))
        step = data.draw(st.sampled_from([1, 2, 3, 5, -1, -2, -3]))
        return buffer[start::step][:4]

    a, b = view(), view()
    count = min(len(a), len(b))
    a, b = a[:count], b[:count]
    x, out = np.arange(1.0), np.zeros(1)
    native(double, x, out)
    wanted = a * 2
    same = a.strides == b.strides and a.ctypes.data == b.ctypes.data
    if np.shares_memory(a, b) and not same and count > 1:
        assert "overlap in memory" in message(double, a, b)
    else:
        double(a, b)
        assert (b == wanted).all()


@settings(deadline=None)  # the first example compiles
@given(st.data())
def test_outputs_that_share_elements_are_refused(data: st.DataObject) -> None:
    shape = data.draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    strides = data.draw(st.tuples(st.integers(-40, 40), st.integers(-40, 40)))
    buffer = np.zeros(400, np.uint8)
    out = np.ndarray(shape, np.uint8, buffer, offset=200, strides=strides)
    a = np.full(shape, 7, np.uint8)
    kernel = FILL
    native(kernel, np.ones((1, 1), np.uint8), np.zeros((1, 1), np.uint8))
    steps = sorted((abs(s), n) for s, n in zip(strides, shape, strict=True) if n > 1)
    reach, are_distinct = 1, True
    for stride, length in steps:
        are_distinct = are_distinct and stride >= reach
        reach += stride * (length - 1)
    if are_distinct or not out.size:
        with only_native():
            kernel(a, out)
        assert (out == 7).all()
        assert np.count_nonzero(buffer) == out.size
    else:
        assert "share memory or interleave" in message(kernel, a, out)


@tn.kernel
def FILL(a: NDArray[u8, 2], out: NDArray[u8, 2]) -> None:  # noqa: N802
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            out[i, j] = a[i, j]


def test_samples_and_device_as_keywords() -> None:
    x, y, out = np.arange(3.0), np.ones(3), np.zeros(3)
    native(saxpy, 2, x, y, out)
    out[:] = 0
    with python_calls() as calls:
        saxpy(2, x, y, out, samples=2)
        assert out.tolist() == [1.0, 3.0, 0.0]
        saxpy(2, x, y, out, device="reference")
        saxpy(2, x, y, out=out, device="cpu")
    assert out.tolist() == [1.0, 3.0, 5.0]
    assert calls == ["cpu:0", "reference:0", "cpu:0"]


def test_numbers_out_of_range() -> None:
    @tn.kernel
    def pinned(x: NDArray[f64, 1], a: Param[i8], b: Param[u64], c: Param[f32]) -> None:
        x[0] = a
        x[1] = b
        x[2] = c

    x = np.zeros(3)
    native(pinned, x, 127, 5, 3)
    new = fresh(pinned)
    for numbers in ((128, 5, 3), (-129, 5, 3), (1, -1, 3), (1, 2**64, 3), (1, 5, 10**400)):
        assert message(pinned, x, *numbers) == message(new, x, *numbers)
    pinned(x, 1, 2**64 - 1, 3)
    assert x.tolist() == [1.0, float(2**64 - 1), 3.0]


# -- devices ---------------------------------------------------------------------------------------


def test_the_device_in_force_decides() -> None:
    kernel, x = fresh(shifted), np.arange(3.0)
    native(kernel, x)
    with python_calls() as calls:
        with tn.use("reference"):
            kernel(x)
            with tn.use("cpu"):
                kernel(x)
            kernel(x)
        kernel(x)
        tn.set_default_device("reference")
        kernel(x)
        with tn.use("cpu"):
            kernel(x)
        tn.set_default_device("cpu")
        kernel(x)
    assert calls == ["reference:0"] * 3


def test_threads_and_tasks_see_their_own_device() -> None:
    kernel, x = fresh(shifted), np.arange(3.0)
    native(kernel, x)

    async def work(gate: asyncio.Event) -> None:
        kernel(x)
        await gate.wait()
        kernel(x)

    async def main() -> list[str]:
        gate = asyncio.Event()
        with python_calls() as calls:
            with tn.use("reference"):
                inside = asyncio.create_task(work(gate))
                await asyncio.sleep(0)
                thread = threading.Thread(target=kernel, args=(x,))
                thread.start()
                thread.join()
            outside = asyncio.create_task(work(gate))
            await asyncio.sleep(0)
            kernel(x)
            gate.set()
            await asyncio.gather(inside, outside)
        return calls

    assert asyncio.run(main()) == ["reference:0"] * 2  # both in the task made inside of the block


def test_an_undecided_default_is_decided_by_the_python_path() -> None:
    kernel, x = fresh(shifted), np.arange(3.0)
    native(kernel, x)
    tn.set_default_device(None)
    with python_calls() as calls:
        kernel(x)
        assert calls == ["cpu:0"]
        kernel(x)
    assert calls == ["cpu:0"]


# -- further types of arguments --------------------------------------------------------------------


def test_entries_for_several_types_of_arguments() -> None:
    kernel = fresh(shifted)
    x, numbers = np.arange(3.0), [2, 2.5, np.float32(1), np.int8(3)]
    arguments = [(x, 2), (x.astype("f4"), 2), (x, 2.5), (x.astype("f4"), np.float32(1))]
    wanted = [native(fresh(shifted), *each) for each in arguments]
    for each in arguments * 2:
        kernel(*each)
    with only_native():
        for each, right in zip(arguments, wanted, strict=True):
            got = kernel(*each)
            assert got.dtype == right.dtype
            assert got.tolist() == right.tolist()
    with python_calls() as calls:  # a fifth
        for _ in range(3):
            assert kernel(x, numbers[3]).tolist() == [3.0, 4.0, 5.0]
    assert len(calls) == 3


def code_of(kernel: Any) -> compiler.Loaded:
    owned = type(kernel).__call__.__self__
    return next(each for each in owned if isinstance(each, compiler.Loaded))


def test_kernels_of_one_shape_share_their_code() -> None:
    @tn.kernel
    def odd(a: NDArray[i8, 1], b: NDArray[u64, 1]) -> None:
        for i in range(b.shape[0]):
            b[i] = a[i] == 0

    first, second = fresh(odd), fresh(odd)
    for kernel in (first, second):
        native(kernel, np.zeros(2, np.int8), np.zeros(2, np.uint64))
    del kernel
    assert code_of(first) is code_of(second)
    gone = weakref.ref(code_of(first))
    del first, second
    gc.collect()
    assert gone() is None


def test_an_entry_on_disk_is_only_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_CACHE", "on")
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path))
    native_entry._loaded.clear()
    native(fresh(saxpy), 2, X, Y, OUT)
    native_entry._loaded.clear()

    def refuse(*args: Any, **keywords: Any) -> None:
        raise AssertionError("LLVM was to compile")

    monkeypatch.setattr(compiler, "compile_text", refuse)
    native(fresh(saxpy), 2, X, Y, OUT)


def test_without_the_interpreters_layout_python_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "layout_problem", lambda: "arrays are laid out otherwise")
    kernel = fresh(double)
    with python_calls() as calls:
        for _ in range(4):
            kernel(X, OUT)
    assert len(calls) == 4
    assert type(kernel) is Kernel


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [("ARRAY_DATA", 32, "an array's data"), ("DTYPE_NUMBER", 40, "a dtype's number")],
)
def test_a_different_layout_is_noticed(
    monkeypatch: pytest.MonkeyPatch, name: str, value: int, problem: str
) -> None:
    monkeypatch.setattr(interpreter, name, value)
    assert interpreter.layout_problem.__wrapped__() == f"{problem} is laid out otherwise"


def test_interpreters_of_another_kind_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    check = interpreter.layout_problem.__wrapped__
    with monkeypatch.context() as patch:
        patch.setattr(interpreter, "FUNCTIONS", ("PyLong_AsDouble", "PyLong_AsTriple"))
        assert check() == "CPython has no PyLong_AsTriple"
    with monkeypatch.context() as patch:
        patch.setattr(interpreter.sysconfig, "get_config_var", lambda name: 1)
        assert check().startswith("without the interpreter lock")
    with monkeypatch.context() as patch:
        patch.setattr(sys.implementation, "name", "pypy")
        assert check() == "pypy has no objects in CPython's form"


# -- limits of launchers ---------------------------------------------------------------------------


def launcher_of(kernel: Any) -> CpuLauncher:
    (executable,) = kernel._executables.values()
    (launch,) = executable._launches
    return launch.launcher


def test_large_launches_go_to_the_launcher() -> None:
    kernel, x = fresh(double), np.arange(10.0)
    native(kernel, x, np.zeros(10))
    tn.set_num_threads(2)
    threshold, out = launcher_of(kernel).threshold, np.zeros(10)
    threshold.value = 9
    with python_calls() as calls:
        kernel(x, out)
        assert out.tolist() == (x * 2).tolist()
        kernel(x[:9], out[:9])
    assert len(calls) == 1
    threshold.value = 10
    with only_native():
        kernel(x, out)


def test_a_launch_that_takes_long_lowers_the_threshold() -> None:
    @tn.kernel
    def rows(a: NDArray[f64, 2], out: NDArray[f64, 1]) -> None:
        for i in range(a.shape[0]):
            total = 0.0
            for j in range(a.shape[1]):
                total += a[i, j]
            out[i] = total

    a, out = np.ones((5, 3)), np.zeros(5)
    for _ in range(2):
        rows(a, out)
    launcher = launcher_of(rows)
    tn.set_num_threads(2)
    launcher.threshold.value = 100
    launcher.slow_ns.value = 2**63 - 1
    with only_native():
        rows(a, out)
    assert launcher.threshold.value == 100
    launcher.slow_ns.value = -1
    with only_native():
        rows(a, out)
    assert launcher.threshold.value == 4
    assert out.tolist() == [3.0] * 5


# -- ownership -------------------------------------------------------------------------------------


def counts(objects: list[object]) -> list[int]:
    gc.collect()
    return [sys.getrefcount(each) for each in objects]


def test_no_reference_is_leaked_or_lost() -> None:
    kernel = fresh(saxpy)
    returning = fresh(shifted)
    number, x, y, out = 12345.5, np.arange(4.0), np.ones(4), np.zeros(4)
    short = np.zeros(3)
    native(kernel, number, x, y, out)
    native(returning, x, number)
    choice = tn.backends  # anything that is never called here
    watched = [number, x, y, out, short, x.dtype, float, np.ndarray, None, "out", choice, kernel]
    with pytest.raises(CallError):
        kernel(number, x, y, short)

    def rounds(count: int) -> None:
        for _ in range(count):
            kernel(number, x, y, out)
            kernel(number, x, out=out, y=y)
            returning(x, number)
        for _ in range(count // 100):
            with pytest.raises(CallError):
                kernel(number, x, y, short)
            with pytest.raises(CallError):
                kernel(number, x, y, output=out)
            with pytest.raises(CallError):
                kernel(2**2000, x, y, out)

    rounds(200)
    before = counts(watched)
    rounds(100_000)
    after = counts(watched)
    # Other parts of the process may take or drop a few references to what everybody uses.
    assert all(abs(a - b) <= 20 for a, b in zip(after, before, strict=True)), (before, after)


def test_results_are_owned_by_the_caller_alone() -> None:
    x = np.arange(4.0)
    native(shifted, x)
    result = shifted(x)
    assert sys.getrefcount(result) == 2
    gone = weakref.ref(result)
    del result
    assert gone() is None


def test_memory_for_results_that_runs_out() -> None:
    @tn.kernel
    def both(x: Scalar) -> tuple[Scalar, Scalar]:
        return x, x

    native(both, np.zeros(2))
    native(shifted, np.zeros(2))
    huge = np.broadcast_to(np.zeros(1), (2**50,))
    for _ in range(3):
        with pytest.raises(MemoryError):
            both(huge)
        with pytest.raises(MemoryError):
            shifted(huge)
    with only_native():
        assert shifted(np.zeros(1)).tolist() == [2.0]


def test_a_later_result_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    @tn.kernel
    def both(x: Scalar) -> tuple[Scalar, Scalar]:
        return x, x

    described = []
    monkeypatch.setattr(CpuLauncher, "direct", lambda self, call: described.append(call))
    for _ in range(2):
        both(np.zeros(2))
    (call,) = described
    made: list[weakref.ref[Any]] = []

    def first(count: int) -> Any:
        array = np.empty(count)
        made.append(weakref.ref(array))
        return array

    def second(count: int) -> Any:
        raise ZeroDivisionError(f"{count} of them")

    one, other = call.results
    results = replace(one, allocate=first), replace(other, allocate=second)
    entry = native_entry.make_entry(replace(call, results=results))
    x = np.zeros(3)
    before = sys.getrefcount(x)
    for _ in range(100):
        with pytest.raises(ZeroDivisionError, match="3 of them"):
            entry(x)
    assert len(made) == 100
    assert [each() for each in made] == [None] * 100
    assert sys.getrefcount(x) == before
    right = native_entry.make_entry(replace(call, results=(results[0], other)))
    a, b = right(np.arange(2.0))
    assert a.tolist() == b.tolist() == [0.0, 1.0]
    assert made[-1]() is a


RSS = """
import gc, os, sys
import numpy as np
import turnout as tn
from turnout import Scalar, Param

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def make():
    @tn.kernel
    def k(x: Scalar, by: Param = 2) -> Scalar:
        return x + by
    return k

tn.set_default_device("cpu")
tn.set_num_threads(1)
x = np.arange(4.0)

def rounds(count):
    for _ in range(count):
        kernel = make()
        for _ in range(3):
            assert kernel(x).tolist() == [2.0, 3.0, 4.0, 5.0]
        assert type(kernel).__call__.__class__.__name__ == "builtin_function_or_method"
    del kernel
    gc.collect()

rounds(200)
before = resident()
rounds(2000)
grown = resident() - before
assert grown < 6e6, grown
kernel = make()
for _ in range(3):
    kernel(x)
before = resident()
for _ in range(300_000):
    kernel(x)
assert resident() - before < 1e6, resident() - before
print("flat")
"""

FORK = """
import os, sys
import numpy as np
import turnout as tn
from turnout import Scalar
from turnout.kernel import Executable

@tn.kernel
def k(x: Scalar) -> Scalar:
    return x + 1

tn.set_default_device("cpu")
tn.set_num_threads(1)
x = np.arange(3.0)
for _ in range(3):
    k(x)
def refuse(*args):
    raise AssertionError("the Python path")
child = os.fork()
if child == 0:
    run, Executable.__call__ = Executable.__call__, refuse
    right = k(x).tolist() == [1.0, 2.0, 3.0]
    Executable.__call__ = run
    y = x.astype("f4")
    for _ in range(3):
        right = right and k(y).tolist() == [1.0, 2.0, 3.0]
    os._exit(0 if right else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert k(x).tolist() == [1.0, 2.0, 3.0]
print("right")
"""


def run_script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "script.py"
    path.write_text(text)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux for memory in use")
def test_thousands_of_kernels_leave_no_memory_behind(tmp_path: Path) -> None:
    assert run_script(tmp_path, RSS) == "flat"


@pytest.mark.skipif(not hasattr(sys.modules["os"], "fork"), reason="there is no fork")
def test_entries_work_in_a_forked_child(tmp_path: Path) -> None:
    assert run_script(tmp_path, FORK) == "right"


# -- threads ---------------------------------------------------------------------------------------


def in_threads(count: int, work: Callable[[int], None]) -> None:
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_threads_call_kernels_that_are_dropped_meanwhile() -> None:
    shared: list[Any] = [fresh(shifted) for _ in range(4)]
    x = np.arange(20_000.0)  # long enough for the lock to be released at times
    for kernel in shared:
        native(kernel, x[:3])
    is_over = threading.Event()

    def replacing() -> None:
        for number in range(12):
            new = fresh(shifted)
            for _ in range(3):
                new(x[:2])
            shared[number % 4] = new
            gc.collect()
        is_over.set()

    def calling(number: int) -> None:
        if number == 0:
            replacing()
            return
        own, length = fresh(double), 10 + number
        a, out = np.arange(float(length)), np.zeros(length)
        while not is_over.is_set():
            for kernel in list(shared):
                size = 20_000 if number % 2 else 30
                assert kernel(x[:size], number)[-1] == x[size - 1] + number
            own(a, out)
            assert out.tolist() == (a * 2).tolist()

    in_threads(9, calling)


def test_a_kernel_that_is_dropped_while_another_thread_runs_it() -> None:
    flag, count = np.zeros(1, np.int64), np.zeros(1, np.int64)
    kernel = fresh(spin)
    done = np.ones(1, np.int64)
    native(kernel, done, count)
    box, results = [kernel], []
    gone = weakref.ref(kernel)
    del kernel

    def run() -> None:
        with only_native():
            results.append(box.pop()(flag, count))

    thread = threading.Thread(target=run)
    thread.start()
    while count[0] == 0:
        pass
    assert box == []
    for _ in range(3):
        gc.collect()
    before = count[0]
    while count[0] == before:
        pass
    flag[0] = 1
    thread.join()
    assert results == [None]
    gc.collect()
    assert gone() is None


def test_shapes_may_change_while_a_launch_runs() -> None:
    flag, count = np.zeros(1, np.int64), np.zeros(4, np.int64)
    kernel = fresh(spin)
    native(kernel, np.ones(1, np.int64), count)
    thread = threading.Thread(target=kernel, args=(flag, count))
    thread.start()
    while count[0] == 0:
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer versions of NumPy would rather have a new array
        count.shape = (2, 2)
    with pytest.raises(ValueError, match="cannot resize"):
        count.resize((100, 100))
    flag[0] = 1
    thread.join()
    assert count[0, 0] > 0


# -- the kernel's own type -------------------------------------------------------------------------


def test_a_called_kernel_is_still_a_kernel() -> None:
    shown, signature = repr(saxpy), tn.kernel(saxpy.__wrapped__).__signature__
    native(saxpy, 2, X, Y, OUT)
    assert isinstance(saxpy, Kernel)
    assert repr(saxpy) == shown
    assert saxpy.__signature__ == signature
    assert pickle.loads(pickle.dumps(saxpy)) is saxpy
    assert copy.deepcopy(saxpy) is saxpy
    assert re.fullmatch(r"<built-in method saxpy of tuple object at .*>", repr(saxpy.__call__))
    assert ctypes.sizeof(ctypes.c_void_p) == 8
