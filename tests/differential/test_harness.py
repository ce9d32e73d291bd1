"""The comparison itself: it sees what it must see."""

from __future__ import annotations

import numpy as np
import pytest

from . import plain
from .harness import assert_same, fuzz
from .inputs import LAYOUTS, assert_only_outputs_changed, copied, laid_out
from .kinds import SCALARS, result_kind


def test_bits_are_compared_and_all_nans_are_one() -> None:
    zeros = {"y": np.array([0.0, 1.0])}
    assert_same(zeros, {"y": np.array([0.0, 1.0])}, "equal")
    assert_same({"y": np.array([np.nan])}, {"y": np.array([-np.nan])}, "NaN")
    for other in ([-0.0, 1.0], [0.0, np.nextafter(1.0, 2.0)], [np.nan, 1.0]):
        with pytest.raises(AssertionError, match=r"two runs: y\[[01]\] is .* 1 of 2 differ"):
            assert_same(zeros, {"y": np.array(other)}, "two runs")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_write_beside_an_output_is_seen(layout: str) -> None:
    given = {"x": laid_out(np.arange(6.0), layout), "y": laid_out(np.arange(6.0), layout)}
    used = copied(given)
    assert used["y"].strides == given["y"].strides
    used["y"][...] = 7
    assert_only_outputs_changed(given, used, ["y"])
    with pytest.raises(AssertionError, match="memory around y was written"):
        assert_only_outputs_changed(given, used, ["x"])
    beside = np.lib.stride_tricks.as_strided(used["y"], (7,), used["y"].strides)
    beside[6] = 1
    with pytest.raises(AssertionError, match="memory around y was written"):
        assert_only_outputs_changed(given, used, ["y"])


@pytest.mark.parametrize("asked", ["0", "-3", "many", "1.5"])
def test_a_malformed_number_of_examples_is_refused(
    asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNOUT_FUZZ_EXAMPLES", asked)
    with pytest.raises(ValueError, match=f"TURNOUT_FUZZ_EXAMPLES='{asked}': give a number"):
        fuzz(10)
    monkeypatch.setenv("TURNOUT_FUZZ_EXAMPLES", "12")
    assert fuzz(10).max_examples == 12


@pytest.mark.parametrize("operator", ["+", "-", "*", "/", "//", "%", "&", "<<"])
def test_the_kinds_of_results_are_those_of_numpy(operator: str) -> None:
    for first, scalar in SCALARS.items():
        for second, other in SCALARS.items():
            expected = result_kind(operator, first, second)
            if expected is not None:
                result = eval(f"x {operator} y", {"x": scalar(1), "y": other(1)})
                assert result.dtype == SCALARS[expected]
            else:
                with pytest.raises(TypeError):
                    eval(f"x {operator} y", {"x": scalar(1), "y": other(1)})


def test_plain_python_follows_the_language_where_numpy_differs() -> None:
    i8, u64 = plain.NAMESPACE["i8"], plain.NAMESPACE["u64"]
    assert [i8(v) for v in (np.nan, 1e9, -np.inf, -1.9)] == [0, 127, -128, -1]
    assert u64(np.float64(2.0**64)) == 2**64 - 1
    assert np.signbit(plain.minimum(np.float32(0), np.float32(-0.0)))
    array = np.zeros(1, np.int8).view(plain.PlainArray)
    array[0] = np.int64(300)
    assert array[0] == 44
    x = np.float32(1 + 2**-12)
    square = np.float32(1 + 2**-11)
    assert x * x == square
    assert plain.MATH.fma(x, x, -square) == np.float32(2**-24)
