"""What goes around a loop: found by tracing its body, widened until one type holds every step."""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from jax import numpy as jnp

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box
from malleable.arrays.journal import ABSENT, Place
from malleable.arrays.rows import Row
from malleable.frontend.common.session import note_line, session
from malleable.frontend.counterparts.bounded import ROOM
from malleable.frontend.values.conditions import places_of
from malleable.frontend.values.copies import Copied, inner, keep
from malleable.frontend.values.keys import OtherMembers
from malleable.frontend.values.leaves import inject
from malleable.frontend.values.lost import Lost
from malleable.frontend.values.references import (
    Known,
    count_contents,
    count_origins,
    is_dead,
    is_thing,
)
from malleable.frontend.values.relations import (
    A_ROW,
    ALONE,
    Relation,
    child,
    is_one,
    is_view,
    reaches,
    relate,
)
from malleable.frontend.values.staging import (
    Block,
    default,
    join_place,
    promoted,
    write_place,
)
from malleable.frontend.values.trees import (
    CONTENT,
    IMMUTABLE,
    UNSET,
    Both,
    Either,
    Leaf,
    Node,
    Ragged,
    Static,
    Tree,
    abstract,
    can_hold,
    count_leaves,
    free,
    half,
    join,
    join_ragged,
    mapped,
    number_leaf,
    spell,
)
from malleable.frontend.values.unwinding import flags, open_here
from malleable.frontend.values.values import STALE, CannotStage, flatten, rebuild, table_of

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
    """What a compiled step needs to know of one carried place. No values: JAX keeps it.

    ties: which of its leaves say whether it is an array that another variable has.
    """

    key: tuple
    tree: Tree
    traced: int  # how many leaves the traced body takes
    pinned: bool
    grows: bool
    ties: tuple


@dataclass(eq=False)
class Carried:
    """A place that goes around: its tree, and what it holds when the loop begins."""

    place: Place
    tree: Tree
    first: tuple  # (tree, leaves) before the loop
    pinned: bool = False  # a flag that is known to be False whenever a step begins
    traced: Tree | None = None  # the tree under which the body was traced last
    prefix: tuple | None = None  # of a list that grows by some items per step: how it began
    whole: tuple = ()  # as `first`, of a list or dict that others know: not its name, what it holds
    relation: Relation = ALONE  # to what else goes around

    def slot(self) -> Slot:
        grows = self.prefix is not None
        ties = tuple(1 + k for k, _ in self.ties())
        return Slot(self.place.key, self.tree, count_leaves(self.traced), self.pinned, grows, ties)

    def ties(self) -> list:
        """(k, other) where the k-th link of an array is to that which another place holds."""
        links = enumerate(getattr(self.tree, "links", ()))
        return [(k, link.value) for k, link in links if isinstance(link.value, Carried)]


def start(loop: Loop) -> dict:
    """The local variables that go around, each with its type before the loop."""
    carried = {}
    exits = loop.exits.__code__.co_freevars if loop.exits is not None else ()
    for place in places_of(loop.state):
        if place.name not in loop.live:
            continue
        value = place.read()
        whole = flatten(value, leaves := []), leaves
        tree, leaves = named_before(place, whole)
        goal = carried_tree(tree, place.name in loop.rebound)
        pinned = place.name in exits
        if isinstance(value, Box) and not value.scalar and place.name not in loop.rebound:
            tree = goal = Static(value)  # the box stays, its content moves
            leaves = []
        if pinned and value is False:
            goal = Static(False)
        carried[place.key] = Carried(place, goal, (tree, leaves), pinned, whole=whole)
    for place in flags():
        if isinstance(place.read(), compat.Tracer):
            leaf = flatten(place.read(), leaves := [])
            carried[place.key] = Carried(place, free(leaf), (leaf, leaves), True)
    return carried


def recall(loop: Loop, carried: dict) -> None:
    """Carry what the loop was found to write when the one around it was traced before this.

    Else each of both would find it out in each round of the other.
    """
    here, local = session(), {place.key for place in places_of(loop.state)}
    found = here.written.get(loop.body.__code__, {})
    for key, c in here.around.items():
        if key in found and key not in local and key not in carried:
            whole = flatten(default(c.place, c.place.read()), leaves := []), leaves
            first = named_before(c.place, whole)
            goal = carried_tree(first[0], found[key])
            carried[key] = Carried(c.place, goal, first, whole=whole)


