"""One value that a result is made of, told from that result: of fractions, pieces, and systems.

What a program reads more than once no single equation inverts; the equations up to it may do.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.programs.evaluate import evaluate
from malleable.programs.primitives import has, kind


class Cell(NamedTuple):
    """An array, which entries are known, and log|d entry / d y| of those that come from y."""

    x: Any
    known: np.ndarray
    slope: Any


def is_full(cell) -> bool:
    return bool(cell.known.all())


def with_slopes(cell) -> tuple[Any, jax.Array]:
    """The array, and a slope for each of its entries."""
    return cell.x, jnp.broadcast_to(cell.slope, cell.known.shape) * 1.0


def as_cell(x, slope: Any = 0.0) -> Cell:
    return Cell(x, np.ones(jnp.shape(x), bool), slope)


def learnt(old: Cell, new: Cell) -> Cell:
    fresh = new.known & ~old.known
    if not fresh.any():
        return old
    if fresh.all():
        return new
    x = jnp.where(fresh, new.x, old.x)
    return Cell(x, old.known | new.known, jnp.where(fresh, new.slope, old.slope))


def region_back(eqn, makers: Mapping, cells: dict, solve: Callable) -> bool:
    """Learn the one value that a result is made of, if it can be told from it; whether it can.

    So a value is found that a program reads more than once, as x of x / (1 - x), of
    `where(x > 0, x, a * x)`, and of x - 2 * v * (v @ x).
    """
    is_open = lambda v: not isinstance(v, compat.Literal) and not is_full(cells[v])  # noqa: E731
    between, front = [eqn], {*filter(is_open, eqn.invars)}
    while len(front) > 1:
        _, made = max((makers.get(v, (-1, None)) for v in front), key=lambda pair: pair[0])
        if made is None:
            return False
        between.insert(0, made)
        front = front.difference(made.outvars) | {*filter(is_open, made.invars)}
    (root,), out = front, eqn.outvars[0]

    def fun(x):
        env = {root: x}
        value = lambda v: v.val if isinstance(v, compat.Literal) else env.get(v, cells[v].x)  # noqa: E731
        for e in between:
            env.update(zip(e.outvars, compat.copy(e, list(map(value, e.invars))), strict=True))
        return [env[out]]

    if root.aval.dtype != out.aval.dtype or root.aval.size != out.aval.size:
        return False
    region, cell = compat.trace(fun, root.aval), None
    if all(v.aval.shape == root.aval.shape for e in between for v in e.outvars):
        cell = _fraction_back(region, cells[out]) or _pieces_back(region, cells[out], solve)
    cell = cell or _linear_back(region, cells[out])
    if cell is not None:
        cells[root] = learnt(cells[root], cell)
    return cell is not None


def _at_once(program) -> Any:
    """For a `with`: what is made of a program's constants is known here, if they are."""
    if any(isinstance(c, compat.Tracer) for c in program.consts):
        return contextlib.nullcontext()
    return jax.ensure_compile_time_eval()


class Fraction(NamedTuple):
    """(a x + b) / (c x + d) of the value x that is looked for."""

    a: Any
    b: Any
    c: Any = 0
    d: Any = 1


def _fraction_back(region, out: Cell) -> Cell | None:
    step = lambda eqn, xs: [_fraction(eqn, xs)] * len(eqn.outvars)  # noqa: E731
    with _at_once(region):
        if (made := evaluate(region, [Fraction(1, 0)], step)[0]) is None:
            return None
        (a, b, c, d), y = made, out.x
        det = a * d - b * c
    if not isinstance(det, compat.Tracer) and np.any(np.asarray(det) == 0):
        return None
    slope = jnp.log(jnp.abs(det * jnp.ones_like(y))) - 2 * jnp.log(jnp.abs(a - c * y))
    return as_cell((d * y - b) / (a - c * y), out.slope + slope)


