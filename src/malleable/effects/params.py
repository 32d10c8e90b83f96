"""Parameters without plumbing: `param(...)` inside, `init(fun)` and `apply(fun)` outside."""

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Concatenate

import jax

from malleable import compat
from malleable.core.frame import Frame, Path, quoted, spell_type
from malleable.core.interpret import Rulebook, run_staged, sites
from malleable.core.marker import marker
from malleable.core.stage import stage
from malleable.effects.harvest import fit
from malleable.effects.names import full_path, nest, unnest
from malleable.effects.rng import own_key_p, shared_key_p, typed
from malleable.errors import TransformError
from malleable.python_source.misuse import binds, called_as
from malleable.signatures import P, R

param_p = marker(
    "param",
    out=lambda *, types, **_: list(types),
    lanes="shared",
    missing="param() is called, and no parameters are around",
    hint="run the function as apply(fun)(params, ...), with params = init(fun)(key, ...); in what "
    "a solver of a library calls, use a value that was read before",
)


@called_as("param(name, init, *args), such as param('w', jax.nn.initializers.ones, (3,))")
def param(name: str | Path, init: Callable[..., Any], *args: Any) -> Any:
    """A named parameter: init(key, *args) when it is made, the given value afterwards.

    The value may be any pytree of arrays. It is the same in every lane of a vmap and every step
    of a loop; the same name in the same `scope` is the same parameter.

    >>> net = lambda x: x @ param("w", jax.nn.initializers.ones, (3, 2))
    >>> params = init(net)(jax.random.key(0), jax.numpy.ones(3))
    >>> params["w"].shape, float(apply(net)(params, jax.numpy.ones(3))[0])
    ((3, 2), 3.0)
    """
    if not param_p.active:
        return param_p()  # raises
    path = full_path(name)

    if not binds(init, (None, *args), {}):
        given = ", ".join(("key", *map(repr, args)))
        raise TypeError(f"the initializer of {quoted(path)} cannot be called with ({given})")

    def make(key):
        return init(key, *args)

    made, types = jax.make_jaxpr(make, return_shape=True)(jax.random.key(0))
    leaves, tree = jax.tree.flatten(types)
    if any(isinstance(c, compat.Tracer) for c in (*made.consts, *jax.tree.leaves(args))):
        raise TransformError(
            f"the initializer of {quoted(path)} uses a value that is traced",
            where=compat.where(),
            hint="make a parameter from its key, shapes and constants only",
        )
    params = {"path": path, "types": tuple(leaves), "tree": tree, "make": make}
    return jax.tree.unflatten(tree, param_p.bind(**params))


@called_as("init(fun)(key, *args)")
def init(fun: Callable[P, Any]) -> Callable[Concatenate[Any, P], dict[str, Any]]:
    """init(fun)(key, *args) -> {name: value}; parameters in a `scope` are in a dict of its name.

    `fun` is traced and not run: its parameters are read off the program, those of all branches
    of a cond included. Each has a key of its own, fold_in(key, crc32 of its path), so adding one
    does not change the others. Raises TransformError for one name with two types.
    """

    @called_as("init(fun)(key, *args)", of=fun)
    def inited(key: Any, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        root, found = typed(key), {}
        waiting = (param_p, own_key_p, shared_key_p)
        for eqn in sites(stage(fun, waiting)(*args, **kwargs).jaxpr, [param_p]):
            q, old = eqn.params["path"], found.setdefault(eqn.params["path"], eqn)
            if any(eqn.params[k] != old.params[k] for k in ("types", "tree")):
                both = f"{compat.where(old)} and {compat.where(eqn)}"
                raise TransformError(
                    f"parameter {quoted(q)} is used with two types ({both})",
                    where=compat.where(eqn),
                    hint="give each its own name, or put one inside a `scope`",
                )

        def fresh(q, eqn):
            number = zlib.crc32(repr(q).encode())
            return eqn.params["make"](jax.random.fold_in(root, number)), compat.where(eqn)

        return nest({q: fresh(q, eqn) for q, eqn in found.items()})

    return inited


@called_as("apply(fun)(params, *args)")
def apply(fun: Callable[P, R]) -> Callable[Concatenate[Mapping[str, Any], P], R]:
    """apply(fun)(params, *args) -> out: run `fun` with the parameters that `init` made.

    Raises TransformError for a parameter that is missing or has another shape; entries of
    `params` that this call does not use are ignored.
    """

    @called_as("apply(fun)(params, *args)", of=fun)
    def applied(params: Mapping[str, Any], *args: P.args, **kwargs: P.kwargs) -> R:
        staged = stage(fun, _BOOK.markers, raises=False)(*args, **kwargs)
        known = {e.params["path"] for e in sites(staged.jaxpr, [param_p])}
        given = unnest(params, known)
        return run_staged(staged, _BOOK, Frame(shared=given))

    return applied


def _give(frame, *, path, types, tree, make):
    wanted = jax.tree.unflatten(tree, types)
    given = frame.read(path, None)
    if given is None:
        raise frame.error(
            f"there is no parameter {quoted(path)}, of type {spell_type(wanted)}",
            f"make it with init(fun)(key, ...); given are: {_given_names(frame)}",
        )
    return jax.tree.leaves(fit(frame, path, given, wanted, "parameters come from init(fun)"))


def _given_names(frame) -> str:
    return ", ".join(map(quoted, frame.shared)) or "none"


_BOOK = Rulebook({param_p: _give})
