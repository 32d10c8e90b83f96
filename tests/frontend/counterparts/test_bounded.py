"""Lists whose length is known only at run time."""

import bisect
import collections
import dataclasses
import heapq

import jax
import numpy as np
import pytest
from jax.experimental import checkify

from malleable import TransformError, autograph, listen, loop
from malleable.frontend.operators import carry
from tests.frontend.behaviour.behaviour import assert_same, count

XS = pytest.mark.parametrize("x", [10.0, 2.5, 40.0])


@XS
def test_appends_before_a_break(x):
    def f(x):
        out = []
        for _ in range(20):
            x = x / 2
            out.append(x)
            if x < 1:
                break
        return out[-1], out[0], len(out), np.array(out).sum()

    assert_same(f, x)


@XS
def test_appends_after_a_break_and_under_a_condition(x):
    def f(x):
        out = []
        for _ in range(20):
            x = x / 2
            if x < 1:
                break
            out.append(x)
            if x < 3:
                out.append(-x)
        total = 0.0
        for v in out:
            total += v
        return total, len(out)

    assert_same(f, x)


@XS
def test_a_while_with_a_bound_may_read_the_last_item(x):
    def f(x):
        out = [x]
        while loop(out[-1] > 1, max_steps=30):
            out.append(out[-1] * 0.5)
        return out[-1], len(out)

    assert_same(f, x)


@pytest.mark.parametrize("x", [10.0, -0.5])
def test_a_list_that_grows_in_one_branch_is_an_array_of_traced_length(x):
    def f(x):
        t = [1.0, 5.0]
        if x > 0:
            t.append(x)
        t = np.asarray(t)
        y = t * 2 + 1
        k = np.argmax(y)
        return t[k], y[k], t.min(), t.mean()

    assert_same(f, x)


@XS
def test_pop_takes_the_last_item_or_the_first(x):
    def f(x):
        out = []
        for i in range(6):
            if x > i:
                out.append((i, x * i))
        (a, b), (c, _) = out.pop(), out.pop(0)
        return a, b, c, len(out)

    assert_same(f, x)


@pytest.mark.parametrize("n", [0, 3])
def test_a_loop_over_a_traced_number_of_items_fills_a_list(n):
    def f(v, n):
        squares, large = [], []
        for i in range(n):
            squares.append(v[i] * v[i])
        for x in [x for x in v if x > 2]:
            large.append(x)
            large.append(-2 * x)
        return len(squares), sum(squares), len(large), sum(large)

    v = np.array([3.0, 1.0, 4.0, 1.0])
    got = jax.jit(autograph(f, max_steps=6))(v, n)
    np.testing.assert_allclose(np.asarray(got), np.asarray(f(v, n)))


def test_a_list_that_cannot_outgrow_its_room_is_not_tested_for_that():
    def f(v):
        out, large = [], [x for x in v if x > 2]
        for x in large:
            for y in large:
                if y > 3:
                    out.append(x * y)
                out.append(y)
            out.extend(large)
        return sum(out), len(out), sum([x * x for x in large])

    v = np.array([3.0, 1.0, 4.0, 1.0])
    with listen() as notes:
        got = jax.jit(autograph(f))(v)
    np.testing.assert_allclose(np.asarray(got), np.asarray(f(v)))
    assert not notes


@pytest.mark.parametrize("most", [4, 9])
def test_a_list_that_may_outgrow_it_in_an_inner_loop_is_tested(most):
    def f(v):
        out = []
        for x in v:
            out.append(1.0)
            while x < 8:
                x += 1
                out.append(x)
        return sum(out)

    v = np.array([3.0, 1.0, 4.0, 1.0])
    with listen() as notes:
        got = jax.jit(autograph(f, max_steps=most))(v)
    assert np.isnan(got) if most == 4 else np.isclose(got, f(v))
    assert any("grew beyond its bound" in note.what for note in notes)


def test_as_a_result_it_is_its_items_and_how_many():
    def f(x):
        out = []
        for _ in range(8):
            x = x / 2
            if x < 1:
                break
            out.append(x)
        return out

    items, length = jax.jit(autograph(f))(10.0)
    assert items[: int(length)].tolist() == [5.0, 2.5, 1.25]


def test_an_index_beyond_its_end_is_a_dropped_raise():
    def f(x):
        out = [x]
        if x > 0:
            out.append(2 * x)
        return out[1]

    assert float(jax.jit(autograph(f))(1.0)) == 2.0
    assert np.isnan(jax.jit(autograph(f))(-1.0))


