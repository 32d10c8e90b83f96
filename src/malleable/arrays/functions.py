"""NumPy's functions and ufuncs on values of JAX: which jax.numpy function, and with what.

Works on plain values (no boxes). Arguments that jax.numpy lacks are dropped where they only say
how memory is laid out; lists become arrays, as NumPy takes them.
"""

import functools
import inspect
import operator
import warnings
from typing import Any, Never

import jax
import jax.scipy.special
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.arrays.numbers import OWN, compared_by_value, refuse_large, widened
from malleable.arrays.places import own
from malleable.errors import TransformError

NO_VALUE = np._NoValue
_SHAPED = """
    reshape transpose broadcast_to tile full zeros ones empty moveaxis expand_dims squeeze split
    array_split rot90 roll flip permute_dims pad unravel_index ravel_multi_index indices full_like
    zeros_like vsplit hsplit tensordot einsum fftn ifftn fft2 ifft2 fftshift
"""
_SEQUENCES = """
    concatenate concat stack vstack hstack dstack column_stack row_stack select multi_dot lexsort
    broadcast_shapes
"""
_COUNTS = """
    argmin argmax argsort searchsorted count_nonzero digitize argpartition nanargmin nanargmax
    lexsort
"""
_CHECKED = """
    quantile percentile nanquantile nanpercentile digitize histogram geomspace tile sort argsort
"""
_ELEMENTS = "append outer kron dot inner vdot polyval polymul polyadd polysub diff"
MEMORY = {"order", "overwrite_input", "sorted"}
SHAPED = frozenset(_SHAPED.split())  # a list of integers is a shape or axes here, no data
SEQUENCES = frozenset(_SEQUENCES.split())  # the first argument is a sequence of arrays
CHECKED = frozenset(_CHECKED.split())  # JAX takes arguments that NumPy refuses
ELEMENTS = frozenset(_ELEMENTS.split())  # a number among the arrays has the type of an array of it
DOUBLES = frozenset(("histogram2d", "histogramdd"))  # the first result is, whatever the weights
COUNTS = frozenset(_COUNTS.split())  # the result is an index or a number of elements: NumPy's int
NUMBERS = {"weights", "fweights", "aweights", "bins", "x", "q", "w", "to_begin", "to_end"}
SPACES: dict[str, Any] = dict.fromkeys(("numpy", "numpy.core", "numpy._core", "numpy.lib"), jnp)
SPACES |= {"numpy.linalg": jnp.linalg, "numpy.fft": jnp.fft}
OTHER_NAMES = {
    "asanyarray": "asarray",
    "ascontiguousarray": "asarray",
    "asfortranarray": "asarray",
    "asarray_chkfinite": "asarray",
    "trapz": "trapezoid",
    "fix": "trunc",
    "row_stack": "vstack",
    "product": "prod",
    "cumproduct": "cumprod",
    "alltrue": "all",
    "sometrue": "any",
    "in1d": "isin",
    "around": "round",
    "real_if_close": "asarray",
}
REDUCED = {"add": jnp.sum, "multiply": jnp.prod, "maximum": jnp.max, "minimum": jnp.min}
REDUCED |= {"logical_and": jnp.all, "logical_or": jnp.any}


@functools.lru_cache(None)
def jax_ufunc(ufunc):
    """The jax function that does what a ufunc does, or None."""
    name = ufunc.__name__
    if name in _ORDERED:
        return ORDERED[_ORDERED[name]]
    found = OWN.get(name) or getattr(jnp, name, None)
    if found is None or isinstance(found, type):
        found = getattr(jax.scipy.special, name, None)
    return found


def _ordered(strict, plain):
    """Complex numbers are compared as NumPy does: by their real parts, then the imaginary ones."""

    def compare(x, y):
        if not np.iscomplexobj(x) and not np.iscomplexobj(y):
            return plain(x, y)
        if not isinstance(x, jax.Array) and not isinstance(y, jax.Array):
            return plain(x, y)
        a, b = jnp.real(x), jnp.real(y)
        return strict(a, b) | ((a == b) & plain(jnp.imag(x), jnp.imag(y)))

    return compare


