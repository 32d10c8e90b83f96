"""Convolutions in other words: by the product of spectra, and of the places of a raster."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable.rewriting.graph.graph import Graph, Node


class Spectrum(NamedTuple):
    """What the spectra of some real values along a dimension, n long, are multiplied to."""

    dim: int
    n: int
    values: tuple[int, ...]


def from_spectra(graph: Graph, moving: set, known: Callable) -> list[Node]:
    """Write, in place, products of spectra as convolutions where nothing goes round; the products.

    So it is where what is convolved was padded with zeros by as much as the kernel is long.
    """
    spectra: dict[int, Spectrum] = {}
    done = []
    for node in graph.order():
        out, (x, *_) = node.outs[0], (*node.ins, -1)
        if node.name == "fft":
            kind, rank = str(node.params["fft_type"]).rpartition(".")[2], len(graph.avals[x].shape)
            kind = {"0": "FFT", "1": "IFFT", "2": "RFFT", "3": "IRFFT"}.get(kind, kind)
            (n, *more) = node.params["fft_lengths"]
            if kind == "RFFT" and not more:
                spectra[out] = Spectrum(rank - 1, n, (x,))
            found = spectra.get(x)
            if kind == "IRFFT" and found and found[:2] == (rank - 1, n) and not more:
                done += [node] * _convolve(graph, node, found, known, moving)
        elif any(v in spectra for v in node.ins) and (s := _handed_on(graph, node, spectra, known)):
            spectra[out] = s
    return done


def _handed_on(graph: Graph, node: Node, spectra: dict, known: Callable) -> Spectrum | None:
    """The spectrum that a node makes of others, with the values that have it."""
    first, *others = [spectra.get(v) for v in node.ins]
    own: Any = first or others[0]
    shape, p = list(graph.avals[node.outs[0]].shape), node.params
    trace = lambda s, f: tuple(graph.trace(f, [v], node)[0] for v in s.values)  # noqa: E731
    match node.name:
        case "pad" if first and not np.any(p["padding_config"]):
            return first
        case "transpose":
            run = lambda x: [lax.transpose(x, p["permutation"])]  # noqa: E731
            return Spectrum(p["permutation"].index(own.dim), own.n, trace(own, run))
        case "broadcast_in_dim" | "reshape" if first:
            large = [d for d, n in enumerate(graph.avals[node.ins[0]].shape) if n > 1]
            into = [d for d, n in enumerate(shape) if n > 1]
            to = p.get("broadcast_dimensions") or dict(zip(large, into, strict=False))
            dim = to[first.dim] if first.dim in range(len(to)) or first.dim in large else -1
            if dim < 0 or shape[dim] != graph.avals[node.ins[0]].shape[first.dim]:
                return None
            shape[dim] = first.n
            at = p.get("broadcast_dimensions")
            run = lambda x: [lax.broadcast_in_dim(x, shape, at) if at else lax.reshape(x, shape)]  # noqa: E731
            return Spectrum(dim, first.n, trace(first, run))
        case "mul" if first and others[0] and first[:2] == others[0][:2]:
            return Spectrum(first.dim, first.n, first.values + others[0].values)
        case "mul" | "div" as name if first or node.name == "mul":
            c = known(node.ins[1 if first else 0])
            if c is not None and c.size == 1 and not np.imag(c).any():
                c = np.real(c).reshape(())
                run = lambda x: [x * c if name == "mul" else x / c]  # noqa: E731
                one, *rest = own.values
                return own._replace(values=(*graph.trace(run, [one], node), *rest))
    return None


def _length(graph: Graph, v: int, d: int, known: Callable) -> int:
    """How many numbers of a value, from the first one along a dimension, may be other than 0."""
    made: Any = graph.maker[v]
    n = graph.avals[v].shape[d]
    if (c := known(v)) is not None:
        rows = np.moveaxis(np.broadcast_to(c, graph.avals[v].shape), d, 0).reshape(n, -1).any(1)
        return int(np.max(np.flatnonzero(rows), initial=-1)) + 1
    match made.name if made else "":
        case "pad":
            lo, hi, inner = made.params["padding_config"][d]
            fill = known(made.ins[1])
            is_plain = lo >= 0 <= hi and inner == 0 and fill is not None and not np.any(fill)
            return n - hi if is_plain else n
        case "transpose":
            return _length(graph, made.ins[0], made.params["permutation"][d], known)
        case "broadcast_in_dim" if d in made.params["broadcast_dimensions"]:
            inner = made.params["broadcast_dimensions"].index(d)
            same = graph.avals[made.ins[0]].shape[inner] == n
            return _length(graph, made.ins[0], inner, known) if same else n
        case "mul" | "div" | "convert_element_type":
            same = graph.avals[made.ins[0]].shape == graph.avals[v].shape
            return _length(graph, made.ins[0], d, known) if same else n
    return n


def _convolve(graph: Graph, node: Node, found: Spectrum, known: Callable, moving: set) -> bool:
    values = sorted(found.values, key=lambda v: v not in moving)
    if len(values) != 2 or values[1] in moving:
        return False
    n, lengths = found.n, [_length(graph, v, found.dim, known) for v in values]
    long, size = lengths
    if long + size > n + 1 or 0 in lengths:
        return False  # what comes later goes round

    def convolved(x, kernel):
        shape = np.broadcast_shapes(x.shape[:-1], kernel.shape[:-1])
        rows = [jnp.broadcast_to(v, (*shape, n))[..., :k] for v, k in ((x, long), (kernel, size))]
        channels = math.prod(shape)
        x, kernel = rows[0].reshape(1, channels, long), rows[1].reshape(channels, 1, size)
        ends = [(size - 1, n - long)]
        groups = {"feature_group_count": channels, "precision": lax.Precision.HIGHEST}
        y = lax.conv_general_dilated(x, kernel[..., ::-1], (1,), ends, **groups)
        return [y.reshape(*shape, n)]

    graph.rewrite(node, convolved, values)
    return True


def of_rasters(graph: Graph, moving: set, length: int, is_zero: Callable) -> None:
    """Write, in place, convolutions of all places of a raster as products row by row.

    is_zero(kernel): where it is 0, or None: taps that are so everywhere are left out.
    """
    for node in graph.order():
        if node.name == "conv_general_dilated" and moving.isdisjoint(node.ins[1:]):
            _in_a_row(graph, node, length, is_zero(node.ins[1]))


def _in_a_row(graph: Graph, node: Node, length: int, zero: np.ndarray | None) -> None:
    p, numbers = node.params, node.params["dimension_numbers"]
    (n, c, *places), (_, i, *taps), (_, o, *out) = numbers
    before, kernel, after = (graph.avals[v].shape for v in (*node.ins, node.outs[0]))
    sizes = [before[d] for d in places]
    flat = lambda dims: dims == list(range(dims[0], dims[0] + len(dims)))  # noqa: E731
    ones = {*p["window_strides"], *p["lhs_dilation"], p["feature_group_count"]}
    if len(sizes) < 2 or math.prod(sizes) != length or [after[d] for d in out] != sizes:
        return
    if not flat(places) or not flat(out) or {*ones, p["batch_group_count"]} != {1}:
        return
    steps = np.stack(np.meshgrid(*(np.arange(kernel[d]) for d in taps), indexing="ij"), -1)
    steps = steps.reshape(-1, len(taps)) * p["rhs_dilation"] - [lo for lo, _ in p["padding"]]
    zero = np.zeros(kernel, bool) if zero is None else zero
    used = ~np.moveaxis(zero, taps, range(len(taps))).reshape(len(steps), -1).all(1)
    at = np.stack(np.unravel_index(np.arange(length), sizes), -1)[:, None] + steps[used]
    inside = ((at >= 0) & (at < sizes)).all(-1)  # (rows, taps)
    rows = np.where(inside, np.ravel_multi_index(np.moveaxis(at, -1, 0), sizes, "clip"), 0)

    def product(x, w):
        x = x.reshape(*before[: places[0]], length, *before[places[-1] + 1 :])
        c_, n_ = (d - (len(places) - 1) * (d > places[0]) for d in (c, n))
        x = jnp.transpose(x, (n_, places[0], c_)).at[:, rows].get(mode="promise_in_bounds")
        x = jnp.where(inside[..., None], x, 0)
        w = jnp.transpose(w, (*taps, i, numbers.rhs_spec[0]))
        w = w.reshape(-1, *w.shape[-2:])[np.flatnonzero(used)]
        kind = {k: p[k] for k in ("precision", "preferred_element_type")}
        y = lax.dot_general(x, w, (((2, 3), (0, 1)), ((), ())), **kind)
        order = np.argsort([numbers.out_spec[0], out[0], o])
        return [jnp.transpose(y, order.tolist()).reshape(after)]

    graph.rewrite(node, product)
