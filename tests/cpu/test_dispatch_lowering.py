"""Predicated dispatches in vectors: costly arms are skipped, or wait, and no bit changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit_builder import UnitBuilder

import turnout as tn
import turnout.math as tm
import turnout_cpu
from turnout import Index, Mutable, NDArray, Param, Scalar, f64, i64
from turnout.plugin import Options, ir, statements
from turnout_cpu import emit, predication, waiting
from turnout_cpu.lanes import Form, Forms

LANES = [4, 8, 16, 32]
LENGTHS = [*range(36), 63, 64, 65, 100, 1000]
Arm = Callable[[], ir.Value]


# ---- units ---------------------------------------------------------------------------------------


def dispatch(b: UnitBuilder, selector: ir.Value, arms: Sequence[Arm], name: str = "d") -> ir.Value:
    regions = tuple(b.region((), arm) for arm in arms)
    result = b.value(regions[0].yields[0].dtype)
    b.add(ir.Dispatch((result,), selector, regions, "predicated", name))
    return result


def dispatches(unit: ir.Unit) -> list[ir.Dispatch]:
    return [s for s in statements(unit.body.body) if isinstance(s, ir.Dispatch)]


def as_switches(region: ir.Region) -> ir.Region:
    """The region with a `Switch` for every dispatch."""

    def changed(statement: ir.Statement, inner: ir.Statement) -> list[ir.Statement]:
        if isinstance(inner, ir.Dispatch):
            return [ir.Switch(inner.results, inner.selector, inner.arms)]
        return [inner]

    return ir.rewritten(region, changed)


def with_body(unit: ir.Unit, body: ir.Region) -> ir.Unit:
    changed = ir.Unit(unit.name, unit.parameters, unit.prologue, unit.extents, body, unit.fast_math)
    ir.verify(changed)
    return changed


def switch_form(unit: ir.Unit) -> ir.Unit:
    return with_body(unit, as_switches(unit.body))


def predicated_form(unit: ir.Unit) -> ir.Unit:
    """Lower dispatch by dispatch, as the core asks for it; what is left becomes a switch."""
    for site in dispatches(unit):
        lowered = predication.lowered(unit, site)
        if lowered is not None:
            ir.verify(lowered)
            return predicated_form(lowered)
    return switch_form(unit)


def costly(b: UnitBuilder, x: ir.Value, number: int) -> ir.Value:
    """Two math functions, so that lanes wait for it."""
    scaled = b.compute("multiply", x, 1.0 / (number + 1))
    return b.compute("add", b.compute("exp", scaled), b.compute("sin", scaled))


def many_ways(classes: int, selector: ir.DType = ir.i64) -> ir.Unit:
    """Every third arm is cheap, the others are costly."""
    b = UnitBuilder(f"ways_{classes}_{selector}")
    b.array("regime", selector)
    b.array("x", ir.f64)
    b.array("out", ir.f64, written=True)
    (i,) = b.space("x")
    regime, x = b.load("regime", selector, i), b.load("x", ir.f64, i)

    def arm(number: int) -> Arm:
        if number % 3 == 0:
            return lambda: b.compute("multiply", x, float(number + 1))
        return lambda: costly(b, x, number)

    value = dispatch(b, regime, [arm(number) for number in range(classes)])
    b.store("out", b.compute("add", value, x), i)
    return b.unit()


@pytest.fixture(scope="module")
def in_lanes(device: Any) -> Callable[..., Any]:
    """Compile a unit in so many explicit lanes and load it."""

    def in_lanes(unit: ir.Unit, lanes: int) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(emit, "explicit_lanes", lambda *_: lanes)
            binary = turnout_cpu.turnout_compile(unit, device.target, Options())
        return turnout_cpu.turnout_launch(binary, unit)

    return in_lanes


@pytest.fixture(scope="module")
def scalar(load: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a unit without any vectors and load it."""
    return lambda unit: load(unit, level=1)


def same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """NaN equals NaN, whatever its sign; zeros differ by theirs."""
    np.testing.assert_array_equal(found, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[known]), np.signbit(expected[known]))


def waits(unit: ir.Unit, lanes: int = 16) -> list[int]:
    return [most for _, most in waiting.waiting_branches(unit, Forms(unit), lanes)]


# ---- the lowering --------------------------------------------------------------------------------


