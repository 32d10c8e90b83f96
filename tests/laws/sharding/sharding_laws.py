"""What must hold for every pass on a mesh: the same numbers and shardings, and no more to send.

`try_seed(seed)` compiles one random program over a mesh of (2, 4) devices as it is and through some
passes. Axes are automatic or explicit, arguments are in parts along one axis, both or none.
"""

import itertools
import random

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import malleable as mal
from malleable.inspection.costs.collectives import collectives

MORE, FREE = 1.05, 2048  # bytes sent: at most this much of plain JAX's, or this many more
ASKED = {"microbatch"}  # less memory is asked for, at this price
KINDS = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}
MESHES = {
    name: jax.make_mesh((2, 4), ("data", "model"), axis_types=(kind, kind))
    for name, kind in KINDS.items()
}
PASSES = {
    "default": mal.pipeline(mal.dce, mal.cse),
    "hoist": mal.hoist,
    "fold": mal.fold,
    "library": mal.rewrite(*mal.LIBRARY),
    "matmul_order": mal.matmul_order,
    "merge_dims": mal.merge_dims,
    "scan_merge": mal.scan_merge,
    "scan_trim": mal.scan_trim,
    "unbuffer": mal.unbuffer,
    "push": mal.push_up_reductions,
    "push 2": mal.push_up_reductions(threshold=0, chunk=2),
    "stream": mal.stream(threshold=1 << 10, block=4),
    "reroll": mal.reroll,
    "defer": mal.defer_collectives,
    "microbatch": mal.microbatch(2, argnums=0),
    "remat": mal.remat(budget=1 << 14),
}
DECLINED = ("cannot be taken", "cannot be met", "does not divide")  # errors that say why
T, B, D = 8, 16, 32
SPECS = [(None, "data"), (None, "data", "model"), (None, None, "model"), (None, "model"), ("data",)]
WEIGHTS = [(), (None, "model"), ("model",), ("data",)]


def step_of(name):
    """A step of a program: (values of shape (T, B, D), weights of (D, D)) -> the same shape."""
    match name:
        case "tanh":
            return lambda h, w: jnp.tanh(h)
        case "norm":
            return lambda h, w: (
                (h - h.mean(-1, keepdims=True)) * lax.rsqrt(h.var(-1, keepdims=True) + 1)
            )
        case "center":
            return lambda h, w: h - h.mean(1, keepdims=True)
        case "product":
            return lambda h, w: h @ w / 6
        case "gated":
            return lambda h, w: h * jax.nn.sigmoid(h @ w)
        case "softmax":
            return lambda h, w: jax.nn.softmax(h, -1)
        case "loop":
            return lambda h, w: lax.scan(lambda c, x: (jnp.tanh(c @ w / 6 + x),) * 2, h[0] * 0, h)[
                1
            ]
        case "layers":

            def layers(h, w):
                for k in range(4):
                    h = h + jnp.sin(h @ w) * (k + 1) / 8
                return h

            return layers
        case "branch":
            return lambda h, w: lax.cond(h.sum() > 0, lambda h: h * 2, jnp.cos, h)
        case "relu":
            return lambda h, w: jax.nn.relu(h + 0.1)
        case "turn":
            return lambda h, w: jnp.swapaxes(jnp.swapaxes(h, 1, 2) * 2, 1, 2)
        case "attention":

            def attention(h, w):
                scores = jnp.einsum("tbd,sbd->bts", h, h @ w) / 32
                return jnp.einsum("bts,sbd->tbd", jax.nn.softmax(scores, -1), h)

            return attention
        case "sums":
            return lambda h, w: jnp.cumsum(h, 0) / 4 + jnp.cumsum(h, -1) / 8
        case "sort":
            return lambda h, w: jnp.sort(h, -1) + jnp.sort(h, 0)
        case "scatter":
            return lambda h, w: h.at[jnp.arange(0, T, 2)].add(h[1::2] / 2)
        case "cut":

            def cut(h, w):
                at = jnp.argmax(h[:, 0, 0]) % (T - 3)
                part = lax.dynamic_slice_in_dim(h, at, 4, 0)
                return lax.dynamic_update_slice_in_dim(h, jnp.sin(part), 2, 0)

            return cut
        case "take":
            return lambda h, w: h[jnp.arange(T)[::-1]] + jnp.take(h, jnp.arange(D)[::-1], -1)
        case "filter":
            kernel = jnp.ones((3, 1, 1)) / 3
            rows = ("NWC", "WIO", "NWC")
            return lambda h, w: (
                lax.conv_general_dilated(
                    h.transpose(1, 2, 0).reshape(B * D, T, 1),
                    kernel,
                    (1,),
                    "SAME",
                    (1,),
                    (1,),
                    rows,
                )
                .reshape(B, D, T)
                .transpose(2, 0, 1)
            )
        case "own rule":
            return lambda h, w: clipped(h)
        case "call":
            return lambda h, w: jax.jit(lambda h, w: jnp.sin(h @ w) + h)(h, w)
        case "placed call":
            placed = jax.jit(
                lambda h, w: jnp.sin(h @ w) + h,
                in_shardings=(on_mesh(None, "data"), on_mesh()),
                out_shardings=on_mesh(None, "data", "model"),
            )
            return lambda h, w: placed(h, w)
        case "mapped on devices":

            def placed_row(row):
                return lax.with_sharding_constraint(jnp.tanh(row), on_mesh(None, "model"))

            each_row = jax.vmap(placed_row, in_axes=1, out_axes=1, spmd_axis_name="data")
            return lambda h, w: each_row(h)
        case "noise":
            return lambda h, w: h + jax.random.normal(jax.random.key(1), h.shape) / 4
        case "dropout":
            return lambda h, w: jnp.where(
                jax.random.bernoulli(jax.random.key(2), 0.8, h.shape), h, 0
            )
        case "mapped":
            each = jax.vmap(lambda h: jnp.tanh(h - h.mean(0)), in_axes=1, out_axes=1)
            return lambda h, w: each(h)
        case "checkpoint":
            return lambda h, w: jax.checkpoint(lambda h: jnp.cos(h @ w / 6))(h)
        case "until":
            halved = lambda h: lax.while_loop(lambda h: (h**2).mean() > 0.5, lambda h: h / 2, h)
            return lambda h, w: h + lax.stop_gradient(halved(h))
    raise ValueError(name)


