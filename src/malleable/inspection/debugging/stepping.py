"""Run a staged program equation by equation on concrete values: `walk(program, args)`.

A walk is a generator: it gives a `Step` after each equation that ran, an `Enter` before each body
it goes into and a `Leave` after, and returns the results. Whoever asks for the next event drives
it: a debugger, a search for the first NaN, a recorder. Values never change, so keeping the steps
is all that going backward takes. Devices of a shard_map run one after the other, each up to the
next collective; examples of a vmap one after the other.
"""

import functools
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax

from malleable import compat
from malleable.compat import Place
from malleable.core.stage import stage
from malleable.errors import MalleableError
from malleable.inspection import places
from malleable.inspection.debugging import lanes
from malleable.inspection.debugging.tables import Env, Table, Told
from malleable.inspection.show.rows.outline import name_variables
from malleable.notes import note
from malleable.rewriting.passes.passes import in_bodies


class Level(NamedTuple):
    """One body around an equation. index of size: which step, example, device or branch.

    >>> str(Level("scan", "", 3, 10)), str(Level("jit", "ensemble", None, None))
    ('scan[3/10]', 'jit:ensemble')
    """

    kind: str
    name: str
    index: int | None
    size: int | None

    def __str__(self):
        if self.kind == "shard_map":
            return f"shard_map[{self.name}]"
        if self.kind == "while":
            return f"while[{self.index}]" + " test" * (self.name == "test")
        if self.kind == "cond" and self.size == 2:
            return f"cond:{'true' if self.index else 'false'}"
        at = "" if self.index is None else f"[{self.index}/{self.size}]"
        return f"{self.kind}:{self.name}" if self.name and not at else f"{self.kind}{at}"


Path = tuple[Level, ...]  # outermost first


def spell_path(path: Path) -> str:
    """`jit:f > scan[3/10]`; "" at the top of a program."""
    return " > ".join(map(str, path))


@dataclass(frozen=True, repr=False)
class Enter(Told):
    """A body is about to run. path: that of the body; before: what was entered around it.

    env: the variables known in the body that the equation stands in.
    """

    eqn: compat.Eqn
    inputs: tuple
    path: Path
    place: Place | None
    program: compat.Jaxpr
    before: "Enter | None"
    env: Mapping


@dataclass(frozen=True, repr=False)
class Leave(Told):
    """A body has run. results: those of the whole equation after its last body, else None."""

    eqn: compat.Eqn
    outputs: tuple
    path: Path
    place: Place | None
    results: tuple | None


@dataclass(frozen=True, repr=False)
class Step(Told):
    """An equation that has just run. number: from 1; program: the body it stands in.

    entered: whether its bodies were stepped through, and this is the whole of it.
    place: the user's own line; chain: all lines, those of the equations around it after its own;
    names: of the variables, shared by the whole walk; env: the variables known by now in the body.
    """

    eqn: compat.Eqn
    inputs: tuple
    outputs: tuple
    path: Path
    number: int
    program: compat.Jaxpr
    before: Enter | None
    entered: bool
    env: Mapping
    _table: Table
    _at: int

    @property
    def place(self) -> Place | None:
        return self._table.place(self._at)

    @property
    def chain(self) -> tuple[Place, ...]:
        return self._table.chain(self._at)

    @property
    def names(self) -> Mapping:
        return self._table.names()


Event = Step | Enter | Leave
_Walk = Generator[Any, Any, Any]  # of events, and of the requests of lanes that wait


class Prepared(NamedTuple):
    """A function staged for a walk: its program, flat arguments, and the results' pytrees."""

    program: compat.Jaxpr
    args: list
    rebuild: Callable[[list], Any]


def prepare(fun: Callable) -> Callable[..., Prepared]:
    """Return a function that stages `fun` on its arguments, the examples of a vmap kept apart.

    >>> ready = prepare(lambda x: {"y": 2 * x})(3.0)
    >>> events = walk(ready.program, ready.args)
    >>> [(str(step.eqn.primitive), float(step.outputs[0])) for step in events]
    [('mul', 6.0)]
    """

    def prepared(*args, **kwargs) -> Prepared:
        with compat.apart(), compat.staged_vmap():
            staged = stage(fun)(*args, **kwargs)
        for name in staged.changes.names:
            note("a session changes nothing of yours", "", f"{name} stays as it is")
        args = list(map(compat.as_array, staged.args))
        return Prepared(in_bodies(undonated)(staged.jaxpr), args, staged.rebuild)

    return prepared