def test_costly_arms_get_a_condition_and_cheap_ones_are_evaluated_for_all():
    unit = predicated_form(many_ways(4))
    body = unit.body.body
    branches = [s for s in body if isinstance(s, ir.If)]
    assert not dispatches(unit)
    assert not any(isinstance(s, ir.Switch) for s in body)
    assert [sum(getattr(s, "operation", "") == "exp" for s in b.then.body) for b in branches] == [
        1,
        1,
    ]
    assert all([c.value for c in b.otherwise.body] == [0.0] for b in branches)
    assert sum(getattr(s, "operation", "") == "select" for s in body) == 3
    assert waits(unit) == [2, 2]


def test_what_the_core_lowers_as_well_is_left_to_it():
    b = UnitBuilder("cheap")
    b.array("x", ir.f64)
    (i,) = b.space("x")
    x = b.load("x", ir.f64, i)
    number = b.cast(ir.i64, x)
    arms = [lambda: b.compute("negative", x), lambda: b.compute("abs", x)]
    dispatch(b, number, arms)
    dispatch(b, number, [lambda: costly(b, x, 0)])
    unit = b.unit()
    for site in dispatches(unit):
        assert predication.lowered(unit, site) is None


def test_arms_that_a_narrow_selector_cannot_reach_are_left_out():
    unit = predicated_form(many_ways(300, ir.i8))
    assert sum(isinstance(s, ir.If) for s in unit.body.body) == sum(k % 3 != 0 for k in range(128))


def test_only_what_comes_before_any_store_may_wait():
    def unit(*, stores_first: bool) -> ir.Unit:
        b = UnitBuilder("stores")
        b.array("x", ir.f64)
        b.array("out", ir.f64, 2, written=True)
        (i,) = b.space("x")
        x = b.load("x", ir.f64, i)
        if stores_first:
            b.store("out", x, i, 0)
        found = b.if_(
            b.compute("greater", x, 1.0), lambda: costly(b, x, 0), lambda: b.constant(ir.f64, 0)
        )
        b.store("out", found, i, 1)
        return b.unit()

    assert waits(unit(stores_first=False)) == [2]
    assert waits(unit(stores_first=True)) == []


def test_what_does_not_wait():
    def unit(space: Callable[[UnitBuilder], Any], limit: Any, otherwise: Any) -> ir.Unit:
        b = UnitBuilder("other")
        b.array("x", ir.f64, 2)
        b.array("out", ir.f64, 2, written=True)
        bound = b.scalar("bound", ir.f64)
        i, j = space(b)
        x = b.load("x", ir.f64, i, j)
        condition = b.compute("greater", x if limit is None else bound, 1.0)
        value = b.if_(condition, lambda: costly(b, x, 0), lambda: otherwise(b, x))
        b.store("out", value, i, j)
        return b.unit()

    def rows(b: UnitBuilder) -> Any:
        return (*b.space("x"), b.constant(ir.i64, 0))

    def unchanged(b: UnitBuilder, x: ir.Value) -> ir.Value:
        return x

    assert waits(unit(rows, None, unchanged)) == [2]
    assert waits(unit(lambda b: b.space("x", 0, 1), None, unchanged)) == []
    assert waits(unit(rows, "the same for all", unchanged)) == []
    assert waits(unit(rows, None, lambda b, x: costly(b, x, 1))) == []
    assert waits(unit(rows, None, lambda b, x: b.compute("negative", x))) == []


def test_how_many_lanes_wait_follows_from_what_it_costs():
    def unit(functions: int) -> ir.Unit:
        b = UnitBuilder("costs")
        b.array("x", ir.f64)
        b.array("out", ir.f64, written=True)
        (i,) = b.space("x")
        x = b.load("x", ir.f64, i)

        def arm() -> ir.Value:
            value = x
            for _ in range(functions):
                value = b.compute("tanh", value)
            return value

        b.store("out", b.if_(b.compute("less", x, 0.5), arm, lambda: x), i)
        return b.unit()

    assert [waits(unit(functions)) for functions in (1, 2, 3, 6, 50)] == [[], [2], [4], [8], [8]]
    assert waits(unit(50), lanes=4) == [2]


