"""SciPy on traced values: `replacement(fun)` says what runs in place of a function of SciPy.

Numerical functions run as their namesakes in jax.scipy or as the formulas below, the array-API
scaffolding of SciPy is cut short, and compiled code without a counterpart is refused by name. SciPy
itself is never imported: a function that is handed to us brings its module along.
"""

import inspect
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.fft
import jax.scipy.integrate
import jax.scipy.linalg
import jax.scipy.ndimage
import jax.scipy.signal
import jax.scipy.special
import jax.scipy.stats
import numpy as np

from malleable import compat
from malleable.arrays import functions
from malleable.arrays.box import as_box, is_traced, rebox, unbox
from malleable.arrays.masked import Masked, unknown_size
from malleable.errors import TransformError
from malleable.frontend.counterparts import formulas, jacobians, lapack, numpy, special
from malleable.frontend.values.values import is_thing


class Instead:
    """A function to convert in place of the one asked for; called as it is, it runs as it is."""

    def __init__(self, fun, dropped=()):
        self.fun, self.dropped = fun, dropped

    def kept(self, kwargs):
        """The keyword arguments for `fun`: not those for what it is wrapped in."""
        known = parameters_of(self.fun) if self.dropped else ()
        return {k: v for k, v in kwargs.items() if k not in self.dropped or k in known}

    def __call__(self, *args, **kwargs):
        return self.fun(*args, **self.kept(kwargs))


class CallsBack:
    """On traced values `substitute`, which calls the functions it is given, else `original`."""

    def __init__(self, original, substitute):
        self.original, self.substitute = original, substitute

    def __call__(self, *args, **kwargs):
        chosen = self.substitute if any_traced(args, kwargs) else self.original
        return chosen(*args, **kwargs)


def replacement(fun):
    """What to call for `fun`: a function that takes boxes, an `Instead`, or CONVERT.

    None for what does not belong to SciPy. The function it returns runs SciPy itself as long as no
    argument is traced. Raises TransformError, when called, for compiled code on traced values.
    """
    if isinstance(fun, np.ufunc):
        known = getattr(np, fun.__name__, None) is fun
        return None if known else lifted(fun, special_function(fun.__name__))
    if type(fun).__name__ == "fortran":
        name = fun.__name__.split()[-1]
        run = lifted(fun, lapack.routine(name) or refused(fun))
        return overwriting(run, 1) if name[1:] in lapack.OVERWRITE_SECOND else run
    module = getattr(fun, "__module__", None)
    if not isinstance(module, str) or not module.startswith("scipy.") or inspect.isclass(fun):
        return cut_short(fun) if inspect.isclass(fun) else None
    if isinstance(method := distribution_method(fun), Callable):
        return lifted(fun, method)
    if (short := cut_short(fun)) is not None:
        return short
    if (substitute := namesake(fun, module)) is not None:
        return lifted(fun, matched(fun, substitute))
    if isinstance(fun, (types.FunctionType, types.MethodType)):
        return numpy.CONVERT
    if not inspect.isbuiltin(fun) and not type(fun).__name__.endswith(COMPILED):
        return None  # an object that can be called
    in_place = formulas.IN_PLACE.get(fun.__name__)
    return writing(fun, in_place) if in_place else lifted(fun, refused(fun))


COMPILED = ("cython_function", "cython_function_or_method", "nb_func", "pybind11_function")


# -- how a substitute meets boxes and SciPy's arguments


def any_traced(*trees):
    return any(is_traced(leaf) for leaf in jax.tree.leaves(trees))


