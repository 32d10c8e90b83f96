"""Rules: what they match, what they leave alone, how they end, and what they say."""

import re

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.core.stage import stage
from malleable.errors import RuleError
from malleable.notes import listen
from malleable.programs.evaluate import evaluate
from malleable.rewriting.passes.passes import optimize
from malleable.rewriting.rules.rewriting import rewrite
from malleable.rewriting.rules.rules import NoMatch, alone, rule
from malleable.rewriting.rules.wildcards import Arr, Fun, Lit, Prim, Static
from tests.work import calls

neg = jnp.negative
x3 = jnp.array([0.1, 0.2, 0.7])
square = jnp.arange(9.0).reshape(3, 3) / 9


def prims(jaxpr):
    """The primitives of a program, with those of its bodies behind theirs; calls left out."""
    names = []
    for eqn in jaxpr.jaxpr.eqns:
        if eqn.primitive.name not in ("jit", "pjit"):
            names.append(eqn.primitive.name)
        for body in compat.bodies(eqn.params):
            names += prims(body)
    return names


def after(fun, *args, by, **options):
    """The primitives of fun(*args) after rewriting; the results stay what they were."""
    by = by if isinstance(by, list) else [by]
    program = stage(fun)(*args).jaxpr
    done = rewrite(*by, **options)(program)
    compat.check(done)
    leaves = [jnp.asarray(x) for x in jax.tree.leaves(args)]
    before, now = (jax.tree.leaves(evaluate(p, leaves)) for p in (program, done))
    for a, b in zip(before, now):
        np.testing.assert_allclose(np.asarray(a, np.complex128), np.asarray(b, np.complex128), 2e-2)
        assert a.dtype == b.dtype and a.weak_type == b.weak_type
    return prims(done)


@rule
def log_of_softmax(x):
    return jnp.log(jax.nn.softmax(x)), jax.nn.log_softmax(x)


@rule
def log_of_one_plus(x):
    return jnp.log(1 + x), jnp.log1p(x)


@rule
def neg_neg(x):
    return neg(neg(x)), x


# ---------------------------------------------------------------- what matches


@pytest.mark.in_turns
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4), (1, 1), (1,), (2, 0)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_one_rule_serves_every_rank_and_dtype(shape, dtype):
    x = jnp.ones(shape, dtype)
    found = after(lambda x: jnp.log(jax.nn.softmax(x)), x, by=log_of_softmax)
    assert found[-2:] == ["log", "sub"]  # of log_softmax


def test_weak_types_are_no_obstacle_and_stay():
    assert after(lambda x: jnp.log(x + 1), 2.0, by=log_of_one_plus) == ["log1p"]


def test_operands_commute():
    assert after(lambda x: jnp.log(x + 1), x3, by=log_of_one_plus) == ["log1p"]
    assert after(lambda x: jnp.log(1.0 + x), x3, by=log_of_one_plus) == ["log1p"]


def test_another_constant_does_not_match():
    assert after(lambda x: jnp.log(x + 2), x3, by=log_of_one_plus) == ["add", "log"]


def test_another_axis_does_not_match():
    f = lambda x: jnp.log(jax.nn.softmax(x, axis=0))
    assert after(f, square, by=log_of_softmax) == prims(stage(f)(square).jaxpr)


def test_a_pattern_made_of_calls_matches_with_and_without_them():
    pattern = rule(lambda c, x: jnp.where(c, x, x), lambda c, x: x, name="where_same")
    assert after(lambda c, x: jnp.where(c, x, x), x3 > 0, x3, by=pattern) == []
    assert after(lambda c, x: lax.select_n(c, x, x), x3 > 0, x3, by=pattern) == []


def test_a_pattern_of_plumbing_only_matches():
    twice = rule(lambda x: x.T.T, lambda x: x, name="transposed_twice")
    assert after(lambda x: x.T.T, jnp.ones((2, 3)), by=twice) == []


