"""Where Python would raise: a test, and a jump to the handler that is written around it.

`raise_where(test, error)` does nothing where no `try` around us is for such an exception: then a
number stays inf or NaN, as JAX has it. With checked=True it is a run-time error then. `safe`
operands keep the path that is not taken free of NaN, whose derivative would spoil the other's.
"""

import functools
import itertools
import operator
import warnings
from collections.abc import Callable, Sequence

import jax
import jax.experimental.checkify
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.arrays.box import UNSIZED, Box, any_traced, is_traced, run_function, unbox
from malleable.arrays.content import PYTHON_TYPES
from malleable.arrays.functions import as_operand, canonical
from malleable.arrays.journal import ABSENT
from malleable.arrays.masked import Masked, must_hold
from malleable.arrays.numbers import is_python_int
from malleable.errors import TransformError
from malleable.frontend.common.frames import unbound
from malleable.frontend.common.session import LINES, drop_raise, note_line, session
from malleable.frontend.values.conditions import if_, only, truth
from malleable.frontend.values.unwinding import catcher, failed, hand_over_where
from malleable.frontend.values.values import Choice, bounded, entry, lacks
from malleable.notes import note

NUMBERS = (bool, int, float, complex)


def caught(error: BaseException) -> bool:
    """Whether a `try` around us is for such an exception."""
    return catcher(error) is not None


def is_asked(error: BaseException | None = None) -> bool:
    """Whether somebody wants to know of an exception that Python would raise at a value."""
    if session().options.checked:
        return True
    return bool(session().attempts) if error is None else caught(error)


DIVISION = "a division by zero is not tested: it is inf or nan, and any number among integers"
INDEX = "an index is not tested: beyond the end it is the last item, before the start the first"
WHOLE = "a float that becomes an int is not tested: nan, inf and what is too large are some number"
BEYOND = "the domain of a function of `math` is not tested: outside of it is inf or nan"
SLICED = "slice indices must be integers or None or have an __index__ method"
WRAPS = "an int of Python's is not tested: one that is too large for its bits wraps around"
UNTESTED = "checked=True makes it an error at run time"


def untested(what: str) -> None:
    """Note the line: Python would raise here at some values, and a program does not."""
    if not session().options.exact:
        note_line(what, compat.where(), UNTESTED)


def undecided(what: str, noted: str) -> None:
    """The same, where exactly what Python does is asked for: an error there."""
    if session().options.exact:
        raise TransformError(f"a value decides whether {what} raises", where=compat.where())
    if noted:
        untested(noted)


def is_wanted(about: str) -> bool:
    """Whether an operation is to be tested, or to be noted as one that is not."""
    return is_asked() or len(session().lines.get((about, UNTESTED), ())) < LINES


def raised(error: BaseException) -> BaseException:
    """An exception of Python's, at a place where a path leads that may not be taken."""
    error.__malleable_raised__ = True  # type: ignore[attr-defined]
    error.__malleable_where__ = compat.where()  # type: ignore[attr-defined]
    return error


def raise_where(test, error: BaseException, make: Callable | None = None) -> bool:
    """`raise error` where a traced test says so; whether a handler is there for it.

    make: what gives the exception, on the path that raises it.
    """
    if (found := catcher(error)) is None:
        if session().options.exact:
            drop_raise(error, compat.where())
        if session().options.checked:
            text = f"{type(error).__name__}: {error}".replace("{", "{{").replace("}", "}}")
            jax.experimental.checkify.check(jnp.logical_not(test), text)
        return False

    def fail():
        new = error if make is None else make()
        new.__malleable_raised__ = True  # type: ignore[attr-defined]
        new.__malleable_where__ = where  # type: ignore[attr-defined]
        raise new

    where = compat.where()
    if not (isinstance(test, compat.Tracer) and hand_over_where(test, error, *found)):
        if_(Box(test, True), fail, None, None)
    return True


