"""What this package offers to ``turnout.ops``: code for exact sizes.

The functions are entry points of the group ``turnout.implementations``, under the names of the
operations; nothing is compiled before a size is asked for.
"""

from __future__ import annotations

from turnout.plugin import offer_compiled_operation


def offer_matmul(operation: object) -> None:
    """Offer products of matrices."""
    from .linear_algebra.compiling import compile_matmul

    offer_compiled_operation("matmul", "cpu", compile_matmul)


def offer_gemv(operation: object) -> None:
    """Offer products of a matrix and a vector."""
    from .linear_algebra.compiling import compile_gemv

    offer_compiled_operation("gemv", "cpu", compile_gemv)


def offer_dot(operation: object) -> None:
    """Offer dot products."""
    from .linear_algebra.compiling import compile_dot

    offer_compiled_operation("dot", "cpu", compile_dot)