def test_products_of_every_precision_match_and_keep_it():
    matvec = rule(lambda a, b, v: (a @ b) @ v, lambda a, b, v: a @ (b @ v), name="matvec")

    def f(a, b, v):
        return jnp.matmul(jnp.matmul(a, b, precision="highest"), v, precision="highest")

    done = rewrite(matvec)(stage(f)(square, square, x3).jaxpr)
    assert [eqn.outvars[0].aval.shape for eqn in done.eqns] == [(3,), (3,)]
    assert {eqn.params["precision"] for eqn in done.eqns} == {(lax.Precision.HIGHEST,) * 2}


def test_several_results_are_matched_together():
    @rule
    def share(x, a, b):
        if a.ndim != 2 or b.ndim != 2:
            raise NoMatch("not matrices")
        both = x @ jnp.concatenate([a, b], 1)
        return (x @ a, x @ b), (both[..., : a.shape[1]], both[..., a.shape[1] :])

    found = after(
        lambda x, a, b: jnp.sin(x @ a) + jnp.cos(x @ b), square, square, square.T, by=share
    )
    assert found.count("dot_general") == 1


def test_results_that_depend_on_each_other_are_not_replaced_together():
    @rule
    def sum_and_difference(x, y):
        return (jnp.sin(x), jnp.cos(y)), (jnp.cos(x), jnp.sin(y))

    f = lambda x: jnp.cos(jnp.sin(x))
    assert after(f, x3, by=sum_and_difference) == ["sin", "cos"]


def test_a_chain_is_rewritten_to_its_end():
    f = lambda x: neg(neg(neg(neg(neg(x)))))
    assert after(f, x3, by=neg_neg) == ["neg"]


def test_what_one_rule_makes_another_finds():
    one = rule(lambda x: jnp.exp(jnp.log(x)), lambda x: jnp.cos(jnp.arccos(x)), name="one")
    two = rule(lambda x: jnp.cos(jnp.arccos(x)), lambda x: x, name="two")
    for by in ([one, two], [two, one]):
        assert after(lambda x: jnp.sin(jnp.exp(jnp.log(x))), x3, by=by) == ["sin"]


# ---------------------------------------------------------------- wildcards


def test_a_literal_is_known_to_the_replacement():
    @rule
    def times_twice(x, a: Lit, b: Lit):
        return (x * a) * b, x * (a * b)

    done = rewrite(times_twice)(stage(lambda x: (x * 2.0) * 4.0)(x3).jaxpr)
    assert [float(eqn.invars[1].val) for eqn in done.eqns] == [8.0]
    assert after(lambda x: (3 * x) * 2, jnp.arange(3), by=times_twice) == ["mul"]


def test_a_literal_may_be_a_param():
    @rule
    def power_of_power(x, n: Lit, m: Lit):
        if not isinstance(n, int) or not isinstance(m, int):
            raise NoMatch("no whole powers")
        return (x**n) ** m, x ** (n * m)

    assert after(lambda x: (x**3) ** 5, x3, by=power_of_power) == ["integer_pow"]


def test_a_setting_is_solved_from_the_params():
    @rule
    def sum_of_scaled(x, c: Lit, axis: Static):
        return jnp.sum(x * c, axis), jnp.sum(x, axis) * c

    for axis in (0, 1, -1, (0, 1), (0, 2)):
        f = lambda x, axis=axis: jnp.sum(x * 3.0, axis)
        assert after(f, jnp.ones((2, 3, 4)), by=sum_of_scaled) == ["reduce_sum", "mul"]


HALVES = np.dtype("bfloat16"), np.dtype("float16")


@pytest.mark.parametrize(
    "replacement",
    [
        lambda x, d: x,
        lambda x, d: lax.reduce_precision(x, jnp.finfo(d).nexp, jnp.finfo(d).nmant),
    ],
)
def test_a_setting_with_which_the_pattern_is_its_own_wildcard_is_passed_over(replacement):
    @rule
    def casts(x: Arr[jnp.float32], d: Static[HALVES]):
        return x.astype(d).astype(jnp.float32), replacement(x, d)

    program = stage(lambda x: jnp.sin(x).astype(jnp.bfloat16).astype(jnp.float32) * 2)(x3).jaxpr
    assert "convert_element_type" not in prims(rewrite(casts)(program))


