"""Paths of modules and names of sites, on the equations that a library makes: `Model.norm`.

Haiku and flax.linen put their modules into JAX's name scopes; here those of flax.nnx and Equinox
are put there too, and the sites of numpyro, for as long as a program is traced to be looked at.
"""

import contextlib
import contextvars
import itertools
import sys
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax

from malleable import compat
from malleable.compat.hooks import Hook

_DEEPEST = 4  # containers between a module and one that it holds
_FRAMES = 8  # from a distribution up to the loop over sites that calls it


@contextlib.contextmanager
def module_scopes() -> Iterator[None]:
    """While open, what modules and sites trace is in a name scope that `module_of` reads.

    >>> with module_scopes():
    ...     program = jax.make_jaxpr(lambda x: x + 1)(1.0)
    >>> module_of(program.eqns[0])
    ''
    """
    names = [
        (cls, name, instead)
        for library, base, name, instead in _CALLS
        if (known := getattr(sys.modules.get(library), base, None))
        for cls in _subclasses(known)
        if isinstance(vars(cls).get(name), types.FunctionType)
        and not cls.__module__.startswith("equinox._")  # its wrappers of functions
    ]
    with Hook(*names).held(), compat.apart() if names else contextlib.nullcontext():
        yield


def module_of(*eqns: compat.Eqn) -> str:
    """The modules and name scopes around an equation, which is followed by those around it."""
    names = [name for eqn in reversed(eqns) for name in compat.name_scopes(eqn)]
    return ".".join(name for name in names if not name.startswith("eqx.nn."))  # Equinox's own


def _subclasses(cls: type) -> list[type]:
    found = dict.fromkeys([cls])
    for sub in cls.__subclasses__():
        found |= dict.fromkeys(_subclasses(sub))
    return list(found)


def _in_module(call, module, *args, **kwargs):
    """What a module computes, in a scope of its path below the module that calls it."""
    around = _ACTIVE.get()
    if around and around[-1] is module:  # super().__call__
        return call(module, *args, **kwargs)
    paths = (_path(holder, module, _DEEPEST) for holder in reversed(around))
    name = next((path for path in paths if path), type(module).__name__)
    token = _ACTIVE.set((*around, module))
    try:
        with jax.named_scope(name.removeprefix(".")):
            return call(module, *args, **kwargs)
    finally:
        _ACTIVE.reset(token)


_ACTIVE: contextvars.ContextVar[tuple] = contextvars.ContextVar("modules", default=())


def _path(holder: Any, wanted: Any, depth: int) -> str:
    """How to write one value as a part of another, "" where it is none."""
    if isinstance(holder, Mapping):
        parts = [(f"[{key!r}]", part) for key, part in holder.items()]
    elif isinstance(holder, Sequence) and not isinstance(holder, str | bytes):
        parts = [(f"[{i}]", part) for i, part in enumerate(holder)]
    elif compat.is_array(holder) or isinstance(holder, type | types.FunctionType):
        return ""
    else:
        parts = [(f".{name}", part) for name, part in getattr(holder, "__dict__", {}).items()]
    for key, part in parts:
        if part is wanted:
            return key
    inner = ((key, _path(part, wanted, depth - 1)) for key, part in parts if depth)
    return next((key + path for key, path in inner if path), "")


def _at_site(call, distribution, *args, **kwargs):
    """What a distribution computes, in a scope of the site that it is for."""
    for frame, _ in itertools.islice(traceback.walk_stack(sys._getframe(1)), _FRAMES):
        site: Any = frame.f_locals.get("site", frame.f_locals.get("msg"))
        if isinstance(site, dict) and isinstance(site.get("name"), str) and "type" in site:
            with _scope_once(f"site {site['name']!r}"):
                return call(distribution, *args, **kwargs)
    return call(distribution, *args, **kwargs)


@contextlib.contextmanager
def _scope_once(name: str) -> Iterator[None]:
    """A name scope; none where a distribution asks another one for the same site."""
    token = _SITE.set(name)
    try:
        with contextlib.nullcontext() if token.old_value == name else jax.named_scope(name):
            yield
    finally:
        _SITE.reset(token)


_SITE: contextvars.ContextVar[str] = contextvars.ContextVar("site", default="")

_CALLS = (  # of a library: its base class, the method, what is called instead
    ("flax.nnx", "Module", "__call__", _in_module),
    ("equinox", "Module", "__call__", _in_module),
    ("numpyro.distributions", "Distribution", "__call__", _at_site),
    ("numpyro.distributions", "Distribution", "log_prob", _at_site),
)
