"""What tests of threads and forks share."""

from __future__ import annotations

import multiprocessing
import signal
import subprocess
import threading
from collections.abc import Callable
from typing import IO, Self

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


class Reporter:
    """A process that works as soon as it is told to and counts aloud; killed after the block.

    It prints ``ready``, waits for a line, and prints 0, 1, 2... after each round of its work.
    """

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self.process = process
        self._seen = 0
        assert self._output.readline() == "ready\n", process.communicate()

    @property
    def _output(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate()

    def start(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def wait_for_rounds(self, count: int) -> None:
        for number in range(count):
            line = self._output.readline()
            assert line == f"{number}\n", self.process.communicate()[1]
        self._seen = count

    def finish(self) -> int:
        """Wait for the end, and return how many rounds were reported."""
        output = self._output.read()  # `communicate` would lose what `readline` left over
        _, errors = self.process.communicate(timeout=120)
        assert self.process.returncode in (0, -signal.SIGKILL), errors
        return self._seen + len(output.splitlines())
