"""Operations in pickles: by name where any reader can import them, else by their definition.

Like kernels (:mod:`turnout.pickling`), but an operation holds plain functions. So where `pickle`
cannot write those, its pickle names the operation and nothing else, and libraries that pickle any
function, such as cloudpickle, write the definition as well.

Nothing here needs the class of operations, which is passed on in pickles; so `turnout.perf` stays
free of all this.
"""

from __future__ import annotations

import functools
import inspect
import os
import types
import weakref
from typing import Any

from .errors import KernelError
from .pickling import MADE_KEPT, named
from .records import record
from .settings import Settings
from .signatures import generate_prototype
from .tuning import Candidate


@record
class _Definition:
    """What an operation is made of; decisions, samples and annotations are no part of it."""

    name: str
    qualname: str
    module: str
    doc: str | None
    signature: inspect.Signature
    settings: Settings
    implementations: tuple[Candidate, ...]


_pickled: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
"""By token the operations of this process that were pickled here."""


def reduced(operation: Any, kind: type) -> str | tuple[Any, ...]:
    """What ``__reduce__`` of an operation returns.

    Parameters
    ----------
    operation : PerformanceDispatcher
    kind : type
        The class of all operations.

    Notes
    -----
    The definition is the state, not an argument, because its functions may refer to the operation.
    """
    module, qualname = operation.__module__, operation.__qualname__
    is_found = named(module, qualname) is operation
    if is_found and module != "__main__":
        return str(qualname)
    with operation._registration:
        if not operation._token:
            operation._token = os.urandom(16).hex()
            _pickled[operation._token] = operation
        definition = _definition(operation)
    if is_found:
        arguments = (kind, module, qualname, operation._token, _if_functions_travel(True))
        return _found_or_empty, arguments, _if_functions_travel(definition)
    return _found_or_empty, (kind, module, qualname, operation._token, True), definition


def _definition(operation: Any) -> _Definition:
    signature = operation.__signature__
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return _Definition(
        operation.__name__,
        operation.__qualname__,
        operation.__module__,
        operation.__doc__,
        inspect.Signature(bare),
        operation._settings,
        # The reader loads what is installed there.
        tuple(each for each in operation._tuner.candidates if not each.is_installed),
    )


class _Named:
    """Stands in pickles for the content of a method made by `_if_functions_travel`."""

    content = None


def _if_functions_travel(value: object) -> types.MethodType:
    """Return a method that gives `value`, for pickles that can hold any function.

    `pickle` writes a method as its object and its name, and reads ``_Named().content``: None.
    Libraries that pickle any function write it as its object and its function, with `value` inside.
    """

    def content(self: _Named) -> object:
        return value

    return types.MethodType(content, _Named())


def _found_or_empty(
    kind: type, module: str, qualname: str, token: str, has_definition: object
) -> Any:
    """Find the operation of a pickle, or make an empty one, which `restore` fills."""
    if has_definition:
        return _pickled.get(token) or _empty(kind, token)
    found = named(module, qualname)
    if not isinstance(found, kind):
        raise KernelError(
            f"the operation {qualname!r} was pickled by its name in {module}, and there is no such "
            "operation here: define it in a module that both programs import, or pickle it with "
            "a library that pickles functions, such as cloudpickle"
        )
    return found


@functools.lru_cache(maxsize=MADE_KEPT)
def _empty(kind: type, token: str) -> Any:
    operation: Any = kind.__new__(kind)  # type: ignore[call-overload]
    operation._token, operation._is_unpickled = token, True
    return operation


def restore(operation: Any, state: Any) -> None:
    """Fill an operation made from a pickle; one that was filled before takes the new functions.

    So a process measures once, while functions always see the values that they were pickled with.
    """
    if state is None:
        return  # it was found by name
    definition = state() if isinstance(state, types.MethodType) else state
    with operation._registration:
        if not operation._is_unpickled:
            return
        if hasattr(operation, "_tuner"):
            operation._tuner.renew(definition.implementations)
            operation._settings = definition.settings
            if definition.settings.get_geometry_hash is not None:
                operation._get_geometry = definition.settings.get_geometry_hash
        else:
            prototype = generate_prototype(definition.signature)
            prototype.__name__, prototype.__qualname__ = definition.name, definition.qualname
            prototype.__module__, prototype.__doc__ = definition.module, definition.doc
            operation.__init__(prototype, definition.settings)
            operation._tuner.add(definition.implementations)
        operation._generate_call()
