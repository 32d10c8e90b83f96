"""`step` goes through a staged program on concrete values, forward and backward."""

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import MalleableError
from malleable.inspection.debugging.debugger import step
from tests.inspection import ensemble
from tests.inspection.ensemble import BAD, PARAMS, XS, advance, line_of, loss, rollout


def net(x):
    y = jnp.sin(x)
    z = y * 2.0
    return z + 1.0


def primitives(session):
    """Of all steps to the end."""
    found = []
    while (now := session.step()) is not None:
        found.append(now.eqn.primitive.name)
    return found


def commands(session, text):
    """What the commands print."""
    out = io.StringIO()
    session.interact(io.StringIO(text), out)
    return out.getvalue()


def of_ensemble(xs=XS, **options):
    return step(ensemble.gradient, **options)(PARAMS, xs)


# ---------------------------------------------------------------- forward


def test_steps_are_the_equations():
    session = step(net)(0.5)
    assert session.at is None and not session.done
    assert primitives(session) == ["sin", "mul", "add"]
    assert session.done and session.step() is None
    assert float(session.result) == float(net(0.5))


def test_the_result_has_its_pytree():
    session = step(lambda x: {"y": (2 * x, "text")})(3.0)
    session.run()
    assert session.result["y"][1] == "text" and float(session.result["y"][0]) == 6.0


def test_there_is_no_result_before_the_end():
    session = step(net)(0.5)
    session.step()
    with pytest.raises(MalleableError, match="no result yet"):
        _ = session.result


def test_step_goes_into_bodies_and_next_runs_them_whole():
    def fun(x):
        y = jax.jit(net)(x)
        return lax.fori_loop(0, 3, lambda i, c: c * 2.0, y)

    into = step(fun)(0.5)
    into.step()
    assert into.where().startswith("step 1: sin in jit:net")
    over = step(fun)(0.5)
    assert [over.next().eqn.primitive.name for _ in range(2)] == ["jit", "scan"]
    assert over.next() is None
    assert np.allclose(over.result, fun(0.5))


def test_next_inside_a_body_stays_in_it_and_leaves_it_at_its_end():
    session = of_ensemble()
    session.step()
    depth = len(session.at.path)
    for _ in range(3):
        session.next()
        assert len(session.at.path) == depth


def test_a_body_that_was_entered_ends_with_the_whole_equation():
    session = of_ensemble()
    session.run_to(line_of(advance, "y ="))
    whole = session.out()
    assert whole.entered and whole.eqn.primitive.name == "scan"
    assert session.where().splitlines()[0].endswith("scan in jit:loss > vmap[0/3]")


def test_out_leaves_the_loop():
    session = of_ensemble()
    session.step()
    assert [level.kind for level in session.at.path] == ["jit", "vmap", "scan"]
    session.out()
    assert [level.kind for level in session.at.path] == ["jit", "vmap"]
    session.out()
    assert [level.kind for level in session.at.path] == ["jit"]


def test_the_result_is_that_of_the_function():
    session = of_ensemble()
    session.cont()
    assert np.allclose(session.result["w"], ensemble.gradient(PARAMS, XS)["w"])


def test_where_spells_the_path_the_line_and_who_called():
    session = of_ensemble()
    session.step()
    lines = session.where().splitlines()
    assert lines[0] == "step 1: mul in jit:loss > vmap[0/3] > scan[0/4]"
    assert lines[1].endswith(f"ensemble.py:{line_of(advance, 'r =')} in advance: `r = c * x`")
    assert "in rollout: `out, ys = lax.scan(" in lines[2]
    assert "in loss: `each = jax.vmap(" in lines[3]


# ---------------------------------------------------------------- backward


def test_back_gives_the_values_as_they_were():
    session = of_ensemble()
    for _ in range(3):
        session.step()
    assert "y" in session.values()
    session.back(2)
    assert session.number == 1 and "y" not in session.values() and "r" in session.values()
    session.step()
    assert session.number == 2


