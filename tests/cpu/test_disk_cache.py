"""A kernel that is in the disk cache is loaded, and nothing of the compiler runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import numpy as np
import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, NDArray, Param, Scalar, f64

@tn.kernel
def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    a = tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)])
    v_new = v + dt * a

@tn.kernel
def total(a: NDArray[f64, 1], out: NDArray[f64, 1]) -> None:
    for i in range(a.shape[0]):
        out[0] += a[i]

before = set(sys.modules)

def refuse(*arguments, **keywords):
    raise AssertionError("the compiler runs")

def forbid_the_compiler():
    import llvmlite.binding as llvm
    from turnout_cpu import compiler

    compiler.compile_text = refuse
    llvm.create_pass_builder = refuse
    llvm.targets.TargetMachine.emit_object = refuse
    parse = llvm.parse_assembly
    # The engine that the code is loaded into needs a module, which is empty.
    llvm.parse_assembly = lambda text, context=None: refuse() if text else parse(text)

if "warm" in sys.argv:
    forbid_the_compiler()
v, v_new, out = np.array([1.0, 2.0, -1.0]), np.empty(3), np.zeros(1)
with tn.use("cpu"):
    drag(0.5, np.array([0, 1, 0]), v, v_new)
    total(v, out)
print(v_new.tolist(), out.tolist())
print(*sorted(set(sys.modules) - before))
"""

EMITTER = (
    "turnout_cpu.emit", "turnout_cpu.body", "turnout_cpu.operations", "turnout_cpu.mathematics",
    "turnout_cpu.entry_text",
)  # fmt: skip
SLOW = ("difflib", "email", "hashlib", "importlib.metadata", "numpy.ma", "turnout.reference")


def run(folder: Path, *arguments: str) -> tuple[str, set[str]]:
    """What a process of its own prints, and the modules that its calls import."""
    program = folder / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    environment = {**os.environ, "TURNOUT_CACHE_DIR": str(folder / "cache"), "TURNOUT_CACHE": "on"}
    done = subprocess.run(
        [sys.executable, str(program), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result, imported = done.stdout.splitlines()
    return result, set(imported.split())


def test_a_stored_kernel_is_loaded_without_the_compiler(tmp_path: Path) -> None:
    expected = "[0.95, 1.2, -0.95] [2.0]"
    cold, imported = run(tmp_path)
    assert cold == expected
    assert "turnout_cpu.emit" in imported
    warm, imported = run(tmp_path, "warm")
    assert warm == expected
    assert [name for name in (*EMITTER, *SLOW) if name in imported] == []