def _fraction(eqn, xs: list) -> Fraction | None:
    """The result of an equation of fractions and of known numbers, if it is a fraction."""
    if None in [x if isinstance(x, Fraction | None) else 0 for x in xs]:
        return None
    f, g, *_ = [x if isinstance(x, Fraction) else Fraction(0, x) for x in (*xs, 0)]
    of = [isinstance(x, Fraction) for x in xs]
    is_same = f.c is g.c and f.d is g.d  # below
    match eqn.primitive.name:
        case "neg":
            return Fraction(-f.a, -f.b, f.c, f.d)
        case "copy":
            return f
        case "integer_pow" if eqn.params["y"] == -1:
            return Fraction(f.c, f.d, f.a, f.b)
        case "div" if is_same:
            return Fraction(f.a, f.b, g.a, g.b)
        case "div" if not of[1]:
            return Fraction(f.a, f.b, f.c * g.b, f.d * g.b)
        case "div" if not of[0]:
            return Fraction(f.b * g.c, f.b * g.d, g.a, g.b)
        case "mul" if not all(of):
            f, k = (f, g.b) if of[0] else (g, f.b)
            return Fraction(f.a * k, f.b * k, f.c, f.d)
        case "add" | "add_any" | "sub" as name:
            sign = -1 if name == "sub" else 1
            if is_same or not of[1]:
                g = g if is_same else Fraction(g.b * f.c, g.b * f.d)
                return Fraction(f.a + sign * g.a, f.b + sign * g.b, f.c, f.d)
            if not of[0]:
                return Fraction(f.b * g.c + sign * g.a, f.b * g.d + sign * g.b, g.c, g.d)
    return None


def _pieces_back(region, out: Cell, solve: Callable) -> Cell | None:
    """Of one function where x lies above a number, and of another one below.

    Each is continuous and inverted by itself, so monotone; what they are at the number decides
    whether both together are one to one.
    """
    (x,), known = region.jaxpr.invars, dict(zip(region.jaxpr.constvars, region.consts, strict=True))
    above, at = {}, []  # by test: whether it holds above, and which operand is x
    for eqn in region.jaxpr.eqns:
        name = eqn.primitive.name
        if name == "abs" and x in eqn.invars:
            at.append(0.0)
            above[eqn.outvars[0]] = True, 0
        elif name in SIDES and x in eqn.invars:
            k = [v is x for v in eqn.invars].index(True)
            other = eqn.invars[1 - k]
            at.append(other.val if isinstance(other, compat.Literal) else known.get(other))
            turned = k == 1 and name not in has("extremum")
            above[eqn.outvars[0]] = _holds_above(name) != turned, k
    if not at or any(t is None or isinstance(t, compat.Tracer) or np.any(t != at[0]) for t in at):
        return None

    def piece(is_above: bool) -> Any:
        def step(eqn, xs):
            if (test := above.get(eqn.outvars[0])) is not None:
                holds, k = test[0] == is_above, test[1]
                if eqn.primitive.name == "abs":
                    return [xs[0] if is_above else -xs[0]]
                return [
                    xs[k if holds else 1 - k] if eqn.primitive.name in has("extremum") else holds
                ]
            if eqn.primitive.name == "select_n" and isinstance(xs[0], bool):
                return [xs[1 + xs[0]]]
            return compat.copy(eqn, xs)

        return compat.dce(compat.trace(lambda x: evaluate(region, [x], step), x.aval))

    found = []
    for is_above, program in enumerate(map(piece, (False, True))):
        ((cell,), _) = solve(program, [None], [out])
        with _at_once(program):
            t = jnp.full(x.aval.shape, jnp.asarray(at[0], x.aval.dtype))
            if not is_full(cell) or not _is_continuous_beyond(program, t, bool(is_above)):
                return None
            run = lambda x, program=program: evaluate(program, [x])[0]  # noqa: E731
            found.append((cell, *jax.jvp(run, (t,), (jnp.ones_like(t),))))
    (low, v, dv), (high, w, dw) = found
    if any(isinstance(n, compat.Tracer) for n in (v, dv, w, dw)):
        return None
    v, dv, w, dw = map(np.asarray, (v, dv, w, dw))
    gap, rounding = (w - v) * np.sign(dw), 8 * np.finfo(v.dtype).eps * np.maximum(abs(v), abs(w))
    if not np.all((dv * dw > 0) & np.isfinite(dv * dw) & (gap >= -rounding)):
        return None
    is_high = (out.x - w) * np.sign(dw) >= 0
    number = jnp.where(is_high, high.x, low.x)
    none = ~is_high & ((out.x - v) * np.sign(dv) > 0) & (gap > rounding)
    beyond = jnp.where(is_high, at[0] - number, number - at[0])  # of what no x gives
    none |= beyond > 8 * np.finfo(v.dtype).eps * jnp.maximum(jnp.abs(number), jnp.abs(at[0]))
    return as_cell(jnp.where(none, np.nan, number), jnp.where(is_high, high.slope, low.slope))