def on_mesh(*spec):
    return NamedSharding(MESHES["auto"], PartitionSpec(*spec))


@jax.custom_vjp
def clipped(x):
    """The identity, whose cotangents are clipped."""
    return x


clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -1, 1),))

STEPS = ["tanh", "norm", "center", "product", "gated", "softmax", "loop", "layers", "branch"]
STEPS += ["relu", "turn", "attention", "sums", "sort", "scatter", "cut", "take", "filter", "call"]
STEPS += ["own rule", "noise", "dropout", "mapped", "checkpoint", "until"]
PLACED = ["placed call", "mapped on devices"]  # on automatic axes only
ENDS = {
    "mean": lambda h: jnp.mean(h**2),
    "by features": lambda h: (h**2).sum((0, 1)),
    "rows": lambda h: h.sum(0),
    "whole": lambda h: h,
    "both": lambda h: (h.max(-1), jnp.mean(h)),
    "logsumexp": lambda h: jax.nn.logsumexp(h, -1).mean(),
}


def drawn(seed):
    """(what it is, program, arguments, mesh) of a seed."""
    pick = random.Random(seed)
    kind = pick.choice(list(MESHES))
    mesh = MESHES[kind]
    names = [pick.choice(STEPS) for _ in range(pick.randint(1, 4))]
    end = pick.choice(list(ENDS))
    xs, ws = pick.choice(SPECS), pick.choice(WEIGHTS)
    differentiated = pick.random() < 0.5
    if kind == "auto" and pick.random() < 0.3:
        names[pick.randrange(len(names))] = pick.choice(PLACED)
    steps = list(map(step_of, names))

    def program(x, w):
        for step in steps:
            x = step(x, w)
        return ENDS[end](x)

    def gradient(x, w):
        total = lambda x, w: sum(jnp.sum(y) for y in jax.tree.leaves(program(x, w)))
        return jax.grad(total, (0, 1))(x, w)

    values = np.random.default_rng(seed)
    args = tuple(
        jax.device_put(
            values.normal(size=shape).astype("f"), NamedSharding(mesh, PartitionSpec(*spec))
        )
        for shape, spec in (((T, B, D), xs), ((D, D), ws))
    )
    told = f"{kind} x{xs} w{ws} {' '.join(names)} -> {end}{' gradient' * differentiated}"
    return told, gradient if differentiated else program, args, mesh


class Run:
    """What a program gives and sends."""

    def __init__(self, fun, args):
        compiled = jax.jit(fun).lower(*args).compile()
        self.sent = sum(s.times * s.bytes for s in collectives(compiled.as_text() or ""))
        self.outs = jax.tree.leaves(compiled(*args))


def compare(plain, ours, more=MORE):
    """What is wrong with a run that may send so much more, in words; "" if nothing."""
    wrong = []
    for i, (a, b) in enumerate(zip(plain.outs, ours.outs, strict=True)):
        size = max(1.0, float(np.nanmax(np.abs(a), initial=0)))
        if not np.allclose(a, b, rtol=1e-3, atol=1e-4 * size, equal_nan=True):
            wrong.append(f"result {i} is off by {np.abs(np.asarray(a) - b).max():.2g}")
        if not a.sharding.is_equivalent_to(b.sharding, a.ndim):
            wrong.append(f"result {i} is at {b.sharding.spec}, not at {a.sharding.spec}")
    if ours.sent > more * plain.sent + FREE:
        wrong.append(f"{ours.sent:.0f} bytes are sent, not {plain.sent:.0f}")
    return "; ".join(wrong)


def try_seed(seed, count=3):
    """(how many passes ran, what is wrong) of a random program and `count` passes, or all for 0."""
    told, program, args, mesh = drawn(seed)
    with jax.set_mesh(mesh):
        try:
            plain = Run(program, args)
        except Exception:
            if not told.startswith("explicit"):
                raise
            return 0, []  # JAX asks where the result of a product is to be, or joins no types
        names = random.Random(seed).sample(list(PASSES), count) if count else list(PASSES)
        wrong, ran = [], 0
        for name in names:
            try:
                ours = Run(mal.optimize(program, PASSES[name]), args)
            except mal.TransformError as error:
                if not any(word in str(error) for word in DECLINED):
                    wrong.append(f"{seed} {name} on {told}: {error}")
                continue
            except Exception as error:
                wrong.append(
                    f"{seed} {name} on {told}: crash {type(error).__name__} {str(error)[:300]}"
                )
                continue
            ran += 1
            if why := compare(plain, ours, 2.0 if name in ASKED else MORE):
                wrong.append(f"{seed} {name} on {told}: {why}")
        return ran, wrong


def try_many(first, count, passes=3):
    """(how many ran, what is wrong) of `count` programs."""
    runs = [try_seed(seed, passes) for seed in range(first, first + count)]
    return sum(ran for ran, _ in runs), list(itertools.chain.from_iterable(w for _, w in runs))
