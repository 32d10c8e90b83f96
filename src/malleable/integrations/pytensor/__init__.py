"""PyTensor functions through selective JIT: `pytensor.function(..., mode="JAX_SELECTIVE")`.

Importing this module registers the mode. A graph that PyTensor's mode "JAX" refuses, because a
shape or a branch depends on a value, runs here in compiled regions with host statements between;
`explain` tells where and why. Needs the extra: `pip install 'malleable[pytensor]'`.

    import malleable.integrations.pytensor
    f = pytensor.function([x], x[x > 0], mode="JAX_SELECTIVE")

The import sets `jax_enable_x64` as PyTensor's `floatX` says, which PyTensor itself does the first
time it compiles for JAX.
"""

import warnings
from typing import Any

import jax
from jax import numpy as jnp
from numpy.random import Generator

try:
    import pytensor.tensor as pt
    from pytensor.compile.mode import JAX, Mode, predefined_modes, register_mode
    from pytensor.compile.sharedvalue import SharedVariable
    from pytensor.graph.fg import FunctionGraph
    from pytensor.graph.replace import clone_replace
    from pytensor.graph.rewriting.db import RewriteDatabaseQuery
    from pytensor.graph.traversal import graph_inputs
    from pytensor.link.jax.linker import JAXLinker
except ImportError as error:
    raise ImportError(
        "malleable.integrations.pytensor needs PyTensor: pip install 'malleable[pytensor]'"
    ) from error

import malleable as mal
from malleable.integrations.pytensor import rules, scan  # noqa: F401  they register
from malleable.integrations.pytensor.graph import source


class SelectiveLinker(JAXLinker):
    """Hands the Python function that PyTensor writes for JAX to `mal.jit`, not to `jax.jit`."""

    def fgraph_convert(self, fgraph, input_storage, storage_map, **kwargs):
        _copy_generators(fgraph, input_storage, storage_map)
        return source(fgraph, input_storage=input_storage, storage_map=storage_map, **kwargs)

    def jit_compile(self, fn):
        return _to_jax(mal.jit(fn))


def _copy_generators(fgraph, input_storage, storage_map):
    """Give the function its own copy of each shared generator, as PyTensor's linker does."""
    shared = [v for v in fgraph.inputs if isinstance(v, SharedVariable)]
    shared = [v for v in shared if isinstance(v.get_value(True), Generator)]
    if shared:
        warnings.warn(
            f"The RandomType SharedVariables {shared} will not be used in the compiled JAX graph. "
            "Instead a copy will be used.",
            UserWarning,
            stacklevel=2,
        )
    for variable in shared:
        old, new = storage_map[variable], [variable.get_value(borrow=False)]
        place = next(i for i, storage in enumerate(input_storage) if storage is old)
        storage_map[variable] = input_storage[place] = new


def _to_jax(selected):
    """A selective function whose outputs are all JAX's own, those of a host statement too."""

    def run(*values):
        return [
            out if isinstance(out, jax.Array) else jax.tree.map(jnp.array, out)
            for out in selected(*values)
        ]

    run.selected = selected
    return run


# XLA fuses; a fused Op would mix arithmetic on shapes, which breaks nothing, with that on arrays
JAX_SELECTIVE = Mode(
    SelectiveLinker(),
    RewriteDatabaseQuery(include=["fast_run", "jax"], exclude=[*JAX._optimizer.exclude, "fusion"]),
)
if "JAX_SELECTIVE" not in predefined_modes:  # a module may be loaded twice
    register_mode("JAX_SELECTIVE", JAX_SELECTIVE)


def selected(function):
    """The `mal.jit` function inside a PyTensor function of this mode: to explain, to read.

    >>> x = pytensor.tensor.vector("x")
    >>> f = pytensor.function([x], x[x > 0], mode="JAX_SELECTIVE")
    >>> print(selected(f).source)  # doctest: +SKIP
    """
    return function.vm.jit_fn.selected


def selective_graph(inputs, outputs, *, mode: Any = JAX_SELECTIVE):
    """f(*values) -> [output, ...] for PyTensor variables: a `mal.jit` function of JAX arrays.

    The values of shared variables are taken as they are now. Differentiate it with `jax.grad`, or
    give PyTensor's own gradients as outputs.
    """
    shared = [v for v in graph_inputs(outputs) if isinstance(v, SharedVariable)]
    values: Any = {variable: pt.constant(variable.get_value(borrow=True)) for variable in shared}
    graph: Any = clone_replace(list(outputs), replace=values)
    fgraph = FunctionGraph(list(inputs), graph, clone=True)
    rewriter: Any = mode.optimizer
    rewriter.rewrite(fgraph)
    return mal.jit(source(fgraph))


def selective_logp(model):
    """f(values) -> log-probability of a PyMC model; values: one for each of `model.value_vars`.

    In place of `pymc.sampling.jax.get_jaxified_logp(model)`. A parameter out of its range gives
    minus infinity, as where PyMC itself compiles the model.
    """
    mode = JAX_SELECTIVE.including("local_check_parameter_to_ninf_switch")
    logp = selective_graph(model.value_vars, [model.logp()], mode=mode)

    def selective_logp(values):
        return logp(*values)[0]

    return selective_logp
