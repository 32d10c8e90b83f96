"""What a call of a NumPy function becomes in converted code.

`replacement(fun)` takes NumPy's arguments with boxes among them. Where nothing is traced it runs
NumPy itself and boxes the arrays that come out; else it runs jax.numpy with NumPy's meaning.
"""

import functools
import itertools
import operator
import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.arrays import functions
from malleable.arrays.box import Box, any_jax, any_traced, as_box, held, rebox, unbox, wrap
from malleable.arrays.content import PYTHON_TYPES
from malleable.arrays.masked import UNSIZED, Masked, put_together, unknown_size
from malleable.arrays.places import has_tracer, retyped
from malleable.arrays.protocols import rebox_numpy, run_function, run_ufunc
from malleable.arrays.rows import gathered
from malleable.arrays.specials import SPECIAL, as_strided
from malleable.errors import TransformError
from malleable.frontend.common.session import session
from malleable.frontend.counterparts import polynomials
from malleable.frontend.counterparts.bounded import array_of, masked
from malleable.frontend.counterparts.scalars import python_scalar
from malleable.frontend.values import raises
from malleable.frontend.values.values import bounded

CONVERT: Any = type("Convert", (), {"__repr__": lambda self: "CONVERT"})()
CALLS_BACK = frozenset(  # functions of the user's among the arguments: convert them first
    (np.apply_along_axis, np.apply_over_axes, np.piecewise, np.fromfunction)
)
REGULAR = frozenset((np.linalg.inv, np.linalg.solve, np.linalg.cholesky))  # or they raise
MOVES = frozenset(("shuffle", "permutation", "permuted", "choice"))  # methods of a generator
GRIDS = type(np.r_).__mro__[1].__module__  # where np.r_, np.c_ and np.mgrid are written
_DISPATCHER = type(np.sum)
_CACHE: dict[int, tuple[Any, Any]] = {}  # by identity; holds the function, so that it stays its own


def replacement(fun: Any) -> Any:
    """The function to call in place of `fun`; CONVERT; or None for what is not NumPy's.

    CONVERT: NumPy wrote it in Python and JAX has nothing like it, so convert
    `implementation(fun)` and run that.

    >>> replacement(np.sin)(0.0)
    np.float64(0.0)
    >>> replacement(len) is None
    True
    """
    known = _CACHE.get(id(fun))
    if known is not None:
        return known[1]
    new, lasting = _find(fun)
    if lasting:
        _CACHE[id(fun)] = fun, new
    return new


def implementation(fun: Callable) -> Callable:
    """The Python function behind one of NumPy's."""
    return getattr(fun, "_implementation", fun)


def grid_item(grid, index):
    """np.r_[index], np.c_[index] or another such object, with boxes in the index."""
    raw = unbox(index)
    if not any_traced(index):
        return rebox_numpy(grid[raw])
    new = {id(np.r_): jnp.r_, id(np.c_): jnp.c_, id(np.s_): np.s_}.get(id(grid), grid)
    if grid is np.r_ and isinstance(raw, tuple) and any(type(x) is Masked for x in raw):
        rows = (np.r_[x] if isinstance(x, slice) else x for x in raw)
        return put_together([[x] if np.ndim(x) == 0 else x for x in rows])
    raw = tuple(map(functions.as_operand, raw)) if isinstance(raw, tuple) else raw
    out = rebox(new[raw])
    raises.note_type("np.r_", grid.__getitem__, (index,), out)
    return out


def vectorized(vec: np.vectorize, fun: Callable | None = None) -> Callable:
    """A `np.vectorize` object as a function on boxes; fun: what to call for `vec.pyfunc`."""
    fun = fun or vec.pyfunc

    def as_python(x):
        kind = PYTHON_TYPES.get(x.dtype.kind.replace("u", "i"))
        return python_scalar(x, kind) if kind else wrap(x)

    def one(item, *args):
        out = fun(*map(item, args))
        raises.note_vectorized(out)
        return unbox(out)

    def call(*args, **kwargs):
        if not any_traced((args, kwargs)):
            return rebox_numpy(vec(*unbox(args), **unbox(kwargs)))
        if vec.excluded or kwargs:
            raise TransformError(
                "np.vectorize with excluded or keyword arguments cannot be traced",
                where=compat.where(),
                hint="pass all arguments by position, or close over the excluded ones",
            )
        raw = [functions.nested_array(a) for a in unbox(args)]
        item = wrap if vec.signature else as_python  # NumPy goes over objects
        out = jnp.vectorize(functools.partial(one, item), signature=vec.signature)(*raw)
        outs = out if isinstance(out, tuple) else (out,)
        kinds = vec.otypes or [None] * len(outs)
        if not (vec.otypes or vec.signature):  # and asks one of them for its type before
            first = [jax.ShapeDtypeStruct((), functions.canonical(x.dtype)) for x in raw]
            types = jax.eval_shape(functools.partial(one, wrap), *first)
            kinds = [x.dtype for x in jax.tree.leaves(types)]
        outs = tuple(rebox(_typed(x, kind)) for x, kind in zip(outs, kinds, strict=True))
        return outs if isinstance(out, tuple) else outs[0]

    return call


