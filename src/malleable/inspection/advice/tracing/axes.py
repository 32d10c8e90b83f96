"""vmap and its axes: in_axes and out_axes that do not fit what the function is given or gives."""

import contextlib
import itertools
import re
from typing import Any

import jax

from malleable import compat
from malleable.compat import Place, frames
from malleable.inspection.advice.evidence import creation, sources, tried
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said, sure, topic
from malleable.inspection.advice.evidence.differences import children, differences
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.evidence.wording import (
    is_leaf,
    kind,
    leaves,
    listed,
    of_type,
    shape_of,
)
from malleable.inspection.advice.hint import Way

MOST = 4  # arguments, of which all ways to map some of them are tried


def _mapping(met: re.Match, trouble: Trouble, last: Step) -> Said:
    """vmap is told to map over axes that are not there."""
    step, text = sure(trouble.within(*frames.VMAP, *frames.VMAP_MAKER)), trouble.text
    sure(trouble.caller(step) is last)  # what the mapped function does is another matter
    fun = step.held.fun
    if step.name in frames.VMAP_MAKER:
        return _bad_axes(step, trouble, last)
    spec, args = step.held.in_axes, step.held.args or ()
    options = step.held.among("in_axes", "out_axes")
    made = creation.find("vmap", fun, trouble, **options)
    name, names = sources.name_of(fun), sources.called_by(fun, len(args))
    edit = creation.keyword(made, "in_axes") or last.place
    called = f"\n  it is called at {here(last.place)}" if edit.line != last.place.line else ""
    advice: tuple[str, str] | None = None
    if "len(in_axes)" in text:
        advice = _arity(spec, args, names, name)
    elif "in_axes specification must be a tree prefix" in text:
        advice = _prefix(spec, args, names)
    elif "out_axes" in text or _moves_out(trouble):
        edit = creation.keyword(made, "out_axes") or edit
        advice = _out(step, trouble, name)
        called += _returned(fun, edit)
    elif "inconsistent sizes" in text:
        advice = _sizes(step, spec, args, step.held.kwargs or {}, names)
    elif "its rank should be at least" in text:
        advice = _rank(spec, args, names) or _keyword(step.held.kwargs or {}, fun)
    elif "at least one non-None value" in text:
        shown = {n: of_type(a) for n, a in zip(names, args, strict=False)}
        what = f"in_axes={spec!r} maps no argument of {name}, so there is nothing to map over"
        entries = ", ".join("0" if (shape_of(a) or ()) else "None" for a in args)
        entry = entries if len(args) == 1 else f"({entries})"
        given = ", ".join(f"{n}: {t}" for n, t in shown.items())
        advice = f"{what} ({given})", f"write in_axes={entry}, or say how often: axis_size=N"
    what, way = sure(advice)
    if source := creation.assigned(made, _option(what)):
        called += f"\n  its {_option(what)} are used at {here(edit)}"
        edit = source
    # JAX lists a None against an array among the mismatches, which is legal
    rest = "\nwhat does not fit is told below; JAX's own list is in error.jax_message"
    known, several = text.partition("Mismatch details")[0], re.search(r"\(\d+ found\)", text)
    instead = known.rstrip() + rest if several and several[0] != "(1 found)" else ""
    inputs = re.search("inconsistent sizes|its rank should be at least", text)
    ways = _otherwise(step, fun, args, made) if inputs else ()
    return Said(what + called, ways or way, edit, instead=instead)


axes = topic(Diagnosis("", _mapping))


def _otherwise(step: Step, fun: Any, args: tuple, made: Place | None) -> tuple[Way, ...]:
    """The in_axes that map the fewest arguments less than these, and with which the call runs."""
    spec = step.held.in_axes
    entries = spec if isinstance(spec, tuple) else (spec,) * len(args)
    known = len(entries) == len(args) <= MOST and not step.held.kwargs
    if not known or not compat.is_idle() or not tried.computes(fun):
        return ()
    struct = lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype) if hasattr(x, "shape") else x  # noqa: E731
    kinds = jax.tree.map(struct, args)
    options = step.held.among("out_axes", "axis_size", "axis_name")
    fitting: dict[int, list[tuple]] = {}
    for kept in itertools.product((True, False), repeat=len(args)):
        new = tuple(e if keep else None for e, keep in zip(entries, kept, strict=True))
        if any(e is not None for e in new) and new != tuple(entries):
            with tried.quiet(), contextlib.suppress(Exception):  # of what does not run
                jax.eval_shape(jax.vmap(fun, in_axes=new, **options), *kinds)
                fitting.setdefault(len(args) - sum(kept), []).append(new)
    best = fitting[min(fitting)] if fitting else []
    word = "do not map what is the same for all: in_axes="
    edits = [tried.optioned(made, f"in_axes={new!r}") for new in best]
    alone = lambda: True if len(best) == 1 else None  # noqa: E731
    return tuple(Way(f"{word}{n!r}", e, alone) for n, e in zip(best, edits, strict=True))


