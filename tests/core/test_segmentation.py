"""Split units give the bits of the switch form; counters count what bincount does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, NDArray, Param, Scalar, Terminated, Vector, ir, reference
from turnout.errors import KernelError
from turnout.ir import DType, Value, bool_, f64, i8, i16, i32, i64, u8, u16, u32, u64
from turnout.lower import dispatch_groups, lower_dispatches
from turnout.positions import position_count
from turnout.segmentation import (
    BLOCK,
    ExtraNames,
    Segmentation,
    classification_problem,
    collect_changed,
    compare_classes,
    count_classes,
    counting_units,
    sampling_unit,
    scatter_order,
    split,
    starts_of,
    with_counters,
)

from .units import UnitBuilder, bits, random_arguments, random_unit

NAMES = ExtraNames("class_", "order_", "start_", "count_", "now_")
SIZES = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 20_000]
INTEGERS = [i8, i16, i32, i64, u8, u16, u32, u64]

Arrays = dict[str, Any]
Run = Callable[[ir.Unit, Mapping[str, Any]], None]


@pytest.fixture(params=["reference", "cpu"])
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a unit on a backend; arguments are given by name."""
    if request.param == "cpu":
        pytest.importorskip("turnout_cpu")
    launch = reference.turnout_launch if request.param == "reference" else _compiled
    return lambda unit, arguments: _run(unit, arguments, launch)


def run_on_reference(unit: ir.Unit, arguments: Mapping[str, Any]) -> None:
    _run(unit, arguments, reference.turnout_launch)


def _run(unit: ir.Unit, arguments: Mapping[str, Any], launch: Callable[[ir.Unit], Any]) -> None:
    unit = lower_dispatches(unit)
    ir.verify(unit)
    args = tuple(arguments[parameter.name] for parameter in unit.parameters)
    launch(unit)(args, position_count(unit)(args))


@cache
def _compiled(unit: ir.Unit) -> Any:
    import turnout_cpu
    from turnout.plugin import Options

    target = turnout_cpu.turnout_devices()[0].target
    return turnout_cpu.turnout_launch(turnout_cpu.turnout_compile(unit, target, Options()), unit)


def unit_of(kernel: Any) -> ir.Unit:
    (unit,) = kernel.lower(kernel.default_types(f64)).plan.units
    assert isinstance(unit, ir.Unit)
    return unit


def copied(arguments: Mapping[str, Any]) -> Arrays:
    return {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in arguments.items()}


def classes_of(run: Run, segmentation: Segmentation, arguments: Arrays, total: int) -> Any:
    classes = np.full(total, 255, np.uint8)
    run(segmentation.classify, arguments | {NAMES.classes: classes})
    return classes


def partition(run: Run, classes: Any, number: int) -> tuple[Any, Any]:
    """Give the offsets of the classes and the order, made by the partition units."""
    samples = len(classes)
    counts = np.full((number, -(-samples // BLOCK)), -1, np.int64)
    offsets, order = np.full(number + 1, -1, np.int64), np.full(samples, -1, np.int64)
    run(count_classes(number), {"classes": classes, "counts": counts, "samples": samples})
    run(starts_of(number), {"counts": counts, "offsets": offsets})
    scattered = {"classes": classes, "starts": counts, "order": order, "samples": samples}
    run(scatter_order(number), scattered)
    return offsets, order


def assert_split_equals_switch(
    run: Run, unit: ir.Unit, groups: Iterable[str], arguments: Arrays, total: int
) -> Segmentation:
    """Compare the branches, the guarded units and the listed unit with the unit itself."""
    segmentation = split(unit, groups, NAMES)
    expected = copied(arguments)
    run(segmentation_free(unit), expected)
    classes = classes_of(run, segmentation, copied(arguments), total)
    offsets, order = partition(run, classes, segmentation.classes)

    by_branch, by_guard, by_list = copied(arguments), copied(arguments), copied(arguments)
    everything = {NAMES.order: order, NAMES.start: 0, NAMES.count: total}
    for number in range(segmentation.classes):
        start, stop = int(offsets[number]), int(offsets[number + 1])
        part = {NAMES.order: order, NAMES.start: start, NAMES.count: stop - start}
        run(segmentation.branches[number], by_branch | part)
        # All positions are offered to each guarded unit.
        run(segmentation.guarded[number], by_guard | everything | {NAMES.now: classes})
    run(segmentation.listed, by_list | everything)
    for outcome in (by_branch, by_guard, by_list):
        for name, array in expected.items():
            assert bits(outcome[name]) == bits(array), name
    return segmentation


def segmentation_free(unit: ir.Unit) -> ir.Unit:
    return lower_dispatches(unit, lambda dispatch: "switch")


# -- kernels ---------------------------------------------------------------------------------------


@tn.kernel
def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    v_new = v + dt * tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)])