OPERATORS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide,
    "floordiv": np.floor_divide, "mod": np.remainder, "pow": np.power, "matmul": np.matmul,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "lshift": np.left_shift, "rshift": np.right_shift,
}  # fmt: skip
ORDERED = {
    "lt": compared_by_value(_ordered(operator.lt, operator.lt)),
    "le": compared_by_value(_ordered(operator.lt, operator.le)),
    "gt": compared_by_value(_ordered(operator.gt, operator.gt)),
    "ge": compared_by_value(_ordered(operator.gt, operator.ge)),
    "eq": compared_by_value(operator.eq),
    "ne": compared_by_value(operator.ne),
}
_ORDERED = {"less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge"}
_ORDERED |= {"equal": "eq", "not_equal": "ne"}
BOUNDED = {*OPERATORS.values(), np.maximum, np.minimum, np.fmax, np.fmin, np.fmod, np.divmod}
BOUNDED -= {np.true_divide, np.matmul}


# what JAX may raise where NumPy raises too
REFUSALS = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, AssertionError)
LARGEST = 1 << 26  # elements
_OF_TRACING = (jax.errors.JAXTypeError, jax.errors.JAXIndexError)
_PLAIN = (int, float, complex, str, type, type(...), np.dtype, type(NO_VALUE))
_PLAIN += (np.ndarray, np.generic, jax.Array)


def refuse(error: Exception, fun, *args, **kwargs) -> Never:
    """Raise what NumPy does of such arguments, or else this error of JAX."""
    if not isinstance(error, _OF_TRACING):
        try:
            ask_numpy(fun, args, kwargs)
        except REFUSALS as e:
            raise e from error
    raise error


