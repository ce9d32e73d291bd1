"""Verification: results are compared on copies, and who is wrong is found."""

from __future__ import annotations

import dataclasses
import enum
import gc
import inspect
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import turnout as tn
from turnout import Mutable, NDArray, Scalar, f32
from turnout.comparison import Difference, Tolerances, compare, leaves
from turnout.tuning import Candidate
from turnout.verification import Verdict, Verification, verification, verify
from turnout.written import Writes, combined


def difference(got: Any, expected: Any, tolerances: Any = None) -> Difference | None:
    return compare(leaves(got, "'out'"), leaves(expected, "'out'"), Tolerances(tolerances))


def text(got: Any, expected: Any, tolerances: Any = None) -> str:
    found = difference(got, expected, tolerances)
    assert found is not None
    return str(found)


def agree(got: Any, expected: Any, tolerances: Any = None) -> bool:
    return difference(got, expected, tolerances) is None


# ---- comparison: numbers -------------------------------------------------------------------------

NAN, INF = np.nan, np.inf


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.longdouble, np.complex64])
def test_half_of_the_digits_of_a_float_must_agree(dtype):
    limit = np.sqrt(np.finfo(dtype).eps)
    one = np.ones(3, dtype)
    assert agree(one * dtype(1 + 0.9 * limit), one)
    assert agree(one, one * dtype(1 + 0.9 * limit))
    assert not agree(one * dtype(1 + 1.2 * limit), one)
    assert not agree(one, one * dtype(1 + 1.2 * limit))


def test_default_tolerances_are_those_of_the_documentation():
    for dtype, relative in ((np.float16, 3.1e-2), (np.float32, 3.5e-4), (np.float64, 1.5e-8)):
        tolerance = Tolerances().of(np.dtype(dtype))
        assert tolerance.relative == pytest.approx(relative, rel=0.02)
        assert tolerance.absolute_eps == 32


def test_what_is_left_where_large_numbers_cancel():
    eps = np.finfo(np.float32).eps
    expected = np.array([1000.0, 0.0], np.float32)
    assert agree(np.array([1000.0, 20_000 * eps], np.float32), expected)
    assert not agree(np.array([1000.0, 40_000 * eps], np.float32), expected)
    assert not agree(np.array([0.001, 20_000 * eps], np.float32), expected * np.float32(1e-6))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64, np.bool_])
def test_integers_and_bools_must_be_equal(dtype):
    big = np.array([0, 1, np.iinfo(dtype).max if dtype is not np.bool_ else 1], dtype)
    assert agree(big, big.copy())
    other = big.copy()
    other[2] = 0
    assert not agree(other, big)


def test_large_integers_are_compared_exactly():
    assert not agree(np.array([2**63 - 1]), np.array([2**63 - 2]))
    assert not agree(np.array([2**63 - 1], np.int64), np.array([2**63], np.uint64))
    assert agree(np.array([5], np.int64), np.array([5], np.uint64))
    assert not agree(2**70, 2**70 + 1)
    assert agree(2**70, 2**70)
    assert not agree(np.array([2**53 + 1]), np.array([2**53]))


def test_other_widths_are_compared_in_the_wider_one():
    """B3: the reference in float64, the candidate in float32; int32 against int64."""
    exact = np.array([1 / 3, 2 / 3])
    assert agree(exact.astype(np.float32), exact)
    assert agree(exact, exact.astype(np.float32))
    assert agree(np.arange(3, dtype=np.int32), np.arange(3))
    assert not agree(np.array([1], np.int32), np.array([2**32 + 1]))
    assert "0.5 instead of 0.25" in text(np.array([0.5], np.float32), np.array([0.25]))
    assert not agree(np.array([1e300]), np.array([INF], np.float32))
    assert agree(np.array([3]), np.array([3.0]))
    assert agree(np.array([True]), np.array([1.0]))


