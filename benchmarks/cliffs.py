"""Where `mal.jit` might be slower than what it replaces: 30 functions against `jax.jit`, 30 more.

    python -m benchmarks.cliffs [--docs] [--only name] [--smoke]

Functions without a break are timed against `jax.jit` (goal 1.3 x its time, never above 2 x); those
with one, or with a new size or number in each call, against eager Python (never below 0.9 x its
speed). Both run in turn, in one process; figures are medians of rounds, in processor time. All
results are compared. Exit status 0 means that every gate passes.
"""

import argparse
import contextlib
import itertools
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import malleable as mal
from benchmarks.page import put_table
from benchmarks.smoke import SMOKE, add_argument, size

GOAL, MOST = 1.3, 2.0  # times the time of jax.jit
LEAST = 0.9  # of the speed of eager
ROUNDS, CALLS = size(41, 1), size(12, 2)  # of one round
LONG = 1.5  # seconds for the rounds of one function, but three rounds at least
WARM = size(30, 2)  # calls before: more than there are programs for sizes or values
AGAIN = size(12, 2)  # of which so many also where they take longer than LONG

X, Y = jnp.linspace(-1.0, 2.0, 256), jnp.linspace(0.5, 3.0, 256)
A = jnp.eye(32) + 0.01 * jnp.arange(1024.0).reshape(32, 32) / 1024
PARAMS = {"w": A, "b": jnp.zeros(32), "layers": [A * 0.1, A * 0.2, A * 0.3]}
TREE = {f"k{i}": jnp.ones(3) * i for i in range(200)}
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog"] * 20


@contextlib.contextmanager
def scope():
    yield


def network(p, x):
    for w in p["layers"]:
        x = jnp.tanh(x @ w + p["b"])
    return (x @ p["w"]).sum()


def in_scopes(x):
    with jax.named_scope("outer"), scope():
        for _ in range(5):
            x = jnp.tanh(x @ x.T @ x)
    return x


def precise(x):
    with jax.default_matmul_precision("float32"):
        return x @ x.T


def adam(p, g, m, lr, step):
    m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
    return jax.tree.map(lambda a, b: a - lr * b / (1 - 0.9 ** (step + 1)), p, m), m


def attention(x):
    weights = jax.nn.softmax(x @ x.T / 8.0)
    return weights @ x


def scanned(x):
    return jax.lax.scan(lambda c, y: (c * 0.9 + y, c), 0.0, x)


WHOLE: dict[str, tuple] = {
    "sum": (lambda x: x.sum(), X),
    "three operations": (lambda x: jnp.sin(x) * 2 + 1, X),
    "two arguments": (lambda x, y: x * y - y, X, Y),
    "normalised": (lambda x: (x - x.mean()) / x.std(), X),
    "softmax": (lambda x: jax.nn.softmax(x), X),
    "product": (lambda a: a @ a, A),
    "solve": (lambda a: jnp.linalg.solve(a, a[0]), A),
    "sort": (lambda x: jnp.sort(x)[::-1], X),
    "where": (lambda x: jnp.where(x > 0, x, 0.1 * x).sum(), X),
    "cumulative": (lambda x: jnp.cumsum(x) / jnp.arange(1, 257), X),
    "a network": (network, PARAMS, A),
    "its gradient": (lambda p, x: jax.grad(network)(p, x), PARAMS, A),
    "a tree of 200": (lambda t: jax.tree.map(lambda v: v * 2 + 1, t), TREE),
    "a tree to a number": (lambda t: sum(v.sum() for v in t.values()), TREE),
    "a dict that comes out": (lambda x: {"z": x, "a": x * 2}, X),
    "a tuple that comes out": (lambda x: (x * 2, x.sum(), x.max()), X),
    "a list of arrays": (lambda xs: [x * 2 for x in xs], [X, Y, X]),
    "a float": (lambda x, a: x * a + jnp.cos(a), X, 0.3),
    "two floats": (lambda x, a, b: x * a + b, X, 0.3, 2.0),
    "an int": (lambda x, n: x * n, X, 3),
    "a size": (lambda x, n: jnp.zeros(n) + x[0], X, 32),
    "None": (lambda x, m: x if m is None else x * m, X, None),
    "a branch on a string": (lambda x, how: x.sum() if how == "sum" else x, X, "sum"),
    "Python's loop": (lambda x: sum(jnp.sin(x * k) for k in range(8)), X),
    "scan": (scanned, X),
    "attention": (attention, A),
    "vmap": (lambda a: jax.vmap(lambda r: jnp.sort(r) @ r)(a), A),
    "keyword defaults": (lambda x, scale=2.0, shift=0.5: x * scale + shift, X),
    "scopes": (in_scopes, A),
    "a precision": (precise, A),
    "Adam": (adam, PARAMS, PARAMS, PARAMS, 1e-3, 7),
    "random": (lambda key: jax.random.normal(key, (64,)).sum(), jax.random.key(0)),
}


