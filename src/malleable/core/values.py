"""Values of your own: what flows through a program may be a class of yours instead of an array.

A class becomes one with `value`. Here is what all who meet a value need: its type, the array it
stands for, and the type that two paths of a program can both end with. Rules are asked about
values in `interpret.py`, and values cross control flow in `higher.py`.
"""

import copy
import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.errors import RuleError, TransformError, UnhandledError
from malleable.notes import note
from malleable.programs.types import type_text

_UNTOLD = (AttributeError, IndexError, NotImplementedError, TypeError, ValueError)  # of a class
VALUES: set[type] = set()  # the classes; empty where nobody has values
WATCHED: set[type] = set()  # of these, those whose pytree has a place for a witness


def value(cls: Any = None, /, *, static: str | Iterable[str] = ()) -> Any:
    """A class whose objects stand for arrays where `interpret` or `live` runs a function.

    It needs a property `aval`, the type of the array that an object stands for (as `jax.typeof`
    gives it), and fields. A class that is no pytree yet becomes a frozen dataclass and one:
    its annotated fields are children, those named in `static` part of its structure. Optional:
    `materialise(self) -> array`, where no rule is; `lift(cls, array, like) -> object`, where an
    array and an object like `like` meet in a loop or a branch (TypeError: it cannot be).

    A loop stacks fields of the shape of the array, others if `materialise` or `lift` show how.

    Raises TypeError for a class that is no pytree and has no fields, or that has no `aval`.

    >>> import jax
    >>> from jax import lax
    >>> from malleable import interpret
    >>> @value(static="unit")
    ... class Quantity:
    ...     x: jax.Array
    ...     unit: str
    ...     aval = property(lambda self: jax.typeof(self.x))
    >>> def add(frame, a: Quantity, b: Quantity, **params):
    ...     if a.unit != b.unit:
    ...         raise frame.error(f"{a.unit} + {b.unit}", "convert one of them")
    ...     return Quantity(frame.bind(a.x, b.x), a.unit)
    >>> a, b = Quantity(jax.numpy.float32(1), "m"), Quantity(jax.numpy.float32(2), "m")
    >>> out, _, _ = interpret(lambda a, b: a + b, {lax.add_p: add})(a, b)
    >>> float(out.x), out.unit
    (3.0, 'm')
    """
    static = (static,) if isinstance(static, str) else tuple(static)
    if cls is None:
        return functools.partial(value, static=static)
    if not isinstance(cls, type):
        raise TypeError(f"a value is made of a class, not of {cls!r}")
    if not hasattr(cls, "aval"):
        what = "has no `aval`: give it a property that returns the type of the array it stands for"
        raise TypeError(f"{cls.__name__} {what}")
    if compat.is_pytree_class(cls):
        if static:
            what = "is a pytree already: say which of its fields are static where it is made one"
            raise TypeError(f"{cls.__name__} {what}")
    else:
        if "__dataclass_fields__" not in vars(cls) and any(
            map(inspect.get_annotations, cls.__mro__)
        ):
            cls = dataclasses.dataclass(frozen=True, eq=False)(cls)
        names = [f.name for f in getattr(cls, "__dataclass_fields__", {}).values() if f.init]
        if not names or not {*static} <= {*names}:
            what = "is no pytree: annotate its fields, or register it with jax.tree_util"
            what = f"has no field {sorted({*static} - {*names})[0]!r}" if names else what
            raise TypeError(f"{cls.__name__} {what}")
        shown = [n for n in names if n not in static]
        if static:
            _register(cls, shown, static)
        else:
            jax.tree_util.register_dataclass(cls, shown, [])
    VALUES.add(cls)
    return cls


def _register(cls: type, shown: list[str], static: tuple[str, ...]) -> None:
    """Make a class a pytree of the fields shown, and of a witness, if there is one (`Witness`)."""
    WATCHED.add(cls)

    def flatten(x):
        seen = x.__dict__.get("_witness")
        number, seen = ([], None) if seen is None else ([seen.number], replace(seen, number=None))
        return [*(getattr(x, n) for n in shown), *number], (*(getattr(x, n) for n in static), seen)

    def keyed(x):
        fields, rest = flatten(x)
        keys = map(jax.tree_util.GetAttrKey, [*shown, "_witness"])
        return list(zip(keys, fields, strict=False)), rest

    def unflatten(rest, fields):
        *fixed, seen = rest
        new = cls(**dict(zip([*shown, *static], [*fields[: len(shown)], *fixed], strict=True)))
        return new if seen is None else seen.beside(new, fields[-1])

    jax.tree_util.register_pytree_with_keys(cls, keyed, unflatten, flatten)


