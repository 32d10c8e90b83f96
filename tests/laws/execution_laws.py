"""What must hold for `mal.jit` of any function: it does what the function does.

Values with their types, printed lines, exceptions with their messages, and what was written to the
arguments are compared, in the order in which they come, on inputs that differ, and once more on the
first of them.
"""

import contextlib
import copy
import io
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import malleable as mal
from tests.generators.python.programs import PythonProgram, python_args, random_python_program
from tests.generators.selective.programs import random_selective_program, selective_args
from tests.laws.python_laws import Endless, shrunk

TRIES = 3  # inputs per program
SAME = "same"
SHRINK_SECONDS = 60
MOST_LINES = 5_000  # of the program itself, of a smaller one that may not end
TOLERANCE = 1e-4
ADDRESS = re.compile(r"0x[0-9a-f]+")
FRACTION = re.compile(r"-?\d+\.\d+(?:e[-+]\d+)?")


class Seen(NamedTuple):
    """All that a caller can see of a call."""

    value: Any
    error: Exception | None
    printed: str
    args: tuple


def seen(fun: Callable, args: tuple) -> Seen:
    args = copied(args)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            value, error = fun(*args), None
        except Exception as raised:  # whatever the program raises is part of what it does
            value, error = None, raised
    return Seen(value, error, printed.getvalue(), args)


def copied(args):
    """Arguments of their own for a call; arrays of JAX cannot be written to."""
    return tuple(a if isinstance(a, jax.Array) else copy.deepcopy(a) for a in args)


def try_seeds(seeds: Sequence[int], shrink=False, python=False) -> dict[int, str]:
    """{seed: "same", or all that is needed to see why not}; one failing program is shrunk.

    Programs on arrays that `jax.jit` refuses, or Python on numbers of JAX and arrays of NumPy: then
    a number may be of any type.
    """
    found = {}
    for seed in seeds:
        program = (random_python_program if python else random_selective_program)(seed)
        inputs = (several_python_args if python else several_args)(seed)
        text = outcome(program, inputs, python)
        if text != SAME:
            if shrink:
                shrink = False  # one is enough to look at, and it takes a while
                program = shrunk(program, fails_alike(text, inputs, python))
                text = outcome(program, inputs, python)
            text = f"seed {seed}: {text}\n{program}"
        found[seed] = text
    return found


def several_args(seed: int) -> list[tuple]:
    return [selective_args(TRIES * seed + t) for t in range(TRIES)]


def several_python_args(seed: int) -> list[tuple]:
    """Two numbers of JAX, in every second program also two integers, and arrays to write to."""
    many = [python_args(TRIES * seed + t) for t in range(TRIES)]
    numbers = 4 if seed % 2 else 2
    return [(*map(jnp.asarray, args[:numbers]), *args[numbers:]) for args in many]


def outcome(program: PythonProgram, inputs: Sequence[tuple], python=False) -> str:
    """ "same", or what `mal.jit` of a program does differently. python: as `try_seeds` has it."""
    look = (lambda *call: as_numbers(seen(*call))) if python else seen
    wanted = [look(program.function, args) for args in inputs]
    try:
        jitted = mal.jit(program.function)
    except Exception as error:  # it never refuses
        return f"not jitted, {type(error).__name__}: {error}"
    for t in (*range(len(inputs)), 0):
        got = look(jitted, inputs[t])
        if difference := differs(got, wanted[t]):
            return f"{difference}\n  inputs {inputs[t]}\n{show(got, wanted[t])}"
    return SAME


def as_numbers(found: Seen) -> Seen:
    """What is seen of a call, with floats for numbers and classes for objects of the program's."""

    def numbers(x):
        match x:
            case dict():
                return {key: numbers(part) for key, part in x.items()}
            case list() | tuple():
                return type(x)(map(numbers, x))
            case None | str():
                return x
            case jax.Array() | np.ndarray() if x.ndim:
                return x
            case jax.Array() | np.ndarray() | np.generic() | int() | float():
                return float(x)
        return type(x).__name__

    return found._replace(value=numbers(found.value), args=numbers(found.args))


def show(got, wanted) -> str:
    """Those of value, error, printed text and arguments that look different."""
    rows = [(name, repr(a), repr(b)) for name, a, b in zip(Seen._fields, wanted, got)]
    return "\n".join(f"  {name} wanted {a}\n  {name} got    {b}" for name, a, b in rows if a != b)


