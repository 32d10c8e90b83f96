"""One run of a function, taken down as a path: segments, and the values asked for in between."""

from collections.abc import Callable, Iterator, Set
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.execution.lazy import TRUTH, LazyTrace, LazyTracer, Leave

BYTES = 256  # a larger asked value ends replay
UNCHANGING = (str, bytes, bool, int, float, complex, type(None), np.generic, np.dtype, type)


class Step:
    """Run a segment and look at a value; at the end of a path, return.

    run: None, or run(*inputs) -> new values; ins: slots of its inputs; base: slot of its first
    value; kept: {number of a recorded result: which of these values it is}. slot: where to look,
    what: TRUTH or more; children: the next step by what was seen, `key` in `parent`.
    out: (slots and constants of the returned leaves, tree); unwinds: an exception ends the path.
    """

    __slots__ = (
        *("base", "children", "ins", "kept", "key", "out", "parent", "run", "slot", "unwinds"),
        "what",
    )

    def __init__(self, parent: Any, key):
        self.parent, self.key, self.children = parent, key, {}
        self.run: Any = None
        self.ins, self.kept, self.base = [], {}, 0
        self.slot, self.what, self.unwinds = 0, TRUTH, False
        self.out: Any = None

    def rebuild(self, env: list):
        """What the function returns."""
        slots, tree = self.out
        leaves = [env[x] if type(x) is int else x.copy() for x in slots]
        return jax.tree.unflatten(tree, leaves)


class Constant:
    """A returned leaf that does not depend on the arguments; arrays of NumPy may be written to."""

    def __init__(self, value):
        self.value = value

    def copy(self):
        return self.value.copy() if isinstance(self.value, np.ndarray) else self.value


def look(value, what: int):
    """What decides which way to go."""
    value = np.asarray(value)
    return value.tobytes() if what else bool(value)


class Recorder:
    """Runs a function on lazy arguments, along steps already taken and on from there.

    steps: those taken, `env` the arguments and all that they computed; compiled(program) -> a
    function of its inputs. Afterwards: `added` steps, `where` the last value was asked for, and
    `ended`, why the path must not be kept.
    """

    def __init__(self, compiled: Callable, steps: list[Step], env: list):
        self.compiled, self.known, self.env = compiled, steps, env
        self.added: list[Step] = []
        self.last: Any = None  # the step taken last, None at the start
        self.answer: Any = None
        self.seen: dict[int, int] = {}  # what has been asked of the value in a slot
        self.where = self.ended = ""
        self.trace = LazyTrace(self.demand)

    def run(self, fun: Callable, tree, leaves: list):
        """The result of fun, and its last step."""
        lazy = [
            self.trace.arg(jax.typeof(x), i) if compat.is_array(x) else x
            for i, x in enumerate(leaves)
        ]
        args, kwargs = jax.tree.unflatten(tree, lazy)
        with compat.under_trace(self.trace):
            out = fun(*args, **kwargs)
        return self.finish(out)

    def demand(self, tracer: LazyTracer, what: int):
        known = self.trace.known(tracer)
        if known is not None:
            return known
        if jnp.issubdtype(tracer.dtype, jax.dtypes.extended):
            raise Leave("it looks into a random key")
        if tracer.slot is None:
            done, kept = self.trace.cut()
            if not self.follow(tracer, what, kept):
                self.advance(done, [t.inner for t in kept])
                self.place(kept)
                self.ask(tracer, what)
        elif self.seen.get(tracer.slot, -1) < what and not self.follow(tracer, what, None):
            self.add(Step(self.last, self.answer))
            self.ask(tracer, what)
        slot: Any = tracer.slot
        return self.env[slot]

    def follow(self, tracer, what, kept) -> bool:
        """Take a step that is known, if there is one left; kept: who waits for its results."""
        if not self.known:
            return False
        step = self.known[0]
        if kept is None:
            same = step.run is None and step.slot == tracer.slot
        else:
            at = step.kept.get(tracer.born)
            same = step.run is not None and at is not None and step.slot == step.base + at
        if step.out or step.unwinds or not same or step.what != what:
            self.ended, self.known = "it does not do the same for the same values", []
            return False
        self.known = self.known[1:]
        self.last = step
        for t in kept or ():
            at = step.kept.get(t.born)
            t.slot, t.inner = None if at is None else step.base + at, None
        self.answered(tracer, step)
        return True

    def place(self, kept):
        """The results of the step just taken lie behind one another."""
        self.last.kept = {t.born: i for i, t in enumerate(kept)}
        for i, t in enumerate(kept):
            t.slot, t.inner = self.last.base + i, None

    def advance(self, done, outs):
        """Add a step that runs what was pending."""
        program, consts = compat.recorded(done, outs)
        step = Step(self.last, self.answer)
        step.ins, step.base = done.slots, len(self.env)
        if outs or program.jaxpr.effects:
            with compat.under_trace(compat.eager):
                run = partial(self.compiled(program), *map(_own, consts))
                step.run = run
                self.env += run(*[self.env[i] for i in step.ins])
        self.add(step)

    def add(self, step):
        self.added.append(step)
        self.last = step

    def ask(self, tracer, what):
        step = self.last
        step.slot, step.what = tracer.slot, what
        if what and np.asarray(self.env[tracer.slot]).nbytes > BYTES:
            self.ended = f"it asks for an array of more than {BYTES} bytes"
        self.answered(tracer, step)

    def answered(self, tracer, step):
        self.seen[tracer.slot] = max(step.what, self.seen.get(tracer.slot, TRUTH))
        self.where = compat.where()
        self.answer = look(self.env[tracer.slot], step.what)

    def finish(self, out):
        """The value of what fun returned; the last step says how to make it."""
        leaves, tree = jax.tree.flatten(out, is_leaf=lambda x: isinstance(x, Iterator | Set))
        waiting = [t for t in leaves if self.mine(t) and t.slot is None]
        inner = [self.trace.inner(t) for t in waiting]
        self.advance(self.trace.cut()[0], inner)
        step = self.last
        slots = {id(t): step.base + i for i, t in enumerate(waiting)}
        step.out = [slots.get(id(x), x.slot) if self.mine(x) else constant(x) for x in leaves], tree
        if self.known:
            self.ended = "it does not do the same for the same values"
        return step.rebuild(self.env)

    def unwind(self):
        """The path ends here in an exception."""
        step = Step(self.last, self.answer)
        step.unwinds = True
        self.add(step)

    def mine(self, x) -> bool:
        return isinstance(x, LazyTracer) and x._trace is self.trace


def _own(x):
    """A constant that nobody else can write to."""
    return jax.device_put(x.copy()) if isinstance(x, np.ndarray) else x


def constant(x) -> Constant:
    """A leaf that is returned as it is every time."""
    if isinstance(x, compat.Tracer):
        raise Leave("it returns a value of another transformation around it")
    if not isinstance(x, (jax.Array, np.ndarray, *UNCHANGING)):
        raise Leave(f"it returns an object of type {type(x).__name__}")
    return Constant(x.copy() if isinstance(x, np.ndarray) else x)