def fail_where(test, error: BaseException) -> None:
    """A `raise` that happens where a traced test says so, for a handler or for nobody."""
    if not raise_where(test, error):
        text = f"`{type(error).__name__}: {error}` does not happen in a compiled program"
        note_line(text, compat.where())
        for flag in (session().raised, session().lost):
            flag.write(jnp.logical_or(flag.value, test))


def swapped(test, safe, x):
    """`safe` where the test is true: an operand for the other path."""
    raw = unbox(x)
    kind = jnp.result_type(raw)
    new = jnp.where(test, jnp.asarray(safe, kind), raw)
    return Box(compat.convert(new, kind, is_weak(x)), True)


def is_weak(x) -> bool:
    return type(x) in NUMBERS or bool(getattr(unbox(x), "weak_type", False))


def assert_(test, message: Callable | None = None) -> None:
    """`assert test, message()`; where the test is traced, for a handler that is written around it.

    Else it is dropped, or with checked=True an error.
    """
    test = truth(test)
    if not isinstance(test, compat.Tracer):
        if not test:
            error = AssertionError() if message is None else AssertionError(message())
            error.__malleable_raised__ = True  # type: ignore[attr-defined]
            raise error
        return
    make = AssertionError if message is None else lambda: AssertionError(message())
    if caught(AssertionError()) and raise_where(jnp.logical_not(test), AssertionError(), make):
        return
    if session().options.exact:
        raise TransformError("a value decides whether an assertion fails", where=compat.where())
    if session().options.checked:
        text = "assertion failed" if message is None else f"AssertionError: {message()}"
        jax.experimental.checkify.check(test, text.replace("{", "{{").replace("}", "}}"))
    else:
        note_line("an assertion is not checked", compat.where(), "checked=True makes it an error")


# ---------------------------------------------------------------- numbers


def is_python_number(x) -> bool:
    """Whether this is a bool, int or float of Python's: NumPy's divide by zero without an error."""
    if type(x) in NUMBERS:
        return True
    if not (isinstance(x, Box) and is_traced(x) and x.scalar) or x.dtype.kind not in "iufbc":
        return False
    return is_weak(x) or session().lanes


def operands(sign: str, a, b) -> tuple:
    """The operands of `/`, `//`, `%`, `**` after the test for what Python raises with them."""
    if not (is_python_number(a) and is_python_number(b) and (is_traced(a) or is_traced(b))):
        return a, b
    if not is_asked(ZeroDivisionError()) and not (sign == "**" and is_asked(OverflowError())):
        if sign != "**" and is_traced(b):
            untested(DIVISION)
        return a, b
    if not all(map(is_weak, (a, b))):
        note(f"`{sign}` takes a number of a batch for a float of Python's", compat.where())
    x, y = unbox(a), unbox(b)
    if sign != "**":
        test = jnp.equal(y, 0)
        raise_where(test, _sample(sign, _as_number_of(x, 1), _as_number_of(y, 0)))
        return a, swapped(test, 1, b)
    test = jnp.logical_and(jnp.equal(x, 0), jnp.less(jnp.real(y), 0))
    raise_where(test, _sample(sign, _as_number_of(x, 0), -1.0))
    a = swapped(test, 1, a)
    if any(jnp.issubdtype(jnp.result_type(v), jnp.inexact) for v in (x, y)):
        over = jnp.isinf(jnp.power(*map(lax.stop_gradient, map(jnp.asarray, (unbox(a), y)))))
        over = over & jnp.isfinite(x) & jnp.isfinite(y)
        raise_where(over, OverflowError(34, "Numerical result out of range"))
        a = swapped(over, 1, a)
    return a, b


INTEGERS = frozenset(("+", "-", "*", "**", "<<"))  # of which a result may have no room


