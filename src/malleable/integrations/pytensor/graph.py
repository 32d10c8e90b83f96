"""A PyTensor graph as a Python function of JAX values, one call for each Apply node.

`funcify` stands where PyTensor's `jax_funcify` does, and asks it for every Op without a `rule`.
Arithmetic on shapes that are known while tracing stays in Python and breaks nothing (aesara#702).
An Op that JAX cannot do, or not without a value, has its own NumPy implementation for a host
statement: it compiles nothing for a new size.
"""

import functools
import operator
import types
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp
from pytensor.graph.basic import Constant
from pytensor.graph.op import Op
from pytensor.link.jax.dispatch.basic import jax_funcify, jax_typify
from pytensor.link.utils import compile_function_src, unique_name_generator
from pytensor.raise_op import CheckAndRaise
from pytensor.scalar.basic import ScalarOp, ScalarType
from pytensor.tensor import basic, subtensor
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.type import TensorType, discrete_dtypes

from malleable import compat
from malleable.execution.common.host_values import own
from malleable.notes import note

NAME = "jax_funcified_fgraph"  # of the functions that PyTensor writes

RULES = {}
"""The Ops that are not left to PyTensor: class -> rule(op, node=node, **kwargs), a function."""

SHAPE_ARITHMETIC = (
    *(Elemwise, CAReduce, DimShuffle, ScalarOp, basic.MakeVector, basic.ScalarFromTensor),
    *(basic.TensorFromScalar, basic.Join, subtensor.Subtensor),
)

