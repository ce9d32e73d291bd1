"""Products of vectors and matrices, as operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..perf import PerformanceDispatcher
from .operation import operation


@operation(mutates=())
def dot(a: Any, b: Any) -> Any:
    """Return the dot product of two vectors."""


@operation(mutates={"out": "output"})
def gemv(a: Any, x: Any, out: Any = None) -> Any:
    """Return the product of a matrix and a vector."""


@operation(mutates={"out": "output"})
def matmul(a: Any, b: Any, out: Any = None) -> Any:
    """Return the product of two matrices."""


OPERATIONS: Mapping[str, PerformanceDispatcher[..., Any]] = {
    "dot": dot,
    "gemv": gemv,
    "matmul": matmul,
}
