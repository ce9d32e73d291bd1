"""The backend itself: devices, compilation, launches, clocks, numbers."""

from __future__ import annotations

import pytest

pytest.importorskip("turnout_opencl", reason="turnout-opencl is not installed")

import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyopencl as cl

import turnout as tn
import turnout.math as tm
from turnout import NDArray, Param, Scalar, f32, f64, i32
from turnout.backends import backend
from turnout.cfamily.operations import Helpers
from turnout.cfamily.renderer import update_function
from turnout.demo import KERNEL_IMPLEMENTATIONS, Demo, load_airports
from turnout.errors import CompileError
from turnout.plugin import Binary, Options, cfamily, ir

Put = Callable[[Any], Any]


@tn.kernel
def scale(x: NDArray[f32, 1], factor: Param[f32], out: NDArray[f32, 1]) -> None:
    for i in range(out.shape[0]):
        out[i] = x[i] * factor


def unit_of(kernel: tn.Kernel, width: ir.DType = f32) -> ir.Unit:
    (unit,) = kernel.lower(kernel.default_types(width)).plan.units
    return unit


def device() -> Any:
    return tn.devices("opencl")[0]


def compiled(unit: ir.Unit, target: Any = None, **options: Any) -> Binary:
    hook = backend("opencl").hook
    made = hook.turnout_compile(
        unit=unit, target=target or device().target, options=Options(**options)
    )
    assert isinstance(made, Binary)
    return made


# ---- compilation ---------------------------------------------------------------------------------


def test_a_device_that_is_not_there_can_be_compiled_for() -> None:
    target = replace(device().target, arch="another device")
    binary = compiled(unit_of(scale), target)
    assert binary.kind == "opencl-c"
    assert b"__kernel void unit_scale(" in binary.payload
    assert binary.metadata["dense_entry"] == "unit_scale_rows"


def test_float64_is_refused_where_the_device_has_none() -> None:
    target = replace(device().target, features=frozenset({"bounds"}))

    @tn.kernel
    def wide(x: NDArray[f64, 1]) -> None:
        for i in range(x.shape[0]):
            x[i] = x[i] * 2

    with pytest.raises(CompileError, match=r"computes in float64, which .* cannot"):
        compiled(unit_of(wide), target)
    compiled(unit_of(scale), target)


def test_updates_of_64_bits_are_refused_where_the_device_has_none() -> None:
    target = replace(device().target, options=())

    @tn.kernel
    def count(x: NDArray[tn.i64, 1]) -> None:
        for i in tn.parallel(range(10)):
            x[0] += i

    with pytest.raises(CompileError, match="updates shared elements of 64 bits"):
        compiled(unit_of(count), target)


def test_large_local_arrays_are_refused() -> None:
    @tn.kernel
    def large(x: NDArray[f32, 1]) -> None:
        for i in range(x.shape[0]):
            a, b = tm.zeros(15_000, f32), tm.zeros(15_000, f32)
            c, d, e = tm.zeros(15_000, f32), tm.zeros(15_000, f32), tm.zeros(15_000, f32)
            a[i] = x[i] + b[i] + c[i] + d[i] + e[i]
            x[i] = a[0]

    with pytest.raises(CompileError, match="take 300000 bytes, at most 262144 are allowed"):
        compiled(unit_of(large))


def test_local_arrays_of_a_group_fit_the_stack(put: Put) -> None:
    @tn.kernel
    def deep(x: NDArray[f32, 1]) -> None:
        for i in range(x.shape[0]):
            room = tm.zeros(16_000, f32)
            room[i % 16_000] = x[i]
            x[i] = room[i % 16_000] + room[(i + 1) % 16_000]

    x = put(np.arange(1000, dtype=np.float32))
    deep(x)
    assert tn.to_numpy(x).tolist() == list(range(1000))


