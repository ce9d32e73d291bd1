"""What ``turnout show`` and ``turnout doctor`` print, as data.

`find_kernel` and `find_kernels` resolve what a user typed, `inspect_kernel` says what became of a
kernel on a device, and `examine` says what is installed and whether it works.
"""

from __future__ import annotations

import ast
import linecache
import os
import platform
import re
import time
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from . import discovery, ir
from .arguments import Types
from .backends import BackendStatus, active, array, backends, devices, resolve, to_numpy
from .cache import default_cache
from .compilation import compile_unit, lower_plan
from .errors import BackendError, CallError, KernelError, TurnoutError, Unavailable
from .hooks import Binary, Device, Options
from .ir import DTYPE_BY_NAME, DType, f32, f64
from .kernel import Kernel, kernel
from .lang import Func, LoopNote, LoweredKernel, Mutable, NDArray, Param, Scalar
from .loading import DeviceContext
from .lower import plan_dispatches
from .perf import PerformanceDispatcher
from .targets import attribute, imported, split_target

if TYPE_CHECKING:
    # What annotates a kernel is an object, which type checkers do not take for a type.
    Factor = Any
    Sample = Any
    Output = Any
    Matrix = Any
    Row = Any
else:
    Factor = Param
    Sample = Scalar
    Output = Mutable[Scalar]
    Matrix = NDArray[f32, 2]
    Row = NDArray[f32, 1]

# -- find a kernel ---------------------------------------------------------------------------------

_FORMS = "MODULE:KERNEL or path/to/file.py:KERNEL"


def find_kernel(target: str) -> Kernel:
    """Import the kernel that a user named.

    Parameters
    ----------
    target : str
        ``"module:kernel"`` or ``"path/to/file.py:kernel"``; the kernel may be an attribute of an
        attribute. Modules are found from the current directory, as by ``python -m``.

    Returns
    -------
    Kernel

    Raises
    ------
    CallError
        Where there is no such module, its import fails, or it has no such kernel.
    """
    place, path = split_target(target)
    module = imported(place, _FORMS)
    value = attribute(module, place, path, _listed(place, kernels_of(module)))
    if not isinstance(value, Kernel):
        raise CallError(f"{target} is {_description(value)}; {_listed(place, kernels_of(module))}")
    return value


def find_kernels(target: str) -> dict[str, Kernel]:
    """Import a module or file, and list the kernels in it.

    Parameters
    ----------
    target : str
        As for `find_kernel`, without the kernel.

    Returns
    -------
    dict of str to Kernel
        By name, in the order of the module.

    Raises
    ------
    CallError
        Where there is no such module, its import fails, or it has no kernels.
    """
    module = imported(target, _FORMS)
    kernels = kernels_of(module)
    if not kernels:
        raise CallError(f"{target}: {_listed(target, kernels)}")
    return kernels


def kernels_of(module: types.ModuleType) -> dict[str, Kernel]:
    """The kernels of a module by name, in its order."""
    return {name: value for name, value in vars(module).items() if isinstance(value, Kernel)}


def _listed(place: str, kernels: Mapping[str, Kernel]) -> str:
    if not kernels:
        return "there is no kernel (a function decorated with @turnout.kernel) at its top level"
    return f"its kernels are: {', '.join(f'{place}:{name}' for name in kernels)}"


def _description(value: object) -> str:
    if isinstance(value, PerformanceDispatcher):
        names = ", ".join(value.implementations) or "none"
        return (
            f"a perf_dispatch operation (its implementations: {names}), which runs one of several "
            "functions; name one of them that is a kernel"
        )
    if isinstance(value, Func):
        return "a helper (turnout.func), which has no code of its own; name a kernel that calls it"
    if callable(value) and not isinstance(value, type):
        return "a plain Python function; only functions decorated with @turnout.kernel are compiled"
    return f"{value!r}, which is no kernel"


# -- what became of a kernel -----------------------------------------------------------------------


