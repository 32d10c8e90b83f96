"""The mode "JAX_SELECTIVE" of PyTensor: what its own JAX mode refuses, and nothing else changed."""

import doctest
import importlib.util
import os
import sys
import types

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import malleable as mal

x64, deepest = jax.config.jax_enable_x64, sys.getrecursionlimit()
if "CI" in os.environ:  # there the extra is installed, and nothing may be skipped
    pytensor = importlib.import_module("pytensor")
else:
    pytensor = pytest.importorskip("pytensor")
integration = importlib.import_module("malleable.integrations.pytensor")
rules = importlib.import_module("malleable.integrations.pytensor.graph")
graphs = importlib.import_module("integrations.pytensor_graphs")
jax.config.update("jax_enable_x64", x64)  # which PyTensor sets for the whole process,
sys.setrecursionlimit(deepest)  # and this: programs that never end take nine times as long

import pytensor.tensor as pt  # noqa: E402
from pytensor.compile.builders import OpFromGraph  # noqa: E402
from pytensor.graph.basic import Apply  # noqa: E402
from pytensor.graph.op import Op  # noqa: E402
from pytensor.raise_op import Assert  # noqa: E402
from pytensor.scan import until  # noqa: E402

V, W = graphs.V, graphs.W
MODE = "JAX_SELECTIVE"
SOME = [  # `python integrations/pytensor_graphs.py` has them all
    "x[x < 0]",
    "x[n:k]",
    "eye(n)",
    "x.reshape(sizes)",
    "unique(x)",
    "repeat(x, counts)",
    "split(x, [n, rest])",
    "normal(size=(n, 2 * k))",
    "ifelse(x[0] > 0, x[x < 0], x)",
    "scan of n steps",
    "set_subtensor(x[:n], 0)",
]
pytestmark = pytest.mark.filterwarnings("ignore:The RandomType SharedVariables:UserWarning")


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def x():
    return pt.vector("x", dtype="float64")


def both(inputs, output, *calls):
    """The outputs of every call, of our mode and of PyTensor's Python."""
    ours = pytensor.function(inputs, output, mode=MODE)
    theirs = pytensor.function(inputs, output, mode=graphs.PY)
    for values in calls:
        np.testing.assert_allclose(ours(*values), theirs(*values), rtol=1e-12)
    return ours


@pytest.mark.parametrize("what", SOME)
def test_a_graph_of_a_shape_that_is_a_value_is_right(what):
    inputs, output, calls = graphs.GRAPHS[what]
    assert graphs.outcome(MODE, inputs, output, calls, by_shape="normal" in what) == "right"


def test_a_gradient_of_pytensor_goes_through_a_mask_and_a_slice(x):
    n = pt.lscalar("n")
    loss = (x[x > 0] ** 2).sum() * (x[:n] ** 3).sum()
    both([x, n], pt.grad(loss, x), (V, 3), (W, 2))


def test_a_gradient_of_jax_goes_through_a_selective_graph(x):
    loss = (x[x > 0] ** 2).sum() + pt.log(x[2])
    f = integration.selective_graph([x], [loss])
    wanted = pytensor.function([x], pt.grad(loss, x), mode=graphs.PY)
    slope = jax.grad(lambda value: f(value)[0])(jnp.asarray(V))
    np.testing.assert_allclose(slope, wanted(V), rtol=1e-12)