def lifted(original, substitute):
    """`substitute` on the content of boxes if any of it is traced, else `original`."""
    if "output" in parameters_of(original):
        return into_output(original, substitute)

    def run(*args, out: Any = None, **kwargs) -> Any:
        if (one := next(filter(is_thing, args), None)) is not None:  # of tuples, or None
            return one.each(lambda o: run(*(o if x is one else x for x in args), out=out, **kwargs))
        selected = next((x for x in args if type(x) is Masked), None)
        if selected is not None:
            if not isinstance(original, np.ufunc):
                raise unknown_size(f"{original.__name__} of x[mask]")
            return selected.map(substitute, *args, **kwargs)
        places: Any = out if isinstance(out, tuple) else (out,)
        values: Any = unbox(args)
        named: Any = unbox(kwargs)
        chosen = substitute if any_traced(values, named) else calling(original)
        results: Any = rebox(chosen(*values, **named))
        if out is None:
            return results
        for place, result in zip(places, results if len(places) > 1 else (results,), strict=True):
            place[...] = result
        return places if len(places) > 1 else places[0]

    return run


def calling(original):
    """`original`; if it is compiled, refused once a function that it calls gives a traced value."""
    if not inspect.isbuiltin(original):
        return original

    def run(*args, **kwargs):
        traced = []

        def asked(f):
            def call(*xs, **named):
                if not any_traced(out := f(*xs, **named)):
                    return out
                traced.append(out)
                return np.full(getattr(out, "shape", ()), np.nan)

            return call

        try:
            return original(*(asked(x) if callable(x) else x for x in args), **kwargs)
        finally:  # compiled code may raise another error of its own, or none
            if traced:
                refused(original)()

    return run


def parameters_of(fun):
    try:
        return inspect.signature(fun).parameters
    except (TypeError, ValueError):
        return {}


def into_output(original, substitute):
    """For functions of scipy.ndimage, which write into `output` if it is an array."""
    signature = inspect.signature(original)

    def run(*args, **kwargs) -> Any:
        bound = signature.bind(*args, **kwargs)
        if not any_traced(bound.args, bound.kwargs):
            return rebox(original(*args, **kwargs))
        output = bound.arguments.pop("output", None)
        result = rebox(substitute(**unbox(bound.arguments)))
        if isinstance(output, np.ndarray):
            output[...] = result
            return output
        return result if output is None else result.astype(output)

    return run


def writing(original, substitute):
    """For a compiled function that writes its result into its last argument."""

    def run(*args):
        *boxes, out = args
        inputs: Any = unbox(tuple(boxes))
        if any_traced(inputs) or is_traced(out):
            out[...] = rebox(substitute(*inputs))
        else:
            result = np.array(unbox(out))
            original(*inputs, result)
            out[...] = result

    return run


def overwriting(run, position):
    """For a routine that leaves its result in one of its arguments."""

    def into(*args, **kwargs):
        place = args[position]
        if not isinstance(place, np.ndarray):
            return run(*args, **kwargs)
        result = run(*args[:position], place.copy(), *args[position + 1 :], **kwargs)
        if place.shape != result.shape:
            return result
        place[...] = result
        return place

    return into


IGNORED = {
    *("overwrite_a", "overwrite_b", "overwrite_ab", "overwrite_x", "overwrite_c", "check_finite"),
    *("overwrite_qru", "lapack_driver", "driver", "lwork", "workers", "plan", "method"),
    "prefilter",
}


def as_data(value):
    """A list of numbers as the array that SciPy takes it for."""
    if type(value) is not list or not value:
        return value
    if any_traced(value):
        return functions.nested_array(value)
    return np.asarray(value) if isinstance(value[0], int | float | complex | list) else value


def matched(original, substitute):
    """Call `substitute` with the arguments of `original`, by name where they have defaults."""
    signature = inspect.signature(original)
    theirs, ours = signature.parameters, inspect.signature(substitute).parameters
    anything = any(p.kind is p.VAR_KEYWORD for p in ours.values())

    def run(*args, **kwargs):
        positional, named = [], {}
        value: Any
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            parameter = theirs[name]
            if parameter.kind is parameter.VAR_POSITIONAL:
                positional += map(as_data, value)
                continue
            value = as_data(value)
            simple = isinstance(value, str | int | float | None)
            if parameter.default is parameter.empty:
                positional.append(value)
            elif name in ours or anything:
                named[name] = value
            elif not (name in IGNORED or (simple and value == parameter.default)):
                raise TransformError(
                    f"{original.__name__}({name}={value!r}) has no counterpart in JAX",
                    where=compat.where(),
                    hint=f"call it without {name!r}, or on values known at trace time",
                )
        return substitute(*positional, **named)

    return run


