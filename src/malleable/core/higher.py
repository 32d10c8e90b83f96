"""How a frame crosses control flow. Written once, for every transformation.

              carry             feeds             shared  key                  writes
  Call        in, out           in                in      count threaded       out
  Custom*     in, out           in                in      count threaded       out
  Branch      in, out           in                in      count, the most      out; masked where a
                                                          any branch drew      branch has none
  Scan        around the loop   one slice a step  in      a root per step      stacked or folded
  While       around the loop   none              in      a root per step      folded
  Map         in, out (same     one slice a       in      a root per device    stacked over the axes
              on each device)   device                                         along which they differ

Control flow is rebuilt with the public functions of JAX, never by filling in the params of its
primitives: the functions keep their signature when the params change.
"""

from dataclasses import replace

import jax
from jax import lax
from jax import numpy as jnp
from jax.sharding import PartitionSpec

from malleable import compat
from malleable.core import frame as frames
from malleable.core.frame import FOLDED, Frame, Misfit, Write, fold, select, spell, zeros
from malleable.errors import TransformError
from malleable.notes import note


def cross(book, frame: Frame, args: list) -> list:
    """Run the higher-order equation `frame.eqn` with the frame threaded through its bodies."""
    eqn, outer = frame.eqn, frame.outer

    def make():
        view = compat.view(eqn)
        if isinstance(view, compat.Opaque):
            raise frame.error(
                f"a rule applies inside `{eqn.primitive}`, which cannot be entered: {view.why}",
                "move the marked calls outside of it, or give the primitive itself a rule",
            )

        def crossing(inner, args):
            inner.eqn, inner.outer = eqn, outer
            return _CROSSINGS[type(view)](view, book, inner, args), inner.leave()

        return compat.inlined(crossing)

    for leaf in jax.tree.leaves(frame.carry):
        if not compat.is_array(leaf):
            raise frame.error(
                f"the carry holds a {type(leaf).__name__}, which cannot enter `{eqn.primitive}`",
                "keep arrays, numbers and pytrees of them in the carry",
            )
    return thread(book.remember(compat.same_program(eqn), make), frame, args)


def thread(run, frame: Frame, args: list) -> list:
    """run(frame, args), with the frame going on from what it handed back."""
    outs, inner = run(frame.enter(), args)
    frame.absorb(inner)
    return outs


def _call(view: compat.Call, book, frame, args):
    if view.lost:
        note(f"entered `{frame.eqn.primitive}`", frame.where, f"it lost {view.lost}")
    run = book.body(view.body, frame)
    wrapped = view.wrap(lambda frame, *args: run(frame, list(args)))
    return thread(lambda frame, args: wrapped(frame, *args), frame, args)


# ---------------------------------------------------------------- custom derivatives


def _custom_jvp(view: compat.CustomJvp, book, frame, args):
    run = book.body(view.body, frame)
    if _changed(run, frame, args):
        return thread(run, frame, args)
    call = jax.custom_jvp(lambda frame, args: run(frame, args))

    @call.defjvp
    def rule(primals, tangents):
        (frame, args), (_, dargs) = primals, tangents
        outs, douts = book.under(view.jvp)(frame, args, dargs)
        left, dleft = jax.jvp(lambda frame, args: run(frame, args)[1], primals, tangents)
        return (outs, left), (douts, dleft)

    return thread(call, frame, args)


def _custom_vjp(view: compat.CustomVjp, book, frame, args):
    run = book.body(view.body, frame)
    if _changed(run, frame, args):
        return thread(run, frame, args)
    call = jax.custom_vjp(lambda frame, args: run(frame, args))

    def fwd(frame, args):
        outs, res = book.under(view.fwd)(frame, *args)
        left, pull = jax.vjp(lambda frame, args: run(frame, args)[1], frame, args)
        return (outs, left), (res, pull)

    def bwd(kept, cts):
        (res, pull), (couts, cleft) = kept, cts
        cframe, cargs = pull(cleft)  # what is written inside is differentiated as it is computed
        return cframe, list(map(compat.add_tangents, view.bwd(res, couts), cargs))

    call.defvjp(fwd, bwd)
    return thread(call, frame, args)


def _changed(run, frame, args) -> bool:
    """Whether a rule changes a value inside, so that the derivative rule no longer applies."""
    changed = jax.eval_shape(run, frame.enter(), args)[1].changed
    if changed:
        why = f"the rule is about a value that a transformation changed at {changed}"
        note(f"entered `{frame.eqn.primitive}` without its derivative rule", frame.where, why)
    return bool(changed)


# ---------------------------------------------------------------- branches


