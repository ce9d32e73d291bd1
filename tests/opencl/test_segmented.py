"""Dispatches run class by class on OpenCL."""

from __future__ import annotations

import pytest

pytest.importorskip("turnout_opencl", reason="turnout-opencl is not installed")

from hypothesis import given
from hypothesis import strategies as st
from tests.differential.dispatches import check_launches
from tests.differential.harness import fuzz


@given(data=st.data())
@fuzz(4)
def test_segmented_gives_the_bits_of_switch(data: st.DataObject) -> None:
    check_launches(data, "segmented", "opencl")
