"""What users ask of an operation and order it to do: explain, force, tune, reset."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import turnout as tn
from turnout import NDArray, f64
from turnout.errors import CallError, ConfigurationError
from turnout.perf import PerformanceDispatcher


class Fake:
    """A timer; implementations append their names and what they were given."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.elapsed_ns = {"fast": 1_000_000, "slow": 3_000_000}

    def __call__(self, work: Callable[[], None]) -> int:
        before = len(self.ran)
        work()
        return sum(self.elapsed_ns[name] for name in self.ran[before:])

    def implementation(self, name: str) -> Callable[[Any], str]:
        def run(x: Any) -> str:
            self.ran.append(name)
            return name

        return run


@pytest.fixture
def fake() -> Fake:
    return Fake()


def make(fake: Fake, **settings: Any) -> PerformanceDispatcher[..., Any]:
    settings = {"repeat_after_seconds": 0, "timer": fake, **settings}

    @tn.perf_dispatch(get_geometry_hash=np.shape, **settings)
    def op(x: Any) -> str: ...

    for name in ("slow", "fast"):
        op.register(name=name)(fake.implementation(name))
    return op


X = np.zeros(3)


# ---- explain -------------------------------------------------------------------------------------


def test_explain_is_data(fake: Fake) -> None:
    op = make(fake, warmup=1, active=2)
    op.register(name="large", is_compatible=lambda x: x.size > 9 or "needs 10")(lambda x: "large")
    before = op.explain(X)
    assert (before.chosen, before.source) == (None, None)
    assert before.reason == "no call with this geometry yet"
    assert fake.ran == []
    for _ in range(3):
        op(X)
    assert op.explain(X).reason == "3 of 6 trials done"
    for _ in range(3):
        op(X)
    explained = op.explain(X)
    assert explained.operation == "perf_dispatch 'op'"
    assert explained.geometry == (3,)
    assert explained.chosen == "fast"
    assert explained.source == "measured"
    assert explained.reason == "lowest median of 2 timed calls each"
    assert explained.exploration_share is None
    assert explained.regime == "the program's own calls, after 1 untimed ones (warm)"
    slow, fast, large = explained.implementations
    assert (slow.name, slow.is_chosen, slow.refusal, slow.warmups) == ("slow", False, None, 1)
    assert slow.samples_ns == (3_000_000, 3_000_000)
    assert (fast.median_ns, fast.quartiles_ns) == (1_000_000, (1_000_000, 1_000_000))
    assert fast.is_chosen
    assert (large.refusal, large.median_ns, large.quartiles_ns) == ("needs 10", None, None)


def test_explain_prints_as_a_table(fake: Fake) -> None:
    op = make(fake, warmup=0, repeat_after_seconds=None)
    op.register(name="large", is_compatible=lambda x: x.size > 9 or "needs [10]")(lambda x: "large")
    for _ in range(3):
        op(X)
    assert str(op.explain(X)).splitlines() == [
        "perf_dispatch 'op', geometry (3,)",
        "implementation  median  quartiles     samples  warm-ups",
        "slow            3 ms    3 ms .. 3 ms  1        0",
        "fast            1 ms    1 ms .. 1 ms  1        0         in use",
        "large                                 0        0         needs [10]",
        "'fast' is in use (measured): lowest median of 1 timed call each",
        "samples: the program's own calls, the first ones included (cold)",
        "measuring again took 0.0% of the time",
    ]
    console = Console(file=io.StringIO(), width=120)
    console.print(op.explain(X))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("needs [10]", "3 ms", "in use", "measuring again took 0.0% of the time"):
        assert part in printed


def test_explain_names_failures(fake: Fake) -> None:
    op = make(fake, warmup=0)

    @op.register
    def broken(x: Any) -> None:
        raise OSError("no disk")

    for _ in range(2):
        op(X)
    with pytest.raises(OSError, match="no disk"):
        op(X)
    op(X)
    explained = op.explain(X)
    assert explained.implementations[2].refusal == "which raised OSError: no disk"
    assert explained.reason.endswith("; without 'broken', which raised OSError: no disk")


# ---- force ---------------------------------------------------------------------------------------


def test_force_runs_one_implementation_within_the_block(fake: Fake) -> None:
    op = make(fake)
    with op.force("slow"):
        assert [op(X) for _ in range(3)] == ["slow"] * 3
        with op.force("fast"):
            assert op(X) == "fast"
        assert op(X) == "slow"
        assert op.decision(X) is None  # nothing is measured
    for _ in range(8):
        op(X)
    assert op(X) == "fast"
    with op.force("slow"):
        assert op(X) == "slow"
    assert op(X) == "fast"


def test_force_ends_with_an_exception(fake: Fake) -> None:
    op = make(fake, warmup=0)
    with pytest.raises(ZeroDivisionError), op.force("slow"):
        raise ZeroDivisionError
    assert [op(X) for _ in range(3)] == ["slow", "fast", "fast"]


