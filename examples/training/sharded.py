"""One training step, three ways to shard it: data parallel, FSDP, tensor parallel.

The step is written for one device. `autograph` takes its `if`, `seed` its keys; passes push up
reductions, fit the gradient into a budget, take the batch in steps and sum gradients once.
"""

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import malleable as mal
from examples.training import transformer

P = PartitionSpec
RATE, BATCH, MICRO, STEPS, TOLERANCE = 0.5, 64, 4, 3, 2e-5
TENSOR = {
    "qkv": P(None, None, None, "d"),
    "out": P(None, "d"),
    "up": P(None, None, "d"),
    "down": P(None, "d"),
}
WAYS = {  # name: (where a parameter is, where the batch is)
    "data parallel": (lambda name: P(), P("d")),
    "FSDP": (lambda name: P("d") if name in ("embed", "place") else P(None, "d"), P("d")),
    "tensor parallel": (lambda name: TENSOR.get(name, P()), P()),
}


def plain(params, text, key):
    """The step in plain JAX: keys and branches by hand."""
    new_key = lambda: jax.random.fold_in(key, 0)
    value, slope = jax.value_and_grad(transformer.loss)(params, text, new_key)
    size = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(slope)))
    rate = jax.lax.cond(size > 1, lambda: RATE / size, lambda: RATE)
    return transformer.updated(params, slope, rate), value


def malleable_step(budget, shardings):
    """The same step; budget: bytes of temporary memory of a device for the whole batch."""
    passes = mal.push_up_reductions, mal.remat(budget=budget)
    loss = lambda params, text: transformer.loss(params, text, mal.next_key)
    loss = mal.optimize(mal.seed(loss), *passes, shardings=(None, *shardings))

    @mal.autograph
    def step(params, text, key):
        value, slope = jax.value_and_grad(loss, 1)(key, params, text)
        size, rate = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(slope))), RATE
        if size > 1:
            rate = RATE / size
        return transformer.updated(params, slope, rate), value

    steps = mal.microbatch(MICRO, argnums=-2)
    return mal.optimize(step, mal.defer_collectives, steps, shardings=(*shardings, None))


def run(step, params, text):
    """(losses of some steps, bytes of temporary memory on a device, what is sent)."""
    args = params, text, jax.random.key(1)
    compiled = jax.jit(step).lower(*args).compile()
    losses = []
    for i in range(STEPS):
        params, value = compiled(params, text, jax.random.key(i + 1))
        losses.append(float(value))
    return losses, compiled.memory_analysis().temp_size_in_bytes, mal.communication(step)(*args)


def main():
    mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
    for name, (spec, batch) in WAYS.items():
        where = lambda path, _, spec=spec: NamedSharding(mesh, spec(path[-1].key))
        params = transformer.parameters(jax.random.key(0))
        there = jax.tree_util.tree_map_with_path(where, params), NamedSharding(mesh, batch)
        args = jax.device_put((params, transformer.texts(BATCH)), there)
        found = run(plain, *args)
        ours = run(malleable_step(0.8 * found[1], there), *args)
        off = max(abs(a - b) for a, b in zip(found[0], ours[0], strict=True))
        assert off < TOLERANCE, f"{name}: losses differ by {off}"
        print(f"{name}: losses {', '.join(f'{x:.4f}' for x in ours[0])}, off by {off:.0e}")
        for who, (_, held, sent) in (("plain", found), ("malleable", ours)):
            rows = f"{sent.times:4g} collectives {sent.bytes / 2**20:6.2f} MiB"
            print(f"  {who:10} {rows}, memory {held / 2**20:6.2f} MiB on each device")


if __name__ == "__main__":
    main()
