"""NaN for ONNX, where onnxruntime passes over it: the largest, the first, the order; whole sums.

JAX's maximum of numbers among which is a NaN is NaN; onnxruntime's ReduceMax, ArgMax, TopK and
ScatterND give what depends on where it stands. A softmax needs no care: `left_to_softmax`.
"""

import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.compat import Jaxpr
from malleable.integrations.onnx.lowering import rule
from malleable.integrations.onnx.numbers import NATIVE
from malleable.programs.primitives import kind
from malleable.programs.reach import reach


def is_float(aval) -> bool:
    """Whether this has a NaN, and needs no other type first (bfloat16 does)."""
    return aval.dtype.kind == "f" and ("reduce_max" in NATIVE.get(aval.dtype, "reduce_max"))


def poison(x):
    """NaN where x is, 0 elsewhere: to be added."""
    return jnp.where(x == x, np.asarray(0, x.dtype), np.asarray(np.nan, x.dtype))


@rule("reduce_max", "reduce_min", once=True)
def extreme(eqn):
    """The largest (least), and the sum of what makes it NaN."""
    axes = tuple(eqn.params["axes"])
    if not is_float(eqn.invars[0].aval) or not axes:
        return None
    return lambda x: eqn.primitive.bind(x, **eqn.params) + poison(x).sum(axes)


@rule("argmax", "argmin", once=True)
def first_nan(eqn):
    """The first NaN, where there is one."""
    (axis,) = eqn.params["axes"]
    if not is_float(eqn.invars[0].aval):
        return None

    def fun(x):
        odd = (x != x).astype(np.int32)
        first = lax.argmax(odd, axis, eqn.params["index_dtype"])
        return jnp.where(jnp.max(odd, axis) > 0, first, eqn.primitive.bind(x, **eqn.params))

    return fun


@rule("sort", once=True)
def nan_last_keys(eqn):
    """By whether it is NaN, then by number: two keys for each key of floats."""
    count, axis = eqn.params["num_keys"], eqn.params["dimension"]
    keys = [v.aval for v in eqn.invars[:count]]
    if not any(map(is_float, keys)):
        return None

    def fun(*xs):
        wide, places = [], []
        for x, key in zip(xs, keys, strict=False):
            wide += [(x != x).astype(np.int32)] if is_float(key) else []
            places.append(len(wide))
            wide.append(x)
        rest = range(len(wide), len(wide) + len(xs) - count)
        outs = lax.sort((*wide, *xs[count:]), dimension=axis, num_keys=len(wide))
        return [outs[i] for i in (*places, *rest)]

    return fun


@rule("top_k", once=True)
def largest(eqn):
    """NaN counts as infinity, that as the largest number, and -0 as less than 0, as in JAX."""
    aval, p = eqn.invars[0].aval, eqn.params
    axis = p.get("axis", -1)
    if not is_float(aval):
        return None
    ends = jnp.finfo(aval.dtype)
    most, least, infinite = (np.asarray(v, aval.dtype) for v in (ends.max, ends.tiny, np.inf))

    def fun(x):
        key = jnp.where(x == x, jnp.minimum(x, most), infinite)
        key = jnp.where(1 / x == -infinite, -least, key)
        _, at = eqn.primitive.bind(key, **p)
        return jnp.take_along_axis(x, at, axis, mode="promise_in_bounds"), at

    return fun


@rule("approx_top_k")
def nearly_largest(eqn):
    """The largest: a processor makes no approximation."""
    p, aval = eqn.params, eqn.invars[0].aval
    if not p["is_max_k"] or p["reduction_dimension"] not in (-1, len(aval.shape) - 1):
        return None
    return lambda x: lax.top_k(x, p["k"])


@rule("reduce_sum", once=True)
def whole_sum(eqn):
    """Of integers: as a product with ones, which wraps; ReduceSum stops at the largest number."""
    aval, axes = eqn.invars[0].aval, eqn.params["axes"]
    sizes = [aval.shape[i] for i in axes]
    if aval.dtype not in (np.int32, np.int64) or not axes:
        return None

    def fun(x):
        ones = jnp.ones(sizes, aval.dtype)
        dims = (tuple(axes), tuple(range(len(axes)))), ((), ())
        return lax.dot_general(x, ones, dims, preferred_element_type=aval.dtype)

    return fun


