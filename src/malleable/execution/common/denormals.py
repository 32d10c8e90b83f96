"""Arithmetic of NumPy without denormal numbers: they are zeros, as in XLA's programs for CPUs.

C's `fegetenv` and `fesetenv` read and set the state of a thread in which the processor says so.
"""

import ctypes
import platform
import threading
from collections.abc import Callable
from typing import Any

from malleable.execution.common.breaks import Unsupported

# where the control word stands in C's fenv_t, in words of 32 bits, and its bits for denormals
_PLACES = {
    ("Linux", "x86_64"): (7, 0x8040),
    ("Linux", "aarch64"): (0, 1 << 24),
    ("Darwin", "x86_64"): (1, 0x8040),
    ("Darwin", "arm64"): (2, 1 << 24),
}
_PLACE = _PLACES.get((platform.system(), platform.machine()))
_AT, _FLUSH = _PLACE or (0, 0)
_C: Any = ctypes.PyDLL(None) if _PLACE else None


def refuse_denormals(state=None) -> None:
    """Raise Unsupported on a system that cannot be told to do without them."""
    if _PLACE is None:
        raise Unsupported("on this system NumPy keeps denormal numbers")


class Arithmetic(threading.local):
    """The state of this thread's arithmetic. Every operation goes through it: each step counts."""

    def __init__(self):
        state = ctypes.create_string_buffer(64)
        words = memoryview(state).cast("B").cast("I")
        read, write = (_C.fegetenv, _C.fesetenv) if _C else (refuse_denormals,) * 2
        self.parts = state, words, read, write

    def flushed(self, run: Callable, args: tuple, kwargs: dict) -> Any:
        """run(*args, **kwargs) with zeros for denormals; the state is left as it was."""
        state, words, read, write = self.parts
        read(state)
        before = words[_AT]
        if before & _FLUSH == _FLUSH:
            return run(*args, **kwargs)
        words[_AT] = before | _FLUSH
        write(state)
        try:
            return run(*args, **kwargs)
        finally:
            words[_AT] = before
            write(state)
