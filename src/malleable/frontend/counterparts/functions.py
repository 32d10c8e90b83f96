"""Which functions and methods of Python go over their arguments, and how."""

import collections
import math

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
