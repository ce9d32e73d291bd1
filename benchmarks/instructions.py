"""Instruction counts under ``valgrind --tool=callgrind``: figures that repeat exactly.

`count` runs `instructions_program` twice. The first run compiles bytecode and kernels; the second
one, in which the same things happen every time, is counted. Valgrind shows programs a CPU of its
own, so kernels are compiled for what it can run.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

KEPT = Path(__file__).with_suffix(".json")
PROGRAM = "benchmarks.instructions_program"
DISTRIBUTIONS = ("numpy", "llvmlite")
TIMEOUT_S = 300

PASSED, GREW, NOT_POSSIBLE = 0, 1, 2
"""Exit statuses."""


class NotPossibleError(Exception):
    """Instructions cannot be counted or compared here; the text says why and what to do."""


@dataclass(frozen=True)
class Counts:
    """Instructions of one call.

    Attributes
    ----------
    launch : float
        A launch of `drag` with 100 samples, arguments by position.
    dispatch : float
        A decided `perf_dispatch` of two arguments with a hash function, beyond its implementation.
    """

    launch: float
    dispatch: float


@dataclass(frozen=True)
class Build:
    """What counts depend on besides turnout; they are compared on the same build only.

    Attributes
    ----------
    python, compiler : str
        The interpreter, and what it was built with.
    target : str
        What kernels are compiled for.
    versions : dict of str to str
        Versions of the libraries on the path of a call.
    """

    python: str
    compiler: str
    target: str
    versions: dict[str, str]


# -- counting --------------------------------------------------------------------------------------


def count() -> tuple[Counts, Build]:
    """Count instructions, in about 20 seconds.

    Raises
    ------
    NotPossibleError
        Without valgrind, or on another architecture than x86-64.
    """
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise NotPossibleError(
            "valgrind is not installed, so instructions cannot be counted; install it with the "
            "package manager of the system, for example: apt-get install valgrind"
        )
    if platform.machine() != "x86_64":
        raise NotPossibleError(
            f"the markers of {PROGRAM} are written for x86-64, not for {platform.machine()}"
        )
    with tempfile.TemporaryDirectory(prefix="turnout-instructions-") as name:
        folder = Path(name)
        _run([valgrind, "--tool=none"], folder)
        tool = ["--tool=callgrind", "--instr-atstart=no", "--callgrind-out-file=counts"]
        answer = _run([valgrind, *tool], folder)
        counted = parse_dumps(path.read_text() for path in folder.glob("counts.*"))
    return per_call(counted, answer["calls"]), _build(answer["target"])


def _run(command: list[str], folder: Path) -> dict:
    """Run the program with caches in `folder`; its answer.

    Nothing else varies, not even the names of files: `folder`, which has another name every time,
    is the working directory, and its contents have relative names.
    """
    root = str(Path(__file__).parent.parent)
    environment = {
        "HOME": ".",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PYTHONPYCACHEPREFIX": "bytecode",
        "TURNOUT_CACHE_DIR": "cache",
    }
    result = subprocess.run(
        [*command, sys.executable, "-P", "-m", PROGRAM],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"{PROGRAM} failed under valgrind:\n{result.stderr[-3000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def parse_dumps(texts) -> dict[str, int]:
    """Instructions by section, from callgrind's dumps."""
    counted = {}
    for text in texts:
        section = re.search(r"^desc: Trigger: Client Request: (\w+)$", text, re.MULTILINE)
        total = re.search(r"^totals: (\d+)$", text, re.MULTILINE)
        if section and total:
            counted[section[1]] = int(total[1])
    return counted


def per_call(counted: dict[str, int], calls: int) -> Counts:
    """What one call took: without the loop around it, and dispatch without its implementation."""
    return Counts(
        launch=(counted["launch"] - counted["loop"]) / calls,
        dispatch=(counted["dispatch"] - counted["implementation"]) / calls,
    )


def _build(target: str) -> Build:
    return Build(
        python=f"{platform.python_implementation()} {platform.python_version()}",
        compiler=platform.python_compiler(),
        target=target,
        versions={name: importlib.metadata.version(name) for name in DISTRIBUTIONS},
    )


# -- comparing -------------------------------------------------------------------------------------


def this_python() -> str:
    """The name under which counts are kept."""
    return f"{platform.python_implementation()} {'.'.join(platform.python_version_tuple()[:2])}"


def grown(counts: Counts, build: Build, kept: dict) -> list[str]:
    """What grew beyond the tolerance.

    Parameters
    ----------
    counts, build
        As `count` gives them.
    kept : dict
        The content of `KEPT`.

    Returns
    -------
    list of str
        One line for each count that grew; empty when none did.

    Raises
    ------
    NotPossibleError
        Nothing was kept for this Python, or on another build.
    """
    own = kept["counts"].get(this_python())
    if own is None:
        raise NotPossibleError(
            f"no counts are kept for {this_python()}; keep them with: "
            "python -m benchmarks instructions --keep"
        )
    different = [
        f"{name}: {value!r} instead of {own['build'][name]!r}"
        for name, value in asdict(build).items()
        if value != own["build"][name]
    ]
    if different:
        raise NotPossibleError(
            f"the counts kept for {this_python()} are of another build ({'; '.join(different)}), "
            "and only counts of one build compare; keep those of this one with: "
            "python -m benchmarks instructions --keep"
        )
    tolerance = kept["tolerance"]
    return [
        f"{name}: {value:,.0f} instructions, {own[name]:,.0f} were kept: "
        f"{value / own[name] - 1:+.1%}, at most {tolerance:+.1%} is allowed"
        for name, value in asdict(counts).items()
        if value > own[name] * (1 + tolerance)
    ]


def read_kept() -> dict:
    """The content of `KEPT`."""
    return json.loads(KEPT.read_text(encoding="utf-8"))


def keep(counts: Counts, build: Build) -> None:
    """Keep counts as those of this Python."""
    kept = read_kept()
    kept["counts"][this_python()] = {**asdict(counts), "build": asdict(build)}
    kept["counts"] = dict(sorted(kept["counts"].items()))
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def command(check: bool, is_kept: bool) -> int:
    """Count, print, and compare or keep; the exit status."""
    try:
        counts, build = count()
        for name, value in asdict(counts).items():
            print(f"{name}: {value:,.1f} instructions")
        if is_kept:
            keep(counts, build)
            print(f"Kept for {this_python()}")
        problems = grown(counts, build, read_kept()) if check else []
        if check and not problems:
            print("Nothing grew beyond the tolerance")
    except NotPossibleError as error:
        print(f"Not possible: {error}")
        return NOT_POSSIBLE
    for problem in problems:
        print(f"Grew: {problem}")
    return GREW if problems else PASSED
