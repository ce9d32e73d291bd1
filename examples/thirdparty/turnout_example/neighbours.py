"""An implementation of ``nearest_neighbours``, the operation that ``turnout demo`` races.

That operation compares all pairs of airports. This implementation compares few: it sorts the
airports from south to north, and looks from each one southwards and northwards only as far as
an airport could be nearer than the nearest one so far.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import turnout as tn
from turnout import NDArray, f64, i64

EARTH_RADIUS_KM = 6371.0088


@tn.kernel
def search_from_south_to_north(
    x: NDArray[f64, 1],
    y: NDArray[f64, 1],
    z: NDArray[f64, 1],
    index: NDArray[i64, 1],
    nearest: NDArray[i64, 1],
) -> None:
    """`x`, `y` and `z` are points of the unit sphere, sorted by `z`; `index` says whose."""
    count = z.shape[0]
    for i in tn.parallel(range(count)):  # no index is there twice
        shortest = 5.0  # more than any square of a chord
        closest = count
        for side in range(2):
            step = 2 * side - 1
            j = i + step
            while 0 <= j < count and (z[j] - z[i]) * (z[j] - z[i]) <= shortest:
                dx, dy, dz = x[j] - x[i], y[j] - y[i], z[j] - z[i]
                square = dx * dx + dy * dy + dz * dz
                if square < shortest or (square == shortest and index[j] < closest):
                    shortest = square
                    closest = index[j]
                j += step
        nearest[index[i]] = closest


def from_south_to_north(latitude: Any, longitude: Any, nearest: Any, distance_km: Any) -> None:
    """The operation, with the parameters of its prototype."""
    phi, lam = np.radians(latitude), np.radians(longitude)
    points = np.cos(phi) * np.cos(lam), np.cos(phi) * np.sin(lam), np.sin(phi)
    order = np.argsort(points[2], kind="stable")
    search_from_south_to_north(*(axis[order] for axis in points), order, nearest)
    across = np.sin((lam[nearest] - lam) / 2) ** 2
    along = np.sin((phi[nearest] - phi) / 2) ** 2
    haversines = along + np.cos(phi) * np.cos(phi[nearest]) * across
    distance_km[:] = 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(haversines))


def why_not(latitude: Any, longitude: Any, nearest: Any, distance_km: Any) -> bool | str:
    """Asked before every call: True, or the reason why this implementation cannot run."""
    arrays = (latitude, longitude, nearest, distance_km)
    return all(isinstance(each, np.ndarray) for each in arrays) or "takes NumPy arrays only"


def register(operation: Any) -> None:
    """Called with the operation, at its first call."""
    operation.register(
        from_south_to_north,
        is_compatible=why_not,
        mutates={"nearest": "output", "distance_km": "output"},
    )
