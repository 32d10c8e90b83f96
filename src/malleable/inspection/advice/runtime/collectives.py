"""Collectives: axes that nothing names, permutations and sizes that do not work out."""

import ast
import re

from malleable.inspection import places
from malleable.inspection.advice.evidence import syntax
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said, sure
from malleable.inspection.advice.evidence.mapped import mappings
from malleable.inspection.advice.evidence.trouble import Step, Trouble

_COLLECTIVES = (
    *("psum", "pmean", "pmax", "pmin", "all_gather", "all_to_all", "ppermute", "pshuffle"),
    *("pswapaxes", "psum_scatter", "axis_index", "axis_size", "pcast", "pvary"),
)
_ASKING = ("axis_index", "axis_size", "pcast", "all_gather")


def unbound_axis(found: re.Match, trouble: Trouble, step: Step) -> Said | None:
    """A collective over an axis that nothing around it names."""
    axis = found[1] if found[0] else _unsaid(trouble, step)
    calls = syntax.calls_on(step.place, *_COLLECTIVES)
    says = lambda c: axis in (getattr(n, "value", None) for n in ast.walk(c))  # noqa: E731
    call = next((c for c in (*filter(says, calls), *calls)), None)
    name = syntax.called(call) if call else "a collective"
    written = f"`{syntax.text_of(call)}`" if call else f"`{name}`"
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
    calls = syntax.calls_on(step.place, *_COLLECTIVES)
    known = {m.axis for m in mappings(trouble)}
    sure([syntax.called(call) for call in calls] == [callee.name] and known - {""})
    at = 0 if callee.name in ("axis_index", "axis_size") else 1
    axis = getattr(syntax.argument(calls[0], at, "axis_name"), "value", None)
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
    node = syntax.argument(next(iter(syntax.calls_on(step.place, found[1])), None), 0, "x")
    array = f"`{syntax.text_of(node)}`" if node is not None else "its operand"
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
