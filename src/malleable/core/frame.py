"""What a rule may see and change while one body runs, and how values written twice combine."""

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp

from malleable import compat
from malleable.errors import TransformError

MODES = ("stack", "unique", "masked", "last", "sum")
FOLDED = ("last", "sum")  # these combine over the steps of a loop; the others stack
_REQUIRED: Any = object()


class Masked(NamedTuple):
    """A value that may not have been written, and whether it was. Unwritten values are zero."""

    value: Any
    written: Any


@dataclass(frozen=True)
class Write:
    """One value on its way out. written is True where that is certain, else an array of bool."""

    value: Any
    written: Any
    mode: str
    where: str

    def result(self):
        return self.value if self.written is True else Masked(self.value, self.written)


@dataclass(frozen=True)
class Misfit:
    """Stands for a feed that cannot be cut into steps, until somebody reads it."""

    why: str


@dataclass
class Frame:
    """The state of one body. Every control flow takes it as an argument and gives it as a result.

    carry: state that flows from equation to equation, and around loops.
    feeds: values handed in by name; inside a scan, one slice per step.
    shared: values handed in by name; the same everywhere.
    key: the root of the random keys of this body, or None; draws: how many it has given.
    writes: values handed out by name; after a scan, stacked over its steps or folded.
    eqn, args: the equation at hand and its operands; outer: the equations around it.
    changed: the line of the first rule that put another value in the place of an equation's.
    """

    carry: Any = ()
    feeds: dict[Hashable, Any] = field(default_factory=dict)
    shared: dict[Hashable, Any] = field(default_factory=dict)
    key: Any = None
    writes: dict[Hashable, Write] = field(default_factory=dict)
    draws: int = 0
    changed: str = ""
    eqn: Any = None
    args: tuple[Any, ...] = ()
    outer: tuple[Any, ...] = ()
    bound: Any = None  # what `bind` gave on the equation's own operands
    before: dict[Hashable, Any] = field(default_factory=dict)  # writes, as they were before each

    # ------------------------------------------------------------ for rules

    def read(self, name: Hashable, otherwise: Any = _REQUIRED):
        """The value fed in under `name`, or `otherwise`."""
        value = self.feeds.get(name, self.shared.get(name, otherwise))
        if value is _REQUIRED:
            raise TransformError(
                f"{spell(name)} is read here, and nothing is fed in under that name",
                where=self.where,
                hint=f"known names: {', '.join(map(spell, self.names)) or 'none'}",
            )
        if isinstance(value, Misfit):
            raise TransformError(
                f"{spell(name)} cannot be fed here: {value.why}",
                where=self.where,
                hint="feed one slice per step, or hand it in as `shared` (the same in every step)",
            )
        return value

    def write(self, name: Hashable, value: Any, mode: str = "stack") -> None:
        """Hand `value` out under `name`.

        mode: "stack" once per body, stacked by scans; "unique" once, never in a loop; "masked"
        as "stack" but on some paths only; "last" and "sum" combine all that is written.
        """
        if mode not in MODES:
            raise TransformError(
                f"{spell(name)} is written with the unknown mode {mode!r}",
                where=self.where,
                hint=f"the modes are {', '.join(MODES)}",
            )
        value = jax.tree.map(jnp.asarray, value)
        self.before[name] = self.writes.get(name)
        self.put(name, Write(value, True, mode, self.where))

    def rewrite(self, name: Hashable, value: Any) -> None:
        """Put `value` in the place of what this body wrote last under `name`, if anything."""
        if name in self.before:
            before, last = self.before.pop(name), self.writes.pop(name)
            if before is not None:
                self.writes[name] = before
            self.put(name, replace(last, value=value))

    def next_key(self):
        """A fresh random key: `fold_in(root, static counter)`.

        The counter runs through every body that is run once, and loops start a new root per
        step; so inlining, rematerialisation and differentiation do not change the keys.
        """
        if self.key is None:
            raise TransformError(
                "a random key is asked for, and none was given",
                where=self.where,
                hint="pass `key=` to interpret",
            )
        self.draws += 1
        return jax.random.fold_in(self.key, self.draws - 1)

    def bind(self, *args):
        """The equation at hand, on `args`: what happens where no rule interferes."""
        outs = compat.bind(self.eqn, args)
        own = len(args) == len(self.args) and all(a is b for a, b in zip(args, self.args))
        self.bound = outs if own else None
        return outs if self.eqn.primitive.multiple_results else outs[0]

    @property
    def where(self) -> str:
        """`file.py:12 in fun`: the user's line behind the equation at hand."""
        return compat.where(self.eqn, *self.outer) if self.eqn is not None else ""

    # ------------------------------------------------------------ for control flow

    @property
    def names(self):
        return [*self.feeds, *self.shared]

    def enter(self) -> "Frame":
        """The frame a body run once starts from."""
        return replace(self, writes={}, before={})

    def leave(self) -> "Frame":
        """What a body hands back."""
        return replace(self, feeds={}, shared={}, key=None)

    def absorb(self, inner: "Frame") -> None:
        """Go on from what a body run once handed back."""
        self.carry, self.draws = inner.carry, inner.draws
        self.changed = self.changed or inner.changed
        for name, write in inner.writes.items():
            self.put(name, write)

    def put(self, name: Hashable, new: Write) -> None:
        old = self.writes.get(name)
        if old is None:
            self.writes[name] = new
            return
        if new.mode not in FOLDED or new.mode != old.mode:
            raise TransformError(
                f"{spell(name)} is written twice ({lines(old, new)})",
                where=new.where,
                hint='give each its own name, put one inside a `scope`, or use mode="last" or "sum"',
            )
        check_same(name, old, new)
        self.writes[name] = fold(old, new)


