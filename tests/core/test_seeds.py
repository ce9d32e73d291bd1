"""The programs of the source documents, in turnout's spelling, with the values they must give.

One operation with several implementations under `perf_dispatch`, and one branch compiled by policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from language_support import DEVICES

import turnout as tn
import turnout.math as tm
from turnout import Index, KernelError, Mutable, NDArray, Param, Scalar, f32


@pytest.fixture(params=DEVICES, autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with tn.use(request.param):
        yield request.param


# -- perf_dispatch: the complete example -----------------------------------------------------------


def test_the_complete_example() -> None:
    @tn.perf_dispatch(
        get_geometry_hash=lambda data, out: hash(data.shape),
        repeat_after_seconds=0,
    )
    def transform(data: NDArray[f32, 1], out: NDArray[f32, 1]): ...

    @transform.register
    @tn.kernel
    def transform_v1(data: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
        for i in range(data.shape[0]):
            out[i] = data[i] * 2

    @transform.register
    @tn.kernel
    def transform_v2(data: NDArray[f32, 1], out: NDArray[f32, 1]) -> None:
        i = 0
        # will run the same speed as the other version, but just an example
        while i < data.shape[0]:
            out[i] = data[i] * 2
            i += 1

    data = np.linspace(-1, 1, 1024, dtype=np.float32)
    for _ in range(100):
        out = np.full_like(data, np.nan)
        transform(data, out)
        np.testing.assert_array_equal(out, data * 2)
    decision = transform.decision(data, out)
    assert decision is not None
    assert decision.chosen in ("transform_v1", "transform_v2")
    assert transform.implementations == ("transform_v1", "transform_v2")


def test_the_shift_of_a_float_is_an_error_at_its_place() -> None:
    @tn.kernel
    def my_op_v2(a: NDArray[f32, 1], b: NDArray[f32, 1]) -> None:
        i = 0
        while i < a.shape[0]:
            b[i] = a[i] << 1
            i += 1

    a, b = np.ones(4, np.float32), np.zeros(4, np.float32)
    with pytest.raises(KernelError, match="<<") as caught:
        my_op_v2(a, b)
    location = caught.value.location
    assert location is not None
    assert location.file == __file__
    assert location.text.strip() == "b[i] = a[i] << 1"
    assert location.line == my_op_v2.__wrapped__.__code__.co_firstlineno + 4
    assert location.column == location.text.index("a[i]") + 1
    assert b.tolist() == [0, 0, 0, 0]


def test_kernels_and_plain_functions_side_by_side_with_compatibility() -> None:
    ran: list[str] = []

    @tn.perf_dispatch(get_geometry_hash=lambda a, b: hash(a.shape + b.shape))
    def my_op(a: NDArray[f32, 1], b: NDArray[f32, 1]) -> None: ...

    @my_op.register
    @tn.kernel
    def my_op_v1(a: NDArray[f32, 1], b: NDArray[f32, 1]) -> None:
        for i in range(a.shape[0]):
            b[i] = a[i] * 2

    @my_op.register
    def my_op_python(a: Any, b: Any) -> None:
        ran.append("my_op_python")
        for i in range(a.shape[0]):
            b[i] = a[i] * 2

    @my_op.register(is_compatible=lambda a, b: a.shape[0] >= 1024)
    @tn.kernel
    def my_op_large(a: NDArray[f32, 1], b: NDArray[f32, 1]) -> None:
        for i in range(a.shape[0]):
            b[i] = a[i] + a[i]

    assert my_op.implementations == ("my_op_v1", "my_op_python", "my_op_large")
    for n in (10, 2000):
        a = np.arange(n, dtype=np.float32)
        for _ in range(20):
            b = np.zeros(n, np.float32)
            assert my_op(a, b) is None
            np.testing.assert_array_equal(b, a * 2)
    assert len(ran) >= 8  # three warm-ups and one timed call for each of two geometries
    small = my_op.decision(np.zeros(10, np.float32), np.zeros(10, np.float32))
    large = my_op.decision(np.zeros(2000, np.float32), np.zeros(2000, np.float32))
    assert small is not None
    assert large is not None
    assert set(small.samples) == {"my_op_v1", "my_op_python"}
    assert set(large.samples) == {"my_op_v1", "my_op_python", "my_op_large"}


def test_what_an_implementation_returns_reaches_the_caller() -> None:
    @tn.perf_dispatch
    def total(x: Any, factor: Any): ...

    @total.register
    @tn.kernel
    def total_kernel(x: Scalar, factor: Param) -> Scalar:
        return x * factor

    @total.register
    def total_numpy(x: Any, factor: Any) -> Any:
        return x * factor

    for _ in range(12):
        assert total(np.arange(3.0), 2).tolist() == [0, 2, 4]


def test_decorators_in_the_wrong_order_are_refused() -> None:
    @tn.perf_dispatch
    def my_op(a: Any): ...

    with pytest.raises(KernelError) as caught:

        @tn.kernel
        @my_op.register
        def impl(a: NDArray[f32, 1]) -> None:
            a[0] = 1

    assert str(caught.value) == (
        "impl is already registered as an implementation of 'my_op'; the register decorator must "
        "be the topmost one, above turnout.kernel"
    )


# -- dispatch policies: the drag kernel ------------------------------------------------------------


@tn.kernel
def drag_switch(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    a = tm.dispatch(
        regime,
        [
            -0.1 * v,  # laminar
            -0.4 * v * abs(v),  # turbulent
            -2.0 * v * tm.exp(-v * v),  # a costly third law
        ],
        policy="switch",
    )
    v_new = v + dt * a


@tn.kernel
def drag_predicated(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    a = tm.dispatch(
        regime,
        [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)],
        policy="predicated",
    )
    v_new = v + dt * a


@tn.kernel
def drag_auto(dt: Param, regime: Index, v: Scalar, v_new: Mutable[Scalar]):
    a = tm.dispatch(
        regime,
        [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * tm.exp(-v * v)],
        policy="auto",
    )
    v_new = v + dt * a


DRAG = [drag_switch, drag_predicated, drag_auto]


def drag_numpy(dt: float, regime: Any, v: Any) -> Any:
    laws = [-0.1 * v, -0.4 * v * abs(v), -2.0 * v * np.exp(-v * v)]
    return v + dt * np.choose(np.clip(regime, 0, 2), laws)


@pytest.mark.parametrize("drag", DRAG, ids=lambda kernel: kernel.__name__)
def test_the_nine_samples(drag: tn.Kernel) -> None:
    regime = np.array([0, 0, 1, 2, 2, 2, 1, 0, 5], dtype=np.int64)  # 5 clamps to 2
    v_new = np.zeros(9)
    drag(dt=0.1, regime=regime, v=np.ones(9), v_new=v_new)
    # 1 - 0.1 * 0.1, 1 - 0.1 * 0.4 and 1 - 0.1 * 2 / e
    laws = np.array([0.99, 0.96, 0.9264241117657115])
    np.testing.assert_allclose(v_new, laws[np.clip(regime, 0, 2)], rtol=2.3e-16, atol=0)


@pytest.mark.parametrize("width", [np.float32, np.float64])
@pytest.mark.parametrize("drag", DRAG, ids=lambda kernel: kernel.__name__)
def test_random_batches(drag: tn.Kernel, width: Any) -> None:
    random = np.random.default_rng(7)
    for n in (1, 8, 100, 4097):
        regime = random.integers(-3, 6, n)
        v = random.normal(scale=2, size=n).astype(width)
        v_new = np.zeros(n, width)
        drag(0.1, regime, v, v_new)
        np.testing.assert_allclose(
            v_new, drag_numpy(0.1, regime, v), rtol=8 * np.finfo(width).eps, atol=0
        )


@pytest.mark.parametrize("width", [np.float32, np.float64])
def test_policies_and_batches_give_the_same_bits(width: Any) -> None:
    random = np.random.default_rng(11)
    n = 1003
    regime = random.integers(-3, 6, n)
    v = random.normal(scale=2, size=n).astype(width)
    v[::97] = [np.nan, np.inf, -np.inf, -0.0, 1e-310, 1e30, -1e30, 0, 5, 6, 7]
    expected = np.zeros(n, width)
    drag_switch(0.1, regime, v, expected)
    bits = expected.view(f"u{expected.itemsize}")
    for drag in DRAG:
        for parts in ([n], [1, 2, n - 3], [500, n - 500]):
            v_new = np.zeros(n, width)
            start = 0
            for part in parts:
                piece = slice(start, start + part)
                drag(0.1, regime[piece], v[piece], v_new[piece])
                start += part
            both_nan = np.isnan(v_new) & np.isnan(expected)
            assert ((v_new.view(bits.dtype) == bits) | both_nan).all()
