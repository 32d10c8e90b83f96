"""Comprehensions with traced conditions, and what goes over lists whose length is traced."""

import math

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from malleable import TransformError, autograph, listen
from tests.frontend.behaviour.behaviour import assert_same

V = np.array([3.0, 1, 4, 1, 5, 9, 2, 6])


def agree(f, *examples):
    compiled = jax.jit(autograph(f))
    for x in examples:
        want, got = f(np.array(x)), compiled(np.array(x))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, want)


def test_reductions_of_generators_with_a_traced_condition():
    def f(v):
        return (
            (sum(x for x in v if x > 2), sum(1 for x in v if x > 2 if x < 6)),
            max((x for x in v if x > 2), default=-1.0),
            (any(x > 8 for x in v if x > 3), all(x > 3 for x in v if x > 3.5)),
            next((i for i, x in enumerate(v) if x > 4), -1),
            sum(x * y for x in v if x > 2 for y in v if y < x),
            len([x for x in list(v)[:3] if not x > 2]),
        )

    agree(f, V, -V)


def test_what_stops_at_an_item_asks_for_no_more():
    class Meter:
        def __init__(self, value):
            self.value, self.reads = value, 0

        @property
        def level(self):
            self.reads += 1
            return self.value

    def f(v):
        crew = [Meter(v[0]), Meter(v[1]), Meter(v[2])]
        seen = [0]

        def look(x):
            seen[0] += 1
            return x > 2

        found = (
            any(1.0 for one in crew if one.level > 2),
            all(one.level < 3 for one in crew),
            next((one.reads for one in crew if one.level > 2), -1),
            any(look(x) for x in v),
            any(one.reads + other.level > 5 for one in crew for other in crew if one.level > 1),
        )
        return found, [one.reads for one in crew], seen[0]

    agree(f, V, -V, V[2:], V / 2, V[::-1])


def test_a_list_of_what_a_condition_keeps_is_a_list():
    def f(v):
        kept = [x * 2 for x in v if x > 2]
        pairs = [(i, x) for i, x in enumerate(v) if x > 2]
        total = 0.0
        for i, x in pairs:
            total += i * x
        return (
            (len(kept), sum(kept), kept[0], kept[-1], total, min(kept, key=lambda t: abs(t - 7))),
            (sum(kept[1:]), sum(kept[:-1]), kept[::-1][0], sum(kept[-2:]), sum(list(V) + kept)),
            (sorted(kept)[0], sorted(kept, reverse=True)[1], list(reversed(kept))[1]),
            (10.0 in kept, 3.0 in kept, kept == [6.0, 8, 10, 18, 12], kept.index(10.0)),
            sum(i * x for i, x in enumerate(kept) if x > 7),
        )

    agree(f, V)


def test_methods_of_a_list_whose_length_is_traced():
    def f(v):
        kept, rest = [x for x in v if x > 2], [x for x in v if x < 2.5]
        popped = kept.pop(), kept.pop(0), kept.pop(1)
        kept.extend(rest)
        kept.insert(1, 8.0)
        kept.remove(8.0)
        kept.reverse()
        return popped, len(kept), kept[0], kept[-1], kept.count(1.0), sum(kept + list(v)[:1])

    agree(f, V)


def test_numpy_takes_a_list_whose_length_is_traced():
    def f(v):
        kept = []
        for x in v:
            if x > 2:
                kept.append(x)
        return (
            (np.max(kept), np.mean(kept), np.std(kept), np.median(kept), np.sort(kept)[1]),
            (np.cumsum(kept)[-1], np.diff(kept)[0], np.argmax(kept), np.array(kept).sum()),
        )

    agree(f, V)


def test_what_a_condition_leaves_out_has_no_derivative():
    def f(v):
        return sum(np.sqrt(x) for x in v if x > 0)

    slopes = jax.jit(jax.grad(autograph(f)))(jnp.array([4.0, -1.0, 0.0]))
    np.testing.assert_allclose(slopes, [0.25, 0, 0])


def test_a_list_of_as_many_items_as_a_number_says_has_room_for_some():
    def f(n):
        return sum([i * i for i in range(n)])

    assert jax.jit(autograph(f, max_steps=9))(4) == 14
    with listen() as notes:
        assert jax.jit(autograph(f))(4) == 14
    assert "a list has room for 1024 more items in this loop" in [note.what for note in notes]


@pytest.mark.parametrize("kind", [tuple, frozenset])
def test_no_other_container_takes_such_a_list(kind):
    def f(v):
        return len(kind([x for x in v if x > 2]))

    with pytest.raises(TransformError, match="known only at run time"):
        jax.jit(autograph(f))(V)


def test_the_number_of_chosen_items_is_traced():
    def f(v):
        return len(v[v > 2]), len(np.nonzero(v > 2)[0]), sum(i * x for i, x in enumerate(v[v > 2]))

    agree(f, V)


def test_a_condition_that_is_a_chain_evaluates_each_operand_once():
    def f(v):
        asked = [0]

        def middle(x):
            asked[0] += 1
            return 2 * x

        kept = [x for x in v if 2 < middle(x) <= x + 4 != v[0]]
        return sum(x for x in v if -v[0] < abs(x) < 5), len(kept), sum(kept), asked[0]

    assert f(V)[-1] == len(V)
    agree(f, V)


def test_functions_that_are_collected_see_the_last_item():
    def late(x):
        adders = [lambda y: y + i for i in range(3)]  # noqa: B023
        pairs = [(j, lambda: j) for j in (1, 2)]  # noqa: B023
        return [add(x) for add in adders], pairs[0][1]()

    values, last = jax.jit(autograph(late))(3.0)
    assert [float(v) for v in values] == [5.0, 5.0, 5.0]
    assert last == 2


