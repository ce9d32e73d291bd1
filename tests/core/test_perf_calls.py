"""How calls reach implementations, and the geometry that is used without get_geometry_hash."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.errors import KernelError
from turnout.geometry import describe, leaves
from turnout.perf import PerformanceDispatcher, perf_dispatch


def geometry_of(operation: Any, *args: object, **kwargs: object) -> object:
    operation(*args, **kwargs)
    decision = operation.decision(*args, **kwargs)
    assert decision is not None
    return decision.geometry


def echo(prototype: Callable[..., Any], **settings: Any) -> PerformanceDispatcher[..., Any]:
    """An operation with one implementation, which is the prototype itself."""
    operation = perf_dispatch(**settings)(prototype)
    operation.register(prototype)
    return operation


# ---- calls ---------------------------------------------------------------------------------------


def test_one_geometry_for_every_spelling_of_a_call() -> None:
    def f(a: object, b: object, n: int = 5, m: int = 7) -> tuple[object, ...]:
        return a, b, n, m

    for settings in ({}, {"get_geometry_hash": lambda *arguments: arguments}):
        operation = echo(f, **settings)
        expected = geometry_of(operation, 1, "b", 5, 7)
        assert operation(1, "b") == (1, "b", 5, 7)
        for args, kwargs in [
            ((1, "b"), {}),
            ((1, "b"), {"n": 5, "m": 7}),
            ((), {"m": 7, "n": 5, "b": "b", "a": 1}),
            ((1,), {"m": 7, "b": "b"}),
        ]:
            assert operation(*args, **kwargs) == (1, "b", 5, 7)
            assert geometry_of(operation, *args, **kwargs) == expected


def test_every_kind_of_parameter() -> None:
    def f(a: Any, /, b: Any = 2, *rest: Any, c: Any, d: Any = 4, **more: Any) -> tuple[Any, ...]:
        return a, b, rest, c, d, more

    operation = echo(f)
    assert operation(1, c=3) == (1, 2, (), 3, 4, {})
    assert operation(1, c=3) == (1, 2, (), 3, 4, {})  # decided
    assert operation(1, 0, 7, 8, d=5, c=3, e=6) == (1, 0, (7, 8), 3, 5, {"e": 6})
    assert operation(1, 0, 7, 8, d=5, c=3, e=6) == (1, 0, (7, 8), 3, 5, {"e": 6})
    one = geometry_of(operation, 1, c=3, x=np.zeros(2), y="y")
    assert one == geometry_of(operation, 1, y="y", c=3, x=np.zeros(2))
    assert one != geometry_of(operation, 1, c=3, x=np.zeros(3), y="y")


def test_helpers_get_the_arguments_as_the_implementation_does() -> None:
    seen = []

    def f(a: int, b: int = 2, *, c: int = 3) -> int:
        return a + b + c

    operation = perf_dispatch(get_geometry_hash=lambda x, y, *, c: (x, y, c))(f)
    operation.register(is_compatible=lambda p, q, *, c: seen.append((p, q, c)) or True)(f)  # type: ignore
    assert operation(c=30, a=10) == 42
    assert geometry_of(operation, 10, c=30) == (10, 2, 30)
    assert set(seen) == {(10, 2, 30)}


def test_parameters_may_have_any_name() -> None:
    def f(self: int, geometry: int, decided: int, clock: int, next: int = 5, dict: int = 6) -> int:
        return self + geometry + decided + clock + next + dict

    operation = echo(f, get_geometry_hash=lambda *arguments: 0)
    for _ in range(3):
        assert operation(1, 2, 3, 4) == 21
        assert operation(clock=1, self=0, decided=0, geometry=0) == 12


def test_a_mutable_default_is_the_prototypes_own_object() -> None:
    shared: list[int] = []

    def f(a: int, into: list[int] = shared) -> None:
        into.append(a)

    operation = echo(f)
    operation(1)
    operation(2)
    assert shared == [1, 2]


def test_defaults_are_those_of_the_prototype() -> None:
    @perf_dispatch
    def f(a: int, n: int = 5) -> int: ...

    @f.register
    def implementation(a: int, n: int = 100) -> int:
        return a * n

    @f.register
    def without_default(a: int, n: int) -> int:
        return a * n

    assert [f(2) for _ in range(6)] == [10] * 6


def test_wrong_arguments_are_named_as_for_a_plain_function() -> None:
    def f(a: int, b: int) -> None: ...

    operation = echo(f)
    with pytest.raises(TypeError, match=r"f\(\) missing 1 required positional argument: 'b'"):
        operation(1)
    with pytest.raises(TypeError, match=r"f\(\) takes 2 positional arguments but 3 were given"):
        operation(1, 2, 3)
    with pytest.raises(TypeError, match=r"f\(\) got an unexpected keyword argument 'c'"):
        operation(1, 2, c=3)


# ---- geometries of the user ----------------------------------------------------------------------


@pytest.mark.parametrize("geometry", [0, -1, "text", (1, "a", (2.5, None)), None, frozenset({1})])
def test_any_hashable_is_a_geometry(geometry: object) -> None:
    operation = echo(lambda a: a, get_geometry_hash=lambda a: geometry)
    assert geometry_of(operation, 1) == geometry


@pytest.mark.parametrize("geometry", [[1, 2], {}, (1, [2]), np.zeros(2)])
def test_a_geometry_that_cannot_be_hashed_is_an_error(geometry: object) -> None:
    with_check = perf_dispatch(get_geometry_hash=lambda a: geometry)(lambda a: a)
    with_check.register(is_compatible=lambda a: True)(lambda a: a)
    without_check = echo(lambda a: a, get_geometry_hash=lambda a: geometry)
    message = rf"the geometry .* of type {type(geometry).__name__} cannot be hashed: get_geometry"
    for operation in (with_check, without_check):
        with pytest.raises(KernelError, match=message):
            operation(1)
        with pytest.raises(KernelError, match=message):
            operation.decision(1)


def test_errors_in_get_geometry_hash_pass() -> None:
    operation = echo(lambda a: a, get_geometry_hash=lambda a: a.shape)
    with pytest.raises(AttributeError, match="'int' object has no attribute 'shape'"):
        operation(1)


# ---- the default geometry ------------------------------------------------------------------------


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


class Level(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass
class State:
    position: Any
    velocity: Any
    label: str = "s"


class DeviceArray:
    """An array of another library, as CuPy, Numba and pyopencl describe theirs."""

    def __init__(self, array: np.ndarray[Any, Any], device: tuple[int, int] = (2, 0)) -> None:
        self.shape, self.strides, self.dtype = array.shape, array.strides, array.dtype
        self.device = device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_the_contents_do_not_matter() -> None:
    assert describe(np.zeros(3)) == describe(np.arange(3.0))
    assert describe(3) == describe(4)
    assert describe(0.5) == describe(1.5)
    assert describe([np.zeros(3), 1]) == describe([np.ones(3), 2])
    assert describe(b"abc") == describe(b"xyz")
    assert describe(len) == describe(abs)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros(3), np.zeros(4)),
        (np.zeros(3), np.zeros((3, 1))),
        (np.zeros(3), np.zeros(3, np.float32)),
        (np.zeros(3), np.zeros(6)[::2]),
        (np.zeros((3, 4)), np.zeros((4, 3)).T),
        (np.zeros(1), DeviceArray(np.zeros(1))),
        (DeviceArray(np.zeros(1)), DeviceArray(np.zeros(1), (2, 1))),
        (DeviceArray(np.zeros(4)), DeviceArray(np.zeros(8)[::2])),
        (0, 0.5),
        (1, True),
        (1, 1j),
        (1, np.int64(1)),
        (np.float32(1), np.float64(1)),
        ("ij", "ji"),
        ("a", None),
        (True, False),
        (Mode.FAST, Mode.SLOW),
        (Level.ONE, 1),
        (np.float32, np.float64),
        (np.dtype("f4"), np.dtype("f8")),
        ([np.zeros(3)], [np.zeros(4)]),
        ([np.zeros(3)], (np.zeros(3),)),
        ([1, 2], [1, 2, 3]),
        ({"a": np.zeros(3)}, {"b": np.zeros(3)}),
        ({"a": np.zeros(3)}, {"a": np.zeros(4)}),
        ({0: 1}, {0: 1, 1: 1}),
        (State(np.zeros(3), 1), State(np.zeros(4), 1)),
        (State(np.zeros(3), 1), State(np.zeros(3), 1, "t")),
    ],
)
def test_what_does_matter(one: object, other: object) -> None:
    assert describe(one) != describe(other)
    assert describe(one) == describe(one)
    hash(describe(one))


def test_the_order_of_a_dict_does_not_matter() -> None:
    one = {"a": np.zeros(3), "b": 1.0, 3: "c"}
    assert describe(one) == describe(dict(reversed(one.items())))


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (1, 1), (0,), (0, 3), (3, 0), ()])
def test_axes_of_length_0_and_1_have_no_layout(shape: tuple[int, ...]) -> None:
    array = np.zeros(shape)
    fortran = np.array(array, order="F")
    assert describe(array) == describe(fortran)
    assert describe(DeviceArray(array)) == describe(DeviceArray(fortran))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([-2, -1, 1, 2])), max_size=4),
    st.randoms(use_true_random=False),
)
def test_the_layout_of_foreign_arrays_is_that_of_numpy(
    axes: list[tuple[int, int]], random: Any
) -> None:
    base = np.zeros([length * abs(step) for length, step in axes])
    view = base[tuple(slice(None, None, step) for _, step in axes)]
    order = list(range(view.ndim))
    random.shuffle(order)
    view = view.transpose(order)
    is_contiguous = describe(DeviceArray(view))[-2]  # type: ignore[index]
    assert is_contiguous == view.flags.c_contiguous


def test_tensors_whose_strides_are_a_method() -> None:
    class Tensor:
        shape, dtype, device = (2, 3), "float32", "cuda:0"

        def __init__(self, contiguous: bool) -> None:
            self.contiguous = contiguous

        def is_contiguous(self) -> bool:
            return self.contiguous

        def stride(self) -> tuple[int, ...]:
            return (3, 1)

    assert describe(Tensor(True)) == (Tensor, (2, 3), "float32", True, "cuda:0")
    assert describe(Tensor(False)) == (Tensor, (2, 3), "float32", False, "cuda:0")


def test_leaves_are_the_members_of_containers() -> None:
    a, b, c = np.zeros(1), np.zeros(2), np.zeros(3)
    found = leaves([a, [b, 1], {"x": c}, State(a, b)])
    arrays = [value for value in found if isinstance(value, np.ndarray)]
    assert [id(array) for array in arrays] == [id(a), id(b), id(c), id(a), id(b)]


# ---- the default timer ---------------------------------------------------------------------------


def test_the_default_timer_is_that_of_the_arguments_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def context_for(arguments: Any) -> Any:
        asked.append(arguments)
        return types.SimpleNamespace(timer=lambda work: (work(), 5)[1])

    monkeypatch.setattr("turnout.tuning_on_copies.context_for", context_for)

    @perf_dispatch(warmup=0)
    def f(a: Any, *, b: Any) -> None: ...

    for name in ("v1", "v2"):
        f.register(name=name)(lambda a, *, b: None)
    a, b = np.zeros(2), np.zeros(3)
    f(a, b=[b])
    assert len(asked) == 1
    assert [id(value) for value in asked[0]] == [id(a), id(b)]
    f(a, b=[b])
    assert f.decision(a, b=[b]).samples == {"v1": (5,), "v2": (5,)}  # type: ignore[union-attr]
