"""Kernels in worker processes: spawned ones, forked ones, and forks in the middle of a compile."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from concurrency_support import in_fork
from language_support import DEVICES

import turnout as tn
from turnout import NDArray, Scalar, f64

POOL = """
import multiprocessing
import sys

import numpy as np
import turnout as tn
from turnout import Param, Scalar

OFFSET = 0.5

@tn.func
def shifted(x):
    return x + OFFSET

@tn.kernel
def in_main(x: Scalar, by: Param) -> Scalar:
    return shifted(x) * by

def make(offset):
    @tn.kernel
    def in_function(x: Scalar, by: Param) -> Scalar:
        return shifted(x) * by + offset
    return in_function

def call(kernel, number):
    return kernel(np.full(3, number), 2).tolist()

if __name__ == "__main__":
    tn.set_default_device(sys.argv[2])
    kernels = [in_main, make(100), make(200)]
    before = [call(kernel, 1.0) for kernel in kernels]
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        after = pool.starmap(call, [(kernel, 1.0) for kernel in kernels])
        own = pool.starmap(call, [(make(300), float(number)) for number in range(20)])
    assert before == after == [[3.0] * 3, [103.0] * 3, [203.0] * 3], (before, after)
    assert own == [[2.0 * number + 301.0] * 3 for number in range(20)], own
    print("right")
"""

METHODS = [m for m in ("spawn", "fork") if m in multiprocessing.get_all_start_methods()]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", METHODS)
def test_a_pool_runs_kernels_of_the_program(method: str, device: str, tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    done = subprocess.run(
        [sys.executable, str(script), method, device],
        env=os.environ | {"TURNOUT_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "right\n"


@tn.kernel
def doubled(x: Scalar) -> Scalar:
    return x * 2


@tn.kernel
def summed(a: NDArray[f64, 1], total: NDArray[f64, 1]) -> None:
    total[0] = 0
    for i in tn.serial(range(a.shape[0])):
        total[0] += a[i]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with tn.use(request.param):
        yield request.param


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_uses_what_the_parent_compiled_and_compiles_more(device: str) -> None:
    x = np.arange(1000.0)
    assert doubled(x).tolist() == (x * 2).tolist()

    def work() -> None:
        total = np.zeros(1)
        assert doubled(x).tolist() == (x * 2).tolist()
        assert doubled(x.astype(np.float32)).tolist() == (x * 2).tolist()
        summed(x, total)
        assert total.tolist() == [499500.0]

    in_fork(work)


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_while_another_thread_compiles_does_not_hang() -> None:
    kernel = tn.kernel(doubled.__wrapped__)
    is_held, may_end = threading.Event(), threading.Event()

    def compile_slowly() -> None:
        with kernel._lock:
            is_held.set()
            may_end.wait()

    thread = threading.Thread(target=compile_slowly)
    thread.start()
    is_held.wait()
    x = np.ones(3)
    try:
        in_fork(lambda: kernel(x, device="reference"))
    finally:
        may_end.set()
        thread.join()
    assert kernel(x, device="reference").tolist() == [2, 2, 2]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("device", DEVICES)
def test_kernels_that_were_dropped_give_their_memory_back(device: str, tmp_path: Path) -> None:
    program = """
import gc, os, sys
import numpy as np
import turnout as tn
from turnout import Scalar

def make(factor):
    @tn.kernel
    def multiplied(x: Scalar) -> Scalar:
        return x * factor
    return multiplied

def resident_kilobytes():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024

x = np.ones(4)
kernels = [float(number) for number in range(100)]
def run():
    for factor in kernels:
        assert make(factor)(x)[0] == factor

run()  # compiles
run()  # loads
before = resident_kilobytes()
for _ in range(8):
    run()
print(resident_kilobytes() - before)
"""
    script = tmp_path / "program.py"
    script.write_text(program)
    environment = {"TURNOUT_CACHE_DIR": str(tmp_path / "cache"), "TURNOUT_BACKEND": device}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    grown_kilobytes = int(done.stdout)
    assert grown_kilobytes < 800 * 4  # 800 kernels: no code stays, which is two pages for each
