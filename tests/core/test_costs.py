"""`dispatch_costs`: counts by hand, what the compiler did, and the model of time made of both."""

from __future__ import annotations

import subprocess
import sys

import pytest
from language_support import function_from

import turnout as tn
import turnout.math as tm
from turnout import Index, Mutable, NDArray, Param, Scalar, Terminated, Vector, f32, f64, i64
from turnout.costs import (
    ARITHMETIC_NS,
    CLASS_PASS_NS,
    ELEMENT_NS,
    GATHER_NS,
    LISTED_NS,
    SPECIAL_NS,
    BranchCost,
    DispatchCost,
    estimated_ns,
)

PROFILES = ("native", "portable", "native-vector-math")


@pytest.fixture(autouse=True)
def on_reference(request):
    """Counts need no compiler; tests of what it did name their device."""
    needs_cpu = "needs_cpu" in request.fixturenames
    if needs_cpu and "cpu" not in tn.backends():
        pytest.skip("turnout-cpu is not installed")
    with tn.use("cpu" if needs_cpu else "reference"):
        yield


@pytest.fixture
def needs_cpu():
    """Marks a test that is about compiled code."""


def only(kernel, **options):
    (cost,) = tn.dispatch_costs(kernel, **options).values()
    return cost


def counts(kernel, **options):
    """Per branch: arith64, special64, loads, gathers, chain64 and chain_special64."""
    for branch in only(kernel, **options).branches:
        assert (branch.arith32, branch.special32) == (0, 0)
        assert (branch.chain32, branch.chain_special32) == (0, 0)
    return [
        (b.arith64, b.special64, b.loads, b.gathers, b.chain64, b.chain_special64)
        for b in only(kernel, **options).branches
    ]


def stores(kernel):
    return {branch.stores for branch in only(kernel).branches}


def drag_of(policy):
    @tn.kernel
    def drag(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
        a = tm.dispatch(
            regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)], policy=policy
        )
        v_new = v + dt * a

    return drag


@tn.kernel
def sums(r: Index, a: Scalar, b: Scalar, y: Mutable[Scalar]):
    y = tm.dispatch(r, [a + b, a * b + 1, a, 3.0], policy="predicated")


@tn.kernel
def table(r: Index, i: Index, a: Scalar, t: NDArray[f64, 1], y: Mutable[Scalar]):
    y = tm.dispatch(r, [t[i] * a, a / 3, a / (1 + a), tm.sqrt(a)], policy="predicated")


@tn.kernel
def vectors(r: Index, g: Vector[3], y: Mutable[Vector[3]]):
    y = tm.dispatch(r, [2 * g, tm.cross(g, g), g * tm.dot(g, g), tm.sin(g)], policy="predicated")


@tn.kernel
def shared(v: Scalar, y: Mutable[Scalar]):
    y = tm.dispatch(
        tm.index(tm.exp(v), 3), [tm.exp(v) + 1, tm.exp(v) * 2, tm.exp(v)], policy="auto"
    )


# -- counts that the reference system gives, too ---------------------------------------------------


@pytest.mark.parametrize("policy", ["switch", "predicated", "auto"])
def test_drag(policy):
    drag = drag_of(policy)
    assert counts(drag) == [(1, 0, 1, 0, 1, 0), (3, 0, 1, 0, 2, 0), (4, 1, 1, 0, 3, 1)]
    assert stores(drag) == {None}
    cost = only(drag)
    assert cost.selector_reads == (("per_sample", "regime"),)
    assert cost.static_selector
    assert {branch.held_bytes for branch in cost.branches} == {0}


@pytest.mark.parametrize("profile", PROFILES)
def test_profiles_change_no_count(profile):
    assert counts(drag_of("auto"), host_profile=profile) == counts(drag_of("auto"))


def test_sums_and_constants():
    assert counts(sums) == [
        (1, 0, 2, 0, 1, 0),
        (2, 0, 2, 0, 2, 0),
        (0, 0, 1, 0, 0, 0),
        (0, 0, 0, 0, 0, 0),
    ]
    assert stores(sums) == {1}


