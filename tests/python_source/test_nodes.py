"""Trees that other tools write on: what is copied, and what is not."""

import ast

import jax.numpy as jnp
import pytest

import malleable as mal
from malleable.errors import explain
from malleable.python_source.nodes import SHARED, copied

OPERATIONS = "not -x and (x + y < z or x[i] * 2 > ~y)"


@pytest.fixture
def written_on():
    """Every node of a tree knows its parent, as after a traceback of IPython."""
    tree = ast.parse(OPERATIONS)
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            child.parent = node
    yield tree
    for node in ast.walk(tree):
        vars(node).pop("parent", None)


def test_a_copy_does_not_take_along_what_hangs_on_what_all_trees_share(written_on):
    other = ast.parse("a + b\nnot -c").body
    for tree in (other, other[0]):
        made = copied(tree)
        for node in ast.walk(made[0] if isinstance(made, list) else made):
            assert isinstance(node, SHARED) or not hasattr(node, "parent")
    assert [*map(ast.unparse, copied(other))] == ["a + b", "not -c"]
    assert copied(other)[0].value.left is not other[0].value.left


def untouched():
    return all(vars(n) == {} for n in ast.walk(ast.parse(OPERATIONS)) if isinstance(n, SHARED))


def test_nothing_hangs_there_after_an_explained_error_or_a_step():
    def fun(x):
        y = jnp.sin(x) + 1
        return y if y > 0 else -y

    def other(x):
        return jnp.sin(-x) * 2 + x

    assert untouched()
    with pytest.raises(Exception, match="Tracer") as caught, explain():
        mal.stage(fun)(1.0)
    assert caught.value.__notes__
    session = mal.step(other)(1.0)
    session.break_at("x > 100")
    session.cont()
    str(session)
    assert untouched()
