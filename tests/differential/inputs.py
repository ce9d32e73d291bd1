"""Arguments of generated kernels: values at the edges of every type, in every memory layout."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from hypothesis import strategies as st

from .grammar import Draw
from .kinds import FLOATS, dtype_of, limits
from .programs import Parameter, Program

Arguments = dict[str, Any]

SMALL = (0, 1, 2, 3, 5, 8, 9, 16, 17, 33)
LARGE = (7, 64, 65, 127, 259, 1031)
PADDING = 70
"""Elements before and after the memory of each array, more than one round of a vector loop."""

_SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -1.5, 3.0, 255.5, 2.0**31, -(2.0**63), 2.0**64)


def values(kind: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    """Numbers of which a good part is special."""
    random = np.random.default_rng(seed)
    dtype = dtype_of(kind)
    if kind == "bool_":
        return random.integers(0, 2, shape).astype(dtype)
    is_special = random.random(shape) < random.choice((0.1, 0.5))
    if kind in FLOATS:
        about = np.finfo(dtype)
        edges = (
            np.nan,
            np.inf,
            -np.inf,
            about.max,
            about.min,
            about.tiny,
            about.smallest_subnormal,
        )
        special = random.choice(np.array((*_SPECIAL, *edges), dtype), shape)
        usual = random.normal(size=shape) * random.choice((1.0, 100.0))
        return np.where(is_special, special, usual).astype(dtype)
    low, high = limits(kind)
    special = random.choice(np.array((0, 1, 2, low, low + 1, high, high - 1), dtype), shape)
    small = random.integers(max(low, -9), 10, shape).astype(dtype)
    anywhere = random.integers(low, high, shape, dtype=dtype, endpoint=True)
    return np.where(is_special, special, np.where(random.random(shape) < 0.7, small, anywhere))


def padded(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An array in the middle of memory that nobody may write."""
    size = math.prod(shape)
    memory = np.full((size + 2 * PADDING) * dtype.itemsize, 0x55, np.uint8).view(dtype)
    return memory[PADDING : PADDING + size].reshape(shape)


def laid_out(array: np.ndarray[Any, Any], layout: str) -> np.ndarray[Any, Any]:
    """A view with the values of `array` and strides of its own."""
    shape, dtype, axes = array.shape, array.dtype, array.ndim
    match layout:
        case "reversed":
            view = padded(shape, dtype)[(slice(None, None, -1),) * axes]
        case "strided":
            view = padded(tuple(2 * n for n in shape), dtype)[(slice(1, None, 2),) * axes]
        case "offset":
            view = padded(tuple(n + 3 for n in shape), dtype)[(slice(1, -2),) * axes]
        case "fortran":
            view = padded(shape[::-1], dtype).T
        case "mixed":
            wide = padded(tuple(3 * n for n in shape[::-1]), dtype)
            view = wide[(slice(None, None, -3),) * axes].T
        case _:
            view = padded(shape, dtype)
    view[...] = array
    return view


LAYOUTS = ("contiguous", "contiguous", "reversed", "strided", "offset", "fortran", "mixed")


def _array(draw: Draw, parameter: Parameter, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    seed = draw(st.integers(0, 2**16))
    if not parameter.is_output and draw(st.integers(0, 5)) == 5:
        one = values(parameter.kind, (1,) * len(shape), seed)
        return np.broadcast_to(one, shape)
    return laid_out(values(parameter.kind, shape, seed), draw(st.sampled_from(LAYOUTS)))


def _number(draw: Draw, kind: str) -> Any:
    if kind == "int":
        return draw(st.integers(0, 9))
    if kind == "float":
        return draw(st.sampled_from((0.0, -0.0, 0.5, -3.25, 1e10, float("inf"), float("nan"))))
    return values(kind, (1,), draw(st.integers(0, 2**16)))[0]


@st.composite
def arguments(draw: Draw, program: Program, lengths: tuple[int, ...] = SMALL) -> Arguments:
    """Arguments of one call."""
    n = draw(st.sampled_from(lengths))
    grid = (draw(st.sampled_from((0, 1, 2, 5))), draw(st.sampled_from((0, 1, 3, 8, 19))))
    shapes = {
        "line": lambda: (n,),
        "grid": lambda: grid,
        "table": lambda: (draw(st.integers(1, 9)),),
        "total": lambda: (3,),
        "plane": lambda: (n,),
        "vector": lambda: (3, n),
        "mask": lambda: (n,),
    }
    return {
        p.name: _number(draw, p.kind) if p.role == "param" else _array(draw, p, shapes[p.role]())
        for p in program.parameters
    }


def copied(given: Arguments) -> Arguments:
    """The same arguments, arrays in memory of their own and with the same surroundings."""
    return {
        name: in_memory(value, memory_of(value).copy()) if isinstance(value, np.ndarray) else value
        for name, value in given.items()
    }


def memory_of(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The whole array that `array` is a view of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def in_memory(array: np.ndarray[Any, Any], memory: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The view of `memory` that `array` is of its own memory."""
    offset = _address(array) - _address(memory_of(array))
    view: np.ndarray[Any, Any] = np.ndarray(array.shape, array.dtype, memory, offset, array.strides)
    view.flags.writeable = array.flags.writeable
    return view


def _address(array: np.ndarray[Any, Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def assert_only_outputs_changed(given: Arguments, used: Arguments, outputs: Iterable[str]) -> None:
    """No input was written, nor anything around an output."""
    for name, array in given.items():
        if not isinstance(array, np.ndarray):
            continue
        after = memory_of(used[name]).copy()
        if name in outputs:
            in_memory(array, after)[...] = array
        assert after.tobytes() == memory_of(array).tobytes(), f"memory around {name} was written"
