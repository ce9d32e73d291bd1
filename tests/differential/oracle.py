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


CALLS = [(name, p) for name in VALUES for p in POLICIES]
COMBINATIONS = [(policy, "") for policy in POLICIES]
COMBINATIONS += [("auto", policy) for policy in POLICIES if policy != "auto"]
"""The policy of a kernel, and that of its reverse pass where that has its own."""
DERIVATIVE_CALLS = [(name, *policies) for name in DERIVATIVES for policies in COMBINATIONS]


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

    # -- units that are run by hand

    def test_units_of_a_static_selector(self, device: str) -> None:
        vector = VECTORS["segmented-static"]
        expect, inputs = vector["expect"], arrays(vector["inputs"])
        units = tn.dispatch_units(
            tn.resolve_dispatch(made("drag", "auto"), {"dispatch0": "segmented"})
        )
        assert list(units) == list(vector["units"])
        for name, recorded in vector["units"].items():
            parameters = {spec.name for spec in units[name].signature.parameters}
            assert parameters - {"dispatch0_order"} == {name for _, name in recorded}

        classes = {"dispatch0_class": np.full(9, -1), "regime": inputs["regime"]}
        classes = call(units["drag__cls"], classes, device)["dispatch0_class"]
        assert classes.tolist() == expect["class"]
        order = np.argsort(classes, kind="stable")
        assert order.tolist() == expect["stable_sort_permutation"]
        offsets = np.concatenate(([0], np.bincount(classes).cumsum()))
        assert offsets.tolist() == expect["offsets"]

        v_new = np.full(9, expect["v_new_initial"])
        for step in expect["units_in_order"]:
            given = {"dt": 0.1, "v": inputs["v"][order], "v_new": v_new}
            given["dispatch0_offsets"] = offsets
            v_new = call(units[step["unit"]], given, device)["v_new"]
            assert_near({"v_new": v_new}, vector, {"v_new": step["v_new_after"]})
        unsorted = np.empty(9)
        unsorted[order] = v_new
        assert_near({"v_new": unsorted}, vector, {"v_new": expect["v_new_unsorted"]})
        whole = call(made("drag", "switch"), {**inputs, "v_new": np.zeros(9)}, device)
        assert_same({"v_new": unsorted}, whole, "units and switch")

    def test_units_take_an_order_and_any_part_of_a_class(self, device: str) -> None:
        vector = VECTORS["segmented-static"]
        expect, inputs = vector["expect"], arrays(vector["inputs"])
        unit = tn.dispatch_units(made("drag", "segmented"))["drag__k2"]
        given = {"dt": 0.1, "v": inputs["v"], "v_new": np.full(9, -99.0)}
        first, count = 5 + 1, 2
        places = np.array(expect["k2_base1_count2_writes_positions"])
        given["dispatch0_offsets"] = np.array([0, 0, first, first + count])
        assert np.flatnonzero(call(unit, given, device)["v_new"] != -99).tolist() == places.tolist()
        order = np.array(expect["stable_sort_permutation"])
        found = call(unit, {**given, "dispatch0_order": order}, device)["v_new"]
        wanted = np.full(9, -99.0)
        wanted[order[places]] = np.array(expect["v_new_unsorted"])[order[places]]
        assert_near({"v_new": found}, vector, {"v_new": wanted})

    def test_units_leave_samples_alone_that_have_changed_their_class(self, device: str) -> None:
        """Two steps with one sorting; no vector, but the recorded system does the same."""
        units = tn.dispatch_units(made("dbs", "segmented"))
        assert list(units) == ["dbs__k0", "dbs__k1", "dbs__cls"]
        regime = np.array([0, 1, 0, 1, -5, 9, 1, 0])
        found = call(
            units["dbs__cls"], {"regime": regime, "dispatch0_class": np.full(8, -1)}, device
        )
        assert found["dispatch0_class"].tolist() == [0, 1, 0, 1, 0, 1, 1, 0]
        order = np.argsort(found["dispatch0_class"], kind="stable")
        state = {"v": np.linspace(-1.75, 1.75, 8)[order], "regime": regime[order]}

        def step(state: Arguments) -> Arguments:
            levels = {"slow": np.zeros_like(state["regime"]), "fast": np.ones_like(state["regime"])}
            found = call(made("dbs", "switch"), {"dt": 0.5, "cut": 1.0, **levels, **state}, device)
            return {name: found[name] for name in state}

        def step_of_units(given: Arguments) -> Arguments:
            given = {**given, "dt": 0.5, "cut": 1.0, "dispatch0_offsets": np.array([0, 4, 8])}
            given |= {"slow": np.zeros(8, np.int64), "fast": np.ones(8, np.int64)}
            for unit in ("dbs__k0", "dbs__k1"):
                given |= call(units[unit], given, device)
            return given

        marks = {"dispatch0_class": np.full(8, -1), "dispatch0_stale": np.ones(8, np.bool_)}
        first, second = step(state), step(step(state))
        found = step_of_units({**state, **marks})
        assert_same(first, found, "first step")
        assert found["dispatch0_class"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
        assert not found["dispatch0_stale"].any()

        stale = first["regime"] != [0, 0, 0, 0, 1, 1, 1, 1]
        assert 0 < np.count_nonzero(stale) < 8
        found = step_of_units(found)
        assert found["dispatch0_class"].tolist() == first["regime"].tolist()
        assert found["dispatch0_stale"].tolist() == stale.tolist()
        wanted = {name: np.where(stale, first[name], second[name]) for name in state}
        assert_same(wanted, found, "second step of the units")
        finished = step({name: found[name][stale] for name in state})
        for name in state:
            found[name][stale] = finished[name]
        assert_same(second, found, "second step")
