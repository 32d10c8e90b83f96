"""Comprehensions: Python's, until a condition or the number of the items is traced.

Then each item stands beside a flag that says whether it is there, and the list that comes out is
one whose length is traced. `sum(x for x in xs if x > 0)` and its like go over such a list.
"""

import builtins
import collections
import functools
import itertools
import math
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box, Masked, unbox
from malleable.arrays.rows import whole
from malleable.errors import TransformError
from malleable.frontend.common.decisions import assuming
from malleable.frontend.common.session import session
from malleable.frontend.counterparts.bounded import Unlisted, append, joined
from malleable.frontend.counterparts.builtins import (
    Once,
    Steps,
    TracedRange,
    acts,
    as_steps,
    refuse_acting,
)
from malleable.frontend.counterparts.functions import AT_ONCE
from malleable.frontend.operators import lookups, tables
from malleable.frontend.operators.generators import Apart, beginning, tried
from malleable.frontend.operators.iteration import for_, steps_of
from malleable.frontend.values import trees
from malleable.frontend.values.conditions import and_, if_, ifexp, line_of, not_, only, truth
from malleable.frontend.values.copies import Copied, keep
from malleable.frontend.values.keys import is_unordered
from malleable.frontend.values.leaves import inject, stack
from malleable.frontend.values.raises import fail_where
from malleable.frontend.values.staging import changes, merge, trace_block
from malleable.frontend.values.values import (
    STALE,
    Bounded,
    bounded,
    flatten,
    lacks,
    select,
    table_of,
)

ENDLESS = 10_000  # items after which an iterator without a length counts as one without an end
CONSUMERS = {
    *(builtins.sum, builtins.max, builtins.min, builtins.any, builtins.all, builtins.next),
    *(collections.deque, builtins.list, builtins.sorted, math.fsum, math.prod),
    *(statistics.mean, statistics.fmean),
}

# after which of the items that it goes over a function asks for no more
STOPS: dict = {builtins.any: truth, builtins.all: not_, builtins.next: lambda x: True}


# what goes over items one by one, and needs no list of them: how it begins, if not with the first
FOLDS: dict = {builtins.sum: [0], math.prod: [1], builtins.any: [False], builtins.all: [True]}
FOLDS |= dict.fromkeys((builtins.max, builtins.min, builtins.next), ())


