"""Bundles of CUDA C++ that runs on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, Param, Scalar
from turnout_cuda_emulated import machine

pytestmark = pytest.mark.skipif(machine.compiler() is None, reason="there is no C++ compiler")

N = 3_000


def law(policy: str) -> tn.Kernel:
    @tn.kernel
    def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
        force = tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v)], policy=policy)
        v_new = v + dt * force

    return drag


@pytest.mark.parametrize("policy", ["auto", "segmented"])
def test_a_loaded_kernel_gives_the_bits_of_the_original(tmp_path: Path, policy: str) -> None:
    kernels = [law(policy), tn.vjp(law("switch"), wrt=("v",))]
    tn.build(kernels, tmp_path, targets=["cuda_emulated"])
    regime, v = np.arange(N) % 4 - 1, np.linspace(-2.0, 2.0, N)
    results = []
    for drag, gradient in (kernels, [tn.load(tmp_path, k.__name__) for k in kernels]):
        arrays = [tn.array(x, device="cuda_emulated") for x in (regime, v, np.ones(N))]
        out, bar, mix = (
            tn.array(x, device="cuda_emulated")
            for x in (np.zeros(N), np.zeros(N), np.zeros(2, np.uint32))
        )
        for _ in range(2):
            drag(0.1, arrays[0], arrays[1], out, dispatch0_mix=mix)
        gradient(dt=0.1, regime=arrays[0], v=arrays[1], bar_v_new=arrays[2], bar_v=bar)
        results.append([tn.to_numpy(x).tobytes() for x in (out, bar, mix)])
    assert results[0] == results[1]
