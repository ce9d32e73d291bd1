"""The reference backend: right values, and the same ones however a unit is run."""

from __future__ import annotations

import math
import threading
from itertools import product
from typing import Any

import numpy as np
import pluggy
import pytest

from turnout import hooks, ir, reference
from turnout.hooks import IndexViolation
from turnout.ir import ALL_DTYPES, OPERATIONS, DType, Value, bool_, f32, f64, i8, i32, i64, u64

from .units import UnitBuilder, bits, elementwise, random_arguments, random_unit, run

KINDS = {"float": "f", "integer": "iu", "number": "fiu", "bits": "iub", "any": "fiub"}


# ---- hooks ---------------------------------------------------------------------------------------


def test_hooks_answer_through_pluggy() -> None:
    manager = pluggy.PluginManager(hooks.PROJECT)
    manager.add_hookspecs(hooks)
    manager.register(reference)
    manager.check_pending()
    (device,) = manager.hook.turnout_devices()
    assert str(device) == "reference:0"
    assert device.target.features == {"f64", "correct_rounding", "bounds"}
    assert device.target.options == (f"numpy {np.__version__}",)
    unit = elementwise("add", f64, f64)
    options = hooks.Options()
    binary = manager.hook.turnout_compile(unit=unit, target=device.target, options=options)
    assert (binary.entry, binary.kind) == ("add", "reference")
    assert binary.payload.decode() == ir.format_unit(unit)
    launcher = manager.hook.turnout_launch(binary=binary, device=device, unit=unit)
    assert launcher.direct is None
    out = np.zeros(3)
    launcher((np.array([1.0, 2.0, 3.0]), np.full(3, 0.5), out), 3)
    assert out.tolist() == [1.5, 2.5, 3.5]


def test_size_zero_does_nothing() -> None:
    out = np.zeros(3)
    reference.turnout_launch(elementwise("sqrt", f64))((np.ones(3), out), 0)
    assert not out.any()


# ---- statements ----------------------------------------------------------------------------------


def per_element(write: Any, source: DType, target: DType) -> ir.Unit:
    """Build the unit ``out[i] = write(builder, x[i])``."""
    builder = UnitBuilder()
    builder.array("x", source)
    builder.array("out", target, written=True)
    extent = builder.extent("x")

    def body(i: Value) -> None:
        builder.store("out", i, value=write(builder, builder.load("x", i, dtype=source)))

    return builder.finish([extent], body)


def applied(write: Any, source: DType, target: DType, values: Any) -> list[Any]:
    x = np.array(values, source)
    out = np.zeros(x.shape, target)
    run(per_element(write, source, target), x, out)
    for position in range(len(x)):
        single = np.zeros(1, target)
        run(per_element(write, source, target), x[position : position + 1], single)
        assert bits(single) == bits(out[position : position + 1])
    return list(out.tolist())


def test_a_constant_is_rounded_to_its_type() -> None:
    assert applied(lambda b, x: b.constant(0.1, f32), f32, f32, [0]) == [float(np.float32(0.1))]
    assert applied(lambda b, x: b.constant(2**64 - 1, u64), f32, u64, [0]) == [2**64 - 1]


