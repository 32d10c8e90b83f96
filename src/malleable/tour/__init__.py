"""A guided run on real data, checked against code written without us: `python -m malleable tour`.

A chapter does something, and returns a list of `Row`: what came out and what should have. To
add one, write a function of the number of training steps and a console, and add it to CHAPTERS.
"""

import functools
import math
import pathlib
import pydoc_data.topics
import re
import time
from typing import Any

import jax
import numpy as np
import scipy.integrate
import scipy.optimize
from jax import lax
from jax import numpy as jnp
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits

import malleable as mal
from malleable.tour.insight import nothing_hidden
from malleable.tour.loops import plain_loops
from malleable.tour.rows import Row, close, equal, faster, report, seconds
from malleable.tour.sampling import sampled
from malleable.tour.training import adam

HIDDEN, KEEP, BATCH = 64, 0.9, 128
STARTS = 1000
STEPS, FLOATS = 1000, 10_000  # of the example of jax#4968
LENGTH, LANES, WIDTH = 256, 16, 128  # of the language model
PICTURE = "malleable-memory.png"


# ------------------------------------------- a recurrent classifier, nothing passed by hand


def dense(x, size, name):
    """A dense layer: parameters come from wherever `mal.init` and `mal.apply` keep them."""
    with mal.scope(name):
        w = mal.param("w", jax.nn.initializers.glorot_normal(), (x.shape[-1], size))
        return x @ w + mal.param("b", jax.nn.initializers.zeros, (size,))


def classify(image, keep=KEEP):
    """The logits of one 8x8 image, read row by row by a gated cell with dropout."""

    def cell(h, row):
        seen = jnp.concatenate([row, h])
        gate = jax.nn.sigmoid(dense(seen, HIDDEN, "gate"))
        new = jnp.tanh(dense(seen, HIDDEN, "new"))
        kept = jax.random.bernoulli(mal.next_key(), keep, new.shape)
        kept = mal.tag(kept, "kept", kind="dropout")
        h = mal.tag(h + gate * (new * kept / keep - h), "hidden")
        return h, None

    h, _ = lax.scan(cell, jnp.zeros(HIDDEN), image)
    return dense(h, 10, "out")


def loss(images, labels):
    """Mean cross-entropy of a batch."""
    return cross_entropy(jax.vmap(classify)(images), labels)


def cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1).mean()


def observe(key, params, images, labels):
    """Hidden states, dropout masks, and the gradient of the loss by the former and by params."""
    seeded: Any = mal.seed(mal.apply(loss))  # pyright loses an argument of a partial one
    run = functools.partial(seeded, key)
    _, seen = mal.reap(run)(params, images, labels)
    _, dropout = mal.reap(run, kind="dropout")(params, images, labels)
    _, slopes = mal.cotangents(run)(params, images, labels)
    grads = jax.grad(run)(params, images, labels)
    return seen["hidden"], dropout["kept"], slopes["hidden"], grads


# ------------------------------------------- the same, with everything passed by hand


def classify_by_hand(params, image, keys, nudges):
    """As `classify`, with a key and a nudge of the hidden state per row; and what it did."""

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
    """As `loss`, with the keys `mal.seed` promises written out; and what the cell did."""
    loop = jax.random.fold_in(key, 0)  # the first thing in the body that needs a key: the scan
    steps = [jax.random.fold_in(jax.random.fold_in(loop, i), 0) for i in range(images.shape[1])]
    keys = jnp.stack([jax.random.split(step, len(images)) for step in steps])
    lanes = jax.vmap(classify_by_hand, (None, 0, 1, 1), (0, 1, 1))
    logits, hidden, kept = lanes(params, images, keys, nudges)
    return cross_entropy(logits, labels), (hidden, kept)


