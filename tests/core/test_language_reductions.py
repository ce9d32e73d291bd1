"""Which loops are reductions, which are not and why, and what they compute."""

from __future__ import annotations

import numpy as np
import pytest
from language_support import (
    Floats,
    Floats2,
    assert_like_python,
    assert_same,
    floats,
    function_from,
    integers,
    lowered,
    notes,
)

import turnout as tn
import turnout.math as tm
from turnout import NDArray, Param, f64, i64
from turnout.conformance.reductions import combined
from turnout.ir import Scratch

SUMS = [
    "s += a[i]",
    "s = s + a[i]",
    "s = a[i] + s",
    "s -= a[i]",
    "s += a[i] * b[i] + 1",
    "s = s + a[i] + b[i]",
    "s += a[i] if a[i] > 2 else b[i]",
    "s = s + a[i] if a[i] > 2 else s",
    "if a[i] > 2:\n            s += a[i]",
    "if a[i] > 2:\n            s += a[i]\n        elif b[i] > 1:\n            s -= 1\n"
    "        else:\n            s += 2",
    "if a[i] > 2:\n            continue\n        s += a[i]",
    "for j in range(3):\n            s += a[j]",
    "for j in range(i):\n            s += j",
    "x = a[i]\n        while x > 1:\n            s += 1\n            x -= 1",
    "s = helper(s, a[i])",
    "b[i] = a[i] * 2\n        s += b[i]",
    "t = tm.zeros(2)\n        t[i % 2] = a[i]\n        s += t[0]",
]


@tn.func
def helper(total, x):
    return total + x if x > 1 else total - 1


def sum_kernel(body: str, wrap: str = "range(len(a))"):
    return function_from(
        "def k(a: NDArray[f64, 1], b: NDArray[f64, 1], out: NDArray[f64, 1]):\n"
        f"    s = 0.5\n    for i in {wrap}:\n        {body}\n    out[0] = s\n",
        helper=helper,
    )


def small_integers(size: int):
    """Floats whose sums are exact, in every order."""
    return np.random.default_rng(size).integers(-8, 9, size).astype(np.float64)


@pytest.mark.parametrize("body", SUMS)
@pytest.mark.parametrize("size", [0, 5, 70])
def test_sums_are_recognised(body, size, device):
    arguments = small_integers(size), small_integers(size + 1)[:size], np.zeros(1)
    kernel = assert_like_python(sum_kernel(body), *arguments, device=device)
    is_parallel, reason = notes(kernel)[3]
    assert is_parallel
    assert reason == ("'s' is a sum, computed in blocks of 2048 positions with 32 lanes each")


@pytest.mark.parametrize(
    ("start", "update", "noun"),
    [
        ("1.0", "s *= a[i]", "product"),
        ("3.0", "s = min(s, a[i])", "minimum"),
        ("3.0", "s = min(s, a[i], b[i])", "minimum"),
        ("-3.0", "s = max(s, a[i] + 1)", "maximum"),
        ("3.0", "s = tm.minimum(a[i], s)", "minimum"),
        ("3.0", "s = tm.maximum(s, a[i])", "maximum"),
        ("9", "s = min(i64(a[i]), s)", "minimum"),
        ("i64(7)", "s = max(s, i)", "maximum"),
        ("7", "s &= i64(a[i])", "conjunction"),
        ("1", "s |= i64(a[i])", "disjunction"),
        ("1", "s ^= i", "exclusive or"),
        ("False", "s |= a[i] > 7", "disjunction"),
        ("True", "s &= a[i] < 7", "conjunction"),
        ("0", "if a[i] > 0:\n            s += 1", "sum"),
    ],
)
def test_other_reductions_are_recognised(start, update, noun, device):
    function = function_from(
        "def k(a: NDArray[f64, 1], b: NDArray[f64, 1], out: NDArray[f64, 1]):\n"
        f"    s = {start}\n    for i in range(len(a)):\n        {update}\n    out[0] = s\n"
    )
    # Products of powers of two are exact.
    a = (
        2.0 ** np.random.default_rng(4).integers(-1, 2, 90)
        if "*=" in update
        else small_integers(90)
    )
    kernel = assert_like_python(function, a, small_integers(91)[:90], np.zeros(1), device=device)
    assert notes(kernel)[3][0]
    assert notes(kernel)[3][1].startswith(f"'s' is a {noun}, computed in blocks")


