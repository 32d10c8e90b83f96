"""Functions without source: Python runs once, then only the compiled stretches of it.

Between two questions for a value (`if x > 0`, `float(x)`, a size) the operations of a run become
one compiled segment. The answers lead through a tree of paths: a later call runs segment after
segment, and no Python as long as every answer was seen before. Where one was not, Python runs
from the start, on the values computed so far, and adds a path.
"""

import functools
import threading
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from malleable import compat
from malleable.execution.lazy import CONTENT, Leave
from malleable.execution.recording import UNCHANGING, Recorder, Step, look
from malleable.notes import note
from malleable.rewriting.graph import fingerprint

PATHS = 64  # kept per function
SEGMENTS = 512  # compiled functions kept per function
PATIENCE = 32  # how many more recordings than replays, before recording is given up
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, np.ufunc)

_MISS: Any = object()
_now = threading.local()


def replay(fun: Callable, *, paths: int = PATHS) -> "Replay":
    """`fun`, its Python run only on paths not seen before. For `mal.jit(fun, pure=True)`.

    A path is taken again when the types of the arguments are the same and every value that the
    function asked for is equal to the one recorded, bit by bit. Arrays and numbers among the
    arguments are traced, other leaves compared.

    fun must be pure. What it does besides computing its result (prints, appends, counts) is done
    when it is recorded and not repeated; what it reads besides its arguments is as it was then,
    as under `jax.jit`. `jax.debug.print` and callbacks are part of the program and are repeated.

    >>> import jax.numpy as jnp
    >>> calls = []
    >>> @replay
    ... def f(x):
    ...     calls.append(1)
    ...     return x[x > 0] * 2 if x.sum() > 1 else x
    >>> [f(jnp.array([3.0, -1.0, a])).shape for a in (2.0, 5.0, -4.0)], len(calls)
    ([(2,), (2,), (3,)], 2)
    """
    return Replay(fun, paths)


