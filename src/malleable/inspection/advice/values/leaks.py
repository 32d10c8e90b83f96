"""A traced value kept after its trace: in a list outside, an attribute, a global, a cache."""

import ast
import re
import traceback
from collections.abc import Iterator

from malleable import compat
from malleable.compat import Place, frames
from malleable.inspection import places
from malleable.inspection.advice.evidence import flow, sources
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said, topic
from malleable.inspection.advice.evidence.sources import text
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here

_STORES = {"append", "appendleft", "extend", "add", "insert", "update", "setdefault", "put", "push"}
_STORES |= {"send", "put_nowait", "__setitem__", "__setattr__"}
_RETURNED = {
    "scan": "return it as part of the second result: `return carry, (y, ...)`, which scan stacks",
    "while_loop": "make it a part of the carry, or use lax.scan, which stacks what it returns",
    "fori_loop": "make it a part of the carry, or use lax.scan, which stacks what it returns",
    "cond": "return it from every branch",
    "switch": "return it from every branch",
    "grad": "return it beside the result and use has_aux=True",
}


def _leak(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    """A traced value is used after the function it belongs to has been traced."""
    told = _told(trouble)
    created = re.search(r"created on line (.+?):(\d+)(?::\d+)? \((.+?)\)", trouble.text)
    used, transform = _used(trouble), told[4] if told else _transform(trouble)
    way = _RETURNED.get(transform, "return it from the function and keep what it returns")
    if created is not None and (cached := _cached(created[1], int(created[2]))) is not None:
        name, place = cached
        what = f"{name} keeps its results, and was first called inside of a function that "
        what += f"{transform} traces: what it keeps is a traced value"
        what += f"\n  it is used later, at {here(used[1])}" if used else ""
        way = f"call {name} once before the traced function, or do without the cache in it"
        return Said(what, f"{way}; or pass the value as an argument", place)
    chosen = _chosen(told, created, used, trouble)
    if chosen is not None:
        target, place, value = chosen
        function = told[1] if told else place.function.rpartition(".")[2]
        which = "which" if told else "in what"  # it may be called by what is traced
        kind = f", {which} {transform} traces" if transform else ""
        what = f"`{target}` outlives the call of {function}{kind}, and keeps a traced value, "
        what += f"{value}"
        what += f"\n  it is used later, at {here(used[1])}" if used else ""
        return Said(what, f"{way}; store it outside", place)
    elif created:
        place = Place(created[1], int(created[2]), created[3], 0, int(created[2]), 0)
        what = f"a traced value made here is kept by a side effect of {told[1] if told else 'it'}"
        return Said(what, f"{way}; store it outside", place, 2)
    elif used:
        what = f"`{used[0]}` holds a value of a function that is no longer being traced"
        return Said(what, f"where it is stored, {way}; store it outside", used[1], 1)
    return None


def _told(trouble: Trouble) -> re.Match | None:
    return re.search(
        r"(?:when the value leaked was|while tracing the function) (\S+) at (.+?):(\d+) "
        r"(?:traced )?for (\w+)",
        trouble.text,
    )


def outlived(trouble: Trouble) -> bool:
    """Whether a traced value was asked for, and nothing was being traced when the error came."""
    told = _told(trouble)
    if told is None:
        return trouble.kind in _ASKED and trouble.last is not None and not _within_jax(trouble)
    names = {step.name for step in trouble.steps}
    tracing = any(name.startswith(frames.TRACING) for name in names)
    return not tracing and told[1].rpartition(".")[2] not in names


_ASKED = {"ConcretizationTypeError", "TracerBoolConversionError", "TracerArrayConversionError"}
_ASKED |= {"TracerIntegerConversionError", "NonConcreteBooleanIndexError"}


def _within_jax(trouble: Trouble) -> bool:
    """Whether JAX called, near or far, the line that failed."""
    at = trouble.steps.index(trouble.last) if trouble.last else 0
    before = [step.frame for step in trouble.steps[:at]]
    before += [frame for frame, _ in traceback.walk_stack(trouble.steps[0].frame)][1:]
    return any(f.f_globals.get("__name__", "").startswith("jax.") for f in before)


def _chosen(told, created, used, trouble: Trouble) -> tuple[str, Place, str] | None:
    """The statement that stores the leaked value: (container, place, value)."""
    files = [m[i] for m, i in ((told, 2), (created, 1)) if m]
    files += [step.place.file for step in trouble.own]
    files = [file for file in dict.fromkeys(files) if places.is_own(file)]
    stores = [s for file in files for s in _stores(file)]
    line = (created[1], int(created[2])) if created else None
    made = [s for s in stores if (s[1].file, s[1].line) == line]
    anywhere = [s for s in stores if used is not None and _last(s[0]) == _last(used[0])]
    if told is None:  # nothing says which function was traced: one line alone may have done it
        exact = [s for s in stores if used is not None and used[0] in (s[0], s[3])]
        few = made or exact or anywhere
        return few[0][:3] if len(few) == 1 else None
    inside = [s for s in stores if s[1].file == told[2] and s[1].line in _lines_of(told)]
    named = [s for s in inside if s in anywhere]
    if created and len(named) != 1 and len(inside) > 1:
        inside = [s for s in inside if s[1].line >= int(created[2])] or inside
    exact = [s for s in inside if used is not None and s[3] == used[0]]
    best = exact or named or made or inside or (anywhere if len(anywhere) == 1 else [])
    return best[0][:3] if best else None


def _cached(file: str, line: int) -> tuple[str, Place] | None:
    """(name, decorator) of the function around a line, if it remembers what it returned."""
    tree = sources.module_of(file)
    around = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)] if tree else []
    around = [n for n in around if n.lineno <= line <= (n.end_lineno or 0)]
    inner = max(around, key=lambda n: n.lineno) if around else None
    if inner is None:
        return None
    for decorator in inner.decorator_list:
        names = [getattr(n, "id", getattr(n, "attr", "")) for n in ast.walk(decorator)]
        if {"cache", "lru_cache", "cached_property"} & set(names):
            return inner.name, sources.place(decorator, file, inner.name)
    return None


