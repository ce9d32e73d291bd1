"""Forks, many processes, and machines on which something is missing."""

from __future__ import annotations

import pytest

pytest.importorskip("turnout_opencl", reason="turnout-opencl is not installed")

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., "subprocess.CompletedProcess[str]"]

FORK = """
import os, signal, sys
import numpy as np
import turnout as tn
from turnout import Scalar

@tn.kernel
def double(x: Scalar) -> Scalar:
    return x * 2

x = np.arange(3, dtype=np.float32)
there = tn.array(x, device="opencl")
print(tn.to_numpy(double(there)).tolist(), flush=True)
child = os.fork()
if child == 0:
    signal.alarm(30)  # what hangs ends
    print(double(x, device="cpu").tolist(), flush=True)
    for attempt in (lambda: double(there), lambda: tn.array(x, device="opencl")):
        try:
            attempt()
        except tn.Unavailable as error:
            print("refused:", "forked" in str(error), flush=True)
    os._exit(0)
_, status = os.waitpid(child, 0)
print("child", status, flush=True)
print(tn.to_numpy(double(there)).tolist(), flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_is_refused_and_does_not_hang(run_python: Run) -> None:
    """I3: the parent goes on; other backends work in the child."""
    done = run_python(FORK)
    assert done.stdout.splitlines() == [
        "[0.0, 2.0, 4.0]",
        "[0.0, 2.0, 4.0]",
        "refused: True",
        "refused: True",
        "child 0",
        "[0.0, 2.0, 4.0]",
    ], done.stderr


POOL = """
import multiprocessing
import numpy as np
import turnout as tn
from turnout import Scalar

@tn.kernel
def double(x: Scalar) -> Scalar:
    return x * 2

def work(device):
    x = np.arange(3, dtype=np.float32)
    try:
        return double(x, device=device).tolist()
    except tn.Unavailable as error:
        return "forked" in str(error)

if __name__ == "__main__":
    tn.to_numpy(double(tn.array(np.ones(3, np.float32), device="opencl")))
    for device in ("cpu", "opencl"):
        with multiprocessing.get_context("fork").Pool(4) as pool:
            print(pool.map_async(work, [device] * 4).get(60))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_pool(run_python: Run) -> None:
    """I3: other backends work in its processes, and OpenCL says why it does not."""
    done = run_python(POOL)
    results = [[0.0, 2.0, 4.0]] * 4
    assert done.stdout.splitlines() == [str(results), str([True] * 4)], done.stderr


FIRST_USE_IN_CHILD = """
import os, signal
import numpy as np
import turnout as tn
from turnout import Scalar

@tn.kernel
def double(x: Scalar) -> Scalar:
    return x * 2

x = np.arange(3, dtype=np.float32)
double(x, device="cpu")
child = os.fork()
if child == 0:
    signal.alarm(60)
    print(tn.to_numpy(double(tn.array(x, device="opencl"))).tolist(), flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_may_be_the_first_to_use_it(run_python: Run) -> None:
    """Importing turnout touches no driver."""
    done = run_python(FIRST_USE_IN_CHILD)
    assert done.stdout.splitlines() == ["[0.0, 2.0, 4.0]", "0"], done.stderr


MANY = """
import multiprocessing, subprocess, sys, os
import numpy as np

WORK = '''
import sys
import numpy as np
import turnout as tn
from turnout import Scalar

@tn.kernel
def shifted(x: Scalar) -> Scalar:
    return x * 2 + factor

factor = 0
x = tn.array(np.arange(5, dtype=np.float32), device="opencl")
for factor in range(4):
    made = shifted.with_constants(factor=factor)
    assert tn.to_numpy(made(x)).tolist() == [factor + 2 * k for k in range(5)]
'''
open("work.py", "w").write(WORK)
several = [subprocess.Popen([sys.executable, sys.argv[1], "work.py"]) for _ in range(6)]
print([each.wait() for each in several])
"""


def test_processes_build_the_same_kernels_at_once(
    run_python: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: with one empty cache between them."""
    from .conftest import WITH_POCL

    monkeypatch.chdir(tmp_path)
    done = run_python(MANY, str(WITH_POCL), TURNOUT_CACHE_DIR=str(tmp_path / "cache"))
    assert done.stdout.strip() == "[0, 0, 0, 0, 0, 0]", done.stderr


REASON = """
import turnout as tn
status = tn.backends()["opencl"]
print(status.available)
print(status.reason)
print(status.fix)
print(tn.backends()["reference"].available)
"""


def reason(run_python: Run, **environment: str) -> str:
    done = run_python(REASON, **environment)
    available, why, fix, others = done.stdout.splitlines()
    assert available == "False", done.stderr
    assert others == "True"
    assert "pip install" in fix
    return why


def test_no_vendor_file(run_python: Run, tmp_path: Path) -> None:
    """K14: not an exception of the loader, but a reason."""
    why = reason(run_python, OCL_ICD_VENDORS=str(tmp_path / "absent"))
    assert "no OpenCL platform was found" in why
    assert "is no folder" in why


def test_a_vendor_file_that_names_a_missing_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the loader skips silently is named."""
    import pyopencl as cl

    from turnout.errors import Unavailable
    from turnout_opencl import devices

    def no_platform() -> list[object]:
        raise cl.LogicError("PLATFORM_NOT_FOUND_KHR")

    (tmp_path / "broken.icd").write_text("/nowhere/libbroken.so\n")
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path))
    monkeypatch.setattr(cl, "get_platforms", no_platform)
    with pytest.raises(Unavailable) as caught:
        devices._listed.__wrapped__()
    assert "broken.icd names '/nowhere/libbroken.so'" in caught.value.reason
    assert "pip install" in caught.value.fix


@pytest.mark.parametrize("raises", [True, False])
def test_a_platform_without_devices(monkeypatch: pytest.MonkeyPatch, raises: bool) -> None:
    import pyopencl as cl

    from turnout.errors import Unavailable
    from turnout_opencl import devices

    class Platform:
        name, version, vendor = "Bare", "OpenCL 1.2", "nobody"

        def get_devices(self) -> list[object]:
            if raises:
                raise cl.RuntimeError("DEVICE_NOT_FOUND")
            return []

    monkeypatch.setattr(cl, "get_platforms", lambda: [Platform()])
    with pytest.raises(Unavailable, match=r"platform Bare OpenCL 1\.2 has no device"):
        devices._listed.__wrapped__()


def test_no_cache_means_no_files(run_python: Run, tmp_path: Path) -> None:
    """G16: neither turnout nor PoCL keeps anything."""
    done = run_python(
        FIRST_USE_IN_CHILD.replace("os.fork()", "0"),
        TURNOUT_CACHE="off",
        TURNOUT_CACHE_DIR=str(tmp_path / "cache"),
        XDG_CACHE_HOME=str(tmp_path / "home"),
        POCL_CACHE_DIR="",
    )
    assert done.stdout.splitlines() == ["[0.0, 2.0, 4.0]"], done.stderr
    assert not (tmp_path / "cache").exists()
    assert not (tmp_path / "home" / "turnout").exists()