# ---------------------------------------------------------------- with a break, or ever new


def newton(a):
    x, path = float(a), []
    for _ in range(20):
        fx = jnp.cos(x) - x**3
        if abs(fx) < 1e-6:
            break
        x = float(x + fx / (jnp.sin(x) + 3 * x**2))
        path.append(x)
    return path


def trimmed(x):
    for _ in range(3):
        x = x[jnp.abs(x - x.mean()) < 1.5 * x.std()]
    return x.mean()


def words(x, text):
    found: dict = {}
    for word in text:
        found[word] = found.get(word, 0) + 1
    return found, x * len(found)


def logged(x, log):
    for k in range(4):
        x = jnp.tanh(x * 1.1 + k)
        log.append(float(x.sum()))
    return x


def trained(w, x):
    losses = []
    for _ in range(5):
        loss, g = jax.value_and_grad(lambda w: ((x @ w - 1.0) ** 2).mean())(w)
        w = w - 0.1 * g
        losses.append(float(loss))
        if len(losses) > 1 and losses[-1] > losses[-2]:
            break
    return w, losses


class Trainer:
    """Keeps its weights."""

    def __init__(self):
        self.w, self.steps = A[0], 0

    def step(self, x):
        g = x.T @ (x @ self.w - 1.0)
        self.w = self.w - 0.001 * g
        self.steps += 1
        return float(jnp.abs(g).max())


def simulated(times, horizon):
    """A queue: events in the order of their times."""
    clock, served, waiting = 0.0, 0, []
    for t in times:
        clock = clock + float(t)
        waiting.append(clock)
        if clock > horizon:
            break
        if len(waiting) > 3:
            waiting = waiting[2:]
            served += 2
    return served, jnp.asarray(waiting).sum()


def caught(x, k):
    try:
        return [x, x * 2][k].sum()
    except IndexError:
        return x.max()


def python_first(x, n):
    total = 0
    for i in range(2000):
        total += i * n % 7
    return jnp.sin(x) * total


def printed(x):
    return f"{x.sum():.3f} of {x.shape[0]}", x * 2


def ragged(x, cuts):
    parts = [x[a:b] for a, b in itertools.pairwise(cuts)]
    return [p.sum() for p in parts if p.shape[0]]


def bisected(x):
    low, high = 0.0, 10.0
    while high - low > 1e-2:
        middle = (low + high) / 2
        if float((jnp.abs(x) - middle).max()) > 0:
            low = middle
        else:
            high = middle
    return low


def sized(k):
    return X[: 20 + k % 200]