def test_a_refused_text_is_a_compile_error_with_the_log() -> None:
    binary = compiled(unit_of(scale))
    metadata = {**binary.metadata, "source": "__kernel void broken("}
    broken = Binary(binary.entry, "opencl-c", b"", metadata)
    with pytest.raises(CompileError) as caught:
        backend("opencl").hook.turnout_launch(binary=broken, device=device(), unit=unit_of(scale))
    assert "error" in str(caught.value)
    damaged = Binary(binary.entry, "opencl-program", b"damaged", binary.metadata)
    with pytest.raises(CompileError):
        backend("opencl").hook.turnout_launch(binary=damaged, device=device(), unit=unit_of(scale))


class _Racing:
    """A driver whose first build fails without a word, as PoCL's does in a race."""

    def __init__(self, log: str, failures: int) -> None:
        self.log, self.failures, self.builds = log, failures, 0

    def __call__(self, context: Any, source: str) -> Any:
        return SimpleNamespace(_build=self.build, get_build_info=lambda *_: self.log)

    def build(self, options: bytes, devices: Any) -> None:
        self.builds += 1
        if self.builds <= self.failures:
            raise cl.LogicError("BUILD_PROGRAM_FAILURE")


@pytest.mark.parametrize(
    ("log", "failures", "builds", "fails"),
    [("", 1, 2, False), ("", 2, 2, True), ("error: wrong", 1, 1, True)],
)
def test_a_build_that_fails_without_a_word_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch, log: str, failures: int, builds: int, fails: bool
) -> None:
    from turnout_opencl import compiler

    driver = _Racing(log, failures)
    monkeypatch.setattr(cl._cl, "_Program", driver)
    monkeypatch.setattr(cl, "Program", lambda program: program)
    if fails:
        with pytest.raises(compiler.BuildError, match=log or "BUILD_PROGRAM_FAILURE"):
            compiler.build(None, None, "", "")
    else:
        compiler.build(None, None, "", "")
    assert driver.builds == builds


# ---- launches ------------------------------------------------------------------------------------