def remember(loop: Loop, carried: dict) -> None:
    """For `recall`: of each place that keeps its shape, whether it is bound anew."""
    local, stops = {place.key for place in places_of(loop.state)}, {f.key for f in flags()}
    found = session().written.setdefault(loop.body.__code__, {})
    for key, c in carried.items():
        fixed = c.place.kind in ("attr", "box", "cell") or isinstance(c.tree, Node)
        if fixed and c.prefix is None and key not in local and key not in stops:
            found[key] = not isinstance(c.tree, Static)


def named_before(place: Place, whole: tuple) -> tuple[Tree, list]:
    """The tree of what a place holds, and its leaves; what others know is there by name."""
    held: dict = {}
    count_origins([whole], held)
    count_contents([place], held)
    key = id(getattr(whole[0], "origin", None))
    held[key] = held.get(key, 0) + 1  # one reference is ours
    return Known(held).named(*whole, content=place.kind in CONTENT)


def named_after(block: Block) -> None:
    """Let the trees of what a step leaves name what others know."""
    held: dict = {}
    count_origins(block.after.values(), held)
    count_contents([p for p in block.places.values() if p.kind == "cell"], held)
    known = Known(held, block.places.values(), {})
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


def names(tree: Tree, thing) -> bool:
    """Whether a tree has the name of a thing in it."""
    if isinstance(tree, Static):
        return tree.value is thing
    return any(names(t, thing) for t in inner(tree))


def carried_tree(tree: Tree, anew: bool = False) -> Tree:
    """The tree of what goes around where a value of `tree` does.

    An array that others know is that array, or where it is bound anew, perhaps that array.
    """
    if isinstance(tree, Leaf) and is_thing(tree):
        if tree.known and not anew:
            return Static(tree.origin)
        mine = (Static(tree.origin),) if tree.known else ()
        return replace(free(tree), links=(*mine, *tree.links))
    if isinstance(tree, Node):
        return replace(free(tree), children=tuple(map(carried_tree, tree.children)))
    if isinstance(tree, Either):
        return Either(tuple(carried_tree(option, anew) for option in tree.options))
    return free(abstract(tree))


def widened(tree: Tree, before: Tree | None, ties: Iterable = ()) -> Tree:
    """The join of what went around before and what a step leaves, as that of new values.

    An array may still be each that it was, as long as that has a name outside of the step.
    """
    if isinstance(tree, Leaf) and not tree.scalar:
        links = list(getattr(before, "links", ())) or [Static(getattr(before, "value", None))]
        links = [link for link in links if isinstance(link.value, Carried | Box)]
        origins = tree.origin if isinstance(tree.origin, Both) else (tree.origin,)
        links += [link for link in map(Static, ties) if link not in links]
        for link in (*tree.links, *map(Static, origins)):
            named = isinstance(link.value, Carried | Box) and not is_view(link.value)
            if (named or link.value is IMMUTABLE) and link not in links:
                links.append(link)
        return replace(free(tree), links=tuple(links))
    if isinstance(tree, Node):
        names = tree.keys or range(len(tree.children))
        pairs = zip(names, tree.children, strict=True)
        return replace(free(tree), children=tuple(widened(t, child(before, k)) for k, t in pairs))
    if isinstance(tree, Either):
        olds = getattr(before, "options", (before,))
        same = (next((x for x in olds if is_of_type(x, o)), None) for o in tree.options)
        return Either(tuple(map(widened, tree.options, same)))
    return free(tree)


def is_of_type(one: Tree | None, other: Tree) -> bool:
    """Whether both are of arrays of one type."""
    both = isinstance(one, Leaf) and isinstance(other, Leaf)
    return both and (one.shape, one.dtype) == (other.shape, other.dtype)


def without_circles(tree: Tree, c: Carried) -> Tree:
    """The tree of c without links to places that link to c: one of the two says who is whom."""
    if not isinstance(tree, Leaf):
        return mapped(lambda part: without_circles(part, c), tree)
    kept = (x for x in tree.links if not (isinstance(x.value, Carried) and reaches(x.value, c)))
    return replace(tree, links=tuple(kept))


