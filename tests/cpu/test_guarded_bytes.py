"""Single bytes that are accessed under a condition, next to calls of vector math (AVX-512).

With AVX512DQ, LLVM 22 spills the mask of such an access before its upper half is cleared, and then
writes 8 bytes beyond the vector; see `turnout_cpu.accesses.has_guarded_bytes`.
"""

from __future__ import annotations

import numpy as np
import pytest

import turnout as tn
import turnout.math as tm
import turnout_cpu
from turnout import Mutable, NDArray, Scalar, Terminated, bool_, f32, f64, u8
from turnout.plugin import Device, Options

LENGTHS = [*range(1, 40), 63, 77, 100]
GUARD = 64
"""Elements around the arrays under test that nothing may touch."""


def guarded(n: int, dtype: object, fill: object) -> tuple[np.ndarray, np.ndarray]:
    """An array of `n` elements inside of a larger one."""
    whole = np.full(n + 2 * GUARD, fill, dtype)
    return whole, whole[GUARD : GUARD + n]


@tn.kernel
def step(x: Scalar, y: Mutable[Scalar], done: Terminated):
    y = tm.sin(x)
    done = x > 3


@tn.kernel
def flags32(
    x: NDArray[f32, 1], y: NDArray[f32, 1], skip: NDArray[bool_, 1], out: NDArray[bool_, 1]
):
    for i in range(x.shape[0]):
        if not skip[i]:
            y[i] = tm.sin(x[i])
            out[i] = x[i] > 3


@tn.kernel
def flags64(
    x: NDArray[f64, 1], y: NDArray[f64, 1], skip: NDArray[bool_, 1], out: NDArray[bool_, 1]
):
    for i in range(x.shape[0]):
        if not skip[i]:
            y[i] = tm.sin(x[i])
            out[i] = x[i] > 3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", LENGTHS)
def test_nothing_is_written_but_what_the_mask_lets_through(n: int, dtype: type) -> None:
    x = np.linspace(-3, 20, n).astype(dtype)
    whole_y, y = guarded(n, dtype, 7)
    whole_done, done = guarded(n, np.bool_, True)
    done[:] = np.random.default_rng(n).random(n) < 0.5
    before = done.copy()
    step(x, y, done, device="cpu")
    assert (whole_y[:GUARD] == 7).all()
    assert (whole_y[GUARD + n :] == 7).all()
    assert whole_done[:GUARD].all()
    assert whole_done[GUARD + n :].all()
    assert (y[before] == 7).all()
    np.testing.assert_allclose(y[~before], np.sin(x[~before]), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(done, before | (x > 3))


@pytest.mark.parametrize(("kernel", "dtype"), [(flags32, np.float32), (flags64, np.float64)])
@pytest.mark.parametrize("n", LENGTHS)
def test_array_form(n: int, kernel: tn.Kernel, dtype: type) -> None:
    x = np.linspace(-3, 20, n).astype(dtype)
    _, y = guarded(n, dtype, 7)
    whole_out, out = guarded(n, np.bool_, True)
    skip = np.random.default_rng(n).random(n) < 0.5
    kernel(x, y, skip, out, device="cpu")
    assert whole_out[:GUARD].all()
    assert whole_out[GUARD + n :].all()
    np.testing.assert_array_equal(out, skip | (x > 3))
    assert (y[skip] == 7).all()


@tn.kernel
def threshold(x: NDArray[u8, 1], out: NDArray[u8, 1]):
    for i in range(x.shape[0]):
        if x[i] > 100:
            out[i] = 255


@pytest.mark.parametrize("kernel", [threshold, flags32, flags64])
def test_the_loop_is_vectorised_without_the_wrong_instruction(
    kernel: tn.Kernel, device: Device
) -> None:
    if "+avx512dq" not in ",".join(device.target.options):
        pytest.skip("only AVX512DQ has the instruction")
    (unit,) = kernel.lower(kernel.default_types()).plan.units
    binary = turnout_cpu.turnout_compile(unit, device.target, Options(keep_text=True))
    assert binary.metadata["loop:space"].startswith("vectorised")
    assert "kmovb" not in binary.metadata["text:assembly"]
