"""Where calls run and what moves there: a device backend with arrays and queues of its own."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import signal
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import turnout as tn
from turnout import (
    CallError,
    Index,
    Mutable,
    NDArray,
    Param,
    PerformanceWarning,
    Scalar,
    f32,
    f64,
)
from turnout.backends import clear, context_for, home, is_capturing, resolve
from turnout.copies import Snapshot, WorkingCopies, assign, copied, poison
from turnout.geometry import describe

pytestmark = pytest.mark.filterwarnings("ignore::turnout.PerformanceWarning")


@tn.kernel
def saxpy(a: Param, x: Scalar, y: Scalar, out: Mutable[Scalar]):
    out = a * x + y


@tn.kernel
def scaled(x: Scalar, factor: Param) -> Scalar:
    return x * factor


@tn.kernel
def double(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0]):
        b[i] = a[i] * 2


@tn.kernel
def running_sum(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
    total = 0.0
    for i in range(a.shape[0]):
        total += a[i]
        b[i] = total


@tn.kernel
def normalised(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
    total = 0.0
    for i in range(a.shape[0]):
        total += a[i]
    for i in range(a.shape[0]):
        b[i] = a[i] / total


def on(host: Any, device: str = "gpu") -> Any:
    return tn.array(np.asarray(host), device=device)


def values(array: Any) -> Any:
    return tn.to_numpy(array).tolist()


# -- arrays on a device run there ------------------------------------------------------------------


@pytest.mark.parametrize("device", ["gpu:0", "gpu:1"])
def test_arrays_run_where_they_are_and_nothing_moves(gpu: types.ModuleType, device: str) -> None:
    x, y, out = on([1.0, 2.0], device), on([3.0, 4.0], device), on([0.0, 0.0], device)
    del gpu.log[:]
    for _ in range(3):  # the Python path, then the one that is generated at the second call
        saxpy(2.0, x, y, out)
    assert gpu.log == [f"launch {device} 2"] * 3
    assert values(out) == [5, 8]
    assert isinstance(vars(type(saxpy))["__call__"], staticmethod)


def test_results_and_scratch_are_made_there(gpu: types.ModuleType) -> None:
    x = on([1.0, 3.0])
    for _ in range(3):
        del gpu.log[:]
        result = scaled(x, 2)
        assert type(result) is type(x)
        b = on([0.0, 0.0])
        normalised(x, b)
        assert [entry for entry in gpu.log if "launch" not in entry] == ["put gpu:0 float64[2]"]
        assert values(result) == [2, 6]
        assert values(b) == [0.25, 0.75]


def test_samples_that_a_mask_skips_are_zero_there(gpu: types.ModuleType) -> None:
    @tn.kernel
    def kept(x: Scalar, done: tn.Terminated) -> Scalar:
        return x + 1

    for _ in range(3):
        assert values(kept(on([1.0, 2.0]), on([False, True]))) == [2, 0]


def test_calls_are_in_order_and_wait_for_nothing(gpu: types.ModuleType) -> None:
    x, out = on([1.0]), on([0.0])
    for _ in range(4):
        saxpy(1.0, x, out, out)
    assert len(gpu.queues[0]) == 6
    assert values(out) == [4]
    assert gpu.queues[0] == []


def test_empty_arrays_are_no_work(gpu: types.ModuleType) -> None:
    x = on(np.zeros(0))
    for _ in range(3):
        assert tn.to_numpy(scaled(x, 2)).shape == (0,)
    assert scaled(np.zeros(0), 2, device="gpu").shape == (0,)


# -- the generated path answers as the Python path -------------------------------------------------


@pytest.fixture
def fast(gpu: types.ModuleType) -> tn.Kernel:
    """A kernel whose repeated calls on ``gpu:0`` take the generated path."""

    @tn.kernel
    def fast(a: Param, x: Scalar, out: Mutable[Scalar]):
        out = a * x

    for _ in range(2):
        fast(2.0, on([1.0]), on([0.0]))
    assert isinstance(vars(type(fast))["__call__"], staticmethod)
    return fast


def test_what_does_not_fit_goes_the_python_way(gpu: types.ModuleType, fast: tn.Kernel) -> None:
    x, out = on([1.0, 2.0]), on([0.0, 0.0])
    fast(np.float64(3), x, out)
    assert values(out) == [3, 6]
    fast(4, x, out=out)
    assert values(out) == [4, 8]
    fast(2.0, on([5.0]), out, samples=1)
    assert values(out) == [10, 8]
    fast(2.0, on([1.0], "gpu:1"), other := on([0.0], "gpu:1"))
    assert values(other) == [2]
    fast(2.0, np.ones(1), host := np.zeros(1))
    assert host.tolist() == [2]
    fast(2.0, np.ones(1, np.float32), single := np.zeros(1, np.float32), device="gpu")
    assert single.tolist() == [2]
    with pytest.raises(CallError, match="'x' has 1, 'out' has 2"):
        fast(2.0, on([1.0]), out)
    with pytest.raises(CallError, match="argument 'out' is missing"):
        fast(2.0, x)
    with pytest.raises(CallError, match="unknown argument 'by'"):
        fast(2.0, x, out, by=3)
    with pytest.raises(CallError, match="argument 'out' has 2 axes"):
        fast(2.0, x, on([[0.0, 0.0]]))
    with tn.use("reference"), pytest.raises(CallError, match="is to run on reference:0, but has"):
        fast(2.0, x, out)
    with tn.use("gpu:1"), pytest.raises(CallError, match="is to run on gpu:1, but has arrays els"):
        fast(2.0, x, out)
    with tn.use("gpu:0"):
        fast(5.0, x, out)
    assert values(out) == [5, 10]


@pytest.mark.parametrize(
    ("annotation", "given", "expected"),
    [
        (Param, 2.5, 2.5),
        (Param, 3, 3.0),
        (Param, True, 1.0),
        (Param, np.float32(0.5), 0.5),
        (Param[f32], 0.1, float(np.float32(0.1))),
        (Param[f32], 1e300, float("inf")),
        (Param[tn.i8], -128, -128.0),
        (Param[tn.bool_], True, 1.0),
    ],
)
def test_numbers_arrive_as_on_the_host(
    gpu: types.ModuleType, annotation: Any, given: Any, expected: float
) -> None:
    def body(x: Scalar[f64], by) -> Scalar[f64]:
        return x * by

    body.__annotations__["by"] = annotation
    kernel = tn.kernel(body)
    for _ in range(3):
        assert values(kernel(on([1.0]), given)) == [expected]
    assert kernel(np.ones(1), given, device="reference").tolist() == [expected]


@pytest.mark.parametrize(
    ("given", "text"),
    [(128, r"argument 'by' is 128, which does not fit into int8"), (-129, "-129")],
)
def test_numbers_out_of_range_are_refused(gpu: types.ModuleType, given: int, text: str) -> None:
    @tn.kernel
    def shifted(x: Scalar, by: Param[tn.i8]) -> Scalar:
        return x + by

    for _ in range(2):
        assert values(shifted(on([1.0]), 127)) == [128]
    with pytest.raises(CallError, match=text):
        shifted(on([1.0]), given)


def test_several_results_and_a_reach(gpu: types.ModuleType) -> None:
    @tn.kernel
    def both(x: Scalar) -> tuple[Scalar, Scalar]:
        return x + 1, x * 2

    @tn.kernel
    def first(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
        for i in range(b.shape[0]):
            b[i] = a[i]

    for _ in range(3):
        assert [values(each) for each in both(on([1.0]))] == [[2], [2]]
        first(on([1.0, 2.0]), out := on([0.0]))
        assert values(out) == [1]
        with pytest.raises(CallError, match=r"argument 'a' has shape \(1,\).* indexes its axis 0"):
            first(on([1.0]), on([0.0, 0.0]))


# -- memory of views -------------------------------------------------------------------------------


def test_overlapping_views_are_refused_as_on_the_host(gpu: types.ModuleType) -> None:
    for _ in range(3):
        cells = on([1.0, 2.0, 3.0])
        with pytest.raises(CallError, match="arguments 'x' and 'out' overlap in memory"):
            saxpy(1.0, cells[1:], cells[1:], cells[:-1])
        saxpy(1.0, cells[:1], cells[1:2], cells[2:])  # apart
        saxpy(1.0, cells, cells, cells)  # in place
        saxpy(1.0, cells[:2], cells[:2], cells[:2])  # exactly the same elements, other objects
        assert values(cells) == [4, 8, 6]


def test_views_with_strides_are_right(gpu: types.ModuleType) -> None:
    pairs = on([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    for _ in range(3):
        saxpy(1.0, pairs[:, 0], pairs[::-1, 0], pairs[:, 1])
        assert values(pairs) == [[1, 4], [2, 4], [3, 4]]


def test_outputs_that_cannot_be_written_are_refused(gpu: types.ModuleType) -> None:
    x, out = on([1.0, 2.0]), on([0.0, 0.0])
    spread = type(out)(out.device, np.broadcast_to(np.zeros(1), (2,)))
    for _ in range(3):
        saxpy(1.0, x, x, out)
        with pytest.raises(
            CallError, match="argument 'out' is written by the kernel, but is read-o"
        ):
            saxpy(1.0, x, x, spread)
    spread.there.flags.writeable = True
    with pytest.raises(CallError, match="its elements share memory or interleave"):
        saxpy(1.0, x, x, spread)
    out.there.flags.writeable = False
    saxpy(1.0, out, out, x)  # as an input it is fine


# -- host arrays on a device -----------------------------------------------------------------------


def test_host_arrays_go_to_a_named_device_and_back(gpu: types.ModuleType) -> None:
    x, out = np.array([1.0, 2.0]), np.zeros(2)
    double(x, out, device="gpu:1")
    assert out.tolist() == [2, 4]
    assert gpu.log == [
        "put gpu:1 float64[2]",
        "put gpu:1 float64[2]",
        "launch gpu:1 2",
        "get gpu:1 float64[2]",  # only what is written
    ]


WAYS = ["device", "use", "set_default_device", "TURNOUT_BACKEND"]


def call(way: str, monkeypatch: pytest.MonkeyPatch, kernel: Any, *arguments: Any) -> Any:
    """Call a kernel where ``gpu`` is named in one of four ways."""
    if way == "device":
        return kernel(*arguments, device="gpu")
    if way == "use":
        with tn.use("gpu"):
            return kernel(*arguments)
    if way == "set_default_device":
        tn.set_default_device("gpu")
    else:
        monkeypatch.setenv("TURNOUT_BACKEND", "gpu")
    return kernel(*arguments)


@pytest.mark.parametrize("way", WAYS)
def test_each_way_to_name_a_device_takes_host_arrays_there(
    gpu: types.ModuleType, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    out = np.zeros(2)
    call(way, monkeypatch, double, np.array([1.0, 2.0]), out)
    assert out.tolist() == [2, 4]
    assert gpu.log.count("launch gpu:0 2") == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_named_device_takes_host_arrays_beside_its_own(
    gpu: types.ModuleType, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    out = on([0.0, 0.0])
    call(way, monkeypatch, double, np.array([1.0, 2.0]), out)
    assert values(out) == [2, 4]


def test_nothing_is_copied_because_another_array_is_there(gpu: types.ModuleType) -> None:
    x, out = np.ones(2), on([0.0, 0.0])
    del gpu.log[:]
    for _ in range(2):
        with pytest.raises(CallError) as caught:
            double(x, out)
    assert str(caught.value) == (
        "this call of double has arrays on a device and on the host: argument 'a' (ndarray) is on "
        "the host; argument 'b' (Array) is on gpu:0. Move all to the device with turnout.array(x, "
        "device='gpu:0'); or name it, with device='gpu:0' or turnout.use('gpu:0'), to have host "
        "arrays copied there and back"
    )
    assert gpu.log == []
    saxpy(np.array(2.0), on([1.0, 2.0]), out, out)  # one number is no array
    assert values(out) == [2, 4]


def test_another_default_does_not_name_the_device(gpu: types.ModuleType) -> None:
    tn.set_default_device("gpu:1")
    with pytest.raises(CallError, match="has arrays on a device and on the host"):
        double(np.ones(2), on([0.0, 0.0], "gpu:0"))


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a,
        lambda a: a[::-1],
        lambda a: a[::2],
        lambda a: a[3:7],
        lambda a: a.reshape(4, 3)[:, 1],
        lambda a: a.reshape(4, 3).T[2],
    ],
    ids=["whole", "reversed", "every second", "middle", "column", "row of a transposed one"],
)
def test_views_are_written_in_place(gpu: types.ModuleType, view: Any) -> None:
    given, out = np.arange(12.0), np.full(12, -1.0)
    expected = out.copy()
    view(expected)[...] = 2 * view(given)
    double(view(given), view(out), device="gpu")
    assert out.tolist() == expected.tolist()
    assert given.tolist() == list(range(12))


def test_broadcast_and_read_only_inputs_are_copied(gpu: types.ModuleType) -> None:
    x = np.broadcast_to(np.float64(3), (4,))
    out = np.zeros(4)
    double(x, out, device="gpu")
    assert out.tolist() == [6] * 4


def test_read_only_outputs_are_refused_before_anything_moves(gpu: types.ModuleType) -> None:
    out = np.zeros(2)
    out.flags.writeable = False
    with pytest.raises(CallError, match="argument 'b' is written by the kernel, but is read-only"):
        double(np.ones(2), out, device="gpu")
    assert gpu.log == []


def test_aliases_among_host_arrays_stay_aliases(gpu: types.ModuleType) -> None:
    cells = np.array([1.0, 2.0, 3.0])
    running_sum(cells, cells, device="gpu")
    assert cells.tolist() == [1, 3, 6]
    assert gpu.log.count("put gpu:0 float64[3]") == 1
    with pytest.raises(CallError, match="would be copied to gpu:0 apart"):
        running_sum(cells[1:], cells[:-1], device="gpu")


def test_a_changed_host_array_is_copied_anew(gpu: types.ModuleType) -> None:
    x, out = np.ones(2), np.zeros(2)
    for number in (1.0, 5.0):
        x[:] = number
        double(x, out, device="gpu")
        assert out.tolist() == [2 * number] * 2


@pytest.mark.filterwarnings("error")
def test_copies_are_reported_once_per_kernel_and_device(gpu: types.ModuleType) -> None:
    @tn.kernel
    def twice(x: Scalar) -> Scalar:
        return x + x

    def run(device: str, dtype: type) -> None:
        assert twice(np.ones(2, dtype), device=device).tolist() == [2, 2]

    with pytest.warns(PerformanceWarning, match="kernel twice runs on gpu:0; the NumPy arrays x"):
        run("gpu:0", np.float64)
    run("gpu:0", np.float64)
    run("gpu:0", np.float32)  # another executable of the same kernel
    with pytest.warns(PerformanceWarning, match="runs on gpu:1") as caught:
        run("gpu:1", np.float64)
    assert [warning.filename for warning in caught] == [__file__]
    assert values(twice(on([1.0]))) == [2]


# -- tn.array and tn.to_numpy ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        np.arange(6.0).reshape(2, 3).T,
        np.arange(6)[::-2],
        np.arange(4, dtype=">i4"),
        np.array(2.5),
        np.zeros((0, 3)),
        np.broadcast_to(np.int8(1), (2, 2)),
        np.rec.array([1.0, 2.0]),
    ],
)
def test_any_array_of_numbers_makes_the_round_trip(gpu: types.ModuleType, host: Any) -> None:
    there = tn.array(host, device="gpu:1")
    assert home(there) is resolve((), "gpu:1")
    back = tn.to_numpy(there)
    assert back.dtype == host.dtype.newbyteorder("=")
    assert back.shape == host.shape
    np.testing.assert_array_equal(back, host)


@pytest.mark.parametrize(
    ("host", "text"),
    [
        (np.ma.masked_array([1.0], [True]), "a masked array would lose its mask on a device"),
        (np.array([None]), "an array of object holds Python objects, which no device takes"),
    ],
)
def test_what_no_device_takes_is_refused(gpu: types.ModuleType, host: Any, text: str) -> None:
    with pytest.raises(CallError, match=text):
        tn.array(host, device="gpu")


def test_array_moves_to_the_active_device_and_between_devices(gpu: types.ModuleType) -> None:
    with tn.use("gpu:1"):
        there = tn.array([1.0])
        assert tn.array(there) is there
    assert home(there) is resolve((), "gpu:1")
    tn.set_default_device("gpu:0")
    moved = tn.array(there)
    assert home(moved) is resolve((), "gpu:0")
    assert values(moved) == [1]


def test_sync_waits_for_every_device_that_was_used(gpu: types.ModuleType) -> None:
    for device in ("gpu:0", "gpu:1"):
        scaled(on([1.0], device), 2)
    assert [len(queue) > 0 for queue in gpu.queues] == [True, True]
    tn.sync("gpu:1")
    assert [len(queue) > 0 for queue in gpu.queues] == [True, False]
    tn.sync()
    assert gpu.queues == [[], []]


# -- capabilities ----------------------------------------------------------------------------------


def test_a_device_without_float64_says_so_and_runs_float32(gpu: types.ModuleType) -> None:
    with pytest.raises(tn.CompileError, match="this device has no float64") as caught:
        scaled(on([1.0], "tiny"), 2)
    assert "unit scaled" in caught.value.source
    assert values(scaled(on(np.ones(1, np.float32), "tiny"), 2)) == [2]
    assert values(scaled(on([1.0], "gpu"), 2)) == [2]


# -- threads and tasks -----------------------------------------------------------------------------


def placed(_: Any = None) -> str:
    """The device of a call that names none."""
    return str(resolve(()).device)


def test_use_is_seen_by_tasks_and_their_threads_but_not_by_others(gpu: types.ModuleType) -> None:
    async def main() -> list[str]:
        with tn.use("gpu:1"):
            task = asyncio.create_task(asyncio.sleep(0, result=None))
            await task
            inner = asyncio.create_task(asyncio.to_thread(placed))
            loop = asyncio.get_running_loop()
            with ThreadPoolExecutor(1) as pool:
                return [placed(), await inner, await loop.run_in_executor(pool, placed)]

    default = placed()
    inherits = bool(getattr(sys.flags, "thread_inherit_context", 0))
    assert asyncio.run(main()) == ["gpu:1", "gpu:1", "gpu:1" if inherits else default]


def test_a_task_keeps_its_own_device(gpu: types.ModuleType) -> None:
    async def run(device: str, meeting: asyncio.Barrier) -> str:
        with tn.use(device):
            await meeting.wait()
            return str(home(tn.array([1.0])).name)  # type: ignore[union-attr]

    async def main() -> list[str]:
        meeting = asyncio.Barrier(2)
        return await asyncio.gather(run("gpu:0", meeting), run("gpu:1", meeting))

    assert asyncio.run(main()) == ["gpu:0", "gpu:1"]


@pytest.mark.parametrize("way", ["set_default_device", "TURNOUT_BACKEND"])
def test_the_default_of_the_process_is_seen_by_every_thread(
    gpu: types.ModuleType, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "TURNOUT_BACKEND":
        monkeypatch.setenv("TURNOUT_BACKEND", "gpu:1")
    else:
        tn.set_default_device("gpu:1")
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.append(placed()))
    thread.start()
    thread.join()
    with ThreadPoolExecutor(1) as pool:
        seen += pool.map(placed, [None])
    assert [*seen, asyncio.run(asyncio.to_thread(placed))] == ["gpu:1"] * 3


def test_threads_with_devices_of_their_own_do_not_mix(gpu: types.ModuleType) -> None:
    def many(number: int) -> list[float]:
        device = f"gpu:{number % 2}"
        with tn.use(device):
            x, out = tn.array([float(number)]), tn.array([0.0])
            for _ in range(20):
                saxpy(1.0, x, out, out)
        return values(out)

    with ThreadPoolExecutor(2) as pool:  # one per device: the queues of the fake are not locked
        assert list(pool.map(many, [1, 2])) == [[20], [40]]


# -- forks -----------------------------------------------------------------------------------------

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def in_child(act: Any) -> None:
    """Run a function in a forked child, which must come to its end."""
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # what hangs is killed
        try:
            act()
        except BaseException as error:
            print(f"in the child: {error!r}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


LOST = r"backend 'gpu' was in use when this process was forked.*get_context\('spawn'\)"


@needs_fork
def test_a_device_in_use_is_refused_in_a_forked_child(gpu: types.ModuleType) -> None:
    x = on([1.0])
    for _ in range(2):
        scaled(x, 2.0)  # the generated path

    def child() -> None:
        for act in (
            lambda: scaled(x, 2.0),
            lambda: scaled(np.ones(1), 2, device="gpu"),
            lambda: tn.array([1.0], device="gpu"),
            lambda: tn.to_numpy(x),
            lambda: tn.sync("gpu"),
            lambda: tn.use("gpu").__enter__(),
        ):
            with pytest.raises(tn.Unavailable, match=LOST):
                act()
        with tn.use("reference"):
            assert scaled(np.ones(1), 2).tolist() == [2]
        assert not tn.backends()["gpu"].available
        assert tn.backends()["reference"].available
        tn.sync()

    in_child(child)
    assert values(scaled(x, 2.0)) == [2]


@needs_fork
def test_a_device_chosen_before_a_fork_is_refused_in_the_child(gpu: types.ModuleType) -> None:
    def child() -> None:
        with pytest.raises(tn.Unavailable, match=LOST):
            scaled(np.ones(1), 2)

    with tn.use("gpu"):
        in_child(child)
    tn.set_default_device("gpu")
    in_child(child)


@needs_fork
def test_a_driver_that_only_listed_devices_is_refused_too(gpu: types.ModuleType) -> None:
    def child() -> None:
        with pytest.raises(tn.Unavailable, match=LOST):
            tn.array([1.0], device="gpu")

    in_child(child)  # the fixture asked for the devices


@needs_fork
def test_a_device_that_was_not_used_before_is_used_in_the_child(gpu: types.ModuleType) -> None:
    clear()

    def child() -> None:
        assert values(scaled(on([1.0]), 2)) == [2]

    in_child(child)


# -- what perf_dispatch needs ----------------------------------------------------------------------


def test_work_is_waited_for_where_the_arrays_are(gpu: types.ModuleType) -> None:
    x, y = on([1.0], "gpu:0"), on([1.0], "gpu:1")
    assert context_for([x, 2.0, np.ones(1)]).name == "gpu:0"
    assert context_for([y]).name == "gpu:1"
    with tn.use("reference"):
        assert context_for([x]).name == "gpu:0"
        assert context_for([x, y]).name == "reference:0"
        assert context_for([np.ones(1), "text"]).name == "reference:0"


def test_the_geometry_names_the_device(gpu: types.ModuleType) -> None:
    first, second = describe(on([1.0], "gpu:0")), describe(on([1.0], "gpu:1"))
    assert first != second
    assert "gpu:0" in first  # type: ignore[operator]
    assert describe(on([2.0], "gpu:0")) == first
    assert describe(on([[1.0, 2.0]] * 3)[:, 0]) != describe(on([1.0] * 3))


def test_copies_stay_on_the_device_in_the_order_of_its_queue(gpu: types.ModuleType) -> None:
    x, out = on([1.0, 2.0]), on([0.0, 0.0])
    double(x, out)
    with tn.use("reference"):  # where the arrays are does not depend on what is active
        twin = copied(out)
        assign(out, np.array([7.0, 8.0]))
        poison(x)
    assert values(twin) == [2, 4]
    assert values(out) == [7, 8]
    assert np.isnan(tn.to_numpy(x)).all()


def test_an_array_without_a_copy_method_is_copied_through_the_host(gpu: types.ModuleType) -> None:
    out = on([1.0])
    plain = type("Plain", (type(out),), {"copy": None})
    array = plain(out.device, out.there)
    array.device = out.device
    gpu.Memory.owns = lambda self, value: (
        isinstance(value, gpu.Array) and value.device is self.device
    )
    twin = copied(array)
    assert home(twin) is home(out)
    assign(array, np.array([5.0]))
    assert values(twin) == [1]
    assert values(array) == [5]


def test_snapshots_of_device_arrays_are_restored(gpu: types.ModuleType) -> None:
    def operation(x: Any, out: Any) -> None: ...

    out = on([1.0, 2.0])
    snapshot = Snapshot(inspect.signature(operation).bind([0.0], out), ["out"])
    double(out, out)
    assert snapshot.problem is None
    assert snapshot.restore()
    assert values(out) == [1, 2]


def test_working_copies_of_device_arrays_leave_the_originals(gpu: types.ModuleType) -> None:
    x, out = on([1.0, 2.0]), on([0.0, 0.0])
    bound = inspect.signature(lambda x, out: ...).bind(x, out)
    copies = WorkingCopies(bound, ["out"])
    own = copies.fresh(poisoned=["out"])
    assert own.args[0] is x
    assert np.isnan(tn.to_numpy(own.args[1])).all()
    double(*own.args)
    assert values(own.args[1]) == [2, 4]
    assert values(out) == [0, 0]


def test_views_of_one_buffer_are_not_copied_apart(gpu: types.ModuleType) -> None:
    cells = on([1.0, 2.0, 3.0])
    bound = inspect.signature(lambda x, out: ...).bind(cells[1:], cells[:-1])
    assert WorkingCopies(bound, ["out"]).problem == "'out' and 'x' share memory on gpu:0"
    apart = inspect.signature(lambda x, out: ...).bind(cells[2:], cells[:2])
    assert WorkingCopies(apart, ["out"]).problem is None


def test_a_segmented_kernel_cannot_be_captured(gpu: types.ModuleType) -> None:
    @tn.kernel
    def law(kind: Index, x: Scalar, out: Mutable[Scalar]):
        out = tn.math.dispatch(kind, [x, 2 * x], policy="segmented")

    kind, x, out = on([0, 1, 5]), on([1.0, 2.0, 3.0]), on([0.0] * 3)
    law(kind, x, out)
    assert values(out) == [1, 4, 6]
    gpu.captured.add(0)
    with pytest.raises(CallError, match="cannot be waited for; capture it with the policy"):
        law(kind, x, out)


def test_policies_are_chosen_on_a_device(gpu: types.ModuleType) -> None:
    @tn.kernel
    def law(kind: Index, x: Scalar, out: Mutable[Scalar]):
        out = tn.math.dispatch(kind, [x, 2 * x], policy="auto")

    numbers, n = np.arange(20_000), 20_000
    halves, first = on(numbers % 2), on((numbers < 100).astype(int))
    x, out = on(np.ones(n)), on(np.zeros(n))
    told = law.explain(halves, x, out)
    assert told.mix["dispatch0"] == pytest.approx((0.5, 0.5), abs=0.02)
    assert told.estimates_ns == {}
    for kind, level in ((halves, "00"), (first, "03")):
        while (told := law.explain(kind, x, out)).chosen is None or told.geometry[1] != level:
            law(kind, x, out)
            assert values(out) == (1 + tn.to_numpy(kind)).tolist()
    # Whatever is in use, nothing that waits is recorded.
    (automatic,) = law._executables.values()
    (watch,) = automatic._watches.values()
    for calls_left in (10, 0):
        watch.function, watch.calls_left = automatic.forms["segmented"], calls_left
        gpu.captured.add(0)
        gpu.log.clear()
        law(halves, x, out, steps=2)
        assert [words.split()[0] for words in gpu.log] == ["launch", "launch"]
        gpu.captured.clear()
        assert values(out) == (1 + numbers % 2).tolist()

    gpu.log.clear()
    with pytest.warns(PerformanceWarning):
        law(numbers % 2, np.ones(n), of_host := np.zeros(n), device="gpu:0")
    assert of_host.tolist() == (1 + numbers % 2).tolist()
    assert sum(words.startswith("put") for words in gpu.log) == 3  # they were not looked at
    assert law.on("gpu:0").explain(numbers % 2, np.ones(n), np.zeros(n)).mix == {}


def test_a_capture_in_this_process_is_known(gpu: types.ModuleType) -> None:
    assert not is_capturing()
    on([1.0], "gpu:1")
    assert not is_capturing()
    gpu.captured.add(1)
    assert is_capturing()


def test_implementations_race_on_the_device_by_its_clock(gpu: types.ModuleType) -> None:
    @tn.kernel
    def one_by_one(x: Scalar, out: Mutable[Scalar]):
        out = x + x

    @tn.perf_dispatch(repeat_after_seconds=0)
    def doubled(x: Any, out: Any) -> None: ...

    @doubled.register
    def in_two_launches(x: Any, out: Any) -> None:
        one_by_one(x, out)
        one_by_one(x, out)

    doubled.register(one_by_one)

    @doubled.register(is_compatible=lambda x, out: isinstance(x, np.ndarray) or "not on the host")
    def on_the_host(x: Any, out: Any) -> None:
        np.add(x, x, out=out)

    for device in ("gpu:0", "gpu:1"):
        x = on(np.arange(50.0), device)
        for _ in range(10):
            doubled(x, out := on(np.zeros(50), device))
            assert values(out) == [2.0 * i for i in range(50)]
        decision = doubled.decision(x, out)
        assert decision.chosen == "one_by_one"
        assert set(decision.samples["one_by_one"]) == {150}
        assert set(decision.samples["in_two_launches"]) == {300}
        assert "on_the_host" not in decision.samples
    host = np.ones(3)
    for _ in range(10):
        doubled(host, out := np.zeros(3))
        assert out.tolist() == [2, 2, 2]


def test_a_kernel_for_a_device_without_float64_does_not_race_there(gpu: types.ModuleType) -> None:
    @tn.kernel
    def by_kernel(x: Scalar, out: Mutable[Scalar]):
        out = x * 2

    @tn.perf_dispatch
    def doubled(x: Any, out: Any) -> None: ...

    doubled.register(by_kernel)

    @doubled.register
    def through_the_host(x: Any, out: Any) -> None:
        out[...] = tn.array(tn.to_numpy(x) * 2, device="tiny")

    x = on([1.0, 2.0], "tiny")
    doubled(x, out := on([0.0, 0.0], "tiny"))
    assert values(out) == [2, 4]


def test_the_default_geometry_depends_on_the_active_device(gpu: types.ModuleType) -> None:
    @tn.perf_dispatch
    def doubled(x: Any, out: Any) -> None: ...

    doubled.register(double_named("first"))
    doubled.register(double_named("second"))
    x, out = np.ones(2), np.zeros(2)
    with tn.use("reference"):
        for _ in range(10):
            doubled(x, out)
        assert doubled.decision(x, out).chosen is not None
    with tn.use("gpu"):
        assert doubled.decision(x, out) is None


def double_named(name: str) -> Any:
    def implementation(x: Any, out: Any) -> None:
        double(x, out)

    implementation.__name__ = name
    return implementation


# -- kernels that are bound to a device ------------------------------------------------------------


def test_a_kernel_on_a_device_runs_there_whatever_is_in_use(gpu: types.ModuleType) -> None:
    there, here = double.on("gpu:1"), double.on(tn.devices("reference")[0])
    assert repr(there).endswith(") on gpu:1>")
    assert there.device == "gpu:1"
    for _ in range(3):  # the native path of `reference` is none, that of `cpu` is tested below
        del gpu.log[:]
        there(np.ones(1), out := np.zeros(1))
        assert out.tolist() == [2]
        with tn.use("gpu:0"):
            there(np.ones(1), out)
            here(np.ones(1), out)
        assert [entry for entry in gpu.log if "launch" in entry] == ["launch gpu:1 1"] * 2
        there(np.ones(1), out, device="gpu:0")
        assert gpu.log.count("launch gpu:0 1") == 1
        with tn.use("gpu:0"):
            there(on([1.0], "gpu:1"), away := on([0.0], "gpu:1"))
        assert values(away) == [2]
        with pytest.raises(tn.PlacementError, match="call of double is to run on gpu:1, but has"):
            there(on([1.0]), on([0.0]))


def test_a_kernel_on_the_cpu_keeps_its_native_calls(gpu: types.ModuleType) -> None:
    if "cpu" not in tn.backends():
        pytest.skip("turnout-cpu is not installed")
    pinned = double.on("cpu")
    x, out = np.ones(3), np.zeros(3)
    with tn.use("gpu"):
        for _ in range(3):
            pinned(x, out)
            assert out.tolist() == [2, 2, 2]
    tn.set_default_device("gpu")
    pinned(x * 2, out)
    assert out.tolist() == [4, 4, 4]
    assert gpu.log == []
    assert type(vars(type(pinned))["__call__"]).__name__ == "builtin_function_or_method"


def test_variants_of_a_kernel_on_a_device(gpu: types.ModuleType) -> None:
    pinned = double.on("gpu:1")
    assert pinned.with_constants().device == "gpu:1"
    assert pinned.on("gpu:0").device == "gpu:0"
    assert double.device is None
    copy = pickle.loads(pickle.dumps(pinned))
    assert copy.device == "gpu:1"
    assert pickle.loads(pickle.dumps(double)) is double
    assert pinned.definition.digest != double.definition.digest


def test_a_device_that_is_not_there_is_said_when_it_is_called(gpu: types.ModuleType) -> None:
    absent = double.on("nope:3")
    with pytest.raises(tn.Unavailable, match="backend 'nope' is not installed"):
        absent(np.ones(1), np.zeros(1))
    with pytest.raises(CallError, match="device 'no way' is malformed"):
        double.on("no way")
    with pytest.raises(CallError, match="device=3, of type int, is not allowed"):
        double.on(3)  # type: ignore[arg-type]
