"""The neutral verbs of the shared case files, in ours."""

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

import malleable as mal

normal = mal.marker(
    "normal",
    out=lambda mean, *_, name, observed: mean,
    missing="sample() needs trace or log_prob around",
    lanes="all",
)


def values_of(fun, keep):
    def collected(*args):
        out, tags = fun(*args)
        is_masked = lambda t: isinstance(t, mal.Masked)
        return out, jax.tree.map(keep, tags, is_leaf=is_masked)

    return collected


class Adapter:
    tag = staticmethod(lambda x, name, mode="unique": mal.tag(x, name, mode=mode))
    scope = module = staticmethod(lambda f, name: mal.scope(name)(f))
    next_key = staticmethod(mal.next_key)
    param = staticmethod(lambda name, shape, init: mal.param(name, init, shape))
    inject = staticmethod(mal.plant)
    harvest = staticmethod(mal.harvest)
    cotangents = staticmethod(mal.cotangents)
    with_key = staticmethod(mal.seed)
    init = staticmethod(mal.init)
    apply = staticmethod(mal.apply)
    mutable = staticmethod(mal.mutable)

    def collect(self, f, only=None):
        return values_of(
            mal.reap(f, only=only),
            lambda t: getattr(t, "value", t) if isinstance(t, mal.Masked) else t,
        )

    def collect_masked(self, f):
        return values_of(
            mal.reap(f), lambda t: tuple(t) if isinstance(t, mal.Masked) else (t, True)
        )

    def as_scan(self, f, xs):
        raise NotImplementedError

    def sample(self, name, dist, *args):
        args = jnp.broadcast_arrays(*(jnp.asarray(a, jnp.float32) for a in args))
        return normal(*args, name=name, observed=False)

    def trace(self, f):
        def rule(frame, mean, std, *value, name, observed):
            x = (
                value[0]
                if observed
                else mean + std * jax.random.normal(frame.next_key(), mean.shape)
            )
            frame.write(name, x)
            return x

        def traced(key, *args):
            out, _, sites = mal.interpret(f, {normal: rule}, key=key)(*args)
            return out, sites

        return traced

    def log_prob(self, f):
        def rule(frame, mean, std, *value, name, observed):
            x = value[0] if observed else jnp.broadcast_to(frame.read(name), mean.shape)
            frame.carry += norm.logpdf(x, mean, std).sum()
            return x

        return lambda values, *args: mal.interpret(f, {normal: rule}, carry=0.0, feeds=values)(
            *args
        )[1]

    def condition(self, f, values):
        def rule(frame, mean, std, *value, name, observed):
            if observed or name not in values:
                return normal(mean, std, *value, name=name, observed=observed)
            return normal(
                mean, std, jnp.broadcast_to(frame.read(name), mean.shape), name=name, observed=True
            )

        return lambda *args: mal.interpret(f, {normal: rule}, feeds=values)(*args)[0]