def check_room(sign: str, a, b, out):
    """`out`; with checked=True, test whether an int of Python's has the room that it needs here."""
    x, y, z = map(unbox, (a, b, out))
    if not (is_traced(out) and all(map(is_python_int, (x, y)))):
        return out
    if not session().options.checked:
        if sign in ("*", "**", "<<") or (sign == "+" and is_traced(a) and is_traced(b)):
            untested(WRAPS)  # and not where a step is added to a counter
        return out
    one, other, kind = *(jnp.asarray(v, float) for v in (x, y)), jnp.result_type(z)
    shifts = sign == "<<"
    exact = one * 2.0**other if shifts else FLOATS[sign](one, other)
    limit = 2.0 ** (8 * kind.itemsize - 1)  # what wraps around is twice as far from it, or more
    far = jnp.abs(exact - jnp.asarray(z, exact.dtype)) > limit
    raise_where(far & (y >= 0 if sign in ("**", "<<") else True), NO_ROOM)
    return out


FLOATS = {"+": jnp.add, "-": jnp.subtract, "*": jnp.multiply, "**": jnp.power}
NO_ROOM = ArithmeticError("an integer is too large for its bits")


def _as_number_of(x, value: int):
    if jnp.issubdtype(jnp.result_type(x), jnp.complexfloating):
        return complex(value)
    return float(value) if jnp.issubdtype(jnp.result_type(x), jnp.inexact) else value


def _sample(sign: str, a, b) -> BaseException:
    """The exception of this operation, with the words of this Python."""
    try:
        _DIVIDE[sign](a, b)
    except ZeroDivisionError as e:
        return e.with_traceback(None)
    return ZeroDivisionError("division by zero")


_DIVIDE = {"/": operator.truediv, "//": operator.floordiv, "%": operator.mod, "**": operator.pow}
DOMAIN, RANGE = ValueError("math domain error"), OverflowError("math range error")
POLES = frozenset(["log", "log2", "log10", "log1p", "atanh"])  # inf is out of the domain
BOTH = frozenset(["pow", "gamma", "lgamma"])  # ... only at zero and the negative integers
DOMAINS = POLES | BOTH | {"sqrt", "acos", "asin", "acosh", "fmod", "remainder"}
FLOWS_OVER = frozenset(["exp", "exp2", "expm1", "cosh", "sinh", "ldexp", "hypot", "dist", "fsum"])
NOTED = DOMAINS | FLOWS_OVER
SELDOM = frozenset(["sin", "cos", "tan", "trunc"])  # of infinity, and of an array of JAX
WHOLE_NUMBERS = frozenset(["floor", "ceil", "trunc"])
COUNTS = frozenset(["factorial", "isqrt", "comb", "perm"])  # of whole numbers that are not negative


def in_domain(plain: Callable, traced: Callable) -> Callable:
    """`plain`, a function of `math`; `traced` where an argument is a traced value."""
    name = plain.__name__

    def either(*args, **kwargs):
        if not any(map(is_traced, args)):
            return plain(*args, **kwargs)
        return traced(*_tested(name, traced, tuple(after_raises(args))), **kwargs)

    either.__name__ = name
    return either


def _tested(name: str, traced: Callable, args: tuple) -> tuple:
    """The arguments of a function of `math` after the test for what it raises with them."""
    if not (is_asked(DOMAIN) or is_asked(RANGE)):
        if name in NOTED or name in COUNTS or name in SELDOM:
            undecided(f"`math.{name}`", BEYOND if name in NOTED else "")
        return tuple(map(whole_number, args)) if name in WHOLE_NUMBERS else args
    xs = [lax.stop_gradient(jnp.asarray(unbox(x))) for x in args]
    if any(x.ndim for x in xs):
        return args
    if name in COUNTS:
        below = _any([x < 0 for x in xs])
        raise_where(below, ValueError(f"{name}() not defined for negative values"))
        return tuple(swapped(below, 1, x) for x in args)
    if name in WHOLE_NUMBERS:
        return tuple(map(whole_number, args))
    out = traced(*(Box(x, True) for x in xs))
    if not isinstance(out, Box) or out.dtype.kind != "f":
        return args
    nan = jnp.isnan(out.value) & ~_any([jnp.isnan(x) for x in xs])
    over = jnp.isinf(out.value) & ~_any([~jnp.isfinite(x) for x in xs])
    pole = over if name in POLES else over & (xs[0] <= 0) if name in BOTH else False
    raise_where(nan | pole, DOMAIN)
    if name in FLOWS_OVER or name in BOTH:
        raise_where(over & ~pole if name in BOTH else over, RANGE)
    safe, test = 2.0 if name == "acosh" else 0.5, nan | over
    safes = (1 if x.dtype.kind in "iu" else safe for x in xs)
    return tuple(swapped(test, *pair) for pair in zip(safes, args, strict=True))