@dataclass(frozen=True)
class Witness:
    """A number that leaves a traced function with a value whose shape no field changes.

    What stacks the value stacks the number, which says so: a `vmap` or a `scan` around.
    """

    number: Any = None
    what: str = field(default="", compare=False)  # all are of one type, wherever they are from
    where: str = field(default="", compare=False)

    def beside(self, x, number):
        """x, with this number; an error where it is a stack of them."""
        if isinstance(number, jax.Array) and jnp.ndim(number):
            hint = "put the `vmap` or `scan` inside of what is traced, or return an array"
            problem = f"{self.what}, which stacks no field of its shape"
            raise TransformError(problem, where=self.where, hint=hint)
        object.__setattr__(x, "_witness", replace(self, number=number))
        return x


def unwatched(x):
    """A value without its witness; anything else as it is."""
    if type(x) in WATCHED and "_witness" in x.__dict__:
        x = copy.copy(x)
        del x.__dict__["_witness"]
    return x


def is_value(x: Any) -> bool:
    return type(x) in VALUES


def has_values(xs: Iterable) -> bool:
    """Whether a value is among these; made for the loop over equations."""
    return bool(VALUES) and not VALUES.isdisjoint(map(type, xs))


def flatten(tree) -> tuple[list, Any]:
    """The leaves of a pytree, values among them, and its structure."""
    return jax.tree.flatten(tree, is_leaf=is_value if VALUES else None)


def each(one: Callable, tree, *others):
    """one(x, ...) of all arrays and values of pytrees."""
    leaves, whole = flatten(tree)
    return whole.unflatten(map(one, leaves, *(flatten(t)[0] for t in others)))


def typeof(x) -> Any:
    """The type of an array, or of the array that a value stands for."""
    if not is_value(x):
        return x if isinstance(x, compat.TYPES) else jax.typeof(x)
    try:
        aval = x.aval
    except _UNTOLD as error:
        what = f"`aval` of {type(x).__name__} raised {type(error).__name__}"
        raise TypeError(f"{what}: make it of shapes, dtypes and static fields alone") from error
    if isinstance(aval, compat.TYPES):
        return jax.typeof(aval) if isinstance(aval, jax.ShapeDtypeStruct) else aval
    if not hasattr(aval, "shape") or not hasattr(aval, "dtype"):
        what = f"`aval` of {type(x).__name__} is {aval!r}, which is not the type of an array"
        raise TypeError(f"{what}: return what jax.typeof gives")
    return jax.typeof(jax.ShapeDtypeStruct(tuple(aval.shape), aval.dtype))


def abstract(x):
    """The type of a value; anything else as it is."""
    return typeof(x) if is_value(x) else x


def as_operand(x):
    """A number as an array, and a value without a witness."""
    return unwatched(x) if is_value(x) else compat.as_array(x)


def shapes(xs: Iterable) -> list[tuple]:
    """Shape and dtype of each, of the array it stands for."""
    return [(tuple(t.shape), t.dtype) for t in map(typeof, xs)]


def text_of(x) -> str:
    """`float32[3]`, or `Quantity(x=float32[3], unit='m')`."""
    if not is_value(x) and not hasattr(x, "dtype"):
        is_number = isinstance(x, bool | int) or not compat.is_array(x)
        return repr(x) if is_number else type_text(jax.typeof(x))
    if not is_value(x):
        return type_text(x)
    if not dataclasses.is_dataclass(x):
        return f"{type(x).__name__}({', '.join(map(text_of, jax.tree.leaves(x)))})"
    fields = (f"{f.name}={text_of(getattr(x, f.name))}" for f in dataclasses.fields(x))
    return f"{type(x).__name__}({', '.join(fields)})"


# ---------------------------------------------------------------- as another type


def unstacked(frame, x, what: str):
    """As `materialised`, of a value that does not show how its fields are cut or stacked."""
    if hasattr(x, "materialise"):
        return materialised(frame, x, what)
    told = f"{what} of `{frame.eqn.primitive}` meets {text_of(x)} for {text_of(typeof(x))}"
    hint = "put axes of their own behind those of the array, and show it by `lift` or `materialise`"
    raise frame.error(f"{told}: it is unknown which axes of its fields are the array's", hint)


