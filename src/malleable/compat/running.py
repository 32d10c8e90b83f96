"""Programs as they run: who watches is asked."""

import contextlib
import contextvars
import functools
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator

import jax
import jax.core
import jax.export
from jax._src import config, core, dtypes, pjit, traceback_util
from jax._src.interpreters import partial_eval as pe
from jax._src.ops import scatter

from malleable.compat.programs import Eqn, Jaxpr, Tracer

# A call of a jitted function with values, or an execution: of such a call, or of a part of what
# runs without jit (then fun is None). leaves: the flat arguments; given: (args, kwargs).
# traced: the call is under vmap or grad, and the leaves are types.
Running = namedtuple(
    "Running", "program leaves donated fun given traced", defaults=[None, None, False]
)

_live: dict = {}  # {what watches: the thread it was opened in}
_opened: contextvars.ContextVar[tuple] = contextvars.ContextVar("opened", default=())
_inside = jax.make_user_context(False)  # type: ignore[attr-defined]
_thread = threading.local()  # .running: what has just run


@contextlib.contextmanager
def watched(watch) -> Iterator[None]:
    """While open, watch(proceed, running) stands in the place of proceed() for what runs here.

    Here is in this thread, or in this asyncio task and those that it begins. watch.narrowed(asked,
    given) is told of a dtype that is not to be had without jax_enable_x64, watch.converted(given,
    kept) of one that is written into an array of a dtype that holds less. watch.lets_go(running)
    is asked once a program has run: if it need not be seen again, JAX calls it directly from then
    on, also in later blocks. What was compiled outside of every block is compiled again in one.
    """
    _live[watch] = thread = threading.get_ident()
    _inside._obj.set_local(True)
    _opened.set((*_opened.get(), watch))
    try:
        yield
    finally:
        del _live[watch]
        _opened.set(tuple(w for w in _opened.get() if w is not watch))
        if thread == threading.get_ident() and thread not in _live.values():
            _inside._obj.set_local(config.config_ext.unset)


def watches() -> list:
    """What watches here, outermost first."""
    return [w for w in _opened.get() if w in _live]  # a task may outlive the block it was begun in


def argument_names(jaxpr: Jaxpr) -> tuple[str, ...]:
    """The paths of the arguments of the function behind a program, as JAX knows them."""
    return tuple(name or "" for name in getattr(jaxpr.jaxpr.debug_info, "arg_names", None) or ())


def name_of(jaxpr: Jaxpr) -> str:
    """The name of the function behind a program, "" where JAX does not know it."""
    known = getattr(jaxpr.jaxpr.debug_info, "func_src_info", None) or ""
    return known.rpartition(" at ")[0]


def key_numbers(x):
    """The array of numbers behind a typed random key; anything else as it is."""
    return getattr(x, "_base_array", x)


def host_function(eqn: Eqn):
    """The function that a callback calls on the host, None where it is out of reach."""
    fun = eqn.params.get("callback")
    return getattr(fun, "callback_func", fun)


def is_hidden_file(file: str) -> bool:
    """Whether a file is of JAX or of this library."""
    return not traceback_util.include_filename(file)


def _through_watch(proceed: Callable, running: Running):
    for watch in watches():
        proceed = functools.partial(watch, proceed, running)
    out = proceed()
    _thread.running = running
    return out


def _watched_call(run):
    def wrapped(p, leaves, fun, args, kwargs):
        proceed = functools.partial(run, p, leaves, fun, args, kwargs)
        if not watches() or _is_staging():
            return proceed()
        program, donated = p.params["jaxpr"], p.params["donated_invars"]
        traced = any(isinstance(x, Tracer) for x in leaves)
        leaves = list(map(jax.typeof, leaves)) if traced else leaves
        running = Running(program, leaves, donated, fun, (args, kwargs), traced)
        return _through_watch(proceed, running)

    return wrapped


def _watched_run(run):
    def wrapped(*leaves, jaxpr, donated_invars, **params):
        params |= {"jaxpr": jaxpr, "donated_invars": donated_invars}
        proceed = functools.partial(run, *leaves, **params)
        if not watches():
            return proceed()
        return _through_watch(proceed, Running(jaxpr, leaves, donated_invars))

    return wrapped


def _watched_dtype(canonical):
    def wrapped(dtype, fun_name):
        kept = canonical(dtype, fun_name)
        for watch in watches() if kept != dtype else ():
            watch.narrowed(dtype, kept)
        return kept

    return wrapped


def _watched_write(write):
    def wrapped(x, y, *rest, **named):
        for watch in watches() if _live and not dtypes.safe_to_cast(y, x) else ():
            watch.converted(jax.typeof(y).dtype, jax.typeof(x).dtype)
        return write(x, y, *rest, **named)

    return wrapped


def _unless_followed(make):
    def wrapped(*args):
        running, _thread.running = getattr(_thread, "running", None), None
        watching, debug = watches(), config.debug_nans.value or config.debug_infs.value
        if (running is None or debug) if watching else _inside.value:  # of another task
            return None
        return make(*args) if all(w.lets_go(running) for w in watching) else None

    return wrapped


def _is_staging() -> bool:
    trace = core.trace_ctx.trace
    while trace is not None:
        if isinstance(trace, pe.DynamicJaxprTrace):
            return True
        trace = getattr(trace, "parent_trace", None)
    return False


pjit._run_python_pjit = _watched_call(pjit._run_python_pjit)
pjit._pjit_call_impl_python = _watched_run(pjit._pjit_call_impl_python)
pjit._get_fastpath_data = _unless_followed(pjit._get_fastpath_data)
dtypes._maybe_canonicalize_explicit_dtype = _watched_dtype(
    dtypes._maybe_canonicalize_explicit_dtype
)
scatter._scatter_impl = _watched_write(scatter._scatter_impl)
