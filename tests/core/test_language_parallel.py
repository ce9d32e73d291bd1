"""Which loops run in parallel, what that rests on, and that the order of Python is kept."""

from __future__ import annotations

import numpy as np
import pytest
from language_support import (
    Floats,
    Floats2,
    Integers,
    assert_like_python,
    assert_same,
    floats,
    function_from,
    integers,
    kernel_error,
    lowered,
    notes,
)

import turnout as tn
import turnout.math as tm
from turnout import NDArray, Param, f32, f64, i64, u8
from turnout.ir import Compute, Run, Scratch, format_unit, statements


def axes(kernel):
    """The number of axes of the iteration space of every unit of a kernel."""
    plan = lowered(kernel).plan
    return [len(step.unit.extents) for step in plan.steps if isinstance(step, Run)]


# -- the proof -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "b[i] = a[i]",
        "b[i] = a[0] + a[i - 3] + a[-1]",
        "b[i] = b[i] + 1",
        "b[i] += a[i]",
        "b[2 * i] = a[i]",
        "b[2 * i] = b[2 * i] + a[i]\n        b[2 * i + 1] = b[2 * i]",
        "b[i + 5] = b[i + 5] * 2",
        "b[i * 3 + 1] = i\n        b[i * 3 + 2] = i\n        b[3 * i] = i",
        "if a[i] > 0:\n            b[i] = 1\n        else:\n            b[i] = 2",
        "t = a[i]\n        for j in range(3):\n            t = t * 2\n        b[i] = t",
        "for j in range(3):\n            b[3 * i + 1] += a[j]",
        "while b[i] > 1:\n            b[i] /= 2",
        "t = tm.zeros(3)\n        t[i % 3] = 1\n        b[i] = t[0]",
        "b[i64(i)] = 1",
        "b[(i + 1) - 1] = 1",
    ],
)
def test_private_elements_make_a_loop_parallel(body, device):
    function = function_from(
        "def k(a: NDArray[f64, 1], b: NDArray[f64, 1], n: Param):\n"
        f"    for i in range(n):\n        {body}\n"
    )
    kernel = assert_like_python(
        function, np.linspace(-3, 9, 40), np.linspace(0, 50, 40), 12, device=device
    )
    assert notes(kernel)[2] == (True, "its iterations are independent")
    assert axes(kernel)[-1] == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "b[i] = b[i - 1] + a[i]",
            "b[i] is stored to on line 3, and b[i - 1] is read on the same line, which is the "
            "element of another iteration",
        ),
        ("b[i - 1] = b[i]", "b[i - 1] is stored to on line 3, and b[i] is read on the same line"),
        (
            "b[i] = 1\n        b[i + 1] = 2",
            "b[i] is stored to on line 3, and b[i + 1] is stored to on line 4, which is",
        ),
        (
            "b[i] = b[i] + b[i + 1]",
            "b[i] is stored to on line 3, and b[i + 1] is read on the same line, which is the",
        ),
        ("b[0] = a[i]", "b[0] is stored to on line 3 by every iteration"),
        (
            "b[i // 2] = a[i]",
            "b[i // 2] is stored to on line 3, at an index that is not a",
        ),
        ("b[i % 5] = a[i]", "b[i % 5] is stored to on line 3, at an index that is not a constant"),
        ("b[i64(a[i])] = i", "b[i64(a[i])] is stored to on line 3, at an index that is not a"),
        (
            "b[2 * i] = 1\n        b[i] = 2",
            "b[2 * i] is stored to on line 3, and b[i] is stored to on line 4, at an index that "
            "may belong to another iteration",
        ),
        ("b[i] = b[0]", "b[0] is read on the same line, at an index that may belong to another"),
        ("b[i] = b[2 * i]", "b[2 * i] is read on the same line, at an index that may belong to"),
        ("for j in range(3):\n            b[i + j] += 1", "b[i + j] is stored to on line 4, at an"),
        (
            "for j in range(3):\n            b[j] += 1",
            "b[j] is stored to on line 4 by every iteration: its index has the variable of an",
        ),
        ("b[i * i] = 1", "b[i * i] is stored to on line 3, at an index that is not a constant"),
        ("b[i * 0] = 1", "b[i * 0] is stored to on line 3 by every iteration"),
    ],
)
def test_shared_elements_make_a_loop_serial_with_the_reason(body, reason, device):
    function = function_from(
        "def k(a: NDArray[f64, 1], b: NDArray[f64, 1], n: Param):\n"
        f"    for i in range(1, n):\n        {body}\n"
    )
    kernel = assert_like_python(
        function, np.arange(40.0)[::-1].copy(), np.linspace(0, 50, 40), 6, device=device
    )
    is_parallel, given = notes(kernel)[2]
    assert not is_parallel
    assert reason in given
    assert axes(kernel) == [0]


