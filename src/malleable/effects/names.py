"""Names in scopes: nested dicts outside, paths inside."""

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping
from operator import or_
from typing import Any

from malleable import compat
from malleable.core.frame import Path, path_of, quoted
from malleable.errors import TransformError
from malleable.python_source.misuse import called_as

_scopes = compat.user_context(())  # those around us; part of the key of every trace cache


@called_as("with scope('name'):")
@contextlib.contextmanager
def scope(name: str | Path) -> Iterator[None]:
    """Put the names inside under `name`: `with scope("layer1"): ...`, or `scope("layer1")(fun)`.

    >>> from malleable import reap, tag
    >>> reap(scope("outer")(lambda x: tag(x, "y")))(1.0)[1]["outer"].keys()
    dict_keys(['y'])
    """
    with _scopes(full_path(name)):
        yield


def full_path(name: str | Path) -> tuple[str, ...]:
    """The path of a name in the scopes around us."""
    return (*_scopes.value, *path_of(name))


def nest(flat: Mapping) -> dict:
    """{(scope, ..., name): (value, where)} as nested dicts of values.

    Raises TransformError where one name is both a scope and a value.
    """
    tree: dict = {}
    for q, (value, where) in flat.items():
        for i in range(1, len(q)):
            if q[:i] in flat:
                raise TransformError(
                    f"{quoted(q[:i])} names both a value and a scope "
                    f"({flat[q[:i]][1]} and {where})",
                    where=where,
                    hint="rename one of them",
                )
        node = tree
        for part in q[:-1]:
            node = node.setdefault(part, {})
        node[q[-1]] = value
    return tree


def unnest(values: Mapping, known: Iterable, what: str = "") -> dict:
    """Nested dicts as {path: value}, for the paths that are known.

    Raises TransformError for a name that leads to none of them, if `what` says what it names.
    """
    known, flat = set(known), {}

    def walk(q, node):
        if q in known:
            flat[q] = node
        elif isinstance(node, Mapping):
            for part, child in node.items():
                walk((*q, part), child)
        elif what:
            raise no_such_name(q, known, what)

    if not isinstance(values, Mapping):
        raise TypeError(f"names and values are given as a dict, not as {type(values).__name__}")
    walk((), values)
    return flat


def no_such_name(path, known: Iterable, what: str) -> TransformError:
    names = ", ".join(sorted(map(quoted, known))) or "none"
    return TransformError(f"there is no {what} named {quoted(path)}", hint=f"known names: {names}")


def named_sites(marker: Any, program: compat.Jaxpr, around: tuple = ()) -> dict[Path, str]:
    """{path: line} of a marker in a program; raises for a name used twice, or in a while loop."""
    found: dict[Path, str] = {}
    for eqn in program.jaxpr.eqns:
        inside = [named_sites(marker, body, (eqn, *around)) for body in compat.bodies(eqn.params)]
        view = compat.view(eqn) if any(inside) else None
        if eqn.primitive is marker:
            inside = [{eqn.params["path"]: compat.where(eqn, *around)}]
        if isinstance(view, compat.Branch):  # one of them is taken
            inside = [functools.reduce(or_, inside)]
        for path, where in (site for body in inside for site in body.items()):
            what = hint = ""
            if isinstance(view, compat.While):
                what = f"the site {quoted(path)} is in a while loop, of an unknown number of steps"
                hint = "make it a scan of as many steps as there may be, and select by jnp.where"
            elif path in found:
                what = f"the name {quoted(path)} is used twice, at {found[path]} and at {where}"
                hint = "give each site its own name, or put one inside a `scope`"
            if what:
                raise TransformError(what, where=where, hint=hint)
            found[path] = where
    return found
