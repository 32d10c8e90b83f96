"""What a function changes in place is a result of its program, and is put back."""

import collections
import contextvars
import dataclasses
import functools
import io
import itertools
import random
import threading
import traceback
import types
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from malleable import (
    TransformError,
    apply,
    communication,
    compat,
    cost,
    cotangents,
    diff,
    explain,
    first_nonfinite,
    harvest,
    init,
    interpret,
    jit,
    live,
    mutable,
    optimize,
    plant,
    reap,
    rule,
    save,
    seed,
    show,
    stage,
    tag,
    trace_calls,
    why_not,
)
from malleable.notes import listen
from malleable.python_source.changes import MOST, links, relinked

KEY = jax.random.key(0)


def again(frame, *args, **_):
    return frame.bind(*args)


RUNS = {
    "interpret": lambda f: lambda *a: interpret(f, {})(*a)[0],
    "interpret with a rule": lambda f: lambda *a: interpret(f, {}, default=again)(*a)[0],
    "reap": lambda f: lambda *a: reap(f)(*a)[0],
    "plant": lambda f: lambda *a: plant(f)({}, *a),
    "harvest": lambda f: lambda *a: harvest(f)({}, *a)[0],
    "cotangents": lambda f: lambda *a: cotangents(f)(*a)[0],
    "seed": lambda f: lambda *a: seed(f)(KEY, *a),
    "apply": lambda f: lambda *a: apply(f)({}, *a),
    "live": lambda f: lambda *a: live(f, {})(*a)[0],
    "live with a rule": lambda f: lambda *a: live(f, {}, default=again)(*a)[0],
    "mutable": mutable,
}
LOOKS = {
    "show": lambda f: show(f, quiet=True),
    "cost": cost,
    "diff": lambda f: diff(f, f, quiet=True),
    "first_nonfinite": first_nonfinite,
    "trace_calls": trace_calls,
    "init": lambda f: functools.partial(init(f), KEY),
    "stage": stage,
}


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    w: jax.Array
    past: list


class Slotted:
    __slots__ = ("__seen", "w")

    def __init__(self):
        self.w, self.__seen = jnp.ones(2), jnp.zeros(())

    def step(self, x):
        self.w = self.w - x
        self.__seen = self.__seen + x
        return self.w.sum() + self.__seen


class Counter:
    """No pytree."""

    total = 0.0

    def __init__(self):
        self.w, self.history = jnp.ones(2), []

    def step(self, x):
        self.w = self.w * x
        Counter.total = Counter.total + x
        self.history.append(self.w.sum())
        return self.history[-1]


def a_list():
    given = [jnp.ones(2), jnp.zeros(2)]

    def f(items, x):
        first = items.pop(0)
        items += [first * x, jnp.stack([x, x])]
        return items[0].sum()

    return f, (given,), given


def a_dict():
    given = {"w": jnp.ones(2), "n": 0, "old": 1.0}

    def f(state, x):
        state["w"] = state["w"] - x
        state["n"] += 1
        state["new"] = 2 * x
        state.pop("old", None)
        return state["w"].sum()

    return f, (given,), given


def nested():
    given = {"layers": [{"w": jnp.ones(2)}, {"w": jnp.zeros(2)}], "mode": "train"}

    def f(state, x):
        for layer in state["layers"]:
            layer["w"] = layer["w"] + x
        state["layers"].reverse()
        state["mode"] = "eval"
        return state["layers"][0]["w"].sum()

    return f, (given,), given


def one_dict_twice():
    given = {"w": jnp.ones(2)}

    def f(one, both, x):
        one["w"] = one["w"] + x
        return both[1]["w"].sum()

    return f, (given, (1.0, given)), given


def a_dataclass():
    given = State(jnp.ones(2), [jnp.zeros(1)])

    def f(state, x):
        state.w = state.w - x
        state.past.append(state.w.sum())
        return state.past[-1]

    return f, (given,), given


def slots():
    given = Slotted()
    return Slotted.step, (given,), lambda: (given.w, given._Slotted__seen)


def an_object():
    given = Counter()
    Counter.total = 0.0
    return given.step, (), lambda: (vars(given), Counter.total)


def a_closure():
    history, total = [], jnp.zeros(())

    def f(x):
        nonlocal total
        total = total + x
        history.append({"x": x * 2})
        return total

    return f, (), lambda: (history, total)


seen = jnp.zeros(())


