"""The kernel language: annotations, and Python source to typed units. Needs no device."""

from .annotations import (
    Index,
    Mutable,
    NDArray,
    Param,
    ParameterSpec,
    Scalar,
    Signature,
    Terminated,
    Vector,
    parse_signature,
)
from .calls import POLICIES
from .frontend import (
    SAMPLES,
    KernelSource,
    LoweredKernel,
    Returned,
    lower_kernel,
    sample_notes,
    sample_overlaps,
)
from .names import FreeNames, Func, parallel, serial
from .notes import LoopNote
from .source import FunctionSource, parse_function, read_lines
from .values import Weak

__all__ = [
    "POLICIES",
    "SAMPLES",
    "FreeNames",
    "Func",
    "FunctionSource",
    "Index",
    "KernelSource",
    "LoopNote",
    "LoweredKernel",
    "Mutable",
    "NDArray",
    "Param",
    "ParameterSpec",
    "Returned",
    "Scalar",
    "Signature",
    "Terminated",
    "Vector",
    "Weak",
    "lower_kernel",
    "parallel",
    "parse_function",
    "parse_signature",
    "read_lines",
    "sample_notes",
    "sample_overlaps",
    "serial",
]
