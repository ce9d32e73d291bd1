"""Units as text in languages of the C family, for backends whose compilers take such text.

`render` writes one unit, with all dispatches lowered, in a `Dialect`: `C99`, `OPENCL_C`,
`CUDA_CPP`, or one that a backend derives from these with `dataclasses.replace`. What the text
computes is what `turnout.ir` says, bit for bit, as long as its compiler keeps to IEEE arithmetic:
contraction must be off (a pragma where the language has one, else an option such as
``-ffp-contract=off``).

How the code is called
----------------------
All arguments travel in *slots* of 8 bytes, in the order of the unit's parameters:

* of an array: the address of its first element, its lengths, and its strides in bytes;
* of a scalar: its value, in the low bytes;
* with ``debug=True`` one more slot at the end: the address of the record of violations.

`packer` makes a function from the arguments of a launch to these bytes. What takes them:

``C99``
    ``i64 entry(const u64 *slots, i64 begin, i64 end)`` runs the positions from `begin` to `end` in
    order. Both are clamped, so ``0, size`` is all of them. The result is 1 after a violation, else
    0.
``CUDA_CPP``
    ``extern "C" __global__ void entry(const words_t words)`` takes the slots as one structure by
    value. A grid-stride loop over axis x takes any grid.
``OPENCL_C``
    ``__kernel void entry(__global u8 *array0, ..., [__global i64 *record,] const words_t words)``
    takes the buffer of every array (and the record of violations) as an argument of its own, then
    the slots as one structure by value, in which the address of an array is its offset in the
    buffer, in bytes. There is one work-item per position; more are idle.

Positions are counted in row-major order; there are as many as a launcher is told (``size``), and
the code computes that number again from the arguments. A unit without an iteration space has one.

The record of violations is five ``i64``. The first must be 0 before the launch; afterwards it is
not 0 if an index was out of bounds, and the others are the arguments of `IndexViolation`.

The function ``entry`` takes any strides. Where `Rendered.dense_entry` is not empty there is a
second one for launches in which neighbours on the last axis of every array are neighbours in memory
(`has_dense_rows`). `Rendered.needs` says which capabilities of a device the text takes for granted.
"""

from __future__ import annotations

from ..slots import packer
from .dialects import C99, CUDA_CPP, OPENCL_C, Dialect
from .renderer import Rendered, entry_name, has_dense_rows, local_bytes, render

__all__ = [
    "C99",
    "CUDA_CPP",
    "OPENCL_C",
    "Dialect",
    "Rendered",
    "entry_name",
    "has_dense_rows",
    "local_bytes",
    "packer",
    "render",
]