def counted_down(n):
    """Its list gets n items; the loop over them comes after all that may be a `raise`."""
    xs, total = [], 0.0
    while n > 0:
        xs.append(n)
        n -= 1
    for _ in range(9):
        total += 0.5
    return total + sum([1.5 * x for x in xs]), len(xs)


def breadth_first(g):
    seen, level, queue = [True] + [False] * 4, np.zeros(5, int), collections.deque([0])
    while queue:
        u = queue.popleft()
        for v in range(5):
            if g[u, v] and not seen[v]:
                seen[v] = True
                level[v] = level[u] + 1
                queue.append(v)
    return level


def test_a_list_has_room_in_a_loop_of_unknown_length():
    g = np.diag(np.ones(4), 1) + np.diag(np.ones(4), -1)
    with listen() as notes:
        got = jax.jit(autograph(breadth_first))(g)
    assert got.tolist() == breadth_first(g).tolist()
    (said,) = (n for n in notes if "room for 1024 more items" in n.what)
    assert "test_bounded.py" in said.where and "max_steps" in said.why


def test_what_outgrows_that_room_is_a_raise(monkeypatch):
    monkeypatch.setattr(carry, "ROOM", 24)  # 1024 items take XLA many times as long
    f = jax.jit(autograph(counted_down))
    assert tuple(map(float, f(24))) == counted_down(24)
    assert np.isnan(f(25)[0])
    error, _ = checkify.checkify(jax.jit(autograph(counted_down, checked=True)))(25)
    assert "a list grew beyond its bound" in error.get()
    wider = jax.jit(autograph(counted_down, max_steps=25))
    assert tuple(map(float, wider(25))) == counted_down(25)


def test_a_loop_after_what_may_have_raised_is_still_a_scan():
    program = jax.make_jaxpr(autograph(counted_down))(3)
    assert "scan" in {e.primitive.name for e in program.eqns}


def test_a_short_loop_in_which_a_list_grows_is_unrolled_if_that_says_how_long_it_gets():
    def f(x):
        out = []
        for i in range(4):
            if x[i] > 9:
                break
            k = i
            while k > 0:
                out.append(k)
                k -= 1
        return sum(out), x.sum()

    x = np.array([1.0, 2.0, 3.0, 4.0])
    with listen() as notes:
        got = jax.jit(autograph(f))(x)
    assert tuple(map(float, got)) == f(x) and not [n for n in notes if "room" in n.what]


def test_mal_jit_gives_a_list_no_room_by_itself():
    with pytest.raises(TransformError, match="max_steps"):
        jax.jit(autograph(counted_down, exact=True))(3)


def test_a_list_that_grows_by_the_same_in_every_step_is_the_output_of_a_scan():
    def f(x):
        out = [x]
        for t in np.arange(5.0) + x:
            out.append(out[-1] + t)
        return np.array(out)

    assert_same(f, 2.0)
    assert count(f, "scan", 2.0) == 1


def a_heap_of_some(v):
    heap = []
    for x in v:
        if x > 2:
            heapq.heappush(heap, x)
    return heapq.heappop(heap), heapq.heappop(heap), len(heap), heap[0]


def the_three_largest(v):
    heap = []
    for x in v:
        if len(heap) < 3:
            heapq.heappush(heap, x)
        elif x > heap[0]:
            heapq.heapreplace(heap, x)
    return sorted(heap)[0]


def pairs_in_a_heap(v):
    heap = []
    for i, x in enumerate(v):
        if x > 2:
            heapq.heappush(heap, (x, i))
    x, i = heapq.heappop(heap)
    return x, i, len(heap)


def a_sorted_list_of_some(v):
    kept = []
    for x in v:
        if x > 2:
            bisect.insort(kept, x)
    return kept[0], kept[-1], len(kept), bisect.bisect(kept, 4.5)


def longest_increasing(v):
    tails = []
    for x in v:
        i = bisect.bisect_left(tails, x)
        if i == len(tails):
            tails.append(x)
        else:
            tails[i] = x
    return len(tails)


@pytest.mark.parametrize(
    "f",
    [a_heap_of_some, the_three_largest, pairs_in_a_heap, a_sorted_list_of_some, longest_increasing],
)
def test_heapq_and_bisect_of_a_list_whose_length_is_traced(f):
    assert_same(f, np.array([3.0, 1.0, 4.0, 1.5, 5.0, 9.0, 2.5, 6.0], np.float32))