def _any(tests: list):
    return jnp.stack(tests).any()


def whole_number(x, kind=None):
    """A float of which somebody wants the integer; kind: NumPy's type for it."""
    value = unbox(x)
    if not jnp.issubdtype(jnp.result_type(value), jnp.inexact):
        return x
    if not is_asked():
        undecided("an integer of a float", WHOLE)
        return x
    nan, inf = jnp.isnan(value), jnp.isinf(value)
    raise_where(nan, ValueError("cannot convert float NaN to integer"))
    raise_where(inf, OverflowError("cannot convert float infinity to integer"))
    info, whole = jnp.iinfo(kind or jnp.result_type(int)), jnp.trunc(value)
    far = (whole < info.min) | (whole >= float(info.max) + 1)
    if kind or session().options.checked:
        error = OverflowError(f"Python integer out of bounds for {info.dtype}")
        raise_where(far & ~inf, error if kind else NO_ROOM)
    return swapped(nan | inf, 0, x)


def stored(value, x):
    """A number that is written to an array of x's type: of integers, after the test for NaN."""
    number = isinstance(value, Box) and value.scalar and value.traced and value.dtype.kind == "f"
    return whole_number(value) if number and x.dtype.kind in "iu" else value


def regular(fun: Callable, *matrices) -> tuple:
    """The arguments of `np.linalg.inv` and its like after the test for what they raise."""
    error = np.linalg.LinAlgError(
        "Matrix is not positive definite" if fun is np.linalg.cholesky else "Singular matrix"
    )
    if not is_asked(error):
        return matrices
    raw = [lax.stop_gradient(jnp.asarray(unbox(x))) for x in matrices]
    out = unbox(run_function(fun, tuple(map(Box, raw)), {}))
    finite = _any([~jnp.isfinite(x).all() for x in raw])
    bad = ~jnp.isfinite(out).all() & ~finite
    raise_where(bad, error)
    first = unbox(matrices[0])
    eye = jnp.eye(first.shape[-1], dtype=raw[0].dtype)
    return (Box(jnp.where(bad, eye, first), False), *matrices[1:])


# ---------------------------------------------------------------- floats of NumPy

SEEN = {"divide": "divide by zero", "over": "overflow", "invalid": "invalid value"}
SIGNS = {
    **{"+": "add", "-": "subtract", "*": "multiply", "@": "matmul", "**": "power"},
    **{"/": "divide", "//": "floor_divide", "%": "remainder"},
}
DIVISIONS = frozenset(("divide", "floor_divide", "remainder"))
MIXED = "a float of Python's, or an int on another path, {} as a float"
FLOAT = "perhaps: write float(x)"
REDUCTIONS = frozenset(("sum", "prod", "mean", "var", "std", "dot", "cumsum", "cumprod", "trace"))


