"""What a pass gives is checked where it is new: types of new equations, and the order of all."""

import jax.numpy as jnp
import pytest

from malleable import compat
from malleable.core.stage import stage


def program():
    def fun(x):
        y = jnp.sin(x)
        return jnp.cos(y) * y + jnp.exp(x)

    return stage(fun)(1.0).jaxpr


def with_equations(jaxpr, eqns):
    outs, consts = jaxpr.jaxpr.outvars, dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
    return compat.program(jaxpr, eqns, outs, consts)


def test_a_program_of_sound_equations_in_order_is_sound():
    p = program()
    compat.check(p, p.eqns)


def test_an_equation_before_its_operands_is_refused():
    p = program()
    with pytest.raises(TypeError, match="not defined"):
        compat.check(with_equations(p, [p.eqns[1], p.eqns[0], *p.eqns[2:]]), p.eqns)


def test_a_variable_that_is_bound_twice_is_refused():
    p = program()
    with pytest.raises(TypeError, match="already bound"):
        compat.check(with_equations(p, [p.eqns[0], *p.eqns]), p.eqns)


def test_a_new_equation_of_a_wrong_type_is_refused():
    p = program()
    wide = stage(jnp.sin)(jnp.ones(3)).jaxpr
    wrong = p.eqns[1].replace(outvars=[compat.new_var(wide.out_avals[0])])
    with pytest.raises(TypeError):
        compat.check(with_equations(p, [p.eqns[0], wrong, *p.eqns[2:]]), p.eqns)


def test_a_result_that_nothing_makes_is_refused():
    p = program()
    with pytest.raises(TypeError, match="not defined"):
        compat.check(with_equations(p, p.eqns[:-1]), p.eqns)