def undonated(program: compat.Jaxpr) -> compat.Jaxpr:
    """A pass: calls keep the arrays they are given, so that one may go back to them.

    >>> give = jax.jit(abs, donate_argnums=0)
    >>> undonated(compat.trace(give, 1.0)).eqns[0].params["donated_invars"]
    (False,)
    """
    if not any(any(eqn.params.get("donated_invars", ())) for eqn in program.jaxpr.eqns):
        return program
    off = lambda eqn: eqn.params | {"donated_invars": (False,) * len(eqn.invars)}  # noqa: E731
    gives = lambda eqn: "donated_invars" in eqn.params  # noqa: E731
    kept = [eqn.replace(params=off(eqn)) if gives(eqn) else eqn for eqn in program.jaxpr.eqns]
    consts = dict(zip(program.jaxpr.constvars, program.consts, strict=True))
    return compat.program(program, kept, program.jaxpr.outvars, consts)


def walk(
    program: compat.Jaxpr,
    args: Sequence,
    *,
    enter: Callable[[compat.Eqn, Path], bool] = lambda eqn, path: True,
    whole: bool = False,
) -> Generator[Event, None, list]:
    """Run a program on flat `args`, giving an event for all that happens; returns the results.

    enter(eqn, path) says whether to go into an equation that has bodies, at `path`; one that is
    not entered is one step. An entered equation gives, for each run of a body (each step of a
    scan, example of a vmap, device of a mesh) an Enter and a Leave, and no step of its own; with
    `whole` a last one, marked `entered`. What cannot be entered is one step, and leaves a note.
    Results equal those of the compiled program up to rounding.

    Raises MalleableError for values that are being traced, and where devices wait for each other
    at different collectives.
    """
    if any(isinstance(x, compat.Tracer) for x in args):
        raise MalleableError(
            "a program is stepped through on concrete values, and these are being traced",
            hint="call this outside of jit, vmap, grad and their like",
        )
    meshes = map(compat.mesh_of, (*args, *program.consts))
    mesh = next(filter(None, meshes), compat.concrete_mesh(None))
    walker = _Walker(program, enter, mesh, whole)
    events = walker.body(walker.table, list(args), _Spot((), None, {}, False))
    return _as_now(events)


def _as_now(events: _Walk) -> _Walk:
    """The same events, the program running with numbers as wide as they are when this is called."""
    wide = jax.config.read("jax_enable_x64")

    def run():
        while True:
            with jax.enable_x64(wide), lanes.unguarded():
                try:
                    event = events.send(None)
                except StopIteration as stop:
                    return stop.value
            yield event

    return run()


def evaluate_lane(
    program: compat.Jaxpr, args: Sequence, coords: lanes.Coords, ask: Callable
) -> list:
    """Run a program of one lane without events. ask(request) gives what a collective gives."""
    walker = _Walker(program, lambda eqn, path: False, None, False, lane=True)
    run, answers = walker.body(walker.table, list(args), _Spot((), None, coords, True)), None
    while True:
        try:
            answers = {r: ask(r) for r in run.send(answers).requests}
        except StopIteration as stop:
            return stop.value


class _Spot(NamedTuple):
    """Where a body runs. coords: of the lane; quiet: whether to give no events."""

    path: Path
    before: Enter | None
    coords: lanes.Coords
    quiet: bool


class _Wait(NamedTuple):
    """Lanes cannot go on before these requests are answered."""

    requests: list[lanes.Request]


