"""The form of a program that `jax.jit` rejects: as shared/cases/selective.py has them."""

import jax
import numpy as np


class Prog:
    """One computation, written three times, with its inputs by seed."""

    def __init__(self, make, eager, numpy, hand, why, tol=2e-3):
        self.name, self.make, self.why, self.tol = eager.__name__, make, why, tol
        self.eager, self.numpy, self.hand = eager, numpy, hand


def programs(*some):
    return {program.name: program for program in some}


def bucket(n, least=16):
    """The next of 2^k, 1.25 * 2^k, 1.5 * 2^k, 1.75 * 2^k."""
    n = max(int(n), least)
    power = 1 << (n - 1).bit_length()
    return next(int(power * q) for q in (0.625, 0.75, 0.875, 1.0) if n <= power * q)


def padded(x, size, fill=0):
    """A NumPy copy of x whose first axis is filled up to `size`."""
    x = np.asarray(x)
    out = np.full((size, *x.shape[1:]), fill, x.dtype)
    out[: len(x)] = x
    return out


def to_np(tree):
    return jax.tree.map(lambda v: np.asarray(v) if isinstance(v, jax.Array) else v, tree)


def block(out):
    return jax.block_until_ready(out)


def agree(program, one, other):
    """Whether two results have the same leaves, up to the tolerance of the program."""
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
    if len(leaves) != len(others):
        return False
    for a, b in zip(leaves, others):
        if isinstance(a, str) or isinstance(b, str):
            same = a == b
        else:
            a, b = np.asarray(a), np.asarray(b)
            same = a.shape == b.shape and np.allclose(a, b, program.tol, program.tol, True)
        if not same:
            return False
    return True
