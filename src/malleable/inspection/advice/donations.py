"""An array is used after its memory was given away: to which argument, and on which line."""

import ast
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax

from malleable import compat
from malleable.compat import Place
from malleable.errors import Advice
from malleable.inspection import places
from malleable.inspection.advice import running, storms, syntax
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


class Donations(Observer):
    """Remembers which arrays were donated, by what call."""

    def __init__(self):
        self.given: dict[int, Donation] = {}

    def called(self, run: Run, caller):
        self.see(run, caller)

    def ran(self, run: Run, caller):
        if not run.within:
            self.see(run, caller)

    def see(self, run: Run, caller):
        if not any(run.donated):
            return
        place, function = running.place_in(caller), storms.name_of(run.fun) if run.fun else ""
        for array, name, donated in zip(run.leaves, run.names, run.donated, strict=True):
            if donated and not is_deleted(array):
                called = running.name_in(caller, array)
                gift = Donation(weakref.ref(array), name, function, place, called)
                self.given[id(array)] = gift

    def of(self, array) -> Donation | None:
        """How an array was given away."""
        found = self.given.get(id(array))
        return found if found and found.array() is array else None


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
    given = open_block.find(Donations).of if open_block else lambda array: None
    array = min(gone, key=lambda x: (given(x) is None, not named_at(step, x)))
    name = named_at(step, array) or running.name_in(step.frame, array)
    donation = given(array)
    name = name or (donation.called if donation else "") or "the array"
    kind = f"{array.dtype}[{','.join(map(str, array.shape))}]"
    what = f"`{name}` ({kind}, shape {tuple(array.shape)}) has no memory any more: "
    if donation is None or donation.place is None:
        what += "it was deleted, by `.delete()` or as a donated argument (donate_argnums) of a call"
        yield Advice(what, here(step.place), f"copy it before that: {name}.copy()", weight=2.5)
        return
    function = donation.function or "the function"
    line = places.spell(donation.place)
    again = (donation.place.file, donation.place.line) == (step.place.file, step.place.line)
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


def given_twice(trouble: Trouble) -> Iterator[Advice]:
    """One array as two arguments of a call, one of which is donated."""
    if "previously donated in the same call" not in trouble.text or trouble.last is None:
        return
    step = trouble.last
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