@pytest.mark.parametrize(
    "body",
    [
        "s += a[i]\n        b[i] = s",
        "if a[i] > s:\n            s += a[i]",
        "s = a[i] - s",
        "s = s / a[i]",
        "s += a[i]\n        s *= 2",
        "s += s * a[i]",
        "s = s + s",
        "s = 1 - s",
        "s = a[i]",
        "s = a[i] if a[i] > 0 else s",
        "s = min(a[i], s)",
        "s = min(s, a[i])\n        s = max(s, b[i])",
        "s += a[int(s)]",
        "s = abs(s + a[i])",
        "s += a[i]\n        if s > 100:\n            s = 0.0",
        "if s < 3:\n            s += 1",
        "s = max(s, a[i]) + 1",
        "while s < 4:\n            s += 1",
        "for j in range(int(s)):\n            s += a[i]",
        "b[0] = b[0] + 1\n        s += a[i]",
        "s += a[i]\n        if a[i] > 100:\n            break",
    ],
)
def test_other_uses_of_a_carried_value_need_the_order(body, device):
    arguments = small_integers(9), small_integers(8), np.zeros(1)
    function = sum_kernel(body, "range(8)")
    kernel = assert_like_python(function, *arguments, device=device)
    assert not notes(kernel)[3][0]


def test_the_order_is_asked_for_by_serial(device):
    a = np.random.default_rng(1).standard_normal(5000)
    kernel = assert_like_python(
        sum_kernel("s += a[i]", "tn.serial(range(len(a)))"), a, a, np.zeros(1), device=device
    )
    assert notes(kernel)[3] == (False, "it is declared tn.serial")


def test_a_declared_loop_may_reduce(device):
    def k(a: Floats, places: NDArray[i64, 1], b: Floats, out: Floats):
        s = 0.0
        for i in tn.parallel(range(len(a))):
            b[places[i]] = a[i]
            s += a[i]
        out[0] = s

    places = integers(3, 1, 0, 2)
    kernel = assert_like_python(
        k, small_integers(4), places, np.zeros(4), np.zeros(1), device=device
    )
    assert notes(kernel)[3][0]


def test_a_range_that_the_kernel_computes_needs_the_order(device):
    def k(counts: NDArray[i64, 1], a: Floats, out: Floats):
        s = 0.0
        for i in range(counts[0]):
            s += a[i]
        out[0] = s

    kernel = assert_like_python(k, integers(3), small_integers(5), np.zeros(1), device=device)
    assert not notes(kernel)[3][0]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (5, 7), (3, 2100), (2100, 2)])
def test_nests_are_one_reduction(shape, device):
    def k(a: Floats2, weights: Floats, out: Floats):
        s = 1.0
        count = 0
        for i in range(a.shape[0]):
            w = weights[i]
            for j in range(a.shape[1] - 1, -1, -1):
                s += w * a[i, j]
                count += a[i, j] > 0
        out[0] = s
        out[1] = count

    a = small_integers(shape[0] * shape[1]).reshape(shape)
    kernel = assert_like_python(k, a, small_integers(shape[0]), np.zeros(2), device=device)
    assert notes(kernel)[4][0]
    assert notes(kernel)[6] == notes(kernel)[4]


def test_three_loops_in_each_other(device):
    def k(a: NDArray[f64, 3], out: Floats):
        s = 0.0
        for i in range(1, a.shape[0]):
            for j in range(0, a.shape[1], 2):
                for m in range(a.shape[2]):
                    s += a[i, j, m] * (i + 10 * j)
        out[0] = s

    a = small_integers(4 * 5 * 40).reshape(4, 5, 40)
    kernel = assert_like_python(k, a, np.zeros(1), device=device)
    assert all(notes(kernel)[line][0] for line in (3, 4, 5))


def test_loops_that_are_not_perfectly_nested_run_in_lanes(device):
    def k(a: Floats2, rows: Floats, out: Floats):
        largest = 0.0
        for i in range(a.shape[0]):
            row = 0.0
            for j in range(a.shape[1]):
                row += a[i, j]
            rows[i] = row
            largest = max(largest, row)
        out[0] = largest

    a = np.random.default_rng(3).standard_normal((70, 9))  # each row in Python's order
    kernel = assert_like_python(k, a, np.zeros(70), np.zeros(1), device=device)
    assert notes(kernel)[3][0]
    assert not notes(kernel)[5][0]


def test_a_row_of_a_parallel_loop_keeps_its_order(device):
    def k(a: Floats2, rows: Floats):
        for i in range(a.shape[0]):
            row = 0.0
            for j in range(a.shape[1]):
                row += a[i, j]
            rows[i] = row

    a = np.random.default_rng(3).standard_normal((7, 3000))
    kernel = assert_like_python(k, a, np.zeros(7), device=device)
    assert notes(kernel)[2][0]
    assert "is carried from one iteration" in notes(kernel)[4][1]


