"""The Ops that mean something else in the mode "JAX_SELECTIVE" than in PyTensor's mode "JAX".

A function whose result has a shape that depends on a value asks for just that value, so that a
break names what is responsible.
"""

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from pytensor.graph.basic import Constant
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.link.jax.dispatch.random import jax_sample_fn
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import ScalarType
from pytensor.tensor import basic, extra_ops, subtensor
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.sort import ArgSortOp, SortOp
from pytensor.tensor.type import TensorType

import malleable as mal
from malleable import compat
from malleable.integrations.pytensor.graph import (
    DEMANDS,
    as_array,
    demand,
    early,
    funcify,
    is_host,
    on_host,
    rule,
    source,
    theirs,
)

try:
    from pytensor.conditional.op import IfElse, LazyIfElse  # type: ignore[import-not-found]
except ImportError:  # PyTensor 3.0
    from pytensor.ifelse import IfElse

    LazyIfElse = None


def _ask(positions, op, node, fun, host=None):
    """`fun` after asking for the inputs at some positions; NumPy's where it is a host statement."""
    host = host or on_host(op, node)

    def asked(*values):
        if is_host(values):
            return host(*values)
        asked_for = [demand(v) if i in positions else as_array(v) for i, v in enumerate(values)]
        return fun(*asked_for)

    asked.__name__ = type(op).__name__.lower()
    asked.shapes = positions
    return early(op, node, asked)


def _old_axis(op):
    """Before PyTensor 3.1 the axis of some Ops was an input."""
    return set() if hasattr(op, "axis") else {1}


def _first_asked(op):
    """JAX must know the indices too where they are to be checked."""
    return 0 if op.mode == "raise" else -1


SHAPE_INPUTS = {  # the positions of the inputs that JAX must know, for rules that are PyTensor's
    basic.Alloc: lambda op, node: set(range(1, len(node.inputs))),
    basic.AllocEmpty: lambda op, node: set(range(len(node.inputs))),
    basic.Eye: lambda op, node: {0, 1, 2},
    basic.Join: lambda op, node: set() if hasattr(op, "axis") else {0},
    SpecifyShape: lambda op, node: set(range(1, len(node.inputs))),
    SortOp: lambda op, node: _old_axis(op),
    ArgSortOp: lambda op, node: _old_axis(op),
    extra_ops.Repeat: lambda op, node: {1},
    extra_ops.Bartlett: lambda op, node: {0},
    extra_ops.RavelMultiIndex: lambda op, node: set(range(len(node.inputs))[_first_asked(op) :]),
}


@rule(*SHAPE_INPUTS)
def with_known_shape(op, node, **kwargs):
    return _ask(SHAPE_INPUTS[type(op)](op, node), op, node, theirs(op, node, **kwargs))


@rule(basic.ARange)
def arange(op, node, **_):
    def arange(start, stop, step):
        return jnp.arange(start, stop, step, dtype=op.dtype)

    return _ask({0, 1, 2}, op, node, arange)


@rule(basic.ScalarFromTensor)
def scalar_from_tensor(op, node, **_):
    def scalar_from_tensor(x):
        return x

    return early(op, node, scalar_from_tensor)


@rule(Reshape)
def reshape(op, node, **_):
    def reshape(x, shape):
        return jnp.reshape(x, tuple(int(size) for size in shape))

    return _ask({1}, op, node, reshape)


@rule(basic.Split)
def split(op, node, **_):
    def split(x, *axis_and_sizes):
        axis = op.axis if hasattr(op, "axis") else axis_and_sizes[0]
        sizes = np.asarray(axis_and_sizes[-1])
        if len(sizes) != op.len_splits:
            raise ValueError("Length of splits is not equal to n_splits")
        if (sizes < 0).any():
            raise ValueError("Split sizes cannot be negative")
        if sizes.sum() != np.shape(x)[axis]:
            raise ValueError(
                f"Split sizes do not sum up to input length along axis: {np.shape(x)[axis]}"
            )
        return (np if isinstance(x, np.ndarray) else jnp).split(x, np.cumsum(sizes[:-1]), axis=axis)

    host = on_host(op, node, perform=split)
    return _ask(set(range(1, len(node.inputs))), op, node, split, host)


@rule(extra_ops.UnravelIndex)
def unravel_index(op, node, **_):
    def unravel_index(indices, dims):
        last_first = op.order == "F"
        found = jnp.unravel_index(indices, dims[::-1] if last_first else dims)
        found = found[::-1] if last_first else found
        return found if len(node.outputs) > 1 else found[0]

    return _ask({1}, op, node, unravel_index)


@rule(extra_ops.Unique, getattr(basic, "Nonzero", None), extra_ops.FillDiagonalOffset)
def of_values(op, node, **_):
    """The shape depends on every element, or JAX has no such function."""
    return on_host(op, node)


