"""Says where a random key is used a second time: both draws then give the same numbers.

Each program is read once. Every value in it gets a number, equal for values that are certainly
the same (the same operation of the same operands), so that `keys[0]` is one key wherever it is
written. Keys that reach a program from outside are told apart by the array that holds them.
"""

import functools
import traceback
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from malleable import compat
from malleable.compat import Place
from malleable.inspection import places
from malleable.inspection.advice.evidence import sources
from malleable.inspection.advice.evidence.trouble import here
from malleable.inspection.advice.hint import Advice
from malleable.inspection.advice.watching import running
from malleable.inspection.advice.watching.running import Observer, Run
from malleable.programs.equations import mentions
from malleable.programs.evaluate import evaluate
from malleable.programs.primitives import has, kind

_DRAWS = has("draws") - {"rng_bit_generator"} | {"random_split"}
_SAME = kind("same", "place") | {"random_wrap", "random_unwrap"} | {"stage"}


MOST = 4096  # keys that are remembered


@dataclass(frozen=True)
class Use:
    """One place where random numbers are drawn from a key, or where it is split.

    key: the number of the value; chain: the user's lines, innermost first; instance: the call of a
    library it is part of; branches: the branches of conds it stands in, as {cond: branch}; again:
    it may be a recomputation.
    """

    key: int
    chain: tuple[Place, ...]
    instance: int
    branches: tuple[tuple[int, int], ...]
    loop: int  # steps of a loop that does not change the key; 0 for none
    again: bool
    direct: bool  # the user draws, and no library that the user calls

    @property
    def place(self) -> Place | None:
        return self.chain[0] if self.chain else None


@dataclass
class Reading:
    """What is known of one program."""

    uses: list[Use] = field(default_factory=list)
    arguments: dict[int, int] = field(default_factory=dict)  # {number: position}

    @functools.cached_property
    def consumed(self) -> dict[int, Use]:
        """{position of an argument: its first use}."""
        found: dict[int, Use] = {}
        for use in self.uses:
            if use.key in self.arguments:
                found.setdefault(self.arguments[use.key], use)
        return found


@dataclass(frozen=True)
class Used:
    """A key that was used. key: kept, so that its number stays its own; given: the arguments.

    around: (file, line) of the user's calls that were open then.
    """

    key: Any
    place: Place
    program: compat.Jaxpr
    given: tuple
    around: frozenset[tuple[str, int]]


class Keys(Observer):
    """Finds keys used twice, inside a program and between programs."""

    def __init__(self):
        super().__init__()
        self.programs: dict[Any, Reading] = {}
        self.used: dict[int, Used] = {}

    def called(self, run: Run, caller):
        self.see(run, caller)

    def ran(self, run: Run, caller):
        if not run.within:
            self.see(run, caller)

    def see(self, run: Run, caller):
        reading = self.programs.get(run.program)
        fresh = reading is None
        if reading is None:
            reading = self.programs[run.program] = read(run.program)
        if fresh and run.own:
            own = [use for use in reading.uses if use.place and places.is_own(use.place.file)]
            for first, second in clashes(own):
                assert second.place
                self.tell(second.place, inside(first, second), second.chain)
        consumed = reading.consumed
        if consumed:
            self.between(run, consumed, running.place_in(caller), caller)

    def follows(self, running: compat.Running) -> bool:
        reading = self.programs.get(running.program)
        return reading is not None and bool(reading.consumed)

    def between(self, run: Run, consumed: dict[int, Use], place: Place | None, caller):
        """Keys that other programs have used already."""
        if place is None:
            return
        for position in consumed:
            key = compat.key_numbers(run.leaves[position])
            used = self.used.get(id(key))
            if used is None:
                if len(self.used) >= MOST:
                    self.used.clear()
                given = tuple(map(told, run.leaves))
                self.used[id(key)] = Used(key, place, run.program, given, around(caller))
                continue
            within = used.place != place and (place.file, place.line) in used.around
            library = within or (used.place == place and run.program is not used.program)
            if repeats(run, used) or (library and not run.own):
                continue
            given = running.name_in(caller, run.leaves[position]) or running.name_in(caller, key)
            name = given if run.own and given else asked(place) or given or "the key"
            self.tell(place, twice(name, used.place, place))


def around(frame) -> frozenset[tuple[str, int]]:
    """(file, line) of the user's own calls that are open in a frame, without the innermost."""
    open_now = ((f.f_code.co_filename, line) for f, line in traceback.walk_stack(frame))
    found = [(file, line) for file, line in open_now if places.is_own(file)]
    return frozenset(found[1:]) - set(found[:1])


def repeats(run: Run, used: Used) -> bool:
    """Whether a run only repeats another: a call of the user's with the same arguments."""
    same = run.own and run.program is used.program
    return same and all(map(is_same, used.given, map(told, run.leaves)))


