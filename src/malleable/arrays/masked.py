"""`x[mask]` for a mask known only at run time: the whole array and the mask, until it is used.

It can be computed with element by element, reduced, indexed by one integer, and written back:
`x[m] = f(y[m])`. `np.nonzero(m)` gives such values too. Whatever needs its length as a number
raises TransformError.
"""

import contextvars
import operator

import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.arrays import places
from malleable.arrays.functions import OPERATORS, as_operand, canonical, jax_ufunc
from malleable.arrays.numbers import strong
from malleable.errors import TransformError

compacted: contextvars.ContextVar = contextvars.ContextVar("compacted", default=False)
"""Whether `x[mask]` has to be an array of its own size, and so an error where that is unknown."""

selections: contextvars.ContextVar = contextvars.ContextVar("selections", default=None)
"""(a trace, tests): under that trace, what raises for an empty selection adds a test that it is
none to the list, and an index beyond the end is moved inside, as JAX does. None: no such tests."""


raising: contextvars.ContextVar = contextvars.ContextVar("raising", default=(None, None))
"""(fail, within), if a front end is around us: fail(test, error) makes a raise where a traced test
says so, and within(x, index) makes one where a traced index is outside of an array."""


def needs_some(mask, name: str = "") -> bool:
    """Note that Python would raise if `mask` selects nothing; whether that is wanted.

    name: of the method, where the caller does not see to the raise itself.
    """
    error = ValueError(f"the {name} of an empty selection") if name else None
    return must_hold("what must not be empty", error, jnp.any, mask)


def must_hold(what: str, error: Exception | None, test, *operands) -> bool:
    """Note that Python would raise unless test(*operands); whether that is wanted."""
    held, (fail, _) = selections.get(), raising.get()
    if held is None:
        if fail is not None and error is not None:
            fail(~test(*operands), error)
        return False
    trace, tests = held
    with compat.current_trace() as now:
        if now is not trace:  # in the body of a loop or a branch: the test cannot leave it
            raise unknown_size(what)
    tests.append(test(*operands))
    return True


def tested(x, index):
    """The array x, after the test of a traced index that is not given to x[index] by the user."""
    if (within := raising.get()[1]) is not None:
        within(x, index)
    return x


UNLIKE = "operands could not be broadcast together: a mask selects another number of elements"


def unknown_size(what: str) -> TransformError:
    return TransformError(
        f"{what} has a size that is known only at run time",
        where=compat.where(),
        hint="work on all elements: np.where(mask, new, x), np.sum(x, where=mask)",
    )


def positions(part: slice, at, size):
    """Which of the places `at` a slice with traced bounds selects, for a step above 0.

    size: how many places there are, perhaps traced.
    """
    step = part.step
    if step is not None and not places.is_jax(step) and step <= 0:
        raise unknown_size("x[start:stop:step] backwards, with traced bounds,")
    start, stop = (
        p if p is None else jnp.where(p < 0, p + size, p) for p in (part.start, part.stop)
    )
    mask = at < (size if stop is None else stop)
    if start is not None:
        start = jnp.maximum(start, 0)
        mask &= at >= start
    if step is not None and (places.is_jax(step) or step != 1):
        mask &= (at - (0 if start is None else start)) % jnp.maximum(step, 1) == 0
    return jnp.asarray(mask)


def aligned(whole, mask, target, key=None, wanted=None, spread: bool = True):
    """The selected elements, moved from the true places of one mask to those of another.

    spread: one element may take all places, as NumPy broadcasts it.
    """
    if mask is target or (key and wanted and all(map(_is_same_size, key, wanted))):
        return whole

    def fits(one, other):
        one, other = jnp.sum(one), jnp.sum(other)
        return (one == other) | (one == 1) if spread else one == other

    must_hold("what two masks select", ValueError(UNLIKE), fits, mask, target)
    return moved(whole, mask, target)


def moved(whole, mask, target):
    """The same of masks that select equally many, or of one element."""
    if not mask.size:
        whole, mask = jnp.zeros((1, *whole.shape[mask.ndim :]), whole.dtype), jnp.zeros(1, bool)
    order = jnp.nonzero(mask.ravel(), size=mask.size, fill_value=0)[0]
    rank = jnp.clip(jnp.cumsum(target.ravel()) - 1, 0, mask.size - 1)
    rank = jnp.where(jnp.sum(mask) == 1, 0, rank)
    picked = whole.reshape((mask.size, *whole.shape[mask.ndim :]))[order[rank]]
    return guarded(picked.reshape((*target.shape, *whole.shape[mask.ndim :])), target)


