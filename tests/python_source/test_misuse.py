"""A call that does not fit is refused at the user's line, with how it is written."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import malleable as mal

X = jnp.arange(3.0)
KEY = jax.random.key(0)
ONES = jax.nn.initializers.ones


def fun(x):
    return jnp.sin(x)


def net(x):
    return x * mal.param("w", ONES, (3,))


AT_ONCE = [
    *("communication", "cost", "cotangents", "explain", "first_nonfinite", "mutable", "reap"),
    *("show", "step", "trace_calls", "unstage"),
]


@pytest.mark.parametrize("name", AT_ONCE)
def test_arguments_given_at_once_are_told_of_the_second_call(name):
    hint = rf"second call: {name}\(fun.*\)\(\*args\)"
    with pytest.raises(TypeError, match=rf"\n  at .*test_misuse\.py:\d+ in .*\n  hint: .*{hint}"):
        getattr(mal, name)(fun, X)


WRONG = [
    (lambda: mal.first_nonfinite(fun, hiden=True), "write hidden=..."),
    (lambda: mal.show(fun, passes=mal.cse), "passes is a list"),
    (lambda: mal.show(fun, hlo="text"), "hlo is True or False or 'optimised'"),
    (lambda: mal.as_scan(fun), r"write carry, step = as_scan\(fun, xs\)"),
    (lambda: mal.as_scan(fun, X, axis="a"), "axis is an integer, not 'a'"),
    (lambda: mal.interpret(fun), r"write interpret\(fun, \{primitive: rule\}\)"),
    (lambda: mal.init(lambda: mal.param("w", (3,)))(KEY), r"init is a function, not \(3,\)"),
    (
        lambda: mal.init(lambda: mal.param("w", ONES))(KEY),
        r"cannot be called with \(key\)",
    ),
    (lambda: mal.init(net)(KEY), r"write init\(fun\)\(key, \*args\)"),
    (lambda: mal.apply(net)(X), "apply: params is a dict, not Array"),
    (lambda: mal.apply(net)({"w": X}), r"write apply\(fun\)\(params, \*args\)"),
    (lambda: mal.plant(fun)(X), "plant: values is a dict"),
    (lambda: mal.seed(fun)(), r"write seed\(fun\)\(key, \*args\)"),
    (lambda: mal.tag(X), r"write tag\(value, 'name'\)"),
    (lambda: mal.tag(X, "y", mode="any"), "mode is 'stack', 'unique'"),
    (lambda: mal.optimize(fun, mal.stream(blok=3)), "write block=..."),
    (lambda: mal.fold(limit="1"), "limit is an integer"),
    (lambda: mal.autograph(fun, mode="all"), "mode is 'full' or 'explicit'"),
    (lambda: mal.autograph(fun, max_step=3), "write max_steps=..."),
    (lambda: mal.jit(fun, on_break="stop"), r"write jit\(fun\)"),
    (
        lambda: mal.jit(fun, static_argnums="x"),
        "static_argnums is an integer, a list or tuple, 'auto'",
    ),
    (lambda: mal.load(fun), "path is a string or a path"),
    (lambda: mal.skip("f"), "skip takes a function, not 'f'"),
]


@pytest.mark.parametrize(("wrong", "told"), WRONG)
def test_a_call_that_does_not_fit_says_how_it_is_written(wrong, told):
    with pytest.raises((TypeError, ValueError), match=told) as error:
        wrong()
    assert "test_misuse.py" in str(error.value) and "\n  hint: " in str(error.value)


def test_explain_is_a_block():
    with pytest.raises(TypeError, match=r"takes no function\n  hint: .*with explain\(\)"):
        mal.errors.explain(fun)  # pyright: ignore[reportArgumentType]


def test_an_error_inside_of_the_users_code_stays_as_it_is():
    def initializer(key, shape):
        return len(3)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match=r"^object of type 'int' has no len\(\)"):
        mal.init(lambda: mal.param("w", initializer, (3,)))(KEY)
    with pytest.raises(TypeError, match=r"^fun\(\) takes 1 positional argument but 2 were given"):
        mal.cost(fun)(X, X)
    with pytest.raises(TypeError, match="has no len"):
        mal.as_scan(lambda x: len(3), X)  # type: ignore[arg-type]


def test_what_is_decorated_keeps_its_name_and_signature():
    assert mal.reap.__name__ == "reap" and mal.tag(1.0, ("a", "b")) == 1.0
    assert mal.interpret(fun, {lax.sin_p: lambda frame, x, **_: x})(X)[0] is not None


@pytest.mark.parametrize("transform", [mal.cost, mal.reap, mal.first_nonfinite])
def test_a_function_of_numpy_is_refused_by_name(transform):
    told = r"np\.sin is .*\n  at .*\n  hint: transform autograph\(np\.sin\)"
    with pytest.raises(mal.TransformError, match=told):
        transform(np.sin)(X)
    transform(mal.autograph(np.sin))(X)