def ask_numpy(fun, args, kwargs, most=LARGEST) -> None:
    """Let NumPy raise its own error, of ones for what is traced: up to `most` along an axis."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    arrays = [x for x in leaves if isinstance(x, jax.Array)]
    small = most < LARGEST or all(x.size <= LARGEST for x in arrays)  # or it takes long
    if arrays and small and all(isinstance(x, _PLAIN) for x in leaves):
        args, kwargs = tree.unflatten(_ones(x, most) for x in leaves)
        with np.errstate(all="ignore"), warnings.catch_warnings(action="ignore"):
            fun(*args, **kwargs)


def _ones(x, most=LARGEST):
    """What NumPy may read and write in place of an argument; of a traced array, one element."""
    if not isinstance(x, jax.Array):
        return x.copy() if isinstance(x, np.ndarray) else x
    one = x.dtype.type(1)
    if not x.ndim:
        return one.item() if x.weak_type else one
    shape = [min(n, most) for n in x.shape]
    return np.lib.stride_tricks.as_strided(np.array(one), shape, (0,) * x.ndim)


def run_ufunc(ufunc, method, args, kwargs):
    """ufunc(*args), .reduce, .accumulate, .outer or .reduceat, on JAX values."""
    try:
        return _run_ufunc(ufunc, method, args, kwargs)
    except REFUSALS as e:
        refuse(e, getattr(ufunc, method), *args, **kwargs)


def _run_ufunc(ufunc, method, args, kwargs):
    fun = jax_ufunc(ufunc)
    if fun is None:
        raise TransformError(
            f"np.{ufunc.__name__} has no counterpart in JAX",
            where=compat.where(),
            hint="call it outside, or write it with other functions",
        )
    kept = {"axis"} if method == "reduce" else set()  # of which None is a value
    kwargs = {k: v for k, v in kwargs.items() if v is not NO_VALUE and (v is not None or k in kept)}
    dtype = canonical(kwargs.pop("dtype", None))
    for name in ("order", "subok", "casting", "signature", "sig"):
        kwargs.pop(name, None)
    args = [as_operand(a) for a in args]
    match method:
        case "__call__":
            if dtype is not None:
                args = [jnp.asarray(a, dtype) for a in args]
            elif ufunc in BOUNDED:
                refuse_large(*args)
            return fun(*args, **kwargs)
        case "reduce":
            rest: dict[str, Any] = dict(zip(("axis", "dtype"), args[1:], strict=False))
            axis = rest.get("axis", kwargs.pop("axis", 0))
            if ufunc.__name__ in REDUCED:
                if dtype is not None and ufunc.__name__ in ("add", "multiply"):
                    kwargs["dtype"] = dtype
                return REDUCED[ufunc.__name__](args[0], axis=axis, **kwargs)
            if not hasattr(getattr(jnp, ufunc.__name__, None), "reduce") and not kwargs:
                x, axis = (args[0].ravel(), 0) if axis is None else (args[0], axis)
                steps = run_ufunc(ufunc, "accumulate", (x, axis), {})
                return jnp.take(steps, -1, axis)
            return _as_ufunc(ufunc, fun, method).reduce(args[0], axis=axis, **kwargs)
        case "accumulate" | "reduceat":
            dtype = args.pop(at) if len(args) > (at := 2 + (method == "reduceat")) else dtype
            first = _as_added(ufunc, args[0], dtype)
            return getattr(_as_ufunc(ufunc, fun, method), method)(first, *args[1:], **kwargs)
        case "outer":
            a, b = map(jnp.asarray, args)
            return fun(a.reshape(a.shape + (1,) * b.ndim), b)
    raise TypeError(f"ufunc method {method}")


def _as_ufunc(ufunc, fun, method):
    """A ufunc of JAX, made of the function where jax.numpy has none."""
    known = getattr(jnp, ufunc.__name__, None)
    if not hasattr(known, "reduce") and method == "reduceat":
        raise TransformError(
            f"np.{ufunc.__name__}.reduceat has no counterpart in JAX",
            where=compat.where(),
            hint="perhaps: call reduce() of each part, in a loop",
        )
    return known if hasattr(known, "reduce") else jnp.frompyfunc(fun, 2, 1)


def _as_added(ufunc, x, dtype):
    """The array in the type that NumPy accumulates in."""
    if dtype is None and ufunc.__name__ in ("add", "multiply"):
        dtype = widened(x)
    elif ufunc.__name__.startswith("logical"):
        dtype = bool
    return x if dtype is None else jnp.asarray(x, canonical(dtype))


def refuse_cast(ufunc, given, wanted):
    """Let NumPy raise its own error."""
    run = ufunc if ufunc.nin == 2 else np.positive
    run(*[np.zeros(0, given)] * run.nin, out=np.zeros(0, wanted))
    raise TypeError(f"Cannot cast {given} to {wanted}")


def as_operand(x):
    return nested_array(x) if isinstance(x, list | tuple) else own(x)


def nested_array(xs):
    """The array that NumPy makes of a nested sequence with traced numbers or arrays in it."""
    if not isinstance(xs, list | tuple | range):
        return xs if isinstance(xs, jax.Array) else own(np.asarray(xs))
    leaves: list[Any] = []
    shape = _collect(xs, leaves)
    if not any(isinstance(x, jax.Array) for x in leaves):
        return np.asarray(xs)
    if shape is None or any(np.ndim(x) for x in leaves):  # arrays, or arrays among lists
        parts = [nested_array(x) for x in xs]
        if len({np.shape(x) for x in parts}) > 1:
            np.array([*map(_ones, parts)])
        return jnp.stack(parts)
    dtype = np.dtype(jnp.result_type(*map(_type_in_array, leaves)))
    parts = []
    for known, run in _runs(leaves):
        if known:
            parts.append(np.array(run, dtype))
        else:
            parts.extend(jnp.asarray(x, dtype).reshape((1,)) for x in run)
    out = parts[0] if len(parts) == 1 else jax.lax.concatenate(parts, 0)
    return out if out.shape == shape else out.reshape(shape)


def _type_in_array(x):
    """The type that an element has: of a number of Python's, NumPy's own."""
    weak = not hasattr(x, "dtype") or getattr(x, "weak_type", False)
    return jnp.asarray(jnp.result_type(x).type(0)).dtype if weak else canonical(x.dtype)


def _as_element(x):
    """An array among others; a number of Python's has NumPy's own type there."""
    number = np.ndim(x) == 0 and not isinstance(x, list | tuple)
    return jnp.asarray(x, _type_in_array(x)) if number else as_operand(x)


def _runs(leaves):
    """Neighbours that are known, together: they become one constant."""
    run: list[Any] = []
    kind = None
    for x in leaves:
        known = not isinstance(x, jax.Array)
        if known != kind and run:
            yield kind, run
            run = []
        kind = known
        run.append(x)
    yield kind, run


def _collect(xs, leaves):
    """Appends what is no sequence to `leaves`; the shape of the nesting, None if uneven."""
    if not isinstance(xs, list | tuple | range):
        leaves.append(xs)
        return ()
    shapes = {_collect(x, leaves) for x in xs}
    if len(shapes) > 1 or None in shapes:
        return None
    return (len(xs), *(shapes.pop() if shapes else ()))


@functools.lru_cache(None)
def jax_function(func):
    """The jax.numpy function of the same name, taking NumPy's arguments, or None."""
    module = getattr(func, "__module__", None) or ""
    space = SPACES.get(".".join(module.split(".")[:2]))
    space = None if "scimath" in module else space  # np.emath gives other results
    name = getattr(func, "__name__", "")
    if name.startswith("_") or "." in getattr(func, "__qualname__", ""):  # a method
        return None
    found = getattr(space, OTHER_NAMES.get(name, name), None)
    if space is jnp:
        found = _WEIGHED.get(func) or OWN.get(OTHER_NAMES.get(name, name), found)
    if found is None or not callable(found) or isinstance(found, type):
        return None
    return _adapted(found, name, func)


