"""`jax.debug_nans` and `jax.debug_infs`: which line, for which example, in which step, and why."""

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from malleable import compat
from malleable.compat import frames
from malleable.inspection import places
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.watching import donations, running, storms
from malleable.inspection.debugging.nonfinite import Finding, first_nonfinite
from malleable.inspection.show.arguments import of_arrays

_WAYS = re.compile(r"where|eps|clip|maximum|minimum|softmax|finfo")


def nonfinite(told: re.Match, trouble: Trouble, last: Step) -> Said | None:
    """FloatingPointError of JAX: the program is run again, and the value is followed back."""
    for fun, args, kwargs in calls(trouble):
        with running.unobserved(), jax.debug_nans(False), jax.debug_infs(False):
            found = first_nonfinite(fun)(*args, **kwargs)
        if found is None:
            continue
        where = found.place if found.place and places.is_own(found.place.file) else None
        what = described(found, trouble) + met(found, trouble)
        return Said(what, hint(found), where)
    return None


def described(found: Finding, trouble: Trouble) -> str:
    if found.argument:
        return f"{found.argument} is {found.kind} already, before anything is computed from it"
    what = f"`{found.primitive}` makes {found.kind}"
    around = [text for text in map(level, found.path) if text]
    what += f", {', '.join(around)} (counting from 0)" if around else ""
    if found.in_gradient:
        what += ", in the gradient (the derivative of this line)"
    elif found.differentiated:
        what += ", in the derivative of this line"
    if found.element and found.output is not None:
        what += f", at {list(found.element)} of an array of shape {np.shape(found.output)}"
    operands = [f"{_own(name)} = {short(x, found)}" for name, x in found.inputs.items()]
    what += f"; of {', '.join(operands)}" if operands else ""
    if found.becomes:
        what += f"; it is nan from `{found.becomes.primitive}` on"
        line = places.spell(found.becomes.place)
        what += f" at {line}" if line and found.becomes.place != found.place else ""
    names = behind(trouble)
    return what + (f"; the function was called with {names}" if names else "")


def _own(name: str) -> str:
    """The name of an operand, unless it is one of JAX's."""
    return "an operand" if re.match(r"(xs|args|flat_args)\[|operand", name) else f"`{name}`"


def met(found: Finding, trouble: Trouble) -> str:
    """The line at which JAX, running without jit, came upon the same operation."""
    steps, last = trouble.steps, trouble.last
    if last is None or found.place is None or f"in {found.primitive}" not in trouble.text:
        return ""
    first = next((i for i, s in enumerate(steps) if s.jax), len(steps))
    inner = [s for s in steps[first:] if s.own]
    if not inner or inner[-1].place.line == found.place.line:
        return ""
    return f"; without jit, it is met at {here(inner[-1].place)}"


def level(at) -> str:
    """`step 3 of 6`, `example 5 of 8`."""
    if at.index is None:
        return ""
    word = {"vmap": "for example", "shard_map": "on device", "pmap": "on device"}.get(at.kind)
    word = word or "in step"
    return f"{word} {at.index}" + (f" of {at.size}" if at.size else "")


def short(x: Any, found: Finding) -> str:
    """A value, or its one bad element."""
    x = np.asarray(x)
    if x.dtype.kind == "V":
        x = x.astype(np.float32)
    if found.element and x.shape == np.shape(found.output):
        return f"{x[found.element]:.4g}"
    return f"{x:.4g}" if not x.ndim else f"an array of shape {x.shape}"


def hint(found: Finding) -> str:
    if _WAYS.search(found.hint):
        return found.hint
    if found.argument:
        return f"{found.hint}, and clean it there, with jnp.nan_to_num or jnp.where"
    return f"{found.hint}; or choose with jnp.where on operands that are safe on both sides"


def behind(trouble: Trouble) -> str:
    """The paths of the arguments of the jitted call that failed: `x`, `params['w']`."""
    runs = running.runs_of(trouble.error)
    own = [run for run in runs if run.own and any(run.names)]
    if own:
        return storms.listed([f"`{n}`" for n in own[-1].names if n], 6)
    frame = trouble.last.frame if trouble.last else None
    held = [running.name_in(frame, x) for run in runs[-1:] for x in run.leaves]
    return storms.listed([f"`{n}`" for n in held if n], 6)


# ---------------------------------------------------------------- what to run again


def calls(trouble: Trouble) -> Iterator[tuple[Callable, tuple, dict]]:
    """(function, args, kwargs) of the calls of JAX the error came through, outermost first."""
    steps = trouble.steps
    for step, inner in zip(steps, [*steps[1:], None], strict=True):
        if not step.jax or step.name not in _CALLS:
            continue
        later = inner is not None and inner.name in frames.CACHE_MISS
        fun, args, kwargs = step.held.fun, step.held.args, step.held.kwargs
        ran = getattr(fun, "__name__", "") in frames.NAN_CHECK  # JAX calls it with a call that has
        if ran or (later and step.name not in frames.CACHE_MISS):
            continue
        if not callable(fun) or not isinstance(args, tuple) or not isinstance(kwargs, dict):
            continue
        leaves = jax.tree.leaves((args, kwargs))
        if not any(isinstance(x, compat.Tracer) or donations.is_deleted(x) for x in leaves):
            yield without_statics(trouble, fun, args, kwargs)


_CALLS = (*frames.RERAISE, *frames.CACHE_MISS, *frames.NAN_CHECK)


def without_statics(trouble: Trouble, fun, args, kwargs) -> tuple[Callable, tuple, dict]:
    """A call with its static numbers put into the function."""
    run = next((r for r in running.runs_of(trouble.error) if r.fun is fun), None)
    leaves = jax.tree.leaves((args, kwargs))
    if run is None:
        return fun, args, kwargs
    traced = [any(x is y for y in run.leaves) for x in leaves]
    if all(t or not compat.is_array(x) for t, x in zip(traced, leaves, strict=True)):
        return fun, args, kwargs
    call = of_arrays(fun, (args, kwargs), traced)
    return call, tuple(itertools.compress(leaves, traced)), {}


NONFINITE = (Diagnosis("nan|inf", nonfinite, kind="FloatingPointError"),)
