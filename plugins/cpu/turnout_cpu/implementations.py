"""What this package offers to ``turnout.ops``: code for exact sizes, and decisions found natively.

The functions are entry points of the group ``turnout.implementations``, under the names of the
operations; nothing is compiled before a size is asked for.
"""

from __future__ import annotations

from turnout.plugin import offer_compiled_operation, offer_decided_calls


def offer_matmul(operation: object) -> None:
    """Offer products of matrices."""
    from .decided_entry import make_decided_entry
    from .linear_algebra.compiling import compile_matmul

    offer_compiled_operation("matmul", "cpu", compile_matmul)
    offer_decided_calls("matmul", "cpu", make_decided_entry)


def offer_gemv(operation: object) -> None:
    """Offer products of a matrix and a vector."""
    from .decided_entry import make_decided_entry
    from .linear_algebra.compiling import compile_gemv

    offer_compiled_operation("gemv", "cpu", compile_gemv)
    offer_decided_calls("gemv", "cpu", make_decided_entry)


def offer_dot(operation: object) -> None:
    """Offer dot products."""
    from .decided_entry import make_decided_entry
    from .linear_algebra.compiling import compile_dot

    offer_compiled_operation("dot", "cpu", compile_dot)
    offer_decided_calls("dot", "cpu", make_decided_entry)
