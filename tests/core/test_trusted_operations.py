"""Whole operations that are verified, go on where an implementation raises, and are remembered.

The numbers are those of ``spec/field-scenarios.md``; README.md has the table of all of them.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import os
import sqlite3
import subprocess
import sys
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from concurrency_support import Reporter, in_threads
from language_support import DEVICES

import turnout as tn
from turnout import NDArray, f32, f64
from turnout.decisions import write_decisions
from turnout.store import TuningStore

CALLS = 15
"""More than three implementations need until one of them wins."""

CORE = str(Path(tn.__file__).resolve().parents[1])


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with tn.use(request.param):
        yield request.param


def operation(prototype: Callable[..., Any], *functions: Any, **settings: Any) -> Any:
    """An operation that never measures again, with implementations v0, v1, ..."""
    made: Any = tn.perf_dispatch(repeat_after_seconds=0, **settings)(prototype)
    for number, function in enumerate(functions):
        made.register(name=f"v{number}")(function)
    return made


def refusals(made: Any, *arguments: Any) -> dict[str, str | None]:
    explained = made.explain(*arguments)
    return {each.name: each.refusal for each in explained.implementations}


# ---- A: arguments that are changed ---------------------------------------------------------------


@tn.kernel
def scale_kernel(x: NDArray[f32, 2], s: f64) -> None:
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            x[i, j] *= f32(s)


def scale_numpy(x: Any, s: Any) -> None:
    x *= np.float32(s)


@pytest.mark.parametrize("verify", ["never", "once", "always"])
@pytest.mark.parametrize("mutates", [("x",), {"x": "update"}])
def test_in_place_scaling_is_applied_once_per_call(device: str, verify: Any, mutates: Any) -> None:
    """A1."""
    scale = tn.perf_dispatch(repeat_after_count=3, verify=verify, mutates=mutates)(
        lambda x, s: None
    )
    scale.register(scale_kernel)
    scale.register(scale_numpy)
    x = np.full((33, 70), 2.0**20, np.float32)
    for number in range(1, 25):
        scale(x, 0.5)
        np.testing.assert_array_equal(x, np.full((33, 70), 2.0 ** (20 - number), np.float32))
    scale.tune(x, 0.5)
    np.testing.assert_array_equal(x, np.full((33, 70), 2.0**-4, np.float32))


def test_declarations_that_contradict_each_other_are_refused() -> None:
    """A1: of a kernel, of two implementations, and of one argument twice."""
    scale = tn.perf_dispatch(lambda x, s: None)
    with pytest.raises(tn.KernelError, match="'x'"):
        scale.register(scale_kernel, mutates={"x": "output"})
    with pytest.raises(tn.KernelError, match="'x'"):
        scale.register(scale_kernel, mutates=("s",))
    with pytest.raises(tn.KernelError, match="names 'x' twice"):
        scale.register(scale_numpy, mutates=("x", "x"))
    scale.register(scale_kernel)
    with pytest.raises(tn.KernelError, match="'x'"):
        scale.register(scale_numpy, mutates={"x": "output"})
    scale.register(scale_numpy, mutates={"x": "update"})
    assert scale.implementations == ("scale_kernel", "scale_numpy")


def test_an_output_is_the_same_in_tried_and_in_later_calls() -> None:
    """A2: clearing it belongs to the implementation, so that it is part of every run."""

    def cleared(out: Any) -> None:
        out[:] = 0
        out += 1

    def filled(out: Any) -> None:
        out.fill(1)

    def accumulating(out: Any) -> None:
        out += 1

    ones = operation(
        lambda out: None, cleared, filled, accumulating, verify="once", mutates={"out": "output"}
    )
    out = np.zeros(1000, np.float32)
    for _ in range(CALLS):
        ones(out)
        assert (out == 1).all()
    reasons = refusals(ones, out)
    assert reasons["v0"] is reasons["v1"] is None
    assert "'out'[0] is nan instead of 1.0" in str(reasons["v2"])


def step(parameters: Any, gradient: Any, momentum: Any, rate: float) -> None:
    momentum *= np.float32(0.5)
    momentum += gradient
    parameters -= np.float32(rate) * momentum


def step_with_temporaries(parameters: Any, gradient: Any, momentum: Any, rate: float) -> None:
    momentum[:] = momentum * np.float32(0.5) + gradient
    parameters[:] = parameters - np.float32(rate) * momentum


@pytest.mark.parametrize("verify", ["once", "always"])
def test_an_optimiser_takes_one_step_per_call(verify: Any) -> None:
    """A4."""
    stepping = operation(
        lambda parameters, gradient, momentum, rate: None,
        *(step, step_with_temporaries),
        verify=verify,
        mutates=("parameters", "momentum"),
    )
    actual = np.ones(5, np.float32), np.full(5, 1e-3, np.float32), np.zeros(5, np.float32)
    wanted = tuple(array.copy() for array in actual)
    for _ in range(CALLS):
        stepping(*actual, 1e-3)
        step(*wanted, 1e-3)
        np.testing.assert_array_equal(actual, wanted)
    assert refusals(stepping, *actual, 1e-3) == {"v0": None, "v1": None}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_number_of_candidates_never_changes_the_result(count: int) -> None:
    """A5: the same reduction in place, under several names."""

    def add_sums(x: Any, total: Any) -> None:
        total += x.sum(axis=0)

    x, total = np.arange(392.0 * 384).reshape(392, 384), np.zeros(384)
    summed = operation(
        lambda x, total: None, *[add_sums] * count, verify="once", mutates=("total",)
    )
    for number in range(1, CALLS):
        summed(x, total)
        np.testing.assert_array_equal(total, number * x.sum(axis=0))


@dataclasses.dataclass
class State:
    position: Any
    velocity: Any


@pytest.mark.parametrize("kind", ["list", "dict", "dataclass"])
def test_what_is_written_is_restored_wherever_it_sits(kind: str) -> None:
    """A7: with a scalar between, as in the thread."""

    def members(written: Any) -> list[Any]:
        if isinstance(written, State):
            return [written.position, written.velocity]
        return list(written.values()) if isinstance(written, dict) else list(written)

    def fails_in_the_middle(first: Any, second: Any, factor: float, written: Any) -> None:
        members(written)[0][:] = np.nan
        members(written)[1][0] = np.nan
        raise ValueError("not for this size")

    def in_a_loop(first: Any, second: Any, factor: float, written: Any) -> None:
        for a, b, out in zip(first, second, members(written), strict=True):
            out += factor * (a + b)

    add = operation(
        lambda first, second, factor, written: None,
        *(
            fails_in_the_middle,
            in_a_loop,
            lambda first, second, factor, written: in_a_loop(first, second, factor, written),
        ),
        mutates=("written",),
    )
    outs = [np.zeros(3), np.zeros(4)]
    written: Any = {
        "list": outs,
        "dict": dict(zip("pv", outs, strict=True)),
        "dataclass": State(*outs),
    }[kind]
    first, second = [np.ones(3), np.full(4, 2.0)], [np.full(3, 3.0), np.ones(4)]
    for number in range(1, CALLS):
        add(first, second, 0.5, written)
        assert outs[0].tolist() == [2.0 * number] * 3
        assert outs[1].tolist() == [1.5 * number] * 4
    assert refusals(add, first, second, 0.5, written)["v0"] == (
        "which raised ValueError: not for this size"
    )


def extra_bytes(work: Callable[[], object]) -> tuple[int, int]:
    """The peak of memory while something runs, and what stays of it afterwards."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        work()
        gc.collect()
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - before, after - before