def _option(what: str) -> str:
    return "out_axes" if "out_axes" in what else "in_axes"


def _bad_axes(step: Step, trouble: Trouble, caller: Step) -> Said:
    """jax.vmap itself refuses in_axes: a list, a float, a string."""
    spec = step.held.in_axes
    sure("in_axes" in trouble.text)
    what = f"in_axes={spec!r} is {kind(spec)}; it has to be a number, None, or a tuple of such"
    as_tuple = tuple(spec) if isinstance(spec, list) else 0
    place = creation.keyword(caller.place, "in_axes")
    return Said(what, f"write in_axes={as_tuple!r}", place)


def _arity(spec, args, names, name) -> tuple[str, str]:
    given = f"{name}({', '.join(names)})"
    what = f"in_axes has {len(spec)} entries, {spec!r}, but {given} is given {len(args)} arguments"
    if len(spec) > len(args):
        return what, f"write in_axes={spec[: len(args)]!r}, or pass the other arguments too"
    shapes = [(shape_of(a) or (), x) for a, x in zip(args, spec, strict=False)]
    sizes = {s[x] for s, x in shapes if type(x) is int and -len(s) <= x < len(s)}
    more = [0 if (shape_of(a) or (None,))[0] in sizes else None for a in args[len(spec) :]]
    lacking = listed(names[len(spec) :])
    full = (*spec, *more)
    verb = "has" if len(more) == 1 else "have"
    return f"{what}: {lacking} {verb} none", f"give each argument an entry: in_axes={full!r}"


def _prefix(spec, args, names) -> tuple[str, str] | None:
    if isinstance(spec, list):
        return f"in_axes={spec!r} is a list", f"write a tuple: in_axes={tuple(spec)!r}"
    for i, (entry, arg) in enumerate(zip(spec, args, strict=False)):
        for found in differences(entry, arg, prefix=True):
            at, path = f"in_axes[{i}]{found.path}", f"{names[i]}{found.path}"
            lacking, extra = found.keys[1], found.keys[0]
            if lacking:
                keys = ", ".join(map(repr, lacking))
                what = f"`{at}` = {found.left!r} says nothing of the key {keys} of `{path}`, "
                what += f"which is {kind(found.right)}"
                new = dict(found.left) | {k: _entry(found.right[k]) for k in lacking}
                return what, f"add an entry for {keys}: write {new!r} for `{at}`; None: not mapped"
            if extra:
                keys = ", ".join(map(repr, extra))
                what = f"`{at}` = {found.left!r} has the key {keys}, but `{path}` is "
                return what + kind(found.right), f"drop {keys} from `{at}`"
            lengths = isinstance(found.left, tuple | list) and isinstance(found.right, tuple | list)
            if lengths and type(found.left) is type(found.right):
                what = f"`{at}` is {found.left!r}, of length {len(found.left)}, but `{path}` is "
                what += f"{kind(found.right)}"
                new = [*found.left, *map(_entry, found.right[len(found.left) :])]
                new = type(found.right)(new[: len(found.right)])
                return what, f"write one entry per element, {new!r}, or one number for all of them"
            what = f"`{at}` is {found.left!r}, but the argument `{path}` is {kind(found.right)}"
            way = f"write {_entry(found.right)!r} for `{at}`: it then holds for all in `{path}`"
            return what, way
    return None


def _entry(tree: Any) -> Any:
    """0 where there is an array to map over, None where there is not; a tree if it depends."""
    if is_leaf(tree) or tree is None:
        return 0 if shape_of(tree) else None
    inner = [_entry(child) for _, child in children(tree)]
    if all(x == inner[0] for x in inner[:1] + inner):
        return inner[0] if inner else None
    if isinstance(tree, dict):
        return dict(zip(tree, inner, strict=True))
    return tuple(inner) if isinstance(tree, tuple) else inner


