"""Shardings of values that are being traced: what their types say, or the arguments of the jit."""

import contextlib
import sys
from collections.abc import Iterable

import jax
from jax._src import mesh as meshes
from jax._src.interpreters import ad
from jax._src.lax import parallel
from jax.sharding import NamedSharding, Sharding

from malleable.compat import frames
from malleable.compat.programs import Eqn, Tracer, match_devices, varying


def current_mesh():
    """The mesh that `jax.set_mesh` has set, also while a program is traced; it may be empty."""
    return meshes.get_concrete_mesh()


def explicit_sharding(x) -> NamedSharding | None:
    """The sharding that the type of a value says, on the mesh that is set; None for no part."""
    found = getattr(jax.typeof(x), "sharding", None)
    if found is None or not any(entry is not None for entry in found.spec):
        return None
    mesh = current_mesh()
    same = not mesh.empty and mesh.abstract_mesh.shape == found.mesh.shape
    return NamedSharding(mesh, found.spec) if same else None


def gather_parts(x, name: str, dim: int):
    """The parts of all devices of an axis of the mesh, joined; typed as the same on all of them."""
    return _gather(x, name, axis=dim, tiled=True)


_found = vars(parallel)
_gather = _found.get("all_gather_invariant") or _found["_all_gather_invariant"]  # from JAX 0.11 on


def is_explicit() -> bool:
    """Whether types say, of some axes of the mesh, where values are."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and jax.sharding.AxisType.Explicit in mesh.axis_types


def is_mapped() -> bool:
    """Whether a shard_map is around, in which types say along which mesh axes values differ."""
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def match_layout(value, aval):
    """`value` with the devices that a type says: axes it varies over, and explicit axes."""
    value = match_devices(value, aval)
    told, sharding = jax.typeof(value).sharding, getattr(aval, "sharding", None)
    if sharding is None or told == sharding:
        return value
    explicit = jax.sharding.AxisType.Explicit in sharding.mesh.axis_types
    is_number = told.mesh.empty and explicit  # of no mesh yet
    return jax.sharding.reshard(value, sharding) if any(sharding.spec) or is_number else value


def lay_out(tree, eqn: Eqn, spec: jax.sharding.PartitionSpec):
    """Arrays as a shard_map takes them that cuts them by `spec`: an explicit mesh asks for that."""
    mesh = eqn.params["mesh"]
    if jax.sharding.AxisType.Explicit not in mesh.axis_types:
        return tree
    return jax.tree.map(lambda x: jax.sharding.reshard(x, NamedSharding(mesh, spec)), tree)


def on_mesh_of(eqn: Eqn) -> contextlib.AbstractContextManager:
    """Where an equation may be traced again: under the mesh that its types are written for."""
    given = (getattr(v.aval, "sharding", None) for v in (*eqn.invars, *eqn.outvars))
    found = [sharding.mesh for sharding in given if sharding is not None]
    full = next((mesh for mesh in found if not mesh.empty), None)
    return jax.sharding.use_abstract_mesh(full) if full is not None else contextlib.nullcontext()


def is_same_type(one, other) -> bool:
    """Whether two types are equal; a mesh that they say nothing about makes no difference."""
    if one == other:
        return True
    facts = ("shape", "dtype", "weak_type")
    if not all(hasattr(a, name) for a in (one, other) for name in (*facts, "sharding")):
        return False
    same = all(getattr(one, name) == getattr(other, name) for name in facts)
    free = all(not any(a.sharding.spec) and not varying(a) for a in (one, other))
    return same and free


def is_elsewhere(x) -> bool:
    """Whether parts of an array are on devices of other processes, so that its values are not here.

    What each process has as a whole is here.
    """
    here = isinstance(x, Tracer) or not isinstance(x, jax.Array)
    return not here and not (x.is_fully_addressable or x.is_fully_replicated)


def outer_sharding(x) -> Sharding | None:
    """Where the argument of a `jit` around lies, of a value that is that argument; else None.

    The types of traced values do not say it on meshes with axes of type Auto.
    """
    x = _primal(x)
    frame = sys._getframe(1)
    place = None
    while frame is not None and isinstance(x, Tracer):
        name = frame.f_code.co_name
        if name in (*frames.TRACE, *frames.TRACE_JIT, *frames.JIT[:1]):
            held = frames.Held(frame.f_locals)
            if name in frames.TRACE:
                place = _place_of(x, held.in_tracers)
            elif place is not None and name in frames.TRACE_JIT:
                given = list(held.in_shardings or ())
                if place < len(given) and isinstance(given[place], Sharding):
                    return given[place]
            elif place is not None:
                flat = list(held.dynamic or ())
                if place >= len(flat):
                    return None
                x, place = _primal(flat[place]), None
        frame = frame.f_back
    if isinstance(x, Tracer):
        return None
    whole = jax.sharding.SingleDeviceSharding(jax.devices()[0])  # of a number, say
    return getattr(x, "sharding", None) or whole


def _primal(x):
    """The value behind one that is being differentiated."""
    while isinstance(x, ad.JVPTracer | ad.LinearizeTracer):
        x = x.primal
    return x


def _place_of(x: Tracer, tracers: Iterable | None) -> int | None:
    """Which of the arguments of what is being traced a value is."""
    mine = getattr(x, "val", None)
    for i, tracer in enumerate(tracers or ()):
        if tracer is x or (mine is not None and getattr(tracer, "val", None) is mine):
            return i
    return None
