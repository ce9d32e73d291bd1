"""Statements, memory and control flow of hand-written units against the same thing in Python."""

from __future__ import annotations

import numpy as np
import pytest
from unit_builder import UnitBuilder, drag

import turnout_cpu
from turnout.plugin import CompileError, Device, Options, ir


def copy_unit(rank: int, dtype: ir.DType = ir.f64) -> ir.Unit:
    """Out = x over all axes."""
    b = UnitBuilder(f"copy{rank}")
    b.array("x", dtype, rank)
    b.array("out", dtype, rank, written=True)
    position = b.space("out", *range(rank))
    b.store("out", b.load("x", dtype, *position), *position)
    return b.unit()


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x,
        lambda x: x[::-1],
        lambda x: x[:, ::-1],
        lambda x: x[::2, ::3],
        lambda x: x[1:-1, 1:-1],
        lambda x: x.T,
        lambda x: x[:1, ::5],
        lambda x: x[:, :1],
        lambda x: x[:0],
        lambda x: np.broadcast_to(x[:1, :1], (4, 7)),
        lambda x: np.broadcast_to(x[0], (3, 11)),
    ],
)
def test_strides(load, layout):
    x = layout(np.arange(99.0).reshape(9, 11))
    launcher = load(copy_unit(2))
    for out in (np.zeros(x.shape), np.zeros(x.shape[::-1]).T, np.zeros((*x.shape, 2))[..., 1]):
        launcher((x, out), x.size)
        assert (out == x).all()


def test_three_axes(load):
    x = np.arange(60.0).reshape(3, 4, 5)
    out = np.zeros_like(x)
    load(copy_unit(3))((x, out), x.size)
    assert (out == x).all()


def test_rank_0_arrays(load):
    b = UnitBuilder("rank0")
    b.array("x", ir.f64, 0)
    b.array("out", ir.f64, 0, written=True)
    b.store("out", b.compute("add", b.load("x", ir.f64), 1.0))
    x, out = np.array(2.5), np.zeros(())
    load(b.unit())((x, out), 1)
    assert out == 3.5


def test_misaligned_and_read_only_arrays(load):
    raw = np.zeros(8 * 50 + 1, np.uint8)
    x = raw[1:].view(np.float64)
    x[:] = np.arange(50)
    x.flags.writeable = False
    out = np.zeros(50)
    assert not x.flags.aligned
    load(copy_unit(1))((x, out), 50)
    assert (out == x).all()


def test_big_arrays_at_both_ends_of_the_address_range(load):
    x = np.arange(100.0)
    out = np.zeros(100)
    launcher = load(copy_unit(1))
    launcher((x[::-1], out), 100)
    launcher((out, x[::-1]), 100)
    assert (x == np.arange(100.0)).all()


@pytest.mark.parametrize("dtype", ir.ALL_DTYPES, ids=str)
def test_scalars_and_elements_of_every_type(load, dtype):
    b = UnitBuilder("fill")
    value = b.scalar("value", dtype)
    b.array("out", dtype, written=True)
    (i,) = b.space("out")
    b.store("out", value, i)
    launcher = load(b.unit())
    values = {"f": [1.5, -0.0, np.inf], "b": [True, False]}.get(
        dtype.kind, [dtype.minimum, dtype.maximum, 1] if dtype.is_integer else []
    )
    for value in values:
        out = np.zeros(37, dtype.dtype)
        launcher((value, out), 37)
        assert out.tolist() == [value] * 37


def test_size_0_does_nothing(load):
    load(copy_unit(1))((np.zeros(0), np.zeros(0)), 0)


def test_negative_extents_count_as_0(load):
    b = UnitBuilder("negative_space")
    n = b.scalar("n", ir.i64)
    b.array("out", ir.f64, written=True)
    b.extents.append(n)
    position = b.value(ir.i64)
    b.positions.append(position)
    b.store("out", b.constant(ir.f64, 1.0), position)
    launcher = load(b.unit())
    out = np.zeros(3)
    launcher((-3, out), 1)
    assert (out == 0).all()
    launcher((2, out), 2)
    assert out.tolist() == [1, 1, 0]


