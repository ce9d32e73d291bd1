"""Builtins in front of operations: decided calls that pass no Python code of turnout.

The first decided call of an operation takes the generated path (`turnout.signatures`), which asks
the `Front` to lend the decision: it writes it into a table and, once, has a plugin make a builtin
that finds it there. That becomes the operation's ``__call__``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from typing import Any, cast

import numpy as np

from .backends import DeviceContext, active, choice_of
from .decision_table import DecisionTable
from .direct import DecidedCalls
from .offers import is_any_offered, offered_decided_calls
from .signatures import flat_parts
from .tuning import Decided

_NUMBERS = "biufc"
"""Kinds of element types whose number tells all about them, but the order of their bytes."""


def front_of(
    name: str,
    prototype: inspect.Signature,
    get_geometry: Callable[..., Hashable],
    install: Callable[[], None],
) -> Front | None:
    """Return the front of an operation; None where its geometry is not one that native code tells.

    Parameters
    ----------
    name : str
        Of the operation.
    prototype : inspect.Signature
    get_geometry : callable
    install : callable
        Is called when `Front.entry` has something else to return than before.
    """
    parts = flat_parts(get_geometry)
    if parts is None or [*parts[0], *parts[1]] != list(prototype.parameters):
        return None
    kinds = {each.kind for each in prototype.parameters.values()}
    if kinds != {inspect.Parameter.POSITIONAL_OR_KEYWORD}:
        return None
    return Front(name, *parts, install)


class Front:
    """The decisions of one operation that native code finds.

    They are those for one device, that of the first decided call for which a plugin makes a
    builtin.

    Attributes
    ----------
    is_possible : bool
        False once it is known that no plugin makes one.
    """

    def __init__(
        self,
        name: str,
        arrays: tuple[str, ...],
        optional: tuple[str, ...],
        install: Callable[[], None],
    ) -> None:
        self._name, self._arrays, self._optional = name, arrays, optional
        self._install = install
        self._table = DecisionTable(len(arrays))
        self._context: DeviceContext | None = None
        self._other_devices: set[str] = set()
        self.is_possible = True

    def entry(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the builtin in front of the generated path, or that path."""
        made = None if self._context is None else self._made(self._context, call)
        return made or call

    def _made(self, context: DeviceContext, call: Callable[..., Any]) -> Callable[..., Any] | None:
        make = offered_decided_calls(self._name, context.backend.name)
        if make is None:
            return None
        device = choice_of(context)
        return make(
            DecidedCalls(self._name, self._arrays, self._optional, device, self._table, call)
        )

    def lend(self, geometry: tuple[Any, ...], decided: Decided[Any]) -> bool:
        """Let native code find a decision; returns whether it holds for the present call."""
        if geometry[0] in self._other_devices or not self._is_for(geometry[0]):
            return decided.use()
        key = self._key(geometry)
        return decided.use() if key is None else decided.lend(self._table, key)

    def _is_for(self, device: str) -> bool:
        """Whether the table has decisions for a device."""
        if self._context is None:
            context = active()
            if context.name == device and context.is_host:
                self._set_up(context)
        if self._context is not None and self._context.name == device:
            return True
        self._other_devices.add(device)
        return False

    def _set_up(self, context: DeviceContext) -> None:
        """Have a builtin made; where there is none, the generated path serves."""
        if self._made(context, _nothing) is not None:
            self._context = context
            self._other_devices.discard(context.name)
        elif offered_decided_calls(self._name, context.backend.name) or not is_any_offered(
            self._name
        ):
            self.is_possible = False
        else:
            return  # perhaps for another device
        self._install()

    def _key(self, geometry: tuple[Any, ...]) -> list[int] | None:
        """The words for a geometry; None where native code does not tell it."""
        dtype = geometry[1]
        if not isinstance(dtype, np.dtype) or dtype.kind not in _NUMBERS:
            return None  # a default geometry, or an odd type
        key = [dtype.num | (0 if dtype.isnative else DecisionTable.OTHER_BYTE_ORDER)]
        end = 2 + 2 * len(self._arrays)
        for shape, is_contiguous in zip(geometry[2:end:2], geometry[3:end:2], strict=True):
            if len(shape) > DecisionTable.MOST_AXES:
                return None
            key.append(len(shape) | (DecisionTable.IS_CONTIGUOUS if is_contiguous else 0))
            key += [*shape, *(0,) * (DecisionTable.MOST_AXES - len(shape))]
        for place, is_none in enumerate(cast("tuple[bool, ...]", geometry[end:])):
            key[1] |= DecisionTable.optional_bit(place) if is_none else 0
        return key

    def forget_other_threads(self) -> None:
        """After a fork, in the child."""
        self._table.forget_other_threads()


def _nothing(*arguments: Any, **keywords: Any) -> None:
    """Stands for the generated path where it is only found out whether a builtin can be made."""