def test_a_prefix_sum_is_serial_and_right(device):
    def k(a: Floats, b: Floats):
        for i in range(1, a.shape[0]):
            a[i] = a[i - 1] + b[i]

    kernel = assert_like_python(k, np.arange(1000.0), np.linspace(0, 1, 1000), device=device)
    assert not notes(kernel)[2][0]


def test_interleaved_elements_of_a_strided_loop_are_private(device):
    def k(b: Floats, n: Param):
        for i in range(0, n, 2):
            b[i] = b[i + 1] * 2
        for i in range(0, n, 3):
            b[i] = b[i + 3]

    kernel = assert_like_python(k, np.arange(30.0), 20, device=device)
    assert notes(kernel)[2][0]
    assert not notes(kernel)[4][0]


def test_a_bound_that_may_be_negative_is_told(device):
    def k(b: Floats, start: Param, n: Param, step: Param):
        for i in range(start, n):
            b[i] += 1
        for i in range(0, n, step):
            b[i] += 1
        for i in range(max(start, 0), n):
            b[i] += 1
        for i in range(tm.maximum(0, start), n, 3):
            b[i] = b[i + 1] + b[i + 2]
        for i in range(abs(start) % 4, n):
            b[i] = b[i + n]

    kernel = assert_like_python(k, np.arange(40.0), 3, 20, 4, device=device)
    told = notes(kernel)
    may_be_negative = "at an index that may be negative, which counts from the end"
    assert may_be_negative in told[2][1]
    assert may_be_negative in told[4][1]
    assert told[6][0]
    assert told[8][0]
    assert not told[10][0]


def test_indices_that_count_down_are_known_to_be_in_range(device):
    def k(a: Floats, b: Floats, c: Floats2):
        n = len(a)
        for i in range(n):
            b[n - 1 - i] = a[i]
        for i in range(len(a) - 2):
            b[len(a) - i - 2] += a[i + 1]
        for i in range(n - 1, -1, -1):
            b[n - i - 1] -= a[i]
        for i in range(c.shape[0]):
            for j in range(i):
                c[i, i - j - 1] = a[i - j]

    kernel = assert_like_python(k, np.arange(9.0), np.zeros(9), np.zeros((5, 5)), device=device)
    assert all(told[0] for line, told in notes(kernel).items() if line != 10)
    bodies = [unit.body.body for unit in lowered(kernel).plan.units]
    computes = [s for body in bodies for s in statements(body) if isinstance(s, Compute)]
    assert "select" not in {statement.operation for statement in computes}


def test_numpy_integers_wrap_and_prove_nothing(device):
    """A product of int64 scalars may overflow to a negative index, which counts from the end."""

    def k(a: NDArray[tn.u32, 1], b: Integers, out: Integers):
        for i in range(len(a)):
            x = a[i].astype(i64)
            out[i] = b[(x * 0x4000_0000_0000_0001) >> 60]

    def python(a, b, out):
        for i in range(len(a)):
            x = a[i].astype(np.int64)
            out[i] = b[(x * 0x4000_0000_0000_0001) >> 60]

    a, b, out = np.array([1, 2, 3, 6], np.uint32), np.arange(16), np.zeros(4, np.int64)
    wanted = out.copy()
    with np.errstate(all="ignore"):
        python(a, b, wanted)
    tn.kernel(k)(a, b, out, device=device)
    assert_same(out, wanted)
    assert wanted[1] == 8


def test_negative_steps_and_offsets_run_in_parallel(device):
    def k(a: Floats, b: Floats):
        for i in range(len(a) - 1, 0, -1):
            b[i] = a[i - 1]
        for i in range(10, len(a)):
            b[i - 10] = a[i]

    kernel = assert_like_python(k, np.arange(30.0), np.zeros(30), device=device)
    assert all(is_parallel for is_parallel, _ in notes(kernel).values())


