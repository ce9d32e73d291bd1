"""Segmented dispatches in loops: possible where no round changes the class."""

from typing import Any

import numpy as np
import pytest

import turnout as tn
import turnout.math as tm
from turnout import Index, KernelError, Mutable, NDArray, Param, Scalar, Terminated, f64, i64

POLICY = "switch"
N = 5_003


@tn.kernel
def fixed(kind: Index, v: Scalar, out: Mutable[Scalar]):
    w = v
    for _ in range(5):
        w = w + 0.1 * tm.dispatch(kind, [w, -w * abs(w), tm.sin(w)], policy=POLICY)
    out = w


@tn.kernel
def computed_inside(kind: Index, shift: Param, v: Mutable[Scalar]):
    k = 0
    while k < 4:
        if v > -1:
            number = (kind + tm.sample_index()) % 5 - tm.index(shift, 3)
            v = tm.dispatch(number, [v * 0.5, v + 1, 0.25 - v], policy=POLICY)
        k += 1


@tn.kernel
def nests(a: Index, b: Index, done: Terminated, v: Mutable[Scalar]):
    for i in range(3):
        for j in range(i + 1):
            inner = tm.dispatch(b, [v + j, v * 0.5], policy=POLICY, name="inner")
            v = v + 0.1 * tm.dispatch(
                a - b, [inner, tm.dispatch(a, [v, 1 - v], policy=POLICY, name="deep"), 0.25],
                policy=POLICY, name="outer",
            )  # fmt: skip
    v = tm.dispatch(b, [v, v + 1], policy=POLICY, name="after")


@tn.kernel
def rows(kind: NDArray[i64, 1], x: NDArray[f64, 2]):
    for i in range(x.shape[0]):
        number = kind[i]
        for j in range(x.shape[1]):
            x[i, j] = tm.dispatch(number, [x[i, j] + 1, x[i, j] * 2], policy=POLICY)


def arguments(kernel: Any) -> dict[str, Any]:
    random = np.random.default_rng(8)
    kind, v = random.integers(-2, 6, N), random.normal(size=N)
    every: dict[str, dict[str, Any]] = {
        "fixed": {"kind": kind, "v": v, "out": np.zeros(N)},
        "computed_inside": {"kind": kind, "shift": 1.5, "v": v},
        "nests": {"a": kind, "b": random.integers(-1, 3, N), "done": v > 1, "v": v},
        "rows": {"kind": kind[:400], "x": random.normal(size=(400, 7))},
    }
    return every[kernel.__name__]


def results(kernel: Any, policy: str, device: str, **options: Any) -> list[bytes]:
    given = arguments(kernel)
    made = kernel.with_constants(POLICY=policy)
    counters = {
        f"{entry['name']}_mix": np.zeros(entry["K"], np.uint32) for entry in made.dispatch_entries()
    }
    made(**given, **counters, device=device, **options)
    return [each.tobytes() for each in (*given.values(), *counters.values()) if np.ndim(each)]


@pytest.mark.parametrize("kernel", [fixed, computed_inside, nests, rows])
@pytest.mark.parametrize("policy", ["predicated", "segmented", "auto"])
def test_all_policies_give_the_bits_of_switch(kernel: Any, policy: str, device: str) -> None:
    assert results(kernel, policy, device) == results(kernel, "switch", device)
    several = [results(kernel, each, device, steps=3) for each in (policy, "switch")]
    assert several[0] == several[1]


def test_values_and_counts(device: str) -> None:
    given = arguments(fixed)
    mix = np.zeros(3, np.uint32)
    fixed.with_constants(POLICY="segmented")(**given, device=device, dispatch0_mix=mix)
    number, w = np.clip(given["kind"], 0, 2), given["v"].copy()
    for _ in range(5):
        w = w + 0.1 * np.choose(number, [w, -w * abs(w), np.sin(w)])
    np.testing.assert_allclose(given["out"], w, rtol=1e-12)
    assert mix.tolist() == (5 * np.bincount(number, minlength=3)).tolist()


def test_a_class_of_a_loop_that_never_runs(device: str) -> None:
    @tn.kernel
    def never(kind: Index, rounds: Index, v: Mutable[Scalar]):
        for _ in range(rounds):
            v = tm.dispatch(7 // kind, [v + 1, v * 2], policy="segmented")

    kind, v = np.array([0, 7, -1, 0]), np.ones(4)
    never(kind, np.array([0, 2, 3, 1]), v, device=device)
    assert v.tolist() == [1, 4, 4, 2]


@tn.kernel
def index_of_the_loop(kind: Index, v: Mutable[Scalar]):
    for k in range(3):
        v = tm.dispatch(kind + k, [v, -v], policy="segmented")


@tn.kernel
def of_what_it_computes(kind: Index, v: Mutable[Scalar]):
    for _ in range(3):
        v = tm.dispatch(tm.index(v, 2), [v + 1, -v], policy="segmented")


@tn.kernel
def of_a_table(kind: Index, table: NDArray[i64, 1], v: Mutable[Scalar]):
    for k in range(3):
        v = tm.dispatch(table[k], [v + 1, -v], policy="segmented")


@pytest.mark.parametrize("kernel", [index_of_the_loop, of_what_it_computes, of_a_table])
def test_a_class_that_a_loop_may_change_is_refused(kernel: Any, device: str) -> None:
    given = [np.zeros(3, np.int64)] * (len(kernel.signature.parameters) - 1)
    expected = (
        r"dispatch 'dispatch0': policy 'segmented' needs the class of every position before the "
        r"run, but it is in a loop, which may change its class; use 'switch', 'predicated' or"
    )
    with pytest.raises(KernelError, match=expected):
        kernel(*given, np.ones(3), device=device)


def test_auto_can_be_resolved_in_a_loop() -> None:
    split = tn.resolve_dispatch(fixed.with_constants(POLICY="auto"), {"dispatch0": "segmented"})
    assert list(tn.dispatch_units(split)) == ["fixed__k0", "fixed__k1", "fixed__k2", "fixed__cls"]
