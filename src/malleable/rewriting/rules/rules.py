"""Write a pattern and its replacement as two values; `rewrite` puts one in the other's place.

    @rule
    def log_of_softmax(x):
        return jnp.log(jax.nn.softmax(x)), jax.nn.log_softmax(x)

    fast = optimize(model, rewrite(log_of_softmax))

A pattern matches where the program computes it already: traced with the types that are there, it
adds no equation to the graph of the program. So a rule knows no ranks, dtypes or primitives.
"""

import contextlib
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, overload

import jax
import numpy as np
from jax import lax

from malleable import compat
from malleable.errors import RuleError
from malleable.programs.evaluate import evaluate
from malleable.python_source.misuse import called_as
from malleable.rewriting.graph.graph import Graph, Node, fingerprint
from malleable.rewriting.graph.spellings import respelled
from malleable.rewriting.passes.passes import LEVELS
from malleable.rewriting.rules import patterns, words
from malleable.rewriting.rules.traced import NoMatch, Sides, Traced, below, unfit
from malleable.rewriting.rules.wildcards import Arr, Fun, Lit, Prim, Static, line, recast, wildcards
from malleable.rewriting.rules.wildcards import arrays as example_arrays
from malleable.rewriting.rules.wildcards import settings as example_settings

TRIES = 96  # proofs at one place, of different readings of what the wildcards are there
SAME = "its replacement is what is there already: a call of a jitted function is its body"
MOST_WORDS = 10  # patterns in other words, of one rule
FAR = 4000  # nodes to look through for a result that another one's operand depends on


@dataclass(frozen=True)
class Match:
    """A place where a rule fits.

    values: {wildcard: a value of the graph, a number or a setting}; ins, roots: the values that
    the replacement takes and replaces; node: the equation that makes the first of `roots`.
    """

    graph: Graph
    node: Node
    values: dict[str, Any]
    ins: tuple[int, ...]
    roots: tuple[int, ...]
    replacement: compat.Jaxpr | None = None

    def aval(self, name: str) -> Any:
        """The type of what an array wildcard stands for."""
        return self.graph.avals[self.values[name]]


class Plan(NamedTuple):
    """How a rule finds its places: at equations of the primitives `starts`, height steps down.

    find(graph, node) -> Match, NoMatch or None.
    """

    starts: frozenset[str]
    height: int
    find: Callable[[Graph, Node], Match | NoMatch | None]


@dataclass(frozen=True, eq=False)
class Rule:
    """A named way to find places in a graph, and what to put there instead.

    where: the line it is written at; sides: its pattern and replacement.
    """

    name: str
    level: str
    where: str
    plan: Callable[[], Plan] = field(repr=False)
    sides: Sides = field(repr=False)

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            what = f"rule {self.name!r} has the level {self.level!r}"
            raise RuleError(what, where=self.where, hint=f"levels are {', '.join(LEVELS)}")


@overload
def rule(
    pattern: Callable[..., Any],
    replacement: Callable[..., Any] | None = None,
    *,
    where: Callable[[Match], Any] | None = None,
    level: str = "reassoc",
    name: str = "",
    tried: bool = True,
) -> Rule: ...
@overload
def rule(
    pattern: None = None,
    replacement: None = None,
    *,
    where: Callable[[Match], Any] | None = None,
    level: str = "reassoc",
    name: str = "",
    tried: bool = True,
) -> Callable[[Callable[..., Any]], Rule]: ...
@called_as("rule(pattern, replacement), or @rule on a function of both")
def rule(
    pattern: Callable[..., Any] | None = None,
    replacement: Callable[..., Any] | None = None,
    *,
    where: Callable[[Match], Any] | None = None,
    level: str = "reassoc",
    name: str = "",
    tried: bool = True,
) -> Any:
    """Decorate a function of wildcards that returns (pattern, replacement), both as JAX code.

    Also `rule(pattern, replacement)`: two functions of the same wildcards. A wildcard is any array,
    or what its annotation says: `Arr`, `Lit`, `Static`, `Fun`, `Prim`. where(match) -> True, False
    or NoMatch(reason); the function may return or raise NoMatch too. level: "exact", "reassoc"
    (other rounding) or "fast" (other accuracy). Tuples of results are matched together.
    Other words for a pattern match too, as `a * (1 / b)` for `a / b` (`rules/words.py` has all).
    Raises RuleError for a pattern that can never match: when the rule is made, or, with
    tried=False, when it is used first, and then in its own words only: many are made fast.

    >>> from jax import numpy as jnp
    >>> @rule
    ... def neg_neg(x):
    ...     return -(-x), x
    >>> rule(lambda x: jnp.log(1 + x), jnp.log1p, name="log1p").name
    'log1p'
    """
    if pattern is None:
        return functools.partial(rule, where=where, level=level, name=name, tried=tried)
    if not callable(pattern):
        raise TypeError(f"rule takes a function of wildcards, not {pattern!r}")
    fun, one = pattern, pattern
    if replacement is not None:
        fun = functools.wraps(one)(lambda *xs: (one(*xs), replacement(*xs)))
    sides = Sides(name or getattr(one, "__name__", "rule"), fun, wildcards(one))
    guard = where or (lambda match: True)
    first = functools.cache(lambda: _planned(sides, guard))

    @functools.cache
    def plan():
        plans = [first(), *(_reworded(sides, level, guard) if tried else ())]
        starts = frozenset().union(*(p.starts for p in plans))
        find = functools.partial(_find_first, plans)
        return Plan(starts, max(p.height for p in plans), find)

    made = Rule(sides.name, level, line(one), plan, sides)
    if tried:
        first()
    return made