def test_back_through_a_loop_of_python_and_of_jax():
    session = step(lambda x: lax.scan(lambda c, _: (c * 2.0, c), x, None, length=5)[0])(1.0)
    seen = [float(session.step().outputs[0]) for _ in range(5)]
    again = [float(session.at.outputs[0])]
    again += [float(session.back().outputs[0]) for _ in range(4)]
    assert seen == again[::-1] == [2.0, 4.0, 8.0, 16.0, 32.0]
    assert session.back() is None and session.number == 0


def test_back_beyond_the_start_says_how_many_there_are():
    session = step(net)(0.5)
    session.step()
    with pytest.raises(MalleableError, match="there are 1 steps to undo, not 5"):
        session.back(5)
    assert session.number == 1


def test_goto_goes_both_ways():
    session = step(net)(0.5)
    assert session.goto(3).eqn.primitive.name == "add"
    assert session.goto(1).eqn.primitive.name == "sin"
    assert session.goto(0) is None
    with pytest.raises(MalleableError, match="no step 7"):
        session.goto(7)
    with pytest.raises(MalleableError, match="no step -1"):
        session.goto(-1)


def test_a_short_history_runs_again():
    session = of_ensemble(history=3)
    session.goto(20)
    want = [s.outputs for s in (of_ensemble().goto(5),)]
    session.back(15)
    assert session.number == 5
    assert np.array_equal(session.at.outputs[0], want[0][0])
    session.back(5)
    assert session.at is None


def test_step_after_back_goes_into_what_next_ran_whole():
    session = step(jax.jit(net))(0.5)
    session.next()
    assert session.at.eqn.primitive.name in ("jit", "pjit")
    session.back()
    assert session.step().eqn.primitive.name == "sin"


# ---------------------------------------------------------------- values


def test_values_have_the_names_of_the_user():
    session = step(net)(0.5)
    session.goto(2)
    assert set(session.values()) == {"x", "y", "z"}
    assert float(session["z"]) == float(2 * jnp.sin(0.5))


def test_arguments_have_names_before_the_first_step():
    session = of_ensemble()
    assert set(session.values()) == {"params['w']", "xs"}
    assert session["xs"].shape == (3, 4)


def test_names_in_a_body_that_is_differentiated():
    session = of_ensemble()
    session.goto(2)
    c, r, y = (float(session[name]) for name in "cry")
    assert (c, r, y) == (1.0, 1.0, 1.0)


def test_what_has_no_name_has_that_of_the_program():
    session = step(lambda x: jnp.sin(x) + jnp.cos(x))(0.5)
    session.goto(2)
    letters = [name for name in session.values() if name.startswith("%")]
    assert len(letters) == 2
    assert float(session[letters[0]]) == float(jnp.sin(0.5))


def test_an_unknown_name_says_which_there_are():
    session = step(net)(0.5)
    session.goto(2)
    with pytest.raises(MalleableError, match=r"no variable 'foo' here\n(.*\n)?.*x, y, z"):
        session["foo"]


def test_cotangents_have_no_names_of_the_user():
    session = of_ensemble()
    session.break_at(lambda s: "transpose" in str(s.before and s.before.eqn.source_info.name_stack))
    session.cont()
    assert all(name.startswith("%") for name in session.values())


def test_frames_further_out_see_their_own_values():
    session = of_ensemble()
    session.run_to(line_of(rollout, "total ="))
    assert "ys" in session.values()
    session.up()
    assert session.place.line == line_of(loss, "each =")
    assert "total" not in session.values()
    assert (3, 4) in [x.shape for x in session.values().values()]  # the whole of xs
    with pytest.raises(MalleableError, match="outermost"):
        session.up()
    session.down()
    with pytest.raises(MalleableError, match="innermost"):
        session.down()


def test_a_name_belongs_to_one_call_of_a_function():
    def double(h):
        out = h * 2.0
        return out

    def fun(a):
        b = double(a)
        c = double(b)
        return c

    session = step(fun)(1.0)
    session.goto(2)
    assert float(session["out"]) == 4.0
    session.up()
    assert {n: float(x) for n, x in session.values().items() if not n.startswith("%")} == {
        "a": 1.0,
        "b": 2.0,
        "c": 4.0,
    }


