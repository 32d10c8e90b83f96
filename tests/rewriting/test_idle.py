"""A pass that was asked for and changes nothing says why, and nobody else does."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import listen, optimize, push_up_reductions, rewrite, rule, stream

X = jnp.ones((100, 50))
LOG = rule(
    lambda x: jnp.log(jax.nn.softmax(x)), lambda x: jax.nn.log_softmax(x), name="log_of_softmax"
)


def sums(x):
    return lax.scan(lambda c, row: (c + row.sum(), c * row), 0.0, x)[1]


def by_hand(x):
    return jnp.log(jnp.exp(x) / jnp.exp(x).sum())


@pytest.mark.parametrize(
    ("fun", "passes", "what", "why"),
    [
        (jnp.sin, push_up_reductions, "nothing is pushed up", "has no scan"),
        (sums, push_up_reductions, "nothing is pushed up", "no reduction takes what a scan"),
        (jnp.sin, stream, "nothing is streamed", "has 20000 bytes: less than stream(threshold="),
        (by_hand, rewrite(LOG), "no rule rewrote", "`sub` where there is an argument"),
        (jnp.sin, rewrite(LOG), "no rule rewrote", "with which a pattern ends"),
    ],
)
def test_a_pass_that_changes_nothing_says_why(fun, passes, what, why):
    with listen() as heard:
        optimize(fun, passes)(X)
    (note,) = heard
    assert note.what.startswith(what) and why in note.why


def test_a_pass_that_declines_says_that_alone():
    with listen() as heard:
        optimize(lambda x: sums(x).sum(), push_up_reductions)(X)
    assert [note.what for note in heard] == ["a reduction stays outside its scan"]


def test_nothing_is_said_where_no_pass_was_asked_for_or_one_had_something_to_do():
    with listen() as heard:
        optimize(jnp.sin)(X)
        optimize(lambda x: sums(x).sum(), push_up_reductions(threshold=0))(X)
    assert not [note for note in heard if note.what.startswith("no")]
