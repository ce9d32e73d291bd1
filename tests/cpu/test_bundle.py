"""Bundles for processors: built in one process, loaded in another that cannot compile."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import turnout as tn
from turnout import Scalar
from turnout.backends import active
from turnout_cpu import compiler

BUNDLES = Path(__file__).parent / "bundles"

BUILD = """
import sys
import numpy as np
import turnout as tn
import bundle_calls, bundle_kernels

kernels = {kernel.__name__: kernel for kernel in bundle_kernels.KERNELS}
for name, arguments in bundle_calls.calls().items():
    np.savez(f"{name}.npz", *bundle_calls.results(kernels[name], arguments))
tn.build(bundle_kernels.KERNELS, "bundle", targets=sys.argv[1:])
"""

LOAD = """
import numpy as np
import llvmlite.binding as llvm
import turnout as tn
import bundle_calls

def refuse(*args, **keywords):
    raise AssertionError("something is compiled")

parse = llvm.parse_assembly
llvm.parse_assembly = lambda text, *rest: parse(text) if not text else refuse()
llvm.TargetMachine.emit_object = llvm.TargetMachine.emit_assembly = refuse
kernels = sys.modules["turnout.kernel"]  # the attribute of that name is the decorator
llvm.create_pass_builder = kernels.lower_kernel = kernels.parse_function = refuse
import turnout_cpu.compiler
turnout_cpu.compiler.compile_text = refuse

for name, arguments in bundle_calls.calls().items():
    loaded = tn.load("bundle", name)
    expected = np.load(f"{name}.npz")
    found = bundle_calls.results(loaded, arguments)
    for number, array in enumerate(found):
        other = expected[f"arr_{number}"]
        assert (array.dtype, array.shape) == (other.dtype, other.shape), name
        if sys.argv[1] == "exactly":
            assert array.tobytes() == other.tobytes(), name
        else:
            np.testing.assert_allclose(array, other, rtol=1e-13, err_msg=name)

# Repeated calls pass no Python code, as those of the kernels that were built.
polar = tn.load("bundle", "polar")
x, y = np.arange(4.0), np.ones(4)
for _ in range(3):
    polar(x, y)
assert type(type(polar).__call__).__name__ == "builtin_function_or_method"

# Those that count neither.
switched = tn.load("bundle", "switched")
arguments = bundle_calls.calls()["switched"]
tn.set_num_threads(1)  # else launches are measured at first, which is left to Python
for _ in range(2):
    switched(**arguments)
kernels.Executable.__call__, python = refuse, kernels.Executable.__call__
switched(**arguments)
kernels.Executable.__call__ = python
tn.set_num_threads(None)
regime = arguments["regime"].clip(0, 2)
assert (arguments["dispatch0_mix"] == 3 * np.bincount(regime)).all()

# Policies are chosen as always: by looks at the mix, and calls that are measured.
law = tn.load("bundle", "automatic")
arguments = bundle_calls.calls()["automatic"]
for count in (10, 1000, bundle_calls.N):
    dt, *arrays = arguments.values()
    arrays = [array[:count].copy() for array in arrays]
    for _ in range(200):
        law(dt, *arrays)
    law(dt, *arrays, dispatch0_mix=np.zeros(3, np.uint32))
print(law.explain(dt, *arrays))

# And what the bundle has no such code for is still called.
powers = tn.load("bundle", "powers")
for _ in range(3):
    assert powers(np.int32(2), x).tolist() == [0.0, 1.0, 4.0, 9.0]
