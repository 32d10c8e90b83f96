"""What a function does under `mal.jit`, in any order of calls, is what it does without."""

import collections
import contextlib
import functools
import io
import logging
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import malleable as mal

X = jnp.linspace(-1.0, 2.0, 12)
Y = X + 2


def item(x, i):
    try:
        return [x, x + 1][i].sum()
    except IndexError:
        return "out"


def items(xs, n):
    total = 0.0
    for k in range(n):
        total = total + xs[k].sum()
    return total


def suppressed(x, i):
    out = []
    with contextlib.suppress(IndexError):
        out.append([x, x + 1][i].sum())
    return out


def starred(x, *xs, scale=2.0, **kw):
    return x * scale + sum(xs) + sum(kw.values())


def added(x, y):
    return (x + y) * 2


def divided(x, n):
    y = jnp.sin(x)
    m = 1 / n
    return y / n, m


def rooted(x, a):
    return x * math.sin(a), math.floor(a), math.sqrt(a)


def negated(a, b):
    return a and b, not a


def numbers(a):
    return jnp.cos(a) - a**3, a * 2, jnp.asarray(a), jnp.float32(a), a


def of_tuple(x, a):
    pair = (x, a * 2)
    return pair[1], pair[0] * pair[1]


def step_by_step(x, k):
    y, said = 0, []
    try:
        y = 1
        z = x * 2
        y = 2
        z = z / k
        y = 3
        q = [1][k]
        y = 4 + q
    except (IndexError, ZeroDivisionError) as e:
        said.append(type(e).__name__)
    return y, z, said


def selected(x):
    try:
        return x[x > 1].max()
    except ValueError:
        return None


def named(x, k):
    y = x * 2
    if k:
        del y
    try:
        return y.sum()
    except NameError as e:
        return str(e)


def looped(x):
    out = []
    for i, v in enumerate(x):
        if v > 1:
            break
        if v < -0.5:
            continue
        out.append(float(v) * i)
    else:
        out.append("all")
    return out, i


def told(x):
    print("a")
    y = x * 2
    print("b", y.shape)
    return f"{y.sum():.2f}"


HISTORIES = {
    item: [(X, 0), (X, 5), (X, 1), (X, -2), (X, -3)],
    items: [([X, Y], 2), ([X, Y], 3), ([X, Y, X], 3), ([], 0), ([X], 1)],
    suppressed: [(X, 0), (X, 7), (X, 1)],
    starred: [(X,), (X, Y), (X, 1, 2), (X,), (X, 1.5)],
    added: [(X, 1), (X, "a"), (X, None), (X, [1]), (2, 3), ("a", "b"), ([1], [2])],
    divided: [(X, 2), (X, 0), (X, 2.5), (X, 0.0), (X, 4)],
    rooted: [(X, 0.5), (X, -1.0), (X, 2), (X, 0.25)],
    negated: [(True, X), (0, X), (X[0], X), (X[5], 2), ("", X), ([], X)],
    numbers: [(0.3,), (0.4,), (2,), (True,), (0.5,)],
    of_tuple: [(X, 0.3), (X, 0.4), (X, 2)],
    step_by_step: [(X, 0), (X, 1), (X, 0), (X, 5)],
    selected: [(X,), (X - 5,), (X[:3],)],
    named: [(X, False), (X, True), (X, False)],
    looped: [(X,), (X * 0.1,), (X[:3],)],
    told: [(X,), (X[:3],), (-X,)],
}


