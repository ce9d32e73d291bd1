"""SHA-256, without the OpenSSL library that `hashlib` loads.

Loading that takes longer than all digests of a program that runs a few kernels from the disk cache.
The lean modules of CPython are asked first, as its own `random` does for SHA-512; elsewhere it is
`hashlib` all the same.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import sha256
else:
    try:
        if sys.version_info >= (3, 12):
            from _sha2 import sha256
        else:
            from _sha256 import sha256
    except ImportError:
        from hashlib import sha256

__all__ = ["sha256"]