def alone(match: Match) -> bool | NoMatch:
    """A guard: declines where a value inside the pattern is used outside of it as well.

    Without it such a value is still computed, beside the replacement.
    """
    graph, ends = match.graph, set(match.ins)
    varies: dict[int, bool] = dict.fromkeys(ends, True)

    def visit(v):  # whether v depends on a wildcard
        if v not in varies:
            node = graph.maker[v]
            varies[v] = node is not None and max(map(visit, node.ins), default=False)
        return varies[v]

    inner = {graph.maker[v] for v in match.roots if visit(v)}
    inner |= {graph.maker[v] for v, does in varies.items() if does and v not in ends}
    for v in (v for node in inner if node for v in node.outs if v not in match.roots):
        if v in graph.outputs or any(user not in inner for user in graph.users(v)):
            return NoMatch("a value inside the pattern is used elsewhere too")
    return True


# ---------------------------------------------------------------- other words


def _planned(sides: Sides, guard: Callable) -> Plan:
    known = forms(sides)
    starts = frozenset().union(*(form.roots[0].names for form in known))
    height = max(form.height for form in known)
    return Plan(starts, height, functools.partial(_find, sides, known, guard))


def _find_first(plans: list[Plan], graph: Graph, node: Node) -> Match | NoMatch | None:
    """The first match; else why the first that declined did."""
    found: list[Any] = [None]
    for plan in (p for p in plans if node.name in p.starts):
        if not isinstance(found[-1], Match):
            found.append(plan.find(graph, node))
    return found[-1] if isinstance(found[-1], Match) else next(filter(None, found), None)


def _reworded(sides: Sides, level: str, guard: Callable) -> list[Plan]:
    """The plans of a pattern in other words, one pair after the other put in it."""
    made, work = [], [sides]
    seen = {fingerprint(traced.pattern) for traced in sides.traces()}
    for before, pair in ((b, pair) for b in work for pair in _pairs(level)):
        tried = before.traces()[:3] if len(made) < MOST_WORDS else []
        if not (new := {fingerprint(pair(traced.pattern)) for traced in tried} - seen):
            continue
        seen |= new
        after = Sides(sides.name, sides.fun, sides.kinds)
        after.spell = lambda pattern, before=before, pair=pair: pair(before.spell(pattern))
        with contextlib.suppress(RuleError):  # it would be a wildcard alone
            plan = _planned(after, guard)
            inside = (Graph.of(traced.replacement) for traced in after.traces())
            if not any(isinstance(plan.find(g, n), Match) for g in inside for n in g.nodes):
                made.append(plan)  # else it would match again in what it is replaced by
                work.append(after)
    return made


@functools.cache
def _pairs(level: str) -> list[Callable[[compat.Jaxpr], compat.Jaxpr]]:
    """For each pair of words no looser than a level: the pass that puts one for the other."""
    pairs = [p for name in LEVELS[: LEVELS.index(level) + 1] for p in words.PAIRS[name]]
    varying = lambda m: all(m.graph.value(v) is None for v in m.ins)  # noqa: E731  # no 1 of 1 / b
    ways = [rule(w, where=varying, tried=False) for p in pairs for w in (p, words.turned(p))]
    return [functools.partial(_in_words, way.plan) for way in ways]


