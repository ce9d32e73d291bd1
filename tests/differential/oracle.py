"""Recorded behaviour of another system with dispatches, as tests of any backend.

A test module of a backend subclasses `OracleTests` and has a fixture ``device``. What the vectors
hold, and where they come from, is said in ``tests/core/data/dispatch_oracle.json``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, NDArray, Param, Scalar, Terminated, Vector, f64, i32, i64

from .harness import assert_same

DATA = Path(__file__).parents[1] / "core/data/dispatch_oracle.json"
VECTORS = {vector["id"]: vector for vector in json.loads(DATA.read_text())["vectors"]}
POLICIES = ("switch", "predicated", "auto", "segmented")

Arguments = dict[str, Any]


# ---- kernels -----------------------------------------------------------------------------------


def drag(policy: str) -> tn.Kernel:
    @tn.kernel
    def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
        a = tm.dispatch(
            regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)], policy=policy
        )
        v_new = v + dt * a

    return drag


def two(policy: str) -> tn.Kernel:
    @tn.kernel
    def two(a: Index, b: Index, v: Scalar, y: Mutable[Scalar], z: Mutable[Scalar]):
        p = tm.dispatch(a, [v, 2 * v, 3 * v], policy=policy)
        q = tm.dispatch(b, [v, -v], policy=policy)
        y = q * v
        z = p + 1

    return two


def dbs(policy: str) -> tn.Kernel:
    @tn.kernel
    def dbs(
        dt: Param,
        cut: Param,
        slow: Index,
        fast: Index,
        v: Mutable[Scalar],
        regime: Mutable[Index],
    ):
        v = v + dt * tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v)], policy=policy)
        regime = tm.select(abs(v) > cut, fast, slow)

    return dbs


def chosen_by_speed(policy: str) -> tn.Kernel:
    @tn.kernel
    def chosen_by_speed(cut: Param, hi: Index, lo: Index, v: Scalar, x: Scalar, y: Mutable[Scalar]):
        y = tm.dispatch(tm.select(abs(v) > cut, hi, lo), [x, -x], policy=policy)

    return chosen_by_speed


def in_place(policy: str) -> tn.Kernel:
    @tn.kernel
    def in_place(v: Mutable[Scalar]):
        v = tm.dispatch(tm.index(v, 3), [v + 1, 2 * v, -v], policy=policy)

    return in_place


def assigned_before(policy: str) -> tn.Kernel:
    @tn.kernel
    def assigned_before(x: Scalar, m: Mutable[Scalar], y: Mutable[Scalar]):
        m = 2 * x
        y = tm.dispatch(tm.index(m, 3), [x, -x, x * x], policy=policy)

    return assigned_before


def looked_up(policy: str) -> tn.Kernel:
    @tn.kernel
    def looked_up(t: NDArray[i64, 1], i: Index, x: Scalar, y: Mutable[Scalar]):
        y = tm.dispatch(t[i], [x, -x, x * x], policy=policy)

    return looked_up


def osc(policy: str) -> tn.Kernel:
    @tn.kernel
    def osc(dt: Param, r: Index, x: Mutable[Scalar], v: Mutable[Scalar]):
        force = tm.dispatch(r, [-x, -2 * x, -x - 0.1 * v], policy=policy)
        v = v + dt * force
        x = x + dt * v

    return osc


def nested(policy: str) -> tn.Kernel:
    @tn.kernel
    def nested(a: Index, b: Index, v: Scalar, y: Mutable[Scalar]):
        inner = tm.dispatch(b, [v, -v], policy=policy)
        y = tm.dispatch(a, [inner, 2 * v, 3 * v], policy=policy)

    return nested


def loop(policy: str) -> tn.Kernel:
    @tn.kernel
    def loop(dt: Param, r: Index, v: Scalar, y: Mutable[Scalar]):
        w = v
        for _ in range(4):
            w += dt * tm.dispatch(r, [-0.1 * w, -0.4 * w * abs(w)], policy=policy)
        y = w

    return loop


def vec(policy: str) -> tn.Kernel:
    @tn.kernel
    def vec(g: Vector[3], m: Index, x: Mutable[Vector[3]]):
        x = tm.dispatch(m, [2 * g, tm.cross(g, (1.0, 2.0, 3.0)), -g * 0.25], policy=policy)

    return vec


def puni(policy: str) -> tn.Kernel:
    @tn.kernel
    def puni(s: Param[i64], v: Scalar, y: Mutable[Scalar]):
        y = tm.dispatch(i32(s), [v, 2 * v, 3 * v], policy=policy)

    return puni


def fsel(policy: str) -> tn.Kernel:
    @tn.kernel
    def fsel(x: Scalar, v: Scalar, y: Mutable[Scalar]):
        y = tm.dispatch(tm.index(x, 3), [v, 10 * v, 100 * v], policy=policy)

    return fsel


def ties(policy: str) -> tn.Kernel:
    @tn.kernel
    def ties(r: Index, v: Scalar, y: Mutable[Scalar]):
        y = tm.dispatch(
            r,
            [
                tm.select(v > 0.5, v**2, 3 * v),
                abs(v),
                tm.clip(v, -0.5, 0.5),
                tm.maximum(v, 0.25),
            ],
            policy=policy,
        )

    return ties


def gath(policy: str) -> tn.Kernel:
    @tn.kernel
    def gath(r: Index, i: Index, t: NDArray[f64, 1], v: Scalar, y: Mutable[Scalar]):
        y = tm.dispatch(r, [t[i] * v, v**2], policy=policy)

    return gath


def lpd(policy: str) -> tn.Kernel:
    @tn.kernel
    def lpd(r: Index, v: Scalar, y: Mutable[Scalar]):
        w = v
        for _ in range(3):
            w += 0.1 * tm.dispatch(r, [w, w**2], policy=policy)
        y = w

    return lpd


def tmk(policy: str) -> tn.Kernel:
    @tn.kernel
    def tmk(r: Index, v: Scalar, y: Mutable[Scalar], terminated: Terminated):
        y = tm.dispatch(r, [v**2, v**3], policy=policy)

    return tmk


_MAKERS: tuple[Callable[[str], tn.Kernel], ...] = (
    *(drag, two, loop, vec, puni, fsel, ties, gath, lpd, tmk, dbs, nested, osc),
    *(chosen_by_speed, in_place, assigned_before, looked_up),
)
KERNELS = {make.__name__: make for make in _MAKERS}
IN_A_LOOP = ("loop", "lpd")
"""A sample has many classes there, so that it cannot be sorted by them."""


@functools.cache
def made(name: str, policy: str) -> tn.Kernel:
    """A kernel under one policy, compiled once for all tests."""
    return KERNELS[name](policy)


@functools.cache
def derivative(name: str, wrt: tuple[str, ...], policy: str, reverse: str) -> tn.Kernel:
    """The derivative of a kernel; `reverse` is the policy of the reverse pass, if it has its own.

    Every kernel here has one group.
    """
    policies = {"dispatch0": reverse} if reverse else None
    return tn.vjp(made(name, policy), wrt=wrt, policy=policies)


# ---- calls -------------------------------------------------------------------------------------

_DTYPES = dict.fromkeys(("regime", "a", "b", "m", "r", "i"), np.int64)
_DTYPES |= {"terminated": np.bool_, "dispatch0_mix": np.uint32, "dispatch1_mix": np.uint32}


def arrays(given: Mapping[str, Any], width: type = np.float64) -> Arguments:
    """The arguments that a vector writes down."""
    return {name: _array(name, value, width) for name, value in given.items()}


def _array(name: str, value: Any, width: type) -> Any:
    if not isinstance(value, list):
        return value
    # As objects first, because "NaN" and "Infinity" are numbers then.
    return np.array(value, object).astype(_DTYPES.get(name, width))


def call(
    kernel: Callable[..., Any], given: Mapping[str, Any], device: str, **options: Any
) -> Arguments:
    """The arrays after a call with copies of `given` on a device."""
    moved = {
        name: tn.array(value.copy(), device=device) if isinstance(value, np.ndarray) else value
        for name, value in given.items()
    }
    kernel(**moved, **options, device=device)
    return {
        name: tn.to_numpy(moved[name])
        for name, value in given.items()
        if isinstance(value, np.ndarray)
    }


def assert_near(found: Arguments, vector: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for name, values in expected.items():
        np.testing.assert_allclose(
            found[name], arrays({name: values})[name], **vector["tolerance"], err_msg=name
        )


# ---- tests -------------------------------------------------------------------------------------

VALUES = {
    "drag-tutorial-mix": "drag",
    "drag-varied": "drag",
    "drag-n0": "drag",
    "drag-n1": "drag",
    "drag-nonfinite": "drag",
    "float32-build": "drag",
    "two-groups-naming": "two",
    "loop-fixed-class": "loop",
    "vector": "vec",
    "uniform-selector": "puni",
    "float-to-class": "fsel",
}
DERIVATIVES = {
    "vjp-drag-v": "drag",
    "vjp-drag-v-dt": "drag",
    "vjp-select-and-ties": "ties",
    "vjp-table-accumulates": "gath",
    "vjp-loop": "lpd",
    "vjp-terminated": "tmk",
}


def inputs_of(name: str) -> Arguments:
    """The arguments of a vector; outputs hold what must not be left in them."""
    vector = VECTORS[name]
    width = np.float32 if name == "float32-build" else np.float64
    outputs = {k: np.full_like(v, 99) for k, v in arrays(vector["expect"], width).items()}
    counters = {k: np.zeros_like(v) for k, v in mix_of(name).items()}
    return {
        **outputs,
        **arrays(vector["inputs"], width),
        **arrays(vector.get("initial_outputs", {}), width),
        **counters,
    }


def mix_of(name: str) -> Arguments:
    """What the counters hold after a call."""
    mix = arrays(VECTORS[name].get("mix", {}))
    if name == "two-groups-naming":
        # Groups are numbered in the order of the source here, not in that of the outputs.
        return {"dispatch0_mix": mix["dispatch1_mix"], "dispatch1_mix": mix["dispatch0_mix"]}
    return mix


def can_be_called(kernel: str, *policies: str) -> bool:
    return kernel not in IN_A_LOOP or "segmented" not in policies


CALLS = [(name, p) for name, kernel in VALUES.items() for p in POLICIES if can_be_called(kernel, p)]
COMBINATIONS = [(policy, "") for policy in POLICIES]
COMBINATIONS += [("auto", policy) for policy in POLICIES if policy != "auto"]
"""The policy of a kernel, and that of its reverse pass where that has its own."""
DERIVATIVE_CALLS = [
    (name, *policies)
    for name, kernel in DERIVATIVES.items()
    for policies in COMBINATIONS
    if can_be_called(kernel, *policies)
]


@pytest.mark.filterwarnings("ignore:kernel .* runs on:turnout.PerformanceWarning")
class OracleTests:
    """Every vector under every policy."""

    @pytest.mark.parametrize(("name", "policy"), CALLS)
    def test_values_and_counters(self, name: str, policy: str, device: str) -> None:
        vector, kernel = VECTORS[name], VALUES[name]
        given = inputs_of(name)
        found = call(made(kernel, policy), given, device)
        assert_near(found, vector, vector["expect"])
        for counter, expected in mix_of(name).items():
            assert found[counter].tolist() == expected.tolist()
        assert_same(found, call(made(kernel, "switch"), given, device), policy)

    @pytest.mark.parametrize("policy", POLICIES)
    def test_counters_accumulate(self, policy: str, device: str) -> None:
        vector = VECTORS["mix-accumulates"]
        given = arrays(vector["inputs"])
        whole, part, first = vector["sequence"]
        n, kernel = given["v"].size, made("drag", policy)

        def after(step: Mapping[str, Any], chosen: slice, samples: int | None) -> None:
            v_new = np.full(n, -9.0)
            views = {"regime": given["regime"][chosen], "v": given["v"][chosen]}
            used = {**given, **views, "v_new": v_new[chosen]}
            found = call(kernel, used, device, samples=samples)
            v_new[chosen] = found["v_new"]
            assert_near({"v_new": v_new}, vector, {"v_new": step["v_new_after"]})
            assert found["dispatch0_mix"].tolist() == step["mix_after"]
            given["dispatch0_mix"] = found["dispatch0_mix"]

        after(whole, slice(None), None)
        after(part, slice(3, 7), None)
        after(first, slice(None), 2)

    @pytest.mark.parametrize(("name", "policy", "reverse"), DERIVATIVE_CALLS)
    def test_derivatives(self, name: str, policy: str, reverse: str, device: str) -> None:
        vector, kernel, wrt = VECTORS[name], DERIVATIVES[name], tuple(VECTORS[name]["wrt"])
        given = inputs_of(name)
        found = call(derivative(kernel, wrt, policy, reverse), given, device)
        assert_near(found, vector, vector["expect"])
        usual = call(derivative(kernel, wrt, "switch", ""), given, device)
        assert_same(found, usual, f"{policy}, {reverse} and switch")

    @pytest.mark.parametrize("name", DERIVATIVES)
    def test_parameters_of_derivatives(self, name: str) -> None:
        vector = VECTORS[name]
        made = derivative(DERIVATIVES[name], tuple(vector["wrt"]), "auto", "")
        named = {name for _, name in vector["vjp_arg_spec"] if not name.endswith("_mix")}
        assert {parameter.name for parameter in made.signature.parameters} == named

    @pytest.mark.parametrize("policy", POLICIES)
    def test_counters_of_derivatives(self, policy: str, device: str) -> None:
        given = {**inputs_of("vjp-drag-v"), "dispatch0_mix": np.zeros(3, np.uint32)}
        found = call(derivative("drag", ("v",), policy, ""), given, device)
        assert found["dispatch0_mix"].tolist() == [2, 2, 2]

    @pytest.mark.parametrize("kernel", IN_A_LOOP)
    def test_a_dispatch_in_a_loop_cannot_be_segmented(self, kernel: str, device: str) -> None:
        name = {"loop": "loop-fixed-class", "lpd": "vjp-loop"}[kernel]
        given = {k: v for k, v in inputs_of(name).items() if not k.startswith("bar_")}
        given.setdefault("y", np.zeros_like(given["v"]))
        with pytest.raises(tn.KernelError, match=r"dispatch 'dispatch0'.*it is in a loop"):
            call(made(kernel, "segmented"), given, device)