def begin(carried: dict, leaves: Iterator, where: str) -> None:
    """Put the values of one step into their places."""
    parts = {key: [next(leaves) for _ in range(count_leaves(c.tree))] for key, c in carried.items()}
    values: dict = {}

    def value_of(c: Carried):
        if c.place.key not in values:
            tree = resolved(c.tree, value_of)
            values[c.place.key] = rebuild(tree, iter(parts[c.place.key]), where)
        return values[c.place.key]

    for c in sorted(carried.values(), key=lambda c: c.place.kind != "box"):
        value = False if c.pinned else value_of(c.relation.twin or c)
        if c.place.kind == "box":
            value = value.value if isinstance(value, Box) else value
        c.relation.disown(value, c.tree)
        c.place.write(value)


def resolved(tree: Tree, value_of: Callable) -> Tree:
    """A tree with the very array in each link to one that goes around."""
    if isinstance(tree, Leaf) and tree.links:
        things = (link.value for link in tree.links)
        links = (Static(value_of(x) if isinstance(x, Carried) else x) for x in things)
        return replace(tree, links=tuple(links))
    return mapped(lambda part: resolved(part, value_of), tree)


def tied(carried: dict) -> list[Box]:
    """Whether the arrays of two places are one now, for each place that is tied to another."""
    pairs = [(c.place.read(), d.place.read()) for c in carried.values() for _, d in c.ties()]
    arrays = (all(isinstance(x, Box) and not x.scalar for x in pair) for pair in pairs)
    tests = [found and is_one(*pair) for found, pair in zip(arrays, pairs, strict=True)]
    return [Box(jnp.asarray(test), True) for test in tests]


def note_kept(item, source: Box) -> None:
    """Say of an array, rows of which a step keeps in a list, that they are copies."""
    rows = item if isinstance(item, tuple | list) else [item]
    kept = [p.read() for book in open_here() for p in book.places.values() if p.kind == "list"]
    if any(x is row for xs in kept for x in xs for row in rows if isinstance(row, Box)):
        keep([Copied(source, "a list holds rows of this array", True)])
    keep(Copied(row, A_ROW) for row in rows if isinstance(row, Box) and not row.scalar)


def land(carried: dict, values: Iterator, where: str) -> None:
    """Write what a loop leaves in each place that does not grow. values: of each place in turn."""
    parts = {key: [next(values) for _ in range(count_leaves(c.tree))] for key, c in carried.items()}
    landed: set = set()

    def value_of(c: Carried):
        if c.place.key not in landed:
            landed.add(c.place.key)
            tree, fixed = c.tree, getattr(c.first[0], "fixed", False)
            tree = replace(tree, fixed=fixed) if isinstance(tree, Ragged) else tree
            write_place(c.place, resolved(tree, value_of), iter(parts[c.place.key]), where)
        return c.place.read()

    for c in carried.values():
        if c.prefix is None:
            value_of(c)


def bind_again(carried: dict, runs: bool) -> None:
    """Let the names that are of one thing after each step be so after the loop.

    runs: it is known that there is a step. Where there may be none, and they are of several
    things then, these must not be written to.
    """
    for c in carried.values():
        if c.relation.leader is not None and (runs or c.relation.twin is not None):
            c.place.write(c.relation.leader.place.read())
        else:
            c.relation.disown(c.place.read(), c.tree, over=True)


