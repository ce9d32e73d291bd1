"""Right arguments of every kind, devices with memory of their own, threads, and what calls cost."""

from __future__ import annotations

import gc
import os
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_plugins import Site
from hypothesis import given
from hypothesis import strategies as st
from language_support import DEVICES, function_from

import turnout as tn
from turnout import (
    CallError,
    Index,
    Mutable,
    NDArray,
    OutOfBoundsError,
    Param,
    PerformanceWarning,
    Scalar,
    Terminated,
    Vector,
    f32,
    f64,
    i8,
    i64,
)
from turnout.backends import clear

N = 7


@tn.kernel
def scaled(x: Scalar, factor: Param) -> Scalar:
    return x * factor


@tn.kernel
def saxpy(a: Param, x: Scalar, y: Scalar, out: Mutable[Scalar]):
    out = a * x + y


@tn.kernel
def masked_step(x: Scalar, done: Terminated, y: Mutable[Scalar]):
    y = y + x


@tn.kernel
def norm_and_sum(v: Vector[3]) -> tuple[Scalar, Vector[3]]:
    return v[0] * v[0] + v[1] * v[1] + v[2] * v[2], v + 1


@tn.kernel
def looked_up(table: NDArray[f64, 2], at: Index, out: Mutable[Scalar]):
    out = table[at, 1]


@tn.kernel
def transposed(a: NDArray[f32, 2], b: NDArray[f32, 2]) -> None:
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            b[j, i] = a[i, j]


@tn.kernel
def running_sum(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0]):
        b[i] = a[i] + 1


