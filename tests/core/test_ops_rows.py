"""Operations of `turnout.ops` along the last axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from operations_support import FLOATS, layouts, numbers

import turnout as tn

OPERATIONS = ("softmax", "layernorm", "conv1d")
LENGTHS = (1, 2, 7, 15, 16, 17, 33, 70)


@pytest.fixture(autouse=True)
def fresh_operations() -> Iterator[None]:
    yield
    for name in OPERATIONS:
        getattr(tn.ops, name).reset()


def runnable(name: str, *arguments: Any) -> list[str]:
    """The implementations that take these arguments."""
    explained = getattr(tn.ops, name).explain(*arguments).implementations
    return [each.name for each in explained if not each.refusal]


def every_way(name: str, device: str, *arguments: Any) -> Iterator[Any]:
    """The operation under each of the implementations that take these arguments."""
    operation = getattr(tn.ops, name)
    with tn.use(device):
        for implementation in runnable(name, *arguments):
            with operation.force(implementation):
                yield operation


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", LENGTHS)
def test_softmax(device: str, dtype: str, n: int) -> None:
    a = numbers(np.random.default_rng(0), (3, 4, n), dtype) / 16
    shifted = np.longdouble(a) - a.max(axis=-1, keepdims=True)
    expected = np.exp(shifted) / np.exp(shifted).sum(axis=-1, keepdims=True)
    # The difference of the exponents is rounded, which counts as often as it is large.
    relative = (n + 8 + np.abs(shifted).max()) * np.finfo(dtype).eps
    tiny = np.finfo(dtype).tiny
    for softmax in every_way("softmax", device, a):
        found = softmax(a)
        assert found.dtype == dtype
        assert np.all(np.abs(found - expected) <= relative * expected + tiny)
        for own in layouts(a):
            assert np.allclose(softmax(own), expected, rtol=float(relative), atol=tiny)
        assert np.allclose(softmax(a[1, 2]), expected[1, 2], rtol=float(relative), atol=tiny)
        own = a[0].copy()
        assert softmax(own, out=own) is own
        assert np.allclose(own, expected[0], rtol=float(relative), atol=tiny)


def test_softmax_of_special_values(device: str) -> None:
    a = np.array([[1000.0, 0.0], [-np.inf, 0.0], [np.inf, 0.0], [np.nan, 0.0], [-np.inf, -np.inf]])
    expected = np.array([[1.0, 0.0], [0.0, 1.0], [np.nan] * 2, [np.nan] * 2, [np.nan] * 2])
    expected[2, 1] = 0.0
    for softmax in every_way("softmax", device, a):
        with np.errstate(invalid="ignore"):
            found = softmax(a)
        assert np.array_equal(np.isnan(found[:, 0]), np.isnan(expected[:, 0]))
        assert np.array_equal(found[:2], expected[:2])
        assert np.isnan(found[3:]).all()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", LENGTHS)
def test_layernorm(device: str, dtype: str, n: int) -> None:
    random = np.random.default_rng(1)
    a = (random.standard_normal((3, 4, n)) + 5).astype(dtype)
    gain, bias = (random.standard_normal((2, n))).astype(dtype)
    wide = np.longdouble(a)
    difference = wide - wide.mean(axis=-1, keepdims=True)
    epsilon = np.longdouble(np.dtype(dtype).type(0.01))
    root = np.sqrt(np.square(difference).mean(axis=-1, keepdims=True) + epsilon)
    normal = difference / root
    bound = float((n + 8) * np.finfo(dtype).eps * np.abs(wide).max() / root.min())
    scaled_bound = 4 * bound * float(max(1, np.abs(gain).max()))
    for layernorm in every_way("layernorm", device, a, gain, bias, 0.01):
        found = layernorm(a, epsilon=0.01)
        assert found.dtype == dtype
        assert np.all(np.abs(found - normal) <= bound)
        assert np.all(np.abs(layernorm(a, gain, epsilon=0.01) - normal * gain) <= scaled_bound)
        own = a[0].copy()
        assert layernorm(own, gain, bias, 0.01, out=own) is own
        assert np.all(np.abs(own - (normal * gain + bias)[0]) <= scaled_bound)
        for own in layouts(a):
            assert np.all(
                np.abs(layernorm(own, bias=bias, epsilon=0.01) - normal - bias) <= scaled_bound
            )


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "uint8"])
@pytest.mark.parametrize("k", [1, 2, 5, 16, 20])
def test_conv1d(device: str, dtype: str, k: int) -> None:
    random = np.random.default_rng(2)
    if dtype in FLOATS:
        a, w = numbers(random, (2, 3, 20), dtype), numbers(random, (k,), dtype)
    else:
        a, w = random.integers(0, 200, (2, 3, 20)).astype(dtype), np.arange(k).astype(dtype)
    windows = np.lib.stride_tricks.sliding_window_view(a, k, axis=-1)
    if dtype in FLOATS:
        expected = np.longdouble(windows) @ np.longdouble(w)
        bound = (k + 1) * np.finfo(dtype).eps * (np.abs(windows) @ np.abs(w))
    else:
        expected, bound = windows @ w, np.zeros(windows.shape[:-1])
    for conv1d in every_way("conv1d", device, a, w):
        found = conv1d(a, w)
        assert found.dtype == dtype
        assert np.all(np.abs(found - expected) <= bound)
        assert np.all(np.abs(conv1d(a[1, 1], w) - expected[1, 1]) <= bound[1, 1])
        out = np.empty(found.shape, dtype)
        for own in layouts(a):
            assert conv1d(own, w[::-1].copy()[::-1], out) is out
            assert np.all(np.abs(out - expected) <= bound)


def test_nothing_gives_nothing(device: str) -> None:
    with tn.use(device):
        assert tn.ops.softmax(np.empty((3, 0))).shape == (3, 0)
        assert tn.ops.layernorm(np.empty((0, 5))).shape == (0, 5)
        assert tn.ops.conv1d(np.empty((0, 5)), np.ones(2)).shape == (0, 4)


ROW = np.ones(3)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("softmax", (np.float64(1.0),), "softmax: a must have the shape (..., n), not ()"),
        ("softmax", (np.ones(3, int),), "softmax: a has elements of type int64: give one of"),
        ("softmax", (ROW, np.ones(4)), "softmax: out must be an array like the result, float64"),
        ("layernorm", (ROW, np.ones(4)), "layernorm: the last axis of a and the length of gain"),
        ("layernorm", (ROW, None, np.ones(3, "f4")), "layernorm: a is float64 and bias float32"),
        ("layernorm", (ROW, None, None, -1.0), "epsilon must be a number from 0 on, not -1.0"),
        (
            "layernorm",
            (ROW, None, None, "small"),
            "epsilon must be a number from 0 on, not 'small'",
        ),
        ("conv1d", (ROW, np.ones(4)), "conv1d: w must have from 1 to as many elements as the last"),
        ("conv1d", (ROW, np.ones(0)), "the last axis of a, which has 3, not 0"),
        ("conv1d", (ROW, np.ones((1, 1))), "conv1d: w must have the shape (k,), not (1, 1)"),
    ],
)
def test_errors(name: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(tn.CallError) as caught:
        getattr(tn.ops, name)(*arguments)
    assert message in str(caught.value)
