"""A number that is None on one path: where it is used as one, Python would raise a TypeError."""

import collections
import math
import types

import jax
import numpy as np
import pytest

from malleable import autograph, listen
from tests.frontend.behaviour.behaviour import assert_same

V = np.array([3.0, 1.0, 4.0, 1.5])
USES = {
    "+": lambda x, v: x + 1,
    "-": lambda x, v: -x,
    "<": lambda x, v: np.where(x < 2, v, 1.0),
    "[]": lambda x, v: v[x],
    "numpy.sqrt": lambda x, v: np.sqrt(x),
    "numpy.sum": lambda x, v: np.sum(x),
    "math.exp": lambda x, v: math.exp(x),
    "abs": lambda x, v: abs(x) + 0.5,
    "float": lambda x, v: float(x),
}


@pytest.mark.parametrize("name", USES)
def test_a_use_of_what_may_be_none_is_noted_and_gives_no_number(name):
    def f(v, limit):
        x = None
        if v[0] > limit:
            x = 1
        return USES[name](x, v) + 0.0

    with listen() as notes:
        compiled = jax.jit(autograph(f))
        assert np.isnan(compiled(V, 5.0)).all()
    assert any(
        f"TypeError: `{name}` is not defined for 'NoneType'" in n.what and __file__ in n.where
        for n in notes
    )
    np.testing.assert_allclose(compiled(V, 2.0), f(V, 2.0), rtol=1e-6)


@pytest.mark.parametrize("limit", [2.0, 5.0])
@pytest.mark.parametrize("name", USES)
def test_a_handler_sees_what_python_raises_of_none(name, limit):
    def f(v, limit):
        x = None
        if v[0] > limit:
            x = 1.0
        try:
            return np.sum(USES[name](x, v)) + 0.0
        except TypeError:
            return -7.0

    if name not in ("[]", "numpy.sum"):  # NumPy takes None for a new axis, and for an object
        assert_same(f, V, limit)


def least(v):
    best = None
    for x in v:
        if best is None or x < best:
            best = x
    return best


def least_attribute(v):
    o = types.SimpleNamespace(best=None)
    for x in v:
        if o.best is None or x < o.best:
            o.best = x
    return o.best


def greatest_entry(v):
    d = {"most": None}
    for x in v:
        if not d["most"] or x > d["most"]:
            d["most"] = x
    return d["most"]


def ascents(v):
    previous, total = None, 0.0
    for x in v:
        if previous is not None and x > previous:
            total += x - previous
        previous = x
    return total


def differences(v):
    previous, total = None, 0.0
    for x in v:
        if previous is None:
            previous = x
            continue
        total += abs(x - previous)
        previous = x
    return total


def sum_of_two(v):
    a = b = None
    for x in v:
        if x > 2:
            a = x
        else:
            b = x
    if a is not None and b is not None:
        return a + b
    return 0.0


def either_missing(v):
    a = b = None
    for x in v:
        if x > 3:
            a = x
        if x < 1:
            b = x
    if a is None or b is None:
        return -1.0
    return a * b


def true_or_default(v):
    a = None
    for x in v:
        if x > 3:
            a = x
    return (a or 1.0) * 2 + (a * 2 if a else 0.5)


def filled_in(v):
    x = None
    if v[0] > 5:
        x = v[0]
    if x is None:
        x = 2.0
    return x * 2


TESTED = (least, least_attribute, greatest_entry, ascents, differences, sum_of_two)
TESTED += (either_missing, true_or_default, filled_in)


@pytest.mark.parametrize("v", [V, V[::-1] / 3, V + 5], ids=["usual", "small", "large"])
@pytest.mark.parametrize("f", TESTED)
def test_where_the_program_has_asked_nothing_is_noted(f, v):
    with listen() as notes:
        assert_same(f, v)
    assert not [n.what for n in notes if "NoneType" in n.what]


@pytest.mark.parametrize("limit", [2.0, 5.0])
def test_none_may_be_a_key_and_what_a_class_of_the_users_is_asked(limit):
    class Asked:
        def __getitem__(self, key):
            return -1.0 if key is None else key * 2.0

    def f(v, limit):
        counts, key = collections.OrderedDict({None: 3.0, 1: 5.0}), None
        if v[0] > limit:
            key = 1
        return counts[key], Asked()[key]

    with listen() as notes:
        assert_same(f, V, limit)
    assert not [n.what for n in notes if "NoneType" in n.what]


def test_constants_of_a_tuple_that_is_none_on_one_path_are_no_numbers_there():
    f = jax.jit(autograph(lambda there: (2.5, 1, True, 2j) if there else None))
    assert f(True) == (2.5, 1, True, 2j)
    number, whole, flag, both = f(False)
    assert np.isnan([number, both]).all()
    assert whole == np.iinfo(np.int32).min and not flag


@pytest.mark.parametrize("x", [-2.0, 2.0])
def test_what_a_test_tells_of_one_variable_is_not_told_of_another_that_is_none(x):
    def f(x):
        callback = status = None
        if x < 0:
            status = 1
        if status is None:
            x = x + 1 if callback is None else x + 2
        return x if callback is None else x + 100

    assert_same(f, x)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_max_of_none_on_a_path_that_is_not_taken_is_a_raise(order):
    bound = types.SimpleNamespace(value=None)

    def f(x):
        if x < 0:
            numbers = (3.0, bound.value, x)
            x = max(*(numbers[k] for k in order))
        return x

    assert_same(f, 2.0)
