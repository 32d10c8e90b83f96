"""Generators whose tests are traced: what they yield is a list whose length may be traced."""

import functools
import itertools

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph
from tests.frontend.behaviour.behaviour import assert_same

V = np.array([3.0, 1.0, 4.0, 1.0, 5.0, 9.0], np.float32)


def large(xs, limit=2):
    for x in xs:
        if x > limit:
            yield x


def steps_up(xs):
    for i in range(len(xs) - 1):
        if xs[i] < xs[i + 1]:
            yield i, xs[i + 1] - xs[i]


def in_parts(xs):
    yield 0.0
    yield from large(xs)
    for x in large(xs, 4):
        yield -x


def until_eight(xs):
    for x in xs:
        if x > 8:
            return
        yield x


def runs(xs):
    return itertools.groupby(xs, key=lambda x: x > 2)


class Bag:
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        for x in self.items:
            if x > 2:
                yield x


class Tree:
    def __init__(self, value, left=None, right=None):
        self.value, self.left, self.right = value, left, right

    def walk(self):
        if self.left is not None:
            yield from self.left.walk()
        if self.value > 2:
            yield self.value
        if self.right is not None:
            yield from self.right.walk()


def tree(v):
    return Tree(v[0], Tree(v[1], None, Tree(v[2])), Tree(v[3]))


@pytest.mark.parametrize(
    "f",
    [
        lambda v: (sum(large(v)), max(large(v)), min(large(v, 3)), any(x > 8 for x in large(v))),
        lambda v: (len(list(large(v))), sorted(large(v))[0]),
        lambda v: sum(x * x for x in large(v)),
        lambda v: next((x for x in large(v) if x > 4), -1.0),
        lambda v: sum(in_parts(v)),
        lambda v: sum(until_eight(v)),
        lambda v: sum(Bag(v)),
        lambda v: sum(tree(v).walk()),
        lambda v: sum(i * x for i, x in enumerate(large(v))),
        lambda v: sum(a * b for a, b in zip(large(v), v, strict=False)),
        lambda v: sum(filter(lambda x: x > 2, v)),
        lambda v: len(list(filter(None, [x - 1 for x in v]))),
        lambda v: sum(itertools.takewhile(lambda x: x < 5, v)),
        lambda v: sum(itertools.dropwhile(lambda x: x < 4, v)),
        lambda v: sum(itertools.filterfalse(lambda x: x < 4, v)),
        lambda v: sum(itertools.compress(v, v > 2)),
        lambda v: len(list(itertools.compress(v, [x > 2 for x in v]))),
        lambda v: functools.reduce(lambda a, x: a * x, large(v)),
        lambda v: functools.reduce(lambda a, x: 2 * a - x, [x for x in v if x > 2], v[1]),
        lambda v: sum(len(list(run)) * (3 if k else 1) for k, run in runs(v)),
        lambda v: sum(sum(run) ** 2 for _, run in itertools.groupby(sorted(v))),
        lambda v: [k for k, _ in itertools.groupby([1, 1, 2]) if v[0] > k][-1],
    ],
)
def test_all_that_it_yields_at_once(f):
    assert_same(f, V)


def squares(xs):
    for x in xs:
        yield x * x


def of_pairs(pairs):
    for i, x in pairs:
        if x > 2:
            yield i * x


@pytest.mark.parametrize(
    "f",
    [
        lambda v: [sum(large(squares(v))), sum(squares(large(squares(v))))],
        lambda v: sum(large(xs=squares(v))),
        lambda v: [y for y in squares(large(v)) if y > 10],
        lambda v: sum(of_pairs(enumerate(v))),
        lambda v: sum(of_pairs(zip([1, 2, 3], v, strict=False))),
        lambda v: sum(large(map(abs, v))),
        lambda v: sum(large(itertools.chain(squares(v), v))),
        lambda v: sum(large(x for x in v)),
        lambda v: sum((lambda held: (x for x in large(held[0])))([squares(v)])),
    ],
)
def test_one_that_goes_over_another_begins_anew_with_it(f):
    def summed(v):
        found = f(v)
        return sum(found) if isinstance(found, list) else found

    assert_same(summed, V)


@pytest.mark.parametrize(
    "f",
    [
        lambda v: sum(large(reversed([v[0], v[1], v[2]]))),
        lambda v: sum(large(itertools.islice(squares(v), 3))),
        lambda v: sum((lambda it: (next(it), large(it))[1])(squares(v))),
    ],
)
def test_one_that_goes_over_what_cannot_begin_anew_is_refused(f):
    with pytest.raises((TransformError, TypeError)):
        jax.jit(autograph(f))(V)


