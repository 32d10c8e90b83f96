"""How a saved function is called: its parameters, the paths and types of what they hold."""

import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from malleable import compat
from malleable.core import stage
from malleable.errors import MalleableError
from malleable.inspection.files.format import trees, types
from malleable.inspection.show.arguments import positional_names

_KINDS = {kind.name: kind for kind in inspect._ParameterKind}


@dataclass(frozen=True)
class Given:
    """Arguments in order. leaves: the arrays among them, under `paths` such as params['w'].

    traced: for every leaf, whether it is one of these; static: the arguments that are not, though
    they hold numbers.
    """

    tree: tuple[tuple, dict]
    leaves: list
    paths: list[str]
    every: list[str]  # the paths of all leaves, those that are not arrays among them
    traced: list[bool]
    static: list[str]


def signature_of(fun: Callable) -> inspect.Signature:
    """The parameters of a function; *args, **kwargs where Python does not know them."""
    try:
        return inspect.signature(fun)
    except (ValueError, TypeError):
        return inspect.signature(lambda *args, **kwargs: None)


def arrange(
    signature: inspect.Signature,
    args: tuple,
    kwargs: dict,
    name: str,
    *,
    fun: Callable | None = None,
    static: Sequence[str] = (),
) -> Given:
    """The arguments of a call. Raises MalleableError where they do not fit the parameters.

    fun: what is called, which may have static arguments; static: these, if there is none.
    """
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as err:
        hint = f"its parameters are {signature}"
        raise MalleableError(f"{name} cannot be called like that: {err}", hint=hint) from None
    tree, positional = (bound.args, bound.kwargs), positional_names(bound)
    found = jax.tree_util.tree_flatten_with_path(tree)[0]
    every = [_spell_path(path, positional) for path, _ in found]
    roots = [_spell_path(path[:2], positional) for path, _ in found]
    numbers = [is_traced(x) for _, x in found]
    places = list(zip(numbers, every, roots, strict=True))
    traced = [n and not {path, root}.intersection(static) for n, path, root in places]
    if fun is not None:
        traced = stage.staged_arguments(fun, *tree)[2]
    some = {root for root, t in zip(roots, traced, strict=True) if t}  # has traced leaves beside
    fixed = dict.fromkeys(
        path if root in some else root
        for (n, path, root), t in zip(places, traced, strict=True)
        if n and not t
    )
    arrays = [(p, x) for p, (_, x), t in zip(every, found, traced, strict=True) if t]
    leaves, paths = [x for _, x in arrays], [p for p, _ in arrays]
    return Given(tree, leaves, paths, every, traced, list(fixed))


def is_traced(x) -> bool:
    """Whether a leaf is handed in at each call, unless it is of a static argument."""
    return compat.is_array(x) or isinstance(x, jax.ShapeDtypeStruct)


def _spell_path(path, positional: list[str]) -> str:
    where, which, *rest = path
    name = positional[which.idx] if where.idx == 0 else str(which.key)
    return name + jax.tree_util.keystr(tuple(rest))


def describe_arguments(given: Given) -> Any:
    """The pytree of arguments, without their types."""
    traced = iter(given.traced)
    return trees.describe(given.tree, lambda x: "array" if next(traced) else trees.leaf_text(x))


def write_signature(signature: inspect.Signature, given: Given) -> list[list[str]]:
    """Parameters as text: those that were given a value, and those that gather the rest."""
    bound = signature.bind(*given.tree[0], **given.tree[1]).arguments
    gathers = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    every = signature.parameters.values()
    return [[p.name, p.kind.name] for p in every if p.name in bound or p.kind in gathers]


def read_signature(found: list) -> inspect.Signature:
    """The signature behind what `write_signature` gave."""
    try:
        return inspect.Signature([inspect.Parameter(name, _KINDS[kind]) for name, kind in found])
    except (ValueError, TypeError, KeyError) as err:
        raise MalleableError(f"{found!r} are no parameters") from err


def fitted_arguments(given: Given, wanted: Any, kinds: list[tuple[str, str]], name: str) -> list:
    """The arrays of a call, of exactly the types asked for; weak numbers made to fit.

    wanted: what `describe_arguments` gave; kinds: (path, type). Raises MalleableError naming the
    path of what differs.
    """
    if _json_text(describe_arguments(given)) != _json_text(wanted):
        _explain(given, kinds, name)
    pairs = zip(given.leaves, kinds, strict=True)
    return [fit_argument(x, kind, f"argument `{path}` of {name}") for x, (path, kind) in pairs]


def _json_text(description) -> str:
    """JSON in one form: equal for what is equal, True being no 1."""
    return json.dumps(description, sort_keys=True)


def check_kind(kind: str) -> None:
    """Raise MalleableError unless a text is a type; sizes may be names."""
    types.parse(re.sub(r"\[.*?\]", "[]", kind))


def fit_argument(x, kind: str, what: str):
    x = compat.as_array(x)
    got = types.unparse(jax.typeof(x))
    if not _matches(types.plain(got), types.plain(kind)):
        hint = "convert it, or save the function again for these types"
        raise MalleableError(f"{what} is {types.plain(got)}, not {types.plain(kind)}", hint=hint)
    weak = kind.startswith("~")
    return compat.convert(x, x.dtype, weak) if weak != got.startswith("~") else x


def _matches(got: str, kind: str) -> bool:
    """Whether a type is the one asked for; a size that is a name may be any."""
    (dtype, _, sizes), (wanted, _, names) = got.partition("["), kind.partition("[")
    have, want = (s.rstrip("]").split(",") if s != "]" else [] for s in (sizes, names))
    pairs = zip(have, want, strict=False)
    same = all(a == b or not b.isdigit() for a, b in pairs)
    return dtype == wanted and len(have) == len(want) and same


def _explain(given: Given, kinds, name: str):
    wanted = [path for path, _ in kinds]
    missing = [p for p in wanted if p not in given.paths]
    extra = [p for p in given.paths if p not in wanted]
    what = "the arguments have another structure than those it was saved with"
    if missing or extra:
        parts = [f"`{path}` is missing" for path in missing[:1]]
        parts += [f"`{path}` is one it does not know" for path in extra[:1]]
        what = f"the arguments of {name} differ from those it was saved with: " + ", ".join(parts)
    takes = ", ".join(f"{path}: {kind}" for path, kind in kinds)
    raise MalleableError(what, hint=f"it takes {takes}")
