"""Sizes, strides and overlap: what a kernel is given is what it reads and writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import turnout as tn

from . import kernels
from .compare import assert_same_bits
from .device import DeviceUnderTest

SIZES = (0, 1, 2, 3, 7, 17, 63, 64, 65, 1023, 1024, 1025, 100_003)


def values(size: int, dtype: Any = np.float32) -> Any:
    """Small whole numbers, of which no result is rounded."""
    return np.random.default_rng(size).integers(-99, 100, size).astype(dtype)


@pytest.mark.parametrize("size", SIZES)
def test_sizes(device: DeviceUnderTest, size: int) -> None:
    """Every size, and nothing is written beyond the end."""
    x, y = values(size), values(size + 1)[:size]
    room = np.full(size + 16, 7, np.float32)
    device.run(kernels.combine, x, y, room[8 : size + 8])
    assert_same_bits(room[8 : size + 8], x * 3 - y, f"size {size}")
    assert (room[:8] == 7).all(), "elements before the array were written"
    assert (room[size + 8 :] == 7).all(), "elements after the array were written"


@pytest.mark.parametrize("size", SIZES)
def test_sizes_of_samples(device: DeviceUnderTest, size: int) -> None:
    """The same in the per-sample form."""
    x = values(size)
    out = np.full(size, 7, np.float32)
    device.run(kernels.affine, x, 0.5, out)
    assert_same_bits(out, x * np.float32(0.5) + 1, f"size {size}")


def test_the_first_samples_only(device: DeviceUnderTest) -> None:
    """``samples=`` leaves the others alone."""
    x, out = values(1025), np.full(1025, 7, np.float32)
    moved = device.put(out)
    kernels.affine(device.put(x), 2, moved, samples=1000, device=str(device))
    tn.sync(str(device))
    got = tn.to_numpy(moved)
    assert_same_bits(got[:1000].copy(), x[:1000] * 2 + 1, "the first 1000 samples")
    assert (got[1000:] == 7).all(), "samples after the first 1000 were written"


def misaligned(array: Any) -> Any:
    """A copy that starts at an odd address."""
    room = np.zeros(array.nbytes + 16, np.uint8)
    start = 1 if room.ctypes.data % 2 == 0 else 2
    view = np.ndarray(array.shape, array.dtype, room.data, offset=start)
    view[...] = array
    return view


def read_only(array: Any) -> Any:
    """A copy that cannot be written."""
    copy = array.copy()
    copy.flags.writeable = False
    return copy


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "contiguous": lambda a: a,
    "offset": lambda a: np.concatenate([a[:1], a])[1:],
    "every second": lambda a: np.repeat(a, 2)[::2],
    "reversed": lambda a: a[::-1].copy()[::-1],
    "every third, reversed": lambda a: np.repeat(a[::-1], 3)[::-3],
    "column": lambda a: np.stack([a, a, a], axis=1)[:, 1],
    "misaligned": misaligned,
}
INPUT_LAYOUTS = LAYOUTS | {
    "read-only": read_only,
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
}


@pytest.mark.parametrize("layout", INPUT_LAYOUTS)
def test_layout_of_an_input(device: DeviceUnderTest, layout: str) -> None:
    """Views are read where their elements are."""
    x, y = INPUT_LAYOUTS[layout](values(1025)), values(1025)[::-1].copy()
    out = np.zeros(1025, np.float32)
    device.run(kernels.combine, x, y, out)
    assert_same_bits(out, x * 3 - y, f"a {layout} input")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_of_an_output(device: DeviceUnderTest, layout: str) -> None:
    """Views are written where their elements are, and nowhere else."""
    x, y = values(1025), values(1025)[::-1].copy()
    out = LAYOUTS[layout](np.full(1025, 7, np.float32))
    whole = out if out.base is None else out.base
    before = whole.copy()
    device.call(kernels.combine, x, y, out)
    assert_same_bits(out.copy(), x * 3 - y, f"a {layout} output")
    out[...] = 7
    assert_same_bits(whole, before, f"around a {layout} output")


def test_layouts_mixed(device: DeviceUnderTest) -> None:
    """Every array of a call may be laid out in its own way."""
    for first in INPUT_LAYOUTS.values():
        for second in INPUT_LAYOUTS.values():
            x, y = first(values(67)), second(values(68)[1:])
            out = np.zeros((67, 2), np.float32)[:, 1]
            device.call(kernels.combine, x, y, out)
            assert_same_bits(out.copy(), x * 3 - y, "mixed layouts")


PLANES: dict[str, Callable[[Any], Any]] = {
    "C order": np.ascontiguousarray,
    "Fortran order": np.asfortranarray,
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "flipped": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
    "part of a larger array": lambda a: np.pad(a, 3)[3:-3, 3:-3],
    "strided in both axes": lambda a: np.repeat(np.repeat(a, 2, 0), 3, 1)[::2, ::3],
    "misaligned": misaligned,
}


@pytest.mark.parametrize("layout", PLANES)
def test_layout_of_planes(device: DeviceUnderTest, layout: str) -> None:
    """Arrays of two axes, as inputs and as outputs."""
    given = values(23 * 37, np.int16).reshape(23, 37)
    other = given[::-1].copy()
    expected = given * np.int16(3) - other
    lay = PLANES[layout]
    for x, y, out in (
        (lay(given), other, np.zeros_like(given)),
        (given, lay(other), np.zeros_like(given)),
        (given, other, lay(np.zeros_like(given))),
        (lay(given), lay(other), lay(np.zeros_like(given))),
    ):
        device.call(kernels.combine_planes, x, y, out)
        assert_same_bits(out.copy(), expected, f"planes, {layout}")


def test_broadcast_rows_and_columns(device: DeviceUnderTest) -> None:
    """An axis with stride 0."""
    row, column = values(37, np.int16), values(23, np.int16)[:, None]
    x, y = np.broadcast_to(row, (23, 37)), np.broadcast_to(column, (23, 37))
    out = np.zeros((23, 37), np.int16)
    device.call(kernels.combine_planes, x, y, out)
    assert_same_bits(out, row * np.int16(3) - column, "broadcast planes")


def test_empty_planes(device: DeviceUnderTest) -> None:
    """Either axis may be empty."""
    for shape in ((0, 5), (5, 0), (0, 0)):
        empty = np.zeros(shape, np.int16)
        device.call(kernels.combine_planes, empty, empty.copy(), empty.copy())


def test_in_place(device: DeviceUnderTest) -> None:
    """An input may be the output, element by element, in both forms."""
    x = values(1025)
    own = x.copy()
    device.call(kernels.double, own, own)
    assert_same_bits(own, x * 2, "in place, array form")
    own = x.copy()
    device.call(kernels.affine, own, 3.0, own)
    assert_same_bits(own, x * 3 + 1, "in place, per-sample form")
    own = x.copy()
    device.call(kernels.double, own[::-2], own[::-2])
    assert_same_bits(own[::-2].copy(), x[::-2] * 2, "in place, strided")
    assert_same_bits(own[1::2].copy(), x[1::2], "elements in between")


def test_read_only_output_is_refused(device: DeviceUnderTest) -> None:
    """And stays as it is."""
    out = read_only(values(5))
    before = out.copy()
    with pytest.raises(tn.CallError, match=r"'b' is written by the kernel, but is read-only"):
        device.call(kernels.double, values(5), out)
    assert_same_bits(out, before, "a read-only output")


def test_overlap_is_refused(device: DeviceUnderTest) -> None:
    """Where the result would depend on the order of the elements."""
    whole = values(65)
    before = whole.copy()
    for x, out in ((whole[1:], whole[:-1]), (whole[::-1], whole), (whole[::2], whole[:33])):
        with pytest.raises(tn.CallError, match="'a' and 'b' overlap in memory"):
            device.call(kernels.double, x, out)
    with pytest.raises(tn.CallError, match="'a' and 'out' overlap in memory"):
        device.call(kernels.three_point, whole, whole)
    assert_same_bits(whole, before, "an array whose use was refused")


def test_overlap_in_order(device: DeviceUnderTest) -> None:
    """A loop that runs in order reads what it stored, through whichever argument."""
    whole = values(65)
    running_total = np.cumsum(whole, dtype=np.float32)
    if device.put(whole) is not whole:
        # Memory of its own: two arguments would become two copies.
        with pytest.raises(tn.CallError, match="overlap in memory and would be copied"):
            device.call(kernels.add_in_order, whole[:-1], whole[1:])
        return
    device.call(kernels.add_in_order, whole[:-1], whole[1:])
    assert_same_bits(whole, running_total, "each element added to the next")


def test_interleaved_arrays_do_not_overlap(device: DeviceUnderTest) -> None:
    """Even and odd elements of one array are two arrays."""
    whole = values(64)
    expected = whole[::2] * 2
    device.call(kernels.double, whole[::2], whole[1::2])
    assert_same_bits(whole[1::2].copy(), expected, "interleaved arrays")
