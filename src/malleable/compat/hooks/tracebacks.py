"""Tracebacks with the frames that JAX removes: for `errors.explain()`.

Stands in front of what removes them. With `jax_traceback_filtering` set to "off" they would stay,
but in the error itself: the user's own traceback would no longer be the one that JAX makes.
"""

import contextlib
import functools
import itertools
import sys
from collections.abc import Iterator
from typing import Any

from jax._src import config, traceback_util

from malleable.compat.hooks import Hook


class Whole:
    """A traceback with the frames of JAX, kept beside the one JAX made of it."""

    def __init__(self, traceback=None):
        self.traceback = traceback

    def __reduce__(self):  # an error is still sent between processes; its frames are not
        return Whole, ()


def whole_tracebacks() -> contextlib.AbstractContextManager[None]:
    """While open, errors keep the frames that JAX removes: see `whole_traceback`."""
    return _HOOK.held()


unfiltered: Any = functools.partial(config.traceback_filtering, "off")
"""While open, JAX adds no note to an error that passes, and its traceback stays as it is."""


def whole_traceback(error: BaseException) -> list[tuple]:
    """(frame, index of the instruction, whether the code is JAX's) of an error, outermost first."""
    kept = list(_walk(vars(error).get(_WHOLE, Whole()).traceback))
    inner = {frame for frame, _ in kept}
    outer = itertools.takewhile(lambda step: step[0] not in inner, _walk(error.__traceback__))
    return [(f, at, is_hidden(f)) for f, at in (*outer, *kept)]


def is_hidden(frame) -> bool:
    """Whether a frame runs code of JAX or of this library."""
    return not traceback_util.include_frame(frame)


def _walk(tb) -> Iterator[tuple]:
    while tb is not None:
        yield tb.tb_frame, tb.tb_lasti
        tb = tb.tb_next


def _keep_whole(filter_traceback, tb):
    if (error := sys.exception()) is not None and error.__traceback__ is tb:
        vars(error).setdefault(_WHOLE, Whole(tb))
    return filter_traceback(tb)


_WHOLE = "_whole_traceback"
_HOOK = Hook((traceback_util, "filter_traceback", _keep_whole))