def test_threads_share_a_kernel(put: Put) -> None:
    failures = []

    def work(factor: int) -> None:
        x, out = put(np.ones(5000, np.float32)), put(np.zeros(5000, np.float32))
        for turn in range(50):
            scale(x, factor * 100 + turn, out)
            if not (tn.to_numpy(out) == factor * 100 + turn).all():
                failures.append((factor, turn))

    threads = [threading.Thread(target=work, args=(factor,)) for factor in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_kernels_can_be_pickled_after_use(put: Put) -> None:
    """I6: a kernel that ran on a device holds nothing of it that cannot be pickled."""
    x, out = put(np.ones(3, np.float32)), put(np.zeros(3, np.float32))
    scale(x, 2.0, out)
    assert pickle.loads(pickle.dumps(scale)) is scale


def test_the_timer_counts_nanoseconds(put: Put) -> None:
    timer = tn.timer("opencl")
    x, out = put(np.ones(1 << 22, np.float32)), put(np.zeros(1 << 22, np.float32))
    scale(x, 2.0, out)
    elapsed_ns = timer(lambda: scale(x, 2.0, out))
    # Between the memory of the fastest device and a very slow one.
    assert 1_000 < elapsed_ns < 10_000_000_000


def test_devices_describe_themselves() -> None:
    described = device()
    assert described.target.backend == "opencl"
    assert described.memory_bytes > 0
    assert "bounds" in described.target.features


# ---- numbers -------------------------------------------------------------------------------------


def test_a_unit_without_parameters() -> None:
    """Its structure has room for 8 bytes, which have to be given."""

    @tn.kernel
    def nothing() -> None:
        for i in tn.parallel(range(1000)):
            j = i * 2

    for options in ({}, {"debug": True}):
        unit = unit_of(nothing)
        launcher = backend("opencl").hook.turnout_launch(
            binary=compiled(unit, **options), device=device(), unit=unit
        )
        launcher((), 1000)
        launcher((), 0)
    nothing(device="opencl")
    tn.sync("opencl")


def test_65536_updates_with_exact_returns(put: Put) -> None:
    """M5: the value before each update is a slot of its own, for floats of both widths and int."""
    n = 65_536
    opened = put(np.zeros(1)).queue
    for dtype in (ir.f32, ir.i32, ir.i64, ir.u16, *([ir.f64] if _has_f64() else [])):
        helpers = Helpers(cfamily.OPENCL_C)
        update = update_function(helpers, "add", dtype)
        count = n if dtype is not ir.u16 else n - 1
        text = "\n".join(
            [
                cfamily.OPENCL_C.prelude,
                cfamily.OPENCL_C.prelude_f64 if dtype is ir.f64 else "",
                cfamily.OPENCL_C.prelude_atomics_64,
                *helpers.definitions.values(),
                "__kernel void k(__global u8 *total, __global int *slots) {",
                f"    if (get_global_id(0) >= {count}) return;",
                f"    slots[(int){update}(total, ({dtype})1)] += 1;",
                "}",
            ]
        )
        from turnout_opencl import compiler

        program = compiler.build(opened.context, opened.device, text, "")
        total, slots = put(np.zeros(4, dtype)), put(np.zeros(n, np.int32))
        kernel = cl.Kernel(program, "k")
        kernel.set_args(total.base_data, slots.base_data)
        cl.enqueue_nd_range_kernel(opened, kernel, (n,), (128,))
        assert tn.to_numpy(total).tolist() == [count, 0, 0, 0], dtype
        assert tn.to_numpy(slots)[:count].tolist() == [1] * count, dtype


def test_65536_updates_of_one_element(put: Put) -> None:
    @tn.kernel
    def count(total: NDArray[f32, 1], places: NDArray[i32, 1]) -> None:
        for i in tn.parallel(range(65_536)):
            total[0] += 1.0
            places[i % 3] += 1

    total, places = put(np.zeros(1, np.float32)), put(np.zeros(3, np.int32))
    count(total, places)
    assert tn.to_numpy(total).tolist() == [65_536]
    assert tn.to_numpy(places).tolist() == [21_846, 21_845, 21_845]


def _has_f64() -> bool:
    return "f64" in device().target.features


def test_products_and_sums_are_rounded_one_by_one(put: Put) -> None:
    """M1: nothing is fused, also where products cancel, and Kahan's sum keeps its correction."""

    @tn.kernel
    def cancelling(a: Scalar, b: Scalar, c: Scalar, d: Scalar) -> tuple[Scalar, Scalar]:
        return a * b + c, a * b - c * d

    @tn.kernel
    def kahan(x: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
        total, lost = f32(0), f32(0)
        for i in range(x.shape[0]):
            y = x[i] - lost
            t = total + y
            lost = (t - total) - y
            total = t
        out[0] = total

    random = np.random.default_rng(3)
    for width in (np.float32, *([np.float64] if _has_f64() else [])):
        a, b, d = (random.normal(size=4096).astype(width) for _ in range(3))
        c = (-a * b).astype(width)
        first, second = (tn.to_numpy(r) for r in cancelling(put(a), put(b), put(c), put(d)))
        assert (first == a * b + c).all()
        assert (second == a * b - c * d).all()
    x = random.normal(size=10_001).astype(np.float32)
    out, expected = put(np.zeros(1, np.float32)), np.zeros(1, np.float32)
    kahan(put(x), out)
    kahan(x, expected, device="reference")
    assert tn.to_numpy(out).tobytes() == expected.tobytes()


def test_nan_infinities_and_zeros_are_the_same_everywhere(put: Put) -> None:
    """M3: through minimum, maximum, min, max, select, comparisons and casts."""

    @tn.kernel
    def table(
        x: Scalar, y: Scalar
    ) -> tuple[Scalar, Scalar, Scalar, Scalar, Scalar, tn.Index, tn.Index]:
        return (
            tm.minimum(x, y), tm.maximum(x, y), min(x, y), max(x, y), tm.select(x < y, x, -y),
            tm.select(x <= y, 1, 0) + tm.select(x != y, 2, 0) + tm.select(tm.isinf(x), 4, 0),
            tn.i64(x),
        )  # fmt: skip

    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 1.5, -3e38], np.float32)
    x, y = (each.ravel() for each in np.meshgrid(values, values))
    got = [tn.to_numpy(each) for each in table(put(x), put(y))]
    for other in ("reference", "cpu"):
        for ours, theirs in zip(got, table(x.copy(), y.copy(), device=other), strict=True):
            assert np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f"), other
            if ours.dtype.kind == "f":
                numbers = ~np.isnan(ours)
                assert (np.signbit(ours) == np.signbit(theirs))[numbers].all(), other


