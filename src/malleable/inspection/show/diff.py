"""What a transformation or a pass changed: `diff(f, g)(*args)`, `diff(f, passes=(cse,))(*args)`."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from malleable import compat
from malleable.core.stage import stage
from malleable.inspection import counting
from malleable.inspection.modules import module_scopes
from malleable.inspection.show import listing
from malleable.inspection.show.origins import heading_of, sources
from malleable.inspection.show.rows.aligned import align
from malleable.inspection.show.rows.outline import Body, outline
from malleable.inspection.show.shown import Difference, Totals
from malleable.inspection.show.stages import pass_name
from malleable.inspection.show.text import console_for, printed
from malleable.notes import listen
from malleable.python_source.changes import unchanged
from malleable.python_source.misuse import called_as
from malleable.rewriting.passes.passes import Pass, checked


@called_as("diff(fun, other)(*args)")
def diff(
    f: Callable[..., Any],
    g: Callable[..., Any] | Sequence[Pass] | None = None,
    *,
    passes: Sequence[Pass] = (),
    file: Any = None,
    width: int | None = None,
    quiet: bool = False,
) -> Callable[..., Difference]:
    """Return a function that prints what is different in the programs of f and g, running neither.

    g: a function of the same arguments; or a pass of malleable's, or a tuple of passes, to see
    what it makes of `f`. passes: the same for any pass, one of your own included; they run one
    after the other, with nothing pruned in between, unlike under `optimize`. An equation is kept,
    removed (-), added (+) or changed (~): it reads other values, has other parameters or types,
    or something inside of it changed. Values that are kept have the names they have in f.

    file, width: where to print, in how many characters. quiet: print nothing. Raises TypeError
    unless there is either a g or passes, MalleableError without rich, unless quiet.

    >>> import jax.numpy as jnp
    >>> from malleable.rewriting.passes.passes import cse
    >>> def f(x): return jnp.sin(x) * jnp.sin(x)
    >>> made = diff(f, cse, quiet=True)(1.0)
    >>> made.marks, made.before.equations, made.after.equations
    ({'kept': 1, 'removed': 1, 'changed': 1}, 3, 2)
    """
    if isinstance(g, tuple | list) or (g is not None and is_pass(g)):
        if passes:
            raise TypeError("diff takes passes in one place: diff(f, passes=(cse,))")
        g, passes = None, tuple(g) if isinstance(g, tuple | list) else (g,)  # type: ignore[assignment]
    if (g is None) == (not passes):
        raise TypeError("diff takes another function or passes: diff(f, g), diff(f, passes=(cse,))")
    if not callable(f) or not all(map(callable, passes)):
        raise TypeError("diff takes functions, and passes as a tuple of functions of a program")
    console = None if quiet else console_for("diff", file, width)

    def differ(*args, **kwargs) -> Difference:
        with listen() as heard, compat.apart(), module_scopes():
            with unchanged(f, (args, kwargs)):
                new = old = stage(f)(*args, **kwargs).jaxpr
            if callable(g):
                with unchanged(g, (args, kwargs)):
                    new = stage(g)(*args, **kwargs).jaxpr
            for p in passes:
                new = checked(p, new)
        names = heading_of(f), ", ".join(map(pass_name, passes)) if passes else heading_of(g)  # type: ignore[arg-type]
        found = compared(names, outline(old), outline(new), tuple(heard))
        if console is not None and not (console.is_jupyter and file is None):
            printed(listing.of_difference(found), console, width)
        return found

    return differ


def compared(names: tuple[str, str], old: Body, new: Body, notes: tuple = ()) -> Difference:
    """The difference of two programs."""
    changes, new = align(old, new)
    counts = totals(old), totals(new)
    return Difference(names, old, new, changes, *counts, sources(old, new), notes)


def totals(body: Body) -> Totals:
    """Equations, flops and bytes of a program, loops by their steps."""
    return Totals(body.size, *counting.total(body.program))


def is_pass(g: Any) -> bool:
    """Whether this is one of malleable's passes, rather than a function to compare with.

    >>> from malleable.rewriting.passes.passes import cse, optimize, pipeline
    >>> is_pass(cse), is_pass(pipeline(cse)), is_pass(optimize(abs))
    (True, True, False)
    """
    inner = inspect.unwrap(g)
    return str(getattr(inner, "__module__", "")).startswith("malleable.rewriting")
