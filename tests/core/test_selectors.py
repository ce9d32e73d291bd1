"""The entries about dispatches in sidecars: what selectors depend on, and which are static."""

from __future__ import annotations

import json
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from language_support import function_from, integers

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, NDArray, Param, Scalar, Terminated, Vector, f64, i32, i64
from turnout.selectors import dispatch_entries


def entry(kernel):
    (only,) = dispatch_entries(kernel)
    return only


def reads(kernel):
    """Whether the selector is static, and what it reads."""
    found = entry(kernel)
    return found["static_selector"], found["selector_reads"]


@tn.kernel
def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    a = tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)], policy="auto")
    v_new = v + dt * a


def test_entry_of_an_auto_dispatch_has_these_keys_in_this_order():
    assert dispatch_entries(drag) == [
        {
            "name": "dispatch0",
            "K": 3,
            "policy": "auto",
            "static_selector": True,
            "selector_reads": [["per_sample", "regime"]],
            "mix": "dispatch0_mix",
        }
    ]
    assert list(entry(drag)) == [
        "name", "K", "policy", "static_selector", "selector_reads", "mix",
    ]  # fmt: skip
    assert json.loads(json.dumps(entry(drag))) == entry(drag)


def test_a_kernel_without_dispatches_has_no_entries():
    @tn.kernel
    def plain(x: Scalar) -> Scalar:
        return x * 2

    assert dispatch_entries(plain) == []


def test_only_auto_dispatches_count():
    @tn.kernel
    def pinned(r: Index, v: Scalar) -> Scalar:
        return tm.dispatch(r, [v, -v], policy="predicated", name="side")

    assert entry(pinned) == {
        "name": "side",
        "K": 2,
        "policy": "predicated",
        "static_selector": True,
        "selector_reads": [["per_sample", "r"]],
    }


# -- what a selector reads -------------------------------------------------------------------------


def test_state_that_the_kernel_rewrites_is_not_static():
    @tn.kernel
    def drag_by_speed(
        dt: Param, cut: Param, slow: Index, fast: Index, v: Mutable[Scalar], regime: Mutable[Index]
    ):
        v = v + dt * tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v)], policy="auto")
        regime = tm.select(abs(v) > cut, fast, slow)

    assert reads(drag_by_speed) == (False, [["mutable", "regime"]])


def test_uniform_parameters_are_listed_and_static():
    @tn.kernel
    def by_speed(cut: Param, hi: Index, lo: Index, v: Scalar) -> Scalar:
        return tm.dispatch(tm.select(abs(v) > cut, hi, lo), [v, -v])

    inputs = [["per_sample", "hi"], ["per_sample", "lo"], ["per_sample", "v"], ["uniform", "cut"]]
    assert reads(by_speed) == (True, inputs)

    @tn.kernel
    def one_class(s: Param[i32], v: Scalar) -> Scalar:
        return tm.dispatch(s, [v, 2 * v, 3 * v])

    assert reads(one_class) == (True, [["uniform", "s"]])


def test_a_number_whose_type_is_open_may_be_the_class():
    @tn.kernel
    def one_class(factor: Param, s: Param, v: Scalar) -> Scalar:
        return tm.dispatch(s, [v, factor * v])

    assert reads(one_class) == (True, [["uniform", "s"]])
    given = {"factor": "float", "s": "int", "v": f64, "return": f64}
    assert dispatch_entries(one_class, given) == dispatch_entries(one_class)
    with pytest.raises(tn.KernelError, match="the class of a dispatch must be an integer"):
        dispatch_entries(one_class, given | {"s": "float"})


def test_a_kernel_that_nothing_fits_is_refused_with_what_was_tried():
    @tn.kernel
    def wrong(s: Param, v: Scalar) -> Scalar:
        return tm.dispatch(v + s, [v, -v])

    with pytest.raises(tn.KernelError, match="the class of a dispatch must be an integer") as error:
        dispatch_entries(wrong)
    assert error.value.__notes__ == [
        "wrong is read before its first call, with a Python float or int for s; where it takes "
        "another number, say so, as in Param[u16]"
    ]


