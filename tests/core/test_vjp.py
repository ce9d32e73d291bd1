"""``tn.vjp``: reverse-mode derivatives of per-sample kernels."""

from __future__ import annotations

import copy
import json
import math
import pickle
from pathlib import Path

import mpmath
import numpy as np
import pytest
from click.testing import CliRunner
from language_support import assert_same, floats, function_from, integers

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, NDArray, Param, Scalar, Terminated, Vector, f32, f64
from turnout.cli import main
from turnout.derive import Derivative
from turnout.diff.partials import PARTIALS
from turnout.ir import OPERATIONS, Dispatch, Load, LocalArray, format_unit, statements

POLICIES = ("switch", "predicated", "auto")


@pytest.fixture(params=POLICIES)
def policy(request):
    return request.param


# -- recorded vectors ------------------------------------------------------------------------------

VECTORS = {
    vector["name"]: vector
    for vector in json.loads((Path(__file__).parent / "data" / "vjp_vectors.json").read_text())[
        "vectors"
    ]
}


def drag(policy):
    @tn.kernel
    def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
        a = tm.dispatch(
            regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)], policy=policy
        )
        v_new = v + dt * a

    return drag


def ties(policy):
    @tn.kernel
    def ties(r: Index, v: Scalar, y: Mutable[Scalar]):
        y = tm.dispatch(
            r,
            [
                tm.select(v > 0.5, v * v, 3 * v),
                abs(v),
                tm.clip(v, -0.5, 0.5),
                tm.maximum(v, 0.25),
            ],
            policy=policy,
        )

    return ties


def gathered(policy):
    @tn.kernel
    def gathered(r: Index, i: Index, t: NDArray[f64, 1], v: Scalar, y: Mutable[Scalar]):
        y = tm.dispatch(r, [t[i] * v, v * v], policy=policy)

    return gathered


def in_a_loop(policy):
    @tn.kernel
    def in_a_loop(r: Index, v: Scalar, y: Mutable[Scalar]):
        w = v
        for _ in range(3):
            w += 0.1 * tm.dispatch(r, [w, w * w], policy=policy)
        y = w

    return in_a_loop


def masked(policy):
    @tn.kernel
    def masked(r: Index, v: Scalar, y: Mutable[Scalar], terminated: Terminated):
        y = tm.dispatch(r, [v**2, v**3], policy=policy)

    return masked


KERNELS = {
    "drag-v": drag,
    "drag-v-dt": drag,
    "select-and-ties": ties,
    "table-accumulates": gathered,
    "loop": in_a_loop,
    "terminated": masked,
}


def argument(value):
    return np.array(value) if isinstance(value, list) else value


@pytest.mark.parametrize("name", VECTORS)
def test_recorded_vectors(name, policy, device):
    vector = VECTORS[name]
    derivative = tn.vjp(KERNELS[name](policy), wrt=tuple(vector["wrt"]))
    inputs = {key: argument(value) for key, value in vector["inputs"].items()}
    outputs = {key: argument(value) for key, value in vector["initial"].items()}
    derivative(**inputs, **outputs, device=device)
    for key, value in vector["expected"].items():
        np.testing.assert_allclose(outputs[key], value, **vector["tolerance"])


# -- values ----------------------------------------------------------------------------------------


def gradients(kernel, inputs, device, wrt=None, policy=None, samples=None):
    """The gradients for seeds of 1, by the name of the input."""
    derivative = tn.vjp(kernel, wrt=wrt, policy=policy)
    names = derivative._names
    count = samples or max(np.shape(value)[-1] for value in inputs.values() if np.ndim(value))
    width = next(v.dtype for v in inputs.values() if np.ndim(v) and v.dtype.kind == "f")
    arrays = {}
    for spec in names.seeds.values():
        arrays[spec.name] = np.ones((spec.width, count) if spec.width else count, width)
    found = {}
    for name, spec in names.gradients.items():
        shape = (spec.width, count) if spec.width else (count,)
        is_table = spec.role == "array"
        found[name] = np.zeros_like(inputs[name]) if is_table else np.full(shape, 77, width)
    arrays |= {names.gradients[name].name: array for name, array in found.items()}
    derivative(**inputs, **arrays, device=device)
    return found


def test_arithmetic_by_hand(device):
    @tn.kernel
    def k(x: Scalar, y: Scalar, z: Mutable[Scalar]):
        z = x * y + x / y - 3 * x

    x, y = floats(2, -1, 0.5), floats(4, 0.5, -2)
    found = gradients(k, {"x": x, "y": y}, device)
    assert_same(found["x"], y + 1 / y - 3)
    assert_same(found["y"], x - 1 / y * (x / y))


def test_a_value_that_is_used_twice_adds_up(device):
    @tn.kernel
    def k(x: Scalar, y: Mutable[Scalar], z: Mutable[Scalar]):
        w = x * x
        y = w * w
        z = w + x

    x = floats(1, 2, -3)
    np.testing.assert_allclose(gradients(k, {"x": x}, device)["x"], 4 * x**3 + 2 * x + 1)


