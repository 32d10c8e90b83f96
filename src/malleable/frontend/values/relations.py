"""Which things that go around a loop are one at the end of a step, and so when the next begins.

Each place that goes around has a value of its own. An array links to the others that it may be, and
whether it is goes around with it; two variables that are of one thing in all steps get one. What
is left are copies: they may be read, and a write to one is refused.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from jax import numpy as jnp

from malleable.arrays.box import Box, Masked
from malleable.arrays.journal import ABSENT
from malleable.arrays.rows import Row
from malleable.frontend.values.copies import Copied, disown, inner, keep, why_refused
from malleable.frontend.values.trees import UNSET, Either, Leaf, Made, Node, Ragged, Static, Tree
from malleable.frontend.values.values import Choice, bounded, flatten, is_object

OF_AN_ARRAY = "a step of a loop leaves a part of another array there"
A_ROW = "it is a row of the array that a loop goes over"


@dataclass(frozen=True)
class Relation:
    """What one place that goes around has to do with the others.

    leader: the first of the places that all hold one thing after a step; twin: of those that did
    so before the loop, too, and hold the leader's very thing; copies: why what is where in it is
    a copy; ties: places whose array, and views from before the loop, this one may be
    after a step.
    """

    leader: Any = None
    twin: Any = None
    copies: tuple = ()
    ties: tuple = ()

    def disown(self, value, tree: Tree, over: bool = False) -> None:
        """Make a write to what is a copy in a value an error; of a row, a note once it is over."""
        for path, why in self.copies:
            part_of_one = over and why in (OF_AN_ARRAY, A_ROW)
            for part, known in reached(value, tree, path):
                if part_of_one or type(part) is Row:
                    keep([Copied(part, why, part_of_one)])
                else:
                    disown(flatten(part, [], deep=True), why, known)


ALONE = Relation()


class Use(NamedTuple):
    """Where a thing is after a step: c, a place that goes around, and the way to it in there."""

    c: Any
    path: tuple
    tree: Tree
    certain: bool  # not one of several things there

    @property
    def whole(self) -> bool:
        return not self.path and self.certain and self.c.place.kind in ("cell", "attr")


def reached(part, known: Tree | None, path: tuple) -> Iterator[tuple[Any, Tree | None]]:
    """What is at the end of the way, in each of several things where one of them is there.

    Where the way is not known, what it is known to be in. With each, its tree, if it is known.
    """
    if path and type(part) is Choice and part.number is None:
        trees = inner(known)
        same = len(trees) == len(part.options)
        for k, option in enumerate(part.options):
            yield from reached(option, trees[k] if same else None, path)
        return
    inside = items_of(part) if path else None
    if inside is not None and path[0] in inside:
        yield from reached(inside[path[0]], child(known, path[0]), path[1:])
    elif not (part is None and path):
        yield part, known


def items_of(value) -> dict | None:
    """What is in a container or object, by index, key or name; None for anything else."""
    if isinstance(value, Choice) or bounded(value) is not None:
        return None
    if type(value) is Masked:
        return {0: value.held}
    if isinstance(value, list | tuple):
        n = len(value)
        return {k: value[k] for k in range(-n, n)}
    return value if isinstance(value, dict) else vars(value) if is_object(value) else None


def child(tree: Tree | None, step) -> Tree | None:
    """The tree of what items_of(value)[step] is, if it is known."""
    if not isinstance(tree, Node):
        return None
    if tree.keys is None:
        return tree.children[step] if -len(tree.children) <= step < len(tree.children) else None
    return dict(zip(tree.keys, tree.children, strict=True)).get(step)


def thing_of(c) -> Any:
    """What a place held before the loop."""
    tree = c.whole[0] if c.whole else c.first[0]
    return getattr(tree, "origin", tree.value if isinstance(tree, Static) else tree)


def uses_in(c, tree: Tree, seen: set, path: tuple = (), certain: bool = True) -> Iterator[Use]:
    """Each list, dict, object and array in what a place holds after a step.

    What is in a thing that was seen before is in one thing only.
    """
    if isinstance(tree, Either):
        for option in tree.options:
            yield from uses_in(c, option, seen, path, False)
        return
    origin = getattr(tree, "origin", None)
    if origin is not None and not (isinstance(tree, Leaf) and tree.scalar):
        yield Use(c, path, tree, certain)
        if id(origin) in seen:
            return
        seen.add(id(origin))
    if isinstance(tree, Node):
        old = len(inner(c.tree)) if c.prefix is not None and not path else 0
        names = tree.keys or range(old - len(tree.children) if old else 0, len(tree.children))
        for name, inside in zip(names, tree.children[old:], strict=False):
            yield from uses_in(c, inside, seen, (*path, name), certain)


def every_use(carried: dict, after: dict) -> list[Use]:
    seen: set = set()
    trees = [(c, after[key][0]) for key, c in carried.items() if key in after]
    return [use for c, tree in trees for use in uses_in(c, tree, seen)]


def tokens(use: Use) -> dict:
    """What a thing is or may be, by id, of what a step makes: False; what it is a part of: True."""
    tree = use.tree
    if isinstance(tree, Node | Ragged):
        kind = tree.cls if isinstance(tree, Node) else list
        return {} if issubclass(kind, tuple) else {id(tree.origin): False}
    made = [tree.origin, *(link.value for link in tree.links)]
    made = [x for x in made if isinstance(x, Made)]
    return {id(x.root): True for x in made if x.root is not None} | {id(x): False for x in made}


def relate(carried: dict, after: dict) -> bool:
    """Find how places are related after a step; whether that is news. after: {key: (tree, ids)}.

    An array that a place holds is, in the trees of other places, that `Carried`.
    """
    owners: dict = {}
    for use in every_use(carried, after):
        if use.whole and is_array(use) and isinstance(use.tree.origin, Made):
            owners.setdefault(id(use.tree.origin), use.c)
    for key, c in carried.items():
        if key in after and c.prefix is None:
            after[key] = linked_to(after[key][0], c, c.tree, owners), after[key][1]
    found: dict = {}
    shown: set = set()  # arrays of which only a part is somewhere
    copies: dict = {key: {} for key in carried}
    ties: dict = {key: {} for key in carried}
    views = {id(x): x for c in carried.values() for x in arrays_of(c.first[0]) if is_view(x)}
    for use in every_use(carried, after):
        for token, part in tokens(use).items():
            found.setdefault(token, []).append(use)
            if part:
                shown.add(token)
        if not use.path:
            mine = arrays_of(use.tree)
            ties[use.c.place.key] |= {id(x): x for x in mine if id(x) in views}
        why = why_copied(use, views)
        if why:
            copies[use.c.place.key].setdefault(use.path, why)
    leaders: dict = {}
    for token, uses in found.items():
        where = {(u.c.place.key, u.path): u for u in uses}
        if len(where) < 2:
            continue
        if token not in shown and all(u.whole and is_array(u) for u in uses):
            places = [*{u.c.place.key: u.c for u in uses}.values()]
            pairs = [(c, d) for k, c in enumerate(places) for d in places[:k]]
            for c, d in pairs:
                if not reaches(d, c):
                    ties[c.place.key][d.place.key] = d
            if all(any(x is c for x in links_of(d)) or not reaches(d, c) for c, d in pairs):
                continue
        names = " and ".join(dict.fromkeys(u.c.place.label for u in uses))
        names = f"{names} twice" if len({u.c.place.label for u in uses}) == 1 else names
        why = f"a loop may leave one thing in {names}"
        if all(u.whole and not isinstance(u.tree, Leaf) for u in uses):
            why = f"a loop leaves one thing in {names}, if it runs"
            alike = len({id(thing_of(u.c)) for u in uses} - {id(ABSENT), id(UNSET)}) < 2
            leaders.update({u.c.place.key: (uses[0].c, alike) for u in uses})
            if alike:
                continue
        for key, path in where:
            copies[key].setdefault(path, why)
    news = False
    for key, c in carried.items():
        held = None if isinstance(c.tree, Static) else getattr(c.first[0], "origin", None)
        if why := why_refused(held):
            copies[key].setdefault((), why)
        leader, alike = leaders.get(key, (None, False))
        twin = leader if alike and leader is not c else None
        tied = tuple(d for d in ties[key].values() if isinstance(d, Box) or not reaches(d, c))
        new = Relation(leader, twin, tuple(copies[key].items()), tied)
        news, c.relation = news or new != c.relation, new
    return news


def is_array(use: Use) -> bool:
    return isinstance(use.tree, Leaf) and isinstance(use.c.tree, Leaf | Static)


def linked_to(tree: Tree, c, goal: Tree | None, owners: dict) -> Tree:
    """The tree, where arrays that other places hold are those places."""
    if isinstance(tree, Leaf) and not isinstance(goal, Either):

        def holder(thing):
            d = owners.get(id(thing))
            return thing if d is None or reaches(d, c) else d

        links = tuple(Static(holder(link.value)) for link in tree.links)
        return replace(tree, origin=holder(tree.origin), links=links)
    if isinstance(tree, Node):
        names = tree.keys or range(len(tree.children))
        pairs = zip(names, tree.children, strict=True)
        inside = tuple(linked_to(t, c, child(goal, name), owners) for name, t in pairs)
        return replace(tree, children=inside)
    return tree


def reaches(d, c) -> bool:
    """Whether a place is another, or holds an array that links to it."""
    return d is c or any(reaches(x, c) for x in links_of(d) if type(x) is type(c))


def links_of(c) -> list:
    """The arrays, and the places of others, that the array of a place may be."""
    return [link.value for link in getattr(c.tree, "links", ())]


def is_one(a: Box, b: Box):
    """Whether two arrays are one: known, or a traced condition."""
    mine, tests = {id(box): test for box, test in may_be(a)}, []
    for box, test in may_be(b):
        if id(box) in mine:
            tests.append([x for x in (test, mine[id(box)]) if x is not True])
    if any(not every for every in tests):
        return True
    each = [functools.reduce(jnp.logical_and, every) for every in tests]
    return functools.reduce(jnp.logical_or, each, False)


def may_be(box: Box) -> list:
    """(box, condition) for each that a box is or may be, itself among them."""
    return [(box, True), *(box.conditions() if hasattr(type(box), "links") else [])]


def is_view(thing) -> bool:
    return isinstance(thing, Box) and thing._base is not None


def arrays_of(tree: Tree) -> list:
    """What an array is, and may be."""
    links = (link.value for link in getattr(tree, "links", ()))
    return [tree.origin, *links] if isinstance(tree, Leaf) else []


def why_copied(use: Use, views: dict) -> str:
    """Why what a step leaves somewhere is a copy when the next begins; "" if it is none.

    views: by id, those that variables held before the loop.
    """
    tree, goal = use.tree, use.c.tree
    maybe = arrays_of(tree) or [tree.origin]
    for made in maybe:
        if isinstance(made, Made) and (made.why or made.boxes):
            keep(Copied(box, OF_AN_ARRAY, True) for box in made.boxes)
            return made.why or OF_AN_ARRAY
    if not isinstance(tree, Leaf):
        return ""
    for step in use.path:
        goal = child(goal, step)
    known = [goal.value] if isinstance(goal, Static) else []
    known += [link.value for link in getattr(goal, "links", ())]
    for view in filter(is_view, maybe):
        if not any(x is view for x in (*known, *(() if use.path else views.values()))):
            keep([Copied(view.root, OF_AN_ARRAY, True)])
            return OF_AN_ARRAY
    return ""
