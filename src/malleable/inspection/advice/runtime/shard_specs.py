"""shard_map: in_specs and out_specs that do not fit, and values that differ between devices."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax

from malleable.compat import Place, frames
from malleable.inspection import places
from malleable.inspection.advice.evidence import sources
from malleable.inspection.advice.evidence.mapped import is_shard_map, is_users, made_at
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.hint import Advice
from malleable.inspection.advice.watching import running


def shard_map_specs(trouble: Trouble) -> Iterator[Advice]:
    """in_specs and out_specs that do not fit the arguments, the results or the mesh."""
    steps = [s for s in reversed(trouble.steps) if s.jax and is_shard_map(s)]
    step = next((s for s in steps if is_users(s.held.body)), steps[0] if steps else None)
    if step is None or "shard_map" not in trouble.text:
        return
    held = step.held
    fun, mesh = held.body, held.mesh
    function, place = sources.name_of(fun), made_at(trouble, step, "shard_map", fun)
    caller = trouble.caller(step)
    apart = caller and place and (caller.place.file, caller.place.line) != (place.file, place.line)
    where = here(place) + (f", called at {places.spell(caller.place)}" if caller and apart else "")
    args = held.args or ()
    params = sources.parameters(fun)
    text = trouble.text
    if "must refer to an axis" in text:
        yield from unknown_axis(text, mesh, where)
    elif "does not match the specs of the input" in text:
        yield from elsewhere(text, held, params, caller, where)
    elif "structure error" in text and "in_specs" in text:
        yield from arity(held.in_specs, args, params, function, where)
    elif "too long to be compatible" in text and "in_specs" in text:
        yield from too_long(text, where, function)
    elif "too long to be compatible" in text:
        yield from out_too_long(text, where, fun, function, mesh)
    elif "not evenly divisible" in text:
        yield from uneven(text, where)
    elif "require replication" in text or "replicated across" in text:
        yield from unreplicated(text, where, fun, function)


def unknown_axis(text: str, mesh, where: str) -> Iterator[Advice]:
    found = re.search(r"(in_specs|out_specs)(?:\[?.*?\]?)? refers to '?(\w+)'?", text)
    if not found or mesh is None:
        return
    axes = [str(a) for a in mesh.axis_names]
    known = ", ".join(f"'{a}'" for a in axes)
    what = f"{found[1]} names the axis '{found[2]}', and the mesh has {known} only"
    hint = f"write jax.P('{axes[0]}') in {found[1]}, or rename the axis where the mesh is made"
    yield Advice(what, where, hint, weight=4)


def elsewhere(
    text: str, held: frames.Held, params: list[str], caller: Step | None, where: str
) -> Iterator[Advice]:
    """An argument that lies on a mesh with explicit axes in another way than in_specs says."""
    found = re.search(
        r"shard_map: (P\(.*?\)) does not match the specs of the input: (P\(.*?\)) "
        r"for arg: (\S+)\.?",
        text,
    )
    if not found:
        return
    spec, has, kind = found.groups()
    kind, (name, leaf) = kind.rstrip("."), _passed(held, params)
    mesh = held.mesh
    axes = tuple(map(str, getattr(mesh, "axis_names", ())))
    sizes = tuple(getattr(mesh, "axis_sizes", ()))
    what = f"{name} ({kind}) is laid out as {has}, and in_specs says {spec}: over a mesh with "
    what += "explicit axes, which jax.make_mesh makes, shard_map does not move its arguments"
    known = running.name_in(caller.frame, leaf) if caller else ""
    shown = known or (name.split("`")[1] if "`" in name else "x")
    auto = ", ".join(["jax.sharding.AxisType.Auto"] * len(axes)) + "," * (len(axes) == 1)
    hint = (
        f"lay it out first: jax.reshard({shown}, jax.NamedSharding(mesh, jax.{spec})); or make a "
        f"mesh that moves them, jax.make_mesh({sizes}, {axes}, axis_types=({auto}))"
    )
    yield Advice(what, where, hint, weight=4)


def _passed(held: frames.Held, params: list[str]) -> tuple[str, Any]:
    """What the function calls the argument that is being looked at, and its value."""
    one, args = held.looked_at, held.args or ()
    for i, arg in enumerate(args):
        for path, leaf in jax.tree_util.tree_leaves_with_path(arg):
            if leaf is one and i < len(params):
                return f"the argument `{params[i]}{jax.tree_util.keystr(path)}`", leaf
    return "an argument", one


def arity(specs, args, params: list[str], function: str, where: str) -> Iterator[Advice]:
    if not isinstance(specs, tuple | list) or isinstance(specs, jax.P):
        yield Advice(
            f"in_specs has another structure than the {len(args)} arguments of `{function}`",
            where,
            "give in_specs as a tuple with one entry (a jax.P, or a tree of them) per argument",
            weight=2.5,
        )
        return
    if len(specs) == len(args):
        yield Advice(
            f"an entry of in_specs has another structure than its argument of `{function}`",
            where,
            "write one jax.P for the whole argument, or a tree of them with the argument's keys",
            weight=2.5,
        )
        return
    names = (params + [f"argument {i}" for i in range(len(params), len(args))])[: len(args)]
    missing = ", ".join(f"`{n}`" for n in names[len(specs) :])
    entries, given = len(specs), len(args)
    what = (
        f"in_specs has {entries} entr{'y' if entries == 1 else 'ies'}, and `{function}` is called "
    )
    what += f"with {given} argument{'' if given == 1 else 's'}"
    if len(specs) < len(args):
        what += f": there is no entry for {missing}"
        inside = ", ".join([*map(_spec, specs), *("jax.P()" for _ in args[len(specs) :])])
        hint = (
            f"add one entry per argument: in_specs=({inside}), or a sharded jax.P(...) for "
            f"{missing}"
        )
    else:
        hint = f"write one entry per argument: {len(args)}, for {', '.join(names)}"
    yield Advice(what, where, hint, weight=4)


def _spec(spec) -> str:
    return f"jax.{spec!r}" if isinstance(spec, jax.P) else repr(spec)


def too_long(text: str, where: str, function: str) -> Iterator[Advice]:
    found = re.search(
        r"(in_specs\S*) is (P\(.*?\)) which has length (\d+), but the passed (\S+?), where .*? "
        r"bound "
        r"to \S+ parameter '(.+?)', has shape (\w+\[.*?\]), which has rank (\d+)",
        text,
    )
    if not found:
        return
    entry, spec, length, _, name, kind, rank = found.groups()
    short = [part.strip() for part in spec[2:-1].split(",") if part.strip()][: int(rank)]
    what = (
        f"{entry} is {spec}, for {length} axes, and argument `{name}` of `{function}` is {kind}: "
    )
    what += f"it has {rank}"
    hint = f"drop the entries too many, jax.P({', '.join(short)}); or reshape `{name}`"
    yield Advice(what, where, hint, weight=4)


def out_too_long(text: str, where: str, fun, function: str, mesh) -> Iterator[Advice]:
    found = re.search(
        r"(out_specs\S*) is (P\(.*?\)) which has length (\d+), but (.+?) has shape (\w+\[.*?\]), "
        r"which has rank (\d+)",
        text,
    )
    if not found:
        return
    entry, spec, length, result, kind, rank = found.groups()
    result = re.sub(r"^.+?\(\*args\)", f"the result of `{function}`", result)
    line = _returned(fun)
    what = (
        f"{entry} is {spec}, for an array with {length} axes, and {result} is {kind}, with {rank}"
    )
    what += f" (returned at {places.spell(line)})" if line else ""
    axis = str(next(iter(getattr(mesh, "axis_names", ("d",)))))
    hint = (
        f"return it with an axis, x[None], to have one entry per device; or combine the devices, "
        f"jax.lax.psum(x, '{axis}'), with out_specs=jax.P()"
    )
    yield Advice(what, where, hint, weight=4)


def _returned(fun) -> Place | None:
    found = sources.returns(fun)
    return found[-1][1] if found else None


def uneven(text: str, where: str) -> Iterator[Advice]:
    found = re.search(
        r"the passed (\S+) of shape (\w+\[.*?\])(?:, where .*? parameter '(.+?)',)? corresponds to "
        r"(in_specs\S*) of value (P\(.*?\)), which maps array axis (\d+) \(of size (\d+)\) to mesh "
        r"axis '?(.+?)'? \(of size (\d+)\)",
        text,
    )
    if not found:
        return
    path, kind, name, entry, spec, axis, size, mesh_axis, parts = found.groups()
    up = -(-int(size) // int(parts)) * int(parts)
    what = (
        f"argument `{name or path}` is {kind}: axis {axis} has size {size}, and {entry}, {spec}, "
    )
    what += f"splits it over the {parts} devices of '{mesh_axis}', which do not divide {size}"
    hint = f"pad axis {axis} to {up}, or use a mesh whose '{mesh_axis}' divides {size}, or jax.P()"
    yield Advice(what, where, hint, weight=4)


def unreplicated(text: str, where: str, fun, function: str) -> Iterator[Advice]:
    found = re.search(
        r"(out_specs\S*) is (P\(.*?\)) which implies that the corresponding output value is "
        r"replicated across mesh ax[ei]s '?(\w+)'?",
        text,
    )
    if not found:
        return
    entry, spec, axis = found.groups()
    line = _returned(fun)
    at = f" (returned at {places.spell(line)})" if line else ""
    what = (
        f"{entry} is {spec}: the result of `{function}` must be the same on all devices of the "
        "axis "
        f"'{axis}', and each device has its own{at}"
    )
    hint = (
        f"combine them before returning, jax.lax.psum(x, '{axis}') or pmean; or keep one per "
        "device, "
        f"out_specs=jax.P('{axis}'); check_vma=False only if they are equal for a reason JAX "
        "cannot "
        "see"
    )
    yield Advice(what, where, hint, weight=4)


def varying(trouble: Trouble) -> Iterator[Advice]:
    """A carry or a branch that is the same on all devices in one place, and not in another."""
    if "manual axis types do not match" not in trouble.text or trouble.last is None:
        return
    kinds = re.findall(r"(\w+\[[\d,]*\](?:\{V:.*?\})?)", trouble.text)
    axes = next((re.findall(r"\w+", k.partition("{V:")[2]) for k in kinds if "{V:" in k), [])
    carry = re.search(r"input carry (\S+?) has type|input carry component (\S+?) has", trouble.text)
    plain = next((k for k in kinds if "{V:" not in k), "")
    differs = next((k for k in kinds if "{V:" in k), "")
    names = ", ".join(f"'{a}'" for a in axes)
    cast = f"jax.lax.pcast(x, ({names},), to='varying')"
    if carry:
        name = carry[1] or carry[2]
        what = (
            f"carry `{name}` starts as {plain}, the same on all devices, and after one step it is "
            f"{differs}, a different value on each device of {names}"
        )
        hint = f"start with one that may differ: {cast} around the initial value of `{name}`"
    elif "true_fun" in trouble.text or "branch" in trouble.text:
        what = (
            f"one branch returns {differs}, a different value on each device of {names}, and "
            f"another returns {plain}, the same on all"
        )
        hint = f"write {cast} around what the latter returns"
    else:
        return
    hint += "; or combine the devices first with jax.lax.psum; or check_vma=False in shard_map"
    yield Advice(what, here(trouble.last.place), hint, weight=4)


FAMILIES: list[Callable[[Trouble], Iterator[Advice]]] = [shard_map_specs, varying]
