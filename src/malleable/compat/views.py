"""What an equation that carries programs means: Call, Branch, Scan, While, Map and their like."""

from collections import namedtuple
from typing import Any

import jax
import jax.core
import numpy as np
from jax import numpy as jnp
from jax.interpreters import ad

from malleable.compat.programs import (
    Eqn,
    bodies,
    close,
    differentiable,
    is_ref,
    match_devices,
    varying,
)

# One body, run once. wrap(fun) gives fun(frame, *args) -> (outs, frame) the same treatment;
# lost: what a body that was entered cannot keep, or "".
Call = namedtuple("Call", "body wrap lost", defaults=[""])

# jvp(primals, tangents) -> (outs, tangents of outs)
CustomJvp = namedtuple("CustomJvp", "body jvp")

# fwd(*args) -> (outs, residuals); bwd(residuals, cotangents) -> cotangents of args; symbolic:
# whether fwd asks which arguments are differentiated, and takes `perturbed`, a flag for each
CustomVjp = namedtuple("CustomVjp", "body fwd bwd symbolic")

# cond and switch: the operands are the index, then the arguments of the branches
Branch = namedtuple("Branch", "branches")


class Scan(namedtuple("Scan", "body split length reverse unroll")):
    """split(args) -> consts, carry, xs; body(*consts, *carry, *xs_i) -> (*carry, *ys_i)."""

    __slots__ = ()

    @property
    def how(self) -> dict[str, Any]:
        """The options of a `lax.scan` that goes through the same steps."""
        return {"length": self.length, "reverse": self.reverse, "unroll": self.unroll}


# split(args) -> consts of the test, consts of the body, carry
While = namedtuple("While", "cond body split")

# shard_map: one body per device along `axes` of the mesh, {name: size}. wrap(fun, in_specs,
# out_specs) maps fun(*state, *args) -> (outs, state) the same way, given the specs of the
# state; lanes(value) -> the axes along which a value inside differs; united(eqn) -> the axes along
# which a collective makes its results the same; in_axes, out_axes: along which each operand is cut,
# and each result may differ.
Map = namedtuple("Map", "body axes wrap lanes united in_axes out_axes")

# a body that cannot be entered, and why
Opaque = namedtuple("Opaque", "why")


def view(eqn: Eqn):
    """One of the above, for an equation that carries jaxprs; Opaque for one in no table."""
    name = eqn.primitive.name
    if any(is_ref(v.aval) for v in eqn.invars):
        return Opaque("it updates a mutable reference (jax.new_ref)")
    if name in OPAQUE:
        return Opaque(OPAQUE[name])
    if name in INLINED:
        return Call(bodies(eqn.params)[0], lambda fun: fun, INLINED[name])
    return VIEWS[name](eqn) if name in VIEWS else Opaque("malleable does not know it")


def _jit(eqn):
    p = eqn.params
    donated = tuple(i + 1 for i, d in enumerate(p["donated_invars"]) if d)
    options = {"inline": p["inline"], "keep_unused": p["keep_unused"]}
    if p["compiler_options_kvs"]:
        options["compiler_options"] = dict(p["compiler_options_kvs"])
    ins, outs = (
        [s if isinstance(s, jax.sharding.Sharding) else None for s in p[side]]
        for side in ("in_shardings", "out_shardings")
    )

    def placed(fun, ins, outs):
        places = {"in_shardings": (None, *ins)} if any(ins) else {}
        places |= {"out_shardings": (outs, None)} if any(outs) else {}
        return jax.jit(fun, donate_argnums=donated, **places, **options)

    def wrap(fun):
        fun.__name__ = p["name"]
        usual = placed(fun, ins, outs)

        def by_leaf(frame, *args):  # pytrees in the place of arrays: leaf by leaf
            if jax.tree_util.all_leaves(args):
                return usual(frame, *args)
            results = jax.eval_shape(fun, frame, *args)[0]
            own = list(map(_leaf_shardings, ins, args, eqn.invars))
            return placed(fun, own, list(map(_leaf_shardings, outs, results, eqn.outvars)))(
                frame, *args
            )

        return by_leaf if any((*ins, *outs)) else usual

    return Call(p["jaxpr"], wrap)


def _leaf_shardings(sharding, tree, var):
    """The sharding of an array, for those leaves of a pytree in its place that have its shape."""
    return jax.tree.map(lambda x: sharding if x.shape == var.aval.shape else None, tree)