@pytest.mark.parametrize(
    ("got", "expected", "is_same"),
    [
        (NAN, NAN, True),
        (NAN, 1.0, False),
        (1.0, NAN, False),
        (NAN, INF, False),
        (INF, INF, True),
        (INF, -INF, False),
        (INF, 1.0, False),
        (1e308, INF, False),
        (1e308, -1e308, False),
        (-0.0, 0.0, True),
        (0.0, 5e-324, True),
        (complex(NAN, 1), complex(2, NAN), True),
        (complex(NAN, 1), complex(2, 1), False),
        (complex(INF, 1), complex(INF, 1), True),
        (1 + 1e-9j, 1, True),
        (1 + 1e-3j, 1, False),
    ],
)
def test_special_values(got, expected, is_same):
    assert agree(got, expected) == is_same
    assert agree(np.array([1.0, got]), np.array([1.0, expected])) == is_same
    assert agree(np.float32(1), np.float32(1))


def test_one_nan_in_a_thousand_is_found():
    """B2: an error that is NaN is not "within the tolerance"."""
    expected = np.linspace(0, 1, 1000)
    got = expected.copy()
    got[417] = NAN
    assert text(got, expected) == (
        f"'out'[417] is nan instead of {expected[417]} (relative error inf, 1.5e-08 is allowed); "
        "1 of 1000 elements differ"
    )


def test_a_difference_says_where_how_much_and_how_often():
    expected = np.ones((3, 4))
    got = expected.copy()
    got[0, 1], got[2, 3], got[1, 1] = 1.25, 2.0, 1 + 1e-9
    found = difference(got, expected)
    assert found is not None
    assert found.place == "'out'[2, 3]"
    assert (found.got, found.expected, found.count, found.size) == (2.0, 1.0, 2, 12)
    assert found.relative_error == 0.5
    assert found.ulps == 2.0**52
    assert str(found) == (
        "'out'[2, 3] is 2.0 instead of 1.0 (relative error 0.5, 4.5e+15 ULP, 1.5e-08 is allowed); "
        "2 of 12 elements differ"
    )
    single = difference(np.float32(1.5), 1.0)
    assert single is not None
    assert single.ulps == 2.0**22  # those of float32
    assert text(3, 4) == "'out' is 3 instead of 4 (relative error 0.25)"


@settings(max_examples=100, deadline=None)
@given(
    arrays.arrays(np.float32, 4, elements=st.floats(width=32)),
    arrays.arrays(np.float64, 4, elements=st.floats()),
)
def test_comparison_is_symmetric_and_reflexive(a, b):
    assert agree(a, a.copy())
    assert agree(b, b.copy())
    assert agree(a, b) == agree(b, a)


# ---- comparison: tolerances ----------------------------------------------------------------------


@pytest.mark.parametrize("key", [np.float32, "float32", np.dtype("f4"), tn.f32])
def test_tolerances_by_element_type(key):
    given, expected = np.array([1.01], np.float32), np.array([1.0], np.float32)
    assert not agree(given, expected)
    assert agree(given, expected, {key: 0.02})
    assert not agree(given.astype(np.float64), expected.astype(np.float64), {key: 0.02})
    assert agree(given.astype(np.float64), expected, {key: 0.02})
    assert not agree(given, expected, {key: (0.0, 0.009)})
    assert agree(given, expected, {key: (0, 0.02)})


def test_tolerances_of_nothing_and_of_integers():
    ulp = np.nextafter(1.0, 2)
    assert agree(ulp, 1.0)
    assert not agree(ulp, 1.0, {"float64": (0, 0)})
    assert agree(NAN, NAN, {"float64": (0, 0)})
    assert agree(np.array([7]), np.array([8]), {np.int64: (0, 1)})
    assert not agree(np.array([7]), np.array([9]), {np.int64: (0, 1)})


@pytest.mark.parametrize(
    ("tolerances", "message"),
    [
        (1e-5, r"tolerances=1e-05 is not allowed: give a dict .* \{'float32': 1e-5\}"),
        ({"float33": 1.0}, "'float33' is no element type"),
        ({"float32": -1}, "-1 for 'float32' is not allowed: give a relative tolerance of 0 or"),
        ({"float32": NAN}, "nan for 'float32'"),
        ({"float32": True}, "True for 'float32'"),
        ({"float32": "1e-5"}, "'1e-5' for 'float32'"),
        ({"float32": (1, 2, 3)}, "is not allowed"),
    ],
)
def test_tolerances_that_mean_nothing(tolerances, message):
    with pytest.raises(tn.ConfigurationError, match=message):
        Tolerances(tolerances)


