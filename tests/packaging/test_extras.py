"""What the extras bring, as pip resolves them from a folder of wheels, and that versions agree.

CuPy and NVRTC are resolved only: they are large, and of use where there is a GPU.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Environment

ROOT = Path(__file__).parents[2]
PROJECT_FILES = [ROOT / "pyproject.toml", *sorted((ROOT / "plugins").glob("*/pyproject.toml"))]
PROJECTS: dict[str, dict[str, Any]] = {
    project["name"]: project
    for project in (
        tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in PROJECT_FILES
    )
}
CORE = PROJECTS["turnout"]
VERSION = CORE["version"]

WHAT_EXTRAS_BRING = {
    "cpu": {"turnout-cpu", "llvmlite"},
    "opencl": {"turnout-opencl", "pyopencl"},
    "all": {"turnout-cpu", "llvmlite", "turnout-opencl", "pyopencl"},
    "cuda12": {"turnout-cuda", "cupy-cuda12x", "nvidia-cuda-nvrtc-cu12"},
    "cuda13": {"turnout-cuda", "cupy-cuda13x", "nvidia-cuda-nvrtc"},
}
WHAT_PLUGINS_NEED = set.union(*WHAT_EXTRAS_BRING.values())

needs_cupy = pytest.mark.skipif(sys.platform == "darwin", reason="CuPy has no wheels for macOS")


def resolve(environment: Environment, *arguments: str) -> dict[str, str]:
    """The names of what pip would install, and where each comes from."""
    options = ("--dry-run", "--ignore-installed", "--quiet", "--report", "-")
    report = json.loads(environment.check_pip("install", *options, *arguments))
    return {
        each["metadata"]["name"].lower(): each["download_info"]["url"] for each in report["install"]
    }


def assert_resolved(found: dict[str, str], extras: set[str], wheels: Path) -> None:
    expected = set.union(*(WHAT_EXTRAS_BRING[extra] for extra in extras))
    assert found.keys() & WHAT_PLUGINS_NEED == expected
    for name in found:
        if name.startswith("turnout"):
            wheel = f"{name.replace('-', '_')}-{VERSION}-py3-none-any.whl"
            assert found[name] == (wheels / wheel).as_uri()


@pytest.mark.parametrize(
    "extra",
    [
        *("cpu", "opencl", "all"),
        *(pytest.param(line, marks=needs_cupy) for line in ("cuda12", "cuda13")),
    ],
)
def test_an_extra_brings_its_plugin_and_what_that_needs(
    builder: Environment, wheels: Path, extra: str
) -> None:
    found = resolve(builder, "--find-links", str(wheels), f"turnout[{extra}]=={VERSION}")
    assert_resolved(found, {extra}, wheels)


def test_the_newest_python_has_wheels_of_everything(
    builder: Environment, wheels: Path, tmp_path: Path
) -> None:
    # For one platform, so that it does not matter where this runs; pip wants each of its tags.
    platforms = [f"--platform=manylinux{tag}_x86_64" for tag in ("2014", "_2_17", "_2_28")]
    found = resolve(
        builder,
        *("--find-links", str(wheels), "--target", str(tmp_path), "--only-binary", ":all:"),
        *("--python-version", "3.14", *platforms),
        f"turnout[all,cuda13]=={VERSION}",
    )
    assert_resolved(found, {"all", "cuda13"}, wheels)


def test_a_plugin_of_another_minor_version_is_refused(
    core_alone: Environment, index: tuple[str, ...], plugin_of_next_minor: Path
) -> None:
    done = core_alone.pip("install", "--dry-run", *index, "turnout", str(plugin_of_next_minor))
    assert done.returncode != 0
    assert "conflicting dependencies" in done.stderr
    assert "turnout-cpu 0.2.0 depends on turnout~=0.2.0" in done.stdout + done.stderr


def test_doctor_names_the_version_of_a_plugin_that_was_forced_in(
    installed: Environment, plugin_of_next_minor: Path, tmp_path: Path
) -> None:
    installed.check_pip(
        *("install", "--quiet", "--no-deps", "--no-index", "--target", str(tmp_path)),
        str(plugin_of_next_minor),
    )
    report = json.loads(installed.check("turnout", "doctor", "--json", PYTHONPATH=str(tmp_path)))
    assert report["versions"]["turnout"] == VERSION
    versions = {each["name"]: each["version"] for each in report["backends"]}
    assert versions["cpu"] == "0.2.0"


def test_every_plugin_has_an_extra_and_every_extra_pins_its_plugin() -> None:
    pins = {extra: pin for extra, (pin,) in CORE["optional-dependencies"].items() if extra != "all"}
    assert CORE["optional-dependencies"]["all"] == ["turnout[cpu,opencl]"]
    reached = set()
    for extra, pin in pins.items():
        plugin, line, version = re.fullmatch(r"([\w-]+)(?:\[(\w+)\])?==(.*)", pin).groups()
        assert version == PROJECTS[plugin]["version"], pin
        # An extra that does not exist is only a warning of pip.
        assert line in {None, *PROJECTS[plugin].get("optional-dependencies", {})}, pin
        assert extra == line or f"turnout-{extra}" == plugin, pin
        reached.add(plugin)
    assert reached == PROJECTS.keys() - {"turnout"}
    assert pins.keys() | {"all"} == WHAT_EXTRAS_BRING.keys()


def test_all_distributions_carry_one_version() -> None:
    versions = {name: project["version"] for name, project in PROJECTS.items()}
    assert set(versions.values()) == {VERSION}, versions
    module = (ROOT / "core" / "turnout" / "version.py").read_text(encoding="utf-8")
    assert f'__version__ = "{VERSION}"' in module


def test_every_plugin_asks_for_the_core_of_its_version_or_newer_in_the_same_minor() -> None:
    for name in PROJECTS.keys() - {"turnout"}:
        ours = [each for each in PROJECTS[name]["dependencies"] if each.startswith("turnout")]
        assert ours == [f"turnout~={VERSION}"], name


@pytest.mark.parametrize("field", ["authors", "license", "license-files", "requires-python"])
def test_all_distributions_promise_the_same(field: str) -> None:
    for name, project in PROJECTS.items():
        assert project[field] == CORE[field], name


def test_all_distributions_name_the_same_pythons() -> None:
    def pythons(project: dict[str, Any]) -> list[str]:
        return [each for each in project["classifiers"] if "Python ::" in each]

    for name, project in PROJECTS.items():
        assert pythons(project) == pythons(CORE), name
