"""Dispatches run class by class: the bits of a switch, whatever happens to the classes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .dispatches import check_launches
from .harness import BACKENDS, fuzz


@pytest.mark.parametrize("policy", ["switch", "predicated", "auto"])
@pytest.mark.parametrize("device", BACKENDS)
@given(data=st.data())
@fuzz(10)
def test_branches_are_counted(device: str, policy: str, data: st.DataObject) -> None:
    check_launches(data, policy, device)


@pytest.mark.parametrize("device", BACKENDS)
@given(data=st.data())
@fuzz(40)
def test_segmented_gives_the_bits_of_switch(device: str, data: st.DataObject) -> None:
    check_launches(data, "segmented", device)
