"""What goes around a loop: found by tracing its body, widened until one type holds every step."""

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from jax import numpy as jnp

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box
from malleable.arrays.joined import Joined, linked
from malleable.arrays.journal import ABSENT, Place
from malleable.arrays.rows import Row
from malleable.frontend.copies import Copied, disown, inner, keep
from malleable.frontend.operators import places_of
from malleable.frontend.references import Known, count_contents, count_origins, is_dead, is_thing
from malleable.frontend.staging import Block, is_cached, promoted
from malleable.frontend.trees import (
    CONTENT,
    UNSET,
    Either,
    Leaf,
    Made,
    Node,
    Ragged,
    Static,
    Tree,
    abstract,
    count,
    free,
    half,
    join,
    join_ragged,
    spell,
)
from malleable.frontend.unwinding import flags
from malleable.frontend.values import STALE, CannotStage, flatten, inject, rebuild

ALONE = 4  # references to an array that nobody knows but its variable and us
MOST_DEPTH = 2  # choices within one another; in a tree of objects that grows they are many
MOST_KINDS = 3  # things a variable may be before it counts as one that is new in every step


@dataclass(frozen=True)
class Loop:
    """The parts of a loop, as the source gives them."""

    body: Callable
    state: Callable | None
    live: tuple
    rebound: tuple
    exits: Callable | None
    where: str
    test: Callable | None = None


class Slot(NamedTuple):
    """What a compiled step needs to know of one carried place. No values: JAX keeps it."""

    key: tuple
    tree: Tree
    traced: int  # how many leaves the traced body takes
    pinned: bool
    grows: bool


@dataclass
class Carried:
    """A place that goes around: its tree, and what it holds when the loop begins."""

    place: Place
    tree: Tree
    first: tuple  # (tree, leaves) before the loop
    pinned: bool = False  # a flag that is known to be False whenever a step begins
    traced: Tree | None = None  # the tree under which the body was traced last
    prefix: tuple | None = None  # of a list that grows by some items per step: how it began
    array: Box | None = None  # what a step begins with, in a variable that is bound anew
    same: Box | None = None  # whether that is still the array from before the loop
    by_name: bool = False  # an array that changes names with another: which it is goes around
    whole: tuple = ()  # as `first`, of a list or dict that others know: not its name, what it holds

    def slot(self) -> Slot:
        grows = self.prefix is not None
        return Slot(self.place.key, self.tree, count(self.traced), self.pinned, grows)


def start(loop: Loop) -> dict:
    """The local variables that go around, each with its type before the loop."""
    carried = {}
    exits = loop.exits.__code__.co_freevars if loop.exits is not None else ()
    for place in places_of(loop.state):
        if place.name not in loop.live:
            continue
        leaves: list = []
        value = place.read()
        whole = flatten(value, leaves), leaves
        tree, leaves = named_before(place, whole, 1)
        goal = free(abstract(tree))
        pinned = place.name in exits
        if isinstance(value, Box) and not value.scalar and place.name not in loop.rebound:
            tree = goal = Static(value)  # the box stays, its content moves
            leaves = []
        if pinned and value is False:
            goal = Static(False)
        c = carried[place.key] = Carried(place, goal, (tree, leaves), pinned)
        c.whole = whole
        if isinstance(tree, Leaf) and not tree.scalar and sys.getrefcount(value) > ALONE:
            c.same = Box(True, True)
            same = Place("box", c.same)
            goal = free(flatten(jnp.asarray(True), []))
            carried[same.key] = Carried(same, goal, (Static(True), []))
    for place in flags():
        if isinstance(place.read(), compat.Tracer):
            leaf = flatten(place.read(), leaves := [])
            carried[place.key] = Carried(place, free(leaf), (leaf, leaves), True)
    return carried


def named_before(place: Place, whole: tuple, others: int) -> tuple[Tree, list]:
    """The tree of what a place holds, and its leaves; what others know is there by name.

    others: how many references to it are ours.
    """
    held: dict = {}
    count_origins([whole], held)
    count_contents([place], held)
    key = id(getattr(whole[0], "origin", None))
    held[key] = held.get(key, 0) + others
    return Known(held).named(*whole, content=place.kind in CONTENT)


def named_after(block: Block) -> None:
    """Let the trees of what a step leaves name what others know."""
    held: dict = {}
    count_origins(block.after.values(), held)
    count_contents([p for p in block.places.values() if p.kind == "cell"], held)
    known = Known(held, block.places.values())
    for key, (tree, leaves) in block.after.items():
        content = key in block.places and block.places[key].kind in CONTENT
        block.after[key] = known.named(tree, leaves, content)


