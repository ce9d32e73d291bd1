"""Whole operations that are verified, and that go on where an implementation raises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import turnout as tn
from turnout.errors import ConfigurationError, KernelError

CALLS = 12


def right(x: Any, out: Any) -> None:
    out[...] = x + 1


def wrong(x: Any, out: Any) -> None:
    out[...] = x + 2


def operation(*functions: Any, **settings: Any) -> Any:
    given = {"verify": "once", "mutates": ("out",)} | settings

    @tn.perf_dispatch(**given)
    def added(x: Any, out: Any) -> None: ...

    for number, function in enumerate(functions):
        added.register(name=f"{function.__name__}_{number}")(function)
    return added


@pytest.mark.parametrize("position", range(3))
def test_a_wrong_one_never_runs_on_the_arguments_of_the_caller(position: int) -> None:
    functions = [right, right]
    functions.insert(position, wrong)
    op = operation(*functions)
    x, out = np.arange(3.0), np.zeros(3)
    for _ in range(CALLS):
        out[...] = -1
        op(x, out)
        assert out.tolist() == [1, 2, 3]
    explained = op.explain(x, out)
    refusal = explained.implementations[position].refusal
    assert refusal is not None
    assert refusal.startswith("its result differs from that of 'right_")
    assert refusal.endswith("; 2 of 3 agree")


def test_a_named_reference_prevails_over_the_majority() -> None:
    op = operation(wrong, wrong, right, reference="right_2")
    x, out = np.arange(3.0), np.zeros(3)
    for _ in range(CALLS):
        op(x, out)
        assert out.tolist() == [1, 2, 3]


def test_verification_runs_each_once_and_only_at_the_first_call() -> None:
    ran: list[str] = []

    def logged(name: str) -> Any:
        def run(x: Any, out: Any) -> None:
            ran.append(name)
            out[...] = x

        return run

    op = operation(verify="once", warmup=0)
    for name in "ab":
        op.register(name=name)(logged(name))
    x, out = np.zeros(2), np.ones(2)
    op(x, out)
    assert ran == ["a", "b", "a"]
    op(x, out)
    assert ran == ["a", "b", "a", "b"]


def test_always_is_again_before_measuring_again() -> None:
    state = {"is_wrong": False}

    def changing(x: Any, out: Any) -> None:
        out[...] = x + (2 if state["is_wrong"] else 1)

    op = operation(
        changing, right, right, verify="always", warmup=0, repeat_after_count=2,
        timer=lambda work: (work(), 1)[1],
    )  # fmt: skip
    x, out = np.zeros(2), np.zeros(2)
    for _ in range(3):
        op(x, out)
    assert op.decision(x, out).chosen == "changing_0"
    state["is_wrong"] = True
    for _ in range(2):
        op(x, out)
    op(x, out)  # measures again
    assert out.tolist() == [1, 1]
    for _ in range(CALLS):
        op(x, out)
        assert out.tolist() == [1, 1]


def test_tune_verifies_first() -> None:
    op = operation(right, right, wrong)
    explained = op.tune(np.zeros(2), np.zeros(2))
    assert "2 of 3 agree" in str(explained.implementations[2].refusal)
    assert explained.implementations[2].samples_ns == ()


def test_kernels_are_verified_without_a_declaration() -> None:
    @tn.perf_dispatch(verify="once")
    def doubled(x: Any, out: Any) -> None: ...

    @doubled.register
    @tn.kernel
    def right_kernel(x: tn.NDArray[tn.f64, 1], out: tn.NDArray[tn.f64, 1]) -> None:
        for i in range(x.shape[0]):
            out[i] = x[i] * 2

    @doubled.register(mutates=("out",))
    def numpy_double(x: Any, out: Any) -> None:
        np.multiply(x, 2, out=out)

    @doubled.register
    @tn.kernel
    def forgets_the_last(x: tn.NDArray[tn.f64, 1], out: tn.NDArray[tn.f64, 1]) -> None:
        for i in range(x.shape[0] - 1):
            out[i] = x[i] * 2

    x, out = np.arange(4.0), np.zeros(4)
    for _ in range(CALLS):
        doubled(x, out)
        assert out.tolist() == [0, 2, 4, 6]
    assert "'out'[3] is nan instead of 6.0" in str(
        doubled.explain(x, out).implementations[2].refusal
    )


def test_verification_needs_to_know_what_is_written() -> None:
    op = operation(mutates=None)
    with pytest.raises(KernelError, match="verify='once' needs to know what it writes"):
        op.register(right)


def test_settings_of_verification() -> None:
    for settings in (
        {"verify": "sometimes"},
        {"verify": True},
        {"verify": "never", "reference": "a"},
    ):
        with pytest.raises(ConfigurationError, match="verif"):
            operation(**settings)


def test_where_one_raises_the_call_goes_on_with_another_one() -> None:
    def fails_halfway(x: Any, out: Any) -> None:
        out[0] += 100
        raise ValueError("not for this size")

    def accumulates(x: Any, out: Any) -> None:
        out += x

    op = operation(fails_halfway, accumulates, verify="never")
    x, out = np.ones(3), np.zeros(3)
    for count in range(1, CALLS):
        op(x, out)
        assert out.tolist() == [count] * 3
    assert "raised ValueError: not for this size" in str(
        op.explain(x, out).implementations[0].refusal
    )


def test_one_of_which_nobody_knows_what_it_writes_is_not_made_up_for() -> None:
    def fails_with_a_declaration(x: Any, out: Any) -> None:
        out[0] = -1
        raise ValueError("first")

    def fails_without(x: Any, out: Any) -> None:
        out[1] = -1
        raise ValueError("second")

    op = operation(mutates=None, verify="never")
    op.register(mutates=("out",))(fails_with_a_declaration)
    op.register(fails_without)
    x, out = np.ones(3), np.zeros(3)
    with pytest.raises(ValueError, match="second") as caught:
        op(x, out)
    assert out.tolist() == [0, -1, 0]
    assert "it is not known what 'fails_without' writes" in caught.value.__notes__[-1]


def test_no_memory_for_a_copy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*arguments: Any) -> Any:
        raise MemoryError

    def fails(x: Any, out: Any) -> None:
        raise ValueError("boom")

    monkeypatch.setattr("turnout.safeguards.Snapshot", no_memory)
    op = operation(fails, right, verify="never")
    with pytest.raises(ValueError, match="boom") as caught:
        op(np.ones(3), np.zeros(3))
    assert "there is no memory for a copy" in caught.value.__notes__[-1]
    for _ in range(CALLS):
        op(np.ones(3), np.zeros(3))


def test_variants_share_their_question_of_compatibility() -> None:
    asked: list[int] = []

    def is_compatible(x: Any) -> bool:
        asked.append(1)
        return True

    @tn.perf_dispatch(mutates=())
    def total(x: Any) -> Any: ...

    @total.register(is_compatible=is_compatible, tune={"block": [1, 2, 3]})
    def by_blocks(x: Any, *, block: int) -> float:
        return float(sum(x[i : i + block].sum() for i in range(0, len(x), block)))

    x = np.arange(5.0)
    for count in range(1, 40):
        asked.clear()
        assert total(x) == 10.0
        assert len(asked) <= 2, count  # once for the generated path, once where it is undecided
    assert len(asked) == 1
    with total.force("by_blocks[block=2]"):
        assert total(x) == 10.0


def test_what_contradicts_itself_is_refused_and_nothing_is_registered() -> None:
    op = operation(right, verify="never")
    for error, options in (
        ("'nothing', which is no parameter", {"mutates": ("nothing",)}),
        ("leave their results", {"mutates": ("x",)}),
        ("give tune=, too", {"prune": lambda: False}),
        ("version=3 is not allowed", {"version": 3}),
    ):
        with pytest.raises((KernelError, ConfigurationError), match=error):
            op.register(name="other", **options)(right)
    assert op.implementations == ("right_0",)
