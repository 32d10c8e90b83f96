"""Random keys that are used twice, under `jax.debug_key_reuse`, or are no keys."""

import ast
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.inspection import places
from malleable.inspection.advice.evidence import sources, syntax, tried
from malleable.inspection.advice.evidence.tried import Rewrite
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.hint import Advice, Way
from malleable.inspection.advice.runtime import checks
from malleable.inspection.advice.watching import keys, running


def reused_keys(trouble: Trouble) -> Iterator[Advice]:
    """KeyReuseError: which key, and where it was used before."""
    if trouble.kind != "KeyReuseError" or trouble.last is None:
        return
    for run in running.runs_of(trouble.error):
        uses = [use for use in keys.read(run.program).uses if use.place]
        own = [use for use in uses if use.place and places.is_own(use.place.file)]
        for first, second in keys.clashes(own):
            yield heavy(keys.inside(first, second))
            return
    place = trouble.last.place
    for step in trouble.steps:  # while a program is being checked, before it runs
        for value in list(step.values.values()) if step.jax else ():
            if isinstance(value, compat.Jaxpr):
                for first, second in keys.clashes(own_uses(value)):
                    yield heavy(keys.inside(first, second))
                    return
    name = keys.asked(place)
    block = running.block()
    before = None
    if block:
        used = block.find(keys.Keys).used.values()
        held = [u.place for u in used if name and holds(trouble.last, name, u.key)]
        before = next((p for p in held if p != place), None)
    if before is not None:
        yield heavy(keys.twice(name, before, place))
    elif name:
        what = f"`{name}` has been used before: drawing from it again gives numbers that depend"
        yield Advice(what, here(place), hint(name), weight=2.5)


def own_uses(program) -> list:
    found = keys.read(program).uses
    return [use for use in found if use.place and places.is_own(use.place.file)]


def heavy(advice: Advice) -> Advice:
    return Advice(advice.what, advice.where, advice.hint, weight=4)


def holds(step: Step, name: str, key) -> bool:
    """Whether a variable of a frame is a key that was remembered."""
    value = step.values.get(name, step.frame.f_globals.get(name))
    return compat.key_numbers(value) is key or value is key


def hint(name: str) -> str:
    return (
        f"`{name}, sub = jax.random.split({name})` before each use, and use `sub`; or "
        f"jax.random.fold_in({name}, n) with another n each time"
    )


# ---------------------------------------------------------------- what is no key


def wrong_keys(trouble: Trouble) -> Iterator[Advice]:
    """Something else than one key, where a key belongs; or a key where numbers belong."""
    step = trouble.last
    if step is None:
        return
    call = next((c for c in syntax.calls_on(step.place, *_SAMPLERS)), None)
    text = trouble.text
    if "PRNG key data" in text or "unexpected PRNG key type" in text or "random key" in text:
        yield from not_a_key(trouble, step, call)
    elif "accepts a single key" in text:
        yield from many_keys(trouble, step, call)
    elif re.search(r"key<\w+>", text):
        yield from arithmetic(trouble, step)
    else:
        yield from unpacking(trouble, step)


def not_a_key(trouble: Trouble, step: Step, call) -> Iterator[Advice]:
    node = syntax.argument(call, 0, "key")
    if node is None:
        return
    name, function = syntax.text_of(node), syntax.text_of(call.func)
    value = sources.value(node, step)
    if value is sources.MISSING and isinstance(node, ast.Subscript):
        value = item(node, step)
    is_number = isinstance(value, int | np.integer)
    got = f"{value!r}, an int" if is_number else described(value)
    what = f"`{name}` is {got}, and `{function}` needs a random key"
    others = [a for a in [*call.args[1:], *(k.value for k in call.keywords)] if named_key(a, step)]
    if others:
        key = syntax.text_of(others[0])
        hint = f"the key comes first: {function}({key}, {name})"
    elif isinstance(node, ast.Subscript) and getattr(value, "dtype", None) == np.uint32:
        whole = syntax.text_of(node.value)
        what += f" (`{whole}`, of shape (2,), is one key as it is)"
        hint = f"pass `{whole}`; for several keys, keys = jax.random.split({whole}, n) and keys[0]"
    else:
        made = name if is_number else "0"
        hint = (
            f"make a key of a seed once, `key = jax.random.key({made})`, and pass `key` first, as "
            f"{function}(key, ...) (an old-style key, jax.random.PRNGKey(0), is a uint32 array of "
            "shape (2,))"
        )
    yield Advice(what, here(step.place), hint, weight=4)


def item(node: ast.Subscript, step: Step) -> Any:
    """An element of an array, by a number."""
    whole, index = sources.value(node.value, step), sources.value(node.slice, step)
    if isinstance(whole, jax.Array) and not isinstance(whole, compat.Tracer):
        return (
            jax.ShapeDtypeStruct(whole.shape[1:], whole.dtype) if isinstance(index, int) else None
        )
    return sources.MISSING


def named_key(node: ast.expr, step: Step) -> bool:
    return is_key(value := sources.value(node, step)) or is_old_key(value)


def is_old_key(x: Any) -> bool:
    return getattr(x, "dtype", None) == np.uint32 and getattr(x, "shape", None) == (2,)