def loosened(c: Carried, after: Tree, block: Block) -> bool:
    """Whether a list that others know is none of theirs after a step, which left it as it was:

    then what goes around is what it holds.
    """
    if not (c.whole and isinstance(c.tree, Static) and isinstance(after, Node | Ragged)):
        return False
    owner = c.tree.value
    if owner is not getattr(c.whole[0], "origin", None):
        return False
    if any(p.owner is owner for p in block.places.values()):
        return False
    return not any(names(tree, owner) for tree, _ in block.after.values())


def renamed(c: Carried, after: Tree) -> Tree:
    """Which arrays a variable names, that changes names with another."""
    first = c.first[0]
    if isinstance(c.tree, Leaf):
        c.first = replace(first, known=True), c.first[1]
        c.same = None
        return Static(first.origin)
    options = after.options if isinstance(after, Either) else (after,)
    for option in options:
        if not isinstance(getattr(option, "origin", None), Box):
            raise CannotStage(
                f"`{c.place.name}` changes names with another array, and is bound anew"
            )
    found = list(c.tree.options if isinstance(c.tree, Either) else (c.tree,))
    for option in options:
        if Static(option.origin) not in found:
            found.append(Static(option.origin))
    return Either(tuple(found)) if len(found) > 1 else found[0]


def names(tree: Tree, thing) -> bool:
    """Whether a tree has the name of a thing in it."""
    if isinstance(tree, Static):
        return tree.value is thing
    inside = getattr(tree, "children", ()) or getattr(tree, "options", ())
    return any(names(t, thing) for t in inside)


def begin(carried: dict, leaves: Iterator, where: str) -> None:
    """Put the values of one step into their places."""
    values = [(c, rebuild(c.tree, leaves, where)) for c in carried.values()]
    for c, value in sorted(values, key=lambda pair: pair[0].place.kind != "box"):
        if c.pinned:
            value = False
        if c.place.kind == "box":
            value = value.value if isinstance(value, Box) else value
        elif c.same is not None:
            value = linked(value, c.first[0].origin, None, c.same.value)
        c.array = value if isinstance(value, Box) and not value.scalar else None
        c.place.write(value)


def note_aliases(carried: dict) -> None:
    """Which variables hold, after a step, another array than before the loop.

    A variable that is bound anew in the loop may be written to before: then the write is one to
    the array that it was before the loop, as long as it is that array.
    """
    written = journal.current().places
    note_swaps(carried, written)
    for c in carried.values():
        array, c.array = c.array, None
        now = c.place.read() if array is not None and c.place.kind == "cell" else None
        if type(now) is Box and now._base is not None and ("box", id(array), "") in written:
            raise CannotStage(f"`{c.place.name}` is a part of another array, and is written to")
        origin = getattr(c.first[0], "origin", None)
        if array is None or c.place.kind == "box" or not isinstance(origin, Box):
            continue
        if c.same is None:
            continue
        now = c.place.read()
        still = now is array or (isinstance(now, Joined) and now.condition_of(array))
        if still is not True:
            c.same.write(jnp.logical_and(c.same.value, still))


def note_kept(item, source: Box) -> None:
    """Say of an array, rows of which a step keeps in a list, that they are copies."""
    rows = item if isinstance(item, tuple | list) else [item]
    kept = [p.read() for p in journal.current().places.values() if p.kind == "list"]
    if any(x is row for xs in kept for x in xs for row in rows if isinstance(row, Box)):
        keep([Copied(source, "a list holds rows of this array", True)])


def bind_again(carried: dict, block: Block, runs: bool) -> None:
    """Let the names that are of one thing after each step be so after the loop.

    runs: it is known that there is a step. Where there may be none, and they are of several
    things then, these must not be written to.
    """
    found: dict = {}
    for key, c in carried.items():
        if key in block.after and c.prefix is None:
            find_made(c, block.after[key][0], c.place.kind in ("cell", "attr"), found)
    for same in found.values():
        before = {id(thing_of(c)) for c, _ in same} - {id(ABSENT), id(UNSET)}
        if all(whole for _, whole in same) and (runs or len(before) < 2):
            for c, _ in same[1:]:
                c.place.write(same[0][0].place.read())
        elif len(same) > 1:
            names = " and ".join(dict.fromkeys(c.place.label for c, _ in same))
            for c, _ in same:
                tree = flatten(c.place.read(), [], deep=True)
                disown(tree, f"a loop leaves one thing in {names}, if it runs", c.tree)


def find_made(c: Carried, tree: Tree, whole: bool, found: dict) -> None:
    """Where is what a step makes, and whether that is all that a place holds."""
    origin = getattr(tree, "origin", None)
    changes = not tree.scalar if isinstance(tree, Leaf) else is_thing(tree)
    if changes and (isinstance(origin, Made) or (isinstance(tree, Node) and origin is not None)):
        found.setdefault(id(origin), []).append((c, whole))
    for child in inner(tree):
        find_made(c, child, False, found)