CAST_CASES = [
    (f64, i32, [1.9, -1.9, 2.0**31, -(2.0**31), 1e300, math.inf, -math.inf, math.nan],
     [1, -1, 2**31 - 1, -(2**31), 2**31 - 1, 2**31 - 1, -(2**31), 0]),
    (f64, i32, [2.0**31 - 0.5, -(2.0**31) - 0.5, -(2.0**31) - 1], [2**31 - 1] + [-(2**31)] * 2),
    (f64, i64, [2.0**63, -(2.0**63), 2.0**62, math.nextafter(2.0**63, 0), math.nan, -1e19],
     [2**63 - 1, -(2**63), 2**62, 2**63 - 1024, 0, -(2**63)]),
    (f64, u64, [-0.9, -1.0, 2.0**64, math.nextafter(2.0**64, 0), math.inf, math.nan],
     [0, 0, 2**64 - 1, 2**64 - 2048, 2**64 - 1, 0]),
    (f32, i8, [127.9, 128.0, -128.9, -129.0, math.nan, 3e38], [127, 127, -128, -128, 0, 127]),
    (f32, u64, [2.0**63, 2.0**64, -5.0], [2**63, 2**64 - 1, 0]),
    (i64, i8, [300, -129, 255, 2**40 + 5], [44, 127, -1, 5]),
    (i64, u64, [-1, 5], [2**64 - 1, 5]),
    (i64, f32, [2**24 + 1, 2**24 + 3, -(2**63)], [2.0**24, 2.0**24 + 4, -(2.0**63)]),
    (u64, f64, [2**64 - 1, 2**53 + 1], [2.0**64, 2.0**53]),
    (f64, f32, [0.1, 1e300, -0.0], [float(np.float32(0.1)), math.inf, -0.0]),
    (f64, bool_, [0.0, -0.0, 0.5, math.nan, math.inf], [False, False, True, True, True]),
    (i32, bool_, [0, 256, -1], [False, True, True]),
    (bool_, f64, [False, True], [0.0, 1.0]),
    (bool_, i8, [False, True], [0, 1]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "target", "values", "expected"), CAST_CASES)
def test_cast(source: DType, target: DType, values: list[Any], expected: list[Any]) -> None:
    assert applied(lambda b, x: b.cast(x, target), source, target, values) == expected


@pytest.mark.parametrize(("source", "target"), list(product(ALL_DTYPES, ALL_DTYPES)), ids=str)
def test_cast_of_one_is_one_of_exactly_the_type(source: DType, target: DType) -> None:
    assert applied(lambda b, x: b.cast(x, target), source, target, [1, 0]) == [1, 0]


def test_branch_masks_lanes_and_merges_values() -> None:
    def write(b: UnitBuilder, x: Value) -> Value:
        is_negative = b.compute("less", x, b.constant(0.0, f64))
        (result,) = b.branch(
            is_negative,
            lambda: [b.compute("negative", x)],
            lambda: [b.compute("multiply", x, b.constant(10.0, f64))],
        )
        return b.compute("add", result, x)

    assert applied(write, f64, f64, [1, -2, 3, -4]) == [11, 0, 33, 0]
    assert applied(write, f64, f64, [1, 2]) == [11, 22]


def test_nested_branches_see_values_of_every_level() -> None:
    def write(b: UnitBuilder, x: Value) -> Value:
        two, ten = b.constant(2), b.constant(10)
        doubled = b.compute("multiply", x, two)

        def inner() -> list[Value]:
            tripled = b.compute("add", doubled, x)
            return list(
                b.branch(
                    b.compute("greater", x, ten),
                    lambda: [b.compute("add", tripled, doubled)],
                    lambda: [tripled],
                )
            )

        is_even = b.compute("equal", b.compute("remainder", x, two), b.constant(0))
        return b.branch(is_even, inner, lambda: [x])[0]

    assert applied(write, i64, i64, [1, 4, 12, 13, 20]) == [1, 12, 60, 13, 100]


@pytest.mark.parametrize("kind", ["switch", "dispatch"])
@pytest.mark.parametrize("dtype", [d for d in ALL_DTYPES if d.is_integer], ids=str)
def test_switch_clamps_the_full_integer(kind: str, dtype: DType) -> None:
    def write(b: UnitBuilder, x: Value) -> Value:
        def arm(value: int) -> Any:
            return lambda: [b.constant(value)]

        return getattr(b, kind)(x, arm(10), arm(11), arm(12))[0]

    values = [dtype.minimum, 0, 1, 2, 3, dtype.maximum]
    assert applied(write, dtype, i64, values) == [10, 10, 11, 12, 12, 12]


def test_switch_with_more_arms_than_the_selector_reaches() -> None:
    def write(b: UnitBuilder, x: Value) -> Value:
        def arm(value: int) -> Any:
            return lambda: [b.constant(value)]

        return b.switch(x, *(arm(number) for number in range(300)))[0]

    assert applied(write, i8, i64, [-128, 5, 127]) == [0, 5, 127]


LOOPS = [(0, 5, 1), (0, 5, 2), (5, 0, -1), (5, 0, -2), (0, 0, 1), (3, 1, 1), (1, 3, -1), (-4, 7, 3)]


