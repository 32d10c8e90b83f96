"""Calls: static arguments, names that are not there, too few arguments, functions that are none."""

import ast
import difflib
import inspect
import re
from typing import Any

from malleable.compat import Place, frames
from malleable.inspection.advice.evidence import creation, sources
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said, sure, topic
from malleable.inspection.advice.evidence.sources import MISSING, text
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.evidence.wording import a, is_jitted, kind, listed, of_type

_CALLERS = {  # who calls the user's function, and with what
    name: given
    for names, given in (
        (frames.FORI, "(i, value): the index and the carried value"),
        (frames.SCAN, "(carry, x): the carried value and the slice of xs"),
        (frames.WHILE, "(value): one carried value"),
        (frames.COND, "(*operands): the operands of lax.cond"),
        (frames.SWITCH, "(*operands): the operands of lax.switch"),
        (frames.MAP, "(x): one slice of xs"),
        (frames.ASSOCIATIVE, "(a, b): two values to combine"),
        (frames.ROOT, "(x): the value to solve for"),
        (frames.VMAP, "the arguments of the mapped call"),
        (frames.FORWARD_RULE, "the arguments of the function it is the forward rule of"),
        (frames.BACKWARD_RULE, "(residuals, g): what the forward rule kept, and the cotangent"),
    )
    for name in names
}


# ---------------------------------------------------------------- static arguments