def test_a_negative_index_wraps_and_is_not_taken_for_private(device):
    def k(b: Floats, n: Param):
        for i in range(-n, n):
            b[i] = i

    kernel = assert_like_python(k, np.zeros(8), 8, device=device)
    assert not notes(kernel)[2][0]


def test_a_carried_scalar_is_named(device):
    def k(a: Floats, out: Floats):
        total = 0.0
        count = 0
        for i in range(len(a)):
            if a[i] > total:
                total += a[i]
                count += 1
        out[0] = total
        out[1] = count

    kernel = assert_like_python(k, floats(1, -2, 0.1, 5), np.zeros(2), device=device)
    assert notes(kernel)[4] == (
        False,
        "'count' and 'total' are carried from one iteration to the next",
    )


def test_a_local_that_is_always_assigned_first_is_not_carried(device):
    def k(a: Floats, b: Floats):
        t = 5.0
        for i in range(len(a)):
            t = a[i]
            if t > 1:
                t = t * 2
            b[i] = t

    kernel = assert_like_python(k, np.arange(6.0), np.zeros(6), device=device)
    assert notes(kernel)[3][0]


# -- nests -----------------------------------------------------------------------------------------


def test_perfect_nests_become_spaces_of_several_axes(device):
    def k(a: Floats2, b: Floats2):
        for i in range(a.shape[0]):
            row = i * 2
            for j in range(a.shape[1]):
                b[j, i] = a[i, j] + row * j

    kernel = assert_like_python(k, np.arange(12.0).reshape(3, 4), np.zeros((4, 3)), device=device)
    assert axes(kernel) == [2]
    assert [is_parallel for is_parallel, _ in notes(kernel).values()] == [True, True]


def test_three_loops_with_offsets_and_steps(device):
    @tn.kernel
    def k(a: NDArray[f64, 3]):
        for i in range(1, a.shape[0] - 1):
            for j in range(a.shape[1] - 1, -1, -2):
                for m in range(0, a.shape[2], 3):
                    a[i, j, m] += i * 100 + j * 10 + m

    a = np.zeros((4, 5, 7))
    k(a, device=device)
    wanted = np.zeros((4, 5, 7))
    i, j, m = np.meshgrid([1, 2], [4, 2, 0], [0, 3, 6], indexing="ij")
    wanted[i, j, m] = i * 100 + j * 10 + m
    assert_same(a, wanted)
    assert axes(k) == [3]


def test_a_nest_whose_inner_range_depends_on_the_outer_is_parallel_outside(device):
    def k(a: Floats2, b: Floats2):
        for i in range(a.shape[0]):
            for j in range(i):
                b[i, j] = a[j, i]

    kernel = assert_like_python(k, np.arange(16.0).reshape(4, 4), np.zeros((4, 4)), device=device)
    assert axes(kernel) == [1]
    assert notes(kernel)[3] == (
        False,
        "it runs inside of a parallel loop; its iterations are independent too",
    )


def test_an_inner_loop_that_depends_on_its_order_stays_inside(device):
    def k(a: Floats2):
        for i in range(a.shape[0]):
            for j in range(1, a.shape[1]):
                a[i, j] = a[i, j - 1] * 2 + a[i, j]

    kernel = assert_like_python(k, np.arange(12.0).reshape(3, 4), device=device)
    assert axes(kernel) == [1]
    assert "which is the element of another iteration" in notes(kernel)[3][1]


def test_an_outer_loop_that_depends_on_its_order_is_serial(device):
    def k(a: Floats2):
        for i in range(1, a.shape[0]):
            for j in range(a.shape[1]):
                a[i, j] = a[i - 1, j] + 1

    kernel = assert_like_python(k, np.arange(12.0).reshape(3, 4), device=device)
    assert axes(kernel) == [0]
    assert notes(kernel)[3] == (False, "it is inside of a loop that runs in order")


def test_matrix_product(device):
    def k(a: Floats2, b: Floats2, c: Floats2):
        for i in range(a.shape[0]):
            for j in range(b.shape[1]):
                total = 0.0
                for m in range(a.shape[1]):
                    total += a[i, m] * b[m, j]
                c[i, j] = total

    generator = np.random.default_rng(0)
    arguments = generator.normal(size=(4, 6)), generator.normal(size=(6, 5)), np.zeros((4, 5))
    kernel = assert_like_python(k, *arguments, device=device)
    assert axes(kernel) == [2]
    assert "'total' is carried" in notes(kernel)[5][1]