def _find(fun) -> tuple[Any, bool]:
    """(the replacement, whether it holds for as long as `fun` lives)"""
    if isinstance(fun, np.ufunc):
        return _ufunc(fun, "__call__"), True
    owner = getattr(fun, "__self__", None)
    if owner is not None and not isinstance(owner, type | types.ModuleType):
        return _bound(owner, fun.__name__, fun), False
    for name, make in _CREATION.items():
        if fun is getattr(np, name, None):
            return make, True
    if fun is np.lib.stride_tricks.as_strided:
        return as_strided, True
    if isinstance(fun, types.FunctionType) and fun in polynomials.FUNCTIONS:
        return polynomials.FUNCTIONS[fun], True
    if isinstance(fun, type):
        if issubclass(fun, np.generic) and (fun.__module__ or "").startswith("numpy"):
            return _constructor(fun), True
        return _CLASSES.get(fun), fun in _CLASSES
    module = getattr(fun, "__module__", None) or type(fun).__module__
    if module.startswith("numpy.ma."):
        return _of_masked_arrays(fun), False
    if isinstance(fun, np.vectorize):
        return vectorized(fun), False
    if not isinstance(module, str) or module.partition(".")[0] != "numpy":
        return None, False
    if type(fun) is _DISPATCHER:
        return _dispatched(fun), True
    if module.startswith("numpy.random") and fun.__name__ in MOVES:
        return functools.partial(_moved, fun), True
    if isinstance(fun, types.BuiltinFunctionType):
        return _native(fun), True
    if not isinstance(fun, types.FunctionType) or module.startswith("numpy.testing"):
        return None, False
    if functions.jax_function(fun) is not None:
        return _function(fun), True
    return CONVERT, True


def _ufunc(ufunc, method):
    def call(*inputs, **kwargs):
        inputs = listed_values(inputs)
        given = len(inputs) - ufunc.nin
        if given > 0 and method == "__call__":
            kwargs["out"] = inputs[ufunc.nin :]
            inputs = inputs[: ufunc.nin]
        if "out" in kwargs and not isinstance(kwargs["out"], tuple):
            kwargs["out"] = (kwargs["out"],)
        if all(x is None for x in kwargs.get("out", ())):
            kwargs.pop("out", None)
        run = lambda *xs: run_ufunc(ufunc, method, xs, dict(kwargs))  # noqa: E731
        if method == "at":
            return run(*inputs)
        trial = None
        if "out" in kwargs:
            plain = {key: x for key, x in kwargs.items() if key != "out"}
            trial = lambda *xs: run_ufunc(ufunc, method, xs, plain)  # noqa: E731
        name = ufunc.__name__ if method == "__call__" else method
        out = raises.at_floats(run, name, *inputs, trial=trial)
        raises.note_type(name, getattr(ufunc, method), inputs, out, kwargs)
        return out

    return call


def _bound(owner, name, fun):
    """A method of an object of NumPy's: np.add.at, np.random.normal, array.sum."""
    if isinstance(owner, np.ufunc):
        return _ufunc(owner, name)
    if isinstance(owner, np.ndarray | np.generic):
        known, of_box = _native(fun), lambda *xs, **kw: getattr(Box(owner), name)(*xs, **kw)
        return lambda *xs, **kw: (of_box if any_traced((xs, kw)) else known)(*xs, **kw)
    ours = (type(owner).__module__ or "").startswith("numpy.random")
    return _native(fun) if ours else None


