"""`why_not` names the place nearest to a pattern, and the first operation that differs."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import LIBRARY, NoMatch, rule, why_not

squares = rule(lambda x: jnp.log(x**2), lambda x: 2 * jnp.log(jnp.abs(x)), name="squares")


def test_a_rule_that_fires_is_said_to():
    miss = why_not(squares, lambda x: jnp.log(x**2))(1.0)
    assert miss.fires and "test_misses.py" in miss.where


def test_the_first_operation_that_differs_is_named_with_its_line():
    def f(x):
        y = x * jnp.sin(x)
        return jnp.log(y)

    miss = why_not(squares, f)(1.0)
    assert (miss.matched, miss.size) == (1, 2)
    assert (miss.wanted, miss.found) == ("`integer_pow`", "`mul`")
    line = f.__code__.co_firstlineno + 1
    assert f"test_misses.py:{line} in" in miss.differs_at
    assert f"test_misses.py:{line + 1} in" in miss.where


def test_the_nearest_of_several_places_is_told_also_in_a_loop():
    def f(x):
        y = jnp.log(x)
        return lax.scan(lambda c, _: (jnp.log(c**3), None), y, length=2)[0]

    miss = why_not(squares, f)(1.0)
    assert miss.matched == miss.size == 2 and "parameters" in miss.reason


def test_a_value_that_should_be_the_same_is_seen():
    twice = rule(lambda x: jnp.sin(x) * jnp.cos(x), lambda x: jnp.sin(2 * x) / 2, name="twice")
    miss = why_not(twice, lambda x, y: jnp.sin(x) * jnp.cos(y))(1.0, 2.0)
    assert not miss.fires and "the same `x` again" in miss.wanted
    assert why_not(twice, lambda x: jnp.cos(x) * jnp.sin(x))(1.0).fires  # in either order


def test_the_reason_of_a_rule_that_declines_is_told():
    @rule
    def picky(x):
        return NoMatch("it is small") if x.size < 9 else (jnp.log(x**2), jnp.log(jnp.abs(x)) * 2)

    miss = why_not(picky, lambda x: jnp.log(x**2))(jnp.ones(3))
    assert not miss.fires and "it declined: it is small" in str(miss)


def test_a_program_without_the_last_operation_says_so():
    assert "no `log`" in why_not(squares, jnp.sin)(1.0).reason


@pytest.mark.parametrize("library", LIBRARY, ids=lambda r: r.name)
def test_every_rule_of_the_library_can_be_asked(library):
    def f(x):
        weights = jax.nn.softmax(x @ x.T)
        return jnp.log(weights.sum(-1)) @ jnp.exp(x)

    assert str(why_not(library, f)(jnp.ones((4, 4))))


def test_what_is_no_rule_is_refused():
    with pytest.raises(TypeError, match="takes a rule"):
        why_not(jnp.sin, jnp.sin)  # type: ignore[arg-type]
