"""The inverse of a function, and by how much it stretches volume, from its program.

What is known of each array spreads through the program, forward and backward: `propagate`.
Source: Oryx, https://www.tensorflow.org/probability/oryx, of which it follows the slopes.
"""

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.core.stage import stage
from malleable.errors import TransformError
from malleable.programs.analyze import analyze, propagate
from malleable.programs.equations import every
from malleable.programs.evaluate import MOST_EQUATIONS, evaluate, unrolled
from malleable.programs.primitives import kind
from malleable.python_source.misuse import called_as
from malleable.unknowns import ONE, Cell, as_cell, is_full, learnt, region_back, with_slopes


@called_as("inverse(fun, example)(y)")
def inverse(
    fun: Callable[..., Any],
    example: Any,
    *,
    rules: Mapping[Any, Callable[..., Any]] | None = None,
) -> Callable[..., tuple[Any, Any]]:
    """Return a function that takes y = fun(x) to (x, log|det dx/dy|).

    `fun` may apply invertible operations one after the other, to parts of x with what is known
    from other parts (couplings), multiply by square matrices, choose by what is known, and do so
    in a scan, a loop of a length that x does not decide, or a map: to its carry, to rows, or to
    each with what came before, cumulative sums and the like included. What reads a value more than
    once is inverted where it is a fraction of linear functions, one function on each side of a
    number, or linear: then a system is solved.

    Args:
        fun: takes one pytree of arrays, and returns as many numbers as it is given.
        example: an x, or its types.
        rules: more inverses of functions of one array, {primitive: y -> x}; or of a function that
            is jitted, as `jax.nn.softplus`: of y and what else it is given.

    Raises TransformError where `fun` is not inverted so: it names the line.

    >>> back = inverse(lambda x: jnp.exp(2 * x + 1), 1.0)
    >>> x, logdet = back(jnp.exp(7.0))
    >>> round(float(x), 3), round(float(logdet), 3)
    (3.0, -7.693)
    """
    own = {
        getattr(p, "name", p) if isinstance(p, str | compat.Primitive) else (p.__name__,): f
        for p, f in (rules or {}).items()
    }

    def inverted(y):
        staged, tried = stage(fun)(example), {}
        ys, wanted = jax.tree.leaves(y), staged.jaxpr.jaxpr.outvars
        if [jnp.shape(v) for v in ys] != [v.aval.shape for v in wanted]:
            raise TypeError("y has other shapes than what the function returns")
        cells = [as_cell(jnp.asarray(v)) for v in ys]
        xs, _ = _solve(staged.jaxpr, [None] * len(staged.args), cells, ONE | own, tried)
        if not all(map(is_full, xs)) or sum(x.known.size for x in xs) != sum(map(jnp.size, ys)):
            eqn = next(iter(tried.values()), None)
            what = f"`{eqn.primitive}` is not inverted" if eqn else "some of x is not in y"
            raise TransformError(
                f"the function has no inverse that can be found: {what}",
                where=compat.where(eqn, *_around(eqn, staged.jaxpr)) if eqn else "",
                hint="give `inverse` a rule, {primitive, or jitted function: y -> x}, or use an "
                "invertible one",
            )
        logdet = sum(jnp.sum(with_slopes(x)[1]) for x in xs)
        return jax.tree.unflatten(jax.tree.structure(example), [x.x for x in xs]), logdet

    return inverted


def _around(eqn, program) -> list:
    """The equations whose bodies an equation is in, the innermost first."""
    inside = lambda e: any(x is eqn for b in compat.bodies(e.params) for x in every(b.jaxpr.eqns))  # noqa: E731
    return list(filter(inside, every(program.jaxpr.eqns)))[::-1]


def _bottom(aval) -> Cell:
    return Cell(np.zeros(aval.shape, aval.dtype), np.zeros(aval.shape, bool), 0.0)


