"""What holds for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def cache_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled kernels stay out of the user's own cache, unless a run names another folder.

    Measurements of one test must not decide for another one: tests of the store switch it on.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNOUT_TUNING", "off")
        if "TURNOUT_CACHE_DIR" not in os.environ:
            patch.setenv("TURNOUT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="session")
def interrupts_arrive() -> None:
    """A shell makes what it starts in the background ignore interrupts, which some tests send."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
