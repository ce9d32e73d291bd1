"""Every construct of the kernel language."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import turnout as tn
from turnout.plugin import OPERATIONS, ir

from . import kernels
from .cases import Case, edges, ordinary
from .compare import assert_same_bits
from .device import DeviceUnderTest, copied, outcome, reference
from .operations import operation_kernel

SIZES = (0, 1, 2, 3, 17, 1025)
SPECIALISED_SIZE = 16
PYTHON_SIZE = 67


def case_parameters(cases: tuple[Case, ...]) -> list[Any]:
    """One pytest parameter per case."""
    return [pytest.param(c, marks=pytest.mark.needs(*c.needs), id=c.name) for c in cases]


@pytest.mark.parametrize("case", case_parameters(kernels.LANGUAGE_KERNELS))
def test_kernel(device: DeviceUnderTest, case: Case) -> None:
    """Small and large calls give the bits of the reference."""
    for size in SIZES:
        arguments = case.arguments(size)
        got = outcome(device, case.kernel, arguments)
        expected = outcome(reference(), case.kernel, arguments)
        for number, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
            assert_same_bits(ours, theirs, f"{case.name}, size {size}, array {number}")


@pytest.mark.parametrize("case", case_parameters(kernels.LANGUAGE_KERNELS))
def test_kernel_for_known_sizes(device: DeviceUnderTest, case: Case) -> None:
    """Lengths and numbers of a call as constants, and short loops written out: the same bits."""
    arguments = case.arguments(SPECIALISED_SIZE)
    sizes: dict[str, Any] = {
        spec.name: argument.shape if isinstance(argument, np.ndarray) else argument
        for spec, argument in zip(case.kernel.signature.parameters, arguments, strict=True)
    }
    got = outcome(device, case.kernel.specialise(**sizes), arguments)
    expected = outcome(reference(), case.kernel, arguments)
    for number, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        assert_same_bits(ours, theirs, f"{case.name} for known sizes, array {number}")


@pytest.mark.parametrize(
    "case", case_parameters(tuple(c for c in kernels.LANGUAGE_KERNELS if c.as_python))
)
def test_kernel_means_what_python_means(device: DeviceUnderTest, case: Case) -> None:
    """The body as Python, with NumPy's numbers, gives the same values."""
    arguments = case.arguments(PYTHON_SIZE)
    got = outcome(device, case.kernel, arguments)
    own = copied(arguments)
    per_sample = case.kernel.signature.form == "sample"
    with np.errstate(all="ignore"):
        returned = _each_sample(case, own) if per_sample else case.kernel.__wrapped__(*own) or ()
    expected = (*(a for a in own if isinstance(a, np.ndarray)), *returned)
    for number, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        what = f"{case.name} against Python, array {number}"
        assert_same_bits(ours, theirs.astype(ours.dtype), what)


def _each_sample(case: Case, arguments: tuple[Any, ...]) -> list[Any]:
    specs = case.kernel.signature.parameters
    rows = []
    for place in range(PYTHON_SIZE):
        sample = [
            argument[..., place] if spec.role == "plane" else argument
            for spec, argument in zip(specs, arguments, strict=True)
        ]
        result = case.kernel.__wrapped__(*sample)
        rows.append(result if isinstance(result, tuple) else (result,))
    return [np.stack(column, axis=-1) for column in zip(*rows, strict=True)]


# ---- values worked out by hand -----------------------------------------------------------------


def test_outputs_are_stored_after_inputs_are_read(device: DeviceUnderTest) -> None:
    """`spring` reads the new velocity where the source says so."""
    x, v = np.array([1.0, 0.5], np.float32), np.array([0.0, 8.0], np.float32)
    device.run(kernels.spring, x, v)
    assert v.tolist() == [-0.5, 7.75]
    assert x.tolist() == [0.9375, 1.46875]


def test_terminated_samples_keep_their_outputs(device: DeviceUnderTest) -> None:
    """A mask skips samples."""
    done = np.array([False, True, False, True])
    out = np.array([2, 2, 4, 4], np.float32)
    device.run(kernels.terminated, done, np.ones(4, np.float32), out)
    assert out.tolist() == [2, 2, 3, 4]


def test_vectors(device: DeviceUnderTest) -> None:
    """Components are rows; samples are columns."""
    normal = np.array([[0, 1], [1, 0], [0, 0], [0, 0]], np.float32)
    velocity = np.array([[1, 5], [-1, 6], [0, 7], [2, 8]], np.float32)
    device.run(kernels.reflect, normal, velocity)
    assert velocity.tolist() == [[1, -5], [1, 6], [0, 7], [2, 8]]


def test_histogram_is_exact(device: DeviceUnderTest) -> None:
    """Updates of shared elements are atomic."""
    n = 100_003
    bins = np.random.default_rng(3).integers(0, 11, n)
    counts, places = np.zeros(11, np.int32), np.zeros(11, np.uint32)
    wide, halves = np.zeros(11, np.int64), np.zeros(11, np.float32)
    device.run(kernels.histogram, bins, counts, places, wide, halves)
    expected = np.bincount(bins, minlength=11)
    assert counts.tolist() == expected.tolist()
    assert halves.tolist() == (expected / 2).tolist()
    assert places.tolist() == [
        int(np.bitwise_xor.reduce(np.flatnonzero(bins == b), initial=0)) for b in range(11)
    ]
    assert wide.tolist() == [-int((np.flatnonzero(bins == b) + (1 << 33)).sum()) for b in range(11)]


