"""What a rule may see and change while one body runs, and how values written twice combine."""

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.core import values
from malleable.core.values import has_values, is_value
from malleable.errors import TransformError

MODES = ("stack", "unique", "masked", "last", "sum")
FOLDED = ("last", "sum")  # these combine over the steps of a loop; the others stack
_REQUIRED: Any = object()
Path = tuple[str, ...]
Name = str | Path  # "x", or ("scope", "x")


class Masked(NamedTuple):
    """A value that may not have been written, and whether it was. Unwritten values are zero."""

    value: Any
    written: Any


@dataclass(frozen=True)
class Write:
    """One value on its way out; written is an array of bool, or None where that is certain."""

    value: Any
    written: Any
    mode: str
    where: str

    def result(self) -> Any:
        """The value, or `Masked` where it may not have been written."""
        return self.value if self.written is None else Masked(self.value, self.written)


@dataclass(frozen=True)
class Misfit:
    """Stands for a feed that cannot be cut into steps, until somebody reads it."""

    why: str
    hint: str


@dataclass
class Frame:
    """The state of one body. Every control flow takes it as an argument and gives it as a result.

    carry: state that flows from equation to equation, and around loops.
    feeds: values handed in by name; inside a scan, one slice per step.
    shared: values handed in by name; the same everywhere.
    key: the root of the random keys of this body, or None; draws: how many it has given;
    devices: the mesh axes along which each device draws keys of its own.
    writes: values handed out by name; after a scan, stacked over its steps or folded.
    changed: the line of the first rule that put another value in the place of an equation's.
    eqn, args: the equation at hand and its operands; outer: the equations around it.
    """

    carry: Any = ()
    feeds: dict[Path, Any] = field(default_factory=dict)
    shared: dict[Path, Any] = field(default_factory=dict)
    key: Any = None
    writes: dict[Path, Write] = field(default_factory=dict)
    draws: int = 0
    devices: tuple[Any, ...] = ()
    changed: str = ""
    eqn: Any = None
    args: tuple[Any, ...] = ()
    outer: tuple[Any, ...] = ()
    place: tuple[Any, ...] = ()  # the operand of a marker that rules do not see
    bound: Any = None  # what `bind` gave on the equation's own operands
    book: Any = None  # the rules of this run; the one that is asked; those asked about values,
    rule: Any = None  # and about which
    asking: tuple[Any, ...] = ()
    silent: bool = False  # values are added up: what their rules write is not asked for

    # ------------------------------------------------------------ for rules

    def read(self, name: Name, otherwise: Any = _REQUIRED) -> Any:
        """The value fed in under `name`, or `otherwise`."""
        q = path_of(name)
        value = self.feeds.get(q, self.shared.get(q, otherwise))
        if value is _REQUIRED:
            known = ", ".join(map(quoted, [*self.feeds, *self.shared])) or "none"
            what = f"{quoted(q)} is read, and nothing is fed in under that name"
            raise self.error(what, f"feed it; the names fed in are: {known}")
        if isinstance(value, Misfit):
            raise self.error(f"{quoted(q)} cannot be fed here: {value.why}", value.hint)
        return value

    def write(self, name: Name, value: Any, mode: str = "stack") -> None:
        """Hand `value` out under `name`.

        mode: "stack" once per body, stacked by scans; "unique" once, never in a loop; "masked"
        as "stack" but on some paths only; "last" and "sum" combine all that is written. A sum of
        values is what the rules for `add` make of it; of arrays, where that is no such value.
        """
        q = path_of(name)
        if self.silent:
            return
        if mode not in MODES:
            what = f"{quoted(q)} is written with the unknown mode {mode!r}"
            raise self.error(what, f"the modes are {', '.join(MODES)}")
        value = values.each(self._summand, value) if mode == "sum" else value
        self.put(q, Write(jax.tree.map(jnp.asarray, value), None, mode, self.where))

    def next_key(self, *, shared: bool = False) -> Any:
        """A fresh random key: fold_in(root, n), n counted while tracing.

        The count runs through every body that runs once, and each step of a loop has a root of
        its own; so inlining, rematerialisation and differentiation do not change the keys.
        Each device of a shard_map draws a key of its own; with shared=True all draw the same.
        """
        if self.key is None:
            what = "a random key is asked for, and none was given"
            raise self.error(what, "pass `key=` to interpret")
        self.draws += 1
        key = jax.random.fold_in(self.key, self.draws - 1)
        shared = shared or getattr(getattr(self.eqn, "primitive", None), "shared", False)
        for axis in () if shared else self.devices:
            key = jax.random.fold_in(key, lax.axis_index(axis))
        return key

    def bind(self, *args: Any) -> Any:
        """The equation at hand, on `args`: what happens where no rule interferes.

        With values among `args` the rules are asked again, or if these are the very operands
        that the rule at hand got, those behind it.
        """
        own = len(args) == len(self.args) and all(map(operator.is_, args, self.args))
        if has_values(args):
            outs = self.book.meet(self, [*args, *self.place], self.rule if own else None)
        else:
            outs = compat.copy(self.eqn, (*args, *self.place), inside=True)
        self.bound = outs if own else None
        return outs if self.eqn.primitive.multiple_results else outs[0]

    @property
    def where(self) -> str:
        """`file.py:12 in fun`: the user's line behind the equation at hand, or that runs it."""
        here = "" if self.eqn is None else compat.where(self.eqn, *self.outer)
        return here or compat.where()

    # ------------------------------------------------------------ for control flow

    def enter(self) -> "Frame":
        """The frame that a body run once starts from."""
        self._check_carry()
        return replace(self, writes={}, changed="")

    def leave(self) -> "Frame":
        """What a body hands back."""
        self._check_carry()
        return replace(self, feeds={}, shared={}, key=None)

    def absorb(self, inner: "Frame") -> None:
        """Go on from what a body run once handed back."""
        self.carry, self.draws = inner.carry, inner.draws
        self.changed = self.changed or inner.changed
        for name, write in inner.writes.items():
            self.put(name, write)

    def put(self, name: Path, new: Write) -> None:
        old = self.writes.get(name, new)
        check_same(name, old, new)
        if old is new:
            self.writes[name] = new
        elif new.mode in FOLDED:
            self.writes[name] = fold(old, new, self.added)
        else:
            hint = 'give each its own name or `scope`, or combine them: mode="last" or "sum"'
            raise clash(name, old, new, "twice", hint)

    def _summand(self, x):
        """A value, if sums of its like are its like, too; else the array."""
        if not is_value(x) or values.same_types(jax.eval_shape(self.added, x, x), x):
            return x
        return values.materialised(self, x, "a sum of what is written")

    def added(self, x: Any, y: Any) -> Any:
        """The sum of two arrays, or values, by the rules; what these write is lost."""
        if not is_value(x):
            return jnp.add(x, y)
        return self.book.added(replace(self, writes={}, asking=(), silent=True), x, y)

    def _check_carry(self) -> None:
        for leaf in jax.tree.leaves(self.carry):
            if not compat.is_array(leaf):
                what = f"the carry holds a {type(leaf).__name__}, which cannot cross control flow"
                raise self.error(what, "keep arrays, numbers and pytrees of them in the carry")

    def error(self, what: str, hint: str) -> TransformError:
        return TransformError(what, where=self.where, hint=hint)


