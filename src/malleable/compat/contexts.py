"""Values of a thread that JAX's caches are told apart by."""

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any, TypeVar

from jax._src import config

T = TypeVar("T")


@contextlib.contextmanager
def setting(variable: contextvars.ContextVar[T], value: T) -> Iterator[None]:
    """While open, the variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


class user_context:
    """As `jax.make_user_context`: its value is part of the key of every cache of JAX's.

    JAX's own makes every function be traced and compiled again that was before it was made, in
    the whole process, and it is made when a part of this library is first asked for. So all of
    ours share a number that is in these keys anyway, and stays the number that it is.
    """

    def __init__(self, default: Any):
        self.default = default

    @property
    def value(self) -> Any:
        return getattr(_NUMBER.value, "held", {}).get(self, self.default)

    @contextlib.contextmanager
    def __call__(self, new: Any) -> Iterator[None]:
        before = self.value
        self.set(new)
        try:
            yield
        finally:
            self.set(before)

    def set(self, new: Any) -> None:
        """Change the value in this thread. At its default it is in no key."""
        number, held = int(_NUMBER.value), dict(getattr(_NUMBER.value, "held", {}))
        held.pop(self, None)
        if new != self.default:
            held[self] = new
        if held:
            _NUMBER.set_local(_Holding(number, held))
        else:
            plain = number == _NUMBER.get_global()
            _NUMBER.set_local(config.config_ext.unset if plain else number)


_NUMBER: Any = config.pgle_profiling_runs  # read by JAX only where jax_enable_pgle is on


class _Holding(int):
    """A number, equal only to one that holds the same."""

    held: dict

    def __new__(cls, number, held):
        self = super().__new__(cls, number)
        self.held = held
        return self

    def __eq__(self, other):
        same = type(other) is _Holding and int(self) == int(other)
        return same and self.held == other.held

    def __hash__(self):
        return hash((int(self), frozenset(self.held.items())))
