"""NumPy code for sums, products of matrices, running results and orders."""

import ml_dtypes
import numpy as np

from malleable.execution.common.breaks import Unsupported
from malleable.execution.numpy.writer import PRODUCT, Value, Writer, is_one, numpy_rule, tuple_of

REDUCTIONS = {
    "reduce_sum": "np.add.reduce",
    "reduce_prod": "np.multiply.reduce",
    "reduce_max": "np.maximum.reduce",
    "reduce_min": "np.minimum.reduce",
    "reduce_and": "np.bitwise_and.reduce",
    "reduce_or": "np.bitwise_or.reduce",
    "reduce_xor": "np.bitwise_xor.reduce",
}

RUNNING = {
    "cumsum": "np.add",
    "cumprod": "np.multiply",
    "cummax": "np.maximum",
    "cummin": "np.minimum",
    "cumlogsumexp": "np.logaddexp",
}


def axes_of(axes, rank: int) -> str:
    """Axes as the argument of a ufunc's reduction."""
    axes = [int(a) for a in axes]
    if len(axes) == rank:
        return "None" if rank > 1 else "0"
    return str(axes[0]) if len(axes) == 1 else tuple_of(map(str, axes))


@numpy_rule(*REDUCTIONS)
def reduce_(w, eqn, x):
    name, axes = eqn.primitive.name, eqn.params["axes"]
    if not axes:
        return x
    text, arguments = w.whole(x), axes_of(axes, x.rank)
    if name in ("reduce_sum", "reduce_prod"):
        if narrow(x.dtype):
            text, dtype = f"{_wide(text)}", w.dtype(x.dtype)
            return f"{REDUCTIONS[name]}({text}, {arguments}).astype({dtype})"
        if x.dtype.kind in "iub":
            arguments += f", {w.dtype(x.dtype)}"
    if name in ("reduce_max", "reduce_min") and _may_be_empty(x, axes):
        arguments += f", initial={_extreme(w, x.dtype, name == 'reduce_max')}"
    return f"{REDUCTIONS[name]}({text}, {arguments})"


def narrow(dtype) -> bool:
    return dtype == ml_dtypes.bfloat16 or dtype == np.float16


def _wide(text: str) -> str:
    return f"{text}.astype(np.float32)"


def _may_be_empty(x: Value, axes) -> bool:
    return any(not isinstance(x.shape[a], int) or x.shape[a] == 0 for a in axes)


def _extreme(w: Writer, dtype, lowest: bool) -> str:
    """What a maximum (lowest) or a minimum of nothing is."""
    if dtype.kind == "b":
        return str(not lowest)
    if dtype.kind == "f" or dtype == ml_dtypes.bfloat16:
        return "-np.inf" if lowest else "np.inf"
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return str(limits.min if lowest else limits.max)
    raise Unsupported(f"the maximum of an empty array of {dtype}")


@numpy_rule("argmax", "argmin")
def argmax(w, eqn, x):
    axis = int(eqn.params["axes"][0])
    dtype = w.dtype(eqn.params["index_dtype"])
    text = f"{w.whole(x)}.{eqn.primitive.name}({axis}).astype({dtype})"
    return w.value(eqn.outvars[0].aval, text, natural=True)


@numpy_rule(*RUNNING)
def running(w, eqn, x):
    ufunc, axis = RUNNING[eqn.primitive.name], int(eqn.params["axis"])
    if eqn.params["reverse"] or narrow(x.dtype):
        if narrow(x.dtype) and eqn.primitive.name in ("cumsum", "cumprod"):
            raise Unsupported(f"{eqn.primitive.name} of {x.dtype}")
        return f"accumulate({ufunc}, {w.argument(x)}, {axis}, {eqn.params['reverse']})"
    dtype = f", {w.dtype(x.dtype)}" if x.dtype.kind in "iub" else ""
    return f"{ufunc}.accumulate({w.argument(x)}, {axis}{dtype})"


@numpy_rule("sort")
def sort(w, eqn, *xs):
    axis, count = int(eqn.params["dimension"]), eqn.params["num_keys"]
    if any(x.dtype.kind == "c" or x.dtype == ml_dtypes.bfloat16 for x in xs[:count]):
        raise Unsupported(f"sort of {xs[0].dtype}")
    if len(xs) == 1:
        return f"{'ordered' if xs[0].dtype.kind == 'f' else 'np.sort'}({w.whole(xs[0])}, {axis})"
    texts = [w.argument(x) for x in xs]
    keys = texts[0] if count == 1 else f"{tuple_of(texts[:count][::-1])}"
    by = (
        f'np.argsort({keys}, {axis}, kind="stable")'
        if count == 1
        else f"np.lexsort({keys}, {axis})"
    )
    order = w.assign(by)
    return [_in_order(w, v.aval, x, order, axis) for v, x in zip(eqn.outvars, xs, strict=True)]


