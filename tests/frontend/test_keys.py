"""Keys of a dict that a traced test sets or deletes: whether they are there is a traced boolean."""

import collections
import functools

import jax
import numpy as np
import pytest

from malleable import TransformError, autograph
from tests.frontend.behaviour.behaviour import assert_same

V = np.array([3.0, 1, 4, 1, 5, 9, 2, 6])


def agree(f, *examples):
    compiled = jax.jit(autograph(f))
    for x in examples:
        want, got = f(x), compiled(x)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, want)


def test_a_key_of_one_path_is_asked_for():
    def f(x):
        d = {"b": 1.0}
        if x > 2:
            d["a"] = x
        else:
            del d["b"]
        try:
            found = d["a"]
        except KeyError:
            found = -1.0
        return found, d.get("a", -2.0), "a" in d, "b" not in d, len(d), "c" in d

    agree(f, 1.0, 3.0)


def test_keys_are_counted_in_a_loop():
    def f(v):
        d, e = {}, {}
        for x in v:
            if x > 3:
                d["large"] = d.get("large", 0) + 1
            key = "hi" if x > 2 else "lo"
            if key in e:
                e[key] += x
            else:
                e[key] = x
        return d.get("large", 0), len(d), e["hi"], e["lo"]

    agree(f, V)


def test_a_key_that_every_path_sets_in_the_end_is_like_any_other():
    def f(x):
        d = {}
        if x > 2:
            d["a"] = x
        d["a"] = 5.0
        return sum(d[k] for k in d)

    agree(f, 1.0, 3.0)


def test_without_a_handler_a_key_that_is_not_there_is_nan():
    def f(x):
        d = {}
        if x > 2:
            d["a"] = x
        return d["a"]

    compiled = jax.jit(autograph(f))
    assert np.isnan(compiled(1.0)) and compiled(3.0) == 3


@pytest.mark.parametrize("x", [1.0, 3.0])
def test_what_goes_over_keys_of_one_path(x):
    def f(x):
        d, ways = {"a": x, "b": 2.0}, []
        if x > 2:
            d["c"] = 5.0
        else:
            del d["a"]
        total = 0.0
        for key in d:
            if key == "c":
                break
            total = 10 * total + d[key]
        for key, value in d.items():
            ways.append(3.0 if key == "b" else value)
        for key in sorted(d):
            total = 10 * total + d[key]
        return total, sum(ways), "a" in list(d), max(d.values()), len([*d])

    assert_same(f, x)


@pytest.mark.parametrize("x", [2.5, -1.0])
def test_counters_and_defaultdicts_with_keys_of_one_path(x):
    def f(x):
        counts, sums = collections.Counter(), collections.defaultdict(float)
        groups, order = collections.defaultdict(list), collections.OrderedDict(a=x, b=2.0)
        if x > 0:
            counts["a"] += 1
            sums["u"] += x
            groups["v"].append(x)
            order["c"] = 3.0
        seen = counts["a"], counts["z"], len(counts), sum(counts.values()), "a" in counts
        total = 0.0
        for key in order:
            total = 10 * total + order[key]
        groups["v"].append(4.0)
        found = len(sums), sums["u"], len(sums), sum(sums.values()), len(groups["v"])
        return seen, total, found, order.get("c", 7.0), len(order), groups["v"][0]

    assert_same(f, x)


@pytest.mark.parametrize("x", [2.5, -1.0])
def test_a_key_of_one_path_is_taken_out_or_put_in(x):
    def f(x):
        d, e, g = {"a": x}, {"a": x}, {"a": 1.0}
        if x > 0:
            d["c"], e["c"], g["c"] = 3.0, 4.0, 5.0
        out = d.pop("c", 1.0), e.setdefault("c", 8.0)
        try:
            del g["c"]
        except KeyError:
            return 0.0, sum(out), len(d) + len(e), e["c"], len(g)
        return 1.0, sum(out), len(d) + len(e), e["c"], len(g)

    assert_same(f, x)


@pytest.mark.parametrize(
    "use",
    [
        lambda c: c.total(),
        lambda c: c.update(["a"]),
        lambda c: c.subtract(a=2),
        lambda c: c.most_common(1),
        lambda c: c + collections.Counter(a=1),
    ],
)
def test_what_python_does_with_a_counter_is_refused(use):
    def f(x):
        counts = collections.Counter(b=2)
        if x > 0:
            counts["a"] += 1
        use(counts)
        return counts["a"]

    with pytest.raises(TransformError, match="the key 'a' on one path only"):
        jax.jit(autograph(f))(1.0)


def test_what_goes_over_the_keys_is_refused():
    def f(x):
        d = {}
        if x > 2:
            d["a"] = x
        return len(dict(**d))

    with pytest.raises(TransformError, match=r"the key 'a' on one path only(.|\n)*test_keys\.py"):
        jax.jit(autograph(f))(1.0)


