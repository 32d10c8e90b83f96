"""The kernels of `pairwise_workloads` by others: pykeops, and torch.compile where it installs."""

import importlib.util
import os
import warnings

import numpy as np

from benchmarks import pairwise_workloads as ours

PYKEOPS = importlib.util.find_spec("pykeops") is not None
TORCH = importlib.util.find_spec("torch") is not None
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # idle threads would slow down the others
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("KMP_BLOCKTIME", "0")
os.environ.setdefault("KEOPS_VERBOSE", "0")
if PYKEOPS:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that there is no CUDA
        import pykeops.numpy as keops
if TORCH:
    import torch


def peers(workload, kind, args, weights):
    """{name of a library: call} of those that can run this workload; `weights` as in `gradient`."""
    found = {}
    if PYKEOPS and (make := KEOPS.get((workload.plain, kind))):
        found["pykeops"] = make(*(np.asarray(a) for a in args), weights)
    if TORCH and workload.plain in TORCHED:
        found["torch"] = torched(TORCHED[workload.plain], kind, args, weights)
    return found


# ---------------------------------------------------------------- pykeops

X, Y, B = "x = Vi(3)", "y = Vj(3)", "b = Vj(1)"


def keops_gaussian(x, y, b, _):
    run = keops.Genred("Exp(-SqDist(x, y)) * b", [X, Y, B], "Sum", axis=1)
    return lambda: run(x, y, b)


def keops_gaussian_gradient(x, y, b, e):
    """By x, y and b: three sums."""
    formula, names = "Grad(Exp(-SqDist(x, y)) * b, {}, e)", [X, Y, B, "e = Vi(1)"]
    by = {v: keops.Genred(formula.format(v), names, "Sum", axis=int(v == "x")) for v in "xyb"}
    return lambda: tuple(run(x, y, b, e) for run in by.values())


def keops_logsumexp(x, y, _):
    run = keops.Genred("-SqDist(x, y)", [X, Y], "LogSumExp", axis=1)
    return lambda: run(x, y)[:, 0]


def keops_logsumexp_gradient(x, y, e):
    """By x and y, of the result l that has to be known first."""
    weight, names = "e * Exp(-SqDist(x, y) - l) * IntCst(2) * ", [X, Y, "e = Vi(1)", "l = Vi(1)"]
    first = keops.Genred("-SqDist(x, y)", [X, Y], "LogSumExp", axis=1)
    by_x = keops.Genred(f"{weight}(y - x)", names, "Sum", axis=1)
    by_y = keops.Genred(f"{weight}(x - y)", names, "Sum", axis=0)
    e = e.reshape(-1, 1)

    def call():
        result = first(x, y)
        return by_x(x, y, e, result), by_y(x, y, e, result)

    return call


def keops_nearest(x, y, _):
    run = keops.Genred("SqDist(x, y)", [X, Y], "ArgMin", axis=1)
    return lambda: run(x, y)[:, 0].astype(np.int32)


KEOPS = {
    (ours.gaussian, "forward"): keops_gaussian,
    (ours.gaussian, "gradient"): keops_gaussian_gradient,
    (ours.pairwise_logsumexp, "forward"): keops_logsumexp,
    (ours.pairwise_logsumexp, "gradient"): keops_logsumexp_gradient,
    (ours.nearest, "forward"): keops_nearest,
}


# ---------------------------------------------------------------- torch.compile


def torch_distances(x, y):
    return ((x[:, None] - y[None]) ** 2).sum(-1)


TORCHED = {
    ours.gaussian: lambda x, y, b: (torch.exp(-torch_distances(x, y)) * b[:, 0]).sum(1)[:, None],
    ours.pairwise_logsumexp: lambda x, y: torch.logsumexp(-torch_distances(x, y), 1),
    ours.nearest: lambda x, y: torch.argmin(torch_distances(x, y), 1).to(torch.int32),
}


def torched(fun, kind, args, weights):
    tensors = [torch.tensor(np.asarray(a), requires_grad=kind == "gradient") for a in args]
    run = torch.compile(fun)
    if kind == "forward":
        return lambda: run(*tensors).numpy()
    weights = torch.tensor(weights)

    def call():
        total = (run(*tensors) * weights).sum()
        return tuple(g.numpy() for g in torch.autograd.grad(total, tensors))

    return call
