"""CUDA C++ to machine code with NVRTC; needs neither a driver nor a GPU.

CuPy's own way, ``RawModule``, is not used: it asks the driver for the current device, and it always
flushes subnormal numbers to zero.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from turnout.plugin import CompileError

_HIGHEST_LEVEL = 3


class Image(NamedTuple):
    """What the driver loads, and the PTX it was made from, for people."""

    code: bytes
    ptx: str


def compile_text(text: str, arch: str, *, level: int = 3, fast_math: bool = False) -> Image:
    """Compile one translation unit.

    Parameters
    ----------
    text : str
        CUDA C++ that includes no headers.
    arch : str
        ``"sm_90"`` for machine code, ``"compute_90"`` for PTX.
    level : int
        Optimisation level, 0 to 3.
    fast_math : bool
        Allow contraction, approximate functions, and subnormal numbers to be flushed to zero.

    Raises
    ------
    CompileError
        Where there is no compiler, it does not know `arch`, or it refuses the text.
    """
    nvrtc = _nvrtc()
    options = (
        f"-arch={arch}",
        "-std=c++17",
        "-use_fast_math" if fast_math else "-fmad=false",
        *([f"--ptxas-options=-O{level}"] if level < _HIGHEST_LEVEL else []),
    )
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, options)
        ptx = nvrtc.getPTX(program)
        # CuPy takes the size of the code for that of a string, and drops the last byte.
        code = nvrtc.getCUBIN(program) + b"\0" if arch.startswith("sm_") else ptx
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program).strip() or str(error)
        raise CompileError("cuda", f"{log} (NVRTC for {arch})", text) from error
    finally:
        nvrtc.destroyProgram(program)
    return Image(code, ptx.rstrip(b"\0").decode())


@functools.cache
def _nvrtc() -> Any:
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
