"""A launch: what reaches the driver, and nothing else does."""

from __future__ import annotations

import struct
import threading
import zlib
from typing import Any, ClassVar

import numpy as np
import pytest
from fake_cupy import Array, Error, FakeCupy

import turnout as tn
from turnout import NDArray, Param, bool_, f32, f64, i8, i64, u16
from turnout.plugin import Binary, Device, IndexViolation, Target, ir
from turnout_cuda import turnout_launch
from turnout_cuda.driver import Driver
from turnout_cuda.launcher import CheckingLauncher, CudaLauncher


@tn.kernel
def fill(out: NDArray[f32, 2], value: Param[f32], flag: Param[bool_], step: Param[i64]) -> None:
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = value if flag else f32(step)


@tn.kernel
def scalars(
    out: NDArray[f64, 1], a: Param[i8], b: Param[u16], c: Param[f64], d: Param[bool_]
) -> None:
    for i in range(out.shape[0]):
        out[i] = (a + b + c) if d else 0.0


@tn.kernel
def copied(x: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
    for i in range(out.shape[0]):
        out[i] = x[i]


@tn.kernel
def total(x: NDArray[i64, 1], out: NDArray[i64, 1]) -> None:
    for i in tn.serial(range(x.shape[0])):
        out[0] += x[i]


def unit_of(kernel: tn.Kernel) -> ir.Unit:
    (unit,) = kernel.lower(kernel.default_types()).plan.units
    return unit


def launcher(
    fake: FakeCupy, kernel: tn.Kernel, ordinal: int = 0, make: Any = CudaLauncher
) -> CudaLauncher:
    driver = Driver()
    loaded = driver.load(b"code", "unit", ordinal)
    made: CudaLauncher = make(driver, loaded, unit_of(kernel), ordinal)
    fake.calls.clear()
    return made


def interface(host: np.ndarray[Any, Any], read_only: bool = False, **more: Any) -> Any:
    """An array of another library."""

    class Foreign:
        __cuda_array_interface__: ClassVar[dict[str, Any]] = {
            "data": (host.ctypes.data, read_only),
            "shape": host.shape,
            "strides": None if host.flags.c_contiguous else host.strides,
            "typestr": host.dtype.str,
            "version": 3,
            **more,
        }

    return Foreign()


def test_parameters_are_slots(fake: FakeCupy) -> None:
    out = fake.array(np.zeros((3, 5), np.float32))
    launcher(fake, fill)((out, 1.5, True, -7), 15)
    (packed,) = fake.launches
    words = struct.unpack("=5qf4x?7xq", packed)
    assert words == (out.data.ptr, 3, 5, 20, 4, 1.5, True, -7)


def test_scalars_of_every_width(fake: FakeCupy) -> None:
    out = fake.array(np.zeros(2))
    launcher(fake, scalars)((out, -3, 65535, 0.1, False), 2)
    (packed,) = fake.launches
    assert struct.unpack("=3qb7xH6xd?7x", packed) == (out.data.ptr, 2, 8, -3, 65535, 0.1, False)


def test_strides_of_views(fake: FakeCupy) -> None:
    host = np.zeros((4, 6), np.float32)
    view = Array(fake, host[::-1, ::2], 0)
    launcher(fake, fill)((view, 0.0, False, 0), 12)
    assert struct.unpack("=5q", fake.launches[0][:40]) == (view.data.ptr, 4, 3, -24, 8)


def test_a_repeated_launch_is_one_call(fake: FakeCupy) -> None:
    """No allocation, no wait: exactly the launch, on the current stream."""
    run = launcher(fake, copied)
    x, out = fake.array(np.ones(1000, np.float32)), fake.array(np.zeros(1000, np.float32))
    for _ in range(3):
        run((x, out), 1000)
    assert fake.calls == ["launch 4711 as (4, 1, 1) (256, 1, 1) on stream 0"] * 3
    fake.calls.clear()
    fake.streams[0] = 55
    run((x, out), 1000)
    assert fake.calls == ["launch 4711 as (4, 1, 1) (256, 1, 1) on stream 55"]


def test_grid(fake: FakeCupy) -> None:
    x = fake.array(np.zeros(1, np.float32))
    run = launcher(fake, copied)
    for size, blocks in ((0, None), (1, 1), (256, 1), (257, 2), (2**40, 128)):
        fake.calls.clear()
        run((x, x), size)
        expected = f"launch 4711 as ({blocks}, 1, 1) (256, 1, 1) on stream 0"
        assert fake.calls == ([] if blocks is None else [expected])


def test_a_unit_that_runs_once_takes_one_thread(fake: FakeCupy) -> None:
    x = fake.array(np.zeros(9, np.int64))
    launcher(fake, total)((x, x), 1)
    assert fake.calls == ["launch 4711 as (1, 1, 1) (1, 1, 1) on stream 0"]


def test_a_unit_without_parameters(fake: FakeCupy) -> None:
    """Its structure of slots has one, because C has no structures without members."""
    driver = Driver()
    unit = ir.Unit("nothing", (), (), (), ir.Region((), ()))
    CudaLauncher(driver, driver.load(b"code", "unit", 0), unit, 0)((), 1)
    assert fake.launches == [bytes(8)]


def test_launches_on_the_device_of_the_code(fake: FakeCupy) -> None:
    run = launcher(fake, copied, ordinal=1)
    x = fake.array(np.zeros(1, np.float32), ordinal=1)
    run((x, x), 1)
    assert fake.calls == ["launch 4711 as (1, 1, 1) (256, 1, 1) on stream 100"]
    assert fake.ordinal == 0, "the current device is the caller's again"


def test_code_is_loaded_on_its_device(fake: FakeCupy) -> None:
    Driver().load(b"1234", "unit", 1)
    assert fake.calls == ["load 4 bytes on device 1"]
    fake.failures["load 4 bytes on device 0"] = [Error(209, "no binary for GPU")]
    with pytest.raises(tn.CompileError, match=r"cannot load 'unit': no binary for GPU"):
        Driver().load(b"1234", "unit", 0)


def test_first_launch_of_a_thread(fake: FakeCupy) -> None:
    """A thread starts without a context; only then is one made."""
    x = fake.array(np.zeros(1, np.float32))
    run = launcher(fake, copied)
    launch = "launch 4711 as (1, 1, 1) (256, 1, 1) on stream 0"
    fake.failures[launch] = [Error(201)]
    run((x, x), 1)
    assert fake.calls == [launch, "set device 0", "make a context", launch]


def test_errors_of_a_launch(fake: FakeCupy) -> None:
    x = fake.array(np.zeros(1, np.float32))
    run = launcher(fake, copied)
    launch = "launch 4711 as (1, 1, 1) (256, 1, 1) on stream 0"
    fake.failures[launch] = [Error(700, "illegal address")]
    with pytest.raises(Error, match="illegal address") as caught:
        run((x, x), 1)
    assert "turnout.kernel(debug=True)" in caught.value.__notes__[0]


def test_threads_do_not_share_parameters(fake: FakeCupy) -> None:
    run = launcher(fake, fill)
    out = fake.array(np.zeros((1, 1), np.float32))
    barrier = threading.Barrier(4)

    def work(first: int) -> None:
        barrier.wait()
        for step in range(first, first + 500):
            run((out, 0.0, True, step), 1)

    threads = [threading.Thread(target=work, args=(k * 500,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    steps = sorted(struct.unpack("=q", packed[-8:])[0] for packed in fake.launches)
    assert steps == list(range(2000))


# ---- arrays of other libraries -----------------------------------------------------------------


def test_foreign_arrays_are_taken_where_they_are(fake: FakeCupy) -> None:
    host = np.zeros((2, 3), np.float32)
    run = launcher(fake, fill)
    run((interface(host), 0.0, True, 0), 6)
    run((interface(host[:, ::-1]), 0.0, True, 0), 6)
    first, second = (struct.unpack("=5q", packed[:40]) for packed in fake.launches)
    assert first == (host.ctypes.data, 2, 3, 12, 4)
    assert second == (host.ctypes.data + 8, 2, 3, 12, -4)
    assert len(fake.calls) == 2, "nothing but launches"


@pytest.mark.parametrize(("stream", "current"), [(None, 5), (5, 5), (1, 0), (0, 1), (2, 2)])
def test_no_wait_within_one_stream(fake: FakeCupy, stream: int | None, current: int) -> None:
    fake.streams[0] = current
    x = np.zeros(1, np.float32)
    launcher(fake, copied)((interface(x, stream=stream), interface(x)), 1)
    assert fake.calls == [f"launch 4711 as (1, 1, 1) (256, 1, 1) on stream {current}"]


def test_waits_on_the_device_for_the_stream_of_an_array(fake: FakeCupy) -> None:
    """The host does not wait."""
    fake.streams[0] = 5
    x = np.zeros(1, np.float32)
    launcher(fake, copied)((interface(x, stream=9), interface(x)), 1)
    assert fake.calls == [
        "record on stream 9",
        "stream 5 waits",
        "launch 4711 as (1, 1, 1) (256, 1, 1) on stream 5",
    ]


def test_read_only_arrays(fake: FakeCupy) -> None:
    x = np.zeros(1, np.float32)
    run = launcher(fake, copied)
    run((interface(x, read_only=True), interface(x)), 1)
    with pytest.raises(tn.CallError, match="argument 'out' is written by the kernel, but is read-"):
        run((interface(x), interface(x, read_only=True)), 1)


def test_masks_and_refusals(fake: FakeCupy) -> None:
    x = np.zeros(1, np.float32)
    run = launcher(fake, copied)
    with pytest.raises(tn.CallError, match="argument 'x' has a mask"):
        run((interface(x, mask=interface(x)), interface(x)), 1)

    class Tensor:
        @property
        def __cuda_array_interface__(self) -> Any:
            raise RuntimeError("call detach() first")

    expected = "argument 'x', of type Tensor, cannot be shared: call detach"
    with pytest.raises(tn.CallError, match=expected):
        run((Tensor(), interface(x)), 1)


def test_misaligned_arrays_are_refused(fake: FakeCupy) -> None:
    """The GPU would fail, and take all work of the process with it."""
    room = np.zeros(64, np.uint8)
    run = launcher(fake, copied)
    right = fake.array(np.zeros(4, np.float32))
    offset = Array(fake, np.ndarray(4, np.float32, room.data, 2), 0)
    odd_steps = Array(fake, np.ndarray(4, np.float32, room.data, 0, (6,)), 0)
    for wrong, strides in ((offset, 4), (odd_steps, 6)):
        with pytest.raises(tn.CallError) as caught:
            run((right, wrong), 4)
        assert str(caught.value) == (
            "GPUs only access elements at multiples of their size:\n  - argument 'out' starts at "
            f"address {wrong.data.ptr:#x} and has strides of {strides} bytes; pass a copy"
        )
    assert fake.calls == []


def test_arrays_without_elements(fake: FakeCupy) -> None:
    empty = np.zeros(0, np.float32)
    out = interface(np.zeros(1, np.float32))
    launcher(fake, copied)((interface(empty, data=(None, False)), out), 1)
    assert struct.unpack("=3q", fake.launches[0][:24]) == (0, 0, 4)


# ---- index checks, binaries --------------------------------------------------------------------


@pytest.mark.parametrize("words", [[0, 0, 0, 0, 0], [1, 2, 0, 9, 4]])
def test_violations_are_read_back(
    fake: FakeCupy, monkeypatch: pytest.MonkeyPatch, words: list[int]
) -> None:
    run = launcher(fake, copied, make=CheckingLauncher)
    record = fake.array(np.zeros(5, np.int64))
    monkeypatch.setattr(Driver, "new_record", lambda self: record)
    monkeypatch.setattr(Driver, "read_record", lambda self, read: words)
    x = fake.array(np.zeros(4, np.float32))
    if words[0]:
        with pytest.raises(IndexViolation) as caught:
            run((x, x), 4)
        assert caught.value.args == (2, 0, 9, 4)
    else:
        run((x, x), 4)
    assert struct.unpack("=7q", fake.launches[0])[-1] == record.data.ptr


@pytest.mark.parametrize(
    ("kind", "payload", "message"),
    [
        ("llvm-object", b"code", "binary 'unit' is 'llvm-object', not 'cuda-image'"),
        ("cuda-image", b"cod", "the code of binary 'unit' is damaged"),
    ],
)
def test_what_is_no_code_of_ours_is_not_loaded(
    fake: FakeCupy, kind: str, payload: bytes, message: str
) -> None:
    metadata = {"crc32": str(zlib.crc32(b"code")), "debug": "False"}
    device = Device(0, "a GPU", Target("cuda", "sm_90"))
    with pytest.raises(tn.CompileError, match=message):
        turnout_launch(Binary("unit", kind, payload, metadata), device, unit_of(copied))
    assert fake.calls == []
