"""How a frame crosses control flow. Written once, for every transformation.

              carry             feeds             shared  key                  writes
  Call        in, out           in                in      count threaded       out
  Custom*     in, out           in                in      count threaded       out
  Branch      in, out           in                in      count, the most      out; masked where a
                                                          any branch drew      branch has none
  Scan        around the loop   one slice a step  in      a root per step      stacked or folded
  While       around the loop   none              in      a root per step      folded
  Map         in, out (same     one slice a       in      one root; each device stacked over axes
              on each device)   device                  draws its own        where they differ

and how values of the user's cross it, instead of arrays:

  Call        as pytrees        Branch  results of one type: `values.join` of those of the branches
  Custom*     as arrays; else   Scan    the carry of a type that steps keep; xs, ys leaf by leaf
              not derived by    While   as Scan; the test is an array
  Map         leaf by leaf

Control flow is rebuilt with the public functions of JAX, never by filling in the params of its
primitives: the functions keep their signature when the params change.
"""

import math
import operator
from dataclasses import replace

import jax
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec

from malleable import compat
from malleable.core import frame as frames
from malleable.core import values
from malleable.core.derivatives import custom_jvp, custom_vjp
from malleable.core.frame import (
    FOLDED,
    Frame,
    Misfit,
    Write,
    fold,
    quoted,
    select,
    spread,
    thread,
    zeros,
)
from malleable.core.values import has_values, is_value, materialised, retype
from malleable.errors import TransformError
from malleable.notes import note
from malleable.programs.analyze import analyze
from malleable.programs.evaluate import inlined
from malleable.programs.primitives import kind


def cross(book, frame: Frame, args: list) -> list:
    """Run the higher-order equation `frame.eqn` with the frame threaded through its bodies."""
    eqn, outer = frame.eqn, frame.outer

    def make():
        view = compat.view(eqn)
        if isinstance(view, compat.Opaque):
            what = f"a rule applies inside `{eqn.primitive}`, which cannot be entered: {view.why}"
            hint = "move it outside, and use its value inside; or give the primitive itself a rule"
            if has_values(args):
                hint += "; or annotate the operands of rules that are for values alone"
            raise frame.error(what, hint)
        if isinstance(view, compat.Call):
            return _call(view, book, frame)

        def crossing(inner, args):
            inner.eqn, inner.outer, inner.book = eqn, outer, book
            return _CROSSINGS[type(view)](view, book, inner, args), inner.leave()

        # the rules of a custom derivative may close over values of the trace around
        custom = isinstance(view, compat.CustomJvp | compat.CustomVjp)
        return crossing if custom else inlined(crossing)

    return thread(book.remember(compat.same_program(eqn), make), frame, args)


def _call(view: compat.Call, book, frame):
    if view.lost:
        note(f"entered `{frame.eqn.primitive}`", frame.where, f"it lost {view.lost}")
    run = book.body(view.body, frame)
    wrapped = view.wrap(lambda frame, *args: run(frame, list(args)))
    return lambda frame, args: wrapped(frame, *args)


# ---------------------------------------------------------------- branches


def _branch(view: compat.Branch, book, frame, args):
    index, *args = args
    index = materialised(frame, index, "the predicate of a cond", rules=False)
    runs = [book.body(b, frame) for b in view.branches]
    results, ends = zip(*(jax.eval_shape(run, frame.enter(), args) for run in runs), strict=True)
    types, mine = results[0], ends[0].carry
    for outs, end in zip(results[1:], ends[1:], strict=True):
        types = _common_types(frame, types, outs, "the branches of a cond differ in result {}")
        what = "the carry differs between the branches of a cond"
        mine = _common_tree(frame, mine, end.carry, what)
    union = _union(frame, [end.writes for end in ends])

    def vary(tree):  # on devices that part ways, values differ
        return jax.tree.map(lambda x: compat.match_devices(x, index), tree)

    def aligned(run):
        def branch(frame, args):
            outs, inner = run(frame, args)
            outs = _retyped(frame, outs, types)
            blank = {q: replace(w, value=zeros(w.value), written=False) for q, w in union.items()}
            writes = {}
            for q, w in (blank | inner.writes).items():
                value = vary(_retyped(frame, w.value, union[q].value))
                certain = union[q].written is None
                writes[q] = value, None if certain else vary(spread(w.written, union[q].written))
            return outs, vary(_retyped(frame, inner.carry, mine)), writes

        return branch

    paths = list(map(aligned, runs))
    outs, carry, writes = compat.switch(index, paths, frame.enter(), args)
    changed = next(filter(None, (end.changed for end in ends)), "")
    end = Frame(carry, draws=max(end.draws for end in ends), changed=changed)
    for q, (value, written) in writes.items():
        end.writes[q] = replace(union[q], value=value, written=written)
    frame.absorb(end)
    return outs