@tn.kernel
def prefix(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
    for i in tn.serial(range(a.shape[0])):
        b[i] = a[i] + 1


@tn.kernel
def filled(a: NDArray[f64, 1], value: Param[f64] = 2.5, start: Param = 1) -> None:
    for i in range(start, a.shape[0]):
        a[i] = value


@tn.kernel
def incremented_bytes(a: NDArray[i8, 1]) -> None:
    for i in range(a.shape[0]):
        a[i] = a[i] + 1


@tn.kernel
def two_stages(a: NDArray[f64, 1], b: NDArray[f64, 1]) -> None:
    total = 0.0
    for i in tn.serial(range(a.shape[0])):
        total = total + a[i]
    for i in range(a.shape[0]):
        b[i] = a[i] / total


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with tn.use(request.param):
        yield request.param


# -- layouts ---------------------------------------------------------------------------------------


def float64_at_odd_address(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    raw = np.zeros(numbers.nbytes + 1, np.uint8)
    odd = raw[1:].view(np.float64)
    odd[:] = numbers
    return odd


class Boastful(np.ndarray):
    """An array that tells another shape than it has."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (10**9,)


LAYOUTS = {
    "contiguous": lambda x: x.copy(),
    "every second": lambda x: np.repeat(x, 2)[::2],
    "reversed": lambda x: x[::-1].copy()[::-1],
    "column": lambda x: np.stack([x, x], 1)[:, 1],
    "misaligned": float64_at_odd_address,
    "subclass": lambda x: x.copy().view(type("Sub", (np.ndarray,), {})),
    "subclass with a shape of its own": lambda x: x.copy().view(Boastful),
}


@pytest.mark.parametrize("out_layout", LAYOUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_planes_of_any_layout(device: str, layout: str, out_layout: str) -> None:
    x = np.array([1.0, -2.0, 3.5, -0.0, 1e300, 6.0, 7.0])
    out = LAYOUTS[out_layout](np.full(N, 9.0))
    saxpy(2.0, LAYOUTS[layout](x), x, out)
    np.testing.assert_array_equal(np.asarray(out), 2 * x + x)


def test_broadcast_inputs_are_read_as_what_they_are(device: str) -> None:
    one, out = np.broadcast_to(np.array([3.0]), (1000,)), np.zeros(1000)
    saxpy(2, one, one, out)
    assert (out == 9).all()


@pytest.mark.parametrize("order", ["C", "F"])
def test_two_axes_in_both_orders_and_transposed(device: str, order: str) -> None:
    a = np.asarray(np.arange(15, dtype=np.float32).reshape(3, 5), order=order)
    b = np.zeros((5, 3), np.float32, order=order)
    transposed(a, b)
    np.testing.assert_array_equal(b, a.T)
    transposed(b[::-1, ::2].T, c := np.zeros((5, 2), np.float32))
    np.testing.assert_array_equal(c, b[::-1, ::2])


@pytest.mark.parametrize("shape", [(1, 6), (6, 1), (1, 1), (0, 3), (3, 0), (0, 0)])
def test_two_axes_of_length_1_or_0(device: str, shape: tuple[int, int]) -> None:
    a, b = np.ones(shape, np.float32), np.zeros(shape[::-1], np.float32)
    transposed(a, b)
    np.testing.assert_array_equal(b, a.T)


def test_a_memory_map_is_read_and_written(device: str, tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "plane", np.float64, "w+", shape=(N,))
    mapped[:] = np.arange(N)
    saxpy(1, mapped, mapped, mapped)
    mapped.flush()
    assert np.fromfile(tmp_path / "plane").tolist() == [2.0 * n for n in range(N)]


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_a_matrix_is_a_two_dimensional_array(device: str) -> None:
    a = np.matrix([[1, 2], [3, 4]], np.float32)
    b = np.zeros((2, 2), np.float32)
    transposed(a, b)
    assert b.tolist() == [[1, 3], [2, 4]]


def test_read_only_inputs_are_only_read(device: str) -> None:
    x = np.arange(float(N))
    x.flags.writeable = False
    assert scaled(x, 2).tolist() == [2.0 * n for n in range(N)]


class Tensor:
    """An array of another library, on the host."""

    dtype, ndim, shape = "tensor.float64", 1, (N,)

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        self.host = host

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.host.__dlpack_device__()

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.host.__dlpack__(**keywords)


def test_dlpack_tensors_are_taken_without_a_copy(device: str) -> None:
    x, out = np.arange(float(N)), np.zeros(N)
    saxpy(2, Tensor(x), Tensor(x), Tensor(out))
    np.testing.assert_array_equal(out, 3 * x)


class OldTensor(Tensor):
    """An array of a library that knows only the first version of DLPack."""

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.host.__dlpack__()


class ConvertibleTensor(OldTensor):
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.host


def test_tensors_of_old_libraries_are_written_where_that_is_known_to_be_right(device: str) -> None:
    x, out = np.arange(float(N)), np.zeros(N)
    assert scaled(OldTensor(x), 2).tolist() == (2 * x).tolist()
    with pytest.raises(CallError, match="argument 'out' is written by the kernel, but is read-on"):
        saxpy(2, x, x, OldTensor(out))
    saxpy(2, x, OldTensor(x), ConvertibleTensor(out))
    np.testing.assert_array_equal(out, 3 * x)


def test_a_tensor_that_cannot_be_taken_is_named(device: str) -> None:
    class Refusing(Tensor):
        def __dlpack__(self, **keywords: Any) -> Any:
            raise BufferError("it requires gradients")

    x = np.arange(float(N))
    with pytest.raises(CallError, match=r"kernel saxpy: argument 'y': .* requires gradients"):
        saxpy(2, x, Refusing(x), x)


def test_pytorch_tensors(device: str) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(5.0, dtype=torch.float64)
    assert scaled(x, 2).tolist() == [0, 2, 4, 6, 8]


# -- lengths ---------------------------------------------------------------------------------------


def test_zero_samples_give_zero_results(device: str) -> None:
    empty = np.zeros(0)
    result = scaled(empty, 2)
    assert (result.shape, result.dtype) == ((0,), np.float64)
    norm, moved = norm_and_sum(np.zeros((3, 0), np.float32))
    assert (norm.shape, moved.shape, moved.dtype) == ((0,), (3, 0), np.float32)
    saxpy(1, empty, empty, empty)


def test_an_empty_table_is_fine_where_nobody_reads_it(device: str) -> None:
    looked_up(np.zeros((0, 2)), np.zeros(0, np.int64), np.zeros(0))


def test_samples_runs_the_first_of_longer_arrays(device: str) -> None:
    x, out = np.arange(float(N)), np.full(N + 2, -1.0)
    saxpy(1, x, x, out, samples=3)
    assert out.tolist() == [0, 2, 4, -1, -1, -1, -1, -1, -1]
    saxpy(1, x, x, out, samples=np.int64(0))
    assert scaled(x, 2, samples=2).tolist() == [0, 2]
    norm, _ = norm_and_sum(np.ones((3, 4)), samples=2)
    assert norm.tolist() == [3, 3]


def test_samples_tells_the_number_where_no_plane_does(device: str) -> None:
    @tn.kernel
    def constant(value: Param) -> Scalar:
        return value

    assert constant(2.5, samples=3).tolist() == [2.5, 2.5, 2.5]
    with pytest.raises(CallError, match="no argument tells the number of samples; give samples="):
        constant(2.5)


def test_masked_samples_keep_their_outputs(device: str) -> None:
    y, done = np.zeros(4), np.array([False, True, False, True])
    masked_step(np.arange(4.0), done, y)
    assert y.tolist() == [0, 0, 2, 0]


def test_returned_samples_that_the_mask_skips_are_zero(device: str) -> None:
    @tn.kernel
    def live(x: Scalar, done: Terminated) -> Scalar:
        return x + 1

    assert live(np.ones(3), np.array([False, True, False])).tolist() == [2, 0, 2]


@pytest.mark.skipif(
    os.environ.get("TURNOUT_LARGE_TESTS") != "1", reason="takes 2 GB; TURNOUT_LARGE_TESTS=1 runs it"
)
def test_more_than_2_to_the_31_elements(device: str) -> None:
    length = 2**31 + 7
    a = np.zeros(length, np.int8)
    incremented_bytes(a)
    assert a[-9:].tolist() == [1] * 9
    assert a[0] == 1


# -- params, defaults, keywords ----------------------------------------------------------------


@pytest.mark.parametrize(
    "order", [("a", "x", "y", "out"), ("out", "y", "x", "a"), ("y", "a", "out", "x")]
)
def test_keywords_in_any_order(device: str, order: tuple[str, ...]) -> None:
    out = np.zeros(N)
    values = {"a": 2, "x": np.arange(float(N)), "y": np.ones(N), "out": out}
    saxpy(**{name: values[name] for name in order})
    np.testing.assert_array_equal(out, 2 * np.arange(N) + 1)


def test_defaults_are_used(device: str) -> None:
    a = np.zeros(3)
    filled(a)
    assert a.tolist() == [0, 2.5, 2.5]
    filled(a, start=2, value=1)
    assert a.tolist() == [0, 2.5, 1]
    filled(a, 4)
    assert a.tolist() == [0, 4, 4]


@pytest.mark.parametrize("first", [0, 0.5, True, np.float32(0.5), np.int8(3), np.array(0.25)])
def test_every_type_of_number_compiles_its_own_code(device: str, first: Any) -> None:
    @tn.kernel
    def scaled(x: Scalar, factor: Param) -> Scalar:
        return x * factor

    x = np.arange(4, dtype=np.float32)
    for factor in (first, 0, 0.5, 1, 0.25, True, np.float32(3), np.int8(2), np.array(0.5, "f4")):
        if isinstance(factor, np.ndarray) and factor.dtype == np.float64:
            continue
        result = scaled(x, factor)
        np.testing.assert_array_equal(result, x * np.asarray(factor, np.float32))
        assert result.dtype == np.float32


def test_weak_ints_and_floats_are_told_apart(device: str) -> None:
    @tn.kernel
    def half(x: Index, by: Param) -> Scalar[f64]:
        return x // by

    x = np.array([1, 2, 3])
    assert half(x, 2).tolist() == [0, 1, 1]
    assert half(x, 0.5).tolist() == [2, 4, 6]
    assert half(x, 1).tolist() == [1, 2, 3]


def test_0d_arrays_and_numpy_scalars_have_their_own_type(device: str) -> None:
    @tn.kernel
    def kept(at: Index, value: Param) -> Scalar[f64]:
        return value * 2

    at = np.zeros(2, np.int64)
    # 300 wraps around in int8 arithmetic: 100 * 2 is -56 there.
    assert kept(at, np.array(100, np.int8)).tolist() == [-56, -56]
    assert kept(at, np.array(100)).tolist() == [200, 200]
    assert kept(at, np.int8(100)).tolist() == [-56, -56]
    assert kept(at, 100).tolist() == [200, 200]


def test_a_float_beyond_float32_becomes_infinite_without_a_warning(device: str) -> None:
    @tn.kernel
    def with_pinned(x: Scalar[f32], y: Param[f32]) -> Scalar[f32]:
        return x + y

    x = np.zeros(1, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert with_pinned(x, 1e300).tolist() == [np.inf]
        assert with_pinned(x, 1e-300).tolist() == [0]
        assert with_pinned(x, np.float64(0.1)).tolist() == [np.float32(0.1)]


@given(number=st.integers(-(2**63), 2**63 - 1))
def test_every_int64_passes_unchanged(number: int) -> None:
    assert kept_integer(np.zeros(1, np.int64), number).tolist() == [number]


@tn.kernel
def kept_integer(at: Index, number: Param) -> Index:
    return at * 0 + number


# -- aliasing --------------------------------------------------------------------------------------


def test_a_plane_may_be_its_own_output(device: str) -> None:
    x = np.arange(float(N))
    saxpy(2, x, x, x)
    assert x.tolist() == [3.0 * n for n in range(N)]
    saxpy(1, x[:], x[:], x[:])
    assert x.tolist() == [6.0 * n for n in range(N)]


def test_one_element_is_the_same_at_any_stride(device: str) -> None:
    cells = np.arange(4.0)
    running_sum(cells[1:2], cells[1:2][::-1])
    assert cells.tolist() == [0, 2, 2, 3]


def test_a_serial_loop_sees_what_it_stored(device: str) -> None:
    cells = np.zeros(5)
    prefix(cells[:4], cells[1:])
    assert cells.tolist() == [0, 1, 2, 3, 4]


# -- debug -----------------------------------------------------------------------------------------


def line_of(kernel: tn.Kernel, text: str) -> int:
    lines = kernel.source.source.lines
    offset = next(n for n, line in enumerate(lines) if text in line)
    return kernel.source.source.first_line + offset


@tn.kernel(debug=True)
def picked(table: NDArray[f64, 2], row: Index, column: Param) -> Scalar:
    first = table[row, 0]
    return first + table[row, column]


@tn.kernel(debug=True)
def shifted(a: NDArray[i64, 1], b: NDArray[i64, 1], by: Param, n: Param) -> None:
    total = 0
    for i in tn.serial(range(n)):
        total = total + a[i]
    for i in range(n):
        b[i] = a[i + by] + total


def test_right_indices_pass_in_debug_mode(device: str) -> None:
    table = np.arange(6.0).reshape(3, 2)
    assert picked(table, np.array([0, 2, -1]), 1).tolist() == [1, 9, 9]


@pytest.mark.parametrize(
    ("row", "column", "text", "words"),
    [
        (3, 1, "first =", "index 3 is out of bounds for axis 0 of 'table', which has length 3"),
        (-4, 1, "first =", "index -4 is out of bounds for axis 0 of 'table', which has length 3"),
        (0, 2, "return", "index 2 is out of bounds for axis 1 of 'table', which has length 2"),
        (0, -3, "return", "index -3 is out of bounds for axis 1 of 'table', which has length 2"),
    ],
)
def test_a_bad_index_is_reported_with_its_line(
    device: str, row: int, column: int, text: str, words: str
) -> None:
    with pytest.raises(OutOfBoundsError) as caught:
        picked(np.zeros((3, 2)), np.array([0, row]), column)
    line = line_of(picked, text)
    assert str(caught.value) == f"kernel picked, {__file__}:{line}: {words}"
    assert isinstance(caught.value, IndexError)


def test_later_units_report_their_own_lines(device: str) -> None:
    a, b = np.arange(4), np.zeros(4, np.int64)
    shifted(a, b, 0, 4)
    assert b.tolist() == [6, 7, 8, 9]
    with pytest.raises(OutOfBoundsError, match=r"index 4 is out of bounds for axis 0 of 'a'") as e:
        shifted(a, b, 1, 4)
    assert f":{line_of(shifted, 'b[i] =')}:" in str(e.value)
    with pytest.raises(OutOfBoundsError, match=r"index 5 is out of bounds for axis 0 of 'a'") as e:
        shifted(np.arange(5), b, 0, 6)
    assert f":{line_of(shifted, 'total = total')}:" in str(e.value)
    with pytest.raises(OutOfBoundsError, match=r"index 4 is out of bounds for axis 0 of 'b'"):
        shifted(np.arange(9), b, 0, 5)


def test_a_bad_index_in_a_helper_is_reported_at_its_call(device: str) -> None:
    helper = function_from("@tn.func\ndef k(a, i):\n    return a[i]\n")

    @tn.kernel(debug=True)
    def calling(a: NDArray[f64, 1], at: Index) -> Scalar:
        return helper(a, at)

    assert calling(np.ones(2), np.array([1])).tolist() == [1]
    with pytest.raises(OutOfBoundsError) as caught:
        calling(np.ones(2), np.array([2]))
    assert f"{__file__}:{line_of(calling, 'helper(')}: index 2 is out" in str(caught.value)


# -- devices with memory of their own --------------------------------------------------------------

FAKE = """
import numpy as np
from turnout import reference
from turnout.plugin import Device, Target, hookimpl

class Array:
    def __init__(self, device, host):
        self.device, self.host = device, host
        self.shape, self.dtype, self.ndim = host.shape, host.dtype, host.ndim

class Launcher:
    direct = None

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, args, size):
        assert not any(isinstance(arg, np.ndarray) for arg in args), "an array on the host"
        self.inner(tuple(arg.host if isinstance(arg, Array) else arg for arg in args), size)

class Memory:
    def __init__(self, device):
        self.device = device

    def owns(self, value):
        return isinstance(value, Array) and value.device == self.device

    def put(self, host):
        return Array(self.device, np.array(host))

    def get(self, value, out):
        out[...] = value.host

@hookimpl
def turnout_devices():
    return [Device(index, "fake", Target("fake", "fake")) for index in range(2)]

@hookimpl
def turnout_compile(unit):
    return reference.turnout_compile(unit=unit)

@hookimpl
def turnout_launch(unit):
    return Launcher(reference.turnout_launch(unit=unit))

@hookimpl
def turnout_memory(device):
    return Memory(device)
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = Site(tmp_path / "site", monkeypatch)
    site.install_backend("fake", FAKE)
    yield site
    monkeypatch.undo()
    clear()


def on_fake(host: Any, device: str = "fake") -> Any:
    return tn.array(np.asarray(host), device=device)


def test_device_arrays_choose_the_device_and_get_device_arrays_back(fake: Site) -> None:
    x = on_fake([1.0, 2.0])
    y = scaled(x, 3)
    assert type(y) is type(x)
    assert tn.to_numpy(y).tolist() == [3, 6]
    out = on_fake([0.0, 0.0])
    saxpy(2, x, x, out)
    assert tn.to_numpy(out).tolist() == [3, 6]


def test_device_arrays_may_be_their_own_output_but_not_a_table(fake: Site) -> None:
    x = on_fake([1.0, 2.0])
    saxpy(2, x, x, x)
    assert tn.to_numpy(x).tolist() == [3, 6]

    @tn.kernel
    def gathered(table: NDArray[f64, 1], at: Index, out: Mutable[Scalar]):
        out = table[at]

    with pytest.raises(CallError, match="arguments 'table' and 'out' overlap in memory"):
        gathered(x, on_fake([0, 1]), x)


def test_numpy_arrays_are_copied_there_and_back_with_one_warning(fake: Site) -> None:
    @tn.kernel
    def saxpy(a: Param, x: Scalar, y: Scalar, out: Mutable[Scalar]):
        out = a * x + y

    x, out = np.array([1.0, 2.0]), np.zeros((2, 2))[:, 1]
    with pytest.warns(PerformanceWarning) as caught:
        saxpy(2, x, x, out, device="fake")
    saxpy(2, x, x, out, device="fake")
    (warning,) = caught
    assert warning.filename == __file__
    assert str(warning.message) == (
        "kernel saxpy runs on fake:0; the NumPy arrays x, y, out are copied there, and the written "
        "ones back, at every call. Keep them there with turnout.array(x). This is said once per "
        "kernel"
    )
    assert out.tolist() == [3, 6]


@pytest.mark.filterwarnings("ignore::turnout.PerformanceWarning")
def test_results_live_where_the_arguments_do(fake: Site) -> None:
    x = np.array([1.0, 2.0])
    result = scaled(x, 3, device="fake")
    assert isinstance(result, np.ndarray)
    assert result.tolist() == [3, 6]

    @tn.kernel
    def added(x: Scalar, y: Scalar) -> Scalar:
        return x + y

    mixed = added(x, on_fake(x), device="fake")
    assert tn.to_numpy(mixed).tolist() == [2, 4]
    assert not isinstance(mixed, np.ndarray)


@pytest.mark.filterwarnings("ignore::turnout.PerformanceWarning")
def test_aliases_stay_aliases_on_the_device(fake: Site) -> None:
    cells = np.zeros(4)
    with tn.use("fake"):
        prefix(cells, cells[:])
    assert cells.tolist() == [1, 1, 1, 1]
    with tn.use("fake"), pytest.raises(CallError) as caught:
        prefix(cells[:3], cells[1:])
    assert str(caught.value) == (
        "kernel prefix: arguments 'b' and 'a' overlap in memory and would be copied to fake:0 "
        "apart, though the kernel writes to one of them; move the whole memory there with "
        "turnout.array(x) and slice it there"
    )
    assert cells.tolist() == [1, 1, 1, 1]


@pytest.mark.filterwarnings("ignore::turnout.PerformanceWarning")
def test_a_read_only_output_is_refused_before_it_is_copied(fake: Site) -> None:
    out = np.zeros(2)
    out.flags.writeable = False
    with pytest.raises(CallError, match="argument 'out' is written by the kernel, but is read-onl"):
        saxpy(2, np.ones(2), np.ones(2), out, device="fake")


def test_scratch_memory_is_on_the_device(fake: Site) -> None:
    a, b = on_fake([1.0, 3.0]), on_fake([0.0, 0.0])
    two_stages(a, b)
    assert tn.to_numpy(b).tolist() == [0.25, 0.75]


def test_arrays_of_two_homes_are_refused(fake: Site) -> None:
    x, y = on_fake([1.0]), on_fake([1.0], "fake:1")
    with pytest.raises(CallError) as caught:
        saxpy(1, x, y, x)
    assert str(caught.value) == (
        "the arrays of one call of saxpy live on several devices: argument 'x' (Array) is on "
        "fake:0; argument 'y' (Array) is on fake:1; argument 'out' (Array) is on fake:0. Move them "
        "to one of these with turnout.array(x, device=...)"
    )
    with pytest.raises(CallError, match="call of saxpy is to run on fake:1, but has arrays elsew"):
        saxpy(1, x, x, x, device="fake:1")


def test_each_device_has_its_own_executable(fake: Site) -> None:
    for device in ("fake:0", "fake:1", "fake:0"):
        assert tn.to_numpy(scaled(on_fake([2.0], device), 3)).tolist() == [6]


def test_device_arrays_of_no_known_device_are_refused_on_the_host(fake: Site) -> None:
    x = on_fake([1.0])
    x.device = None  # so no device owns it
    with pytest.raises(CallError, match="argument 'x' is a Array, not a NumPy array"):
        scaled(x, 2, device="reference")


def test_types_and_lengths_of_device_arrays_are_checked(fake: Site) -> None:
    x = on_fake([1.0, 2.0])
    with pytest.raises(CallError, match="argument 'y' has the dtype int64"):
        saxpy(1, x, on_fake([1, 2]), x)
    with pytest.raises(CallError, match="'x' has 2, 'y' has 3"):
        saxpy(1, x, on_fake([1.0, 2.0, 3.0]), x)


@pytest.mark.filterwarnings("ignore::turnout.PerformanceWarning")
def test_every_way_to_choose_the_device(fake: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    @tn.kernel
    def constant(value: Param) -> Scalar:
        return value

    host = constant(1.0, samples=1)
    assert isinstance(host, np.ndarray)
    with tn.use("fake"):
        assert not isinstance(constant(1.0, samples=1), np.ndarray)
    assert not isinstance(constant(1.0, samples=1, device="fake:1"), np.ndarray)
    tn.set_default_device("fake")
    assert not isinstance(constant(1.0, samples=1), np.ndarray)
    with ThreadPoolExecutor(1) as pool:
        assert not isinstance(pool.submit(constant, 1.0, samples=1).result(), np.ndarray)
    monkeypatch.setenv("TURNOUT_BACKEND", "reference")
    tn.set_default_device(None)
    assert isinstance(constant(1.0, samples=1), np.ndarray)


# -- threads ---------------------------------------------------------------------------------------

COUNTING = """
from turnout import reference
from turnout.plugin import Device, Target, hookimpl

compiled = []

def before_compile():
    pass

@hookimpl
def turnout_devices():
    return [Device(0, "counting", Target("counting", "fake"))]

@hookimpl
def turnout_compile(unit):
    compiled.append(unit.name)
    before_compile()
    return reference.turnout_compile(unit=unit)

@hookimpl
def turnout_launch(unit):
    return reference.turnout_launch(unit=unit)
"""


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    monkeypatch.setenv("TURNOUT_CACHE", "off")
    Site(tmp_path / "site", monkeypatch).install_backend("counting", COUNTING)
    with tn.use("counting"):
        module = sys.modules["dist_counting_module"]
    yield module
    monkeypatch.undo()
    clear()


def run_at_once(calls: list[Any]) -> list[Any]:
    """Call all functions from as many threads, at the same moment."""
    barrier = threading.Barrier(len(calls))

    def run(call: Any) -> Any:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def test_sixteen_threads_compile_one_kernel_once(counting: types.ModuleType) -> None:
    @tn.kernel
    def doubled(x: Scalar) -> Scalar:
        return x * 2

    def call(number: int) -> Any:
        return lambda: doubled(np.full(3, float(number)), device="counting").tolist()

    results = run_at_once([call(number) for number in range(16)])
    assert results == [[2.0 * number] * 3 for number in range(16)]
    assert counting.compiled == ["doubled"]


def test_every_type_is_compiled_once(counting: types.ModuleType) -> None:
    @tn.kernel
    def doubled(x: Scalar, by: Param) -> Scalar:
        return x * by

    for _ in range(2):
        for width in (np.float32, np.float64):
            for by in (2, 2.0, np.float32(2), True):
                doubled(np.ones(3, width), by, device="counting")
    assert len(counting.compiled) == 8


def kernels(count: int) -> list[tn.Kernel]:
    def make(factor: int) -> tn.Kernel:
        @tn.kernel
        def multiplied(x: Scalar) -> Scalar:
            return x * factor

        return multiplied

    return [make(factor) for factor in range(count)]


def test_sixteen_threads_compile_sixteen_kernels(device: str) -> None:
    def call(kernel: tn.Kernel) -> Any:
        return lambda: kernel(np.ones(3), device=device).tolist()

    results = run_at_once([call(kernel) for kernel in kernels(16)])
    assert results == [[float(factor)] * 3 for factor in range(16)]


def test_threads_with_different_arguments_do_not_mix(device: str) -> None:
    def call(number: int) -> Any:
        def many() -> bool:
            x, out = np.arange(50.0) + number, np.zeros(50)
            for repeat in range(50):
                two_stages(x, out, device=device)
                if not np.array_equal(out, x / sum(x.tolist())):
                    return False
                saxpy(repeat, x, x, out, device=device)
                if not np.array_equal(out, repeat * x + x):
                    return False
            return True

        return many

    assert all(run_at_once([call(number) for number in range(8)]))


def test_a_kernel_can_be_called_while_it_is_compiled(
    counting: types.ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = kernels(3)[2]
    seen = []

    def call_it() -> None:
        if len(counting.compiled) == 1:
            seen.append(kernel(np.ones(1, np.float32), device="counting").tolist())

    monkeypatch.setattr(counting, "before_compile", call_it)
    assert kernel(np.ones(2), device="counting").tolist() == [2, 2]
    assert seen == [[2.0]]


# -- memory ----------------------------------------------------------------------------------------


def test_kernels_hold_no_array_alive(device: str) -> None:
    x, out = np.ones(N), np.zeros(N)
    saxpy(1, x, x, out)
    result = scaled(x, 2)
    watched = [weakref.ref(array) for array in (x, out, result)]
    del x, out, result
    gc.collect()
    assert [reference() for reference in watched] == [None, None, None]


def test_dropped_kernels_are_freed(device: str) -> None:
    made = kernels(20)
    for kernel in made:
        kernel(np.ones(2))
    watched = [weakref.ref(kernel) for kernel in made]
    del made, kernel
    gc.collect()
    assert not any(reference() for reference in watched)


def test_representation() -> None:
    assert repr(saxpy) == (
        "<turnout.kernel saxpy(a: Param, x: Scalar, y: Scalar, out: Mutable[Scalar])>"
    )


def test_options_are_checked() -> None:
    with pytest.raises(tn.KernelError, match=r"kernel\(fastmath=1\): give True or False"):
        tn.kernel(fastmath=1)
    with pytest.raises(tn.KernelError, match="is compiled already; decorate the plain function"):
        tn.kernel(saxpy)
