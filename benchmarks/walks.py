"""How far one walks through the package to follow one call: files entered, switches between them.

    python -m benchmarks.walks [--smoke] [--files]

A switch is a call or a return from a file of ours into another one; a function of JAX or Python
between the two changes nothing. What is imported on the way is not walked through. The numbers
belong to one walk with empty caches, and are exact.
Exit status 1 means that a walk enters more files, or switches more often, than its limit says.
"""

import argparse
import collections
import os
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import malleable as mal
from benchmarks.smoke import add_argument
from malleable import errors

OURS = str(pathlib.Path(mal.__file__).parent)


class Walk(NamedTuple):
    """A call to follow. before, most: (files, switches) when the house was drawn, and at most."""

    name: str
    prepare: Callable[[], Callable[[], Any]]
    before: tuple[int, int]
    most: tuple[int, int]


def collatz():
    def collatz(n):
        steps = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return steps

    return lambda: jax.jit(mal.autograph(collatz))(6)


def push():
    def total(x):
        _, ys = lax.scan(lambda c, row: (c + row, c * row), jnp.zeros(3), x)
        return jnp.sum(ys * 2)

    program = mal.stage(total)(jnp.ones((100, 3))).jaxpr
    return lambda: mal.push_up_reductions(program)


def explain():
    product = jax.jit(lambda x, w: x @ w)
    x, w = jnp.ones((3, 4)), jnp.ones((3, 4))

    def fails():
        with errors.explain():
            product(x, w)

    def run():
        try:
            fails()
        except TypeError as error:
            return error
        raise AssertionError("the product of wrong shapes did not fail")

    return run


def mask():
    def positive(x):
        return x[x > 0].sum()

    x = np.arange(-5.0, 5.0)
    return lambda: mal.jit(positive)(x)


def rule():
    def double(frame, x, **params):
        frame.carry += 1
        return 2 * frame.bind(x)

    def fun(x):
        return lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0]

    walk = mal.interpret(fun, {lax.sin_p: double}, carry=0)
    return lambda: walk(0.5)


WALKS = (
    Walk("jax.jit(mal.autograph(collatz))(6)", collatz, (32, 645), (22, 400)),
    Walk("push_up_reductions of a tail of two equations", push, (26, 1940), (16, 900)),
    Walk("errors.explain of a product of wrong shapes", explain, (43, 396), (24, 250)),
    Walk("mal.jit of two lines with a mask", mask, (61, 1126), (36, 700)),
    Walk("interpret with one rule through a scan", rule, (9, 123), (9, 123)),
)


class Steps:
    """What `sys.setprofile` says of a call: the files of ours it is in, in the order of its way."""

    def __init__(self):
        self.inside: list[str] = []  # files of ours around, outermost first
        self.files: collections.Counter[str] = collections.Counter()
        self.switches = 0
        self.imports = 0  # modules around that are being imported

    def __call__(self, frame, event, _):
        file = frame.f_code.co_filename
        if frame.f_code.co_name == "<module>":
            self.imports += {"call": 1, "return": -1}.get(event, 0)
        if self.imports or not file.startswith(OURS) or event not in ("call", "return"):
            return
        if event == "call":
            self.files[file] += 1
            self.switches += bool(self.inside) and self.inside[-1] != file
            self.inside.append(file)
        elif self.inside and frame.f_code.co_name != "<module>":
            left = self.inside.pop()
            self.switches += bool(self.inside) and self.inside[-1] != left


def walked(walk: Walk) -> Steps:
    run, steps = walk.prepare(), Steps()
    sys.setprofile(steps)
    try:
        run()
    finally:
        sys.setprofile(None)
    return steps


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="how often each file is entered")
    add_argument(parser)
    options = parser.parse_args()
    print(f"{'walk':46} {'files':>6} {'most':>5} {'before':>7} {'switches':>9} {'most':>6} before")
    far = 0
    for walk in WALKS:
        steps = walked(walk)
        found = len(steps.files), steps.switches
        far += any(n > most for n, most in zip(found, walk.most, strict=True))
        (files, switches), (most, often), (were, went) = found, walk.most, walk.before
        print(f"{walk.name:46} {files:6} {most:5} {were:7} {switches:9} {often:6} {went:6}")
        if options.files:
            for file, count in steps.files.most_common():
                print(f"{count:10}  {pathlib.Path(file).relative_to(OURS)}")
    return 0 if options.smoke or not far else 1


if __name__ == "__main__":
    sys.exit(main())
