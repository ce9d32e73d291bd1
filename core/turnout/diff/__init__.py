"""Reverse-mode derivatives of per-sample units: a unit in, the unit of its derivative out.

`reverse_unit` computes a unit again and then goes through its statements backwards (`sweep`). What
a statement contributes to the derivatives of its operands is one row of `partials` for arithmetic
and functions; branches become branches, and dispatches dispatches, whose arms compute their primal
again (`sweep`); loops run backwards over values that were kept on the way (`rewind`).
"""

from .reverse import Request, reverse_unit

__all__ = ["Request", "reverse_unit"]