def observed(f, args):
    """What a call gives and prints, or raises."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            found = f(*args)
        except Exception as e:
            found = type(e), str(e).partition("\n")[0]
    return found, out.getvalue()


def same(one, two) -> bool:
    if isinstance(one, jax.Array):
        alike = type(one) is type(two) and (one.dtype, one.shape) == (two.dtype, two.shape)
        return alike and np.allclose(one, two, rtol=1e-5, equal_nan=True)
    if isinstance(one, tuple | list):
        alike = type(one) is type(two) and len(one) == len(two)
        return alike and all(map(same, one, two))
    if isinstance(one, float):
        return type(two) is float and math.isclose(one, two, rel_tol=1e-6)
    return type(one) is type(two) and one == two


@pytest.mark.parametrize("fun", HISTORIES, ids=lambda f: f.__name__)
def test_in_any_order_of_calls_it_does_what_python_does(fun):
    calls = HISTORIES[fun]
    expected = [observed(fun, args) for args in calls]
    forward, backward = mal.jit(fun), mal.jit(fun)
    for args, plain in zip(calls, expected, strict=True):
        assert same(plain, observed(mal.jit(fun), args)), args
    for _ in range(2):
        for args, plain in zip(calls, expected, strict=True):
            assert same(plain, observed(forward, args)), args
        for args, plain in list(zip(calls, expected, strict=True))[::-1]:
            assert same(plain, observed(backward, args)), args


def test_a_lambda_that_is_handed_out_sees_what_a_region_made():
    @mal.jit
    def f(x):
        y = x * 2
        return lambda v: (y + v).sum()

    assert f(X)(1) == (X * 2 + 1).sum() and f(Y)(0) == (Y * 2).sum()


def programs(made) -> int:
    """How many programs there are of the one region."""
    part = made._partition()
    (state,) = [s for r in part.tree.body for s in getattr(r, "states", {}).values()]
    return len(state.variants)


def test_a_number_that_a_function_of_jax_takes_is_an_argument():
    made = mal.jit(lambda a: jnp.cos(a) - a**3)
    for k in range(12):
        assert np.allclose(made(0.3 * k), jnp.cos(0.3 * k) - (0.3 * k) ** 3, rtol=1e-5)
    assert programs(made) <= 2  # one of numbers, one under the trace of the whole


def asking(x, n):
    y = jnp.sin(x) * n if isinstance(n, float) else x
    return jnp.tanh(y @ y) + jnp.cos(y).sum() * jnp.exp(-y)


def test_a_value_that_no_shape_needs_has_eight_programs_at_most():
    made = mal.jit(asking)
    first = [np.asarray(made(X, 0.1 * k)) for k in range(12)]
    assert programs(made) == 8
    for k, plain in enumerate(first):
        assert np.allclose(plain, asking(X, 0.1 * k), rtol=1e-5)
        assert np.asarray(made(X, 0.1 * k)).tobytes() == plain.tobytes()


def test_little_work_on_a_value_is_left_to_python():
    made = mal.jit(lambda n: jnp.cos(n) - n**3)  # whole numbers, which may need more than 32 bits
    assert made(3) == jnp.cos(3) - 27 and made.regions == {}


def test_a_loop_of_a_region_may_be_traced_many_times():
    @functools.partial(mal.jit, control_flow="host")
    def f(x):
        for _ in range(30):
            x = jnp.sin(x) + 1
        return x.sum()

    for n in range(3, 9):
        assert np.isfinite(f(X[:n])) and list(f.regions) == ["_r1"]


def test_what_is_left_of_a_list_in_a_loop_is_checked():
    made = mal.jit(items)
    assert made([X, Y], 2) == items([X, Y], 2)
    with pytest.raises(IndexError):
        made([X, Y], 3)


def test_defaults_that_are_numbers_are_arguments_of_a_whole_function():
    made = mal.jit(starred)
    for call in [made, functools.partial(made, scale=3), made, functools.partial(made, a=Y), made]:
        plain = functools.partial(starred, **getattr(call, "keywords", {}))
        assert np.allclose(call(X), plain(X))


def test_dicts_keep_their_order_whatever_the_order_of_those_before():
    made = mal.jit(lambda d: {key.upper(): value * 2 for key, value in d.items()})
    for names in ["ab", "ba", "ab", "bca", "ba"]:
        given = dict.fromkeys(names, X)
        assert list(made(given)) == [name.upper() for name in names]
    made = mal.jit(lambda x: {"z": x, "a": {"n": x, "b": x * 2}})
    for _ in range(4):
        assert [*made(X)] == ["z", "a"] and [*made(X)["a"]] == ["n", "b"]


State = collections.namedtuple("State", "held n")


def grown(x):
    d = collections.defaultdict(list)
    for key in "bac":
        d[key].append(x * 2)
    return d


@pytest.mark.parametrize(
    "fun",
    [
        grown,
        lambda x: collections.defaultdict(int, b=x, a=x * 2),
        lambda x: State({"b": x, "a": x * 2}, 1),
    ],
    ids=["grown", "made", "in a named tuple"],
)
def test_dicts_of_other_kinds_keep_their_order_too(fun):
    def doubled(x, d, s):
        return {k: v * x for k, v in d.items()}, {k: v * x for k, v in s.held.items()}, fun(x)

    made, d = mal.jit(doubled), collections.defaultdict(int, b=X, a=X)
    for _ in range(3):
        assert str(made(X, d, State(dict(d), 2))) == str(doubled(X, d, State(dict(d), 2)))


HELD = [0.1, 1, True, np.float32(0.1), np.full((), 0.1, np.float32), jnp.float32(0.1)]


def scaled(x, k):
    return x * k + k, k * k


def scaled_in_list(x, ks):
    return x * ks[0] + ks[0], ks[0] * ks[0]


def scaled_in_dict(x, ks):
    return x * ks["p"] + ks["p"], ks["p"] * ks["p"]


@pytest.mark.parametrize(
    ("fun", "hold"),
    [
        (scaled, lambda v: v),
        (scaled_in_list, lambda v: [v]),
        (scaled_in_list, lambda v: (v,)),
        (scaled_in_dict, lambda v: {"p": v}),
    ],
)
def test_a_number_runs_after_arrays_as_it_does_alone(fun, hold):
    after = mal.jit(fun)
    for _ in range(4):
        after(X, hold(HELD[-1]))
    for value in HELD:
        alone, given = mal.jit(fun)(X, hold(value)), after(X, hold(value))
        for _ in range(4):
            after(X, hold(HELD[-1]))
        assert type(given[1]) is type(alone[1])
        assert np.asarray(given[0]).tobytes() == np.asarray(alone[0]).tobytes()


def test_what_a_lambda_reads_is_there_where_the_name_is_bound_again_behind_it():
    said = []

    def moved(p, s):
        said.append("called")  # a side effect, at which the function is cut
        return (p * s).sum(), s + 1

    def train(state, x):
        p, s = state
        for i in range(2):
            loss_of = lambda p: moved(p * x, s + i)  # noqa: B023
            (loss, s), slope = jax.value_and_grad(loss_of, has_aux=True)(p)
            p = jax.tree.map(lambda a, b: a - 0.1 * b, p, slope)
            if loss < 1e-4:
                break
        state[:] = [p, s]
        return loss

    eager, jitted = [[jnp.ones(3), jnp.float32(1)] for _ in range(2)]
    assert mal.jit(train)(jitted, jnp.ones(3)) == train(eager, jnp.ones(3))
    assert all(map(np.array_equal, eager, jitted)) and len(said) == 4


def managed(x):
    events = []

    @contextlib.contextmanager
    def scope(name):
        events.append(name)
        yield name * 2

    with scope("a") as a:
        y = x * 2
    return y, events, a


def with_defaults(x):
    y = jnp.cumsum(x)
    print("made")

    def first(a=y):
        return a.sum()

    last = lambda a=y: a[-1]
    print("called")
    return first(), last()


def defined_twice(x):
    y = x * 2
    if float(y.sum()) > 0:

        def f():
            return y
    else:

        def f():
            return x

    y = y + 1
    print("bound again")
    return f() * 2


def with_a_default_that_sees(x):
    state = {"n": 0, "s": x}

    def tick(by=1):
        state["n"] += by
        state["s"] = jnp.tanh(state["s"]) * by
        return state["n"]

    while tick() < 3:
        pass
    return state["s"], state["n"]


def registered(x):
    hooks = []

    def register(f):
        hooks.append(f)
        return f

    @register
    def double(v):
        return v * 2

    return [f(x) for f in hooks]


def counted(x):
    def f(v):
        f.calls += 1
        return v * f.calls

    f.calls = 0
    y = f(x)
    print(float(y.sum()))
    return f(y), f.calls


def contained(x):
    k = x[0] * 0 + 2
    return k in (1, 2), k not in [2], 2.0 in x, [k] == [x.max()], (k, 1) == (k + 1, 1)


def comprehended(x):
    apply = lambda f, v: float(f(v))
    twice = [apply(lambda v: v * 2, v) for v in x]
    large = [apply(lambda w: w + v, v) for v in x if apply(lambda v: v + 1, v) > 2]  # noqa: B023
    nested = [[v * 2 for v in [v, v + 1]] for v in x[:2]]
    late = [f() for f in [lambda: float(i * x[0]) for i in range(3)]]  # noqa: B023
    return twice, large, nested, late, [x.sum() for x in x if float(x) > 0]


SEEING = [
    comprehended,
    managed,
    with_defaults,
    defined_twice,
    with_a_default_that_sees,
    registered,
    counted,
]


@pytest.mark.parametrize("program", [*SEEING, contained])
def test_what_an_inner_function_sees_is_what_python_shows_it(program):
    jitted = mal.jit(program)
    for _ in range(3):
        found, expected = jitted(X), program(X)
        assert jax.tree.map(type, found) == jax.tree.map(type, expected)
        for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            assert one == other if isinstance(one, str) else np.allclose(one, other)


def test_logging_and_warnings_name_the_line_of_the_user(caplog):
    log = logging.getLogger("malleable.test")

    def program(x):
        y = jnp.cumsum(x)
        log.warning("sum %.1f", y[-1])
        warnings.warn("told", stacklevel=1)
        return y * 2

    jitted, at = mal.jit(program), program.__code__.co_firstlineno
    for _ in range(3):
        caplog.clear()
        with pytest.warns(UserWarning, match="told") as told:
            jitted(X)
        assert [(r.funcName, r.lineno) for r in caplog.records] == [("program", at + 2)]
        assert [(w.filename, w.lineno) for w in told] == [(__file__, at + 3)]


def test_an_error_raised_again_has_the_notes_of_the_user_alone():
    def program(x, k):
        try:
            if k:
                raise LookupError("none")
            return x * 2
        except LookupError as e:
            e.add_note("said")
            raise

    jitted = mal.jit(program)
    for k in (0, 1, 1, 0):
        if k:
            with pytest.raises(LookupError) as raised:
                jitted(X, k)
            assert raised.value.__notes__ == ["said"]
        else:
            assert jitted(X, k).shape == X.shape


@pytest.mark.parametrize(
    "number",
    [
        lambda x: round(float(x.sum()), 2),
        lambda x: round(x.sum().item(), 1),
        lambda x: min(0.1, float(x[-1])),
        lambda x: pow(float(x[-1]), 2),
        lambda x: sum((float(x[0]), 0.1)),
        lambda x: math.exp(x[0]),
        lambda x: math.hypot(float(x[0]), 0.1),
    ],
)
def test_numbers_of_python_have_all_their_digits(number):
    def program(x):
        return x * 2, number(x)

    jitted = mal.jit(program)
    for x in (X * 1.1, X * 1.1, X / 3):
        assert repr(jitted(x)[1]) == repr(number(x))


def total_and_count(x, n):
    return x.sum(), n + 1


def counts_in_a_call(x, n):
    total = (x * 2).sum()
    if total > 1:
        total, n = total_and_count(x, n)
    return total, n


def counts_in_a_tuple(x, n):
    total = (x * 2).sum()
    if total > 1:
        both = (total, n + 1)
        n = both[1]
    return total, n


@pytest.mark.parametrize("program", [counts_in_a_call, counts_in_a_tuple])
def test_a_number_that_comes_out_of_a_branch_is_pythons(program):
    jitted = mal.jit(program)
    for x in (X, X, -X):
        assert same(jitted(x, 2), program(x, 2))


def test_a_type_that_the_user_is_given_is_plain():
    @mal.jit
    def program(x):
        y = jnp.sin(x)
        zeros = np.zeros(3, y.dtype)
        zeros.setflags(write=False)
        return zeros, [np.asarray(y)], y.dtype

    for _ in range(2):
        zeros, (y,), dtype = program(X)
        assert type(zeros) is type(y) is np.ndarray
        assert zeros.dtype.metadata is y.dtype.metadata is dtype.metadata is None


def aliased(x):
    found: dict = {}
    last = found.setdefault("a", [])
    row = [x]
    rows = [row] * 2
    z = x * 2
    rows[0].append(z)
    print(float(z.sum()))
    last.append(z)
    rows[1].append("end")
    return found["a"][0], len(rows[0]), rows[0] is rows[1]


def not_yet_bound(x):
    z = x
    print("bound")
    z = jnp.where(x > 0, x, 1.0)
    for i in (1, 2):

        def f(v):
            return v + z * i  # noqa: B023

        x = f(x)
    return z, x


@pytest.mark.parametrize("program", [aliased, not_yet_bound])
def test_what_variables_share_they_share_in_the_first_call_too(program):
    jitted = mal.jit(program)
    for _ in range(3):
        for one, other in zip(jitted(X), program(X), strict=True):
            assert np.allclose(one, other)