def test_force_names_what_there_is(fake: Fake) -> None:
    op = make(fake)
    message = r"perf_dispatch 'op' has no implementation 'none', .* are \['slow', 'fast'\]"
    with pytest.raises(ConfigurationError, match=message), op.force("none"):
        pass


def test_a_forced_implementation_that_is_not_compatible_is_warned_of_once(fake: Fake) -> None:
    op = make(fake, warmup=0)
    op.register(name="large", is_compatible=lambda x: x.size > 9 or "needs 10")(lambda x: "large")
    with op.force("large"):
        with pytest.warns(RuntimeWarning, match=r"'large' is not compatible .* \(needs 10\)"):
            assert op(X) == "slow"
        assert [op(X), op(X)] == ["fast", "fast"]
        assert op(np.zeros(10)) == "large"


def test_force_counts_in_its_own_context(fake: Fake) -> None:
    op = make(fake, warmup=0)
    for _ in range(2):
        op(X)
    found: dict[str, str] = {}

    def note(name: str) -> None:
        found[name] = op(X)

    async def tasks() -> None:
        with op.force("slow"):
            await asyncio.to_thread(note, "to_thread")
            await asyncio.create_task(asyncio.sleep(0))

    asyncio.run(tasks())
    with op.force("slow"):
        thread = threading.Thread(target=note, args=("thread",))
        thread.start()
        thread.join()
    assert found == {"to_thread": "slow", "thread": "fast"}


# ---- tune ----------------------------------------------------------------------------------------


def test_tune_decides_at_once_and_leaves_the_arguments_alone() -> None:
    given: list[Any] = []
    x, y = np.arange(6.0)[::2], [np.ones(2)]

    @tn.perf_dispatch(timer=lambda work: (work(), 1_000_000 if given[-1] else 2_000_000)[1])
    def op(x: Any, y: Any) -> None: ...

    def in_place(is_fast: bool) -> Callable[[Any, Any], None]:
        def run(x: Any, y: Any) -> None:
            assert x.tolist() == [0, 2, 4]  # always the caller's data
            assert x.strides == (16,)
            assert y[0].tolist() == [1, 1]
            x += 1
            y[0] *= 2
            given.append(is_fast)

        return run

    op.register(name="slow")(in_place(False))
    op.register(name="fast")(in_place(True))
    explained = op.tune(x, y)
    assert explained.chosen == "fast"
    assert explained.regime == "warm, repeated runs on copies of the arguments"
    assert (x.tolist(), y[0].tolist()) == ([0, 2, 4], [1, 1])
    given.clear()
    op(x, y)
    assert given == [True]


def test_tune_makes_short_runs_in_batches(fake: Fake) -> None:
    op = make(fake)
    fake.elapsed_ns = {"slow": 5_000, "fast": 1_000}
    explained = op.tune(X)
    assert {each.name: each.median_ns for each in explained.implementations} == fake.elapsed_ns
    # 50 us of each sample: 10 runs of the slow one, 50 of the fast one, after single ones.
    assert fake.ran.count("fast") > 100
    assert fake.ran.count("fast") % 50 == fake.ran.count("slow") % 10


def test_tune_of_kernels_uses_their_device() -> None:
    @tn.kernel
    def doubled(x: NDArray[f64, 1]) -> None:
        for i in range(x.shape[0]):
            x[i] = 2 * x[i]

    @tn.perf_dispatch
    def op(x: Any) -> None: ...

    op.register(doubled)

    @op.register
    def in_numpy(x: Any) -> None:
        x *= 2

    x = np.ones(5)
    explained = op.tune(x)
    assert explained.chosen in ("doubled", "in_numpy")
    assert x.tolist() == [1] * 5
    op(x)
    assert x.tolist() == [2] * 5


def test_tune_with_one_implementation_or_none(fake: Fake) -> None:
    @tn.perf_dispatch
    def op(x: Any) -> str: ...

    with pytest.raises(CallError, match="has no implementation"):
        op.tune(X)
    op.register(name="only")(fake.implementation("only"))
    explained = op.tune(X)
    assert (explained.chosen, explained.source) == ("only", "given")
    assert fake.ran == []


def test_tune_refuses_what_cannot_be_copied(fake: Fake) -> None:
    op = make(fake)
    message = "tune runs on copies of the arguments, but 'x' is a generator; what can be copied"
    with pytest.raises(CallError, match=message):
        op.tune(each for each in "abc")
    assert fake.ran == []


def test_tune_measures_again_whenever_it_is_called(fake: Fake) -> None:
    op = make(fake)
    assert op.tune(X).chosen == "fast"
    fake.elapsed_ns = {"slow": 1_000_000, "fast": 3_000_000}
    assert op.tune(X).chosen == "slow"
    assert op(X) == "slow"


def test_reset_forgets_everything(fake: Fake) -> None:
    op = make(fake)
    op.tune(X)
    op.reset()
    assert op.explain(X).source is None
    assert op(X) == "slow"
