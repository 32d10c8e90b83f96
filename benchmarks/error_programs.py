# ruff: noqa
# fmt: off
"""140 programs that fail while they run, on several devices, with keys, primitives or callbacks.

    python -m benchmarks.errors benchmarks/error_programs.py [NAME ..]

In the form of ../shared/cases/errors.py, whose harness runs and scores them; ERROR_CASES names it
where it lies elsewhere, and `--smoke` takes a small one. A comment `#! name` marks the line to edit.
"""
import os
import pathlib
import sys

HARNESS = pathlib.Path(__file__).resolve().parents[2] / "shared/cases/errors.py"
if "--smoke" in sys.argv:
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "smoke"))
else:
    sys.path.insert(0, str(pathlib.Path(os.environ.get("ERROR_CASES", HARNESS)).parent))

import errors as harness  # sets up four devices, so before jax
from errors import CASES, U, case
from functools import partial
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CASES.clear()
harness.HERE = os.path.abspath(__file__)
with open(harness.HERE) as _file:
    harness._SOURCE = {part.strip() for line in _file for part in (line.strip(), line.split("#!")[0]) if part.strip()}


# ------------------------------------------------------------------ NaN
@case("nan_jit", kind="run-time", path=r"\bx\b|argument", fix=(r"where|eps|clip|maximum",))
def _():
    def norm(x):
        y = x - x.mean()
        return y / jnp.sqrt((y ** 2).sum())  #! nan_jit
    with jax.debug_nans(True):
        jax.jit(U(norm))(jnp.ones(4))


@case("nan_scan", kind="run-time", path=r"\b2\b", fix=(r"where|eps|clip|maximum",))
def _():
    def body(c, x):
        c = c - x
        return c, jnp.sqrt(c)  #! nan_scan
    with jax.debug_nans(True):
        jax.jit(lambda c, xs: lax.scan(U(body), c, xs))(2.5, jnp.ones(6))


@case("nan_grad", kind="run-time", path=r"\bx\b|gradient|derivative|backward", fix=(r"where|eps|clip|maximum",))
def _():
    def dist(x):
        return jnp.sqrt((x ** 2).sum())  #! nan_grad
    with jax.debug_nans(True):
        jax.jit(jax.grad(U(dist)))(jnp.zeros(3))


@case("nan_grad_where", kind="run-time", path=r"\bx\b|gradient|derivative|backward", fix=(r"where",))
def _():
    def loss(x):
        return jnp.where(x > 0, jnp.log(x), 0.0).sum()  #! nan_grad_where
    with jax.debug_nans(True):
        jax.grad(U(loss))(jnp.array([1.0, 0.0, 2.0]))


@case("nan_eager", kind="run-time", path=r"\bvar\b", fix=(r"where|eps|clip|maximum",))
def _():
    with jax.debug_nans(True):
        var = jnp.array([1.0, -2.0])
        jnp.sqrt(var)  #! nan_eager


@case("nan_while", kind="run-time", path=r"\b\d+\b", fix=(r"where|eps|clip|maximum",))
def _():
    def newton(x):
        return x - jnp.sqrt(x)  #! nan_while
    with jax.debug_nans(True):
        jax.jit(lambda x: lax.while_loop(lambda x: ~(x > 5.0) & ~jnp.isnan(x), lambda x: newton(x) - 1, x))(4.0)


@case("nan_vmap_scan", kind="run-time", path=r"\b2\b", fix=(r"where|eps|clip|maximum",))
def _():
    def sim(x0):
        def step(x, _):
            x = x - 0.4
            return x, jnp.log(x)  #! nan_vmap_scan
        return lax.scan(step, x0, None, length=5)
    with jax.debug_nans(True):
        jax.jit(jax.vmap(U(sim)))(jnp.array([5.0, 6.0, 1.0, 7.0]))


@case("nan_params", kind="run-time", path=r"\['w'\]|params", fix=(r"where|eps|clip|maximum",))
def _():
    def loss(params, x):
        h = x @ params["layer1"]["w"]
        return jnp.log(h).sum()  #! nan_params
    with jax.debug_nans(True):
        jax.jit(jax.value_and_grad(U(loss)))({"layer1": {"w": -jnp.ones((3, 2))}}, jnp.ones((4, 3)))


