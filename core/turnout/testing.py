"""A pytest plugin: run tests of your own once per backend.

It is loaded by name, ``pytest -p turnout.testing``, or by ``pytest_plugins = ["turnout.testing"]``
in the top-most ``conftest.py``; installing turnout loads nothing. It brings the fixture `backend`
and two options::

    --turnout-backend NAME        only this backend, or device; may be given several times
    --turnout-skip-unavailable    skip, instead of fail, where a backend that was named has no
                                  hardware here

A test that takes `backend` runs once per backend, inside of ``with turnout.use(backend)``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import turnout as tn
from turnout.plugin import Device

_NAMES = "--turnout-backend"
_SKIP = "--turnout-skip-unavailable"
_FIXTURE = "_turnout_backend_name"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup("turnout")
    group.addoption(
        _NAMES,
        metavar="NAME",
        action="append",
        default=[],
        help="a backend such as cpu, or a device such as cuda:1, for the fixture `backend`; may be "
        "given several times; all backends that can be used here when not given",
    )
    group.addoption(
        _SKIP,
        action="store_true",
        help=f"skip instead of fail where a backend named by {_NAMES} has no hardware here",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse names of backends that are not installed: their tests would never run anywhere."""
    installed = tn.backends()
    for name in config.getoption(_NAMES):
        if name.partition(":")[0] not in installed:
            raise pytest.UsageError(
                f"{_NAMES} {name}: there is no such backend; installed are {', '.join(installed)}"
            )


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say what runs, and why the rest does not."""
    lines = [f"turnout backends: {', '.join(_names(config)) or 'none'}"]
    if not config.getoption(_NAMES):
        lines += [
            f"turnout backend {status.name} is left out: {status.reason}"
            for status in tn.backends().values()
            if not status.available
        ]
    return lines


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that takes the fixture `backend` once per backend."""
    if _FIXTURE in metafunc.fixturenames:
        names = _names(metafunc.config)
        metafunc.parametrize(_FIXTURE, names, ids=names, indirect=True)


def _names(config: pytest.Config) -> list[str]:
    requested: list[str] = config.getoption(_NAMES)
    available = [status.name for status in tn.backends().values() if status.available]
    return list(dict.fromkeys(requested)) or available


# Apart from `backend`, so that whoever defines a fixture of that name gets no parameters from here.
@pytest.fixture(name=_FIXTURE)
def _backend_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def backend(_turnout_backend_name: str, request: pytest.FixtureRequest) -> Iterator[Device]:
    """The device that a test runs on, in use for the length of the test.

    Yields
    ------
    Device
        ``str(backend)`` is its spelling, such as ``"cuda:0"``, ``backend.target.features`` what it
        is able to.
    """
    use = tn.use(_turnout_backend_name)
    try:
        device = use.__enter__()
    except tn.Unavailable as error:
        if request.config.getoption(_SKIP):
            pytest.skip(f"{_turnout_backend_name} is not available: {error}")
        pytest.fail(f"{_turnout_backend_name} is not available: {error}", pytrace=False)
    except tn.TurnoutError as error:
        pytest.fail(f"{_turnout_backend_name} cannot be used: {error}", pytrace=False)
    try:
        yield device
    finally:
        use.__exit__(None, None, None)
