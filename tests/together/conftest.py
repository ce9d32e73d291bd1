"""What holds for the tests of all backends together."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.opencl.pocl_for_new_processors import give_name

import turnout as tn

from .devices import DEVICES

_REQUIRE = "TURNOUT_REQUIRE_BACKENDS"

give_name()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip where a backend is missing, unless the environment requires all of them."""
    ours = [item for item in items if item.path.parent.name == "together"]
    missing = _missing() if ours else []
    if not missing:
        return
    reason = f"{', '.join(missing)} cannot be used here"
    if os.environ.get(_REQUIRE):
        raise pytest.UsageError(f"{reason}, and {_REQUIRE} is set")
    for item in ours:
        item.add_marker(pytest.mark.skip(reason=f"{reason} ({_REQUIRE}=1 makes it fail)"))


def _missing() -> list[str]:
    found = tn.backends()
    return [name for name in DEVICES if name not in found or not found[name].available]


@pytest.fixture(autouse=True, scope="session")
def no_disk_cache() -> Iterator[None]:
    """Generated kernels are not kept on disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNOUT_CACHE", "off")
        yield
