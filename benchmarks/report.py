"""Results as a table in the terminal, as Markdown, and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .compare import Row, Verdict

COLUMNS = ("case", "n", "who", "median", "quartiles", "time / turnout's", "remarks")
RIGHT_ALIGNED = (1, 3)
FILE_COLUMNS = 200
NARROWEST = (8, 4, 10, 7, 8, 8, 20)

NOTE = (
    "Times are for one call, on one thread unless stated: medians of alternating runs, and their "
    "quartiles. They are the time of day or the CPU time, whichever is less, which other programs "
    "hardly change; rows about threads and the group `ready` have the time of day, which is right "
    "on an idle machine only. The ratio is that of the medians; its spread is that of the ratios "
    "within single rounds. Every result was compared with NumPy's in the same run."
)


def table_lines(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The cells of a group's table; a case and size are named once."""
    lines = []
    before: tuple[str, int | None] | None = None
    for row in rows:
        title = (row.case, row.size)
        named = (
            ("", "") if title == before else (row.case, "" if row.size is None else f"{row.size:,}")
        )
        lines.append((*named, row.name, *_times(row), "; ".join(_remarks(row))))
        before = title
    return lines


def _times(row: Row) -> tuple[str, str, str]:
    if row.median_ns is None or row.low_ns is None or row.high_ns is None:
        return "", "", ""
    spread = f"{duration(row.low_ns)} to {duration(row.high_ns)}"
    if row.ratio is None:
        return duration(row.median_ns), spread, ""
    ratio = f"{number(row.ratio)} ({number(row.ratio_low)} to {number(row.ratio_high)})"
    return duration(row.median_ns), spread, "1" if row.ratio == row.ratio_low == 1 else ratio


def _remarks(row: Row) -> Iterable[str]:
    if row.problem:
        yield row.problem
    for verdict in row.verdicts:
        yield f"{verdict_word(verdict)} ({verdict.goal}): {verdict.measured}"


def verdict_word(verdict: Verdict) -> str:
    """Whether a target is met."""
    return {True: "met", False: "NOT MET", None: "open"}[verdict.met]


def number(value: float | None) -> str:
    """Three significant digits, without an exponent."""
    if value is None or value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def duration(nanoseconds: float) -> str:
    """A time with a fitting unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(nanoseconds) >= size:
            return f"{number(nanoseconds / size)} {unit}"
    return f"{number(nanoseconds)} ns"


def machine_line(machine: dict[str, Any]) -> str:
    """One sentence about where the figures come from."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    environment = " ".join(f"{name}={value}" for name, value in machine["environment"].items())
    return (
        f"{machine['cpu']}, {machine['cores']} cores, load average {machine['load_average']}, "
        f"{machine['system']} {machine['architecture']}, {machine['libc']}, {machine['python']}; "
        f"{versions}; commit {machine['commit'] or 'unknown'}, {machine['date']}"
        + (f"; environment {environment}" if environment else "")
    )


def summary(rows: Sequence[Row]) -> str:
    """How many targets are met, and which are not."""
    verdicts = [(row, verdict) for row in rows for verdict in row.verdicts]
    missed = [
        f"{row.case}{'' if row.size is None else f' n={row.size:,}'}: {verdict.text}: "
        f"{verdict.measured}"
        for row, verdict in verdicts
        if verdict.met is False
    ]
    met = sum(verdict.met is True for _, verdict in verdicts)
    unknown = sum(verdict.met is None for _, verdict in verdicts)
    wrong = [f"{row.case}: {row.name}: {row.problem}" for row in rows if is_wrong(row)]
    lines = [f"Targets: {met} met, {len(missed)} not met, {unknown} open (a peer did not run)."]
    lines += [f"Not met: {text}" for text in missed]
    lines += [f"Not right: {text}" for text in wrong]
    return "\n".join(lines)


def is_wrong(row: Row) -> bool:
    """Whether somebody took part and failed or was wrong."""
    return row.problem.startswith(("wrong", "failed"))


def markdown(groups: dict[str, list[Row]], machine: dict[str, Any]) -> str:
    """Everything as Markdown."""
    parts = [f"{machine_line(machine)}.", NOTE]
    for name, rows in groups.items():
        parts.append(f"### {name}")
        rule = ["--:" if place in RIGHT_ALIGNED else "---" for place in range(len(COLUMNS))]
        lines = [COLUMNS, tuple(rule), *table_lines(rows)]
        parts.append("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    every_row = [row for rows in groups.values() for row in rows]
    parts.append(summary(every_row).replace("\n", "\n\n"))
    return "\n\n".join(parts) + "\n"


def show(name: str, rows: Sequence[Row]) -> None:
    """Print one group as a table."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=name, title_justify="left", title_style="bold", header_style="bold")
    for place, column in enumerate(COLUMNS):
        justify = "right" if place in RIGHT_ALIGNED else "left"
        table.add_column(column, justify=justify, overflow="fold", min_width=NARROWEST[place])
    for row, cells in zip(rows, table_lines(rows), strict=True):
        table.add_row(*map(Text, cells), style=_style(row))
    # Redirected into a file, a table is as wide as it needs to be.
    Console(width=None if sys.stdout.isatty() else FILE_COLUMNS).print(table)


def _style(row: Row) -> str:
    if is_wrong(row) or any(verdict.met is False for verdict in row.verdicts):
        return "red"
    return "green" if row.verdicts else ""


def to_json(groups: dict[str, list[Row]], machine: dict[str, Any]) -> str:
    """Everything as JSON."""
    content = {
        "format": 1,
        "machine": machine,
        "groups": {
            name: [dataclasses.asdict(row) for row in rows] for name, rows in groups.items()
        },
    }
    return json.dumps(content, indent=1) + "\n"


def write(folder: Path, name: str, groups: dict[str, list[Row]], machine: dict[str, Any]) -> Path:
    """Write the JSON file; give its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(to_json(groups, machine), encoding="utf-8")
    return path