def test_lanes_wait_in_code_for_this_machine(device, vector_math):
    found = turnout_cpu.turnout_compile(
        predicated_form(many_ways(3)), device.target, Options(keep_text=True)
    ).metadata
    assert found["loop:space"].endswith("(explicit vectors)")
    called = "call void @unit_ways_3_i64.rows.waiting("
    # When a queue is full, and at the end, for each of two arms.
    assert found["text:llvm-ir"].count(called) == 4
    switch = turnout_cpu.turnout_compile(
        switch_form(many_ways(3)), device.target, Options(keep_text=True)
    ).metadata
    assert called not in switch["text:llvm-ir"]


@pytest.fixture
def vector_math(device: Any) -> None:
    if not any(option.startswith("libmvec=") for option in device.target.options):
        pytest.skip("no vector math library here")


def test_a_position_that_waited_is_no_neighbour_of_the_others():
    unit = many_ways(2)
    assert Forms(unit).of(unit.body.parameters[0]) is Form.CONSECUTIVE
    assert Forms(unit, Form.VARYING).of(unit.body.parameters[0]) is Form.VARYING


def test_the_hook_lowers_predicated_dispatches_only(device):
    unit = many_ways(3)
    (site,) = dispatches(unit)
    plan = turnout_cpu.turnout_lower_dispatch(unit=unit, site=site, policy="predicated")
    assert plan == ir.Plan((ir.Run(predication.lowered(unit, site)),))
    for policy in ("switch", "auto", "segmented"):
        assert turnout_cpu.turnout_lower_dispatch(unit=unit, site=site, policy=policy) is None


@pytest.mark.parametrize("policy", ["switch", "predicated"])
def test_calls_are_checked_as_without_the_lowering(policy):
    """Overlapping arrays and arrays that are too short are found under every policy."""

    @tn.kernel
    def k(regime: NDArray[i64, 1], x: NDArray[f64, 1], out: NDArray[f64, 1]):
        for i in range(out.shape[0]):
            out[i] = tm.dispatch(regime[i], [-x[i], tm.exp(x[i])], policy=policy)

    memory, regime = np.zeros(10), np.zeros(9, np.int64)
    with tn.use("cpu"):
        with pytest.raises(tn.CallError, match="overlap"):
            k(regime, memory[:-1], memory[1:])
        with pytest.raises(tn.CallError, match="regime"):
            k(regime[:4], np.zeros(9), np.zeros(9))


# ---- values --------------------------------------------------------------------------------------


def expected_ways(classes: int, regime: np.ndarray, x: np.ndarray) -> np.ndarray:
    """By hand, sample by sample."""

    def value(number: int, sample: float) -> float:
        if number % 3 == 0:
            return sample * (number + 1) + sample
        scaled = sample * (1.0 / (number + 1))
        return math.exp(scaled) + math.sin(scaled) + sample

    taken = [min(max(int(number), 0), classes - 1) for number in regime]
    return np.array([value(*pair) for pair in zip(taken, x.tolist(), strict=True)])


def regimes(classes: int, n: int, random: np.random.Generator) -> list[np.ndarray]:
    """Uniform, far out of range, rare, all the same, and in order."""
    far = np.array([-(2**63), -1, 0, classes - 1, classes, 2**31, 2**63 - 1])
    return [
        random.integers(-2, classes + 2, n),
        random.choice(far, n),
        np.where(random.random(n) < 0.03, random.integers(0, classes, n), 0),
        np.full(n, classes - 1),
        np.sort(random.integers(0, classes, n)),
    ]


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("classes", [2, 3, 8, 40])
def test_every_class_and_length(scalar, in_lanes, classes, lanes):
    unit = many_ways(classes)
    plain, code = scalar(switch_form(unit)), in_lanes(predicated_form(unit), lanes)
    for n in LENGTHS:
        random = np.random.default_rng(n)
        x = random.normal(size=n)
        for regime in regimes(classes, n, random):
            expected, found = np.full((2, n), -7.0)
            plain((regime, x, expected), n)
            code((regime, x, found), n)
            same_bits(found, expected)
            np.testing.assert_allclose(
                found, expected_ways(classes, regime, x), rtol=1e-14, atol=1e-14
            )