def _in_order(w: Writer, aval, x: Value, order: str, axis: int) -> Value:
    """An array taken in an order along an axis."""
    if x.counts == axis and x.dtype.itemsize > 2:
        return w.value(aval, f"{order}.astype({w.dtype(x.dtype)})", natural=True)
    if x.rank == 1:
        return w.value(aval, f"{w.whole(x)}[{order}]", natural=x.natural)
    text = f"np.take_along_axis({w.argument(x)}, {order}, {axis})"
    return w.value(aval, text, natural=x.natural)


@numpy_rule("top_k")
def top_k(w, eqn, x):
    p = eqn.params
    axis = int(p.get("axis", x.rank - 1)) % x.rank
    values, indices = w.new_name(), w.new_name()
    w.line(f"{values}, {indices} = top_k({w.argument(x)}, {w.size(p['k'])}, {axis})")
    kind = w.dtype(eqn.outvars[1].aval.dtype)
    first, second = (v.aval for v in eqn.outvars)
    return w.named(first, values), w.value(second, f"{indices}.astype({kind})")


# ---------------------------------------------------------------- products


@numpy_rule("dot_general")
def dot_general(w, eqn, x, y):
    aval = eqn.outvars[0].aval
    (cx, cy), (bx, by) = [[list(map(int, d)) for d in p] for p in eqn.params["dimension_numbers"]]
    texts = [_operand(w, v, aval.dtype) for v in (x, y)]
    if x.dtype == bool and aval.dtype == bool:
        raise Unsupported("dot_general of booleans")
    fx = [d for d in range(x.rank) if d not in cx + bx]
    fy = [d for d in range(y.rank) if d not in cy + by]
    if not cx:
        out = _outer(w, aval, x, y, texts, (bx, by, fx, fy))
    elif not bx and x.rank <= 2 and y.rank <= 2 and len(cx) == 1:
        left = texts[0] if cx == [x.rank - 1] else f"{texts[0]}.T"
        right = texts[1] if cy == [0] else f"{texts[1]}.T"
        out = w.value(aval, f"{left} @ {right}", binding=PRODUCT)
    elif not bx:
        axes = f"({cx}, {cy})"
        out = w.value(aval, f"np.tensordot({texts[0]}, {texts[1]}, {axes})")
    else:
        out = _batched(w, aval, x, y, texts, (bx, by, cx, cy, fx, fy))
    if narrow(aval.dtype):
        return w.value(aval, f"{w.text(out, 9)}.astype({w.dtype(aval.dtype)})")
    return out


def _operand(w: Writer, x: Value, dtype) -> str:
    """An operand in the type that the product is computed in."""
    text = w.whole(x)
    due = np.dtype(np.float32) if narrow(dtype) else np.dtype(dtype)
    return text if x.dtype == due else f"{text}.astype({w.dtype(due)})"


def _outer(w: Writer, aval, x: Value, y: Value, texts, dims) -> Value:
    """A product without a sum: by broadcasting."""
    bx, by, fx, fy = dims
    left = _arranged(texts[0], bx + fx, "[..." + ", None" * len(fy) + "]" if fy else "")
    skip = "[" + ":, " * len(by) + "None, " * len(fx) + "...]" if fx else ""
    right = _arranged(texts[1], by + fy, skip)
    return w.value(aval, f"{left} * {right}", binding=PRODUCT)


def _arranged(text: str, order: list[int], after: str) -> str:
    if order != list(range(len(order))):
        text = f"{text}.transpose({', '.join(map(str, order))})"
    return text + after


def _batched(w: Writer, aval, x: Value, y: Value, texts, dims) -> Value:
    """As matrices (batch, free, summed) by (batch, summed, free)."""
    bx, by, cx, cy, fx, fy = dims
    batch = [x.shape[d] for d in bx]
    left = _matrix(w, texts[0], x, bx, (fx, cx))
    right = _matrix(w, texts[1], y, by, (cy, fy))
    text = f"np.matmul({left}, {right})"
    if len(fx) != 1 or len(fy) != 1:
        shape = w.shape([*batch, *(x.shape[d] for d in fx), *(y.shape[d] for d in fy)])
        text = f"{text}.reshape({shape})"
    return w.value(aval, text)


def _matrix(w: Writer, text: str, x: Value, batch: list[int], groups) -> str:
    """An array with its axes put together as (*batch, *groups), a group being one axis."""
    text = _arranged(text, batch + groups[0] + groups[1], "")
    if all(len(g) == 1 for g in groups):
        return text
    sizes = [w.size(x.shape[d]) for d in batch]
    for group in groups:
        factors = [w.size(x.shape[d]) for d in group if not is_one(x.shape[d])]
        sizes.append(" * ".join(f"({f})" if len(factors) > 1 else f for f in factors) or "1")
    return f"{text}.reshape({tuple_of(sizes)})"
