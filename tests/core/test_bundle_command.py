"""The command `turnout build`, and `turnout show` of what it has written."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

import turnout as tn
from turnout.cli import main

LAWS = """
import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, Param, Scalar


@tn.kernel
def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    v_new = v + dt * tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v)], policy="auto")


@tn.kernel
def squared(regime: Index, v: Scalar) -> Scalar:
    return tm.dispatch(regime, [v, v * v], policy="segmented")


@tn.kernel
def power(n: Param, x: Scalar) -> Scalar:
    y = 1.0
    for _ in range(n):
        y = y * x
    return y
"""


@pytest.fixture
def laws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the current one, with a file of kernels."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "laws.py").write_text(LAWS)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_kernels_of_a_file_are_built_and_shown(laws: Path) -> None:
    built = run("build", "laws.py:drag", "laws.py:squared", "-o", "b", "--target", "reference")
    assert built.exit_code == 0, built.output
    shown = run("show", "b")
    assert shown.exit_code == 0
    assert shown.output == built.output
    lines = [" ".join(line.split()) for line in shown.output.splitlines()]
    assert lines[0] == f"bundle {laws / 'b'}"
    assert lines[1].endswith("all files are as they were written")
    assert "drag dt, regime, v, v_new, dispatch0_mix float64 sample_local 1" in lines
    assert "Loaded as a whole too, units together: squared" in lines
    assert "drag dispatch0 2 auto regime dispatch0_mix" in lines
    assert lines[-1].startswith("reference numpy turnout ")
    with tn.use("reference"):
        loaded = tn.load(laws / "b", "squared")
        assert loaded(np.array([0, 1]), np.array([3.0, 3.0])).tolist() == [3.0, 9.0]


def test_all_kernels_of_a_module_are_built(laws: Path) -> None:
    built = run("build", "laws.py", "-o", "b", "--target", "reference", "--dtype", "f32")
    assert built.exit_code == 0, built.output
    facts = json.loads(run("show", "./b", "--json").output)
    assert facts["names"] == [
        "drag",
        "squared",
        "squared__k0",
        "squared__k1",
        "squared__cls",
        "power",
    ]
    assert {sidecar["scalar_type"] for sidecar in facts["sidecars"]} == {"float32"}
    assert facts["sidecars"][-1]["params"] == [{"name": "n", "dtype": "int"}]
    assert facts["manifest"]["targets"].keys() == {"reference"}


def test_types_of_numbers_are_taken(laws: Path) -> None:
    options = ["--target", "reference", "--param", "n=i16"]
    assert run("build", "laws.py:power", "-o", "b", *options).exit_code == 0
    facts = json.loads(run("show", "b", "--json").output)
    assert facts["sidecars"][0]["params"] == [{"name": "n", "dtype": "int16"}]
    wrong = run("build", "laws.py:power", "-o", "b", "--param", "n")
    assert wrong.exit_code == 2
    assert "write NAME=TYPE, for example n=int" in wrong.output


def test_a_damaged_bundle_is_no_traceback(laws: Path) -> None:
    run("build", "laws.py:drag", "-o", "b", "--target", "reference")
    (laws / "b" / "drag.json").unlink()
    shown = run("show", "b")
    assert shown.exit_code == 1
    assert f"Error: {laws / 'b' / 'drag.json'} does not exist, but belongs to it" in shown.output


def test_what_cannot_be_built_is_said(laws: Path) -> None:
    unknown = run("build", "laws.py:drug", "-o", "b")
    assert unknown.exit_code == 1
    assert "its kernels are: laws.py:drag" in unknown.output
    target = run("build", "laws.py:drag", "-o", "b", "--target", "warp")
    assert target.exit_code == 1
    assert "Error: target 'warp': backend 'warp' is not installed" in target.output
    (laws / "mine").mkdir()
    (laws / "mine" / "notes.txt").write_text("keep me")
    other = run("build", "laws.py:drag", "-o", "mine", "--target", "reference")
    assert other.exit_code == 1
    assert "mine exists and holds no bundle" in other.output
