"""Names for the values of a program: those the user gave them, where the source tells."""

import ast
import functools
import itertools
import keyword
import re
from collections.abc import Container, Sequence

from malleable.compat import Place
from malleable.inspection import places
from malleable.python_source.files import File, read


def wishes(raw, arguments: Sequence[str], frames: Sequence[Sequence[Place]]) -> dict:
    """{variable: the name to give it} of the inputs of a body, and of what the user assigned.

    The last equation of an assignment gives its value. arguments: names of the inputs, or "";
    frames: of each equation.
    """
    found = {v: identifier(a) for v, a in zip(raw.invars, arguments, strict=False) if a}
    last: dict = {}
    for eqn, at in zip(raw.eqns, frames, strict=True):
        place = places.own(list(at))
        statement = assignment(place) if place else None
        if place and statement:
            last[place.file, statement] = eqn
    for (_, (_, names)), eqn in last.items():
        if len(names) == len(eqn.outvars):
            found |= dict(zip(eqn.outvars, names, strict=True))
    return found


def assignment(place: Place) -> tuple[int, tuple[str, ...]] | None:
    """(line, names) of the assignment to plain names around a place, None for none."""
    if place.function.endswith("<lambda>"):
        return None
    for first, last, names in _assignments(read(place.file)):
        if first <= place.line <= last:
            return first, names
    return None


@functools.lru_cache(256)
def _assignments(file: File) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
    """(first line, last line, names) of the assignments in a file."""
    found = []
    for node in file.nodes:
        match node:
            case ast.Assign(targets=[target]) | ast.AnnAssign(target=target):
                names = _names(target)
            case ast.AugAssign(target=target):
                names = _names(target)
            case _:
                continue
        if names and node.value is not None:
            found.append((node.lineno, node.end_lineno or node.lineno, names))
    return tuple(sorted(found, key=lambda row: row[1] - row[0]))


def _names(target) -> tuple[str, ...]:
    match target:
        case ast.Name(id=name):
            return (identifier(name),)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            names = tuple(p.id for p in parts if isinstance(p, ast.Name))
            return tuple(map(identifier, names)) if len(names) == len(parts) else ()
    return ()


def identifier(text: str) -> str:
    """A name for what is reached by a path: params['w'][0] -> params_w_0.

    >>> identifier("params['w'][0]"), identifier("lambda")
    ('params_w_0', 'lambda_')
    """
    name = re.sub(r"\W+", "_", text).strip("_") or "x"
    name = f"x{name}" if name[0].isdigit() else name
    reserved = keyword.iskeyword(name) or name in _RESERVED or name.startswith("const_")
    return f"{name}_" if reserved else name


_RESERVED = {"jax", "jnp", "lax", "np", "partial", "_"}


def spell_frames(frames: Sequence[Place]) -> str:
    """`file.py:12 in fun` of frames, innermost first, the user's own preferred."""
    return places.spell(places.own(list(frames)))


def free(wish: str, taken: Container[str]) -> str:
    """The wish, with a number behind it where it is taken.

    >>> free("x", {"x", "x_2"})
    'x_3'
    """
    every = itertools.chain([wish], (f"{wish}_{i}" for i in itertools.count(2)))
    return next(name for name in every if name not in taken)
