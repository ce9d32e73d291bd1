"""Backends by strangers: the one of the guide, and three that are wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_plugins import Site

import turnout as tn
from turnout import Mutable, NDArray, Param, Scalar, f64
from turnout.backends import clear

EXAMPLE = Path(__file__).parents[2] / "examples" / "thirdparty"

SUBTRACTING = """
from dataclasses import replace

from turnout import reference
from turnout.ir.transform import with_regions
from turnout.plugin import Device, Target, hookimpl, ir
from turnout.reference import turnout_compile

@hookimpl
def turnout_devices():
    features = frozenset({"f64", "correct_rounding", "bounds"})
    return [Device(0, "a fake", Target("subtracting", "none", features))]

@hookimpl
def turnout_launch(unit):
    return reference.turnout_launch(unit=replace(unit, body=region(unit.body)))

def region(old):
    return replace(old, body=tuple(statement(each) for each in old.body))

def statement(old):
    new = with_regions(old, [region(each) for each in old.regions])
    if isinstance(new, ir.Compute) and new.operation == "add":
        return replace(new, operation="subtract")
    return new
"""

WRONG = {
    "empty": (
        "",
        "does not keep the plugin contract",
        "turnout_compile is missing, every backend must implement it: "
        "turnout_compile(unit, target, options)",
    ),
    "breaking": (
        "from turnout.plugin import hookimpl\nimport no_such_library\n",
        "cannot be imported from 'dist_breaking_module'",
        "No module named 'no_such_library'",
    ),
}


@tn.kernel
def saxpy(a: Param, x: Scalar, y: Scalar, out: Mutable[Scalar]):
    out = a * x + y


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.delenv("TURNOUT_BLOCK", raising=False)
    monkeypatch.delenv("TURNOUT_BACKEND", raising=False)
    monkeypatch.setenv("TURNOUT_CACHE", "off")
    yield Site(tmp_path / "site", monkeypatch)
    monkeypatch.undo()
    clear()


def turnout(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that finds the same modules."""
    return subprocess.run(
        [sys.executable, "-m", "turnout", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


# -- wrong ones ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_backend_is_refused_by_name_and_harms_nobody(site: Site, name: str) -> None:
    source, what, why = WRONG[name]
    site.install_backend(name, source)
    for _ in range(2):  # a failure is remembered
        with pytest.raises(tn.BackendError) as caught:
            saxpy(2, np.ones(2), np.ones(2), np.zeros(2), device=name)
        assert f"backend '{name}' of dist-{name} 1.0" in str(caught.value)
        assert what in str(caught.value)
        assert why in str(caught.value)
    status = tn.backends()[name]
    assert not status.available
    assert why in status.reason
    assert f"TURNOUT_BLOCK={name} hides it" in status.fix
    out = np.zeros(2)
    saxpy(2, np.ones(2), np.ones(2), out)
    assert out.tolist() == [3, 3]


@pytest.mark.parametrize("name", WRONG)
def test_doctor_and_check_say_what_is_wrong(site: Site, name: str) -> None:
    source, _, why = WRONG[name]
    site.install_backend(name, source)
    doctor = turnout("doctor")
    assert f"{name}: dist-{name} 1.0" in doctor.stdout
    assert why in doctor.stdout
    assert "reference:0: NumPy" in doctor.stdout
    checked = turnout("check", name, "--allow-missing")
    assert checked.returncode == 1
    assert why in checked.stdout
    assert "1 failed" in checked.stdout.splitlines()[-1]


def test_a_backend_that_subtracts_when_told_to_add_fails(site: Site) -> None:
    site.install_backend("subtracting", SUBTRACTING)
    out = np.zeros(1)
    saxpy(2, np.ones(1), np.ones(1), out, device="subtracting")
    assert out.tolist() == [1]
    checked = turnout("check", "subtracting", "-k", "test_operation and (add or multiply)")
    assert checked.returncode == 1
    failed = [line for line in checked.stdout.splitlines() if line.startswith("FAILED")]
    assert len(failed) == sum("test_operation[subtracting:0-add-" in line for line in failed) > 0
    assert "failed" in checked.stdout.splitlines()[-1]


# -- the one of the guide --------------------------------------------------------------------------


@pytest.fixture
def cc(site: Site, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The backend ``cc``, found as if its distribution were installed; its module."""
    pytest.importorskip("cffi")
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("there is no C compiler")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    site.install("turnout-example", "[turnout.backends]\ncc = turnout_example.cc\n")
    import turnout_example.cc

    return turnout_example.cc


def test_the_example_passes_the_suite(cc: Any) -> None:
    chosen = (
        "import_is_light or bounds or fork or thread or (test_operation and (add or exp or cast))"
    )
    checked = turnout("check", "cc", "-k", chosen)
    assert checked.returncode == 0, checked.stdout
    assert checked.stdout.splitlines()[-1].startswith("conformance cc:0 ")
    assert "skipped" not in checked.stdout.splitlines()[-1]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_example_gives_the_bits_of_the_reference(cc: Any, dtype: type) -> None:
    random = np.random.default_rng(1)
    x, y = random.normal(size=(2, 1001)).astype(dtype)
    out = {device: np.zeros(2002, dtype)[::2] for device in ("cc", "reference")}
    for device, array in out.items():
        saxpy(1.1, x[::-1], y, array, device=device)
    np.testing.assert_array_equal(out["cc"], out["reference"])


def test_the_example_reports_bad_indices(cc: Any) -> None:
    @tn.kernel(debug=True)
    def picked(a: NDArray[f64, 1], at: Param, b: NDArray[f64, 1]) -> None:
        for i in range(b.shape[0]):
            b[i] = a[at]

    picked(np.array([5.0, 6.0]), 1, out := np.zeros(2), device="cc")
    assert out.tolist() == [6, 6]
    with pytest.raises(tn.OutOfBoundsError, match="index 2 is out of bounds for axis 0 of 'a'"):
        picked(np.array([5.0, 6.0]), 2, out, device="cc")


def test_what_the_example_compiled_is_loaded_by_the_next_process(
    cc: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNOUT_CACHE", "on")
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "cache"))
    tn.kernel(saxpy.__wrapped__)(2, np.ones(1), np.ones(1), np.zeros(1), device="cc")

    def compile_again(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("the compiler is called again")

    monkeypatch.setattr(cc.subprocess, "run", compile_again)
    tn.kernel(saxpy.__wrapped__)(2, np.ones(1), np.ones(1), out := np.zeros(1), device="cc")
    assert out.tolist() == [3]


def test_the_example_passes_on_what_the_compiler_says(
    cc: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cc, "FLAGS", (*cc.FLAGS, "--no-such-option"))
    with pytest.raises(tn.CompileError, match="no-such-option") as caught:
        tn.kernel(saxpy.__wrapped__)(2, np.ones(1), np.ones(1), np.zeros(1), device="cc")
    assert "unit_saxpy(" in caught.value.source


def test_the_example_says_what_it_needs(cc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(tn.Unavailable, match=r"no C compiler called no-such-compiler.*set CC to"):
        tn.array([1.0], device="cc")


def test_the_example_races(cc: Any) -> None:
    @tn.perf_dispatch
    def axpy(a: Any, x: Any, y: Any, out: Any) -> None: ...

    @axpy.register
    def compiled_by_cc(a: Any, x: Any, y: Any, out: Any) -> None:
        saxpy(a, x, y, out, device="cc")

    @axpy.register
    def numpy(a: Any, x: Any, y: Any, out: Any) -> None:
        np.add(a * x, y, out=out)

    x, out = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    for _ in range(10):
        out[:] = -1
        axpy(2.0, x, x, out)
        assert out.tolist() == [0, 3, 6, 9, 12]
    samples = axpy.decision(2.0, x, x, out).samples
    assert set(samples) == {"compiled_by_cc", "numpy"}
