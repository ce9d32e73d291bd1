"""Code in explicit vectors: the same bits as any other code, and no access for idle lanes."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from test_operations import (
    EXACT_CASES,
    MATH_CASES,
    assert_same_bits,
    evaluate,
    operands_of,
    operation_unit,
    special_values,
)
from unit_builder import UnitBuilder, drag

import turnout as tn
import turnout.math as tm
import turnout_cpu
from turnout import NDArray, Param, bool_, f32, f64, i16, i64, u8
from turnout.plugin import OPERATIONS, Options, Target, ir
from turnout_cpu import emit, vector_choice

LANES = [4, 8, 16, 32]
LENGTHS = [*range(36), 63, 64, 65, 100]


@pytest.fixture
def in_lanes(device: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Compile a unit in so many explicit lanes, be it worthwhile or not, and load it."""

    def in_lanes(unit: ir.Unit, lanes: int, target: Target = device.target) -> Any:
        assert vector_choice.can_run_in_lanes(unit, Options())
        with monkeypatch.context() as patch:
            patch.setattr(emit, "explicit_lanes", lambda *_: lanes)
            binary = turnout_cpu.turnout_compile(unit, target, Options(keep_text=True))
        assert binary.metadata["loop:space"].endswith("(explicit vectors)")
        return turnout_cpu.turnout_launch(binary, unit)

    return in_lanes


