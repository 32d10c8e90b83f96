"""Writes a program as each device runs it, by a plan of `parts.py`: `Writer(axes).run(...)`.

A value that all devices have is made one that varies over them outside of loops, so that its
gradient is summed once, behind them.
"""

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from malleable import compat
from malleable.programs.primitives import kind
from malleable.programs.types import is_key
from malleable.rewriting.graph.slices import rebind, typed
from malleable.rewriting.sharding.made import drawn_by_place
from malleable.rewriting.sharding.parts import (
    CALLS,
    PLACED,
    SUM,
    VARIED,
    WHOLE,
    Apart,
    Cost,
    PartsPlan,
    State,
    is_part,
    is_undivided,
    local_shape,
    planned,
    with_bodies_planned,
)

SPREAD = frozenset({"broadcast_in_dim", "iota"})
MADE = SPREAD | {"random_bits"}  # by the place alone
MADE_THERE = SPREAD | VARIED
OPENED = CALLS | kind("control")  # also where all in them is whole


class Axis(NamedTuple):
    """An axis of the mesh, and how the program runs on parts along it."""

    name: str
    count: int
    plan: PartsPlan
    cost: Cost


def _left_of(spec, names: Sequence[str]) -> PartitionSpec:
    """What a spec says of the other axes of the mesh."""
    rest = (tuple(n for n in compat.names_of(entry) if n not in names) for entry in spec)
    return PartitionSpec(*(e[0] if len(e) == 1 else e or None for e in rest))


def on_any_mesh(x):
    """A constant; one that is whole on a mesh as numbers alone: inside, its axes are others."""
    if isinstance(x, compat.Tracer) or not hasattr(x, "dtype"):
        return x
    whole = getattr(x, "is_fully_replicated", True) and not is_key(jax.typeof(x))
    return np.asarray(x) if whole else x


def _once_summed(state: State, want: State) -> State:
    """The state, summed where a user wants the whole sum."""
    return WHOLE if state == SUM and is_undivided(want) else state


class Local:
    """What a device has of a value: an array, and its state along each axis of the mesh."""

    __slots__ = ("maker", "states", "varied", "x")

    def __init__(self, x, states: tuple[State, ...], maker=None, varied=None):
        self.x, self.states = x, states
        self.maker = maker  # (equation, operands) that made it, where it may be made in parts too
        self.varied = varied  # x, as a value that varies over all axes; made outside of loops