def thing_of(c: Carried):
    """What a place held before the loop."""
    tree = c.whole[0] if c.whole else c.first[0]
    return getattr(tree, "origin", tree.value if isinstance(tree, Static) else tree)


def is_permuted(c: Carried, begun: dict) -> bool:
    """Whether following the arrays of names from step to step leads back to this one."""
    now, seen = c, set()
    while now is not None and id(now) not in seen:
        seen.add(id(now))
        now = begun.get(id(now.place.read())) if now.place.kind == "cell" else None
    return now is c and len(seen) > 1


def note_swaps(carried: dict, written: dict) -> None:
    """Which variables hold, after a step, the array of another variable that others know, too.

    Where one of them is written to in place, now or later, it matters which array each is.
    """
    begun = {id(c.array): c for c in carried.values() if c.array is not None}
    changed = any(("box", key, "") in written for key in begun)
    for c in carried.values():
        now = c.place.read() if c.array is not None and c.place.kind == "cell" else None
        other = begun.get(id(now)) if now is not None else None
        shared = other is not None and (c.same is not None or other.same is not None)
        if shared and other is not c and (changed or is_permuted(c, begun)):
            c.by_name = other.by_name = True


def settle(
    loop: Loop, carried: dict, block: Block, most: int | None, late: bool, runs: bool
) -> bool:
    """Widen what goes around to hold what the body leaves; whether to trace the body again.

    most: how many steps there are at most, None if that is not known; late: this is not the
    first time, and things should have come to rest; runs: it is known that there is a step.
    """
    named_after(block)
    again = find_places(loop, carried, block, most, late)
    for key, c in carried.items():
        if key not in block.after or c.traced is not c.tree:
            continue
        after = block.after[key][0]
        if c.prefix is not None and isinstance(after, Ragged):  # in some steps only, it turns out
            c.first = (flatten(list(c.prefix), leaves := []), leaves)
            c.tree, c.prefix = bounded_tree(c.first[0], after, most), None
            again = True
            continue
        if c.prefix is not None:
            again = settle_growing(c, after) or again
            continue
        if runs and loosened(c, after, block):
            c.first, c.tree = c.whole, free(abstract(c.whole[0]))
        both = renamed(c, after) if c.by_name else join(c.tree, after)
        if both == c.tree and c.traced is c.tree:
            continue
        both = free(both)
        check_type(c, both)
        if late and len(getattr(both, "options", ())) > max(MOST_KINDS, count_of(c.tree)):
            name = f"`{c.place.name}`" if c.place.name else "a variable"
            raise CannotStage(f"{name} is another object in every step")
        if depth(both) > MOST_DEPTH:
            raise CannotStage("every step makes objects that hold those of the step before")
        if isinstance(c.tree, Static) and c.tree.value is ABSENT:
            again = again or key in block.undefined or c.place.name in block.unread
        elif not (c.pinned or (isinstance(c.tree, Static) and c.tree.value is UNSET)):
            again = True
            promoted(c.place.label, c.tree, after, both, loop.where)
        c.tree = both
    return again


def depth(tree: Tree) -> int:
    """How many choices are within one another."""
    inside = getattr(tree, "children", ()) or getattr(tree, "options", ())
    return max(map(depth, inside), default=0) + isinstance(tree, Either)


def find_places(loop: Loop, carried: dict, block: Block, most: int | None, late: bool) -> bool:
    """Let the places on the heap go around that the body changes; whether there are new ones."""
    held: dict = {}
    count_origins(block.after.values(), held)
    local, again = {p.key for p in places_of(loop.state)}, False
    stops, collected = {flag.key for flag in flags()}, False
    for key, place in block.places.items():
        if key in carried or key in local or is_dead(place, [block], held) or is_cached(place):
            continue
        if late and not collected:
            collected = gc.collect() >= 0
        if late and is_dead(place, [block], held):
            continue  # it was kept alive by a circle of references
        leaves: list = []
        whole = flatten(place.seen(block.before[key]), leaves), leaves
        first, leaves = named_before(place, whole, 1)
        after = block.after[key][0]
        if isinstance(first, Static) and first == after:
            continue
        flag = key in stops
        if place.kind == "list" and grows(first, after):
            if isinstance(after, Ragged) or is_uneven(loop, carried, block):
                carried[key] = Carried(place, bounded_tree(first, after, most), (first, leaves))
            else:
                carried[key] = growing(place, block.before[key], after)
            again = True
            continue
        goal = Static(False) if flag and first == Static(False) else free(abstract(first))
        carried[key] = Carried(place, goal, (first, leaves), flag)
        carried[key].whole = whole
        if flag:
            carried[key].traced = goal  # it is False in the body, as it was
        again = again or not flag
    return again