def _union(frame, branches: list) -> dict:
    """The writes of all branches, as types; `written` is the shape of the flag, None if certain."""
    union: dict = {}
    for writes in branches:
        for q, w in writes.items():
            old = union.setdefault(q, w)
            if old.mode != w.mode or not _are_typed(old.value, w.value):
                frames.check_same(q, old, w)
            what = f"the branches of a cond differ in what {quoted(q)} is"
            union[q] = replace(old, value=_common_tree(frame, old.value, w.value, what))
    for q, w in union.items():
        flags: list = [writes[q].written if q in writes else False for writes in branches]
        if all(flag is None for flag in flags):
            continue
        if w.mode in ("stack", "unique"):
            what = f"{quoted(q)} is written in some branches of a cond but not in all"
            hint = 'write it in every branch, or with mode="masked" to get (value, written)'
            raise TransformError(what, where=w.where, hint=hint)
        shapes = [f.shape for f in flags if hasattr(f, "shape")]
        union[q] = replace(w, written=max(shapes, default=(), key=len))
    return union


def _common_types(frame, old: list, new: list, what: str) -> list:
    """The types that both lists of results can be turned into; `old` itself if it will do."""
    pairs = enumerate(zip(old, new, strict=True))
    both = [values.join(frame, what.replace("{}", str(i)), a, b) for i, (a, b) in pairs]
    return old if all(map(operator.is_, both, old)) else both


def _common_tree(frame, old, new, what: str):
    """As `_common_types`, of two pytrees."""
    if not _are_typed(old, new):
        _check_carry(frame, old, new, what)
    (xs, tree), (ys, _) = values.flatten(old), values.flatten(new)
    both = _common_types(frame, xs, ys, what)
    return old if both is xs else tree.unflatten(both)


def _are_typed(old, new) -> bool:
    """Whether two pytrees of one structure have values, whose types may meet in another."""
    (xs, tree), (ys, other) = values.flatten(old), values.flatten(new)
    return tree == other and has_values([*xs, *ys])


def _retyped(frame, tree, types):
    """Values, or arrays, as those of types that `_common_types` gave."""
    leaves, whole = values.flatten(tree)
    wanted = values.flatten(types)[0]
    return whole.unflatten([retype(frame, x, t) for x, t in zip(leaves, wanted, strict=True)])


def _check_carry(frame, old, new, what: str) -> None:
    if frames.signature(old) != frames.signature(new):
        what = f"{what}: {frames.spell_type(old)} and {frames.spell_type(new)}"
        raise frame.error(what, "keep its shapes and dtypes; start it with the type it ends with")


# ---------------------------------------------------------------- loops


def _scan(view: compat.Scan, book, frame, args):
    consts, carry, xs = view.split(args)
    run = book.body(view.body, frame)
    root = None if frame.key is None else frame.next_key(shared=True)
    feeds, misfits = _slices(frame, view.length, f"the scan runs {view.length} steps")
    xs = [values.in_rows(frame, x, (view.length,), "a loop over the rows") for x in xs]

    def one(mine, i, feeds, carry, xs):
        key = _fold_key(root, i)
        inner = Frame(mine, feeds | misfits, frame.shared, key, devices=frame.devices)
        outs, end = run(inner, [*consts, *carry, *xs])
        ys, end.writes = _stackable(frame, (outs[len(carry) :], end.writes))
        return outs[: len(carry)], ys, end

    feed, x = jax.tree.map(compat.slice_type, (feeds, xs))
    turned = lambda c, mine, i, feeds, x: one(mine, i, feeds, c, x)  # noqa: E731
    steps = None if root is None else jnp.arange(view.length)
    first = jax.tree.map(compat.slice_type, steps)
    carry, mine, (*_, end) = _settle(frame, "a scan", turned, carry, first, feed, x)
    types = carry, mine
    _check_modes(end.writes, ["unique"], "a scan", "stack")
    stacked = [q for q, w in end.writes.items() if w.mode not in FOLDED]

    def step(state, x):
        carry, mine, folded = state
        i, feeds, xs = x
        carry, ys, end = one(mine, i, feeds, carry, xs)
        carry, mine = _retyped(frame, (carry, end.carry), types)
        folded = {q: _fold_in(frame, w, end.writes[q]) for q, w in folded.items()}
        return (carry, mine, folded), (ys, {q: end.writes[q] for q in stacked})

    folded = {q: _unwritten(w) for q, w in end.writes.items() if q not in stacked}
    n = view.length if isinstance(view.length, int) else None  # symbolic: that of the rows
    how = {"reverse": view.reverse, "unroll": view.unroll}
    state, (ys, writes) = lax.scan(step, (carry, mine, folded), (steps, feeds, xs), n, **how)
    carry, frame.carry, folded = state
    frame.changed = frame.changed or end.changed
    for q, w in (writes | folded).items():
        certain = q in folded and end.writes[q].written is None and view.length > 0
        frame.put(q, replace(w, written=None) if certain else w)
    return [*carry, *ys]


