"""How a streamed axis passes products of matrices, convolutions, and whatever can be batched."""

import jax
from jax import lax

from malleable import compat
from malleable.rewriting.graph.slices import Flow, Sunk, known, rebind, shapes, slots
from malleable.rewriting.passes.dims import merging


def dot_general(eqn, ins, outs, n, origin):
    """As a batch or a free dimension it goes through; contracted, it ends.

    The sink is told the dimension numbers for two blocks.
    """
    (contract, batch), ranks = eqn.params["dimension_numbers"], [len(s) for s in shapes(eqn.invars)]
    free = [
        [i for i in range(rank) if i not in contract[side] and i not in batch[side]]
        for side, rank in enumerate(ranks)
    ]
    axes = list(ins)
    if not any(ins):
        axes = _operands(outs[0], batch, free)
    for side in (0, 1):  # what one operand shares with the other, both carry
        for dims in (batch, contract):
            if axes[side] and axes[side].dim in dims[side]:
                at = list(dims[side]).index(axes[side].dim)
                partner = axes[side]._replace(dim=int(dims[1 - side][at]))
                if axes[1 - side] not in (None, partner):
                    return "the two sides of a product carry the axis at places that do not match"
                axes[1 - side] = partner
    if all(axes) and axes[0].dim in free[0]:
        return "both sides of a product carry the axis: their results would at two places"
    moved = [
        [slots(dims[side], axes[side]) if axes[side] else tuple(dims[side]) for side in (0, 1)]
        for dims in (contract, batch)
    ]
    first = next(side for side in (0, 1) if axes[side])
    ax = axes[first]
    if ax.dim in contract[first]:
        return Sunk(tuple(axes), _blocks(moved))
    if ax.dim in batch[first]:
        dim = list(batch[first]).index(ax.dim)
    else:
        before = len(batch[0]) + (len(free[0]) if first else 0)
        dim = before + free[first].index(ax.dim)
    numbers = tuple(map(tuple, moved))
    product = merging(lambda *xs: rebind(eqn, xs, dimension_numbers=numbers))
    run = lambda t, *xs: product(*xs)  # noqa: E731
    return Flow(tuple(axes), (ax._replace(dim=dim),), run)


def _operands(ax, batch, free):
    """Where the operands of a product carry the axis of its result."""
    if ax.dim < len(batch[0]):
        return [ax._replace(dim=int(dims[ax.dim])) for dims in batch]
    at = ax.dim - len(batch[0])
    if at < len(free[0]):
        return [ax._replace(dim=free[0][at]), None]
    return [None, ax._replace(dim=free[1][at - len(free[0])])]


def _blocks(moved):
    """Dimension numbers that contract the leading dimension of two blocks, and those of slices."""
    contract, batch = [[tuple(d + 1 for d in dims) for dims in pair] for pair in moved]
    return (tuple((0, *dims) for dims in contract), tuple(batch))


def convolution(eqn, ins, outs, n, origin):
    """Over the examples of a batch; the kernel is whole."""
    p, numbers = eqn.params, eqn.params["dimension_numbers"]
    at, to = numbers.lhs_spec[0], numbers.out_spec[0]
    ax = ins[0] or (outs[0] and outs[0]._replace(dim=at))
    if not ax or ax.dim != at or ins[1] or p["batch_group_count"] != 1:
        return "a convolution along the axis, or with a kernel that carries it"

    def run(t, x, kernel):
        if ax.width > 1:
            return rebind(eqn, [x, kernel])
        (out,) = rebind(eqn, [lax.expand_dims(x, (at,)), kernel])
        return [lax.squeeze(out, (to,))]

    return Flow((ax, None), (ax._replace(dim=to),), run)


def batched(eqn, ins, outs, n, origin):
    """Anything that is, provably, one and the same function of each slice.

    The proof: the equation on operands without their leading dimensions, up to the axis, put under
    vmaps over all of these, stages as this very equation. So it is that function at each place of
    the axis. Operands that carry it have it at the same dimension; the others are whole.
    """
    ax, p = known(ins, outs), eqn.params
    if ax.width > 1:
        return f"the axis is merged with another one in {eqn.primitive}"
    if compat.bodies(p):
        return f"nothing is known about an axis in {eqn.primitive}"
    here = [len(s) > ax.dim and s[ax.dim] == n for s in shapes(eqn.invars)]
    guesses = {tuple(a is not None for a in ins), tuple(here)}
    proved = (c for c in sorted(guesses, key=sum) if any(c) and _proved(eqn, ax.dim, c))
    if (carried := next(proved, None)) is None:
        return f"nothing is known about an axis in {eqn.primitive}"
    axes, one = tuple(ax if c else None for c in carried), _under_vmaps(eqn, carried, ax.dim)
    return Flow(axes, (ax,) * len(eqn.outvars), lambda t, *xs: one(*xs))


def _under_vmaps(eqn, carried, depth):
    fun = lambda *xs: compat.bind(eqn, xs)  # noqa: E731
    lanes = [0 if c else None for c in carried]
    for _ in range(depth):
        fun = jax.vmap(fun, in_axes=lanes)
    return fun


def _proved(eqn, dim, carried) -> bool:
    avals = [v.aval for v in eqn.invars]
    if any(c and len(a.shape) <= dim for a, c in zip(avals, carried, strict=True)):
        return False
    slices, lanes = (
        [a.update(shape=(*a.shape[:left], *a.shape[dim + 1 :])) if c else a for a, c in pairs]
        for left in (dim, 0)
        for pairs in [list(zip(avals, carried, strict=True))]
    )
    try:
        for some in (slices, lanes):  # a rule of batches asks for no rank: half a matrix has no lu
            compat.trace(_under_vmaps(eqn, carried, 0), *some)
        jaxpr = compat.trace(_under_vmaps(eqn, carried, dim + 1), *avals).jaxpr
    except (TypeError, ValueError, NotImplementedError, AssertionError, IndexError):
        return False  # the primitive refuses such operands, or has no batching rule
    while len(jaxpr.eqns) == 1 and jaxpr.eqns[0].primitive.name in ("jit", "pjit"):
        (outer,) = jaxpr.eqns
        if list(outer.invars) != list(jaxpr.invars) or outer.outvars != jaxpr.outvars:
            return False
        jaxpr = compat.bodies(outer.params)[0].jaxpr
    same = [e.outvars for e in jaxpr.eqns] == [jaxpr.outvars]
    return (
        same
        and list(jaxpr.eqns[0].invars) == list(jaxpr.invars)
        and jaxpr.eqns[0].primitive is eqn.primitive
        and compat.same_program(jaxpr.eqns[0]) == compat.same_program(eqn)
        and [v.aval for v in jaxpr.outvars] == [v.aval for v in eqn.outvars]
    )


RULES = {"dot_general": dot_general, "conv_general_dilated": convolution}
