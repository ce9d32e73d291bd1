"""Which OpenCL devices are there, and what turnout opened on each of them."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from turnout.plugin import Device, Target, Unavailable

_POCL = "The pocl project"
_FIX = (
    "install the OpenCL driver of your device, or PoCL, which runs on any processor: "
    'python -m pip install "turnout-opencl[pocl]"'
)

_INSTALL_PYOPENCL = "python -m pip install --upgrade pyopencl"

_FIX_OLD = (
    "this PoCL is older than the processor: install the one of your distribution "
    "(pocl-opencl-icd), or another OpenCL driver"
)


class OpenDevice:
    """One device with the context and the in-order queue that turnout uses on it.

    Attributes
    ----------
    device : pyopencl.Device
    target : Target
    context : pyopencl.Context
    queue : pyopencl.CommandQueue
        In order, with profiling.
    """

    def __init__(self, device: Any, target: Target) -> None:
        import pyopencl as cl

        self.device, self.target = device, target
        self.context = cl.Context([device])
        profiling = cl.command_queue_properties.PROFILING_ENABLE
        self.queue = cl.CommandQueue(self.context, device, properties=profiling)
        self._other_queues: list[Any] = []
        self._process = os.getpid()

    @property
    def is_lost(self) -> bool:
        """Whether this process was forked from the one that opened the device.

        Drivers do not work there, and PoCL hangs.
        """
        return self._process != os.getpid()

    def note_queue(self, queue: Any) -> None:
        """Remember a queue of the user's own, for the next time somebody waits."""
        if queue not in self._other_queues:
            self._other_queues.append(queue)

    @property
    def has_other_queues(self) -> bool:
        """Whether launches went into other queues since the last wait."""
        return bool(self._other_queues)

    def finish(self) -> None:
        """Wait for all launches."""
        others, self._other_queues = self._other_queues, []
        self.queue.finish()
        for queue in others:
            queue.finish()

    def is_home_of(self, context: Any) -> bool:
        """Whether arrays of a context are on this device and no other."""
        if context is self.context:
            return True
        return context is not None and context.devices == [self.device]


_opened: dict[int, OpenDevice] = {}


def opened(device: Device) -> OpenDevice:
    """What turnout opened on a device; made once."""
    if device.index not in _opened:
        cl_device, target = _listed()[device.index]
        _opened[device.index] = OpenDevice(cl_device, target)
    found = _opened[device.index]
    if found.is_lost:
        raise Unavailable(
            f"OpenCL was in use when this process was forked, and {device} does not work here",
            "start processes with multiprocessing.get_context('spawn')",
        )
    return found


def opened_for(target: Target) -> OpenDevice | None:
    """An open device that code for a target runs on, if this process has one."""
    matching = (each for each in _opened.values() if each.target == target and not each.is_lost)
    return next(matching, None)


def opened_home_of(context: Any) -> OpenDevice | None:
    """The open device that arrays of a context are on."""
    return next((each for each in _opened.values() if each.is_home_of(context)), None)


def found() -> list[Device]:
    """The devices for turnout.

    Raises
    ------
    Unavailable
        If there is none; the reason says what is missing.
    """
    return [
        Device(
            index=index,
            label=f"{_clean(device.name)} ({_clean(device.platform.version)})",
            target=target,
            memory_bytes=device.global_mem_size,
        )
        for index, (device, target) in enumerate(_listed())
    ]


@functools.cache
def _listed() -> list[tuple[Any, Target]]:
    platforms = _platforms()
    devices: list[Any] = []
    problems: list[str] = []
    for platform in platforms:
        devices += _devices_of(platform, problems)
    if not devices:
        is_old = any("unknown target CPU" in problem for problem in problems)
        raise Unavailable(
            f"no OpenCL device can be used here: {'; '.join(problems)}",
            _FIX_OLD if is_old else _FIX,
        )
    cl = _pyopencl()
    # Accelerators come first; a device on the processor is the last resort.
    devices.sort(key=lambda device: bool(device.type & cl.device_type.CPU))
    return [(device, _target(device)) for device in devices]


def _pyopencl() -> Any:
    if importlib.util.find_spec("pyopencl") is None:
        raise Unavailable(
            "pyopencl, through which OpenCL is used, is not installed", _INSTALL_PYOPENCL
        )
    try:
        import pyopencl
        import pyopencl.array
    except (ImportError, OSError) as error:
        raise Unavailable(f"pyopencl cannot be imported ({error})", _INSTALL_PYOPENCL) from error
    return pyopencl


