"""What backends get wrong around kernels: binaries, launchers, threads, clocks, imports."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import turnout as tn
from turnout.plugin import Binary, Options, ir

from . import kernels
from .compare import assert_same_bits
from .device import DeviceUnderTest, run_python


def unit_of(kernel: tn.Kernel) -> ir.Unit:
    """The only unit of an array-form kernel."""
    (unit,) = kernel.lower(kernel.default_types()).plan.units
    return unit


def launch(device: DeviceUnderTest, binary: Binary, unit: ir.Unit, x: Any, size: int) -> Any:
    """Run `kernels.double` from a binary; what it left in its output, which held 7 before."""
    out = device.put(np.full(x.size, 7, np.float32))
    launcher = device.load(binary, unit)
    launcher((device.put(x), out), size)
    tn.sync(str(device))
    return tn.to_numpy(out)


X = np.arange(33, dtype=np.float32)


def test_binary_is_plain_data(device: DeviceUnderTest) -> None:
    """It goes to disk: text and bytes only, and what is read back can be loaded."""
    unit = unit_of(kernels.double)
    binary = device.compile(unit)
    assert type(binary.entry) is str
    assert type(binary.kind) is str
    assert type(binary.payload) is bytes
    for key, value in binary.metadata.items():
        assert type(key) is str, f"metadata key {key!r} is not text"
        assert type(value) is str, f"metadata {key!r} is {value!r}, not text"
    metadata = json.loads(json.dumps(dict(binary.metadata)))
    restored = Binary(binary.entry, binary.kind, bytes(binary.payload), metadata)
    assert_same_bits(launch(device, restored, unit, X, X.size), X * 2, "a restored binary")


def test_a_unit_can_be_compiled_twice(device: DeviceUnderTest) -> None:
    """Both binaries work, and stay usable beside each other."""
    unit = unit_of(kernels.double)
    first, second = device.compile(unit), device.compile(unit)
    for binary in (first, second, first):
        assert_same_bits(launch(device, binary, unit, X, X.size), X * 2, "a binary of two")


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_optimisation_level_changes_nothing(device: DeviceUnderTest, level: int) -> None:
    """Every level of `Options` compiles."""
    unit = unit_of(kernels.double)
    binary = device.compile(unit, Options(level=level))
    assert_same_bits(launch(device, binary, unit, X, X.size), X * 2, f"level {level}")


def test_a_launch_of_size_0_does_nothing(device: DeviceUnderTest) -> None:
    """Also where the arrays are not empty."""
    unit = unit_of(kernels.double)
    nothing = np.zeros(0, np.float32)
    assert_same_bits(launch(device, device.compile(unit), unit, nothing, 0), nothing, "size 0")
    returned = device.load(device.compile(unit), unit)(
        (device.put(nothing), device.put(nothing.copy())), 0
    )
    assert returned is None, f"a launcher returned {returned!r}"


def test_many_launches_with_different_numbers(device: DeviceUnderTest) -> None:
    """Each launch sees the numbers of its own call, however far behind the device is."""
    outs = [device.put(np.zeros(257, np.int64)) for _ in range(100)]
    state = device.put(np.ones(65, np.uint32))
    expected = np.ones(65, np.uint32)
    for number, out in enumerate(outs):
        kernels.fill(out, number * 1_000_003, device=str(device))
        kernels.step_state(state, number, device=str(device))
        expected = expected * np.uint32(1664525) + np.uint32(number)
    tn.sync(str(device))
    for number, out in enumerate(outs):
        filled = np.full(257, number * 1_000_003, np.int64)
        assert_same_bits(tn.to_numpy(out), filled, f"launch {number} of many")
    assert_same_bits(tn.to_numpy(state), expected, "100 launches on one array")


def test_two_threads(device: DeviceUnderTest) -> None:
    """One kernel, called at the same time with different arrays and numbers."""

    def work(seed: int) -> None:
        for turn in range(25):
            x = np.full(1025, seed + turn, np.float32)
            out = device.put(np.zeros_like(x))
            kernels.affine(device.put(x), seed, out, device=str(device))
            tn.sync(str(device))
            assert_same_bits(tn.to_numpy(out), x * seed + 1, f"thread {seed}, call {turn}")

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(work, seed) for seed in (3, 5)]:
            future.result()


def test_two_threads_compile(device: DeviceUnderTest) -> None:
    """Hooks are called from any thread."""
    case = [(kernels.double, 2.0), (kernels.spin, 1.0)] * 2

    def build(kernel: tn.Kernel) -> Binary:
        return device.compile(unit_of(kernel))

    with ThreadPoolExecutor(2) as pool:
        binaries = list(pool.map(build, [kernel for kernel, _ in case]))
    unit = unit_of(kernels.double)
    for binary in binaries[::2]:
        assert_same_bits(launch(device, binary, unit, X, X.size), X * 2, "compiled in a thread")


def test_a_type_error_names_the_place(device: DeviceUnderTest) -> None:
    """The author of a kernel reads the same on every backend."""
    x = np.ones(3, np.float32)
    with pytest.raises(tn.KernelError) as caught:
        device.run(kernels.shifted_float, x, x.copy())
    message = str(caught.value)
    assert "kernels.py" in message
    assert "out[i] = x[i] << 1" in message
    assert "<< needs integers" in message


@pytest.mark.needs("bounds")
def test_debug_reports_an_index(device: DeviceUnderTest) -> None:
    """Which array, which axis, which index; and the kernel stays usable."""
    a, out = X[:8].copy(), np.zeros(3, np.float32)
    device.call(kernels.gather, a, np.array([7, 0, -1]), out)
    assert out.tolist() == [7, 0, 7]
    for wrong in (8, 1 << 40, -9):
        with pytest.raises(tn.OutOfBoundsError) as caught:
            device.call(kernels.gather, a, np.array([1, wrong, 2]), out)
        message = str(caught.value)
        assert f"index {wrong} is out of bounds for axis 0 of 'a'" in message
        assert "length 8" in message
        assert "kernels.py" in message
    device.call(kernels.gather, a, np.array([3, 4, 5]), out)
    assert out.tolist() == [3, 4, 5]


def test_sync_waits(device: DeviceUnderTest) -> None:
    """It can be called at any time, and then the work is done."""
    tn.sync(str(device))
    x = device.put(np.ones(1025, np.float32))
    kernels.spin(x, 1000, device=str(device))
    tn.sync(str(device))
    tn.sync(str(device))
    assert_same_bits(tn.to_numpy(x), np.ones(1025, np.float32), "after sync")


def test_timer(device: DeviceUnderTest) -> None:
    """Nanoseconds of the work itself: more work takes longer."""
    timer = tn.timer(str(device))
    x = device.put(np.ones(16, np.float32))

    def shortest(rounds: int) -> int:
        times = []
        for _ in range(5):
            calls = []
            elapsed_ns = timer(
                lambda: calls.append(kernels.spin(x, rounds, device=str(device)))  # noqa: B023
            )
            assert len(calls) == 1, f"the timer ran the work {len(calls)} times"
            times.append(elapsed_ns)
        assert min(times) > 0, f"the timer gave {times}"
        return min(times)  # the one that other programs disturbed least

    little, much = shortest(40), shortest(40_000)
    assert much > 2 * little, f"1000 times the work took {much} ns, the little {little} ns"


_IMPORTS = """
import sys
from importlib.machinery import EXTENSION_SUFFIXES
import numpy, turnout, turnout.plugin
from turnout.backends import backend

