"""Random Python functions for the law of `mal.jit`: `random_selective_program(seed)`.

A program is the text of a module whose `program(x, w, y, k, h, n, s, log, d)` does what keeps
`jax.jit` from compiling it: sizes, branches and loops that depend on values, prints, exceptions,
writes to the list and the dict passed in. Floats that are looked at are small multiples of 1/8 and
thresholds lie between those, so that no order of a sum and no fusion turns a branch; results of
sines and square roots are returned and printed, never asked. No array has more than 7 elements: the
operations of all programs meet the same few sizes, which keeps plain JAX fast.
"""

import random

import jax.numpy as jnp
import numpy as np

from tests.generators.python.programs import PythonProgram
from tests.generators.selective.writer import Writer

MODULE = """\
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Missing(Exception):
    pass


class Held:
    def __init__(self, name):
        self.name = name

    def __enter__(self):
        print("enter", self.name)
        return self

    def __exit__(self, kind, error, trace):
        print("leave", self.name, kind is None)
        return {swallow} and kind is Missing


def tame(t):
    return jnp.clip(jnp.round(t * 8) / 8, -64, 64)


def bound(t):
    return max(-64.0, min(64.0, t))


def smooth(total, e):
    return 0.5 * total + e, jnp.tanh(total)


def helper(t, low={low}, name="helper"):
{helper}


def deeper(t, depth):
    if depth == 0 or t.sum() > {deep}:
        return t
    return deeper({deep_step}, depth - 1)


def program(x, w, y, k, h, n, s, log, d):
{program}
"""
DEFAULT = {"F": ["x", "w"], "I": ["y"], "j": ["k"], "g": ["h"], "i": ["n"], "f": ["s"]}


def random_selective_program(seed: int) -> PythonProgram:
    """The program of a seed, on every Python version and machine."""
    return PythonProgram(write_module(random.Random(seed)))


def write_module(rng: random.Random) -> str:
    writer = Writer(rng)
    inner = {"F": ["t"], "f": ["low"], "I": [], "j": [], "g": [], "i": []}
    helper = writer.function(inner, "F", statements=2, depth=1)
    names = {kind: list(some) for kind, some in DEFAULT.items()}
    body = writer.function(names, None, statements=4 + rng.randrange(6), depth=2, calls=True)
    return MODULE.format(
        swallow=rng.random() < 0.5,
        low=writer.threshold(),
        helper="\n".join(f"    {line}" for line in helper),
        deep=writer.threshold(),
        deep_step=rng.choice(["tame(t * 2)", "t[t > -0.0625]", "t + 1", "t[1:]"]),
        program="\n".join(f"    {line}" for line in body),
    )


def selective_args(seed: int) -> tuple:
    """(x, w, y, k, h, n, s, log, d): float32 (6,) or (4,) twice, int32 (6,), int32 and float32
    scalars, a Python int and float, a list and a dict."""
    rng = np.random.default_rng(seed)

    def eighths(shape):
        return (rng.integers(-24, 25, shape) / 8).astype(np.float32)

    size = 6 if rng.integers(3) else 4
    return (
        jnp.asarray(eighths(size)),
        jnp.asarray(eighths(size)),
        jnp.asarray(rng.integers(0, 6, 6), jnp.int32),
        jnp.int32(rng.integers(0, 7)),
        jnp.float32(eighths(())),
        int(rng.integers(0, 6)),
        float(eighths(())),
        [0, 1.5],
        {"a": 1, "b": 0.5},
    )