# ---- comparison: everything else -----------------------------------------------------------------


@dataclasses.dataclass
class State:
    x: Any
    n: int = 0


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        2.5,
        "text",
        Color.RED,
        [1.0, [np.arange(3)], "x"],
        (np.ones(2), None),
        {"x": np.ones(2), "n": 3},
        State(np.arange(3.0)),
        np.array(["a", "b"]),
        np.array([1, None, "x", np.ones(2)], object),
        np.array([(1.0, 2)], [("x", "f8"), ("n", "i4")]),
        np.array(["2020-01-01", "NaT"], "M8[D]"),
        np.empty((0, 3)),
    ],
)
def test_a_value_agrees_with_its_like(value):
    import copy

    assert agree(copy.deepcopy(value), value)


@pytest.mark.parametrize(
    ("got", "expected", "message"),
    [
        (None, 3, "'out' is None instead of 3"),
        (np.ones(2), None, "'out' is an array of shape (2,) instead of None"),
        (np.ones(2), np.ones(3), "'out' is of shape (2,) instead of shape (3,)"),
        (np.ones((1, 2)), np.ones(2), "'out' is of shape (1, 2) instead of shape (2,)"),
        ("a", "b", "'out' is 'a' instead of 'b'"),
        (Color.RED, Color.BLUE, "'out' is <Color.RED: 1> instead of <Color.BLUE: 2>"),
        ([1, 2], [1], "'out' is a sequence with [0], [1] instead of a sequence with [0]"),
        ([], 1, "'out' is a sequence with no members instead of 1"),
        ({"a": 1}, {"b": 1}, "'out' is a dict with ['a'] instead of a dict with ['b']"),
        ([1], {0: 1}, "'out' is a sequence with [0] instead of a dict with [0]"),
        (State(1), [1, 0], "'out' is a State with .n, .x instead of a sequence with [0], [1]"),
        (State(1.0), State(2.0), "'out'.x is 1.0 instead of 2.0"),
        ({"x": [1, 5]}, {"x": [1, 6]}, "'out'['x'][1] is 5 instead of 6"),
        (np.array(["a"]), np.array(["b"]), "'out'[0] is a instead of b"),
        (np.array(["a"]), np.array([1]), "'out' is of dtype <U1 instead of dtype int64"),
        (np.array([1, None]), np.array([1, 2], object), "'out'[1] is None instead of 2"),
        (
            np.array([(1.0, 2)], [("x", "f8"), ("n", "i4")]),
            np.array([(1.0, 3)], [("x", "f8"), ("n", "i4")]),
            "'out'['n'][0] is 2 instead of 3",
        ),
        (np.array(["NaT"], "M8[D]"), np.array(["2020-01-01"], "M8[D]"), "'out'[0] is NaT instead"),
    ],
)
def test_differences_of_other_kinds(got, expected, message):
    assert text(got, expected).startswith(message)