def run_method(call: Callable, method: Any, args: tuple, kwargs: dict) -> Any:
    """method(*args), of a box."""
    given, name = (method.__self__, *args), method.__name__
    run = functools.partial(call, method.__func__, **kwargs)
    out = raises.at_floats(run, name, *given) if name in raises.REDUCTIONS else run(*given)
    if hasattr(np.ndarray, name):
        raises.note_type(name, getattr(np.ndarray, name), given, out, kwargs)
    return out


def listed_values(args: tuple) -> tuple:
    """The arguments, with an array in place of a list whose length is traced."""
    return tuple(masked(x[0], rows=True) if bounded(x) is not None else x for x in args)


def _moved(fun: Callable, owner, x, *args, **kwargs):
    """A method of a random generator of NumPy's that moves what is in an array, or takes of it."""
    if not isinstance(x, Box) or not x.ndim or "out" in kwargs:
        return _native(fun)(owner, x, *args, **kwargs)
    at = np.arange(x.size).reshape(x.shape)
    out = fun(owner, at, *unbox(args), **unbox(kwargs))
    if out is not None:
        return x.ravel()[out]
    x[...] = x.ravel()[at]


def _native(fun):
    return lambda *args, **kwargs: rebox_numpy(fun(*unbox(args), **unbox(kwargs)))


def _function(fun):
    def call(*args, **kwargs):
        args = listed_values(args)
        if fun.__name__ in raises.REDUCTIONS and kwargs.get("out") is None:
            out = raises.at_floats(lambda *xs: run_function(fun, xs, kwargs), fun.__name__, *args)
        else:
            out = run_function(fun, args, kwargs)
        raises.note_type(fun.__name__, fun, args, out, kwargs)
        return out

    return call


def _of_masked_arrays(fun):
    """A function of np.ma, whose arrays are no boxes: of values that are known."""

    def call(*args, **kwargs):
        if any_traced((args, kwargs)):
            raise TransformError(
                "np.ma takes a traced array, and its masked arrays cannot be traced",
                where=compat.where(),
                hint="keep the mask in an array of its own: np.sum(x, where=mask)",
            )
        return rebox_numpy(fun(*unbox(args), **unbox(kwargs)))

    return call


def _dispatched(fun):
    if fun in (np.bincount, np.average):
        return bincount if fun is np.bincount else average
    if fun in REGULAR:
        return lambda a, *args, **kw: run_function(fun, (*raises.regular(fun, a, *args),), kw)
    if fun in SPECIAL or functions.jax_function(fun) is not None:
        return _function(fun)
    inner = getattr(fun, "_implementation", None)
    return CONVERT if isinstance(inner, types.FunctionType) else _function(fun)


def average(a, axis=None, weights=None, *args, **kwargs):
    """np.average, whose weights may sum to zero: a ZeroDivisionError, also of NumPy's numbers."""
    if weights is not None:
        w = functions.nested_array(unbox(weights))
        zero = (w.sum(axis if w.ndim > 1 else None) == 0).any()
        error = ZeroDivisionError("Weights sum to zero, can't be normalized")
        if not isinstance(zero, compat.Tracer):
            if zero:
                raise raises.raised(error)
        elif not raises.is_asked(error):
            raises.untested(raises.DIVISION)
        elif raises.raise_where(zero, error):
            weights = Box(jnp.where(zero, 1, w), False)
    return _function(np.average)(a, axis, weights, *args, **kwargs)


def bincount(x, /, weights=None, minlength=0):
    """np.bincount, of traced numbers as long as minlength says: a larger one is a `raise`."""
    if not any_traced((x, weights)):
        return run_function(np.bincount, (x, weights, minlength), {})
    if any_traced(x) and not minlength:
        raise unknown_size("np.bincount")
    at = functions.nested_array(unbox(x))
    if weights is not None:
        weights = functions.doubled(functions.nested_array(unbox(weights)))
    length = minlength if any_traced(x) else max(minlength, np.max(at, initial=-1) + 1)
    raises.fail_where(jnp.any(at < 0), ValueError("'list' argument must have no negative elements"))
    raises.fail_where(
        jnp.any(at >= length), ValueError("np.bincount: a number is not below minlength")
    )
    return Box(jnp.bincount(at, weights, length=length), False)


