"""Passes: `optimize(fun, *passes)` runs a function through them; a pass is jaxpr in, jaxpr out.

A pass keeps the types of arguments and results. It gives back the program it was given, the very
object, where it finds nothing to do.
"""

import contextlib
import functools
import inspect
import operator
import re
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, cast, get_origin, overload

import jax
import numpy as np

from malleable import compat
from malleable.core.stage import stage, staged_arguments
from malleable.errors import MalleableError, RuleError, text
from malleable.notes import about, listen, note
from malleable.programs.evaluate import evaluate, inlined
from malleable.programs.types import short_type
from malleable.python_source.changes import (
    Watch,
    contents,
    line_of_function,
    links,
    relinked,
    unchanged,
)
from malleable.python_source.misuse import called_as
from malleable.python_source.writes import look_for_writes, refuse_write
from malleable.rewriting.graph.graph import Graph, fingerprint, params_key
from malleable.rewriting.sharding.placement import held_as, placed_as, where_they_are
from malleable.signatures import P, R

Pass = Callable[[compat.Jaxpr], compat.Jaxpr]
Q = ParamSpec("Q")  # the options of a pass
LEVELS = ("exact", "reassoc", "fast")  # bit by bit; but for rounding; but for accuracy


@called_as("optimize(fun, *passes)(*args)")
def optimize(fun: Callable[P, R], *passes: Pass, shardings: Any = None) -> Callable[P, R]:
    """Return a function of the same arguments, whose program went through `passes` first.

    Without passes: `dce` and `cse`. As with `jit`, the function is traced once per signature:
    shapes and dtypes of the arrays and numbers, and the values of all other leaves. jit, grad,
    vmap, checkpoint and shard_map take the result, and may be inside `fun`.
    shardings: where the positional arguments are on a mesh, a NamedSharding, PartitionSpec or None
    for each, or for a tree of them; by default as they are there, or as those of a `jit` around.
    Passes that cut or merge axes then do so within the parts of a device.
    Raises TypeError for what is no pass, RuleError for a pass that breaks the program,
    TransformError for shardings that do not fit the arguments.

    >>> import jax.numpy as jnp
    >>> f = optimize(lambda x: {"y": jnp.sin(x) * jnp.sin(x)})
    >>> len(stage(f)(1.0).jaxpr.eqns), sorted(f(1.0))
    (2, ['y'])
    """
    run = pipeline(*(passes or (dce, cse)))

    def body(args, kwargs, twice, placed):
        args, kwargs = relinked(_shown((args, kwargs)), twice.it)
        watch = Watch(fun, (args, kwargs), (args, kwargs))
        before = watch.states()
        staged = stage(fun)(*args, **kwargs)
        changes = staged.changes
        staged.refuse(changes.outside, "and is no argument of what is traced once")
        moved = (old[0] for old, new in zip(before, watch.states(), strict=True) if old != new)
        for name in (*changes.once, *moved):
            note(
                "a side effect happens once per signature",
                line_of_function(fun),
                f"{name} changes while it is traced",
            )
        traced = staged_arguments(fun, args, kwargs)[2]
        with placed_as(placed.it and placed.it.among(traced)), held_as(args, traced):
            program = run(staged.jaxpr)
        outs = evaluate(program, list(map(compat.as_array, staged.args)))
        return _hidden(staged.rebuild(outs)), Plain(changes), staged.changed(outs)

    traced_once = inlined(body)

    @functools.wraps(fun)
    def optimized(*args: P.args, **kwargs: P.kwargs) -> R:
        look_for_writes(fun, args, kwargs)
        try:
            return called(*args, **kwargs)
        except Exception as error:
            refuse_write(error, (args, kwargs))
            held = any(map(contents, (*args, *kwargs.values())))
            if held and not isinstance(error, MalleableError):
                with contextlib.suppress(type(error)):  # it is raised below
                    until_it_raises(*args, **kwargs)
            raise

    def until_it_raises(*args, **kwargs):
        with unchanged(fun, ((), {})):
            staged = stage(fun, raises=False)(*args, **kwargs)
        staged.finish(evaluate(staged.jaxpr, list(map(compat.as_array, staged.args))))

    def called(*args, **kwargs):
        placed = where_they_are(shardings, args, kwargs)
        given = _hidden((args, kwargs), staged_arguments(fun, args, kwargs)[2])
        hidden = *given, Plain(links((args, kwargs))), Plain(placed)
        if _is_hashable(hidden):
            return finish(args, kwargs, traced_once(*hidden))
        leaves, tree = jax.tree.flatten(hidden, is_leaf=_is_plain)  # nothing to remember it by
        here = [isinstance(x, Plain) for x in leaves]

        def once(*arrays):
            rest = iter(arrays)
            given = [x if h else next(rest) for x, h in zip(leaves, here, strict=True)]
            return body(*jax.tree.unflatten(tree, given))

        made = inlined(once)(*(x for x in leaves if not isinstance(x, Plain)))
        return finish(args, kwargs, made)

    def finish(args, kwargs, made):
        out, changes, values = made
        changes.it.put_back((args, kwargs), values)
        return _shown(out)

    return optimized