def test_a_nest_that_stores_the_diagonal_twice_is_not_one_space(device):
    def k(a: Floats2):
        for i in range(a.shape[0]):
            for j in range(a.shape[1]):
                a[i, i] = a[i, i] + j

    kernel = assert_like_python(k, np.zeros((4, 4)), device=device)
    assert axes(kernel) == [1]


# -- declared --------------------------------------------------------------------------------------


def test_atomic_updates_make_an_exact_histogram(device):
    def k(a: Integers, counts: Integers, sums: NDArray[u8, 1], flags: NDArray[tn.bool_, 1]):
        for i in tn.parallel(range(len(a))):
            counts[a[i]] += 1
            counts[a[i]] -= 2
            sums[a[i]] *= 3
            flags[a[i]] |= a[i] > 2
            flags[a[i]] += a[i] == 1

    a = np.random.default_rng(2).integers(0, 6, 5000)
    counts, sums, flags = np.zeros(6, np.int64), np.ones(6, np.uint8), np.zeros(6, bool)
    kernel = assert_like_python(k, a, counts, sums, flags, device=device)
    assert notes(kernel)[2] == (True, "declared tn.parallel")


def test_atomic_updates_of_floats(device):
    @tn.kernel
    def k(a: Integers, x: NDArray[f32, 1], sums: NDArray[f32, 1]):
        for i in tn.parallel(range(len(a))):
            sums[a[i]] += x[i] * 2

    a, x = np.arange(4000) % 7, np.ones(4000, np.float32)
    sums = np.zeros(7, np.float32)
    k(a, x, sums, device=device)
    assert_same(sums, np.bincount(a).astype(np.float32) * np.float32(2))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("b[c[i]] /= 2", "in a tn.parallel loop /= on an array is atomic, which exists for += -= "),
        ("b[c[i]] **= 2", "in a tn.parallel loop **= on an array is atomic, which exists for"),
        ("b[c[i]] @= 2", "in a tn.parallel loop @= on an array is atomic, which exists for"),
        ("s[c[i]] += b[i]", "is atomic, in its type f32; convert the value, which is of type f64"),
        ("c[i] += 0.5", "array 'c' holds i64, and a value of type a Python float does not"),
        ("total = b[i] - total", "this loop is declared tn.parallel, but 'total' is carried from"),
        ("if b[i] > 1:\n            break", "a tn.parallel loop cannot be left by break or return"),
        ("return", "a tn.parallel loop cannot be left by break or return"),
    ],
)
def test_what_a_declared_loop_cannot_do(body, message):
    function = function_from(
        "def k(b: NDArray[f64, 1], s: NDArray[f32, 1], c: NDArray[i64, 1]):\n"
        f"    total = 0.0\n    for i in tn.parallel(range(len(b))):\n        {body}\n"
        "    b[0] = total\n"
    )
    arguments = np.zeros(3), np.zeros(3, np.float32), np.zeros(3, np.int64)
    error = kernel_error(function, *arguments)
    assert message in str(error)
    assert error.location.line in (3, 4)


def test_a_range_that_is_not_known_before_cannot_be_declared_parallel():
    def k(a: Integers):
        for i in tn.parallel(range(a[0])):
            a[i + 1] = 1

    message = str(kernel_error(k, integers(3, 0, 0, 0)))
    assert "declared tn.parallel, but its range depends on what the kernel computed" in message


def test_plain_stores_in_a_declared_loop_need_no_proof(device):
    def k(a: Integers, b: Floats):
        for i in tn.parallel(range(len(a))):
            b[a[i]] = i

    kernel = assert_like_python(k, integers(4, 2, 0, 1, 3), np.zeros(5), device=device)
    assert axes(kernel) == [1]


def test_updates_of_private_elements_are_plain(device):
    def k(b: Floats, x: Floats):
        for i in tn.parallel(range(len(b))):
            b[i] -= x[i]
            t = tm.zeros(2)
            t[i % 2] += 5
            b[i] += t[0]

    kernel = assert_like_python(k, np.arange(5.0), np.ones(5), device=device)
    assert "atomic" not in format_unit(lowered(kernel).plan.units[0])