jax.tree_util.register_static(Misfit)
jax.tree_util.register_dataclass(Write, ["value", "written"], ["mode", "where"])
jax.tree_util.register_dataclass(
    Frame,
    ["carry", "feeds", "shared", "key", "writes"],
    ["draws", "devices", "changed"],
    ["eqn", "args", "outer", "place", "bound", "book", "rule", "asking", "silent"],
)


def thread(run: Callable, frame: Frame, args: list) -> list:
    """run(frame, args), with the frame going on from what it handed back."""
    outs, inner = run(frame.enter(), args)
    frame.absorb(inner)
    return outs


def fold(old: Write, new: Write, add: Callable = jnp.add) -> Write:
    """What is left of two writes of one name and mode, the second after the first."""

    def added(x, y):
        total = add(x, y)
        if is_value(x):  # whose fields, where nothing is written, need not stand for zero
            total = total if new.written is None else select(new.written, total, x)
            total = total if old.written is None else select(old.written, total, y)
        return total

    if new.mode == "sum":
        value = values.each(added, old.value, new.value)
    else:
        value = new.value if new.written is None else select(new.written, new.value, old.value)
    if old.written is None or new.written is None:
        return replace(new, value=value, written=None)
    shape = max(old.written.shape, new.written.shape, key=len)
    written = spread(old.written, shape) | spread(new.written, shape)
    return replace(new, value=value, written=written)


