"""What a region changes in place, or hands out, of the arrays of NumPy that it is given."""

import copy
import functools
import math

import jax
import numpy as np
import pytest
from jax import numpy as jnp

import malleable as mal


def same(u):
    return u


def bump(u):
    u += 1
    return u * 2


def double(d):
    d["a"] *= 2


def handed_out(n, a, b):
    y = jnp.sin(n * 1.0)
    f = same(a)
    f += 1
    return a, f, y


def called_to_write(n, a, b):
    y = jnp.sin(n * 1.0)
    return bump(a), a, y


def written_by_a_local_function(n, a, b):
    y = jnp.sin(n * 1.0)

    def g(u):
        u *= 2
        return u + y

    return g(a), a


def handed_out_by_a_lambda(n, a, b):
    y = jnp.sin(n * 1.0)
    g = lambda u: u
    w = g(a)
    w *= 2
    return w, a, y


def item_of_a_dict(n, a, b):
    y = jnp.sin(n * 1.0)
    z = {"a": a, "y": y}
    z["a"] += 1
    return a, z


def item_of_a_list(n, a, b):
    y = jnp.sin(n * 1.0)
    z = [a, y]
    f = z[0]
    f += 1
    return a, z


def appended(n, a, b):
    y = jnp.sin(n * 1.0)
    z = []
    z.append(a)
    z[0] += 1
    return a, z, y


def gone_over(n, a, b):
    y = jnp.sin(n * 1.0)
    z = [y]
    for f in [a, y]:
        f *= 2
        z.append(f)
    return a, z


def written_in_a_dict(n, a, b):
    y = jnp.sin(n * 1.0)
    d = {"a": a}
    double(d)
    return d, a, y


def one_of_two(n, a, b):
    f = jnp.zeros(3) if n > 0 else b
    g = f
    g += 1.0
    return b, f, g


def add(a, v):
    a += v
    return a


def mapped(n, a, b):
    return list(map(lambda x: add(x, 1.0), [a])), a  # noqa: C417


def part_of(a):
    return a[1:]


def parts_of(d, y):
    return d["a"].reshape(-1), y + 1


def twice(a):
    return a * 2


def put(a, k, v):
    a[k] = v


def apply(f, *args):
    return f(*args)


class Meter:
    def __init__(self):
        self.grid, self.reads = np.zeros(3), [0]

    @property
    def level(self):
        self.reads[0] = self.reads[0] + 1
        return self.grid[0]

    def move(self, y):
        self.grid[0] += 1.0
        return (lambda t, s=self.grid[0]: t - s)(y)


def view_made_by_a_helper(n, a, b):
    y = jnp.sin(n * 1.0)
    v = part_of(a)
    v *= 3
    w, z = parts_of({"a": b}, y)
    w += 1
    return a, b, y, z


def made_by_a_helper(n, a, b):
    y = jnp.sin(n * 1.0)
    w = twice(a)
    alias = w
    alias += 1
    return w, y


def in_a_dict_by_a_helper(n, a, b):
    y = jnp.sin(n * 1.0)
    held = {"part": part_of(a)}
    held["part"] += 1.0
    return a, y


def closed_over(n, a, b):
    y = jnp.sin(n * 1.0)
    first = lambda: a[1:]
    w = first()
    w += 1

    def all_of_it():
        return b

    u = all_of_it()
    u += 1
    return a, b, y


def writers_in_a_list(n, a, b):
    y = jnp.sin(n * 1.0)
    for f in [lambda v: bump(a), lambda v: put(a, 1, v)]:
        f(7.0)
    return a, y


def writers_handed_on(n, a, b):
    y = jnp.sin(n * 1.0)
    apply(put, a, 0, 2.0)
    apply(lambda v: put(a, 1, v), 5.0)
    part = functools.partial(put, b, 0)
    part(4.0)
    y = y * 2
    part(3.0)
    list(map(part, [1.0, 2.0]))
    return a, b, y


def item_of_python_or_an_array(n, a, b):
    xs = [jnp.sin(n * 1.0), 0.5, jnp.cos(n * 1.0)]
    a += xs[n]
    return a


def property_that_acts(n, a, b):
    meter = Meter()
    y = jnp.sin(n * 1.0)
    out = read_level(meter) + y
    return out, meter.reads


