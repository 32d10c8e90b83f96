"""Host statements give what JAX gives: values, types, weakness and errors, but in NumPy."""

import inspect
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from malleable import compat
from malleable.execution.host import host
from malleable.execution.host.table import METHODS, TABLE

X = np.array([3.0, -1.0, np.nan, 0.5, -0.0], np.float32)
Z = np.arange(12, dtype=np.float32).reshape(3, 4)
INTS = np.array([2, -7, 0, 5, 2], np.int32)
SMALL = np.array([1, 200, 7, 0, 3], np.uint8)
MASK = np.array([True, False, True, True, False])
HALF = np.array([0.5, 2.0, -3.0, 1e3, 0.0], np.float16)
SIZE = np.array(4, np.int32)


def name_of(fun):
    """Its name for a test id, of a ufunc of JAX too: the same in each process."""
    return f"{getattr(fun, '__module__', '')}.{getattr(fun, '__name__', type(fun).__name__)}"


def is_array(x):
    return type(x) is np.ndarray


def to_jax(tree):
    return jax.tree.map(lambda x: jnp.asarray(x) if is_array(x) else x, tree)


def to_raw(tree):
    return jax.tree.map(lambda x: host.own(x.copy()) if is_array(x) else x, tree)


def assert_same(found, due):
    ours, theirs = jax.tree.leaves(found), jax.tree.leaves(due)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        if not isinstance(other, jax.Array):
            assert type(one) is type(other) and one == other
            continue
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        weak = other.weak_type and other.dtype != bool
        assert weak == (isinstance(one, jax.Array) and one.weak_type)
        wide = "c16" if one.dtype.kind == "c" else "f8"
        near = 1e-2 if one.dtype.itemsize == 2 else 1e-5
        one, other = np.asarray(one).astype(wide), np.asarray(other).astype(wide)
        np.testing.assert_allclose(one, other, near, near)


def assert_same_call(fun, *args, numpy=True, **params):
    """`fun` in NumPy equals `fun` of JAX; it is in NumPy unless told."""
    due = fun(*to_jax(args), **to_jax(params))
    if numpy:
        assert_same(host.QUIET.run(TABLE[fun], *to_raw(args), **to_raw(params)), due)
    assert_same(host.call(fun, *to_raw(args), **to_raw(params)), due)
    assert_same(host.call(fun, *to_jax(args), **to_jax(params)), due)


