"""The inverse of a function, and by how much it stretches volume, from its program.

What is known of each array spreads through the program, forward and backward: `propagate`.
Source: Oryx, https://www.tensorflow.org/probability/oryx, of which it follows the slopes.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.core.stage import stage
from malleable.errors import TransformError
from malleable.programs.analyze import propagate
from malleable.programs.primitives import kind


def inverse(
    fun: Callable[..., Any],
    example: Any,
    *,
    rules: Mapping[Any, Callable[..., Any]] | None = None,
) -> Callable[..., tuple[Any, Any]]:
    """Return a function that takes y = fun(x) to (x, log|det dx/dy|).

    `fun` may apply invertible operations one after the other, to parts of x with what is known
    from other parts (couplings), multiply by square matrices, and repeat them in a scan.

    Args:
        fun: takes one pytree of arrays, and returns as many numbers as it is given.
        example: an x, or its types.
        rules: more inverses of functions of one array, {primitive: y -> x}.

    Raises TransformError where `fun` is not inverted so: it names the line.

    >>> back = inverse(lambda x: jnp.exp(2 * x + 1), 1.0)
    >>> x, logdet = back(jnp.exp(7.0))
    >>> round(float(x), 3), round(float(logdet), 3)
    (3.0, -7.693)
    """
    own = {getattr(p, "name", p): f for p, f in (rules or {}).items()}

    def inverted(y):
        staged, tried = stage(fun)(example), {}
        ys, wanted = jax.tree.leaves(y), staged.jaxpr.jaxpr.outvars
        if [jnp.shape(v) for v in ys] != [v.aval.shape for v in wanted]:
            raise TypeError("y has other shapes than what the function returns")
        cells = [Cell(jnp.asarray(v), np.ones(jnp.shape(v), bool), 0.0) for v in ys]
        xs = _solve(staged.jaxpr, [None] * len(staged.args), cells, _ONE | own, tried)
        if not all(map(_is_full, xs)) or sum(x.known.size for x in xs) != sum(map(jnp.size, ys)):
            eqn = next(iter(tried.values()), None)
            what = f"`{eqn.primitive}` is not inverted" if eqn else "some of x is not in y"
            raise TransformError(
                f"the function has no inverse that can be found: {what}",
                where=compat.where(eqn) if eqn else "",
                hint="give `inverse` a rule for it, {primitive: y -> x}, or use an invertible one",
            )
        logdet = sum(jnp.sum(jnp.broadcast_to(x.slope, x.known.shape)) for x in xs)
        return jax.tree.unflatten(jax.tree.structure(example), [x.x for x in xs]), logdet

    return inverted


class Cell(NamedTuple):
    """An array, which entries are known, and log|d entry / d y| of those that come from y."""

    x: Any
    known: np.ndarray
    slope: Any


def _is_full(cell) -> bool:
    return bool(cell.known.all())


def _known(x, slope: Any = 0.0) -> Cell:
    return Cell(x, np.ones(jnp.shape(x), bool), slope)


def _bottom(aval) -> Cell:
    return Cell(np.zeros(aval.shape, aval.dtype), np.zeros(aval.shape, bool), 0.0)


def _join(old: Cell, new: Cell) -> Cell:
    fresh = new.known & ~old.known
    if not fresh.any():
        return old
    if fresh.all():
        return new
    x = jnp.where(fresh, new.x, old.x)
    return Cell(x, old.known | new.known, jnp.where(fresh, new.slope, old.slope))


def _solve(jaxpr, ins: list, outs: list, table: dict, tried: dict) -> list[Cell]:
    """The inputs of a program; ins: None for those that are not known."""

    def transfer(eqn, ins, outs):
        if all(map(_is_full, ins)):
            return ins, outs if all(map(_is_full, outs)) else _forward(eqn, ins)
        if not any(cell.known.any() for cell in outs):
            return ins, outs
        found = _backward(eqn, ins, outs, table, tried)
        tried.pop(id(eqn), None)
        if found is None:
            tried[id(eqn)] = eqn
        return found or ins, outs

    start = [cell or _bottom(v.aval) for cell, v in zip(ins, jaxpr.jaxpr.invars, strict=True)]
    return propagate(jaxpr, start, outs, transfer, _join, _known, _bottom)[0]


def _forward(eqn, ins):
    xs = [cell.x for cell in ins]
    if any(isinstance(x, compat.Tracer) for x in xs):
        return list(map(_known, compat.copy(eqn, xs)))
    with jax.ensure_compile_time_eval():  # a permutation stays known
        return list(map(_known, compat.bind(eqn, list(map(jnp.asarray, xs)))))


def _backward(eqn, ins, outs, table, tried) -> list[Cell] | None:
    """The operands, as far as the results say; None: they do not."""
    name, (out, *_) = eqn.primitive.name, outs
    if name in _MOVES:
        return _moved_back(eqn, ins, outs)
    if not _is_full(out):
        return None
    match compat.view(eqn) if compat.bodies(eqn.params) else None:
        case compat.Call(body) | compat.CustomJvp(body) | compat.CustomVjp(body):
            known = [cell if cell.known.any() else None for cell in ins]
            return _solve(body, known, outs, table, tried)
        case compat.Scan() as view:
            return _loop_back(view, ins, outs, table, tried)
    open_ = [i for i, cell in enumerate(ins) if not _is_full(cell)]
    if len(open_) > 1:
        return None
    (i,) = open_
    others = [cell.x for cell in ins if _is_full(cell)]
    if name == "dot_general" and len(ins) == 2:
        return _product_back(eqn, i, others[0], ins, out)
    back = table.get(name) if not others else _TWO.get((name, i))
    if back is None or not all(
        compat.differentiable(v.aval) for v in (eqn.invars[i], *eqn.outvars)
    ):
        return None
    dtype = eqn.invars[i].aval.dtype
    x, dx = jax.jvp(lambda y: back(y, *others), (out.x,), (jnp.ones_like(out.x),))
    ins[i] = _known(x.astype(dtype), out.slope + jnp.log(jnp.abs(dx)))
    return ins


def _moved_back(eqn, ins, outs) -> list[Cell] | None:
    """Of what only moves entries: where each went, seen by moving their numbers."""
    moving = [compat.differentiable(v.aval) for v in eqn.invars]
    rest = [cell.x for cell, moves in zip(ins, moving, strict=True) if not moves]
    if any(isinstance(x, compat.Tracer) for x in rest):
        return None
    ends = np.cumsum([cell.known.size * m for cell, m in zip(ins, moving, strict=True)])
    numbers = [
        np.arange(end - cell.known.size, end).reshape(cell.known.shape) if m else cell.x
        for cell, m, end in zip(ins, moving, ends, strict=True)
    ]
    with jax.ensure_compile_time_eval():
        went = compat.bind(eqn, list(map(jnp.asarray, numbers)))
    for out, at in zip(outs, map(np.asarray, went), strict=True):
        place = np.full(ends[-1], -1)
        place[at[out.known]] = np.arange(at.size).reshape(at.shape)[out.known]
        slope = jnp.ravel(jnp.broadcast_to(out.slope, at.shape))
        for i, number in enumerate(numbers):
            if moving[i]:
                from_ = place[number]
                found = Cell(jnp.ravel(out.x)[from_], from_ >= 0, slope[from_])
                ins[i] = _join(ins[i], found)
    return ins


def _product_back(eqn, i: int, matrix, ins, out) -> list[Cell] | None:
    """Of x @ matrix or matrix @ x: a system solved. Each entry bears its share of log|det|."""
    (contracted, batch), n = eqn.params["dimension_numbers"], matrix.shape[-1]
    if any(batch) or [len(c) for c in contracted] != [1, 1] or matrix.shape != (n, n):
        return None
    (mine,), (theirs,) = contracted[i], contracted[1 - i]
    matrix = matrix if theirs else matrix.T  # y = matrix @ x
    y = out.x if i == 0 else jnp.moveaxis(out.x, 0, -1)
    x = jnp.moveaxis(jnp.linalg.solve(matrix, y[..., None])[..., 0], -1, mine)
    slope = jnp.sum(jnp.broadcast_to(out.slope, y.shape)) / y.size
    ins[i] = _known(x, slope - jnp.linalg.slogdet(matrix)[1] / n)
    return ins


def _loop_back(view, ins, outs, table, tried) -> list[Cell] | None:
    """Of a scan: its steps from the last to the first, the slopes with the carry."""
    consts, carry, xs = view.split(ins)
    n = len(carry)
    if not all(map(_is_full, (*consts, *xs, *outs[:n]))):
        return None
    blank = [_bottom(v.aval) for v in view.body.jaxpr.outvars[n:]]
    missing = []

    def back(state, x):
        ends = [_known(*pair) for pair in state]
        known = [*map(_known, (c.x for c in consts)), *[None] * n, *map(_known, x)]
        found = _solve(view.body, known, [*ends, *blank], table, tried)[len(consts) :][:n]
        missing.extend(c for c in found if not _is_full(c))
        return [(c.x, jnp.broadcast_to(c.slope, c.known.shape) * 1.0) for c in found], None

    start = [(c.x, jnp.broadcast_to(c.slope, c.known.shape) * 1.0) for c in outs[:n]]
    rows, length = [c.x for c in xs], view.length
    state, _ = lax.scan(back, start, rows, length=length, reverse=not view.reverse)
    return None if missing else [*consts, *(_known(*pair) for pair in state), *xs]


_MOVES = kind("dims", "rearrange", "cut", "join")  # every entry of the result is an operand's
_ONE: dict[str, Callable] = {
    "copy": lambda y: y,
    "convert_element_type": lambda y: y,
    "exp": jnp.log,
    "exp2": jnp.log2,
    "expm1": jnp.log1p,
    "log": jnp.exp,
    "log1p": jnp.expm1,
    "logistic": lambda y: jnp.log(y) - jnp.log1p(-y),
    "neg": jnp.negative,
    "sinh": jnp.arcsinh,
    "asinh": jnp.sinh,
    "sqrt": jnp.square,
    "cbrt": lambda y: y**3,
    "tanh": jnp.arctanh,
    "atanh": jnp.tanh,
}
_TWO: dict[tuple[str, int], Callable] = {  # by which operand is not known
    ("add", 0): lambda y, b: y - b,
    ("add", 1): lambda y, a: y - a,
    ("add_any", 0): lambda y, b: y - b,
    ("add_any", 1): lambda y, a: y - a,
    ("sub", 0): lambda y, b: y + b,
    ("sub", 1): lambda y, a: a - y,
    ("mul", 0): lambda y, b: y / b,
    ("mul", 1): lambda y, a: y / a,
    ("div", 0): lambda y, b: y * b,
    ("div", 1): lambda y, a: a / y,
}
