"""Gather: linear interpolation in a table, at places known only at run time."""

from __future__ import annotations

import numpy as np

from turnout import NDArray, f64

from ..cases import Case, Data
from ..compare import EXACT, Tolerance

TABLE = 4096

case = Case(
    "lookup",
    "linear interpolation in a table of 4,096 values",
    sizes=(1_000_000,),
    tolerance=Tolerance(relative=1e-12, absolute=1e-12),
    own_tolerance=EXACT,
)


@case.data
def data(size: int, random: np.random.Generator) -> Data:
    table = np.cumsum(random.normal(size=TABLE))
    places = random.uniform(0, TABLE - 1, size)
    return Data((places, table), (np.empty(size),))


@case.turnout
def lookup(places: NDArray[f64, 1], table: NDArray[f64, 1], out: NDArray[f64, 1]) -> None:
    for i in range(places.shape[0]):
        k = int(places[i])
        fraction = places[i] - k
        out[i] = table[k] + fraction * (table[k + 1] - table[k])


@case.numba
def lookup_loops(places, table, out):
    for i in range(places.shape[0]):
        k = int(places[i])
        fraction = places[i] - k
        out[i] = table[k] + fraction * (table[k + 1] - table[k])


@case.expected
def expected(places, table):
    out = np.empty_like(places)
    lookup_numpy(places, table, out)
    return (out,)


@case.version("NumPy")
def lookup_numpy(places, table, out):
    k = places.astype(np.int64)
    fraction = places - k
    low = table[k]
    out[:] = low + fraction * (table[k + 1] - low)