CALLS = {
    "nonzero": [(MASK,), (Z,)],
    "where": [(MASK, X, 2), (MASK, 1, 0), (MASK, HALF, INTS), (INTS, 1.5, INTS)],
    "argwhere": [(Z,)],
    "unique": [(X, True, True, True)],
    "intersect1d": [(INTS, INTS + 2)],
    "setdiff1d": [(INTS, INTS + 2)],
    "isin": [(INTS, SMALL), (X, INTS)],
    "compress": [(MASK, X)],
    "repeat": [(Z, 2), (Z, np.array([1, 0, 2], np.int32), 0)],
    "delete": [(X, 1), (Z, np.array([0, 2], np.int32), 1)],
    "bincount": [(np.abs(INTS),)],
    "take": [(Z, np.array([0, -1], np.int32), 1)],
    "sort": [(X,), (SMALL,)],
    "argsort": [(X,), (Z, 0)],
    "searchsorted": [(np.sort(X), X), (np.sort(INTS), 2.5)],
    "arange": [(4,), (SIZE,), (2, 9, 3)],
    "linspace": [(0, 1, 5), (0.0, 2, SIZE)],
    "zeros": [((SIZE, 2),), (3, "int32"), (3, float)],
    "full": [(3, 1.0), ((2, SIZE), np.float32(2)), (3, 1, "int8")],
    "eye": [(3,), (SIZE, 2)],
    "asarray": [
        ([1, 2],),
        ([1, 2.5],),
        (2.5,),
        ([np.float32(1), 2],),
        ([SIZE, 2],),
        (np.arange(3),),
    ],
    "concatenate": [([X, INTS],), ([HALF, SMALL],), ([Z, Z], 1)],
    "stack": [([X, INTS],), ([SIZE, 1],)],
    "split": [(X, np.array([1, 3], np.int32))],
    "reshape": [(Z, (SIZE, -1)), (Z, -1)],
    "pad": [(Z, ((1, 0), (0, 2)))],
    "sum": [(INTS,), (MASK,), (HALF,), (Z, 0), (Z, (0, 1))],
    "mean": [(INTS,), (HALF,), (Z, 1)],
    "var": [(Z, 0), (INTS,)],
    "max": [(X,), (SMALL,)],
    "argmax": [(X,), (Z, 1)],
    "cumsum": [(INTS,), (MASK,), (Z, 0)],
    "median": [(Z,), (INTS.astype("f"),)],
    "quantile": [(Z, 0.3), (Z, np.array([0.1, 0.9], np.float32), 1)],
    "clip": [(X, 0, 1), (SMALL, 2, None)],
    "sqrt": [(INTS,), (X,), (2.0,)],
    "abs": [(X,), (INTS,)],
    "maximum": [(X, 0), (INTS, 0.5)],
    "power": [(X, 2), (INTS, 2)],
    "matmul": [(Z, Z.T)],
    "float32": [(INTS,)],
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_gives_what_jax_gives(name):
    for args in CALLS[name]:
        assert_same_call(getattr(jnp, name), *args)


def test_functions_of_other_modules():
    assert_same_call(jax.nn.one_hot, INTS, SIZE)
    assert_same_call(jax.ops.segment_sum, X, np.array([0, 1, 1, 5, 0], np.int32), num_segments=SIZE)
    assert_same_call(jax.lax.top_k, INTS, 2)
    assert_same_call(jnp.linalg.norm, Z, axis=1)


@pytest.mark.parametrize("name", ["add", "true_divide", "floor_divide", "mod", "power", "less"])
def test_operands_promote_as_in_jax(name):
    fun = getattr(jnp, name)
    for a, b in [(INTS, 2.5), (INTS, X), (SMALL, 3), (3, HALF), (HALF, SMALL), (1.5, INTS)]:
        due = fun(*to_jax((a, b)))
        assert_same(host.call(fun, *to_raw((a, b))), due)
        assert_same(host.call(fun, *to_jax((a, b))), due)


def test_a_weak_result_stays_weak():
    half = host.call(jnp.multiply, host.own(INTS.copy()), 0.5)
    assert half.weak_type
    assert host.call(jnp.add, half, host.own(HALF.copy())).dtype == np.float16


def test_what_python_numbers_do_to_small_integers():
    for fun, number in [(jnp.add, 1000), (jnp.less, -3), (jnp.equal, 300)]:
        assert_same(host.call(fun, host.own(SMALL.copy()), number), fun(jnp.asarray(SMALL), number))


INDICES = [
    *(2, -1, 9, -9, slice(1, 3), slice(None, None, -1), None, ..., (), True),
    *((0, None), (..., 1), slice(SIZE, None), np.array([0, 2, -1], np.int32)),
    *(np.array([7, 0], np.int32), np.array([[0, 1]], np.int32), np.array([1, 2])),
    *(np.array([True, False, True]), (np.array([True, False, True]), 0), Z > 4),
    *((np.array([0, 1], np.int32), slice(None), None), (slice(None), np.array([1, 1], np.int32))),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_an_index_gives_what_jax_gives(index):
    due = jnp.asarray(Z)[to_jax(index)]
    assert_same(host.getitem(host.own(Z.copy()), to_raw(index)), due)
    assert_same(host.getitem(jnp.asarray(Z), to_jax(index)), due)


@pytest.mark.parametrize("index", [[0, 1], 1.0, "a", (0, 0, 0), np.ones(5, bool)], ids=str)
def test_a_wrong_index_is_an_error_of_jax(index):
    with pytest.raises((TypeError, IndexError)) as due:
        jnp.asarray(Z)[to_jax(index)]
    with pytest.raises(due.type) as found:
        host.getitem(host.own(Z.copy()), to_raw(index) if is_array(index) else index)
    assert str(found.value) == str(due.value)


def test_a_mask_of_many_elements():
    x = np.arange(6000, dtype=np.float32).reshape(2000, 3)
    for mask in (x[:, 0] % 2 == 0, x % 2 == 0):
        assert_same(host.getitem(*to_raw((x, mask))), jnp.asarray(x[mask]))


def test_errors_are_those_of_jax():
    for fun, args in [(jnp.sum, ([1, 2],)), (jnp.concatenate, ([],)), (jnp.sum, (X, 3))]:
        with pytest.raises((TypeError, ValueError)) as due:
            fun(*to_jax(args))
        with pytest.raises(due.type) as found:
            host.call(fun, *to_raw(args))
        assert str(found.value) == str(due.value)


def test_methods():
    x, due = host.own(Z.copy()), jnp.asarray(Z)
    assert_same(host.method(x, "sum", axis=0), due.sum(axis=0))
    assert_same(host.method(x, "reshape", SIZE, -1), due.reshape(4, -1))
    assert_same(host.method(x, "astype", jnp.int32), due.astype(jnp.int32))
    assert host.method(x, "tolist") == due.tolist()
    with pytest.raises(AttributeError, match="ArrayImpl"):
        host.method(x, "bogus")


def test_numbers_come_out_of_scalars_only():
    assert host.call(int, host.own(SIZE.copy())) == 4
    assert host.call(float, jnp.asarray(2.5)) == 2.5
    with pytest.raises(TypeError, match="scalar"):
        host.call(float, host.own(X.copy()))


def test_an_array_of_the_user_stays_of_numpy():
    x = np.arange(3.0)
    assert host.getitem(x, [0, 1]).dtype == np.float64
    assert host.method(x, "sum").dtype == np.float64
    seen, copied = (host.call(f, host.own(X.copy())) for f in (np.asarray, np.array))
    assert not host.is_raw(seen) and not host.is_raw(copied)
    assert copied.flags.writeable and not seen.flags.writeable  # as NumPy has them of JAX's
    assert host.call(id, x) == id(x)


def test_a_result_does_not_share_memory_with_the_user():
    x = np.arange(4.0, dtype=np.float32)
    y, z = host.call(jnp.reshape, x, (2, 2)), host.arrive(x)
    x[:] = 7
    assert y.tolist() == [[0, 1], [2, 3]] and z.tolist() == [0, 1, 2, 3]


def test_results_are_raw_and_arrive():
    x = host.call(jnp.cumsum, host.own(X.copy()))
    assert host.is_raw(x) and not x.flags.writeable
    there = host.arrive_all([x, {"a": (x, 1)}, slice(host.own(SIZE.copy()))])
    assert isinstance(there[0], jax.Array) and isinstance(there[1]["a"][0], jax.Array)
    assert there[2].stop == 4 and isinstance(there[2].stop, jax.Array)
    assert is_array(host.host_value(there)[0])
    assert not compat.put(x).weak_type and compat.put(x, weak=True).weak_type


def test_under_a_transformation_jax_runs():
    x = host.own(Z.copy())

    def loss(w):
        y = host.call(jnp.multiply, w, x)
        return host.call(jnp.sum, host.getitem(y, x > 4))

    found = jax.grad(loss)(jnp.asarray(Z))
    assert found.tolist() == jnp.where(Z > 4, Z, 0).tolist()
    assert jax.jit(lambda w: host.call(jnp.sum, w))(Z) == Z.sum()


def test_arrays_of_other_devices_go_to_jax():
    x = jax.device_put(jnp.asarray(Z), jax.devices()[1])
    for found in (host.getitem(x, 0), host.call(jnp.sum, x), host.call(jnp.add, x, 1)):
        assert found.devices() == x.devices()


def test_settings_of_jax_are_kept():
    x = host.own(np.array([0.0, 1.0], np.float32))
    with jax.debug_nans(True), pytest.raises(FloatingPointError):
        host.call(jnp.true_divide, x, x)
    with jax.numpy_dtype_promotion("strict"), pytest.raises(Exception, match="promotion"):
        host.call(jnp.add, x, host.own(INTS[:2].copy()))
    with jax.enable_x64(True):
        assert host.call(jnp.arange, 3).dtype == np.int64
        assert host.call(jnp.multiply, x, host.own(np.ones(2))).dtype == np.float64
    assert host.call(jnp.arange, 3).dtype == np.int32


def test_no_warning_of_numpy_comes_out_and_settings_stay():
    before = np.geterr()
    x = host.own(np.array([0.0, 1e38], np.float32))
    host.call(jnp.true_divide, x, x)
    host.call(jnp.multiply, x, x)
    host.call(jnp.log, x)
    assert np.geterr() == before


def test_threads_call_at_once():
    x, out = host.own(np.ones(50_000, np.float32)), []

    def work():
        for _ in range(50):
            out.append(host.call(jnp.add, x, x)[0] == 2)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(out) == 200 and all(out)


@pytest.mark.parametrize("fun", [fun for fun in TABLE if fun not in (bool, int)], ids=name_of)
def test_a_host_function_takes_arguments_by_the_names_of_its_namesake(fun):
    theirs = list(inspect.signature(fun).parameters.values())
    named = {param.name: place for place, param in enumerate(theirs)}
    for place, param in enumerate(inspect.signature(TABLE[fun]).parameters.values()):
        if param.kind is param.KEYWORD_ONLY:
            assert param.name in named or any(p.kind is p.VAR_KEYWORD for p in theirs)
        elif param.kind is param.POSITIONAL_OR_KEYWORD:
            other = theirs[named[param.name]]
            assert named[param.name] == place and other.kind is not other.KEYWORD_ONLY
            if other.kind is other.POSITIONAL_ONLY:
                raise AssertionError(f"{param.name} is positional only")


def test_the_methods_are_methods_of_arrays():
    assert all(hasattr(jnp.zeros(1), name) for name in METHODS)
