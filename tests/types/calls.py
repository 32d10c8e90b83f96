"""Calls for a type checker: a line that ends in `# wrong` is refused, every other is taken.

They are never run.
"""

# ruff: noqa: B002, B018, RUF059

from typing import assert_type

import jax
from jax import lax

import malleable as mal


def net(x: jax.Array, scale: float = 1.0) -> jax.Array:
    return mal.tag(x * scale, "scaled")


def total(x: jax.Array) -> float:
    return float(x.sum())


def calls(x: jax.Array, key: jax.Array) -> None:
    # jit: the parameters and the result of what it wraps; options by name
    fast = mal.jit(net)
    assert_type(fast(x, scale=2.0), jax.Array)
    assert_type(fast.source, str)
    fast("text")  # wrong
    fast(x, 1.0, 2.0)  # wrong
    fast(x, size=2.0)  # wrong
    fast.sources  # wrong
    mal.jit(net, on_brake="warn")  # wrong
    mal.jit(net, on_break="never")  # wrong
    mal.jit(3)  # wrong
    fast.lower(x).compile()
    fast.lower("text")  # wrong

    @mal.jit(on_break="warn", max_compiles=4)
    def counted(x: jax.Array, steps: int) -> int:
        return steps

    assert_type(counted(x, 3), int)
    counted(x, "3")  # wrong
    counted(x)  # wrong

    # autograph
    @mal.autograph(max_steps=9)
    def halved(x: float) -> float:
        while x > 1:
            x = x / 2
        return x

    assert_type(halved(3.0), float)
    halved([3.0])  # wrong
    mal.autograph(net, steps=3)  # wrong
    mal.loop(range(3), max_step=3)  # wrong

    # effects
    out, tags = mal.reap(net)(x)
    assert_type(out, jax.Array)
    mal.reap(net)("text")  # wrong
    mal.reap(net, names=["scaled"])  # wrong
    assert_type(mal.plant(net)(tags, x), jax.Array)
    mal.plant(net)(x)  # wrong
    mal.harvest(net)(tags)  # wrong
    assert_type(mal.tag(3.0, "three"), float)
    mal.tag(3.0)  # wrong
    assert_type(mal.seed(net)(key, x), jax.Array)
    mal.seed(net)(key, "text")  # wrong
    mal.apply(net)(x)  # wrong
    mal.init(net)(key, x)["w"]
    mal.next_key(share=True)  # wrong
    assert_type(mal.cotangents(total)(x)[0], float)
    assert_type(mal.mutable(net)(x), jax.Array)
    mal.mutable(net)()  # wrong
    with mal.scope("layer"):
        pass
    mal.scope(3)  # wrong

    # core
    out, count, _ = mal.interpret(net, {lax.sin_p: lambda frame, x, **params: frame.bind(x)})(x)
    assert_type(out, jax.Array)
    mal.interpret(net)  # wrong
    mal.interpret(net, {}, carries=0)  # wrong
    mal.interpret(net, {})("text")  # wrong
    mal.live(net, {})(x, 1.0, 2.0)  # wrong
    mal.stage(net)(jax.ShapeDtypeStruct((3,), "float32")).jaxpr
    mal.stage(net)(x).program  # wrong
    mal.marker("here", lane="all")  # wrong

    # passes and rules
    better = mal.optimize(net, mal.cse, mal.stream(block=4), mal.rewrite(*mal.LIBRARY))
    assert_type(better(x), jax.Array)
    better("text")  # wrong
    mal.optimize(net, "cse")  # wrong
    mal.stream(blocks=4)  # wrong
    mal.fold(limit="many")  # wrong
    mal.pipeline(mal.dce, watch=3)  # wrong

    @mal.rule
    def negated_twice(a):
        return -(-a), a

    assert_type(negated_twice.name, str)
    mal.rewrite(negated_twice, fuels=3)  # wrong
    mal.rewrite(net)  # wrong
    mal.check_rule(net)  # wrong
    carry, step = mal.as_scan(net, x)
    mal.as_scan(net, x, axes=1)  # wrong

    # inspection
    found = mal.first_nonfinite(net)(x)
    found.where  # wrong
    if found is not None:
        found.source
    mal.first_nonfinite(net)("text")  # wrong
    mal.show(net, passes=[mal.cse])(x).html("page.html")
    mal.show(net, passes=mal.cse)  # wrong
    mal.show(net)(x).page("page.html")  # wrong
    mal.cost(net)(x).flop_count  # wrong
    mal.explain(net)(x).regions
    mal.explain(net)("text")  # wrong
    assert_type(mal.unstage(net)(x), jax.Array)
    mal.unstage(net)(x, 1.0, 2.0)  # wrong
    mal.save("net.mal", net, x, transformable="yes")  # wrong
    mal.load(3)  # wrong
    mal.step(net)()  # wrong
    with mal.listen() as notes:
        notes[0].why
    notes[0].reason  # wrong

    # arguments given at once, values of another type, forgotten arguments
    mal.show(net, x)  # wrong
    mal.cost(net, x)  # wrong
    mal.first_nonfinite(net, x)  # wrong
    mal.step(net, x)  # wrong
    mal.explain(net, x)  # wrong
    mal.reap(net, x)  # wrong
    mal.optimize(net, x)  # wrong
    mal.as_scan(net)  # wrong
    mal.as_scan(net, x, axis="a")  # wrong
    mal.param("w", (3,))  # wrong
    mal.param("w")  # wrong
    mal.tag(x, "y", mode="any")  # wrong
    mal.show(net, hlo="text")  # wrong
    mal.autograph(net, mode="all")  # wrong
    mal.microbatch("4")  # wrong
    mal.cost(3)  # wrong
    mal.errors.explain(net)  # wrong

    # probabilistic programs
    drawn, values, density = mal.prob.trace(net)(key, x)
    assert_type(drawn, jax.Array)
    mal.prob.trace(net)(x)  # wrong
    mal.prob.condition(net, [x])  # wrong
    mal.errors.explain(debugging=True)  # wrong
