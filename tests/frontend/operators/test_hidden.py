"""Hidden state in blocks that are traced once: right, or refused at the line."""

import bisect
import collections
import functools
import heapq
import io
import itertools
import random
import types

import jax
import numpy as np
import pytest

from malleable import autograph, listen
from malleable.errors import TransformError

V = np.array([3.0, 1.0, 4.0, 1.0, 5.0])


def halvings():
    h = 1.0
    while True:
        yield h
        h /= 2


def counted(v):
    ids = itertools.count()
    return sum(x * next(ids) for x in list(v))


def in_a_loop(make):
    def fun(v):
        it, s = make(), 0.0
        for x in v:
            s += x * next(it)
        return s

    return fun


def made_inside(v):
    s = 0.0
    for x in v:
        it = iter([x, 2.0])
        a, b = it
        s += a * b + sum(y for y in (x, 1.0))
    return s


def drawn(v):
    rng, s = np.random.default_rng(0), 0.0
    for x in v:
        s += x * rng.normal()
    return s


def drawn_by_random(v):
    r, s = random.Random(0), 0.0
    for x in v:
        s += x * r.gauss(0, 1)
    return s


def heap(v):
    h = []
    for x in v:
        heapq.heappush(h, x)
    return len(h), heapq.heappop(h), h[0]


def insort(v):
    s = []
    for x in v:
        bisect.insort(s, x)
    return s


def counter(v):
    c = collections.Counter()
    for x in v:
        if x > 2:
            c.update(["big"])
        else:
            c.update(["small"])
    return c["big"], c["small"]


def counter_of_known(x):
    c = collections.Counter(a=1, b=1)
    if x > 2:
        c.update({"a": 2})
        c.subtract({"b": 1})
    return c["a"], c["b"]


def changed_by_a_skipped_function(x):
    o = types.SimpleNamespace(n=1, xs=[1.0])
    if x > 2:
        functools.reduce(lambda a, b: a.append(b) or a, [x], o.xs[:])
        vars(o)["n"] = 5
        o.__dict__.update(m=2)
        list.__setitem__(o.xs, 0, 7.0)
    return o.n, o.xs[0]


RIGHT = [
    in_a_loop(itertools.count),
    in_a_loop(lambda: itertools.cycle([1.0, -1.0])),
    in_a_loop(halvings),
    made_inside,
    drawn,
    drawn_by_random,
    heap,
    insort,
]


@pytest.mark.parametrize("fun", RIGHT)
def test_a_short_loop_over_hidden_state_runs_step_by_step(fun):
    assert np.allclose(jax.jit(autograph(fun))(V), fun(V))


@pytest.mark.parametrize("fun", [counter_of_known, changed_by_a_skipped_function])
@pytest.mark.parametrize("x", [1.0, 3.0])
def test_what_compiled_code_changes_is_joined(fun, x):
    assert np.allclose(jax.jit(autograph(fun))(x), fun(x))


def advanced(x):
    it = iter([1.0, 2.0])
    if x > 5:
        next(it)
    return next(it)


def unpacked(x):
    it = iter([1.0, 2.0])
    if x > 5:
        x, _ = it
    return list(it)


def gone_over(x):
    it, s = iter([1.0, 2.0]), 0.0
    if x > 5:
        for y in it:
            s += y
    return list(it)


def spread(x):
    it = iter([1.0, 2.0])
    if x > 5:
        x = max(*it)
    return x, list(it)


def sought(x):
    it = iter([1.0, 2.0])
    if x > 5 and 1.0 in it:
        x = 0.0
    return x


def written(x):
    out = io.StringIO()
    if x > 5:
        out.write("a")
    return len(out.getvalue())


def counted_while(n):
    ids, s = itertools.count(), 0
    while n > 0:
        s += next(ids)
        n -= 1
    return s


def generated(x):
    it = halvings()
    if x > 5:
        next(it)
    return next(it)


@pytest.mark.parametrize("fun", [generated, written])
def test_what_was_made_outside_is_not_advanced_in_a_block(fun):
    with pytest.raises(TransformError, match=r"happen once\n  at .*test_hidden\.py:\d+"):
        jax.jit(autograph(fun))(2.0)


