"""`cost` counts by line, loops by their steps; where there is nothing to fuse, as XLA does."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import MalleableError, compat, listen, stage
from malleable.inspection import places
from malleable.inspection.costs import flame, liveness
from malleable.inspection.costs.cost import cost

M = jnp.ones((64, 64))


def product(a, b):
    return a @ b


def chain(m, n=10):
    return lax.scan(lambda c, _: (product(c, m), None), m, None, length=n)[0]


def halved(x):
    return lax.while_loop(lambda v: v[0] > 1.0, lambda v: v * 0.5, x)


def flops_of_xla(fun, *args):
    found = jax.jit(fun).lower(*args).compile().cost_analysis()
    return (found[0] if isinstance(found, list) else found)["flops"]


@pytest.mark.parametrize(
    ("fun", "args"),
    [
        (product, (M, M)),
        (lambda a, b: jnp.einsum("bij,bjk->bik", a, b), (jnp.ones((3, 8, 5)), jnp.ones((3, 5, 7)))),
        (lambda a, b: product(a, b) @ product(b, a), (M, M)),
        (lambda x: (x * x + x).sum(), (M,)),
        (jax.grad(lambda a, b: product(a, b).sum()), (M, M)),
    ],
    ids=["dot", "einsum", "three dots", "elementwise", "gradient"],
)
def test_flops_are_those_of_xla_where_no_loop_is(fun, args):
    assert cost(fun)(*args).flops == pytest.approx(flops_of_xla(fun, *args), rel=0.03)


def test_a_scan_counts_its_steps_and_xla_counts_one():
    assert cost(chain)(M).flops == 10 * 2 * 64**3
    assert flops_of_xla(chain, M) < 2 * 2 * 64**3


def test_scans_in_scans_under_vmap_and_grad_multiply():
    nested = lambda m: lax.scan(lambda c, _: (chain(c, 3), None), m, None, length=5)[0]
    assert cost(nested)(M).flops == 15 * 2 * 64**3
    assert cost(jax.vmap(nested))(jnp.stack([M, M])).flops == 30 * 2 * 64**3
    slope = jax.grad(lambda m: chain(m).sum())  # forward, and two products per step back
    assert cost(slope)(M).flops == pytest.approx(30 * 2 * 64**3, rel=0.02)


def test_a_cond_counts_its_dearest_branch():
    both = lambda x: lax.cond(x[0, 0] > 0, chain, lambda x: x, x)
    assert cost(both)(M).flops >= cost(chain)(M).flops
    assert cost(both)(M).flops < 1.01 * cost(chain)(M).flops


def test_a_while_counts_as_often_as_is_said_or_measured():
    x = jnp.full(1000, 100.0)
    once, ten, seen = (cost(halved, steps=n)(x) for n in (None, 10, "measured"))
    assert ten.flops == once.flops + 9 * 1001  # 1000 products, one comparison
    assert next(iter(seen.loops.values())) == (7.0, "measured")
    assert seen.flops == once.flops + 6 * 1001
    assert "not known, counted once" in str(once)


def test_loops_inside_loops_are_measured_each():
    def outer(x):
        return lax.scan(lambda c, t: (halved(x * t)[0] + c, None), 0.0, jnp.array([1.0, 4.0]))[0]

    (steps,) = (n for n, _ in cost(outer, steps="measured")(jnp.full(3, 8.0)).loops.values())
    assert steps == (3 + 5) / 2
    twice = lambda x: lax.fori_loop(0, x.astype(int)[0], lambda i, v: halved(v * 8.0) + 1, x)
    found = cost(twice, steps="measured")(jnp.full(3, 2.0)).loops
    assert sorted(n for n, _ in found.values()) == [2.0, 4.0]


def test_a_batched_while_counts_while_any_lane_is_at_work():
    x = jnp.array([[2.0, 2.0], [16.0, 2.0]])
    (steps,) = (n for n, _ in cost(jax.vmap(halved), steps="measured")(x).loops.values())
    assert steps == 4


def test_each_line_has_its_share():
    found = cost(lambda m: product(m, m) + chain(m))(M)
    dearest = found.lines[0]
    assert dearest.where.endswith(f"test_cost.py:{product.__code__.co_firstlineno + 1} in product")
    assert dearest.text == "return a @ b"
    assert dearest.flops == 11 * 2 * 64**3
    assert sum(line.flops for line in found.lines) == found.flops
    assert dearest.text in str(found)


def test_the_stacks_are_the_calls_from_the_outermost_in():
    stacks = cost(chain)(M).stacks
    (stack,) = (s for s in stacks if s[-1] == "dot_general")
    names = [frame.partition(":")[0] for frame in stack]
    assert names == ["chain", "<lambda>", "product", "dot_general"]


def test_the_picture_is_as_wide_as_the_flops(tmp_path):
    found = cost(lambda m: product(m, m) + chain(m))(M)
    found.flame(tmp_path / "flame.svg")
    picture = (tmp_path / "flame.svg").read_text()
    assert picture.startswith("<svg") and picture.rstrip().endswith("</svg>")
    assert "dot_general" in picture
    total = sum(float(line.rpartition(" ")[2]) for line in found.folded().splitlines())
    assert total == found.flops
    assert "&lt;lambda&gt;" in picture and "<lambda>" not in picture
    assert flame.svg({}) and flame.svg({("f",): (0.0, 1.0)})


@pytest.mark.parametrize(
    ("fun", "n"),
    [
        (lambda x: jnp.sin(x) + 1, 2),  # one value lives beside x
        (lambda x: jnp.sin(x) * jnp.cos(x), 4),
        (lambda x: jnp.sin(jnp.sin(jnp.sin(x))), 3),
    ],
)
def test_the_peak_is_what_is_alive_at_once(fun, n):
    x = jnp.ones(1000)
    plain = liveness.peak(stage(fun)(x).jaxpr).bytes
    assert plain in (4000 * n, 4000 * (n + 1))
    assert plain == cost(fun)(x).peak


def test_the_peak_of_a_gradient_grows_with_its_length_as_for_xla():
    slope = lambda n: jax.grad(lambda m: jnp.sin(chain(m, n)).sum())
    ours = [cost(slope(n))(M).peak for n in (4, 40)]
    stats = [jax.jit(slope(n)).lower(M).compile().memory_analysis() for n in (4, 40)]
    xla = [s.argument_size_in_bytes + s.output_size_in_bytes + s.temp_size_in_bytes for s in stats]
    assert np.allclose(ours, xla, rtol=0.6)
    assert ours[1] - ours[0] == pytest.approx(xla[1] - xla[0], rel=0.1)


def test_the_peak_names_its_line():
    found = cost(lambda x: product(x, x.T).sum())(jnp.ones((500, 2)))
    assert found.peak_at.endswith("in product")
    assert found.lines[0].live == 500 * 500 * 4


def test_nothing_is_run_and_types_suffice():
    found = cost(product)(jax.ShapeDtypeStruct((8, 8), "float32"), M[:8, :8])
    assert found.flops == 2 * 8**3
    cost(lambda: jax.debug.callback(lambda: pytest.fail("it ran")))()


def test_other_steps_are_refused():
    with pytest.raises(MalleableError, match=r"not 'guess'\n.*\n  hint"):
        cost(chain, steps="guess")


def test_a_while_that_cannot_be_measured_is_counted_once_and_said_to_be():
    solve = lambda a: jax.scipy.sparse.linalg.cg(a, jnp.ones(3))[0]
    with listen() as heard:
        found = cost(solve, steps="measured")(3 * jnp.eye(3))
    assert found.flops > 0
    assert [note.what for note in heard] == ["counted each while once"]


def test_measuring_leaves_the_arguments_alone():
    given = jax.jit(halved, donate_argnums=0)
    found = cost(given, steps="measured")(x := jnp.full(3, 8.0))
    assert not x.is_deleted()
    assert [n for n, _ in found.loops.values()] == [3.0]


def test_costs_are_files_for_viewers_of_profiles(tmp_path):
    def inner(x):
        return jnp.sin(x).sum()

    def outer(x):
        return inner(x) + jnp.cos(x).sum()

    found = cost(outer)(jnp.ones(100))
    found.speedscope(tmp_path / "s.json")
    found.perfetto(tmp_path / "p.json")
    scope = json.loads((tmp_path / "s.json").read_text())
    flops, traffic = scope["profiles"]
    assert sum(flops["weights"]) == flops["endValue"] == found.flops
    assert traffic["endValue"] == found.bytes
    assert max(i for stack in flops["samples"] for i in stack) < len(scope["shared"]["frames"])
    events = json.loads((tmp_path / "p.json").read_text())["traceEvents"]
    assert sum(e["args"]["flops"] for e in events if e["name"].startswith("outer")) == found.flops
    for event in events:  # each lies within what it is called from
        assert event["ts"] + event["dur"] <= found.flops / 1000 + 1e-9


def test_what_is_alive_at_the_peak_is_told_once_for_a_long_program(monkeypatch):
    spelled = []
    spell = places.spell
    monkeypatch.setattr(places, "spell", lambda place: spelled.append(place) or spell(place))

    def long(x):
        for _ in range(50):
            x = jnp.sin(x)
        return x

    found = liveness.peak(compat.trace(long, jnp.ones(100, jnp.float32)))
    assert found.bytes == 1200 and len(spelled) < 5
