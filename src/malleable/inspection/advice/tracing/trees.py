"""Trees of arguments: two that differ, and leaves that are not arrays."""

import ast
import difflib
import re
from collections.abc import Iterator
from typing import Any

from malleable.compat import frames
from malleable.inspection.advice.evidence import bodies, creation, sources
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said, Unsure, sure, topic
from malleable.inspection.advice.evidence.differences import children, differences
from malleable.inspection.advice.evidence.sources import text
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.evidence.wording import (
    a,
    is_jitted,
    is_leaf,
    kind,
    leaves,
    of_type,
)

# ---------------------------------------------------------------- tree.map


def _is_users(step: Step, trouble: Trouble) -> bool:
    """Whether the user calls tree.map, and not JAX or a library for its own ends."""
    before = [s for s in trouble.steps[: trouble.steps.index(step)] if not _is_door(s)]
    return bool(before) and before[-1].own


def _is_door(step: Step) -> bool:
    """Whether this is jax.tree.map, which only calls another function."""
    return not step.own and step.place.file.endswith("tree.py")


def _two_trees(met: re.Match, trouble: Trouble, last: Step) -> Said | None:
    """Trees of different structure, in a call in user code or in a library."""
    step: Any = trouble.within(*frames.TREE_MAP)
    inside = not _is_users(step, trouble)
    sure(not inside or trouble.foreign)
    caller, call = _called(step, trouble)
    trees = [step.held.tree, *(step.held.rest or ())]
    given = [text(arg) for arg in call.args[1:]]
    if inside:  # a library maps over what it was given
        given = [_called_by(caller, tree) or f"tree {i}" for i, tree in enumerate(trees, 1)]
    names = [*given, *(f"argument {i + 2}" for i in range(len(given), len(trees)))]
    ends = step.held.is_leaf or (lambda _: False)
    for name, other in zip(names[1:], trees[1:], strict=False):
        for found in differences(trees[0], other, prefix=False):
            if is_leaf(found.left) or ends(found.left):
                continue  # the first tree decides: anything may stand for its leaf
            first, left, right = names[0], found.left, found.right
            only_left, only_right = found.keys
            if only_left or only_right:
                word = ", ".join(map(repr, only_left or only_right))
                has, lacks = (first, name) if only_left else (name, first)
                what = f"`{first}` and `{name}` differ: {found.says(first, name)}"
                way = f"give both the same keys: add {word} to `{lacks}{found.path}`, or drop it "
                way += f"from `{has}{found.path}`"
            elif left is None or right is None:
                what = found.says(first, name)
                way = "None is an empty tree: pass is_leaf=lambda x: x is None, and treat it in "
                way += "the function; or use None in both"
            else:
                what = found.says(first, name)
                way = "build the second from the first, e.g. with jax.tree.map(jnp.zeros_like, "
                way += f"{first}), or make them the same there"
            if inside:
                what = f"{text(call.func)} goes through two trees at once, and {what}"
                way = "make both from one tree: what is made for parameters, as the state of an "
                way += "optimizer is, has to be made anew (.init) when these change"
                for tree, pair, of in ((trees[0], other, name), (other, trees[0], first)):
                    if (part := _part(tree, pair)) is not None:
                        way = f"pass {of}[{part}]: `{of}` is a pair, whose part {part} is such a "
                        way += "tree, as jax.value_and_grad and optimizers return it"
            return Said(what, way, caller.place)
    return None


def _called(step: Step, trouble: Trouble) -> tuple[Step, ast.Call]:
    """Who calls a function of JAX, and the call."""
    caller = sure(trouble.caller(step))
    match call := sources.expression(caller.place):
        case ast.Call():
            return caller, call
    raise Unsure


def _part(tree: Any, pair: Any) -> int | None:
    """Which of two results, as of jax.value_and_grad or an optimizer's update, is such a tree."""
    if type(pair) is not tuple or len(pair) != 2 or is_leaf(tree):
        return None
    like = [i for i, part in enumerate(pair) if not any(differences(tree, part, prefix=False))]
    return like[0] if len(like) == 1 else None


def _called_by(step: Step, tree: Any) -> str:
    """What the user calls a tree: `state[0].mu`; "" where no variable of theirs holds it."""
    waiting = [(name, held, 0) for name, held in step.values.items()]
    for name, held, depth in waiting:
        if held is tree:
            return name
        if depth < DEEP and len(waiting) < MANY and isinstance(held, dict | list | tuple):
            waiting += [(name + key, child, depth + 1) for key, child in children(held)]
    return ""


