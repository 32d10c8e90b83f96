"""Hooks into JAX: installed while a feature needs them, for it alone, and gone afterwards."""

import asyncio
import functools
import sys
import threading
import time
import types
import warnings
import weakref

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import malleable as mal
from malleable import compat
from malleable.compat import hooks
from malleable.compat.hooks import Hook
from malleable.errors import explain
from malleable.execution.common.sizes import trace_symbolic

X = jnp.arange(3.0)


# ---------------------------------------------------------------- the mechanism


@pytest.fixture
def library(monkeypatch):
    """A module that stands for one of JAX."""
    made = types.ModuleType("library_of_a_test")
    exec("def double(x):\n    return 2 * x\n\nclass Size:\n    pass\n", vars(made))
    made.rules = {"double": made.double}
    monkeypatch.setitem(sys.modules, made.__name__, made)
    return made


def plus_one(own, x):
    return own(x) + 1


def test_a_name_is_replaced_while_the_hook_is_held(library):
    own, hook = library.double, Hook((library, "double", plus_one))
    assert library.double is own
    with hook.held():
        assert library.double(3) == 7 and library.double.__name__ == "double"
    assert library.double is own


def test_it_is_gone_after_an_error_and_after_a_generator_that_was_dropped(library):
    own, hook = library.double, Hook((library, "double", plus_one))

    def steps():
        with hook.held():
            yield library.double(3)

    with pytest.raises(KeyError), hook.held():
        raise KeyError
    assert library.double is own
    going = steps()
    assert next(going) == 7
    del going
    assert library.double is own and not hook.opened()


def test_blocks_nest_and_end_in_any_order(library):
    own, hook = library.double, Hook((library, "double", plus_one))
    one, other = hook.held("one"), hook.held("other")
    one.__enter__()
    other.__enter__()
    assert hook.opened() == ["one", "other"] and library.double(3) == 7
    one.__exit__(None, None, None)
    assert hook.opened() == ["other"] and library.double(3) == 7
    other.__exit__(None, None, None)
    assert library.double is own


@pytest.mark.parametrize("first", [0, 1])
def test_two_hooks_share_a_name(library, first):
    own = library.double
    blocks = [
        Hook((library, "double", plus_one)).held(),
        Hook((library, "double", lambda own, x: own(10 * x))).held(),
    ]
    for block in blocks:
        block.__enter__()
    assert library.double(1) == 21
    blocks[first].__exit__(None, None, None)
    assert library.double(1) == (20, 3)[first]
    blocks[1 - first].__exit__(None, None, None)
    assert library.double is own


def test_a_rule_a_method_and_a_missing_method_are_put_back(library):
    before = dict(library.rules), dict(vars(library.Size))
    hook = Hook(
        (library.rules, "double", plus_one),
        (library.Size, "__bool__", lambda own, self: False),
        (library.Size, "__hash__", lambda own, self: own(self) * 0 + 7),
    )
    with hook.held():
        assert library.rules["double"](1) == 3 and not library.Size()
        assert hash(library.Size()) == 7
    assert (dict(library.rules), dict(vars(library.Size))) == before
    assert library.Size()


def test_another_thread_goes_straight_to_the_original(library):
    hook, seen = Hook((library, "double", plus_one), (library.Size, "__bool__", plus_one)), []
    with hook.held():
        work = lambda: seen.extend([library.double(3), bool(library.Size()), hook.opened()])
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [6, True, []]


def test_a_task_that_outlives_the_block_it_began_in_is_outside_of_it(library):
    hook = Hook((library, "double", plus_one))

    async def later():
        inside = library.double(3)
        await asyncio.sleep(0.01)
        with other.held():  # of somebody else, so that the name is still replaced
            return inside, library.double(3)

    async def main():
        with hook.held():
            task = asyncio.ensure_future(later())
            await asyncio.sleep(0)
        return await task

    other = Hook((library, "double", lambda own, x: own(x) + 100))
    assert asyncio.run(main()) == (7, 106)


