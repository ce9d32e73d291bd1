"""Waiting for a GPU, and timing work on it."""

from __future__ import annotations

from collections.abc import Callable

from .driver import explained

_CAPTURE_FORBIDS = 906
"""``cudaErrorStreamCaptureImplicit``: the default stream while another one captures."""


class EventTimer:
    """Times work between two events on the current stream.

    Parameters
    ----------
    ordinal : int
        Number of the GPU.
    """

    def __init__(self, ordinal: int) -> None:
        self._ordinal = ordinal

    def __call__(self, work: Callable[[], None]) -> int:
        """Run `work` once; returns nanoseconds."""
        from cupy import cuda

        # The device is current only for the events: `work` runs as its caller left things.
        with cuda.Device(self._ordinal):
            start, stop = cuda.Event(), cuda.Event()
            start.record()
        work()
        with cuda.Device(self._ordinal):
            stop.record()
            stop.synchronize()
        elapsed_ms: float = cuda.get_elapsed_time(start, stop)
        return round(elapsed_ms * 1e6)

    def is_capturing(self) -> bool:
        """Whether the current stream records a graph, so that work is not run, and not timed."""
        from cupy import cuda

        try:
            return bool(cuda.get_current_stream(self._ordinal).is_capturing())
        except cuda.runtime.CUDARuntimeError as error:
            if error.status == _CAPTURE_FORBIDS:
                return True
            raise


def make_sync(ordinal: int) -> Callable[[], None]:
    """A function that waits for all work of this process on a GPU."""
    from cupy import cuda

    def sync() -> None:
        with cuda.Device(ordinal):
            try:
                cuda.runtime.deviceSynchronize()
            except cuda.runtime.CUDARuntimeError as error:
                raise explained(error) from None

    return sync
