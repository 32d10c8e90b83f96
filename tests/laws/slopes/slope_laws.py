"""What must hold for gradients of `autograph` of any Python program: plain Python has that slope.

The numbers of a program are moved a little along a random direction, forth and back. Where plain
Python takes the same way each time, and its two slopes agree, the gradient in reverse mode times
the direction is that slope.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import malleable as mal
from tests.generators.python.iterators import random_iterator_program
from tests.generators.python.programs import PythonProgram, python_args, random_python_program
from tests.generators.python.views import random_view_program
from tests.laws.python_laws import REFUSED, SAME, is_bounded, run_plain

KINK = "kink"  # plain Python raises here, or has no slope
STEP = 3e-6
LINES = 100_000  # that a program may execute
STEPS = 200  # that a loop may take


GENERATORS = (random_python_program, random_view_program, random_iterator_program)


def try_seeds(seeds: Sequence[int], make=None) -> dict[int, str]:
    """{seed: outcome}: "same", "kink", "refused: why", or what shows that the gradient is wrong.

    The generators take turns, batch by batch. (Small types have no slope: they round.)
    """
    make = make or GENERATORS[seeds[0] // len(seeds) % len(GENERATORS)]
    with jax.enable_x64(True):
        found = outcomes([make(seed) for seed in seeds], [point(seed) for seed in seeds])
    return dict(zip(seeds, found, strict=True))


def point(seed: int) -> tuple:
    """(arguments, direction): at the arguments no comparison holds by chance."""
    rng = np.random.default_rng([seed, 2])
    args = python_args(seed)
    moved = [x if isinstance(x, int) else x + rng.uniform(-0.06, 0.06, np.shape(x)) for x in args]
    return moved, [None if isinstance(x, int) else rng.normal(size=np.shape(x)) for x in args]


def outcomes(programs: Sequence[PythonProgram], points: Sequence[tuple]) -> list[str]:
    """An outcome for each program; the gradients of all are one compiled program."""
    slopes = [slope(program, *at) for program, at in zip(programs, points, strict=True)]
    failed: dict[int, str] = {}

    def gradients(points):
        found = {}
        for k, (args, direction) in enumerate(points):
            if slopes[k] is None:
                continue
            fun = mal.autograph(programs[k].function, max_steps=STEPS)
            floats = [i for i, d in enumerate(direction) if d is not None]
            try:
                grads = jax.grad(lambda *a, fun=fun: total(fun(*a)), floats)(*args)
            except mal.TransformError as error:
                failed[k] = f"{REFUSED}: {error}"
                continue
            found[k] = sum(jnp.sum(g * direction[i]) for i, g in zip(floats, grads, strict=True))
        return found

    found = jax.device_get(jax.jit(gradients)(points))
    return [
        failed.get(k) or (KINK if slope is None else judge(found[k], slope))
        for k, slope in enumerate(slopes)
    ]


def judge(got, wanted: float) -> str:
    close = abs(got - wanted) <= 1e-3 * max(1, abs(wanted))
    return SAME if close else f"the gradient gives {got}, plain Python {wanted}"


def slope(program, args, direction) -> float | None:
    """The slope of plain Python; None where it raises or has none."""
    here, *around = [moved(program, args, direction, t * STEP) for t in (0, -1, 1, -0.3, 0.3)]
    if here is None or any(one is None or one[1] != here[1] for one in around):
        return None
    back, forth, *near = [one[0] for one in around]
    slopes = [
        (forth - back) / (2 * STEP),
        (forth - here[0]) / STEP,
        (near[1] - near[0]) / 0.6 / STEP,
    ]
    return slopes[0] if np.ptp(slopes) <= 1e-4 * max(1, abs(slopes[0])) else None


def moved(program, args, direction, t) -> tuple | None:
    """(what the gradient is of, all that is no float) of plain Python, that far along."""
    there = [x if d is None else x + t * d for x, d in zip(args, direction, strict=True)]
    result = run_plain(program, there, limit=LINES)
    if isinstance(result, Exception):
        return None
    leaves, structure = jax.tree.flatten(result)
    exact = [None if is_float(x) else np.asarray(x).tolist() for x in leaves]
    return float(total(result)), (structure, exact)


def total(result) -> jax.Array | float:
    """One number of every float in a result; each part of it has a weight of its own."""
    return sum(math.cos(k) * _sum(part) for k, part in enumerate(result))


def _sum(part):
    """The sum of the floats; a list whose length was traced has some items that do not count."""
    found = 0.0
    for x in jax.tree.leaves(part, is_leaf=is_bounded):
        if is_bounded(x):
            counts = jnp.arange(len(jax.tree.leaves(x.items)[0])) < x.length
            found += _sum(jax.vmap(lambda on, item: on * jnp.asarray(_sum(item)))(counts, x.items))
        elif is_float(x):
            found += jnp.sum(x) if isinstance(x, jax.Array) else np.sum(x)
    return found


def is_float(x) -> bool:
    return jnp.result_type(x).kind == "f"
