"""The arguments of a call put aside: to restore what was written, and to run on copies.

Arrays are found wherever they sit: as arguments, and in lists, tuples, dicts and dataclasses of any
depth. A `Snapshot` holds what the written arguments hold, for a restore after a failed run.
`WorkingCopies` are arguments on which implementations can run without the caller's arrays being
touched. Both hold about as much as is written, never what is only read.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import inspect
import types
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .arguments import overlaps, stand_in
from .backends import home, to_numpy
from .loading import DeviceContext

_ALIGNMENT = 64
_SPREAD_KEPT = 4
"""Up to this many times its own size, a copy spreads over as much memory as its original does."""

_MISSING = object()
_CONSTANT_TYPES = (
    bool, int, float, complex, str, bytes, np.generic, np.dtype, enum.Enum, type, types.NoneType,
    types.EllipsisType, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, range,
    slice, frozenset,
)  # fmt: skip


# -- what an argument holds ------------------------------------------------------------------------


def is_array(value: object) -> bool:
    """Whether a value is an array, of NumPy or of a device."""
    if isinstance(value, np.ndarray):
        return True
    is_scalar_or_type = isinstance(value, np.generic | type)
    return not is_scalar_or_type and hasattr(value, "shape") and hasattr(value, "dtype")


def members(value: Any) -> list[tuple[str, Any]] | None:
    """What a container holds, each with how Python spells it; None for anything else."""
    if isinstance(value, list | tuple):
        return [(f"[{position}]", each) for position, each in enumerate(value)]
    if isinstance(value, dict):
        return [(f"[{key!r}]", each) for key, each in value.items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value) if hasattr(value, each.name)]
        return [(f".{name}", getattr(value, name)) for name in names]
    return None


def walk(value: Any, label: str) -> Iterator[tuple[str, Any]]:
    """A value, and if it is a container all that it holds, each container once."""
    seen: set[int] = set()

    def visit(value: Any, label: str) -> Iterator[tuple[str, Any]]:
        yield label, value
        held = members(value)
        if held is None or id(value) in seen:
            return
        seen.add(id(value))
        for spelling, each in held:
            yield from visit(each, label + spelling)

    return visit(value, label)


def _contents(bound: inspect.BoundArguments, names: Collection[str]) -> list[tuple[str, Any]]:
    return [
        found
        for name in names
        if name in bound.arguments
        for found in walk(bound.arguments[name], repr(name))
    ]


def _problem(contents: Iterable[tuple[str, Any]]) -> str | None:
    """Why what is written cannot be copied and restored, or None."""
    for label, value in contents:
        if is_array(value):
            if not (isinstance(value, np.ndarray) or hasattr(value, "__setitem__")):
                return f"{label} is a {type(value).__name__}, which cannot be assigned to"
        elif members(value) is None and not isinstance(value, _CONSTANT_TYPES):
            return (
                f"{label} is a {type(value).__name__}; what can be copied and restored are arrays, "
                "and lists, tuples, dicts and dataclasses of them"
            )
    return None


def _alias_on_a_device(
    written: Iterable[tuple[str, Any]], everything: Iterable[tuple[str, Any]]
) -> str | None:
    """Why copies on a device would not lie to each other as these arrays do, or None."""
    lying = [(label, value, _lie(value)) for label, value in everything if is_array(value)]
    for label, value in written:
        lie = _lie(value) if is_array(value) else None
        for other_label, other, other_lie in lying:
            if lie is None or other_lie is None or other is value:
                continue
            if lie[0] is other_lie[0] and overlaps(lie[1], other_lie[1]):
                return f"{label} and {other_label} share memory on {lie[0].name}"
    return None


def _lie(array: Any) -> tuple[DeviceContext, Any] | None:
    """The device of an array and how it lies there; None for what lives on the host."""
    owner = home(array)
    return None if owner is None or owner.is_host else (owner, stand_in(array, owner))


# -- arrays of any kind ----------------------------------------------------------------------------


def copied(array: Any) -> Any:
    """A copy of an array, where the array lives."""
    if isinstance(array, np.ndarray):
        return array.copy(order="K")
    owner = home(array)
    if owner is not None and hasattr(owner.memory, "copy"):
        return owner.memory.copy(array)
    for method in ("copy", "clone"):  # PyTorch calls it clone
        if callable(getattr(array, method, None)):
            return getattr(array, method)()
    host = to_numpy(array).copy()
    return host if owner is None else owner.memory.put(host)


def assign(array: Any, content: Any) -> None:
    """Overwrite all elements of an array with those of an array of the same kind or of NumPy."""
    if isinstance(array, np.ndarray):
        array[...] = content
        return
    owner = home(array)
    if isinstance(content, np.ndarray) and owner is not None:
        content = np.asarray(content, order="C")
    if owner is not None and hasattr(owner.memory, "assign"):
        owner.memory.assign(array, content)
        return
    if isinstance(content, np.ndarray):
        if owner is None:
            array = np.asarray(array)  # a tensor of another library, whose memory this shares
        else:
            content = owner.memory.put(content)
    array[...] = content


def poison(array: Any) -> None:
    """Overwrite an array with values that no implementation would leave there: NaN for floats."""
    if isinstance(array, np.ndarray):
        _poison_on_host(array)
        return
    host = to_numpy(array).copy()
    _poison_on_host(host)
    assign(array, host)


def _poison_on_host(array: np.ndarray[Any, Any]) -> None:
    kind = array.dtype.kind
    if array.dtype.names:
        for name in array.dtype.names:
            _poison_on_host(array[name])
    elif kind == "b":
        np.logical_not(array, out=array)
    elif kind in "iu":
        pattern = np.full(array.dtype.itemsize, 0x5A, np.uint8).view(array.dtype)
        array[...] = pattern[0]
    elif kind in "fc":
        array[...] = np.nan
    elif kind in "mM":
        array[...] = np.array("NaT", array.dtype)


def _is_plain(array: Any) -> bool:
    """Whether a copy may be made of bytes."""
    return type(array) is np.ndarray and not array.dtype.hasobject


# -- snapshots -------------------------------------------------------------------------------------


class Snapshot:
    """What the written arguments of a call hold, to be restored.

    Parameters
    ----------
    bound : inspect.BoundArguments
        All arguments of the call, defaults applied.
    names : collection of str
        The written ones.

    Attributes
    ----------
    problem : str or None
        Why these arguments cannot be restored; nothing is copied then.

    Examples
    --------
    >>> import inspect
    >>> import numpy as np
    >>> x = np.arange(3.0)
    >>> bound = inspect.signature(lambda x, factor: ...).bind(x, 2)
    >>> snapshot = Snapshot(bound, ["x"])
    >>> x *= 2
    >>> snapshot.restore()
    True
    >>> x
    array([0., 1., 2.])
    """

    def __init__(self, bound: inspect.BoundArguments, names: Collection[str]) -> None:
        self._arrays: list[tuple[Any, Any]] = []
        self._containers: list[tuple[Any, Any]] = []
        contents = _contents(bound, names)
        self.problem = _problem(contents)
        if self.problem is not None:
            return
        known: set[object] = set()
        for _, value in contents:
            key = _identity(value)
            if key in known:
                continue
            known.add(key)
            if is_array(value):
                # What is read-only was not written, and could not be restored.
                if not isinstance(value, np.ndarray) or value.flags.writeable:
                    self._arrays.append((value, copied(value)))
            elif members(value) is not None and not isinstance(value, tuple):
                self._containers.append((value, _content(value)))

    def restore(self) -> bool:
        """Put everything back, as often as needed; return whether that was possible."""
        if self.problem is not None:
            return False
        for container, content in self._containers:
            _set_content(container, content)
        for array, content in self._arrays:
            assign(array, content)
        return True


def _identity(value: Any) -> object:
    """Equal for one object, and for views of the same elements in the same order."""
    if not _is_plain(value):
        return id(value)
    return _address(value), value.shape, value.strides, value.dtype


def _content(container: Any) -> Any:
    if isinstance(container, list | dict):
        return container.copy()
    fields = dataclasses.fields(container)
    return {each.name: getattr(container, each.name, _MISSING) for each in fields}


def _set_content(container: Any, content: Any) -> None:
    if isinstance(container, list):
        container[:] = content
    elif isinstance(container, dict):
        container.clear()
        container.update(content)
    else:
        for name, value in content.items():
            if value is not _MISSING and getattr(container, name, _MISSING) is not value:
                object.__setattr__(container, name, value)  # a copy may be of a frozen class


# -- working copies --------------------------------------------------------------------------------


@dataclasses.dataclass(eq=False)
class _Twin:
    """An array that stands in place of one of the caller's."""

    original: Any
    writable: Any
    given: Any
    """What implementations get: read-only where the original is."""
    arguments: set[str]
    """Names of the arguments through which its memory is reached."""