def spread(flag, shape):
    """A flag, or None for certainty, as an array of `shape`; its axes are the leading ones."""
    flag = jnp.asarray(True if flag is None else flag)
    return jnp.broadcast_to(jnp.expand_dims(flag, tuple(range(flag.ndim, len(shape)))), shape)


def select(mask, new, old):
    """`new` where the mask holds, else `old`; the mask's axes are the leading ones."""

    def one(n, o):
        lanes = jnp.shape(n)[: jnp.ndim(mask)] == jnp.shape(mask)
        # what the lanes share changes while any of them is at work
        m = spread(mask, jnp.shape(n)) if lanes else jnp.any(mask)
        return jnp.where(m, n, o)

    return jax.tree.map(one, new, old)


def zeros(tree):
    """Zeros of the same types."""
    return jax.tree.map(lambda a: compat.match_devices(jnp.zeros(a.shape, a.dtype), a), tree)


def check_same(path: Path, old: Write, new: Write) -> None:
    """Raise unless two writes of one name have the same mode, structure, shapes and dtypes."""
    if old.mode != new.mode:
        raise clash(path, old, new, f"with mode {old.mode!r} and with {new.mode!r}", "use one mode")
    if signature(old.value) != signature(new.value):
        how = f"as {spell_type(old.value)} and as {spell_type(new.value)}"
        hint = "write the same shapes and dtypes, or use two names"
        own = [x for w in (old, new) for x in values.flatten(w.value)[0] if is_value(x)]
        if own:
            name = type(own[0]).__name__
            hint = f"write values of one type, such as `{name}.lift` makes of arrays, or two names"
        raise clash(path, old, new, how, hint)


def clash(path: Path, old: Write, new: Write, how: str, hint: str) -> TransformError:
    both = f"{old.where or 'a line unknown'} and {new.where or 'a line unknown'}"
    both = f"both times by {new.where}" if old.where == new.where and new.where else both
    return TransformError(f"{quoted(path)} is written {how} ({both})", where=new.where, hint=hint)


def signature(tree):
    """Structure, shapes and dtypes."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(jnp.shape(x), jnp.result_type(x)) for x in leaves]


def path_of(name: Any) -> Path:
    """A name as a path; raises TypeError for what is neither str nor a tuple of them."""
    path = name if isinstance(name, tuple) else (name,)
    if not all(isinstance(part, str) for part in path):
        raise TypeError(f"a name is a string or a tuple of strings, not {name!r}")
    return path


def quoted(path: Path) -> str:
    """A path as the user wrote it, scopes and all."""
    return repr("/".join(path))


def spell_type(tree) -> str:
    """`float32[3]`, or a pytree of such."""
    one = lambda x: f"{jnp.result_type(x)}[{','.join(map(str, jnp.shape(x)))}]"  # noqa: E731
    return str(jax.tree.map(one, tree)).replace("'", "")
