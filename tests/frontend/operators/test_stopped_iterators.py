"""Iterators that a traced value stops: what they change on the way shows how far they went."""

import itertools

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from malleable import TransformError, autograph


class Counter:
    def __init__(self):
        self.n = 0

    def up(self):
        self.n += 1


def appends(xs):
    seen = []

    def items():
        for x in xs:
            seen.append(x)
            yield x > 2

    return any(items()), len(seen)


def sets_an_attribute(xs):
    counter = Counter()

    def items():
        for x in xs:
            counter.n += 1
            yield x < 2

    return all(items()), counter.n


def calls_a_method(xs):
    counter = Counter()

    def items():
        for x in xs:
            counter.up()
            yield x

    return next(x for x in items() if x > 2), counter.n


def binds(xs):
    n = 0

    def items():
        nonlocal n
        for x in xs:
            n += 1
            yield x > 2

    for found in items():
        if found:
            break
    return n


def maps(xs):
    seen = [0]

    def count(x):
        seen[0] += 1
        return x > 2

    return any(map(count, xs)), seen[0]


def goes_on(xs):
    rest = iter(xs)
    return any(x > 2 for x in rest), next(rest, -1.0)


def filters(xs):
    seen = []

    def keep(x):
        seen.append(x)
        return x > 0

    return any(x > 2 for x in filter(keep, xs)), len(seen)


def takes_while(xs):
    n = [0]

    def count(x):
        n[0] += 1
        return x

    return sum(itertools.takewhile(lambda x: x < 3, map(count, xs))), n[0]


def asks_a_filter(xs):
    seen = []

    def keep(x):
        seen.append(x)
        return x > 0

    return any(filter(keep, xs)), len(seen)


REFUSED = [
    filters,
    takes_while,
    asks_a_filter,
    appends,
    sets_an_attribute,
    calls_a_method,
    binds,
    maps,
    goes_on,
]
ARRAYS = [jnp.array([1.0, 3.0, 5.0]), jnp.array([0.0, 1.0, 2.0, 3.0]), jnp.array([3.0, 1.0])]


@pytest.mark.parametrize("program", REFUSED, ids=lambda program: program.__name__)
def test_an_iterator_that_acts_is_refused(program):
    with pytest.raises(TransformError, match="says after which item it stops"):
        jax.jit(autograph(program))(ARRAYS[0])


def goes_on_after_a_break(xs):
    rest, found = iter(xs), -2.0
    for x in rest:
        if x > 2:
            found = x
            break
    return found, next(rest, -1.0)


def maps_in_a_loop(xs):
    seen = [0]

    def count(x):
        seen[0] += 1
        return x > 2

    for found in map(count, xs):
        if found:
            break
    return seen[0]


def only_computes(xs):
    def items():
        total = 0.0
        for x in xs:
            total = total + x
            yield total * 2 > 3

    return any(items()), all(items()), all(x > 0 for x in items())


def asks_a_function(xs):
    counter = Counter()

    def high(x):
        counter.up()
        return x > 2

    return any(high(x) for x in xs), next((x for x in xs if high(x)), -1.0), counter.n


RIGHT = [goes_on_after_a_break, maps_in_a_loop, only_computes, asks_a_function]


@pytest.mark.parametrize("program", RIGHT, ids=lambda program: program.__name__)
@pytest.mark.parametrize("xs", ARRAYS, ids=len)
def test_what_python_does_is_done(program, xs):
    got = jax.jit(autograph(program))(xs)
    for one, due in zip(jax.tree.leaves(got), jax.tree.leaves(program(np.asarray(xs)))):
        np.testing.assert_allclose(one, due)
