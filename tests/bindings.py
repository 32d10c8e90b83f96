"""The neutral verbs of the shared case files, in ours."""

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm

import malleable as mal
from malleable import prob

normal = mal.marker("normal", out=lambda mean, *_, **__: mean, missing="no handler", lanes="all")


def is_masked(x):
    return isinstance(x, mal.Masked)


def tags_as(keep, reaped):
    def collected(*args):
        out, tags = reaped(*args)
        return out, jax.tree.map(keep, tags, is_leaf=is_masked)

    return collected


def handle(fun, value, **state):
    """Run a model; value(frame, mean, std, name) gives the value of a site that has none yet."""

    def rule(frame, mean, std, *given, name):
        x = given[0] if given else value(frame, mean, std, name)
        if x is None:
            return normal(mean, std, name=name)
        x = jnp.broadcast_to(x, mean.shape)
        frame.carry += norm.logpdf(x, mean, std).sum()
        frame.write(name, x)
        return normal(mean, std, x, name=name) if normal.active else x

    return mal.interpret(fun, {normal: rule}, carry=0.0, **state)


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
        return tags_as(lambda t: t.value if is_masked(t) else t, mal.reap(f, only=only))

    def collect_masked(self, f):
        return tags_as(lambda t: tuple(t) if is_masked(t) else (t, True), mal.reap(f))

    def as_scan(self, f, xs):
        raise NotImplementedError

    def sample(self, name, dist, *args):
        return normal(*jnp.broadcast_arrays(*map(jnp.float32, args)), name=name)

    def trace(self, f):
        draw = lambda frame, m, std, _: m + std * jax.random.normal(frame.next_key(), m.shape)
        return lambda key, *a: handle(f, draw, key=key)(*a)[::2]

    def log_prob(self, f):
        given = lambda frame, mean, std, name: frame.read(name)
        return lambda values, *a: handle(f, given, feeds=values)(*a)[1]

    def condition(self, f, values):
        given = lambda frame, mean, std, name: frame.read(name, None)
        return lambda *a: handle(f, given, feeds=values)(*a)[0]


class Prob:
    sample = staticmethod(prob.sample)
    trace = staticmethod(prob.trace)
    condition = staticmethod(prob.condition)
    intervene = staticmethod(prob.intervene)
    log_prob = staticmethod(prob.log_prob)
    update = staticmethod(prob.update)


class Incremental:
    def as_scan(self, fun, xs, axis=0, width=1):
        return mal.as_scan(fun, xs, axis=axis, width=width)

    def incremental(self, fun, args, change):
        return mal.incremental(fun, change=change)
