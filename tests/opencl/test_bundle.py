"""Bundles of OpenCL C: built without a device, and loaded on one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

pytest.importorskip("turnout_opencl", reason="turnout-opencl is not installed")

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, Param, Scalar

N = 5_000


def law(policy: str) -> tn.Kernel:
    @tn.kernel
    def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
        force = tm.dispatch(
            regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)], policy=policy
        )
        v_new = v / 3.0 + dt * force

    return drag


def arguments(dtype: Any) -> tuple[Any, ...]:
    random = np.random.default_rng(3)
    return random.integers(-1, 5, N), random.normal(size=N).astype(dtype)


@pytest.mark.parametrize("policy", ["switch", "segmented", "auto"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_loaded_kernel_gives_the_bits_of_the_original(
    tmp_path: Path, put: Callable[[Any], Any], policy: str, dtype: Any
) -> None:
    tn.build([law(policy)], tmp_path / "b", targets=["opencl"], dtype=dtype)
    regime, v = map(put, arguments(dtype))
    results = []
    for kernel in (law(policy), tn.load(tmp_path / "b", "drag", device="opencl")):
        out = put(np.zeros(N, dtype))
        for _ in range(3):
            kernel(0.1, regime, v, out)
        results.append(tn.to_numpy(out).tobytes())
    assert results[0] == results[1]


def test_counters_and_host_arrays(tmp_path: Path) -> None:
    tn.build([law("auto")], tmp_path / "b", targets=["opencl"])
    regime, v = arguments(np.float64)
    expected = np.zeros(N)
    law("auto")(0.1, regime, v, expected, device="reference")
    for kernel in (law("auto"), tn.load(tmp_path / "b", "drag")):
        out, mix = np.zeros(N), np.zeros(3, np.uint32)
        with pytest.warns(tn.PerformanceWarning, match="are copied there"):
            kernel(0.1, regime, v, out, dispatch0_mix=mix, device="opencl")
        np.testing.assert_allclose(out, expected, rtol=1e-14)
        assert mix.tolist() == np.bincount(np.clip(regime, 0, 2)).tolist()


BUILD_WITHOUT_A_DEVICE = """
import sys
import turnout as tn
import turnout_opencl.devices
from turnout import Scalar
from turnout.plugin import Unavailable

def nothing():
    raise Unavailable("there is no OpenCL", "get some")

turnout_opencl.devices.found = nothing

@tn.kernel
def third(x: Scalar) -> Scalar:
    return x / 3.0

tn.build([third], sys.argv[1], targets=["opencl"], dtype="float32")
"""


def test_it_is_built_without_a_device(
    tmp_path: Path, run_python: Callable[..., CompletedProcess[str]], put: Callable[[Any], Any]
) -> None:
    finished = run_python(BUILD_WITHOUT_A_DEVICE, str(tmp_path / "b"))
    assert finished.returncode == 0, finished.stderr
    third = tn.load(tmp_path / "b", "third", device="opencl")
    x = np.arange(100, dtype=np.float32)
    assert tn.to_numpy(third(put(x))).tobytes() == (x / np.float32(3)).tobytes()
    index = json.loads((tmp_path / "b" / "opencl" / "index.json").read_text())
    (entry,) = index.values()
    assert entry["kind"] == "opencl-c"
    assert "__kernel" in (tmp_path / "b" / entry["file"]).read_text()


def test_architectures_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        tn.CompileError, match="OpenCL C is for any device, not for 'gfx90a'; give the target"
    ):
        tn.build([law("switch")], tmp_path / "b", targets=["opencl:gfx90a"])


def test_a_bundle_for_processors_has_no_code_for_opencl(tmp_path: Path) -> None:
    tn.build([law("switch")], tmp_path / "b", targets=["reference"])
    with pytest.raises(
        tn.BundleError,
        match=r"has no code for opencl:0; it was built for the targets 'reference'\. Build it for "
        "'opencl' too",
    ):
        tn.load(tmp_path / "b", "drag", device="opencl")
