"""A program in a few lines: what runs in which loop, and a digest of all the rest.

Nothing in them depends on the version of JAX where the program does not, on the names of functions,
on files or on addresses.
"""

import collections
import enum
import hashlib
import math

import jax
import numpy as np

from malleable import compat

RENAMED = {"pjit": "jit", "remat2": "checkpoint", "remat": "checkpoint"}
LOOPS = ("scan", "while", "cond")
COMBINED = ("scatter", "reduce", "argm")  # with a program for two numbers
WHOLE = False  # whether an outline has the program itself, to compare two of them
# How a call is written, which is no part of what it computes; what is nothing is left out, too.
SPELLING = {"name", "sharding", "out_sharding", "jvp_jaxpr_fun", "jvp_jaxpr_thunk", "policy"}
SPELLING |= {"fwd_jaxpr_thunk", "bwd", "out_trees", "linear", "inline", "keep_unused", "debug"}
NOTHING = (None, False, (), "", [])


def outline(jaxpr: compat.Jaxpr) -> str:
    """`scan[64]: add 2, exp` for the program and below it for each loop; calls are part of it."""
    first = f"{total(jaxpr)} eqns, digest {digest(jaxpr)}, largest {largest(jaxpr)}"
    return "\n".join([first, *bodies_of("program", jaxpr, ""), *whole(jaxpr)])


def brief(jaxpr: compat.Jaxpr) -> str:
    """The same in one line: how many equations are in which loop."""
    first = f"{nested(jaxpr)}, largest {largest(jaxpr)}, digest {digest(jaxpr)}"
    return "\n".join([first, *whole(jaxpr)])


def whole(jaxpr):
    return spelled(jaxpr) if WHOLE else ()


def nested(jaxpr: compat.Jaxpr) -> str:
    counts, inner = level(jaxpr)
    some = [f"{name}({', '.join(map(nested, parts))})" for name, parts in inner]
    some = [s if n == 1 else f"{n} x {s}" for s, n in collections.Counter(some).items()]
    return " ".join([str(sum(counts.values())), *some])


def bodies_of(name, jaxpr, pad):
    counts, inner = level(jaxpr)
    words = [f"{k} {n}" if n > 1 else k for k, n in sorted(counts.items())]
    yield f"{pad}{name}: {', '.join(words) or '-'}"
    blocks = []
    for part, bodies in inner:
        labels = [part] if len(bodies) == 1 else [f"{part} {i}" for i in range(len(bodies))]
        blocks.append([x for n, b in zip(labels, bodies) for x in bodies_of(n, b, f"{pad}  ")])
    for block, n in collections.Counter(map(tuple, blocks)).items():
        yield block[0] if n == 1 else block[0].replace(":", f" x {n}:", 1)
        yield from block[1:]


def level(jaxpr):
    """(counter of the primitives, [(loop, its bodies)]) of a program; calls are looked into."""
    counts, inner = collections.Counter(), []
    for eqn in jaxpr.eqns:
        name, bodies = primitive(eqn), compat.bodies(eqn.params)
        if not bodies or name.startswith(COMBINED):
            counts[name] += 1
        elif name in ("jit", "closed_call"):
            more, below = level(bodies[0])
            counts, inner = counts + more, inner + below
        elif name in LOOPS:
            length = f"[{eqn.params['length']}]" if name == "scan" else ""
            back = " backwards" if eqn.params.get("reverse") else ""
            inner.append((f"{name}{length}{back}", bodies))
        else:
            inner.append((name, bodies))
    return counts, inner


def primitive(eqn) -> str:
    return RENAMED.get(eqn.primitive.name, eqn.primitive.name)


def total(jaxpr) -> int:
    """The equations of a program and of what it runs."""
    return sum(1 + sum(map(total, compat.bodies(e.params))) for e in jaxpr.eqns)


def largest(jaxpr) -> str:
    """The type of the largest value that an equation makes, loops included."""
    return max(types(jaxpr), default=(0, "-"))[1]