def test_tables_are_gathered():
    assert counts(table) == [
        (1, 0, 2, 1, 2, 0),  # the index is a plane; what wraps it around is not counted
        (1, 0, 1, 0, 1, 0),
        (2, 0, 1, 0, 2, 0),
        (1, 0, 1, 0, 1, 0),
    ]
    assert stores(table) == {1}


def test_vectors_count_each_component():
    found = counts(vectors)
    assert [row[:4] for row in found] == [
        (3, 0, 3, 0),
        (9, 0, 3, 0),
        (9, 0, 3, 0),  # 6 for the dot product
        (0, 3, 3, 0),
    ]
    assert [row[4:] for row in found] == [(1, 0), (2, 0), (5, 0), (0, 1)]
    assert stores(vectors) == {3}


def test_what_the_selector_computes_is_there_already():
    assert counts(shared) == [(1, 0, 0, 0, 1, 0), (1, 0, 0, 0, 1, 0), (0, 0, 0, 0, 0, 0)]


# -- counts by hand --------------------------------------------------------------------------------


def test_what_branches_share_counts_in_each_and_once_in_a_branch():
    @tn.kernel
    def k(r: Index, x: Scalar) -> Scalar:
        e = tm.exp(x)
        return tm.dispatch(r, [e + x, e * e, tm.exp(x) * tm.exp(x)])

    assert counts(k) == [(1, 1, 1, 0, 1, 1), (1, 1, 1, 0, 1, 1), (1, 1, 1, 0, 1, 1)]


def test_parameters_constants_and_conversions_are_free():
    @tn.kernel
    def k(dt: Param, r: Index, n: Index, x: Scalar) -> Scalar:
        return tm.dispatch(r, [dt, dt * n, 2.0 * 3.0 * x])

    assert counts(k) == [(0, 0, 0, 0, 0, 0), (1, 0, 1, 0, 1, 0), (1, 0, 1, 0, 1, 0)]


def test_products_that_are_added_are_no_dot_product():
    @tn.kernel
    def k(r: Index, a: Scalar, b: Scalar, g: Vector[2]) -> Scalar:
        return tm.dispatch(r, [a * a + b * b, tm.dot(g, g), tm.norm(g), tm.sum(g)])

    assert [row[0] for row in counts(k)] == [3, 4, 5, 1]


def test_widths_have_their_own_columns():
    @tn.kernel
    def k(r: Index, x: Scalar) -> Scalar:
        return tm.dispatch(r, [x * x, tm.exp(x), x])

    narrow = only(k, types={"r": i64, "x": f32, "return": f32})
    assert [branch.chain_tuple() for branch in narrow.branches] == [
        (1, 0, 0, 0, 1, 0, 1, 0, 0, 0),
        (0, 0, 1, 0, 1, 0, 0, 0, 1, 0),
        (0, 0, 0, 0, 1, 0, 0, 0, 0, 0),
    ]


def test_the_rows_of_a_branch():
    first, *_, last = only(sums).branches
    assert first.as_tuple() == (0, 1, 0, 0, 2, 0)
    assert first.chain_tuple() == (0, 1, 0, 0, 2, 0, 0, 1, 0, 0)
    assert first.row_tuple() == (0, 1, 0, 0, 2, 0, 0, 1, 0, 0, 1)
    assert last.row_tuple() == (0,) * 10 + (1,)
    assert len(only(drag_of("auto")).branches[0].row_tuple()) == 10


def test_both_sides_of_a_choice_and_a_selection_count():
    @tn.kernel
    def k(r: Index, q: Index, x: Scalar) -> Scalar:
        y = x
        if x > 2:
            y = tm.exp(x)
        z = tm.select(x > 2, tm.exp(x), x)
        return tm.dispatch(r, [y, z, tm.dispatch(q, [x, -x, 2 * x])])

    outer, inner = tn.dispatch_costs(k).values()
    assert [branch.as_tuple() for branch in outer.branches] == [
        (0, 2, 0, 1, 1, 0),
        (0, 2, 0, 1, 1, 0),
        (0, 4, 0, 0, 2, 0),  # two branches of one operation, two selections, and the inner class
    ]
    assert [branch.chain_tuple()[6:] for branch in outer.branches] == [
        (0, 1, 0, 1),
        (0, 1, 0, 1),
        (0, 3, 0, 0),
    ]
    assert [branch.as_tuple() for branch in inner.branches] == [
        (0, 0, 0, 0, 1, 0),
        (0, 1, 0, 0, 1, 0),
        (0, 1, 0, 0, 1, 0),
    ]


