"""Launches in several threads: the same bits, every thread at work, nothing left behind.

Small arrays are not worth a second thread, so the tests lower what `turnout_cpu.pace` and
`turnout_cpu.threads` compare with (`GRAIN_NS`, `RELIABLE_NS`, `CHUNK_MULTIPLE`). `Meeting` puts
itself between the pool and the native code: every thread waits in its first chunk until all that
are wanted have come.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from concurrency_support import WAIT_S, in_fork
from unit_builder import UnitBuilder, drag

import turnout as tn
import turnout.math as tm
from turnout import Mutable, NDArray, Param, Scalar, Vector, f32, f64, i64
from turnout.plugin import IndexViolation, ir
from turnout_cpu import pace, threads

COUNTS = (2, 3, 8)

Entry = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
ignores_fork_warning = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def address(entry: Any) -> int:
    found = ctypes.cast(entry, ctypes.c_void_p).value
    assert found is not None
    return found


class Meeting:
    """Runs jobs so that as many threads take part as are wanted, and notes what each ran."""

    def __init__(self) -> None:
        self.jobs: list[list[tuple[int, int, int]]] = []
        self._run = threads.Pool.run

    def run(self, pool: threads.Pool, entry: int, slots: bytes, positions: int, wanted: int) -> int:
        native = Entry(entry)
        met: set[int] = set()
        job: list[tuple[int, int, int]] = []
        barrier = threading.Barrier(min(wanted, positions))

        def chunk(at: int, begin: int, end: int) -> int:
            thread = threading.get_ident()
            if thread not in met:
                met.add(thread)
                barrier.wait(WAIT_S)
            job.append((thread, begin, end))
            return int(native(at, begin, end))

        between = Entry(chunk)
        taken = self._run(pool, address(between), slots, positions, wanted)
        self.jobs.append(job)
        return taken


@pytest.fixture(autouse=True)
def default_count() -> Iterator[None]:
    yield
    tn.set_num_threads(None)


@pytest.fixture
def splits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every launch but the first is worth any number of threads, chunks are small."""
    monkeypatch.setattr(pace, "GRAIN_NS", 1)
    monkeypatch.setattr(pace, "RELIABLE_NS", 0)
    monkeypatch.setattr(threads, "CHUNK_MULTIPLE", 1)


@pytest.fixture
def meeting(splits: None, monkeypatch: pytest.MonkeyPatch) -> Meeting:
    meeting = Meeting()
    monkeypatch.setattr(threads.Pool, "run", lambda pool, *arguments: meeting.run(pool, *arguments))
    return meeting


def copies(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each.copy("K") if isinstance(each, np.ndarray) else each for each in arguments)


def outputs(call: Callable[..., Any], arguments: tuple[Any, ...], count: int) -> list[bytes]:
    """All arrays after a call in `count` threads; the first call only measures."""
    tn.set_num_threads(count)
    for _ in range(2):
        own = copies(arguments)
        returned = call(*own)
    arrays = [each for each in own if isinstance(each, np.ndarray)]
    arrays += [] if returned is None else [returned]
    return [np.ascontiguousarray(each).tobytes() for each in arrays]


def assert_same_in_any_number(
    call: Callable[..., Any], arguments: tuple[Any, ...], meeting: Meeting
) -> None:
    alone = outputs(call, arguments, 1)
    assert not meeting.jobs
    for count in COUNTS:
        assert outputs(call, arguments, count) == alone
        last = meeting.jobs[-1]
        assert len({thread for thread, _, _ in last}) == count
        ranges = sorted((begin, end) for _, begin, end in last)
        assert ranges[0][0] == 0
        assert all(first[1] == second[0] for first, second in itertools.pairwise(ranges))


# ---- the same bits -----------------------------------------------------------------------------


@tn.kernel
def functions(x: Scalar, y: Scalar, direction: Vector[3], out: Mutable[Scalar]) -> Scalar:
    if x > 0:
        out = tm.exp(-x * x) + tm.pow(abs(y), x)
    else:
        out = tm.sin(y) * tm.norm(direction)
    return tm.atan2(y, x) + direction[1]