class Collected:
    """What a comprehension has found so far: pairs of a flag and a value.

    grown: once it goes over items of which nothing says how many there are, what has been made
    of those before, in place of pairs. For a function of `FOLDS`, [whether there is one, it].
    """

    def __init__(self, f: Callable | None = None, call: Any = None, kind="list"):
        self.pairs: list = []
        self.stops, self.done = STOPS.get(f), False
        self.f, self.call, self.kind = f, call, kind
        self.grown: Any = None

    def grow(self) -> None:
        """From now on, items are added as a loop adds them, to what has any length."""
        if self.grown is None:
            self.grown = {"set": set(), "dict": {}}.get(self.kind, [])
            if self.f in FOLDS:
                self.grown += [bool(FOLDS[self.f]), *(FOLDS[self.f] or (trees.UNSET,))]
            for flag, value in self.pairs:
                self.add_grown(flag, lambda value=value: value)

    def add_grown(self, flag, make: Callable) -> None:
        if flag is not True:
            flag = flag if isinstance(flag, Box) else Box(flag, True)
            return if_(flag, lambda: self.add_grown(True, make), None, None, None)
        if self.kind != "list":
            return put_in(self.kind, self.grown, make())
        journal.touch_list(self.grown)
        if self.f in FOLDS:
            there, so_far = self.grown
            value = make()
            if so_far is not trees.UNSET:
                both = so_far if self.f is next else self.call(self.f, [so_far, value])
                value = ifexp(there, lambda: both, lambda: value)
            self.grown[:] = [True, value]
        elif bounded(self.grown) is not None:
            append(self.grown, make())
        else:
            self.grown.append(make())

    def values(self) -> list:
        """The list of what is there."""
        return listed(self.pairs) if self.grown is None else self.grown

    def add(self, flag, make: Callable) -> None:
        if self.grown is not None:
            return self.add_grown(flag, make)
        if flag is True:
            value = make()
            self.done = self.stops is not None and is_untraced(value) and self.stops(value) is True
        else:
            value = ifexp(Box(flag, True), make, lambda: trees.UNSET)
            flag = Box(flag, True)
        journal.touch_list(self.pairs)
        self.pairs.append((flag, value))

    def each(self, items, flag, body: Callable, tested: bool) -> None:
        """body(item, flag) for the items; flag: whether what is around holds."""
        items = items.xs if type(items) is Unlisted else items
        what = acts(items) if self.stops is not None else ""
        if isinstance(items, Once):
            refuse_acting(what)
            self.each(items.rest(), flag, body, tested)
            if self.stops is None and type(items.length) is int:
                items.take(items.length)
            return
        begun = beginning(items)
        if begun is not None:

            def anew():
                refuse_acting(what)
                apart = Apart(begun)
                self.each(apart.items, flag, body, tested)
                apart.check()

            return tried(lambda: self.each_of(items, flag, body, what), anew, begun)
        steps, here = sized(items), None
        if steps is not None and type(steps) is not Steps:
            steps, here = steps
        elif steps is None and tested:
            steps = steps_of(items)
        if self.stops is not None:
            body = functools.partial(self.unless_stopped, body)
        if here is None and is_open(steps):
            self.grow()
            return for_(steps, lambda item: body(item, flag), None, (), (), None)
        if steps is not None:

            def step(item):
                body(item[0], both(flag, item[1]) if here is not None else flag)

            paired = Steps(steps.length, lambda i: (steps.get(i), here and here(i)), steps.arrays)
            return for_(paired, step, None, (), (), None)
        return self.each_of(items, flag, body, what)

    def each_of(self, items, flag, body: Callable, what: str) -> None:
        rest, end = iter(items), object()
        for k in itertools.count():
            if self.done or (item := next(rest, end)) is end:
                return
            if k > ENDLESS and not hasattr(items, "__len__") and flag is not True:
                raise TransformError(
                    "this comprehension goes over an iterator that has no end",
                    where=compat.where(),
                    hint="write it as a `while loop(test, max_steps=n)`",
                )
            body(item, flag)
            if what and not all(map(is_untraced, self.pairs[-1:])):
                refuse_acting(what)

    def unless_stopped(self, body: Callable, item, flag) -> None:
        """body(item, flag); where that changes something, only if no item before has stopped us."""
        if self.grown is not None:
            there, value = self.grown
            going = not_(there if self.f is next else self.stops(value))  # type: ignore[misc]
            return if_(going, lambda: body(item, flag), None, None, None)
        before = self.pairs
        if not before:
            return body(item, flag)

        def alone():
            self.pairs = []
            try:
                body(item, flag)
                return self.outcome()
            finally:
                self.pairs = before

        inside, outside = trace_block(alone, []), trace_block(lambda: (False, trees.UNSET), [])
        going: Any = True
        if changes(inside):
            going = truth(not_(self.outcome()[0]))
            inside = assuming(going, True, trace_block, alone, [])
        hit, value = merge(going, inside, outside, line_of(body))
        journal.touch_list(before)
        before.append((hit, value) if self.stops is STOPS[next] else (True, self.stops(hit)))

    def outcome(self) -> tuple:
        """(whether an item has stopped us, for `next` the one that did)."""
        hit: Any = False
        for pair in self.pairs:
            flag, value = pair if pair is not STALE else STALE.value
            here = both(raw_index(flag), truth(self.stops(value)))  # type: ignore[misc]
            hit = here if hit is False else hit if here is False else jnp.logical_or(hit, here)
        asked = self.pairs if self.stops is STOPS[next] else []
        value = asked[0][1] if len(asked) == 1 else first(asked, trees.UNSET)
        return hit if type(hit) is bool else Box(hit, True), value


def both(a, b):
    return b if a is True else a if b is True else jnp.logical_and(a, b)