@pytest.mark.parametrize("fun", [advanced, sought, counted_while])
@pytest.mark.parametrize("x", [2.0, 7.0])
def test_an_iterator_that_says_how_far_it_is_may_be(fun, x):
    assert np.allclose(jax.jit(autograph(fun))(x), fun(x))


@pytest.mark.parametrize("fun", [unpacked, gone_over, spread])
def test_one_that_was_gone_over_in_a_branch_is_not_gone_over_behind_it(fun):
    with pytest.raises(TransformError, match=r"how far the iterator is(.|\n)*test_hidden\.py:\d+"):
        jax.jit(autograph(fun))(2.0)


def rejection(x):
    rng, n = np.random.default_rng(0), 0
    while rng.random() > x:
        n += 1
    return n


def of_the_module(x):
    while random.random() > x:
        x += 0.1
    return x


def of_numpy(x):
    return np.random.rand() if x > 5 else x


def unseeded(x):
    return np.random.default_rng().random() if x > 5 else x


@pytest.mark.parametrize("fun", [rejection, of_the_module, of_numpy, unseeded])
def test_a_draw_in_a_block_names_next_key(fun):
    with pytest.raises(TransformError, match=r"draws in a compiled(.|\n)*mal\.next_key\(\)"):
        jax.jit(autograph(fun))(0.5)


def test_a_draw_while_tracing_leaves_a_note_unless_it_is_seeded_here():
    def fresh(x):
        return x * np.random.rand()

    def seeded(x):
        np.random.seed(0)
        return x * np.random.rand() + np.random.default_rng(1).random()

    with listen() as notes:
        jax.jit(autograph(seeded))(1.0)
        assert not notes
        jax.jit(autograph(fresh))(1.0)
    assert "draws once" in notes[0].what


class Lazy:
    known = None

    def __init__(self, x):
        self.x = x

    @functools.cached_property
    def twice(self):
        return self.x * 2

    @functools.cached_property
    def items(self):
        return [self.x]

    def asked(self):
        if not hasattr(self, "_y"):
            self._y = self.x * 2
        return self._y

    def tried(self):
        try:
            return self._w
        except AttributeError:
            self._w = self.x * 3
            return self._w

    def got(self):
        if getattr(self, "_v", None) is None:
            self._v = self.x * 4
        return self._v

    def looked_up(self):
        if "_u" not in self.__dict__:
            self._u = self.x * 6
        return self._u

    def by_class(self):
        if self.known is None:
            self.known = self.x * 5
        return self.known


@pytest.mark.parametrize("x", [2.0, 7.0])
@pytest.mark.parametrize("name", ["twice", "asked", "tried", "got", "looked_up", "by_class"])
def test_what_is_made_on_first_use_is_the_same_on_both_paths(name, x):
    def fun(x):
        a, r = Lazy(x), 0.0
        use = lambda: getattr(a, name) if name == "twice" else getattr(a, name)()
        if x > 5:
            r = use()
        return r + use(), hasattr(a, "nothing")

    assert np.allclose(jax.jit(autograph(fun))(x), fun(x))


@pytest.mark.parametrize("x", [2.0, 7.0])
def test_a_cached_list_first_made_in_a_branch_is_the_one_asked_for_later(x):
    def fun(x):
        a = Lazy(x)
        if x > 5:
            a.items[0] += 1.0
        a.x = 50.0
        return sum(a.items), len(vars(a))

    assert jax.jit(autograph(fun))(x) == fun(x)


class Counting:
    def __init__(self, x):
        self.x, self.asked = x, 0

    @functools.cached_property
    def twice(self):
        self.asked += 1
        return self.x * 2


@pytest.mark.parametrize("k", [0, 2])
def test_a_cached_property_is_computed_once_for_each_object(k):
    def fun(k):
        many = [Counting(1), Counting(2), Counting(3)]
        first, total = many[k].twice, 0
        for i in range(k + 1):
            total += many[i].twice + many[k].twice
        many[k].x = 50
        return first + many[k].twice, total, [a.asked for a in many], [len(vars(a)) for a in many]

    assert jax.jit(autograph(fun))(k) == fun(k)


