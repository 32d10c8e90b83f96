"""A body is entered once per signature; what one rulebook remembers, no other one sees."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import Rulebook, interpret
from tests.rules import again, twice

calls: list = []


def noted(frame, x, **params):
    calls.append(frame.where)
    return frame.bind(x)


@pytest.mark.caches  # what is traced once is found again
def test_a_body_is_traced_once_per_signature():
    calls.clear()
    program = interpret(jax.jit(lambda x: jnp.sin(x)), {lax.sin_p: noted})
    for x in (1.0, 2.0, jnp.ones(3), 3.0, jnp.zeros(3)):
        program(x)
    assert len(calls) == 2


@pytest.mark.caches  # as above
def test_what_one_rulebook_remembers_another_does_not_see():
    jitted = jax.jit(lambda x: jnp.sin(x))
    for rule, factor in [(twice, 2), (again, 1), (lambda frame, x, **_: 3 * frame.bind(x), 3)]:
        assert jnp.allclose(interpret(jitted, {lax.sin_p: rule})(0.5)[0], factor * jnp.sin(0.5))
    assert jitted(0.5) == jnp.sin(0.5)


@pytest.mark.caches  # as above
def test_a_rulebook_may_be_kept_and_used_again():
    calls.clear()
    book, jitted = Rulebook({lax.sin_p: noted}), jax.jit(lambda x: jnp.sin(x))
    for _ in range(3):
        interpret(lambda x: jitted(x) + 1, book)(0.5)
    assert len(calls) == 1


@pytest.mark.caches  # leak checks look at the traces of all threads
def test_threads_do_not_see_each_other():
    jitted = jax.jit(lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c), x))
    wanted, doubled = jitted(0.5), interpret(jitted, {lax.sin_p: twice})(0.5)[0]

    def run(i):
        return interpret(jitted, {lax.sin_p: twice})(0.5)[0] if i % 2 else jitted(0.5)

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(run, range(8))] == [wanted, doubled] * 4