class _Walker:
    """One walk: the tables of its bodies, and how many steps there were."""

    def __init__(self, program, enter, mesh, whole, lane=False):
        self.enter, self.whole = enter, whole
        self.count, self.said = 0, set()
        names = functools.cache(functools.partial(name_variables, program))
        self.table = Table(program, (), lane, mesh, names)

    def say_whole(self, table: Table, at: int, why: str) -> None:
        """Leave a note, once, that an equation is not entered."""
        if (table, at) not in self.said:
            self.said.add((table, at))
            where = places.spell(table.place(at))
            note(f"took `{table.eqns[at].primitive}` as one operation", where, why)

    def body(self, table: Table, args: list, spot: _Spot) -> _Walk:
        """Run the equations of a body."""
        raw = table.program.jaxpr
        env = table.known | dict(zip(raw.invars, args, strict=True))
        for at, (ins, outs, plain, axes) in enumerate(table.rows):
            inputs = [env[v] for v in ins]
            given, entered = None, False
            if axes:
                given = yield from self.collective(table, at, inputs, spot)
            elif not plain:
                given = yield from self.cross(table, at, env, inputs, spot)
            if given is None:
                outputs = table.run(at, inputs, spot.path)
            else:
                outputs, entered = given
            env.update(zip(outs, outputs, strict=True))
            if not spot.quiet and (not entered or self.whole):
                self.count += 1
                eqn, values = table.eqns[at], (tuple(inputs), tuple(outputs))
                where = spot.path, self.count, table.program, spot.before, entered
                yield Step(eqn, *values, *where, Env(env, table, at), table, at)
        return [env[v] for v in table.outs]

    def collective(self, table: Table, at: int, inputs: list, spot: _Spot) -> _Walk:
        """(results, False) of what one device of many does together with the others."""
        eqn = table.eqns[at]
        name, params = eqn.primitive.name, eqn.params
        if name in (*lanes.LOCAL, *lanes.PLACING):
            return inputs, False
        if name == "axis_index":
            return [lanes.index(spot.coords, params)], False
        place = places.spell(table.place(at))
        request = lanes.Request(spot.coords, name, params, tuple(inputs), place)
        answers = yield _Wait([request])
        return lanes.typed(answers[request], eqn.outvars), False

    def cross(self, table: Table, at: int, env: dict, args: list, spot: _Spot) -> _Walk:
        """(results, whether there were events) of an equation with bodies; None to run it whole."""
        eqn = table.eqns[at]
        view = table.view(at)
        if isinstance(view, compat.Opaque):
            if not all(map(compat.is_of_jax, compat.bodies(eqn.params))):
                self.say_whole(table, at, view.why)
            return None
        entered = spot.quiet or bool(self.enter(eqn, spot.path))
        if not entered:
            if not spot.coords:
                return None
            spot = spot._replace(quiet=True)  # a lane has nobody else to run its collectives
        run = _Run(self, table, at, env, spot)
        match view:
            case compat.Call(body=body):
                level = call_level(eqn, body)
                outs = yield from run.body(body, args, level, lambda outs: outs)
            case compat.CustomJvp(body=body) | compat.CustomVjp(body=body):
                kind = eqn.primitive.name.removesuffix("_call")
                level = Level(kind, compat.spoken_of(body)[0], None, None)
                outs = yield from run.body(body, args, level, lambda outs: outs)
            case compat.Branch(branches=branches):
                index = min(max(int(args[0]), 0), len(branches) - 1)
                level = Level("cond", "", index, len(branches))
                outs = yield from run.body(branches[index], args[1:], level, lambda outs: outs)
            case compat.Scan():
                if not view.length:
                    return None
                outs = yield from run.scan(view, args)
            case compat.While():
                outs = yield from run.loop(view, args)
            case compat.Map():
                if not all(lanes.is_known(e, view.axes) for e in view.body.jaxpr.eqns):
                    self.say_whole(table, at, "it holds a collective that is not known here")
                    return None
                outs = yield from run.devices(view, args)
        return outs, entered and not spot.quiet