def test_a_loop_goes_over_what_it_yields():
    def f(v):
        total, places = 0.0, 0
        for i, d in steps_up(v):
            total, places = total + d, places + i
        for k, x in enumerate(large(v)):
            total += k * x
        for x in Bag(v):
            total -= x
        return total, places

    assert_same(f, V)


@pytest.mark.parametrize("t", [1.0, -1.0])
def test_what_it_changes_on_the_way_is_changed_once(t):
    def f(v, t):
        n, counts, seen = 0, np.zeros(3, np.float32), {"all": 0}

        def generate():
            nonlocal n
            for x in v:
                n += 1
                counts[0] += 1
                seen["all"] += 1
                if x > 2:
                    yield x

        total = sum(generate())
        if t > 0:
            total += max(generate())
        return total, n, counts, seen

    assert_same(f, V, t)


def test_with_tests_that_are_known_it_runs_in_turn_with_the_loop():
    def f(v):
        def odd():
            for i in range(len(v)):
                if i % 2:
                    yield v[i]

        total = 0.0
        for x in odd():
            total += x
            v[5] = 0.0
        return total

    assert_same(f, V)


def loop_changes(v):
    def generate():
        for i in range(len(v)):
            if v[i] > 2:
                yield v[i]

    for _ in generate():
        v[5] = 0.0
    return v


def generator_changes(v):
    count = [0]

    def generate():
        for x in v:
            count[0] += 1
            if x > 2:
                yield x

    total = 0.0
    for x in generate():
        total += x * count[0]
    return total


@pytest.mark.parametrize(
    ("f", "what"),
    [(loop_changes, "what the loop changes"), (generator_changes, "changes what it is given")],
)
def test_what_would_happen_in_turn_is_refused(f, what):
    with pytest.raises(TransformError, match=f"a generator with a traced test .*{what}") as caught:
        jax.jit(autograph(f))(V)
    assert "test_generators.py" in str(caught.value)


def test_one_that_is_sent_values_keeps_its_error():
    def f(v):
        def generate():
            for x in v:
                if x > 2:
                    got = yield x
                    assert got is None

        return sum(generate())

    with pytest.raises(TransformError, match="Python's") as caught:
        jax.jit(autograph(f))(V)
    assert "test_generators.py" in str(caught.value)


@pytest.mark.parametrize("named", [False, True])
def test_a_generator_that_a_loop_leaves_is_closed_unless_it_has_a_name(named):
    def f(x):
        closed = []

        def numbers(n):
            try:
                yield from range(n)
            finally:
                closed.append(n)

        rest, total = numbers(4), 0.0
        for k in rest if named else numbers(3):
            if k == 2:
                break
            total += k * x
        return total, len(closed), sum(rest)

    assert_same(f, 2.0)


@pytest.mark.parametrize("limit", [0.0, 3.5, 20.0])
def test_generator_expressions_that_have_a_name(limit):
    def mean(numbers):
        total, n = 0.0, 0
        for x in numbers:
            total, n = total + x, n + 1
        return total / n if n else 0.0

    def f(v, limit):
        kept = (x * 2 for x in v if x > limit)
        pairs = ((x, y) for x in [1.0, *[z for z in v if z > limit]] for y in (x, 2.0) if y < x)
        below, seen = (x for x in v if x < limit), []
        for x in below:
            seen.append(x)
            if len(seen) > 2:
                break
        large = [x + 1 for x in kept if x < 12]
        return sum(large) + 0.0, len(list(pairs)), sum(seen) + 0.0, mean(x for x in v if x > limit)

    assert_same(f, V, limit)


def test_a_generator_expression_that_is_advanced_is_not_begun_anew():
    def f(v):
        rest = (x for x in v if x > 2)
        return next(rest), sum(rest)

    with pytest.raises(TransformError, match="stays Python's"):
        jax.jit(autograph(f))(V)


def test_lambdas_of_comprehensions_within_one_another_see_the_last_of_each():
    def f(v):
        kept = [[lambda: (i, j, v) for j in range(2)] for i in range(3)]  # noqa: B023
        return [g()[:2] for row in kept for g in row]

    assert jax.jit(autograph(f))(1.0) == f(1.0) == [(2, 1)] * 6