def _constructor(kind):
    """np.float64(x) and its like."""
    dtype = np.dtype(kind) if kind in _NUMBERS else None

    def call(*args, **kwargs):
        if not args or dtype is None or not any_jax(unbox(args)):
            return rebox_numpy(kind(*unbox(args), **unbox(kwargs)))
        loose = dtype.kind in "iu" and raises.is_weak(args[0]) and not np.ndim(unbox(args[0]))
        x = raises.whole_number(args[0], functions.canonical(dtype)) if loose else args[0]
        value = jnp.asarray(functions.nested_array(unbox(x)))
        if value.dtype.kind == "c" and dtype.kind not in "cb":
            value = value.real
        return wrap(_typed(value, dtype))

    return call


_NUMBERS = {kind for kind in np.sctypeDict.values() if np.dtype(kind).kind in "biufc"}


# ---------------------------------------------------------------- arrays made


def _copies(mode) -> bool | None:
    """`copy=` as a bool, or None for where it is needed: np._CopyMode of array-API libraries."""
    name = getattr(mode, "name", None)
    return mode if name is None else {"ALWAYS": True, "NEVER": False}.get(name)


def array(object, dtype=None, *, copy=True, order="K", subok=False, ndmin=0, like=None):
    """np.array: a copy, of a nested sequence with boxes in it, too."""
    copy = _copies(copy)
    if not copy:
        found = asarray(object, dtype, order, copy=copy)
        more = (1,) * (ndmin - found.ndim)
        return found.reshape(more + found.shape) if more else found
    (object,) = gathered((object,))
    if type(object) in UNSIZED:
        return object.copy() if dtype is None else object.astype(dtype)
    if bounded(object) is not None:
        found = masked(object[0], rows=True)
        return found if dtype is None else found.astype(dtype)
    raw = unbox(object)
    if not any_jax(raw):
        return held(np.array(raw, dtype, order=order, subok=subok, ndmin=ndmin))
    value = functions.nested_array(raw)
    new = _typed(value, dtype)
    raises.note_type("array", np.array, (object, dtype), Box(new))
    if ndmin > new.ndim:
        return Box(new.reshape((1,) * (ndmin - new.ndim) + new.shape), False)
    out = Box(new, False)
    turned = order == "F" or (order == "A" and isinstance(object, Box) and object.flags.fnc)
    return out.laid(object) if order == "K" else out.copy("F") if turned else out


def _typed(value, dtype):
    kind = functions.canonical(dtype) or value.dtype
    if value.dtype.kind == "c" and np.dtype(kind).kind not in "cb":
        raise TypeError("float() argument must be a string or a real number, not 'complex'")
    return jnp.array(retyped(value, kind), kind, copy=False)


def asarray(a, dtype=None, order=None, *, copy=None, **kwargs):
    """np.asarray: the same box wherever the type fits."""
    copy = _copies(copy)
    if copy:
        return array(a, dtype, order=order or "K")
    if type(a) in UNSIZED:
        return a if dtype is None else a.astype(dtype)
    if isinstance(a, Box) and not a.scalar:
        if order in ("C", "F") and not a.flags[f"{order}_CONTIGUOUS"]:
            return asarray(a.copy(order), dtype)
        same = (
            dtype is None
            or np.dtype(dtype) == a.dtype
            or (a.traced and functions.canonical(dtype) == a.dtype)
        )
        return a if same else a.astype(dtype)
    if isinstance(a, np.ndarray) and not isinstance(a, Box):
        return held(np.asarray(a, dtype))
    return array(a, dtype, order=order or "K")


def ascontiguousarray(a, dtype=None, **kwargs):
    """np.ascontiguousarray, which returns at least one axis."""
    out = asarray(a, dtype, "C")
    return out if out.ndim else out.reshape((1,))


def require(a, dtype=None, requirements=None, **kwargs):
    """np.require: a copy where the array does not lie in memory as required."""
    wanted = {str(r)[0].upper() for r in requirements or ()}
    return asarray(a, dtype, next(iter(wanted & {"C", "F"}), None))


def _made(name):
    """A creation function whose arguments decide the shape."""
    fun = getattr(np, name)

    def call(*args, **kwargs):
        raw, options = unbox(args), unbox(kwargs)
        if not any_jax(raw) and not any_jax(options):
            return rebox_numpy(fun(*raw, **options))
        bounded_by_mask = None if session().options.exact else array_of(name, raw, options)
        if bounded_by_mask is not None:
            return bounded_by_mask
        raise TransformError(
            f"np.{name} of a size that is known only at run time",
            where=compat.where(),
            hint="make the array as large as it can get, and use a part of it through a mask",
        )

    return call


