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
    ("project", "package"),
    [
        (ROOT, ROOT / "core" / "turnout"),
        (ROOT / "plugins" / "cpu", ROOT / "plugins/cpu/turnout_cpu"),
        (ROOT / "plugins" / "opencl", ROOT / "plugins/opencl/turnout_opencl"),
    ],
    ids=["turnout", "turnout-cpu", "turnout-opencl"],
)
def test_a_distribution_imports_what_it_depends_on_and_nothing_else(
    project: Path, package: Path
) -> None:
    imported = {name.split(".")[0] for name in imports_of(package)}
    # The standard library has this one from Python 3.12 on, and is asked for it from then on only.
    foreign = imported - sys.stdlib_module_names - {package.name, "_sha2"}
    assert foreign == dependencies(project)


@pytest.mark.parametrize("name", ["cpu", "opencl"])
def test_a_plugin_imports_the_plugin_module_and_nothing_else_of_the_core(name: str) -> None:
    imported = imports_of(ROOT / "plugins" / name / f"turnout_{name}")
    assert {name for name in imported if name.split(".")[0] == "turnout"} == {"turnout.plugin"}


def test_no_file_names_a_package_registry() -> None:
    # Where packages come from is the choice of whoever installs them.
    files = [path for path in ROOT.iterdir() if path.is_file() and path.suffix != ".pyc"]
    files += [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file()]
    texts = [path for path in files if path.suffix not in {".pyc", ".png"}]
    assert len(texts) > 30
    # What tools left in the checkout need not be text.
    naming = [path for path in texts if REGISTRY.search(path.read_text("utf-8", "replace"))]
    assert naming == []