# ---------------------------------------------------------------- breakpoints


def test_break_at_a_line_stops_once_for_each_run_of_it():
    session = of_ensemble()
    session.break_at(f"ensemble.py:{line_of(advance, 'y =')}")
    for i in range(4):
        assert session.cont().eqn.primitive.name == "sqrt"
        assert session.at.path[-1].index == i
    assert session.cont().path[-2].index == 1


def test_break_at_a_line_number_of_this_file():
    session = step(net)(0.5)
    session.break_at(line_of(net, "z ="))
    assert session.cont().eqn.primitive.name == "mul"
    assert session.cont() is None


def test_break_at_a_line_without_equations_names_the_nearest():
    session = step(net)(0.5)
    line = line_of(net, "def net")
    with pytest.raises(MalleableError, match=f"nearest lines that have some: {line + 1}, "):
        session.break_at(line)
    with pytest.raises(MalleableError, match=r"no equation comes from a file 'other\.py'"):
        session.break_at("other.py:3")


def test_break_at_a_function_a_name_and_a_primitive():
    for what, primitive in (("advance", "mul"), ("y", "sqrt"), ("sqrt", "sqrt")):
        session = of_ensemble()
        session.break_at(what)
        assert session.cont().eqn.primitive.name == primitive
        assert session.breakpoints[0].hits == 1


def test_break_at_an_unknown_name_suggests_one():
    with pytest.raises(MalleableError, match=r"'advanse'(.|\n)*advance"):
        of_ensemble().break_at("advanse")


def test_break_on_an_expression_and_on_a_condition():
    session = of_ensemble(BAD)
    session.break_at("r < 0")
    session.cont()
    assert float(session["r"]) < 0 and session.at.path[1].index == 2
    other = of_ensemble(BAD)
    other.break_at(lambda s: s.eqn.primitive.name == "mul" and s.outputs[0] < 0)
    assert other.cont().number == session.number


def test_an_expression_that_raises_is_shown_and_the_session_goes_on():
    session = step(net)(0.5)
    one = session.break_at("y.nothing > 0")
    assert session.cont() is None and session.done
    assert isinstance(one.error, AttributeError)
    assert "raises AttributeError" in str(one)


def test_run_to_and_temporary_breakpoints_stop_once():
    session = of_ensemble()
    session.run_to(line_of(rollout, "total ="))
    assert session.at.eqn.primitive.name == "reduce_sum" and not session.breakpoints


def test_clear():
    session = step(net)(0.5)
    one = session.break_at("sin")
    session.break_at("mul")
    session.clear(one.number)
    assert [b.text for b in session.breakpoints] == ["mul"]
    with pytest.raises(MalleableError, match="no breakpoint 9"):
        session.clear(9)
    session.clear()
    assert session.cont() is None


@pytest.mark.parametrize("what", ["nonfinite", "nan", lambda x: bool(jnp.isnan(x).any())])
def test_watch_stops_at_the_first_nan(what):
    session = of_ensemble(BAD)
    session.watch(what)
    assert session.cont().eqn.primitive.name == "sqrt"
    assert session.place.line == line_of(advance, "y =")
    assert [level.index for level in session.at.path] == [None, 2, 1]
    assert "watch" in session.stopped


def test_watch_large_and_unknown():
    session = step(lambda x: lax.scan(lambda c, _: (c * 10.0, c), x, None, length=5)[0])(1.0)
    session.watch(large=1e3)
    assert float(session.cont().outputs[0]) == 10000.0
    with pytest.raises(MalleableError, match="nothing to watch called 'foo'"):
        session.watch("foo")


# ---------------------------------------------------------------- examples of a vmap


def test_focus_steps_through_one_example():
    session = of_ensemble(focus=[2])
    lanes = set()
    while session.step() is not None:
        lanes |= {level.index for level in session.at.path if level.kind == "vmap"}
    assert lanes == {2}
    assert np.allclose(session.result["w"], ensemble.gradient(PARAMS, XS)["w"])