def counted_by_number(v):
    table = {1: 0, 2: 0, 3: 0}
    for x in v:
        table[1 if x < 2 else 2 if x < 5 else 3] += 1
    return table


def a_state_and_a_test(v):
    leads = {("a", True): "b", ("a", False): "a", ("b", True): "c", ("b", False): "a"}
    leads |= {("c", True): "c", ("c", False): "b"}
    state, times = "a", {"a": 0, "b": 0, "c": 0}
    for x in v:
        state = leads[(state, bool(x > 2))]
        times[state] += 1
    return times


def pairs_of_numbers(v):
    grid = {(i, j): float(i + j) for i in range(2) for j in range(3)}
    grid[int(v[1]) % 2, int(v[0]) % 3] += 10
    total = 0.0
    for x in v:
        key = int(x) % 2, int(x)
        grid[key[0], 1] = grid[key[0], 1] + x
        if key in grid:
            total += 1
        total += grid.get(key, -1.0)
    return list(grid.values()), total


def floats(v):
    table = {1.0: 10.0, 3.0: 20.0, 4: 5.0}
    return table[v[0]], table[v[2]], table.get(v[4], -1.0), v[1] in table


@pytest.mark.parametrize("f", [counted_by_number, a_state_and_a_test, pairs_of_numbers, floats])
def test_a_traced_key_is_one_of_those_that_are_there(f):
    agree(f, V)


def test_a_traced_key_that_may_not_be_there_is_added():
    def f(x):
        table = {1: 2.0, 2: 3.0}
        table[int(x)] = 5.0
        return len(table), table[1], table.get(7, 0.0), sum(table.values())

    agree(f, 1.0, 2.0, 7.0)


def test_what_a_test_keeps_is_added_to_a_list():
    def f(v):
        xs, ys = [1.0], [0.0]
        xs += [t for t in v if t > 2]
        ys.extend(t for t in v if t < 2)
        return sum(xs), len(xs), sum(ys), len(ys)

    agree(f, V)


def set_anew(x):
    d = {}
    if x > 0:
        d["a"] = 1.0
    d["b"] = 2.0
    d["a"] = 3.0
    return list(d.values())


def deleted(x):
    d = {"a": 0.0, "b": 2.0}
    if x > 0:
        del d["a"]
    d["a"] = 3.0
    return list(d.values())


def turned(x):
    d = {}
    if x > 0:
        d["a"] = 1.0
    else:
        d["b"] = 2.0
        d["a"] = 1.0
    d["b"] = 7.0
    return list(d.values())


@pytest.mark.parametrize("f", [set_anew, deleted, turned])
def test_a_key_of_one_path_that_is_set_for_both_has_another_place_on_each(f):
    with pytest.raises(TransformError, match="its keys in another order on each path"):
        jax.jit(autograph(f))(1.0)


def test_a_last_key_of_one_path_that_is_set_for_both_is_the_last():
    def f(x):
        d = {"a": 0.0}
        if x > 0:
            d["b"] = 1.0
        d["b"] = 2.0
        d["c"] = 3.0
        return list(d.values())

    assert jax.jit(autograph(f))(1.0) == f(1.0) and jax.jit(autograph(f))(-1.0) == f(-1.0)


def filled_under_ifs(x):
    d = {}
    for k in range(3):
        if x > k:
            d[k, k + 1] = x * k
    return d


@pytest.mark.parametrize("x", [1.5, 7.0, -1.0])
def test_a_dict_with_number_keys_of_one_path_is_gone_over(x):
    def f(x):
        d, total = filled_under_ifs(x), 0.0
        for (a, b), value in d.items():
            total += 10 * a + b + value
        return total, sum(d.values()), max([k[1] for k, _ in d.items()], default=-1)

    assert jax.jit(autograph(f))(x) == f(x)


def test_a_dict_that_was_gone_over_so_is_not_written_to():
    def f(x):
        d = filled_under_ifs(x)
        values = d.values()
        d[0, 1] = 7.0
        return sum(values)

    with pytest.raises(TransformError, match=r"copy: `values\(\)` was asked of this dict"):
        jax.jit(autograph(f))(1.5)


def test_a_key_that_may_be_there_stays_so_when_a_chosen_key_is_written_again():
    def count(v):
        kinds = {}
        for x in v:
            kind = "n" if x < 0 else "s"
            kinds[kind] = kinds.get(kind, 0) + 1
        return len(kinds), "n" in kinds, kinds.get("s", 0)

    program = jax.jit(autograph(count))
    for v in (np.array([3.0, 1.0]), np.array([-3.0, -1.0]), np.array([3.0, -1.0])):
        assert program(v) == count(v)


class Settings(collections.UserDict):
    def __missing__(self, key):
        return 7.0


