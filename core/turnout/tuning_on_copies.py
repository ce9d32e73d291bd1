"""Measuring now, on copies of a call's arguments, instead of in the calls that a program makes.

A sample is the mean of several runs, each on a copy of its own, so that it is longer than what a
timer can resolve, and so that implementations which work in place always see the caller's data.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .backends import context_for
from .copies import WorkingCopies, is_array, walk
from .errors import CallError
from .geometry import leaves
from .trials import C
from .tuning import Case, Hooks, Timer, Tuner

_SAMPLE_NS = 50_000
_MOST_RUNS = 64
_COPIES_BYTES = 1 << 26


def timer_of(arguments: Sequence[object], keywords: Mapping[str, object]) -> Timer:
    """Return the timer of the device that a call runs on; it is found when something is timed."""

    def timer(work: Callable[[], None]) -> int:
        return context_for(leaves([*arguments, *keywords.values()])).timer(work)

    return timer


def tune_on_copies(
    tuner: Tuner[C],
    case: Case[C],
    bound: inspect.BoundArguments,
    written: Collection[str],
    timer: Timer,
    hooks: Hooks[C],
    label: str,
) -> None:
    """Make all trials of an evaluation now and decide.

    Parameters
    ----------
    tuner : Tuner
    case : Case
    bound : inspect.BoundArguments
        All arguments of the call, defaults applied.
    written : collection of str
        The arguments that are copied; the others are only read.
    timer : Timer
    hooks : Hooks
    label : str
        Names the operation in the progress bar.

    Raises
    ------
    CallError
        When an argument cannot be copied.
    """
    sampler = Sampler(bound, written, timer)

    functions: dict[C, Callable[..., Any]] = {}

    def sample(candidate: C) -> int:
        if candidate not in functions:
            functions[candidate] = candidate.function_for(bound.args, bound.kwargs)
        return sampler.sample(functions[candidate])

    with _progress(label) as show:
        tuner.tune(case, sample, hooks, progress=lambda candidate: show(candidate.name))


class Sampler:
    """Times functions on copies of the arguments of a call.

    Parameters
    ----------
    bound : inspect.BoundArguments
        All arguments of the call, defaults applied.
    written : collection of str
        The arguments that are copied; the others are only read.
    timer : Timer

    Raises
    ------
    CallError
        When an argument cannot be copied.
    """

    def __init__(
        self, bound: inspect.BoundArguments, written: Collection[str], timer: Timer
    ) -> None:
        self._bound = bound
        self._written = written
        self._timer = timer
        self._copies = [_copies(bound, written)]
        self._most_runs = _most_runs(bound, written)
        self._elapsed_ns: dict[int, int] = {}  # by the identity of a function

    def sample(self, function: Callable[..., Any]) -> int:
        """Run a function as often as makes a sample, and return the nanoseconds of one run."""
        last_ns = self._elapsed_ns.get(id(function), _SAMPLE_NS)
        runs = max(1, min(self._most_runs, _SAMPLE_NS // max(last_ns, 1)))
        while len(self._copies) < runs:
            self._copies.append(_copies(self._bound, self._written))
        calls = [each.fresh() for each in self._copies[:runs]]

        def work() -> None:
            for call in calls:
                function(*call.args, **call.kwargs)

        self._elapsed_ns[id(function)] = elapsed_ns = round(self._timer(work) / runs)
        return elapsed_ns


def _copies(bound: inspect.BoundArguments, written: Collection[str]) -> WorkingCopies:
    copies = WorkingCopies(bound, written)
    if copies.problem is not None:
        raise CallError(
            f"tune runs on copies of the arguments, but {copies.problem}; say which arguments "
            "are written with mutates=, or let the operation measure in the calls of your program"
        )
    return copies


def _most_runs(bound: inspect.BoundArguments, written: Collection[str]) -> int:
    arrays = [
        each for name in written for _, each in walk(bound.arguments[name], name) if is_array(each)
    ]
    total_bytes = sum(getattr(array, "nbytes", 0) for array in arrays)
    return max(1, min(_MOST_RUNS, _COPIES_BYTES // max(total_bytes, 1)))


@contextmanager
def _progress(label: str) -> Iterator[Callable[[str], None]]:
    """Show what was tried, on a terminal; gives the function that is told of each trial."""
    if not sys.stderr.isatty():
        yield lambda name: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task: Any = progress.add_task(label, total=None)
        count = 0

        def show(name: str) -> None:
            nonlocal count
            count += 1
            progress.update(task, description=Text(f"{label}: trial {count}, {name}").plain)

        yield show