def guarded(x, mask):
    """x as it is where the mask is true, and 1 elsewhere.

    What is computed elsewhere is dropped in the end; but its derivative there, zero times an
    infinite slope, would be NaN: this `where` drops it on its way back, too.
    """
    if not isinstance(x, compat.Tracer) or not jnp.issubdtype(x.dtype, jnp.inexact):
        return x
    return jnp.where(mask.reshape(mask.shape + (1,) * max(x.ndim - mask.ndim, 0)), x, 1)


def _is_same_size(a, b) -> bool:
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def _lowest(dtype):
    return -np.inf if dtype.kind == "f" else False if dtype.kind == "b" else np.iinfo(dtype).min


def _highest(dtype):
    return np.inf if dtype.kind == "f" else True if dtype.kind == "b" else np.iinfo(dtype).max


def _over_all(fun, neutral):
    """A reduction, in which what is not selected is `neutral`."""

    def method(self, axis=None, dtype=None, out=None, **kwargs):
        if callable(neutral) and "initial" not in kwargs:
            needs_some(self.mask, fun.__name__)
        least = neutral(self.dtype) if callable(neutral) else neutral
        return self._over(fun, least, axis, dtype=dtype, out=out, **kwargs)

    return method


def _refusal(what):
    return lambda self, *args, **kwargs: self._refuse(what)


