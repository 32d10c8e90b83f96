"""How a random array program is written: values with shapes, steps of text, decisions by a seed."""

import itertools
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

FLOATS = ("float", "float32", "bfloat16")
# the usual extents of arrays: length, batch, width
SMALL = (1, 2, 3, 3, 4, 5, 6, 6), (1, 2, 3, 4), (1, 2, 3, 5)
LARGE = (1, 3, 6, 18, 40, 80), (1, 2, 3, 24, 40), (1, 3, 5, 16, 70)
EXTENTS = LARGE if os.environ.get("MALLEABLE_LARGE_PROGRAMS") else SMALL


@dataclass(frozen=True)
class Value:
    """A variable. |value| <= bound; distinct: a float whose elements are surely not equal."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float"  # float: as wide as the arguments
    bound: float = 1.0
    distinct: bool = True

    @property
    def rank(self):
        return len(self.shape)

    @property
    def size(self):
        return int(np.prod(self.shape))


@dataclass(frozen=True)
class Step:
    """Lines of Python that assign the names `outs`."""

    construct: str
    outs: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def reads(self) -> set[str]:
        return set(re.findall(r"[A-Za-z_]\w*", "\n".join(self.lines)))


@dataclass
class Scope:
    """The inside of one function: what its next step may read, and the steps so far."""

    values: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    depth: int = 0  # of the loops around it

    def inside(self, values):
        """The scope of a nested function, which also reads what is outside."""
        return Scope([*self.values, *values], [], self.depth + 1)

    def lines(self) -> Iterator[str]:
        for step in self.steps:
            yield from (f"    {line}" for line in step.lines)


@dataclass
class Writer:
    """The state of writing one program. `length`, `batch` and `width` are its usual extents."""

    rng: np.random.Generator
    constructs: tuple[Callable, ...]  # what a step inside a function may be
    args: list[tuple[Value, str]] = field(default_factory=list)  # with how to draw it
    differentiable: bool = True
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self):
        self.length, self.batch, self.width = map(self.pick, EXTENTS)

    def chance(self, one_in):
        return bool(self.rng.integers(one_in) == 0)

    def pick(self, options):
        return options[int(self.rng.integers(len(options)))]

    def some(self, options, most):
        """From one to `most` different ones, in order."""
        count = 1 + int(self.rng.integers(min(most, len(options))))
        chosen = self.rng.choice(len(options), count, replace=False)
        return [options[k] for k in sorted(chosen)]

    def name(self, prefix):
        return f"{prefix}{next(self.ids)}"

    def arg(self, shape, kind="signed"):
        """A new argument. Kinds: signed, positive, int, mask, below(n)."""
        dtype = {"signed": "float", "positive": "float", "mask": "bool"}.get(kind, "int32")
        bound = 4.0 if dtype == "int32" else 1.0
        value = Value(self.name("a"), tuple(shape), dtype, bound, dtype == "float")
        self.args.append((value, kind))
        return value

    def row(self):
        """The shape of what a loop has at one step."""
        return self.pick(
            [(), (self.batch,), (self.width,), (self.batch, self.width), (self.batch, self.width)]
        )

    def read(self, scope, test=lambda value: True):
        """A value that passes the test, usually a new one, or None."""
        found = [v for v in scope.values if test(v)]
        if not found:
            return None
        recent = found[-3:]
        return self.pick(recent if self.rng.integers(4) else found)

    def add(self, scope, construct, text, shape, *, above=(), **facts):
        """A step `name = text`, after the lines `above`; facts: of the new Value."""
        value = Value(self.name("v"), tuple(int(n) for n in shape), **facts)
        scope.steps.append(Step(construct, (value.name,), (*above, f"{value.name} = {text}")))
        scope.values.append(value)
        return value

    def step(self, scope, constructs):
        """One step of a random construct; where one does not apply, of another."""
        for _ in range(20):
            if self.pick(constructs)(self, scope) is not NotImplemented:
                return

    def write(self, scope, count):
        for _ in range(count):
            self.step(scope, self.constructs)


def real(value):
    """Text of a float no larger than about 1.5."""
    if value.dtype == "bool":
        return f"(0.7 * {value.name})"
    if value.dtype == "int32":
        text = value.name if value.bound <= 4 else f"({value.name} % 5)"
        return f"(0.3 * {text})"
    text = f"{value.name}.astype(float)" if value.dtype == "bfloat16" else value.name
    return text if value.bound <= 1.5 else f"({text} / {value.bound:.1f})"


def fits(shape, other):
    """Whether NumPy broadcasts `shape` to `other`."""
    return len(shape) <= len(other) and all(m in (1, n) for m, n in zip(shape[::-1], other[::-1]))


def fit(value, shape):
    """Text of a float made to have `shape`."""
    if value.shape == shape:
        return real(value)
    if fits(value.shape, shape):
        return f"jnp.broadcast_to({real(value)}, {shape})"
    return f"jnp.full({shape}, {real(value)}.mean())"
