"""What works with the libraries that people use: 40 functions, each under ten transformations.

    python -m benchmarks.ecosystem [--docs] [--only name] [--skip package ...]

Each function of `benchmarks/ecosystem/functions.py` is interpreted by rules that change nothing,
reaped, optimized, compiled by `jit` and by `autograph`, shown, counted, stepped through, saved and
loaded, to run and to be transformed; results are compared with those of `jax.jit`. A cell says
"ok", or what went wrong. --docs puts the table into docs/ecosystem.md. Exit status 0: every cell of
what is installed is ok.
"""

import argparse
import contextlib
import importlib.metadata
import io
import pathlib
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import malleable as mal
from benchmarks.ecosystem.functions import CASES

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "ecosystem.md"
BEGIN, END = "<!-- ecosystem -->", "<!-- end of ecosystem -->"
DISTRIBUTIONS = {"haiku": "dm-haiku", "jax_md": "jax-md", "flax.linen": "flax", "flax.nnx": "flax"}


class Row(NamedTuple):
    package: str
    name: str
    cells: dict[str, str]  # "ok", or what went wrong, by transformation; none: not installed
    reason: str  # why the case was not made
    seconds: float


def same(frame, *args, **params):
    return frame.bind(*args)


def interpreted(fun: Callable, args: tuple) -> Any:
    return mal.interpret(fun, {}, default=same)(*args)[0]


def compiled(fun: Callable, args: tuple) -> Any:
    made = mal.jit(fun)
    made(*args)
    return made(*args)  # the second call is that of a program known


def shown(fun: Callable, args: tuple) -> None:
    file = io.StringIO()
    mal.show(fun, file=file, width=100)(*args)
    assert ".py:" in file.getvalue(), "no line of the user's is named"


def counted(fun: Callable, args: tuple) -> None:
    assert mal.cost(fun)(*args).flops > 0, "no flop"


def stepped(fun: Callable, args: tuple) -> Any:
    session = mal.step(fun)(*args)
    session.cont()
    return session.result


def kept(fun: Callable, args: tuple) -> Any:
    """As a file that can be transformed. What it has of a namedtuple is a type of its own."""
    return by_leaves(fun, args, transformable=True)


def kept_to_run(fun: Callable, args: tuple) -> Any:
    return by_leaves(fun, args)


def by_leaves(fun: Callable, args: tuple, **options) -> Any:
    """Saved and loaded as a function of leaves, since no file has the classes of a library."""
    leaves, tree = jax.tree.flatten(args)
    flat = lambda *leaves: jax.tree.leaves(fun(*jax.tree.unflatten(tree, leaves)))
    with tempfile.TemporaryDirectory() as folder:
        mal.save(f"{folder}/f.mal", flat, *leaves, **options)
        return jax.tree.unflatten(
            jax.tree.structure(jax.eval_shape(fun, *args)), mal.load(f"{folder}/f.mal")(*leaves)
        )


WAYS: dict[str, Callable[[Callable, tuple], Any]] = {
    "interpret": interpreted,
    "reap": lambda fun, args: mal.reap(fun)(*args)[0],
    "optimize": lambda fun, args: mal.optimize(fun)(*args),
    "jit": compiled,
    "autograph": lambda fun, args: mal.autograph(fun)(*args),
    "show": shown,
    "cost": counted,
    "step": stepped,
    "save, load": kept_to_run,
    "transformable": kept,
}


def agree(got: Any, wanted: Any) -> None:
    """Raise AssertionError unless two pytrees have one structure, types and, nearly, values."""
    one, other = jax.tree.flatten(got), jax.tree.flatten(wanted)
    assert one[1] == other[1], "another structure"
    for a, b in zip(map(plain, one[0]), map(plain, other[0]), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape, f"{a.dtype}{a.shape}, {b.dtype}{b.shape}"
        assert np.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True), "another value"


def plain(x: Any) -> np.ndarray:
    keys = isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(x) if keys else x)


def tried(way: Callable, fun: Callable, args: tuple, wanted: Any) -> str:
    """ "ok", or the first line of what went wrong."""
    try:
        got = way(fun, args)
        if got is not None:
            agree(got, wanted)
    except Exception as error:  # a report: whatever it is goes into the table
        return f"{type(error).__name__}: {error}".partition("\n")[0][:160]
    return "ok"


def row(name: str, package: str, make: Callable) -> Row:
    begun = time.perf_counter()
    try:
        fun, args = make()
        wanted = jax.jit(fun)(*args)
    except Exception as error:  # not installed, or not for this version of JAX
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        return Row(package, name, {}, reason, time.perf_counter() - begun)
    with contextlib.redirect_stdout(io.StringIO()):
        cells = {way: tried(do, fun, args, wanted) for way, do in WAYS.items()}
    return Row(package, name, cells, "", time.perf_counter() - begun)


def rows(only: str = "", skip: tuple[str, ...] = ()) -> list[Row]:
    out = []
    for (package, name), make in CASES.items():
        if only in f"{package} {name}" and package not in skip:
            print(f"{package}: {name}", file=sys.stderr)
            out.append(row(name, package, make))
    return out


def version(package: str) -> str:
    try:
        return importlib.metadata.version(DISTRIBUTIONS.get(package, package))
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def table(found: list[Row]) -> list[str]:
    head = ["library", "function", *WAYS]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    reasons: list[str] = []
    for r in found:
        cells = [cell(r.cells.get(way, ""), reasons) for way in WAYS]
        if r.reason:
            reasons.append(r.reason)
            cells = [f"not run ({len(reasons)})", *[""] * (len(WAYS) - 1)]
        lines.append(f"| {r.package} | {r.name} | {' | '.join(cells)} |")
    return lines + ([""] + [f"{i}. {told(r)}" for i, r in enumerate(reasons, 1)] if reasons else [])


def cell(said: str, reasons: list[str]) -> str:
    if said in ("ok", ""):
        return said
    reasons.append(said)
    return f"**no** ({len(reasons)})"


def told(reason: str) -> str:
    return "`" + reason.replace("`", "'") + "`"


def report(found: list[Row]) -> str:
    ran = [r for r in found if r.cells]
    good = sum(c == "ok" for r in ran for c in r.cells.values())
    packages = dict.fromkeys(DISTRIBUTIONS.get(r.package, r.package) for r in ran)
    versions = ", ".join(f"{p} {version(p)}" for p in packages)
    first = (
        f"JAX {jax.__version__}, CPU: {len(ran)} functions of {len(packages)} libraries, {good} of "
        f"{len(ran) * len(WAYS)} cells ok. Made by `make ecosystem DOCS=--docs`, with {versions}."
    )
    return "\n".join([first, "", *table(found)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--docs", action="store_true", help="put the table into docs/ecosystem.md")
    parser.add_argument("--only", default="", help="functions whose library or name has this in it")
    parser.add_argument("--skip", nargs="*", default=(), help="libraries to leave out")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of the libraries: this is about results
    found = rows(options.only, tuple(options.skip))
    print(text := report(found))
    if options.docs:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}")
    return 0 if all(c == "ok" for r in found for c in r.cells.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
