"""Names in scopes are nested dicts outside, and paths inside."""

import jax
import jax.numpy as jnp
import pytest

from malleable import TransformError, init, param, plant, reap, scope, tag
from malleable.effects.names import full_path, nest, unnest


def test_a_scope_is_a_block_or_wraps_a_function():
    def block(x):
        with scope("s"):
            return tag(x, "y")

    wrapped = scope("s")(lambda x: tag(x, "y"))
    assert reap(block)(1.0) == reap(wrapped)(1.0) == (1.0, {"s": {"y": 1.0}})


def test_scopes_nest():
    with scope("a"), scope("b"):
        assert full_path("y") == ("a", "b", "y")
    assert full_path("y") == ("y",)


def test_a_scope_may_be_used_again():
    layer = scope("s")(lambda x, name: tag(x, name))
    assert reap(lambda x: layer(layer(x, "y"), "z"))(1.0)[1] == {"s": {"y": 1.0, "z": 1.0}}


def test_a_tuple_is_a_name_in_scopes_of_its_own():
    program = lambda x: tag(x, ("a", "y"))
    assert reap(program)(1.0)[1] == {"a": {"y": 1.0}}
    assert plant(program)({"a": {"y": 2.0}}, 1.0) == 2.0


def test_a_slash_is_no_scope():
    program = lambda x: scope("a")(lambda: tag(tag(x, ("b",)) + 1, "c"))() + tag(x, "a/b")
    assert reap(program)(1.0)[1] == {"a": {"b": 1.0, "c": 2.0}, "a/b": 1.0}


def test_a_scope_ends_with_an_error():
    with pytest.raises(ZeroDivisionError), scope("s"):
        raise ZeroDivisionError
    assert full_path("y") == ("y",)


@pytest.mark.caches  # one jitted function in two scopes: the scope is part of the key of the cache
def test_a_jitted_function_has_its_names_in_each_scope():
    layer = jax.jit(lambda x: tag(x, "y"))
    net = lambda x: scope("b")(layer)(scope("a")(layer)(x))
    assert reap(net)(1.0)[1] == {"a": {"y": 1.0}, "b": {"y": 1.0}}


@pytest.mark.parametrize("name", [3, None, ["a"], ("a", 3)])
@pytest.mark.parametrize("use", [lambda n: reap(lambda x: tag(x, n))(1.0), lambda n: full_path(n),
                                 lambda n: init(lambda: param(n, jnp.zeros, ()))(jax.random.key(0)),
                                 lambda n: scope(n).__enter__()])  # fmt: skip
def test_a_name_is_a_string_or_a_tuple_of_them(use, name):
    with pytest.raises(TypeError, match="name is a string or a tuple of strings, not "):
        use(name)


def test_nested_dicts_come_from_paths_and_lead_back():
    flat = {("a", "b"): (1, ""), ("a", "c"): (2, ""), ("d",): (3, "")}
    tree = nest(flat)
    assert tree == {"a": {"b": 1, "c": 2}, "d": 3}
    assert unnest(tree, flat) == {q: value for q, (value, _) in flat.items()}


def test_a_value_may_be_a_dict_where_a_name_ends():
    assert unnest({"a": {"b": 1}}, [("a",)]) == {("a",): {"b": 1}}


def value_then_scope(x):
    y = tag(x, "d")
    with scope("d"):
        return tag(y, "p")


def scope_then_value(x):
    with scope("d"):
        y = tag(x, "p")
    return tag(y, "d")


@pytest.mark.parametrize("program", [value_then_scope, scope_then_value])
def test_one_name_is_not_both_a_value_and_a_scope(program):
    text = (
        r"'d' names both a value and a scope \(.*test_names\.py:\d+ in {0} and .*:\d+ in {0}\)"
        r"\n  at .*test_names\.py:\d+ in {0}\n  hint: rename one of them"
    ).replace("{0}", program.__name__)
    with pytest.raises(TransformError, match=text):
        reap(program)(1.0)
