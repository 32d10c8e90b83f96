"""shard_map: in_specs and out_specs that do not fit, and values that differ between devices."""

import re
from typing import Any, NamedTuple

import jax

from malleable.compat import frames
from malleable.inspection import places
from malleable.inspection.advice.evidence import sources
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said, sure
from malleable.inspection.advice.evidence.mapped import is_shard_map, is_users, made_at
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.evidence.wording import leaves
from malleable.inspection.advice.watching import running


class _Map(NamedTuple):
    """The shard_map that an error came through; axes: of its mesh; at: where it was made."""

    held: frames.Held
    fun: Any
    function: str
    axes: tuple[str, ...]
    at: str
    caller: Step | None

    @property
    def line(self) -> str:
        """Where the function returns, in brackets."""
        ends = sources.returns(self.fun)
        return f" (returned at {places.spell(ends[-1][1])})" if ends else ""


def _map(trouble: Trouble) -> _Map:
    steps = [s for s in reversed(trouble.steps) if s.jax and is_shard_map(s)]
    step = next((s for s in steps if is_users(s.held.body)), sure(steps)[0])
    sure("shard_map" in trouble.text)
    fun, mesh, caller = step.held.body, step.held.mesh, trouble.caller(step)
    place = made_at(trouble, step, "shard_map", fun)
    apart = caller and place and (caller.place.file, caller.place.line) != (place.file, place.line)
    at = here(place) + (f", called at {places.spell(caller.place)}" if caller and apart else "")
    axes = tuple(map(str, getattr(mesh, "axis_names", ())))
    return _Map(step.held, fun, sources.name_of(fun), axes, at, caller)


def _values(found: re.Match, trouble: Trouble, step: Step) -> dict:
    """What the templates of this topic speak of."""
    seen = _map(trouble)
    told = {"function": seen.function, "line": seen.line, "at": seen.at}
    known = ", ".join(f"'{axis}'" for axis in seen.axes)
    return told | {"known": known, "first": (*seen.axes, "d")[0]}


def _elsewhere(found: re.Match, trouble: Trouble, step: Step) -> Said | None:
    """An argument that lies on a mesh with explicit axes in another way than in_specs says."""
    seen = _map(trouble)
    spec, has, kind = found.groups()
    name, leaf = _passed(seen.held, sources.parameters(seen.fun))
    axes, sizes = seen.axes, tuple(getattr(seen.held.mesh, "axis_sizes", ()))
    what = (
        f"{name} ({kind.rstrip('.')}) is laid out as {has}, and in_specs says {spec}: over a mesh"
    )
    what += " with explicit axes, which jax.make_mesh makes, shard_map does not move its arguments"
    known = running.name_in(seen.caller.frame, leaf) if seen.caller else ""
    shown = known or (name.split("`")[1] if "`" in name else "x")
    auto = ", ".join(["jax.sharding.AxisType.Auto"] * len(axes)) + "," * (len(axes) == 1)
    hint = f"lay it out first: jax.reshard({shown}, jax.NamedSharding(mesh, jax.{spec})); or make "
    hint += f"a mesh that moves them, jax.make_mesh({sizes}, {axes}, axis_types=({auto}))"
    return Said(what, hint, seen.at)


def _passed(held: frames.Held, params: list[str]) -> tuple[str, Any]:
    """What the function calls the argument that is being looked at, and its value."""
    one, args = held.looked_at, held.args or ()
    for name, arg in zip(params, args, strict=False):
        for path, leaf in leaves(arg, name):
            if leaf is one:
                return f"the argument `{path}`", leaf
    return "an argument", one


def _arity(found: re.Match, trouble: Trouble, step: Step) -> Said | None:
    seen = _map(trouble)
    specs, args, function = seen.held.in_specs, seen.held.args or (), seen.function
    if not isinstance(specs, tuple | list) or isinstance(specs, jax.P):
        what = f"in_specs has another structure than the {len(args)} arguments of `{function}`"
        hint = "give in_specs as a tuple with one entry (a jax.P, or a tree of them) per argument"
        return Said(what, hint, seen.at, 2.5)
    if len(specs) == len(args):
        what = f"an entry of in_specs has another structure than its argument of `{function}`"
        hint = "write one jax.P for the whole argument, or a tree of them with the argument's keys"
        return Said(what, hint, seen.at, 2.5)
    names = sources.called_by(seen.fun, len(args), "argument {}")
    entries = f"{len(specs)} entr{'y' if len(specs) == 1 else 'ies'}"
    what = f"in_specs has {entries}, and `{function}` is called "
    what += f"with {len(args)} argument{'' if len(args) == 1 else 's'}"
    if len(specs) > len(args):
        hint = f"write one entry per argument: {len(args)}, for {', '.join(names)}"
        return Said(what, hint, seen.at)
    missing = ", ".join(f"`{n}`" for n in names[len(specs) :])
    given = [f"jax.{spec!r}" if isinstance(spec, jax.P) else repr(spec) for spec in specs]
    inside = ", ".join([*given, *("jax.P()" for _ in args[len(specs) :])])
    hint = f"add one entry per argument: in_specs=({inside}), or a sharded jax.P(...) for {missing}"
    return Said(f"{what}: there is no entry for {missing}", hint, seen.at)


