"""How a frame crosses control flow. Written once, for every transformation.

              carry             feeds             shared  key                  writes
  Call        in, out           in                in      counter threaded     out
  Custom*     in, out           in                in      counter threaded     out
  Branch      in, out           in                in      counter, the most    out; masked where a
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
import jax.numpy as jnp
from jax import lax

from malleable import compat
from malleable.core.frame import (
    FOLDED,
    Frame,
    Misfit,
    Write,
    check_same,
    fold,
    lines,
    select,
    signature,
    spell,
    spell_type,
    zeros,
)
from malleable.errors import TransformError
from malleable.notes import note


def cross(book, frame: Frame, args: list) -> list:
    """Run the higher-order equation `frame.eqn` with the frame threaded through its bodies."""
    eqn, outer = frame.eqn, (frame.eqn, *frame.outer)

    def make():
        view = compat.view(eqn)
        enter = _CROSSINGS.get(type(view))
        if enter is None:
            raise cannot_enter(frame, view.why)

        def crossing(inner, args):
            inner.eqn, inner.outer = eqn, outer[1:]
            outs = enter(view, book, inner, args)
            return outs, inner.leave()

        return compat.inlined(crossing)

    for leaf in jax.tree.leaves(frame.carry):
        if not compat.is_array(leaf):
            raise TransformError(
                f"the carry holds a {type(leaf).__name__}, which cannot enter `{eqn.primitive}`",
                where=frame.where,
                hint="keep arrays, numbers and pytrees of them in the carry",
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
    run = book.body(view.body, (frame.eqn, *frame.outer))
    wrapped = view.wrap(lambda frame, *args: run(frame, list(args)))
    return thread(lambda frame, args: wrapped(frame, *args), frame, args)


# ---------------------------------------------------------------- custom derivatives


def _custom_jvp(view: compat.CustomJvp, book, frame, args):
    run = book.body(view.body, (frame.eqn, *frame.outer))
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
    run = book.body(view.body, (frame.eqn, *frame.outer))
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
        what = f"its derivative rule is about the value a transformation changed at {changed}"
        note(f"entered `{frame.eqn.primitive}` without its derivative rule", frame.where, what)
    return bool(changed)


# ---------------------------------------------------------------- branches


def _branch(view: compat.Branch, book, frame, args):
    index, *args = args
    runs = [book.body(b, (frame.eqn, *frame.outer)) for b in view.branches]
    ends = [jax.eval_shape(run, frame.enter(), args)[1] for run in runs]
    for end in ends[1:]:
        check_carry(frame, ends[0].carry, end.carry, "differs between the branches of a cond")
    writes = _union(frame, [end.writes for end in ends])

    def branch(run):
        def aligned(frame, args):
            outs, inner = run(frame, args)
            blank = {q: replace(w, value=zeros(w.value), written=False) for q, w in writes.items()}
            return (
                outs,
                inner.carry,
                {
                    q: (w.value, w.written if writes[q].written is not True else None)
                    for q, w in (blank | inner.writes).items()
                },
            )

        return aligned

    outs, carry, values = lax.switch(index, [branch(run) for run in runs], frame.enter(), args)
    end = Frame(carry, draws=max(end.draws for end in ends))
    end.changed = next(filter(None, (e.changed for e in ends)), "")
    for q, (value, written) in values.items():
        end.writes[q] = replace(
            writes[q], value=value, written=True if written is None else written
        )
    frame.absorb(end)
    return outs


def _union(frame, branches: list[dict]) -> dict[str, Write]:
    """The writes of all branches, as types; `written` is True where every branch is certain."""
    union: dict = {}
    for writes in branches:
        for q, w in writes.items():
            old = union.setdefault(q, w)
            check_same(q, old, w)
            if old.mode != w.mode:
                raise TransformError(
                    f"{spell(q)} is written with two modes ({lines(old, w)})",
                    where=w.where,
                    hint="use one mode for one name",
                )
    for q, w in union.items():
        certain = all(q in writes and writes[q].written is True for writes in branches)
        if not certain and w.mode in ("stack", "unique"):
            raise TransformError(
                f"{spell(q)} is written in some branches of a cond but not in all",
                where=w.where,
                hint='write it in every branch, or with mode="masked" to get (value, written)',
            )
        union[q] = replace(w, written=certain or w.written)
    return union


def check_carry(frame, old, new, what: str) -> None:
    """Raise unless two carries have the same structure, shapes and dtypes."""
    if signature(old) != signature(new):
        raise TransformError(
            f"the carry {what}: {spell_type(old)} and {spell_type(new)}",
            where=frame.where,
            hint="keep its structure, shapes and dtypes; start it with the type it ends with",
        )


# ---------------------------------------------------------------- loops


def _scan(view: compat.Scan, book, frame, args):
    consts, carry, xs = view.split(args)
    run = book.body(view.body, (frame.eqn, *frame.outer))
    root = None if frame.key is None else frame.next_key()
    feeds, misfits = _slices(frame.feeds, view.length, f"the scan runs {view.length} steps")

    def one(mine, i, feeds, carry, xs):
        key = None if root is None else jax.random.fold_in(root, i)
        inner = Frame(mine, feeds | misfits, frame.shared, key)
        outs, end = run(inner, [*consts, *carry, *xs])
        return outs[: len(carry)], outs[len(carry) :], end

    slices = jax.tree.map(compat.slice_type, (feeds, xs))
    *_, end = jax.eval_shape(one, frame.carry, jnp.int32(0), slices[0], carry, slices[1])
    check_carry(frame, frame.carry, end.carry, "changes its type inside a scan")
    stacked = {q for q, w in end.writes.items() if w.mode not in FOLDED}
    for q in stacked:
        if end.writes[q].mode == "unique":
            raise _in_loop(q, end.writes[q], "a scan", "stack")

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
        certain = q in folded and end.writes[q].written is True and view.length > 0
        frame.put(q, replace(w, written=True) if certain else w)
    return [*carry, *ys]


def _while(view: compat.While, book, frame, args):
    cond_consts, body_consts, carry = view.split(args)
    outer = (frame.eqn, *frame.outer)
    run_test, run_body = book.body(view.cond, outer), book.body(view.body, outer)
    root = None if frame.key is None else frame.next_key()
    _, frame.feeds = _slices(frame.feeds, None, "a while loop has no known length")

    def one(mine, i, carry):
        key = None if root is None else jax.random.fold_in(root, i)
        inner = Frame(mine, frame.feeds, frame.shared, key)
        outs = thread(run_body, inner, [*body_consts, *carry])
        (go,) = thread(run_test, inner, [*cond_consts, *outs])
        return outs, go, inner.leave()

    # the test runs once before the loop, then at the end of each step: so it may have state too
    before = frame.carry
    (go,) = thread(run_test, frame, [*cond_consts, *carry])
    *_, end = jax.eval_shape(one, before, jnp.int32(0), carry)
    check_carry(frame, before, end.carry, "changes its type inside a while loop")
    for q, w in end.writes.items():
        if w.mode not in FOLDED:
            raise _in_loop(q, w, "a while loop, whose length is unknown", "last")

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


def _in_loop(name, write, loop: str, mode: str) -> TransformError:
    return TransformError(
        f"{spell(name)} is written with mode {write.mode!r} inside {loop}",
        where=write.where,
        hint=f'write it with mode="{mode}", or outside of the loop',
    )


def _unwritten(write: Write, lanes=()) -> Write:
    return replace(write, value=zeros(write.value), written=jnp.zeros(lanes, bool))


def _fold_in(old: Write, new: Write) -> Write:
    """fold, for the state of a loop: the flag stays an array, the line the first one's."""
    new = fold(old, new)
    flag = jnp.broadcast_to(jnp.asarray(new.written), jnp.shape(old.written))
    return replace(new, written=flag, where=old.where)


