"""The interpreter: run a program, asking the user's rules about each equation.

Tags, random keys, parameters and whatever a user invents are all rules given to it.
"""

import functools
import operator
from collections.abc import Callable, Container, Hashable, Iterator, Mapping
from typing import Any

import jax
from jax import lax

from malleable import compat
from malleable.core import values
from malleable.core.frame import Frame, path_of, signature, spell_type
from malleable.core.higher import cross
from malleable.core.marker import Marker, place
from malleable.core.stage import DEEP, Staged, stage_values
from malleable.core.values import VALUES, as_operand, fitting, has_values, is_value, materialised
from malleable.errors import MalleableError, RuleError
from malleable.notes import note
from malleable.programs.equations import every
from malleable.programs.evaluate import evaluate, inlined
from malleable.programs.primitives import has, kind
from malleable.python_source.misuse import called_as
from malleable.signatures import P, R

_INSIDE = "in a rule or the body of "
_SAME = kind("same") | has("fieldwise")  # done to each field of a value
Rule = Callable[..., Any]
Rules = Mapping[Any, Any]  # by primitive, or by class of values: a rule, or several


class Rulebook:
    """Rules, and what is remembered of the bodies they were applied to.

    A rulebook that lives as long as its rules makes eager calls fast: each body is entered once
    per signature, then runs compiled. `interpret` makes one per call of `interpret`.
    """

    def __init__(self, rules: Rules, default: Rule | None = None):
        if not hasattr(rules, "items"):
            raise TypeError(f"rules are given as {{primitive: rule}}, not as {rules!r}")
        self.default: Rule | None = default
        self.markers: frozenset[Marker] = frozenset(p for p in rules if isinstance(p, Marker))
        if any(p.placed for p in self.markers):
            at_place = lambda _: place.active and place.bind()[0]  # noqa: E731
            rules = {**rules, place: at_place}
            self.markers |= {place}
        self.rules: dict[Any, Rule] = {}  # by primitive: the rule for operands of any type
        self.every: dict[Any, list[tuple[Rule, Any]]] = {}  # by primitive or class, and operands
        for key, given in rules.items():
            if not isinstance(key, compat.Primitive) and key not in VALUES:
                raise TypeError(f"rules are given by primitive, such as lax.sin_p, not by {key!r}")
            several = given if isinstance(given, list | tuple) else [given]
            for rule in several:
                if not callable(rule):
                    raise TypeError(f"the rule for {key} is {rule!r}, which is no function")
            self.every[key] = [(rule, fitting(rule)) for rule in several]
            for rule in [r for r, fits in self.every[key] if fits is None and key not in VALUES]:
                self.rules.setdefault(key, rule)
        self._memo: dict[Hashable, Any] = {}

    def remember(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """make(), or what it gave for this key before."""
        if key not in self._memo:
            if len(self._memo) >= 512:  # forget; bodies of functions long gone are in here
                self._memo.clear()
            self._memo[key] = make()
        return self._memo[key]

    def way(self, eqn: compat.Eqn, args: list[Any]) -> Callable[[Frame, list], list] | None:
        """What is done with an equation; None where it stays as it is."""
        if VALUES and has_values(args):
            return functools.partial(self.meet, how=ask)
        rule = self.rules.get(eqn.primitive)
        if rule is None and self.enters(eqn, args):
            return functools.partial(cross, self)
        if rule is None and not isinstance(eqn.primitive, Marker) and eqn.primitive != values.LANES:
            rule = self.default
        return None if rule is None else functools.partial(ask, rule)

    def choices(self, eqn: compat.Eqn, args: list[Any]) -> list[Rule]:
        """The rules for operands among which are values, the first to be asked first."""
        if eqn.primitive is values.LANES:
            return []
        keys: list = [eqn.primitive]
        if not has_way_in(eqn):
            keys += [type(x) for x in args if is_value(x)]
        fit = [r for k in keys for r, fits in self.every.get(k, ()) if fits is None or fits(args)]
        if self.default is not None and len(keys) > 1 and not isinstance(eqn.primitive, Marker):
            fit.append(self.default)
        return fit

    def meet(self, frame: Frame, args: list[Any], behind: Any = None, how: Any = None) -> list[Any]:
        """The equation at hand, values among its operands: by a rule, entered, or on arrays.

        behind: the rules up to this one are not asked; how: `ask`, which checks what they return.
        """
        args = list(map(as_operand, args))
        rules = self.choices(frame.eqn, args)
        if behind in rules:
            rules = rules[rules.index(behind) + 1 :]
        if not rules:
            return self._on_arrays(frame, args)
        return self._ask(how or results_of, rules[0], frame, args)

    def _ask(self, how: Callable, rule: Callable, frame: Frame, args: list) -> list:
        mark, around = (rule, signature(args)), frame.asking
        if mark in around or len(around) >= DEEP:
            raise RuleError(
                f"rule `{rule_name(rule)}` for `{frame.eqn.primitive}` is asked for ever: it binds "
                f"{', '.join(map(values.text_of, args))}, which is what it was given",
                where=frame.where,
                hint="bind the fields of a value, or values of another type",
            )
        before = frame.args, frame.place, frame.rule
        frame.asking = (*around, mark)
        outs = how(rule, frame, args)
        frame.args, frame.place, frame.rule = before
        frame.asking = around
        return outs

    def added(self, frame: Frame, x: Any, y: Any) -> Any:
        """The sum of two values, as the rules have it."""
        program = compat.trace(lax.add, values.typeof(x), values.typeof(y))
        frame.outer = (frame.eqn, *frame.outer)
        return run(program, [x, y], self, frame)[0]

    def _on_arrays(self, frame: Frame, args: list) -> list:
        eqn = frame.eqn
        if has_way_in(eqn) or any(map(self.mentions, compat.bodies(eqn.params))):
            return cross(self, frame, args)
        if eqn.primitive is values.LANES:
            return compat.copy(eqn, jax.tree.leaves(args), inside=True)
        if eqn.primitive.name in _SAME:
            fields, whole = jax.tree.flatten(args)
            calls = [fields] if eqn.primitive.multiple_results else [[x] for x in fields]
            return whole.unflatten([y for xs in calls for y in compat.copy(eqn, xs, inside=True)])
        if isinstance(eqn.primitive, Marker) and not eqn.primitive.out and has_values(args):
            marked, at = args[: len(eqn.outvars)], args[len(eqn.outvars) :]
            fields, whole = jax.tree.flatten(marked)  # what a transformation around us is told of
            trees = {k: p for k, p in eqn.params.items() if type(p) is type(whole)}
            trees = {k: jax.tree.structure(p.unflatten(marked)) for k, p in trees.items()}
            return whole.unflatten(eqn.primitive.bind(*fields, *at, **{**eqn.params, **trees}))
        arrays = [materialised(frame, x, f"`{eqn.primitive}`") for x in args]
        return compat.copy(eqn, arrays, inside=True)

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
            staged = stage_values(fun, self.markers)(*args)
            return run_staged(staged, self, frame.enter())

        return ruled


@called_as("interpret(fun, {primitive: rule})(*args)")
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
    may read and change. A primitive without a rule runs as usual, or through `default`. Where
    arguments are values (`value`), a rule gets and returns arrays or values; one whose operands
    are annotated with classes is asked for operands of these, and of a list of rules the first
    that fits; a rule under a class is for all primitives that have no other. Control
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
        staged = stage_values(fun, book.markers, raises=False)(*args, **kwargs)
        frame = start(carry, feeds, shared, key)
        out = run_staged(staged, book, frame)
        state, writes = values.to_caller(frame, (frame.carry, results(frame)), staged.args)
        return out, state, writes

    return interpreted


def start(carry=(), feeds=None, shared=None, key=None) -> Frame:
    """The frame of a whole program."""
    carry, feeds, shared = values.each(values.unwatched, (carry, feeds or {}, shared or {}))
    fed, same = ({path_of(name): x for name, x in d.items()} for d in (feeds, shared))
    return Frame(carry, fed, same, key)


def results(frame: Frame) -> dict:
    """{name: value} of all that was written; a path of one part is a plain name."""
    return {q[0] if len(q) == 1 else q: w.result() for q, w in frame.writes.items()}


def run_staged(staged: Staged, book: Rulebook, frame: Frame):
    """Run what `stage` gave, changing `frame` as the rules say; the output has its pytree."""
    return staged.finish(run_flat(staged, book, frame))


def run_flat(staged: Staged, book: Rulebook, frame: Frame) -> list:
    """As `run_staged`, to all results: what the function changed in place is not put back."""
    args = list(map(as_operand, staged.args))
    values.from_caller(frame, args)
    outs = list(map(as_operand, run(staged.jaxpr, args, book, frame)))
    return values.to_caller(frame, outs, [*args, *staged.jaxpr.consts])


def run(closed: compat.Jaxpr, args, book: Rulebook, frame: Frame) -> list:
    """Run a program on flat `args` under a rulebook, changing `frame` as the rules say."""

    frame.book = book

    def step(eqn, xs):
        way = book.way(eqn, xs)
        if way is None:
            return compat.copy(eqn, xs)
        outer = frame.outer
        try:
            with compat.source(eqn):
                frame.eqn = eqn
                return way(frame, xs)
        except Exception as error:
            _tell_place(error, eqn, outer, xs)
            raise

    return evaluate(closed, args, step)


def _tell_place(error: Exception, eqn: compat.Eqn, outer: tuple, args: list) -> None:
    """Say of an error that is none of ours in which equation it was raised, and where."""
    notes = map(str, getattr(error, "__notes__", ()))
    if not isinstance(error, MalleableError) and not any(n.startswith(_INSIDE) for n in notes):
        of = ", ".join(map(values.text_of, args))
        error.add_note(f"{_INSIDE}`{eqn.primitive}` of {of}, at {compat.where(eqn, *outer)}")


def ask(rule: Callable, frame: Frame, args: list) -> list:
    """What a rule makes of `frame.eqn`; checked, so that a slip is found where it happens."""
    eqn = frame.eqn
    outs = results_of(rule, frame, args)
    bound = frame.bound  # what `bind` gave for the very operands that the rule got
    if bound and len(outs) == len(bound) and all(map(operator.is_, outs, bound)):
        return outs
    wanted = [v.aval for v in eqn.outvars]
    typed = all(is_value(x) or compat.is_array(x) for x in outs)
    if not typed or values.shapes(outs) != values.shapes(wanted):
        got = ", ".join(map(values.text_of, outs))
        got = f"[{got}]" if typed else got
        if typed and has_values(outs):
            got += f", for {', '.join(values.text_of(values.typeof(x)) for x in outs)},"
        raise RuleError(
            f"rule `{rule_name(rule)}` for `{eqn.primitive}` returned {got} "
            f"where {spell_type(wanted)} belongs",
            where=frame.where,
            hint="return what the equation returns: `frame.bind(*args)` gives it",
        )
    if not frame.changed and not has_values(args) and not keeps_value(frame, outs):
        frame.changed = frame.where or str(eqn.primitive)
    return [
        x if is_value(x) else compat.match_devices(compat.as_array(x), a)
        for x, a in zip(outs, wanted, strict=True)
    ]


def results_of(rule: Callable, frame: Frame, args: list) -> list:
    """What a rule returns for operands of `frame.eqn`, as a list."""
    eqn, frame.bound, frame.rule = frame.eqn, None, rule
    seen = len(args) - getattr(eqn.primitive, "placed", False)
    frame.args, frame.place = tuple(map(as_operand, args[:seen])), tuple(args[seen:])
    try:
        out = rule(frame, *frame.args, **eqn.params)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise
        raise RuleError(  # it was not entered
            f"rule `{rule_name(rule)}` cannot be called for `{eqn.primitive}`: {error}",
            where=frame.where,
            hint="a rule takes a frame, operands and parameters: (frame, *args, **params)",
        ) from None
    if is_value(out) or not isinstance(out, list | tuple):
        return [] if out is None else [out]
    return list(out)


def has_way_in(eqn: compat.Eqn) -> bool:
    """Whether an equation has bodies that can be run on other types of operands."""
    return bool(compat.bodies(eqn.params)) and not isinstance(compat.view(eqn), compat.Opaque)


def rule_name(rule: Callable) -> str:
    return getattr(rule, "__name__", str(rule))


def keeps_value(frame: Frame, outs: list) -> bool:
    """Whether a rule left the value of its equation alone, as far as derivatives can tell.

    It did if it handed on what the equation gives on its own operands, or, for a marker, the
    operands; and where there are none, as for a key or a parameter.
    """
    own = isinstance(frame.eqn.primitive, Marker) and len(outs) <= len(frame.args)
    return not outs or not frame.args or (own and all(map(operator.is_, outs, frame.args)))


def sites(jaxpr: compat.Jaxpr, prims: Container[compat.Primitive]) -> Iterator[compat.Eqn]:
    """Every equation of some primitives in a program, at any depth, in program order."""
    return (eqn for eqn in every(jaxpr.eqns) if eqn.primitive in prims)