class Replay:
    """A function and its paths. `ended` says, by type of the arguments, why there are none."""

    def __init__(self, fun: Callable, paths: int):
        functools.update_wrapper(self, fun)
        self.fun, self.limit = fun, paths
        self.roots: dict[Any, Step] = {}
        self.leaves: OrderedDict[Step, Any] = OrderedDict()  # the least recently used first
        self.misses: OrderedDict[Any, int] = OrderedDict()  # recordings minus replays
        self.ended: OrderedDict[Any, str] = OrderedDict()
        self.segments: OrderedDict[Any, Callable] = OrderedDict()
        self.lock = threading.Lock()

    def __get__(self, instance, owner=None):
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args, **kwargs):
        leaves, tree = jax.tree.flatten((args, kwargs))
        key = _key(leaves, tree)
        if key is None or key in self.ended:
            return self.fun(*args, **kwargs)
        if not compat.is_idle() or any(isinstance(x, compat.Tracer) for x in leaves):
            return self.under_transformation(key, tree, leaves)
        out = self.run(key, tree, leaves)
        return self.plainly(tree, leaves) if out is _MISS else out

    def run(self, key, tree, leaves):
        """The result along a path, known or new; _MISS where there can be none."""
        steps: list[Step] = []
        env = list(leaves)
        out = self.follow(key, env, steps, look)
        return self.record(key, tree, leaves, steps, env) if out is _MISS else out

    def follow(self, key, env: list, steps: list, look: Callable):
        """The result along a known path, or _MISS; `env` and `steps` say how far it went."""
        step = self.roots.get(key)
        while step is not None:
            steps.append(step)
            if step.run is not None:
                env += step.run(*[env[i] for i in step.ins])
            if step.out is not None:
                self.count(key, step)
                return step.rebuild(env)
            if step.unwinds:
                break
            step = step.children.get(look(env[step.slot], step.what))
        return _MISS

    def count(self, key, step):
        try:
            self.leaves.move_to_end(step)
            self.misses[key] -= 1
        except KeyError:  # another thread has just let go of it
            return

    def under_transformation(self, key, tree, leaves):
        """Under grad and jvp a path is recorded on the values behind the tracers, then followed.

        Where there are none, under vmap or jit, the function runs as it is.
        """
        out = self.follow(key, list(leaves), [], _look_behind)
        known = list(map(compat.concrete, leaves))
        if out is _MISS and not any(x is None for x in known):
            with compat.under_trace(compat.eager):
                self.run(key, tree, known)
            out = self.follow(key, list(leaves), [], _look_behind)
        return self.plainly(tree, leaves) if out is _MISS else out

    def record(self, key, tree, leaves, steps, env):
        """Run Python: along `steps`, whose values are in `env`, and on from there."""
        unwinds = bool(steps) and steps[-1].unwinds
        if unwinds or not self.lock.acquire(blocking=False):  # another thread records: no waiting
            return _MISS
        recorder = Recorder(self.compiled, steps, env)
        try:
            _now.recording = True
            out = recorder.run(self.fun, tree, leaves)
            self.keep(key, recorder)
            return out
        except Leave as reason:
            self.end(key, str(reason))
            return _MISS
        except Exception:  # the function's own, or of something that only an array can do:
            recorder.unwind()  # who runs it as it is will see
            self.keep(key, recorder)
            return _MISS
        finally:
            _now.recording = False
            self.lock.release()

    def plainly(self, tree, leaves):
        args, kwargs = jax.tree.unflatten(tree, leaves)
        return self.fun(*args, **kwargs)

    def keep(self, key, recorder: Recorder):
        """Put a recorded path into the tree, and let go of the least recently used one."""
        misses = self.misses[key] = self.misses.pop(key, 0) + 1
        reason = recorder.ended
        if not reason and misses > PATIENCE:
            reason = f"the value asked for at {recorder.where} is another in nearly every call"
        if reason:
            return self.end(key, reason)
        first, last = recorder.added[0], recorder.added[-1]
        self.leaves[last] = key
        for step in recorder.added[1:]:
            step.parent.children[step.key] = step
        if first.parent is None:
            self.roots[key] = first
        else:
            first.parent.children[first.key] = first
        while len(self.leaves) > self.limit:
            self.drop(*self.leaves.popitem(last=False))
        while len(self.misses) > 4 * self.limit:
            self.misses.popitem(last=False)

    def drop(self, step: Step, key):
        """Forget a path, up to where another one leaves it."""
        while (parent := step.parent) is not None:
            if parent.children.get(step.key) is step:  # and not one recorded since
                del parent.children[step.key]
            if parent.children:
                return
            step = parent
        if self.roots.get(key) is step:
            del self.roots[key]

    def end(self, key, reason: str):
        """Record no more for arguments of these types."""
        note(f"`{getattr(self, '__name__', self.fun)}` runs as it is", compat.where(), reason)
        self.ended[key] = reason
        self.roots.pop(key, None)
        for leaf in [leaf for leaf, of in list(self.leaves.items()) if of == key]:
            del self.leaves[leaf]
        while len(self.ended) > 4 * self.limit:
            self.ended.popitem(last=False)

    def clear(self):
        """Forget everything recorded and compiled."""
        with self.lock:
            for kept in (self.roots, self.leaves, self.misses, self.ended, self.segments):
                kept.clear()

    def compiled(self, program) -> Callable:
        """The compiled form of a program; one for all that differ in names only."""
        key = fingerprint(program), tuple(map(compat.context_key, program.jaxpr.eqns))
        run = self.segments.pop(key, None)
        if run is None:
            run = jax.jit(lambda *xs: compat.replay(program, xs))
        self.segments[key] = run
        while len(self.segments) > SEGMENTS:
            self.segments.popitem(last=False)
        return run


def _key(leaves, tree):
    """What has to be equal for a path to be taken; None where we stay out of the way."""
    if getattr(_now, "recording", False) or not compat.is_compiling():
        return None
    try:
        key = tree, tuple(map(_type, leaves)), compat.trace_context()
        hash(key)
    except TypeError:
        return None
    return key


def _type(x):
    """The type of an array or a number; any other leaf itself, TypeError where it may change."""
    kind = type(x)
    if kind is compat.HostArray or isinstance(x, compat.Tracer):
        return x.aval
    if kind in (bool, float, complex) or (kind is int and -(2**31) <= x < 2**31):
        return kind
    if compat.is_array(x) and kind is not int:
        return kind, jax.typeof(x)
    if kind in UNCHANGING or isinstance(x, FUNCTIONS) or kind.__hash__ is not object.__hash__:
        return kind, x
    raise TypeError(f"{kind.__name__} may change")


def _look_behind(value, what):
    """As `look`, at a value that may be a tracer; None for what a tracer does not tell."""
    if isinstance(value, compat.Tracer):
        value = None if what == CONTENT else compat.concrete(value)
    return None if value is None else look(value, what)
