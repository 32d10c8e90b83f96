"""What the arguments of a rule stand for, by annotation: `Arr`, `Lit`, `Static`, `Fun`, `Prim`."""

import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable.errors import RuleError
from malleable.python_source.changes import line_of_function as line


class Wildcard(Any):
    """What a parameter of a rule stands for. To a type checker it may be used in every way."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return object.__new__(cls)


@dataclass(frozen=True)
class Arr(Wildcard):
    """Any array; `Arr["n d"]`, `Arr["... n", jnp.floating]`: dims by name, dtypes.

    A name stands for the same size wherever the rule uses it; a number for itself; "n*d" for the
    product of two that are named before. A TypeVar stands for one dtype, within its bound, or
    one of its constraints.
    """

    dims: str | None = None
    dtypes: tuple[Any, ...] = ()

    def __class_getitem__(cls, how: Any) -> Any:
        parts = how if isinstance(how, tuple) else (how,)
        dims = [p for p in parts if isinstance(p, str)]
        return cls(*dims or [None], dtypes=tuple(p for p in parts if not isinstance(p, str)))

    def fits(self, aval: Any, known: dict[Any, Any]) -> bool:
        """Whether an array of this type may stand here; known: what names stand for, grows."""
        return self.takes(aval.dtype, known) and self._spans(aval.shape, known)

    def takes(self, dtype: Any, known: dict[Any, Any]) -> bool:
        """Whether an array of this dtype may stand here."""
        for wanted in self.dtypes:
            if isinstance(wanted, TypeVar):
                kinds = wanted.__constraints__ or (wanted.__bound__,)
                if known.get(wanted, dtype) == dtype and any(_is_a(dtype, k) for k in kinds):
                    known[wanted] = dtype
                    return True
            elif _is_a(dtype, wanted):
                return True
        return not self.dtypes

    def _spans(self, shape, sizes):
        if self.dims is None:
            return True
        names = self.dims.split()
        if "..." in names:
            i = names.index("...")
            after = len(names) - i - 1
            if len(shape) < i + after:
                return False
            names, shape = names[:i] + names[i + 1 :], shape[:i] + shape[len(shape) - after :]
        if len(names) != len(shape):
            return False
        for name, size in zip(names, shape, strict=True):
            if name.isidentifier():
                sizes.setdefault(name, size)
        return tuple(extent(name, sizes) for name in names) == tuple(shape)


def _is_a(dtype, wanted):
    return wanted is None or jnp.issubdtype(dtype, wanted)


@dataclass(frozen=True)
class Lit(Wildcard):
    """A scalar constant of the program: the rule gets the number itself."""


@dataclass(frozen=True)
class Static(Wildcard):
    """A setting, such as an axis: found among the params of the matched equations.

    `Static[0, (0, 1)]` gives examples with which the rule can be tried when it is made.
    """

    examples: tuple[Any, ...] = (0, (0,), np.dtype("float32"))

    def __class_getitem__(cls, how: Any) -> Any:
        return cls(how if isinstance(how, tuple) else (how,))


@dataclass(frozen=True)
class Fun(Wildcard):
    """The body of a loop or a branch. `Fun[example]` gives a function that could stand there."""

    example: Callable[..., Any] | None = None

    def __class_getitem__(cls, how: Any) -> Any:
        return cls(how)


@dataclass(frozen=True)
class Prim(Wildcard):
    """One of several operations: `Prim["sin", "cos"]` by their names in `lax`, or functions."""

    members: tuple[Any, ...] = ()

    def __class_getitem__(cls, how: Any) -> Any:
        members = how if isinstance(how, tuple) else (how,)
        if len(members) == 1 and not isinstance(members[0], str) and not callable(members[0]):
            members = tuple(members[0])  # a set
        return cls(tuple(getattr(lax, m) if isinstance(m, str) else m for m in members))


def extent(name: str, sizes: dict[str, int]) -> int | None:
    """The size a dim of this name must have; None where that is not known.

    >>> extent("n*2", {"n": 3})
    6
    """
    parts = [int(p) if p.isdigit() else sizes.get(p) for p in name.split("*")]
    return None if None in parts else math.prod(p for p in parts if p is not None)


def wildcards(fun: Callable) -> dict[str, Any]:
    """{parameter: what it stands for}; any array, for one without an annotation of ours.

    >>> wildcards(lambda x, y: x + y)
    {'x': Arr(dims=None, dtypes=()), 'y': Arr(dims=None, dtypes=())}
    """
    said = inspect.get_annotations(inspect.unwrap(fun), eval_str=True)
    found = {}
    for name, parameter in inspect.signature(fun).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise RuleError(
                f"the rule has a parameter {str(parameter)!r}, which is not positional",
                where=line(fun),
                hint="a rule has one parameter per wildcard",
            )
        if parameter.default is not parameter.empty:
            raise RuleError(
                f"the wildcard {name!r} of the rule has a default",
                where=line(fun),
                hint="a constant is written in the pattern, or taken from around it",
            )
        kind = said.get(name)
        if isinstance(kind, type) and issubclass(kind, Wildcard):
            kind = kind()
        found[name] = kind if isinstance(kind, Wildcard) else Arr()
    return found


# ---------------------------------------------------------------- examples


def settings(kinds: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What literals, settings and operations can be while a pattern is traced for its form.

    Literals are odd numbers, so that they can be told from the constants of the pattern.
    """
    choices = {}
    for i, (name, kind) in enumerate(kinds.items()):
        match kind:
            case Lit():
                choices[name] = (math.sqrt(3) + i, 37 + i)
            case Static():
                choices[name] = kind.examples
            case Prim():
                choices[name] = kind.members
    for values in itertools.product(*choices.values()):
        yield dict(zip(choices, values, strict=True))


