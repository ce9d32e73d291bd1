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
POLICIES = ("switch", "predicated", "auto")

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


KERNELS = {make.__name__: make for make in (drag, two, loop, vec, puni, fsel, ties, gath, lpd, tmk)}


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

_INTEGERS = frozenset({"regime", "a", "b", "m", "r", "i"})


def arrays(given: Mapping[str, Any], width: type = np.float64) -> Arguments:
    """The arguments that a vector writes down."""
    return {name: _array(name, value, width) for name, value in given.items()}


def _array(name: str, value: Any, width: type) -> Any:
    if not isinstance(value, list):
        return value
    if name == "terminated":
        return np.array(value, np.bool_)
    # As objects, because "NaN" and "Infinity" are numbers then.
    return np.array(value, object).astype(np.int64 if name in _INTEGERS else width)


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
    expected = arrays(vector["expect"], width)
    outputs = {key: np.full_like(value, 99) for key, value in expected.items()}
    initial = arrays(vector.get("initial_outputs", {}))
    return {**arrays(vector["inputs"], width), **outputs, **initial}


COMBINATIONS = [(policy, "") for policy in POLICIES]
COMBINATIONS += [("auto", policy) for policy in POLICIES if policy != "auto"]
"""The policy of a kernel, and that of its reverse pass where that has its own."""


@pytest.mark.filterwarnings("ignore:kernel .* runs on:turnout.PerformanceWarning")
class OracleTests:
    """Every vector under every policy."""

    @pytest.mark.parametrize("policy", POLICIES)
    @pytest.mark.parametrize("name", VALUES)
    def test_values(self, name: str, policy: str, device: str) -> None:
        given = inputs_of(name)
        found = call(made(VALUES[name], policy), given, device)
        assert_near(found, VECTORS[name], VECTORS[name]["expect"])
        assert_same(found, call(made(VALUES[name], "switch"), given, device), policy)

    @pytest.mark.parametrize("combination", COMBINATIONS, ids="-".join)
    @pytest.mark.parametrize("name", DERIVATIVES)
    def test_derivatives(self, name: str, combination: tuple[str, str], device: str) -> None:
        vector, kernel, wrt = VECTORS[name], DERIVATIVES[name], tuple(VECTORS[name]["wrt"])
        given = inputs_of(name)
        found = call(derivative(kernel, wrt, *combination), given, device)
        assert_near(found, vector, vector["expect"])
        usual = call(derivative(kernel, wrt, "switch", ""), given, device)
        assert_same(found, usual, " and ".join(combination))

    @pytest.mark.parametrize("name", DERIVATIVES)
    def test_parameters_of_derivatives(self, name: str) -> None:
        vector = VECTORS[name]
        made = derivative(DERIVATIVES[name], tuple(vector["wrt"]), "auto", "")
        named = {name for _, name in vector["vjp_arg_spec"] if not name.endswith("_mix")}
        assert {parameter.name for parameter in made.signature.parameters} == named
