"""Trees of values without the arrays: of which types, and what two of them have in common."""

import enum
import functools
import types
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box
from malleable.arrays.journal import ABSENT, Place
from malleable.arrays.masked import Columns, Masked, unknown_size
from malleable.arrays.places import to_jax
from malleable.errors import TransformError
from malleable.frontend.common.session import note_line, session

IMMUTABLE: Any = type("Immutable", (), {"__repr__": lambda self: "IMMUTABLE"})()  # see `Leaf.links`
UNSET: Any = type("Unset", (), {"__repr__": lambda self: "UNSET"})()  # of ours, never read

CONTENT = ("list", "dict", "set", "object", "ndarray")  # places whose value is what they hold
DICTS = frozenset((dict, Counter, OrderedDict, defaultdict))  # they know which keys they may lack
PLAIN = (int, float, complex, str, bytes, type(None), type(Ellipsis))


@dataclass(frozen=True)
class Leaf:
    """An array; scalar: NumPy would have a scalar there. `origin` is the very box.

    known: others know the box, so that another name for it is one. immutable: it is never changed
    in place, as arrays of JAX. links: the other arrays that it may be, each a Static, or IMMUTABLE,
    if it may be immutable; whether it is comes as a leaf for each, after its own.
    """

    shape: tuple
    dtype: Any
    weak: bool
    scalar: bool
    origin: Any = field(default=None, compare=False)
    known: bool = field(default=False, compare=False)
    links: tuple = ()
    immutable: bool = False


@dataclass(frozen=True)
class Static:
    """Anything that is no array: the same on every path."""

    value: Any

    def __eq__(self, other):
        return isinstance(other, Static) and same(self.value, other.value)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Node:
    """A list, tuple, dict or object; keys: None, the dict's keys, or the names of attributes.

    unsure: a key that is there on one path only, or ORDER, and which paths those are.
    """

    cls: type
    keys: tuple | None
    children: tuple
    origin: Any = field(default=None, compare=False)
    unsure: tuple = ()


@dataclass(frozen=True)
class Either:
    """One of several; an index comes before the leaves of all of them."""

    options: tuple


@dataclass(frozen=True)
class Ragged:
    """A list of at most `cap` items of one tree. The leaves: its length, and the items', stacked.

    fixed: it may not get longer, for it goes around a loop. sure: it cannot get longer than that.
    """

    item: "Tree"
    cap: int
    fixed: bool = field(default=False, compare=False)
    sure: bool = field(default=True, compare=False)
    origin: Any = field(default=None, compare=False)


MISSING = Static(ABSENT)
ORDER = object()  # in place of a key: the order of keys hangs on a traced value
NUMBER = Leaf((), np.dtype(np.int32), False, True)  # which option it is, or how many items
Tree = Leaf | Static | Node | Either | Ragged


class Selected(tuple):
    """The class in the tree of `x[mask]`: of what holds x, and of the mask."""

    _fields = ("held", "mask")

    def __new__(cls, held: Box, mask: Box) -> Any:
        return Masked(held, mask.value, Box)


class Made:
    """Stands for something that a block made, once the block has been traced.

    root: of the array that it shows a part of; boxes: which that may be, of those made before;
    why: what has a copy of it, if something has.
    """

    def __init__(self, root: "Made | None" = None, boxes: tuple = (), why: str = ""):
        self.root, self.boxes, self.why = root, boxes, why


class Both(NamedTuple):
    """The origin of what joins two things: either of them, or None, where one is not there."""

    one: Any
    other: Any


def raw(x):
    """The array of a box; anything else as it is."""
    return x.value if isinstance(x, Box) else x


def is_number(x) -> bool:
    numbers = Box | jax.Array | bool | int | float | complex | np.generic
    return isinstance(x, numbers) and not isinstance(x, enum.Enum)