@tn.kernel
def columns(a: NDArray[f64, 2], out: NDArray[f64, 2]) -> None:
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = tm.log1p(abs(a[i, j])) * (i - j)


@tn.kernel
def boxes(a: NDArray[f32, 3], out: NDArray[f32, 3]) -> None:
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            for k in range(out.shape[2]):
                out[i, j, k] = tm.cbrt(a[i, j, k]) + f32(i * 100 + j * 10 + k)


@tn.kernel
def triples(a: NDArray[f64, 2], out: NDArray[f64, 2]) -> None:
    for i in range(out.shape[0]):
        for j in range(3):
            out[i, j] = tm.exp(a[i, j]) - j


@tn.kernel
def rounds(a: NDArray[i64, 1], out: NDArray[i64, 1]) -> None:
    for i in range(out.shape[0]):
        value = a[i]
        count = 0
        while value > 1:
            value = value // 2 if value % 2 == 0 else 3 * value + 1
            count += 1
        out[i] = count


@tn.kernel
def totals(a: NDArray[f64, 1], out: NDArray[f64, 1]) -> None:
    total, product = 0.0, 1.0
    for i in range(a.shape[0]):
        total += a[i]
        if a[i] > 0:
            product *= 1 + a[i] / 64
    out[0], out[1] = total, product


@pytest.fixture(scope="module")
def random() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_samples(meeting: Meeting, random: np.random.Generator, dtype: Any) -> None:
    x, y = random.normal(size=(2, 1003)).astype(dtype)
    x[::97] = np.nan
    y[::89] = np.inf
    direction = random.normal(size=(3, 1003)).astype(dtype)
    assert_same_in_any_number(functions, (x, y, direction, np.zeros_like(x)), meeting)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a,
        lambda a: a.T,
        lambda a: a[::-1, ::-2],
        lambda a: a[3:, 5:],
        lambda a: a[:, :1],
        lambda a: a[:1],
    ],
)
def test_two_axes(meeting: Meeting, random: np.random.Generator, view: Any) -> None:
    a = view(random.normal(size=(31, 47)))
    assert_same_in_any_number(columns, (a, np.zeros(a.shape)), meeting)
    room = np.zeros((2 * a.shape[0], 3 * a.shape[1]))
    strided = room[::2, ::3]
    expected = room.copy()
    columns(a, expected[::2, ::3])
    columns(a, strided)
    assert room.tobytes() == expected.tobytes()


def test_three_axes(meeting: Meeting, random: np.random.Generator) -> None:
    a = random.normal(size=(5, 7, 11)).astype(np.float32)
    assert_same_in_any_number(boxes, (a, np.zeros_like(a)), meeting)
    meeting.jobs.clear()
    assert_same_in_any_number(boxes, (a[:, ::-1].T, np.zeros_like(a.T)), meeting)


def test_an_axis_that_is_not_split(meeting: Meeting, random: np.random.Generator) -> None:
    a = random.normal(size=(217, 3))
    assert_same_in_any_number(triples, (a, np.zeros_like(a)), meeting)
    assert max(end for _, _, end in meeting.jobs[-1]) < 217 * 3


def test_work_that_varies(meeting: Meeting) -> None:
    a = np.arange(1, 501)
    assert_same_in_any_number(rounds, (a, np.zeros_like(a)), meeting)


def test_reductions_have_one_order(meeting: Meeting, random: np.random.Generator) -> None:
    arguments = random.standard_normal(50_000), np.zeros(2)
    alone = outputs(totals, arguments, 1)
    for count in COUNTS:
        meeting.jobs.clear()
        assert outputs(totals, arguments, count) == alone
        # The first job is that of the blocks; what joins them has fewer positions.
        assert len({thread for thread, _, _ in meeting.jobs[0]}) == count


