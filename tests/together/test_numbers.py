"""Numbers that tell backends apart: special values, sums that cancel, updates of one element."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.differential.grammar import BINARY_MATH, UNARY_MATH

import turnout as tn
import turnout.math as tm
from turnout import NDArray, Scalar, f32, f64, i32, i64

from .devices import DEVICES, place

WIDTHS = {"f32": np.float32, "f64": np.float64}
SPECIAL = (
    "nan", "inf", "-inf", "0", "-0.0", "1e-40", "-1e-40", "5e-324", "1", "-1", "0.5", "-0.5", "1.5",
    "2.5", "127.9", "128", "255.9", "256", "-128.9", "-129", "32768", "65536", "2147483647",
    "2147483648", "-2147483648", "-2147483649", "4294967296", "9.2233720368547758e18",
    "-9.2233720368547758e18", "1.8446744073709552e19", "3.4028235e38", "-3.4028235e38", "16777217",
)  # fmt: skip
CASTS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool_", "f32", "f64")
PAIRS = {
    "minimum": "tm.minimum(x[i], y[i])",
    "maximum": "tm.maximum(x[i], y[i])",
    "min": "min(x[i], y[i])",
    "max": "max(x[i], y[i])",
    "selected": "tm.select(x[i] < y[i], x[i], y[i])",
    "selected_again": "tm.select(x[i] >= y[i], -x[i], y[i])",
    "conditional": "x[i] if x[i] == y[i] else -y[i]",
    "sum": "x[i] + y[i]",
    "product": "x[i] * y[i]",
    "quotient": "x[i] / y[i]",
    "absolute": "abs(x[i])",
    "magnitude": "tm.copysign(x[i], y[i])",
}
TRUTHS = {
    "less": "x[i] < y[i]", "less_equal": "x[i] <= y[i]", "greater": "x[i] > y[i]",
    "greater_equal": "x[i] >= y[i]", "equal": "x[i] == y[i]", "unequal": "x[i] != y[i]",
    "not_less": "not (x[i] < y[i])", "truth": "bool(x[i])",
    "nan": "tm.isnan(x[i])", "infinite": "tm.isinf(x[i])",
    "infinite_or_nan": "tm.isinf(x[i]) or tm.isnan(y[i])",
}  # fmt: skip
NUMPY: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add, "product": np.multiply,
    "quotient": np.divide, "magnitude": np.copysign, "less": np.less, "less_equal": np.less_equal,
    "greater": np.greater, "greater_equal": np.greater_equal, "equal": np.equal,
    "unequal": np.not_equal, "selected": lambda x, y: np.where(x < y, x, y),
    "selected_again": lambda x, y: np.where(x >= y, -x, y),
    "conditional": lambda x, y: np.where(x == y, x, -y), "absolute": lambda x, y: np.abs(x),
    "not_less": lambda x, y: ~(x < y), "truth": lambda x, y: x.astype(bool),
    "nan": lambda x, y: np.isnan(x), "infinite": lambda x, y: np.isinf(x),
    "infinite_or_nan": lambda x, y: np.isinf(x) | np.isnan(y),
    # As Python has them: the first one stays where no comparison holds.
    "min": lambda x, y: np.where(y < x, y, x), "max": lambda x, y: np.where(y > x, y, x),
    # NumPy's own depend on the processor where zeros of both signs meet.
    "minimum": lambda x, y: np.where(x == y, np.where(np.signbit(x), x, y), np.minimum(x, y)),
    "maximum": lambda x, y: np.where(x == y, np.where(np.signbit(x), y, x), np.maximum(x, y)),
}  # fmt: skip


def kernel_from(text: str) -> tn.Kernel:
    file = f"<table {hash(text):x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"tn": tn, "tm": tm, "NDArray": NDArray}
    names |= {dtype.name: dtype for dtype in tn.ir.ALL_DTYPES}
    exec(compile(text, file, "exec", dont_inherit=True), names)
    made: tn.Kernel = names["table"]
    return made


def loop(rows: dict[str, tuple[str, str]], width: str) -> tn.Kernel:
    """A kernel that stores one expression per output, given with the type of each."""
    outputs = ", ".join(f"{name}_: NDArray[{kind}, 1]" for name, (kind, _) in rows.items())
    lines = [
        "@tn.kernel",
        f"def table(x: NDArray[{width}, 1], y: NDArray[{width}, 1], {outputs}) -> None:",
        "    for i in range(x.shape[0]):",
        *(f"        {name}_[i] = {text}" for name, (_, text) in rows.items()),
    ]
    return kernel_from("\n".join(lines) + "\n")


def results(made: tn.Kernel, given: dict[str, Any], device: str) -> dict[str, np.ndarray[Any, Any]]:
    """What all arrays hold after a call."""
    placed = {name: place(array, device) for name, array in given.items()}
    made(**{name: view for name, (view, _) in placed.items()}, device=device)
    return {name: read().copy() for name, (_, read) in placed.items()}


def bits(array: np.ndarray[Any, Any]) -> list[Any]:
    """Values that are equal where the bits are, all NaNs being one."""
    if array.dtype.kind != "f":
        return array.tolist()
    return np.where(np.isnan(array), np.nan, array).view(f"u{array.itemsize}").tolist()


def pairs(width: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    with np.errstate(over="ignore", under="ignore"):
        values = np.array([float(text) for text in SPECIAL]).astype(WIDTHS[width])
    x, y = np.meshgrid(values, values)
    return x.ravel().copy(), y.ravel().copy()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", WIDTHS)
def test_special_values_are_those_of_numpy(width: str, device: str) -> None:
    """M3: through min, max, where, comparisons and arithmetic: one table on all backends."""
    x, y = pairs(width)
    rows = {name: (width, text) for name, text in PAIRS.items()}
    rows |= {name: ("bool_", text) for name, text in TRUTHS.items()}
    outputs = {
        f"{name}_": np.zeros(x.size, WIDTHS[width] if kind == width else np.bool_)
        for name, (kind, _) in rows.items()
    }
    found = results(loop(rows, width), {"x": x, "y": y, **outputs}, device)
    with np.errstate(all="ignore"):
        for name in rows:
            expected = NUMPY[name](x, y).astype(found[f"{name}_"].dtype)
            assert bits(found[f"{name}_"]) == bits(expected), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", WIDTHS)
def test_functions_of_a_constant_nan(width: str, device: str) -> None:
    """M3: compilers evaluate them, each in a kernel of its own, so that nothing hides a mistake."""
    x = np.ones(3, WIDTHS[width])
    for function in (*UNARY_MATH, *BINARY_MATH):
        other = f", {width}(2.0)" if function in BINARY_MATH else ""
        made = loop({"of_nan": (width, f"tm.{function}({width}(tm.nan){other})")}, width)
        found = results(made, {"x": x, "y": x, "of_nan_": np.full_like(x, 7)}, device)
        assert np.isnan(found["of_nan_"]).all(), function


def cast(x: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """What the language promises: integers saturate, NaN is 0."""
    dtype = np.dtype(getattr(tn, kind))
    if dtype.kind in "bf":
        with np.errstate(all="ignore"):
            return x.astype(dtype)
    about = np.iinfo(dtype)
    numbers = [0 if v != v else v for v in x.astype(np.float64).tolist()]
    whole = [int(v) if abs(v) != np.inf else about.max if v > 0 else about.min for v in numbers]
    return np.array([min(max(v, about.min), about.max) for v in whole], dtype)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", WIDTHS)
def test_casts_saturate(width: str, device: str) -> None:
    """M3: NaN, infinities and numbers out of range, to each type."""
    x, _ = pairs(width)
    x = x[: len(SPECIAL)].copy()
    x = np.concatenate([x, -x])
    rows = {f"to_{kind}": (kind, f"tn.{kind}(x[i])") for kind in CASTS}
    expected = {f"to_{kind}_": cast(x, kind) for kind in CASTS}
    outputs = {name: np.zeros_like(array) for name, array in expected.items()}
    found = results(loop(rows, width), {"x": x, "y": x, **outputs}, device)
    for name, array in expected.items():
        assert bits(found[name]) == bits(array), name


@tn.kernel
def cancelling(
    a: Scalar, b: Scalar, c: Scalar, d: Scalar, fused: tn.Mutable[Scalar],
    difference: tn.Mutable[Scalar],
) -> None:  # fmt: skip
    fused = a * b + c
    difference = a * b - c * d


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", WIDTHS)
def test_products_and_sums_are_rounded_one_by_one(width: str, device: str) -> None:
    """M1: nothing is fused, where products cancel too."""
    random = np.random.default_rng(3)
    a, b, d = (random.normal(size=4099).astype(WIDTHS[width]) for _ in range(3))
    c = -(a * b)
    one = np.ones_like(a)
    given = {"a": a, "b": b, "c": c, "d": d, "fused": one, "difference": one}
    found = results(cancelling, given, device)
    assert bits(found["fused"]) == bits(np.zeros_like(a))
    assert bits(found["difference"]) == bits(a * b - c * d)


@tn.kernel
def kahan_f32(x: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
    total, lost = f32(0), f32(0)
    for i in range(x.shape[0]):
        y = x[i] - lost
        t = total + y
        lost = (t - total) - y
        total = t
    out[0] = total


@tn.kernel
def kahan_f64(x: NDArray[f64, 1], out: NDArray[f64, 1]) -> None:
    total, lost = f64(0), f64(0)
    for i in range(x.shape[0]):
        y = x[i] - lost
        t = total + y
        lost = (t - total) - y
        total = t
    out[0] = total


def kahan(x: np.ndarray[Any, Any]) -> Any:
    total = lost = x.dtype.type(0)
    for value in x:
        y = value - lost
        t = total + y
        lost = (t - total) - y
        total = t
    return total


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", WIDTHS)
def test_sums_keep_their_corrections(width: str, device: str) -> None:
    """M1: an optimiser that takes float arithmetic for algebra would drop them."""
    random = np.random.default_rng(4)
    x = (random.normal(size=10_001) * 10.0 ** random.integers(-6, 6, 10_001)).astype(WIDTHS[width])
    made = kahan_f32 if width == "f32" else kahan_f64
    found = results(made, {"x": x, "out": np.zeros(1, x.dtype)}, device)["out"]
    assert bits(found) == bits(np.array([kahan(x)]))
    assert found[0] != x.sum(dtype=x.dtype)  # the correction matters for these numbers


@tn.kernel
def count(
    total: NDArray[f32, 1], wide: NDArray[f64, 1], places: NDArray[i32, 1], sums: NDArray[i64, 1]
) -> None:
    for i in tn.parallel(range(65_536)):
        total[0] += 1.0
        wide[0] += 1.0
        places[i % 3] += 1
        sums[0] += i


@pytest.mark.parametrize("device", DEVICES)
def test_65536_updates_of_one_element(device: str) -> None:
    """M5: none is lost; the values before them are tested with each backend's own functions."""
    given = {
        "total": np.zeros(1, np.float32), "wide": np.zeros(1), "places": np.zeros(3, np.int32),
        "sums": np.zeros(1, np.int64),
    }  # fmt: skip
    found = results(count, given, device)
    assert found["total"].tolist() == found["wide"].tolist() == [65_536]
    assert found["places"].tolist() == [21_846, 21_845, 21_845]
    assert found["sums"].tolist() == [65_536 * 65_535 // 2]
