"""What rewriting itself costs: the shipped rules on long programs (reroll: benchmarks.reroll)."""

import time

import jax
import jax.numpy as jnp
import numpy as np

import malleable as mal
from benchmarks.measure import table
from benchmarks.smoke import SMOKE, size

SIZES = size((1_000, 10_000, 20_000, 100_000), (10, 100, 200, 300))
LIMIT, GROWTH = 1.5, 2.2  # seconds for 10,000 equations; for twice as many
SHAPE = (4, 4)
UNARY = [jnp.sin, jnp.tanh, jnp.exp, lambda x: x.T, lambda x: -x, lambda x: x + 1.0]
BINARY = [jnp.add, jnp.multiply, jnp.subtract, jnp.maximum, lambda x, y: x @ y]
MATCHED = [
    lambda x, y: jnp.log(jax.nn.softmax(x)),
    lambda x, y: jnp.log(1.0 + x),
    lambda x, y: x * jnp.sum(x @ y),
    lambda x, y: x * jnp.trace(x @ y),
    lambda x, y: jnp.diag(x[0]) @ y,
    lambda x, y: x @ jnp.eye(SHAPE[0]),
]


def random_program(eqns, seed=0):
    """A closed jaxpr of about so many equations; a quarter of them is where a rule applies."""
    rng = np.random.default_rng(seed)

    def fun(x, y):
        values, count = [x, y], 0
        while count < eqns:
            a, b = (values[-1 - min(rng.geometric(0.1), len(values)) % len(values)] for _ in "ab")
            kind = rng.random()
            if kind < 0.03:
                values.append(MATCHED[rng.integers(len(MATCHED))](a, b))
                count += 8
            elif kind < 0.5:
                values.append(UNARY[rng.integers(len(UNARY))](a))
                count += 1
            else:
                values.append(BINARY[rng.integers(len(BINARY))](a, b))
                count += 1
        return sum(values[-50:])

    return jax.make_jaxpr(fun)(jnp.ones(SHAPE), jnp.ones(SHAPE))


def best(fun, *args, rounds=3):
    """(the least seconds of CPU of some runs, the result)"""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        out = fun(*args)
        times.append(time.process_time() - start)
    return min(times), out


def say(passed, what):
    print(f"  {'PASS' if passed else 'FAIL'}  {what}")


def rules():
    """Seconds by number of equations, and whether the limits are kept."""
    rewriting = mal.rewrite(*mal.LIBRARY)
    rows, seconds = [], {}
    for eqns in SIZES:
        program = random_program(eqns)
        count = len(program.eqns)
        took, out = best(rewriting, program, rounds=1 if eqns > 20_000 else 3)
        seconds[eqns] = took * eqns / count  # of `eqns` equations, had it been so many exactly
        left = f"{len(out.eqns):,} left"
        rows.append((f"{count:,} equations", f"{took:7.3f} s   {count / took:,.0f} per s   {left}"))
    _, once, twice, _ = seconds.values()
    growth = twice / once
    table(f"{len(mal.LIBRARY)} rules", rows)
    fast, linear = once < LIMIT, growth <= GROWTH
    print(f"\n  {'PASS' if fast else 'FAIL'}  {SIZES[1]:,} equations: {once:.2f} s < {LIMIT} s")
    print(f"  {'PASS' if linear else 'FAIL'}  twice as many: {growth:.2f} x <= {GROWTH} x")
    return fast and linear


def main():
    return 0 if rules() or SMOKE else 1
