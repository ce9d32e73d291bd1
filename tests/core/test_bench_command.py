"""``turnout bench MODULE:KERNEL``: what takes part, what is printed, what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import turnout as tn
from turnout import benching
from turnout.cli import main

SOLVER = """
import numpy as np
import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, NDArray, Param, Scalar, f32


@tn.kernel
def double(a: NDArray[f32, 1], b: NDArray[f32, 1]) -> None:
    for i in range(a.shape[0]):
        b[i] = a[i] * 2


@tn.kernel
def fall(dt: Param, regime: Index, v: Mutable[Scalar]):
    v = v + dt * tm.dispatch(regime, [-v, -v * v], policy="auto")


@tn.kernel
def rounds(x: Scalar) -> Scalar:
    total = 0.0
    for i in range(3):
        total += tm.dispatch(i, [x, x * x], policy="auto")
    return total


given = np.array([1.0, 2.0])


def typical():
    return {"dt": 0.5, "regime": np.array([0, 1]), "v": given}
"""


@pytest.fixture(autouse=True)
def solver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "solver_to_bench.py").write_text(SOLVER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("solver_to_bench", None)


def bench(*arguments: str) -> Result:
    command = ["bench", *arguments, "--seconds", "0.001", "--device", "reference"]
    return CliRunner().invoke(main, command)


def test_each_policy_that_is_open_takes_part() -> None:
    result = bench("solver_to_bench:fall", "--data", "solver_to_bench:typical", "--json")
    assert result.exit_code == 0, result.output
    (facts,) = json.loads(result.stdout)
    assert facts["arguments"].startswith("dt = 0.5, regime: int64 (2,), v: float64 (2,) (from ")
    timings = facts["timings"]
    assert [each["policy"] for each in timings] == ["switch", "predicated", "segmented"]
    for each in timings:
        assert each["device"] == "reference"
        assert len(each["samples_ns"]) >= benching.FEWEST_ROUNDS
        assert min(each["samples_ns"]) <= each["median_ns"] <= max(each["samples_ns"])
        assert each["problem"] is None
    assert sys.modules["solver_to_bench"].given.tolist() == [1.0, 2.0]  # copies were run


def test_the_table_lists_what_cannot_be_too() -> None:
    result = bench("solver_to_bench:rounds", "--shapes", "(4,)")
    assert result.exit_code == 0, result.output
    head, columns, *rows = result.stdout.strip().splitlines()
    assert head == "x: float64 (4,) (random numbers from 0 to 1, seed 0)"
    assert columns.split()[:3] == ["device", "policy", "median"]
    assert {tuple(row.split()[:2]) for row in rows[:2]} == {
        ("reference", "switch"),
        ("reference", "predicated"),
    }
    assert rows[2].startswith("reference segmented: kernel 'rounds', dispatch 'dispatch0': ")


def test_a_kernel_without_dispatches() -> None:
    result = bench("solver_to_bench:double", "--shapes", "(8,) (8,)", "--dtype", "float32")
    assert result.exit_code == 0, result.output
    *_, row = result.stdout.strip().splitlines()
    assert row.split()[:2] == ["reference", "-"]
    assert "1.00x" in row


def test_arguments_that_do_not_fit_are_said_with_status_1() -> None:
    result = bench("solver_to_bench:double", "--shapes", "(8,) (8,)")
    assert result.exit_code == 1
    assert "argument 'a' has the dtype float64" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solver_to_bench:double"], "say for which arguments"),
        (["solver_to_bench:doubl", "--shapes", "(3,)"], "did you mean 'double'?"),
        (["solver_to_bench:double", "--shapes", "(3,)"], "nothing is given for 'b'"),
        (["solver_to_bench:fall", "--data", "solver_to_bench:typical", "--seed", "1"], "--seed"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str) -> None:
    result = bench(*arguments)
    assert result.exit_code != 0
    assert message in result.stderr


def test_a_device_that_is_not_there_keeps_none_from_being_timed() -> None:
    arguments = ("--shapes", "(8,) (8,)", "--dtype", "f32", "--device", "nowhere")
    result = bench("solver_to_bench:double", *arguments)
    assert result.exit_code == 1
    assert "nowhere: backend 'nowhere' is not installed" in result.stdout
    assert "reference" in result.stdout


def test_the_reference_takes_part_only_where_there_is_nothing_else() -> None:
    names = {str(device) for device in tn.devices()}
    others = {name for name in names if not name.startswith("reference")}
    assert set(benching.usable_devices()) == (others or names)
