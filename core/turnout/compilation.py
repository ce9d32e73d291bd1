"""From a plan to loaded launchers: dispatches lowered, binaries from the disk cache or compiled."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import cast

from . import ir
from .cache import binary_key, default_cache
from .digests import sha256
from .discovery import CORE, core_version
from .errors import BackendError, CompileError
from .hooks import Binary, Launcher, Options, Target
from .loading import Backend, DeviceContext
from .lower import dispatch_groups, lower_dispatches, segmented_groups
from .segmentation import ExtraNames, split


def lower_plan(plan: ir.Plan, backend: Backend, target: Target) -> ir.Plan:
    """`plan` with every dispatch lowered, by the backend where it wants to, else by the core."""
    return ir.Plan(tuple(_lowered_steps(plan, backend, target)))


def _lowered_steps(plan: ir.Plan, backend: Backend, target: Target) -> Iterator[ir.Step]:
    for step in plan.steps:
        if isinstance(step, ir.Run):
            own = _backend_plan(step.unit, backend, target)
            if own is not None:
                # A backend knows the unit alone, not what its calls are checked for.
                yield from (_as_checked(each, step) for each in own.steps)
                continue
            if segmented_groups(step.unit):
                yield _split(step, backend, target)
                continue
            unit = lower_dispatches(step.unit)
            ir.verify(unit)
            step = replace(step, unit=unit)
        yield step


def _as_checked(own: ir.Step, step: ir.Run) -> ir.Step:
    """A step of a backend's plan, checked like the step that the plan stands for."""
    if isinstance(own, ir.Run):
        return replace(step, unit=own.unit)
    if isinstance(own, ir.Split):
        return replace(own, run=replace(step, unit=own.run.unit))
    return own


def _split(step: ir.Run, backend: Backend, target: Target) -> ir.Split:
    names = ExtraNames.without(parameter.name for parameter in step.unit.parameters)
    parts = split(step.unit, segmented_groups(step.unit), names)

    def lowered(unit: ir.Unit) -> ir.Plan:
        return lower_plan(ir.Plan((ir.Run(unit),)), backend, target)

    return ir.Split(
        step,
        names.in_order,
        lowered(parts.classify),
        tuple(map(lowered, parts.branches)),
        tuple(map(lowered, parts.guarded)),
        lowered(parts.listed),
    )


def _backend_plan(unit: ir.Unit, backend: Backend, target: Target) -> ir.Plan | None:
    for site in dispatch_groups(unit):
        own: ir.Plan | None = backend.hook.turnout_lower_dispatch(
            unit=unit, site=site, policy=site.policy, target=target
        )
        if own is not None:
            return lower_plan(own, backend, target)
    return None


def compile_unit(unit: ir.Unit, backend: Backend, target: Target, options: Options) -> Binary:
    """The binary of a unit: from the disk cache, else compiled and stored there.

    Raises
    ------
    CompileError
        Where the backend cannot compile the unit.
    BackendError
        Where the backend fails in any other way.
    """
    if backend.distribution == CORE or options.keep_text:
        # The core's own backend translates nothing, and texts are for reading now.
        return _compiled(unit, backend, target, options)
    key = _key(unit, backend, target, options)
    return _cached(key, lambda: _compiled(unit, backend, target, options))


def loop_reports(
    unit: ir.Unit, backend: Backend, target: Target, options: Options
) -> dict[str, str]:
    """What a backend says became of the loops of a unit, by ``loop:<line>``; from the disk cache.

    Units whose text is wanted are compiled each time; what is said of their loops is kept.
    """
    options = replace(options, keep_text=True)

    def make() -> Binary:
        binary = _compiled(unit, backend, target, options)
        reports = {key: words for key, words in binary.metadata.items() if key.startswith("loop:")}
        return Binary(binary.entry, "loop-reports", b"", reports)

    if backend.distribution == CORE:
        return dict(make().metadata)
    return dict(_cached(_key(unit, backend, target, options), make).metadata)


def compile_text(context: DeviceContext, text: str, make: Callable[[], Binary]) -> Binary:
    """What a backend made of a text that decides every byte of it: from the disk, else made now."""
    target = str(context.device.target)
    return _cached(binary_key("text", text, target, _versions(context.backend)), make)