def test_outputs_count_as_they_were_before_the_kernel_assigned_them():
    @tn.kernel
    def before(v: Mutable[Scalar]):
        v = v + tm.dispatch(tm.index(v, 3), [v, 2 * v, 3 * v])

    assert reads(before) == (False, [["mutable", "v"]])

    @tn.kernel
    def after(x: Scalar, m: Mutable[Scalar], y: Mutable[Scalar]):
        m = 2 * x
        y = tm.dispatch(tm.index(m, 3), [m, 2 * m, 3 * m])

    assert reads(after) == (True, [["per_sample", "x"]])


def test_tables_and_their_indices():
    @tn.kernel
    def looked_up(i: Index, t: NDArray[i64, 1], v: Scalar) -> Scalar:
        return tm.dispatch(t[i], [v, 2 * v, 3 * v], policy="predicated")

    assert reads(looked_up) == (True, [["lookup", "t"], ["per_sample", "i"]])


def test_vectors_and_what_the_launch_knows():
    @tn.kernel
    def by_component(g: Vector[3], v: Scalar) -> Scalar:
        return tm.dispatch(tm.index(g[1], 2), [v, -v])

    assert reads(by_component) == (True, [["vec_in", "g"]])

    @tn.kernel
    def by_count(v: Scalar) -> Scalar:
        return tm.dispatch(tm.sample_count(), [v, -v])

    assert reads(by_count) == (True, [["nsamples", "n_samples"]])


def test_the_place_of_a_sample_is_listed_and_static():
    @tn.kernel
    def by_place(v: Scalar) -> Scalar:
        return tm.dispatch(tm.sample_index() % 3, [v, -v, 2 * v])

    assert reads(by_place) == (True, [["index", "sample_index"]])

    @tn.kernel
    def in_a_table(t: NDArray[i64, 1], v: Scalar) -> Scalar:
        return tm.dispatch(t[tm.sample_index()], [v, -v, 2 * v])

    assert reads(in_a_table) == (True, [["index", "sample_index"], ["lookup", "t"]])

    @tn.kernel
    def without_planes(s: Param[i64]) -> Scalar:
        return tm.dispatch(tm.sample_index() + s, [1.0, 2.0])

    assert reads(without_planes) == (True, [["index", "sample_index"], ["uniform", "s"]])


def test_dispatches_inside_of_and_as_selectors_of_others():
    @tn.kernel
    def nested(a: Index, b: Index, v: Scalar) -> Scalar:
        return tm.dispatch(a, [v, tm.dispatch(b, [-v, 2 * v]), 3 * v])

    found = {item["name"]: item["selector_reads"] for item in dispatch_entries(nested)}
    # Whether the inner one runs depends on a; its class does not.
    assert found == {"dispatch0": [["per_sample", "a"]], "dispatch1": [["per_sample", "b"]]}

    @tn.kernel
    def chained(a: Index, b: Index, c: Index, v: Scalar) -> Scalar:
        return tm.dispatch(tm.dispatch(a, [b, c]), [v, -v])

    assert [item["selector_reads"] for item in dispatch_entries(chained)] == [
        [["per_sample", "a"]],
        [["per_sample", "a"], ["per_sample", "b"], ["per_sample", "c"]],
    ]


# -- control flow ----------------------------------------------------------------------------------


def test_a_mask_decides_who_runs_and_not_the_class():
    @tn.kernel
    def ends(r: Index, x: Scalar, done: Terminated, y: Mutable[Scalar]):
        y = tm.dispatch(r, [x, -x])
        done = x > 1

    assert reads(ends) == (True, [["per_sample", "r"]])

    @tn.kernel
    def by_mask(r: Index, x: Scalar, done: Terminated, y: Mutable[Scalar]):
        y = tm.dispatch(tm.select(done, r, 0), [x, -x])
        done = x > 1

    assert reads(by_mask) == (False, [["per_sample", "r"], ["terminated", "done"]])


def test_conditions_count_where_values_are_joined():
    @tn.kernel
    def joined(cut: Param, a: Index, b: Index, v: Scalar, z: Scalar) -> Scalar:
        k = a
        if v > cut:
            k = b
        y = v
        if z > 0:
            y = tm.dispatch(k, [v, -v])
        return y

    inputs = [["per_sample", "a"], ["per_sample", "b"], ["per_sample", "v"], ["uniform", "cut"]]
    assert reads(joined) == (True, inputs)


