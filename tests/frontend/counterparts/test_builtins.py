"""Builtins, `math` and their like on traced values agree with Python on numbers."""

import bisect
import cmath
import collections
import math
import statistics
from dataclasses import dataclass, field

import jax
import numpy as np
import pytest
from jax import numpy as jnp

from malleable import autograph, listen
from malleable.arrays.box import Box, unbox
from malleable.errors import TransformError
from malleable.frontend.counterparts import builtins as ours
from malleable.frontend.counterparts import scalars
from malleable.frontend.counterparts.builtins import TABLE, Steps, TracedRange


def traced(fun, *args):
    """The result of fun on traced boxes of the arguments."""
    return jax.jit(lambda *xs: unbox(fun(*map(Box, xs))))(*args)


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        *((f, (0.3,)) for f in (math.sin, math.acos, math.exp, math.expm1, math.sqrt, math.cbrt)),
        *((f, (2.7,)) for f in (math.gamma, math.lgamma, math.erf, math.erfc, math.log2)),
        *((f, (-2.5,)) for f in (math.floor, math.ceil, math.trunc, math.fabs, math.degrees)),
        *((f, (7.5, -2.0)) for f in (math.fmod, math.remainder, math.copysign, math.atan2)),
        *((f, (math.inf,)) for f in (math.isnan, math.isinf, math.isfinite)),
        *((f, (12, 18)) for f in (math.gcd, math.lcm, math.hypot)),
        (math.log, (8.0,)),
        (math.log, (8.0, 2.0)),
        (math.pow, (2.0, 3.0)),
        (math.hypot, (2.0, 3.0, 6.0)),
        (math.factorial, (6,)),
        (math.comb, (7, 3)),
        (math.perm, (7, 3)),
        (math.isqrt, (24,)),
        (math.isclose, (1.0, 1.0 + 1e-12)),
        (math.isclose, (1.0, 1.1)),
        (math.frexp, (10.0,)),
        (math.modf, (-3.25,)),
        (math.ldexp, (0.75, 3)),
        *((f, (0.3 + 0.4j,)) for f in (cmath.exp, cmath.sqrt, cmath.phase, cmath.polar)),
        (cmath.rect, (2.0, 0.5)),
    ],
)
def test_a_function_of_math_on_traced_numbers_is_the_one_of_python(fun, args):
    want, got = fun(*args), traced(TABLE[fun], *args)
    np.testing.assert_allclose(got, want, rtol=2e-6)
    kinds = jax.tree.map(lambda x: np.asarray(x).dtype.kind, (want, got))
    assert kinds[0] == kinds[1]


@pytest.mark.parametrize("fun", [math.sqrt, int, float, complex, math.floor])
def test_a_number_of_python_is_weakly_typed(fun):
    def check(x):
        out = TABLE[fun](x)
        assert isinstance(out, {int: int, math.floor: int, complex: complex}.get(fun, float))
        return out

    assert traced(check, 2.5).weak_type


def test_math_of_collections():
    assert float(traced(lambda x, y: TABLE[math.dist]([x, 0.0], (0.0, y)), 3.0, 4.0)) == 5
    assert float(traced(lambda x, y: TABLE[math.prod]([x, y, 2]), 3.0, 4.0)) == 24
    assert float(traced(lambda x: TABLE[math.fsum](x), np.arange(4.0))) == 6
    assert float(traced(lambda x: TABLE[statistics.mean]([x, 2.0]), 4.0)) == 3
    assert int(traced(lambda x: TABLE[bisect.bisect_right]([1, 2, 4], x), 2)) == 2
    assert TABLE[math.prod](iter([2, 3])) == 6


@pytest.mark.parametrize("fun", [min, max])
def test_min_and_max_are_a_chain_of_comparisons(fun):
    assert float(traced(lambda a, b: TABLE[fun](a, b, 2.5), 1.0, 3.0)) == fun(1.0, 3.0, 2.5)
    assert float(traced(TABLE[fun], np.array([3.0, 1.0, 2.0]))) == fun(3.0, 1.0, 2.0)
    by_key = lambda a, b: TABLE[fun]([a, b], key=lambda x: -x)
    assert float(traced(by_key, 1.0, 3.0)) == fun(1.0, 3.0, key=lambda x: -x)
    assert TABLE[fun]([], default=3) == 3
    assert TABLE[fun]("ab", key=ord) == fun("ab", key=ord)
    assert TABLE[fun]({1: 2, 3: 4}) == fun({1: 2, 3: 4})
    with pytest.raises(ValueError, match="empty"):
        TABLE[fun]([])


