"""What an operation leaves in the store, when, and what it takes over."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from concurrency_support import in_fork

import turnout as tn
from turnout import remembering
from turnout.decisions import format_decisions
from turnout.errors import CacheWarning
from turnout.store import Entry, default_store

CALLS = 6


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TURNOUT_TUNING", raising=False)
    writer = remembering._Writer()
    monkeypatch.setattr(remembering, "_writer", writer)
    yield
    writer.flush()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the time that the writer and the memory see; it stands still between."""
    now_s = [1000.0]
    monkeypatch.setattr("turnout.remembering.time.monotonic", lambda: now_s[0])

    def advance(seconds: float) -> None:
        now_s[0] += seconds

    return advance


def first(x: Any) -> float:
    return float(x.sum())


def second(x: Any) -> float:
    return float(x.sum())


def operation(ran: list[str] | None = None, **settings: Any) -> Any:
    """What a program defines each time it starts; the first one is the faster one."""
    elapsed_ns = iter([10, 20] * 1000)

    def timer(work: Callable[[], None]) -> int:
        work()
        return next(elapsed_ns)

    @tn.perf_dispatch(timer=timer, **({"warmup": 0} | settings))
    def total(x: Any) -> float: ...

    for name, function in (("first", first), ("second", second)):
        total.register(name=name)(function)
    return total


def stored() -> list[Entry]:
    return default_store().entries()


def decide(op: Any, *shapes: tuple[int, ...]) -> None:
    for shape in shapes:
        for _ in range(CALLS):
            op(np.zeros(shape))


def test_a_decision_is_stored_at_once_and_the_next_program_need_not_measure() -> None:
    decide(operation(), (3,))
    (entry,) = stored()
    assert entry.key.operation == f"{__name__}.operation.<locals>.total"
    assert entry.key.geometry == f"('{entry.key.device}', ((3,), float64, True))"
    assert entry.key.device.startswith(("cpu", "reference"))
    assert entry.chosen == "first"
    assert {each.implementation: each.samples_ns for each in entry.measurements} == {
        "first": (10,),
        "second": (20,),
    }
    again = operation()
    again(np.zeros(3))
    explained = again.explain(np.zeros(3))
    assert (explained.chosen, explained.source) == ("first", "remembered")
    assert "measured by earlier processes, last at 20" in explained.reason
    assert [each.samples_ns for each in explained.implementations] == [(10,), (20,)]


