"""The code of a bundle for one target: binaries by what they were compiled from.

A binary is found by the text of its unit, or by the text of which a backend made it. So whoever
loads a bundle makes units in the way of every call, and never has to know which file is which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import ir
from .bundle_codec import TARGET
from .bundle_files import Folder
from .compilation import compile_unit, load_binary
from .digests import sha256
from .errors import BundleError, CompileError
from .hooks import Binary, Launcher, Options, Target
from .loading import Backend, DeviceContext

INDEX = "index.json"
"""Of each target: what its files are."""

_KEY_DIGITS = 12
"""How much of a key is in the name of a file."""

_TEXT_PREFIX = "text:"


class MissingCode(BundleError):  # noqa: N818 - its readers see a BundleError
    """A bundle has no code that was made of some text."""


def unit_key(unit: ir.Unit, options: Options) -> str:
    """Name the code of a unit."""
    return _key(f"{ir.format_unit(unit)}\n{options}")


def _key(text: str) -> str:
    return sha256(text.encode()).hexdigest()


class TargetCode:
    """Compiled code for one target, and what was loaded of it.

    Parameters
    ----------
    name : str
        As users name the target, for example ``"cpu:x86-64-v3"``.
    target : Target
    origin : str
        Distribution and version of the backend that compiled it.
    binaries : dict of str to Binary
        By `unit_key`, or by the key of another text.
    where : str
        The bundle, for messages.
    """

    def __init__(
        self, name: str, target: Target, origin: str, binaries: dict[str, Binary], where: str
    ) -> None:
        self.name = name
        self.target = target
        self.origin = origin
        self.where = where
        self._binaries = binaries
        self._launchers: dict[tuple[str, DeviceContext], Launcher] = {}

    def launcher(self, unit: ir.Unit, context: DeviceContext, options: Options) -> Launcher:
        """The code of a unit, loaded on a device; the same object each time.

        Raises
        ------
        BundleError
            Where the bundle has no code of the unit.
        CompileError
            Where the code cannot be loaded on the device.
        """
        key = unit_key(unit, options)
        launcher = self._launchers.get((key, context))
        if launcher is None:
            binary = self._binary(key, unit.name)
            launcher = self._launchers[key, context] = load_binary(unit, binary, context)
        return launcher

    def made_of(self, text: str, make: Callable[[], Binary]) -> Binary:
        """What a backend has made of a text, if that is in the bundle; nothing is made now.

        Raises
        ------
        MissingCode
            Where it is not.
        """
        return self._binary(_key(text), "this form of a call")

    def _binary(self, key: str, what: str) -> Binary:
        if key not in self._binaries:
            raise MissingCode(
                f"{self.where}: there is no code of {what} for the target {self.name!r}; build the "
                "bundle again"
            )
        return self._binaries[key]


class NewCode(TargetCode):
    """Code that is compiled for a bundle, by whoever asks for it.

    Parameters
    ----------
    name : str
    target : Target
    backend : Backend
    has_device : bool
        Whether there is a device here that may run the code.

    Attributes
    ----------
    with_texts : bool
        Whether the texts that people read are kept of what is compiled next.
    """

    def __init__(self, name: str, target: Target, backend: Backend, has_device: bool) -> None:
        super().__init__(name, target, origin_of(backend), {}, "the new bundle")
        self.has_device = has_device
        self.with_texts = False
        self.backend = backend
        self._stems: dict[str, str] = {}
        self._texts: dict[str, dict[str, str]] = {}

    @property
    def folder(self) -> str:
        """Name of the folder of its files."""
        return "".join(c if c.isalnum() or c in "-._" else "-" for c in self.name)

    def launcher(self, unit: ir.Unit, context: DeviceContext, options: Options) -> Launcher:
        """The code of a unit, which the bundle then has; loaded, or what stands for that."""
        self._compile(unit, options)
        if not self.has_device:
            return _NotHere()
        try:
            return super().launcher(unit, context, options)
        except CompileError:
            return _NotHere()

    def _compile(self, unit: ir.Unit, options: Options) -> None:
        key = unit_key(unit, options)
        if key in self._texts and (self._texts[key] or not self.with_texts):
            return
        options = replace(options, keep_text=self.with_texts, standalone=True)
        binary = compile_unit(unit, self.backend, self.target, options)
        metadata = {name: value for name, value in binary.metadata.items() if ":" not in name}
        self._binaries[key] = Binary(binary.entry, binary.kind, binary.payload, metadata)
        self._stems[key] = f"{unit.name}-{key[:_KEY_DIGITS]}"
        self._texts[key] = {
            name.removeprefix(_TEXT_PREFIX): str(value)
            for name, value in binary.metadata.items()
            if name.startswith(_TEXT_PREFIX)
        }

    def made_of(self, text: str, make: Callable[[], Binary]) -> Binary:
        """What a backend makes of a text, which the bundle then has."""
        key = _key(text)
        if key not in self._binaries:
            self._binaries[key] = made = make()
            self._stems[key] = f"{made.entry}-{key[:_KEY_DIGITS]}"
            self._texts[key] = {}
        return self._binaries[key]

    def files(self) -> Iterator[tuple[str, Any]]:
        """Names and contents of its files; the index as what is to be JSON."""
        index = {}
        for key, binary in sorted(self._binaries.items(), key=lambda item: self._stems[item[0]]):
            name = f"{self.folder}/{self._stems[key]}.code"
            yield name, binary.payload
            for stage, text in self._texts[key].items():
                yield f"{self.folder}/{self._stems[key]}.{stage}", text.encode()
            index[key] = {
                "file": name,
                "entry": binary.entry,
                "kind": binary.kind,
                "metadata": dict(sorted(binary.metadata.items())),
            }
        yield f"{self.folder}/{INDEX}", index

    def description(self) -> dict[str, Any]:
        """What the manifest says of the target."""
        return {
            "index": f"{self.folder}/{INDEX}",
            "built_by": self.origin,
            "target": TARGET.write(self.target),
        }


class _NotHere:
    """Stands for the launcher of code that this machine cannot run."""

    direct = None

    def __call__(self, args: tuple[Any, ...], size: int) -> None:
        raise AssertionError("the code is for another device")


def origin_of(backend: Backend) -> str:
    """Who compiles for a backend: code and launchers of one version fit together."""
    return f"{backend.distribution} {backend.version}"


def stored_code(folder: Folder, name: str, description: Any) -> TargetCode:
    """The code for a target of a bundle.

    Raises
    ------
    BundleError
        Where the bundle says of it what none that was built by `NewCode` does.
    """
    where = str(folder.directory)
    match description:
        case {"index": str(index_name), "built_by": str(origin), "target": written}:
            target: Target = TARGET.read(written)
        case _:
            raise BundleError(f"{where}: the target {name!r} is described in an unknown way")
    index = folder.json(index_name)
    path = folder.directory / index_name
    if not isinstance(index, dict):
        raise BundleError(f"{path} is not the index of a target; build the bundle again")
    binaries = {key: _binary(path, entry, folder) for key, entry in index.items()}
    return TargetCode(name, target, origin, binaries, where)


def _binary(path: Path, entry: Any, folder: Folder) -> Binary:
    match entry:
        case {"file": str(file), "entry": str(symbol), "kind": str(kind), "metadata": dict(found)}:
            return Binary(symbol, kind, folder.content(file), _metadata(path, found))
    raise BundleError(f"{path} describes a file in an unknown way; build the bundle again")


def _metadata(path: Path, found: Mapping[str, Any]) -> Mapping[str, Any]:
    if not all(isinstance(value, str | int) for value in found.values()):
        raise BundleError(f"{path} has metadata of an unknown type; build the bundle again")
    return found
