"""What the tests of the kernel language share.

The oracle of most of them is Python itself: a kernel's function runs on NumPy arrays as it stands,
and NumPy's scalars have the types that the language promises.
"""

from __future__ import annotations

import itertools
import linecache
from typing import Any

import numpy as np
import pytest

import turnout as tn
import turnout.math as tm

DEVICES = [
    "reference",
    pytest.param(
        "cpu",
        marks=pytest.mark.skipif("cpu" not in tn.backends(), reason="turnout-cpu is not installed"),
    ),
]

NAMES = {name: getattr(tn, name) for name in tn.__all__} | {"tn": tn, "tm": tm, "np": np}

_numbers = itertools.count()


def function_from(text: str, name: str = "k", **names: Any) -> Any:
    """Execute `text` with its source known to linecache, and give what it defines as `name`."""
    file = f"<kernel {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    namespace = NAMES | names
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]


def copies(arguments: tuple[Any, ...]) -> list[Any]:
    return [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]


def assert_same(got: Any, wanted: Any) -> None:
    """Equal dtype, shape and bits, where every NaN is equal to every other."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)
    if wanted.dtype.kind == "f":
        number = ~np.isnan(wanted)
        np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(wanted[number]))


def run_python(function: Any, *arguments: Any) -> list[Any]:
    """The arguments after plain Python ran the function on copies of them."""
    wanted = copies(arguments)
    with np.errstate(all="ignore"):
        function(*wanted)
    return wanted


def assert_like_python(function: Any, *arguments: Any, device: str) -> tn.Kernel:
    """Run an array-form kernel and the function itself on copies; they must agree to the bit."""
    kernel = tn.kernel(function)
    wanted = run_python(function, *arguments)
    got = copies(arguments)
    assert kernel(*got, device=device) is None
    for left, right in zip(got, wanted, strict=True):
        assert_same(left, right)
    return kernel


def kernel_error(function: Any, *arguments: Any) -> tn.KernelError:
    """The error of making and calling a kernel; a second call gives the same one."""
    with pytest.raises(tn.KernelError) as caught:
        kernel = tn.kernel(function)
        kernel(*copies(arguments), device="reference")
    if "kernel" in locals():
        with pytest.raises(tn.KernelError) as again:
            kernel(*copies(arguments), device="reference")
        assert str(again.value) == str(caught.value)
    return caught.value


def notes(kernel: tn.Kernel) -> dict[int, tuple[bool, str]]:
    """What became of each loop, by its line counted from the line of ``def`` as 1."""
    source = kernel.source.source
    return {
        note.line - source.tree.lineno + 1: (note.is_parallel, note.reason)
        for note in kernel.lower(kernel.default_types()).notes
    }