def fold(old: Write, new: Write) -> Write:
    """What is left of two writes of one name and mode, the second after the first."""
    if new.mode == "sum":
        value = jax.tree.map(jnp.add, old.value, new.value)
    elif new.written is True:
        value = new.value
    else:
        value = select(new.written, new.value, old.value)
    certain = old.written is True or new.written is True
    return replace(new, value=value, written=certain or jnp.logical_or(old.written, new.written))


def select(mask, new, old):
    """`new` where the mask holds, else `old`; the mask's axes are the leading ones."""

    def one(n, o):
        n, o = jnp.asarray(n), jnp.asarray(o)
        shape = jnp.shape(mask)
        if n.shape[: len(shape)] != shape:  # shared by all lanes: new if any lane is at work
            return jnp.where(jnp.any(mask), n, o)
        return jnp.where(jnp.reshape(mask, shape + (1,) * (n.ndim - len(shape))), n, o)

    return jax.tree.map(one, new, old)


def zeros(tree):
    """Zeros of the same types."""
    return jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), tree)


def check_same(name: Hashable, old: Write, new: Write) -> None:
    """Raise unless two writes of one name have the same structure, shapes and dtypes."""
    if signature(old.value) != signature(new.value):
        raise TransformError(
            f"{spell(name)} is written as {spell_type(old.value)} and as "
            f"{spell_type(new.value)} ({lines(old, new)})",
            where=new.where,
            hint="write the same shapes and dtypes, or use two names",
        )


def signature(tree):
    """Structure, shapes and dtypes."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(jnp.shape(x), jnp.result_type(x)) for x in leaves]


def spell(name: Hashable) -> str:
    """A name as the user wrote it: scopes and all."""
    return repr("/".join(map(str, name)) if isinstance(name, tuple) else name)


def spell_type(tree) -> str:
    """`float32[3]`, or a pytree of such."""

    def one(x):
        return f"{jnp.result_type(x)}[{','.join(map(str, jnp.shape(x)))}]"

    return str(jax.tree.map(one, tree)).replace("'", "")


def lines(old: Write, new: Write) -> str:
    return f"{old.where or 'unknown line'} and {new.where or 'unknown line'}"


def _flatten_frame(f: Frame):
    return (f.carry, f.feeds, f.shared, f.key, f.writes), (f.draws, f.changed)


def _unflatten_frame(static, parts) -> Frame:
    return Frame(*parts, *static)


def _flatten_write(w: Write):
    if w.written is True:
        return (w.value,), (True, w.mode, w.where)
    return (w.value, w.written), (False, w.mode, w.where)


def _unflatten_write(static, parts) -> Write:
    certain, mode, where = static
    return Write(parts[0], True if certain else parts[1], mode, where)


jax.tree_util.register_pytree_node(Frame, _flatten_frame, _unflatten_frame)
jax.tree_util.register_pytree_node(Write, _flatten_write, _unflatten_write)
jax.tree_util.register_static(Misfit)