@case("nan_shard_map", kind="run-time", path=r"\bx\b|shard|device", fix=(r"where|eps|clip|maximum",))
def _():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    def f(x):
        return jnp.log(x)  #! nan_shard_map
    with jax.debug_nans(True):
        jax.jit(jax.shard_map(U(f), mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d")))(jnp.arange(8.0) - 1)


@case("inf_jit", kind="run-time", path=r"\bz\b|argument", fix=(r"clip|maximum|minimum|where|log",))
def _():
    def softmax(z):
        e = jnp.exp(z)  #! inf_jit
        return e
    with jax.debug_infs(True):
        jax.jit(U(softmax))(jnp.array([1.0, 1000.0]))


@case("nan_input", kind="run-time", path=r"args|argument", fix=(r"input|argument|where|nan_to_num",))
def _():
    def f(x):
        return x * 2
    with jax.debug_nans(True):
        jax.jit(U(f))(jnp.asarray(np.array([1.0, np.nan], np.float32)))  #! nan_input


# ------------------------------------------------------------------ parallel
@case("pmap_devices", path=r"argument|\bx\b", both=(r"\b6\b", r"\b4\b"), fix=(r"reshape|divisible|vmap|devices=|jit|shard_map",))
def _():
    def f(x):
        return x * 2
    jax.pmap(U(f))(jnp.ones((6, 2)))  #! pmap_devices


@case("pmap_sizes", path=r"\by\b", both=(r"\b4\b", r"\b3\b"), fix=(r"in_axes|reshape|same",))
def _():
    def f(x, y):
        return x + y
    jax.pmap(U(f))(jnp.ones((4, 2)), jnp.ones((3, 2)))  #! pmap_sizes


@case("shard_map_replication", path=r"out_specs", both=(r"\bd\b",), fix=(r"psum|check_vma|P\('d'",))
def _():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    def total(x):
        return x.sum()  #! shard_map_replication
    jax.shard_map(U(total), mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P())(jnp.ones(8))  #! shard_map_replication


@case("shard_map_in_arity", path=r"in_specs|\by\b", both=(r"\b1\b", r"\b2\b"), fix=(r"one|add|entry|in_specs=",))
def _():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    def f(x, y):
        return x + y
    g = jax.shard_map(U(f), mesh=mesh, in_specs=(jax.P("d"),), out_specs=jax.P("d"))  #! shard_map_in_arity
    g(jnp.ones(8), jnp.ones(8))


@case("shard_map_rank", path=r"\bx\b", both=(r"P\('a', 'b'\)|\b2\b", r"\[8\]|\(8,\)|\b1\b"), fix=(r"in_specs|P\('a'\)|drop|remove|reshape",))
def _():
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    def f(x):
        return x
    g = jax.shard_map(U(f), mesh=mesh, in_specs=jax.P("a", "b"), out_specs=jax.P("a", "b"))  #! shard_map_rank
    g(jnp.ones(8))


@case("shard_map_out_rank", path=r"out_specs|\[0\]", both=(r"\b0\b|\[\]",), fix=(r"P\(\)|out_specs|\[None\]|reshape|psum",))
def _():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    def f(x):
        return x.sum()  #! shard_map_out_rank
    jax.shard_map(U(f), mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))(jnp.ones(8))  #! shard_map_out_rank


@case("shard_map_axis_typo", path=r"in_specs", both=(r"data", r"'d'"), fix=(r"P\('d'|rename|mesh",))
def _():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    def f(x):
        return x
    g = jax.shard_map(U(f), mesh=mesh, in_specs=jax.P("data"), out_specs=jax.P("d"))  #! shard_map_axis_typo
    g(jnp.ones(8))


@case("axis_name_unbound", path=r"pmean", both=(r"batch",), fix=(r"axis_name=",), wrong=r"\bpsum\b")
def _():
    def norm(x):
        return x - lax.pmean(x, "batch")
    jax.vmap(U(norm))(jnp.ones((4, 2)))  #! axis_name_unbound


@case("axis_name_typo", path=r"psum", both=(r"'?data", r"'?batch"), fix=(r"axis_name=|psum\(x, 'batch'|'batch'",))
def _():
    def norm(x):
        return x / lax.psum(x, "data")  #! axis_name_typo
    jax.vmap(U(norm), axis_name="batch")(jnp.ones((4, 2)))  #! axis_name_typo


@case("device_mismatch", path=r"\bw\b", both=(r"\b0\b", r"\b1\b"), fix=(r"device_put",))
def _():
    d = jax.devices()
    w = jax.device_put(jnp.ones(3), d[1])  #! device_mismatch
    x = jax.device_put(jnp.ones(3), d[0])  #! device_mismatch
    def f(x, w):
        return x * w
    jax.jit(U(f))(x, w)  #! device_mismatch


@case("mesh_mismatch", path=r"\bw\b", both=(r"\ba\b|device", r"\bb\b|device"), fix=(r"device_put|same mesh|one mesh",))
def _():
    m1 = jax.make_mesh((4,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    m2 = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("b",))
    x = jax.device_put(jnp.ones(8), jax.NamedSharding(m1, jax.P("a")))
    w = jax.device_put(jnp.ones(8), jax.NamedSharding(m2, jax.P("b")))  #! mesh_mismatch
    def f(x, w):
        return x * w
    jax.jit(U(f))(x, w)  #! mesh_mismatch


@case("device_put_divide", path=r"\bx\b", both=(r"\b6\b", r"\b4\b"), fix=(r"pad|divisible|P\(\)|reshape",))
def _():
    m = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jnp.ones((6, 2))
    jax.device_put(x, jax.NamedSharding(m, jax.P("d")))  #! device_put_divide


@case("constraint_rank", path=r"\bh\b", both=(r"'d', None|2", r"\[8\]|\(8,\)|rank 1|1"), fix=(r"P\('d'\)|reshape|dimension|drop|remove",))
def _():
    m = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    def f(x):
        h = x * 2
        return jax.lax.with_sharding_constraint(h, jax.NamedSharding(m, jax.P("d", None)))  #! constraint_rank
    jax.jit(U(f))(jnp.ones(8))


@case("explicit_contract", path=r"\bx\b|\bw\b", both=(r"d",), fix=(r"out_sharding|reshard|auto_axes",))
def _():
    m = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    x = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(m, jax.P(None, "d")))
    w = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(m, jax.P("d", None)))
    def f(x, w):
        return x @ w  #! explicit_contract
    with jax.set_mesh(m):
        jax.jit(U(f))(x, w)


@case("explicit_add", path=r"\bx\b|\by\b", both=(r"d",), fix=(r"reshard",))
def _():
    m = jax.make_mesh((2, 2), ("d", "e"), axis_types=(jax.sharding.AxisType.Explicit,) * 2)
    x = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(m, jax.P("d", None)))
    y = jax.device_put(jnp.ones((8, 8)), jax.NamedSharding(m, jax.P("e", None)))
    def f(x, y):
        return x + y  #! explicit_add
    with jax.set_mesh(m):
        jax.jit(U(f))(x, y)


@case("jit_out_shardings", path=r"out_shardings|result", both=(r"\b6\b", r"\b4\b"), fix=(r"pad|divisible|P\(\)",))
def _():
    m = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    def f(x):
        return x * 2
    jax.jit(U(f), out_shardings=jax.NamedSharding(m, jax.P("d")))(jnp.ones((6, 2)))  #! jit_out_shardings


@case("pcast_cond", path=r"\bx\b|branch|true_fun|false_fun", both=(r"\{V:d\}",), fix=(r"pcast|pvary|check_vma",))
def _():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    def f(x):
        return lax.cond(True, lambda v: v, lambda v: jnp.zeros(2), x)  #! pcast_cond
    jax.shard_map(U(f), mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))(jnp.ones(8))


@case("all_to_all_size", path=r"\bx\b|all_to_all", both=(r"\b3\b", r"\b4\b"), fix=(r"divisible|pad|tiled|multiple|reshape",))
def _():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    def f(x):
        return lax.all_to_all(x, "d", 1, 0, tiled=True)  #! all_to_all_size
    jax.shard_map(U(f), mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))(jnp.ones((8, 3)))


# ------------------------------------------------------------------ random
@case("key_reuse_checked", kind="run-time", path=r"\bkey\b", fix=(r"split|fold_in",))
def _():
    def init(key):
        w = jax.random.normal(key, (3,))
        b = jax.random.normal(key, (3,))  #! key_reuse_checked
        return w, b
    with jax.debug_key_reuse(True):
        jax.jit(U(init))(jax.random.key(0))


@case("key_reuse_eager_checked", kind="run-time", path=r"\bkey\b", fix=(r"split|fold_in",))
def _():
    with jax.debug_key_reuse(True):
        key = jax.random.key(0)
        a = jax.random.normal(key, (3,))
        b = jax.random.uniform(key, (3,))  #! key_reuse_eager_checked


