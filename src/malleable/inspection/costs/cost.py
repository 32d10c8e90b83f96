"""Where the work of a program is, by source line: `cost(fun)(*args)`.

The program is counted as it is staged, without dead code, before XLA fuses it; what a loop does
is in it as often as the loop runs.
"""

import functools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.core.frame import Masked, select
from malleable.core.interpret import interpret
from malleable.core.stage import stage
from malleable.errors import MalleableError, TransformError
from malleable.inspection import counting, places
from malleable.inspection.costs import flame, liveness
from malleable.inspection.counting import Count
from malleable.inspection.debugging.stepping import undonated
from malleable.inspection.modules import module_scopes
from malleable.inspection.show.rows.outline import Body, Row, outline
from malleable.notes import Told, note
from malleable.programs.evaluate import evaluate
from malleable.programs.primitives import kind
from malleable.programs.types import bytes_of
from malleable.python_source.changes import unchanged
from malleable.python_source.misuse import called_as
from malleable.rewriting.passes.passes import in_bodies
from malleable.rewriting.sharding.placement import Placement

SENT = kind("collective") - {"axis_index"}
Steps = int | str | None
_MODULES = 8  # of which the cost is printed
_UNITS = ("", "k", "M", "G", "T", "P")


@dataclass(frozen=True)
class LineCost:
    """What one line of the user's does. live: bytes it made that are alive at the peak."""

    where: str
    text: str
    flops: float
    bytes: float
    equations: int
    live: int


@dataclass(frozen=True, repr=False)
class Cost(Told):
    """flops: operations; bytes: memory traffic without fusion; peak: bytes alive at once.

    peak_at: the line where that is; lines: the dearest first; stacks: {frames from the outermost
    in: cost}; loops: {line of a `while`: (steps per entry, how that is known)}; sent: {collective
    of the program, psum say: bytes of its results on a device}; partitioned: whether arguments are
    in parts on a mesh, so that XLA adds collectives of its own, which `communication` counts;
    modules: {path of a module, such as Model.blocks[0].norm: cost}, the dearest first, of what a
    library computes for a line of the user's.
    """

    name: str
    flops: float
    bytes: float
    peak: int
    peak_at: str
    lines: list[LineCost]
    stacks: dict[tuple[str, ...], Count]
    loops: dict[str, tuple[float, str]] = field(default_factory=dict)
    sent: dict[str, float] = field(default_factory=dict)
    partitioned: bool = False
    modules: dict[str, Count] = field(default_factory=dict)

    def __str__(self):
        told = [
            f"{self.name}: {scaled(self.flops)}flop, {scaled(self.bytes)}B read and written, "
            f"{scaled(self.peak)}B alive at once" + f" at {self.peak_at}" * bool(self.peak_at)
        ]
        for line in self.lines:
            share = line.flops / self.flops if self.flops else 0.0
            told.append(
                f"{share:6.1%} {'█' * round(20 * share):20} {scaled(line.flops):>7}flop "
                f"{scaled(line.bytes):>7}B {scaled(line.live):>7}B live  {line.where}  {line.text}"
            )
        for module, c in list(self.modules.items())[:_MODULES]:
            share = c.flops / self.flops if self.flops else 0.0
            told.append(f"{share:6.1%} in {module}: {scaled(c.flops)}flop, {scaled(c.bytes)}B")
        if len(self.modules) > _MODULES:
            told.append(f"       in {len(self.modules) - _MODULES} more: `.modules` has all")
        for where, (steps, known) in self.loops.items():
            told.append(f"while at {where}: {steps:g} steps, {known}")
        for name, size in self.sent.items():
            told.append(f"collective {name}: {scaled(size)}B on a device")
        if self.partitioned:
            told.append(f"collectives that XLA adds: communication({self.name})(...) counts them")
        return "\n".join(told)

    def _repr_html_(self) -> str:
        return flame.svg(self.stacks, self.name)

    def folded(self) -> str:
        """One line per stack, `outer;inner flops`: what flame graph viewers open."""
        rows = ((";".join(stack), c.flops) for stack, c in self.stacks.items())
        return "\n".join(f"{stack} {flops:.0f}" for stack, flops in rows)

    def speedscope(self, path: str | os.PathLike[str]) -> None:
        """Write flops and bytes by stack as a file for speedscope.app."""
        _write_json(path, flame.speedscope(self.stacks, self.name))

    def perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write the flops by stack as a trace for ui.perfetto.dev: 1 ns there is 1 flop."""
        _write_json(path, flame.perfetto(self.stacks, self.name))

    def flame(self, path: str) -> None:
        """Write a picture (SVG): calls from the top down, as wide as they have flops."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(flame.svg(self.stacks, self.name))


