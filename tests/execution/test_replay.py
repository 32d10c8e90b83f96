"""Replay: the paths of a function are recorded once, and right whenever they are taken again."""

import math
import threading

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import malleable as mal
from malleable.execution.replay import replay

VECTORS = [jnp.array([3.0, -1.0, 2.0, 5.0]), jnp.array([1.0, -4.0, -2.5, 2.0])]
COUNTS = [jnp.array(3), jnp.array(2)]
KEYS = [jax.random.PRNGKey(0), jax.random.PRNGKey(1)]
X = VECTORS[0]


@jax.custom_jvp
def doubtful_sin(x):
    return jnp.sin(x)


doubtful_sin.defjvps(lambda t, ans, x: 7.0 * t)


@jax.jit
def mean_of_positive(x):
    return jnp.where(x > 0, x, 0).mean()


def grow(x):
    steps = 0
    while x.sum() < 50:
        x, steps = x * 1.5 + 1, steps + 1
    return x, steps


def over_range(n):
    total = jnp.float32(0)
    for i in range(n):
        total = total + i * n
    return total


PROGRAMS = {
    "nonzero": (lambda x: jnp.nonzero(x > 0), VECTORS),
    "mask": (lambda x: x[x > 0] * 2, VECTORS),
    "mask among indices": (lambda x: jnp.outer(x, x)[x > 0, 1:], VECTORS),
    "mask written": (lambda x: x.at[x > 0].add(1.0), VECTORS),
    "unique": (lambda n: jnp.unique(jnp.arange(5) // n, return_counts=True), COUNTS),
    "arange": (lambda n: jnp.arange(2 * n), COUNTS),
    "slice": (lambda n: jnp.arange(9.0)[n - 1 : 2 * n], COUNTS),
    "shape": (lambda n: jnp.zeros((n, 3)).reshape(-1, n), COUNTS),
    "if": (lambda x: x * 2 if x.sum() > 6 else x - 1, VECTORS),
    "while": (grow, VECTORS),
    "for": (over_range, COUNTS),
    "float": (lambda x: x * float(x[0]), VECTORS),
    "math": (lambda x: math.sin(x[0]) * x, VECTORS),
    "item": (lambda x: (x.sum().item(), x.tolist(), f"{x[0]:.1f}"), VECTORS),
    "numpy": (lambda x: (np.sort(x), jnp.asarray(np.cumsum(np.asarray(x)))), VECTORS),
    "key of a dict": (lambda n: {int(n): n * 2}, COUNTS),
    "nested jit": (lambda x: x / mean_of_positive(x) if mean_of_positive(x) > 1 else x, VECTORS),
    "custom_jvp": (lambda x: jax.grad(lambda y: doubtful_sin(y).sum())(x), VECTORS),
    "grad": (lambda x: jax.grad(lambda y: (y[y > 0] ** 2).sum())(x), VECTORS),
    "hessian": (lambda x: jax.hessian(lambda y: (y**3).sum() if y[0] > 2 else y[0])(x), VECTORS),
    "vmap": (lambda x: jax.vmap(lambda v: v * x)(x)[x > 0], VECTORS),
    "trip count under grad": (
        lambda n: jax.grad(lambda w: lax.fori_loop(0, n, lambda _, c: c * w, 1.0))(2.0),
        COUNTS,
    ),
    "scan": (lambda x: lax.scan(lambda c, y: (c + y, c * y), x[0], x)[1] * int(x[0]), VECTORS),
    "old keys": (lambda k: jax.random.normal(k, (int(jax.random.bits(k) % 3),)), KEYS),
    "new keys": (
        lambda n: jax.random.split(
            jax.random.key(n), 2 if jax.random.uniform(jax.random.key(n)) > 0.5 else 3
        ),
        COUNTS,
    ),
    "constants": (lambda x: (jnp.zeros(2), None, "s", 3, x if x[0] > 2 else None), VECTORS),
    "numbers": (lambda t: jnp.ones(2) * t if t > 0.3 else t, [0.5, 0.25]),
    "debug": (lambda x: (jax.debug.callback(lambda v: None, x), x * int(x[0]))[1], VECTORS),
}


def plain(x):
    """A key as its numbers."""
    typed = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if typed else x


def assert_same(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs)):
        a, b = plain(a), plain(b)
        if isinstance(b, str):
            assert a == b
            continue
        assert jnp.shape(a) == jnp.shape(b)
        assert isinstance(a, jax.Array) == isinstance(b, jax.Array)
        if isinstance(b, jax.Array):
            assert (a.dtype, a.weak_type) == (b.dtype, b.weak_type)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def counting(fun):
    """(fun, the list that grows at each of its calls)."""
    calls = []

    def counted(*args):
        calls.append(args)
        return fun(*args)

    return counted, calls


@pytest.mark.caches
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_path_taken_again_gives_what_the_function_gives_and_runs_no_python(name):
    fun, inputs = PROGRAMS[name]
    counted, calls = counting(fun)
    replayed = replay(counted)
    for x in inputs:
        assert_same(replayed(x), fun(x))
    recorded = len(calls)
    for x in inputs:
        assert_same(replayed(x), fun(x))
    assert len(calls) == recorded
    assert not replayed.ended


def test_nothing_leaks_while_recording():  # leak checks are on here
    replayed = replay(lambda x: jax.grad(lambda y: (y[y > 0] ** 2).sum())(x) * int(x[0]))
    assert_same(replayed(X), replayed.fun(X))


@pytest.mark.caches
@pytest.mark.parametrize(
    "name, transform",
    [
        ("if", jax.hessian),
        ("mask", jax.value_and_grad),
        ("while", jax.jacfwd),
        ("custom_jvp", jax.grad),
        ("nested jit", jax.grad),
        ("grad", jax.jacfwd),
    ],
)
def test_derivatives_of_a_replayed_function_are_those_of_the_function(name, transform):
    fun, _ = PROGRAMS[name]
    total = lambda f: lambda x: jax.tree.leaves(f(x))[0].sum()
    replayed = replay(fun)
    want = transform(total(fun))(X)
    for _ in range(2):
        assert_same(transform(total(replayed))(X), want)


def test_a_custom_derivative_is_kept():
    replayed = replay(lambda x: doubtful_sin(x) if x > 0 else x)
    replayed(1.0)
    assert jax.grad(replayed)(1.0) == 7.0


def test_a_number_taken_out_under_grad_is_refused_as_ever():
    replayed = replay(lambda x: x * float(x))
    replayed(2.0)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        jax.grad(replayed)(2.0)


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.checkpoint])
def test_where_no_value_is_known_the_error_is_that_of_jax(transform):
    replayed = replay(lambda x: x * 2 if x.sum() > 0 else x)
    replayed(X)
    with pytest.raises(jax.errors.TracerBoolConversionError):
        transform(replayed)(jnp.ones((2, 4)))
    assert transform(replay(lambda x: x * 2))(X).shape == (4,)