def refused(fun):
    """A function that says that `fun` is compiled code, which nothing traced may enter."""
    symbol = f"{getattr(fun, '__module__', None) or 'scipy'}.{fun.__name__.split()[-1]}"
    return unknown(symbol.removeprefix("None."))


IN_PYTHON = {  # functions of SciPy that do the same, and are converted
    "_zeros": "scipy.optimize.toms748",
    "_quadpack": "scipy.integrate.fixed_quad (of an f of arrays, between finite bounds)",
    "_odepack": "scipy.integrate.solve_ivp",
}


def unknown(symbol):
    other = IN_PYTHON.get(symbol.rpartition(".")[0].rpartition(".")[2], "a function of jax.scipy")

    def run(*_, **__):
        raise TransformError(
            f"{symbol} is compiled code, without a counterpart in JAX, and its input is traced",
            where=compat.where(),
            hint=f"use {other} in its place, or call it on untraced values",
        )

    return run


# -- numerical functions by name


def special_function(name):
    """The substitute of a ufunc of scipy.special."""
    known = special.FORMULAS.get(name) or getattr(jax.scipy.special, name, None)
    return known or getattr(jnp, name, None) or unknown(f"scipy.special.{name}")


def distribution_method(fun):
    """jax.scipy.stats.norm.pdf for the method `pdf` of scipy.stats.norm; None if JAX has none."""
    owner = getattr(fun, "__self__", None)
    if owner is None or not type(owner).__module__.startswith("scipy.stats"):
        return None
    family = getattr(jax.scipy.stats, getattr(owner, "name", None) or "", None)
    return getattr(family, fun.__name__, None)


NAMESAKES = {
    "scipy.special": [jax.scipy.special],
    "scipy.linalg": [jax.scipy.linalg],
    "scipy.fft": [jnp.fft, jax.scipy.fft],
    "scipy.fftpack": [],
    "scipy.signal": [jax.scipy.signal],
    "scipy.integrate": [jax.scipy.integrate],
    "scipy.ndimage": [jax.scipy.ndimage],
    "scipy.stats": [jax.scipy.stats],
}


def namesake(fun, module):
    """The function of JAX, or of ours, that stands for a public function of SciPy."""
    package, name = ".".join(module.split(".")[:2]), getattr(fun, "__name__", "")
    home = "scipy.spatial.distance" if package == "scipy.spatial" else package
    public = getattr(sys.modules.get(home), name, None)
    if public is not fun:
        return None
    homes = [formulas.OWN.get(package, {}), *map(vars, NAMESAKES.get(package, []))]
    found = next((home[name] for home in homes if name in home), None)
    return found if callable(found) and not inspect.isclass(found) else None


# -- SciPy's scaffolding, cut short


def cut_short(fun) -> Any:
    """The replacement of a function of SciPy's array-API plumbing; None for all others."""
    module, name = fun.__module__ or "", getattr(fun, "__name__", "")
    if getattr(getattr(fun, "__code__", None), "co_name", "") == "axis_nan_policy_wrapper":
        around = ("_no_deco", "nan_policy", "keepdims", "axis")
        return Instead(fun.__wrapped__, around)  # along one axis, NaN propagates
    if not module.startswith("scipy."):
        return None
    if ".array_api_compat." in module and not module.endswith("_helpers"):
        return Instead(getattr(np, name)) if hasattr(np, name) else None
    if name in ("get_lapack_funcs", "get_blas_funcs"):
        return lambda names, arrays=(), **kwargs: fun(names, *empty_alike(arrays, kwargs))
    if name == "num_jac":
        return CallsBack(fun, jacobians.num_jac)
    if name == "argsreduce":
        return CallsBack(fun, selected_arguments)
    if name == "_rankdata":
        newer = "return_sorted" in parameters_of(fun)
        return lifted(fun, formulas.ranked if newer else formulas.ranked_before)
    if name == "_trim_zeros":
        return Instead(np.trim_zeros)
    if not module.startswith(("scipy._lib", "scipy._external", "scipy.linalg._misc")):
        return as_it_is(fun) if name in AS_IT_IS else None
    return as_it_is(fun) if name in AS_IT_IS else SHORT_CUTS.get(name)