def fromiter(iter, dtype, count=-1, **kwargs):
    """np.fromiter, of items that may be traced."""
    items = list(iter) if count < 0 else list(itertools.islice(iter, count))
    if len(items) < count:
        raise ValueError(
            f"iterator too short: Expected {count} but iterator had only {len(items)} items."
        )
    return array(items, dtype)


def full(shape, fill_value, dtype=None, order="C", **kwargs):
    """np.full, with a value that may be traced."""
    if not any_traced(fill_value):
        return _full(shape, fill_value, dtype)
    value = _typed(functions.nested_array(unbox(fill_value)), dtype)
    raises.note_type("full", np.full, (1, fill_value, dtype), Box(value))
    zeros = _make_zeros(shape)
    if type(zeros) is Masked:
        return zeros._like(jnp.broadcast_to(value, zeros.whole.shape))
    return Box(jnp.broadcast_to(value, zeros.shape), False)


_full = _made("full")
_make_zeros = _made("zeros")


def _like(name):
    """zeros_like and others: made by NumPy, since only shape and dtype of the array matter."""
    fun = getattr(np, name)

    def call(a, *args, **kwargs):
        if name == "full_like" and any_traced((args, kwargs)):
            return _full_like(a, *args, **kwargs)
        if type(a) is Masked:
            return a._like(getattr(jnp, name)(a.whole, *args, **kwargs))
        raw = unbox(a)
        if not any_jax(raw):
            return rebox_numpy(fun(raw, *unbox(args), **unbox(kwargs)))
        raw = functions.nested_array(raw)
        plain = type(a) is not Box or a.scalar
        model = np.broadcast_to(raw.dtype.type(), raw.shape) if plain else a._model(raw.dtype)
        return held(np.array(fun(model, *unbox(args), **unbox(kwargs))))

    return call


def _full_like(a, fill_value, dtype=None, order="K", subok=True, shape=None):
    a = asarray(a)
    out = full(a.shape if shape is None else shape, fill_value, dtype or a.dtype)
    return out.laid(a) if order == "K" and isinstance(out, Box) else out


def arange(*args, dtype=None, **kwargs):
    """np.arange, of bounds that may be traced."""
    return _arange(*args, **kwargs, **({} if dtype is None else {"dtype": dtype}))


_arange = _made("arange")


def roots(p):
    """np.roots; a leading coefficient that is traced counts as not zero."""
    raw = unbox(p)
    if not any_jax(raw):
        return rebox_numpy(np.roots(raw))
    return rebox(jnp.roots(functions.nested_array(raw), strip_zeros=False))


def fromfunction(function, shape, *, dtype=float, like=None, **kwargs):
    grid = np.indices(tuple(map(int, shape)), dtype=dtype)
    return function(*(Box(g, False) for g in grid), **kwargs)


def piecewise(x, condlist, funclist, *args, **kwargs):
    """np.piecewise: each function is given its part of x, masked."""
    x = asarray(x)
    one = x.ndim == 0 and getattr(condlist, "ndim", 1) == 0
    conditions = [asarray(c) for c in ([condlist] if one else list(condlist))]
    if conditions[0].ndim < x.ndim:
        conditions = [asarray(condlist)]
    if len(funclist) == len(conditions) + 1:
        conditions.append(functools.reduce(operator.or_, conditions) ^ True)
    if len(funclist) != len(conditions):
        n = len(conditions)
        raise ValueError(f"with {n} condition(s), either {n} or {n + 1} functions are expected")
    y = _like("zeros_like")(x)
    for condition, value in zip(conditions, funclist, strict=True):
        if x.ndim == 0:
            new = value(x, *args, **kwargs) if callable(value) else value
            y[...] = jnp.where(unbox(condition), unbox(new), unbox(y))
        else:
            y[condition] = value(x[condition], *args, **kwargs) if callable(value) else value
    return y


def nditer(op, *args, **kwargs):
    """np.nditer goes over memory, in an order that a traced array does not have."""
    if not any_traced((op, args, kwargs)):
        return np.nditer(unbox(op), *unbox(args), **unbox(kwargs))
    raise TransformError(
        "np.nditer goes over a traced array, which has no memory",
        where=compat.where(),
        hint="go over x.flat or np.ndenumerate(x), or work on the whole array",
    )


