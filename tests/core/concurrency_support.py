"""What tests of threads and forks share."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable

import pytest

WAIT_S = 60
"""How long a test waits for what should happen at once."""


def in_fork(work: Callable[[], object]) -> None:
    """Run `work` in a forked child; it fails unless the child ends well and soon."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join(WAIT_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        pytest.fail("the forked child hangs")
    assert process.exitcode == 0


def in_threads(count: int, work: Callable[[], object]) -> None:
    """Run `work` in threads that start at once, and raise what one of them raised."""
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            barrier.wait(WAIT_S)
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