def _masked(write: Write, go) -> Write:
    """A write of one step, where only some lanes are still at work."""
    value = select(go, write.value, zeros(write.value)) if write.mode == "sum" else write.value
    return replace(write, value=value, written=jnp.logical_and(go, write.written))


# ---------------------------------------------------------------- devices


def _map(view: compat.Map, book, frame, args):
    run = book.body(view.body, (frame.eqn, *frame.outer))
    root = frame.next_key() if frame.key is not None else None
    split, same = compat.mesh_specs(view.axes)
    feeds, whole = _slices(frame.feeds, view.size, f"the mesh has {view.size} devices")
    seen: dict = {}

    def one(frame, feeds, *args):
        inner = frame.enter()
        inner.feeds = frame.feeds | jax.tree.map(lambda x: x[0], feeds)
        for axis in view.axes if root is not None else ():
            inner.key = jax.random.fold_in(inner.key, lax.axis_index(axis))
        outs, end = run(inner, list(args))
        seen["specs"] = jax.tree.map(lambda x: compat.mesh_specs(view.lanes(x))[0], end.writes)
        seen["changed"] = end.changed
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


def cannot_enter(frame: Frame, why: str) -> TransformError:
    return TransformError(
        f"a rule applies to something inside `{frame.eqn.primitive}`, which cannot be entered: {why}",
        where=frame.where,
        hint="move the marked calls outside of it, or give the primitive itself a rule",
    )


_CROSSINGS = {
    compat.Call: _call,
    compat.CustomJvp: _custom_jvp,
    compat.CustomVjp: _custom_vjp,
    compat.Branch: _branch,
    compat.Scan: _scan,
    compat.While: _while,
    compat.Map: _map,
}