class Masked:
    """The elements of `whole` (*m, *rest) where `mask` (*m) is true, as an array (count, *rest).

    held: the box that has `whole`. Of a slice with a traced bound it is that of the array itself,
    of which this is a view: each sees what is written to the other.
    """

    __slots__ = ("_box", "held", "is_view", "key", "mask")
    traced = True
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, whole, mask, box, key=None):
        if compacted.get():
            raise unknown_size("what a mask selects")
        self.is_view = isinstance(whole, box)
        self.held = whole if self.is_view else box(places.to_jax(whole), False)
        self.mask, self._box = mask, box
        self.key = key  # what the mask was made of: equal keys, equal masks

    @property
    def whole(self):
        whole = places.to_jax(self.held.value)
        return guarded(whole, self.mask) if self.is_view else whole

    immutable = property(lambda self: self.held.immutable)

    dtype = property(lambda self: canonical(self.held.dtype))
    ndim = property(lambda self: 1 + len(self._rest))
    _rest = property(lambda self: self.held.shape[self.mask.ndim :])  # of one element
    device = "cpu"  # as NumPy says of its arrays
    real = property(lambda self: self._like(self.whole.real))
    imag = property(lambda self: self._like(self.whole.imag))
    flat = property(lambda self: self.ravel())

    @property
    def __class__(self):
        return np.ndarray

    @property
    def T(self):
        if self.ndim == 1:
            return self
        if self.ndim > 2 or self.mask.ndim > 1:
            self._refuse("the transpose")
        return Columns(self)

    @property
    def count(self):
        return self._box(jnp.sum(self.mask))

    @property
    def shape(self):
        return (self.count, *self._rest)

    @property
    def size(self):
        return self._box(jnp.sum(self.mask) * int(np.prod(self._rest)))

    def _like(self, whole):
        new = Masked(strong(whole), self.mask, self._box, self.key)
        new.held.immutable = self.immutable is True
        return new

    def _write(self, new, ufunc=np.positive):
        """Put these values where the mask is true; TypeError for a type that does not fit."""
        mask = self.mask.reshape(self.mask.shape + (1,) * len(self._rest))
        self.held.receive(new, mask if self.is_view else True, ufunc)

    def _from_start(self, index):
        return jnp.where(index < 0, jnp.sum(self.mask) + index, index)

    def places(self):
        """The places of the selected elements in `whole`, in order, and then zeros."""
        return jnp.nonzero(self.mask.ravel(), size=self.mask.size, fill_value=0)[0]

    def _refuse(self, what):
        raise unknown_size(f"{what} of x[mask]" if what else "x[mask]")

    def _operand(self, x, spread: bool = True):
        """The other side of an elementwise operation, as an array that fits `whole`."""
        if isinstance(x, self._box):
            x = x.value
        if type(x) is Masked:
            return aligned(x.whole, x.mask, self.mask, x.key, self.key, spread)
        x = np.asarray(x) if isinstance(x, list | tuple) else places.own(x)
        if np.ndim(x) > len(self._rest):
            if np.size(x) == 1 and np.ndim(x) == 1:
                return x.reshape(())
            raise unknown_size("x[mask], met by an array,")
        if isinstance(x, compat.Tracer):
            mask = self.mask.reshape(self.mask.shape + (1,) * (self.ndim - 1))
            return guarded(jnp.broadcast_to(x, jnp.broadcast_shapes(x.shape, mask.shape)), mask)
        return x

    def map(self, fun, *args, **kwargs):
        """What an elementwise function makes of what is selected; of several results, a tuple."""
        result = fun(*map(self._operand, args), **kwargs)
        return tuple(map(self._like, result)) if type(result) is tuple else self._like(result)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, where=True, **kwargs):
        if method == "reduce":
            return self._reduce(ufunc, **kwargs)
        fun = jax_ufunc(ufunc)
        if method != "__call__" or fun is None or where is not True:
            self._refuse(f"{ufunc.__name__}.{method}")
        first = next(x for x in inputs if type(x) is Masked)
        if out is not None and type(out[0]) is Masked:
            first = out[0]
            first._write(fun(*map(first._operand, inputs)), ufunc)
            return first
        return first.map(fun, *inputs)

    def _reduce(self, ufunc, axis=0, **kwargs):
        name = {"add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min"}
        name |= {"logical_and": "all", "logical_or": "any"}
        if ufunc.__name__ not in name:
            self._refuse(f"{ufunc.__name__}.reduce")
        return getattr(self, name[ufunc.__name__])(axis=axis)

    def __array_function__(self, func, types, args, kwargs):
        name = func.__name__
        if name in ("dot", "inner", "vdot") and self.ndim == 1:
            one, other = (args[0].conj() if name == "vdot" else args[0]), args[1]
            return one.dot(other) if type(one) is Masked else other.dot(one)
        if args and args[0] is self:
            if name in _PLAIN:
                return self.map(getattr(jnp, name), *args, **kwargs)
            name = {"amax": "max", "amin": "min", "sort": "ordered"}.get(name, name)
            if name in ("size", "shape", "ndim"):
                return getattr(self, name)
            if name in ("vstack", "stack") and self.ndim > (name == "vstack") and len(args) == 1:
                return self.copy() if not kwargs.get("axis") else self._refuse(f"np.{name}")
            if hasattr(Masked, name) and not name.startswith("_"):
                return getattr(self, name)(*args[1:], **kwargs)
        if name == "append":
            first, second, *axis = args
            second = [second] if np.ndim(second) == 0 else second
            return put_together((first, second), *axis, **kwargs)
        if name in ("concatenate", "hstack"):
            return put_together(*args, **kwargs)
        if name in _OF_TYPES:
            return _of_types(func, args)
        if name == "broadcast_arrays":
            first = next(x for x in args if type(x) is Masked)
            shape = first.whole.shape
            return tuple(first.map(lambda a: jnp.broadcast_to(a, shape), x) for x in args)
        if name == "where" and len(args) == 3:
            first = next(x for x in args if type(x) is Masked)
            return first.map(jnp.where, *args)
        return self._refuse(f"np.{name}")

    def _over(self, fun, neutral, axis=None, keepdims=False, dtype=None, out=None, **kwargs):
        axis = 0 if axis == -1 and self.ndim == 1 else axis
        if axis not in (None, 0) or out is not None or keepdims is True:
            self._refuse("this reduction")
        mask = self.mask.reshape(self.mask.shape + (1,) * (self.ndim - 1))
        axes = None if axis is None else tuple(range(self.mask.ndim))
        filled = jnp.where(mask, self.whole, jnp.asarray(neutral, self.whole.dtype))
        extra = {} if dtype is None else {"dtype": dtype}
        if kwargs.get("initial", np._NoValue) is not np._NoValue:
            first = kwargs["initial"]
            extra["initial"] = first.value if isinstance(first, self._box) else first
        if kwargs.get("where", np._NoValue) not in (np._NoValue, True):
            self._refuse("where= in a reduction")
        return self._box(fun(filled, axis=axes, **extra))

    sum, prod = _over_all(jnp.sum, 0), _over_all(jnp.prod, 1)
    any, all = _over_all(jnp.any, 0), _over_all(jnp.all, 1)
    max, min = _over_all(jnp.max, _lowest), _over_all(jnp.min, _highest)

    def argmax(self, axis=None, out=None, **kwargs):
        return self._rank_of(jnp.argmax, _lowest(self.dtype), axis, out)

    def argmin(self, axis=None, out=None, **kwargs):
        return self._rank_of(jnp.argmin, _highest(self.dtype), axis, out)

    def _rank_of(self, fun, neutral, axis, out):
        """The number, among the selected elements, of the one that fun finds."""
        if self.ndim > 1 or axis not in (None, 0, -1) or out is not None:
            self._refuse("this search")
        needs_some(self.mask, fun.__name__)
        filled = jnp.where(self.mask, self.whole, jnp.asarray(neutral, self.whole.dtype)).ravel()
        found = fun(filled)
        rank = jnp.cumsum(self.mask.ravel())[found] - 1
        return self._box(jnp.maximum(rank, 0) if selections.get() else rank)

    def mean(self, axis=None, **kwargs):
        total = self.sum(axis, **kwargs)
        return total / (self.count if axis == 0 else self.size)

    def var(self, axis=None, ddof=0, **kwargs):
        if axis is not None and self.ndim > 1:
            self._refuse("the variance along an axis")
        off = self - self.mean()
        return (off * off.conj()).real.sum() / (self.size - ddof)

    def std(self, axis=None, ddof=0, **kwargs):
        return np.sqrt(self.var(axis, ddof))

    def sort(self, axis=-1, **kwargs):
        """Sort this vector in place."""
        ordered = self.ordered(axis, **kwargs)
        self._write(moved(ordered.whole, ordered.mask, self.mask))

    def ordered(self, axis=-1, **kwargs):
        """np.sort of a vector."""
        if self.ndim > 1:
            self._refuse("sorting")
        filled = jnp.sort(self.compact(_highest(self.dtype)))
        there = jnp.arange(self.mask.size) < jnp.sum(self.mask)
        return Masked(filled, there, self._box)

    def median(self, axis=None, **kwargs):
        if self.ndim > 1 or axis not in (None, 0):
            self._refuse("the median along an axis")
        ordered, n = self.ordered().whole, jnp.sum(self.mask)
        middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
        return self._box(jnp.where(n > 0, middle, jnp.nan))

    def cumsum(self, axis=None, **kwargs):
        if self.ndim > 1:
            self._refuse("the running sum")
        return self._like(jnp.cumsum(jnp.where(self.mask, self.whole, 0)).reshape(self.mask.shape))

    def diff(self, n=1, **kwargs):
        if self.ndim > 1 or n != 1 or kwargs:
            self._refuse("these differences")
        flat = self.compact()
        there = jnp.arange(self.mask.size - 1) < jnp.sum(self.mask) - 1
        return Masked(flat[1:] - flat[:-1], there, self._box)

    def norm(self, ord=None, axis=None, **kwargs):
        """np.linalg.norm of a vector."""
        if self.ndim > 1 and not (ord is None and axis is None):
            self._refuse("this norm")
        size = np.abs(self)
        if ord in (None, 2):
            return np.sqrt((size * size).sum())
        if ord in (1, np.inf, -np.inf):
            return size.sum() if ord == 1 else size.max() if ord > 0 else size.min()
        return ((size**ord).sum()) ** (1 / ord)

    def dot(self, other):
        if not np.ndim(other):
            return self * other
        if self.ndim == 1 and np.ndim(other) == 1:
            return (self * self._like(self._operand(other, False))).sum()
        if self.ndim == 1 and type(other) is Masked and other.mask.ndim == 1 and other.ndim == 2:
            return other._like(other.whole * other._operand(self, False)[:, None]).sum(axis=0)
        if self.ndim == 1 or self.ndim > 2 or type(other) in UNSIZED:
            self._refuse("the product")
        other = other.value if isinstance(other, self._box) else jnp.asarray(other)
        return self._like(self.whole @ other)

    __matmul__ = dot

    def copy(self, order="C"):
        return self._like(self.whole)

    def astype(self, dtype, **kwargs):
        return self._like(places.retyped(self.whole, canonical(dtype)))

    def ravel(self, order="C"):
        if self.ndim == 1:
            return self
        mask = self.mask.reshape(self.mask.shape + (1,) * (self.ndim - 1))
        return Masked(self.whole, jnp.broadcast_to(mask, self.whole.shape), self._box)

    flatten = ravel

    def conj(self):
        return self._like(self.whole.conj())

    conjugate = conj

    def in_line(self):
        """The same of a mask along one axis, as a loop goes over it."""
        if self.mask.ndim == 1:
            return self
        whole = self.whole.reshape((self.mask.size, *self._rest))
        return Masked(whole, self.mask.ravel(), self._box)

    def compact(self, fill=0):
        """The selected elements first, then `fill`: an array as long as the mask."""
        n = self.mask.size
        flat = self.whole.reshape((n, *self.whole.shape[self.mask.ndim :]))[self.places()]
        held = (jnp.arange(n) < jnp.sum(self.mask)).reshape((n,) + (1,) * (flat.ndim - 1))
        return jnp.where(held, flat, jnp.asarray(fill, flat.dtype))

    def __getitem__(self, index):
        if isinstance(index, list):
            index = [i.value if isinstance(i, self._box) else i for i in index]
        if isinstance(index, self._box):
            index = index.value
        if isinstance(index, int | np.integer) or getattr(index, "ndim", 1) == 0:
            at = self._from_start(index)
            if needs_some(self.mask):
                at = jnp.clip(at, 0, jnp.sum(self.mask) - 1)
            if self.mask.ndim == 1 and self.ndim > 1:
                return self.held[self.places()[at]]
            return self._box(self.compact()[at])
        if type(index) is Masked and self._is_along(index):
            mask = self.mask & self._operand(index)
            return Masked(guarded(self.whole, mask), mask, self._box)
        if isinstance(index, tuple) and 1 < len(index) <= self.ndim:
            rows, rest = index[0], index[1:]
            if isinstance(rows, int | np.integer) or getattr(rows, "ndim", 1) == 0:
                return self[rows][rest]
            if isinstance(rows, slice) and rows == slice(None) and all(map(places.is_basic, rest)):
                before = (slice(None),) * self.mask.ndim
                return Masked(self.held[(*before, *rest)], self.mask, self._box, self.key)
        if isinstance(index, slice):
            ends = (index.start, index.stop, index.step)
            return self._part(slice(*(p.value if isinstance(p, self._box) else p for p in ends)))
        ranks = as_operand(index) if type(index) not in (tuple, *UNSIZED) else None
        if getattr(ranks, "dtype", np.dtype(bool)).kind in "iu":
            at = self._from_start(ranks)
            if ranks.size and needs_some(self.mask):
                at = jnp.clip(at, 0, jnp.sum(self.mask) - 1)
            return self._box(self.compact()[at])
        return self._refuse("a part")

    def _is_along(self, index) -> bool:
        """Whether these are truths, one for each element, as `x[mask] > 0` is."""
        return index.dtype == bool and index.ndim == 1 and index.mask.ndim == self.mask.ndim

    def _part(self, part: slice):
        """The elements from part.start on, by their numbers among the selected ones."""
        known = not places.has_tracer(part)
        if known and part == slice(None):
            return Masked(self.held, self.mask, self._box, self.key)
        if known and part == slice(None, None, -1):
            back = self.held[(part,) * self.mask.ndim]
            return Masked(back, jnp.flip(self.mask), self._box)
        rank = jnp.cumsum(self.mask.ravel()).reshape(self.mask.shape) - 1
        mask = self.mask & positions(part, rank, jnp.sum(self.mask))
        return Masked(self.held, mask, self._box)

    def __setitem__(self, index, new):
        part = self
        if type(index) is Masked and self._is_along(index):
            mask = self.mask & self._operand(index)
            part = Masked(self.held, mask, self._box)
        elif isinstance(index, slice) or (isinstance(index, tuple) and index[0] == slice(None)):
            part = self[index]
        else:
            if isinstance(index, self._box):
                index = index.value
            at, *rest = index if isinstance(index, tuple) else (index,)
            at = at.value if isinstance(at, self._box) else at
            if self.mask.ndim > 1 or not places.is_int(at):
                self._refuse("an element")
            rank, count = self._from_start(at), jnp.sum(self.mask)
            key = (self.places()[rank], *rest)
            inside = (rank >= 0) & (rank < count)  # elsewhere Python raises: nothing is written
            if isinstance(new, list | tuple):
                new = [x.value if isinstance(x, self._box) else x for x in new]
            new = new.value if isinstance(new, self._box) else as_operand(new)
            self.held[key] = jnp.where(inside, new, self.held[key].value)
            return
        new = jnp.asarray(part._operand(new))
        part._write(new.astype(self.dtype) if new.dtype != self.dtype else new)

    def fill(self, value):
        """All elements of the view are this number."""
        self[:] = value

    def place_in(self, whole, mask, key=None):
        """whole[mask] = self"""
        values = aligned(self.whole, self.mask, mask, self.key, key)
        mask = mask.reshape(mask.shape + (1,) * (whole.ndim - mask.ndim))
        return jnp.where(mask, values.astype(whole.dtype), whole)

    __len__, __iter__ = _refusal("the length"), _refusal("a loop over the elements")
    __bool__, __array__ = _refusal("the truth value"), _refusal("the content")

    def __repr__(self):
        return f"<{self.dtype.name}[?]>"

    def __getattr__(self, name):
        if name.startswith("__") or not hasattr(np.ndarray, name):
            raise AttributeError(name)
        return self._refuse(f".{name}")


