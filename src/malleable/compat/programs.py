"""Programs: trace, close, bind and copy them; the lines they come from."""

import contextlib
import functools
import os
import pathlib
import site
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.core
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax._src import array, config, core, dtypes, source_info_util, traceback_util
from jax._src.interpreters import partial_eval as pe
from jax._src.lax import lax as lax_internal
from jaxlib import xla_client

try:
    from jax._src.core import ClosedJaxpr as Jaxpr  # a program with its constants
except ImportError:  # from JAX 0.11 on the only kind there is; type checkers know the other name
    globals()["Jaxpr"] = core.Jaxpr

Eqn = core.JaxprEqn
OpenJaxpr = core.Jaxpr
Literal = core.Literal
Primitive = core.Primitive
Tracer = jax.core.Tracer
TYPES = (jax.ShapeDtypeStruct, core.ShapedArray)  # what says the type of an array, and is none

INLINE: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True  # type: ignore[attr-defined]


def trace(fun: Callable, *avals) -> Jaxpr:
    """Stage a flat function of `avals`; loops stay loops even under `jax.disable_jit`."""

    @functools.wraps(fun)
    def released(*xs):
        try:
            return fun(*xs)
        except BaseException:  # JAX keeps the values of a trace for ever that an exception ends
            with core.take_current_trace() as now:
                now.invalidate()
            raise

    with jax.disable_jit(False):
        return jax.make_jaxpr(released)(*avals)


def expanded(eqn: Eqn) -> Jaxpr:
    """The program of a `call_hi_primitive`, which hides its body in an object (from JAX 0.11)."""
    hidden = eqn.params["_prim"]

    def body(*leaves):
        return jax.tree.leaves(hidden.expand(*jax.tree.unflatten(hidden.in_tree, leaves)))

    avals: list[Any] = [v.aval for v in eqn.invars]
    return trace(body, *(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals))


def static_arguments(fun: Callable) -> frozenset:
    """Numbers and names of the arguments that a jitted function does not trace."""
    info = getattr(fun, "_jit_info", None)
    return frozenset((*info.static_argnums, *info.static_argnames)) if info else frozenset()


def close(jaxpr) -> Jaxpr:
    """A jaxpr found in some params, as a closed one."""
    if isinstance(jaxpr, Jaxpr):
        return jaxpr
    return pe.close_jaxpr(pe.convert_constvars_jaxpr(jaxpr) if jaxpr.constvars else jaxpr)


def function_at(jaxpr: Jaxpr) -> str:
    """`name at file:line` of the function behind a program, "" where JAX does not know it."""
    return getattr(jaxpr.jaxpr.debug_info, "func_src_info", None) or ""


def bodies(params: dict) -> list[Jaxpr]:
    """The jaxprs among the params of an equation, those that an object hides included."""
    every = list(params.values())
    if "_prim" in params:
        every += vars(params["_prim"]).values()
    found = []
    for p in every:
        if type(p) in _PLAIN:
            continue
        if isinstance(p, (tuple, list)):
            found += [close(x) for x in p if isinstance(x, (Jaxpr, OpenJaxpr))]
        elif isinstance(p, (Jaxpr, OpenJaxpr)):
            found.append(close(p))
    return found


_PLAIN = frozenset({bool, int, str, type(None)})  # no program is in these


