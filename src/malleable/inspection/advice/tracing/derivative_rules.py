"""User-defined derivative rules, custom_vjp and custom_jvp, that do not fit the function."""

import ast
import re
from collections.abc import Iterator
from typing import Any

import jax

from malleable.compat import frames
from malleable.inspection.advice.evidence import bodies, creation, sources
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said, sure, topic
from malleable.inspection.advice.evidence.differences import Difference, differences
from malleable.inspection.advice.evidence.fitting import closed, fitted, gathered
from malleable.inspection.advice.evidence.sources import text
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.evidence.wording import is_leaf, kind, listed, of_type, structure


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
    shown = text(value) if value is not None else "nothing"
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
    ends = sources.returns(rule)
    name, primal = sources.name_of(rule), sources.name_of(owner)
    value, place = ends[-1] if ends else (None, sources.where_defined(rule))
    shown = text(value) if value is not None else "nothing"
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
    ends, name, primal = sources.returns(rule), sources.name_of(rule), sources.name_of(owner)
    value, place = ends[-1] if ends else (None, sources.where_defined(rule))
    begins = _used(trouble)
    if "must produce a pair" in trouble.text:
        out = step.held.pair_out
        what = f"{name}, the rule of {primal}, returns {kind(out)}; it has to return a pair, a "
        what += "tuple (result, tangent of the result)"
        shown = text(value) if value is not None else "nothing"
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