def test_decisions_in_quick_succession_are_written_together(
    clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    add_all = default_store().add_all

    def counted(additions: Any) -> None:
        writes.append(len(additions))
        clock(0.001)  # what writing takes
        add_all(additions)

    monkeypatch.setattr(default_store(), "add_all", counted)
    op = operation()
    decide(op, (1,), (2,), (3,))
    assert writes == [1]
    clock(0.019)  # 95 % of the time for the program
    decide(op, (4,))
    assert writes == [1]
    clock(0.002)
    decide(op, (5,))
    assert writes == [1, 4]
    decide(op, (6,))
    remembering._writer.flush()  # as at the end of the program
    assert writes == [1, 4, 1]
    assert len(stored()) == 6


def test_new_samples_of_an_unchanged_choice_are_stored_once_a_minute(
    clock: Callable[[float], None],
) -> None:
    op = operation(repeat_after_count=1)
    decide(op, (3,))
    (entry,) = stored()
    assert [each.count for each in entry.measurements] == [1, 1]
    clock(61)
    decide(op, (3,))
    (entry,) = stored()
    assert min(each.count for each in entry.measurements) > 1


def test_another_choice_is_stored_at_once(clock: Callable[[float], None]) -> None:
    elapsed_ns = {"first": 10, "second": 20}
    running: list[str] = []

    def timer(work: Callable[[], None]) -> int:
        work()
        return elapsed_ns[running[-1]]

    def logged(name: str) -> Callable[[Any], None]:
        def run(x: Any) -> None:
            running.append(name)

        return run

    op = tn.perf_dispatch(warmup=0, repeat_after_count=1, timer=timer, recent_samples=1)(first)
    for name in elapsed_ns:
        op.register(name=name, version="1")(logged(name))
    decide(op, (3,))
    elapsed_ns["first"] = 30
    clock(1)
    decide(op, (3,))
    (entry,) = stored()
    assert entry.chosen == "second"


def test_geometries_that_mean_nothing_in_another_process_are_stored_as_the_default_one() -> None:
    decide(operation(get_geometry_hash=lambda x: hash(x.shape)), (3,))
    decide(operation(get_geometry_hash=lambda x: ("length", len(x))), (3,))
    remembering.flush()
    own, default = sorted(
        (entry.key for entry in stored()), key=lambda key: key.geometry[2:8] != "length"
    )
    assert default.geometry == f"('{default.device}', ((3,), float64, True))"
    assert own.geometry == "('length', 3)"


def test_versions_make_raced_functions_of_compiled_packages_known() -> None:
    class Third:
        def __call__(self, x: Any) -> float:
            return float(x.sum())

    decide(tn.race(first, Third(), warmup=0, repeat_after_seconds=0), (3,))
    (entry,) = stored()
    assert [each.implementation for each in entry.measurements] == ["first"]
    raced = tn.race(
        first, Third(), versions=[None, "2"], name="b", warmup=0, repeat_after_seconds=0
    )
    decide(raced, (3,))
    remembering.flush()
    (entry,) = (entry for entry in stored() if entry.key.operation.endswith("b"))
    assert {each.implementation for each in entry.measurements} == {"first", "Third"}


def test_an_implementation_that_nobody_can_know_is_not_stored() -> None:
    op = operation()

    class Third:
        def __call__(self, x: Any) -> float:
            return float(x.sum())

    op.register(name="third")(Third())  # what an object holds is not known
    decide(op, (3,))
    (entry,) = stored()
    assert {each.implementation for each in entry.measurements} == {"first", "second"}


def test_switched_off_nothing_is_read_or_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TURNOUT_TUNING", "off")
    decide(operation(), (3,))
    assert not list(tmp_path.glob("tuning*"))


def test_what_is_read_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    decide(operation(), (3,))
    monkeypatch.setenv("TURNOUT_TUNING", "read")
    op = operation()
    decide(op, (3,), (4,))
    assert op.explain(np.zeros(3)).source == "remembered"
    assert op.explain(np.zeros(4)).source == "measured"
    monkeypatch.delenv("TURNOUT_TUNING")
    assert len(stored()) == 1


def test_a_damaged_store_costs_one_warning(tmp_path: Path) -> None:
    decide(operation(), (3,))
    (path,) = tmp_path.glob("tuning*.sqlite")
    path.write_bytes(b"no database")
    op = operation()
    with pytest.warns(CacheWarning, match="measurements of implementations cannot be read") as all_:
        decide(op, (3,), (4,))
    (warning,) = all_
    assert warning.filename == __file__  # it points to the user's code
    assert op.decision(np.zeros(3)).chosen == "first"


def test_a_fixed_choice_runs_from_the_first_call_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    decide(operation(), (3,))
    (entry,) = stored()
    file = tmp_path / "decisions.json"
    file.write_text(format_decisions([Entry(entry.key, "second", entry.measurements)]))
    monkeypatch.setenv("TURNOUT_TUNING", f"fixed:{file}")
    op = operation()
    decide(op, (3,), (4,))
    assert op.decision(np.zeros(3)).chosen == "second"
    assert op.decision(np.zeros(4)).chosen == "first"  # the file says nothing of it
    explained = op.explain(np.zeros(3))
    assert (explained.source, explained.reason) == ("given", "fixed by TURNOUT_TUNING")
    assert op.tune(np.zeros(3)).source == "given"  # nothing is measured


def test_fixed_names_that_do_not_exist_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    decide(operation(), (3,))
    (entry,) = stored()
    file = tmp_path / "decisions.json"
    file.write_text(format_decisions([Entry(entry.key, "gone", entry.measurements)]))
    monkeypatch.setenv("TURNOUT_TUNING", f"fixed:{file}")
    with pytest.warns(RuntimeWarning, match="fixes the implementation 'gone', which does not"):
        operation()(np.zeros(3))


def test_after_a_reset_everything_is_measured_again() -> None:
    decide(operation(), (3,))
    op = operation()
    decide(op, (3,))
    assert op.explain(np.zeros(3)).source == "remembered"
    op.reset()
    decide(op, (3,))
    assert op.explain(np.zeros(3)).source == "measured"
    remembering.flush()
    (entry,) = stored()
    assert [each.count for each in entry.measurements] == [2, 2]


def test_what_waits_is_written_by_the_parent_and_not_by_its_child(
    clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    remembering._writer._not_before_s = 2000.0
    decide(operation(), (3,))
    assert len(remembering._writer._waiting) == 1

    def in_child() -> None:
        remembering._writer.forget_other_threads()  # what the hook of a fork does to the real one
        remembering._writer.flush()

    in_fork(in_child)
    assert stored() == []
    remembering._writer.flush()
    assert len(stored()) == 1


def test_the_store_is_a_database_anybody_can_read(tmp_path: Path) -> None:
    decide(operation(), (3,))
    (path,) = tmp_path.glob("tuning*.sqlite")
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT chosen FROM cases").fetchall() == [("first",)]