BROKEN: dict[str, tuple] = {
    # name: (function, arguments of call k)
    "mask": (lambda x: x[x > 0].sum(), lambda k: (X,)),
    "mask, kept": (lambda x: jnp.sin(x[x > 0]) * 2, lambda k: (X,)),
    "trimmed mean": (trimmed, lambda k: (X,)),
    "unique": (lambda x: jnp.unique(jnp.round(x * 4)), lambda k: (X,)),
    "nonzero": (lambda x: x[jnp.nonzero(x > 1)[0]], lambda k: (X,)),
    "float of a sum": (lambda x: x / float(x.sum()), lambda k: (X,)),
    "item": (lambda x: jnp.exp(x - x.max().item()), lambda k: (X,)),
    "a branch": (lambda x: x * 2 if float(x.sum()) > 0 else -x, lambda k: (X,)),
    "Newton": (newton, lambda k: (0.4 + 0.01 * k,)),
    "words, one line of JAX": (words, lambda k: (X, WORDS)),
    "Python, one line of JAX": (python_first, lambda k: (X, k)),
    "a log": (logged, lambda k: (X, [])),
    "training": (trained, lambda k: (A[0], A)),
    "an object": (lambda t, x: t.step(x), lambda k: (Trainer(), A)),
    "a queue": (simulated, lambda k: (Y[:40], 60.0)),
    "a caught error": (caught, lambda k: (X, k % 3)),
    "text": (printed, lambda k: (X,)),
    "ragged": (ragged, lambda k: (X, (0, 10, 30, 100, 256))),
    "bisection": (bisected, lambda k: (X,)),
    "NumPy between": (lambda x: jnp.sin(jnp.asarray(np.cumsum(np.asarray(x)))), lambda k: (X,)),
    "mask, new sizes": (lambda x: jnp.exp(x[x > 0]).sum(), lambda k: (sized(k),)),
    "trimmed mean, new sizes": (trimmed, lambda k: (sized(k),)),
    "whole, new sizes": (lambda x: (jnp.tanh(x) * 2).sum(), lambda k: (sized(k),)),
    "matrix, new sizes": (lambda a: jnp.tanh(a) @ A, lambda k: (jnp.ones((9 + k % 90, 32)),)),
    "softmax, new sizes": (lambda x: jax.nn.softmax(x) * 2, lambda k: (sized(k),)),
    "text, new sizes": (printed, lambda k: (sized(k),)),
    "new floats": (lambda a: jnp.cos(a) - a**3, lambda k: (0.01 * k,)),
    "new floats, an array": (lambda x, lr: x - lr * 0.5 * x, lambda k: (X, 0.1 * 0.99**k)),
    "new ints": (lambda x, n: jnp.sin(x * n) + n, lambda k: (X, k)),
    "new floats, a log": (
        lambda x, a, log: log.append(a) or jnp.sin(x * a),
        lambda k: (X, k / 9, []),
    ),
    "a float of an array": (lambda x: jnp.cos(float(x[3])) * x, lambda k: (X * (1 + 0.01 * k),)),
}


# ---------------------------------------------------------------- times


class Row(NamedTuple):
    name: str
    plain: float  # seconds of a call
    ours: float
    ratio: float  # how many times as long as jax.jit; or as fast as eager
    good: bool


def measured(plain: Callable, ours: Callable, arguments: Callable) -> tuple[float, float, list]:
    """(seconds of a call, ours, ours / plain of each round), in turn, by the processor's clock."""
    number, rounds, begun = itertools.count(), [], time.perf_counter()
    for k in itertools.islice(number, WARM):
        agree(plain(*arguments(k)), ours(*arguments(k)))
        if k + 1 >= AGAIN and time.perf_counter() > begun + LONG:
            break
    calls = CALLS if k + 1 == WARM else 4  # eager Python compiles for every new size
    begun = time.perf_counter()
    while len(rounds) < ROUNDS and not (len(rounds) >= 3 and time.perf_counter() > begun + LONG):
        which = [next(number) for _ in range(calls)]
        rounds.append([spent(f, [arguments(k) for k in which]) for f in (plain, ours)])
    first, second = zip(*rounds, strict=True)
    ratios = [b / a for a, b in rounds]
    return statistics.median(first), statistics.median(second), ratios