def _while(view: compat.While, book, frame, args):
    tests, consts, carry = view.split(args)
    run_test, run_body = book.body(view.cond, frame), book.body(view.body, frame)
    root = None if frame.key is None else frame.next_key(shared=True)
    _, frame.feeds = _slices(frame, None, "a while loop has no known length")

    def turn(mine, i, carry, consts, tests):
        key = _fold_key(root, i)
        inner = Frame(mine, frame.feeds, frame.shared, key, devices=frame.devices)
        outs = thread(run_body, inner, [*consts, *carry])
        (again,) = [None] if tests is None else thread(run_test, inner, [*tests, *outs])
        return outs, again, inner.leave()

    def one(mine, i, carry, go, tests=tests):
        outs, again, end = turn(mine, i, carry, consts, tests)
        again = materialised(frame, again, "the test of a while loop", rules=False)
        end.carry, end.writes = jax.tree.map(  # devices that part ways end with other values
            lambda x: compat.match_devices(x, go), (end.carry, end.writes)
        )
        if jnp.ndim(go):  # one lane per example: those that are done keep what they have
            if jax.tree.leaves((end.carry, end.writes)):
                ends = lambda mine, *xs: turn(mine, i, *xs)[-1]  # noqa: E731
                _check_lanes(frame, jnp.shape(go), ends, mine, carry, consts, tests)
            again = None if again is None else jnp.logical_and(go, again)
            outs, end.carry = _working(frame, go, (outs, end.carry), (carry, mine))
            end.writes = {q: _masked(frame, w, go) for q, w in end.writes.items()}
        return outs, again, end

    def test(carry):
        (go,) = run_test(frame.enter(), [*tests, *carry])[0]
        return materialised(frame, go, "the test of a while loop", rules=False)

    # a test with state runs once before the loop, then at the end of each step; one without, as
    # JAX runs it: in front of each step, and for lanes in it again
    (go,), left = jax.eval_shape(run_test, frame.enter(), [*tests, *carry])
    go, before = values.typeof_abstract(go), frame.carry
    plain = root is None and not jax.tree.leaves((before, left.writes))
    start = None if root is None else jnp.int32(0)
    if not plain:
        (go,) = thread(run_test, frame, [*tests, *carry])
        go = materialised(frame, go, "the test of a while loop", rules=False)
    _check_carry(frame, before, frame.carry, "the carry changes its type inside a while loop")
    at_work = lambda go, carry: test(carry) if plain and go.shape else go  # noqa: E731
    turned = lambda c, mine: one(mine, start, c, at_work(go, c))  # noqa: E731
    carry, mine, (_, again, end) = _settle(frame, "a while loop", turned, carry)
    go, types, likes = values.vary_as(go, again), (carry, mine), again
    once = ["stack", "unique", "masked"]
    _check_modes(end.writes, once, "a while loop of unknown length", "last")

    def step(state):
        go, i, mine, folded, carry = state
        go = at_work(likes if plain else go, carry)
        carry, go, end = one(mine, i, carry, go, None if plain else tests)
        carry, mine = _retyped(frame, (carry, end.carry), types)
        folded = {q: _fold_in(frame, w, end.writes[q]) for q, w in folded.items()}
        return go, None if i is None else i + 1, mine, folded, carry

    folded = {q: _unwritten(w) for q, w in end.writes.items()}
    state = (None if plain else go, start, mine, folded, carry)

    def goes(state):
        go = test(state[-1]) if plain else state[0]
        return jnp.any(go) if go.shape else go

    _, _, frame.carry, folded, carry = lax.while_loop(goes, step, state)
    frame.changed = frame.changed or left.changed or end.changed
    for q, w in folded.items():
        frame.put(q, w)
    return list(carry)