@pytest.mark.parametrize("step", [1, 2, 3, -1, -2, -7, 2**62, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("is_constant", [True, False])
def test_for_visits_what_range_visits(load, step, is_constant):
    b = UnitBuilder("visit")
    start, stop = b.scalar("start", ir.i64), b.scalar("stop", ir.i64)
    step_value = b.scalar("step", ir.i64)
    if is_constant:
        step_value = b.constant(ir.i64, step)
    b.array("out", ir.i64, written=True)

    def body(index, count, total):
        b.store("out", index, count)
        return b.compute("add", count, 1), b.compute("add", total, index)

    zero = b.constant(ir.i64, 0)
    count, total = b.for_((start, stop, step_value), (zero, zero), body)
    b.store("out", count, 20)
    b.store("out", total, 21)
    launcher = load(b.unit())
    low, high = -(2**63), 2**63 - 1
    for first, last in [
        (0, 7), (7, 0), (-5, 9), (9, -5), (3, 3), (low, low + 10), (high - 10, high),
        (high, high - 10), (low + 10, low), (low, high), (high, low),
    ]:  # fmt: skip
        expected = range(first, last, step)
        if len(expected[:21]) > 20:
            continue
        out = np.zeros(22, np.int64)
        launcher((first, last, step, out), 1)
        total = sum(expected)
        wrapped = (total + 2**63) % 2**64 - 2**63
        assert out[: len(expected)].tolist() == list(expected)
        assert out[20:].tolist() == [len(expected), wrapped]


def test_for_with_step_0_runs_no_round(load):
    b = UnitBuilder("still")
    step = b.scalar("step", ir.i64)
    b.array("out", ir.i64, written=True)
    b.for_((0, 5, step), (), lambda index: b.store("out", index, 0))
    out = np.full(1, 9)
    load(b.unit())((0, out), 1)
    assert out[0] == 9


def test_while_carries_values(load):
    """Collatz steps of each sample."""
    b = UnitBuilder("collatz")
    b.array("x", ir.i64)
    b.array("out", ir.i64, written=True)
    (i,) = b.space("x")
    x = b.load("x", ir.i64, i)

    def step(value, count):
        is_even = b.compute("equal", b.compute("remainder", value, 2), 0)
        value = b.if_(
            is_even,
            lambda: b.compute("floor_divide", value, 2),
            lambda: b.compute("add", b.compute("multiply", value, 3), 1),
        )
        return value, b.compute("add", count, 1)

    _, count = b.while_(
        (x, b.constant(ir.i64, 0)), lambda value, _: b.compute("greater", value, 1), step
    )
    b.store("out", count, i)
    x, out = np.arange(1, 60), np.zeros(59, np.int64)
    load(b.unit())((x, out), 59)

    def collatz(n):
        count = 0
        while n > 1:
            n, count = (n // 2 if n % 2 == 0 else 3 * n + 1), count + 1
        return count

    assert out.tolist() == [collatz(n) for n in range(1, 60)]


@pytest.mark.parametrize("dtype", [d for d in ir.ALL_DTYPES if d.is_integer], ids=str)
@pytest.mark.parametrize("arms", [1, 2, 5, 200])
def test_switch_clamps_its_selector(load, dtype, arms):
    b = UnitBuilder("choose")
    b.array("x", dtype)
    b.array("out", ir.i64, written=True)
    (i,) = b.space("x")
    selector = b.load("x", dtype, i)
    result = b.switch(selector, *(lambda k=k: b.constant(ir.i64, 10 * k) for k in range(arms)))
    b.store("out", result, i)
    values = [0, 1, 2, 4, 5, 6, 100, dtype.maximum, dtype.minimum, dtype.maximum - 1]
    if dtype.kind == "i":
        values += [-1, -2]
    x = np.array(values, dtype.dtype)
    out = np.zeros(x.size, np.int64)
    load(b.unit())((x, out), x.size)
    assert out.tolist() == [10 * min(max(int(v), 0), arms - 1) for v in values]


def test_if_stores_in_one_arm_only(load):
    b = UnitBuilder("halves")
    b.array("x", ir.f64)
    b.array("out", ir.f64, written=True)
    (i,) = b.space("x")
    x = b.load("x", ir.f64, i)
    b.if_(b.compute("greater", x, 0.0), lambda: b.store("out", x, i))
    x, out = np.linspace(-1, 1, 101), np.full(101, 7.0)
    load(b.unit())((x, out), 101)
    assert (out == np.where(x > 0, x, 7.0)).all()


def test_local_arrays_are_zeroed_at_each_position(load):
    b = UnitBuilder("histogram")
    b.array("x", ir.i64, 2)
    b.array("out", ir.i64, 2, written=True)
    (i,) = b.space("x")
    b.local("count", ir.i64, 2, 2)
    two = b.constant(ir.i64, 2)

    def tally(k):
        x = b.load("x", ir.i64, i, k)
        row, column = b.compute("floor_divide", x, two), b.compute("remainder", x, two)
        b.store("count", b.compute("add", b.load("count", ir.i64, row, column), 1), row, column)

    b.for_((0, b.extent("x", 1), 1), (), tally)
    for k in range(4):
        b.store("out", b.load("count", ir.i64, k // 2, k % 2), i, k)
    x = np.random.default_rng(0).integers(0, 4, (50, 30))
    out = np.zeros((50, 4), np.int64)
    load(b.unit())((x, out), 50)
    assert (out == np.stack([(x == k).sum(axis=1) for k in range(4)], axis=1)).all()


def test_local_array_inside_a_loop_starts_anew(load):
    b = UnitBuilder("anew")
    b.array("out", ir.f64, written=True)

    def body(k):
        b.local("work", ir.f64, 3)
        j = b.compute("remainder", k, 3)
        b.store("work", b.compute("add", b.load("work", ir.f64, j), 1.0), j)
        b.store("out", b.load("work", ir.f64, j), k)

    b.for_((0, b.extent("out"), 1), (), body)
    out = np.zeros(20)
    load(b.unit())((out,), 1)
    assert (out == 1).all()


def test_atomic_updates_of_shared_elements(load):
    b = UnitBuilder("bincount")
    b.array("x", ir.i64)
    b.array("count", ir.i64, written=True)
    b.array("largest", ir.f64, written=True)
    (i,) = b.space("x")
    x = b.load("x", ir.i64, i)
    b.store("count", b.constant(ir.i64, 1), x, combine="add")
    b.store("largest", b.cast(ir.f64, i), x, combine="maximum")
    x = np.random.default_rng(1).integers(0, 5, 1000)
    count, largest = np.zeros(5, np.int64), np.zeros(5)
    load(b.unit())((x, count, largest), 1000)
    assert (count == np.bincount(x)).all()
    assert largest.tolist() == [np.flatnonzero(x == k).max() for k in range(5)]


def test_serial_loops_keep_the_order_of_aliased_accesses(load):
    """b[i] = a[i] + 1 with b one element ahead of a counts up, as it does in Python."""
    b = UnitBuilder("ahead")
    b.array("a", ir.f64)
    b.array("b", ir.f64, written=True)
    b.for_(
        (0, b.extent("a"), 1),
        (),
        lambda k: b.store("b", b.compute("add", b.load("a", ir.f64, k), 1.0), k),
    )
    launcher = load(b.unit())
    for shift in (1, 2, 3, 8, 9):
        x = np.zeros(200 + shift)
        launcher((x[:200], x[shift:]), 1)
        assert (x == np.arange(200 + shift) // shift).all()
    x = np.zeros(200)
    launcher((x, x), 1)
    assert (x == 1).all()


def test_sample_planes_may_be_their_own_output(load):
    v = np.random.default_rng(0).normal(size=1001)
    regime = np.random.default_rng(1).integers(-1, 4, 1001)
    launcher = load(drag())
    out = np.zeros(1001)
    launcher((0.1, regime, v, out), 1001)
    launcher((0.1, regime, v, v), 1001)
    assert (v == out).all()


def test_order_inside_one_position_survives_interleaving(load):
    """Neighbouring elements of one position: the second load sees the first store.

    LLVM forgets this order for interleaved accesses in loops that are declared parallel.
    """
    b = UnitBuilder("pairs")
    b.array("a", ir.f64)
    b.array("b", ir.f64, written=True)
    n = b.scalar("n", ir.i64)
    b.extents.append(n)
    i = b.value(ir.i64)
    b.positions.append(i)
    even = b.compute("multiply", i, 2)
    odd = b.compute("add", even, 1)
    b.store("b", b.compute("add", b.load("a", ir.f64, even), 1.0), odd)
    b.store("b", b.compute("multiply", b.load("a", ir.f64, odd), 10.0), even)
    start = np.random.default_rng(0).normal(size=400)
    for x, y in ((start.copy(), np.zeros(400)), (start.copy(),) * 2):
        expected_x, expected_y = x.copy(), y.copy()
        if x is y:
            expected_y = expected_x
        for k in range(200):
            expected_y[2 * k + 1] = expected_x[2 * k] + 1
            expected_y[2 * k] = expected_x[2 * k + 1] * 10
        load(b.unit())((x, y, 200), 200)
        assert (y == expected_y).all()


def test_infinite_loops_are_not_optimised_away(device):
    b = UnitBuilder("forever")
    b.array("out", ir.f64, written=True)
    b.while_((), lambda: b.constant(ir.bool_, True), lambda: ())
    b.store("out", b.constant(ir.f64, 1.0), 0)
    binary = turnout_cpu.turnout_compile(b.unit(), device.target, Options(keep_text=True))
    assert "store double" not in binary.metadata["text:optimised-llvm-ir"]


def test_unlowered_dispatch_is_refused(device: Device):
    b = UnitBuilder("early")
    kind = b.scalar("kind", ir.i64)
    arms = tuple(b.region((), lambda: b.constant(ir.f64, 1.0)) for _ in range(2))
    b.add(ir.Dispatch((b.value(ir.f64),), kind, arms, "auto", "force"))
    with pytest.raises(CompileError, match="dispatch 'force' of unit 'early' is not lowered"):
        turnout_cpu.turnout_compile(b.unit(), device.target, Options())


def test_local_arrays_that_do_not_fit_the_stack_are_refused(device: Device):
    b = UnitBuilder("huge")
    b.local("work", ir.f64, 1000, 1000)
    with pytest.raises(CompileError, match="unit 'huge' take 8000000 bytes, at most 262144"):
        turnout_cpu.turnout_compile(b.unit(), device.target, Options())


@pytest.mark.parametrize("name", ["exp", "exp_f64", "memset", "f64", "main"])
def test_names_of_the_c_library_are_free_for_units(load, name):
    b = UnitBuilder(name)
    b.array("x", ir.f64)
    b.array("out", ir.f64, written=True)
    (i,) = b.space("x")
    b.store("out", b.compute("exp", b.load("x", ir.f64, i)), i)
    out = np.zeros(3)
    load(b.unit())((np.zeros(3), out), 3)
    assert (out == 1).all()


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_every_optimisation_level_gives_the_same_bits(load, level):
    v = np.random.default_rng(0).normal(size=1001)
    regime = np.random.default_rng(1).integers(-1, 4, 1001)
    out, expected = np.zeros(1001), np.zeros(1001)
    load(drag(), level=level)((0.1, regime, v, out), 1001)
    load(drag())((0.1, regime, v, expected), 1001)
    assert (out == expected).all()