def materialised(frame, x, what: str, rules: bool = True):
    """The array that a value stands for; `what` meets it, and is named if it is none.

    rules: whether a rule for what meets it could help.
    """
    if not is_value(x):
        return x
    name = type(x).__name__
    if not hasattr(x, "materialise"):
        problem = f"{what} meets {_a(name)}, which no rule is for, and which is no array"
        way = f"give it a rule for {name}" if rules else "let the rule that made it return an array"
        hint = f"{way}, or give the class a method `materialise`"
        raise UnhandledError(problem, where=frame.where, hint=hint)
    array = x.materialise()
    if not compat.is_array(array) or shapes([array]) != shapes([x]):
        got = text_of(array) if compat.is_array(array) else repr(array)
        problem = f"`materialise` of {name} returned {got} where {text_of(typeof(x))} belongs"
        raise RuleError(problem, where=frame.where, hint="return the array that it stands for")
    return compat.as_array(array)


def is_wrapper(x) -> bool:
    """Whether a value, or its type, is one field, and that the array, as `materialise` says."""
    if len(jax.tree.leaves(x)) != 1 or not hasattr(x, "materialise"):
        return False
    program = jax.make_jaxpr(lambda x: x.materialise())(x).jaxpr
    return not program.eqns and program.outvars == program.invars


def wrapped(like, array):
    """An array as a value like one that is a wrapper; of an array's type, the array."""
    return jax.tree.unflatten(jax.tree.structure(like), [array]) if is_value(like) else array


def join(frame, what: str, a, b):
    """The type that values of two types can both be turned into: `a` itself, if it will do.

    what: what has these two types, for the error.
    """
    found = b if same_types(a, b) else _common(frame, what, a, b)
    return vary_as(a, found) if same_types(a, found) else found


def _common(frame, what: str, a, b):
    if is_value(a) and is_value(b):
        for x, y in ((a, b), (b, a)):
            if hasattr(x, "materialise"):
                return join(frame, what, _type_of_array(frame, x, what), y)
    elif is_value(a) or is_value(b):
        own, array = (a, b) if is_value(a) else (b, a)
        lift = lambda: jax.eval_shape(lambda x: _lifted(frame, x, own), array)  # noqa: E731
        if hasattr(own, "lift") and (lifted := _answer(lift)) is not None:
            return vary_as(lifted, own) if same_types(own, lifted) else lifted
        if hasattr(own, "materialise"):
            return join(frame, what, _type_of_array(frame, own, what), array)
    hint = "give the class `lift` or `materialise`, or make both values of one type"
    raise frame.error(f"{what}: {text_of(a)} and {text_of(b)}", hint)


def retype(frame, x, to):
    """`x` as a value, or an array, of a type that `join` gave."""
    if x is to:
        return x
    if not is_value(x) and not is_value(to):
        weak = jax.typeof(x).weak_type and not typeof(to).weak_type
        return vary_as(compat.as_array(x).astype(to.dtype) if weak else x, to)
    if is_value(x) and not same_types(x, to):
        x = materialised(frame, x, "a loop or a branch")
    if is_value(to) and not is_value(x):
        x = _lifted(frame, x, to)
    return vary_as(x, to)


def _lifted(frame, array, like):
    new = like.lift(compat.as_array(array), like)
    if type(new) is not type(like) or shapes([new]) != shapes([array]):
        name = type(like).__name__
        problem = f"`lift` of {name} returned {text_of(new)} for {text_of(array)}"
        hint = f"return {_a(name)} that stands for the array"
        raise RuleError(problem, where=frame.where, hint=hint)
    return new


def _answer(ask: Callable[[], Any]) -> Any:
    """What a class of the user's says when it is asked; None where it cannot."""
    try:
        return ask()
    except _UNTOLD:  # no way from an array, or shapes that do not go together
        return None


def _type_of_array(frame, x, what):
    return jax.eval_shape(lambda x: materialised(frame, x, what), x)


def same_types(a, b) -> bool:
    """Whether two types are one but for the mesh axes they vary over."""
    (xs, tree), (ys, other) = jax.tree.flatten(a), jax.tree.flatten(b)
    pairs = zip(xs, ys, strict=tree == other) if tree == other else ()
    return tree == other and all(
        jnp.shape(x) == jnp.shape(y) and jnp.result_type(x) == jnp.result_type(y) for x, y in pairs
    )


def vary_as(x, like):
    """x, varying over the mesh axes of `like` too, leaf by leaf; of a type, the type."""

    def one(x, like):
        if not compat.varying(like) - compat.varying(x):
            return x
        if compat.is_array(x):
            return compat.match_devices(x, like)
        return jax.eval_shape(lambda x: compat.match_devices(x, like), x)

    leaves, tree = jax.tree.flatten(x)
    new = list(map(one, leaves, jax.tree.leaves(like)))
    return x if all(n is leaf for n, leaf in zip(new, leaves, strict=True)) else tree.unflatten(new)


