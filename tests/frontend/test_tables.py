"""Dicts and sets with traced keys: what Python makes of them, or an error at the line."""

import collections
import copy
import heapq
import operator

import jax
import numpy as np
import pytest

import malleable as mal
from malleable import TransformError, autograph
from tests.frontend.behaviour.behaviour import assert_same

XS = np.array([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], np.int32)
YS = np.array([1, 0, 0, 2, 2, 1, 0, 7, 1, 1, 1], np.int32)


def first_double(xs, ys):
    seen = set()
    for i, x in enumerate(xs):
        if x in seen:
            return i, x
        seen.add(x)
    return -1, 0


def two_sum(xs, ys):
    places = {}
    for i in range(len(xs)):
        if 10 - xs[i] in places:
            return places[10 - xs[i]], i
        places[xs[i]] = i
    return -1, -1


def sums_of_parts(xs, ys):
    seen, total, n = {0: 1}, 0, 0
    for x in xs:
        total += x
        n += seen.get(total - 9, 0)
        seen[total] = seen.get(total, 0) + 1
    return n, len(seen)


def one_branch(xs, ys):
    d = {}
    if xs[0] > 2:
        d[xs[0]] = 1.0
    else:
        d[xs[1]] = 2.0
    if xs[0] > 100:
        d[xs[2]] = 5.0
    return d.get(3, 0.0), d.get(1, 0.0), len(d), 4 in d


def parity(xs, ys):
    odd = set()
    for x in xs:
        if x in odd:
            odd.discard(x)
        else:
            odd.add(x)
    return len(odd), 3 in odd, 4 in odd, xs[2] in odd, not odd


def pairs(xs, ys):
    seen = set()
    for i in range(len(xs)):
        seen.add((xs[i] % 3, ys[i]))
    return len(seen), (0, 1) in seen, (xs[0] % 3, ys[0]) in seen, (0, 9) in seen


def counter(xs, ys):
    counts = collections.Counter(xs.tolist())
    counts[ys[0]] += 2
    (first, times), (_, second) = counts.most_common(2)
    return first, times, second, counts[77], len(counts), counts.total()


def gone_over(xs, ys):
    d = {}
    for x in xs:
        d[x] = d.get(x, 0) + x
    total = 0
    for k in d:
        total += k
    for k, v in d.items():
        total = total * 2 + k * v
    return total, sum(d.values()), max(d), min(d.values()), max(d, key=d.get), list(d)[2]


def made_at_once(xs, ys):
    d = dict(zip(xs, ys, strict=True))
    return len(set(xs.tolist())), sorted({x % 4 for x in xs})[1], len({x: -x for x in xs}), d[5]


def taken_out(xs, ys):
    d = {}
    for i, x in enumerate(xs):
        d[x] = i
    a, b = d.pop(xs[2]), d.pop(77, -1)
    del d[9]
    return a, b, len(d), list(d.values())[-1], d.setdefault(50, 8), len(d)


def by_default(xs, ys):
    sums = collections.defaultdict(float)
    for x in xs:
        sums[x % 3] += x * 0.5
    return sums[0], sums[1], sums[2], sums[5], len(sums)


def handled(xs, ys):
    d, total = {}, 0
    for x in xs:
        try:
            total += d[x]
        except KeyError:
            d[x] = x
    return total, len(d)


def two_names(xs, ys):
    d = {}
    e, kept = d, [d, {}]
    for x in xs:
        d[x] = 1
        kept[x % 2][x + 100] = 2
    e[100] = 2
    return len(d), len(e), d[100], len(kept[1])


def copies(xs, ys):
    d = {}
    for x in xs:
        d[x] = 1
    e, g, h = dict(d), d.copy(), copy.copy(d)
    e[100], g[xs[0]], h[55] = 1, 7, 1
    return len(d), len(e), len(g), d[3], g[3], len(h)


class Visits:
    def __init__(self):
        self.seen, self.count = set(), {}

    def visit(self, x):
        new = x not in self.seen
        self.seen.add(x)
        self.count[x] = self.count.get(x, 0) + 1
        return new


def of_an_object(xs, ys):
    visits, total = Visits(), 0
    for x in xs:
        if visits.visit(x):
            total += x
    return total, len(visits.seen), visits.count[5]


def in_each_step(xs, ys):
    total = 0
    for i in range(3):
        seen = set()
        for x in xs:
            seen.add(x % (3 + i))
        total = total * 10 + len(seen)
    return total


def walked(xs, ys):
    seen, at = set(), 0
    for _ in range(20):
        if at in seen:
            break
        seen.add(at)
        at = xs[at % 11]
    return len(seen), at


def cleared(xs, ys):
    seen, n = set(), 0
    for x in xs:
        if x in seen:
            seen.clear()
            n += 1
        seen.add(x)
    return n, len(seen)


def kept_results(xs, ys):
    known = {}

    def square(k):
        if k not in known:
            known[k] = k * k
        return known[k]

    return sum(square(x) for x in xs), len(known)


