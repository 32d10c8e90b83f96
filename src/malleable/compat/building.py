"""Programs put together: new variables, other bodies, dead code out."""

import contextlib
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

import jax
import numpy as np
from jax._src import config, core, literals, shard_map, source_info_util
from jax._src.interpreters import partial_eval as pe

from malleable.compat.programs import Eqn, Jaxpr, Literal, OpenJaxpr, bodies, function_at


def new_var(aval):
    """A variable of a program being put together."""
    return core.Var(aval)


def literal(value, aval):
    """A number in the place of a variable."""
    return Literal(literals.TypedNdArray(np.asarray(value, aval.dtype), aval), aval)


def program(like: Jaxpr, eqns: Sequence[Eqn], outs: Sequence, consts: dict) -> Jaxpr:
    """A program of the inputs of `like`: equations, results, {variable: constant}."""
    raw, names = like.jaxpr, list(consts)
    effects = pe.make_jaxpr_effects(names, raw.invars, outs, eqns)
    raw = raw.replace(constvars=names, eqns=list(eqns), outvars=list(outs), effects=effects)
    return like.replace(jaxpr=raw, consts=list(consts.values()))


def with_equations(jaxpr: Jaxpr, eqns: Sequence[Eqn]) -> Jaxpr:
    """The program with other equations, which make the same variables."""
    consts = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
    return program(jaxpr, eqns, jaxpr.jaxpr.outvars, consts)


def with_bodies(eqn: Eqn, new: Sequence[Jaxpr]) -> Eqn:
    """The equation with other bodies of the same types, in the order of `bodies`."""
    rest = iter(new)

    def put(p):
        if isinstance(p, Jaxpr):
            return next(rest)
        if isinstance(p, OpenJaxpr):
            return _without_consts(next(rest))
        return type(p)(map(put, p)) if type(p) in (tuple, list) else p

    return eqn.replace(params={name: put(p) for name, p in eqn.params.items()})


def _without_consts(closed: Jaxpr):
    """An open jaxpr, its constants written into it as literals (up to JAX 0.10)."""
    raw = closed.jaxpr
    known = {v: Literal(c, v.aval) for v, c in zip(raw.constvars, closed.consts, strict=True)}
    read = lambda atoms: [a if isinstance(a, Literal) else known.get(a, a) for a in atoms]  # noqa: E731
    eqns = [eqn.replace(invars=read(eqn.invars)) for eqn in raw.eqns]
    return raw.replace(constvars=[], eqns=eqns, outvars=read(raw.outvars)) if known else raw


def dce(jaxpr: Jaxpr, used: Sequence[bool] | None = None) -> Jaxpr:
    """Without the equations that no used result needs; of loops and calls too. Same inputs."""
    keep = [True] * len(jaxpr.jaxpr.outvars) if used is None else list(used)
    raw, _ = pe.dce_jaxpr(jaxpr.jaxpr, keep, instantiate=True)
    if len(raw.eqns) == len(jaxpr.jaxpr.eqns) and all(keep):
        pairs = zip(raw.eqns, jaxpr.jaxpr.eqns, strict=True)
        if all(a is b or a.params == b.params for a, b in pairs):
            return jaxpr
    return jaxpr.replace(jaxpr=raw, consts=jaxpr.consts)


def check(jaxpr: Jaxpr, sound: Iterable[Eqn] = ()) -> None:
    """Raise where a program is not well typed; the equations `sound` are known to be by themselves.

    What JAX's own check takes most of its time for, the rules of types, runs for the others only.
    """
    known = set(map(id, sound))
    new = [eqn for eqn in jaxpr.jaxpr.eqns if id(eqn) not in known]
    if len(new) < len(jaxpr.jaxpr.eqns) and _is_bound_in_order(jaxpr.jaxpr):
        given = [*jaxpr.jaxpr.invars, *jaxpr.jaxpr.constvars]
        given += [v for e in jaxpr.jaxpr.eqns if id(e) in known for v in e.outvars]
        part = jaxpr.jaxpr.replace(constvars=[], invars=given, eqns=new)
        with contextlib.suppress(Exception):
            core.check_jaxpr(part)
            return
    core.check_jaxpr(jaxpr.jaxpr)


def _is_bound_in_order(program: OpenJaxpr) -> bool:
    """Whether each variable is bound once, and before it is used."""
    bound = {*program.constvars, *program.invars}
    count = len(program.constvars) + len(program.invars)
    for eqn in program.eqns:
        if any(type(a) is not Literal and a not in bound for a in eqn.invars):
            return False
        made = [v for v in eqn.outvars if not isinstance(v, core.DropVar)]
        bound.update(made)
        count += len(made)
    used = (a for a in program.outvars if type(a) is not Literal)
    return len(bound) == count and all(a in bound for a in used)


@contextlib.contextmanager
def inside(eqn: Eqn) -> Iterator[None]:
    """Where the bodies of an equation may be traced again: under shard_map, on its mesh."""
    with contextlib.ExitStack() as stack:
        if eqn.primitive.name == "shard_map":
            p = eqn.params
            manual = frozenset(p.get("newly_manual_axes") or p.get("manual_axes") or ())
            stack.enter_context(shard_map._extend_axis_env(p["mesh"], manual))
            stack.enter_context(jax.sharding.use_abstract_mesh(manual_mesh(p["mesh"], manual)))
            stack.enter_context(config._check_vma(p["check_vma"]))
        yield