def read_level(meter):
    return meter.level


def default_of_a_lambda(n, a, b):
    meter, total = Meter(), 0.0
    for _ in range(4):
        total += move_it(meter, jnp.sin(n * 1.0))
    return total


def move_it(meter, y):
    return meter.move(y)


def rows_in_another_order(n, a, b):
    y = jnp.sin(n * 1.0)
    alias = a
    alias -= b[[2, 0, 1]]
    np.maximum(alias, alias, out=alias)
    return a, y


PROGRAMS = [
    mapped,
    handed_out,
    called_to_write,
    written_by_a_local_function,
    handed_out_by_a_lambda,
    item_of_a_dict,
    item_of_a_list,
    appended,
    gone_over,
    written_in_a_dict,
    one_of_two,
    view_made_by_a_helper,
    made_by_a_helper,
    in_a_dict_by_a_helper,
    closed_over,
    writers_in_a_list,
    writers_handed_on,
    item_of_python_or_an_array,
    property_that_acts,
    default_of_a_lambda,
    rows_in_another_order,
]


@pytest.mark.parametrize("n", [1, -1])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_arrays_given_change_as_in_python(program, n):
    given = n, np.arange(3.0, dtype=np.float32), np.ones(3, np.float32)
    want = program(*copy.deepcopy(given))
    fun = mal.jit(program)
    for _ in range(2):
        got = fun(*copy.deepcopy(given))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), got, want)


def test_a_loop_sees_what_its_steps_write_to_a_dict():
    def f(x):
        d = {"a": x, "b": 0.5, "c": 1.0, "d": x, "e": x, "f": x}
        s = 0.0
        for _, value in d.items():
            if value > 0.75:
                break
            d["c"] = x
            s = s * 10 + value
        return s

    assert mal.jit(f)(0.5) == f(0.5)


def of_the_arc_cosine(a, x):
    f = 1.375
    try:
        math.acos(x)
    except ValueError:
        f -= 1
    return x + f


def of_a_square_root(a, x):
    return math.sqrt(-x) + x


def of_a_remainder(a, x):
    try:
        rest = float(sum(a[0])) % 0
    except ArithmeticError:
        return x
    return x + rest


@pytest.mark.parametrize("program", [of_the_arc_cosine, of_a_square_root, of_a_remainder])
def test_an_error_of_a_number_is_raised_as_in_python(program):
    args = np.ones((2, 3)), jnp.float32(2.0)
    try:
        want = program(*args)
    except ValueError as error:
        want = error
    fun = mal.jit(program)
    for _ in range(2):
        if isinstance(want, Exception):
            with pytest.raises(type(want)):
                fun(*args)
        else:
            np.testing.assert_allclose(fun(*args), want)


def test_an_array_of_numpy_in_a_dict_stays_one_of_64_bits():
    def made(x):
        a = np.zeros(2, int)
        held = {"r": a}
        a[1] = 2**40
        return held["r"].max(), x * 2

    def given(x):
        held = {"r": x}
        x[1] = 2.0
        return held["r"].sum()

    for program, make in ((made, lambda: jnp.ones(2)), (given, lambda: np.array([1 / 3, 1.0]))):
        got, wanted = mal.jit(program)(make()), program(make())
        one, other = (x[0] if isinstance(x, tuple) else x for x in (got, wanted))
        assert type(one) is type(other) and one == other


@pytest.mark.parametrize("x", [np.arange(3), np.array([1 / 3, 1e40]), 2.5, 2])
def test_a_number_that_numpy_makes_is_one_of_numpy(x):
    def scaled(a):
        return np.float32(2) * a

    def divided(a):
        return np.float32(np.sum(a) % 100) * 3.0 / 7

    for program in (scaled, divided):
        for _ in range(2):
            got, wanted = mal.jit(program)(x), program(x)
            assert type(got) is type(wanted) and got.dtype == wanted.dtype
            np.testing.assert_array_equal(got, wanted)


def test_a_power_by_a_number_of_numpy_has_the_type_of_the_array():
    def power(x, exponent):
        return x**exponent, x ** np.int16(3)

    x = jnp.array([7, 100], jnp.int8)
    for got in mal.jit(power)(x, np.int16(3)):
        assert got.dtype == jnp.int8 and got.tolist() == [87, 64]