# ---------------------------------------------------------------- what may not differ


def differs(got: Seen, wanted: Seen) -> str:
    """What differs, in a few words; "" for nothing."""
    error, expected = got.error, wanted.error
    if type(error) is not type(expected) or str(error) != str(expected):
        return f"{said(error)} instead of {said(expected)}"
    if difference := differing_text(got.printed, wanted.printed):
        return difference
    return unlike(got.value, wanted.value, "value") or unlike(got.args, wanted.args, "arguments")


def said(error) -> str:
    return f"{type(error).__name__}: {error}"[:500] if error else "no exception"


def differing_text(got: str, wanted: str) -> str:
    """Printed numbers with a fraction may differ a little; nothing else may."""
    got, wanted = (ADDRESS.sub("0x", text) for text in (got, wanted))
    if got == wanted:
        return ""
    numbers, expected = FRACTION.findall(got), FRACTION.findall(wanted)
    if FRACTION.split(got) == FRACTION.split(wanted):
        close = np.allclose(list(map(float, numbers)), list(map(float, expected)), TOLERANCE, 2e-3)
        return "" if close else f"prints {got!r} instead of {wanted!r}"
    return f"prints {got!r} instead of {wanted!r}"


def unlike(got, wanted, where: str) -> str:
    """What differs between two values, and where in them; "" for nothing."""
    if isinstance(wanted, jax.Array):
        if not isinstance(got, jax.Array):
            return f"{where} is {kind(got)}, not {kind(wanted)}"
    elif type(got) is not type(wanted):
        return f"{where} is {kind(got)}, not {kind(wanted)}"
    match wanted:
        case dict():
            if list(got) != list(wanted):  # in the order of insertion
                return f"{where} has keys {list(got)}, not {list(wanted)}"
            pairs = [(f"{where}[{key!r}]", got[key], wanted[key]) for key in wanted]
        case list() | tuple():
            if len(got) != len(wanted):
                return f"{where} has length {len(got)}, not {len(wanted)}"
            pairs = [(f"{where}[{k}]", a, b) for k, (a, b) in enumerate(zip(got, wanted))]
        case _:
            return unequal(got, wanted, where)
    return next(filter(None, (unlike(a, b, at) for at, a, b in pairs)), "")


def unequal(got, wanted, where) -> str:
    if isinstance(wanted, jax.Array | np.ndarray | np.generic):
        if kind(got) != kind(wanted):
            return f"{where} is {kind(got)}, not {kind(wanted)}"
        exact = not np.issubdtype(wanted.dtype, np.inexact)
    else:
        exact = not isinstance(wanted, float)
    if exact:
        same = np.array_equal(got, wanted) if isinstance(wanted, jax.Array) else got == wanted
        same = bool(np.all(same))
    else:
        same = np.allclose(got, wanted, TOLERANCE, TOLERANCE, equal_nan=True)
    return "" if same else f"{where} is {got!r}, not {wanted!r}"


def kind(value) -> str:
    """The type of a value, for arrays with dtype and shape."""
    if isinstance(value, jax.Array):
        return f"jax.Array {value.dtype}{list(value.shape)}"
    if isinstance(value, np.ndarray):
        return f"np.ndarray {value.dtype}{list(value.shape)}"
    return type(value).__name__


# ---------------------------------------------------------------- smaller programs


def fails_alike(text: str, inputs, python=False) -> Callable[[PythonProgram], bool]:
    """Whether a smaller program is wrong in a similar way; always False when time is up."""
    words = lambda text: text.split("\n")[0].split()[:1]
    deadline = time.monotonic() + SHRINK_SECONDS

    def fails(smaller):
        if time.monotonic() > deadline or not ends(smaller, inputs):
            return False
        found = outcome(smaller, inputs, python)
        return found != SAME and words(found) == words(text)

    return fails


def ends(program, inputs) -> bool:
    """Whether plain Python runs it in a few lines, and no name is missing from it."""
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        if not frame.f_code.co_filename.startswith("<python program"):
            return None
        lines += 1
        if lines > MOST_LINES:
            raise Endless
        return trace

    errors = []
    before = sys.gettrace()
    try:
        fun = program.function
        for args in inputs:
            sys.settrace(trace)
            errors.append(seen(fun, args).error)
            sys.settrace(before)
    except Exception:  # of importing what is left of it
        return False
    finally:
        sys.settrace(before)
    return not any(isinstance(error, NameError | Endless) for error in errors)