@pytest.mark.parametrize(("first", "then"), [(0, 2), (2, 1)])
def test_lane_goes_to_the_same_equation_of_another_example(first, then):
    session = of_ensemble(XS * jnp.arange(1.0, 4.0)[:, None], focus=first)
    session.goto(1)
    session.step()
    eqn = session.at.eqn
    assert session.lane(then).eqn is eqn
    assert session.at.path[1].index == then
    assert float(session["r"]) == then + 1.0


def test_a_lane_that_is_not_there():
    session = of_ensemble()
    session.step()
    with pytest.raises(MalleableError, match="no example 7: the vmap has 3"):
        session.lane(7)
    with pytest.raises(MalleableError, match="no example of a vmap"):
        of_ensemble(focus=["a"])


def test_batch_gathers_a_value_over_the_examples():
    session = of_ensemble(XS * jnp.arange(1.0, 4.0)[:, None])
    session.watch(lambda x: False)  # go through bodies
    session.run_to(line_of(rollout, "total ="))
    session.run_to(line_of(rollout, "total ="))
    each = [rollout(PARAMS, xs) for xs in XS * jnp.arange(1.0, 4.0)[:, None]]
    sums = {i: float(x + session["out"]) for i, x in session.batch("total").items()}
    assert list(sums) == [0, 1] and np.isclose(sums[1], each[1])
    session.lane(0)
    assert list(session.batch("total")) == [0]
    outside = step(net)(0.5)
    outside.step()
    with pytest.raises(MalleableError, match="no vmap"):
        outside.batch("x")


# ---------------------------------------------------------------- models


@pytest.mark.parametrize("make", [ensemble.of_flax, ensemble.of_equinox])
def test_a_scan_in_a_vmap_in_a_jit_in_a_gradient_of_a_model(make):
    fun, model, xs = make()
    want = fun(model, xs)
    session = step(fun, focus=2)(model, xs.at[2, 3].set(-1.0))
    session.break_at("tanh")
    kinds = [level.kind for level in session.cont().path]
    assert [k for k in kinds if k in ("jit", "vmap", "scan")][-3:] == ["jit", "vmap", "scan"][-3:]
    assert session.at.path[-1].index == 0
    session.cont()
    assert [level.index for level in session.at.path if level.kind == "scan"] == [1]
    assert "jnp.tanh(h + z)" in session.where()
    session.clear()
    session.watch("nan")
    session.cont()
    assert "return h, jnp.log(x.sum())" in session.where()
    indices = {level.kind: level.index for level in session.at.path}
    assert (indices["vmap"], indices["scan"]) == (2, 3)
    session.back(1)
    session.step()
    assert np.isnan(session.at.outputs[0])
    calm = step(fun)(model, xs)
    calm.cont()
    close = jax.tree.map(np.allclose, jax.tree.leaves(calm.result), jax.tree.leaves(want))
    assert all(close)


# ---------------------------------------------------------------- commands


def test_a_scripted_session():
    text = commands(
        of_ensemble(BAD),
        "s\nn\nw\nb y\nc\nl\nvars\np r\np jnp.sum(r) + 1\ncl\nwatch nan\nc\nback\ncl\nc\nq\n",
    )
    line = line_of(advance, "y =")
    assert "-> r = c * x" in text and "mul gives r: f32[] 1." in text
    assert f"{line:4d} ->     y = jnp.sqrt(r)" in text
    assert "breakpoint 1: y" in text and "watch 2: nan" in text
    assert "sqrt gives y: f32[] nan" in text
    assert "the program is through" in text


def test_commands_show_what_goes_wrong_and_go_on():
    text = commands(
        step(net)(0.5),
        "p nothing\nb 9999\nback 3\nup\ngoto x\np\nfoo bar\nwatch huh\nlane\n1 + 1\ns\np y\nq\n",
    )
    assert "*** NameError: name 'nothing' is not defined" in text
    assert "*** no equation comes from line 9999" in text
    assert "*** there are 0 steps to undo, not 3" in text
    assert "*** 'x' is no number" in text
    assert "*** this command needs something to work on" in text
    assert "*** SyntaxError" in text
    assert "\n(malleable) 2\n" in text
    assert "sin gives y" in text


