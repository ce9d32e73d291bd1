"""The commands ``turnout report`` and ``turnout tune``: measurements shown, made and carried."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .cli_arguments import argument_options, checked
from .errors import CallError, TurnoutError
from .tables import print_drawn, print_table

if TYPE_CHECKING:
    from .explain import Explanation
    from .reporting import ReportedCase, ReportedImplementation
    from .store import Entry
    from .tuning_inputs import Call, Operation


def _as_stored(context: click.Context, option: click.Parameter, name: str | None) -> str | None:
    return name and name.replace(":", ".")  # as in `turnout tune MODULE:OPERATION`


_operation = click.option(
    "--operation",
    metavar="NAME",
    callback=_as_stored,
    help="Only this one; with or without its module.",
)

_NOTHING = (
    "Nothing is stored in {path} yet.\n"
    "A program that calls operations (turnout.perf_dispatch) stores what it measures there, as "
    "soon as it has decided. Run yours, then ask again."
)


def _stored(operation: str | None) -> list[Entry]:
    from .decisions import of_operation
    from .store import default_store

    entries = default_store().entries()
    return entries if operation is None else of_operation(entries, operation)


def _say_that_there_is_nothing() -> None:
    from .store import default_store

    click.echo(_NOTHING.format(path=default_store().path), err=True)


# -- report ----------------------------------------------------------------------------------------


@click.command()
@_operation
@click.option("--json", "as_json", is_flag=True, help="Print facts for programs.")
@click.option("--csv", "as_csv", is_flag=True, help="Print one line for each implementation.")
def report(operation: str | None, as_json: bool, as_csv: bool) -> None:
    """Show which implementations were measured, and which ones are chosen.

    For each operation, geometry and device: the implementations with the median and the spread of
    their recent calls, the fastest first. Shown is what this user's programs measured on this
    machine and others that share the folder, for the latest code and versions.
    """
    from .reporting import report as reported

    if as_json and as_csv:
        raise click.UsageError("--json and --csv exclude each other")
    cases = reported(_stored(operation))
    if not cases:
        _say_that_there_is_nothing()
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(case) for case in cases], indent=2))
    elif as_csv:
        _print_csv(cases)
    else:
        _print_cases(cases)


def _print_cases(cases: list[ReportedCase]) -> None:
    now = time.time()
    operation = ""
    for case in cases:
        if case.operation != operation:
            operation = case.operation
            click.secho(f"\n{operation}", bold=True)
        click.echo()
        print_table(
            f"{case.geometry} on {case.device} ({case.hardware})",
            ("implementation", "median", "fastest to slowest", "samples", "age", ""),
            [_row(each, now) for each in case.implementations],
            numbers=("median", "fastest to slowest", "samples", "age"),
            marked=[each.is_chosen for each in case.implementations],
        )
        if not any(each.is_chosen for each in case.implementations):
            click.echo(f"chosen: {case.chosen}, whose measurements cannot be stored")


def _row(implementation: ReportedImplementation, now: float) -> tuple[str, ...]:
    from .explain import duration

    return (
        implementation.name,
        duration(implementation.median_ns),
        f"{duration(implementation.fastest_ns)} to {duration(implementation.slowest_ns)}",
        str(implementation.all_samples),
        age(now - implementation.measured_at),
        "chosen" if implementation.is_chosen else "",
    )


def age(seconds: float) -> str:
    """Return how long ago something was, in one unit.

    Examples
    --------
    >>> age(7300)
    '2 h'
    """
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _print_csv(cases: list[ReportedCase]) -> None:
    from .reporting import ReportedImplementation

    of_case = ("operation", "geometry", "device", "hardware", "versions")
    of_implementation = [each.name for each in dataclasses.fields(ReportedImplementation)]
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*of_case, *of_implementation])
    for case in cases:
        for each in case.implementations:
            values = [getattr(case, name) for name in of_case]
            writer.writerow([*values, *(getattr(each, name) for name in of_implementation)])


# -- tune MODULE:OPERATION -------------------------------------------------------------------------


class OperationCommand(click.Command):
    """The command that has an operation in place of its name."""

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        """What follows that name in the help."""
        return ["[OPTIONS]"]


@click.command("MODULE:OPERATION", cls=OperationCommand, hidden=True)
@click.argument("target", metavar="MODULE:OPERATION")
@argument_options
@click.pass_context
def tune_operation(context: click.Context, /, target: str, **options: Any) -> None:
    """Measure an operation now, on arguments like those of your program, and store the result.

    MODULE is named as your programs import it; it is found from the current folder too. Each
    implementation is measured as by the method `tune` of the operation.
    """
    wanted = checked(context, **options)
    from .tuning_inputs import find_operation

    operation = find_operation(target)
    calls = wanted.calls(operation)
    started_at = int(time.time())
    measured: list[str] = []
    try:
        are_all_right = _tune_each(context, operation, calls, measured)
    finally:  # what an error or Ctrl-C ends is stored up to there
        if measured:
            _say_what_is_stored(operation, measured, started_at)
    if are_all_right and not measured:
        click.echo("\nNothing was measured, so nothing is stored.", err=True)
    context.exit(0 if are_all_right else 1)


def _tune_each(
    context: click.Context,
    operation: Operation,
    calls: Iterable[tuple[str, Call]],
    measured: list[str],
) -> bool:
    """Tune for each call; one that fails keeps no other from being tuned.

    Appends the names of implementations that were measured to `measured`, and returns whether no
    call failed.
    """
    from .tuning_inputs import described

    are_all_right = True
    for origin, call in calls:
        click.echo(f"\n{described(call)} ({origin})")
        try:
            explanation = _tuned(operation, call)
        except TurnoutError as error:
            if context.find_root().params["traceback"]:
                raise
            are_all_right = False
            click.echo("\n".join([f"Error: {error}", *getattr(error, "__notes__", [])]), err=True)
        else:
            print_drawn(explanation.__rich__, str(explanation))
            if explanation.source != "given":
                measured += [e.name for e in explanation.implementations if e.samples_ns]
    return are_all_right


def _tuned(operation: Operation, call: Call) -> Explanation:
    from .targets import failure_text

    try:
        return operation.tune(*call.args, **call.kwargs)
    except TurnoutError:
        raise
    except Exception as error:
        raise CallError(f"these arguments cannot be used:\n{failure_text(error)}") from error


def _say_what_is_stored(operation: Operation, measured: list[str], started_at: int) -> None:
    from . import remembering
    from .store import default_store

    remembering.flush()
    store = default_store()
    if not store.is_writable:
        click.echo(
            "\nNothing is stored, because TURNOUT_TUNING or TURNOUT_CACHE says so.", err=True
        )
        return
    name = f"{operation.__module__}.{operation.__qualname__}"
    stored = {
        each.implementation
        for entry in store.entries()
        if entry.key.operation == name
        for each in entry.measurements
        if each.measured_at >= started_at
    }
    if stored:
        click.echo(f"\nStored in {store.path}; see `turnout report --operation {name}`.")
    missing = [name for name in dict.fromkeys(measured) if name not in stored]
    if missing:
        click.echo(
            f"\nNot stored: {', '.join(missing)}. Where turnout cannot tell what code an "
            "implementation consists of, register(version='...') says so.",
            err=True,
        )


# -- tune ------------------------------------------------------------------------------------------


class TuneGroup(click.Group):
    """Commands beside a default one, which takes an operation instead of a command's name."""

    def parse_args(self, context: click.Context, arguments: list[str]) -> list[str]:
        """Insert the name of the default command where it is meant."""
        first = arguments[0] if arguments else ""
        is_option = first.startswith("-") and first not in context.help_option_names
        if is_option or ":" in first:
            arguments = [tune_operation.name or "", *arguments]
        return super().parse_args(context, arguments)

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Say what there is instead of a command that there is not."""
        if arguments[0] not in self.commands:
            raise click.UsageError(
                f"{arguments[0]!r} is neither a command (export, import) nor MODULE:OPERATION",
                context,
            )
        return super().resolve_command(context, arguments)

    def collect_usage_pieces(self, context: click.Context) -> list[str]:
        """What may follow ``turnout tune`` in its help."""
        return ["(MODULE:OPERATION [OPTIONS] | export FILE | import FILE)"]

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """List the options of the default command, then the other commands."""
        options = [e for e in tune_operation.get_params(context) if isinstance(e, click.Option)]
        records = (each.get_help_record(context) for each in options)
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record is not None])
        self.format_commands(context, formatter)


@click.group(cls=TuneGroup)
def tune() -> None:
    """Measure an operation now, or carry measurements from one machine to another.

    MODULE:OPERATION is measured on arguments like those of your program, as by its method `tune`,
    and what was measured is stored for the programs that use it.

    What `turnout tune export` writes can be imported elsewhere, shipped with a package
    (turnout.decisions.use_decisions), or fix all choices (TURNOUT_TUNING=fixed:FILE).
    """


tune.add_command(tune_operation)


@tune.command("export")
@_operation
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_context
def export_decisions(context: click.Context, operation: str | None, file: Path) -> None:
    """Write what is stored to FILE, as JSON.

    The latest measurements of each operation, geometry and device, and which implementation is
    chosen. The same measurements give the same bytes. A file that exists is replaced.
    """
    from .decisions import current, write_decisions
    from .tuning_inputs import counted

    entries = current(_stored(operation))
    if not entries:
        _say_that_there_is_nothing()
        context.exit(1)
    write_decisions(file, entries)
    click.echo(f"{file}: {counted(len(entries), 'decision')}")


@tune.command("import")
@click.argument("file", type=click.Path(path_type=Path))
def import_decisions(file: Path) -> None:
    """Store the measurements in FILE for this user's programs.

    Measurements of the same implementation that are newer here stay. They count on the hardware
    and with the versions with which they were made. A file in which anything is malformed is
    refused as a whole.
    """
    from .decisions import read_decisions
    from .store import default_store
    from .tuning_inputs import counted

    counts = default_store().merge(read_decisions(file))
    click.echo(
        f"{counted(counts.added, 'measurement')} added, {counts.replaced} replaced, "
        f"{counts.kept} left as they were, because what is stored is as new or newer"
    )