def test_a_setting_with_which_the_replacement_is_the_pattern_is_passed_over():
    @rule
    def reshapes(x, s: Static[(25,), (5, 5)], t: Static[(25,), (5, 5)]):
        return x.reshape(s).reshape(t), x.reshape(t)

    fun = lambda x: jnp.sin(x).reshape(2, 3).reshape(3, 2) * 2
    assert after(fun, jnp.arange(6.0), by=reshapes) == ["sin", "reshape", "mul"]


@pytest.mark.parametrize(
    ("pattern", "replacement", "name"),
    [
        (lambda x: x.reshape(-1, 2).sum(1), lambda x: x[::2] + x[1::2], "add"),
        (lambda x: jnp.sum(x[:8] * x[8:16]), lambda x: x[:8] @ x[8:16], "dot_general"),
        (lambda x: jnp.prod(jnp.stack(jnp.split(x, 2))), jnp.prod, "reduce_prod"),
    ],
)
def test_a_pattern_may_need_a_size_that_can_be_divided(pattern, replacement, name):
    made = rule(pattern, replacement, name="divided")
    done = after(lambda x: pattern(jnp.cos(x)), jnp.linspace(0.5, 1.5, 16), by=made)
    assert name in done and not {"reduce_sum", "concatenate"} & set(done)


@pytest.mark.parametrize("written", [0, 0.0, jnp.float32(0), jnp.zeros_like])
@pytest.mark.parametrize("called", [0, 0.0, np.float32(0)])
def test_a_number_is_the_same_in_each_spelling(written, called):
    zero = lambda x: written(x) if callable(written) else written
    relu = rule(lambda x: jnp.where(x > 0, x, called), lambda x: lax.max(x, 0 * x), name="relu")
    assert "select_n" not in after(lambda x: jnp.where(x > 0, x, zero(x)), x3 - 0.2, by=relu)


def test_numbers_that_differ_do_not_match():
    relu = rule(lambda x: jnp.where(x > 0, x, 0), lambda x: lax.max(x, 0 * x), name="relu")
    for other in (-0.0, 1, 1e-9):
        assert "select_n" in after(lambda x, c=other: jnp.where(x > 0, x, c), x3 - 0.2, by=relu)


def test_one_result_may_be_made_of_another():
    def division(x, y):
        q = lax.div(x, y)
        return (q, lax.rem(x, y)), (q, x - q * y)

    x, y = jnp.array([7, -9, 5]), jnp.array([2, 4, -3])
    fun = lambda x, y: (lax.rem(x, y) + 1, lax.div(x, y) * 2)
    assert "rem" not in after(fun, x, y, by=rule(division))


def test_an_operation_of_a_set():
    @rule
    def even(x, p: Prim["cos", "cosh", "abs"]):  # noqa: F821
        return p(-x), p(x)

    for fun in (jnp.cos, jnp.cosh, jnp.abs):
        assert "neg" not in after(lambda x, fun=fun: fun(-x), x3, by=even)
    assert after(lambda x: jnp.sin(-x), x3, by=even) == ["neg", "sin"]


def test_dims_and_dtypes_may_be_said():
    @rule
    def gram(a: Arr["n n"], b: Arr["n d"]):  # noqa: F722
        return a @ b, b

    assert after(lambda a, b: a @ b, jnp.eye(3), jnp.ones((3, 2)), by=gram) == []
    assert after(lambda a, b: a @ b, jnp.ones((2, 3)), jnp.ones((3, 2)), by=gram) == ["dot_general"]

    @rule
    def whole(x: Arr[jnp.integer]):
        return jnp.abs(x) + jnp.abs(x), 2 * jnp.abs(x)

    assert after(lambda x: jnp.abs(x) + jnp.abs(x), jnp.arange(3), by=whole) == ["abs", "mul"]
    assert "add" in after(lambda x: jnp.abs(x) + jnp.abs(x), x3, by=whole)


