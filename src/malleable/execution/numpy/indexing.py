"""NumPy code for gather and scatter: common forms as NumPy has them, the rest by index arrays."""

from malleable.execution.common.breaks import Unsupported
from malleable.execution.numpy.writer import Value, Writer, numpy_rule, same_size
from malleable.rewriting.axis import picks

UFUNCS = {
    "scatter": "None",
    "scatter-add": "np.add",
    "scatter-sub": "np.subtract",
    "scatter-mul": "np.multiply",
    "scatter-min": "np.minimum",
    "scatter-max": "np.maximum",
}


def fills(mode) -> bool:
    """Whether indices out of range are filled or dropped; else they are moved inside."""
    name = str(mode).upper()
    if "FILL" in name or "DROP" in name:
        return True
    if "CLIP" in name or "PROMISE" in name:
        return False
    raise Unsupported(f"indexing in mode {mode}")


def fill_of(w: Writer, value, dtype) -> str:
    """What stands for an element out of range."""
    value = picks.fill_of(dtype) if value is None else value
    text = {"nan": "np.nan", "inf": "np.inf", "-inf": "-np.inf"}.get(str(value), str(value))
    return f"{w.dtype(dtype)}({text})"


def columns_of(w: Writer, indices: Value) -> list[str]:
    """The expressions of the slices along the last axis: the indices of each dimension."""
    if indices.columns:
        return [
            w.whole(c) if c.full or c.weak else w.assign(w.argument(c)) for c in indices.columns
        ]
    name = indices.text if indices.named and indices.full else w.assign(w.argument(indices))
    skip = ":, " if indices.rank == 2 else "..., " if indices.rank > 2 else ""
    return [f"{name}[{skip}{k}]" for k in range(int(indices.shape[-1]))]


@numpy_rule("gather")
def gather(w, eqn, x, indices):
    p, aval = eqn.params, eqn.outvars[0].aval
    dims, sizes = p["dimension_numbers"], p["slice_sizes"]
    fill = fill_of(w, p["fill_value"], x.dtype) if fills(p["mode"]) else None
    index_map = [int(d) for d in dims.start_index_map]
    gone = {int(d) for d in (*dims.collapsed_slice_dims, *dims.operand_batching_dims)}
    window = [d for d in range(x.rank) if d not in gone]
    offset = [int(d) for d in dims.offset_dims]
    index = _fixed(w, x, dims, indices, index_map, sizes, gone)
    if index is not None:
        return w.value(aval, f"{w.whole(x)}[{', '.join(index)}]" if index else w.whole(x))
    columns = columns_of(w, indices)
    starts = dict(zip(index_map, columns, strict=True))
    plain = not dims.operand_batching_dims and all(
        d in starts if d in gone else d not in starts and same_size(sizes[d], x.shape[d])
        for d in range(x.rank)
    )
    if plain and len(starts) == 1:
        return _take(w, aval, x, starts, offset, fill, indices.rank - 1)
    array = w.whole(x)
    starts_text = _mapping(
        {d: s if indices.rank > 1 else f"np.asarray({s})" for d, s in starts.items()}
    )
    lasts = _mapping({d: w.size(x.shape[d] - sizes[d]) for d in starts})
    batch = _batch(dims.operand_batching_dims, dims.start_indices_batching_dims)
    text = f"gather({array}, {starts_text}, {w.shape(sizes)}, {window}, {lasts}, {batch}, {fill})"
    return w.value(aval, _ordered(text, indices.rank - 1, offset, len(aval.shape)))


def _fixed(w: Writer, x, dims, indices, index_map, sizes, gone) -> list[str] | None:
    """The index of one window at a place that is known, and within: `1:n` of each dimension."""
    known = indices.columns or ()
    if indices.rank != 1 or dims.operand_batching_dims or len(known) != len(index_map):
        return None
    at = {}
    for d, c in zip(index_map, known, strict=True):
        room = x.shape[d] - sizes[d]
        inside = c.weak and c.text.isdigit() and isinstance(room, int) and int(c.text) <= room
        if not inside:
            return None
        at[d] = int(c.text)
    index = []
    for d in range(x.rank):
        begin = at.get(d, 0)
        if d in gone:
            index.append(str(begin))
        elif same_size(sizes[d], x.shape[d]):
            index.append(":")
        else:
            to_end = same_size(begin + sizes[d], x.shape[d])
            index.append(f"{begin or ''}:{'' if to_end else w.size(begin + sizes[d])}")
    return index


