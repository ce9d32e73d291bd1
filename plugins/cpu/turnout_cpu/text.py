"""LLVM IR as text: the spelling of types and literals, and builders of modules and functions."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass

from turnout.plugin import ir

FAST_MATH_FLAGS = "reassoc nsz arcp contract afn "
"""What the author of a fast-math kernel allowed; NaN and infinities keep their meaning."""


def type_of(dtype: ir.DType) -> str:
    """LLVM type of a value: a bool is one bit."""
    if dtype.is_float:
        return "float" if dtype.bits == 32 else "double"
    return "i1" if dtype.is_bool else f"i{dtype.bits}"


def storage_type_of(dtype: ir.DType) -> str:
    """LLVM type of an element in memory: a bool is one byte, as in NumPy."""
    return "i8" if dtype.is_bool else type_of(dtype)


def literal(dtype: ir.DType, value: int | float | bool) -> str:
    """A constant; floats by their bits, which is the only exact spelling LLVM has."""
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.is_integer:
        return str(value)
    rounded = ctypes.c_float(value).value if dtype.bits == 32 else float(value)
    return f"0x{struct.unpack('=Q', struct.pack('=d', rounded))[0]:016X}"


@dataclass(frozen=True)
class ValueType:
    """The LLVM type of a value: one element, or one element in each of several lanes."""

    dtype: ir.DType
    lanes: int = 1

    def __str__(self) -> str:
        element = type_of(self.dtype)
        return element if self.lanes == 1 else f"<{self.lanes} x {element}>"

    @property
    def suffix(self) -> str:
        """How names of intrinsics spell the type."""
        element = f"f{self.dtype.bits}" if self.dtype.is_float else type_of(self.dtype)
        return element if self.lanes == 1 else f"v{self.lanes}{element}"

    def like(self, dtype: ir.DType) -> ValueType:
        """The type of another element, in as many lanes."""
        return ValueType(dtype, self.lanes)

    def literal(self, value: int | float | bool) -> str:
        """A constant, the same in every lane."""
        element = literal(self.dtype, value)
        return element if self.lanes == 1 else f"splat ({type_of(self.dtype)} {element})"


class ModuleText:
    """Definitions, declarations and metadata of one module, each once, in order of first use."""

    def __init__(self) -> None:
        self._globals: dict[str, str] = {}
        self._metadata: list[str] = []
        self._kept: dict[str, None] = {}

    def define(self, name: str, text: str) -> None:
        """Add the text of a global unless `name` is there."""
        self._globals.setdefault(name, text)

    def keep(self, name: str) -> None:
        """Keep a function and its signature, whatever LLVM sees of its use."""
        self._kept[name] = None

    def metadata(self, content: str) -> str:
        """Add a metadata node and return its reference; ``{self}`` stands for the node itself."""
        reference = f"!{len(self._metadata)}"
        self._metadata.append(f"{reference} = {content.replace('{self}', reference)}")
        return reference

    def __str__(self) -> str:
        parts = list(self._globals.values())
        if self._kept:
            kept = ", ".join(f"ptr @{name}" for name in self._kept)
            parts.append(
                f"@llvm.compiler.used = appending global [{len(self._kept)} x ptr] [{kept}], "
                'section "llvm.metadata"'
            )
        return "\n".join(parts + self._metadata) + "\n"


class FunctionText:
    """Basic blocks of one function, written from top to bottom.

    Attributes
    ----------
    module : ModuleText
        Where the function's helpers go.
    block : str
        Label of the block that is being written; phi nodes name it.
    lines : list of str
        The instructions so far.
    flags : str
        Fast-math flags of floating point instructions, with a trailing space, or empty.
    """

    def __init__(self, module: ModuleText, flags: str = "") -> None:
        self.module = module
        self.flags = flags
        self.block = "entry"
        self.lines: list[str] = []
        self._values = 0
        self._labels = 0

    def value(self, instruction: str) -> str:
        """Write an instruction that gives a value; return the value's name."""
        name = self.new_value()
        self.lines.append(f"  {name} = {instruction}")
        return name

    def new_value(self) -> str:
        """Reserve the name of a value."""
        self._values += 1
        return f"%t{self._values}"

    def write(self, instruction: str) -> None:
        """Write an instruction that gives no value."""
        self.lines.append(f"  {instruction}")

    def new_labels(self, *names: str) -> list[str]:
        """Reserve labels that share a number."""
        self._labels += 1
        return [f"{name}.{self._labels}" for name in names]

    def start(self, label: str) -> None:
        """Begin the block `label`; the previous one must have ended with a jump."""
        self.lines.append(f"{label}:")
        self.block = label

    def jump(self, label: str) -> None:
        """End the block by going to `label`."""
        self.write(f"br label %{label}")

    def branch(self, condition: str, if_true: str, if_false: str) -> None:
        """End the block by going one of two ways."""
        self.write(f"br i1 {condition}, label %{if_true}, label %{if_false}")
