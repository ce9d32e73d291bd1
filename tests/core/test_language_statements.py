"""Statements and control flow: what Python does on NumPy arrays, kernels do too."""

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
    integers,
    kernel_error,
)

import turnout as tn
import turnout.math as tm
from turnout import Mutable, NDArray, Param, Scalar, f32, i32, i64

# -- assignment ------------------------------------------------------------------------------------


def test_tuples_unpack_and_swap(device):
    def k(a: Floats, b: Floats):
        for i in range(len(a)):
            x, y = a[i], b[i]
            x, y = y, x
            [p, (q, r)] = [x, (y, x + y)]
            a[i], b[i] = p * r, q
            u = v = a[i]
            b[i] += u - v

    assert_like_python(k, np.arange(4.0), np.arange(4.0) + 10, device=device)


def test_a_swap_of_elements_reads_before_it_writes(device):
    def k(a: Floats):
        for i in range(len(a) // 2):
            a[i], a[-1 - i] = a[-1 - i], a[i]

    assert_like_python(k, np.arange(5.0), device=device)


def test_augmented_assignments_of_every_operator(device):
    def k(a: Integers, b: Floats):
        for i in range(len(a)):
            x = a[i]
            x += 3
            x -= i
            x *= 2
            x //= 3
            x %= 7
            x <<= 2
            x >>= 1
            x |= 8
            x &= 13
            x ^= 5
            x **= 2
            a[i] = x
            b[i] += 1
            b[i] /= 3
            b[i] -= x
            b[i] *= -2
            b[i] //= 0.7
            b[i] %= 4
            b[i] **= 2

    assert_like_python(k, integers(-5, 0, 3, 99), floats(0.5, 1, 2, 4), device=device)


def test_the_right_side_is_evaluated_before_the_index_of_the_target(device):
    def k(a: Integers, b: Integers):
        n = 0
        b[n] = (n := 2) + a[n]
        b[1] += (m := 3) * a[m]
        a[0] = m

    assert_like_python(k, integers(1, 2, 3, 4), integers(0, 5, 0, 0), device=device)


def test_augmented_assignments_evaluate_in_the_order_of_python(device):
    @tn.func
    def counted(a, i):
        a[i] += 100
        return a

    @tn.func
    def changed(a):
        a[0] = 50
        return 1

    def k(a: Floats, b: Floats2):
        counted(a, 1)[0] += 1
        a[0] += changed(a)
        counted(a, 2)[2] = changed(a) + a[2]
        x = 2
        x += (x := 5) * x
        a[3] = x
        counted(b[1], 0)[1] *= changed(b[0])

    assert_like_python(k, np.arange(4.0), np.arange(6.0).reshape(2, 3), device=device)


def test_annotations_of_locals_convert_like_stores(device):
    @tn.kernel
    def k(a: Integers, b: NDArray[f32, 1]):
        for i in range(len(a)):
            x: f32 = a[i]
            b[i] = x / 3

    b = np.zeros(2, np.float32)
    k(integers(1, 2), b, device=device)
    assert_same(b, np.array([1, 2], np.float32) / np.float32(3))


def test_a_walrus_binds_and_gives_its_value(device):
    def k(a: Floats, b: Floats):
        for i in range(len(a)):
            if (t := a[i] * 2) > 3:
                b[i] = t
            b[i] += (u := t + 1) * u

    assert_like_python(k, np.arange(6.0), np.zeros(6), device=device)


def test_a_walrus_in_a_conditional_expression_binds_on_the_path_taken(device):
    def k(a: Floats, b: Floats):
        for i in range(len(a)):
            t = 0.0
            x = (t := a[i]) if a[i] > 2 else -1.0
            b[i] = x + t

    assert_like_python(k, np.arange(6.0), np.zeros(6), device=device)


def test_a_walrus_in_conditions_binds_what_python_binds(device):
    def k(a: Integers, b: Integers):
        for i in range(len(a)):
            t = -1
            if a[i] > 2 and (t := a[i] * 2) > 9:
                b[i] = 1
            b[i] += t
            j = i
            x = 0
            while (x := a[j]) > 1 and j < 3:
                j += 1
            b[i] += 100 * x + 1000 * j

    assert_like_python(k, integers(3, 7, 1, 5, 2), np.zeros(5, np.int64), device=device)


# -- loops -----------------------------------------------------------------------------------------


def test_ranges_of_every_direction_and_step(device):
    def k(a: Integers, n: Param, step: Param):
        p = 0
        for i in range(n, -1, -1):
            a[p] = i
            p += 1
        for i in range(10, 0, step):
            a[p] += i * step
            p = p + 1
        for i in range(5, 5):
            a[0] = 99 + i
        for i in range(3, 0):
            a[0] = 99 + i
        for i in range(0, n, 2):
            a[i] -= 1
        for i in range(-3, 0):
            a[i] = i

    assert_like_python(k, np.zeros(20, np.int64), 5, -3, device=device)
    assert_like_python(k, np.zeros(20, np.int64), 0, -20, device=device)


@pytest.mark.parametrize(
    "bounds", [(0, 7, 3), (7, -1, -3), (-2, 5, 2), (5, 0, 2), (0, 5, -1), (2**40, 2**40 + 5, 4)]
)
def test_ranges_known_at_run_time_only(device, bounds):
    def k(a: Integers, start: Param, stop: Param, step: Param):
        p = 0
        for i in range(start, stop, step):
            a[p] = i
            p += 1

    assert_like_python(k, np.full(8, -99), *bounds, device=device)


@pytest.mark.parametrize(
    "bounds",
    [
        (-(2**62), 2**62 - 1, 2**60),
        (-(2**63), 2**63 - 1, 2**61),
        (2**63 - 1, -(2**63), -(2**61)),
        (2**62, -(2**63), 1),
        (-(2**63), 2**62, -1),
        (5, -5, -(2**63)),
        (0, 3, 2**63 - 1),
    ],
)
def test_ranges_over_all_of_int64(device, bounds):
    start, stop, step = bounds

    def k(count: Integers, start: Param, stop: Param, step: Param):
        n = 0
        for i in range(start, stop, step):
            n += 1
            if i == 12345:
                break
        count[0] = n
        n = 0
        for i in range(start, stop, step):
            n += i % 7
        count[1] = n

    def known(count: Integers):
        n = 0
        for i in range(start, stop, step):
            n += 1
            if i == 12345:
                break
        count[2] = n

    assert_like_python(k, np.zeros(3, np.int64), *bounds, device=device)
    assert_like_python(known, np.zeros(3, np.int64), device=device)


def test_a_loop_variable_can_be_a_step_and_a_bound(device):
    def k(a: Integers, n: Param):
        for s in range(1, n):
            for i in range(0, 20, s):
                a[i] += s
            for i in range(s, 2 * s):
                a[i] -= 1

    assert_like_python(k, np.zeros(20, np.int64), 6, device=device)


def test_bounds_of_every_integer_type(device):
    def k(a: Integers, b: NDArray[i32, 1], c: NDArray[tn.u64, 1], d: NDArray[tn.u8, 1]):
        for i in range(b[0], c[0], d[0]):
            a[i] = i

    arguments = np.array([2], np.int32), np.array([9], np.uint64), np.array([3], np.uint8)
    assert_like_python(k, np.zeros(12, np.int64), *arguments, device=device)


def test_break_and_continue_at_several_depths(device):
    def k(a: Integers, b: Integers):
        for i in range(len(a)):
            for j in range(10):
                if j == i:
                    break
                if j % 2 == 0:
                    continue
                for m in range(5):
                    if m > j:
                        break
                    a[i] += m
                a[i] += 100
            last = 3
            if i == 7:
                break
            b[i] = last

    assert_like_python(k, np.zeros(10, np.int64), np.zeros(10, np.int64), device=device)


def test_while_with_break_and_continue(device):
    def k(a: Integers):
        n = 27
        steps = 0
        while n != 1:
            if n % 2:
                n = 3 * n + 1
            else:
                n //= 2
            steps += 1
            if steps > 1000:
                break
        a[0] = n
        a[1] = steps
        while True:
            steps -= 1
            if steps % 7:
                continue
            if steps < 50:
                break
            a[2] += steps
        a[3] = steps

    assert_like_python(k, np.zeros(5, np.int64), device=device)


def test_while_inside_of_a_parallel_loop(device):
    def k(a: Integers, b: Integers):
        for i in range(len(a)):
            n = a[i]
            steps = 0
            while n != 1 and steps < 50:
                n = 3 * n + 1 if n % 2 else n // 2
                steps += 1
            b[i] = steps

    assert_like_python(k, np.arange(1, 40), np.zeros(39, np.int64), device=device)


def test_a_condition_of_while_that_reads_memory_is_guarded(device):
    def k(a: Integers, b: Integers):
        for i in range(len(a)):
            j = i
            while j < len(a) and a[j] < 5:
                j += 1
                if j == 4:
                    break
            b[i] = j

    assert_like_python(k, integers(3, 2, 6, 1, 2, 9, 1), np.zeros(7, np.int64), device=device)


def test_nested_loops_carry_each_its_own_values(device):
    def k(a: Integers, out: Integers):
        total = 0
        best = -1
        for i in range(len(a)):
            row = 0
            for j in range(i):
                row += a[j]
                for m in range(j):
                    row -= m
                    total += 1
            total += row
            if row > best:
                best = row
        out[0] = total
        out[1] = best

    assert_like_python(k, integers(5, 1, 4, 9, -2), np.zeros(2, np.int64), device=device)


def test_loops_over_tuples_are_unrolled(device):
    weights = (0.25, 0.5, 0.25)

    def k(a: Floats, b: Floats):
        for i in range(1, len(a) - 1):
            for n, w in ((0, 1.0), (1, 10.0)):
                b[i] += w * a[i + n]
            for w in weights:
                b[i] *= w
            for x in [a[i], 2]:
                b[i] -= x

    assert_like_python(k, np.arange(6.0), np.ones(6), device=device)


def test_break_continue_and_return_in_unrolled_loops(device):
    @tn.func
    def first_above(x):
        for limit in (1, 3, 5):
            if x < limit:
                return limit
        return 9

    def k(a: Floats, b: Floats):
        for i in range(len(a)):
            for step in (1, 2, 3, 4):
                if step == 2:
                    continue
                if a[i] < step:
                    break
                for m in range(3):
                    if m == step:
                        break
                    b[i] += m
                b[i] += 10
            b[i] += 100 * first_above(a[i])

    assert_like_python(k, np.arange(6.0), np.zeros(6), device=device)


def test_a_local_that_changes_its_type_in_a_loop_has_the_joined_type(device):
    def k(a: Floats, b: NDArray[f32, 1], out: Floats):
        total = 0
        for i in range(len(a)):
            total = total + a[i]
        out[0] = total
        small = 0
        for i in range(len(b)):
            small += b[i]
        out[1] = small
        x = 1
        for i in range(3):
            x /= 2
        out[2] = x
        y = 1
        for i in range(2):
            for _j in range(2):
                y = y * 1.5
            y += i
        out[3] = y

    arguments = floats(0.1, 0.2, 0.3), np.array([0.1, 0.2, 0.7], np.float32), np.zeros(4)
    assert_like_python(k, *arguments, device=device)


def test_flags_and_vectors_are_carried(device):
    @tn.kernel
    def k(x: Scalar, v: tn.Vector[2], out: Mutable[Scalar], w: Mutable[tn.Vector[2]]):
        seen = False
        u = v
        for i in range(4):
            if x > i:
                seen = True
            u = u + (1, 2)  # noqa: RUF005
            u[0] *= 2
        out = 1.0 if seen else -1.0
        w = u

    x, v = floats(-1, 0, 2), np.arange(6.0).reshape(2, 3)
    out, w = np.zeros(3), np.zeros((2, 3))
    k(x, v, out, w, device=device)
    assert_same(out, floats(-1, -1, 1))
    first, second = v
    for _ in range(4):
        first, second = (first + 1) * 2, second + 2
    assert_same(w, np.stack([first, second]))


# -- branches --------------------------------------------------------------------------------------


def test_if_elif_else_merges_values_and_types(device):
    def k(a: Floats, b: Floats):
        for i in range(len(a)):
            if a[i] < 1:
                x = 1
                y = a[i]
            elif a[i] < 3:
                x = 2.5
                y = a[i] * 2
            else:
                x = a[i]
                y = 7.0
            b[i] = x * y

    assert_like_python(k, np.arange(6.0), np.zeros(6), device=device)


def test_conditional_expressions_and_chained_comparisons(device):
    def k(a: Floats, b: Floats):
        for i in range(a.shape[0]):
            b[i] = a[i] if a[i] > 0 else (-a[i] if a[i] < -1 else 0)
            b[i] += 1 if 0 <= i < 3 else 2
            if 1 < a[i] <= 2 < 3 != a[i]:
                b[i] = -b[i]
            b[i] *= (1 if i else 2) + (3 if a[i] else (4 if i > 2 else 5))

    assert_like_python(k, floats(-2, -0.5, 0, 1, 2, 3), np.zeros(6), device=device)


def test_short_circuits_guard_an_index(device):
    def k(a: Integers, b: Integers):
        for i in range(len(a)):
            if (i + 1 < len(a) and a[i + 1] > 3) or i == 0:
                b[i] += 100
            if not (i > 0 and a[i - 1] == 2):
                b[i] += 1000
            if i >= len(a) - 1 or a[i + 1] == 1:
                b[i] += 10000

    assert_like_python(k, integers(3, 2, 6, 1, 2, 9, 1), np.zeros(7, np.int64), device=device)


def test_a_chained_comparison_stops_at_the_first_that_fails(device):
    def k(a: Integers, b: Integers):
        for i in range(len(b)):
            if 0 <= i < len(a) <= a[i - len(a)] + 3:
                b[i] = 1

    def guarded(a: Integers, b: Integers):
        for i in range(len(b)):
            if i < len(a) < 2 * a[i]:
                b[i] = 1

    arguments = integers(0, 1, 2, 3), np.zeros(6, np.int64)
    assert_like_python(k, *arguments, device=device)
    assert_like_python(guarded, *arguments, device=device)


def test_and_or_not_give_values_as_in_python(device):
    def k(a: Integers, b: Integers):
        for i in range(len(a)):
            b[i] += 10 if a[i] and i else 20
            b[i] += a[i] and 7
            b[i] += a[i] or 3
            b[i] += not a[i]

    assert_like_python(k, integers(0, 1, -5, 7), np.zeros(4, np.int64), device=device)


def test_numbers_are_conditions(device):
    def k(a: Floats, n: Integers, b: Integers):
        for i in range(len(a)):
            if a[i]:
                b[i] = 1
            if not n[i]:
                b[i] += 2
            b[i] += 4 if a[i] else 8
            while n[i]:
                n[i] -= 1
                b[i] += 16

    arguments = floats(0, -0.0, np.nan, 2), integers(0, 1, 2, 0), np.zeros(4, np.int64)
    assert_like_python(k, *arguments, device=device)


USE_FAST_PATH = True


def test_static_conditions_leave_the_other_path_out(device):
    limit = 3

    def k(a: Floats):
        if USE_FAST_PATH:
            a[0] = 1
        else:
            no_such_name(a)  # noqa: F821
        a[1] = 5 if limit > 2 else no_such_name  # noqa: F821
        if a.ndim == 2:
            a[0, 0] = 1
        if limit > 2 or a.no_such_attribute:
            a[2] = 2
        while limit < 3:
            a[0] = 99

    assert_like_python(k, np.zeros(3), device=device)


def test_docstrings_pass_and_ellipsis_do_nothing(device):
    def k(a: Floats):
        """Nothing."""
        ...
        pass
        "a string"
        for _ in range(3):
            pass

    assert_like_python(k, np.zeros(3), device=device)


# -- early return ----------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [5, 2, 1])
def test_return_leaves_an_array_form_kernel(device, n):
    def k(a: Floats, n: Param):
        if n > 3:
            return
        a[0] = 1
        for i in range(1, len(a)):
            a[i] = i
        if n == 2:
            return
        a[1] = -1

    assert_like_python(k, np.zeros(4), n, device=device)


def test_return_inside_of_loops_ends_the_kernel(device):
    def k(a: Integers, b: Integers):
        for i in range(len(a)):
            for j in range(i):
                if a[i] == a[j]:
                    b[0] = i
                    b[1] = j
                    return
            b[2] += 1
        b[3] = 1

    assert_like_python(k, integers(4, 7, 2, 7, 1), np.zeros(4, np.int64), device=device)
    assert_like_python(k, integers(4, 7, 2, 8, 1), np.zeros(4, np.int64), device=device)


def test_return_guards_the_rest_of_a_sample(device):
    @tn.kernel
    def k(x: Scalar, y: Mutable[Scalar]):
        y = -x
        if x < 0:
            return
        y = tm.sqrt(x)
        if x > 100:
            return
        y += 1

    x = floats(-4, 4, 400)
    y = np.zeros(3)
    k(x, y, device=device)
    assert_same(y, floats(4, 3, 20))


def test_returned_values_of_several_paths_are_joined(device):
    @tn.kernel
    def k(x: Scalar) -> Scalar:
        if x < 0:
            return 0
        for i in range(10):
            x = x * 2
            if x > 50:
                return x + i
        return x

    assert_same(k(floats(-1, 0.01, 3, 60), device=device), floats(0, 0.01 * 1024, 96 + 4, 120))


# -- arrays ----------------------------------------------------------------------------------------


def test_shapes_and_sizes(device):
    def k(a: Floats2, b: Integers):
        b[0] = a.shape[0]
        b[1] = a.shape[1]
        b[2] = len(a)
        b[3] = a.ndim
        b[4] = a.size
        n, m = a.shape
        b[5] = n * m
        b[6] = len(a[0])
        b[-1] = 77
        b[-2] = a.shape[-1] + a[1].shape[0] + a[1].ndim + a[0].size

    assert_like_python(k, np.zeros((3, 4)), np.zeros(10, np.int64), device=device)


def test_indices_wrap_as_in_python(device):
    def k(a: Floats2, b: Floats2):
        n = a.shape[0]
        for i in range(-n, n):
            b[i, -1] += a[i][0]
            b[-1 - i if i >= 0 else i][0] += a[i, -2]

    a = np.arange(12.0).reshape(4, 3)
    assert_like_python(k, a, np.zeros((4, 3)), device=device)


def test_local_arrays_start_with_zeros_in_every_iteration(device):
    def k(a: Floats, b: Floats):
        for i in range(len(a)):
            t = np.zeros(4)
            u = tm.zeros((2, 2), f32)
            w = np.zeros(shape=3, dtype=np.int32)
            t[i % 4] += a[i]
            u[0, 1] += 1
            u[1][0] = a[i].astype(np.float32)
            w[-1] += 2
            total = 0.0
            for j in range(4):
                total += t[j]
            b[i] = total + u[0, 1] + u[1, 0] + w[2] + len(t) + u.size

    assert_like_python(k, np.arange(6.0), np.zeros(6), device=device)


def test_local_arrays_in_branches_and_loops(device):
    def k(a: Floats, b: Floats):
        for i in range(len(a)):
            if a[i] > 2:
                t = tm.zeros(3)
                t[1] = a[i]
                b[i] = t[1] + t[0]
            else:
                t = tm.zeros(3)
                b[i] = t[0] - 1
            for j in range(3):
                s = tm.zeros(2, i64)
                s[j % 2] += j
                b[i] += s[0] + 2 * s[1]

    assert_like_python(k, np.arange(6.0), np.zeros(6), device=device)


def test_a_local_array_of_the_kernel_is_shared_by_its_loops(device):
    def k(a: Floats, b: Floats):
        sums = tm.zeros(4)
        for i in range(len(a)):
            sums[i % 4] += a[i]
        for i in range(4):
            sums[i] *= 2
        for i in range(len(b)):
            b[i] = sums[i % 4]

    assert_like_python(k, np.arange(10.0), np.zeros(6), device=device)


# -- helpers ---------------------------------------------------------------------------------------


@tn.func
def grown(x, count=2, *, add=0):
    """Three ways out."""
    if x < 0:
        return -x
    for _ in range(count):
        x = x * 1.5
        if x > 100:
            return x
    return x + add


@tn.func
def sum_and_difference(x, y):
    return x + y, x - y


@tn.func
def put(array, i, value):
    array[i] = value


@tn.func
def nested_helpers(x):
    a, b = sum_and_difference(x, 1)
    return grown(a, count=3) * grown(b, add=1)


@tn.func
def passed_on(x, y):
    return sum_and_difference(x, y)


def test_helpers_are_inlined(device):
    def k(a: Floats, b: Floats, c: Floats):
        for i in range(len(a)):
            p, q = passed_on(a[i], b[i])
            put(c, i, nested_helpers(p) + grown(q, 4) + grown(x=q, count=1, add=2.5))

    arguments = np.linspace(-5, 50, 12), np.linspace(3, 4, 12), np.zeros(12)
    assert_like_python(k, *arguments, device=device)


def test_helpers_take_rows_vectors_and_have_names_of_their_own(device):
    @tn.func
    def row_sum(row, scale):
        total = 0.0
        for i in range(row.shape[0]):
            total += row[i] * scale
        return total

    def k(a: Floats2, b: Floats):
        total = 5.0
        for i in range(a.shape[0]):
            scale = 2
            b[i] = row_sum(a[i], scale + 1) + total + scale

    assert_like_python(k, np.arange(12.0).reshape(4, 3), np.zeros(4), device=device)


def test_one_conditional_expression_inlined_twice_in_one_expression(device):
    @tn.func
    def positive(x):
        return x if x > 0 else -x

    def k(a: Floats, b: Floats):
        for i in range(len(a)):
            b[i] = positive(positive(a[i]) - 2) if positive(a[i]) > 1 else positive(a[i])

    assert_like_python(k, floats(-3, -1, -0.5, 0, 1, 2.5), np.zeros(6), device=device)


def test_a_helper_without_a_value_gives_none(device):
    @tn.func
    def noted(array, i):
        if i == 1:
            return
        array[i] = i

    def k(a: Floats):
        for i in range(len(a)):
            noted(a, i)

    assert_like_python(k, np.full(4, 9.0), device=device)


def test_recursion_is_refused():
    @tn.func
    def down(n):
        return n if n < 1 else down(n - 1)

    def k(a: Floats):
        a[0] = down(3)

    error = kernel_error(k, np.zeros(1))
    assert "down calls itself; helpers are inlined, use a loop" in str(error)
    assert error.location.text.strip() == "return n if n < 1 else down(n - 1)"


# -- casts and builtins ----------------------------------------------------------------------------


def test_casts_in_every_spelling(device):
    @tn.kernel
    def k(a: Floats, b: NDArray[f32, 1], c: NDArray[i32, 1]):
        for i in range(len(a)):
            b[i] = f32(a[i]) + np.float32(a[i]) * 2
            c[i] = i32(a[i]) + a[i].astype(i32) * np.int32(3)

    a = floats(1.5, -2.5, 7)
    b, c = np.zeros(3, np.float32), np.zeros(3, np.int32)
    k(a, b, c, device=device)
    assert_same(b, a.astype(np.float32) * np.float32(3))
    assert_same(c, a.astype(np.int32) * np.int32(4))


def test_casts_saturate_and_nan_gives_zero(device):
    @tn.kernel
    def k(a: Floats, b: NDArray[tn.i8, 1], c: NDArray[tn.u64, 1]):
        for i in range(len(a)):
            b[i] = tn.i8(a[i])
            c[i] = tn.u64(a[i])

    a = floats(1e30, -1e30, np.nan, np.inf, -np.inf, 127.9, -128.9)
    b, c = np.zeros(7, np.int8), np.zeros(7, np.uint64)
    k(a, b, c, device=device)
    assert_same(b, np.array([127, -128, 0, 127, -128, 127, -128], np.int8))
    top = 2**64 - 1
    assert_same(c, np.array([top, 0, 0, top, 0, 127, 0], np.uint64))


def test_python_builtins(device):
    def k(a: Integers, x: Floats, b: Integers, y: Floats):
        for i in range(len(a)):
            b[i] = min(a[i], 2, i) + max(a[i], -1) + abs(a[i])
            b[i] += int(a[i] / 2) + int(bool(a[i])) + int(float(a[i]))
            y[i] = min(x[i], 0.5) + 10 * max(x[i], 0.5, a[i]) + abs(x[i]) + float(i)

    arguments = integers(0, 1, -5, 7), floats(-2, 0.25, 0.75, 3), integers(0, 0, 0, 0), np.zeros(4)
    assert_like_python(k, *arguments, device=device)


def test_min_and_max_order_nan_as_python_does(device):
    def k(x: Floats, y: Floats, out: Floats2):
        for i in range(len(x)):
            out[i, 0] = min(x[i], y[i])
            out[i, 1] = max(x[i], y[i])

    x, y = floats(np.nan, 1, 0.0, -0.0), floats(1, np.nan, -0.0, 0.0)
    assert_like_python(k, x, y, np.zeros((4, 2)), device=device)
