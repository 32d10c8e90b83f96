"""Values that are no numbers and differ between two paths."""

import collections
import enum
import re

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph, listen
from tests.frontend.behaviour.behaviour import BOTH, assert_same


class Model:
    """Computes its value when it is first asked, and keeps it."""

    def __init__(self, x):
        self.x, self.kept = x, None

    @property
    def value(self):
        if self.kept is None:
            self.kept = self.x * self.x
        return self.kept

    def shifted(self, by):
        return Model(self.x + by)


@pytest.mark.parametrize("x", [4.0, 2.0, 0.5])
def test_texts_are_compared(x):
    def f(x):
        if x > 3:
            m = "big"
        elif x > 1:
            m = "mid"
        else:
            m = "low"
        return 1 if m == "mid" else 2 if m.startswith("b") else 3

    assert_same(f, x)


@BOTH
def test_an_object_chosen_is_written_to_and_read(x):
    def f(x):
        p, q = Model(x), Model(1.0)
        m = p if p.x < q.x else q
        m.x = m.x * 3
        return p.x, q.x, m.x, m.value, m.shifted(1.0).value

    assert_same(f, x)


class Asked:
    def __init__(self, count):
        self.count, self.asked = count, 0

    def __bool__(self):
        self.asked += 1
        return self.count > 1


class Sized:
    def __init__(self, count):
        self.count, self.asked = count, 0

    def __len__(self):
        self.asked += 10
        return 1 if self.count > 1 else 0


@BOTH
def test_of_two_objects_the_one_that_it_is_is_asked_what_it_counts_as(x):
    def f(x):
        p, q = Asked(x), Sized(2.0)
        m = p if x < 1 else q
        y = 1 if m else 2
        z = 3 if not m else 4
        return y, z, p.asked, q.asked

    assert_same(f, x)


def test_an_object_goes_around_a_loop_with_what_it_keeps():
    def f(x):
        m, k = Model(x), 0
        while m.value > 1:
            p = m.shifted(-1.0)
            if p.value < m.value:
                m = p
            k += 1
            if k >= 3:
                break
        return m.value, m.x, k

    for x in (3.0, 2.0, 9.0, 0.5):
        assert_same(f, x)


@BOTH
def test_a_use_that_python_refuses_on_one_path_is_a_dropped_raise(x):
    def f(x):
        y = {"a": x} if x > 0 else x
        return y["a"]

    out = float(jax.jit(autograph(f))(x))
    assert out == x if x > 0 else np.isnan(out)


def test_a_mixed_value_used_as_a_number_names_the_variable_and_its_kinds():
    def f(x):
        y = "none"
        if x > 0:
            y = x
        return y * 2

    with pytest.raises(TransformError, match=r"`y` is .*'none'"):
        jax.jit(autograph(f))(1.0)


@BOTH
def test_functions_are_chosen(x):
    def f(x):
        g = np.sin if x > 0 else np.cos
        return g(x)

    assert_same(f, x)


class Square:
    def __init__(self, a):
        self.a = a


class Circle(Square):
    pass


@pytest.mark.parametrize("x", [0.5, 2.0])
def test_a_choice_of_objects_is_asked_for_its_class(x):
    def f(x):
        shape = Square(x) if x > 1 else Circle(x)
        if isinstance(shape, Circle):
            return 3 * shape.a, type(shape) is Square
        return shape.a + 1, isinstance(shape, Square)

    assert_same(f, x)


@pytest.mark.parametrize("x", [0.5, 2.0])
def test_none_or_a_number_is_asked_for_its_class(x):
    def f(x):
        found = 2 * x if x > 1 else None
        return found if isinstance(found, float) else -1.0

    assert_same(f, x)


@pytest.mark.parametrize("x", [0.5, 2.0])
def test_a_list_or_a_tuple_is_asked_for_its_length(x):
    assert_same(lambda x: len([x, x] if x > 1 else (x,)), x)


class Token(enum.IntEnum):
    NUMBER = 1
    SIGN = 2


class State(enum.Enum):
    IDLE = "idle"
    BUSY = "busy"


class Flag(enum.IntFlag):
    A = 1
    B = 2


class Kelvin(float):
    pass