def test_an_output_that_is_also_an_input(device):
    @tn.kernel
    def spring(k: Param, dt: Param, x: Mutable[Scalar], v: Mutable[Scalar]):
        v = v - k * x * dt
        x = x + v * dt

    x, v = floats(1.0, 0.5), floats(0.0, 2.0)
    derivative = tn.vjp(spring, wrt=("x", "v"))
    assert list(derivative.__signature__.parameters) == [
        *("k", "dt", "x", "v", "bar_x_out", "bar_v_out", "bar_x", "bar_v")
    ]
    bar_x_out, bar_v_out = floats(1, 0), floats(0, 1)
    bar_x, bar_v = np.empty(2), np.empty(2)
    derivative(
        k=4.0, dt=0.1, x=x, v=v, bar_x_out=bar_x_out, bar_v_out=bar_v_out, bar_x=bar_x, bar_v=bar_v,
        device=device,
    )  # fmt: skip
    np.testing.assert_allclose(bar_x, [1 - 4 * 0.1 * 0.1, -4 * 0.1])
    np.testing.assert_allclose(bar_v, [0.1, 1])


def test_seeds_and_gradients_may_be_the_same_memory(device):
    @tn.kernel
    def k(x: Mutable[Scalar]):
        x = x * x * x

    x, bar = floats(1, 2, 3), floats(1, 10, 100)
    tn.vjp(k)(x=x, bar_x_out=bar, bar_x=bar, device=device)
    assert_same(bar, floats(3, 120, 2700))
    assert_same(x, floats(1, 2, 3))


def test_returned_arrays_have_seeds(device):
    @tn.kernel
    def one(x: Scalar) -> Scalar:
        return x * x

    @tn.kernel
    def two(x: Scalar) -> tuple[Scalar, Index]:
        return tm.sin(x), tm.index(x, 3)

    @tn.kernel
    def unannotated(x: Scalar):
        return x * x, 2 * x

    x = floats(0.5, 1.5)
    assert_same(gradients(one, {"x": x}, device)["x"], 2 * x)
    np.testing.assert_allclose(gradients(two, {"x": x}, device)["x"], np.cos(x), rtol=1e-14)
    assert_same(gradients(unannotated, {"x": x}, device)["x"], 2 * x + 2)
    assert list(tn.vjp(one).__signature__.parameters) == ["x", "bar_out", "bar_x"]
    assert list(tn.vjp(two).__signature__.parameters) == ["x", "bar_out0", "bar_x"]
    assert list(tn.vjp(unannotated).__signature__.parameters) == [
        *("x", "bar_out0", "bar_out1", "bar_x")
    ]


def test_vectors(device):
    @tn.kernel
    def k(g: Vector[3], h: Vector[3], n: Mutable[Scalar], c: Mutable[Vector[3]]):
        n = tm.norm(g) * tm.dot(g, h)
        c = tm.cross(g, h) + g[1] * h

    random = np.random.default_rng(0)
    inputs = {"g": random.normal(size=(3, 4)), "h": random.normal(size=(3, 4))}
    found = gradients(k, inputs, device)
    for name in inputs:
        for component in range(3):
            numeric = central(k, inputs, name, component)
            np.testing.assert_allclose(found[name][component], numeric, rtol=1e-6, atol=1e-8)


def central(kernel, inputs, name, component=None, step=1e-6):
    """Central differences of the sum of all outputs, for one input of every sample."""
    sides = []
    for change in (step, -step):
        given = {n: v.copy() if np.ndim(v) else v for n, v in inputs.items()}
        if component is None:
            given[name] = given[name] + change
        else:
            given[name][component] += change
        sides.append(total_of(kernel, given))
    return (sides[0] - sides[1]) / (2 * step)


def total_of(kernel, inputs):
    count = max(np.shape(value)[-1] for value in inputs.values() if np.ndim(value))
    outputs = {
        spec.name: np.zeros((spec.width, count) if spec.width else count)
        for spec in kernel.signature.parameters
        if spec.is_output
    }
    kernel(**{**outputs, **inputs}, device="reference")
    return sum(array.reshape(-1, count).sum(axis=0) for array in outputs.values())


def test_an_unused_component_and_an_unused_input_have_zeros(device):
    @tn.kernel
    def k(g: Vector[3], x: Scalar, unused: Scalar, y: Mutable[Scalar]):
        y = g[0] * g[2] + tm.floor(x)

    inputs = {"g": np.arange(6.0).reshape(3, 2), "x": floats(1, 2), "unused": floats(3, 4)}
    found = gradients(k, inputs, device)
    assert_same(found["g"], floats([4, 5], [0, 0], [0, 1]))
    assert_same(found["x"], floats(0, 0))
    assert_same(found["unused"], floats(0, 0))