DEMANDS = (  # what JAX raises where a value is needed that it has not got
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def rule(*ops):
    """Register a rule for Ops; those that this version of PyTensor lacks come as None."""

    def register(make):
        RULES.update({op: make for op in ops if op is not None})
        return make

    return register


def funcify(op, node=None, **kwargs) -> Any:
    """A function of JAX values for an Op or for a graph, as `jax_funcify` makes."""
    fun = _converted(op, node=node, **kwargs)
    return fun if node is None or node.op is not op else _statement(node, fun)


def _statement(node, fun):
    """The function that an Apply node becomes: `fun` of the inputs that are no constants.

    It is a function of this library, so `mal.jit` takes it for one thing that computes, and cuts
    before and after it. `fun.shapes` are the positions where a tuple may stand for a vector.
    """
    shapes = getattr(fun, "shapes", ())
    values = [
        _constant(variable, i in shapes) if isinstance(variable, Constant) else None
        for i, variable in enumerate(node.inputs)
    ]
    places = [i for i, v in enumerate(node.inputs) if not isinstance(v, Constant)]

    def statement(*given):
        every = values.copy()
        for i, value in zip(places, given, strict=True):
            every[i] = value if i in shapes else as_array(value)
        return fun(*every)

    statement.__malleable_host__ = True  # as a host statement it takes raw arrays
    statement.__name__ = getattr(fun, "__name__", type(node.op).__name__.lower())
    return statement


def _constant(variable, as_shape=False):
    if as_shape and is_shape_like(variable.type):
        return _plain(variable.data)
    return jax_typify(variable.data, variable=variable)


def _output(value):
    """Who asked for a shape gets an array."""
    return jnp.asarray(np.asarray(value)) if is_known(value) else value


def as_array(value):
    """A tuple of numbers, which stands for a shape, as the vector it is."""
    return np.asarray(value) if _is_shape(value) else value


def _plain(value):
    """Integers as Python's own, which `mal.jit` hands from region to region as they are."""
    array = np.asarray(value)
    return tuple(array.tolist()) if array.ndim else array.item()


def _is_shape(value) -> bool:
    return isinstance(value, tuple) and bool(value) and is_known(value)


def is_shape_like(kind) -> bool:
    """Integers in at most one dimension: a size, a shape, an index."""
    is_array = isinstance(kind, TensorType | ScalarType)
    return is_array and kind.dtype in discrete_dtypes and kind.ndim < 2


def _converted(op, node=None, **kwargs):
    for cls in type(op).__mro__:
        if cls in RULES and (cls is CheckAndRaise or _is_nearest(cls, type(op))):
            return RULES[cls](op, node=node, **kwargs)
    try:
        fun = _rebound(jax_funcify.dispatch(type(op)))(op, node=node, **kwargs)
    except NotImplementedError as error:
        if node is None or node.op is not op or not isinstance(op, Op):
            raise
        note("an Op runs in NumPy", str(node), str(error))
        return on_host(op, node)
    return early(op, node, fun)


def _is_nearest(cls, kind):
    """Whether nobody has told PyTensor of a rule for a class between a base and its subclass."""
    return jax_funcify.dispatch(kind) is jax_funcify.dispatch(cls)


@functools.cache
def _rebound(rule):
    """A rule of PyTensor's with our `funcify` in place of its own, for what is inside the Op.

    A copy with other globals, because `jax_funcify` is one table for the whole process: nothing is
    registered, and the mode "JAX" goes on as it was, in another thread too.
    """
    if not isinstance(rule, types.FunctionType) or "jax_funcify" not in rule.__code__.co_names:
        return rule
    names = {**rule.__globals__, "jax_funcify": funcify}
    copy = types.FunctionType(
        rule.__code__, names, rule.__name__, rule.__defaults__, rule.__closure__
    )
    copy.__kwdefaults__ = rule.__kwdefaults__
    return copy


def theirs(op, node, **kwargs):
    return _rebound(jax_funcify.dispatch(type(op)))(op, node=node, **kwargs)


def source(fgraph, *, order=None, storage_map=None, **kwargs):
    """A graph as a Python function of one call per Apply node; its text is there to read.

    As PyTensor's `fgraph_to_python`, but the constants are in the functions that are called: a
    constant that is an argument would be an input of a region.
    """
    name_of = unique_name_generator([NAME, "output"])
    names, lines = {}, []
    for node in order or fgraph.toposort():
        fun = funcify(node.op, node=node, storage_map=storage_map, **kwargs)
        inputs = [name_of(v) for v in node.inputs if not isinstance(v, Constant)]
        outs = ", ".join(map(name_of, node.outputs))
        called = name_of(fun)
        names[called] = fun
        lines += [*(f"# {line}" for line in str(node).splitlines())]
        lines += [f"{outs} = {called}({', '.join(inputs)})"]
    names |= {name_of(v): _constant(v) for v in fgraph.outputs if isinstance(v, Constant)}
    for variable in fgraph.outputs:
        if is_shape_like(variable.type) and not isinstance(variable, Constant):
            names["output"] = _output
            lines += [f"{name_of(variable)} = output({name_of(variable)})"]
    lines += [f"return ({', '.join(map(name_of, fgraph.outputs))},)"]
    head = f"def {NAME}({', '.join(map(name_of, fgraph.inputs))}):"
    text = "\n    ".join([head, *lines]) + "\n"
    return compile_function_src(text, NAME, names)


# ------------------------------------------------------------------------- values known and asked


def is_known(value) -> bool:
    """Whether Python has a value in its hands, in no array of JAX's."""
    if isinstance(value, tuple | list):
        return all(is_known(one) for one in value)
    return isinstance(value, bool | int | float | np.generic | np.ndarray)


def is_host(values) -> bool:
    """Whether a call is a host statement: nothing is traced, every value is there, on the CPU."""
    if not compat.is_idle() or any(map(_is_traced, values)):
        return False
    return jax.default_backend() == "cpu"


def _is_traced(value) -> bool:
    if isinstance(value, tuple | list | dict):  # a shape, the outputs of a Scan, a generator
        return any(isinstance(leaf, compat.Tracer) for leaf in jax.tree.leaves(value))
    return isinstance(value, compat.Tracer)


def demand(value) -> Any:
    """What decides a shape, as Python and NumPy have it: the place where a tracer is asked."""
    if isinstance(value, tuple | list):
        return tuple(map(demand, value))
    if value is None or is_known(value):
        return value
    if np.ndim(value):
        return np.asarray(value)
    return operator.index(value) if value.dtype.kind in "iu" else value.item()


def on_host(op, node, perform=None):
    """The Op's own NumPy implementation, or another, as a function from values to raw arrays."""
    if perform is None:
        op.prepare_node(node, None, None, "py")
        perform = functools.partial(_perform, op, node)

    def host(*values):
        inputs = [_numpy(v, variable.type) for v, variable in zip(values, node.inputs, strict=True)]
        users = [v for v in inputs if isinstance(v, np.ndarray) and v.flags.writeable]
        pairs = zip(perform(*inputs), node.outputs, strict=True)
        outs = [_raw(out, variable.type, users) for out, variable in pairs]
        return outs[0] if len(outs) == 1 else tuple(outs)

    host.__name__ = type(op).__name__.lower()
    return host


def _perform(op, node, *inputs):
    cells = [[None] for _ in node.outputs]
    op.perform(node, inputs, cells)
    return [cell[0] for cell in cells]


def _numpy(value, kind):
    """A value as `perform` expects it; the dtype is the graph's."""
    if isinstance(kind, ScalarType):
        return np.asarray(value, kind.dtype)[()]
    if isinstance(kind, TensorType):
        return np.asarray(value, kind.dtype)
    return value


def _raw(value, kind, users):
    if isinstance(kind, ScalarType):
        return np.asarray(value, kind.dtype).item()
    if not isinstance(kind, TensorType):
        return value
    array = np.asarray(value, kind.dtype)
    # what is handed on may be nothing, and no view of anything, that a user can write into
    is_users = users and (not array.flags.owndata or any(array is one for one in users))
    return own(array.copy() if is_users else array)


def early(op, node, fun):
    """`fun`, except that integers known while tracing are computed at once, in Python."""
    if not isinstance(op, SHAPE_ARITHMETIC) or node is None or node.op is not op:
        return fun
    if not all(is_shape_like(variable.type) for variable in (*node.inputs, *node.outputs)):
        return fun
    op.prepare_node(node, None, None, "py")

    def early(*values):
        if not all(map(is_known, values)):
            return fun(*map(as_array, values))
        inputs = [_numpy(v, variable.type) for v, variable in zip(values, node.inputs, strict=True)]
        outs = tuple(map(_plain, _perform(op, node, *inputs)))
        return outs[0] if len(outs) == 1 else outs

    early.__name__ = getattr(fun, "__name__", "early")
    early.shapes = range(len(node.inputs))
    return early