def _settle(frame, loop: str, step, carry: list, *args):
    """The carry that a loop starts with, the frame's, and the step's results, as types.

    Both are of types that hold after any number of steps: arrays vary over the mesh axes they
    will vary over, and what becomes a value is one from the start.
    """
    types, mine, what = carry, frame.carry, "carry {} of " + loop + " changes its type"
    for _ in range(2 * (len(carry) + len(jax.tree.leaves(mine))) + 2):
        outs = jax.eval_shape(step, types, mine, *args)
        wide = _common_types(frame, types, outs[0], what)
        own = _strong(frame, mine, outs[-1].carry, f"the carry changes its type inside {loop}")
        if wide is types and own is mine:
            mine = _retyped(frame, jax.tree.map(compat.as_array, frame.carry), outs[-1].carry)
            return _retyped(frame, carry, types), mine, outs
        before, types, mine = types, wide, own
    k = next((k for k, (a, b) in enumerate(zip(before, types, strict=True)) if a is not b), None)
    what = "the frame's carry" if k is None else f"carry {k}"
    grown = "" if k is None else f": {values.text_of(before[k])}, then {values.text_of(types[k])}"
    raise frame.error(
        f"{what} of {loop} has another type after each step, without end{grown}",
        "let its rules keep what is static in it, or start the loop with a type that stays",
    )


def _stackable(frame, tree):
    """What the steps of a scan give."""
    one = lambda x: values.as_rows(frame, x, 1, "a stack of the results")  # noqa: E731
    return values.each(one, tree)


def _working(frame, go, new, old):
    """`new` where a lane is at work, else `old`."""

    def one(new, old):
        both = values.join(frame, "a value differs between steps of a while loop", new, old)
        new, old = retype(frame, new, both), retype(frame, old, both)
        if is_value(new) and not _has_lanes(new, go):
            return select(jnp.any(go), new, old)
        cut = [values.in_rows(frame, x, go.shape, "a choice of lanes") for x in (new, old)]
        return select(go, *cut)

    (xs, whole), ys = values.flatten(new), values.flatten(old)[0]
    if not has_values([*xs, *ys]):
        return select(go, new, old)
    return whole.unflatten(map(one, xs, ys))


def _check_lanes(frame, lanes: tuple, step, mine, *args) -> None:
    """Raise where the frame's state may have a row for each lane or rows that lanes share: of as
    many rows as lanes, and made of nothing that is known to have one for each.
    """
    fits = lambda x: tuple(jnp.shape(x)[: len(lanes)]) == lanes  # noqa: E731

    if jax.tree.structure(jax.eval_shape(step, mine, *args).carry) != jax.tree.structure(mine):
        return  # until it has settled

    def flat(mine, *args):
        end = step(mine, *args)
        return jax.tree.leaves((end.carry, [w.value for w in end.writes.values()]))

    def by_lane(eqn, facts):
        known = facts[:1] if eqn.primitive.name in kind("write") else facts
        return [any(known) and fits(v.aval) for v in eqn.outvars]

    program, kept = compat.trace(flat, mine, *args), [False] * len(jax.tree.leaves(mine))
    ends, rest = program.jaxpr, list(map(fits, jax.tree.leaves(args)))
    while True:
        outs = analyze(program, [*kept, *rest], by_lane, operator.or_, False)[0]
        wide = [a or b for a, b in zip(kept, outs[: len(kept)], strict=True)]
        if wide == kept:
            break
        kept = wide
    for k, (var, known) in enumerate(zip(ends.outvars, outs, strict=True)):
        same = k < len(kept) and (var is ends.invars[k] or math.prod(lanes) == 1)
        if fits(var.aval) and not known and not same:
            what = "the carry" if k < len(kept) else "what is written"
            raise frame.error(
                f"{what}, {values.text_of(var.aval)}, in a while loop under `vmap` may have a row "
                "for each example, or rows that all examples share",
                "add an axis in front of what is shared, `x[None]`; make what each example has of "
                "an operand",
            )


def _has_lanes(x, go) -> bool:
    return tuple(values.typeof(x).shape[: go.ndim]) == go.shape


