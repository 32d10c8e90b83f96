"""NumPy code for what moves, joins and cuts arrays, and for sizes as values."""

import numpy as np

from malleable.execution.common.breaks import Unsupported
from malleable.execution.numpy.writer import (
    Value,
    Writer,
    is_one,
    numpy_rule,
    same_size,
    same_sizes,
    tuple_of,
)


@numpy_rule("broadcast_in_dim")
def broadcast_in_dim(w, eqn, x, *sizes):
    if sizes:
        raise Unsupported("broadcast_in_dim to sizes that are values")
    aval, dims = eqn.outvars[0].aval, [int(d) for d in eqn.params["broadcast_dimensions"]]
    columns = None
    if x.dtype.kind in "iu" and _adds_column(dims, aval.shape, x.rank):
        w.name(x)
        columns = (x,)
    return spread(w, x, aval, dims, columns)


def spread(w: Writer, x: Value, aval, dims: list[int], columns=None) -> Value:
    """x with its axes at `dims` of a larger shape; NumPy broadcasts the other axes."""
    if not x.sizes:
        text, binding, weak = x.text, x.binding, x.weak
        return w.value(aval, text, (), binding, weak=weak, named=x.named, columns=columns)
    at = dict(zip(reversed(dims), reversed(x.sizes), strict=False))
    axes = range(min(at), len(aval.shape))
    sizes = tuple(at.get(k, 1) for k in axes)
    if all(k in at for k in axes):
        return w.value(aval, x.text, sizes, x.binding, named=x.named, columns=columns)
    index = ", ".join(":" if k in at else "None" for k in axes)
    return w.value(aval, f"{w.array(x)}[{index}]", sizes, columns=columns, natural=x.natural)


def _adds_column(dims: list[int], shape, rank: int) -> bool:
    return len(shape) == rank + 1 and is_one(shape[-1]) and dims == list(range(rank))


@numpy_rule("reshape")
def reshape(w, eqn, x, *sizes):
    if sizes or eqn.params["dimensions"] is not None:
        raise Unsupported("reshape with a permutation or with sizes that are values")
    aval = eqn.outvars[0].aval
    if not x.sizes:
        return w.value(aval, x.text, (), x.binding, weak=x.weak, named=x.named)
    if same_sizes(x.shape, aval.shape):
        return x
    columns = None
    if x.dtype.kind in "iu" and len(aval.shape) == x.rank + 1 and is_one(aval.shape[-1]):
        w.name(x)
        columns = (x,) if same_sizes(aval.shape[:-1], x.shape) else None
    text = f"{w.whole(x)}.reshape({w.shape(aval.shape)})"
    return w.value(aval, text, columns=columns)


@numpy_rule("squeeze")
def squeeze(w, eqn, x):
    gone = [int(d) % x.rank for d in eqn.params["dimensions"]]
    return without(w, eqn.outvars[0].aval, x, gone)


def without(w: Writer, aval, x: Value, gone) -> Value:
    """x without some axes of size 1."""
    if x.cut and not x.named and all(x.cut[1][d] != ":" for d in gone):
        text, kept = x.cut
        index = [i.partition(":")[0] or "0" if d in gone else i for d, i in enumerate(kept)]
        return w.value(aval, f"{text}[{_trimmed_index(index)}]")
    first = x.rank - len(x.sizes)
    index = ["0" if d in gone else ":" for d in range(first, x.rank)]
    sizes = tuple(s for d, s in enumerate(x.sizes, first) if d not in gone)
    while index and index[-1] == ":":
        index.pop()
    if not index:
        return w.value(aval, x.text, sizes, x.binding, weak=x.weak, named=x.named)
    return w.value(aval, f"{w.array(x)}[{', '.join(index)}]", sizes)


@numpy_rule("transpose")
def transpose(w, eqn, x):
    aval, order = eqn.outvars[0].aval, [int(d) for d in eqn.params["permutation"]]
    if not x.sizes or order == list(range(x.rank)):
        return w.value(aval, x.text, x.sizes, x.binding, weak=x.weak, named=x.named)
    text, sizes = (w.array(x), x.sizes) if len(x.sizes) == x.rank else (w.whole(x), x.shape)
    sizes = tuple(sizes[d] for d in order)
    text = f"{text}.T" if order == [1, 0] else f"{text}.transpose({', '.join(map(str, order))})"
    return w.value(aval, text, sizes)


@numpy_rule("rev")
def rev(w, eqn, x):
    dims = [int(d) for d in eqn.params["dimensions"]]
    first = x.rank - len(x.sizes)
    flipped = [d in dims and not is_one(s) for d, s in enumerate(x.sizes, first)]
    if not any(flipped):
        return x
    while not flipped[-1]:
        flipped.pop()
    index = ", ".join("::-1" if f else ":" for f in flipped)
    return w.value(eqn.outvars[0].aval, f"{w.array(x)}[{index}]", x.sizes)


MOST = 8  # columns of an index that are kept apart