def test_collections_that_python_wrote_over_a_dict_or_list():
    def f(x):
        own, base = {}, {"a": 2 * x, "b": 1.0}
        layers, settings, tail = collections.ChainMap(own, base), Settings(), collections.UserList()
        if x > 2:
            layers["a"] = settings["c"] = x
            tail.append(x)
        above = layers.new_child({"b": 5.0})
        return layers["a"], "a" in own, above["a"] + above["b"], settings["c"], len(tail)

    agree(f, 1.0, 3.0)


def test_an_object_whose_class_makes_it_with_arguments_is_chosen():
    class Point:
        def __new__(cls, x):
            made = super().__new__(cls)
            made.x = x
            return made

    def f(x):
        p = Point(x)
        if x > 2:
            p = Point(-x)
        return p.x

    agree(f, 1.0, 3.0)


class Named(dict):
    """A class of the user's: it does not know which keys it may lack."""


def ordered_within_a_branch(x):
    if x > 1:
        d = {"b": 2 * x, "a": x} if x > 3 else {"a": x, "b": 2 * x}
    else:
        d = {"a": x, "b": 2 * x}
    return next(iter(d.values()))


def ordered_in_a_step(x):
    d = {"a": x, "b": 2 * x}
    for _ in range(int(x)):
        if x > 3:
            d = {"b": 2 * x, "a": x}
    return next(iter(d.values()))


def counted_within_a_branch(x):
    if x > 1:
        d = Named(a=x) if x > 3 else Named(a=x, b=x)
    else:
        d = Named(a=x, b=x)
    return len(d)


@pytest.mark.parametrize("f", [ordered_within_a_branch, ordered_in_a_step, counted_within_a_branch])
def test_what_a_dict_hides_is_known_behind_every_branch_and_loop(f):
    with jax.checking_leaks(), pytest.raises(TransformError, match=r"each path|one path only"):
        jax.jit(autograph(f))(5.0)


def test_a_dict_of_other_keys_on_each_path_leaks_no_tracer():
    def f(x):
        if x > 3:
            d = Named(a=x, low=1)
        elif x > 2:
            d = Named(a=3 * x)
        else:
            d = Named(a=2 * x, high=2)
        return d["a"]

    with jax.checking_leaks():
        assert jax.jit(autograph(f))(2.5) == 7.5


def stored(keys, key):
    table = dict.fromkeys(keys, 1)
    table[key] = 1
    return len(table)


def added(keys, key):
    members = set(keys)
    members.add(key)
    return len(members)


def asked(keys, key):
    table = dict.fromkeys(keys, 2.0)
    return key in table, table.get(key, 3.0), table.pop(key, 4.0)


def called(keys, key):
    return functools.cache(lambda k, extra=0: len(keys))(0, extra=key)


UNHASHABLE = {
    "array": lambda v: v,
    "pair": lambda v: (v[0], v),
    "list": lambda v: [v[0]],
    "tuple": lambda v: (1, (v[0], [1])),
    "set": lambda v: (v[0], {1}),
}
ASKED = {
    "display": lambda keys, key: len({7: len(keys), key: 1}),
    "members": lambda keys, key: len({key, *keys}),
    "comprehension": lambda keys, key: len({k: id(k) for k in [*keys, key]}),
    "member": lambda keys, key: key in set(keys),
    **{f.__name__: f for f in (stored, added, asked, called)},
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("make", UNHASHABLE.values(), ids=UNHASHABLE)
@pytest.mark.parametrize("keys", [[], [1, 2], [(1, 2)]], ids=str)
def test_what_has_no_hash_is_no_key(ask, make, keys):
    def f(v):
        try:
            return ask(keys, make(v))
        except (KeyError, ValueError):
            return -1.0

    with pytest.raises(TypeError, match="unhashable"):
        f(V)
    with pytest.raises(TypeError, match="unhashable"):
        jax.jit(autograph(f))(V)


def test_a_handler_is_there_for_what_is_no_key():
    def f(v, n):
        memo, failed = {v[0]: 1.0}, 0
        for k in range(n):
            try:
                memo[v] = k
            except TypeError:
                failed += 1
        return failed, memo[v[0]]

    assert jax.jit(autograph(f))(V, 3) == f(V, 3) == (3, 1.0)


def test_a_set_is_looked_for_in_a_set_as_what_has_a_hash():
    def f(x):
        return {1} in {frozenset({1})}, {2} in {frozenset({1})}, x in {3}

    assert jax.jit(autograph(f))(3) == f(3) == (True, False, True)


def test_what_is_sorted_has_one_order_as_the_hint_says():
    def f(x):
        d = {"b": 2 * x, "a": x} if x > 2 else {"a": x, "b": 2 * x}
        total = 0.0
        for k in sorted(d):
            total = 3 * total + d[k]
        return total, [d[k] for k in sorted(d)], d[min(d)]

    agree(f, 1.0, 3.0)
