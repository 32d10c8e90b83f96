"""Which things in a tree others know: they are joined by name, the others by what they hold."""

import functools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from malleable.arrays.box import Box
from malleable.arrays.journal import Place
from malleable.errors import TransformError
from malleable.frontend.values.trees import (
    CONTENT,
    Both,
    Either,
    Leaf,
    Made,
    Node,
    Static,
    Tree,
    count_leaves,
)


def count_origins(parts: Iterable[tuple], found: dict) -> None:
    """Count the objects that trees remember as their origins. parts: (tree, its leaves)."""
    for tree, _ in parts:
        _count_references(tree, found)


def _count_references(tree: Tree, found: dict) -> None:
    origin = getattr(tree, "origin", None)
    if origin is not None:
        found[id(origin)] = found.get(id(origin), 0) + 1
    for link in getattr(tree, "links", ()):
        found[id(link.value)] = found.get(id(link.value), 0) + 1
    for child in getattr(tree, "children", ()) or getattr(tree, "options", ()):
        _count_references(child, found)


def is_dead(place: Place, blocks: Sequence[Any], held: dict) -> bool:
    """Whether what a place belongs to was made in a block, and nobody else knows of it."""
    if place.kind == "global":
        return False
    places = {id(p) for b in blocks for p in b.places.values() if p.owner is place.owner}
    copies = sum(x.thing is place.owner for b in blocks for x in getattr(b, "copies", ()))
    return sys.getrefcount(place.owner) - 1 <= len(places) + copies + held.get(id(place.owner), 0)


def count_contents(places: Iterable[Place], held: dict) -> None:
    """Count what only one place holds, once: who writes the place may forget that."""
    found: dict = {}
    for place in {p.key: p for p in places}.values():
        if place.kind != "box":
            value = place.read()
            inside = value if place.kind in CONTENT else [value]
            for x in inside.values() if isinstance(inside, dict) else inside:
                found[id(x)] = found.get(id(x), 0) + 1
    for key, times in found.items():
        if times == 1:
            held[key] = held.get(key, 0) + 1


def refuse_split(trees: Iterable[Tree], where: str) -> None:
    """Two names of one list that was made in a branch, which are not one thing on both paths."""
    partner: dict = {}

    def look(tree: Tree) -> None:
        pair = getattr(tree, "origin", None)
        if isinstance(pair, Both) and not isinstance(tree, Leaf) and is_thing(tree):
            for k, one in enumerate(pair):
                other = pair[1 - k]
                if one is not None and partner.setdefault((id(one), k), other) is not other:
                    raise TransformError(
                        f"one {tree.cls.__name__ if isinstance(tree, Node) else 'list'} has two "
                        "names after one branch of this `if`, which are two things after the other",
                        where=where,
                        hint="give each name a thing of its own: xs.copy(), or list(xs)",
                    )
        for child in getattr(tree, "children", ()) or getattr(tree, "options", ()):
            look(child)

    for tree in trees:
        look(tree)


class Known:
    """Finds the lists, dicts, objects and arrays that others know: by who refers to them.

    held: by id, how many references are the trees' own; places: their owners are no others.
    made: if given, what stands for each array that nobody knows.
    """

    def __init__(self, held: dict, places: Iterable[Place] = (), made: dict | None = None):
        self.held, self.seen, self.made = dict(held), set(), made
        for place in {id(p): p for p in places}.values():
            self.held[id(place.owner)] = self.held.get(id(place.owner), 0) + 1

    def named(self, tree: Tree, leaves: Sequence, content: bool = False) -> tuple[Tree, list]:
        """The tree and its leaves, with the name of each thing that others know in its place.

        content: the tree is what a container holds, not the container.
        """
        kept: list = []
        return self._named(tree, iter(leaves), kept, content), kept

    def _named(self, tree: Tree, leaves, kept: list, content: bool = False) -> Tree:
        if isinstance(tree, Either):
            kept.append(next(leaves))
            return Either(tuple(self._named(o, leaves, kept) for o in tree.options))
        origin = getattr(tree, "origin", None)
        if origin is not None and not content and is_thing(tree) and self.is_known(origin):
            if isinstance(tree, Leaf):  # should its content be wanted after all
                kept += [next(leaves) for _ in range(count_leaves(tree))]
                return replace(self.without_unknown(tree, True), known=True)
            for _ in range(count_leaves(tree)):
                next(leaves)
            return Static(origin)
        if not isinstance(tree, Node):
            kept += [next(leaves) for _ in range(count_leaves(tree))]
            return self.without_unknown(tree) if isinstance(tree, Leaf) else tree
        if origin is not None and id(origin) not in self.seen:
            self.seen.add(id(origin))
            if is_thing(tree) or not self.is_known(origin):  # else others know what is in it, too
                for key in [id(getattr(child, "origin", None)) for child in tree.children]:
                    self.held[key] = self.held.get(key, 0) + 1  # known to `origin`, no other
        children = tuple(self._named(child, leaves, kept) for child in tree.children)
        return replace(tree, children=children)

    def without_unknown(self, tree: Leaf, known: bool = False) -> Leaf:
        """A leaf with a stand-in for each array that nobody knows; known: its own has a name."""
        if self.made is None or tree.scalar:
            return tree
        links = []
        for link in tree.links:
            box = link.value
            new = isinstance(box, Box) and not self.is_known(box)
            links.append(self.token(box) if new else link)
        if not known and isinstance(tree.origin, Box):
            tree = replace(tree, origin=self.token(tree.origin).value)
        return replace(tree, links=tuple(links))

    def token(self, box: Box) -> Static:
        assert self.made is not None
        return Static(self.made.setdefault(id(box), (Made(), box))[0])

    def is_known(self, origin) -> bool:
        if isinstance(origin, Made | Both):
            return False
        if isinstance(origin, Box) and origin._base is not None:
            return True  # to the array that it shows a part of
        return sys.getrefcount(origin) - 3 > self.held.get(id(origin), 0)


class AllKnown(Known):
    """For the values of one block: each thing is itself."""

    def __init__(self):
        super().__init__({})

    def is_known(self, origin) -> bool:
        return True


def is_thing(tree: Tree) -> bool:
    """Whether this is the tree of something that can be changed, and so has a name."""
    if isinstance(tree, Leaf):
        return not tree.scalar and isinstance(tree.origin, Box)
    return not (isinstance(tree, Node) and issubclass(tree.cls, tuple))


@functools.cache
def with_one_name() -> int:
    """How many references the operator of `x += 1` finds to what x alone has."""
    box = Box(0.0)
    return _Operators().aug("", box, None)


class _Operators:
    """Called as the operators are."""

    def aug(self, op: str, x, value) -> int:
        return sys.getrefcount(x)
