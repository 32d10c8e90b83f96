"""Collectives: axes that nothing names, permutations and sizes that do not work out."""

import ast
import re
from collections.abc import Callable, Iterator

from malleable.inspection import places
from malleable.inspection.advice.evidence import syntax
from malleable.inspection.advice.evidence.mapped import mappings
from malleable.inspection.advice.evidence.trouble import Trouble, here
from malleable.inspection.advice.hint import Advice

_COLLECTIVES = (
    *("psum", "pmean", "pmax", "pmin", "all_gather", "all_to_all", "ppermute", "pshuffle"),
    *("pswapaxes", "psum_scatter", "axis_index", "axis_size", "pcast", "pvary"),
)


def unbound_axis(trouble: Trouble) -> Iterator[Advice]:
    """A collective over an axis that nothing around it names."""
    found = re.search(r"unbound axis name:? '?(\w+)'?", trouble.text)
    step = trouble.last
    axis = found[1] if found else _unsaid(trouble)
    if not axis or step is None:
        return
    calls = syntax.calls_on(step.place, *_COLLECTIVES)
    call = next((c for c in calls if any(_is_text(n, axis) for n in ast.walk(c))), None)
    call = call or (calls[0] if calls else None)
    name = syntax.called(call) if call else "a collective"
    written = f"`{syntax.text_of(call)}`" if call else f"`{name}`"
    maps = list(mappings(trouble))
    named = [m for m in maps if m.axis]
    what = (
        f"{written} reduces over the axis '{axis}', and nothing around it has an axis of that name"
    )
    if name in ("axis_index", "axis_size", "pcast", "all_gather"):
        what = what.replace("reduces over", "asks for")
    if named:
        known = ", ".join(f"'{m.axis}'" for m in named)
        what += f": the axes named there are {known}"
        other = named[-1].axis
        hint = f"write '{other}' here, or "
        shard = named[-1].kind == "shard_map"
        hint += f"call the axis of the mesh '{axis}'" if shard else f"axis_name='{axis}' where the "
        hint += "" if shard else "function is mapped"
        place = step.place
        what += f" (mapped at {places.spell(named[-1].place)})" if named[-1].place else ""
    elif maps:
        mapped = maps[-1]
        place = mapped.place or step.place
        hint = (
            f"name the axis where the function is mapped: jax.{mapped.kind}({mapped.function}, "
            f"axis_name='{axis}')"
        )
        what += f"; {mapped.kind} maps `{mapped.function}` without an axis_name"
        what += f" (`{name}` is called at {places.spell(step.place)})"
    else:
        place = step.place
        hint = (
            f"call it under a map that names the axis: jax.vmap(f, axis_name='{axis}'), or "
            f"jax.shard_map over a mesh with an axis '{axis}'"
        )
    # JAX names psum and shard_map, whatever was called and under which map
    instead = (
        f"unbound axis name: {axis} (JAX's own words are in error.jax_message)" if found else ""
    )
    yield Advice(what, here(place), hint, weight=4, instead=instead)


def _unsaid(trouble: Trouble) -> str:
    """The axis that a shard_map does not have, where JAX only asserts that it has it."""
    step, callee = trouble.last, trouble.callee
    if step is None or callee is None or trouble.kind != "AssertionError" or trouble.text:
        return ""
    calls = syntax.calls_on(step.place, *_COLLECTIVES)
    maps = list(mappings(trouble))
    known = {m.axis for m in maps}
    if len(calls) != 1 or callee.name != syntax.called(calls[0]) or not known - {""}:
        return ""
    at = 0 if callee.name in ("axis_index", "axis_size") else 1
    axis = syntax.argument(calls[0], at, "axis_name")
    axis = axis.value if isinstance(axis, ast.Constant) else None
    return axis if isinstance(axis, str) and axis not in known else ""


def _is_text(node: ast.AST, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def permutation(trouble: Trouble) -> Iterator[Advice]:
    """ppermute with a device that sends or receives twice."""
    if "ppermute sources and destinations must be unique" not in trouble.text or not trouble.last:
        return
    pairs = re.findall(r"\((\d+), (\d+)\)", trouble.text)
    for side, i in (("receives", 1), ("sends", 0)):
        seen = [pair[i] for pair in pairs]
        twice = next((n for n in seen if seen.count(n) > 1), None)
        if twice is not None:
            what = (
                f"in the perm of ppermute, device {twice} {side} twice: "
                f"{', '.join(map(_pair, pairs))}"
            )
            hint = (
                "each device may send once and receive once: a ring is [(i, (i + 1) % n) for i in "
                "range(n)]; to send to all, use jax.lax.all_gather"
            )
            yield Advice(what, here(trouble.last.place), hint, weight=4)
            return


def _pair(pair) -> str:
    return f"({pair[0]}, {pair[1]})"


def all_to_all(trouble: Trouble) -> Iterator[Advice]:
    """A collective that splits an axis the devices do not divide."""
    found = re.search(
        r"size of (\w+) (\w+) \((\d+)\) has to be divisible by the size of the named axis "
        r"(\w+) \((\d+)\)",
        trouble.text,
    )
    if found is None or trouble.last is None:
        return
    name, which, size, axis, parts = found.groups()
    call = next(iter(syntax.calls_on(trouble.last.place, name)), None)
    node = syntax.argument(call, 0, "x")
    array = f"`{syntax.text_of(node)}`" if node is not None else "its operand"
    up = -(-int(size) // int(parts)) * int(parts)
    what = f"{name} splits an axis of size {size} of {array} ({which}) over the {parts} devices of "
    what += f"'{axis}', and {parts} does not divide {size}"
    hint = f"pad that axis to {up}, a multiple of {parts}, or split another axis"
    yield Advice(what, here(trouble.last.place), hint, weight=4)


FAMILIES: list[Callable[[Trouble], Iterator[Advice]]] = [unbound_axis, permutation, all_to_all]
