"""`match` on patterns with parts, some of them traced."""

import itertools

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph
from tests.frontend.behaviour.behaviour import assert_same


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


def sequence(v):
    match (v[0], [v[1], v[2]]):
        case (3.0, [1.0, z]):
            return z
        case (x, [*_, 1.0]):
            return x + 10
        case (x, [y, *zs]) as whole:
            return y * len(zs) + whole[0]
    return 0.0


def starred(v):
    match [v[0], v[1], v[2], 7.0]:
        case [_, _]:
            return 1.0
        case [2.0, *middle, last]:
            return last + middle[1]
        case [*first, 7.0]:
            return sum(first) - 1
    return 0.0


def mapping(v):
    match {"k": v[0], "z": v[1], "n": None}:
        case {"missing": _}:
            return 0.0
        case {"k": 3.0 | 4.0, "z": z, "n": None}:
            return z
        case {"k": _} if v[1] > 1:
            return v[0]
        case {}:
            return -1.0


def classes(v):
    match Point(v[0], (v[1], v[2])):
        case Point(3.0, (a, b)):
            return a - b
        case Point(x=2.0) | Point(other=_):
            return 5.0
        case Point(x, y=[a, _]):
            return x + a
        case int() | str():
            return 7.0


def known(v):
    total = 0.0
    for thing in ("text", 2, None, [v[0], 1], {"a": v[1]}, (), b"ab", Point(1, v[2])):
        match thing:
            case str() | bytes(_) if len(thing) > 2:
                total += 1
            case int(n):
                total += n
            case None:
                total += 100
            case []:
                total += 1000
            case [x, int(n)]:
                total += x + n
            case {"a": a}:
                total += a
            case Point(1, y):
                total += y
            case _:
                total -= 1
    return total


VALUES = ([3.0, 1.0, 4.0], [2.0, 2.0, 1.0], [5.0, 6.0, 7.0], [4.0, 1.0, 2.0])


@pytest.mark.parametrize("f", [sequence, starred, mapping, classes, known])
def test_a_pattern_with_traced_parts_is_a_test_of_the_parts(f):
    for v in VALUES:
        assert float(jax.jit(autograph(f))(np.array(v))) == f(v)


def by_guards(v):
    total, n = 0.0, 0
    for pair in itertools.pairwise(v):
        match pair:
            case (x, y) if x == 1 and y > 4:
                total += 100
            case (x, y) if x > y:
                total += x - y
            case (x, _) if x > 3:
                n += 1
            case _:
                total -= 0.5
    return total, n


def by_name(v):
    match v[0]:
        case y if y > 3:
            return y
        case float(y) if y > 2:
            return y * 2
    return y - 1


@pytest.mark.parametrize("f", [by_guards, by_name])
def test_a_guard_reads_what_its_pattern_binds(f):
    for v in ([3.0, 1.0, 4.0, 1.0, 5.0, 9.0], [1.0, 7.0, 2.0], [2.5, 2.5]):
        assert_same(f, np.array(v))


def test_an_assignment_in_a_guard_is_an_error_at_the_line():
    def f(v):
        match (v[0], v[1]):
            case (x, y) if (z := x) > y:
                return z
        return 0.0

    with pytest.raises(TransformError, match=r"`match`(.|\n)*test_patterns.py:\d+ in f(.|\n)*hint"):
        jax.jit(autograph(f))(np.array(VALUES[0]))
