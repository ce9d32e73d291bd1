"""What the sources import, and what no file may name."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (".ci", "benchmarks", "core", "docs", "examples", "plugins", "tests")
REGISTRY = re.compile(r"\b(pypi|pythonhosted|npmjs|anaconda|debian|crates)\.(org|com|io)\b")
MERGE = re.compile(r"^(<{7}|>{7}) ", re.MULTILINE)


def imported_by(file: Path) -> Iterator[str]:
    """Yield the dotted names of the absolute imports of a file, wherever they stand in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module is not None
            yield node.module


def imports_of(package: Path) -> set[str]:
    return {name for file in package.rglob("*.py") for name in imported_by(file)}


def dependencies(project: Path) -> set[str]:
    text = (project / "pyproject.toml").read_text(encoding="utf-8")
    return {
        re.match(r"[\w-]+", requirement)[0]
        for requirement in tomllib.loads(text)["project"]["dependencies"]
    }


@pytest.mark.parametrize(
    ("project", "package", "from_extras"),
    [
        (ROOT, ROOT / "core" / "turnout", set()),
        (ROOT / "plugins" / "cpu", ROOT / "plugins/cpu/turnout_cpu", set()),
        # CuPy is one distribution per line of CUDA, and the user's choice.
        (ROOT / "plugins" / "cuda", ROOT / "plugins/cuda/turnout_cuda", {"cupy"}),
        (ROOT / "plugins" / "opencl", ROOT / "plugins/opencl/turnout_opencl", set()),
    ],
    ids=["turnout", "turnout-cpu", "turnout-cuda", "turnout-opencl"],
)
def test_a_distribution_imports_what_it_depends_on_and_nothing_else(
    project: Path, package: Path, from_extras: set[str]
) -> None:
    imported = {name.split(".")[0] for name in imports_of(package)}
    # The standard library has this one from Python 3.12 on, and is asked for it from then on only.
    foreign = imported - sys.stdlib_module_names - {package.name, "_sha2"}
    assert foreign == dependencies(project) | from_extras


@pytest.mark.parametrize("plugin", ["cpu", "cuda", "opencl"])
def test_a_plugin_imports_the_plugin_module_and_nothing_else_of_the_core(plugin: str) -> None:
    imported = imports_of(ROOT / "plugins" / plugin / f"turnout_{plugin}")
    assert {name for name in imported if name.split(".")[0] == "turnout"} == {"turnout.plugin"}


@pytest.fixture(scope="module")
def texts() -> dict[Path, str]:
    files = [path for path in ROOT.iterdir() if path.is_file() and path.suffix != ".pyc"]
    files += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    # What tools left in the checkout need not be text.
    return {
        path: path.read_text("utf-8", "replace")
        for path in files
        if path.suffix not in {".pyc", ".png"}
    }


def test_no_file_names_a_package_registry(texts: dict[Path, str]) -> None:
    # Where packages come from is the choice of whoever installs them.
    assert len(texts) > 30
    assert [path for path, text in texts.items() if REGISTRY.search(text)] == []


def test_no_file_holds_marks_of_a_merge(texts: dict[Path, str]) -> None:
    assert [path for path, text in texts.items() if MERGE.search(text)] == []