def test_containers_agree_by_what_they_hold():
    assert agree([1, 2], (1, 2))
    assert agree({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert not agree({"a": 1, "b": 2}, {"b": 1, "a": 2})


def test_values_that_cannot_tell_whether_they_are_equal():
    class Odd:
        def __eq__(self, other):
            raise RuntimeError("no idea")

        __hash__ = None

    odd = Odd()
    assert agree(odd, odd)
    assert "instead of" in text(Odd(), odd)


# ---- who is wrong --------------------------------------------------------------------------------


def examine(
    functions: dict[str, Any],
    arguments: dict[str, Any],
    mutates: Any = (),
    reference: str | None = None,
    tolerances: Any = None,
    runs: list[str] | None = None,
) -> Verdict:
    """Verify functions of the same parameters; kernels run on the reference backend."""
    parameters = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in arguments]
    bound = inspect.Signature(parameters).bind(**arguments)
    candidates = [Candidate(name, function) for name, function in functions.items()]
    declared = dict(mutates) if isinstance(mutates, dict) else dict.fromkeys(mutates, "unknown")
    accesses = combined(
        Writes(f, None if isinstance(f, tn.Kernel) else declared, bound.signature)
        for f in functions.values()
    )

    def run(candidate: Candidate, args: Any, keywords: Any) -> Any:
        if runs is not None:
            runs.append(candidate.name)
        with tn.use("reference"):
            return candidate.function(*args, **keywords)

    return verify(candidates, run, bound, accesses, verification("once", reference, tolerances))


def double(a, out):
    np.multiply(a, 2, out=out)


def double_too(a, out):
    out[:] = a + a


def triple(a, out):
    out[:] = 3 * a


def nothing(a, out): ...


def half(a, out):
    out[: len(out) // 2] = 2 * a[: len(out) // 2]


def inputs(**others: Any) -> dict[str, Any]:
    return {"a": np.arange(4.0), "out": np.zeros(4)} | others


def test_all_agree_and_the_arguments_are_untouched():
    arguments = inputs()
    verdict = examine({"x": double, "y": double_too}, arguments, ["out"])
    assert verdict == Verdict("x", {}, "all 2 agree")
    assert arguments["out"].tolist() == [0, 0, 0, 0]
    assert arguments["a"].tolist() == [0, 1, 2, 3]


def test_a_lone_dissenter_is_wrong_wherever_it_was_registered():
    functions = {"x": double, "wrong": triple, "y": double_too}
    for names in (("wrong", "x", "y"), ("x", "wrong", "y"), ("x", "y", "wrong")):
        verdict = examine({name: functions[name] for name in names}, inputs(), ["out"])
        assert verdict.refused == {
            "wrong": "its result differs from that of 'x': 'out'[1] is 3.0 instead of 2.0 "
            "(relative error 0.33, 2.25e+15 ULP, 1.5e-08 is allowed); 3 of 4 elements differ"
        }
        assert (verdict.trusted, verdict.note) == ("x", "2 of 3 agree")


def test_of_two_that_differ_the_first_counts_as_right_and_that_is_said():
    verdict = examine({"x": triple, "y": double}, inputs(), ["out"])
    assert list(verdict.refused) == ["y"]
    assert verdict.note == (
        "there is no majority among 2, so that the first registered of them, 'x', counts as right; "
        "name the right one with reference="
    )


def test_the_named_reference_is_right_against_any_majority():
    functions = {"x": triple, "y": triple, "ref": double}
    runs: list[str] = []
    verdict = examine(functions, inputs(), ["out"], reference="ref", runs=runs)
    assert set(verdict.refused) == {"x", "y"}
    assert "3.0 instead of 2.0" in verdict.refused["x"]
    assert (verdict.trusted, verdict.note) == ("ref", "'ref' is the named reference")
    assert runs[0] == "ref"


def test_each_runs_once_where_that_is_enough():
    runs: list[str] = []
    arguments = inputs(a=np.arange(1.0, 5.0))
    examine({"x": double, "y": double_too, "z": triple}, arguments, ["out"], runs=runs)
    assert runs == ["x", "y", "z"]


def test_a_reference_that_cannot_run_leaves_it_to_the_majority():
    functions = {"x": double, "y": triple, "z": double_too}
    verdict = examine(functions, inputs(), ["out"], reference="elsewhere")
    assert list(verdict.refused) == ["y"]
    assert verdict.note == (
        "the named reference 'elsewhere' cannot run with these arguments; 2 of 3 agree"
    )
    functions["elsewhere"] = raising(OSError("gone"))
    verdict = examine(functions, inputs(), ["out"], reference="elsewhere")
    assert verdict.refused["elsewhere"] == "it raised OSError: gone"
    assert "raised an exception; 2 of 3 agree" in verdict.note


def raising(error: BaseException) -> Any:
    def fail(a, out):
        out[:] = -1
        raise error

    return fail


@pytest.mark.parametrize("error", [ValueError("no"), MemoryError(), AssertionError("no")])
def test_one_that_raises_is_refused(error):
    arguments = inputs()
    verdict = examine({"x": raising(error), "y": double}, arguments, ["out"])
    assert list(verdict.refused) == ["x"]
    assert verdict.refused["x"].startswith(f"it raised {type(error).__name__}")
    assert verdict.note == "only 'y' could run"
    assert arguments["out"].tolist() == [0, 0, 0, 0]


def test_where_all_raise_the_arguments_are_at_fault():
    verdict = examine({"x": raising(ValueError()), "y": raising(OSError())}, inputs(), ["out"])
    assert verdict == Verdict(None, {}, "no implementation could be run on copies of the arguments")


def test_a_call_error_says_nothing_about_who_is_right():
    verdict = examine({"x": raising(tn.CallError("bad")), "y": double}, inputs(), ["out"])
    assert (verdict.trusted, verdict.refused) == ("y", {})


def test_an_interrupt_passes_and_leaves_the_arguments():
    arguments = inputs()
    with pytest.raises(KeyboardInterrupt):
        examine({"x": double, "y": raising(KeyboardInterrupt())}, arguments, ["out"])
    assert arguments["out"].tolist() == [0, 0, 0, 0]


# ---- what returns values -------------------------------------------------------------------------


def test_returned_values_are_compared():
    functions = {"x": lambda a: a.sum(), "y": lambda a: float(a.sum()), "z": lambda a: a.max()}
    verdict = examine(functions, {"a": np.arange(4.0)})
    assert verdict.refused == {
        "z": "its result differs from that of 'x': the returned value is 3.0 instead of 6.0 "
        "(relative error 0.5, 3.38e+15 ULP, 1.5e-08 is allowed)"
    }


def test_returned_containers_are_compared():
    functions = {
        "x": lambda a: {"sum": a.sum(), "parts": (a[:2], a[2:])},
        "y": lambda a: {"parts": [a[:2].copy(), a[2:].copy()], "sum": float(a.sum())},
        "z": lambda a: {"sum": a.sum(), "parts": (a[:2], a[2:] - [0, 1])},
    }
    verdict = examine(functions, {"a": np.arange(4.0)})
    assert list(verdict.refused) == ["z"]
    assert "the returned value['parts'][1][1] is 2.0 instead of 3.0" in verdict.refused["z"]


def test_one_that_returns_the_array_it_wrote():
    def returning(a, out):
        out[:] = 2 * a
        return out

    def returning_wrong(a, out):
        out[:] = 3 * a
        return out

    functions = {"x": returning, "y": lambda a, out: returning(a, out).copy(), "z": returning_wrong}
    verdict = examine(functions, inputs(), ["out"])
    assert list(verdict.refused) == ["z"]
    assert list(examine({"x": returning, "y": double}, inputs(), ["out"]).refused) == ["y"]


def test_float32_against_float64():
    verdict = examine(
        {"x": lambda a: a.astype(np.float32) / 3, "y": lambda a: a / 3}, {"a": np.arange(4.0)}
    )
    assert verdict.refused == {}


def test_one_nan_is_found():
    """B2."""

    def with_nan(a, out):
        out[:] = 2 * a
        out[3] = np.nan

    verdict = examine({"x": double, "y": with_nan}, inputs(), ["out"], reference="x")
    assert "'out'[3] is nan instead of 6.0" in verdict.refused["y"]


# ---- one that does nothing -----------------------------------------------------------------------


@pytest.mark.parametrize("mutates", [["out"], {"out": "output"}])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32, np.uint8, np.complex128])
def test_one_that_does_nothing_is_found_beside_an_old_result(mutates, dtype):
    """B5: the output holds the right result of an earlier call."""
    a = np.arange(4).astype(dtype)
    for first, second in (("nothing", "double"), ("double", "nothing")):
        functions = {"nothing": nothing, "double": double}
        ordered = {name: functions[name] for name in (first, second)}
        for stale in (2 * a, np.zeros(4, dtype)):
            verdict = examine(ordered, {"a": a, "out": stale.copy()}, mutates)
            assert list(verdict.refused) == ["nothing"]
            assert verdict.trusted == "double"


