"""What a region overtakes: of two errors of a function the first in Python is the one raised."""

import jax.numpy as jnp
import numpy as np
import pytest

import malleable as mal


class Empty:
    pass


def shape_before_attribute(x, y, held, k):
    a = jnp.sin(x)
    b = a + y
    return b + held.w


def item_before_attribute(x, y, held, k):
    b = jnp.reshape(x, (7,))
    c = held["w"]
    return b * c


def shape_before_division(x, y, held, k):
    b = x @ y
    c = 1 / k
    return b * c


def division_before_attribute(x, y, held, k):
    a = x * 2
    c = 1 / k
    return a * held.w * c


def attribute_before_shape(x, y, held, k):
    a = jnp.sin(x)
    c = held.w
    return (a + y) * c


FUNCTIONS = [
    shape_before_attribute,
    item_before_attribute,
    shape_before_division,
    division_before_attribute,
    attribute_before_shape,
]


@pytest.mark.parametrize("fun", FUNCTIONS, ids=lambda f: f.__name__)
def test_of_two_errors_the_first_is_raised(fun):
    held = {} if fun is item_before_attribute else Empty()
    args = jnp.ones(3), jnp.ones(4), held, 0
    with pytest.raises(Exception) as expected:
        fun(*args)
    jitted = mal.jit(fun)
    for _ in range(3):
        with pytest.raises(expected.type) as found:
            jitted(*args)
        assert str(found.value) == str(expected.value)


def steps(x, log):
    try:
        for i in range(5):
            yield x * i
    finally:
        log.append("closed")


def until_large(x, log):
    for v in steps(x * 2, log):
        x = x + v
        if float(x.sum()) > 3:
            break
    log.append("after")
    for _, v in enumerate(steps(x, log)):
        x = x + v
        if float(x.sum()) > 3:
            break
    log.append("end")
    return x


def test_a_generator_that_a_loop_leaves_is_closed_where_it_does():
    jitted = mal.jit(until_large)
    for _ in range(3):
        log = []
        jitted(jnp.ones(3), log)
        assert log == ["closed", "after", "closed", "end"]


class Filled:
    """Whose property does more than read."""

    def __init__(self):
        self.buffer, self.said = np.zeros(3), []

    @property
    def next(self):
        self.buffer += 1
        self.said.append("next")
        return float(self.buffer[0])


def before_and_behind(held, buffer, x, y):
    a = jnp.asarray(buffer) * x + y
    b = held.next
    return a, b, jnp.asarray(buffer) * x


def test_a_property_runs_where_it_stands():
    jitted = mal.jit(before_and_behind)
    for _ in range(3):
        one, two, x = Filled(), Filled(), jnp.ones(3)
        got = jitted(one, one.buffer, x, x)
        for a, b in zip(got, before_and_behind(two, two.buffer, x, x), strict=True):
            np.testing.assert_array_equal(a, b)
        with pytest.raises(TypeError, match="incompatible shapes"):
            jitted(one, one.buffer, x, jnp.ones(2))
        assert one.said == ["next"]
