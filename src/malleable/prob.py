"""Probabilistic programs: `sample(name, dist)` inside; `trace`, `condition`, `log_prob` outside."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any, Concatenate

import jax
from jax import numpy as jnp

from malleable import compat
from malleable.core.frame import Frame, Masked, Path, quoted, spell_type
from malleable.core.interpret import Rulebook, run_staged
from malleable.core.marker import Marker, marker
from malleable.core.stage import stage
from malleable.effects.harvest import fit
from malleable.effects.names import full_path, named_sites, nest, unnest
from malleable.effects.rng import typed
from malleable.errors import TransformError, UnhandledError
from malleable.python_source.misuse import called_as
from malleable.rewriting.incremental.incremental import incremental
from malleable.signatures import P, R

MISSING = "sample() is called, and nobody is around to say what it gives"
HINT = "run the model as prob.trace(model)(key, ...), or give it values by prob.condition"


def _type(lane, *_, like, **__):
    return jax.ShapeDtypeStruct((*lane.shape, *like.shape), like.dtype)


# operands: a number with the lanes of every vmap around, the leaves of the distribution, and the
# value if it is known; role: "drawn", "seen" (known, and counts) or "set" (known, does not count)
_site_p: Marker = marker("sample", out=_type, lanes="all", missing=MISSING, hint=HINT)


@called_as("sample('name', distribution)")
def sample(name: str | Path, dist: Any, obs: Any = None) -> jax.Array:
    """A site of a model: a draw from `dist`, or the value that was seen.

    dist is a pytree of arrays with `sample(key)`, an array, and `log_prob(value)`, whose elements
    are summed, such as those of numpyro. `obs` broadcasts with a draw: one distribution may see
    many values. A site in a scan of n steps, or under a vmap of n lanes, has n values, stacked in
    front. Names are unique in their `scope`.

    >>> from numpyro.distributions import Normal
    >>> model = lambda: sample("y", Normal(sample("x", Normal(0.0, 1.0)), 1.0))
    >>> out, values, density = trace(model)(jax.random.key(0))
    >>> sorted(values), bool(out == values["y"])
    (['x', 'y'], True)
    """
    if obs is None and not _site_p.active:
        return _site_p()  # raises
    path, (leaves, tree), like = full_path(name), jax.tree.flatten(dist), None
    if callable(getattr(dist, "log_prob", None)) and all(map(compat.is_array, leaves)):
        leaves = list(map(jnp.asarray, leaves))
        like = jax.eval_shape(lambda x: tree.unflatten(x).sample(jax.random.key(0)), leaves)
    if not isinstance(like, jax.ShapeDtypeStruct):
        what = f"the site {quoted(path)} has no distribution, but a {type(dist).__name__}"
        hint = "give it a pytree of arrays with sample(key), an array, and log_prob(value)"
        raise TransformError(what, where=compat.where(), hint=hint)
    known, role = [], "drawn"
    if obs is not None:
        known, role = [like := _seen(path, jnp.asarray(obs), like)], "seen"
    if not _site_p.active:
        return known[0]
    like = jax.ShapeDtypeStruct(like.shape, like.dtype)
    return _site_p(jnp.int8(0), *leaves, *known, path=path, tree=tree, like=like, role=role)


def _seen(path, obs, like):
    """What was seen, in the shape in common with a draw, and in its dtype if that fits."""
    try:
        shape = jnp.broadcast_shapes(obs.shape, like.shape)
    except ValueError:
        what = f"the site {quoted(path)} draws {spell_type(like)} and sees {spell_type(obs)}"
        hint = "give `obs` a shape that broadcasts with a draw's"
        raise TransformError(what, where=compat.where(), hint=hint) from None
    fits = jnp.promote_types(obs.dtype, like.dtype) == like.dtype
    return jnp.broadcast_to(obs.astype(like.dtype) if fits else obs, shape)


@called_as("trace(model)(key, *args)")
def trace(
    model: Callable[P, R],
) -> Callable[Concatenate[jax.Array, P], tuple[R, dict[str, Any], jax.Array]]:
    """model(*args) -> out  becomes  trace(model)(key, *args) -> (out, values, log density).

    values: {name: value} of what was drawn; of a site in some branches of a cond only, it is
    `Masked(value, written)`. The log density is that of all sites, seen ones too. Keys are counted
    as by `seed`. Raises TransformError for a name used twice, and for a site in a while loop.

    >>> from numpyro.distributions import Normal
    >>> step = lambda x, _: (sample("x", Normal(x, 1.0)), None)
    >>> _, values, _ = trace(lambda: jax.lax.scan(step, 0.0, length=3))(jax.random.key(0))
    >>> values["x"].shape
    (3,)
    """

    @called_as("trace(model)(key, *args)", of=model)
    def traced(key: jax.Array, *args: P.args, **kwargs: P.kwargs):
        out, frame = _run(model, _SCORE, {}, args, kwargs, typed(key))
        drawn = ((q, w) for q, w in frame.writes.items() if len(w.value) == 2)
        flat = {q: (replace(w, value=w.value[1]).result(), w.where) for q, w in drawn}
        return out, nest(flat), _density(frame)

    return traced


@called_as("log_prob(model)(values, *args)")
def log_prob(model: Callable[P, Any]) -> Callable[Concatenate[Mapping[str, Any], P], jax.Array]:
    """log_prob(model)(values, *args): the log density of the model's sites at these values.

    Every site is seen or has a value, of its shape or one number for all; of a cond, the branch
    taken counts. What `trace` gave as `Masked` makes it NaN where it is needed and not written.
    Raises TransformError for a site without a value, a value without a site or of another type, a
    name used twice, and a site in a while loop.

    >>> from numpyro.distributions import Normal
    >>> model = lambda y: sample("y", Normal(sample("mean", Normal(0.0, 1.0)), 1.0), obs=y)
    >>> slope = jax.grad(lambda mean: log_prob(model)({"mean": mean}, 3.0))
    >>> float(slope(1.0))
    1.0
    """

    @called_as("log_prob(model)(values, *args)", of=model)
    def scored(values: Mapping[str, Any], *args: P.args, **kwargs: P.kwargs):
        return _density(_run(model, _SCORE, values, args, kwargs)[1])

    return scored


@called_as("condition(model, {'name': value})(*args)")
def condition(model: Callable[P, R], values: Mapping[str, Any]) -> Callable[P, R]:
    """The model with some of its sites seen: they have these values, and count.

    >>> from numpyro.distributions import Normal
    >>> model = lambda: sample("y", Normal(sample("x", Normal(0.0, 1.0)), 1.0))
    >>> out, drawn, _ = trace(condition(model, {"y": 2.0}))(jax.random.key(0))
    >>> float(out), list(drawn)
    (2.0, ['x'])
    """
    return lambda *args, **kwargs: _run(model, _CONDITION, values, args, kwargs)[0]


@called_as("intervene(model, {'name': value})(*args)")
def intervene(model: Callable[P, R], values: Mapping[str, Any]) -> Callable[P, R]:
    """The model with some of its sites set: they have these values, and do not count.

    >>> from numpyro.distributions import Normal
    >>> float(log_prob(intervene(lambda: sample("x", Normal(0.0, 1.0)), {"x": 5.0}))({}))
    0.0
    """
    return lambda *args, **kwargs: _run(model, _INTERVENE, values, args, kwargs)[0]


def update(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    values: Mapping[str, Any],
    change: Mapping[str, Any],
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(init, step): the log density at `values`, and what it becomes when some of them change.

    init() -> (log density, state); step(state, {name: (block, starts)}) -> (log density, state)
    once `block` is written at `starts` into the values of that site. It is `incremental` of
    `log_prob(model)`, so a step costs what depends on its blocks. change: {name: sizes of a block}.

    >>> from numpyro.distributions import Normal
    >>> model = lambda: sample("x", Normal(jnp.zeros(1000), 1.0))
    >>> init, step = update(model, (), {"x": jnp.zeros(1000)}, {"x": (1,)})
    >>> before, state = init()
    >>> after, state = step(state, {"x": (jnp.ones(1), (7,))})
    >>> bool(jnp.allclose(after - before, -0.5, atol=1e-3))
    True
    """
    init, again = incremental(log_prob(model), change={0: change})

    def part(i, blocks):
        return jax.tree.map(itemgetter(i), blocks, is_leaf=lambda x: isinstance(x, tuple))

    def step(state, blocks):
        return again(state, {0: (part(0, blocks), part(1, blocks))})

    return lambda: init(values, *args), step


