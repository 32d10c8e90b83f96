"""Derivatives: what may be differentiated, by what, and user-defined rules."""

import ast
import re
from typing import Any

import jax
from jax import numpy as jnp

from malleable.compat import Place, frames
from malleable.inspection.advice.evidence import bodies, creation, sources, syntax
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said, sure, topic
from malleable.inspection.advice.evidence.sources import text
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.evidence.wording import kind, leaves, of_type, structure


def _of_function(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    step: Any = trouble.within(*frames.GRADS)
    caller = sure(trouble.caller(step))
    words, fun = trouble.text, sources.users(step.held.fun)
    name, ends = sources.name_of(fun), sources.returns(fun)
    value, place = ends[-1] if ends else (None, sources.where_defined(fun))
    value = value if len(ends) == 1 else None  # which of them it was is not known
    begins = f"{bodies.otherwise(fun)}\n  it is differentiated at {here(caller.place)}"
    if "Gradient only defined for scalar-output" in words:
        return _no_scalar(step, fun, value, place or caller.place, begins)
    elif "requires real- or complex-valued inputs" in words or "-valued inputs" in words:
        return _inputs(step, caller, words)
    elif "valued outputs" in words:
        out = trouble.within(*frames.OUTPUT_CHECK)
        seen = of_type(out.held.x) if out and out.held.x is not None else "another type"
        shown = text(value) if value is not None else "..."
        what = f"{name} returns {seen}; a gradient needs a real number{begins}"
        way = f"return a real number, e.g. jnp.abs({shown}) or ({shown}).real; or "
        way += "holomorphic=True if the function is holomorphic"
        if "int" in seen or "bool" in seen:
            what += "\n  counts, comparisons and argmax have no derivative: as a float its "
            what += "gradient is 0 everywhere"
            way = "return a loss that changes with the parameters, of the scores themselves, e.g. "
            way += "a cross entropy, jnp.mean(-jax.nn.log_softmax(scores)[...])"
        return Said(what, way, place or caller.place)
    elif ("aux" in words and "pair" in words) or "two-element tuple" in words:
        shown = text(value) if value is not None else "the value"
        said = f" {shown}," if value is not None else " one thing,"
        what = f"has_aux=True, but {name} returns{said} not a pair, a tuple (value, aux)"
        way = f"write `return {shown}, aux`; or drop has_aux=True"
        return Said(what + begins, way, place or caller.place)
    elif "argnums" in words and "requires at least" in words:
        return _argnums(trouble, step, caller, fun)
    return None


def _no_scalar(step: Step, fun, value, place: Place, begins: str) -> Said:
    out, name = step.held.result, sources.name_of(fun)
    rule = getattr(fun, "fwd", None)  # of a custom_vjp: then its result is what counts
    if rule is not None and sources.returns(rule):
        value, place = sources.returns(rule)[-1]
        name = f"{sources.name_of(rule)}, the forward rule of {name},"
        if isinstance(value, ast.Tuple) and value.elts:
            value = value.elts[0]
    shown = text(value) if value is not None else "..."
    if out is None:
        what = f"{name} returns None"
        what += "; it has no `return` of its result" if not sources.returns(fun) else ""
        node = sources.definition(fun)
        if node is not None and not sources.returns(fun) and not isinstance(node[0], ast.Lambda):
            last = node[0].body[-1]
            place = sources.place(last, place.file, node[1].function)
        way = "end it with `return value`, one number"
        return Said(what + begins, way, place)
    if isinstance(out, tuple | list | dict):
        first = out[0] if isinstance(out, tuple | list) and out else None
        what = f"{name} returns {kind(out)}, {structure(out)}; a gradient needs one number"
        way = "return one number"
        if isinstance(out, tuple) and len(out) == 2 and getattr(first, "shape", None) == ():
            way = "pass has_aux=True: the first is differentiated, the second is handed back"
        elif isinstance(out, tuple) and getattr(first, "shape", None) == ():
            rest = ", ".join("abcdefg"[: len(out) - 1])
            way = f"return a pair, value, ({rest}), and pass has_aux=True"
        return Said(what + begins, way, place)
    shape = tuple(getattr(out, "shape", ()))
    what = f"{name} returns {of_type(out)}, of shape {shape}; a gradient needs one number, shape ()"
    way = f"return its sum or mean, e.g. jnp.sum({shown}); or differentiate all of it with "
    way += f"jax.jacrev({'f' if '<' in name or rule else name}), or jax.vjp"
    if rule is not None:
        way = f"return first what {sources.name_of(fun)} returns, one number, then the residuals: "
        way += f"`return {sources.name_of(fun)}(...), residuals`"
    return Said(what + begins, way, place)


def _inputs(step: Step, caller: Step, words: str) -> Said | None:
    fun, args = step.held.fun, step.held.args or ()
    argnums = step.held.argnums or 0
    numbers = argnums if isinstance(argnums, tuple | list) else (argnums,)
    names = sources.parameters(fun)
    good, bad = [], []
    for i in numbers:
        root = names[i] if i < len(names) else f"args[{i}]"
        for path, leaf in leaves(args[i], root) if i < len(args) else ():
            floats = jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)
            (good if floats else bad).append((path, leaf))
    path, leaf = sure(bad)[0]
    root = re.split(r"[\[.]", path)[0]
    plain = not hasattr(leaf, "dtype")
    shown = of_type(leaf) + (f" ({jnp.result_type(leaf)})" if plain else "")
    what = f"`{path}` is {shown}; only floats have a derivative"
    what += f"\n  the argument `{root}` of {sources.name_of(fun)} is differentiated"
    if path == root:
        number = isinstance(leaf, int)
        way = f"pass a float: {float(leaf)}" if number else f"pass {path}.astype(jnp.float32)"
        others = [i for i in range(len(args)) if i not in numbers]
        if others:
            way += f"; or differentiate by another argument: argnums={others[0]}"
    else:
        way = f"keep `{path}` out of `{root}`: pass it as an argument of its own, which argnums "
        way += "does not name; or make it a float, "
        way += f"{float(leaf)}" if plain else f"{path}.astype(jnp.float32)"
        way += "; or pass allow_int=True" if step.name in frames.REVERSE else ""
    return Said(what, way, caller.place)