@pytest.mark.parametrize("mutates", [["out"], {"out": "output"}])
def test_bools_that_nobody_wrote_are_found(mutates):
    def positive(a, out):
        np.greater(a, 1, out=out)

    a = np.arange(4.0)
    for stale in (a > 1, np.zeros(4, np.bool_), np.ones(4, np.bool_)):
        functions = {"nothing": nothing, "positive": positive}
        verdict = examine(functions, {"a": a, "out": stale}, mutates)
        assert list(verdict.refused) == ["nothing"]


def test_the_majority_that_does_nothing_is_not_right():
    functions = {"x": nothing, "y": nothing, "z": double}
    arguments = inputs(out=2 * np.arange(4.0))
    verdict = examine(functions, arguments, ["out"])
    assert set(verdict.refused) == {"x", "y"}
    assert verdict.note == "only 'z' writes anything"


def test_one_that_does_half_of_the_work_is_found():
    verdict = examine({"x": double, "half": half}, inputs(out=2 * np.arange(4.0)), ["out"])
    assert list(verdict.refused) == ["half"]
    assert "2 of 4 elements differ" in verdict.refused["half"]


def test_elements_left_on_purpose_agree():
    """B6: a masked store writes even places of an output of any content."""

    def even(a, out):
        out[::2] = a[::2]

    def even_too(a, out):
        for place in range(0, len(a), 2):
            out[place] = a[place]

    def all_places(a, out):
        out[:] = a

    for mutates in (["out"], {"out": "output"}):
        out = np.empty(8, np.float32)
        arguments = {"a": np.arange(8, dtype=np.float32), "out": out}
        verdict = examine({"x": even, "y": even_too}, arguments, mutates)
        assert verdict.refused == {}
        verdict = examine({"x": even, "y": all_places}, arguments, mutates, reference="x")
        assert list(verdict.refused) == ["y"]