def a_global():
    global seen
    seen = jnp.zeros(())

    def f(x):
        global seen
        seen = seen + x
        return seen * 1

    return f, (), lambda: seen


def a_module():
    given = types.ModuleType("state")
    given.total, given.last = jnp.zeros(()), 0.0

    def f(x):
        given.total = given.total + x
        given.last = x * 2
        return given.total * 1

    return f, (), lambda: (given.total, given.last)


class Named(list):
    last = 0.0


def attributes_of_a_list():
    given = Named()

    def f(x):
        given.append(x)
        given.last = given.last + x
        return given.last * len(given)

    return f, (), lambda: (list(given), given.last)


def what_is_of_a_context_or_a_thread():
    total = contextvars.ContextVar("total", default=0.0)
    here = threading.local()
    here.total = 0.0

    def f(x):
        total.set(total.get() + x)
        here.total = here.total + total.get()
        return here.total

    return f, (), lambda: (total.get(), here.total)


def a_default():
    def f(x, past=[]):  # noqa: B006
        past.append(x * 2)
        return x * len(past)

    return f, (), f.__defaults__


def a_reference():
    given = jax.new_ref(jnp.ones(2))

    def f(ref, x):
        ref[...] = ref[...] * x
        return ref[...].sum()

    return f, (given,), lambda: given[...]


PROGRAMS = [a_list, a_dict, nested, one_dict_twice, a_dataclass]
OUTSIDE = [slots, an_object, a_closure, a_global, a_default]
OUTSIDE += [a_module, attributes_of_a_list, what_is_of_a_context_or_a_thread]


def told(state):
    """What a state holds, as plain numbers; a tracer in it raises."""
    state = state() if callable(state) else state
    leaves, tree = jax.tree.flatten(state)
    assert not any(isinstance(x, compat.Tracer) for x in leaves)
    return tree, [x if isinstance(x, str) else jnp.asarray(x).tolist() for x in leaves]


def trained(make, transform):
    """Three results, and what the state is then."""
    f, args, state = make()
    run = transform(f)
    return [float(run(*args, 2.0)) for _ in range(3)], told(state)


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("make", [*PROGRAMS, *OUTSIDE, a_reference])
def test_changes_are_put_back(make, name):
    assert trained(make, RUNS[name]) == trained(make, lambda f: f)


@pytest.mark.parametrize("make", [*PROGRAMS, a_reference])
def test_optimize_puts_back_what_its_arguments_become(make):
    assert trained(make, optimize) == trained(make, lambda f: f)


@pytest.mark.parametrize("make", OUTSIDE)
def test_optimize_refuses_what_changes_outside_of_its_arguments(make):
    f, args, state = make()
    before = told(state)
    with pytest.raises(TransformError, match=r"is changed in place.*\n.*test_changes\.py:\d+"):
        optimize(f)(*args, 2.0)
    assert told(state) == before


@pytest.mark.parametrize("name", LOOKS)
@pytest.mark.parametrize("make", [nested, one_dict_twice, an_object, a_closure, a_reference])
def test_who_only_looks_changes_nothing(make, name):
    f, args, state = make()
    before = told(state)
    LOOKS[name](f)(*args, 2.0)
    assert told(state) == before


def a_generator():
    def totals(total=0.0):
        while True:
            total = total + (yield total)

    given = totals()
    next(given)
    return given.send


def a_cache(maxsize=128):
    table = functools.lru_cache(maxsize)(lambda n: jnp.arange(n).sum())
    return lambda x: x * table(3)


@pytest.mark.parametrize("make", [a_generator, a_cache, functools.partial(a_cache, None)])
@pytest.mark.parametrize("name", ["interpret", "live with a rule", "reap"])
def test_what_keeps_a_tracer_where_nothing_can_be_put_back_is_refused(name, make):
    kept = make()
    with pytest.raises(
        TransformError, match=r"keeps a value that is traced.*\n.*:\d+ in"
    ) as caught:
        RUNS[name](lambda x: kept(x) + 1)(2.0)
    assert "as an argument" in caught.value.hint


def test_a_cache_is_without_tracers_afterwards():
    f = a_cache()
    with pytest.raises(TransformError, match="keeps a value"):
        reap(f)(2.0)
    assert float(f(2.0)) == 6
    assert float(reap(f)(3.0)[0]) == 9  # it keeps an array now


