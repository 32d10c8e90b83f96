"""Signatures: a transformation keeps the parameters `P` and the result `R` of what it wraps."""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])  # a function that comes back as it is
T = TypeVar("T")  # a value that comes back as it is


def options_of(options: Any) -> Callable[[F], F]:
    """A decorator: `**options` shows as the fields of a dataclass, in `help` and in editors.

    >>> @dataclasses.dataclass
    ... class Options:
    ...     steps: int = 3
    >>> @options_of(Options)
    ... def run(fun, **options): ...
    >>> inspect.signature(run)
    <Signature (fun, *, steps: int = 3)>
    """

    def signed(fun: F) -> F:
        own = inspect.signature(fun)
        kept = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        named = [
            inspect.Parameter(
                f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type
            )
            for f in dataclasses.fields(options)
        ]
        fun.__signature__ = own.replace(parameters=[*kept, *named])  # type: ignore[attr-defined]
        return fun

    return signed
