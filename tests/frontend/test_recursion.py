"""Functions that call themselves under a traced test: bounded, or refused at once."""

import sys

import jax
import pytest

from malleable import TransformError, autograph, compat


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


class Leaf:
    def __init__(self, value):
        self.value, self.left, self.right = value, None, None


def grown(v):
    root = Leaf(v[0])
    for x in v[1:]:
        leaf = root
        while True:
            if x < leaf.value:
                if leaf.left is None:
                    leaf.left = Leaf(x)
                    break
                leaf = leaf.left
            else:
                if leaf.right is None:
                    leaf.right = Leaf(x)
                    break
                leaf = leaf.right
    return root.value


def test_a_tree_that_a_loop_makes_is_refused_at_its_line_after_a_few_blocks():
    traced = []

    def count(frame, event, _):
        if event == "call" and frame.f_code is compat.trace.__code__:
            traced.append(1)

    sys.setprofile(count)  # a wrapper of ours around `trace` would be the user's line
    try:
        with pytest.raises(TransformError, match=r"at .*test_recursion.py:\d+ in grown\n  hint"):
            jax.jit(autograph(grown))(jax.numpy.arange(8.0))
    finally:
        sys.setprofile(None)
    assert 0 < len(traced) < 350  # 637 with one for each thing that a name may be


def test_an_attribute_that_only_some_of_the_candidates_have_is_read_where_they_do():
    def value(v):
        one, other = Leaf(v[0]), Leaf(v[1])
        if v[2] > 0:
            other.extra = v[2]
        leaf = one if v[0] < 0 else other
        one.extra = 7.0
        return leaf.extra

    for v in ([-1.0, 2.0, -3.0], [1.0, 2.0, 3.0]):
        assert jax.jit(autograph(value))(jax.numpy.array(v)) == value(v)
    assert jax.numpy.isnan(jax.jit(autograph(value))(jax.numpy.array([1.0, 2.0, -3.0])))


def test_a_recursion_that_branches_is_refused_before_it_takes_minutes():
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    assert jax.jit(autograph(fibonacci, max_steps=5))(5) == 5
    with pytest.raises(TransformError, match=r"in more than 2000 ways(.|\n)*test_recursion.py:\d+"):
        jax.jit(autograph(fibonacci, max_steps=30))(5)
