"""Products of exact sizes: right values, bits that nothing but the numbers decides, every way in.

Values are whole numbers where that is possible: sums of their products are exact in any order, so
NumPy's integers are the reference. Where rounding matters, it is `numpy.longdouble` or fractions.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

import turnout as tn
from turnout.plugin import ir
from turnout_cpu import compiler, interpreter, threads
from turnout_cpu.linear_algebra import code, compiling, inner_products, large_matmul, small_matmul
from turnout_cpu.linear_algebra.block import DEPTH
from turnout_cpu.linear_algebra.machine import Machine, host, machine_of, second_level_cache_bytes

FLOATS = (np.float64, np.float32)
TYPES = (*FLOATS, np.int32, np.int64)

Array = Any


class ElsewhereError(Exception):
    """A call that was handed over."""


def otherwise(*arguments: Any) -> Any:
    raise ElsewhereError(arguments)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    tn.set_num_threads(1)
    yield
    tn.set_num_threads(None)


def matmul(m: int, n: int, k: int, dtype: Any) -> Callable[..., Any]:
    made = compiling.compile_matmul((m, n, k), np.dtype(dtype), None, otherwise)
    assert made is not None
    return made.function


def gemv(m: int, n: int, dtype: Any) -> Callable[..., Any]:
    made = compiling.compile_gemv((m, n), np.dtype(dtype), None, otherwise)
    assert made is not None
    return made.function


def dot(n: int, dtype: Any) -> Callable[..., Any]:
    made = compiling.compile_dot((n,), np.dtype(dtype), None, otherwise)
    assert made is not None
    return made.function


def whole_numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).integers(-9, 10, shape).astype(dtype)


def exact(a: Array, b: Array) -> Array:
    return a.astype(np.int64) @ b.astype(np.int64)


def check_matmul(m: int, n: int, k: int, dtype: Any, function: Any = None) -> None:
    a, b = whole_numbers((m, k), dtype), whole_numbers((k, n), dtype, 1)
    out = np.full((m, n), 77, dtype)
    function = function or matmul(m, n, k, dtype)
    assert function(a, b, out) is out
    np.testing.assert_array_equal(out, exact(a, b))


# -- right values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_squares(dtype: Any) -> None:
    for n in range(71):
        check_matmul(n, n, n, dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_shapes(dtype: Any) -> None:
    sizes = np.random.default_rng(3).integers(0, 71, (40, 3))
    edges = [(1, 1, 1), (0, 5, 3), (5, 0, 3), (5, 3, 0), (70, 1, 70), (1, 70, 70), (70, 70, 1)]
    for m, n, k in [*edges, *sizes.tolist()]:
        check_matmul(m, n, k, dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(71, 72, 73), (100, 130, 70), (3, 500, 20), (500, 3, 20), (20, 17, 700), (257, 129, 513)],
)
def test_large_shapes(m: int, n: int, k: int, dtype: Any) -> None:
    check_matmul(m, n, k, dtype)


def test_small_sizes_in_the_code_for_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "is_small", lambda *sizes: False)
    for m, n, k in np.random.default_rng(4).integers(1, 71, (300, 3)).tolist():
        check_matmul(m, n, k, np.float64)
        check_matmul(n, k, m, np.float32)


def test_integers_wrap() -> None:
    a = np.full((3, 3), 2**31 - 1, np.int32)
    out = np.empty_like(a)
    assert (matmul(3, 3, 3, np.int32)(a, a, out) == np.int32(3)).all()
    assert dot(3, np.int32)(a[0], a[0]) == 3


@pytest.mark.parametrize("dtype", TYPES)
def test_dot(dtype: Any) -> None:
    for n in [*range(140), 255, 256, 257, 1000, 4096, 10_001]:
        a, b = whole_numbers((n,), dtype), whole_numbers((n,), dtype, 1)
        total = dot(n, dtype)(a, b)
        assert type(total) is dtype
        assert total == exact(a, b)


@pytest.mark.parametrize("dtype", FLOATS)
def test_dot_that_prefetches(dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = np.random.default_rng(2).standard_normal((2, 5000)).astype(dtype)
    expected = dot(5000, dtype)(a, b)
    monkeypatch.setattr(compiling, "_CACHED_BYTES", 0)
    assert dot(5000, dtype)(a, b) == expected


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("order", ["C", "F"])
def test_gemv(dtype: Any, order: Any) -> None:
    sizes = np.random.default_rng(5).integers(0, 71, (25, 2)).tolist()
    for m, n in [*sizes, (1, 1), (3, 300), (300, 3), (129, 257), (64, 512)]:
        a = np.asarray(whole_numbers((m, n), dtype), order=order)
        x, out = whole_numbers((n,), dtype, 1), np.full(m, 77, dtype)
        assert gemv(m, n, dtype)(a, x, out) is out
        np.testing.assert_array_equal(out, exact(a, x))


# -- bounds ----------------------------------------------------------------------------------------


def gamma(steps: int, dtype: Any) -> Fraction:
    unit = Fraction(float(np.finfo(dtype).eps)) / 2
    return steps * unit / (1 - steps * unit)


def fractions_dot(a: Array, b: Array) -> tuple[Fraction, Fraction]:
    """The exact sum of the products, and of their magnitudes."""
    terms = [Fraction(float(x)) * Fraction(float(y)) for x, y in zip(a, b, strict=True)]
    return sum(terms, Fraction()), sum(map(abs, terms), Fraction())


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 5, 33, 100, 1000, 5000])
def test_error_of_dot(n: int, dtype: Any) -> None:
    partials = inner_products.partials(ir.from_numpy(np.dtype(dtype)))
    steps = -(-n // partials) + int(math.log2(partials))
    a, b = np.random.default_rng(n).standard_normal((2, n)).astype(dtype)
    right, magnitude = fractions_dot(a, b)
    total = Fraction(float(dot(n, dtype)(a, b)))
    assert abs(total - right) <= gamma(steps, dtype) * magnitude


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("m", "n", "k"), [(7, 9, 40), (60, 50, 70), (5, 6, 1000)])
def test_error_of_matmul(m: int, n: int, k: int, dtype: Any) -> None:
    rng = np.random.default_rng(k)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    out = matmul(m, n, k, dtype)(a, b, np.empty((m, n), dtype))
    for i, j in rng.integers(0, (m, n), (20, 2)):
        right, magnitude = fractions_dot(a[i], b[:, j])
        assert abs(Fraction(float(out[i, j])) - right) <= gamma(k, dtype) * magnitude


def test_order_of_matmul() -> None:
    """Chains of `DEPTH` fused steps, added in order."""
    k = 2 * DEPTH + 40
    a, b = np.random.default_rng(1).standard_normal((2, k))
    if not host().is_fused:
        pytest.skip("this processor has no fused multiply-add")
    total = None
    for first in range(0, k, DEPTH):
        chain = Fraction()
        for x, y in zip(a[first : first + DEPTH], b[first : first + DEPTH], strict=True):
            chain = Fraction(float(Fraction(x) * Fraction(y) + chain))
        total = float(chain) if total is None else total + float(chain)
    out = matmul(1, 1, k, np.float64)(a[None, :], b[:, None], np.empty((1, 1)))
    assert out[0, 0] == total


# -- special values --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [5, 20, 100])
def test_special_values_reach_what_they_should(size: int, dtype: Any) -> None:
    a, b = np.ones((2, size, size), dtype)
    a[1, 3], a[2, 0], b[4, 2] = np.nan, np.inf, -np.inf
    a[3, 4] = 0  # 0 times infinity
    out = matmul(size, size, size, dtype)(a, b, np.empty((size, size), dtype))
    expected = np.full((size, size), size, dtype)
    expected[3] = size - 1
    expected[:, 2] = -np.inf
    expected[2] = np.inf
    expected[2, 2] = expected[3, 2] = np.nan
    expected[1] = np.nan
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_keep_their_signs(dtype: Any) -> None:
    a, b = np.full((1, 1), -0.0, dtype), np.ones((1, 1), dtype)
    assert np.signbit(matmul(1, 1, 1, dtype)(a, b, np.empty((1, 1), dtype)))
    for n in (1, 7, 100, 1000):
        zeros, ones = np.full(n, -0.0, dtype), np.ones(n, dtype)
        assert np.signbit(dot(n, dtype)(zeros, ones))
    assert not np.signbit(dot(0, dtype)(zeros[:0], ones[:0]))


# -- any strides -----------------------------------------------------------------------------------


def views(array: Array) -> dict[str, Array]:
    """The same elements, laid out in other ways."""
    rows, columns = array.shape
    item = array.itemsize
    misaligned = np.empty(array.nbytes + 1, np.uint8)[1:].view(array.dtype).reshape(array.shape)
    record = np.empty(array.shape, [("before", np.int8), ("value", array.dtype)])["value"]
    made = {
        "fortran": np.empty(array.shape, array.dtype, order="F"),
        "columns of a wider one": np.empty((rows, columns + 3), array.dtype)[:, 1:-2],
        "every second": np.empty((2 * rows, 3 * columns), array.dtype)[::2, ::3],
        "reversed": np.empty(array.shape, array.dtype)[::-1, ::-1],
        "fortran, reversed": np.empty((columns, rows), array.dtype)[::-1].T,
        "misaligned": misaligned,
        "field": record,
    }
    for view in made.values():
        view[...] = array
    assert made["misaligned"].ctypes.data % item == 1
    return made


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("m", "n", "k"), [(3, 4, 5), (33, 29, 41), (120, 110, 90), (37, 70, 300)])
def test_views(m: int, n: int, k: int, dtype: Any) -> None:
    """Fractions, so that bits can differ: they must not."""
    rng = np.random.default_rng(m)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    function = matmul(m, n, k, dtype)
    expected = function(a, b, np.empty((m, n), dtype))
    assert np.isfinite(expected).all()
    for name, other_a in views(a).items():
        for other_name, other_b in views(b).items():
            out = np.full((m, n), 77, dtype)
            assert function(other_a, other_b, out).tobytes() == expected.tobytes(), (
                name,
                other_name,
            )
    for name, out in views(np.full((m, n), 77, dtype)).items():
        function(a, b, out)
        assert out.tobytes() == expected.tobytes(), name


def test_broadcast_operands() -> None:
    a = np.broadcast_to(np.arange(40.0), (30, 40))
    b = np.broadcast_to(np.arange(40.0)[:, None], (40, 20))
    out = matmul(30, 20, 40, np.float64)(a, b, np.empty((30, 20)))
    assert (out == (np.arange(40.0) ** 2).sum()).all()


def test_what_lies_around_out_stays() -> None:
    for m, n, k in ((3, 5, 4), (35, 21, 30), (130, 90, 80)):
        around = np.full((m + 2, n + 2), 77.0)
        a, b = whole_numbers((m, k), np.float64), whole_numbers((k, n), np.float64)
        matmul(m, n, k, np.float64)(a, b, around[1:-1, 1:-1])
        np.testing.assert_array_equal(around[1:-1, 1:-1], exact(a, b))
        around[1:-1, 1:-1] = 77
        assert (around == 77).all()


class Guarded:
    """Makes arrays that begin or end where memory cannot be touched."""

    def __init__(self) -> None:
        self.kept: list[mmap.mmap] = []
        self.protect = ctypes.CDLL(None).mprotect
        self.protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def like(self, array: Array, *, at_end: bool) -> Array:
        """A copy; the page behind its end, or before its beginning, is closed."""
        page = mmap.PAGESIZE
        inner = -(-max(array.nbytes, 1) // page) * page
        memory = mmap.mmap(-1, inner + 2 * page)
        self.kept.append(memory)
        whole = np.frombuffer(memory, np.uint8)
        for closed in (whole[:page], whole[page + inner :]):
            assert self.protect(closed.ctypes.data, page, 0) == 0
        first = page + (inner - array.nbytes if at_end else 0)
        made = whole[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
        made[...] = array
        return made


@pytest.mark.skipif(sys.platform != "linux", reason="pages are closed by mprotect")
@pytest.mark.parametrize("dtype", FLOATS)
def test_nothing_beyond_the_arrays_is_touched(dtype: Any) -> None:
    guarded = Guarded()
    sizes = [*((n, n, n) for n in range(1, 36, 2)), (9, 33, 70), (70, 90, 50), (29, 117, 300)]
    for m, n, k in sizes:
        for at_end in (True, False):
            a = guarded.like(whole_numbers((m, k), dtype), at_end=at_end)
            b = guarded.like(whole_numbers((k, n), dtype, 1), at_end=at_end)
            x = guarded.like(b[:, 0], at_end=at_end)
            out = guarded.like(np.full((m, n), 77, dtype), at_end=at_end)
            y = guarded.like(np.full(m, 77, dtype), at_end=at_end)
            matmul(m, n, k, dtype)(a, b, out)
            np.testing.assert_array_equal(out, exact(a, b))
            columns = guarded.like(a.T, at_end=at_end).T
            out[...] = 77
            matmul(m, n, k, dtype)(columns, b, out)
            np.testing.assert_array_equal(out, exact(a, b))
            for matrix in (a, columns):
                gemv(m, k, dtype)(matrix, x, y)
                np.testing.assert_array_equal(y, exact(a, x))
            assert dot(k, dtype)(x, x) == exact(x, x)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [5, 100, 1000])
def test_views_of_vectors(n: int, dtype: Any) -> None:
    a, b = np.random.default_rng(n).standard_normal((2, n, 1)).astype(dtype)
    expected = dot(n, dtype)(a[:, 0], b[:, 0])
    for view in (*views(a).values(), a):
        for other in (*views(b).values(), b):
            assert dot(n, dtype)(view[:, 0], other[:, 0]) == expected


@pytest.mark.parametrize(("m", "n"), [(5, 7), (60, 70), (90, 500)])
def test_views_in_gemv(m: int, n: int) -> None:
    a, x = whole_numbers((m, n), np.float64), whole_numbers((n, 1), np.float64)
    function = gemv(m, n, np.float64)
    for name, view in views(a).items():
        for other in views(x).values():
            for out in views(np.full((m, 1), 77.0)).values():
                function(view, other[:, 0], out[:, 0])
                np.testing.assert_array_equal(out[:, 0], exact(a, x)[:, 0], err_msg=name)


def test_rows_of_gemv_are_dot_products() -> None:
    for n in (3, 50, 1000):
        a, x = np.random.default_rng(n).standard_normal((9, n)), np.linspace(-1, 1, n)
        out = gemv(9, n, np.float64)(a, x, np.empty(9))
        assert out.tolist() == [float(dot(n, np.float64)(row, x)) for row in a]


# -- threads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_same_bits_for_any_number_of_threads(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "_THREAD_STEPS", 10_000)
    monkeypatch.setattr(compiling, "_THREAD_BYTES", 1_000)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((301, 301)).astype(dtype) for _ in range(2))
    x = b[0].copy()
    multiply, apply = matmul(301, 301, 301, dtype), gemv(301, 301, dtype)
    seen = set()
    for count in (1, 2, 3, 7):
        tn.set_num_threads(count)
        for view in (a, np.asfortranarray(a)):
            seen.add(multiply(view, b, np.empty_like(a)).tobytes())
        vectors = [apply(view, x, np.empty_like(x)).tobytes() for view in (a, np.asfortranarray(a))]
        if count == 1:
            alone = vectors
        assert vectors == alone
    assert len(seen) == 1


def test_large_products_go_to_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    run = threads.Pool.run

    def watched(pool: Any, entry: int, slots: bytes, positions: int, count: int) -> int:
        runs.append((positions, count))
        return run(pool, entry, slots, positions, count)

    monkeypatch.setattr(threads.Pool, "run", watched)
    check_matmul(260, 260, 260, np.float64)
    assert not runs
    tn.set_num_threads(2)
    check_matmul(260, 260, 260, np.float64)
    assert [count for _, count in runs] == [2]
    assert runs[0][0] >= 4
    check_matmul(100, 100, 100, np.float64)
    assert len(runs) == 1


def test_calls_from_many_threads() -> None:
    sizes = [(20, 20, 20), (100, 100, 100), (130, 120, 110)]
    functions = [matmul(*each, np.float64) for each in sizes]
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        barrier.wait()
        for _ in range(20):
            for each, function in zip(sizes, functions, strict=True):
                check_matmul(*each, np.float64, function)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


# -- what is handed over ---------------------------------------------------------------------------


def _overlapping() -> tuple[Array, Array, Array]:
    memory = np.zeros(40)
    return memory[:16].reshape(4, 4), np.zeros((4, 4)), memory[8:24].reshape(4, 4)


def _read_only(shape: tuple[int, ...]) -> Array:
    array = np.zeros(shape)
    array.flags.writeable = False
    return array


class Subclass(np.ndarray[Any, Any]):
    pass


_RIGHT = np.zeros((4, 4))
HANDED_OVER = {
    "too few": (_RIGHT, _RIGHT),
    "too many": (_RIGHT, _RIGHT, np.zeros((4, 4)), 1),
    "a list": ([[1.0]], _RIGHT, np.zeros((4, 4))),
    "None": (None, _RIGHT, np.zeros((4, 4))),
    "rank": (_RIGHT, np.zeros(4), np.zeros((4, 4))),
    "shape of a": (np.zeros((4, 5)), _RIGHT, np.zeros((4, 4))),
    "shape of b": (_RIGHT, np.zeros((3, 4)), np.zeros((4, 4))),
    "shape of out": (_RIGHT, _RIGHT, np.zeros((4, 3))),
    "dtype": (_RIGHT, _RIGHT.astype(np.float32), np.zeros((4, 4))),
    "byte order": (_RIGHT, _RIGHT.astype(_RIGHT.dtype.newbyteorder()), np.zeros((4, 4))),
    "subclass": (_RIGHT.view(Subclass), _RIGHT, np.zeros((4, 4))),
    "read-only out": (_RIGHT, _RIGHT, _read_only((4, 4))),
    "out is a": (_RIGHT, np.zeros((4, 4)), _RIGHT),
    "out is b": (np.zeros((4, 4)), _RIGHT, _RIGHT),
    "out overlaps a": _overlapping(),
    "out in one place": (_RIGHT, _RIGHT, np.lib.stride_tricks.as_strided(_RIGHT, (4, 4), (0, 8))),
}


@pytest.mark.parametrize("arguments", HANDED_OVER.values(), ids=HANDED_OVER)
@pytest.mark.parametrize("has_entries", [True, False])
def test_other_calls_are_handed_over(
    arguments: tuple[Any, ...], has_entries: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_entries:
        monkeypatch.setattr(interpreter, "layout_problem", lambda: "there are none")
    function = matmul(4, 4, 4, np.float64)
    with pytest.raises(ElsewhereError) as caught:
        function(*arguments)
    handed_over = caught.value.args[0]
    assert len(handed_over) == len(arguments)
    assert all(a is b for a, b in zip(handed_over, arguments, strict=True))


def test_what_otherwise_returns_is_returned() -> None:
    made = compiling.compile_dot((3,), np.dtype(float), None, lambda *arguments: arguments)
    assert made is not None
    assert made.function("a", 1) == ("a", 1)


def test_keywords_are_no_part_of_it() -> None:
    a = np.zeros((2, 2))
    with pytest.raises(TypeError, match="keyword"):
        matmul(2, 2, 2, np.float64)(a, a, out=a)


def test_without_native_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "layout_problem", lambda: "there are none")
    for size in (1, 5, 90):
        check_matmul(size, size, size, np.float64)
        a = whole_numbers((size, size), np.float32)
        assert dot(size, np.float32)(a[0], a[0]) == exact(a[0], a[0])
        out = gemv(size, size, np.float32)(a, a[0], np.empty(size, np.float32))
        np.testing.assert_array_equal(out, exact(a, a[0]))


def test_types_that_are_not_offered() -> None:
    for compile, sizes in (
        (compiling.compile_matmul, (2, 2, 2)),
        (compiling.compile_gemv, (2, 2)),
        (compiling.compile_dot, (2,)),
    ):
        for name in ("complex128", "float16", "uint8", ">f8"):
            assert compile(sizes, np.dtype(name), None, otherwise) is None


@pytest.mark.parametrize("size", [90, 10])
def test_no_memory_for_packing(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(*arguments: Any) -> Any:
        return large_matmul.tiling(*arguments)._replace(strip_columns=2**40)

    monkeypatch.setattr(compiling, "tiling", greedy)
    a = np.asfortranarray(np.zeros((size, size)))
    with pytest.raises(MemoryError, match="no memory for packing"):
        matmul(size, size, size, np.float64)(a, a, np.empty((size, size)))


# -- resources -------------------------------------------------------------------------------------


def test_references_are_balanced() -> None:
    a, b, out = np.zeros((3, 4, 4))
    function, product = matmul(4, 4, 4, np.float64), dot(4, np.float64)
    before = [sys.getrefcount(each) for each in (a, b, out, np.float64)]
    for _ in range(1000):
        function(a, b, out)
        product(a[0], b[0])
    after = [sys.getrefcount(each) for each in (a, b, out, np.float64)]
    assert max(abs(x - y) for x, y in zip(before, after, strict=True)) <= 1


def test_scalars_are_ordinary() -> None:
    a = np.arange(3.0)
    totals = [dot(3, np.float64)(a, a) for _ in range(100)]
    assert totals == [5.0] * 100
    assert [total + 1 for total in totals] == [6.0] * 100
    assert isinstance(totals[0], float)


def test_code_is_shared_by_large_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    check_matmul(100, 100, 100, np.float64)
    gemv(10, 10_000, np.float64)
    dot(10_000, np.float64)
    monkeypatch.setattr(code, "Code", None)
    monkeypatch.setattr(compiling, "Code", None)
    for size in range(101, 140):
        check_matmul(size, size, size, np.float64)
        gemv(size, 1000 + size, np.float64)
        dot(1000 + size, np.float64)


def test_memory_of_code() -> None:
    small = compiling.compile_matmul((8, 8, 8), np.dtype(float), None, otherwise)
    large = compiling.compile_matmul((500, 500, 500), np.dtype(float), None, otherwise)
    assert small is not None
    assert large is not None
    assert 0 < small.memory_bytes < 100_000
    assert large.memory_bytes == 0


def test_code_is_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path))
    check_matmul(9, 8, 7, np.float64)
    monkeypatch.setattr(compiler, "compile_text", None)
    check_matmul(9, 8, 7, np.float64)
    with pytest.raises(TypeError):
        check_matmul(7, 8, 9, np.float64)


# -- other processors ------------------------------------------------------------------------------

LEVELS = {
    "x86-64-v2": frozenset({"sse4.2"}),
    "x86-64-v3": frozenset({"avx", "avx2", "fma"}),
    "x86-64-v4": frozenset({"avx", "avx2", "fma", "avx512f"}),
}


def level(cpu: str) -> Machine:
    return machine_of(cpu, "", LEVELS[cpu], "x86_64")


def texts(machine: Machine) -> dict[str, str]:
    return {
        small_matmul.NAME: small_matmul.small_matmul_text(7, 19, 10, ir.f64, machine),
        large_matmul.NAME: large_matmul.large_matmul_text(ir.f32, machine),
        inner_products.DOT: inner_products.dot_text(None, ir.f64, machine),
        inner_products.ROWS: inner_products.rows_text(None, ir.f32, machine),
        inner_products.COLUMNS: inner_products.columns_text(ir.f64, machine),
    }


@pytest.mark.skipif(not compiler.host().present >= {"sse4.2"}, reason="no x86-64-v2")
@pytest.mark.parametrize("cpu", LEVELS)
def test_levels_of_x86(cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = level(cpu)
    if not compiler.host().present >= LEVELS[cpu]:
        for name, text in texts(machine).items():
            assert compiler.compile_text(text, cpu, "", 3, is_final=True).code, name
        return
    for shared in (
        compiling._large_matmul,
        compiling._dot,
        compiling._gemv_rows,
        compiling._gemv_columns,
    ):
        monkeypatch.setattr(compiling, shared.__name__, shared.__wrapped__)
    monkeypatch.setattr(compiling, "host", lambda: machine)
    check_matmul(7, 19, 10, np.float64)
    check_matmul(50, 61, 33, np.float32)
    for dtype in (np.float64, np.float32, np.int64):
        check_matmul(101, 87, 300, dtype)
        for n in (3, 77, 500):
            a, b = whole_numbers((2, n), dtype)
            assert dot(n, dtype)(a, b) == exact(a, b)
            matrix = whole_numbers((13, n), dtype)
            for view in (matrix, np.asfortranarray(matrix)):
                out = gemv(13, n, dtype)(view, b, np.empty(13, dtype))
                np.testing.assert_array_equal(out, exact(matrix, b))


def test_same_bits_from_wide_and_narrow_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    if not compiler.host().present >= LEVELS["x86-64-v4"]:
        pytest.skip("there is one width of registers here")
    a, b = np.random.default_rng(0).standard_normal((2, 40, 40))
    seen = []
    for cpu in ("x86-64-v3", "x86-64-v4"):
        monkeypatch.setattr(compiling, "host", lambda cpu=cpu: level(cpu))
        product = matmul(40, 40, 40, np.float64)(a, b, np.empty((40, 40)))
        seen.append((product.tobytes(), dot(40, np.float64)(a[0], b[0])))
    assert seen[0] == seen[1]


def test_text_for_aarch64() -> None:
    machine = machine_of("neoverse-n1", "", frozenset({"neon"}), "aarch64")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    try:
        target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
    except RuntimeError:
        pytest.skip("this LLVM has no code generator for it")
    for name, text in texts(machine).items():
        module = llvm.parse_assembly(text)
        module.verify()
        made = target.create_target_machine(cpu=machine.cpu, opt=3).emit_assembly(module)
        assert f"{name}:" in made
        assert "fmla" in made


def test_machines() -> None:
    assert machine_of("a", "", frozenset(), "riscv64") == Machine("a", "", 16, 16, False)
    assert machine_of("a", "", frozenset(), "arm64") == Machine("a", "", 16, 32, True)
    assert level("x86-64-v2") == Machine("x86-64-v2", "", 16, 16, False)
    assert level("x86-64-v3") == Machine("x86-64-v3", "", 32, 16, True)
    assert level("x86-64-v4") == Machine("x86-64-v4", "", 64, 32, True)
    assert second_level_cache_bytes() >= 64 * 1024
