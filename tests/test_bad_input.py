"""Bad input is refused with the user's line, what differs, and one way out."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import (
    RuleError,
    TransformError,
    UnhandledError,
    compat,
    interpret,
    live,
    next_key,
    param,
    plant,
    reap,
    tag,
)
from malleable.core.frame import Frame
from malleable.core.interpret import Rulebook, run
from tests.rules import again, refusal

SIN = lax.sin_p
either = pytest.mark.parametrize("transform", [interpret, live])


def sine(x):
    return jnp.sin(x)


def steps(x):
    return lax.scan(lambda c, _: (sine(c), None), x, length=3)[0]


def until(x):
    return lax.while_loop(lambda c: c < 0.1, sine, x)


# ------------------------------------------------------------ a rule that returns the wrong thing


def a_pair(frame, x, **params):
    return x, x


def nothing(frame, x, **params):
    return None


def a_vector(frame, x, **params):
    return jnp.ones(3)


def an_integer(frame, x, **params):
    return jnp.int32(1)


def half_precision(frame, x, **params):
    return x.astype(jnp.float16)


def text(frame, x, **params):
    return "one"


@either
@pytest.mark.parametrize("around", [lambda f: f, jax.jit, lambda f: steps], ids=["", "jit", "scan"])
@pytest.mark.parametrize(
    ("rule", "got"),
    [
        (a_pair, "[float32[], float32[]]"),
        (nothing, "[]"),
        (a_vector, "[float32[3]]"),
        (an_integer, "[int32[]]"),
        (half_precision, "[float16[]]"),
        (text, "'one'"),
    ],
)
def test_a_rule_that_returns_the_wrong_number_shape_or_dtype(rule, got, around, transform):
    error = refusal(RuleError, lambda: transform(around(sine), {SIN: rule})(0.5), 1, fun=sine)
    assert (
        f"rule `{rule.__name__}` for `sin` returned {got} where [float32[]] belongs" == error.what
    )
    assert "frame.bind(*args)" in error.hint


# ------------------------------------------------------------ a tag written twice


def tagged_twice(x):
    y = tag(x, "a")
    return tag(y + 1, "a")


def test_a_tag_written_twice_names_both_lines():
    error = refusal(TransformError, lambda: reap(tagged_twice)(1.0), 2, fun=tagged_twice)
    first = tagged_twice.__code__.co_firstlineno + 1
    both = (
        rf"'a' is written twice \(\S*:{first} in tagged_twice and \S*:{first + 1} in tagged_twice\)"
    )
    assert re.fullmatch(both, error.what)
    assert "its own name" in error.hint


def test_a_tag_written_twice_by_one_line_says_so():
    body = jax.jit(lambda x: tag(sine(x), "a"))
    error = refusal(TransformError, lambda: reap(lambda x: body(x) + body(x))(1.0))
    assert re.search(r"'a' is written twice \(both times by \S*test_bad_input", error.what)


# ------------------------------------------------------------ a feed missing, or of the wrong size


def fed(frame, x, **params):
    return frame.read("w")


@either
@pytest.mark.parametrize("program", [sine, jax.jit(sine), steps, until])
def test_a_missing_feed(program, transform):
    do = lambda: transform(program, {SIN: fed}, shared={"other": 1.0})(0.05)
    error = refusal(TransformError, do, 1, fun=sine)
    assert error.what == "'w' is read, and nothing is fed in under that name"
    assert error.hint == "feed it; the names fed in are: 'other'"


@either
@pytest.mark.parametrize(
    ("program", "feed", "what"),
    [
        (steps, jnp.ones(2), "the scan runs 3 steps, the feed has 2"),
        (steps, 1.0, "the scan runs 3 steps, the feed has no leading axis"),
        (until, jnp.ones(3), "a while loop has no known length, the feed has 3"),
        (
            lambda x: lax.scan(lambda c, _: (steps(c), None), x, length=2)[0],
            jnp.ones((2, 4)),
            "the scan runs 3 steps, the feed has 4",
        ),
    ],
)
def test_a_feed_of_the_wrong_leading_size(program, feed, what, transform):
    do = lambda: transform(program, {SIN: fed}, feeds={"w": feed})(0.05)
    error = refusal(TransformError, do, 1, fun=sine)
    assert error.what == f"'w' cannot be fed here: {what}"


def tagged_steps(x):
    return lax.scan(lambda c, _: (tag(c, "a"), None), x, length=3)[0]


def test_a_planted_value_of_the_wrong_leading_size():
    do = lambda: plant(tagged_steps)({"a": jnp.ones(4)}, 1.0)
    error = refusal(TransformError, do)
    assert error.what == "'a' cannot be fed here: the scan runs 3 steps, the feed has 4"
    assert error.hint == "feed one value per step, each of the shape read here"


# ------------------------------------------------------------ nothing around


def drawn():
    return jax.random.uniform(next_key())


def weight():
    return param("w", jax.nn.initializers.ones, (2,))


@pytest.mark.parametrize(
    ("fun", "what", "hint"),
    [
        (drawn, "next_key() is called, and no key is around", "seed(fun)(key, ...)"),
        (weight, "param() is called, and no parameters are around", "init(fun)(key, ...)"),
    ],
)
@pytest.mark.parametrize(
    "around", [lambda f: f, jax.jit, jax.checkpoint, lambda f: interpret(f, {})]
)
def test_next_key_and_param_with_nothing_around(fun, what, hint, around):
    error = refusal(UnhandledError, lambda: around(fun)(), 1, fun=fun)
    assert error.what == what
    assert hint in error.hint


# ------------------------------------------------------------ a carry that changes


def grow(frame, x, **params):
    frame.carry = (frame.carry, 1.0)
    return frame.bind(x)


def widen(frame, x, **params):
    frame.carry = jnp.stack([frame.carry, frame.carry])
    return frame.bind(x)


@either
@pytest.mark.parametrize(("program", "loop"), [(steps, "a scan"), (until, "a while loop")])
@pytest.mark.parametrize(("rule", "after"), [(grow, "(int32[], float32[])"), (widen, "int32[2]")])
def test_a_carry_that_changes_inside_a_loop(rule, after, program, loop, transform):
    do = lambda: transform(program, {SIN: rule}, carry=0)(0.05)
    error = refusal(TransformError, do, 1, fun=program)
    assert error.what == f"the carry changes its type inside {loop}: int32[] and {after}"
    assert "start it with the type it ends with" in error.hint


def test_a_carry_that_changes_in_the_test_of_a_loop():
    program = lambda x: lax.while_loop(lambda c: sine(c) > 2, lambda c: c + 1, x)
    do = lambda: interpret(program, {SIN: grow}, carry=0)(0.5)
    assert "inside a while loop" in refusal(TransformError, do).what


# ------------------------------------------------------------ an unknown higher-order primitive

foreign_p = compat.Primitive("foreign")
foreign_p.multiple_results = True
foreign_p.def_abstract_eval(lambda *avals, jaxpr: list(jaxpr.out_avals))
foreign_p.def_impl(lambda *args, jaxpr: run(jaxpr, args, Rulebook({}), Frame()))


def foreign(x):
    return foreign_p.bind(x, jaxpr=jax.make_jaxpr(jnp.sin)(x))[0]


@either
def test_an_unknown_higher_order_primitive(transform):
    error = refusal(TransformError, lambda: transform(foreign, {SIN: again})(0.5), 1, fun=foreign)
    assert "a rule applies inside `foreign`, which cannot be entered" in error.what
    assert "malleable does not know" in error.what
    assert "give the primitive itself a rule" in error.hint


@either
@pytest.mark.parametrize("rules", [{}, {lax.cos_p: again}, {foreign_p: again, SIN: again}])
def test_an_unknown_primitive_is_left_alone_where_nothing_inside_has_a_rule(rules, transform):
    assert transform(foreign, rules)(0.5)[0] == jnp.sin(0.5)