def spell(x) -> str:
    """What a value is, in a few words."""
    if x is ABSENT or x is UNSET:
        return "undefined"
    if isinstance(x, Leaf):
        return f"{np.dtype(x.dtype).name}[{','.join(map(str, x.shape))}]"
    if isinstance(x, Static):
        return spell(x.value)
    if isinstance(x, Node):
        return "x[mask]" if x.cls is Selected else f"a {x.cls.__name__} of {len(x.children)}"
    if isinstance(x, Either):
        return " or ".join(map(spell, x.options))
    if isinstance(x, Ragged):
        return f"a list of up to {x.cap}"
    if isinstance(x, Box | jax.Array | np.ndarray):
        aval = raw(x)
        return f"{np.dtype(aval.dtype).name}[{','.join(map(str, aval.shape))}]"
    if isinstance(x, list | tuple | dict):
        return f"a {type(x).__name__} of {len(x)}"
    return repr(x) if isinstance(x, PLAIN) else f"a {type(x).__name__}"


def same(a, b) -> bool:
    """Whether two values are one, as far as a program can tell."""
    if a is b:
        return True
    if type(a) is not type(b) or isinstance(a, Box):
        return False
    if isinstance(a, str):  # past what a text with placeholders says to ==
        return str.__eq__(a, b)
    if isinstance(a, (*PLAIN, np.generic)):
        return bool(a == b) or (a != a and b != b)
    if isinstance(a, np.ndarray):
        return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, slice | range | frozenset):
        return a == b
    if isinstance(a, types.MethodType):
        return same(a.__func__, b.__func__) and a.__self__ is b.__self__
    if isinstance(a, types.BuiltinMethodType):
        return a.__name__ == b.__name__ and a.__self__ is b.__self__ is not None
    if isinstance(a, functools.partial):
        one, other = ((x.func, x.args, (*x.keywords.items(),)) for x in (a, b))
        return same(one, other)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return isinstance(a, types.FunctionType) and same_function(a, b)


def same_function(a, b) -> bool:
    """Whether two functions were made by one `def` or `lambda`, around the same values."""
    if a.__code__ is not b.__code__ or not same(a.__defaults__, b.__defaults__):
        return False
    cells = zip(a.__closure__ or (), b.__closure__ or (), strict=True)
    return all(x is y or same(*(Place("cell", c).read() for c in (x, y))) for x, y in cells)


def leaf_of(x, scalar: bool, origin=None, immutable=False) -> Leaf:
    aval = jax.typeof(jnp.asarray(x)) if not isinstance(x, jax.Array) else jax.typeof(x)
    weak = bool(getattr(aval, "weak_type", False))
    return Leaf(aval.shape, aval.dtype, weak, scalar, origin, immutable=immutable is True)


def number_leaf(value) -> Leaf | None:
    """The leaf a number would be; None for anything else."""
    if isinstance(value, Box):
        if hasattr(value, "options"):
            return None
        origin = None if value.scalar else value
        return leaf_of(raw(value), value.scalar, origin, value.immutable)
    if isinstance(value, bool | int | float | complex | np.generic):
        named = isinstance(value, enum.Enum)  # `is` and `match` ask which one it is
        if named or (isinstance(value, np.generic) and value.dtype.kind not in "biufc"):
            return None
        return leaf_of(value, True)
    if type(value) is Columns:
        raise unknown_size("x[:, mask], which only one way through an `if` or loop leaves,")
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return leaf_of(value, False)
    return None


def abstract(tree: Tree) -> Tree:
    """The tree where each number is a leaf: what a loop may change."""
    if isinstance(tree, Static):
        return number_leaf(tree.value) or tree
    return mapped(abstract, tree)


def mapped(fun: Callable, tree: Tree) -> Any:
    """A list, object or choice with fun(part) for each part of it; any other tree as it is."""
    if isinstance(tree, Node):
        return replace(tree, children=tuple(map(fun, tree.children)))
    return Either(tuple(map(fun, tree.options))) if isinstance(tree, Either) else tree


def count_leaves(tree: Tree) -> int:
    if isinstance(tree, Leaf):
        return 1 + len(tree.links)
    if isinstance(tree, Node):
        return sum(map(count_leaves, tree.children))
    if isinstance(tree, Either):
        return 1 + sum(map(count_leaves, tree.options))
    return 1 + count_leaves(tree.item) if isinstance(tree, Ragged) else 0


