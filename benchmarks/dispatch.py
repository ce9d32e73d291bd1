"""What `perf_dispatch` adds to a call once it has decided, beside the peer's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import turnout as tn

from .compare import Row, Target, judge, make_row
from .measure import Budget, alternate, quiet_clock, timed
from .peers import PEERS, quadrants

GROUP = "dispatch"
CASE = "decided perf_dispatch, overhead"

SUBJECT = "turnout, hash function of the example"
DEFAULT = "turnout, default geometry"
PEER = "quadrants, hash function of the example"
ALONE = "the implementation alone"

TARGETS = (
    Target(PEER, 2.0, fast=SUBJECT),
    Target(PEER, 1.0, fast=DEFAULT, row=DEFAULT),
)

CALLS_TO_DECIDE = 200
ANSWER = 7


def shapes(a: Any, b: Any) -> int:
    """The hash function of the documentation of both."""
    return hash(a.shape + b.shape)


def first(a, b):
    return ANSWER


def second(a, b):
    return ANSWER


def _operation(perf_dispatch: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """An operation of two plain functions, so that nothing but the dispatch takes time."""

    def operation(a, b): ...

    dispatcher = perf_dispatch(repeat_after_seconds=1.0, **settings)(operation)
    dispatcher.register(first)
    dispatcher.register(second)
    return dispatcher


def measure(budget: Budget) -> Iterator[list[Row]]:
    """All rows of the group."""
    operations: dict[str, Callable[..., Any]] = {
        SUBJECT: _operation(tn.perf_dispatch, get_geometry_hash=shapes),
        DEFAULT: _operation(tn.perf_dispatch),
    }
    problems: dict[str, str] = {}
    if PEERS["quadrants"].is_installed:
        operations[PEER] = _operation(quadrants().perf_dispatch, get_geometry_hash=shapes)
    else:
        problems[PEER] = PEERS["quadrants"].what_is_missing
    a, b = np.zeros(4, np.float32), np.zeros(4, np.float32)
    for name, operation in operations.items():
        problems[name] = _decide(operation, a, b)
    calls = {
        name: timed("call(a, b)", {"call": call, "a": a, "b": b}, clock=quiet_clock())
        for name, call in {ALONE: first, **operations}.items()
    }
    timings = alternate(calls, budget)
    overheads = {name: timings[name].minus(timings[ALONE]) for name in operations}
    title = (GROUP, CASE, None)
    rows = [
        make_row(title, name, overheads, SUBJECT, problems[name])
        for name in (SUBJECT, DEFAULT, PEER)
    ]
    judge(rows, overheads, TARGETS)
    yield [make_row(title, ALONE, timings, subject=""), *rows]


def _decide(operation: Callable[..., Any], a: Any, b: Any) -> str:
    """Call until the trials are over; what is wrong with the answers."""
    answers = {operation(a, b) for _ in range(CALLS_TO_DECIDE)}
    return "" if answers == {ANSWER} else f"wrong: answers {answers} instead of {ANSWER}"
