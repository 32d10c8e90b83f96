"""Functions that call themselves under a traced test: bounded, or refused at once."""

import jax
import pytest

from malleable import TransformError, autograph


def fib(n):
    if n < 2:
        return n
    return fib(n - 1) + fib(n - 2)


def is_even(n):
    return True if n == 0 else is_odd(n - 1)


def is_odd(n):
    return False if n == 0 else is_even(n - 1)


def halved(x):
    if x < 1:
        return x
    return halved(x / 2) + 1


@pytest.mark.parametrize("f", [fib, is_even, halved])
def test_recursion_without_a_bound_names_the_line_and_the_way_out(f):
    with pytest.raises(TransformError, match=r"calls itself(.|\n)*test_recursion(.|\n)*max_steps"):
        jax.jit(autograph(f))(3)


def test_recursion_with_a_bound_is_compiled():
    assert jax.jit(autograph(fib, max_steps=5))(5) == 5
    assert not jax.jit(autograph(is_even, max_steps=3))(5)
    assert jax.grad(autograph(halved, max_steps=4))(6.0) == 0.125


def test_beyond_its_bound_the_result_is_nan():
    assert jax.numpy.isnan(jax.jit(autograph(halved, max_steps=4))(600.0))


def test_a_chain_of_objects_grows_at_a_traced_place():
    class Node:
        def __init__(self, value):
            self.value, self.left = value, None

    def insert(v):
        root = Node(v[0])
        for x in v[1:]:
            node = root
            while node.left is not None and x < node.left.value:
                node = node.left
            node.left = Node(x)
        return root.left.value

    for v in ([4.0, 3.0, 2.0], [1.0, 2.0, 3.0]):
        assert jax.jit(autograph(insert))(jax.numpy.array(v)) == insert(v)
