"""What goes around a loop is found by few traces of its body."""

from typing import Any

import jax
import numpy as np
import pytest

from malleable import autograph
from malleable.frontend.operators import compiled


class Tally:
    def __init__(self):
        self.total: Any = 0
        self.last: Any = None
        self.counts = [0, 0]

    def take(self, x):
        self.total += x
        self.last = np.array([x, self.total])
        self.counts[0] += 1


def one_loop(x, n):
    tally, seen = Tally(), np.zeros(2)
    while tally.counts[0] < n:
        tally.take(x)
        seen += tally.last
    return tally.total, tally.last, tally.counts, seen


def four_loops(x, n):
    tally, seen = Tally(), np.zeros(2)
    a = 0
    while a < n:
        b = 0
        while b < n:
            c = 0
            while c < n:
                d = 0
                while d < n:
                    tally.take(x)
                    seen += tally.last
                    d += 1
                c += 1
            b += 1
        a += 1
    return tally.total, tally.last, tally.counts, seen


@pytest.mark.parametrize(("fun", "depth"), [(one_loop, 1), (four_loops, 4)])
def test_the_traces_of_loops_within_one_another_add_up(fun, depth, monkeypatch):
    traced, trace_step = [], compiled.trace_step

    def counted(loop, *rest):
        traced.append(loop.where)
        return trace_step(loop, *rest)

    monkeypatch.setattr(compiled, "trace_step", counted)
    got = jax.jit(autograph(fun))(1.5, 2)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(fun(1.5, 2)), strict=True):
        np.testing.assert_allclose(one, other)
    most = max(map(traced.count, traced))
    assert most <= depth + 2  # not 2**depth


def test_what_a_loop_wrote_under_other_types_is_carried_as_it_is_now():
    def f(x, n):
        tally = Tally()
        for _ in range(n):
            if tally.last is None:
                tally.last = 0
            for _ in range(n):
                tally.total = tally.total + tally.last
                tally.last = tally.last + x
        return tally.total, tally.last

    got = jax.jit(autograph(f))(1.5, 3)
    np.testing.assert_allclose(np.array(got), np.array(f(1.5, 3)))