assert "bundle_kernels" not in sys.modules
print("all equal")
"""


def run(script: str, folder: Path, *arguments: str) -> str:
    """Run a script in a folder, with what is importable here, and return what it prints."""
    code = f"import sys\nsys.path[:0] = [{str(folder)!r}]\n{script}"
    finished = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        cwd=folder,
        text=True,
        capture_output=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


x86_64_v3 = pytest.mark.skipif(
    not {"avx2", "fma"} <= compiler.host().present, reason="needs a processor of x86-64-v3"
)


@pytest.mark.parametrize(
    ("target", "how"),
    # The routines of math functions for other vectors may differ in the last bits.
    [("cpu", "exactly"), pytest.param("cpu:x86-64-v3", "closely", marks=x86_64_v3)],
)
def test_another_process_computes_the_same_without_sources_and_compilers(tmp_path, target, how):
    for file in BUNDLES.glob("*.py"):
        shutil.copy(file, tmp_path)
    run(BUILD, tmp_path, target)
    (tmp_path / "bundle_kernels.py").unlink()
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert "all equal" in run(LOAD, tmp_path, how)


# -- processors ------------------------------------------------------------------------------------


@tn.kernel
def halved(x: Scalar) -> Scalar:
    return x / 2.0


def index(bundle: tn.Bundle, target: str) -> dict:
    name = bundle.manifest["targets"][target]["index"]
    return json.loads((bundle.directory / name).read_text())


def present_without(monkeypatch, *features: str) -> None:
    """Let this processor seem to lack features."""
    host = compiler.host()
    kept = tuple(f"-{f[1:]}" if f[1:] in features else f for f in host.features)
    monkeypatch.setattr(compiler, "host", lambda: host._replace(features=kept))


@x86_64_v3
def test_a_bundle_for_a_wider_processor_is_refused_with_what_is_missing(tmp_path, monkeypatch):
    tn.build([halved], tmp_path / "b", targets=["cpu:x86-64-v3"])
    assert tn.load(tmp_path / "b", "halved")(np.ones(2)).tolist() == [0.5, 0.5]
    present_without(monkeypatch, "avx2", "bmi")
    with pytest.raises(
        tn.BundleError,
        match=r"(?s)kernel halved of .* has no code for cpu:0:\n  target 'cpu:x86-64-v3': the code "
        r"uses features that this processor \(.*\) lacks: avx2, bmi\n.*lower level",
    ):
        tn.load(tmp_path / "b", "halved")


@x86_64_v3
def test_of_several_targets_the_widest_that_runs_here_is_taken(tmp_path, monkeypatch):
    targets = ["cpu:x86-64-v2", "cpu:x86-64-v3", "cpu"]
    tn.build([halved], tmp_path / "b", targets=targets)
    here = active()
    assert tn.load(tmp_path / "b", "halved").code_for(here).name == "cpu"
    present_without(monkeypatch, "clflushopt", "sse4a", "rdseed", "adx", "aes", "prfchw")
    assert tn.load(tmp_path / "b", "halved").code_for(here).name == "cpu:x86-64-v3"
    present_without(monkeypatch, "avx2", "avx512f")
    loaded = tn.load(tmp_path / "b", "halved")
    assert loaded.code_for(here).name == "cpu:x86-64-v2"
    assert loaded(np.array([3.0])).tolist() == [1.5]


@x86_64_v3
def test_code_for_a_level_is_compiled_for_that_level(tmp_path):
    targets = ["cpu:x86-64-v2", "cpu:x86-64-v3", "cpu:x86-64-v4"]
    bundle = tn.build([halved], tmp_path / "b", targets=targets)
    registers = {}
    for target in targets:
        folder = bundle.directory / target.replace(":", "-")
        (assembly,) = folder.glob("*.assembly")
        text = assembly.read_text()
        registers[target] = ["%ymm" in text, "%zmm" in text]
        for entry in index(bundle, target).values():
            features = entry["metadata"].get("features")
            assert features is None or ("avx512f" in features) == target.endswith("v4")
    assert list(registers.values()) == [[False, False], [True, False], [True, True]]


def test_code_of_another_operating_system_is_refused(tmp_path, monkeypatch):
    tn.build([halved], tmp_path / "b")
    host = compiler.host()
    other = host._replace(platform="aarch64-apple-darwin")
    monkeypatch.setattr(compiler, "host", lambda: other)
    with pytest.raises(tn.BundleError, match=f"is for {host.platform}, and this is aarch64-apple"):
        tn.load(tmp_path / "b", "halved")


def test_unknown_architectures_are_refused_with_those_that_are_known(tmp_path):
    with pytest.raises(
        tn.BundleError,
        match=r"target 'cpu:x86-64-v9': backend 'cpu' has no such architecture here; give 'cpu' "
        r"for this machine, or 'cpu:native', 'cpu:portable'",
    ):
        tn.build([halved], tmp_path / "b", targets=["cpu:x86-64-v9"])
    assert not (tmp_path / "b").exists()


def test_texts_and_object_code_are_there_for_people(tmp_path):
    bundle = tn.build([halved], tmp_path / "b")
    (code,) = (e for e in index(bundle, "cpu").values() if "halved" in e["file"])
    assert (bundle.directory / code["file"]).read_bytes()[:4] == b"\x7fELF"
    stem = bundle.directory / code["file"].removesuffix(".code")
    assert "fdiv" in stem.with_suffix(".llvm-ir").read_text()
    assert "ret" in stem.with_suffix(".assembly").read_text()