def test_in_place_work_keeps_its_input():
    """A1: "x *= s" is no output that could be poisoned."""

    def scaled(x, s):
        x *= s

    def scaled_too(x, s):
        x[:] = [s * each for each in x]

    x = np.arange(33 * 70, dtype=np.float32).reshape(33, 70)
    arguments = {"x": x, "s": np.float32(0.5)}
    for mutates in (["x"], {"x": "update"}):
        functions = {"x": scaled, "y": scaled_too, "nothing": lambda x, s: None}
        verdict = examine(functions, arguments, mutates)
        assert list(verdict.refused) == ["nothing"]
    assert x[0, 1] == 1


def test_updates_that_change_nothing_here():
    def relu(x):
        np.maximum(x, 0, out=x)

    def relu_too(x):
        x[x < 0] = 0

    verdict = examine({"x": relu, "y": relu_too, "z": lambda x: None}, {"x": np.ones(4)}, ["x"])
    assert verdict.refused == {}  # with these values, all three are right


def test_an_operand_that_is_its_own_output():
    """A11, A12: the result is written over an operand."""

    def step(x, out):
        np.subtract(x, 0.001 * x, out=out)

    def step_too(x, out):
        out[:] = x * 0.999

    x = np.ones(2)
    for mutates in (["out"], {"out": "output"}):
        verdict = examine({"x": step, "y": step_too}, {"x": x, "out": x}, mutates)
        assert verdict.refused == {}
    assert x.tolist() == [1, 1]


def test_written_arrays_in_lists_and_states():
    """A7."""

    def update(xs, scale, ys):
        for x, y in zip(xs, ys["all"], strict=True):
            y += scale * x

    def wrong_last(xs, scale, ys):
        update(xs[:-1], scale, {"all": ys["all"][:-1]})

    arguments = {
        "xs": [np.ones(2), np.arange(3.0)],
        "scale": 2.0,
        "ys": {"all": [np.zeros(2), np.ones(3)], "label": "y"},
    }
    verdict = examine({"x": update, "y": wrong_last}, arguments, ["ys"], reference="x")
    assert "'ys'['all'][1][2] is 1.0 instead of 5.0" in verdict.refused["y"]
    assert arguments["ys"]["all"][0].tolist() == [0, 0]


