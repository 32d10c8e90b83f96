"""Arrays over several devices: sizes, specs, meshes and devices that do not agree."""

import ast
import math
import re

import jax
import numpy as np

from malleable import compat
from malleable.compat import Place, frames
from malleable.inspection import places
from malleable.inspection.advice.evidence import creation, sources
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said, sure
from malleable.inspection.advice.evidence.mapped import (
    closed_over,
    is_pmap,
    mapped_function,
    mappings,
)
from malleable.inspection.advice.evidence.trouble import Step, Trouble
from malleable.inspection.advice.evidence.wording import leaves
from malleable.inspection.advice.watching import running

_INDIVISIBLE = (  # axis, parts, size, shape
    r"array axis (\d+) is partitioned (\d+) times, but the dimension size is (\d+) "
    r"\(full shape: (\(.*?\))",
    r"array axis (\d+) is partitioned (\d+) times, but does not evenly divide the "
    r"dimension size (\d+)\. Got shape: (\(.*?\))",
    r"dimension (\d+) should be divisible by (\d+), but it is equal to (\d+) "
    r"\(full shape: (\(.*?\))",
)


def indivisible(found: re.Match, trouble: Trouble, step: Step) -> tuple[str, str]:
    """A size that the devices do not divide: device_put, jit with shardings, pmap."""
    axis, parts, size, shape = found.groups()
    mapped = next(
        (s for s in trouble.steps if s.jax and s.name in frames.MAPPED and is_pmap(s)), None
    )
    if mapped is not None:
        return pmap_sizes(mapped, int(size), shape)
    name, what_it_is = named_by_shape(trouble, step, shape)
    spec = re.search(r"spec=(P\(.*?\))[,)]", trouble.text)
    by = f" by {spec[1]}" if spec else ""
    what = f"{what_it_is} has size {size} along axis {axis} (shape {shape}), which is split over "
    what += f"{parts} devices{by}, and {parts} does not divide {size}"
    up = -(-int(size) // int(parts)) * int(parts)
    hint = f"pad axis {axis} of {name} to {up}; or do not shard that axis (None in its place in "
    hint += f"the spec, jax.P() to keep it whole); or use a mesh whose size divides {size}"
    return what, hint


def pmap_shapes(mapped: Step) -> dict[str, tuple]:
    """{path: shape} of what a pmap is given, by the names of the parameters."""
    args = mapped.held.args or ()
    names = sources.called_by(mapped_function(mapped), len(args), "argument {}")
    pairs = zip(names, args, strict=True)
    return {path: np.shape(leaf) for name, x in pairs for path, leaf in leaves(x, name)}


def pmap_sizes(mapped: Step, size: int, shape: str) -> tuple[str, str]:
    """What pmap maps over has another size than there are devices, or than another argument."""
    sizes = {name: held for name, held in pmap_shapes(mapped).items() if held}
    culprit = next((n for n, s in sizes.items() if str(tuple(s)) == shape), "")
    others = {n: s[0] for n, s in sizes.items() if s[0] != size}
    if others and closed_over(mapped, frames.IN_AXES) == 0:  # each argument is mapped
        other, n = next(iter(others.items()))
        what = f"pmap maps over the leading axis of its arguments, and these differ: `{culprit}` "
        what += f"has shape {shape}, so {size}, and `{other}` has shape {tuple(sizes[other])}, so "
        what += f"{n}"
        hint = f"give `{culprit}` the same leading size, {n}; or in_axes=None for an argument that "
        return what, f"{hint}every device gets whole"
    return too_many_entries(culprit, size, shape, jax.local_device_count())


def too_many_entries(culprit: str, size: int, shape: str, count: int) -> tuple[str, str]:
    """An argument of pmap has more entries than there are devices."""
    name = f"argument `{culprit}`" if culprit else "the argument"
    what = f"pmap gives one device to each entry along the leading axis: {name} has shape {shape}, "
    what += f"so {size} entries, and there are {count} devices"
    first = f"pad it to {-(-size // count) * count} entries and " if size % count else ""
    hint = f"{first}reshape it to ({count}, {-(-size // count)}, ...), with jax.vmap inside; or "
    return what, f"{hint}use jax.vmap alone, which needs no devices; or jax.jit with a sharding"


def pmap_wrapper(found: re.Match, trouble: Trouble, step: Step) -> tuple[str, str] | None:
    """What pmap does with its arguments fails: several entries for a device, or no axis."""
    after = trouble.steps[trouble.steps.index(step) + 1 :]
    mapped = sure([s for s in after if s.jax and is_pmap(s) and s.held.args is not None])[0]
    held = pmap_shapes(mapped)
    if found[1]:
        each, *rest = (int(n) for n in re.findall(r"\d+", found[1]))
        fits = {n: s for n, s in held.items() if [*s[1:]] == rest and s and s[0] % each == 0}
        large = {n: s for n, s in fits.items() if s[0] == max(t[0] for t in fits.values())}
        sure(len({s[0] for s in fits.values()}) == 1)
        name, shape = next(iter(large.items()))
        return too_many_entries(name, shape[0], str(shape), shape[0] // each)
    culprit = sure([name for name, shape in held.items() if not shape])[0]
    what = f"pmap maps argument `{culprit}` over its leading axis, and it has shape (), so no axis"
    hint = f"pass it whole to every device: None for `{culprit}` in in_axes of jax.pmap"
    names = sources.parameters(mapped_function(mapped))
    if culprit in names and len(names) > 1 and closed_over(mapped, frames.IN_AXES) == 0:
        axes = ", ".join("None" if n == culprit else "0" for n in names)
        hint += f", in_axes=({axes})"
    return what, hint


def pmap_devices(found: re.Match, trouble: Trouble, step: Step) -> tuple[str, str] | None:
    """More entries than devices, where pmap itself says so."""
    mapped = sure([s for s in trouble.steps if s.jax and is_pmap(s) and s.held.args])[0]
    wanted = next(int(group) for group in found.groups() if group is not None)
    large = [np.shape(x) for x in jax.tree.leaves(mapped.held.args) if np.ndim(x)]
    sure(sure(large)[0][0] == wanted)
    return pmap_sizes(mapped, wanted, str(large[0]))


def named_by_shape(trouble: Trouble, step: Step, shape: str) -> tuple[str, str]:
    """(what the user calls an array of some shape at a line, the same in a sentence)."""
    for node in sorted(_names(step.place), key=lambda n: n.col_offset):
        value = step.values.get(node.id, step.frame.f_globals.get(node.id))
        for path, leaf in leaves(value, node.id):
            if compat.is_array(leaf) and str(np.shape(leaf)) == shape:
                return f"`{path}`", f"`{path}`"
    if "jit" in trouble.text and "output" in trouble.text:
        return "the result", "a result of the function"
    checked = trouble.within(*frames.SHARDING_CHECK)
    argument = checked.held.name if checked else None
    kind = str(checked.held.what_aval) if checked else ""
    if argument and isinstance(argument, str) and "arg" in kind:
        return f"`{argument}`", f"argument `{argument}`"
    if "output" in kind:
        return "the result", "a result of the jitted function (out_shardings)"
    return "it", "the array"


def _names(place: Place) -> list[ast.Name]:
    node = sources.expression_at(place)
    return [n for n in ast.walk(node) if isinstance(n, ast.Name)] if node else []


def devices(met: re.Match, trouble: Trouble, step: Step) -> tuple[str, str] | None:
    """Arguments that lie on different devices."""
    found = re.findall(
        r"(?:argument (\S+) of \S+|(\S+) inside \S+) .*?device ids (\[.*?\]|\d+) on platform (\w+)",
        trouble.text,
    )
    sure(len(found) > 1)
    if not any(run.own for run in running.runs_of(trouble.error)):
        found = [(_lying_on(ids, step), of, ids, at) for _, of, ids, at in found]  # of JAX's own
    parts = []
    for name, inside, ids, platform in found:
        thing = f"`{name}`" if name else f"the {inside} in it" if inside else "an operand"
        spec = _placed(name, trouble) if name else ""
        parts.append(f"{thing} lies on {platform} devices {ids}{spec}")
    what = f"{parts[0]}, and {parts[1]}: one computation runs on one set of devices"
    (first, *_), (second, *_) = found[:2]
    if not first and not second:
        hint = "move one to the devices of the other: x = jax.device_put(x, y.sharding)"
    elif first and second:
        hint = f"move one to the other: {second} = jax.device_put({second}, {first}.sharding) "
        hint += "before the call, or make both on one mesh"
    else:
        one = first or second
        hint = f"put `{one}` on the mesh that the function uses, before the call: "
        hint += f"jax.device_put({one}, jax.NamedSharding(mesh, spec)); or use one mesh for both"
    return what, hint


def _lying_on(ids: str, step: Step) -> str:
    """The one name in the user's line that holds an array on these devices, or ""."""
    names = {}
    for node in _names(step.place):
        value = step.values.get(node.id, step.frame.f_globals.get(node.id))
        if isinstance(value, compat.HostArray):
            names[node.id] = {str(d.id) for d in value.devices()}
    fits = [name for name, held in names.items() if held == set(re.findall(r"\d+", ids))]
    return fits[0] if len(fits) == 1 else ""


def _placed(name: str, trouble: Trouble) -> str:
    """` (mesh axes 'a')` of an argument, as far as it can be seen."""
    for run in running.runs_of(trouble.error):
        for path, leaf in zip(run.names, run.leaves, strict=True):
            mesh = getattr(getattr(leaf, "sharding", None), "mesh", None)
            if path == name and mesh is not None:
                return f" (a mesh with axes {', '.join(map(repr, mesh.axis_names))})"
    return ""


def in_shardings(found: re.Match, trouble: Trouble, step: Step) -> Said:
    """An argument that lies otherwise than in_shardings says."""
    wanted, given, kind = found.groups()
    specs = [re.search(r"spec=(P\(.*?\))[,)]", text) for text in (wanted, given)]
    shown = [spec[1] if spec else text for spec, text in zip(specs, (wanted, given), strict=True)]
    name, made = "an argument", None
    for run in running.runs_of(trouble.error):
        made = creation.of(("jit",), run.fun)
        for path, leaf in zip(run.names, run.leaves, strict=True):
            if path and str(getattr(leaf, "sharding", "")) == given:
                name = path
    what = f"argument `{name}` ({kind}) is laid out as {shown[1]}, and in_shardings of the jitted "
    what += f"function asks for {shown[0]}; called at {places.spell(step.place)}"
    hint = f"bring it there first, jax.device_put({name}, jax.NamedSharding(mesh, {shown[0]})), or "
    hint += f"write {shown[1]} in in_shardings, or leave in_shardings out"
    return Said(what, hint, made)


def no_mesh(found: re.Match, trouble: Trouble, step: Step) -> dict:
    """A spec by itself, where no mesh is set."""
    call = next(iter(sources.calls_on(step.place, "with_sharding_constraint")), None)
    return {"spec": sources.text_of(sources.argument(call, 1, "shardings")) or "jax.P(...)"}


def empty_mesh(found: re.Match, trouble: Trouble, step: Step) -> Said:
    """A shard_map without a mesh."""
    made = next((m.place for m in mappings(trouble) if m.kind == "shard_map"), None)
    what = "shard_map was given no mesh, and none is set around its call"
    hint = "pass mesh=jax.make_mesh(...) to jax.shard_map, or call it under jax.set_mesh(mesh)"
    return Said(what, hint, made)


def constraint(found: re.Match, trouble: Trouble, step: Step) -> tuple[str, str] | None:
    """with_sharding_constraint, device_put and jit with a spec longer than the array has axes."""
    spec, least, rank = found.groups()
    sure("_internal_pmap" not in spec)
    call = next(iter(sources.calls_on(step.place, "with_sharding_constraint", "device_put")), None)
    node = sources.argument(call, 0, "x")
    name = f"`{sources.text_of(node)}`" if node is not None else "the array"
    short = [part.strip() for part in spec[2:-1].split(",") if part.strip()][: int(rank)]
    what = f"the spec {spec} is for {least} axes, and {name} has {rank}"
    hint = f"drop the entries too many, jax.P({', '.join(short)}), or give {name} another dimension"
    return what, hint


def unknown_mesh_axis(found: re.Match, trouble: Trouble, step: Step) -> tuple[str, str]:
    """A spec with a name that is not an axis of the mesh."""
    axis, spec, known = found.groups()
    first = re.findall(r"\w+", known)[:1]
    hint = f"write '{first[0]}' in place of '{axis}'" if first else "name an axis of the mesh"
    what = f"{spec} names the axis '{axis}', and the axes of the mesh are {known}"
    return what, hint + ", or give the axis that name where the mesh is made (jax.make_mesh)"


def explicit(found: re.Match, trouble: Trouble, step: Step) -> tuple[str, str]:
    """Operands whose explicit shardings do not combine."""
    node = sources.expression_at(step.place)
    used = []
    for name in dict.fromkeys(n.id for n in _names(step.place)):
        value = step.values.get(name, step.frame.f_globals.get(name))
        kind = str(jax.typeof(value)) if hasattr(value, "shape") else ""
        if "@" in kind:
            used.append(f"`{name}` is {kind}")
    specs = re.findall(r"\((?:[^()]*)\)", trouble.text)
    both = ", and ".join(used[:2]) or f"the shardings are {', and '.join(specs[:2])}"
    written = f"`{sources.text_of(node)}`" if node is not None else "this line"
    if "ontracting" in trouble.text or "out_sharding" in trouble.text:
        hint = "say it, jnp.matmul(x, w, out_sharding=jax.P(...)) or jnp.einsum(..., "
        hint += "out_sharding=...), or bring one operand to another sharding first, "
        hint += "jax.sharding.reshard(w, jax.P(...))"
        return f"how to shard the result of {written} is open: {both}", hint
    hint = "bring one to the sharding of the other first: jax.sharding.reshard(y, jax.typeof(x)"
    return f"the shardings of the operands of {written} do not fit: {both}", f"{hint}.sharding)"


SHARDING = (
    *(Diagnosis(said, indivisible) for said in _INDIVISIBLE),
    Diagnosis(
        r"requires (\d+) logical devices, but only|requires (\d+) replicas, but only"
        r"|number of devices .*?(\d+).*?\d+",
        pmap_devices,
    ),
    Diagnosis(
        r"squeeze out .*got shape=\((.*?)\) and dimensions=\(0,\)"
        r"|(?s:_internal_pmap_axis_name.*value of rank 0)",
        pmap_wrapper,
    ),
    Diagnosis("incompatible devices", devices),
    Diagnosis(
        r"(?s)Got \w+ sharding: (.*?),\s*\n?arg sharding: (.*?) for arg type: (\S+)", in_shardings
    ),
    Diagnosis(
        r"[Nn]umber of devices (\d+) must .*?mesh_shape (\(.*?\))",
        lambda found, *_: {"needed": math.prod(map(int, re.findall(r"\d+", found[2])))},
        "a mesh of shape {_2} needs {needed} devices, and there are {_1}",
        "make a smaller mesh, jax.make_mesh(({_1},), ...); to try it out on a CPU, set "
        "XLA_FLAGS=--xla_force_host_platform_device_count={needed} before JAX is imported",
    ),
    Diagnosis(
        "requires a non-empty mesh in context",
        no_mesh,
        "the spec `{spec}` speaks of the axes of a mesh, and no mesh is set here",
        "pass jax.NamedSharding(mesh, {spec}) in its place, or call the function under "
        "jax.set_mesh(mesh)",
    ),
    Diagnosis("context mesh cannot be empty", empty_mesh),
    Diagnosis(
        r"(?s)spec=(P\(.*?\))[,)].*?only valid for values of rank at least (\d+), but was applied "
        r"to a value of rank (\d+)",
        constraint,
    ),
    *(
        Diagnosis(said, unknown_mesh_axis)
        for said in (
            r"[Rr]esource axis:? (\w+) of (P\(.*?\)) is not found in mesh:? (\(.*?\))",
            r"axis:? '?(\w+)'?.*?(P\(.*?\)).*?not.*?mesh.*?(\(.*?\))",
        )
    ),
    Diagnosis("", explicit, kind="ShardingTypeError"),
)

# ---------------------------------------------------------------- collectives

_COLLECTIVES = (
    *("psum", "pmean", "pmax", "pmin", "all_gather", "all_to_all", "ppermute", "pshuffle"),
    *("pswapaxes", "psum_scatter", "axis_index", "axis_size", "pcast", "pvary"),
)
_ASKING = ("axis_index", "axis_size", "pcast", "all_gather")


def unbound_axis(found: re.Match, trouble: Trouble, step: Step) -> Said | None:
    """A collective over an axis that nothing around it names."""
    axis = found[1] if found[0] else _unsaid(trouble, step)
    calls = sources.calls_on(step.place, *_COLLECTIVES)
    says = lambda c: axis in (getattr(n, "value", None) for n in ast.walk(c))  # noqa: E731
    call = next(iter([*filter(says, calls), *calls]), None)
    name = sources.called(call) if call else "a collective"
    written = f"`{sources.text_of(call)}`" if call else f"`{name}`"
    maps = list(mappings(trouble))
    named = [m for m in maps if m.axis]
    does = "asks for" if name in _ASKING else "reduces over"
    what = f"{written} {does} the axis '{axis}', and nothing around it has an axis of that name"
    place = step.place
    if named:
        known = ", ".join(f"'{m.axis}'" for m in named)
        what += f": the axes named there are {known}"
        other = named[-1].axis
        hint = f"write '{other}' here, or "
        shard = named[-1].kind == "shard_map"
        hint += f"call the axis of the mesh '{axis}'" if shard else f"axis_name='{axis}' where the "
        hint += "" if shard else "function is mapped"
        what += f" (mapped at {places.spell(named[-1].place)})" if named[-1].place else ""
    elif maps:
        mapped = maps[-1]
        place = mapped.place or step.place
        hint = f"name the axis where the function is mapped: jax.{mapped.kind}({mapped.function}, "
        hint += f"axis_name='{axis}')"
        what += f"; {mapped.kind} maps `{mapped.function}` without an axis_name"
        what += f" (`{name}` is called at {places.spell(step.place)})"
    else:
        hint = f"call it under a map that names the axis: jax.vmap(f, axis_name='{axis}'), or "
        hint += f"jax.shard_map over a mesh with an axis '{axis}'"
    # JAX names psum and shard_map, whatever was called and under which map
    instead = f"unbound axis name: {axis} (JAX's own words are in error.jax_message)"
    return Said(what, hint, place, instead=instead if found[0] else "")


def _unsaid(trouble: Trouble, step: Step) -> str:
    """The axis that a shard_map does not have, where JAX only asserts that it has it."""
    callee = sure(trouble.callee)
    calls = sources.calls_on(step.place, *_COLLECTIVES)
    known = {m.axis for m in mappings(trouble)}
    sure([sources.called(call) for call in calls] == [callee.name] and known - {""})
    at = 0 if callee.name in ("axis_index", "axis_size") else 1
    axis = getattr(sources.argument(calls[0], at, "axis_name"), "value", None)
    return sure(isinstance(axis, str) and axis not in known and axis)


def permutation(found: re.Match, trouble: Trouble, step: Step) -> dict | None:
    """ppermute with a device that sends or receives twice."""
    pairs = re.findall(r"\((\d+), (\d+)\)", trouble.text)
    shown = ", ".join(f"({a}, {b})" for a, b in pairs)
    for side, i in (("receives", 1), ("sends", 0)):
        seen = [pair[i] for pair in pairs]
        for n in seen:
            if seen.count(n) > 1:
                return {"twice": n, "side": side, "shown": shown}
    return None


def all_to_all(found: re.Match, trouble: Trouble, step: Step) -> dict:
    """A collective that splits an axis the devices do not divide."""
    node = sources.argument(next(iter(sources.calls_on(step.place, found[1])), None), 0, "x")
    array = f"`{sources.text_of(node)}`" if node is not None else "its operand"
    return {"array": array, "up": -(-int(found[3]) // int(found[5])) * int(found[5])}


COLLECTIVES = (
    Diagnosis(r"unbound axis name:? '?(\w+)'?", unbound_axis),
    Diagnosis(r"^$", unbound_axis, kind="AssertionError"),
    Diagnosis(
        "ppermute sources and destinations must be unique",
        permutation,
        "in the perm of ppermute, device {twice} {side} twice: {shown}",
        "each device may send once and receive once: a ring is [(i, (i + 1) % n) for i in "
        "range(n)]; to send to all, use jax.lax.all_gather",
    ),
    Diagnosis(
        r"size of (\w+) (\w+) \((\d+)\) has to be divisible by the size of the named axis "
        r"(\w+) \((\d+)\)",
        all_to_all,
        "{_1} splits an axis of size {_3} of {array} ({_2}) over the {_5} devices of '{_4}', and "
        "{_5} does not divide {_3}",
        "pad that axis to {up}, a multiple of {_5}, or split another axis",
    ),
)