DRAWS = {
    "`flags`": lambda held: held["flags"].add(2),
    "`grid`": lambda held: held["grid"].__iadd__(1),
    "`raw`": lambda held: held["raw"].append(1),
    "`numbers`": lambda held: held["numbers"].normal(),
    "`dice`": lambda held: held["dice"].random(),
    "`count`": lambda held: next(held["count"]),
    "`turns`": lambda held: next(held["turns"]),
    "`page`": lambda held: held["page"].write("a"),
    "`cursor`": lambda held: next(held["cursor"]),
    "`pairs`": lambda held: next(held["pairs"]),
}


def stateful():
    return {
        "flags": {1},
        "grid": np.zeros(2),
        "raw": bytearray(b"a"),
        "numbers": np.random.default_rng(0),
        "dice": random.Random(0),
        "count": itertools.count(),
        "turns": (i for i in range(9)),
        "page": io.StringIO(),
        "cursor": iter(range(9)),
        "pairs": zip(range(9), [1, 2, 3], strict=False),
    }


@pytest.mark.parametrize("name", DRAWS)
def test_optimize_says_which_state_of_python_moves_on_once(name):
    held = stateful()
    it, move = held[name.strip("`")], DRAWS[name]

    def f(x):
        move({name.strip("`"): it})
        return x * 2

    with listen() as notes:
        optimize(f)(2.0)
    assert [n.what for n in notes] == ["a side effect happens once per signature"]
    assert "`it` changes" in notes[0].why


def test_optimize_says_that_the_numbers_of_a_module_are_drawn_once():
    with listen() as notes:
        optimize(lambda x: x * random.random())(2.0)
    (why,) = [n.why for n in notes]
    assert "the state of random" in why


def test_optimize_says_nothing_of_a_state_that_is_only_read():
    held = stateful()
    with listen() as notes:
        optimize(lambda x: x * held["grid"][0] + len(held["flags"]))(2.0)
    assert notes == []


class Tally:
    """Numbers, containers and arrays of Python, into which JAX does not look."""

    def __init__(self):
        self.n, self.seen, self.past = 0, {1}, [1.0]
        self.grid, self.rng = np.zeros(2), np.random.default_rng(0)
        self.dice, self.legacy = random.Random(0), np.random.RandomState(0)


def tallies():
    given = {
        "one": Tally(),
        "flags": {2},
        "queue": collections.deque([1.0]),
        "raw": bytearray(b"a"),
    }
    total = []

    def f(state, x):
        one = state["one"]
        one.n += 1
        one.seen.add(2)
        one.past.append(2.0)
        one.grid[0] += 1
        one.rng.normal()
        one.dice.random()
        one.legacy.rand()
        state["flags"].clear()
        state["queue"].append(2.0)
        state["raw"][0] = 98
        state["new"] = 1
        total.append(x.ndim)
        return x * 2

    def held():
        one = given["one"]
        plain = one.n, one.seen, one.past, one.grid.tolist(), one.rng.bit_generator.state
        plain += one.dice.getstate(), one.legacy.get_state()[2:]
        return repr((plain, {**given, "one": 0}, total))

    return f, given, held


DOUBLED = rule(lambda x: jnp.sin(x) * 2, lambda x: x, name="doubled")
ALL_LOOKS = {
    **{name: look for name, look in LOOKS.items() if name not in ("init", "stage")},
    "explain": explain,
    "explain of what is compiled": lambda f: explain(jit(f)),
    "why_not": lambda f: functools.partial(why_not(DOUBLED, f)),
    "show of what is compiled": lambda f: show(jit(f), quiet=True),
}


@pytest.mark.parametrize("name", ALL_LOOKS)
def test_who_looks_leaves_the_objects_of_the_caller_alone(name):
    f, given, held = tallies()
    before = held()
    ALL_LOOKS[name](f)(given, jnp.ones(2))
    assert held() == before


def test_communication_leaves_the_objects_of_the_caller_alone():
    past: list = []
    communication(lambda x: (past.append(1), x.sum())[1])(jnp.ones(2))
    assert past == []


def test_explain_runs_again_on_the_arrays_as_they_were():
    x = np.ones(3)

    def f(x):
        x += 1
        return x

    assert (explain(f)(x).out.tolist(), x.tolist()) == ([2, 2, 2], [1, 1, 1])


def interrupted(given, kept):
    def f(state, x):
        state["w"] = state["w"] * x
        kept.append(x)
        state["past"].append(x + 1)
        raise KeyError("no")

    return f