def test_what_containers_come_to_hold_is_compared():
    def counted(state):
        state["n"] += 1

    def counted_twice(state):
        state["n"] += 2

    state = {"n": 3}
    verdict = examine({"x": counted, "y": counted_twice}, {"state": state}, ["state"])
    assert "'state'['n'] is 5 instead of 4" in verdict.refused["y"]
    assert state == {"n": 3}


@tn.kernel
def double_kernel(a: Scalar, out: Mutable[Scalar]):
    out = a * 2


@tn.kernel
def skipping(a: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
    for i in range(a.shape[0] - 1):
        out[i] = a[i] * 2


def test_kernels_say_what_they_write():
    a = np.arange(4.0)
    arguments = {"a": a, "out": 2 * a}
    runs: list[str] = []
    functions = {"kernel": double_kernel, "function": double_too, "nothing": nothing}
    verdict = examine(functions, arguments, ["out"], runs=runs)
    assert list(verdict.refused) == ["nothing"]
    assert "'out'[0] is nan instead of 0.0" in verdict.refused["nothing"]
    assert runs == ["kernel", "function", "nothing"]


def test_a_kernel_that_leaves_an_element_is_found():
    a = np.arange(4, dtype=np.float32)
    arguments = {"a": a, "out": 2 * a}
    verdict = examine({"kernel": skipping, "x": double}, arguments, ["out"], reference="x")
    assert "'out'[3] is nan instead of 6.0" in verdict.refused["kernel"]


def test_strided_arguments_are_verified_strided():
    """L1: one that takes every array for a dense one is right on dense copies only."""

    def assuming_dense(a, out):
        base = out if out.flags.c_contiguous else out.base[: len(out)]
        base[:] = 2 * a

    memory = np.zeros(8)
    verdict = examine(
        {"x": double, "y": assuming_dense}, {"a": np.arange(4.0), "out": memory[::2]}, ["out"]
    )
    assert list(verdict.refused) == ["y"]
    dense = {"a": np.arange(4.0), "out": np.zeros(4)}
    assert examine({"x": double, "y": assuming_dense}, dense, ["out"]).refused == {}


# ---- memory, settings ----------------------------------------------------------------------------


def test_memory_is_that_of_what_is_written_and_is_freed():
    """A8: a large array that is only read, and an output of 8 bytes."""
    big, out = np.ones(50_000_000 // 8), np.zeros(1)

    def total(big, out):
        out[0] = big.sum()

    def total_too(big, out):
        out[0] = np.add.reduce(big)

    gc.collect()
    tracemalloc.start()
    try:
        verdict = examine({"x": total, "y": total_too}, {"big": big, "out": out}, ["out"])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert verdict.refused == {}
    assert peak < 500_000


def test_no_array_is_kept():
    """D4: nor by what was raised."""
    out = np.zeros(4)
    alive = weakref.ref(out)

    def failing(a, out):
        raise ValueError(f"no {len(a)}")

    functions = {"x": double, "y": triple, "z": failing}
    verdict = examine(functions, {"a": np.arange(4.0), "out": out}, ["out"])
    del out
    gc.collect()
    assert alive() is None
    assert len(verdict.refused) == 2


def test_what_cannot_be_copied_cannot_be_verified():
    with pytest.raises(
        tn.KernelError, match="the results cannot be verified: 'state' is a object; what can be"
    ):
        examine({"x": lambda state: 1, "y": lambda state: 1}, {"state": object()}, ["state"])


def test_settings():
    assert verification("never", None, None).when == "never"
    found = verification("always", "ref", {"float32": 1e-3})
    assert isinstance(found, Verification)
    assert (found.when, found.reference) == ("always", "ref")
    assert found.tolerances.of(np.dtype("f4")).relative == 1e-3
    for verify_ in (True, "sometimes", None):
        with pytest.raises(tn.ConfigurationError, match="give 'always', 'once' or 'never'"):
            verification(verify_, None, None)
    with pytest.raises(tn.ConfigurationError, match="reference=3 is not allowed: give the name"):
        verification("once", 3, None)  # type: ignore[arg-type]
    for reference, tolerances in (("ref", None), (None, {})):
        with pytest.raises(tn.ConfigurationError, match="verification, which is off: give verify="):
            verification("never", reference, tolerances)
