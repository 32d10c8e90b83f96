"""Python asks for a value that is only traced: `if x > 0`, `range(n)`, `np.sin(x)`, `x[m]`."""

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from malleable.compat import Place, frames
from malleable.inspection import places
from malleable.inspection.advice.evidence import creation, flow, sources, tried, wording
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said, sure, topic
from malleable.inspection.advice.evidence.sources import MISSING
from malleable.inspection.advice.evidence.trouble import Step, Trouble
from malleable.inspection.advice.evidence.wording import listed
from malleable.inspection.advice.hint import Way
from malleable.inspection.advice.values import needs
from malleable.inspection.advice.values.leaks import outlived
from malleable.inspection.advice.values.needs import Need

MANY = 5  # arguments that a value depends on and that are named

_TELLTALE = {
    "TracerBoolConversionError": r"",
    "TracerIntegerConversionError": r"",
    "TracerArrayConversionError": r"",
    "ConcretizationTypeError": r"",
    "NonConcreteBooleanIndexError": r"",
    "TypeError": r"^Shapes must be 1D.*Tracer|format string passed to \w*Tracer"
    r"|unhashable type: '\w*Tracer'|iteration over a 0-d array|cannot be interpreted as an integer"
    r"|only integer scalar arrays can be conv",
    "IndexError": r"^Slice entries must be static|slice indices must have static",
    "KeyError": r"Tracer\(|Traced<",
    "ValueError": r"^setting an array element with a sequence\.$",
}


def _asked(met: re.Match, trouble: Trouble, step: Step) -> Said:
    """A traced value where Python, NumPy or a shape needs a known one."""
    pattern, told = _TELLTALE.get(trouble.kind), told_arguments(trouble)
    sure(pattern is not None and not outlived(trouble))  # else it has leaked out of its trace
    weight = 3.0 if re.search(pattern or "", trouble.text) else 1.5
    sure(weight == 3 or re.search(r"not \w*Tracer|got \w*Tracer|Traced<", trouble.text))
    need = needs.need(sure(sources.expression(step.place)), step, trouble)
    asked = need.of or (need.at,)
    atoms = every = [atom for part in asked for atom in flow.traced(part, step)]
    if told is not None and len(atoms) > 1:
        atoms = [a for a in atoms if _is_told(a, told[1], step, trouble)] or atoms
    if need.number:
        atoms = [a for a in atoms if getattr(sources.value(a, step), "shape", ()) == ()] or atoms
    names = list(dict.fromkeys(map(sources.text, atoms)))
    origins = _origins(atoms or asked, step, trouble)
    many = len(names) > 1
    sure(told or any(flow.has_tracer(sources.value(atom, step)) for atom in atoms))
    state = "are traced: their values are" if many else "is traced: its value is"
    what = f"{need.what} {listed(names) if names else 'this'}, which {state} not known yet"
    what += _depends(origins, trouble)
    place = sources.place(need.at, step.place.file, step.place.function)
    static = [*_static(need, origins, trouble)]
    if len(every) > len(atoms) and any(way.tried() is False for way in static if way.tried):
        static = [*_static(need, _origins(every, step, trouble), trouble)]
    hints = [*_reduced(need, trouble), *(tried.way(way, step) for way in need.ways)]
    return Said(what, (*hints, *static), place, weight)


def _reduced(need: Need, trouble: Trouble) -> Iterator[Way]:
    """Which of many truth values is meant, if there are many."""
    found = re.match(
        r"Attempted boolean conversion of traced array with shape \w+\[(\d[\d,]*)\]", trouble.text
    )
    if found is not None:
        shown = sources.text(need.at)
        way = f"there are many truth values, of shape ({found[1]}): take jnp.all({shown}) or "
        yield Way(f"{way}jnp.any({shown}), or choose element by element")