def _argnums(trouble: Trouble, step: Step, caller: Step, fun) -> Said | None:
    argnums, args = step.held.argnums, step.held.args or ()
    name, names = sources.name_of(fun), sources.parameters(fun)
    made = creation.find("grad", fun, trouble) or creation.find("value_and_grad", fun, trouble)
    given = ", ".join(f"{i} is {n}" for i, n in enumerate(names))
    what = f"argnums={argnums}, but {name} is called with {len(args)} arguments, and they are "
    what += f"counted from 0 ({given})"
    if made is not None and made.line != caller.place.line:
        what += f"\n  it is called at {here(caller.place)}"
    last = max(len(args) - 1, 0)
    way = "pass more arguments"
    if last < len(names):
        way = f"write argnums={last} for `{names[last]}`"
    if isinstance(argnums, tuple | list) and last < len(names):
        inside = [n for n in argnums if n <= last]
        free = [n for n in range(last, -1, -1) if n not in inside]
        kept = sorted((*inside, *free[: len(argnums) - len(inside)]))
        shown = ", ".join(f"`{names[n]}`" for n in kept)
        way = f"write argnums={tuple(kept)} for {shown}"
    return Said(what, way, creation.keyword(made, "argnums") or caller.place)


# ---------------------------------------------------------------- directions


def _reverse(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    step = trouble.within(*frames.BACKWARD)
    eqn = step.held.eqn if step else None
    place = bodies.line_of(eqn) if eqn is not None else None
    inner = trouble.context()
    while place is None and inner is not None:
        place = inner.last.place if inner.last else None
        inner = inner.context()
    node = sources.expression(place) if place else None
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call)] if node is not None else []
    fori = next((c for c in calls if text(c.func).endswith("fori_loop")), None)
    which = "lax.fori_loop with bounds that are traced" if fori else "lax.while_loop"
    place = sure(place)
    what = f"{which} cannot be differentiated in reverse (grad): how often it runs is not known "
    what += "beforehand, and so not how much to keep"
    if last.place.line != place.line:
        what += f"\n  it is differentiated at {here(last.place)}"
    ways = []
    if fori is not None:
        upper = syntax.argument(fori, 1, "upper")
        name = text(upper) if upper is not None else "n"
        if trouble.within(*frames.JIT) is not None and name.isidentifier():
            ways.append(f"let jit know the bound: jax.jit(..., static_argnames={name!r})")
        else:
            ways.append(f"make the bound `{name}` a Python number")
        ways.append("loop to the largest bound with lax.scan and jnp.where(i < bound, new, old)")
    else:
        most = "use lax.scan over the largest number of steps and keep the old value once done"
        ways.append(most)
    ways.append("differentiate forward, jax.jacfwd or jax.jvp; or give a rule with jax.custom_vjp")
    return Said(what, "; or ".join(ways), place)