def _branch(view: compat.Branch, book, frame, args):
    index, *args = args
    runs = [book.body(b, frame) for b in view.branches]
    ends = [jax.eval_shape(run, frame.enter(), args)[1] for run in runs]
    for end in ends[1:]:
        _check_carry(frame, ends[0].carry, end.carry, "differs between the branches of a cond")
    union = _union([end.writes for end in ends])

    def aligned(run):
        def branch(frame, args):
            outs, inner = run(frame, args)
            blank = {q: replace(w, value=zeros(w.value), written=False) for q, w in union.items()}
            writes = {q: (w.value, _flag(w, union[q])) for q, w in (blank | inner.writes).items()}
            return outs, inner.carry, writes

        return branch

    outs, carry, writes = lax.switch(index, list(map(aligned, runs)), frame.enter(), args)
    changed = next(filter(None, (end.changed for end in ends)), "")
    end = Frame(carry, draws=max(end.draws for end in ends), changed=changed)
    for q, (value, written) in writes.items():
        end.writes[q] = replace(union[q], value=value, written=written)
    frame.absorb(end)
    return outs


def _union(branches: list[dict]) -> dict:
    """The writes of all branches, as types; `written` is None where every branch is certain."""
    union: dict = {}
    for writes in branches:
        for q, w in writes.items():
            frames.check_same(q, union.setdefault(q, w), w)
    for q, w in union.items():
        if all(q in writes and writes[q].written is None for writes in branches):
            continue
        if w.mode in ("stack", "unique"):
            raise TransformError(
                f"{spell(q)} is written in some branches of a cond but not in all",
                where=w.where,
                hint='write it in every branch, or with mode="masked" to get (value, written)',
            )
        union[q] = replace(w, written=True)
    return union


def _flag(write: Write, like: Write):
    """Whether a value was written, in the form all branches agree on."""
    if like.written is None:
        return None
    return jnp.asarray(True if write.written is None else write.written)


def _check_carry(frame, old, new, what: str) -> None:
    if frames.signature(old) != frames.signature(new):
        raise frame.error(
            f"the carry {what}: {frames.spell_type(old)} and {frames.spell_type(new)}",
            "keep its structure, shapes and dtypes; start it with the type it ends with",
        )


# ---------------------------------------------------------------- loops


def _scan(view: compat.Scan, book, frame, args):
    consts, carry, xs = view.split(args)
    run = book.body(view.body, frame)
    root = None if frame.key is None else frame.next_key()
    feeds, misfits = _slices(frame.feeds, view.length, f"the scan runs {view.length} steps")

    def one(mine, i, feeds, carry, xs):
        inner = Frame(mine, feeds | misfits, frame.shared, _fold_key(root, i))
        outs, end = run(inner, [*consts, *carry, *xs])
        return outs[: len(carry)], outs[len(carry) :], end

    slices = jax.tree.map(compat.slice_type, (feeds, xs))
    *_, end = jax.eval_shape(one, frame.carry, jnp.int32(0), slices[0], carry, slices[1])
    _check_carry(frame, frame.carry, end.carry, "changes its type inside a scan")
    _check_modes(end.writes, "unique", "a scan", "stack")
    stacked = [q for q, w in end.writes.items() if w.mode not in FOLDED]

    def step(state, x):
        carry, mine, folded = state
        carry, ys, end = one(mine, *x[:2], carry, x[2])
        folded = {q: _fold_in(w, end.writes[q]) for q, w in folded.items()}
        return (carry, end.carry, folded), (ys, {q: end.writes[q] for q in stacked})

    folded = {q: _unwritten(w) for q, w in end.writes.items() if q not in stacked}
    (carry, frame.carry, folded), (ys, writes) = lax.scan(
        step,
        (carry, frame.carry, folded),
        (jnp.arange(view.length), feeds, xs),
        length=view.length,
        reverse=view.reverse,
        unroll=view.unroll,
    )
    frame.changed = frame.changed or end.changed
    for q, w in (writes | folded).items():
        certain = q in folded and end.writes[q].written is None and view.length > 0
        frame.put(q, replace(w, written=None) if certain else w)
    return [*carry, *ys]


