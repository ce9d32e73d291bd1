"""Which device a call runs on, and how data reaches it."""

from __future__ import annotations

import asyncio
import importlib
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_plugins import Site, backend_source

from turnout import defaults
from turnout.errors import (
    BackendError,
    CallError,
    ConfigurationError,
    PerformanceWarning,
    Unavailable,
)
from turnout.hooks import Device, Target
from turnout.loading import DeviceContext

# Imported by name, because the package offers the function `turnout.backends` under the same one.
tn = importlib.import_module("turnout.backends")


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing chosen, nothing loaded, before and after each test."""
    monkeypatch.delenv("TURNOUT_BLOCK", raising=False)
    monkeypatch.delenv("TURNOUT_BACKEND", raising=False)
    tn.clear()
    yield
    tn.clear()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Backends ``host`` (two devices) and ``gpu`` (two devices with arrays of their own)."""
    site = Site(tmp_path / "site", monkeypatch)
    site.install_backend("host", backend_source("host", 2))
    site.install_backend("gpu", backend_source("gpu", 2, own_arrays=True))
    return site


@pytest.fixture
def without_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_BLOCK", "cpu")


def name_of(context: DeviceContext) -> str:
    return str(context.device)


# ---- naming a device ---------------------------------------------------------------------------


def test_name_alone_is_device_0(site: Site) -> None:
    assert name_of(tn.resolve((), "host")) == "host:0"
    assert name_of(tn.resolve((), "host:1")) == "host:1"
    assert name_of(tn.resolve((), tn.devices("host")[1])) == "host:1"


def test_there_is_one_context_per_device(site: Site) -> None:
    first = tn.resolve((), "host")
    assert tn.resolve((), "host:0") is first
    assert tn.resolve((), first.device) is first
    assert tn.resolve((), "host:1") is not first
    assert first.backend is tn.backend("host")


def test_devices_of_all_usable_backends(site: Site) -> None:
    site.install_backend("broken", "raise OSError")
    ours = ("gpu", "host", "reference")
    spelt = [str(device) for device in tn.devices() if device.target.backend in ours]
    assert spelt == ["gpu:0", "gpu:1", "host:0", "host:1", "reference:0"]
    assert [str(device) for device in tn.devices("gpu")] == ["gpu:0", "gpu:1"]
    with pytest.raises(BackendError, match=r"'broken' of dist-broken 1\.0 cannot be imported"):
        tn.devices("broken")


@pytest.mark.parametrize("spelling", ["", "host:", "host:x", "host:-1", "host:01", "Host", "host 1",
                                      "host:1:2", "host:\u0661"])  # fmt: skip
def test_malformed_spelling(site: Site, spelling: str) -> None:
    with pytest.raises(CallError) as caught:
        tn.resolve((), spelling)
    assert str(caught.value) == (
        f"device {spelling!r} is malformed; write the name of a backend such as 'cpu', or a device "
        "such as 'cuda:1'"
    )


def test_device_of_another_type(site: Site) -> None:
    with pytest.raises(CallError) as caught:
        tn.resolve((), 3)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "device=3, of type int, is not allowed; give the name of a backend such as 'cpu', a device "
        "such as 'cuda:1', or one of turnout.devices()"
    )


def test_missing_index_lists_the_devices() -> None:
    with pytest.raises(Unavailable) as caught:
        tn.resolve((), "reference:7")
    assert str(caught.value) == (
        "backend 'reference' has no device 7; its devices are: reference:0 "
        f"(NumPy {np.__version__}). Fix: name one of these"
    )


def test_device_of_another_machine(site: Site) -> None:
    stranger = Device(0, "other", Target("host", "other"))
    with pytest.raises(Unavailable, match=r"label='other'.* is not a device of this machine"):
        tn.resolve((), stranger)


def test_device_survives_pickling(site: Site) -> None:
    device = tn.devices("host")[1]
    assert pickle.loads(pickle.dumps(device)) == device
    assert name_of(tn.resolve((), pickle.loads(pickle.dumps(device)))) == "host:1"


@pytest.mark.parametrize("act", [lambda: tn.resolve((), "nope"), lambda: tn.use("nope").__enter__(),
                                 lambda: tn.set_default_device("nope"), lambda: tn.sync("nope"),
                                 lambda: tn.devices("nope"), lambda: tn.array(1, "nope"),
                                 lambda: tn.timer("nope")])  # fmt: skip