def test_steps_over_traced_items_are_gone_over_once():
    def twice(v):
        pairs = zip(v, v)
        return sum([a * b for a, b in pairs]), sum([1 for _ in pairs])

    def stepwise(v):
        items = enumerate(v)
        next(items)
        return next(items)[1], next(reversed(v)), next(map(abs, v))

    def loops(v):
        items, s = enumerate(v), 0.0
        for _, x in items:
            s += x
        for _, x in items:
            s += x
        return s

    for fun in (twice, stepwise):
        assert np.allclose(jax.jit(autograph(fun))(V), fun(V))
    with pytest.raises(TransformError, match="a second time"):
        jax.jit(autograph(loops))(V)


def test_a_dict_filled_in_two_orders_is_not_gone_over():
    def fun(x):
        d = {}
        if x > 1:
            d["a"] = 1.0
            d["b"] = 2.0
        else:
            d["b"] = 2.0
            d["a"] = 1.0
        return (d["a"], len(d)) if x is None else (d["a"], len(d), *d.values())

    with pytest.raises(TransformError, match="another order on each path"):
        jax.jit(autograph(fun))(2.0)


def test_a_raise_may_be_the_only_end_of_a_loop():
    def fun(x):
        n = 0
        try:
            while True:
                x, n = x * 2, n + 1
                if x > 100:
                    raise ValueError
        except ValueError:
            return n

    assert jax.jit(autograph(fun))(3.0) == fun(3.0)


def test_true_and_false_are_compared_by_identity_as_pythons_bools_are():
    def fun(x, known):
        c = x > 1
        match c:
            case True:
                n = 1
            case _:
                n = 2
        return n, c is True, c is not False, known is True, isinstance(known, bool), -known

    for x, known in ((2.0, True), (0.0, False)):
        assert tuple(map(int, jax.jit(autograph(fun))(x, known))) == tuple(map(int, fun(x, known)))

    def parts(x):
        match (x > 1, 2):
            case (True, 2):
                return 1
        return 2

    assert [int(jax.jit(autograph(parts))(x)) for x in (2.0, 0.0)] == [1, 2]


def test_protocols_are_answered_for_the_value_a_tracer_stands_for():
    def fun(x, v):
        sized = isinstance(x, collections.abc.Iterable), hasattr(x, "__len__"), hasattr(x, "shape")
        try:
            n = x.shape
        except AttributeError:
            n = 7
        return *sized, n, getattr(x, "ndim", -1), hasattr(v, "at"), hasattr(v, "__len__")

    assert tuple(map(int, jax.jit(autograph(fun))(2.0, V))) == (0, 0, 0, 7, -1, 0, 1)


def test_an_element_of_a_float_array_is_a_float_whatever_bits_jax_keeps():
    def fun(v):
        return isinstance(v[0], float), isinstance(v.sum(), np.float64), isinstance(v[0], int)

    assert tuple(map(bool, jax.jit(autograph(fun))(V))) == fun(V)


def test_a_list_repeated_by_a_traced_number_has_a_bound():
    def stairs(n):
        ways = [1] * (n + 1)
        for i in range(2, n + 1):
            ways[i] = ways[i - 1] + ways[i - 2]
        return ways[n], len(ways)

    for options in ({"max_steps": 9}, {}):
        assert tuple(map(int, jax.jit(autograph(stairs, **options))(6))) == stairs(6)
    for fun in (lambda n: (0,) * n, lambda n: "ab" * n):
        with pytest.raises(TransformError, match=r"is repeated(.|\n)*test_hidden\.py"):
            jax.jit(autograph(fun))(3)


def test_an_item_of_a_list_that_grew_is_set_on_one_path_only():
    def fun(n):
        xs = [1, 1]
        if n > 2:
            xs.append(1)
        if n > 5:
            xs[0] = 9
        return xs[0]

    assert [int(jax.jit(autograph(fun))(n)) for n in (1, 3, 6)] == [1, 1, 9]


RECORDS = [("a", float), ("n", int)]


def field(r, x):
    r["a"][0] = x


def record(r, x):
    r[0] = (x, 1)