@tn.kernel
def state(
    table: NDArray[f64, 1], done: Terminated, kind: Index, v: Mutable[Scalar], w: Mutable[Index]
):
    w = w + kind
    if v > -1.0:
        v = v * tm.dispatch(
            w,
            [table[kind % 4] * v, 0.5, -v * tm.dispatch(kind, [v, 2.0], name="inner")],
            name="outer",
        )
    else:
        a = 0.0
        while a < -v:
            a += 0.75
        v = a
    done = v > 1.0


@tn.kernel
def vectors(k: Index, x: Vector[3], y: Mutable[Vector[3]]):
    y = tm.dispatch(k, [x * 2.0, x * x, tm.sin(x)])


@tn.kernel
def plane(k: NDArray[i32, 2], x: NDArray[f64, 2], out: NDArray[f64, 2]):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            a = tm.dispatch(k[i, j], [x[i, j], x[i, j] * 2.0 + j], name="first")
            b = tm.dispatch(i - k[i, j], [1.0, a, -a], name="second")
            out[i, j] = a * b


def drag_arguments(samples: int) -> Arrays:
    random = np.random.default_rng(samples)
    return {
        "dt": 0.1,
        "regime": random.integers(-2, 5, samples),
        "v": random.normal(size=samples),
        "v_new": np.zeros(samples),
        "samples": samples,
    }


def state_arguments(samples: int) -> Arrays:
    random = np.random.default_rng(samples)
    return {
        "table": random.normal(size=4),
        "done": random.random(samples) < 0.3,
        "kind": random.integers(-2, 4, samples),
        "v": random.normal(size=samples),
        "w": random.integers(-2, 4, samples),
        "samples": samples,
    }


def selecting(selector: DType, arms: int) -> ir.Unit:
    """Build ``out[i] = dispatch(k[i], [0.0, 1.0, ...])``."""
    builder = UnitBuilder("selecting")
    builder.array("k", selector)
    builder.array("out", f64, read=False, written=True)
    extent = builder.extent("k")

    def body(i: Value) -> None:
        writers = [lambda n=n: [builder.constant(float(n), f64)] for n in range(arms)]
        (result,) = builder.dispatch(builder.load("k", i, dtype=selector), *writers)
        builder.store("out", i, value=result)

    return builder.finish([extent], body)


# -- partition units -------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 3, 8, 9, 64])
@pytest.mark.parametrize("samples", SIZES)
def test_partition_is_a_stable_sort(run: Run, samples: int, number: int) -> None:
    classes = np.random.default_rng(number).integers(0, number, samples).astype(np.uint8)
    offsets, order = partition(run, classes, number)
    counts = np.bincount(classes, minlength=number)
    assert offsets.tolist() == [0, *np.cumsum(counts).tolist()]
    assert order.tolist() == np.argsort(classes, kind="stable").tolist()


@pytest.mark.parametrize("only", [0, 1, 2])
def test_partition_of_one_class(run: Run, only: int) -> None:
    offsets, order = partition(run, np.full(5000, only, np.uint8), 3)
    assert offsets.tolist() == [0] * (only + 1) + [5000] * (3 - only)
    assert order.tolist() == list(range(5000))


