"""Live tracers, and operations put off."""

from collections.abc import Callable

import jax
import jax.core
import numpy as np
from jax._src import config, core, source_info_util

from malleable.compat.programs import TYPES, Tracer, as_array, is_array, is_ref, trace


class LiveTracer(Tracer):
    """A value that runs now and is watched: branching on it and printing it work."""

    __slots__ = ("value",)

    def __init__(self, trace, value):
        super().__init__(trace, trace.typeof(value))
        self.value = value

    def to_concrete_value(self):
        value = self.value
        if isinstance(value, Tracer):
            return value.to_concrete_value()
        return value if isinstance(value, jax.Array) else None  # a value of the user's

    def full_lower(self):
        return self

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.value, dtype)


def _answering(name):
    def method(self, *args):
        own = getattr(self.value, name, None)  # a value of the user's may have no number
        return getattr(Tracer, name)(self, *args) if own is None else own(*args)

    return method


for _name in ("__float__", "__complex__", "__repr__", "__str__", "__format__", "tolist"):
    setattr(LiveTracer, _name, _answering(_name))


class LiveTrace(jax.core.Trace):
    """Runs each primitive at once, on the values its tracers hold.

    process(jaxpr, values) -> results runs a program of one equation; watches(prim, params, values)
    says which go there. The others go straight to the trace outside. abstract(value): the type
    of a value that JAX does not know; any other as it is.
    """

    def __init__(self, parent, process, watches, tracer, abstract=lambda x: x):
        super().__init__()
        self.parent, self.process, self.watches, self.tracer = parent, process, watches, tracer
        self.requires_low, self.abstract = False, abstract

    def typeof(self, value):
        aval = self.abstract(value)
        return aval if isinstance(aval, TYPES) else jax.typeof(aval)

    def lift(self, value):
        """A watched value; what is no array (a mutable reference, say) is left as it is."""
        if is_ref(self.typeof(value)):
            return value
        if is_array(value) and not isinstance(value, jax.Array):
            # a number stays known under a jit around us
            with core.set_current_trace(core.eval_trace):
                value = as_array(value)
        return self.tracer(self, value)

    def lower(self, x):
        return x.value if isinstance(x, LiveTracer) and x._trace is self else x

    def outside(self):
        """Work on plain values, as the trace around this one would."""
        return core.set_current_trace(self.parent)

    def is_current(self) -> bool:
        with core.take_current_trace() as now:
            return now is self

    def process_primitive(self, prim, tracers, params, /):
        values, tree, here = [self.lower(t) for t in tracers], None, source_info_util.current()

        def bind(*xs):
            nonlocal tree
            with source_info_util.user_context(here.traceback):
                out = prim.bind(*xs, **params)
            if not hasattr(out, "vals"):
                return out
            tree = out.update([None] * len(out.vals))  # shard_map answers with a tree of its own
            return list(out.vals)

        with self.outside():
            if "subfuns" in params or self.watches(prim, params, values):
                # what comes with functions is one equation first
                one = trace(bind, *map(self.abstract, values))
                one = one.replace(consts=[self.lower(c) for c in one.consts])
                outs = self.process(one, values)
                outs = outs if prim.multiple_results else outs[0]
                _forget_first_run(*params.get("subfuns", ()))
            else:
                outs = prim.bind(*values, **params)
        if not prim.multiple_results:
            return self.lift(outs)
        outs = [self.lift(x) for x in outs]
        return outs if tree is None else tree.update(outs)

    def process_call(self, prim, fun, tracers, params, /):  # up to JAX 0.10
        return self.process_primitive(prim, tracers, params | {"subfuns": (fun,)})

    def _with_functions(self, prim, *functions_tracers, **params):
        *functions, tracers = functions_tracers
        return self.process_primitive(prim, tracers, params | {"subfuns": tuple(functions)})

    process_custom_jvp_call = process_custom_vjp_call = process_shard_map = _with_functions

    def stage_value(self, value):
        return self.lift(value)

    def to_jaxpr_tracer(self, x, *_):
        return x


def _forget_first_run(fun=None, rule=None, *_):
    """JAX wants to be told that a custom function ran, or its derivative rule, but not both."""
    if rule is not None and all(getattr(s, "_store", s) for s in rule.stores if s is not None):
        for store in filter(None, fun.stores if fun else ()):
            store.reset()


def run_live(fun: Callable, process, watches, tracer=LiveTracer, abstract=lambda x: x):
    """fun(trace), with every primitive of it run by a new LiveTrace, which lifts values."""
    with core.take_current_trace() as parent:
        live = LiveTrace(parent, process, watches, tracer, abstract)
        with core.set_current_trace(live):
            return fun(live)


# ---------------------------------------------------------------- the current trace

under_trace, current_trace = core.set_current_trace, core.take_current_trace
trace_context = config.trace_context


def where_made(x):
    """For a `with`: what is computed joins the program that made x, and not one inside of it."""
    return core.set_current_trace(x._trace if isinstance(x, Tracer) else core.eval_trace)


def concrete(x):
    """The value behind a tracer, None where there is none; anything else as it is."""
    return x.to_concrete_value() if isinstance(x, Tracer) else x