SIDES = has("compares") - has("commutative") | (has("extremum") & kind("elementwise"))


def _holds_above(name: str) -> bool:
    """Whether a comparison x > t holds above t; of an extremum, whether it is x there."""
    return name.startswith("g") or name == "max"


def _is_continuous_beyond(program, t, is_above: bool) -> bool:
    """Whether a function is so above t, or below it: it divides by nothing that is 0 there."""
    moving = {*program.jaxpr.invars}
    affine, divided = set(moving), []
    for eqn in program.jaxpr.eqns:
        moves = [not isinstance(v, compat.Literal) and v in moving for v in eqn.invars]
        among = {v for v, m in zip(eqn.invars, moves, strict=True) if m}
        if eqn.primitive.name == "div" and moves[1] and eqn.invars[1] in affine:
            divided.append(eqn)
        elif not _is_continuous(eqn):
            return False
        elif among and among <= affine and _is_linear(eqn, moves):
            affine.update(eqn.outvars)
        moving.update(eqn.outvars if among else ())

    def divisors(x):
        found = []

        def step(eqn, xs):
            found.extend(xs[1:] if eqn in divided else ())
            return compat.copy(eqn, xs)

        evaluate(program, [x], step)
        return found

    pairs = zip(*jax.jvp(divisors, (t,), (jnp.ones_like(t),)), strict=True)
    return all(
        not isinstance(d, compat.Tracer) and np.all(d * (slope if is_above else -slope) > 0)
        for d, slope in pairs
    )


def _is_continuous(eqn) -> bool:
    """Whether an equation is so in its one unknown operand, wherever it is a number."""
    match eqn.primitive.name:
        case "div":
            return isinstance(eqn.invars[1], compat.Literal)
        case "integer_pow":
            return eqn.params["y"] > 0
        case name:
            return name in ONE or name in has("sum") & kind("elementwise") or name == "mul"


def _linear_back(region, out: Cell) -> Cell | None:
    """Of a function that is linear, up to what is added to it: a system solved."""
    (x,), moving = region.jaxpr.invars, {*region.jaxpr.invars}
    for eqn in region.jaxpr.eqns:
        moves = [not isinstance(v, compat.Literal) and v in moving for v in eqn.invars]
        if not _is_linear(eqn, moves):
            return None
        moving.update(eqn.outvars)
    if not all(compat.differentiable(v.aval) for v in moving):
        return None
    run = lambda x: evaluate(region, [jnp.reshape(x, x_shape)])[0].ravel()  # noqa: E731
    x_shape, n = x.aval.shape, out.known.size
    with _at_once(region):
        zero = jnp.zeros(n, x.aval.dtype)
        start, matrix = run(zero), jax.jacfwd(run)(zero)
    if not isinstance(matrix, compat.Tracer) and np.linalg.matrix_rank(matrix) < n:
        return None
    number = jnp.linalg.solve(matrix, jnp.ravel(out.x) - start).reshape(x_shape)
    return as_cell(number, jnp.mean(with_slopes(out)[1]) - jnp.linalg.slogdet(matrix)[1] / n)


def _is_linear(eqn, moves: list[bool]) -> bool:
    """Whether an equation is linear in the operands that move, taken together."""
    match eqn.primitive.name:
        case "mul" | "dot_general" | "conv_general_dilated":
            return sum(moves) == 1
        case "div":
            return not moves[1]
        case "triangular_solve":
            return not moves[0]
        case "custom_linear_solve":
            return not any(moves[: -len(eqn.outvars)])
        case name:
            return name in has("linear")


ONE: dict[str, Callable] = {
    "copy": lambda y: y,
    "convert_element_type": lambda y: y,
    "erf": jax.scipy.special.erfinv,
    "erf_inv": jax.scipy.special.erf,
    "exp": jnp.log,
    "exp2": jnp.log2,
    "expm1": jnp.log1p,
    "log": jnp.exp,
    "log1p": jnp.expm1,
    "logistic": lambda y: jnp.log(y) - jnp.log1p(-y),
    "neg": jnp.negative,
    "sinh": jnp.arcsinh,
    "asinh": jnp.sinh,
    "rsqrt": lambda y: 1 / y**2,
    "sqrt": jnp.square,
    "cbrt": lambda y: y**3,
    "tanh": jnp.arctanh,
    "atanh": jnp.tanh,
    "acos": jnp.cos,
    "acosh": jnp.cosh,
    "asin": jnp.sin,
    "atan": jnp.tan,
}
