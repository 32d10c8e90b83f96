"""Random JAX programs for laws: `programs()` under hypothesis, `random_program(seed)` without.

A program is data that prints as the Python it runs, so a failing example can be read and pasted.
All take the same arguments, `inputs()` or `example_args(seed)`. Values stay near [-1, 1]. Branches,
trip counts and indices depend only on integers and on signs of arguments, which keep away from
zero: rounding never changes a path.
"""

import functools
import linecache
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax

from tests.generators.programs.constructs import write_program
from tests.generators.programs.writer import Function, Step


@dataclass(frozen=True, repr=False)
class Program:
    """`program(*example_args(0))` runs it, `print(program)` shows it; equal by text."""

    main: Function
    tags: tuple[tuple[str, str], ...]  # (name, mode), in the order they were placed

    def __call__(self, *args):
        return self._plain(*args)

    @functools.cached_property
    def _plain(self):
        return build(self)

    def __repr__(self):
        return "\n".join(self.main.lines()) + "\n"

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step at every depth."""
        return tuple(self.main.walk())

    @property
    def constructs(self) -> set[str]:
        return {step.construct for step in self.steps}


def build(program, tag=lambda value, name, mode: value, key=None):
    """The Python function of a program, calling `tag(value, name, mode)` at its tags.

    Names are unique, except that the branches of one cond may share one. Modes: "stack" outside
    loops of unknown length; "last" or "sum" inside them; "masked" in one branch only of a cond.
    Noise is `0.1 * jax.random.normal(key(), shape)`, or zero without `key`.
    """

    def noise(shape):
        return 0.1 * jax.random.normal(key(), shape) if key else jnp.zeros(shape)

    source = str(program)
    filename = f"<program {hash(program):x}>"
    # Tracebacks and errors that name the user's line find it here.
    linecache.cache[filename] = (len(source), None, source.splitlines(True), filename)
    names = {"jax": jax, "jnp": jnp, "lax": lax, "tag": tag, "noise": noise}
    exec(compile(source, filename, "exec"), names)
    return names["program"]


def programs(depth=3, tags=True, keys=False, whiles=True, differentiable=False):
    """Strategy. `keys` adds noise; `differentiable` leaves out what has no reverse mode."""
    whiles = whiles and not differentiable

    @st.composite
    def drawn(draw):
        def choose(n):
            return draw(st.integers(0, n - 1))

        return Program(*write_program(choose, depth=depth, tags=tags, keys=keys, whiles=whiles))

    return drawn()


def random_program(seed, depth=3, tags=True, keys=False, whiles=True, differentiable=False):
    """The program of a seed: what `programs` draws, without the cost of hypothesis."""
    whiles = whiles and not differentiable
    rng = np.random.default_rng(seed)

    def choose(n):
        return int(rng.integers(n))

    return Program(*write_program(choose, depth=depth, tags=tags, keys=keys, whiles=whiles))


def inputs():
    """Strategy: the arguments of any program."""
    return st.integers(0, 2**16).map(example_args)


def example_args(seed):
    """(x, y, z, n): float32 of shapes (3,), (2, 3), (), none within 0.2 of 0; int32 in 0..3."""
    rng = np.random.default_rng(seed)

    def signed(shape):
        return jnp.asarray(rng.uniform(0.2, 0.9, shape) * rng.choice([-1, 1], shape), jnp.float32)

    return signed((3,)), signed((2, 3)), signed(()), jnp.int32(rng.integers(4))
