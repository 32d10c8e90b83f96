"""cond and switch: branches that return different things, a test or an index of the wrong kind."""

import ast
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from malleable.compat import frames
from malleable.inspection.advice.evidence import bodies, sources, tried
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Probe, Said, sure, topic
from malleable.inspection.advice.evidence.differences import differ, differences
from malleable.inspection.advice.evidence.fitting import fitted
from malleable.inspection.advice.evidence.sources import text
from malleable.inspection.advice.evidence.tried import Rewrite
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.evidence.wording import kind, leaves, of_type, structure


class _Choice(NamedTuple):
    """A cond or switch that an error came through: its frame, who calls it, and the call."""

    step: Step
    caller: Step
    call: Any


def _branches(probe: Callable[[Trouble, _Choice], Said | None]) -> Probe:
    """A probe of the cond or switch that an error came through."""

    def probed(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
        step = sure(trouble.within(*frames.BRANCHES))
        caller = sure(trouble.caller(trouble.within(*frames.SWITCH) or step))
        sure("conditionals" in step.place.file)
        return probe(trouble, _Choice(step, caller, sources.expression(caller.place)))

    return probed


def _no_functions(trouble: Trouble, choice: _Choice) -> Said:
    what = "the branches of lax.cond have to be functions"
    way = "write lambda: value for each, or choose between two values with jnp.where"
    return Said(what, way, choice.caller.place)


def _outputs(trouble: Trouble, choice: _Choice) -> Said | None:
    check: Any = trouble.within(*frames.BRANCH_CHECK)
    (step, caller, _), held = choice, check.held
    one, other = held.f1, held.f2
    left, right = held.out_avals1.unflatten(), held.out_avals2.unflatten()
    names = [_label(held.name1, one), _label(held.name2, other)]
    found = next(differences(left, right), None)
    begins = bodies.otherwise(one) + bodies.otherwise(other)
    begins += f"\n  they are the branches of {here(caller.place)}"
    if found is not None:
        ends = [bodies.part(f, found.path) for f in (one, other)]
        what = f"the branches return different structures: {names[0]} returns {structure(left)}, "
        what += f"{names[1]} returns {structure(right)}"
        odd = 0 if found.left is None and found.right is not None else 1
        what += _elsewhere(names[1 - odd], ends[1 - odd])
        only_left, only_right = found.keys
        if only_left or only_right:
            keys = ", ".join(map(repr, only_left or only_right))
            lacking = names[1] if only_left else names[0]
            way = f"return {keys} from {lacking} too, or from neither"
        else:
            way = f"return the same from both: {kind(found.left)} or {kind(found.right)}"
            way += "; what is missing can be a placeholder, e.g. jnp.zeros_like(...)"
        if None in (found.left, found.right):
            way = f"let {names[odd]} end with `return ...`, like the other"
        end = ends[odd]
        place = end[1] if end else None
        return Said(what + begins, way, place or caller.place)
    pairs = list(zip(leaves(left, ""), leaves(right, ""), strict=True))
    changed = [(i, p, a, b) for i, ((p, a), (_, b)) in enumerate(pairs) if differ(a, b)]
    sure("manual axis" not in (held.differences or ""))
    number, path, a, b = sure(changed)[0]
    programs = step.held.true_program, step.held.false_program
    at = [_made(f, p, number, path) for f, p in zip((one, other), programs, strict=True)]
    part = f" for the part {path}" if path else ""
    what = f"the branches return different types{part}: {names[0]} returns {of_type(a)}, "
    what += f"{names[1]} returns {of_type(b)}"
    odd = _odd(one, other, a, b)
    what += _elsewhere(names[1 - odd], at[1 - odd])
    end = at[odd]
    expression = end[0] if end else None
    shown = text(expression, "...")
    wanted, got = (a, b) if odd == 1 else (b, a)
    way: str | Rewrite
    if tuple(a.shape) != tuple(b.shape):
        way = f"return one shape from both, {tuple(wanted.shape)} or {tuple(got.shape)}"
        fits = fitted(shown, tuple(got.shape), tuple(wanted.shape))
        way += f", e.g. {fits} in {names[odd]}" if fits else ""
    else:
        way = f"in {names[odd]} return {wanted.dtype}: ({shown}).astype(jnp.{wanted.dtype})"
        if isinstance(expression, ast.Constant):
            way = f"in {names[odd]} return jnp.asarray({shown}, jnp.{wanted.dtype})"
        if expression is not None and f"{got.dtype.kind}{wanted.dtype.kind}" == "if":
            new = f"jnp.asarray({ast.unparse(expression)}, jnp.{wanted.dtype})"
            way = Rewrite(way, expression, new)
    place = end[1] if end else None
    ways = (tried.way(way, caller, values=False),)
    return Said(what + begins, ways, place or caller.place)


def _label(name: str, fun: Any) -> str:
    """`true_fun (grow)`; of a lambda, only which branch it is."""
    called, name = sources.name_of(fun), re.sub(r"(\D)(\d)", r"\1 \2", name.replace(" ", ""))
    return f"{name} ({called})" if called != "<lambda>" else name


def _elsewhere(name: str, end: Any) -> str:
    return f"\n  {name} returns at {here(end[1])}" if end else ""


def _made(fun: Any, program: Any, number: int, path: str):
    """(expression, place) of a result: where it is returned, or else where it is computed."""
    piece = bodies.part(fun, path)
    if piece is not None:
        return piece
    made = bodies.maker(program, number) if program is not None else None
    return (None, made) if made is not None else None


def _odd(one: Any, other: Any, a: Any, b: Any) -> int:
    """Which of two branches to change: the one with the smaller type or shape; else the second."""
    if tuple(a.shape) != tuple(b.shape):
        return 0 if len(a.shape) < len(b.shape) else 1
    order = "biufc"
    return 0 if order.find(a.dtype.kind) < order.find(b.dtype.kind) else 1


def _predicate(trouble: Trouble, choice: _Choice) -> Said:
    step, caller, call = choice
    pred, node = step.held.pred, sources.argument(call, 0, "pred")
    name = text(node, "pred")
    shape = tuple(getattr(pred, "shape", ()))
    if shape:
        what = f"`{name}`, the predicate (pred) of lax.cond, is {of_type(pred)}, of shape {shape}; "
        what += "it has to be one truth value"
        way = f"choose element by element with jnp.where({name}, a, b); or decide for all: "
        way += f"jnp.any({name}) or jnp.all({name})"
    else:
        what = f"`{name}`, the predicate (pred) of lax.cond, is {of_type(pred)}; it has to be one "
        what += "truth value"
        way = f"compare it, e.g. {name} > 0"
    return Said(what, way, caller.place)


def _index(trouble: Trouble, choice: _Choice) -> Said:
    step, caller, call = choice
    index, node = step.held.index, sources.argument(call, 0, "index")
    name = text(node, "index")
    shape = tuple(getattr(index, "shape", ()))
    what = f"`{name}`, the index of lax.switch, is {of_type(index)}"
    if shape:
        what += f", of shape {shape}; it has to be one whole number"
        way = f"take one, {name}[0]; or map over them with jax.vmap"
    else:
        what += "; it has to be a whole number"
        is_array = hasattr(index, "astype")
        way = f"write {name}.astype(jnp.int32)" if is_array else f"write int({name})"
    return Said(what, way, caller.place)


branches = topic(
    Diagnosis("", _branches(_outputs), frame=frames.BRANCH_CHECK),
    Diagnosis("^Pred|Pred must be", _branches(_predicate), frame=frames.BRANCHES),
    Diagnosis("^Index", _branches(_index), frame=frames.BRANCHES),
    Diagnosis("(should|must) be callable", _branches(_no_functions), frame=frames.BRANCHES),
)
