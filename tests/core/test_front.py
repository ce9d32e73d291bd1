"""The table of decisions that plugins read, by a reader that follows its description."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import turnout as tn
from turnout import offers
from turnout.backends import active
from turnout.decision_table import DecisionTable
from turnout.plugin import DecidedCalls, offer_decided_calls
from turnout.signatures import generate_flat_geometry


class Reader:
    """What a plugin makes, in Python: it counts the calls that it serves."""

    def __init__(self) -> None:
        self.served: list[Any] = []
        self.made = 0

    def make(self, calls: DecidedCalls) -> Callable[..., Any]:
        self.made += 1
        signature = inspect.signature(lambda a, b, out=None: None)

        def call(*arguments: Any, **keywords: Any) -> Any:
            try:
                bound = signature.bind(*arguments, **keywords)
            except TypeError:
                return calls.fallback(*arguments, **keywords)
            bound.apply_defaults()
            is_here = active() is calls.device.context
            key = self.key(bound.args)
            function = self.find(calls.table, key) if key and is_here else None
            if function is None:
                return calls.fallback(*arguments, **keywords)
            self.served.append(function)
            return function(*bound.args)

        return call

    def key(self, given: tuple[Any, ...]) -> list[int] | None:
        *arrays, out = given
        if any(type(each) is not np.ndarray or each.ndim > 4 for each in arrays):
            return None
        dtype = arrays[0].dtype
        key = [dtype.num + (0 if dtype.isnative else 1 << 32)]
        for each in arrays:
            key.append(each.ndim + 256 * each.flags.c_contiguous)
            key += [*each.shape, 0, 0, 0, 0][:4]
        key[1] += (1 << 16) * (out is None)
        return key

    def find(self, table: DecisionTable, key: list[int]) -> Any:
        total = sum(word * factor for word, factor in zip(key, table.factors, strict=True))
        first = table.slot_words * ((total % 2**64) >> (64 - table.SLOT_BITS))
        address, left, *found = table.words[first : first + table.slot_words]
        if not address or not left or found != key:
            return None
        table.words[first + table.LEFT] = left - 1
        return ctypes.cast(address, ctypes.py_object).value


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.setattr(offers, "_decided_calls", {})
    reader = Reader()
    offer_decided_calls("pick", "reference", reader.make)
    with tn.use("reference"):
        yield reader


def operation(**settings: Any) -> Any:
    def pick(a: Any, b: Any, out: Any = None) -> Any: ...

    geometry = generate_flat_geometry(inspect.signature(pick))
    plan = {"warmup": 0, "exploration_budget": 0} | settings
    made = tn.perf_dispatch(get_geometry_hash=geometry, mutates=(), **plan)(pick)
    for name in ("first", "second"):
        made.register(name=name, per_geometry=True)(maker(name))
    return made


def maker(name: str) -> Callable[..., Any]:
    def make(a: Any, b: Any, out: Any) -> Callable[..., Any]:
        return lambda a, b, out: (name, a.shape, out is None)

    return make


A, B = np.ones((2, 3)), np.ones(3)


def test_a_decision_is_lent_at_its_first_use_after_it_is_made(reader: Reader) -> None:
    pick = operation()
    for _ in range(4):
        pick(A, B)
    assert not reader.served
    chosen = pick.decision(A, B).chosen
    for _ in range(3):
        assert pick(A, B) == (chosen, (2, 3), True)
    assert len(reader.served) == 3


def test_keys_tell_all_that_geometries_tell(reader: Reader) -> None:
    pick = operation()
    calls = [
        (A, B, None),
        (A, B, A),
        (A.T, B, None),
        (A.astype(np.float32), B, None),
        (A.astype(">f8"), B, None),
        (A[:1], B, None),
        (A, B[:1], None),
        (A, B[::2], None),
        (np.ones(()), B, None),
    ]
    for _ in range(8):
        for a, b, out in calls:
            assert pick(a, b, out)[1:] == (a.shape, out is None)
    assert len(set(map(id, reader.served))) == len(calls)


def test_calls_that_were_not_made_are_given_back(reader: Reader) -> None:
    pick = operation(repeat_after_count=10)
    for _ in range(2 + 2 + 3):
        pick(A, B)
    assert len(reader.served) == 3
    (decided,) = pick._tuner.decided.values()
    assert decided.remaining == 5
    decided._take_back()
    assert decided.remaining == 5
    pick(A, B)  # lends them again
    assert decided.remaining == 4
    assert len(reader.served) == 3
    for _ in range(4):
        pick(A, B)
    assert len(reader.served) == 7
    assert decided.remaining == 0
    pick(A, B)
    assert not pick._tuner.decided


def test_what_is_dropped_is_not_found(reader: Reader) -> None:
    pick = operation()
    for _ in range(6):
        pick(A, B)
    served = len(reader.served)
    assert served
    for forget in (
        pick.reset,
        lambda: pick.register(name="third", per_geometry=True)(maker("third")),
    ):
        forget()
        assert not pick._front._table._loans
        for _ in range(2):
            pick(A, B)
        assert len(reader.served) == served


def test_schedules_by_time_keep_the_generated_path(reader: Reader) -> None:
    pick = operation(repeat_after_seconds=3600.0)
    for _ in range(10):
        pick(A, B)
    assert not reader.made


def test_other_geometries_keep_the_generated_path(reader: Reader) -> None:
    @tn.perf_dispatch(warmup=0)
    def pick(a: Any, b: Any, out: Any = None) -> Any: ...

    pick.register(name="first")(lambda a, b, out: 1)
    for _ in range(10):
        pick(A, B)
    assert not reader.made
