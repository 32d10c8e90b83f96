"""Two programs are aligned equation by equation; what is different is never called the same."""

import functools
import random

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import compat, cse, dce, fold, hoist, stage
from malleable.inspection.show.diff import compared
from malleable.inspection.show.rows.aligned import align
from malleable.inspection.show.rows.outline import outline
from malleable.inspection.show.rows.renamed import known, rows_of
from tests.generators.programs.programs import example_args, random_program

SEEDS = range(12)


@functools.cache
def program_of(seed):
    return stage(random_program(seed, tags=False))(*example_args(seed)).jaxpr


def marks(old, new):
    return compared(("old", "new"), outline(old), outline(new)).marks


def aligned(f, g, *args):
    bodies = (outline(stage(fun)(*args).jaxpr) for fun in (f, g))
    changes, _ = align(*bodies)
    return [(c.mark, c.now or c.was, c.why) for c in changes]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_program_traced_twice_is_the_same(seed):
    again = stage(random_program(seed, tags=False))(*example_args(seed)).jaxpr
    assert set(marks(program_of(seed), again)) == {"kept"}


PASSES = {"dce": dce, "cse": cse, "fold": fold, "hoist": hoist}


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_equation_of_both_programs_has_one_mark(name, seed):
    old, new = program_of(seed), PASSES[name](program_of(seed))
    counts = dict.fromkeys(("kept", "removed", "added", "changed"), 0) | marks(old, new)
    assert counts["kept"] + counts["changed"] + counts["removed"] == outline(old).size
    assert counts["kept"] + counts["changed"] + counts["added"] == outline(new).size
    changes, named = align(outline(old), outline(new))
    news = [c.new.number for change in changes for c in change.all() if c.new]
    assert sorted(news) == news
    assert named.size == outline(new).size


def swapped_operands(eqn, rng):
    """The equation with two of its operands of one type swapped, or None."""
    ins = list(eqn.invars)
    pairs = [
        (i, j)
        for i in range(len(ins))
        for j in range(i)
        if ins[i] is not ins[j] and ins[i].aval == ins[j].aval and str(ins[i]) != str(ins[j])
    ]
    if not pairs:
        return None
    i, j = rng.choice(pairs)
    ins[i], ins[j] = ins[j], ins[i]
    return eqn.replace(invars=ins)


def another_length(eqn, rng):
    steps = eqn.params.get("length")
    return eqn.replace(params=eqn.params | {"length": steps + 1}) if steps else None


def another_primitive(eqn, rng):
    """sin for cos and the like, or None."""
    other = {
        "sin": lax.cos_p,
        "cos": lax.sin_p,
        "add": lax.sub_p,
        "mul": lax.add_p,
        "tanh": lax.sin_p,
    }
    prim = other.get(eqn.primitive.name)
    return prim and eqn.replace(primitive=prim, params={} if prim is not lax.sin_p else eqn.params)


def other_literal(eqn, rng):
    for i, v in enumerate(eqn.invars):
        if isinstance(v, compat.Literal) and v.aval.dtype.kind == "f" and v.aval.shape == ():
            ins = list(eqn.invars)
            ins[i] = compat.literal(float(v.val) + 1.5, v.aval)
            return eqn.replace(invars=ins)
    return None


def mutated(jaxpr, mutate, rng):
    """The program with one equation, at any depth, replaced; None where none can be."""
    order = list(range(len(jaxpr.eqns)))
    rng.shuffle(order)
    for n in order:
        eqn = jaxpr.eqns[n]
        new = None
        inside = compat.bodies(eqn.params)
        if not inside or rng.random() < 0.3:
            new = mutate(eqn, rng)
        elif not isinstance(compat.view(eqn), compat.Opaque):
            k = rng.randrange(len(inside))
            body = mutated(inside[k], mutate, rng)
            if body is not None:
                new = compat.with_bodies(eqn, [*inside[:k], body, *inside[k + 1 :]])
        if new is not None:
            eqns = [*jaxpr.eqns[:n], new, *jaxpr.eqns[n + 1 :]]
            consts = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
            return compat.program(jaxpr, eqns, jaxpr.jaxpr.outvars, consts)
    return None


@pytest.mark.parametrize(
    ("mutate", "least"),
    [(swapped_operands, 50), (another_primitive, 50), (other_literal, 50), (another_length, 5)],
)
def test_a_change_of_one_equation_at_any_depth_is_seen(mutate, least):
    found = 0
    for seed in SEEDS:
        for n in range(8):
            new = mutated(program_of(seed), mutate, random.Random(n))
            if new is not None:
                found += 1
                assert set(marks(program_of(seed), new)) - {"kept"}, (seed, n)
    assert found > least


def test_results_in_another_order_are_seen():
    found = aligned(lambda x: (x + 1, x * 2), lambda x: (x + 1, x * 2)[::-1], 1.0)
    assert found[-1] == ("changed", "results c b", "results")
    assert [mark for mark, *_ in found] == ["kept", "kept", "changed"]


