"""Random array programs for the laws of rewriting: `random_array_program(seed)`.

A program is data that prints as the Python it runs: loops and M x N intermediates, then tails that
reduce, cut, join and reorder what they stack; algebra, duplicates and equal blocks. Its arguments
are drawn by `array_args(program, seed)`. Values stay small, so that sums in another order differ
little, and indices of largest elements are taken of integers or of numbers that are all different.
"""

import functools
import linecache
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.generators.arrays.algebra import ALGEBRA
from tests.generators.arrays.elements import ELEMENTWISE
from tests.generators.arrays.loops import LOOPS
from tests.generators.arrays.pairs import PAIR_PROGRAMS
from tests.generators.arrays.tails import TAILS
from tests.generators.arrays.writer import Scope, Step, Value, Writer

# what a program begins with
SOURCES = (
    (LOOPS,), (LOOPS,), (LOOPS, LOOPS), (PAIR_PROGRAMS,), (PAIR_PROGRAMS, LOOPS),
    (ALGEBRA,), (ALGEBRA, ALGEBRA, LOOPS),
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class ArrayProgram:
    """`program(*array_args(program, 0))` runs it, `print(program)` shows it; equal by text."""

    args: tuple[tuple[Value, str], ...]  # with how each is drawn
    steps: tuple[Step, ...]
    results: tuple[str, ...]
    differentiable: bool

    def __call__(self, *args):
        return self.function(*args)

    @functools.cached_property
    def function(self):
        """The function; tracebacks and errors that name a line of it find the line."""
        source = str(self)
        filename = f"<array program {hash(source):x}>"
        linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
        names = {"jax": jax, "jnp": jnp, "lax": lax}
        exec(compile(source, filename, "exec"), names)
        return names["program"]

    def __repr__(self):
        lines = [f"# {v.name}: {kind} {v.shape}" for v, kind in self.args]
        lines += [f"def program({', '.join(v.name for v, _ in self.args)}):"]
        lines += [f"    {line}" for step in self.steps for line in step.lines]
        return "\n".join([*lines, f"    return ({', '.join(self.results)},)"]) + "\n"

    @property
    def constructs(self) -> set[str]:
        return {step.construct for step in self.steps}


def random_array_program(seed: int) -> ArrayProgram:
    """The program of a seed; the same on every machine."""
    rng = np.random.default_rng(seed)
    w = Writer(rng, (*ELEMENTWISE, *TAILS))
    scope = Scope()
    for constructs in w.pick(SOURCES):
        w.step(scope, constructs)
    tails = (*TAILS, *TAILS, *ALGEBRA) if w.chance(3) else TAILS
    for _ in range(1 + int(rng.integers(6))):
        w.step(scope, tails)
    return finished(w, scope)


def finished(w, scope) -> ArrayProgram:
    """The program that returns the last value, most that nobody reads, and a few others."""
    read = set().union(*(step.reads - set(step.outs) for step in scope.steps))
    loose = [v.name for v in scope.values if v.name not in read and w.rng.integers(4)]
    escapes = [v.name for v in scope.values if v.name in read and w.chance(8)]
    results = dict.fromkeys([*escapes, *loose, scope.values[-1].name])
    program = ArrayProgram(tuple(w.args), tuple(scope.steps), tuple(results), w.differentiable)
    return replace(program, args=used_args(program))


def used_args(program):
    """The arguments that it reads, one at least."""
    read = set().union(program.results, *(step.reads for step in program.steps))
    return tuple(a for a in program.args if a[0].name in read) or program.args[:1]


def array_args(program: ArrayProgram, seed: int) -> tuple:
    """Arguments: floats of 0.2 to 0.9 with a sign or without, small integers, truth values."""
    rng = np.random.default_rng(seed)
    return tuple(drawn(rng, value.shape, kind) for value, kind in program.args)


def drawn(rng, shape, kind):
    if kind == "mask":
        return jnp.asarray(rng.uniform(size=shape) < 0.7)
    if kind == "int":
        return jnp.asarray(rng.integers(-3, 4, shape), jnp.int32)
    if kind.startswith("below"):
        return jnp.asarray(rng.integers(0, int(kind[6:-1]), shape), jnp.int32)
    sign = rng.choice([-1, 1], shape) if kind == "signed" else 1
    return jnp.asarray(rng.uniform(0.2, 0.9, shape) * sign, float)


def smaller(program: ArrayProgram, fails) -> ArrayProgram:
    """A program as small as dropping results and steps makes it, that still fails."""
    shrinking = True
    while shrinking:
        shrinking = False
        for candidate in parts(program):
            if len(str(candidate)) < len(str(program)) and fails(candidate):
                program, shrinking = candidate, True
                break
    return program


def parts(program: ArrayProgram):
    """Programs of one result: each result, then each value on the way; without dead steps."""
    names = [*program.results, *(name for step in program.steps for name in step.outs)]
    for name in dict.fromkeys(names):
        yield needed(replace(program, results=(name,)))


def needed(program: ArrayProgram) -> ArrayProgram:
    """Without the steps that no result needs."""
    wanted, steps = set(program.results), []
    for step in reversed(program.steps):
        if wanted & set(step.outs):
            wanted |= step.reads
            steps.insert(0, step)
    program = replace(program, steps=tuple(steps))
    return replace(program, args=used_args(program))