def test_values_carried_by_loops_lead_to_what_they_began_with():
    @tn.kernel
    def rounds(v: Mutable[Scalar], z: Scalar, u: Scalar):
        w = v
        for i in range(5):
            w = w * u + tm.dispatch(tm.index(2 * abs(w), 3), [w, -w, 0.5 * z])
        v = w

    # The class of a round depends on the values of the branches of the round before, too.
    inputs = [["mutable", "v"], ["per_sample", "u"], ["per_sample", "z"]]
    assert reads(rounds) == (False, inputs)

    @tn.kernel
    def separate(x: Scalar, k: Index) -> Scalar:
        j = k
        w = x
        for i in range(5):
            w = tm.dispatch(j, [w, -w])
            j = j + i
        return w

    assert reads(separate) == (True, [["per_sample", "k"]])


def test_values_carried_by_while_loops():
    @tn.kernel
    def halved(x: Scalar, stop: Param, k: Index) -> Scalar:
        w = x
        j = k
        while w > stop:
            w = w / 2
            j = j + 1
        return tm.dispatch(j, [w, -w])

    # How many rounds there were decides the class after the loop.
    assert reads(halved) == (True, [["per_sample", "k"], ["per_sample", "x"], ["uniform", "stop"]])

    @tn.kernel
    def inside(x: Scalar, stop: Param, k: Index) -> Scalar:
        w = x
        j = k
        while w > stop:
            w = w / 2 + tm.dispatch(j, [0.0, 1.0])
            j = j + 1
        return w

    assert reads(inside) == (True, [["per_sample", "k"]])


def test_the_number_of_rounds_counts_where_a_for_loop_ends():
    @tn.kernel
    def counted(n: Index, x: Scalar) -> Scalar:
        j = 0
        for i in range(n):
            j = j + 1
        return tm.dispatch(j, [x, -x])

    assert reads(counted) == (True, [["per_sample", "n"]])

    @tn.kernel
    def by_round(n: Index, s: Param[i64], x: Scalar) -> Scalar:
        w = x
        for i in range(s, n):
            w = w + tm.dispatch(i, [x, -x])
        return w

    assert reads(by_round) == (True, [["uniform", "s"]])


def test_private_arrays_lead_to_what_is_stored_in_them():
    @tn.kernel
    def histogram(a: Index, b: Index, c: Index, x: Scalar) -> Scalar:
        seen = tm.zeros(4, i64)
        seen[a % 4] = b
        if c > 0:
            seen[0] = 1
        return tm.dispatch(seen[1], [x, -x])

    assert reads(histogram) == (
        True,
        [["per_sample", "a"], ["per_sample", "b"], ["per_sample", "c"]],
    )


# -- generated selectors: what is not read does not matter -----------------------------------------

INPUTS = ("a", "b", "c", "d")
names = st.sampled_from([*INPUTS, "j", "k"])
targets = st.sampled_from(["j", "k"])


def indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


assignments = st.builds(
    lambda target, x, operator, y: [f"{target} = {x} {operator} {y}"],
    targets, names, st.sampled_from("+-*"), names,
)  # fmt: skip


def compound(blocks):
    branch = st.builds(
        lambda x, then, other: [f"if {x} > 0:", *indented(then), "else:", *indented(other)],
        names, blocks, blocks,
    )  # fmt: skip
    loop = st.builds(
        lambda n, body: [f"for i in range({n}):", *indented(body)],
        st.sampled_from(["2", "3", "tm.minimum(a, 3)"]), blocks,
    )  # fmt: skip
    left_early = st.builds(
        lambda x, body: ["for i in range(3):", *indented([f"if {x} < 0:", "    break", *body])],
        names, blocks,
    )  # fmt: skip
    private = st.builds(
        lambda index, value, target: [f"m[{index} % 2] = {value}", f"{target} = m[1]"],
        names, names, targets,
    )  # fmt: skip
    several = st.lists(blocks, min_size=1, max_size=3).map(lambda parts: [*chain(*parts)])
    return branch | loop | left_early | private | several


