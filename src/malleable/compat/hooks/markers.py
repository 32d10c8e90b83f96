"""What JAX makes of programs with markers of ours, while a transformation waits for them.

Stands in front of JAX's batching rule for cond, which makes a select of it and runs what only one
branch marks; and of how it splits a program for a derivative: what a loop does not change is moved
out of it, effects and all (jax#16637), and so is a call with a custom derivative or a checkpoint,
whole. Rules of primitives are for their owner to change, and these are JAX's own. Flax asks JAX
whether what its scan broadcasts depends on the steps; markers do not, but count as effects.
"""

import contextlib
from collections.abc import Iterator

from jax._src import ad_checkpoint
from jax._src.interpreters import partial_eval as pe
from jax._src.lax.control_flow import conditionals
from jax.interpreters import batching, partial_eval

from malleable.compat.contexts import user_context
from malleable.compat.hooks import Hook, caller
from malleable.compat.markers import NOT_MAPPED, OPERATION, SOURCE, is_hoisting
from malleable.compat.programs import Jaxpr, where
from malleable.errors import TransformError

handled = user_context(frozenset())  # the markers that some transformation around us has a rule for


@contextlib.contextmanager
def handling(markers) -> Iterator[None]:
    """Inside, these markers, and those around, are put into what is traced."""
    every = handled.value | frozenset(markers)
    with _HOOK.held() if every else contextlib.nullcontext(), handled(every):
        yield


def _batch_marked_cond(batch, axis, args, dims, *, branches, **params):
    """vmap makes a select of a cond whose lanes part ways; what one branch marks, all would."""
    if dims[0] is not NOT_MAPPED and any(OPERATION in body.effects for body in branches):
        marked = next(e for body in branches for e in body.eqns if OPERATION in e.effects)
        raise TransformError(
            "a marked value is inside a cond whose predicate differs between the lanes of a vmap",
            where=where(marked),
            hint="put the transformation inside the vmap: vmap(reap(f)), not reap(vmap(f))",
        )
    return batch(axis, args, dims, branches=branches, **params)


def _keep_marked_calls(process, self, prim, fun, *rules_tracers, **params):
    """JAX moves a call with a custom derivative out of a loop whole; one with a marker may not."""
    *rules, tracers = rules_tracers
    inside = [a for a in getattr(fun.f, "args", ()) if isinstance(a, Jaxpr)]
    if any({SOURCE, OPERATION} & body.effects for body in inside) and is_hoisting():
        tracers = [self.instantiate_const(self.to_jaxpr_tracer(t)) for t in tracers]
    return process(self, prim, fun, *rules, tracers, **params)


def _keep_marked_remat(split, trace, *tracers, **params):
    """So may a checkpointed body: what does not depend on its operands would be moved out."""
    if {SOURCE, OPERATION} & params["jaxpr"].effects and is_hoisting():
        return trace.default_process_primitive(ad_checkpoint.remat_p, tracers, params)
    return split(trace, *tracers, **params)


def _unmarked_broadcasts(trace, *args, **kwargs):
    """Flax traces a body to see what its steps share, and takes what it traced for nothing else."""
    if caller().f_globals.get("__name__") != "flax.core.axes_scan":
        return trace(*args, **kwargs)
    with handled(frozenset(marker for marker in handled.value if marker.missing)):
        return trace(*args, **kwargs)


_HOOK = Hook(
    (batching.fancy_primitive_batchers, conditionals.cond_p, _batch_marked_cond),
    (pe.custom_partial_eval_rules, ad_checkpoint.remat_p, _keep_marked_remat),
    (pe.JaxprTrace, "process_custom_jvp_call", _keep_marked_calls),
    (pe.JaxprTrace, "process_custom_vjp_call", _keep_marked_calls),
    (partial_eval, "trace_to_jaxpr_dynamic", _unmarked_broadcasts),
    here=lambda: handled.value,
)
