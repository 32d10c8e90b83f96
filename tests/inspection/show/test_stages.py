"""`show` gathers the forms of a function without running it, whatever kind of function it is."""

import functools
import importlib
import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import malleable as mal
from malleable import RuleError, cse, dce
from malleable.inspection import places
from malleable.inspection.show.rows.renamed import rows_of
from malleable.inspection.show.text import show


def model(x, y=2.0, *, z=1.0):
    return jnp.sin(x) * y + z


class Layer:
    def method(self, x):
        return jnp.sin(x) * 2

    def __call__(self, x):
        return jnp.cos(x) * 3


@mal.autograph
def branching(x):
    if x > 0:
        x = x + 1
    return x


@mal.jit
def compiled(x):
    return jnp.sin(x).sum()


@mal.jit
def broken(x):
    kept = x[x > 0]
    return jnp.sin(kept).sum()


def shown(fun, *args, **kwargs):
    return show(fun, quiet=True)(*args, **kwargs)


def stages(found):
    return {stage.name: stage for stage in found.stages}


def prims(found):
    return [row.primitive for row in rows_of(stages(found)["jaxpr"].body)]


FUNCTIONS = {
    "plain": (model, model),
    "jit": (jax.jit(model), model),
    "grad": (jax.grad(model), model),
    "vmap": (jax.vmap(model), model),
    "checkpoint": (jax.checkpoint(model), model),
    "partial": (functools.partial(model, z=2.0), model),
    "partial of jit": (functools.partial(jax.jit(jax.value_and_grad(model)), y=2.0), model),
    "optimize": (mal.optimize(model), model),
    "method": (Layer().method, Layer.method),
    "callable": (Layer(), Layer.__call__),
    "autograph": (branching, branching.__wrapped__),
    "jit of autograph": (jax.jit(branching), branching.__wrapped__),
    "malleable's jit": (compiled, compiled.__wrapped__),
    "reap": (mal.reap(model), model),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_source_is_that_of_the_user_under_any_wrapping(name):
    fun, own = FUNCTIONS[name]
    x = jnp.ones(3) if name == "vmap" else 0.5
    found = stages(shown(fun, x))
    lines, line = inspect.getsourcelines(own)
    assert found["source"].text == "".join(lines)
    assert (found["source"].file, found["source"].line) == (__file__, line)
    assert found["jaxpr"].size > 0


@pytest.mark.parametrize("name", ["autograph", "jit of autograph"])
def test_the_converted_source_of_an_autographed_function_is_there(name):
    assert "ag__.if_(x > 0" in stages(shown(FUNCTIONS[name][0], 0.5))["converted"].text


def test_the_converted_source_of_a_jitted_function_is_its_residual_program_and_its_regions():
    text = stages(shown(compiled, jnp.ones(3)))["converted"].text
    assert "return _r1(x)" in text
    assert "# _r1\nreturn jnp.sin(x).sum()" in text


def test_a_function_that_is_no_single_program_shows_its_source_and_says_why():
    found = shown(broken, jnp.ones(3))
    assert [stage.name for stage in found.stages] == ["source", "converted"]
    (note,) = [note for note in found.notes if note.what == "it is not one program"]
    assert "mask" in note.why
    assert "it is not one program" in str(found)


def test_nothing_is_run_and_shapes_alone_will_do():
    def fun(x, y):
        jax.debug.callback(lambda: pytest.fail("it ran"))
        return jnp.dot(x, y["w"])

    w = jax.ShapeDtypeStruct((3, 4), jnp.float32)
    found = show(fun, quiet=True, hlo=True)(jax.ShapeDtypeStruct((2, 3), jnp.float32), {"w": w})
    assert stages(found)["jaxpr"].body.outs[0].type == "f32[2,4]"
    assert "stablehlo" in stages(found)


def test_keywords_and_arguments_that_are_no_arrays_are_as_in_a_call():
    def fun(x, how, *, scale):
        return {"sin": jnp.sin, "cos": jnp.cos}[how](x) * scale

    assert prims(shown(fun, 1.0, "cos", scale=2.0)) == ["cos", "mul"]


def test_static_arguments_of_jit_are_static():
    fun = jax.jit(lambda x, n: jnp.stack([x] * n), static_argnums=1)
    found = show(fun, quiet=True, passes=(cse,), hlo=True)(1.0, 3)
    assert stages(found)["jaxpr"].body.outs[0].type == "f32[3]"
    assert not found.notes
    assert "tensor<3xf32>" in stages(found)["stablehlo"].text


def test_a_jit_that_fails_for_another_reason_says_that():
    with pytest.raises(jax.errors.TracerBoolConversionError):
        shown(jax.jit(lambda x: 1 if x else 2), 1.0)


def test_a_function_without_source_is_shown_with_a_note():
    found = shown(abs, 1.0)
    assert [stage.name for stage in found.stages] == ["jaxpr"]
    assert [note.what for note in found.notes] == ["its source is not shown"]


def test_each_pass_runs_on_what_the_one_before_left():
    def fun(x):
        return (jnp.cos(x), jnp.sin(x) * jnp.sin(x))[1]

    def own(jaxpr):
        return jaxpr

    found = show(fun, quiet=True, passes=(dce, cse, own))(0.5)
    sizes = {stage.name: (stage.before, stage.size) for stage in found.stages if stage.body}
    assert sizes == {
        "jaxpr": (None, 4),
        "pass dce": (4, 3),
        "pass cse": (3, 2),
        "pass own": (2, 2),
    }
    assert stages(found)["pass own"].changes == ()
    after = mal.stage(mal.optimize(fun, dce, cse))(0.5).jaxpr
    last = [row.primitive for row in rows_of(found.stages[-1].body)]
    assert last == [str(eqn.primitive) for eqn in after.eqns]


def test_a_value_has_one_name_in_all_stages():
    def fun(x):
        y = jnp.sin(x)
        return jax.jit(jnp.cos)(x + 1) * y * jnp.sin(x)

    found = show(fun, quiet=True, passes=(cse,))(0.5)
    before, after = (
        {(row.primitive, row.outs[0].name) for row in rows_of(stages(found)[name].body)}
        for name in ("jaxpr", "pass cse")
    )
    assert {x for x in before if x[0] in ("add", "mul")} <= after


def test_a_pass_that_breaks_the_program_is_named():
    def rename(jaxpr):
        return mal.stage(jnp.sum)(jnp.ones(3)).jaxpr

    with pytest.raises(RuleError, match="rename"):
        show(model, quiet=True, passes=(rename,))(0.5)


@pytest.mark.parametrize("passes", [cse, ("cse",)])
def test_what_is_no_tuple_of_passes_is_refused(passes):
    with pytest.raises(TypeError, match=r"passes (is a list or|are given as a) tuple"):
        show(model, quiet=True, passes=passes)(0.5)


def test_hlo_is_given_on_request_and_names_the_file():
    found = stages(show(model, quiet=True, hlo="optimised")(jnp.ones(3)))
    assert "stablehlo.sine" in found["stablehlo"].text
    assert "test_stages.py" in found["stablehlo"].text
    assert "ENTRY" in found["optimised hlo"].text
    assert not {"stablehlo", "optimised hlo"} & set(stages(shown(model, jnp.ones(3))))
    with pytest.raises(TypeError, match="hlo is True or False or 'optimised', not 'all'"):
        show(model, quiet=True, hlo="all")(0.5)


def test_hlo_is_that_of_the_program_after_the_passes():
    twice = lambda x: jnp.sin(x) * jnp.sin(x)
    texts = [
        stages(show(twice, quiet=True, hlo=True, passes=passes)(0.5))["stablehlo"].text
        for passes in ((), (cse,))
    ]
    assert [text.count("stablehlo.sine") for text in texts] == [2, 1]


def test_donation_is_in_the_hlo_of_a_jitted_function():
    fun = jax.jit(lambda x: x + 1, donate_argnums=0)
    text = stages(show(fun, quiet=True, hlo=True)(jnp.ones(3)))["stablehlo"].text
    assert "tf.aliasing_output" in text


def test_costs_count_loops_by_their_steps():
    def fun(m):
        return lax.scan(lambda c, _: (c @ m, None), m, None, length=100)[0]

    stage = stages(shown(fun, jnp.ones((16, 16))))["jaxpr"]
    scan, *inside = rows_of(stage.body)
    (dot,) = [row for row in inside if row.primitive == "dot_general"]
    assert stage.costs[scan.number].flops == stage.costs[dot.number].flops == 100 * 2 * 16**3
    assert stage.costs[scan.number].share == 1


def test_sources_are_the_functions_that_equations_come_from():
    found = shown(jax.jit(model), 0.5)
    lines, line = inspect.getsourcelines(model)
    texts = found.sources[__file__]
    assert [texts[line + i] for i in range(len(lines))] == [x.rstrip("\n") for x in lines]
    rows = [row for row in rows_of(stages(found)["jaxpr"].body) if row.place]
    assert len(rows) >= 3
    assert all(row.place.line in texts for row in rows)


def inner(x):
    return jnp.sin(x)


jitted = jax.jit(inner)


def caller_one(x):
    return jitted(x)


def caller_two(x):
    return jitted(x)


@pytest.mark.caches
def test_lines_are_those_of_this_call_though_jax_remembers_another():
    jax.block_until_ready(caller_one(0.5))
    chains = [row.chain for row in rows_of(stages(shown(caller_two, 0.5))["jaxpr"].body)]
    functions = {place.function for chain in chains for place in chain}
    assert "caller_two" in functions and "caller_one" not in functions


def test_what_is_shown_describes_itself_in_a_line():
    found = show(model, quiet=True, passes=(cse,))(0.5)
    assert repr(found) == "<program of model: source, jaxpr (3), pass cse (3)>"


def test_a_page_is_written_where_it_is_told(tmp_path):
    found = show(model, quiet=True, passes=(cse,))(0.5)
    page = found.html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page
    assert "sin" in page


def named_lines(fun, *args):
    """The share of equations that name a line of this file, and how many there are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        rows = list(rows_of(stages(shown(fun, *args))["jaxpr"].body))
    mine = [row for row in rows if row.place and row.place.file == __file__]
    return len(mine) / len(rows), len(rows)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_equations_of_a_flax_gradient_name_lines_of_the_user():
    nn = pytest.importorskip("flax.linen")

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            h = nn.LayerNorm()(x)
            h = nn.MultiHeadDotProductAttention(num_heads=2)(h, h)
            return x + nn.Dense(8)(nn.gelu(h))

    net, x = Block(), jnp.ones((2, 4, 8))
    params = net.init(jax.random.key(0), x)
    loss = lambda params, x: jnp.mean(net.apply(params, x) ** 2)
    share, count = named_lines(jax.value_and_grad(loss), params, x)
    assert count > 100
    assert share >= 0.99


def test_equations_of_an_equinox_gradient_name_lines_of_the_user():
    eqx = pytest.importorskip("equinox")
    net = eqx.nn.MLP(3, 1, 8, 2, key=jax.random.key(0))
    loss = lambda net, x: jnp.mean(jax.vmap(net)(x) ** 2)
    share, count = named_lines(eqx.filter_value_and_grad(loss), net, jnp.ones((4, 3)))
    assert count > 30
    assert share >= 0.99
    assert not places.is_own(importlib.import_module("equinox").__file__)


def test_modules_of_libraries_are_shown_by_the_class_of_the_user():
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3)(x)

    net = Net()
    params = net.init(jax.random.key(0), jnp.ones((2, 3)))
    assert stages(shown(net.apply, params, jnp.ones((2, 3))))["source"].text.startswith(
        "    class Net(nn.Module):"
    )


def test_it_works_inside_of_other_transformations():
    seen = []

    def outer(x):
        seen.append(prims(shown(lambda y: jnp.sin(y) * x, x)))
        return x

    jax.jit(outer)(0.5)
    assert seen == [["sin", "mul"]]


def test_numpy_arguments_are_arrays():
    assert prims(shown(model, np.ones(3))) == prims(shown(model, jnp.ones(3)))