@pytest.mark.parametrize("form", ["switch", "select"])
def test_a_hand_written_unit(
    meeting: Meeting, load: Any, random: np.random.Generator, form: str
) -> None:
    launcher = load(drag(ir.f64, form))
    v, regime = random.normal(size=2003), random.integers(-1, 4, 2003)
    arguments = (0.1, regime, v, np.zeros_like(v))
    assert_same_in_any_number(lambda *args: launcher(args, 2003), arguments, meeting)


# ---- atomic updates ----------------------------------------------------------------------------


def update(load: Any, combine: str, dtype: ir.DType) -> Any:
    """``out[bins[i]] = combine(out[bins[i]], x[i])``, atomically."""
    b = UnitBuilder(f"{combine}_{dtype}")
    b.array("bins", ir.i64)
    b.array("x", dtype)
    b.array("out", dtype, written=True)
    (i,) = b.space("bins")
    b.store("out", b.load("x", dtype, i), b.load("bins", ir.i64, i), combine=combine)
    return load(b.unit())


UFUNCS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
}
INTEGERS = [dtype for dtype in ir.ALL_DTYPES if dtype.is_integer]
BITS = ("bit_and", "bit_or", "bit_xor")
ORDERLESS = ("add", "subtract", "multiply", "minimum", "maximum")
CASES = [
    *itertools.product((*ORDERLESS, *BITS), INTEGERS),
    *itertools.product(ORDERLESS, (ir.f32, ir.f64)),
    *itertools.product(BITS, [ir.bool_]),
]


@pytest.mark.parametrize(("combine", "dtype"), CASES, ids=str)
def test_updates_are_exact(
    meeting: Meeting, load: Any, random: np.random.Generator, combine: str, dtype: ir.DType
) -> None:
    launcher = update(load, combine, dtype)
    n, places = 200_001, 5  # so many that threads meet
    bins = random.integers(0, places, n)
    # Floats of few bits, so that no order of the updates rounds.
    x = random.integers(-3, 4, n) if dtype.is_float else random.integers(0, 256, n)
    if dtype.is_float and combine == "multiply":
        x = random.choice([-1, 1], n)
    x, start = x.astype(dtype), np.full(places, 77, dtype)
    expected = start.copy()
    UFUNCS[combine].at(expected, bins, x)

    tn.set_num_threads(4)
    for _ in range(4):
        out = start.copy()
        launcher((bins, x, out), n)
        assert out.tobytes() == expected.tobytes()
    assert any(len({thread for thread, _, _ in job}) == 4 for job in meeting.jobs)


@pytest.mark.parametrize("dtype", [ir.i64, ir.f32, ir.bool_], ids=str)
def test_updates_of_elements_apart(meeting: Meeting, load: Any, dtype: ir.DType) -> None:
    combine = "bit_xor" if dtype.is_bool else "add"
    launcher = update(load, combine, dtype)
    bins, x = np.arange(4001) % 3, np.ones(4001, dtype)
    tn.set_num_threads(2)
    for _ in range(4):
        room = np.zeros(9, dtype)
        launcher((bins, x, room[::-3]), 4001)
        expected = [1333, 1334, 1334]  # of 4001; of bools the parity
        assert room[2::3].tolist() == [v % 2 if dtype.is_bool else v for v in expected]
        assert not room[[0, 1, 3, 4, 6, 7]].any()
    assert meeting.jobs


def test_misaligned_updates_run_in_one_thread(meeting: Meeting, load: Any) -> None:
    launcher = update(load, "add", ir.f64)
    bins, x = np.arange(999) % 4, np.ones(999)
    raw = np.zeros(8 * 4 + 1, np.uint8)
    packed = np.zeros(4, np.dtype([("tag", "i1"), ("value", "f8")]))
    tn.set_num_threads(2)
    for out in (raw[1:].view(np.float64), packed["value"]):
        assert not out.flags.aligned
        for _ in range(6):
            out[:] = 0
            launcher((bins, x, out), 999)
            assert out.tolist() == [250, 250, 250, 249]
    assert not meeting.jobs


