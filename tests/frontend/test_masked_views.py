"""Slices with traced bounds are views: what is written to one is seen in the other."""

import linecache

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph
from tests.frontend.behaviour.behaviour import assert_same

VIEWS = {
    "changed in place": "v = x[1, :k]; v += 1; v //= 2; v **= 2",
    "changed under another name": "v = x[1, k:]; w = v; w -= 7",
    "an element": "v = x[1, :k]; v[0] = 50; v[-1] += 3",
    "all": "v = x[1, :k]; v[:] = 3",
    "filled": "x[1, k:].fill(4)",
    "sorted": "v = x[1, :k][::-1]; v.sort()",
    "where it is large": "v = x[1, :k]; v[v > 4] = 0",
    "written by a ufunc": "v = x[1, :k]; np.sqrt(v, out=v); np.maximum(v, 1, out=v)",
    "turned": "v = x[1, :k][::-1]; v *= np.float64(3)",
    "columns": "v = x[:, :k]; v *= 2; v[1][0] = 30",
    "rows": "v = x[:k]; v -= v.mean(axis=0); v[0][1] = 50; v[:, 2] += 9",
    "each row": "for row in x[:k]: row[0] += 10",
    "each row, under another name": "v = x[:k]; a = v[0]; a += 1",
    "a column of rows": "v = x[k:, 1]; v += 5",
    "two that overlap": "a = x[1, k:]; b = x[1, :-k]; a += 1; b *= 2",
    "exchanged": "x[1, :k], x[2, :k] = x[2, :k], x[1, :k]",
    "given to a function": "add(x[1, :k], 7)",
    "in a list": "for v in [x[1, :k], x[2, :k]]: v += 1",
    "in a dict": "d = {'v': x[1, :k]}; d['v'] += 1",
    "in a branch": "v = x[1, :k]\n    if k > 1: v += 1\n    else: v[0] = -5",
    "in a loop": "v = x[1, :k]\n    for i in range(k): v[i] = 7 * i\n    for i in range(3): v += i",
    "of each size": "for i in range(k + 1): v = x[2, i:]; v *= 2",
    "read after a write": "v = x[1, :k]; x[1, 0] = 100; s = v.sum(); x[1] += s; s += v.max()",
    "read after a branch": "v = x[1, :k]\n    if k > 1: x[1, 0] = 100\n    s = v.sum()",
    "read while it is written": "for a in x[1, :k]: x[1, k] += a",
    "numbered while it is written": "for i, a in enumerate(x[1, :k]): x[1, i + 1] += a",
    "each k-th": "v = x[1, ::k]; v += 1; x[2, k::k] = 0; s = x[0, 1::k].sum()",
    "each k-th, in a loop": "i = 1\n    while i < 4: x[0, i * i :: i] = -i; i += k",
    "each k-th row": "v = x[::k]; v *= 2; x[k - 1 :: k, 0] = 9",
    "a copy": "v = x[1, :k].copy(); v += 1; s = v.sum()",
    "of another type": "v = x[1, :k].astype(int); v += 1; s = v.sum()",
    "a result": "v = x[1, :k]; w = v + 0; v += 1; s = w.sum()",
    "a new array": "v = x[1, :k]; v = v + 1; s = v.sum()",
    "a mask": "v = x[x > k]; w = v; w += 1; s = v.sum(); v.sort(); s += v[0]",
}
TEXT = "def f(x, k):\n    s = 0\n    {}\n    return x, s"


def add(v, n):
    v += n


@pytest.mark.parametrize("name", VIEWS)
def test_a_slice_is_a_view(name, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(TEXT.format(VIEWS[name]))
    space = {"np": np, "add": add}
    exec(compile(path.read_text(), path, "exec"), space)
    compiled = jax.jit(autograph(space["f"]))
    for k in (1, 2, 3):
        grid = np.arange(12.0)[::-1].reshape(3, 4).copy()
        got = compiled(grid, k)
        wanted = space["f"](grid.copy(), k)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, wanted)


@pytest.mark.parametrize("k", [0, -2])
def test_a_traced_step_that_is_not_positive_is_a_raise(k):
    f = autograph(lambda x, k: x[::k].sum())
    assert np.isnan(jax.jit(f)(np.arange(5.0), k))
    with pytest.raises(TransformError, match="a value decides"):
        jax.jit(autograph(lambda x, k: x[::k].sum(), exact=True))(np.arange(5.0), k)


def test_the_type_of_a_view_stays():
    def f(x, k):
        v = x[:k]
        v += 0.5
        return x

    with pytest.raises(TypeError, match="Cannot cast ufunc 'add'"):
        jax.jit(autograph(f))(np.arange(3), 2)


@pytest.mark.parametrize("bounds", ["x[:k]", "x[k:]", "x[k:k]", "x.reshape(2, 2)[:k]"])
def test_an_element_beyond_a_slice_is_not_written(bounds):
    """NumPy raises: a handler runs then, and without one the array stays as it is."""
    code = f"""
def f(x, k, i, v):
    y = {bounds}
    y[i] = v
    y[i] = v + 1
    return x
"""
    name = f"<beyond {bounds}>"
    linecache.cache[name] = len(code), None, code.splitlines(True), name
    exec(compile(code, name, "exec"), space := {})
    plain = space["f"]

    def handled(x, k, i, v):
        try:
            plain(x, k, i, v)
        except IndexError:
            x[0] = 50
        return x

    x = np.arange(4.0, dtype=np.float32)
    for k, i in (0, 0), (2, 1), (2, -2), (2, -3), (1, 5), (4, 0):
        assert_same(handled, x, k, i, 9.0)
        try:
            want = plain(x.copy(), k, i, 9.0)
        except IndexError:
            want = x
        assert jax.jit(autograph(plain))(x, k, i, 9.0).tolist() == want.tolist()
