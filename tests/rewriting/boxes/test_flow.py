"""What streams along an axis, slice by slice, is what the map of dependence says of that axis."""

import numpy as np
import pytest

from malleable.rewriting.axis.axes import flow
from malleable.rewriting.boxes.dependence import Along, Before, Group, Place, rel
from malleable.rewriting.graph.slices import Ax, Flow, shapes
from tests.rewriting.axis.test_axes import CASES, equation
from tests.rewriting.boxes.test_dependence import EQUATIONS

# of what the map says too little: each of several results has its own operand; bodies are not read
COARSER = {"optimization_barrier", "reduce", "jit"}
# of what streaming refuses: rows of a concatenation are each in one of its operands, and a scatter
# to maxima under vmap is staged as another equation, so that its slices are not proved
REFUSED = {"concatenate", "select_and_scatter_add"}

CORPUS = {f"axis: {name}": (f, args) for name, (f, args, *_) in CASES.items()}
CORPUS |= {f"boxes: {name}": (f, args) for name, (f, *args) in EQUATIONS.items()}


def axes_of(f, args):
    """(equation, what flows of each dimension of each operand, what the map says of it)."""
    eqn, values = equation(f, *args)
    values = [np.asarray(v) for v in values]
    tables = rel(eqn, lambda k: values[k])
    for k, shape in enumerate(shapes(eqn.invars)):
        for d, n in enumerate(shape):
            if n > 1:
                ins = [Ax(d) if i == k else None for i in range(len(eqn.invars))]
                outs = [None] * len(eqn.outvars)
                yield eqn, flow(eqn, ins, outs, n, lambda i: values[i]), tables, (k, d)


@pytest.mark.parametrize("name", CORPUS)
def test_what_flows_along_a_dimension_goes_along_it(name):
    for eqn, found, tables, (k, d) in axes_of(*CORPUS[name]):
        if eqn.primitive.name in COARSER or not isinstance(found, Flow):
            continue
        match found.outs[0], tables[k][d]:
            case Ax(o, 1, 1), entry:
                assert entry == Along(o)
                for j, ax in enumerate(found.ins):
                    if ax == Ax(getattr(ax, "dim", 0)):
                        assert tables[j][ax.dim] == Along(o)
            case Ax(), entry:  # it shares a dimension with others
                assert entry is None or isinstance(entry, Place | Group)


@pytest.mark.parametrize("name", CORPUS)
def test_what_goes_along_a_dimension_flows_and_nothing_else(name):
    for eqn, found, tables, (k, d) in axes_of(*CORPUS[name]):
        entry, name = tables[k][d], eqn.primitive.name
        if isinstance(entry, Along) and entry == Along(entry.dim):
            assert isinstance(found, Flow) or name in REFUSED
        elif isinstance(entry, Along | Before):
            assert not isinstance(found, Flow)  # windows, strides and running sums are no slices