def test_one_thread_updates_in_order(load: Any, random: np.random.Generator) -> None:
    """Then even the rounding of float sums is that of Python's order."""
    launcher = update(load, "add", ir.f64)
    bins, x = np.zeros(5001, np.int64), random.normal(size=5001)
    expected = 0.0
    for value in x.tolist():
        expected += value
    tn.set_num_threads(1)
    out = np.zeros(1)
    launcher((bins, x, out), 5001)
    assert out[0] == expected


def test_both_ways_of_updating_are_tried(splits: None) -> None:
    tn.set_num_threads(2)
    tried = pace.UpdatingPace(varies=False)
    assert tried.threads(1000) == 1
    tried.learn(1000, 1_000_000, 1)
    chosen = []
    for _ in range(40):
        count = tried.threads(1000)
        chosen.append(count)
        tried.learn(1000, 1_000_000 if count == 1 else 5_000_000, count)
    # Together is five times slower; it is tried at launch 3, then at powers of two.
    assert [n for n, count in enumerate(chosen, 1) if count == 2] == [3, 4, 8, 16, 32]


# ---- how many threads a launch gets ------------------------------------------------------------


def test_cost_is_measured_and_decides() -> None:
    tn.set_num_threads(4)
    measured = pace.Pace(varies=False)
    assert measured.threshold.value == 0
    assert measured.threads(100) == 1
    measured.learn(100, 1_000, 1)
    # At most 10 ns per element: too short a launch to know it, so the next one is measured too.
    assert measured.threshold.value == 2 * pace.GRAIN_NS // 10
    assert measured.threads(10**9) == 1
    measured.learn(10_000, 20_000, 1)
    assert measured.threshold.value == 2 * pace.GRAIN_NS // 2
    assert measured.threads(pace.GRAIN_NS) == 2
    assert measured.threads(2 * pace.GRAIN_NS) == 4
    assert measured.threads(10**9) == 4
    measured.learn(10_000, 900_000, 1)
    assert measured.threads(pace.GRAIN_NS) == 2  # a disturbed measurement changes nothing
    measured.learn(100_000, 25_000, 4)
    assert measured.threshold.value == 2 * pace.GRAIN_NS


def test_where_rounds_vary_the_recent_launches_count() -> None:
    tn.set_num_threads(2)
    measured = pace.Pace(varies=True)
    measured.learn(100, 100_000, 1)
    assert measured.threshold.value == 60
    assert measured.slow_ns.value == 2 * pace.GRAIN_NS
    measured.learn(100, 300_000, 1)
    assert measured.threshold.value == 30
    measured.learn(100, 100_000, 2)
    assert measured.threshold.value == 30


def test_one_thread_measures_nothing(load: Any) -> None:
    tn.set_num_threads(1)
    launcher = load(drag())
    arguments = (0.1, np.zeros(9, np.int64), np.ones(9), np.zeros(9))
    launcher(arguments, 9)
    assert launcher.threshold.value == launcher.slow_ns.value == 2**63 - 1
    tn.set_num_threads(2)
    assert launcher.threshold.value == 0
    launcher(arguments, 9)
    assert 0 < launcher.threshold.value < 2**63 - 1
    tn.set_num_threads(1)
    launcher(arguments, 9)
    assert launcher.threshold.value == 2**63 - 1


def test_a_launch_that_is_slower_than_expected_is_measured_next(load: Any) -> None:
    b = UnitBuilder("repeated")
    b.array("x", ir.f64, written=True)
    count = b.scalar("count", ir.i64)
    (i,) = b.space("x")
    start = b.load("x", ir.f64, i)
    b.store("x", b.for_((0, count, 1), [start], lambda _, v: b.compute("add", v, 1.0)), i)
    launcher = load(b.unit())
    tn.set_num_threads(2)
    x = np.zeros(50)
    launcher((x, 1), 50)
    assert launcher.threshold.value > 50
    launcher((x, 200_000), 50)
    assert launcher.threshold.value == 49
    assert (x == 200_001).all()


