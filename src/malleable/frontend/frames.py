"""Tracebacks that show the user's frames only."""

import pathlib
import types

import malleable.errors

OURS = str(pathlib.Path(malleable.errors.__file__).parent)


def without_ours(e: BaseException) -> BaseException:
    """The exception, its traceback without the frames of this library."""
    kept, frame = [], e.__traceback__
    while frame is not None:
        if not frame.tb_frame.f_code.co_filename.startswith(OURS):
            kept.append(frame)
        frame = frame.tb_next
    last = None
    for frame in reversed(kept):
        last = types.TracebackType(last, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return e.with_traceback(last)