def sized(items):
    """(steps over all items there may be, whether the i-th is there) of items without a number.

    The very steps, where nothing says how many that is at most.
    """
    if bounded(items) is not None:
        items = as_steps(items)
    if type(items) is Masked:
        items = items.in_line()
        row, mask = Box(items.whole), items.mask
        return Steps(mask.shape[0], row.__getitem__), lambda i: mask[raw_index(i)]
    if isinstance(items, TracedRange | Steps) and type(items.length) is not int:
        sure = getattr(items, "most", None)
        most = sure or session().options.max_steps
        if most is None:
            return as_steps(items)
        length = items.length.value if isinstance(items.length, Box) else items.length
        if sure is None:
            fail_where(length > most, IndexError("a list grew beyond its bound"))
        get = items.item if isinstance(items, TracedRange) else items.get
        return Steps(most, get), lambda i: raw_index(i) < length
    return None


def is_open(items, f: Callable = builtins.list) -> bool:
    """Whether nothing says how many items f goes over. What stops early asks an iterator itself."""
    kinds = TracedRange if f in STOPS else (TracedRange, Steps)
    return isinstance(items, kinds) and type(items.length) is not int


def raw_index(i):
    return i.value if isinstance(i, Box) else i


def sift(flag, tests: tuple, rest: Callable) -> None:
    """`rest(flag)` for an item for which the tests hold, as far as is known."""
    for test in tests:
        found = truth(test() if flag is True else and_(Box(flag, True), test))
        if found is False:
            return
        flag = flag if found is True else both(flag, found)
    rest(flag)


def collect(kind: str, run: Callable) -> Any:
    """A list, set or dict comprehension; run(collected) fills it."""
    collected = Collected(kind=kind)
    run(collected)
    if kind == "list":
        return collected.values()
    return keyed_by(kind, collected.pairs) if collected.grown is None else collected.grown


def keyed_by(kind: str, pairs: list) -> Any:
    """A set or dict of what is there, of pairs of a flag and a member or item."""
    made: Any = set() if kind == "set" else {}
    for flag, value in pairs:
        put = lambda v=value: put_in(kind, made, v)  # noqa: E731
        if flag is True:
            put()
        else:
            if_(flag, put, None, None, None)
    return made


def put_in(kind: str, made: Any, item) -> None:
    """Add a member to a set, or an item (key, value) to a dict."""
    key, *value = (item,) if kind == "set" else item
    if table_of(made) is not None or lookups.has_traced(key):
        tables.put_key_in(made, key, *value)
    elif kind == "set":
        journal.touch_set(made)
        made.add(key)
    else:
        journal.touch_dict(made)
        (made[key],) = value


def entries(d: Any, name: str, f: Callable | None = None) -> list | None:
    """The keys, values or items of a dict with keys of one path; None for any other.

    Python would show what is written to the dict afterwards, so that is refused, unless they are
    for an f that asks for all at once.
    """
    if type(d) not in trees.DICTS or not any(map(lacks, d.values())):
        return None
    if is_unordered(d) and f is not builtins.sorted:
        return None
    keys = builtins.sorted(d) if f is builtins.sorted else d
    pick = {"keys": lambda k, v: k, "values": lambda k, v: v}.get(name, lambda k, v: (k, v))
    found = listed([(lookups.presence(d, k), pick(k, only(d[k]))) for k in keys])
    if f not in AT_ONCE:
        why = f"`{name}()` was asked of this dict, some keys of which one path has"
        keep([Copied(d, why, view=found)])
    return found


def displayed(kind: str, items: tuple) -> Any:
    """`{a, b}` or `{a: b, c: d}`, where what is a key may be traced; items: members or pairs.

    `[*xs, a]`, where the length of xs may be traced; items: lists.
    """
    if kind == "list":
        both = lambda x, y: x + y if bounded(x) is bounded(y) is None else joined(x, y)  # noqa: E731
        return functools.reduce(both, items)
    if not any(lookups.has_traced(x if kind == "set" else x[0]) for x in items):
        return set(items) if kind == "set" else dict(items)
    return keyed_by(kind, [(True, item) for item in items])


