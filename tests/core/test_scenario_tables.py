"""The tables of scenarios in README.md name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parent
FOLDERS = {"conformance": TESTS.parent / "core" / "turnout" / "conformance"}
REFERENCE = re.compile(r"`(?:([\w/]+(?:\.py)?)::)?(test_\w+)`")
TEXT = (HERE / "README.md").read_text("utf-8")
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ") and "::" in line]


def file_of(name: str) -> Path:
    if name == "thirdparty":
        return TESTS / "thirdparty" / "test_strangers.py"
    folder, _, file = name.rpartition("/")
    return FOLDERS.get(folder, TESTS / (folder or "core")) / file


@pytest.mark.parametrize("row", ROWS)
def test_every_test_of_a_row_exists(row: str) -> None:
    found = REFERENCE.findall(row)
    assert found
    file = ""
    for name, test in found:
        file = name or file
        text = file_of(file).read_text("utf-8")
        assert re.search(rf"def {test}\(", text), f"{file} has no {test}"


def test_the_groups_of_backends_are_complete() -> None:
    """Every scenario of the groups I to M has a row in the last table."""
    table = TEXT[TEXT.index("## Scenarios of backends") :]
    named = set(re.findall(r"\b[I-M]\d+\b", "".join(re.findall(r"(?m)^\| [^|]*", table))))
    assert named == {
        *("I2", "I3", "I5", "I6", "J3", "J4", "K1", "K3", "K5", "K6", "K9", "K12", "K14", "K16"),
        *("K18", "K19", "K22", "L1", "L3", "L4", "L6", "L7", "L9", "M1", "M3", "M5"),
    }