def test_min_promotes_as_values():
    assert traced(lambda a: ours.min_(a, 2), 2.5).dtype == np.float32


def test_sum_any_and_all():
    assert float(traced(lambda x: ours.sum_([x, 2, x]), 1.5)) == 5
    assert traced(ours.sum_, np.ones((3, 2))).tolist() == [3, 3]
    assert bool(traced(lambda x: ours.any_([False, x > 0]), 1.0))
    assert not bool(traced(lambda x: ours.all_(y > 0 for y in [x, x - 2]), 1.0))
    assert ours.any_([0, 1]) is True and ours.all_([1, 0]) is False
    assert traced(lambda x: ours.any_([x > 3, True]), 1.0) is not None


def test_conversions_of_traced_scalars():
    assert int(traced(ours.TABLE[int], -2.7)) == -2
    assert int(traced(ours.TABLE[int], np.array([2.7]))) == 2
    assert bool(traced(ours.TABLE[bool], 0.1))
    assert complex(traced(ours.TABLE[complex], 1.0, 2.0)) == 1 + 2j
    assert int(traced(ours.round_, 2.5)) == 2
    assert float(traced(lambda x: ours.round_(x, 1), 2.26)) == pytest.approx(2.3)
    assert ours.TABLE[int]("12", 8) == 10 and ours.TABLE[int]() == 0
    with pytest.raises(TypeError, match="one element"):
        traced(ours.TABLE[float], np.ones(2))
    with pytest.raises(TypeError, match="complex"):
        traced(ours.TABLE[float], 1j)


def test_type_is_what_the_value_pretends_to_be():
    seen = []
    jax.jit(lambda x: seen.append(ours.type_(Box(x))) or x)(1.0)
    assert seen == [float] and ours.type_(1) is int and ours.type_("A", (), {}).__name__ == "A"


@pytest.mark.parametrize("args", [(5,), (1, 5), (1, 8, 3), (8, 1, -3), (3, 3), (5, 2)])
def test_a_traced_range_has_the_length_and_items_of_range(args):
    want = range(*args)

    def run(*xs):
        steps = ours.range_(*xs)
        assert isinstance(steps, TracedRange)
        back = ours.reversed_(steps)
        return steps.length, steps.item(0), back.length, back.item(0)

    length, first, back_length, last = traced(run, *args)
    assert int(length) == int(back_length) == len(want)
    if want:
        assert (int(first), int(last)) == (want[0], want[-1])
    static_step = lambda n: ours.range_(0, n, 2).length
    assert int(traced(static_step, args[0])) == len(range(0, args[0], 2))


def test_a_range_refuses_what_python_refuses():
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        traced(lambda x: ours.range_(x).length, 2.0)
    with pytest.raises(ValueError, match="must not be zero"):
        traced(lambda n: ours.range_(0, n, 0).length, 2)
    with pytest.raises(TransformError, match="known only at run time"):
        traced(lambda n: list(ours.range_(n)), 2)
    assert ours.range_(3) == range(3)


def test_enumerate_zip_and_map_of_arrays_are_steps():
    def run(x, i):
        i_, pair = ours.enumerate_(ours.zip_(x, [10, 20, 30], range(3)), 5).get(i)
        doubled = ours.map_(lambda a: 2 * a, ours.reversed_(x))
        assert doubled.length == 3 and isinstance(doubled, Steps)
        return (i_, *pair, doubled.get(i), sum(doubled))

    got = traced(run, np.array([1.0, 2.0, 3.0]), 1)
    assert [float(x) for x in got] == [6, 2, 20, 1, 4, 12]


def test_zip_ends_with_the_shortest():
    assert traced(lambda x, n: ours.zip_(x, ours.range_(n)).length, np.ones(3), 2) == 2
    assert ours.zip_([1], "a").__class__ is zip
    with pytest.raises(ValueError, match="different lengths"):
        traced(lambda x: ours.zip_(x, [1], strict=True), np.ones(3))


def test_nothing_traced_gives_the_builtin():
    assert list(ours.zip_([1, 2], "ab")) == [(1, "a"), (2, "b")]
    assert isinstance(ours.enumerate_([]), enumerate) and isinstance(ours.map_(abs, [1]), map)
    assert list(ours.reversed_([1, 2])) == [2, 1]
    assert ours.sorted_("ba", key=ord, reverse=True) == ["b", "a"]
    assert scalars.SCALARS[math.sqrt](4) == 2.0


