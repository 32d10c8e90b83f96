"""A block of Python, traced once: what it would leave behind, and how two paths become one."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box
from malleable.arrays.joined import Joined
from malleable.arrays.journal import ABSENT, Place
from malleable.arrays.places import own
from malleable.errors import TransformError
from malleable.frontend.common import decisions
from malleable.frontend.common.frames import as_local
from malleable.frontend.common.session import drop_raise, note_line, session
from malleable.frontend.values import copies, references, unwinding
from malleable.frontend.values.keys import KEY, OtherMembers
from malleable.frontend.values.leaves import inject
from malleable.frontend.values.lost import Lost, keeps_new
from malleable.frontend.values.picked import Picked
from malleable.frontend.values.trees import (
    CONTENT,
    UNSET,
    Either,
    Leaf,
    Made,
    Node,
    Ragged,
    Static,
    Tree,
    count_leaves,
    half,
    join,
    mapped,
    number_leaf,
    number_of,
    spell,
)
from malleable.frontend.values.unwinding import is_raised
from malleable.frontend.values.values import Choice, flatten, holds_new, rebuild
from malleable.notes import note
from malleable.programs.evaluate import evaluate


@dataclass
class Block:
    """A traced block. after: what each changed place holds in the end, as (tree, its leaves)."""

    closed: compat.Jaxpr | None
    result: tuple
    after: dict[Any, tuple]
    places: dict[Any, Place]
    before: dict[Any, Any]
    error: BaseException | None = None
    undefined: set = field(default_factory=set)  # places joined with nothing on the way
    unread: set = field(default_factory=set)  # names that a branch found undefined
    met: dict = field(default_factory=dict)  # as that of a journal
    left: bool = False  # it ends in a raise, for a handler around us
    copies: list = field(default_factory=list)  # what has copies from now on
    made: set = field(default_factory=set)  # the ids of objects that were made in it
    flags: tuple = ({}, frozenset())  # see flags_in

    def outs(self, args: Sequence = (), consts: Sequence | None = None) -> list:
        """The leaves of all trees, computed here."""
        return evaluate(self.closed, args, consts=consts) if self.closed is not None else []


def trace_block(run: Callable, places: Sequence[Place], inputs: Sequence = ()) -> Block:
    """Trace run(*inputs) and undo what it did.

    A deliberate `raise` in it goes to the handler around us, else is kept as the error.
    """
    result: tuple = (Static(None), ())
    after: dict[Any, tuple] = {}
    left, error, flags = False, None, ({}, set())
    mark, unsure = decisions.known_now(), session().uncertain.copy()
    new: list = []

    def traced(*xs):
        nonlocal result, left, error, flags
        leaves: list = []

        def split(value):
            start = len(leaves)
            tree = flatten(value, leaves)
            return tree, range(start, len(leaves))

        try:
            try:
                value = run(*xs)
            except BaseException as raised:
                e = as_local(raised)
                if not unwinding.hand_over(e):
                    if not is_kept(e, book):
                        raise
                    error = e.with_traceback(None)
                    error.__context__ = None
                    return []  # JAX never lets go of the values of a trace that an exception ends
                value, left = UNSET, True
            unwinding.rewind(within)
            result = split(value)
            for key, place in book.places.items():
                after[key] = split(place.read())
            flags = flags_in(after, leaves)
        finally:
            unwinding.undo_to(within)
            decisions.forget_since(mark)
            book.undo()
            forget_new(book)
            known = copies.kept(book)
            made = {id(x.thing): (Made(why=x.why), x.thing) for x in known if not x.part}
            new[:] = [x for x in known if not holds_new(x.thing, {})]
            book.followers.clear()  # they know the values of this block
            session().uncertain = unsure
        result = (outer(result[0], made), result[1])
        for key in list(after):
            if key in book.places:
                after[key] = (outer(after[key][0], made), after[key][1])
            else:
                del after[key]
        return list(map(own, leaves))

    with journal.opened() as book:
        book.made = {}
        within = journal.all_open()
        for place in places:
            book.record(place)
        closed = compat.trace(traced, *inputs)
    if error is not None:
        closed = None
        if not is_raised(error):  # a name: a loop around us may define it, and trace us again
            for other in journal.all_open():
                other.unread.add(getattr(error, "__malleable_name__", None) or error.name)
        elif any(holds_new(x, {}) or isinstance(x, Box) for x in error.args):
            error.args = tuple(str(x) if isinstance(x, Box) else x for x in error.args)
    for around in journal.all_open():
        around.new |= book.new
    found = book.undefined, book.unread, book.met
    rest = *found, left, new, book.new, flags
    return Block(closed, result, after, book.places, book.before, error, *rest)


def is_kept(e: BaseException, book: journal.Journal) -> bool:
    """Whether an exception is part of what a block does: a `raise`, or a name yet to be defined."""
    within_others = any(j is not book for j in journal.all_open())
    return is_raised(e) or (isinstance(e, NameError) and within_others)


def is_unknown(e: BaseException) -> bool:
    """Whether an exception says that there is no such name, and not that it is not bound yet."""
    return type(e) is NameError and not is_raised(e) and "free variable" not in str(e)


def forget_new(book: journal.Journal) -> None:
    """Drop the places that only the block knows: they held its values from the start."""
    for key, place in list(book.places.items()):
        if holds_new(book.before[key], {}) or (place.kind != "cell" and holds_new(place.owner, {})):
            del book.places[key], book.before[key]


def outer(tree: Tree, made: dict) -> Tree:
    """The tree without memories of what exists only in the block being traced.

    made: by id, what stands for each.
    """
    origin = getattr(tree, "origin", None)
    if origin is not None and holds_new(origin, {}):
        tree = replace(tree, origin=stand_in(origin, made))
    if isinstance(tree, Static) and keeps_new(tree.value, {}):
        return Static(Lost())
    if isinstance(tree, Leaf) and tree.links:
        inside = [link.value for link in tree.links]
        inside = [stand_in(x, made) if holds_new(x, {}) else x for x in inside]
        return replace(tree, links=tuple(map(Static, inside)))
    tree = mapped(lambda part: outer(part, made), tree)
    if origin is not None and any(
        isinstance(getattr(part, "value", None), Lost) for part in getattr(tree, "children", ())
    ):
        return replace(tree, origin=stand_in(origin, made))
    return tree


def stand_in(thing, made: dict) -> Made:
    """What stands for a thing that a block made, and for the array that it is a part of."""
    if id(thing) not in made:
        base = thing.root if isinstance(thing, Box) and thing._base is not None else None
        known = [] if base is None else [base, *candidates(base)]
        old = tuple(box for box in known if not holds_new(box, {}))
        root = stand_in(base, made) if base is not None and holds_new(base, {}) else None
        made[id(thing)] = Made(root, old), thing
    return made[id(thing)][0]


def candidates(box: Box | None) -> list[Box]:
    """Each other array that one may be, as far as somebody knows that."""
    boxes = [ref() for ref, _ in box.links] if isinstance(box, Joined) else []
    boxes = box.items if isinstance(box, Picked) else boxes
    return [x for found in boxes if found is not None for x in (found, *candidates(found))]


def changes(block: Block) -> bool:
    """Whether a block does anything else than to compute a value."""
    if block.error is not None or block.left or (block.closed is not None and block.closed.effects):
        return True
    held: dict = {}
    references.count_origins([*block.after.values(), block.result], held)
    return not all(references.is_dead(place, [block], held) for place in block.places.values())


def has_raised(block: Block) -> bool:
    """Whether it always ends in an exception."""
    return block.left or (block.error is not None and is_raised(block.error))


# ---------------------------------------------------------------- two paths become one


def merge(pred, yes: Block, no: Block, where: str) -> Any:
    """Leave behind what the block chosen by `pred`, True or traced, would; return its result."""
    if yes.error is not None and no.error is not None:
        raise yes.error
    for block in (yes, no):
        if block.error is not None:
            keep_flags(block, where)
    paths = Paths(pred, yes, no, where)
    paths.join()
    rest, made = iter(paths.choose()), {}
    paths.write(rest, made)
    if has_raised(yes) and has_raised(no):
        raise unwinding.Leaving
    for block in (yes, no):
        copies.keep(block.copies)
    unwinding.freeze_if(paths.targets)
    return rebuild(paths.result, rest, where, pred, made)


def keep_flags(block: Block, where: str) -> None:
    """Leave only flags of a block that ends in an exception: that it raised, or found nothing."""
    block.after, block.places = {}, {}
    if is_unknown(block.error):
        raise block.error
    if is_raised(block.error) or not any(book.binds for book in journal.all_open()):
        drop_raise(block.error, where)
        raised, lost = (Place("box", flag) for flag in (session().raised, session().lost))
        flags = (raised, lost) if isinstance(block.error, LookupError) else (raised,)
        block.after = {flag.key: (Static(True), ()) for flag in flags}
        block.places = {flag.key: flag for flag in flags}


class Paths:
    """Two blocks of which `pred` chooses one, and the places that either writes to.

    `old` is what was in each place, `trees` what each block leaves there, `targets` what is there
    behind both; `results` and `result` are the same of the values of the blocks.
    """

    def __init__(self, pred, yes: Block, no: Block, where: str):
        self.pred, self.where, self.blocks = pred, where, (yes, no)
        self.places: dict = {**yes.places, **no.places}
        self.old: dict = {}
        self._read()
        self.trees = {key: [self._left_by(key, side) for side in (0, 1)] for key in self.places}

    def _read(self) -> None:
        """Leave out places that nobody reads; name the references among those that are left."""
        yes, no = self.blocks
        held: dict = {}
        for block in self.blocks:
            references.count_origins([*block.after.values(), block.result], held)
        everywhere = list(self.places.values())
        self.places = {
            k: p for k, p in self.places.items() if not references.is_dead(p, self.blocks, held)
        }
        for key, place in self.places.items():
            leaves: list = []
            self.old[key] = (flatten(default(place, place.read()), leaves), leaves)
        for place in self.places.values():
            refuse_default(place.owner, place.name, self.where)
        references.count_origins(self.old.values(), held)
        references.count_contents(self.places.values(), held)
        known = references.Known(held, [*everywhere, *yes.places.values(), *no.places.values()])
        for found in (yes.after, no.after, self.old):
            for key, (tree, leaves) in found.items():
                content = key in self.places and self.places[key].kind in CONTENT
                found[key] = known.named(tree, leaves, content)
        for block in self.blocks:
            block.result = known.named(*block.result)

    def _left_by(self, key, side: int) -> Tree:
        """What a block leaves in a place; a flag is certain where the test says so."""
        block = self.blocks[side]
        written = key in block.after
        tree = (block.after if written else self.old)[key][0]
        if not written and block.error is not None:
            return Static(UNSET)
        if is_flag(tree):
            flag = tree.origin.value if isinstance(tree.origin, Box) else tree.origin
            flag = flag if written else self.old[key][1][0]
            found = decisions.implied(flag, self.pred, side == 0)
            if found is not None:
                return Static(found)
        return tree if written else revised(tree, block)

    def join(self) -> None:
        """What is behind both blocks, of which no two kinds may be one."""
        yes, no = self.blocks
        for key, trees in self.trees.items():
            keyed = {KEY in (tree.keys or ()) for tree in trees if isinstance(tree, Node)}
            if len(keyed) > 1 and key in self.places:
                raise OtherMembers(self.places[key].owner, trees, self.where)
        new = {k for k, p in self.places.items() if id(p.owner) in yes.made | no.made}
        self.targets = {
            k: (join if k in new else functools.partial(join_place, p))(*self.trees[k])
            for k, p in self.places.items()
        }
        for key, target in self.targets.items():
            if isinstance(target, Either):
                refuse_two_contents(self.places[key], target, self.where)
        self.results = [Static(UNSET) if b.error is not None else b.result[0] for b in self.blocks]
        self.result = join(*self.results)
        if session().options.exact:
            refuse_two_types("the value", *self.results, self.where)
        references.refuse_split([*self.targets.values(), self.result], self.where)
        report_joins(self)

    def choose(self) -> Sequence:
        """The leaves of all targets and of the result, of the block that is chosen."""
        effects = any(b.closed is not None and b.closed.effects for b in self.blocks)
        wanted = sum(map(count_leaves, self.targets.values())) + count_leaves(self.result)
        checks = session().options.checked and any(b.error is not None for b in self.blocks)
        if not (wanted or effects or checks):
            return ()
        yes, no = (functools.partial(self._leaves, side) for side in (0, 1))
        if self.pred is True:
            return yes()
        if all(map(is_idle, self.blocks)):
            return [
                decisions.decided(self.pred, *column) for column in zip(yes(), no(), strict=True)
            ]
        outs = lax.cond(self.pred, *varied(self.pred, yes, no))
        remember_flags(self, outs)
        return outs

    def _leaves(self, side: int) -> list:
        """The same of one block, which is run."""
        block = self.blocks[side]
        outs = block.outs()
        found = []
        for key, target in self.targets.items():
            tree = self.trees[key][side]
            if isinstance(tree, Static):
                leaves: list = []
            elif key in block.after:
                tree, ids = block.after[key]
                leaves = [outs[i] for i in ids]
            else:
                tree, leaves = self.old[key]
                leaves = updated(tree, iter(leaves), block, outs)
            found += inject(tree, iter(leaves), target)
        tree, ids = block.result if block.error is None else (Static(UNSET), ())
        check_dropped(block)
        return found + inject(tree, iter([outs[i] for i in ids]), self.result)

    def write(self, leaves: Iterator, made: dict) -> None:
        """Write what is chosen to its places."""
        for key, target in self.targets.items():
            write_place(self.places[key], target, leaves, self.where, self.pred, made)


def refuse_two_contents(place: Place, target: Either, where: str) -> None:
    """A list, dict or set is changed where it is: what is in it has one shape behind both paths."""
    if place.kind == "set":
        raise OtherMembers(place.owner, target.options, where)
    if place.kind in ("list", "dict", "object"):
        raise TransformError(
            f"a {place.kind} is {spell(target.options[0])} after one branch of this "
            f"`if`, and {spell(target.options[1])} after the other",
            where=where,
            hint="keep its length the same on both paths: append np.where(test, x, y)",
        )


def varied(pred, *branches: Callable) -> Iterable:
    """Branches whose results vary over the same mesh axes: those of each, and of the choice."""
    if not compat.is_mapped():
        return branches
    types = [pred] * len(jax.eval_shape(branches[0])), *map(jax.eval_shape, branches)

    def alike(branch):
        return lambda: list(map(compat.match_devices, map(compat.as_array, branch()), *types))

    return map(alike, branches)


def updated(tree: Tree, leaves: Iterator, block: Block, outs: Sequence) -> list:
    """The leaves of a place that a block did not write, with what it wrote to the arrays in it."""
    if isinstance(tree, Leaf):
        leaf, *tests = (next(leaves) for _ in range(count_leaves(tree)))
        steps, box = [], tree.origin
        while isinstance(box, Box) and box._base is not None:
            steps, box = [box._index, *steps], box._base
        written = block.after.get(Place("box", box).key) if isinstance(box, Box) else None
        if written is None:
            return [leaf, *tests]
        content = outs[written[1][0]] if written[1] else written[0].value
        return [functools.reduce(lambda whole, step: step.read(whole), steps, content), *tests]
    written = content_of(tree, block)
    if written is not None:
        for _ in range(count_leaves(tree)):
            next(leaves)
        return [outs[i] for i in written[1]]
    if isinstance(tree, Ragged | Static):
        return [next(leaves) for _ in range(count_leaves(tree))]
    found = [next(leaves)] if isinstance(tree, Either) else []
    parts = tree.options if isinstance(tree, Either) else tree.children
    for name, part in zip(names_in(tree), parts, strict=True):
        inside = updated(part, leaves, block, outs)
        attribute = written_attribute(tree, name, block)
        found += inside if attribute is None else [outs[i] for i in attribute[1]]
    return found


def revised(tree: Tree, block: Block) -> Tree:
    """The tree of a place that a block did not write, with what it wrote to what is in there."""
    written = content_of(tree, block)
    if written is not None:
        return replace(written[0], origin=tree.origin) if hasattr(tree, "origin") else written[0]
    if isinstance(tree, Either):
        return Either(tuple(revised(option, block) for option in tree.options))
    if not isinstance(tree, Node):
        return tree
    parts = []
    for name, part in zip(names_in(tree), tree.children, strict=True):
        attribute = written_attribute(tree, name, block)
        parts.append(revised(part, block) if attribute is None else attribute[0])
    return replace(tree, children=tuple(parts))


def names_in(tree: Tree) -> Sequence:
    parts = tree.options if isinstance(tree, Either) else tree.children
    return getattr(tree, "keys", None) or range(len(parts))


def content_of(tree: Tree, block: Block) -> tuple | None:
    """(tree, which outputs) of what a block left in a list or dict that nobody else knows."""
    origin = getattr(tree, "origin", None)
    kind = "dict" if type(origin) is dict else "list" if type(origin) is list else None
    return None if kind is None else block.after.get(Place(kind, origin).key)


def written_attribute(tree: Tree, name, block: Block) -> tuple | None:
    """The same of an attribute of an object."""
    if not isinstance(tree, Node) or tree.keys is None or issubclass(tree.cls, dict):
        return None
    return None if tree.origin is None else block.after.get(Place("attr", tree.origin, name).key)


def default(place: Place, value) -> Any:
    """What a program sees where a place holds `value`: of a class, a base that is to keep it."""
    if value is not ABSENT or place.kind != "attr" or not isinstance(place.owner, type):
        return value
    kinds, name = place.owner.__mro__[1:], place.name
    seen = next((vars(kind)[name] for kind in kinds if name in vars(kind)), ABSENT)
    if seen is ABSENT or hasattr(seen, "__get__"):
        return ABSENT
    session().defaults.update((kind, name) for kind in kinds)
    return seen


def refuse_default(owner, name: str, where: str) -> None:
    """Refuse to change what a class has for instances that may have their own, or not."""
    if isinstance(owner, type) and (owner, name) in session().defaults:
        raise TransformError(
            f"`{owner.__name__}.{name}` changes, and whether a subclass has its own `{name}` "
            "depends on a traced condition",
            where=where,
            hint=f"set `{name}` in each subclass",
        )


def join_place(place: Place, one: Tree, other: Tree) -> Tree:
    """The join of what a place holds on two paths; an attribute may be there on one only."""
    absent = Static(ABSENT)
    if place.kind != "attr" or (one == absent) is (other == absent):
        return join(one, other)
    there = other if one == absent else one
    options = there.options if isinstance(there, Either) else (there,)
    rest = (half(option, there is one) for option in options if option != absent)
    return Either((absent, *rest))


def by_class(place: Place) -> bool:
    """Whether an instance that does not have an attribute itself has it by its class."""
    kinds = type(place.owner).__mro__ if place.kind == "attr" else ()
    found = [vars(kind)[place.name] for kind in kinds if place.name in vars(kind)]
    return bool(found) and not hasattr(found[0], "__set__")


def is_idle(block: Block) -> bool:
    """Whether a block computes nothing: it only chooses among what there is."""
    if block.error is not None:
        return not session().options.checked
    return not block.closed.jaxpr.eqns


CERTAIN = (Static(True), Static(False))


def is_flag(tree: Tree) -> bool:
    return type(tree) is Leaf and tree.scalar and tree.dtype == bool and not tree.links


def flags_in(after: dict, leaves: Sequence) -> tuple[dict, set]:
    """Where the bools are that a block leaves, and the values that they may have together."""
    found = {k: leaves[ids[0]] for k, (tree, ids) in after.items() if is_flag(tree)}
    if not found:
        return {}, set()
    found |= {k: tree.value for k, (tree, _) in after.items() if tree in CERTAIN}
    return {key: at for at, key in enumerate(found)}, decisions.combinations([*found.values()])


def remember_flags(paths: Paths, outs: Sequence) -> None:
    """What the bools that come out of two blocks tell of each other, and of the test."""
    targets = paths.targets
    starts = itertools.accumulate(map(count_leaves, targets.values()), initial=0)
    flags = {k: outs[at] for (k, t), at in zip(targets.items(), starts, strict=False) if is_flag(t)}
    if not flags or len(flags) > decisions.MOST:
        return
    rows = set()
    for side, block in enumerate(paths.blocks):
        columns, inside = block.flags
        columns = {key: at for key, at in columns.items() if key in block.after}
        trees = [paths.trees[key][side] for key in flags]
        for row in inside or {()}:
            options = []
            for key, tree in zip(flags, trees, strict=True):
                known = {tree.value} if tree in CERTAIN else {True, False}
                options.append(known & {row[columns[key]]} if row and key in columns else known)
            rows |= {(side == 0, *values) for values in itertools.product(*options)}
    decisions.remember(paths.pred, [*flags.values()], rows)
    for key, out in flags.items():
        sides = paths.trees[key]
        if all(tree in CERTAIN or isinstance(getattr(tree, "origin", None), Box) for tree in sides):
            values = (t.value if t in CERTAIN else t.origin.value for t in sides)
            decisions.note_choice(out, paths.pred, *values)


def write_place(place: Place, target: Tree, leaves, where: str, pred=None, made=None) -> None:
    """Write a place, for whoever traces a block around us to see."""
    now = journal.current()
    if now is not None:
        now.record(place)
    if place.kind == "box":
        content = [next(leaves) for _ in range(count_leaves(target))]
        place.write(content[0] if content else target.value)  # type: ignore
    else:
        value = rebuild(target, leaves, where, pred, made)
        if isinstance(value, Choice):
            value.name = place.name
        place.write(value)
        if place.kind == "dict" and isinstance(target, Node) and target.unsure:
            session().uncertain[id(place.owner)] = place.owner, *target.unsure


def report_joins(paths: Paths) -> None:
    """Say what may be undefined behind two blocks, and whose type depends on the test."""
    where = paths.where
    for key, target in paths.targets.items():
        one, other = paths.trees[key]
        name, place = paths.places[key].label, paths.places[key]
        for a, b in ((one, other), (other, one)):
            if isinstance(a, Static) and a.value is ABSENT and b != a and not by_class(place):
                if session().options.exact:
                    raise TransformError(f"{name} has a value on one path only", where=where)
                for open_ in journal.all_open():
                    open_.undefined.add(key)
                note(f"{name} may be undefined", where, "it is set in one branch only")
        if isinstance(one, Node) and isinstance(other, Node) and one.keys and other.keys:
            if session().options.exact and {*one.keys} != {*other.keys}:
                raise TransformError(f"{name} has other keys on each path", where=where)
            for k in {*one.keys} ^ {*other.keys}:
                note(f"key {k!r} may be undefined", where, "it is set in one branch only")
        if session().options.exact:
            refuse_two_types(name, one, other, where)
        report_types(name, one, other, target, where)
    report_types("the value", *paths.results, paths.result, where)


def report_types(name: str, one: Tree, other: Tree, target: Tree, where: str) -> None:
    """Say whose type NumPy would have known by the path."""
    a, b = number_of(one), number_of(other)
    if not all(isinstance(t, Leaf) for t in (a, b, target)):
        return
    if a.shape != b.shape:
        what = f"{name} is a number on one path and an array on the other: here always an array"
        note_line(what, where, "perhaps: give it one shape on both paths")
    if a.dtype == b.dtype:
        return
    if a.weak is b.weak and (not a.weak or {a.dtype.kind, b.dtype.kind} <= {*"iu"}):
        promoted(name, one, other, target, where)


def refuse_two_types(name: str, one: Tree, other: Tree, where: str) -> None:
    """A number whose type depends on a value is one thing to Python and another compiled."""
    leaves = [number_leaf(t.value) if isinstance(t, Static) else t for t in (one, other)]
    first, second = (t if isinstance(t, Leaf) else None for t in leaves)
    number_and_array = any(
        isinstance(a, Static) and isinstance(b, Leaf) and not b.scalar
        for a, b in ((one, other), (other, one))
    )
    if number_and_array and first and second:
        raise TransformError(
            f"{name} is a number on one path and an array on the other",
            where=where,
            hint="give it one type on both paths",
        )
    if first and second and first.dtype != second.dtype:
        raise TransformError(
            f"{name} is {spell(first)} on one path and {spell(second)} on the other",
            where=where,
            hint="give it one type on both paths",
        )


def promoted(name: str, one: Tree, other: Tree, target: Tree, where: str) -> None:
    """Two types became one: a note, or with strict=True an error."""
    if str.__eq__(spell(one), spell(other)):  # past what a text with placeholders says to ==
        return
    if session().options.strict:
        raise TransformError(
            f"{name} is {spell(one)} on one path and {spell(other)} on the other",
            where=where,
            hint="convert it on one of the paths, or leave strict=True away to promote",
        )
    both = [number_leaf(t.value) if isinstance(t, Static) else t for t in (one, other)]
    if all(isinstance(t, Leaf) for t in both) and len(set(map(spell, both))) > 1:
        note(f"{name}: {spell(one)} and {spell(other)} became {spell(target)}", where)


def check_dropped(block: Block) -> None:
    if block.error is not None and session().options.checked:
        message = f"{type(block.error).__name__}: {block.error}".replace("{", "{{")
        jax.experimental.checkify.check(jnp.asarray(False), message.replace("}", "}}"))