@settings(max_examples=60, deadline=None)
@given(st.recursive(assignments, compound, max_leaves=8), st.data())
def test_inputs_that_are_not_listed_do_not_change_the_class(body, data):
    text = "\n".join(
        [
            "def k(a: Index, b: Index, c: Index, d: Index) -> Scalar:",
            *indented(["j = a * 0", "k = b * 0 + 1", "m = tm.zeros(2, i64)", *body]),
            "    return tm.dispatch(j % 5, [0.0, 1.0, 2.0, 3.0, 4.0])",
        ]
    )
    kernel = tn.kernel(function_from(text))
    listed = {name for _, name in entry(kernel)["selector_reads"]}
    values = st.lists(st.integers(-3, 3), min_size=12, max_size=12)
    first, second = ({name: data.draw(values) for name in INPUTS} for _ in range(2))
    second |= {name: first[name] for name in listed}
    classes = [
        kernel(**{name: integers(*row) for name, row in given.items()}, device="reference")
        for given in (first, second)
    ]
    np.testing.assert_array_equal(*classes)


# -- array form, derivatives -----------------------------------------------------------------------


def test_arrays_are_lookups_in_the_array_form():
    @tn.kernel
    def select(c: NDArray[i64, 1], x: NDArray[f64, 1], y: NDArray[f64, 1]) -> None:
        for i in range(x.shape[0]):
            y[i] = tm.dispatch(c[i], [x[i], -x[i]])

    assert reads(select) == (True, [["lookup", "c"]])

    @tn.kernel
    def from_the_second_on(c: NDArray[i64, 1], x: NDArray[f64, 1], y: NDArray[f64, 1]) -> None:
        for i in range(1, x.shape[0], 2):
            y[i] = tm.dispatch(c[i], [x[i], -x[i]])

    assert reads(from_the_second_on) == (True, [["lookup", "c"]])

    @tn.kernel
    def elsewhere(c: NDArray[i64, 1], x: NDArray[f64, 1], y: NDArray[f64, 1], shift: i64) -> None:
        for i in range(x.shape[0]):
            y[i] = tm.dispatch(c[i + shift], [x[i], -x[i]])

    inputs = [["index", "iteration_index"], ["lookup", "c"], ["uniform", "shift"]]
    assert reads(elsewhere) == (True, inputs)

    @tn.kernel
    def rewritten(c: NDArray[i64, 1], x: NDArray[f64, 1], y: NDArray[f64, 1]) -> None:
        for i in range(x.shape[0]):
            y[i] = tm.dispatch(c[i], [x[i], -x[i]])
            c[i] = i64(x[i])

    assert reads(rewritten) == (False, [["lookup", "c"], ["lookup", "x"]])

    @tn.kernel
    def by_place(x: NDArray[f64, 1], y: NDArray[f64, 1]) -> None:
        for i in range(x.shape[0]):
            y[i] = tm.dispatch(i % 2, [x[i], -x[i]])

    assert reads(by_place) == (True, [["index", "iteration_index"]])


def test_what_passes_from_unit_to_unit_is_followed():
    @tn.kernel
    def summed(x: NDArray[f64, 1], y: NDArray[f64, 1]) -> None:
        total = 0.0
        for i in tn.serial(range(x.shape[0])):
            total += x[i]
        for i in range(y.shape[0]):
            y[i] = tm.dispatch(tm.index(total, 2), [1.0, 2.0])

    assert len(summed.lower(summed.default_types()).plan.units) == 2
    assert reads(summed) == (True, [["lookup", "x"]])


def test_derivatives_have_entries_of_their_own():
    derivative = tn.vjp(drag, wrt=("v",), policy={"dispatch0": "predicated"})
    for item in dispatch_entries(derivative):
        assert item["policy"] == "predicated"
        assert item["static_selector"]
        assert item["selector_reads"] == [["per_sample", "regime"]]


def test_reading_a_kernel_does_not_fix_what_it_takes_from_outside():
    namespace = {"tm": tm, "Index": Index, "Scalar": Scalar, "policy": "switch"}
    function = function_from(
        "def k(r: Index, v: Scalar) -> Scalar:\n"
        "    return tm.dispatch(r, [v, -v], policy=policy)\n",
        **namespace,
    )
    kernel = tn.kernel(function)
    assert entry(kernel)["policy"] == "switch"
    function.__globals__["policy"] = "predicated"
    assert entry(kernel)["policy"] == "predicated"
