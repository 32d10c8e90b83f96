"""Frames of JAX in a traceback: what its functions are called, and what their variables hold.

`tests/compat/test_frames.py` says which name the installed JAX no longer has.
"""

from typing import Any

FUNCTIONS: dict[str, list[str]] = {}  # {module behind jax._src.: functions in it}


def _of(module: str, names: str) -> tuple[str, ...]:
    """Functions of one module of JAX, as the code in a frame is called."""
    FUNCTIONS.setdefault(module, []).extend(names.split())
    return tuple(names.split())


GRAD = _of("api", "value_and_grad_f")
JACOBIAN = _of("api", "jacfun")
GRADS = (*GRAD, *JACOBIAN, *_of("api", "jacrev jacfwd hessian"))
REVERSE = (*GRAD, *_of("api", "jacrev"))
JVP_CHECK = _of("api", "_jvp")
JVP = (*JVP_CHECK, *_of("api", "jvp"))
LINEARIZE = _of("api", "linearize")
FORWARD = (*JACOBIAN, *JVP, *LINEARIZE)
VJP = _of("api", "vjp")
VJP_CALL = (*_of("api", "_vjp3_bwd"), "__call__")
COTANGENT_CHECK = _of("api", "_vjp_check_ct_avals")
COTANGENT_TREE = _of("api", "_vjp_ct_tree_error")
OUTPUT_CHECK = _of("api", "_check_output_dtype_revderiv _check_output_dtype_jacfwd")
BACKWARD = _of("interpreters.ad", "backward_pass3 backward_pass")
VMAP = _of("api", "vmap_f")
VMAP_MAKER = _of("api", "vmap")
DIFFERENTIATED = (*GRAD, *VMAP, *JACOBIAN, "jvp", *VJP, *LINEARIZE)
OUT_AXIS = _of("interpreters.batching", "matchaxis")
AXES_TREE = _of("api_util", "flatten_axes")
CACHE_MISS = _of("pjit", "cache_miss")
JIT = (*_of("pjit", "_infer_params"), *CACHE_MISS)
JIT_INPUT = (*_of("pjit", "_infer_input_type"), *JIT)
SHARDING_CHECK = _of("pjit", "pjit_check_aval_sharding")
JIT_MAKER = (*_of("api", "jit"), *_of("pmap", "pmap"), *_of("ad_checkpoint", "checkpoint"))
OPTION_CHECK = (*_of("api_util", "_validate_argnames _validate_argnums resolve_argnums"), "jit")
MAPPED = _of("shard_map", "wrapped")
_of("pmap", "wrapped")
IN_AXES, AXIS_NAME = "in_axes", "axis_name"  # of pmap, in what it closes over
OUTPUTS = _of("interpreters.partial_eval", "_check_returned_jaxtypes")
TREE_MAP = _of("tree_util", "tree_map")
SCAN, WHILE = _of("lax.control_flow.loops", "scan"), _of("lax.control_flow.loops", "while_loop")
FORI, MAP = _of("lax.control_flow.loops", "fori_loop"), _of("lax.control_flow.loops", "map")
ASSOCIATIVE = _of("lax.control_flow.loops", "associative_scan")
AROUND_SCAN = (*FORI, *MAP)
LOOPS = (*FORI, *WHILE, *SCAN, *MAP, *ASSOCIATIVE)
CARRY_CHECK = _of("lax.control_flow.loops", "_check_carry_type")
LOOP_PROGRAMS = _of("lax.control_flow.loops", "_create_jaxpr")
COND, SWITCH = (_of("lax.control_flow.conditionals", name) for name in ("cond", "switch"))
BRANCHES = (*COND, *SWITCH, *_of("lax.control_flow.conditionals", "_switch_internal"))
BRANCH_CHECK = _of("lax.control_flow.conditionals", "_check_branch_outputs")
FUNCTIONAL = (*SCAN, *WHILE, *FORI, *COND, *SWITCH)
STAGED = (*_of("pjit", "_trace_for_jit"), *SCAN, *WHILE, *COND, *JIT)
ROOT = _of("lax.control_flow.solves", "custom_root")
FORWARD_RULE, BACKWARD_RULE, JVP_RULE = (
    _of("custom_derivatives", f"_flatten_{name}") for name in ("fwd", "bwd", "jvp")
)
RERAISE = _of("traceback_util", "reraise_with_filtered_traceback")
NAN_CHECK = _of("api", "_nan_check_posthook")
AROUND = (*RERAISE, *MAPPED)  # the frames of JAX that only call what a user wrote
METHODS = _of("numpy.array_methods", "op meth")
CALL = "__call__"  # of an object: a custom_vjp, a function that vjp has made
TRANSFORMATIONS = {*TREE_MAP, *FUNCTIONAL, *VMAP, *GRADS[:2], *MAP, *ASSOCIATIVE}
TRANSFORMATIONS |= {*JVP[1:], *VJP, *_of("api", "grad_f")}
_of("interpreters.partial_eval", "trace_to_jaxpr_dynamic trace_to_subjaxpr_nounits")
TRACE = ("trace_to_jaxpr", "trace_to_jaxpr_nocache")  # of a jit; the second from JAX 0.11 on
TRACE_JIT = _of("pjit", "_trace_for_jit")
TRACING = ("trace_to_jaxpr", "trace_to_subjaxpr")  # what they begin with


# {function: names of a variable, one of which it has}
LOCALS: dict[str, list[tuple[str, ...]]] = {}


