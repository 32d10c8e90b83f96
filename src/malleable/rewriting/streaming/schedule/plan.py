"""How a region is run: one step, or one block of steps, of the stream at a time.

The state of the stream is what the sinks have so far. A step takes the state and one block of each
source, and gives the state after it and the blocks of what escapes.
"""

import functools
import itertools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.rewriting.axis import picks
from malleable.rewriting.graph.graph import Node
from malleable.rewriting.graph.slices import Ax, slice_shape, unstack
from malleable.rewriting.streaming.region.region import (
    Alias,
    Carried,
    Ended,
    Fed,
    Joined,
    Kept,
    Mapped,
    Region,
    Window,
    axes_of,
)
from malleable.rewriting.streaming.schedule.blocks import on_blocks
from malleable.rewriting.streaming.schedule.deferred import is_plain_sum
from malleable.rewriting.streaming.schedule.masks import (
    elements,
    index,
    is_tame,
    last_of,
    share,
    within,
)
from malleable.rewriting.streaming.schedule.rescale import moments, rescaled, result_of, sums_for


@dataclass
class Segment:
    """Equations that are run slice by slice in one go, and what others need of their results."""

    window: Window
    nodes: list[Node]
    ins: list
    outs: list[int]


class Plan:
    """A region put in order. Values are looked up in an environment {value: block or array}.

    sources: (value, axis, window) of what is cut into slices; wholes: values seen whole;
    beside: those of them that are streams themselves, as the scan stacks them;
    escapes: values with the axis that leave stacked; single: whether it must go step by step;
    delayed: (value, d) of slices needed d steps later; handed: the carry that is one of these,
    of carries: {what the scan stacks: the carry that it is}.
    """

    def __init__(self, region: Region, carries: Mapping[int, int] | None = None):
        self.region, self.graph, self.n = region, region.graph, region.n
        self.full = region.full
        made = {v for node in region.actions for v in node.outs}
        self.beside = [
            v for v in region.streams if v not in made and self.graph.maker[v] in region.pulled
        ]
        self.sources = list(
            dict.fromkeys([*region.sources(), *((v, Ax(0), self.full) for v in self.beside)])
        )
        self.wholes = list(region.wholes())
        self.escapes = list(region.escapes())
        self.results = list(region.results())
        marks = [m for s in region.streams.values() for m in s.marks]
        self.centers = {m.by for m in marks if m.kind == "power"}
        self.near = {m.by: ("near", m.by) for m in marks if m.kind == "power" and m.power == 2}
        self.windows = {m.by: s.window for s in region.streams.values() for m in s.marks}
        self.marks = {m.by: m for m in marks if m.kind in ("shift", "scale", "power")}
        self.in_step = self._needed_in_step()
        self.single = any(
            isinstance(a, Joined) or (isinstance(a, Mapped) and any(a.delays))
            for a in region.actions.values()
        ) or any(s.window != self.full for s in region.streams.values())
        self.order = self._schedule()
        self.delayed = {
            (v, d)
            for node, a in region.actions.items()
            if isinstance(a, Mapped)
            for v, d in zip(node.ins, a.delays, strict=True)
            if d
        }
        windows = [s.window for s in region.streams.values()]
        self.before = max(0, -min((w.start for w in windows), default=0))
        self.behind = max(0, max(map(last_of, windows), default=0) - self.n + 1)
        self.handed = self._handed(carries or {})

    def _handed(self, carries: Mapping[int, int]) -> dict:
        """What is delayed and a carry: {(value, steps): which carry}."""
        found = {}
        for v, d in self.delayed if not self.before + self.behind else ():
            whole = self.carry_of(v)
            if d == 1 and whole in carries:
                found[v, d] = carries[whole]
        return found

    def _needed_in_step(self) -> set[Node]:
        """The equations without the axis whose provisional results a step needs."""
        actions = self.region.actions
        needed = [
            v
            for node, a in actions.items()
            if isinstance(a, Mapped | Carried | Ended)
            for v in node.ins
        ]
        fed = {node for node, a in actions.items() if isinstance(a, Fed)}
        found = self.graph.reach([*needed, *self.marks], fed.__contains__)
        return {node for node in fed if not found.isdisjoint(node.outs)}

    # ------------------------------------------------------------ order

    def _schedule(self) -> list:
        """Segments, and single equations that see blocks, so that operands come first."""
        actions, todo = self.region.actions, list(self.region.actions)
        todo = [n for n in todo if not isinstance(actions[n], Fed) or n in self.in_step]
        made = {v for node in todo for v in node.outs}
        order: list = []
        while todo:
            run, rest = [], []
            for node in todo:
                held = any(v in made for v in node.ins)
                if not held and isinstance(actions[node], Mapped | Alias):
                    run.append(node)
                    made.difference_update(node.outs)
                else:
                    rest.append(node)
            order.extend(self._segments(run))
            todo = []
            for node in rest:
                if any(v in made for v in node.ins) or isinstance(actions[node], Mapped | Alias):
                    todo.append(node)
                else:
                    order.append(node)
                    made.difference_update(node.outs)
            assert len(todo) < len(run) + len(rest)
        return order

    def _segments(self, run):
        """One segment per window, as they follow each other."""
        window_of = lambda node: self.region.streams[node.outs[0]].window  # noqa: E731
        for window, group in itertools.groupby(run, window_of):
            nodes = list(group)
            inside, ins, outs = set(), {}, []
            for node in nodes:
                action = self.region.actions[node]
                alias = isinstance(action, Alias)
                for i in [action.operand] if alias else range(len(node.ins)):
                    key = self._key(node, i)
                    if key is not None and (isinstance(key, tuple) or key not in inside):
                        ins[key] = None
                inside.update(node.outs)
            away = [
                self.graph.maker[self.graph.maker[node.ins[0]].ins[0]]
                for node, a in self.region.actions.items()
                if any(m.kind == "power" for m in getattr(a, "marks", ()))
            ]
            powers = {v for node in away for v in (node.ins[0], *node.outs)}
            for v in inside:
                away = any(u not in nodes for u in self.graph.users(v))
                if away or v in self.escapes or v in powers:
                    outs.append(v)
            yield Segment(window, nodes, list(ins), outs)

    def _key(self, node, i):
        """Under which key a step finds operand i as a block; None for a whole one."""
        v, action = node.ins[i], self.region.actions[node]
        if v in self.region.streams:
            delay = action.delays[i] if isinstance(action, Mapped) else 0
            return (v, delay) if delay else v
        ax = axes_of(action, node)[i]
        return None if ax is None else (v, ax, action.window)

    # ------------------------------------------------------------ state

    def init(self, wholes: dict) -> dict:
        """The state before the first step."""
        shapes = self._abstract()
        state: dict = OrderedDict()
        for node, action in self.region.actions.items():
            if isinstance(action, Ended | Carried):
                avals = [shapes[self._key(node, i)] for i in self._operands(node, action)]
                powers = [m for m in getattr(action, "marks", ()) if m.kind == "power"]
                first: Any = action.sink.init(action.spec, *avals)
                state[node] = (first,) * sums_for(powers[0]) if powers else first
            elif isinstance(action, Kept):
                aval = shapes[self._key(node, 0)]
                zero = jnp.zeros(aval.shape[1:], aval.dtype)
                if node.name == "gather":
                    zero = picks.nothing(node.eqn)
                state[node] = compat.match_devices(zero, aval)
        for v, d in self.delayed - self.handed.keys():
            aval = shapes[v]
            zero = compat.match_devices(jnp.zeros(aval.shape[1:], aval.dtype), aval)
            state[v, d] = (zero,) * d
        env = self.feed(dict(wholes), state, lambda window: None)
        for v in self.marks:
            state["by", v] = env[v]
        return state

    def carry_of(self, v: int) -> int:
        """The stream that a slice of one step ago is a part of."""
        while (node := self.graph.maker[v]) is not None and node.name == "slice":
            if not isinstance(self.region.actions.get(node), Alias):
                break
            (v,) = node.ins
        return v

    def _operands(self, node, action):
        return [i for i, ax in enumerate(axes_of(action, node)) if ax is not None]

    def _abstract(self):
        """The types of all blocks of one step."""
        region, shapes = self.region, {}
        for v, s in region.streams.items():
            aval = self.graph.avals[v]
            shape = (1, *slice_shape(aval.shape, s.ax, s.window.count))
            shapes[v] = aval.update(shape=shape)
        for v, ax, window in self.sources:
            aval = self.graph.avals[v]
            shape = (1, *slice_shape(aval.shape, ax, window.count))
            shapes[v, ax, window] = aval.update(shape=shape)
        return shapes

    # ------------------------------------------------------------ one step

    def step(self, state: dict, blocks: dict, wholes: dict, t, k: int | None):
        """(state, {escape: block}) after k steps from t on; k None: one step, slices not blocks."""
        region, new = self.region, OrderedDict(state)
        env: dict = dict(blocks)
        env |= {v: env[v, Ax(0), self.full] for v in self.beside if (v, Ax(0), self.full) in env}
        env |= {key: wholes[key] for key in self.near.values() if key in wholes}
        fed = dict(wholes)
        for v, d in self.delayed - self.handed.keys():
            env[v, d] = state[v, d][0]
        for item in self.order:
            if isinstance(item, Segment):
                self._run_segment(item, env, fed, t, k)
                continue
            action = region.actions[item]
            if isinstance(action, Fed):
                continue
            self._run_block(item, action, env, fed, state, new, t, k)
            self.feed(
                fed, new, functools.partial(share, self.region.reverse, t, k), only=self.in_step
            )
            for v in self.marks:
                if v in fed:
                    if v in self.centers:
                        fed[v] = self._center(v, fed[v], state["by", v], t, k)
                    new["by", v] = fed[v]
        for v, d in self.delayed - self.handed.keys():
            new[v, d] = (*state[v, d][1:], env.get(v, state[v, d][-1]))  # behind: none is needed
        return new, {v: env[v] for v in self.escapes if v in env}

    def _run_segment(self, segment, env, fed, t, k):
        region = self.region
        ins = segment.ins
        if any(key not in env for key in ins):
            return  # before the stream, or behind it: not all is at hand
        here = index(segment.window, t)

        def one(j, *slices):
            local = dict(zip(ins, slices, strict=True))
            for node in segment.nodes:
                action = region.actions[node]
                if isinstance(action, Alias):
                    local[node.outs[0]] = local[self._key(node, action.operand)]
                    continue
                args = []
                for i, v in enumerate(node.ins):
                    key = self._key(node, i)
                    args.append(self._whole(fed, v) if key is None else local[key])
                local.update(zip(node.outs, action.flow.run(j, *args), strict=True))
            return [local[v] for v in segment.outs]

        slices = [env[key] for key in ins]
        if all(isinstance(region.actions[node], Alias) for node in segment.nodes):
            outs = one(here, *slices)
        elif k is None:
            tame = all(is_tame(node, region.actions[node]) for node in segment.nodes)
            run = functools.partial(one, here)
            outs = within(segment.window, self.n, t, run, slices, tame=tame)
        else:
            j, look = here + jnp.arange(k, dtype=jnp.int32), functools.partial(self._whole, fed)
            outs = on_blocks(segment, region.actions, self._key, look, j, slices)
        if outs is not None:
            env.update(zip(segment.outs, outs, strict=True))

    def _whole(self, fed, v) -> Any:
        return fed[v] if v in fed else self.graph.value(v)

    def _run_block(self, node, action, env, fed, state, new, t, k):
        """An equation that sees blocks: a sink, a running sum, a join, one element."""
        if isinstance(action, Joined):
            return self._join(node, action, env, fed, t)
        keys = [self._key(node, i) for i in self._operands(node, action)]
        keys = keys if not isinstance(action, Kept) else [self._key(node, 0)]
        if any(key not in env for key in keys):
            return None
        slices = [env[key] for key in keys]
        blocks = [x[None] for x in slices] if k is None else slices
        here = index(action.window, t)
        match action:
            case Kept():
                new[node] = self._keep(node, action, blocks[0], state[node], t, k, fed)
            case Ended():

                def advance(acc, *blocks):
                    return [self._advance(node, action, acc, blocks, env, state, new, here, k)]

                if k is None:
                    old, tame = new[node], is_plain_sum(action)
                    run = functools.partial(advance, old)
                    found: Any = within(action.window, self.n, t, run, blocks, [old], tame)
                    new[node] = found[0]
                else:
                    new[node] = advance(new[node], *blocks)[0]
            case Carried(sink, spec):
                acc, out = sink.step(spec, new[node], here, *blocks)
                new[node] = acc
                env[node.outs[0]] = out[0] if k is None else out
        return None

    def _join(self, node, action, env, fed, t):
        """The element of a concatenation: the stream's own, or a row of what is joined to it."""
        stream = self.region.streams[node.outs[0]]
        here = next(i for i, v in enumerate(node.ins) if v in self.region.streams)
        if not isinstance(t, int):
            env[node.outs[0]] = env[node.ins[here]]
            return
        for i, (start, many) in enumerate(action.places):
            if start <= t < start + many:
                if i == here:
                    env[node.outs[0]] = env[node.ins[here]]
                else:
                    row = self._whole(fed, node.ins[i])
                    row = lax.index_in_dim(row, t - start, stream.ax.dim, keepdims=False)
                    env[node.outs[0]] = row

    def _keep(self, node, action, block, old, t, k, fed):
        at = action.at
        if node.name == "gather":
            ax = self.region.streams[node.ins[0]].ax
            return picks.pick(node.eqn, ax, self.n, block, self._whole(fed, node.ins[1]), old, t)
        if at is None:
            at = self._whole(fed, node.ins[action.index])
            at = jnp.clip(picks.wide(at), 0, self.n - 1).astype(jnp.int32)
        elif isinstance(t, int):
            return block[0] if t == at else old
        elif k is None and at == (0 if self.region.reverse else self.n - 1):
            return block[0]
        if k is None:
            return jnp.where(t == at, block[0], old)
        inside = (t <= at) & (at < t + k)
        found = lax.dynamic_index_in_dim(block, jnp.clip(at - t, 0, k - 1), 0, keepdims=False)
        return jnp.where(inside, found, old)

    def prologue(self, state, at: dict, wholes: dict, times) -> tuple[dict, list[dict]]:
        """The steps at which only what was joined to the stream is at hand."""
        rows = []
        for t in times:
            state, gone = self.step(state, self.sources_at(at, t), wholes, t, None)
            rows.append(gone)
        return state, rows

    def sources_at(self, at: dict, t: int) -> dict:
        blocks = {}
        for v, ax, window in self.sources:
            j, off = divmod(t - window.start, window.step)
            if 0 <= j < window.count and not off:
                slices = unstack(at[v], ax, window.count)
                blocks[v, ax, window] = lax.index_in_dim(slices, j, keepdims=False)
        return blocks

    # ------------------------------------------------------------ sinks and feedback

    def _advance(self, node, action, acc, blocks, env, state, new, here, k):
        for mark in action.marks:
            if mark.kind not in ("power", "scale"):
                continue
            moved = state["by", mark.by], new["by", mark.by]
            if mark.kind == "power":
                away = self.graph.maker[self.graph.maker[node.ins[0]].ins[0]]
                x, d = env[self._key(away, 0)], env[away.outs[0]]
                x, d = (x[None], d[None]) if k is None else (x, d)
                if (near := env.get(("near", mark.by))) is not None:
                    minus = functools.partial(self.region.actions[away].flow.run, here)
                    (x,) = jax.vmap(minus, (0, None))(x, near)
                rest = action.window.count - (k or 1) - here
                rows = rest if self.region.reverse else here
                return moments(action, mark, acc, x, d, here, rows, *moved)
            acc = rescaled(acc, mark, *moved)
        return action.sink.step(action.spec, acc, here, *blocks)

    def final(self, state: dict, wholes: dict) -> dict:
        """The results of the sinks, by value."""
        env = dict(wholes)
        self.feed(env, state, lambda window: 1)
        return {v: env[v] for v in self.results}

    def _center(self, by: int, now, old, t, k):
        """The mean so far, whenever there are twice as many elements: each move rounds all sums."""
        rows = elements(self.region.reverse, t, k, self.windows[by])
        before = jnp.maximum(0, rows - (k or 1))
        return lax.stop_gradient(jnp.where((rows ^ before) > before, now, old))

    def feed(self, env, state, times: Callable, only: set | None = None):
        """Results so far, and what is worked out from them. times: see `result_of`, of a window."""
        env |= {("center", v): state["by", v] for v in self.centers if ("by", v) in state}
        inside = {
            u
            for u, a in self.region.actions.items()
            if u in self.in_step or isinstance(a, Mapped | Carried)
        }
        for node, action in self.region.actions.items():
            match action:
                case Ended() | Kept():
                    users = (u for v in node.outs for u in self.graph.users(v))
                    marked = any(v in self.marks for v in node.outs)
                    if only is not None and not marked and not any(u in inside for u in users):
                        continue
                    part = times(action.window)
                    results = result_of(self.graph, node, action, state[node], env, part)
                    env.update(zip(node.outs, results, strict=True))
                case Fed():
                    if only is None or node in only:
                        args = [self._whole(env, v) for v in node.ins]
                        if all(a is not None for a in args):
                            env.update(zip(node.outs, compat.copy(node.eqn, args), strict=True))
        return env