def _in_words(plan: Callable[[], Plan], program: compat.Jaxpr) -> compat.Jaxpr:
    """A pattern in other words, wherever it has these."""
    graph = Graph.of(program)
    for node in [node for node in graph.nodes if node.name in plan().starts]:
        match = plan().find(graph, node) if node in graph.nodes else None
        if isinstance(match, Match) and match.replacement is not None:
            new = graph.splice(match.replacement, match.ins, node)
            graph.replace(dict(zip(match.roots, new, strict=True)))
    return graph.jaxpr()


# ---------------------------------------------------------------- a pattern and its places


def forms(sides: Sides) -> list[patterns.Form]:
    """The forms of a pattern: one per way to choose its literals, settings and operations."""
    kinds, found = sides.kinds, {}
    problems: dict[int, str] = {}  # the first of each kind: -1, of the replacement; 0, of the
    # pattern; 1, neither has a meaning for such arrays
    bodies = {n: _example(n, k.example) for n, k in kinds.items() if isinstance(k, Fun)}

    def learn(avals, chosen):
        traced = sides.at(avals, chosen | bodies)
        if not isinstance(traced, Traced):
            return problems.setdefault(1, str(traced))
        numbers = {n: x for n, x in chosen.items() if isinstance(kinds[n], Lit)}
        form = patterns.form(Graph.of(traced.pattern), sides.arrays, numbers, list(bodies))
        if isinstance(form, str):
            return problems.setdefault(0, form)
        if traced.problem:
            return problems.setdefault(-1, f"its replacement {traced.problem}")
        prims = {n: x for n, x in chosen.items() if isinstance(kinds[n], Prim)}
        found.setdefault((repr(form.roots), repr(prims)), form._replace(chosen=prims))
        return None

    for chosen in example_settings(kinds):
        first = not found
        for avals in itertools.islice(example_arrays(kinds), None if first else 4):
            if learn(avals, chosen) is None:
                for other in recast(kinds, avals) if first else ():  # a bool is not tested, say
                    learn(other, chosen)
                break
    if not found:
        hint = "annotations say what a wildcard is: Arr['n d'], Lit, Static[examples], Fun, Prim"
        if min(problems) < 0:
            hint = "a replacement has the shapes and dtypes of its pattern, and no effects"
            if "would match in it again" in problems[min(problems)]:
                hint = "put the inner one into a body: jax.checkpoint, jax.custom_jvp or lax.scan"
        what = f"rule {sides.name!r} can never match: {problems[min(problems)]}"
        raise RuleError(what, where=line(sides.fun), hint=hint)
    return list(found.values())


def _example(name, given):
    def example(*args):
        if given is not None:
            return given(*args)
        return args[0] if len(args) == 1 else args

    example.__name__ = name
    return jax.jit(example)


class _Body:
    """The body of a loop of the program, as a function wildcard sees it."""

    def __init__(self, program):
        self.program, self.key = program, fingerprint(program)

    def __call__(self, closed, *args):
        leaves = [compat.as_array(x) for x in jax.tree.leaves(args)]
        outs = evaluate(self.program, [*closed, *leaves])
        first = jax.tree.structure(args[0])
        if len(args) == 1:
            whole = first.num_leaves == len(outs)
            return jax.tree.unflatten(first, outs) if whole else tuple(outs)
        carry, rest = outs[: first.num_leaves], outs[first.num_leaves :]
        return jax.tree.unflatten(first, carry), rest[0] if len(rest) == 1 else tuple(rest)


def _find(sides, forms, guard, graph: Graph, node: Node) -> Match | NoMatch | None:
    """The rule at this node, proved; NoMatch where it declines what might have been its pattern."""
    reason = None
    for form in (form for form in forms if node.name in form.roots[0].names):
        for found in patterns.search(graph, form, node):
            for values, closed, behind in _readings(sides, form, graph, found):
                ins = (*(values[n] for n in sides.arrays), *behind)
                others = {n: values[n] for n in sides.kinds if n not in sides.arrays}
                avals = [graph.avals[v] for v in ins]
                traced = sides.at(avals, others, closed, _precision(found))
                if isinstance(traced, NoMatch):
                    reason = reason or traced
                if not isinstance(traced, Traced):
                    continue
                roots = graph.find(traced.pattern, ins, respelled)
                if roots is not None and traced.same:
                    reason = reason or NoMatch(SAME)
                if roots is None or not _is_new(graph, roots, ins, traced.replacement):
                    continue
                if traced.problem:
                    raise unfit(sides.name, traced.problem, node)
                match = Match(graph, node, values, ins, tuple(roots), traced.replacement)
                agreed = _apart(match) and _answer(sides.name, guard, match)
                if agreed is True:
                    return match
                if isinstance(agreed, NoMatch):
                    reason = agreed
    return reason


