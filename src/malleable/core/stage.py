"""From a Python function to a jaxpr that remembers its pytrees."""

import contextlib
import contextvars
import functools
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from malleable import compat
from malleable.core.marker import Marker
from malleable.core.values import VALUES, abstract, flatten, has_values
from malleable.errors import TransformError
from malleable.python_source.changes import Changes, links, relinked, watching
from malleable.python_source.misuse import called_as, numpy_refused, refuse_unrun
from malleable.python_source.writes import look_for_writes


@dataclass(frozen=True)
class Staged:
    """A traced function: its program, its flat arguments, and how to rebuild the output.

    changes: what the function changed in place; its arrays are the last results of the program.
    given: (args, kwargs), as the caller has them. raised: the error that ends the function.
    """

    jaxpr: compat.Jaxpr
    args: list[Any]
    rebuild: Callable[[Sequence[Any]], Any]
    changes: Changes
    given: tuple[Any, ...]
    raised: Exception | None = None

    def finish(self, outs: Sequence[Any]) -> Any:
        """The output, when the program has given `outs` and its changes have been put back."""
        self.changes.put_back(self.given, self.changed(outs))
        if self.raised is not None:
            raise self.raised
        return self.rebuild(outs)

    def changed(self, outs: Sequence[Any]) -> list[Any]:
        """What the program gave for the changes."""
        return list(outs[len(outs) - self.changes.count :])

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Raise TransformError, if any of the things that changed is named."""
        if names:
            new = self.changed(self.jaxpr.jaxpr.outvars)
            made = [e for e in self.jaxpr.eqns if any(v is x for v in e.outvars for x in new)]
            raise TransformError(
                f"{names[0]} is changed in place, {why}",
                where=compat.where(*made),
                hint="return the new value; a flax.nnx model comes apart with nnx.split, "
                "and nnx.merge makes it again inside",
            )


@called_as("stage(fun)(*args)")
def stage(
    fun: Callable[..., Any], markers: Iterable[Marker] = (), *, raises: bool = True
) -> Callable[..., Staged]:
    """Return a function that traces `fun` on its arguments instead of running it.

    Arrays and numbers are traced, and what only says its type (jax.ShapeDtypeStruct). Other leaves
    (strings, functions, None), and static arguments of a jitted function, stay as they are, in the
    arguments and in the output. `markers` are those some rule is waiting for. What `fun` writes to
    its arguments, or leaves in closures, globals and `self`, is a result of the program.
    raises: its errors go through; else the program of one that changed something ends where it
    raised, and `finish` puts that back and raises.

    >>> import jax.numpy as jnp
    >>> staged = stage(lambda x, how: {"y": jnp.sin(x), "how": how})(1.0, "fast")
    >>> [str(eqn.primitive) for eqn in staged.jaxpr.eqns]
    ['sin']
    >>> staged.rebuild([2.0])
    {'how': 'fast', 'y': 2.0}
    """

    def staged(*args: Any, **kwargs: Any) -> Staged:
        look_for_writes(fun, args, kwargs)
        leaves, tree, traced = staged_arguments(fun, args, kwargs)
        twice, made = links((args, kwargs)), {}

        @functools.wraps(fun, assigned=(), updated=())
        def flat(*xs):
            rest = iter(xs)
            filled = [next(rest) if t else x for t, x in zip(traced, leaves, strict=True)]
            copies = relinked(jax.tree.unflatten(tree, filled), twice)
            with watching(fun, (args, kwargs), copies) as watch:
                a, k = copies
                out, made["changes"], changed, raised = watch.run(lambda: fun(*a, **k), raises)
            refuse_unrun(out)
            outs, made["tree"] = ([], None) if raised else jax.tree.flatten(out)
            made["raised"] = raised
            made["plain"] = [None if compat.is_array(x) else (x,) for x in outs]
            outs = [x for x, plain in zip(outs, made["plain"], strict=True) if plain is None]
            return [*outs, *changed]

        def rebuild(outs):
            rest = iter(outs)
            filled = [plain[0] if plain else next(rest) for plain in made["plain"]]
            return jax.tree.unflatten(made["tree"], filled)

        given = [x for x, t in zip(leaves, traced, strict=True) if t]
        with compat.handling(markers), _nested_once_more(), numpy_refused(fun):
            program = compat.trace(flat, *given)
        return Staged(program, given, rebuild, made["changes"], (args, kwargs), made["raised"])

    return staged


_nesting: contextvars.ContextVar[int] = contextvars.ContextVar("_nesting", default=0)
DEEP = 20  # a user's function that calls itself for ever is staged in fewer


@contextlib.contextmanager
def _nested_once_more() -> Generator[None]:
    """Stage a function inside of those that are being staged; too many are refused by name."""
    depth = _nesting.get() + 1
    token = _nesting.set(depth)
    try:
        yield
    except RecursionError:
        if depth < DEEP:
            raise
        limit = sys.getrecursionlimit()
        raise TransformError(
            f"transformations are nested too deep for a recursion limit of {limit} calls",
            hint="interpret takes several rules, and optimize several passes, at once; or raise "
            "the limit: sys.setrecursionlimit",
        ) from None
    finally:
        _nesting.reset(token)


def stage_values(
    fun: Callable, markers: Iterable[Marker] = (), *, raises: bool = True
) -> Callable[..., Staged]:
    """As `stage`, and values of the user's (`value`) stand for arrays: of their type in the
    program, themselves among its arguments.
    """

    def staged(*args, **kwargs) -> Staged:
        (leaves, tree), (a, k) = flatten((args, kwargs)), (args, kwargs)
        if has_values(leaves):
            a, k = jax.tree.unflatten(tree, list(map(abstract, leaves)))
        try:
            found = stage(fun, markers, raises=raises)(*a, **k)
        except TypeError as error:  # of what a function closes over, JAX knows no value
            for name in [cls.__name__ for cls in VALUES if cls.__name__ in str(error)]:
                error.add_note(f"{name} stands for an array where it is an argument: hand it in")
            raise
        if not has_values(leaves):
            return found
        traced = staged_arguments(fun, a, k)[2]
        given = [x for x, t in zip(leaves, traced, strict=True) if t]
        return replace(found, args=given, given=(args, kwargs))

    return staged


def staged_arguments(fun: Callable, args: tuple, kwargs: dict) -> tuple[list, Any, list[bool]]:
    """The leaves of the arguments, their pytree, and which of them `stage` traces.

    >>> staged_arguments(abs, (1.0, "fast"), {})[2]
    [True, False]
    """
    leaves, tree = jax.tree.flatten((args, kwargs))
    fixed, n = compat.static_arguments(fun), len(args)
    fixed |= {k + n for k in fixed if isinstance(k, int) and k < 0}
    traced = [
        key not in fixed and not plain and (compat.is_array(x) or isinstance(x, compat.TYPES))
        for key, part in (*enumerate(args), *sorted(kwargs.items()))
        for x, plain in zip(jax.tree.leaves(part), compat.static_numbers(fun, part), strict=True)
    ]
    return leaves, tree, traced
