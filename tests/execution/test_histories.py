"""What was called before changes no bit of a result, and no program."""

import collections
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import malleable as mal

X = jnp.linspace(0.1, 7.0, 40)  # so few that NumPy runs what is not all of a function


def middle(x, then):
    y = jnp.sin(x) * 1.1
    if then is not None:
        y = then(y)
    return jnp.tanh(y) + jnp.exp(y).sum()


def shout(y):
    return y + float(y[0])


def nested(x, y):
    z = jnp.tanh(x) * 1.3
    z = z + shift(y)
    return jnp.log(z).sum()


def shift(y):
    return y if isinstance(y, jax.Array) else jnp.asarray(np.add.outer(y, [0.0])[:, 0])


def choosing(x, names):
    """What is done depends on values that its signature does not show."""
    y = jnp.cos(x) + x
    for name in names:
        y = {"double": twice, "print": aloud}[name](y)
    return jnp.tanh(y).sum()


def twice(y):
    return y * 2.3


def aloud(y):
    print("aloud")
    return y + float(y[1])


HISTORIES = {
    "a function for None": (middle, [(X, None), (X, shout), (X + 1, None)]),
    "NumPy for JAX": (nested, [(X, X), (X, np.asarray(X)), (X[:7], X[:7])]),
    "other names": (choosing, [(X, ["double"]), (X, ["print"]), (X, ["double", "print"])]),
    "functions": (
        lambda x, f: jnp.tanh(f(x)).sum(),
        [(X, shout), (X, jnp.exp), (X, lambda y: y * 2)],
    ),
    "numbers of other types": (
        lambda x, n: jnp.tanh(x * n).sum() + jnp.log(x * n),
        [(X, 2), (X, 2.0), (X, None)],
    ),
}


def outcome(f, args):
    try:
        return np.asarray(f(*args)).tobytes()
    except TypeError as e:
        return type(e)


@pytest.mark.parametrize("name", HISTORIES)
def test_the_order_of_calls_changes_no_bit(name):
    fun, calls = HISTORIES[name]
    alone = [outcome(mal.jit(fun), args) for args in calls]
    forward, backward = mal.jit(fun), mal.jit(fun)
    for _ in range(3):
        assert [outcome(forward, args) for args in calls] == alone
        assert [outcome(backward, args) for args in reversed(calls)] == alone[::-1]


class Peak:
    """A factor that looks at the bytes of what it multiplies."""

    __array_ufunc__ = None

    def __rmul__(self, other):
        return other + other.tobytes()[0]


FACTORS = {"number": 1.5, "array": X, "peak": Peak(), "list": [1, 2]}


def scaled(x, name):
    print(name)
    factor = FACTORS[name]
    y = jnp.tanh(x) * 1.1
    y = y * factor
    return jnp.log(y).sum()


def test_a_region_stays_one_program_for_those_for_which_it_was():
    made, alone = mal.jit(scaled), {n: outcome(mal.jit(scaled), (X, n)) for n in FACTORS}
    assert alone["list"] is TypeError
    assert outcome(made, (X, "number")) == alone["number"]
    whole = made.source
    for name in ["peak", "list", "peak", "array", "number", "list"]:
        assert outcome(made, (X, name)) == alone[name]
        assert made.source == whole
    other = mal.jit(scaled)
    other(X, "peak")
    assert other.source.count("_r") > whole.count("_r")


def test_an_error_of_the_caller_cuts_nothing():
    def f(x, w):
        return (jnp.tanh(x @ w) * 2).sum()

    made, good = mal.jit(f), (jnp.ones((3, 4)), jnp.ones((4, 3)))
    for args in [(good[0], good[0]), good, (good[0], good[0])]:
        if args is good:
            expected = mal.jit(f)(*good)
            assert made(*args) == expected
        else:
            with pytest.raises(TypeError, match="contracting"):
                made(*args)
    assert made.source == "def f(x, w):\n    return _r1(w, x)"


def test_an_error_that_the_function_handles_stays_with_python():
    def f(x, w):
        try:
            y = x @ w
        except TypeError:
            y = x * 2
        return y.sum()

    made = mal.jit(f)
    for _ in range(2):
        assert made(jnp.ones((3, 4)), jnp.ones((3, 4))) == 24
        assert made(jnp.ones((3, 4)), jnp.ones((4, 3))) == 36


