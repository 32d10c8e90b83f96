"""Errors that come while a program runs: memory, functions of the host that it calls."""

import re
from collections.abc import Iterator
from typing import Any

from malleable import compat
from malleable.compat import Place
from malleable.inspection import places
from malleable.inspection.advice.evidence import sources
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said, sure
from malleable.inspection.advice.evidence.trouble import Step, Trouble
from malleable.inspection.advice.watching import running
from malleable.inspection.advice.watching.running import Observer
from malleable.programs.equations import every_within
from malleable.programs.types import bytes_of, type_text

# ---------------------------------------------------------------- memory

LARGE = 2**28  # bytes


class Memory(Observer):
    """Keeps in sight the programs that make very large values."""

    def __init__(self):
        self.largest: dict[compat.Jaxpr, int] = {}

    def follows(self, running: compat.Running) -> bool:
        program = running.program
        if program not in self.largest:
            self.largest[program] = max((size for size, *_ in large(program)), default=0)
        return self.largest[program] >= LARGE


def out_of_memory(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    """RESOURCE_EXHAUSTED: the largest value of the program that ran."""
    asked = re.search(r"(?:allocat\w+|allocate) (\d+) ?bytes", trouble.text)
    for program in suspects(trouble, int(asked[1]) if asked else 0):
        values = sorted(large(program), key=lambda found: -found[0])
        if not values:
            continue
        size, kind, place = values[0]
        total = f", of the {spelled_bytes(int(asked[1]))} asked for" if asked else ""
        same = sum(1 for other in values if other[0] == size)
        many = f"; {same} values of the program are as large" if same > 1 else ""
        what = f"the largest value is {kind}, {spelled_bytes(size)}{total}{many}"
        hint = "never hold all of it: work on one row or block at a time with jax.lax.map(f, xs, "
        hint += "batch_size=...) or jax.lax.scan; in a gradient, also put jax.checkpoint around "
        hint += "what is done with one block, so that it is computed again instead of kept"
        return Said(what, hint, place)
    return None


def suspects(trouble: Trouble, asked: int) -> list[compat.Jaxpr]:
    """The programs that may have asked for some memory; if it is not known which, those alone."""
    found = list(programs(trouble))
    if running.runs_of(trouble.error):
        return found
    sizes = {p: max((size for size, *_ in large(p)), default=0) for p in found}
    most = [p for p, size in sizes.items() if size >= LARGE]
    return most if len(most) == 1 else [p for p in most if 2 * sizes[p] >= asked > 0]


def programs(trouble: Trouble) -> Iterator[compat.Jaxpr]:
    """What ran when the error came, the innermost first; else what ran last."""
    runs = running.runs_of(trouble.error)
    yield from (run.program for run in runs)
    block = running.block()
    if not runs and block:
        yield from reversed(block.recent)


def large(program: compat.Jaxpr, outer: tuple = ()) -> Iterator[tuple[int, str, Place | None]]:
    """(bytes, type, line) of every value made in a program."""
    for eqn in program.jaxpr.eqns:
        inside, view = compat.bodies(eqn.params), None
        if inside and not isinstance(view := compat.view(eqn), compat.Opaque):
            for body in inside:
                yield from large(body, (eqn, *outer))
        if not inside or isinstance(view, compat.Opaque | compat.Scan | compat.Map):
            for v in eqn.outvars:
                if hasattr(v.aval, "shape") and hasattr(v.aval, "dtype"):
                    kind = type_text(v.aval)
                    if isinstance(view, compat.Scan):
                        kind += f", stacked over the {view.length} steps of a "
                        kind += f"scan{_body(view.body)}"
                    yield bytes_of(v.aval), kind, places.of(eqn, *outer)


def _body(body: compat.Jaxpr) -> str:
    """` from what `step` returns (file.py:12)`, of the body of a loop."""
    defined = compat.defined(body)
    ends = sources.returns_of(defined) if defined else []
    return f" from what its body returns ({places.spell(ends[-1])})" if ends else ""


def spelled_bytes(n: int) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if n >= size:
            return f"{n / size:.3g} {unit}"
    return f"{n} bytes"


# ---------------------------------------------------------------- functions of the host


def callbacks(told: re.Match, trouble: Trouble, last: Step) -> Said | None:
    """A function that a program calls on the host fails, or does not return what it should."""
    lines = [line for line in trouble.text.splitlines() if line.strip()]
    found = list(host_calls(trouble))
    raised = raised_at(trouble.text)
    if "Incorrect output" in lines[-1] or "Mismatched number of outputs" in lines[-1]:
        return wrong_result(trouble.error, lines[-1], found)
    name = next((n for n, _, fun, _ in found if is_within(fun, sure(raised))), "")
    name = name or (found[0][0] if len(found) == 1 else "a function of the host")
    by = next((p for n, p, *_ in found if n == name), None)
    where = f", called by the callback at {places.spell(by)}" if by else ""
    what = f"`{name}`{where}, runs on the host and raised {lines[-1].strip()}"
    hint = f"correct `{name}` at this line, for the NumPy arrays it is given; what it raises "
    hint += "cannot be caught inside of the traced function, only around the call"
    return Said(what, hint, sure(raised))


def wrong_result(error: BaseException, line: str, found: list) -> Said | None:
    """What the host function returned, and what was promised."""
    expected, actual = re.search(r"Expected: (.+?), Actual: (.+)$", line).groups()  # type: ignore
    fits = [f for f in found if _promises(f, expected)] or found
    sure(len(fits) == 1 or running.runs_of(error))  # else it is one of several that ran before
    name, place, fun, _ = fits[0]
    defined = f" ({places.spell(sources.where_defined(fun))})" if sources.where_defined(fun) else ""
    thing = "shape" if "shape" in line else "dtype" if "dtype" in line else "number of results:"
    number = re.search(r"return value #(\d+)", line)
    which = f", result {number[1]}," if number and number[1] != "0" else ""
    what = f"`{name}`{defined}{which} returned {thing} {actual}, and {thing} {expected} was "
    what += "promised"
    if thing.startswith("number"):
        returned = {"0": "nothing (None)", "1": "1 array"}.get(actual.strip(), f"{actual} arrays")
        were = "was" if expected.strip() == "1" else "were"
        what = f"`{name}`{defined} returned {returned}, and {expected} {were} promised"
    if thing == "shape":
        hint = f"pass jax.ShapeDtypeStruct({actual}, dtype) as result_shape_dtypes, or have "
        hint += f"`{name}` return shape {expected}"
    elif thing == "dtype":
        hint = f"return np.asarray(..., np.{expected}) from `{name}` (`.astype`), or promise "
        hint += f"jax.ShapeDtypeStruct(shape, jnp.{actual}) as result_shape_dtypes"
    else:
        hint = f"return what was promised from `{name}`, or give result_shape_dtypes the structure "
        hint += "of what it returns: a tuple of jax.ShapeDtypeStruct for a tuple, None for nothing"
    return Said(what, hint, place)


def _promises(found, expected: str) -> bool:
    return any(expected in (str(tuple(a.shape)), str(a.dtype)) for a in found[3])


def host_calls(trouble: Trouble) -> Iterator[tuple[str, Place | None, Any, list]]:
    """(name, line of the call, function, types it was promised to return) of the callbacks in the
    programs that ran.
    """
    seen = set()
    for program in programs(trouble):
        for eqn, outer in _callbacks(program):
            fun = compat.host_function(eqn)
            if fun is not None and id(eqn) not in seen:
                seen.add(id(eqn))
                promised = [v.aval for v in eqn.outvars]
                yield sources.name_of(fun), places.of(eqn, *outer), fun, promised


def _callbacks(program: compat.Jaxpr) -> Iterator[tuple]:
    for eqn, outer in every_within(program.eqns):
        if "callback" in eqn.primitive.name or eqn.primitive.name == "debug_print":
            yield eqn, outer


def raised_at(text: str) -> Place | None:
    """The innermost line of user code below a callback, in a traceback that a text quotes."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', text)
    theirs = [i for i, f in enumerate(frames) if not places.is_own(f[0])]
    called = [i for i in theirs if "callback" in frames[i][2]]
    own = [f for f in frames[called[-1] :] if places.is_own(f[0])] if called else []
    if not own:
        return None
    file, line, name = own[-1]
    return Place(file, int(line), name, 0, int(line), 0)


def is_within(fun, place: Place) -> bool:
    """Whether a line is in the source of a function."""
    match sources.definition(fun):
        case node, at:
            last = node.end_lineno or node.lineno
            return at.file == place.file and node.lineno <= place.line <= last
    return False


def host_function(found: re.Match, trouble: Trouble, step: Step) -> dict:
    """The name of the function that a callback calls at a line."""
    calls = sources.calls_on(step.place, "pure_callback", "io_callback", "callback")
    given = sources.argument(calls[0] if calls else None, 0, "callback")
    return {"name": sources.text_of(given) or "the host function"}


def ordered_effects(found: re.Match, trouble: Trouble, step: Step) -> Said | None:
    """A print or a callback in order, on several devices."""
    for program in programs(trouble):
        for eqn, outer in _callbacks(program):
            place = places.of(eqn, *outer)
            calls = sources.calls_on(place, "print", "callback", "io_callback") if place else []
            name = sources.text_of(calls[0].func) if calls else "a callback"
            if eqn.params.get("ordered") or calls:
                what = f"`{name}` is called with ordered=True, in a program that runs on several "
                hint = "write ordered=False, or run it on a single device"
                return Said(f"{what}devices", hint, place)
    return None


def transfers(found: re.Match, trouble: Trouble, step: Step) -> Said:
    """What jax.transfer_guard forbids."""
    way, kind = found.groups()
    runs = running.runs_of(trouble.error)
    for run in runs[-1:]:
        for path, leaf in zip(run.names, run.leaves, strict=True):
            if not isinstance(leaf, compat.HostArray):
                name = running.name_in(step.frame, leaf) or path
                what = f"`{name}` ({kind}, a {type(leaf).__name__}) is moved to the device by this "
                what += "call"
                what += f", as argument `{path}`" if run.own and path != name else ""
                what += ", which jax.transfer_guard forbids"
                hint = f"move it once, before the guarded part: {name} = jax.device_put({name})"
                return Said(what, hint)
    what = f"a {way} transfer of {kind} happens here, which jax.transfer_guard forbids"
    hint = "move the array explicitly, with jax.device_put or jax.device_get, before the guarded "
    hint += "part"
    return Said(what, hint, weight=2.5)


HOST = (
    Diagnosis(r"RESOURCE_EXHAUSTED|[Oo]ut of memory", out_of_memory),
    Diagnosis("allback", callbacks, kind="JaxRuntimeError|XlaRuntimeError|ValueError"),
    Diagnosis(
        r"callbacks? do(?:es)? not support JVP",
        host_function,
        "`{name}` runs on the host, where JAX cannot differentiate it",
        "put the callback of `{name}` into a function with jax.custom_jvp (or jax.custom_vjp) and "
        "give its derivative; or keep gradients out, with jax.lax.stop_gradient around its "
        "operands",
    ),
    Diagnosis(
        "`vmap` ordered",
        host_function,
        "`{name}` is called in order (ordered=True), and examples of a vmap have no order",
        "pass ordered=False to io_callback, or go through the examples with jax.lax.map or scan",
    ),
    Diagnosis(
        "vmap_method",
        host_function,
        "`{name}` runs on the host, and nothing says how to call it for a whole batch",
        'pass vmap_method="sequential" (one call of `{name}` per example), or "broadcast_all" if '
        "it takes a leading batch axis",
    ),
    Diagnosis("ordered effects are not supported for more than 1 device", ordered_effects),
    Diagnosis(r"Disallowed (\S+) transfer.*?(\w+\[[\d,]*\])", transfers),
)
