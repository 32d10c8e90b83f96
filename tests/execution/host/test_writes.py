"""What a function under `jit` writes to lands in the caller's own objects, on every call."""

import functools
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import malleable as mal


@jax.tree_util.register_dataclass
@dataclass
class State:
    hist: list
    w: Any
    d: dict = field(default_factory=dict)

    def sum(self, x):
        self.w = self.w + jnp.sum(x)
        return self.w


class Held:
    v: Any = None
    n = 0


total: Any = 0.0


def record(state, y):
    state.hist.append(y)
    return y * 2


def keep(y, kept=[]):  # noqa: B006
    kept.append(y)
    return y * len(kept)


def counter():
    n = 0

    def count(x):
        nonlocal n
        n += 1
        return x

    def times(x):
        return x * n

    return count, times


def bump(x):
    global total
    total = total + jnp.sum(x)
    Held.n += 1


def add_one(d):
    a = d["n"]
    a += 1


def scaled(x):
    return x * total + Held.n


def appends(s, x):
    y = jnp.sin(x) * 2
    s.hist.append(jnp.sum(y))
    return jnp.sum(y + s.w)


def by_an_alias(s, x):
    h, other = s.hist, s
    h += [jnp.sum(x)]
    h[0] = h[0] + 1
    other.w = other.w + jnp.sum(x)
    return jnp.sum(x)


def in_a_dict(s, x):
    s.d["b"] = jnp.sum(x)
    s.d["a"] = s.d["a"] + s.d["b"]
    del s.d["b"]
    return jnp.sum(x) * s.d["a"]


def in_a_callee(s, x):
    return record(s, jnp.sum(x)) + s.w


def in_a_method(s, x):
    return s.sum(x) * 2


def in_a_loop(s, x):
    for part in [s, s]:
        part.hist.append(jnp.sum(x) * part.w)
    return jnp.sum(x)


def through_reduce(s, x):
    def put(kept, i):
        kept.append(jnp.sum(x) * i)
        return kept

    functools.reduce(put, range(3), s.hist)
    return jnp.sum(x)


def through_a_bound_method(s, x):
    list(map(s.hist.append, [jnp.sum(x)]))
    put = s.hist.append
    put(jnp.max(x))
    return jnp.sum(x)


def in_a_branch(s, x):
    if jnp.sum(x) > 3:
        s.hist.append(jnp.sum(x))
    else:
        s.w = s.w + 1
    return jnp.sum(x)


def in_numpy(s, x):
    a = s.d["n"]
    a += 1
    a[0] = jnp.sum(x)
    held = {"n": s.d["n"]}
    held["n"] *= 2
    add_one(s.d)
    return jnp.sum(x) + a[1]


def captured(s, x):
    h = s.hist

    def put(v):
        h.insert(0, v)
        return v * 2

    return put(jnp.sum(x))


def on_a_class(s, x):
    y = jnp.sin(x) * Held.v
    Held.n += 1
    Held.v = Held.v + jnp.sum(x)
    return jnp.sum(y) * Held.n


def in_globals(s, x):
    bump(x)
    return jnp.sum(scaled(x)) + total


def in_a_default(s, x):
    return keep(jnp.sum(x)) * 2


WRITERS = [
    *(appends, by_an_alias, in_a_dict, in_a_callee, in_a_method, in_a_loop, through_reduce),
    *(through_a_bound_method, in_a_branch, in_numpy, captured, on_a_class, in_globals),
    in_a_default,
]


def seen_by(f):
    """What calls of f return, and what everything it may write to then holds, call by call."""
    global total
    found = []
    for call, x in enumerate([[1.0, 2.0], [0.0, 5.0], [1.0, 2.0, 3.0], [2.0, 2.0]]):
        if call in (0, 2):  # a state like the first, when there is a program already
            total, Held.v, Held.n = jnp.float32(0), jnp.float32(0.5), 0
            keep.__defaults__[0].clear()
            first = {"a": jnp.float32(2), "n": np.zeros(2, np.float32)}
            state = State([jnp.float32(1)], jnp.float32(1), first)
        out = f(state, jnp.asarray(x))
        now = jax.tree.map(
            float, [out, state.hist, state.w, total, Held.v, list(keep.__defaults__)]
        )
        found.append([now, Held.n, {k: np.asarray(x).tolist() for k, x in state.d.items()}])
    return found


@pytest.mark.parametrize("f", WRITERS, ids=lambda f: f.__name__)
def test_a_write_lands_in_the_object_of_the_caller(f):
    flat, wanted = (jax.tree.flatten(seen_by(g)) for g in (mal.jit(f), f))
    assert flat[1] == wanted[1]
    np.testing.assert_allclose(flat[0], wanted[0], rtol=1e-5)


def test_an_iterator_that_is_an_argument_goes_on():
    def f(items, x):
        out = 0.0
        for i in items:
            out = out + jnp.sum(x) * i
            if i % 2:
                break
        return out

    items, g = iter(range(6)), mal.jit(f)
    assert [float(g(items, jnp.ones(2))) for _ in range(3)] == [2.0, 10.0, 18.0]


def test_a_function_that_only_reads_its_containers_stays_one_program():
    @mal.jit
    def f(s, x):
        h = [w * 2 for w in s.hist]
        h.append(x)
        return {"out": sum(h) + s.w}

    for _ in range(2):
        f(State([jnp.ones(2)], jnp.ones(2)), jnp.ones(2))
    assert len(f.regions) == 1
    assert "return _r1(" in f.source


def test_a_variable_that_two_functions_share_is_read_anew():
    def calls(way):
        count, times = counter()

        def f(x):
            count(x)
            return times(x)

        g = way(f)
        return [float(g(jnp.float32(1))) for _ in range(3)]

    assert calls(mal.jit) == calls(lambda f: f) == [1.0, 2.0, 3.0]


def test_explain_leaves_nothing_of_its_own_in_a_variable_of_outside():
    n = jnp.float32(0)

    def f(x):
        nonlocal n
        n = n + jnp.sum(x)
        return n * 2

    report = mal.explain(f)(jnp.ones(3))
    assert (float(report.out), float(n)) == (6.0, 0.0)  # what it changes is put back
    assert float(mal.jit(f)(jnp.ones(3))) == 6.0