def _mapping(entries: dict) -> str:
    return "{" + ", ".join(f"{key}: {text}" for key, text in entries.items()) + "}"


def _batch(dims, axes) -> dict:
    return {int(d): int(a) for d, a in zip(dims, axes, strict=True)}


def _ordered(text: str, batch_rank: int, offset: list[int], rank: int) -> str:
    """From (batch axes, window axes) to the order that the program says."""
    source = iter(range(batch_rank))
    places = {d: batch_rank + k for k, d in enumerate(offset)}
    order = [places[d] if d in places else next(source) for d in range(rank)]
    if order == list(range(rank)):
        return text
    return f"{text}.transpose({', '.join(map(str, order))})"


def _take(w, aval, x, starts, offset, fill, batch_rank) -> Value:
    """Elements or slices along one axis."""
    ((axis, index),) = starts.items()
    last = w.size(x.shape[axis] - 1)
    if fill is None:
        text = f'{w.whole(x)}.take({index}, {axis}, mode="clip")'
    else:
        name = index if index.isidentifier() else w.assign(index)
        text = f"take({w.argument(x)}, {name}, {axis}, {last}, {fill})"
    # the result has the batch axes in the place of the axis
    rank = batch_rank + x.rank - 1
    batch, kept = iter(range(axis, axis + batch_rank)), list(range(axis))
    kept += range(axis + batch_rank, rank)
    places = dict(zip(offset, kept, strict=True))
    order = [places[d] if d in places else next(batch) for d in range(rank)]
    if order != list(range(rank)):
        text = f"{text}.transpose({', '.join(map(str, order))})"
    return w.value(aval, text)


@numpy_rule(*UFUNCS)
def scatter(w, eqn, x, indices, updates):
    p = eqn.params
    dims, clip = p["dimension_numbers"], not fills(p["mode"])
    if p.get("update_consts") or not _is_usual(eqn):
        raise Unsupported("a scatter with a function of its own")
    index_map = [int(d) for d in dims.scatter_dims_to_operand_dims]
    gone = {int(d) for d in (*dims.inserted_window_dims, *dims.operand_batching_dims)}
    window = [d for d in range(x.rank) if d not in gone]
    in_updates = [int(d) for d in dims.update_window_dims]
    sizes = [1] * x.rank
    for d, k in zip(window, in_updates, strict=True):
        sizes[d] = updates.shape[k]
    columns = columns_of(w, indices)
    starts = dict(zip(index_map, columns, strict=True))
    starts_text = _mapping(
        {d: s if indices.rank > 1 else f"np.asarray({s})" for d, s in starts.items()}
    )
    lasts = _mapping({d: w.size(x.shape[d] - sizes[d]) for d in starts})
    batch = _batch(dims.operand_batching_dims, dims.scatter_indices_batching_dims)
    first = [d for d in range(updates.rank) if d not in in_updates] + in_updates
    what = w.whole(updates)
    if first != list(range(updates.rank)):
        what = f"{what}.transpose({', '.join(map(str, first))})"
    ufunc = UFUNCS[eqn.primitive.name]
    return (
        f"scatter({w.argument(x)}, {starts_text}, {what}, {w.shape(sizes)}, {window}, "
        f"{lasts}, {batch}, {clip}, {ufunc})"
    )


def _is_usual(eqn) -> bool:
    """Whether the updates are combined as the name says: `scatter` may carry any function."""
    body = eqn.params["update_jaxpr"]
    if eqn.primitive.name != "scatter" or body is None:
        return True
    return not body.eqns and body.outvars == [body.invars[1]]
