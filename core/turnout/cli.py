"""The command ``turnout``: what users type and see. What it prints comes from other modules."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from . import cli_bench, cli_bundles, cli_tuning
from .discovery import core_version
from .errors import TurnoutError
from .ir import f32, f64
from .tables import print_table, progress_bars

if TYPE_CHECKING:
    from .demo import Demo, Measured, Neighbours, Race
    from .inspection import (
        BackendReport,
        DeviceReport,
        DispatchReport,
        InstallationReport,
        KernelReport,
        LoopReport,
        Probe,
        UnitReport,
    )
    from .kernel import Kernel

INTERRUPTED = 130  # as shells report it
DEFAULT_COUNTS = (100, 1000, 3376)
QUICK_COUNTS = (100, 1000)


class TurnoutGroup(click.Group):
    """Commands whose errors are messages for people."""

    def invoke(self, context: click.Context) -> Any:
        """Run a command; what turnout reports goes to stderr, with exit status 1."""
        try:
            return super().invoke(context)
        except TurnoutError as error:
            if context.params["traceback"]:
                raise
            notes = getattr(error, "__notes__", [])
            click.echo("\n".join([f"Error: {error}", *notes]), err=True)
            context.exit(1)
        except KeyboardInterrupt:
            click.echo("Interrupted", err=True)
            context.exit(INTERRUPTED)


@click.group(cls=TurnoutGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(core_version(), prog_name="turnout")
@click.option("--traceback", is_flag=True, help="Show where in the code an error comes from.")
def main(traceback: bool) -> None:
    """Numerical kernels for every device, and the fastest implementation picked at run time."""


main.add_command(cli_bench.bench)
main.add_command(cli_bundles.build)
main.add_command(cli_tuning.report)
main.add_command(cli_tuning.tune)


# -- demo ------------------------------------------------------------------------------------------


@main.command()
@click.option(
    "--airports",
    "counts",
    type=click.IntRange(2, DEFAULT_COUNTS[-1]),
    multiple=True,
    metavar="N",
    help="Use the first N airports; give it again for more sizes. [default: 100, 1000 and all]",
)
@click.option("--quick", is_flag=True, help="Fewer timed calls, and not all airports.")
@click.option("--json", "as_json", is_flag=True, help="Print facts for programs.")
def demo(counts: tuple[int, ...], quick: bool, as_json: bool) -> None:
    """Race implementations of one operation on real data.

    Each airport's nearest neighbour, by great-circle distance between all pairs. The
    implementations are verified against each other, then measured for each number of airports, and
    the fastest is kept.
    """
    from .demo import Demo, load_airports

    counts = tuple(dict.fromkeys(counts)) or (QUICK_COUNTS if quick else DEFAULT_COUNTS)
    running = Demo(load_airports(), counts, timed_calls=3 if quick else 7)
    # What an operation prints when the environment asks for it is no part of the facts.
    with contextlib.redirect_stdout(sys.stderr if as_json else sys.stdout):
        races = _with_progress(running)
    if as_json:
        click.echo(json.dumps(_demo_facts(running, races), indent=2))
        return
    _print_demo(running, races)


def _with_progress(running: Demo) -> list[Race]:
    """Verify and race, with a progress bar where somebody sees it."""
    with progress_bars() as progress:
        task = progress.add_task("Verifying", total=running.total_work)
        running.advance = lambda work: progress.advance(task, work)
        running.verify()
        progress.update(task, description="Racing", total=running.total_work)
        return running.race()


def _print_demo(running: Demo, races: Sequence[Race]) -> None:
    from .backends import active

    device = active().device
    click.echo(f"Every airport's nearest neighbour, on {device} ({device.label}).")
    names = [variant.name for variant in running.variants]
    click.echo(f"All {len(names)} implementations give the same result; turnout raced them.")
    for name, reason in running.left_out.items():
        click.echo(f"Left out, because it failed: {name}: {reason}")
    for race in races:
        _print_race(race)
    closest, remotest = running.extremes()
    click.echo(f"\nFor {max(running.counts):,} airports:")
    click.echo(f"  The closest two:  {_sentence(closest)}")
    click.echo(f"  The most remote:  {_sentence(remotest)}")
    click.echo(
        "\nDo this to your own function, after `import turnout as tn`:\n\n"
        "    fast = tn.perf_dispatch(my_function)  # the operation, called like my_function\n"
        "    fast.register(my_function)            # the implementation you have\n"
        "    fast.register(tn.kernel(my_loops))    # another one, compiled; and so on\n\n"
        "Each call runs one of them; after a few, every call runs the fastest for its arguments.\n"
        "See the code of this demo's kernels: turnout show turnout.demo"
    )


def _sentence(neighbours: Neighbours) -> str:
    return f"{neighbours.airport}: {neighbours.distance_km:,.3f} km to {neighbours.nearest}"


def _print_race(race: Race) -> None:
    """One table; implementations that did not take part are named below it."""
    measured = [each for each in race.measured if each.samples_ns or each.is_chosen]
    title = f"{race.airports:,} airports, {race.airports**2:,} distances"
    click.echo()
    print_table(
        title,
        ("implementation", "median", "fastest to slowest", "speed", "", "why"),
        [_row(race, each) for each in measured],
        numbers=("median", "fastest to slowest", "speed"),
        marked=[each.is_chosen for each in measured],
    )
    absent: dict[str, list[str]] = {}
    for each in race.measured:
        if each not in measured:
            absent.setdefault(each.why, []).append(each.name)
    for why, names in absent.items():
        click.echo(f"Not raced: {', '.join(names)} ({why})")


def _row(race: Race, measured: Measured) -> tuple[str, ...]:
    from .explain import duration

    speed = race.speed_against_numpy(measured)
    shown_median = spread = ""
    if measured.median_ns is not None:
        shown_median = duration(measured.median_ns)
        fastest_ns, slowest_ns = min(measured.samples_ns), max(measured.samples_ns)
        spread = f"{duration(fastest_ns)} to {duration(slowest_ns)}"
    return (
        measured.name,
        shown_median,
        spread,
        f"{speed:.3g}x" if speed else "",
        "chosen" if measured.is_chosen else "",
        measured.why,
    )


def _demo_facts(running: Demo, races: Sequence[Race]) -> dict[str, Any]:
    from .backends import active
    from .inspection import versions

    device = active().device
    closest, remotest = running.extremes()
    return {
        "device": {"name": str(device), "label": device.label},
        "versions": versions(),
        "verified": True,  # else an error ended the demo
        "left_out": running.left_out,
        "geometries": [
            {
                "airports": race.airports,
                "chosen": race.chosen,
                "reason": race.reason,
                "implementations": [_implementation_facts(race, each) for each in race.measured],
            }
            for race in races
        ],
        "closest": dataclasses.asdict(closest),
        "remotest": dataclasses.asdict(remotest),
    }


def _implementation_facts(race: Race, measured: Measured) -> dict[str, Any]:
    samples_ns = measured.samples_ns
    return {
        "name": measured.name,
        "device": measured.device or None,
        "median_ns": measured.median_ns,
        "spread_ns": [min(samples_ns), max(samples_ns)] if samples_ns else None,
        "samples_ns": samples_ns,
        "speed_against_numpy": race.speed_against_numpy(measured),
        "chosen": measured.is_chosen,
        "why": measured.why,
    }


# -- doctor ----------------------------------------------------------------------------------------


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print facts for programs.")
@click.pass_context
def doctor(context: click.Context, as_json: bool) -> None:
    """Say what is installed and whether it works.

    Lists every backend and device, and compiles and runs a small kernel on each. Exit status 1: a
    backend is broken, or a result is wrong; hardware that is not there is no error.
    """
    from .inspection import examine

    report = examine()
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), indent=2))
    else:
        _print_installation(report)
    context.exit(0 if report.is_healthy else 1)


def _print_installation(report: InstallationReport) -> None:
    found = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    click.echo(f"{found}, {report.platform}")
    click.echo(f"cache of compiled kernels: {report.cache}")
    click.echo(f"calls run on: {report.active_device or 'no device'} ({report.active_reason})")
    for backend in report.backends:
        _print_backend(backend)
    if report.problems:
        _heading("problems")
        for problem in report.problems:
            click.echo(f"  {problem}")
    click.echo()
    if not report.is_healthy:
        click.echo("Something is broken, see above.")
    elif report.problems:
        click.echo("All backends work, but see the problems.")
    else:
        click.echo("All is well.")


def _print_backend(backend: BackendReport) -> None:
    _heading(f"{backend.name}: {backend.distribution} {backend.version}")
    if not backend.is_usable:
        click.echo(f"  {'BROKEN' if backend.is_broken else 'not usable'}: {backend.reason}")
        _print_fix(backend.fix)
    for device in backend.devices:
        _print_device(device)


def _print_device(device: DeviceReport) -> None:
    memory = f", {device.memory_bytes / 2**30:.1f} GiB" if device.memory_bytes else ""
    click.echo(f"  {device.name}: {device.label}{memory}")
    words = ", ".join(device.capabilities) or "none"
    click.echo(f"    architecture {device.architecture}, {device.lanes} lanes; can: {words}")
    if device.reason:
        click.echo(f"    not usable: {device.reason}")
        _print_fix(device.fix)
    for probe in device.probes:
        click.echo(f"    {_probe_line(probe)}")


def _print_fix(fix: str) -> None:
    if fix:
        click.echo(f"  fix: {fix}")


def _probe_line(probe: Probe) -> str:
    from .explain import duration

    if probe.problem:
        return f"{probe.form} kernel: FAILED: {probe.problem}"
    assert probe.compile_ns is not None  # as for every probe without a problem
    assert probe.first_result_ns is not None
    return (
        f"{probe.form} kernel: right; compiling takes {duration(probe.compile_ns)}, "
        f"the first result came after {duration(probe.first_result_ns)}"
    )


def _heading(text: str) -> None:
    click.echo()
    click.secho(text, bold=True)


# -- check -----------------------------------------------------------------------------------------


@main.command()
@click.argument("backend")
@click.option("--device", "index", type=click.IntRange(0), metavar="INDEX", help="Only this one.")
@click.option("--allow-missing", is_flag=True, help="Pass where the backend has no device here.")
@click.option("-k", "keyword", default="", metavar="EXPRESSION", help="Only tests whose name fits.")
@click.option("-v", "--verbose", is_flag=True, help="Name every test.")
@click.pass_context
def check(
    context: click.Context,
    backend: str,
    index: int | None,
    allow_missing: bool,
    keyword: str,
    verbose: bool,
) -> None:
    """Run the conformance suite on a backend.

    Passing it is what "supported backend" means. A test is skipped only where the backend declares
    that it lacks a capability.
    """
    from . import conformance

    context.exit(
        conformance.run(
            backend,
            device_index=index,
            allow_missing=allow_missing,
            keyword=keyword,
            verbose=verbose,
        )
    )


# -- show ------------------------------------------------------------------------------------------

_OWN_STAGES = ("plan", "unit", "loops")
_WIDTH = 100
"""Columns of the words about loops."""


@main.command()
@click.argument("target")
@click.option("--device", "--backend", "device", metavar="DEVICE", help="What to compile for.")
@click.option(
    "--dtype",
    type=click.Choice(["f32", "f64"]),
    default="f64",
    show_default=True,
    help="Floats of parameters that take their type from the call.",
)
@click.option(
    "--param",
    "param_types",
    multiple=True,
    callback=cli_bundles.named_types,
    metavar="NAME=TYPE",
    help="Type of a scalar parameter: int, float (the default) or a dtype such as i32.",
)
@click.option(
    "--stage",
    metavar="STAGE",
    help="Only this: plan, unit, loops, a stage of the backend such as assembly; or all.",
)
@click.option(
    "--why", is_flag=True, help="Only the loops, as --stage loops; of all kernels if none is named."
)
@click.option("--json", "as_json", is_flag=True, help="Print facts for programs.")
@click.pass_context
def show(
    context: click.Context,
    target: str,
    device: str | None,
    dtype: str,
    param_types: dict[str, str],
    stage: str | None,
    why: bool,
    as_json: bool,
) -> None:
    """Show what became of a kernel, or what a bundle holds.

    TARGET is MODULE:KERNEL or path/to/file.py:KERNEL; without the kernel, those of the module are
    listed. Shown are the plan of a call, its typed units, and for each loop whether it is parallel
    and vectorised, why, and what can be done about it. Nothing runs.

    Where TARGET is a folder that `turnout build` has written, its files are verified, and what it
    holds is listed.
    """
    from . import inspection
    from .targets import split_target

    if cli_bundles.holds_bundle(target):
        cli_bundles.show(target, as_json=as_json)
        return
    if why and stage not in (None, "loops"):
        raise click.UsageError("--why shows the loops only; leave out --stage")
    if as_json and (why or stage is not None):
        raise click.UsageError("--json prints all facts; leave out --why and --stage")
    place, path = split_target(target)

    def inspect(kernel: Kernel) -> KernelReport:
        width = {"f32": f32, "f64": f64}[dtype]
        return inspection.inspect_kernel(kernel, device, width=width, param_types=param_types)

    if path:
        _print_kernel(inspect(inspection.find_kernel(target)), stage, why, as_json)
    elif why:
        are_all_right = _print_every_kernel(inspection.find_kernels(place), inspect)
        context.exit(0 if are_all_right else 1)
    elif as_json or stage is not None:
        raise click.UsageError("name a kernel: MODULE:KERNEL or path/to/file.py:KERNEL")
    else:
        _list_kernels(place)


def _print_kernel(report: KernelReport, stage: str | None, why: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(report), indent=2))
        return
    if stage is not None or why:
        _print_stages(report, stage or "loops")
        return
    _print_title(report)
    _print_stages(report, *_OWN_STAGES)
    if report.stages:
        click.echo(f"\nMore: --stage {', --stage '.join(report.stages)}, or --stage all.")


def _print_every_kernel(
    kernels: Mapping[str, Kernel], inspect: Callable[[Kernel], KernelReport]
) -> bool:
    """Print the loops of each kernel; one that cannot be compiled hides no other."""
    are_all_right = True
    for name, kernel in kernels.items():
        click.secho(f"{name}:", bold=True)
        try:
            text = _stage_text(inspect(kernel), "loops")
        except TurnoutError as error:
            are_all_right = False
            text = "\n".join([f"Error: {error}", *getattr(error, "__notes__", [])])
        click.echo(textwrap.indent(text.rstrip("\n"), "  "))
        click.echo()
    return are_all_right


def _list_kernels(place: str) -> None:
    from .inspection import find_kernels

    for name, kernel in find_kernels(place).items():
        parameters = ", ".join(f"{s.name}: {s.annotation}" for s in kernel.signature.parameters)
        click.echo(f"{place}:{name}({parameters})")


def _print_title(report: KernelReport) -> None:
    click.secho(f"kernel {report.name} on {report.device}", bold=True)
    click.echo(f"  {report.file}:{report.line}")
    for name, description in report.parameters.items():
        click.echo(f"  {name}: {description}")


def _print_stages(report: KernelReport, *stages: str) -> None:
    existing = (*_OWN_STAGES, *report.stages)
    if stages == ("all",):
        stages = existing
    for stage in stages:
        if stage not in existing:
            raise click.BadParameter(
                f"on {report.device} there is no stage {stage!r}; there are: "
                f"{', '.join(existing)}, all",
                param_hint="--stage",
            )
        # One stage alone can be given to another program; several need headings.
        if len(stages) > 1:
            _heading(stage)
        click.echo(_stage_text(report, stage).rstrip("\n"))


def _stage_text(report: KernelReport, stage: str) -> str:
    if stage == "plan":
        return report.plan
    if stage == "loops":
        texts = [_loop_text(loop, report) for loop in report.loops]
        texts += [_dispatch_text(dispatch) for dispatch in report.dispatches]
        return "\n".join(texts) or "no loops"
    return "\n".join(_unit_text(unit, stage) for unit in report.units)


def _unit_text(unit: UnitReport, stage: str) -> str:
    return unit.text if stage == "unit" else unit.stages.get(stage, "")


def _loop_text(loop: LoopReport, report: KernelReport) -> str:
    vectorised = "; ".join(map(_vectorised, loop.compiled)) or f"{report.device} does not say"
    rows = {
        "parallel" if loop.is_parallel else "in order": loop.reason,
        "try": loop.advice,
        "threads": loop.threads,
        "vectorised": vectorised,
    }
    return _lines_text(loop.line, loop.text, rows)


def _vectorised(words: str) -> str:
    """What a backend says about a loop, as the answer to a question."""
    answer, separator, rest = words.partition(", " if words.startswith("vectorised") else ": ")
    yes_or_no = {"vectorised": "yes", "scalar": "no"}.get(answer)
    return f"{yes_or_no}, {rest}" if yes_or_no and separator else words


def _dispatch_text(dispatch: DispatchReport) -> str:
    words = f"{dispatch.branches} formulas, policy {dispatch.policy!r}: {dispatch.lowering}"
    return _lines_text(dispatch.line, dispatch.text, {dispatch.name: words})


def _lines_text(line: int, text: str, rows: Mapping[str, str]) -> str:
    """A line of the source and what is to be said about it, each thing under its title."""
    shown = [f"line {line}: {text.strip()}"]
    width = max(map(len, rows)) + 1
    for title, words in rows.items():
        start = f"  {title + ':':<{width}} "
        shown += textwrap.wrap(
            words,
            _WIDTH,
            initial_indent=start,
            subsequent_indent=" " * len(start),
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(shown)
