"""Generated text to a loaded function: from the disk cache, else compiled and kept there."""

from __future__ import annotations

import functools
import platform
import sys

from turnout.plugin import Binary, binary_key, default_cache

from .. import compiler
from .machine import Machine

_KIND = "llvm-object"
_LEVEL = 3


class Code:
    """A loaded function.

    Attributes
    ----------
    address : int
        Where it is; it stays there as long as this object lives.
    memory_bytes : int
        What its object code takes.
    """

    def __init__(self, text: str, name: str, machine: Machine) -> None:
        key = binary_key("linear algebra", text, str(machine), *_surroundings())
        binary = default_cache().load(key)
        if binary is None:
            binary = _compiled(text, name, machine)
            default_cache().store(key, binary)
        symbols = filter(None, str(binary.metadata["symbols"]).split(","))
        self._loaded = compiler.Loaded(binary.payload, name, symbols)
        self.address = self._loaded.address
        self.memory_bytes = len(binary.payload)


def _surroundings() -> tuple[str, ...]:
    """What decides the code beside the text and the processor."""
    versions = ",".join(compiler.host().versions)
    return (sys.platform, platform.machine(), versions, f"level={_LEVEL}")


def _compiled(text: str, name: str, machine: Machine) -> Binary:
    # The generators leave nothing to optimise, and optimising takes four times as long as the rest.
    made = compiler.compile_text(text, machine.cpu, machine.features, _LEVEL, is_final=True)
    return Binary(name, _KIND, made.code, {"symbols": ",".join(made.symbols)})


@functools.lru_cache(maxsize=64)
def entry_code(text: str, name: str) -> Code:
    """The code of a builtin, which callables of one kind share."""
    return Code(text, name, Machine("", "", 0, 0, is_fused=False))
