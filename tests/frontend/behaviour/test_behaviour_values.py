"""Rows 79 to 82 of AutoGraph's behaviours: lists, items of arrays, builtins, super and scopes."""

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph, inline_stack
from tests.frontend.behaviour.behaviour import BOTH, XS, assert_same

# ---------------------------------------------------------------- 79-80 lists and items


def test_row_79_a_list_filled_in_a_python_loop_is_a_list():
    def f(x):
        out = []
        for k in range(3):
            out.append([x * k])
            out[-1].append(k)
        last = out.pop()
        return out, last, len(out)

    assert_same(f, 1.5)


def test_row_79_a_list_filled_in_a_scan_can_be_stacked():
    @autograph
    def f(xs):
        out = []
        s = 0.0
        for x in xs:
            s = s + x
            out.append(s)
        return inline_stack(out)

    np.testing.assert_allclose(jax.jit(f)(XS), np.cumsum(XS))


def test_row_79_a_list_filled_in_a_scan_is_read_at_its_end():
    def f(xs):
        out = [0.0]
        for x in xs:
            out.append(out[-1] * 0.5 + x)
        return out[0], out[-1], out[2], len(out)

    assert_same(f, XS)


@BOTH
def test_row_79_a_list_that_grows_in_one_traced_branch_knows_its_length(x):
    def f(x):
        out = [x]
        if x > 0:
            out.append(x * 2)
        return len(out), out[0], out[-1]

    assert_same(f, x)


@BOTH
def test_row_79_a_list_of_unknown_length_leaves_as_its_items_and_their_number(x):
    def f(x):
        out = [x]
        if x > 0:
            out.append(x * 2)
        return out

    out = jax.jit(autograph(f))(x)
    assert out.items.shape == (2,)
    np.testing.assert_allclose(out.items[: int(out.length)], f(x))


ITEMS = {
    "int": lambda a, i, v: a.__setitem__(1, v),
    "traced int": lambda a, i, v: a.__setitem__(i, v),
    "pair": lambda a, i, v: a.__setitem__((i, 1), v),
    "negative": lambda a, i, v: a.__setitem__((-1, -i), v),
    "slice": lambda a, i, v: a.__setitem__(slice(1, None), v),
    "step": lambda a, i, v: a.__setitem__((slice(None), slice(None, None, 2)), v),
    "ellipsis": lambda a, i, v: a.__setitem__((Ellipsis, 0), v),
    "list": lambda a, i, v: a.__setitem__([0, 2], v),
    "mask": lambda a, i, v: a.__setitem__(a > 4, v),
}


@pytest.mark.parametrize("name", ITEMS)
def test_row_80_an_item_is_written_at_any_index(name):
    def f(a, i, v):
        ITEMS[name](a, i, v)
        return a

    assert_same(f, np.arange(12, dtype=np.float32).reshape(3, 4), 2, 7.5)


def test_row_80_items_are_written_read_and_increased_by_their_syntax():
    def f(a, i, v):
        a[i] = v
        a[0, i] = v * 2
        a[1:, ..., 1] += 3
        a[i, 0] *= 2
        a[:, -1] -= a[:, 0]
        return a, a[..., None].shape[-1], a[None, i, 1:], a[::-1, i]

    assert_same(f, np.arange(12, dtype=np.float32).reshape(3, 4), 2, 7.5)


def test_row_80_all_names_of_an_array_see_a_write_through_a_view():
    def f(a, v):
        same, row, held = a, a[1], {"a": a}
        row[0] = v
        same[2, 1:] = row[:3]
        return a, same, row, held["a"]

    assert_same(f, np.arange(12, dtype=np.float32).reshape(3, 4), 7.5)


def test_row_80_a_write_to_the_row_that_a_loop_goes_over_is_one_to_the_matrix():
    def f(m, x):
        for row in m:
            row[0] = x
            x = x + 1
        return m, x

    assert_same(f, np.zeros((4, 2), np.float32), 2.0)


@BOTH
def test_row_80_a_view_chosen_by_a_traced_branch_is_still_a_view(x):
    def f(a, x):
        if x > 0:
            v = a[:2]
        else:
            v = a[1:]
        v[0] = 7.0
        return a

    assert_same(f, np.ones(3, np.float32), x)


@BOTH
def test_row_80_a_write_to_one_of_two_arrays_chosen_by_a_traced_test_reaches_it(x):
    def f(a, b, x):
        c = a if x > 0 else b
        c[0] = 9.0
        return a, b, c

    assert_same(f, np.zeros(2, np.float32), np.ones(2, np.float32), x)


def test_row_80_an_array_written_and_replaced_in_a_loop_is_written_in_the_first_step_only():
    def f(n):
        w = np.zeros(4, np.float32)
        old = w
        for i in range(n):
            w[i] = 1
            w = w * 2
        return w, old

    assert_same(f, 3)


def test_row_80_a_write_keeps_the_type_of_the_array():
    def f(a, v):
        a[1] = v
        a[2] += 1
        return a

    assert_same(f, np.arange(4), 7.9)


def test_row_80_a_write_of_a_complex_number_into_floats_is_an_error():
    def f(a, v):
        a[1] = v
        return a

    with pytest.raises(TypeError):
        jax.jit(autograph(f))(np.ones(3, np.float32), 1j)


# ---------------------------------------------------------------- 81 builtins


