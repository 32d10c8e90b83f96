"""A long run of `mal.jit`: many sizes, many calls, several threads; memory stays bounded.

    python -m benchmarks.selective_soak [--sizes 1000] [--calls 200000] [--threads 4]
    python -m benchmarks.selective_soak --calls 2000 --sizes 100        # a quick one
    python -m benchmarks.selective_soak --smoke

Three functions whose sizes depend on values are called with vectors of as many lengths as asked.
One call in `--compare` (default 500) is compared with the plain function. Prints calls, memory of
the process (RSS) and executables over time. Exit status 0 means: nothing differed, nothing raised,
and memory grew by no more than `--most` MiB (default 2500).
"""

import argparse
import collections
import os
import sys
import threading
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

import malleable as mal
from benchmarks.ratios import status
from benchmarks.smoke import add_argument, size

LONGEST = 5_000


# ---------------------------------------------------------------- what is called


def kept_share(x, t):
    """A mask, then statistics of what it keeps."""
    s = jnp.abs(x)
    z = x[s > s.mean() + t * s.std()]
    if z.shape[0] < 2:
        return jnp.float32(0), jnp.float32(0), z.shape[0]
    z = (z - z.mean()) / (z.std() + 1e-3)
    return jnp.tanh(z).mean(), (z * z).sum() / z.shape[0], z.shape[0]


def groups(x, t):
    """Unique keys, sums per key, and a loop over the largest of them."""
    keys = jnp.floor(x * 4).astype(jnp.int32)
    found, inverse = jnp.unique(keys, return_inverse=True)
    sums = jax.ops.segment_sum(x, inverse, found.shape[0])
    total, rounds = 0.0, 0
    for e in jnp.sort(sums)[-3:]:
        if float(e) < float(t):
            break
        total += float(e)
        rounds += 1
    return found[:3], total, rounds


def halved(x, t):
    """A loop that ends by a value, over an array that shrinks."""
    steps = 0
    while x.shape[0] > 8 and float(jnp.max(x) - jnp.min(x)) > 0.5:
        x = jnp.sort(x)[x.shape[0] // 4 : -(x.shape[0] // 4)]
        steps += 1
    return x[:4] + t, steps


FUNCTIONS = (kept_share, groups, halved)


def arguments(size, seed):
    rng = np.random.default_rng(seed)
    # no two numbers are close, and none is close to a key's border: rounding decides nothing
    x = rng.permutation(np.linspace(-2, 2, size, dtype=np.float32) * 0.97 + 0.013)
    return jnp.asarray(x), jnp.float32(rng.uniform(0.2, 0.8))


# ---------------------------------------------------------------- threads


class Run:
    """What the threads share: how many calls are left, and what went wrong."""

    def __init__(self, options):
        self.options, self.left, self.done = options, options.calls, 0
        self.lock, self.wrong = threading.Lock(), collections.Counter()
        self.compared = 0
        self.sizes = np.unique(np.geomspace(20, LONGEST, 4 * options.sizes).astype(int))
        picks = np.linspace(0, len(self.sizes) - 1, options.sizes).astype(int)
        self.sizes = np.unique(self.sizes[picks])
        if len(self.sizes) < options.sizes:
            self.sizes = np.arange(20, 20 + options.sizes)
        self.functions = [(fun, mal.jit(fun)) for fun in FUNCTIONS]

    def next(self):
        with self.lock:
            if self.left <= 0:
                return None
            self.left -= 1
            self.done += 1
            return self.done

    def work(self):
        while (number := self.next()) is not None:
            fun, jitted = self.functions[number % len(self.functions)]
            size = int(self.sizes[number * 7919 % len(self.sizes)])
            args = arguments(size, number % 50)
            try:
                got = jax.block_until_ready(jitted(*args))
                if number % self.options.compare == 0:
                    self.check(fun, args, got, size)
            except Exception as error:  # counted, and the run goes on
                line = next(iter(str(error).splitlines()), "")
                self.count(f"{fun.__name__}, size {size}: {type(error).__name__}: {line}"[:200])

    def check(self, fun, args, got, size):
        wanted = fun(*args)
        with self.lock:
            self.compared += 1
        same = jax.tree.structure(got) == jax.tree.structure(wanted) and all(
            np.shape(a) == np.shape(b) and np.allclose(a, b, 2e-3, 2e-3)
            for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted))
        )
        if not same:
            self.count(f"{fun.__name__}, size {size}: {got} instead of {wanted}"[:300])

    def count(self, what):
        with self.lock:
            self.wrong[what] += 1


def soak(options):
    """Run the threads, print a line now and then; (the run, MiB in the beginning, MiB at most)."""
    run = Run(options)
    threads = [threading.Thread(target=run.work, daemon=True) for _ in range(options.threads)]
    begun, before = time.monotonic(), status("VmRSS") / 2**20
    most = before
    print(f"{len(run.sizes)} sizes of {run.sizes[0]} to {run.sizes[-1]}, {options.threads} threads")
    print(f"{'s':>7} {'calls':>9} {'RSS, MiB':>9} {'compared':>9} {'wrong':>6}")

    def line():
        seconds = time.monotonic() - begun
        wrong = sum(run.wrong.values())
        print(
            f"{seconds:7.0f} {run.done:9} {rss:9.0f} {run.compared:9} {wrong:6}",
            flush=True,
        )

    for thread in threads:
        thread.start()
    said, rss = 0.0, before
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.2)
        rss = status("VmRSS") / 2**20
        most = max(most, rss)
        if time.monotonic() - said > options.every:
            said = time.monotonic()
            line()
    line()
    return run, before, most


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, default=size(1_000, 3))
    parser.add_argument("--calls", type=int, default=size(200_000, 60))
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--compare", type=int, default=size(500, 10), help="one call in so many")
    parser.add_argument("--every", type=float, default=10.0, help="seconds between lines")
    parser.add_argument("--most", type=float, default=2_500.0, help="MiB")
    add_argument(parser)
    options = parser.parse_args()
    run, before, most = soak(options)
    for what, count in run.wrong.most_common(10):
        print(f"{count} x {what}")
    bounded = most - before <= options.most
    print(f"{'PASS' if bounded else 'FAIL'}  {most - before:.0f} MiB <= {options.most:.0f}")
    print(f"{'FAIL' if run.wrong else 'PASS'}  {sum(run.wrong.values())} of {run.done} calls wrong")
    return 0 if bounded and not run.wrong else 1


if __name__ == "__main__":
    sys.exit(main())