def types(jaxpr):
    for eqn in jaxpr.eqns:
        for body in compat.bodies(eqn.params):
            yield from types(body)
        for v in eqn.outvars:
            shape, size = getattr(v.aval, "shape", ()), getattr(v.aval, "dtype", None)
            bytes_each = getattr(size, "itemsize", 8)
            yield bytes_each * math.prod(d for d in shape if isinstance(d, int)), typed(v.aval)


def typed(aval) -> str:
    """`float32[3,4]`, weak types with a ~."""
    weak = "~" * bool(getattr(aval, "weak_type", False))
    shape = ",".join(map(str, getattr(aval, "shape", ())))
    return f"{getattr(aval, 'dtype', type(aval).__name__)}{weak}[{shape}]"


def digest(jaxpr) -> str:
    """Eight digits that differ for programs that compute something else, or elsewhere."""
    return hashlib.sha256("\n".join(spelled(jaxpr)).encode()).hexdigest()[:8]


def spelled(jaxpr):
    """The program, line by line, with numbers for variables."""
    numbers = {}

    def defined(variables):
        for v in variables:
            numbers[v] = len(numbers)
        return " ".join(f"{numbers[v]}:{typed(v.aval)}" for v in variables)

    def read(atom):
        if isinstance(atom, compat.Literal):
            return constant(atom.val)
        return str(numbers[atom])

    yield f"in {defined([*jaxpr.jaxpr.constvars, *jaxpr.jaxpr.invars])}"
    yield f"consts {' '.join(map(constant, jaxpr.consts))}"
    for eqn in jaxpr.eqns:
        given = " ".join(map(read, eqn.invars))
        params = [(k, parameter(p)) for k, p in sorted(said_of(eqn).items()) if k not in SPELLING]
        params = " ".join(f"{k}={p}" for k, p in params if p)
        yield f"{defined(eqn.outvars)} = {primitive(eqn)} {given} {params}"
    yield f"out {' '.join(map(read, jaxpr.jaxpr.outvars))}"


def said_of(eqn) -> dict:
    """The parameters; of a scan, which JAX spells in several ways, what they mean."""
    match compat.view(eqn) if compat.bodies(eqn.params) else None:
        case compat.Scan(body, split, length, reverse, unroll):
            sizes = tuple(map(len, split(eqn.invars)))
            options = {"length": length, "reverse": reverse, "unroll": unroll}
            return {"body": body, "operands": sizes, **options}
    return eqn.params


def constant(value) -> str:
    """A number, in digits that rounding does not reach; an array by its type."""
    array = value if hasattr(value, "shape") else np.asarray(value)
    if math.prod(array.shape) != 1 or getattr(array.dtype, "kind", "") not in "biufc":
        return typed(array)
    (number,) = np.asarray(array).ravel().tolist()
    return f"{number:{'.4g' if array.dtype.kind in 'fc' else ''}}{typed(array)}"


def parameter(p) -> str:
    """What a parameter says, an object by its type; "" for nothing."""
    if isinstance(p, enum.Enum):
        return p.name
    if isinstance(p, compat.Jaxpr):
        return "{" + "; ".join(spelled(p)) + "}"
    if hasattr(p, "eqns"):
        return parameter(compat.close(p))
    if isinstance(p, np.ndarray | jax.Array | np.generic):
        return constant(p)
    if isinstance(p, dict):
        p = tuple(sorted(p.items(), key=str))
    if any(p is nothing or (type(p) is type(nothing) and p == nothing) for nothing in NOTHING):
        return ""
    if isinstance(p, tuple | list):
        some = [parameter(x) or "-" for x in p]
        return f"({' '.join(some)})" if set(some) != {"-"} else ""
    if isinstance(p, float):
        return f"{p:.4g}"
    if isinstance(p, int | str | np.dtype):
        return str(p)
    return p.__name__ if isinstance(p, type) else type(p).__name__