def _slices(frame, length, why):
    """The feeds that fit a loop of some length, and stand-ins for those that do not."""
    fits, misfits = {}, {}
    hint = "feed one value per step, each of the shape read here"
    if length is None:
        hint = 'hand it in as `shared`; to plant into every pass, tag it with mode="last"'
    for name, value in frame.feeds.items():
        value = _by_row(value)
        sizes = _lengths(value)
        value = _cut(frame, value) if sizes <= {(length,)} else value
        if isinstance(value, Misfit):
            misfits[name] = value
        elif sizes <= {(length,)}:
            fits[name] = value
        else:
            given = ", ".join(str(s[0]) if s else "no leading axis" for s in sorted(sizes))
            misfits[name] = Misfit(f"{why}, the feed has {given}", hint)
    return fits, misfits


def _lengths(feed) -> set:
    """The shapes of the leading axes of what is fed, of one axis or none."""
    return {tuple(values.typeof(x).shape[:1]) for x in values.flatten(feed)[0]}


def _cut(frame, feed):
    """A feed that is cut along its leading axis; as arrays, of values whose fields are not."""
    leaves, whole = values.flatten(feed)
    for i, x in enumerate(leaves):
        if is_value(x) and not values.has_rows(frame, x, tuple(values.typeof(x).shape[:1])):
            if not hasattr(x, "materialise"):
                return Misfit(f"{type(x).__name__} has unknown axes", "feed arrays")
            leaves[i] = x.materialise()
    return whole.unflatten(leaves)


def _by_row(feed):
    """A feed that says of each row whether it was written: all alike, in a branch around a loop."""
    if not isinstance(feed, frames.Masked) or jnp.ndim(feed.written):
        return feed
    rows = jnp.shape(jax.tree.leaves(feed.value)[0])[:1]
    return feed._replace(written=jnp.broadcast_to(feed.written, rows))


def _fold_key(root, i):
    return None if root is None else jax.random.fold_in(root, i)


def _strong(frame, old, new, what: str):
    """As `_common_tree`; a weakly typed number, such as 0.0, takes the type it gets."""

    def strong(x, after):
        if is_value(x) or is_value(after) or jnp.shape(x) != after.shape:
            return x
        if values.typeof(x).weak_type and jnp.result_type(x) != after.dtype:
            x = jax.ShapeDtypeStruct(after.shape, after.dtype)
        return x

    (xs, tree), (ys, other) = values.flatten(old), values.flatten(new)
    if tree == other:
        wide = list(map(strong, xs, ys))
        old = old if all(map(operator.is_, wide, xs)) else tree.unflatten(wide)
    return _common_tree(frame, old, new, what)


def _check_modes(writes, modes: list[str], loop: str, better: str) -> None:
    for q, w in writes.items():
        if w.mode in modes:
            what = f"{quoted(q)} is written with mode {w.mode!r} inside {loop}"
            hint = f'write it with mode="{better}", or outside of the loop'
            raise TransformError(what, where=w.where, hint=hint)


def _unwritten(write: Write) -> Write:
    """The start of a fold: nothing yet, of the types it will have."""
    flag = jnp.zeros(() if write.written is None else write.written.shape, bool)
    flag = compat.match_devices(flag, write.written, *jax.tree.leaves(write.value))
    return replace(write, value=zeros(write.value), written=flag)


def _fold_in(frame, old: Write, new: Write) -> Write:
    """fold, for the state of a loop: the flag stays an array, the line the first one's."""
    new = fold(old, new, frame.added)
    flag = compat.match_devices(spread(new.written, old.written.shape), old.written)
    return replace(new, written=flag, where=old.where)


def _masked(frame, write: Write, go) -> Write:
    """A write of one step, where only some lanes are still at work."""

    def wide(x):
        if _has_lanes(x, go):
            x = values.in_rows(frame, x, go.shape, "a choice of lanes")
        else:
            x = values.as_rows(frame, x, go.ndim, "a choice of lanes")
            x = jax.tree.map(lambda x: jnp.broadcast_to(x, go.shape + jnp.shape(x)), x)
        return x if is_value(x) or write.mode != "sum" else select(go, x, zeros(x))

    value = values.each(wide, write.value)
    shape = max(go.shape, jnp.shape(write.written) if write.written is not None else (), key=len)
    return replace(write, value=value, written=spread(go, shape) & spread(write.written, shape))


# ---------------------------------------------------------------- devices