def _limits(kind):
    """np.finfo or np.iinfo of a type or of a number."""
    return lambda dtype: kind(dtype.dtype if isinstance(dtype, Box) else unbox(dtype))


def _on_shape(name):
    fun = getattr(np, name)

    def call(arr, *args, **kwargs):
        model = np.broadcast_to(np.int8(0), np.shape(unbox(arr)))
        return rebox_numpy(fun(model, *unbox(args), **unbox(kwargs)))

    return call


def argwhere(a):
    if not any_traced(a) or not np.ndim(a):
        return run_function(np.argwhere, (a,), {})
    along = np.nonzero(as_box(a))
    return Masked(jnp.stack([p.whole for p in along], -1), along[0].mask, Box)


def delete(arr, obj, axis=None):
    """With one traced index the others are gathered; of several, how many stay is not known."""
    at = unbox(obj)
    known = not any_jax((at,)) and type(at) is not Masked and not has_tracer(at)
    if known or type(arr) is Masked:
        return run_function(np.delete, (arr, obj, axis), {})
    box = Box(functions.nested_array(unbox(arr)), False)
    box, axis = (box.ravel(), 0) if axis is None else (box, axis % box.ndim)
    n = box.shape[axis]
    whole = isinstance(at, slice) or type(at) is Masked
    at = at if whole else functions.nested_array(at)
    if whole or at.dtype == np.bool_ or at.size != 1:
        stays = Box(jnp.ones(n, bool), False)
        stays[at] = False
        return box[(*(slice(None),) * axis, stays)]
    if not np.issubdtype(at.dtype, np.integer):
        raise IndexError("arrays used as indices must be of integer (or boolean) type")
    first = jnp.ravel(at)[0]
    text = f"index is out of bounds for axis {axis} with size {n}"
    raises.raise_where((first < -n) | (first >= n), IndexError(text))
    rest = jnp.arange(max(n - 1, 0))
    rest += rest >= jnp.where(first < 0, first + n, first)
    return Box(jnp.take(unbox(box), rest, axis), False)


_CREATION: dict[str, Callable] = {
    "asanyarray": asarray,
    "isscalar": lambda x: x.scalar if isinstance(x, Box) else np.isscalar(x),
    "iterable": lambda y: y.ndim > 0 if isinstance(y, Box) else np.iterable(y),
    "polyval": lambda p, x: _function(np.polyval)(p.coeffs if isinstance(p, np.poly1d) else p, x),
    "asarray_chkfinite": lambda a, dtype=None, order=None: (  # what is traced is not checked
        asarray(a, dtype) if any_traced(a) else Box(np.asarray_chkfinite(unbox(a), dtype), False)
    ),
    "asfortranarray": lambda a, dtype=None, **kwargs: asarray(a, dtype, "F"),
}
for _fun in (
    *(array, asarray, ascontiguousarray, require, full, arange),
    *(argwhere, delete, roots, piecewise, fromfunction, fromiter),
):
    _CREATION[_fun.__name__] = _fun
for _name in (
    *("zeros", "ones", "empty", "eye", "identity", "tri", "frombuffer", "fromstring"),
    *("diag_indices", "tril_indices", "triu_indices", "mask_indices"),
    *("hanning", "hamming", "blackman", "bartlett"),
):
    _CREATION[_name] = _made(_name)
for _name in ("zeros_like", "ones_like", "empty_like", "full_like"):
    _CREATION[_name] = _like(_name)
for _name in ("triu_indices_from", "tril_indices_from", "diag_indices_from"):
    _CREATION[_name] = _on_shape(_name)
for _name in ("issubdtype", "promote_types", "seterr", "geterr", "isdtype", "mintypecode"):
    _CREATION[_name] = _native(getattr(np, _name))
_CLASSES: dict[Any, Any] = {
    **{f: f for f in (np.errstate, np.dtype)},
    np.nditer: nditer,
    np.ndenumerate: lambda a: ((i, asarray(a)[i]) for i in np.ndindex(np.shape(unbox(a)))),
    **{kind: _limits(kind) for kind in (np.finfo, np.iinfo)},
    np.broadcast: lambda *xs: np.broadcast(*(np.broadcast_to(0, np.shape(unbox(x))) for x in xs)),
    np.ndarray: _made("ndarray"),
    np.ndindex: lambda *shape: np.ndindex(*unbox(shape)),
}