def test_every_bit_of_a_number_counts():
    sign = replay(lambda x: math.copysign(1.0, float(x)))
    zeros = [jnp.float32(0.0), jnp.float32(-0.0), jnp.float32(jnp.nan), jnp.float32(0.0)]
    assert [sign(x) for x in zeros] == [1.0, -1.0, 1.0, 1.0]


def test_of_a_condition_only_the_truth_counts():
    counted, calls = counting(lambda x: x * 2 if x else x)
    replayed = replay(counted)
    assert [float(replayed(x)) for x in (1.0, 2.0, 3.0, 0.0)] == [2.0, 4.0, 6.0, 0.0]
    assert len(calls) == 2


def test_types_of_arguments_are_compared_and_other_leaves_by_value():
    counted, calls = counting(lambda x, how: x + 1 if how == "up" else x - 1)
    replayed = replay(counted)
    for x in (1.0, jnp.ones(2), jnp.ones(2, int), np.ones(2)):
        for how in ("up", "down", "up"):
            assert_same(jnp.asarray(replayed(x, how)), jnp.asarray(x + (1 if how == "up" else -1)))
    assert len(calls) == 8


def test_an_object_that_may_change_is_not_trusted():
    class Model:
        scale = 1.0

        @replay
        def __call__(self, x):
            return x * self.scale

    model = Model()
    assert model(2.0) == 2.0
    model.scale = 3.0
    assert model(2.0) == 6.0


def test_a_constant_is_the_one_recorded():
    table = np.ones(4, np.float32)
    replayed = replay(lambda x: x + jnp.asarray(table))
    first = replayed(X)
    table[:] = 5
    assert_same(replayed(X), first)


def test_what_is_returned_may_be_written_to():
    replayed = replay(lambda x: np.arange(3))
    replayed(X)[0] = 9
    assert replayed(X)[0] == 0


def test_an_exception_comes_each_time_and_leaves_the_other_paths_alone():
    def guarded(x):
        if x.sum() > 100:
            raise ValueError(f"{float(x.sum())} is too much")
        return x * 2

    replayed = replay(guarded)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"900\.0 is too much"):
            replayed(X * 100)
        assert_same(replayed(X), X * 2)
    with pytest.raises(ValueError, match=r"1800\.0 is too much"):
        replayed(X * 200)


