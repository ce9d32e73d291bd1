"""CUDA C++ to machine code with NVRTC; needs neither a driver nor a GPU.

CuPy's own way, ``RawModule``, is not used: it asks the driver for the current device, and it always
flushes subnormal numbers to zero.
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

from turnout.plugin import CompileError

_HIGHEST_LEVEL = 3

_ARCH = re.compile(r"(?:sm|compute)_(\d+)[af]?")

_REGISTERS = re.compile(r"Used (\d+) registers")
_MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


class Resources(NamedTuple):
    """What one thread takes, according to the assembler.

    Attributes
    ----------
    registers : int
    stack_bytes : int
        Local arrays, spilled registers and calls.
    spill_bytes : int
        Registers stored to memory for want of more.
    """

    registers: int
    stack_bytes: int
    spill_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.registers} registers, {self.stack_bytes} bytes of stack, "
            f"{self.spill_bytes} bytes of spilled registers"
        )


class Image(NamedTuple):
    """What the driver loads; the PTX it was made from, and what it takes, for people.

    There are no resources where PTX is loaded, because the driver assembles it.
    """

    code: bytes
    ptx: str
    resources: Resources | None


def compile_text(text: str, arch: str, *, level: int = 3, fast_math: bool = False) -> Image:
    """Compile one translation unit.

    Parameters
    ----------
    text : str
        CUDA C++ that includes no headers.
    arch : str
        ``"sm_90"`` for machine code, ``"compute_90"`` for PTX. Empty for what most GPUs can use:
        the PTX of the oldest one that the compiler knows, which drivers translate.
    level : int
        Optimisation level, 0 to 3.
    fast_math : bool
        Allow contraction, approximate functions, and subnormal numbers to be flushed to zero.

    Raises
    ------
    CompileError
        Where there is no compiler, it does not know `arch`, or it refuses the text.
    """
    nvrtc = load_nvrtc()
    if not arch:
        arch = f"compute_{min(nvrtc.getSupportedArchs())}"
    if not _ARCH.fullmatch(arch):
        known = ", ".join(f"sm_{each}" for each in nvrtc.getSupportedArchs())
        raise CompileError(
            "cuda",
            f"{arch!r} is no architecture; there are {known}, and for PTX the same with compute_",
        )
    options = (
        f"-arch={arch}",
        "-std=c++17",
        "-use_fast_math" if fast_math else "-fmad=false",
        "--ptxas-options=-v",
        *([f"--ptxas-options=-O{level}"] if level < _HIGHEST_LEVEL else []),
    )
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, options)
        ptx = nvrtc.getPTX(program)
        # CuPy takes the size of the code for that of a string, and drops the last byte.
        code = nvrtc.getCUBIN(program) + b"\0" if arch.startswith("sm_") else ptx
        resources = _resources(nvrtc.getProgramLog(program))
    except nvrtc.NVRTCError as error:
        raise CompileError("cuda", _complaint(nvrtc, program, arch), text) from error
    finally:
        nvrtc.destroyProgram(program)
    return Image(code, ptx.rstrip(b"\0").decode(), resources)


def _complaint(nvrtc: Any, program: int, arch: str) -> str:
    supported = nvrtc.getSupportedArchs()
    number = _ARCH.fullmatch(arch)
    if number and int(number[1]) in supported:
        log: str = nvrtc.getProgramLog(program)
        return f"NVRTC for {arch}: {log.strip()}"
    version = ".".join(map(str, nvrtc.getVersion()))
    fix = "; turnout[cuda12] has one for older GPUs" if version > "13" else ""
    known = ", ".join(f"sm_{each}" for each in supported)
    return f"NVRTC {version} has no code for {arch}, only for {known}{fix}"


def _resources(log: str) -> Resources | None:
    registers, memory = _REGISTERS.search(log), _MEMORY.search(log)
    if registers is None or memory is None:
        return None
    return Resources(int(registers[1]), int(memory[1]), int(memory[2]))


@functools.cache
def load_nvrtc() -> Any:
    """CuPy's module for NVRTC.

    Raises
    ------
    CompileError
        Where the library or CuPy is missing.
    """
    try:
        from cupy.cuda import nvrtc

        nvrtc.getVersion()
    except Exception as error:  # each way of not finding a library has an error of its own
        raise CompileError(
            "cuda",
            f"NVRTC cannot be loaded through CuPy ({error}); `turnout doctor` shows what is "
            "missing and how to get it",
        ) from error
    return nvrtc