@case("key_reuse_eager", kind="silent", path=r"\bkey\b", fix=(r"split|fold_in",))
def _():
    key = jax.random.PRNGKey(0)
    a = jax.random.normal(key, (3,))
    b = jax.random.uniform(key, (3,))  #! key_reuse_eager


@case("key_reuse_loop", kind="silent", path=r"\bkey\b", fix=(r"split|fold_in",))
def _():
    def walk(key, x):
        def step(x, _):
            return x + jax.random.normal(key), None  #! key_reuse_loop
        return lax.scan(step, x, None, length=10)[0]
    jax.jit(U(walk))(jax.random.key(0), 0.0)


@case("key_reuse_after_split", kind="silent", path=r"\bkey\b|rng", fix=(r"split|fold_in",))
def _():
    def init(rng):
        k1, k2 = jax.random.split(rng)
        w = jax.random.normal(k1, (3,))
        b = jax.random.normal(rng, (3,))  #! key_reuse_after_split
        return w, b
    jax.jit(U(init))(jax.random.PRNGKey(0))


@case("key_reuse_python_loop", kind="silent", path=r"\bkey\b", fix=(r"split|fold_in",))
def _():
    key = jax.random.key(0)
    xs = []
    for i in range(3):
        xs.append(jax.random.normal(key, (2,)))  #! key_reuse_python_loop


@case("key_int", path=r"\b42\b|seed|key", both=(r"int",), fix=(r"random\.key\(|PRNGKey\(",))
def _():
    def init(seed):
        return jax.random.normal(seed, (3,))  #! key_int
    init(42)


@case("key_shape", path=r"\bkeys\b", both=(r"\(4,\)|\[4\]", r"\(\)"), fix=(r"vmap|keys\[",))
def _():
    def init(keys):
        return jax.random.normal(keys, (3,))  #! key_shape
    jax.jit(U(init))(jax.random.split(jax.random.key(0), 4))


@case("key_old_shape", path=r"\bkeys\b", both=(r"\(4, ?2\)|\[4,2\]", r"\(2,\)|\(\)"), fix=(r"vmap|keys\[",))
def _():
    def init(keys):
        return jax.random.normal(keys, (3,))  #! key_old_shape
    jax.jit(U(init))(jax.random.split(jax.random.PRNGKey(0), 4))


@case("key_data_wrong", path=r"\bkey\b", both=(r"\(3,\)|float32", r"uint32|\(2,\)"), fix=(r"random\.key\(|PRNGKey\(",))
def _():
    def init(key):
        return jax.random.uniform(key, (3,))  #! key_data_wrong
    init(jnp.ones(3))


@case("key_arith", path=r"\bkey\b", both=(r"key<|key",), fix=(r"fold_in|split",))
def _():
    def step(key, i):
        return jax.random.normal(key + i)  #! key_arith
    jax.jit(U(step))(jax.random.key(0), 1)


@case("key_unpack", path=r"split|\bkey\b", both=(r"\b2\b", r"\b3\b"), fix=(r"split\(key, 3\)|num=3|, 3\)",))
def _():
    def init(key):
        a, b, c = jax.random.split(key)  #! key_unpack
        return a, b, c
    jax.jit(U(init))(jax.random.key(0))


# ------------------------------------------------------------------ checks, callbacks
@case("checkify_not_functionalized", path=r"check", fix=(r"checkify\.checkify\(",))
def _():
    from jax.experimental import checkify
    def f(x):
        checkify.check(x > 0, "x must be positive, got {x}", x=x)
        return jnp.log(x)
    jax.jit(U(f))(-1.0)  #! checkify_not_functionalized


@case("checkify_throw", kind="run-time", path=r"\bx\b", fix=(r"where|maximum|clip|eps",))
def _():
    from jax.experimental import checkify
    def f(x):
        return jnp.log(x)  #! checkify_throw
    err, y = checkify.checkify(jax.jit(U(f)), errors=checkify.float_checks)(-1.0)
    err.throw()


@case("checkify_index", kind="run-time", path=r"\bx\b", both=(r"\b7\b", r"\b3\b"), fix=(r"mode=|clip|where",))
def _():
    from jax.experimental import checkify
    def f(x, i):
        return x[i]  #! checkify_index
    err, y = checkify.checkify(jax.jit(U(f)), errors=checkify.index_checks)(jnp.arange(3.0), 7)
    err.throw()


@case("callback_raises", kind="run-time", path=r"\bhost\b", both=(r"KeyError",), fix=(r"host|callback",))
def _():
    table = {1.0: 2.0}
    def host(x):
        return np.float32(table[float(x)])  #! callback_raises
    def f(x):
        return jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x)
    jax.block_until_ready(jax.jit(U(f))(3.0))


@case("callback_dtype", kind="run-time", path=r"\bhost\b", both=(r"int32", r"float32"), fix=(r"astype|result_shape_dtypes|ShapeDtypeStruct",))
def _():
    def host(x):
        return np.asarray(x, np.int32) * 2  #! callback_dtype
    def f(x):
        return jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x)  #! callback_dtype
    jax.block_until_ready(jax.jit(U(f))(3.0))


@case("callback_grad", path=r"\bhost\b", fix=(r"custom_jvp|custom_vjp",))
def _():
    def host(x):
        return np.sin(x)
    def f(x):
        return jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x)  #! callback_grad
    jax.grad(U(f))(3.0)


@case("callback_vmap", path=r"\bhost\b", fix=(r"vmap_method=",))
def _():
    def host(x):
        return np.sin(x)
    def f(x):
        return jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x)  #! callback_vmap
    jax.vmap(U(f))(jnp.ones(3))


@case("callback_structure", kind="run-time", path=r"\bhost\b", both=(r"\b2\b|tuple",), fix=(r"result_shape_dtypes|ShapeDtypeStruct",))
def _():
    def host(x):
        return np.float32(1.0), np.float32(2.0)
    def f(x):
        return jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x)  #! callback_structure
    jax.block_until_ready(jax.jit(U(f))(1.0))


# ------------------------------------------------------------------ third-party primitives
def _new_prim(name, lower=True, impl=True, abstract=True):
    from jax.extend.core import Primitive
    p = Primitive(name)
    if impl:
        p.def_impl(lambda x, **kw: x * 2)
    if abstract:
        p.def_abstract_eval(lambda x, **kw: x)
    if lower:
        from jax.interpreters import mlir
        mlir.register_lowering(p, mlir.lower_fun(lambda x, **kw: x * 2, multiple_results=False))
    return p