def stacks(row, axes: int = 1) -> bool:
    """Whether values of the type of `row`, stacked field by field, stand for a stack of arrays.

    Shown at a length no other axis has, by the type, `materialise`, and else shapes or `lift`.
    """
    leaves, tree = jax.tree.flatten(row)
    return _stacks(tree, tuple((jnp.shape(x), typeof(x).dtype) for x in leaves), axes)


@functools.lru_cache(512)
def _stacks(tree, types: tuple, axes: int) -> bool:
    row = tree.unflatten([jax.ShapeDtypeStruct(*t) for t in types])
    leaves, stack, told = jax.tree.leaves(row), _stack_of(row, axes), typeof_abstract(row)
    odd = jnp.shape(jax.tree.leaves(stack)[0])[:axes] if leaves else (3,) * axes
    whole = jax.ShapeDtypeStruct((*odd, *told.shape), told.dtype)

    def shown():
        read = [False] * len(leaves)
        if shapes([typeof_abstract(stack)]) != shapes([whole]):
            return False
        if hasattr(row, "materialise"):
            read = compat.read_by_lane(lambda x: x.materialise(), stack, axes)
        if all(seen or jnp.shape(x) == told.shape for x, seen in zip(leaves, read, strict=True)):
            return True
        return same_types(jax.eval_shape(lambda x, row: row.lift(x, row), whole, row), stack)

    return bool(_answer(shown))


def typeof_abstract(x):
    """The type of a value whose leaves may be types."""
    found: list = []
    jax.eval_shape(lambda x: found.append(typeof(x)), x)
    return found[0]


def to_caller(frame, tree, operands):
    """What a caller gets: a `vmap` or a `scan` around, if there is one, stacks it field by field.

    Where that is no stack by its `aval`: of a value whose shape no field changes, the array, and
    a note of others. A function that is traced for a caller unknown keeps the value; one whose
    shape no field changes gets a witness, or is the array. operands: what results may depend on.
    """
    lanes, staged = (compat.lane_counts(), compat.is_staging()) if VALUES else ([], False)

    def one(x):
        if not is_value(x) or stacks(x):
            return x
        what = f"returned {text_of(x)} to a `vmap` or `scan` around"
        grown = _answer(lambda: typeof_abstract(_stack_of(x, 1)).shape)
        if grown != typeof(x).shape:  # a field changes the shape of what it stands for
            _tell(frame, lanes, operands, what, _NO_STACK)
            return x
        if lanes or compat.is_scan_body() or type(x) not in WATCHED:
            return unstacked(frame, x, "a `vmap` or `scan` around")
        return Witness(what=what, where=frame.where).beside(copy.copy(x), np.float32(0))

    return each(one, tree) if lanes or staged else tree


def from_caller(frame, operands) -> None:
    """Leave a note where a `vmap` around may have been asked to cut a value without fields."""
    for x in operands if VALUES else ():
        if is_value(x) and not jax.tree.leaves(x):
            what = f"took {text_of(x)} whole, in each lane of a `vmap`"
            _tell(frame, compat.lane_counts(), operands, what, _NO_CUT, tuple(typeof(x).shape))


def _tell(frame, lanes, operands, what: str, why: str, sizes: tuple = ()) -> None:
    """Leave a note now, of lanes around; else when a `vmap` batches what is traced here."""
    told: dict[str, Any] = {"what": what, "where": frame.where, "why": why, "sizes": sizes}
    for size in lanes:
        _note_lanes(size, **told)
    if compat.is_staging() and not lanes:
        LANES.bind(*(x for x in jax.tree.leaves(operands) if isinstance(x, compat.Tracer)), **told)


def _note_lanes(size: int, what: str, where: str, why: str, sizes: tuple) -> None:
    if not sizes or size in sizes:
        note(what, where, why)


LANES = compat.lane_watch("lanes", _note_lanes)
_NO_STACK = "the stack is none by its `aval`: let only a `vmap` take it, or return an array"
_NO_CUT = "it has no field that `in_axes` could cut: give each lane its own inside"


def row_of(x, sizes: tuple):
    """The type of a row of a value, cut field by field; None where a field has no such axes."""
    leaves, tree = jax.tree.flatten(x)
    if any(jnp.shape(leaf)[: len(sizes)] != sizes for leaf in leaves):
        return None
    rows = [jax.ShapeDtypeStruct(jnp.shape(v)[len(sizes) :], typeof(v).dtype) for v in leaves]
    return tree.unflatten(rows)