@rule(
    subtensor.Subtensor, subtensor.AdvancedSubtensor, getattr(subtensor, "AdvancedSubtensor1", None)
)
def read_items(op, node, **kwargs):
    take = theirs(op, node, **kwargs)
    positions = _slices(op, 1) | _masks(node, 1)

    def read_items(x, *parts):
        return take(jnp.asarray(x), *parts)

    return _ask(positions, op, node, read_items)


@rule(
    subtensor.IncSubtensor,
    subtensor.AdvancedIncSubtensor,
    getattr(subtensor, "AdvancedIncSubtensor1", None),
)
def write_items(op, node, **kwargs):
    put = theirs(op, node, **kwargs)
    positions = _slices(op, 2)
    if node.inputs[1].type.ndim:  # one number goes where a mask says without knowing the mask
        positions |= _masks(node, 2)

    def write_items(x, y, *parts):
        return put(jnp.asarray(x), y, *parts)

    return _ask(positions, op, node, write_items)


def _slices(op, first):
    """The positions of the inputs that are limits or steps of slices."""
    slices = [entry for entry in op.idx_list if isinstance(entry, slice)]
    parts = [part for entry in slices for part in (entry.start, entry.stop, entry.step)]
    return {first + part for part in parts if part is not None}


def _masks(node, first):
    kinds = enumerate(variable.type for variable in node.inputs)
    arrays = [(i, kind) for i, kind in kinds if i >= first and isinstance(kind, TensorType)]
    return {i for i, kind in arrays if kind.dtype == "bool" and kind.ndim}


@rule(CheckAndRaise)
def check(op, **_):
    """The conditions are really looked at: JAX's own linker drops them."""

    def check(x, *conditions):
        if not all(bool(np.all(demand(condition))) for condition in conditions):
            raise op.exc_type(op.msg)
        return x

    return check


@rule(RandomVariable)
def draw(op, node, **_):
    """A draw whose size may come from anywhere; the state that comes in is left as it was."""
    sizes = node.outputs[1].type.shape[: op.batch_ndim(node)]
    constant = op.size_param(node)
    if None in sizes and isinstance(constant, Constant) and constant.data is not None:
        sizes = tuple(constant.data)
    dtype = node.outputs[1].type.dtype

    def draw(rng, size, *parameters):
        if None not in sizes:
            size = sizes
        elif size is not None:
            size = tuple(int(n) for n in demand(size))
        key, sampling_key = jax.random.split(rng["jax_state"], 2)
        sample = jax_sample_fn(op, node=node)(sampling_key, size, dtype, *parameters)
        return {**rng, "jax_state": key}, sample

    return draw


@rule(IfElse)
def if_else(op, **_):
    """Branches of one shape stay in JAX; others, or a known condition, are picked in Python."""

    def if_else(condition, *values):
        yes, no = values[: op.n_outs], values[op.n_outs :]
        same = all(
            jnp.shape(a) == jnp.shape(b) and jnp.result_type(a) == jnp.result_type(b)
            for a, b in zip(yes, no, strict=True)
        )
        if same and isinstance(condition, compat.Tracer):
            picked = lax.cond(condition, lambda yes, no: yes, lambda yes, no: no, yes, no)
        else:
            picked = yes if demand(condition) else no
        return picked if op.n_outs > 1 else picked[0]

    return if_else


@rule(LazyIfElse)
def lazy_if_else(op, **kwargs):
    """Branches that JAX can trace stay in one `cond`; others run one at a time."""
    yes, no = funcify(op.true_branch, **kwargs), funcify(op.false_branch, **kwargs)

    def pick(condition, *values):
        return (yes if demand(condition) else no)(*values)

    def lazy_if_else(condition, *values):
        if not isinstance(condition, compat.Tracer):
            return pick(condition, *values)
        try:
            return lax.cond(condition, yes, no, *values)
        except (*DEMANDS, TypeError):  # a value is needed, or the branches differ in shape
            return pick(condition, *values)

    return lazy_if_else


@rule(AbstractFunctionGraph)
def inner_graph(fgraph, node=None, **kwargs):
    """The graph inside a Scan, a branch or an OpFromGraph: compiled by itself on the host."""
    fun = source(fgraph, **kwargs)
    if isinstance(fgraph.outputs[0].type, ScalarType):  # of a Composite, which XLA fuses
        return fun
    compiled = mal.jit(fun)

    def inner(*values):
        return (compiled if is_host(values) else fun)(*values)

    inner.__name__ = fun.__name__
    return inner


@rule(Blockwise)
def blockwise(op, node, **kwargs):
    return or_else(theirs(op, node, **kwargs), on_host(op, node))


def or_else(fun, host):
    """`fun`, and `host` for a host statement of which `fun` traces a part that needs a value."""

    def either(*values):
        try:
            return fun(*values)
        except DEMANDS:
            if not is_host(values):
                raise
        return host(*values)

    either.__name__ = fun.__name__
    return either