def test_a_unit_without_space_runs_once(meeting: Meeting, load: Any) -> None:
    b = UnitBuilder("once")
    b.array("out", ir.i64, written=True)
    b.store("out", b.compute("add", b.load("out", ir.i64, 0), 1), 0)
    launcher, out = load(b.unit()), np.zeros(1, np.int64)
    tn.set_num_threads(8)
    for _ in range(3):
        launcher((out,), 1)
    assert out[0] == 3
    assert not meeting.jobs
    assert launcher.threshold.value == 2**63 - 1


@pytest.mark.parametrize("positions", [1, 2, 7, 64, 1000, 1024, 1025, 99_999, 10**7, 2**62])
@pytest.mark.parametrize("count", [2, 3, 64])
def test_chunks(positions: int, count: int) -> None:
    chunk = threads._chunk(positions, count)
    assert chunk >= 1
    assert chunk <= 64 or chunk % 64 == 0
    chunks = -(-positions // chunk)
    assert chunks <= count * threads.CHUNKS_PER_THREAD
    assert chunks >= min(positions, count * threads.CHUNKS_PER_THREAD // 2)


# ---- the pool ----------------------------------------------------------------------------------


class Gate:
    """An entry point whose threads wait inside until they are let go."""

    def __init__(self, parties: int) -> None:
        self.inside = threading.Barrier(parties)
        self.may_end = threading.Event()
        self.entry = Entry(self._chunk)
        self._seen: set[int] = set()

    def _chunk(self, at: int, begin: int, end: int) -> int:
        if threading.get_ident() not in self._seen:
            self._seen.add(threading.get_ident())
            self.inside.wait(WAIT_S)
            self.may_end.wait(WAIT_S)
        return 0


def ranges_of(pool: threads.Pool, count: int) -> list[tuple[int, int]]:
    """What the entry point gets from a job of 100 positions that is worth `count` threads."""
    given: list[tuple[int, int]] = []

    def chunk(at: int, begin: int, end: int) -> int:
        given.append((begin, end))
        return 0

    entry = Entry(chunk)
    assert pool.run(address(entry), b"", 100, count) == 1
    return given


def test_no_more_threads_run_than_are_allowed() -> None:
    """Callers that come while all are in use work alone, in their own thread."""
    tn.set_num_threads(2)
    pool, gate = threads.Pool(), Gate(3)
    with ThreadPoolExecutor(1) as user:
        first = user.submit(pool.run, address(gate.entry), b"", 100, 8)
        gate.inside.wait(WAIT_S)
        assert ranges_of(pool, 8) == [(0, threads.WHOLE)]
        gate.may_end.set()
        assert first.result(WAIT_S) == 2
    assert pool._in_use.value == 0


def test_a_late_helper_does_not_join() -> None:
    """A helper looks again whether there is room when it comes."""
    tn.set_num_threads(2)
    pool = threads.Pool()
    job = threads._Job(0, b"", 0, 1, 1, 1, 0, ctypes.addressof(pool._in_use), 2, -1)
    pool._in_use.value = 2
    pool._routines.join(ctypes.addressof(job))
    assert (job.helpers, job.open, pool._in_use.value) == (0, 1, 2)
    pool._in_use.value, job.open = 1, 0
    pool._routines.join(ctypes.addressof(job))
    assert (job.helpers, job.open, pool._in_use.value) == (0, 0, 1)


def test_a_job_that_nobody_opens_is_given_up() -> None:
    """As after an interrupt between announcing and beginning it."""
    tn.set_num_threads(2)
    pool, gate = threads.Pool(), Gate(2)
    shared = ctypes.addressof(pool._in_use)
    never = threads._Job(
        address(gate.entry), b"", 0, 9, 1, threads._ANNOUNCED, 0, shared, 2, threads._core()
    )
    pool._jobs.put(never)
    gate.may_end.set()
    assert pool.run(address(gate.entry), b"", 100, 2) == 2
    assert never.helpers == never.next == 0


def test_threads_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads._thread, "start_new_thread", refuse)
    tn.set_num_threads(4)
    assert ranges_of(threads.Pool(), 4) == [(0, threads.WHOLE)]


def test_a_job_keeps_no_array(meeting: Meeting, load: Any) -> None:
    launcher = load(drag())
    tn.set_num_threads(2)
    v = np.ones(500)
    dead = weakref.ref(v)
    for _ in range(2):
        launcher((0.1, np.zeros(500, np.int64), v, np.zeros(500)), 500)
    assert len(meeting.jobs) == 1
    del v
    gc.collect()
    assert dead() is None


def test_many_threads_at_once(splits: None, load: Any) -> None:
    launcher = load(drag())
    tn.set_num_threads(3)
    barrier = threading.Barrier(8)
    regime = np.arange(999) % 3

    def work(number: int) -> None:
        v, out = np.linspace(-2, number, 999), np.zeros(999)
        launcher((0.1, regime, v, out), 999)
        expected = out.copy()
        barrier.wait(WAIT_S)
        for _ in range(50):
            out[:] = 0
            launcher((0.1, regime, v, out), 999)
            assert out.tobytes() == expected.tobytes()

    with ThreadPoolExecutor(8) as users:
        for future in [users.submit(work, number) for number in range(8)]:
            future.result(WAIT_S)
    assert threads.pool()._in_use.value == 0


def test_the_setting_changes_during_launches(splits: None, load: Any) -> None:
    launcher = load(drag())
    v, regime = np.linspace(-2, 2, 999), np.arange(999) % 3
    expected = np.zeros(999)
    launcher((0.1, regime, v, expected), 999)
    is_over = threading.Event()

    def change() -> None:
        for count in itertools.cycle((1, 2, 5, None, 3)):
            tn.set_num_threads(count)
            if is_over.is_set():
                return

    def work() -> None:
        for _ in range(200):
            out = np.zeros(999)
            launcher((0.1, regime, v, out), 999)
            assert out.tobytes() == expected.tobytes()

    with ThreadPoolExecutor(3) as users:
        changing = users.submit(change)
        working = [users.submit(work) for _ in range(2)]
        try:
            for future in working:
                future.result(WAIT_S)
        finally:
            is_over.set()
        changing.result(WAIT_S)
    tn.set_num_threads(1)
    launcher((0.1, regime, v, np.zeros(999)), 999)
    assert launcher.threshold.value == 2**63 - 1


def test_launches_from_tasks(meeting: Meeting, load: Any) -> None:
    launcher = load(drag())
    tn.set_num_threads(2)
    v, out = np.linspace(-2, 2, 600), np.zeros((4, 600))
    regime = np.ones(600, np.int64)
    launcher((0.1, regime, v, out[0]), 600)

    async def work() -> None:
        for row in out:
            await asyncio.to_thread(launcher, (0.1, regime, v, row), 600)

    asyncio.run(work())
    assert (out == v + 0.1 * (-0.4 * v * abs(v))).all()
    assert len(meeting.jobs) == 4


def test_debug_reports_the_first_violation(splits: None, load: Any) -> None:
    b = UnitBuilder("gather")
    b.array("places", ir.i64)
    b.array("out", ir.i64, written=True)
    (i,) = b.space("places")
    b.store("out", i, b.load("places", ir.i64, i))
    launcher = load(b.unit(), debug=True)
    tn.set_num_threads(8)
    places, out = np.arange(5000), np.full(5000, -1)
    places[[1234, 1235, 4000]] = 5000, 6000, 7000
    for _ in range(3):
        with pytest.raises(IndexViolation) as caught:
            launcher((places, out), 5000)
        assert (caught.value.index, caught.value.extent) == (5000, 5000)
    assert (out[:1234] == np.arange(1234)).all()
    assert (out[1234:] == -1).all()


# ---- processes, signals, the end ---------------------------------------------------------------


@tn.kernel
def spin(x: NDArray[f64, 1], rounds: Param[i64]) -> None:
    for i in range(x.shape[0]):
        value = x[i]
        for _ in range(rounds):
            value = value * 0.5 + 1
        x[i] = value


@needs_fork
@ignores_fork_warning
def test_a_forked_child_has_its_own_helpers(meeting: Meeting, load: Any) -> None:
    launcher = load(drag())
    arguments = (0.1, np.arange(500) % 3, np.linspace(-2, 2, 500), np.zeros(500))
    expected = outputs(lambda *args: launcher(args, 500), arguments, 2)
    assert len(meeting.jobs) == 1

    def work() -> None:
        assert outputs(lambda *args: launcher(args, 500), arguments, 2) == expected
        assert len({thread for thread, _, _ in meeting.jobs[-1]}) == 2

    in_fork(work)


@needs_fork
@ignores_fork_warning
def test_a_fork_in_the_middle_of_a_launch(meeting: Meeting, load: Any) -> None:
    launcher = load(drag())
    arguments = (0.1, np.arange(500) % 3, np.linspace(-2, 2, 500), np.zeros(500))
    expected = outputs(lambda *args: launcher(args, 500), arguments, 2)
    gate, pool = Gate(3), threads.pool()

    def work() -> None:
        assert threads.pool()._in_use.value == 0
        assert outputs(lambda *args: launcher(args, 500), arguments, 2) == expected
        assert len({thread for thread, _, _ in meeting.jobs[-1]}) == 2

    with ThreadPoolExecutor(1) as user:
        running = user.submit(meeting._run, pool, address(gate.entry), b"", 100, 2)
        gate.inside.wait(WAIT_S)
        try:
            in_fork(work)
        finally:
            gate.may_end.set()
        assert running.result(WAIT_S) == 2


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="cannot signal a thread")
def test_an_interrupt_comes_after_the_launch() -> None:
    """Nothing is left running, and all of the work is done."""
    tn.set_num_threads(2)
    x = np.zeros(64)
    spin(x, 100_000, device="cpu")
    x[:] = 0
    pool = threads.pool()
    main, is_over = threading.get_ident(), threading.Event()

    def interrupt() -> None:
        while not is_over.is_set():
            if pool._in_use.value:
                signal.pthread_kill(main, signal.SIGINT)
                return

    other = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the interrupt may come after the launch
        other.start()
        try:
            spin(x, 2_000_000, device="cpu")
        finally:
            is_over.set()
        other.join()
    other.join()
    assert pool._in_use.value == 0
    assert (x == 2).all()


