"""Dispatches run class by class: the bits of a switch, whatever happens to the classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from .dispatches import check_launches
from .harness import BACKENDS, assert_same, fuzz
from .inputs import Arguments
from .oracle import made


@pytest.mark.parametrize("policy", ["switch", "predicated", "auto"])
@pytest.mark.parametrize("device", BACKENDS)
@given(data=st.data())
@fuzz(8)
def test_branches_are_counted(device: str, policy: str, data: st.DataObject) -> None:
    check_launches(data, policy, device)


@pytest.mark.parametrize("device", BACKENDS)
@given(data=st.data())
@fuzz(15)
def test_segmented_gives_the_bits_of_switch(device: str, data: st.DataObject) -> None:
    check_launches(data, "segmented", device)


def trajectory(policy: str, device: str) -> Arguments:
    """The state after each of many launches, in which classes change by themselves and by hand."""
    random = np.random.default_rng(7)
    n = 20_000
    v, regime = random.normal(size=n) * 3, random.integers(-1, 3, n)
    slow, fast = np.zeros(n, np.int64), np.ones(n, np.int64)
    states = {}
    for launch in range(30):
        made("dbs", policy)(0.05, 1.0, slow, fast, v, regime, device=device)
        if launch % 7 == 0:
            changed = random.random(n) < random.choice((0.001, 0.3))
            regime[changed] = random.integers(-(2**40), 2**40, np.count_nonzero(changed))
        states |= {f"v{launch}": v.copy(), f"regime{launch}": regime.copy()}
    return states


@pytest.mark.parametrize("device", BACKENDS)
def test_many_launches(device: str) -> None:
    expected = trajectory("switch", device)
    for policy in ("predicated", "auto", "segmented"):
        assert_same(trajectory(policy, device), expected, f"{policy} and switch on {device}")
