"""Policies of dispatches as users see them: counters, steps, resolving, units by hand, auto."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from language_support import DEVICES

import turnout as tn
import turnout.math as tm
from turnout import (
    CallError,
    ConfigurationError,
    Index,
    KernelError,
    Mutable,
    NDArray,
    Param,
    Scalar,
    Terminated,
    f64,
    i64,
)

HAS_CPU = "cpu" in tn.backends()
on_cpu = pytest.mark.skipif(not HAS_CPU, reason="turnout-cpu is not installed")


@tn.kernel
def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    a = tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)], policy="auto")
    v_new = v + dt * a


@tn.kernel
def drag_by_speed(dt: Param, cut: Param, v: Mutable[Scalar], regime: Mutable[Index]):
    v = v + dt * tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v)], policy="auto")
    regime = tm.select(abs(v) > cut, 1, 0)


@tn.kernel
def in_a_loop(regime: Index, v: Scalar, out: Mutable[Scalar]):
    total = v
    for k in range(3):
        total = total + tm.dispatch(regime + k, [v, 2 * v], policy="auto")
    out = total


@tn.kernel
def nested(a: Index, b: Index, v: Scalar, out: Mutable[Scalar]):
    out = tm.dispatch(
        a, [tm.dispatch(b, [v, 2 * v, 3 * v], policy="auto"), -v], policy="auto", name="outer"
    )


@tn.kernel
def finishing(v: Mutable[Scalar], done: Terminated):
    v = v * tm.dispatch(tm.index(v, 2), [0.5, 0.25], policy="auto")
    done = v < 0.3


def classes(kind: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    return np.bincount(np.clip(kind, 0, count - 1), minlength=count)


# ---- counters ----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_the_counters_of_the_tutorial(device: str) -> None:
    regime = np.array([0, 0, 1, 2, 2, 2, 1, 0, 5])
    mix = np.zeros(3, np.uint32)
    out = np.zeros(9)
    drag(dt=0.1, regime=regime, v=np.ones(9), v_new=out, dispatch0_mix=mix, device=device)
    assert mix.tolist() == [3, 2, 4]
    drag(dt=0.1, regime=regime, v=np.ones(9), v_new=out, dispatch0_mix=mix, device=device)
    assert mix.tolist() == [6, 4, 8]


@pytest.mark.parametrize("device", DEVICES)
def test_counters_in_loops_count_every_trip(device: str) -> None:
    regime, mix = np.array([-2, -1, 0, 1]), np.zeros(2, np.uint32)
    in_a_loop(regime, np.ones(4), np.zeros(4), dispatch0_mix=mix, device=device)
    expected = sum(classes(regime + k, 2) for k in range(3))
    assert mix.tolist() == expected.tolist()


@pytest.mark.parametrize("device", DEVICES)
def test_a_nested_dispatch_counts_where_it_is_reached(device: str) -> None:
    a, b = np.array([0, 0, 1, 7, -1]), np.array([0, 2, 2, 2, 9])
    outer, inner = np.zeros(2, np.uint32), np.zeros(3, np.uint32)
    out = np.zeros(5)
    counters = {"outer_mix": outer, "dispatch1_mix": inner}
    nested(a, b, np.ones(5), out, **counters, device=device)
    assert outer.tolist() == [3, 2]
    assert inner.tolist() == [1, 0, 2]
    assert out.tolist() == [1, 3, -1, -1, 3]


@pytest.mark.parametrize("device", DEVICES)
def test_counters_with_steps_and_a_mask_count_steps_that_are_taken(device: str) -> None:
    v, done, mix = np.array([1.0, 0.5, 8.0]), np.zeros(3, bool), np.zeros(2, np.uint32)
    expected, stopped, steps = v.copy(), done.copy(), np.zeros(2, int)
    for _ in range(4):
        kind = np.clip(np.trunc(expected), 0, 1).astype(int)
        steps += np.bincount(kind[~stopped], minlength=2)
        expected = np.where(stopped, expected, expected * np.choose(kind, [0.5, 0.25]))
        stopped |= expected < 0.3
    finishing(v, done, steps=4, dispatch0_mix=mix, device=device)
    assert v.tolist() == expected.tolist()
    assert done.tolist() == stopped.tolist()
    assert mix.tolist() == steps.tolist()


@pytest.mark.parametrize(
    ("counter", "problem"),
    [
        (np.zeros(2, np.uint32), "uint32 with at least 3 elements; given: uint32 of shape (2,)"),
        (np.zeros(3, np.int64), "given: int64 of shape (3,)"),
        (np.zeros((3, 1), np.uint32), "given: uint32 of shape (3, 1)"),
        (np.zeros(6, np.uint32)[::2], "contiguous and writable"),
        ([0, 0, 0], "not list"),
    ],
)
def test_counters_of_another_kind_are_refused(counter: Any, problem: str) -> None:
    out = np.full(2, -9.0)
    with pytest.raises(CallError) as caught:
        drag(0.1, np.zeros(2, int), np.ones(2), out, dispatch0_mix=counter)
    assert problem in str(caught.value)
    assert out.tolist() == [-9, -9]


@pytest.mark.parametrize("device", DEVICES)
def test_counters_that_share_memory_with_other_arrays_are_refused(device: str) -> None:
    numbers = np.zeros(2, np.int64)
    with pytest.raises(CallError, match=r"argument 'dispatch0_mix' is counted in .* with 'regime'"):
        drag(
            0.1, numbers, np.ones(2), np.ones(2),
            dispatch0_mix=numbers.view(np.uint32), device=device,
        )  # fmt: skip
    assert numbers.tolist() == [0, 0]
    mix, out = np.zeros(4, np.uint32), np.ones(1)
    with pytest.raises(CallError, match=r"argument 'outer_mix' .* with 'dispatch1_mix'; give it"):
        nested(
            np.zeros(1, int), np.zeros(1, int), np.ones(1), out,
            outer_mix=mix[2:], dispatch1_mix=mix[:3], device=device,
        )  # fmt: skip
    assert mix.tolist() == [0] * 4


def test_an_unknown_counter_is_refused() -> None:
    with pytest.raises(CallError, match="unknown argument 'dispatch1_mix'; its counters are"):
        drag(0.1, np.zeros(1, int), np.ones(1), np.ones(1), dispatch1_mix=np.zeros(3, np.uint32))

    @tn.kernel
    def plain(x: Scalar) -> Scalar:
        return x

    with pytest.raises(CallError, match="unknown argument 'dispatch0_mix'; it has no dispatch"):
        plain(np.ones(1), dispatch0_mix=np.zeros(3, np.uint32))


# ---- steps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("policy", ["switch", "predicated", "segmented"])
def test_steps_are_calls_one_after_the_other(device: str, policy: str) -> None:
    kernel = tn.resolve_dispatch(drag_by_speed, {"dispatch0": policy})
    random = np.random.default_rng(1)
    v, regime = random.normal(size=100) * 3, random.integers(-1, 3, 100)
    expected_v, expected_regime = v.copy(), regime.copy()
    for _ in range(5):
        drag_by_speed(0.2, 1.0, expected_v, expected_regime, device=device)
    kernel(0.2, 1.0, v, regime, steps=5, device=device)
    assert v.tobytes() == expected_v.tobytes()
    assert regime.tolist() == expected_regime.tolist()


def test_a_kernel_can_have_steps_of_its_own_which_resolving_keeps() -> None:
    @tn.kernel(steps=3)
    def doubled(kind: Index, x: Mutable[Scalar]):
        x = tm.dispatch(kind, [x * 2, x], policy="auto")

    x = np.ones(2)
    for kernel in (doubled, tn.resolve_dispatch(doubled, {"dispatch0": "segmented"})):
        x[:] = 1
        kernel(np.array([0, 1]), x)
        assert x.tolist() == [8, 1]
    doubled(np.array([0, 1]), x, steps=0)
    assert x.tolist() == [8, 1]
    doubled(np.array([0, 1]), x, steps=1)
    assert x.tolist() == [16, 1]


def test_a_derivative_is_of_one_step() -> None:
    @tn.kernel(steps=2)
    def doubled(x: Mutable[Scalar]):
        x = x * 2

    with pytest.raises(KernelError, match="vjp differentiates one step, and doubled takes 2"):
        tn.vjp(doubled)


@on_cpu
def test_steps_while_a_policy_is_chosen() -> None:
    @tn.kernel(steps=3)
    def grown(kind: Index, x: Mutable[Scalar]):
        x = x + tm.dispatch(kind, [1.0, 2.0], policy="auto")

    kind, x = np.arange(300) % 2, np.zeros(300)
    for call in range(1, 20):
        grown(kind, x, device="cpu")
        assert x.tolist() == (3.0 * call * (1 + kind)).tolist()
    grown(kind, x, device="cpu", steps=1)
    assert x.tolist() == (58.0 * (1 + kind)).tolist()


@pytest.mark.parametrize("steps", [-1, 1.0, True, "2"])
def test_steps_that_are_no_number_of_steps(steps: Any) -> None:
    with pytest.raises(CallError, match="steps must be a whole number from 0 on"):
        drag(0.1, np.zeros(1, int), np.ones(1), np.ones(1), steps=steps)
    if steps != 0:
        with pytest.raises(KernelError, match="give a whole number from 1 on"):
            tn.kernel(steps=steps)


# ---- resolving ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policies", "message"),
    [
        ({"dispatch3": "switch"}, "'dispatch3' is not a dispatch group of drag; its groups are"),
        ({"dispatch0": "auto"}, "'dispatch0' cannot become 'auto'; allowed: 'switch', 'predicated"),
        ({"dispatch0": "fast"}, "'dispatch0' cannot become 'fast'"),
        ({"dispatch0": None}, "'dispatch0' cannot become None"),
        ("switch", "give a dictionary of policies by dispatch group"),
    ],
)
def test_resolutions_that_are_refused(policies: Any, message: str) -> None:
    with pytest.raises(KernelError) as caught:
        tn.resolve_dispatch(drag, policies)
    assert message in str(caught.value)


def test_a_declared_policy_stays() -> None:
    resolved = tn.resolve_dispatch(drag, {"dispatch0": "switch"})
    with pytest.raises(KernelError, match="the policy of 'dispatch0' is 'switch', which stays"):
        tn.resolve_dispatch(resolved, {"dispatch0": "switch"})
    assert [each["policy"] for each in resolved.dispatch_entries()] == ["switch"]
    assert [each["policy"] for each in drag.dispatch_entries()] == ["auto"]


def test_a_loop_cannot_be_split() -> None:
    with pytest.raises(KernelError, match=r"'dispatch0'.*it is in a loop.*use 'switch'"):
        tn.resolve_dispatch(in_a_loop, {"dispatch0": "segmented"})


def test_resolved_kernels_in_pickles() -> None:
    resolved = tn.resolve_dispatch(drag, {"dispatch0": "segmented"})
    again = pickle.loads(pickle.dumps(resolved))
    assert again.dispatch_entries() == resolved.dispatch_entries()
    assert resolved.definition.digest != drag.definition.digest


def test_a_derivative_can_be_resolved_and_placed() -> None:
    gradient = tn.vjp(drag, wrt="v")
    resolved = tn.resolve_dispatch(gradient, {"dispatch0": "segmented"}).on("reference")
    v, bars = np.linspace(-1, 1, 6), [np.empty(6) for _ in range(2)]
    regime = np.array([0, 1, 2, 0, 1, 2])
    for kernel, bar in zip((gradient, resolved), bars, strict=True):
        kernel(dt=0.1, regime=regime, v=v, bar_v_new=np.ones(6), bar_v=bar)
    assert np.round(bars[0], 8).tolist() == [0.99, 0.952, 0.82321474, 0.99, 0.952, 1.07357589]
    assert bars[1] == pytest.approx(bars[0], rel=1e-13)


# ---- segmented ---------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [lambda: drag, lambda: nested])
def test_what_is_sorted_is_right_when_the_class_changes(
    device: str, make: Callable[[], tn.Kernel]
) -> None:
    kernel = make()
    groups = {entry["name"]: "segmented" for entry in kernel.dispatch_entries()}
    split = tn.resolve_dispatch(kernel, groups)
    random, n = np.random.default_rng(2), 10_000
    for changed in (n, 0, 1, 50, n // 10, n):
        if kernel is drag:
            if changed == n:
                regime = random.integers(-2, 6, n)
            regime[random.permutation(n)[:changed]] += 1
            arguments: tuple[Any, ...] = (0.1, regime, random.normal(size=n))
        else:
            arguments = (
                random.integers(-1, 3, n),
                random.integers(-1, 4, n),
                random.normal(size=n),
            )
        outs = [np.full(n, -9.0) for _ in range(2)]
        kernel(*arguments, outs[0], device=device)
        split(*arguments, outs[1], device=device)
        assert outs[0].tobytes() == outs[1].tobytes()


def test_splits_in_the_array_form() -> None:
    @tn.kernel
    def scaled(kind: NDArray[i64, 2], x: NDArray[f64, 2], out: NDArray[f64, 2]) -> None:
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                out[i, j] = tm.dispatch(kind[i, j], [x[i, j], i * 1.0, j * 1.0], policy="segmented")

    random = np.random.default_rng(3)
    kind, x, out = random.integers(0, 3, (30, 40)), random.normal(size=(30, 40)), np.zeros((30, 40))
    i, j = np.mgrid[:30, :40]
    for _ in range(2):
        scaled(kind, x, out)
        assert (out == np.choose(kind, [x, i, j])).all()


def test_a_thread_does_not_disturb_the_order_of_another() -> None:
    from concurrent.futures import ThreadPoolExecutor

    split = tn.resolve_dispatch(drag, {"dispatch0": "segmented"})

    def run(seed: int) -> bool:
        random = np.random.default_rng(seed)
        n = 5000 + seed % 2
        for _ in range(5):
            regime, v = random.integers(0, 3, n), random.normal(size=n)
            out, expected = np.empty(n), np.empty(n)
            split(0.1, regime, v, out)
            tn.resolve_dispatch(drag, {"dispatch0": "switch"})(0.1, regime, v, expected)
            if out.tobytes() != expected.tobytes():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(8)))


# ---- units by hand -----------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_units_by_hand(device: str) -> None:
    units = tn.dispatch_units(tn.resolve_dispatch(drag, {"dispatch0": "segmented"}))
    assert list(units) == ["drag__k0", "drag__k1", "drag__k2", "drag__cls"]
    regime, v = np.array([0, 0, 1, 2, 2, 2, 1, 0, 5]), np.linspace(-1, 1, 9)
    kind = np.empty(9, np.int64)
    units["drag__cls"](regime=regime, dispatch0_class=kind, device=device)
    assert kind.tolist() == [0, 0, 1, 2, 2, 2, 1, 0, 2]
    order = np.argsort(kind, kind="stable")
    assert order.tolist() == [0, 1, 7, 2, 6, 3, 4, 5, 8]
    offsets = np.array([0, 3, 5, 9])
    whole, listed, in_order = np.zeros(9), np.full(9, -99.0), np.full(9, -99.0)
    drag(0.1, regime, v, whole, device=device)
    v_in_order = v[order]
    for number in range(3):
        unit = units[f"drag__k{number}"]
        given = {"dt": 0.1, "dispatch0_offsets": offsets, "device": device}
        unit(v=v, v_new=listed, dispatch0_order=order, **given)
        unit(v=v_in_order, v_new=in_order, **given)
        done = np.isin(np.arange(9), order[: offsets[number + 1]])
        assert (listed == np.where(done, whole, -99)).all()
    assert in_order.tobytes() == whole[order].tobytes()


@pytest.mark.parametrize("device", DEVICES)
def test_units_leave_samples_alone_whose_class_has_changed(device: str) -> None:
    split = tn.resolve_dispatch(drag_by_speed, {"dispatch0": "segmented"})
    units = tn.dispatch_units(split)
    v, regime = np.array([1.0, 2.0, 3.0, 0.1]), np.array([0, 1, 1, 0])
    kind, stale = np.full(4, -7), np.zeros(4, bool)
    given = {
        "dt": 0.5,
        "cut": 1.5,
        "v": v,
        "regime": regime,
        "dispatch0_class": kind,
        "dispatch0_stale": stale,
        "dispatch0_offsets": np.array([0, 2, 4]),
        "dispatch0_order": np.array([0, 3, 1, 2]),
        "device": device,
    }
    whole = (v.copy(), regime.copy())
    drag_by_speed(0.5, 1.5, *whole, device=device)
    units["drag_by_speed__k0"](**given)
    units["drag_by_speed__k1"](**given)
    assert stale.tolist() == [False] * 4
    assert (v.tolist(), regime.tolist()) == tuple(each.tolist() for each in whole)
    before = v.copy()
    drag_by_speed(0.5, 1.5, *whole, device=device)
    units["drag_by_speed__k0"](**given)
    units["drag_by_speed__k1"](**given)
    assert stale.tolist() == [False, True, True, False]
    assert kind.tolist() == [0, 0, 0, 0]
    assert v.tolist() == np.where(stale, before, whole[0]).tolist()


def test_units_of_what_is_not_split() -> None:
    with pytest.raises(KernelError, match="has no dispatch whose policy is 'segmented'; declare"):
        tn.dispatch_units(drag)
    with pytest.raises(KernelError, match="dispatch_units takes a kernel"):
        tn.dispatch_units(len)  # type: ignore[arg-type]


def test_units_take_the_width_of_the_call() -> None:
    units = tn.dispatch_units(tn.resolve_dispatch(drag, {"dispatch0": "segmented"}))
    v, out = np.array([1, 2], np.float32), np.zeros(2, np.float32)
    units["drag__k0"](dt=0.1, v=v, v_new=out, dispatch0_offsets=np.array([0, 2, 2, 2]))
    assert out.tolist() == (v + np.float32(0.1) * (np.float32(-0.1) * v)).tolist()


# ---- auto --------------------------------------------------------------------------------------


def arguments(n: int) -> tuple[Any, ...]:
    random = np.random.default_rng(4)
    return 0.1, random.integers(-1, 4, n), random.normal(size=n), np.empty(n)


@on_cpu
def test_policies_are_tried_and_explained() -> None:
    kernel = tn.kernel(drag.__wrapped__)
    given = arguments(20_000)
    expected = np.empty(20_000)
    drag(*given[:3], expected, device="reference")
    calls = 0
    with tn.use("cpu"):
        while (explanation := kernel.explain(*given)).chosen is None:
            given[-1][:] = -9
            kernel(*given)
            assert given[-1] == pytest.approx(expected, rel=1e-13)
            calls += 1
            assert calls < 2000
    names = [each.name for each in explanation.implementations]
    assert names == ["switch", "predicated", "segmented"]
    assert explanation.chosen in names


@on_cpu
def test_few_samples_are_not_sorted() -> None:
    kernel = tn.kernel(drag.__wrapped__)
    given = arguments(1000)
    with tn.use("cpu"):
        for _ in range(40):
            kernel(*given)
        shown = str(kernel.explain(*given))
    assert "1000 samples are too few to be sorted by class" in shown


@on_cpu
def test_a_policy_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_FORCE", "drag.dispatch0:predicated")
    kernel = tn.kernel(drag.__wrapped__)
    with tn.use("cpu"):
        kernel(*arguments(500))
        (only,) = kernel.explain(*arguments(500)).implementations
    assert only.name == "predicated"
    monkeypatch.setenv("TURNOUT_PERFDISPATCH_FORCE", "drag.dispatch0:fastest")
    with tn.use("cpu"), pytest.raises(ConfigurationError, match="cannot be 'fastest'; allowed"):
        tn.kernel(drag.__wrapped__)(*arguments(500))


def test_what_has_nothing_to_choose_says_so() -> None:
    resolved = tn.resolve_dispatch(drag, {"dispatch0": "switch"})
    with pytest.raises(KernelError, match="no dispatch is declared with policy="):
        resolved.explain(*arguments(10))
    with pytest.raises(KernelError, match="runs its dispatches as 'switch' on reference:0"):
        drag.on("reference").explain(*arguments(10))