def pipeline(
    *passes: Pass, watch: Callable[[str, compat.Jaxpr, compat.Jaxpr], Any] | None = None
) -> Pass:
    """One pass that runs several, without what nobody needs: `dce` first, `cse` too after each.

    watch(name, before, after) is called after each. Each result is checked.
    Raises RuleError, naming the pass, for a result that is no program, is ill typed, or has
    other types of arguments or results than the program before.

    >>> import jax.numpy as jnp
    >>> say = lambda name, before, after: print(name, len(before.eqns), len(after.eqns))
    >>> double = stage(lambda x: jnp.sin(x) + jnp.sin(x))(1.0).jaxpr
    >>> len(pipeline(dce, cse, watch=say)(double).eqns)
    dce 3 3
    cse 3 2
    2
    """
    names = list(map(_name, passes))

    def run(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
        jaxpr = dce(jaxpr)  # an unused user of a value would keep it where it is
        for name, p in zip(names, passes, strict=True):
            before, after = jaxpr, checked(p, jaxpr)
            if after is not before:
                jaxpr = dce(after)
                jaxpr = jaxpr if p is cse and jaxpr is after else cse(jaxpr)
            if watch is not None:
                watch(name, before, jaxpr)
        return jaxpr

    run.__name__ = f"pipeline({', '.join(names)})"
    return run


def checked(p: Pass, jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    """What one pass makes of a program, nothing pruned. Raises RuleError where that is none."""
    name = _name(p)
    after = _run_pass(name, p, jaxpr)
    if after is not jaxpr:
        _check(name, jaxpr, after)
    return after


def or_say(what: str, why: Callable[[], str], p: Pass, jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    """What a pass makes of a program; a note, where that is the same and it has left none."""
    with listen() as heard:
        after = p(jaxpr)
    if after is jaxpr and not heard:
        note(what, _line(jaxpr), why)
    return after


class Configurable(Protocol[Q]):
    """A pass with options: a program gives a program, options alone give the pass with them."""

    __name__: str

    @overload
    def __call__(
        self, jaxpr: compat.Jaxpr, /, *args: Q.args, **given: Q.kwargs
    ) -> compat.Jaxpr: ...
    @overload
    def __call__(self, *args: Q.args, **given: Q.kwargs) -> "Configurable[Q]": ...


def configurable(p: Callable[Concatenate[compat.Jaxpr, Q], compat.Jaxpr]) -> Configurable[Q]:
    """Decorate a pass that has options: `p(jaxpr)` runs it, `p(chunk=4)` is the pass with options.

    Raises TypeError for an option it does not have.

    >>> @configurable
    ... def rename(jaxpr, *, to="x"):
    ...     print(to)
    ...     return jaxpr
    >>> _ = rename(to="y")(stage(abs)(1.0).jaxpr)
    y
    >>> rename(to="y").__name__
    'rename'
    """
    kinds = inspect.signature(p).parameters.items()
    options = [name for name, kind in kinds if kind.kind is kind.KEYWORD_ONLY]

    @called_as(f"optimize(fun, {p.__name__}({', '.join(f'{name}=...' for name in options)}))")
    @functools.wraps(p)
    def configured(*program, **given):
        unknown = sorted(given.keys() - set(options))
        if unknown:
            raise TypeError(f"pass {p.__name__!r} has no option {unknown[0]!r}")
        if not program:
            return configurable(functools.wraps(p)(functools.partial(p, **given)))
        if not isinstance(program[0], compat.Jaxpr):
            told = f"pass {p.__name__!r} takes a program, not {program[0]!r}"
            hint = f"for a function there is optimize(fun, {p.__name__})"
            raise TypeError(text(told, compat.where(), hint))
        if compat.mutates(program[0]):
            why = "it works on mutable references"
            note(f"left by {p.__name__} as it is", _line(program[0]), why)
            return program[0]
        return p(*program, **given)

    return cast(Configurable[Q], configured)


def in_bodies(p: Pass) -> Pass:
    """The pass that applies `p` to every body in a program, deepest first, then to the program.

    Bodies are those of scan, while, cond, jit, checkpoint, shard_map and the primal functions of
    custom derivatives; a kernel, or a combiner of a reduction, is left alone.

    >>> from jax import lax
    >>> loop = lambda x: lax.fori_loop(0, 3, lambda i, c: c * abs(x) + abs(x), 1.0)
    >>> program = stage(loop)(1.0).jaxpr
    >>> seen = []
    >>> _ = in_bodies(lambda jaxpr: seen.append(len(jaxpr.eqns)) or jaxpr)(program)
    >>> seen
    [5, 1]
    """

    @functools.wraps(p)
    def deepest_first(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
        once = functools.cache(lambda body: p(with_bodies_by(lambda _: once, body)))
        return once(jaxpr)

    return deepest_first


def each_body(p: Pass) -> Pass:
    """As `in_bodies`, from the top: `p` on the program, then on every body of what came out.

    >>> from jax import lax
    >>> program = stage(lambda x: lax.fori_loop(0, 3, lambda i, c: c * x + c, 1.0))(1.0).jaxpr
    >>> seen = []
    >>> _ = each_body(lambda jaxpr: seen.append(len(jaxpr.eqns)) or jaxpr)(program)
    >>> seen
    [1, 3]
    """

    @functools.wraps(p)
    def top_first(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
        once = functools.cache(lambda body: with_bodies_by(lambda _: once, p(body)))
        return once(jaxpr)

    return top_first


def is_sized(jaxpr: compat.Jaxpr, name: str) -> bool:
    """Whether all shapes are numbers, as those of `jax.export.symbolic_shape` are not: a note."""
    for eqn in jaxpr.eqns:
        shapes = [getattr(v.aval, "shape", ()) for v in (*eqn.invars, *eqn.outvars)]
        if not all(isinstance(n, int | np.integer) for shape in shapes for n in shape):
            note(f"{name} leaves the program as it is", compat.where(eqn), "a size is not known")
            return False
    return True


def with_bodies_by(chosen: Callable[[compat.Eqn], Pass], jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    """The program with the pass that is chosen for each equation applied to the bodies of it."""

    def entered(eqn):
        inside = compat.bodies(eqn.params)
        if not inside or isinstance(compat.view(eqn), compat.Opaque):
            return eqn
        with compat.inside(eqn), about(lambda: compat.where(eqn)):
            new = list(map(chosen(eqn), inside))
        return eqn if all(map(operator.is_, new, inside)) else compat.with_bodies(eqn, new)

    eqns = list(map(entered, jaxpr.eqns))
    same = all(map(operator.is_, eqns, jaxpr.eqns))
    return jaxpr if same else compat.with_equations(jaxpr, eqns)


@configurable
def dce(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    """Remove the equations whose results nobody uses, in every body; those with effects stay.

    >>> len(dce(stage(lambda x: (x + 1, x * 2)[1])(1.0).jaxpr).eqns)
    1
    """
    return settled(jaxpr, in_bodies(compat.dce)(jaxpr))


@configurable
def cse(jaxpr: compat.Jaxpr) -> compat.Jaxpr:
    """Compute once what is computed twice, in every body; what has effects is never merged.

    Calls that say no more than a name (`jit` without shardings, donation or options) go up in
    their surroundings first.

    >>> len(cse(stage(lambda x: abs(x) + abs(x))(1.0).jaxpr).eqns)
    2
    """
    return settled(jaxpr, in_bodies(lambda body: settled(body, Graph.of(body).jaxpr()))(jaxpr))


def settled(before: compat.Jaxpr, after: compat.Jaxpr) -> compat.Jaxpr:
    """`before`, if `after` is the same program: so passes tell that they did nothing."""
    if len(before.eqns) != len(after.eqns):
        return after
    same = all(map(_same_equation, before.eqns, after.eqns))
    same = same and all(map(_same_atom, before.jaxpr.outvars, after.jaxpr.outvars))
    return before if same or fingerprint(before) == fingerprint(after) else after


def _same_equation(a, b) -> bool:
    """Whether two equations are the same, those in their bodies but for their names."""
    if a is b:
        return True
    same = a.primitive is b.primitive and len(a.invars) == len(b.invars)
    same = same and all(map(_same_atom, (*a.invars, *a.outvars), (*b.invars, *b.outvars)))
    return same and (a.params is b.params or params_key(a) == params_key(b))


def _same_atom(a, b) -> bool:
    if a is b or not (isinstance(a, compat.Literal) and isinstance(b, compat.Literal)):
        return a is b
    same = a.aval == b.aval and type(a.val) is type(b.val)
    return same and (a.val is b.val or np.asarray(a.val).tobytes() == np.asarray(b.val).tobytes())


# ---------------------------------------------------------------- checks


def _run_pass(name, p, jaxpr):
    """What a pass makes of a program; an error of its own tells which it was."""
    try:
        return p(jaxpr)
    except MalleableError:
        raise
    except Exception as error:
        where = _line(jaxpr)
        error.add_note(
            f"raised by pass {name!r}" + (f", on the program at {where}" if where else "")
        )
        raise


def _name(p) -> str:
    """The name of a pass, for messages."""
    if isinstance(p, list | tuple):
        raise TypeError(f"passes are given one by one, not as a {type(p).__name__}: use *passes")
    if not callable(p) or isinstance(p, type):
        raise TypeError(f"a pass is a function from jaxpr to jaxpr, not {p!r}")
    if get_origin(getattr(p, "__annotations__", {}).get("return")) is Callable:
        raise TypeError(f"{p.__name__} makes a pass: write optimize(fun, {p.__name__}(...))")
    return getattr(getattr(p, "func", p), "__name__", type(p).__name__)


def _check(name, before, after):
    """Raise RuleError unless a pass returned a program that may stand for the one before."""
    if not isinstance(after, compat.Jaxpr):
        hint = "return the program, also where nothing is to do"
        if callable(after):
            hint = f"{name!r} makes passes: give it what it asks for, {name}(...)"
        given = "nothing" if after is None else f"a {type(after).__name__}"
        what = f"pass {name!r} returned {given} where a program belongs"
        raise RuleError(what, hint=hint)
    keep = "a pass keeps the types of arguments and results"
    for kind, was, now in (
        ("argument", before.in_avals, after.in_avals),
        ("result", before.out_avals, after.out_avals),
    ):
        if len(was) != len(now):
            what = f"pass {name!r} changed the number of {kind}s from {len(was)} to {len(now)}"
            raise RuleError(what, where=_line(before), hint=keep)
        for i, (old, new) in enumerate(zip(was, now, strict=True)):
            if not compat.is_same_type(old, new):
                what = f"pass {name!r} changed the type of {kind} {i}, "
                what += "from {} to {}".format(*_types(old, new))
                raise RuleError(what, where=_line(before), hint=keep)
    try:
        compat.check(after, before.eqns)
    except TypeError as err:
        what, *_ = str(err).splitlines()
        found = re.search(r"from source: (\S+:\d+):\d+ \((.+)\)", str(err))
        raise RuleError(
            f"pass {name!r} returned an ill-typed program: {what}",
            where="{} in {}".format(*found.groups()) if found else "",
            hint="an equation takes values made before it, of the types it was made for",
        ) from None


def _types(*avals) -> list[str]:
    short = list(map(short_type, avals))
    if len(set(short)) == len(short):
        return short
    return [
        f"{text} ({'weak' if getattr(aval, 'weak_type', False) else 'strong'}, {aval.sharding})"
        for text, aval in zip(short, avals, strict=True)
    ]


def _line(jaxpr) -> str:
    return compat.where(*jaxpr.eqns) if jaxpr.eqns else ""


def first_place(jaxpr: compat.Jaxpr) -> str:
    """Where a program begins, for notes about all of it."""
    return compat.where(*jaxpr.eqns[:1]) if jaxpr.eqns else ""


# ---------------------------------------------------------------- leaves that are no arrays


@jax.tree_util.register_static
class Plain:
    """A leaf that is no array, as part of the structure of a pytree."""

    def __init__(self, it):
        self.it = it

    def __eq__(self, other):
        if not isinstance(other, Plain) or type(self.it) is not type(other.it):
            return False
        zeros = isinstance(self.it, float | complex) and repr(self.it) != repr(other.it)  # -0.0
        return self.it is other.it or (self.it == other.it and not zeros)

    def __hash__(self):
        return hash(self.it)


def _is_plain(x) -> bool:
    return isinstance(x, Plain)


def _hidden(tree, traced=None):
    leaves, structure = jax.tree.flatten(tree)
    kept = zip(leaves, traced or [True] * len(leaves), strict=True)
    return structure.unflatten([x if t and compat.is_array(x) else Plain(x) for x, t in kept])


def _shown(tree):
    return jax.tree.map(lambda x: x.it if isinstance(x, Plain) else x, tree, is_leaf=_is_plain)


def _is_hashable(hidden) -> bool:
    """Whether the leaves that are no arrays can be looked up."""
    plain = [x for x in jax.tree.leaves(hidden, is_leaf=_is_plain) if _is_plain(x)]
    try:
        hash(tuple(plain))
    except TypeError:
        return False
    return True
