"""A deque in compiled loops and branches is a list that also grows at its left end."""

from collections import deque

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph
from tests.frontend.behaviour.behaviour import assert_same

V = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0])


def under_a_test(v):
    queue = deque()
    for x in v:
        if x > 2:
            queue.append(x)
        if x > 4:
            queue.appendleft(-x)
    queue.extendleft([v[0], v[1]])
    return len(queue), queue[0], queue[-1], sum(queue), 3.0 in queue


def largest_of_windows(v):
    kept, out = deque(), []
    for i in range(len(v)):
        while kept and v[kept[-1]] <= v[i]:
            kept.pop()
        kept.append(i)
        if kept[0] <= i - 3:
            kept.popleft()
        out.append(v[kept[0]])
    return out


def under_two_names(v):
    queue = deque([1.0, 2.0])
    other, held = queue, {"queue": queue}
    if v[0] > 2:
        other.append(3.0)
    held["queue"].append(4.0)
    return len(queue), queue[-1], other is queue


def gone_over(v):
    queue, total = deque(v), 0.0
    for x in v:
        if x > 2:
            total += queue.popleft()
        else:
            queue.append(total)
    for i, x in enumerate(queue):
        total += i * x
    queue.clear()
    return total, len(queue)


def that_drops(v):
    queue, total = deque([0.0, 0.0], maxlen=2), 0.0
    for x in v:
        if x > 2:
            queue.append(x)
        total += sum(queue)
    return total


def that_gets_full(v):
    queue, i, total = deque(maxlen=3), 0, 0.0
    for x in v:
        if x > 2:
            queue.append(x)
        elif queue:
            queue.popleft()
        for k, y in enumerate(queue):
            total += k * y
    while v[i] < 6:
        queue.append(v[i])
        i += 1
    queue.extend([v[0], v[1]])
    return total, len(queue), queue[0], queue[-1]


def steps_of_lbfgs(v):
    w, s_kept, y_kept = v[:2], deque(maxlen=2), deque(maxlen=2)
    g = 2 * w
    for _ in range(4):
        q, shares = g.copy(), []
        for s, y in zip(reversed(s_kept), reversed(y_kept)):
            shares.append(s @ q / (y @ s))
            q = q - shares[-1] * y
        for (s, y), share in zip(zip(s_kept, y_kept), reversed(shares)):
            q = q + (share - y @ q / (y @ s)) * s
        s, old = -0.3 * q, g
        w = w + s
        g = 2 * w + 0.1 * w**3
        if s @ (g - old) > 1e-6:
            s_kept.append(s)
            y_kept.append(g - old)
    return w


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "f",
    [
        under_a_test,
        largest_of_windows,
        under_two_names,
        gone_over,
        that_drops,
        that_gets_full,
        steps_of_lbfgs,
    ],
)
def test_a_deque_is_as_in_python(f):
    for v in (V, V[::-1].copy()):
        assert_same(f, v)


def test_a_queue_of_those_for_which_a_traced_test_holds():
    def f(v):
        queue = deque(x for x in v if x > 2)
        other = deque([x for x in v if x > 4])
        queue.append(-1.0)
        return queue.popleft(), queue[-1], len(queue), sum(other)

    assert_same(f, V)


def test_a_queue_in_a_while():
    def f(v):
        queue, steps = deque((i, x) for i, x in enumerate(v)), 0
        while queue:
            i, x = queue.popleft()
            steps += i
            if x > 6:
                queue.append((i, x - 6))
        return steps

    assert int(jax.jit(autograph(f, max_steps=12))(V)) == f(V)


def test_one_that_drops_items_does_so_at_its_left_end_only():
    def f(v):
        queue = deque(maxlen=2)
        for x in v:
            if x > 2:
                queue.appendleft(x)
        return sum(queue)

    with pytest.raises(TransformError, match=r"deque with maxlen(.|\n)*test_deques(.|\n)*fill it"):
        jax.jit(autograph(f))(V)