def _while(view: compat.While, book, frame, args):
    tests, consts, carry = view.split(args)
    run_test, run_body = book.body(view.cond, frame), book.body(view.body, frame)
    root = None if frame.key is None else frame.next_key()
    _, frame.feeds = _slices(frame.feeds, None, "a while loop has no known length")

    def one(mine, i, carry):
        inner = Frame(mine, frame.feeds, frame.shared, _fold_key(root, i))
        outs = thread(run_body, inner, [*consts, *carry])
        (go,) = thread(run_test, inner, [*tests, *outs])
        return outs, go, inner.leave()

    # the test runs once before the loop, then at the end of each step: so it may have state too
    before = frame.carry
    (go,) = thread(run_test, frame, [*tests, *carry])
    *_, end = jax.eval_shape(one, before, jnp.int32(0), carry)
    _check_carry(frame, before, end.carry, "changes its type inside a while loop")
    for mode in ("stack", "unique", "masked"):
        _check_modes(end.writes, mode, "a while loop, whose length is unknown", "last")

    def step(state):
        go, i, mine, folded, old = state
        new, again, end = one(mine, i, old)
        mine, writes = end.carry, end.writes
        if jnp.ndim(go):  # one lane per example: those that are done keep what they have
            new, again = select(go, new, old), jnp.logical_and(go, again)
            mine = select(go, mine, state[2])
            writes = {q: _masked(w, go) for q, w in writes.items()}
        folded = {q: _fold_in(w, writes[q]) for q, w in folded.items()}
        return again, i + 1, mine, folded, new

    folded = {q: _unwritten(w, jnp.shape(go)) for q, w in end.writes.items()}
    state = (go, jnp.int32(0), frame.carry, folded, carry)
    _, _, frame.carry, folded, carry = lax.while_loop(lambda s: jnp.any(s[0]), step, state)
    frame.changed = frame.changed or end.changed
    for q, w in folded.items():
        frame.put(q, w)
    return list(carry)


def _slices(feeds, length, why):
    """The feeds that fit a loop of some length, and stand-ins for those that do not."""
    fits, misfits = {}, {}
    for name, value in feeds.items():
        sizes = {jnp.shape(x)[:1] for x in jax.tree.leaves(value)}
        if isinstance(value, Misfit):
            misfits[name] = value
        elif sizes <= {(length,)}:
            fits[name] = value
        else:
            given = ", ".join(str(s[0]) if s else "no leading axis" for s in sorted(sizes))
            misfits[name] = Misfit(f"{why}, the feed has {given}")
    return fits, misfits


def _fold_key(root, i):
    return None if root is None else jax.random.fold_in(root, i)


def _check_modes(writes, mode: str, loop: str, better: str) -> None:
    for q, w in writes.items():
        if w.mode == mode:
            raise TransformError(
                f"{spell(q)} is written with mode {mode!r} inside {loop}",
                where=w.where,
                hint=f'write it with mode="{better}", or outside of the loop',
            )


def _unwritten(write: Write, lanes=()) -> Write:
    return replace(write, value=zeros(write.value), written=jnp.zeros(lanes, bool))


def _fold_in(old: Write, new: Write) -> Write:
    """fold, for the state of a loop: the flag stays an array, the line the first one's."""
    new = fold(old, new)
    written = True if new.written is None else new.written
    return replace(new, written=jnp.broadcast_to(written, old.written.shape), where=old.where)


def _masked(write: Write, go) -> Write:
    """A write of one step, where only some lanes are still at work."""
    value = select(go, write.value, zeros(write.value)) if write.mode == "sum" else write.value
    return replace(write, value=value, written=go if write.written is None else go & write.written)


# ---------------------------------------------------------------- devices


def _map(view: compat.Map, book, frame, args):
    run = book.body(view.body, frame)
    root = None if frame.key is None else frame.next_key()
    feeds, whole = _slices(frame.feeds, view.size, f"the mesh has {view.size} devices")
    same, split = PartitionSpec(), PartitionSpec(view.axes)
    seen: dict = {}

    def one(frame, feeds, *args):
        inner = frame.enter()
        inner.feeds = frame.feeds | jax.tree.map(lambda x: x[0], feeds)
        for axis in view.axes:
            inner.key = _fold_key(inner.key, lax.axis_index(axis))
        outs, end = run(inner, list(args))
        seen["changed"] = end.changed
        seen["specs"] = jax.tree.map(
            lambda x: PartitionSpec(view.lanes(x)) if view.lanes(x) else same, end.writes
        )
        return outs, (
            end.carry,
            jax.tree.map(lambda x: x[None] if view.lanes(x) else x, end.writes),
        )

    start = replace(frame.enter(), key=root, feeds=whole, draws=0)
    probe = view.wrap(lambda *a: (one(*a)[0], ()), (same, split), ())
    jax.eval_shape(probe, start, feeds, *args)
    mapped = view.wrap(one, (same, split), (same, seen["specs"]))
    outs, (frame.carry, writes) = mapped(start, feeds, *args)
    frame.changed = frame.changed or seen["changed"]
    for q, w in writes.items():
        frame.put(q, w)
    return outs


_CROSSINGS = {
    compat.Call: _call,
    compat.CustomJvp: _custom_jvp,
    compat.CustomVjp: _custom_vjp,
    compat.Branch: _branch,
    compat.Scan: _scan,
    compat.While: _while,
    compat.Map: _map,
}