def _write_json(path: str | os.PathLike[str], data: dict[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file)


@called_as("cost(fun)(*args)")
def cost(fun: Callable[..., Any], *, steps: Steps = None) -> Callable[..., Cost]:
    """Return a function that counts the work of `fun` on its arguments, by source line.

    Nothing is run. A scan counts its steps, a cond its dearest branch, a `while` as often as
    `steps` says: a number; "measured", which runs `fun` once to see; None, once, which the
    result says. An equation counts for the user's own line around it.
    Rules for flops are those of `malleable.programs.cost`; bytes are operands and results
    of each equation; the peak is what a run equation by equation holds, arguments included.
    Raises MalleableError for other `steps`.

    >>> import jax.numpy as jnp
    >>> from jax import lax
    >>> f = lambda m: lax.scan(lambda c, _: (c @ m, None), m, None, length=100)[0]
    >>> cost(f)(jnp.ones((64, 64))).flops
    52428800.0
    """
    if not (steps is None or steps == "measured" or (isinstance(steps, int) and steps >= 0)):
        raise MalleableError(
            f"cost takes steps=None, a number or 'measured', not {steps!r}",
            hint="steps is how often each `while` runs its body",
        )

    def counted(*args, **kwargs) -> Cost:
        with unchanged(fun, (args, kwargs)), module_scopes():
            staged = stage(fun)(*args, **kwargs)
        program = in_bodies(undonated)(compat.dce(staged.jaxpr))
        loops: dict[str, tuple[float, str]] = {}
        measured = _measure(program, staged.args) if steps == "measured" else None

        def trips(eqn) -> float:
            if measured is not None:
                n, known = measured.get(_loop(eqn), 0.0), "measured"
            elif isinstance(steps, int):
                n, known = steps, "as said"
            else:
                n, known = 1, "not known, counted once"
            loops[places.spell(places.of(eqn)) or "?"] = n, known
            return n

        body = outline(program)
        lines: dict[str, list] = {}
        stacks: dict[tuple[str, ...], Count] = {}
        sent: dict[str, float] = {}
        modules: dict[str, Count] = {}
        for row, times, devices in _leaves(body, 1.0, trips):
            if row.primitive in SENT:
                size = sum(bytes_of(v.aval) for v in row.eqn.outvars)
                sent[row.primitive] = sent.get(row.primitive, 0.0) + size * times / devices
            c = counting.count(row.eqn, trips).times(times)
            where = places.spell(row.place) or "no line known"
            entry = lines.setdefault(where, [places.line_of(row.place), Count(), 0])
            entry[1], entry[2] = entry[1].plus(c), entry[2] + 1
            if row.module:
                modules[row.module] = modules.get(row.module, Count()).plus(c)
            stack = _stack(row)
            stacks[stack] = stacks.get(stack, Count()).plus(c)
        peak = liveness.peak(program)
        alive: dict[str, int] = {}
        for line, size in peak.made:
            alive[line] = alive.get(line, 0) + size
        found = [
            LineCost(where, text, c.flops, c.bytes, n, alive.get(where, 0))
            for where, (text, c, n) in lines.items()
        ]
        found.sort(key=lambda line: (-line.flops, -line.bytes))
        total = Count(sum(x.flops for x in found), sum(x.bytes for x in found))
        name = getattr(fun, "__name__", type(fun).__name__)
        modules = dict(sorted(modules.items(), key=lambda x: (-x[1].flops, -x[1].bytes)))
        partitioned = Placement.of(jax.tree.leaves((args, kwargs))) is not None
        made = found, stacks, loops, sent, partitioned, modules
        return Cost(name, total.flops, total.bytes, peak.bytes, peak.where, *made)

    return counted


def _leaves(body: Body, times: float, trips, devices: float = 1):
    """(row, how often it runs, on how many devices together) for each row that is a whole."""
    for row in body.rows:
        inner = counting.bodies_of(row.eqn)
        if not inner:
            yield row, times, devices
            continue
        if row.primitive == "cond":  # its dearest branch
            inner = [
                max(inner, key=lambda part: counting.total(row.bodies[part[0]].program, trips))
            ]
        for i, n in inner:
            mapped = n(trips) if row.primitive == "shard_map" else 1
            yield from _leaves(row.bodies[i], times * n(trips), trips, devices * mapped)


def _loop(eqn) -> int:
    view: Any = compat.view(eqn)
    return id(view.body.jaxpr)


def _stack(row: Row) -> tuple[str, ...]:
    """The frames of the user's own, from the outermost in; then the primitive."""
    own = [p for p in row.chain if places.is_own(p.file)] or list(row.chain)
    named = [f"{p.function.rpartition('<locals>.')[2]}:{p.line}" for p in reversed(own)]
    return (*named, row.primitive)


def _measure(program, args) -> dict[int, float] | None:
    """{id of the body of a `while`: steps per entry}, from one run that counts."""
    loops: dict[str, int] = {}

    def counted(frame, *xs, **params):
        """A `while` with a counter; what loops inside it count goes around in the carry."""
        view = compat.view(frame.eqn)
        if not isinstance(view, compat.While):  # it works on mutable references, say
            return frame.bind(*xs)
        loop = str(id(view.body.jaxpr))
        loops[loop] = id(view.body.jaxpr)
        tests, consts, carry = view.split(xs)

        def test(*carry):
            return interpret(functools.partial(evaluate, view.cond), rules)([*tests, *carry])

        def body(*carry):
            return interpret(functools.partial(evaluate, view.body), rules)([*consts, *carry])

        def go(state):
            return jnp.any(test(*state[-1])[0][0])

        def step(state):
            n, sums, carry = state
            (again,), _, seen = test(*carry)
            outs, _, more = body(*carry)
            outs = select(again, outs, list(carry)) if jnp.ndim(again) else outs
            return n + 1, _add(sums, seen, more), outs

        kinds = [jax.eval_shape(part, *carry)[2] for part in (test, body)]
        sums = {name: jnp.zeros(()) for kind in kinds for name in kind}
        n, sums, outs = lax.while_loop(go, step, (jnp.zeros(()), sums, list(carry)))
        for name, value in {("steps", loop): n, ("entries", loop): jnp.ones(()), **sums}.items():
            frame.write(name, value, mode="sum")
        return outs

    rules = {lax.while_p: counted}
    try:
        _, _, seen = interpret(lambda xs: evaluate(program, xs), rules)(list(args))
    except TransformError as error:  # a loop in a linear solve, say
        note("counted each while once", error.where, "one of them is where no counter can be")
        return None
    found = {name: float(_value(x)) for name, x in seen.items()}
    return {
        key: found.get(("steps", loop), 0.0) / max(1.0, found.get(("entries", loop), 0.0))
        for loop, key in loops.items()
    }


def _add(sums, *more):
    return {name: sum((_value(m[name]) for m in more if name in m), x) for name, x in sums.items()}


def _value(x):
    """What was written; nothing was, where a branch was not taken."""
    return jnp.where(x.written, x.value, 0.0) if isinstance(x, Masked) else x


def scaled(n: float) -> str:
    """A number in thousands, in one unit.

    >>> scaled(52428800), scaled(12)
    ('52.4 M', '12 ')
    """
    unit = 0
    while abs(n) >= 1000 and unit + 1 < len(_UNITS):
        n, unit = n / 1000, unit + 1
    return f"{n:.3g} {_UNITS[unit]}"
