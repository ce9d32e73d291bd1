"""Which GPUs there are, or exactly what is missing to use them and how to get it."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from turnout.plugin import Device, Target, Unavailable

_OUTDATED_DRIVER, _NO_DEVICE = 35, 100
"""Error codes of the CUDA runtime."""

_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
_FEATURES = frozenset({"f64", "correct_rounding", "bounds"})
_WARP = 32

_EXTRAS = {
    12: "python -m pip install 'turnout[cuda12]'",
    13: "python -m pip install 'turnout[cuda13]'",
}
_COMPILERS = {
    12: "python -m pip install nvidia-cuda-nvrtc-cu12",
    13: "python -m pip install 'nvidia-cuda-nvrtc==13.*'",
}
_INSTALL_DRIVER = (
    "on a machine with an NVIDIA GPU, install NVIDIA's driver (https://www.nvidia.com/drivers); in "
    "a container, start it with access to the GPU, for example with `docker run --gpus all`"
)


class Missing(NamedTuple):
    """One thing that is missing, and how to get it."""

    reason: str
    fix: str


def find_devices() -> list[Device]:
    """All GPUs that CUDA shows to this process.

    Raises
    ------
    Unavailable
        Where there is none, or something is missing to use it; everything missing is listed.
    """
    driver = driver_version()
    missing = (
        [] if driver else [Missing(f"no NVIDIA driver ({_LIBRARY}) is found", _INSTALL_DRIVER)]
    )
    if importlib.util.find_spec("cupy") is None:
        # Which line of CUDA to install depends on the driver.
        line = 13 if not driver or driver >= 13_000 else 12
        missing.append(Missing("CuPy, through which CUDA is used, is not installed", _EXTRAS[line]))
        raise _unavailable(missing)
    try:
        from cupy.cuda import nvrtc, runtime
    except ImportError as error:
        missing.append(Missing(f"CuPy cannot be imported ({error})", _EXTRAS[13]))
        raise _unavailable(missing) from error
    if runtime.is_hip:
        raise Unavailable("this CuPy is made for AMD's ROCm, not for CUDA", _EXTRAS[13])
    line = runtime.runtimeGetVersion() // 1000
    try:
        version = nvrtc.getVersion()
    except Exception as error:  # each way of not finding the library has an error of its own
        reason = f"NVRTC, the compiler of CUDA {line}, cannot be loaded ({_first_line(error)})"
        missing.append(Missing(reason, _COMPILERS.get(line, _COMPILERS[13])))
    if not driver:
        raise _unavailable(missing)
    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        missing.append(_unusable(error, driver, line))
        raise _unavailable(missing) from error
    if missing:
        raise _unavailable(missing)
    supported = nvrtc.getSupportedArchs()
    properties = [runtime.getDeviceProperties(index) for index in range(count)]
    if all(_capability(each) < min(supported) for each in properties):
        raise Unavailable(
            f"NVRTC {version[0]}.{version[1]} compiles for sm_{min(supported)} and newer; here "
            f"are {', '.join(_described(each) for each in properties)}",
            _EXTRAS[12],
        )
    options = (f"nvrtc {version[0]}.{version[1]}",)
    return [_device(index, each, supported, options) for index, each in enumerate(properties)]


def driver_version() -> int:
    """The newest CUDA of the installed driver, 13000 for 13.0; 0 where there is no driver."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return 0
    version = ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    return version.value


def target_arch(capability: int, supported: Sequence[int]) -> str:
    """What to compile for: machine code, else the PTX of an older GPU, which drivers translate.

    Parameters
    ----------
    capability : int
        Compute capability of the GPU, 90 for 9.0.
    supported : sequence of int
        For which ones the compiler has machine code.
    """
    older = [each for each in supported if each < capability]
    if capability in supported or not older:
        return f"sm_{capability}"
    return f"compute_{max(older)}"


def _unusable(error: Any, driver: int, line: int) -> Missing:
    """What an error of the first call into the driver means."""
    if error.status == _OUTDATED_DRIVER:
        known = f"{driver // 1000}.{driver % 1000 // 10}"
        fix = "update NVIDIA's driver (https://www.nvidia.com/drivers)"
        if line > 12 <= driver // 1000:
            fix += f", or use CUDA 12: {_EXTRAS[12]} in an environment without cupy-cuda{line}x"
        return Missing(f"NVIDIA's driver is for CUDA {known}, this CuPy for CUDA {line}", fix)
    if error.status == _NO_DEVICE:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            reason = f"no GPU is visible with CUDA_VISIBLE_DEVICES={visible!r}"
            return Missing(
                reason, "unset CUDA_VISIBLE_DEVICES, or name GPUs that `nvidia-smi` shows"
            )
        return Missing(
            "NVIDIA's driver is there, but no GPU",
            "run where `nvidia-smi` lists a GPU; a container must be given one",
        )
    return Missing(f"NVIDIA's driver cannot be used ({error})", "see whether `nvidia-smi` works")


def _unavailable(missing: Sequence[Missing]) -> Unavailable:
    fixes = [each.fix for each in missing]
    if len(fixes) > 1:
        fixes = [f"({number}) {fix}" for number, fix in enumerate(fixes, 1)]
    return Unavailable("; ".join(each.reason for each in missing), "; ".join(fixes))


def _device(
    index: int, properties: dict[str, Any], supported: Sequence[int], options: tuple[str, ...]
) -> Device:
    arch = target_arch(_capability(properties), supported)
    target = Target("cuda", arch, _FEATURES, options, lanes=_WARP)
    return Device(index, _described(properties), target, int(properties["totalGlobalMem"]))


def _described(properties: dict[str, Any]) -> str:
    return f"{properties['name'].decode()} (sm_{_capability(properties)})"


def _capability(properties: dict[str, Any]) -> int:
    return int(properties["major"] * 10 + properties["minor"])


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
