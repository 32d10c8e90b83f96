"""Names in scopes: nested dicts outside, paths inside."""

from collections.abc import Iterable, Mapping

from malleable import compat
from malleable.core.frame import spell
from malleable.errors import TransformError

path = compat.user_context(())  # the scopes around us; part of the key of every trace cache


def nest(flat: Mapping) -> dict:
    """{(scope, ..., name): (value, where)} as nested dicts of values.

    Raises TransformError where one name is both a scope and a value.
    """
    tree: dict = {}
    taken: dict = {}
    for q, (value, where) in flat.items():
        node = tree
        for i, part in enumerate(q[:-1]):
            node = node.setdefault(part, {})
            taken.setdefault(q[: i + 1], (where, "a scope"))
        if q in taken or any(
            q[:i] in taken and taken[q[:i]][1] == "a value" for i in range(len(q))
        ):
            clash = next(q[:i] for i in range(1, len(q) + 1) if q[:i] in taken)
            raise TransformError(
                f"{spell(clash)} names both a value and a scope ({taken[clash][0]} and {where})",
                where=where,
                hint="rename one of them",
            )
        taken[q] = (where, "a value")
        node[q[-1]] = value
    return tree


def unnest(values: Mapping, known: Iterable, what: str = "") -> dict:
    """Nested dicts as {path: value}, for the paths that are known.

    Raises TransformError for a name that leads to none of them, if `what` says what it names.
    """
    known = set(known)
    flat = {}

    def walk(q, node):
        if q in known:
            flat[q] = node
        elif isinstance(node, Mapping):
            for part, child in node.items():
                walk((*q, part), child)
        elif what:
            raise TransformError(
                f"there is no {what} named {spell(q)}",
                hint=f"known names: {', '.join(sorted(map(spell, known))) or 'none'}",
            )

    walk((), values)
    return flat