def avals(tree: Tree) -> list:
    """The types of the leaves."""
    return [jax.typeof(compat.as_array(x)) for x in fill(tree)]


def fill(tree: Tree) -> list:
    """Leaves for a value that is not there: zeros."""
    if isinstance(tree, Leaf):
        zeros = compat.convert(jnp.zeros(tree.shape, tree.dtype), tree.dtype, tree.weak)
        return [zeros, *(False for _ in tree.links)]
    if isinstance(tree, Node):
        return [x for child in tree.children for x in fill(child)]
    if isinstance(tree, Either):
        return [np.int32(0), *(x for option in tree.options for x in fill(option))]
    if isinstance(tree, Ragged):
        return [np.int32(0), *(jnp.broadcast_to(x, (tree.cap, *x.shape)) for x in fill(tree.item))]
    return []


# ---------------------------------------------------------------- join


def join(a: Tree, b: Tree) -> Tree:
    """The smallest tree that both fit into."""
    origin = getattr(a, "origin", None)
    if origin is getattr(b, "origin", None):
        if origin is not None and not isinstance(origin, Made | Both):
            return Static(origin)
        if a == b and not isinstance(a, Either):  # the options may be two things
            return a
    for one, other in ((a, b), (b, a)):
        same_thing = getattr(other, "origin", None)
        if isinstance(one, Static) and same_thing is not None and one.value is same_thing:
            return one
        if isinstance(one, Static) and one.value is UNSET:
            return half(other, other is a)
        if isinstance(one, Static) and one.value is ABSENT and not keeps_absent():
            return half(other, other is a)
    if isinstance(a, Either) or isinstance(b, Either):
        mine, theirs = (t.options if isinstance(t, Either) else (t,) for t in (a, b))
        options = list(mine)
        for new in theirs:
            add_option(options, new, len(mine))
        options = [half(o, k < len(mine)) for k, o in enumerate(options)]
        return Either(tuple(options)) if len(options) > 1 else options[0]
    both = join_alike(a, b)
    return Either((half(a, True), half(b, False))) if both is None else both


def keeps_absent() -> bool:
    """Whether a name that one path has not bound is remembered as such: else it is zero there."""
    return session().options.checked or session().names


def half(tree: Tree, first: bool) -> Tree:
    """The tree of what only one of two values is, or has; what joins both stays."""
    origin = getattr(tree, "origin", None)
    if isinstance(origin, Both):
        return tree
    if isinstance(tree, Leaf) and tree.known:
        return Static(origin)
    origin = None if origin is None else Both(origin, None) if first else Both(None, origin)
    if isinstance(tree, Leaf):
        return replace(tree, origin=None if tree.scalar else origin)
    tree = replace(tree, origin=origin) if isinstance(tree, Node | Ragged) else tree
    return mapped(lambda part: half(part, first), tree)


def both_of(one: Tree, other: Tree) -> Both | None:
    """The origin of the join of two trees."""
    pair = Both(getattr(one, "origin", None), getattr(other, "origin", None))
    return None if pair.one is None and pair.other is None else pair


def free(tree: Tree) -> Tree:
    """The tree as that of a new value: no longer this very list or box."""
    if isinstance(tree, Leaf):
        return Leaf(tree.shape, tree.dtype, tree.weak, tree.scalar, immutable=tree.immutable)
    return mapped(free, replace(tree, origin=None) if isinstance(tree, Node | Ragged) else tree)


def bare(tree: Tree, things: list) -> Tree:
    """The tree without the user's objects: each is a token, one for all that are the same.

    things: the (object, token) pairs so far.
    """
    if isinstance(tree, Static):
        value = tree.value
        if value is UNSET or value is ABSENT or isinstance(value, (*PLAIN, np.generic)):
            return tree
        return Static(token_of(value, things))
    if isinstance(tree, Leaf) and isinstance(tree.origin, Both):
        return free(tree)
    if isinstance(tree, Leaf):
        known = [token for thing, token in things if thing is tree.origin]
        origin = token_of(tree.origin, things) if tree.known else known[0] if known else None
        links = tuple(bare(link, things) for link in tree.links)
        return replace(tree, origin=origin, links=links)
    tree = tree if isinstance(tree, Either) else replace(tree, origin=None)
    return mapped(lambda part: bare(part, things), tree)


