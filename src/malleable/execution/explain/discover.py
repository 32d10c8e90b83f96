"""What a function asks of its values: run it once, as it is, and look on.

Each value that Python or JAX asked for is a demand: of which kind, at which line, and which
arguments it depends on. Integers and flags that depend on small integer arguments only could be
static arguments; any other demand breaks a graph.
"""

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.programs.cost import equations
from malleable.programs.evaluate import evaluate
from malleable.python_source.changes import watching

SMALL = 8  # elements: up to here an integer argument may be static
BYTES = 256  # of the largest value that a demand keeps

KINDS = {
    "__bool__": "bool",
    "__int__": "int",
    "__index__": "index",
    "__hex__": "int",
    "__oct__": "int",
    "__float__": "float",
    "__complex__": "complex",
    "__array__": "array",
    "item": "item",
    "tolist": "list",
    "concrete_or_error": "static value",
    "expand_bool_indices": "boolean mask",
    "_is_slice_element_none_or_constant_or_symbolic": "slice bound",
    "is_constant_dim": "size",
    "fori_loop": "trip count",
}  # any other: "text"

# Who may ask JAX whether a value is known and cannot go on without it.
NEEDED_BY = frozenset(
    [
        *("__bool__", "__int__", "__index__", "__hex__", "__oct__", "concrete_or_error"),
        *("expand_bool_indices", "_is_slice_element_none_or_constant_or_symbolic"),
        *("is_constant_dim", "fori_loop"),
    ]
)
PASSING = ("to_concrete_value", "is_concrete")
_WRAPPERS = ("meth", "op", "reraise_with_filtered_traceback", "cache_miss", "wrapper")
_JAX = os.path.dirname(jax.__file__)


@dataclass(frozen=True)
class Demand:
    """One value that was asked for.

    kind: one of KINDS, or "text"; by: the function the user called, such as `nonzero`, or "";
    where: `file.py:12 in fun`; aval: its type; value: what it was, None if it is large; inputs:
    the arguments it depends on, as `x` or `params['w']`; op: how many operations ran before.
    """

    kind: str
    by: str
    where: str
    aval: Any
    value: Any
    inputs: tuple[str, ...]
    op: int


@dataclass
class Discovery:
    """What one run showed. out: its result; inputs: {argument: type}; ops: operations that ran."""

    inputs: dict[str, Any]
    out: Any = None
    demands: list[Demand] = field(default_factory=list)
    ops: int = 0

    @property
    def breaks(self) -> list[Demand]:
        """The demands that no choice of static arguments would answer."""
        return [d for d in self.demands if not self._answered(d)]

    @property
    def static(self) -> tuple[str, ...]:
        """Arguments that would have to be static. Some may not: JAX also asks out of curiosity."""
        found = {x for d in self.demands if self._answered(d) for x in d.inputs}
        return tuple(x for x in self.inputs if x in found)

    def _answered(self, demand):
        avals = [self.inputs[x] for x in demand.inputs]
        counts = (jnp.issubdtype(a.dtype, np.signedinteger) or a.dtype == bool for a in avals)
        return all(counts) and all(a.size <= SMALL for a in avals)


def discover(fun: Callable) -> Callable[..., Discovery]:
    """Return a function that runs `fun` on its arguments, once, and says what was asked for.

    Nothing is compiled but what eager JAX compiles, and side effects happen as they would. An
    exception of fun goes through.

    >>> import jax.numpy as jnp
    >>> def f(x, n):
    ...     return x[:n] if x.sum() > 0 else x
    >>> seen = discover(f)(jnp.arange(4.0), 2)
    >>> [(d.kind, d.inputs) for d in seen.demands]
    [('bool', ('x',)), ('slice bound', ('n',))]
    >>> seen.static, [d.kind for d in seen.breaks]
    (('n',), ['bool'])
    """

    def discovered(*args, **kwargs) -> Discovery:
        leaves, tree = jax.tree.flatten((args, kwargs))
        names = _leaf_names(fun, args, kwargs)
        arrays = [(x, jax.typeof(v)) for x, v in zip(names, leaves, strict=True) if _traced(v)]
        seen = Discovery(dict(arrays))

        with compat.current_trace() as parent:
            trace = _Trace(parent, seen)
            with compat.under_trace(trace):
                lifted = [
                    trace.argument(v, x) if _traced(v) else v
                    for x, v in zip(names, leaves, strict=True)
                ]
                a, k = jax.tree.unflatten(tree, lifted)
                with watching(fun, (args, kwargs), (a, k)) as watch:
                    out = fun(*a, **k)
                    changes, new = watch.found()
            changes.put_back((args, kwargs), list(map(trace.lower, new)))
            seen.out = jax.tree.map(trace.lower, out)
        return seen

    return discovered


