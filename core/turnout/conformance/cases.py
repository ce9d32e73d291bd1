"""What a conformance case is, and the inputs that cases run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnout import Kernel
from turnout.plugin import ir

Array = NDArray[Any]
Arguments = Callable[[np.random.Generator, int], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """A kernel and the arguments of a typical call.

    Attributes
    ----------
    name : str
        Unique in the suite.
    kernel : Kernel
    make_arguments : callable
        From a random generator and a size to the arguments in order: NumPy arrays and numbers.
    needs : tuple of str
        Capabilities without which the case is skipped.
    as_python : bool
        Whether the kernel's Python function, run by Python, gives the same values.
    """

    name: str
    kernel: Kernel
    make_arguments: Arguments
    needs: tuple[str, ...] = ()
    as_python: bool = True

    def arguments(self, size: int) -> tuple[Any, ...]:
        """The same new arguments at each call; `size` is the number of samples or elements."""
        return self.make_arguments(np.random.default_rng([size, len(self.name)]), size)


def capabilities(*dtypes: ir.DType) -> tuple[str, ...]:
    """Capabilities that values of these types need."""
    return ("f64",) if ir.f64 in dtypes else ()


def edges(dtype: ir.DType) -> Array:
    """Values of a type at which implementations go wrong."""
    if dtype.is_bool:
        return np.array([False, True])
    if dtype.is_integer:
        near_limits = [dtype.minimum + k for k in range(3)] + [dtype.maximum - k for k in range(3)]
        widths = [sign * (dtype.bits + k) for sign in (1, -1) for k in (-1, 0, 1)]
        values = {0, 1, 2, 3, 7, 10, 64, 100, -1, -2, -3, -7, *near_limits, *widths}
        inside = sorted(v for v in values if dtype.minimum <= v <= dtype.maximum)
        return np.array(inside, dtype)
    info = np.finfo(dtype.dtype)
    one = 2.0**info.nmant  # the first power of two whose neighbours are integers
    magnitudes = [
        0.0, 1.0, 0.5, 1.5, 2.0, 2.5, 3.0, 1 / 3, np.pi, 10.0, 88.5, 104.0, 710.0,
        1 + info.eps, 1 - info.epsneg, 0.5 - info.epsneg / 2, 0.1 * info.eps,
        one, one - 0.5, one + 1, 2 * one, 1e10,
        info.smallest_subnormal, info.tiny - info.smallest_subnormal, info.tiny, info.max,
    ]  # fmt: skip
    signed = [sign * magnitude for magnitude in magnitudes for sign in (1.0, -1.0)]
    return np.array([*signed, np.inf, -np.inf, np.nan], dtype)


def anything(random: np.random.Generator, dtype: ir.DType, size: int) -> Array:
    """Random values of the whole range of a type: any bits, but one kind of NaN."""
    if dtype.is_bool:
        return random.integers(0, 2, size).astype(bool)
    values = random.integers(0, 256, size * dtype.itemsize, np.uint8).view(dtype.dtype)
    if dtype.is_float:
        values[np.isnan(values)] = np.nan
    return values


def ordinary(random: np.random.Generator, dtype: ir.DType, size: int) -> Array:
    """Random values of everyday size."""
    if dtype.is_bool:
        return anything(random, dtype, size)
    if dtype.is_integer:
        return random.integers(max(dtype.minimum, -20), 21, size).astype(dtype)
    return np.asarray((random.normal(size=size) * 10.0 ** random.integers(-2, 2, size)), dtype)


def operand_rows(
    random: np.random.Generator, dtypes: tuple[ir.DType, ...], size: int
) -> tuple[Array, ...]:
    """Operands for an operation: all combinations of edges, then random values, `size` in all."""
    grids = np.meshgrid(*[edges(dtype) for dtype in dtypes], indexing="ij")
    order = random.permutation(grids[0].size)  # a short list is a fair sample of them
    operands = []
    for dtype, grid in zip(dtypes, grids, strict=True):
        half = max(0, size - grid.size) // 2
        rest = max(0, size - grid.size - half)
        chosen = np.concatenate(
            [grid.ravel()[order], anything(random, dtype, half), ordinary(random, dtype, rest)]
        )
        operands.append(chosen[:size].astype(dtype.dtype))
    return tuple(operands)
