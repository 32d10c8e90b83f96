"""Names that a step of a compiled loop makes one: the next step knows, or refuses to write."""

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph
from tests.frontend.behaviour.behaviour import assert_same

V = np.array([1.0, 2.0, 3.0], np.float32)
A = np.arange(6.0, dtype=np.float32).reshape(2, 3)
STEPS = pytest.mark.parametrize(("t", "n"), [(0, 3), (1, 3), (3, 3), (1, 0)])


class Thing:
    def __init__(self, v):
        self.v = self.w = v


def refused(fun, *args, match="what is written to here is a copy"):
    with pytest.raises(TransformError, match=match) as caught:
        jax.jit(autograph(fun))(*args)
    assert "test_relations.py" in str(caught.value)


# ---------------------------------------------------------------- arrays from before the loop


@pytest.mark.parametrize("x", [-1.5, 0.25, 0.5])
def test_an_array_that_a_test_binds_anew_next_to_an_exit(x):
    def write(x, v, n):
        k = 0
        while True:
            k += 1
            if k > 2 or x > 0.375:
                break
            v[n % 3] = 7.0
            if x > -1.0:
                v = np.floor(v)
            n = n + 1
        return v

    assert_same(lambda x, v, n: (write(x, v, n), v), x, V, 0)


@STEPS
def test_an_attribute_an_item_and_a_value_that_a_test_binds_anew(t, n):
    def f(t, v, n):
        o, xs, d = Thing(v), [v * 2, v], {"a": {"b": v * 3}}
        x, y = xs[0], d["a"]["b"]
        for i in range(n):
            o.v[i % 3] += 7
            xs[0][0] -= 1
            d["a"]["b"][1] *= 2
            if i == t:
                o.v, xs[0], d["a"]["b"] = o.v * 2, xs[0] + 1, np.floor(d["a"]["b"])
        o.v[0] = xs[0][1] = d["a"]["b"][2] = 100.0
        return o.v, o.w, xs, d, x, y, v

    assert_same(f, t, V, n)


@STEPS
def test_a_name_goes_to_another_array_and_back(t, n):
    def f(t, v, n):
        w = v
        u = v * 5
        for i in range(n):
            v[i % 3] += 7
            if i == t:
                v = u
            elif i == t + 1:
                v = w
            u[0] -= 1
        v[0] = 100.0
        return v, w, u

    assert_same(f, t, V, n)


@pytest.mark.parametrize("y", [-3.0, 0.0, 1.0])
def test_the_other_items_stay_what_they_are_where_one_is_bound_anew(y):
    def f(y, v, a):
        xs, row = [v, a, 3], a[0]
        while y < 0.25:
            y += 2
            xs[1] = xs[1] + 1
        a[0, 0] = 5.0
        v.fill(0)
        return xs, v, a, row

    assert_same(f, y, V, A)


@pytest.mark.parametrize("length", [1, 2])
def test_a_number_in_the_place_of_an_array_is_refused(length):
    def f(y, v):
        xs = [v] * length
        while y < 0.25:
            y += 2
            xs[0] = 3
        return xs[0]

    refused(f, 0.0, V, match="before a step and int32")


# ---------------------------------------------------------------- what the steps make


@STEPS
def test_two_names_of_what_each_step_makes_are_one_thing_in_the_next(t, n):
    def f(t, v, n):
        a = b = [v[0]]
        p = q = Thing(v[1])
        x = y = v * 1
        for _ in range(n):
            b[0] += 1
            q.v += 1
            y[0] += 1
            a, p, x = [a[0] * 2], Thing(p.v * 2), x * 2
            b, q, y = a, p, x
        return a, b, p.v, q.v, x, y

    assert_same(f, t, V, n)


@STEPS
def test_arrays_that_a_test_makes_one_are_one_in_later_steps_and_after(t, n):
    def f(t, v, n):
        cur, o, rows = v * 1, Thing(v * 2), [v * 3]
        best = np.zeros_like(v)
        for i in range(n):
            cur[0] *= 2
            best[1] -= 1
            o.w[2] += 5
            cur, o.v = cur + 1, o.v - 1
            rows = [cur]
            if i == t:
                best, o.w = cur, o.v
        best[0], cur[1], o.v[0] = 50, 60, 70
        return cur, best, o.v, o.w, rows

    assert_same(f, t, V, n)


@STEPS
def test_arrays_that_a_test_swaps(t, n):
    def f(t, v, n):
        a, b, c = v * 1, v * 2, v
        for i in range(n):
            a[0] += 1
            if i == t:
                a, b = b, a
            else:
                b, c = c, b
            b[1] -= 1
        c[2] = 50
        return a, b, c, v

    assert_same(f, t, V, n)


@STEPS
def test_constants_that_a_step_makes(t, n):
    def f(t, v, n):
        cur, best = np.ones(3), np.zeros(3)
        for i in range(n):
            best[0] += v[0]
            cur = np.zeros(3)
            if i == t:
                best = cur
            cur[i % 3] += v[1]
        best[1] = 4
        return cur, best

    assert_same(f, t, V, n)


def keep_list(t, v, n):
    cur, best = [v[0]], [v[1]]
    for i in range(n):
        cur[0] *= 2
        cur = [cur[0] + 1]
        if i == t:
            best = cur
    return cur, best


def keep_item(t, v, n):
    d = {"a": [v[0]], "b": [v[1]]}
    for _ in range(n):
        d["b"][0] -= 1
        d["a"] = [d["a"][0] + 1]
        d["b"] = d["a"]
    return d