def observe_by_hand(key, params, images, labels):
    """As `observe`."""
    nudges = jnp.zeros((images.shape[1], len(images), HIDDEN))
    slopes_of = jax.grad(loss_by_hand, argnums=(0, 1), has_aux=True)
    (grads, slopes), (hidden, kept) = slopes_of(params, nudges, key, images, labels)
    return hidden, kept, slopes, grads


# ------------------------------------------- your own transformation, in 15 lines


def count_matmul_flops(fun):
    """count_matmul_flops(fun)(*args) -> flop in the matrix products; loops count every step."""

    def rule(frame, *args, **params):
        out = frame.bind(*args)
        if frame.eqn.primitive is lax.dot_general_p:
            (contracted, _), _ = params["dimension_numbers"]
            frame.carry += 2 * out.size * math.prod(args[0].shape[i] for i in contracted)
        return out

    return lambda *args: mal.interpret(fun, {}, carry=0, default=rule)(*args)[1]


# ------------------------------------------- training


def train(images, labels, steps, console):
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
    for t in track(range(1, steps + 1), "training", console=console):
        params, mean, square = step(jax.random.fold_in(root, t), params, mean, square, t)
    return params


# ------------------------------------------- routines of SciPy, as they are installed


def kepler(anomaly, mean, eccentricity):
    """Zero where the anomaly is that of an orbit at a mean anomaly."""
    return anomaly - eccentricity * np.sin(anomaly) - mean


def kepler_slope(anomaly, mean, eccentricity):
    return 1 - eccentricity * np.cos(anomaly)


def anomaly_of(mean, eccentricity):
    """Where a planet is on its orbit, by SciPy's Newton iteration."""
    args = mean, eccentricity
    return scipy.optimize.newton(kepler, mean, kepler_slope, args, tol=1e-12)


def swing(time, state):
    """The derivatives of a pendulum's angle and speed."""
    angle, speed = state
    return np.array([speed, -np.sin(angle)])


def swung(state):
    """A pendulum's angle and speed after 5 seconds, by SciPy's adaptive Runge-Kutta method."""
    solver = scipy.integrate.RK45(swing, 0.0, state, 5.0, rtol=1e-8, atol=1e-10)
    while solver.status == "running":
        solver.step()
    return solver.y


# ------------------------------------------- what only a reduction uses: jax#4968, a language model


def mean_of_sines(x, steps=STEPS):
    """The example of jax#4968: of all that the scan stacks, only the mean is used."""

    def step(c, _):
        y = jnp.sin(c)
        return y, y

    _, ys = lax.scan(step, x, length=steps)
    return ys.mean()


def surprise(words, known):
    """Mean cross-entropy of each next word, by a GRU; words: (n + 1, lanes), each below `known`.

    Source of the cell: Cho et al., "Learning phrase representations using RNN encoder-decoder for
    statistical machine translation", EMNLP 2014.
    """

    def cell(h, word):
        with mal.scope("embed"):
            x = mal.param("w", jax.nn.initializers.normal(1.0), (known, WIDTH))[word]
        seen = jnp.concatenate([x, h], axis=1)
        keep = jax.nn.sigmoid(dense(seen, WIDTH, "keep"))
        reset = jax.nn.sigmoid(dense(seen, WIDTH, "reset"))
        new = jnp.tanh(dense(jnp.concatenate([x, reset * h], axis=1), WIDTH, "new"))
        h = keep * h + (1 - keep) * new
        return h, h

    _, states = lax.scan(cell, jnp.zeros((words.shape[1], WIDTH)), words[:-1])
    return cross_entropy(dense(states, known, "out"), words[1:])  # logits: (n, lanes, known)


