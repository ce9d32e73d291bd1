"""Fixtures of the tests of the core."""

from __future__ import annotations

import pytest
from language_support import DEVICES


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """Each backend that runs kernels here, by name."""
    name: str = request.param
    return name