def _remat(eqn):
    p = eqn.params
    again = {"prevent_cse": p["prevent_cse"], "policy": p["policy"]}

    def wrap(fun):
        if not p["differentiated"]:
            return jax.checkpoint(fun, **again)

        def flagged(program):  # inside a gradient a flag keeps XLA from undoing the recomputation
            (eqn,) = program.eqns
            return [eqn.replace(params=eqn.params | {"differentiated": True})]

        def kept(*args):
            return _edited(flagged, jax.checkpoint(fun, **again), *args)

        return kept

    return Call(close(p["jaxpr"]), wrap)


def switch(index, branches, *operands):
    """As jax.lax.switch, of an index known to be in range: it is not clamped again."""

    def unclamped(program):
        eqns = [e for e in program.eqns if e.primitive.name != "clamp"]
        at = [e.primitive.name for e in eqns].index("cond")
        eqns[at] = eqns[at].replace(invars=[program.invars[0], *eqns[at].invars[1:]])
        return eqns

    fun = lambda index, *operands: jax.lax.switch(index, branches, *operands)  # noqa: E731
    return _edited(unclamped, fun, index, *operands) if len(branches) > 1 else fun(0, *operands)


def _edited(eqns_of, fun, *args):
    """fun(*args), by a program whose equations are eqns_of(program)."""
    program, out = jax.make_jaxpr(fun, return_shape=True)(*args)
    jaxpr = program.jaxpr.replace(eqns=eqns_of(program.jaxpr))
    outs = jax.core.eval_jaxpr(jaxpr, program.consts, *jax.tree.leaves(args))
    return jax.tree.unflatten(jax.tree.structure(out), outs)


def _subfuns(eqn):
    return eqn.primitive.get_bind_params(eqn.params)["subfuns"]


def _custom_jvp(eqn):
    def jvp(primals, tangents):
        _, rule = _subfuns(eqn)
        flat = list(rule.call_wrapped(*primals, *tangents))
        n = len(eqn.outvars)
        return flat[:n], _dense_tangents(flat[n:], eqn.outvars)

    return CustomJvp(close(eqn.params["call_jaxpr"]), jvp)


def _custom_vjp(eqn):
    n, consts = len(eqn.outvars), eqn.params["num_consts"]

    def fwd(*args, perturbed=None):
        _, rule, _ = _subfuns(eqn)
        flags = perturbed or [i >= consts for i in range(len(args))]
        pairs = zip(args, flags, strict=True)
        flat = list(rule.call_wrapped(*(x for pair in pairs for x in pair)))
        res, outs = flat[: len(flat) - n], flat[len(flat) - n :]
        trees = eqn.params["out_trees"]()
        if len(trees) > 2 and trees[2] is not None:  # residuals that are inputs are left out
            rest = iter(res)
            res = [next(rest) if i is None else args[i] for i in trees[2]]
        return outs, res

    def bwd(res, cts):
        _, _, rule = _subfuns(eqn)
        out = rule.call_wrapped(*res, *cts)
        if isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], dict | None):
            out = out[0]  # from JAX 0.11: (cotangents, logs)
        return _dense_tangents(out, eqn.invars)

    return CustomVjp(close(eqn.params["call_jaxpr"]), fwd, bwd, eqn.params["symbolic_zeros"])


def is_symbolic_zero(x) -> bool:
    return isinstance(x, jax.custom_derivatives.SymbolicZero)


def unsymbolic(tree):
    """(values, whether each is differentiated), of what JAX gives rules with symbolic zeros."""
    own = jax.custom_derivatives.CustomVJPPrimal
    leaves, whole = jax.tree.flatten(tree, is_leaf=lambda x: isinstance(x, own))
    flags = [not isinstance(x, own) or x.perturbed for x in leaves]
    values = [x.value if isinstance(x, own) else x for x in leaves]
    values = [zero_tangent(x.aval) if is_symbolic_zero(x) else x for x in values]
    return jax.tree.unflatten(whole, values), flags


def _dense_tangents(tangents, variables):
    """Tangents or cotangents, the symbolic zeros among them as arrays."""
    absent = (type(None), ad.Zero, jax.custom_derivatives.SymbolicZero)
    return [
        zero_tangent(v.aval) if isinstance(t, absent) else t
        for t, v in zip(tangents, variables, strict=True)
    ]


def zero_tangent(aval):
    """The zero of the tangent space of a type: an array, of dtype float0 for integers."""
    smooth = differentiable(aval)
    zeros = jnp.zeros(aval.shape, aval.dtype) if smooth else np.zeros(aval.shape, jax.dtypes.float0)
    return match_devices(zeros, aval)


def fill_tangents(flags, tangents, avals) -> list:
    """The tangents of all, given those of what the flags say; zeros for the others."""
    rest = iter(tangents)
    return [next(rest) if f else zero_tangent(a) for f, a in zip(flags, avals, strict=True)]


