"""One compiled loop: its body traced once, then a scan or a while_loop of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import Box
from malleable.arrays.journal import ABSENT
from malleable.errors import TransformError
from malleable.frontend.common.decisions import assuming
from malleable.frontend.common.hints import Hinted
from malleable.frontend.common.session import notes_aside, session
from malleable.frontend.counterparts.builtins import Steps
from malleable.frontend.operators.carry import (
    Carried,
    Loop,
    appended,
    begin,
    bind_again,
    extend,
    land,
    note_kept,
    recall,
    remember,
    settle,
    stacked,
    start,
    tied,
)
from malleable.frontend.values import copies, trees, unwinding
from malleable.frontend.values.conditions import if_, only, places_of, truth
from malleable.frontend.values.leaves import inject
from malleable.frontend.values.references import is_dead
from malleable.frontend.values.reverse import silenced, varied, while_loop
from malleable.frontend.values.staging import Block, trace_block
from malleable.frontend.values.unwinding import any_of, freeze_if, open_here, rewind, undo_to
from malleable.frontend.values.values import CannotStage, rebuild
from malleable.notes import note

GIVE_ONE_TYPE = (
    "give each variable one type and shape before the loop: a buffer of its largest size"
)
ROUNDS = 12  # times a loop body is traced before its types must have settled


class TestChanges(Exception):
    """The test of a `while` changes or prints something besides giving an answer."""


@dataclass(frozen=True)
class Slices(Steps):
    """Steps of which make(i, slices) gives the item from the slices of the arrays."""

    make: Callable | None = None
    sources: tuple = ()  # the array, of which get(i) gives a view; lists and dicts of the items


class WritesItem(Exception):
    """A loop body writes to its item in place, or to the array or list that it goes over."""


def stage(loop: Loop, steps: Steps | None, bound: int | None) -> None:
    """Leave behind what the loop would, compiled. steps: what a `for` goes over.

    Raises CannotStage for a body that only plain Python can follow.
    """
    here = session()
    before, known = here.open_ended, steps is not None and type(steps.most or steps.length) is int
    here.open_ended = before or not known
    try:
        if isinstance(steps, Slices):
            try:
                return stage_once(loop, steps, bound)
            except WritesItem:  # a row of an array is a view of it; another item is its own thing
                if not any(isinstance(x, Box) for x in steps.sources):
                    raise CannotStage("an item, or the list of them, is written in place") from None
                steps = Steps(steps.length, steps.get)
        stage_once(loop, steps, bound)
    finally:
        here.open_ended = before


def stage_once(loop: Loop, steps: Steps | None, bound: int | None) -> None:
    carried = start(loop)
    recall(loop, carried)
    absent = {c.place.name: c.tree for c in carried.values() if is_absent(c.tree)}
    index = jax.typeof(0) if steps is not None else None  # it promotes as Python's do
    runs = steps is not None and type(steps.length) is int and steps.length > 0
    binds = True  # perhaps a step binds what a branch before it has read
    for k in range(ROUNDS):
        with notes_aside() as leave:  # of a step whose types have not settled, nothing is said
            block = trace_step(loop, steps, carried, index, binds)
        known = len(carried)
        copies.keep(block.copies)
        if not settle(loop, carried, block, bound, k > 2, runs):
            if not (binds and block.unread):
                break
            binds = False
        if k > 4 and len(carried) > known:
            raise CannotStage("every step makes objects that the next ones change")
    else:
        kinds = ", ".join(f"{c.place.label}: {trees.spell(c.tree)}" for c in carried.values())
        raise TransformError(
            f"the variables of this loop change their type in every step: {kinds}",
            where=loop.where,
            hint=GIVE_ONE_TYPE,
        )
    leave()
    if block.error is not None:
        return raise_at_first(loop, steps, block.error)
    remember(loop, carried)
    for c in carried.values():  # written to, and copied, in every step
        for copied in block.copies:
            copied(c.place.owner)
    if steps is None or type(steps.length) is not int:
        needed = [name for name in absent if loop.live is None or name in loop.live]
        if needed and session().options.exact:
            raise CannotStage(f"`{needed[0]}` has no value if it never runs")
        for name in () if trees.keeps_absent() else needed:
            if absent[name] == trees.MISSING:  # and no variable of ours
                note(
                    f"`{name}` may be undefined",
                    loop.where,
                    "it is set in a loop that may not run, and is zero then",
                )
    run_loop(loop, steps, bound, carried, block, index)


def raise_at_first(loop: Loop, steps: Steps | None, error: BaseException) -> None:
    """Leave behind what a loop does that raises in its first step, if there is one."""
    if not unwinding.is_raised(error) or isinstance(error, TypeError):  # a mistake in any step
        raise error
    first = loop.body if steps is None else lambda: loop.body(steps.get(0))
    if_(answer(loop) if steps is None else steps.length > 0, first, None, loop.state, None)


def is_absent(tree) -> bool:
    return isinstance(tree, trees.Static) and (tree.value is ABSENT or tree.value is trees.UNSET)


def writes(item) -> bool:
    """Whether the block being traced has written to an array among the items."""
    if isinstance(item, tuple | list):
        return any(map(writes, item))
    return isinstance(item, Box) and is_written(item)


def is_written(thing) -> bool:
    """The same of an array, or of a list or dict."""
    kind, thing = ("box", thing.root) if isinstance(thing, Box) else (type(thing).__name__, thing)
    return any((kind, id(thing), "") in book.places for book in open_here())


def arrays_of(steps: Steps | None) -> list:
    return list(steps.arrays) if isinstance(steps, Slices) else []


def trace_step(loop: Loop, steps, carried: dict, index, binds: bool) -> Block:
    """The body, traced once on fresh values for all that goes around.

    Its first input is whether the loop goes on, which what is printed asks for.
    binds: whether it may bind names that it reads before: else a branch that does so raises.
    """
    written = False
    extra, arrays = [index] if index is not None else [], arrays_of(steps)
    slices = [compat.slice_type(a) for a in arrays]
    types = [a for c in carried.values() for a in trees.avals(c.tree)]
    for c in carried.values():
        c.traced = c.tree

    def body(goes_on, *xs):
        book = journal.current()
        book.binds, book.repeats = binds, True
        rest = iter(xs)
        i = Box(next(rest), True) if extra else None
        parts = [next(rest) for _ in slices]
        begin(carried, rest, loop.where)
        assuming(goes_on, True, take, i, parts)  # vmap takes each example as far as the last goes
        return tied(carried)

    def take(i, parts):
        nonlocal written
        if steps is None:
            loop.body()
        elif isinstance(steps, Slices):
            item, over = steps.make(i, parts), steps.sources
            loop.body(item)
            written = writes(item) or any(map(is_written, over))
            if over and isinstance(over[0], Box) and not written:
                note_kept(item, over[0].root)
        else:
            loop.body(steps.get(i))

    local = [p for p in places_of(loop.state) if p.key not in carried]
    places = [c.place for c in carried.values()] + local
    goes_on = jax.ShapeDtypeStruct((), bool)
    around, session().around = session().around, carried
    try:
        block = trace_block(body, places, [goes_on, *extra, *slices, *types])
    finally:
        session().around = around
    if written:  # not said before: an abandoned trace holds on to its values
        raise WritesItem
    return block


# ---------------------------------------------------------------- what JAX runs


@dataclass(frozen=True)
class Step:
    """A traced body as a function of arrays. It holds no values: JAX keeps it in its caches."""

    block: Block
    slots: tuple
    counts: bool

    def silent(self) -> "Step":
        """The step without what it prints."""
        return replace(self, block=replace(self.block, closed=silenced(self.block.closed)))

    def __call__(self, consts, i, parts, carry, goes_on=True) -> tuple[list, list]:
        held = split_by_slots(self.slots, carry)
        inputs = [x for slot, mine in held for x in mine[: slot.traced]]
        outs = self.block.outs([goes_on, *([i] if self.counts else []), *parts, *inputs], consts)
        new, ys = [], []
        tests = iter([outs[k] for k in self.block.result[1]])
        for slot, mine in held:
            after = self.block.after.get(slot.key)
            if slot.grows:
                ys += stacked(slot, after, outs)
                last = slot.tree.children[1:]
                if last:
                    items = zip(appended(slot, after, outs), last, strict=True)
                    mine = [x for (t, xs), goal in items for x in inject(t, iter(xs), goal)]
            elif after is not None and not (slot.pinned and after[0] == trees.Static(False)):
                mine = inject(after[0], iter([outs[k] for k in after[1]]), slot.tree)
            for k in slot.ties:
                mine[k] = next(tests)
            new += mine
        return new, ys


def split_by_slots(slots: Sequence, leaves: Sequence) -> list:
    """Each slot with its own leaves."""
    rest = iter(leaves)
    return [(slot, [next(rest) for _ in range(trees.count_leaves(slot.tree))]) for slot in slots]


def slim(block: Block, things: list) -> Block:
    """A block without the values it was traced among; for things see `bare`."""
    nothing = [None] * len(block.closed.consts)
    closed = block.closed.replace(consts=nothing)
    after = {key: (trees.bare(tree, things), ids) for key, (tree, ids) in block.after.items()}
    result = (trees.bare(block.result[0], things), block.result[1])
    empty = {"places": {}, "before": {}, "copies": []}
    return replace(block, closed=closed, after=after, result=result, **empty)


def run_loop(loop: Loop, steps, bound, carried: dict, block: Block, index) -> None:
    """Build the loop, run it, and write what it leaves."""
    init = [x for c in carried.values() for x in inject(c.first[0], iter(c.first[1]), c.tree)]
    consts, arrays = list(block.closed.consts), arrays_of(steps)
    things: list = []
    slots = tuple(c.slot() for c in carried.values())
    slots = tuple(slot._replace(tree=trees.bare(slot.tree, things)) for slot in slots)
    step = Step(slim(block, things), slots, index is not None)
    idle = not init and not block.closed.effects and not any(slot.grows for slot in slots)
    if steps is not None and idle:
        return  # there is nothing to do in any step
    flagged = any(may_end(c, block) for c in carried.values())
    if steps is not None and type(steps.length) is int and not flagged:

        def scan_step(carry, xs):
            new, ys = step(consts, xs[0], xs[1], carry)
            pairs = zip(new, carry, strict=True)
            return [compat.match_devices(x, old) for x, old in pairs], ys

        numbers = compat.convert(jnp.arange(steps.length), index.dtype, True)
        xs = numbers, arrays
        if compat.is_mapped():
            first = jax.tree.map(compat.slice_type, xs)
            init = varied(lambda xs, carry: step(consts, *xs, carry)[0], first, init)[1]
        outs, ys = lax.scan(scan_step, init, xs, length=steps.length)
    else:
        if any(slot.grows for slot in slots):
            raise CannotStage("a list grows, and how often is known only at run time")
        types = [a for c in carried.values() for a in trees.avals(c.tree)]
        tests = test_block(loop, carried, types) if loop.test is not None else None
        outs, ys = run_while(step, steps, bound, tests, init, consts, arrays, index, loop.where), []
    rows, known = iter(ys), steps is not None and type(steps.length) is int
    land(carried, iter(outs), loop.where)
    for c in carried.values():
        if c.prefix is not None:
            extend(c, block.after[c.place.key][0], rows, steps.length)
        elif known and steps.length > 0 and c.place.kind == "attr":
            left = block.after.get(c.place.key, (trees.MISSING,))[0]
            if trees.MISSING not in getattr(left, "options", (left,)):  # each step sets it
                c.place.write(only(c.place.read()))
    bind_again(carried, known and steps.length > 0)
    freeze_if(carried)


def may_end(c: Carried, block: Block) -> bool:
    """Whether a loop stops because of c. If it raised before the loop, with no handler, it may run:

    nobody sees what it leaves, but for what it prints.
    """
    after = block.after.get(c.place.key, (trees.Static(False),))[0]
    idle = c.place.owner is session().raised and after == trees.Static(False)
    return c.pinned and trees.count_leaves(c.tree) > 0 and not (idle and not block.closed.effects)


def run_while(step: Step, steps, bound, tests, init, consts, arrays, index, where) -> list:
    """As a while_loop: the exits that were taken, then the end of the items, then the test."""
    length = [] if steps is None else [steps.length]
    length = [x.value if isinstance(x, Box) else x for x in length]
    test_consts, asked = (tests.closed.consts, slim(tests, [])) if tests is not None else ((), None)
    every = list(map(compat.as_array, (*consts, *arrays, *test_consts, *length)))
    a, b, end = len(consts), len(consts) + len(arrays), len(every) - len(length)
    prints = bool(step.block.closed.effects)
    counted = steps is not None  # JAX keeps what the functions below know: no arrays among it

    def cond(consts, carry):
        tests = []
        if counted:
            i, *carry = carry
            tests.append(i < consts[-1])
        for slot, mine in split_by_slots(step.slots, carry):
            if slot.pinned and mine:
                tests.append(~mine[0])
        if asked is not None:
            tree, ids = asked.result
            outs = asked.outs(carry, consts[b:end])
            go = rebuild(tree, iter([outs[k] for k in ids]), where)
            tests.append(jnp.asarray(go.value if isinstance(go, Box) else go))
        go = tests[0]
        for test in tests[1:]:
            go = go & test
        return go

    def take(step, consts, carry, goes_on=True):
        if not counted:
            return step(consts[:a], None, [], carry, goes_on)[0]
        i, *carry = carry
        parts = [lax.dynamic_index_in_dim(x, i, keepdims=False) for x in consts[a:b]]
        return [i + 1, *step(consts[:a], i, parts, carry, goes_on)[0]]

    def body(consts, carry):
        return take(step, consts, carry, cond(consts, carry) if prints else True)

    silent = partial(take, step.silent()) if prints else body
    first = [compat.convert(0, index.dtype, True)] if counted else []
    init, given = [*first, *init], {"bound": bound, "where": where, "silent": silent}
    return while_loop(cond, body, init, every, **given)[len(first) :]


# ---------------------------------------------------------------- the test of a while


def test_block(loop: Loop, carried: dict, types: list) -> Block:
    """The test, traced on what goes around."""
    changes = False

    def test(*xs):
        nonlocal changes
        begin(carried, iter(xs), loop.where)
        with journal.opened() as book:
            book.made, within = {}, journal.all_open()
            try:
                go = answer(loop)
                rewind(within)
                changes = not all(is_dead(place, [book], {}) for place in book.places.values())
            finally:
                undo_to(within[:-1])
        return Box(go, True) if isinstance(go, compat.Tracer) else go

    block = trace_block(test, [c.place for c in carried.values()], types)
    if block.error is not None:
        raise block.error
    if changes or block.closed.effects:
        raise TestChanges
    return block


def answer(loop: Loop):
    """What the test says now: a bool or a traced one."""
    go = loop.test()
    return truth(go.value if type(go) is Hinted else go)


def stopped(exits: Callable | None):
    """Whether a break or return has happened: True, False, or a traced boolean."""
    return any_of(map(truth, exits())) if exits is not None else False


def rotated(loop: Loop, go) -> Loop:
    """The loop with its test, and what that changes, at the end of each step.

    go: what the test has just answered; None if it has not been asked.
    """
    flag = Box(False if go is None else go, True)

    def ask():
        flag.write(answer(loop))

    def ask_if_going():
        done = stopped(loop.exits)
        if done is False:
            ask()
        elif done is not True:
            if_(Box(~done, True), ask, None, loop.state, loop.live)

    def body():
        loop.body()
        ask_if_going()

    if go is None:
        ask_if_going()
    return replace(loop, body=body, test=lambda: flag)
