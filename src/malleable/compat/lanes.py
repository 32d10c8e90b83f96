"""What one device or example of many runs, and where its values lie."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.core
import jax.export
import numpy as np
from jax._src import mesh as mesh_internal
from jax._src import sharding_impls

from malleable.compat.programs import Eqn, HostArray, Literal, put


def is_spread(x) -> bool:
    """Whether a value is a concrete array that lies on several devices."""
    return isinstance(x, HostArray) and len(x.sharding.device_set) > 1


def alone(eqn: Eqn) -> Eqn:
    """An equation of the body of a shard_map, as one that runs on the part of a single device."""
    with eqn.ctx.manager, jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        ctx = type(eqn.ctx)()
    placed = [k for k, p in eqn.params.items() if isinstance(p, jax.sharding.Sharding)]
    return eqn.replace(ctx=ctx, params=eqn.params | dict.fromkeys(placed))


def concrete_mesh(mesh):
    """The devices of a mesh, those of the context if it names none; None where there are none."""
    if isinstance(mesh, jax.sharding.Mesh):
        return mesh
    known = mesh_internal.get_concrete_mesh()
    return None if known is None or known.empty else known


def mesh_of(x):
    """The mesh that a concrete array is laid out on, or None."""
    mesh = getattr(x.sharding, "mesh", None) if isinstance(x, HostArray) else None
    return mesh if isinstance(mesh, jax.sharding.Mesh) else None


def is_laid_out(aval) -> bool:
    """Whether a type says how its values are laid out on a mesh."""
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and not sharding.mesh.empty


on_mesh = sharding_impls._internal_use_concrete_mesh  # inside, the devices of a mesh are known


def number(atom: Literal):
    """A number written into a program, as an array of its type."""
    x: Any = atom.val
    aval: Any = atom.aval
    if isinstance(x, HostArray) or aval.dtype == jax.dtypes.float0:
        return x
    return put(np.asarray(x, aval.dtype), aval.weak_type)


@contextlib.contextmanager
def off_mesh() -> Iterator[None]:
    """Inside, no mesh of `jax.set_mesh` is there: what runs is bound to no devices."""
    with contextlib.ExitStack() as stack:
        if concrete_mesh(None) is not None:
            stack.enter_context(on_mesh(jax.sharding.Mesh(np.empty((), object), ())))
            stack.enter_context(jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())))
        yield


def is_operation(fun) -> bool:
    """Whether JAX jitted a function of its own, to run one operation on values."""
    return getattr(fun, "_apply_primitive", False)
