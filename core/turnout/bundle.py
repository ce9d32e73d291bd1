"""`build`: kernels compiled ahead of time, in a folder that other processes and machines load.

For each kernel a bundle has what calls are checked by (`bundle_loading.Program`), a sidecar for
people and other programs, and per target the code of every unit that any of its calls can need:
with counters of branches and without, and in each form that an ``"auto"`` dispatch may choose.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import ir
from .arguments import Types
from .backends import resolve
from .bundle_code import NewCode
from .bundle_files import FORMAT, MANIFEST, json_bytes, read_folder, write_folder
from .bundle_loading import LoadedKernel, Program, Variant, load, run, write_program
from .bundle_sidecars import sidecar, structural_digest
from .bundle_targets import find_target
from .defaults import HostMemory
from .discovery import core_version
from .errors import BundleError, KernelError
from .hooks import Device
from .ir import DTYPE_BY_NAME, DType, f64
from .kernel import MIX_SUFFIX, Kernel
from .lang import LoweredKernel, Weak
from .lang.annotations import as_dtype
from .loading import DeviceContext
from .lower import plan_dispatches
from .policy import Automatic, tried_policies
from .records import record
from .segmented_units import dispatch_units


@record
class Artifact:
    """A kernel of a bundle, or a unit of a segmented one.

    Attributes
    ----------
    name : str
        What `load` takes.
    sidecar_path : Path
    sidecar : dict
        What `sidecar_path` holds.
    digest : str
        Of what it computes, the same wherever it is built.
    """

    name: str
    sidecar_path: Path
    sidecar: dict[str, Any]
    digest: str


@record
class Bundle:
    """What `build` has written.

    Attributes
    ----------
    directory : Path
    manifest : dict
        What ``manifest.json`` in it holds.
    artifacts : tuple of Artifact
        The kernels in their order; the units of segmented ones in place of these.
    names : tuple of str
        Everything that `load` takes: the artifacts and the segmented kernels as a whole.
    digest : str
        SHA-256 of the manifest, and so of all files.
    """

    directory: Path
    manifest: dict[str, Any]
    artifacts: tuple[Artifact, ...]
    names: tuple[str, ...]
    digest: str

    @property
    def manifest_path(self) -> Path:
        """Where the manifest is."""
        return self.directory / MANIFEST

    def files(self) -> list[Path]:
        """All files of the bundle, the manifest first."""
        return [self.manifest_path, *(self.directory / name for name in self.manifest["files"])]


def build(
    kernels: Iterable[Kernel],
    directory: str | os.PathLike[str],
    *,
    targets: Sequence[str] = ("cpu",),
    dtype: Any = f64,
    param_types: Mapping[str, str] | None = None,
) -> Bundle:
    """Compile kernels ahead of time, and write them into a folder.

    Parameters
    ----------
    kernels : iterable of Kernel
        Derivatives and kernels whose policies were chosen are kernels as well.
    directory : path
        Is made, or replaced as a whole if it holds a bundle already. Anything else that is there is
        left alone, with an error.
    targets : sequence of str
        What to compile for: backends, such as ``"cpu"`` for this processor, ``"cuda"`` and
        ``"opencl"``, or architectures of them, such as ``"cpu:x86-64-v3"``, ``"cuda:sm_90"``. No
        device has to be there.
    dtype : dtype or sequence of dtypes
        float32, float64 or both, for planes whose annotation leaves the width open.
    param_types : mapping of str to str, optional
        Types of scalar parameters that the annotation leaves open, by name or
        ``"kernel.parameter"``: ``"int"``, ``"float"`` or a dtype such as ``"i32"``. By default
        ``"float"``, or ``"int"`` where only that can be compiled.

    Returns
    -------
    Bundle

    Raises
    ------
    BundleError
        Where a kernel, target or type cannot be built, or the folder not be written.
    KernelError
        Where the source of a kernel means nothing for these types.
    CompileError
        Where a backend cannot compile it.

    Examples
    --------
    >>> import tempfile, turnout as tn
    >>> from turnout import Scalar
    >>> @tn.kernel
    ... def doubled(x: Scalar) -> Scalar:
    ...     return x * 2
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     bundle = tn.build([doubled], directory, targets=["reference"])
    ...     [artifact.name for artifact in bundle.artifacts]
    ['doubled']
    """
    listed = _checked_kernels(kernels)
    if isinstance(targets, str) or not targets:
        raise BundleError(f"targets={targets!r}: give a list of targets, such as ['cpu', 'cuda']")
    names = list(dict.fromkeys(targets))
    codes = [NewCode(name, *find_target(name)) for name in names]
    _refuse_equal_folders(codes)
    types = _Types(_checked_dtypes(dtype), dict(param_types or {}), listed)
    built = [each for kernel in listed for each in _parts(kernel, types)]
    _refuse_equal_names(built)
    contents: dict[str, Any] = {}
    for each in built:
        contents |= each.files(names)
    for code in codes:
        for each in built:
            _compile(each, code)
        contents |= dict(code.files())
    path = Path(os.path.abspath(os.fspath(directory)))
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "turnout": core_version(),
        "artifacts": [each.kernel.__name__ for each in built if each.is_artifact],
        "kernels": {each.kernel.__name__: each.program_file for each in built},
        "targets": {code.name: code.description() for code in codes},
    }
    digest = write_folder(path, manifest, {n: _as_bytes(v) for n, v in contents.items()})
    artifacts = tuple(
        Artifact(
            each.kernel.__name__,
            path / each.sidecar_file,
            contents[each.sidecar_file],
            each.program.digest,
        )
        for each in built
        if each.is_artifact
    )
    return Bundle(path, manifest, artifacts, tuple(manifest["kernels"]), digest)


def read_bundle(directory: str | os.PathLike[str]) -> Bundle:
    """Describe a bundle that was built before.

    Parameters
    ----------
    directory : path

    Returns
    -------
    Bundle
        With all files verified.

    Raises
    ------
    BundleError
        As `load`.
    """
    folder = read_folder(Path(os.path.abspath(os.fspath(directory))))
    artifacts = []
    for name in folder.manifest["artifacts"]:
        described = folder.json(_sidecar_file(name))
        path = folder.directory / _sidecar_file(name)
        artifacts.append(Artifact(name, path, described, described["digest"]))
    names = tuple(folder.manifest["kernels"])
    return Bundle(folder.directory, folder.manifest, tuple(artifacts), names, folder.digest)


def _as_bytes(content: Any) -> bytes:
    return content if isinstance(content, bytes) else json_bytes(content)


# -- what is built ---------------------------------------------------------------------------------


@record
class _Built:
    """A kernel that becomes part of a bundle.

    Attributes
    ----------
    kernel : Kernel
    program : Program
    is_artifact : bool
        Whether it is listed; a segmented kernel is not, its units are.
    """

    kernel: Kernel
    program: Program
    is_artifact: bool

    @property
    def sidecar_file(self) -> str:
        return _sidecar_file(self.kernel.__name__)

    @property
    def program_file(self) -> str:
        return f"{_stem(self.kernel.__name__)}.program.json"

    def files(self, targets: Sequence[str]) -> dict[str, Any]:
        variants = [(each.types, each.lowered) for each in self.program.variants]
        return {
            self.sidecar_file: sidecar(self.kernel, variants, targets),
            self.program_file: json_bytes(write_program(self.program), indent=None),
        }


def _sidecar_file(name: str) -> str:
    return f"{_stem(name)}.json"


def _stem(name: str) -> str:
    """A name of files for a kernel, whose own may have letters that not all systems write alike."""
    return "".join(c if c.isascii() else f"-{ord(c):x}-" for c in name)


def _parts(kernel: Kernel, types: _Types) -> Iterator[_Built]:
    program = _program(kernel, types)
    policies = {entry["policy"] for entry in program.entries}
    is_split = "segmented" in policies and kernel.signature.form == "sample"
    yield _Built(kernel, program, is_artifact=not is_split)
    if is_split:
        for unit in dispatch_units(kernel).values():
            yield _Built(unit, _program(unit, types), is_artifact=True)


def _program(kernel: Kernel, types: _Types) -> Program:
    variants = list(types.variants(kernel))
    given = kernel.__signature__.parameters.values()
    described = sidecar(kernel, variants, ())
    return Program(
        name=kernel.__name__,
        qualname=kernel.__qualname__,
        module=kernel.__module__ or "",  # what `exec` makes may have none
        documentation=kernel.__doc__,
        file=os.path.basename(kernel.file),
        digest=structural_digest(variants),
        parameters=tuple((p.name, p.kind.name, p.default) for p in given),
        signature=kernel.signature,
        debug=kernel.debug,
        fastmath=kernel.fastmath,
        steps=kernel.steps,
        sizes=kernel.sizes,
        variants=tuple(Variant(*each) for each in variants),
        entries=described["dispatch"],
    )


class _Types:
    """The types that kernels are built for."""

    def __init__(
        self, widths: Sequence[DType], param_types: dict[str, str], kernels: Sequence[Kernel]
    ) -> None:
        self._widths = widths
        self._param_types = param_types
        for name, type_name in param_types.items():
            if type_name not in _PARAM_TYPES:
                raise BundleError(
                    f"param_types: {type_name!r} is no type of {name!r}; allowed are "
                    f"{', '.join(_PARAM_TYPES)}"
                )
        open_names = {f"{k.__name__}.{name}": name for k in kernels for name in _open_numbers(k)}
        for name in param_types.keys() - {*open_names, *open_names.values()}:
            raise BundleError(
                f"param_types: no kernel has a scalar parameter {name!r} whose type follows the "
                f"call; those are: {', '.join(open_names) or 'none'}"
            )

    def variants(self, kernel: Kernel) -> Iterator[tuple[Types, LoweredKernel]]:
        """The kernel for each width, with the first types of its numbers that can be compiled."""
        for width in self._widths:
            yield self._variant(kernel, width)

    def _variant(self, kernel: Kernel, width: DType) -> tuple[Types, LoweredKernel]:
        types = kernel.default_types(width)
        free = []
        for name in _open_numbers(kernel):
            chosen = self._param_types.get(f"{kernel.__name__}.{name}", self._param_types.get(name))
            types[name] = _PARAM_TYPES[chosen or "float"]
            free += [] if chosen else [name]
        first_error = None
        weak: tuple[Weak, ...] = ("float", "int")
        for kinds in itertools.product(weak, repeat=min(len(free), _MAXIMUM_TRIED)):
            tried = types | dict(zip(free, kinds, strict=False))
            try:
                return tried, kernel.lower(tried)
            except KernelError as error:
                first_error = first_error or error
        assert first_error is not None
        raise first_error


_PARAM_TYPES: dict[str, DType | Weak] = {"int": "int", "float": "float", **DTYPE_BY_NAME}
_MAXIMUM_TRIED = 6
"""Of how many numbers all combinations of types are tried."""


def _open_numbers(kernel: Kernel) -> list[str]:
    known = dict(kernel.sizes.scalars) if kernel.sizes else {}
    return [
        spec.name
        for spec in kernel.signature.parameters
        if spec.role == "param" and spec.dtype is None and spec.name not in known
    ]


# -- checks ----------------------------------------------------------------------------------------


def _checked_kernels(kernels: Iterable[Kernel]) -> list[Kernel]:
    if isinstance(kernels, Kernel) or not isinstance(kernels, Iterable):
        raise BundleError(f"turnout.build takes a list of kernels, not {kernels!r}")
    listed = list(kernels)
    if not listed:
        raise BundleError("turnout.build: the list of kernels is empty")
    for kernel in listed:
        if not isinstance(kernel, Kernel):
            raise BundleError(f"turnout.build takes kernels (turnout.kernel), not {kernel!r}")
        if isinstance(kernel, LoadedKernel):
            raise BundleError(
                f"{kernel.__name__} was loaded from {kernel.directory}; build it where its source "
                "is"
            )
    return listed


def _checked_dtypes(given: Any) -> list[DType]:
    items = given if isinstance(given, list | tuple) else [given]
    widths = []
    for item in items:
        name = np.dtype(item) if isinstance(item, str) and item in _FLOATS else item
        width = as_dtype(name)
        if width is None or not width.is_float:
            raise BundleError(f"dtype={given!r}: give float32, float64, or a list of both")
        widths.append(width)
    return list(dict.fromkeys(widths))


_FLOATS = ("float32", "float64")


def _refuse_equal_names(built: Sequence[_Built]) -> None:
    seen: dict[str, str] = {}
    for each in built:
        name = each.kernel.__name__
        # Not all file systems tell upper case from lower case.
        other = seen.setdefault(_stem(name).casefold(), name)
        if sum(b.kernel.__name__ == name for b in built) > 1 or other != name:
            raise BundleError(
                f"two of the kernels would have the files of {name!r}; build them into two bundles"
            )


def _refuse_equal_folders(codes: Sequence[NewCode]) -> None:
    folders = [code.folder.casefold() for code in codes]
    for code in codes:
        if folders.count(code.folder.casefold()) > 1:
            raise BundleError(f"target {code.name!r} and another one would have the same files")


# -- code ------------------------------------------------------------------------------------------


def _compile(built: _Built, code: NewCode) -> None:
    """Make everything that runs calls of a kernel; `code` compiles what that asks for."""
    context = _context(code)
    loaded = LoadedKernel(built.program, (code,), Path())
    loaded.use_code(code, context)
    for variant in built.program.variants:
        values = _typical_values(built, variant)
        plan = variant.lowered.plan
        counters = sorted({f"{group.name}{MIX_SUFFIX}" for group in plan_dispatches(plan)})
        # People read what the kernel is, not the forms that it may take.
        code.with_texts = True
        executable = loaded._executable(variant.types, context, ())
        code.with_texts = False
        executable.native_entry(values, loaded)
        if counters:
            counted = loaded._executable(variant.types, context, tuple(counters))
            counted.native_entry(values, loaded)
        for policies in tried_policies(plan):
            form = loaded._varied(chosen_policies=policies)
            for counts in ((), tuple(counters)):
                form._executable(variant.types, context, counts).native_entry(values, form)
        automatic = loaded.choose_policies(executable, None)
        if isinstance(automatic, Automatic):
            automatic.prepare(values)


def _context(code: NewCode) -> DeviceContext:
    """The device of a backend, or one that stands for it where it has none."""
    if code.has_device:
        return resolve((), code.backend.name)
    return DeviceContext(
        device=Device(0, "not here", code.target),
        backend=code.backend,
        sync=lambda: None,
        timer=lambda work: 0,
        memory=HostMemory(),
        is_host=False,
        name=f"{code.backend.name}:0",
        zeros=np.zeros,
        interface=None,
        bounds=None,
        is_capturing=lambda: False,
    )


def _typical_values(built: _Built, variant: Variant) -> list[Any]:
    """Arguments as most calls have them; only their types count."""
    values: list[Any] = []
    for spec in built.kernel.signature.parameters:
        dtype = variant.types[spec.name]
        if spec.rank:
            assert isinstance(dtype, DType)
            values.append(np.zeros((1,) * spec.rank, dtype.dtype))
        elif dtype == "float" or (isinstance(dtype, DType) and dtype.is_float):
            values.append(0.0)
        else:
            values.append(False if dtype is ir.bool_ else 0)
    return values


__all__ = ["Artifact", "Bundle", "build", "load", "read_bundle", "run"]