def typed(x, n):
    y = jnp.cos(x)
    if isinstance(n, bool):
        return y * n + jnp.exp(x)
    if isinstance(n, int):
        return y + n * jnp.exp(x)
    return y - n * jnp.exp(x)


def typed_elsewhere(x, n):
    return times(jnp.sin(x), n).sum()


def times(y, n):
    return y * n if isinstance(n, int) else y - n


def as_text(x, n):
    return jnp.sin(x) * float(str(n) + "1") + len(f"{n}")


def signed(x, numbers):
    return (jnp.sin(x) * jnp.copysign(1.0, numbers[0])).sum()


def several(x, *numbers):
    y = jnp.exp(x)
    for n in numbers:
        y = jnp.sin(y * n)
    return y.sum()


def placed(x, at):
    y = (jnp.exp(x) * 1.1).at[at].set(0.0)
    return jnp.log1p(y).sum(), y[at] * 1.3


def powers(x, n):
    return x + (2**n) * (n**20) % 7


NUMBERS = {
    "whole numbers past 32 bits": (powers, [(X, 10), (X, 3), (X, 60)]),
    "their type": (typed, [(X, True), (X, 1), (X, 1.0), (X, np.float32(1))]),
    "their type, in a callee": (typed_elsewhere, [(X, 3), (X, 2.5), (X, 3)]),
    "their text": (as_text, [(X, 1), (X, 2.5), (X, 12)]),
    "minus zero": (signed, [(X, [0.0]), (X, [-0.0]), (X, [0.0])]),
    "several": (several, [(X, 1.0, 2), (X,), (X, X, 1), (X, 3)]),
    "indices": (placed, [(X, 3), (X, slice(2, 5)), (X, (2,)), (X, None), (X, ...), (X, 3)]),
}


@pytest.mark.in_turns
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_what_they_are_to_python(name):
    """Whatever was called before: equal numbers of other types, and 0.0 for -0.0."""
    fun, calls = NUMBERS[name]
    for order in (calls, calls[::-1]):
        made = mal.jit(fun)
        for args in order * 2:
            for ours, theirs in zip(
                jax.tree.leaves(made(*args)), jax.tree.leaves(fun(*args)), strict=True
            ):
                np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
                assert ours.dtype == theirs.dtype
            assert outcome_of_leaves(made, args) == outcome_of_leaves(mal.jit(fun), args)


def outcome_of_leaves(f, args):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(f(*args))]


class Held:
    """An object of a user's, which is the same object whatever it holds."""

    def __init__(self):
        self.n, self.items = 1.0, collections.deque([1.0])

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        return iter(self.items)

    def __contains__(self, x):
        return self.n == x

    def __bool__(self):
        return self.n < 3

    def scale(self, x):
        return x * self.n


class Layer:
    def __init__(self):
        self.n = 1.0

    def __call__(self, x):
        return x * self.n


@dataclasses.dataclass
class Config:
    n: float = 1.0


GLOBAL = {"n": 1.0}
SEVERAL = [1.0]
TABLE = np.ones(2)


def by_attribute(x, held):
    return x * held.n


def by_global(x):
    return x * GLOBAL["n"] * SEVERAL[0] * len(SEVERAL) * TABLE[0]


def by_default(x, held=GLOBAL):
    return x * held["n"]


def by_function(x, f=by_global):
    return f(x)


OBJECTS = {
    "length": (Held, lambda x, h: x * len(h)),
    "items": (Held, lambda x, h: x * sum(h) + max(h)),
    "comprehension": (Held, lambda x, h: sum([x * a for a in h])),
    "test": (Held, lambda x, h: jnp.sin(x) if h else jnp.cos(x)),
    "contains": (Held, lambda x, h: x * (2.0 in h)),
    "attribute, in a callee": (Config, lambda x, h: by_attribute(x, h) + 1),
    "attribute by name": (Held, lambda x, h: x * getattr(h, "n")),  # noqa: B009
    "method": (Held, lambda x, h: h.scale(x) + 1),
    "call": (Layer, lambda x, h: h(x) + 1),
    "derivative of a call": (Layer, lambda x, h: jax.grad(lambda x: h(x).sum())(x)),
    "partial": (Config, lambda x, h: functools.partial(by_attribute, held=h)(x)),
    "globals of a callee": (Config, lambda x, _: by_global(x) + jnp.sin(by_global(x))),
    "its own globals": (Config, lambda x, _: x * GLOBAL["n"] * SEVERAL[0] * len(SEVERAL)),
    "its default": (None, by_default),
    "default of a callee": (Config, lambda x, _: by_default(x) + 1),
    "function as a default": (Config, lambda x, _: by_function(x) + 1),
}


