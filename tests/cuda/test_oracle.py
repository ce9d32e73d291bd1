"""Recorded behaviour of dispatches, as CUDA C++ on the CPU."""

from __future__ import annotations

import pytest
from tests.differential.oracle import OracleTests

from turnout_cuda_emulated import machine

pytestmark = pytest.mark.skipif(machine.compiler() is None, reason="there is no C++ compiler")


@pytest.fixture(scope="module")
def device() -> str:
    return "cuda_emulated"


class TestOracle(OracleTests):
    pass
