"""Programs as they run, for whoever watches: the advice of `errors.explain()`.

Stands in front of a call of a jitted function, its execution, and what lets C++ call it directly
from then on; of a dtype that is asked for and not to be had, of a write into an array that holds
less, and of a reverse derivative. `jax.monitoring` tells of none of it, and the two warnings of
JAX do not say where.
"""

import contextlib
import functools
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator

import jax
from jax._src import api, config, dtypes, pjit
from jax._src.ops import scatter

from malleable.compat.contexts import user_context
from malleable.compat.hooks import Hook, caller
from malleable.compat.programs import Tracer, is_staging

# A call of a jitted function with values, or an execution: of such a call, or of a part of what
# runs without jit (then fun is None). leaves: the flat arguments; given: (args, kwargs).
# traced: the call is under vmap or grad, and the leaves are types.
Running = namedtuple(
    "Running", "program leaves donated fun given traced", defaults=[None, None, False]
)

_live: dict = {}  # {what watches: the thread it was opened in}
_inside = user_context(0)  # in a thread where somebody watches: the round
_round = 1  # a new one begins where a block is closed in another thread: its own stays inside
_thread = threading.local()  # .running: what has just run


@contextlib.contextmanager
def watched(watch) -> Iterator[None]:
    """While open, watch(proceed, running) stands in the place of proceed() for what runs here.

    Here is in this thread, or in this asyncio task and those that it begins. watch.narrowed(asked,
    given) is told of a dtype that is not to be had without jax_enable_x64, watch.converted(given,
    kept) of one that is written into an array of a dtype that holds less, watch.constant(frame,
    out) of a derivative of `out` that is 0 for all values. watch.lets_go(running) is asked once a
    program has run: if it need not be seen again, JAX calls it directly from then on, also in
    later blocks. What was compiled outside of every block is compiled again in one.
    """
    global _round
    _live[watch] = thread = threading.get_ident()
    _inside.set(_round)
    try:
        with _HOOK.held(watch):
            yield
    finally:
        del _live[watch]
        if thread != threading.get_ident():
            _round += 1
        elif thread not in _live.values():
            _inside.set(0)


def watches() -> list:
    """What watches here, outermost first."""
    return _HOOK.opened()


def _through_watch(proceed: Callable, running: Running):
    for watch in watches():
        proceed = functools.partial(watch, proceed, running)
    out = proceed()
    _thread.running = running
    return out


def _watched_call(run, p, leaves, fun, args, kwargs):
    proceed = functools.partial(run, p, leaves, fun, args, kwargs)
    if is_staging():
        return proceed()
    program, donated = p.params["jaxpr"], p.params["donated_invars"]
    traced = any(isinstance(x, Tracer) for x in leaves)
    leaves = list(map(jax.typeof, leaves)) if traced else leaves
    return _through_watch(proceed, Running(program, leaves, donated, fun, (args, kwargs), traced))


def _watched_run(run, *leaves, jaxpr, donated_invars, **params):
    params |= {"jaxpr": jaxpr, "donated_invars": donated_invars}
    proceed = functools.partial(run, *leaves, **params)
    return _through_watch(proceed, Running(jaxpr, leaves, donated_invars))


def _watched_dtype(canonical, dtype, fun_name):
    kept = canonical(dtype, fun_name)
    for watch in watches() if kept != dtype else ():
        watch.narrowed(dtype, kept)
    return kept


def _watched_write(write, x, y, *rest, **named):
    for watch in watches() if not dtypes.safe_to_cast(y, x) else ():
        watch.converted(jax.typeof(y).dtype, jax.typeof(x).dtype)
    return write(x, y, *rest, **named)


def _watched_vjp(vjp, *args, **options):
    found = vjp(*args, **options)
    for watch in watches() if not found[1].jaxpr.outvars else ():
        watch.constant(caller(), found[0])
    return found


def _unless_followed(make, *args):
    running, _thread.running = getattr(_thread, "running", None), None
    watching, debug = watches(), config.debug_nans.value or config.debug_infs.value
    followed = running is None or debug or not watching  # or another task watches
    return None if followed or not all(w.lets_go(running) for w in watching) else make(*args)


_HOOK = Hook(
    (pjit, "_run_python_pjit", _watched_call),
    (pjit, "_pjit_call_impl_python", _watched_run),
    (pjit, "_get_fastpath_data", _unless_followed),
    (dtypes, "_maybe_canonicalize_explicit_dtype", _watched_dtype),
    (scatter, "_scatter_impl", _watched_write),
    (api, "vjp", _watched_vjp),
    here=lambda: watches() or _inside.value,
)