def at_floats(fun: Callable, name: str, *operands, trial: Callable | None = None):
    """fun(*operands), a function of NumPy's, after the test for what np.errstate makes it raise.

    name: of the function, or the sign of an operator. Numbers of Python's raise ZeroDivisionError
    at operators, or give inf. trial: what gives the result and writes nowhere, if `fun` writes.
    """
    operands = operands if trial else after_raises(operands)
    if not any_traced(operands) or "raise" not in (modes := np.geterr()).values():
        return fun(*operands)
    if name in SIGNS and all(map(is_python_number, operands)):
        if all(map(is_weak, operands)):
            return fun(*operands)
        note(f"`{name}` takes a number of a batch for one of NumPy's", compat.where())
    name = SIGNS.get(name, name)
    kinds = [kind for kind, mode in modes.items() if mode == "raise"]
    if not is_asked(FloatingPointError()) or any(type(x) in UNSIZED for x in operands):
        what = f"NumPy is to raise FloatingPointError ({' and '.join(kinds)})"
        what = f"{what}, which no compiled program does"
        note_line(what, compat.where(), "results are inf or nan there")
        return fun(*operands)
    if "under" in kinds:
        note_line("an underflow is not tested", compat.where(), "results are 0 or denormal there")
    out = unbox((trial or fun)(*operands))
    tests = _float_tests(name, out, jax.tree.leaves(unbox(operands)))
    tests = {kind: test for kind, test in tests.items() if kind in kinds}
    written = None if trial is None else fun(*operands)  # NumPy writes before it raises
    for kind, test in tests.items():
        raise_where(test, FloatingPointError(f"{SEEN[kind]} encountered in {name}"))
    if trial is not None:
        return written
    bad, safe = _either(tests.values()), 2.0 if name == "arccosh" else 0.5
    return fun(*(_safe_float(bad, safe, x) for x in operands))


def note_class(ask: Callable):
    """ask(float) of what may_be_int, with a note where ask(int) is another."""
    if ask(int) is not ask(float):
        note_line(MIXED.format("is asked for its class"), compat.where(), FLOAT)
    return ask(float)


def note_vectorized(out) -> None:
    """A note where np.vectorize takes the type of what it makes from what the first one gives."""
    if may_be_int(out):
        note_line(MIXED.format("results from np.vectorize"), compat.where(), "perhaps: say otypes=")


def may_be_int(x) -> bool:
    """Whether a value is a float of Python's that may be an int on another path."""
    number = session().mixed and type(x) is Box and x.scalar and x.dtype.kind == "f"
    return number and is_weak(x) and is_traced(x)


def note_type(name: str, fun: Callable, args: tuple, out, kwargs: dict | None = None) -> None:
    """A note where fun(*args), of NumPy's, gives arrays of a type of JAX's, or of one path."""
    (leaves, tree), outs = jax.tree.flatten((args, kwargs or {})), jax.tree.leaves(out)
    given, usual = [x for x in leaves if isinstance(x, Box)], jnp.result_type(float)
    if any(type(x) is not Box or x.dtype.kind not in "biufc" for x in (*given, *outs)):
        return
    note_wide(name, given, outs, usual)
    loose = any(x.ndim and is_weak(x) for x in (*given, *outs))
    loose, mixed = loose or all(x.dtype == usual for x in given), any(map(may_be_int, given))
    if any(is_weak(x) and not x.ndim for x in outs) or (loose and not mixed):
        return
    described = tuple(map(_described, leaves))
    try:
        numpys = types_in_numpy(fun, tree, described)
        if mixed:
            pairs = zip(leaves, described, strict=True)
            whole = tuple(_INT if may_be_int(x) else one for x, one in pairs)
            mixed = types_in_numpy(fun, tree, whole) != numpys
    except TypeError:  # an argument that is no key
        return
    if mixed:
        note_line(MIXED.format(f"gives `{name}` its type"), compat.where(), FLOAT)
    for x, kind in zip(outs, map(canonical, () if loose else numpys), strict=False):
        if kind != x.dtype:
            kinds = " and ".join(dict.fromkeys(str(one.dtype) for one in given))
            what = f"`{name}` of {kinds} is {x.dtype}, and {kind} in NumPy"
            return note_line(what, compat.where(), f"convert with `.astype(np.{kind})` before")


