"""How NaN spreads: a primitive said to hand a NaN on does, and what goes into it has no test."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from malleable import first_nonfinite, stage
from malleable.inspection.debugging.spreading import SPREADS, heirs, infer, needless, spreads
from malleable.programs.equations import every
from tests.rules import prims

X, NAN = jnp.array([[1.0, 2.0], [3.0, 0.5]]), jnp.array([[1.0, jnp.nan], [3.0, 0.5]])
OTHERS = {
    "integer_pow": lambda x: lax.integer_pow(x, 3),
    "broadcast_in_dim": lambda x: x[None],
    "reshape": lambda x: lax.reshape(x, (4,)),
    "squeeze": lambda x: lax.squeeze(x[None], (0,)),
    "transpose": lambda x: lax.transpose(x, (1, 0)),
    "rev": lambda x: lax.rev(x, (0,)),
    "tile": lambda x: lax.tile(x, (2, 1)),
    "concatenate": lambda x: lax.concatenate([x, x], 0),
    "convert_element_type": lambda x: lax.convert_element_type(x, "bfloat16"),
    "reduce_precision": lambda x: lax.reduce_precision(x, 5, 10),
    "reduce_sum": lambda x: jnp.sum(x, 0),
    "dot_general": lambda x: lax.dot(jnp.zeros((2, 2)), x),
    "copy": lambda x: lax.copy_p.bind(x),
    "stop_gradient": lax.stop_gradient,
    "add_any": lambda x: jax.vjp(lambda x: (x, x), x)[1]((x, X))[0],
}


@pytest.mark.parametrize("name", sorted(SPREADS))
def test_a_nan_in_an_operand_is_in_the_result(name):
    fun = OTHERS.get(name) or getattr(lax, name, None)
    if fun is None:
        assert name == "log2"  # a primitive of later versions of JAX, by this name
        fun = jnp.log2
    programs = [lambda x: fun(x)]
    if name not in OTHERS and name in {"add", "sub", "mul", "div"}:
        programs = [lambda x: fun(x, jnp.zeros_like(x)), lambda x: fun(jnp.zeros_like(x), x)]
    for program in programs:
        assert jnp.isnan(jax.jit(program)(NAN)).any() and not jnp.isnan(program(X + 1)).all()


def test_what_a_test_of_another_value_tells_of_has_none():
    staged = stage(lambda x: jnp.where(x > 1, jnp.exp(x) * 2, 0.0) + 1)(X)
    skipped = needless(staged.jaxpr)
    named = {str(e.primitive): id(e) in skipped for e in every(staged.jaxpr.jaxpr.eqns)}
    assert named["exp"] and not named["mul"] and not named["select_n"] and not named["add"]


def test_what_has_no_numbers_spreads_nothing():
    program = stage(lambda x: (x @ jnp.zeros((2, 0)), lax.integer_pow(x, 0)))(X).jaxpr
    assert "dot_general" in prims(program) and not any(map(spreads, program.jaxpr.eqns))


def test_marks_follow_from_few_tests():
    eqns = stage(lambda x: jnp.sin(jnp.exp(x) * 2))(X).jaxpr.jaxpr.eqns
    x, first, second, last = eqns[0].invars[0], *(e.outvars[0] for e in eqns)
    bad = {last: False}
    infer(bad, heirs(eqns), [x, first, second, last])
    assert bad == dict.fromkeys((x, first, second, last), False)
    bad = {first: True}
    infer(bad, heirs(eqns), [x, first, second, last])
    assert bad == dict.fromkeys((first, second, last), True)


def test_a_nan_is_found_in_a_long_chain_of_values_without_tests():
    def chain(x):
        for _ in range(20):
            x = jnp.sin(x) * 1.5
        x = jnp.log(x - 3.0)
        for _ in range(20):
            x = jnp.sin(x) * 1.5
        return x

    found = first_nonfinite(chain)(X)
    assert found and found.primitive == "log" and "x - 3.0" in found.source
    hidden = first_nonfinite(lambda x: jnp.where(x > 9.0, chain(x), 0.0))(X)
    assert hidden and hidden.primitive == "log" and not hidden.reaches_result
