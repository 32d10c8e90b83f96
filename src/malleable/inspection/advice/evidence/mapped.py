"""The maps over examples and devices that an error came through: vmap, pmap, shard_map."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from malleable.compat import Place, frames
from malleable.inspection import places
from malleable.inspection.advice.evidence import creation, sources
from malleable.inspection.advice.evidence.trouble import Step, Trouble
from malleable.python_source import source


@dataclass(frozen=True)
class Mapping:
    """One map; function: the name of what it maps; axis: its name, or ""; place: its line."""

    kind: str
    function: str
    axis: str
    place: Place | None


_PMAP = "_internal_pmap_axis_name"  # what JAX calls the axis of a pmap without a name


def mappings(trouble: Trouble) -> Iterator[Mapping]:
    """The maps that an error came through, outermost first."""
    for step in trouble.steps:
        if not step.jax:
            continue
        held = step.held
        if step.name in frames.VMAP:
            fun, axis = held.fun, held.axis_name
            axis = axis if isinstance(axis, str) else ""
            yield Mapping("vmap", sources.name_of(fun), axis, made_at(trouble, step, "vmap", fun))
        elif is_shard_map(step):
            fun, mesh = held.body, held.mesh
            place = made_at(trouble, step, "shard_map", fun)
            if _PMAP in getattr(mesh, "axis_names", ()):  # pmap is a shard_map inside
                continue
            for axis in getattr(mesh, "axis_names", ()):
                yield Mapping("shard_map", sources.name_of(fun), str(axis), place)
        elif step.name in frames.MAPPED and is_pmap(step):
            fun = mapped_function(step)
            axis = held.axis_name or closed_over(step, frames.AXIS_NAME)
            axis = axis if isinstance(axis, str) and axis != _PMAP else ""
            yield Mapping("pmap", sources.name_of(fun), axis, made_at(trouble, step, "pmap", fun))


def made_at(trouble: Trouble, step: Step, kind: str, fun: Any) -> Place | None:
    """Where a map was applied; else the line that calls it."""
    caller = trouble.caller(step)
    return creation.of((kind,), fun) or (caller.place if caller else None)


def closed_over(step: Step, name: str) -> Any:
    """What the functions in a frame hold under some name."""
    held = (source.closed_over(value) for value in list(step.values.values()))
    return next((found[name] for found in held if name in found), None)


def mapped_function(mapped: Step) -> Any:
    """The user function that a frame of pmap maps."""
    for value in list(mapped.values.values()):
        for held in source.closed_over(value).values():
            for one in (held, getattr(held, "f", None)):
                if callable(one) and is_users(one):
                    return one
    return None


def is_pmap(step: Step) -> bool:
    return step.frame.f_code.co_filename.endswith("pmap.py")


def is_shard_map(step: Step) -> bool:
    return step.name in frames.MAPPED and step.frame.f_code.co_filename.endswith("shard_map.py")


def is_users(fun: Any) -> bool:
    found = sources.plain(fun) if fun is not None else None
    return found is not None and places.is_own(found.__code__.co_filename)