@case("prim_no_batch", path=r"sow", fix=(r"primitive_batchers",))
def _():
    sow_p = _new_prim("sow_a")
    def f(x):
        return sow_p.bind(x)  #! prim_no_batch
    jax.vmap(U(f))(jnp.ones(3))


@case("prim_no_transpose", path=r"sow", fix=(r"primitive_transposes",))
def _():
    from jax.interpreters import ad
    p = _new_prim("sow_c")
    ad.primitive_jvps[p] = lambda xs, ts: (p.bind(*xs), p.bind(*ts))
    def f(x):
        return p.bind(x)  #! prim_no_transpose
    jax.grad(U(f))(1.0)


@case("prim_no_lowering", path=r"sow", fix=(r"register_lowering",))
def _():
    p = _new_prim("sow_d", lower=False)
    def f(x):
        return p.bind(x) + 1  #! prim_no_lowering
    jax.jit(U(f))(1.0)


@case("prim_no_impl", path=r"sow", fix=(r"def_impl",))
def _():
    p = _new_prim("sow_e", impl=False)
    def f(x):
        return p.bind(x) + 1  #! prim_no_impl
    f(1.0)


@case("prim_no_abstract", path=r"sow", fix=(r"def_abstract_eval",))
def _():
    p = _new_prim("sow_f", abstract=False)
    def f(x):
        return p.bind(x) + 1  #! prim_no_abstract
    jax.jit(U(f))(1.0)


# ------------------------------------------------------------------ resources
@case("recompile_dtype", kind="silent", path=r"\bx\b", both=(r"dtype|float32",), fix=(r"dtype|asarray|astype",))
def _():
    f = jax.jit(U(lambda x: (x * 2).sum()))
    for d in (np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, np.float16, np.float32, np.bool_):
        f(np.ones(3, d))  #! recompile_dtype


@case("recompile_static", kind="silent", path=r"\bn\b", both=(r"\b0\b", r"\b1\b"), fix=(r"static",))
def _():
    f = jax.jit(U(lambda x, n: x * n), static_argnames=("n",))  #! recompile_static
    for n in range(12):
        f(jnp.ones(3), n=n)  #! recompile_static


@case("recompile_lambda", kind="silent", path=r"lambda|function", fix=(r"outside|once",))
def _():
    x = jnp.ones(3)
    for i in range(12):
        jax.jit(U(lambda x: (x * 2).sum()))(x)  #! recompile_lambda


@case("recompile_partial", kind="silent", path=r"\bscale\b|step", fix=(r"argument|outside|once",))
def _():
    def step(x, scale):
        return x * scale
    x = jnp.ones(3)
    for i in range(12):
        jax.jit(partial(U(step), scale=float(i)))(x)  #! recompile_partial


@case("recompile_tree", kind="silent", path=r"\bxs\b", both=(r"\b1\b", r"\b2\b"), fix=(r"stack|pad",))
def _():
    f = jax.jit(U(lambda xs: sum(xs)))
    xs = []
    for i in range(12):
        xs.append(jnp.float32(i))
        f(xs)  #! recompile_tree


@case("recompile_weak", kind="silent", path=r"\bopts\b", fix=(r"__eq__|__hash__|frozen|hash",))
def _():
    class Options:
        def __init__(self, scale):
            self.scale = scale
    f = jax.jit(U(lambda x, opts: x * opts.scale), static_argnums=1)
    for i in range(12):
        f(jnp.ones(3), Options(2.0))  #! recompile_weak


@case("oom_grad", kind="run-time", path=r"\bpairwise\b|f32\[|float32\[", both=(r"\d+ ?(bytes|GiB|GB|TB|TiB)|\d{9,}",), fix=(r"scan|lax\.map|batch_size|checkpoint|remat|chunk",))
def _():
    def energy(x):
        d = x[:, None] - x[None, :]  #! oom_grad
        return jnp.sum(jnp.sort(d, axis=0)[0])
    jax.block_until_ready(jax.jit(jax.grad(U(energy)))(jnp.ones(400_000)))


@case("oom_eager", kind="run-time", path=r"\bx\b|float32\[", both=(r"\d{9,}",), fix=(r"scan|lax\.map|batch_size|checkpoint|remat|chunk",))
def _():
    x = jnp.ones(400_000)
    jax.block_until_ready(x[:, None] * x[None, :])  #! oom_eager


@case("donated_reuse", kind="run-time", path=r"\bstate\b", both=(r"\(8,\)|\[8\]",), fix=(r"donate_argn|copy|state = ",))
def _():
    def step(s):
        return s + 1
    f = jax.jit(U(step), donate_argnums=0)
    state = jnp.ones(8)
    new = f(state)
    print(state + new, file=sys.stderr)  #! donated_reuse


# ------------------------------------------------------------------ silent
@case("oob_scatter", kind="silent", path=r"\bx\b", both=(r"\b10\b", r"\b3\b"), fix=(r"mode=",))
def _():
    def put(x, i):
        return x.at[i].set(5.0)  #! oob_scatter
    jax.jit(U(put))(jnp.arange(3.0), 10)


@case("oob_eager", kind="silent", path=r"\btable\b", both=(r"\b8\b", r"\b5\b"), fix=(r"mode=",))
def _():
    table = jnp.arange(5.0)
    ids = jnp.array([1, 8, 2])
    table[ids]  #! oob_eager


@case("oob_scan", kind="silent", path=r"\bx\b", both=(r"\b5\b",), fix=(r"mode=",))
def _():
    def windows(x):
        def body(c, i):
            return c + x[i + 1], None  #! oob_scan
        return lax.scan(body, 0.0, jnp.arange(5))[0]
    jax.jit(U(windows))(jnp.arange(5.0))


@case("oob_dynamic_slice", kind="silent", path=r"\bx\b", both=(r"\b9\b", r"\b10\b"), fix=(r"pad|clip|bounds",))
def _():
    def window(x, i):
        return lax.dynamic_slice(x, (i,), (4,))  #! oob_dynamic_slice
    jax.jit(U(window))(jnp.arange(10.0), 9)


@case("oob_embedding", kind="silent", path=r"\['emb'\]|params", both=(r"\b120\b", r"\b100\b"), fix=(r"mode=",))
def _():
    def net(params, ids):
        h = params["emb"][ids]  #! oob_embedding
        return h.sum()
    jax.jit(jax.value_and_grad(U(net)))({"emb": jnp.ones((100, 4))}, jnp.array([3, 120, 7]))