@BOTH
def test_members_of_an_enum_are_told_apart(x):
    def f(x):
        token, state, flags = Token.SIGN, State.BUSY, Flag(0)
        for k in range(3):
            if x > k:
                token, state = Token.NUMBER, State.IDLE
            if x > 0:
                flags |= Flag.B
        match token:
            case Token.NUMBER:
                found = 10
            case Token.SIGN:
                found = 20
        rest = flags & Flag.B != 0, state is State.BUSY, np.arange(3.0)[token], token * 2.5
        return (
            found,
            token is Token.SIGN,
            token == 1,
            token < 2,
            {Token.SIGN: 5}.get(token, 0),
            rest,
        )

    assert_same(f, x)


def test_a_traced_number_meets_a_subclass_of_a_number():
    def f(n, x):
        found = n == Token.SIGN, n != Token.SIGN, n < Token.SIGN, n in (Token.NUMBER, Token.SIGN)
        return found, n + Token.SIGN, x - Kelvin(1.5), Kelvin(1.5) > x

    assert_same(f, 2, 1.0)


def test_a_member_of_an_enum_is_no_result():
    with pytest.raises(TransformError, match=r"the result|this value is a State"):
        jax.jit(autograph(lambda x: State.IDLE if x > 0 else State.BUSY))(1.0)


@BOTH
def test_texts_of_chosen_texts_are_chosen(x):
    def f(x):
        kind = "a" if x > 0 else "bb"
        none = None if x > 0 else 3
        form = "{}-{}", "%s-%s"
        shown = f"k_{kind}", f"{kind:>5}{kind!r}", f"{none}", form[0].format(kind, 1)
        joined = "-".join(["p", kind]), form[1] % (kind, 2), str(kind)
        found = {"k_a": 1, "k_bb": 2}.get(f"k_{kind}", 0), "abb".find(kind)
        matched = re.match("b+", kind) is None
        return [len(text) for text in (*shown, *joined)], found, matched, "-".join([kind]) == "a"

    assert_same(f, x)


def test_a_list_of_chosen_texts_is_not_measured_as_text():
    def f(x):
        return len(str(["a" if x > 0 else "bb"]))

    with pytest.raises(TransformError, match=r"`len` needs .*<one of \[a, bb\]>"):
        jax.jit(autograph(f))(1.0)


def test_a_container_keeps_a_chosen_text_once():
    def f(v):
        texts, queue = [], collections.deque()
        for x in v:
            texts.append("large" if x > 2 else "small")
        queue.append("a" if v[0] > 2 else "b")
        queue.extendleft(["c" if v[0] > 2 else "d"])
        return texts.count("large"), len(texts), queue[0] == "c", queue[1] == "b", len(queue)

    assert_same(f, np.array([3.0, 1.0, 4.0]))


@pytest.mark.parametrize("x", [2.5, 0.2, -1.0])
@pytest.mark.parametrize(
    "f",
    [
        lambda r: r if r is not None else (0.0, 7.0),
        lambda r: (0.0, 7.0) if r is None else r,
        lambda r: (1.0 if r is not None and sum(r) > 1 and r[0] < 9 else 0.0, 0.0),
        lambda r: (1.0 if r is None or not isinstance(r, tuple) or r[1] < 1 else 0.0, 0.0),
    ],
)
def test_past_a_question_for_none_it_is_not_none(f, x):
    def g(x):
        return f((x, x * x) if x > 0 else None)

    np.testing.assert_allclose(jax.jit(autograph(g))(x), g(x), rtol=1e-6)


@pytest.mark.parametrize("x", [2.5, 9.0])
def test_a_number_or_none_is_an_index(x):
    def f(x):
        parents, n, u = [None] * 5, 0, 2
        for v in range(1, 5):
            if x > v:
                parents[v] = v - 1
        while u != 0 and n < 9:
            u = parents[u]
            n += 1
        return n

    assert jax.jit(autograph(f))(x) == f(x)


@BOTH
def test_a_container_of_a_chosen_dict_or_list_is_made_of_what_it_holds(x):
    def f(x):
        a, b = {"p": x, "q": 1.0}, {"p": 5.0, "q": x}
        d, xs = (a, [x, 2.0]) if x > 0 else (b, [3.0, x])
        copied, counts, pairs = dict(d), collections.Counter(d), list(enumerate(xs))
        copied["p"] = 9.0
        return d["p"], counts["q"], pairs[1][1], sorted(xs), len(dict(d.items()))

    assert_same(f, x)


