"""One of two processes on loopback: `python -m MODULE ID PORT` prints what it decided."""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import malleable as mal
from tests.compat.loopback import connect, leave


@mal.jit
def schedule(v):
    kept = v[v > -1]
    return jnp.exp(-(jnp.sin(kept) ** 2)).sum() + jnp.cumsum(kept)[-1] / 7


def main(number, port):
    connect(number, 2, port)
    mesh = jax.make_mesh((jax.device_count(),), ("d",))
    sharding = NamedSharding(mesh, PartitionSpec("d"))
    ones = np.ones(jax.device_count(), "f")
    x = jax.make_array_from_callback(ones.shape, sharding, lambda i: ones[i])
    total = jax.jit(lambda x: x.sum())
    v = jnp.asarray(np.random.default_rng(5).normal(size=2048).astype("f"))
    first, steps = float(schedule(v)), 0
    for k in range(40):
        time.sleep(0.002 * (k % 2 == number))  # each is slower at times
        if float(schedule(v)) == first:  # if one process steps and the other does not, it hangs
            total(x).block_until_ready()
            steps += 1
    numpy = any(
        variant.by_numpy
        for part in schedule.engine.known.values()
        for runner in part.runs.values()
        for variant in [*runner.state.variants.values(), *runner.state.sized.values()]
    )
    print(f"DECIDED {steps} {first.hex()} {numpy}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
    leave()
