"""Operations of linear algebra, each raced among several implementations.

Products are `dot`, `gemv` and `matmul`; `batched_matmul` and `batched_cholesky` take stacks of
small matrices; `softmax`, `layernorm` and `conv1d` go along the last axis, `sum`, `max`, `min`,
`argmax`, `argmin` and `cumsum` along any axis or over the whole array. Other packages register
implementations of their own by an operation's name, for example ``turnout.ops.matmul``, in the
entry-point group ``turnout.implementations``.
"""

from __future__ import annotations

from .batched import batched_cholesky, batched_matmul
from .compiled import (
    CacheInfo,
    cache_clear,
    cache_info,
    compile_dot,
    compile_gemv,
    compile_matmul,
)
from .linear_algebra import dot, gemv, matmul
from .reductions import argmax, argmin, cumsum, max, min, sum
from .rows import conv1d, layernorm, softmax

__all__ = [
    "CacheInfo",
    "argmax",
    "argmin",
    "batched_cholesky",
    "batched_matmul",
    "cache_clear",
    "cache_info",
    "compile_dot",
    "compile_gemv",
    "compile_matmul",
    "conv1d",
    "cumsum",
    "dot",
    "gemv",
    "layernorm",
    "matmul",
    "max",
    "min",
    "softmax",
    "sum",
]