def test_the_body_of_a_loop_is_a_function():
    @rule
    def sum_of_map(xs, f: Fun):
        def add(total, x):
            return total + f(x), None

        first = jax.eval_shape(f, xs[0])
        return jnp.sum(lax.map(f, xs), 0), lax.scan(add, jnp.zeros(first.shape, first.dtype), xs)[0]

    found = after(
        lambda xs, w: jnp.sum(lax.map(lambda x: jnp.tanh(w * x), xs), 0), x3, x3[0], by=sum_of_map
    )
    assert found == ["scan", "mul", "tanh", "add"]


def test_the_body_of_a_scan_with_a_carry_is_a_function():
    @rule
    def sum_of_scan(c, xs, f: Fun):
        def add(both, x):
            c, y = f(both[0], x)
            return (c, both[1] + y), None

        first = jax.eval_shape(f, c, xs[0])[1]
        start = c, jnp.zeros(first.shape, first.dtype)
        return lax.scan(f, c, xs)[1].sum(0), lax.scan(add, start, xs)[0][1]

    def f(c, xs, w):
        return lax.scan(lambda c, x: (c + w * x, jnp.sin(c)), c, xs)[1].sum(0)

    assert "reduce_sum" not in after(f, x3, square, 2.0, by=sum_of_scan)


# ---------------------------------------------------------------- where it happens


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: lax.scan(lambda c, y: (c + jnp.log(1 + y), c), x[0], x)[1],
        lambda x: lax.cond(x[0] > 0, lambda y: jnp.log(1 + y), lambda y: y, x),
        lambda x: lax.while_loop(lambda c: c[0] < 1, lambda c: jnp.log(1 + c) + 1, x),
        lambda x: jax.checkpoint(lambda y: jnp.log(1 + y))(x),
        lambda x: jax.jit(lambda y: jnp.log(1 + y), donate_argnums=0)(x * 2),
        lambda x: jax.vmap(lambda y: jnp.log(1 + y))(x),
        lambda x: lax.scan(
            lambda c, y: (lax.cond(y > 0, lambda z: jnp.log(1 + z), lambda z: z, y), c), x[0], x
        )[1],
    ],
)
def test_bodies_are_rewritten_too(fun):
    found = after(fun, x3, by=log_of_one_plus)
    assert "log1p" in found and "log" not in found


def test_a_custom_derivative_is_kept():
    @jax.custom_jvp
    def f(x):
        return jnp.log(1 + x)

    f.defjvp(lambda primals, tangents: (f(*primals), 7 * tangents[0]))
    done = rewrite(log_of_one_plus)(stage(f)(2.0).jaxpr)
    assert prims(done) == ["custom_jvp_call", "log1p"]
    assert jax.grad(lambda x: evaluate(done, [x])[0])(2.0) == 7


def test_a_function_with_a_custom_derivative_can_be_a_pattern():
    @jax.custom_jvp
    def f(x):
        return jnp.sin(x)

    f.defjvp(lambda primals, tangents: (f(*primals), tangents[0]))
    done = rewrite(rule(lambda x: f(f(x)), f, name="once"))(stage(lambda x: f(f(x)))(2.0).jaxpr)
    assert prims(done) == ["custom_jvp_call", "sin"]
    other = stage(lambda x: jnp.sin(jnp.sin(x)))(2.0).jaxpr
    assert rewrite(rule(lambda x: f(f(x)), f, name="once"))(other) is other


def test_effects_stay_in_order():
    def f(x):
        jax.debug.print("a {}", x)
        y = jnp.log(1 + x)
        jax.debug.print("b {}", y)
        return y

    def prints(x):
        jax.debug.print("a {}", x)
        jax.debug.print("b {}", x)

    done = rewrite(log_of_one_plus)(stage(f)(x3).jaxpr)
    assert [prim for prim in prims(done) if prim != "log1p"] == prims(stage(prints)(x3).jaxpr)