def note_wide(name: str, given: Sequence[Box], outs: Sequence, usual: np.dtype) -> None:
    """A note where a float of Python's and an integer are as wide in NumPy, and loose in JAX."""
    narrow = any(x.dtype.kind == "f" and x.dtype.itemsize < usual.itemsize for x in given)
    session().narrow |= narrow
    whole = [x.dtype for x in given if x.dtype.kind in "biu" and not is_weak(x)]
    if whole and any(is_weak(x) and x.dtype == usual for x in outs):
        what = f"`{name}` of {whole[0]} and a float of Python's takes the type of another float"
        note_line(what, compat.where(), "perhaps: .astype(float), as it is in NumPy", wide=True)


def _described(x) -> tuple:
    """(type, number of axes, whether it is a number, and one of Python's), or (type, value)."""
    if isinstance(x, Box):
        return x.dtype, x.ndim, x.scalar, is_weak(x)
    return (x.dtype, x.ndim, False, False) if type(x) is np.ndarray else (type(x), x)


_INT = (np.dtype(int), 0, True, True)  # as _described has an int of Python's


@functools.lru_cache(4096)
def types_in_numpy(fun: Callable, tree, described: tuple) -> tuple:
    """The types of what a function of NumPy's gives, tried on ones; () where ones do not fit."""

    def ones(kind, axes, number=False, weak=False):
        if isinstance(kind, type):
            return axes
        one = PYTHON_TYPES[kind.kind](1) if weak else kind.type(1)
        return one if number else np.full((3,) * axes, one, kind)

    args, kwargs = tree.unflatten(itertools.starmap(ones, described))
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            return tuple(np.asarray(x).dtype for x in jax.tree.leaves(fun(*args, **kwargs)))
    except (TypeError, ValueError, LookupError, ArithmeticError):
        return ()  # or an operator of NumPy's bools, where these are Python's


def after_raises(operands: Sequence) -> Sequence:
    """The operands; where something has raised, without their derivatives: nobody reads results."""
    stopped = failed() if session().attempts else False
    return operands if stopped is False else [_safe_float(stopped, None, x) for x in operands]


def _safe_float(test, safe: float | None, x):
    """`safe` where the test is true, else x; None: x itself, a constant there."""
    if type(x) is not Box or not is_traced(x) or x.dtype.kind not in "fc":
        return x
    safe = lax.stop_gradient(x.value) if safe is None else safe
    new = Box(swapped(test, safe, x).value, x.scalar)
    new.immutable = x.immutable
    return new.laid(x)


def _float_tests(name: str, out, operands: list) -> dict:
    """By kind: whether NumPy sees it in a result, element by element where there is one of each."""
    xs = [lax.stop_gradient(jnp.asarray(x)) for x in operands if not isinstance(x, str)]
    if not hasattr(out, "dtype"):
        return {}
    if name in ("floor_divide", "remainder") and jnp.issubdtype(out.dtype, jnp.integer):
        return {"divide": jnp.any(xs[1] == 0)}
    if not jnp.issubdtype(out.dtype, jnp.inexact):
        return {}
    out = lax.stop_gradient(out)
    some = jnp.asarray if all(x.shape in ((), out.shape) for x in xs) else jnp.any
    nan = some(jnp.isnan(out)) & ~_either(some(jnp.isnan(x)) for x in xs)
    inf = some(jnp.isinf(out)) & ~_either(some(~jnp.isfinite(x)) for x in xs)
    pole = name.startswith("log") or name == "arctanh"
    if name in DIVISIONS:
        pole = xs[1] == 0
    elif name == "power":
        pole = (xs[0] == 0) & (jnp.real(xs[1]) < 0)
    tests = {"divide": inf & pole, "over": inf & jnp.logical_not(pole), "invalid": nan}
    return {kind: jnp.any(test) for kind, test in tests.items()}


def _either(tests):
    return functools.reduce(jnp.logical_or, tests, jnp.asarray(False))


# ---------------------------------------------------------------- items, None


