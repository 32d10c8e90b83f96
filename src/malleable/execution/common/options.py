"""What `jit` can be told."""

from dataclasses import dataclass
from typing import Any

import jax

from malleable.rewriting.passes.passes import cse, dce


@dataclass(frozen=True)
class Options:
    """See `jit`."""

    static_argnums: Any = "auto"
    static_argnames: Any = "auto"
    donate_argnums: Any = ()
    on_break: str = "split"
    dynamic_sizes: str = "auto"
    control_flow: str = "auto"
    host: str = "auto"
    max_compiles: int = 16
    passes: Any = (dce, cse)

    def __post_init__(self):
        for name, allowed in _ALLOWED.items():
            if getattr(self, name) not in allowed:
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


_ALLOWED = {
    "on_break": ("split", "warn", "error"),
    "dynamic_sizes": ("auto", "exact", "bucket"),
    "control_flow": ("auto", "host", "lift"),
    "host": ("auto", "numpy", "jax"),
}
