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
from turnout import NDArray, f64, i64

Floats = NDArray[f64, 1]
Floats2 = NDArray[f64, 2]
Integers = NDArray[i64, 1]

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
    exec(compile(text, file, "exec", dont_inherit=True), namespace)
    return namespace[name]


def floats(*values: Any) -> Any:
    return np.array(values, np.float64)


def integers(*values: Any) -> Any:
    return np.array(values, np.int64)


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
    """The error of calling a kernel; a second call gives the same one."""
    kernel = tn.kernel(function)
    errors = []
    for _ in range(2):
        with pytest.raises(tn.KernelError) as caught:
            kernel(*copies(arguments), device="reference")
        errors.append(caught.value)
    assert str(errors[0]) == str(errors[1])
    return errors[0]


def lowered(kernel: tn.Kernel) -> Any:
    """The kernel for float64 planes and Python ints as params."""
    specs = kernel.signature.parameters
    types = {s.name: s.dtype or ("int" if s.role == "param" else tn.f64) for s in specs}
    return kernel.lower({"return": tn.f64, **types})


def notes(kernel: tn.Kernel) -> dict[int, tuple[bool, str]]:
    """What became of each loop, by its line counted from the line of ``def`` as 1."""
    first_line = kernel.source.source.tree.lineno
    return {
        note.line - first_line + 1: (note.is_parallel, note.reason)
        for note in lowered(kernel).notes
    }