def spent(fun: Callable, calls: list) -> float:
    start = time.process_time()
    for args in calls:
        out = fun(*args)
    jax.block_until_ready(out)
    return (time.process_time() - start) / len(calls)


def agree(one: Any, other: Any) -> None:
    """Raise AssertionError unless the results are the same, but for rounding."""
    one, other = jax.tree.flatten(one), jax.tree.flatten(other)
    assert one[1] == other[1]
    for a, b in zip(one[0], other[0], strict=True):
        assert a == b if isinstance(a, str) else np.allclose(a, b, rtol=1e-3, atol=1e-4), (a, b)


def against_jit(name: str, fun: Callable, *args) -> Row:
    """A function without a break: the time of ours in that of `jax.jit`."""
    static = [i for i, a in enumerate(args) if isinstance(a, str) or (name == "a size" and i)]
    made = jax.jit(fun, static_argnums=static)
    plain, ours, ratios = measured(made, mal.jit(fun), lambda k: args)
    ratio = statistics.median(ratios)
    return Row(name, plain, ours, ratio, ratio <= MOST)


def against_eager(name: str, fun: Callable, arguments: Callable) -> Row:
    """A function with a break, or ever new: the speed of ours in that of Python."""
    plain, ours, ratios = measured(fun, mal.jit(fun), arguments)
    ratio = 1 / statistics.median(ratios)
    return Row(name, plain, ours, ratio, ratio >= LEAST)


def told(row: Row) -> Row:
    """The row, said where one waits for the tables."""
    print(f"{row.name}: {row.ratio:.2f}{'' if row.good else ' (!)'}", file=sys.stderr)
    return row


def table(rows: list[Row], other: str, what: str) -> list[str]:
    lines = ["", f"| {what} | {other} | ours | |", "|---|---|---|---|"]
    for row in rows:
        mark = "" if row.good else " (!)"
        times = f"{row.plain * 1e6:.1f} µs | {row.ours * 1e6:.1f} µs"
        lines.append(f"| {row.name} | {times} | {row.ratio:.2f} x{mark} |")
    return lines


def summary(whole: list[Row], broken: list[Row]) -> str:
    parts = []
    if whole:
        middle, most = statistics.median(r.ratio for r in whole), max(r.ratio for r in whole)
        parts.append(
            f"Without a break, time of ours in that of `jax.jit`: median {middle:.2f}, most "
            f"{most:.2f}; {sum(r.ratio <= GOAL for r in whole)} of {len(whole)} within {GOAL}."
        )
    if broken:
        middle, least = statistics.median(r.ratio for r in broken), min(r.ratio for r in broken)
        parts.append(
            f"With breaks, new sizes or new numbers, speed in that of eager: median {middle:.2f}, "
            f"least {least:.2f}; {sum(r.good for r in broken)} of {len(broken)} at least {LEAST}."
        )
    return " ".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--docs", action="store_true", help="put the tables into docs/benchmarks.md"
    )
    parser.add_argument("--only", default="", help="functions whose name has this in it")
    add_argument(parser)
    options = parser.parse_args()
    whole = [told(against_jit(n, *p)) for n, p in WHOLE.items() if options.only in n]
    broken = [told(against_eager(n, *p)) for n, p in BROKEN.items() if options.only in n]
    where = f"JAX {jax.__version__}, CPU. Processor time of a call; (!) misses its gate. "
    where += "Made by `python -m benchmarks.cliffs --docs`."
    lines = [where, "", summary(whole, broken)]
    lines += table(whole, "`jax.jit`", "no break") + table(broken, "eager", "a break, or ever new")
    print("\n".join(lines))
    if options.docs:
        put_table("cliffs", "No cliffs: `mal.jit` against what it replaces", "\n".join(lines))
    return 0 if SMOKE or all(row.good for row in (*whole, *broken)) else 1


if __name__ == "__main__":
    sys.exit(main())