@pytest.mark.parametrize("name", RUNS)
def test_what_changed_before_an_error_is_put_back(name):
    given, kept = {"w": jnp.ones(2), "past": []}, []
    with pytest.raises(KeyError, match="no") as caught:
        RUNS[name](interrupted(given, kept))(given, 2.0)
    assert "test_changes.py" in "".join(traceback.format_exception(caught.value))
    assert [float(x) for x in kept] == [2.0] and [float(x) for x in given["past"]] == [3.0]
    assert given["w"].tolist() == [2, 2]


def test_optimize_puts_back_what_changed_in_arguments_before_an_error():
    def f(state, x):
        state["w"] = state["w"] * x
        if state["w"].ndim:
            raise KeyError("no")

    given, run = {"w": jnp.ones(2)}, optimize(f)
    for _ in range(2):
        with pytest.raises(KeyError, match="no"):
            run(given, 2.0)
    assert given["w"].tolist() == [4, 4]


@pytest.mark.parametrize("name", LOOKS)
def test_who_looks_at_a_function_that_raises_changes_nothing(name):
    given, kept = {"w": jnp.ones(2), "past": []}, []
    with pytest.raises(KeyError, match="no"):
        LOOKS[name](interrupted(given, kept))(given, 2.0)
    assert kept == given["past"] == [] and given["w"].tolist() == [1, 1]


def test_an_error_of_tracing_puts_nothing_back():
    def f(state, x):
        state["w"] = x
        return 1 if x > 0 else 2

    for run in (RUNS["interpret"], RUNS["seed"], optimize):
        given = {"w": 1.0}
        with pytest.raises(jax.errors.TracerBoolConversionError):
            run(f)(given, 2.0)
        assert given == {"w": 1.0}


def test_optimize_finds_the_arguments_of_each_call():
    traces = []

    def f(state, x):
        traces.append(1)
        state["w"] = state["w"] * x
        return x

    run, one, two = optimize(f), {"w": jnp.ones(2)}, {"w": jnp.zeros(2) + 3}
    with listen() as heard:
        run(one, 2.0), run(two, 2.0), run(two, 2.0)
    assert (one["w"].tolist(), two["w"].tolist(), len(traces)) == ([2, 2], [12, 12], 1)
    (note,) = heard
    assert "once per signature" in note.what and "`traces" in note.why


def test_what_jax_binds_anew_in_its_own_wrappers_leaves_no_note():
    auto = (jax.sharding.AxisType.Auto,)
    mesh, spec = jax.make_mesh((1,), ("d",), auto), jax.sharding.PartitionSpec("d")
    mapped = jax.shard_map(lambda x: x * 2, mesh=mesh, in_specs=spec, out_specs=spec)
    with listen() as heard:
        assert optimize(mapped)(jnp.ones(2)).tolist() == [2, 2]
    assert not heard


def test_optimize_knows_one_argument_from_two_equal_ones():
    def f(a, b, x):
        a["w"] = a["w"] + x
        return b["w"]

    run, one, two = optimize(f), {"w": 1.0}, {"w": 1.0}
    assert (float(run(one, two, 1.0)), float(run(one, one, 1.0))) == (1, 3)


def test_an_update_goes_through_the_transformations_around():
    def f(state, x):
        state["w"] = state["w"] * x
        return state["w"].sum()

    def around(w, x, run=f):
        state = {"w": w}
        return run(state, x), state["w"]

    w = jnp.arange(3.0)
    for transform in (RUNS["interpret"], RUNS["cotangents"], RUNS["live"], optimize):
        ours = functools.partial(around, run=transform(f))
        for wrap in (jax.jit, jax.vmap, jax.jacrev):
            x = jnp.arange(1.0, 4.0) if wrap is jax.vmap else 2.0
            assert jax.tree.all(jax.tree.map(jnp.array_equal, wrap(ours)(w, x), wrap(around)(w, x)))


def test_tags_are_read_and_planted_in_what_an_argument_becomes():
    given = {"w": jnp.ones(2)}

    def f(state, x):
        state["w"] = tag(state["w"] * x, "w")
        return state["w"].sum()

    assert reap(f)(given, 2.0)[1]["w"].tolist() == given["w"].tolist() == [2, 2]
    plant(f)({"w": jnp.zeros(2)}, given, 2.0)
    assert given["w"].tolist() == [0, 0]
    assert cotangents(f)(given, 3.0)[1]["w"].tolist() == [1, 1]
    assert not isinstance(given["w"], compat.Tracer)