class Writer:
    """Writes what each device does, along some axes of a mesh."""

    def __init__(self, axes: Sequence[Axis]):
        self.names = [a.name for a in axes]
        self.counts = [a.count for a in axes]

    def run(self, program, plans: Sequence[PartsPlan], values, consts) -> list[Local]:
        """The results of a program on what a device has."""
        raw = program.jaxpr
        env: dict[Any, Local] = dict(zip(raw.invars, values, strict=True))
        env.update(zip(raw.constvars, consts, strict=True))

        def read(atom) -> Local:
            if isinstance(atom, compat.Literal):
                return Local(on_any_mesh(atom.val), tuple([WHOLE] * len(self.names)))
            return env[atom]

        gathers: dict[Any, Local] = {}
        for i, eqn in enumerate(raw.eqns):
            steps = [plan.steps[i] for plan in plans]
            wants = list(zip(*(step.wants for step in steps), strict=True))
            outs = list(zip(*(step.outs for step in steps), strict=True))
            with self.at(eqn):
                operands = []
                for atom, want in zip(eqn.invars, wants, strict=True):
                    value = read(atom)
                    if not isinstance(atom, compat.Literal):
                        value = self.gathered(gathers, atom, value, want)
                        summed = self.as_(value, tuple(map(_once_summed, value.states, want)))
                        if summed is not value:
                            env[atom] = value = summed  # once for all its users
                    operands.append(self.as_(value, want))
                results = self.step(eqn, steps, operands, outs)
            env.update(zip(eqn.outvars, results, strict=True))
        return [read(v) for v in raw.outvars]

    def at(self, eqn) -> contextlib.AbstractContextManager[None]:
        """Where an equation is written: at its line, on the mesh that is set now."""
        return compat.on_line(eqn)

    # ------------------------------------------------------------ states

    def gathered(self, known: dict, atom, value: Local, want: Sequence[State]) -> Local:
        """The value with the parts of all devices, along the axes where it has to be whole."""
        rows = list(zip(self.names, value.states, want, strict=True))
        names = [(name, int(s)) for name, s, w in rows if is_part(s) and w == WHOLE]
        if not names:
            return value
        key = (atom, *names)
        if key not in known:
            x = value.x
            for name, dim in reversed(names):
                x = compat.gather_parts(x, name, dim)
            states = tuple(WHOLE if is_part(s) and w == WHOLE else s for _, s, w in rows)
            known[key] = Local(x, states)
        return known[key]

    def whole(self, value: Local) -> Local:
        """The value with its sums over the devices made."""
        return self.as_(value, tuple(WHOLE if s == SUM else s for s in value.states))

    def as_(self, value: Local, want: Sequence[State]) -> Local:
        """The value in another state: summed over the devices, or a part cut from what is whole."""
        value = self.scattered(self.on_first(value, want), want)
        sums = [
            name
            for name, s, w in zip(self.names, value.states, want, strict=True)
            if s == SUM and w != SUM
        ]
        if sums:
            states = tuple(
                WHOLE if s == SUM and w != SUM else s
                for s, w in zip(value.states, want, strict=True)
            )
            value = Local(self.summed(value.x, sums), states)
        cuts = [
            (i, int(w))
            for i, (s, w) in enumerate(zip(value.states, want, strict=True))
            if is_part(w) and not is_part(s)
        ]
        if not cuts:
            return value
        states = list(value.states)
        for i, dim in cuts:
            states[i] = dim
        return Local(self.cut(value, cuts), tuple(states))

    def on_first(self, value: Local, want: Sequence[State]) -> Local:
        """The value as a sum where it is to be one: on the first device, and 0 on the others."""
        spread = [i for i, s in enumerate(value.states) if s == WHOLE and want[i] == SUM]
        for i in spread:
            x = self.vary(value, [self.names[i]])
            x = jnp.where(self.is_first(i), x, jnp.zeros_like(x))
            value = Local(x, (*value.states[:i], SUM, *value.states[i + 1 :]))
        return value

    def is_first(self, i: int):
        return lax.axis_index(self.names[i]) == 0

    def scattered(self, value: Local, want: Sequence[State]) -> Local:
        """The value, summed over the devices where each is to have a part of the sum."""
        if compat.is_explicit():  # JAX 0.12 cannot lower a scatter beside axes of types
            return value
        for i, (name, s, w) in enumerate(zip(self.names, value.states, want, strict=True)):
            if s == SUM and is_part(w) and value.x.shape[int(w)] % self.counts[i] == 0:
                x = lax.psum_scatter(
                    self.vary(value, [name]), name, scatter_dimension=int(w), tiled=True
                )
                value = Local(x, (*value.states[:i], w, *value.states[i + 1 :]))
        return value

    def summed(self, x, names):
        """The sum over the devices along some axes; the same on all of them."""
        x = jnp.asarray(x)
        missing = tuple(n for n in names if n not in compat.varying(x))
        x = lax.pcast(x, missing, to="varying") if missing else x
        return lax.psum(x, tuple(names))

    def cut(self, value: Local, cuts) -> Any:
        """The part of a device: made there, if it is spread out or counted, else cut from all."""
        if value.maker is not None:
            made = self.made_there(value, cuts)
            if made is not None:
                return made
        x = self.vary(value, [self.names[i] for i, _ in cuts])
        for i, dim in cuts:
            size = x.shape[dim] // self.counts[i]
            at = lax.axis_index(self.names[i]) * size
            x = lax.dynamic_slice_in_dim(x, at, size, dim)
        return x

    def made_there(self, value: Local, cuts):
        assert value.maker is not None
        eqn, operands = value.maker
        if any(is_part(s) for s in value.states) or eqn.primitive.name not in MADE:
            return None
        states = list(value.states)
        for i, dim in cuts:
            states[i] = dim
        if eqn.primitive.name == "broadcast_in_dim":
            to = list(map(int, eqn.params["broadcast_dimensions"]))
            before = jnp.shape(operands[0].x)
            if any(dim in to and before[to.index(dim)] != 1 for _, dim in cuts):
                return None
        return self.made(eqn, operands, states)

    def made(self, eqn, operands: Sequence[Local], states: Sequence[State]):
        """What an equation makes of a place alone, where a device needs it."""
        shape = local_shape(eqn.outvars[0].aval.shape, states, self.counts)
        if eqn.primitive.name == "broadcast_in_dim":
            return rebind(eqn, [operands[0].x], **self.unplaced(eqn), shape=shape)[0]
        starts = [self.start(dim, size, states) for dim, size in enumerate(shape)]
        if eqn.primitive.name == "iota":
            dtype, along = eqn.params["dtype"], eqn.params["dimension"]
            rows, at = lax.broadcasted_iota(dtype, shape, along), starts[along]
            return rows if at is None else rows + at.astype(dtype)
        key = self.vary(operands[0], self.varying_axes([tuple(states)]))
        rank = key.ndim
        return drawn_by_place(eqn, key, starts[rank:], shape[rank:])

    def start(self, dim: int, size: int, states: Sequence[State]):
        """Where the part of a device begins, of so many elements of a dimension; None for 0."""
        at = None
        for name, count, s in zip(self.names, self.counts, states, strict=True):
            if s == dim:
                i = lax.axis_index(name)
                at = i if at is None else at * count + i
        return at if at is None else at * size

    def vary(self, value: Local, names: Sequence[str] | None = None):
        """The array, as one that varies over some axes of the mesh, or all of ours."""
        x = value.x
        names = self.names if names is None else names
        missing = frozenset(names) - compat.varying(jnp.asarray(x))
        if not missing:
            return x
        if value.varied is not None and missing == frozenset(self.names) - compat.varying(
            jnp.asarray(x)
        ):
            return value.varied
        return lax.pcast(jnp.asarray(x), tuple(sorted(missing)), to="varying")

    def varying_axes(self, states: Sequence[Sequence[State]]) -> list[str]:
        """The axes along which one of some values differs between the devices."""
        return [
            name
            for i, name in enumerate(self.names)
            if any(is_part(s[i]) or s[i] == SUM for s in states)
        ]

    # ------------------------------------------------------------ equations

    def step(self, eqn, steps, operands: list[Local], outs) -> list[Local]:
        """The results of one equation."""
        if any(step.inside for step in steps) or eqn.primitive.name in OPENED:
            steps = [
                with_bodies_planned(eqn, s, k) for s, k in zip(steps, self.counts, strict=True)
            ]
            return self.entered(eqn, steps, operands, outs)
        names = self.varying_axes([v.states for v in operands])
        if eqn.primitive.name == "reshard":
            results = [self.resharded(eqn, operands[0].x, outs[0])]
        elif eqn.primitive.name == "sharding_constraint":
            results = [self.constrained(eqn, operands[0].x, outs[0])]
        elif eqn.primitive.name in MADE and any(map(is_part, outs[0])):
            results = [self.made(eqn, operands, outs[0])]
        elif not names:
            results = rebind(eqn, [v.x for v in operands], **self.unplaced(eqn))
        else:
            args = [self.vary(v, names) for v in operands]
            results = self.rebound(eqn, args, operands, outs)
        results = typed(results, eqn.outvars)
        maker = None
        if eqn.primitive.name in MADE_THERE and not names:
            maker = (eqn, operands)
        return [Local(x, s, maker) for x, s in zip(results, outs, strict=True)]

    def rebound(self, eqn, args, operands, outs) -> list:
        """An equation on parts: the sizes in its parameters are those of the parts."""
        name, p = eqn.primitive.name, eqn.params
        shape = local_shape(eqn.outvars[0].aval.shape, outs[0], self.counts)
        plain = self.unplaced(eqn)
        match name:
            case "reshape":
                return rebind(eqn, args, **plain, new_sizes=shape)
            case "slice":
                before = eqn.invars[0].aval.shape
                rows = zip(p["limit_indices"], before, args[0].shape, strict=True)
                limits = tuple(m if m != n else limit for limit, n, m in rows)
                return rebind(eqn, args, limit_indices=limits)
            case "dynamic_slice":
                return rebind(eqn, args, slice_sizes=shape)
            case "gather":
                before = eqn.invars[0].aval.shape
                rows = zip(p["slice_sizes"], before, args[0].shape, strict=True)
                sizes = tuple(m if m != n and k == n else k for k, n, m in rows)
                return rebind(eqn, args, slice_sizes=sizes)
        return rebind(eqn, args, **plain)

    def constrained(self, eqn, x, states):
        """A constraint on where a value is: along our axes it has to say what is so anyway."""
        rest = self.said_besides(eqn, eqn.params["sharding"], x, states)
        if not any(rest):
            return x
        mesh = jax.sharding.get_abstract_mesh()
        return lax.with_sharding_constraint(x, NamedSharding(mesh, rest))

    def resharded(self, eqn, x, states):
        """As `constrained`, where types say where values are."""
        rest = self.said_besides(eqn, eqn.params["dst_sharding"], x, states)
        return jax.sharding.reshard(x, rest) if compat.is_explicit() else x

    def said_besides(self, eqn, sharding, x, states) -> PartitionSpec:
        """What a sharding says of other axes; of ours it says what is so, or Apart is raised."""
        spec = getattr(sharding, "spec", None)
        if spec is None:
            raise Apart("a constraint that is no NamedSharding", eqn)
        entries = [compat.names_of(e) for e in spec]
        for name, s in zip(self.names, states, strict=True):
            said = next((d for d, names in enumerate(entries) if name in names), None)
            if (int(s) if is_part(s) else None) != said or s == SUM:
                raise Apart("a constraint moves a value to other devices", eqn)
        return _left_of(spec, self.names)

    def unplaced(self, eqn) -> dict[str, Any]:
        """Parameters that say where a result is, without what they say of our axes."""
        given = {name: eqn.params[name] for name in PLACED if eqn.params.get(name) is not None}
        if not compat.is_explicit():
            return dict.fromkeys(given)
        mesh = jax.sharding.get_abstract_mesh()
        return {
            name: NamedSharding(mesh, _left_of(sharding.spec, self.names))
            for name, sharding in given.items()
        }

    # ------------------------------------------------------------ bodies

    def pack(self, values: Sequence[Local]) -> list:
        """Values for a body: what all devices have goes in twice, also as what varies."""
        return [
            (v.x, self.vary(v)) if not self.varying_axes([v.states]) else (v.x,) for v in values
        ]

    def unpack(self, packed, states) -> list[Local]:
        found = []
        for arrays, s in zip(packed, states, strict=True):
            found.append(Local(arrays[0], tuple(s), None, arrays[1] if len(arrays) > 1 else None))
        return found

    def due(self, values: Sequence[Local], wants) -> list[Local]:
        """Results of a body in the states in which they go on, typed as varying where they vary."""
        found = []
        for v, want in zip(values, wants, strict=True):
            made = self.as_(v, want)
            x = self.vary(made, self.varying_axes([tuple(want)]))
            found.append(Local(x, tuple(want)))
        return found

    def entered(self, eqn, steps, operands: list[Local], outs) -> list[Local]:
        view: Any = compat.view(eqn)
        states = [v.states for v in operands]
        match view:
            case compat.Scan():
                return self.scan(eqn, view, steps, operands, outs)
            case compat.While():
                return self.loop(view, steps, operands, outs)
            case compat.Branch(branches):
                packed = self.pack(operands[1:])

                def branch(i):
                    def run(packed):
                        values = self.unpack(packed, states[1:])
                        plans = [step.inside[i] for step in steps]
                        found = self.run(branches[i], plans, values, self.constants(branches[i]))
                        return [v.x for v in self.due(found, outs)]

                    return run

                found = lax.switch(operands[0].x, [branch(i) for i in range(len(branches))], packed)
                return [Local(x, s) for x, s in zip(found, outs, strict=True)]
            case compat.CustomJvp():
                return self.custom_jvp(eqn, view, steps, operands, outs)
        plans = [step.inside[0] for step in steps]
        if eqn.primitive.name != "remat2":
            found = self.run(view.body, plans, operands, self.constants(view.body))
            return found

        def kept(state, packed):
            values = self.unpack(packed, states)
            found = self.run(view.body, plans, values, self.constants(view.body))
            return tuple(v.x for v in self.due(found, outs)), state

        found, _ = view.wrap(kept)((), self.pack(operands))
        return [Local(x, s) for x, s in zip(found, outs, strict=True)]

    def constants(self, body) -> list[Local]:
        return [Local(on_any_mesh(c), tuple([WHOLE] * len(self.names))) for c in body.consts]

    def scan(self, eqn, view, steps, operands, outs) -> list[Local]:
        consts, carry, xs = view.split(operands)
        n = len(carry)
        plans = [step.inside[0] for step in steps]
        ins = list(zip(*(plan.ins for plan in plans), strict=True))
        start = self.due(carry, outs[:n])
        packed, rows = self.pack(consts), self.pack(xs)
        ends = [
            *outs[:n],
            *(tuple(int(s) - 1 if is_part(s) else s for s in states) for states in outs[n:]),
        ]

        def step(carry, rows):
            values = [
                *self.unpack(packed, ins[: len(consts)]),
                *(Local(x, tuple(s)) for x, s in zip(carry, outs[:n], strict=True)),
                *self.unpack(rows, ins[len(consts) + n :]),
            ]
            found = self.run(view.body, plans, values, self.constants(view.body))
            made = [v.x for v in self.due(found, ends)]
            return made[:n], made[n:]

        last, ys = lax.scan(step, [v.x for v in start], rows, **view.how)
        return [Local(x, tuple(s)) for x, s in zip((*last, *ys), outs, strict=True)]

    def loop(self, view, steps, operands, outs) -> list[Local]:
        tests, consts, carry = view.split(operands)
        start = [v.x for v in self.due(carry, outs)]
        packed = self.pack(tests), self.pack(consts)

        def parts(which, carry, given, packed):
            values = [
                *self.unpack(packed, [v.states for v in given]),
                *(Local(x, tuple(s)) for x, s in zip(carry, outs, strict=True)),
            ]
            body = (view.cond, view.body)[which]
            plans = [step.inside[which] for step in steps]
            return self.run(body, plans, values, self.constants(body))

        def test(carry):
            (going,) = parts(0, carry, tests, packed[0])
            return self.whole(going).x

        def step(carry):
            return [v.x for v in self.due(parts(1, carry, consts, packed[1]), outs)]

        found = lax.while_loop(test, step, start)
        return [Local(x, tuple(s)) for x, s in zip(found, outs, strict=True)]

    def custom_jvp(self, eqn, view, steps, operands, outs) -> list[Local]:
        states = [v.states for v in operands]
        program, smooth, results = next(step.rule for step in steps if step.rule is not None)
        count = len(eqn.outvars)
        names = self.varying_axes(states)

        @jax.custom_jvp
        def one(*xs):
            values = [Local(x, s) for x, s in zip(xs, states, strict=True)]
            plans = [step.inside[0] for step in steps]
            found = self.run(view.body, plans, values, self.constants(view.body))
            return tuple(v.x for v in self.due(found, outs))

        @one.defjvp
        def _(primals, dots):
            plans = [self.rule_plan(program, smooth, states, i) for i in range(len(steps))]
            picked = [(t, s) for t, s, f in zip(dots, states, smooth, strict=True) if f]
            values = [Local(x, s) for x, s in zip(primals, states, strict=True)]
            values += [Local(t, s) for t, s in picked]
            moved = [s for s, f in zip(outs, results, strict=True) if f]
            found = self.due(
                self.run(program, plans, values, self.constants(program)), [*outs, *moved]
            )
            made = [v.x for v in found]
            dots_out = compat.fill_tangents(results, made[count:], made[:count])
            return tuple(made[:count]), tuple(dots_out)

        found = one(*(self.vary(v, names) for v in operands))
        return [Local(x, s) for x, s in zip(found, outs, strict=True)]

    def rule_plan(self, program, smooth, states, i) -> PartsPlan:
        mine = [s[i] for s in states]
        due = [*mine, *(s for s, f in zip(mine, smooth, strict=True) if f)]
        return planned(program, due, self.counts[i])
