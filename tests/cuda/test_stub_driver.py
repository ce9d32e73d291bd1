"""CuPy itself, with drivers that find no GPU, in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from cupy.cuda import runtime

from turnout_cuda.diagnosis import driver_version

_LINE = runtime.runtimeGetVersion() // 1000

_DRIVER = """
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuInit(unsigned flags) { return 100; }
"""

_PROGRAM = """
import turnout as tn
status = tn.backends()["cuda"]
print(status.available, status.reason, status.fix, sep="\\n")
print([str(device) for device in tn.devices("reference")])
"""

pytestmark = pytest.mark.skipif(
    driver_version() != 0 or sys.platform != "linux" or shutil.which("cc") is None,
    reason="needs Linux without a driver of NVIDIA, and a C compiler",
)


def status(environment: dict[str, str]) -> tuple[str, str]:
    """Reason and fix in a new process."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
    )
    available, reason, fix, others = done.stdout.splitlines()
    assert available == "False"
    assert others == "['reference:0']", "nothing else is affected"
    return reason, fix


def stub(folder: Path, version: int) -> dict[str, str]:
    """A driver of some version that finds no GPU."""
    source, library = folder / "driver.c", folder / "libcuda.so.1"
    source.write_text(_DRIVER)
    options = ["-shared", "-fPIC", f"-DVERSION={version}", "-o", str(library)]
    subprocess.run(["cc", *options, str(source)], check=True)
    return {"LD_LIBRARY_PATH": str(folder)}


def test_no_driver() -> None:
    reason, fix = status({})
    assert reason == "no NVIDIA driver (libcuda.so.1) is found"
    assert "https://www.nvidia.com/drivers" in fix


def test_driver_without_gpu(tmp_path: Path) -> None:
    environment = stub(tmp_path, runtime.runtimeGetVersion())
    assert status(environment)[0] == "NVIDIA's driver is there, but no GPU"
    reason, fix = status({**environment, "CUDA_VISIBLE_DEVICES": ""})
    assert reason == "no GPU is visible with CUDA_VISIBLE_DEVICES=''"
    assert fix.startswith("unset CUDA_VISIBLE_DEVICES")


def test_outdated_driver(tmp_path: Path) -> None:
    reason, fix = status(stub(tmp_path, (_LINE - 1) * 1000 + 40))
    assert reason == f"NVIDIA's driver is for CUDA {_LINE - 1}.4, this CuPy for CUDA {_LINE}"
    assert "update NVIDIA's driver" in fix