def _solve(jaxpr, ins: list, outs: list, table: dict, tried: dict) -> tuple[list, list]:
    """The inputs of a program, and its results; None for those that are not known."""
    jaxpr = _opened(jaxpr, frozenset(key[0] for key in table if len(key) == 1))
    makers = {v: (k, e) for k, e in enumerate(jaxpr.jaxpr.eqns) for v in e.outvars}
    cells: dict[Any, Cell] = {}  # what is known of the variables
    solve = functools.partial(_solve, table=table, tried=tried)

    def seen(v, cell: Cell) -> Cell:
        if not isinstance(v, compat.Literal):
            cell = cells[v] = learnt(cell, cells.get(v, cell))
        return cell

    def transfer(eqn, ins, outs):
        ins, outs = list(map(seen, eqn.invars, ins)), list(map(seen, eqn.outvars, outs))
        if all(map(is_full, ins)):
            return ins, outs if all(map(is_full, outs)) else _forward(eqn, ins)
        moves = eqn.primitive.name in _MOVES
        if eqn.primitive.name == "mul":
            outs = [learnt(outs[0], _product_ahead(ins, outs[0]))]
        known = any(c.known.any() for c in outs)
        if not known and not (moves and any(c.known.any() for c in ins)):
            return ins, outs
        found = _entries_moved(eqn, ins, outs) if moves else _backward(eqn, ins, outs, table, tried)
        tried.pop(id(eqn), None)
        is_told = all(map(is_full, outs)) and not found
        if found is None and known and not (is_told and region_back(eqn, makers, cells, solve)):
            tried[id(eqn)] = eqn
        return found or (ins, outs)

    def filled(cells, atoms):
        return [cell or _bottom(v.aval) for cell, v in zip(cells, atoms, strict=True)]

    ins, outs = filled(ins, jaxpr.jaxpr.invars), filled(outs, jaxpr.jaxpr.outvars)
    return propagate(jaxpr, ins, outs, transfer, learnt, as_cell, _bottom)


def _opened(jaxpr, kept: frozenset) -> Any:
    """A program without calls, but of functions whose inverse is known."""

    def opening(around):
        def step(eqn, xs):
            view, has_line = (
                compat.view(eqn) if compat.bodies(eqn.params) else None,
                compat.where(eqn),
            )
            is_call = isinstance(view, compat.Call | compat.CustomJvp | compat.CustomVjp)
            if is_call and eqn.params.get("name") not in kept and not _is_logaddexp(eqn):
                return evaluate(view.body, xs, opening(eqn if has_line else around))
            if has_line or not around:
                return compat.copy(eqn, xs)
            with compat.source(around):
                return compat.bind(eqn, xs)

        return step

    if not any(compat.bodies(eqn.params) for eqn in jaxpr.jaxpr.eqns):
        return jaxpr
    run = lambda *xs: evaluate(jaxpr, xs, opening(None))  # noqa: E731
    return compat.trace(run, *(v.aval for v in jaxpr.jaxpr.invars))


def _is_logaddexp(eqn) -> bool:
    """Whether a call is that of JAX, which reads its operands more than once: as its program."""
    if not isinstance(compat.view(eqn), compat.CustomJvp) or len(eqn.invars) != 2:
        return False
    types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars]
    if not all(compat.differentiable(t) for t in types):
        return False
    own = every(compat.trace(jnp.logaddexp, *types).jaxpr.eqns)
    (body, *_) = compat.bodies(eqn.params)
    return str(body) in [str(b) for e in own for b in compat.bodies(e.params)]


def _forward(eqn, ins):
    xs = [cell.x for cell in ins]
    if any(isinstance(x, compat.Tracer) for x in xs):
        return list(map(as_cell, compat.copy(eqn, xs)))
    with jax.ensure_compile_time_eval():  # a permutation stays known
        return list(map(as_cell, compat.bind(eqn, list(map(jnp.asarray, xs)))))


def _backward(eqn, ins, outs, table, tried) -> tuple[list, list] | None:
    """The operands, as far as the results say, and the results; None: they do not."""
    name, (out, *_), called = eqn.primitive.name, outs, (eqn.params.get("name"),) in table
    match compat.view(eqn) if compat.bodies(eqn.params) and not called else None:
        case compat.Branch() | compat.Scan() | compat.While() as view:
            found = _BACK[type(view)](view, ins, outs, table, tried)
            return (found, outs) if found else None
    open_ = [i for i, cell in enumerate(ins) if not is_full(cell)]
    if len(open_) > 1 and (called or (name, 1) not in _TWO):
        return None
    others = [cell.x for cell in ins if is_full(cell)]
    if name == "dot_general" and len(ins) == 2 and is_full(out):
        found = _product_back(eqn, open_[0], others[0], ins, out)
        return (found, outs) if found else None
    if name in kind("cumulative") and is_full(out):
        back = _TWO.get((name, 0))
        start = {jnp.subtract: 0, jnp.divide: 1}.get(back, -np.inf)
        others = [_rows_before(out.x, start, **eqn.params)]
    elif name.startswith("custom_jvp"):  # logaddexp
        back = lambda y, other: y + jnp.log(-jnp.expm1(other - y))  # noqa: E731
    elif name == "pow" and open_ == [0]:
        n = others[0]
        if isinstance(n, compat.Tracer) or np.any(np.asarray(n) == np.round(n)):
            return None  # one of two signs, where it is even
        back = lambda y, n: y ** (1 / n)  # noqa: E731
    elif name == "integer_pow" and eqn.params["y"] % 2:
        back = lambda y, n=1 / eqn.params["y"]: jnp.sign(y) * jnp.abs(y) ** n  # noqa: E731
    elif len(ins) == 2 and not called:
        return _of_two_back(eqn, open_, ins, outs)
    else:
        back = table[eqn.params["name"],] if called else table.get(name)
    return _entries_back(eqn, open_[0], back, others, True, ins, outs)