DEEP, MANY = 5, 4096  # how far a tree is looked for in others


def _one_leaf(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    """The function fails on the leaves at one path."""
    step: Any = trouble.within(*frames.TREE_MAP)
    inner = trouble.steps[trouble.steps.index(step) + 1 :]
    xs = sure([s.held.xs for s in inner if isinstance(s.held.xs, tuple)])[0]
    caller, call = _called(step, trouble)
    trees = [step.held.tree, *(step.held.rest or ())]
    paths = [k for k, leaf in leaves(trees[0], "", is_leaf=step.held.is_leaf) if leaf is xs[0]]
    names = [text(arg) for arg in call.args[1:]]
    sure(_is_users(step, trouble) and len(paths) == 1 and len(xs) == len(trees) <= len(names))
    shown = ", ".join(f"`{n}{paths[0]}` is {of_type(x)}" for n, x in zip(names, xs, strict=False))
    what = f"the function fails at the leaf {paths[0]} of the trees: {shown}"
    what += f"\n  it is mapped over the trees at {here(caller.place)}" if last != caller else ""
    shapes = {getattr(x, "shape", ()) for x in xs}
    way = "give the trees leaves of the same shape, or reshape them in the function"
    if any(x is None for x in xs):
        way = "None is a leaf here: treat it in the function, or put an array of zeros in its place"
    elif len(shapes) == 1:
        way = "look at what the function does with leaves of these types"
    return Said(what, way, last.place, 4)


def _no_key(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    """A key that a dictionary among the traced arguments does not have."""
    item = sure(sources.around(sources.expression(last.place), ast.Subscript))
    tree: Any = sources.value(item.value, last)
    name, key = text(item.value), trouble.error.args[0]
    sure(any(s.jax for s in trouble.steps) and isinstance(tree, dict) and key not in tree)
    what = f"`{name}` has no key {key!r}; its keys are {', '.join(map(repr, tree))}"
    near = difflib.get_close_matches(str(key), list(map(str, tree)), 1, 0.3)
    way = f"write {near[0]!r}, or " if near else ""
    return Said(what, f"{way}add {key!r} where `{name}` is made")


# ---------------------------------------------------------------- leaves that are not arrays


def _no_array(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    told = sure(re.search(r"passed to the function at path (\S+?)\.(?:\s|$)", trouble.text))
    step = sure(trouble.within(*frames.JIT_INPUT))
    jit = trouble.within(*frames.JIT) or step
    fun = sure(jit.held.fun)
    path, leaf, name = told[1], step.held.x, sources.name_of(fun)
    root = re.split(r"[\[.]", path)[0]
    made, call = creation.find("jit", fun, trouble), trouble.caller(jit)
    place = made or (call.place if call else None)
    what = f"`{path}` is {_said_of(leaf)}; the arguments of {name}, which jax.jit traces, have to "
    what += "be arrays"
    if call is not None and made is not None and call.place.line != made.line:
        what += f"\n  it is called at {here(call.place)}"
    return Said(what, _make_static(path, root, leaf, name), place)


def _said_of(leaf: Any) -> str:
    if leaf is None:
        return "no array"
    if isinstance(leaf, str):
        return f"the str {leaf!r}"
    if callable(leaf) and (hasattr(leaf, "__name__") or is_jitted(leaf)):
        return f"a function, {sources.name_of(leaf)}"
    return a(f"{type(leaf).__name__} object") if type(leaf).__module__ != "builtins" else kind(leaf)


def _make_static(path: str, root: str, leaf: Any, name: str) -> str:
    """How to pass something that is not an array."""
    if root == "self":
        cls = type(leaf).__name__
        return (
            f"register {cls} as a pytree (jax.tree_util.register_dataclass or "
            f"register_pytree_node_class), so that its arrays are arguments; or, if it never "
            f"changes, @functools.partial(jax.jit, static_argnames='self'); or jit a plain "
            f"function of the arrays"
        )
    if path == root:
        simple = isinstance(leaf, str) or callable(leaf)
        way = f"mark it static: jax.jit({name}, static_argnames={root!r})"
        if simple:
            return f"{way}; or fix it before with functools.partial({name}, {root}=...)"
        return (
            f"register {type(leaf).__name__} as a pytree (jax.tree_util.register_dataclass), so "
            f"that its arrays are traced; or, if it can be hashed and rarely changes, {way}"
        )
    if isinstance(leaf, str) or callable(leaf):
        return (
            f"take it out of `{root}` and pass it by itself, as a static argument: "
            f"jax.jit({name}, static_argnames='name'); or let the function close over it"
        )
    return (
        f"register {type(leaf).__name__} as a pytree (jax.tree_util.register_dataclass); or take "
        f"it out of `{root}` and pass it as a static argument (static_argnames)"
    )


def _no_result(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    step = trouble.within(*frames.OUTPUTS)
    told = re.search(
        r"returned a value of type (.+?) (?:at output component (\S+?))?,", trouble.text
    )
    sure(step or told)
    leaf = step.held.x if step else None
    path = (told[2] if told else "") or ""
    around = sure(trouble.within(*frames.STAGED))
    fun = sure(around.held.fun or around.held.body)
    name, at = sources.name_of(fun), sure(bodies.part(fun, path))[1]
    shown = f"the result of {name}" if not path else f"`{path}` in the result of {name}"
    what = f"{shown} is {_said_of(leaf)}; a traced function returns arrays"
    way = "leave it out of what is returned and add it outside, or return a number that stands for "
    way += "it, as an array; None is allowed"
    return Said(what, way, at)


def _no_leaf(found: re.Match, trouble: Trouble, last: Step) -> Said | None:
    """grad and vmap say what is not an array, but not where it is."""
    loop = trouble.within(*frames.FUNCTIONAL)
    if loop is not None:
        return _no_operand(loop, trouble)
    step = sure(trouble.within(*frames.DIFFERENTIATED))
    caller = sure(trouble.caller(step))
    fun, args = step.held.fun, step.held.args or step.held.primals or ()
    for root, arg in zip(sources.called_by(fun, len(args)), args, strict=True):
        for path, leaf in leaves(arg, root):
            if not hasattr(leaf, "dtype") and not isinstance(leaf, bool | int | float | complex):
                what = f"`{path}` is {_said_of(leaf)}, where {sources.name_of(fun)} needs an array"
                way = f"close over it, or functools.partial({sources.name_of(fun)}, {root}=...)"
                if path != root:  # the rest of the argument is still wanted
                    way = f"make a tree of the other leaves of `{root}`, and close over this one"
                return Said(what, f"take it out of what is passed: {way}", caller.place)
    return None


def _no_operand(step: Step, trouble: Trouble) -> Said | None:
    """A loop or a branch is given something that is not an array."""
    caller, _ = _called(step, trouble)
    of = step.held
    held = [of.init_flat, of.xs_flat, of.init_val_flat, of.args, of.operands]
    for flat, name in zip(held, ("init", "xs", "init_val", "operands", "operands"), strict=True):
        tree = getattr(flat, "unflatten", lambda flat=flat: flat)()
        for path, leaf in leaves(tree, name):
            if isinstance(leaf, str) or (callable(leaf) and not hasattr(leaf, "dtype")):
                what = f"`{path}` is {_said_of(leaf)}: lax.{step.name} works on arrays and numbers"
                way = "take it out of what is passed, and let the body close over it"
                return Said(what, way, caller.place)
    return None


def _unsorted(met: re.Match, trouble: Trouble, last: Step) -> Said | None:
    call: Any = sources.expression(last.place)
    sure(isinstance(call, ast.Call))
    for arg in [*call.args, *(keyword.value for keyword in call.keywords)]:
        for path, found in _dicts(sources.value(arg, last), text(arg)):
            types = sorted({type(key).__name__ for key in found})
            what = f"the keys of `{path}` cannot be sorted: {', '.join(map(repr, found))} are of "
            what += f"types {' and '.join(types)}"
            way = f"use keys of the same type, e.g. {{str(k): v for k, v in {path}.items()}}"
            return Said(what, way)
    return None


def _dicts(tree: Any, path: str) -> Iterator[tuple[str, dict]]:
    """(path, dict) of the dictionaries in a tree whose keys have several types."""
    if isinstance(tree, dict):
        try:
            sorted(tree)
        except TypeError:
            yield path, tree
        for key, child in tree.items():
            yield from _dicts(child, f"{path}[{key!r}]")
    elif isinstance(tree, list | tuple):
        for i, child in enumerate(tree):
            yield from _dicts(child, f"{path}[{i}]")


trees = topic(
    Diagnosis("Error interpreting argument to", _no_array),
    Diagnosis("not a valid JAX type", _no_result),
    Diagnosis("not a valid JAX type", _no_leaf),
    Diagnosis("sorting pytree dictionary keys", _unsorted),
    Diagnosis("", _two_trees, frame=frames.TREE_MAP),
    Diagnosis("", _one_leaf, frame=frames.TREE_MAP),
    Diagnosis("", _no_key, kind="KeyError"),
)