def test_local_arrays_are_updated_atomically_only_where_iterations_share_them(device):
    def k(a: Integers, out: Integers, b: Floats):
        shared = tm.zeros(6, i64)
        for i in tn.parallel(range(len(a))):
            shared[a[i]] += 1
            own = tm.zeros(3)
            own[i % 3] += 3
            own[i % 3] /= 2
            for j in tn.parallel(range(4)):
                own[0] += j
            b[i] = own[0] + own[1] + own[2]
        for i in range(6):
            out[i] = shared[i]

    a = np.arange(50) % 6
    kernel = assert_like_python(k, a, np.zeros(6, np.int64), np.zeros(50), device=device)
    text = format_unit(lowered(kernel).plan.units[0])
    assert text.count("atomic") == 2


def test_serial_forbids_parallel(device):
    def k(a: Floats, b: Floats):
        for i in tn.serial(range(len(a))):
            b[i] = a[i]
        for i in range(len(a)):
            for j in tn.serial(range(2)):
                b[i] += j

    kernel = assert_like_python(k, np.arange(5.0), np.zeros(5), device=device)
    assert notes(kernel)[2] == (False, "it is declared tn.serial")
    assert notes(kernel)[5] == (
        False,
        "it runs inside of a parallel loop; it is declared tn.serial",
    )
    assert axes(kernel) == [0, 1]


def test_intent_needs_a_range():
    for intent in ("serial", "parallel"):
        function = function_from(
            f"def k(a: NDArray[f64, 1]):\n    for i in tn.{intent}((1, 2)):\n        a[i] = 1\n"
        )
        message = str(kernel_error(function, np.zeros(3)))
        assert f"tn.{intent} takes a range, as in tn.{intent}(range(n))" in message


# -- plans of several units ------------------------------------------------------------------------


def test_scalars_pass_from_unit_to_unit(device):
    def k(a: Floats, b: Floats, flags: NDArray[tn.bool_, 1]):
        total = 0.0
        for i in range(len(a)):
            total += a[i]
        mean = total / len(a)
        is_large = mean > 2
        half = f32(mean)
        for i in range(len(a)):
            b[i] = a[i] - mean + half
            flags[i] = is_large
        worst = 0.0
        for i in range(len(a)):
            worst = max(worst, abs(b[i]))
        for i in range(len(a)):
            b[i] /= worst
        b[0] = mean

    def with_numpy_cast(a, b, flags):
        total = 0.0
        for i in range(len(a)):
            total += a[i]
        mean = total / len(a)
        for i in range(len(a)):
            b[i] = a[i] - mean + np.float32(mean)
            flags[i] = mean > 2
        worst = 0.0
        for i in range(len(a)):
            worst = max(worst, abs(b[i]))
        for i in range(len(a)):
            b[i] /= worst
        b[0] = mean

    a = np.linspace(0, 7, 9)
    b, flags = np.zeros(9), np.zeros(9, bool)
    wanted_b, wanted_flags = b.copy(), flags.copy()
    with_numpy_cast(a, wanted_b, wanted_flags)
    kernel = tn.kernel(k)
    kernel(a, b, flags, device=device)
    assert_same(b, wanted_b)
    assert_same(flags, wanted_flags)
    reduction = [2, 2, 2, 0]
    assert axes(kernel) == [*reduction, 1, *reduction, 1, 0]
    scratch = [s for s in lowered(kernel).plan.steps if isinstance(s, Scratch)]
    assert [s.dtype for s in scratch if s.is_filled] == [f64, f32, tn.bool_, f64]


