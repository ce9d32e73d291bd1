"""Derivatives with respect to values, on the way back through a unit.

A derivative comes with the condition under which it matters at all. A value that is computed for
every sample but used in one branch only has the derivative 0 for the samples of other branches.
What would be multiplied with that 0 may be infinite or NaN there, so that the product is not
trusted to be 0 but replaced.
"""

from __future__ import annotations

from .. import ir
from ..records import record


@record
class Bar:
    """The derivative of the result with respect to one value.

    Attributes
    ----------
    value : Value
        Of the type of that value; 0 where `live` does not hold.
    live : Value or None
        Whether it matters, a bool; None where it always does.
    """

    value: ir.Value
    live: ir.Value | None = None


Bars = dict[ir.Value, Bar]
"""Derivatives by value of the original unit."""
