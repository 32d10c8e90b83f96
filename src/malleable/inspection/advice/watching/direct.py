"""Errors as JAX raises them where it calls a program directly, and not by way of Python."""

import functools
import weakref
from typing import Any

import jax
from jax import numpy as jnp

from malleable.compat import HostArray, Jaxpr

_called: weakref.WeakSet = weakref.WeakSet()  # programs that JAX alone would call directly by now


def has_run(program: Jaxpr) -> None:
    """Remember that a program has been called."""
    _called.add(program)


def as_called_directly(error: Exception, program: Jaxpr, leaves: tuple) -> Exception:
    """The error of an argument that was donated before, as the user would get it without us.

    JAX 0.10 raises ValueError then, and RuntimeError where it looks at the arguments first.
    """
    met = type(error) is RuntimeError and "has been deleted" in str(error)
    if program not in _called or not met:
        return error
    gone = [i for i, x in enumerate(leaves) if isinstance(x, HostArray) and was_donated(x)]
    if not gone or issubclass(RuntimeError, of_donated()[0]):
        return error
    kind, text = of_donated()
    said = text.replace("argument 0", f"argument {gone[0]}")
    return kind(said).with_traceback(error.__traceback__)


def was_donated(x: HostArray) -> bool | None:
    """Whether a deleted array was donated; None where the version of JAX does not tell.

    >>> x = jnp.zeros(3)
    >>> x.delete()
    >>> was_donated(x) in (False, None)
    True
    """
    if not x.is_deleted():
        return False
    donated, deleted = _told()
    if donated == deleted or len(x.sharding.device_set) > 1:
        return None
    return _refusal(x) == donated


def _refusal(x: Any) -> str:
    try:
        x.unsafe_buffer_pointer()
    except Exception as error:  # of a type that depends on the version
        return str(error)
    return ""


@functools.cache
def _told() -> tuple[str, str]:
    """What is said of an array that was donated, and of one that was deleted."""
    donated, deleted = jnp.zeros(()), jnp.zeros(())
    jax.jit(lambda x: x + 1, donate_argnums=0)(donated)
    deleted.delete()
    return _refusal(donated), _refusal(deleted)


@functools.cache
def of_donated() -> tuple[type[Exception], str]:
    """What a second call with a donated argument raises."""
    fun, gone = jax.jit(lambda x: x + 1, donate_argnums=0), jnp.zeros(())
    fun(gone)
    try:
        fun(gone)
    except Exception as error:  # of a type that depends on the version
        return type(error), str(error)
    return RuntimeError, ""