def seeds(trouble: Trouble) -> Iterator[Advice]:
    """jax.random.key(1.5)."""
    if "seed must be an integer" not in trouble.text or trouble.last is None:
        return
    step = trouble.last
    call = next(iter(syntax.calls_on(step.place, "key", "PRNGKey", "seed")), None)
    node = syntax.argument(call, 0, "seed")
    if node is None or call is None:
        return
    value, name = sources.value(node, step), syntax.text_of(node)
    kind = type(value).__name__ if value is not sources.MISSING else "no integer"
    if hasattr(value, "dtype"):
        kind = f"an array of {value.dtype}"
    what = f"the seed `{name}` is a {kind}" if " " not in kind else f"the seed `{name}` is {kind}"
    what += f", and `{syntax.text_of(call.func)}` needs an integer"
    yield Advice(
        what, here(step.place), f"pass an int: {syntax.text_of(call.func)}(int({name}))", 3
    )


def converted(trouble: Trouble) -> Iterator[Advice]:
    """np.asarray(key)."""
    if "PRNGKey dtype cannot be converted" not in trouble.text or trouble.last is None:
        return
    step = trouble.last
    names = [
        n for n in checks.names(syntax.expression_at(step.place)) if is_key(step.values.get(n))
    ]
    name = names[0] if names else "the key"
    what = "a random key cannot become a NumPy array"
    if names:
        what = (
            f"`{name}` is a random key ({jax.typeof(step.values[name])}), which NumPy cannot hold"
        )
    hint = (
        f"take its bits, np.asarray(jax.random.key_data({name})); jax.random.wrap_key_data "
        "undoes it"
    )
    yield Advice(what, here(step.place), hint, weight=4)


def many_keys(trouble: Trouble, step: Step, call) -> Iterator[Advice]:
    found = re.search(
        r"(\w+) accepts a single key, but was given a key array of shape (\(.*?\))", trouble.text
    )
    node = syntax.argument(call, 0, "key")
    if found is None or node is None:
        return
    name, function = syntax.text_of(node), syntax.text_of(call.func)
    shape = found[2]
    rest = [syntax.text_of(a) for a in call.args[1:]]
    inside = ", ".join(["k", *rest, *(ast.unparse(k) for k in call.keywords if k.arg != "key")])
    what = (
        f"`{name}` holds several keys, with shape {shape}, and `{function}` takes one, of shape ()"
    )
    if shape.endswith(", 2)"):
        what += " (an old-style key: of shape (2,))"
    yield Advice(
        what,
        here(step.place),
        f"use one of them, `{name}[0]`, or map over them: "
        f"jax.vmap(lambda k: {function}({inside}))({name})",
        weight=3,
    )


def arithmetic(trouble: Trouble, step: Step) -> Iterator[Advice]:
    names = [n for n, v in step.values.items() if is_key(v)]
    node = syntax.expression_at(step.place)
    used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} if node else set()
    name = next((n for n in names if n in used), None)
    if name is None:
        return
    what = f"`{name}` is a random key, a value of its own kind ({jax.typeof(step.values[name])}), "
    what += f"and `{syntax.text_of(node)}` treats it as numbers"
    whole = [n for n in ast.walk(node) if isinstance(n, ast.Name)] if node else []
    whole = [n for n in whole if is_whole(sources.value(n, step))]
    number = whole[0].id if whole else "i"
    new = f"jax.random.fold_in({name}, {number})"
    others = f"for several, jax.random.split({name}, n); for its bits, jax.random.key_data({name})"
    first: str | Rewrite = f"for a key that depends on a number write {new}"
    if isinstance(node, ast.BinOp) and len(whole) == 1 and name == syntax.text_of(node.left):
        first = Rewrite(first, node, new)
    ways = (tried.way(first, step, values=False), Way(others))
    yield Advice(what, here(step.place), ways, weight=3)


def is_whole(x: Any) -> bool:
    """Whether this is one whole number."""
    kind = getattr(getattr(x, "dtype", None), "kind", "i" if type(x) is int else "")
    return kind in ("i", "u") and np.shape(x) == ()


def unpacking(trouble: Trouble, step: Step) -> Iterator[Advice]:
    """`a, b, c = jax.random.split(key)`."""
    found = re.search(r"too many values to unpack|not enough values to unpack", trouble.text)
    calls = syntax.calls_on(step.place, "split")
    if not found or not calls or "random" not in syntax.text_of(calls[0].func):
        return
    statement = next(syntax.assignments_on(step.place), None)
    targets = statement.targets[0] if statement else None
    if not isinstance(targets, ast.Tuple | ast.List):
        return
    count = len(targets.elts)
    key = syntax.text_of(syntax.argument(calls[0], 0, "key"))
    number = syntax.argument(calls[0], 1, "num")
    given = syntax.text_of(number) if number else "2"
    what = f"jax.random.split makes {given} keys of `{key}` here, and {count} names are on the left"
    yield Advice(what, here(step.place), f"write jax.random.split({key}, {count})", weight=4)


_SAMPLERS = tuple(name for name in dir(jax.random) if not name.startswith("_"))


def is_key(x: Any) -> bool:
    dtype = getattr(x, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)


def described(x: Any) -> str:
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"an array of {x.dtype} with shape {tuple(x.shape)}"
    return "no key" if x is sources.MISSING or x is None else f"a {type(x).__name__}"
