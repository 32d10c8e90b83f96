"""Array sizes as symbols: a region traced once for all sizes, and the buckets they are put in."""

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from malleable import compat
from malleable.execution.common.breaks import Unsupported
from malleable.python_source.files import parse

LEAST = 2  # a symbol stands for this size or more: 0 and 1 broadcast, so they run exactly
LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Symbolic:
    """A region traced over symbolic sizes.

    `dynamic` says which (leaf, axis) has which symbol; `apart` are the pairs of sizes that the
    trace took as different, as text: at sizes where a pair is equal this is another program.
    """

    jaxpr: compat.Jaxpr
    out_tree: Any
    dynamic: Mapping[tuple[int, int], str]
    apart: tuple[tuple[str, str], ...]

    @functools.cached_property
    def symbols(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.dynamic.values()))

    @functools.cached_property
    def texts(self) -> tuple[str, ...]:
        """Every symbolic size in the program."""
        return tuple(sorted(size_texts(self.jaxpr)))

    def sizes(self, arrays: Sequence) -> dict[str, int]:
        """{symbol: size} of these arguments; Unsupported where the trace does not hold for them."""
        found: dict[str, int] = {}
        for (leaf, axis), name in self.dynamic.items():
            size = arrays[leaf].shape[axis]
            if found.setdefault(name, size) != size:
                raise Unsupported(f"sizes {found[name]} and {size} where the trace has one")
        return self.checked(found)

    def checked(self, found: dict[str, int]) -> dict[str, int]:
        if small := [size for size in found.values() if size < LEAST]:
            raise Unsupported(f"size {small[0]} runs exactly")
        compared = tuple(text for pair in self.apart for text in pair)
        values = size_values(compared, self.symbols)(found)
        for i in range(0, len(values), 2):
            if values[i] == values[i + 1]:
                raise Unsupported(f"the program compares {compared[i]} with {compared[i + 1]}")
        return found

    def flat_sizes(self, found: dict[str, int]) -> list[int]:
        """The value of every size in `texts`."""
        values = size_values(self.texts, self.symbols)(found)
        if any(not 0 <= v <= LARGEST for v in map(abs, values)):
            raise Unsupported("a size does not fit 32 bits")
        return list(values)


def trace_symbolic(
    fun: Callable, avals: Sequence, dynamic: Mapping[tuple[int, int], str]
) -> Symbolic:
    """Trace `fun(*leaves)` with a symbol for the size of each (leaf, axis) in `dynamic`.

    Raises Unsupported, with JAX's reason, where the trace needs the size itself.

    >>> avals = [jax.ShapeDtypeStruct((7, 3), "float32")]
    >>> symbolic = trace_symbolic(lambda x: x.sum(0) / x.shape[0], avals, {(0, 0): "n"})
    >>> symbolic.texts
    ('n',)
    """
    names = tuple(dict.fromkeys(dynamic.values()))
    symbols = compat.symbols(names, LEAST)
    specs = []
    for leaf, aval in enumerate(avals):
        axes = range(len(aval.shape))
        shape = [symbols.get(dynamic.get((leaf, i), ""), aval.shape[i]) for i in axes]
        weak = getattr(aval, "weak_type", False)
        specs.append(jax.ShapeDtypeStruct(tuple(shape), aval.dtype, weak_type=weak))
    try:
        with compat.told_apart(symbols.values()) as apart, jax.disable_jit(False):
            jaxpr, out = jax.make_jaxpr(fun, return_shape=True)(*specs)
    except Exception as error:  # whatever the user's code makes of a symbol: it ran with a number
        first = next(iter(str(error).splitlines()), "")
        raise Unsupported(f"{type(error).__name__}: {first}") from error
    return Symbolic(jaxpr, jax.tree.structure(out), dict(dynamic), tuple(sorted(apart)))


def equal_sizes(arrays: Sequence) -> tuple[tuple[int, ...], ...]:
    """Which axes share a size: for each array, for each axis, the number of its class.

    >>> equal_sizes([np.zeros((3, 5)), np.zeros(5)])
    ((0, 1), (1,))
    """
    classes: dict[int, int] = {}
    shapes = (getattr(x, "shape", ()) for x in arrays)
    return tuple(tuple(classes.setdefault(d, len(classes)) for d in shape) for shape in shapes)


# ---------------------------------------------------------------- buckets