@pytest.mark.parametrize("how", ["calls", "tune"])
@pytest.mark.parametrize("verify", ["never", "once"])
def test_memory_is_that_of_what_is_written(how: str, verify: Any) -> None:
    """A8: 200 MB that are read, and 8 bytes that are written."""

    def by_method(large: Any, out: Any) -> None:
        out[0] = large.sum()

    def by_reduce(large: Any, out: Any) -> None:
        np.add.reduce(large, out=out[0, ...])

    large, out = np.zeros(25_000_000), np.zeros(1)
    op = operation(
        lambda large, out: None, by_method, by_reduce, verify=verify, mutates={"out": "output"}
    )
    op.decision(large, out)
    if how == "tune":
        peak, kept = extra_bytes(lambda: op.tune(large, out))
    else:
        peak, kept = extra_bytes(lambda: [op(large, out) for _ in range(CALLS)])
    assert op.explain(large, out).chosen is not None
    assert peak < 2_000_000
    assert kept < 200_000


@pytest.mark.parametrize("verify", ["once", "always"])
def test_a_result_may_be_written_over_its_operand(verify: Any) -> None:
    """A12."""

    def shrink(x: Any, out: Any) -> None:
        np.subtract(x, 0.001 * x, out=out)

    def shrink_by_factor(x: Any, out: Any) -> None:
        np.multiply(x, 0.999, out=out)

    op = operation(
        lambda x, out: None, shrink, shrink_by_factor, verify=verify, mutates={"out": "output"}
    )
    for _ in range(CALLS):
        x = np.ones(2)
        op(x, x)
        np.testing.assert_allclose(x, [0.999, 0.999], rtol=1e-15)
    assert refusals(op, x, x) == {"v0": None, "v1": None}


