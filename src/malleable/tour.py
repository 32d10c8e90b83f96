"""A guided run on real data, checked against code written without us: `python -m malleable tour`.

A chapter does something, then says what came out and what should have: each returns a list of
`Row`. To add one, write a function of the number of training steps and put it in CHAPTERS.
"""

import functools
import math
import time
from typing import NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from rich.console import Console
from rich.progress import track
from rich.table import Table
from sklearn.datasets import load_digits

import malleable as mal

HIDDEN, KEEP, BATCH, RATE = 64, 0.9, 128, 3e-3


class Row(NamedTuple):
    """One figure of the report: what it is, what came out, what should have, whether they agree."""

    what: str
    got: str
    expected: str
    ok: bool


# ------------------------------------------- a recurrent classifier, nothing passed by hand


def dense(x, size, name):
    """A dense layer: parameters come from wherever `mal.init` and `mal.apply` keep them."""
    with mal.scope(name):
        w = mal.param("w", jax.nn.initializers.glorot_normal(), (x.size, size))
        return x @ w + mal.param("b", jax.nn.initializers.zeros, (size,))


def classify(image, keep=KEEP):
    """The logits of one 8x8 image, read row by row by a gated cell with dropout."""

    def cell(h, row):
        seen = jnp.concatenate([row, h])
        gate, new = (
            jax.nn.sigmoid(dense(seen, HIDDEN, "gate")),
            jnp.tanh(dense(seen, HIDDEN, "new")),
        )
        kept = jax.random.bernoulli(mal.next_key(), keep, new.shape)
        kept = mal.tag(kept, "kept", kind="dropout")
        return mal.tag(h + gate * (new * kept / keep - h), "hidden"), None

    h, _ = lax.scan(cell, jnp.zeros(HIDDEN), image)
    return dense(h, 10, "out")


def loss(images, labels):
    """Mean cross-entropy of a batch."""
    return cross_entropy(jax.vmap(classify)(images), labels)


def cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()


# ------------------------------------------- the same, with everything passed by hand


def classify_by_hand(params, image, keys, nudges):
    """As `classify`; one key and one nudge of the hidden state per row; all it saw comes back."""

    def cell(h, step):
        row, key, nudge = step
        seen = jnp.concatenate([row, h])
        gate = jax.nn.sigmoid(seen @ params["gate"]["w"] + params["gate"]["b"])
        new = jnp.tanh(seen @ params["new"]["w"] + params["new"]["b"])
        kept = jax.random.bernoulli(key, KEEP, new.shape)
        h = h + gate * (new * kept / KEEP - h) + nudge
        return h, (h, kept)

    h, (hidden, kept) = lax.scan(cell, jnp.zeros(HIDDEN), (image, keys, nudges))
    return h @ params["out"]["w"] + params["out"]["b"], hidden, kept


def loss_by_hand(params, nudges, key, images, labels):
    """As `loss`; the keys are those `mal.seed` promises, written out."""
    loop = jax.random.fold_in(key, 0)  # the first thing in the body that needs a key: the scan
    steps = [jax.random.fold_in(jax.random.fold_in(loop, i), 0) for i in range(images.shape[1])]
    keys = jnp.stack([jax.random.split(step, len(images)) for step in steps])
    lanes = jax.vmap(classify_by_hand, (None, 0, 1, 1), (0, 1, 1))
    logits, hidden, kept = lanes(params, images, keys, nudges)
    return cross_entropy(logits, labels), (hidden, kept)


# ------------------------------------------- your own transformation, in 15 lines


def count_matmul_flops(fun):
    """count_matmul_flops(fun)(*args) -> flop in the matrix products; loops count every step."""

    def rule(frame, *args, **params):
        out = frame.bind(*args)
        if frame.eqn.primitive is lax.dot_general_p:
            (contracted, _), _ = params["dimension_numbers"]
            frame.carry += 2 * out.size * math.prod(args[0].shape[i] for i in contracted)
        return out

    def counted(*args):
        _, flop, _ = mal.interpret(fun, {}, carry=0, default=rule)(*args)
        return flop

    return counted


# ------------------------------------------- training