def settle(
    loop: Loop, carried: dict, block: Block, most: int | None, late: bool, runs: bool
) -> bool:
    """Widen what goes around to hold what the body leaves; whether to trace the body again.

    most: how many steps there are at most, None if that is not known; late: this is not the
    first time, and things should have come to rest; runs: it is known that there is a step.
    """
    named_after(block)
    again = find_places(loop, carried, block, most, late, runs)
    again = relate(carried, block.after) or again
    for key in [k for k, c in carried.items() if table_of(c.place.owner) is not None]:
        del carried[key]  # a traced key was put in: now its two lists go around
        again = True
    sets: dict = {}
    for key, c in carried.items():
        stale = c.prefix is not None if c.traced is None else c.traced is not c.tree
        if key not in block.after or stale:  # what is new had what it had before the loop
            continue
        after = block.after[key][0]
        refuse_new(after, block.made if c.place.kind == "list" else set())
        if c.prefix is not None and isinstance(after, Ragged):  # in some steps only, it turns out
            c.first = (flatten(list(c.prefix), leaves := []), leaves)
            c.tree, c.prefix = bounded_tree(c.first[0], after, most, loop.where), None
            again = True
            continue
        if c.prefix is not None:
            again = settle_growing(c, after) or again
            continue
        if runs and loosened(c, after, block):
            c.first, c.tree = c.whole, free(abstract(c.whole[0]))
        if outgrows(c.tree, after):  # it is bound anew to a longer list in every step
            c.tree = replace(bounded_tree(c.tree, after, most, loop.where), sure=False)
            again = True
            continue
        refuse_number(c, c.first[0], after)
        before, after = sized(c.tree, after, c.first[0], block.met)
        both = widened(join_place(c.place, before, after), c.tree, c.relation.ties)
        both = without_circles(both, c)
        if both == c.tree:
            continue
        if isinstance(both, Either) and c.place.kind == "set":
            sets[key] = OtherMembers(c.place.owner, both.options, loop.where)
            continue
        check_type(c, both)
        now, new = (len(getattr(tree, "options", ())) for tree in (c.tree, both))
        if late and new > max(MOST_KINDS, now):
            name = f"`{c.place.name}`" if c.place.name else "a variable"
            raise CannotStage(f"{name} is another object in every step")
        if depth(both) > MOST_DEPTH:
            raise CannotStage("every step makes objects that hold those of the step before")
        if isinstance(c.tree, Static) and c.tree.value is ABSENT:
            asked = c.place.kind == "attr" or key in block.undefined
            again = again or asked or c.place.name in block.unread
        elif not (c.pinned or (isinstance(c.tree, Static) and c.tree.value is UNSET)):
            again = True
            promoted(c.place.label, c.tree, after, both, loop.where)
        c.tree = both
    for key, other in sets.items():
        if not other.settled():
            raise CannotStage("a set has other members in every step")
        del carried[key]  # its members are a list, which goes around
    return again or bool(sets)


def sized(before: Tree, after: Tree, first: Tree | None, met: dict) -> tuple[Tree, Tree]:
    """What goes around, and what a step leaves, where a number of Python's takes NumPy's type.

    met: see `malleable.arrays.journal.Journal`. If a step leaves another, it is traced again.
    """
    if isinstance(before, Node) and isinstance(after, Node):
        names = before.keys or range(len(before.children))
        if before.keys != after.keys or not names or len(names) != len(after.children):
            return before, after
        inside = zip(names, before.children, after.children, strict=True)
        pairs = [sized(old, new, child(first, k), met) for k, old, new in inside]
        olds, news = zip(*pairs, strict=True)
        return replace(before, children=olds), replace(after, children=news)
    leaves = isinstance(before, Leaf) and isinstance(after, Leaf)
    if not leaves or after.weak or not before.weak or before.shape != after.shape:
        return before, after
    widened = after.dtype == before.dtype
    dtype = met.get(after.dtype.kind == "f", after.dtype) if widened else after.dtype
    number = getattr(first, "value", 0)  # what is traced may be 0
    if not can_hold(dtype, number):
        return before, after
    return replace(before, dtype=dtype, weak=False), replace(after, dtype=dtype)


def depth(tree: Tree) -> int:
    """How many choices are within one another."""
    return max(map(depth, inner(tree)), default=0) + isinstance(tree, Either)


