"""NumPy functions and ufuncs on boxes: by NumPy where nothing is of JAX, else by JAX."""

import functools
import inspect

import numpy as np
from jax import numpy as jnp
from jax.tree_util import tree_leaves, tree_map

from malleable.arrays import content, functions, journal, places
from malleable.arrays.content import Box, any_box, any_jax, any_traced, held, rebox, unbox, wrap
from malleable.arrays.items import has_masked, is_unknown, without_boxes
from malleable.arrays.masked import UNSIZED, guarded, tested, unknown_size
from malleable.arrays.numbers import strong
from malleable.arrays.places import is_jax
from malleable.arrays.rows import gathered
from malleable.arrays.specials import DEFAULT, SPECIAL, written_outside

# what gives an array, not a number, also where it has no axes
LIKE = {np.zeros_like, np.ones_like, np.full_like, np.empty_like}
ARRAYS = {np.where, np.select, np.tensordot, np.broadcast_to, *LIKE}
# what gives an array in the order of memory of its arguments
LAID = {np.where, np.round, np.around, np.clip, np.sort, *LIKE}
LAID |= {np.cumsum, np.cumprod, np.nan_to_num}
# whose result lies in memory as NumPy's own does, of arrays that lie as its arguments
MOVED = {np.concatenate, np.stack, np.vstack, np.hstack, np.dstack, np.column_stack, np.append}
MOVED |= {np.block, np.roll, np.diff, np.pad}


def run_ufunc(ufunc, method, inputs, kwargs):
    """A ufunc on boxes and others: by NumPy where nothing is of JAX, else by JAX."""
    for x in inputs:
        if type(x) in UNSIZED:
            return x.__array_ufunc__(ufunc, method, *inputs, **kwargs)
    if method == "at":
        return _ufunc_at(ufunc, *inputs)
    out = kwargs.pop("out", None)
    raw = [unbox(x) for x in inputs]
    kwargs = {k: unbox(v) for k, v in kwargs.items()}
    if not any_jax(raw) and not any_jax(kwargs) and not any_traced(out):
        if out is None:
            return rebox_numpy(getattr(ufunc, method)(*raw, **kwargs))
        if not any_box(out):
            return getattr(ufunc, method)(*raw, out=out, **kwargs)
        targets = tuple(None if o is None else np.array(unbox(o)) for o in out)
        if not journal.is_undone():
            targets = unbox(out)
        getattr(ufunc, method)(*raw, out=targets, **kwargs)
        for box, new in zip(out, targets, strict=True):
            if isinstance(box, Box) and (journal.is_undone() or not box._in_memory(new)):
                box.write(new)
        return out[0] if len(out) == 1 else out
    where = kwargs.pop("where", True) if method == "__call__" else True
    if where is not True:
        mask = jnp.asarray(where)
        raw = [x if np.ndim(x) == 0 else guarded(*jnp.broadcast_arrays(x, mask)) for x in raw]
    result = tree_map(strong, functions.run_ufunc(ufunc, method, raw, kwargs))
    if out is None:
        if where is not True:
            result = jnp.where(where, result, jnp.zeros((), result.dtype))
        if isinstance(result, tuple | list):
            return tuple(wrap(r).laid(*inputs) for r in result)
        plain = method != "__call__" or ufunc.signature  # made in the order of C
        return wrap(result) if plain else wrap(result).laid(*inputs)
    results = result if isinstance(result, tuple) else (result,)
    written = tuple(
        wrap(r) if o is None else put_out(o, r, where, ufunc)
        for o, r in zip(out, results, strict=True)
    )
    return written[0] if len(written) == 1 else written


def rebox_numpy(out):
    """What NumPy returned, with its arrays in boxes."""
    if type(out) is np.ndarray:
        return held(out)
    if type(out) is tuple or type(out) is list:
        return type(out)(rebox_numpy(x) for x in out)
    return rebox(out) if hasattr(out, "_fields") else out


