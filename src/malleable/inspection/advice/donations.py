"""An array is used after its memory was given away: to which argument, and on which line."""

import ast
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from malleable import compat
from malleable.compat import Place
from malleable.errors import Advice
from malleable.inspection import places
from malleable.inspection.advice import creation, running, storms, syntax
from malleable.inspection.advice.running import Observer, Run
from malleable.inspection.advice.trouble import Step, Trouble, here


@dataclass
class Donation:
    """One array that was given away; argument: its path in the call."""

    array: weakref.ref
    argument: str
    function: str
    place: Place | None
    called: str  # what the user called it there


@dataclass(frozen=True)
class Taker:
    """A call that donates one of its arguments, of some type. code: of the function."""

    code: Any
    function: str
    argument: str
    call: Place
    kind: str


class Donations(Observer):
    """Remembers which arrays the first run of a program was donated; of later ones, what kind."""

    takers: ClassVar[deque[Taker]] = deque(maxlen=256)  # those of earlier blocks included

    def __init__(self):
        self.given: dict[int, Donation] = {}
        self.programs: set[compat.Jaxpr] = set()

    def called(self, run: Run, caller):
        self.see(run, caller)
        if any(run.donated) and run.own and run.program not in self.programs:
            self.programs.add(run.program)
            for name, kind in unusable(run):
                place = running.place_in(caller)
                running.warn(in_vain(name, kind, run, place), place)

    def ran(self, run: Run, caller):
        if not run.within:
            self.see(run, caller)

    def see(self, run: Run, caller):
        if not any(run.donated):
            return
        place, code = running.place_in(caller), storms.code_of(run.fun)
        function = storms.name_of(run.fun) if run.fun else ""
        for array, name, donated in zip(run.leaves, run.names, run.donated, strict=True):
            if donated and not is_deleted(array):
                called = running.name_in(caller, array)
                gift = Donation(weakref.ref(array), name, function, place, called)
                self.given[id(array)] = gift
                if place is not None and name and code is not None:
                    taker = Taker(code, function, name, place, running.type_of(array))
                    if taker not in self.takers:
                        self.takers.append(taker)

    def of(self, array) -> Donation | None:
        """How an array was given away."""
        found = self.given.get(id(array))
        return found if found and found.array() is array else None

    def taker(self, kind: str, trouble: Trouble) -> Taker | None:
        """The one function that takes arrays of a type and is used where an error came through."""
        codes = [code for step in trouble.own for code in used_in(step)]
        fits = [t for t in self.takers if t.kind == kind and any(t.code is c for c in codes)]
        one = len({(id(t.code), t.argument) for t in fits}) == 1
        return fits[-1] if one else None


def used_in(step: Step) -> Iterator[Any]:
    """The code of the functions that the code of a frame names."""
    code = step.frame.f_code
    for name in (*code.co_names, *code.co_varnames, *code.co_freevars):
        held = step.values.get(name, step.frame.f_globals.get(name))
        if callable(held):
            yield storms.code_of(held)


def unusable(run: Run) -> Iterator[tuple[str, str]]:
    """(path, type) of the donated arguments that no result can take the memory of.

    JAX gives each result the memory of a donated argument of the same shape and dtype: see
    `_set_up_aliases` in jax/_src/interpreters/mlir.py. What the program does not use is left out.
    """
    raw = run.program.jaxpr
    used = {id(v) for eqn in raw.eqns for v in eqn.invars} | {id(v) for v in raw.outvars}
    results = [running.spell_type(v.aval) for v in raw.outvars]
    for var, leaf, name, donated in zip(
        raw.invars, run.leaves, run.names, run.donated, strict=True
    ):
        kind = running.spell_type(var.aval)
        one = len(getattr(getattr(leaf, "sharding", None), "device_set", ())) == 1
        if not donated or not one or not name or id(var) not in used:
            continue
        if kind in results:
            results.remove(kind)
        else:
            yield name, kind


def in_vain(name: str, kind: str, run: Run, call: Place | None) -> Advice:
    made = creation.of(("jit",), run.fun)
    what = f"argument `{name}` ({kind}) of {storms.name_of(run.fun)} is donated in vain: no result "
    what += "has its shape and dtype, so that nothing can use its memory"
    what += f"\n  it is called at {here(call)}" if call and made and call != made else ""
    hint = f"take `{name}` out of donate_argnums / donate_argnames, or return a {kind} that takes "
    return Advice(what, running.spelled(made or call), f"{hint}its place")


