"""`check_rule` passes what is right and names what is wrong, with the input that shows it."""

import jax
import pytest
from jax import lax
from jax import numpy as jnp

from malleable.errors import RuleError
from malleable.rewriting.check import check_rule
from malleable.rewriting.rules.rules import NoMatch, rule
from malleable.rewriting.rules.wildcards import Arr, Fun, Lit, Prim, Static
from malleable.rewriting.streaming.region.sinks import SINKS, sink

pytestmark = pytest.mark.caches  # it compiles much: the leak check would collect garbage each time


@pytest.mark.parametrize(
    ("pattern", "replacement", "level"),
    [
        (lambda x: x.T.T, lambda x: x, "exact"),
        (lambda x: jnp.sin(x) + 1 + jnp.cos(x), lambda x: jnp.sin(x) + (1 + jnp.cos(x)), "reassoc"),
        (lambda x: jnp.log(jnp.exp(x)), lambda x: x.astype(jnp.log(x).dtype), "fast"),
    ],
)
def test_a_right_rule_passes(pattern, replacement, level):
    check_rule(rule(pattern, replacement, level=level, name="right"), n=4)


def test_the_ends_of_the_integers_are_drawn():
    @rule(level="exact")
    def grows(x: Arr[jnp.int32]):
        return x + 1 > x, x == x

    with pytest.raises(RuleError, match="False became True"):
        check_rule(grows, n=3)


def test_wildcards_of_every_kind_are_drawn():
    @rule
    def scaled(x: Arr[jnp.floating], c: Lit, axis: Static):
        return jnp.sum(x * c, axis), jnp.sum(x, axis) * c

    check_rule(scaled, n=3)

    @rule
    def even(x, p: Prim["cos", "abs"]):  # noqa: F821
        return p(-x), p(x)

    check_rule(even, n=3)

    @rule
    def total(xs: Arr["n", jnp.floating], f: Fun):  # noqa: F821
        add = lambda c, x: (c + f(x), None)
        return jnp.sum(lax.map(f, xs)), lax.scan(add, jnp.zeros((), xs.dtype), xs)[0]

    check_rule(total, n=3)


@pytest.mark.parametrize(
    ("what", "pattern", "replacement", "level"),
    [
        ("value", lambda x: x + x, lambda x: 3 * x, "fast"),
        ("value", lambda x: jnp.sort(x)[..., 0], lambda x: jnp.min(x, -1), "reassoc"),  # NaN
        ("value", lambda x: jnp.max(x, -1), lambda x: jnp.sort(x)[..., -2], "reassoc"),  # ties
        ("value", lambda x: x * 1, lambda x: jnp.where(x > 6, 0, x), "reassoc"),  # infinities
        ("jvp", lambda x: abs(x), lambda x: jnp.maximum(lax.stop_gradient(x), -x), "reassoc"),
        ("value", lambda a, b, c: a * b + a * c, lambda a, b, c: a * (b + c), "exact"),
    ],
)
def test_a_wrong_rule_is_named_with_its_input(what, pattern, replacement, level):
    bad = rule(pattern, replacement, level=level, name="bad")
    with pytest.raises(
        RuleError, match=rf"(?s)'bad' .*changes the {what}.* became .*test_check.*x = |a = "
    ):
        check_rule(bad)


def test_exact_means_the_sign_of_zero_too():
    @rule(level="exact")
    def unsigned_zero(x: Arr[jnp.floating]):
        return jnp.where(x == 0, 0, x), x

    with pytest.raises(RuleError, match=r"changes the value.*: 0.0 became -0.0"):
        check_rule(unsigned_zero, grad=False)


def test_an_overflow_in_half_precision_is_seen():
    @rule
    def sum_of_multiple(x: Arr[jnp.floating], c: Arr["", jnp.floating]):  # noqa: F722
        return jnp.sum(x * c), jnp.sum(x) * c

    with pytest.raises(RuleError, match=r"(?s)became inf.*float16"):
        check_rule(sum_of_multiple, n=1)
    check_rule(sum_of_multiple, n=1, dtypes=["float32"])


def test_a_rule_that_is_right_for_few_elements_only_is_seen():
    with pytest.raises(RuleError, match="changes the value"):
        check_rule(rule(lambda x: jnp.sum(x, 0), lambda x: jnp.sum(x[:5], 0), name="six"), n=1)


def test_a_wrong_rule_for_vmap_is_seen():
    @jax.custom_batching.custom_vmap
    def odd(x):
        return x + 1

    @odd.def_vmap
    def _(size, batched, x):
        return x + 2, True

    with pytest.raises(RuleError, match="changes the vmap"):
        check_rule(rule(lambda x: x + 1, odd, name="odd"), n=2, grad=False)
    check_rule(rule(lambda x: x + 1, odd, name="odd"), n=2, grad=False, vmap=False)


def test_a_replacement_that_does_not_fit_some_dtype_is_seen():
    with pytest.raises(RuleError, match=r"is int32.* where the pattern is float32"):
        check_rule(rule(lambda x: jnp.exp(jnp.log(x)), lambda x: x, name="bad"))


def test_a_rule_nobody_can_feed_is_an_error():
    @rule
    def shy(x, y):
        if x.shape != (5, 5):
            raise NoMatch("another shape")
        return x @ y, y

    with pytest.raises(RuleError, match="no input was found"):
        check_rule(shy, n=1, dtypes=["float32"])


def test_what_is_no_rule_cannot_be_checked():
    with pytest.raises(TypeError, match="a rule with a pattern"):
        check_rule(lambda x: x)


# ---------------------------------------------------------------- sinks


@pytest.mark.in_turns
@pytest.mark.parametrize("sink", SINKS, ids=lambda sink: sink.name)
def test_the_sinks_that_come_along_pass(sink):
    check_rule(sink, n=4, dtypes=["float32", "int32", "bfloat16", "bool"])


def mean_square(**changes):
    parts = {
        "init": lambda x: (jnp.zeros(x.shape[1:]), 0),
        "step": lambda acc, start, x: (acc[0] + (x**2).sum(0), acc[1] + x.shape[0]),
        "merge": lambda a, b: (a[0] + b[0], a[1] + b[1]),
        "final": lambda acc: acc[0] / acc[1],
    }
    return sink(lambda x: (x**2).mean(0), **(parts | changes))


def test_a_sink_of_the_users_passes():
    check_rule(mean_square(), n=4, dtypes=["float32"])


def test_a_merge_that_is_not_associative_is_named():
    halves = mean_square(merge=lambda a, b: ((a[0] + b[0]) / 2, a[1] + b[1]))
    with pytest.raises(RuleError, match=r"merge is not associative: .* and "):
        check_rule(halves, n=4, dtypes=["float32"])


def test_a_step_that_forgets_is_named():
    forgets = mean_square(step=lambda acc, start, x: ((x**2).sum(0), acc[1] + x.shape[0]))
    with pytest.raises(RuleError, match="block by block it is not what it is on the whole"):
        check_rule(forgets, n=4, dtypes=["float32"])
