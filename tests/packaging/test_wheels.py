"""What is in the wheels and what their metadata says."""

from __future__ import annotations

import re
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("turnout", "turnout_cpu", "turnout_opencl")


def names(wheels: Path, distribution: str) -> list[str]:
    with zipfile.ZipFile(next(wheels.glob(f"{distribution}-*.whl"))) as wheel:
        return wheel.namelist()


def read(wheels: Path, distribution: str, file: str) -> str:
    with zipfile.ZipFile(next(wheels.glob(f"{distribution}-*.whl"))) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(file))
        return wheel.read(name).decode()


def metadata(wheels: Path, distribution: str) -> Message:
    return Parser().parsestr(read(wheels, distribution, ".dist-info/METADATA"))


def projects() -> dict[Path, dict[str, object]]:
    files = [ROOT / "pyproject.toml", *sorted((ROOT / "plugins").glob("*/pyproject.toml"))]
    return {file: tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files}


def test_the_core_ships_all_it_needs_at_run_time(wheels: Path) -> None:
    contents = names(wheels, "turnout")
    assert {
        "turnout/py.typed",
        "turnout/__main__.py",
        "turnout/data/airports.csv",
        "turnout/data/README.md",
        "turnout/conformance/__init__.py",
    } <= set(contents)


@pytest.mark.parametrize("distribution", OURS)
def test_a_wheel_holds_its_own_package_and_nothing_else(wheels: Path, distribution: str) -> None:
    contents = names(wheels, distribution)
    information = f"{distribution}-0.1.0.dist-info"
    assert {name.split("/")[0] for name in contents} == {distribution, information}
    code = {name for name in contents if not name.startswith(information)}
    assert {Path(name).suffix for name in code} <= {".py", ".typed", ".csv", ".md"}


@pytest.mark.parametrize("distribution", OURS)
def test_a_wheel_brings_its_license_its_types_and_a_description(
    wheels: Path, distribution: str
) -> None:
    license_text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert read(wheels, distribution, ".dist-info/licenses/LICENSE") == license_text
    assert f"{distribution}/py.typed" in names(wheels, distribution)
    described = metadata(wheels, distribution)
    assert described["Description-Content-Type"] == "text/markdown"
    assert described.get_payload().lstrip().startswith("# turnout")


def test_a_wheel_runs_on_every_platform(wheels: Path) -> None:
    assert len(list(wheels.glob("turnout*-py3-none-any.whl"))) >= 2


def test_the_metadata_of_the_core(wheels: Path) -> None:
    core = metadata(wheels, "turnout")
    assert core["Name"] == "turnout"
    assert core["Requires-Python"] == ">=3.11"
    assert core["License-Expression"] == "Apache-2.0"
    assert set(core.get_all("Provides-Extra", [])) >= {"all", "cpu", "opencl"}
    for name in ("cpu", "opencl"):
        needed = f"turnout-{name}==0.1.0; extra == '{name}'"
        assert needed in core.get_all("Requires-Dist", [])


def test_the_entry_points(wheels: Path) -> None:
    core = read(wheels, "turnout", ".dist-info/entry_points.txt")
    assert "turnout = turnout.cli:main" in core
    assert "[turnout.backends]\nreference = turnout.reference" in core
    cpu = read(wheels, "turnout_cpu", ".dist-info/entry_points.txt")
    assert "[turnout.backends]\ncpu = turnout_cpu" in cpu
    opencl = read(wheels, "turnout_opencl", ".dist-info/entry_points.txt")
    assert "[turnout.backends]\nopencl = turnout_opencl" in opencl


def test_all_distributions_carry_one_version() -> None:
    versions = {str(file.parent): project["version"] for file, project in projects().items()}
    assert set(versions.values()) == {"0.1.0"}, versions


def test_the_distributions_depend_on_each_other_in_that_version() -> None:
    requirements = [
        requirement
        for project in projects().values()
        for requirement in [
            *project["dependencies"],
            *(one for extra in project.get("optional-dependencies", {}).values() for one in extra),
        ]
        if re.match(r"turnout\b(?!\[)", requirement)
    ]
    assert len(requirements) >= 2
    for requirement in requirements:
        assert requirement.endswith(("==0.1.0", "~=0.1.0")), requirement
