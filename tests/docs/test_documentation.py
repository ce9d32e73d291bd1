"""The code in README.md, in docs/ and in docstrings runs, and the commands there exist.

Every ```` ```python ```` block of a page is executed, in order, in one namespace per page; a block
that starts with ``>>>`` is a doctest and shows its output. A block that cannot run here is preceded
by the comment ``<!-- no-run -->``; a page whose code needs a library that turnout does not has the
comment ``<!-- needs <library> -->``.
"""

from __future__ import annotations

import doctest
import importlib
import linecache
import pkgutil
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import turnout
from turnout.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"^(?P<marker><!-- no-run -->\n+)?```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
NEEDS = re.compile(r"^<!-- needs (\w+) -->$", re.MULTILINE)
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(turnout.__path__, "turnout.")
    if not module.name.startswith(("turnout.conformance", "turnout.__main__"))
)


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    """Of the first line of the code, counted from 1."""
    language: str
    text: str
    runs: bool

    @property
    def name(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, *languages: str) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            page,
            text.count("\n", 0, match.start("text")) + 1,
            match["language"],
            match["text"],
            runs=match["marker"] is None,
        )
        for match in BLOCK.finditer(text)
        if match["language"] in languages
    ]


def execute(block: Block, namespace: dict[str, Any]) -> None:
    # Blank lines in front make the line numbers of errors those of the page, and the entry in
    # linecache makes the source of functions readable, as kernels need it.
    source = "\n" * (block.line - 1) + block.text
    filename = f"<{block.name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), namespace)


def check_session(block: Block, namespace: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(
        block.text, namespace, block.name, str(block.page), block.line - 1
    )
    # get_doctest copies the namespace, and the blocks of a page share it.
    test.globs = namespace
    run_doctest(test, clear_globs=False)


def run_doctest(test: doctest.DocTest, *, clear_globs: bool = True) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=report.append, clear_globs=clear_globs)
    assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_code_of_a_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("TURNOUT_BACKEND", "TURNOUT_BLOCK", "TURNOUT_PERFDISPATCH_FORCE"):
        monkeypatch.delenv(variable, raising=False)
    for library in NEEDS.findall(page.read_text(encoding="utf-8")):
        pytest.importorskip(library)
    namespace: dict[str, Any] = {"__name__": page.stem}
    for block in blocks(page, "python"):
        if not block.runs:
            continue
        if block.text.startswith(">>>"):
            check_session(block, namespace)
        else:
            execute(block, namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_turnout_command_of_a_page_exists(page: Path) -> None:
    for block in blocks(page, "bash", "console"):
        for line in block.text.splitlines():
            for command in re.findall(r"(?:^|&& |-m )turnout ([^&#|>]*)", line.removeprefix("$ ")):
                name, *arguments = shlex.split(command)
                options = [argument for argument in arguments if argument.startswith("--")]
                help_page = CliRunner().invoke(main, [name, "--help"])
                assert help_page.exit_code == 0, f"{block.name}: turnout {command}"
                for option in options:
                    assert option in help_page.output, f"{block.name}: turnout {command}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_leads_somewhere(page: Path) -> None:
    text = BLOCK.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_run(module: str) -> None:
    for test in doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module)):
        run_doctest(test)


def test_readme_opens_with_its_two_commands() -> None:
    commands = [block.text for block in blocks(ROOT / "README.md", "bash")]
    assert commands[:2] == [
        "python -m pip install . ./plugins/cpu && turnout demo\n",
        "python -m pip install tox && tox run-parallel --parallel-live\n",
    ]


def test_the_backend_of_the_guide_is_the_one_of_the_example() -> None:
    example = (ROOT / "examples/thirdparty/turnout_example/cc.py").read_text(encoding="utf-8")
    code = [block.text.strip() for block in blocks(ROOT / "docs/write_a_backend.md", "python")]
    backend, trial = code[:-1], code[-1]
    assert [block for block in backend if block not in example] == []
    written = sum(len(block.splitlines()) for block in backend)
    assert written > 0.8 * len(example.splitlines())
    assert "launch((a, b), 3)" in trial
    assert len(example.splitlines()) < 150
