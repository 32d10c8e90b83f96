"""An array is used after its memory was given away: to which argument, and on which line."""

import ast
import functools
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from malleable import compat
from malleable.compat import Place
from malleable.inspection import places
from malleable.inspection.advice.evidence import creation, sources, wording
from malleable.inspection.advice.evidence.diagnosis import Diagnosis, Said
from malleable.inspection.advice.evidence.trouble import Step, Trouble, here
from malleable.inspection.advice.hint import Advice
from malleable.inspection.advice.watching import direct, running, storms
from malleable.inspection.advice.watching.running import Observer, Run
from malleable.programs.types import type_text


@dataclass(frozen=True)
class Donation:
    """One array that was given away; argument: its path in the call."""

    array: weakref.ref
    argument: str
    function: str
    place: Place | None
    called: str  # what the user called it there


class Donations(Observer):
    """Remembers which call was given which array, as long as there is the array."""

    given: ClassVar[dict[int, Donation]] = {}  # in earlier blocks, too

    def __init__(self):
        self.programs: set[compat.Jaxpr] = set()

    def follows(self, running: compat.Running) -> bool:
        return any(running.donated)

    def called(self, run: Run, caller):
        if not any(run.donated):
            return
        fresh = run.program not in self.programs
        self.see(run, caller, fresh)
        if run.own and fresh:
            for name, kind in unusable(run):
                place = running.place_in(caller)
                running.warn(in_vain(name, kind, run, place), place)

    def ran(self, run: Run, caller):
        if not run.within and any(run.donated):
            self.see(run, caller, run.program not in self.programs)

    def see(self, run: Run, caller, fresh: bool):
        self.programs.add(run.program)
        place, function = running.place_in(caller), storms.name_of(run.fun) if run.fun else ""
        for array, name, donated in zip(run.leaves, run.names, run.donated, strict=True):
            if donated and isinstance(array, compat.HostArray) and not array.is_deleted():
                called = running.name_in(caller, array) if fresh else ""
                gone = functools.partial(_forget, self.given, id(array))
                gift = Donation(weakref.ref(array, gone), name, function, place, called)
                self.given[id(array)] = gift


def _forget(given: dict, key: int, _) -> None:
    given.pop(key, None)


def donation_of(array) -> Donation | None:
    """How an array was given away; None where it was deleted in another way, or not seen."""
    found = Donations.given.get(id(array))
    known = found is not None and found.array() is array
    return found if known and direct.was_donated(array) is not False else None


def unusable(run: Run) -> Iterator[tuple[str, str]]:
    """(path, type) of the donated arguments that no result can take the memory of.

    JAX gives each result the memory of a donated argument of the same shape and dtype: see
    `_set_up_aliases` in jax/_src/interpreters/mlir.py. What the program does not use is left out.
    """
    raw = run.program.jaxpr
    used = {id(v) for eqn in raw.eqns for v in eqn.invars} | {id(v) for v in raw.outvars}
    results = [type_text(v.aval) for v in raw.outvars]
    for var, leaf, name, donated in zip(
        raw.invars, run.leaves, run.names, run.donated, strict=True
    ):
        kind = type_text(var.aval)
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
    return Advice(what, here(made or call), f"{hint}its place")


def is_deleted(x) -> bool:
    return isinstance(x, compat.HostArray) and x.is_deleted()


def used_again(found: re.Match, trouble: Trouble, step: Step) -> Said | None:
    """A deleted array."""
    gone = list(deleted(trouble))
    if not gone:
        return None
    with running.unobserved():
        array = min(gone, key=lambda x: (not named_at(step, x), donation_of(x) is None))
        donation, donated = donation_of(array), direct.was_donated(array)
    name = named_at(step, array) or running.name_in(step.frame, array)
    name = name or (donation.called if donation else "") or "the array"
    what = (
        f"`{name}` ({wording.of_type(array)}, shape {tuple(array.shape)}) has no memory any more: "
    )
    if donation is None or donation.place is None:
        return _not_seen(donated, name, what)
    function = donation.function or "the function"
    line = places.spell(donation.place)
    again = same_line(donation.place, step.place)
    where = "an earlier run of this line" if again else f"the call at {line}"
    text = places.line_of(donation.place).split("  #")[0].strip()
    what += f"{where} donated it, as argument `{donation.argument}` of {function}"
    what += f": `{text}`" if not again else ""
    root = name.partition("[")[0].partition(".")[0]
    hint = f"use the result from there on (`{root} = ...` at that call, instead of another name), "
    hint += f"or pass a copy, `jnp.copy({name})`, or drop donate_argnums / donate_argnames from "
    hint += "that jax.jit"
    return Said(what, hint)


def _not_seen(donated: bool | None, name: str, what: str) -> Said:
    """A deleted array, and no call was seen that took it."""
    hint = f"copy it before that, `jnp.copy({name})`"
    if donated is False:
        hint += ", or call .delete() later"
        return Said(f"{what}`.delete()` was called on it", hint, weight=2.5)
    call = "a call with donate_argnums / donate_argnames"
    what += f"{call} took it" if donated else f"it was deleted, by `.delete()` or by {call}"
    hint += ", or use the result of the call from there on"
    return Said(what, hint, weight=2.5)


def same_line(one: Place, other: Place) -> bool:
    return (one.file, one.line) == (other.file, other.line)


def given_twice(found: re.Match, trouble: Trouble, step: Step) -> Said | None:
    """One array as two arguments of a call, one of which is donated, or both."""
    both = found[1] is not None
    for run in running.runs_of(trouble.error):
        for i, (array, name, donated) in enumerate(
            zip(run.leaves, run.names, run.donated, strict=True)
        ):
            others = [j for j, x in enumerate(run.leaves) if x is array and j != i]
            if donated and others and name:
                other, called = run.names[others[0]], running.name_in(step.frame, array)
                shown = f"`{called}`" if called else "one array"
                what = f"{shown} is passed twice: as argument `{name}`, which is donated, and as "
                what += f"argument `{other}`, which then has no memory any more"
                if both:
                    what = f"{shown} is passed twice, as the arguments `{name}` and `{other}`, and "
                    what += "both are donated: its memory can be given away only once"
                hint = f"pass a copy as `{other}`, jnp.copy({called or other}), or drop "
                hint += "donate_argnums"
                return Said(what, hint)
    return None


def deleted(trouble: Trouble) -> Iterator[Any]:
    """The deleted arrays that the frames of an error hold, innermost first."""
    seen: set[int] = set()
    for step in reversed(trouble.steps):
        for value in list(step.values.values()):
            for _, leaf in wording.leaves(value, ""):
                if is_deleted(leaf) and id(leaf) not in seen:
                    seen.add(id(leaf))
                    yield leaf


def named_at(step: Step, array) -> str:
    """What the user calls an array in the expression that failed."""
    node = sources.expression_at(step.place)
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} if node else set()
    for name in names:
        held = step.values.get(name, step.frame.f_globals.get(name))
        for path, leaf in wording.leaves(held, name):
            if leaf is array:
                return path
    return ""


DELETED = (
    Diagnosis("deleted|donated", used_again),
    Diagnosis("(donate the same buffer twice)|previously donated in the same call", given_twice),
)
