"""A sharding pass of your own: it reads where values are on a mesh, and writes constraints.

Products whose features are whole on all devices are cut along them, over an axis of the mesh that
is left: the activations of each device are a quarter as large, and nobody changed the model.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import malleable as mal


def cut_features(jaxpr):
    """A pass: wide products that have an axis of the mesh left are cut along their last axis."""
    program = mal.layouts(jaxpr)

    def wish(eqn):
        if eqn.primitive is not lax.dot_general_p or eqn.outvars[0].aval.shape[-1] < 256:
            return None
        spec = program.layout(eqn.outvars[0])
        is_free = spec is not None and spec[-1] is None and "model" not in spec
        return PartitionSpec(*spec[:-1], "model") if is_free else None

    return program.constrained(wish)


def loss(w, x):
    """The mean of four residual layers, rolled into one scan; w: (4, d, wide), x: (n, d)."""
    layer = lambda x, w: (x + jnp.tanh(x @ w) @ w.T / 100, None)
    return jnp.mean(lax.scan(layer, x, w)[0] ** 2)


def main():
    sizes = (2, jax.device_count() // 2) if jax.device_count() > 1 else (1, 1)
    mesh = jax.make_mesh(sizes, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    put = lambda x, *spec: jax.device_put(x, NamedSharding(mesh, PartitionSpec(*spec)))
    draw = np.random.default_rng(0).normal
    args = put(draw(size=(4, 64, 512)).astype("f")), put(draw(size=(256, 64)).astype("f"), "data")
    cut = mal.optimize(loss, cut_features)
    for name, fun in (("as it is", loss), ("cut", cut)):
        compiled = jax.jit(jax.value_and_grad(fun)).lower(*args).compile()
        held = compiled.memory_analysis().temp_size_in_bytes
        print(f"{name}: {compiled(*args)[0]:.4f}, {held / 2**10:.0f} KiB on each device")


if __name__ == "__main__":
    main()