BUILTINS = {
    "len": lambda xs, x, n: (len(xs), len([x, n])),
    "max": lambda xs, x, n: (max(xs), max(x, 0.5), max([x, 3.0, x * 2]), max(xs, key=abs)),
    "min": lambda xs, x, n: (min(xs), min(x, 0.5, -x)),
    "sum": lambda xs, x, n: (sum(xs), sum([x, x], 1.0), sum(y * 2 for y in xs)),
    "abs": lambda xs, x, n: (abs(x), abs(xs), abs(-n)),
    "int": lambda xs, x, n: (int(x), int(-x), int(n)),
    "float": lambda xs, x, n: (float(n), float(x)),
    "bool": lambda xs, x, n: (bool(x), bool(n - 3)),
    "round": lambda xs, x, n: (round(x), round(x, 1)),
    "divmod": lambda xs, x, n: (divmod(n, 2), divmod(-x, 0.7)),
    "pow": lambda xs, x, n: (pow(x, 2), pow(n, 2)),
    "any, all": lambda xs, x, n: (any(xs > 5), all(xs > 5), any([x > 0, n > 5]), all([])),
    "enumerate": lambda xs, x, n: [i * y for i, y in enumerate(xs)],
    "zip": lambda xs, x, n: [a - b for a, b in zip(xs, xs * 2)],
    "map, filter": lambda xs, x, n: (list(map(abs, xs)), list(filter(None, [0, 2]))),
    "range": lambda xs, x, n: [x * i for i in range(3)],
    "reversed": lambda xs, x, n: list(reversed([x, 2.0])) + list(reversed(xs)),
    "tuple, list, dict": lambda xs, x, n: (tuple(xs), list(xs), dict(zip("ab", (x, n)))),
    "isinstance": lambda xs, x, n: (isinstance(xs, np.ndarray), isinstance(x, float)),
    "print": lambda xs, x, n: print(x, sep="") or x,
}


@pytest.mark.parametrize("name", BUILTINS)
@pytest.mark.parametrize("x", [1.25, -2.6])
def test_row_81_a_builtin_on_traced_values_is_that_of_python(name, x):
    assert_same(BUILTINS[name], XS, x, 3)


def test_row_81_traced_numbers_are_printed_in_order(capfd):
    @jax.jit
    @autograph
    def f(x, n):
        for i in range(n):
            print("step", i, "x", x)
            x = x * 2
        return x

    f(1.0, 3).block_until_ready()
    jax.effects_barrier()
    assert capfd.readouterr().out == "step 0 x 1.0\nstep 1 x 2.0\nstep 2 x 4.0\n"


def test_row_81_a_list_of_traced_numbers_is_sorted_or_refused():
    def f(x):
        return sorted([x, 1.0, -x])

    try:
        out = jax.jit(autograph(f))(2.0)
    except TransformError as e:
        assert e.hint
    else:
        np.testing.assert_allclose(out, f(2.0))


# ---------------------------------------------------------------- 82 super and scopes


class Base:
    def __init__(self, by):
        self.by = by

    def scale(self, x):
        if x > 0:
            return x * self.by
        return x - self.by


class Niladic(Base):
    def scale(self, x):
        y = super().scale(x)
        if y > 1:
            y = super().scale(y)
        return y


class Binary(Base):
    def __init__(self, by):
        super(Binary, self).__init__(by + 1)  # noqa: UP008

    def scale(self, x):
        if x > 1:
            return super(Binary, self).scale(x)  # noqa: UP008
        return super(Binary, self).scale(-x)  # noqa: UP008


class Inner(Niladic):
    def scale(self, x):
        def again(y):
            return super(Inner, self).scale(y)

        if x > 1:
            x = again(x)
        return (lambda y: super(Inner, self).scale(y))(x)


class ClassMethod(Base):
    @classmethod
    def make(cls, by):
        return cls(by)

    def scale(self, x):
        if x > 0:
            x = super().scale(x)
        return type(self).make(3.0).by * x


@pytest.mark.parametrize("cls", [Base, Niladic, Binary, Inner, ClassMethod])
@BOTH
def test_row_82_super_finds_the_method_that_python_finds(cls, x):
    assert_same(lambda x: cls(3.0).scale(x), x)


def test_row_82_locals_holds_the_names_of_the_user_only():
    def f(x):
        y = x + 1
        for _ in range(2):
            y = y * 2
        if x > 0:
            y = -y
        names = sorted(locals())
        return y if names == ["_", "x", "y"] else 0.0

    assert_same(f, 2.0)


def test_row_82_eval_and_globals_see_the_scope_of_the_user():
    def f(x):
        y = x + 1
        if x > 0:
            y = y * 2
        return eval("x + y") + len(globals()["XS"])

    assert_same(f, 2.0)


ARRAYS_WITHOUT_AXES = {
    "where": lambda x: np.where(x > 0, x, 1.0),
    "select": lambda x: np.select([x > 0], [x]),
    "zeros_like": np.zeros_like,
    "full_like": lambda x: np.full_like(x, 3.0),
    "tensordot": lambda x: np.tensordot(np.array([x, 1.0]), np.array([x, 2.0]), 1),
}


@pytest.mark.parametrize("name", ARRAYS_WITHOUT_AXES)
def test_an_array_without_axes_is_written_in_place(name):
    make = ARRAYS_WITHOUT_AXES[name]

    def f(x):
        a = make(x)
        b = a
        if x > 1:
            b += 1.0
        return a, b, a + 1.0

    assert_same(f, 2.0)
    assert_same(f, -2.0)
