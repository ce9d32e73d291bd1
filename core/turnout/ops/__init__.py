"""Operations of linear algebra, each raced among several implementations.

`dot`, `gemv` and `matmul`, and `batched_matmul` and `batched_cholesky` of many small matrices,
follow NumPy. Other packages register implementations of their own by
the operation's name, for example ``turnout.ops.matmul``, in the entry-point group
``turnout.implementations``.
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

__all__ = [
    "CacheInfo",
    "batched_cholesky",
    "batched_matmul",
    "cache_clear",
    "cache_info",
    "compile_dot",
    "compile_gemv",
    "compile_matmul",
    "dot",
    "gemv",
    "matmul",
]
