"""What holds for the tests of the OpenCL backend."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnout as tn

from .pocl_for_new_processors import give_name

HERE = Path(__file__).parent
WITH_POCL = HERE / "pocl_for_new_processors.py"


give_name()


@pytest.fixture
def put() -> Callable[[Any], Any]:
    """Moves an array to the OpenCL device."""
    return lambda host: tn.array(np.asarray(host), device="opencl")


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a program in a new process that can use the same OpenCL devices."""

    def run(
        program: str, *arguments: str, timeout_s: float = 100, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        file = tmp_path / "program.py"
        file.write_text(program)
        return subprocess.run(
            [sys.executable, str(WITH_POCL), str(file), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment,
        )

    return run