@functools.lru_cache(maxsize=4096)
def bucket_size(n: int, ratio: float = 1.25, minimum: int = 16) -> int:
    """The smallest bucket that holds n: twice the last one below 128, `ratio` times from there.

    A compilation costs as much as thousands of runs on arrays that small.

    >>> [bucket_size(n) for n in (3, 16, 17, 100, 129, 1000)]
    [16, 16, 32, 128, 160, 1164]
    """
    size = minimum
    while size < n:
        size = 2 * size if size < 128 else max(size + 4, int(size * ratio) // 4 * 4)
    return size


def pad_to(array: np.ndarray, axes: Sequence[int], sizes: Sequence[int]) -> np.ndarray:
    """`array` at the start of zeros that have these sizes along these axes."""
    shape = list(array.shape)
    for axis, size in zip(axes, sizes, strict=True):
        shape[axis] = size
    if tuple(shape) == array.shape:
        return array
    padded = np.zeros(shape, array.dtype)
    padded[tuple(map(slice, array.shape))] = array
    return padded


# ---------------------------------------------------------------- sizes as text


def is_symbolic(dim) -> bool:
    return isinstance(dim, compat.SymbolicSize)


def same_size(a, b) -> bool:
    """Whether two sizes are equal, numbers or symbols both."""
    return is_symbolic(a) == is_symbolic(b) and a == b


def size_texts(jaxpr: compat.Jaxpr) -> set[str]:
    """Every symbolic size in a program, at any depth, as text."""
    program, found = jaxpr.jaxpr, set()
    atoms = [*program.constvars, *program.invars, *(v for e in program.eqns for v in e.outvars)]
    for atom in atoms:
        found.update(_texts(getattr(atom.aval, "shape", ())))
    for eqn in program.eqns:
        found.update(_texts(tuple(eqn.params.values())))
        for body in compat.bodies(eqn.params):
            found |= size_texts(body)
    return found


def _texts(x) -> set[str]:
    if is_symbolic(x):
        return {str(x)}
    if isinstance(x, dict):
        x = tuple(x.values())
    return set().union(*map(_texts, x)) if isinstance(x, tuple | list) else set()


@functools.lru_cache(maxsize=1024)
def size_values(texts: tuple[str, ...], symbols: tuple[str, ...]) -> Callable[[dict], tuple]:
    """A function {symbol: size} -> the values of these texts."""
    parts = "".join(f"{_python(text)}, " for text in texts)
    made = eval(f"lambda {', '.join(symbols)}: ({parts})", dict(_OPERATIONS))
    return lambda sizes: made(**sizes)


def _python(text: str) -> str:
    return text.replace("^", "**")


_OPERATIONS = {
    "__builtins__": {},
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "max": max,
    "min": min,
}


def size_room(text: str, rooms: Mapping[str, int]) -> int:
    """An upper bound of a size while each symbol is between LEAST and its room."""
    tree = parse(_python(text), mode="eval").body
    _, high = _bounds(tree, rooms)
    return max(high, 0)


def _bounds(node, rooms) -> tuple[int, int]:
    match node:
        case ast.Constant(value=int(value)):
            return value, value
        case ast.Name(id=name):
            return min(LEAST, rooms[name]), rooms[name]
        case ast.UnaryOp(op=ast.USub(), operand=x):
            low, high = _bounds(x, rooms)
            return -high, -low
        case ast.BinOp(left=x, op=op, right=y):
            return _bounds_of_operator(op, _bounds(x, rooms), _bounds(y, rooms))
        case ast.Call(func=ast.Name(id=name), args=[x, y]):
            return _bounds_of_call(name, _bounds(x, rooms), _bounds(y, rooms))
    raise Unsupported(f"the size {ast.unparse(node)}")


def _bounds_of_operator(op, x, y) -> tuple[int, int]:
    match op:
        case ast.Add():
            return x[0] + y[0], x[1] + y[1]
        case ast.Sub():
            return x[0] - y[1], x[1] - y[0]
        case ast.Mult():
            ends = [a * b for a in x for b in y]
            return min(ends), max(ends)
        case ast.Pow() if x[0] >= 0 and y[0] >= 0:
            return x[0] ** y[0], x[1] ** y[1]
    raise Unsupported("an operator of sizes")


def _bounds_of_call(name, x, y) -> tuple[int, int]:
    match name:
        case "max":
            return max(x[0], y[0]), max(x[1], y[1])
        case "min":
            return min(x[0], y[0]), min(x[1], y[1])
        case "floordiv" if y[0] > 0:
            ends = [a // b for a in x for b in y]
            return min(ends), max(ends)
        case "mod" if y[0] > 0:
            return 0, y[1] - 1
    raise Unsupported(f"{name} of sizes")
