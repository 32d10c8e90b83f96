"""Classes of values for tests, and for each: (rules, make, want, check).

make(x) gives a value that stands for something like the matrix x; want(f, v) what f does to it,
said with arrays; check(out, want) asserts that values in a result say the same.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import malleable as mal
from malleable.core.values import is_value

WIDTH = 3
ADD_ANY = jax.make_jaxpr(jax.grad(lambda x: x * x))(1.0).eqns[-1].primitive
SUM = [lax.add_p, ADD_ANY]
MOVES = [
    lax.broadcast_in_dim_p,
    lax.concatenate_p,
    lax.convert_element_type_p,
    lax.copy_p,
    lax.dynamic_slice_p,
    lax.reduce_sum_p,
    lax.reshape_p,
    lax.select_n_p,
    lax.slice_p,
    lax.squeeze_p,
    lax.transpose_p,
]
typed = lambda x: jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))


def close(a, b):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-5, atol=2e-5)


def dense(out):
    """The arrays that values in a result stand for."""
    return jax.tree.map(lambda v: v.materialise() if is_value(v) else v, out, is_leaf=is_value)


def of_array(f, x):
    return f(dense(x))


def alike(out, want):
    jax.tree.map(close, dense(out), want)


@mal.value
class Box:
    x: Any
    aval = property(lambda self: jax.typeof(self.x))
    materialise = lambda self: self.x
    lift = classmethod(lambda cls, x, like: cls(x))


def boxed(frame, *xs, **params):
    out = frame.bind(*(x.x if isinstance(x, Box) else x for x in xs))
    return list(map(Box, out)) if frame.eqn.primitive.multiple_results else Box(out)


@mal.value
class Interval:
    lo: Any
    hi: Any
    aval = property(lambda self: typed(self.lo))

    @classmethod
    def lift(cls, x, like):
        return cls(x, x)


lo = lambda x: x.lo if isinstance(x, Interval) else x
hi = lambda x: x.hi if isinstance(x, Interval) else x
Either = Interval | jax.Array


def rising(frame, *xs: Either, **_):
    return Interval(frame.bind(*map(lo, xs)), frame.bind(*map(hi, xs)))


def falling(frame, x: Interval, **_):
    return Interval(frame.bind(x.hi), frame.bind(x.lo))


def corners(frame, x: Either, y: Either, **_):
    every = [frame.bind(a, b) for a in (lo(x), hi(x)) for b in (lo(y), hi(y))]
    return Interval(functools.reduce(jnp.minimum, every), functools.reduce(jnp.maximum, every))


def subtract(frame, x: Either, y: Either, **_):
    return Interval(frame.bind(lo(x), hi(y)), frame.bind(hi(x), lo(y)))


def dot(frame, x: Either, y: Either, **_):
    mid, rad = (lambda v: (lo(v) + hi(v)) / 2), (lambda v: (hi(v) - lo(v)) / 2)
    at = frame.bind(mid(x), mid(y))
    reach = frame.bind(abs(mid(x)), rad(y)) + frame.bind(rad(x), abs(mid(y)) + rad(y))
    return Interval(at - reach, at + reach)


INTERVALS = {
    **dict.fromkeys([*SUM, *MOVES, lax.tanh_p, lax.max_p, lax.exp_p], rising),
    lax.neg_p: falling,
    lax.mul_p: corners,
    lax.div_p: corners,
    lax.sub_p: subtract,
    lax.dot_general_p: dot,
}


def of_samples(f, x):
    return [f(x.lo + share * (x.hi - x.lo)) for share in (0.0, 0.3, 1.0)]


def encloses(out, want):
    for inner in want:
        assert (lo(out) <= inner + 1e-5).all() and (inner <= hi(out) + 1e-5).all()


@mal.value
class Dual:
    x: Any
    dx: Any
    aval = property(lambda self: typed(self.x))

    @classmethod
    def lift(cls, x, like):
        return cls(x, jnp.zeros_like(x))


def pushed(frame, *xs, **_):
    at = [i for i, x in enumerate(xs) if isinstance(x, Dual)]

    def fun(*changed):
        new = dict(zip(at, changed, strict=True))
        return frame.bind(*(new.get(i, x) for i, x in enumerate(xs)))

    return Dual(*jax.jvp(fun, [xs[i].x for i in at], [xs[i].dx for i in at]))


def of_line(f, x):
    """The programs here are linear."""
    return f(x.x), f(x.dx)


def derived(out, want):
    close(out.x, want[0]), close(out.dx, want[1])


@mal.value(static="unit")
class Quantity:
    x: Any
    unit: str
    aval = property(lambda self: self.x.aval if is_value(self.x) else typed(self.x))


def scaled(frame, x: Quantity | jax.Array, y: Quantity | jax.Array, **_):
    parts = [v for v in (x, y) if isinstance(v, Quantity)]
    bare = [v.x if isinstance(v, Quantity) else v for v in (x, y)]
    return Quantity(frame.bind(*bare), "*".join(v.unit for v in parts))


def kept(frame, *xs: Quantity, **_):
    units = {x.unit for x in xs}
    if len(units) > 1:
        raise frame.error(f"units clash: {sorted(units)}", "convert one")
    return Quantity(frame.bind(*(x.x for x in xs)), units.pop())


UNITS = {
    **dict.fromkeys([*SUM, *MOVES, lax.sub_p, lax.neg_p], kept),
    lax.mul_p: scaled,
    lax.dot_general_p: scaled,
}


def measured(out, want):
    close(out.x, want)
    assert out.unit == "m"


@mal.value(static="like")
class Zero:
    like: Any
    aval = property(lambda self: jax.ShapeDtypeStruct(*self.like))
    materialise = lambda self: jnp.zeros(*self.like)


def vanishes(frame, *xs, **_):
    types = [x.aval if isinstance(x, Zero) else x for x in xs]
    out = jax.eval_shape(frame.bind, *types)
    return Zero((out.shape, out.dtype))


def neutral(frame, x: Zero | jax.Array, y: Zero | jax.Array, **_):
    if isinstance(x, Zero) and isinstance(y, Zero):
        return x
    return y if isinstance(x, Zero) else x


@mal.value
class LoRA:
    w: Any
    a: Any
    b: Any
    aval = property(lambda self: typed(self.w))
    materialise = lambda self: self.w + self.a @ self.b


def low_rank(frame, x: LoRA | jax.Array, y: LoRA | jax.Array, dimension_numbers, **_):
    if not isinstance(x, jax.Array) or dimension_numbers != (((1,), (0,)), ((), ())):
        return frame.bind(*map(dense, (x, y)))
    return frame.bind(x, y.w) + frame.bind(frame.bind(x, y.a), y.b)


@mal.value
class Diagonal:
    d: Any
    aval = property(lambda self: jax.ShapeDtypeStruct(self.d.shape * 2, self.d.dtype))
    materialise = lambda self: jnp.diag(self.d)


def diagonal_dot(frame, x, y, dimension_numbers, **_):
    if dimension_numbers != (((1,), (0,)), ((), ())) or not isinstance(x, Diagonal):
        return frame.bind(*map(dense, (x, y)))
    return Diagonal(x.d * y.d) if isinstance(y, Diagonal) else x.d[:, None] * y


def diagonal_sum(frame, x, y, **_):
    both = isinstance(x, Diagonal) and isinstance(y, Diagonal)
    return Diagonal(x.d + y.d) if both else frame.bind(*map(dense, (x, y)))


@mal.value
class Int8:
    q: Any
    scale: Any
    aval = property(lambda self: jax.ShapeDtypeStruct(self.q.shape, self.scale.dtype))
    materialise = lambda self: self.q.astype(self.scale.dtype) * self.scale


def dequantised(frame, x: jax.Array, y: Int8, dimension_numbers, **_):
    if dimension_numbers != (((1,), (0,)), ((), ())):
        return frame.bind(x, y.materialise())
    return frame.bind(x, y.q.astype(x.dtype)) * y.scale


def quantised(x):
    scale = abs(x).max(0) / 127
    return Int8(jnp.round(x / scale).astype(jnp.int8), scale)


LORAS = {lax.dot_general_p: low_rank, lax.transpose_p: lambda f, x, **_: LoRA(x.w.T, x.b.T, x.a.T)}
KINDS = {  # name: (rules, make, want, check)
    "box": ({Box: boxed}, Box, of_array, alike),
    "interval": (INTERVALS, lambda x: Interval(x - 0.1, x + 0.1), of_samples, encloses),
    "dual": ({Dual: pushed}, lambda x: Dual(x, jnp.cos(x)), of_line, derived),
    "unit": (UNITS, lambda x: Quantity(x, "m"), lambda f, x: f(x.x), measured),
    "zero": (
        {Zero: vanishes, lax.add_p: neutral, lax.sub_p: lambda f, x, y, **_: dense(x) - dense(y)},
        lambda x: Zero((x.shape, x.dtype)),
        of_array,
        alike,
    ),
    "lora": (LORAS, lambda x: LoRA(x, x[:, :2], x[:2]), of_array, alike),
    "diagonal": (
        {lax.dot_general_p: diagonal_dot, lax.add_p: diagonal_sum},
        lambda x: Diagonal(x[0]),
        of_array,
        alike,
    ),
    "int8": ({lax.dot_general_p: dequantised}, quantised, of_array, alike),
}