@dataclass(frozen=True)
class LoopReport:
    """What became of one loop of the source.

    Attributes
    ----------
    line : int
        Line of the loop; for the per-sample form, also that of the kernel itself.
    text : str
        The source there.
    is_parallel : bool
        Whether its iterations may run in any order and at the same time.
    reason : str
        Why, in words.
    advice : str
        What its author can do where it is to be parallel; empty where there is nothing.
    threads : str
        Whether its iterations may be split over threads, in words.
    lanes : int or None
        How many iterations the backend runs at once in a vector, 1 where it does not; None where it
        says nothing.
    compiled : tuple of str
        What the backend made of it, in its own words, each thing once; empty where it says nothing.
    """

    line: int
    text: str
    is_parallel: bool
    reason: str
    advice: str
    threads: str
    lanes: int | None
    compiled: tuple[str, ...]


@dataclass(frozen=True)
class DispatchReport:
    """How one dispatch of a kernel is lowered.

    Attributes
    ----------
    line : int
        Line of its branches.
    text : str
        The source there.
    name, policy : str
        Its name, and the policy that it declares.
    branches : int
    lowering : str
        What is made of it, in words.
    """

    line: int
    text: str
    name: str
    policy: str
    branches: int
    lowering: str


@dataclass(frozen=True)
class UnitReport:
    """One launch of a kernel.

    Attributes
    ----------
    name : str
    text : str
        The unit as it is given to the backend.
    stages : dict of str to str
        Texts of the backend on the way to its code, by the name of the stage.
    """

    name: str
    text: str
    stages: dict[str, str]


@dataclass(frozen=True)
class KernelReport:
    """What became of a kernel for one device and one combination of types.

    Attributes
    ----------
    name, file, line : str, str, int
        The kernel and where it is defined.
    parameters : dict of str to str
        The type of each parameter in this report, after what the user wrote.
    device : str
    plan : str
        The steps of one call.
    units : tuple of UnitReport
    loops : tuple of LoopReport
        In the order of the source.
    dispatches : tuple of DispatchReport
        In the order of the source.
    """

    name: str
    file: str
    line: int
    parameters: dict[str, str]
    device: str
    plan: str
    units: tuple[UnitReport, ...]
    loops: tuple[LoopReport, ...]
    dispatches: tuple[DispatchReport, ...]

    @property
    def stages(self) -> tuple[str, ...]:
        """Names of the backend's stages, in order."""
        return tuple(dict.fromkeys(stage for unit in self.units for stage in unit.stages))


def inspect_kernel(
    inspected: Kernel,
    device: str | Device | None = None,
    *,
    width: DType = f64,
    param_types: Mapping[str, str] | None = None,
) -> KernelReport:
    """Compile a kernel and say what became of it; nothing runs.

    Parameters
    ----------
    inspected : Kernel
    device : str or Device, optional
        What it is compiled for; the active device by default.
    width : DType
        Float type of the parameters that take theirs from the call.
    param_types : mapping of str to str, optional
        Types of scalar parameters that the annotation leaves open: ``"int"`` and ``"float"`` for
        Python's numbers, or the name of a dtype; ``"float"`` by default.

    Returns
    -------
    KernelReport

    Raises
    ------
    CallError
        Where `param_types` does not fit the kernel.
    KernelError
        Where the source means nothing for these types.
    CompileError
        Where the backend cannot compile it.
    """
    context = resolve((), device)
    call_types = inspected.default_types(width) | _param_types(inspected, param_types or {})
    lowered = _lowered(inspected, call_types)
    plan = lower_plan(lowered.plan, context.backend, context.device.target)
    options = Options(debug=inspected.debug, keep_text=True)
    binaries = [
        compile_unit(unit, context.backend, context.device.target, options) for unit in plan.units
    ]
    source = inspected.source.source
    return KernelReport(
        inspected.__name__,
        source.file,
        source.tree.lineno,
        {
            spec.name: f"{spec.annotation} = {call_types[spec.name]}"
            for spec in inspected.signature.parameters
        },
        str(context.device),
        ir.format_plan(plan),
        tuple(
            UnitReport(unit.name, ir.format_unit(unit), _stages(binary))
            for unit, binary in zip(plan.units, binaries, strict=True)
        ),
        _loops(inspected, lowered, plan, binaries),
        _dispatches(inspected, lowered.plan),
    )