def is_uneven(loop: Loop, carried: dict, block: Block) -> bool:
    """Whether the loop may stop before its end is reached, as far as is known."""
    keys = {key for key, c in carried.items() if c.pinned}
    keys |= {flag.key for flag in flags()}
    exits = [block.after[key][0] for key in keys if key in block.after]
    return loop.test is not None or any(tree != Static(False) for tree in exits)


def bounded_tree(first: Tree, after: Tree, most: int | None) -> Ragged:
    """A list that grows by an unknown number of items, with room for those of all steps."""
    if most is None:
        raise CannotStage("a list grows, and how often is not known: say loop(..., max_steps=n)")
    tree = join_ragged(first, after)
    if tree is None:
        raise CannotStage("a list gets items of several types")
    size = len(first.children) if isinstance(first, Node) else first.cap  # type: ignore[union-attr]
    return Ragged(tree.item, size + most * (tree.cap - size), fixed=True)


def count_of(tree: Tree) -> int:
    """How many things a value may be."""
    return len(tree.options) if isinstance(tree, Either) else 1


def check_type(c: Carried, tree: Tree) -> None:
    """Refuse what has no one type: an array that changes its shape, a list its length."""
    options = tree.options if isinstance(tree, Either) else ()
    kinds = [o for o in options if isinstance(o, Leaf)]
    if len(kinds) > 1 or (options and c.place.kind in CONTENT):
        before, after = kinds[:2] if len(kinds) > 1 else options[:2]
        raise CannotStage(
            f"{c.place.label} is {spell(before)} before a step and {spell(after)} after it"
        )


# ---------------------------------------------------------------- lists that grow


def grows(before: Tree, after: Tree) -> bool:
    """Whether a list kept what it had, and has more behind it, or may have."""
    if isinstance(after, Ragged) and isinstance(before, Node | Ragged):
        size = len(before.children) if isinstance(before, Node) else before.cap
        return after.cap > size
    if not (isinstance(before, Node) and isinstance(after, Node)):
        return False
    n = len(before.children)
    return len(after.children) > n and all(
        a == b and getattr(a, "origin", None) is getattr(b, "origin", None)
        for a, b in zip(before.children, after.children, strict=False)
    )


def growing(place: Place, before: list, after: Node) -> Carried:
    """A list that grows: its last items go around, the others are not to be read."""
    more = len(after.children) - len(before)
    last = list(before[-more:]) if len(before) >= more else []
    leaves: list = []
    first = flatten([STALE, *last], leaves)
    children = (Static(STALE), *(free(abstract(t)) for t in first.children[1:]))
    return Carried(place, Node(list, None, children), (first, leaves), prefix=tuple(before))


def settle_growing(c: Carried, after: Node) -> bool:
    """Widen the items that go around to hold those that are appended."""
    new = after.children[len(c.tree.children) :]
    last = c.tree.children[1:]
    if not new or (last and len(last) != len(new)):
        raise CannotStage("a list grows in some steps only")
    joined = (
        tuple(free(join(a, type_of(b))) for a, b in zip(last, new, strict=True)) if last else ()
    )
    if any(isinstance(t, Either) for t in joined):
        raise CannotStage("a list gets items of several types")
    c.tree = Node(list, None, (Static(STALE), *joined))
    return joined != last


def type_of(tree: Tree) -> Tree:
    """Of an item that is appended: an array with a name stays that array."""
    return half(free(abstract(tree)) if not isinstance(tree, Leaf) else tree, True)


def appended(slot: Slot, after: tuple, outs: list) -> list:
    """(tree, leaves) of each item that one step appends to a list."""
    tree, ids = after
    rest = iter([outs[k] for k in ids])
    items = [(t, [next(rest) for _ in range(count(t))]) for t in tree.children]
    return items[len(slot.tree.children) :]


def extend(c: Carried, after: Tree, rows: Iterator, length: int) -> None:
    """Give a list the items of all steps: rows of the stacked arrays."""
    trees = [type_of(t) for t in after.children[len(c.tree.children) :]]
    stacks = [[next(rows) for _ in range(count(t))] for t in trees]
    items = list(c.prefix or ())
    for i in range(length):
        for tree, arrays in zip(trees, stacks, strict=True):
            items.append(row(tree, arrays, i))
    now = journal.current()
    if now is not None:
        now.record(c.place)
    c.place.write(items)


def row(tree: Tree, arrays: list, i: int):
    if isinstance(tree, Leaf):
        return Row(arrays[0], i, tree.scalar)
    return rebuild(tree, iter([a[i] for a in arrays]), "")


def stacked(slot: Slot, after: tuple, outs: list) -> list:
    """The leaves of the items that one step appends."""
    items = appended(slot, after, outs)
    return [x for t, leaves in items for x in inject(t, iter(leaves), type_of(t))]