@pytest.mark.parametrize(
    "f",
    [
        lambda v: frozenset([int(v[0])]),
        lambda v: dict.fromkeys([int(v[0])]),
    ],
)
def test_a_traced_key_of_a_set_or_dict_is_named_with_its_line(f):
    with pytest.raises(TransformError, match=r"traced key\n  at .*test_comprehensions\.py:\d+"):
        jax.jit(autograph(f))(V)


def test_the_sum_of_as_many_numbers_as_a_condition_keeps_is_of_their_kind():
    def f(v):
        ones, halves = [1 for x in v if x > 2], [0.5 for x in v if x > 2]
        kinds = [isinstance(sum(xs), kind) for xs, kind in ((ones, int), (halves, float))]
        return kinds, sum(ones) ** -1, sum(halves, 1)

    agree(f, V)


@pytest.mark.parametrize("x", [1.0, -1.0])
def test_a_dict_has_a_key_only_where_the_condition_of_its_comprehension_holds(x):
    def f(x):
        d = {i: v for i, v in enumerate([x, 2.0]) if v > 0}
        return len(d), 0 in d, d.get(0, 7.0)

    assert jax.jit(autograph(f))(x) == f(x)


def test_a_set_with_a_traced_condition_has_a_traced_length():
    f = lambda x: len({i for i, v in enumerate([x, 2.0]) if v > 0})
    assert [jax.jit(autograph(f))(x) for x in (1.0, -1.0)] == [2, 1]


def test_a_set_of_words_with_a_traced_condition_is_refused_at_its_line():
    def f(x):
        return len({w for w, v in zip("ba", [2.0, x]) if v > 0})

    with pytest.raises(TransformError, match=r"a set .*\n  at .*test_comprehensions\.py:\d+"):
        jax.jit(autograph(f))(1.0)


@pytest.mark.parametrize("limit", [4.0, 2.0, 9.0])
def test_a_name_bound_in_a_comprehension_or_generator(limit):
    def f(v, limit):
        w, last = 1.0, 0.0
        first = x if any((x := y) > limit for y in v) else -1.0
        found = [w * 2 for y in v if (w := y - limit) > 0]
        big = (last for y in v if (last := 2 * y) > limit)
        return first, sum(found) + 0.0, len(found), w, sum(big), last

    assert_same(f, np.array([3.0, 5.0, 6.0]), limit)
    known = jax.jit(autograph(lambda v: any((x := y) > 4 for y in [1, 7, 9]) and v[0] * x))
    assert known(np.array([3.0])) == 21


XS = np.array([3.0, 1.0, 4.0, 1.0, 5.0])


def square(k):
    return k * k


ONE_BY_ONE = [
    lambda n: sum(XS[k % 5] / (k + 1) for k in range(n) if k % 2),
    lambda n: sum(i * j for i in range(n) for j in range(i)),
    lambda n: sum(1 for i in range(3) for j in range(n) if i != j),
    lambda n: (any(XS[k] > 3 for k in range(n)), all(XS[k] > 0 for k in range(n))),
    lambda n: (max(XS[k] for k in range(n + 1)), min((-XS[k], k) for k in range(n + 1))[1]),
    lambda n: max((XS[k] for k in range(n)), default=-5.0) + sum((XS[k] for k in range(n)), 9.0),
    lambda n: math.prod(k + 1 for k in range(n)),
    lambda n: (next(k for k in range(9) if k * k > n), next((k for k in range(n) if k > 9), -1)),
    lambda n: (len({k % 3 for k in range(n)}), {k: k * k for k in range(n + 1)}[n]),
    lambda n: (len([XS[k] for k in range(n) if XS[k] > 1]), sum([1 / (k + 1) for k in range(n)])),
    lambda n: (sum(range(n)), max(range(n + 1), key=lambda k: XS[k]), len(list(range(n)))),
    lambda n: sum(x * k for k, x in zip(range(n), XS)) + sum(map(square, range(n))),
]


@pytest.mark.in_turns
@pytest.mark.parametrize("f", ONE_BY_ONE)
def test_a_comprehension_over_a_range_of_unknown_length(f):
    compiled = jax.jit(autograph(f))
    for n in (0, 1, 4):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), compiled(n), f(n))
    lanes = jax.jit(jax.vmap(autograph(f)))(np.array([4, 0]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(np.asarray(a)[0], b, 1e-6), lanes, f(4))


def test_any_asks_no_item_after_one_that_holds():
    def f(n):
        asked = [0]

        def above(k):
            asked[0] += 1
            return XS[k] > 3

        return any(above(k) for k in range(n)), asked[0]

    compiled = jax.jit(autograph(f))
    assert [compiled(n) for n in (0, 2, 5)] == [f(n) for n in (0, 2, 5)]


def test_the_largest_of_no_items_is_an_error_for_a_handler():
    def f(n):
        try:
            return max(XS[k] for k in range(n))
        except ValueError:
            return -1.0

    compiled = jax.jit(autograph(f))
    assert [compiled(n) for n in (0, 3)] == [-1.0, 4.0]


def test_a_sum_over_a_range_of_unknown_length_has_a_gradient_with_a_bound():
    f = lambda x, n: sum(x**k for k in range(n))
    assert jax.grad(autograph(f, max_steps=6))(2.0, 4) == 1 + 2 * 2 + 3 * 4
