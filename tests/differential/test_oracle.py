"""Recorded behaviour of dispatches, on the backends of the core's own tests."""

from __future__ import annotations

from typing import Any

import pytest

from .harness import BACKENDS
from .oracle import OracleTests


@pytest.fixture(scope="module", params=BACKENDS)
def device(request: Any) -> Any:
    return request.param


class TestOracle(OracleTests):
    pass
