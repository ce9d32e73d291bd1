"""Dispatches run class by class, as CUDA C++ on the CPU."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.differential.dispatches import check_launches
from tests.differential.harness import fuzz

from turnout_cuda_emulated import machine

pytestmark = pytest.mark.skipif(machine.compiler() is None, reason="there is no C++ compiler")


@pytest.mark.parametrize("policy", ["auto", "segmented"])
@given(data=st.data())
@fuzz(6)
def test_launches(policy: str, data: st.DataObject) -> None:
    check_launches(data, policy, "cuda_emulated")