def within(xs, index) -> None:
    """Test whether a traced index is one of a list, a tuple, a range or an array."""
    if isinstance(xs, list | tuple) and is_traced(index) and bounded(xs) is None:
        inside = lambda at: jnp.all((at >= -len(xs)) & (at < len(xs)))  # noqa: E731
        what = "a list that is indexed in a compiled loop or branch"
        must_hold(what, None, inside, unbox(index))
    if bounded(xs) is not None:
        return
    array = isinstance(xs, Box | np.ndarray)
    parts = index if isinstance(index, tuple) else (index,)
    parts = tuple(as_operand(unbox(p)) if type(p) is list else p for p in parts)
    for part in parts:
        if array and isinstance(part, slice) and is_traced(part.step):
            fail_where(unbox(part.step) <= 0, ValueError("a traced step of a slice is 0 or less"))
    counted = type(xs) is Masked and type(parts[0]) not in (slice, Masked)
    numbers = as_operand(unbox(parts[0])) if counted else False
    unsized = jnp.result_type(numbers).kind in "iu"  # any index may be beyond
    if not is_asked():
        if unsized or any(unbox(p).dtype.kind in "iu" for p in parts if is_traced(p)):
            untested(INDEX)
        return
    if unsized:
        count = jnp.sum(xs.mask)
        outside = jnp.any((numbers < -count) | (numbers >= count))
        raise_where(outside, IndexError("index is out of bounds for axis 0"))
    if type(xs) is Masked:
        return
    shape = list(np.shape(unbox(xs))) if array else [len(xs)]
    if any(p is ... for p in parts):
        at = next(k for k, p in enumerate(parts) if p is ...)
        known = sum(p is not None for p in parts) - 1
        fill = (slice(None),) * (len(shape) - known)
        parts = (*parts[:at], *fill, *parts[at + 1 :])
    axis = 0
    for part in parts:
        if part is None:
            continue
        raw = unbox(part)
        if not isinstance(part, slice) and getattr(raw, "dtype", np.dtype(int)).kind == "b":
            axis += np.ndim(raw)
            continue
        if axis < len(shape) and is_traced(part) and jnp.issubdtype(raw.dtype, jnp.integer):
            n = shape[axis]
            outside = unbox(((raw < -n) | (raw >= n)).any())
            text = f"index is out of bounds for axis {axis} with size {n}"
            text = text if array else f"{type(xs).__name__} index out of range"
            raise_where(outside, IndexError(text))
        axis += 1


def test_names() -> None:
    """A function begins that has a handler for names that are not bound."""
    session().names = True


def bound(value, name: str):
    """The value of a variable that is read in a `try` for names that are not bound."""
    if not lacks(value):
        return value
    missing = entry([x is ABSENT for x in value.options], value.index)
    if not raise_where(missing, unbound(name)):
        return value
    return only(value)


def refuse_floats(*xs, text="'{}' object cannot be interpreted as an integer") -> None:
    """Raise the TypeError of Python's where one of these is a float: only ints do there."""
    for x in (x for x in xs if type(x) is not Choice):
        array = isinstance(x, np.ndarray) and x.dtype.kind in "fc"
        if array or isinstance(x, float | complex | np.inexact):
            raise TypeError(text.format(x.__class__.__name__))


def present(*operands, what: str) -> None:
    """Test whether a choice that is used as its one number is None: a TypeError."""
    for x in operands:
        if type(x) is not Choice or x.number is None or is_told(x):
            continue
        if any(option is None for option in x.options):
            missing = jnp.asarray(x.index) != x.number
            fail_where(missing, TypeError(f"{what} is not defined for 'NoneType'"))


def is_told(x: Choice) -> bool:
    """Whether a test around us has said that a choice is its number."""
    for _, answer, tells in session().path:
        for choice, keeps in tells:
            kept = [k for k, keep in enumerate(keeps.get(answer, ())) if keep]
            if choice.index is x.index and kept == [x.number]:
                return True
    return False
