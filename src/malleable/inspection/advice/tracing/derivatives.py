"""Derivatives: what may be differentiated, by what, and user-defined rules."""

import ast
import re
from collections.abc import Iterator
from typing import Any

import jax
from jax import numpy as jnp

from malleable.compat import Place, frames
from malleable.inspection.advice.evidence import bodies, creation, sources
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said, sure, topic
from malleable.inspection.advice.evidence.differences import Difference, differences
from malleable.inspection.advice.evidence.fitting import closed, fitted, gathered
from malleable.inspection.advice.evidence.sources import text
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.evidence.wording import (
    is_leaf,
    kind,
    leaves,
    listed,
    of_type,
    structure,
)


def _of_function(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    step: Any = trouble.within(*frames.GRADS)
    caller = sure(trouble.caller(step))
    words, fun = trouble.text, sources.users(step.held.fun)
    name, (value, place) = sources.name_of(fun), sources.ending(fun)
    value = value if len(sources.returns(fun)) == 1 else None  # which of them it was is not known
    begins = f"{bodies.otherwise(fun)}\n  it is differentiated at {here(caller.place)}"
    if "Gradient only defined for scalar-output" in words:
        return _no_scalar(step, fun, value, place or caller.place, begins)
    elif "requires real- or complex-valued inputs" in words or "-valued inputs" in words:
        return _inputs(step, caller, words)
    elif "valued outputs" in words:
        out = trouble.within(*frames.OUTPUT_CHECK)
        seen = of_type(out.held.x) if out and out.held.x is not None else "another type"
        shown = text(value, "...")
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
        shown = text(value, "the value")
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
    shown = text(value, "...")
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
    names = sources.called_by(fun, len(args))
    good, bad = [], []
    for i in (i for i in numbers if i < len(args)):
        for path, leaf in leaves(args[i], names[i]):
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
        upper = sources.argument(fori, 1, "upper")
        name = text(upper, "n")
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
    written = [sources.argument(call, 1, "primals"), sources.argument(call, 2, "tangents")]
    if not isinstance(primals, tuple | list) or not isinstance(tangents, tuple | list):
        what = "jax.jvp takes the primals and the tangents as tuples, one entry per argument: "
        what += f"they are {kind(primals)} and {kind(tangents)}"
        parts = [text(w, d) for w, d in zip(written, ("x", "t"), strict=True)]
        name = text(sources.argument(call, 0, "fun"), "f")
        way = f"write jax.jvp({name}, ({parts[0]},), ({parts[1]},))"
        return Said(what, way, caller.place)
    if len(primals) != len(tangents):
        what = f"jax.jvp is given {len(primals)} primals and {len(tangents)} tangents"
        return Said(what, "pass one tangent for each primal", caller.place)
    names = sources.called_by(fun, len(primals), "primals[{}]")
    for i, (root, x, t) in enumerate(zip(names, primals, tangents, strict=True)):
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

# ---------------------------------------------------------------- user-defined rules


def _function(trouble: Trouble, kind_of_rule: str) -> Any:
    """The custom_vjp or custom_jvp object whose call is running, if it still is."""
    calls = [s for s in reversed(trouble.steps) if s.name == frames.CALL and not s.own]
    owners = [step.held.owner for step in calls]
    return sure([one for one in owners if type(one).__name__ == kind_of_rule])[0]


def _backward(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    step: Any = trouble.within(*frames.BACKWARD_RULE)
    rule = sources.plain(step.held.body)
    rule = rule if rule is not None and _is_users(rule) else _named_rule(trouble)
    result, ends = step.held.py_cts_in, sources.returns(rule) if rule else []
    name = sources.name_of(rule) if rule else "bwd"
    value, place = ends[-1] if ends else (None, None)
    primal = creation.owner(rule) or _holder(rule, trouble)
    names = sources.parameters(primal) if primal is not None else []
    primal_name = sources.name_of(primal) if primal is not None else "the function"
    begins = _used(trouble)
    told = re.search(
        r"at output(\S*) the bwd rule produced an output of type (\S+) "
        r"corresponding to an input of type (\w[^\s\[]*\[[\d,]*\])",
        trouble.text,
    )
    if told is not None:
        piece = bodies.part(rule, told[1]) if rule else None
        expression = text(piece[0]) if piece and piece[0] is not None else "..."
        argument = _argument(told[1], names)
        got, wanted = _numbers(told[2]), _numbers(told[3])
        what = f"{name} returns {told[2]} as output{told[1]}, the gradient of {argument}, which is "
        what += f"{told[3]}{begins}"
        summed, fits = gathered(expression, got, wanted), fitted(expression, got, wanted)
        way = f"return the shape and dtype of {argument}"
        if got == wanted:
            way = f"convert it: {closed(expression)}.astype(jnp.{told[3].split('[')[0]})"
        elif summed:
            way = f"sum over the axes that were broadcast: {summed}"
        elif fits and len(got) <= len(wanted):
            way = f"give it the shape of {argument}: {fits}"
        return Said(what, way, piece[1] if piece else place)
    if (said := _parts(step, rule, name, names, begins)) is not None:
        return said
    tree = step.held.in_tree
    arity = len(tree.children()) if tree is not None else None
    shown = text(value, "nothing")
    what = f"{name} returns {kind(result)}, but {primal_name} has {arity} argument"
    what += "s" * (arity != 1)
    what += f": it has to return a tuple of {arity}, one gradient for each{begins}"
    if not isinstance(result, tuple) and arity == 1:
        way = f"write `return ({shown},)`"
    elif isinstance(result, tuple | list) and arity is not None and len(result) < arity:
        lacking = ", ".join(["None"] * (arity - len(result)))
        parts = [text(e) for e in value.elts] if isinstance(value, ast.Tuple) else [f"*{shown}"]
        way = f"write `return ({', '.join(parts)}, {lacking})`, None where there is no gradient"
    else:
        way = "return one gradient per argument, None where there is none"
    return Said(what, way, place)


def _is_users(rule: Any) -> bool:
    found = sources.definition(rule)
    return found is not None and "site-packages" not in found[1].file


def _named_rule(trouble: Trouble) -> Any:
    """The backward rule among what JAX's frames hold."""
    steps = (s for s in reversed(trouble.steps) if not s.own)
    rules = (sources.plain(step.held.backward_rule) for step in steps)
    return next((rule for rule in rules if rule is not None and _is_users(rule)), None)


def _used(trouble: Trouble) -> str:
    last = trouble.last
    return f"\n  it is differentiated at {here(last.place)}" if last else ""


def _argument(path: str, names: list[str]) -> str:
    """``the argument `p['b']` `` for the path `[0]['b']` in the tuple of arguments."""
    first, _, rest = path.partition("]")
    known = names[int(first[1:]) :]
    return f"the argument `{known[0]}{rest}`" if known else f"argument {first[1:]}{rest}"


def _parts(step: Step, rule: Any, name: str, names: list[str], begins: str) -> Said | None:
    """A gradient that is another tree than its argument."""
    result, tree, avals = step.held.py_cts_in, step.held.in_tree, step.held.in_avals
    if not isinstance(result, tuple) or tree is None or avals is None:
        return None
    wanted = jax.tree.unflatten(tree, list(avals))
    if len(result) != len(wanted):
        return None
    all_parts = [one for i in range(len(wanted)) for one in _unlike(result, wanted, i)]
    for found in all_parts[:1]:
        piece = bodies.part(rule, found.path) if rule else None
        argument = _argument(found.path, names)
        called = argument.split("`")[1] if "`" in argument else argument
        lacking, extra = reversed(found.keys)
        what = f"{name} returns {kind(found.left)} as the gradient of {argument}, which is "
        what += kind(found.right)
        written = piece[0] if piece else None
        if lacking:
            what += f": there is nothing for {listed(f'{called}[{key!r}]' for key in lacking)}"
            more = ", ".join(f"{key!r}: ..." for key in lacking)
            inside = text(written)[1:-1] if isinstance(written, ast.Dict) else ""
            shown = f"{{{inside}, {more}}}" if inside else f"{{..., {more}}}"
            way = f"return one gradient for each: {shown}; None for what has none"
        elif extra:
            way = f"leave {listed(map(repr, extra), quote='')} out, which {argument} does not have"
        else:
            way = f"return {kind(found.right)} there, one gradient for each part, None for none"
        return Said(what + begins, way, piece[1] if piece else None, 3.5)
    return None


def _unlike(result: tuple, wanted: tuple, index: int) -> Iterator[Difference]:
    """Where a gradient is another tree than its argument; None stands for no gradient."""
    for found in differences(result[index], wanted[index], path=f"[{index}]"):
        if found.left is not None:
            yield found


def _holder(rule: Any, trouble: Trouble) -> Any:
    """The custom_vjp with this backward rule, among what the user's frames hold."""
    scopes = [scope for step in trouble.own for scope in (step.values, step.frame.f_globals)]
    for held in (value for scope in scopes for value in list(scope.values())):
        bwd = getattr(held, "bwd", None) if type(held).__name__ == "custom_vjp" else None
        if bwd is not None and sources.plain(bwd) is rule:
            return held
    return None


def _numbers(aval: str) -> tuple[int, ...]:
    inside = re.search(r"\[(.*?)\]", aval)
    return tuple(int(n) for n in inside[1].split(",") if n.isdigit()) if inside else ()


def _forward(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    owner, step = _function(trouble, "custom_vjp"), sure(trouble.within(*frames.FORWARD_RULE))
    rule = sure(getattr(owner, "fwd", None))
    name, primal = sources.name_of(rule), sources.name_of(owner)
    value, place = sources.ending(rule)
    shown = text(value, "nothing")
    out = step.held.pair_out
    if "must produce a pair" in trouble.text:
        what = f"{name}, the forward rule of {primal}, returns {kind(out)}; it has to return a "
        what += "pair, a tuple (result, residuals)"
        way = f"write `return {shown}, residuals`, the residuals being what the backward rule "
        way += "needs, or None"
        return Said(what + _used(trouble), way, place)
    other = sources.returns(owner)
    what = f"the first thing that {name} returns is not like what {primal} returns"
    told = re.search(r"(?:got|but)[^\n]*?(\w+\[[\d,]*\])[^\n]*?(\w+\[[\d,]*\])", trouble.text)
    what += f": {told[1]} and {told[2]}" if told else ""
    what += f"\n  {primal} returns at {here(other[-1][1])}" if other else ""
    way = f"return the result of {primal} first: `return {primal}(...), residuals`"
    return Said(what, way, place)


def _tangent(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    owner, step = _function(trouble, "custom_jvp"), sure(trouble.within(*frames.JVP_RULE))
    rule = sure(getattr(owner, "jvp", None))
    name, primal = sources.name_of(rule), sources.name_of(owner)
    value, place = sources.ending(rule)
    begins = _used(trouble)
    if "must produce a pair" in trouble.text:
        out = step.held.pair_out
        what = f"{name}, the rule of {primal}, returns {kind(out)}; it has to return a pair, a "
        what += "tuple (result, tangent of the result)"
        shown = text(value, "nothing")
        return Said(what + begins, f"write `return {shown}, tangent`", place)
    result: Any = step.held.py_primals_out
    tangent: Any = step.held.py_tangents_out
    parts = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == 2 else [None, None]
    shown = text(parts[1]) if parts[1] is not None else "tangent"
    if hasattr(result, "shape") and hasattr(tangent, "shape"):
        what = f"{name}, the rule of {primal}, returns the tangent {of_type(_aval(tangent))} for a "
        what += f"result that is {of_type(_aval(result))}: shapes {_shape(tangent)} and "
        what += f"{_shape(result)}"
        way = "the tangent has the shape and dtype of the result"
        if len(_shape(tangent)) > len(_shape(result)):
            way += f", e.g. jnp.sum({shown})"
        elif _shape(tangent) == _shape(result):
            way += f": ({shown}).astype(jnp.{result.dtype})"
    else:
        what = (
            f"{name}, the rule of {primal}, returns the tangent {structure(tangent)} for a result "
        )
        what += structure(result)
        way = "return a tangent for every part of the result"
        if is_leaf(result) and isinstance(tangent, tuple | list):
            way = "there is one result, so there is one tangent: the sum over the arguments"
            if isinstance(parts[1], ast.Tuple):
                way += f", `{' + '.join(map(text, parts[1].elts))}`"
    return Said(what + begins, way, place)


def _aval(x: Any) -> Any:
    return getattr(x, "aval", x)


def _shape(x: Any) -> tuple:
    return tuple(getattr(x, "shape", ()))


def _forward_mode(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    """jvp or jacfwd of a function that has a rule for reverse mode only."""
    used = last
    outer = trouble.within(*frames.FORWARD)
    caller = trouble.caller(outer) or used
    node = sources.expression(used.place)
    call = sources.around(node, ast.Call) if node is not None else None
    name = f"`{text(call.func)}`" if call is not None and used is not caller else "this function"
    what = f"{name} has a derivative rule for reverse mode only (jax.custom_vjp), and here it is "
    what += "differentiated forward, as jax.jvp and jax.jacfwd do"
    what += f"\n  it is called at {here(used.place)}" if used is not caller else ""
    way = "use jax.jacrev, jax.grad or jax.vjp; or give the function a rule with jax.custom_jvp, "
    return Said(what, f"{way}which serves both directions", caller.place)


def _undefined(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    rule = f"custom_{found[1].lower()}"
    owner = _function(trouble, rule)
    fun = sources.plain(owner)
    defined = sources.definition(fun) if fun else None
    name = sources.name_of(owner)
    what = f"{name} is marked with jax.{rule}, but no derivative rule has been given to it"
    way = f"call {name}.defvjp({name}_fwd, {name}_bwd) after both are defined; or drop the "
    way += "decorator"
    if rule == "custom_jvp":
        way = f"define a rule, decorated with @{name}.defjvp; or drop the decorator"
    place = None
    if defined is not None:
        decorators = getattr(defined[0], "decorator_list", [])
        place = sources.place(decorators[0], defined[1].file, name) if decorators else defined[1]
    return Said(what + _used(trouble), way, place)


derivative_rules = topic(
    Diagnosis("Custom VJP bwd rule", _backward, frame=frames.BACKWARD_RULE),
    Diagnosis("Custom VJP fwd rule", _forward),
    Diagnosis("Custom JVP rule", _tangent),
    Diagnosis(r"forward-mode .*to a custom_vjp function", _forward_mode),
    Diagnosis("No (VJP|JVP) defined", _undefined),
)