def test_the_patch_of_somebody_else_is_left_alone(library):
    own, hook = library.double, Hook((library, "double", plus_one))
    with hook.held():
        ours = library.double
        library.double = theirs = lambda x: -ours(x)
        assert library.double(3) == -7
    assert library.double is theirs and library.double(3) == -6  # ours only passes on
    with hook.held():
        assert library.double(3) == -5
    assert library.double is theirs
    library.double = ours  # they put back what they had found
    with hook.held():
        assert library.double(3) == 7
    assert library.double is own


def test_a_copy_that_a_module_took_meanwhile_is_put_back(library, monkeypatch):
    own, hook = library.double, Hook((library, "double", plus_one))
    late = types.ModuleType("imported_late")
    with hook.held():
        exec("from library_of_a_test import double", vars(late))
        monkeypatch.setitem(sys.modules, late.__name__, late)
        assert late.double(3) == 7
    assert late.double is own


def test_threads_that_come_and_go_leave_nothing_behind(library):
    own, hook, wrong = library.double, Hook((library, "double", plus_one)), []

    def work():
        for _ in range(200):
            with hook.held():
                wrong.extend([] if library.double(3) == 7 else [1])
            wrong.extend([] if library.double(3) == 6 else [1])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and library.double is own and not hook.holders


# ---------------------------------------------------------------- each hook of ours


@jax.custom_batching.custom_vmap
def ruled(x):
    return x + 1


@ruled.def_vmap
def _(size, mapped, x):
    return x + 1, mapped[0]


def unstaged(probe):
    assert mal.unstage(jax.jit(lambda x: (probe(), lax.scan(add, 0.0, x)[0])[1]))(X) == 3


def add(carry, x):
    return carry + x, x


PROBE = weakref.WeakValueDictionary()  # where no tool looks, that puts back what it changed


def by_example(probe):
    PROBE["probe"] = probe
    found = mal.first_nonfinite(jax.vmap(lambda x: (PROBE["probe"](), jnp.log(x))[1]))(X)
    assert "log" in str(found)


def refused(probe):
    out = mal.unstage(jax.vmap(lambda x: (probe(), ruled(x))[1]))(X)
    assert out.tolist() == [1, 2, 3]


def marked(probe):
    assert mal.reap(lambda x: (probe(), mal.tag(x, "x"))[1])(2.0)[1]["x"] == 2


def watched(probe):
    with warnings.catch_warnings(record=True) as said, explain():
        warnings.simplefilter("always")
        probe()
        X[jnp.asarray(9)]
    assert [w.category for w in said] == [mal.errors.AdviceWarning]


def remembered(probe):
    with pytest.raises(ValueError) as caught, explain():
        probe()
        jax.vmap(lambda a, b: a, in_axes=(0,))(X, 1.0)
    assert "at " in caught.value.__notes__[-1]


def whole(probe):
    with compat.whole_tracebacks():
        probe()
        with pytest.raises(TypeError) as caught:
            jax.jit(lambda x: jnp.sin("text"))(1.0)
    assert "_whole_traceback" in vars(caught.value)
    assert any(jax for *_, jax in compat.whole_traceback(caught.value))


def sized(probe):
    fun = lambda x: (probe(), x.sum() / x.shape[0] if x.shape[0] else x.sum())[1]
    aval = jax.ShapeDtypeStruct((7, 3), "float32")
    program = trace_symbolic(lambda x: fun(x) if x.shape[0] != 9 else x, [aval], {(0, 0): "n"})
    assert ("n", "9") in program.apart and ("n", "0") in program.apart


FEATURES = {
    "constructs": (hooks.constructs._HOOK, unstaged),
    "batch": (hooks.examples._BATCH, by_example),
    "rule": (hooks.examples._RULE, refused),
    "markers": (hooks.markers._HOOK, marked),
    "running": (hooks.running._HOOK, watched),
    "creation": (hooks.creation._HOOK, remembered),
    "tracebacks": (hooks.tracebacks._HOOK, whole),
    "sizes": (hooks.sizes._HOOK, sized),
}