def _unhashable(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    step, call = last, sure(sources.call_at(last.place))
    told = re.search(r"object of type <class '(.+?)'>", trouble.text)
    wanted = told[1].rpartition(".")[2] if told else ""
    fun, static, place = _jitted(call, step)
    names = sources.parameters(fun) if fun is not None else []
    shift = isinstance(call.func, ast.Attribute) and names[:1] == ["self"]
    given = [(i + shift, node) for i, node in enumerate(call.args)]
    named = [(names[i] if i < len(names) else f"argument {i}", i, node) for i, node in given]
    named += [(k.arg or "", k.arg, k.value) for k in call.keywords]
    fits = [
        (name, written)
        for name, at, written in named
        if (static is None or {name, at} & static) and _may_be(written, step, wanted)
    ]
    if not fits:
        return _unhashable_self(call, step, wanted)
    name, written = fits[0]
    called = sources.name_of(fun) if fun is not None else text(call.func)
    shown = wanted.replace("ArrayImpl", "jax.Array")
    what = f"`{name}` is a static argument of {called} and is given {a(shown)}, "
    what += f"`{text(written)}`: static arguments are compared by hash, and it has none"
    if place is not None and place.line != step.place.line:
        what += f"\n  it is made static at {here(place)}"
    return Said(what, _hashable(name, wanted, written), step.place)


def _unhashable_self(call: ast.Call, step: Step, wanted: str) -> Said | None:
    """A jitted method whose `self` is static, of a class without a hash."""
    tree = sources.module_of(step.place.file)
    if not isinstance(call.func, ast.Attribute) or tree is None:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == wanted:
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name == call.func.attr:
                    at = (method.decorator_list or [method])[0]
                    what = f"`self`, {a(wanted)} object, is a static argument of {wanted}."
                    what += f"{method.name}: static arguments are compared by hash, and it has none"
                    what += f"\n  it is called at {here(step.place)}"
                    way = f"give {wanted} a hash, e.g. @dataclass(frozen=True), or register it as a"
                    way += " pytree (jax.tree_util.register_dataclass) and drop the static argument"
                    return Said(what, way, sources.place(at, step.place.file, node.name))
    return None


def _jitted(call: ast.Call, step: Step) -> tuple[Any, set | None, Place | None]:
    """(function, names and numbers of its static arguments, where it was jitted) of a call."""
    if isinstance(call.func, ast.Call):  # jax.jit(f, static_argnums=1)(x)
        written = call.func.args[0] if call.func.args else call.func
        names = [n for n in ast.walk(written) if isinstance(n, ast.Name)]
        values = [sources.value(n, step) for n in names]
        fun = next((v for v in reversed(values) if sources.plain(v)), None)
        options = {k.arg: sources.value(k.value, step) for k in call.func.keywords}
        place = None
    else:
        fun = sources.value(call.func, step)
        if fun is MISSING and isinstance(call.func, ast.Attribute):
            owner = sources.value(call.func.value, step)
            fun = inspect.getattr_static(type(owner), call.func.attr, MISSING)
        made = creation.made_by(fun)
        options, place = (made.options, made.place) if made else ({}, None)
        fun = None if fun is MISSING else fun
    said = [options[k] for k in ("static_argnums", "static_argnames") if k in options]
    if not said or any(s is MISSING for s in said):
        return fun, None, place
    static: set = set()
    for one in said:
        static |= set(one) if isinstance(one, tuple | list | set) else {one}
    names = sources.parameters(fun) if fun is not None else []
    static |= {names[i] for i in static if isinstance(i, int) and i < len(names)}
    return fun, static, place


def _may_be(written: ast.expr, step: Step, wanted: str) -> bool:
    """Whether an expression can be what has no hash; of a call, nothing is known."""
    value = sources.value(written, step)
    if value is not MISSING:
        return type(value).__name__ == wanted
    literal = {"list": ast.List, "dict": ast.Dict, "set": ast.Set}.get(wanted)
    comprehension = {"list": ast.ListComp, "dict": ast.DictComp, "set": ast.SetComp}.get(wanted)
    known = [kind for kind in (literal, comprehension) if kind is not None]
    return isinstance(written, (*known, ast.Call, ast.BinOp, ast.Attribute, ast.Subscript))


def _hashable(name: str, kind_told: str, written: ast.expr) -> str:
    shown = text(written)
    if kind_told == "list":
        inner = shown[1:-1] if isinstance(written, ast.List) else None
        if inner:
            return f"pass a tuple: {name}=({inner}{',' * (',' not in inner)})"
        return f"pass a tuple: {name}=tuple({shown})"
    if kind_told == "dict":
        return f"pass a tuple of pairs, tuple(sorted({shown}.items())), or a frozen dataclass"
    if kind_told in ("ndarray", "ArrayImpl", "Array") or "Tracer" in kind_told:
        return (
            f"do not make it static: take `{name}` out of static_argnums / static_argnames, so "
            "that it is traced like any array; only if it has to be static, pass a tuple"
        )
    if kind_told == "set":
        return f"pass a frozenset: {name}=frozenset({shown})"
    return (
        f"give {kind_told} a __hash__ and an __eq__ (a frozen dataclass has both), or pass a tuple"
    )


def _options(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    step = sure(trouble.within(*frames.OPTION_CHECK))
    outer = trouble.within(*frames.JIT_MAKER) or step
    caller = sure(trouble.caller(outer))
    fun = outer.held.fun or step.held.fun
    names, name = sources.parameters(fun), sources.name_of(fun)
    option = step.held.option or "static_argnames"
    given = f"{name}({', '.join(names)})"
    wrong = step.held.unknown
    place = creation.keyword(caller.place, option) or caller.place
    if wrong:
        word = sorted(map(str, wrong))[0]
        near = difflib.get_close_matches(word, names, 1, 0.3)
        what = f"{option} names {word!r}, but {given} has no argument of that name"
        way = f"write {option}={near[0]!r}" if near else f"name one of {listed(names, 'or')}"
        return Said(what, way, place)
    numbers = step.held.argnums
    sure(numbers is not None)
    count = len(names)
    shown = ", ".join(f"{i} is {n}" for i, n in enumerate(names))
    what = f"{option}={numbers!r}, but {given} has {count} positional arguments, counted from 0 "
    what += f"({shown})"
    names_option = option.replace("nums", "names")
    way = f"write {option}={count - 1} for `{names[-1]}`, or by name, {names_option}={names[-1]!r}"
    return Said(what, way if names else "drop it", place)


# ---------------------------------------------------------------- functions and their arguments


def _no_function(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    steps = [s for s in trouble.steps if not s.own and s.name not in frames.RERAISE]
    step = sure([s for s in steps if s.held.among("fun")])[0]
    caller = sure(trouble.caller(step))
    node = sources.expression(caller.place)
    value = step.held.fun
    name = {"vmap": "jax.vmap", "jit": "jax.jit", "grad": "jax.grad"}.get(step.name, step.name)
    call = next((n for n in ast.walk(node) if _first_is_call(n)), None) if node else None
    written = sources.argument(call or node, 0, "fun")
    shown = f"`{text(written)}`" if written is not None else "its first argument"
    what = f"{name} takes a function, but {shown} is {_said(value)}"
    way = f"pass the function, and its arguments afterwards: {name}(f)(x)"
    if isinstance(written, ast.Call):
        inner = ", ".join(map(text, written.args))
        way = f"pass the function without calling it: {name}({text(written.func)})({inner})"
    return Said(what, way, caller.place)


def _first_is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and bool(node.args) and isinstance(node.args[0], ast.Call)


def _said(value: Any) -> str:
    return "its result, " + of_type(value) if hasattr(value, "dtype") else kind(value)


def _arguments(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    told = sure(re.match(r"(?:.*\.)?(\S+?)\(\) (.*)", trouble.text, re.S))
    name, problem = told[1].rpartition(".")[2], told[2]
    by = next((s for s in reversed(trouble.steps) if s.name in _CALLERS and not s.own), None)
    outer = trouble.within(*frames.AROUND_SCAN)
    if outer is not None and by is not None and trouble.caller(outer) is trouble.caller(by):
        by = outer
    fun = _callee(trouble, name)
    if trouble.steps[-1].own or by is None or fun is None:
        return _direct(last, name, problem)
    caller = trouble.caller(by)
    names, place = sources.parameters(fun), sources.where_defined(fun)
    public = _PUBLIC.get(by.name, f"lax.{by.name.strip('_')}")
    more = re.search(r"but (\d+) were given", problem) if by.name in frames.BACKWARD_RULE else None
    if more and int(more[1]) > 2:  # nothing else gives a backward rule more than two
        count = int(more[1]) - 2
        first = "the argument" if count == 1 else f"the {count} arguments"
        what = f"jax.custom_vjp calls {name} with {first} of nondiff_argnums, then the residuals "
        what += f"and the cotangent; but {name} takes ({', '.join(names)}): it {_problem(problem)}"
        what += f"\n  it is passed at {here(caller.place)}" if caller else ""
        lead = [_nondiff(trouble, i) for i in range(count)]
        way = f"let it take them all: def {name}({', '.join([*lead, 'residuals', 'g'])})"
        if len(names) == 2 and not {*lead} & {*names}:
            way = f"let it take them all: def {name}({', '.join([*lead, *names])})"
        return Said(what, way, place or (caller and caller.place))
    what = f"{public} calls {name} with {_CALLERS[by.name]}; but {name} takes ({', '.join(names)})"
    what += f": it {_problem(problem)}"
    if by.name in frames.VMAP and caller is not None:
        missing = re.findall(r"'(\w+)'", problem)
        what += f"\n  it is defined at {here(place)}" if place else ""
        way = f"pass {listed(missing)} too, and give each an entry of in_axes" if missing else ""
        way = way or "pass as many arguments as the function takes"
        return Said(what, way, caller.place)
    what += f"\n  it is passed at {here(caller.place)}" if caller else ""
    return Said(what, _signature(by, fun, name, names), place or (caller and caller.place))


def _nondiff(trouble: Trouble, number: int) -> str:
    """What the function calls one of its arguments of nondiff_argnums, or a name for it."""
    for step in reversed(trouble.steps):
        owner = step.held.owner if step.name == frames.CALL and not step.own else None
        numbers = sorted(getattr(owner, "nondiff_argnums", ()))
        names = sources.parameters(owner) if numbers else []
        if number < len(numbers) and numbers[number] < len(names):
            return names[numbers[number]]
    return f"nondiff{number}"


_PUBLIC = dict.fromkeys(frames.VMAP, "jax.vmap")
_PUBLIC |= dict.fromkeys((*frames.FORWARD_RULE, *frames.BACKWARD_RULE), "jax.custom_vjp")


def _signature(by: Step, fun, name: str, names: list[str]) -> str:
    told = re.match(r"\((\w[\w, ]*)\)", _CALLERS[by.name])
    wanted = told[1].split(", ") if told and by.name not in frames.ROOT else None
    if by.name in frames.BACKWARD_RULE:
        return f"let it take both: def {name}(residuals, {names[-1] if names else 'g'})"
    if by.name in frames.FORWARD_RULE:
        return "let it take the arguments of the function, in the same order"
    if by.name in frames.BRANCHES:
        operands = by.held.operands or ()
        others = [by.held.true_fun, by.held.false_fun]
        more = [sources.parameters(f) for f in others if f is not None and f is not fun]
        fits = [names_of for names_of in more if len(names_of) == len(operands)]
        wanted = fits[0] if fits else [f"x{i}" for i in range(len(operands))]
    if wanted is None:
        return "give the function the arguments it is called with"
    if len(names) < len(wanted):
        unused = wanted[: len(wanted) - len(names)] if by.name in frames.FORI else None
        wanted = [*unused, *names] if unused else [*names, *wanted[len(names) :]]
    elif len(names) > len(wanted) and by.name in {*frames.LOOPS} - {*frames.ASSOCIATIVE}:
        tuple_of = ", ".join(names[len(wanted) - 1 :])
        lead = wanted[:-1]
        if name == "<lambda>":
            parts = ", ".join(f"state[{i}]" for i in range(len(names) - len(lead)))
            return (
                f"take one tuple and index it: lambda {', '.join([*lead, 'state'])}: ..., with "
                f"{parts} for {tuple_of}"
            )
        return (
            f"take one tuple and unpack it: def {name}({', '.join([*lead, 'state'])}): "
            f"{tuple_of} = state"
        )
    listing = ", ".join(wanted)
    made = f"lambda {listing}: ..." if name == "<lambda>" else f"def {name}({listing})"
    fewer = "; or pass fewer operands" if by.name in frames.BRANCHES else ""
    return f"let it take these arguments: {made}{fewer}"


def _callee(trouble: Trouble, name: str) -> Any:
    """The user's function of this name among what JAX's frames hold."""
    for step in reversed(trouble.steps):
        for fun in step.held.functions if not step.own else ():
            function = sources.plain(fun) if callable(fun) else None
            if function is not None and function.__name__ == name:
                return fun
            for rule in (getattr(fun, "fwd", None), getattr(fun, "bwd", None)):
                if getattr(rule, "__name__", None) == name:  # of a custom_vjp
                    return rule
    return None


def _direct(step: Step, name: str, problem: str) -> Said | None:
    """A call in user code of something that JAX made of a function."""
    call = sure(sources.call_at(step.place))
    called = sources.value(call.func, step)
    inner = called if called is not MISSING else None
    if isinstance(call.func, ast.Call) and call.func.args:
        written = [n for n in ast.walk(call.func.args[0]) if isinstance(n, ast.Name)]
        values = [sources.value(n, step) for n in written]
        inner = next((v for v in values if getattr(sources.plain(v), "__name__", "") == name), None)
    else:
        sure(is_jitted(inner) or hasattr(inner, "__wrapped__"))
    inner = sure(inner)
    sure(sources.name_of(inner) == name)  # else the function that is passed on fails
    place: Place | None = sources.where_defined(inner)
    try:
        signature = str(inspect.signature(inner))
    except (TypeError, ValueError):
        signature = "(...)"
    given = [text(a) for a in call.args] + [f"{k.arg}={text(k.value)}" for k in call.keywords]
    what = f"{name}{signature} is called with ({', '.join(given)}): it {_problem(problem)}"
    what += f"\n  it is defined at {here(place)}" if place else ""
    missing = re.findall(r"'(\w+)'", problem) if problem.startswith("missing") else []
    unexpected = re.findall(r"argument '(\w+)'", problem) if "unexpected" in problem else []
    if missing:
        extra = ", ".join(f"{n}=..." for n in missing)
        way = f"pass {listed(missing)} too: {name}({', '.join([*given, extra])}); or give a default"
    elif unexpected:
        near = difflib.get_close_matches(unexpected[0], sources.parameters(inner), 1, 0.3)
        others = listed((f"{n}=" for n in sources.parameters(inner)), "or")
        way = f"write {near[0]}=" if near else f"its arguments are {others}: write one of them"
        way += f" in the place of {unexpected[0]}="
    else:
        way = f"pass the arguments {name}{signature}"
    return Said(what, way, step.place)


def _problem(problem: str) -> str:
    """`lacks 1 required positional argument: 'b'`."""
    return "lacks" + problem.removeprefix("missing") if problem.startswith("missing") else problem


calls = topic(
    Diagnosis("Non-hashable static arguments", _unhashable),
    Diagnosis("static_argnames|static_argnums|donate_arg", _options),
    Diagnosis("Expected a callable value|Expected a function", _no_function),
    Diagnosis(r"\(\) (missing|takes|got an unexpected|got multiple)", _arguments),
)
