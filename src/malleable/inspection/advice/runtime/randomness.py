"""Random keys that are used twice, under `jax.debug_key_reuse`, or are not keys."""

import ast
import re
from typing import Any

import jax
import numpy as np

from malleable import compat
from malleable.inspection import places
from malleable.inspection.advice.evidence import sources, tried
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said, sure
from malleable.inspection.advice.evidence.tried import Rewrite
from malleable.inspection.advice.evidence.trouble import Step, Trouble
from malleable.inspection.advice.hint import Advice, Way
from malleable.inspection.advice.runtime import checks
from malleable.inspection.advice.watching import keys, running
from malleable.programs.types import is_key


def reused_keys(found: re.Match, trouble: Trouble, step: Step) -> Said | None:
    """KeyReuseError: which key, and where it was used before."""
    held = [v for s in trouble.steps if s.jax for v in list(s.values.values())]
    programs = [run.program for run in running.runs_of(trouble.error)]
    for program in (*programs, *(v for v in held if isinstance(v, compat.Jaxpr))):
        uses = [use for use in keys.read(program).uses if use.place]
        own = [use for use in uses if use.place and places.is_own(use.place.file)]
        for first, second in keys.clashes(own):
            return _said(keys.inside(first, second))
    place = step.place
    name, block = sure(keys.asked(place)), running.block()
    used = block.find(keys.Keys).used.values() if block else ()
    for use in used:
        if use.place != place and holds(step, name, use.key):
            return _said(keys.twice(name, use.place, place))
    what = f"`{name}` has been used before: drawing from it again gives numbers that depend"
    hint = f"`{name}, sub = jax.random.split({name})` before each use, and use `sub`; or "
    hint += f"jax.random.fold_in({name}, n) with another n each time"
    return Said(what, hint, place, 2.5)


def _said(advice: Advice) -> Said:
    return Said(advice.what, advice.hint, advice.where)


def holds(step: Step, name: str, key) -> bool:
    """Whether a variable of a frame is a key that was remembered."""
    value = step.values.get(name, step.frame.f_globals.get(name))
    return compat.key_numbers(value) is key or value is key


# ---------------------------------------------------------------- what is not a key


def not_a_key(found: re.Match, trouble: Trouble, step: Step) -> tuple[str, str] | None:
    """Something else, where a key belongs."""
    call: Any = next((c for c in sources.calls_on(step.place, *_SAMPLERS)), None)
    node = sure(sources.argument(call, 0, "key"))
    name, function = sources.text_of(node), sources.text_of(call.func)
    value = sources.value(node, step)
    if value is sources.MISSING and isinstance(node, ast.Subscript):
        value = item(node, step)
    is_number = isinstance(value, int | np.integer)
    got = f"{value!r}, an int" if is_number else described(value)
    what = f"`{name}` is {got}, and `{function}` needs a random key"
    others = [a for a in [*call.args[1:], *(k.value for k in call.keywords)] if named_key(a, step)]
    if others:
        key = sources.text_of(others[0])
        hint = f"the key comes first: {function}({key}, {name})"
    elif isinstance(node, ast.Subscript) and getattr(value, "dtype", None) == np.uint32:
        whole = sources.text_of(node.value)
        what += f" (`{whole}`, of shape (2,), is one key as it is)"
        hint = f"pass `{whole}`; for several keys, keys = jax.random.split({whole}, n) and keys[0]"
    else:
        made = name if is_number else "0"
        hint = f"make a key of a seed once, `key = jax.random.key({made})`, and pass `key` first, "
        hint += f"as {function}(key, ...) (an old-style key, jax.random.PRNGKey(0), is a uint32 "
        hint += "array of shape (2,))"
    return what, hint


def not_a_shape(found: re.Match, trouble: Trouble, step: Step) -> tuple[str, tuple[Way, ...]]:
    """jax.random.normal(key, x): an array where its shape belongs."""
    call: Any = sure(next(iter(sources.calls_on(step.place, *_SAMPLERS)), None))
    node = sure(sources.argument(call, 1, "shape"))
    value, name = sources.value(node, step), sources.text_of(node)
    sure(hasattr(value, "shape") and hasattr(value, "dtype") and len(value.shape) > 1)
    what = f"`{name}` is {described(value)}, and `{sources.text_of(call.func)}` takes a shape there"
    new = f"{tried.closed(node)}.shape"
    return what, (tried.way(Rewrite(f"write {new}", node, new), step, values=False),)


def item(node: ast.Subscript, step: Step) -> Any:
    """An element of an array, by a number."""
    whole, index = sources.value(node.value, step), sources.value(node.slice, step)
    if not isinstance(whole, jax.Array) or isinstance(whole, compat.Tracer):
        return sources.MISSING
    return jax.ShapeDtypeStruct(whole.shape[1:], whole.dtype) if isinstance(index, int) else None


def named_key(node: ast.expr, step: Step) -> bool:
    return is_key(value := sources.value(node, step)) or is_old_key(value)


def is_old_key(x: Any) -> bool:
    return getattr(x, "dtype", None) == np.uint32 and getattr(x, "shape", None) == (2,)


