"""Values of a kind that the operation does not take: None, lists, strings, whole numbers."""

import ast
import difflib
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from malleable.compat import frames
from malleable.inspection.advice.evidence import sources
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Probe, Unsure, sure, topic
from malleable.inspection.advice.evidence.operands import Operand, operands
from malleable.inspection.advice.evidence.sources import MISSING, text
from malleable.inspection.advice.evidence.trouble import Step, Trouble
from malleable.inspection.advice.evidence.wording import kind, of_type, shape_of

Told = tuple[str, str]


def _operation(say: Callable[..., Told]) -> Probe:
    """A probe of what goes into the operation that fails, in the user's own line."""

    def probed(found: re.Match, trouble: Trouble, step: Step) -> Told:
        callee = trouble.callee
        sure(not trouble.foreign and not (callee and callee.name in frames.TREE_MAP))
        return say(found, *operands(trouble, deep=True))

    return probed


def _arrays(known: list[Operand]) -> list[Operand]:
    return [one for one in known if hasattr(one.value, "dtype")]


def _shown(known: list[Operand]) -> str:
    return ", ".join(f"`{one.name}` is {of_type(one.value)}" for one in known)


def _immutable(found, node, known) -> Told:
    statement = sources.statement(node)
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=array, slice=index)], value=value):
            method = "set"
        case ast.AugAssign(target=ast.Subscript(value=array, slice=index), op=op, value=value):
            method = {"Add": "add", "Sub": "add", "Mult": "multiply", "Div": "divide"}.get(
                type(op).__name__, "set"
            )
            value = ast.UnaryOp(ast.USub(), value) if isinstance(op, ast.Sub) else value
        case ast.Delete():
            return "arrays of JAX cannot lose elements in place", "use jnp.delete(x, i)"
        case _:
            raise Unsure
    name, at = text(array), text(index).strip("()")
    what = f"`{name}` is an array of JAX, and those cannot be changed in place"
    return what, f"write {name} = {name}.at[{at}].{method}({text(value)})"


def _no_at(found, node, known) -> Told:
    name = text(_attribute(node, "at").value)
    what = f"`{name}` is a NumPy array (numpy.ndarray), which has no .at; arrays of JAX have"
    return what, f"write jnp.asarray({name}).at[...], or make {name} with jax.numpy"


def _attribute(node: ast.AST, name: str) -> ast.Attribute:
    inside = [*ast.walk(node), *sources.parents(node)]
    return sure([n for n in inside if isinstance(n, ast.Attribute) and n.attr == name])[0]


_METHODS = {"append": "jnp.append(x, y), or collect in a list and jnp.stack it"}
_METHODS |= {"numpy": "np.asarray(x) outside of the traced function", "cpu": "jax.device_get(x)"}
_METHODS |= {"detach": "jax.lax.stop_gradient(x)", "view": "x.reshape(...)", "size": "x.size"}
_METHODS |= {"permute": "jnp.transpose(x, axes)", "unsqueeze": "jnp.expand_dims(x, axis)"}
_METHODS |= {"fill": "jnp.full_like(x, value)", "sort_": "jnp.sort(x)", "clone": "x.copy()"}


def _no_attribute(found, node, known) -> Told:
    name = text(_attribute(node, found[1]).value)
    what = f"`{name}` is an array of JAX, which has no .{found[1]}"
    return what, f"write {_METHODS[found[1]]}" if found[1] in _METHODS else "look in jax.numpy"


def _ragged(found, node, known) -> Told:
    call = sources.around(node, ast.Call)
    lists = [one for one in known if isinstance(one.value, list | tuple)]
    path, sizes = sure(next(filter(None, (_uneven(one.value, one.name) for one in lists)), None))
    what = f"the rows of `{path}` are not equally long: {', '.join(map(str, sizes))}"
    name = text(call.func) if call is not None else "jnp.array"
    way = f"pad them to the same length before {name}, e.g. row + [0.0] * ({max(sizes)}"
    return what, f"{way} - len(row)); or keep a list of arrays"