def train(images, labels, steps):
    """The parameters after some steps of Adam on random batches."""

    @jax.jit
    @mal.seed
    def step(params, mean, square, t):
        batch = jax.random.choice(mal.next_key(), len(images), (BATCH,))
        grads = jax.grad(mal.apply(loss))(params, images[batch], labels[batch])
        return adam(params, grads, mean, square, t)

    root = jax.random.key(0)
    params = mal.init(loss)(root, images[:1], labels[:1])
    mean = square = jax.tree.map(jnp.zeros_like, params)
    for t in track(range(1, steps + 1), "training"):
        params, mean, square = step(jax.random.fold_in(root, t), params, mean, square, t)
    return params


def adam(params, grads, mean, square, t):
    """One step. Source: Kingma and Ba, "Adam", ICLR 2015, algorithm 1."""
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)
    square = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, square, grads)

    def moved(p, m, s):
        return p - RATE * m / (1 - 0.9**t) / (jnp.sqrt(s / (1 - 0.999**t)) + 1e-8)

    return jax.tree.map(moved, params, mean, square), mean, square


# ------------------------------------------- the chapters


def digits(steps):
    """A recurrent digit classifier, without plumbing"""
    data = load_digits()
    images, labels = jnp.asarray(data.images / 16, jnp.float32), jnp.asarray(data.target)
    unseen = np.arange(len(images)) % 5 == 0
    params = train(images[~unseen], labels[~unseen], steps)

    sure = mal.seed(mal.apply(jax.vmap(functools.partial(classify, keep=1.0))))
    guesses = jax.jit(sure)(jax.random.key(1), params, images[unseen]).argmax(-1)
    accuracy = float((guesses == labels[unseen]).mean())

    run = mal.seed(mal.apply(loss))
    args = jax.random.key(2), params, images[:BATCH], labels[:BATCH]
    _, seen = jax.jit(mal.reap(run))(*args)
    _, dropout = jax.jit(mal.reap(run, kind="dropout"))(*args)
    _, slopes = jax.jit(mal.cotangents(run))(*args)
    grads = jax.jit(jax.grad(run, argnums=1))(*args)
    flop, flop_of_grad = (
        int(count_matmul_flops(f)(*args)) for f in (run, jax.grad(run, argnums=1))
    )

    key, _, *batch = args
    by_hand = jax.jit(jax.grad(loss_by_hand, argnums=(0, 1), has_aux=True))
    (grads2, slopes2), (hidden2, kept2) = by_hand(
        params, jnp.zeros((8, BATCH, HIDDEN)), key, *batch
    )
    flop2 = BATCH * (8 * 2 * 2 * (8 + HIDDEN) * HIDDEN + 2 * HIDDEN * 10)  # 2mkn per product

    return [
        Row("accuracy on unseen digits", f"{accuracy:.1%}", "at least 90%", accuracy >= 0.9),
        close("hidden states, `reap`", seen["hidden"], hidden2),
        close("slopes of the loss by hidden state, `cotangents`", slopes["hidden"], slopes2),
        close("slopes by parameter, `grad`", grads, grads2),
        same("dropout masks, `next_key` and `seed`", dropout["kept"], kept2),
        count("flop of the loss, `count_matmul_flops`", flop, flop2),
        count("flop of its gradient", flop_of_grad, 3 * flop2),
    ]


def close(what, got, expected):
    """A row about two pytrees of floats that should differ by rounding only."""
    pairs = zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True)
    off = max(float(jnp.abs(a - b).max() / jnp.abs(b).max()) for a, b in pairs)
    return Row(what, f"off by {off:.0e}", "below 1e-04", off < 1e-4)


def same(what, got, expected):
    """A row about two arrays that should be equal."""
    agree = int((got == expected).sum())
    return Row(what, f"{agree:,} equal", f"{expected.size:,}", agree == expected.size)


def count(what, got, expected):
    return Row(what, f"{got:,}", f"{expected:,}", got == expected)


CHAPTERS = [digits]


def tour(steps=300):
    """Run every chapter and print its report; returns whether all figures agree."""
    console, agree = Console(), True
    for number, chapter in enumerate(CHAPTERS, 1):
        began = time.perf_counter()
        rows = chapter(steps)
        took = time.perf_counter() - began
        console.print(report(f"{number}. {chapter.__doc__} ({took:.1f} s)", rows))
        agree = agree and all(row.ok for row in rows)
    return agree


def report(title, rows):
    """The rows of a chapter as a table."""
    table = Table("what", "measured", "expected", "", title=title, title_justify="left")
    for row in rows:
        table.add_row(row.what, row.got, row.expected, "[green]ok" if row.ok else "[red]differs")
    return table