def test_a_function_is_traced_once_for_its_cotangents():
    traces = []
    cotangents(lambda x: (traces.append(1), tag(x, "x") ** 2)[1])(3.0)
    assert traces == [1]


def test_an_object_that_jax_cannot_look_into_is_refused():
    class Held:
        def __init__(self, x):
            self.x = x

    def f(state, x):
        state["held"] = Held(x * 2)
        return x

    for run in (*RUNS.values(), optimize):
        with pytest.raises(TransformError, match=r"`state\['held'\]` becomes a Held") as caught:
            run(f)({}, 1.0)
        assert "test_changes.py" in caught.value.where and "register" in caught.value.hint


def test_an_object_made_by_the_function_and_kept_elsewhere_is_refused():
    counter = Counter()

    def f(x):
        counter.w = Slotted()
        counter.w.step(x)
        return x

    with pytest.raises(TransformError, match=r"`counter\.w` becomes a Slotted"):
        reap(f)(1.0)
    assert counter.w.tolist() == [1, 1]


def test_cost_counts_what_an_update_needs():
    def f(state, x):
        state["w"] = state["w"] @ state["w"]
        return x

    assert cost(f)({"w": jnp.ones((8, 8))}, 1.0).flops >= 2 * 8**3


def test_a_file_holds_no_side_effects(tmp_path):
    def f(state, x):
        state["w"] = jnp.sin(x)
        return x

    with pytest.raises(TransformError, match=r"`state\['w'\]` is changed in place") as caught:
        save(tmp_path / "f.mal", f, {"w": 1.0}, 2.0)
    assert "test_changes.py" in caught.value.where


def test_what_is_far_away_is_not_looked_for():
    chain: list = []
    for _ in range(2 * MOST):
        chain = [chain]
    assert float(reap(lambda x: x * len(chain))(2.0)[0]) == 2


def test_a_tree_keeps_what_stands_in_it_twice():
    shared = [1.0, {"a": 2.0}]
    tree = {"one": shared, "two": (shared, shared[1]), "plain": (1.0, 1.0)}
    copy = relinked(jax.tree.map(lambda x: x + 1, tree), links(tree))
    assert copy == {"one": [2, {"a": 3}], "two": ([2, {"a": 3}], {"a": 3}), "plain": (2, 2)}
    assert copy["one"] is copy["two"][0] and copy["one"][1] is copy["two"][1]
    assert copy["one"] is not shared


def test_what_is_put_back_asks_no_code_of_the_users_class():
    class Counted:
        def __init__(self):
            object.__setattr__(self, "x", jnp.zeros(()))
            object.__setattr__(self, "writes", 0)

        def __setattr__(self, name, value):
            object.__setattr__(self, "writes", self.writes + 1)
            object.__setattr__(self, name, value)

    def step(model, x):
        model.x = model.x + x
        return model.x * 2

    for run in (step, interpret(step, {})):
        model = Counted()
        run(model, 3.0)
        assert (float(model.x), model.writes) == (3.0, 1)


@pytest.mark.parametrize("of", [dict, collections.OrderedDict])
def test_the_keys_of_a_dict_keep_their_order(of):
    def add(d, x):
        d["first"] = x
        return x

    def put_last(d, x):
        d["z"], d["a"] = x, d.pop("z")
        d["z"] = d.pop("z")
        return x

    for f in (add, put_last) if of is collections.OrderedDict else (add,):  # JAX sorts a dict's
        plain, run = of(z=1.0, a=2.0), of(z=1.0, a=2.0)
        f(plain, 3.0)
        interpret(f, {})(run, 3.0)
        assert [*run] == [*plain]
        assert told(run) == told(plain)


def test_objects_whose_type_keeps_its_names_in_c_are_read_by():
    kept = typing.ParamSpec("kept")
    assert interpret(lambda x: x + len(str(kept)), {})(1.0)[0] == 1 + len(str(kept))


def test_the_order_of_a_dict_that_is_closed_over_is_put_back():
    def run(transform):
        held = collections.OrderedDict(a=jnp.ones(2))

        def f(x):
            held["b"] = x * 2
            held.move_to_end("b", last=False)
            return x.sum()

        transform(f)(jnp.ones(2))
        return list(held)

    assert run(reap) == run(lambda f: f) == ["b", "a"]
