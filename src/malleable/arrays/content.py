"""The content of an array that may be traced: reading it, writing it, views of it.

`unbox` takes the values out of a tree of boxes, `rebox` puts them back in. Operators and items
are given to `Box` in `malleable.arrays.box`: import it from there.
"""

import functools
import gc
import operator
import sys
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.arrays import functions, journal, places
from malleable.arrays.masked import UNSIZED
from malleable.arrays.methods import Methods
from malleable.arrays.places import belongs_to_jax, is_jax, traces
from malleable.arrays.text import Text
from malleable.errors import TransformError

NUMBERS = frozenset((int, float, complex, bool))
UNCONVERTED_TEST = (
    "this test stays Python's: the condition of a comprehension, a statement with a `yield`, a "
    "`match` on a pattern with parts, or code without source\n"
    "  hint: write it as a plain `if` in a function with source"
)
PYTHON_TYPES = {"f": float, "i": int, "b": bool, "c": complex}


class Box(Methods):
    """An array that can be written to, or a NumPy scalar (`scalar`), whose value may be traced.

    immutable: whether `x += 1` makes a new array, as for arrays of JAX; a traced condition, where
    it does on some paths only.

    >>> a = Box(np.zeros((2, 2)))
    >>> row = a[1]
    >>> row[0] = 7.0
    >>> a.tolist()
    [[0.0, 0.0], [7.0, 0.0]]
    """

    __slots__ = ("__weakref__", "_base", "_index", "_value", "born", "immutable", "scalar")
    __array_priority__ = 1000.0

    def __init__(self, value, scalar=None):
        self._value, self._base, self._index, self.born = value, None, None, journal.tick()
        self.immutable, self.scalar = False, np.ndim(value) == 0 if scalar is None else scalar

    # ---- the content

    @property
    def value(self) -> Any:
        """The content now: of NumPy, a number, or of JAX."""
        value = self._value
        return self._index.read(self._base.value) if value is None else value

    @property
    def traced(self) -> bool:
        box = self
        while box._base is not None:
            if not box._index.static:
                return True
            box = box._base
        return traces(type(box._value))

    def write(self, new) -> None:
        """Replace the whole content; shape and dtype fit already."""
        if self._base is not None:
            self._base._assign(self._index, new)
            return
        journal.before_write(self)
        old = self._value
        if is_jax(new) or type(old) is not np.ndarray:
            self._value = new
        elif not journal.is_undone():
            old[...] = new
        else:
            self._value = np.array(np.broadcast_to(new, old.shape), old.dtype)
        journal.tell(self)

    def receive(self, result, where=True, ufunc=np.positive) -> None:
        """Write what a ufunc gave, as its argument `out` takes it: TypeError for another kind."""
        if not np.can_cast(result.dtype, self.dtype, "same_kind"):
            functions.refuse_cast(ufunc, result.dtype, self.dtype)
        if where is not True:
            result = jnp.where(where, result, self.value)
        if result.shape != self.shape:
            np.empty(self.shape, np.int8)[...] = np.broadcast_to(np.int8(0), result.shape)
            result = jnp.broadcast_to(result, self.shape)
        self.write(result.astype(functions.canonical(self.dtype)))

    def _assign(self, step, new) -> None:
        whole = self.value
        if is_jax(new) or is_jax(whole) or not step.static:
            self.write(step.put(places.to_jax(whole), new))
        elif not journal.is_undone() and self._in_memory(whole):
            step.fill(whole, new)
            journal.tell(self.root)
        else:
            whole = np.array(whole)
            step.fill(whole, new)
            self.write(whole)

    def _in_memory(self, whole) -> bool:
        """Whether the NumPy array `whole`, our value, is the memory of the array we belong to."""
        return self.root is self or np.may_share_memory(whole, self.root._value)

    @property
    def root(self) -> "Box":
        """The array that a view shows a part of; of no view, itself."""
        return self if self._base is None else self._base.root

    def _view(self, step) -> "Box":
        new = _empty(Box)
        new._value, new._base, new._index, new.scalar = None, self, step, False
        new.immutable, new.born = self.immutable, journal.tick()
        return new

    def outdate(self, why: str) -> None:
        """From now on it is an error to use the content: it is that of before this write."""
        if not isinstance(self._index, places.Outdated):
            base, step = Box(self.value, False), places.Outdated(why, compat.where())
            self._value, self._base, self._index = None, base, step

    def _model(self, dtype=np.int8) -> np.ndarray:
        """An array of NumPy with our memory layout and no meaning."""
        if self._base is not None:
            return self._index.model(self._base._model(dtype))
        if self._index is not None:
            return np.empty_like(self._index, dtype)
        value = self._value
        return value if type(value) is np.ndarray else np.empty(np.shape(value), dtype)

    def laid(self, *operands) -> "Box":
        """Itself, new, what these give element by element: it lies in memory in their order."""
        arrays = [x for x in operands if isinstance(x, np.ndarray)] if self.ndim > 1 else []
        boxes = [x for x in arrays if isinstance(x, Box)]
        if any(x._base is not None or x._index is not None for x in boxes):
            models = map(model_of, arrays)
            self.lying_as(np.nditer([*models, None], ["zerosize_ok", "refs_ok"]).operands[-1])
        return self

    def lying_as(self, model: np.ndarray) -> "Box":
        """Itself, new: it lies in memory as an array of NumPy does."""
        if model.shape == self.shape and not model.flags.c_contiguous:
            self._index = model
        return self

    def _new(self, value, scalar) -> "Box":
        new = Box(value, scalar)
        new.immutable = self.immutable
        return new

    def _done(self, value):
        return wrap(value, self.immutable)

    def _index_of(self, x):
        return x.__index__() if isinstance(x, Box) else operator.index(x)

    # ---- what it looks like

    @property
    def __class__(self):
        if not self.scalar:
            return np.ndarray
        value = self._value
        if not is_jax(value):
            return type(value)
        kind = value.dtype
        if value.weak_type and kind.kind in PYTHON_TYPES:
            return PYTHON_TYPES[kind.kind]
        return kind.type

    @property
    def shape(self):
        if self._value is None:
            return self._model().shape
        return np.shape(self._value)

    @shape.setter
    def shape(self, new):
        old, model = self.shape, self._model()
        shaped = model.reshape(new)
        if not np.may_share_memory(shaped, model):
            raise AttributeError("incompatible shape for in-place modification: use reshape()")
        if type(self) is not Box or (journal.is_undone() and not journal.is_new(self.root)):
            raise TransformError(
                "the shape of an array from before changes under a traced test or in a loop",
                where=compat.where(),
                hint="write x = x.reshape(...)",
            )
        memory = self._view(self._index)  # what we were, for those that show a part of it
        memory._value, memory._base = self._value, self._base
        for view in gc.get_referrers(self):
            if issubclass(type(view), Box) and view._base is self and view is not memory:
                view._base = memory
        for follower in journal.followers_of(self):
            journal.follow(memory, follower)
        self._value, self._base, self._index = None, memory, places.reshaped(old, shaped.shape)

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: int(np.prod(self.shape, dtype=np.intp)))

    @property
    def dtype(self):
        root = self
        while root._base is not None:
            if isinstance(root._index, places.Part | places.Bits):
                return np.dtype(self.value.dtype)
            root = root._base
        value = root._value
        return value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype

    def __repr__(self):
        value = self.value
        if traces(type(value)):
            return Text(f"<{self.dtype.name}{list(self.shape)}>")
        return repr(np.asarray(value) if is_jax(value) and not self.scalar else value)

    def __str__(self):
        value = self.value
        return repr(self) if traces(type(value)) else str(value)

    def __format__(self, spec):
        value = self.value
        return repr(self) if traces(type(value)) else format(value, spec)

    def __reduce__(self):
        return Box, (self.value, self.scalar)

    def __array__(self, dtype=None, copy=None):
        value = self.value
        if is_jax(value):
            return value.__array__(dtype)
        return np.array(value, dtype) if copy else np.asarray(value, dtype)

    def __array_wrap__(self, array, context=None, return_scalar=False):
        return array if isinstance(array, Box) else Box(array, False)

    def __jax_array__(self):
        """For a function of JAX the value; for an operator of JAX's arrays nothing, so that

        Python asks our own, and a box comes out.
        """
        if sys._getframe(1).f_code.co_name.startswith("_operator_"):
            return None
        return places.own(self.value)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value = self.value
        if self.scalar and not is_jax(value):
            return getattr(value, name)
        if name == "at":
            return _At(places.to_jax(value))
        found = getattr(value, name)
        return _boxed_call(found) if callable(found) else wrap(found)

    # ---- one number

    def __bool__(self):
        try:
            return bool(self._one())
        except jax.errors.TracerBoolConversionError as e:
            e.add_note(UNCONVERTED_TEST)
            raise

    def __int__(self):
        return int(self._one())

    def __float__(self):
        return float(self._one())

    def __complex__(self):
        return complex(self._one())

    def __index__(self):
        return operator.index(self._one())

    def _one(self):
        value = self.value
        if is_jax(value) and value.ndim and value.size == 1:
            return value.reshape(())
        return value

    def __hash__(self):
        if not self.scalar:
            raise TypeError("unhashable type: 'numpy.ndarray'")
        value = self.value
        if traces(type(value)):
            raise refused_key()
        return hash(value)

    def __len__(self):
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self):
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[i] for i in range(self.shape[0]))

    def __contains__(self, x):
        return bool(np.any(self == x))

    def __round__(self, digits=None):
        out = np.round(self, digits or 0)
        if digits is None and isinstance(out, Box):
            return wrap(out.value.astype(int))
        return out if digits is not None else round(out)

    def __trunc__(self):
        return wrap(jnp.trunc(self.value).astype(int)) if is_jax(self.value) else int(self.value)

    def __floor__(self):
        return wrap(jnp.floor(self.value).astype(int)) if is_jax(self.value) else int(self // 1)

    def __ceil__(self):
        return wrap(jnp.ceil(self.value).astype(int)) if is_jax(self.value) else -int(-self // 1)


def refused_key() -> TransformError:
    return TransformError(
        "a dict or set is asked for a traced key",
        where=compat.where(),
        hint="keep the values in an array and index that, or make the key a static argument",
    )


_empty = object.__new__


def model_of(x):
    """An array of NumPy that lies in memory as a box does; anything else as it is."""
    return x._model() if isinstance(x, Box) else x


def wrap(value, immutable=False):
    """A result: in a box if it is an array; a number of NumPy as it is."""
    if belongs_to_jax(type(value)):
        new = _empty(Box)
        new._value, new._base, new._index, new.scalar = value, None, None, value.ndim == 0
        new.immutable, new.born = immutable, journal.tick()
        return new
    return held(value) if type(value) is np.ndarray else value


def held(value: np.ndarray):
    """An array of NumPy in a box, unless it is of objects or records, which are never traced."""
    if value.dtype.kind == "O" or value.dtype.names:
        return value
    return Box(value, False).lying_as(value)


def as_box(x) -> Box:
    """A box as it is; an array, or nested sequences of numbers, as an array in a box."""
    return x if isinstance(x, Box) else Box(functions.nested_array(unbox(x)), False)


def rebox(tree, immutable=False):
    """The tree with every array in a Box; immutable: those of JAX are the user's own."""
    if tree is None or type(tree) in NUMBERS:
        return tree
    if belongs_to_jax(type(tree)) or type(tree) is np.ndarray:
        return wrap(tree, immutable)
    return jax.tree.map(lambda x: wrap(x, immutable), tree, is_leaf=lambda x: x is None)


def unbox(tree):
    """The tree with the value of every Box in its place; the tree itself if there is none."""
    kind = type(tree)
    if kind is Box:
        return tree.value
    if kind in NUMBERS or kind is str or tree is None or belongs_to_jax(kind):
        return tree
    if kind is tuple or kind is list:
        new = [unbox(x) for x in tree]
        if all(a is b for a, b in zip(new, tree, strict=True)):
            return tree
        return tuple(new) if kind is tuple else new
    if kind is dict:
        new = {k: unbox(v) for k, v in tree.items()}
        return new if any(new[k] is not v for k, v in tree.items()) else tree
    if kind is slice:
        parts = tree.start, tree.stop, tree.step
        return tree if (new := unbox(parts)) is parts else slice(*new)
    if issubclass(kind, Box):
        return tree.value
    if kind in UNSIZED or not _is_node(kind, tree):
        return tree
    leaves, form = jax.tree.flatten(tree, is_leaf=lambda x: x is not tree)
    new = [unbox(x) for x in leaves]
    if all(a is b for a, b in zip(new, leaves, strict=True)):
        return tree
    return jax.tree.unflatten(form, new)


def frozen(tree):
    """As `unbox`, for values that JAX may keep: arrays of NumPy are copied.

    JAX holds on to the memory of an array of NumPy that meets a traced value; a write to the box
    afterwards would change what was computed before.
    """
    return jax.tree.map(places.own, unbox(tree), is_leaf=lambda x: x is None)


_NODES: dict[type, bool] = {np.ndarray: False}


def _is_node(kind, tree) -> bool:
    """Whether JAX looks into values of this type."""
    known = _NODES.get(kind)
    if known is None:
        form = jax.tree.structure(tree, is_leaf=lambda x: x is not tree)
        known = _NODES[kind] = not jax.tree_util.treedef_is_leaf(form)
    return known


def is_traced(x) -> bool:
    """Whether this one value is being traced: in a box or not, or waiting for its mask."""
    kind = type(x)
    return x.traced if issubclass(kind, Box) else _always_traced(kind)


@functools.lru_cache(4096)
def _always_traced(kind) -> bool:
    return traces(kind) or getattr(kind, "traced", None) is True


def any_traced(tree) -> bool:
    """Whether something in a tree of arguments is traced."""
    kind = type(tree)
    if issubclass(kind, Box):
        return tree.traced
    if kind is list or issubclass(kind, tuple):
        return any(map(any_traced, tree))
    if kind is dict:
        return any(map(any_traced, tree.values()))
    if kind is slice:
        return any_traced((tree.start, tree.stop, tree.step))
    return _always_traced(kind)


def any_jax(tree) -> bool:
    """Whether an unboxed tree of arguments holds an array of JAX."""
    return _any_of(belongs_to_jax, tree)


def any_box(tree) -> bool:
    """Whether something in a tree of arguments is a Box."""
    return _any_of(lambda kind: issubclass(kind, Box), tree)


def _any_of(wanted, tree) -> bool:
    """Whether something in tuples, lists and dicts is of a kind that is wanted."""
    kind = type(tree)
    if kind is tuple or kind is list:
        return any(_any_of(wanted, x) for x in tree)
    if kind is dict:
        return any(_any_of(wanted, x) for x in tree.values())
    return wanted(kind)


def _boxed_call(fun):
    @functools.wraps(fun, updated=())
    def call(*args, **kwargs):
        return rebox(fun(*unbox(args), **unbox(kwargs)), True)

    return call


class _At:
    """`box.at[index].set(value)` and its like: JAX's way of writing, which returns a new array."""

    def __init__(self, value):
        self._value = value

    def __getitem__(self, index):
        return _AtItem(self._value.at[unbox(index)])


class _AtItem:
    def __init__(self, found):
        self._found = found

    def __getattr__(self, name):
        return _boxed_call(getattr(self._found, name))