def test_a_new_equation_has_the_line_of_the_user_and_the_name_of_the_rule():
    def f(x):
        return jnp.log(1 + x)

    (eqn,) = rewrite(log_of_one_plus)(stage(f)(x3).jaxpr).eqns
    assert compat.place(eqn)[1] == f.__code__.co_firstlineno + 1
    assert "log_of_one_plus" in str(eqn.source_info.name_stack)


def test_a_program_without_a_match_is_given_back_as_it_is():
    program = stage(lambda x: jnp.sin(x) + jnp.sin(x))(x3).jaxpr
    assert rewrite(log_of_one_plus)(program) is program


def test_a_second_run_changes_nothing():
    done = rewrite(log_of_softmax)(stage(lambda x: jnp.log(jax.nn.softmax(x)))(x3).jaxpr)
    assert rewrite(log_of_softmax)(done) is done


@pytest.mark.parametrize(
    "transform",
    [
        jax.jit,
        jax.grad,
        jax.checkpoint,
        jax.vmap,
        lambda f: jax.jit(jax.hessian(f)),
    ],
)
def test_rewriting_composes_with_transformations(transform):
    def f(x):
        return jnp.log(jax.nn.softmax(jnp.log(1 + x))).mean()

    fast = optimize(f, rewrite(log_of_softmax, log_of_one_plus))
    want = transform(f)(square)
    np.testing.assert_allclose(transform(fast)(square), want, 1e-4, 1e-6)
    inside = optimize(transform(f), rewrite(log_of_softmax, log_of_one_plus))
    np.testing.assert_allclose(inside(square), want, 1e-4, 1e-6)


def test_rewriting_works_inside_and_outside_of_shard_map():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("d",))
    split = jax.sharding.PartitionSpec("d")

    def f(x):
        return jnp.log(jax.nn.softmax(jnp.log(1 + x) * jnp.arange(3.0)))

    def mapped(f):
        return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=split, out_specs=split))

    x = jnp.ones((4, 3))
    rules = rewrite(log_of_softmax, log_of_one_plus)
    for g in (mapped(optimize(f, rules)), optimize(mapped(f), rules)):
        np.testing.assert_allclose(g(x), f(x), 1e-5)
        assert "log1p" in str(jax.make_jaxpr(g)(x))


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), None])
@pytest.mark.parametrize("keepdims", [False, True])
def test_two_settings_match_in_every_combination(axis, keepdims):
    @rule
    def by_hand(x, axis: Static, keepdims: Static):
        whole = jnp.log(jnp.sum(jnp.exp(x), axis=axis, keepdims=keepdims))
        return whole, jax.nn.logsumexp(x, axis=axis, keepdims=keepdims)

    fun = lambda x: jnp.log(jnp.sum(jnp.exp(x), axis=axis, keepdims=keepdims))
    assert "reduce_max" in after(fun, jnp.ones((2, 3, 4)), by=by_hand)


# ---------------------------------------------------------------- declining


def test_a_replacement_that_only_names_its_pattern_is_declined_with_a_note():
    fused = jax.jit(lambda x, b: jnp.tanh(x + b))
    named = rule(lambda x, b: jnp.tanh(x + b), lambda x, b: fused(x, b), name="named")
    with listen() as heard:
        assert after(lambda x, b: jnp.tanh(x + b), x3, x3, by=named) == ["add", "tanh"]
    assert [n.what for n in heard] == ["rule 'named' declined"]
    assert "a jitted function is its body" in heard[0].why


def test_a_pattern_within_a_body_of_its_replacement_is_replaced_once():
    kept = rule(lambda x: jnp.tanh(x), lambda x: jax.checkpoint(jnp.tanh)(x), name="kept")
    found = after(lambda x: 2 * jnp.tanh(x), x3, by=kept)
    assert found.count("tanh") == 1 and len(found) == 3


