"""The documented order of reductions, written out once more: what kernels are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_LANES, _BLOCK, _GROUPS = 32, 2048, 1024


def combined(terms: Array, operation: np.ufunc, identity: Any) -> Any:
    """All terms combined in the order in which loops do it.

    Parameters
    ----------
    terms : numpy.ndarray
        What the iterations add, or do alike: one axis per loop of a nest.
    operation : numpy.ufunc
        Combines two values.
    identity : object
        Changes no bit of what it is combined with, for example -0.0 for sums of floats.

    Returns
    -------
    numpy scalar
        Still to be combined, as second operand, with the value from before the loop.
    """
    rows = terms.reshape(-1, terms.shape[-1]) if terms.size else terms[:0].reshape(0, 1)
    cuts = [row[start : start + _BLOCK] for row in rows for start in range(0, len(row), _BLOCK)]
    share = _BLOCK // min(max(rows.shape[1], 1), _BLOCK)
    groups = np.full((_GROUPS, _LANES), identity, terms.dtype)
    for block, first in enumerate(range(0, len(cuts), share)):
        lanes = np.full(_LANES, identity, terms.dtype)
        for cut in cuts[first : first + share]:
            padded = np.full(-(-len(cut) // _LANES) * _LANES, identity, terms.dtype)
            padded[: len(cut)] = cut
            for values in padded.reshape(-1, _LANES):
                lanes = operation(lanes, values)
        group = block % _GROUPS
        groups[group] = operation(groups[group], lanes)
    chunks = [
        _in_order(groups[first : first + _LANES], operation) for first in range(0, _GROUPS, _LANES)
    ]
    return _in_order(_in_order(chunks, operation), operation)


def _in_order(values: Iterable[Any], operation: np.ufunc) -> Any:
    first, *others = values
    for value in others:
        first = operation(first, value)
    return first