def has_rows(frame, x, sizes: tuple) -> bool:
    """Whether a value can be cut field by field, along leading axes of these sizes.

    It can if it is taken row by row, or if `materialise` makes an array of a row and none of it:
    then a `vmap` stacked it. Where it makes one of both, by the sizes at hand, a matrix is taken
    for one array, with a note, and of more axes it is refused: those are mostly stacks.
    """
    row, whole = row_of(x, sizes), typeof(x)
    told = None if row is None else _answer(lambda: typeof_abstract(row))
    if told is None or ((*sizes, *told.shape), told.dtype) != (tuple(whole.shape), whole.dtype):
        return False
    if stacks(row, len(sizes)):
        return True
    if not _is_made(row) or _is_made(_stack_of(row, len(sizes))):
        return False
    if not _is_made(x):
        return True
    what = f"`materialise` of {text_of(x)} makes one array of it, and an array of each row"
    hint = f"give {type(x).__name__} a `materialise` that goes by last axes, `x[..., None, :]`"
    if len(told.shape) > 1:
        raise frame.error(f"`{frame.eqn.primitive}` cuts what may be a stack: {what}", hint)
    note(f"took {text_of(x)} for one array", frame.where, f"{what}; {hint}")
    return False


def _is_made(x) -> bool:
    """Whether `materialise` makes the array that a value stands for, by the types."""
    made = lambda: jax.eval_shape(lambda x: x.materialise(), x)  # noqa: E731
    return bool(_answer(lambda: shapes([made()]) == shapes([typeof_abstract(x)])))


def in_rows(frame, x, sizes: tuple, what: str):
    """What is cut along leading axes of these sizes: of a value without them, the array."""
    cut = not is_value(x) or has_rows(frame, x, sizes)
    return x if cut else unstacked(frame, x, what)


def as_rows(frame, x, axes: int, what: str):
    """What is stacked along new leading axes: of a value whose stack is none, the array."""
    return x if not is_value(x) or stacks(x, axes) else unstacked(frame, x, what)


def _stack_of(row, axes: int):
    """The type of a stack of rows, of a length that no axis has."""
    leaves, tree = jax.tree.flatten(row)
    known = (n for x in leaves for n in jnp.shape(x) if type(n) is int)
    odd = (2 * max(known, default=1) + 3,) * axes
    new = [jax.ShapeDtypeStruct((*odd, *jnp.shape(x)), typeof(x).dtype) for x in leaves]
    return tree.unflatten(new)


# ---------------------------------------------------------------- the operands of a rule


def fitting(rule: Callable) -> Callable[[list], bool] | None:
    """fits(operands), of a rule whose operands are annotated with classes of values; else None.

    It fits if each operand is of a class of its annotation: `x: Interval | jax.Array`.
    """
    given = getattr(rule, "__annotations__", None)
    if not given or not VALUES:
        return None
    parameters = list(inspect.signature(rule).parameters.values())[1:]
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    more = [p for p in parameters if p.kind == p.VAR_POSITIONAL]
    classes = {p.name: _classes(rule, p.annotation) for p in (*plain, *more)}
    if VALUES.isdisjoint(c for known in classes.values() for c in known):
        return None

    def fits(args):
        names = [p.name for p in plain] + [p.name for p in more] * (len(args) - len(plain))
        return len(names) == len(args) and all(
            not classes[name] or isinstance(x, classes[name])
            for name, x in zip(names, args, strict=True)
        )

    return fits


def _classes(rule, annotation) -> tuple[type, ...]:
    """The classes that an annotation is, or is a union of; none for one that says nothing."""
    if isinstance(annotation, str):
        local = inspect.getclosurevars(rule).nonlocals if inspect.isfunction(rule) else {}
        try:
            annotation = eval(annotation, getattr(rule, "__globals__", {}), dict(local))
        except NameError as error:
            if any(cls.__name__ in annotation for cls in VALUES):
                what = f"the annotation {annotation!r} of rule `{rule.__name__}` is not found here"
                raise TypeError(f"{what}: define the class at the top of its module") from error
            return ()
    parts = typing.get_args(annotation) or (annotation,)
    classes = [c for c in parts if isinstance(c, type) and c is not inspect.Parameter.empty]
    return () if len(classes) < len(parts) or Any in classes else tuple(classes)


def _a(name: str) -> str:
    return f"an {name}" if name[:1] in "AEIOU" else f"a {name}"