def find_places(
    loop: Loop, carried: dict, block: Block, most: int | None, late: bool, runs: bool
) -> bool:
    """Let the places on the heap go around that the body changes; whether there are new ones."""
    held: dict = {}
    count_origins(block.after.values(), held)
    local, again = {p.key for p in places_of(loop.state)}, False
    stops, collected = {flag.key for flag in flags()}, False
    for key, place in block.places.items():
        if key in carried or key in local or is_dead(place, [block], held):
            continue
        if key not in block.after:  # every step raises
            continue
        if late and not collected:
            collected = gc.collect() >= 0
        if late and is_dead(place, [block], held):
            continue  # it was kept alive by a circle of references
        whole = flatten(default(place, block.before[key]), leaves := []), leaves
        first, leaves = named_before(place, whole)
        after = block.after[key][0]
        if isinstance(first, Static) and first == after:
            continue
        flag = key in stops
        if place.kind == "list" and grows(first, after):
            if isinstance(after, Ragged) or not runs or may_stop(carried, block):
                room = bounded_tree(first, after, most, loop.where)
                carried[key] = Carried(place, room, (first, leaves))
            else:
                carried[key] = growing(place, block.before[key], after)
            again = True
            continue
        goal = Static(False) if flag and first == Static(False) else carried_tree(first)
        carried[key] = Carried(place, goal, (first, leaves), flag)
        carried[key].whole = whole
        if flag:
            carried[key].traced = goal  # it is False in the body, as it was
        again = again or not flag
    return again


def may_stop(carried: dict, block: Block) -> bool:
    """Whether the loop may stop before its end is reached, as far as is known."""
    keys = {key for key, c in carried.items() if c.pinned}
    keys |= {flag.key for flag in flags()}
    exits = [block.after[key][0] for key in keys if key in block.after]
    return any(tree != Static(False) for tree in exits)


def bounded_tree(first: Tree, after: Tree, most: int | None, where: str) -> Ragged:
    """A list that grows by an unknown number of items, with room for those of all steps.

    Where nothing says how many steps there are: for ROOM, or for what four of them may append.
    """
    if most is None and (session().options.exact or session().unrolls):
        raise CannotStage("a list grows, and how often is not known: say loop(..., max_steps=n)")
    tree = join_ragged(first, after)
    if tree is None:
        raise CannotStage("a list gets items of several types")
    size = len(first.children) if isinstance(first, Node) else first.cap  # type: ignore[union-attr]
    more = tree.cap - size
    more = max(ROOM, 4 * more) if most is None else most * more
    if most is None:
        why = "one that grows beyond it is a raise; loop(..., max_steps=n) gives it more"
        note_line(f"a list has room for {more} more items in this loop", where, why)
    sure = tree.sure and not session().open_ended
    return Ragged(tree.item, size + more, True, sure)


def refuse_new(tree: Tree, made: set) -> None:
    """Refuse, in a list, objects in which nothing is traced: each step makes one of its own."""
    if isinstance(tree, Static) and id(tree.value) in made:
        raise CannotStage(f"every step puts a new {type(tree.value).__name__} into a list")
    if isinstance(tree, Static) and isinstance(tree.value, Lost):
        raise CannotStage("every step makes a function that keeps a value of it")
    item = (tree.item,) if isinstance(tree, Ragged) else ()
    for inside in item or getattr(tree, "children", ()) or getattr(tree, "options", ()):
        refuse_new(inside, made)


def refuse_number(c: Carried, before: Tree, after: Tree | None) -> None:
    """Refuse a number where there was an array: it would have the array's shape."""
    if isinstance(before, Leaf) and before.shape:
        number = number_leaf(after.value) if isinstance(after, Static) else after
        if isinstance(number, Leaf) and number.scalar:
            found = f"{c.place.label} is {spell(before)} before a step and {spell(number)} after it"
            raise CannotStage(found)
    if isinstance(before, Node):
        names = before.keys or range(len(before.children))
        for name, inside in zip(names, before.children, strict=True):
            refuse_number(c, inside, child(after, name))


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


def outgrows(before: Tree, after: Tree) -> bool:
    """Whether a list whose length is traced gets longer than it was found to be, once more."""
    again = isinstance(before, Ragged) and not before.fixed
    return again and isinstance(after, Ragged) and after.cap > before.cap


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
    items = [(t, [next(rest) for _ in range(count_leaves(t))]) for t in tree.children]
    return items[len(slot.tree.children) :]


def extend(c: Carried, after: Tree, rows: Iterator, length: int) -> None:
    """Give a list the items of all steps: rows of the stacked arrays."""
    trees = [type_of(t) for t in after.children[len(c.tree.children) :]]
    stacks = [[next(rows) for _ in range(count_leaves(t))] for t in trees]
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