def names(hook):
    """What JAX has under each name of a hook, now."""
    return [hooks._read(owner, name) for owner, name, _ in hook.names]


AT_REST = {key: names(hook) for key, (hook, _) in FEATURES.items()}
every = pytest.mark.parametrize("key", FEATURES)


def same(one, other):
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def test_every_hook_is_here():
    declared = [
        value
        for module in vars(hooks).values()
        if isinstance(module, types.ModuleType) and module.__name__.startswith(hooks.__name__)
        for value in vars(module).values()
        if isinstance(value, Hook)
    ]
    assert {id(h) for h in declared} == {id(h) for h, _ in FEATURES.values()}


@every
def test_jax_has_every_name(key):
    for owner, name, _ in FEATURES[key][0].names:
        has = name in owner if isinstance(owner, dict) else hasattr(owner, name)
        assert has or name == "__bool__", (owner, name)


@every
def test_a_hook_is_installed_while_it_is_used_and_gone_afterwards(key):
    hook, feature = FEATURES[key]
    seen = []
    feature(lambda: seen.append(names(hook)))
    replaced = [all(a is not b for a, b in zip(s, AT_REST[key], strict=True)) for s in seen]
    assert any(replaced)  # not every time: some run as a whole afterwards
    assert same(names(hook), AT_REST[key]) and not hook.holders


@every
def test_a_hook_is_gone_after_an_error(key):
    class Mine(Exception):
        pass

    def probe():
        raise Mine

    hook, feature = FEATURES[key]
    with pytest.raises(Exception) as caught:
        feature(probe)
    assert isinstance(caught.value, Mine) or "Mine" in str(caught.value)
    assert same(names(hook), AT_REST[key]) and not hook.holders


ONE_SPEAKS = {  # of nested blocks the outer one says what both see
    *(("running", "running"), ("creation", "running"), ("constructs", "tracebacks"))
}


@pytest.mark.parametrize(
    ("around", "key"),
    [
        (around, key)
        for around in ("constructs", "running", "creation", "tracebacks")
        for key in FEATURES
        if (around, key) not in ONE_SPEAKS
    ],
)
def test_a_feature_works_within_another(around, key):
    ran = []
    FEATURES[around][1](lambda: ran or FEATURES[key][1](lambda: ran.append(1)))
    assert ran
    for hook, _ in FEATURES.values():
        assert not hook.holders
    assert same(names(FEATURES[key][0]), AT_REST[key])
    assert same(names(FEATURES[around][0]), AT_REST[around])


# ---------------------------------------------------------------- plain JAX beside it