@pytest.mark.parametrize("limit", [2.0, 9.0])
@pytest.mark.parametrize("make", [lambda i, x: (i, x), lambda i, x: [i, (x, x)], lambda i, x: (x,)])
def test_a_result_that_is_a_tuple_or_list_on_one_path_and_none_on_the_other(limit, make):
    def f(v, limit):
        pair = None
        for i in range(3):
            if v[i] > limit:
                pair = make(i, v[i])
        return pair

    v = np.array([1.0, 3.0, 2.5])
    with listen() as notes:
        got = jax.jit(autograph(f))(v, limit)
    assert any(
        "None on one path" in note.what and "test_choices.py" in note.where for note in notes
    )
    if limit < 3:
        assert jax.tree.map(float, got) == jax.tree.map(float, f(v, limit))
    else:
        leaves = jax.tree.leaves(got)
        assert f(v, limit) is None
        assert all(
            np.isnan(x) if x.dtype.kind == "f" else x == np.iinfo(x.dtype).min for x in leaves
        )


@pytest.mark.parametrize("x", [1.0, -1.0])
def test_a_dict_gives_a_text_or_one_of_several_defaults(x):
    def f(x):
        message = status = None
        while status is None:
            x = x * 2
            if x > 100:
                status = 0
            elif x < -100:
                status, message = -1, "too small"
        message = {0: "end", 1: "event"}.get(status, message)
        return message == "too small", message == "end", message is None

    assert_same(f, x)


def spelled(xs):
    text = ""
    for x in xs:
        if x > 3:
            text += "a"
        elif x > 1:
            text = text + "b"
        else:
            text += "cc"
    return len(text), text == "abcc", text.startswith("a"), "bc" in text


@pytest.mark.parametrize("xs", [(4.0, 2.0, 0.0), (0.0, 5.0, 2.0)])
def test_a_text_is_put_together_of_parts_that_tests_choose(xs):
    assert_same(spelled, np.array(xs))


def test_a_text_that_may_be_too_many_is_refused():
    with pytest.raises(TransformError, match=r"`text` is one of \d+ objects"):
        jax.jit(autograph(spelled))(np.arange(6.0))


@pytest.mark.parametrize("x", [0.0, 7.0])
def test_a_method_of_a_chosen_list_is_the_key_of_a_minimum(x):
    def f(x):
        xs = [x, 3.0] if x > 1 else [5.0, x]
        return min(range(2), key=xs.__getitem__)

    assert jax.jit(autograph(f))(x) == f(x)


class Settings(dict):
    """A dict read by attributes: it answers no name that it lacks, not even by AttributeError."""

    __getattr__ = dict.__getitem__


@pytest.mark.parametrize("x", [1.0, 3.0])
def test_one_of_several_is_asked_for_no_name_but_the_users(x):
    def f(x):
        kept = Settings(a=x, low=1)
        if x > 2:
            kept = [Settings(a=3 * x), Settings(a=x, b=x)][x > 5]
        return kept.a + kept["a"]

    assert_same(f, x)


@pytest.mark.parametrize("k", [0, 1, 2])
def test_a_key_that_only_one_of_the_chosen_has_is_an_error_to_its_handler(k):
    def fun(k):
        d = [{"a": 1, "b": 5}, {"b": 2}, {"b": 3}][k]
        xs = [[1, 2], [3], [4, 5]][k]
        n = d["b"]
        try:
            n += 10
            n += d["a"]
            n += 100
        except KeyError:
            n += 1000
        try:
            return n + xs[1]
        except IndexError:
            return -n

    assert jax.jit(autograph(fun))(k) == fun(k)


@pytest.mark.parametrize("k", [0, 1])
def test_an_attribute_that_the_chosen_one_may_lack_is_set_on_that_one(k):
    class Kept:
        best = None

    def fun(k):
        many = [Kept(), Kept()]
        for i in range(k + 1):
            one = many[i % 2]
            if one.best is None:
                one.best = i
        return [-1 if one.best is None else one.best + 0 for one in many]

    assert jax.jit(autograph(fun))(k) == fun(k)