@pytest.mark.parametrize("bounds", LOOPS)
def test_loop_with_uniform_bounds(bounds: tuple[int, int, int]) -> None:
    def write(b: UnitBuilder, x: Value) -> Value:
        start, stop, step = (b.constant(bound) for bound in bounds)
        return b.loop((start, stop, step), [x], lambda i, s: [horner(b, i, s)])[0]

    expected = [horner_of(range(*bounds), start) for start in (1, 2, 3)]
    assert applied(write, i64, i64, [1, 2, 3]) == expected


def horner(b: UnitBuilder, index: Value, total: Value) -> Value:
    """Write ``total * 3 + index``, which depends on the order of the indices."""
    return b.compute("add", b.compute("multiply", total, b.constant(3)), index)


def horner_of(indices: range, total: int) -> int:
    for index in indices:
        total = total * 3 + index
    return total


def test_loop_with_bounds_per_lane() -> None:
    builder = UnitBuilder()
    names = ["start", "stop", "step"]
    for name in names:
        builder.array(name, i64)
    builder.array("out", i64, written=True)
    extent = builder.extent("start")

    def body(position: Value) -> None:
        bounds = tuple(builder.load(name, position, dtype=i64) for name in names)
        initial = [builder.constant(1), builder.constant(7)]
        total, unchanged = builder.loop(bounds, initial, lambda i, s, u: [horner(builder, i, s), u])
        builder.store("out", position, value=builder.compute("add", total, unchanged))

    unit = builder.finish([extent], body)
    start, stop, step = np.array(LOOPS).T
    out = np.zeros(len(LOOPS), np.int64)
    run(unit, start, stop, step, out)
    assert out.tolist() == [horner_of(range(*bounds), 1) + 7 for bounds in LOOPS]


def test_trip_counts_at_the_ends_of_the_integers() -> None:
    low, high = np.int64(-(2**63)), np.int64(2**63 - 1)
    start = np.array([low, high, low, high, 0])
    stop = np.array([high, low, high, low, 0])
    step = np.array([1, -1, high, low, low])
    counts = reference._trip_counts(start, stop, step)
    expected = [len_of(range(*map(int, case))) for case in zip(start, stop, step, strict=True)]
    assert counts.tolist() == expected


