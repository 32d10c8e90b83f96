"""`explain()` names the line to edit, the path, both things that disagree, and a way out."""

import asyncio
import concurrent.futures
import importlib.util
import linecache
import pickle
import re
import traceback
import warnings

import jax
import pytest
from jax import numpy as jnp

from benchmarks import hints
from malleable import errors
from malleable.compat.hooks import running as door
from malleable.errors import explain
from malleable.inspection.advice.evidence import creation
from malleable.inspection.advice.hint import Advice
from malleable.inspection.advice.watching import running
from tests.inspection.advice import (  # noqa: F401
    failing_derivatives,
    failing_libraries,
    failing_loops,
    failing_shapes,
    failing_trees,
    failing_values,
)
from tests.inspection.advice.failing import PROGRAMS

STACK = ("diffrax", "equinox", "flax", "haiku", "numpyro", "optax")
if all(map(importlib.util.find_spec, STACK)):
    importlib.import_module("tests.inspection.advice.failing_stack")

INTERNAL = r"jax[./]_src|PyTreeDef|\w*Tracer\b|PytreeLeaf|0x[0-9a-f]{6,}|ShapedArray"


def note_of(error):
    """What was added to an error, "" if nothing was."""
    notes = [n for n in getattr(error, "__notes__", ()) if n.startswith(errors.HEADER)]
    assert len(notes) <= 1
    return notes[0] if notes else ""


def failure(run, **options):
    """The error of a function that runs in an `explain()` block."""
    with pytest.raises(Exception) as caught, explain(**options):
        run()
    return caught.value


@pytest.mark.in_turns
@pytest.mark.caches  # some of the programs leak tracers, which is what they are about
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_note_says(program):
    error = failure(program.run, debug=True)
    note = note_of(error)
    assert any(re.search(rf"{re.escape(line)}\b", note) for line in program.lines), note
    for pattern in (program.path, *program.both):
        assert re.search(pattern, note, re.S), (pattern, note)
    assert any(re.search(pattern, note, re.S | re.I) for pattern in program.fix), note
    assert not re.search(INTERNAL, note)
    assert not [n for n in error.__notes__ if "adviser failed" in n]
    path = program.run.__code__.co_filename
    for hint, outcome in hints.outcomes(path, program.name, error.ways):
        assert outcome in ("same", "runs"), (hint, outcome)


@pytest.mark.caches
@pytest.mark.parametrize("program", PROGRAMS[::7], ids=lambda program: program.name)
def test_the_error_is_the_same_as_without(program):
    with pytest.raises(Exception) as alone:
        program.run()
    error = failure(program.run)
    assert type(error) is type(alone.value)
    # Equinox quotes the stack that it was called from, which JAX hands out whole inside explain
    frames = r'^ *File "[^\n]*\n(?: {4,}[^\n]*\n)*'
    plain = lambda e: re.sub(rf"{frames}|0x\w+|id \d+", "", str(e), flags=re.M)
    assert plain(error) == plain(alone.value)


def branch(x):
    if x > 0:
        return x
    return -x


def refuse():
    jax.jit(branch)(1.0)


def test_the_traceback_shows_no_frame_of_ours():
    error = failure(lambda: jax.jit(3))  # fails inside of a function that is being watched
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    assert not [file for file in files if "malleable/inspection" in file]


def test_blocks_nest_and_explain_once():
    with explain():
        error = failure(refuse)
    assert note_of(failure(lambda: (_ for _ in ()).throw(error))) == note_of(error)


def test_nothing_is_said_outside_of_a_block():
    with explain():
        pass
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        refuse()
    assert note_of(caught.value) == ""


def test_everything_is_put_back_also_when_blocks_end_out_of_order():
    before = jax.vmap, jax.jit, jax.grad, jax.custom_vjp.defvjp
    one, other = explain(), explain()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert jax.vmap is not before[0]
    other.__exit__(None, None, None)
    assert (jax.vmap, jax.jit, jax.grad, jax.custom_vjp.defvjp) == before
    assert not creation._made


def test_a_jitted_function_is_what_it_always_is():
    plain = jax.jit(branch)
    with explain():
        made = jax.jit(jnp.sin)
    assert type(made) is type(plain)
    assert made.lower(1.0).as_text()


def test_errors_of_other_kinds_pass():
    error = failure(lambda: {}["mine"])
    assert note_of(error) == ""
    with pytest.raises(KeyboardInterrupt) as caught, explain():
        raise KeyboardInterrupt
    assert not hasattr(caught.value, "__notes__")


def test_functions_generators_and_coroutines_are_watched_while_they_run():
    @explain()
    def function():
        refuse()

    @explain()
    def generator():
        yield 1
        refuse()

    @explain()
    async def coroutine():
        refuse()

    def finish(gen):
        return [*gen]

    runs = [function, lambda: finish(generator()), lambda: coroutine().send(None)]
    for run in runs:
        with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
            run()
        assert "test_advice.py:" in note_of(caught.value)


