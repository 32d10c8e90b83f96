import equinox as eqx
import flax.linen as nn
import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.core.stage import stage
from malleable.notes import listen
from malleable.programs.evaluate import evaluate
from malleable.rewriting.passes.passes import optimize
from malleable.rewriting.passes.reroll import repetitions, reroll
from tests.generators.keys import quick_key

KEY = quick_key(0)


def plain(leaf):
    leaf = compat.as_array(leaf)
    return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) else leaf


def assert_close(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(plain(a), plain(b), rtol=2e-5, atol=1e-5)


def rolled(fun, *args, **options):
    """The program of fun, rerolled: well typed, with the same results, and final."""
    program = stage(fun)(*args).jaxpr
    new = reroll(**options)(program)
    compat.check(new)
    both = lambda *args: (evaluate(new, jax.tree.leaves(args)), jax.tree.leaves(fun(*args)))
    assert_close(*jax.jit(both)(*args))
    assert [v.aval for v in new.jaxpr.outvars] == [v.aval for v in program.jaxpr.outvars]
    assert reroll(**options)(new) is new
    return new


def lengths(jaxpr):
    return [eqn.params["length"] for eqn in jaxpr.eqns if eqn.primitive.name == "scan"]


def dense(n=8, width=4):
    """Layers: a weight (width, width) and a bias (width,) each."""
    biases = jnp.linspace(0, 1, n)
    weights = jax.random.normal(KEY, (n, width, width))
    return [(w, jnp.full(width, b)) for w, b in zip(weights, biases, strict=True)]


def mlp(params, x):
    for w, b in params:
        x = jnp.tanh(x @ w + b)
    return x


def test_layers_with_their_own_parameters_become_one_scan():
    assert lengths(rolled(mlp, dense(), jnp.ones((2, 4)))) == [8]


def test_the_gradient_of_a_rerolled_stack_is_that_of_the_stack():
    loss = lambda f: lambda *args: jnp.sum(f(*args) ** 2)
    args = dense(), jnp.ones((2, 4))
    both = lambda *args: [jax.grad(loss(f))(*args) for f in (optimize(mlp, reroll), mlp)]
    assert_close(*jax.jit(both)(*args))


def test_a_gradient_that_was_staged_is_rerolled_forward_and_backward():
    program = rolled(jax.grad(lambda *args: mlp(*args).sum()), dense(), jnp.ones((2, 4)))
    assert lengths(program) == [8, 7]


def test_a_rerolled_stack_is_mapped():
    args = dense(), jnp.linspace(0, 1, 24).reshape(3, 2, 4)
    lanes = (None, 0)
    both = lambda *args: [jax.vmap(f, lanes)(*args) for f in (optimize(mlp, reroll), mlp)]
    assert_close(*jax.jit(both)(*args))


def test_integers_are_bitwise_those_of_the_unrolled_program():
    def hashed(x):
        for k in range(16):
            x = (x ^ (x >> 3)) * jnp.uint32(2654435761 + k)
        return x

    args = (jnp.arange(9, dtype=jnp.uint32),)
    assert lengths(rolled(hashed, *args)) == [16]
    assert (jax.jit(optimize(hashed, reroll))(*args) == jax.jit(hashed)(*args)).all()


def test_what_all_blocks_share_is_computed_once():
    def rnn(w, xs):
        h = jnp.zeros(4)
        for t in range(9):
            h = jnp.tanh(xs[t] + w.T @ h)
        return h

    program = rolled(rnn, dense()[0][0], jnp.ones((9, 4)))
    assert lengths(program) == [9]
    body = program.eqns[-1].params["jaxpr"]
    assert "transpose" not in [eqn.primitive.name for eqn in body.eqns]


@pytest.mark.parametrize("rows", [lambda xs: list(xs), lambda xs: [xs[-1 - t] for t in range(9)]])
def test_steps_over_the_rows_of_an_array_scan_the_array(rows):
    def rnn(w, xs):
        h = jnp.zeros(4)
        for x in rows(xs):
            h = jnp.tanh(x + w @ h)
        return h

    xs = jnp.linspace(0, 1, 36).reshape(9, 4)
    program = rolled(rnn, dense()[0][0], xs)
    assert lengths(program) == [9]
    assert not {"stack", "concatenate"} & {eqn.primitive.name for eqn in program.eqns}


def test_states_that_are_stacked_later_are_the_outputs_of_the_scan():
    def states(params, x):
        hs = []
        for w, b in params:
            x = jnp.tanh(x @ w + b)
            hs.append(x)
        return jnp.stack(hs)

    program = rolled(states, dense(), jnp.ones(4))
    assert [eqn.primitive.name for eqn in program.eqns] == ["stack", "stack", "scan"]


def test_the_start_and_the_states_are_joined():
    def path(x):
        xs = [x]
        for _ in range(12):
            xs.append(xs[-1] + 0.1 * jnp.sin(xs[-1]))
        return jnp.stack(xs), xs[3]

    assert lengths(rolled(path, jnp.ones(4))) == [12]


def test_several_carries_and_a_sum_over_the_steps():
    def lstm(wx, wh, xs):
        h, c, total = jnp.zeros(4), jnp.zeros(4), 0.0
        for x in xs:
            i, f, g, o = jnp.split(x @ wx + h @ wh, 4)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            total = total + h.sum()
        return total, h, c

    args = jnp.ones((3, 16)) / 3, jnp.ones((4, 16)) / 4, jnp.ones((10, 3))
    assert lengths(rolled(lstm, *args)) == [10]


def test_a_block_may_read_two_steps_back():
    def leapfrog(x):
        before = 0.9 * x
        for _ in range(10):
            before, x = x, 2 * x - before - 0.1 * jnp.sin(x)
        return x, before

    program = rolled(leapfrog, jnp.ones(5))
    assert lengths(program) == [10]
    assert len(program.eqns) == 2  # both results are carried: no states are stacked


def test_euler_steps_close_over_constants():
    force = jnp.linspace(-1, 1, 5)

    def euler(x, v):
        for _ in range(20):
            x, v = x + 0.1 * v, v + 0.1 * (force - jnp.sin(x))
        return x, v

    assert lengths(rolled(euler, jnp.ones(5), jnp.zeros(5))) == [20]


def test_numbers_that_differ_between_blocks_are_stacked():
    def scaled(x):
        for k in range(10):
            x = jnp.sin(x) * (1 - k / 20) + k
        return x

    assert lengths(rolled(scaled, jnp.ones(3))) == [10]
    assert lengths(rolled(scaled, 1.0)) == [10]


def test_dropout_with_rates_and_keys_of_their_own():
    def noisy(key, x):
        for i, k in enumerate(jax.random.split(key, 8)):
            keep = 1 - i / 10
            x = jnp.sin(x) * jax.random.bernoulli(k, keep, x.shape) / keep
        return x

    assert lengths(rolled(noisy, KEY, jnp.ones(5))) == [8]


@pytest.mark.parametrize("chained", [True, False])
def test_keys_that_are_split_or_folded_in_the_blocks(chained):
    def noisy(key, x):
        for i in range(8):
            if chained:
                key, now = jax.random.split(key)
            else:
                now = jax.random.fold_in(key, i)
            x = jnp.sin(x) + jax.random.normal(now, x.shape)
        return x, key

    assert lengths(rolled(noisy, KEY, jnp.ones(5))) == [8]


def test_layers_called_through_jit_stay_calls_in_the_block():
    @jax.jit
    def layer(w, b, x):
        return x + jnp.sin(x @ w + b)

    def stack(params, x):
        for w, b in params:
            x = layer(w, b, x)
        return x

    program = rolled(stack, dense(), jnp.ones((2, 4)))
    (scan,) = [eqn for eqn in program.eqns if eqn.primitive.name == "scan"]
    assert [eqn.primitive.name for eqn in scan.params["jaxpr"].eqns] in (["jit"], ["pjit"])


def test_blocks_within_blocks_are_rerolled_too():
    def deep(x):
        for _ in range(5):
            for k in range(8):
                x = x + jnp.sin(k * x)
            x = jnp.cos(x)
        return x

    program = rolled(deep, jnp.ones(3))
    inner = [eqn for eqn in program.eqns if eqn.primitive.name == "scan"][-1].params["jaxpr"]
    assert lengths(program)[-1:] + lengths(inner) == [5, 8]


def test_two_stacks_one_after_the_other():
    def both(params, x):
        x = mlp(params, x)
        for w, _ in params:
            x = x + jnp.cos(x @ w) * jnp.sin(x)
        return x

    assert lengths(rolled(both, dense(), jnp.ones((2, 4)))) == [8, 8]


def test_blocks_inside_of_a_scan_are_rerolled():
    def outer(params, x):
        return lax.scan(lambda x, _: (mlp(params, x), None), x, None, length=3)[0]

    program = rolled(outer, dense(), jnp.ones((2, 4)))
    (scan,) = program.eqns
    assert lengths(scan.params["jaxpr"]) == [8]


def test_a_transformer_of_equinox():
    class Block(eqx.Module):
        attention: eqx.nn.MultiheadAttention
        norm: eqx.nn.LayerNorm
        mlp: eqx.nn.MLP
        drop: eqx.nn.Dropout

        def __init__(self, key):
            self.attention = eqx.nn.MultiheadAttention(2, 8, key=key)
            self.norm = eqx.nn.LayerNorm(8)
            self.mlp = eqx.nn.MLP(8, 8, 16, 1, key=key)
            self.drop = eqx.nn.Dropout(0.1)

        def __call__(self, x, key):
            h = jax.vmap(self.norm)(x)
            x = x + self.drop(self.attention(h, h, h), key=key)
            return x + jax.vmap(self.mlp)(x)

    blocks = [Block(key) for key in jax.random.split(KEY, 5)]
    params, static = eqx.partition(blocks, eqx.is_array)

    def model(params, x, key):
        keys = jax.random.split(key, 5)
        for block, k in zip(eqx.combine(params, static), keys, strict=True):
            x = block(x, k)
        return jnp.mean(x**2)

    args = params, jax.random.normal(KEY, (6, 8)), KEY
    assert lengths(rolled(model, *args)) == [5]
    both = lambda *args: [jax.grad(f)(*args) for f in (optimize(model, reroll), model)]
    assert_close(*jax.jit(both)(*args))


def test_a_transformer_of_flax():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            for _ in range(5):
                h = nn.LayerNorm()(x)
                x = x + nn.MultiHeadDotProductAttention(2)(h, h)
                x = x + nn.Dropout(0.1, deterministic=False)(nn.gelu(nn.Dense(8)(x)))
            return x

    net, x = Net(), jax.random.normal(KEY, (6, 8))
    params = jax.jit(net.init)({"params": KEY, "dropout": KEY}, x)
    apply = lambda params, x, key: net.apply(params, x, rngs={"dropout": key})
    assert lengths(rolled(apply, params, x, KEY)) == [5]


# ---------------------------------------------------------------- what is left alone


def declined(fun, *args):
    program = stage(fun)(*args).jaxpr
    with listen() as heard:
        assert reroll(program) is program
    return [note.why for note in heard]


def test_layers_of_different_widths_are_left_with_a_note():
    params = [(jnp.ones((4 + i, 5 + i)), jnp.ones(5 + i)) for i in range(6)]
    (why,) = declined(mlp, params, jnp.ones((2, 4)))
    assert why == "dot_general takes f32[2,4] and f32[4,5], then f32[2,5] and f32[5,6]"


def test_blocks_with_an_effect_are_left_with_a_note():
    def talk(x):
        for _ in range(8):
            x = jnp.sin(x) * 2 + 1
            jax.debug.print("{}", x)
        return x

    (why,) = declined(talk, 1.0)
    assert "effect" in why


def test_two_repeats_are_left():
    assert declined(mlp, dense(2), jnp.ones((2, 4))) == []


def test_small_blocks_are_left_unless_asked_for():
    horner = lambda x: x * (x * (x * (x * 2.0 + 3.0) + 4.0) + 5.0)
    assert declined(horner, 1.0) == []
    assert lengths(rolled(horner, 1.0, least=4)) == [3]


def test_what_was_rolled_leaves_a_note():
    with listen() as heard:
        reroll(stage(mlp)(dense(), jnp.ones((2, 4))).jaxpr)
    (note,) = heard
    assert note.what.startswith("8 equal blocks of ")
    assert "test_reroll.py" in note.where


# ---------------------------------------------------------------- how repetitions are found


@pytest.mark.parametrize("seed", range(20))
def test_every_repetition_is_found(seed):
    rng = np.random.default_rng(seed)
    word = list(rng.integers(0, 3, 6))
    text = [*rng.integers(0, 3, 7), *word * 4, *rng.integers(3, 5, 7)]
    found = list(repetitions(text))
    for start, stop, period in found:
        assert stop - start >= 3 * period
        assert text[start : stop - period] == text[start + period : stop]
    assert any(s <= 7 and e >= 31 and 6 % p == 0 for s, e, p in found)


# ---------------------------------------------------------------- random programs


@pytest.mark.in_turns
@pytest.mark.parametrize("seed", range(10))
def test_random_unrolled_programs_keep_their_results(seed):
    fun, args = random_stack(np.random.default_rng(seed))
    rolled(fun, *args, least=6)
    loss = lambda f: lambda *a: sum(jnp.sum(x) for x in f(*a))
    new = optimize(fun, reroll(least=6))
    assert_close(jax.grad(loss(new))(*args), jax.grad(loss(fun))(*args))
    lanes = jax.tree.map(lambda x: jnp.stack([x, x + 0.1]), args)
    assert_close(jax.vmap(new)(*lanes), jax.vmap(fun)(*lanes))


def random_stack(rng):
    """Blocks of random operations on several carries, with parameters, rows and numbers."""
    n, carries, size = rng.integers(4, 8), rng.integers(1, 4), 3
    ops = [(rng.integers(0, 6), *rng.integers(0, 5, 2)) for _ in range(rng.integers(3, 7))]
    back = list(rng.integers(0, 5, carries))
    keep = rng.integers(0, 3)
    unary = [jnp.sin, jnp.tanh, lambda x: x[::-1], lambda x: x * 0.5]

    def fun(params, xs, start):
        carry, shared, states = [start * (j + 1) for j in range(carries)], jnp.cos(start), []
        for k in range(n):
            pool = [*carry, params[k], xs[k], shared]
            for op, a, b in ops:
                x, y = pool[a % len(pool)], pool[-1 - b % len(pool)]
                pool.append(unary[op](x) if op < 4 else x * (1 + k / 10) - y if op == 4 else x + y)
            carry = [jnp.tanh(pool[-1 - b] + 0.1 * k) for b in back]
            states.append(carry[0])
        return carry, [jnp.stack(states), states[-1], states[n // 2]][keep]

    params = [jnp.asarray(rng.normal(size=size), jnp.float32) for _ in range(n)]
    xs = jnp.asarray(rng.normal(size=(n, size)), jnp.float32)
    return lambda *a: jax.tree.leaves(fun(*a)), (params, xs, jnp.ones(size))


def test_numbers_among_rows():
    def fun(w):
        rows = lax.optimization_barrier(lax.broadcast(2.0, (3,)))
        more = [jnp.asarray(1.5), jnp.asarray(2.5)]
        return [jnp.tanh(jnp.sin(v) * jnp.cos(v)) * w for v in (*rows, *more)]

    rolled = optimize(fun, reroll(repeats=2, least=1))(1.0)
    np.testing.assert_allclose(rolled, fun(1.0), rtol=1e-6)