def _cached(key: str, make: Callable[[], Binary]) -> Binary:
    binary = default_cache().load(key)
    if binary is None:
        binary = make()
        default_cache().store(key, binary)
    return binary


def load_unit(unit: ir.Unit, context: DeviceContext, options: Options) -> Launcher:
    """A unit compiled for a device and loaded there."""
    backend, target = context.backend, context.device.target
    binary = compile_unit(unit, backend, target, options)
    try:
        return load_binary(unit, binary, context)
    except CompileError:
        # A stored binary can be right and still not load here, for example without a library that
        # was there when it was made; what is compiled now either loads or shows the true reason.
        binary = _compiled(unit, backend, target, options)
        launcher = load_binary(unit, binary, context)
        default_cache().store(_key(unit, backend, target, options), binary)
        return launcher


def _key(unit: ir.Unit, backend: Backend, target: Target, options: Options) -> str:
    source = _source_digest(backend)
    text = ir.format_unit(unit)
    return binary_key(text, str(target), str(options), _versions(backend), source)


def _versions(backend: Backend) -> str:
    return f"turnout {core_version()} {backend.distribution} {backend.version}"


_C_FAMILY = os.path.join(os.path.dirname(__file__), "cfamily", "__init__.py")


@functools.lru_cache(maxsize=16)
def _source_digest(backend: Backend) -> str:
    """Digest of the Python files of a backend's package.

    While a backend is being worked on its version stays and its code changes; what the old code
    compiled must not be loaded then.
    """
    # The backend's own answer stands behind the default of the core in pluggy's list.
    module = cast(ModuleType, backend.hook.turnout_compile.get_hookimpls()[-1].plugin)
    package = sys.modules.get(module.__package__ or "")
    # A namespace package has no file, and belongs to others too.
    path = getattr(package, "__file__", None) or module.__file__ or ""
    digest = sha256()
    files = _package_files(path) if os.path.basename(path) == "__init__.py" else [path]
    # What renders C-like text belongs to the core, and to the compiler of those who use it.
    for file in [*files, *_package_files(_C_FAMILY)]:
        # What a zip archive holds does not change.
        if os.path.isfile(file):
            with open(file, "rb") as opened:
                digest.update(opened.read())
    return digest.hexdigest()


def _package_files(path: str) -> list[str]:
    return sorted(
        os.path.join(folder, name)
        for folder, _, names in os.walk(os.path.dirname(path))
        for name in names
        if name.endswith(".py")
    )


def _compiled(unit: ir.Unit, backend: Backend, target: Target, options: Options) -> Binary:
    try:
        binary = backend.hook.turnout_compile(unit=unit, target=target, options=options)
    except CompileError:
        raise
    except Exception as error:
        raise backend_error(backend, "turnout_compile", error) from error
    if not isinstance(binary, Binary):
        raise BackendError(
            f"backend {backend.name!r} of {backend.distribution} {backend.version}: "
            f"turnout_compile returned {type(binary).__name__}, not a Binary"
        )
    return binary


def load_binary(unit: ir.Unit, binary: Binary, context: DeviceContext) -> Launcher:
    """The launcher of compiled code.

    Raises
    ------
    CompileError
        Where the code cannot be loaded on the device.
    BackendError
        Where the backend fails in any other way.
    """
    backend = context.backend
    try:
        launcher: Launcher = backend.hook.turnout_launch(
            binary=binary, device=context.device, unit=unit
        )
    except CompileError:
        raise
    except Exception as error:
        raise backend_error(backend, "turnout_launch", error) from error
    if not callable(launcher):
        raise BackendError(
            f"backend {backend.name!r} of {backend.distribution} {backend.version}: "
            f"turnout_launch returned {type(launcher).__name__}, which cannot be called"
        )
    return launcher


def backend_error(backend: Backend, hook: str, error: Exception) -> BackendError:
    """What a user is told of an error in the code of a backend."""
    return BackendError(
        f"backend {backend.name!r} of {backend.distribution} {backend.version}: {hook} failed with "
        f"{type(error).__name__}: {error}"
    )