@case("x64_truncated", kind="silent", path=r"int64", both=(r"int32",), fix=(r"enable_x64",))
def _():
    ids = np.array([2 ** 40 + 7, 3])
    jnp.asarray(ids)  #! x64_truncated


@case("x64_request", kind="silent", path=r"float64", both=(r"float32",), fix=(r"enable_x64",))
def _():
    jnp.zeros(3, dtype="float64")  #! x64_request


@case("int_overflow", path=r"3000000000", both=(r"int32",), fix=(r"enable_x64|uint32|float",))
def _():
    def f(x):
        return x + 3_000_000_000  #! int_overflow
    jax.jit(U(f))(jnp.arange(3))


# ------------------------------------------------------------------ second batch
@case("mesh_too_big", path=r"\(8,\)|make_mesh", both=(r"\b8\b", r"\b4\b"), fix=(r"device_count|XLA_FLAGS|smaller|make_mesh\(\(4",))
def _():
    jax.make_mesh((8,), ("d",))  #! mesh_too_big


@case("in_shardings_mismatch", path=r"\bx\b", both=(r"'d'", r"'e'|P\(\)|None"), fix=(r"device_put|in_shardings",))
def _():
    m = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(jnp.ones(8), jax.NamedSharding(m, jax.P("d")))
    f = jax.jit(U(lambda x: x * 2), in_shardings=jax.NamedSharding(m, jax.P()))  #! in_shardings_mismatch
    f(x)


@case("shard_map_other_mesh", path=r"\bx\b|argument", both=(r"\ba\b|\b4\b", r"\bb\b|\b2\b"), fix=(r"device_put|same mesh|one mesh|mesh=",))
def _():
    m1 = jax.make_mesh((4,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    m2 = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("b",))
    x = jax.device_put(jnp.ones(8), jax.NamedSharding(m2, jax.P("b")))  #! shard_map_other_mesh
    f = jax.jit(jax.shard_map(U(lambda x: x * 2), mesh=m1, in_specs=jax.P("a"), out_specs=jax.P("a")))  #! shard_map_other_mesh
    f(x)  #! shard_map_other_mesh


@case("spec_unknown_axis", path=r"'model'", both=(r"model", r"'d'"), fix=(r"'d'|make_mesh|rename",))
def _():
    m = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    s = jax.NamedSharding(m, jax.P("model"))  #! spec_unknown_axis
    jax.device_put(jnp.ones(8), s)


@case("shard_map_no_mesh", path=r"mesh", fix=(r"mesh=|set_mesh",))
def _():
    f = jax.shard_map(U(lambda x: x * 2), in_specs=jax.P("d"), out_specs=jax.P("d"))  #! shard_map_no_mesh
    f(jnp.ones(8))  #! shard_map_no_mesh


@case("shard_map_missing_psum_scan", path=r"carry", both=(r"\{V:d\}",), fix=(r"pcast|pvary|check_vma|psum",))
def _():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    def f(x):
        def body(acc, v):
            return acc + v, None
        total, _ = lax.scan(body, jnp.zeros(()), x)  #! shard_map_missing_psum_scan
        return total[None]
    jax.shard_map(U(f), mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))(jnp.ones(8))


@case("psum_in_jit", path=r"psum", both=(r"'?i'?",), fix=(r"axis_name=|shard_map",))
def _():
    def f(x):
        return lax.psum(x, "i")  #! psum_in_jit
    jax.jit(U(f))(jnp.ones(4))