@given(
    st.lists(st.booleans(), max_size=200),
    st.lists(st.sampled_from([0, 0, 0, 0, 1, 2, 5, -3]), max_size=200),
)
@settings(deadline=None)
def test_any_pattern_of_classes(compiled, dense, rare):
    regime = np.array([*(2 * flag for flag in dense), *rare], np.int64)
    x = np.linspace(-2, 2, regime.size)
    plain, codes = compiled
    expected = np.full(regime.size, -7.0)
    plain((regime, x, expected), regime.size)
    for code in codes:
        found = np.full(regime.size, -7.0)
        code((regime, x, found), regime.size)
        same_bits(found, expected)


@pytest.fixture(scope="module")
def compiled(scalar, in_lanes):
    unit = many_ways(3)
    plain, predicated = switch_form(unit), predicated_form(unit)
    return scalar(plain), [in_lanes(predicated, lanes) for lanes in LANES]


@pytest.mark.parametrize("selector", [ir.i8, ir.u8, ir.i32, ir.u32, ir.u64], ids=str)
def test_every_type_of_selector(scalar, in_lanes, selector):
    unit = many_ways(5, selector)
    info = np.iinfo(selector.dtype)
    values = [info.min, info.max, info.max // 2, *range(8)]
    regime = np.random.default_rng(1).choice(np.array(values, selector.dtype), 400)
    x = np.linspace(-3, 3, 400)
    expected, found = np.zeros((2, 400))
    scalar(switch_form(unit))((regime, x, expected), 400)
    np.testing.assert_allclose(expected, expected_ways(5, regime, x), atol=1e-14)
    for lanes in LANES:
        in_lanes(predicated_form(unit), lanes)((regime, x, found), 400)
        same_bits(found, expected)


def test_arms_that_are_not_taken_poison_nothing(scalar, in_lanes):
    """Every arm gives NaN or an infinity for the samples of the others."""
    b = UnitBuilder("poison")
    b.array("regime", ir.i64)
    b.array("x", ir.f64)
    b.array("out", ir.f64, written=True)
    (i,) = b.space("x")
    regime, x = b.load("regime", ir.i64, i), b.load("x", ir.f64, i)

    def logarithm() -> ir.Value:
        return b.compute("add", b.compute("log", x), b.compute("sqrt", x))

    def inverse() -> ir.Value:
        above = b.compute("subtract", 1.0, x)
        return b.compute("divide", b.compute("asin", x), b.compute("log1p", above))

    arms = [
        logarithm,
        lambda: b.compute("divide", 1.0, x),
        inverse,
        lambda: b.compute("exp", b.compute("exp", b.compute("exp", x))),
    ]
    b.store("out", dispatch(b, regime, arms), i)
    unit = b.unit()
    n = 500
    random = np.random.default_rng(3)
    regime_values = random.integers(0, 4, n)
    x_values = np.choose(
        regime_values,
        [random.uniform(1, 2, n), np.full(n, -4.0), random.uniform(-1, 0.5, n), np.zeros(n)],
    )
    x_values[::50] = np.nan
    x_values[1::50] = np.inf
    x_values[2::50] = -0.0
    ordinary = np.isin(np.arange(n) % 50, (0, 1, 2), invert=True)
    expected = np.zeros(n)
    scalar(switch_form(unit))((regime_values, x_values, expected), n)
    assert np.isfinite(expected[ordinary]).all()
    for lanes in LANES:
        found = np.zeros(n)
        in_lanes(predicated_form(unit), lanes)((regime_values, x_values, found), n)
        same_bits(found, expected)


def test_each_class_reads_where_only_its_own_index_is_in_range(scalar, in_lanes):
    b = UnitBuilder("tables")
    b.array("regime", ir.i64)
    b.array("at", ir.i64)
    b.array("short", ir.f64)
    b.array("long", ir.f64)
    b.array("out", ir.f64, written=True)
    (i,) = b.space("regime")
    regime, at = b.load("regime", ir.i64, i), b.load("at", ir.i64, i)

    def read(table: str, offset: int) -> Arm:
        def arm() -> ir.Value:
            value = b.load(table, ir.f64, b.compute("subtract", at, offset))
            return costly(b, value, 1)

        return arm

    arms = [read("short", 0), read("long", 2**44), lambda: b.load("short", ir.f64, 0)]
    b.store("out", dispatch(b, regime, arms), i)
    unit = b.unit()
    n = 300
    random = np.random.default_rng(5)
    short, long = random.normal(size=5), random.normal(size=1000)
    regime_values = np.where(random.random(n) < 0.1, random.integers(0, 2, n), 2)
    at_values = np.choose(
        regime_values,
        [random.integers(0, 5, n), 2**44 + random.integers(0, 1000, n), np.full(n, 2**50)],
    )
    expected = np.zeros(n)
    scalar(switch_form(unit))((regime_values, at_values, short, long, expected), n)
    assert (expected[regime_values == 2] == short[0]).all()
    for lanes in LANES:
        found = np.zeros(n)
        code = in_lanes(predicated_form(unit), lanes)
        code((regime_values, at_values, short, long, found), n)
        same_bits(found, expected)


def test_nested_and_several_dispatches(scalar, in_lanes):
    b = UnitBuilder("nested")
    b.array("outer", ir.i64)
    b.array("inner", ir.i32)
    b.array("x", ir.f64)
    b.array("out", ir.f64, written=True)
    (i,) = b.space("x")
    outer, inner = b.load("outer", ir.i64, i), b.load("inner", ir.i32, i)
    x = b.load("x", ir.f64, i)

    def nested() -> ir.Value:
        arms = [lambda: costly(b, x, 2), lambda: b.compute("negative", x), lambda: costly(b, x, 4)]
        return b.compute("tanh", dispatch(b, inner, arms, "inner"))

    first = dispatch(b, outer, [lambda: x, nested, lambda: costly(b, x, 1)], "outer")
    second = dispatch(b, inner, [lambda: costly(b, first, 0), lambda: first], "second")
    b.store("out", b.compute("subtract", second, first), i)
    unit = b.unit()
    lowered = predicated_form(unit)
    assert not dispatches(lowered)
    assert len(waits(lowered)) == 3
    n = 777
    random = np.random.default_rng(7)
    given = (
        np.where(random.random(n) < 0.1, random.integers(-1, 4, n), 0),
        random.integers(-1, 4, n).astype(np.int32),
        random.normal(size=n),
    )
    expected = np.zeros(n)
    scalar(switch_form(unit))((*given, expected), n)
    for lanes in LANES:
        found = np.zeros(n)
        in_lanes(lowered, lanes)((*given, found), n)
        same_bits(found, expected)


def test_dispatches_in_loops_and_loops_in_dispatches(scalar, in_lanes):
    """Also local arrays: a position that waited begins with its own, full of zeros."""
    b = UnitBuilder("loops")
    b.array("regime", ir.i64)
    b.array("count", ir.i64)
    b.array("x", ir.f64)
    b.array("out", ir.f64, written=True)
    (i,) = b.space("x")
    regime, count = b.load("regime", ir.i64, i), b.load("count", ir.i64, i)
    x = b.load("x", ir.f64, i)
    b.local("memory", ir.f64, 4)
    slot = b.compute("bit_and", count, 3)
    b.store("memory", x, slot)

    def rounds() -> ir.Value:
        def body(j: ir.Value, s: ir.Value) -> ir.Value:
            at = b.compute("bit_and", j, 3)
            b.store("memory", b.compute("add", b.load("memory", ir.f64, at), s), at)
            return b.compute("fma", s, 0.5, b.load("memory", ir.f64, slot))

        return b.for_((0, count, 1), (x,), body)

    def inside(j: ir.Value, s: ir.Value) -> ir.Value:
        number = b.compute("bit_and", b.compute("add", regime, j), 1)
        taken = dispatch(b, number, [lambda: costly(b, s, 1), lambda: b.compute("negative", s)])
        return b.compute("multiply", taken, 0.25)

    value = dispatch(b, regime, [lambda: x, rounds, lambda: b.compute("negative", x)])
    value = b.compute("add", value, b.for_((0, 3, 1), (value,), inside))
    b.store("out", b.compute("add", value, b.load("memory", ir.f64, 1)), i)
    unit = b.unit()
    lowered = predicated_form(unit)
    assert waits(lowered) == [8]
    n = 500
    random = np.random.default_rng(11)
    given = (
        np.where(random.random(n) < 0.2, random.integers(0, 3, n), 0),
        random.integers(-2, 9, n),
        random.normal(size=n),
    )
    expected = np.zeros(n)
    scalar(switch_form(unit))((*given, expected), n)
    for lanes in LANES:
        found = np.zeros(n)
        in_lanes(lowered, lanes)((*given, found), n)
        same_bits(found, expected)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("dtype", [ir.u8, ir.f32], ids=str)
def test_outputs_of_other_widths(scalar, in_lanes, dtype, lanes):
    """Nothing beside the outputs of the lanes that run is written."""
    b = UnitBuilder("narrow")
    b.array("regime", ir.i64)
    b.array("x", ir.f64)
    b.array("out", dtype, written=True)
    (i,) = b.space("x")
    regime, x = b.load("regime", ir.i64, i), b.load("x", ir.f64, i)
    arms = [lambda: x, lambda: costly(b, x, 1), lambda: costly(b, x, 2)]
    b.store("out", b.cast(dtype, dispatch(b, regime, arms)), i)
    unit = b.unit()
    code = in_lanes(predicated_form(unit), lanes)
    plain = scalar(switch_form(unit))
    for n in (5, 16, 33, 64, 200):
        random = np.random.default_rng(n)
        regime_values, x_values = random.integers(0, 3, n), random.uniform(0, 5, n)
        expected, found = np.full((2, n + 64), 99, dtype.dtype)
        plain((regime_values, x_values, expected[:n]), n)
        code((regime_values, x_values, found[:n]), n)
        np.testing.assert_array_equal(found, expected)


def test_in_place_and_in_parts(scalar, in_lanes):
    """A position that waits reads what it would have read, and stays within its part."""
    unit = many_ways(3)
    code = in_lanes(predicated_form(unit), 8)
    n = 300
    random = np.random.default_rng(13)
    regime, x = np.where(random.random(n) < 0.1, random.integers(0, 3, n), 0), random.normal(size=n)
    expected = np.zeros(n)
    scalar(switch_form(unit))((regime, x, expected), n)
    both = x.copy()
    code((regime, both, both), n)
    same_bits(both, expected)
    found = np.zeros(n)
    slots = code._pack(regime, x, found)
    for first, last in ((0, 1), (1, 150), (150, 290)):
        code._releasing(slots, first, last)
        same_bits(found[:last], expected[:last])
        assert (found[last:] == 0).all()


# ---- kernels -------------------------------------------------------------------------------------


def kernels(policy: str) -> list[tn.Kernel]:
    @tn.kernel
    def samples(dt: Param, regime: Index, at: Index, table: NDArray[f64, 1], v: Mutable[Scalar]):
        v = v + dt * tm.dispatch(
            regime,
            [
                -0.1 * v,
                tm.sqrt(abs(v)) / (1.0 + v * v) * tm.sqrt(1.0 + v * v) / (2.0 + v),
                table[at] * v,
                tm.dispatch(at - regime, [v / 3.0, v / 5.0, 7.0 / (v * v + 1.0)], policy=policy),
            ],
            policy=policy,
        )

    @tn.kernel
    def loops(regime: NDArray[i64, 1], x: NDArray[f64, 1], out: NDArray[f64, 1]):
        for i in range(out.shape[0]):
            s = x[i]
            for j in range(3):
                s = tm.dispatch(
                    regime[i] + j, [s * 0.5, tm.sqrt(s * s + j) / (1.5 + s * s), -s], policy=policy
                )
            out[i] = s

    return [samples, loops]


def outcome(kernel: tn.Kernel, device: str, regime: np.ndarray, x: np.ndarray) -> np.ndarray:
    n = x.size
    with tn.use(device):
        if kernel.__name__ == "loops":
            out = np.zeros(n)
            kernel(regime, x, out)
            return out
        v = x.copy()
        at = np.where(np.clip(regime, 0, 3) >= 2, np.arange(n) % 4, 2**40)
        kernel(0.1, regime, at, np.array([1.5, -2.0, 0.25, 8.0]), v)
        return v


@pytest.mark.parametrize("number", [0, 1], ids=["samples", "loops"])
@pytest.mark.parametrize("n", [0, 1, 15, 64, 333])
def test_policies_and_backends_agree(number, n):
    """What is exact has the same bits on the reference backend too."""
    random = np.random.default_rng(n)
    x = random.normal(size=n)
    for regime in (random.integers(0, 4, n), random.choice([-(2**63), -5, 1, 2**62, 3], n)):
        expected = outcome(kernels("switch")[number], "reference", regime, x)
        for policy in ("switch", "predicated", "auto"):
            for device in ("cpu", "reference"):
                found = outcome(kernels(policy)[number], device, regime, x)
                same_bits(found, expected)