def language_reference(length):
    """Python's own, read in lanes, word by word: (length + 1, LANES) numbers of words; how many."""
    text = " ".join(pydoc_data.topics.topics.values())
    words, numbers = np.unique(re.findall(r"\w+|[^\w\s]", text), return_inverse=True)
    lanes = numbers[: len(numbers) // LANES * LANES].reshape(LANES, -1)
    return jnp.asarray(lanes.T[: length + 1]), len(words)


def pushed(fun):
    """The same function; what its scan stacked for a reduction alone is not stacked any more."""
    return mal.optimize(fun, mal.push_up_reductions)


WAYS = {"": lambda fun: fun, ", gradient": jax.grad}


def compiled(fun, *args):
    """A function compiled for such arguments, and the MiB of memory it needs besides them."""
    run = jax.jit(fun).lower(*args).compile()
    needs = run.memory_analysis()
    assert needs is not None, "XLA knows on CPU, where chapters run"
    return run, needs.temp_size_in_bytes / 2**20


def versus_plain(name, fun, args, rounds=3):
    """Rows about a function with its reductions pushed up, and the same as it is written."""
    return [
        row
        for what, of in WAYS.items()
        for row in versus(name + what, of(pushed(fun)), of(fun), args, rounds)
    ]


def versus(name, ours, plain, args, rounds):
    """Rows about two functions that should give the same: their memory, best times and results."""
    (ours, small), (plain, large) = compiled(ours, *args), compiled(plain, *args)
    results = [jax.block_until_ready(run(*args)) for run in (ours, plain)]
    times = [[seconds(run, *args) for run in (ours, plain)] for _ in range(rounds)]
    memory = Row(f"{name}: memory", f"{small:.2f} MiB", f"plain: {large:.2f} MiB", small <= large)
    best = np.min(times, axis=0)
    speed = faster("its time", *best, whose="plain", most=1.5)  # noise is no slowness
    return [memory, speed, close("its result", *results)]


def curves(ways, cases):
    """{curve: [(length, MiB), ...]}, plain and pushed, of cases (length, function, arguments)."""
    return {
        how + what: [(n, compiled(WAYS[what](push(fun)), *args)[1]) for n, fun, args in cases]
        for what in ways
        for how, push in {"plain": lambda fun: fun, "pushed": pushed}.items()
    }


def draw(path, panels):
    """A picture of memory against length; panels: {title: {curve: [(length, MiB), ...]}}."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (title, lines) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for name, points in lines.items():
            color = "tab:orange" if "pushed" in name else "tab:blue"
            style = "--" if "gradient" in name else "-"
            axes.plot(*zip(*points, strict=True), style, marker="o", color=color, label=name)
        axes.set(title=title, xlabel="steps of the scan", ylabel="temporary memory, MiB", ylim=0)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=120)


# ------------------------------------------- the chapters


def digits(steps, console):
    """A recurrent digit classifier, without plumbing"""
    pixels, labels = map(jnp.asarray, load_digits(return_X_y=True))
    images = pixels.reshape(-1, 8, 8) / 16
    unseen = np.arange(len(images)) % 5 == 0
    params = train(images[~unseen], labels[~unseen], steps, console)

    with console.status("comparing with the version by hand"):
        guess = mal.seed(mal.apply(jax.vmap(functools.partial(classify, keep=1.0))))
        guesses = jax.jit(guess)(jax.random.key(1), params, images[unseen]).argmax(-1)
        accuracy = float((guesses == labels[unseen]).mean())

        args = jax.random.key(2), params, images[unseen][:BATCH], labels[unseen][:BATCH]
        hidden, kept, slopes, grads = jax.jit(observe)(*args)
        hidden2, kept2, slopes2, grads2 = jax.jit(observe_by_hand)(*args)

        run = mal.seed(mal.apply(loss))
        flop = jax.jit(count_matmul_flops(run))(*args)
        flop_of_grad = jax.jit(count_matmul_flops(jax.grad(run, argnums=1)))(*args)
        flop2 = BATCH * (8 * 2 * 2 * (8 + HIDDEN) * HIDDEN + 2 * HIDDEN * 10)  # 2*m*k*n each

    return [
        Row("accuracy on unseen digits", f"{accuracy:.1%}", "at least 90%", accuracy >= 0.9),
        close("hidden states (reap)", hidden, hidden2),
        close("d loss / d hidden (cotangents)", slopes, slopes2),
        close("d loss / d parameter (grad)", grads, grads2),
        equal("units dropout kept (next_key)", kept, kept2),
        equal("flop of the loss (15 lines)", flop, flop2),
        equal("flop of its gradient", flop_of_grad, 3 * flop2),
    ]


def routines(steps, console):
    """Routines of SciPy, compiled, mapped and differentiated"""
    random = np.random.default_rng(0)
    orbits = random.uniform(0.1, 3.0, STARTS), random.uniform(0.0, 0.8, STARTS)
    states = (random.uniform(-2.0, 2.0, (STARTS, 2)),)
    with jax.enable_x64(True), console.status("compiling and running SciPy"):
        anomalies, *fast = versus_scipy(anomaly_of, orbits)
        swings, *smooth = versus_scipy(swung, states)
        slope = jax.jit(jax.vmap(jax.grad(mal.autograph(anomaly_of))))(*orbits)
    return [
        close("1,000 roots (optimize.newton)", *anomalies, 1e-10),
        faster("their time", *fast, whose="SciPy"),
        close("d root / d argument (grad)", slope, 1 / kepler_slope(anomalies[1], *orbits), 1e-10),
        close("1,000 swings (integrate.RK45)", *swings, 1e-10),
        faster("their time", *smooth, whose="SciPy"),
    ]


def reductions(steps, console):
    """Reductions pushed up into their scans (jax#4968)"""
    x = jnp.linspace(0.0, 3.0, FLOATS)
    words, known = language_reference(LENGTH)
    loss = functools.partial(surprise, known=known)
    params = mal.init(loss)(jax.random.key(0), words[:2])
    loss = mal.apply(loss)
    with console.status("compiling and running, plain and pushed"):
        rows = [
            *versus_plain("sines", mean_of_sines, (x,), rounds=9),
            *versus_plain("GRU", loss, (params, words)),
        ]
    with console.status("drawing memory against length"):
        quarters = [n // 4 for n in (STEPS, 2 * STEPS, 3 * STEPS, 4 * STEPS)]
        sines = [(n, functools.partial(mean_of_sines, steps=n), (x,)) for n in quarters]
        parts = (LENGTH // 4, LENGTH // 2, LENGTH)
        texts = [(n, loss, (params, words[: n + 1])) for n in parts]
        panels = {
            "the mean of a scan of sines (jax#4968)": curves([""], sines),
            "the loss of a GRU that reads words": curves(WAYS, texts),
        }
        draw(picture := pathlib.Path(PICTURE).absolute(), panels)
    console.print(f"memory against length: {picture}")
    return rows


def versus_scipy(fun, args):
    """(our results, SciPy's), our seconds, SciPy's seconds; we compile, it goes one by one."""
    ours = jax.jit(jax.vmap(mal.autograph(fun)))
    jax.block_until_ready(ours(*args))
    began = time.perf_counter()
    got = jax.block_until_ready(ours(*args))
    between = time.perf_counter()
    expected = np.array([fun(*each) for each in zip(*args, strict=True)])
    return (got, expected), between - began, time.perf_counter() - between


CHAPTERS = [digits, routines, reductions, plain_loops, nothing_hidden, sampled]


def tour(steps=300):
    """Run every chapter and print its report; returns whether all figures agree."""
    console, agree = Console(), True
    for number, chapter in enumerate(CHAPTERS, 1):
        began = time.perf_counter()
        with jax.default_device(jax.devices("cpu")[0]):
            rows = chapter(steps, console)
        took = time.perf_counter() - began
        console.print(report(f"{number}. {chapter.__doc__} ({took:.1f} s)", rows))
        agree = agree and all(row.ok for row in rows)
    console.print("Every figure is as expected." if agree else "[red]A figure is not as expected.")
    return agree
