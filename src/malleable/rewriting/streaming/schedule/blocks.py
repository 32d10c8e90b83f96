"""Equations run on a block of slices at once, each with the block in the dim where it finds it.

A `vmap` of them all would transpose large values wherever two operands have the block in different
dims; here the operand gives way that was made of fewer numbers.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import jax
from jax import numpy as jnp

from malleable.programs.primitives import kind
from malleable.rewriting.axis.shapes import SUMMED
from malleable.rewriting.graph.graph import Node
from malleable.rewriting.graph.slices import Ax
from malleable.rewriting.passes.dims import merging
from malleable.rewriting.streaming.region.frontier import FUSIBLE
from malleable.rewriting.streaming.region.region import Alias, Mapped

SHAPING = kind("dims") | {"iota"}
ALIKE = FUSIBLE - SHAPING  # element by element


def on_blocks(segment, actions: Mapping, key_of: Callable, whole: Callable, j, slices: Sequence):
    """The blocks of the values `segment.outs`, from those of `segment.ins`; j: their indices.

    key_of(node, i): where operand i is among them, or None; then it is whole(value).
    """
    at: dict = {key: (x, 0) for key, x in zip(segment.ins, slices, strict=True)}
    made_of: dict = {key: x.size for key, (x, _) in at.items()}  # so many numbers, before spread
    for node in segment.nodes:
        action = actions[node]
        if isinstance(action, Alias):
            key = key_of(node, action.operand)
            at[node.outs[0]], made_of[node.outs[0]] = at[key], made_of[key]
            continue
        keys = [key_of(node, i) for i in range(len(node.ins))]
        pairs = zip(node.ins, keys, strict=True)
        found = [(whole(v), None) if key is None else at[key] for v, key in pairs]
        sizes = [made_of.get(key, 1) for key in keys]
        outs, dim = _on_block(node, action, j, [x for x, _ in found], [d for _, d in found], sizes)
        at.update((v, (x, dim)) for v, x in zip(node.outs, outs, strict=True))
        alone = node.name in FUSIBLE and len(keys) - keys.count(None) < 2
        few = max(sizes, default=1) if alone else math.inf
        made_of.update((v, min(few, x.size)) for v, x in zip(node.outs, outs, strict=True))
    return [jnp.moveaxis(x, dim, 0) for x, dim in map(at.__getitem__, segment.outs)]


def _on_block(node: Node, action: Mapped, j, args: list, dims: list, sizes: list):
    """(results, dim): an equation on all slices; dims: the block's in each operand, None for whole.

    sizes: of how many numbers each operand was made; dim: the block's in the results.
    """
    dim, blocks = 0, [i for i, d in enumerate(dims) if d is not None]
    if node.name in ALIKE and len({args[i].ndim for i in blocks}) == 1:
        dim = dims[max(blocks, key=sizes.__getitem__)]
        for i in blocks:
            args[i], dims[i] = jnp.moveaxis(args[i], dims[i], dim), dim
        shape = jnp.broadcast_shapes(*(args[i].shape for i in blocks))
        for i in blocks:  # or JAX would move the block to the front, to spread an operand
            args[i] = jnp.broadcast_to(args[i], shape)
    elif blocks:
        dim = _kept(node, action.flow.ins, dims)
    run = jax.vmap(action.flow.run, (0, *dims), dim)
    return (merging(run) if node.name == "dot_general" else run)(j, *args), dim


def _kept(node: Node, axes: Sequence[Ax | None], dims: Sequence[int | None]) -> int:
    """The dim of the results in which JAX leaves the block, for a product or a reduction; or 0."""
    i = next(i for i, dim in enumerate(dims) if dim is not None)
    ax, dim = axes[i], dims[i]
    if ax is None or dim is None or ax.width > 1:
        return 0

    def before(gone):
        """How many dims of operand i are in front of the block and `gone` in the result."""
        return sum(d - (d > ax.dim) < dim for d in gone if d != ax.dim)

    if node.name in SUMMED:
        return int(dim - before(node.params["axes"]))
    if node.name == "dot_general" and None in dims:
        contracted, batch = node.params["dimension_numbers"]
        place = len(batch[0]) + dim - before((*contracted[i], *batch[i]))
        other = len(node.eqn.invars[0].aval.shape) - len(contracted[0]) - len(batch[0])
        return int(place + other * i)
    return 0
