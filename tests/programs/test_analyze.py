"""Facts flow forward and backward through every view; loops go round until they rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from malleable import analyze, stage

MESH = Mesh(np.array(jax.devices()[:2]), ("i",))


def depends(eqn, facts):
    """What the results of an equation depend on: whatever its operands do."""
    return [frozenset().union(*facts)] * len(eqn.outvars)


def needs(eqn, facts):
    """Whether the operands of an equation are needed: if any result is."""
    return [any(facts)] * len(eqn.invars)


def sources(program, **args):
    """For each output, the names of the arguments it depends on."""
    jaxpr = stage(lambda **args: program(**args))(**args).jaxpr
    outs, _ = analyze(
        jaxpr, [frozenset([n]) for n in sorted(args)], depends, frozenset.union, frozenset()
    )
    return [set(names) for names in outs]


def needed(program, *outs, **args):
    """The names of the arguments that some outputs need; outs: whether each output is wanted."""
    jaxpr = stage(lambda **args: program(**args))(**args).jaxpr
    ins, _ = analyze(jaxpr, outs, needs, lambda a, b: a or b, False, backward=True)
    return {name for name, is_needed in zip(sorted(args), ins, strict=True) if is_needed}


def by_jvp():
    fun = jax.custom_jvp(lambda x, y: (x, x * y))
    fun.defjvp(lambda primals, tangents: (fun(*primals), tangents))
    return fun


def by_vjp():
    fun = jax.custom_vjp(lambda x, y: (x, x * y))
    fun.defvjp(lambda x, y: (fun(x, y), None), lambda _, cts: cts)
    return fun


def plain(x, y):
    return x + 1, x * y


def sharded(x, y):
    spec = PartitionSpec()
    return jax.shard_map(plain, mesh=MESH, in_specs=(spec, spec), out_specs=(spec, spec))(x, y)


custom_vmap = jax.custom_batching.custom_vmap(plain)
custom_vmap.def_vmap(lambda size, mapped, x, y: (plain(x, y), (True, True)))


once = pytest.mark.parametrize(
    "fun",
    [plain, jax.jit(plain), jax.checkpoint(plain), by_jvp(), by_vjp(), sharded, custom_vmap],
    ids=["plain", "jit", "checkpoint", "custom_jvp", "custom_vjp", "shard_map", "custom_vmap"],
)


@once
def test_facts_pass_through_a_body_that_runs_once(fun):
    assert sources(lambda x, y: fun(x, y), x=1.0, y=2.0) == [{"x"}, {"x", "y"}]


@once
@pytest.mark.parametrize(
    ("outs", "names"),
    [((True, False), {"x"}), ((False, True), {"x", "y"}), ((False, False), set())],
)
def test_needs_pass_back_through_a_body_that_runs_once(fun, outs, names):
    assert needed(lambda x, y: fun(x, y), *outs, x=1.0, y=2.0) == names


# ------------------------------------------------------------ branches


def choice(p, x, y, z):
    return lax.cond(p, lambda: (jnp.sin(x), jnp.sin(z)), lambda: (jnp.cos(y), jnp.cos(z)))


ARGS = {"p": True, "x": 1.0, "y": 2.0, "z": 3.0}


def test_what_a_branch_gives_depends_on_both_branches_and_the_predicate():
    assert sources(choice, **ARGS) == [{"p", "x", "y"}, {"p", "z"}]


def test_a_branch_needs_what_either_needs_and_the_predicate():
    assert needed(choice, True, False, **ARGS) == {"p", "x", "y"}
    assert needed(choice, False, True, **ARGS) == {"p", "z"}


def test_unused_branches_need_nothing():
    assert needed(choice, False, False, **ARGS) == set()


# ------------------------------------------------------------ loops


def shifting(a, b, c, d):
    """After n steps `a` holds what came from the n-th on its right."""
    return lax.scan(lambda s, _: ((s[1], s[2], s[3], s[3]), None), (a, b, c, d), length=9)[0]


FOUR = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}


def test_facts_go_round_a_scan_until_they_rest():
    assert sources(shifting, **FOUR) == [{"a", "b", "c", "d"}, {"b", "c", "d"}, {"c", "d"}, {"d"}]


def test_needs_go_round_a_scan_until_they_rest():
    assert needed(shifting, True, False, False, False, **FOUR) == {"a", "b", "c", "d"}
    assert needed(shifting, False, False, True, False, **FOUR) == {"c", "d"}


def with_rows(k, c, u, xs):
    """A scan with a constant, a carry, an unused carry, and rows."""
    step = lambda s, x: ((s[0] * k, s[1]), x + 1)
    return lax.scan(step, (c, u), xs)


ROWS = {"k": 2.0, "c": 1.0, "u": 5.0, "xs": jnp.ones(3)}


def test_the_parts_of_a_scan_are_told_apart():
    assert sources(with_rows, **ROWS) == [{"c", "k"}, {"u"}, {"xs"}]
    assert needed(with_rows, True, False, False, **ROWS) == {"c", "k"}
    assert needed(with_rows, False, True, False, **ROWS) == {"u"}
    assert needed(with_rows, False, False, True, **ROWS) == {"xs"}


def until(n, x, y, z):
    """The bound is known to the test only; y is used by the first carry only."""
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + y, 2 * s[1]), (x, z))


BOUND = {"n": 3.0, "x": 0.0, "y": 1.0, "z": 2.0}


def test_what_a_while_loop_gives_depends_on_its_test():
    assert sources(until, **BOUND) == [{"n", "x", "y"}, {"n", "x", "y", "z"}]


def test_a_while_loop_needs_its_test_for_any_of_its_results():
    assert needed(until, False, True, **BOUND) == {"n", "x", "y", "z"}
    assert needed(until, True, False, **BOUND) == {"n", "x", "y"}
    assert needed(until, False, False, **BOUND) == set()


def test_views_nest():
    def program(p, x, y):
        step = lambda c, _: (lax.cond(p, lambda c: jax.jit(jnp.add)(c, y), lambda c: c, c), c)
        return lax.scan(step, x, length=2)

    assert sources(program, p=True, x=1.0, y=2.0) == [{"p", "x", "y"}] * 2


# ------------------------------------------------------------ the ends


def test_constants_know_nothing():
    assert sources(lambda x: (jnp.arange(3), x, 1.0), x=1.0) == [set(), {"x"}, set()]


def test_an_input_that_is_an_output_keeps_its_fact():
    assert sources(lambda x, y: (y, x), x=1.0, y=2.0) == [{"y"}, {"x"}]


def test_the_facts_of_this_level_come_with_those_of_the_end():
    jaxpr = stage(lambda x: jnp.sin(x) * 2)(1.0).jaxpr
    _, facts = analyze(jaxpr, [{"x"}], depends, frozenset.union, frozenset())
    assert [facts[v] for e in jaxpr.eqns for v in e.outvars] == [{"x"}, {"x"}]


def test_a_body_that_cannot_be_entered_is_an_equation():
    def solve(x, b):
        divide = lambda product, b: b / product(jnp.ones_like(b))
        return lax.custom_linear_solve(lambda v: v * x, b, divide)

    assert sources(solve, x=2.0, b=1.0) == [{"b", "x"}]
    assert needed(solve, True, x=2.0, b=1.0) == {"b", "x"}


def test_other_lattices_do_as_well():
    """The largest number of equations in a row between an input and each output."""
    jaxpr = stage(lambda x: (x, jnp.sin(x), lax.cond(x > 0, jnp.sin, lambda x: x, x)))(1.0).jaxpr
    deeper = lambda eqn, facts: [max(facts) + 1] * len(eqn.outvars)
    outs, _ = analyze(jaxpr, [0], deeper, max, 0)
    assert outs[:2] == [0, 1]
    assert outs[2] >= 2