def test_a_block_may_stay_open_in_a_generator():
    def steps():
        with explain():
            yield
            refuse()

    going = steps()
    next(going)
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        next(going)
    assert note_of(caught.value)


def watching():
    """Whether a block is open in this thread."""
    return running.block() is not None or door.watches() != []


def test_between_the_steps_of_a_decorated_generator_no_block_is_open():
    @explain()
    def generator():
        given = yield watching()
        try:
            yield given, watching()
        except KeyError:
            yield "caught"
        return "end"

    going = generator()
    assert next(going) and not watching()
    assert going.send("given") == ("given", True) and not watching()
    assert going.throw(KeyError()) == "caught" and not watching()
    with pytest.raises(StopIteration) as end:
        next(going)
    assert end.value.value == "end"
    closed = []

    @explain()
    def never_ending():
        try:
            yield 1
        finally:
            closed.append(watching())

    going = never_ending()
    next(going)
    going.close()
    assert closed == [True] and not watching()


def test_between_the_steps_of_a_decorated_coroutine_no_block_is_open():
    seen = []

    @explain()
    async def coroutine():
        seen.append(watching())
        await asyncio.sleep(0.01)
        seen.append(watching())
        return 3

    async def other():
        await asyncio.sleep(0)
        seen.append(watching())

    async def main():
        return (await asyncio.gather(coroutine(), other()))[0]

    assert asyncio.run(main()) == 3 and seen == [True, False, True]


def test_a_decorated_generator_of_coroutines_is_watched_while_it_runs():
    caught = []

    @explain()
    async def many():
        try:
            given = yield watching()
            assert given == "given" and watching()
            await asyncio.sleep(0)
            yield 2
        except KeyError as error:
            caught.append(error)
        yield 3
        refuse()

    async def main():
        going = many()
        assert await going.__anext__() and not watching()
        assert await going.asend("given") == 2 and not watching()
        assert await going.athrow(KeyError("mine")) == 3 and len(caught) == 1
        return [x async for x in going]

    with pytest.raises(jax.errors.TracerBoolConversionError) as error:
        asyncio.run(main())
    assert "test_advice.py:" in note_of(error.value)

    @explain()
    async def few():
        yield 1
        yield 2

    async def collect():
        return [x async for x in few()]

    assert asyncio.run(collect()) == [1, 2]

    async def close():
        going = few()
        await going.__anext__()
        await going.aclose()

    asyncio.run(close())
    assert not watching()


def test_a_task_that_outlives_the_block_it_was_begun_in_is_not_watched():
    async def later(seen):
        await asyncio.sleep(0.01)
        seen.append(watching())

    async def main():
        seen = []
        with explain():
            task = asyncio.ensure_future(later(seen))
            await asyncio.sleep(0)
        await task
        return seen

    assert asyncio.run(main()) == [False]


def test_blocks_of_tasks_that_end_in_any_order_leave_nothing_behind():
    async def task(before, inside):
        await asyncio.sleep(before)
        with explain():
            await asyncio.sleep(inside)

    async def main():
        await asyncio.gather(task(0, 0.02), task(0.01, 0.03))

    asyncio.run(main())
    assert not watching() and not door._inside.value


def test_a_block_looks_at_its_own_thread_only():
    def run():
        seen.append(watching())
        return jnp.arange(4)[jnp.asarray(9)]

    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("error", errors.AdviceWarning)
        with explain(), concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(run).result()
    assert seen == [False]
    with pytest.warns(errors.AdviceWarning), explain():
        run()


# ---------------------------------------------------------------- odd errors


def chained(count):
    error = None
    for i in range(count):
        last, error = error, ValueError(i)
        error.__context__ = last
    return error


class NoNotes(Exception):
    @property
    def __notes__(self):
        raise KeyError("no notes")


class OddNotes(Exception):
    __notes__ = (1, None)


class NoText(Exception):
    def __str__(self):
        raise ZeroDivisionError


@pytest.mark.parametrize("error", [chained(1200), NoNotes("x"), OddNotes("x"), NoText("x")])
def test_whatever_is_odd_about_an_error_it_stays_the_one_that_is_raised(error):
    def run():
        raise error

    assert failure(run) is error


def test_advice_that_fails_as_a_whole_says_so(monkeypatch):
    def broken(error):
        raise ValueError("of the advice")

    monkeypatch.setattr(errors, "_made_of", broken)
    error = failure(lambda: {}["mine"])
    assert type(error) is KeyError and note_of(error) == ""
    (note,) = error.__notes__
    assert "of the advice" in note


def test_the_error_of_jax_is_found_behind_many_others():
    def run():
        try:
            refuse()
        except Exception as error:
            found.append(error)
            last = error
            for i in range(20):
                before, last = last, ValueError(i)
                last.__cause__ = before
        raise last

    found = []
    assert note_of(failure(run)) == ""
    assert note_of(found[0])


