"""The same rules on live values: your Python runs once, and print, pdb and branches work.

Where `interpret` sees a whole program, `live` sees one operation at a time, with its value in
hand. Inside jit, scan and their like the staged interpreter takes over: the state goes in as an
argument and comes out as a result, so that nothing depends on when JAX traces or caches.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from malleable import compat
from malleable.core.interpret import Rule, Rulebook, Rules, results, run, start
from malleable.core.marker import Marker
from malleable.core.values import (
    abstract,
    flatten,
    from_caller,
    has_values,
    is_value,
    to_caller,
    unwatched,
)
from malleable.python_source.changes import links, relinked, watching
from malleable.python_source.misuse import called_as
from malleable.signatures import P, R


@called_as("live(fun, {primitive: rule})(*args)")
def live(
    fun: Callable[P, R],
    rules: Rules | Rulebook,
    *,
    carry: Any = (),
    feeds: Mapping[Any, Any] | None = None,
    shared: Mapping[Any, Any] | None = None,
    key: Any = None,
    default: Rule | None = None,
    tracer: type[Any] = compat.LiveTracer,
) -> Callable[P, tuple[R, Any, dict[Any, Any]]]:
    """As `interpret`, on live values: returns a function giving `(out, carry, writes)`.

    Values that are concrete outside are concrete inside: `if x > 0`, `float(x)` and print work.
    tracer: the class of the watched values; a subclass may give them methods of its own.

    >>> import jax.numpy as jnp
    >>> from jax import lax
    >>> def count(frame, x, **params):
    ...     frame.carry += 1
    ...     return frame.bind(x)
    >>> def f(x):
    ...     return jnp.sin(jnp.sin(x)) if x > 0 else x
    >>> out, count, _ = live(f, {lax.sin_p: count}, carry=0)(0.5)
    >>> count
    2
    """
    book = rules if isinstance(rules, Rulebook) else Rulebook(rules, default)
    body_of: Callable[..., Any] = fun

    def watches(prim, params, xs):
        asked = book.default is not None and not isinstance(prim, Marker)
        if asked or prim in book.rules or has_values(xs):
            return True
        return any(map(book.mentions, compat.bodies(params)))

    def lived(*args: P.args, **kwargs: P.kwargs) -> tuple[R, Any, dict[Any, Any]]:
        frame = start(carry, feeds, shared, key)
        leaves, tree = flatten((args, kwargs))
        leaves = list(map(unwatched, leaves))
        from_caller(frame, leaves)
        twice = links((args, kwargs))

        def process(jaxpr, values):
            return run(jaxpr, values, book, frame)

        def body(trace):
            lifted = [trace.lift(x) if is_value(x) or compat.is_array(x) else x for x in leaves]
            copies = relinked(jax.tree.unflatten(tree, lifted), twice)
            with compat.handling(book.markers), watching(fun, (args, kwargs), copies) as watch:
                a, k = copies
                lowered = lambda: jax.tree.map(trace.lower, body_of(*a, **k))  # noqa: E731
                out, changes, new, raised = watch.run(lowered, raises=False)
                return out, changes, list(map(trace.lower, new)), raised

        out, changes, new, raised = compat.run_live(body, process, watches, tracer, abstract)
        changes.put_back((args, kwargs), new)
        if raised is not None:
            raise raised
        return to_caller(frame, (out, frame.carry, results(frame)), leaves)

    return lived