def manual_mesh(mesh, axes):
    """A mesh some of whose axes, and those that are so already, are a shard_map's."""
    return shard_map._as_manual_mesh(mesh, frozenset(axes) | frozenset(mesh.manual_axes))


def is_transparent(eqn: Eqn) -> bool:
    """Whether this is a jit that says nothing but its name: its body may stand in its place."""
    p = eqn.params
    if eqn.primitive.name not in ("jit", "pjit"):
        return eqn.primitive.name == "closed_call"
    placed = [*p["in_shardings"], *p["out_shardings"], *p["in_layouts"], *p["out_layouts"]]
    said = any(isinstance(s, jax.sharding.Sharding) for s in placed) or any(p["donated_invars"])
    layouts = any(x is not None for x in (*p["in_layouts"], *p["out_layouts"]))
    return not (said or layouts or p["compiler_options_kvs"])


def made_by(maker: str, fun: Callable) -> Callable:
    """`fun`, named so that programs traced from it are known by `is_made_by`, wherever it is."""
    fun.__name__ = f"{maker}.{fun.__name__}"
    return fun


def is_made_by(maker: str, jaxpr: Jaxpr) -> bool:
    """Whether the function behind a program went through `made_by`."""
    return function_at(jaxpr).startswith(f"{maker}.")


def is_of_jax(jaxpr: Jaxpr) -> bool:
    """Whether the function behind a program is JAX's own."""
    return JAX_FOLDER in function_at(jaxpr)


def has_rule_of_jax(jaxpr: Jaxpr) -> bool:
    """Whether the function behind a program is one of JAX that has a derivative rule of JAX."""
    if not is_of_jax(jaxpr):
        return False
    name, _, at = function_at(jaxpr).rpartition(" at ")
    file = at.rpartition(":")[0]
    near = [m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == file]
    return any(isinstance(vars(m).get(name), jax.custom_jvp | jax.custom_vjp) for m in near)


JAX_FOLDER = str(pathlib.Path(jax.__file__).parent)
PACKAGE = str(pathlib.Path(__file__).parent.parent)  # the folder of this library


def within(eqn: Eqn, call: Eqn) -> Eqn:
    """An equation of the body of a call, as one beside it: under the call's names and line."""
    inner, outer = eqn.source_info, call.source_info
    stack = outer.name_stack + inner.name_stack
    own = not is_of_jax(bodies(call.params)[0])
    info = (inner if own else outer).replace(name_stack=stack)
    return eqn.replace(source_info=info)


@contextlib.contextmanager
def stamped(eqn: Eqn, name: str) -> Iterator[None]:
    """As `source`, with a name for who rewrites, which shows in the compiled program too."""
    info = eqn.source_info
    stack = info.name_stack.extend(name) if name else info.name_stack
    with source_info_util.user_context(info.traceback, name_stack=stack), eqn.ctx.manager:
        yield


@contextlib.contextmanager
def on_line(eqn: Eqn) -> Iterator[None]:
    """As `source`, on the mesh that is set now, not on that of the equation."""
    info = eqn.source_info
    with source_info_util.user_context(info.traceback, name_stack=info.name_stack):
        yield


def moved(jaxpr: Jaxpr, eqn: Eqn, name: str) -> Jaxpr:
    """A program as if it had been traced at the line of `eqn`, under the name of who rewrites."""
    info = eqn.source_info
    info = info.replace(name_stack=info.name_stack.extend(name) if name else info.name_stack)
    eqns = [e.replace(source_info=info, ctx=eqn.ctx) for e in jaxpr.jaxpr.eqns]
    return jaxpr.replace(jaxpr=jaxpr.jaxpr.replace(eqns=eqns), consts=jaxpr.consts)


def derivative_key(eqn: Eqn) -> tuple:
    """The functions of others behind the rules of a custom derivative: its identity."""
    found: dict = {}

    def dig(x, depth=12):
        if isinstance(x, tuple | list):
            for part in x:
                dig(part, depth)
        elif hasattr(x, "transforms"):  # a function of JAX's, wrapped for tracing
            dig((x.f, [part for t in x.transforms for part in (t if isinstance(t, tuple) else ())]))
        elif callable(x) and not str(getattr(x, "__module__", "")).startswith(_TRACING):
            found[x] = None
        elif depth:
            for cell in getattr(x, "__closure__", None) or ():
                with contextlib.suppress(ValueError):  # it may be empty still
                    dig(cell.cell_contents, depth - 1)

    dig([p for p in eqn.params.values() if callable(p) or hasattr(p, "transforms")])
    return tuple(found) or tuple(map(id, eqn.params.values()))


_TRACING = ("jax._src.custom_derivatives", "jax._src.interpreters", "jax._src.linear_util")


def context_key(eqn: Eqn):
    """What else decides what an equation computes, or where: as hashable."""
    ctx = eqn.ctx
    metadata = getattr(ctx, "xla_metadata", None) or {}
    return ctx.threefry_partitionable, ctx.compute_type, tuple(sorted(map(str, metadata.items())))
