"""What people see: tables, drawn on a terminal that is wide enough, and progress bars."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    numbers: Collection[str],
    marked: Sequence[bool],
) -> None:
    """Print a table under its title.

    Parameters
    ----------
    title : str
    columns : sequence of str
        Their headings.
    rows : sequence of sequence of str
    numbers : collection of str
        The columns that are aligned on the right where the table is drawn.
    marked : sequence of bool
        For each row, whether it stands out.
    """
    click.echo(title)
    print_drawn(
        lambda: _drawn_table(columns, rows, numbers, marked), _plain_table(columns, rows, marked)
    )


def print_drawn(draw: Callable[[], Table], text: str) -> None:
    """Print a table that `rich` draws; where it cannot be shown whole, or not at all, a text.

    Parameters
    ----------
    draw : callable
        Makes the table; called on a terminal only.
    text : str
        The same in plain text.
    """
    if not (sys.stdout.isatty() and _print_if_whole(draw())):
        click.echo(text)


def _print_if_whole(table: Table) -> bool:
    """Print a table unless the terminal is too narrow for it; says whether it did."""
    from rich.console import Console

    console = Console()
    unlimited = console.options.update(max_width=sys.maxsize)
    if console.measure(table, options=unlimited).maximum > console.width:
        return False
    console.print(table)
    return True


def _drawn_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Collection[str],
    marked: Sequence[bool],
) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left")
    for row, is_marked in zip(rows, marked, strict=True):
        # Texts, because square brackets in names are no markup.
        table.add_row(*map(Text, row), style="bold green" if is_marked else None)
    return table


def _plain_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], marked: Sequence[bool]
) -> str:
    lines = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
    return "\n".join(
        click.style(text, bold=True) if is_marked else text
        for text, is_marked in zip(texts, [False, *marked], strict=True)
    )


def progress_bars() -> Progress:
    """Progress bars on standard error, where somebody sees them; they are gone when they end."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)