def _is_new(graph, roots, ins, replacement) -> bool:
    """Whether there is something to replace: some settings make a pattern one of its wildcards."""
    if any(graph.maker[v] is None or v in ins for v in roots):
        return False
    return graph.find(replacement, ins) != roots


def _answer(name, guard, match) -> bool | NoMatch:
    """What a guard says of a match, returned or raised."""
    try:
        said = guard(match)
    except NoMatch as why:
        return why.with_traceback(None)
    if isinstance(said, NoMatch | bool):
        return said
    if isinstance(said, np.bool_):
        return bool(said)
    raise RuleError(
        f"the guard of rule {name!r} returned {said!r}",
        where=line(guard),
        hint="return True, False or NoMatch(reason)",
    )


def _apart(match):
    """Whether no operand depends on a result that is to be replaced together with others."""
    if len(match.roots) < 2:
        return True
    makers = {match.graph.maker[v] for v in match.roots}
    under = below(match.graph, match.ins, FAR)
    return len(under) < FAR and not makers & under.keys()


def _readings(sides, form, graph, found):
    """(values of all wildcards, how much functions close over, that) in the order of likelihood."""
    values = dict(form.chosen)
    closed, behind = {}, []
    for name, (key, which, count) in form.bodies.items():
        body, over = patterns.closure(found.nodes[key], which, count)
        values[name], closed[name] = _Body(body), len(over)
        behind += over
    choices = {}
    for name, kind in sides.kinds.items():
        match kind:
            case Arr():
                choices[name] = found.holes[name]
            case Lit() if name in found.holes:
                choices[name] = list(_numbers(graph, found.holes[name]))
            case Lit():
                choices[name] = list(_params(found, True))
            case Static():  # a setting that leaves no trace in params is a default, or off
                choices[name] = _params(found, False)
                there = [(type(x), x) for x in choices[name]]
                more = (*kind.examples, False, True, None)
                choices[name] += [x for x in more if (type(x), x) not in there]
    arrays = [n for n in choices if n in sides.arrays]
    for chosen in itertools.islice(_likeliest(list(choices.values())), TRIES):
        read = values | dict(zip(choices, chosen, strict=True))
        known: dict[Any, Any] = {}
        if all(sides.kinds[n].fits(graph.avals[read[n]], known) for n in arrays):
            yield read, closed, behind


def _likeliest(choices):
    """One of each list, those first that come early in all of them."""
    for total in range(sum(map(len, choices)) + 1):
        yield from _adding_up(choices, total)


def _adding_up(choices, total):
    """One of each list, whose places add up to `total`."""
    if not choices:
        yield from [()] if total == 0 else []
        return
    for place in range(min(total, len(choices[0]) - 1), -1, -1):
        for rest in _adding_up(choices[1:], total - place):
            yield (choices[0][place], *rest)


def _numbers(graph, values):
    """The scalars among values: as numbers of Python, then as they are."""
    for v in values:
        known = graph.value(v)
        if known is not None and np.size(known) == 1:
            yield np.asarray(known).item()
            if not graph.avals[v].weak_type:
                yield np.asarray(known).reshape(())[()]


def _params(found, numbers):
    """What occurs in the params of matched equations, each once, those of the root first."""
    seen: dict[Any, None] = {}

    def visit(p):
        if isinstance(p, compat.Jaxpr):
            for eqn in p.eqns:
                visit(tuple(eqn.params.values()))
        elif isinstance(p, tuple | list):
            if not numbers and all(isinstance(x, int) for x in p):
                seen[type(p), tuple(p)] = None
            for x in p:
                visit(x)
        elif isinstance(p, int | float | str | np.dtype) and not (numbers and isinstance(p, str)):
            seen[type(p), p] = None

    for node in found.nodes.values():
        visit(tuple(node.params.values()))
    return [value for _, value in seen]


def _precision(found):
    """The precision of the products in a match: a pattern is traced under the same."""
    for node in found.nodes.values():
        said = node.params.get("precision")
        said = said[0] if isinstance(said, tuple) else said
        if said is not None:
            name = getattr(said, "name", None)
            return name.lower() if name and isinstance(said, lax.Precision) else name
    return None