def displayed(xs, ys):
    first, places = xs[0], {xs[0]: 1, xs[1]: 2}
    seen = {first, 3}
    for n, x in enumerate(xs):
        if x not in seen:
            seen.add(x)
            places[x] = places[first] + n
    return len(seen), places[2], len(places)


def known_members(xs, ys):
    seen, n = {0, 1}, 0
    for k in (3, 1, 7, 3):
        if ys[k] > 0 and k not in seen:
            seen.add(k)
            n += 1
    k = xs[0]
    while k > 0:
        if k % 2 == 0:
            seen.add(20)
        seen.discard(1)
        k -= 1
    return n, len(seen), 7 in seen, 20 in seen


def neighbours(xs, ys):
    queue, seen, order = [xs[0] % 4], {xs[0] % 4}, []
    while queue:
        u = queue.pop(0)
        order.append(u)
        for v in range(4):
            if (u + v) % 3 == 1 and v not in seen:
                seen.add(v)
                queue.append(v)
    return len(order), order[-1]


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "f",
    [
        *(displayed, known_members, neighbours),
        *(first_double, two_sum, sums_of_parts, one_branch, parity, pairs, counter, gone_over),
        *(made_at_once, taken_out, by_default, handled, two_names, copies, of_an_object),
        *(in_each_step, walked, cleared, kept_results),
    ],
)
def test_it_is_what_python_makes_of_it(f):
    compiled = jax.jit(autograph(f))
    for xs in (XS, XS[::-1].copy(), XS % 4):
        try:
            want = f(xs, YS)
        except KeyError:
            continue
        jax.tree.map(np.testing.assert_array_equal, compiled(xs, YS), want)


def test_what_is_under_a_key_has_a_gradient():
    def f(v):
        sums = {}
        for i, x in enumerate(v):
            sums[XS[i]] = sums.get(XS[i], 0.0) + x * x
        return sums[5]

    v = np.arange(11.0, dtype=np.float32)
    want = np.where(XS == 5, 2 * v, 0)
    np.testing.assert_allclose(jax.grad(autograph(f))(v), want)
    np.testing.assert_allclose(jax.vmap(jax.grad(autograph(f)))(np.stack([v, v])), [want, want])


def test_a_result_says_how_many_of_its_items_count():
    def f(xs):
        d, s = {}, set()
        for x in xs:
            d[x] = 2 * x
            s.add(x % 2)
        return d, s

    d, s = jax.jit(autograph(f))(XS)
    assert dict(zip(d.keys[: d.length].tolist(), d.values[: d.length].tolist())) == f(XS)[0]
    assert set(s.items[: s.length].tolist()) == {0, 1}


def test_a_key_that_is_not_there_is_a_key_error():
    def f(xs):
        d = {}
        for x in xs:
            d[x] = x * 1.0
        return d[77]

    with mal.listen() as notes:
        assert np.isnan(jax.jit(autograph(f))(XS))
    assert any("KeyError" in note.what for note in notes)


def filled(xs):
    s = set()
    for x in xs:
        s.add(x)
    return s


def less(s, others):
    s -= others
    return s


@pytest.mark.parametrize(
    ("f", "text"),
    [
        (lambda s: s | {1}, "has traced keys"),
        (lambda s: s == {1, 2}, "has traced keys"),
        (lambda s: {1, 2}.issubset(s), "`issubset` is given a set"),
        (lambda s: s.pop(), "has traced keys"),
        (lambda s: copy.deepcopy(s), "deepcopy` is given a set"),
        (lambda s: (*s,), "has traced keys"),
        (lambda s: operator.isub(s, {1}), "has traced keys"),
        (lambda s: less(s, {1}), "has traced keys"),
    ],
)
def test_what_cannot_be_asked_is_refused(f, text):
    def g(xs):
        return f(filled(xs))

    with pytest.raises(TransformError, match=f"{text}[^$]*test_tables.py:") as caught:
        jax.jit(autograph(g))(XS)
    assert "hint" in str(caught.value)


def test_lists_under_traced_keys_are_refused():
    def f(xs):
        groups = collections.defaultdict(list)
        for x in xs:
            groups[x % 3].append(x)
        return len(groups[0])

    with pytest.raises(TransformError, match="a list whose length is traced has it"):
        jax.jit(autograph(f))(XS)


def recently_used(xs, v):
    """Hits of a cache of two keys, and what it holds in the end."""
    held, hits, total = collections.OrderedDict(), 0, 0.0
    for i in range(5):
        if (key := int(xs[i])) in held:
            held.move_to_end(key)
            hits += 1
        held[key] = v * i
        if len(held) > 2:
            held.popitem(last=False)
    for key in held:
        total = total * 10 + key + held[key]
    return hits, total, len(held), list(held)[-1]


def moved_to_the_front(xs, v):
    held = collections.OrderedDict()
    for key in xs:
        held[int(key)] = held.get(int(key), 0.0) + v
    held.move_to_end(4, last=False)
    key, value = held.popitem()
    return key, value, list(held)[0], len(held), sum(held.values())  # noqa: RUF015


