"""A program as plain data, in terms no version of JAX has a say in: what a file holds.

A `Program` is bodies of equations that name variables, constants and each other. It is made from
a jaxpr by `reading`, spelled by `spelling`, becomes a jaxpr again in `building`.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from malleable.compat import Place


class Ref(NamedTuple):
    """A body, named in the parameters of an equation."""

    name: str


class Number(NamedTuple):
    """A number in place of a variable: an array without dimensions, and its type as text."""

    value: np.ndarray
    type: str


class Constant(NamedTuple):
    """An array; of random keys, their data. type: as text, which tells the two apart."""

    value: np.ndarray
    type: str


Atom = str | Number  # the name of a variable or of a constant


@dataclass(frozen=True)
class Equation:
    """outs: (name, type) each, "_" for a result nobody wants; at: frames, innermost first.

    names: the name stack, as ("scope" or "transform", name); context: what else decides what the
    equation computes, where it is not as usual.
    """

    operation: str
    outs: tuple[tuple[str, str], ...]
    ins: tuple[Atom, ...]
    params: dict[str, Any] = field(default_factory=dict)
    at: tuple[Place, ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    context: dict[str, Any] = field(default_factory=dict)


@dataclass
class Body:
    """Equations from `ins`, (name, type) each, to `outs`. called: what the user calls it."""

    name: str
    ins: list[tuple[str, str]]
    equations: list[Equation]
    outs: list[Atom]
    called: str = ""


@dataclass
class Program:
    """bodies: by name, each after those it refers to but for rules that need themselves."""

    main: str
    bodies: dict[str, Body]
    constants: dict[str, Constant]