def _uneven(rows: Any, path: str) -> tuple[str, list[int]] | None:
    sizes = [len(row) if hasattr(row, "__len__") else 0 for row in rows]
    if len(set(sizes)) > 1:
        return path, sizes
    for i, row in enumerate(rows):
        if isinstance(row, list | tuple) and (found := _uneven(row, f"{path}[{i}]")):
            return found
    return None


def _unsupported(found, node, known) -> Told:
    odd = [one for one in known if not hasattr(one.value, "dtype") and not _number(one.value)]
    one = sure(odd)[0]
    others = [other for other in known if other is not one and hasattr(other.value, "dtype")]
    what = f"`{one.name}` is {kind(one.value)}"
    what += f" and {_shown(others[:1])}" if others else ""
    what += ": arithmetic needs arrays and numbers"
    if one.value is None:
        product = isinstance(getattr(node, "op", None), ast.Mult | ast.Div)
        like = f"jnp.{'ones' if product else 'zeros'}_like({others[0].name})" if others else "0.0"
        skip = f", or skip it: `if {one.name} is not None`" if one.name != "None" else ""
        return what, f"give it a value, e.g. {like}{skip}"
    if isinstance(one.value, list | tuple):
        alike = len({str(shape_of(part)) for part in one.value}) == 1
        first = f"make an array of it, jnp.asarray({one.name}); or " if alike else ""
        return what, f"{first}take an element, {one.name}[0]"
    if isinstance(one.value, dict):
        return what, f"take an entry of it, {one.name}[...], or use jax.tree.map for all"
    if callable(one.value):
        return what, f"call it: {one.name}(...)"
    return what, "convert it to a number or an array first"


def _number(x: Any) -> bool:
    return x is MISSING or isinstance(x, bool | int | float | complex | np.generic)


def _same(found, node, known) -> Told:
    arrays = _arrays(known)
    types = {str(one.value.dtype) for one in arrays}
    sure(len(types) > 1)
    widest = lambda t: (-1 if "key" in t else "biufc".find(np.dtype(t).kind), t)  # noqa: E731
    to = max(types, key=widest)
    odd = next(one for one in arrays if str(one.value.dtype) != to)
    name = text(node.func) if isinstance(node, ast.Call) else "this operation"
    what = f"{name} takes arrays of one dtype only: {_shown(arrays)}"
    way = f"convert one: ({odd.name}).astype(jnp.{to})"
    strict = "dtype promotion" in found.string  # then jax.numpy converts nothing either
    return what, way if strict else f"{way}; functions of jax.numpy convert by themselves"


def _accepts(found, node, known) -> Told:
    dtype, accepted = found[1], found[2]
    arrays = [one for one in _arrays(known) if str(one.value.dtype) == dtype] or _arrays(known)
    one = sure(arrays)[0]
    only = accepted.strip(" .")
    what = f"`{one.name}` is {of_type(one.value)}, and this operation takes {only} only"
    if "float" in accepted:
        return what, f"write ({one.name}).astype(jnp.float32)"
    if "bool" in accepted:
        way = f"write ({one.name} != 0) or ({one.name}).astype(bool) for a truth value"
        return what, f"{way}; ({one.name}).astype(jnp.int32) for bits"
    return what, f"write ({one.name}).astype(jnp.int32)"


def _indexer(found, node, known) -> Told:
    item = sources.around(node, ast.Subscript)
    floats = [one for one in known if str(getattr(one.value, "dtype", "")).startswith("float")]
    floats += [one for one in known if isinstance(one.value, float)]
    inside = {text(n) for n in ast.walk(item.slice)} if item is not None else set()
    chosen = [one for one in floats if one.name in inside] or floats[-1:]
    one = sure(chosen)[0]
    array = text(item.value) if item is not None else "the array"
    what = f"`{one.name}`, used as an index of `{array}`, is {of_type(one.value)}; an index is a "
    what += "whole number or a truth value"
    cast = f"{one.name}.astype(jnp.int32)" if hasattr(one.value, "dtype") else f"int({one.name})"
    return what, f"write {array}[{cast}]"