def test_arithmetic_on_shapes_breaks_nothing(x):
    n = x.shape[0]
    out = [x[: n - 2], pt.arange(2 * n - 1), x.reshape((-1, n // 2)), pt.zeros((n, n // 3)), x[-n:]]
    fgraph = pytensor.graph.fg.FunctionGraph([x], out)
    shapes = jax.eval_shape(jax.jit(rules.source(fgraph)), jnp.zeros(6))
    assert [out.shape for out in shapes] == [(4,), (11,), (2, 3), (6, 2), (6,)]


def test_a_shape_that_is_asked_for_is_an_array(x):
    outs = pytensor.function([x], [x.shape, x.shape[0] * 2, pt.stack([x.shape[0], 7])], mode=MODE)(
        V
    )
    assert [out.tolist() for out in outs] == [[6], 12, [6, 7]]
    assert all(isinstance(out, jax.Array) and out.dtype == "int64" for out in outs)


def test_an_assertion_is_looked_at(x):
    f = pytensor.function([x], Assert("not positive")(x * 2, x.sum() > 0), mode=MODE)
    np.testing.assert_allclose(f(V), 2 * V)
    with pytest.raises(AssertionError, match="not positive"):
        f(-V)


def test_a_scan_stops_where_its_condition_says(x):
    ys, zs = pytensor.scan(
        lambda row, y, y_before, z: ((y + y_before + row, z * 2), until(y > 20)),
        sequences=[pt.tile(x, 3)],
        outputs_info=[{"initial": x[:2], "taps": [-1, -2]}, x[0]],
        return_updates=False,
    )
    both([x], [ys[-1], zs[-1]], [V], [-V])
    f = both([x], [ys, zs], [V], [W])
    assert len(f(V)[0]) < 3 * len(V)


def test_a_step_of_a_scan_may_need_a_value(x):
    # a Switch takes the place of a masked sum, but not of a masked product
    zs = pytensor.scan(
        lambda y, x: y + x[x > y].prod() / 10,
        outputs_info=[pt.zeros(())],
        non_sequences=[x],
        n_steps=5,
        return_updates=False,
    )
    both([x], [zs], [V], [W])


def test_a_graph_inside_may_need_a_value(x):
    positive = OpFromGraph([x], [x[x > 0].prod(), x.sum()])
    product, total = positive(x * 2)
    both([x], product - total, [V], [W])


def test_a_draw_depends_on_the_seed_and_leaves_the_shared_generator_alone():
    generator = pytensor.shared(np.random.default_rng(3))
    n = pt.lscalar("n")
    state, out = pt.random.normal(size=2 * n, rng=generator, return_next_rng=True)
    with pytest.warns(UserWarning, match="copy will be used"):
        stays = pytensor.function([n], out, mode=MODE)
    with pytest.warns(UserWarning, match="copy will be used"):
        moves = pytensor.function([n], out, updates={generator: state}, mode=MODE)
    np.testing.assert_array_equal(stays(3), stays(3))
    assert not np.array_equal(moves(3), moves(3))
    assert generator.get_value().normal() == np.random.default_rng(3).normal()


def test_the_mode_jax_refuses_what_it_did():
    n = pt.lscalar("n")
    pytensor.function([n], pt.arange(n), mode=MODE)(3)
    with pytest.raises(NotImplementedError, match="arange"):
        pytensor.function([n], pt.arange(n), mode="JAX")


def test_an_output_is_no_view_of_an_input(x):
    n = pt.lscalar("n")
    f = pytensor.function([x, n], [x[:n], x], mode=MODE)
    given = V.copy()
    part, whole = f(given, 4)
    given[:] = 0
    np.testing.assert_array_equal(part, V[:4])
    np.testing.assert_array_equal(whole, V)
    assert all(isinstance(out, jax.Array) for out in (part, whole))


class Median(Op):
    """An Op of a user's, with no conversion to JAX."""

    def make_node(self, x):
        return Apply(self, [x], [pt.dscalar()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.asarray(np.median(inputs[0]))


def test_an_op_that_jax_lacks_runs_in_numpy_and_leaves_a_note(x):
    with mal.listen() as heard:
        f = pytensor.function([x], Median()(x * 2) + 1, mode=MODE)
    np.testing.assert_allclose(f(V), np.median(2 * V) + 1)
    assert any("Median" in note.where for note in heard)


def test_a_log_probability_is_that_of_the_model():
    mu, data = pt.dscalar("mu"), pytensor.shared(np.array([1.0, np.nan, 3.0]))
    seen = data[~pt.isnan(data)]
    model = types.SimpleNamespace(value_vars=[mu], logp=lambda: -((seen - mu) ** 2).sum())
    logp = integration.selective_logp(model)
    assert float(logp([0.5])) == -6.5
    assert float(jax.grad(lambda mu: logp([mu]))(0.5)) == 6.0


def test_the_examples_in_the_module_are_right():
    globs = {**vars(integration), "pytensor": pytensor}
    assert doctest.testmod(integration, globs=globs).failed == 0


def test_without_pytensor_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytensor.tensor", None)
    spec = importlib.util.spec_from_file_location("again", integration.__file__)
    with pytest.raises(ImportError, match=r"pip install 'malleable\[pytensor\]'"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_what_needs_a_value_is_the_only_host_statement(x):
    n = pt.lscalar("n")
    f = pytensor.function([x, n], pt.exp(pt.cumsum(pt.sin(x))[: n + 1]) * 2, mode=MODE)
    f(V, 2)
    host = [line for line in integration.selected(f).source.splitlines() if "_host" in line]
    assert len(host) == 1 and "subtensor" in host[0]
