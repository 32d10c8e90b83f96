"""Keys of a dict that a traced test sets or deletes: whether they are there is a traced boolean."""

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph

V = np.array([3.0, 1, 4, 1, 5, 9, 2, 6])


def agree(f, *examples):
    compiled = jax.jit(autograph(f))
    for x in examples:
        want, got = f(x), compiled(x)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, want)


def test_a_key_of_one_path_is_asked_for():
    def f(x):
        d = {"b": 1.0}
        if x > 2:
            d["a"] = x
        else:
            del d["b"]
        try:
            found = d["a"]
        except KeyError:
            found = -1.0
        return found, d.get("a", -2.0), "a" in d, "b" not in d, len(d), "c" in d

    agree(f, 1.0, 3.0)


def test_keys_are_counted_in_a_loop():
    def f(v):
        d, e = {}, {}
        for x in v:
            if x > 3:
                d["large"] = d.get("large", 0) + 1
            key = "hi" if x > 2 else "lo"
            if key in e:
                e[key] += x
            else:
                e[key] = x
        return d.get("large", 0), len(d), e["hi"], e["lo"]

    agree(f, V)


def test_a_key_that_every_path_sets_in_the_end_is_like_any_other():
    def f(x):
        d = {}
        if x > 2:
            d["a"] = x
        d["a"] = 5.0
        return sum(d[k] for k in d)

    agree(f, 1.0, 3.0)


def test_without_a_handler_a_key_that_is_not_there_is_nan():
    def f(x):
        d = {}
        if x > 2:
            d["a"] = x
        return d["a"]

    compiled = jax.jit(autograph(f))
    assert np.isnan(compiled(1.0)) and compiled(3.0) == 3


@pytest.mark.parametrize("use", [list, lambda d: d.items(), lambda d: dict(**d)])
def test_what_goes_over_the_keys_is_refused(use):
    def f(x):
        d = {}
        if x > 2:
            d["a"] = x
        return len(list(use(d)))

    with pytest.raises(TransformError, match=r"the key 'a' on one path only(.|\n)*test_keys\.py"):
        jax.jit(autograph(f))(1.0)