def _truth(met: re.Match, trouble: Trouble, step: Step) -> tuple[str, tuple[Way, ...]]:
    """Python asks a known array of many elements whether it is true."""
    asked = needs.truth(sure(sources.expression(step.place)))
    names = [sources.text(atom) for atom in sources.atoms(asked.at)]
    shapes = [wording.shape_of(sources.value(atom, step)) for atom in sources.atoms(asked.at)]
    pairs = dict(zip(names, shapes, strict=True)).items()
    shown = ", ".join(f"`{n}` has shape {shape}" for n, shape in pairs if shape)
    at = sources.text(asked.at)
    what = f"{asked.what.replace(' from', '')}, and `{at}` is an array of many: {shown}"
    ways = [tried.way(way, step, values=False) for way in asked.ways]
    joined = isinstance(asked.at, ast.BoolOp | ast.UnaryOp)
    if not joined and getattr(asked.at, "ops", [0])[1:] == []:
        ways.insert(0, Way(f"say which is meant: jnp.all({at}) or jnp.any({at})"))
    return what, tuple(ways)


concrete, truths = topic(Diagnosis("", _asked)), topic(Diagnosis("truth value of an array", _truth))


def _is_told(atom: ast.AST, told: list[str], step: Step, trouble: Trouble) -> bool:
    """Whether JAX says that the value depends on the arguments this one depends on."""
    roots = {re.split(r"[\[.]", name)[0] for name in told}
    return any(origin.argument in roots for origin in _origins([atom], step, trouble))


def _origins(nodes: Sequence[ast.AST], step: Step, trouble: Trouble) -> list[flow.Origin]:
    found: dict = {}
    for origin in (o for node in nodes for o in flow.origins(node, step, trouble)):
        found.setdefault((origin.argument, origin.function), origin)
    return list(found.values())


def _depends(origins: list[flow.Origin], trouble: Trouble) -> str:
    """`; it depends on the argument x of f, through y = ... (line 3)`."""
    by_function: dict[str, list[str]] = {}
    for origin in origins:
        by_function.setdefault(origin.function, []).append(origin.argument)
    if not by_function:
        told = told_arguments(trouble)
        by_function = {told[0]: list(told[1])} if told else {}
    if not by_function:
        return ""
    parts = []
    for function, names in by_function.items():
        word = "argument" if len(names) == 1 else "arguments"
        names = names if len(names) <= MANY else [*names[: MANY - 1], "more"]
        parts.append(f"the {word} {wording.listed(names, quote='')} of {function}")
    lines = list(dict.fromkeys(line for origin in origins for line in origin.lines))
    lines = sorted(lines, key=lambda line: line[1].line)[:3]
    way = ", ".join(f"`{name}` ({places.spell(place)})" for name, place in lines)
    return f"\n  it depends on {' and '.join(parts)}" + (f", by way of {way}" if way else "")


def told_arguments(trouble: Trouble) -> tuple[str, list[str], str] | None:
    """(function, arguments, transformation) that JAX's own text says a value depends on."""
    found = re.search(
        r"tracing the function (\S+) .*?for (\w+)\."
        r".*?values? of the arguments? ([^\n]*?)\.(?=\s|$)",
        trouble.text,
        re.S,
    )
    if found is None:
        return None
    names = re.split(r", and |, | and ", found[3])
    return found[1], [name for name in names if name], found[2]


