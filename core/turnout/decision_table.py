"""The decisions of an operation, where native code finds them."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any

UNLIMITED = 2**62
"""More calls than any process makes."""

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 2**64


class DecisionTable:
    """Functions by geometry, in memory that native code reads.

    A key has a word for the element type of the first array (NumPy's number of it, and
    `OTHER_BYTE_ORDER` where it is not the machine's), then of each array a word (its number of
    axes, `IS_CONTIGUOUS` where it is in C's order; of the first array also `optional_bit` of each
    optional argument that is None) and `MOST_AXES` lengths, 0 beyond its axes.

    The slot of a key is ``sum(word * factor) % 2**64 >> (64 - SLOT_BITS)``. Native code may run the
    function of a slot if that is not 0, the key is the same and `LEFT` is above 0, of which it then
    takes one. It holds the interpreter lock from reading the slot until it has a reference to the
    function.

    Parameters
    ----------
    arrays : int
        How many arrays a key describes.

    Attributes
    ----------
    factors : tuple of int
        One for each word of a key.
    slot_words : int
        Words of 8 bytes in a slot.
    words : ctypes array of c_uint64
        All slots.
    MOST_AXES : int
        Axes of arrays whose decisions are in the table.
    SLOT_BITS : int
        There are two to the power of this many slots.
    FUNCTION, LEFT, KEY : int
        Words of a slot: the address of the function (0: the slot is empty), how many calls it may
        serve, and the first word of the key.
    OTHER_BYTE_ORDER, IS_CONTIGUOUS : int
        Bits of words of a key.
    """

    MOST_AXES = 4
    SLOT_BITS = 8
    FUNCTION, LEFT, KEY = 0, 1, 2
    OTHER_BYTE_ORDER = 1 << 32
    IS_CONTIGUOUS = 1 << 8

    @staticmethod
    def optional_bit(place: int) -> int:
        """The bit of the second word of a key that says that an optional argument is None."""
        return 1 << (16 + place)

    def __init__(self, arrays: int) -> None:
        count = 1 + arrays * (1 + self.MOST_AXES)
        self.factors = tuple(pow(_GOLDEN, n + 1, _WORD) for n in range(count))
        self.slot_words = self.KEY + count
        self.words = (ctypes.c_uint64 * (self.slot_words << self.SLOT_BITS))()
        self._pack = struct.Struct(f"={self.slot_words}Q").pack_into
        self._loans: dict[int, Loan] = {}
        self._lock = threading.RLock()

    def lend(self, key: Sequence[int], function: Callable[..., Any], calls: int) -> Loan:
        """Put a function in its slot, for so many calls; one that was there is taken out.

        The loan that is taken out then says how many calls were left.
        """
        total = sum(word * factor for word, factor in zip(key, self.factors, strict=True))
        slot = total % _WORD >> (64 - self.SLOT_BITS)
        with self._lock:
            before = self._loans.get(slot)
            if before is not None:
                before.end()
            loan = self._loans[slot] = Loan(self, slot, function)
            # All of it in one call, during which no other thread runs.
            self._pack(self.words, 8 * self.slot_words * slot, id(function), calls, *key)
            return loan

    def end(self, loan: Loan) -> int:
        """Empty the slot of a loan; returns how many calls were left."""
        with self._lock:
            if self._loans.get(loan.slot) is loan:
                first = self.slot_words * loan.slot
                self.words[first + self.FUNCTION] = 0  # first: then nothing more is taken
                loan.left_at_end = self.words[first + self.LEFT]
                del self._loans[loan.slot]
            return loan.left_at_end

    def left(self, loan: Loan) -> int:
        """How many calls of a loan are left."""
        with self._lock:
            is_there = self._loans.get(loan.slot) is loan
            word = self.slot_words * loan.slot + self.LEFT
            return self.words[word] if is_there else loan.left_at_end

    def forget_other_threads(self) -> None:
        """After a fork, in the child: who held the lock does not exist here."""
        self._lock = threading.RLock()


class Loan:
    """A function in a table; it lives at least as long as it is there."""

    def __init__(self, table: DecisionTable, slot: int, function: Callable[..., Any]) -> None:
        self._table, self.slot, self._function = table, slot, function
        self.left_at_end = 0

    @property
    def left(self) -> int:
        """How many calls are left."""
        return self._table.left(self)

    def end(self) -> int:
        """Take the function out of the table, if it is still there; returns the calls left."""
        return self._table.end(self)
