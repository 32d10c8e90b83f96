"""The user's frames around a step, innermost first, each with the values its body has by now."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from malleable import compat
from malleable.compat import Place
from malleable.inspection import places
from malleable.inspection.debugging import variables
from malleable.inspection.debugging.stepping import Step


@dataclass(frozen=True, eq=False)
class Frame:
    """A line of the user's, and the body that it belongs to.

    chain: the line, then those that called it in the same body; env: {variable: value}; letters:
    the program's own names; given: {name: variable} known from elsewhere; cotangents: whether the
    body computes these, which no name of the user's means.
    """

    place: Place | None
    chain: tuple[Place, ...]
    program: compat.Jaxpr
    env: Mapping
    letters: Mapping
    given: Mapping[str, Any]
    cotangents: bool

    def names(self) -> dict[str, Any]:
        """{the user's name: variable} as this frame sees them."""
        known = self.given or variables.named_parameters(self.program)
        found = {name: v for name, v in known.items() if v in self.env}
        if self.cotangents:
            return found
        return found | variables.visible(self.program, self.chain, self.env)

    def rest(self) -> dict[str, Any]:
        """{%a: variable} of what has no name of the user's."""
        taken = {*self.names().values()}
        unnamed = (v for v in self.env if v not in taken and hasattr(v, "aval"))
        return {f"%{self.letters.get(v, '_')}": v for v in unnamed}

    def variable(self, name: str) -> Any:
        """The variable of a name: of this frame's, of any other's, of the program's; or None."""
        own = self.names()
        if name in own:
            return own[name]
        every = {} if self.cotangents else variables.every(self.program)
        for v, known in every.items():
            if known == name and v in self.env:
                return v
        letter = name.removeprefix("%")
        return next((v for v in self.env if self.letters.get(v) == letter), None)


def frames(step: Step, program: compat.Jaxpr, arguments: dict) -> list[Frame]:
    """Around a step. arguments: {name: variable} of the whole program."""
    found: list[Frame] = []
    for eqn, body, env, around in _levels(step, program):
        chain = tuple(p for p in compat.user_places(eqn))
        own = tuple(p for p in chain if places.is_own(p.file)) or chain
        cotangents = any("transpose(" in str(e.source_info.name_stack) for e in around)
        given = arguments if body is program else {}
        for place in own or (None,):
            inside = chain[chain.index(place) :] if place else ()
            found.append(Frame(place, inside, body, env, step.names, given, cotangents))
    lined = [f for f in found if f.place is not None]
    named = [f for f in lined if f.place and places.is_own(f.place.file)] or lined
    if named and found[0].place is not None and found[0] in named:
        return named
    # an equation that JAX made: the values are of its body, the line is of the next one out
    start = named[0] if named else None
    place = start.place if start else places.own(list(step.chain))
    first = found[0]
    inner = Frame(place, (), first.program, first.env, first.letters, first.given, first.cotangents)
    return [inner, *named[1:]] if start and start.program is first.program else [inner, *named]


def _levels(step: Step, program: compat.Jaxpr):
    """(equation, body it stands in, values there, equations around) from inside out."""
    around, before = [], step.before
    while before is not None:
        around.append(before.eqn)
        before = before.before
    yield step.eqn, step.program, step.env, around
    before = step.before
    while before is not None:
        around = around[1:]
        outer = before.before
        body = outer.program if outer is not None else program
        yield before.eqn, body, before.env, around
        before = outer
