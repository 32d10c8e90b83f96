"""A linear function with a rule of its own in reverse."""

from collections.abc import Callable

import jax
from jax import numpy as jnp
from jax.interpreters import ad, batching, mlir

from malleable.compat.markers import NOT_MAPPED
from malleable.compat.programs import Primitive, as_array, trace


def linear_call(forward: Callable, transpose: Callable, residuals: list, linear: list) -> list:
    """forward(residuals, linear), which is linear in the latter and has this rule in reverse.

    transpose(residuals, cotangents) -> cotangents of `linear`. As JAX's own linear_call, but also
    for vmap and derivatives of any order.
    """
    params = {"forward": forward, "transpose": transpose, "count": len(residuals)}
    return _linear_call.bind(*residuals, *linear, **params)


def _run_linear(*args, forward, transpose, count):
    args = list(map(as_array, args))
    return list(forward(args[:count], args[count:]))


def _linear_avals(*avals, **params):
    outs = trace(lambda *xs: _run_linear(*xs, **params), *avals).out_avals
    return [x.update(weak_type=False) for x in outs]


def _linear_jvp(primals, tangents, *, count, **params):
    outs = _linear_call.bind(*primals, count=count, **params)
    moved = [ad.instantiate_zeros(t) for t in tangents]
    dots = [jnp.zeros_like(x) for x in outs]
    if not all(type(t) is ad.Zero for t in tangents[count:]):
        dots = _linear_call.bind(*primals[:count], *moved[count:], count=count, **params)
    if not all(type(t) is ad.Zero for t in tangents[:count]):
        along = lambda *res: _run_linear(*res, *primals[count:], count=count, **params)  # noqa: E731
        _, more = jax.jvp(along, primals[:count], tuple(moved[:count]))
        dots = [a + b for a, b in zip(dots, more, strict=True)]
    return outs, dots


def _linear_transpose(cts, *args, count, transpose, forward):
    outs = transpose([*map(as_array, args[:count])], [ad.instantiate_zeros(ct) for ct in cts])
    return [None] * count + list(outs)


def _linear_batch(axis, args, dims, *, count, forward, transpose):
    args = list(map(as_array, args))
    if not any(isinstance(d, int) for d in dims):
        outs = linear_call(forward, transpose, args[:count], args[count:])
        return outs, [NOT_MAPPED] * len(outs)
    ins = [d if isinstance(d, int) else None for d in dims[:count]]
    wide = [
        jnp.moveaxis(x, d, 0) if isinstance(d, int) else jnp.broadcast_to(x, (axis.size, *x.shape))
        for x, d in zip(args[count:], dims[count:], strict=True)
    ]
    lanes = {"in_axes": (ins, 0), "axis_size": axis.size, "axis_name": axis.name}
    both = jax.vmap(forward, **lanes), jax.vmap(transpose, **lanes)
    outs = linear_call(*both, args[:count], wide)
    return outs, [0] * len(outs)


_linear_call = Primitive("linear_loop")
_linear_call.multiple_results = True
_linear_call.def_impl(_run_linear)
_linear_call.def_abstract_eval(_linear_avals)
mlir.register_lowering(_linear_call, mlir.lower_fun(_run_linear, multiple_results=True))
ad.primitive_jvps[_linear_call] = _linear_jvp
ad.primitive_transposes[_linear_call] = _linear_transpose
batching.fancy_primitive_batchers[_linear_call] = _linear_batch