def test_params_have_a_gradient_per_sample(device):
    @tn.kernel
    def k(a: Param, b: Param, x: Scalar, y: Mutable[Scalar]):
        y = a * x + b * b

    x = floats(1, 2, 3)
    found = gradients(k, {"a": 2.0, "b": 3.0, "x": x}, device)
    assert_same(found["a"], x)
    assert_same(found["b"], floats(6, 6, 6))
    whole = gradients(k, {"a": 2, "b": np.int32(3), "x": x}, device)
    assert_same(whole["b"], floats(6, 6, 6))
    assert_same(whole["x"], floats(2, 2, 2))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_width_is_that_of_the_call(dtype, device):
    @tn.kernel
    def k(a: Param, x: Scalar, y: Mutable[Scalar]):
        y = a * tm.exp(x)

    x = np.array([0.5, -1], dtype)
    found = gradients(k, {"a": 2.0, "x": x}, device)
    assert found["x"].dtype == found["a"].dtype == dtype
    eps = 10 * np.finfo(dtype).eps
    np.testing.assert_allclose(found["x"], 2 * np.exp(np.float64(x)), rtol=eps)
    np.testing.assert_allclose(found["a"], np.exp(np.float64(x)), rtol=eps)


def test_pinned_widths(device):
    @tn.kernel
    def k(a: Param[f64], x: Scalar[f32], y: Mutable[Scalar[f64]]):
        y = a * x

    bar_a, bar_x = np.empty(2), np.empty(2, np.float32)
    x = np.array([1.5, 2.5], np.float32)
    tn.vjp(k)(a=0.5, x=x, bar_y=floats(1, 2), bar_a=bar_a, bar_x=bar_x, device=device)
    assert_same(bar_a, floats(1.5, 5))
    assert_same(bar_x, np.array([0.5, 1], np.float32))


def test_table_gradients_are_added(device):
    @tn.kernel
    def k(t: NDArray[f64, 2], i: Index, x: Scalar, y: Mutable[Scalar]):
        y = t[i, 0] * t[i, 1] * x

    i = integers(0, 1, 1, 0, 1)
    t, x = np.arange(1.0, 5.0).reshape(2, 2), floats(1, 2, 3, 4, 5)
    bar_t = np.full((2, 2), 100.0)
    tn.vjp(k, wrt="t")(t=t, i=i, x=x, bar_y=np.ones(5), bar_t=bar_t, device=device)
    assert_same(bar_t, 100 + floats([10, 5], [40, 30]))


def test_a_gradient_that_is_shorter_than_its_table_is_refused(device):
    @tn.kernel
    def k(t: NDArray[f64, 1], i: Index, y: Mutable[Scalar]):
        y = t[i]

    derivative = tn.vjp(k)
    arguments = {"t": np.ones(3), "i": integers(0, 2), "bar_y": np.ones(2)}
    for _ in range(3):
        with pytest.raises(tn.CallError, match=r"argument 'bar_t' has shape \(2,\)"):
            derivative(**arguments, bar_t=np.zeros(2), device=device)
        derivative(**arguments, bar_t=np.zeros(3), device=device)


def test_the_seed_of_a_table_must_not_be_its_gradient(device):
    @tn.kernel
    def k(t: NDArray[f64, 1], y: Mutable[Scalar]):
        y = t[0] * t[0]

    t = np.ones(3)
    with pytest.raises(tn.CallError, match="overlap in memory"):
        tn.vjp(k)(t=t, bar_y=np.ones(3), bar_t=t, device=device)


def test_casts_and_integers_carry_no_derivative(device):
    @tn.kernel
    def k(x: Scalar, n: Index, y: Mutable[Scalar]):
        y = f32(x) * 2 + f64(n) * x + tm.index(x, 5) * 3.0

    x, n = floats(1.25, 2.5), integers(3, 4)
    assert_same(gradients(k, {"x": x, "n": n}, device)["x"], 2 + n.astype(float))


# -- functions -------------------------------------------------------------------------------------

POINTS = {
    "log": (0.3, 2.5), "log2": (0.3, 2.5), "log10": (0.3, 2.5), "log1p": (-0.5, 1.5),
    "sqrt": (0.3, 2.5), "rsqrt": (0.3, 2.5), "asin": (-0.7, 0.4), "acos": (-0.7, 0.4),
}  # fmt: skip
MP = {
    "abs": abs, "rsqrt": lambda x: 1 / mpmath.sqrt(x), "exp2": lambda x: mpmath.mpf(2) ** x,
    "cbrt": lambda x: mpmath.sign(x) * mpmath.cbrt(abs(x)), "pow": lambda x, y: x**y,
    "log2": lambda x: mpmath.log(x, 2), "fma": lambda x, y, z: x * y + z,
    "add": lambda x, y: x + y, "subtract": lambda x, y: x - y, "multiply": lambda x, y: x * y,
    "divide": lambda x, y: x / y, "negative": lambda x: -x, "remainder": lambda x, y: x % y,
    "fmod": lambda x, y: x - y * (mpmath.floor(x / y) if x * y > 0 else mpmath.ceil(x / y)),
    "copysign": lambda x, y: abs(x) * mpmath.sign(y),
}  # fmt: skip
SPELLED = {
    "add": "{} + {}", "subtract": "{} - {}", "multiply": "{} * {}", "divide": "{} / {}",
    "negative": "-{}", "remainder": "{} % {}",
}  # fmt: skip


def test_every_float_operation_has_its_derivative():
    without = {"floor_divide", "sign", "floor", "ceil", "round", "trunc"}
    chosen = {"select", "minimum", "maximum"}
    floats_in_and_out = {
        name
        for name, row in OPERATIONS.items()
        if row.operands in ("float", "number", "any") and row.result == "same"
    }
    assert floats_in_and_out - without - chosen == set(PARTIALS)


