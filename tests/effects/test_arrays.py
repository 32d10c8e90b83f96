"""Arrays that change in place are NumPy's: they alias, copy and refuse as NumPy's do."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import TransformError, autograph, mutable

A = np.arange(12, dtype=np.float32).reshape(3, 4)
V = np.arange(5, dtype=np.float32)
N = np.arange(5, dtype=np.int32)
Q = V > 2


def run(body, names):
    """The function of `names` with this body, which returns all arrays it has a name for."""
    space = {"np": np}
    text = body.replace("; ", "\n").split("\n")
    exec("\n  ".join([f"def f({names}):", *text, f"return {names}"]), space)
    return space["f"]


def by_numpy(fun, *args):
    copies = [np.array(x) for x in args]
    try:
        return fun(*copies)
    except (IndexError, TypeError, ValueError) as error:
        return type(error)


def by_mutable(fun, *args):
    given = [jnp.asarray(x) for x in args]
    try:
        out = fun(*given)
    except (IndexError, TypeError, ValueError) as error:
        return type(error)
    for x, x_given in zip(args, given):
        np.testing.assert_array_equal(x, x_given)  # the caller's arrays never change
    return out


def agree(fun, *args):
    """Whether NumPy and `mutable` do the same, eagerly and under jit; two errors are the same."""
    wanted = by_numpy(fun, *args)
    for ours in (mutable(fun), jax.jit(mutable(fun))):
        got = by_mutable(ours, *args)
        if isinstance(wanted, type):
            assert issubclass(wanted, got)
            continue
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-4)


# ------------------------------------------------------------ one line at a time

LINES = {
    "a name": "b = x; b[0] = 9",
    "a row": "r = x[1]; r[0] = 9",
    "rows of a loop": "for r in x: r[0] = 1",
    "a slice of a slice": "v = x[1:][:, ::2]; v[0] = 9",
    "a step back": "v = x[::-2, :-3]; v -= v",
    "a transpose": "x.T[0] = 3; x.transpose(1, 0)[2, 2] = 8; x.mT[1, 1] = 4",
    "swapped axes": "x.swapaxes(0, 1)[3, 1] = 9",
    "a reshape": "x.ravel()[5] = 7; x.reshape(2, -1)[1, 0] = 8; x.reshape((4, 3))[0] = 6",
    "a squeeze": "x[:, None].squeeze(1)[0] = 4",
    "a new axis": "x[:, None, 0] = 2.5; x[None][0, 1] = 3",
    "an ellipsis": "x[..., 1][::2] = 6; x[...] += 1",
    "reading after a write to the base": "v = x[0]; x[:] = 1; x[1] = v * 2",
    "a copy": "c = x.copy(); c[0] = 9; x[1] = c[0]",
    "a cast of the same type": "c = x.astype(x.dtype); c[0] = 9",
    "arithmetic": "c = x + 0; c[0] = 9",
    "a gathered copy": "c = x[[0, 2]]; c[0] = 9",
    "in-place operators": "x += 1; x -= 0.5; x *= 2; x /= 4; x **= 2; x //= 1; x %= 3",
    "matrix product": "y = x; y @= np.eye(4, dtype='float32'); y += 1",
    "a swap of rows": "x[0], x[1] = x[1].copy(), x[0].copy()",
    "a swap of rows that alias": "x[0], x[1] = x[1], x[0]",
    "overlap": "x[1:] = x[:-1]; x[:, ::-1] = x",
    "a list as index": "x[[0, 2]] = 5; x[[0, 1], [1, 2]] += 2",
    "an array as index": "i = np.array([1]); x[i] = 7; x[i, 2:] += 1",
    "broadcasting": "x[:2] = x[None, 1:]; x[:] = [1, 2, 3, 4]",
    "fill": "x.fill(3); x[-1, ::-2] *= 4",
    "out of bounds": "x[10] = 3",
    "too many indices": "x[0, 0, 0] = 1",
    "a shape that does not fit": "x[0] = np.ones(3)",
    "growing in place": "x += np.ones((2, 3, 4))",
    "a complex number": "x[0] = 1j",
}


@pytest.mark.in_turns
@pytest.mark.parametrize("body", LINES.values(), ids=LINES)
def test_a_matrix_changes_as_in_numpy(body):
    agree(run(body, "x"), A)


INTEGERS = ["x[0] = 2.7; x[1] += 1", "x += 0.5", "x[1:] += 0.5", "x /= 2", "x[1] += 0.5",
            "y = x; y <<= 1; y >>= 1; y |= 1; y ^= 3; y &= 7", "x += True"]  # fmt: skip


@pytest.mark.parametrize("body", INTEGERS)
def test_integers_are_cast_or_refused_as_in_numpy(body):
    agree(run(body, "x"), N)


MASKS = ["x[q] = 0", "x[q] += 1; x[q] *= 2", "x[q] = -x[q] * 2", "x[q] += x[q]", "x[~q] = 7",
         "s = x[q]; s += 1; s *= 10; x[q] = s", "s = x[q]; x[:] = 0; s += 1; x[q] = s"]  # fmt: skip


@pytest.mark.parametrize("body", MASKS)
def test_masks_select_as_in_numpy(body):
    agree(run(body, "x, q"), V, Q)


def test_a_scalar_is_a_value():
    agree(lambda x: (x.__getitem__(0) + 1, x), V)
    agree(run("s = x[0]; s += 1; x[1] = s", "x"), V)


NO_DIMS = ["v = x[0, ...]; v[v > 1.5] = -2", "v = x[1, ...]; v[v > 0.5] = -2; v[v > 9] = 1",
           "v = x[0, ...]; v += 1; w = v.reshape(()); w *= 2; x += v", "v = x[2, ...]; v[...] = 7",
           "v = x[:1].squeeze(); v -= 3; v[v < 0] *= 2", "s = x.sum(); s += 1"]  # fmt: skip


@pytest.mark.parametrize("body", NO_DIMS)
def test_a_view_without_dims_is_an_array_and_no_number(body):
    agree(run(body, "x"), V)


def test_an_index_is_read_when_the_view_is_made():
    program = run("k = i[0]; v = x[k:]; i[0] = 3; v[0] = 9", "x, i")
    wanted = by_numpy(program, V, N[1:3])[0]
    np.testing.assert_array_equal(by_mutable(mutable(program), V, N[1:3])[0], wanted)


# ------------------------------------------------------------ inside JAX


def cumulative(x):
    for i in range(1, len(x)):
        x[i] += x[i - 1] * x[i]
    return x


def functional(x):
    for i in range(1, len(x)):
        x = x.at[i].add(x[i - 1] * x[i])
    return x


@pytest.mark.parametrize("around", [jax.jit, jax.vmap, jax.jacrev, jax.hessian])
def test_it_is_differentiated_and_compiled_as_its_functional_twin(around):
    x = jnp.asarray(A if around is jax.vmap else V)
    ours, theirs = jax.jit(lambda x: (around(mutable(cumulative))(x), around(functional)(x)))(x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_a_mask_works_in_each_lane():
    zeroed = jax.vmap(mutable(run("x[x > 1] = 0", "x")))(A)
    np.testing.assert_array_equal(zeroed, np.where(A > 1, 0, A))


def test_a_traced_index_will_do():
    out = jax.jit(mutable(run("x[i] = 7; x[i, ::-1] += x[0]", "x, i")))(A, 1)[0]
    np.testing.assert_array_equal(out[1], 7 + A[0, ::-1])


def test_custom_derivatives_inside_are_kept():
    total = lambda x: jnp.sum(jax.nn.relu(x) + jax.nn.silu(x)) + jax.nn.logsumexp(x)
    ours = mutable(lambda x: (x.__setitem__(0, 3.0), total(x))[1])
    plain = lambda x: total(x.at[0].set(3.0))
    x = jnp.asarray(V)
    slopes = jax.jit(lambda x: [jax.grad(f)(x) for f in (ours, plain)])(x)
    np.testing.assert_allclose(*slopes, rtol=1e-5)


def test_the_body_of_a_loop_may_be_mutable_itself():
    def step(c, t):
        c[0] += t
        return c, c[0]

    out = mutable(lambda x: lax.scan(mutable(step), x, jnp.ones(3)))(V)
    assert out[0][0] == 3.0
    assert out[1].tolist() == [1.0, 2.0, 3.0]


def test_python_sees_the_values():
    def program(x):
        if x[0] > 0:
            x[1] = float(x[0]) + 1
        return x

    assert mutable(program)(jnp.array([2.0, 0.0])).tolist() == [2.0, 3.0]


def test_pytrees_go_in_and_out():
    out = mutable(lambda d, *, k: (d["a"][1].fill(k), d)[1])({"a": [V, V]}, k=3.0)
    assert [x.tolist() for x in out["a"]] == [V.tolist(), [3.0] * 5]


def test_a_mutable_function_may_call_another():
    inner = mutable(lambda x: (x.fill(9.0), x)[1])
    assert mutable(lambda x: (inner(x), x))(V)[1].tolist() == V.tolist()


# ------------------------------------------------------------ refusals


def refused(body, names, *args):
    with pytest.raises(TransformError) as caught:
        jax.jit(mutable(run(body, names)))(*args)
    return caught.value


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("s = x[q].sum()", r"x\[mask\].sum, and a mask known only at run time"),
        ("x[q] = x", "one element of y per selected one"),
        ("x[~q] = x[q]", r"x\[mask\] = y\[other_mask\]"),
        ("x[:] = x[q]", r"x\[mask\] = y\[other_mask\]"),
    ],
)
def test_a_size_known_only_at_run_time_is_refused(body, what):
    error = refused(body, "x, q", V, Q)
    assert re.search(what, error.what)
    assert "jnp.where(mask, new, x)" in error.hint


def test_a_mask_beside_another_index_is_refused():
    error = refused("x[0, q] = 1", "x, q", A, A[0] > 1)
    assert error.what.startswith("x[i, mask]") and "x[i][mask] = y" in error.hint
    agree(run("x[0][q] = 1", "x, q"), A, A[0] > 1)


def test_a_masked_value_does_not_widen_the_array():
    with pytest.raises(ValueError, match="broadcast"):
        jax.jit(mutable(run("x[q] = y", "x, q, y")))(A[:, :1], A[:, 0] > 1, A[0])


def test_a_refusal_names_the_line():
    def program(x, q):
        x[q] = x

    with pytest.raises(TransformError, match=r"at .*test_arrays\.py:\d+ in .*program"):
        jax.jit(mutable(program))(V, Q)


def test_a_refusal_in_arithmetic_names_the_line():
    def program(x, q):
        return x[q] + x

    with pytest.raises(TransformError, match=r"at .*test_arrays\.py:\d+ in .*program"):
        jax.jit(mutable(program))(V, Q)


def test_a_selection_is_no_result():
    with pytest.raises(TransformError, match="its size is unknown"):
        jax.jit(mutable(lambda x, q: x[q]))(V, Q)


@pytest.mark.parametrize(
    "inside",
    [
        lambda x: jax.jit(lambda: x.__setitem__(0, 1.0))(),
        lambda x: lax.scan(lambda c, _: (c, x.__setitem__(0, 1.0)), 0, length=2),
        lambda x: jax.grad(lambda y: (x.__setitem__(0, 1.0), y)[1])(1.0),
        lambda x: mutable(lambda: x.__setitem__(0, 1.0))(),
    ],
    ids=["jit", "scan", "grad", "mutable"],
)
def test_an_array_of_an_enclosing_function_is_not_written_to(inside):
    text = (
        r"an array of an enclosing function\n  at .*test_arrays\.py:\d+ .*\n  hint: hand the array"
    )
    with pytest.raises(TransformError, match=text):
        mutable(inside)(V)


def test_at_of_a_numpy_ufunc_is_refused_with_a_way_out():
    def counted(x, i):
        np.add.at(x, i, 1.0)
        return x

    told = r"\n  at .*test_arrays.*in counted\n  hint: write x = x\.at\[i\]\.add\(y\), .*autograph"
    for run in (mutable(counted), jax.jit(mutable(counted))):
        with pytest.raises(TransformError, match=told):
            run(jnp.zeros(3), jnp.array([1, 1]))
    assert autograph(counted)(np.zeros(3), np.array([1, 1])).tolist() == [0, 2, 0]
    adds = lambda i: counted(np.zeros(3), i)
    assert jax.jit(autograph(adds))(jnp.array([1, 1])).tolist() == [0, 2, 0]