class _Run(NamedTuple):
    """The run of one equation with bodies."""

    walker: _Walker
    table: Table
    at: int
    env: dict
    spot: _Spot

    def body(self, body, args, level, finish, coords=None) -> _Walk:
        """Run a body; finish(outs) -> results of the equation, or None if it is not yet through.

        Returns what `finish` gave, or `outs` where that is None.
        """
        spot, eqn = self.spot, self.table.eqns[self.at]
        inner = self.table.inside(self.at, body, bool(coords))
        path = (*spot.path, level)
        before = spot.before
        if not spot.quiet:
            place = self.table.place(self.at)
            known = Env(self.env, self.table, self.at - 1)
            before = Enter(eqn, tuple(args), path, place, body, spot.before, known)
            yield before
        around = _Spot(path, before, coords or spot.coords, spot.quiet)
        outs = yield from self.walker.body(inner, args, around)
        results = finish(outs)
        if not spot.quiet:
            done = None if results is None else tuple(results)
            yield Leave(eqn, tuple(outs), path, self.table.place(self.at), done)
        return outs if results is None else results

    def scan(self, view, args) -> _Walk:
        consts, carry, xs = view.split(args)
        eqn, n, rows = self.table.eqns[self.at], view.length, []
        name = compat.lanes_of(eqn)
        kind = "scan" if name is None else "vmap"
        order = range(n - 1, -1, -1) if view.reverse else range(n)

        def finish(outs):
            rows.append(outs[len(carry) :])
            if len(rows) < n:
                return None
            ys = zip(*(reversed(rows) if view.reverse else rows), strict=True)
            types = [v.aval for v in view.body.jaxpr.outvars[len(carry) :]]
            stacked = [lanes.stack_lanes(y, t) for y, t in zip(ys, types, strict=True)]
            return [*outs[: len(carry)], *stacked]

        outs = carry
        for i in order:
            ins = [*consts, *outs[: len(carry)], *lanes.pick(xs, i)]
            outs = yield from self.body(view.body, ins, Level(kind, name or "", i, n), finish)
        return outs

    def loop(self, view, args) -> _Walk:
        tested, used, carry = view.split(args)
        turn = 0
        while True:
            level = Level("while", "test", turn, None)
            outs = yield from self.body(
                view.cond, [*tested, *carry], level, functools.partial(_ended, carry)
            )
            if outs is carry:
                return carry
            level = Level("while", "body", turn, None)
            carry = yield from self.body(view.body, [*used, *carry], level, lambda outs: None)
            turn += 1

    def devices(self, view, args) -> _Walk:
        """Run the body once for each device, in turn, each up to the next collective."""
        p = self.table.eqns[self.at].params
        args = list(map(lanes.home, args))
        every = list(lanes.every_lane(view.axes))
        done: dict[int, list] = {}

        def finish(i, outs):
            done[i] = outs
            if len(done) < len(every):
                return None
            mesh = None if self.spot.coords else compat.concrete_mesh(p["mesh"])
            rows = zip(*(done[k] for k in range(len(every))), strict=True)
            whole = [
                lanes.assemble(row, every, s) for row, s in zip(rows, p["out_specs"], strict=True)
            ]
            return [_placed(x, s, mesh) for x, s in zip(whole, p["out_specs"], strict=True)]

        def lane(i, at):
            ins = [lanes.shard_of(x, s, at) for x, s in zip(args, p["in_specs"], strict=True)]
            level = Level("shard_map", lanes.spell_lane(at, sizes=True), i, len(every))
            coords = {**self.spot.coords, **at}
            last = functools.partial(finish, i)
            return (yield from self.body(view.body, ins, level, last, coords))

        return (yield from _in_turn([lane(i, at) for i, at in enumerate(every)], self.spot.coords))


def _in_turn(running: list[_Walk], outer: lanes.Coords) -> _Walk:
    """Run lanes, each as far as it gets alone, and answer what they ask of each other.

    Returns the results of the lane that finished last. outer: where the lanes are, all together.
    """
    answers: dict = {}
    waiting: dict[int, list] = {}
    ready, last = list(range(len(running))), None
    while ready:
        for i in ready:
            answer = {r: answers[r] for r in waiting.pop(i, ()) if r in answers} or None
            try:
                event = running[i].send(answer)
                while not isinstance(event, _Wait):
                    yield event
                    event = running[i].send(None)
                waiting[i] = event.requests
            except StopIteration as stop:
                last = stop.value
        asked = [r for i in sorted(waiting) for r in waiting[i]]
        answers = lanes.answer(asked)
        if asked and not answers:
            if not outer:
                raise lanes.stuck(asked, len(running))
            answers = yield _Wait(asked)
        ready = [i for i in sorted(waiting) if any(r in answers for r in waiting[i])]
    return last


def _ended(carry, outs):
    return None if bool(outs[0]) else carry


def _placed(value, spec, mesh):
    if mesh is None:
        return value
    return jax.device_put(value, jax.sharding.NamedSharding(mesh, spec))


def call_level(eqn: compat.Eqn, body: compat.Jaxpr) -> Level:
    kind = {"pjit": "jit", "remat2": "remat", "checkpoint": "remat"}.get(eqn.primitive.name)
    name = eqn.params.get("name") or compat.spoken_of(body)[0]
    return Level(kind or eqn.primitive.name.removesuffix("_call"), name, None, None)