def test_arguments_of_another_type_are_seen():
    one, two = (outline(stage(lambda x: x)(x).jaxpr) for x in (1.0, jnp.ones(3)))
    (change,) = align(one, two)[0]
    assert (change.was, change.now, change.why) == (
        "arguments a:f32[]",
        "arguments a:f32[3]",
        "arguments",
    )


def test_constants_are_compared_by_value():
    table, same, other = jnp.arange(3.0), jnp.arange(3.0), jnp.arange(3.0) + 1
    taken = lambda table: lambda i: table[i]
    assert {mark for mark, *_ in aligned(taken(table), taken(same), 1)} == {"kept"}
    assert {"changed"} <= {mark for mark, *_ in aligned(taken(table), taken(other), 1)}


def test_equal_constants_are_taken_in_order():
    one, two = jnp.ones(2), jnp.ones(2)
    both = lambda one, two: lambda x: jnp.sin(one * x) - jnp.cos(two * x)
    assert {mark for mark, *_ in aligned(both(one, two), both(one + 0, two + 0), 1.0)} == {"kept"}


def test_random_keys_are_constants_too():
    drawn = lambda seed: lambda x: x + jax.random.normal(jax.random.key(seed))
    key = lambda seed: (lambda k: lambda x: x + jax.random.normal(k))(jax.random.key(seed))
    assert {mark for mark, *_ in aligned(key(0), key(0), 1.0)} == {"kept"}
    assert "changed" in {mark for mark, *_ in aligned(key(0), key(1), 1.0)}
    assert {mark for mark, *_ in aligned(drawn(0), drawn(0), 1.0)} == {"kept"}


def test_parameters_are_compared():
    f, g = (lambda x, axis=axis: jnp.sum(x, axis) for axis in (0, 1))
    (change,) = aligned(f, g, jnp.ones((2, 2)))
    assert change[2] == "parameters"


def test_the_functions_behind_custom_derivatives_are_compared():
    def custom(rule):
        fun = jax.custom_jvp(lambda x: x * 2)
        fun.defjvp(rule)
        return fun

    def one(xs, ts):
        return xs[0] * 2, ts[0] * 2

    def other(xs, ts):
        return xs[0] * 2, ts[0] * 3

    f, g, again = custom(one), custom(other), custom(one)
    assert [c[0] for c in aligned(f, again, 1.0)] == ["kept"]
    assert [c[0] for c in aligned(f, g, 1.0)] == ["changed"]


def test_a_call_is_looked_into_where_the_other_side_has_none():
    f = lambda x: jnp.sin(x) + 1
    found = aligned(f, jax.jit(f), 1.0)
    assert [mark for mark, *_ in found] == ["added", "kept", "kept"]
    assert found[0][2] == "calls what stood here"
    assert [mark for mark, *_ in aligned(jax.jit(f), f, 1.0)] == ["removed", "kept", "kept"]


def test_a_removed_argument_of_a_loop_leaves_the_rest_of_its_body_alone():
    def loop(xs, ys):
        def body(c, xy):
            return c + jnp.sin(xy[0]), xy[1] * 2

        return lax.scan(body, 0.0, (xs, ys))[0]

    old = stage(loop)(jnp.ones(3), jnp.ones(3)).jaxpr
    found = compared(("", ""), outline(old), outline(dce(old)))
    ((role, inside),) = next(c for c in found.changes if c.mark == "changed").inner
    assert role == "body"
    found = {c.row.primitive: c.mark for c in inside if c.row}
    assert found.pop("mul") == "removed"
    assert set(found.values()) == {"kept"}


def test_values_that_are_kept_keep_their_names():
    old = outline(stage(lambda x: jnp.cos(jnp.sin(x) * jnp.sin(x)))(1.0).jaxpr)
    new = outline(cse(old.program))
    _, named = align(old, new)
    names = lambda body: {row.primitive: row.outs[0].name for row in rows_of(body)}
    assert names(named)["cos"] == names(old)["cos"] != names(new)["cos"]
    assert len(set(known(named).values())) == len(known(named))


def test_a_gradient_keeps_the_forward_program():
    def loss(x):
        return jnp.sum(jnp.tanh(x @ x))

    found = compared(
        ("", ""), *(outline(stage(f)(jnp.ones((3, 3))).jaxpr) for f in (loss, jax.grad(loss)))
    )
    assert found.marks["kept"] >= 2
    assert found.marks["added"] > 0


def test_ten_thousand_equations_are_aligned_in_seconds():
    def flat(x):
        for i in range(2500):
            x = lax.mul(lax.sin(x), x) if i % 7 else lax.cos(x)
        return x

    old = stage(flat)(1.0).jaxpr
    new = stage(jax.grad(flat))(1.0).jaxpr
    found = compared(("", ""), outline(old), outline(new))
    assert found.marks["kept"] > 4000