def _param_types(inspected: Kernel, names: Mapping[str, str]) -> Types:
    open_ones = {
        spec.name for spec in inspected.signature.parameters if _is_open_param(spec.name, inspected)
    }
    allowed_types: Types = {"int": "int", "float": "float", **DTYPE_BY_NAME}
    found: Types = {}
    for name, type_name in names.items():
        if name not in open_ones:
            allowed = ", ".join(sorted(open_ones)) or "there are none"
            raise CallError(
                f"kernel {inspected.__name__} has no scalar parameter {name!r} whose type follows "
                f"the call; those are: {allowed}"
            )
        if type_name not in allowed_types:
            raise CallError(
                f"{type_name!r} is no type of {name!r}; allowed are {', '.join(allowed_types)}"
            )
        found[name] = allowed_types[type_name]
    return found


def _is_open_param(name: str, inspected: Kernel) -> bool:
    (spec,) = (spec for spec in inspected.signature.parameters if spec.name == name)
    return spec.role == "param" and spec.dtype is None


def _lowered(inspected: Kernel, call_types: Types) -> LoweredKernel:
    try:
        return inspected.lower(call_types)
    except KernelError as error:
        assumed = [
            name
            for name, assumed_type in call_types.items()
            if assumed_type == "float" and name != "return"
        ]
        if assumed:
            error.add_note(
                f"{', '.join(assumed)}: taken for a Python float, because the kernel does not say. "
                f"Where calls give an int, say so: --param {assumed[0]}=int"
            )
        raise


def _stages(binary: Binary) -> dict[str, str]:
    texts = {
        key.removeprefix("text:"): text
        for key, text in binary.metadata.items()
        if key.startswith("text:")
    }
    texts.pop("unit", None)  # every report has it
    return texts


def _loops(
    inspected: Kernel, lowered: LoweredKernel, plan: ir.Plan, binaries: list[Binary]
) -> tuple[LoopReport, ...]:
    spaces = _iteration_spaces(inspected, lowered.notes, plan, binaries)

    def compiled(note: LoopNote) -> tuple[str, ...]:
        words = [binary.metadata.get(f"loop:{note.line}", "") for binary in binaries]
        return tuple(dict.fromkeys(filter(None, [spaces.get(note.line, ""), *words])))

    reports = []
    for note in sorted(lowered.notes, key=lambda note: note.line):
        words = compiled(note)
        reports.append(
            LoopReport(
                note.line,
                _source_line(inspected, note.line),
                note.is_parallel,
                note.reason,
                note.advice,
                _threads(note),
                _lanes(words),
                words,
            )
        )
    return tuple(reports)


def _source_line(inspected: Kernel, line: int) -> str:
    return linecache.getline(inspected.source.source.file, line).rstrip()


def _threads(note: LoopNote) -> str:
    if note.is_parallel:
        return "a long call may be split over threads"
    if note.is_inside_parallel:
        return "each runs within one thread; what is around it may be split over threads"
    return "one thread runs it"


def _lanes(words: tuple[str, ...]) -> int | None:
    if not words:
        return None
    return max((int(lanes) for lanes in re.findall(r"(\d+) lanes", " ".join(words))), default=1)


_LOWERINGS = {
    "switch": "a branch to the formula of the class",
    "predicated": "all formulas are evaluated and one is selected, without a branch",
    "segmented": "samples are sorted by class, and a unit runs each formula",
    "auto": "chosen by measuring while the program runs; shown as a branch to the formula",
}


def _dispatches(inspected: Kernel, plan: ir.Plan) -> tuple[DispatchReport, ...]:
    return tuple(
        DispatchReport(
            dispatch.line,
            _source_line(inspected, dispatch.line),
            dispatch.name,
            dispatch.policy,
            len(dispatch.arms),
            _LOWERINGS[dispatch.policy],
        )
        for dispatch in sorted(plan_dispatches(plan), key=lambda dispatch: dispatch.line)
    )


def _iteration_spaces(
    inspected: Kernel, notes: tuple[LoopNote, ...], plan: ir.Plan, binaries: list[Binary]
) -> dict[int, str]:
    """What the backend made of each iteration space, by the lines of the loops in it."""
    units = zip(plan.units, binaries, strict=True)
    said = {unit.name: binary.metadata.get("loop:space", "") for unit, binary in units}
    reports = []
    for step in plan.steps:
        if isinstance(step, ir.Run) and step.unit.extents and not _joins_parts(step.unit, plan):
            reports.append(said[step.unit.name])
        elif isinstance(step, ir.Split):
            branches = [said[unit.name] for part in step.branches for unit in part.units]
            reports.append(" or ".join(dict.fromkeys(branches)))
    nests = _parallel_nests(inspected, notes)
    if len(nests) != len(reports):
        return {}  # a helper with loops that is called twice: nothing says which is which
    found: dict[int, str] = {}
    for (*outer, innermost), report in zip(nests, reports, strict=True):
        found |= dict.fromkeys(outer, f"one space of iterations with the loop on line {innermost}")
        found[innermost] = report
    return found