def _platforms() -> list[Any]:
    _place_cache_of_pocl()
    cl = _pyopencl()
    try:
        platforms: list[Any] = cl.get_platforms()
    except cl.Error as error:
        # A loader without a driver reports an error, not an empty list.
        raise Unavailable(f"no OpenCL platform was found ({error}){_searched()}", _FIX) from None
    if not platforms:
        raise Unavailable(f"no OpenCL platform was found{_searched()}", _FIX)
    return platforms


def _searched() -> str:
    """Say where the loader was told to look; a vendor file may name a library that is missing."""
    places = []
    for name in ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"):
        if os.environ.get(name):
            places.append(f"{name}={os.environ[name]!r} {_listing(os.environ[name])}")
    return f"; {'; '.join(places)}" if places else ""


def _listing(folder: str) -> str:
    path = Path(folder)
    if not path.is_dir():
        return "is no folder"
    files = sorted(path.glob("*.icd"))
    named = [f"{file.name} names {_library(file)}" for file in files]
    return f"({', '.join(named)})" if named else "holds no .icd file"


def _library(file: Path) -> str:
    try:
        return repr(file.read_text(encoding="utf-8", errors="replace").strip())
    except OSError as error:
        return f"nothing ({error})"


def _devices_of(platform: Any, problems: list[str]) -> Iterator[Any]:
    cl = _pyopencl()
    name = f"platform {_clean(platform.name)} {_clean(platform.version)}"
    try:
        devices = platform.get_devices()
    except cl.Error as error:
        problems.append(f"{name} has no device ({error})")
        return
    if not devices:
        problems.append(f"{name} has no device")
    for device in devices:
        problem = _problem(device) if platform.vendor == _POCL else ""
        if problem:
            problems.append(f"{name} cannot build for {_clean(device.name)}: {problem}")
        else:
            yield device


def _problem(device: Any) -> str:
    """Why a device of PoCL cannot build anything.

    PoCL brings its own LLVM, which may be older than the processor and not know its name.
    """
    from . import compiler

    cl = _pyopencl()
    try:
        compiler.build(cl.Context([device]), device, "__kernel void probe(void) {}\n", "")
    except compiler.BuildError as error:
        return " ".join(error.log.split())
    return ""


def rounds_correctly(device: Any) -> bool:
    """Whether float32 division and sqrt can be correctly rounded."""
    config = _pyopencl().device_fp_config
    return bool(device.single_fp_config & config.CORRECTLY_ROUNDED_DIVIDE_SQRT)


def _target(device: Any) -> Target:
    features = {"bounds"}
    options = [f"{_clean(device.platform.version)}", f"driver {_clean(device.driver_version)}"]
    if device.double_fp_config:
        features.add("f64")
    if rounds_correctly(device):
        features.add("correct_rounding")
    if "cl_khr_int64_base_atomics" in device.extensions.split():
        options.append("atomics_64")
    if device.platform.vendor == _POCL:
        options.append("caches")
    return Target(
        backend="opencl",
        arch=_clean(device.name),
        features=frozenset(features),
        options=tuple(options),
        lanes=max(1, device.preferred_vector_width_float),
    )


def _clean(text: str) -> str:
    return " ".join(text.split())


def _place_cache_of_pocl() -> None:
    """Let PoCL keep what it compiles beside turnout's own cache, or nowhere if that is off.

    Its default place is shared with other programs, whose writing can make a build fail.
    """
    if os.environ.get("POCL_CACHE_DIR"):
        return
    if os.environ.get("TURNOUT_CACHE", "").lower() in ("off", "0"):
        folder = tempfile.mkdtemp(prefix="turnout-pocl-")
        atexit.register(_remove, folder, os.getpid())
        os.environ["POCL_KERNEL_CACHE"] = "0"
    else:
        folder = str(_cache_folder())
    os.environ["POCL_CACHE_DIR"] = folder


def _cache_folder() -> Path:
    import platformdirs

    given = os.environ.get("TURNOUT_CACHE_DIR", "")
    try:
        base = Path(os.path.expanduser(given)) if given else platformdirs.user_cache_path("turnout")
        folder = base.absolute() / "pocl"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):
        pass  # no home, or a read-only one
    folder = Path(tempfile.mkdtemp(prefix="turnout-pocl-"))
    atexit.register(_remove, str(folder), os.getpid())
    return folder


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not in children that were forked
        shutil.rmtree(folder, ignore_errors=True)
