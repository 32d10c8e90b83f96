"""Run a function of the user's once per device or example, all of which can meet at collectives."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from malleable import compat
from malleable.errors import MalleableError
from malleable.inspection.debugging import lanes
from malleable.inspection.debugging.stepping import evaluate_lane
from malleable.inspection.unstaging import cooperative
from malleable.inspection.unstaging.refusals import HasRule
from malleable.notes import note
from malleable.programs.equations import mentions
from malleable.programs.evaluate import evaluate


def together(example: Callable[[int], list], name: Any, size: int) -> list[list]:
    """[example(0), example(1), ...]: the examples along an axis with a name."""
    spots = list(lanes.every_lane({name: size}))

    def run(i):
        lane = compat.Lane({name: size}, _perform)
        with lane.entered():
            return [lane.plain(x) for x in example(i)]

    return cooperative.run([functools.partial(run, i) for i in range(size)], spots)


def on_devices(body: Callable, args: Sequence, mesh, in_specs, axes, checked: bool):
    """The results of a shard_map, each device on its part; None for what JAX would refuse.

    body(*parts) -> (flat results, their specs).
    """
    sizes = {a: mesh.shape[a] for a in mesh.axis_names if a in axes}
    args = [lanes.home(compat.as_array(x)) for x in args]
    spots = list(lanes.every_lane(sizes))

    def run(at):
        with compat.off_mesh():
            return device(at)

    def device(at):
        lane = compat.Lane(sizes, _perform, mesh if checked else None)
        parts = [lanes.shard_of(x, s, at) for x, s in zip(args, in_specs, strict=True)]
        if checked:
            pairs = zip(args, in_specs, strict=True)
            types = [compat.part_type(x, s, mesh, sizes, True) for x, s in pairs]
            parts = [lane.typed(x, t) for x, t in zip(parts, types, strict=True)]
        with saying(f"shard_map[{lanes.spell_lane(at, sizes=True)}]"), lane.entered(mesh, checked):
            outs, specs = body(*parts)
            outs = list(map(compat.as_array, outs))
        along = [compat.varying(x) & frozenset(sizes) for x in outs]
        return list(map(lane.plain, outs)), specs, along

    rows = cooperative.run([functools.partial(run, at) for at in spots], spots)
    specs = rows[0][1]
    for outs, _, along in rows:
        for x, spec, axes_of_x in zip(outs, specs, along, strict=True):
            said = {a for names in spec if names for a in compat.names_of(names)}
            if len(spec) > x.ndim or not axes_of_x <= said:
                return None
    columns = zip(*(outs for outs, *_ in rows), strict=True)
    with compat.off_mesh():
        wholes = [lanes.assemble(c, spots, s) for c, s in zip(columns, specs, strict=True)]
    devices = compat.concrete_mesh(mesh)
    if devices is None or compat.around():
        return wholes
    places = [jax.sharding.NamedSharding(devices, s) for s in specs]
    return [jax.device_put(x, s) for x, s in zip(wholes, places, strict=True)]


def _perform(lane: compat.Lane, prim, plain: list, params: dict, args: Sequence):
    """What an operation gives in a lane; NotImplemented where being in a lane does not matter."""
    name = prim.name
    if name == "custom_vjp_call":  # what comes back to one lane is not always what JAX gives it
        raise HasRule("a function in it has a rule for its derivative in reverse")
    axes = lanes.axes_of(name, params)
    own = [a for a in axes if a in lane.axes]
    if not own:
        if name in lanes.PLACING and lane.manual:
            return plain
        inside = compat.bodies(params)
        if inside and (_is_typed(lane) or any(_meets(b, frozenset(lane.axes)) for b in inside)):
            return _enter(lane, prim, plain, params, args)
        return NotImplemented
    if name in lanes.LOCAL:
        return plain
    if name == "axis_index":
        return [lanes.index(cooperative.coords(), params)]
    if name in ("pmax", "pmin") and "derivative" in compat.around():
        note(f"differentiated a {name}", compat.where(), "JAX refuses it when it is staged")
    if len(own) == len(axes):
        outs = _ask(lane, name, params, plain)
        strong = lane.manual and name in lanes.STRONG  # among devices; of a vmap's examples not
        return [lanes.weak(x, False) for x in outs] if strong else outs
    if "axes" not in params:
        raise MalleableError(
            f"`{name}` works along {axes}, of which some belong to another vmap or shard_map",
            hint="call it once for each of the axes",
        )
    outs = _ask(lane, name, params | {"axes": tuple(own)}, plain)
    rest = tuple(a for a in params["axes"] if a not in own and not isinstance(a, int))
    return lane.plainly(prim, outs, params | {"axes": rest})


def _ask(lane: compat.Lane, name: str, params, values: Sequence) -> list:
    if lane.in_rule and not all(map(compat.is_known, values)):
        raise HasRule("a rule for a derivative in it has a collective of tangents")
    return cooperative.ask(name, params, values, lane.beside)


def _is_typed(lane: compat.Lane) -> bool:
    """Whether bodies traced in a lane are about its mesh, which is not there beside it."""
    return lane.mesh is not None or (lane.manual and "derivative" in compat.around())


def _enter(lane, prim, plain, params, args) -> list:
    """Run an operation with a body equation by equation."""
    bind = functools.partial(_bind, prim, params)
    program = compat.trace(bind, *args)
    if "derivative" in compat.around() and _has_rules(program):
        view = compat.view(program.jaxpr.eqns[0])
        if not isinstance(view, compat.Call) or len(program.jaxpr.eqns) != 1:
            raise HasRule("a loop or branch in it has a rule for its derivative")
        with compat.under_trace(lane):
            outs = evaluate(view.body, args)
        return list(map(lane.plain, outs))

    def ask(request):
        return _ask(lane, request.primitive, request.params, request.values)

    with lane.beside():
        return evaluate_lane(program, plain, cooperative.coords(), ask)


def _bind(prim, params, *args):
    return prim.bind(*args, **prim.get_bind_params(params))


@functools.lru_cache(1024)
def _has_rules(body: compat.Jaxpr) -> bool:
    """Whether a program has a call with a rule for its derivative, at any depth."""
    return mentions(body, ("custom_jvp_call", "custom_vjp_call"))


@functools.lru_cache(1024)
def _meets(body: compat.Jaxpr, axes: frozenset) -> bool:
    """Whether a program has a collective along some axes, at any depth."""
    return any(
        not axes.isdisjoint(lanes.axes_of(eqn.primitive.name, eqn.params))
        or any(_meets(inner, axes) for inner in compat.bodies(eqn.params))
        for eqn in body.jaxpr.eqns
    )


@contextlib.contextmanager
def saying(where: str) -> Iterator[None]:
    """An error that comes from inside says where: in which step, example or device."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in {where}")
        raise