def bind(eqn: Eqn, args: Sequence) -> list:
    """Run one equation on `args`, unchanged. Always returns a list."""
    if any(varying(x) - varying(v.aval) for x, v in zip(args, eqn.invars, strict=True)):
        if eqn.primitive.name in ("pvary", "pcast"):
            return [match_devices(x, v.aval) for x, v in zip(args, eqn.outvars, strict=True)]
        args = [match_devices(x, *args) for x in args]  # as the functions of `lax` do
    out = eqn.primitive.bind(*args, **eqn.primitive.get_bind_params(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def copy(eqn: Eqn, args: Sequence, *, inside: bool = False) -> list:
    """As `bind`, and under the user's line of the equation; inside: we are in `source` already.

    While a program is being staged, an equation on operands of its own types is put into it as
    it stands, without evaluating it abstractly again: as JAX does where it inlines a jit.
    """
    trace = core.trace_ctx.trace
    if (
        isinstance(trace, pe.DynamicJaxprTrace)
        and not eqn.effects
        and not eqn.primitive.is_high(*(v.aval for v in eqn.invars), **eqn.params)
        and all(jax.typeof(x) == v.aval for x, v in zip(args, eqn.invars, strict=True))
    ):
        info, stack = eqn.source_info, source_info_util.current_name_stack()
        info = info.replace(name_stack=stack if inside else stack + info.name_stack)
        tracers = [trace.to_jaxpr_tracer(x, info) for x in args]
        avals = [v.aval for v in eqn.outvars]
        return trace.emit_eqn(tracers, avals, eqn.primitive, eqn.params, eqn.effects, info, eqn.ctx)
    with contextlib.nullcontext() if inside else source(eqn):
        return bind(eqn, args)


def is_retyped(eqn: Eqn, args: Sequence) -> bool:
    """Whether a body would meet values that vary over more mesh axes than it was traced for."""
    if not bodies(eqn.params):
        return False
    return any(varying(x) - varying(v.aval) for x, v in zip(args, eqn.invars, strict=True))


def same_program(eqn: Eqn):
    """A hashable key, equal for equations that compute the same function of their operands."""
    try:
        key = eqn.primitive, frozenset(eqn.params.items())
    except TypeError:  # a custom_vjp with nondiff_argnums carries an object without a hash
        return eqn
    return key


def slice_type(x):
    """The type of one slice of an array along its leading axis."""
    return core.mapped_aval(x.shape[0], 0, jax.typeof(x))


def as_array(x):
    """A number or a NumPy array as an array of JAX; anything else as it is."""
    if isinstance(x, jax.Array) or is_ref(jax.typeof(x)):
        return x
    return jnp.asarray(x)


def promote(one, weak_one: bool, other, weak_other: bool):
    """(dtype, weak) that hold values of both, as NumPy promotes; weak: of a Python number."""
    weak = weak_one and weak_other
    types = ((one, weak_one and not weak), (other, weak_other and not weak))
    avals = [core.ShapedArray((), dtype, weak_type=w) for dtype, w in types]
    return dtypes.lattice_result_type(*avals)[0], weak


def convert(x, dtype, weak: bool):
    """An array as one of another dtype or weakness."""
    return lax_internal._convert_element_type(x, dtype, weak)


def is_idle() -> bool:
    """Whether nothing is being traced."""
    return core.trace_state_clean()


def is_staging() -> bool:
    """Whether what is bound now is put into a program, maybe differentiated or batched before."""
    return any(isinstance(trace, pe.DynamicJaxprTrace) for trace in traces_here())


def traces_here() -> Iterator[core.Trace]:
    """The traces that what is bound now goes through, innermost first."""
    trace = core.trace_ctx.trace
    while trace is not None:
        yield trace
        trace = getattr(trace, "parent_trace", None)


def is_inner(x) -> bool:
    """Whether a value exists only in the innermost program being traced."""
    return isinstance(x, Tracer) and x._trace is core.trace_ctx.trace


def is_live(x) -> bool:
    """Whether a value exists only in a program that is being traced still."""
    return isinstance(x, Tracer) and x._trace.is_valid()


def is_array(x) -> bool:
    """Whether JAX can trace `x`: an array, a tracer or a Python number."""
    if isinstance(x, np.ndarray | np.generic):
        return x.dtype != jax.dtypes.float0 and x.dtype.kind in "biufcV"
    return isinstance(x, jax.Array | bool | int | float | complex)


HostArray = array.ArrayImpl  # the concrete array; a tracer is no instance of exactly this


def is_on_host(x) -> bool:
    """Whether a concrete array lies on the default CPU device and nothing binds it there."""
    free = _PLACES.get(x.sharding)
    if free is None:
        devices = jax.devices()
        home = jax.sharding.SingleDeviceSharding(devices[0])
        here = devices[0].platform == "cpu" and x.sharding == home
        free = _PLACES[x.sharding] = len(devices) if here else 0
    return free == 1 or (free > 1 and not x._committed)


_PLACES: dict[Any, int] = {}


def host_mode() -> bool | None:
    """Whether 64-bit types are on; None where settings ask for more than values (NaN checks)."""
    checks = config.debug_nans.value or config.debug_infs.value
    if checks or config.default_device.value is not None:
        return None
    if config.numpy_dtype_promotion.value is not config.NumpyDtypePromotion.STANDARD:
        return None
    return config.enable_x64.value if config.numpy_rank_promotion.value == "allow" else None


def put(x: np.ndarray, weak: bool = False) -> jax.Array:
    """An array of the default device that may share memory with `x`; `weak`: of weak type."""
    sharding, devices = _home()
    aval = aval_of(x.shape, x.dtype, weak)
    return xla_client.batched_device_put(aval, sharding, [x], devices, False)  # type: ignore


@functools.lru_cache(4096)
def aval_of(shape, dtype, weak):
    return core.ShapedArray(shape, dtype, weak_type=weak)


@functools.cache
def _home():
    device = jax.local_devices()[0]
    return jax.sharding.SingleDeviceSharding(device), [device]


def differentiable(aval) -> bool:
    """Whether a value of this type can carry a tangent."""
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def has_effects(eqn: Eqn) -> bool:
    """Whether an equation does more than compute: to name an axis of a mesh is no effect."""
    return any(not isinstance(effect, core.NamedAxisEffect) for effect in eqn.effects)


def is_ref(aval) -> bool:
    """Whether this is the type of a mutable reference (`jax.new_ref`)."""
    return hasattr(aval, "inner_aval")


def mutates(jaxpr: Jaxpr) -> bool:
    """Whether a program works on mutable references, at any depth."""
    program = jaxpr.jaxpr
    atoms = [*program.constvars, *program.invars, *(v for e in program.eqns for v in e.outvars)]
    inside = (body for eqn in program.eqns for body in bodies(eqn.params))
    return any(is_ref(v.aval) for v in atoms) or any(map(mutates, inside))


def match_devices(value, *likes):
    """`value`, typed as varying over the mesh axes that `likes` vary over (inside shard_map)."""
    missing = frozenset().union(*map(varying, likes)) - varying(value)
    return lax.pcast(value, tuple(missing), to="varying") if missing else value


def varying(x) -> frozenset:
    aval = jax.typeof(x) if is_array(x) else x
    kind = getattr(aval, "manual_axis_type", None)
    return kind.varying if kind is not None else getattr(aval, "vma", frozenset())


# ---------------------------------------------------------------- where am I

for _path in pathlib.Path(__file__).parent.parent.iterdir():
    if _path.name != "tour":  # a user, as you
        source_info_util.register_exclusion(str(_path))
        traceback_util.register_exclusion(str(_path))
_NUMPY = str(pathlib.Path(np.__file__).parent)


def is_users(file: str) -> bool:
    """Whether code in a file is neither JAX's, nor NumPy's, nor this library's."""
    return source_info_util.is_user_filename(file) and not file.startswith(_NUMPY)


@functools.cache
def is_own(file: str) -> bool:
    """Whether a file is the user's own: not of an installed package, nor of the standard library.

    >>> is_own("model.py"), is_own(functools.__file__)
    (True, False)
    """
    return not file.startswith(_installed())


@functools.cache
def _installed() -> tuple[str, ...]:
    """How the names of such files begin."""
    folders = {*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values()}
    return (*(f"{x}{os.sep}" for x in folders if "packages" in x or "python" in x), "<frozen ")


def user_frames(kept) -> Iterator:
    """The user's frames of a traceback that JAX keeps, innermost first."""
    return (f for f in source_info_util.user_frames(kept) if is_users(f.file_name))


@contextlib.contextmanager
def source(eqn: Eqn) -> Iterator[None]:
    """Attribute everything bound inside to the user's line behind `eqn`."""
    info = eqn.source_info
    stack = source_info_util.current_name_stack() + info.name_stack
    with source_info_util.user_context(info.traceback, name_stack=stack), eqn.ctx.manager:
        yield


def place(*eqns: Eqn) -> tuple[str, int, str] | None:
    """(file, line, function) of the first equation with a line of the user's; of now, for none.

    A line of the user's own is told rather than one of an installed library that it calls.
    """
    infos = [eqn.source_info for eqn in eqns] or [source_info_util.current()]
    frames = [f for info in infos for f in user_frames(info.traceback)]
    frame = next((f for f in frames if is_own(f.file_name)), next(iter(frames), None))
    if not eqns and not (frame and is_own(frame.file_name)):
        return _calling()
    return frame and (frame.file_name, frame.start_line, frame.function_name)


def _calling() -> tuple[str, int, str] | None:
    """As `place`: the user's line that is being run. JAX looks no further than its own trace."""
    frames = [(f, f.f_code.co_filename) for f, _ in traceback.walk_stack(sys._getframe(2))]
    own = (f for f, file in frames if is_own(file) and is_users(file))
    frame = next(own, None) or next((f for f, file in frames if is_users(file)), None)
    return frame and (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)


def calling_file() -> str:
    """The file of the code that calls JAX now, "" for none.

    Unlike `place` it says so of a library that asks JAX to leave it out of tracebacks, as Equinox.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OF_JAX):
        frame = frame.f_back
    return frame.f_code.co_filename if frame else ""


_OF_JAX = tuple(
    f"{folder}{os.sep}"
    for folder in (_NUMPY, pathlib.Path(jax.__file__).parent, pathlib.Path(__file__).parents[1])
)


def where(*eqns: Eqn) -> str:
    """`file.py:12 in fun`: what `place` gives, in words; "" for nothing."""
    found = place(*eqns)
    return "{}:{} in {}".format(*found) if found else ""