def test_scalars_of_arguments_are_computed_again_where_they_are_needed(device):
    def k(a: Floats, n: Param, scale: Param):
        half = max(n // 2, 0)
        factor = scale * 2 + half
        for i in range(half):
            a[i] = factor
        for i in range(half, n):
            a[i] = -factor

    kernel = assert_like_python(k, np.zeros(9), 7, 0.5, device=device)
    assert axes(kernel) == [1, 1]
    plan = lowered(kernel).plan
    assert not [step for step in plan.steps if isinstance(step, Scratch)]


def test_elements_stored_between_loops_are_seen_by_the_next_loop(device):
    def k(a: Floats, b: Floats):
        b[0] = 1
        for i in range(len(a)):
            a[i] = b[0] + i
        b[0] = 2
        first = a[1]
        b[1] = first
        for i in range(len(a)):
            a[i] += b[0] * first
        b[2] = a[2] + b[1]

    kernel = assert_like_python(k, np.zeros(5), np.zeros(3), device=device)
    assert axes(kernel) == [0, 1, 0, 1, 0]


def test_ranges_that_depend_on_the_contents_of_arrays(device):
    def k(n: Integers, b: Floats):
        for i in range(n[0]):
            b[i] = i
        m = 0
        for i in range(len(n)):
            m += n[i]
        for i in range(m):
            b[i] += 100

    kernel = assert_like_python(k, integers(3, 2, 1), np.zeros(8), device=device)
    assert notes(kernel)[2] == (False, "its range depends on what the kernel computed before")
    assert notes(kernel)[7] == (False, "its range depends on what the kernel computed before")


def test_a_while_loop_at_the_top(device):
    def k(a: Floats):
        x = 100.0
        n = 0
        while x > 1:
            x /= 3
            n += 1
            for i in range(len(a)):
                a[i] += x
        for i in range(len(a)):
            a[i] *= n
        for i in range(len(a)):
            if a[i] > 1e9:
                break
            a[i] += 1

    kernel = assert_like_python(k, np.zeros(4), device=device)
    told = notes(kernel)
    early = "whether it goes on is decided in every iteration, so that they run in order"
    assert told[4] == (False, early)
    assert told[7] == (False, "it is inside of a loop that runs in order")
    assert told[9][0]
    assert told[11] == (False, early)


def test_loops_in_branches_on_arguments_run_in_parallel(device):
    def k(a: Floats, b: Floats2, n: Param):
        if n > 2:
            half = n * 0.5
            for i in range(len(a)):
                a[i] = half
            b[0, 0] = n
            if n > 4:
                for i in range(b.shape[0]):
                    for j in range(b.shape[1]):
                        b[i, j] += a[j]
            else:
                b[0, 1] = -1
        else:
            for i in range(len(a) - 1, 0, -2):
                a[i] = -n
        if n == 3:
            return
        for i in range(len(a)):
            a[i] += 1

    for n in (1, 3, 4, 5):
        kernel = assert_like_python(k, np.zeros(4), np.ones((3, 4)), n, device=device)
    assert all(is_parallel for is_parallel, _ in notes(kernel).values())
    assert axes(kernel) == [1, 0, 2, 0, 1, 1]


def test_loops_in_branches_on_contents_run_in_order(device):
    def k(a: Floats, b: Floats):
        if b[0] > 2:
            for i in range(len(a)):
                a[i] = b[i]
        total = 0.0
        if len(a) > 2:
            for i in range(len(a)):
                total += a[i]
        b[1] = total

    for first in (1.0, 5.0):
        b = np.full(4, first)
        kernel = assert_like_python(k, np.arange(4.0), b, device=device)
    assert notes(kernel)[3] == (False, "it is inside of a branch")
    assert notes(kernel)[7] == (False, "it is inside of a branch")


def test_a_kernel_without_loops_or_statements(device):
    def k(a: Floats):
        a[0] = a[1] * 2

    def nothing(a: Floats):
        pass

    assert_like_python(k, np.arange(3.0), device=device)
    assert_like_python(nothing, np.arange(3.0), device=device)
    assert_like_python(nothing, np.zeros(0), device=device)


def test_arrays_without_elements(device):
    def k(a: Floats2, b: Floats):
        for i in range(a.shape[0]):
            for j in range(a.shape[1]):
                a[i, j] = 1
        for i in range(len(b)):
            b[i] = 2

    assert_like_python(k, np.zeros((0, 3)), np.zeros(0), device=device)
    assert_like_python(k, np.zeros((3, 0)), np.zeros(1), device=device)


def test_loops_of_helpers_are_noted_at_the_line_of_their_call(device):
    @tn.func
    def fill(array, value):
        for i in range(len(array)):
            array[i] = value

    def k(a: Floats):
        fill(a, 1.0)
        fill(a, 2.0)

    kernel = assert_like_python(k, np.zeros(4), device=device)
    assert notes(kernel) == {
        2: (True, "its iterations are independent"),
        3: (True, "its iterations are independent"),
    }


def test_an_error_of_a_declared_loop_in_a_helper_points_at_its_call():
    @tn.func
    def total_of(array):
        total = 0.0
        for i in tn.parallel(range(len(array))):
            total = array[i] - total
        return total

    def k(a: Floats):
        a[0] = total_of(a)

    error = kernel_error(k, np.zeros(4))
    assert "declared tn.parallel, but 'total' is carried" in str(error)
    assert error.location.text.strip() == "a[0] = total_of(a)"


def test_parameters_may_have_the_names_of_generated_arrays(device):
    def k(local0: Floats, passed0: Floats, local1: Floats):
        t = tm.zeros(3)
        x = local0[0]
        for i in range(3):
            t[i] = x + i
        for i in range(3):
            passed0[i] = t[i]
            u = tm.zeros(2)
            u[0] += local1[i]
            local1[i] = u[0] * 2

    assert_like_python(k, np.ones(3), np.zeros(3), np.arange(3.0), device=device)

    @tn.kernel
    def sample(returned0: tn.Scalar) -> tn.Scalar:
        local0 = tm.zeros(2)
        local0[1] = returned0
        return local0[1] + 1

    assert_same(sample(np.ones(2), device=device), np.full(2, 2.0))


# -- aliasing --------------------------------------------------------------------------------------


def test_serial_loops_keep_the_order_of_python_when_views_overlap(device):
    def k(a: Floats, b: Floats):
        for i in range(1, len(a)):
            b[i] = a[i - 1] + b[i - 1]
        for i in tn.serial(range(len(a))):
            b[i] = a[i] * 2

    kernel = tn.kernel(k)
    for first, second in ((slice(0, 8), slice(1, 9)), (slice(1, 9), slice(0, 8))):
        memory, wanted = np.arange(9.0), np.arange(9.0)
        k(wanted[first], wanted[second])
        kernel(memory[first], memory[second], device=device)
        assert_same(memory, wanted)
    memory, wanted = np.arange(9.0), np.arange(9.0)
    k(wanted[::-1], wanted)
    kernel(memory[::-1], memory, device=device)
    assert_same(memory, wanted)


def test_parallel_loops_refuse_overlap_unless_it_is_exact_and_element_by_element(device):
    @tn.kernel
    def double(a: Floats, b: Floats):
        for i in range(len(a)):
            b[i] = a[i] * 2

    memory = np.arange(9.0)
    double(memory, memory, device=device)
    assert_same(memory, np.arange(9.0) * 2)
    double(memory[:4], memory[5:], device=device)
    for first, second in ((memory[:-1], memory[1:]), (memory[::-1], memory)):
        with pytest.raises(tn.CallError, match="arguments 'a' and 'b' overlap in memory"):
            double(first, second, device=device)


def test_reading_other_elements_refuses_the_same_array(device):
    @tn.kernel
    def shifted(a: Floats, b: Floats):
        for i in range(1, len(a)):
            b[i] = a[i - 1]

    memory = np.arange(9.0)
    with pytest.raises(tn.CallError, match="arguments 'a' and 'b' overlap in memory"):
        shifted(memory, memory, device=device)
    shifted(memory, np.zeros(9), device=device)


def test_a_transposed_store_refuses_the_same_matrix(device):
    @tn.kernel
    def transpose(a: Floats2, b: Floats2):
        for i in range(a.shape[0]):
            for j in range(a.shape[1]):
                b[j, i] = a[i, j]

    a = np.arange(9.0).reshape(3, 3)
    with pytest.raises(tn.CallError, match="overlap in memory"):
        transpose(a, a, device=device)
    with pytest.raises(tn.CallError, match="overlap in memory"):
        transpose(a, a.T, device=device)


def test_arrays_of_different_types_over_one_memory_are_refused(device):
    @tn.kernel
    def k(a: NDArray[f32, 1], b: NDArray[tn.i32, 1]):
        for i in range(len(a)):
            b[i] = tn.i32(a[i])

    memory = np.ones(4, np.float32)
    with pytest.raises(tn.CallError, match="overlap in memory"):
        k(memory, memory.view(np.int32), device=device)


def test_arrays_that_are_only_read_may_overlap(device):
    @tn.kernel
    def k(a: Floats, b: Floats, c: Floats):
        for i in range(len(a)):
            c[i] = a[i] + b[i]

    memory, c = np.arange(6.0), np.zeros(5)
    k(memory[:-1], memory[1:], c, device=device)
    assert_same(c, memory[:-1] + memory[1:])
