"""StableHLO by jax.export: what runs elsewhere, and can be called but not be changed."""

import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.export

from malleable import compat
from malleable.errors import MalleableError
from malleable.notes import first_line
from malleable.programs.evaluate import evaluate

try:
    import flatbuffers  # JAX writes and reads its exports with it
except ImportError:
    flatbuffers = None

CHANGED = "save it with transformable=True"


def symbolic(leaves: Sequence, specs: Sequence[str | None], paths, constraints) -> list:
    """The arguments with sizes that are names where a spec says so."""
    try:
        scope = jax.export.SymbolicScope(tuple(constraints))
    except ValueError as err:
        hint = 'a constraint reads "b >= 4"'
        raise MalleableError(f"{constraints!r} are no constraints: {err}", hint=hint) from err
    each = zip(leaves, specs, paths, strict=True)
    return [x if spec is None else _spec(x, spec, path, scope) for x, spec, path in each]


def _spec(x, spec: str, path: str, scope):
    aval = jax.typeof(x) if not isinstance(x, jax.ShapeDtypeStruct) else x
    try:
        shape = jax.export.symbolic_shape(spec, scope=scope, like=aval.shape)
    except ValueError as err:
        raise _misfit(spec, path, aval, f": {err}") from err
    if len(shape) != len(aval.shape):
        raise _misfit(spec, path, aval)
    return jax.ShapeDtypeStruct(shape, aval.dtype)


def _misfit(spec: str, path: str, aval, why: str = "") -> MalleableError:
    what = f"{spec!r} is not the shape of `{path}`, {list(aval.shape)}{why}"
    return MalleableError(what, hint='write a name or a number per axis, as in "b, 3"')


def specs_of(polymorphic: Any, tree: tuple[tuple, dict], traced) -> list[str | None]:
    """The spec of each array: of one string for all, or of a pytree of them as a prefix."""
    args, kwargs = tree
    leaf = lambda x: x is None or isinstance(x, str)  # noqa: E731
    if leaf(polymorphic):
        every = jax.tree.map(lambda _: polymorphic, tree)
    else:
        given = tuple(polymorphic) if isinstance(polymorphic, list | tuple) else (polymorphic,)
        if len(given) != len(args):
            what = f"`polymorphic` has {len(given)} entries for {len(args)} arguments"
            raise MalleableError(what, hint="give one per positional argument, None for fixed ones")
        try:
            wide = jax.tree.broadcast(given, args, is_leaf=leaf)
        except ValueError as err:
            what = f"`polymorphic` does not fit the arguments: {err}"
            raise MalleableError(what, hint="give one string, or one per argument") from err
        every = (wide, jax.tree.map(lambda _: None, kwargs))
    flat = jax.tree.leaves(every, is_leaf=leaf)
    return [spec for spec, is_array in zip(flat, traced, strict=True) if is_array]


def inconclusive(err: Exception, where: str) -> MalleableError:
    """What JAX could not decide about a size, with the constraint that would tell it."""
    text = first_line(err)
    asked = re.search(r"'([^']+)' (>=|<=|>|<|==|!=) '([^']+)'", text)
    hint = "compute with sizes that are given, or save it for fixed ones"
    if asked:
        left, sign, right = asked.groups()
        strict = {">": ">=", "<": "<="}
        told = f"{left} {sign} {right}" if sign in (">=", "<=", "==") else ""
        told = told or f"{left} {strict.get(sign, '>=')} {right}"
        told = f"{told} + 1" if sign == ">" else f"{told} - 1" if sign == "<" else told
        hint = f'say which: constraints=("{told}",), if that is so'
    return MalleableError(
        f"a size that is a name decides what to do: {text}", where=where, hint=hint
    )


def export(program: compat.Jaxpr, avals: Sequence, name: str, platforms, order: int) -> bytes:
    """A program as bytes that any process of JAX can run, with gradients up to some order."""
    _check_flatbuffers("is written")

    def run(*xs):
        return evaluate(program, xs)

    run.__name__ = name if name.isidentifier() else "saved"
    try:
        made = jax.export.export(jax.jit(run), platforms=platforms)(*avals)
        return bytes(made.serialize(vjp_order=order))
    except compat.InconclusiveSize as err:
        raise inconclusive(err, "") from err
    except (NotImplementedError, ValueError, TypeError) as err:
        said = first_line(err)
        hint = "take callbacks and debug.print out of what is saved"
        raise MalleableError(f"JAX cannot export it: {said}", hint=hint) from err


def _check_flatbuffers(what: str) -> None:
    if flatbuffers is None:
        raise MalleableError(
            f"StableHLO {what} with flatbuffers, which is not installed",
            hint="pip install 'malleable[save]', or save with transformable=True",
        )


def restore(data: bytes, written_by: str, order: int):
    """The exported function in some bytes. Raises MalleableError where JAX cannot read them."""
    _check_flatbuffers("is read")
    try:
        exported = jax.export.deserialize(bytearray(data))
        text = exported.mlir_module()
    except Exception as err:  # the bytes are whole, and still JAX may refuse them in any way
        raise MalleableError(
            f"JAX {jax.__version__} cannot read what JAX {written_by} exported: {err}",
            hint="exports are read for 6 months; export it again, or use a JAX nearer to its own",
        ) from err
    called = set(re.findall(r"custom_call @([\w.]+)", text))
    back = sorted(name for name in called if "callback" in name.lower())
    if back:
        raise MalleableError(
            f"the program calls back into Python ({back[0]})", hint="do not run it"
        )
    return compat.limited(exported, lambda: _beyond(order))


def _beyond(order: int):
    raise MalleableError(
        f"the file has gradients of order {order}, and one more is asked for",
        hint=f"save it with gradient_order={order + 1}, or with transformable=True",
    )


def run_exported(exported, name: str, args: Sequence) -> list:
    """Run an exported function."""
    try:
        return list(exported.call(*args))
    except NotImplementedError as err:
        what = f"{name} cannot be changed like that: {err}"
        raise MalleableError(what, hint=f"{CHANGED}, then vmap and jvp work") from err
    except ValueError as err:
        hint = "call it with shapes, and on a platform, that it was saved for"
        raise MalleableError(f"{name} cannot be called: {err}", hint=hint) from err
