"""Says what a jitted function changes in its arguments: JAX calls it with copies, and drops it."""

import ast
import sys
from collections.abc import Iterable
from typing import Any

import jax

from malleable.core.stage import stage
from malleable.inspection.advice.evidence import creation, sources
from malleable.inspection.advice.evidence.trouble import here
from malleable.inspection.advice.evidence.wording import listed
from malleable.inspection.advice.hint import Advice
from malleable.inspection.advice.watching import running
from malleable.inspection.advice.watching.running import Observer, Run
from malleable.python_source.changes import line_of_function

MOST = 3  # names that are told


class Changed(Observer):
    """Looks at functions that are given a model of nnx, or that write to a dict or a list.

    Such a function is traced once more. What it changes for good, in a global say, it then changes
    twice, as whenever JAX traces a function again.
    """

    def called(self, run: Run, caller):
        fun = sources.users(run.fun)
        if not run.own or not _may_change(fun, (run.args, run.kwargs)):
            return
        try:
            lost = list(dict.fromkeys(_lost(run)))
        except Exception:  # it is about to be raised where JAX traces the function
            return
        if lost:
            made = creation.how(("jit",), run.fun)
            place = made.place if made is not None else sources.where_defined(fun)
            where = here(place) if place is not None else line_of_function(fun)
            what, way = _told(sources.name_of(fun), lost, run)
            running.warn(Advice(what, where, way), place)


def _lost(run: Run) -> Iterable[str]:
    """The names of what the function changes in its arguments."""
    staged = stage(run.fun)(*run.args, **run.kwargs)
    changes, outs = staged.changes, staged.jaxpr.jaxpr.outvars
    new = staged.changed(outs)
    if all(any(v is x for x in outs[: len(outs) - len(new)]) for v in new):
        return []  # the new values are returned, too
    names = [n.strip("`") for n in changes.names if n not in changes.outside]
    return [n for n in names if not any(m.startswith((f"{n}.", f"{n}[")) for m in names)]


def _told(name: str, lost: list[str], run: Run) -> tuple[str, str]:
    more = " and more" if len(lost) > MOST else ""
    what = f"{name} changes {listed(lost[:MOST])}{more} in place, and jax.jit calls it with "
    what += "copies of its arguments: the caller's stay as they are"
    way = "return the new value, and use that"
    if any(map(_is_of_nnx, _nodes((run.args, run.kwargs)))):
        way = f"write nnx.jit in the place of jax.jit: it carries the change out; or {way}"
    return what, way


def _may_change(fun: Any, args: Any) -> bool:
    return any(map(_is_of_nnx, _nodes(args))) or _writes(fun)


def _nodes(tree: Any) -> list:
    """Every node of a tree, and its leaves."""
    seen: list = []
    jax.tree.flatten(tree, is_leaf=lambda x: bool(seen.append(x)))
    return seen


def _is_of_nnx(x: Any) -> bool:
    nnx = sys.modules.get("flax.nnx")
    return nnx is not None and isinstance(x, nnx.Module | nnx.Optimizer | nnx.Variable)


def _writes(fun: Any) -> bool:
    """Whether a function has a line like `d["n"] = x` for one of its parameters d."""
    found = sources.definition(fun)
    if found is None:
        return False
    names = {a.arg for a in sources.arguments(found[0])}
    written = (n for n in sources.own_nodes(found[0]) if isinstance(n, ast.Subscript))
    return any(
        isinstance(n.ctx, ast.Store) and isinstance(n.value, ast.Name) and n.value.id in names
        for n in written
    )