def test_loops_count_their_rounds():
    @tn.kernel
    def k(r: Index, n: Index, x: Scalar) -> Scalar:
        a = x
        for i in range(4):
            a = a * x + tm.exp(i * x)
        b = x
        for i in range(n):
            b = b * x
        c = x
        for i in range(3, 3):
            c = c * x
        d = x
        while d < 100:
            d = d * x
        return tm.dispatch(r, [a, b, c, d])

    assert counts(k) == [
        # The first exp is waited for, the others are done before the sum needs them.
        (12, 4, 1, 0, 8, 1),
        (1, 0, 2, 0, 1, 0),  # how many rounds is not known: one
        (0, 0, 1, 0, 0, 0),
        (2, 0, 1, 0, 1, 0),
    ]


def test_a_dispatch_in_a_loop_is_described_for_one_round():
    @tn.kernel
    def k(r: Index, x: Mutable[Scalar]):
        w = x
        u = tm.sqrt(x)
        for i in range(3):
            w = tm.dispatch(r, [w * w, u + w, x])
        x = w

    # What the loop carries is there when a round begins.
    assert counts(k) == [(1, 0, 0, 0, 1, 0), (2, 0, 1, 0, 2, 0), (0, 0, 1, 0, 0, 0)]
    assert stores(k) == {None}


def test_private_arrays_are_held():
    @tn.kernel
    def k(r: Index, x: Scalar) -> Scalar:
        terms = tm.zeros(4)
        for i in range(4):
            terms[i] = x * i
        total = 0.0
        for i in range(4):
            total += terms[i]
        return tm.dispatch(r, [total, x])

    held, plain = only(k).branches
    assert (held.held_bytes, plain.held_bytes) == (32, 0)
    assert held.as_tuple() == (0, 8, 0, 0, 5, 0)
    assert (held.chain64, held.chain_special64) == (5, 0)  # a product, then four sums


def test_masks_and_state():
    @tn.kernel
    def k(r: Index, v: Mutable[Scalar], done: Terminated):
        v = v + tm.dispatch(tm.index(v, 2), [1.0, v])
        done = v > 10

    cost = only(k)
    assert not cost.static_selector
    assert cost.selector_reads == (("mutable", "v"),)
    assert [branch.loads for branch in cost.branches] == [0, 0]  # the selector reads v


def test_the_array_form():
    @tn.kernel
    def k(c: NDArray[i64, 1], x: NDArray[f32, 1], y: NDArray[f32, 1]) -> None:
        for i in range(x.shape[0]):
            y[i] = tm.dispatch(c[i], [x[i] * 2, x[c[i]] * tm.sin(x[i])])

    first, second = only(k).branches
    assert first.row_tuple() == (1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1)
    assert second.row_tuple() == (1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1)
    assert only(k).selector_reads == (("lookup", "c"),)


def test_several_groups_and_derivatives():
    @tn.kernel
    def k(a: Index, b: Index, v: Scalar, y: Mutable[Scalar]):
        p = tm.dispatch(a, [v, 2 * v, 3 * v], name="gain")
        y = p * tm.dispatch(b, [v, -v])

    costs = tn.dispatch_costs(k)
    assert list(costs) == ["gain", "dispatch1"]
    assert [len(cost.branches) for cost in costs.values()] == [3, 2]
    derivative = tn.vjp(drag_of("auto"), wrt="v")
    assert all(len(cost.branches) == 3 for cost in tn.dispatch_costs(derivative).values())


