"""Objects that are compared by code of their class, or of a dataclass, and dataclasses.replace."""

import dataclasses
import functools
from collections import namedtuple

import jax
import numpy as np
import pytest

from malleable import autograph, listen
from malleable.errors import TransformError
from tests.frontend.behaviour.behaviour import assert_same

XS = np.array([3.0, 1.0, 4.0, 1.0])
Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass(order=True)
class Task:
    cost: float
    name: int = dataclasses.field(compare=False, default=0)
    parts: list = dataclasses.field(compare=False, default_factory=list)


@dataclasses.dataclass(frozen=True)
class Limit:
    x: float
    clipped: bool = False

    def __post_init__(self):
        if self.x > 2:
            object.__setattr__(self, "clipped", True)


class Size:
    def __init__(self, x, n):
        self.x, self.n = x, n

    def __lt__(self, other):
        if self.x == other.x:
            return self.n > other.n
        return self.x < other.x


def of_rows(xs):
    rows = [Pair(xs[i], xs[i - 1]) for i in range(4)]
    return max(rows), min(rows), sorted(rows)[1]


def of_dataclasses(xs):
    tasks = [Task(x, i) for i, x in enumerate(xs)]
    tasks.sort()
    tasks[0].parts.append(1.0)
    first, other = Task(xs[0]), Task(xs[0], 5)
    return [t.name for t in tasks], len(tasks[0].parts), first == other, first < Task(xs[2])


def of_methods(xs):
    sizes = [Size(x, i) for i, x in enumerate(xs)]
    best = min(sizes)
    best.n += 10
    return max(sizes).n, [s.n for s in sizes], [s.n for s in sorted(sizes, reverse=True)]


def of_heads(xs):
    return min((Size(x, i), i) for i, x in enumerate(xs[:3]))[1]


@pytest.mark.parametrize("f", [of_rows, of_dataclasses, of_methods, of_heads])
def test_objects_are_sorted_by_what_their_class_says(f):
    for xs in (XS, -XS):
        assert_same(f, xs)


def test_comparing_many_objects_is_refused():
    def f(xs):
        return max(Size(x, i) for i, x in enumerate(xs)).n

    with pytest.raises(TransformError, match=r"30 objects are compared(.|\n)*test_comparisons"):
        jax.jit(autograph(f))(np.arange(30.0))


def test_a_picked_object_is_replaced():
    def f(k, x):
        tasks = [Task(1.0, 1), Task(2.0, 2)]
        new = dataclasses.replace(tasks[k], cost=x)
        new.parts.append(x)
        return new.cost, new.name, len(tasks[k].parts), tasks[0].cost

    for k in (0, 1):
        assert_same(f, k, 7.0)


def test_the_methods_that_replace_calls_are_converted():
    def f(x):
        limit = dataclasses.replace(Limit(0.0), x=x)
        return limit.x, limit.clipped

    for x in (1.0, 3.0):
        assert_same(f, x)


def test_a_picked_object_is_given_to_a_function_of_the_library():
    def f(k):
        tasks = [Task(1.0, 1), Task(2.0, 2)]
        return dataclasses.asdict(tasks[k])["cost"]

    for k in (0, 1):
        assert_same(f, k)


class Vector:
    def __init__(self, *items):
        self.items = list(items)

    def __iter__(self):
        return iter(self.items)

    def __getitem__(self, i):
        return self.items[i]


@pytest.mark.parametrize("x", [-1.0, 2.0])
def test_min_of_two_things_that_can_be_gone_over_is_one_of_them(x):
    def f(x):
        a, b = Vector(x, 1.0), Vector(0.5, x)
        least = min(a, b, key=lambda v: v[0])
        least.items[1] = 9.0
        return a.items, b.items

    assert_same(f, x)


def test_bools_of_a_batch_count_as_those_of_python():
    def sign(x, y):
        return (x > 0) - (x < 0), (x > 0) + (y > 0), -(x > 0)

    xs, ys = np.array([2.0, -3.0, 0.0]), np.array([1.0, -1.0, 1.0])
    got = jax.vmap(autograph(sign))(xs, ys)
    want = zip(*(sign(x, y) for x, y in zip(xs.tolist(), ys.tolist(), strict=True)), strict=True)
    assert [x.tolist() for x in got] == list(map(list, want))


@pytest.mark.parametrize("x", [2.0, 3.0])
def test_unequal_is_what_equal_says_where_a_class_has_no_word_for_it(x):
    class Near:
        def __init__(self, x):
            self.x = x

        def __eq__(self, other):
            if self.x > other.x:
                return self.x - other.x < 1.5
            return other.x - self.x < 0.5

    def f(x):
        far, other = Near(x) != Near(2.0), Limit(x) != Limit(3.0)
        return far + 0, other + 0

    assert_same(f, x)


@functools.total_ordering
class Version:
    def __init__(self, major, minor):
        self.major, self.minor = major, minor

    def __eq__(self, other):
        return (self.major, self.minor) == (other.major, other.minor)

    def __lt__(self, other):
        return (self.major, self.minor) < (other.major, other.minor)


def test_comparisons_that_functools_adds_are_converted():
    def f(xs):
        versions = [Version(xs[i], xs[i - 1]) for i in range(4)]
        newest, moves = versions[0], 0
        for v in versions[1:]:
            if v >= newest:
                newest, moves = v, moves + 1
        return newest.minor, moves, versions[0] <= versions[2], versions[1] > versions[3]

    assert_same(f, np.array([2.0, 1.0, 2.0, 4.0]))


def test_a_comparison_of_two_is_a_key():
    def f(xs):
        slope = functools.cmp_to_key(lambda a, b: a[0] * b[1] - b[0] * a[1])
        rows = [(xs[i], xs[i - 1]) for i in range(4)]
        return sorted(rows, key=slope), max(rows, key=slope), slope(rows[0]) <= slope(rows[1])

    assert_same(f, np.array([2.0, 1.0, 3.0, 4.0]))


@pytest.mark.parametrize("x", [2.0, -3.0])
def test_what_is_compared_may_be_callable(x):
    class Scale:
        def __init__(self, x):
            self.x = x

        def __lt__(self, other):
            return self.x < other.x

        def __call__(self, y):
            return self.x * y

    def f(x):
        return max(Scale(x), Scale(1.0))(2.0), min(Scale(x), Scale(1.0), key=Scale(-1.0).__lt__).x

    assert_same(f, x)


def test_a_bool_of_a_batch_is_pythons_where_only_that_has_a_meaning_else_it_is_said():
    def f(x):
        match x > 0, x:
            case True, y if y > 1:
                kind = 1
            case True, _:
                kind = 2
            case _:
                kind = 3
        return kind, (x > 1) is True, [10, 20][x > 0]

    xs = [2.0, 0.5, -1.0]
    with listen() as notes:
        found = jax.vmap(autograph(f))(np.array(xs))
        other = jax.vmap(autograph(lambda x: ~(x > 1)))(np.array(xs))
    assert [*zip(*found, strict=True)] == [f(x) for x in xs]
    assert other.tolist() == [False, True, True]  # as of np.bool
    said = {note.what for note in notes}
    assert {f"`{name}` takes a bool of a batch for one of {whose}" for name, whose in SAID} <= said


SAID = [("is", "Python's"), ("~", "NumPy's")]