def told(leaf):
    """What tells an argument from another, without keeping it alive."""
    return weakref.ref(leaf) if isinstance(leaf, compat.HostArray | np.ndarray) else leaf


def is_same(one, other) -> bool:
    if isinstance(one, weakref.ref) or isinstance(other, weakref.ref):
        return one is other
    return type(one) is type(other) and bool(one == other)


# ---------------------------------------------------------------- what is said


def inside(first: Use, second: Use) -> Advice:
    assert first.place and second.place
    name = asked(second.place) or asked(first.place) or "a key"
    if first is second:
        what = f"`{name}` is the same key in each of the {first.loop} steps of a loop, so each "
        what += f"step draws the same numbers ({_how(first.place)})"
        hint = f"use jax.random.fold_in({name}, i) with the number of the step, or scan over "
        hint += f"jax.random.split({name}, {first.loop})"
        return Advice(what, here(second.place), hint)
    if first.place == second.place and first.chain != second.chain:
        return through(name, first, second)
    return twice(name, first.place, second.place)


def through(name: str, first: Use, second: Use) -> Advice:
    """Two calls of one user function, given one key."""
    pairs = zip(first.chain, second.chain, strict=False)
    one, two = next(((a, b) for a, b in pairs if a != b), (first.chain[0], second.chain[0]))
    calls = [sources.expression_at(p) for p in (one, two)]
    texts = [sources.text_of(c) or f"line {p.line}" for c, p in zip(calls, (one, two), strict=True)]
    given = [{sources.text_of(a) for a in getattr(c, "args", [])} for c in calls]
    shared = [a for a in sorted(given[0] & given[1]) if "key" in a or "rng" in a] or [name]
    name = shared[0]
    assert second.place
    what = f"`{texts[0]}` and `{texts[1]}` are given the same key, `{name}`, and draw the same "
    what += f"random bits from it ({_how(second.place)} at {places.spell(second.place)})"
    hint = f"give each a key of its own: k1, k2 = jax.random.split({name}); or "
    hint += f"jax.random.fold_in({name}, n) with another n for each"
    return Advice(what, here(two), hint)


def twice(name: str, first: Place, second: Place) -> Advice:
    if first == second:
        what = f"`{name}` is the same key each time this line runs, so that {_how(second)} gives "
        what += "the same numbers each time"
    elif (first.file, first.line) == (second.file, second.line):
        what = f"`{name}` is used twice in this line, by {_how(first)} and by {_how(second)}: what "
        what += "they draw is not independent"
    else:
        what = f"`{name}` is used twice, by {_how(first)} at {places.spell(first)} and by "
        what += f"{_how(second)} at line {second.line}: what they draw is not independent"
    new = f"{name}, sub" if name.isidentifier() else "new, sub"
    hint = f"split it first, `{new} = jax.random.split({name})`, and use `sub` here; or "
    hint += f"jax.random.fold_in({name}, n) with another n for each use"
    return Advice(what, here(second), hint)


def _how(place: Place) -> str:
    """`jax.random.normal`, as the user wrote it."""
    node = sources.expression_at(place)
    name = sources.text_of(getattr(node, "func", None))
    return f"`{name}`" if name else "the line"


def asked(place: Place) -> str:
    """What the user gives as the key at a place."""
    return sources.text_of(sources.argument(sources.expression_at(place), 0, "key"))


# ---------------------------------------------------------------- reading a program


def clashes(uses: list[Use]) -> Iterator[tuple[Use, Use]]:
    """Pairs of uses of one key that can both happen; a use in a loop with itself."""
    seen: dict[int, list[Use]] = {}
    for use in uses:
        if use.loop > 1:
            yield use, use
        for other in seen.setdefault(use.key, []):
            apart = other.instance != use.instance and not _exclusive(other, use)
            again = (other.again or use.again) and other.place == use.place
            library = other.chain == use.chain and not use.direct
            if apart and not again and not library:
                yield other, use
                break
        seen[use.key].append(use)


def _exclusive(one: Use, other: Use) -> bool:
    mine = dict(one.branches)
    return any(mine.get(cond, branch) != branch for cond, branch in other.branches)


def read(program: compat.Jaxpr) -> Reading:
    """Every use of a key in a program."""
    reader = _Reader()
    raw = program.jaxpr
    ins = [reader.fresh(0) for _ in raw.invars]
    reading = Reading(reader.uses, {number: i for i, number in enumerate(ins)})
    if mentions(program, _DRAWS) and "fold_in" not in compat.name_of(program):
        reader.body(program, ins, _Where())
    return reading


