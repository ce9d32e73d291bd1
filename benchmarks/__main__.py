"""The command line: ``python -m benchmarks``."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import click

# Before anything that reads them is imported. Peers that have a setting of their own for the number
# of threads are told where they are used.
SETTINGS = {
    "TURNOUT_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "NUMEXPR_MAX_THREADS": "1",
    "ENABLE_QUADRANTS_HEADER_PRINT": "0",
}
CACHES = ("TURNOUT_CACHE_DIR", "HAWK_CACHE_DIR", "NUMBA_CACHE_DIR")

RESULTS = Path(__file__).parent / "results"
GROUPS = (
    "drag",
    "launch",
    "ready",
    "dispatch",
    "policies",
    "operations",
    "stacks",
    "reductions",
    "kernels",
    "specialised",
    "opencl",
)

SECONDS = 2.0
QUICK_SECONDS = 0.25


@click.group(invoke_without_command=True)
@click.option(
    "--group",
    "groups",
    multiple=True,
    type=click.Choice(GROUPS),
    help="Measure this group only; may be given several times.",
)
@click.option("--quick", is_flag=True, help="A shorter look: about a minute, with more noise.")
@click.option(
    "--save",
    is_flag=True,
    help="Write JSON and a plot into the results folder; nothing is written otherwise.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=RESULTS,
    help="The folder that --save writes to, instead of benchmarks/results.",
)
@click.option("--markdown", is_flag=True, help="Print the tables as Markdown.")
@click.pass_context
def main(
    context: click.Context,
    groups: tuple[str, ...],
    quick: bool,
    save: bool,
    output: Path,
    markdown: bool,
) -> None:
    """Compare turnout with what a user would pick instead, in one table.

    Every contender is checked in the same run. A target that is not met is said so; the exit
    status is 1 only when turnout itself fails or is wrong.
    """
    if context.invoked_subcommand is not None:
        return
    os.environ.update(SETTINGS)
    with tempfile.TemporaryDirectory(prefix="turnout-benchmarks-") as folder:
        os.environ.update(dict.fromkeys(CACHES, folder))
        is_right = _run(
            groups or GROUPS, QUICK_SECONDS if quick else SECONDS, markdown, save, output
        )
    context.exit(0 if is_right else 1)


def _run(
    chosen: tuple[str, ...], seconds: float, as_markdown: bool, save: bool, output: Path
) -> bool:
    """Measure and report; whether turnout was right everywhere."""
    import turnout as tn

    from . import machine, report
    from .measure import Budget
    from .suite import GROUPS as MEASURES

    tn.set_num_threads(1)
    described = machine.describe()
    budget = Budget(seconds)
    results = {}
    for name in chosen:
        rows = []
        for compared in MEASURES[name](budget):
            rows += compared
            click.echo(f"\r{name}: {compared[0].case:40}", nl=False, err=True)
        click.echo(f"\r{'':60}\r", nl=False, err=True)
        results[name] = rows
        if not as_markdown:
            report.show(name, rows)
    every_row = [row for rows in results.values() for row in rows]
    if as_markdown:
        click.echo(report.markdown(results, described))
    else:
        click.echo(f"{report.machine_line(described)}.\n{report.NOTE}\n{report.summary(every_row)}")
    if save:
        _save(output, results, described)
    return not any(report.is_wrong(row) and row.name.startswith("turnout") for row in every_row)


def _save(output: Path, results: dict, described: dict) -> None:
    from . import machine, plot, report

    path = report.write(output, machine.file_name(described), results, described)
    click.echo(f"Written: {path}")
    try:
        is_drawn = plot.draw(path.with_suffix(".svg"), results)
    except ImportError:
        click.echo("No plot: it needs matplotlib; python -m pip install matplotlib")
        return
    if is_drawn:
        click.echo(f"Written: {path.with_suffix('.svg')}")


@main.command()
@click.option("--check", is_flag=True, help="Compare with the kept counts; fail where one grew.")
@click.option("--keep", is_flag=True, help="Keep the counts of this Python as the new ones.")
@click.pass_context
def instructions(context: click.Context, check: bool, keep: bool) -> None:
    """Count the instructions of one launch and of one decided dispatch, under valgrind.

    The counts repeat exactly, whatever else the machine does.
    """
    from .instructions import command

    context.exit(command(check, keep))


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
