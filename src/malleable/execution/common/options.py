"""What `jit` can be told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, get_args, get_origin, get_type_hints

import jax

from malleable import compat
from malleable.rewriting.passes.passes import cse, dce


class JitOptions(TypedDict, total=False):
    """What `jit` is told by name, as types have it."""

    static_argnums: int | Sequence[int] | str | None
    static_argnames: str | Sequence[str] | None
    donate_argnums: int | Sequence[int]
    on_break: Literal["split", "warn", "error"]
    dynamic_sizes: Literal["auto", "exact", "bucket"]
    control_flow: Literal["auto", "host", "lift"]
    host: Literal["auto", "numpy", "jax"]
    max_compiles: int
    passes: Sequence[Callable[[compat.Jaxpr], compat.Jaxpr]]


@dataclass(frozen=True)
class Options:
    """See `jit`. Of the same names as `JitOptions`."""

    static_argnums: int | Sequence[int] | Literal["auto"] | None = "auto"
    static_argnames: str | Sequence[str] | None = "auto"
    donate_argnums: int | Sequence[int] = ()
    on_break: str = "split"
    dynamic_sizes: str = "auto"
    control_flow: str = "auto"
    host: str = "auto"
    max_compiles: int = 16
    passes: Any = (dce, cse)

    def __post_init__(self):
        for name, words in get_type_hints(JitOptions).items():
            allowed = get_args(words)
            if get_origin(words) is Literal and getattr(self, name) not in allowed:
                words = ", ".join(map(repr, allowed))
                raise ValueError(f"{name} is one of {words}, not {getattr(self, name)!r}")
        if not isinstance(self.max_compiles, int) or self.max_compiles < 1:
            raise ValueError(f"max_compiles is a number of programs, not {self.max_compiles!r}")

    @property
    def by_numpy(self) -> bool:
        """Whether regions of many sizes may run through NumPy, and not in buckets alone."""
        return self.on_host and self.dynamic_sizes != "bucket"

    @property
    def on_host(self) -> bool:
        """Whether NumPy may compute what is small. Not if one of several processes could differ."""
        alone = self.host != "jax" and jax.process_count() == 1
        return alone and jax.default_backend() == "cpu"