def _out(step: Step, trouble: Trouble, name: str) -> tuple[str, str] | None:
    spec, text = step.held.out_axes, trouble.text
    flatten = trouble.within(*frames.AXES_TREE)
    if "tree prefix" in text and flatten is not None:
        tree: Any = flatten.held.treedef
        out: Any = jax.tree.unflatten(tree, [0] * tree.num_leaves)
        found = next(differences(spec, out, prefix=True), None)
        if found is None:
            return None
        at = f"out_axes{found.path}"
        both = isinstance(found.left, tuple | list) and isinstance(found.right, tuple | list)
        if both and type(found.left) is type(found.right):
            new = [*found.left, *[0] * len(found.right)][: len(found.right)]
            what = f"`{at}` = {found.left!r} has {len(found.left)} entries, but {name} returns "
            what += f"{kind(found.right)}"
            way = f"write one entry for each: out_axes={type(found.right)(new)!r}; or out_axes=0"
            return what, way
        what = f"`{at}` is {found.left!r}, but {name} returns {_shape(found.right)} there"
        return what, f"write out_axes=0, or a tree of numbers like {_shape(found.right)}"
    moved = trouble.within(*frames.OUT_AXIS)
    if moved is not None and _moves_out(trouble):
        count = int(text.rsplit(" ", 1)[-1])
        what = f"out_axes={spec!r} asks for axis {moved.held.moved_to} of a result of {name}, "
        what += f"which has {count} axes with that of the examples, 0 to {count - 1}"
        return what, f"write out_axes={count - 1}, or out_axes=0"
    if "got axis spec None" in text:
        path = text.split("out_axes", 1)[1].split(",", 1)[0]
        new = _with_zero(spec, path)
        what = f"`out_axes{path}` is None, but this result of {name} differs between the examples"
        return what, f"write out_axes={new!r}, or reduce it over the examples after the vmap"
    return None


def _moves_out(trouble: Trouble) -> bool:
    """Whether the mapped axis of a result has no place to go to."""
    return trouble.within(*frames.OUT_AXIS) is not None and "out of bounds" in trouble.text


def _shape(tree: Any) -> str:
    return str(jax.tree.map(lambda _: "*", tree)).replace("'*'", "*")


def _with_zero(spec: Any, path: str) -> Any:
    flat, tree = jax.tree_util.tree_flatten_with_path(spec, is_leaf=lambda x: x is None)
    new = [0 if jax.tree_util.keystr(k) == path.strip() else x for k, x in flat]
    return jax.tree.unflatten(tree, new)


def _returned(fun: Any, edit: Place | None) -> str:
    ends = [place for _, place in sources.returns(fun) if not edit or place.line != edit.line]
    return f"\n  it returns at {here(ends[-1])}" if ends else ""


def _mapped(spec, args, kwargs, names) -> list[tuple[str, int, Any, Any]]:
    """(path, index of the argument, leaf, axis) of every leaf that is mapped."""
    entries = spec if isinstance(spec, tuple) else (spec,) * len(args)
    found = []
    for i, (entry, arg) in enumerate(zip(entries, args, strict=False)):
        full = jax.tree.broadcast(entry, arg, is_leaf=lambda x: x is None)
        ends = jax.tree.leaves(full, is_leaf=lambda x: x is None)
        rows = zip(leaves(arg, names[i]), ends, strict=True)
        found += [(path, i, leaf, axis) for (path, leaf), axis in rows if axis is not None]
    return found + [(path, -1, leaf, 0) for k, v in kwargs.items() for path, leaf in leaves(v, k)]


def _without(spec, args, odd: set[int]) -> tuple:
    entries = spec if isinstance(spec, tuple) else (spec,) * len(args)
    return tuple(None if i in odd else entry for i, entry in enumerate(entries))