def test_every_command_has_help():
    text = commands(step(net)(0.5), "h\nhelp b\nhelp step\nEOF\n")
    assert "b(reak) [LINE | FILE:LINE | NAME | EXPRESSION]" in text
    assert "s(tep) [N]" in text and "Undocumented" not in text


def test_the_end_of_the_input_leaves_the_session_as_it_is():
    session = step(net)(0.5)
    commands(session, "s\ns\n")
    assert session.number == 2
    session.cont()
    assert session.done


def test_pdb_sees_the_line_and_the_variables():
    session = step(net)(0.5)
    session.goto(2)
    out = io.StringIO()
    session.pdb(io.StringIO("p float(y) < 1\nw\nl\nq\n"), out)
    assert "True" in out.getvalue()
    assert f"test_debugger.py({line_of(net, 'z =')})" in out.getvalue()
    assert "y * 2.0" in out.getvalue()


def test_a_notebook_shows_where_and_the_values():
    session = step(net)(jnp.linspace(0.0, 1.0, 20))
    session.step()
    html = session._repr_html_()
    assert "<b>y</b>" in html and "f32[20]" in html and "from 0 to 0.8415" in html
    assert "step 1: sin" in repr(session)


# ---------------------------------------------------------------- odd input


def test_what_is_raised_while_tracing_goes_through():
    with pytest.raises(ZeroDivisionError):
        step(lambda x: x / (1 // 0))(1.0)


def test_traced_values_are_refused():
    with pytest.raises(MalleableError, match="concrete values"):
        jax.jit(lambda x: step(net)(x).step())(1.0)


def test_a_program_that_raises_says_so_and_can_go_back():
    def boom(x):
        raise ValueError("boom")

    def fun(x):
        y = jnp.sin(x)
        return jax.pure_callback(boom, jax.ShapeDtypeStruct((), jnp.float32), y)

    session = step(fun)(0.5)
    session.step()
    with pytest.raises(Exception, match="boom"):
        session.step()
    with pytest.raises(MalleableError, match="the program stopped with"):
        session.step()
    assert session.goto(1).eqn.primitive.name == "sin"


def test_a_function_without_arguments_or_equations():
    session = step(lambda: 3)()
    assert session.step() is None and session.done and session.result == 3
    assert session.where() == "before the first equation" and session.values() == {}


def test_devices_of_a_shard_map():
    mesh = jax.make_mesh((2,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec("d")
    fun = jax.shard_map(
        lambda x: x / lax.psum(x.sum(), "d"), mesh=mesh, in_specs=spec, out_specs=spec
    )
    session = step(fun)(jnp.arange(4.0))
    session.break_at("div")
    assert str(session.cont().path[-1]) == "shard_map[d=0/2]"
    assert np.allclose(session.at.outputs[0], [0.0, 1 / 6])
    session.clear()
    session.cont()
    assert np.allclose(session.result, jnp.arange(4.0) / 6)


def test_a_session_keeps_what_a_call_would_donate():
    x = jnp.ones(3)
    session = step(jax.jit(lambda x: jnp.log(x) + 1, donate_argnums=0))(x)
    session.next()
    session.back()
    session.cont()
    assert not x.is_deleted()
    assert session.result.tolist() == [1.0, 1.0, 1.0]


# ---------------------------------------------------------------- conditions and what changes


@pytest.mark.parametrize(
    ("text", "near"), [("zz > 0", "z"), ("z > 0 and nosuch", "z"), ("parms['w'] > 0", "params")]
)
def test_a_condition_on_a_name_that_is_nowhere_is_refused(text, near):
    def fun(params):
        z = jnp.tanh(params["w"])
        return z * 2

    session = step(jax.jit(fun))({"w": 1.0})
    with pytest.raises(MalleableError, match=rf"no variable(.|\n)*{near}"):
        session.break_at(text)
    assert not session.breakpoints
    session.break_at("z > 0 and abs(params['w']) > jnp.float32(0) and all(q for q in [z])")
    assert session.cont().eqn.primitive.name == "tanh"


@pytest.mark.parametrize("what", ["z.nothing > 1", "1 / 0 > z"])
def test_what_a_condition_raised_stays_and_is_said_once(what):
    def fun(x):
        z = jnp.tanh(x)
        return z * 2

    session = step(jax.jit(fun))(1.0)
    one = session.break_at(what)
    assert "it raises" in (told := commands(session, "c\nw\nq\n")) and session.done
    assert told.count("***") == 1 and one.error is not None
    watched = step(net)(0.5)
    other = watched.watch(lambda v: 1 / 0)
    watched.cont()
    assert isinstance(other.error, ZeroDivisionError) and "ZeroDivisionError" in str(other)


def test_a_condition_that_nothing_could_answer_says_so():
    session = step(jax.jit(lambda params: jnp.sin(params["w"]) * 2))({"w": 1.0})
    one, other = session.break_at("params['b'] > 1"), session.break_at("params['w'] > 0")
    assert session.cont() is not None and other.hits == 1 and other.missing == ""
    assert session.cont() is None and one.error is None
    assert "no part 'b'" in str(one)


def test_a_name_error_inside_what_a_condition_calls_is_an_error():
    session = step(net)(0.5)
    session._globals = {**session._globals, "asks": lambda y: undefined > y}  # noqa: F821
    one = session.break_at("asks(y)")
    session.cont()
    assert isinstance(one.error, NameError)


def over(params, xs):
    def cell(c, w):
        c = jnp.sin(c * w * params["a"])
        return c, c

    return lax.scan(cell, 0.5, xs)[1].sum()


@pytest.mark.parametrize(("name", "times"), [("xs", 1), ("params['a']", 1), ("w", 3)])
def test_a_break_at_what_a_body_is_given_stops_where_it_begins(name, times):
    session = step(jax.jit(jax.grad(over)))({"a": 2.0}, jnp.arange(1.0, 4.0))
    session.break_at(name)
    stops = 0
    while session.cont() is not None:
        assert name in session.values()
        stops += 1
    assert stops == times


def test_a_break_stops_again_after_going_back():
    session = step(jax.jit(net))(0.5)
    session.break_at("net")
    session.break_at("x")
    first = session.cont().number
    session.back()
    assert session.cont().number == first
    session.step()
    session.back()
    assert session.cont() is None


def changed(x):
    r = jax.new_ref(x)
    r[0] = r[0] * 2.0
    return jnp.log(r[...])


def test_a_mutable_reference_is_as_it_was():
    session = step(changed)(jnp.array([1.0, 2.0]))
    values = []
    while session.step() is not None:
        values.append(session["r"][...].tolist())
        assert "r" in session._repr_html_()
    assert "Ref" in commands(session, "vars\nq\n")
    for number in (2, 5, 1, 4, 3):
        session.goto(number)
        assert session["r"][...].tolist() == values[number - 1]
    assert values[0] == [1.0, 2.0] and values[-1] == [2.0, 2.0]
    session.cont()
    assert session.result.tolist() == changed(jnp.array([1.0, 2.0])).tolist()


def test_a_reference_that_is_given_is_not_changed_twice():
    def fun(r):
        r[0] = r[0] * 2.0
        return r[...] + 1

    r = jax.new_ref(jnp.array([1.0, 2.0]))
    session = step(fun)(r)
    session.cont()
    session.goto(1)
    session.cont()
    assert session.result.tolist() == [3.0, 3.0] and r[...].tolist() == [2.0, 2.0]


def test_a_step_is_printed_in_one_line():
    text = repr(of_ensemble().step())
    assert text.startswith("<Step 1: ") and "ensemble.py" in text and "\n" not in text
    assert len(text) < 300