def _tangents(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    step = sure(trouble.within(*frames.JVP))
    caller = sure(trouble.caller(step))
    fun, call = step.held.fun, sources.expression(caller.place)
    primals, tangents = step.held.primals, step.held.tangents
    names = sources.parameters(fun)
    written = [syntax.argument(call, 1, "primals"), syntax.argument(call, 2, "tangents")]
    if not isinstance(primals, tuple | list) or not isinstance(tangents, tuple | list):
        what = "jax.jvp takes the primals and the tangents as tuples, one entry per argument: "
        what += f"they are {kind(primals)} and {kind(tangents)}"
        parts = [_written(w, d) for w, d in zip(written, ("x", "t"), strict=True)]
        name = _written(syntax.argument(call, 0, "fun"), "f")
        way = f"write jax.jvp({name}, ({parts[0]},), ({parts[1]},))"
        return Said(what, way, caller.place)
    if len(primals) != len(tangents):
        what = f"jax.jvp is given {len(primals)} primals and {len(tangents)} tangents"
        return Said(what, "pass one tangent for each primal", caller.place)
    for i, (x, t) in enumerate(zip(primals, tangents, strict=True)):
        root = names[i] if i < len(names) else f"primals[{i}]"
        if jax.tree.structure(x) != jax.tree.structure(t):
            what = f"the tangent of `{root}` is {structure(t)}, but `{root}` is {structure(x)}"
            way = f"give it the same structure: jax.tree.map(jnp.ones_like, {_part(written[0], i)})"
            return Said(what, way, caller.place)
        for (path, a), (_, b) in zip(leaves(x, root), leaves(t, root), strict=True):
            wanted = getattr(a, "shape", ()), jnp.result_type(a)
            got = getattr(b, "shape", ()), jnp.result_type(b)
            if wanted != got:
                what = f"the tangent of `{path}` is {of_type(b)}, but `{path}` is {of_type(a)}: "
                if got[0] != wanted[0]:
                    what += f"the shapes are {tuple(got[0])} and {tuple(wanted[0])}"
                else:
                    what += f"the dtypes are {got[1]} and {wanted[1]}"
                way = "give the tangent the same shape and dtype, e.g. jnp.ones_like("
                way += f"{_part(written[0], i)})"
                return Said(what, way, caller.place)
    return None


def _written(node: ast.expr | None, default: str) -> str:
    return text(node) if node is not None else default


def _part(written: ast.expr | None, number: int) -> str:
    if isinstance(written, ast.Tuple | ast.List) and number < len(written.elts):
        return text(written.elts[number])
    return "primal"


def _cotangent(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    told = re.search(r"got (\S+?),? but expected (\S+)", trouble.text)
    caller = sure(trouble.caller(trouble.within(*frames.VJP_CALL)))
    call: Any = sources.expression(caller.place)
    sure(isinstance(call, ast.Call))
    name, given = text(call.func), ", ".join(map(text, call.args))
    check = trouble.within(*frames.COTANGENT_CHECK)
    if check is not None and told is not None:
        wanted = check.held.ct_aval_expected
        shape = tuple(wanted.shape)
        what = f"the cotangent `{given}` given to the vjp function `{name}` is {told[1]}, but the "
        what += f"result of the function is {told[2]}, of shape {shape}"
        way = f"pass one of the same shape and dtype, e.g. jnp.ones({shape}, jnp.{wanted.dtype})"
        return Said(what, way, caller.place)
    elif "structure" in trouble.text and (error := trouble.within(*frames.COTANGENT_TREE)):
        trees = error.held.ct_tree, error.held.out_tree
        has, out = (jax.tree.unflatten(t, [1] * t.num_leaves) for t in trees)
        what = f"the cotangent `{given}` given to the vjp function `{name}` is {structure(has)}, "
        what += f"and the result of the function is {structure(out)}"
        way = "pass a tree like the result, one cotangent for each part, e.g. "
        return Said(what, f"{way}jax.tree.map(jnp.ones_like, result)", caller.place)
    elif "structure" in trouble.text:
        what = f"the cotangent `{given}` given to the vjp function `{name}` has another structure "
        what += "than the result of the function"
        way = "pass a tree like the result, e.g. jax.tree.map(jnp.ones_like, result)"
        return Said(what, way, caller.place, 2)
    return None


derivatives = topic(
    Diagnosis("Reverse-mode differentiation does not work for lax.while_loop", _reverse),
    Diagnosis("jax.jvp must be tuples|jvp called with", _tangents),
    Diagnosis("primal and tangent", _tangents, frame=frames.JVP_CHECK),
    Diagnosis("argument to (a )?VJP function|cotangent", _cotangent),
    Diagnosis("", _of_function, frame=frames.GRADS),
)