def test_sorting_traced_scalars():
    up = lambda a, b, c: ours.sorted_([a, b, c])
    assert [float(x) for x in traced(up, 3.0, 1.0, 2.0)] == [1, 2, 3]
    down = lambda a, b, c: ours.sorted_([a, b, c], key=abs, reverse=True)
    assert [float(x) for x in traced(down, -3.0, 1.0, 2.0)] == [-3, 2, 1]
    pairs = lambda a, b: ours.sorted_([(a, 1.0), (b, 2.0)], key=lambda p: p[0])
    assert [float(x) for _, x in traced(pairs, 3.0, 1.0)] == [2, 1]
    with pytest.raises(TransformError, match="no single numbers"):
        traced(lambda a: ours.sorted_([(1, a), (a, 2)], key=lambda p: p[0] * np.ones(2)), 1.0)


def test_pick_wraps_and_clips():
    xs = [1.0, 2.0, 3.0]
    assert [float(traced(lambda i: ours.pick(xs, i), i)) for i in (0, -1, 7)] == [1, 3, 3]
    with pytest.raises(TypeError, match="indices must be integers"):
        traced(lambda i: ours.pick(xs, i), 1.0)


def test_print_shows_values_when_the_program_runs(capsys):
    jax.jit(lambda x: ours.print_("x", [Box(x)], sep="=", end="!") or x)(jnp.arange(2))
    jax.effects_barrier()
    assert capsys.readouterr().out == "x=[array([0, 1], dtype=int32)]!"
    ours.print_("plain")
    assert capsys.readouterr().out == "plain\n"


Pair = collections.namedtuple("Pair", ["first", "second"])


@dataclass
class Point:
    x: float
    path: list = field(default_factory=list)


class Angle:
    def __init__(self, degrees):
        self.degrees = degrees

    def __str__(self):
        return f"{self.degrees:.1f}{'!' if self.degrees > 2 else ''}"


def shows_containers(x):
    print({"z": x, "b": [x, (1, x)]}, {2, x}, collections.deque([x]), collections.Counter({1: x}))
    print(collections.defaultdict(list, {x: 1}), Pair(x, None), [x > 2, x * 0.5, x + 1j], end="|")


def shows_what_grew(x):
    xs, found, seen = [x], {4: 1}, {x}
    for k in range(4):
        if k > x:
            xs.append(k)
        found[k + x] = k
        seen.add(x % 2)
    print(xs, found, seen, [(k, y) for k, y in enumerate(xs) if y > x], {x}, {x: {x}})


def shows_objects(x):
    p = Point(x, [x])
    p.path.append(p)
    print(p, [Point(x)], Angle(x), Angle(x - 2))
    try:
        if x > 2:
            raise ValueError(x, "large")
    except ValueError as e:
        print(e, [e])


def shows_what_it_was(x):
    a, xs = np.zeros(2), [1]
    print(a, xs, x, [x if x > 2 else None], "large" if x > 2 else "small")
    a[0] = 1
    xs.append(2)
    v = np.array([x, -1.0, 2.0])
    print(v[v > 0], a, xs)


def shows_texts(x):
    size, p = "large" if x > 2 else "small", Point(x, [])
    print(f"{x}, {x!r:>4}|{x / 2:.3f} {x > 2} {[x, 1]} {p} {Angle(x)!s}", f"{size} {x:d}")
    print("%d%% of %s, %.2f" % (x, size, x / 4), f"{3:>{4}}{'b'!r}", "%5.1f" % x)  # noqa: UP031
    for k in range(3):
        if k < x:
            print("{}: {:6.2f}".format(k, x * 0.5), f"{k}", sep="; ")  # noqa: UP032


@pytest.mark.parametrize("x", [3, 1])
@pytest.mark.parametrize(
    "f", [shows_texts, shows_containers, shows_what_grew, shows_objects, shows_what_it_was]
)
def test_what_is_printed_looks_as_in_python(f, x, capsys):
    jax.jit(autograph(f))(x)
    jax.effects_barrier()
    said = capsys.readouterr().out
    f(x)
    assert said == capsys.readouterr().out


def test_text_that_is_made_before_it_is_printed_leaves_a_note():
    def f(x):
        text = f"{x:.2f}"
        print(text)

    with listen() as notes:
        jax.jit(autograph(f))(3.0)
    assert [n.what for n in notes] == [
        "text that is made before it is printed shows the types of traced values"
    ]


def test_a_print_of_the_users_own_is_given_a_text():
    def f(x):
        kept = []

        def shown(*args):
            kept.extend(args)

        print = shown
        print(f"{x:.2f}", "%d" % 3)  # noqa: UP031
        return len(kept), kept[1] == "3"

    assert [int(n) for n in jax.jit(autograph(f))(3.0)] == [2, 1]


def test_warn_points_at_the_caller():
    with pytest.warns(UserWarning, match="careful"):
        ours.warn("careful")