def _reducer(ufunc):
    return lambda self, axis=None, **kwargs: self._reduce(ufunc, axis, **kwargs)


class Columns(np.lib.mixins.NDArrayOperatorsMixin):
    """`x[:, mask]`: the columns of a matrix that a mask selects, as the rows of its transpose."""

    __slots__ = ("rows",)
    traced, ndim = True, 2
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, rows: Masked):
        self.rows = rows

    dtype = property(lambda self: self.rows.dtype)
    immutable = property(lambda self: self.rows.immutable)
    T = property(lambda self: self.rows)
    shape = property(lambda self: self.rows.shape[::-1])
    size = property(lambda self: self.rows.size)

    def __len__(self):
        return self.rows.whole.shape[1]

    @property
    def __class__(self):
        return np.ndarray

    def _side(self, x):
        """The other side of an elementwise operation, turned as the rows are."""
        if isinstance(x, self.rows._box):
            x = x.value
        if type(x) is Masked and x.ndim == 1:
            return self.rows._like(self.rows._operand(x)[:, None])
        if type(x) is Columns or np.ndim(x) < 1:
            return x.rows if type(x) is Columns else x
        x = jnp.asarray(x)
        if x.shape[-1] != 1:
            raise unknown_size("x[:, mask], met by an array,")
        return x[..., 0]

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        if method == "__call__" and ufunc is np.matmul and not kwargs:
            return self._times(*inputs)
        if method == "reduce":
            return self._reduce(ufunc, **kwargs)
        out = kwargs.pop("out", (None,))
        if method != "__call__" or kwargs or type(out[0]) not in (Columns, type(None)):
            raise unknown_size(f"{ufunc.__name__} of x[:, mask]")
        rows = ufunc(*map(self._side, inputs))
        if out[0] is None:
            return Columns(rows)
        out[0].rows._write(out[0].rows._operand(rows), ufunc)
        return out[0]

    def _times(self, a, b):
        """a @ b, where one of them is self: the columns of a product are products of columns."""
        if a is self and type(b) is Masked and b.mask.ndim == 1:
            mask = self.rows.mask
            rows, parts = self.rows.whole, aligned(b.whole, b.mask, mask, b.key, self.rows.key)
            wanted = mask.reshape(-1, *[1] * (parts.ndim - 1))
            return self.rows._box(jnp.where(mask, rows.T, 0) @ jnp.where(wanted, parts, 0))
        if a is self or type(a) in UNSIZED or np.ndim(a) > 2:
            raise unknown_size("this product with x[:, mask]")
        whole = a.value if isinstance(a, self.rows._box) else jnp.asarray(a)
        rows = self.rows._like(self.rows.whole @ whole.T)
        return Columns(rows) if whole.ndim == 2 else rows

    def _reduce(self, ufunc, axis=0, **kwargs):
        """Over the columns, as over the rows of the transpose; down each column, plainly."""
        if axis in (None, 1, -1):
            return self.rows._reduce(ufunc, None if axis is None else 0, **kwargs)
        if axis not in (0, -2) or any(v not in (None, False) for v in kwargs.values()):
            raise unknown_size(f"{ufunc.__name__}.reduce of x[:, mask]")
        return self.rows.map(lambda x: jax_ufunc(ufunc).reduce(x, axis=1), self.rows)

    def __array_function__(self, func, types, args, kwargs):
        name = func.__name__
        if name == "dot" and len(args) == 2:
            return self._times(*args)
        if name == "norm" and args[0] is self and set(kwargs) <= {"axis"}:
            squares = abs(self) * abs(self)
            return np.sqrt(squares._reduce(np.add, kwargs.get("axis")))
        if name in ("sum", "max", "min", "prod", "any", "all") and args[0] is self:
            return getattr(self, name)(*args[1:], **kwargs)
        if name in ("shape", "ndim", "size") and args[0] is self:
            return getattr(self, name)
        if name in _OF_TYPES:
            return _of_types(func, args)
        raise unknown_size(f"np.{name} of x[:, mask]")

    def __getitem__(self, index):
        if isinstance(index, tuple) and len(index) == 2 and isinstance(index[0], slice):
            if index[0] != slice(None):
                raise unknown_size("a part of x[:, mask]")
            found = self.rows[index[1]]
            if type(found) is Masked:
                return Columns(found)
            return found if found.ndim < 2 else self.rows._box(jnp.moveaxis(found.value, -1, 0))
        row, *rest = index if isinstance(index, tuple) else (index,)
        if not places.is_int(row) or len(rest) > 1:
            raise unknown_size("a part of x[:, mask]")
        return self.rows[:, row][rest[0]] if rest else self.rows[:, row]

    def __setitem__(self, index, new):
        raise unknown_size("a part of x[:, mask], written to,")

    sum, prod = _reducer(np.add), _reducer(np.multiply)
    max, min = _reducer(np.maximum), _reducer(np.minimum)
    any, all = _reducer(np.logical_or), _reducer(np.logical_and)

    def conj(self):
        return Columns(self.rows.conj())

    conjugate = conj

    def astype(self, dtype, **kwargs):
        return Columns(self.rows.astype(dtype))

    def copy(self, order="C"):
        return Columns(self.rows.copy())

    def __getattr__(self, name):
        if name.startswith("__") or not hasattr(np.ndarray, name):
            raise AttributeError(name)
        raise unknown_size(f".{name} of x[:, mask]")


