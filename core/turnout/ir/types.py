"""Element types of kernels: the eleven scalar types and how they map to NumPy."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ..records import record

Kind = Literal["f", "i", "u", "b"]


@record
class DType:
    """A scalar element type.

    Usable wherever NumPy takes a dtype (``np.zeros(3, turnout.f32)``), as an annotation
    (``NDArray[f32, 1]``), and as a cast: inside kernels ``f32(x)`` converts, outside it makes a
    NumPy scalar.

    Attributes
    ----------
    name : str
        For example ``"f32"``, ``"u8"`` or ``"bool_"``.
    kind : {"f", "i", "u", "b"}
        Float, signed integer, unsigned integer or bool.
    bits : int
        Width of the value; 8 for ``bool_``, which NumPy stores in one byte.

    Examples
    --------
    >>> import turnout as tn, numpy as np
    >>> np.zeros(2, tn.i16).dtype
    dtype('int16')
    >>> tn.f32(0.5)
    np.float32(0.5)
    """

    name: str
    kind: Kind
    bits: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype; its presence makes NumPy accept this object as a dtype."""
        return np.dtype("?" if self.kind == "b" else f"{self.kind}{self.bits // 8}")

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def is_bool(self) -> bool:
        return self.kind == "b"

    @property
    def minimum(self) -> int:
        """Smallest value of an integer type."""
        return -(1 << (self.bits - 1)) if self.kind == "i" else 0

    @property
    def maximum(self) -> int:
        """Largest value of an integer type."""
        return (1 << (self.bits - (self.kind == "i"))) - 1

    def __call__(self, value: Any) -> Any:
        """Convert a Python or NumPy scalar to a NumPy scalar of this type."""
        return self.dtype.type(value)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"turnout.{self.name}"

    def __reduce__(self) -> str:
        # By name: there is one object per element type, and it is compared by identity.
        return self.name


f32 = DType("f32", "f", 32)
f64 = DType("f64", "f", 64)
i8 = DType("i8", "i", 8)
i16 = DType("i16", "i", 16)
i32 = DType("i32", "i", 32)
i64 = DType("i64", "i", 64)
u8 = DType("u8", "u", 8)
u16 = DType("u16", "u", 16)
u32 = DType("u32", "u", 32)
u64 = DType("u64", "u", 64)
bool_ = DType("bool_", "b", 8)

ALL_DTYPES = (f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, bool_)
_BY_NUMPY = {dtype.dtype: dtype for dtype in ALL_DTYPES}
DTYPE_BY_NAME = {dtype.name: dtype for dtype in ALL_DTYPES}


def from_numpy(dtype: np.dtype[Any]) -> DType | None:
    """The element type of a NumPy dtype, or None where kernels have none (also byte-swapped)."""
    return _BY_NUMPY.get(dtype)


def promote(first: DType, second: DType) -> DType:
    """``np.result_type`` of two strong types."""
    return _BY_NUMPY[np.result_type(first.dtype, second.dtype)]


def can_store(source: DType, target: DType) -> bool:
    """Whether a value of `source` may be stored in `target`: NumPy's ``same_kind`` rule."""
    return np.can_cast(source.dtype, target.dtype, casting="same_kind")