def plain_jax():
    """Something of everything that hooks are about, traced anew."""
    out = [
        lax.scan(lambda c, x: (c * 2 + x, x), 1.0, X)[0],
        lax.while_loop(lambda x: x < 9, lambda x: x * 2, 1.0),
        lax.cond(X[1] > 0, lambda: 1.0, lambda: 2.0),
        lax.switch(1, [lambda: 1.0, lambda: 2.0]),
        jax.jit(lambda x: x + 1)(X),
        jax.vmap(lambda x: lax.psum(x, "i"), axis_name="i")(X),
        jax.vmap(lambda x: ruled(x))(X),
        ruled(X),
        jax.vmap(lambda x: lax.cond(x > 1, jnp.sin, jnp.cos, x))(X),
        jax.grad(jax.checkpoint(lambda x: jnp.sin(x)))(1.0),
        jax.grad(lambda x: lax.scan(lambda c, _: (jax.nn.relu(c), None), x, None, 3)[0])(1.0),
        jax.closure_convert(lambda x: x * X[1], 1.0)[0](2.0),
        jnp.zeros(3, jnp.int32).at[0].set(7),
    ]
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    out.append(jax.shard_map(lambda x: 2 * x, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(X))
    size = jax.export.symbolic_shape("n")[0]
    out.append((size == 3, bool(size), hash(size) == hash(size), {size: 1}[size]))
    try:
        jax.jit(lambda x: jnp.sin("text"))(1.0)
    except TypeError as error:
        out.append(sorted(vars(error)))
    return jax.tree.map(np.asarray, out)


def in_a_thread(work):
    """What another thread makes of work(), and the code objects of the functions it calls."""
    seen, out = set(), []

    def run():
        sys.setprofile(lambda frame, event, _: seen.add(frame.f_code) if event == "call" else None)
        try:
            out.append(work())
        finally:
            sys.setprofile(None)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return out[0], seen


def code_of(instead):
    while isinstance(instead, functools.partial):
        instead = instead.func
    return instead.__code__


def eager(probe):
    """The features that run where there are values, one within the other."""
    whole(lambda: watched(lambda: refused(probe)))


def test_plain_jax_in_another_thread_takes_its_own_path():
    expected = plain_jax()
    instead = {code_of(one) for hook, _ in FEATURES.values() for *_, one in hook.names}
    held = set()
    for feature in (eager, by_example, marked, sized):
        done = []

        def probe(done=done):
            held.update(key for key, (hook, _) in FEATURES.items() if hook.holders)
            done or done.append(in_a_thread(plain_jax))

        feature(probe)
        out, seen = done[0]
        assert not seen & instead, feature
        assert jax.tree.structure(out) == jax.tree.structure(expected)
        assert all(map(np.array_equal, jax.tree.leaves(out), jax.tree.leaves(expected))), feature
    assert held == set(FEATURES)


def test_the_other_thread_is_seen_if_it_uses_the_feature_itself():
    """So that the test above would fail if it should."""
    instead = {code_of(one) for *_, one in hooks.constructs._HOOK.names}
    _, seen = in_a_thread(lambda: mal.unstage(plain_jax)())
    assert len(seen & instead) > 8


def frames_of(work):
    """How many functions of Python one call runs, itself included."""
    count = 0

    def profile(frame, event, _):
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@every
def test_a_compiled_function_is_called_by_cpp_before_beside_and_after(key):
    times = []

    @jax.jit
    def fun(x):
        times.append(1)
        return x * 2

    for _ in range(3):
        fun(X).block_until_ready()
    call = functools.partial(fun, X)
    before, size = frames_of(call), fun._cache_size()
    beside = []
    _, feature = FEATURES[key]
    feature(lambda: beside.append(in_a_thread(lambda: frames_of(call))[0]))
    assert frames_of(call) == before == beside[0]
    assert len(times) == 1 and fun._cache_size() == size


@pytest.mark.parametrize("key", ["constructs", "markers", "running", "batch"])
def test_what_is_traced_under_a_hook_is_not_found_without_it_nor_the_reverse(key):
    times = []

    @jax.jit
    def fun(x):
        times.append(1)
        return x * 2

    fun(X)
    _, feature = FEATURES[key]
    feature(lambda: (fun(X), None)[1])
    assert len(times) > 1
    traced = len(times)
    assert fun(X).tolist() == [0, 2, 4] and len(times) == traced


def test_the_time_of_a_call_is_printed():
    """Of a compiled function, before, beside and after a block of `explain`: python -m pytest -s"""
    fun = jax.jit(lambda x: x * 2)
    fun(X)

    def seconds():
        found = []
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(200):
                fun(X)
            found.append(time.perf_counter() - start)
        return min(found) / 200

    found, beside = [seconds()], []
    with explain():
        thread = threading.Thread(target=lambda: beside.append(seconds()))
        thread.start()
        thread.join()
    found += [*beside, seconds()]
    print("a call before, beside and after:", *(f"{s / found[0]:.2f}" for s in found))
    assert len(found) == 3
