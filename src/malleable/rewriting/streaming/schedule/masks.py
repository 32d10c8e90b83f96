"""What happens at the steps of a window only: skipped elsewhere, or done with zeros."""

import jax
from jax import lax
from jax import numpy as jnp

from malleable.core.frame import zeros
from malleable.programs.primitives import has
from malleable.rewriting.graph.slices import weakened
from malleable.rewriting.streaming.region.region import Alias, Mapped, Window

TAME = has("tame")


def is_tame(node, action) -> bool:
    """Whether an equation may run on zeros: nothing comes of it that spoils a gradient."""
    power = node.name == "integer_pow" and node.params["y"] > 0
    mapped = isinstance(action, Mapped) and (power or node.name in TAME)
    return mapped or isinstance(action, Alias)


def last_of(window: Window) -> int:
    """The step at which the last element of a window is at hand."""
    return window.start + window.step * (window.count - 1)


def elements(reverse: bool, t, k, window: Window):
    """How many elements of a window came up to step t, and in k from it."""
    passed = last_of(window) - t if reverse else t + (k or 1) - 1 - window.start
    return jnp.clip(passed // window.step + 1, 0, window.count)


def share(reverse: bool, t, k, window: Window):
    """How many times as many elements a window has as came by then."""
    return window.count / jnp.maximum(1, elements(reverse, t, k, window))


def index(window: Window, t):
    """The index of an element in a value of this window."""
    j = t - window.start if window.start else t
    return jnp.asarray(j // window.step if window.step > 1 else j, jnp.int32)


def within(window: Window, n: int, t, fun, args, otherwise=None, tame: bool = False):
    """fun(*args) at the steps of a window, of n steps; elsewhere zeros, or `otherwise`.

    tame: fun may run on zeros, where it is to give zeros or `otherwise` too. Where most steps are
    in the window that is faster than to branch, in the gradient above all.
    """
    last = last_of(window)
    if isinstance(t, int):
        inside = window.start <= t <= last and (t - window.start) % window.step == 0
        return fun(*args) if inside else otherwise
    if window.step == 1 and window.start <= 0 and last >= n - 1:
        return fun(*args)
    inside = (t >= window.start) & (t <= last)
    if tame and window.step == 1 and window.count * 10 >= n * 9:
        outs = fun(*(_or_zero(inside, x) for x in args))
        return outs if otherwise is not None else [_or_zero(inside, x) for x in outs]
    if window.step > 1:
        inside &= (t - window.start) % window.step == 0
    if otherwise is None:
        types = jax.eval_shape(fun, *args)
        otherwise = jax.tree.map(weakened, zeros(types), types)
    return lax.cond(inside, lambda: fun(*args), lambda: otherwise)


def _or_zero(inside, x):
    return jnp.where(inside, x, jnp.zeros_like(x))