def _of_two_back(eqn, open_, ins, outs) -> tuple[list, list] | None:
    """Each operand at the entries where the result and the other one are known."""
    found = None
    for i in open_:
        other = ins[1 - i]
        x = other.x if is_full(other) else jnp.where(other.known, other.x, 1)
        back, known = _TWO.get((eqn.primitive.name, i)), other.known
        if eqn.primitive.name == "mul" and not isinstance(other.x, compat.Tracer):
            known = known & (np.asarray(other.x) != 0)
            x = jnp.where(known, x, 1)
        found = _entries_back(eqn, i, back, [x], known, *(found or (ins, outs))) or found
    return found


def _entries_back(eqn, i: int, back, others: list, known, ins, outs) -> tuple[list, list] | None:
    """Operand i, entry by entry, where the result and `known` say it."""
    (out, *_) = outs
    if back is None or not all(
        compat.differentiable(v.aval) for v in (eqn.invars[i], *eqn.outvars)
    ):
        return None
    dtype, known = eqn.invars[i].aval.dtype, out.known & known
    if not known.any():
        return None
    y = out.x if is_full(out) else jnp.where(out.known, out.x, 0.5)  # in the range of all of them
    x, dx = jax.jvp(lambda y: back(y, *others), (y,), (jnp.ones_like(y),))
    ins[i] = learnt(ins[i], Cell(x.astype(dtype), known, out.slope + jnp.log(jnp.abs(dx))))
    return ins, outs


def _product_ahead(ins, out) -> Cell:
    """What is known of a product: where both factors are, or one of them is 0."""
    known = functools.reduce(np.logical_and, [c.known for c in ins])
    for cell in ins:
        if not isinstance(cell.x, compat.Tracer):
            known = known | cell.known & (np.asarray(cell.x) == 0)
    x, y = (jnp.where(c.known, c.x, 0) for c in ins) if known.any() else (out.x, 0)
    return Cell(x * y, np.broadcast_to(known, out.known.shape), 0.0)


