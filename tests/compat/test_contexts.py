"""Our contexts: part of the keys of JAX's caches, and no news to them while they are at rest."""

import threading

import jax
import jax.numpy as jnp

from malleable import compat


def counted():
    """A jitted function, and how often it has been traced."""
    times = []

    @jax.jit
    def fun(x):
        times.append(1)
        return x + 1

    return fun, times


def test_making_one_lets_no_compiled_function_be_traced_again():
    fun, times = counted()
    fun(1.0)
    one = compat.user_context("nothing")
    assert one.value == "nothing"
    fun(1.0)
    assert len(times) == 1 and fun._cache_size() == 1


def test_what_is_traced_inside_is_not_found_outside_nor_the_reverse():
    fun, times = counted()
    one, other = compat.user_context(0), compat.user_context(0)
    traced = []
    for context in (None, one(1), one(2), other(1), None, one(1), one(0)):
        if context is None:
            fun(1.0)
        else:
            with context:
                fun(1.0)
        traced.append(len(times))
    assert traced == [1, 2, 3, 4, 4, 4, 4]


def test_a_body_traced_inside_is_told_apart_by_the_caches_of_traces_too():
    inner, times = counted()
    one = compat.user_context(0)
    jax.make_jaxpr(inner)(1.0)
    with one(1):
        jax.make_jaxpr(inner)(1.0)
    jax.make_jaxpr(inner)(1.0)
    assert len(times) == 2


def test_the_value_is_of_one_thread():
    one, seen = compat.user_context(0), []
    with one(1):
        thread = threading.Thread(target=lambda: seen.append(one.value))
        thread.start()
        thread.join()
        assert one.value == 1
    assert seen == [0] and one.value == 0


def test_several_end_in_any_order():
    one, other = compat.user_context(0), compat.user_context(0)
    first, second = one(1), other(2)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert (one.value, other.value) == (0, 2)
    second.__exit__(None, None, None)
    assert (one.value, other.value) == (0, 0)
    assert type(compat.contexts._NUMBER.value) is int


def test_the_number_that_holds_them_stays_what_it_is():
    one, number = compat.user_context(0), compat.contexts._NUMBER
    before = number.value
    with one(1):
        assert number.value + 1 == before + 1 and isinstance(number.value, int)
    with number(before + 3), one(1):
        assert int(number.value) == before + 3
    with one(1), number(before + 3):
        assert one.value == 0  # said by JAX's own context, which is innermost
    assert number.value == before


def test_a_loop_body_sees_the_value_it_is_traced_under():
    one = compat.user_context(0)

    def step(carry, x):
        return carry + x * one.value, None

    @jax.jit
    def fun(xs):
        return jax.lax.scan(step, 0.0, xs)[0]

    xs = jnp.arange(3.0)
    with one(2):
        assert fun(xs) == 6
    assert fun(xs) == 0