@pytest.mark.parametrize("share", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("samples", SIZES)
def test_changed_positions_are_listed_in_order(run: Run, samples: int, share: float) -> None:
    random = np.random.default_rng(samples)
    kept = random.integers(0, 64, samples).astype(np.uint8)
    now = np.where(random.random(samples) < share, 63 - kept, kept)
    expected = np.flatnonzero(kept != now)
    changed, total = np.full((1, -(-samples // BLOCK)), -1, np.int64), np.zeros(2, np.int64)
    compared = {"kept": kept, "now": now, "samples": samples}
    run(compare_classes(), compared | {"changed": changed})
    blocks = np.arange(changed.size + 1) * BLOCK
    assert changed[0].tolist() == np.diff(np.searchsorted(expected, blocks)).tolist()
    run(starts_of(1), {"counts": changed, "offsets": total})
    assert total.tolist() == [0, expected.size]
    order = np.full(expected.size, -1, np.int64)
    run(collect_changed(), compared | {"starts": changed, "order": order})
    assert order.tolist() == expected.tolist()


# -- split units -----------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", SIZES)
def test_a_split_gives_the_bits_of_the_switch(run: Run, samples: int) -> None:
    arguments = drag_arguments(samples)
    segmentation = assert_split_equals_switch(run, unit_of(drag), ["dispatch0"], arguments, samples)
    classes = classes_of(run, segmentation, arguments, samples)
    assert classes.tolist() == np.clip(arguments["regime"], 0, 2).tolist()


def test_what_split_units_are_called_and_take() -> None:
    segmentation = split(unit_of(drag), ["dispatch0"], NAMES)
    assert (segmentation.groups, segmentation.sizes, segmentation.classes) == (
        ("dispatch0",),
        (3,),
        3,
    )
    units = [segmentation.classify, *segmentation.branches, *segmentation.guarded]
    assert {unit.name: [p.name for p in unit.parameters] for unit in units} == {
        "drag__cls": ["regime", "samples", "class_"],
        "drag__k0": ["v", "v_new", "dt", "order_", "start_", "count_", "now_"],
        "drag__k1": ["v", "v_new", "dt", "order_", "start_", "count_", "now_"],
        "drag__k2": ["v", "v_new", "dt", "order_", "start_", "count_", "now_"],
    }
    assert [p.name for p in segmentation.branches[0].parameters][-1] == "count_"
    listed = segmentation.listed
    assert listed.name == "drag__listed"
    assert [group.policy for group in dispatch_groups(listed)] == ["switch"]
    text = ir.format_unit(segmentation.branches[0])
    assert "exp" not in text
    assert "regime" not in text


@pytest.mark.parametrize("arms", [2, 3, 64])
@pytest.mark.parametrize("selector", INTEGERS, ids=str)
def test_classes_are_clamped_on_the_full_integer(run: Run, selector: DType, arms: int) -> None:
    unit = selecting(selector, arms)
    values = [selector.minimum, 0, 1, 2, 3, 62, 63, 64, 126, 127, selector.maximum]
    arguments = {"k": np.array(values, selector), "out": np.zeros(len(values))}
    segmentation = split(unit, ["dispatch0"], NAMES)
    expected = np.clip(np.array(values, object), 0, arms - 1)
    assert classes_of(run, segmentation, arguments, len(values)).tolist() == expected.tolist()
    assert (
        mix_of(run, unit, "dispatch0", arguments, arms)
        == np.bincount(expected.astype(int), minlength=arms).tolist()
    )


def test_a_narrow_selector_does_not_reach_the_last_classes(run: Run) -> None:
    arguments = {"k": np.array([-128, 127, 127], np.int8), "out": np.zeros(3)}
    mix = mix_of(run, selecting(i8, 200), "dispatch0", arguments, 200)
    assert {number: count for number, count in enumerate(mix) if count} == {0: 1, 127: 2}


@pytest.mark.parametrize("groups", [["outer"], ["inner"], ["inner", "outer"]])
def test_nested_groups_masks_and_state(run: Run, groups: list[str]) -> None:
    arguments = state_arguments(5000)
    segmentation = assert_split_equals_switch(run, unit_of(state), groups, arguments, 5000)
    assert segmentation.groups == tuple(name for name in ("outer", "inner") if name in groups)
    reached = ~arguments["done"] & (arguments["v"] > -1.0)
    outer = np.where(reached, np.clip(arguments["w"] + arguments["kind"], 0, 2), 0)
    inner = np.where(reached & (outer == 2), np.clip(arguments["kind"], 0, 1), 0)
    expected = {"outer": outer, "inner": inner, "innerouter": outer * 2 + inner}
    classes = classes_of(run, segmentation, arguments, 5000)
    assert classes.tolist() == expected["".join(groups)].tolist()


def test_the_classifier_keeps_only_what_classes_need() -> None:
    classify = split(unit_of(state), ["outer"], NAMES).classify
    assert [p.name for p in classify.parameters] == ["done", "kind", "v", "w", "samples", "class_"]
    everything = list(ir.statements(classify.body.body))
    assert not any(isinstance(s, ir.While | ir.Dispatch) for s in everything)
    assert [s.array for s in everything if isinstance(s, ir.Store)] == ["class_"]


def test_vectors(run: Run) -> None:
    random = np.random.default_rng(0)
    arguments = {"k": random.integers(-1, 4, 500), "x": random.normal(size=(3, 500))}
    arguments |= {"y": np.zeros((3, 500)), "samples": 500}
    assert_split_equals_switch(run, unit_of(vectors), ["dispatch0"], arguments, 500)


@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (70, 90)])
def test_two_groups_over_two_axes(run: Run, shape: tuple[int, int]) -> None:
    random = np.random.default_rng(1)
    k = random.integers(-1, 3, shape).astype(np.int32)
    arguments = {"k": k, "x": random.normal(size=shape), "out": np.zeros(shape)}
    unit, total = unit_of(plane), k.size
    segmentation = assert_split_equals_switch(run, unit, ["second", "first"], arguments, total)
    assert (segmentation.groups, segmentation.sizes) == (("first", "second"), (2, 3))
    first = np.clip(k, 0, 1)
    second = np.clip(np.arange(shape[0])[:, None] - k, 0, 2)
    classes = classes_of(run, segmentation, arguments, total)
    assert classes.tolist() == (first * 3 + second).ravel().tolist()
    for name, values in (("first", first), ("second", second)):
        expected = np.bincount(values.ravel(), minlength=int(values is second) + 2).tolist()
        assert mix_of(run, unit, name, arguments, len(expected)) == expected


def test_a_loop_that_only_the_class_needs_runs_in_the_classifier(run: Run) -> None:
    @tn.kernel
    def iterated(v: Scalar, out: Mutable[Scalar]):
        steps = tn.i64(0)
        a = v
        while a > 1.0:
            a *= 0.5
            steps += 1
        out = tm.dispatch(steps, [v, -v, v * v])

    arguments = {"v": np.linspace(-3.0, 12.0, 100), "out": np.zeros(100), "samples": 100}
    segmentation = assert_split_equals_switch(run, unit_of(iterated), ["dispatch0"], arguments, 100)
    loops = [
        sum(isinstance(s, ir.While) for s in ir.statements(part.body.body))
        for part in (segmentation.classify, *segmentation.branches, segmentation.listed)
    ]
    assert loops == [1, 0, 0, 0, 1]


def test_a_unit_without_extents(run: Run) -> None:
    builder = UnitBuilder("once")
    builder.array("k", i64)
    builder.array("out", f64, written=True)

    def body() -> None:
        zero = builder.constant(0)
        arms = [lambda n=n: [builder.constant(float(n), f64)] for n in range(3)]
        (result,) = builder.dispatch(builder.load("k", zero, dtype=i64), *arms)
        builder.store("out", zero, value=result)

    arguments = {"k": np.array([1]), "out": np.zeros(1)}
    unit = builder.finish([], body)
    assert_split_equals_switch(run, unit, ["dispatch0"], arguments, 1)
    assert mix_of(run, unit, "dispatch0", arguments, 3) == [0, 1, 0]


def test_local_arrays_and_loops_that_the_class_needs_stay(run: Run) -> None:
    builder = UnitBuilder("remembering")
    builder.array("k", i64)
    builder.array("out", f64, written=True)
    extent = builder.extent("k")

    def body(i: Value) -> None:
        zero, one, three = builder.constant(0), builder.constant(1), builder.constant(3)
        for name in ("needed", "other"):
            builder.local(name, i64, 3)

        def fill(index: Value) -> None:
            k = builder.load("k", i, dtype=i64)
            builder.store("needed", index, value=builder.compute("multiply", k, index))
            builder.store("other", index, value=k)

        builder.loop((zero, three, one), [], fill)
        arms = [lambda n=n: [builder.constant(float(n), f64)] for n in range(4)]
        (result,) = builder.dispatch(builder.load("needed", one, dtype=i64), *arms)
        last = builder.cast(builder.load("other", one, dtype=i64), f64)
        builder.store("out", i, value=builder.compute("add", result, last))

    unit = builder.finish([extent], body)
    arguments = {"k": np.arange(-3, 8), "out": np.zeros(11)}
    segmentation = assert_split_equals_switch(run, unit, ["dispatch0"], arguments, 11)
    local = {
        part.name: [s.array for s in ir.statements(part.body.body) if isinstance(s, ir.LocalArray)]
        for part in (segmentation.classify, segmentation.branches[0])
    }
    assert local == {"remembering__cls": ["needed"], "remembering__k0": ["other"]}


def splittable(unit: ir.Unit) -> list[str]:
    """Name as many groups as make no more than 12 units."""
    names: list[str] = []
    units = 1
    for group in dispatch_groups(unit):
        fits = units * len(group.arms) <= 12
        if fits and not classification_problem(unit, group.name):
            names.append(group.name)
            units *= len(group.arms)
    return names


@pytest.mark.parametrize("seed", [1, 4, 6, 7, 8, 12, 19, 22, 23, 27])
def test_random_units(seed: int) -> None:
    run = run_on_reference
    unit = random_unit(seed)
    groups = splittable(unit)
    assert groups
    arguments = dict(zip(["x", "k", "t", "out"], random_arguments(seed, 50), strict=True))
    assert_split_equals_switch(run, unit, groups, arguments, 50)

    inline = {group.name: f"mix_{group.name}" for group in dispatch_groups(unit)}
    mixes = {array: np.zeros(4, np.uint32) for array in inline.values()}
    run(with_counters(unit, inline), copied(arguments) | mixes)
    for name in groups:
        assert mix_of(run, unit, name, arguments, 4) == mixes[f"mix_{name}"].tolist()


# -- refusals --------------------------------------------------------------------------------------


def test_a_dispatch_in_a_loop_is_refused() -> None:
    @tn.kernel
    def looping(k: Index, v: Scalar, out: Mutable[Scalar]):
        total = 0.0
        for i in range(3):
            total += tm.dispatch(k + i, [v, -v], name="law")
        out = total

    with pytest.raises(KernelError) as caught:
        split(unit_of(looping), ["law"], NAMES)
    assert str(caught.value) == (
        "kernel 'looping', dispatch 'law': policy 'segmented' needs the class of every position "
        "before the run, but it is in a loop, which may change its class; use 'switch', "
        "'predicated' or 'auto'"
    )


def storing_first(*, in_other_arm: bool) -> ir.Unit:
    builder = UnitBuilder("storing")
    builder.array("k", i64, written=True)
    builder.array("choice", bool_)
    extent = builder.extent("k")

    def body(i: Value) -> None:
        def store() -> None:
            builder.store("k", i, value=builder.constant(1))

        def choose() -> None:
            arms = [lambda: builder.store("k", i, value=i), lambda: None]
            builder.dispatch(builder.load("k", i, dtype=i64), *arms, name="late")

        if in_other_arm:
            builder.branch(builder.load("choice", i, dtype=bool_), store, choose)
            return
        builder.branch(builder.load("choice", i, dtype=bool_), store)
        choose()

    return builder.finish([extent], body)


def test_a_class_read_after_a_store_is_refused() -> None:
    with pytest.raises(KernelError) as caught:
        split(storing_first(in_other_arm=False), ["late"], NAMES)
    assert str(caught.value) == (
        "kernel 'storing', dispatch 'late': policy 'segmented' needs the class of every position "
        "before the run, but its class is read from 'k' after a store to it; "
        "use 'switch', 'predicated' or 'auto'"
    )


def test_a_store_in_another_arm_is_not_before(run: Run) -> None:
    arguments = {"k": np.array([0, 0, 1, 1]), "choice": np.array([True, False, True, False])}
    assert_split_equals_switch(run, storing_first(in_other_arm=True), ["late"], arguments, 4)


def test_unknown_dispatches_are_refused() -> None:
    message = "kernel 'drag' has no dispatch 'drag0', 'x'; its dispatches are 'dispatch0'"
    for function in (with_counters, counting_units):
        with pytest.raises(KernelError, match=message):
            function(unit_of(drag), {"x": "mix_x", "drag0": "mix_"})
    with pytest.raises(KernelError, match=message):
        split(unit_of(drag), ["dispatch0", "x", "drag0"], NAMES)


def test_too_many_joint_classes_are_refused() -> None:
    @tn.kernel
    def many(k: Index, v: Scalar, out: Mutable[Scalar]):
        a = tm.dispatch(k, [v, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], name="nine")
        out = a + tm.dispatch(k, [v, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], name="eight")

    with pytest.raises(KernelError) as caught:
        split(unit_of(many), ["nine", "eight"], NAMES)
    assert str(caught.value) == (
        "kernel 'many': its segmented dispatches 'nine' (9), 'eight' (8) make 72 joint classes; "
        "at most 64 are allowed, because each is a unit of its own; "
        "use 'switch', 'predicated' or 'auto' for one of them"
    )
    with pytest.raises(KernelError, match=r"dispatches 'dispatch0' \(65\) make 65 .* for it$"):
        split(selecting(i64, 65), ["dispatch0"], NAMES)


# -- counters --------------------------------------------------------------------------------------


def mix_of(run: Run, unit: ir.Unit, group: str, arguments: Arrays, classes: int) -> list[int]:
    """Count twice from 5 on by a unit of its own; give what one run added."""
    (counting,) = counting_units(unit, {group: "mix_"})
    mix = np.full(classes, 5, np.uint32)
    for _ in range(2):
        run(counting, copied(arguments) | {"mix_": mix})
    added = (mix - 5).tolist()
    assert all(number % 2 == 0 for number in added)
    return [number // 2 for number in added]


@pytest.mark.parametrize("classes", [2, 3, 8, 9, 64])
@pytest.mark.parametrize("samples", SIZES)
def test_counting_units_count_as_bincount(run: Run, samples: int, classes: int) -> None:
    k = np.random.default_rng(samples).integers(-2, classes + 2, samples)
    arguments = {"k": k, "out": np.zeros(samples)}
    expected = np.bincount(np.clip(k, 0, classes - 1), minlength=classes).tolist()
    assert mix_of(run, selecting(i64, classes), "dispatch0", arguments, classes) == expected


@pytest.mark.parametrize("classes", [3, 9])
@pytest.mark.parametrize("samples", [0, 1, 31, 32, 33, 999, 1000])
def test_a_sampling_unit_looks_at_all_of_few(run: Run, samples: int, classes: int) -> None:
    unit = sampling_unit(selecting(i64, classes), "dispatch0", "mix_", 1000)
    k = np.random.default_rng(samples).integers(-2, classes + 2, samples)
    mix = np.full(classes, 5, np.uint32)
    run(unit, {"k": k, "out": np.zeros(samples), "mix_": mix})
    expected = np.bincount(np.clip(k, 0, classes - 1), minlength=classes)
    assert (mix - 5).tolist() == expected.tolist()


@pytest.mark.parametrize("samples", [1001, 1024, 5000, 65_536, 100_003])
def test_a_sampling_unit_looks_everywhere_in_many(run: Run, samples: int) -> None:
    unit = sampling_unit(selecting(i64, 10), "dispatch0", "mix_", 1000)
    places = np.arange(samples)
    for name, k in {
        "tenths": places * 10 // samples,
        "even and odd": places % 2,
        "runs of four": places // 4 % 2,
        "every eighth": (places % 8 == 3).astype(int),
    }.items():
        mix = np.zeros(10, np.uint32)
        run(unit, {"k": k, "out": np.zeros(samples), "mix_": mix})
        assert mix.sum() == 1000
        shares = np.bincount(k, minlength=10) / samples
        assert np.abs(mix / 1000 - shares).max() < 0.035, name


def test_a_sampling_unit_counts_what_is_reached(run: Run) -> None:
    unit, arguments = unit_of(state), state_arguments(500)
    reached = ~arguments["done"] & (arguments["v"] > -1.0)
    outer = np.clip(arguments["w"] + arguments["kind"], 0, 2)
    mix = np.zeros(3, np.uint32)
    before = copied(arguments)
    run(sampling_unit(unit, "outer", "mix_", 1000), arguments | {"mix_": mix})
    assert mix.tolist() == np.bincount(outer[reached], minlength=3).tolist()
    for name, array in before.items():
        assert bits(arguments[name]) == bits(array)


def test_what_is_not_reached_is_not_counted(run: Run) -> None:
    unit, arguments = unit_of(state), state_arguments(5000)
    reached = ~arguments["done"] & (arguments["v"] > -1.0)
    outer = np.clip(arguments["w"] + arguments["kind"], 0, 2)
    inner = np.clip(arguments["kind"], 0, 1)
    expected = {
        "outer": np.bincount(outer[reached], minlength=3).tolist(),
        "inner": np.bincount(inner[reached & (outer == 2)], minlength=2).tolist(),
    }
    for name, counts in expected.items():
        assert mix_of(run, unit, name, arguments, len(counts)) == counts
    names = {"outer": "mix_outer", "inner": "mix_inner"}
    mixes = {"mix_outer": np.zeros(3, np.uint32), "mix_inner": np.zeros(2, np.uint32)}
    counted = with_counters(unit, names)
    assert [p.name for p in counted.parameters][-2:] == ["mix_outer", "mix_inner"]
    after = copied(arguments)
    run(counted, after | mixes)
    assert {name: mixes[array].tolist() for name, array in names.items()} == expected
    plain = copied(arguments)
    run(unit, plain)
    for name, array in plain.items():
        assert bits(after[name]) == bits(array)
    assert [u.name for u in counting_units(unit, names)] == ["state__mix0", "state__mix1"]


def test_a_class_that_depends_on_a_segmented_dispatch_is_counted(run: Run) -> None:
    @tn.kernel
    def chained(k: Index, v: Scalar, out: Mutable[Scalar]):
        inner = tm.dispatch(k, [k + 2, k - 1, k - 2], name="first")
        out = tm.dispatch(inner, [v, -v, 1.0], policy="auto", name="second")

    def declared(statement: ir.Statement) -> ir.Statement:
        is_first = isinstance(statement, ir.Dispatch) and statement.name == "first"
        return replace(statement, policy="segmented") if is_first else statement

    unit = unit_of(chained)
    body = replace(unit.body, body=tuple(map(declared, unit.body.body)))
    unit = replace(unit, body=body)

    k = np.array([-9, -2, -1, 0, 1, 2, 3, 4, 2, 3])
    arguments = {"k": k, "v": np.ones(10), "out": np.zeros(10), "samples": 10}
    inner = np.choose(np.clip(k, 0, 2), [k + 2, k - 1, k - 2])
    expected = np.bincount(np.clip(inner, 0, 2), minlength=3).tolist()
    assert mix_of(run, unit, "second", arguments, 3) == expected
    assert_split_equals_switch(run, unit, ["first", "second"], arguments, 10)
    assert_split_equals_switch(run, unit, ["first"], arguments, 10)


def test_counters_count_every_trip_of_a_loop(run: Run) -> None:
    @tn.kernel
    def looping(k: Index, v: Scalar, out: Mutable[Scalar]):
        total = 0.0
        for i in range(3):
            total += tm.dispatch(k + i, [v, -v, 1.0])
        out = total

    k, mix = np.arange(-3, 50), np.full(3, 7, np.uint32)
    arguments = {"k": k, "v": np.ones(53), "out": np.zeros(53), "samples": 53, "mix_": mix}
    unit = unit_of(looping)
    assert classification_problem(unit, "dispatch0") == "it is in a loop"
    with pytest.raises(KernelError, match="cannot be counted before the run, because it is in a"):
        counting_units(unit, {"dispatch0": "mix_"})
    run(with_counters(unit, {"dispatch0": "mix_"}), arguments)
    evaluated = np.clip(k[:, None] + np.arange(3), 0, 2).ravel()
    assert mix.tolist() == (7 + np.bincount(evaluated, minlength=3)).tolist()
