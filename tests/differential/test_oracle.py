"""Recorded behaviour of dispatches, on the backends of the core's own tests."""

from __future__ import annotations

from typing import Any

import pytest

import turnout as tn

from .harness import BACKENDS
from .oracle import POLICIES, VECTORS, OracleTests, made


@pytest.fixture(scope="module", params=BACKENDS)
def device(request: Any) -> Any:
    return request.param


class TestOracle(OracleTests):
    pass


SIDECARS = dict(
    zip(
        (
            *("drag", "dbs", "puni", "fsel", "two", "nested", "osc"),
            *("chosen_by_speed", "in_place", "assigned_before", "looked_up"),
        ),
        VECTORS["static-selector-table"]["cases"],
        strict=True,
    )
)


@pytest.mark.parametrize("kernel", SIDECARS)
def test_sidecar(kernel: str) -> None:
    expected = SIDECARS[kernel]["entries"]
    if kernel == "two":
        # Groups are numbered in the order of the source here, not in that of the outputs.
        expected = [{**e, "name": f"dispatch{i}"} for i, e in enumerate(reversed(expected))]
    (policy,) = {entry["policy"] for entry in expected}
    entries = made(kernel, policy).dispatch_entries()
    assert [{key: entry[key] for key in expected[0]} for entry in entries] == expected
    counters = [f"{entry['name']}_mix" for entry in expected if policy == "auto"]
    assert [entry["mix"] for entry in entries if "mix" in entry] == counters


@pytest.mark.parametrize("policy", POLICIES)
def test_costs_of_branches(policy: str) -> None:
    costs = tn.dispatch_costs(made("drag", policy))["dispatch0"].branches
    recorded = VECTORS["dispatch-costs-drag"]["expect"]["branches"]
    for cost, expected in zip(costs, recorded, strict=True):
        for name, number in expected.items():
            assert getattr(cost, name.replace("Special", "_special")) == number, name