def whole_field(r, x):
    r["a"] += x


@pytest.mark.parametrize("write", [field, record, whole_field])
def test_a_traced_value_is_not_written_into_records(write):
    def fun(x):
        r = np.zeros(3, RECORDS)
        write(r, x)
        return r["a"].sum()

    with pytest.raises(TransformError, match="records"):
        jax.jit(autograph(fun))(2.0)


def test_records_of_known_values_are_numpys():
    def fun(x):
        r = np.array([(1.0, 2), (3.0, 4)], RECORDS)
        r["n"][0] = 7
        r[1]["n"] = 8
        return (r["a"] * x).sum() + r["n"].sum()

    assert jax.jit(autograph(fun))(2.0) == fun(2.0)


def test_parts_of_a_split_are_views():
    def fun(v):
        a, b = np.split(v, 2)
        a[0] = 7.0
        b *= 2
        return v

    v = np.arange(4.0)
    assert jax.jit(autograph(fun))(v).tolist() == fun(v.copy()).tolist()


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n <= 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Growing:
    k = 0

    def __iter__(self):
        while self.k < 3:
            self.k += 1
            yield self.k


@pytest.mark.parametrize("use", [sum, list, lambda it: [y + 1 for y in it], lambda it: max(*it)])
def test_an_iterator_of_the_users_class_is_converted(use):
    def fun(x):
        one, other = Countdown(3), Growing()
        if x > 5:
            use(one)
            use(other)
        return one.n, other.k

    fast = jax.jit(autograph(fun))
    for x in (2.0, 7.0):
        assert tuple(map(int, fast(x))) == fun(x)


def test_what_ends_at_a_traced_value_is_not_gone_over():
    def fun(n):
        return sum(Countdown(n))

    with pytest.raises(TransformError, match="Countdown is gone over"):
        jax.jit(autograph(fun))(3)


def test_a_cache_keeps_nothing_of_a_branch():
    def fun(x):
        calls = []

        @functools.cache
        def known(n):
            calls.append(n)
            return n

        if x > 5:
            known(3)
        known(3)
        return len(calls)

    assert jax.jit(autograph(fun))(2.0) == 1


def test_text_printed_to_a_stream_of_the_program_is_there_at_once():
    def fun(v):
        out = io.StringIO()
        for _ in v:
            print("a", file=out)
        return len(out.getvalue())

    assert jax.jit(autograph(fun))(V) == fun(V)
    with pytest.raises(TransformError, match="StringIO"):
        jax.jit(autograph(lambda x: print(x, file=io.StringIO())))(1.0)


ASKS = [
    lambda d: {**d},
    lambda d: d | {"c": 1.0},
    lambda d: d.copy(),
    lambda d: len(dict(d)),
    lambda d: {}.update(d),
    lambda d: d == {},
    lambda d: 1 if d else 2,
    lambda d: (lambda **k: len(k))(**d),
    lambda d: [k + k for k in d],
]


@pytest.mark.parametrize("ask", ASKS)
def test_which_keys_a_dict_has_is_not_asked_where_a_traced_value_decides(ask):
    def fun(x):
        d = {}
        if x > 5:
            d["b"] = 2.0
        ask(d)
        return x

    with pytest.raises(TransformError, match="one path only"):
        jax.jit(autograph(fun))(2.0)


def test_what_a_loop_first_sets_may_not_be_there():
    def of_object(n):
        o = types.SimpleNamespace()
        while n > 0:
            o.last, n = n, n - 1
        return hasattr(o, "last")

    def of_dict(n):
        d = {}
        while n > 0:
            d["last"], n = n, n - 1
        return d.get("last", -1)

    def of_expression(n):
        return len({"a": n} if n > 0 else {})

    for fun in (of_object, of_dict, of_expression):
        assert [int(jax.jit(autograph(fun))(n)) for n in (0, 2)] == [fun(0), fun(2)]


def test_an_object_made_in_a_branch_has_its_attributes():
    def fun(x):
        o = Countdown(x) if x > 2 else Countdown(0.0)
        return o.n

    assert [float(jax.jit(autograph(fun))(x)) for x in (3.0, 1.0)] == [3.0, 0.0]