def test_missing_backend_is_always_an_error(act: Any) -> None:
    with pytest.raises(Unavailable, match="backend 'nope' is not installed"):
        act()


# ---- use and the default -----------------------------------------------------------------------


def test_use_holds_inside_the_block_and_nests(site: Site, without_cpu: None) -> None:
    assert name_of(tn.active()) == "reference:0"
    with tn.use("host:1") as device:
        assert str(device) == "host:1"
        assert name_of(tn.active()) == "host:1"
        with tn.use(tn.devices("gpu")[0]):
            assert name_of(tn.active()) == "gpu:0"
        assert name_of(tn.active()) == "host:1"
        with pytest.raises(ZeroDivisionError), tn.use("gpu"):
            _ = 1 / 0
        assert name_of(tn.active()) == "host:1"
    assert name_of(tn.active()) == "reference:0"


def test_use_validates_at_enter(site: Site) -> None:
    entered = False
    with pytest.raises(Unavailable, match="has no device 5"), tn.use("host:5"):
        entered = True
    assert not entered


def test_argument_beats_use(site: Site) -> None:
    with tn.use("host"):
        assert name_of(tn.resolve((), "host:1")) == "host:1"


def test_use_holds_for_this_thread_and_its_tasks(site: Site, without_cpu: None) -> None:
    seen = {}

    async def task() -> None:
        seen["task"] = name_of(tn.active())

    async def main() -> None:
        with tn.use("host"):
            await asyncio.create_task(task())
            thread = threading.Thread(target=lambda: seen.update(thread=name_of(tn.active())))
            thread.start()
            thread.join()

    asyncio.run(main())
    assert seen["task"] == "host:0"
    inherits = bool(getattr(sys.flags, "thread_inherit_context", 0))
    assert seen["thread"] == ("host:0" if inherits else "reference:0")


def test_default_is_seen_by_all_threads(site: Site, without_cpu: None) -> None:
    tn.set_default_device("host:1")
    seen = []
    thread = threading.Thread(target=lambda: seen.append(name_of(tn.active())))
    thread.start()
    thread.join()
    assert seen == ["host:1"]
    with tn.use("host:0"):
        assert name_of(tn.active()) == "host:0"
    with pytest.raises(Unavailable):
        tn.set_default_device("host:9")
    assert name_of(tn.active()) == "host:1"
    tn.set_default_device(None)
    assert name_of(tn.active()) == "reference:0"


def test_environment_names_the_default(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_BACKEND", " host:1 ")
    assert name_of(tn.active()) == "host:1"
    with tn.use("reference"):
        assert name_of(tn.active()) == "reference:0"
    tn.set_default_device("gpu")
    assert name_of(tn.active()) == "gpu:0"
    tn.set_default_device(None)
    assert name_of(tn.active()) == "host:1"


def test_environment_is_read_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_BACKEND", "host:1")
    assert name_of(tn.active()) == "host:1"
    monkeypatch.setenv("TURNOUT_BACKEND", "gpu")
    assert name_of(tn.active()) == "host:1"
    tn.set_default_device(None)
    assert name_of(tn.active()) == "gpu:0"


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        ("host:x", ConfigurationError, "TURNOUT_BACKEND='host:x': device 'host:x' is malformed"),
        ("xyz", Unavailable, "TURNOUT_BACKEND='xyz': backend 'xyz' is not installed; installed"),
        ("host:9", Unavailable, "TURNOUT_BACKEND='host:9': backend 'host' has no device 9; its"),
        ("broken", BackendError, "TURNOUT_BACKEND='broken': backend 'broken' of dist-broken 1.0"),
    ],
)
def test_bad_environment_is_an_error_at_every_call(
    site: Site, monkeypatch: pytest.MonkeyPatch, value: str, error: type, text: str
) -> None:
    site.install_backend("broken", "raise OSError")
    monkeypatch.setenv("TURNOUT_BACKEND", value)
    for _ in range(2):
        with pytest.raises(error) as caught:
            tn.active()
        assert str(caught.value).startswith(text)
    with tn.use("host"):
        assert name_of(tn.active()) == "host:0"


