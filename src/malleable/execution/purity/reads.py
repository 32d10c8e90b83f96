"""What compiled code was made from beside its arguments, and whether that is what it was.

A function that is compiled into a region runs when the region is traced, and not again: variables,
defaults and arrays of NumPy that it reads are part of the program.
"""

import gc
import operator
import sys
import types

import numpy as np

from malleable.execution.common.code_objects import cells_of
from malleable.execution.common.leaves import flat_leaves
from malleable.python_source import kinds

KEPT = 4096  # functions and variables of which something is known
_changed: dict = {}  # the data that was another once: no region holds it again


class Reads:
    """Variables and attributes, functions with their defaults, and arrays of NumPy."""

    def __init__(self):
        self.names, self.functions, self.arrays = {}, {}, {}
        self.flat: tuple = [], []  # of all functions

    def add(self, other: "Reads") -> None:
        self.names = other.names | self.names
        self.arrays = other.arrays | self.arrays
        self.keep(other.functions | self.functions)

    def keep(self, functions: dict) -> None:
        self.functions = functions
        self.flat = tuple([x for f in functions.values() for x in f[side]] for side in (0, 1))

    def variable(self, f: types.FunctionType, name: str, value) -> bool:
        """Note what a function reads by a name; False for data that keeps changing."""
        space = cells_of(f).get(name, f.__globals__)
        if type(space) is dict and name not in space:
            return True  # a builtin
        return self.name(space, space, name, value) and self.data(value)

    def name(self, owner, place, name: str, value) -> bool:
        self.names.setdefault((id(owner), name), (place, name, value, owner))
        return (id(owner), name) not in _changed

    def attribute(self, owner, name: str):
        """An attribute of a module or class, as it is now."""
        value = getattr(owner, name)
        if is_of_user(owner):
            for holder in getattr(owner, "__mro__", (owner,)):
                self.name(holder, vars(holder), name, vars(holder).get(name))
                if name in vars(holder):
                    break
        return value

    def function(self, f: types.FunctionType) -> bool:
        """Note its code and defaults; False where these keep changing.

        A look at all that functions refer to takes a tenth of the time of one look at each field:
        whatever hears audit events hears of each. Only where it shows another object is it asked
        whether that is a field: annotations, too, are made when somebody reads them.
        """
        named = f.__kwdefaults__ or {}
        parts = f, named
        self.keep({id(f): (parts, gc.get_referents(*parts), fields_of(f)), **self.functions})
        return id(f) not in _changed and self.data((f.__defaults__, [*named.values()]))

    def data(self, value) -> bool:
        arrays = [x for x in flat_leaves(value) if isinstance(x, np.ndarray) and x.flags.writeable]
        self.arrays |= {id(x): (x, x.tobytes()) for x in arrays if id(x) not in self.arrays}
        return _changed.keys().isdisjoint(map(id, arrays))

    def are_others(self) -> bool:
        """Whether one is another now, or too many are known, of functions made anew and anew."""
        if len(self.names) > KEPT:
            return True
        for place, name, value, owner in [*self.names.values()]:  # no generator: half as fast
            now = place.get(name) if type(place) is not types.CellType else value_of(place)
            if now is not value:
                if not callable(value):
                    _changed[id(owner), name] = owner
                return True
        parts, held = self.flat
        if is_other(gc.get_referents(*parts), held):
            known = self.functions
            new = {k: p for k, (p, _, fields) in known.items() if is_other(fields_of(p[0]), fields)}
            _changed.update(new)
            if new:
                return True
            self.keep({k: (p, gc.get_referents(*p), x) for k, (p, _, x) in known.items()})
        for x, held in [*self.arrays.values()]:
            if x.tobytes() != held:
                _changed[id(x)] = x
                return True
        return False


def fields_of(f: types.FunctionType) -> list:
    """What a function is made of that somebody may set."""
    named = f.__kwdefaults__ or {}
    return [f.__code__, f.__defaults__, f.__kwdefaults__, *named, *named.values()]


def is_other(now: list, held: list) -> bool:
    return len(now) != len(held) or not all(map(operator.is_, now, held))


def value_of(cell: types.CellType):
    """What a variable holds that functions close over; the cell itself if it has no value."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def is_of_user(owner) -> bool:
    """Whether a module or class is the user's own; one of a notebook has no file."""
    module = owner.__name__ if isinstance(owner, types.ModuleType) else owner.__module__
    if module.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return not file or (kinds.of_file(file) == kinds.CONVERT and not kinds.is_installed(file))