# ------------------------------------------------------------ how a model is run


def _run(model, book, values, args, kwargs, key=None) -> tuple[Any, Frame]:
    staged = stage(model, book.markers, raises=False)(*args, **kwargs)
    given = unnest(values, named_sites(_site_p, staged.jaxpr), "site").items()
    frame = Frame(key=key)
    frame.feeds = {q: x if isinstance(x, Masked) else jnp.asarray(x) for q, x in given}
    return run_staged(staged, book, frame), frame


def _density(frame: Frame) -> jax.Array:
    return sum((jnp.sum(w.value[0]) for w in frame.writes.values()), start=jnp.zeros(()))


def _value(frame, lane, known, path, like, role):
    """(the value of a site, or None; whether it was written, or None for certainty)."""
    value, written = frame.read(path, None), None
    if value is None:
        return (known[0] if known else None), None
    if known:
        raise frame.error(f"the site {quoted(path)} is {role} already", "give no value for it")
    if isinstance(value, Masked):
        value, written = value
    like = _type(lane, like=like)
    value = value if jnp.ndim(value) else jnp.broadcast_to(value, like.shape)
    return fit(frame, path, value, like, "give the shape that `trace` gives"), written


def _score(frame, lane, *rest, path, tree, like, role):
    """The rule of `trace` and `log_prob`: give a value, and hand out its density."""
    leaves, known = list(rest[: tree.num_leaves]), rest[tree.num_leaves :]
    over = lambda fun: functools.reduce(lambda f, _: jax.vmap(f), lane.shape, fun)  # noqa: E731
    value, written = _value(frame, lane, known, path, like, role)
    drawn = ()
    if value is None:
        if frame.key is None:
            names = ", ".join(map(quoted, frame.feeds)) or "none"
            what = f"the site {quoted(path)} has no value, those given are: {names}"
            raise frame.error(what, "give it one, or draw it: prob.trace(model)(key, ...)")
        key = frame.next_key()
        keys = jax.random.split(key, lane.shape) if lane.ndim else key
        value = over(lambda key, x: tree.unflatten(x).sample(key))(keys, leaves)
        drawn = (value,)
    if role != "set":
        terms = over(lambda x, v: jnp.sum(tree.unflatten(x).log_prob(v)))(leaves, value)
        density = jnp.sum(terms).astype(jnp.result_type(float))
        if written is not None:
            density = jnp.where(jnp.all(written), density, jnp.nan)
        frame.write(path, (density, *drawn), "masked")
    return value


def _give(frame, lane, *rest, path, tree, like, role, as_role):
    """The rule of `condition` and `intervene`: put a value in, for who runs the model."""
    value, written = _value(frame, lane, rest[tree.num_leaves :], path, like, role)
    if written is not None:
        what = f"the value of the site {quoted(path)} may not have been drawn"
        raise frame.error(what, "give its `.value`, where you know the branch that is taken")
    if value is not None and role == "drawn":
        rest, role = (*rest, value), as_role
    if _site_p.active:
        return _site_p(lane, *rest, path=path, tree=tree, like=like, role=role)
    if value is None:
        raise UnhandledError(MISSING, where=frame.where, hint=HINT)
    return value


_SCORE = Rulebook({_site_p: _score})
_CONDITION = Rulebook({_site_p: functools.partial(_give, as_role="seen")})
_INTERVENE = Rulebook({_site_p: functools.partial(_give, as_role="set")})
