"""Run a jaxpr through NumPy: `numpy_function(closed)` is a function, written out in `.source`.

No compilation, and any size that was traced as a symbol: for regions too small, or too often of a
new size, to be worth XLA's time. What cannot be done exactly as XLA does raises Unsupported.
"""

import dataclasses
import itertools
import linecache
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from malleable import compat
from malleable.execution.common.breaks import Unsupported
from malleable.execution.common.denormals import refuse_denormals
from malleable.execution.common.host_values import QUIET
from malleable.execution.numpy import (  # noqa: F401  the rules in them
    control,
    indexing,
    library,
    random,
    reductions,
    rules,
    shapes,
)
from malleable.execution.numpy.names import FUNCTIONS, NAMES
from malleable.execution.numpy.writer import Writer, dtype_of, numpy_rule, tuple_of
from malleable.programs.types import is_key

__all__ = ["NumpyFunction", "numpy_function", "numpy_rule"]


@dataclasses.dataclass(frozen=True)
class NumpyFunction:
    """A program as a function: run(*arrays of NumPy) -> tuple of such. Call it with any array."""

    source: str
    run: Callable
    dtypes: tuple

    def __call__(self, *arrays) -> tuple:
        return QUIET.run(self.converted, arrays)

    def converted(self, arrays) -> tuple:
        given = [
            x if type(x) is np.ndarray and x.dtype == dtype else _asarray(x, dtype)
            for x, dtype in zip(arrays, self.dtypes, strict=True)
        ]
        return self.run(*given)


_asarray = np.asarray


def numpy_function(closed: compat.Jaxpr) -> NumpyFunction:
    """The program as NumPy code. Raises Unsupported, naming what has none.

    >>> import jax
    >>> import jax.numpy as jnp
    >>> f = numpy_function(jax.make_jaxpr(lambda x: jnp.tanh(x) * 2)(1.0))
    >>> print(f.source)
    import numpy as np
    <BLANKLINE>
    <BLANKLINE>
    def region(a):
        return (np.tanh(a) * 2.0,)
    """
    for v in (*closed.jaxpr.invars, *closed.jaxpr.outvars):
        if is_key(v.aval):
            raise Unsupported("random keys go in or out")
    if closed.effects:
        raise Unsupported("a side effect")
    refuse_denormals()
    program = closed.jaxpr
    w = Writer(_symbols(program.invars))
    names = [w.new_name() for _ in program.invars]
    args = [w.named(v.aval, name) for v, name in zip(program.invars, names, strict=True)]
    _read_sizes(w, args)
    outs = w.inline(closed, args)
    w.line(f"return {tuple_of(map(w.owned, outs))}")
    source, run = _compiled(w, names)
    dtypes = tuple(dtype_of(v.aval) for v in program.invars)
    return NumpyFunction(source, run, dtypes)


def _symbols(invars: Sequence) -> list[str]:
    dims = (d for v in invars for d in v.aval.shape if not isinstance(d, int))
    return list(dict.fromkeys(w for d in dims for w in re.findall(r"[A-Za-z_]\w*", str(d))))


def _read_sizes(w: Writer, args: Sequence) -> None:
    """The symbolic sizes, from the shapes of the arguments."""
    for x in args:
        for axis, d in enumerate(x.shape):
            name = str(d)
            if name in w.symbols and name not in w.sizes:
                w.line(f"{w.symbols[name]} = {x.text}.shape[{axis}]")
                w.sizes.add(name)


def _compiled(w: Writer, names: Sequence[str]) -> tuple[str, Callable]:
    body = [f"{'    ' * depth}{text}" for depth, text in without_dead(w.lines)]
    used = set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", "\n".join(body)))
    head = ["import numpy as np"]
    if "special" in used:
        head.append("from scipy import special")
    if "bfloat16" in used:
        head.append("from ml_dtypes import bfloat16")
    for module in dict.fromkeys(f.__module__ for f in FUNCTIONS.values()):
        own = sorted(n for n in used if n in FUNCTIONS and FUNCTIONS[n].__module__ == module)
        if own:
            head.append(f"from {module} import {', '.join(own)}")
    consts = [f"# {n}: {_description(c)}" for n, c in w.globals.items() if n in used]
    lines = [*head, *consts, "", "", f"def region({', '.join(names)}):", *body]
    source = "\n".join(lines)
    space: dict[str, Any] = NAMES | w.globals
    file = f"<malleable numpy {next(_numbers)}>"
    exec(compile(source, file, "exec"), space)
    linecache.cache[file] = len(source), None, source.splitlines(True), file
    return source, space["region"]


_numbers = itertools.count(1)


def _description(x) -> str:
    return f"{x.dtype}{list(np.shape(x))}"


def without_dead(lines: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
    """The lines, each name deleted after its last use: large arrays go as early as they can."""
    assigned = {n for depth, text in lines if depth == 1 for n in _assigned_names(text)}
    last: dict[str, int] = {}
    for i, (_, text) in enumerate(lines):
        last.update(dict.fromkeys(assigned.intersection(_WORDS.findall(text)), i))
    dead: dict[int, list[str]] = {}
    for name, i in last.items():
        while i + 1 < len(lines) and _goes_on(*lines[i + 1]):
            i += 1
        dead.setdefault(i, []).append(name)
    out = []
    for i, line in enumerate(lines):
        out.append(line)
        if i in dead and i < len(lines) - 2:
            out.append((1, f"del {', '.join(sorted(dead[i]))}"))
    return out


def _goes_on(depth: int, text: str) -> bool:
    """Whether a line is part of a loop or a branch that began before."""
    return depth > 1 or text.startswith(("else:", "elif "))


def _assigned_names(text: str) -> list[str]:
    left, equals, _ = text.partition(" = ")
    return _WORDS.findall(left) if equals and _TARGETS.fullmatch(left) else []


_WORDS = re.compile(r"(?<![\w.])[a-z]+\b(?!\()")
_TARGETS = re.compile(r"[a-z]+(, [a-z]+)*,?")