def test_a_reason_to_decline_becomes_a_note():
    @rule
    def matrices_only(x):
        if x.ndim != 2:
            return NoMatch("not a matrix")
        return neg(neg(x)), x

    with listen() as heard:
        assert after(lambda x: neg(neg(x)), x3, by=matrices_only) == ["neg", "neg"]
    assert [(n.what, n.why) for n in heard] == [("rule 'matrices_only' declined", "not a matrix")]
    assert re.search(r"test_rules\.py:\d+", heard[0].where)


def test_a_guard_sees_the_match():
    guarded = rule(
        lambda x: neg(neg(x)), lambda x: x, name="g", where=lambda m: m.aval("x").size > 3
    )
    assert after(lambda x: neg(neg(x)), x3, by=guarded) == ["neg", "neg"]
    assert after(lambda x: neg(neg(x)), square, by=guarded) == []


def test_a_guard_may_raise_its_reason_and_answer_with_a_bool_of_numpy():
    def raises(match):
        raise NoMatch("why")

    shy = rule(lambda x: neg(neg(x)), lambda x: x, name="shy", where=raises)
    with listen() as heard:
        assert after(lambda x: neg(neg(x)), x3, by=shy) == ["neg", "neg"]
    assert [n.why for n in heard] == ["why"]
    sure = rule(lambda x: neg(neg(x)), lambda x: x, name="sure", where=lambda m: np.bool_(True))
    assert after(lambda x: neg(neg(x)), x3, by=sure) == []


def test_a_guard_that_answers_with_a_text_is_an_error():
    odd = rule(lambda x: neg(neg(x)), lambda x: x, name="odd", where=lambda m: "no")
    with pytest.raises(RuleError, match=r"(?s)guard of rule 'odd' returned 'no'.*test_rules\.py"):
        after(lambda x: neg(neg(x)), x3, by=odd)


def test_alone_declines_where_an_inner_value_is_used_elsewhere():
    shy = rule(lambda x: neg(neg(x)), lambda x: x, name="shy", where=alone)
    assert "neg" in after(lambda x: (neg(neg(x)), jnp.sin(-x)), x3, by=shy)
    assert after(lambda x: (neg(neg(x)), jnp.sin(x)), x3, by=shy) == ["sin"]


def test_levels_filter():
    fast = rule(lambda x: jnp.exp(jnp.log(x)), lambda x: x, name="f", level="fast")
    f = lambda x: jnp.exp(jnp.log(x))
    assert after(f, x3, by=fast) == ["log", "exp"]
    assert after(f, x3, by=fast, level="fast") == []
    assert after(lambda x: neg(neg(x)), x3, by=neg_neg, level="exact") == ["neg", "neg"]


# ---------------------------------------------------------------- errors


def test_a_replacement_of_another_shape_names_rule_and_line():
    bad = rule(lambda x: jnp.sin(jnp.sin(x)), lambda x: x.sum() if x.ndim == 1 else x, name="bad")
    with pytest.raises(
        RuleError,
        match=r"(?s)'bad' is float32\[\] where the pattern is float32\[3\].*test_rules\.py:\d+",
    ):
        after(lambda x: jnp.sin(jnp.sin(x)), x3, by=bad)


def test_a_replacement_of_another_dtype_names_rule_and_line():
    bad = rule(lambda x: jnp.sin(jnp.sin(x)), lambda x: x.astype("float32"), name="bad")
    with pytest.raises(RuleError, match=r"(?s)'bad' is float32.*float16.*test_rules\.py:\d+"):
        after(lambda x: jnp.sin(jnp.sin(x)), x3.astype("float16"), by=bad)


def test_rules_that_undo_each_other_are_named():
    there = rule(lambda x: x + x, lambda x: x * 2, name="there")
    back = rule(lambda x: x * 2, lambda x: x + x, name="back")
    with pytest.raises(
        RuleError, match=r"(?s)rules '(there|back)' and '(there|back)' undo each other.*test_rules"
    ):
        after(lambda x: x + x, x3, by=[there, back])