@dataclass(frozen=True)
class _Where:
    """Where the reader is. loops: the steps of the loops around, outermost first."""

    outer: tuple = ()
    loops: tuple[int, ...] = ()
    branches: tuple[tuple[int, int], ...] = ()
    instance: int = 0
    again: bool = False


class _Reader:
    def __init__(self):
        self.numbers: dict[Any, int] = {}
        self.parts: dict[int, int] = {}  # what a value is cut out of
        self.depth: list[int] = []  # by number: how many loops around change the value
        self.uses: list[Use] = []

    def fresh(self, depth: int) -> int:
        self.depth.append(depth)
        return len(self.depth) - 1

    def number(self, key, operands: list[int], depth: int = 0) -> int:
        """The number of a value that is decided by `key`."""
        if key not in self.numbers:
            self.numbers[key] = self.fresh(max([depth, *(self.depth[n] for n in operands)]))
        return self.numbers[key]

    def body(self, program: compat.Jaxpr, ins: list[int], at: _Where) -> list[int]:
        def literal(atom):
            return self.number(("literal", str(atom.val), str(atom.aval)), [])

        consts = [self.number(("const", id(const)), []) for const in program.consts]
        step = lambda eqn, ins: self.equation(eqn, ins, at)  # noqa: E731
        return evaluate(program, ins, step, consts=consts, literal=literal)

    def equation(self, eqn, ins: list[int], at: _Where) -> list[int]:
        inside = compat.bodies(eqn.params)
        if inside:
            return self.control(eqn, ins, at, inside)
        name = eqn.primitive.name
        if name in _DRAWS and ins:
            whole = name == "threefry2x32"  # it takes the two numbers of a key apart
            self.use(eqn, self.parts.get(ins[0], ins[0]) if whole else ins[0], at)
        if name in _SAME and len(eqn.outvars) == len(ins):
            return ins
        if eqn.effects:
            return [self.fresh(len(at.loops)) for _ in eqn.outvars]
        same = compat.same_program(eqn)
        same = id(eqn) if same is eqn else same
        outs = [self.number((same, tuple(ins), i), ins) for i in range(len(eqn.outvars))]
        if name in ("slice", "squeeze", "unstack"):  # the numbers of an old-style key, one by one
            self.parts |= dict.fromkeys(outs, self.parts.get(ins[0], ins[0]))
        return outs

    def use(self, eqn, key: int, at: _Where):
        frames = compat.user_places(eqn, *at.outer)
        chain = tuple(p for p in frames if places.is_own(p.file))
        direct = chain[:1] == tuple(frames[:1])
        around = at.loops[self.depth[key] :]
        again = max(around, default=0)
        self.uses.append(
            Use(key, chain, at.instance or id(eqn), at.branches, again, at.again, direct)
        )

    def control(self, eqn, ins: list[int], at: _Where, inside: list) -> list[int]:
        instance = at.instance or (id(eqn) if compat.is_of_jax(inside[0]) else 0)
        again = at.again or bool(eqn.params.get("differentiated"))
        at = _Where((eqn, *at.outer), at.loops, at.branches, instance, again)
        match compat.view(eqn):
            case compat.Opaque():
                return [self.fresh(len(at.loops)) for _ in eqn.outvars]
            case compat.Branch(branches):
                rows = []
                for i, branch in enumerate(branches):
                    chosen = (*at.branches, (id(eqn), i))
                    there = _Where(at.outer, at.loops, chosen, at.instance, at.again)
                    rows.append(self.body(branch, ins[1:], there))
                return [
                    column[0] if len(set(column)) == 1 else self.fresh(len(at.loops))
                    for column in zip(*rows, strict=True)
                ]
            case compat.Scan(body, split, length):
                consts, carry, xs = split(ins)
                return self.loop(eqn, body, consts, carry, xs, length, at)
            case compat.While(_, body, split):
                _, consts, carry = split(ins)
                return self.loop(eqn, body, consts, carry, [], 2, at)
            case view:
                return self.body(view.body, ins, at)

    def loop(self, eqn, body, consts, carry, xs, length: int, at: _Where) -> list[int]:
        inner = _Where(at.outer, (*at.loops, length), at.branches, at.instance, at.again)
        deep = len(inner.loops)
        raw = body.jaxpr
        kept = [  # what a step hands on as it is
            out is raw.invars[len(consts) + i] for i, out in enumerate(raw.outvars[: len(carry)])
        ]
        mine = [n if k else self.fresh(deep) for n, k in zip(carry, kept, strict=True)]
        self.body(body, [*consts, *mine, *(self.fresh(deep) for _ in xs)], inner)
        outs = [n if k else self.fresh(len(at.loops)) for n, k in zip(carry, kept, strict=True)]
        rest = len(eqn.outvars) - len(outs)
        return [*outs, *(self.fresh(len(at.loops)) for _ in range(rest))]
