"""Values of your own beside quax, on the examples of its documentation: what works, and how fast.

    python -m benchmarks.ecosystem.values

Three classes of `quax.examples` and three of `examples/values/` stand for a matrix in the same
programs; a cell says whether the result is that of the arrays. The last row is the time to trace
the flat program, in milliseconds of CPU time: interleaved, in one process, medians.
"""

import statistics
import time
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import quax
from jax import lax
from quax.examples import lora as quax_lora
from quax.examples import unitful as quax_units
from quax.examples import zero as quax_zero

import malleable as mal
from examples.values import lora, units, zeros

W = jax.random.normal(jax.random.key(0), (4, 4))
X = jax.random.normal(jax.random.key(1), (4, 4))


@jax.custom_vjp
def own(w, x):
    return w @ x


own.defvjp(lambda w, x: (w @ x, None), lambda _, ct: (ct, 7 * ct))


def twice(f, x):
    return lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, f(s[1])), (0, x))[1]


def matrix_programs():
    """Of a value w that stays, and an array x."""
    return {
        "flat": lambda w, x: w @ x,
        "jit": jax.jit(lambda w, x: w @ x),
        "checkpoint": jax.checkpoint(lambda w, x: w @ x),
        "custom_vjp": own,
        "scan": lambda w, x: lax.scan(lambda h, _: (w @ h, None), x, None, length=2)[0],
        "while": lambda w, x: twice(lambda h: w @ h, x),
        "cond": lambda w, x: lax.cond(x[0, 0] < 9, lambda: w @ x, lambda: x),
        "vmap": lambda w, x: jax.vmap(lambda x: w @ x)(jnp.stack([x, x])),
    }


def unit_programs():
    """Of two values of one unit."""
    return {
        "flat": lambda w, x: w + x,
        "jit": jax.jit(lambda w, x: w + x),
        "checkpoint": jax.checkpoint(lambda w, x: w + x),
        "custom_vjp": None,
        "scan": lambda w, x: lax.scan(lambda h, _: (w + h, None), x, None, length=2)[0],
        "while": lambda w, x: twice(lambda h: w + h, x),
        "cond": lambda w, x: lax.cond(True, lambda: w + x, lambda: x),
        "vmap": jax.vmap(jnp.add),
    }


def array_of(out):
    for name in ("array", "x"):
        if hasattr(out, name):
            return getattr(out, name)
    return out.materialise() if hasattr(out, "materialise") else out


def low(cls):
    whole = quax_lora.LoraArray(W, rank=2, key=jax.random.key(2), stop_gradient=False)
    whole = eqx.tree_at(lambda v: v.b, whole, jnp.ones((2, 4)))
    return whole if cls is None else cls(W, whole.a, whole.b)


def both(rules):
    """(quax, malleable), each as run(f)(*values)."""
    return quax.quaxify, lambda f: lambda *args: mal.interpret(f, rules)(*args)[0]


ZERO = jax.ShapeDtypeStruct((4, 4), jnp.float32)
CLASSES = {  # name: (programs, runs, arguments for each of them, the arrays)
    "LoRA": (
        matrix_programs(),
        both(lora.RULES),
        ((low(None), X), (low(lora.LoRA), X)),
        (low(lora.LoRA).materialise(), X),
    ),
    "zero": (
        matrix_programs(),
        both(zeros.RULES),
        ((quax_zero.Zero((4, 4), jnp.float32), X), (zeros.Zero(ZERO), X)),
        (jnp.zeros((4, 4)), X),
    ),
    "units": (
        unit_programs(),
        both(units.RULES),
        (
            tuple(quax_units.Unitful(v, {quax_units.meters: 1}) for v in (W, X)),
            (units.quantity(W, m=1), units.quantity(X, m=1)),
        ),
        (W, X),
    ),
}


def cell(f, run, args, want):
    try:
        np.testing.assert_allclose(array_of(run(f)(*args)), want, rtol=1e-4)
    except AssertionError:
        return "wrong"
    except Exception as error:  # what a library raises is what the table is about
        return type(error).__name__
    return "ok"


def milliseconds(runs, f, args, rounds=15):
    times = [[], []]
    for _ in range(rounds):
        for spent, run, own in zip(times, runs, args, strict=True):
            start = time.process_time()
            jax.make_jaxpr(lambda *xs, run=run: jax.tree.leaves(run(f)(*xs)))(*own)
            spent.append(1e3 * (time.process_time() - start))
    return [f"{statistics.median(spent):.1f}" for spent in times]


def main():
    warnings.simplefilter("ignore")
    table = {name: {} for name in [*matrix_programs(), "ms to trace"]}
    for kind, (programs, runs, args, arrays) in CLASSES.items():
        for name, f in programs.items():
            want = None if f is None else f(*arrays)
            table[name][kind] = [
                "" if f is None else cell(f, run, own, want)
                for run, own in zip(runs, args, strict=True)
            ]
        table["ms to trace"][kind] = milliseconds(runs, programs["flat"], args)
    print("| | " + " | ".join(f"{kind}: quax | {kind}: malleable" for kind in CLASSES) + " |")
    print("|---" * (1 + 2 * len(CLASSES)) + "|")
    for name, row in table.items():
        print(f"| {name} | " + " | ".join(text for pair in row.values() for text in pair) + " |")


if __name__ == "__main__":
    main()