# ---- what is kept --------------------------------------------------------------------------------


def test_what_the_driver_made_of_a_text_is_loaded_again(put: Put) -> None:
    """Drivers without a cache of their own get their programs back from turnout's."""
    from turnout_opencl import compiler

    binary = compiled(unit_of(scale))
    made = compiler._program(binary.metadata["source"], device().target, dict(binary.metadata))
    assert made
    stored = Binary(binary.entry, compiler.PROGRAM, made, binary.metadata)
    launcher = backend("opencl").hook.turnout_launch(
        binary=stored, device=device(), unit=unit_of(scale)
    )
    out = put(np.zeros(300, np.float32))
    launcher((put(np.arange(300, dtype=np.float32)), 3.0, out), 300)
    assert tn.to_numpy(out).tolist() == [3.0 * k for k in range(300)]


def test_a_program_for_a_target_without_an_open_device_is_text() -> None:
    from turnout_opencl import compiler

    target = replace(device().target, arch="another device")
    assert compiler._program("", target, {"options": ""}) is None


def test_text_is_kept_for_reading() -> None:
    binary = compiled(unit_of(scale), keep_text=True)
    assert binary.metadata["text:opencl-c"] == binary.metadata["source"]
    assert binary.metadata["text:unit"].startswith("unit scale")


def test_results_and_scratch_memory_begin_as_zeros(put: Put) -> None:
    """A scalar that one loop leaves for the next passes through scratch memory."""

    @tn.kernel
    def minus_sum(x: NDArray[i32, 1], out: NDArray[i32, 1]) -> None:
        total = i32(0)
        for i in tn.serial(range(x.shape[0])):
            total += x[i]
        for i in range(x.shape[0]):
            out[i] = x[i] - total

    x, out = put(np.arange(500, dtype=np.int32)), put(np.zeros(500, np.int32))
    minus_sum(x, out)
    assert tn.to_numpy(out).tolist() == [k - 124_750 for k in range(500)]


def test_a_kernel_of_three_axes(put: Put) -> None:
    """Positions of several axes come from one number."""

    @tn.kernel
    def place(out: NDArray[tn.i64, 3]) -> None:
        for i in range(out.shape[0]):
            for j in range(out.shape[1]):
                for k in range(out.shape[2]):
                    out[i, j, k] = i * 10_000 + j * 100 + k

    out = put(np.zeros((5, 7, 9), np.int64))
    place(out)
    i, j, k = np.indices((5, 7, 9))
    assert (tn.to_numpy(out) == i * 10_000 + j * 100 + k).all()


# ---- beside other backends -----------------------------------------------------------------------


def test_the_demo_races_it() -> None:
    running = Demo(load_airports(), [60], timed_calls=1)
    running.verify()
    (race,) = running.race()
    there = {each.name: each for each in race.measured if each.device == "opencl:0"}
    assert {f"{each.__name__}@opencl.0" for each in KERNEL_IMPLEMENTATIONS} == set(there)
    assert all(len(each.samples_ns) == 1 for each in there.values())


def test_what_is_said_where_pyopencl_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from turnout_opencl import devices

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(tn.Unavailable) as caught:
        devices._listed.__wrapped__()
    assert caught.value.reason == "pyopencl, through which OpenCL is used, is not installed"
    assert caught.value.fix == "python -m pip install --upgrade pyopencl"
