"""What is in the sdists, and that wheels do not depend on where they are built."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import BuildWheels

ROOT = Path(__file__).parents[2]
OURS = {
    "turnout": ROOT,
    "turnout_cpu": ROOT / "plugins" / "cpu",
    "turnout_cuda": ROOT / "plugins" / "cuda",
    "turnout_opencl": ROOT / "plugins" / "opencl",
}


def contents(sdists: Path, distribution: str) -> dict[str, bytes]:
    """The files of an sdist, by their paths in its one folder."""
    folder = f"{distribution}-0.1.0"
    with tarfile.open(sdists / f"{folder}.tar.gz") as archive:
        files = [member for member in archive.getmembers() if member.isfile()]
        assert {member.name.split("/")[0] for member in files} == {folder}
        return {
            member.name.removeprefix(f"{folder}/"): archive.extractfile(member).read()
            for member in files
        }


@pytest.mark.parametrize("distribution", OURS)
def test_an_sdist_brings_license_description_and_all_sources(
    sdists: Path, distribution: str
) -> None:
    files = contents(sdists, distribution)
    folder = OURS[distribution]
    for name in ("LICENSE", "README.md", "pyproject.toml"):
        assert files[name] == (folder / name).read_bytes(), name
    assert b"Version: 0.1.0\n" in files["PKG-INFO"]
    package = folder / "core" / "turnout" if folder == ROOT else folder / distribution
    sources = {path for path in package.rglob("*") if path.suffix in {".py", ".typed", ".csv"}}
    assert len(sources) > 5
    assert {path.relative_to(folder).as_posix() for path in sources} <= set(files)


@pytest.mark.parametrize("distribution", OURS)
def test_an_sdist_holds_nothing_that_tools_left(sdists: Path, distribution: str) -> None:
    for name in contents(sdists, distribution):
        assert Path(name).suffix not in {".pyc", ".so", ".whl"}, name
        assert set(Path(name).parts).isdisjoint({".git", ".tox", "__pycache__", "dist"}), name


def test_the_sdist_of_the_core_brings_the_tests_of_all_and_what_they_need(sdists: Path) -> None:
    files = set(contents(sdists, "turnout"))
    tests = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("*.py")}
    assert len(tests) > 50
    assert tests <= files
    assert {"tox.ini", "CHANGELOG.md", "CONTRIBUTING.md", "docs/index.md"} <= files
    for distribution in ("plugins/cpu", "plugins/cuda", "plugins/opencl", "examples/thirdparty"):
        assert f"{distribution}/pyproject.toml" in files


def test_a_wheel_built_in_the_checkout_is_that_of_the_sdist(
    wheels: Path, build_wheels: BuildWheels, tmp_path: Path
) -> None:
    build_wheels(tmp_path, *OURS.values())
    built = sorted(tmp_path.iterdir())
    assert len(built) == len(OURS)
    for wheel in built:
        assert unpacked(wheel) == unpacked(wheels / wheel.name)


def unpacked(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
