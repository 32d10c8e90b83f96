"""What `autograph` makes of Python: the program, the notes, or the text of its refusal."""

import contextlib
import copy
import gc
import io

import jax
import numpy as np

import malleable as mal
from benchmarks import frontend
from malleable.notes import listen
from tests.frontend import place_programs_loops  # noqa: F401  adds to PROGRAMS
from tests.frontend.place_programs import PROGRAMS
from tests.frontend.syntax.snippets import CASES
from tests.generators.python.programs import python_args, random_python_program
from tests.golden.outline import brief, outline
from tests.golden.said import noted, said

SEEDS = 100


def benchmarks():
    """The programs of `benchmarks.frontend`, by loop."""
    for name, (fun, _, args, _) in frontend.loop_cases().items():
        yield name, made(fun, args)
    args = np.ones((200, 200)), np.ones(200)
    for most in (50, 1000):
        fun = mal.autograph(lambda w, b, most=most: frontend.fixed_point(w, b, most))
        yield f"fixed point, {most} steps", made(fun, args)
        yield f"fixed point, {most} steps, gradient", made(jax.grad(fun), args)
    for depth in (1, 4, 8):
        yield f"nested {depth}", made(frontend.nested(depth, []), (0.5,))
    layers = [frontend.dicts(jax.random.key(0))] * 4
    for roll in (False, True):
        fun = lambda layers, x, roll=roll: frontend.model_of_dicts(layers, x, roll)
        yield f"dicts of arrays, rolled {roll}", made(fun, (layers, np.ones((16, 128), "f4")))


def small():
    """Functions of one construct each, the arguments traced where they are numbers or arrays."""
    for fun, inputs in CASES:
        yield fun.__name__, made(fun, inputs[0], brief)
    for number, (fun, args) in enumerate(PROGRAMS):
        yield f"{fun.__name__} {number}", made(fun, args, brief)


def laws():
    """Random Python programs."""
    for seed in range(SEEDS):
        fun = random_python_program(seed).function
        yield f"seed {seed}", made(fun, python_args(seed), brief)


def made(fun, args, how=outline):
    """The program of a function under `autograph`, with what was said of it."""
    traced = [i for i, x in enumerate(args) if is_traced(x)]

    def run(*some):
        mine = list(copy.copy(args))
        for i, x in zip(traced, some, strict=True):
            mine[i] = x
        out = mal.autograph(fun)(*mine)
        return [x for x in jax.tree.leaves(out) if isinstance(x, jax.Array)]

    quiet = contextlib.redirect_stdout(io.StringIO())
    with uncollected(), jax.enable_x64(True), listen() as notes, quiet:
        try:
            text = how(jax.make_jaxpr(run)(*(args[i] for i in traced)))
        except Exception as error:  # of ours, of JAX or of the program
            text = refused(error)
    return [*noted(notes), text]


@contextlib.contextmanager
def uncollected():
    """Nothing is collected meanwhile, for that has no fixed time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def is_traced(x):
    leaves = jax.tree.leaves(x)
    return bool(leaves) and all(isinstance(v, int | float | np.ndarray | jax.Array) for v in leaves)


def refused(error):
    """What an error says: all of it if it is ours, the first line of one of JAX or of Python."""
    text = said(str(error))
    ours = isinstance(error, mal.TransformError)
    return f"{type(error).__name__}: {text if ours else text.partition(chr(10))[0]}"