def _used(trouble: Trouble) -> tuple[str, Place] | None:
    """(expression, place) of the value that is used too late."""
    leaked = _leaked(trouble)
    for step in reversed(trouble.own):
        node = sources.expression(step.place)
        names = [n for n in ast.walk(node) if isinstance(n, ast.Name)] if node is not None else []
        atoms = [*sources.atoms(node), *names] if node is not None else []
        for atom in atoms:
            if _holds(sources.value(atom, step), leaked):
                return text(atom), step.place
    return None


def _leaked(trouble: Trouble):
    """The traced value that JAX stumbled over, where one of its frames still holds it."""
    for step in reversed(trouble.steps):
        for value in step.held.looked_up if not step.own else ():
            if isinstance(value, compat.Tracer):
                return value
    return None


def _holds(value, leaked) -> bool:
    if leaked is None:
        return flow.has_tracer(value)
    inside = value if isinstance(value, list | tuple) else [value]
    inside = list(value.values()) if isinstance(value, dict) else inside
    return any(x is leaked for x in inside)


def _last(name: str) -> str:
    """What two names for one container share: `history` of `history[0]`, `x` of `self.x`."""
    return re.sub(r"\[.*", "", name).rpartition(".")[2]


def _lines_of(told) -> range:
    """The lines of the function that was being traced."""
    tree, line = sources.module_of(told[2]), int(told[3])
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, sources.Function):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            if line in (first, node.lineno):
                return range(first, (node.end_lineno or node.lineno) + 1)
    return range(line, line + 1)


def _stores(file: str) -> list[tuple[str, Place, str, str]]:
    """(container, place, value, target) wherever a function writes to something outside of it."""
    tree, found = sources.module_of(file), []
    for function in ast.walk(tree) if tree else ():
        if isinstance(function, sources.Function):
            nodes, local = list(sources.own_nodes(function)), _locals(function)
            for node in nodes:
                for target, value in _written(node, local):
                    if isinstance(value, ast.Constant) and not isinstance(node, ast.AugAssign):
                        continue  # None, 0: no traced value
                    name = getattr(function, "name", "<lambda>")
                    where = sources.place(node, file, name)
                    written = getattr(node, "targets", [target])[0]
                    found.append((text(target), where, f"`{text(value)}`", text(written)))
    return sorted(found, key=lambda store: store[1].line)


def _locals(function) -> set[str]:
    """The names that belong to a function itself; what it is given may live on."""
    nodes = list(sources.own_nodes(function))
    outside = {n for x in nodes if isinstance(x, ast.Nonlocal | ast.Global) for n in x.names}
    made = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return made - outside


def _written(node: ast.AST, local: set[str]) -> Iterator[tuple[ast.expr, ast.expr]]:
    match node:
        case ast.Call(func=ast.Attribute(value=target, attr=attr), args=[*args]):
            if attr in _STORES and args and _base(target) not in local:
                yield target, args[-1]
        case ast.Call(func=ast.Name(id="setattr"), args=[target, ast.Constant(value=attr), value]):
            yield ast.Attribute(target, str(attr), ast.Load()), value
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _assigned(target, value, local)
        case ast.AugAssign(target=target, value=value):
            yield from _assigned(target, value, local)
        case ast.AnnAssign(target=target, value=value) if value is not None:
            yield from _assigned(target, value, local)


def _assigned(target: ast.expr, value: ast.expr, local: set[str]):
    if isinstance(target, ast.Tuple | ast.List):
        for one in target.elts:
            yield from _assigned(one, value, local)
    elif _base(target) not in local:
        yield (target.value if isinstance(target, ast.Subscript) else target), value


def _base(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _transform(trouble: Trouble) -> str:
    if "LinearizeTracer" in trouble.text or "JVPTracer" in trouble.text:
        return "grad"
    return "vmap" if "BatchTracer" in trouble.text else ""


def _outlived(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    return _leak(found, trouble, last) if outlived(trouble) else None


leaks = topic(Diagnosis("", _leak, kind="UnexpectedTracerError"), Diagnosis("", _outlived))
