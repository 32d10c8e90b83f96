"""Where the arguments of a program are: a mesh, and a PartitionSpec for each of them."""

import contextlib
import contextvars
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from malleable import compat
from malleable.errors import TransformError

HINT = "give a NamedSharding, a PartitionSpec under jax.set_mesh, or None for each argument"
SEVERAL = "the shardings are on several meshes"


@dataclass(frozen=True)
class Placement:
    """A mesh, and the spec of each argument on it; None for one of which nothing is known.

    >>> Placement.of([1.0, None]) is None
    True
    """

    mesh: Any
    specs: tuple[PartitionSpec | None, ...]

    @classmethod
    def current(cls, program: compat.Jaxpr) -> "Placement | None":
        """That of a program that passes are run on now; None where nothing is known of it."""
        placed = _placed.get()
        known = placed is not None and len(placed.specs) == len(program.in_avals)
        return placed if known else None

    def among(self, chosen: Sequence[bool]) -> "Placement":
        """Of some of the arguments only."""
        return Placement(self.mesh, tuple(s for s, c in zip(self.specs, chosen, strict=True) if c))

    @staticmethod
    def of(leaves: Sequence, given: Sequence | None = None) -> "Placement | None":
        """Where some arguments are: as `given` says, else as they themselves do.

        None where no argument is on a mesh, or all are there as a whole.
        """
        told = list(leaves)
        if given is not None:
            told = [x if s is None else _fitting(x, s) for x, s in zip(leaves, given, strict=True)]
        named = [sharding for x in told if (sharding := sharding_of(x)) is not None]
        meshes = list(dict.fromkeys(s.mesh for s in named if isinstance(s, NamedSharding)))
        if len(meshes) != 1:
            if given is not None and len(meshes) > 1:
                raise TransformError(SEVERAL, hint=HINT)
            return None
        (mesh,) = meshes
        specs = tuple(_spec(x, mesh) for x in told)
        sharded = any(entry is not None for spec in specs if spec is not None for entry in spec)
        return Placement(mesh, specs) if sharded else None

    @staticmethod
    def said(avals: Sequence, given: Sequence) -> "Placement | None":
        """Where arguments of these types are, of which nothing else is known."""
        told = [s if s is None else _fitting(a, s) for a, s in zip(avals, given, strict=True)]
        meshes = list(dict.fromkeys(s.mesh for s in told if s is not None))
        if len(meshes) > 1:
            raise TransformError(SEVERAL, hint=HINT)
        specs = tuple(s if s is None else s.spec for s in told)
        return Placement(meshes[0], specs) if meshes else None


_placed: contextvars.ContextVar[Placement | None] = contextvars.ContextVar("placed", default=None)


def placed_as(placement: Placement | None) -> contextlib.AbstractContextManager[None]:
    """Run passes on a program whose arguments are there."""
    return compat.setting(_placed, placement)


HELD: contextvars.ContextVar[Sequence[list[int]]] = contextvars.ContextVar("HELD", default=())


def held_as(args: tuple, traced: Sequence[bool]) -> contextlib.AbstractContextManager[None]:
    """Run passes on the program of a function of `args`, which takes the traced of its leaves."""
    count = itertools.count()
    places = iter([next(count) if t else None for t in traced])
    held: Any = [jax.tree.leaves(jax.tree.map(lambda _: next(places), x)) for x in args]
    return compat.setting(HELD, held)


def where_they_are(shardings, args: tuple, kwargs: dict) -> Placement | None:
    """The placement of the arguments of a call: as `shardings` says, or else as they are."""
    leaves = jax.tree.leaves((args, kwargs))
    if shardings is None:
        return Placement.of(leaves) if jax.device_count() > 1 else None
    return Placement.of(leaves, broadcast(shardings, args, kwargs))


def sharding_of(x) -> Any:
    """The sharding of an argument, or of the argument of a `jit` around that it is; or None."""
    if isinstance(x, jax.sharding.Sharding):
        return x
    if isinstance(x, compat.Tracer):
        named = compat.explicit_sharding(x)
        return named if named is not None else compat.outer_sharding(x)
    return getattr(x, "sharding", None)


def _spec(x, mesh) -> PartitionSpec | None:
    sharding = sharding_of(x)
    if isinstance(sharding, NamedSharding):
        return sharding.spec if sharding.mesh == mesh else None
    if isinstance(x, compat.Tracer) and not isinstance(sharding, SingleDeviceSharding):
        return None
    return PartitionSpec()  # a number, or an array of one device: each device gets it as a whole


def is_sharding(x) -> bool:
    """Whether this says where an argument is; None says nothing."""
    return x is None or isinstance(x, NamedSharding | PartitionSpec)


def broadcast(shardings, args: tuple, kwargs: dict) -> list:
    """One sharding, or None, for each leaf of the arguments, of a tree that is a prefix of theirs.

    Raises TransformError for a tree that is none, or for what is no sharding.
    """
    for x in jax.tree.leaves(shardings, is_leaf=is_sharding):
        if not is_sharding(x):
            told = f"shardings holds {type(x).__name__} {x!r}, which is no sharding"
            raise TransformError(told, hint=HINT)
    if is_sharding(shardings):
        found = [shardings] * len(jax.tree.leaves(args))
    else:
        if isinstance(shardings, list):
            shardings = tuple(shardings)
        try:
            spread = lambda s, part: [s] * len(jax.tree.leaves(part))  # noqa: E731
            found = jax.tree.map(spread, shardings, args, is_leaf=is_sharding)
        except (ValueError, TypeError) as error:
            told = f"shardings is no tree of the arguments: {str(error).splitlines()[0]}"
            hint = f"it has the structure of the {len(args)} positional arguments, or of a prefix"
            raise TransformError(told, hint=hint) from None
        found = jax.tree.leaves(found, is_leaf=is_sharding)
    return found + [None] * len(jax.tree.leaves(kwargs))


def _fitting(x, given) -> NamedSharding:
    if isinstance(given, PartitionSpec):
        mesh = compat.current_mesh()
        if mesh.empty:
            raise TransformError(f"{given} is given, and no mesh is set", hint=HINT)
        given = NamedSharding(mesh, given)
    shape = getattr(x, "shape", ())
    try:
        given.shard_shape(shape)
    except (ValueError, TypeError, IndexError) as error:
        told = f"{given.spec} does not fit an argument of shape {tuple(shape)}: "
        raise TransformError(told + str(error).splitlines()[0], hint=HINT) from None
    return given
