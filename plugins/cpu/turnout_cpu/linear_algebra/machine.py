"""What the generated code is made for: vector registers, fused arithmetic, and caches."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from dataclasses import dataclass

from .. import compiler

_DEFAULT_L2_BYTES = 512 * 1024
_CACHES = "/sys/devices/system/cpu/cpu0/cache"


@dataclass(frozen=True)
class Machine:
    """A processor as the generators see it.

    Attributes
    ----------
    cpu, features : str
        In LLVM's words.
    vector_bytes : int
        Width of a vector register.
    registers : int
        How many vector registers there are.
    is_fused : bool
        Whether it multiplies and adds in one instruction with one rounding.
    """

    cpu: str
    features: str
    vector_bytes: int
    registers: int
    is_fused: bool


def machine_of(cpu: str, features: str, present: frozenset[str], architecture: str) -> Machine:
    """Describe a processor by the names of the features that it has."""
    if architecture in ("x86_64", "amd64"):
        is_fused = "fma" in present
        if "avx512f" in present:
            return Machine(cpu, features, 64, 32, is_fused)
        return Machine(cpu, features, 32 if "avx" in present else 16, 16, is_fused)
    if architecture in ("aarch64", "arm64"):
        return Machine(cpu, features, 16, 32, is_fused=True)
    # Sixteen bytes are the least that vector units have; LLVM splits them where there are none.
    return Machine(cpu, features, 16, 16, is_fused=False)


@functools.cache
def host() -> Machine:
    """The processor of this process."""
    found = compiler.host()
    architecture = platform.machine().lower()
    return machine_of(found.cpu, ",".join(found.features), found.present, architecture)


@functools.cache
def second_level_cache_bytes() -> int:
    """Size of the cache that one core has to itself behind its first one, or a usual one."""
    # Only Linux tells without asking another program. No result depends on it.
    with contextlib.suppress(OSError, ValueError):
        for entry in sorted(os.listdir(_CACHES)):
            folder = os.path.join(_CACHES, entry)
            if entry.startswith("index") and _content(folder, "level") == "2":
                return int(_content(folder, "size").removesuffix("K")) * 1024
    return _DEFAULT_L2_BYTES


def _content(folder: str, name: str) -> str:
    with open(os.path.join(folder, name), encoding="ascii") as file:
        return file.read().strip()
