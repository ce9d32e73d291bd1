"""The wheels at work: installed from a local folder, used from an empty one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Environment

HEAVY = ("click", "llvmlite", "platformdirs", "pytest", "rich", "sqlite3", "turnout_cpu")

KERNEL = """
import numpy as np
import turnout as tn
from turnout import Mutable, Param, Scalar

@tn.kernel
def scale(factor: Param, x: Scalar, out: Mutable[Scalar]):
    out = factor * x

out = np.empty(3)
scale(2.0, np.arange(3.0), out)
print(*out)
"""

SAXPY = """
import numpy as np
import turnout as tn

@tn.perf_dispatch
def saxpy(a, x, y, out): ...

out = np.empty(3)
saxpy(2.0, np.ones(3), np.ones(3), out)
print(*out, *saxpy.implementations)
"""


def loaded_by(environment: Environment, statement: str) -> set[str]:
    code = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)))"
    return set(json.loads(environment.check("python", "-c", code)))


def run_program(environment: Environment, text: str, **variables: str) -> str:
    # A file, because a kernel is compiled from its source.
    file = environment.cwd / "program.py"
    file.write_text(text, encoding="utf-8")
    return environment.check("python", str(file), **variables)


@pytest.fixture(params=["core_alone", "installed"])
def either(request: pytest.FixtureRequest) -> Environment:
    return request.getfixturevalue(request.param)


def test_importing_turnout_is_light(installed: Environment) -> None:
    assert loaded_by(installed, "import turnout").isdisjoint(HEAVY)


def test_importing_a_plugin_loads_no_compiler(installed: Environment) -> None:
    assert loaded_by(installed, "import turnout_cpu").isdisjoint({"llvmlite"})


def test_the_core_alone_has_its_reference_backend(core_alone: Environment) -> None:
    code = "import turnout; print(*sorted(turnout.backends()))"
    assert core_alone.check("python", "-c", code).split() == ["reference"]


def test_the_extra_brings_its_backend(installed: Environment) -> None:
    code = "import turnout; print(*sorted(turnout.backends()))"
    assert set(installed.check("python", "-c", code).split()) >= {"cpu", "opencl", "reference"}


def test_a_kernel_runs(either: Environment) -> None:
    assert run_program(either, KERNEL) == "0.0 2.0 4.0\n"


def test_doctor_finds_every_backend_in_order(with_stranger: Environment) -> None:
    report = with_stranger.check("turnout", "doctor")
    for device in ("cpu:0", "example:0", "reference:0"):
        assert device in report, report


def test_the_module_is_the_command(core_alone: Environment) -> None:
    as_module = core_alone.check("python", "-m", "turnout", "doctor", "--json")
    as_command = core_alone.check("turnout", "doctor", "--json")
    assert json.loads(as_module).keys() == json.loads(as_command).keys()


def test_the_conformance_suite_runs_from_the_wheel(core_alone: Environment) -> None:
    report = core_alone.check("turnout", "check", "reference")
    assert report.splitlines()[-1].startswith("conformance reference:0"), report


def test_the_demo_runs_on_the_data_it_ships(installed: Environment) -> None:
    json.loads(installed.check("turnout", "demo", "--json"))


def test_a_missing_backend_is_an_error_that_says_what_to_do(core_alone: Environment) -> None:
    code = "import turnout\nwith turnout.use('cpu'): pass"
    done = core_alone.run("python", "-c", code)
    assert done.returncode == 1
    assert "cpu" in done.stderr


def test_the_backend_of_a_stranger_runs_kernels(with_stranger: Environment) -> None:
    assert run_program(with_stranger, KERNEL, TURNOUT_BACKEND="example") == "0.0 2.0 4.0\n"


def test_the_backend_of_a_stranger_passes_the_conformance_suite(with_stranger: Environment) -> None:
    report = with_stranger.check("turnout", "check", "example")
    assert report.splitlines()[-1].startswith("conformance example:0"), report


def test_the_implementation_of_a_stranger_is_picked_up(with_stranger: Environment) -> None:
    assert run_program(with_stranger, SAXPY) == "3.0 3.0 3.0 saxpy_in_two_passes\n"
