"""Programs of the bodies of loops and branches: which user line makes which result."""

import ast
from typing import Any

from malleable import compat
from malleable.compat import Place
from malleable.inspection import places
from malleable.inspection.advice.evidence import sources


def maker(program: Any, number: int) -> Place | None:
    """The user's line behind one result of a program; None for one passed through."""
    raw = getattr(program, "jaxpr", program)
    if number >= len(raw.outvars):
        return None
    var = raw.outvars[number]
    for eqn in reversed(raw.eqns):
        if any(var is out for out in eqn.outvars):
            return line_of(eqn)
    return None


def line_of(eqn: compat.Eqn) -> Place | None:
    """The line of user code that an equation is from, if it is from one."""
    found = places.own(compat.user_places(eqn))
    return found if found is not None and places.is_own(found.file) else None


def part(fun: Any, path: str) -> tuple[ast.expr | None, Place] | None:
    """(expression, place) of one part of what a function returns; path: like `[0]['w']`."""
    ends = sources.returns(fun)
    if not ends:
        place = end_of(fun)
        return (None, place) if place else None
    value, place = ends[-1]
    for key in keys_of(path):
        match value:
            case ast.Tuple(elts=items) | ast.List(elts=items) if isinstance(key, int):
                if key >= len(items) or any(isinstance(i, ast.Starred) for i in items):
                    return None, place
                value = items[key]
            case ast.Dict(keys=names, values=values):
                pairs = zip(names, values, strict=True)
                known = {k.value: v for k, v in pairs if isinstance(k, ast.Constant)}
                if key not in known:
                    return None, place
                value = known[key]
            case _:
                return None, place
    return value, sources.place(value, place.file, place.function) if value else place


def end_of(fun: Any) -> Place | None:
    """Where a function returns; of one without `return`, its last statement."""
    ends, found = sources.returns(fun), sources.definition(fun)
    if ends or found is None:
        return ends[-1][1] if ends else None
    last = found[0].body
    last = last[-1] if isinstance(last, list) else last
    return sources.place(last, found[1].file, found[1].function)


def otherwise(fun: Any) -> str:
    """The lines where a function returns before its last, as a line of an advice."""
    before = [place for _, place in sources.returns(fun)[:-1]]
    if not before:
        return ""
    return f"\n  if it returns earlier, that is at {', '.join(map(places.spell, before[:3]))}"


def keys_of(path: str) -> list:
    """The keys of a path as it is printed: [0, 'w'] of `[0]['w']`."""
    try:
        node: Any = ast.parse(f"x{path}", mode="eval").body
    except SyntaxError:
        return []
    keys: list = []
    while isinstance(node, ast.Subscript | ast.Attribute):
        inner = node.attr if isinstance(node, ast.Attribute) else None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            inner = node.slice.value
        keys.insert(0, inner)
        node = node.value
    return keys
