"""What `while` and `for` do: Python, until a test, an exit or the items are traced."""

import functools
import gc
import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import GeneratorType

import jax

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box, Masked, is_traced
from malleable.arrays.rows import whole
from malleable.errors import TransformError
from malleable.frontend.common.hints import Hinted
from malleable.frontend.common.session import session
from malleable.frontend.counterparts.builtins import (
    Once,
    Steps,
    TracedRange,
    acts,
    as_steps,
    refuse_acting,
)
from malleable.frontend.counterparts.iterators import Walker
from malleable.frontend.operators import compiled
from malleable.frontend.operators.carry import Loop
from malleable.frontend.operators.chosen import gone_over
from malleable.frontend.operators.generators import Apart, beginning, tried
from malleable.frontend.operators.hidden import refuse_foreign, walked
from malleable.frontend.operators.lookups import presence
from malleable.frontend.values import values
from malleable.frontend.values.conditions import if_, line_of, places_of, step, truth
from malleable.frontend.values.keys import is_unordered
from malleable.frontend.values.leaves import inject, stack
from malleable.frontend.values.raises import fail_where
from malleable.frontend.values.trees import DICTS, abstract, count_leaves, free, join
from malleable.frontend.values.unwinding import failed
from malleable.notes import first_line, note

MANY = 8  # items from which roll="auto" makes one loop of them
WALKS = {enumerate, zip, map, filter, reversed, type(iter([])), type(reversed([]))}
_VIEWS = ({}.keys(), {}.values(), {}.items())  # which Python goes over, as iterators or views
WALKS |= {type(x) for view in _VIEWS for x in (view, iter(view))}
WALKS |= {type(iter(values.View.__new__(values.View)))}
SHORT = 64  # steps up to which a loop is unrolled whose body asks for what no compiled loop has
UNNAMED = 5  # references to what a loop goes over that has no name in the user's code
NESTED = 16  # steps up to which those that are left are one block, within which the next is one
LONG = 500  # steps from which unrolling leaves a note