def test_hundreds_of_branches():
    branches = ", ".join(f"{number}.5 * v" for number in range(200))
    kernel = tn.kernel(
        function_from(
            f"def k(r: Index, v: Scalar) -> Scalar:\n    return tm.dispatch(r, [{branches}])\n"
        )
    )
    assert counts(kernel) == [(1, 0, 1, 0, 1, 0)] * 200


# -- what the compiler did -------------------------------------------------------------------------


def vectorised(kernel, profile):
    cost = only(kernel, host_profile=profile)
    return cost.fused_vectorised, [branch.vectorised for branch in cost.branches]


@pytest.mark.usefixtures("needs_cpu")
@pytest.mark.parametrize("policy", ["switch", "predicated", "auto"])
def test_math_functions_run_in_vectors_where_there_are_routines(policy):
    with_routines = only(drag_of(policy))
    assert with_routines == only(drag_of(policy), host_profile="native-vector-math")
    for profile in ("native", "portable"):
        assert vectorised(drag_of(policy), profile) == (False, [True, True, False])
    if has_vector_routines():
        assert with_routines.fused_vectorised
        assert [branch.vectorised for branch in with_routines.branches] == [True] * 3


def has_vector_routines() -> bool:
    (device,) = tn.devices("cpu")
    return device.target != device.profiles["native"]


@pytest.mark.usefixtures("needs_cpu")
def test_arithmetic_runs_in_vectors_on_every_processor():
    for profile in PROFILES:
        assert vectorised(sums, profile) == (True, [True] * 4)
    assert vectorised(vectors, "native") == (False, [True, True, True, False])


@pytest.mark.usefixtures("needs_cpu")
def test_loops_that_run_in_order_are_not_vectorised():
    @tn.kernel
    def k(c: NDArray[i64, 1], x: NDArray[f64, 1]) -> None:
        for i in range(1, x.shape[0]):
            x[i] = x[i - 1] + tm.dispatch(c[i], [x[i - 1] * 2, x[i - 1] / 3])

    assert vectorised(k, None) == (False, [False, False])


@pytest.mark.usefixtures("needs_cpu")
def test_branches_that_check_indices_are_not_vectorised():
    checked = tn.kernel(table.__wrapped__, debug=True)
    assert vectorised(checked, None) == (False, [False, True, True, True])


def test_nothing_is_known_of_the_reference_backend():
    for profile in PROFILES:
        assert vectorised(sums, profile) == (False, [False] * 4)


# -- errors ----------------------------------------------------------------------------------------


def test_unknown_profiles_are_refused():
    with pytest.raises(
        tn.KernelError,
        match="unknown host profile 'fast'; the profiles are 'native', 'portable', "
        "'native-vector-math'",
    ):
        tn.dispatch_costs(sums, host_profile="fast")


def test_other_objects_are_refused():
    with pytest.raises(tn.KernelError, match=r"takes a kernel \(turnout\.kernel\), not function"):
        tn.dispatch_costs(sums.__wrapped__)


def test_a_kernel_without_dispatches_has_no_costs():
    @tn.kernel
    def k(x: Scalar) -> Scalar:
        return x * 2

    assert tn.dispatch_costs(k) == {}


def test_asking_needs_no_store_and_no_command():
    program = "import sys, turnout as tn\ntn.dispatch_costs\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert not {"turnout.perf", "sqlite3", "click", "llvmlite"} & set(done.stdout.split())


# -- the model of time -----------------------------------------------------------------------------


def branch(arithmetic, special=0, loads=1, gathers=0, vectorised=True, stores=None):
    return BranchCost(
        0, arithmetic, 0, special, loads, gathers, 0, arithmetic, 0, special, vectorised, stores, 0
    )


def cost_of(*branches, fused=True):
    return DispatchCost(branches, (("per_sample", "r"),), True, fused)


def estimate(cost, mix, policy, misprediction_ns=10.0, lanes=8):
    return estimated_ns(cost, mix, policy, misprediction_ns=misprediction_ns, lanes=lanes)