def add_tangents(a, b):
    """The sum, where the type has tangents at all."""
    return a if a.dtype == jax.dtypes.float0 else a + b


def _scan(eqn):
    p = eqn.params
    if "ft_in" in p:  # from JAX 0.11
        split = lambda args: [list(part.vals) for part in p["ft_in"].update(list(args)).unpack()]  # noqa: E731
    else:
        split = _split_at(p["num_consts"], p["num_carry"])
    return Scan(p["jaxpr"], split, p["length"], p["reverse"], p["unroll"])


def _while(eqn):
    p = eqn.params
    split = _split_at(p["cond_nconsts"], p["body_nconsts"])
    return While(p["cond_jaxpr"], p["body_jaxpr"], split)


def _split_at(a, b):
    return lambda args: (list(args[:a]), list(args[a : a + b]), list(args[a + b :]))


def _shard_map(eqn):
    p = eqn.params
    mesh, checked = p["mesh"], p["check_vma"]
    manual = p.get("newly_manual_axes", p.get("manual_axes"))
    axes = {a: mesh.shape[a] for a in mesh.axis_names if a in manual}
    options = {"mesh": mesh, "check_vma": checked}
    if len(axes) < len(mesh.axis_names):
        options["axis_names"] = set(axes)

    def wrap(fun, in_specs, out_specs):
        outs = (list(p["out_specs"]), out_specs)
        ins = (*in_specs, *p["in_specs"])
        return jax.shard_map(fun, in_specs=ins, out_specs=outs, **options)

    def lanes(value):
        return tuple(a for a in axes if a in varying(value)) if checked else tuple(axes)

    def united(eqn):
        reduced = eqn.primitive.name in _UNITES or (not checked and eqn.primitive.name in _GATHERS)
        if not reduced or eqn.params.get("axis_index_groups") is not None:
            return frozenset()
        names = eqn.params.get("axes", eqn.params.get("axis_name", ()))
        return frozenset(names if isinstance(names, tuple | list) else (names,))

    said = (
        [frozenset(a for part in spec for a in names_of(part)) for spec in p[specs]]
        for specs in ("in_specs", "out_specs")
    )
    return Map(close(p["jaxpr"]), axes, wrap, lanes, united, *said)


def names_of(entry) -> tuple:
    """The mesh axes that an entry of a PartitionSpec names."""
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


# collectives whose results are the same on all devices of their axes; JAX's types do not say so
# of the others
_UNITES = {"psum", "psum2", "psum_invariant", "pmax", "pmin", "all_gather_invariant"}
_GATHERS = {"all_gather"}


VIEWS = {
    **dict.fromkeys(("jit", "pjit"), _jit),
    **dict.fromkeys(("remat", "remat2", "checkpoint"), _remat),
    "custom_jvp_call": _custom_jvp,
    "custom_vjp_call": _custom_vjp,
    "cond": lambda eqn: Branch(tuple(eqn.params["branches"])),
    "scan": _scan,
    "while": _while,
    "shard_map": _shard_map,  # pmap is jit of shard_map
}

# what is run in place, and what is lost by it
INLINED = {
    "closed_call": "",
    "core_call": "",
    "eval_jaxpr": "",
    "composite": "its name as one operation",
    "custom_vmap_call": "its batching rule",
    "custom_transpose_call": "its transposition rule",
    "linear_call": "its transposition rule",
    "custom_partitioning": "its partitioning rule",
    "compute_on": "where it runs",
    "xla_metadata_call": "its XLA metadata",
    "program_order": "the order it fixed",
}

# why a body cannot be entered, and whose
_CLOSED = {
    "its bodies define a linear solve and its derivatives together": "custom_linear_solve",
    "its body is chosen when it is differentiated": "remat_opt",
    "its body is hidden in an object": "call_hi_primitive",
    "its body updates mutable references": "run_state",
    "its body is a kernel over references": "pallas_call core_map mpmd_map run_scoped jaxpr_call "
    "parallel_loop emit_pipeline pipeline_body",
    "its body is meant for one kind of hardware": "cudnn_fusion custom_fusion fusible thunky.cond "
    "thunky.while thunky.async_start thunky.collective_group thunky.call_thunky_nested",
    "its body says how two elements combine, which XLA runs in no fixed order": "reduce "
    "reduce_window select_and_scatter scatter scatter-add scatter-sub scatter-mul scatter-min "
    "scatter-max scatter_add scatter_sub scatter_mul scatter_min scatter_max",
}
OPAQUE = {name: why for why, names in _CLOSED.items() for name in names.split()}