def test_serial_loops_keep_their_order(device: DeviceUnderTest) -> None:
    """Each element needs the one before it."""
    a = np.ones(1000, np.float32)
    device.run(kernels.cumulative, a)
    assert a[:4].tolist() == [1, 1.5, 1.75, 1.875]
    assert a[-1] == 2


def test_units_of_one_plan_run_in_order(device: DeviceUnderTest) -> None:
    """A number that one loop computes is an argument of the next."""
    x = np.arange(10, dtype=np.int32)
    out = np.zeros(10, np.int32)
    device.run(kernels.minus_first, x, out)
    assert out.tolist() == [3 * (value - 100) for value in range(10)]


def test_parameter_types(device: DeviceUnderTest) -> None:
    """A Python number takes the type of the arrays; another number is another result."""
    x = np.array([1, 2, 3], np.float32)
    for number in (2, 0.5, -3, True, np.float32(1.5), np.int32(4)):
        (got,) = device.run(kernels.scaled, x, number)
        assert_same_bits(got, (x * number).astype(np.float32), f"a Param of {number!r}")


# ---- dispatch: the policy changes no bit -------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        (policy, name)
        for policy in ("predicated", "segmented", "auto")
        for name in kernels.DISPATCH_KERNELS[policy]
    ],
)
def test_policies_give_the_same_bits(device: DeviceUnderTest, policy: str, name: str) -> None:
    """For the exact branches of the shared kernels."""
    (case,) = [c for c in kernels.LANGUAGE_KERNELS if c.name == f"{name}_switch_f32"]
    arguments = case.arguments(1025)
    switch = outcome(device, kernels.DISPATCH_KERNELS["switch"][name], arguments)
    other = outcome(device, kernels.DISPATCH_KERNELS[policy][name], arguments)
    for ours, theirs in zip(other, switch, strict=True):
        assert_same_bits(ours, theirs, f"{name}: {policy} against switch")


@pytest.mark.parametrize("policy", kernels.POLICIES)
def test_branches_are_counted(device: DeviceUnderTest, policy: str) -> None:
    """Exactly, and added to what the counter holds."""
    kernel = kernels.DISPATCH_KERNELS[policy]["three_ways"]
    kind = np.random.default_rng(5).integers(-2, 5, 9000)
    counter = np.array([1, 0, 0, 7], np.uint32)
    device.run(kernel, kind, np.ones(kind.size, np.float32), dispatch0_mix=counter)
    counts = np.bincount(np.clip(kind, 0, 2), minlength=3)
    assert counter.tolist() == [counts[0] + 1, counts[1], counts[2], 7]


def test_samples_that_change_their_class(device: DeviceUnderTest) -> None:
    """Split by class they give what they give together, whatever has changed since last time."""
    random = np.random.default_rng(6)
    kind, x = random.integers(0, 3, 9000), random.normal(size=9000).astype(np.float32)
    split, together = (
        kernels.DISPATCH_KERNELS[policy]["three_ways"] for policy in ("segmented", "switch")
    )
    for changing in (0, 5, 100, 9000, 0):
        kind[random.permutation(9000)[:changing]] += 1
        for ours, theirs in zip(
            outcome(device, split, (kind, x)), outcome(device, together, (kind, x)), strict=True
        ):
            assert_same_bits(ours, theirs, f"{changing} samples changed")


def test_steps_of_one_call(device: DeviceUnderTest) -> None:
    """Each step starts from what the one before has left."""
    state = np.arange(5, dtype=np.float32)
    device.run(kernels.grow, state, steps=3)
    assert state.tolist() == [x * 8 + 7 for x in range(5)]


UNARY_MATH = [name for name, row in OPERATIONS.items() if not row.is_exact and row.arity == 1]
FLOATS = [
    pytest.param(ir.f32, id="f32"),
    pytest.param(ir.f64, id="f64", marks=pytest.mark.needs("f64")),
]
GROUPS = [
    tuple(UNARY_MATH[(start + k) % len(UNARY_MATH)] for k in range(4))
    for start in range(0, len(UNARY_MATH), 4)
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("group", GROUPS, ids="-".join)
def test_policies_give_the_same_bits_of_math(
    device: DeviceUnderTest, group: tuple[str, ...], dtype: ir.DType
) -> None:
    """Each class gives the bits of its formula alone, under every policy."""
    random = np.random.default_rng(11)
    x = np.concatenate([edges(dtype), ordinary(random, dtype, 250)])
    kind = random.integers(0, 4, x.size)
    alone = np.stack(
        [outcome(device, operation_kernel(f, dtype), (x, np.zeros_like(x)))[-1] for f in group]
    )
    expected = np.take_along_axis(alone, kind[None], axis=0)[0]
    functions = tuple(getattr(tn.math, name) for name in group)
    for policy in ("switch", "predicated", "segmented"):
        kernel = kernels.math_dispatch(policy, functions)
        got = outcome(device, kernel, (kind, x))[-1]
        assert_same_bits(got, expected, f"{policy} of {group}", [kind, x])
