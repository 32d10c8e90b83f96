"""Which functions and methods go over, change, order, or ask nothing of their arguments."""

import collections
import math
import types

import numpy as np

from malleable.python_source.twins import ITERATORS

GO_OVER = frozenset(
    (dict, list, tuple, set, sorted, iter, sum, min, max, enumerate, zip, map, reversed)
)
# what does not depend on the order of what they go over
ANY_ORDER = frozenset((sorted, sum, min, max, any, all))
AT_ONCE = frozenset((list, tuple, sorted, sum, min, max, any, all, math.fsum, math.prod))
LAZY = frozenset((zip, enumerate, map, *ITERATORS))
VIEWS = frozenset(("keys", "values", "items"))
DICT_ASKS = VIEWS | {"get", "pop", "popitem", "setdefault"}
ASKS = DICT_ASKS | {"add", "discard", "remove", "index", "count", "startswith", "endswith"}
# what takes a list of traced length as any object
LISTS = frozenset((list, collections.deque, isinstance, id, callable))
CONTAINERS = frozenset((tuple, set, frozenset, collections.deque, collections.Counter, dict, str))

# methods that change what they are of
_CHANGES = """append extend insert pop remove sort reverse clear update setdefault popitem add
    discard appendleft extendleft popleft rotate move_to_end intersection_update fill resize put
    difference_update symmetric_difference_update itemset __setitem__ __delitem__ __iadd__ __ior__
    __iand__ __isub__ __ixor__ __imul__"""
MUTATORS = frozenset(_CHANGES.split())
# ufuncs that Python can ask of None, too
ASKING = {np.equal, np.not_equal, np.logical_not, np.logical_and, np.logical_or}


def are_ordered(args: tuple) -> bool:
    """Whether a list, or what is to be put into it, has objects with an order written in Python."""
    return any(
        type(getattr(type(x), "__lt__", None)) is types.FunctionType for x in (*args[0], *args[1:])
    )
