"""Operations of `turnout.ops` with the code that the CPU backend compiles for exact sizes."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnout as tn
from turnout_cpu import implementations

OPERATIONS = ("dot", "gemv", "matmul")


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    for name in OPERATIONS:
        # What the entry points do; here also where the package is not installed anew.
        getattr(implementations, f"offer_{name}")(getattr(tn.ops, name))
    tn.ops.cache_clear()
    with tn.use("cpu"):
        yield
    for name in OPERATIONS:
        getattr(tn.ops, name).reset()


def test_every_operation_has_an_entry_point() -> None:
    text = (Path(__file__).parents[2] / "plugins/cpu/pyproject.toml").read_text()
    declared = tomllib.loads(text)["project"]["entry-points"]["turnout.implementations"]
    for name in OPERATIONS:
        assert declared[f"turnout.ops.{name}"] == f"turnout_cpu.implementations:offer_{name}"


def test_compiled_functions_are_native_and_counted() -> None:
    matmul = tn.ops.compile_matmul(4, 4, 4, np.float64)
    assert type(matmul).__name__ == "builtin_function_or_method"
    assert tn.ops.cache_info().bytes > 0


def test_a_call_that_repeats_is_decided_and_stays_right() -> None:
    random = np.random.default_rng(0)
    a, b = random.random((48, 48)), random.random((48, 48))
    expected = a @ b
    for _ in range(20_000):
        assert np.allclose(tn.ops.matmul(a, b), expected, rtol=1e-12)
        decision = tn.ops.matmul.decision(a, b)
        if decision.samples.keys() >= {"numpy", "compiled"} and decision.chosen:
            break
    assert decision.chosen in ("numpy", "compiled")
    for order_a, order_b in itertools.product("CF", repeat=2):
        own_a, own_b = np.asarray(a, order=order_a), np.asarray(b, order=order_b)
        assert np.allclose(tn.ops.matmul(own_a, own_b), expected, rtol=1e-12)


def test_a_geometry_that_is_rare_is_not_compiled_for() -> None:
    tn.ops.matmul(np.eye(3), np.eye(3))
    before = tn.ops.cache_info().misses
    for n in range(4, 40):
        for _ in range(3):
            tn.ops.matmul(np.eye(n), np.eye(n))
    assert tn.ops.cache_info().misses == before


def test_threads_get_right_results_while_trials_run() -> None:
    random = np.random.default_rng(1)
    pairs = [(random.random((n, n)), random.random((n, n))) for n in (5, 17, 33)]
    problems: list[Any] = []

    def work() -> None:
        for _ in range(300):
            for a, b in pairs:
                out = np.empty_like(a)
                if not np.allclose(tn.ops.matmul(a, b, out), a @ b, rtol=1e-12):
                    problems.append(out)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not problems


@pytest.mark.parametrize("name", ["numpy", "compiled"])
def test_results_do_not_depend_on_the_threads(name: str) -> None:
    random = np.random.default_rng(2)
    stack = random.random((1000, 4, 4))
    tn.set_num_threads(1)
    try:
        with tn.ops.batched_matmul.force(name):
            single = tn.ops.batched_matmul(stack, stack)
            tn.set_num_threads(2)
            assert np.array_equal(tn.ops.batched_matmul(stack, stack), single)
    finally:
        tn.set_num_threads(None)


PROGRAM = """
import sys
import numpy as np, turnout as tn
from turnout_cpu import implementations
implementations.offer_matmul(tn.ops.matmul)
a = np.ones((16, 16))
if sys.argv[1] == "measure":
    tn.ops.matmul.tune(a, a)
else:
    tn.ops.matmul(a, a)
decision = tn.ops.matmul.decision(a, a)
print(decision.chosen, decision.source)
"""


def test_the_next_process_takes_over_what_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TURNOUT_TUNING", raising=False)
    monkeypatch.delenv("TURNOUT_BACKEND", raising=False)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    answers = []
    for word in ("measure", "use"):
        done = subprocess.run(
            [sys.executable, program, word], capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout.split())
    assert answers[0][1] == "measured"
    assert answers[1] == [answers[0][0], "remembered"]
