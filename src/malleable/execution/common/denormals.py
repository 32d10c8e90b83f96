"""Arithmetic of NumPy without denormal numbers: they are zeros, as in XLA's programs for CPUs.

C's `fegetenv` and `fesetenv` read and set the state of a thread in which the processor says so.
"""

import ctypes
import platform
import threading
from typing import Any

from malleable.execution.common.breaks import Unsupported

# where the control word stands in C's fenv_t, in bytes, and the bits that take denormals for zeros
_PLACES = {
    ("Linux", "x86_64"): (28, 0x8040),
    ("Linux", "aarch64"): (0, 1 << 24),
    ("Darwin", "x86_64"): (4, 0x8040),
    ("Darwin", "arm64"): (8, 1 << 24),
}
_PLACE = _PLACES.get((platform.system(), platform.machine()))
_AT, _FLUSH = _PLACE or (0, 0)
_C: Any = ctypes.PyDLL(None) if _PLACE else None


def refuse_denormals() -> None:
    """Raise Unsupported on a system that cannot be told to do without them."""
    if _PLACE is None:
        raise Unsupported("on this system NumPy keeps denormal numbers")


class Arithmetic(threading.local):
    """The state of this thread's arithmetic."""

    def __init__(self):
        self.state = ctypes.create_string_buffer(64)
        self.word = ctypes.c_uint32.from_buffer(self.state, _AT)

    def flush(self) -> int:
        """Take denormals for zeros from now on. Gives what `restore` asks for."""
        refuse_denormals()
        _C.fegetenv(self.state)
        before = self.word.value
        if before & _FLUSH != _FLUSH:
            self.word.value = before | _FLUSH
            _C.fesetenv(self.state)
        return before

    def restore(self, before: int) -> None:
        if before & _FLUSH != _FLUSH:
            self.word.value = before
            _C.fesetenv(self.state)
