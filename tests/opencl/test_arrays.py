"""Arrays of pyopencl as arguments: how they lie, where they are, what they are afterwards."""

from __future__ import annotations

import pytest

pytest.importorskip("turnout_opencl", reason="turnout-opencl is not installed")

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl
import pyopencl.array as cla

import turnout as tn
from turnout import NDArray, Scalar, f32, i8, i64
from turnout.backends import resolve
from turnout.errors import CallError

Put = Callable[[Any], Any]


@tn.kernel
def scale(x: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
    for i in range(out.shape[0]):
        out[i] = x[i] * 3


@tn.kernel
def combine(x: NDArray[f32, 2], out: NDArray[f32, 2]) -> None:
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = x[i, j] * 2 + 1


@tn.kernel
def mark_last(x: NDArray[i8, 1]) -> None:
    x[x.shape[0] - 1] = 7


@tn.kernel
def triple(x: Scalar) -> Scalar:
    return x * 3


@tn.kernel
def sum_of_three(
    a: NDArray[f32, 3], b: NDArray[f32, 3], c: NDArray[f32, 3], out: NDArray[f32, 3]
) -> None:
    for i in range(2):
        for j in range(2):
            for k in range(2):
                out[i, j, k] = a[i, j, k] + b[i, j, k] + c[i, j, k]


def view(array: cla.Array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> Any:
    """Any view of the memory of an array."""
    return cla.Array(
        array.queue, shape, array.dtype, data=array.base_data, strides=strides, offset=offset
    )


def on_host(array: cla.Array) -> np.ndarray[Any, Any]:
    return tn.to_numpy(array)


VIEWS: dict[str, Callable[[cla.Array], cla.Array]] = {
    "all": lambda a: a,
    "every second": lambda a: a[::2],
    "offset": lambda a: a[3:],
    "reversed": lambda a: view(a, a.shape, (-4,), 4 * (a.size - 1)),
    "backwards, every third": lambda a: view(a, (a.size // 3,), (-12,), 4 * (a.size - 1)),
}
HOST_VIEWS: dict[str, Callable[[Any], Any]] = {
    "all": lambda a: a,
    "every second": lambda a: a[::2],
    "offset": lambda a: a[3:],
    "reversed": lambda a: a[::-1],
    "backwards, every third": lambda a: a[::-3][: a.size // 3],
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_as_inputs_and_outputs(put: Put, name: str) -> None:
    """L1: read and written where their elements are, and nowhere else."""
    host = np.arange(1, 32, dtype=np.float32)
    x = HOST_VIEWS[name](host)
    assert on_host(VIEWS[name](put(host))).tolist() == x.tolist()
    out = put(np.zeros(x.size, np.float32))
    scale(VIEWS[name](put(host)), out)
    assert on_host(out).tolist() == (x * 3).tolist()

    whole, expected = put(np.full(31, 7, np.float32)), np.full(31, 7, np.float32)
    scale(put(x.copy()), VIEWS[name](whole))
    HOST_VIEWS[name](expected)[...] = x * 3
    assert on_host(whole).tolist() == expected.tolist()


def test_transposed_arrays(put: Put) -> None:
    host = np.arange(15, dtype=np.float32).reshape(3, 5)
    out = put(np.zeros((5, 3), np.float32))
    combine(put(host).T, out)
    assert on_host(out).tolist() == (host.T * 2 + 1).tolist()
    turned = put(np.zeros((3, 5), np.float32))
    combine(put(host.T.copy()), turned.T)
    assert on_host(turned).tolist() == (host * 2 + 1).tolist()


def test_an_element_for_many(put: Put) -> None:
    """An input of stride 0 is read as it is; as an output it is refused."""
    one = put(np.array([5.0], np.float32))
    wide = view(one, (1000,), (0,), 0)
    out = put(np.zeros(1000, np.float32))
    scale(wide, out)
    assert on_host(out).tolist() == [15.0] * 1000
    with pytest.raises(CallError, match="share memory"):
        scale(out, wide)
    assert on_host(one).tolist() == [5.0]


def test_overlap_is_refused(put: Put) -> None:
    """Views of one buffer are seen as such."""
    whole = put(np.arange(9, dtype=np.float32))
    with pytest.raises(CallError, match="'x' and 'out' overlap in memory"):
        scale(whole[:-1], whole[1:])
    scale(whole, whole)
    assert on_host(whole).tolist() == (np.arange(9) * 3).tolist()
    scale(whole[:4], whole[4:8])
    assert on_host(whole).tolist() == [0, 3, 6, 9, 0, 9, 18, 27, 24]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_empty_arrays(put: Put, shape: tuple[int, int]) -> None:
    """L4: nothing happens, and what comes back has the right shape."""
    empty = put(np.zeros(shape, np.float32))
    combine(empty, put(np.zeros(shape, np.float32)))
    assert on_host(empty).shape == shape
    nothing = put(np.zeros(0, np.float32))
    scale(nothing, nothing)
    assert on_host(triple(nothing)).shape == (0,)


def test_eight_numbers(put: Put) -> None:
    """L9: axes of length 1, made wide with a stride of 0."""
    parts = [put(np.full(shape, 1.5, np.float32)) for shape in ((2, 1, 2), (1, 2, 1), (2, 2, 2))]
    wide = [
        view(a, (2, 2, 2), tuple(s if n > 1 else 0 for n, s in zip(a.shape, a.strides)), 0)  # noqa: B905
        for a in parts
    ]
    out = put(np.zeros((2, 2, 2), np.float32))
    sum_of_three(*wide, out)
    assert on_host(out).tolist() == np.full((2, 2, 2), 4.5).tolist()


def test_misaligned_views_are_refused(put: Put) -> None:
    room = put(np.zeros(16, np.uint8))
    odd = cla.Array(room.queue, (3,), np.float32, data=room.base_data, offset=1)
    with pytest.raises(CallError, match="'x' is not aligned: its offset is 1"):
        scale(odd, put(np.zeros(3, np.float32)))


def test_results_live_where_the_arguments_do(put: Put) -> None:
    result = triple(put(np.arange(5, dtype=np.float32)))
    assert isinstance(result, cla.Array)
    # What pyopencl does next finds the queue and sees what the kernel wrote.
    assert (result + 1).get().tolist() == [1, 4, 7, 10, 13]


def test_host_arrays_are_copied_there_and_back() -> None:
    out = np.zeros(5, np.float32)
    x = np.arange(5, dtype=np.float32)
    x.flags.writeable = False
    with pytest.warns(tn.PerformanceWarning, match="are copied there"):
        scale.with_constants()(x, out, device="opencl")
    assert out.tolist() == [0, 3, 6, 9, 12]


def test_a_copy_may_be_changed_at_once(put: Put) -> None:
    """Of the host's array, as soon as `turnout.array` returns."""
    host = np.ones(1 << 20, np.float32)
    there = put(host)
    host[:] = 0
    assert on_host(there).min() == 1


def test_copies_and_assignments(put: Put) -> None:
    """Of arrays however they lie, in the context and the queue that they are in."""
    memory = resolve((), "opencl").memory
    host = np.arange(12, dtype=np.float32).reshape(3, 4)
    queues = [put(host).queue, cl.CommandQueue(put(host).context)]
    queues.append(cl.CommandQueue(cl.Context([queues[0].device])))
    for one in queues:
        for other in queues:
            for lie in (lambda a: a, lambda a: a.T, lambda a: a[1:, ::2]):
                whole = cla.to_device(one, host)
                copy = memory.copy(lie(whole))
                assert copy.queue is one
                assert on_host(copy).tolist() == lie(host).tolist()
                new = np.ascontiguousarray(lie(-host))
                expected = host.copy()
                lie(expected)[...] = new
                memory.assign(lie(whole), new)
                assert on_host(whole).tolist() == expected.tolist()
                apart = cla.to_device(one, host)
                memory.assign(lie(apart), lie(cla.to_device(other, -host)))
                assert on_host(apart).tolist() == expected.tolist()
    memory.copy(put(np.zeros((0, 3))))


@pytest.mark.parametrize("lie", [lambda a: a, lambda a: a[1::2]])
def test_arrays_are_as_before_after_a_failure(put: Put, lie: Callable[[Any], Any]) -> None:
    """However they lie, and the call goes on with an implementation that works."""

    @tn.perf_dispatch(warmup=0, active=1, repeat_after_seconds=0)
    def tripled(x: Any, out: Any) -> None: ...

    @tripled.register(mutates={"out": "update"})
    def failing(x: Any, out: Any) -> None:
        out.queue.finish()
        scale(x, out)
        raise RuntimeError("half way")

    @tn.kernel
    def add_three_times(x: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
        for i in range(out.shape[0]):
            out[i] = out[i] + x[i] * 3

    tripled.register(name="working")(add_three_times)
    x, whole = put(np.arange(6, dtype=np.float32)), put(np.ones(6, np.float32))
    tripled(lie(x), lie(whole))
    expected = np.ones(6)
    lie(expected)[...] += 3 * lie(np.arange(6))
    assert on_host(whole).tolist() == expected.tolist()


# ---- contexts and queues of the user's own -------------------------------------------------------


@pytest.fixture
def own_context(put: Put) -> cl.Context:
    """Another context on the same device."""
    return cl.Context([put(np.zeros(1)).queue.device])


@pytest.fixture
def own_queue(own_context: cl.Context) -> cl.CommandQueue:
    return cl.CommandQueue(own_context)


def test_arrays_of_another_context(own_queue: cl.CommandQueue) -> None:
    """L7: a launch goes into the context and the queue of its arrays."""
    x = cla.to_device(own_queue, np.arange(7, dtype=np.float32))
    out = cla.zeros(own_queue, 7, np.float32)
    scale(x, out)
    assert out.get().tolist() == [0, 3, 6, 9, 12, 15, 18]
    assert out.context == own_queue.context
    tn.sync("opencl")
    assert on_host(out).tolist() == [0, 3, 6, 9, 12, 15, 18]


def test_two_contexts_in_one_call_are_refused(put: Put, own_queue: cl.CommandQueue) -> None:
    x = cla.to_device(own_queue, np.arange(7, dtype=np.float32))
    with pytest.raises(CallError, match="belong to 2 OpenCL contexts"):
        scale(x, put(np.zeros(7, np.float32)))
    # What a kernel returns is made in turnout's own.
    with pytest.raises(CallError, match="results of kernels are in turnout's own"):
        triple(x)


def test_arrays_without_a_queue(put: Put, own_queue: cl.CommandQueue) -> None:
    x = put(np.arange(4, dtype=np.float32))
    out = put(np.zeros(4, np.float32))
    scale(x.with_queue(None), out.with_queue(None))
    assert on_host(out).tolist() == [0, 3, 6, 9]
    foreign = cla.to_device(own_queue, np.arange(4, dtype=np.float32)).with_queue(None)
    assert on_host(foreign).tolist() == [0, 1, 2, 3]
    with pytest.raises(CallError, match="has a queue; give them one"):
        scale(foreign, foreign)


def test_work_queued_before_is_seen(own_queue: cl.CommandQueue) -> None:
    """J3, J4: a launch stands behind what the caller queued, in the caller's queue."""
    n = 1 << 20
    for turn in range(1, 6):
        x = cla.empty(own_queue, n, np.float32)
        for value in (0, -1, turn):
            x.fill(np.float32(value))
        out = cla.empty(own_queue, n, np.float32)
        scale(x, out)
        total = (out + 1).get()
        assert total.min() == total.max() == 3 * turn + 1


def test_trials_come_after_what_the_caller_queued(own_queue: cl.CommandQueue) -> None:
    """J3: candidates read, and are verified with, what the caller's queue still has to write."""

    @tn.perf_dispatch(warmup=1, active=2, repeat_after_seconds=0, verify="always")
    def tripled(x: Any, out: Any) -> None: ...

    tripled.register(name="first")(scale)
    tripled.register(name="second")(scale.with_constants())
    n = 1 << 18
    x, out = (cla.zeros(own_queue, n, np.float32) for _ in range(2))
    for turn in range(1, 11):
        for value in (0, -1, turn):
            x.fill(np.float32(value))
        tripled(x, out)
        total = (out + 1).get()
        assert total.min() == total.max() == 3 * turn + 1
    decision = tripled.decision(x, out)
    assert decision.chosen is not None
    assert set(decision.samples) == {"first", "second"}


def test_a_queue_out_of_order(put: Put) -> None:
    """Events order what the queue does not."""
    home = put(np.zeros(1))
    properties = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    if not home.queue.device.queue_properties & properties:
        pytest.skip("the device has no such queues")
    queue = cl.CommandQueue(home.context, properties=properties)
    x = cla.to_device(queue, np.ones(1 << 18, np.float32))
    for _ in range(5):
        scale(x, x)
    assert x.get().tolist() == [3.0**5] * (1 << 18)


def test_a_queue_of_the_users_own_in_the_context_of_turnout(put: Put) -> None:
    """What is made in one queue and used in the other is ordered, whichever comes first."""
    home = put(np.zeros(1))
    queue = cl.CommandQueue(home.context)
    for turn in range(1, 6):
        x = cla.to_device(queue, np.full(1 << 18, turn, np.float32))
        first = triple(x)  # filled with zeros in one queue, written in the other
        assert first.queue is home.queue
        second = triple(first)
        scale(second, x)
        assert on_host(second).min() == on_host(second).max() == 9 * turn
        assert x.get().min() == x.get().max() == 27 * turn


def test_two_queues_with_different_numbers(put: Put, own_queue: cl.CommandQueue) -> None:
    """H5: each launch has the arguments of its own call."""

    @tn.kernel
    def fill(out: NDArray[i64, 1], value: tn.Param[i64]) -> None:
        for i in range(out.shape[0]):
            out[i] = value

    theirs = [cla.zeros(own_queue, 300, np.int64) for _ in range(20)]
    ours = [put(np.zeros(300, np.int64)) for _ in range(20)]
    for number, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        fill(a, number)
        fill(b, -number)
    for number, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        assert (a.get() == number).all()
        assert (on_host(b) == -number).all()


@pytest.mark.skipif(
    not os.environ.get("TURNOUT_LARGE_TESTS"), reason="needs 2 GB; TURNOUT_LARGE_TESTS=1 runs it"
)
def test_more_than_2_to_the_31_elements(put: Put) -> None:
    """L3: only the last element is looked at."""
    size = (1 << 31) + 7
    queue = put(np.zeros(1)).queue
    x = cla.zeros(queue, size, np.int8)
    mark_last(x)
    assert x[-3:].get().tolist() == [0, 0, 7]