@pytest.mark.parametrize("as_argument", [True, False])
@pytest.mark.parametrize("name", OBJECTS)
def test_what_objects_and_globals_hold_is_read_at_each_call(name, as_argument):
    make, fun = OBJECTS[name]
    held = make() if make else None
    given = (held,) if make and as_argument else ()
    plain = fun if given or not make else lambda x: fun(x, held)
    run = mal.jit(plain)
    for n in (1.0, 2.0, 4.0, 4.0):
        GLOBAL["n"] = SEVERAL[0] = TABLE[0] = n
        SEVERAL[1:] = [n] * int(n > 1)
        if held is not None:
            held.n = n
        if make is Held:
            held.items.append(n)
        np.testing.assert_allclose(run(X, *given), plain(X, *given), rtol=1e-5, atol=1e-6)


def test_a_deque_grows_as_in_python():
    def f(past, x):
        past.append(x * len(past))
        return x * past[-1]

    run, one, two = mal.jit(f), collections.deque(maxlen=3), collections.deque(maxlen=3)
    for _ in range(4):
        assert float(run(one, 2.0)) == f(two, 2.0)
    assert list(one) == list(two)


def test_a_number_after_one_of_more_than_32_bits_is_its_own():
    jitted = mal.jit(lambda x, k: (k * k, x * 2))
    for k in (10, 2**40, 10, 2**70, -(2**31), 10):
        assert jitted(jnp.ones(2), k)[0] == k * k


def test_a_list_of_numbers_of_another_length_is_run_as_python_does():
    jitted = mal.jit(lambda xs, ys: [x * y for x, y in zip(xs, ys, strict=True)])
    xs = [jnp.ones(2), jnp.ones(2)]
    for _ in range(2):
        assert len(jitted(xs, [1, 2])) == 2 and len(jitted(xs[:1], [3])) == 1
        with pytest.raises(ValueError, match="shorter"):
            jitted(xs, [1])


def test_a_static_number_beside_a_list_that_grows():
    jitted = mal.jit(lambda x, n, log: (jnp.zeros(n) + x[0], sum(log)))
    for k in range(1, 6):
        assert jitted(jnp.ones(2), 3, [1.5] * k)[1] == 1.5 * k


def test_the_source_bears_the_name_of_the_function():
    made = mal.jit(lambda x: [jnp.sin(x).sum(), print(end="")][0])
    made(jnp.ones(3))
    assert made.source.startswith("def fun(x):")

    def block(x):
        print(end="")
        return jnp.sin(x)

    made = mal.jit(block)
    made(jnp.ones(3))
    assert made.source.startswith("def block(x):")
    made.edit(made.source.replace("print(end='')", "pass"))
    assert jnp.allclose(made(jnp.ones(3)), jnp.sin(1.0))


def test_defaults_that_are_assigned_between_calls_hold():
    def scaled(x, k=2.0, *, shift=1):
        return jnp.sin(x) * k + shift

    jitted, x = mal.jit(scaled), jnp.ones(2)

    def agree():
        for _ in range(2):
            np.testing.assert_allclose(jitted(x), scaled(x))

    agree()
    scaled.__defaults__ = (5.0,)
    agree()
    scaled.__kwdefaults__ = {"shift": 7}
    agree()
    scaled.__kwdefaults__["shift"] = 9
    agree()


def _offset(x, by=1.0):
    return x + by


def test_defaults_of_a_function_that_is_called_hold_too(monkeypatch):
    jitted, x = mal.jit(lambda x: jnp.cos(_offset(x))), jnp.ones(2)
    for by in (1.0, 3.0):
        monkeypatch.setattr(_offset, "__defaults__", (by,))
        for _ in range(2):
            np.testing.assert_allclose(jitted(x), jnp.cos(x + by))