def test_threads_do_not_disturb_each_other():
    def run(n):
        return note_of(failure(lambda: jax.vmap(lambda a, b: a, in_axes=(0,))(jnp.ones(n), 1.0)))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        notes = list(pool.map(run, range(1, 9)))
    assert all("in_axes=(0, None)" in note for note in notes)


def test_an_adviser_that_fails_hides_nothing(monkeypatch):
    def broken(error):
        raise ValueError("of the adviser")

    class Context:
        def __enter__(self):
            return broken

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(errors, "advisers", [Context, *errors.advisers])
    error = failure(refuse)
    assert note_of(error) and len(error.__notes__) <= 2
    assert any("of the adviser" in note for note in failure(refuse, debug=True).__notes__)


def test_the_heaviest_advice_is_shown(monkeypatch):
    class Context:
        def __enter__(self):
            return lambda error: [Advice("light"), Advice("heavy", "f.py:3", "do it", 9), "text"]

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(errors, "advisers", [Context])
    assert note_of(failure(refuse)) == "malleable: heavy\n  at f.py:3\n  hint: perhaps do it"


def test_an_explained_error_can_be_sent_to_another_process():
    error = failure(lambda: jax.vmap(lambda a, b: a, in_axes=(0,))(jnp.ones(3), 1.0))
    assert note_of(pickle.loads(pickle.dumps(error))) == note_of(error)


made_before = jax.vmap(lambda a, b: a + b, in_axes=(0,))


def test_what_was_made_before_the_block_is_found_in_the_source():
    line = test_what_was_made_before_the_block_is_found_in_the_source.__code__.co_firstlineno - 3
    note = note_of(failure(lambda: made_before(jnp.ones(3), 1.0)))
    assert f"test_advice.py:{line} " in note


class Net:
    def __init__(self):
        self.cache = None

    def __call__(self, x):
        h = jnp.tanh(x)
        self.cache = h
        return h.sum()


@pytest.mark.caches
def test_a_leak_is_at_the_line_that_stores_a_traced_value_and_not_where_it_begins_as_none():
    net = Net()

    def run():
        jax.grad(lambda x: net(x))(jnp.ones(3))
        return net.cache + 1

    note, line = note_of(failure(run)), Net.__call__.__code__.co_firstlineno + 2
    assert f"test_advice.py:{line} in __call__: self.cache = h" in note
    assert "__init__" not in note and "None" not in note


@pytest.mark.caches
def test_a_leak_that_two_lines_may_have_made_names_only_its_use(tmp_path):
    text = """
def one(box, x):
    box.kept = x * 2
    return x
def two(box, x):
    box.kept = x * 3
    return x
def use(box):
    return box.kept + 1
"""
    (tmp_path / "written.py").write_text(text)
    scope = {}
    exec(compile(text, str(tmp_path / "written.py"), "exec"), scope)
    net = Net()

    def run():
        jax.grad(lambda x: scope["one"](net, x))(1.0)
        return scope["use"](net)

    note = note_of(failure(run))
    assert "in two" not in note and "outlives" not in note


def test_a_backward_rule_is_told_of_the_arguments_of_nondiff_argnums():
    def power(x, n):
        return x**n

    def bwd(x, g):
        return (g * x,)

    power = jax.custom_vjp(power, nondiff_argnums=(1,))
    power.defvjp(lambda x, n: (x**n, x), bwd)
    note = note_of(failure(lambda: jax.grad(lambda x: power(x, 2))(1.0)))
    assert "of nondiff_argnums" in note and re.search(r"def bwd\(\w+, x, g\)", note)


def test_hints_fit_what_is_written():
    loss = lambda w, b: w * 2 + b
    note = note_of(failure(lambda: jax.grad(loss, argnums=(0, 2))(1.0, 2.0)))
    assert "argnums=(0, 1) for `w`, `b`" in note

    def newton(x, tol):
        err = 1.0
        while err > tol:
            new = 0.5 * (x + 2.0 / x)
            err, x = jnp.abs(new - x), new
        return x

    assert ", (err, x))" in note_of(failure(lambda: jax.jit(newton)(1.0, 1e-3)))
    numbers = ("NHWC", "HWIO", "NHWC")
    image, kernel = jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 1, 4))
    note = note_of(
        failure(
            lambda: jax.lax.conv_general_dilated(
                image, kernel, (1, 1), "SAME", dimension_numbers=numbers
            )
        )
    )
    assert "3 channels" in note and "numbers of channels equal" in note and "NHWC" not in note


@pytest.mark.caches
def test_the_init_of_a_dataclass_is_not_the_users_line(monkeypatch):
    """Since Python 3.13 what `python -c` runs has lines, by the name that dataclasses use, too."""
    program = next((p for p in PROGRAMS if p.name == "flax_compact"), None)
    if program is None:
        pytest.skip("needs flax")
    lines = (9, None, ["pass\n"] * 20, "<string>")
    monkeypatch.setitem(linecache.cache, "<string>", lines)
    note = note_of(failure(program.run, debug=True))
    assert "<string>" not in note
