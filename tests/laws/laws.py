"""The laws. Each takes a program and gives two functions of its arguments that must agree."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import malleable as mal
from tests.generators.keys import quick_key
from tests.generators.programs.programs import build

KEY = 3
ALWAYS = ("stack", "masked")  # tags that are planted per step; the others, per loop


def tagged(program):
    return build(program, tag=lambda value, name, mode: mal.tag(value, name, mode=mode))


def noisy(program):
    return build(program, key=mal.next_key)


def loss(fun):
    """A scalar of the floats of a function's output."""
    return lambda *args: sum(jnp.sum(out) for out in jax.tree.leaves(fun(*args)))


def again(frame, *args, **params):
    return frame.bind(*args)


def lanes(args):
    """Three different examples: the float arguments scaled, so that no sign changes."""
    *floats, n = args
    return [jnp.stack([x, 0.7 * x, 1.1 * x]) for x in floats] + [jnp.stack([n, n + 1, n])]


def singly(fun):
    """fun on each example by itself, stacked: what vmap has to give."""

    def stacked(*args):
        rows = [fun(*(a[i] for a in args)) for i in range(3)]
        return jax.tree.map(lambda *xs: jnp.stack(xs), *rows)

    return stacked


def interpreting_without_rules(program):
    return lambda *a: mal.interpret(tagged(program), {})(*a)[0], program


def interpreting_with_a_rule_that_changes_nothing(program):
    return lambda *a: mal.interpret(program, {}, default=again)(*a)[0], program


def reaping_keeps_the_value(program):
    return lambda *a: mal.reap(tagged(program))(*a)[0], program


def planting_what_was_reaped(program):
    def planted(*args):
        _, tags = mal.reap(tagged(program))(*args)
        per_step = {name: tags[name] for name, mode in program.tags if mode in ALWAYS}
        return mal.plant(tagged(program))(per_step, *args)

    return planted, program


def jit_of_reap(program):
    reaped = mal.reap(tagged(program))
    return jax.jit(reaped), reaped


def vmap_of_reap(program):
    reaped = mal.reap(tagged(program))
    return (
        lambda *a: jax.vmap(reaped)(*lanes(a)),
        lambda *a: singly(reaped)(*lanes(a)),
    )


def grad_of_reap(program):
    reaped = mal.reap(tagged(program))
    return jax.grad(loss(lambda *a: reaped(*a)[0]), argnums=(0, 1, 2)), jax.grad(
        loss(program), argnums=(0, 1, 2)
    )


def tags_survive_grad(program):
    """Tags of the primal program, reaped from a gradient whose value needs none of them."""
    differentiated = jax.value_and_grad(loss(tagged(program)), argnums=(0, 1, 2))
    return (
        lambda *a: mal.reap(differentiated)(*a),
        lambda *a: (
            jax.value_and_grad(loss(program), argnums=(0, 1, 2))(*a),
            mal.reap(tagged(program))(*a)[1],
        ),
    )


def live_is_staged(program):
    rules = {lax.tanh_p: count, lax.sin_p: count}
    return (
        lambda *a: mal.live(program, rules, carry=0)(*a)[:2],
        lambda *a: mal.interpret(program, rules, carry=0)(*a)[:2],
    )


def count(frame, x, **params):
    frame.carry += 1
    return frame.bind(x)


def seeding_and_grad_commute(program):
    key = quick_key(KEY)
    fun = loss(noisy(program))
    return (
        lambda *a: mal.seed(jax.grad(fun, argnums=(0, 1, 2)))(key, *a),
        lambda *a: jax.grad(lambda *a: mal.seed(fun)(key, *a), argnums=(0, 1, 2))(*a),
    )


def seeding_is_the_same_under_jit_and_remat(program):
    key = quick_key(KEY)
    fun = noisy(program)
    return (
        lambda *a: mal.seed(jax.checkpoint(jax.jit(fun)))(key, *a),
        lambda *a: mal.seed(fun)(key, *a),
    )


# name -> (law, what its programs may contain)
ANY = {"tags": True}
SMOOTH = {"tags": True, "differentiable": True}
NOISY = {"tags": False, "keys": True}
LAWS = {
    law.__name__: (law, options)
    for law, options in [
        (interpreting_without_rules, ANY),
        (interpreting_with_a_rule_that_changes_nothing, ANY),
        (reaping_keeps_the_value, ANY),
        (planting_what_was_reaped, ANY),
        (jit_of_reap, ANY),
        (vmap_of_reap, ANY),
        (live_is_staged, ANY),
        (grad_of_reap, SMOOTH),
        (tags_survive_grad, SMOOTH),
        (seeding_and_grad_commute, NOISY | {"differentiable": True}),
        (seeding_is_the_same_under_jit_and_remat, NOISY),
    ]
}


def check(law, program, args, *, compiled):
    """Raise AssertionError unless both sides of a law agree; compiled as one program, or eager."""
    left, right = law(program)
    sides = lambda *a: (left(*a), right(*a))
    got, wanted = (jax.jit(sides) if compiled else sides)(*args)
    assert jax.tree.structure(got) == jax.tree.structure(wanted), "another structure"
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype, f"{a.dtype} is not {b.dtype}"
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5)