class WorkingCopies:
    """Arguments like those of a call, of which all that is written is a copy.

    Copies have the alignment of their originals, and their strides unless these spread a few
    elements over much memory; then they are strided, too. What overlaps, overlaps in the copies:
    arguments that are only read are copied if they share memory with written ones.

    Parameters
    ----------
    bound : inspect.BoundArguments
        All arguments of the call, defaults applied.
    names : collection of str
        The written ones.

    Attributes
    ----------
    problem : str or None
        Why these arguments cannot be copied.
    """

    def __init__(self, bound: inspect.BoundArguments, names: Collection[str]) -> None:
        self._bound = bound
        self._names = names
        self._twins: dict[int, _Twin] = {}
        contents = _contents(bound, names)
        self.problem = _problem(contents) or _alias_on_a_device(
            contents, _contents(bound, bound.arguments)
        )
        if self.problem is None:
            self._make_twins({id(value): value for _, value in contents if is_array(value)})

    def _make_twins(self, written: Mapping[int, Any]) -> None:
        reached: dict[int, set[str]] = {}
        read: dict[int, Any] = {}
        for name in self._bound.arguments:
            for _, value in _contents(self._bound, [name]):
                if is_array(value):
                    reached.setdefault(id(value), set()).add(name)
                    if id(value) not in written:
                        read[id(value)] = value
        for group in _groups(list(written.values()), list(read.values())):
            arguments = set[str]().union(*(reached[id(array)] for array in group))
            copies = _like(group) if _is_plain(group[0]) else [copied(group[0])]
            for array, twin in zip(group, copies, strict=True):
                given = twin
                if isinstance(array, np.ndarray) and not array.flags.writeable:
                    given = twin.view()
                    given.flags.writeable = False
                self._twins[id(array)] = _Twin(array, twin, given, arguments)

    def fresh(
        self, poisoned: Collection[str] = (), replaced: Mapping[int, Any] | None = None
    ) -> inspect.BoundArguments:
        """Fill the copies from the caller's arrays, and return arguments to run on.

        The next call reuses the memory of the arrays in them.

        Parameters
        ----------
        poisoned : collection of str
            Arguments whose arrays get values that are not to be read, unless they can also be
            reached through another argument.
        replaced : mapping of int to numpy.ndarray, optional
            Other content, by the ``id`` of the caller's array.
        """
        for key, twin in self._twins.items():
            assign(twin.writable, (replaced or {}).get(key, twin.original))
        for twin in self._twins.values():
            if twin.arguments.issubset(poisoned):
                poison(twin.writable)
        made: dict[int, Any] = {}
        arguments = {
            name: self._rebuilt(value, made, name in self._names)
            for name, value in self._bound.arguments.items()
        }
        return inspect.BoundArguments(self._bound.signature, arguments)

    def original(self, name: str) -> Any:
        """What the caller gave for an argument."""
        return self._bound.arguments.get(name)

    def own_arrays(self, names: Collection[str]) -> dict[int, Any]:
        """The caller's arrays, by ``id``, that can be reached through these arguments only."""
        return {
            key: twin.original
            for key, twin in self._twins.items()
            if twin.arguments.issubset(names)
        }

    def _rebuilt(self, value: Any, made: dict[int, Any], is_written: bool) -> Any:
        """The value with copies in it; containers that neither hold one nor are written stay."""
        if id(value) in made:
            return made[id(value)]
        if is_array(value):
            twin = self._twins.get(id(value))
            return value if twin is None else twin.given
        held = members(value)
        if held is None or not (is_written or self._holds_copies(value)):
            return value
        if isinstance(value, tuple):
            items = [self._rebuilt(each, made, is_written) for each in value]
            rebuilt = value._make(items) if hasattr(value, "_make") else type(value)(items)
            made[id(value)] = rebuilt
            return rebuilt
        made[id(value)] = rebuilt = copy.copy(value)
        content = _content(value)
        for key, each in enumerate(content) if isinstance(content, list) else content.items():
            content[key] = self._rebuilt(each, made, is_written)
        _set_content(rebuilt, content)
        return rebuilt

    def _holds_copies(self, value: Any) -> bool:
        held = (id(each) for _, each in walk(value, ""))
        written = (id(v) for _, v in _contents(self._bound, self._names) if members(v) is not None)
        return not {*self._twins, *written}.isdisjoint(held)