def put_out(out, result, where=True, ufunc=np.positive):
    """Write a result into the `out` argument; returns it."""
    if not isinstance(out, Box):
        raise written_outside()
    out.receive(result, where, ufunc)
    return out


def _ufunc_at(ufunc, box, index, *values):
    raw = [functions.as_operand(unbox(v)) for v in values]
    index = without_boxes(index)
    if not isinstance(box, Box):
        if any_jax(raw) or is_unknown(index):
            put_out(box, None)
        if isinstance(box, np.ndarray):
            journal.touch_object(box)
        return ufunc.at(box, index, *raw)
    if not any_jax(raw) and not is_jax(box.value) and not is_unknown(index):
        whole = box.value if not journal.is_undone() else np.array(box.value)
        ufunc.at(whole, index, *raw)
        return box.write(whole)
    whole = places.to_jax(box.value)
    if has_masked(index):
        raise unknown_size("the index of ufunc.at")
    if places.is_mask(index):
        box[index] = ufunc(box[index], *values)
        return None
    if not is_unknown(index):
        places.selected_shape(whole.shape, index)
    tested(box, index)
    at = whole.at[places.as_arrays(index)]
    names = {"add": "add", "multiply": "mul", "maximum": "max", "minimum": "min"}
    names |= {"subtract": "subtract", "divide": "divide", "true_divide": "divide"}
    if ufunc.__name__ in names:
        value = jnp.asarray(raw[0])
        return box.write(getattr(at, names[ufunc.__name__])(places.cast(value, whole.dtype)))
    fun = functions.jax_ufunc(ufunc)
    if len(raw) == 0:
        return box.write(at.apply(fun))
    return box.write(at.set(fun(whole[places.as_arrays(index)], raw[0])))


def run_function(func, args, kwargs):
    """A NumPy function on boxes and others: by NumPy where nothing is of JAX, else by JAX."""
    try:
        return _run_function(func, args, kwargs)
    except functions.REFUSALS as e:
        functions.refuse(e, func, *unbox(args), **unbox(kwargs))


def _run_function(func, args, kwargs):
    for x in args:
        if type(x) in UNSIZED and func is not np.place:
            return x.__array_function__(func, (), args, kwargs)
    args = gathered(args)
    special = SPECIAL.get(func)
    if special is not None:
        result = special(*args, **kwargs)
        if result is not DEFAULT:
            return result
    at = _out_position(func)
    if at is not None and len(args) == at + 1:
        args, kwargs = args[:at], {**kwargs, "out": args[at]}
    out = kwargs.get("out")
    raw, options = unbox(args), unbox(kwargs)
    if not any_jax(raw) and not any_jax(options):
        if not isinstance(out, Box):
            return rebox_numpy(func(*raw, **options))
        options["out"] = np.array(out.value)
        func(*raw, **options)
        out.write(options["out"])
        return out
    target = functions.jax_function(func)
    if target is None:
        inner = getattr(func, "_implementation", None)
        if inner is None:
            return NotImplemented
        return inner(*args, **kwargs)
    if out is not None:
        options.pop("out")
        return put_out(out, target(*raw, **options))
    made = tree_map(strong, target(*raw, **options))
    made = Box(made, False) if func in ARRAYS else rebox(made)
    if func in MOVED and isinstance(made, Box) and any(map(is_turned, tree_leaves(args))):
        return made.lying_as(func(*tree_map(content.model_of, args), **options))
    return made.laid(*args) if func in LAID and not kwargs.get("order") else made


def is_turned(x) -> bool:
    """Whether an array lies in memory in another order than that of its elements."""
    return isinstance(x, Box) and not (x.scalar or x._model().flags.c_contiguous)


@functools.lru_cache(None)
def _out_position(func) -> int | None:
    """Which positional argument of a NumPy function is the array to write to."""
    if func is np.dot:
        return 2
    try:
        known = list(inspect.signature(func).parameters.values())
    except (TypeError, ValueError):
        return None
    places = (k for k, p in enumerate(known) if p.name == "out" and p.kind is not p.KEYWORD_ONLY)
    return next(places, None)