def test_an_exception_caught_inside_is_part_of_the_path():
    def careful(x):
        try:
            return x if x else -x
        except ValueError:
            return x + 1

    replayed = replay(careful)
    assert_same([replayed(X), replayed(X)], [X + 1, X + 1])


def test_what_only_an_array_can_do_is_left_to_arrays():
    replayed = replay(lambda x: (x.devices(), x.sharding)[1])
    assert replayed(X) == replayed(X) == X.sharding


@pytest.mark.parametrize(
    "fun, why",
    [
        (lambda x: [jnp.asarray(np.sort(x))], "more than 256 bytes"),
        (lambda x: (y for y in [x]), "object of type generator"),
        (lambda x: [jax.new_ref(x)[...]], "mutable reference"),
    ],
)
def test_a_function_that_cannot_be_replayed_runs_as_it_is_and_a_note_says_why(fun, why):
    x = jnp.arange(99.0)
    replayed = replay(fun)
    with mal.listen() as notes:
        for _ in range(2):
            assert_same(list(replayed(x)), [x])
    (note,) = notes
    assert why in note.why


def test_a_value_that_always_changes_ends_recording_and_names_the_line():
    replayed = replay(lambda x: x * float(x))
    with mal.listen() as notes:
        for i in range(35):
            assert float(replayed(float(i))) == i * i
    (note,) = notes
    assert "test_replay.py" in note.why
    assert not replayed.roots and not replayed.leaves


def test_paths_are_bounded_and_the_least_recently_used_one_goes():
    counted, calls = counting(jnp.arange)
    replayed = replay(counted, paths=3)
    for n in (1, 2, 3, 1, 4, 1, 2):
        assert replayed(n).shape == (n,)
    assert len(replayed.leaves) == 3
    assert len(calls) == 5  # 1, 2, 3, 4, and 2 again


def test_a_function_that_is_not_pure_is_found_out():
    turns = []

    def moody(x):
        turns.append(1)
        if x[0] > 0 and len(turns) == 1:
            return x + int(x[1])
        return x + 2 if x[1] > 0 else x

    replayed = replay(moody)
    replayed(X)
    assert_same(replayed(X.at[1].set(7)), X.at[1].set(7) + 2)
    assert "does not do the same" in next(iter(replayed.ended.values()))


def test_iterations_share_one_compiled_segment():
    replayed = replay(lambda x: grow(x)[0])
    replayed(X)
    (step,) = replayed.roots.values()
    assert len(replayed.segments) <= 3
    assert step.children


def test_a_value_of_an_outer_transformation_is_not_recorded():
    def outer(w):
        inner = replay(lambda x: x * w if x > 0 else x)
        return inner(2.0) + inner(2.0)

    assert jax.grad(outer)(3.0) == 4.0


def test_inside_a_recording_a_replayed_function_is_part_of_it():
    inner = replay(lambda x: x * 2 if x.sum() > 0 else x)
    outer = replay(lambda x: inner(x) + inner(-x))
    assert_same([outer(X), outer(X)], [X, X])
    assert not inner.roots


def test_recursion_works():
    factorial = replay(lambda n: n * factorial(n - 1) if n > 1 else n)
    assert [int(factorial(n)) for n in (5, 5, 4)] == [120, 120, 24]


def test_tags_and_rules_see_the_inside():
    replayed = replay(lambda x: mal.tag(x * 2, "y") + 1)
    assert_same(replayed(X), X * 2 + 1)
    assert_same(mal.reap(replayed)(X)[1]["y"], X * 2)


@pytest.mark.caches
def test_threads_get_what_one_thread_gets():
    replayed, wrong = replay(grow), []
    inputs = [X * s for s in (1.0, 2.0, 3.0)]
    want = [grow(x) for x in inputs]

    def work():
        for i in range(30):
            out, steps = replayed(inputs[i % 3])
            if steps != want[i % 3][1] or not jnp.allclose(out, want[i % 3][0]):
                wrong.append(i)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(replayed.leaves) == len({steps for _, steps in want})


def test_a_thread_started_inside_does_not_wait_for_itself():
    def spawning(x):
        thread = threading.Thread(target=lambda: replayed(X - 1))
        if threading.current_thread() is threading.main_thread():
            thread.start()
            thread.join()
        return x * 2

    replayed = replay(spawning)
    assert_same(replayed(X), X * 2)


def test_forgetting_starts_over():
    counted, calls = counting(lambda x: x + 1)
    replayed = replay(counted)
    replayed(1.0)
    replayed.clear()
    assert replayed(1.0) == 2.0
    assert len(calls) == 2