def test_cpu_comes_first(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_BLOCK", "turnout-cpu")
    site.install_backend("cpu")
    assert name_of(tn.active()) == "cpu:0"


def test_broken_cpu_falls_back_with_one_warning(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURNOUT_BLOCK", "turnout-cpu")
    source = "from turnout.plugin import Unavailable\nraise Unavailable('no LLVM', 'pip it')"
    site.install_backend("cpu", source)
    with pytest.warns(PerformanceWarning) as caught:
        assert name_of(tn.active()) == "reference:0"
    assert [str(warning.message) for warning in caught] == [
        "calls run on 'reference:0', which is slower: no LLVM. Fix: pip it"
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert name_of(tn.active()) == "reference:0"
    with pytest.raises(Unavailable, match=r"no LLVM. Fix: pip it"):
        tn.resolve((), "cpu")


def test_no_default_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNOUT_BLOCK", "cpu,reference")
    with pytest.raises(Unavailable) as caught:
        tn.active()
    assert caught.value.reason == "no default backend can be used here: all are blocked"
    assert "turnout doctor" in caught.value.fix


# ---- arrays that live on a device --------------------------------------------------------------


def test_owner_of_the_arrays_runs_the_call(site: Site) -> None:
    x = tn.array([1.0, 2.0], device="gpu")
    host = np.zeros(2)
    assert name_of(tn.resolve((np.array(1), x, 3))) == "gpu:0"
    tn.set_default_device("host")
    assert name_of(tn.resolve((x,))) == "gpu:0"
    assert name_of(tn.resolve((host, np.float32(1), 2, "text"))) == "host:0"


def test_owner_must_be_the_named_device(site: Site) -> None:
    x = tn.array([1.0, 2.0], device="gpu:1")
    assert name_of(tn.resolve((x,), "gpu:1")) == "gpu:1"
    expected = (
        "this call is to run on host:0, but has arrays elsewhere: argument 1 (Array) is on gpu:1; "
        "argument 2 (ndarray) is on the host. Move them with turnout.array(x, device='host:0'), or "
        "run it where they are"
    )
    with pytest.raises(CallError) as caught:
        tn.resolve((1.0, x, np.zeros(2)), "host")
    assert str(caught.value) == expected
    with tn.use("host"), pytest.raises(CallError) as caught:
        tn.resolve((1.0, x, np.zeros(2)))
    assert str(caught.value) == expected


def test_arrays_of_two_devices_are_refused(site: Site) -> None:
    x, y = tn.array([1.0], device="gpu:0"), tn.array([2.0], device="gpu:1")
    with pytest.raises(CallError) as caught:
        tn.resolve((x, y, np.zeros(1)))
    assert str(caught.value) == (
        "the arrays of one call live on several devices: argument 0 (Array) is on gpu:0; argument "
        "1 (Array) is on gpu:1; argument 2 (ndarray) is on the host. Move them to one of these "
        "with turnout.array(x, device=...)"
    )


def test_array_of_a_second_device_that_was_not_used_before(site: Site) -> None:
    first = tn.array([1.0], device="gpu:0")
    second = type(first)(tn.devices("gpu")[1], np.ones(1))
    assert name_of(tn.resolve((second,))) == "gpu:1"
    assert name_of(tn.resolve((first,))) == "gpu:0"


def test_array_of_a_backend_that_was_not_used_before(site: Site) -> None:
    x = tn.array([1.0, 2.0], device="gpu:1")
    tn.clear()
    assert name_of(tn.resolve((1.0, x))) == "gpu:1"
    tn.clear()
    np.testing.assert_array_equal(tn.to_numpy(x), [1, 2])
    tn.clear()
    with pytest.raises(CallError, match=r"argument 0 \(Array\) is on gpu:1"):
        tn.resolve((x,), "host")


@pytest.mark.parametrize(
    "attribute", [{"__cuda_array_interface__": {}}, {"__dlpack_device__": lambda self: (2, 0)}, {}]
)
def test_arrays_of_other_libraries_are_shown_to_all_backends_once(
    site: Site, attribute: dict[str, Any]
) -> None:
    foreign = type("Foreign", (), {"dtype": "f8", "shape": (1,), **attribute})()
    asking = backend_source("asked", own_arrays=True).replace(
        "return isinstance(value, Array) and", "return asked.append(type(value).__name__) or"
    )
    site.install_backend("asked", "asked = []\n" + asking.replace(" value.device ==", " 1 =="))
    for _ in range(3):
        assert name_of(tn.resolve((1.0, foreign), "host")) == "host:0"
    module: Any = sys.modules["dist_asked_module"]
    # The first is the core's question whether the device is the host's.
    assert module.asked == ["ndarray", "Foreign", "Foreign", "Foreign"]


@pytest.mark.parametrize(
    "value",
    [
        np.ma.masked_array([1.0]),
        [1.0],
        "text",
        None,
        type("Frame", (), {"dtype": "f8", "shape": (1,), "__array__": lambda self: np.zeros(1)})(),
    ],
)
def test_host_data_loads_no_backend(site: Site, value: object) -> None:
    tn.set_default_device("host")
    assert name_of(tn.resolve((np.zeros(1), value))) == "host:0"
    assert name_of(tn.resolve((Tensor(np.zeros(1)),))) == "host:0"
    assert "dist_gpu_module" not in sys.modules


def test_a_backend_that_does_not_work_owns_nothing(site: Site) -> None:
    site.install_backend("broken", "raise OSError('gone')")
    x = tn.array([1.0], device="gpu")
    tn.clear()
    assert name_of(tn.resolve((x,))) == "gpu:0"
    with pytest.raises(BackendError, match="OSError: gone"):
        tn.resolve((), "broken")


def test_errors_name_the_callee_and_its_parameters(site: Site) -> None:
    def solve(a: Any, b: Any) -> None: ...

    x, y = tn.array([1.0], device="gpu:0"), tn.array([2.0], device="gpu:1")
    with pytest.raises(CallError) as caught:
        tn.resolve((x, y), None, solve)
    assert str(caught.value) == (
        "the arrays of one call of solve live on several devices: argument 'a' (Array) is on "
        "gpu:0; argument 'b' (Array) is on gpu:1. Move them to one of these with "
        "turnout.array(x, device=...)"
    )
    with pytest.raises(CallError, match=r"^this call of solve is to run on host:0, but has arrays"):
        tn.resolve((x, 1.0), "host", solve)


def test_array_of_no_device_in_use_is_named(site: Site) -> None:
    x = tn.array([1.0], device="gpu")
    stranger = type(x)(None, np.ones(1))
    with pytest.raises(CallError, match=r"argument 1 \(Array\) is on no device that can be used"):
        tn.resolve((x, stranger), "host")
    assert name_of(tn.resolve((stranger,), "host")) == "host:0"


def test_broken_second_device_harms_no_call(site: Site) -> None:
    source = backend_source("half", 2, own_arrays=True).replace(
        "return Memory(device)", "return Memory(device) if device.index == 0 else 1 / 0"
    )
    site.install_backend("half", source)
    x = tn.array([1.0], device="half")
    stranger = type(x)(None, np.ones(1))
    assert name_of(tn.resolve((x, stranger))) == "half:0"
    with pytest.raises(BackendError, match="turnout_memory raised ZeroDivisionError"):
        tn.resolve((), "half:1")


SLOW_DEVICES = """
import threading
is_asked, may_answer = threading.Event(), threading.Event()
""" + backend_source("slow").replace(
    "    return [", "    is_asked.set()\n    assert may_answer.wait(60)\n    return ["
)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_loads_a_backend_loads_it_itself(site: Site) -> None:
    site.install_backend("slow", SLOW_DEVICES)
    loading = threading.Thread(target=lambda: tn.devices("slow"))
    module: Any = importlib.import_module("dist_slow_module")
    loading.start()
    assert module.is_asked.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # what hangs is killed
        module.may_answer = threading.Event()
        module.may_answer.set()
        os._exit(0 if name_of(tn.resolve((), "slow")) == "slow:0" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    module.may_answer.set()
    loading.join()
    assert name_of(tn.resolve((), "slow")) == "slow:0"


def test_the_context_of_mixed_arguments(site: Site) -> None:
    x, y = tn.array([1.0], device="gpu:0"), tn.array([2.0], device="gpu:1")
    assert tn.context_for((x,)).timer is tn.timer("gpu:0")
    assert tn.context_for((np.zeros(1), y)).timer is tn.timer("gpu:1")
    with tn.use("host"):
        assert tn.context_for((x, y)).timer is tn.timer("host")


# ---- moving data -------------------------------------------------------------------------------


class Tensor:
    """A DLPack tensor on the CPU that counts what is asked of it."""

    def __init__(self, host: np.ndarray[Any, Any], device: tuple[int, int] = (1, 0)) -> None:
        self.host, self.device = host, device

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.host.__dlpack__(**keywords)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_array_on_the_host_is_not_copied() -> None:
    x = np.arange(3.0)
    assert tn.array(x, device="reference") is x
    assert tn.to_numpy(x) is x
    made = tn.array([[1, 2], [3, 4]], device="reference")
    np.testing.assert_array_equal(made, np.array([[1, 2], [3, 4]]))
    assert tn.array(2.5, device="reference").shape == ()


def test_array_takes_cpu_tensors_without_a_copy() -> None:
    x = np.arange(4.0)
    taken = tn.array(Tensor(x), device="reference")
    assert np.shares_memory(taken, x)
    assert np.shares_memory(tn.host_array(Tensor(x)), x)


def test_round_trip_through_a_device(site: Site) -> None:
    x = np.arange(6, dtype=np.int16).reshape(2, 3)
    with tn.use("gpu:1"):
        there = tn.array(x)
        assert name_of(tn.resolve((there,))) == "gpu:1"
        assert tn.array(there) is there
    back = tn.to_numpy(there)
    assert back.dtype == np.int16
    np.testing.assert_array_equal(back, x)
    elsewhere = tn.array(there, device="gpu:0")
    assert name_of(tn.resolve((elsewhere,))) == "gpu:0"
    np.testing.assert_array_equal(tn.array(elsewhere, device="host"), x)


def test_a_changed_array_is_copied_anew(site: Site) -> None:
    x = np.zeros(2)
    first = tn.array(x, device="gpu")
    x[:] = 7
    np.testing.assert_array_equal(tn.to_numpy(tn.array(x, device="gpu")), [7, 7])
    np.testing.assert_array_equal(tn.to_numpy(first), [0, 0])


def test_dtype_of_another_library(site: Site) -> None:
    class Float32:
        def __str__(self) -> str:
            return "library.float32"

    x = tn.array(np.ones(2, np.float32), device="gpu")
    x.dtype = Float32()
    back = tn.to_numpy(x)
    assert back.dtype == np.float32
    np.testing.assert_array_equal(back, [1, 1])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            object(),
            "a value of type object cannot be taken as an array of numbers: NumPy makes",
        ),
        (
            [1, None],
            "a value of type list cannot be taken as an array of numbers: NumPy makes",
        ),
        ([[1], [1, 2]], "a value of type list cannot be taken as an array: ValueError: "),
        (
            Tensor(np.array(["text"])),
            "a value of type Tensor cannot be taken as an array: BufferError: ",
        ),
    ],
)
def test_what_is_no_array(value: object, text: str) -> None:
    with pytest.raises(CallError) as caught:
        tn.array(value, device="reference")
    assert str(caught.value).startswith(text)


# ---- sync, timer and the defaults --------------------------------------------------------------


def test_sync_and_timer_of_the_active_device(site: Site) -> None:
    source = backend_source("clock") + (
        "log = []\n"
        "@hookimpl\ndef turnout_sync(device): return lambda: log.append('sync')\n"
        "@hookimpl\ndef turnout_timer(sync): return lambda work: (work(), sync(), 42)[-1]\n"
    )
    site.install_backend("clock", source)
    with tn.use("clock"):
        tn.sync()
        assert tn.timer()(lambda: None) == 42
    assert sys.modules["dist_clock_module"].log == ["sync", "sync"]  # type: ignore[attr-defined]


def test_default_timer_reads_its_clock_between_two_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    ticks = iter([100, 350])

    def clock() -> int:
        log.append("clock")
        return next(ticks)

    monkeypatch.setattr("time.perf_counter_ns", clock)
    timer = defaults.turnout_timer(
        device=Device(0, "d", Target("host", "a")), sync=lambda: log.append("sync")
    )
    assert timer(lambda: log.append("work")) == 250
    assert log == ["sync", "clock", "work", "sync", "clock"]


def test_default_memory_copies_only_into_another_array() -> None:
    memory = defaults.HostMemory()
    x, out = np.arange(3.0), np.zeros(3)
    assert memory.owns(x)
    assert not memory.owns([1.0])
    assert memory.put(x) is x
    memory.get(x, out)
    np.testing.assert_array_equal(out, x)
    memory.get(x, x)
    np.testing.assert_array_equal(x, [0, 1, 2])
