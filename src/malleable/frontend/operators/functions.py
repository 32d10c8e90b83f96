"""Which functions and methods of Python go over their arguments, and how."""

import collections
import math
import weakref

from malleable.python_source.twins import ITERATORS

GO_OVER = frozenset(
    (dict, list, tuple, set, sorted, iter, sum, min, max, enumerate, zip, map, reversed)
)
ANY_ORDER = frozenset((sorted, sum, min, max, any, all))
AT_ONCE = frozenset((list, tuple, sorted, sum, min, max, any, all, math.fsum, math.prod))
LAZY = frozenset((zip, enumerate, map, *ITERATORS))
DICT_ASKS = frozenset(["get", "keys", "values", "items", "pop", "popitem", "setdefault"])
ASKS = DICT_ASKS | {"add", "discard", "remove", "index", "count", "startswith", "endswith"}
LISTS = frozenset(
    (list, collections.deque, isinstance, id, callable)
)  # what takes such a list as any object
CONTAINERS = frozenset((tuple, set, frozenset, collections.deque, collections.Counter, dict, str))


class Plan:
    """How a caller calls one function, kept among its attributes. A copy elsewhere is void."""

    __slots__ = ("caller", "code", "fun", "run")

    def __init__(self, caller=None, fun=None, run=None):
        self.caller, self.run = caller, run
        self.fun, self.code = fun and weakref.ref(fun), fun and fun.__code__

    def fits(self, caller, fun) -> bool:
        return self.caller is caller and self.fun() is fun and self.code is fun.__code__

    def __reduce__(self):
        return Plan, ()