def _adapted(fun, name, numpys):
    try:
        parameters = inspect.signature(fun).parameters
        anything = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        known = None if anything else set(parameters)
    except (TypeError, ValueError):
        known = None
    sequence, shaped, counts = name in SEQUENCES, name in SHAPED, name in COUNTS
    count = 1 if name == "diff" else 2  # of the arguments that are arrays

    def call(*args, **kwargs):
        if name in CHECKED:  # but for weights, and for numbers that NumPy may compare
            first, named = args[:4], {k: x for k, x in kwargs.items() if k != "weights"}
            rest = jax.tree.leaves((first[1:], named))
            if name == "geomspace" or not any(isinstance(x, jax.Array) for x in rest):
                ask_numpy(numpys, first, named, 2)
        if name in ELEMENTS:
            args = [_as_element(x) if k < count else x for k, x in enumerate(args)]
            named = {k: _as_element(x) for k, x in kwargs.items() if k in ("prepend", "append")}
            kwargs = {**kwargs, **named}
        if name in ("eigh", "eigvalsh", "cholesky"):
            kwargs["symmetrize_input"] = False  # NumPy looks at one triangle
        if name != "block":
            args = [_argument(a, i, sequence, shaped) for i, a in enumerate(args)]
        if kwargs:
            kwargs = {k: _option(k, v) for k, v in kwargs.items() if _kept(k, v, known, name)}
        try:
            out = fun(*args, **kwargs)
        except NotImplementedError as e:
            hint = "call it on known values, or write it with other functions"
            raise TransformError(f"np.{name}: {e}", where=compat.where(), hint=hint) from e
        if name in DOUBLES:
            return out[0].astype(canonical(float)), *out[1:]
        return out.astype(canonical(int)) if counts else out

    return functools.update_wrapper(call, fun)


def _average(a, axis=None, weights=None, returned=False, **options):
    given = [jnp.asarray(x).dtype for x in (a, weights) if x is not None]
    kind = np.result_type(*given, float if given[0].kind in "biu" else given[0])
    return jnp.average(jnp.asarray(a, canonical(kind)), axis, weights, returned, **options)


def _histogram(a, bins=10, range=None, density=None, weights=None):
    weights = np.ones(np.shape(a), int) if weights is None else as_operand(weights)
    kind, weights = float if density else weights.dtype, doubled(weights)
    edges = jnp.histogram_bin_edges(a, bins, range)
    return jnp.histogram(a, edges, None, weights, density)[0].astype(canonical(kind)), edges


def doubled(x):
    """An array in NumPy's float, or complex, of double precision."""
    return jnp.asarray(x, canonical(np.result_type(x.dtype, float)))


_WEIGHED = {np.average: _average, np.histogram: _histogram}  # which NumPy computes in doubles


def _kept(key, value, known, name) -> bool:
    unsaid = value is NO_VALUE or (key in ("order", "kind") and value in ("K", "A", None))
    if unsaid or key in ("out", "device", "kind", "copy", "casting", "like", "subok"):
        return False
    if known is None or key in known:
        return not (key == "mode" and value == "raise")
    if key in MEMORY or value is None or value is False:
        return False
    raise TransformError(
        f"np.{name}({key}={value!r}) cannot be traced: JAX has no such argument",
        where=compat.where(),
        hint="leave the argument out, or call the function on known values",
    )


def canonical(dtype):
    """The type JAX has for one of NumPy's: 32 bits where 64 are off; None stays None."""
    return None if dtype is None else jax.dtypes.canonicalize_dtype(dtype)


def _option(key, value):
    if key == "dtype":
        return canonical(value)
    found = isinstance(value, list) and (key in NUMBERS or _has_array(value))
    return nested_array(value) if found else own(value)


def _argument(value, position, sequence, shaped):
    if not isinstance(value, list | tuple):
        return own(value)
    if (sequence and position == 0) or (sequence and isinstance(value, list)):
        return [_as_element(x) for x in value]
    if _has_array(value):
        return nested_array(value)
    if shaped:
        value = type(value)(map(own, value)) if type(value) in (list, tuple) else value
        return tuple(value) if isinstance(value, list) and position else value
    if isinstance(value, list) or position == 0:
        return np.array(value)
    return value


def _has_array(value) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_array, value))
    return isinstance(value, jax.Array)
