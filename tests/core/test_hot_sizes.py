"""``@turnout.kernel(specialise_after=...)``: kernels that specialise themselves."""

from __future__ import annotations

import gc
import pickle
import weakref

import numpy as np
import pytest

import turnout as tn
from turnout import CallError, KernelError, Mutable, NDArray, Param, Scalar, f64
from turnout.hot_sizes import CALLS_WATCHED, MOST_SIZES, Watched

AFTER = 5
SETTLED = 60
"""Calls after which the trial of a shape is over."""

pytest.importorskip("turnout_cpu")


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    monkeypatch.setenv("TURNOUT_CACHE", "off")
    with tn.use("cpu"):
        yield


def make_fir(**options):
    @tn.kernel(specialise_after=AFTER, **options)
    def fir(x: NDArray[f64, 1], h: NDArray[f64, 1], y: NDArray[f64, 1], scale: Param = 1.0):
        for i in range(y.shape[0]):
            total = 0.0
            for k in range(h.shape[0]):
                total += h[k] * x[i + k]
            y[i] = total * scale

    return fir


def call(kernel, size, taps=3, **keywords):
    x = np.arange(float(size))
    y = np.empty(size - taps + 1)
    kernel(x, np.ones(taps), y, **keywords)
    np.testing.assert_array_equal(y, np.convolve(x, np.ones(taps), "valid"))


def watcher(kernel):
    (found,) = kernel._executables.values()
    assert isinstance(found, Watched)
    return found


def force(monkeypatch, chosen, *sizes, taps=3):
    names = [f"fir[x={n},h={taps},y={n - taps + 1}]:{chosen}" for n in sizes]
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_FORCE", ",".join(names))


@pytest.mark.parametrize("chosen", ["any-size", "this-size"])
def test_hot_shapes_are_tried_and_settled(monkeypatch, chosen, capfd):
    force(monkeypatch, chosen, 10)
    fir = make_fir()
    for _ in range(AFTER - 1):
        call(fir, 10)
    assert not watcher(fir)._operations
    for _ in range(SETTLED):
        call(fir, 10)
        call(fir, 11 + _)  # shapes that never become hot
    seen = watcher(fir)
    assert len(seen._operations) == 1
    assert len(fir._entries) == (2 if chosen == "this-size" else 1)
    explained = fir.explain(np.zeros(10), np.zeros(3), np.zeros(8))
    assert chosen in str(explained)
    call(fir, 10)
    call(fir, 12)
    fir(np.zeros(10), np.zeros(3), np.zeros(8), 2.0)
    fir(x=np.zeros(10), h=np.zeros(3), y=np.zeros(8), scale=np.float32(2.0))


def test_errors_are_those_of_the_kernel(monkeypatch, capfd):
    force(monkeypatch, "this-size", 10)
    fir = make_fir()
    for _ in range(SETTLED):
        call(fir, 10)
    with pytest.raises(CallError, match="kernel fir: argument 'x' has shape"):
        fir(np.zeros(9), np.zeros(3), np.zeros(8))
    with pytest.raises(CallError, match="argument 'y' is missing"):
        fir(np.zeros(10), np.zeros(3))
    frozen = np.zeros(8)
    frozen.flags.writeable = False
    with pytest.raises(CallError, match="is read-only"):
        fir(np.zeros(10), np.zeros(3), frozen)
    with pytest.raises(KernelError, match=r"not called often enough with x=\(4,\), h=\(3,\)"):
        fir.explain(np.zeros(4), np.zeros(3), np.zeros(2))


def test_other_types_and_devices_are_right(monkeypatch, capfd):
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_FORCE", "axpy[x=4,y=4,samples=4]:this-size")

    @tn.kernel(specialise_after=AFTER)
    def axpy(a: Param, x: Scalar, y: Mutable[Scalar]):
        y = a * x + y

    for dtype in (np.float64, np.float32):
        for _ in range(SETTLED):
            y = np.ones(4, dtype)
            axpy(2.0, np.ones(4, dtype), y)
            assert y.tolist() == [3.0] * 4
    assert len(axpy._entries) == 2
    y = np.ones(4)
    axpy(2, np.ones(4), y, device="reference")
    axpy(2, np.ones(4), y, samples=3)
    axpy(2, np.ones(4), y, steps=2)
    assert y.tolist() == [9.0, 9.0, 9.0, 7.0]
    with tn.use("reference"):
        axpy(2.0, np.ones(4), y)
    assert y.tolist() == [11.0, 11.0, 11.0, 9.0]


def test_few_shapes_are_tried_and_not_for_ever():
    fir = make_fir()
    for size in range(10, 10 + MOST_SIZES + 2):
        for _ in range(AFTER):
            call(fir, size)
    assert len(watcher(fir)._operations) == MOST_SIZES
    fir = make_fir()
    for size in range(10, 10 + AFTER * CALLS_WATCHED + 5):
        call(fir, size)
    assert not watcher(fir)._operations
    # Calls go the way that they have without all this.
    assert "built-in" in repr(type(fir).__call__)
    for _ in range(AFTER):
        call(fir, 10)
    assert not watcher(fir)._operations


def test_keyword_only_parameters(monkeypatch, capfd):
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_FORCE", "f[x=3,y=3,samples=3]:this-size")

    @tn.kernel(specialise_after=AFTER)
    def f(x: Scalar, *, y: Mutable[Scalar], a: Param = 2.0):
        y = a * x

    for _ in range(SETTLED):
        y = np.empty(3)
        f(np.arange(3.0), y=y)
        assert y.tolist() == [0.0, 2.0, 4.0]


def test_what_is_not_watched():
    stepping = make_fir(steps=2)
    call(stepping, 10)
    assert not isinstance(next(iter(stepping._executables.values())), Watched)
    on_reference = make_fir().on("reference")
    call(on_reference, 10)
    assert not isinstance(next(iter(on_reference._executables.values())), Watched)
    assert make_fir().specialise(h=(3,)).specialise_after == 0


def test_options():
    fir = make_fir()
    assert fir.specialise_after == AFTER
    assert pickle.loads(pickle.dumps(fir)).specialise_after == AFTER
    assert fir.on("cpu").specialise_after == AFTER
    for wrong in (-1, 1.5, True, "10"):
        with pytest.raises(KernelError, match=r"kernel\(specialise_after=.*: give a whole number"):
            tn.kernel(specialise_after=wrong)


def test_kernels_go_with_their_watchers():
    fir = make_fir()
    for _ in range(SETTLED):
        call(fir, 10)
    gone = weakref.ref(fir)
    del fir
    gc.collect()
    assert gone() is None