@pytest.mark.parametrize("name", PARTIALS)
def test_functions_against_high_precision(name, device):
    arity = OPERATIONS[name].arity
    names = ["x", "y", "z"][:arity]
    call = SPELLED.get(name, f"tm.{name}({', '.join(['{}'] * arity)})").format(*names)
    header = ", ".join(f"{n}: Scalar" for n in names)
    k = function_from(
        f"@tn.kernel\ndef k({header}, out: Mutable[Scalar]):\n    out = {call}\n", "k"
    )
    first = POINTS.get(name, (-1.3, 0.7))
    if name == "pow":
        first = (0.7, 2.5)
    points = [first, (0.9, -1.7), (0.4, 0.6)][:arity]
    inputs = {n: floats(*p) for n, p in zip(names, points, strict=True)}
    found = gradients(k, inputs, device)
    function = MP.get(name) or getattr(mpmath, name)
    with mpmath.workdps(40):
        for place, n in enumerate(names):
            for sample in range(2):
                at = [mpmath.mpf(p[sample]) for p in points]
                order = tuple(int(place == other) for other in range(arity))
                if name == "copysign" and place == 1:
                    right = 0.0
                elif arity == 1:
                    right = float(mpmath.diff(function, at[0]))
                else:
                    right = float(mpmath.diff(function, tuple(at), order))
                assert found[n][sample] == pytest.approx(right, rel=1e-13), (n, sample)


def test_derivatives_where_there_is_none(device):
    @tn.kernel
    def k(x: Scalar, y: Scalar, a: Mutable[Scalar], b: Mutable[Scalar]):
        a = tm.hypot(x, y) + abs(x)
        b = x**y

    x, y = floats(0.0, -0.0, 0.0), floats(0.0, 0.0, 2.0)
    found = gradients(k, {"x": x, "y": y}, device)
    assert_same(found["x"], floats(1, 1, 1))
    assert_same(found["y"], floats(0, 0, 1))


# -- branches that are not taken -------------------------------------------------------------------


def test_a_branch_that_is_not_taken_adds_nothing(policy, device):
    @tn.kernel
    def k(r: Index, x: Scalar, y: Mutable[Scalar]):
        y = tm.dispatch(r, [tm.sqrt(x), tm.log(x) * x, x * x], policy=policy)

    x = floats(-1, 0, math.inf, 4, math.e)
    found = gradients(k, {"r": integers(2, 2, 2, 0, 1), "x": x}, device)["x"]
    np.testing.assert_allclose(found, [-2, 0, math.inf, 0.25, 2], rtol=1e-14)


@pytest.mark.parametrize(
    "body",
    [
        "y = tm.select(x > 0, tm.sqrt(x), 2 * x)",
        "y = tm.sqrt(x) if x > 0 else 2 * x",
        "root = tm.sqrt(x)\n    y = 2 * x\n    if x > 0:\n        y = root",
        "root = tm.sqrt(x) * 1.0\n    y = tm.dispatch(tm.index(2 * x, 2), [2 * x, root])",
        "root = tm.sqrt(x) * 1.0\n    y = tm.dispatch(tm.index(2 * x, 2), [2 * x, root], "
        "policy='predicated')",
        "root = tm.sqrt(x) - 0\n    inner = root * 3 if x < 9 else root * 5\n"
        "    y = tm.select(x > 0, inner / (3 if x < 9 else 5), x + x)",
        "root = tm.sqrt(x)\n    y = 0.0\n    for _ in range(tm.index(x, 2)):\n        y += root\n"
        "    if x < 1: y = 2 * x",
        "root = tm.sqrt(x)\n    y = 0.0\n    for i in range(3):\n        if i < tm.index(x, 2):\n"
        "            y += root\n    if x < 1: y = 2 * x",
        "w = x\n    for _ in range(2):\n        w = tm.sqrt(w * w * x)\n"
        "    w = tm.sqrt(x) + w - w\n    y = w if x > 0 else 2 * x",
    ],
)
def test_nan_where_nothing_is_taken_from_never_appears(body, device):
    k = function_from(f"@tn.kernel\ndef k(x: Scalar, y: Mutable[Scalar]):\n    {body}\n")
    x = floats(-1, 0, 4, 1)
    found = gradients(k, {"x": x}, device)["x"]
    np.testing.assert_allclose(found, [2, 2, 0.25, 0.5], rtol=1e-13)


def test_a_seed_of_nan_stays_in_its_sample(device):
    derivative = tn.vjp(drag("switch"), wrt="v")
    bar_v = np.empty(3)
    seeds = floats(1, math.nan, 1)
    derivative(
        dt=0.1, regime=integers(0, 0, 0), v=floats(1, 1, 1), bar_v_new=seeds, bar_v=bar_v,
        device=device,
    )  # fmt: skip
    assert_same(np.isnan(bar_v), np.array([False, True, False]))


# -- loops -----------------------------------------------------------------------------------------

