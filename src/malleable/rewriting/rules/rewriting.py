"""`rewrite(*rules)`: the pass that puts replacements where patterns of rules are."""

import functools
from collections import Counter, deque

from malleable import compat, notes
from malleable.errors import RuleError
from malleable.python_source.misuse import called_as
from malleable.rewriting.graph.graph import Graph
from malleable.rewriting.passes.passes import LEVELS, Pass, in_bodies, or_say
from malleable.rewriting.rules import patterns
from malleable.rewriting.rules.misses import nearest
from malleable.rewriting.rules.rules import Match, NoMatch, Rule
from malleable.rewriting.rules.traced import needs


@called_as("optimize(fun, rewrite(*rules))")
def rewrite(*rules: Rule, fuel: int = 8, level: str = "reassoc") -> Pass:
    """The pass that applies rules wherever they match, in every body, until none does.

    level: the loosest of the rules to use. fuel: how often one rule may fire on the same operands.
    Every firing leaves a note, and so does every reason to decline; new equations carry the line
    of the user's which they replace, and the name of the rule.
    Raises RuleError for a replacement that does not fit, and for rules that undo each other.
    Source: the greedy worklist of MLIR's GreedyPatternRewriteDriver; the index by the primitive
    of the root, tinygrad's PatternMatcher.

    >>> from jax import numpy as jnp
    >>> from malleable import rule, stage
    >>> log1p = rule(lambda x: jnp.log(1 + x), jnp.log1p, name="log1p")
    >>> program = stage(lambda x: jnp.log(x * x + 1))(2.0).jaxpr
    >>> [eqn.primitive.name for eqn in rewrite(log1p)(program).eqns]
    ['mul', 'log1p']
    """
    for r in rules:
        if not isinstance(r, Rule):
            raise TypeError(f"rewrite takes rules, not {r!r}: decorate it with `rule`")
    if level not in LEVELS:
        raise ValueError(f"level {level!r} is none of {', '.join(LEVELS)}")
    kept = [r for r in rules if LEVELS.index(r.level) <= LEVELS.index(level)]

    @functools.cache
    def index():
        by_start: dict[str, list[Rule]] = {}
        for r in kept:
            for start in r.plan().starts:
                by_start.setdefault(start, []).append(r)
        return by_start, max((r.plan().height for r in kept), default=1)

    def once(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
        graph = Graph.of(jaxpr)
        return graph.jaxpr() if _run(graph, *index(), fuel) else jaxpr

    run, name = in_bodies(once), f"rewrite({', '.join(r.name for r in kept)})"

    def all_bodies(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
        return or_say("no rule rewrote anything", lambda: nearest(kept, jaxpr), run, jaxpr)

    all_bodies.__name__ = name
    return all_bodies


def _run(graph, by_start, reach, fuel) -> int:
    work = deque(node for node in graph.nodes if node.name in by_start)
    waiting, spent, fired = set(work), Counter(), []
    most = fuel * (len(graph.nodes) + 8)
    declined = set()
    while work:
        node = work.popleft()
        waiting.discard(node)
        for r in by_start[node.name] if node in graph.nodes else ():
            match = r.plan().find(graph, node)
            if isinstance(match, NoMatch) and (r, node) not in declined:
                declined.add((r, node))
                notes.note(f"rule {r.name!r} declined", compat.where(node.eqn), str(match))
            if not isinstance(match, Match):
                continue
            newest = len(graph.avals)
            new = graph.splice(match.replacement, match.ins, node, r.name)
            swap = {a: b for a, b in zip(match.roots, new, strict=True) if a != b}
            if not swap:
                continue
            if needs(graph, swap.values(), swap.keys(), match.ins):
                raise _endless([r], node)
            fired.append(r)
            spot = r, match.ins, id(match.replacement)  # one per signature and settings
            spent[spot] += 1
            if spent[spot] > fuel or len(fired) > most:
                raise _endless(fired, node)
            notes.note(f"rule {r.name!r} rewrote", compat.where(node.eqn))
            fresh = patterns.newer(graph, swap.values(), newest)
            for n in patterns.affected(graph, fresh + graph.replace(swap) + [node], reach):
                if n.name in by_start and n not in waiting:
                    waiting.add(n)
                    work.append(n)
            break
    return len(fired)


def _endless(fired, node):
    late = Counter(r.name for r in fired[-64:])
    names = [name for name, count in late.items() if 2 * count >= max(late.values())]
    where = compat.where(node.eqn)
    if len(names) == 1:
        hint = "its replacement matches its pattern again: add a guard"
        return RuleError(f"rule {names[0]!r} never comes to rest", where=where, hint=hint)
    *some, last = map(repr, names)
    both = f"{', '.join(some)} and {last}"
    hint = "give them to different passes, or guard one of them (where=)"
    return RuleError(f"rules {both} undo each other", where=where, hint=hint)
