"""CUDA C++ run on the CPU: the shim itself, and the conformance suite on it with sanitizers."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from turnout.cfamily.operations import Helpers
from turnout.cfamily.renderer import update_function
from turnout.plugin import cfamily, ir
from turnout_cuda_emulated import machine

pytestmark = pytest.mark.skipif(machine.compiler() is None, reason="there is no C++ compiler")

_HEADER = bytes.__basicsize__ - 1


def run(text: str, entry: str, shape: tuple[int, int], format_: str, *values: Any) -> None:
    """Run a kernel on a grid and a block of one dimension."""
    driver = machine.EmulatedDriver()
    loaded = driver.load(machine.compile_text(text, entry), entry, 0)
    packed = struct.pack(format_, *values)
    length = struct.pack("Q", len(packed))
    extra = struct.pack("5Q", 1, id(packed) + _HEADER, 2, id(length) + _HEADER, 0)
    grid, block = shape
    driver.launch_kernel(loaded.handle, grid, 1, 1, block, 1, 1, 0, 0, 0, id(extra) + _HEADER)


def addresses(*arrays: np.ndarray[Any, Any]) -> list[int]:
    return [array.ctypes.data for array in arrays]


REVERSED = """
extern "C" __global__ void reversed(float *x) {
  __shared__ float shared[256];
  float *block = x + (long long)blockIdx.x * blockDim.x;
  shared[threadIdx.x] = block[threadIdx.x];
  __syncthreads();
  block[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}
"""


@pytest.mark.parametrize("block", [1, 31, 32, 33, 256])
def test_barrier_and_shared_memory(block: int) -> None:
    x = np.arange(3 * block, dtype=np.float32)
    expected = x.reshape(3, block)[:, ::-1].ravel()
    run(REVERSED, "reversed", (3, block), "P", *addresses(x))
    assert x.tolist() == expected.tolist()


SUMS = """
extern "C" __global__ void sums(const double *x, double *out) {
  double value = x[threadIdx.x];
  for (int step = 16; step > 0; step /= 2) value += __shfl_down_sync(~0u, value, step);
  if (threadIdx.x % warpSize == 0) out[threadIdx.x / warpSize] = value;
}
"""


def test_shuffles() -> None:
    x, out = np.arange(128.0), np.zeros(4)
    run(SUMS, "sums", (1, 128), "PP", *addresses(x, out))
    assert out.tolist() == x.reshape(4, 32).sum(axis=1).tolist()


COUNTED = """
extern "C" __global__ void counted(const int *kind, unsigned *counts, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  bool is_in = i < n;
  for (int k = 0; k < 3; ++k) {
    unsigned votes = __ballot_sync(~0u, is_in && kind[i] == k);
    if ((threadIdx.x & 31) == 0 && votes) atomicAdd(counts + k, (unsigned)__popc(votes));
    __syncwarp();
  }
}
"""


@pytest.mark.parametrize("n", [1, 31, 32, 33, 1000])
def test_counts_by_ballot(n: int) -> None:
    """One atomic operation per warp and class."""
    kind = np.random.default_rng(n).integers(0, 3, n).astype(np.int32)
    counts = np.zeros(3, np.uint32)
    run(COUNTED, "counted", (-(-n // 64), 64), "PPi", *addresses(kind, counts), n)
    assert counts.tolist() == np.bincount(kind, minlength=3).tolist()


SLOTS = """
extern "C" __global__ void slots(double *sum, unsigned *order) {
  double before = atomicAdd(sum, 1.0);
  order[(int)before] = blockIdx.x * blockDim.x + threadIdx.x;
}
"""


def test_returned_values_of_atomics() -> None:
    total, order = np.zeros(1), np.zeros(4096, np.uint32)
    run(SLOTS, "slots", (16, 256), "PP", *addresses(total, order))
    assert total[0] == 4096
    assert sorted(order.tolist()) == list(range(4096))


@pytest.mark.parametrize("dtype", [ir.f32, ir.f64, ir.i32, ir.i64, ir.u64, ir.i16, ir.u16])
def test_65536_updates_with_exact_returns(dtype: ir.DType) -> None:
    """M5: the value before each update of our own functions is a slot of its own."""
    most = min(65_536, dtype.maximum) if dtype.is_integer else 65_536
    helpers = Helpers(cfamily.CUDA_CPP)
    update = update_function(helpers, "add", dtype)
    text = "\n".join(
        [
            cfamily.CUDA_CPP.prelude,
            *helpers.definitions.values(),
            'extern "C" __global__ void k(u8 *total, int *slots, int n) {',
            "  int i = blockIdx.x * blockDim.x + threadIdx.x;",
            f"  if (i < n) slots[(int){update}(total, ({dtype})1)] += 1;",
            "}",
        ]
    )
    total, slots = np.zeros(4, dtype), np.zeros(most, np.int32)
    run(text, "k", (256, 256), "PPi", *addresses(total, slots), most)
    assert total.tolist() == [most, 0, 0, 0]
    assert (slots == 1).all()


@pytest.mark.parametrize(
    "body",
    [
        "if (threadIdx.x < 5) __syncthreads(); else __syncwarp(~0u);",
        "if (threadIdx.x != 7) __syncthreads(); else __shfl_sync(1u << 7 | 1, 0, 0);",
        "if (threadIdx.x < 16) __ballot_sync(~0u, 1);",
    ],
)
def test_deadlocks_are_reported(body: str) -> None:
    text = f'extern "C" __global__ void stuck(int *x) {{ {body} }}'
    with pytest.raises(RuntimeError, match="deadlock: a barrier or collective that not all"):
        run(text, "stuck", (1, 64), "P", *addresses(np.zeros(1, np.int32)))


def test_parameters_are_checked() -> None:
    text = 'extern "C" __global__ void take(int *x, char a, double b) { x[0] = a + (int)b; }'
    x = np.zeros(1, np.int32)
    run(text, "take", (1, 1), "Pbd", *addresses(x), 2, 40.0)
    assert x[0] == 42
    with pytest.raises(RuntimeError, match="the packed parameters are not those of the kernel"):
        run(text, "take", (1, 1), "Pb", *addresses(x), 2)


def test_kernels_named_like_functions_of_the_system() -> None:
    """``step`` is in the C library, which must not be called instead."""
    text = """
    extern "C" __device__ void step(int *x) { *x += 1; }
    extern "C" __global__ void advance(int *x) { step(x); }
    """
    x = np.zeros(1, np.int32)
    run(text, "advance", (1, 8), "P", *addresses(x))
    assert x[0] == 8


def test_nothing_is_contracted() -> None:
    text = 'extern "C" __global__ void f(double *x) { x[0] = x[1] * x[1] + x[2]; }'
    epsilon = np.finfo(float).eps
    x = np.array([9.0, 1 + epsilon, -(1 + 2 * epsilon)])
    run(text, "f", (1, 1), "P", *addresses(x))
    assert x[0] == 0


# ---- with sanitizers ---------------------------------------------------------------------------

_OVERFLOW = """
import sys
import numpy as np
from test_emulation import addresses, run

kind, = sys.argv[1:]
body = {"write": "x[64 + threadIdx.x] = 1;", "shift": "x[0] = 1 << (32 + x[1]);"}[kind]
run(
    f'extern "C" __global__ void wrong(int *x) {{ {body} }}',
    "wrong", (1, 1), "P", *addresses(np.zeros(64, np.int32)),
)
"""


def sanitized(arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run Python with kernels that are compiled with AddressSanitizer and UBSan."""

    def library(name: str) -> str:
        asked = [str(machine.compiler()), f"-print-file-name={name}"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()

    here = Path(__file__).parent
    environment = {
        **os.environ,
        "ASAN_OPTIONS": "detect_leaks=0",
        "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": os.pathsep.join(
            map(str, (here, here / "emulation", *filter(None, sys.path)))
        ),
        "TURNOUT_EMULATED_SANITIZE": "address,undefined",
        "UBSAN_OPTIONS": "halt_on_error=1",
    }
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=300,
    )


@pytest.mark.parametrize(
    ("kind", "message"),
    [("write", "heap-buffer-overflow"), ("shift", "shift exponent 32 is too large")],
)
def test_sanitizers_find_mistakes(kind: str, message: str) -> None:
    done = sanitized(["-c", _OVERFLOW, kind])
    assert done.returncode != 0
    assert message in done.stderr


def test_conformance_with_sanitizers() -> None:
    """No kernel reads or writes outside of its arrays, or relies on what C leaves open."""
    chosen = "test_arrays or test_histogram or (test_kernel and not python)"
    done = sanitized(["-m", "turnout", "check", "cuda_emulated", "-k", chosen])
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " failed" not in done.stdout.splitlines()[-1]
