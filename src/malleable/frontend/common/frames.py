"""Tracebacks that show the user's frames only, and the line of the last."""

import types

import jax

from malleable import compat
from malleable.arrays.content import UNCONVERTED_TEST
from malleable.errors import TransformError
from malleable.python_source.nodes import HOOKS, LOCALS

BY_ARRAY = "index a list or an array: np.array(xs)[i]"
BY_VALUE = "find the new value there, in a variable, and assign it to the state after it"
BY_NUMPY = "perhaps another function of NumPy does it, or jax.pure_callback"


def without_ours(e: BaseException) -> BaseException:
    """The exception, its traceback without the frames of this library."""
    kept, frame = [], e.__traceback__
    while frame is not None:
        if not frame.tb_frame.f_code.co_filename.startswith(compat.PACKAGE):
            kept.append(frame)
        frame = frame.tb_next
    last = None
    for frame in reversed(kept):
        last = types.TracebackType(last, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return e.with_traceback(last)


def as_local(e: BaseException) -> BaseException:
    """The error of CPython for an unbound local variable where a block read it."""
    last = e.__traceback__
    if type(e) is not NameError or "free variable" not in str(e) or last is None:
        return e
    while last.tb_next is not None:
        last = last.tb_next
    if e.name not in LOCALS.get(last.tb_frame.f_code, ()):
        return e
    return unbound(e.name).with_traceback(e.__traceback__)


def unbound(name: str) -> UnboundLocalError:
    """What Python raises where a local variable is not bound: an error without a `name`."""
    text = f"cannot access local variable {name!r} where it is not associated with a value"
    error = UnboundLocalError(text)
    error.__malleable_name__ = name  # type: ignore[attr-defined]
    return error


def named_frame(e: BaseException) -> BaseException:
    """An error of JAX in a line that is converted, as one that names it and a way out."""
    flax_state = type(e).__name__ == "TraceContextError"
    frame = after = e.__traceback__
    while after is not None:
        code = after.tb_frame.f_code
        if HOOKS in code.co_freevars if flax_state else compat.is_users(code.co_filename):
            frame = after
        elif not flax_state:
            break
        after = after.tb_next
    code = frame.tb_frame.f_code if frame is not None else None
    if frame is None or code is None or HOOKS not in code.co_freevars:
        return e
    if flax_state:
        what, hint = "a state of flax.nnx is written under a traced test or in a loop", BY_VALUE
    elif UNCONVERTED_TEST in getattr(e, "__notes__", ()):
        what, hint = UNCONVERTED_TEST.split("\n  hint: ")
    elif isinstance(e, jax.errors.TracerIntegerConversionError):
        what, hint = "what is indexed here takes Python's own numbers only", BY_ARRAY
    elif isinstance(e, jax.errors.TracerArrayConversionError):
        what, hint = "what is called here takes arrays of NumPy only, and one is traced", BY_NUMPY
    elif isinstance(e, jax.errors.ConcretizationTypeError):
        what, hint = "what is called here needs a value that is known only at run time", BY_NUMPY
    else:
        return e
    where = f"{code.co_filename}:{frame.tb_lineno} in {code.co_name}"
    new = TransformError(what, where=where, hint=hint)
    new.__cause__ = e
    return new.with_traceback(e.__traceback__)
