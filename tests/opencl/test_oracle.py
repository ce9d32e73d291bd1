"""Recorded behaviour of dispatches, on OpenCL."""

from __future__ import annotations

import pytest
from tests.differential.oracle import OracleTests

pytest.importorskip("turnout_opencl", reason="turnout-opencl is not installed")


@pytest.fixture(scope="module")
def device() -> str:
    return "opencl"


class TestOracle(OracleTests):
    pass