def token_of(value, things: list):
    for thing, token in things:
        if same(thing, value):
            return token
    things.append((value, object()))
    return things[-1][1]


def join_ragged(a: Tree, b: Tree) -> Ragged | None:
    """Two lists of different length as one whose length is traced, if all items are of one type."""
    trees = [t for x in (a, b) for t in (x.children if isinstance(x, Node) else (x.item,))]
    if not trees:
        return None
    items = list(map(abstract, trees))
    if len({x.shape for x in items if isinstance(x, Leaf)}) > 1:
        return None
    item = functools.reduce(lambda one, other: free(join(one, other)), items[1:], free(items[0]))
    sizes = [len(x.children) if isinstance(x, Node) else x.cap for x in (a, b)]
    fixed = any(isinstance(x, Ragged) and x.fixed for x in (a, b))
    sure = all(getattr(x, "sure", True) for x in (a, b))
    return Ragged(item, max(sizes), fixed, sure, both_of(a, b)) if is_uniform(item) else None


def is_uniform(tree: Tree) -> bool:
    """Whether values of a tree can be stacked: arrays, and tuples, lists and objects of them.

    Of several things, say None or a number, one at most is an array.
    """
    if isinstance(tree, Node):
        return all(map(is_uniform, tree.children))
    if isinstance(tree, Either):
        arrays = sum(isinstance(option, Leaf) for option in tree.options)
        return arrays < 2 and all(map(is_uniform, tree.options))
    value = getattr(tree, "value", None)
    return value is not ABSENT and value is not UNSET


def join_alike(a: Tree, b: Tree) -> Tree | None:
    """The join of two values of one kind; None if they are of two."""
    for one, other in ((a, b), (b, a)):
        named = isinstance(one, Leaf) and one.known
        if named and one.origin is getattr(other, "value", getattr(other, "origin", None)):
            return one if isinstance(other, Leaf) and other.known else Static(one.origin)
    if a == b and not isinstance(a, Node | Ragged):
        if isinstance(a, Leaf):
            return replace(a, origin=both_of(a, b), known=False)
        return free(a)
    one, other = number_of(a), number_of(b)
    if isinstance(one, Leaf) and isinstance(other, Leaf):
        return join_leaves(as_numpys(a, one, other), as_numpys(b, other, one))
    if any(isinstance(x, Node) and x.cls is Selected for x in (a, b)):
        a, b = as_selection(a, one, b), as_selection(b, other, a)
    lists = (isinstance(x, Ragged) or (isinstance(x, Node) and x.cls is list) for x in (a, b))
    if all(lists) and not (isinstance(a, Node) and isinstance(b, Node) and same_length(a, b)):
        return join_ragged(a, b)
    if isinstance(a, Node) and isinstance(b, Node) and a.cls is b.cls:
        if a.keys is None:
            pairs = tuple(map(join, a.children, b.children))
            if a.cls is Selected and any(isinstance(x, Either) for x in pairs):
                raise unknown_size("x[mask], of another x on each path or in each step,")
            return Node(a.cls, None, pairs, both_of(a, b)) if same_length(a, b) else None
        left, right = (dict(zip(t.keys or (), t.children, strict=True)) for t in (a, b))
        keys = merged_keys(left, right)
        children = (join_key(left.get(k, MISSING), right.get(k, MISSING)) for k in keys)
        return Node(a.cls, keys, tuple(children), both_of(a, b), differing(a, b))
    return None


def as_selection(tree: Tree, array: Tree | None, other: Any) -> Tree:
    """The tree of an array as that of all its elements, beside the tree of a selection."""
    if not (isinstance(array, Leaf) and array.shape and len(other.children[1].shape) == 1):
        return tree
    return replace(other, children=(tree, free(other.children[1])), origin=None)


