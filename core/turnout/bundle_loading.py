"""Kernels out of bundles: `load` and `run`.

A loaded kernel is a `Kernel` whose plan was made elsewhere. Its calls take the way of all calls:
arguments are checked, policies chosen, samples split by class. What it never does is read source,
or compile: each unit must be in the bundle, compiled for a target that the device runs.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import ir
from .arguments import Types
from .backends import active, resolve
from .bundle_code import MissingCode, TargetCode, origin_of, stored_code
from .bundle_codec import (
    CALL_TYPE,
    FLAG,
    INTEGER,
    NUMBER,
    SIGNATURE,
    TEXT,
    many,
    optional,
    read_lowered,
    row,
    write_lowered,
)
from .bundle_files import Folder, read_folder
from .compilation import lower_plan
from .digests import sha256
from .discovery import core_version
from .errors import BundleError, CallError, CompileError, KernelError
from .hooks import Binary, Device
from .ir import DType
from .kernel import MIX_SUFFIX, Executable, Kernel
from .lang import SAMPLES, KernelSource, LoweredKernel, Signature, Weak
from .loading import DeviceContext
from .lower import plan_dispatches, with_policies
from .pickling import Definition
from .records import record
from .sizes import Sizes

if TYPE_CHECKING:
    from .launches import Load


@record
class Variant:
    """A kernel for one combination of argument types."""

    types: Types
    lowered: LoweredKernel


@record
class Program:
    """What calls of a kernel need to know about it, besides code.

    Attributes
    ----------
    name, qualname, module, documentation : str
        As the function has them.
    file : str
        Name of its source, for messages; the file itself is not needed.
    digest : str
        Of what it computes.
    parameters : tuple of (str, str, default)
        Name, kind as `inspect` spells it, and default; `inspect.Parameter.empty` where none is.
    signature : Signature
    debug, fastmath : bool
    steps : int
    sizes : Sizes or None
        What it is specialised for.
    variants : tuple of Variant
    entries : list of dict
        Its dispatches; see `turnout.selectors.dispatch_entries`.
    """

    name: str
    qualname: str
    module: str
    documentation: str | None
    file: str
    digest: str
    parameters: tuple[tuple[str, str, Any], ...]
    signature: Signature
    debug: bool
    fastmath: bool
    steps: int
    sizes: Sizes | None
    variants: tuple[Variant, ...]
    entries: list[dict[str, Any]]

    def prototype(self) -> Callable[..., Any]:
        """A function with the name and the parameters of the kernel, which never runs."""

        def prototype() -> None:
            raise AssertionError("the kernel was compiled elsewhere")

        prototype.__name__, prototype.__qualname__ = self.name, self.qualname
        prototype.__module__, prototype.__doc__ = self.module, self.documentation
        shown = {spec.name: spec.annotation for spec in self.signature.parameters}
        parameters = [
            inspect.Parameter(
                name, _KINDS[kind], default=default, annotation=shown.get(name, inspect._empty)
            )
            for name, kind, default in self.parameters
        ]
        prototype.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return prototype


_KINDS = {
    kind.name: kind
    for kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.KEYWORD_ONLY,
    )
}


# -- programs as JSON ------------------------------------------------------------------------------


def _write_default(value: Any) -> Any:
    if value is inspect.Parameter.empty:
        return None
    if isinstance(value, np.ndarray) and value.shape == (0,):
        return {"empty": value.dtype.name}
    if isinstance(value, np.generic) and ir.from_numpy(value.dtype) is not None:
        return {"dtype": value.dtype.name, "value": NUMBER.write(value.item())}
    if type(value) in (bool, int, float):
        return NUMBER.write(value)
    raise BundleError(f"the default {value!r} is no number, which is all that a bundle can hold")


def _read_default(value: Any) -> Any:
    match value:
        case None:
            return inspect.Parameter.empty
        case {"empty": str(name)}:
            return np.empty(0, _numpy_dtype(name))
        case {"dtype": str(name), "value": number}:
            return _numpy_dtype(name).type(NUMBER.read(number))
    return NUMBER.read(value)


def _numpy_dtype(name: str) -> Any:
    known = {dtype.dtype.name: dtype.dtype for dtype in ir.ALL_DTYPES}
    if name not in known:
        raise BundleError(f"{name!r} stands where an element type is expected")
    return known[name]


def _write_sizes(sizes: Sizes | None) -> Any:
    if sizes is None:
        return None
    return {
        "shapes": _SHAPES.write(sizes.shapes),
        "scalars": [[name, _write_default(value)] for name, value in sizes.scalars],
        "samples": sizes.samples,
    }


def _read_sizes(value: Any) -> Sizes | None:
    if value is None:
        return None
    scalars = tuple((TEXT.read(name), _read_default(number)) for name, number in value["scalars"])
    return Sizes(_SHAPES.read(value["shapes"]), scalars, optional(INTEGER).read(value["samples"]))


_SHAPES = many(row(TEXT, many(optional(INTEGER))))


def write_program(program: Program) -> dict[str, Any]:
    """The JSON of a program."""
    return {
        "name": program.name,
        "qualname": program.qualname,
        "module": program.module,
        "documentation": program.documentation,
        "file": program.file,
        "digest": program.digest,
        "parameters": [
            [name, kind, _write_default(default)] for name, kind, default in program.parameters
        ],
        "signature": SIGNATURE.write(program.signature),
        "debug": program.debug,
        "fastmath": program.fastmath,
        "steps": program.steps,
        "sizes": _write_sizes(program.sizes),
        "dispatch": program.entries,
        "variants": [
            {
                "types": {name: CALL_TYPE.write(dtype) for name, dtype in each.types.items()},
                "lowered": write_lowered(each.lowered),
            }
            for each in program.variants
        ],
    }


def read_program(value: Any) -> Program:
    """What `write_program` wrote.

    Raises
    ------
    BundleError
        Where anything in it is unknown or contradicts itself.
    """
    try:
        program = _read_program(value)
        program.prototype()  # inspect refuses parameters that no function has
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise BundleError(f"a part is missing or of a wrong type: {error!r}") from None
    if not program.variants:
        raise BundleError("it was built for no types")
    for variant in program.variants:
        _check_variant(program, variant)
    return program


def _read_program(value: Any) -> Program:
    parameters = tuple(
        (TEXT.read(name), TEXT.read(kind), _read_default(default))
        for name, kind, default in value["parameters"]
    )
    if not {kind for _, kind, _ in parameters} <= _KINDS.keys():
        raise BundleError("a parameter is of an unknown kind")
    return Program(
        TEXT.read(value["name"]),
        TEXT.read(value["qualname"]),
        TEXT.read(value["module"]),
        optional(TEXT).read(value["documentation"]),
        TEXT.read(value["file"]),
        TEXT.read(value["digest"]),
        parameters,
        SIGNATURE.read(value["signature"]),
        FLAG.read(value["debug"]),
        FLAG.read(value["fastmath"]),
        INTEGER.read(value["steps"]),
        _read_sizes(value["sizes"]),
        tuple(
            Variant(
                {TEXT.read(name): CALL_TYPE.read(dtype) for name, dtype in each["types"].items()},
                read_lowered(each["lowered"]),
            )
            for each in value["variants"]
        ),
        list(value["dispatch"]),
    )


def _check_variant(program: Program, variant: Variant) -> None:
    """Refuse a plan that names what no call has."""
    specs = program.signature.parameters
    if [spec.name for spec in specs] != [name for name, *_ in program.parameters]:
        raise BundleError("the parameters are not those of the signature")
    if variant.types.keys() != {"return", *(spec.name for spec in specs)}:
        raise BundleError("the types are not those of the parameters")
    ranks = {spec.name: spec.rank for spec in specs} | {SAMPLES: 0}
    ranks |= {each.name: 1 + bool(each.width) for each in variant.lowered.returned}
    plan = variant.lowered.plan
    ranks |= {step.name: len(step.shape) for step in plan.steps if isinstance(step, ir.Scratch)}
    for run in plan.runs:
        for parameter in run.unit.parameters:
            rank = parameter.rank if isinstance(parameter, ir.ArrayParameter) else 0
            if ranks.get(parameter.name) != rank:
                raise BundleError(f"unit {run.unit.name!r} takes an unknown {parameter.name!r}")


# -- loaded kernels --------------------------------------------------------------------------------


class LoadedKernel(Kernel):
    """A kernel out of a bundle; made by `load`.

    Attributes
    ----------
    directory : Path
        The bundle.
    """

    def __init__(
        self,
        program: Program,
        codes: tuple[TargetCode, ...],
        directory: Path,
        *,
        device: str | None = None,
        steps: int | None = None,
        chosen_policies: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._program = program
        self._codes = codes
        self._chosen_codes: dict[DeviceContext, TargetCode] = {}
        super().__init__(
            program.prototype(),
            fastmath=program.fastmath,
            debug=program.debug,
            lines=[],
            signature=program.signature,
            device=device,
            steps=program.steps if steps is None else steps,
            chosen_policies=chosen_policies,
            sizes=program.sizes,
        )

    @property
    def targets(self) -> tuple[str, ...]:
        """What it was compiled for, in the order of the bundle."""
        return tuple(code.name for code in self._codes)

    @property
    def source(self) -> KernelSource:
        """There is none."""
        raise KernelError(
            f"kernel {self.__name__} was loaded from {self.directory} and has no source; "
            "differentiate, specialise and read it where its source is, and build the result"
        )

    @property
    def file(self) -> str:
        """Where its source was."""
        return self._program.file

    @cached_property
    def definition(self) -> Definition:
        """What it computes, without source."""
        program = self._program
        made = f"{program.digest} {self.device} {self.steps} {sorted(self.chosen_policies.items())}"
        return Definition(
            sha256(made.encode()).hexdigest(),
            program.file,
            1,
            (),
            program.name,
            program.qualname,
            program.module,
            {},
            {},
            (),
            program.signature,
            {},
        )

    def with_constants(self, /, **values: Any) -> Kernel:
        """Not possible: constants are in the code."""
        return self._varied(constants=values)

    def dispatch_entries(self) -> list[dict[str, Any]]:
        """Describe the dispatches, as the sidecar of the kernel does."""
        return self._program.entries

    def default_types(self, width: DType = ir.f64) -> Types:
        """Types that it was built for, of this width where there are such."""
        variants = self._program.variants
        return next((v for v in variants if v.types["return"] is width), variants[0]).types

    def lower(self, types: Types) -> LoweredKernel:
        """The plan for types of its parameters, out of the bundle.

        Raises
        ------
        BundleError
            Where it was not built for these types.
        """
        return self._resolved(self._variant(types).lowered)

    def lower_unresolved(self, types: Types) -> LoweredKernel:
        """As `lower`."""
        return self.lower(types)

    def _varied(self, **changed: Any) -> LoadedKernel:
        options = {
            "device": self.device,
            "steps": self.steps,
            "chosen_policies": self.chosen_policies,
            **changed,
        }
        if changed.keys() & {"constants", "sizes"}:
            raise KernelError(
                f"kernel {self.__name__} was loaded from {self.directory}: what is constant is "
                "compiled into its code; change it where its source is, and build the result"
            )
        varied = LoadedKernel(self._program, self._codes, self.directory, **options)
        varied._chosen_codes = self._chosen_codes
        return varied

    def _executable(
        self, types: Types, context: DeviceContext, counters: tuple[str, ...]
    ) -> Executable:
        code = self.code_for(context)
        variant = self._variant(types)
        lowered = self._resolved(variant.lowered)
        return LoadedExecutable(self, lowered, variant.types, context, counters, code)

    def _variant(self, types: Types) -> Variant:
        """The variant for the types of a call; numbers are converted as for a pinned `Param`."""
        fitting = [each for each in self._program.variants if self._takes(each, types)]
        fitting.sort(key=lambda each: each.types != types)
        if fitting:
            return fitting[0]
        built = "; ".join(_shown_types(each.types) for each in self._program.variants)
        raise BundleError(
            f"kernel {self.__name__} of {self.directory} was not built for "
            f"{_shown_types(types)}, but for: {built}. Convert the arguments, or build it with "
            "dtype= and param_types= for these types too"
        )

    def _takes(self, variant: Variant, types: Types) -> bool:
        return all(
            types[name] is built or (name in self._numbers and _converts(types[name], built))
            for name, built in variant.types.items()
        )

    @cached_property
    def _numbers(self) -> frozenset[str]:
        return frozenset(spec.name for spec in self.signature.parameters if not spec.rank)

    def _taken_counters(self, keywords: dict[str, Any]) -> dict[str, Any]:
        """The counters of a call; where it brings some, all dispatches count, as it was built."""
        given = super()._taken_counters(keywords)
        if not given:
            return given
        dispatches = plan_dispatches(self._program.variants[0].lowered.plan)
        every = {
            f"{each.name}{MIX_SUFFIX}": np.zeros(len(each.arms), np.uint32) for each in dispatches
        }
        counters = {**every, **given}
        return {name: counters[name] for name in sorted(counters)}

    def use_code(self, code: TargetCode, context: DeviceContext) -> None:
        """Let calls on a device run certain code, whatever that is for."""
        self._chosen_codes[context] = code

    def _resolved(self, lowered: LoweredKernel) -> LoweredKernel:
        return replace(lowered, plan=with_policies(lowered.plan, self.chosen_policies))

    def code_for(self, context: DeviceContext) -> TargetCode:
        """The code that runs on a device.

        Raises
        ------
        BundleError
            Where the bundle has none; the message says why.
        """
        code = self._chosen_codes.get(context)
        if code is None:
            code = self._chosen_codes[context] = self._find_code(context)
        return code

    def _find_code(self, context: DeviceContext) -> TargetCode:
        candidates = [c for c in self._codes if c.target.backend == context.backend.name]
        candidates.sort(key=lambda code: _distance(code, context.device))
        problems = []
        for code in candidates:
            problem = self._problem(code, context)
            if not problem:
                return code
            problems.append(f"\n  target {code.name!r}: {problem}")
        targets = ", ".join(map(repr, self.targets))
        where = f"kernel {self.__name__} of {self.directory} has no code for {context.name}"
        if problems:
            raise BundleError(
                f"{where}:{''.join(problems)}\nBuild it for a target that fits, for example a "
                "lower level of the processor"
            )
        raise BundleError(
            f"{where}; it was built for the targets {targets}. Build it for "
            f"{context.backend.name!r} too, or name a device that it was built for (device=)"
        )

    def _problem(self, code: TargetCode, context: DeviceContext) -> str:
        """Why a device cannot run the code for a target; empty where it can."""
        if code.origin != origin_of(context.backend):
            return f"built by {code.origin}, and this is {origin_of(context.backend)}"
        plan = self._resolved(self._program.variants[0].lowered).plan
        try:
            first, *_ = lower_plan(plan, context.backend, code.target).units
            code.launcher(first, context, self.options)
        except CompileError as error:
            return error.log
        return ""

    def __reduce__(self) -> tuple[Any, ...]:
        chosen = tuple(sorted(self.chosen_policies.items()))
        return _reloaded, (str(self.directory), self.__name__, self.device, self.steps, chosen)


def _distance(code: TargetCode, device: Device) -> tuple[bool, bool, int]:
    """How far a target is from that of a device: the same, the same architecture, wide or not."""
    target = code.target
    return target != device.target, target.arch != device.target.arch, -target.lanes


def _converts(given: DType | Weak, built: DType | Weak) -> bool:
    """Whether a number of a call may be given for one of the type that code was compiled for."""
    if given is ir.bool_ or built in ("float", ir.f32, ir.f64):
        return True
    is_integer = given == "int" or (isinstance(given, DType) and given.is_integer)
    return is_integer and built is not ir.bool_


def _shown_types(types: Types) -> str:
    return ", ".join(f"{name}: {dtype}" for name, dtype in types.items() if name != "return")


class LoadedExecutable(Executable):
    """An executable whose code is in a bundle."""

    def __init__(
        self,
        kernel: LoadedKernel,
        lowered: LoweredKernel,
        types: Types,
        context: DeviceContext,
        counters: tuple[str, ...],
        code: TargetCode,
    ) -> None:
        self._code = code
        super().__init__(kernel, lowered, types, context, counters)

    can_compile = False

    def lower_plan(self, plan: ir.Plan) -> ir.Plan:
        return lower_plan(plan, self.context.backend, self._code.target)

    @property
    def load_unit(self) -> Load:
        return self._code.launcher

    def _cached_text(self, text: str, make: Callable[[], Binary]) -> Binary:
        return self._code.made_of(text, make)

    def native_entry(self, *args: Any, **keywords: Any) -> Callable[..., Any] | None:
        """As of every executable; None for forms of calls that the bundle was not built for."""
        try:
            return super().native_entry(*args, **keywords)
        except MissingCode:
            return None


# -- load and run ----------------------------------------------------------------------------------


def load(
    directory: str | os.PathLike[str], name: str, *, device: str | Device | None = None
) -> LoadedKernel:
    """Load a kernel from a bundle; needs neither its source nor a compiler.

    Every file of the bundle is verified first. The result is called like the kernel that was built,
    and checks, counts and returns the same.

    Parameters
    ----------
    directory : path
        What `build` has written.
    name : str
        Name of the kernel, or of a unit of a segmented one, such as ``"drag__k0"``.
    device : str or Device, optional
        Where calls run that name no device. The bundle must have code for it.

    Returns
    -------
    Kernel

    Raises
    ------
    BundleError
        Where a file is missing, changed or foreign, there is no kernel of that name, or the bundle
        has no code for the device. The message names the file and says what to do.

    Examples
    --------
    >>> import numpy as np, tempfile, turnout as tn
    >>> from turnout import Scalar
    >>> @tn.kernel
    ... def doubled(x: Scalar) -> Scalar:
    ...     return x * 2
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     bundle = tn.build([doubled], directory, targets=["reference"])
    ...     loaded = tn.load(directory, "doubled", device="reference")
    ...     loaded(np.array([1.0, 2.0]))
    array([2., 4.])
    """
    folder = read_folder(Path(os.path.abspath(os.fspath(directory))))
    loaded = loaded_kernel(folder, name)
    if device is not None:
        on_device = loaded.on(device)
        assert isinstance(on_device, LoadedKernel)
        on_device.code_for(resolve((), device))
        return on_device
    context = active()
    if any(code.target.backend == context.backend.name for code in loaded._codes):
        loaded.code_for(context)
    return loaded


def _reloaded(
    directory: str, name: str, device: str | None, steps: int, policies: tuple[tuple[str, str], ...]
) -> Kernel:
    loaded = loaded_kernel(read_folder(Path(directory)), name)
    return loaded._varied(device=device, steps=steps, chosen_policies=dict(policies))


def loaded_kernel(folder: Folder, name: str) -> LoadedKernel:
    """A kernel of a bundle that was read."""
    manifest, where = folder.manifest, folder.directory
    if manifest.get("turnout") != core_version():
        raise BundleError(
            f"{where} was built by turnout {manifest.get('turnout')}, and this is "
            f"{core_version()}; build it again with this one"
        )
    programs = manifest.get("kernels")
    targets = manifest.get("targets")
    if not (isinstance(programs, dict) and isinstance(targets, dict)):
        raise BundleError(f"{where}: the manifest lists no kernels or no targets; build it again")
    if name not in programs:
        known = ", ".join(map(repr, programs))
        raise BundleError(f"{where} holds no kernel {name!r}; it holds {known}")
    file = str(programs[name])
    try:
        program = read_program(folder.json(file))
    except BundleError as error:
        raise BundleError(f"{where / file}: {error}; build the bundle again") from None
    codes = tuple(stored_code(folder, each, targets[each]) for each in targets)
    return LoadedKernel(program, codes, where)


def run(loaded: Kernel, /, **arguments: Any) -> Any:
    """Call a kernel with arguments by keyword.

    Parameters
    ----------
    loaded : Kernel
        What `load` gave, or any other kernel.
    **arguments
        Arrays and numbers by parameter, and whatever else calls take.

    Returns
    -------
    object
        What the call returns.

    Raises
    ------
    CallError
        Where an argument does not fit, or `loaded` is no kernel.
    """
    if not isinstance(loaded, Kernel):
        raise CallError(f"turnout.run takes a kernel, such as turnout.load gives, not {loaded!r}")
    return loaded(**arguments)
