"""A probabilistic language: `sample` inside; `trace`, `condition` and `log_prob` outside."""

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

import malleable as mal

sample_p = mal.marker(
    "sample",
    out=lambda loc, *_, **__: loc,
    lanes="all",
    missing="sample() is called, and nothing around says what it means",
    hint="run the model as trace(model)(key, ...) or log_prob(model)(values, ...)",
)


def sample(name, loc, scale, seen=None):
    """A draw from normal(loc, scale), or the value `seen` if there is one."""
    return sample_p(*jnp.broadcast_arrays(loc, scale, *([] if seen is None else [seen])), name=name)


def trace(model):
    """trace(model)(key, *args) -> (out, {name: drawn}, log density of what was seen)."""

    def draw(frame, loc, scale, *seen, name):
        if seen:
            frame.carry += norm.logpdf(*seen, loc, scale).sum()
            return seen[0]
        x = loc + scale * jax.random.normal(frame.next_key(), loc.shape)
        frame.write(name, x)
        return x

    def traced(key, *args):
        out, weight, drawn = mal.interpret(model, {sample_p: draw}, key=key, carry=0.0)(*args)
        return out, drawn, weight

    return traced


def condition(model, values):
    """`model`, having seen `values`."""

    def see(frame, loc, scale, *seen, name):
        return sample(name, loc, scale, *seen or [frame.read(name, None)])

    return lambda *args: mal.interpret(model, {sample_p: see}, feeds=values)(*args)[0]


def log_prob(model):
    """log_prob(model)(values, *args) -> log density of the values of all draws together."""
    return lambda values, *args: trace(condition(model, values))(None, *args)[2]


def line(xs):
    slope = sample("slope", 0.0, 1.0)
    return jax.vmap(lambda x: sample("y", slope * x, 0.5))(xs)


def main():
    xs, ys = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.9, 2.4, 2.8])
    draws = jax.vmap(trace(condition(line, {"y": ys})), (0, None))
    _, drawn, weight = jax.jit(draws)(jax.random.split(jax.random.key(0), 20_000), xs)
    density = lambda slope: log_prob(line)({"slope": slope, "y": ys}, xs)
    found = {
        "slope, by importance sampling": jax.nn.softmax(weight) @ drawn["slope"],
        "by a Newton step on log_prob": -jax.grad(density)(0.0) / jax.hessian(density)(0.0),
        "by the formula for normals": (xs @ ys) / (xs @ xs + 0.5**2),
    }
    for how, slope in found.items():
        print(f"{how:>30}: {slope:.3f}")
    return found


if __name__ == "__main__":
    main()
