"""Calls, loops, branches and devices for ONNX: which has Loop and If, forwards and two ways only.

Calls are put in place, a loop in reverse goes forwards over flipped slices, n branches are n - 1
nested ones. A mesh of one device is no mesh.
"""

from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.compat import Jaxpr, Literal
from malleable.integrations.onnx.lowering import FLOW, Lowering, pair_type, rule
from malleable.notes import note
from malleable.programs.primitives import kind


def call(lowering: Lowering, eqn, args, done):
    """A call: its body, in its place; of a custom derivative, what it computes."""
    view: Any = compat.view(eqn)
    return lowering.inside(eqn, view.body, args, done)


FLOW |= dict.fromkeys(("jit", "pjit", "remat", "remat2", "checkpoint", *compat.INLINED), call)
FLOW |= dict.fromkeys(("custom_jvp_call", "custom_vjp_call"), call)


@rule("scan", table=FLOW)
def scan(lowering: Lowering, eqn, args, done):
    """A loop over slices; in reverse: of flipped slices, to flipped results."""
    view: Any = compat.view(eqn)
    consts, carry, xs = view.split(list(map(jnp.asarray, args)))
    if not xs and not isinstance(view.length, int):
        return lowering.lacks(eqn, "its length is a symbol", "loop over jnp.arange(n)")
    flip = (lambda x: lax.rev(x, (0,))) if view.reverse else (lambda x: x)  # of any type

    def body(carry, xs):
        outs = lowering.inside(eqn, view.body, [*consts, *carry, *xs], done)
        return outs[: len(carry)], outs[len(carry) :]

    carry, ys = lax.scan(body, carry, list(map(flip, xs)), length=None if xs else view.length)
    return [*carry, *map(flip, ys)]


@rule("while", table=FLOW)
def loop(lowering: Lowering, eqn, args, done):
    """A `while`; what its test and its body close over stays outside."""
    view: Any = compat.view(eqn)
    tested, used, carry = view.split(list(map(jnp.asarray, args)))

    def test(carry):
        return lowering.inside(eqn, view.cond, [*tested, *carry], done)[0]

    def body(carry):
        return lowering.inside(eqn, view.body, [*used, *carry], done)

    lanes = len(view.cond.jaxpr.outvars[0].aval.shape)  # of a vmap: each goes on until it is done
    if not lanes:
        return lax.while_loop(test, body, carry)

    def kept(going, *both):
        new, old = both[: len(carry)], both[len(carry) :]
        mask = lambda x: going.reshape(*going.shape, *[1] * (x.ndim - lanes))  # noqa: E731
        return [jnp.where(mask(x), x, y) for x, y in zip(new, old, strict=True)]

    def step(state):
        going, *old = state
        new = lowering.write(eqn, kept, [going, *body(old), *old], done)
        return [test(new), *new]

    some = lambda state: lowering.write(eqn, jnp.any, state[:1], done)[0]  # noqa: E731
    return lax.while_loop(some, step, [test(carry), *carry])[1:]


@rule("cond", table=FLOW)
def branch(lowering: Lowering, eqn, args, done):
    """Two ways are a cond; more are nested ones; a known index leaves one way."""
    index, *args = args
    view: Any = compat.view(eqn)
    bodies = view.branches
    last = len(bodies) - 1
    if not isinstance(index, compat.Tracer):
        return lowering.inside(eqn, bodies[int(np.clip(index, 0, last))], args, done)
    ways = [lambda xs, b=b: lowering.inside(eqn, b, xs, done) for b in bodies]

    def choose(start, xs):
        if start == last:
            return ways[last](xs)
        test = index > start if last > 1 else index != 0
        return lax.cond(test, lambda xs: choose(start + 1, xs), ways[start], xs)

    return choose(0, list(map(jnp.asarray, args)))


@rule("platform_index", table=FLOW)
def platform(lowering, eqn, args, done):
    """Which platform's version of a function: the one for any, or else the processor's."""
    choices = list(eqn.params["platforms"])
    default = [i for i, names in enumerate(choices) if names is None]
    cpu = [i for i, names in enumerate(choices) if names is not None and "cpu" in names]
    return [np.int32((default or cpu or [0])[0])]