def test_switch_in_vectors_takes_what_any_lane_takes():
    cost = cost_of(branch(2), branch(4, special=1))
    memory = 3 * ELEMENT_NS  # class, plane and result
    cheap, costly = 2 * ARITHMETIC_NS / 8, (4 * ARITHMETIC_NS + SPECIAL_NS) / 8
    assert estimate(cost, (1, 0), "switch") == pytest.approx(memory + cheap)
    assert estimate(cost, (0, 1), "switch") == pytest.approx(memory + costly)
    taken = (1 - 0.1**8) * cheap + (1 - 0.9**8) * costly
    assert estimate(cost, (0.9, 0.1), "switch") == pytest.approx(memory + taken)
    assert estimate(cost, (0.9, 0.1), "switch", misprediction_ns=99) == pytest.approx(
        memory + taken
    )


def test_switch_without_vectors_is_mispredicted():
    cost = cost_of(branch(2), branch(4, special=1, vectorised=False), fused=False)
    memory, cheap, costly = 3 * ELEMENT_NS, 2 * ARITHMETIC_NS, 4 * ARITHMETIC_NS + SPECIAL_NS
    assert estimate(cost, (1, 0), "switch") == pytest.approx(memory + cheap)
    expected = memory + 0.75 * cheap + 0.25 * costly + 0.25 * 10
    assert estimate(cost, (0.75, 0.25), "switch") == pytest.approx(expected)
    assert estimate(cost, (750, 250), "switch") == pytest.approx(expected)


def test_predicated_takes_all_branches_whatever_the_mix():
    cost = cost_of(branch(2), branch(4, special=1), branch(0, stores=None))
    expected = 3 * ELEMENT_NS + (8 * ARITHMETIC_NS + SPECIAL_NS) / 8
    assert estimate(cost, (1, 1, 1), "predicated") == pytest.approx(expected)
    assert estimate(cost, (1, 0, 0), "predicated") == pytest.approx(expected)
    scalar = cost_of(branch(2), branch(4, special=1, vectorised=False), fused=False)
    expected = 3 * ELEMENT_NS + 7 * ARITHMETIC_NS + SPECIAL_NS
    assert estimate(scalar, (1, 1), "predicated") == pytest.approx(expected)


def test_segmented_takes_one_branch_on_listed_samples():
    cost = cost_of(
        branch(2, loads=2, stores=3), branch(0, special=1, gathers=1, vectorised=False, stores=3)
    )
    first = 5 * LISTED_NS + 2 * ARITHMETIC_NS / 8
    second = 4 * LISTED_NS + SPECIAL_NS + GATHER_NS
    expected = CLASS_PASS_NS + 0.9 * first + 0.1 * second
    assert estimate(cost, (0.9, 0.1), "segmented") == pytest.approx(expected)


def test_a_rare_costly_branch_is_left_to_few():
    costly = branch(20, special=30)
    fused, alone = cost_of(branch(1), costly), cost_of(branch(1), costly, fused=False)
    rare = (0.999, 0.001)
    assert estimate(fused, rare, "switch") < estimate(fused, rare, "segmented")
    assert estimate(fused, rare, "segmented") < estimate(fused, rare, "predicated")
    # Between two costly branches at random no vector is spared, and order is worth its price.
    both = cost_of(costly, costly, costly, costly)
    even = (1, 1, 1, 1)
    assert estimate(both, even, "segmented") < estimate(both, even, "switch")
    # Short branches that are not vectorised together are worth predication or nothing.
    assert estimate(alone, (1, 0), "switch") < estimate(alone, (1, 0), "predicated")


@pytest.mark.parametrize("policy", ["auto", "fastest"])
def test_policies_without_an_estimate_are_refused(policy):
    with pytest.raises(
        tn.KernelError,
        match=f"no time can be estimated for policy '{policy}'; only for 'switch', 'predicated', "
        "'segmented'",
    ):
        estimate(cost_of(branch(1), branch(2)), (1, 1), policy)


@pytest.mark.parametrize("mix", [(1,), (1, 1, 1), (0, 0), (2, -1), (float("nan"), 1)])
def test_a_mix_is_one_share_for_each_branch(mix):
    with pytest.raises(tn.KernelError, match="mix must be 2 numbers, 0 or more and not all 0, not"):
        estimate(cost_of(branch(1), branch(2)), mix, "switch")
