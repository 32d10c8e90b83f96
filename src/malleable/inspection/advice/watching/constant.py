"""Says which gradients are 0 for all values: the loss is constant wherever it has a derivative."""

import ast

from jax import numpy as jnp

from malleable import compat
from malleable.compat import frames
from malleable.inspection import places
from malleable.inspection.advice.evidence import sources
from malleable.inspection.advice.evidence.trouble import here
from malleable.inspection.advice.hint import Advice
from malleable.inspection.advice.watching import running
from malleable.inspection.advice.watching.running import Observer

_STEPS = {"round", "floor", "ceil", "trunc", "rint", "sign", "heaviside", "argmax", "argmin"}
_STEPS |= {"argsort", "searchsorted", "digitize", "stop_gradient", "int32", "int64", "astype"}


class Constant(Observer):
    """Looks at the derivatives that `jax.grad` takes."""

    def __init__(self):
        self.told: set[compat.Place | None] = set()

    def constant(self, frame, out, caller):
        real = hasattr(out, "dtype") and jnp.issubdtype(out.dtype, jnp.inexact)
        if frame.f_code.co_name not in frames.GRAD or not real:
            return  # JAX refuses what is not a number
        fun = sources.plain(sources.users(frames.Held(frame.f_locals).fun))
        if fun is None or not places.is_own(fun.__code__.co_filename):
            return
        place, name, step = sources.where_defined(fun), sources.name_of(fun), _stepwise(fun)
        if place in self.told:
            return
        self.told.add(place)
        what = f"the gradient of {name} is 0 for all values: "
        why = "it depends on what is differentiated by nothing that has a derivative"
        what += f"`{sources.text(step)}` has a derivative of 0 wherever it has one" if step else why
        what += f"\n  it is differentiated at {here(running.place_in(caller))}"
        way = "return a loss that is smooth in the parameters, as the cross entropy of the logits"
        way += "; or let the gradient pass: x + lax.stop_gradient(jnp.round(x) - x)"
        at = sources.place(step, place.file, place.function) if step and place else place
        running.warn(Advice(what, here(at), way), at)


def _stepwise(fun) -> ast.Call | None:
    """The first call, in a function, of what is constant between steps."""
    found = sources.definition(fun)
    calls = (n for n in sources.own_nodes(found[0]) if isinstance(n, ast.Call)) if found else ()
    return next((c for c in calls if sources.text(c.func).rpartition(".")[2] in _STEPS), None)