@numpy_rule("concatenate")
def concatenate(w, eqn, *xs):
    aval, axis = eqn.outvars[0].aval, int(eqn.params["dimension"])
    if len(xs) == 1:
        return xs[0]
    columns = None
    if axis == len(aval.shape) - 1 and len(xs) <= MOST and all(x.columns for x in xs):
        columns = tuple(c for x in xs for c in x.columns)
    text = f"np.concatenate({tuple_of(map(w.argument, xs))}, {axis})"
    return w.value(aval, text, columns=columns)


@numpy_rule("slice")
def slice_(w, eqn, x):
    p, aval = eqn.params, eqn.outvars[0].aval
    strides = p["strides"] or (1,) * x.rank
    limits = list(zip(p["start_indices"], p["limit_indices"], strides, x.shape, strict=True))
    if not x.sizes:
        return w.value(aval, x.text, (), x.binding, weak=x.weak, named=x.named)
    index = [_limits(w, *limit) for limit in limits]
    return _indexed(w, aval, w.whole(x), index) if set(index) != {":"} else x


def _indexed(w: Writer, aval, text: str, index: list[str]) -> Value:
    return w.value(aval, f"{text}[{_trimmed_index(index)}]", cut=(text, tuple(index)))


def _trimmed_index(index: list[str]) -> str:
    """An index without the axes at its end that are kept."""
    last = max((k for k, i in enumerate(index) if i != ":"), default=0)
    return ", ".join(index[: last + 1])


def _limits(w: Writer, start, stop, step, size) -> str:
    begin = "" if same_size(start, 0) else w.size(start)
    end = "" if same_size(stop, size) else w.size(stop)
    return f"{begin}:{end}" + ("" if is_one(step) else f":{w.size(step)}")


@numpy_rule("split")
def split(w, eqn, x):
    axis, name, outs, begin = int(eqn.params["axis"]), w.whole(x), [], 0
    if not (x.named and x.full):
        name = w.assign(name)
    for v, size in zip(eqn.outvars, eqn.params["sizes"], strict=True):
        stop = begin + size
        outs.append(w.value(v.aval, f"{name}[{':, ' * axis}{w.size(begin)}:{w.size(stop)}]"))
        begin = stop
    return outs


@numpy_rule("unstack")
def unstack(w, eqn, x):
    name = x.text if x.named and x.full else w.assign(w.argument(x))
    axis = int(eqn.params["axis"]) % x.rank
    texts = (f"{name}[{':, ' * axis}{i}]" for i in range(len(eqn.outvars)))
    return [w.value(v.aval, text) for v, text in zip(eqn.outvars, texts, strict=True)]


@numpy_rule("stack")
def stack(w, eqn, *xs):
    return f"np.stack({tuple_of(map(w.argument, xs))}, {int(eqn.params['axis'])})"


@numpy_rule("tile")
def tile(w, eqn, x):
    return f"np.tile({w.argument(x)}, {w.shape(eqn.params['reps'])})"


@numpy_rule("pad")
def pad(w, eqn, x, value):
    low, high, interior = zip(*eqn.params["padding_config"], strict=True)
    if not any(map(str, (*low, *high, *interior))):
        return x
    sides = ", ".join(w.shape(side) for side in (low, high, interior))
    return f"pad({w.argument(x)}, {w.text(value)}, {sides})"


@numpy_rule("iota")
def iota(w, eqn, *sizes):
    if sizes:
        raise Unsupported("iota of a size that is a value")
    aval, d = eqn.outvars[0].aval, int(eqn.params["dimension"])
    n, dtype = aval.shape[d], np.dtype(eqn.params["dtype"])
    exact = isinstance(n, int) and (dtype.itemsize > 2 and dtype.kind in "iuf")
    kind = w.dtype(dtype)
    text = f"np.arange({w.size(n)}"
    text += f", dtype={kind})" if exact else f").astype({kind})"
    after = len(aval.shape) - d - 1
    if after:
        text += f"[:{', None' * after}]"
    return w.value(aval, text, (n,) + (1,) * after, natural=exact, counts=d)


@numpy_rule("dim_as_value")
def dim_as_value(w, eqn):
    aval = eqn.outvars[0].aval
    return f"{w.dtype(aval.dtype)}({w.size(eqn.params['dim'])})"


@numpy_rule("dynamic_slice")
def dynamic_slice(w, eqn, x, *starts):
    index = []
    sizes = eqn.params["slice_sizes"]
    for i, n, size in zip(starts[: x.rank], x.shape, sizes, strict=True):
        if same_size(n, size):
            index.append(":")
        elif i.weak and isinstance(n, int) and isinstance(size, int):
            begin = min(max(int(i.text.strip("()")), 0), n - size)
            index.append(f"{begin}:{begin + size}")
        else:
            index.append(_span(w, i, n, size))
    return _indexed(w, eqn.outvars[0].aval, w.whole(x), index)


def _span(w: Writer, i: Value, n, size) -> str:
    begin = w.assign(f"start({w.text(i)}, {w.size(n - size)})")
    return f"{begin}:{begin} + {w.size(size)}"


@numpy_rule("dynamic_update_slice")
def dynamic_update_slice(w, eqn, x, update, *starts):
    at = tuple_of(map(w.text, starts))
    return f"dynamic_update_slice({w.argument(x)}, {w.argument(update)}, {at})"
