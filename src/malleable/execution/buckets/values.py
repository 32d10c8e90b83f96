"""Padded arrays, and the table of rules that evaluate one equation on them.

An axis of symbolic size is padded at its end: the array has `room` for the bucket, the first
`true` elements are the values, and what follows is anything at all, unless `fill` says what.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.sizes import is_symbolic, size_room, size_texts
from malleable.programs.evaluate import evaluate

MASKS: dict[str, Callable] = {}


def mask_rule(*names: str):
    """Register rule(sizes, eqn, *operands) -> result(s) for these primitives.

    Operands are Padded; a result is a Padded, or an array with room for what the equation gives.
    """

    def register(rule):
        for name in names:
            MASKS[name] = rule
        return rule

    return register


@dataclass(frozen=True)
class Padded:
    """An array with room; its true shape; the number in the padding, where that is known."""

    x: Any
    dims: tuple
    fill: Any = None

    @property
    def axes(self) -> tuple[int, ...]:
        """The padded ones."""
        return tuple(i for i, d in enumerate(self.dims) if is_symbolic(d))


@dataclass(frozen=True)
class Sizes:
    """What the symbolic sizes are: `values` where the program runs, `rooms` where it is traced."""

    values: Mapping[str, jax.Array]  # of every size in the program, as text
    rooms: Mapping[str, int]  # of every symbol
    _known: dict = field(default_factory=dict)

    def true(self, dim):
        """A size as a number: an int or an int32 on the device."""
        return self.values[str(dim)] if is_symbolic(dim) else dim

    def room(self, dim) -> int:
        if not is_symbolic(dim):
            return dim
        text = str(dim)
        if text not in self._known:
            self._known[text] = size_room(text, self.rooms)
        return self._known[text]

    def shape(self, dims: Sequence) -> tuple[int, ...]:
        return tuple(map(self.room, dims))


def valid(sizes: Sizes, dims: Sequence, axes: Sequence[int]):
    """Whether a position is no padding: true or false for every position, along these axes."""
    shape, mask = sizes.shape(dims), jnp.ones((), bool)
    for axis in axes:
        wide = [1] * len(shape)
        wide[axis] = shape[axis]
        here = lax.broadcasted_iota(jnp.int32, wide, axis) < sizes.true(dims[axis])
        mask = mask & here
    return mask


def filled(sizes: Sizes, p: Padded, fill, axes: Sequence[int] | None = None):
    """The array with `fill` in the padding of these axes (of all)."""
    axes = [a for a in p.axes if axes is None or a in axes]
    if not axes or (p.fill is not None and p.fill == fill):
        return p.x
    if jnp.issubdtype(p.x.dtype, jax.dtypes.extended):
        raise Unsupported("keys of random numbers along a padded axis")
    return jnp.where(valid(sizes, p.dims, axes), p.x, jnp.asarray(fill, p.x.dtype))


def fit_dim(x, axis: int, room: int):
    """The array cut or extended to this room along an axis."""
    have = x.shape[axis]
    if have > room:
        return lax.slice_in_dim(x, 0, room, axis=axis)
    if have == room:
        return x
    widths = [(0, room - have if i == axis else 0, 0) for i in range(x.ndim)]
    return lax.pad(x, jnp.zeros((), x.dtype), widths)


def fit_shape(x, shape: Sequence[int]):
    for axis, room in enumerate(shape):
        x = fit_dim(x, axis, room)
    return x


def window(x, axis: int, start, room: int):
    """x[start : start + room] along an axis, where x is made longer if it is too short."""
    if isinstance(start, int) and start == 0:
        return fit_dim(x, axis, room)
    longer = fit_dim(x, axis, x.shape[axis] + room)
    return lax.dynamic_slice_in_dim(longer, start, room, axis=axis)


def strong(x):
    """The array without a weak type."""
    return lax.convert_element_type(x, x.dtype) if getattr(x, "weak_type", False) else x


def lowest(dtype):
    """What no number of this type is below."""
    return _extreme_of_dtype(dtype, -np.inf, "min")


def highest(dtype):
    return _extreme_of_dtype(dtype, np.inf, "max")


def _extreme_of_dtype(dtype, infinite, end):
    if np.dtype(dtype).kind == "b":
        return end == "max"
    if jnp.issubdtype(dtype, jnp.integer):
        return int(getattr(jnp.iinfo(dtype), end))
    if jnp.issubdtype(dtype, jnp.floating) and np.isinf(np.asarray(infinite, dtype)):
        return infinite
    raise Unsupported(f"an extreme of {dtype}")


# ---------------------------------------------------------------- evaluation


def evaluate_padded(sizes: Sizes, jaxpr: compat.Jaxpr, args: Sequence[Padded], consts=None) -> list:
    """The results of a program of symbolic sizes on padded arrays."""

    def literal(atom):
        aval, value = atom.aval, jnp.asarray(atom.val, atom.aval.dtype)
        return Padded(value, aval.shape, None if aval.shape else atom.val)

    known = [Padded(c, np.shape(c)) for c in (jaxpr.consts if consts is None else consts)]
    step = functools.partial(apply, sizes)
    return evaluate(jaxpr, args, step, consts=known, literal=literal)


def apply(sizes: Sizes, eqn: compat.Eqn, ins: Sequence[Padded]) -> list[Padded]:
    """The results of one equation."""
    name, exact = eqn.primitive.name, is_exact(eqn)
    if not exact and eqn.effects:
        raise Unsupported(f"{name}, which has an effect, on a size that changes")
    if not exact and name not in MASKS:
        raise Unsupported(f"no mask rule for {name}")
    with compat.source(eqn):
        outs = compat.bind(eqn, [p.x for p in ins]) if exact else MASKS[name](sizes, eqn, *ins)
    outs = outs if isinstance(outs, list | tuple) else [outs]
    return [as_padded(sizes, v.aval, out) for v, out in zip(eqn.outvars, outs, strict=True)]


def as_padded(sizes: Sizes, aval, out) -> Padded:
    """A result as what its type says; room and dtype must be right."""
    dims = getattr(aval, "shape", ())
    value, fill = (out.x, out.fill) if isinstance(out, Padded) else (out, None)
    if np.shape(value) != sizes.shape(dims) or value.dtype != aval.dtype:
        have = f"{value.dtype}{list(np.shape(value))}"
        raise Unsupported(f"a rule made {have} of {aval}")
    return Padded(value, dims, fill)


def is_exact(eqn: compat.Eqn) -> bool:
    """Whether no symbolic size enters, leaves or hides in an equation."""
    dims = (d for v in (*eqn.invars, *eqn.outvars) for d in getattr(v.aval, "shape", ()))
    return not any(map(is_symbolic, dims)) and not _hides_sizes(eqn.params)


def _hides_sizes(x) -> bool:
    if is_symbolic(x):
        return True
    if isinstance(x, dict):
        return any(map(_hides_sizes, x.values())) or any(map(size_texts, compat.bodies(x)))
    return isinstance(x, tuple | list) and any(map(_hides_sizes, x))
