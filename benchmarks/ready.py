"""From a fresh process to the first result: with an empty cache, and from the disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .compare import Row, Verdict, failure, make_row
from .measure import Budget, Timing
from .peers import PEERS

GROUP = "ready"

FIRST_RESULT = "first result"
IMPORT = "import"
CACHES = ("TURNOUT_CACHE_DIR", "NUMBA_CACHE_DIR", "HAWK_CACHE_DIR", "XDG_CACHE_HOME")
TIMEOUT_S = 120


@dataclass(frozen=True)
class Start:
    """A way to get to a first result.

    Attributes
    ----------
    peer : str
        In the tables.
    program : str
        What `first_result` calls it.
    is_cached : bool
        Whether an earlier process has filled the cache.
    """

    peer: str
    program: str
    is_cached: bool

    @property
    def name(self) -> str:
        """In the tables."""
        return f"{self.peer}, {'from its disk cache' if self.is_cached else 'nothing cached'}"


STARTS = (
    Start("turnout", "turnout", False),
    Start("turnout", "turnout-compiler-imported", True),
    Start("Numba", "numba", False),
    Start("Numba", "numba", True),
    Start("quadrants", "quadrants", False),
    Start("quadrants", "quadrants", True),
    Start("hawk", "hawk", False),
    Start("hawk", "hawk", True),
    Start("NumExpr", "numexpr", False),
    Start("NumPy", "numpy", False),
)

TARGETS_MS = {
    (FIRST_RESULT, STARTS[0].name): 100.0,
    (FIRST_RESULT, STARTS[1].name): 15.0,
    (IMPORT, "turnout"): 40.0,
}
COMPILER = "turnout's compiler: llvmlite"


def measure(budget: Budget) -> Iterator[list[Row]]:
    """All rows of the group: first results, then imports."""
    with tempfile.TemporaryDirectory(prefix="turnout-benchmarks-") as folder:
        samples, problems = _run(Path(folder), max(3, min(9, int(4 * budget.seconds))))
    first = {name: phases[FIRST_RESULT] for name, phases in samples.items()}
    names = [start.name for start in STARTS]
    yield _rows("first result, 100 samples of drag", FIRST_RESULT, names, first, problems)

    imports = {start.peer: samples[start.name][IMPORT] for start in STARTS if start.name in samples}
    if STARTS[1].name in samples:
        imports[COMPILER] = samples[STARTS[1].name]["import llvmlite"]
    names = [*dict.fromkeys(start.peer for start in STARTS), COMPILER]
    missing = {start.peer: problems[start.name] for start in STARTS if start.name in problems}
    yield _rows("import, after NumPy", IMPORT, names, imports, missing)


@dataclass(frozen=True)
class Phase:
    """Times of one phase: of the day, and the part of it that this process was computing."""

    elapsed: Timing
    cpu: Timing


Phases = dict[str, Phase]
"""By name."""


def _run(folder: Path, rounds: int) -> tuple[dict[str, Phases], dict[str, str]]:
    """Phases of each start, by name; and why there are none, by name."""
    problems = {
        start.name: PEERS[start.peer].what_is_missing
        for start in STARTS
        if PEERS[start.peer].what_is_missing
    }
    found: dict[str, list[dict[str, list[int]]]] = {}
    # Not counted: one start of each peer compiles bytecode and fills its cache.
    fill = {start.peer: start for start in STARTS}.values()
    for number, starts in enumerate([fill, *[STARTS] * rounds]):
        for start in starts:
            if start.name in problems:
                continue
            cache = folder / (start.program if start.is_cached else f"{start.program}-{number}")
            try:
                phases = _start(start.program, cache, folder / "bytecode")
            except (subprocess.SubprocessError, ValueError) as error:
                problems[start.name] = failure(error)
                continue
            if number:
                found.setdefault(start.name, []).append(phases)
    samples = {
        name: {phase: _phase([each[phase] for each in runs]) for phase in runs[0]}
        for name, runs in found.items()
        if name not in problems
    }
    return samples, problems


def _phase(samples: list[list[int]]) -> Phase:
    elapsed, cpu = zip(*samples, strict=True)
    return Phase(Timing(elapsed), Timing(cpu))


def _start(program: str, cache: Path, bytecode: Path) -> dict[str, list[int]]:
    """Run one process; nanoseconds by phase, of the day and of the CPU."""
    cache.mkdir(exist_ok=True)
    result = subprocess.run(
        [sys.executable, "-m", "benchmarks.first_result", program, str(cache)],
        env=_environment(cache, bytecode),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    lines = result.stdout.strip().splitlines()
    if result.returncode or not lines:
        raise subprocess.SubprocessError((result.stderr.strip().splitlines() or ["no output"])[-1])
    phases: dict[str, list[int]] = json.loads(lines[-1])
    return phases


def _environment(cache: Path, bytecode: Path) -> Mapping[str, str]:
    """This process's, but for caches; modules come from compiled bytecode, as in daily use."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.update(dict.fromkeys(CACHES, str(cache)))
    root = str(Path(__file__).parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def _rows(
    case: str,
    kind: str,
    names: list[str],
    phases: Mapping[str, Phase],
    problems: Mapping[str, str],
) -> list[Row]:
    subject = names[0]
    timings = {name: phase.elapsed for name, phase in phases.items()}
    rows = [
        make_row((GROUP, case, None), name, timings, subject, problems.get(name, ""))
        for name in names
    ]
    for row in rows:
        limit_ms = TARGETS_MS.get((kind, row.name))
        if limit_ms is not None:
            row.verdicts.append(_verdict(row.name, limit_ms, phases.get(row.name)))
    return rows


def _verdict(name: str, limit_ms: float, phase: Phase | None) -> Verdict:
    goal = f"at most {limit_ms:g} ms"
    text = f"{name} {goal}"
    if phase is None:
        return Verdict(text, goal, "did not run", False)
    took_ms, cpu_ms = phase.elapsed.median_ns / 1e6, phase.cpu.median_ns / 1e6
    measured = f"{took_ms:.1f} ms, of which {cpu_ms:.1f} ms CPU time"
    return Verdict(text, goal, measured, took_ms <= limit_ms)
