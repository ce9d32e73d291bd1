"""Kernels and the path of a call, from top to bottom.

A call binds its arguments, finds its device, and looks up the executable for that device and the
exact types of the arguments. The first call with new types makes it: the source is lowered to a
plan (`turnout.lang`), dispatches are lowered, and every unit is compiled or taken from the disk
cache (`turnout.compilation`). The executable checks shapes, writability and overlap
(`turnout.arguments`) and runs the steps of the plan.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np

from . import ir
from .arguments import (
    Types,
    as_arguments,
    bind,
    call_error,
    call_types,
    overlap_problem,
    sample_count,
    scalar_conversion,
    type_key,
    writability_problems,
)
from .backends import resolve
from .compilation import load_unit, lower_plan
from .errors import CallError, KernelError, OutOfBoundsError, PerformanceWarning
from .hooks import Device, IndexViolation, Options
from .lang import (
    SAMPLES,
    FreeNames,
    Func,
    KernelSource,
    LoweredKernel,
    ParameterSpec,
    Returned,
    lower_kernel,
    parse_function,
    parse_signature,
    read_lines,
)
from .loading import DeviceContext
from .positions import Count, position_count


class Kernel:
    """A compiled function; made by `turnout.kernel`.

    Call it with arrays and numbers, by position or keyword. Every call also takes

    device : str or Device, optional
        Where to run, for example ``"cpu"`` or ``"cuda:1"``.
    samples : int, optional
        Per-sample form only: run the first `samples` samples of arrays that are at least as long.

    Attributes
    ----------
    __wrapped__ : callable
        The Python function. It is never run; its source is compiled.
    """

    __turnout_kernel__ = True

    def __init__(
        self, function: Callable[..., Any], *, fastmath: bool = False, debug: bool = False
    ) -> None:
        self.__wrapped__ = function
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__doc__ = function.__doc__
        self.__signature__ = inspect.signature(function)
        self.fastmath = fastmath
        self.debug = debug
        self.signature = parse_signature(function)
        self._specs = self.signature.parameters
        self._lines = read_lines(function)
        self._free = FreeNames(function)
        self._source: KernelSource | None = None
        self._lock = threading.RLock()
        self._executables: dict[tuple[DeviceContext, tuple[Hashable, ...]], Executable] = {}

    def __call__(
        self,
        *args: Any,
        device: str | Device | None = None,
        samples: int | None = None,
        **kwargs: Any,
    ) -> Any:
        if kwargs or len(args) != len(self._specs):
            values = bind(self.__signature__, self.__name__, args, kwargs)
        else:
            values = list(args)
        values = as_arguments(self._specs, values)
        context = resolve(values, device)
        key = (context, type_key(self._specs, values))
        executable = self._executables.get(key)
        if executable is None:
            executable = self._make(context, key, values)
        if samples is not None and self.signature.form == "array":
            raise CallError(
                f"kernel {self.__name__}: samples= is for the per-sample form; this kernel is of "
                "the array form"
            )
        return executable(values, samples)

    def _make(
        self, context: DeviceContext, key: tuple[Any, Any], values: Sequence[Any]
    ) -> Executable:
        types = call_types(self.__name__, self.signature, values)
        with self._lock:
            executable = self._executables.get(key)
            if executable is None:
                executable = Executable(self, self.lower(types), types, context)
                self._executables[key] = executable
        return executable

    @property
    def source(self) -> KernelSource:
        """The parsed source; parsed at the first use."""
        if self._source is None:
            parsed = parse_function(self.__wrapped__, self._lines)
            self._source = KernelSource(
                self.__name__, parsed, self._free, self.signature, self.fastmath
            )
        return self._source

    @property
    def options(self) -> Options:
        """How the units of this kernel are compiled."""
        return Options(debug=self.debug)

    def lower(self, types: Types) -> LoweredKernel:
        """The kernel as a plan of typed units, for given types of its parameters."""
        return lower_kernel(self.source, types)

    def default_types(self, width: ir.DType = ir.f64) -> Types:
        """Types of a typical call, for reading the code of a kernel that was not called yet."""
        types: Types = {"return": width}
        for spec in self._specs:
            types[spec.name] = spec.dtype or ("float" if spec.role == "param" else width)
        return types

    def __repr__(self) -> str:
        parameters = ", ".join(f"{spec.name}: {spec.annotation}" for spec in self._specs)
        return f"<turnout.kernel {self.__qualname__}({parameters})>"

    def __reduce__(self) -> str:
        return self.__qualname__


@dataclass(frozen=True)
class _Launch:
    """One unit of a plan, ready to run."""

    unit: ir.Unit
    launcher: Callable[[tuple[Any, ...], int], None]
    count: Count
    names: tuple[str, ...]
    exclusive: tuple[tuple[str, str], ...]
    elementwise: tuple[tuple[str, str], ...]


class Executable:
    """A kernel for one device and one combination of argument types."""

    def __init__(
        self, kernel: Kernel, lowered: LoweredKernel, types: Types, context: DeviceContext
    ) -> None:
        self.kernel = kernel
        self.lowered = lowered
        self.context = context
        self._specs = kernel.signature.parameters
        self._per_sample = kernel.signature.form == "sample"
        self._has_mask = any(spec.role == "mask" for spec in self._specs)
        self._scalars = [
            (spec.name, scalar_conversion(spec, types[spec.name]))
            for spec in self._specs
            if not spec.rank
        ]
        plan = lower_plan(lowered.plan, context.backend, context.device.target)
        self.plan = plan
        self._scratch = [step for step in plan.steps if isinstance(step, ir.Scratch)]
        self._launches = [self._launch(step) for step in plan.steps if isinstance(step, ir.Run)]
        own = {spec.name for spec in self._specs if spec.rank}
        arrays = [array for unit in plan.units for array in unit.arrays.values()]
        self._written = sorted({a.name for a in arrays if a.is_written} & own)

    def _launch(self, run: ir.Run) -> _Launch:
        unit = run.unit
        return _Launch(
            unit,
            load_unit(unit, self.context, self.kernel.options),
            position_count(unit),
            tuple(parameter.name for parameter in unit.parameters),
            run.exclusive,
            run.elementwise,
        )

    def __call__(self, values: Sequence[Any], samples: int | None) -> Any:
        arguments = {spec.name: v for spec, v in zip(self._specs, values, strict=True)}
        count = self._check(arguments, values, samples)
        for name, convert in self._scalars:
            arguments[name] = convert(arguments[name])
        if self._per_sample:
            arguments[SAMPLES] = count
        returned = [self._allocated(spec, count) for spec in self.lowered.returned]
        for spec, array in zip(self.lowered.returned, returned, strict=True):
            arguments[spec.name] = array
        if self.context.is_host:
            self._run(arguments)
        else:
            self._run_on_device(arguments)
        return self._result([arguments[spec.name] for spec in self.lowered.returned])

    def _check(self, arguments: dict[str, Any], values: Sequence[Any], samples: int | None) -> int:
        count = 0
        problems: list[str] = []
        if self._per_sample:
            count, problems = sample_count(self._specs, values, samples)
        problems += writability_problems((name, arguments[name]) for name in self._written)
        for launch in self._launches:
            for pairs, may_coincide in ((launch.exclusive, False), (launch.elementwise, True)):
                for first, second in pairs:
                    if first in arguments and second in arguments:
                        problem = overlap_problem(
                            (first, arguments[first]), (second, arguments[second]), may_coincide
                        )
                        problems += [problem] if problem else []
        if problems:
            raise call_error(self.kernel.__name__, list(dict.fromkeys(problems)))
        return count

    def _allocated(self, spec: Returned, count: int) -> np.ndarray[Any, Any]:
        shape = (spec.width, count) if spec.width else (count,)
        # Samples that the mask skips are not written.
        make = np.zeros if self._has_mask else np.empty
        return make(shape, spec.dtype)

    def _run(self, arguments: dict[str, Any]) -> None:
        for scratch in self._scratch:
            zeros = np.zeros(scratch.shape, scratch.dtype)
            arguments[scratch.name] = self.context.memory.put(zeros)
        for launch in self._launches:
            args = tuple([arguments[name] for name in launch.names])
            try:
                launch.launcher(args, launch.count(args))
            except IndexViolation as violation:
                raise self._out_of_bounds(launch.unit, violation) from None

    def _run_on_device(self, arguments: dict[str, Any]) -> None:
        """Run on a device with memory of its own; host arrays are copied there and back."""
        memory = self.context.memory
        copied = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
        given = sorted(copied.keys() - {spec.name for spec in self.lowered.returned})
        if given:
            warnings.warn(
                f"kernel {self.kernel.__name__} runs on {self.context.device}; the NumPy arrays "
                f"{', '.join(given)} are copied there and back at every call. Keep them there with "
                "turnout.array(x)",
                PerformanceWarning,
                stacklevel=4,
            )
        for name, host in copied.items():
            arguments[name] = memory.put(np.ascontiguousarray(host))
        self._run(arguments)
        for name in self._written:
            if name in copied:
                host = copied[name]
                back = host if host.flags.c_contiguous else np.empty(host.shape, host.dtype)
                memory.get(arguments[name], back)
                if back is not host:
                    host[...] = back

    def _result(self, returned: list[Any]) -> Any:
        if not returned:
            return None
        is_tuple = self.kernel.signature.returns_tuple or len(returned) > 1
        return tuple(returned) if is_tuple else returned[0]

    def _out_of_bounds(self, unit: ir.Unit, violation: IndexViolation) -> OutOfBoundsError:
        sites = [s for s in ir.statements(unit.body.body) if isinstance(s, ir.Load | ir.Store)]
        site = sites[violation.site]
        file = self.kernel.source.source.file
        index = violation.index
        shown = f"index {index - violation.extent if index < 0 else index}"
        return OutOfBoundsError(
            f"kernel {self.kernel.__name__}, {file}:{site.line}: {shown} is out of bounds for axis "
            f"{violation.axis} of {site.array!r}, which has length {violation.extent}"
        )


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...
@overload
def kernel(
    *, fastmath: bool = False, debug: bool = False
) -> Callable[[Callable[..., Any]], Kernel]: ...


def kernel(
    function: Callable[..., Any] | None = None, /, *, fastmath: bool = False, debug: bool = False
) -> Any:
    """Compile a Python function; use as a decorator, plain or with options.

    With a parameter annotated `Scalar`, `Index`, `Vector`, `Mutable` or `Terminated` the body is
    that of one sample; otherwise it is the array form, with loops and indexing.

    Parameters
    ----------
    function : callable
        Its source is compiled at the first call with each combination of argument types.
    fastmath : bool
        Allow floating point to be reassociated, contracted and approximated.
    debug : bool
        Check every index; a violation raises `OutOfBoundsError`.

    Returns
    -------
    Kernel

    Raises
    ------
    KernelError
        Where annotations are missing or wrong, or the source is not available. What is wrong inside
        of the body is found at the first call, when types are known.

    Examples
    --------
    >>> import numpy as np, turnout as tn
    >>> from turnout import Param, Scalar
    >>> @tn.kernel
    ... def scaled(x: Scalar, factor: Param) -> Scalar:
    ...     return x * factor
    >>> scaled(np.array([1.0, 2.0]), 3)
    array([3., 6.])
    """
    if function is None:
        return lambda decorated: kernel(decorated, fastmath=fastmath, debug=debug)  # type: ignore[call-overload]
    for name, option in (("fastmath", fastmath), ("debug", debug)):
        if not isinstance(option, bool):
            raise KernelError(f"kernel({name}={option!r}): give True or False")
    operation = getattr(function, "__turnout_registered__", None)
    if operation:
        raise KernelError(
            f"{function.__name__} is already registered as an implementation of {operation!r}; the "
            "register decorator must be the topmost one, above turnout.kernel"
        )
    if isinstance(function, Kernel | Func):
        raise KernelError(f"{function!r} is compiled already; decorate the plain function once")
    return Kernel(function, fastmath=fastmath, debug=debug)


def func(function: Callable[..., Any]) -> Func:
    """Make a helper that kernels may call; its body is inlined into the kernel.

    Parameters
    ----------
    function : callable
        A Python function in the kernel language; arguments can be numbers, vectors and arrays.

    Returns
    -------
    Func
        Outside of kernels it runs as plain Python.

    Raises
    ------
    KernelError
        Where the source is not available.

    Examples
    --------
    >>> import turnout as tn
    >>> @tn.func
    ... def square(x):
    ...     return x * x
    >>> square(3)
    9
    """
    if isinstance(function, Kernel | Func):
        raise KernelError(f"{function!r} is compiled already; decorate the plain function once")
    return Func(function, read_lines(function))


__all__ = ["Executable", "Kernel", "ParameterSpec", "func", "kernel"]
