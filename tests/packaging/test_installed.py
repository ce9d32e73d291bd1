"""The wheels at work: installed from a local folder, used from an empty one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Environment

PLUGINS = ("turnout_cpu", "turnout_cuda", "turnout_opencl")
DRIVERS = ("cupy", "llvmlite", "pyopencl")
HEAVY = ("click", "platformdirs", "pytest", "rich", "sqlite3", *DRIVERS, *PLUGINS)

WITH_POCL = Path(__file__).parents[1] / "opencl" / "pocl_for_new_processors.py"

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


def write_program(environment: Environment, text: str) -> str:
    # A file, because a kernel is compiled from its source.
    file = environment.cwd / "program.py"
    file.write_text(text, encoding="utf-8")
    return str(file)


def run_program(environment: Environment, text: str, **variables: str) -> str:
    return environment.check("python", write_program(environment, text), **variables)


def backends_of(report: str) -> dict[str, dict[str, Any]]:
    """The backends in what `turnout doctor --json` says, by name."""
    return {backend["name"]: backend for backend in json.loads(report)["backends"]}


@pytest.fixture(params=["core_alone", "installed"])
def either(request: pytest.FixtureRequest) -> Environment:
    return request.getfixturevalue(request.param)


def test_importing_turnout_is_light(installed: Environment) -> None:
    assert loaded_by(installed, "import turnout").isdisjoint(HEAVY)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_importing_a_plugin_loads_no_driver(installed: Environment, plugin: str) -> None:
    assert loaded_by(installed, f"import {plugin}").isdisjoint(DRIVERS)


@pytest.mark.parametrize("name", ["core_alone", "installed", "with_pocl", "with_stranger"])
def test_requirements_agree_with_what_is_installed(
    request: pytest.FixtureRequest, name: str
) -> None:
    environment: Environment = request.getfixturevalue(name)
    assert "No broken requirements found" in environment.check_pip("check")


def test_the_core_alone_has_its_reference_backend(core_alone: Environment) -> None:
    code = "import turnout; print(*sorted(turnout.backends()))"
    assert core_alone.check("python", "-c", code).split() == ["reference"]


def test_the_entry_points_of_all_distributions_are_installed(installed: Environment) -> None:
    code = "from importlib.metadata import entry_points\n"
    code += "for each in entry_points(group='turnout.backends'):\n"
    code += "    print(each.name, each.value, each.dist.name, each.dist.version)"
    assert sorted(installed.check("python", "-c", code).splitlines()) == [
        "cpu turnout_cpu turnout-cpu 0.1.0",
        "cuda turnout_cuda turnout-cuda 0.1.0",
        "opencl turnout_opencl turnout-opencl 0.1.0",
        "reference turnout.reference turnout 0.1.0",
    ]


def test_backends_without_a_driver_say_what_to_install_and_harm_nothing(
    installed: Environment,
) -> None:
    report = installed.check("turnout", "doctor", "--json", OCL_ICD_VENDORS="/no/such/folder")
    assert json.loads(report)["active_device"] == "cpu:0"
    backends = backends_of(report)
    usable = {name for name, backend in backends.items() if backend["is_usable"]}
    assert usable == {"cpu", "reference"}
    assert "turnout[cuda" in backends["cuda"]["fix"]
    assert "turnout-opencl[pocl]" in backends["opencl"]["fix"]


def test_opencl_runs_on_the_driver_that_an_extra_brings(with_pocl: Environment) -> None:
    report = with_pocl.check("python", str(WITH_POCL), "-m", "turnout", "doctor", "--json")
    assert json.loads(report)["active_device"] == "reference:0"
    backends = backends_of(report)
    assert set(backends) == {"opencl", "reference"}
    probes = [probe for device in backends["opencl"]["devices"] for probe in device["probes"]]
    assert len(probes) >= 2
    assert [probe["problem"] for probe in probes if probe["problem"]] == []


def test_a_kernel_runs_on_opencl(with_pocl: Environment) -> None:
    program = write_program(with_pocl, KERNEL)
    output = with_pocl.check("python", str(WITH_POCL), program, TURNOUT_BACKEND="opencl")
    assert output == "0.0 2.0 4.0\n"


def test_a_kernel_runs(either: Environment) -> None:
    assert run_program(either, KERNEL) == "0.0 2.0 4.0\n"


def test_doctor_finds_every_backend_in_order(with_stranger: Environment) -> None:
    report = with_stranger.check("turnout", "doctor")
    for device in ("cc:0", "cpu:0", "example:0", "reference:0"):
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


@pytest.mark.parametrize("backend", ["cc", "example"])
def test_a_backend_of_a_stranger_runs_kernels(with_stranger: Environment, backend: str) -> None:
    assert run_program(with_stranger, KERNEL, TURNOUT_BACKEND=backend) == "0.0 2.0 4.0\n"


@pytest.mark.parametrize("backend", ["cc", "example"])
def test_a_backend_of_a_stranger_passes_the_conformance_suite(
    with_stranger: Environment, backend: str
) -> None:
    report = with_stranger.check("turnout", "check", backend)
    assert report.splitlines()[-1].startswith(f"conformance {backend}:0"), report


def test_the_implementation_of_a_stranger_is_picked_up(with_stranger: Environment) -> None:
    assert run_program(with_stranger, SAXPY) == "3.0 3.0 3.0 saxpy_in_two_passes\n"
