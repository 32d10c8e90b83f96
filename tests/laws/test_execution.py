"""`mal.jit` of random Python programs computes, prints, raises and writes what the program does."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.flags import OTHER
from tests.generators.selective.programs import random_selective_program, selective_args
from tests.laws.batches import batches
from tests.laws.execution_laws import SAME, differs, seen, several_args, try_seeds

PROGRAMS = int(os.environ.get("MALLEABLE_SELECTIVE_PROGRAMS", "100"))
QUICK = 25
FIRST = PROGRAMS * OTHER
BATCH = 25  # plain JAX compiles each operation for each size it meets: once, in a long batch

# Leak checks make JAX forget what it compiled: plain JAX takes for ever.
pytestmark = pytest.mark.caches


@pytest.fixture
def whole_tracebacks():
    """What these programs raise keeps JAX's frames: to take them out takes a sixth of the time."""
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    yield
    jax.config.update("jax_traceback_filtering", before)


@pytest.mark.usefixtures("whole_tracebacks")
@pytest.mark.parametrize("first", batches(FIRST, PROGRAMS, BATCH, QUICK))
def test_jitted_programs_do_what_they_did(first):
    seeds = range(first, min(first + BATCH, FIRST + PROGRAMS))
    wrong = [text for text in try_seeds(seeds, shrink=True).values() if text != SAME]
    assert not wrong, f"{len(wrong)} wrong\n\n" + "\n\n".join(wrong[:5])


@pytest.mark.usefixtures("whole_tracebacks")
def test_programs_in_python_do_what_they_did():
    found = try_seeds(range(FIRST % 40, FIRST % 40 + 20), python=True)
    wrong = [text for text in found.values() if text != SAME]
    assert not wrong, "\n\n".join(wrong[:3])


def test_a_seed_gives_the_same_program():
    assert random_selective_program(7) == random_selective_program(7)
    assert len({random_selective_program(seed) for seed in range(100)}) == 100


def test_programs_have_what_jit_rejects():
    text = "".join(str(random_selective_program(seed)) for seed in range(200))
    wanted = ["nonzero", "unique", "int(", "float(", "tolist()", "print(", "log.append", "d['c'] ="]
    wanted += ["for ", "while ", "break", "continue", "return ", "try:", "raise", "def fun"]
    assert [word for word in wanted if text.count(word) < 15] == []


def test_inputs_differ():
    assert len({str(args) for args in several_args(3)}) == 3
    assert str(selective_args(5)) == str(selective_args(5))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda x, log: 1, lambda x, log: 1.0),
        (lambda x, log: True, lambda x, log: 1),
        (lambda x, log: x, lambda x, log: x + 1e-2),
        (lambda x, log: x, lambda x, log: x[:1]),
        (lambda x, log: x, lambda x, log: np.asarray(x)),
        (lambda x, log: x, lambda x, log: x.astype(jnp.bfloat16)),
        (lambda x, log: [x], lambda x, log: (x,)),
        (lambda x, log: {"a": 1, "b": 2}, lambda x, log: {"b": 2, "a": 1}),
        (lambda x, log: print(1), lambda x, log: print(2)),
        (lambda x, log: print(1.5), lambda x, log: print(1.75)),
        (lambda x, log: log.append(1), lambda x, log: None),
        (lambda x, log: log[5], lambda x, log: x.nothing),
        (lambda x, log: log[5], lambda x, log: None),
        (lambda x, log: jnp.nan * x, lambda x, log: x),
    ],
)
def test_a_difference_is_seen(one, other):
    args = jnp.ones(3), [0]
    assert differs(seen(one, args), seen(other, args))
    assert differs(seen(other, args), seen(one, args))
    assert not differs(seen(one, args), seen(one, args))


def test_rounding_is_no_difference():
    one, other = (lambda x, d=d: (print(0.1 + d), x + d, float(x.sum()) + d) for d in (0.0, 1e-6))
    args = (jnp.ones(3),)
    assert not differs(seen(one, args), seen(other, args))