def _sizes(step: Step, spec, args, kwargs, names) -> tuple[str, str] | None:
    mapped = _mapped(spec, args, kwargs, names)
    sizes = [(path, i, leaf.shape[axis], axis, leaf) for path, i, leaf, axis in mapped]
    shown = "; ".join(
        f"`{path}` has size {size} along axis {axis}, its shape is {tuple(leaf.shape)}"
        for path, _, size, axis, leaf in _first_of_each(sizes)
    )
    given, name = step.held.axis_size, sources.name_of(step.held.fun)
    if isinstance(given, int):
        what = f"axis_size={given}, but {shown}"
        return what, f"drop axis_size=, or write axis_size={sizes[0][2]}"
    groups: dict[int, set] = {}  # size: the arguments that have it
    for path, i, size, *_ in sizes:
        groups.setdefault(size, set()).add(i if i >= 0 else path)
    usual, many = max(groups.items(), key=lambda pair: len(pair[1]))
    tie = sum(len(group) == len(many) for group in groups.values()) > 1
    odd = [s for s in sizes if s[2] != usual]
    ways = [f"pass {listed(dict.fromkeys(s[0] for s in odd))} with {usual} along that axis"]
    ways[0] += f", e.g. a slice [:{usual}]" if all(s[2] > usual for s in odd) else ""
    apart = [group for size, group in groups.items() if tie or size != usual]
    apart = [g for g in apart if all(type(i) is int for i in g)]
    apart = [g for g in apart if sum(bool(g & other) for other in groups.values()) == 1]
    mixed = {i for i, *_ in (s[1:] for s in sizes) if sum(i in g for g in groups.values()) > 1}
    if mixed and not kwargs:  # a tree of parameters, say: it has no common axis
        whole = [g for g in groups.values() if g - mixed]
        apart, odd = [mixed] if len(whole) == 1 else [], []
        ways = []
    axes = [f"in_axes={_without(spec, args, g)!r}" for g in apart if len(g) < len(args)]
    if axes:
        ways.append(f"do not map what is the same for all: {' or '.join(axes)}")
    elif odd and odd[0][1] >= 0:
        ways.append(f"do not map it: None for `{odd[0][0]}` in in_axes")
    if kwargs:
        names_of = ", ".join(f"{k}={k}" for k in kwargs)
        ways.append(
            f"keyword arguments are always mapped along axis 0: pass it by position with None in "
            f"in_axes, or fix it with functools.partial({name}, {names_of})"
        )
    if not ways:
        ways = ["map only what has one row for each example: None in in_axes for the rest"]
    return f"the examples are not equally many: {shown}", "; or ".join(ways)


def _keyword(kwargs: dict, fun: Any) -> tuple[str, str] | None:
    """A keyword argument without an axis: in_axes says nothing of these."""
    for path, leaf in [pair for k, v in kwargs.items() for pair in leaves(v, k)]:
        if shape_of(leaf) == ():
            name, root = sources.name_of(fun), re.split(r"[\[.]", path)[0]
            what = f"vmap maps every keyword argument along axis 0, and `{path}` is {of_type(leaf)}"
            way = f"fix it before: jax.vmap(functools.partial({name}, {root}={root})); or pass it "
            return f"{what}, without an axis", f"{way}by position, with None for it in in_axes"
    return None


def _first_of_each(sizes: list) -> list:
    seen: dict = {}
    for one in sizes:
        seen.setdefault(one[2], []).append(one)
    return [one for group in seen.values() for one in group[:2]][:4]


def _rank(spec, args, names) -> tuple[str, str] | None:
    for path, i, leaf, axis in _mapped(spec, args, {}, names):
        shape = shape_of(leaf)
        if shape is None or -len(shape) <= axis < len(shape):
            continue
        have = f"has no axis at all, its shape is {shape}" if not shape else f"has shape {shape}"
        what = f"in_axes maps axis {axis} of `{path}`, which is {of_type(leaf)} and {have}"
        whole = is_leaf(args[i])
        if not shape:
            way = f"in_axes={_without(spec, args, {i})!r}" if whole else f"None for `{path}`"
            return what, f"do not map it, {way}; or pass an array with one row per example"
        entries = spec if isinstance(spec, tuple) else (spec,) * len(args)
        new = tuple(0 if k == i else e for k, e in enumerate(entries))
        spelled = repr(new) if len(new) > 1 else "0"
        way = f"in_axes={spelled}" if whole else f"0 for `{path}` in in_axes"
        return what, f"its axes are 0 to {len(shape) - 1}: write {way}"
    return None