def _map(view: compat.Map, book, frame, args):
    run = book.body(view.body, frame)
    root = None if frame.key is None else frame.next_key(shared=True)
    same = PartitionSpec()
    eqn, outer = frame.eqn, frame.outer
    feeds = {q: _by_row(value) for q, value in frame.feeds.items()}
    split = {q: _spec_of(value, view.axes) for q, value in feeds.items()}
    feeds = {
        q: frame.feeds[q] if split[q] == same else compat.lay_out(_cut(frame, x), eqn, split[q])
        for q, x in feeds.items()
    }
    seen: dict = {}
    args = [_by_device(frame, x, said) for x, said in zip(args, view.in_axes, strict=True)]

    def one(frame, feeds, *args):
        frame.eqn, frame.outer, frame.book = eqn, outer, book
        inner = frame.enter()
        inner.feeds = {
            q: x if split[q] == same else jax.tree.map(lambda x: x[0], x) for q, x in feeds.items()
        }
        outs, end = run(inner, list(args))
        outs = [_by_device(inner, x, said) for x, said in zip(outs, view.out_axes, strict=True)]
        carries = zip(*map(jax.tree.leaves, (end.carry, inner.carry)), strict=False)
        if any(new is not old and view.lanes(new) for new, old in carries):
            what = "the carry differs between the devices of a shard_map"
            raise inner.error(what, "lax.psum what goes into it, or write it instead")
        end.writes = values.each(lambda x: _differing(inner, x, view), end.writes)
        seen["changed"] = end.changed
        seen["specs"] = jax.tree.map(
            lambda x: PartitionSpec(view.lanes(x)) if view.lanes(x) else same, end.writes
        )
        writes = jax.tree.map(lambda x: x[None] if view.lanes(x) else x, end.writes)
        return outs, (end.carry, writes)

    start = Frame(frame.carry, shared=frame.shared, key=root)
    start.devices = (*frame.devices, *_drawing(view, book, frame)) if root is not None else ()
    probe = view.wrap(lambda *a: (one(*a)[0], ()), (same, split), ())
    jax.eval_shape(probe, start, feeds, *args)
    mapped = view.wrap(one, (same, split), (same, seen["specs"]))
    outs, (frame.carry, writes) = mapped(start, feeds, *args)
    frame.changed = frame.changed or seen["changed"]
    for q, w in writes.items():
        frame.put(q, w)
    return outs


def _by_device(frame, x, axes):
    """What a shard_map cuts along axes, field by field; the array, of a value of other shapes."""
    sizes = tuple(values.typeof(x).shape)
    return values.in_rows(frame, x, sizes, "a cut into parts") if axes else x


def _differing(frame, x, view):
    """What a device wrote, to be stacked; all fields of a value, if any differ."""
    if not is_value(x) or not any(map(view.lanes, jax.tree.leaves(x))):
        return x
    (x,) = _stackable(frame, [x])
    leaves = jax.tree.leaves(x)
    return jax.tree.map(lambda leaf: compat.match_devices(leaf, *leaves), x)


def _drawing(view: compat.Map, book, frame) -> list:
    """The mesh axes along which each device draws keys of its own.

    All of them, but for those along which a result that comes of a draw is said to be the same:
    its copies would differ.
    """

    none, draws = frozenset(), []

    def differs(eqn, facts):
        ruled = eqn.primitive in book.rules and not getattr(eqn.primitive, "shared", False)
        draws.extend([eqn] * ruled)
        drawn = frozenset(view.axes) if ruled else none
        return [drawn.union(*facts) - view.united(eqn)] * len(eqn.outvars)

    facts = [none] * len(view.body.jaxpr.invars)
    outs, _ = analyze(view.body, facts, differs, frozenset.union, none)
    same = none.union(*(fact - said for fact, said in zip(outs, view.out_axes, strict=True)))
    if same:
        axes = ", ".join(f"`{axis}`" for axis in view.axes if axis in same)
        why = f"out_specs say that a result which depends on them is the same along {axes}"
        note(f"random keys are the same along {axes}", compat.where(draws[0], frame.eqn), why)
    return [axis for axis in view.axes if axis not in same]


def _spec_of(value, axes: dict) -> PartitionSpec:
    """How a feed is cut: along the mesh axes that have the size of its leading axis, if any."""
    sizes = _lengths(value)
    choices = [tuple(axes), *((axis,) for axis in axes)]
    for choice in choices:
        if sizes == {(math.prod(axes[a] for a in choice),)}:
            return PartitionSpec(choice)
    return PartitionSpec()


_CROSSINGS = {
    compat.CustomJvp: custom_jvp,
    compat.CustomVjp: custom_vjp,
    compat.Branch: _branch,
    compat.Scan: _scan,
    compat.While: _while,
    compat.Map: _map,
}