def listing(items) -> list:
    """list(items), of a number of items that may be traced."""
    found = Collected()
    found.each(items, True, lambda item, flag: found.add(flag, lambda: item), False)
    return found.values()


def consume(call: Callable, f: Callable, run: Callable, plain: Callable, *args, **kwargs) -> Any:
    """`f(generator expression, *args)`: run(collected) fills what f goes over; else plain()."""
    try:
        of_list = isinstance(getattr(f, "__self__", None), list)
        eager = f in CONSUMERS or (of_list and f.__name__ == "extend")
    except TypeError:
        eager = False
    if not eager:
        return call(f, plain(), *args, **kwargs)
    folds = f is next or not (args or kwargs)
    collected = Collected(f, call) if folds else Collected()
    run(collected)
    if f is next:
        grown = collected.grown
        return first(collected.pairs if grown is None else [tuple(grown)], *args)
    if collected.f in FOLDS and collected.grown is not None:
        there, value = collected.grown
        if there is not True:
            fail_where(~unbox(there), ValueError(f"{f.__name__}() iterable argument is empty"))
        return value
    return call(f, collected.values(), *args, **kwargs)


def is_untraced(x) -> bool:
    parts = x if type(x) is tuple else (x,)
    return not any(isinstance(part, Box) and part.traced for part in parts)


def first(pairs: list, *default) -> Any:
    """`next(iterator, default)` of a new iterator over these."""
    if all(flag is True for flag, _ in pairs):
        return next((value for _, value in pairs), *default)
    flags = flags_of(pairs)
    values = [value for _, value in pairs]
    if not default:
        fail_where(~flags.any(), StopIteration())
        return select(jnp.argmax(flags), values, compat.where())
    index = jnp.where(flags.any(), jnp.argmax(flags), len(values))
    return select(index, [*values, *default], compat.where())


def flags_of(pairs: list):
    flags = [flag for flag, _ in pairs]
    together = whole(flags)
    if together is not None:
        return together
    return jnp.stack([jnp.asarray(f.value if isinstance(f, Box) else f) for f in flags])


def listed(pairs: list) -> list:
    """The values that are there: a list, whose length may be traced."""
    if all(flag is True for flag, _ in pairs):
        return [value for _, value in pairs]
    mask, values = flags_of(pairs), [value for _, value in pairs]
    tree, arrays = stacked(values)
    order = jnp.nonzero(mask, size=len(values), fill_value=0)[0]
    count = jnp.sum(mask).astype(np.int32)
    return [Bounded(trees.Ragged(tree, len(values)), count, [a[order] for a in arrays])]


def stacked(values: list) -> tuple[trees.Tree, list]:
    """Values of one type as the tree of one, and the leaves of all, stacked."""
    together = whole(values)
    if together is not None:
        tree = flatten(Box(together[0], values[0].scalar), [])
        return trees.free(tree), [together]
    if all(type(v) is tuple and len(v) == len(values[0]) for v in values):
        parts = [stacked(list(column)) for column in zip(*values, strict=True)]
        tree = trees.Node(tuple, None, tuple(tree for tree, _ in parts))
        return tree, [a for _, arrays in parts for a in arrays]
    goal, split = None, []
    for value in values:
        leaves: list = []
        tree = trees.abstract(flatten(value, leaves))
        split.append((flatten(value, []), leaves))
        goal = trees.free(tree) if goal is None else trees.free(trees.join(goal, tree))
    if goal is None or not trees.is_uniform(goal):
        raise TransformError(
            "the items that a comprehension keeps under a traced condition are of several types",
            where=compat.where(),
            hint="give all items one type and shape",
        )
    columns = [inject(tree, iter(leaves), goal) for tree, leaves in split]
    pairs = zip(zip(*columns, strict=True), trees.avals(goal), strict=True)
    return goal, [compat.convert(stack(xs), t.dtype, t.weak_type) for xs, t in pairs]
