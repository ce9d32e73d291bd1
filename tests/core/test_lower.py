"""Dispatch lowerings: every policy gives the bits of a switch, and none faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from turnout import ir
from turnout.errors import KernelError
from turnout.ir import DType, Value, f64, i8, i64, u8
from turnout.lower import POLICIES, dispatch_groups, lower_dispatches

from .units import UnitBuilder, bits, random_arguments, random_unit, run

Arm = Callable[[UnitBuilder, Value, Value], Sequence[Value] | None]


def lowered(unit: ir.Unit, policy: str) -> ir.Unit:
    result = lower_dispatches(unit, lambda dispatch: policy)
    ir.verify(result)
    assert dispatch_groups(result) == []
    return result


def dispatching(*arms: Arm, policy: str = "auto", selector: DType = i64) -> ir.Unit:
    """Build ``out[i] = sum(dispatch(k[i], arms))``; an arm is given ``x[i]`` and ``i``."""
    builder = UnitBuilder("laws")
    builder.array("k", selector)
    builder.array("x", f64)
    builder.array("table", f64, written=True)
    builder.array("out", f64, written=True)
    extent = builder.extent("x")

    def body(i: Value) -> None:
        k, x = builder.load("k", i, dtype=selector), builder.load("x", i, dtype=f64)
        total = builder.constant(0.0, f64)
        writers = [lambda arm=arm: arm(builder, x, i) for arm in arms]
        for result in builder.dispatch(k, *writers, policy=policy, name="law"):
            total = builder.compute("add", total, result)
        builder.store("out", i, value=total)

    return builder.finish([extent], body)


def scaled(factor: float) -> Arm:
    return lambda b, x, i: [b.compute("multiply", x, b.constant(factor, f64))]


def gaussian(b: UnitBuilder, x: Value, i: Value) -> Sequence[Value]:
    square = b.compute("multiply", x, x)
    return [b.compute("exp", b.compute("negative", square))]


def outcome(unit: ir.Unit, k: Any, count: int, table_size: int = 0) -> bytes:
    x = np.linspace(-2.0, 3.0, count)
    table, out = np.arange(float(table_size)), np.zeros(count)
    run(unit, k, x, table, out)
    return bits(out) + bits(table)


def test_groups_come_in_source_order() -> None:
    unit = random_unit(4)
    names = [group.name for group in dispatch_groups(unit)]
    text = ir.format_unit(unit)
    assert len(names) > 3
    assert names == [part.split()[0] for part in text.split("= dispatch ")[1:]]


def test_a_unit_without_dispatch_comes_back_as_it_is() -> None:
    unit = UnitBuilder().finish([], lambda: None)
    assert lower_dispatches(unit) is unit
    assert dispatch_groups(unit) == []


@pytest.mark.parametrize("policy", ["switch", "auto"])
def test_switch_keeps_the_arms(policy: str) -> None:
    unit = dispatching(scaled(2.0), gaussian)
    (dispatch,) = dispatch_groups(unit)
    (switch,) = (s for s in lowered(unit, policy).body.body if isinstance(s, ir.Switch))
    assert (switch.results, switch.selector, switch.arms) == (
        dispatch.results,
        dispatch.selector,
        dispatch.arms,
    )


def test_predicated_evaluates_every_arm_and_selects() -> None:
    unit = dispatching(scaled(2.0), gaussian, scaled(-1.0), policy="predicated")
    body = ir.format_unit(lower_dispatches(unit)).partition("for each")[2].splitlines()[1:]
    assert [line.strip() for line in body] == [
        "%2: i64 = k[%1]",
        "%3: f64 = x[%1]",
        "%4: f64 = 0.0",
        "%14: i64 = 0",
        "%15: bool_ = less_equal(%2, %14)",
        "%16: i64 = 1",
        "%17: bool_ = equal(%2, %16)",
        "%18: i64 = 2",
        "%19: bool_ = greater_equal(%2, %18)",
        "%5: f64 = 2.0",
        "%6: f64 = multiply(%3, %5)",
        "%7: f64 = multiply(%3, %3)",
        "%8: f64 = negative(%7)",
        "%9: f64 = exp(%8)",
        "%10: f64 = -1.0",
        "%11: f64 = multiply(%3, %10)",
        "%20: f64 = select(%17, %9, %11)",
        "%12: f64 = select(%15, %6, %20)",
        "%13: f64 = add(%4, %12)",
        "out[%1] = %13",
    ]


@pytest.mark.parametrize("arms", [1, 2, 3, 5, 140, 300])
@pytest.mark.parametrize("selector", [i8, u8, i64], ids=str)
def test_classes_are_clamped_on_the_full_integer(arms: int, selector: DType) -> None:
    unit = dispatching(*(scaled(float(number)) for number in range(arms)), selector=selector)
    values = [selector.minimum, 0, 1, 2, 3, 4, 5, 126, 127, selector.maximum]
    k = np.array(values, selector)
    expected = np.linspace(-2.0, 3.0, len(k)) * np.clip([int(v) for v in values], 0, arms - 1)
    for policy in ("switch", "predicated"):
        assert outcome(lowered(unit, policy), k, len(k)) == bits(expected + 0.0)


def guarded_load(b: UnitBuilder, x: Value, i: Value) -> Sequence[Value]:
    """Read the table, which has room for the samples of this class only."""
    value = b.load("table", i, dtype=f64)
    return [b.compute("exp", b.compute("subtract", value, x))]


def guarded_update(b: UnitBuilder, x: Value, i: Value) -> Sequence[Value]:
    before = b.load("table", i, dtype=f64)
    b.store("table", i, value=b.compute("add", before, x))
    after = b.load("table", i, dtype=f64)
    return [b.compute("multiply", after, before)]


def guarded_loop(b: UnitBuilder, x: Value, i: Value) -> Sequence[Value]:
    """Count down from ``i``, for ever where it starts below zero, to which no lane comes."""
    one = b.constant(1)
    start = b.compute("subtract", b.constant(9), i)
    left, total = b.loop_while(
        [start, x],
        lambda n, s: [b.compute("not_equal", n, b.constant(0))],
        lambda n, s: [b.compute("subtract", n, one), b.compute("add", s, s)],
    )
    return [b.compute("add", total, b.cast(left, f64))]


def private_array(b: UnitBuilder, x: Value, i: Value) -> Sequence[Value]:
    b.local("scratch", f64, 10)
    b.store("scratch", i, value=x)
    return [b.compute("sin", b.load("scratch", i, dtype=f64))]


GUARDED = [guarded_load, guarded_update, guarded_loop, private_array]


@pytest.mark.parametrize(("first", "second"), list(product(GUARDED, GUARDED[:3])))
def test_what_may_fault_runs_for_its_class_only(first: Arm, second: Arm) -> None:
    unit = dispatching(gaussian, first, second)
    # Only positions below 10 are of a class whose table index or loop is right.
    k = np.array([1, 2, 0, 1, 2, 2, 1, 0, 1, 2] + [0, -5] * 10)
    expected = outcome(lowered(unit, "switch"), k, 30, 10)
    assert outcome(lowered(unit, "predicated"), k, 30, 10) == expected


def test_only_unsafe_statements_are_guarded() -> None:
    unit = lowered(dispatching(gaussian, guarded_load), "predicated")
    kinds = [type(statement) for statement in unit.body.body]
    operations = [s.operation for s in unit.body.body if isinstance(s, ir.Compute)]
    assert kinds.count(ir.If) == 1
    assert operations.count("exp") == 2


def test_integer_division_in_an_arm_not_taken_is_safe() -> None:
    def divided(b: UnitBuilder, x: Value, i: Value) -> Sequence[Value]:
        quotient = b.compute("floor_divide", i, b.compute("remainder", i, b.constant(3)))
        return [b.cast(quotient, f64)]

    unit = dispatching(divided, scaled(1.0))
    k = np.array([1, 0, 0, 1, 0, 0])
    expected = outcome(lowered(unit, "switch"), k, 6)
    assert outcome(lowered(unit, "predicated"), k, 6) == expected


def test_dispatches_with_several_results_and_with_none() -> None:
    def vector(factor: float) -> Arm:
        def arm(b: UnitBuilder, x: Value, i: Value) -> Sequence[Value]:
            return [x, b.compute("multiply", x, b.constant(factor, f64)), b.constant(factor, f64)]

        return arm

    def marking(value: float) -> Arm:
        return lambda b, x, i: b.store("table", i, value=b.constant(value, f64))

    k = np.array([0, 1, 2, 9, -9])
    for arms in ([vector(f) for f in (1.0, 2.0, 3.0)], [marking(f) for f in (5.0, 6.0, 7.0)]):
        unit = dispatching(*arms)
        expected = outcome(lowered(unit, "switch"), k, 5, 5)
        assert outcome(lowered(unit, "predicated"), k, 5, 5) == expected


def nested(policies: tuple[str, str]) -> ir.Unit:
    def inner(b: UnitBuilder, x: Value, i: Value) -> Sequence[Value]:
        return b.dispatch(
            i,
            lambda: guarded_load(b, x, i),
            lambda: gaussian(b, x, i),
            policy=policies[1],
            name="inner",
        )

    return dispatching(scaled(3.0), inner, policy=policies[0])


def test_nested_dispatches_follow_their_own_policies() -> None:
    k = np.array([1, 1, 0, 1])
    expected = outcome(lowered(nested(("auto", "auto")), "switch"), k, 4, 1)
    for policies in product(("switch", "predicated"), repeat=2):
        unit = nested(policies)
        assert [group.name for group in dispatch_groups(unit)] == ["law", "inner"]
        result = lower_dispatches(unit)
        ir.verify(result)
        switches = [s for s in ir.statements(result.body.body) if isinstance(s, ir.Switch)]
        assert len(switches) == policies.count("switch")
        assert outcome(result, k, 4, 1) == expected


def test_the_callers_choice_is_asked_for_each_dispatch() -> None:
    asked = []

    def choose(dispatch: ir.Dispatch) -> str:
        asked.append((dispatch.name, dispatch.policy, len(dispatch.arms)))
        return "predicated"

    lower_dispatches(nested(("auto", "switch")), choose)
    assert asked == [("law", "auto", 2), ("inner", "switch", 2)]


@pytest.mark.parametrize("seed", range(20))
def test_random_units_give_the_same_bits_under_every_policy(seed: int) -> None:
    unit = random_unit(seed)
    number = iter(range(10**6))
    policies = ("switch", "predicated")
    mixed = lower_dispatches(unit, lambda dispatch: policies[next(number) % 2])
    ir.verify(mixed)
    results = set()
    for variant in (unit, lowered(unit, "switch"), lowered(unit, "predicated"), mixed):
        arguments = random_arguments(seed, 60)
        run(variant, *arguments)
        results.add(bits(arguments[-1]))
    assert len(results) == 1


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(KernelError) as caught:
        lower_dispatches(dispatching(gaussian, scaled(1.0)), lambda dispatch: "tango")
    assert str(caught.value) == (
        "kernel 'laws', dispatch 'law': unknown policy 'tango'; "
        "the policies are 'switch', 'predicated', 'segmented', 'auto'"
    )
    assert POLICIES == ("switch", "predicated", "segmented", "auto")


def test_one_unit_cannot_be_segmented() -> None:
    with pytest.raises(KernelError) as caught:
        lower_dispatches(dispatching(gaussian, scaled(1.0), policy="segmented"))
    assert str(caught.value) == (
        "kernel 'laws', dispatch 'law': policy 'segmented' takes more than one unit "
        "(turnout.segmentation)"
    )
