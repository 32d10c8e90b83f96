"""The interpreter: run a program, asking the user's rules about each equation.

Tags, random keys, parameters and whatever a user invents are all rules given to it.
"""

import operator
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from typing import Any

from malleable import compat
from malleable.core.frame import Frame, path_of, signature, spell_type
from malleable.core.higher import cross
from malleable.core.marker import Marker, place
from malleable.core.stage import Staged, stage
from malleable.errors import RuleError
from malleable.notes import note
from malleable.programs.equations import every
from malleable.programs.evaluate import evaluate, inlined
from malleable.signatures import P, R

Rule = Callable[..., Any]
Rules = Mapping[Any, Rule]  # by primitive


class Rulebook:
    """Rules, and what is remembered of the bodies they were applied to.

    A rulebook that lives as long as its rules makes eager calls fast: each body is entered once
    per signature, then runs compiled. `interpret` makes one per call of `interpret`.
    """

    def __init__(self, rules: Rules, default: Rule | None = None):
        self.rules: dict[Any, Rule] = dict(rules)
        self.default: Rule | None = default
        for prim in self.rules:
            if not isinstance(prim, compat.Primitive):
                raise TypeError(f"rules are given by primitive, such as lax.sin_p, not by {prim!r}")
        self.markers: frozenset[Marker] = frozenset(p for p in self.rules if isinstance(p, Marker))
        if any(p.placed for p in self.markers):
            self.rules[place] = at_place
            self.markers |= {place}
        self._memo: dict[Hashable, Any] = {}

    def remember(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """make(), or what it gave for this key before."""
        if key not in self._memo:
            if len(self._memo) >= 512:  # forget; bodies of functions long gone are in here
                self._memo.clear()
            self._memo[key] = make()
        return self._memo[key]

    def enters(self, eqn: compat.Eqn, args: list[Any]) -> bool:
        """Whether rules apply to something inside an equation, or `args` are of other types."""
        inside = compat.bodies(eqn.params)
        if not inside:  # an effect of ours and no body in sight: something hides it
            return compat.has_marker(eqn) and not isinstance(eqn.primitive, Marker)
        if any(map(self.mentions, inside)) or compat.is_retyped(eqn, args):
            return True
        if self.default is None:
            return False
        view = compat.view(eqn)  # a default rule asks for what can be entered without loss
        if isinstance(view, compat.Opaque):
            note(f"took `{eqn.primitive}` as one operation", compat.where(eqn), view.why)
            return False
        return not getattr(view, "lost", "")

    def mentions(self, jaxpr: compat.Jaxpr) -> bool:
        """Whether a body has an equation with a rule, at any depth."""
        found = lambda: any(True for _ in sites(jaxpr, self.rules))  # noqa: E731
        return self.remember(("mentions", jaxpr), found)

    def body(self, jaxpr: compat.Jaxpr, around: Frame) -> Callable[..., Any]:
        """run(frame, args) -> (outs, frame): the body under the rules, traced once."""
        outer = (around.eqn, *around.outer)

        def run_body(frame, args):
            frame.outer = outer
            outs = run(jaxpr, args, self, frame)
            return outs, frame.leave()

        return self.remember(("body", jaxpr), lambda: inlined(run_body))

    def under(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """fun(*args) as a function of (frame, *args), under the rules; its writes are lost."""

        def ruled(frame, *args):
            staged = stage(fun, self.markers)(*args)
            return run_staged(staged, self, frame.enter())

        return ruled


def interpret(
    fun: Callable[P, R],
    rules: Rules | Rulebook,
    *,
    carry: Any = (),
    feeds: Mapping[Any, Any] | None = None,
    shared: Mapping[Any, Any] | None = None,
    key: Any = None,
    default: Rule | None = None,
) -> Callable[P, tuple[R, Any, dict[Any, Any]]]:
    """Return a function that runs `fun` under `rules` and gives `(out, carry, writes)`.

    rules maps a primitive to `rule(frame, *args, **params) -> out`; see `Frame` for what a rule
    may read and change. A primitive without a rule runs as usual, or through `default`. Control
    flow is entered where something inside has a rule, and left as it is elsewhere. Custom
    derivatives are kept unless a rule changes a value they are about; then a note says so.
    Rules must be pure: a body is traced once per signature, and then remembered.

    carry: initial state; feeds, shared: values to read by name, in a scan of n steps one slice
    per step of a (n, *s) array, or the same in every step; key: the root for `frame.next_key()`.
    writes: {name: value}; a value that may not have been written comes as `Masked`.

    Raises RuleError for a rule whose result has another shape or dtype than its equation, and
    TransformError where state cannot cross a control flow.

    >>> import jax.numpy as jnp
    >>> from jax import lax
    >>> def double(frame, x, **params):
    ...     frame.carry += 1
    ...     return 2 * frame.bind(x)
    >>> out, count, _ = interpret(jnp.sin, {lax.sin_p: double}, carry=0)(0.5)
    >>> bool(out == 2 * jnp.sin(0.5)), count
    (True, 1)
    """
    book = rules if isinstance(rules, Rulebook) else Rulebook(rules, default)

    def interpreted(*args: P.args, **kwargs: P.kwargs) -> tuple[R, Any, dict[Any, Any]]:
        staged = stage(fun, book.markers)(*args, **kwargs)
        frame = start(carry, feeds, shared, key)
        out = run_staged(staged, book, frame)
        return out, frame.carry, results(frame)

    return interpreted


def start(carry=(), feeds=None, shared=None, key=None) -> Frame:
    """The frame of a whole program."""
    fed, same = ({path_of(name): x for name, x in (d or {}).items()} for d in (feeds, shared))
    return Frame(carry, fed, same, key)


def results(frame: Frame) -> dict:
    """{name: value} of all that was written; a path of one part is a plain name."""
    return {q[0] if len(q) == 1 else q: w.result() for q, w in frame.writes.items()}


def run_staged(staged: Staged, book: Rulebook, frame: Frame):
    """Run what `stage` gave, changing `frame` as the rules say; the output has its pytree."""
    return staged.finish(run_flat(staged, book, frame))


def run_flat(staged: Staged, book: Rulebook, frame: Frame) -> list:
    """As `run_staged`, to all results: what the function changed in place is not put back."""
    args = list(map(compat.as_array, staged.args))
    return list(map(compat.as_array, run(staged.jaxpr, args, book, frame)))


def run(closed: compat.Jaxpr, args, book: Rulebook, frame: Frame) -> list:
    """Run a program on flat `args` under a rulebook, changing `frame` as the rules say."""

    def step(eqn, xs):
        rule = book.rules.get(eqn.primitive)
        enters = rule is None and book.enters(eqn, xs)
        if rule is None and not enters and not isinstance(eqn.primitive, Marker):
            rule = book.default
        if rule is None and not enters:
            return compat.copy(eqn, xs)
        with compat.source(eqn):
            frame.eqn = eqn
            return ask(rule, frame, xs) if rule is not None else cross(book, frame, xs)

    return evaluate(closed, args, step)


def ask(rule: Callable, frame: Frame, args: list) -> list:
    """What a rule makes of `frame.eqn`; checked, so that a slip is found where it happens."""
    eqn, frame.bound = frame.eqn, None
    seen = len(args) - getattr(eqn.primitive, "placed", False)
    frame.args, frame.place = tuple(map(compat.as_array, args[:seen])), tuple(args[seen:])
    out = rule(frame, *frame.args, **eqn.params)
    outs = list(out) if isinstance(out, list | tuple) else [] if out is None else [out]
    if frame.bound and len(outs) == len(frame.bound) and all(map(operator.is_, outs, frame.bound)):
        return outs
    wanted = [v.aval for v in eqn.outvars]
    if not all(map(compat.is_array, outs)) or signature(outs) != signature(wanted):
        got = spell_type(outs) if all(map(compat.is_array, outs)) else repr(out)
        raise RuleError(
            f"rule `{getattr(rule, '__name__', rule)}` for `{eqn.primitive}` returned {got} "
            f"where {spell_type(wanted)} belongs",
            where=frame.where,
            hint="return what the equation returns: `frame.bind(*args)` gives it",
        )
    if not frame.changed and not keeps_value(frame, outs):
        frame.changed = frame.where or str(eqn.primitive)
    return [compat.match_devices(compat.as_array(x), a) for x, a in zip(outs, wanted, strict=True)]


def keeps_value(frame: Frame, outs: list) -> bool:
    """Whether a rule left the value of its equation alone, as far as derivatives can tell.

    It did if it handed on what the equation gives on its own operands, or, for a marker, the
    operands; and where there are none, as for a key or a parameter.
    """
    own = isinstance(frame.eqn.primitive, Marker) and len(outs) <= len(frame.args)
    return not outs or not frame.args or (own and all(map(operator.is_, outs, frame.args)))


def at_place(frame):
    """The rule for places: they are needed as long as a transformation around this one waits."""
    return place.bind()[0] if place.active else False


def sites(jaxpr: compat.Jaxpr, prims: Container[compat.Primitive]) -> Iterator[compat.Eqn]:
    """Every equation of some primitives in a program, at any depth, in program order."""
    return (eqn for eqn in every(jaxpr.eqns) if eqn.primitive in prims)