# what a loop body may do that only plain Python can follow
UNSTAGEABLE = (
    values.CannotStage,
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def while_(test, body, state, live, rebound, exits) -> None:
    """`while test(): body()`, in Python as long as the test is known, then as one while_loop."""
    loop = Loop(body, state, live, rebound, exits, line_of(body), test)
    most, before = session().options.max_steps, session().raised._value
    while True:
        done = compiled.stopped(exits)
        if done is True:
            return
        raised = session().raised._value is not before
        if done is not False or raised or isinstance(failed(), compat.Tracer):
            return stage_while(loop, most, None)
        go = test()
        if type(go) is Hinted:
            go, most = go.value, go.max_steps or most
        go = truth(go)
        if isinstance(go, compat.Tracer):
            return stage_while(loop, most, go)
        if not go:
            return
        step(loop.body)


def stage_while(loop: Loop, most: int | None, go) -> None:
    try:
        try:
            compiled.stage(loop, None, most)
        except compiled.TestChanges:
            compiled.stage(compiled.rotated(loop, go), None, most)
    except values.CannotStage as e:
        raise loop_error(loop, e) from None


def loop_error(loop: Loop, e: values.CannotStage) -> TransformError:
    return TransformError(f"in this loop {e.why}", where=loop.where, hint=compiled.GIVE_ONE_TYPE)


def for_(items, body, state, live, rebound, exits) -> None:
    """`for item in items: body(item)`: a scan over arrays; Python over what Python knows.

    Once it is unknown whether a loop in Python goes on, the rest of it is compiled.
    """
    loop = Loop(body, state, live, rebound, exits, line_of(body))
    most, roll = session().options.max_steps, session().options.roll
    if type(items) is Hinted:
        most, roll = items.max_steps or most, roll if items.roll is None else items.roll
        items = items.value
    if type(items) is values.Choice:
        items, options = gone_over(items), items.options
        loop = loop if type(items) is values.View else unwritten(loop, options)
    refuse_foreign(items)
    items = walked(items)
    if type(items) is Masked:
        loop, items = over_masked(loop, items)
    if type(items) in DICTS and any(map(values.lacks, items.values())) and not is_unordered(items):
        loop, items, roll = over_present(loop, items), [*items], False
    steps = steps_of(items)
    if values.bounded(items) is not None:
        loop = of_one_length(loop, items)
    if steps is not None:
        return stage_or_unroll(loop, steps, steps.most or most)
    if roll:
        sources, once = sources_of(items), hasattr(type(items), "__next__")
        if not (once and sources and roll == "auto"):
            known = items if isinstance(items, range) else list(items)
            if rolled(loop, known, roll, sources):
                return
            items = known if once else items
            if once and sources:
                note("the items of this loop are all read before it begins", loop.where)
    if isinstance(items, dict):
        values.refuse_uncertain(items)
    rest, taken = iter(items), 0
    begun = beginning(items)
    if begun is not None:
        try:
            first = tried(lambda: [next(rest)], lambda: Apart(begun), begun)
        except StopIteration:
            return
        if type(first) is Apart:
            for_(first.items, body, state, live, rebound, exits)
            return first.check()
        rest = itertools.chain(first, rest)
    while True:
        done = compiled.stopped(exits)
        if done is True:
            return close(items) if sys.getrefcount(items) <= UNNAMED else None
        if done is not False:
            return go_on(loop, items, rest, taken)
        try:
            item = next(rest)
        except StopIteration:
            break
        step(loop.body, item)
        taken += 1
        if isinstance(items, list) and values.bounded(items) is not None:
            raise resized(loop)
    if taken >= LONG:
        note(f"{taken} steps are unrolled", loop.where, "loop(..., roll=True) makes them one loop")


def unwritten(loop: Loop, things: list) -> Loop:
    """A loop over a copy of what one of these holds, none of which it may change."""

    def body(item):
        loop.body(item)
        if any(map(compiled.is_written, things)):
            raise TransformError(
                "this loop writes to a list that it may go over, and whose length is traced",
                where=loop.where,
                hint="go over a copy, `for x in list(xs)`",
            )

    return replace(loop, body=body)


def of_one_length(loop: Loop, xs: list) -> Loop:
    """A loop over a list whose length is traced, and does not change in the loop."""

    def body(item):
        before = values.bounded(xs).length
        loop.body(item)
        after = values.bounded(xs)
        if after is None:
            raise resized(loop)
        if after.length is not before:
            error = RuntimeError("a list changes its length while a loop goes over it")
            fail_where(after.length != before, error)

    return replace(loop, body=body)


def resized(loop: Loop) -> TransformError:
    return TransformError(
        "the list that this loop goes over has another length under a traced test",
        where=loop.where,
        hint="perhaps: go over a copy, `for x in list(xs)`, and keep what is added apart",
    )


def close(items) -> None:
    """A loop leaves a generator that has no name: Python runs its `finally` and its `with` now."""
    if type(items) is GeneratorType:
        items.close()


def go_on(loop: Loop, items, rest, taken: int) -> None:
    """The items of a Python loop that are left once it is unknown whether it goes on."""
    if isinstance(items, range):
        left: Iterable = items[taken:]
        return stage_or_unroll(loop, range_steps(left), None, left)
    if type(items) is Walker and items.endless:
        advance = lambda: loop.body(items.advance())  # noqa: E731
        forever = replace(loop, body=advance, test=lambda: True)
        stage_while(forever, session().options.max_steps, None)
        return leave_by(loop.exits)
    if type(items) is Walker and not is_traced(items.at):
        advance = lambda _: loop.body(items.advance())  # noqa: E731
        return unroll(replace(loop, body=advance), range(len(items.items) - items.at))
    refuse_acting(acts(items))
    steps = None  # a step may change what comes after it in a list or dict: that is asked late
    if type(items) in (list, tuple, values.View):
        steps = stacked_items(list(items)[taken:], sources_of(items))
    if steps is None:
        return unroll_some(loop, rest) if may_not_end(items) else unroll(loop, rest)
    stage_or_unroll(loop, steps, None, rest)


def leave_by(exits) -> None:
    """After a loop without an end: if there is one way out of it, that was taken."""
    if exits is not None and len(exits.__code__.co_freevars) == 1:
        (flag,) = places_of(exits)
        journal.touch_cell(flag.owner, flag.name)
        flag.write(True)


def stage_or_unroll(loop: Loop, steps: Steps, most, items: Iterable | None = None) -> None:
    """As one compiled loop; item by item, with a note, where the body does not allow it."""
    if type(steps.length) is not int:
        try:
            return compiled.stage(loop, steps, most)
        except values.CannotStage as e:
            raise loop_error(loop, e) from None
    if steps.length == 0:
        return
    here = session()
    before, here.unrolls = here.unrolls, here.unrolls or steps.length <= SHORT
    try:
        compiled.stage(loop, steps, steps.length)
        return
    except (*UNSTAGEABLE, TransformError) as e:
        if isinstance(e, TransformError) and steps.length > SHORT:
            raise
        note(f"the loop is unrolled, {steps.length} times", loop.where, reason_of(e))
    finally:
        here.unrolls = before
    if items is None:
        unroll(loop, range(steps.length), steps.get)
    else:
        unroll(loop, items)


def may_not_end(items, depth: int = 4) -> bool:
    """Whether this is a generator or an endless iterator, or goes over one."""
    if type(items) is GeneratorType or (type(items) is Walker and items.endless):
        return True
    inner = gc.get_referents(items) if depth and type(items) in WALKS else ()
    return any(may_not_end(x, depth - 1) for x in inner)


def unroll_some(loop: Loop, rest: Iterator) -> None:
    """Unroll the items of what may have no end of its own."""
    end = object()
    try:
        unroll(loop, itertools.islice(rest, SHORT))
        if compiled.stopped(loop.exits) is True or next(rest, end) is end:
            return
    except OverflowError:  # its numbers grow for ever
        pass
    raise TransformError(
        f"this loop goes over an iterator of more than {SHORT} items, and a traced value says "
        "where it stops",
        where=loop.where,
        hint="go over a list of a known length, or write it as a `while`",
    )


def reason_of(e: Exception) -> str:
    return e.why if isinstance(e, values.CannotStage) else first_line(e)


def unroll(loop: Loop, items: Iterable, get=lambda item: item) -> None:
    """Each item in turn, skipped where the loop has stopped.

    What is left of a few steps is one block: there Python knows what it knows if it goes on.
    """
    for at, item in enumerate(items):
        done = compiled.stopped(loop.exits)
        if done is True:
            return
        if done is False:
            step(loop.body, get(item))
        elif isinstance(items, range) and len(items) <= NESTED:
            rest = lambda: step(loop.body, get(item)) or unroll(loop, items[at + 1 :], get)  # noqa: B023, E731
            return if_(Box(~done, True), rest, None, loop.state, loop.live)
        else:
            item = get(item)
            if_(Box(~done, True), lambda item=item: loop.body(item), None, loop.state, loop.live)


def sources_of(items, depth: int = 4) -> tuple:
    """The lists and dicts that Python goes over in `items`, or in what that goes over."""
    if type(items) in (list, dict):
        return (items,)
    if type(items) is values.View:
        return tuple(items.choice.options)
    if depth == 0 or type(items) not in WALKS:
        return ()
    return tuple(x for inner in gc.get_referents(items) for x in sources_of(inner, depth - 1))


def rolled(loop: Loop, items, roll, sources: tuple) -> bool:
    """Make one compiled loop of the items of a Python loop, if they are alike; whether it was."""
    if len(items) < (MANY if roll == "auto" else 2):
        return False
    steps = range_steps(items) if isinstance(items, range) else stacked_items(items, sources)
    if steps is None:
        note("the loop is not rolled", loop.where, "its items differ in type or shape")
        return False
    try:
        compiled.stage(loop, steps, len(items))
    except UNSTAGEABLE as e:
        note("the loop is not rolled", loop.where, reason_of(e))
        return False
    note(f"{len(items)} steps are rolled into one loop", loop.where)
    return True


# ---------------------------------------------------------------- items


def steps_of(items) -> Steps | None:
    """The items of a loop that is staged at once; None for one that starts in Python."""
    if isinstance(items, Steps):
        return items.rest() if isinstance(items, Once) else items
    if isinstance(items, TracedRange):
        return Steps(items.end, items.item)
    if values.bounded(items) is not None:
        return as_steps(items)
    stacked = whole(items) if type(items) is list else None
    if stacked is not None:  # what a compiled loop appended
        return array_steps(Box(stacked))
    if isinstance(items, jax.Array):
        items = Box(items)
    if isinstance(items, Box) and items.traced:
        if items.ndim == 0:
            raise TypeError("iteration over a 0-d array")
        return array_steps(items)
    return None


def over_masked(loop: Loop, items: Masked) -> tuple[Loop, Steps]:
    """`for x in a[mask]`: all of a, where a step is skipped if its mask is not set."""

    def body(pair):
        held, item = pair
        if_(held, lambda: loop.body(item), None, loop.state, loop.live)

    length, arrays = items.mask.shape[0], (items.mask, items.whole)
    get = lambda i: (Box(items.mask)[i], items.held[i])  # noqa: E731
    make = lambda i, parts: tuple(map(Box, parts))  # noqa: E731
    return replace(loop, body=body), compiled.Slices(length, get, arrays, make, (items.held,))


def over_present(loop: Loop, d: dict) -> Loop:
    """`for key in d`, some keys of which one path only has: elsewhere it has no step for them."""
    there = {key: presence(d, key) for key in d}

    def body(key):
        if there[key] is True:
            return loop.body(key)
        return if_(there[key], lambda: loop.body(key), None, loop.state, loop.live)

    return replace(loop, body=body)


def array_steps(box: Box) -> Steps:
    array = box.value
    make = lambda i, parts: Box(parts[0])  # noqa: E731
    return compiled.Slices(array.shape[0], box.__getitem__, (array,), make, (box,))


def range_steps(items: range) -> Steps:
    start, step = items.start, items.step

    def get(i):
        if not isinstance(i, Box):
            return items[i]
        i = i.value if step == 1 else i.value * step
        return Box(i if start == 0 else i + start, True)

    return Steps(len(items), get)


def stacked_items(items: list, sources: tuple) -> Steps | None:
    """Items of one type, as slices of arrays; None if they differ, or are too few to matter.

    sources: the lists and dicts that they are in, and which must not change.
    """
    if len(items) < 4:
        return None
    parts = []
    for item in items:
        leaves: list = []
        parts.append((values.flatten(item, leaves, deep=True), leaves))
    kinds = [free(abstract(t)) for t, _ in parts]
    if any(kind != kinds[0] for kind in kinds):
        return None
    tree = functools.reduce(join, (free(t) for t, _ in parts))  # what all share stays as it is
    if not count_leaves(tree):
        return None
    columns = [inject(t, iter(leaves), tree) for t, leaves in parts]
    arrays = tuple(map(stack, zip(*columns, strict=True)))
    make = lambda i, slices: values.rebuild(tree, iter(slices), "")  # noqa: E731
    return compiled.Slices(len(items), lambda i: items[i], arrays, make, sources)
