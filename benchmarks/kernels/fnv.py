"""Integer hashing: FNV-1a of every row of bytes, in 32 bits that wrap."""

from __future__ import annotations

import numpy as np

from turnout import NDArray, u8, u32

from ..cases import Case, Data
from ..compare import EXACT

WIDTH = 32
OFFSET = np.uint32(2166136261)
PRIME = np.uint32(16777619)

case = Case(
    "fnv",
    "FNV-1a hash of rows of 32 bytes",
    sizes=(100_000,),
    tolerance=EXACT,
    own_tolerance=EXACT,
)


@case.data
def data(size: int, random: np.random.Generator) -> Data:
    rows = random.integers(0, 256, (size, WIDTH), dtype=np.uint8)
    return Data((rows,), (np.empty(size, np.uint32),))


@case.turnout
def fnv(rows: NDArray[u8, 2], out: NDArray[u32, 1]) -> None:
    for i in range(rows.shape[0]):
        value = u32(2166136261)
        for j in range(rows.shape[1]):
            value = (value ^ rows[i, j]) * u32(16777619)
        out[i] = value


@case.numba
def fnv_loops(rows, out):
    for i in range(rows.shape[0]):
        value = OFFSET
        for j in range(rows.shape[1]):
            value = np.uint32((value ^ rows[i, j]) * PRIME)
        out[i] = value


@case.expected
def expected(rows):
    out = np.empty(rows.shape[0], np.uint32)
    fnv_numpy(rows, out)
    return (out,)


@case.version("NumPy")
def fnv_numpy(rows, out):
    out[:] = OFFSET
    for j in range(rows.shape[1]):
        out ^= rows[:, j]
        out *= PRIME
