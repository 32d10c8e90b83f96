"""One of several processes: `python -m MODULE ID PORT COUNT before|after` says what it got.

before, after: whether `malleable` is imported before the processes know each other.
"""

import hashlib
import importlib
import json
import pathlib
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from tests.compat.loopback import connect, leave


def rnn(w, xs):
    states = lax.scan(lambda h, x: (jnp.tanh(h @ w + x),) * 2, jnp.zeros(xs.shape[1:]), xs)[1]
    return jnp.mean(states**2)


def kernel_sum(x, y, b):
    return jnp.exp(-((x[:, None] - y[None]) ** 2).sum(-1)) @ b


def layers(w, x):
    for k in range(6):
        x = x + jnp.sin(jnp.sin(x @ w)) * (k + 1)
    return jnp.mean(x**2)


def programs(mal):
    """{name: (program, the shapes and specs of its arguments)}."""
    recurrent = [((8, 8), ()), ((16, 8, 8), (None, "d"))]
    matrix = [((8, 8), ()), ((16, 8), ("d",))]
    rows = [((64, 3), ("d",)), ((64, 3), ()), ((64, 2), ())]
    tagged = lambda w, x: mal.tag(jnp.tanh(x @ w), "h").sum()
    noisy = lambda w, x: ((x + jax.random.normal(mal.next_key(), x.shape)) @ w).mean()
    key = jax.random.key(7)
    halved = mal.autograph(_halved)
    return {
        "push": (jax.grad(mal.optimize(rnn, mal.push_up_reductions)), recurrent),
        "defer": (mal.optimize(jax.grad(rnn), mal.defer_collectives), recurrent),
        "stream": (mal.optimize(kernel_sum, mal.stream(threshold=1 << 10, block=8)), rows),
        "default": (mal.optimize(layers, mal.hoist, mal.fold, mal.merge_dims), matrix),
        "reroll": (jax.grad(mal.optimize(layers, mal.reroll)), matrix),
        "microbatch": (mal.optimize(jax.grad(layers), mal.microbatch(2)), matrix),
        "remat": (jax.grad(mal.optimize(layers, mal.remat(budget=4000))), matrix),
        "library": (mal.optimize(layers, mal.rewrite(*mal.LIBRARY)), matrix),
        "reap": (mal.reap(tagged), matrix),
        "seed": (lambda w, x: mal.seed(noisy)(key, w, x), matrix),
        "interpret": (lambda w, x: mal.interpret(layers, {lax.sin_p: _bound})(w, x)[0], matrix),
        "autograph": (halved, matrix),
    }


def _bound(frame, x, **params):
    return frame.bind(x)


def _halved(w, x):
    while jnp.abs(x).max() > 1:
        x = x / 2
    return (x @ w).sum()


def put(seed, shape, spec, mesh):
    x = np.random.default_rng(seed).normal(size=shape).astype("f")
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    return jax.make_array_from_callback(x.shape, sharding, lambda i: x[i])


def told(mal):
    """{name: [hash of what is compiled, numbers]}."""
    mesh = jax.make_mesh((4,), ("d",), axis_types=(AxisType.Auto,))
    whole = NamedSharding(mesh, PartitionSpec())
    found = {}
    for name, (program, arguments) in programs(mal).items():
        args = [put(i, shape, spec, mesh) for i, (shape, spec) in enumerate(arguments)]
        run = jax.jit(program, out_shardings=whole)
        lowered = run.lower(*args)
        text = lowered.compiler_ir("hlo").as_hlo_text()
        outs = [np.asarray(x).astype("f8").sum() for x in jax.tree.leaves(run(*args))]
        found[name] = [hashlib.sha256(text.encode()).hexdigest()[:16], outs]
    args = put(0, (8, 8), (), mesh), put(1, (16, 8), ("d",), mesh)
    file = pathlib.Path(tempfile.mkdtemp()) / "saved.mal"
    mal.save(file, layers, *args)
    found["save"] = [hashlib.sha256(file.read_bytes()).hexdigest()[:16], []]
    found["saved text"] = [str(file.read_bytes()[:0]), [float(mal.load(file)(*args))]]
    text = str(mal.communication(jax.grad(layers))(*args))
    found["communication"] = [hashlib.sha256(text.encode()).hexdigest()[:16], []]
    return found


def main(number, port, count, order):
    if order == "after" and count > 1:
        connect(number, count, port)
    mal = importlib.import_module("malleable")
    if order == "before" and count > 1:
        connect(number, count, port)
    print("TOLD " + json.dumps(told(mal)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
    leave()