def run_program(text: str, **environment: str) -> str:
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=os.environ | {"PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


SPIN = """
import sys, threading
sys.path.insert(0, {folder!r})
import numpy as np
import turnout as tn
from test_threads import spin, threads

tn.set_num_threads(2)
x = np.zeros(64)
spin(x, 100_000, device="cpu")
assert not threads._pool, "a helper for a launch that is not known to be worth it"
spin(x, 100_000, device="cpu")
assert threads._pool
"""


def test_the_interpreter_ends_while_helpers_wait() -> None:
    program = SPIN.format(folder=os.path.dirname(__file__)) + "print('end')"
    assert run_program(program) == "end\n"


def test_the_interpreter_ends_while_a_launch_runs() -> None:
    endless = """
threading.Thread(target=spin, args=(x, 1 << 62), kwargs={"device": "cpu"}, daemon=True).start()
while threads.pool()._in_use.value < 2:
    pass
print("end")
"""
    assert run_program(SPIN.format(folder=os.path.dirname(__file__)) + endless) == "end\n"


def test_a_malformed_setting_is_reported_by_the_first_call() -> None:
    program = """
import numpy as np
import turnout as tn
from turnout_cpu import threads
from turnout.conformance.kernels import affine

x = np.ones(3)
try:
    affine(x, 2, np.zeros(3), device="cpu")
except tn.ConfigurationError as error:
    print(error)
"""
    assert "TURNOUT_NUM_THREADS='many' is not" in run_program(program, TURNOUT_NUM_THREADS="many")