@case("ppermute_bad", path=r"perm|ppermute", fix=(r"each|once|distinct|unique",))
def _():
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    def f(x):
        return lax.ppermute(x, "d", [(0, 1), (1, 1)])  #! ppermute_bad
    jax.shard_map(U(f), mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d"))(jnp.ones(8))


@case("pmap_axis_unbound", path=r"pmean", both=(r"dev",), fix=(r"axis_name=",))
def _():
    def f(x):
        return lax.pmean(x, "dev")
    jax.pmap(U(f))(jnp.ones((4, 2)))  #! pmap_axis_unbound


@case("nan_pmap", kind="run-time", path=r"device|\bx\b", fix=(r"where|maximum|clip|eps",))
def _():
    def f(x):
        return jnp.log(x)  #! nan_pmap
    with jax.debug_nans(True):
        jax.pmap(U(f))(jnp.arange(8.0).reshape(4, 2) - 1)


@case("nan_custom_vjp", kind="run-time", path=r"gradient|derivative|\bx\b", fix=(r"where|maximum|clip|eps",))
def _():
    @jax.custom_vjp
    def norm(x):
        return jnp.sqrt(jnp.sum(x * x))
    def fwd(x):
        n = norm(x)
        return n, (x, n)
    def bwd(res, g):
        x, n = res
        return (g * x / n,)  #! nan_custom_vjp
    norm.defvjp(fwd, bwd)
    with jax.debug_nans(True):
        jax.jit(jax.grad(lambda x: norm(x)))(jnp.zeros(3))


@case("nan_static", kind="run-time", path=r"\bx\b", fix=(r"where|maximum|clip|eps",))
def _():
    def f(x, n, mode):
        for _ in range(n):
            x = jnp.log(x) if mode == "log" else x  #! nan_static
        return x
    with jax.debug_nans(True):
        jax.jit(U(f), static_argnums=(1, 2))(jnp.float32(2.0), 3, "log")


@case("nan_eager_loop", kind="run-time", path=r"\bw\b|gradient|\bx\b", fix=(r"where|maximum|clip|eps|step size|smaller|overflow",))
def _():
    def loss(w):
        return jnp.sum(w ** 4)  #! nan_eager_loop
    w = jnp.ones(2)
    with jax.debug_nans(True):
        for _ in range(9):
            w = w - 200.0 * jax.grad(U(loss))(w)  #! nan_eager_loop


@case("nan_division", kind="run-time", path=r"\bcounts\b|\btotal\b", fix=(r"where|maximum|clip|eps",))
def _():
    @jax.jit
    def mean(total, counts):
        return total / counts  #! nan_division
    with jax.debug_nans(True):
        mean(jnp.array([0.0, 2.0]), jnp.array([0.0, 2.0]))


@case("key_swapped", path=r"\(3,\)|shape", both=(r"\(3,\)|tuple",), fix=(r"random\.key\(|first|order",))
def _():
    key = jax.random.key(0)
    jax.random.normal((3,), key)  #! key_swapped


@case("key_seed_float", path=r"1\.5|seed", both=(r"float",), fix=(r"int",))
def _():
    jax.random.key(1.5)  #! key_seed_float


@case("key_element", path=r"\bkey\b|key\[0\]", both=(r"\(\)|\[\]", r"\(2,\)"), fix=(r"split|random\.key\(|pass `?key`?",))
def _():
    key = jax.random.PRNGKey(0)
    jax.random.normal(key[0], (3,))  #! key_element


@case("key_array_numpy", path=r"\bkey\b", both=(r"key<|key",), fix=(r"key_data",))
def _():
    key = jax.random.key(0)
    np.asarray(key)  #! key_array_numpy


@case("key_choice", path=r"\bkey\b|\bitems\b", fix=(r"key|first",))
def _():
    items = jnp.arange(5)
    jax.random.choice(items, 3)  #! key_choice


@case("key_reuse_train", kind="silent", path=r"\bkey\b", fix=(r"split|fold_in",))
def _():
    def loss(w, x, key):
        mask = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.sum((x * mask * w) ** 2)
    step = jax.jit(U(lambda w, x, key: w - 0.1 * jax.grad(loss)(w, x, key)))
    key, w, x = jax.random.key(0), jnp.ones(3), jnp.ones(3)
    for i in range(4):
        w = step(w, x, key)  #! key_reuse_train


@case("key_reuse_two_inits", kind="silent", path=r"\bkey\b", fix=(r"split|fold_in",))
def _():
    def dense(key, n, m):
        return jax.random.normal(key, (n, m)) / n
    def init(key):
        return {"a": dense(key, 3, 4), "b": dense(key, 4, 5)}  #! key_reuse_two_inits
    jax.jit(U(init))(jax.random.key(0))


@case("key_reuse_split_twice", kind="silent", path=r"\bkey\b", fix=(r"split|fold_in",))
def _():
    key = jax.random.key(0)
    k1, k2 = jax.random.split(key)
    k3, k4 = jax.random.split(key)  #! key_reuse_split_twice


@case("callback_debug_raises", kind="run-time", path=r"\blog\b", both=(r"ZeroDivisionError|division",), fix=(r"host|callback",))
def _():
    def log(x):
        print(1 / int(x - x), file=sys.stderr)  #! callback_debug_raises
    def f(x):
        jax.debug.callback(log, x)
        return x * 2
    jax.block_until_ready(jax.jit(U(f))(3.0))
    jax.effects_barrier()


@case("callback_io_vmap", path=r"\blog\b|io_callback", fix=(r"ordered=False",))
def _():
    from jax.experimental import io_callback
    def log(x):
        return np.float32(0)
    def f(x):
        return io_callback(log, jax.ShapeDtypeStruct((), jnp.float32), x, ordered=True)  #! callback_io_vmap
    jax.vmap(U(f))(jnp.ones(3))


@case("callback_none", kind="run-time", path=r"\bhost\b", both=(r"None",), fix=(r"return|result_shape",))
def _():
    def host(x):
        np.sin(x)
    def f(x):
        return jax.pure_callback(host, jax.ShapeDtypeStruct((3,), jnp.float32), x)  #! callback_none
    jax.block_until_ready(jax.jit(U(f))(jnp.ones(3)))


@case("callback_scan", kind="run-time", path=r"\bhost\b", both=(r"\(2,\)", r"\(\)"), fix=(r"result_shape_dtypes|ShapeDtypeStruct",))
def _():
    def host(x):
        return np.ones(2, np.float32)
    def body(c, x):
        return c + jax.pure_callback(host, jax.ShapeDtypeStruct((), jnp.float32), x), None  #! callback_scan
    jax.block_until_ready(jax.jit(lambda xs: lax.scan(U(body), 0.0, xs)[0])(jnp.ones(3)))


@case("no_tracing", path=r"\bx\b", both=(r"\(3,\)|\[3\]", r"\(4,\)|\[4\]"), fix=(r"pad|same|bucket",))
def _():
    f = jax.jit(U(lambda x: x * 2))
    a, b = jnp.ones(3), jnp.ones(4)
    f(a)
    with jax.no_tracing(True) if hasattr(jax, "no_tracing") else jax._src.config.no_tracing(True):
        f(b)  #! no_tracing


@case("transfer_guard", kind="run-time", path=r"\bx\b|\bbatch\b", both=(r"float32\[3\]|\(3,\)|float64",), fix=(r"device_put",))
def _():
    f = jax.jit(U(lambda x: x * 2))
    batch = np.ones(3, np.float32)
    with jax.transfer_guard("disallow"):
        f(batch)  #! transfer_guard


@case("explain_misses", kind="silent", path=r"\bx\b", both=(r"shape|\[\d\]",), fix=(r"pad|bucket",))
def _():
    f = jax.jit(U(lambda x: (x * 2).sum()))
    with jax.explain_cache_misses(True) if hasattr(jax, "explain_cache_misses") else jax._src.config.explain_cache_misses(True):
        for n in (3, 4, 5, 6, 7, 8):
            f(np.ones(n, np.float32))  #! explain_misses


@case("recompile_python_scalar", kind="silent", path=r"\blr\b", fix=(r"asarray|array|dtype",))
def _():
    f = jax.jit(U(lambda w, lr: w * lr))
    for lr in (1, 1.0, True, np.float32(1), jnp.float32(1), np.int32(1), 1j):
        f(jnp.ones(3), lr)  #! recompile_python_scalar


@case("recompile_method", kind="silent", path=r"\bscale\b|self|step|function", fix=(r"once|outside|static|argument",))
def _():
    class Model:
        def __init__(self, scale):
            self.scale = scale
        def step(self, x):
            return x * self.scale
    for i in range(8):
        m = Model(float(i))
        jax.jit(m.step)(jnp.ones(3))  #! recompile_method


@case("recompile_closure", kind="silent", path=r"\bi\b", fix=(r"argument|once",))
def _():
    x = jnp.ones(3)
    for i in range(9):
        def f(x):
            return x + i
        jax.jit(U(f))(x)  #! recompile_closure


@case("recompile_kwargs", kind="silent", path=r"\bn\b", both=(r"\b3\b",), fix=(r"static",))
def _():
    @partial(jax.jit, static_argnums=0)  #! recompile_kwargs
    def zeros(n):
        return jnp.zeros(n)
    for n in range(3, 13):
        zeros(n)  #! recompile_kwargs


@case("recompile_grad", kind="silent", path=r"\bx\b", both=(r"\(3,\)|shape",), fix=(r"pad|bucket",))
def _():
    loss = jax.jit(U(lambda w, x: (w * x).sum()))
    for n in range(3, 13):
        jax.grad(loss)(1.0, np.ones(n, np.float32))  #! recompile_grad


@case("donated_argnames", kind="run-time", path=r"params\['w'\]|params", both=(r"\(3, 2\)|\[3,2\]",), fix=(r"donate_argn|copy|params = ",))
def _():
    @partial(jax.jit, donate_argnames=("params",))
    def update(params, g):
        return jax.tree.map(lambda p: p - g, params)
    params = {"w": jnp.ones((3, 2)), "b": jnp.ones(2)}
    new = update(params, 0.1)
    norm = jnp.sum(params["w"])  #! donated_argnames


@case("donated_print", kind="run-time", path=r"\bbuf\b", fix=(r"donate_argn|copy|buf = ",))
def _():
    f = jax.jit(U(lambda b: b.at[0].set(1.0)), donate_argnums=0)
    buf = jnp.zeros(4)
    out = f(buf)
    np.asarray(buf)  #! donated_print


@case("donated_alias", kind="run-time", path=r"\bx\b|\by\b", fix=(r"donate_argn|copy",))
def _():
    f = jax.jit(U(lambda a, b: a + b), donate_argnums=0)
    x = jnp.ones(4)
    y = x
    f(x, y)  #! donated_alias


@case("oom_scan", kind="run-time", path=r"float32\[|\bys\b", both=(r"\d{9,}|GB|TB",), fix=(r"scan|lax\.map|batch_size|checkpoint|chunk",))
def _():
    def step(c, _):
        return c * 1.01, c  #! oom_scan
    def f(x):
        return lax.scan(step, x, None, length=10_000_000)[1]
    jax.block_until_ready(jax.jit(U(f))(jnp.ones(100_000)))


@case("oom_zeros", kind="run-time", path=r"float32\[|table", both=(r"\d{9,}|GB|TB",), fix=(r"scan|lax\.map|batch_size|chunk|smaller",))
def _():
    table = jnp.zeros((500_000, 500_000))  #! oom_zeros


@case("oob_negative", kind="silent", path=r"\bx\b", both=(r"-7", r"\b3\b"), fix=(r"mode=",))
def _():
    def pick(x, i):
        return x[i]  #! oob_negative
    jax.jit(U(pick))(jnp.arange(3.0), -7)


@case("oob_take", kind="silent", path=r"\bx\b", both=(r"\b9\b", r"\b3\b"), fix=(r"mode=",))
def _():
    def pick(x, i):
        return jnp.take(x, i)  #! oob_take
    jax.jit(U(pick))(jnp.arange(3.0), 9)


@case("oob_2d", kind="silent", path=r"\bm\b", both=(r"\b5\b", r"\b4\b"), fix=(r"mode=",))
def _():
    def pick(m, i, j):
        return m[i, j]  #! oob_2d
    jax.jit(U(pick))(jnp.ones((3, 4)), 1, 5)


@case("oob_vmap", kind="silent", path=r"\bx\b", both=(r"\b6\b", r"\b4\b"), fix=(r"mode=",))
def _():
    def pick(x, i):
        return x[i]  #! oob_vmap
    jax.vmap(U(pick))(jnp.ones((3, 4)), jnp.array([0, 6, 1]))


@case("oob_while", kind="silent", path=r"\bx\b", both=(r"\b4\b",), fix=(r"mode=",))
def _():
    def total(x):
        def body(s):
            i, acc = s
            return i + 1, acc + x[i]  #! oob_while
        return lax.while_loop(lambda s: s[0] <= 4, body, (0, 0.0))[1]
    jax.jit(U(total))(jnp.ones(4))


@case("oob_static", kind="silent", path=r"\bx\b", both=(r"\b10\b", r"\b3\b"), fix=(r"mode=",))
def _():
    def pick(x):
        return x[10]  #! oob_static
    jax.jit(U(pick))(jnp.arange(3.0))


@case("oob_add", kind="silent", path=r"\bhist\b", both=(r"\b8\b", r"\b4\b"), fix=(r"mode=",))
def _():
    def count(hist, bins):
        return hist.at[bins].add(1)  #! oob_add
    jax.jit(U(count))(jnp.zeros(4, jnp.int32), jnp.array([0, 1, 8]))


@case("oob_label", kind="silent", path=r"\blogp\b", both=(r"\b10\b",), fix=(r"mode=|one_hot|clip|correct",))
def _():
    def nll(logits, labels):
        logp = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(logp, labels[:, None], axis=1).mean()  #! oob_label
    jax.jit(U(nll))(jnp.ones((2, 10)), jnp.array([3, 10]))


@case("x64_request_eager", kind="silent", path=r"float64|int64", both=(r"float32|int32",), fix=(r"enable_x64",))
def _():
    x = jnp.arange(3)
    x.astype("int64")  #! x64_request_eager


@case("int_np_overflow", kind="silent", path=r"\bstamp\b|\bt\b", both=(r"int32",), fix=(r"enable_x64",))
def _():
    stamp = np.int64(1_700_000_000_000)
    jax.jit(U(lambda t: t + 1))(stamp)  #! int_np_overflow


@case("uint_wrap", kind="trace-time", path=r"300", both=(r"uint8",), fix=(r"dtype|wider|astype|int32",))
def _():
    jnp.array([300, 2], dtype=jnp.uint8)  #! uint_wrap


@case("prim_no_batch_scan", path=r"sow", fix=(r"primitive_batchers",))
def _():
    sow_p = _new_prim("sow_g")
    def body(c, x):
        return c + sow_p.bind(x), None  #! prim_no_batch_scan
    jax.jit(jax.vmap(lambda xs: lax.scan(U(body), 0.0, xs)[0]))(jnp.ones((2, 3)))


@case("prim_no_jvp_scan", path=r"sow", fix=(r"primitive_jvps|custom_jvp",))
def _():
    sow_p = _new_prim("sow_h")
    def body(c, x):
        return c + sow_p.bind(x), None  #! prim_no_jvp_scan
    jax.jit(jax.grad(lambda xs: lax.scan(U(body), 0.0, xs)[0]))(jnp.ones(3))


@case("prim_in_function", path=r"sow", fix=(r"primitive_transposes",))
def _():
    from jax.interpreters import ad
    sow_p = _new_prim("sow_i")
    ad.primitive_jvps[sow_p] = lambda xs, ts: (sow_p.bind(*xs), sow_p.bind(*ts))
    def sow(x):
        return sow_p.bind(x)  #! prim_in_function
    def model(x):
        return jnp.sin(sow(x)).sum()
    jax.jit(jax.grad(U(model)))(jnp.ones(3))


@case("ordered_devices", path=r"debug|print", fix=(r"ordered=False|single|one device",))
def _():
    m = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    x = jax.device_put(jnp.ones(8), jax.NamedSharding(m, jax.P("d")))
    def f(x):
        jax.debug.print("{}", x.sum(), ordered=True)  #! ordered_devices
        return x
    jax.jit(U(f))(x)


# ------------------------------------------------------------------ donated arrays, later calls and blocks
@case("donated_later_call", kind="run-time", path=r"`b`.*argument `state`", both=(r"update\(b, 1\.0\)",), fix=(r"jnp\.copy\(b\)",), wrong=r"a = update")
def _():
    @partial(jax.jit, donate_argnums=0)
    def update(state, g):
        return state - g
    a = jnp.ones(3)
    for _ in range(3):
        a = update(a, 1.0)
    b = jnp.zeros(3)
    c = update(b, 1.0)  #! donated_later_call
    b + c  #! donated_later_call


@case("deleted_by_hand", kind="run-time", path=r"`b`", fix=(r"jnp\.copy\(b\)",), wrong=r"update")
def _():
    @partial(jax.jit, donate_argnums=0)
    def update(state, g):
        return state - g
    update(jnp.ones(3), 1.0)
    b = jnp.zeros(3)
    b.delete()
    b + 1  #! deleted_by_hand


# ------------------------------------------------------------------ gradients of trees
@case("vjp_missing_key", path=r"p\['b'\]", both=(r"keys 'a'", r"'a', 'b'"), fix=(r"'b': \.\.\.",), wrong=r"tuple of 1, but")
def _():
    @jax.custom_vjp
    def f(p):
        return (p["a"] * p["b"]).sum()
    def bwd(p, g):
        return ({"a": g * p["b"]},)  #! vjp_missing_key
    f.defvjp(lambda p: (f(p), p), bwd)
    jax.grad(f)({"a": jnp.ones(3), "b": jnp.ones(3)})


@case("vjp_transposed", path=r"\bw\b", both=(r"float32\[3,2\]", r"float32\[2,3\]"), fix=(r"jnp\.outer\(x, g\)\.T",), wrong=r"axis=\(0, 1\)")
def _():
    @jax.custom_vjp
    def f(w, x):
        return w @ x
    def bwd(res, g):
        w, x = res
        return jnp.outer(x, g), w.T @ g  #! vjp_transposed
    f.defvjp(lambda w, x: (w @ x, (w, x)), bwd)
    jax.grad(lambda w: f(w, jnp.ones(3)).sum())(jnp.ones((2, 3)))


# ------------------------------------------------------------------ settings, statics, matrices
@case("rank_promotion", path=r"`b`", both=(r"\(3, 4\)", r"\(4,\)"), fix=(r"b\[None, :\]",), wrong=r"do not broadcast: ")
def _():
    a, b = jnp.ones((3, 4)), jnp.ones(4)
    with jax.numpy_rank_promotion("raise"):
        a + b  #! rank_promotion


@case("static_method", path=r"\btrain\b", fix=(r"static_argnums=\(0, 2\)",), wrong=r"static_argnums=0, static_argnames")
def _():
    class Net:
        @partial(jax.jit, static_argnums=0)
        def __call__(self, x, train):
            if train:  #! static_method
                x = x * 2
            return x
    Net()(jnp.ones(2), True)


@case("inverse_of_wide", path=r"`a`", both=(r"\b2\b", r"\b3\b"), fix=(r"pinv\(a\)",))
def _():
    a = jnp.ones((2, 3))
    jnp.linalg.inv(a)  #! inverse_of_wide


@case("switch_sizes", path=r"branch 1", both=(r"float32\[3\]", r"float32\[2\]"), fix=(r"jnp\.pad\(x\[:2\], \(0, 1\)\)",), wrong=r"\.sum\(\) or")
def _():
    lax.switch(1, [lambda x: x, lambda x: x[:2], lambda x: x], jnp.ones(3))  #! switch_sizes


@case("shard_map_explicit", path=r"argument `r`", both=(r"P\(None,\)", r"P\('x',\)"), fix=(r"jax\.reshard\(rows",))
def _():
    mesh, rows = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,)), jnp.ones(8)
    jax.shard_map(lambda r: r * 2, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x"))(rows)  #! shard_map_explicit


@case("leak_in_dict", path=r"box\.log", fix=(r"has_aux|return it",), wrong=r"drop float")
def _():
    class Box:
        log = {}
    box = Box()
    def loss(w):
        box.log["norm"] = jnp.sum(w ** 2)  #! leak_in_dict
        return box.log["norm"]
    jax.grad(loss)(jnp.ones(3))
    float(box.log["norm"])


@case("sorted_list", path=r"x\[0\]", fix=(r"jnp\.sort\(jnp\.stack",))
def _():
    def f(x):
        return sorted([x[0], x[1]])  #! sorted_list
    jax.jit(U(f))(jnp.ones(2))


@case("concatenate_inline", path=r"jnp\.ones\(\(2, 5\)\)", both=(r"\(3, 4\)", r"\(2, 5\)"), fix=(r"axis=",))
def _():
    def f(x):
        return jnp.concatenate([x, jnp.ones((2, 5))], axis=0)  #! concatenate_inline
    jax.jit(U(f))(jnp.ones((3, 4)))


# ------------------------------------------------------------------ libraries
if find_spec("flax"):
    @case("flax_width", path=r"params\['kernel'\]", both=(r"\(3, 4\)", r"\(5, 4\)"), fix=(r"width 3",))
    def _():
        import flax.linen as nn
        net = nn.Dense(4)
        params = net.init(jax.random.key(0), jnp.ones((2, 3)))
        jax.jit(net.apply)(params, jnp.ones((2, 5)))  #! flax_width


if find_spec("optax"):
    @case("optax_state", path=r"st\[0\]\.mu", both=(r"grads\['b'\]",), fix=(r"\.init",))
    def _():
        import optax
        tx, grads = optax.adam(1e-3), {"w": jnp.ones(3), "b": jnp.ones(2)}
        st = tx.init({"w": jnp.ones(3)})
        tx.update(grads, st)  #! optax_state


if find_spec("equinox"):
    @case("equinox_batch", path=r"\bnet\b", both=(r"\(3,\)", r"\(5, 3\)"), fix=(r"jax\.vmap\(net\)",))
    def _():
        import equinox as eqx
        net, x = eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(0)), jnp.ones((5, 3))
        net(x)  #! equinox_batch


if __name__ == "__main__":
    harness.main()