def merged_keys(one: Iterable, other: Iterable) -> tuple:
    """The keys of two dicts, in the order that both have them in, if one has all."""
    one, other = dict.fromkeys(one), dict.fromkeys(other)
    return tuple(other if one.keys() <= other.keys() else {**one, **other})


def differing(one: Node, other: Node) -> tuple:
    """The `unsure` of what may be either of two: what only one of them has, if they are dicts."""
    known, keys = one.unsure or other.unsure, (one.keys or (), other.keys or ())
    if keys[0] == keys[1] or not issubclass(one.cls, dict):
        return known
    apart, merged = {*keys[0]} ^ {*keys[1]}, merged_keys(*keys)
    alike = ORDER not in known[:1] and all([k for k in merged if k in ks] == [*ks] for ks in keys)
    told = apart and (alike or one.cls not in DICTS)  # which know what they lack
    return min(apart, key=str) if told else ORDER, compat.where()


def number_of(tree: Tree) -> Tree | None:
    """The tree, or of a number that is known, its leaf."""
    return number_leaf(tree.value) if isinstance(tree, Static) else tree


def as_numpys(tree: Tree, leaf: Leaf, other: Leaf) -> Leaf:
    """The leaf of a tree; that of a number of Python's in NumPy's type, if that can hold it."""
    known = isinstance(tree, Static) and not other.weak and can_hold(other.dtype, tree.value)
    if known and leaf.dtype != other.dtype and other.dtype.kind in "iuf":
        note_two_types(other.dtype, other.dtype)
    number = getattr(tree, "value", None)
    if type(number) is int and other.dtype.kind == "f" and not can_hold(other.dtype, number):
        what = f"{number} or a float is {other.dtype} from here on"
        note_line(what, compat.where(), "an int of Python's is not rounded")
    return replace(leaf, dtype=other.dtype) if known else leaf


def note_two_types(joined, *numpys, pythons=True) -> None:
    given = " or ".join([*["a number of Python's"] * pythons, *(f"one of {x}" for x in numpys)])
    what = f"{given} is {joined} from here on"
    note_line(what, compat.where(), "NumPy computes with each in its own type")


def note_types(numbers: Iterable, joined) -> None:
    """A note where it depends on a value whose type NumPy has here; none of its usual floats."""
    leaves = [x for x in map(number_leaf, numbers) if x is not None and x.dtype != bool]
    weak, strong = (dict.fromkeys(x.dtype for x in leaves if x.weak is w) for w in (True, False))
    session().mixed |= len({x.kind for x in weak}) > 1
    usual = [*strong] == [jnp.result_type(float)]
    if len(strong) > 1 or (strong and not usual and not {*weak} <= {*strong}):
        note_two_types(joined, *strong, pythons=bool(weak))


def can_hold(dtype, value) -> bool:
    """Whether a type of NumPy's holds exactly this int or float of Python's."""
    floats = jax.dtypes.issubdtype(dtype, np.floating)
    if type(value) is int and jax.dtypes.issubdtype(dtype, np.integer):
        return value in range(np.iinfo(dtype).min, np.iinfo(dtype).max + 1)
    if not floats or type(value) not in (int, float) or abs(value) > np.finfo(np.float64).max:
        return floats and type(value) is float
    with np.errstate(over="ignore"):
        return value != value or float(np.dtype(dtype).type(value)) == value


def join_key(a: Tree, b: Tree) -> Tree:
    """The join of what two dicts have under a key: one of them may not have it."""
    for one, other in ((a, b), (b, a)):
        if one is MISSING and other is not MISSING:
            options = other.options if isinstance(other, Either) else (half(other, other is a),)
            return Either((MISSING, *(o for o in options if o != MISSING)))
    return join(a, b)


def same_length(a: Node, b: Node) -> bool:
    return len(a.children) == len(b.children)


