"""Situations that are known to hurt, on every backend.

The numbers are those of ``spec/field-scenarios.md``; tests/core/README.md has the table of all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import turnout as tn
from turnout import NDArray, Scalar, f32, i8, i32, i64
from turnout.errors import CallError

from .devices import DEVICES, Host, place

on_each = pytest.mark.parametrize("device", DEVICES)


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


def call(made: Any, device: str, *arrays: Host) -> list[Host]:
    """Call with views that lie on the device as `arrays` do here; what they hold afterwards."""
    placed = [place(array, device) for array in arrays]
    made(*(view for view, _ in placed), device=device)
    return [tn.to_numpy(view) for view, _ in placed]


# ---- how arrays lie ------------------------------------------------------------------------------

VIEWS: dict[str, Callable[[Host], Host]] = {
    "reversed": lambda a: a[::-1],
    "every second": lambda a: a[::2],
    "one element, backwards": lambda a: a[1:0:-1],
    "behind an offset": lambda a: a[5:],
}


def spike() -> Host:
    values = np.zeros(31, np.float32)
    values[1], values[4] = 7, 9
    return values


@pytest.mark.parametrize("name", VIEWS)
@on_each
def test_views_as_inputs_and_outputs(device: str, name: str) -> None:
    """L1: read and written where their elements are; what is between them stays."""
    x = VIEWS[name](spike())
    _, out = call(scale, device, x, np.ones(x.size, np.float32))
    assert out.tolist() == (x * 3).tolist()
    room = np.full(31, 5, np.float32)
    view, read = place(VIEWS[name](room), device)
    given, _ = place(x.copy(), device)
    scale(given, view, device=device)
    VIEWS[name](room)[...] = x * 3
    assert read().tolist() == room.tolist()


@on_each
def test_transposed_inputs_and_outputs(device: str) -> None:
    """L1."""
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    _, out = call(combine, device, x.T, np.zeros((5, 3), np.float32))
    assert out.tolist() == (x.T * 2 + 1).tolist()
    _, out = call(combine, device, x, np.zeros((5, 3), np.float32).T)
    assert out.tolist() == (x * 2 + 1).tolist()


@on_each
def test_an_element_for_many(device: str) -> None:
    """L1: an input of stride 0 is read as it is, an output of stride 0 is refused."""
    wide = np.lib.stride_tricks.as_strided(np.full(1, 5, np.float32), (1000,), (0,))
    _, out = call(scale, device, wide, np.zeros(1000, np.float32))
    assert out.tolist() == [15.0] * 1000
    with pytest.raises(CallError, match="share memory"):
        call(scale, device, np.zeros(1000, np.float32), wide)


@on_each
def test_eight_numbers(device: str) -> None:
    """L9: axes of length 1, broadcast with a stride of 0."""
    shapes = ((2, 1, 2), (1, 2, 1), (2, 2, 2))
    parts = [np.broadcast_to(np.full(s, 1.5, np.float32), (2, 2, 2)) for s in shapes]
    *_, out = call(sum_of_three, device, *parts, np.zeros((2, 2, 2), np.float32))
    assert out.tolist() == np.full((2, 2, 2), 4.5).tolist()


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (0, 0)])
@on_each
def test_empty_arrays(device: str, shape: tuple[int, ...]) -> None:
    """L4: called directly, as results, and by an operation, which keeps their times apart."""
    made: Any = combine if len(shape) == 2 else scale
    empty = np.zeros(shape, np.float32)
    assert [each.shape for each in call(made, device, empty, empty)] == [shape, shape]
    if len(shape) == 1:
        view, _ = place(empty, device)
        assert tn.to_numpy(triple(view, device=device)).shape == shape

    @tn.perf_dispatch(warmup=1, active=1, repeat_after_seconds=0)
    def operation(x: Any, out: Any) -> None: ...

    for name in ("first", "second"):
        operation.register(name=name)(made.on(device))
    x, out = (place(empty, device)[0] for _ in range(2))
    for _ in range(6):  # warm-up, timed, decided
        operation(x, out)
    assert operation.decision(x, out).chosen is not None
    full, into = (place(np.ones((4,) * len(shape), np.float32), device)[0] for _ in range(2))
    operation(full, into)
    assert tn.to_numpy(into).tolist() == np.full((4,) * len(shape), 3).tolist()
    assert operation.decision(full, into).samples == {}  # no time of an empty call counts here


@pytest.mark.filterwarnings("ignore:kernel scale runs on:turnout.PerformanceWarning")
@on_each
def test_inputs_that_may_not_be_written(device: str) -> None:
    """L6: they are read; as outputs they are refused."""
    fixed = np.arange(5, dtype=np.float32)
    fixed.flags.writeable = False
    out = np.zeros(5, np.float32)
    scale(fixed, out, device=device)
    assert out.tolist() == [0, 3, 6, 9, 12]
    with pytest.raises(CallError, match=r"'out' is written by the kernel, but is read-only"):
        scale(out, fixed, device=device)


# ---- many elements -------------------------------------------------------------------------------


@tn.kernel
def mark_last_i8(x: NDArray[i8, 1]) -> None:
    x[x.shape[0] - 1] = 7


@tn.kernel
def mark_last_i32(x: NDArray[i32, 1]) -> None:
    x[x.shape[0] - 1] = 7


@tn.kernel
def mark_last_of_five(x: NDArray[f32, 5]) -> None:
    x[-1, -1, -1, -1, -1] = 7.0


@tn.kernel
def read_at(x: NDArray[i8, 1], at: NDArray[i64, 1], out: NDArray[i8, 1]) -> None:
    for i in range(at.shape[0]):
        out[i] = x[at[i]]


@pytest.mark.parametrize(
    ("shape", "dtype", "made"),
    [
        ((2**29 + 1,), np.int32, mark_last_i32),
        ((2**31,), np.int8, mark_last_i8),
        ((2**31 + 7,), np.int8, mark_last_i8),
        ((66, 66, 66, 200, 32), np.float32, mark_last_of_five),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda_emulated"])
def test_positions_beyond_32_bits(
    device: str, shape: tuple[int, ...], dtype: type, made: Any
) -> None:
    """L3: only the last element is touched, so that the host need not have all that memory.

    The other backends fill it; theirs are tested where `TURNOUT_LARGE_TESTS` allows that.
    """
    x = np.zeros(shape, dtype)
    view = x
    if device == "cuda_emulated":
        from turnout_cuda_emulated.arrays import EmulatedArray

        view = EmulatedArray(x)
    made(view, device=device)
    assert x.flat[-1] == 7
    assert x.flat[-2] == x.flat[0] == 0


@pytest.mark.parametrize("device", ["cpu", "cuda_emulated", "opencl"])
def test_an_axis_longer_than_32_bits_counts(device: str) -> None:
    """L3: many elements that share memory; the reference would make room for a copy of all."""
    wide = np.broadcast_to(np.full(1, 5, np.int8), (2**32 + 3,))
    at = np.array([0, 2**31, 2**32 + 2, -1, -(2**32) - 3])
    x, there, (out, read) = (
        place(wide, device)[0],
        place(at, device)[0],
        place(at.astype(i8), device),
    )
    read_at(x, there, out, device=device)
    assert read().tolist() == [5] * 5