def _static(need: Need, origins: list[flow.Origin], trouble: Trouble) -> Iterator[Way]:
    """`jax.jit(f, static_argnames='n')`, where the argument is a number that a jit was given."""
    if not need.static:
        return
    jit = trouble.within(*frames.JIT)
    if jit is None or any(o.step.values.get(o.argument) is MISSING for o in origins):
        return
    fun = jit.held.fun
    told = told_arguments(trouble)
    if fun is None or (told is not None and told[2] not in ("jit", "pjit")):
        return
    known, scalars = set(sources.parameters(fun)), _scalars(fun, jit)
    names = [o.argument for o in origins if o.function == sources.name_of(fun)]
    names = list(dict.fromkeys(names or (told[1] if told else [])))
    names = [re.split(r"[\[.]", name)[0] for name in names]
    if not names or not set(names) <= known & scalars:
        return
    if need.static == "whole" and not _whole(fun, jit, names):
        return
    made = creation.how(("jit",), fun)
    known_options = made.options if made is not None else _options(fun, jit)
    options = _marked(sources.parameters(fun), names, known_options)
    static = ", ".join(f"{name}={value!r}" for name, value in options.items())
    place = made.place if made is not None else creation.find("jit", fun, trouble)
    where = f" (at {places.spell(place)})" if place is not None else ""
    call = f"{_spelled(place)}({sources.name_of(fun)}, {static})"
    if sources.parameters(fun)[:1] == ["self"]:
        call = f"{static} in its jax.jit"
    args, kwargs = jit.held.args or (), jit.held.kwargs or {}
    edits = tried.optioned(place, static)
    text = f"mark it static, {call}{where}, which compiles anew for every value"
    trace = lambda: jax.jit(fun, **options).trace(*args, **kwargs)  # noqa: E731
    yield Way(text, edits, lambda: tried.succeeds(fun, trace))


def _spelled(place: Place | None) -> str:
    """`nnx.jit`, as it stands at a place that applies one; usually `jax.jit`."""
    node: Any = sources.expression(place) if place is not None else None
    shown = sources.text(node.func if isinstance(node, ast.Call) else node) if node else ""
    return shown if shown.endswith(".jit") else "jax.jit"


def _marked(parameters: list[str], names: list[str], options: dict) -> dict:
    """The options of a jit with more static arguments; JAX adds what follows from the one given.

    >>> _marked(["x", "n", "m"], ["m"], {}), _marked(["x", "n", "m"], ["m"], {"static_argnums": 1})
    ({'static_argnames': 'm'}, {'static_argnums': (1, 2)})
    >>> _marked(["x", "n", "m"], ["m"], {"static_argnums": 1, "static_argnames": "n"})
    {'static_argnums': (1, 2), 'static_argnames': ('n', 'm')}
    """
    numbers, called = (_listed(options.get(k)) for k in ("static_argnums", "static_argnames"))
    called, more = [*called, *names], [parameters.index(name) for name in names]
    if not numbers:
        return {"static_argnames": _one_or_many(called)}
    static = {"static_argnums": _one_or_many([*numbers, *more])}
    named = {"static_argnames": _one_or_many(called)} if "static_argnames" in options else {}
    return static | named


def _options(fun, jit: Step) -> dict:
    """The static arguments of a jit as JAX knows them, by number and name or one of these."""
    info = jit.held.jit_info
    numbers = list(getattr(info, "static_argnums", None) or ())
    names = list(getattr(info, "static_argnames", None) or ())
    parameters = sources.parameters(fun)
    if not numbers:
        return {"static_argnames": names} if names else {}
    if all(0 <= i < len(parameters) for i in numbers):
        inferred = sorted(parameters[i] for i in numbers) == sorted(names)
        return {"static_argnums": numbers} | ({} if inferred else {"static_argnames": names})
    return {"static_argnums": numbers, "static_argnames": names}


def _one_or_many(many: list) -> Any:
    return many[0] if len(many) == 1 else tuple(many)


def _listed(option) -> list:
    """The entries of an option that may be one."""
    return [] if option is None else [option] if isinstance(option, int | str) else list(option)


def _given(fun, jit: Step) -> dict:
    """What a jitted function was called with, by parameter."""
    args, kwargs = jit.held.args, jit.held.kwargs
    return dict(zip(sources.parameters(fun), args or (), strict=False)) | (kwargs or {})


def _scalars(fun, jit: Step) -> set[str]:
    """The parameters that were passed a single number."""
    given = _given(fun, jit).items()
    return {name for name, x in given if wording.shape_of(x) == () or _is_shape(x)}


def _is_shape(x) -> bool:
    return isinstance(x, tuple | list) and all(isinstance(n, int) for n in x)


def _whole(fun, jit: Step, names: list[str]) -> bool:
    given = _given(fun, jit)
    return all(jax.numpy.result_type(given[name]).kind in "biu" for name in names)
