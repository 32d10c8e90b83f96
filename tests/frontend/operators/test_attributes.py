"""`getattr`, `hasattr`, `o.name = x`, where one path alone gives an object the attribute."""

import dataclasses
from operator import attrgetter

import jax
import numpy as np
import pytest
from scipy.optimize import OptimizeResult

from malleable import TransformError, autograph
from tests.frontend.values.test_raises import agree


class Result:
    kept = 3.0

    def by_class(self):
        return self.x

    def __init__(self, x, **more):
        self.x = x
        vars(self).update(more)

    @property
    def twice(self):
        if not hasattr(self, "half"):
            raise AttributeError("half")
        return 2 * self.half


class Record(dict):
    """Its attributes are its items, as those of an OptimizeResult are."""

    __setattr__ = dict.__setitem__
    __delattr__ = dict.__delitem__


def set_in_a_branch(x):
    if x > 1:
        r = Result(x)
        r.a = 1.0
    else:
        r = Result(2 * x)
    return r.x + getattr(r, "a", 5.0) + (r.a if hasattr(r, "a") else 7.0)


def made_in_a_branch(x):
    r = Result(x, a=1.0) if x > 1 else Result(2 * x, b=3.0)
    return r.x + getattr(r, "a", 5.0) + getattr(r, "kept", 9.0) + (r.b if hasattr(r, "b") else 7.0)


def a_property_that_raises(x):
    r = Result(x, half=x) if x > 1 else Result(x)
    return getattr(r, "twice", 5.0)


def an_array_or_none(x):
    r = np.array([x, 1.0]) if x > 1 else None
    return x * (getattr(r, "size", 0) + 2 * hasattr(r, "shape"))


def an_array_of_one_path(x):
    r = Result(x, v=np.array([x, 2.0])) if x > 1 else Result(x)
    v = getattr(r, "v", None)
    if v is None:
        return x
    v += 1
    return r.v.sum()


def results_of_scipy(x):
    r = OptimizeResult(x=x, nit=2.0) if x > 1 else OptimizeResult(x=-x)
    asked = r["nit"] if hasattr(r, "nit") else 0.0
    try:
        found = r.nit
    except AttributeError:
        found = 9.0
    return getattr(r, "nit", 7.0) * r.x + asked + r.get("nit", 11.0) + found


def written_in_a_branch(x):
    r = OptimizeResult(x=x, nit=4.0)
    if x > 1:
        r.x = 3.0
        r.success = True
    for i in range(3):
        if x > i:
            r.nit += x
    return r.x * r.nit + hasattr(r, "success") + r.pop("success", 8)


def deleted_in_a_branch(x):
    r = Record(x=x, nit=4.0)
    if x > 1:
        del r.nit
    return r["x"] + r.get("nit", 7.0)


def hides_that_of_the_class(x):
    r, others = Result(x), {}
    if x > 1:
        r.kept = x
    for name, value in vars(r).items():
        others[name] = value
    return (
        r.kept
        + 10 * len(vars(r))
        + 100 * len(r.__dict__)
        + 1000 * ("kept" in vars(r))
        + (vars(r).get("kept", 0.5) + attrgetter("kept")(r) + len(others))
    )


def deleted_down_to_that_of_the_class(x):
    r = Result(x, kept=x)
    if x > 1:
        del r.kept
    r.kept += 1.0
    return r.kept


def deleted_where_it_may_not_be(x):
    r = Result(x)
    if x > 1:
        r.kept = x
    try:
        del r.kept
    except AttributeError:
        return x - 4.0
    return r.kept * x


def hidden_in_a_loop(x):
    r = Result(x)
    for i in range(3):
        if x > i:
            r.kept += x
    return r.kept + 10 * len(vars(r))


def a_method_of_one_path(x):
    r = Result(x)
    if x > 1:
        r.by_class = lambda: 4.0 * x
    return r.by_class()


class Slots:
    __slots__ = ("a", "b")


def of_slots(x):
    s, t = Slots(), Slots()
    s.b = 3.0
    if x > 1:
        s.a = x
        del s.b
    try:
        found = s.a
    except AttributeError:
        found = 5.0
    u = s if x > 0 else t
    return getattr(s, "a", x) + 10 * hasattr(s, "b") + x * found + 100 * hasattr(u, "b")


class Fallback:
    def __getattr__(self, name):
        if name != "a":
            raise AttributeError(name)
        return 7.0


def by_a_fallback(x):
    r = Fallback()
    if x > 1:
        r.a = r.b = x
    try:
        found = r.b
    except AttributeError:
        found = 5.0
    return (r.a + 10 * getattr(r, "a", x) + getattr(r, "b", 0.5)) * x + (
        found + 100 * hasattr(r, "a") + 1000 * hasattr(r, "b")
    )


@pytest.mark.parametrize(
    "f",
    [
        hides_that_of_the_class,
        deleted_down_to_that_of_the_class,
        deleted_where_it_may_not_be,
        hidden_in_a_loop,
        a_method_of_one_path,
        of_slots,
        by_a_fallback,
        set_in_a_branch,
        made_in_a_branch,
        a_property_that_raises,
        an_array_or_none,
        an_array_of_one_path,
        results_of_scipy,
        written_in_a_branch,
        deleted_in_a_branch,
    ],
    ids=lambda f: f.__name__,
)
def test_an_attribute_of_one_path_is_there_on_that_path(f):
    agree(f, (2.0,), (0.5,), (1.5,), (-1.0,))
    for x in (2.5, 0.5):
        np.testing.assert_allclose(
            jax.grad(autograph(f))(x), (f(x + 1e-3) - f(x - 1e-3)) / 2e-3, rtol=1e-2
        )


def test_a_dict_of_a_class_that_may_lack_a_key_is_not_gone_over():
    def f(x):
        r = Record(x=x, nit=2.0) if x > 1 else Record(x=x)
        return sum(r.values())

    with pytest.raises(TransformError, match="has the key 'nit' on one path only"):
        jax.jit(autograph(f))(2.0)


class Missing(dict):
    def __missing__(self, key):
        return 42.0


def test_the_missing_key_of_one_path_is_made_by_the_class():
    def f(x):
        d = Missing(x=x)
        if x > 1:
            d["b"] = x
        return d["b"] + d.get("b", 1.0)

    for x in (0.5, 1.5):
        assert jax.jit(autograph(f))(x) == f(x)


def test_dataclasses_is_not_asked_for_fields_of_one_path():
    @dataclasses.dataclass
    class Pair:
        a: float
        b: float = dataclasses.field(default=2.0, init=False)

    def f(x):
        pair = Pair(x)
        if x > 1:
            pair.b = x
        return dataclasses.astuple(pair)

    with pytest.raises(TransformError, match="the key 'b' on one path only"):
        jax.jit(autograph(f))(0.5)