def test_heapq_of_a_list_with_room_for_many():
    def f(v):
        heap, out = [], 0.0
        for x in v:
            if x > 0:
                heapq.heappush(heap, x)
        for _ in range(3):
            out = 10 * out + heapq.heappop(heap)
        return out, len(heap)

    assert_same(f, np.arange(99.0)[::-1] % 7 - 1)


def test_a_list_of_lists_of_traced_length_is_gone_over_by_a_traced_index():
    def f(edges, start):
        n = len(edges)
        near = [[j for j in range(n) if edges[i, j]] for i in range(n)]
        far, queue = [-1] * n, [start]
        far[start] = 0
        while queue:
            u = queue.pop(0)
            for w in near[u]:
                if far[w] < 0:
                    far[w] = far[u] + 1
                    queue.append(w)
        return far, len(near[start]), near[start][0]

    edges = np.array([[0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1], [0, 0, 1, 0]])
    got = jax.jit(autograph(f, max_steps=8))(edges, 3)
    assert jax.tree.leaves(jax.tree.map(int, got)) == jax.tree.leaves(f(edges, 3))


class Job:
    def __init__(self, time, name):
        self.time, self.name = time, name

    def __lt__(self, other):
        return self.time < other.time


@dataclasses.dataclass(order=True)
class Entry:
    time: float
    name: int = dataclasses.field(compare=False)


@pytest.mark.parametrize("kind", [Job, Entry])
def test_heapq_of_objects(kind):
    def f(v):
        heap, names = [kind(x, k) for k, x in enumerate(v)], []
        heapq.heapify(heap)
        first = heapq.heappop(heap)
        heapq.heappush(heap, kind(first.time + 4, 9))
        while heap:
            names.append(heapq.heappop(heap).name)
        return first.name, names

    with listen() as notes:
        assert_same(f, np.array([7.0, 3.0, 5.0, 1.0]))
    assert not any("has no attribute" in note.what for note in notes)


@pytest.mark.parametrize("v", [[1.0, 1.0, 2.0], [2.0, 2.0, 2.0], [3.0, 1.0, 1.0]])
def test_items_that_may_be_none(v):
    def f(v):
        runs, last, n = [], None, 0
        for x in v:
            if x == last:
                n += 1
            else:
                if last is not None:
                    runs.append((last, n))
                last, n = x, 1
        runs.append((last, n))
        return len(runs), sum(k * (0.0 if x is None else x) for x, k in runs)

    assert_same(f, np.array(v))


@XS
def test_items_that_are_text_or_none_or_a_number(x):
    def f(x, n):
        seen, kinds, pairs = [], [], []
        for i in range(n):
            seen.append(x / (i + 1) if i % 2 else None)
            if x > 3 * i:
                kinds.append("low" if x > 20 else "high")
                pairs.append(("at", i) if x > 5 else ("by", x))
        total = 0.0
        for one in seen:
            total += -1.0 if one is None else one
        for kind, y in pairs:
            total += y if kind == "at" else 10 * y
        return total, kinds.count("low"), "high" in kinds, len(seen), seen[1] is None

    assert_same(f, x, 4)


@pytest.mark.parametrize("n", [0, 3])
def test_lists_of_traced_length_in_one_another(n):
    def f(x, n):
        rows = []
        for i in range(n):
            row = []
            for j in range(i):
                row.append(x * j)
            rows.append(row)
        return sum(sum(row) for row in rows) + 0.0, len(rows), rows[-1][0] if n > 1 else x

    assert_same(f, 2.0, n)


@XS
def test_a_list_of_traced_length_in_a_display(x):
    def f(x):
        big = [y for y in (1.0, 4.0, x) if y > 3]
        both = [x, *big, *range(2), *big]
        ones = [*map(len, [big]), *(1 for _ in big)]
        return min([x, *big]), len(both), both[-1], sum([*big]), sum(ones)

    assert_same(f, x)


@pytest.mark.parametrize("n", [1, 3])
def test_an_iterator_over_a_list_and_items_taken_out_of_it(n):
    def f(n):
        xs, k = [1.0, 2.0, 0.5], 0
        if n > 2:
            xs.append(7.0)
        for _ in iter(xs):
            k += 1
        for _ in range(n):
            if xs:
                del xs[0]
        taken = xs.pop(n % len(xs)) if xs else 0.0
        return k, taken, sum(xs) + 0.0

    assert_same(f, n)


@XS
def test_builtins_that_others_call_on_lists_of_traced_length(x):
    def f(x):
        low, high = [y for y in (1.0, x, 2 * x, 9.0) if y < 3], [y for y in (4.0, x) if y > 3]
        both = [low, high]
        long = max(both, key=len)
        full = len(list(filter(None, [low, high, [y for y in high if y > 30]])))
        return list(map(len, both)), long[0], len(sorted(both, key=len)[0]), full

    assert_same(f, x)


