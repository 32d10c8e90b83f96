"""What push and stream decide is data: it is printed, compared, and changed by nobody."""

import jax.numpy as jnp
import pytest
from jax import lax

from malleable import push_up_reductions, stage, stream
from malleable.rewriting.graph.graph import Graph
from malleable.rewriting.streaming.region.region import Region
from malleable.rewriting.streaming.strategy import DECIDED, Strategy


def decisions(p, fun, *args):
    """The strategies of a pass on a function."""
    token = DECIDED.set(found := [])
    try:
        p(stage(fun)(*args).jaxpr)
    finally:
        DECIDED.reset(token)
    return found


def total(x):
    _, ys = lax.scan(lambda c, _: (jnp.sin(c), jnp.sin(c)), x, length=9)
    return (ys * ys).sum()


def smooth(x, y):
    return jnp.exp(-((x[:, None] - y[None]) ** 2)) @ y


def test_what_push_decides_is_a_value():
    expected = Strategy("scan", chunk=1, remat="tail", deferred=True)
    assert decisions(push_up_reductions(threshold=0), total, jnp.ones(4)) == [expected]


def test_what_stays_says_why():
    (how,) = decisions(push_up_reductions, total, jnp.ones(4))
    assert str(how).startswith("stays: the scan stacks only")


def test_what_stream_decides_is_a_value():
    some = stream(threshold=1024, block=8)
    expected = Strategy("blocks", chunk=8, remat="tail")
    assert decisions(some, smooth, jnp.ones(64), jnp.ones(32)) == [expected]


def test_a_region_is_changed_by_nobody():
    region = Region(Graph.of(stage(total)(jnp.ones(4)).jaxpr), 9, False)
    with pytest.raises(TypeError):
        region.actions[None] = None
    with pytest.raises(AttributeError):
        region.streams = {}