def _traced(x) -> bool:
    return compat.is_array(x) and not (type(x) is int and not -(2**31) <= x < 2**31)


def _leaf_names(fun, args, kwargs) -> list[str]:
    """A name for each leaf of the arguments, as the user would spell it."""
    try:
        kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [p.name for p in inspect.signature(fun).parameters.values() if p.kind in kinds]
    except (TypeError, ValueError):  # written in C
        names = []
    names += [f"args[{i}]" for i in range(len(names), len(args))]
    firsts = dict(zip(names, args, strict=False)) | kwargs
    spelled = []
    for name, tree in firsts.items():
        for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]:
            spelled.append(name + jax.tree_util.keystr(path))
    return spelled


class _Tracer(compat.LiveTracer):
    """A live value that tells on whoever asks for it. origin: the arguments it depends on."""

    __slots__ = ("origin",)

    def to_concrete_value(self):
        if by := asker():
            self._trace.demand(self, by)
            return super().to_concrete_value()
        return None

    def __array__(self, dtype=None, copy=None):
        self._trace.demand(self, "__array__")
        return super().__array__(dtype, copy)


def _telling(name):
    def method(self, *args):
        self._trace.demand(self, name)
        return getattr(self.value, name)(*args)

    return method


_ASKED = "__float__ __complex__ __repr__ __str__ __format__ tolist tobytes item"
for _name in _ASKED.split():
    setattr(_Tracer, _name, _telling(_name))


class _Trace(compat.LiveTrace):
    """Runs everything where it would have run, and keeps track of what depends on what."""

    def __init__(self, parent, seen: Discovery):
        super().__init__(parent, None, lambda *_: False, _Tracer)
        self.process = lambda jaxpr, values: evaluate(jaxpr, values)
        self.seen, self.origin = seen, frozenset()
        self.asked: dict[tuple[int, str], _Tracer] = {}  # by whom they were, and where

    def argument(self, value, name: str):
        self.origin = frozenset([name])
        return self.lift(value)

    def lift(self, value):
        lifted = super().lift(value)
        if isinstance(lifted, _Tracer):
            lifted.origin = self.origin
        return lifted

    def lower(self, x):
        if isinstance(x, _Tracer) and x._trace is self:
            self.origin |= x.origin
        return super().lower(x)

    def stage_value(self, value):
        self.origin = frozenset()
        return super().stage_value(value)

    def process_primitive(self, prim, tracers, params, /):
        self.origin = frozenset()
        self.seen.ops += sum(map(equations, compat.bodies(params))) or 1
        return super().process_primitive(prim, tracers, params)

    def demand(self, tracer: _Tracer, by: str):
        where, demands = compat.where(), self.seen.demands
        if (id(tracer), where) in self.asked:
            return
        self.asked[id(tracer), where] = tracer
        aval: Any = tracer.aval
        known = compat.concrete(tracer.value)
        plain = known is not None and not jnp.issubdtype(aval.dtype, jax.dtypes.extended)
        value = np.asarray(known) if plain else None
        inputs = tuple(x for x in self.seen.inputs if x in tracer.origin)
        if not inputs:  # it came through Python: from what was asked for before
            inputs = tuple(x for x in self.seen.inputs if any(x in d.inputs for d in demands))
        demands.append(
            Demand(
                kind=KINDS.get(by, "text"),
                by=_called_jax_function(),
                where=where,
                aval=aval,
                value=value if value is not None and value.nbytes <= BYTES else None,
                inputs=inputs,
                op=self.seen.ops,
            )
        )


def asker() -> str:
    """Who asks a tracer for its concrete value and cannot do without; "" for whoever can."""
    frame = sys._getframe(2)
    while frame.f_code.co_name in PASSING and frame.f_back is not None:
        frame = frame.f_back
    name = frame.f_code.co_name
    return name if name in NEEDED_BY else ""


def _called_jax_function() -> str:
    """The name of the function of JAX that the user's line called, "" for an operator."""
    frame, names = sys._getframe(2), []
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_JAX, compat.PACKAGE)):
            break
        if file.startswith(_JAX):
            names.append(frame.f_code.co_name)
        frame = frame.f_back
    outer = [x.lstrip("_") for x in reversed(names) if x not in _WRAPPERS]
    operator = not outer or names[-1] == "op" or names[-1].startswith("__")
    return "" if operator else outer[0]