LOOPS = {
    "counted": "for _ in range(n):\n        w = w + 0.01 * tm.sin(w * x)",
    "index": "for i in range(2, n, 3):\n        w += tm.sin(x * i) * w * 0.1",
    "down": "for i in range(n, 0, -2):\n        w = w * 0.5 + i * x * w * 0.01",
    "while": "while w < 3 and c < n:\n        w += 0.1 * x * x + 0.01\n        c += 1",
    "left": "for i in range(n):\n        w = w * 1.01 + 0.01 * x\n        if w > 2: break",
    "skipped": "for i in range(n):\n        if i % 3 == 1: continue\n        w = tm.sin(w + x)",
    "nested": "for i in range(n % 7):\n        for j in range(i):\n            w += x * tm.cos(w)",
    "two": "v = x\n    for i in range(n):\n        v, w = w * 0.9, tm.sin(v) + 0.1 * w * x",
    "fixed": "for _ in range(5000):\n        w += 0.0003 * tm.cos(w + x)",
    "branching": "for i in range(n):\n        if w > x: w = w * 0.9\n        else: w = w + x * x",
    "overwritten": "for i in range(n):\n        w = x * i",
    "dispatching": "for i in range(n):\n        w += 0.05 * tm.dispatch(i % 3, [w, x, w * x])",
}


@pytest.mark.parametrize("name", LOOPS)
def test_loops_against_central_differences(name, device):
    body = LOOPS[name]
    k = function_from(
        "@tn.kernel\ndef k(n: Index, x: Scalar, u: Scalar, y: Mutable[Scalar]):\n"
        f"    w = u\n    c = 0\n    {body}\n    y = w * w + x\n"
    )
    inputs = {
        "n": integers(0, 1, 2, 3, 5, 40, 100),
        "x": floats(0.3, 0.7, -0.6, 1.1, 0.9, 0.5, 0.2),
        "u": floats(0.35, 0.2, 0.5, 0.71, -0.3, 0.9, 1.3),
    }
    found = gradients(k, inputs, device)
    for wrt in ("x", "u"):
        numeric = central(k, inputs, wrt)
        np.testing.assert_allclose(found[wrt], numeric, rtol=2e-5, atol=1e-7)


def test_long_loops_keep_a_bounded_tape(device):
    @tn.kernel
    def k(n: Index, x: Scalar, y: Mutable[Scalar]):
        w = x
        for i in range(n):
            w = w * 0.999 + 1e-4 * tm.sin(w)
        y = w

    unit = tn.vjp(k).lower(tn.vjp(k).default_types()).plan.units[0]
    tapes = [s for s in statements(unit.body.body) if isinstance(s, LocalArray)]
    assert sum(tape.dtype.itemsize * math.prod(tape.shape) for tape in tapes) <= 2**15
    inputs = {"n": integers(3, 5000, 20_000), "x": floats(0.4, 0.4, 0.4)}
    w, slope = inputs["x"].copy(), np.ones(3)
    for i in range(20_000):
        runs = i < inputs["n"]
        slope = np.where(runs, slope * (0.999 + 1e-4 * np.cos(w)), slope)
        w = np.where(runs, w * 0.999 + 1e-4 * np.sin(w), w)
    if device != "reference":  # which takes minutes for that
        np.testing.assert_allclose(gradients(k, inputs, device)["x"], slope, rtol=1e-10)


def test_a_linear_loop_needs_no_tape():
    @tn.kernel
    def k(a: Param, x: Scalar, y: Mutable[Scalar]):
        w = x
        for _ in range(10):
            w = w * a + x
        y = w

    derivative = tn.vjp(k, wrt="x")
    unit = derivative.lower(derivative.default_types()).plan.units[0]
    assert not any(isinstance(s, LocalArray) for s in statements(unit.body.body))


def test_an_integer_param_may_bound_a_loop(device):
    @tn.kernel
    def power(n: Param, x: Scalar, y: Mutable[Scalar]):
        w = 1.0 + 0 * x
        for _ in range(n):
            w = w * x
        y = w

    x = floats(1, 2, -3)
    assert tn.vjp(power).wrt == ("x",)
    np.testing.assert_allclose(gradients(power, {"n": 4, "x": x}, device)["x"], 4 * x**3)
    assert_same(gradients(power, {"n": 0, "x": x}, device)["x"], floats(0, 0, 0))


def test_local_arrays_are_refused():
    @tn.kernel
    def k(x: Scalar, y: Mutable[Scalar]):
        t = tm.zeros(2, f64)
        t[0] = x
        y = t[0]

    derivative = tn.vjp(k)
    with pytest.raises(tn.KernelError, match=r"kernel k keeps values in a local array"):
        derivative(x=np.ones(1), bar_y=np.ones(1), bar_x=np.ones(1))


# -- policies --------------------------------------------------------------------------------------


def two_groups(first, second):
    @tn.kernel
    def k(a: Index, b: Index, v: Scalar, y: Mutable[Scalar]):
        p = tm.dispatch(a, [v * v, tm.sin(v), tm.exp(v)], policy=first)
        for _ in range(2):
            p = p * tm.dispatch(b, [v, p], policy=second, name="inner")
        y = p

    return k


