"""Where a value comes from: from its use back through assignments and calls to an argument."""

import ast
from dataclasses import dataclass

from malleable import compat
from malleable.compat import Place
from malleable.inspection.advice.evidence import sources
from malleable.inspection.advice.evidence.sources import MISSING
from malleable.inspection.advice.evidence.trouble import Step, Trouble


@dataclass(frozen=True)
class Origin:
    """The argument a value depends on, of which function, and the lines on the way to its use."""

    argument: str
    function: str
    step: Step
    lines: tuple[tuple[str, Place], ...]


def traced(node: ast.AST, step: Step) -> list[ast.expr]:
    """The names in an expression whose values are being traced; all of them if none is known."""
    found = {sources.text(atom): atom for atom in sources.atoms(node)}
    pairs = [(atom, sources.value(atom, step)) for atom in found.values()]
    known = [atom for atom, value in pairs if has_tracer(value)]
    return known or [atom for atom, value in pairs if value is MISSING]


def has_tracer(value) -> bool:
    """Whether a value is traced, or holds one that is (in lists and dictionaries, one level)."""
    if isinstance(value, list | tuple):
        return any(isinstance(v, compat.Tracer) for v in value)
    if isinstance(value, dict):
        return any(isinstance(v, compat.Tracer) for v in value.values())
    return isinstance(value, compat.Tracer)


def origins(node: ast.AST, step: Step, trouble: Trouble) -> list[Origin]:
    """The arguments of the traced function that an expression depends on."""
    names = list(dict.fromkeys(n.id for n in ast.walk(node) if isinstance(n, ast.Name)))
    return _from_names(names, step, trouble, ())


def _from_names(names, step: Step, trouble: Trouble, lines) -> list[Origin]:
    found = sources.body_of(step.frame.f_code)
    if found is None:  # a comprehension has a frame of its own up to Python 3.11
        outer = _caller(step, trouble)
        inner = outer is not None and step.name in ("<listcomp>", "<genexpr>", "<dictcomp>")
        return _from_names(names, outer, trouble, lines) if outer and inner else []
    function, at = found
    wanted, seen, reached = list(names), set(), []
    params = {a.arg for a in sources.arguments(function)}
    while wanted:
        name = wanted.pop(0)
        if name in seen:
            continue
        seen.add(name)
        if name in params and has_tracer(step.values.get(name, MISSING)):
            reached.append(name)
        for statement, value in _assignments(function, name, step.place.line):
            lines = (*lines, (name, sources.place(statement, at.file, at.function)))
            inner = [n.id for n in ast.walk(value) if isinstance(n, ast.Name)]
            wanted += [n for n in inner if _may_matter(n, step)]
    caller = _caller(step, trouble)
    origins: list[Origin] = []
    for name in reached:
        call = sources.expression(caller.place) if caller else None
        given = _given(call, name, function) if isinstance(call, ast.Call) else None
        outer = []
        if caller is not None and given is not None:
            inner = [n.id for n in ast.walk(given) if isinstance(n, ast.Name)]
            outer = _from_names(inner, caller, trouble, (*lines, (name, caller.place)))
        origins += outer or [Origin(name, at.function.rpartition(".")[2], step, lines)]
    return origins


def _may_matter(name: str, step: Step) -> bool:
    value = step.values.get(name, MISSING)
    return value is MISSING or has_tracer(value) or isinstance(value, dict | list | tuple)


def _assignments(function, name: str, line: int):
    """(statement, value) of what assigns a name before a line; in a loop, anywhere in it."""
    body = sources.own_nodes(function)
    for node in body:
        match node:
            case ast.Assign(targets=targets, value=value):
                names = [n for t in targets for n in ast.walk(t)]
            case ast.AugAssign(target=target, value=value) | ast.For(target=target, iter=value):
                names = list(ast.walk(target))
            case ast.AnnAssign(target=target, value=value) if value is not None:
                names = list(ast.walk(target))
            case _:
                continue
        looped = any(isinstance(p, ast.For | ast.While) for p in sources.parents(node))
        stored = any(isinstance(n, ast.Name) and n.id == name for n in names)
        if stored and (node.lineno <= line or looped):
            yield node, value


def _caller(step: Step, trouble: Trouble) -> Step | None:
    """The step that called this one, if it is the user's own and nothing of JAX is between."""
    at = trouble.steps.index(step)
    before = trouble.steps[at - 1] if at else None
    return before if before is not None and before.own else None


def _given(call: ast.Call, name: str, function) -> ast.expr | None:
    """The expression that a call passes for a parameter."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [a.arg for a in sources.arguments(function)]
    if names[:1] == ["self"] and isinstance(call.func, ast.Attribute):
        names = names[1:]
    if any(isinstance(arg, ast.Starred) for arg in call.args) or name not in names:
        return None
    at = names.index(name)
    return call.args[at] if at < len(call.args) else None