@pytest.mark.parametrize("n", [1, 3])
def test_a_generator_in_a_display_goes_over_a_list_of_traced_length(n):
    def f(n):
        xs = [1.0, 2.0]
        if n > 2:
            xs.append(7.0)
        both = [*map(len, [xs]), *(1 for _ in xs)]
        return both[0], sum(both), len(both)

    assert_same(f, n)


def test_what_python_would_go_over_is_refused():
    def f(n):
        xs = [1.0, 2.0]
        if n > 2:
            xs.append(7.0)
        return len("".join("a" for _ in xs))

    with pytest.raises(TransformError, match="asks for items, on a list whose length is known"):
        jax.jit(autograph(f))(1)


@pytest.mark.parametrize("k", [0, 2, 5, -1])
def test_a_part_of_a_list_is_replaced_or_deleted(k):
    def f(k):
        xs, ys, zs = [1.0, 2.0, 3.0, 4.0], [1.0, 2.0], [5.0, 6.0, 7.0]
        xs[:k] = [0.5]
        if k > 1:
            ys.append(3.0)
        ys[1:] = [ys[-1], 8.0]
        del zs[k : k + 2]
        for i in range(2):
            ys[i : i + 1] = (9.0,)
            ys[len(ys) :] = xs[:2]
        del ys[-2:]
        return sum(xs), len(xs), xs[0], sum(ys), len(ys), ys[-1], sum(zs) + 0.0, len(zs)

    assert_same(f, k)


@pytest.mark.parametrize("n", [0, 3])
def test_a_list_that_is_bound_to_a_longer_one_in_every_step(n):
    def f(x, n):
        xs, ys, zs, z = [x, 1.0, 0.5], [x], [x, 2.0, 3.0], 0
        while z < n:
            z += 1
            xs += [x, 1.0]
            ys = ys + ys
            zs = zs[-1:] + zs[:-1]
        return sum(xs), len(xs), len(ys), sum(ys), zs[0], len(zs)

    assert_same(f, 2.5, n)


def test_a_result_that_is_a_list_in_which_none_may_be_has_nan_there():
    def f(v, make):
        out = []
        for i in range(4):
            if v[i] > 0:
                out.append(v[i])
            elif i == 1:
                out.append(make(i))
        return out

    v = np.array([1.0, -2.0, 3.0, -4.0])
    got = jax.jit(autograph(lambda v: f(v, lambda i: None)))(v)
    assert got.length == 3 and np.array_equal(got.items[:3], [1, np.nan, 3], equal_nan=True)
    with pytest.raises(TransformError, match=r"which is a result(.|\n)*hint"):
        jax.jit(autograph(lambda v: f(v, lambda i: "none")))(v)


@pytest.mark.parametrize("limit", [0.0, 2.0, 9.0])
def test_sort_orders_the_list_that_every_name_has(limit):
    def f(v, limit):
        buckets, least = [[], []], 0.0
        same = buckets[1]
        for x in v:
            buckets[1 if x > limit else 0].append(x)
            if x > 1:
                buckets[1].sort()
            if same:
                least += same[0]
        buckets[0].sort(reverse=True)
        return [0.0 + sum(k * x for k, x in enumerate(b)) for b in buckets], least, len(same)

    assert_same(f, np.array([3.0, 0.5, 7.0, 1.0, 5.0, 3.0]), limit)


@pytest.mark.parametrize("limit", [0.1, 0.6, 1.5])
def test_lists_and_tuples_of_numbers_are_rows_of_an_array(limit):
    def f(x, limit):
        pairs, rows = [], [[1, 2]]
        for _ in range(8):
            x = x / 2
            if x > limit:
                pairs.append(([x, 1], (2, x * x)))
                rows.append(np.array([x, 3.0]))
        tall = np.vstack(rows).T
        return np.array(pairs).sum(), np.array(rows).sum(axis=0), tall[0, -1], tall[1, 0], len(rows)

    assert_same(f, 4.0, limit)


def test_a_number_of_a_list_of_tuples_is_not_their_sum():
    def f(x, make):
        xs = []
        while x > 1 and len(xs) < 9:
            x = x / 2
            xs.append((x, 1.0))
        return make(xs)

    for make in (sum, max):
        with pytest.raises((TransformError, TypeError)):
            jax.jit(autograph(lambda x, make=make: f(x, make)))(9.0)
