"""The CUDA backend: units rendered as CUDA C++, compiled by NVRTC, launched through CuPy.

The way of a unit through this package, one module per step:

1. ``diagnosis``: which GPUs there are, or what is missing to use them;
2. ``compiler``: CUDA C++, which turnout renders, to the machine code of a GPU that need not be there;
3. ``launcher``: the arguments of a call to a launch on CuPy's current stream;
4. ``driver``: the calls of CUDA that this takes;
5. ``arrays`` and ``clock``: memory, waiting and timing.

Nothing here loads CuPy or the driver before it is asked for.
"""

from __future__ import annotations