def seeds(found: re.Match, trouble: Trouble, step: Step) -> Said | None:
    """jax.random.key(1.5)."""
    call = sure(sources.calls_on(step.place, "key", "PRNGKey", "seed"))[0]
    node = sure(sources.argument(call, 0, "seed"))
    value, name = sources.value(node, step), sources.text_of(node)
    kind = type(value).__name__ if value is not sources.MISSING else "no integer"
    if hasattr(value, "dtype"):
        kind = f"an array of {value.dtype}"
    kind, function = kind if " " in kind else f"a {kind}", sources.text_of(call.func)
    what = f"the seed `{name}` is {kind}, and `{function}` needs an integer"
    return Said(what, f"pass an int: {function}(int({name}))", weight=3)


def converted(found: re.Match, trouble: Trouble, step: Step) -> tuple[str, str]:
    """np.asarray(key)."""
    used = checks.names(sources.expression_at(step.place))
    names = [n for n in used if is_key(step.values.get(n))]
    name = names[0] if names else "the key"
    what = "a random key cannot become a NumPy array"
    if names:
        key = jax.typeof(step.values[name])
        what = f"`{name}` is a random key ({key}), which NumPy cannot hold"
    hint = f"take its bits, np.asarray(jax.random.key_data({name})); jax.random.wrap_key_data "
    return what, f"{hint}undoes it"


def many_keys(found: re.Match, trouble: Trouble, step: Step) -> Said | None:
    """Several keys, where one belongs."""
    call: Any = next((c for c in sources.calls_on(step.place, *_SAMPLERS)), None)
    node = sure(sources.argument(call, 0, "key"))
    name, function, shape = sources.text_of(node), sources.text_of(call.func), found[1]
    rest = [sources.text_of(a) for a in call.args[1:]]
    inside = ", ".join(["k", *rest, *(ast.unparse(k) for k in call.keywords if k.arg != "key")])
    what = f"`{name}` holds several keys, with shape {shape}, and `{function}` takes one, of shape "
    what += "()"
    if shape.endswith(", 2)"):
        what += " (an old-style key: of shape (2,))"
    hint = f"use one of them, `{name}[0]`, or map over them: "
    return Said(what, f"{hint}jax.vmap(lambda k: {function}({inside}))({name})", weight=3)


def arithmetic(found: re.Match, trouble: Trouble, step: Step) -> Said | None:
    """A key, where numbers belong."""
    names = [n for n, v in step.values.items() if is_key(v)]
    node = sure(sources.expression_at(step.place))
    used = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    name = sure([n for n in names if n in {one.id for one in used}])[0]
    what = f"`{name}` is a random key, a value of its own kind ({jax.typeof(step.values[name])}), "
    what += f"and `{sources.text_of(node)}` treats it as numbers"
    whole = [n for n in used if is_whole(sources.value(n, step))]
    number = whole[0].id if whole else "i"
    new = f"jax.random.fold_in({name}, {number})"
    others = f"for several, jax.random.split({name}, n); for its bits, jax.random.key_data({name})"
    first: str | Rewrite = f"for a key that depends on a number write {new}"
    if isinstance(node, ast.BinOp) and len(whole) == 1 and name == sources.text_of(node.left):
        first = Rewrite(first, node, new)
    return Said(what, (tried.way(first, step, values=False), Way(others)), weight=3)


def is_whole(x: Any) -> bool:
    """Whether this is one whole number."""
    kind = getattr(getattr(x, "dtype", None), "kind", "i" if type(x) is int else "")
    return kind in ("i", "u") and np.shape(x) == ()


def unpacking(found: re.Match, trouble: Trouble, step: Step) -> tuple[str, str] | None:
    """`a, b, c = jax.random.split(key)`."""
    call = sure(sources.calls_on(step.place, "split"))[0]
    statement = sure(sources.on_line(step.place, ast.Assign))[0]
    names = sure(getattr(statement.targets[0], "elts", None))
    sure("random" in sources.text_of(call.func))
    count = len(names)
    key = sources.text_of(sources.argument(call, 0, "key"))
    number = sources.argument(call, 1, "num")
    given = sources.text_of(number) if number else "2"
    what = f"jax.random.split makes {given} keys of `{key}` here, and {count} names are on the left"
    return what, f"write jax.random.split({key}, {count})"


_SAMPLERS = tuple(name for name in dir(jax.random) if not name.startswith("_"))


def described(x: Any) -> str:
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"an array of {x.dtype} with shape {tuple(x.shape)}"
    return "no key" if x is sources.MISSING or x is None else f"a {type(x).__name__}"


KEYS = (
    Diagnosis("", reused_keys, kind="KeyReuseError"),
    Diagnosis("PRNG key data|unexpected PRNG key type|random key", not_a_key),
    Diagnosis("^Shapes must be 1D sequences of concrete values of integer type", not_a_shape),
    Diagnosis(r"accepts a single key, but was given a key array of shape (\(.*?\))", many_keys),
    Diagnosis(r"key<\w+>", arithmetic),
    Diagnosis("(?:too many|not enough) values to unpack", unpacking),
    Diagnosis("seed must be an integer", seeds),
    Diagnosis("PRNGKey dtype cannot be converted", converted),
)
