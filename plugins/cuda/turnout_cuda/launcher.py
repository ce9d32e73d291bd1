"""The arguments of a call to a launch on CuPy's current stream."""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import prod
from typing import Any

from turnout.plugin import CallError, IndexViolation, cfamily, ir

from .driver import Driver, Loaded, explained

THREADS = 256
"""Threads of a block: every kernel may have so many, whatever registers it takes."""

_BLOCKS_PER_MULTIPROCESSOR = 32
"""Four times what fits at once, so that the last ones do not leave much idle."""

_INVALID_CONTEXT = 201

_pack_extra = struct.Struct("5Q").pack
_BUFFER_POINTER, _BUFFER_SIZE, _END = 1, 2, 0
"""How ``cuLaunchKernel`` is told that all parameters lie in one buffer."""

_BYTES_HEADER = bytes.__basicsize__ - 1
"""Where the content of a bytes object begins; the zero behind the content counts as header."""

_SLOT_BYTES = 8


class View:
    """An array of another library, in the words of CuPy's arrays."""

    def __init__(self, pointer: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.ptr, self.shape, self.strides = pointer, shape, strides

    @property
    def data(self) -> View:
        return self


class CudaLauncher:
    """Runs the loaded code of one unit on one GPU; see `turnout.plugin.Launcher`.

    A launch waits for nothing and allocates nothing on the GPU, so it can be captured into a graph.
    The driver copies the parameters before it returns, and each launch packs its own, so threads
    may share a launcher.
    """

    direct = None
    _added_slots = 0

    def __init__(self, driver: Driver, loaded: Loaded, unit: ir.Unit, ordinal: int) -> None:
        self._driver = driver
        self._loaded = loaded
        self._ordinal = ordinal
        self._unit = unit
        self._arrays = [
            place
            for place, each in enumerate(unit.parameters)
            if isinstance(each, ir.ArrayParameter)
        ]
        self._array_type = driver.array_type
        slots = sum(map(_slots, unit.parameters))
        self._pack = cfamily.packer(unit, "{0}.data.ptr")
        if not unit.parameters:
            self._pack = lambda: bytes(_SLOT_BYTES)  # C has no structures without members
        self._length = struct.pack("Q", max(1, slots + self._added_slots) * _SLOT_BYTES)
        self._misalignment = _misalignment(unit)
        self._most_blocks = _BLOCKS_PER_MULTIPROCESSOR * driver.multiprocessors(ordinal)
        self._threads = THREADS if unit.extents else 1

    def __call__(self, args: tuple[Any, ...], size: int) -> None:
        if size == 0:
            return
        if self._driver.current_ordinal() == self._ordinal:
            self._launch(self._packed(args), size)
            return
        with self._driver.device(self._ordinal):
            self._launch(self._packed(args), size)

    def _packed(self, args: tuple[Any, ...]) -> bytes:
        """All parameters as the code takes them."""
        for place in self._arrays:
            if type(args[place]) is not self._array_type:
                args = self._with_views(args)
                break
        packed = self._pack(*args)
        if self._misalignment(packed):
            raise self._misaligned(args)
        return packed

    def _launch(self, packed: bytes, size: int) -> None:
        threads = self._threads
        blocks = min(-(-size // threads), self._most_blocks)
        buffer, length = id(packed) + _BYTES_HEADER, id(self._length) + _BYTES_HEADER
        extra = _pack_extra(_BUFFER_POINTER, buffer, _BUFFER_SIZE, length, _END)
        shape = (blocks, 1, 1, threads, 1, 1)
        driver, function, address = self._driver, self._loaded.handle, id(extra) + _BYTES_HEADER
        try:
            driver.launch_kernel(function, *shape, 0, driver.current_stream(), 0, address)
        except RuntimeError as error:
            if getattr(error, "status", None) != _INVALID_CONTEXT:
                raise explained(error) from None
            # The first call in a thread.
            driver.make_context(self._ordinal)
            driver.launch_kernel(function, *shape, 0, driver.current_stream(), 0, address)

    def _with_views(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments with a `View` of each array that is not CuPy's."""
        return tuple(
            self._view(parameter, argument)
            if isinstance(parameter, ir.ArrayParameter)
            and not isinstance(argument, self._array_type)
            else argument
            for parameter, argument in zip(self._unit.parameters, args, strict=True)
        )

    def _view(self, parameter: ir.ArrayParameter, array: Any) -> View:
        try:
            described = array.__cuda_array_interface__
        except Exception as error:  # whatever the library says, for example of gradients
            raise CallError(
                f"argument {parameter.name!r}, of type {type(array).__name__}, cannot be shared: "
                f"{error}"
            ) from error
        pointer, is_read_only = described["data"]
        if is_read_only and parameter.is_written:
            raise CallError(
                f"argument {parameter.name!r} is written by the kernel, but is read-only; pass an "
                "array that can be written, for example a copy"
            )
        if described.get("mask") is not None:
            raise CallError(f"argument {parameter.name!r} has a mask, which would be lost")
        stream = described.get("stream")
        if stream is not None and not self._driver.is_current_stream(stream):
            self._driver.wait_for(stream)
        shape = tuple(described["shape"])
        strides = described.get("strides")
        if strides is None:
            itemsize = parameter.dtype.itemsize
            strides = [prod(shape[axis + 1 :]) * itemsize for axis in range(len(shape))]
        return View(pointer or 0, shape, tuple(strides))

    def _misaligned(self, args: tuple[Any, ...]) -> CallError:
        return CallError(
            "\n  - ".join(
                [
                    "GPUs only access elements at multiples of their size:",
                    *(
                        f"argument {self._unit.parameters[place].name!r} starts at address "
                        f"{args[place].data.ptr:#x} and has strides of "
                        f"{', '.join(map(str, args[place].strides)) or 'no'} bytes; pass a copy"
                        for place in self._arrays
                        if _misalignment_of(self._unit.parameters[place], args[place])
                    ),
                ]
            )
        )


class CheckingLauncher(CudaLauncher):
    """Runs code that was compiled with ``Options.debug``: it waits, and reports a violation."""

    _added_slots = 1

    def _launch(self, packed: bytes, size: int) -> None:
        record = self._driver.new_record()
        of_parameters = sum(map(_slots, self._unit.parameters)) * _SLOT_BYTES
        super()._launch(packed[:of_parameters] + struct.pack("Q", record.data.ptr), size)
        is_violated, *violation = self._driver.read_record(record)
        if is_violated:
            raise IndexViolation(*violation)


def _slots(parameter: ir.Parameter) -> int:
    return 1 + 2 * parameter.rank if isinstance(parameter, ir.ArrayParameter) else 1


def _misalignment(unit: ir.Unit) -> Callable[[bytes], int]:
    """A function that tells from packed parameters whether an array is misaligned: then not 0."""
    terms, slot = [], 0
    for parameter in unit.parameters:
        if isinstance(parameter, ir.ArrayParameter) and parameter.dtype.itemsize > 1:
            strides = range(slot + 1 + parameter.rank, slot + 1 + 2 * parameter.rank)
            words = " | ".join(f"w[{place}]" for place in (slot, *strides))
            terms.append(f"({words}) & {parameter.dtype.itemsize - 1}")
        slot += _slots(parameter)
    unpack = struct.Struct(f"={slot}q").unpack
    source = f"lambda w: {' | '.join(terms) or 0}"
    check: Callable[[tuple[int, ...]], int] = eval(source, {"__builtins__": {}})
    return (lambda packed: check(unpack(packed))) if terms else lambda packed: 0


def _misalignment_of(parameter: Any, array: Any) -> int:
    together = array.data.ptr
    for stride in array.strides:
        together |= stride
    return int(together & (parameter.dtype.itemsize - 1))
