"""Derivatives through steps and updates: those of calls that have one of their own, or an error."""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import jax
from jax import numpy as jnp

from malleable import compat
from malleable.errors import TransformError
from malleable.programs.evaluate import evaluate
from malleable.rewriting.boxes.dependence import DERIVED, ELEMENTWISE

# those whose own derivative is that of their bodies, only better rounded
SAME_DERIVATIVE = {"_softmax", "logaddexp", "_logsumexp", "logsumexp"}
HIDDEN = "call_hi_primitive"  # a call of a body, and of a derivative, in an object


class _Alias(compat.Primitive):
    """A primitive that is its first operand, and whose derivative is rule(*others, *tangents).

    It is one only in a program that `put` is traced into: wherever that runs, it is no more.
    """

    def __init__(self, name: str):
        super().__init__(name)
        self.put = super().bind
        self.def_abstract_eval(lambda x, *_, rule: x)

    def bind(self, *xs, rule):
        @jax.custom_jvp
        def own_derivative(x, *others):
            return x

        own_derivative.defjvp(lambda xs, dots: (own_derivative(*xs), rule(*xs[1:], *dots[1:])[0]))
        return own_derivative(*xs)


_ALIAS = _Alias(DERIVED)


def _of_any_shape(program: compat.Jaxpr) -> Callable | None:
    """An elementwise program on numbers and arrays of one shape, on those of any; else None."""
    given: Any = program.jaxpr.invars
    shape, filled = max((v.aval.shape for v in given), key=len), set()

    def step(eqn: compat.Eqn, xs: list) -> list:
        if inside := compat.bodies(eqn.params):
            return evaluate(inside[0], xs, step)
        if eqn.primitive.name == "broadcast_in_dim":
            return xs
        return compat.bind(eqn, jnp.broadcast_arrays(*xs))

    def is_one(eqn: Any) -> bool:
        ins: Any = [v for v in eqn.invars if isinstance(v, compat.Literal) or v not in filled]
        if eqn.primitive.name == "broadcast_in_dim":
            filled.update(eqn.outvars)
            return all(v.aval.shape == () for v in ins)
        if not {v.aval.shape for v in (*ins, *eqn.outvars)} <= {(), shape}:
            return False
        if inside := compat.bodies(eqn.params):
            return isinstance(compat.view(eqn), compat.Call) and all(map(is_one, inside[0].eqns))
        return eqn.primitive.name in ELEMENTWISE - {DERIVED}

    is_plain = all(jnp.shape(c) == () for c in program.consts)
    if not is_plain or not all(map(is_one, program.eqns)):
        return None
    return lambda *xs: evaluate(program, xs, step)


def _rule(eqn: compat.Eqn) -> Callable | None:
    """The derivative rule of a call of one result, if it is one number by number."""
    view, types = compat.view(eqn), [v.aval for v in eqn.invars]
    if not isinstance(view, compat.CustomJvp) or len(eqn.outvars) > 1 or _is_same(eqn):
        return None
    if not all(map(compat.differentiable, (*types, eqn.outvars[0].aval))):
        return None
    n = len(types)
    pair = lambda *xs: [x for part in view.jvp(xs[:n], xs[n:]) for x in part]  # noqa: E731
    both = compat.trace(pair, *types, *types)
    if not _is_alias(eqn) and not _calls_itself(eqn, both):
        return None
    rule = compat.dce(compat.trace(lambda *xs: evaluate(both, xs)[1:], *types, *types))
    return _of_any_shape(rule) if _of_any_shape(view.body) else None


def _calls_itself(eqn: compat.Eqn, rule: compat.Jaxpr) -> bool:
    """Whether the result that a derivative rule gives is made by the call again."""
    again = next((e for e in rule.eqns if rule.jaxpr.outvars[0] in e.outvars), None)
    if again is None or again.primitive is not eqn.primitive:
        return False
    bodies = [compat.bodies(e.params)[0] for e in (eqn, again)]
    one, other = ((b.jaxpr.debug_info.func_src_info, str(b)) for b in bodies)
    return one == other and again.invars == rule.jaxpr.invars[: len(again.invars)]


def marked(eqn: compat.Eqn) -> compat.Jaxpr:
    """The body of a call, and if its derivative is one number by number, that."""
    (body, *_), rule = compat.bodies(eqn.params), _rule(eqn)
    if rule is None and not _is_alias(eqn):
        return body
    rule = rule or functools.partial(_refuse, eqn, OWN)
    run = lambda *xs: [_ALIAS.put(*evaluate(body, xs), *xs, rule=rule)]  # noqa: E731
    return compat.trace(run, *(v.aval for v in eqn.invars))


def _is_alias(eqn: compat.Eqn) -> bool:
    """Whether it is one of ours, as a form that is looked through has made it."""
    return compat.bodies(eqn.params)[0].jaxpr.debug_info.func_name == _ALIAS.name


def _is_same(eqn: compat.Eqn) -> bool:
    names = {body.jaxpr.debug_info.func_name for body in compat.bodies(eqn.params)}
    return not names.isdisjoint(SAME_DERIVATIVE)


def own_derivative(program: compat.Jaxpr) -> compat.Eqn | None:
    """A call in a program with another derivative than that of its body, that is lost."""
    for eqn in program.eqns:
        if eqn.primitive.name == HIDDEN and not _is_of_jax(eqn):
            return eqn
        inside = compat.bodies(eqn.params)
        custom = isinstance(compat.view(eqn), compat.CustomJvp | compat.CustomVjp)
        if custom and not _is_same(eqn) and _rule(eqn) is None:
            return eqn
        for body in inside:
            if (found := own_derivative(body)) is not None:
                return found
    return None


def _is_of_jax(eqn: compat.Eqn) -> bool:
    return type(eqn.params["_prim"]).__module__.partition(".")[0] == "jax"


def without_derivative(eqn: compat.Eqn | None, why: str, tree: Any) -> Any:
    """The arrays of a pytree; their derivative is a TransformError, at the line of an equation."""
    if eqn is None:
        return tree

    @jax.custom_jvp
    def same(x):
        return x

    @same.defjvp
    def refuse(xs, tangents):
        _refuse(eqn, why)

    def marked(x):
        return same(x) if jnp.issubdtype(jnp.result_type(x), jnp.inexact) else x

    return jax.tree.map(marked, tree)


def _refuse(eqn: compat.Eqn, why: str, *_: Any) -> NoReturn:
    raise TransformError(
        f"a derivative is taken through steps or updates, but {why}",
        where=compat.where(eqn),
        hint="differentiate the function itself",
    )


OWN = "a call in it has a derivative of its own, of whole arrays only"
ODD = "what stands where rows are not known yet may have none"
