"""From what a user registers to implementations: one, or one for each combination to be tuned."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .compatibility import Implementation, PerGeometry
from .errors import KernelError
from .identity import check_version
from .kernel import Kernel
from .records import record
from .signatures import check_accepts_arguments, check_parameters, check_runs_when_called
from .tunable import variants
from .verification import Verification
from .written import Access, Mutates, Writes, check_mutates


@record
class Registration:
    """What `PerformanceDispatcher.register` was given besides the function."""

    name: str | None
    is_compatible: Callable[..., object] | None
    mutates: Mutates | None
    tune: Mapping[str, Iterable[Any]] | None
    prune: Callable[..., bool] | None
    version: str | None
    per_geometry: bool
    make_ms: float


@record
class Operation:
    """What implementations of an operation have to fit.

    Attributes
    ----------
    label : str
        The operation, for messages.
    signature : inspect.Signature
    mutates : mapping of str to Access, or None
        What functions write that do not say so themselves.
    verification : Verification
    """

    label: str
    signature: inspect.Signature
    mutates: Mapping[str, Access] | None
    verification: Verification


def implementations(
    function: Any,
    given: Registration,
    operation: Operation,
    registered: Iterable[Implementation],
    is_installed: bool,
) -> list[Implementation]:
    """Check what is registered, and return the implementations that it makes.

    Raises
    ------
    KernelError
        When the function cannot be called like the prototype, or what is said of it cannot be true.
    ConfigurationError
        When the version is no text.
    """
    label, signature = operation.label, operation.signature
    if not callable(function):
        raise KernelError(f"{label}: register takes a kernel or a plain function, not {function!r}")
    name = _checked_name(label, function, given.name)
    where = f"{label}: the implementation {name!r}"
    check_runs_when_called(where, function)
    if given.is_compatible is not None:
        check_accepts_arguments(f"{where}: is_compatible", given.is_compatible, signature)
    is_compatible = _compatibility(function, given.is_compatible)
    check_version(given.version)
    if given.make_ms and not given.per_geometry:
        raise KernelError(f"{where}: make_ms= is what making takes: give per_geometry=True, too")
    declared = check_mutates(where, given.mutates, signature)
    others = {each.name: each.writes for each in registered}
    found = []
    for own_name, own_function in _variants(where, name, function, given):
        check_parameters(where, own_function, signature)
        writes = Writes(own_function, declared, signature, operation.mutates)
        writes.check(where, others)
        if operation.verification.when != "never" and writes.is_unknown:
            raise KernelError(
                f"{where}: verify={operation.verification.when!r} needs to know what it writes: "
                "give mutates=, which may be empty"
            )
        made = PerGeometry(own_function) if given.per_geometry else own_function
        found.append(
            Implementation(
                own_name,
                made,
                writes,
                is_compatible,
                given.version,
                is_installed,
                make=own_function if given.per_geometry else None,
                make_ns=given.make_ms * 1e6,
            )
        )
    return found


def _variants(
    where: str, name: str, function: Callable[..., Any], given: Registration
) -> list[tuple[str, Callable[..., Any]]]:
    if given.tune is not None:
        made = variants(where, name, function, given.tune, given.prune)
        return [(variant.name, variant.function) for variant in made]
    if given.prune is not None:
        raise KernelError(f"{where}: prune= leaves out variants: give tune=, too")
    return [(name, function)]


def _compatibility(
    function: object, given: Callable[..., object] | None
) -> Callable[..., object] | None:
    """What says whether calls may choose the function: a specialised kernel knows its own sizes."""
    if not (isinstance(function, Kernel) and function.sizes):
        return given
    fits = function.fits
    if given is None:
        return fits

    def fits_and_given(*args: Any, **keywords: Any) -> object:
        answer = fits(*args, **keywords)
        return given(*args, **keywords) if answer is True else answer

    return fits_and_given


def _checked_name(label: str, function: Callable[..., Any], name: str | None) -> str:
    if name is None and isinstance(function, Kernel) and function.sizes:
        return f"{function.__name__}[{function.sizes.name}]"
    if name is None:
        name = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name or set(name) & set(":, \t\n"):
        raise KernelError(
            f"{label}: the implementation {function!r} has no usable name ({name!r}): give one "
            "without spaces, ':' and ',' with register(name=...)"
        )
    return name