def join_leaves(a: Leaf, b: Leaf) -> Leaf | None:
    shape = a.shape
    if a.shape != b.shape:
        if a.shape == () and a.weak:
            shape = b.shape
        elif not (b.shape == () and b.weak):
            return None
    if jax.dtypes.issubdtype(a.dtype, jax.dtypes.extended) or a.dtype == b.dtype:
        if a.dtype != b.dtype:
            return None
        kind = a.dtype, a.weak and b.weak
    else:
        kind = compat.promote(a.dtype, a.weak, b.dtype, b.weak)
        session().mixed |= a.weak and b.weak and a.dtype.kind != b.dtype.kind
        alike = {a.dtype.kind, b.dtype.kind} <= {*"iu"} or a.dtype.kind == b.dtype.kind == "f"
        numpys = b.dtype if a.weak else a.dtype
        noted = alike or (numpys.kind in "iu" and kind[0].kind == "f")
        if a.weak is not b.weak and noted and kind[0] != numpys:
            note_two_types(kind[0], numpys)
            for book in journal.all_open() if alike else ():
                book.met[numpys.kind == "f"] = numpys
    links = (*a.links, *(link for link in b.links if link not in a.links))
    scalar, immutable = a.scalar and b.scalar, is_immutable(a) and is_immutable(b)
    if not immutable and (is_immutable(a) or is_immutable(b)) and Static(IMMUTABLE) not in links:
        links = (*links, Static(IMMUTABLE))
    immutable = immutable and not scalar  # which a number is without saying so
    return Leaf(shape, *kind, scalar, both_of(a, b), links=links, immutable=immutable)


def is_immutable(leaf: Leaf) -> bool:
    """Whether `x += 1` binds x anew: x is a number, or an array of JAX."""
    return leaf.scalar or leaf.immutable


def add_option(options: list, new: Tree, shared: int) -> None:
    """Add an option, or join it with one of the first that are there."""
    for i, option in enumerate(options):
        both = join_alike(option, new)
        if both is not None:
            options[i] = both if i < shared else free(both)
            return
    options.append(new)


# ---------------------------------------------------------------- a tree as one of a wider one


def leaves_of(tree: Tree) -> list:
    """The leaves of a tree without links, as types."""
    if isinstance(tree, Leaf):
        return [tree]
    inside = getattr(tree, "children", ()) or getattr(tree, "options", ())
    inside = (tree.item,) if isinstance(tree, Ragged) else inside
    leaves = [leaf for part in inside for leaf in leaves_of(part)]
    if isinstance(tree, Ragged):
        leaves = [replace(leaf, shape=(tree.cap, *leaf.shape)) for leaf in leaves]
    return [NUMBER, *leaves] if isinstance(tree, Either | Ragged) else leaves


def option_of(tree: Tree, target: Either) -> int:
    """Which option a value is: the one that it was joined into, else the first that it fits."""
    options = sorted(enumerate(target.options), key=lambda o: not is_joined_from(o[1], tree))
    for i, option in options:
        both = join_alike(option, tree)
        if both is not None and free(both) == free(option):
            return i
    if isinstance(tree, Static) and (tree.value is UNSET or tree.value is ABSENT):
        return 0
    raise TransformError(  # each step of a loop makes another
        "a variable is another object in every step",
        where=compat.where(),
        hint="keep what the objects hold in arrays, and the number of one in its place",
    )


def is_joined_from(option: Tree, tree: Tree) -> bool:
    """Whether an option stands for the very thing that a tree is of, on one path."""
    thing, origin = (getattr(t, "origin", None) for t in (tree, option))
    return thing is not None and isinstance(origin, Both) and any(x is thing for x in origin)


def fit(x, target: Leaf):
    """An array or number, as one of the target's type."""
    if isinstance(x, bool | np.bool_) and target.dtype == bool and target.shape == ():
        return bool(x)
    x = to_jax(raw(x))
    if x.shape != target.shape:
        x = jnp.broadcast_to(x, target.shape)
    if x.dtype != target.dtype or bool(x.weak_type) != target.weak:
        x = compat.convert(x, target.dtype, target.weak)
    return x


def drop(tree: Tree, leaves: Iterator) -> None:
    """Skip the leaves of a tree."""
    for _ in range(count_leaves(tree)):
        next(leaves)