def policies_of(derivative):
    unit = derivative.lower(derivative.default_types()).plan.units[0]
    return {s.name: s.policy for s in statements(unit.body.body) if isinstance(s, Dispatch)}


def test_derived_dispatches_inherit_policy_and_name():
    found = policies_of(tn.vjp(two_groups("switch", "predicated")))
    assert set(found) > {"dispatch0", "inner"}
    for name, policy in found.items():
        assert policy == ("switch" if name.startswith("dispatch0") else "predicated")


def test_a_policy_reaches_every_dispatch_that_comes_from_a_group():
    k = two_groups("auto", "auto")
    by_name = policies_of(tn.vjp(k, policy={"inner": "predicated"}))
    assert {p for n, p in by_name.items() if n.startswith("inner")} == {"predicated"}
    assert {p for n, p in by_name.items() if n.startswith("dispatch0")} == {"auto"}
    assert set(policies_of(tn.vjp(k, policy="switch")).values()) == {"switch"}
    both = tn.vjp(k, policy={"inner": "switch", "dispatch0": "predicated"})
    for name, policy in policies_of(both).items():
        assert policy == ("switch" if name.startswith("inner") else "predicated")


@pytest.mark.parametrize("make", [two_groups, lambda *p: drag(p[0]), lambda *p: in_a_loop(p[0])])
def test_policies_give_the_same_bits(make, device):
    random = np.random.default_rng(1)
    found = {}
    for own in POLICIES:
        for derived in (None, *POLICIES):
            k = make(own, own)
            specs = {s.name: s for s in tn.vjp(k)._names.inputs}
            random = np.random.default_rng(1)
            inputs = {
                name: 0.1
                if spec.role == "param"
                else random.integers(-2, 5, 37)
                if spec.dtype
                else random.normal(size=37)
                for name, spec in specs.items()
            }
            found[own, derived] = gradients(k, inputs, device, policy=derived)
    first = found["switch", None]
    for other in found.values():
        for name, array in first.items():
            assert_same(other[name], array)


def test_a_value_does_not_depend_on_its_batch(policy):
    derivative = tn.vjp(drag(policy), wrt="v")
    random = np.random.default_rng(2)
    v, regime, seed = random.normal(size=101), random.integers(0, 3, 101), random.normal(size=101)
    whole, single = np.empty(101), np.empty(101)
    derivative(dt=0.1, regime=regime, v=v, bar_v_new=seed, bar_v=whole)
    for n in range(101):
        part = slice(n, n + 1)
        derivative(dt=0.1, regime=regime[part], v=v[part], bar_v_new=seed[part], bar_v=single[part])
    assert_same(single, whole)


# -- second order ----------------------------------------------------------------------------------