RANKS = (2, 1, 3, 0)
DIVISIBLE = (24, 5040)
DTYPES = tuple(map(np.dtype, ("float32", "int32", "complex64", "bool", "uint32", "float16")))


def arrays(kinds: dict[str, Any]) -> Iterator[list]:
    """Types that the array wildcards could have, the likely ones first.

    Then some of sizes that can be divided, for patterns that split an array.
    """
    yield from _arrays(kinds, 5, 1)
    for size in DIVISIBLE:
        yield from itertools.islice(_arrays(kinds, size, size), 48)


def _arrays(kinds, size, step):
    found = [kind for kind in kinds.values() if isinstance(kind, Arr)]
    names = [n for a in found for n in (a.dims or "").split() if n.isidentifier()]
    sizes = {n: size + step * i for i, n in enumerate(dict.fromkeys(names))}
    free = [a.dims is None for a in found]
    uniform = [(r,) * sum(free) for r in RANKS] if any(free) else [()]
    mixed = [r for r in itertools.product(RANKS, repeat=sum(free)) if len(set(r)) > 1][:128]
    loose = all(not a.dtypes for a in found)
    for dtype in DTYPES if loose else DTYPES[:1]:
        for ranks in uniform + mixed:
            rest = iter(ranks)
            yield [
                jax.ShapeDtypeStruct(_extents(a, rest, sizes, size), _dtype(a, dtype))
                for a in found
            ]


def recast(kinds: dict[str, Any], avals: list) -> Iterator[list]:
    """The same arrays with other dtypes, where any will do: a pattern may look different then."""
    found = [kind for kind in kinds.values() if isinstance(kind, Arr)]
    free = [i for i, a in enumerate(found) if not a.dtypes]
    ways = [("int32", free), ("bool", free), *(("bool", [i]) for i in free if len(free) > 1)]
    for dtype, there in ways if free else ():
        other = lambda x, dtype=dtype: jax.ShapeDtypeStruct(x.shape, np.dtype(dtype))  # noqa: E731
        yield [other(x) if i in there else x for i, x in enumerate(avals)]


def _extents(a, ranks, sizes, size):
    if a.dims is None:
        return (size,) * next(ranks)
    dims = [n for n in a.dims.split() if n != "..."]
    return tuple(extent(n, sizes) for n in dims)


def _dtype(a, usual):
    fitting = (d for d in (usual, *DTYPES) if a.takes(d, {}))
    return next(fitting, None) or np.dtype(a.dtypes[0])
