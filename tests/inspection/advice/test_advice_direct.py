"""What `explain()` costs a healthy program, and what it finds although JAX calls directly."""

import functools
import warnings

import jax
import numpy as np
import pytest
from jax import lax
from jax import numpy as jnp

import malleable.inspection.advice  # registers the advisers
from malleable.errors import AdviceWarning, explain
from malleable.inspection.advice.watching import indices, keys, running, storms

assert malleable.inspection.advice


def heard(run):
    """What is said while run() runs."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with explain(debug=True):
            block = running.block()
            run()
    assert block is not None and block.failures == []
    return [str(w.message) for w in said if w.category is AdviceWarning]


def raised(run):
    """The error of run()."""
    with pytest.raises(Exception) as caught:
        run()
    return caught.value


def ours(error):
    return [n for n in getattr(error, "__notes__", ()) if n.startswith("malleable: ")]


# ---------------------------------------------------------------- what is not looked at


@pytest.mark.parametrize(
    "fun",
    [
        jax.jit(lambda x: jnp.sin(x) * 2),
        lambda x: jnp.sin(x) * x + x,
        jax.jit(lambda x: {"loss": x.sum()}, donate_argnums=()),
    ],
)
def test_what_nothing_is_to_be_seen_of_is_seen_once(fun):
    x = jnp.ones(3)
    with explain():
        fun(x)
        block = running.block()
        assert block is not None
        block.recent.clear()
        for _ in range(5):
            fun(x)
        assert list(block.recent) == []


def test_a_later_run_is_looked_at_by_those_who_follow_it_only(monkeypatch):
    looked = []
    monkeypatch.setattr(storms.Storms, "called", lambda self, run, caller: looked.append(1))
    monkeypatch.setattr(keys.Keys, "called", lambda self, run, caller: looked.append(2))
    step = jax.jit(lambda s: s + 1, donate_argnums=0)
    with explain():
        state = step(jax.device_put(np.float32(1)))
        looked.clear()
        for _ in range(3):
            state = step(state)
    assert looked == []


def test_a_function_is_compiled_once_for_all_blocks():
    traced = []
    f = jax.jit(lambda x: traced.append(1) or x * 2)
    f(1.0)
    for _ in range(3):
        with explain():
            f(1.0)
    assert len(traced) == 2


def test_checks_of_indices_take_a_share_of_the_time_only(monkeypatch):
    monkeypatch.setattr(indices, "ALWAYS", 2)
    monkeypatch.setattr(indices, "SHARE", 0.0)
    pick, x = jax.jit(lambda x, i: x[i]), jnp.arange(3.0)
    assert heard(lambda: [pick(x, i) for i in (0, 1, 2, 9)]) == []
    assert len(heard(lambda: [pick(x, i) for i in (0, 9)])) == 1


# ---------------------------------------------------------------- what comes late is found


def test_an_index_that_goes_out_of_bounds_in_a_later_call_is_told():
    pick, x = jax.jit(lambda x, i: x[i]), jnp.arange(3.0)
    for _ in range(2):
        (said,) = heard(lambda: [pick(x, i) for i in range(5)])
        assert "`i` is 3" in said
    (said,) = heard(lambda: [x[i] for i in range(5)])
    assert "`i` is 3" in said


def test_a_key_used_again_in_a_later_call_is_told_whatever_else_is_passed():
    step = jax.jit(lambda key, x: x + jax.random.normal(key))

    def run():
        for i, key in enumerate(jax.random.split(jax.random.key(0), 3)):
            step(key, float(i))
        key = jax.random.key(1)
        for i in range(3):
            step(key, float(i))

    (said,) = heard(run)
    assert "`key` is the same key each time" in said


def test_numbers_too_large_in_a_later_call_are_told():
    add = jax.jit(lambda x: x + 1)

    def run():
        for n in (1, 2, 2**40):
            add(np.array([n]))

    def convert():
        for n in (1, 2, 2**40):
            ids = np.array([n])
            jnp.asarray(ids)

    assert ["does not fit into int32" in s for s in heard(run)] == [True]
    assert ["`ids` is int64" in s for s in heard(convert)] == [True]


@pytest.mark.filterwarnings("ignore")
def test_a_nan_of_a_later_call_names_its_line():
    log = jax.jit(lambda x: jnp.log(x))

    def run():
        with jax.debug_nans(False):
            log(jnp.ones(3))
            log(jnp.ones(3))
        with jax.debug_nans(True):
            log(jnp.ones(3))
            log(-jnp.ones(3))

    with pytest.raises(FloatingPointError) as caught, explain(debug=True):
        run()
    (note,) = ours(caught.value)
    assert "`log` makes nan" in note and "test_advice_direct.py" in note


def limited(x):
    if x > 2:
        raise ValueError("too much")
    return np.float32(x)


def test_a_callback_that_raises_in_a_later_call_is_named_and_the_type_stays():
    def run():
        f = jax.jit(lambda x: jax.pure_callback(limited, jax.ShapeDtypeStruct((), jnp.float32), x))
        for i in range(5):
            jax.block_until_ready(f(float(i)))

    plain = raised(run)
    with pytest.raises(type(plain)) as caught, explain():
        run()
    assert type(caught.value) is type(plain)
    (note,) = ours(caught.value)
    assert "`limited`" in note and "too much" in note


def test_memory_is_not_laid_to_a_program_that_makes_nothing_large():
    def run():
        jax.jit(lambda x: x + 1)(jnp.ones(3))
        raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 4000000000000 bytes.")

    with pytest.raises(RuntimeError) as caught, explain():
        run()
    assert ours(caught.value) == []


# ---------------------------------------------------------------- donated arrays


def donating(*, drawing):
    @functools.partial(jax.jit, donate_argnums=0)
    def step(params, key):
        noise = jax.random.normal(key) if drawing else 0.0
        return {"w": params["w"] + noise}

    def run():
        params = {"w": jnp.zeros(8)}
        for key in jax.random.split(jax.random.key(0), 3):
            step(params, key)

    return run


@pytest.mark.parametrize("drawing", [True, False])
def test_the_error_of_a_donated_argument_keeps_its_type_and_is_explained(drawing):
    plain = raised(donating(drawing=drawing))
    with pytest.raises(Exception) as caught, explain():
        donating(drawing=drawing)()
    assert type(caught.value) is type(plain)
    (note,) = ours(caught.value)
    assert "`params['w']`" in note and "an earlier run of this line donated it" in note


def train(step, state):
    for i in range(5):
        old = state if i == 3 else None
        state = step(state)
        if old is not None:
            return old + 1


def test_what_a_later_call_took_is_laid_to_that_call():
    step = jax.jit(lambda s: s + 1, donate_argnums=0)
    with pytest.raises(RuntimeError) as caught, explain():
        train(step, jnp.ones(8))
    (note,) = ours(caught.value)
    call = train.__code__.co_firstlineno + 3
    assert "`old`" in note and "old + 1" in note and "argument `s` of a lambda" in note
    assert f"the call at tests/inspection/advice/test_advice_direct.py:{call} in train" in note


@functools.partial(jax.jit, donate_argnums=0)
def update(state, rate):
    return state - rate


def test_the_call_that_took_an_array_is_named_and_no_other_of_the_same_function():
    def run():
        a = update(jnp.ones(3), 1.0)
        a = update(a, 1.0)
        b = jnp.zeros(3)
        c = update(b, 1.0)
        return b + c

    for _ in range(2):
        with pytest.raises(Exception) as caught, explain():
            run()
        (note,) = ours(caught.value)
        assert "`c = update(b, 1.0)`" in note and "a = update" not in note


def test_what_a_call_in_an_earlier_block_took_is_laid_to_that_call():
    b = jnp.zeros(3)
    with explain():
        update(b, 1.0)
    with pytest.raises(RuntimeError) as caught, explain():
        update(jnp.ones(3), 1.0)
        b + 1
    (note,) = ours(caught.value)
    assert "the call at" in note and "`update(b, 1.0)`" in note


def test_an_array_deleted_by_hand_is_laid_to_no_call():
    def run():
        update(jnp.ones(3), 1.0)
        b = jnp.zeros(3)
        b.delete()
        return b + 1

    with pytest.raises(RuntimeError) as caught, explain():
        run()
    (note,) = ours(caught.value)
    assert ".delete()" in note and "update" not in note


def test_what_was_donated_before_the_block_is_laid_to_no_call_of_it():
    b = jnp.zeros(3)
    update(b, 1.0)
    with pytest.raises(Exception) as caught, explain():
        update(jnp.ones(3), 1.0)
        b + 1
    (note,) = ours(caught.value)
    assert "donate_argnums" in note and "jnp.copy(b)" in note and "update" not in note


def test_one_array_as_two_donated_arguments():
    f = jax.jit(lambda a, b: (a + b, a * b), donate_argnums=(0, 1))
    x = jnp.ones(8)
    with pytest.raises(Exception, match="donate the same buffer twice") as caught, explain():
        f(x, x)
    (note,) = ours(caught.value)
    assert "`x` is passed twice, as the arguments `a` and `b`" in note


def test_a_donation_that_no_result_can_use_is_told_with_the_argument():
    (said,) = heard(lambda: jax.jit(lambda x: x.sum(), donate_argnums=0)(jnp.ones(8)))
    assert "argument `x` (float32[8])" in said and "in vain" in said
    good = jax.jit(lambda x, y: (x + y, y.sum()), donate_argnums=0)
    assert heard(lambda: good(jnp.ones(8), jnp.ones(8))) == []


# ---------------------------------------------------------------- errors made of others


def branch():
    jax.jit(lambda x: 1 if x > 0 else 2)(1.0)


def product():
    return jnp.ones(3) @ jnp.ones(4)


@pytest.mark.parametrize("way", ["cause", "context"])
def test_the_error_of_jax_behind_one_of_the_users_is_explained(way):
    def run():
        try:
            branch()
        except Exception as error:
            if way == "cause":
                raise RuntimeError("training failed") from error
            raise RuntimeError("training failed")  # noqa: B904

    with pytest.raises(RuntimeError) as caught, explain():
        run()
    assert ours(caught.value) == []
    (note,) = ours(caught.value.__context__)
    assert "needs True or False from `x`" in note


def test_an_error_that_hides_what_it_came_from_leaves_it_alone():
    def run():
        try:
            branch()
        except Exception:
            raise RuntimeError("training failed") from None

    with pytest.raises(RuntimeError) as caught, explain():
        run()
    assert ours(caught.value) == ours(caught.value.__context__) == []


def test_each_member_of_a_group_is_explained():
    found = []
    for run in (branch, product):
        try:
            run()
        except Exception as error:
            found.append(error)
    with pytest.raises(ExceptionGroup) as caught, explain():
        raise ExceptionGroup("several", found)
    assert [len(ours(error)) for error in caught.value.exceptions] == [1, 1]
    assert ours(caught.value) == []


def test_a_scan_in_a_followed_program_is_what_it_was():
    walk = jax.jit(lambda x, i: lax.scan(lambda c, v: (c + v, c), x[i], x)[0])
    x = jnp.arange(4.0)
    plain = walk(x, 1)
    with explain():
        assert walk(x, 1) == walk(x, 1) == plain