@pytest.fixture
def usual(load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Compile a unit without explicit vectors and load it."""

    def usual(unit: ir.Unit) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(emit, "explicit_lanes", lambda *_: None)
            return load(unit)

    return usual


def unit_of(kernel: tn.Kernel) -> ir.Unit:
    (unit,) = kernel.lower(kernel.default_types()).plan.units
    return unit


# ---- operations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "dtype", "lanes"),
    [(*case, LANES[number % len(LANES)]) for number, case in enumerate(EXACT_CASES)],
    ids=str,
)
def test_exact_operations_agree_with_numpy(in_lanes, name, dtype, lanes):
    operands = operands_of(name, dtype, OPERATIONS[name].arity)
    expected = evaluate(name, operands)
    out = np.zeros_like(expected)
    in_lanes(operation_unit(name, dtype), lanes)((*operands, out), out.size)
    assert_same_bits(out, expected, operands)


@pytest.mark.parametrize(("name", "dtype"), MATH_CASES, ids=str)
def test_math_functions_give_the_bits_of_other_code(usual, in_lanes, name, dtype):
    unit = operation_unit(name, dtype)
    operands = operands_of(name, dtype, OPERATIONS[name].arity)
    expected = np.zeros_like(operands[0])
    usual(unit)((*operands, expected), expected.size)
    for lanes in LANES:
        out = np.zeros_like(expected)
        in_lanes(unit, lanes)((*operands, out), out.size)
        assert_same_bits(out, expected, operands)


def guarded_math(name: str, dtype: ir.DType) -> ir.Unit:
    """A math function for positive arguments only."""
    b = UnitBuilder(f"guarded_{name}")
    b.array("x", dtype)
    b.array("out", dtype, written=True)
    (i,) = b.space("x")
    x = b.load("x", dtype, i)
    value = b.if_(b.compute("greater", x, 0.0), lambda: b.compute(name, x), lambda: x)
    b.store("out", value, i)
    return b.unit()


@pytest.mark.parametrize("dtype", [ir.f32, ir.f64], ids=str)
@pytest.mark.parametrize("isa", ["b", "d", "e", None])
def test_math_of_every_library_width_under_a_mask(usual, in_lanes, device, monkeypatch, dtype, isa):
    """Where there is no routine, only the lanes that count call the scalar function."""
    if isa is not None and not turnout_cpu.vector_math.vector_function("log", str(dtype), isa):
        pytest.skip("no such library here")
    monkeypatch.setattr(turnout_cpu, "_vectors", lambda _: turnout_cpu.body.Vectors(isa, 512))
    unit = guarded_math("log", dtype)
    x = np.array([*special_values(dtype), *np.linspace(-2, 3, 40)], dtype.dtype)
    expected = np.zeros_like(x)
    usual(unit)((x, expected), x.size)
    assert (expected[x == 1] == 0).all()
    for lanes in LANES:
        out = np.zeros_like(x)
        in_lanes(unit, lanes)((x, out), x.size)
        assert_same_bits(out, expected, [x])


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("source", ir.ALL_DTYPES, ids=str)
def test_casts_agree_with_other_code(usual, in_lanes, source, lanes):
    b = UnitBuilder(f"casts_{source}")
    b.array("x", source)
    (i,) = b.space("x")
    x = b.load("x", source, i)
    for target in ir.ALL_DTYPES:
        b.array(f"to_{target}", target, written=True)
        b.store(f"to_{target}", b.cast(target, x), i)
    unit = b.unit()
    values = np.array(special_values(source) * 3, source.dtype)
    results = []
    for run in (usual(unit), in_lanes(unit, lanes)):
        outs = [np.zeros(values.size, target.dtype) for target in ir.ALL_DTYPES]
        run((values, *outs), values.size)
        results.append(outs)
    for expected, actual in zip(*results, strict=True):
        assert_same_bits(actual, expected, [values])


# ---- control flow --------------------------------------------------------------------------------


@tn.kernel
def branches(x: NDArray[f64, 1], k: NDArray[i64, 1], out: NDArray[f64, 1], mode: Param[i64]):
    for i in range(x.shape[0]):
        v = x[i]
        if k[i] > 2:
            if v > 0:
                v = tm.log(v) + k[i]
            elif mode == 1:
                v = tm.exp(v)
        elif k[i] == 1 and v < 0:
            out[i] = -1.0
            v = 3.0
        if mode == 2:
            v = -v
        if v != 3.0:
            out[i] = v


@tn.kernel
def rounds(x: NDArray[f64, 1], out: NDArray[f64, 1], count: NDArray[i64, 1], limit: Param[i64]):
    for i in range(x.shape[0]):
        v = x[i]
        n = 0
        product = 1
        while v > 1.0 and n < limit:
            v = v * 0.75 - 0.125
            n += 1
            product = product * 3 + n
        out[i] = v
        count[i] = n * 1000003 + product


@tn.kernel
def ranges(
    start: NDArray[i64, 1],
    stop: NDArray[i64, 1],
    step: NDArray[i64, 1],
    table: NDArray[f64, 1],
    out: NDArray[f64, 1],
    by: Param[i64],
):
    for i in range(start.shape[0]):
        s = 0.0
        for j in range(start[i], stop[i], step[i]):
            s = s * 0.5 + j
        for j in range(stop[i]):
            s += table[j % table.shape[0]] * j
        for j in range(0, stop[i], by):
            s = s * 1.5 - j
        for j in range(i, stop[i]):
            s += 3 * j
        for j in range(by):
            s += table[j] * start[i]
        out[i] = s


@tn.kernel
def private(x: NDArray[f64, 1], k: NDArray[i64, 1], out: NDArray[f64, 1], flags: NDArray[bool_, 1]):
    for i in range(x.shape[0]):
        values = tm.zeros((3, 2), f64)
        seen = tm.zeros(8, bool_)
        n = k[i]
        for j in range(3):
            values[j, 0] = x[i] * j
            if n > j:
                values[j, 1] = j + 1
        values[n % 3, n % 2] += 10.0
        seen[n % 8] = True
        seen[(n * 3) % 8] = x[i] > 0
        s = 0.0
        for j in range(3):
            s = s * 4.0 + values[j, 0] - values[j, 1]
        out[i] = s + values[(n + 1) % 3, 1]
        flags[i] = seen[(n + 1) % 8] or seen[0]


@tn.kernel
def planes(a: NDArray[f64, 2], b: NDArray[f64, 2], out: NDArray[f64, 2]):
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            s = 0.0
            for k in range(a.shape[1]):
                s += a[i, k] * b[k, j]
            if j > 0 and j < out.shape[1] - 1:
                s += b[0, j - 1] - b[0, j + 1]
            out[i, j] = s + a[i, j % a.shape[1]] + b[j % b.shape[0], 0]


def vectors(n: int) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    random = np.random.default_rng(n)
    return random, random.normal(scale=3, size=n), random.integers(-3, 9, n)


def branch_arguments(n: int) -> Iterator[tuple[Any, ...]]:
    _, x, k = vectors(n)
    for mode in range(3):
        yield x, k, np.full(n, 0.5), np.int64(mode)


def round_arguments(n: int) -> Iterator[tuple[Any, ...]]:
    _, x, _ = vectors(n)
    for limit in (0, 3, 100):
        yield np.exp(x), np.zeros(n), np.zeros(n, np.int64), np.int64(limit)


def range_arguments(n: int) -> Iterator[tuple[Any, ...]]:
    random, _, k = vectors(n)
    start, step = random.integers(-20, 20, n), random.integers(-4, 5, n)
    for by in (1, 2, -1, 0, 5):
        yield start, k, step, np.linspace(1, 2, 7), np.zeros(n), np.int64(by)


def private_arguments(n: int) -> Iterator[tuple[Any, ...]]:
    _, x, k = vectors(n)
    yield x, np.abs(k), np.zeros(n), np.zeros(n, np.bool_)


def plane_arguments(n: int) -> Iterator[tuple[Any, ...]]:
    random = np.random.default_rng(n)
    yield random.normal(size=(3, 4)), random.normal(size=(4, n)), np.zeros((3, n))


CONTROL_FLOW = {
    "branches": (branches, branch_arguments),
    "rounds": (rounds, round_arguments),
    "ranges": (ranges, range_arguments),
    "private": (private, private_arguments),
    "planes": (planes, plane_arguments),
}


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("name", CONTROL_FLOW)
def test_control_flow_gives_the_bits_of_other_code(usual, in_lanes, name, lanes):
    kernel, arguments = CONTROL_FLOW[name]
    unit = unit_of(kernel)
    expected_code, code = usual(unit), in_lanes(unit, lanes)
    for n in LENGTHS:
        for given in arguments(n):
            results = []
            for run in (expected_code, code):
                used = [np.array(each) if np.ndim(each) else each for each in given]
                run(tuple(used), 3 * n if name == "planes" else n)
                results.append(used)
            for expected, actual in zip(*results, strict=True):
                np.testing.assert_array_equal(actual, expected, f"{n} positions")


def test_lanes_that_are_done_keep_what_all_counted_together(in_lanes):
    """The number of rounds is the same in the lanes that run, and differs at the end."""
    x = np.arange(1.0, 40.0)
    out, count = np.zeros(39), np.zeros(39, np.int64)
    in_lanes(unit_of(rounds), 16)((x, out, count, np.int64(100)), 39)
    for value, left, found in zip(x, out, count, strict=True):
        n = 0
        product = 1
        while value > 1.0:
            value = value * 0.75 - 0.125
            n += 1
            product = product * 3 + n
        assert left == value
        assert found == np.int64(np.uint64((n * 1000003 + product) % 2**64))


@pytest.mark.parametrize("dtype", [ir.u8, ir.i8, ir.i64, ir.u64], ids=str)
@pytest.mark.parametrize("arms", [1, 2, 5, 300])
def test_switch_clamps_its_selector(usual, in_lanes, dtype, arms):
    b = UnitBuilder("switch")
    b.array("k", dtype)
    b.array("out", ir.i64, written=True)
    (i,) = b.space("k")
    k = b.load("k", dtype, i)

    def arm(number: int) -> Callable[[], ir.Value]:
        return lambda: b.compute("add", b.cast(ir.i64, k), 1000 * number)

    b.store("out", b.switch(k, *map(arm, range(arms))), i)
    unit = b.unit()
    values = np.array(special_values(dtype) * 3, dtype.dtype)
    expected, out = (np.zeros(values.size, np.int64) for _ in range(2))
    usual(unit)((values, expected), values.size)
    in_lanes(unit, 16)((values, out), values.size)
    np.testing.assert_array_equal(out, expected)


def test_parts_of_a_launch_give_the_bits_of_the_whole(in_lanes):
    unit = unit_of(planes)
    (given,) = plane_arguments(37)
    code = in_lanes(unit, 8)
    code(given, 111)
    for begin, middle, end in ((0, 1, 111), (0, 37, 111), (0, 50, 111), (0, 110, 111)):
        out = np.zeros((3, 37))
        slots = code._pack(*given[:2], out)
        for first, last in ((begin, middle), (middle, end)):
            code._releasing(slots, first, last)
        np.testing.assert_array_equal(out, given[2])


# ---- memory --------------------------------------------------------------------------------------


@tn.kernel
def edges(
    x: NDArray[f64, 1],
    at: NDArray[i64, 1],
    table: NDArray[f32, 1],
    small: NDArray[i16, 1],
    bytes_in: NDArray[u8, 1],
    none: NDArray[f64, 1],
    out: NDArray[f64, 1],
    bytes_out: NDArray[bool_, 1],
):
    for i in tn.parallel(range(out.shape[0])):
        s = 0.0
        if x[i] > 0:  # else the index is wild
            s = tm.sqrt(x[i]) + table[at[i]] + small[at[i]]
            bytes_out[at[i]] = bytes_in[at[i]] > 100
        if x[i] > 1e300:
            s = none[0]  # nobody comes here, and there is no memory
        if i > 0 and i < out.shape[0] - 1:
            s += x[i - 1] + x[i + 1]
        k = i
        while k < x.shape[0] and x[k] < 2.0:
            s += x[k]
            k += 1
        out[i] = s


class Walls:
    """Arrays that end, or begin, where memory does."""

    def __init__(self) -> None:
        self.page = mmap.PAGESIZE
        self.maps: list[mmap.mmap] = []
        self.protect = ctypes.CDLL(None, use_errno=True).mprotect

    def array(self, values: np.ndarray, *, at_end: bool) -> np.ndarray:
        pages = -(-values.nbytes // self.page) + 2
        memory = mmap.mmap(-1, pages * self.page)
        self.maps.append(memory)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for first in (address, address + (pages - 1) * self.page):
            assert self.protect(ctypes.c_void_p(first), ctypes.c_size_t(self.page), 0) == 0
        room = (pages - 2) * self.page - values.nbytes
        offset = self.page + (room if at_end else 0)
        array = np.frombuffer(memory, values.dtype, values.size, offset)
        array[:] = values
        return array


def run_beside_walls(code: Any, expected_code: Any) -> None:
    """Compare two launchers of `edges`; an access beyond an array ends the process."""
    for n in (1, 2, 7, 8, 9, 16, 17, 31, 33, 70):
        random = np.random.default_rng(n)
        x = random.normal(scale=2, size=n)
        at = np.where(x > 0, np.arange(n), random.choice([2**40, -(2**40), 2**61], n))
        values = [
            x, at, random.normal(size=n).astype(np.float32), np.arange(n, dtype=np.int16),
            random.integers(0, 256, n).astype(np.uint8), np.zeros(0), np.zeros(n),
            np.zeros(n, np.bool_),
        ]  # fmt: skip
        usual_values = [value.copy() for value in values]
        expected_code(tuple(usual_values), n)
        for at_end in (True, False):
            walls = Walls()
            used = [walls.array(value, at_end=at_end) for value in values]
            code(tuple(used), n)
            for actual, expected in zip(used, usual_values, strict=True):
                np.testing.assert_array_equal(actual, expected)


def check_edges() -> None:
    """What the subprocess of the test below runs."""
    unit = unit_of(edges)
    target = turnout_cpu.turnout_devices()[0].target

    def load(lanes: int | None) -> Any:
        emit.explicit_lanes = lambda *_: lanes
        binary = turnout_cpu.turnout_compile(unit, target, Options())
        return turnout_cpu.turnout_launch(binary, unit)

    expected = load(None)
    for lanes in LANES:
        run_beside_walls(load(lanes), expected)
    print("no access beyond")


@pytest.mark.skipif(sys.platform != "linux", reason="protects memory as Linux does")
def test_idle_lanes_access_no_memory():
    done = subprocess.run(
        [sys.executable, "-c", "import test_vector_body as t; t.check_edges()"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "no access beyond\n"


# ---- when ----------------------------------------------------------------------------------------


@tn.kernel
def straight(x: NDArray[f64, 1], out: NDArray[f64, 1]):
    for i in range(x.shape[0]):
        out[i] = tm.exp(x[i]) if x[i] != 0 else 1.0


@tn.kernel
def row_sums(a: NDArray[f64, 2], out: NDArray[f64, 1]):
    for i in range(out.shape[0]):
        s = 0.0
        for j in range(a.shape[1]):
            s += a[i, j]
        out[i] = s


@tn.kernel
def column_sums(a: NDArray[f64, 2], out: NDArray[f64, 1]):
    for i in range(out.shape[0]):
        s = 0.0
        for j in range(a.shape[0]):
            s += a[j, i]
        out[i] = s


@tn.kernel
def first_in_column(a: NDArray[f64, 2], out: NDArray[i64, 1]):
    for i in range(out.shape[0]):
        for j in range(a.shape[0]):
            if a[j, i] > 0:
                out[i] = j
                break


@tn.kernel
def short_loop(x: NDArray[f64, 1], out: NDArray[f64, 1]):
    for i in range(x.shape[0]):
        s = 0.0
        for k in range(4):
            s = s * x[i] + k
        out[i] = s


@tn.kernel
def three_wide(a: NDArray[f64, 2]):
    for i in range(a.shape[0]):
        for j in range(3):
            while a[i, j] > 1.0:
                a[i, j] = a[i, j] * 0.5


@tn.kernel
def single(x: NDArray[f32, 1], out: NDArray[f32, 1]):
    for i in range(x.shape[0]):
        v = x[i]
        while v > f32(1.0):
            v = v * f32(0.5)
        out[i] = v


@pytest.mark.parametrize(
    ("kernel", "registers"),
    [
        (branches, 2),
        (rounds, 2),
        (private, 2),
        (planes, 2),
        (column_sums, 2),
        (single, 2),
        (row_sums, 0),
        (first_in_column, 0),
        (short_loop, 0),
        (three_wide, 0),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_units_for_which_explicit_vectors_are_chosen(kernel, registers):
    vectors = turnout_cpu.body.Vectors("e", 512)
    bits = 32 if kernel is single else 64
    lanes = vector_choice.explicit_lanes(unit_of(kernel), vectors, Options())
    assert lanes == (registers * 512 // bits or None)


def test_units_that_cannot_run_in_lanes():
    vectors = turnout_cpu.body.Vectors("e", 512)
    unit = unit_of(rounds)
    assert vector_choice.explicit_lanes(unit, vectors, Options(debug=True)) is None
    assert vector_choice.explicit_lanes(unit, vectors, Options(level=1)) is None
    b = UnitBuilder("updates")
    b.array("x", ir.i64)
    b.array("out", ir.i64, written=True)
    (i,) = b.space("x")
    b.store("out", i, b.load("x", ir.i64, i), combine="add")
    assert not vector_choice.can_run_in_lanes(b.unit(), Options())
    b = UnitBuilder("once")
    b.array("out", ir.i64, written=True)
    b.store("out", b.constant(ir.i64, 1), 0)
    assert not vector_choice.can_run_in_lanes(b.unit(), Options())


def test_local_arrays_of_all_lanes_must_fit_the_stack():
    def unit(elements: int) -> ir.Unit:
        b = UnitBuilder("lookup")
        b.array("x", ir.i64)
        (i,) = b.space("x")
        b.local("table", ir.i64, elements)
        x = b.load("x", ir.i64, i)
        b.store("table", i, x)
        b.array("out", ir.i64, written=True)
        b.store("out", b.load("table", ir.i64, x), i)
        return b.unit()

    vectors = turnout_cpu.body.Vectors("e", 512)
    limit = vector_choice.LANES_STACK_BYTES // (16 * 8)
    assert vector_choice.explicit_lanes(unit(limit), vectors, Options()) == 16
    assert vector_choice.explicit_lanes(unit(limit + 1), vectors, Options()) is None


def test_narrow_vectors_have_fewer_lanes():
    unit = unit_of(rounds)
    for bits in (128, 256, 512):
        vectors = turnout_cpu.body.Vectors(None, bits)
        assert vector_choice.explicit_lanes(unit, vectors, Options()) == bits // 32


def test_report_tells_which_loops_run_in_explicit_vectors(device):
    lanes = 2 * device.target.lanes
    unit = unit_of(rounds)
    found = turnout_cpu.turnout_compile(unit, device.target, Options(keep_text=True)).metadata
    (loop,) = (s for s in ir.statements(unit.body.body) if isinstance(s, ir.While))
    words = f"vectorised, {lanes} lanes (explicit vectors)"
    assert found["loop:space"] == found[f"loop:{loop.line}"] == words


def test_equal_units_give_equal_text(device):
    first, second = (
        turnout_cpu.turnout_compile(drag(), device.target, Options(keep_text=True)).metadata
        for _ in range(2)
    )
    assert "turnout.lanes" in first["text:llvm-ir"]
    assert first["text:llvm-ir"] == second["text:llvm-ir"]