_Group = tuple[list[Any], list[Any]]
"""The written arrays of a group, and all of its arrays."""


def _groups(written: Iterable[Any], read: Iterable[Any]) -> list[list[Any]]:
    """The written arrays, each together with all that share memory with it."""
    groups: list[_Group] = []
    for array in written:
        apart, (own, everything) = _split(groups, array)
        groups = [*apart, ([*own, array], [*everything, array])]
    for array in read:
        apart, (own, everything) = _split(groups, array)
        if own:
            groups = [*apart, (own, [*everything, array])]
    return [everything for _, everything in groups]


def _split(groups: Iterable[_Group], array: Any) -> tuple[list[_Group], _Group]:
    """The groups that an array does not touch, and those that it does, as one."""
    apart: list[_Group] = []
    touched: _Group = [], []
    for group in groups:
        if _touches(array, group[0]):
            touched[0].extend(group[0])
            touched[1].extend(group[1])
        else:
            apart.append(group)
    return apart, touched


def _touches(array: Any, others: Iterable[Any]) -> bool:
    return _is_plain(array) and any(_is_plain(each) and overlaps(array, each) for each in others)


def _like(group: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """Uninitialised arrays that lie to each other, and to the alignment, as those of a group."""
    bounds = [_bounds(array) for array in group]
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    if len(group) == 1 and high - low > _SPREAD_KEPT * group[0].nbytes:
        return [np.empty((*group[0].shape, 2), group[0].dtype)[..., 0]]
    memory = np.empty(high - low + _ALIGNMENT, np.uint8)
    shift = (low - _address(memory)) % _ALIGNMENT - low
    return [
        np.ndarray(array.shape, array.dtype, memory, shift + _address(array), array.strides)
        for array in group
    ]


def _bounds(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    if not array.size:
        return _address(array), _address(array)
    low, high = np.lib.array_utils.byte_bounds(array)
    return int(low), int(high)


def _address(array: np.ndarray[Any, Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