def _integers(found, node, known) -> Told:
    floats = [one for one in _arrays(known) if one.value.dtype.kind == "f"]
    inside = [one for one in floats if re.search("ind|idx|pos|perm", one.name)] or floats[-1:]
    one = sure(inside)[0]
    name = text(node.func) if isinstance(node, ast.Call) else "this"
    what = f"`{one.name}` is {of_type(one.value)}, and {name} takes whole numbers for indices"
    return what, f"write {one.name}.astype(jnp.int32)"


def _unpacked(found, node, known) -> Told:
    statement = sources.statement(node)
    arrays = [one for one in _arrays(known) if one.shape]
    one, targets = sure(arrays)[0], sure(getattr(statement, "targets", None))[0]
    count = len(targets.elts) if isinstance(targets, ast.Tuple) else "?"
    what = f"`{one.name}` is one array of shape {one.shape}, not a tuple: it is unpacked row by "
    what += f"row, {one.shape[0]} rows into {count} names"
    return what, f"pass a tuple of {count}, or index it: {one.name}[0]"


def _text(found, node, known) -> Told:
    arrays = [one for one in known if isinstance(one.value, np.ndarray)]
    odd = [one for one in known if isinstance(one.value, str)]
    one = sure(odd + [one for one in arrays if one.value.dtype.kind in "UO"])[0]
    what = f"`{one.name}` is {kind(one.value)} (a str): arrays of JAX hold numbers only"
    return what, "keep text outside of arrays, or number it: an index into a list of names"


def _not_array(found, node, known) -> Told:
    odd = [one for one in known if isinstance(one.value, list | tuple | dict | str | None)]
    odd = [one for one in odd if one.value is not MISSING]
    one = sure(odd)[0]
    name = text(node.func) if isinstance(node, ast.Call) else "this"
    what = f"`{one.name}` is {kind(one.value)}; {name} takes arrays"
    if isinstance(one.value, list | tuple):
        return what, f"write {name}(jnp.asarray({one.name})), or jnp.stack for a list of arrays"
    return what, "pass an array"


def _whole(found, node, known) -> Told:
    floats = [one for one in known if isinstance(one.value, float)]
    name = floats[0].name if floats else None
    shown = f"`{name}` is {of_type(floats[0].value)}" if floats else f"it is {found[1]}"
    what = f"a shape is made of whole numbers, but {shown}"
    return what, f"write int({name}), or divide with //" if name else "write int(...), or use //"


def _no_dtype(found, node, known) -> Told:
    near = difflib.get_close_matches(found[1], _NAMES, 1, 0.5)
    what = f"there is no dtype called {found[1]!r}"
    return what, f"write {near[0]!r}, or jnp.{near[0]}" if near else "write jnp.float32, say"


_NAMES = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_NAMES += ["float16", "float32", "float64", "bool", "bfloat16", "complex64"]

_TABLE = (
    (r"data type '(\w+)' not understood", _no_dtype),
    (r"arrays are immutable and do not support in-place|not support item ass", _immutable),
    (r"'numpy\.ndarray' object has no attribute 'at'", _no_at),
    (r"(?:Tracer|ArrayImpl)' object has no attribute '(\w+)'", _no_attribute),
    (r"(?:Tracer|ArrayImpl|Array) has no attribute '?(\w+)'?", _no_attribute),
    (r"inhomogeneous", _ragged),
    (r"unsupported operand type|can't multiply sequence|bad operand type", _unsupported),
    (r"arguments to have the same dtypes|no available implicit dtype promotion", _same),
    (r"does not accept dtype (\w+).*?Accepted dtypes.*?subtypes of ([^.]*)", _accepts),
    (r"Indexer must have integer or boolean type|slice indices must be integers", _indexer),
    (r"must be of integer type|must have an integer dtype|indices must have (an )?int", _integers),
    (r"values to unpack", _unpacked),
    (r"with dtype <U|Only arrays of numeric types", _text),
    (r"requires ndarray or scalar arguments|Cannot interpret value of type", _not_array),
    (r"Shapes must be 1D sequences of concrete values .*, got (\(?[\d., ]+\)?)", _whole),
)

dtypes = topic(*(Diagnosis(f"(?s){said}", _operation(say)) for said, say in _TABLE))