@rule("shard_map", table=FLOW)
def mapped(lowering: Lowering, eqn, args, done):
    """On a mesh of one device: the body."""
    view: Any = compat.view(eqn)
    if any(size > 1 for size in view.axes.values()):
        why = f"it runs on {np.prod(list(view.axes.values()))} devices"
        return lowering.lacks(eqn, why, "export the function of one device")
    return lowering.inside(eqn, view.body, args, done)


ALONE = "psum psum_invariant pmax pmin pvary pcast pbroadcast all_gather all_gather_invariant"
ALONE += " all_gather_reduced reduce_scatter all_to_all unreduced_psum reshard"


@rule(*ALONE.split(), table=FLOW)
def alone(lowering, eqn, args, done):
    """What a collective does on one device: nothing, but for axes of one."""
    return [jnp.reshape(x, v.aval.shape) for x, v in zip(args, eqn.outvars, strict=True)]


@rule("ppermute", table=FLOW)
def permute(lowering, eqn, args, done):
    """One device sends to itself or to nobody."""
    return [x if (0, 0) in eqn.params["perm"] else jnp.zeros_like(x) for x in args]


@rule("axis_index", table=FLOW)
def index(lowering, eqn, args, done):
    """There is one device."""
    return [np.int32(0)]


@rule(
    "name",
    "sharding_constraint",
    "copy",
    "copy_p",
    "optimization_barrier",
    "device_put",
    table=FLOW,
)
def same(lowering, eqn, args, done):
    """What only tells the compiler something."""
    return list(args)


@rule("empty", "empty2", table=FLOW)
def unset(lowering, eqn, args, done):
    """Numbers nobody reads."""
    types = [pair_type(v.aval) for v in eqn.outvars]
    return [jnp.zeros(t.shape, t.dtype) for t in types]


@rule("debug_callback", "debug_print", table=FLOW)
def printed(lowering: Lowering, eqn, args, done):
    """A model prints nothing."""
    note("left a debug print out of the ONNX model", lowering.where(eqn), "ONNX has no output")
    return []


@rule("pure_callback", "io_callback", "outside_call", "ordered_callback", table=FLOW)
def called_back(lowering: Lowering, eqn, args, done):
    """A model has no Python to call."""
    return lowering.lacks(eqn, "it calls Python, which a model has not", CALL)


CALL = "write it in jax.numpy, or export the parts before and after it"


def distinct(program: Jaxpr) -> Jaxpr:
    """The program with bodies whose results are copies where they are not their own.

    >>> from malleable import stage
    >>> twice = lambda p, x: jax.lax.cond(p, lambda: (x + 1, x + 2), lambda: (x, x))
    >>> (eqn,) = distinct(stage(twice)(True, 1.0).jaxpr).eqns[-1:]
    >>> [len(body.eqns) for body in compat.bodies(eqn.params)]
    [2, 2]
    """
    raw = program.jaxpr
    eqns = list(map(_with_own_results, raw.eqns))
    consts = dict(zip(raw.constvars, program.consts, strict=True))
    return compat.program(program, eqns, raw.outvars, consts)


def _with_own_results(eqn):
    if eqn.primitive.name not in kind("control"):
        return eqn
    return compat.with_bodies(eqn, [_own(distinct(body)) for body in compat.bodies(eqn.params)])


def _own(body: Jaxpr) -> Jaxpr:
    raw = body.jaxpr
    made = {v for eqn in raw.eqns for v in eqn.outvars}
    seen, eqns, outs = set(), list(raw.eqns), []
    for v in raw.outvars:
        if isinstance(v, Literal) or v not in made or v in seen:
            eqns.append(_copy(v))
            v = eqns[-1].outvars[0]
        seen.add(v)
        outs.append(v)
    consts = dict(zip(raw.constvars, body.consts, strict=True))
    return compat.program(body, eqns, outs, consts)


def _copy(v):
    """An equation that copies a variable, or a number."""
    (eqn,) = compat.trace(lambda x: jnp.array(x, copy=True), _type(v.aval)).jaxpr.eqns
    return eqn.replace(invars=[v], outvars=[compat.new_var(v.aval)])


def _type(aval):
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
