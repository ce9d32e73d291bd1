"""What importing turnout does not import, so that programs start fast."""

from __future__ import annotations

import subprocess
import sys

import pytest

COMMAND_AND_SUITE = ("click", "rich", "pytest", "turnout.cli", "turnout.conformance")
COMPILERS_AND_DRIVERS = ("llvmlite", "turnout_cpu", "turnout.reference")
COMPILING = ("turnout.compilation", "turnout.cache", "platformdirs")
MEASURING = ("turnout.perf", "turnout.tuning", "turnout.store", "sqlite3")
SLOW_PARTS_OF_THE_STANDARD_LIBRARY = (
    "difflib", "email", "hashlib", "importlib.metadata", "importlib.resources", "json", "pathlib",
    "tempfile", "urllib", "zipfile",
)  # fmt: skip
SLOW_PARTS_OF_NUMPY = ("numpy.ma", "numpy.random", "numpy.testing", "numpy.f2py")

NOT_IMPORTED = (
    *COMMAND_AND_SUITE,
    *COMPILERS_AND_DRIVERS,
    *COMPILING,
    *MEASURING,
    *SLOW_PARTS_OF_THE_STANDARD_LIBRARY,
    *SLOW_PARTS_OF_NUMPY,
)

IMPORT = "import turnout\n"
DEFINITIONS = """
import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, NDArray, Param, Scalar, Terminated, Vector, f32

@tn.func
def square(x):
    return x * x

@tn.kernel
def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    v_new = v + dt * tm.dispatch(regime, [v, square(v)])

@tn.kernel(fastmath=True)
def double(a: NDArray[f32, 1], b: NDArray[f32, 1]) -> None:
    for i in range(a.shape[0]):
        b[i] = a[i] * 2
"""


def imported_by(folder: object, source: str) -> set[str]:
    """Modules that a program imports beyond those of NumPy, in a process of its own."""
    # Kernels are compiled from source, which must be in a file.
    program = f"{folder}/program.py"
    with open(program, "w", encoding="utf-8") as file:
        file.write(
            f"import sys, numpy\nbefore = set(sys.modules)\n{source}\n"
            "print(*sorted(set(sys.modules) - before))\n"
        )
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("source", [IMPORT, DEFINITIONS], ids=["import", "definitions"])
def test_what_is_not_needed_is_not_imported(source: str, tmp_path: object) -> None:
    imported = imported_by(tmp_path, source)
    assert "turnout.kernel" in imported
    assert [name for name in NOT_IMPORTED if name in imported] == []


def test_perf_dispatch_is_imported_when_it_is_used(tmp_path: object) -> None:
    assert "turnout.perf" in imported_by(tmp_path, "from turnout import perf_dispatch")


def test_public_names_that_come_late_are_there() -> None:
    import turnout as tn

    for name in tn.__all__:
        assert getattr(tn, name) is not None
    with pytest.raises(AttributeError, match="module 'turnout' has no attribute 'kernels'"):
        tn.kernels  # type: ignore[attr-defined]  # noqa: B018