def write_after(t, v, n):
    cur, best = Thing(v[0]), Thing(v[1])
    for i in range(n):
        cur = Thing(cur.v + 1)
        if i == t:
            best = cur
    best.v = 1.0
    return cur.v


def write_a_view(t, v, n):
    a = v * 1
    part = a[:1]
    for _ in range(n):
        part[0] += 1
        a = a * 2
        part = a[:1]
    return a


def write_a_row(t, v, n):
    a = np.stack([v, v])
    for i in range(n):
        v[0] += 1
        v = a[i % 2]
    return a


@pytest.mark.parametrize("f", [keep_list, keep_item, write_after, write_a_view, write_a_row])
def test_a_write_to_what_may_have_another_name_is_refused(f):
    refused(f, 1, V, 3)


def test_what_may_have_another_name_is_read():
    def f(t, v, n):
        cur, best = Thing(v[0]), Thing(v[1])
        for i in range(n):
            cur = Thing(cur.v + 1)
            if i == t:
                best = cur
        return cur.v, best.v

    assert_same(f, 1, V, 3)


def test_a_short_loop_that_no_compiled_one_can_follow_runs_step_by_step():
    def f(v):
        last, out = [v[0]], []
        for e in v:
            last[0] -= 1
            last = [e * 2]
            out.append(last)
        return out

    assert_same(f, V)


# ---------------------------------------------------------------- inside of others


def total(t, v):
    w = cur = v * 1
    best = v * 0
    for i in range(3):
        cur[0] *= 2
        w[1] += t
        cur = cur * v
        if i >= t:
            best = cur
            break
    best *= 2
    return cur.sum() + w.sum()


def test_under_vmap_and_grad():
    each = jax.jit(jax.vmap(autograph(total), in_axes=(0, None)))(np.arange(4.0), V)
    np.testing.assert_allclose(each, [total(t, V) for t in np.arange(4.0)], rtol=1e-6)
    slope = jax.jit(jax.grad(autograph(total), argnums=1))(1.0, V)
    step = 1e-2 * np.eye(3, dtype=np.float32)
    differences = [(total(1.0, V + s) - total(1.0, V - s)) / 2e-2 for s in step]
    np.testing.assert_allclose(slope, differences, rtol=2e-2)


# ---------------------------------------------------------------- several names, several arrays


def three_names(v, n):
    a, b, d = v.copy(), v * 0, v * 0 + 1
    for i in range(n):
        if v[i % 3] > 2:
            a, b = b, a
        elif v[i % 3] > 1.5:
            b = d
        else:
            d = a
        a[i % 3] += 1
        b[(i + 1) % 3] -= 1
        d[(i + 2) % 3] -= 2
    return a, b, d


def two_names_in_turn(v, n):
    u, new, w = v.copy(), v * 0, v.copy()
    for i in range(n):
        if i % 2 == 0:
            new = u - 0.5
        w[0] += new[1]
        u = new if i % 2 == 0 else w + 0.5 * u
        if w[0] > 100:
            break
    return u, new, w


@pytest.mark.parametrize("n", [0, 1, 4, 9])
@pytest.mark.parametrize("f", [three_names, two_names_in_turn])
def test_arrays_that_change_their_names_in_turn(f, n):
    for _ in range(2):  # the second trace finds no garbage of the first
        assert_same(f, V, n)


def test_a_write_to_one_of_very_many_arrays_is_refused():
    def f(v, n):
        a, b, c, d = v.copy(), v * 0, v * 1, v * 2
        for i in range(4):
            a, b = (b, a) if v[i % 3] > n else (c, d)
            c, d = (d, a) if v[i % 3] > 2 else (b, c)
            a, c = (c, a) if v[i % 3] > 0 else (d, b)
            a[0] += 1
            b[1] += 1
            c[2] += 1
            d[0] += 1
        return a, b, c, d

    refused(f, V, 3, match="too many arrays may be the one")


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_a_copy_or_the_array_itself_in_a_branch_of_a_step(n):
    def f(v, n):
        a, b = v.copy(), v * 0
        xs = [a, b]
        for i in range(n):
            if i % 2 == 0:
                a, b = b, a
                a[2] = 5.0
            else:
                a = b.copy() if i % 3 == 1 else b
                a += 1
        return a, b, xs[0] + 0, xs[1] + 0

    assert_same(f, V, n)


# ---------------------------------------------------------------- untraced arrays made in a step


def transposed(x):
    new = np.empty((3, 2), np.float32)
    for i in range(3):
        new[i] = x[i]
    return new.T


def test_a_part_of_an_array_that_a_step_makes_goes_around():
    def f(x):
        part, n = transposed(x), 0
        while np.sum(part) < 50.0:
            x = x * 1.5
            part = transposed(x)
            n += 1
        return part, n

    assert_same(f, V)


def test_a_part_of_an_array_that_a_step_makes_may_be_kept_in_an_object():
    def f(x):
        thing, n = Thing(np.zeros((2, 3), np.float32)), 0
        while n < x[0] * 3:
            if n != 1:
                thing.v = transposed(x + n)
            thing.v[0] += 1.0
            n += 1
        return thing.v, n

    assert_same(f, V)


def test_a_part_of_one_of_several_arrays_that_an_index_picks():
    def f(xs, i):
        chosen = [xs + 1.0, xs * 2.0][i]
        return chosen.reshape(3, 1) + chosen[::-1]

    assert_same(f, V, 1)