before = set(sys.modules)
libraries = []

def note(event, args):
    if event == "ctypes.dlopen" and args[0]:
        libraries.append(str(args[0]))

sys.addaudithook(note)
backend(sys.argv[1])
for name in sorted(set(sys.modules) - before):
    file = getattr(sys.modules[name], "__file__", None) or ""
    is_own = name.partition(".")[0] in sys.stdlib_module_names
    if file.endswith(tuple(EXTENSION_SUFFIXES)) and not is_own:
        libraries.append(name)
print(", ".join(libraries))
"""


def test_import_is_light(device: DeviceUnderTest) -> None:
    """Importing a backend loads no compiler and no driver; its hooks do, when they are asked."""
    loaded = run_python(_IMPORTS, device.device.target.backend).strip()
    assert not loaded, (
        f"importing the backend loads native code: {loaded}; import it inside of the hooks"
    )


_COMPILE = """
import json, sys
from turnout.backends import backend
from turnout.conformance import kernels
from turnout.plugin import Binary, Options, Target

given = json.loads(sys.argv[1])
target = Target(
    given["backend"], given["arch"], frozenset(given["features"]), tuple(given["options"]),
    given["lanes"],
)
kernel = kernels.double
(unit,) = kernel.lower(kernel.default_types()).plan.units
hook = backend(target.backend).hook
binary = hook.turnout_compile(unit=unit, target=target, options=Options())
assert isinstance(binary, Binary), binary
print(binary.entry)
"""


def test_compiles_without_a_device(device: DeviceUnderTest) -> None:
    """A new process that never asked for devices compiles for the target."""
    target = device.device.target
    given = {
        "backend": target.backend,
        "arch": target.arch,
        "features": sorted(target.features),
        "options": target.options,
        "lanes": target.lanes,
    }
    entry = run_python(_COMPILE, json.dumps(given)).strip()
    assert entry == device.compile(unit_of(kernels.double)).entry


def test_arrays_go_there_and_back(device: DeviceUnderTest) -> None:
    """`turnout.array` and `turnout.to_numpy` keep shape, dtype and bits."""
    for dtype in ir.ALL_DTYPES:
        for shape in ((), (0,), (5,), (3, 4), (2, 3, 4)):
            host = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
            there = tn.array(host, device=str(device))
            assert_same_bits(tn.to_numpy(there), host, f"{dtype} of shape {shape}")
    original = np.ones(4, np.float32)
    strided = np.arange(24, dtype=np.float32).reshape(4, 6)[::-1, ::2]
    there = tn.array(strided, device=str(device))
    assert_same_bits(np.array(tn.to_numpy(there)), np.array(strided), "a strided array")
    device.run(kernels.double, original, there_out := np.zeros(4, np.float32))
    assert there_out.tolist() == [2, 2, 2, 2]
    assert original.tolist() == [1, 1, 1, 1]


def test_device_describes_itself(device: DeviceUnderTest) -> None:
    """Compilation depends on the target; people read the label."""
    described = device.device
    assert described.label
    assert described.target.arch
    assert described.target.lanes >= 1
    assert described.memory_bytes >= 0
    assert hash(described.target) == hash(described.target)