def _rows_before(y, start: float, *, axis: int, reverse: bool):
    """The row before each along an axis, and `start` before the first."""
    edge = [(0, 0, 0)] * y.ndim
    edge[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
    return lax.pad(y, jnp.asarray(start, y.dtype), edge)


def _entries_moved(eqn, ins, outs) -> tuple[list, list] | None:
    """Of what only moves entries: where each went, seen by moving their numbers."""
    moving = [compat.differentiable(v.aval) for v in eqn.invars]
    rest = [cell for cell, moves in zip(ins, moving, strict=True) if not moves]
    if not all(map(is_full, rest)) or any(isinstance(c.x, compat.Tracer) for c in rest):
        return None
    ends = np.cumsum([cell.known.size * m for cell, m in zip(ins, moving, strict=True)])
    numbers = [
        np.arange(end - cell.known.size, end).reshape(cell.known.shape) if m else cell.x
        for cell, m, end in zip(ins, moving, ends, strict=True)
    ]
    with jax.ensure_compile_time_eval():
        went = compat.bind(eqn, list(map(jnp.asarray, numbers)))
    entries = [cell for cell, m in zip(ins, moving, strict=True) if m]
    known = np.concatenate([c.known.ravel() for c in entries])
    for k, (out, at) in enumerate(zip(outs, map(np.asarray, went), strict=True)):
        if not at.size:
            continue
        at = np.where((at >= 0) & (at < ends[-1]), at, -1)  # what is filled in is no entry
        place = np.full(ends[-1] + 1, -1)
        place[at[out.known]] = np.arange(at.size).reshape(at.shape)[out.known]
        slope = jnp.ravel(with_slopes(out)[1])
        for i, number in enumerate(numbers):
            if moving[i]:
                from_ = place[number]
                ins[i] = learnt(ins[i], Cell(jnp.ravel(out.x)[from_], from_ >= 0, slope[from_]))
        ahead = known[at] & (at >= 0)
        if (ahead & ~out.known).any():
            x = jnp.concatenate([jnp.ravel(c.x) for c in entries])
            outs[k] = learnt(out, Cell(x[at], ahead, 0.0))
    return ins, outs


def _product_back(eqn, i: int, matrix, ins, out) -> list[Cell] | None:
    """Of x @ matrix or matrix @ x: a system solved. Each entry bears its share of log|det|."""
    (contracted, batch), n = eqn.params["dimension_numbers"], matrix.shape[-1]
    if any(batch) or [len(c) for c in contracted] != [1, 1] or matrix.shape != (n, n):
        return None
    (mine,), (theirs,) = contracted[i], contracted[1 - i]
    matrix = matrix if theirs else matrix.T  # y = matrix @ x
    y = out.x if i == 0 else jnp.moveaxis(out.x, 0, -1)
    x = jnp.moveaxis(jnp.linalg.solve(matrix, y[..., None])[..., 0], -1, mine)
    slope = jnp.sum(with_slopes(out)[1]) / y.size
    ins[i] = as_cell(x, slope - jnp.linalg.slogdet(matrix)[1] / n)
    return ins


def _branch_back(view, ins, outs, table, tried) -> list[Cell] | None:
    """Of a cond by what is known: in the branch that is taken."""
    index, *ins = ins
    todo = [i for i, cell in enumerate(ins) if not is_full(cell)]
    missing = []

    def back(branch):
        found = _solve(branch, ins, outs, table, tried)[0]
        missing.extend(i for i in todo if not is_full(found[i]))
        return [with_slopes(found[i]) for i in todo]

    if not is_full(index):
        return None
    pairs = lax.switch(index.x, [functools.partial(back, b) for b in view.branches])
    for i, pair in zip(todo, pairs, strict=True):
        ins[i] = as_cell(*pair)
    return None if missing else [index, *ins]


def _loop_back(view, ins, outs, table, tried) -> list[Cell] | None:
    """Of a scan: its steps from the last to the first, the slopes with the carry; or in order,
    where the carry is known at first and not at the end.

    What of the carry does not depend on x, such as the number of a step, is computed before.
    """
    consts, carry, xs = view.split(ins)
    n, m = len(carry), len(consts)
    todo = _unknown_in_loop(view.body, ins, n, m)
    backward = all(is_full(outs[k]) for k in todo)
    if not all(map(is_full, consts if backward else (*consts, *carry))):
        return None
    rows, ys = ([c.x if is_full(c) else None for c in cells] for cells in (xs, outs[n:]))
    blank = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in view.body.jaxpr.invars]
    ends, missing = outs if backward else carry, []

    def ahead(state, row):  # what depends on x is anything here, and not looked at
        known = [*(c.x for c in consts), *state, *row]
        filled = [z if x is None else x for x, z in zip(known, blank, strict=True)]
        new = evaluate(view.body, filled)[:n]
        return [None if k in todo else x for k, x in enumerate(new)], state

    def step(state, x):
        before, row, y = ([x if x is None else as_cell(x) for x in part] for part in x)
        after: list = [None] * n
        for k, pair in zip(todo, state, strict=True):
            (after if backward else before)[k] = as_cell(*pair)
        found, made = _solve(view.body, [*consts, *before, *row], [*after, *y], table, tried)
        state = [found[m + k] if backward else made[k] for k in todo]
        new = [c for c, old in zip(found[m + n :], row, strict=True) if old is None]
        missing.extend(c for c in (*state, *new) if not is_full(c))
        return list(map(with_slopes, state)), list(map(with_slopes, new))

    run = functools.partial(lax.scan, length=view.length)
    start = [None if k in todo else c.x for k, c in enumerate(carry)]
    _, before = run(ahead, start, rows, reverse=view.reverse)
    state = [with_slopes(ends[k]) for k in todo]
    state, new = run(step, state, (before, rows, ys), reverse=view.reverse != backward)
    for k, pair in zip(todo if backward else (), state, strict=False):
        carry[k] = as_cell(*pair)
    new = map(as_cell, *zip(*new, strict=True)) if new else iter(())
    found = [*consts, *carry, *(c if is_full(c) else next(new) for c in xs)]
    return found if not missing else _turn_by_turn(view, ins, outs, table, tried)


def _turn_by_turn(view, ins, outs, table, tried) -> list[Cell] | None:
    """Of a scan whose steps are inverted by what is in their rows, as by the zeros of masks."""
    rows = view.split(ins)[2]
    is_there = [is_full(c) and not isinstance(c.x, compat.Tracer) for c in rows]
    if not any(is_there) or view.length * len(view.body.jaxpr.eqns) > MOST_EQUATIONS:
        return None
    program = compat.trace(functools.partial(unrolled, view), *(jax.typeof(c.x) for c in ins))
    found, _ = _solve(program, ins, outs, table, tried)
    return found if all(map(is_full, found)) else None


