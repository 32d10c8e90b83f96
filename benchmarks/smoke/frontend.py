"""Two cases in the form of ../shared/cases/frontend.py, for `benchmarks.cases --smoke`."""

import dataclasses
import pkgutil
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass
class Case:
    name: str
    path: str
    inputs: tuple
    call: Callable = lambda fun, *args: fun(*args)
    jit: tuple = (0,)
    grad: int | None = 0
    diff: str = "easy"
    rtol: float = 1e-6
    atol: float = 1e-9

    def load(self):
        return pkgutil.resolve_name(self.path)

    def traced(self):
        return tuple(self.inputs[i] for i in self.jit)

    def merge(self, traced):
        return tuple(dict(zip(self.jit, traced)).get(i, x) for i, x in enumerate(self.inputs))


def root(fun, a):
    return fun(lambda x: x * x - a, 1.0)


CASES = [
    Case("trapezoid", "numpy:trapezoid", (np.linspace(0.0, 1.0, 5) ** 2,)),
    Case("secant", "scipy.optimize:newton", (np.float64(2.0),), root, grad=None),
]


def reference(case):
    return case.call(case.load(), *case.inputs)


def compare(got, expected, rtol, atol):
    np.testing.assert_allclose(got, expected, rtol, atol)


def kink(case):
    return 0.0


def fd_grad(case, h=1e-6):
    """Central differences by the numbers of the first input."""
    (x,) = case.inputs
    total = lambda x: np.sum(case.call(case.load(), x))
    return np.array([(total(x + e) - total(x - e)) / (2 * h) for e in h * np.eye(len(x))])
