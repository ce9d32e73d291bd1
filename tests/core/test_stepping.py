"""Several steps in one launch give the bits of as many launches."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import turnout as tn
import turnout.math as tm
from turnout import (
    Index,
    Mutable,
    NDArray,
    Param,
    Scalar,
    Terminated,
    Vector,
    f64,
    i64,
    ir,
    launches,
)
from turnout.stepping import stepped

POLICY = "switch"
N = 1_133
STEPS = [0, 1, 2, 7]


@tn.kernel
def drag(dt: Param, regime: Index, v: Mutable[Scalar]):
    a = tm.dispatch(regime, [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)], policy=POLICY)
    v = v + dt * a


@tn.kernel
def drag_by_speed(cut: Param, regime: Mutable[Index], v: Mutable[Scalar], done: Terminated):
    v = v + 0.1 * tm.dispatch(regime, [-0.1 * v, tm.sin(v) + 1, v * abs(v) / 9], policy=POLICY)
    regime = tm.select(abs(v) > cut, regime + 1, regime - 1)


@tn.kernel
def two_groups(a: Mutable[Index], b: Index, x: Mutable[Scalar], y: Mutable[Scalar]):
    p = tm.dispatch(a, [x, tm.cos(y), x * y, x - y], policy=POLICY)
    if p > 0.2:
        x = tm.dispatch(b + a, [p, p * tm.exp(-p * p)], policy=POLICY, name="inner")
    y = y + 0.25 * (p - x)
    a = a + 1


@tn.kernel
def rigid(w: Mutable[Vector[3]], force: Vector[3], n: Mutable[Index]) -> Scalar:
    w = w + 0.01 * tm.cross(w, force)
    n += tm.sample_index()
    return tm.norm(w)


@tn.kernel
def looked_up(place: Mutable[Index], table: NDArray[f64, 1], x: Mutable[Scalar]):
    heights = np.zeros(2)
    for k in range(2):
        heights[k] = table[(place + k) % table.shape[0]]
    x = x * 0.5 + heights[0] - heights[1]
    place = tm.index(abs(x) * 100, 1_000)


@tn.kernel
def shifted(x: Scalar, y: Mutable[Scalar]):
    y = x * 0.75 + 1


def arrays_of(kernel: Any, seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    classes = random.integers(-2, 5, N)
    made: dict[str, dict[str, Any]] = {
        "drag": {"dt": 0.1, "regime": classes, "v": random.normal(size=N)},
        "drag_by_speed": {
            "cut": 1.0, "regime": classes, "v": random.normal(size=N) * 3,
            "done": random.random(N) < 0.3,
        },
        "two_groups": {
            "a": classes, "b": random.integers(-3, 3, N), "x": random.normal(size=N),
            "y": random.normal(size=N),
        },
        "rigid": {
            "w": random.normal(size=(3, N)), "force": random.normal(size=(3, N)),
            "n": np.arange(N),
        },
        "looked_up": {
            "place": random.integers(0, 50, N), "table": random.normal(size=53),
            "x": random.normal(size=N),
        },
        "shifted": {"x": random.normal(size=N), "y": np.zeros(N)},
    }  # fmt: skip
    return made[kernel.__name__]


def copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in values.items()}


def taken_apart(kernel: Any, values: dict[str, Any], steps: int, **options: Any) -> Any:
    result = None
    for _ in range(steps):
        result = kernel(**values, steps=1, **options)
    return result


def assert_same_bits(found: Any, expected: Any) -> None:
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert found[name].tobytes() == value.tobytes(), name


@pytest.mark.parametrize("policy", ["switch", "predicated", "segmented", "auto"])
@pytest.mark.parametrize("kernel", [drag, drag_by_speed, two_groups])
def test_policies(kernel: Any, policy: str, device: str) -> None:
    made = kernel.with_constants(POLICY=policy)
    names = [f"{entry['name']}_mix" for entry in made.dispatch_entries()]
    for steps in STEPS:
        given = arrays_of(kernel)
        one, several = copied(given), copied(given)
        counts = {name: np.full(5, 3, np.uint32) for name in names}
        expected = copied(counts)
        taken_apart(made, {**one, **expected}, steps, device=device)
        made(**several, **counts, steps=steps, device=device)
        assert_same_bits(several, one)
        assert_same_bits(counts, expected)
        uncounted = copied(given)
        made(**uncounted, steps=steps, device=device)
        assert_same_bits(uncounted, one)


@pytest.mark.parametrize("kernel", [rigid, looked_up, shifted])
def test_vectors_tables_and_results(kernel: Any, device: str) -> None:
    for steps in STEPS[1:]:
        given = arrays_of(kernel)
        one, several = copied(given), copied(given)
        first = taken_apart(kernel, one, steps, device=device)
        second = kernel(**several, steps=steps, device=device)
        assert_same_bits(several, one)
        assert_same_bits({"out": second}, {"out": first})


def test_a_declared_number_of_steps(device: str) -> None:
    declared = tn.kernel(steps=5)(drag.__wrapped__)
    given = arrays_of(drag)
    one, several, other = copied(given), copied(given), copied(given)
    taken_apart(drag, one, 5, device=device)
    declared(**several, device=device)
    assert_same_bits(several, one)
    declared(**other, steps=2, device=device)
    declared(**other, steps=3, device=device)
    assert_same_bits(other, one)


def test_an_input_that_is_the_output(device: str) -> None:
    x = np.random.default_rng(1).normal(size=N)
    one, several = x.copy(), x.copy()
    for _ in range(7):
        shifted(one, one, device=device)
    shifted(several, several, steps=7, device=device)
    assert several.tobytes() == one.tobytes()


def test_strided_and_fewer_samples(device: str) -> None:
    given = arrays_of(drag)
    memory, regime = np.repeat(given["v"], 2), given["regime"][::-1]
    expected = memory.copy()
    for _ in range(4):
        drag(0.1, regime, expected[::2], samples=500, device=device)
    drag(0.1, regime, memory[::2], samples=500, steps=4, device=device)
    assert memory.tobytes() == expected.tobytes()


def test_all_widths(device: str) -> None:
    given = arrays_of(drag)
    one, several = given["v"].astype(np.float32), given["v"].astype(np.float32)
    for _ in range(6):
        drag(0.1, given["regime"], one, device=device)
    drag(0.1, given["regime"], several, steps=6, device=device)
    assert several.tobytes() == one.tobytes()


def test_a_parameter_may_have_the_name_of_the_number(device: str) -> None:
    @tn.kernel
    def counted(steps_: Param, x: Mutable[Scalar]):
        x = x * steps_ + 1

    x = np.zeros(3)
    counted(2.0, x, steps=4, device=device)
    assert x.tolist() == [15.0] * 3


def plan_of(kernel: Any, **types: Any) -> ir.Plan:
    return kernel.lower({**kernel.default_types(), **types}).plan


@pytest.mark.parametrize("kernel", [drag, drag_by_speed, two_groups, rigid, looked_up, shifted])
def test_one_unit_takes_all_steps(kernel: Any) -> None:
    plan = stepped(plan_of(kernel), "how_many")
    assert plan is not None
    (unit,) = plan.units
    assert unit.name == f"{kernel.__name__}__steps"
    assert unit.parameters[-1].name == "how_many"
    (loop,) = unit.body.body
    assert isinstance(loop, ir.For)


def test_one_launch_takes_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    run = launches.Launch.run

    def recorded(launch: launches.Launch, arguments: Any) -> None:
        launched.append(launch.unit.name)
        run(launch, arguments)

    monkeypatch.setattr(launches.Launch, "run", recorded)
    given = arrays_of(drag)
    mix = np.zeros(3, np.uint32)
    drag(**given, steps=5, device="reference")
    drag(**given, steps=6, device="reference")
    assert launched == ["drag__steps"] * 2
    drag(**given, steps=2, device="reference", dispatch0_mix=mix)
    assert launched[2:] == ["drag__mix0", "drag"] * 2


@tn.kernel
def running_sum(a: NDArray[f64, 1], total: NDArray[f64, 1]):
    for i in range(a.shape[0]):
        total[0] += a[i]


@tn.kernel
def neighbours(a: NDArray[f64, 1], b: NDArray[f64, 1]):
    for i in tn.parallel(range(a.shape[0] - 1)):
        b[i] = a[i + 1]


@tn.kernel
def histogram(x: NDArray[i64, 1], bins: NDArray[i64, 1]):
    for i in tn.parallel(range(x.shape[0])):
        bins[x[i]] += 1


@tn.kernel
def two_loops(a: NDArray[f64, 1]):
    for i in range(a.shape[0]):
        a[i] = a[i] + 1
    for i in range(a.shape[0]):
        a[i] = a[i] * 2


@tn.kernel(fastmath=True)
def relaxed(x: Mutable[Scalar]):
    x = x * 3 + 1


@pytest.mark.parametrize("kernel", [running_sum, histogram, two_loops, relaxed])
def test_steps_that_may_meet_are_launches_of_their_own(kernel: Any) -> None:
    assert stepped(plan_of(kernel), "steps") is None


def test_segmented_dispatches_are_sorted_for_each_step() -> None:
    assert stepped(plan_of(drag.with_constants(POLICY="segmented")), "steps") is None


def test_what_is_read_elsewhere_must_lie_apart() -> None:
    plan = plan_of(neighbours)
    assert stepped(plan, "steps") is not None
    (run,) = plan.runs
    unchecked = ir.Run(run.unit, elementwise=(("a", "b"),))
    assert stepped(ir.Plan((unchecked,)), "steps") is None


@pytest.mark.parametrize("kernel", [running_sum, two_loops, neighbours])
def test_the_array_form_is_repeated_as_a_whole(kernel: Any, device: str) -> None:
    random = np.random.default_rng(2)
    a, b = random.normal(size=300), random.normal(size=300)
    given = [a, b][: len(kernel.signature.parameters)]
    one, several = [x.copy() for x in given], [x.copy() for x in given]
    for _ in range(3):
        kernel(*one, device=device)
    kernel(*several, steps=3, device=device)
    for found, expected in zip(several, one, strict=True):
        assert found.tobytes() == expected.tobytes()


def test_debug_reports_the_first_step_that_is_out_of_bounds(device: str) -> None:
    @tn.kernel(debug=True)
    def walking(place: Mutable[Index], table: NDArray[f64, 1], x: Mutable[Scalar]):
        x = table[place]
        place = place + 1

    place, x = np.array([2, 1, 0]), np.zeros(3)
    with pytest.raises(tn.OutOfBoundsError, match="index 4"):
        walking(place, np.arange(4.0), x, steps=5, device=device)
    assert place.tolist() == [4, 3, 2]