class Local:
    """A variable of some functions of JAX, under the first of its names that is there, or None."""

    def __init__(self, functions: tuple[str, ...], *names: str):
        self.functions, self.names = functions, names

    def __set_name__(self, owner: type, name: str):
        self.names = self.names or (name,)
        for function in self.functions:
            LOCALS.setdefault(function, []).append(self.names)

    def __get__(self, held: "Held", owner: type) -> Any:
        found = (held.values.get(name) for name in self.names)
        return next((value for value in found if value is not None), None)


class Held:
    """What the variables of a frame of JAX hold; values: all of them, by name."""

    def __init__(self, values: dict[str, Any]):
        self.values = values

    fun = Local((*DIFFERENTIATED, *JVP, *JIT, *RERAISE, *NAN_CHECK, *JIT_MAKER))
    args = Local((*GRAD, *JACOBIAN, *VMAP, *JIT, *RERAISE, *NAN_CHECK, *MAPPED, *METHODS))
    kwargs = Local((*VMAP, *JIT, *RERAISE, *NAN_CHECK))
    jit_info = Local(JIT[:1], "ji")
    dynamic = Local(JIT[:1], "dynargs")  # of a jit: its flat arguments, without static ones
    in_shardings = Local(TRACE_JIT, "in_shardings_flat")
    in_tracers = Local((), "in_tracers")  # of TRACE
    x = Local((*OUTPUT_CHECK, *OUTPUTS, *JIT_INPUT[:1]))
    option = Local(OPTION_CHECK[:2], "argnames_name", "argnums_name")
    unknown = Local(OPTION_CHECK[:1], "invalid_argnames", "invalid_kwargs")
    argnums = Local((*GRAD, *JACOBIAN, *OPTION_CHECK[1:2]))
    result = Local(GRAD, "ans")
    primals, tangents = Local(JVP), Local(JVP)
    ct_aval_expected = Local(COTANGENT_CHECK)
    ct_tree, out_tree = Local(COTANGENT_TREE), Local(COTANGENT_TREE)
    eqn = Local(BACKWARD[:1])
    in_axes, out_axes = Local((*VMAP, "pmap")), Local((*VMAP, "pmap"))
    axis_name, axis_size = Local((*VMAP, "pmap")), Local((*VMAP, "pmap"))
    moved_to = Local(OUT_AXIS, "dst")
    treedef = Local(AXES_TREE)
    name, what_aval = Local(SHARDING_CHECK), Local(SHARDING_CHECK)
    mesh, in_specs, looked_at = Local(MAPPED), Local(MAPPED), Local(MAPPED, "a")
    tree, rest, is_leaf = Local(TREE_MAP), Local(TREE_MAP), Local(TREE_MAP)
    body = Local((*LOOPS, *MAPPED, *BACKWARD_RULE), "body_fun", "f", "fn")
    test = Local(WHILE, "cond_fun")
    program = Local((*SCAN, *WHILE), "jaxpr", "body_jaxpr")
    xs, xs_flat, length = Local((*SCAN, *MAP)), Local(SCAN), Local(SCAN)
    elems = Local(ASSOCIATIVE)
    init_flat, init_val_flat = Local(SCAN), Local(WHILE)
    lower, upper = Local(FORI), Local(FORI)
    in_carry, out_carry = Local(CARRY_CHECK), Local(CARRY_CHECK)
    ys = Local(SCAN, "ys_avals")
    cond_out_avals = Local(LOOP_PROGRAMS)
    pred, index = Local(COND), Local(SWITCH)
    operands, true_fun, false_fun = Local((*COND, *SWITCH)), Local(COND), Local(COND)
    true_program = Local(COND, "true_jaxpr_", "true_jaxpr")
    false_program = Local(COND, "false_jaxpr_", "false_jaxpr")
    f1, f2, name1, name2 = (Local(BRANCH_CHECK) for _ in range(4))
    out_avals1, out_avals2, differences = (Local(BRANCH_CHECK) for _ in range(3))
    owner = Local((), "self")
    pair_out = Local((*FORWARD_RULE, *JVP_RULE))
    py_cts_in, in_tree, in_avals = (Local(BACKWARD_RULE) for _ in range(3))
    py_primals_out, py_tangents_out = Local(JVP_RULE), Local(JVP_RULE)
    backward_rule = Local((), "bwd", "f_bwd")
    joined = Local((), "arrays", "tup")

    def among(self, *names: str) -> dict[str, Any]:
        """Those of the variables that are called so."""
        return {name: self.values[name] for name in names if name in self.values}

    @property
    def functions(self) -> list[Any]:
        """What may be a function of the user's, or several."""
        keys = ("body_fun", "cond_fun", "f", "fun", "fn", "true_fun", "false_fun", "branches")
        held = [self.values.get(key) for key in (*keys, "fwd", "bwd")]
        return [f for one in held for f in (one if isinstance(one, tuple | list) else (one,))]

    @property
    def looked_up(self) -> list[Any]:
        """What JAX may have stumbled over: one value, under one of these names."""
        return list(self.among("arg", "tracer", "c_arg", "self", "x").values())

    @property
    def pairs(self) -> list[tuple]:
        """The two operands of an operation, as some functions of jax.numpy call them."""
        names = (("self", "other"), ("x1", "x2"), ("x", "y"), ("a", "b"), ("lhs", "rhs"))
        pairs = [tuple(self.among(*two).values()) for two in names]
        return [pair for pair in pairs if len(pair) == 2]