# ---- B: right or not -----------------------------------------------------------------------------


def right(x: Any, out: Any) -> None:
    np.multiply(x, 2, out=out)


def also_right(x: Any, out: Any) -> None:
    np.add(x, x, out=out)


def with_one_nan(x: Any, out: Any) -> None:
    np.multiply(x, 2, out=out)
    out[617] = np.nan


def idle(x: Any, out: Any) -> None:
    pass


@pytest.mark.parametrize("debug", ["0", "1"])
@pytest.mark.parametrize("verify", ["once", "always"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_nan_in_a_thousand_is_refused(
    debug: str, verify: Any, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B2: in every verbosity, and wherever the wrong one was registered."""
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_PRINT_DEBUG", debug)
    functions = [right, also_right]
    functions.insert(place, with_one_nan)
    op = operation(lambda x, out: None, *functions, verify=verify, mutates={"out": "output"})
    x, out = np.linspace(0, 1, 1000), np.full(1000, np.nan)
    for _ in range(CALLS):
        op(x, out)
        np.testing.assert_array_equal(out, 2 * x)
    reasons = refusals(op, x, out)
    assert [name for name, reason in reasons.items() if reason] == [f"v{place}"]
    assert "'out'[617] is nan instead of 1.23" in str(reasons[f"v{place}"])


def test_a_majority_that_is_wrong_does_not_win_over_the_named_reference() -> None:
    wrong: list[Any] = [with_one_nan, lambda x, out: with_one_nan(x, out)]
    op = operation(
        lambda x, out: None, *wrong, right, verify="once", reference="v2", mutates={"out": "output"}
    )
    x, out = np.ones(1000), np.zeros(1000)
    for _ in range(CALLS):
        op(x, out)
        assert (out == 2).all()


def test_results_of_other_widths_are_compared_in_the_wider_one() -> None:
    """B3: float64 against float32, int32 against int64."""
    means = operation(
        lambda x: None,
        lambda x: x.mean(dtype=np.float64),
        lambda x: x.mean(dtype=np.float32),
        lambda x: x.mean(dtype=np.float64) * (1 + 1e-2),
        verify="once",
        mutates=(),
    )
    counts = operation(
        lambda x: None,
        lambda x: np.int32(len(x)),
        lambda x: np.int64(len(x)),
        lambda x: np.int64(len(x) + 2**32),
        verify="once",
        mutates=(),
    )
    x = np.linspace(0, 1, 1001)
    for _ in range(CALLS):
        assert abs(means(x) - 0.5) < 1e-6
        assert counts(x) == 1001
    for op in (means, counts):
        assert [name for name, reason in refusals(op, x).items() if reason] == ["v2"]


@pytest.mark.parametrize("access", ["output", None])
@pytest.mark.parametrize("functions", [(right, idle), (idle, right), (idle, idle, right)])
def test_one_that_does_nothing_is_refused_beside_the_right_answer(
    access: str | None, functions: tuple[Any, ...]
) -> None:
    """B5: the right answer of an earlier call is in the output already."""
    mutates = ("out",) if access is None else {"out": access}
    op = operation(lambda x, out: None, *functions, verify="once", mutates=mutates)
    x = np.arange(5.0)
    out = 2 * x
    op(x, out)
    for number in range(CALLS):
        x[:] = number
        op(x, out)
        assert (out == 2 * number).all()
    idle_ones = [f"v{n}" for n, function in enumerate(functions) if function is idle]
    assert [name for name, reason in refusals(op, x, out).items() if reason] == idle_ones


def test_elements_that_are_left_on_purpose_agree() -> None:
    """B6: even positions of an array whose memory was never written."""

    def even(x: Any, out: Any) -> None:
        out[::2] = x[::2]

    def even_in_a_loop(x: Any, out: Any) -> None:
        for i in range(0, len(x), 2):
            out[i] = x[i]

    op = operation(
        lambda x, out: None, even, even_in_a_loop, verify="once", mutates={"out": "output"}
    )
    x = np.arange(9, dtype=np.float32)
    for _ in range(CALLS):
        out = np.empty(9, np.float32)
        op(x, out)
        assert out[::2].tolist() == [0, 2, 4, 6, 8]
    assert refusals(op, x, out) == {"v0": None, "v1": None}


# ---- D: failing ----------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, RuntimeError, MemoryError, ZeroDivisionError])
@pytest.mark.parametrize("verify", ["never", "once"])
@pytest.mark.parametrize("place", [0, 1])
def test_the_call_goes_on_where_an_implementation_raises(
    error: type[Exception], verify: Any, place: int
) -> None:
    """D3, D8."""

    def failing(x: Any) -> None:
        x[0] = np.nan
        raise error("boom")

    def halve(x: Any) -> None:
        x *= 0.5

    functions = [halve]
    functions.insert(place, failing)
    op = operation(lambda x: None, *functions, verify=verify, mutates=("x",))
    x = np.full(3, 2.0**20)
    for number in range(1, CALLS):
        op(x)
        assert x.tolist() == [2.0 ** (20 - number)] * 3
    reason = refusals(op, x)[f"v{place}"]
    assert f"{error.__name__}: boom" in str(reason)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("verify", ["never", "once"])
def test_an_interrupt_passes_and_the_arguments_are_as_before(
    error: type[BaseException], verify: Any
) -> None:
    """D3, D12."""
    raising = True

    def interrupted(x: Any) -> None:
        x[0] = np.nan
        if raising:
            raise error
        x[0] = 1
        x *= 0.5

    def halve(x: Any) -> None:
        x *= 0.5

    op = operation(lambda x: None, interrupted, halve, mutates=("x",), verify=verify)
    x = np.ones(3)
    with pytest.raises(error):
        op(x)
    assert x.tolist() == [1, 1, 1]
    raising = False
    for _ in range(CALLS):
        x[:] = 1
        op(x)
        assert x.tolist() == [0.5] * 3
    assert refusals(op, x) == {"v0": None, "v1": None}


@pytest.mark.parametrize("verify", ["never", "once"])
def test_where_all_raise_the_arguments_are_as_before_and_nobody_is_left_out(verify: Any) -> None:
    def implementation(name: str) -> Callable[[Any], None]:
        def run(x: Any) -> None:
            is_bad = x[0] < 0
            x *= 2
            if is_bad:
                raise ValueError(name)

        return run

    op = operation(
        lambda x: None,
        implementation("first"),
        implementation("second"),
        mutates=("x",),
        verify=verify,
    )
    bad = np.array([-1.0, 3.0])
    for _ in range(CALLS):
        with pytest.raises(ValueError, match=r"first|second"):
            op(bad)
        assert bad.tolist() == [-1, 3]
    assert refusals(op, bad) == {"v0": None, "v1": None}
    good = np.ones(2)
    op(good)
    assert good.tolist() == [2, 2]


@pytest.mark.parametrize("verify", ["never", "once", "always"])
def test_nothing_of_a_call_is_kept(verify: Any) -> None:
    """D4."""

    def failing(x: Any, out: Any) -> None:
        raise ValueError("boom")

    op = operation(
        lambda x, out: None,
        *(failing, right, also_right, idle),
        verify=verify,
        mutates={"out": "output"},
    )
    x, out = np.ones(1000), np.zeros(1000)
    references = [weakref.ref(x), weakref.ref(out)]
    for _ in range(CALLS):
        op(x, out)
    op.tune(x, out)
    print(op.explain(x, out))
    del x, out
    gc.collect()
    assert [reference() for reference in references] == [None, None]


# ---- H: threads ----------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 8, 32])
@pytest.mark.parametrize("verify", ["once", "always"])
def test_threads_that_start_cold_get_right_results_beside_wrong_implementations(
    count: int, verify: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H1: with wrong and failing candidates, remembering what was measured."""
    monkeypatch.setenv("TURNOUT_TUNING", "readwrite")
    monkeypatch.setenv("TURNOUT_CACHE_DIR", str(tmp_path))

    def failing(x: Any, out: Any) -> None:
        out[:] = -1
        raise ValueError("boom")

    op: Any = tn.perf_dispatch(verify=verify, mutates={"out": "output"}, repeat_after_count=20)(
        lambda x, out: None
    )
    for function in (failing, with_one_nan, right, also_right, idle):
        op.register(function)

    def work() -> None:
        for number in range(60):
            x = np.full(1000 + number % 3, float(number))
            out = np.full_like(x, np.nan)
            op(x, out)
            assert (out == 2 * number).all()

    in_threads(count, work)
    for length in (1000, 1001, 1002):
        found = refusals(op, np.ones(length), np.ones(length))
        assert [name for name, reason in found.items() if reason] == [
            *("failing", "with_one_nan", "idle")
        ]


# ---- F, I, K: other processes --------------------------------------------------------------------

# Implementations whose times the environment gives, so that no machine decides who wins.
PROGRAM = """
import json
import os
import sys

import numpy as np
import turnout as tn

times_ns = json.loads(os.environ["TIMES"])
ran, timed = [], []


def timer(work):
    ran.clear()
    work()
    timed.append(ran[-1])
    return times_ns[ran[-1]]


@tn.perf_dispatch(timer=timer, warmup=1, active=2, repeat_after_seconds=0)
def op(x): ...

IMPLEMENTATIONS

results = [op(x) for x in [ARGUMENT] * 24]
explained = op.explain(ARGUMENT)
print(json.dumps({
    "timed": timed,
    "chosen": explained.chosen,
    "source": explained.source,
    "reason": explained.reason,
    "results": [np.asarray(result).tobytes().hex() for result in results],
}))
"""


def implementation(name: str, expression: str, **options: str) -> str:
    settings = ", ".join(f"{key}={value}" for key, value in options.items())
    return (
        f"\n@op.register({settings})\ndef {name}(x):\n"
        f"    ran.append({name!r})\n    return {expression}\n"
    )


@dataclasses.dataclass
class Runner:
    """Runs programs whose measurements are kept in one folder."""

    folder: Path

    @property
    def store(self) -> TuningStore:
        return TuningStore(self.folder / "cache" / "tuning-v1.sqlite")

    def start(self, text: str, name: str, *arguments: str, **variables: str) -> Any:
        file = self.folder / f"{name}.py"
        file.write_text(text, encoding="utf-8")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("TURNOUT_")}
        ours = {
            "TURNOUT_CACHE_DIR": str(self.folder / "cache"),
            "PYTHONPATH": os.pathsep.join([CORE, os.environ.get("PYTHONPATH", "")]),
            "PYTHONWARNINGS": "error",
        }
        return subprocess.Popen(
            [sys.executable, str(file), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**inherited, **ours, **variables},
        )

    def run(
        self,
        implementations: str,
        times: dict[str, int],
        argument: str = "np.ones(3)",
        name: str = "program",
        **variables: str,
    ) -> dict[str, Any]:
        text = PROGRAM.replace("IMPLEMENTATIONS", implementations).replace("ARGUMENT", argument)
        process = self.start(text, name, TIMES=json.dumps(times), **variables)
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        facts: dict[str, Any] = json.loads(output)
        facts["errors"] = errors
        return facts

    def export(self) -> Path:
        file = self.folder / "decisions.json"
        write_decisions(file, self.store.entries())
        return file


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


FIVE = "".join(implementation(name, "x.sum()") for name in ("a", "b", "c", "d", "e"))
TIMES_OF_FIVE = {"a": 500, "b": 400, "c": 100, "d": 300, "e": 200}


def test_a_sixth_implementation_is_the_only_one_to_be_measured(runner: Runner) -> None:
    """F2: one is added, then one is edited, then one is taken away."""
    first = runner.run(FIVE, TIMES_OF_FIVE)
    assert first["timed"] == [*"abcde"] * 2
    assert (first["chosen"], first["source"]) == ("c", "measured")
    again = runner.run(FIVE, dict.fromkeys("abcde", 1))
    assert again["timed"] == []
    assert (again["chosen"], again["source"]) == ("c", "remembered")
    six = FIVE + implementation("f", "x.sum()")
    added = runner.run(six, TIMES_OF_FIVE | {"f": 50})
    assert added["timed"] == ["f"] * 2
    assert added["chosen"] == "f"
    edited = runner.run(
        six.replace(implementation("b", "x.sum()"), implementation("b", "np.sum(x)")),
        TIMES_OF_FIVE | {"b": 10, "f": 50},
    )
    assert edited["timed"] == ["b"] * 2
    assert edited["chosen"] == "b"
    fewer = runner.run(FIVE, dict.fromkeys("abcde", 1))
    assert fewer["timed"] == []
    assert fewer["chosen"] == "c"


@pytest.mark.skipif("cpu" not in tn.backends(), reason="turnout-cpu is not installed")
def test_what_was_tuned_on_one_backend_is_a_miss_on_another(runner: Runner) -> None:
    """F3."""
    two = implementation("a", "x + 1") + implementation("b", "x + 1")
    on_cpu = runner.run(two, {"a": 100, "b": 10}, TURNOUT_BACKEND="cpu")
    assert (on_cpu["chosen"], on_cpu["timed"]) == ("b", ["a", "b"] * 2)
    elsewhere = runner.run(two, {"a": 10, "b": 100}, TURNOUT_BACKEND="reference")
    assert (elsewhere["chosen"], elsewhere["timed"]) == ("a", ["a", "b"] * 2)
    for backend, chosen in (("cpu", "b"), ("reference", "a")):
        again = runner.run(two, {"a": 1, "b": 1}, TURNOUT_BACKEND=backend)
        assert (again["chosen"], again["timed"]) == (chosen, [])


def test_names_that_nobody_knows_are_a_miss(runner: Runner) -> None:
    """F3: the winner was renamed."""
    runner.run(implementation("a", "1") + implementation("b", "1"), {"a": 100, "b": 10})
    renamed = runner.run(implementation("a", "1") + implementation("c", "1"), {"a": 100, "c": 1000})
    assert renamed["timed"] == ["c"] * 2
    assert renamed["chosen"] == "a"


@pytest.mark.parametrize("version", [0, 7])
def test_a_store_of_another_version_is_left_alone(runner: Runner, version: int) -> None:
    """F6: of turnout's future, or of another program."""
    store = runner.folder / "cache" / "tuning-v1.sqlite"
    store.parent.mkdir(mode=0o700)
    with closing(sqlite3.connect(store)) as connection:
        connection.execute("CREATE TABLE cases (other TEXT)")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.commit()
    before = store.read_bytes()
    two = implementation("a", "1") + implementation("b", "1")
    found = runner.run(two, {"a": 100, "b": 10}, PYTHONWARNINGS="default")
    assert found["chosen"] == "b"
    assert found["errors"].count("Warning") == 1
    assert store.read_bytes() == before


@pytest.mark.parametrize("damage", ["truncated", "garbage", "folder", "absent"])
def test_a_store_that_cannot_be_used_costs_one_warning(runner: Runner, damage: str) -> None:
    """G4, G8, with whole operations."""
    two = implementation("a", "1") + implementation("b", "1")
    runner.run(two, {"a": 100, "b": 10})
    path = runner.folder / "cache" / "tuning-v1.sqlite"
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif damage == "garbage":
        path.write_bytes(b"garbage" * 1000)
    elif damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.unlink()
    found = runner.run(two, {"a": 10, "b": 100}, PYTHONWARNINGS="default")
    assert found["timed"] == ["a", "b"] * 2
    assert found["chosen"] == "a"
    assert found["errors"].count("Warning") == (0 if damage == "absent" else 1)


def test_a_sum_has_the_same_bits_in_every_process_that_remembers(runner: Runner) -> None:
    """F10: sums in another order differ in their last digits."""
    argument = "np.random.default_rng(5).standard_normal((4096, 4096), np.float32)"
    two = implementation("by_rows", "x.sum(axis=1).sum()")
    two += implementation("by_columns", "x.sum(axis=0).sum()")
    text = f"VALUES = {argument}\n"
    first = runner.run(text + two, {"by_rows": 100, "by_columns": 10}, "VALUES")
    by_rows, by_columns = first["results"][0], first["results"][1]
    assert by_rows != by_columns
    assert first["results"][-1] == by_columns
    for _ in range(2):
        again = runner.run(text + two, {"by_rows": 10, "by_columns": 100}, "VALUES")
        assert again["results"] == [by_columns] * 24
        assert again["timed"] == []


def test_operations_of_one_name_in_two_modules_are_apart(runner: Runner) -> None:
    """K18."""
    two = implementation("a", "1") + implementation("b", "1")
    text = PROGRAM.replace("IMPLEMENTATIONS", two).replace("ARGUMENT", "1.5")
    chosen = []
    for name, times in (("market", {"a": 9, "b": 1}), ("bank", {"a": 1, "b": 9})):
        (runner.folder / f"{name}.py").write_text(text, encoding="utf-8")
        process = runner.start(f"import {name}", f"uses_{name}", TIMES=json.dumps(times))
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        chosen.append(json.loads(output)["chosen"])
    assert chosen == ["b", "a"]
    names = {entry.key.operation for entry in runner.store.entries()}
    assert names == {"market.op", "bank.op"}


@pytest.mark.parametrize("mode", ["off", "read"])
def test_other_modes_write_nothing(runner: Runner, mode: str) -> None:
    two = implementation("a", "1") + implementation("b", "1")
    for _ in range(2):
        found = runner.run(two, {"a": 100, "b": 10}, TURNOUT_TUNING=mode)
        assert found["timed"] == ["a", "b"] * 2
    assert not (runner.folder / "cache" / "tuning-v1.sqlite").exists()


CHAOS = implementation("left", "(3.9 * x) * (1 - x)") + implementation(
    "right", "3.9 * (x * (1 - x))"
)
CHAOTIC_RUN = """
x = [np.float64(0.3)]
for _ in range(300):
    x.append(op(x[-1]))
"""


def chaotic(runner: Runner, times: dict[str, int], **variables: str) -> dict[str, Any]:
    return runner.run(CHAOS + CHAOTIC_RUN, times, "x[-1]", **variables)


def test_a_chaotic_iteration_is_replayed_bit_by_bit(runner: Runner) -> None:
    """I2: with what was stored, and with a file that fixes the choice before the first call."""
    slow_left, slow_right = {"left": 100, "right": 10}, {"left": 10, "right": 100}
    measured = chaotic(runner, slow_left)
    assert chaotic(runner, slow_right, TURNOUT_TUNING="off")["results"] != measured["results"]
    stored = [chaotic(runner, times) for times in (slow_left, slow_right)]
    assert stored[0]["results"] == stored[1]["results"]
    assert [each["timed"] for each in stored] == [[], []]
    file = runner.export()
    fixed = [
        chaotic(runner, times, TURNOUT_TUNING=f"fixed:{file}", TURNOUT_CACHE_DIR=cache)
        for times, cache in (
            (slow_left, str(runner.folder / "a")),
            (slow_right, str(runner.folder / "b")),
        )
    ]
    for each in fixed:
        assert each["results"] == stored[0]["results"]
        assert (each["timed"], each["chosen"]) == ([], "right")
        assert each["reason"] == "fixed by TURNOUT_TUNING"


def test_all_ranks_of_a_job_choose_what_the_file_says(runner: Runner) -> None:
    """I2: four processes on machines that would choose differently."""
    runner.run(FIVE, TIMES_OF_FIVE)
    file = runner.export()
    ranks = []
    for rank in range(4):
        times = {name: 100 + 10 * ((number + rank) % 5) for number, name in enumerate("abcde")}
        alone = runner.run(FIVE, times, TURNOUT_CACHE_DIR=str(runner.folder / f"rank {rank}"))
        fixed = runner.run(FIVE, times, TURNOUT_TUNING=f"fixed:{file}")
        ranks.append((alone["chosen"], fixed["chosen"], fixed["timed"]))
    assert len({alone for alone, _, _ in ranks}) > 1
    assert {fixed for _, fixed, _ in ranks} == {"c"}
    assert all(timed == [] for _, _, timed in ranks)


def test_a_fixed_choice_never_runs_where_it_is_not_compatible(runner: Runner) -> None:
    """D13: the winner of (64, 64) is fixed, and the call is (1, 7)."""
    small = implementation("square", "'square'", is_compatible="lambda x: x.shape[0] == x.shape[1]")
    text = "".join(
        [small, implementation("any_shape", "'any'"), implementation("other", "'other'")]
    )
    tuned = runner.run(text, {"square": 1, "any_shape": 10, "other": 20}, "np.ones((64, 64))")
    assert tuned["chosen"] == "square"
    file = runner.export()
    document = json.loads(file.read_text())
    document["decisions"][0]["geometry"] = document["decisions"][0]["geometry"].replace(
        "64, 64", "1, 7"
    )
    file.write_text(json.dumps(document))
    found = runner.run(text, {}, "np.ones((1, 7))", TURNOUT_TUNING=f"fixed:{file}")
    assert found["chosen"] == "any_shape"  # the first one that is compatible
    assert found["timed"] == []


def test_a_choice_that_does_not_exist_is_warned_of(runner: Runner) -> None:
    runner.run(FIVE, TIMES_OF_FIVE)
    file = runner.export()
    file.write_text(file.read_text().replace('"chosen": "c"', '"chosen": "gone"'))
    found = runner.run(FIVE, {}, TURNOUT_TUNING=f"fixed:{file}", PYTHONWARNINGS="default")
    assert found["chosen"] == "a"
    assert found["errors"].count("Warning") == 1
    assert "'gone'" in found["errors"]


# ---- many processes at once ----------------------------------------------------------------------

WORKER = """
import sys

import numpy as np
import turnout as tn


@tn.perf_dispatch(
    warmup=0, repeat_after_seconds=0, verify="once", mutates={"out": "output"},
    get_geometry_hash=lambda x, out, key: key,
)
def doubled(x, out, key): ...


@doubled.register
def multiplied(x, out, key):
    np.multiply(x, 2, out=out)


@doubled.register
def added(x, out, key):
    np.add(x, x, out=out)


@doubled.register
def wrong(x, out, key):
    np.multiply(x, 3, out=out)


name, count = sys.argv[1], int(sys.argv[2])
x, out = np.arange(100.0), np.empty(100)
print("ready", flush=True)
sys.stdin.readline()
for number in range(count):
    for key in (("own", name, number), ("shared", number % 10)):
        for _ in range(4):
            out[:] = -1
            doubled(x, out, key)
            assert (out == 2 * x).all()
    print(number, flush=True)
"""


def started(runner: Runner, name: str, count: int) -> Reporter:
    return Reporter(name, runner.start(WORKER, "worker", name, str(count)))


@pytest.mark.skipif(os.name != "posix", reason="SIGKILL is a POSIX notion")
@pytest.mark.parametrize(("processes", "count"), [(2, 40), (8, 20)])
@pytest.mark.parametrize("with_kills", [False, True])
def test_processes_share_one_store(
    processes: int, count: int, with_kills: bool, runner: Runner
) -> None:
    """F10, G9: what those measured that ended well is all there, and nothing is damaged."""
    victims = processes // 2 if with_kills else 0
    with ExitStack() as stack:
        workers = [
            stack.enter_context(started(runner, str(n), 100_000 if n < victims else count))
            for n in range(processes)
        ]
        for worker in workers:
            worker.start()
        for worker in workers[:victims]:
            worker.wait_for_rounds(5)
            worker.process.kill()
        rounds = [worker.finish() for worker in workers]
    assert all(number >= 5 for number in rounds)
    survivors = workers[victims:]
    assert rounds[victims:] == [count] * len(survivors)
    assert runner.store.path is not None
    with closing(sqlite3.connect(runner.store.path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    entries = {entry.key.geometry: entry for entry in runner.store.entries()}
    expected = {f"('own', '{w.name}', {number})" for w in survivors for number in range(count)}
    expected |= {f"('shared', {number})" for number in range(10)}
    assert expected <= entries.keys()
    for entry in entries.values():
        measured = {each.implementation: each for each in entry.measurements}
        assert measured.keys() == {"multiplied", "added"}
        assert entry.chosen in measured
        assert all(each.count >= 1 and min(each.samples_ns) > 0 for each in measured.values())
    for geometry in expected:
        if geometry.startswith("('own'"):
            assert [each.count for each in entries[geometry].measurements] == [1, 1]


BARE_INT = PROGRAM.replace(
    "repeat_after_seconds=0)\ndef op(x)",
    "repeat_after_seconds=0, get_geometry_hash=lambda x: hash((3, x)))\ndef op(x)",
)


def test_geometries_that_are_a_bare_integer_are_kept_apart(runner: Runner) -> None:
    """The value of a number decides how much work there is, and the user's geometry holds it."""
    two = implementation("a", "x + 1") + implementation("b", "x + 1")
    found = {}
    for round_number in range(2):
        for number, times in ((1, {"a": 10, "b": 100}), (1000, {"a": 100, "b": 10})):
            text = BARE_INT.replace("IMPLEMENTATIONS", two).replace("ARGUMENT", str(number))
            process = runner.start(text, "program", TIMES=json.dumps(times))
            output, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
            facts = json.loads(output)
            found[round_number, number] = facts["chosen"], len(facts["timed"])
    assert found == {(0, 1): ("a", 4), (0, 1000): ("b", 4), (1, 1): ("a", 0), (1, 1000): ("b", 0)}
