"""The arguments of a launch as slots of 8 bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from . import ir

_SCALAR_FORMATS = {
    "f32": "f4x", "f64": "d", "bool_": "?7x",
    "i8": "b7x", "i16": "h6x", "i32": "i4x", "i64": "q",
    "u8": "B7x", "u16": "H6x", "u32": "I4x", "u64": "Q",
}  # fmt: skip


def packer(unit: ir.Unit, address: str, **names: Any) -> Callable[..., bytes]:
    """Make the function that packs the arguments of a launch.

    Parameters
    ----------
    unit : Unit
    address : str
        Expression for the slot of an array's address, with ``{0}`` for the array: for example
        ``"{0}.ctypes.data"`` for NumPy arrays. Arrays have ``shape`` and ``strides`` in bytes.
    **names
        What the expression uses.

    Returns
    -------
    callable
        ``pack(*args)`` gives the slots of all parameters. It is written out for the unit, because a
        loop over the parameters takes twice as long.
    """
    parameters, formats, fields = [], [], []
    for number, parameter in enumerate(unit.parameters):
        name = f"a{number}"
        parameters.append(name)
        if isinstance(parameter, ir.ArrayParameter):
            formats.append(f"{1 + 2 * parameter.rank}q")
            fields.append(f"{address.format(name)}, *{name}.shape, *{name}.strides")
        else:
            formats.append(_SCALAR_FORMATS[parameter.dtype.name])
            fields.append(name)
    pack = struct.Struct("=" + "".join(formats)).pack
    source = f"lambda {', '.join(parameters)}: pack({', '.join(fields)})"
    made: Callable[..., bytes] = eval(source, {**names, "pack": pack})
    return made
