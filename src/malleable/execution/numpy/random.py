"""NumPy code for random keys: JAX's own generators, put in place, so the numbers are the same.

A key is an array of its words: what the program says of keys is said of arrays with an axis more.
"""

import types

import jax

from malleable import compat
from malleable.execution.common.breaks import Unsupported
from malleable.execution.numpy.writer import ON_KEYS, RULES, Value, Writer, numpy_rule, words
from malleable.programs.primitives import kind
from malleable.programs.types import is_key

# what holds of arrays of keys as of arrays of words, and how their params are said of words
MOVED = {
    "broadcast_in_dim": lambda p, rank, out: {
        "broadcast_dimensions": (*p["broadcast_dimensions"], out)
    },
    "reshape": lambda p, rank, out: {},
    "squeeze": lambda p, rank, out: {},
    "transpose": lambda p, rank, out: {"permutation": (*p["permutation"], rank)},
    "concatenate": lambda p, rank, out: {},
    "copy": lambda p, rank, out: {},
    "copy_p": lambda p, rank, out: {},
    "slice": lambda p, rank, out: {
        "start_indices": (*p["start_indices"], 0),
        "limit_indices": (*p["limit_indices"], None),
        "strides": (*p["strides"], 1) if p["strides"] else None,
    },
    "unstack": lambda p, rank, out: {},
    "split": lambda p, rank, out: {},
    "stack": lambda p, rank, out: {},
    "dynamic_slice": lambda p, rank, out: {"slice_sizes": (*p["slice_sizes"], None)},
    "gather": lambda p, rank, out: {
        "slice_sizes": (*p["slice_sizes"], None),
        "dimension_numbers": p["dimension_numbers"]._replace(
            offset_dims=(*p["dimension_numbers"].offset_dims, out)
        ),
    },
}

WITH_PROGRAMS = kind("control")


def on_words(w: Writer, eqn, ins) -> object:
    """An equation on keys, as one on their words."""
    name = eqn.primitive.name
    if name in WITH_PROGRAMS or name.startswith("random_"):
        return RULES[name](w, eqn, *ins)
    if name not in MOVED:
        raise Unsupported(f"{name} of random keys")
    last = ins[0].shape[-1]
    rank, out = len(eqn.invars[0].aval.shape), len(eqn.outvars[0].aval.shape)
    changed = MOVED[name](eqn.params, rank, out)
    filled = {
        k: tuple(last if d is None else d for d in p) if isinstance(p, tuple) else p
        for k, p in changed.items()
    }
    outvars = [
        types.SimpleNamespace(aval=jax.ShapeDtypeStruct(*words(v.aval))) for v in eqn.outvars
    ]
    if name == "dynamic_slice":
        zero = jax.ShapeDtypeStruct((), "int32")
        ins = [*ins, w.value(zero, "0", (), weak=True, named=True)]
    moved = types.SimpleNamespace(
        primitive=eqn.primitive, params=eqn.params | filled, outvars=outvars, invars=eqn.invars
    )
    return RULES[name](w, moved, *ins)


def _generator(eqn):
    if "impl" in eqn.params:
        return eqn.params["impl"]
    return next(v.aval.dtype._impl for v in eqn.invars if is_key(v.aval))


def _traced_in_place(w: Writer, eqn, fun, ins, batch: int) -> list[Value]:
    """fun(words of one key, ...), traced for the axes of keys before, and put here."""
    for _ in range(batch):
        fun = jax.vmap(fun)
    avals = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in ins]
    with compat.source(eqn):
        return w.inline(compat.trace(fun, *avals), ins)


@numpy_rule("random_wrap", "random_unwrap", "random_clone")
def same(w, eqn, x):
    return x


@numpy_rule("random_seed")
def seed(w, eqn, seeds):
    return _traced_in_place(w, eqn, _generator(eqn).seed, [seeds], seeds.rank)


@numpy_rule("random_split")
def split(w, eqn, keys):
    shape, generator = eqn.params["shape"], _generator(eqn)
    return _traced_in_place(w, eqn, lambda key: generator.split(key, shape), [keys], keys.rank - 1)


@numpy_rule("random_fold_in")
def fold_in(w, eqn, keys, data):
    if keys.rank - 1 != data.rank:
        raise Unsupported("random_fold_in of keys and numbers of different shapes")
    return _traced_in_place(w, eqn, _generator(eqn).fold_in, [keys, data], data.rank)


@numpy_rule("random_bits")
def bits(w, eqn, keys):
    width, shape, generator = eqn.params["bit_width"], eqn.params["shape"], _generator(eqn)
    fun = lambda key: generator.random_bits(key, width, shape)  # noqa: E731
    return _traced_in_place(w, eqn, fun, [keys], keys.rank - 1)


@numpy_rule("threefry2x32")
def threefry(w, eqn, *ins):
    names = [w.new_name() for _ in eqn.outvars]
    w.line(f"{', '.join(names)} = threefry2x32({', '.join(map(w.argument, ins))})")
    return [w.named(v.aval, name) for v, name in zip(eqn.outvars, names, strict=True)]


@numpy_rule("iota_2x32_shape")
def counts(w, eqn):
    shape = w.shape(eqn.params["shape"])
    names = [w.new_name() for _ in eqn.outvars]
    w.line(f"{', '.join(names)} = counts_2x32({shape})")
    return [w.named(v.aval, name) for v, name in zip(eqn.outvars, names, strict=True)]


ON_KEYS.append(on_words)