def test_second_order_by_hand(policy, device):
    first = tn.vjp(drag(policy), wrt="v")
    second = tn.vjp(first)
    assert list(second.__signature__.parameters) == [
        *("dt", "regime", "v", "bar_v_new", "bar2_bar_v", "bar2_dt", "bar2_v", "bar2_bar_v_new")
    ]
    assert second.__name__ == "drag_vjp_vjp"
    v, dt, seed = floats(0.5, -0.6, 0.7), 0.1, floats(1, 2, 3)
    found = {name: np.empty(3) for name in ("bar2_dt", "bar2_v", "bar2_bar_v_new")}
    second(
        dt=dt, regime=integers(0, 1, 2), v=v, bar_v_new=seed, bar2_bar_v=np.ones(3), **found,
        device=device,
    )  # fmt: skip
    e = np.exp(-0.49)
    slope = np.array([-0.1, -0.8 * 0.6, -2 * e * (1 - 2 * 0.49)])
    curve = np.array([0, 0.8, -2 * e * (-6 * 0.7 + 4 * 0.7**3)])
    np.testing.assert_allclose(found["bar2_dt"], seed * slope, rtol=1e-13)
    np.testing.assert_allclose(found["bar2_bar_v_new"], 1 + dt * slope, rtol=1e-13)
    np.testing.assert_allclose(found["bar2_v"], seed * dt * curve, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", sorted(LOOPS.keys() - {"fixed"}))
@pytest.mark.parametrize("device", ["reference"])
def test_second_order_through_loops(name, device):
    check_second_order(LOOPS[name], device)


@pytest.mark.parametrize("name", ["counted", "while"])
def test_second_order_through_compiled_loops(name, device):
    check_second_order(LOOPS[name], device)


def check_second_order(loop, device):
    k = function_from(
        "@tn.kernel\ndef k(n: Index, x: Scalar, u: Scalar, y: Mutable[Scalar]):\n"
        f"    w = u\n    c = 0\n    {loop}\n    y = w * w + x\n"
    )
    first = tn.vjp(k, wrt="x")
    inputs = {
        "n": integers(0, 1, 4, 9),
        "x": floats(0.3, 0.7, -0.6, 0.5),
        "u": floats(0.35, 0.2, 0.5, 0.9),
        "bar_y": floats(1, 2, -1, 0.5),
    }
    found = gradients(first, inputs, device)
    for wrt in ("x", "u", "bar_y"):
        numeric = central(first, inputs, wrt)
        np.testing.assert_allclose(found[wrt], numeric, rtol=1e-5, atol=1e-6)


def test_second_order_of_tables_and_masks(device):
    @tn.kernel
    def k(done: Terminated, t: NDArray[f64, 1], i: Index, x: Scalar, y: Mutable[Scalar]):
        y = t[i] * t[i] * x * x

    first = tn.vjp(k, wrt=("t", "x"))
    second = tn.vjp(first, wrt=("t", "x"))
    arguments = {
        "done": np.array([False, True, False]),
        "t": floats(2, 3),
        "i": integers(0, 1, 1),
        "x": floats(5, 6, 7),
        "bar_y": np.ones(3),
        "bar2_bar_t": floats(1, 1),
        "bar2_bar_x": np.zeros(3),
    }
    bar_t, bar_x = np.zeros(2), np.full(3, 9.0)
    second(**arguments, bar2_t=bar_t, bar2_x=bar_x, device=device)
    assert_same(bar_t, floats(2 * 25, 2 * 49))
    assert_same(bar_x, floats(4 * 2 * 5, 9, 4 * 3 * 7))


def test_tangents_by_differentiating_twice_at_seeds_of_zero(device):
    @tn.kernel
    def k(x: Scalar, y: Mutable[Scalar]):
        y = tm.select(x > 1, tm.exp(x), tm.sqrt(x))

    twice = tn.vjp(tn.vjp(k, wrt="x"), wrt="bar_y")
    tangent = np.empty(3)
    x = floats(4, 0.25, 0)
    twice(x=x, bar_y=np.zeros(3), bar2_bar_x=floats(1, 1, 0), bar2_bar_y=tangent, device=device)
    np.testing.assert_allclose(tangent[:2], [math.exp(4), 1.0], rtol=1e-14)


def test_third_order(device):
    @tn.kernel
    def k(x: Scalar, y: Mutable[Scalar]):
        w = x
        for _ in range(2):
            w = w * x
        y = w

    third = tn.vjp(tn.vjp(tn.vjp(k, wrt="x"), wrt="x"), wrt="x")
    names = list(third.__signature__.parameters)
    x = floats(2, -3)
    arrays = {name: np.ones(2) for name in names[1:]}
    third(x=x, **arrays, device=device)
    np.testing.assert_allclose(arrays[names[-1]], [6, 6], rtol=1e-13)


# -- an ordinary kernel ----------------------------------------------------------------------------

module_drag = drag("predicated")
module_drag_vjp = tn.vjp(module_drag, wrt="v")


def test_it_is_a_kernel():
    derivative = tn.vjp(drag("switch"), wrt="v")
    assert isinstance(derivative, tn.Kernel)
    assert derivative.__name__ == "drag_vjp"
    assert repr(derivative).startswith("<turnout.kernel drag.<locals>.drag_vjp(dt: Param, ")
    assert "regime: Index, v: Scalar, bar_v_new: Scalar, bar_v: Mutable[Scalar])" in repr(
        derivative
    )


def test_repeated_calls_and_errors_are_those_of_kernels():
    derivative = tn.vjp(drag("switch"), wrt="v")
    arguments = {"dt": 0.1, "regime": integers(0, 1), "v": floats(1, 2), "bar_v_new": np.ones(2)}
    for _ in range(4):
        bar_v = np.zeros(2)
        derivative(**arguments, bar_v=bar_v)
        assert_same(bar_v, floats(0.99, 0.84))
        with pytest.raises(tn.CallError, match="unknown argument 'v_new'"):
            derivative(**arguments, bar_v=bar_v, v_new=bar_v)
        with pytest.raises(tn.CallError, match="argument 'bar_v' is missing"):
            derivative(**arguments)
        with pytest.raises(tn.CallError, match="positional arguments given, 0 allowed"):
            derivative(0.1, integers(0, 1))


def test_pickles_and_copies():
    derivative = tn.vjp(drag("switch"), wrt="v", policy="predicated")
    assert copy.deepcopy(derivative) is derivative
    text = pickle.dumps(derivative)
    made = pickle.loads(text)
    assert isinstance(made, Derivative)
    assert pickle.loads(text) is made
    assert made.definition.digest == derivative.definition.digest
    assert made.definition.digest != tn.vjp(drag("switch"), wrt="v").definition.digest
    bar_v = np.zeros(2)
    made(dt=0.1, regime=integers(0, 1), v=floats(1, 2), bar_v_new=np.ones(2), bar_v=bar_v)
    assert_same(bar_v, floats(0.99, 0.84))


def test_constants_from_outside():
    factor = 2.0

    @tn.kernel
    def scaled(x: Scalar, y: Mutable[Scalar]):
        y = factor * x

    other = tn.vjp(scaled).with_constants(factor=10.0)
    bar_x = np.empty(2)
    other(x=np.ones(2), bar_y=np.ones(2), bar_x=bar_x)
    assert_same(bar_x, floats(10, 10))


def test_show(tmp_path):
    file = tmp_path / "gradient_example.py"
    file.write_text(
        "import turnout as tn\nfrom turnout import Mutable, Scalar\n\n\n@tn.kernel\n"
        "def square(x: Scalar, y: Mutable[Scalar]):\n    y = x * x\n\n\n"
        "square_vjp = tn.vjp(square)\n"
    )
    result = CliRunner().invoke(main, ["show", f"{file}:square_vjp", "--device", "reference"])
    assert result.exit_code == 0, result.output
    assert "square_vjp" in result.output
    assert "bar_x" in result.output


def test_an_implementation_of_an_operation():
    from turnout.written import kernel_accesses

    derivative = tn.vjp(drag("switch"))
    assert kernel_accesses(derivative) == {"bar_dt": "output", "bar_v": "output"}


def test_indices_are_checked_where_the_primal_checks_them(device):
    @tn.kernel(debug=True)
    def k(t: NDArray[f64, 1], i: Index, y: Mutable[Scalar]):
        y = t[i]

    with pytest.raises(tn.OutOfBoundsError, match="index 5 is out of bounds"):
        tn.vjp(k)(t=np.ones(3), i=integers(5), bar_y=np.ones(1), bar_t=np.ones(3), device=device)


def test_nothing_that_is_not_needed_is_computed():
    derivative = tn.vjp(drag("switch"), wrt="v")
    unit = derivative.lower(derivative.default_types()).plan.units[0]
    inside = list(statements(unit.body.body))
    assert sum(isinstance(s, Dispatch) for s in inside) == 1
    assert {s.array for s in inside if isinstance(s, Load)} == {"v", "regime", "bar_v_new"}
    assert "drag_vjp" in format_unit(unit)


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"policy": {"dispatch3": "switch"}},
            "vjp(policy=...): 'dispatch3' is not a dispatch group of drag; its groups are "
            "['dispatch0']",
        ),
        (
            {"policy": {"dispatch0": "fast"}},
            "vjp(policy=...): unknown policy 'fast' for 'dispatch0'; the policies are 'switch', "
            "'predicated', 'segmented', 'auto'",
        ),
        (
            {"policy": "fast"},
            "vjp(policy=...): unknown policy 'fast' for 'dispatch0'; the policies are 'switch', "
            "'predicated', 'segmented', 'auto'",
        ),
        (
            {"policy": 3},
            "vjp(policy=...): give a policy or a dictionary of them by dispatch group, not int",
        ),
        (
            {"wrt": ("q",)},
            "vjp(wrt=...): 'q' is not an input of drag; its differentiable inputs are ['dt', 'v']",
        ),
        (
            {"wrt": "regime"},
            "vjp(wrt=...): 'regime' of drag does not hold floats and carries no derivative; its "
            "differentiable inputs are ['dt', 'v']",
        ),
        (
            {"wrt": ("v", "v_new")},
            "vjp(wrt=...): 'v_new' is an output of drag that it does not read; its differentiable "
            "inputs are ['dt', 'v']",
        ),
        ({"wrt": ()}, "vjp(wrt=()): name at least one of the inputs of drag, ['dt', 'v']"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(tn.KernelError) as error:
        tn.vjp(drag("auto"), **options)
    assert str(error.value) == message


def test_wrong_kernels():
    @tn.kernel
    def array_form(a: NDArray[f64, 1]) -> None:
        for i in range(a.shape[0]):
            a[i] = 0.0

    @tn.kernel
    def no_input(n: Index, y: Mutable[Scalar]):
        y = f64(n)

    @tn.kernel
    def no_output(x: Scalar, y: Mutable[Index]):
        y = tm.index(x, 3)

    for wrong, message in (
        (len, r"vjp takes a kernel \(turnout.kernel\), not builtin_function_or_method"),
        (array_form, "array_form is of the array form"),
        (no_input, "no_input has no input of floats"),
        (no_output, "no_output has no output of floats"),
    ):
        with pytest.raises(tn.KernelError, match=message):
            tn.vjp(wrong)


def test_numbers_that_are_neither_floats_nor_ints_need_a_type(device):
    def made(annotation):
        return function_from(
            f"@tn.kernel\ndef k(n: {annotation}, r: Index, x: Scalar, y: Mutable[Scalar]):\n"
            "    m = tm.dispatch(r, [n, u16(3)])\n    y = x * m\n"
        )

    with pytest.raises(tn.KernelError, match="all branches of a dispatch must be of one") as error:
        tn.vjp(made("Param[i32]"))
    assert not hasattr(error.value, "__notes__")
    x = floats(1, 2)
    found = gradients(made("Param[u16]"), {"n": 5, "r": integers(0, 1), "x": x}, device)
    assert_same(found["x"], floats(5, 3))


def test_the_order_of_wrt_is_that_of_the_parameters():
    assert tn.vjp(drag("switch"), wrt=("v", "dt", "v")).wrt == ("dt", "v")
    assert tn.vjp(drag("switch")).wrt == ("dt", "v")


def test_names_that_are_taken_move_all_names_up():
    @tn.kernel
    def k(x: Scalar, bar_x: Scalar, y: Mutable[Scalar]):
        y = x * bar_x

    assert list(tn.vjp(k, wrt="x").__signature__.parameters) == ["x", "bar_x", "bar2_y", "bar2_x"]