def _too_long(found: re.Match, trouble: Trouble, step: Step) -> dict:
    short = [part.strip() for part in found[2][2:-1].split(",") if part.strip()][: int(found[6])]
    return _values(found, trouble, step) | {"short": ", ".join(short)}


def _out_too_long(found: re.Match, trouble: Trouble, step: Step) -> dict:
    told = _values(found, trouble, step)
    named = f"the result of `{told['function']}`"
    return told | {"result": re.sub(r"^.+?\(\*args\)", named, found[4])}


def _uneven(found: re.Match, trouble: Trouble, step: Step) -> dict:
    up = -(-int(found[7]) // int(found[9])) * int(found[9])
    return _values(found, trouble, step) | {"name": found[3] or found[1], "up": up}


def _varying(found: re.Match, trouble: Trouble, step: Step) -> tuple[str, str] | None:
    """A carry or a branch that is the same on all devices in one place, and not in another."""
    kinds = re.findall(r"(\w+\[[\d,]*\](?:\{V:.*?\})?)", trouble.text)
    axes = next((re.findall(r"\w+", k.partition("{V:")[2]) for k in kinds if "{V:" in k), [])
    carry = re.search(r"input carry (\S+?) has type|input carry component (\S+?) has", trouble.text)
    plain = next((k for k in kinds if "{V:" not in k), "")
    differs = next((k for k in kinds if "{V:" in k), "")
    names = ", ".join(f"'{a}'" for a in axes)
    cast = f"jax.lax.pcast(x, ({names},), to='varying')"
    other = "; or combine the devices first with jax.lax.psum; or check_vma=False in shard_map"
    if carry:
        name = carry[1] or carry[2]
        what = f"carry `{name}` starts as {plain}, the same on all devices, and after one step it "
        what += f"is {differs}, a different value on each device of {names}"
        hint = f"start with one that may differ: {cast} around the initial value of `{name}`"
        return what, hint + other
    if "true_fun" in trouble.text or "branch" in trouble.text:
        what = f"one branch returns {differs}, a different value on each device of {names}, and "
        what += f"another returns {plain}, the same on all"
        return what, f"write {cast} around what the latter returns{other}"
    return None


_REPLICATED = (
    r"(out_specs\S*) is (P\(.*?\)) which implies that the corresponding output value is "
    r"replicated across mesh ax[ei]s '?(\w+)'?"
)
SHARD_SPECS = (
    Diagnosis(
        r"(in_specs|out_specs)(?:\[?.*?\]?)? refers to '?(\w+)'?",
        _values,
        "{_1} names the axis '{_2}', and the mesh has {known} only",
        "write jax.P('{first}') in {_1}, or rename the axis where the mesh is made",
    ),
    Diagnosis(
        r"shard_map: (P\(.*?\)) does not match the specs of the input: (P\(.*?\)) "
        r"for arg: (\S+)\.?",
        _elsewhere,
    ),
    Diagnosis(r"(?s)structure error.*in_specs|in_specs.*structure error", _arity),
    Diagnosis(
        r"(in_specs\S*) is (P\(.*?\)) which has length (\d+), but the passed \S+?, where .*? "
        r"bound to \S+ parameter '(.+?)', has shape (\w+\[.*?\]), which has rank (\d+)",
        _too_long,
        "{_1} is {_2}, for {_3} axes, and argument `{_4}` of `{function}` is {_5}: it has {_6}",
        "drop the entries too many, jax.P({short}); or reshape `{_4}`",
    ),
    Diagnosis(
        r"(out_specs\S*) is (P\(.*?\)) which has length (\d+), but (.+?) has shape "
        r"(\w+\[.*?\]), which has rank (\d+)",
        _out_too_long,
        "{_1} is {_2}, for an array with {_3} axes, and {result} is {_5}, with {_6}{line}",
        "return it with an axis, x[None], to have one entry per device; or combine the devices, "
        "jax.lax.psum(x, '{first}'), with out_specs=jax.P()",
    ),
    Diagnosis(
        r"the passed (\S+) of shape (\w+\[.*?\])(?:, where .*? parameter '(.+?)',)? "
        r"corresponds to (in_specs\S*) of value (P\(.*?\)), which maps array axis (\d+) "
        r"\(of size (\d+)\) to mesh axis '?(.+?)'? \(of size (\d+)\)",
        _uneven,
        "argument `{name}` is {_2}: axis {_6} has size {_7}, and {_4}, {_5}, splits it over the "
        "{_9} devices of '{_8}', which do not divide {_7}",
        "pad axis {_6} to {up}, or use a mesh whose '{_8}' divides {_7}, or jax.P()",
    ),
    Diagnosis(
        _REPLICATED,
        _values,
        "{_1} is {_2}: the result of `{function}` must be the same on all devices of the axis "
        "'{_3}', and each device has its own{line}",
        "combine them before returning, jax.lax.psum(x, '{_3}') or pmean; or keep one per device, "
        "out_specs=jax.P('{_3}'); check_vma=False only if they are equal for a reason JAX "
        "cannot see",
    ),
)
VARYING = (Diagnosis("manual axis types do not match", _varying),)
