"""The command ``turnout bench``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from .cli_arguments import argument_options, checked
from .tables import print_table, progress_bars

if TYPE_CHECKING:
    from collections.abc import Callable

    from .benching import Timing


@click.command()
@click.argument("target", metavar="MODULE:KERNEL")
@argument_options
@click.option(
    "--device",
    "named",
    multiple=True,
    metavar="DEVICE",
    help="Only this one, for example cuda:0; may be given several times. [default: all but the "
    "reference]",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    show_default=True,
    help="How long to measure for each set of arguments.",
)
@click.option("--json", "as_json", is_flag=True, help="Print facts for programs.")
@click.pass_context
def bench(
    context: click.Context,
    /,
    target: str,
    named: Sequence[str],
    seconds: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Time a kernel on each device, and under each policy of its "auto" dispatches.

    Runs it on copies of arguments like those of your program, in turns, and stores nothing. To
    compare the implementations of an operation, use `turnout tune`.
    """
    wanted = checked(context, **options)
    from . import benching
    from .inspection import find_kernel
    from .tuning_inputs import described

    kernel = find_kernel(target)
    on = list(dict.fromkeys(named)) or benching.usable_devices()
    facts = []
    are_all_right = True
    for origin, call in wanted.calls(kernel):
        with _progress(target) as tell:
            timings = benching.bench(kernel, call, on, seconds, tell)
        are_all_right &= all(each.samples_ns or each.policy for each in timings)
        title = f"{described(call)} ({origin})"
        if as_json:
            facts.append({"arguments": title, "timings": [_facts(each) for each in timings]})
        else:
            _print(title, timings)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    context.exit(0 if are_all_right else 1)


@contextmanager
def _progress(label: str) -> Iterator[Callable[[float], object]]:
    """Show how far it is, where somebody sees that; gives the function that is told."""
    with progress_bars() as progress:
        task = progress.add_task(label, total=1.0)
        yield lambda share: progress.update(task, completed=min(share, 1.0))


def _facts(timing: Timing) -> dict[str, object]:
    measured = list(timing.samples_ns)
    return {
        "device": timing.device,
        "policy": timing.policy or None,
        "median_ns": timing.median_ns if measured else None,
        "samples_ns": measured,
        "problem": timing.problem or None,
    }


def _print(title: str, timings: Sequence[Timing]) -> None:
    measured = sorted((t for t in timings if t.samples_ns), key=lambda timing: timing.median_ns)
    click.echo()
    if measured:
        print_table(
            title,
            ("device", "policy", "median", "middle half", "against the fastest", "samples"),
            [_row(each, measured[0]) for each in measured],
            numbers=("median", "middle half", "against the fastest", "samples"),
            marked=[each is measured[0] for each in measured],
        )
    else:
        click.echo(title)
    for each in timings:
        if each.problem:
            click.echo(f"{' '.join(filter(None, (each.device, each.policy)))}: {each.problem}")


def _row(timing: Timing, fastest: Timing) -> tuple[str, ...]:
    from .explain import duration

    low, high = timing.quartiles_ns
    return (
        timing.device,
        timing.policy or "-",
        duration(timing.median_ns),
        f"{duration(low)} to {duration(high)}",
        f"{timing.median_ns / fastest.median_ns:.2f}x",
        str(len(timing.samples_ns)),
    )
