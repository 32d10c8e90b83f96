"""Values of your own beside quax, on the examples of its documentation: what works, and how fast.

    python -m benchmarks.ecosystem.values [--docs] [--smoke]

Five classes of `quax.examples` and five of `examples/values/` stand for a matrix in the same
programs; a cell says whether the result is that of the arrays, or what is raised. Then the lines
of code of the class and its rules, and the time to trace the flat program and the scan, in
milliseconds of CPU time: interleaved, in one process, medians.
"""

import argparse
import importlib.util
import operator
import pathlib
import platform
import statistics
import sys
import time
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import malleable as mal
from benchmarks.page import put_table
from benchmarks.smoke import add_argument, size
from examples.values import lora, matrices, units, zeros

if importlib.util.find_spec("quax") is None:
    sys.exit("this benchmark runs quax beside malleable: pip install -e '.[ecosystem]'")

import quax
from quax.examples import lora as quax_lora
from quax.examples import sparse as quax_sparse
from quax.examples import structured_matrices as quax_structured
from quax.examples import unitful as quax_units
from quax.examples import zero as quax_zero

W = jax.random.normal(jax.random.key(0), (4, 4))
X = jax.random.normal(jax.random.key(1), (4, 4))
PLACES = jnp.array([[0, 1], [2, 0], [3, 3]])


def twice(f, x):
    return lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, f(s[1])), (0, x))[1]


def own(op):
    """With a derivative of its own."""
    fun = jax.custom_vjp(lambda w, x: op(w, x))
    fun.defvjp(lambda w, x: (op(w, x), None), lambda _, ct: (ct, 7 * ct))
    return fun


def programs(op):
    """Of a value w that stays, and an array x, or a value of the same type."""
    return {
        "flat": op,
        "jit": jax.jit(lambda w, x: op(w, x)),
        "checkpoint": jax.checkpoint(lambda w, x: op(w, x)),
        "custom_vjp": own(op),
        "scan": lambda w, x: lax.scan(lambda h, _: (op(w, h), None), x, None, length=2)[0],
        "scan, stacked": lambda w, x: lax.scan(lambda h, _: (op(w, h), h), x, None, length=2)[1],
        "while": lambda w, x: twice(lambda h: op(w, h), x),
        "cond": lambda w, x: lax.cond(W[0, 0] < 9, lambda: op(w, x), lambda: x),
        "vmap": lambda w, x: jax.vmap(lambda _: op(w, x))(jnp.arange(2)),
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


ZERO = jax.ShapeDtypeStruct((4, 4), jnp.float32)
DIAGONALS = jnp.ones(3), jnp.arange(4.0), jnp.ones(3)
ENTRIES = matrices.Sparse(jnp.arange(3.0), PLACES, (4, 4))
CLASSES = {  # name: (an operation, modules of both, rules, arguments for both, the arrays)
    "LoRA": (
        operator.matmul,
        (quax_lora, lora),
        lora.RULES,
        ((low(None), X), (low(lora.LoRA), X)),
        (low(lora.LoRA).materialise(), X),
    ),
    "zero": (
        operator.matmul,
        (quax_zero, zeros),
        zeros.RULES,
        ((quax_zero.Zero((4, 4), jnp.float32), X), (zeros.Zero(ZERO), X)),
        (jnp.zeros((4, 4)), X),
    ),
    "units": (
        operator.add,
        (quax_units, units),
        units.RULES,
        (
            tuple(quax_units.Unitful(v, {quax_units.meters: 1}) for v in (W, X)),
            (units.quantity(W, m=1), units.quantity(X, m=1)),
        ),
        (W, X),
    ),
    "tridiagonal": (
        operator.matmul,
        (quax_structured, matrices),
        matrices.RULES,
        (
            (quax_structured.TridiagonalMatrix(*DIAGONALS, allow_materialise=True), X),
            (matrices.Tridiagonal(*DIAGONALS), X),
        ),
        (matrices.Tridiagonal(*DIAGONALS).materialise(), X),
    ),
    "sparse": (
        lambda w, x: w * x + x,
        (quax_sparse, matrices),
        matrices.RULES,
        (
            (quax_sparse.BCOO(ENTRIES.entries, PLACES, (4, 4), allow_materialise=True), X),
            (ENTRIES, X),
        ),
        (ENTRIES.materialise(), X),
    ),
}


def lines(module):
    """Lines of code of an example: not of comments, docstrings, or what demonstrates it."""
    folder = pathlib.Path(module.__file__)
    folder = folder.with_name("_core.py") if folder.stem == "__init__" else folder
    text = folder.read_text().split("\ndef main")[0]
    quoted, count = False, 0
    for line in map(str.strip, text.splitlines()):
        count += bool(line) and not quoted and not line.startswith(("#", '"""'))
        quoted ^= line.count('"""') == 1
    return str(count)


def cell(f, run, args, want):
    try:
        np.testing.assert_allclose(array_of(run(f)(*args)), want, rtol=1e-4)
    except AssertionError:
        return "wrong"
    except Exception as error:  # what a library raises is what the table is about
        return type(error).__name__
    return "ok"


def milliseconds(runs, f, args):
    times = [[], []]
    for _ in range(size(15, 1)):
        for spent, run, own in zip(times, runs, args, strict=True):
            start = time.process_time()
            jax.make_jaxpr(lambda *xs, run=run: jax.tree.leaves(run(lambda *ys: f(*ys))(*xs)))(*own)
            spent.append(1e3 * (time.process_time() - start))
    return [f"{statistics.median(spent):.1f}" for spent in times]


def column(op, modules, rules, args, arrays):
    """{row: (quax, malleable)} of one class."""
    runs = quax.quaxify, lambda f: lambda *args: mal.interpret(f, rules)(*args)[0]
    found, made = {}, programs(op)
    for name, f in made.items():
        want = f(*arrays)
        found[name] = [cell(f, run, own, want) for run, own in zip(runs, args, strict=True)]
    found["lines"] = list(map(lines, modules))
    for name in ("flat", "scan"):
        right = found[name] == ["ok", "ok"]
        found[f"ms to trace: {name}"] = milliseconds(runs, made[name], args) if right else ["", ""]
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--docs", action="store_true", help="put the table into docs/benchmarks.md")
    add_argument(parser)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    table = {kind: column(*parts) for kind, parts in CLASSES.items()}
    head = [f"{kind}: {library}" for kind in table for library in ("quax", "malleable")]
    rows = [["", *head], ["---"] * (1 + len(head))]
    for name in table["LoRA"]:
        rows.append([name, *(text for found in table.values() for text in found[name])])
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    print(text)
    if options.docs and not options.smoke:
        where = (
            f"quax {quax.__version__}, JAX {jax.__version__}, Python {platform.python_version()}"
        )
        put_table("values", "Values of your own, beside quax", f"{where}, CPU.\n\n{text}")
    wrong = [f"{k} in {n}" for k, c in table.items() for n in programs(max) if c[n][1] != "ok"]
    sys.exit(f"values of malleable are not right: {', '.join(wrong)}" if wrong else 0)


if __name__ == "__main__":
    main()
