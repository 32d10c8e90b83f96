"""Random Python functions for the laws of `autograph`: `random_python_program(seed)`.

A program is the text of a module whose `program(x, y, n, m, v, a)` does ordinary things: loops,
jumps, writes in place, objects, closures, exceptions. It returns what it computed and the final
state of all it has changed. Numbers are small multiples of 1/8, so float64 arithmetic is exact and
plain Python and compiled code must agree to the bit. Every loop counts its own steps.
"""

import functools
import itertools
import linecache
import math
import random
from dataclasses import dataclass

import numpy as np

from tests.generators.python.writer import write_module

PLAIN = 300  # seeds below have neither handlers nor comprehensions with `if`


@dataclass(frozen=True, repr=False)
class PythonProgram:
    """`program(*python_args(0))` runs it, `print(program)` shows it; equal by text."""

    source: str

    def __call__(self, *args):
        return self.function(*args)

    @functools.cached_property
    def function(self):
        """The function, whose source `inspect` finds."""
        filename = f"<python program {hash(self.source):x}>"
        lines = self.source.splitlines(True)
        linecache.cache[filename] = (len(self.source), None, lines, filename)
        names = {"np": np, "math": math, "itertools": itertools, "functools": functools}
        names["__name__"] = "random_python_program"
        exec(compile(self.source, filename, "exec"), names)
        return names["program"]

    def __repr__(self):
        return self.source


def random_python_program(seed: int) -> PythonProgram:
    """The program of a seed, on every Python version and machine.

    One in three of the first `PLAIN` nests its lists; of the others two do, and most have handlers.
    """
    if seed < PLAIN:
        return PythonProgram(write_module(random.Random(seed), nested=seed % 3 == 2))
    options = {"nested": seed % 3 > 0, "guarded": seed % 4 > 0}
    return PythonProgram(write_module(random.Random(seed), **options))


def python_args(seed: int) -> tuple:
    """(x, y, n, m, v, a): two floats, two ints in 0..4, float64 arrays (3,) and (2, 3)."""
    rng = np.random.default_rng(seed)

    def eighths(shape):
        return rng.integers(-16, 17, shape) / 8

    x, y = eighths(2).tolist()
    n, m = rng.integers(0, 5, 2).tolist()
    return x, y, n, m, eighths(3), eighths((2, 3))
