"""The number of threads of the process: what sets it, and what it is otherwise."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import turnout as tn
from turnout import threads
from turnout.plugin import num_threads, on_num_threads_change


@pytest.fixture(autouse=True)
def default(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start from the default of a process without the variable, and leave it behind.

    Backends that other tests have loaded may ask for the number as soon as it changes, which is
    before a test has set the variable.
    """
    with monkeypatch.context() as patched:
        patched.delenv("TURNOUT_NUM_THREADS", raising=False)
        patched.setattr(threads, "_listeners", [])
        tn.set_num_threads(None)
        yield
        tn.set_num_threads(None)


@pytest.fixture
def quota(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Write the files of control groups, by path in their tree; the process is in the longest."""

    def write(groups: dict[str, str]) -> None:
        for group, text in groups.items():
            (tmp_path / group).mkdir(parents=True, exist_ok=True)
            (tmp_path / group / "cpu.max").write_text(text)
        own = tmp_path / "own"
        own.write_text(f"1:cpu:/elsewhere\n0::/{max(groups, key=len)}\n")
        monkeypatch.setattr(threads, "_GROUPS", str(tmp_path))
        monkeypatch.setattr(threads, "_GROUP_OF_PROCESS", str(own))
        tn.set_num_threads(None)

    return write


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="asks for the affinity")
def test_the_default_is_the_number_of_usable_cores(quota: Any) -> None:
    quota({"": "max 100000\n"})
    assert tn.num_threads() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("text", "expected"), [("50000 100000", 1), ("100000 50000", 2)])
def test_a_cpu_quota_limits_the_default(
    quota: Any, monkeypatch: pytest.MonkeyPatch, text: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 64, raising=False)
    quota({"a/b": text})
    assert tn.num_threads() == expected


def test_the_smallest_quota_of_nested_groups_counts_and_is_rounded_up(
    quota: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 64, raising=False)
    quota({"a": "250000 100000", "a/b": "max 100000", "a/b/c": "900000 100000"})
    assert tn.num_threads() == 3


def test_unreadable_quotas_limit_nothing(quota: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(5)), raising=False)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 5, raising=False)
    quota({"a": "nonsense"})
    assert tn.num_threads() == 5
    monkeypatch.setattr(threads, "_GROUP_OF_PROCESS", "/nowhere/at/all")
    tn.set_num_threads(None)
    assert tn.num_threads() == 5


@pytest.mark.parametrize(("text", "expected"), [("1", 1), (" 7 ", 7), ("1024", 1024)])
def test_the_environment(monkeypatch: pytest.MonkeyPatch, text: str, expected: int) -> None:
    monkeypatch.setenv("TURNOUT_NUM_THREADS", text)
    assert tn.num_threads() == expected


def test_an_empty_variable_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    usable = tn.num_threads()
    tn.set_num_threads(None)
    monkeypatch.setenv("TURNOUT_NUM_THREADS", "  ")
    assert tn.num_threads() == usable


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "1025", "²", "10 4", "0x4"])
def test_a_malformed_variable_is_an_error(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TURNOUT_NUM_THREADS", text)
    for _ in range(2):
        with pytest.raises(tn.ConfigurationError) as caught:
            tn.num_threads()
    message = str(caught.value)
    assert f"TURNOUT_NUM_THREADS={text!r} is not a number of threads" in message
    assert "whole number from 1 to 1024" in message


def test_setting_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_NUM_THREADS", "3")
    tn.set_num_threads(5)
    assert tn.num_threads() == num_threads() == 5
    tn.set_num_threads(None)
    assert tn.num_threads() == 3


@pytest.mark.parametrize("count", [0, -2, 1025, 2.0, "2", True])
def test_a_count_that_is_none(count: Any) -> None:
    tn.set_num_threads(2)
    with pytest.raises(tn.ConfigurationError) as caught:
        tn.set_num_threads(count)
    message = str(caught.value)
    assert f"set_num_threads: count is {count!r}" in message
    assert "from 1 to 1024, or None" in message
    assert tn.num_threads() == 2


def test_listeners_hear_of_every_change() -> None:
    heard: list[int] = []
    on_num_threads_change(lambda: heard.append(tn.num_threads()))
    tn.set_num_threads(4)
    tn.set_num_threads(4)
    tn.set_num_threads(1)
    assert heard == [4, 4, 1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(("given", "expected"), [(None, 6), (3, 3)])
def test_a_forked_child_reads_the_default_again(
    monkeypatch: pytest.MonkeyPatch, given: int | None, expected: int
) -> None:
    tn.set_num_threads(given)
    tn.num_threads()
    monkeypatch.setenv("TURNOUT_NUM_THREADS", "6")

    def work() -> None:
        assert tn.num_threads() == expected

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(30)
    assert process.exitcode == 0
