"""Say what takes long: `with working("explain f"):` shows a spinner after two seconds.

On a terminal only, and where rich is installed; what runs inside is not changed by it.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

try:
    from rich.console import Console
except ImportError:  # comes with the extra `show`
    Console: Any = None

_PATIENCE = 2.0  # seconds before anything is shown
_shown = threading.Lock()  # by one at a time: the outermost


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """While open, and after two seconds, a terminal shows `what`, and for how long.

    >>> with working("a sum"):
    ...     print(sum(range(10)))
    45
    """
    if Console is None or not sys.stderr.isatty() or not _shown.acquire(blocking=False):
        yield
        return
    status = Console(stderr=True).status(f"{what} ...")
    timer = threading.Timer(_PATIENCE, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()
        _shown.release()