def selected_arguments(cond, *args):
    """scipy.stats' argsreduce, without its other shapes for where all is selected."""
    return [
        arg if arg.size == 1 else as_box(np.broadcast_to(arg, cond.shape))[as_box(cond) != 0]
        for arg in (np.atleast_1d(arg) for arg in args)
    ]


def as_it_is(fun):
    """Call `fun` without converting it: it only looks at types and static values."""
    return lambda *args, **kwargs: fun(*args, **kwargs)


AS_IT_IS = {
    *("is_numpy", "is_jax", "is_torch", "is_cupy", "is_dask", "is_marray", "is_array_api_strict"),
    *("is_numpy_namespace", "is_jax_namespace", "is_torch_namespace", "is_cupy_namespace"),
    *("is_torch_array", "is_jax_array", "is_cupy_array", "is_dask_array", "is_array_api_strict"),
    *("is_array_api_strict_namespace", "is_dask_namespace", "is_pydata_sparse_array"),
    *("issparse", "isspmatrix", "is_pydata_spmatrix", "check_random_state", "xp_default_dtype"),
    *("normalize_axis_index", "scipy_namespace_for", "xp_result_device"),
}


def empty_alike(arrays, kwargs):
    """Empty arrays of the same types, for functions that choose a LAPACK routine by dtype."""
    like = [np.empty((1,) * np.ndim(a), a.dtype) for a in arrays]
    kwargs.pop("ilp64", None)
    return (like, kwargs["dtype"]) if "dtype" in kwargs else (like,)


def as_array(array, dtype=None, order=None, copy=None, **_):
    make: Any = numpy.replacement(np.array if copy else np.asarray)
    return make(array, dtype=dtype)


def validated(a, check_finite=True, sparse_ok=False, objects_ok=False, mask_ok=False, as_inexact=0):
    a = as_array(a)
    return a.astype(float) if as_inexact and a.dtype.kind in "bui" else a


class At:
    """`xpx.at(x)[index].set(y)`: write into x, or into a copy of it, and give it back."""

    def __init__(self, x, index=None, /):
        self.x, self.index = x, index

    def __getitem__(self, index):
        return At(self.x, index)

    def changed(self, value, copy, change):
        if not isinstance(self.x, np.ndarray):  # a scalar, and the index says whether
            new = value if change is None else change(self.x, value)
            everywhere = isinstance(self.index, tuple)
            return np.where(True if everywhere else self.index, new, self.x)[()]
        x = self.x.copy() if copy else self.x
        x[self.index] = value if change is None else change(x[self.index], value)
        return x

    def set(self, value, copy=None, xp=None):
        return self.changed(value, copy, None)

    def add(self, value, copy=None, xp=None):
        return self.changed(value, copy, operator.add)

    def subtract(self, value, copy=None, xp=None):
        return self.changed(value, copy, operator.sub)

    def multiply(self, value, copy=None, xp=None):
        return self.changed(value, copy, operator.mul)

    def divide(self, value, copy=None, xp=None):
        return self.changed(value, copy, operator.truediv)


SHORT_CUTS = {
    "array_namespace": lambda *arrays, **_: np,
    "is_lazy_array": is_traced,  # SciPy then leaves out the checks of values
    "_asarray": as_array,
    "_asarray_validated": validated,
    "_contains_nan": lambda *_, **__: False,
    "_check_finite": lambda *_, **__: None,
    "_deprecate_dtypes": lambda *_, **__: None,
    "_datacopied": lambda *_: True,
    "xp_copy": lambda x, **_: as_array(x, copy=True),
    # so that apply_where(cond, args, f1, f2) evaluates both and selects
    "capabilities": lambda *_, **__: {"boolean indexing": False, "data-dependent shapes": False},
    "at": At,
}
