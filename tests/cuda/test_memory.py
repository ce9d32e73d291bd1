"""Memory, waiting and timing: what CUDA is asked to do, in which order."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from fake_cupy import Array, Error, FakeCupy

from turnout_cuda.arrays import CudaMemory
from turnout_cuda.clock import EventTimer, make_sync


class Tensor:
    """An array of a library that shares it by DLPack and the CUDA array interface."""

    def __init__(self, kind: int, ordinal: int) -> None:
        self._device = (kind, ordinal)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


class Bare:
    """An array of a library that has nothing but the CUDA array interface."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {"data": (address, False)}


class Refusing:
    """A tensor that may not be shared."""

    @property
    def __cuda_array_interface__(self) -> Any:
        raise RuntimeError("requires grad")


def test_owner_of_an_array(fake: FakeCupy) -> None:
    first, second = CudaMemory(0), CudaMemory(1)

    def owners(value: object) -> list[bool]:
        return [first.owns(value), second.owns(value)]

    assert owners(fake.array([1.0])) == [True, False]
    assert owners(fake.array([1.0], ordinal=1)) == [False, True]
    assert owners(Tensor(2, 1)) == [False, True], "DLPack: CUDA"
    assert owners(Tensor(13, 0)) == [True, False], "DLPack: CUDA managed memory"
    assert owners(Tensor(1, 0)) == [False, False], "DLPack: host"
    assert owners(Tensor(3, 0)) == [False, False], "DLPack: pinned host memory"
    assert owners(Bare(0x7000)) == [False, True], "the driver knows"
    fake.ordinal = 1
    assert owners(Bare(0)) == [False, True], "no elements: where the caller is"
    for other in (np.zeros(3), 1.5, None, "text", Refusing(), object()):
        assert owners(other) == [False, False]


def test_put_waits_until_the_host_memory_is_read(fake: FakeCupy) -> None:
    fake.streams[1] = 7
    array = CudaMemory(1).put(np.arange(3.0))
    assert fake.calls == [
        "allocate on device 1",
        "copy to device on stream 7",
        "wait for stream 7",
    ]
    assert array.host.tolist() == [0, 1, 2]
    assert fake.ordinal == 0, "the current device is the caller's again"


def test_put_of_nothing(fake: FakeCupy) -> None:
    assert CudaMemory(0).put(np.zeros((0, 3), np.int8)).shape == (0, 3)
    assert fake.calls == ["allocate on device 0"]


def test_zeros_are_only_enqueued(fake: FakeCupy) -> None:
    array = CudaMemory(1).zeros((2, 3), np.dtype(np.int16))
    assert (array.shape, array.dtype) == ((2, 3), np.int16)
    assert fake.calls == ["zeros on device 1"]


def test_get_waits_for_all_work(fake: FakeCupy) -> None:
    out = np.zeros(2)
    CudaMemory(0).get(fake.array([1.0, 2.0]), out)
    assert out.tolist() == [1, 2]
    assert fake.calls == ["wait for the device", "copy to host"]


def test_interface_is_that_of_the_array(fake: FakeCupy) -> None:
    assert CudaMemory(0).interface(Bare(64)) == {"data": (64, False)}


def test_bounds(fake: FakeCupy) -> None:
    """Known only of what is C-contiguous and can be written."""
    memory = CudaMemory(0)
    whole = fake.array(np.zeros((2, 3), np.float32))
    assert memory.bounds(whole) == (whole.data.ptr, whole.data.ptr + 24)
    assert memory.bounds(Array(fake, whole.host[:, ::2], 0)) is None
    foreign = Bare(64)
    foreign.__cuda_array_interface__ |= {"shape": (2, 3), "typestr": "<f8", "strides": None}
    assert memory.bounds(foreign) == (64, 112)
    foreign.__cuda_array_interface__["data"] = (64, True)
    assert memory.bounds(foreign) is None
    foreign.__cuda_array_interface__ |= {"data": (64, False), "strides": (8, 16)}
    assert memory.bounds(foreign) is None


def test_timer_measures_between_events(fake: FakeCupy) -> None:
    fake.streams[1] = 7
    elapsed_ns = EventTimer(1)(lambda: fake.calls.append(f"work on device {fake.ordinal}"))
    assert elapsed_ns == 250_000
    assert fake.calls == [
        "event on stream 7",
        "work on device 0",
        "event on stream 7",
        "wait for an event",
    ]


def test_timer_knows_captures(fake: FakeCupy) -> None:
    timer = EventTimer(1)
    assert not timer.is_capturing()
    fake.capturing.add(fake.streams[0])
    assert not timer.is_capturing(), "a stream of another device"
    fake.capturing.add(fake.streams[1])
    assert timer.is_capturing()
    # The default stream may not be used, or asked, while a blocking one captures.
    fake.failures["ask for a capture"] = [Error(906), Error(700)]
    assert timer.is_capturing()
    with pytest.raises(Error):
        timer.is_capturing()


def test_sync(fake: FakeCupy) -> None:
    sync = make_sync(1)
    sync()
    assert fake.calls == ["wait for the device"]
    fake.failures["wait for the device"] = [Error(700), Error(2)]
    with pytest.raises(Error) as caught:
        sync()
    assert "outside of its arrays" in caught.value.__notes__[0]
    with pytest.raises(Error) as caught:
        sync()
    assert not hasattr(caught.value, "__notes__"), "out of memory says all"


def test_nothing_is_loaded_at_import() -> None:
    program = "import sys, turnout_cuda; print('cupy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
