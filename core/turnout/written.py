"""Which arguments an implementation writes, as far as that can be known without running it.

A kernel tells by itself: its units say which arrays they store to and load from. A plain function
is believed what it was registered with, ``mutates=("out",)``. Declarations that cannot all be true
are refused at registration.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, Literal

from .arguments import Types
from .errors import KernelError
from .kernel import Kernel
from .lang import LoweredKernel

Access = Literal["output", "update", "unknown"]
"""How an argument is written: ``"output"``, without being read before; ``"update"``, after it was
read; ``"unknown"`` whether it is read."""

Mutates = Iterable[str] | Mapping[str, Access]
"""What ``mutates=`` takes: names of parameters, or by name ``"output"`` or ``"update"``."""


def check_mutates(
    where: str, mutates: Mutates | None, prototype: inspect.Signature
) -> dict[str, Access] | None:
    """Return a declaration by name, in the prototype's order.

    Parameters
    ----------
    where : str
        What the declaration belongs to, for messages.
    mutates : iterable of str, or mapping of str to {"output", "update"}, or None
    prototype : inspect.Signature

    Raises
    ------
    KernelError
        When it names anything else than parameters of the prototype, or one of them twice.
    """
    if mutates is None:
        return None
    parameters = list(prototype.parameters)
    if isinstance(mutates, str) or not isinstance(mutates, Iterable):
        raise KernelError(
            f"{where}: mutates={mutates!r} is not allowed: give a tuple of parameter names, for "
            f"example mutates=({parameters[-1] if parameters else 'out'!r},)"
        )
    names = list(mutates)
    for name in names:
        if name not in parameters:
            raise KernelError(
                f"{where}: mutates names {name!r}, which is no parameter of the prototype; its "
                f"parameters are {parameters}"
            )
        if names.count(name) > 1:
            raise KernelError(f"{where}: mutates names {name!r} twice: name it once")
    accesses: dict[str, Any] = dict.fromkeys(names, "unknown")
    if isinstance(mutates, Mapping):
        accesses.update(mutates)
        for name, access in accesses.items():
            if access not in ("output", "update"):
                raise KernelError(
                    f"{where}: mutates says {access!r} of {name!r}: say 'output' if its content is "
                    "not read before it is written, and 'update' if it is"
                )
    return {name: accesses[name] for name in parameters if name in accesses}


class Writes:
    """What one implementation writes.

    Parameters
    ----------
    function : callable
        The implementation.
    declared : mapping of str to Access, or None
        What `check_mutates` returned for it; None where it says nothing.
    prototype : inspect.Signature
    default : mapping of str to Access, or None
        What counts for functions that say nothing: the declaration of the whole operation.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        declared: Mapping[str, Access] | None,
        prototype: inspect.Signature,
        default: Mapping[str, Access] | None = None,
    ) -> None:
        kernel = _as_kernel(function)
        has_same_names = kernel is not None and list(prototype.parameters) == list(
            kernel.__signature__.parameters
        )
        self._kernel = kernel if has_same_names else None
        self._declared = declared
        self._default = default

    @property
    def is_declared(self) -> bool:
        """Whether someone said what is written, so that a contradiction is someone's mistake."""
        return self._declared is not None or self._default is not None

    @property
    def is_unknown(self) -> bool:
        """Whether this is a function of which nobody said what it writes."""
        return self._kernel is None and not self.is_declared

    @cached_property
    def accesses(self) -> Mapping[str, Access] | None:
        """How each written argument is accessed; None where it is not known what is written.

        Of a kernel this is found out when it is first asked for, which takes milliseconds.
        """
        return self._own if self._own is not None else self._default

    @cached_property
    def _own(self) -> Mapping[str, Access] | None:
        found = None if self._kernel is None else kernel_accesses(self._kernel)
        return self._declared if found is None else found

    def check(self, where: str, others: Mapping[str, Writes]) -> None:
        """Raise a KernelError where declarations contradict a kernel or each other.

        Parameters
        ----------
        where : str
            What this implementation is called in messages.
        others : mapping of str to Writes
            The other implementations of the operation by name.
        """
        if self._declared is not None and self._own is not None:
            self._check_kernel(where, self._declared, self._own)
        for name, other in others.items():
            if self.is_declared or other.is_declared:
                self._check_other(where, name, other)

    def _check_kernel(
        self, where: str, declared: Mapping[str, Access], own: Mapping[str, Access]
    ) -> None:
        if declared.keys() != own.keys():
            raise KernelError(
                f"{where} is a kernel that writes {_listed(own)}, and mutates= says that it writes "
                f"{_listed(declared)}: leave mutates= out, kernels tell by themselves"
            )
        self._check_accesses(where, "the kernel itself", own)

    def _check_other(self, where: str, name: str, other: Writes) -> None:
        if self.accesses is None or other.accesses is None:
            return
        if not (self.accesses.keys() & other.accesses.keys()) and self.accesses != other.accesses:
            raise KernelError(
                f"{where} writes {_listed(self.accesses)}, and {name!r} writes "
                f"{_listed(other.accesses)}: implementations of one operation leave their results "
                "in the same arguments; correct mutates="
            )
        self._check_accesses(where, repr(name), other.accesses)
        other._check_accesses(repr(name), where, self.accesses)

    def _check_accesses(self, where: str, by: str, accesses: Mapping[str, Access]) -> None:
        for name, said in (self._declared or self._default or {}).items():
            found = accesses.get(name, "unknown")
            if "unknown" not in (said, found) and said != found:
                words = {"output": "not read before it is written", "update": "read, then written"}
                raise KernelError(
                    f"{where}: mutates= says that {name!r} is {words[said]}, but by {by} it is "
                    f"{words[found]}: correct one of them"
                )


