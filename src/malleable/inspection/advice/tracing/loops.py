"""Loops: a carry that changes, inputs of different length, a test that is no truth value."""

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from malleable.compat import frames
from malleable.inspection.advice.evidence import bodies, sources, tried
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Probe, Said, sure, topic
from malleable.inspection.advice.evidence.differences import differ, differences
from malleable.inspection.advice.evidence.sources import text
from malleable.inspection.advice.evidence.tried import Rewrite
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.evidence.wording import kind, leaves, listed, of_type, structure
from malleable.inspection.advice.hint import Way


class _Loop(NamedTuple):
    """A loop that an error came through.

    step: the innermost frame of a loop of JAX; outer: that of fori_loop or map, if one of these is
    called; caller: the user's; call: the call in it.
    """

    step: Step
    outer: Step
    caller: Step
    call: Any


def _looped(probe: Callable[[Trouble, _Loop], Said | None]) -> Probe:
    """A probe of the loop that an error came through."""

    def probed(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
        step: Any = trouble.within(*frames.LOOPS)
        outer = trouble.within(*frames.AROUND_SCAN)
        if outer is None or trouble.caller(outer) is not trouble.caller(step):
            outer = step
        caller = sure(trouble.caller(outer))
        sure("lax" in step.place.file)
        return probe(trouble, _Loop(step, outer, caller, sources.expression(caller.place)))

    return probed


def _nothing(trouble: Trouble, loop: _Loop) -> Said:
    way = "pass xs, whose leading axis is gone through, or length=n"
    return Said("lax.scan is given neither xs nor length", way, loop.caller.place)


# ---------------------------------------------------------------- the carry


def _carry(trouble: Trouble, loop: _Loop) -> Said | None:
    step, outer, caller, call = loop
    check = sure(trouble.within(*frames.CARRY_CHECK))
    start, end = check.held.in_carry.unflatten(), check.held.out_carry.unflatten()
    fun, inner = outer.held.body, ""
    if outer.name in frames.FORI and isinstance(start, tuple) and len(start) >= 2:
        start, end, inner = start[1], end[1] if isinstance(end, tuple) else end, "[1]"
    name, root = sources.name_of(fun), _root(fun, outer.name)
    at = {"scan": (1, "init"), "while_loop": (2, "init_val"), "fori_loop": (3, "init_val")}
    init = sources.argument(call, *at.get(outer.name, (99, "init")))
    begins = f"\n  the loop starts at {here(caller.place)}"
    found = next(differences(start, end), None)
    if found is not None and (swapped := _swapped(outer, start, begins)):
        return swapped
    if found is not None:
        return _structure(found, fun, root, outer.name, start, end, begins, caller)
    program = step.held.program
    pairs = zip(leaves(start, ""), leaves(end, ""), strict=True)
    changed = [(i, a, b) for i, (a, b) in enumerate(pairs) if differ(a[1], b[1])]
    sure("manual axis" not in trouble.text and "pcast" not in trouble.text)
    number, (path, old), (_, new) = sure(changed)[0]
    offset = 1 if inner else 0
    made = bodies.maker(program, number + offset) if program is not None else None
    piece = bodies.part(fun, (("[0]" if outer.name in frames.SCAN else "") + path))
    expression = text(piece[0]) if piece and piece[0] is not None else "it"
    what = f"the carry changes its type: `{root}{path}` goes in as {of_type(old)}, and {name} "
    what += f"returns {of_type(new)} for it"
    if len(changed) > 1:
        more = [root + a[0] for _, a, _ in changed[1:]]
        what += f" (so {'do' if len(more) > 1 else 'does'} {listed(more)})"
    place = made or (piece[1] if piece else None)
    if piece is not None and place is not None and piece[1].line != place.line:
        what += f"\n  it is returned at {here(piece[1])}"
    what += (bodies.otherwise(fun) if made is None else "") + begins
    if len(changed) > 1 and _permuted(changed):
        way = "return the parts of the carry in the order they come in"
        return Said(what, f"{way}: check what is swapped", place or caller.place)
    way = _ways(old, new, init, path, expression)
    ways = (*_started(old, new, init, path, caller), Way(way))
    return Said(what, ways, place or caller.place)


def _swapped(outer: Step, start, begins: str) -> Said | None:
    """A body of lax.scan that returns (y, carry)."""
    fun = outer.held.body
    ends = sources.returns(fun) if outer.name in frames.SCAN else []
    value, place = ends[0] if len(ends) == 1 else (None, None)
    if place is None or not isinstance(value, ast.Tuple) or len(value.elts) != 2:
        return None
    first, second = map(ast.unparse, value.elts)
    name = sources.name_of(fun)
    made = outer.held.ys.unflatten() if outer.held.ys is not None else None
    if any(differences(start, made)) or any(map(differ, *map(jax.tree.leaves, (start, made)))):
        return None
    what = f"{name} returns `{first}` where the carry is expected, and then `{second}`, which has "
    what += f"the structure of the carry, {structure(start)}; lax.scan takes (carry, y){begins}"
    return Said(what, f"write `return {second}, {first}`", place)


def _started(old, new, init: ast.expr | None, path: str, caller: Step) -> Iterator[Way]:
    """A carry of integers to which floats are added, from the start of their type."""
    at = re.fullmatch(r"\[(\d+)\]", path)
    part = init.elts[int(at[1])] if at and isinstance(init, ast.Tuple) else None
    part = init if not path else part
    if part is None or old.shape != new.shape or f"{old.dtype.kind}{new.dtype.kind}" != "if":
        return
    made = f"jnp.asarray({ast.unparse(part)}, jnp.{new.dtype})"
    start = Rewrite(f"start with {new.dtype}: {made}", part, made)
    yield tried.way(start, caller, values=False)


def _permuted(changed: list) -> bool:
    """Whether the same types come back in another order."""
    sides = zip(*(c[1:] for c in changed), strict=True)
    one, other = ([of_type(leaf) for _, leaf in side] for side in sides)
    return sorted(one) == sorted(other)


def _structure(found, fun, root, loop, start, end, begins, caller) -> Said:
    name = sources.name_of(fun)
    head = "[0]" if loop == "scan" else ""
    piece = bodies.part(fun, head + found.path)
    place = piece[1] if piece else sources.where_defined(fun)
    only_in, only_out = found.keys
    what = f"the carry changes its structure: it starts as {structure(start)} and {name} returns "
    what += f"{structure(end)}\n  `{root}{found.path}` is {kind(found.left)} at first, then "
    what += kind(found.right) + bodies.otherwise(fun)
    ways = []
    for key in only_out:
        ways.append(f"add {key!r} to the initial carry, or drop it from what {name} returns")
    for key in only_in:
        ways.append(f"return {key!r} as well, or drop it from the initial carry")
    if not ways and found.left is None:
        ways = [f"start with a value of the type that is returned, e.g. {_zeros(found.right)}"]
    elif not ways and found.right is None:
        ways = [f"return a new value for `{root}{found.path}` in the place of None"]
    elif not ways and isinstance(found.left, tuple | list):
        few = len(found.left)
        many = len(found.right) if isinstance(found.right, tuple | list) else 1
        expression = piece[0] if piece else None
        if isinstance(expression, ast.Tuple) and many > few:
            kept = ", ".join(map(text, expression.elts[:few])) + "," * (few == 1)
            rest = ", ".join(map(text, expression.elts[few:]))
            target = "the second result" if loop == "scan" else "the initial value too"
            ways = [f"return ({kept}) as the carry and move {rest} to {target}"]
        elif expression is not None and many < few:
            ways = [f"return all {few} parts as the carry, e.g. `return ({text(expression)}, ...)"]
            ways[0] += ", y`" if loop == "scan" else "`"
        if many > 1:
            same = f"return {kind(found.left)}"
            ways.append(f"start with {many} parts" if many != few else same)
    elif not ways:
        ways = [f"return {kind(found.left)} for it, or start with {kind(found.right)}"]
    return Said(what + begins, "; or ".join(ways), place or caller.place)


def _ways(old, new, init: ast.expr | None, path: str, expression: str) -> str:
    if tuple(old.shape) != tuple(new.shape):
        first = f"start with the shape {tuple(new.shape)}, e.g. {_zeros(new)}"
        if len(new.shape) > len(old.shape):
            last = "reduce or index it to the shape it had, e.g. .sum(axis=0), .mean(axis=0), [0]"
            return f"{last}; or {first}"
        if len(new.shape) == len(old.shape) and all(
            m <= n for m, n in zip(old.shape, new.shape, strict=True)
        ):
            grow = "an array cannot grow in a loop: start with its final shape, e.g. jnp.zeros, and"
            shape = tuple(old.shape)
            return f"{grow} write into it with .at[i].set(...); or return the shape {shape}"
        shape = tuple(old.shape)
        if len(new.shape) < len(old.shape):
            return f"return the shape it had: jnp.broadcast_to({expression}, {shape}); or {first}"
        return f"return the shape it had, {shape}; or {first}"
    start = f"start with {new.dtype}: jnp.asarray(..., jnp.{new.dtype})"
    if init is not None and not path:
        start = f"start with {new.dtype}: jnp.asarray({text(init)}, jnp.{new.dtype})"
    same = f"return {old.dtype}: ({expression}).astype(jnp.{old.dtype})"
    widens = old.dtype.kind in "biu" and new.dtype.kind in "fc"
    return f"{start}; or {same}" if widens else f"{same}; or {start}"


def _zeros(aval) -> str:
    if hasattr(aval, "shape"):
        return f"jnp.zeros({tuple(aval.shape)}, jnp.{aval.dtype})"
    return "jax.tree.map(jnp.zeros_like, ...)"


def _root(fun: Any, loop: str) -> str:
    """What the body calls its carry."""
    names = sources.parameters(fun)
    at = 1 if loop == "fori_loop" else 0
    return names[at] if len(names) > at else "carry"


# ---------------------------------------------------------------- the rest


def _pair(trouble: Trouble, loop: _Loop) -> Said:
    step, caller = loop.step, loop.caller
    fun = step.held.body
    name, (value, place) = sources.name_of(fun), sources.ending(fun)
    shown = text(value, "nothing")
    what = f"{name} returns {shown}; a body of lax.scan returns two things, a tuple (carry, y), y "
    what += f"being stacked{bodies.otherwise(fun)}\n  the loop starts at {here(caller.place)}"
    carry = shown if value is not None else "carry"
    way: str | Rewrite = f"write `return {carry}, None`"
    if isinstance(value, ast.Tuple):
        way = f"write `return ({shown.strip('()')}), None`, if all of it is the carry"
    elif value is not None:
        way = Rewrite(way, value, f"({ast.unparse(value)}, None)")
    return Said(what, (tried.way(way, caller, values=False),), place or caller.place)


def _inputs(trouble: Trouble, loop: _Loop) -> Said | None:
    step, outer, caller, call = loop
    at = (1, "xs") if outer.name in frames.MAP else (2, "xs")
    written = sources.argument(call, *at)
    pairs = _named(sure(step.held.xs_flat).unflatten(), written)
    shapes: list[tuple[str, Any]] = [(path, tuple(getattr(x, "shape", ()))) for path, x in pairs]
    length = step.held.length
    flat_ones = [(path, x) for path, x in pairs if not getattr(x, "shape", ())]
    if flat_ones:
        path, x = flat_ones[0]
        what = f"xs, `{path}`, is {of_type(x)}: it has no leading axis to go through"
        ways = ["pass an array with one row per step"]
        whole = jnp.issubdtype(jnp.result_type(x), jnp.integer)
        if whole:
            ways[0] += f", e.g. jnp.arange({path})"
        if len(pairs) == 1 and whole:
            ways.append(f"to repeat a step {path} times: xs=None, length={path}")
        else:
            ways.append("let the body close over what is the same in every step")
        return Said(what, "; or ".join(ways), caller.place)
    shown = ", ".join(f"`{path}` has length {shape[0]} (shape {shape})" for path, shape in shapes)
    shortest = min(shape[0] for _, shape in shapes)
    longer = [path for path, shape in shapes if shape[0] != shortest]
    if isinstance(length, int) and len({shape[0] for _, shape in shapes}) == 1:
        what = f"length={length}, but {shown}"
        way = f"drop length=, or pass inputs of length {length}"
    else:
        what = f"the inputs of one loop are of different length: {shown}"
        way = f"make them equally long, e.g. {longer[-1] if longer else 'xs'}[:{shortest}]"
    return Said(what, way, caller.place)


def _named(xs: Any, written: ast.expr | None) -> list[tuple[str, Any]]:
    """(path, leaf), by the names the user gives to the parts, if xs is written as a tuple."""
    parts: list[tuple[str, Any]] = []
    if isinstance(written, ast.Tuple) and isinstance(xs, tuple) and len(xs) == len(written.elts):
        parts = [(text(node), x) for node, x in zip(written.elts, xs, strict=True)]
    elif isinstance(written, ast.Dict) and isinstance(xs, dict):
        pairs = zip(written.keys, written.values, strict=True)
        keys: dict = {k.value: v for k, v in pairs if isinstance(k, ast.Constant)}
        parts = [(f"xs[{k!r}] = {text(keys[k])}" if k in keys else k, x) for k, x in xs.items()]
    else:
        parts = [(text(written, "xs"), xs)]
    return [pair for root, part in parts for pair in leaves(part, root)]


def _test(trouble: Trouble, loop: _Loop) -> Said:
    step, caller = loop.step, loop.caller
    fun = step.held.test
    made = trouble.within(*frames.LOOP_PROGRAMS)
    avals = made.held.cond_out_avals if made else None
    out = avals.unflatten() if avals is not None else None
    name, (value, place) = sources.name_of(fun), sources.ending(fun)
    shown = text(value, "it")
    begins = f"{bodies.otherwise(fun)}\n  the loop starts at {here(caller.place)}"
    if out is None or not hasattr(out, "shape"):
        what = f"{name}, the test of the loop, returns {kind(out)} instead of one truth value"
        way = "return the truth value alone"
        if isinstance(value, ast.Tuple):
            way = f"return the truth value alone: `return {text(value.elts[0])}`"
    elif tuple(out.shape):
        what = f"{name}, the test of the loop, returns {of_type(out)}, of shape {tuple(out.shape)}"
        what += ", instead of one truth value"
        way = f"say when to go on: jnp.any({shown}) while one of them holds, jnp.all({shown}) "
        way += "while all do"
    else:
        what = f"{name}, the test of the loop, returns {of_type(out)} instead of one truth value"
        way = f"compare it: `{shown} > 0` or `{shown} != 0`"
    return Said(what + begins, way, place or caller.place)


def _bounds(trouble: Trouble, loop: _Loop) -> Said:
    step, _, caller, call = loop
    low, high = step.held.lower, step.held.upper
    names = [sources.argument(call, 0, "lower"), sources.argument(call, 1, "upper")]
    shown = [text(n, word) for n, word in zip(names, ("lower", "upper"), strict=True)]
    types = [of_type(low), of_type(high)]
    what = f"the bounds of fori_loop differ in type: lower `{shown[0]}` is {types[0]}, upper "
    what += f"`{shown[1]}` is {types[1]}"
    dtypes = [str(getattr(x, "dtype", type(x).__name__)) for x in (low, high)]
    wrong = 1 if "float" in dtypes[1] else 0 if "float" in dtypes[0] else 1
    known = isinstance((low, high)[wrong], int | float)
    cast = f"int({shown[wrong]})" if known else f"({shown[wrong]}).astype(jnp.int32)"
    way = f"give both the same whole-number type: {cast}, or divide with //"
    return Said(what, way, caller.place)


def _associative(trouble: Trouble, loop: _Loop) -> Said | None:
    step, outer, caller, _ = loop
    sure({outer.name, step.name} & {*frames.ASSOCIATIVE})
    fun, elems = step.held.body, step.held.elems
    name, (value, place) = sources.name_of(fun), sources.ending(fun)
    shown = text(value, "nothing")
    one = kind(elems)
    what = f"{name} returns `{shown}`, which has not the structure of its two arguments: each is "
    what += f"{one}, like elems, {structure(elems)}\n  the scan starts at {here(caller.place)}"
    way = f"return {one} again, e.g. `return ({shown}, ...)`, with one combined part for each"
    return Said(what, way, place or caller.place)


loops = topic(
    *(
        Diagnosis(said, _looped(probe), frame=frames.LOOPS)
        for said, probe in (
            ("carry output must", _carry),
            ("no values to scan", _nothing),
            ("must be a pair", _pair),
            ("leading axis|`length`|length argument", _inputs),
            ("cond_fun must return a boolean", _test),
            ("arguments to fori_loop|lower and upper", _bounds),
            ("leaves|Expected|structure", _associative),
        )
    )
)
