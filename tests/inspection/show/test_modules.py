"""Paths of modules, and sites: on the equations that libraries make."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from flax import linen, nnx
from numpyro.infer.util import log_density

import malleable as mal
from malleable.inspection.modules import module_of, module_scopes


class Block(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.LayerNorm(4, rngs=rngs)
        self.layers = nnx.List([nnx.Linear(4, 4, rngs=rngs) for _ in range(2)])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(self.norm(x))
        return x


def modules(fun, *args):
    with module_scopes():
        program = jax.make_jaxpr(fun)(*args)
    return {eqn.primitive.name: module_of(eqn) for eqn in program.eqns}


def test_a_module_of_nnx_is_named_by_its_path():
    found = modules(Block(nnx.Rngs(0)), jnp.ones(4))
    assert found["dot_general"] == "Block.layers[1]" and found["rsqrt"] == "Block.norm"


def test_a_module_of_equinox_is_named_by_its_path():
    mlp = eqx.nn.MLP(4, 4, 4, 1, jnp.tanh, key=jax.random.key(0))
    assert modules(mlp, jnp.ones(4))["dot_general"] == "MLP.layers[1]"


def test_a_module_of_linen_has_the_name_of_its_own_scope():
    net = linen.Sequential([linen.Dense(4), linen.Dense(4)])
    params = net.init(jax.random.key(0), jnp.ones(4))
    assert modules(net.apply, params, jnp.ones(4))["dot_general"] == "Sequential.layers_1"


def test_a_density_is_named_by_its_site():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal())
        numpyro.sample("y", dist.Gamma(2.0, mean), obs=y)

    def density(mean, y):
        return log_density(model, (y,), {}, {"mean": mean})[0]

    assert modules(density, 1.0, 2.0)["lgamma"] == "site 'y'"
    assert mal.first_nonfinite(density)(-1.0, 2.0).module == "site 'y'"


def test_classes_are_as_before_when_nobody_looks():
    before = Block.__call__
    modules(Block(nnx.Rngs(0)), jnp.ones(4))
    assert Block.__call__ is before


def test_the_first_nan_names_its_module():
    block = Block(nnx.Rngs(0))
    block.norm.epsilon = -1e3
    found = mal.first_nonfinite(nnx.jit(lambda block, x: block(x)))(block, jnp.ones(4))
    assert found.primitive == "rsqrt" and found.module == "Block.norm"
    assert "of Block.norm" in str(found)


def test_an_inf_of_an_argument_that_becomes_nan_is_named():
    weight = jnp.ones((3, 3)).at[1, 2].set(jnp.inf)
    found = mal.first_nonfinite(lambda params: (params["w"] @ jnp.zeros(3)).sum())({"w": weight})
    assert found.primitive == "dot_general" and found.comes_from == "argument params['w'][1, 2]"
    assert "argument params['w'][1, 2] is inf to begin with" in str(found)


def test_flags_in_a_module_of_equinox_are_static():
    attention = eqx.nn.MultiheadAttention(2, 4, key=jax.random.key(0))  # has `inference: bool`
    run = eqx.filter_jit(lambda attention, x: attention(x, x, x).sum())
    assert mal.first_nonfinite(run)(attention, jnp.ones((3, 4))) is None
    assert mal.cost(run)(attention, jnp.ones((3, 4))).flops > 0


def test_cost_is_told_by_module():
    found = mal.cost(nnx.jit(lambda block, x: block(x)))(Block(nnx.Rngs(0)), jnp.ones(4))
    assert found.modules["Block.layers[0]"].flops == found.modules["Block.layers[1]"].flops > 0
    assert "in Block.layers[0]: " in str(found)


def test_what_a_library_computes_stands_under_its_module():
    text = mal.show(Block(nnx.Rngs(0)), quiet=True)(jnp.ones(4)).text()
    assert "test_modules.py:22  of Block.norm" in text


def test_what_is_written_in_a_line_stands_under_no_module():
    text = mal.show(lambda x: jnp.sin(x), quiet=True)(jnp.ones(4)).text()
    assert "  of " not in text


def test_a_number_of_numpy_in_a_parameter_is_a_number():
    text = mal.show(jnp.linalg.norm, quiet=True)(jnp.ones((2, 3))).text()
    assert "np.int64" not in mal.show(Block(nnx.Rngs(0)), quiet=True)(jnp.ones(4)).text() + text