def test_all_rules_of_a_cycle_are_named():
    names = ["sin", "cos", "tan"]
    turn = [
        rule(getattr(jnp, a), getattr(jnp, b), name=f"{a} to {b}")
        for a, b in zip(names, names[1:] + names[:1], strict=True)
    ]
    with pytest.raises(RuleError, match="'sin to cos', 'cos to tan' and 'tan to sin' undo"):
        after(jnp.sin, x3, by=turn)


def test_one_rule_may_fire_often_on_the_same_operand():
    @rule
    def times_twice(x, a: Lit, b: Lit):
        return (x * a) * b, x * (a * b)

    f = lambda x: sum((x * float(i)) * 3.0 for i in range(2, 14))
    assert after(f, x3, by=times_twice).count("mul") == 12


def test_a_rule_that_grows_is_named():
    grow = rule(lambda x, y: x * y, lambda x, y: (2 * x) * (y / 2), name="grow")
    with pytest.raises(RuleError, match="'grow' never comes to rest"):
        after(lambda x, y: x * y, x3, x3 + 1, by=grow)


@pytest.mark.parametrize(
    ("why", "pattern", "replacement"),
    [
        ("a wildcard or a constant alone", lambda x: x, lambda x: x + 0),
        ("a wildcard or a constant alone", lambda x: 1.0, lambda x: x),
        ("does not use the wildcard 'y'", lambda x, y: jnp.sin(x), lambda x, y: y),
        ("contains the pattern", lambda x: jnp.sin(x), lambda x: 2 * jnp.sin(x) / 2),
        ("is float32", lambda x: jnp.sin(x), lambda x: x[None]),
        ("is PyTreeDef", lambda x: jnp.sin(x), lambda x: (x, x)),
        ("unhappy", lambda x: _raise(ValueError("unhappy")), lambda x: x),
    ],
)
def test_a_pattern_that_can_never_match_is_found_when_it_is_made(why, pattern, replacement):
    with pytest.raises(RuleError, match=rf"(?s)'it' can never match: .*{why}.*test_rules\.py:\d+"):
        rule(pattern, replacement, name="it")


def _raise(error):
    raise error


def test_effects_are_found_when_the_rule_is_made():
    def pattern(x):
        jax.debug.print("{}", x)
        return jnp.sin(x)

    with pytest.raises(RuleError, match="effect"):
        rule(pattern, jnp.sin)
    with pytest.raises(RuleError, match="effect"):
        rule(jnp.cos, pattern)


def test_what_is_no_wildcard_is_refused():
    with pytest.raises(RuleError, match="the wildcard 'y' of the rule has a default"):
        rule(lambda x, y=2.0: (x * y, y * x), name="scaled")
    with pytest.raises(TypeError, match="rule takes a function, not 'a'"):
        rule("a")


def test_a_rule_returns_a_pair():
    with pytest.raises(RuleError, match="does not return a pair"):
        rule(lambda x: jnp.sin(x))


def test_only_rules_are_taken():
    with pytest.raises(TypeError, match="decorate it with `rule`"):
        rewrite(jnp.sin)
    with pytest.raises(RuleError, match="levels are exact, reassoc, fast"):
        rule(jnp.sin, jnp.cos, level="loose")


# ---------------------------------------------------------------- cost


@pytest.mark.caches
def test_the_work_grows_with_the_program_and_not_faster():
    rules = [log_of_one_plus, neg_neg, log_of_softmax]

    def work(n):
        def f(x):
            for _ in range(n // 5):
                x = jnp.log(1 + x) * jnp.sin(neg(neg(x)))
            return x

        program = stage(f)(x3).jaxpr
        return calls(rewrite(*rules), program)

    work(20)  # what is done once
    assert work(1000) < 4 * 1.1 * work(250)
