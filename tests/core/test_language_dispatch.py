"""``tm.dispatch``: one of K formulas per sample, the same bits under every policy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from language_support import (
    assert_same,
    floats,
    function_from,
    integers,
    kernel_error,
    lowered,
)

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, NDArray, Param, Scalar, Vector, i8, i64, u8, u32, u64
from turnout.ir import Dispatch, statements

POLICIES = ("switch", "predicated", "auto")


@pytest.fixture(params=POLICIES)
def policy(request):
    return request.param


# -- vectors ---------------------------------------------------------------------------------------

VECTORS = {
    vector["name"]: vector
    for vector in json.loads(
        (Path(__file__).parent / "data" / "dispatch_vectors.json").read_text()
    )["vectors"]
}


def drag(policy):
    @tn.kernel
    def k(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
        a = tm.dispatch(
            regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)], policy=policy
        )
        v_new = v + dt * a

    return k


def two_groups(policy):
    @tn.kernel
    def k(a: Index, b: Index, v: Scalar, y: Mutable[Scalar], z: Mutable[Scalar]):
        p = tm.dispatch(a, [v, 2 * v, 3 * v], policy=policy)
        q = tm.dispatch(b, [v, -v], policy=policy)
        y = q * v
        z = p + 1

    return k


def in_a_loop(policy):
    @tn.kernel
    def k(dt: Param, r: Index, v: Scalar, y: Mutable[Scalar]):
        w = v
        for _ in range(4):
            w += dt * tm.dispatch(r, [-0.1 * w, -0.4 * w * abs(w)], policy=policy)
        y = w

    return k


def vectors(policy):
    @tn.kernel
    def k(g: Vector[3], m: Index, x: Mutable[Vector[3]]):
        x = tm.dispatch(m, [2 * g, tm.cross(g, (1.0, 2.0, 3.0)), -g * 0.25], policy=policy)

    return k


def uniform(policy):
    @tn.kernel
    def k(s: Param, v: Scalar, y: Mutable[Scalar]):
        y = tm.dispatch(s, [v, 2 * v, 3 * v], policy=policy)

    return k


def from_float(policy):
    @tn.kernel
    def k(x: Scalar, v: Scalar, y: Mutable[Scalar]):
        y = tm.dispatch(tm.index(x, 3), [v, 10 * v, 100 * v], policy=policy)

    return k


KERNELS = {
    "two-groups": two_groups,
    "loop": in_a_loop,
    "vector": vectors,
    "uniform-selector": uniform,
    "float-to-class": from_float,
}


def argument(value, float_type):
    if not isinstance(value, list):
        return value
    numbers = np.array(value, object)
    is_integer = numbers.size > 0 and all(type(item) is int for item in numbers.ravel())
    return numbers.astype(np.int64 if is_integer else float_type)


@pytest.mark.parametrize("name", VECTORS)
def test_recorded_vectors(name, policy, device):
    vector = VECTORS[name]
    float_type = np.float32 if name.endswith("float32") else np.float64
    kernel = KERNELS.get(name, drag)(policy)
    arguments = {key: argument(value, float_type) for key, value in vector["inputs"].items()}
    for key in ("regime", "r", "a", "b", "m"):
        if key in arguments:
            arguments[key] = arguments[key].astype(np.int64)
    wanted = {
        key: np.array(value, object).astype(float_type) for key, value in vector["expected"].items()
    }
    outputs = {key: np.full_like(value, 99) for key, value in wanted.items()}
    kernel(**arguments, **outputs, device=device)
    for key, value in wanted.items():
        np.testing.assert_allclose(outputs[key], value, **vector["tolerance"])


# -- classes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [i8, u8, tn.i32, u32, i64, u64], ids=str)
def test_the_class_is_clamped_on_the_full_integer(dtype, policy, device):
    function = function_from(
        f"def k(c: Index[{dtype}], y: Mutable[Index]):\n"
        f"    y = tm.dispatch(c, [10, 20, 30], policy={policy!r})\n"
    )
    values = sorted({dtype.minimum, *range(max(dtype.minimum, -2), 5), 2 + 2**8, 2**32, 2**63})
    c = np.array([v for v in (*values, dtype.maximum) if v <= dtype.maximum], dtype.dtype)
    y = np.zeros(len(c), np.int64)
    tn.kernel(function)(c, y, device=device)
    assert_same(y, integers(*(10 * (1 + min(max(int(v), 0), 2)) for v in c)))


def test_more_branches_than_a_narrow_class_can_name(policy, device):
    count = 300
    function = function_from(
        "def k(c: Index[i8], x: Scalar, y: Mutable[Scalar]):\n"
        f"    y = tm.dispatch(c, [{', '.join(f'x + {n}' for n in range(count))}], {policy!r})\n"
    )
    c, y = np.array([-128, -1, 0, 5, 127], np.int8), np.zeros(5)
    tn.kernel(function)(c, np.ones(5), y, device=device)
    assert_same(y, floats(1, 1, 1, 6, 128))


def test_classes_from_expressions(policy, device):
    @tn.kernel
    def k(n: Index, x: Scalar, y: Mutable[Scalar]):
        y = tm.dispatch(n % 3 + (x > 1), [x, x + 10, x + 20, x + 30], policy=policy)
        y += tm.dispatch(tm.sample_index(), [100, 200], policy=policy)
        y += tm.dispatch(1, [1000, x, 3000], policy=policy)

    n, x, y = np.arange(-3, 3), floats(0, 2, 0, 2, 0, 2), np.zeros(6)
    k(n, x, y, device=device)
    assert_same(y, x + 10 * (n % 3 + (x > 1)) + floats(100, 200, 200, 200, 200, 200) + x)


# -- branches --------------------------------------------------------------------------------------


def test_nested_dispatches_and_dispatches_as_classes(policy, device):
    @tn.kernel
    def k(a: Index, b: Index, x: Scalar, y: Mutable[Scalar]):
        inner = tm.dispatch(b, [0, 1, 1], policy=policy)
        y = tm.dispatch(
            tm.dispatch(a, [inner, 2, inner + 1], policy=policy),
            [
                x,
                tm.dispatch(b, [x * 2, tm.sqrt(x), 7], policy=policy),
                tm.dispatch(a + b, [-x, 1 / x], policy=policy) + 1,
            ],
            policy=policy,
        )

    a, b = (grid.ravel() for grid in np.meshgrid(np.arange(-1, 4), np.arange(-1, 4)))
    x, y = np.linspace(0.5, 3, 25), np.zeros(25)
    k(a, b, x, y, device=device)
    ac, bc = np.clip(a, 0, 2), np.clip(b, 0, 2)
    inner = np.choose(bc, [0, 1, 1])
    outer = np.choose(ac, [inner, np.full(25, 2), inner + 1])
    sums = np.choose(np.clip(a + b, 0, 1), [-x, 1 / x])
    assert_same(y, np.choose(outer, [x, np.choose(bc, [x * 2, np.sqrt(x), 7 + 0 * x]), sums + 1]))


def test_what_a_branch_not_taken_would_give_never_shows(policy, device):
    @tn.kernel
    def k(c: Index, x: Scalar, n: Index, y: Mutable[Scalar], m: Mutable[Index]):
        y = tm.dispatch(c, [tm.sqrt(x), 1 / x, tm.log(-x), x], policy=policy)
        m = tm.dispatch(c, [n // 0 + 1, n % (n - n), n, 5], policy=policy)

    c = integers(0, 1, 2, 3, 3, 3)
    x = floats(4, 0, -1, -7, np.nan, np.inf)
    y, m = np.zeros(6), np.zeros(6, np.int64)
    k(c, x, np.arange(6), y, m, device=device)
    assert_same(y, floats(2, np.inf, 0, -7, np.nan, np.inf))
    assert_same(m, integers(1, 0, 2, 5, 5, 5))


def test_a_table_is_read_only_where_the_class_says_so(policy, device):
    @tn.kernel
    def k(c: Index, i: Index, table: NDArray[tn.f64, 1], y: Mutable[Scalar]):
        y = tm.dispatch(c, [0.0, table[i] * 2, table[i] + 1], policy=policy)

    far = 2**40
    c, i, y = integers(0, 1, 2, 0), integers(far, 1, 2, -far), np.zeros(4)
    k(c, i, floats(5, 6, 7), y, device=device)
    assert_same(y, floats(0, 12, 8, 0))


def test_loops_and_helpers_in_branches(policy, device):
    @tn.func
    def root(x, steps):
        guess = x
        for _ in range(steps):
            if guess == 0:
                return guess
            guess = 0.5 * (guess + x / guess)
        return guess

    @tn.kernel
    def k(c: Index, x: Scalar, n: Index, y: Mutable[Scalar]):
        y = tm.dispatch(c, [x, root(x, n), root(x + 1, 5)], policy=policy)

    c, x, n, y = integers(0, 1, 2, 1), floats(2, 9, 3, 0), integers(10**9, 6, 10**9, 3), np.zeros(4)
    k(c, x, n, y, device=device)
    np.testing.assert_allclose(y, [2, 3, 2, 0], rtol=1e-9)


def test_python_numbers_take_the_type_of_the_other_branches(policy, device):
    @tn.kernel
    def k(c: Index, x: Scalar, y: Mutable[Scalar]) -> Index:
        y = tm.dispatch(c, [1, x, 2.5, True * 3], policy=policy)
        return tm.dispatch(c, [1, 2], policy=policy)

    c, x = integers(0, 1, 2, 3), np.array([9, 9, 9, 9], np.float32)
    y = np.zeros(4, np.float32)
    assert_same(k(c, x, y, device=device), integers(1, 2, 2, 2))
    assert_same(y, np.array([1, 9, 2.5, 3], np.float32))


def test_vector_branches_may_be_tuples(policy, device):
    @tn.kernel
    def k(c: Index, v: Vector[2], w: Mutable[Vector[2]]):
        w = tm.dispatch(c, [v, (v[1], v[0]), (0, 1)], policy=policy)

    c, v, w = integers(0, 1, 2), np.arange(6.0).reshape(2, 3), np.zeros((2, 3))
    k(c, v, w, device=device)
    assert_same(w, np.array([[0, 4, 0], [3, 1, 1.0]]))


def test_dispatch_in_the_array_form(policy, device):
    @tn.kernel
    def k(c: NDArray[i64, 1], x: NDArray[tn.f64, 1], y: NDArray[tn.f64, 1]):
        for i in range(len(c)):
            y[i] = tm.dispatch(c[i], [x[i], x[i - 1], x[0] * 2], policy=policy)
        y[0] += tm.dispatch(c[1], [10, 20, 30], policy=policy)

    c, x, y = integers(0, 1, 2, 1), floats(1, 2, 3, 4), np.zeros(4)
    k(c, x, y, device=device)
    assert_same(y, floats(1 + 20, 1, 2, 3))


def test_policies_agree_to_the_bit(device):
    generator = np.random.default_rng(3)
    n = 5003
    regime, v = generator.integers(-2, 5, n), generator.normal(size=n) * 3
    v[:3] = np.nan, np.inf, -0.0
    results = []
    for policy in POLICIES:
        out = np.zeros(n)
        drag(policy)(0.25, regime, v, out, device=device)
        results.append(out)
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


def test_an_assignment_in_a_branch_is_refused():
    function = function_from(
        "def k(c: Index, x: Scalar, y: Mutable[Scalar]):\n    y = tm.dispatch(c, [(t := x), x])\n"
    )
    error = kernel_error(function, np.zeros(1, np.int64), np.zeros(1), np.zeros(1))
    assert "a branch of a dispatch cannot assign a name; assign it before" in str(error)


# -- names -----------------------------------------------------------------------------------------


def group_names(kernel):
    (unit,) = lowered(kernel).plan.units
    return [s.name for s in statements(unit.body.body) if isinstance(s, Dispatch)]


def test_groups_are_named_in_source_order_or_as_asked():
    @tn.func
    def helper(c, x):
        return tm.dispatch(c, [x, -x])

    @tn.kernel
    def k(a: Index, x: Scalar, y: Mutable[Scalar]):
        t = 0.0
        s = 0
        for i in range(3):
            s = s + x * i
            t = t + tm.dispatch(a, [s, x])
        y = tm.dispatch(a, [tm.dispatch(a, [x, 1]), 2, t], name="outer") + helper(a, x)

    assert group_names(k) == ["dispatch0", "outer", "dispatch2", "dispatch3"]


def test_an_unused_dispatch_disappears():
    @tn.kernel
    def k(a: Index, x: Scalar, y: Mutable[Scalar]):
        unused = tm.dispatch(a, [x, -x])
        y = tm.dispatch(a, [x, 2 * x])

    assert group_names(k) == ["dispatch1"]


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "tm.dispatch(c, {0: x, 1: x})",
            "branches must be a list or tuple written here, not a dict",
        ),
        ("tm.dispatch(c, x)", "branches must be a list or tuple written here, not a name"),
        ("tm.dispatch(c, [v for v in (x, x)])", "written here, not a comprehension"),
        ("tm.dispatch(c, [x])", "dispatch needs at least two branches, 1 given"),
        ("tm.dispatch(c, [])", "dispatch needs at least two branches, 0 given"),
        ("tm.dispatch(c, [*(x, x)])", "write the branches one by one, without *"),
        ("tm.dispatch(x, [x, x])", "the class of a dispatch must be an integer, not f64; use"),
        ("tm.dispatch(0.5, [x, x])", "the class of a dispatch must be an integer, not a Python"),
        ("tm.dispatch(x > 0, [x, x])", "the class of a dispatch must be an integer, not bool_"),
        ("tm.dispatch(tm.vector(x, x), [x, x])", "a number is needed here, not a vector of"),
        ("tm.dispatch(c, [x, c])", "must be of one type; given: a scalar of type f64, a scalar"),
        ("tm.dispatch(c, [x, (x, x)])", "all branches of a dispatch must be of one type"),
        ("tm.dispatch(c, [x, None])", "a branch must be a number or vector: NoneType None"),
        ("tm.dispatch(c, [x, 'a'])", "a branch must be a number or vector: str 'a'"),
        ("tm.dispatch(c, [x, x], policy='fast')", "unknown policy 'fast'; allowed: switch, pred"),
        ("tm.dispatch(c, [x, x], 'fast')", "unknown policy 'fast'; allowed: switch, predicated"),
        ("tm.dispatch(c, [x, x], policy=None)", "policy must be a string, not NoneType None"),
        ("tm.dispatch(c, [x, x], name='a b')", "the name of a dispatch must be an identifier"),
        ("tm.dispatch(c, [x, x], name=3)", "name must be a string, not the number 3"),
        (
            "tm.dispatch(c)",
            "write tm.dispatch(kind, branches, policy=..., name=...), each argument once",
        ),
        (
            "tm.dispatch(c, [x, x], 'switch', 'g', 1)",
            "write tm.dispatch(kind, branches, policy=..., name=...), each argument once",
        ),
        (
            "tm.dispatch(c, [x, x], polcy='switch')",
            "write tm.dispatch(kind, branches, policy=..., name=...), each argument once",
        ),
        (
            "tm.dispatch(c, [x, x], kind=c)",
            "write tm.dispatch(kind, branches, policy=..., name=...), each argument once",
        ),
        (
            "tm.dispatch(c, [x, x], **{})",
            "write tm.dispatch(kind, branches, policy=..., name=...), each argument once",
        ),
        (
            "tm.dispatch(*(c, [x, x]))",
            "write tm.dispatch(kind, branches, policy=..., name=...), each argument once",
        ),
        (
            "tm.dispatch(c, [x, x], name='g') + tm.dispatch(c, [x, x], name='g')",
            "there already is a dispatch called 'g' in this kernel",
        ),
        (
            "tm.dispatch(c, [x, x], name='dispatch1') + tm.dispatch(c, [x, x])",
            "there already is a dispatch called 'dispatch1'",
        ),
    ],
)
def test_errors_of_dispatch(call, message):
    function = function_from(f"def k(c: Index, x: Scalar, y: Mutable[Scalar]):\n    y = {call}\n")
    error = kernel_error(function, np.zeros(1, np.int64), np.zeros(1), np.zeros(1))
    assert message in str(error)
    assert error.location.line == 2
    assert error.location.column >= len("    y = ") + 1