def combined(all_writes: Iterable[Writes]) -> dict[str, Access]:
    """What several implementations write taken together, as far as it is known.

    An argument that one of them reads first is an update. One that a single implementation is known
    not to read is an output, because the result of the operation cannot depend on its content.
    """
    strength = {"unknown": 0, "output": 1, "update": 2}
    found: dict[str, Access] = {}
    for writes in all_writes:
        for name, access in (writes.accesses or {}).items():
            found[name] = max(found.get(name, access), access, key=strength.__getitem__)
    return found


def kernel_accesses(kernel: Kernel) -> dict[str, Access] | None:
    """Return how a kernel accesses the arguments that it writes.

    Parameters
    ----------
    kernel : Kernel
        It is not compiled, and its constants stay unresolved.

    Returns
    -------
    dict of str to Access, or None
        By parameter. None for a kernel that cannot be lowered without the arguments of a call.
    """
    lowered = _lowered(kernel)
    outputs: dict[str, Access] = {
        spec.name: "unknown" for spec in kernel.signature.parameters if spec.is_output
    }
    if lowered is None:
        return outputs if kernel.signature.form == "sample" else None
    read: set[str] = set()
    written: set[str] = set()
    for unit in lowered.plan.units:
        read |= {array.name for array in unit.arrays.values() if array.is_read}
        written |= {array.name for array in unit.arrays.values() if array.is_written}
    return {
        spec.name: "update" if spec.name in read else "output"
        for spec in kernel.signature.parameters
        if spec.name in written
    }


def _lowered(kernel: Kernel) -> LoweredKernel | None:
    """The kernel for types of a possible call; which arrays it accesses does not depend on them."""
    # A number may be used as an index or a length, which only integers can be.
    types: Types = {
        name: "int" if dtype == "float" else dtype for name, dtype in kernel.default_types().items()
    }
    try:
        return kernel.lower_unresolved(types)
    except KernelError:
        return None


def _as_kernel(function: Callable[..., Any]) -> Kernel | None:
    while isinstance(function, functools.partial):
        function = function.func
    return function if isinstance(function, Kernel) else None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
