"""What is in the wheels and what their metadata says."""

from __future__ import annotations

import re
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OURS = ("turnout", "turnout_cpu", "turnout_cuda", "turnout_opencl")


def names(wheels: Path, distribution: str) -> list[str]:
    with zipfile.ZipFile(next(wheels.glob(f"{distribution}-*.whl"))) as wheel:
        return wheel.namelist()


def read(wheels: Path, distribution: str, file: str) -> str:
    with zipfile.ZipFile(next(wheels.glob(f"{distribution}-*.whl"))) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(file))
        return wheel.read(name).decode()


def metadata(wheels: Path, distribution: str) -> Message:
    return Parser().parsestr(read(wheels, distribution, ".dist-info/METADATA"))


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
def test_a_wheel_holds_no_tests_but_the_conformance_suite(wheels: Path, distribution: str) -> None:
    for name in names(wheels, distribution):
        if not name.startswith("turnout/conformance/"):
            assert not Path(name).name.startswith(("test_", "conftest")), name
            assert "tests" not in Path(name).parts, name


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
    built = {wheel.name for wheel in wheels.iterdir()}
    assert {f"{distribution}-0.1.0-py3-none-any.whl" for distribution in OURS} <= built


def test_the_metadata_of_the_core(wheels: Path) -> None:
    core = metadata(wheels, "turnout")
    assert core["Name"] == "turnout"
    assert core["Requires-Python"] == ">=3.11"
    assert core["License-Expression"] == "Apache-2.0"
    extras = {"all", "cpu", "cuda12", "cuda13", "opencl"}
    assert set(core.get_all("Provides-Extra", [])) == extras
    assert "turnout-cpu==0.1.0; extra == 'cpu'" in core.get_all("Requires-Dist", [])
    assert "turnout-cuda[cuda13]==0.1.0; extra == 'cuda13'" in core.get_all("Requires-Dist", [])


def test_the_entry_points(wheels: Path) -> None:
    core = read(wheels, "turnout", ".dist-info/entry_points.txt")
    assert "turnout = turnout.cli:main" in core
    assert "[turnout.backends]\nreference = turnout.reference" in core
    for name in ("cpu", "cuda", "opencl"):
        plugin = read(wheels, f"turnout_{name}", ".dist-info/entry_points.txt")
        backends, _, implementations = plugin.partition("\n[turnout.implementations]\n")
        assert backends == f"[turnout.backends]\n{name} = turnout_{name}\n"
        for line in implementations.splitlines():
            assert re.fullmatch(rf"turnout\.ops\.\w+ = turnout_{name}\.\w+:\w+", line)