@pytest.mark.parametrize("size", [1, 33, 2049, 70_000])
def test_the_order_is_the_documented_one(size, device):
    def k(a: Floats, b: Floats, out: Floats):
        s = 0.25
        for i in range(len(a)):
            s += a[i] * b[i]
        out[0] = s

    a, b = np.random.default_rng(size).standard_normal((2, size))
    out = np.zeros(1)
    tn.kernel(k)(a, b, out, device=device)
    assert_same(out[0], 0.25 + combined(a * b, np.add, -0.0))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("before", [(np.inf, -np.inf), (0.0, -0.0), (np.nan, 1.0)])
@pytest.mark.parametrize(
    "values",
    [(0.0, -0.0), (0.0, -0.0, np.nan), (-0.0, 1, -1, np.inf), (np.nan,), (np.inf, -np.inf)],
)
def test_min_and_max_of_floats_are_those_of_python(values, before, dtype, device):
    function = function_from(
        f"""
def k(a: NDArray[{dtype}, 1], table: NDArray[{dtype}, 2], out: NDArray[{dtype}, 1]):
    low, high = out[0], out[1]
    for i in range(len(a)):
        low = min(low, a[i])
        if a[i] != 1:
            high = max(high, a[i])
    lowest, highest = out[2], out[3]
    for i in range(table.shape[0]):
        for j in range(table.shape[1]):
            lowest = min(lowest, table[i, j], table[i, 0])
            highest = max(highest, table[i, j])
    out[0], out[1], out[2], out[3] = low, high, lowest, highest
"""
    )
    element = getattr(tn, dtype)
    for size in (1, 40, 2100):
        random = np.random.default_rng(size)
        a, table = random.choice(values, size), random.choice(values, (size, 3))
        out = np.array(before * 2, element)
        arguments = a.astype(element), table.astype(element), out
        kernel = assert_like_python(function, *arguments, device=device)
    assert all(notes(kernel)[line][0] for line in (3, 8, 9))


def test_results_are_of_use_in_later_loops(device):
    def k(a: Floats, out: Floats, power: Param[f64]):
        total = 0.0
        for i in range(len(a)):
            total += a[i]
        mean = total / len(a)
        largest = 0.0
        for i in range(len(a)):
            out[i] = a[i] - mean
            largest = max(largest, abs(out[i]))
        for i in range(len(a)):
            out[i] = out[i] / largest * power

    kernel = assert_like_python(k, np.arange(64.0), np.zeros(64), 2.0, device=device)
    assert all(notes(kernel)[line][0] for line in (3, 7, 10))


def test_loops_share_memory_for_partial_results():
    def k(a: Floats, out: Floats):
        for _ in range(1):
            out[1] = 0
        s, t = 0.0, 0.0
        for i in range(len(a)):
            s += a[i]
            t += 1
        u = 1.0
        for i in range(len(a)):
            u *= a[i]
        out[0] = s + t + u

    plan = lowered(tn.kernel(k)).plan
    partial = [s for s in plan.steps if isinstance(s, Scratch) and not s.is_filled]
    assert [(s.dtype, s.shape) for s in partial] == [(f64, (1057, 32))] * 2


def test_arrays_that_are_too_short_are_refused():
    def k(a: Floats, b: Floats, out: Floats):
        s = 0.0
        for i in range(len(a)):
            s += a[i] * b[i]
        out[0] = s

    with pytest.raises(tn.CallError, match="'b'"):
        tn.kernel(k)(np.ones(5), np.ones(4), np.zeros(1), device="reference")


def test_a_stored_array_must_not_overlap_what_others_read():
    def k(a: Floats, b: Floats, out: Floats):
        s = 0.0
        for i in range(len(b)):
            b[i] = a[i] * 2
            s += b[i]
        out[0] = s

    memory = np.ones(9)
    with pytest.raises(tn.CallError, match="overlap"):
        tn.kernel(k)(memory[:8], memory[1:], np.zeros(1), device="reference")


def test_debug_names_the_line_of_a_reduction(device):
    @tn.kernel(debug=True)
    def k(a: Floats, places: NDArray[i64, 1], out: Floats):
        s = 0.0
        for i in range(len(places)):
            s += a[places[i]]
        out[0] = s

    with pytest.raises(tn.OutOfBoundsError, match=r"a\[places\[i\]\]|index 7"):
        k(floats(1, 2), integers(0, 7), np.zeros(1), device=device)


def test_dispatches_may_feed_a_reduction(device):
    def k(kinds: NDArray[i64, 1], x: Floats, out: Floats):
        s = 0.0
        for i in range(len(x)):
            s += tm.dispatch(kinds[i], [x[i], 2 * x[i], -x[i]])
        out[0] = s

    x, kinds = small_integers(100), np.arange(100) % 3
    out = np.zeros(1)
    tn.kernel(k)(kinds, x, out, device=device)
    assert out[0] == (x * np.array([1, 2, -1])[kinds]).sum()