# ---------------------------------------------------------------- softmax

SAME = kind("same", "dims") | {"max"}


def left_to_softmax(program: Jaxpr) -> Jaxpr:
    """The program without the care for NaN in the maximum of a softmax, whose sum is NaN anyway."""
    raw = program.jaxpr
    made = {v: eqn for eqn in raw.eqns for v in eqn.outvars}
    used: dict = {}
    for eqn in raw.eqns:
        for i, v in enumerate(eqn.invars):
            if not isinstance(v, compat.Literal):
                used.setdefault(v, []).append((eqn, i))
    ends = {v for v in raw.outvars if not isinstance(v, compat.Literal)}
    plain = {}
    for eqn in raw.eqns:
        if eqn.primitive.name == "add" and is_care(eqn, made):
            largest = made[eqn.invars[0]]
            if is_softmax(eqn.outvars[0], largest, made, used, ends):
                plain[eqn.outvars[0]] = eqn.invars[0]
    eqns = [
        with_inner(eqn).replace(
            invars=[v if isinstance(v, compat.Literal) else plain.get(v, v) for v in eqn.invars]
        )
        for eqn in raw.eqns
    ]
    consts = dict(zip(raw.constvars, program.consts, strict=True))
    return compat.program(program, eqns, raw.outvars, consts)


def with_inner(eqn):
    if eqn.primitive.name not in kind("control"):
        return eqn
    return compat.with_bodies(eqn, [left_to_softmax(body) for body in compat.bodies(eqn.params)])


def is_care(eqn, made) -> bool:
    """Whether this adds to a maximum what `extreme` does."""
    sources = [made.get(v) for v in eqn.invars if not isinstance(v, compat.Literal)]
    names = [source.primitive.name for source in sources if source is not None]
    return names == ["reduce_max", "reduce_sum"]


def is_softmax(found, largest, made, used, ends) -> bool:
    """Whether all that is done with a maximum is exp(x - maximum), over its sum, or in its log."""
    shifts = reached({found}, used, ends, lambda eqn, i: eqn.primitive.name == "sub" and i == 1)
    return bool(shifts) and all(is_normalized(eqn, largest, made, used, ends) for eqn in shifts)


def is_normalized(shift, largest, made, used, ends) -> bool:
    """Whether of x - maximum nothing is left but its exp over the sum, or it less their log."""
    x, axes = shift.invars[0], set(map(int, largest.params["axes"]))
    if x is not largest.invars[0] and x in made and made[x].primitive.name == "transpose":
        axes = {i for i, axis in enumerate(made[x].params["permutation"]) if axis in axes}
        x = made[x].invars[0]
    users = used.get(shift.outvars[0], [])
    exps = [eqn for eqn, _ in users if eqn.primitive.name == "exp"]
    minus = [eqn for eqn, i in users if eqn.primitive.name == "sub" and i == 0]
    over = [use for eqn in exps for use in used.get(eqn.outvars[0], [])]
    sums = [eqn for eqn, _ in over if eqn.primitive.name == "reduce_sum"]
    parts = [eqn for eqn, i in over if eqn.primitive.name == "div" and i == 0]
    totals = below({eqn.outvars[0] for eqn in sums}, used)
    return (
        x is largest.invars[0]
        and len(exps) + len(minus) == len(users)
        and len(sums) + len(parts) == len(over)
        and not ends & {eqn.outvars[0] for eqn in (shift, *exps)}
        and bool(sums)
        and all(set(map(int, eqn.params["axes"])) == axes for eqn in sums)
        and all(eqn.invars[1] in totals for eqn in (*minus, *parts))
    )


def reached(found: set, used, ends, last) -> list:
    """The equations of the kind `last` that end all ways from some values; none if others do."""
    out = []
    for v in below(found, used):
        if v in ends:
            return []
        for eqn, i in used.get(v, []):
            if last(eqn, i):
                out.append(eqn)
            elif eqn.primitive.name not in SAME:
                return []
    return out


def below(found: set, used) -> set:
    """The values, and what becomes of them without arithmetic, or as a logarithm."""
    kept = SAME | {"log"}
    onward = lambda v: [e.outvars[0] for e, _ in used.get(v, []) if e.primitive.name in kept]  # noqa: E731
    return set(reach(found, onward))