@pytest.mark.parametrize("x", [2, jnp.arange(3), np.arange(3)], ids=["number", "jax", "numpy"])
def test_a_list_is_compared_as_python_does(x):
    def compared(a):
        return [1, 2, 3] < a  # noqa: SIM300

    def handled(a):
        try:
            return bool((a < [1, 2, 3]).all())
        except (TypeError, AttributeError):
            return "no order"

    for program in (compared, handled):
        try:
            wanted = program(x)
        except TypeError:
            for _ in range(2):
                with pytest.raises(TypeError, match="not supported between"):
                    mal.jit(program)(x)
        else:
            got = mal.jit(program)(x)
            assert type(got) is type(wanted) and np.all(got == wanted)


def test_a_mask_of_numpy_drops_what_is_not_finite_as_it_does_in_jax():
    def program(w):
        return w * 2 / 3, (w > 0) * jnp.log(w)

    w = np.array([0.0, -1.0, 2.0])
    np.testing.assert_array_equal(mal.jit(program)(w)[1], program(w)[1])


@pytest.mark.parametrize("kind", [np.int16, np.int8, bool])
def test_numpy_divides_whole_numbers_in_its_own_type(kind):
    def program(a, x):
        return (1 / a) * x

    a = np.array([1, 2, 3], kind)
    with jax.enable_x64(True):
        x = jnp.arange(3)
        got, wanted = mal.jit(program)(a, x), program(a, x)
        assert got.dtype == wanted.dtype and got.weak_type == wanted.weak_type
        np.testing.assert_array_equal(got, wanted)


def of_numpy(w, scale=1):
    return (w.sum() - 1) * scale


def scaled_by(x, w):
    return x * of_numpy(w)


@pytest.mark.parametrize(
    "program",
    [
        lambda x, w: jnp.sin(x) * of_numpy(w),
        lambda x, w: jnp.sin(x) * of_numpy(scale=2, w=w),
        lambda x, w: jax.vmap(lambda v: scaled_by(v, w))(x),
        lambda x, w: jax.grad(lambda v: scaled_by(v, w).sum())(x),
    ],
    ids=["called", "named", "in vmap", "in grad"],
)
def test_what_a_function_makes_of_numpy_alone_has_64_bits(program):
    x, w = jnp.ones(3), np.array([1.0, 1e-12])
    for _ in range(2):
        np.testing.assert_allclose(mal.jit(program)(x, w), program(x, w), rtol=1e-6)


def test_arrays_that_python_may_not_write_to_stay_those_of_numpy():
    def program(x, held):
        got = jax.device_get(x * 2)
        first, _ = jax.device_get((x, x + 1))
        return got, first, np.diag(np.eye(2, dtype="f")), np.broadcast_to(2.0, 3), held["w"]

    held = {"w": np.array([1.0, 2.0])}
    held["w"].setflags(write=False)
    jitted = mal.jit(program)
    for _ in range(3):
        got, wanted = jitted(jnp.ones(2), held), program(jnp.ones(2), held)
        assert [(type(x), x.dtype) for x in got] == [(type(x), x.dtype) for x in wanted]


def _first_of_two(given):
    return given[0] * 2, given[1] * 2, given[0] + given[1]


def _unpacked(given):
    a, b = given
    return a.sum(), -b, jnp.tanh(a)


def _gone_over(given):
    return [x * 2 for x in given]


def _mapped(given):
    return jax.tree.map(lambda x: x * 2, given)


@pytest.mark.parametrize("program", [_first_of_two, _unpacked, _gone_over, _mapped])
@pytest.mark.parametrize("kinds", [(np, np), (np, jnp), (jnp, np)])
def test_arrays_of_numpy_in_a_tuple_stay_its_own(program, kinds):
    given, jitted = tuple(kind.arange(3.0) for kind in kinds), mal.jit(program)
    expected = program(given)
    for _ in range(2):
        for one, other in zip(jax.tree.leaves(jitted(given)), jax.tree.leaves(expected)):
            assert type(one) is type(other) and one.dtype == other.dtype
            np.testing.assert_allclose(one, other, rtol=1e-6)
