"""An implementation of ``saxpy(a, x, y, out)``, an operation that some other program defines."""

from __future__ import annotations

from typing import Any

import numpy as np


def register_saxpy(operation: Any) -> None:
    """Called with the operation, before its first call."""

    # The parameters are those of the operation; is_compatible gets the same arguments.
    @operation.register(
        is_compatible=lambda a, x, y, out: not np.may_share_memory(y, out),
        mutates={"out": "output"},
    )
    def saxpy_in_two_passes(a: Any, x: Any, y: Any, out: Any) -> None:
        np.multiply(a, x, out=out)
        np.add(out, y, out=out)