def len_of(indices: range) -> int:
    """``len`` without its limit of 63 bits."""
    return max(0, (indices[-1] - indices[0]) // indices.step + 1) if indices else 0


def test_while_with_a_trip_count_per_lane() -> None:
    def write(b: UnitBuilder, x: Value) -> Value:
        one = b.constant(1)

        def step(n: Value, count: Value) -> list[Value]:
            is_odd = b.cast(b.compute("remainder", n, b.constant(2)), bool_)
            (following,) = b.branch(
                is_odd,
                lambda: [b.compute("add", b.compute("multiply", n, b.constant(3)), one)],
                lambda: [b.compute("floor_divide", n, b.constant(2))],
            )
            return [following, b.compute("add", count, one)]

        initial = [x, b.constant(0)]
        return b.loop_while(initial, lambda n, c: [b.compute("greater", n, one)], step)[1]

    assert applied(write, i64, i64, [1, 2, 3, 6, 7, 27, 1]) == [0, 1, 7, 8, 16, 111, 0]


def test_break_is_a_flag_in_the_carried_values() -> None:
    # for i in range(10): if i == x: break; total += i
    def write(b: UnitBuilder, x: Value) -> Value:
        ten, one = b.constant(10), b.constant(1)

        def goes_on(i: Value, total: Value, running: Value) -> list[Value]:
            return [b.compute("bit_and", running, b.compute("less", i, ten))]

        def step(i: Value, total: Value, running: Value) -> list[Value]:
            following = b.compute("add", i, one)
            total, running = b.branch(
                b.compute("equal", i, x),
                lambda: [total, b.constant(False, bool_)],
                lambda: [b.compute("add", total, i), running],
            )
            return [following, total, running]

        initial = [b.constant(0), b.constant(0), b.constant(True, bool_)]
        return b.loop_while(initial, goes_on, step)[1]

    assert applied(write, i64, i64, [0, 3, 10, -1, 9]) == [0, 3, 45, 45, 36]


def test_local_arrays_are_private_and_zeroed_each_time() -> None:
    # histogram of the low three bits of x, of which the entry x // 8 is read
    def write(b: UnitBuilder, x: Value) -> Value:
        zero, one, eight = b.constant(0), b.constant(1), b.constant(8)

        def turn(i: Value, total: Value) -> list[Value]:
            b.local("histogram", i64, 2, 4)
            place = b.compute("remainder", x, b.constant(4))
            b.store("histogram", one, place, value=eight)
            b.store("histogram", one, place, value=x, combine="add")
            b.store("histogram", zero, place, value=i)
            row = b.compute("minimum", i, one)
            return [b.compute("add", total, b.load("histogram", row, place, dtype=i64))]

        is_small = b.compute("less", x, b.constant(100))
        bounds = zero, b.constant(3), one
        return b.branch(is_small, lambda: list(b.loop(bounds, [zero], turn)), lambda: [x])[0]

    # i = 0 reads row 0 (0); i = 1 and 2 read row 1 (8 + x)
    assert applied(write, i64, i64, [1, 2, 5, 500]) == [18, 20, 26, 500]


def test_two_dimensional_space_in_row_major_order() -> None:
    builder = UnitBuilder()
    builder.array("a", f64, 2)
    builder.array("b", f64)
    builder.array("out", f64, 2, written=True)
    rows, columns = builder.extent("a", 0), builder.extent("a", 1)

    def body(i: Value, j: Value) -> None:
        a, b = builder.load("a", i, j, dtype=f64), builder.load("b", j, dtype=f64)
        builder.store("out", i, j, value=builder.compute("subtract", a, b))

    unit = builder.finish([rows, columns], body)
    a, b = np.arange(12.0).reshape(3, 4), np.array([1.0, 2.0, 4.0, 8.0])
    for given, other in [(a, b), (a[::-1, ::-2], b[::2]), (a[:1, :1], b[:1]), (a[:, :0], b[:0])]:
        out = np.zeros(given.shape)
        run(unit, given, other, out)
        assert (out == given - other).all()


def test_a_negative_extent_counts_as_zero() -> None:
    builder = UnitBuilder()
    builder.array("out", f64, written=True)
    extent = builder.compute("subtract", builder.extent("out"), builder.constant(5))
    one = builder.constant(1.0, f64)
    unit = builder.finish([extent, extent], lambda i, j: builder.store("out", i, value=one))
    out = np.zeros(3)
    run(unit, out)
    assert not out.any()


def test_serial_unit_carries_values_from_element_to_element() -> None:
    builder = UnitBuilder()
    builder.array("x", f64)
    builder.array("out", f64, written=True)
    extent = builder.extent("x")

    def body() -> None:
        def step(i: Value, total: Value) -> list[Value]:
            total = builder.compute("add", total, builder.load("x", i, dtype=f64))
            builder.store("out", i, value=total)
            return [total]

        bounds = builder.constant(0), extent, builder.constant(1)
        builder.loop(bounds, [builder.constant(0.0, f64)], step)

    unit = builder.finish([], body)
    x = np.random.default_rng(1).normal(size=100)
    out = np.zeros(100)
    run(unit, x, out)
    assert (out == np.cumsum(x)).all()
    run(unit, x, x)
    assert (x == out).all()


def test_prologue_loads_a_value_that_all_positions_see() -> None:
    builder = UnitBuilder()
    builder.array("offset", f64, 0)
    builder.array("out", f64, written=True)
    offset = builder.load("offset", dtype=f64)
    extent = builder.extent("out")
    unit = builder.finish([extent], lambda i: builder.store("out", i, value=offset))
    out = np.zeros(3)
    run(unit, np.array(2.5), out)
    assert out.tolist() == [2.5] * 3


@pytest.mark.parametrize(
    ("dtype", "given", "expected"),
    [(f32, 0.1, float(np.float32(0.1))), (i8, -128, -128), (u64, 2**64 - 1, 2**64 - 1),
     (bool_, True, True), (f64, math.inf, math.inf)],
    ids=str,
)  # fmt: skip
def test_scalar_arguments_take_their_type(dtype: DType, given: Any, expected: Any) -> None:
    builder = UnitBuilder()
    builder.array("out", dtype, written=True)
    scalar = builder.scalar("scalar", dtype)
    zero = builder.constant(0)
    unit = builder.finish([], lambda: builder.store("out", zero, value=scalar))
    out = np.zeros(1, dtype)
    run(unit, out, given)
    assert out.tolist() == [expected]


# ---- memory --------------------------------------------------------------------------------------


def test_views_broadcasts_and_misaligned_arrays_are_read_as_they_are() -> None:
    unit = elementwise("subtract", f64, f64)
    x = np.arange(20.0)
    misaligned = np.frombuffer(bytearray(8 * 5 + 1), np.uint8)[1:].view(np.float64)
    misaligned[:] = x[:5]
    read_only = np.arange(5.0)
    read_only.flags.writeable = False
    for first, second in product(
        [x[:5], x[4::-1], x[::4], np.broadcast_to(3.0, 5), misaligned, read_only], repeat=2
    ):
        out = np.zeros(10)[::2]
        run(unit, first, second, out)
        assert (out == first - second).all()


def test_an_input_may_be_its_own_output() -> None:
    x = np.array([1.0, 4.0, 9.0])
    run(elementwise("sqrt", f64), x, x)
    assert x.tolist() == [1.0, 2.0, 3.0]


def scatter(combine: str | None, dtype: DType, value_of: Any = None) -> ir.Unit:
    """Build the unit that combines ``x[i]`` into ``out[k[i]]``."""
    builder = UnitBuilder()
    builder.array("k", i64)
    builder.array("x", dtype)
    builder.array("out", dtype, written=True)
    extent = builder.extent("k")

    def body(i: Value) -> None:
        place, value = builder.load("k", i, dtype=i64), builder.load("x", i, dtype=dtype)
        builder.store("out", place, value=value, combine=combine)

    return builder.finish([extent], body)


def test_the_last_position_stays_in_a_shared_element() -> None:
    out = np.zeros(3)
    run(scatter(None, f64), np.array([0, 1, 0, 2, 1]), np.array([1.0, 2, 3, 4, 5]), out)
    assert out.tolist() == [3, 5, 4]


def test_the_last_position_stays_in_an_element_shared_by_all() -> None:
    builder = UnitBuilder()
    builder.array("x", f64)
    builder.array("out", f64, 0, written=True)
    extent = builder.extent("x")
    unit = builder.finish(
        [extent], lambda i: builder.store("out", value=builder.load("x", i, dtype=f64))
    )
    out = np.array(0.0)
    run(unit, np.array([1.0, 2.0, 3.0]), out)
    assert out == 3


@pytest.mark.parametrize("dtype", [f32, f64, i8, i64], ids=str)
@pytest.mark.parametrize("combine", ["add", "multiply", "subtract", "minimum", "maximum"])
def test_updates_of_shared_elements_happen_in_position_order(combine: str, dtype: DType) -> None:
    generator = np.random.default_rng(3)
    k = generator.integers(0, 4, 200)
    x = (generator.normal(size=200) * 9).astype(dtype)
    out = np.ones(4, dtype)
    expected = out.copy()
    run(scatter(combine, dtype), k, x, out)
    with np.errstate(all="ignore"):
        for place, value in zip(k, x, strict=True):
            expected[place] = OPERATIONS[combine].evaluate(expected[place], value)
    assert bits(out) == bits(expected)


def test_a_uniform_update_counts_every_lane() -> None:
    builder = UnitBuilder()
    builder.array("x", f64)
    builder.array("count", i64, written=True)
    builder.array("total", i64, 0, written=True)
    extent, zero, one = builder.extent("x"), builder.constant(0), builder.constant(1)

    def body(i: Value) -> None:
        def count() -> None:
            builder.store("count", zero, value=one, combine="add")
            builder.store("total", value=one, combine="add")

        is_positive = builder.compute(
            "greater", builder.load("x", i, dtype=f64), builder.constant(0.0, f64)
        )
        builder.branch(is_positive, count)

    unit = builder.finish([extent], body)
    count, total = np.zeros(1, np.int64), np.array(0)
    run(unit, np.array([1.0, -1.0, 2.0, 3.0]), count, total)
    run(unit, np.ones(5), count, total)
    assert (count[0], total) == (8, 8)


# ---- bounds --------------------------------------------------------------------------------------


def gather_twice() -> ir.Unit:
    """Build ``out[i] = x[k[i]] if i < 3 else x2[1, k[i]]``: four loads, then a store."""
    builder = UnitBuilder()
    builder.array("k", i64)
    builder.array("x", f64)
    builder.array("x2", f64, 2)
    builder.array("out", f64, written=True)
    extent, three, one = builder.extent("k"), builder.constant(3), builder.constant(1)

    def body(i: Value) -> None:
        k = builder.load("k", i, dtype=i64)
        (value,) = builder.branch(
            builder.compute("less", i, three),
            lambda: [builder.load("x", k, dtype=f64)],
            lambda: [builder.load("x2", one, k, dtype=f64)],
        )
        builder.store("out", i, value=value)

    return builder.finish([extent], body)


@pytest.mark.parametrize(
    ("k", "out_size", "expected"),
    [
        ([0, 4, 0], 3, (1, 0, 4, 4)),
        ([0, 0, -1], 3, (1, 0, -1, 4)),
        ([-(2**63)], 1, (1, 0, -(2**63), 4)),
        ([0, 0, 0, 1, 5, 6], 6, (2, 1, 5, 5)),
        ([0, 1], 1, (3, 0, 1, 1)),
    ],
)
def test_an_index_out_of_range_is_reported(
    k: list[int], out_size: int, expected: tuple[int, int, int, int]
) -> None:
    with pytest.raises(IndexViolation) as caught:
        run(gather_twice(), np.array(k), np.zeros(4), np.zeros((2, 5)), np.zeros(out_size))
    violation = caught.value
    assert (violation.site, violation.axis, violation.index, violation.extent) == expected


def test_an_index_is_only_checked_where_its_lane_runs() -> None:
    out = np.zeros(4)
    run(gather_twice(), np.array([0, 1, 2, 4]), np.arange(4.0), np.ones((2, 5)), out)
    assert out.tolist() == [0, 1, 2, 1]


@pytest.mark.parametrize("index", [-1, 2, 5])
def test_local_arrays_are_checked(index: int) -> None:
    def write(b: UnitBuilder, x: Value) -> Value:
        b.local("table", i64, 2)
        return b.load("table", x, dtype=i64)

    with pytest.raises(IndexViolation) as caught:
        applied(write, i64, i64, [0, 1, index, 7])
    violation = caught.value
    assert (violation.site, violation.axis, violation.index, violation.extent) == (1, 0, index, 2)


def test_sites_count_the_accesses_of_the_body() -> None:
    builder = UnitBuilder()
    builder.array("offset", f64, 0)
    builder.array("out", f64, written=True)
    offset, seven = builder.load("offset", dtype=f64), builder.constant(7)
    unit = builder.finish([], lambda: builder.store("out", seven, value=offset))
    with pytest.raises(IndexViolation) as caught:
        run(unit, np.array(1.0), np.zeros(3))
    assert caught.value.site == 0


# ---- the same bits however it is run -------------------------------------------------------------


def samples(dtype: DType, count: int, seed: int) -> np.ndarray[Any, Any]:
    """Give values of a type, among them those for which NumPy has special code."""
    generator = np.random.default_rng(seed)
    if not dtype.is_float:
        return generator.integers(0, 2, count, endpoint=dtype is not bool_).astype(dtype)
    values = np.exp(generator.normal(size=count) * 3) * generator.choice([-1.0, 1.0], count)
    values[::7] = generator.uniform(-1, 1, values[::7].size)
    special = [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 88.0, 710.0, math.inf, -math.inf, math.nan]
    values[3::11] = generator.choice(special, values[3::11].size)
    return values.astype(dtype)


def operand_types(name: str, dtype: DType) -> list[DType]:
    types = [dtype] * OPERATIONS[name].arity
    return [bool_, *types[1:]] if name == "select" else types


BATCH_CASES = [
    pytest.param(name, dtype, id=f"{name}-{dtype}")
    for name, row in OPERATIONS.items()
    for dtype in (f32, f64, i64, bool_)
    if dtype.kind in KINDS[row.operands]
]


@pytest.mark.parametrize(("name", "dtype"), BATCH_CASES)
def test_bits_do_not_depend_on_batch_size_position_or_strides(
    name: str, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = operand_types(name, dtype)
    unit = elementwise(name, *types)
    count = 203
    arrays = [samples(t, count, seed) for seed, t in enumerate(types)]
    result = bool_ if OPERATIONS[name].result == "bool" else types[-1]

    def outcome(*operands: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        out = np.zeros(len(operands[0]), result)
        run(unit, *operands, out)
        return out

    whole = outcome(*arrays)
    for first, last in [(0, 1), (1, 3), (2, 9), (5, 22), (3, 203)]:
        assert bits(outcome(*(a[first:last] for a in arrays))) == bits(whole[first:last])
    singles = [outcome(*(a[n : n + 1] for a in arrays))[0] for n in range(count)]
    assert bits(np.array(singles)) == bits(whole)
    assert bits(outcome(*(a[::-1] for a in arrays))[::-1]) == bits(whole)
    assert bits(outcome(*(np.repeat(a, 3)[::3] for a in arrays))) == bits(whole)
    monkeypatch.setattr(reference, "CHUNK_LANES", 7)
    assert bits(outcome(*arrays)) == bits(whole)


@pytest.mark.parametrize(
    "exponent", [2.0, 0.5, -1.0, 0.0, 1.0, 3.0, 1.7], ids=lambda value: f"exponent{value}"
)
@pytest.mark.parametrize("dtype", [f32, f64], ids=str)
@pytest.mark.parametrize("name", ["pow", "hypot", "atan2", "divide", "fma"])
def test_bits_do_not_depend_on_whether_an_operand_is_uniform(
    name: str, dtype: DType, exponent: float
) -> None:
    arity = OPERATIONS[name].arity

    def write(builder: UnitBuilder, x: Value) -> Value:
        constant = builder.constant(exponent, dtype)
        return builder.compute(name, x, *[constant] * (arity - 1))

    x = samples(dtype, 500, 4)
    varying, uniform = np.zeros((2, 500), dtype)
    others = [np.full_like(x, exponent)] * (arity - 1)
    run(elementwise(name, *[dtype] * arity), x, *others, varying)
    run(per_element(write, dtype, dtype), x, uniform)
    assert bits(uniform) == bits(varying)


@pytest.mark.parametrize("seed", range(12))
def test_random_units_give_each_lane_what_it_gives_alone(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One lane alone runs on scalars, with Python's own control flow.
    launcher = reference.turnout_launch(random_unit(seed))
    x, k, t, out = random_arguments(seed, 60)
    launcher((x, k, t, out), 60)
    alone = np.zeros_like(out)
    for lane in range(60):
        here = slice(lane, lane + 1)
        launcher((x[here], k[here], t, alone[here]), 1)
    assert bits(alone) == bits(out)
    monkeypatch.setattr(reference, "CHUNK_LANES", 16)
    chunked = np.zeros_like(out)
    launcher((x, k, t, chunked), 60)
    assert bits(chunked) == bits(out)


def test_threads_share_a_launcher() -> None:
    launcher = reference.turnout_launch(random_unit(2))
    expected = {}
    for seed in range(4):
        arguments = random_arguments(seed, 40)
        launcher(arguments, 40)
        expected[seed] = bits(arguments[-1])
    outcomes: dict[int, set[bytes]] = {seed: set() for seed in expected}

    def work(seed: int) -> None:
        for _ in range(5):
            arguments = random_arguments(seed, 40)
            launcher(arguments, 40)
            outcomes[seed].add(bits(arguments[-1]))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == {seed: {value} for seed, value in expected.items()}


def test_no_floating_point_warnings_and_no_changed_settings() -> None:
    with np.errstate(all="raise"):
        before = np.geterr()
        x = np.array([-1.0, 0.0, 1e308, math.nan])
        out = np.zeros(4)
        run(elementwise("log", f64), x, out)
        run(elementwise("divide", f64, f64), x, np.zeros(4), out)
        assert np.geterr() == before
    assert bits(out) == bits(np.array([-math.inf, math.nan, math.inf, math.nan]))
