"""The calls of CUDA that launches are made of, through CuPy; the only module that makes them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np

from turnout.plugin import CompileError

_ACCESS_ERRORS = (700, 716, 717, 718, 719)
"""Illegal address, misaligned address, and what else a kernel can do to memory."""


_NAMES_OF_DEFAULT_STREAM = {0, 1}
_RECORD_WORDS = 5


class Loaded(NamedTuple):
    """A function of code that is on a GPU; the code stays there as long as this object lives."""

    module: Any
    handle: int


class Driver:
    """Driver and runtime of CUDA.

    Attributes
    ----------
    launch_kernel : callable
        ``cuLaunchKernel``, with handles and addresses as ints.
    current_ordinal : callable
        Number of the current GPU of this thread.
    array_type : type
        CuPy's array, whose address is ``array.data.ptr``.
    """

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self._cuda = cupy.cuda
        self.launch_kernel = cupy.cuda.driver.launchKernel
        self.current_ordinal = cupy.cuda.runtime.getDevice
        self.array_type: type = cupy.ndarray

    def load(self, code: bytes, entry: str, ordinal: int) -> Loaded:
        """Load machine code or PTX on a GPU.

        Raises
        ------
        CompileError
            Where the driver refuses the code.
        """
        module = self._cuda.function.Module()
        try:
            with self.device(ordinal):
                module.load(code)
                function = module.get_function(entry)
        except self._cuda.driver.CUDADriverError as error:
            raise CompileError("cuda", f"the driver cannot load {entry!r}: {error}") from error
        return Loaded(function, function.ptr)

    def device(self, ordinal: int) -> AbstractContextManager[Any]:
        """Make a GPU the current one of this thread."""
        device: AbstractContextManager[Any] = self._cuda.Device(ordinal)
        return device

    def multiprocessors(self, ordinal: int) -> int:
        """How many multiprocessors a GPU has."""
        return int(self._cuda.runtime.getDeviceProperties(ordinal)["multiProcessorCount"])

    def current_stream(self) -> int:
        """CuPy's current stream on the current GPU."""
        return int(self._cuda.get_current_stream().ptr)

    def make_context(self, ordinal: int) -> None:
        """Give this thread what the driver needs to launch; threads start without it."""
        self._cuda.runtime.setDevice(ordinal)
        self._cuda.runtime.free(0)

    def is_current_stream(self, stream: int) -> bool:
        """Whether a stream of another library is the current one."""
        current = self.current_stream()
        return stream == current or {stream, current} == _NAMES_OF_DEFAULT_STREAM

    def wait_for(self, stream: int) -> None:
        """Let the current stream go on after what is enqueued on `stream` now."""
        event = self._cuda.Event(disable_timing=True)
        self._cuda.runtime.eventRecord(event.ptr, stream)
        self._cuda.runtime.streamWaitEvent(self.current_stream(), event.ptr)

    def new_record(self) -> Any:
        """Memory of the current GPU for a record of violations."""
        return self._cupy.zeros(_RECORD_WORDS, np.int64)

    def read_record(self, record: Any) -> list[int]:
        """Wait for the current stream, and read a record."""
        words: list[int] = record.get().tolist()
        return words


def explained(error: Exception) -> Exception:
    """An error of CUDA, with a note where there is something to say to users of kernels."""
    if getattr(error, "status", None) in _ACCESS_ERRORS:
        error.add_note(
            "A kernel, this one or one enqueued before, accessed memory outside of its arrays; "
            "kernels compiled with turnout.kernel(debug=True) say where. Until it ends, this "
            "process cannot use the GPU any more."
        )
    return error