def _while_back(view, ins, outs, table, tried) -> list[Cell] | None:
    """Of a while that turns as often as what is known says: as a scan of so many steps.

    Where that is not known yet, what is known before each turn is computed for it from the start.
    """
    _, consts, carry = view.split(ins)
    inside, before = [*consts, *carry], ins[: -len(consts) - len(carry) or None]
    n, m = len(carry), len(consts)
    todo = _unknown_in_loop(view.body, inside, n, m)
    decides = [not is_full(c) for c in before] + [k in todo for k in range(n)]
    if analyze(view.cond, decides, _depends, operator.or_, False)[0][0]:
        return None
    known = [c.x for k, c in enumerate([*before, *inside]) if k - len(before) - m not in todo]
    xs = [c.x for c in consts]

    def turn(state):
        count, state = state
        new = evaluate(view.body, [*xs, *state])
        return count + 1, [
            x if k in todo else y for k, (x, y) in enumerate(zip(state, new, strict=True))
        ]

    start = lambda: [jnp.asarray(c.x) for c in carry]  # noqa: E731

    def turns():
        test = lambda s: evaluate(view.cond, [*(c.x for c in before), *s[1]])[0]  # noqa: E731
        return lax.while_loop(test, turn, (0, start()))[0]

    if any(isinstance(x, compat.Tracer) for x in known):
        if not all(map(is_full, [*consts, *(outs[k] for k in todo)])):
            return None
        missing = []

        def back(state):
            k, after = state[0] - 1, list[Any]([None] * n)
            state_before = lax.fori_loop(0, k, lambda _, s: turn((0, s))[1], start())
            for i, pair in zip(todo, state[1], strict=True):
                after[i] = as_cell(*pair)
            given = [None if i in todo else as_cell(x) for i, x in enumerate(state_before)]
            found, _ = _solve(view.body, [*consts, *given], after, table, tried)
            missing.extend(i for i in todo if not is_full(found[m + i]))
            return k, [with_slopes(found[m + i]) for i in todo]

        ends = [with_slopes(outs[k]) for k in todo]
        _, pairs = lax.while_loop(lambda state: state[0] > 0, back, (turns(), ends))
        for i, pair in zip(todo, pairs, strict=True):
            carry[i] = as_cell(*pair)
        return None if missing else [*before, *consts, *carry]
    with jax.ensure_compile_time_eval():
        length = int(turns())

    def loop(*xs):
        step = lambda c, _: (evaluate(view.body, [*xs[:m], *c]), None)  # noqa: E731
        return lax.scan(step, list(xs[m:]), None, length=length)[0]

    program = compat.trace(loop, *(v.aval for v in view.body.jaxpr.invars))
    found, _ = _solve(program, inside, outs, table, tried)
    return [*before, *found] if all(map(is_full, found)) else None


def _depends(eqn, facts) -> list[bool]:
    return [any(facts)] * len(eqn.outvars)


def _unknown_in_loop(body, ins, n: int, m: int) -> list[int]:
    """Which of the carries of a scan depend on what is not known."""
    facts = [not is_full(cell) for cell in ins]
    while True:
        ends = analyze(body, facts, _depends, operator.or_, False)[0][:n]
        wide = [a or b for a, b in zip(facts[m : m + n], ends, strict=True)]
        if wide == facts[m : m + n]:
            return [k for k in range(n) if wide[k]]
        facts[m : m + n] = wide


_BACK = {compat.Branch: _branch_back, compat.Scan: _loop_back, compat.While: _while_back}
_MOVES = kind("dims", "rearrange", "cut", "join") | {
    "select_n"
}  # every entry of the result is an operand's
_TWO: dict[
    tuple[str, int], Callable
] = {  # by which operand is not known; cumulative: the last row is
    ("cumsum", 0): jnp.subtract,
    ("cumprod", 0): jnp.divide,
    ("cumlogsumexp", 0): lambda y, last: y + jnp.log1p(-jnp.exp(last - y)),
    **dict.fromkeys([(name, i) for name in ("add", "add_any") for i in (0, 1)], jnp.subtract),
    ("sub", 0): jnp.add,
    ("sub", 1): lambda y, a: a - y,
    ("mul", 0): jnp.divide,
    ("mul", 1): jnp.divide,
    ("div", 0): jnp.multiply,
    ("div", 1): lambda y, a: a / y,
    ("pow", 1): lambda y, a: jnp.log(y) / jnp.log(a),
}