def _joins_parts(unit: ir.Unit, plan: ir.Plan) -> bool:
    """Whether a unit joins what the loop of a reduction left; it is no loop of the source."""
    scratch = (step for step in plan.steps if isinstance(step, ir.Scratch))
    parts = {each.name for each in scratch if not each.is_filled}
    read = {array.name for array in unit.arrays.values() if array.is_read}
    return bool(read) and read <= parts


def _parallel_nests(inspected: Kernel, notes: tuple[LoopNote, ...]) -> list[list[int]]:
    """The lines of the loops of each parallel nest, from the outermost to the innermost."""
    ends = {
        node.lineno: node.end_lineno or node.lineno
        for node in ast.walk(inspected.source.source.tree)
        if isinstance(node, ast.For)
    }
    nests: list[list[int]] = []
    for note in notes:
        if not note.is_parallel:
            continue
        if nests and nests[-1][0] < note.line <= ends.get(nests[-1][0], 0):
            nests[-1].append(note.line)
        else:
            nests.append([note.line])
    return nests


# -- what is installed -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """A small kernel with a known answer that was compiled for a device and run on it.

    Attributes
    ----------
    form : str
        ``"per-sample"`` or ``"array"``.
    compile_ns : int or None
        Nanoseconds from source to code, past the cache; None where that failed.
    first_result_ns : int or None
        Nanoseconds of a kernel's first call, with what is in the cache; None where that failed.
    problem : str
        What went wrong; empty where the answer is right.
    """

    form: str
    compile_ns: int | None = None
    first_result_ns: int | None = None
    problem: str = ""


@dataclass(frozen=True)
class DeviceReport:
    """One device, and whether it works.

    Attributes
    ----------
    name, label : str
    memory_bytes : int
        0 where unknown.
    architecture : str
        What is compiled for, in the backend's own words.
    lanes : int
        Samples that execute in lockstep.
    capabilities : tuple of str
        The words by which the conformance suite skips.
    probes : tuple of Probe
        Empty where the device cannot be used.
    reason, fix : str
        Why it cannot be used and what to do about it; empty where it can.
    """

    name: str
    label: str
    memory_bytes: int
    architecture: str
    lanes: int
    capabilities: tuple[str, ...]
    probes: tuple[Probe, ...] = ()
    reason: str = ""
    fix: str = ""


@dataclass(frozen=True)
class BackendReport:
    """One installed backend.

    Attributes
    ----------
    name, distribution, version : str
    is_usable : bool
        Whether it has a device.
    is_broken : bool
        Whether its code is at fault, rather than hardware missing.
    reason, fix : str
        Why it cannot be used and what to do about it; empty where it can.
    devices : tuple of DeviceReport
    """

    name: str
    distribution: str
    version: str
    is_usable: bool
    is_broken: bool
    reason: str
    fix: str
    devices: tuple[DeviceReport, ...]


@dataclass(frozen=True)
class InstallationReport:
    """What is installed, and whether it works.

    Attributes
    ----------
    versions : dict of str to str
        Of turnout, Python and NumPy.
    platform : str
    cache : str
        State of the cache of compiled kernels.
    active_device : str
        Where calls run that name no device; empty where there is none.
    active_reason : str
        Why that one, or why none.
    backends : tuple of BackendReport
    problems : tuple of str
        What was ignored while looking for plugins, and warnings.
    is_healthy : bool
        Whether no backend is broken, every probe was right, and calls have a device to run on.
    """

    versions: dict[str, str]
    platform: str
    cache: str
    active_device: str
    active_reason: str
    backends: tuple[BackendReport, ...]
    problems: tuple[str, ...]
    is_healthy: bool = field(init=False)

    def __post_init__(self) -> None:
        probes = [
            probe for backend in self.backends for each in backend.devices for probe in each.probes
        ]
        is_healthy = (
            bool(self.active_device)
            and not any(backend.is_broken for backend in self.backends)
            and not any(probe.problem for probe in probes)
        )
        object.__setattr__(self, "is_healthy", is_healthy)


def versions() -> dict[str, str]:
    """Versions of turnout, Python and NumPy."""
    return {
        "turnout": discovery.core_version(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def examine() -> InstallationReport:
    """Ask every backend for its devices, and run a small kernel on each of them.

    Returns
    -------
    InstallationReport
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        problems = discovery.installed().problems
        reports = tuple(_examine_backend(status) for status in backends().values())
        active_device, active_reason = _examine_active()
        cache = default_cache().describe()
    problems += tuple(str(warning.message) for warning in caught)
    return InstallationReport(
        versions(),
        platform.platform(),
        cache,
        active_device,
        active_reason,
        reports,
        tuple(dict.fromkeys(problems)),
    )