def put_together(parts, *args, **kwargs) -> Masked:
    """Vectors one after another, of some of which a mask selects the elements."""
    box = next(x for x in parts if type(x) is Masked)._box
    parts = [x.value if isinstance(x, box) else x for x in parts]
    parts = [x if type(x) is Masked else jnp.asarray(as_operand(x)) for x in parts]
    if any(x.ndim != 1 for x in parts) or {*args, *kwargs.values()} - {0, None}:
        raise unknown_size("x[mask], put together with others,")
    wholes = [x.whole.ravel() if type(x) is Masked else x for x in parts]
    masks = [x.mask.ravel() if type(x) is Masked else jnp.ones(x.shape, bool) for x in parts]
    return Masked(jnp.concatenate(wholes), jnp.concatenate(masks), box)


UNSIZED = (Masked, Columns)
_OF_TYPES = ("result_type", "can_cast", "common_type", "iscomplexobj", "isrealobj")


def _of_types(func, args):
    """What a function says that looks at the types of its arguments alone."""
    return func(*(np.empty(0, x.dtype) if isinstance(x, np.ndarray) else x for x in args))


_PLAIN = {"round", "around", "real", "imag", "clip", "nan_to_num", "angle", "sinc", "i0", "isclose"}
_PLAIN |= {"zeros_like", "ones_like", "full_like", "iscomplex", "isreal", "interp", "polyval"}


def _operator(name):
    fun = getattr(operator, name)

    def forward(self, other):
        return self._like(fun(self.whole, self._operand(other)))

    def backward(self, other):
        return self._like(fun(self._operand(other), self.whole))

    return forward, backward


def _written_by(name):
    fun, ufunc = getattr(operator, f"__{name}__"), OPERATORS[name]

    def method(self, other):
        if self.immutable is not False:
            return NotImplemented
        self._write(fun(self.whole, self._operand(other)), ufunc)
        return self

    return method


def _unary(fun):
    return lambda self: self._like(fun(self.whole))


for _name in OPERATORS.keys() - {"matmul"}:
    _forward, _backward = _operator(f"__{_name}__")
    setattr(Masked, f"__{_name}__", _forward)
    setattr(Masked, f"__r{_name}__", _backward)
    setattr(Masked, f"__i{_name}__", _written_by(_name))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Masked, f"__{_name}__", _operator(_name)[0])
for _name in ("neg", "pos", "abs", "invert"):
    setattr(Masked, f"__{_name}__", _unary(getattr(operator, _name)))
