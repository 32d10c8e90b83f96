"""How a random program is written: text kept as data, and a writer who asks for every decision."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

SHAPES = ((), (3,), (2, 3))


@dataclass(frozen=True)
class Step:
    """One assignment, `out = text`, after the functions that `text` mentions."""

    construct: str
    out: str
    text: str
    functions: tuple["Function", ...] = ()

    def lines(self) -> Iterator[str]:
        for function in self.functions:
            yield from function.lines()
        yield f"{self.out} = {self.text}"


@dataclass(frozen=True)
class Function:
    """A function, with the line above its `def` and the line that adds its derivative rule."""

    name: str
    params: str
    steps: tuple[Step, ...]
    result: str
    decorator: str = ""
    rule: str = ""

    def lines(self) -> Iterator[str]:
        if self.decorator:
            yield self.decorator
        yield f"def {self.name}({self.params}):"
        for step in self.steps:
            yield from (f"    {line}" for line in step.lines())
        yield f"    return {self.result}"
        if self.rule:
            yield self.rule

    def walk(self) -> Iterator[Step]:
        """Every step at every depth."""
        for step in self.steps:
            yield step
            for function in step.functions:
                yield from function.walk()


@dataclass(frozen=True)
class Value:
    """A float32 variable. `sure`: an argument or a slice of one, so its sign is beyond rounding."""

    name: str
    shape: tuple[int, ...]
    sure: bool = False


@dataclass(frozen=True)
class Count:
    """An int32 scalar variable. `lanes`: it may differ between the lanes of a vmap."""

    name: str
    lanes: bool = False


@dataclass
class Scope:
    """The inside of one function: what its next step may read, and the steps so far.

    `mode` is how tags are written here, None for nowhere; "loop" stands for "last" or "sum".
    `loose` are the values that nobody has read: the result gathers them, so that no step is dead.
    """

    values: list[Value]
    counts: list[Count]
    depth: int
    mode: str | None
    keys: bool
    whiles: bool
    vmapped: bool = False
    loose: list[Value] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    def inside(self, values, counts=(), closed=False, **changes):
        """The scope of a nested function; a closed one reads nothing but its parameters."""
        return replace(
            self,
            values=list(values) if closed else [*self.values, *values],
            counts=list(counts) if closed else [*self.counts, *counts],
            depth=self.depth - 1,
            loose=list(values),
            steps=[],
            **changes,
        )


@dataclass
class Writer:
    """The state of writing one program. Every decision is `choose(n)`, an int below n."""

    choose: Callable[[int], int]
    left: int  # steps still to write, at any depth
    simple: tuple[Callable, ...]  # the constructs: each a function of (writer, scope)
    nested: tuple[Callable, ...]
    ids: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    tags: list[tuple[str, str]] = field(default_factory=list)
    noisy: bool = False

    def pick(self, options):
        return options[self.choose(len(options))]

    def name(self, prefix):
        return f"{prefix}{next(self.ids)}"

    def read(self, scope, shapes=SHAPES):
        """A value of one of the `shapes`, or None; the newest comes first."""
        found = [v for v in reversed(scope.values) if v.shape in shapes]
        if not found:
            return None
        value = self.pick(found)
        scope.loose = [v for v in scope.loose if v != value]
        return value

    def index(self, scope, size):
        """An index in bounds, usually known at run time only."""
        return f"{self.pick(scope.counts[::-1]).name} % {size}" if scope.counts else "1"

    def predicate(self, scope):
        """(text, whether lanes of a vmap may differ in it), or None where nothing is sure."""
        options = [
            (f"{c.name} {test}", c.lanes)
            for c in reversed(scope.counts)
            for test in ("> 1", "% 2 == 0")
        ]
        # a caller may vmap over float arguments
        options += [
            (f"{v.name}{[0] * len(v.shape) or ''} > 0", True) for v in scope.values if v.sure
        ]
        return self.pick(options) if options else None

    def add(self, scope, construct, text, shape, functions=(), sure=False):
        value = Value(self.name("v"), shape, sure)
        scope.steps.append(Step(construct, value.name, text, tuple(functions)))
        scope.values.append(value)
        scope.loose.append(value)

    def function(self, scope, prefix, params, shape, result="{}", **extra):
        """A nested function of up to two steps, whose `result` mentions a value of `shape`."""
        for _ in range(1 + self.choose(2)):
            if self.left > 0:
                self.step(scope)
        text = result.format(gather_loose(scope, shape))
        return Function(self.name(prefix), params, tuple(scope.steps), text, **extra)

    def step(self, scope):
        self.left -= 1
        construct = self.pick(self.simple if scope.depth == 0 else self.simple + self.nested)
        if construct(self, scope) is NotImplemented:
            self.simple[0](self, scope)
        if scope.keys and self.choose(3) == 2:
            self.noise(scope)
        if scope.mode and self.choose(2):
            self.tag(scope)

    def noise(self, scope):
        self.noisy = True
        v = scope.values[-1]
        scope.loose.remove(v)
        self.add(scope, "noise", f"{v.name} + noise({v.shape})", v.shape)

    def tag(self, scope):
        """Name the newest value; one time in four nobody uses the tag's result."""
        v = scope.values[-1]
        text = self.tagged(v.name, scope.mode)
        if self.choose(4) == 3:
            scope.steps.append(Step("tag", "_", text))
            return
        scope.loose.remove(v)
        self.add(scope, "tag", text, v.shape)

    def tagged(self, text, mode):
        mode = self.pick(("last", "sum")) if mode == "loop" else mode
        self.tags.append((self.name("t"), mode))
        return "tag({}, {!r}, {!r})".format(text, *self.tags[-1]).replace("'", '"')


def fit(value, shape):
    """Text of `value` made to have `shape`."""
    if value.shape == shape:
        return value.name
    if len(value.shape) < len(shape):
        return f"jnp.broadcast_to({value.name}, {shape})"
    return f"{value.name}.mean({'' if shape == () else 0})"


def gather_loose(scope, shape):
    """Text of `shape` made from every value of the scope that nobody has read."""
    if not scope.loose:
        return f"jnp.sin({fit(scope.values[-1], shape)})"
    texts = [fit(v, shape) for v in scope.loose]
    return texts[0] if len(texts) == 1 else f"jnp.tanh({' + '.join(texts)})"