def _examine_active() -> tuple[str, str]:
    try:
        context = active()
    except TurnoutError as error:
        return "", str(error)
    chosen = os.environ.get("TURNOUT_BACKEND", "").strip()
    if chosen:
        return str(context.device), f"TURNOUT_BACKEND={chosen}"
    if context.backend.name == "reference":
        return str(context.device), "no faster backend can be used; this one needs no compiler"
    return str(context.device), f"the default where {context.backend.name} can be used"


def _examine_backend(status: BackendStatus) -> BackendReport:
    found = tuple(_examine_device(device) for device in status.devices)
    return BackendReport(
        status.name,
        status.distribution,
        status.version,
        status.available,
        _is_broken(status),
        status.reason,
        status.fix,
        found,
    )


def _is_broken(status: BackendStatus) -> bool:
    if status.available:
        return False
    try:
        devices(status.name)
    except Unavailable:
        return False
    except BackendError:
        return True
    return False


def _examine_device(device: Device) -> DeviceReport:
    probes: tuple[Probe, ...] = ()
    reason = fix = ""
    try:
        context = resolve((), device)
    except Unavailable as error:
        reason, fix = error.reason, error.fix
    except BackendError as error:
        probes = (Probe("any", problem=str(error)),)
    else:
        probes = tuple(_probe(form, context) for form in _PROBES)
    return DeviceReport(
        str(device),
        device.label,
        device.memory_bytes,
        device.target.arch,
        device.target.lanes,
        tuple(sorted(device.target.features)),
        probes,
        reason,
        fix,
    )


def scaled(factor: Factor, x: Sample, out: Output) -> None:
    """Doctor's kernel of the per-sample form."""
    out = factor * x + 1  # noqa: F841 - an output


def row_sums(table: Matrix, out: Row) -> None:
    """Doctor's kernel of the array form."""
    for i in range(table.shape[0]):
        total = f32(0)
        for j in range(table.shape[1]):
            total += table[i, j]
        out[i] = total


# Small whole numbers, for which every device has exact float32 arithmetic.
_PROBES: dict[str, tuple[Callable[..., None], tuple[Any, ...], tuple[float, ...]]] = {
    "per-sample": (scaled, (2.0, np.arange(5, dtype=np.float32)), (1, 3, 5, 7, 9)),
    "array": (row_sums, (np.arange(6, dtype=np.float32).reshape(2, 3),), (3, 12)),
}


def _probe(form: str, context: DeviceContext) -> Probe:
    function, inputs, answer = _PROBES[form]
    compile_ns = first_result_ns = None
    try:
        start_ns = time.perf_counter_ns()
        inspect_kernel(kernel(function), context.device, width=f32)
        compile_ns = time.perf_counter_ns() - start_ns
        start_ns = time.perf_counter_ns()
        result = _run_probe(kernel(function), inputs, len(answer), context.device)
        first_result_ns = time.perf_counter_ns() - start_ns
    except Exception as error:
        # Doctor tells what is wrong with other people's code, whatever that is.
        return Probe(form, compile_ns, first_result_ns, discovery.describe(error))
    problem = "" if result == answer else f"wrong result: {result}, not {answer}"
    return Probe(form, compile_ns, first_result_ns, problem)


def _run_probe(
    compiled: Kernel, inputs: tuple[Any, ...], count: int, device: Device
) -> tuple[float, ...]:
    there = [array(x, device) if isinstance(x, np.ndarray) else x for x in inputs]
    out = array(np.zeros(count, np.float32), device)
    compiled(*there, out, device=device)
    return tuple(to_numpy(out).tolist())
