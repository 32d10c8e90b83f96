"""A probabilistic language: `sample` inside; `trace`, `condition` and `log_prob` outside."""

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

import malleable as mal

draw = mal.marker("draw", out=lambda loc, *_, **__: loc, lanes="all", missing="needs `trace`")


def sample(name, *loc_scale_seen):
    """A draw from normal(loc, scale), or the value `seen` if one is given."""
    return draw(*jnp.broadcast_arrays(*loc_scale_seen), name=name)


def trace(model):
    """trace(model)(key, *args) -> (out, log density of what was seen, {name: drawn})."""

    def rule(frame, loc, scale, *seen, name):
        if seen:
            frame.carry += norm.logpdf(*seen, loc, scale).sum()
            return seen[0]
        drawn = loc + scale * jax.random.normal(frame.next_key(), loc.shape)
        frame.write(name, drawn)
        return drawn

    return lambda key, *args: mal.interpret(model, {draw: rule}, key=key, carry=0.0)(*args)


def condition(model, values):
    """`model`, having seen `values`; a draw in a scan of n steps has seen n of them."""

    def rule(frame, loc, scale, *seen, name):
        return sample(name, loc, scale, *([frame.read(name)] if name in values else seen))

    return lambda *args: mal.interpret(model, {draw: rule}, feeds=values)(*args)[0]


def log_prob(model):
    """log_prob(model)(values, *args): the log density of all draws having these values."""
    return lambda values, *args: trace(condition(model, values))(None, *args)[1]


def line(xs):
    return sample("y", sample("slope", 0.0, 1.0) * xs, 0.5)


def main():
    xs, ys = jnp.array([1.0, 2.0, 3.0]), jnp.array([0.9, 2.4, 2.8])
    particles = jax.jit(jax.vmap(lambda key: trace(condition(line, {"y": ys}))(key, xs)))
    _, weight, drawn = particles(jax.random.split(jax.random.key(0), 20_000))
    score = jax.grad(lambda slope: log_prob(line)({"slope": slope, "y": ys}, xs))
    best = score(0.0) / (score(0.0) - score(1.0))  # where it is 0, as a normal's score is linear
    print(f"slope: {jax.nn.softmax(weight) @ drawn['slope']:.3f} sampled, {best:.3f} by gradient")


if __name__ == "__main__":
    main()
