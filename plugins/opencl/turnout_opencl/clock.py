"""Times by the device's own clock."""

from __future__ import annotations

from collections.abc import Callable

from turnout.plugin import Timer

from .devices import OpenDevice


def timer(opened: OpenDevice) -> Timer:
    """A function that runs a callable once and gives the nanoseconds between two markers."""
    import pyopencl as cl

    def elapsed_ns(work: Callable[[], None]) -> int:
        opened.finish()
        begin = cl.enqueue_marker(opened.queue)
        work()
        if opened.has_other_queues:
            opened.finish()
        end = cl.enqueue_marker(opened.queue)
        end.wait()
        started, ended = begin.profile.end, end.profile.end
        return int(ended - started)

    return elapsed_ns
