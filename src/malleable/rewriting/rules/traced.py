"""The two sides of a rule as programs: what its function gives for arrays of certain types."""

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax

from malleable import compat
from malleable.errors import RuleError
from malleable.notes import first_line
from malleable.rewriting.graph.graph import Graph, Node
from malleable.rewriting.rules.wildcards import Arr, line

REMEMBERED = 1024  # signatures that are kept per rule

# What JAX raises where arrays do not fit together.
MISFITS = (TypeError, ValueError, LookupError, ArithmeticError, AssertionError, NotImplementedError)


class NoMatch(Exception):
    """What a rule or its guard returns, or raises, to decline: the reason becomes a note."""


class Traced(NamedTuple):
    """A rule at one signature. problem: why the replacement cannot take its place, or "".

    same: whether the two sides differ only in calls of jitted functions, which are their bodies.
    """

    pattern: compat.Jaxpr
    replacement: compat.Jaxpr
    problem: str
    same: bool


class Unfit(Exception):
    """A replacement that cannot take the place of its pattern, and why."""


class Sides:
    """The function behind a rule and its traces so far; kinds: {parameter: wildcard}."""

    def __init__(self, name: str, fun: Callable[..., Any], kinds: dict[str, Any]):
        self.name: str = name
        self.fun: Callable[..., Any] = fun
        self.kinds: dict[str, Any] = kinds
        self.spell: Callable[[compat.Jaxpr], compat.Jaxpr] = lambda pattern: pattern  # other words
        self.arrays: list[str] = [n for n, kind in kinds.items() if isinstance(kind, Arr)]
        self._memory: dict[Any, Traced | NoMatch | str] = {}

    def at(
        self,
        avals: Sequence[Any],
        values: dict[str, Any],
        closed: dict[str, int] | None = None,
        precision: Any = None,
    ) -> Traced | NoMatch | str:
        """The rule for arrays of these types and for these other values.

        closed: {function wildcard: how many values it closes over}; they come after the arrays,
        and it gets them as a first argument. precision: of the products in it. NoMatch: the rule
        declines; a str: it has no meaning for such arrays, in JAX's words.
        """
        types = tuple((a, getattr(a, "weak_type", False)) for a in avals)
        others = tuple((name, _key(x)) for name, x in values.items())
        key = types, others, precision, jax.dtypes.canonicalize_dtype(float)
        if key not in self._memory:
            if len(self._memory) >= REMEMBERED:
                self._memory.clear()
            with jax.default_matmul_precision(precision), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what is tried here the user did not write
                self._memory[key] = self._trace(avals, values, closed or {})
        return self._memory[key]

    def traces(self) -> list[Traced]:
        return [traced for traced in self._memory.values() if isinstance(traced, Traced)]

    def _trace(self, avals, values, closed):
        count, problem = 0, ""

        def flat(*xs):
            nonlocal count, problem
            before, after = self._run(xs, values, closed)
            before, tree = jax.tree.flatten(before)
            count, before = len(before), list(map(compat.as_array, before))
            try:
                return [*before, *fitted(after, tree, list(map(jax.typeof, before)))]
            except Unfit as unfit:
                problem = unfit.args[0]
                return before

        try:
            program = compat.trace(flat, *avals)
        except NoMatch as why:
            return NoMatch(*why.args)  # without the frames of the trace
        except MISFITS as why:
            return f"{type(why).__name__}: {first_line(why)}"
        graph = Graph.of(program)
        if program.jaxpr.effects:
            problem = "has an effect, or its pattern has one"
        before, after = graph.outputs[:count], graph.outputs[count:]
        used = {v for node in below(graph, after) for v in node.ins}
        gone = {old for old, new in zip(before, after, strict=False) if old != new}
        if used & gone - set(graph.inputs):
            problem = "contains the pattern, which would match in it again"
        same = before == after and any(map(compat.is_transparent, program.eqns))
        graph.outputs = before
        pattern = self.spell(graph.jaxpr())
        graph.outputs = after
        return Traced(pattern, graph.jaxpr(), problem, same)

    def _run(self, xs, values, closed):
        given, rest = dict(zip(self.arrays, xs, strict=False)), xs[len(self.arrays) :]
        for name, value in values.items():
            given[name] = value
            if name in closed:
                given[name] = functools.partial(value, rest[: closed[name]])
                rest = rest[closed[name] :]
        made = self.fun(*(given[name] for name in self.kinds))
        if isinstance(made, NoMatch):
            raise made
        if not isinstance(made, tuple) or len(made) != 2:
            raise RuleError(
                f"rule {self.name!r} does not return a pair",
                where=line(self.fun),
                hint="return (pattern, replacement)",
            )
        return made


def fitted(after, tree, avals: Sequence) -> list:
    """The leaves of a replacement as arrays of these types, which may differ in weakness.

    Raises Unfit for another structure, shape or dtype; NoMatch for another explicit sharding.
    """
    made, other = jax.tree.flatten(after)
    if tree != other:
        raise Unfit(f"is {other} where the pattern is {tree}")
    made = list(map(compat.as_array, made))
    for i, (x, aval) in enumerate(zip(made, avals, strict=True)):
        if x.shape != aval.shape or x.dtype != aval.dtype:
            mine, theirs = (f"{a.dtype}{list(a.shape)}" for a in (x, aval))
            raise Unfit(f"is {mine} where the pattern is {theirs}")
        if jax.typeof(x).weak_type != aval.weak_type:
            made[i] = compat.convert(x, aval.dtype, aval.weak_type)
        made[i] = compat.match_devices(made[i], aval)
        if _layout(jax.typeof(made[i])) != _layout(aval):
            raise NoMatch("its replacement is sharded in another way")
    return made


def _layout(aval):
    """How the dims of an array are spread over the axes of an explicit mesh."""
    return getattr(getattr(aval, "sharding", None), "spec", None)


def unfit(name: str, problem: str, node: Node) -> RuleError:
    """The error for a replacement that does not fit, with the user's line behind a node."""
    return RuleError(
        f"the replacement of rule {name!r} {problem}",
        where=compat.where(node.eqn),
        hint="a replacement has the shapes and dtypes of its pattern, and no effects",
    )


def below(graph: Graph, values: Sequence[int], most: int = 10**9) -> dict[Node, None]:
    """The nodes that make these values, all the way down; about `most`, if there are more."""
    seen: dict[Node, None] = {}
    work = [graph.maker[v] for v in values]
    while work and len(seen) < most:
        node = work.pop()
        if node is not None and node not in seen:
            seen[node] = None
            work.extend(graph.maker[v] for v in node.ins)
    return seen


def needs(graph: Graph, values: Iterable[int], parts: Iterable[int], ins: Sequence[int]) -> bool:
    """Whether values are made of some of the parts; ins: what no part is behind."""
    seen, work = set(ins), [graph.maker[v] for v in values if v not in ins]
    while work:
        node = work.pop()
        if node is None:
            continue
        if not set(node.ins).isdisjoint(parts):
            return True
        work.extend(graph.maker[v] for v in node.ins if v not in seen)
        seen.update(node.ins)
    return False


def _key(value):
    """Tells 1 from 1.0 and True, 0.0 from -0.0, and one function from another."""
    known = getattr(value, "key", value)  # of the body of a loop: its fingerprint
    return type(value), repr(known) if known is value else "", known