def is_deleted(x) -> bool:
    return isinstance(x, compat.HostArray) and x.is_deleted()


def used_again(trouble: Trouble) -> Iterator[Advice]:
    """An array that is no more."""
    if "deleted" not in trouble.text and "donated" not in trouble.text:
        return
    step = trouble.last
    gone = list(deleted(trouble))
    if step is None or not gone:
        return
    open_block = running.block()
    donations = open_block.find(Donations) if open_block else Donations()
    given = donations.of
    array = min(gone, key=lambda x: (not named_at(step, x), given(x) is None))
    name = named_at(step, array) or running.name_in(step.frame, array)
    donation = given(array)
    name = name or (donation.called if donation else "") or "the array"
    kind = f"{array.dtype}[{','.join(map(str, array.shape))}]"
    what = f"`{name}` ({kind}, shape {tuple(array.shape)}) has no memory any more: "
    if donation is None or donation.place is None:
        what += "it was deleted, by `.delete()` or as a donated argument (donate_argnums) of a call"
        taker = donations.taker(kind, trouble)
        if taker is not None:
            there = "this line" if same_line(taker.call, step.place) else here(taker.call)
            taken = f"{taker.function} donates such an array, its argument `{taker.argument}`"
            what += f"; {taken}: {there}"
        hint = f"copy it before that, `jnp.copy({name})`"
        hint += ", or use the result from there on" if taker is not None else ""
        yield Advice(what, here(step.place), hint, weight=2.5 if taker is None else 3.5)
        return
    function = donation.function or "the function"
    line = places.spell(donation.place)
    again = same_line(donation.place, step.place)
    where = "an earlier run of this line" if again else f"the call at {line}"
    text = places.line_of(donation.place).split("  #")[0].strip()
    what += f"{where} donated it, as argument `{donation.argument}` of {function}"
    what += f": `{text}`" if not again else ""
    root = name.partition("[")[0].partition(".")[0]
    hint = (
        f"use the result from there on (`{root} = ...` at that call, instead of another name), or "
        f"pass a copy, `jnp.copy({name})`, or drop donate_argnums from that jax.jit"
    )
    yield Advice(what, here(step.place), hint, weight=4)


def same_line(one: Place, other: Place) -> bool:
    return (one.file, one.line) == (other.file, other.line)


def given_twice(trouble: Trouble) -> Iterator[Advice]:
    """One array as two arguments of a call, one of which is donated, or both."""
    step = trouble.last
    both = "donate the same buffer twice" in trouble.text
    if step is None or not (both or "previously donated in the same call" in trouble.text):
        return
    for run in running.runs_of(trouble.error):
        for i, (array, name, donated) in enumerate(
            zip(run.leaves, run.names, run.donated, strict=True)
        ):
            others = [j for j, x in enumerate(run.leaves) if x is array and j != i]
            if donated and others and name:
                other, called = run.names[others[0]], running.name_in(step.frame, array)
                shown = f"`{called}`" if called else "one array"
                what = (
                    f"{shown} is passed twice: as argument `{name}`, which is donated, and as "
                    f"argument `{other}`, which then has no memory any more"
                )
                if both:
                    what = (
                        f"{shown} is passed twice, as the arguments `{name}` and `{other}`, and "
                        "both are donated: its memory can be given away only once"
                    )
                hint = (
                    f"pass a copy as `{other}`, jnp.copy({called or other}), or drop donate_argnums"
                )
                yield Advice(what, here(step.place), hint, weight=4)
                return


def deleted(trouble: Trouble) -> Iterator[Any]:
    """The deleted arrays that the frames of an error hold, innermost first."""
    seen: set[int] = set()
    for step in reversed(trouble.steps):
        for value in list(step.values.values()):
            for leaf in leaves(value):
                if is_deleted(leaf) and id(leaf) not in seen:
                    seen.add(id(leaf))
                    yield leaf


def leaves(value) -> list:
    try:
        return jax.tree.leaves(value)
    except Exception:  # no tree of arrays
        return []


def named_at(step: Step, array) -> str:
    """What the user calls an array in the expression that failed."""
    node = syntax.expression_at(step.place)
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} if node else set()
    for name in names:
        held = step.values.get(name, step.frame.f_globals.get(name))
        for path, leaf in running.leaves_with_path(held):
            if leaf is array:
                return name + jax.tree_util.keystr(path)
    return ""
