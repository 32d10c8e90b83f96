"""Derivative rules of the user's own, custom_vjp and custom_jvp, that do not fit the function."""

import ast
import re
from collections.abc import Iterator
from typing import Any

from malleable.errors import Advice
from malleable.inspection.advice import bodies, creation, sources
from malleable.inspection.advice.sources import text
from malleable.inspection.advice.trouble import Trouble, here
from malleable.inspection.advice.wording import kind, of_type, structure


def derivative_rules(trouble: Trouble) -> Iterator[Advice]:
    """custom_vjp and custom_jvp."""
    words = trouble.text
    if "Custom VJP bwd rule" in words:
        yield from _backward(trouble)
    elif "Custom VJP fwd rule" in words:
        yield from _forward(trouble)
    elif "Custom JVP rule" in words:
        yield from _tangent(trouble)
    elif re.search(r"forward-mode .*to a custom_vjp function", words):
        yield from _forward_mode(trouble)
    elif "No VJP defined" in words or "No JVP defined" in words:
        yield from _undefined(trouble)


def _function(trouble: Trouble, kind_of_rule: str) -> Any:
    """The custom_vjp or custom_jvp object whose call is running, if it still is."""
    step = trouble.within("__call__")
    for step in reversed(trouble.steps):
        owner = step.values.get("self") if step.name == "__call__" and not step.own else None
        if type(owner).__name__ == kind_of_rule:
            return owner
    return None


def _backward(trouble: Trouble) -> Iterator[Advice]:
    step = trouble.within("_flatten_bwd")
    if step is None:
        return
    rule = sources.plain(step.values.get("f"))
    rule = rule if rule is not None and _is_users(rule) else _named_rule(trouble)
    result, ends = step.values.get("py_cts_in"), sources.returns(rule) if rule else []
    name = sources.name_of(rule) if rule else "bwd"
    value, place = ends[-1] if ends else (None, None)
    primal = creation.owner(rule)
    names = sources.parameters(primal) if primal is not None else []
    primal_name = sources.name_of(primal) if primal is not None else "the function"
    begins = _used(trouble)
    told = re.search(
        r"at output(\S*) the bwd rule produced an output of type (\S+) "
        r"corresponding to an input of type (\S+?),",
        trouble.text,
    )
    if told is not None:
        index = next(iter(bodies.keys_of(told[1])), 0)
        piece = bodies.part(rule, told[1]) if rule else None
        expression = text(piece[0]) if piece and piece[0] is not None else "..."
        argument = _argument(trouble, index, names, value)
        got, wanted = _numbers(told[2]), _numbers(told[3])
        what = f"{name} returns {told[2]} as output{told[1]}, the gradient of {argument}, which is "
        what += f"{told[3]}{begins}"
        way = f"return the shape and dtype of {argument}"
        if len(got) > len(wanted):
            axes = tuple(range(len(got) - len(wanted)))
            axis = axes[0] if len(axes) == 1 else axes
            way = f"sum over the axes that were broadcast: jnp.sum({expression}, axis={axis})"
        elif got == wanted:
            way = f"convert it: ({expression}).astype(jnp.{told[3].split('[')[0]})"
        elif len(got) < len(wanted):
            way = f"give it the shape of {argument}: jnp.broadcast_to({expression}, {wanted})"
        yield Advice(what, here(piece[1] if piece else place), way, 3)
        return
    count = step.values["in_tree"].num_leaves if "in_tree" in step.values else None
    tree = step.values.get("in_tree")
    arity = len(tree.children()) if tree is not None else count
    shown = text(value) if value is not None else "nothing"
    what = f"{name} returns {kind(result)}, but {primal_name} has {arity} argument"
    what += (
        "s" * (arity != 1) + f": it has to return a tuple of {arity}, one gradient for each{begins}"
    )
    if not isinstance(result, tuple) and arity == 1:
        way = f"write `return ({shown},)`"
    elif isinstance(result, tuple | list) and arity is not None and len(result) < arity:
        lacking = ", ".join(["None"] * (arity - len(result)))
        parts = [text(e) for e in value.elts] if isinstance(value, ast.Tuple) else [f"*{shown}"]
        way = f"write `return ({', '.join(parts)}, {lacking})`, None where there is no gradient"
    else:
        way = "return one gradient per argument, None where there is none"
    yield Advice(what, here(place), way, 3)


def _is_users(rule: Any) -> bool:
    found = sources.definition(rule)
    return found is not None and "site-packages" not in found[1].file


def _named_rule(trouble: Trouble) -> Any:
    """The backward rule among what JAX's frames hold."""
    for step in reversed(trouble.steps):
        for name in ("bwd", "f_bwd"):
            rule = sources.plain(step.values.get(name)) if not step.own else None
            if rule is not None and _is_users(rule):
                return rule
    return None


def _used(trouble: Trouble) -> str:
    last = trouble.last
    return f"\n  it is differentiated at {here(last.place)}" if last else ""


def _argument(trouble: Trouble, index: int, names: list[str], value) -> str:
    return f"the argument `{names[index]}`" if index < len(names) else f"argument {index}"


