"""A user's arrays to kernel arguments in a queue."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from turnout.plugin import (
    Binary,
    CallError,
    DirectCall,
    IndexViolation,
    Launcher,
    cfamily,
    ir,
    statements,
)

from . import compiler
from .devices import OpenDevice

GROUP_SIZE = 128
"""Positions of one work-group; PoCL compiles anew for each size, so all launches have one."""

_LOCAL_BYTES_OF_GROUP = 2**20
"""Where OpenCL runs on a processor, one thread has the local arrays of a group on its stack."""


def make_launcher(binary: Binary, opened: OpenDevice, unit: ir.Unit) -> Launcher:
    """Load a binary in the context of a device."""
    if binary.metadata["debug"] == "True":
        return CheckingLauncher(binary, opened, unit)
    return OpenCLLauncher(binary, opened, unit)


class Kernels:
    """The kernels of one program in one context, and a lock for their arguments."""

    def __init__(self, binary: Binary, context: Any, device: Any) -> None:
        import pyopencl as cl

        program = compiler.load(binary, context, device)
        self.strided = cl.Kernel(program, binary.entry)
        dense = binary.metadata["dense_entry"]
        self.dense = cl.Kernel(program, dense) if dense else self.strided
        self.lock = threading.Lock()
        largest = self.strided.get_work_group_info(
            cl.kernel_work_group_info.WORK_GROUP_SIZE, device
        )
        self.largest_group = int(largest)


class OpenCLLauncher:
    """Enqueues one unit; see `turnout.plugin.Launcher`.

    The kernels of turnout's own context are made at once, those of a context of the user's own at
    its first launch.
    """

    direct: Callable[[DirectCall], Callable[..., Any] | None] | None = None

    def __init__(self, binary: Binary, opened: OpenDevice, unit: ir.Unit) -> None:
        self._binary, self._opened, self._unit = binary, opened, unit
        self._pack = cfamily.packer(unit, "{0}.offset")
        self._places = [
            place
            for place, parameter in enumerate(unit.parameters)
            if isinstance(parameter, ir.ArrayParameter)
        ]
        own = Kernels(binary, opened.context, opened.device)
        self._of_context = {opened.context: own}
        self._group = _group_size(unit, own.largest_group)
        self._launch_here = _launch_function(unit, own, opened.queue, self._group, self._elsewhere)

    def __call__(self, args: tuple[Any, ...], size: int) -> None:
        if size:
            self._launch_here(size, *args)

    def _elsewhere(self, size: int, *args: Any) -> None:
        """A launch in queues of the user's own, or with arrays that have to be looked at."""
        import pyopencl as cl

        self._refuse_misaligned(args)
        arrays = [args[place] for place in self._places]
        queue = self._queue_of(arrays)
        kernels = self._kernels(queue.context)
        events = [event for array in arrays for event in array.events]
        # Results that wait in turnout's own queue, for example, to be filled with zeros.
        others = {a.queue for a in arrays if a.queue is not None and a.queue != queue}
        for other in others:
            events.append(cl.enqueue_marker(other))
            other.flush()
        event = self._enqueue(kernels, queue, args, arrays, self._pack(*args), size, events)
        queue.flush()
        for other in others:
            cl.enqueue_barrier(other, wait_for=[event])
        if queue is not self._opened.queue:
            self._opened.note_queue(queue)
        for array in arrays:
            array.add_event(event)

    def _enqueue(
        self,
        kernels: Kernels,
        queue: Any,
        args: Sequence[Any],
        arrays: Sequence[Any],
        words: bytes,
        size: int,
        events: Sequence[Any] = (),
        extra: Sequence[Any] = (),
    ) -> Any:
        import pyopencl as cl

        is_dense = cfamily.has_dense_rows(self._unit, args)
        kernel = kernels.dense if is_dense else kernels.strided
        with kernels.lock:
            number = 0
            for buffer in (*(array.base_data for array in arrays), *extra):
                kernel.set_arg(number, buffer)
                number += 1
            kernel.set_arg(number, words or bytes(8))
            groups = -(-size // self._group)
            return cl.enqueue_nd_range_kernel(
                queue,
                kernel,
                (groups * self._group,),
                (self._group,),
                wait_for=list(events) or None,
            )

    def _queue_of(self, arrays: Sequence[Any]) -> Any:
        """The queue of the arrays, which must be in one context."""
        if not arrays:
            return self._opened.queue
        contexts = {array.context for array in arrays}
        if len(contexts) > 1:
            raise CallError(
                f"the arrays of unit {self._unit.name!r} belong to {len(contexts)} OpenCL "
                "contexts; make them in one, or move them with turnout.array(x.get()). The results "
                "of kernels are in turnout's own, and so is what several loops of one share"
            )
        queues = [array.queue for array in arrays if array.queue is not None]
        if queues:
            return queues[0]
        if contexts == {self._opened.context}:
            return self._opened.queue
        raise CallError(
            f"none of the arrays of unit {self._unit.name!r} has a queue; give them one with "
            "x.with_queue(queue)"
        )

    def _kernels(self, context: Any) -> Kernels:
        if context not in self._of_context:
            self._of_context[context] = Kernels(self._binary, context, self._opened.device)
        return self._of_context[context]

    def _refuse_misaligned(self, args: Sequence[Any]) -> None:
        for place in self._places:
            parameter, array = self._unit.parameters[place], args[place]
            itemsize = parameter.dtype.itemsize
            if any(number % itemsize for number in (array.offset, *array.strides)):
                raise CallError(
                    f"argument {parameter.name!r} is not aligned: its offset is {array.offset} and "
                    f"its strides are {array.strides} bytes, but elements take {itemsize}; copy it"
                )


class CheckingLauncher(OpenCLLauncher):
    """Runs code that was compiled with ``Options.debug``; waits, because it reports."""

    def __call__(self, args: tuple[Any, ...], size: int) -> None:
        if size == 0:
            return
        import pyopencl as cl

        self._refuse_misaligned(args)
        arrays = [args[place] for place in self._places]
        queue = self._queue_of(arrays)
        record = np.zeros(5, np.int64)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        buffer = cl.Buffer(queue.context, flags, hostbuf=record)
        events = [event for array in arrays for event in array.events]
        words = self._pack(*args) + bytes(8)
        kernels = self._kernels(queue.context)
        self._enqueue(kernels, queue, args, arrays, words, size, events, (buffer,))
        cl.enqueue_copy(queue, record, buffer, is_blocking=True)
        if record[0]:
            raise IndexViolation(*(int(number) for number in record[1:]))


def _group_size(unit: ir.Unit, largest: int) -> int:
    if not unit.extents:
        return 1
    size, local = GROUP_SIZE, cfamily.local_bytes(unit)
    while size > 1 and (size > largest or size * local > _LOCAL_BYTES_OF_GROUP):
        size //= 2
    return size


def _launch_function(
    unit: ir.Unit,
    kernels: Kernels,
    queue: Any,
    group: int,
    elsewhere: Callable[..., None],
) -> Callable[..., None]:
    """Make the function of a launch whose arrays are in turnout's own queue.

    It is written out for the unit's parameters, because it is most of the time of a launch.
    """
    import pyopencl as cl

    used = {s.array for s in statements((*unit.prologue, *unit.body.body))
            if isinstance(s, ir.Load | ir.Store)}  # fmt: skip
    names: list[str] = []
    here: list[str] = []
    dense: list[str] = []
    lines: list[str] = []
    for place, parameter in enumerate(unit.parameters):
        name = f"a{place}"
        names.append(name)
        if not isinstance(parameter, ir.ArrayParameter):
            continue
        mask = parameter.dtype.itemsize - 1
        here.append(f"{name}.queue is queue")
        if mask:
            strides = "".join(f" | {name}.strides[{axis}]" for axis in range(parameter.rank))
            here.append(f"not ({name}.offset{strides}) & {mask}")
        if parameter.rank and parameter.name in used:
            itemsize = parameter.dtype.itemsize
            dense.append(f"({name}.strides[-1] == {itemsize} or {name}.shape[-1] <= 1)")
        lines.append(f"set_arg({len(lines)}, {name}.base_data)")
    pack = "pack(" + ", ".join(names) + ")" if names else "bytes(8)"
    source = "\n".join(
        [
            f"def launch({', '.join(['size', *names])}):",
            f"    if not ({' and '.join(here) or 'True'}):",
            f"        return elsewhere({', '.join(['size', *names])})",
            f"    words = {pack}",
            f"    if {' and '.join(dense) or 'True'}:",
            "        kernel, set_arg = dense, set_dense_arg",
            "    else:",
            "        kernel, set_arg = strided, set_strided_arg",
            "    with lock:",
            *(f"        {line}" for line in lines),
            f"        set_arg({len(lines)}, words)",
            f"        enqueue(queue, kernel, (-(-size // {group}) * {group},), group)",
        ]
    )
    scope = {
        "queue": queue,
        "elsewhere": elsewhere,
        "pack": cfamily.packer(unit, "{0}.offset"),
        "lock": kernels.lock,
        "dense": kernels.dense,
        "strided": kernels.strided,
        "set_dense_arg": kernels.dense.set_arg,
        "set_strided_arg": kernels.strided.set_arg,
        "enqueue": cl.enqueue_nd_range_kernel,
        "group": (group,),
    }
    exec(source, scope)
    made: Callable[..., None] = scope["launch"]
    return made