def updated_by_dicts(xs, v):
    plain, keyed = {1: v}, {}
    plain.update({int(xs[0]): 2 * v})
    for key in xs:
        keyed.update({int(key): v})
    return len(plain), plain[1], sum(plain.values()), len(keyed), len([*keyed]), keyed[4]


def joined_in_place(xs, v):
    seen, known, d, e = set(), {int(xs[1])}, {int(xs[0]): 1.0}, {3: v}
    for x in xs:
        if x > 2:
            seen |= {7}
        seen |= {int(x)}
    known |= {9, 3}
    d |= {3: 5.0}
    e |= {int(xs[0]): 6.0}
    return len(seen), 7 in seen, len(known), len(d), sum(d.values()), len(e), sum(e.values())


@pytest.mark.in_turns
@pytest.mark.parametrize(
    "f", [recently_used, moved_to_the_front, updated_by_dicts, joined_in_place]
)
@pytest.mark.parametrize("xs", [[3, 1, 4, 1, 5], [4, 4, 4, 1, 1]])
def test_traced_keys_of_dicts_that_are_updated_or_in_an_order_of_their_own(f, xs):
    assert_same(f, np.array(xs), 1.5)


def test_the_order_of_a_set_is_its_own_and_a_note_says_so():
    with mal.listen() as notes:
        jax.jit(autograph(lambda xs: [2 * x for x in filled(xs)]))(XS)
    assert any("set with traced keys is gone over" in note.what for note in notes)
    with mal.listen() as notes:
        assert jax.jit(autograph(lambda xs: sorted(filled(xs))[1]))(XS) == 2
    assert not any("gone over" in note.what for note in notes)


outside: dict = {}


def test_a_dict_that_outlives_the_call_is_as_it_was():
    def f(xs):
        for x in xs:
            outside[x] = 1
        return len(outside)

    outside[70] = 3
    with mal.listen() as notes:
        assert jax.jit(autograph(f))(XS) == 8
    (kept,) = [note for note in notes if "outlives the call" in note.what]
    assert outside == {70: 3} and "test_tables.py:" in kept.where


def test_a_call_that_raises_says_nothing_else_of_a_dict():
    def f(xs):
        seen = filled(xs)
        return seen == {1, 2}

    with mal.listen() as notes, pytest.raises(TransformError):
        jax.jit(autograph(f))(XS)
    assert not any("outlives the call" in note.what for note in notes)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: dict(zip(range(3), x, strict=True)),
        lambda x: dict(zip([5, 3, 5], x, strict=True)),
        lambda x: dict(enumerate(x, 1)),
    ],
)
def test_a_dict_of_known_keys_is_a_plain_one(make):
    def f(x):
        for _ in range(100):
            x = x / 2
            if np.sum(x) < 1:
                return make(x)
        raise RuntimeError

    got, want = jax.jit(autograph(f))(np.array([3.0, 1.0, 2.0])), f(np.array([3.0, 1.0, 2.0]))
    assert {k: float(v) for k, v in got.items()} == want


@pytest.mark.parametrize("k", [0, 5])
def test_a_key_looked_up_on_one_path_may_be_put_in_on_the_other(k):
    def f(k, y):
        d = {0: 1.0}
        if k in d and d[k] > 0:
            y = y + 1
        d[k] = y
        return d.get(0, -1.0), d.get(5, -2.0), len(d)

    got = jax.jit(autograph(f))(k, 2.0)
    assert [float(x) for x in got] == [float(x) for x in f(k, 2.0)]


def test_shortest_paths_by_a_queue():
    edges = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 3)]

    def f(weights):
        near = {i: [] for i in range(4)}
        for (u, v), w in zip(edges, weights, strict=True):
            near[u].append((v, w))
        distance, queue = {0: 0.0}, [(0.0, 0)]
        while queue:
            d, u = heapq.heappop(queue)
            for v, w in near[u]:
                if v not in distance or d + w < distance[v]:
                    distance[v] = d + w
                    heapq.heappush(queue, (d + w, v))
        return [distance[i] for i in range(4)]

    compiled = jax.jit(autograph(f, max_steps=12))
    for weights in np.array([[1.0, 4, 2, 5, 1], [3, 1, 1, 1, 7]]):
        np.testing.assert_allclose(compiled(weights), f(weights))


@pytest.mark.parametrize("k", [1, 2, 7])
def test_a_key_that_one_path_puts_in_and_the_other_counts(k):
    def f(k):
        d, e, out = {1: 1, 2: 5}, {}, 0
        if k in d:
            d[k] += 1
        else:
            d[k] = 1
        d[1] += 10
        for x in [1, k, 1]:
            if x in e:
                e[x] += 1
            else:
                e[x] = 1
        for i in range(k):
            if i + 5 in d:
                d[i + 5] -= 1
            else:
                out += 1
        return d[1], d[2], len(d), sum(d.values()), e[1], len(e), out

    assert_same(f, k)