def _numbers(aval: str) -> tuple[int, ...]:
    inside = re.search(r"\[(.*?)\]", aval)
    return tuple(int(n) for n in inside[1].split(",") if n.isdigit()) if inside else ()


def _forward(trouble: Trouble) -> Iterator[Advice]:
    owner = _function(trouble, "custom_vjp")
    step = trouble.within("_flatten_fwd")
    rule = getattr(owner, "fwd", None)
    if rule is None or step is None:
        return
    ends = sources.returns(rule)
    name, primal = sources.name_of(rule), sources.name_of(owner)
    value, place = ends[-1] if ends else (None, sources.where_defined(rule))
    shown = text(value) if value is not None else "nothing"
    out = step.values.get("pair_out")
    if "must produce a pair" in trouble.text:
        what = (
            f"{name}, the forward rule of {primal}, returns {kind(out)}; it has to return a pair, "
        )
        what += "a tuple (result, residuals)"
        way = f"write `return {shown}, residuals`, the residuals being what the backward rule "
        way += "needs, or None"
        yield Advice(what + _used(trouble), here(place), way, 3)
        return
    other = sources.returns(owner)
    what = f"the first thing that {name} returns is not like what {primal} returns"
    told = re.search(r"(?:got|but)[^\n]*?(\w+\[[\d,]*\])[^\n]*?(\w+\[[\d,]*\])", trouble.text)
    what += f": {told[1]} and {told[2]}" if told else ""
    what += f"\n  {primal} returns at {here(other[-1][1])}" if other else ""
    way = f"return the result of {primal} first: `return {primal}(...), residuals`"
    yield Advice(what, here(place), way, 3)


def _tangent(trouble: Trouble) -> Iterator[Advice]:
    owner = _function(trouble, "custom_jvp")
    step = trouble.within("_flatten_jvp")
    rule = getattr(owner, "jvp", None)
    if rule is None or step is None:
        return
    ends, name, primal = sources.returns(rule), sources.name_of(rule), sources.name_of(owner)
    value, place = ends[-1] if ends else (None, sources.where_defined(rule))
    begins = _used(trouble)
    if "must produce a pair" in trouble.text:
        out = step.values.get("pair_out")
        what = (
            f"{name}, the rule of {primal}, returns {kind(out)}; it has to return a pair, a tuple "
        )
        what += "(result, tangent of the result)"
        shown = text(value) if value is not None else "nothing"
        yield Advice(what + begins, here(place), f"write `return {shown}, tangent`", 3)
        return
    result: Any = step.values.get("py_primals_out")
    tangent: Any = step.values.get("py_tangents_out")
    parts = value.elts if isinstance(value, ast.Tuple) and len(value.elts) == 2 else [None, None]
    shown = text(parts[1]) if parts[1] is not None else "tangent"
    if (hasattr(result, "shape") and hasattr(tangent, "shape")) or hasattr(result, "dtype"):
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
    yield Advice(what + begins, here(place), way, 3)


def _aval(x: Any) -> Any:
    return getattr(x, "aval", x)


def _shape(x: Any) -> tuple:
    return tuple(getattr(x, "shape", ()))


def _forward_mode(trouble: Trouble) -> Iterator[Advice]:
    """jvp or jacfwd of a function that has a rule for reverse mode only."""
    used = trouble.last
    outer = trouble.within("jacfun", "_jvp", "jvp", "linearize")
    caller = trouble.caller(outer) or used
    if used is None or caller is None:
        return
    node = sources.expression(used.place)
    call = sources.around(node, ast.Call) if node is not None else None
    name = f"`{text(call.func)}`" if call is not None and used is not caller else "this function"
    what = f"{name} has a derivative rule for reverse mode only (jax.custom_vjp), and here it is "
    what += "differentiated forward, as jax.jvp and jax.jacfwd do"
    what += f"\n  it is called at {here(used.place)}" if used is not caller else ""
    way = "use jax.jacrev, jax.grad or jax.vjp; or give the function a rule with jax.custom_jvp, "
    yield Advice(what, here(caller.place), f"{way}which serves both directions", 3)


def _undefined(trouble: Trouble) -> Iterator[Advice]:
    rule = "custom_vjp" if "VJP" in trouble.text else "custom_jvp"
    owner = _function(trouble, rule)
    if owner is None:
        return
    fun = sources.plain(owner)
    found = sources.definition(fun) if fun else None
    name = sources.name_of(owner)
    what = f"{name} is marked with jax.{rule}, but no derivative rule has been given to it"
    way = (
        f"call {name}.defvjp({name}_fwd, {name}_bwd) after both are defined; or drop the decorator"
    )
    if rule == "custom_jvp":
        way = f"define a rule, decorated with @{name}.defjvp; or drop the decorator"
    place = None
    if found is not None:
        decorators = getattr(found[0], "decorator_list", [])
        place = sources.place(decorators[0], found[1].file, name) if decorators else found[1]
    yield Advice(what + _used(trouble), here(place), way, 3)
