"""The Python source of functions of the standard library: heapq, bisect, iterators, colorsys.

Given traced values, `heapq.heappush` is converted from the text that stands in `heapq.py`.
"""

import ast
import bisect
import collections
import colorsys
import functools
import heapq
import itertools
import pathlib
import types
from collections.abc import Callable

from malleable.python_source import iterators

_MODULES = {"_heapq": heapq, "_bisect": bisect}
FILES = frozenset(str(module.__file__) for module in (*_MODULES.values(), iterators, colorsys))
_ORDERS = (f for each in functools._convert.values() for _, f in each)  # type: ignore[attr-defined]
_KINDS = (collections.ChainMap, collections.UserDict, collections.UserList)
_METHODS = (f for kind in _KINDS for f in vars(kind).values() if isinstance(f, types.FunctionType))
# what `functools.total_ordering` adds to a class, and collections over those of the user's; the
# code of a decorator's wrapper is that of others, too
CONVERTED = frozenset(f.__code__ for f in (*_ORDERS, *_METHODS) if not hasattr(f, "__wrapped__"))
ITERATORS: dict[type, Callable] = {
    filter: iterators.filter_items,
    itertools.chain: iterators.chain,
    itertools.filterfalse: iterators.filterfalse,
    itertools.takewhile: iterators.takewhile,
    itertools.dropwhile: iterators.dropwhile,
}
# those that ask what they are given themselves: converted whoever calls them
ALWAYS: dict[Callable, Callable] = {
    functools.cmp_to_key: iterators.cmp_to_key,
    itertools.compress: iterators.compress,
    itertools.groupby: iterators.groupby,
}


def twin(f) -> Callable | None:
    """The function written in Python that a compiled one stands for."""
    if type(f) is not types.BuiltinFunctionType:
        return None
    module = _MODULES.get(getattr(f, "__module__", None) or "")
    return None if module is None else _written(module).get(f.__name__)


@functools.cache
def _written(module: types.ModuleType) -> dict[str, Callable]:
    """The functions of a module by name, as its file defines them."""
    tree = ast.parse(pathlib.Path(str(module.__file__)).read_text())
    tree.body = [stmt for stmt in tree.body if isinstance(stmt, ast.FunctionDef)]
    space = {"__name__": module.__name__}
    exec(compile(tree, str(module.__file__), "exec"), space)
    if module is bisect:  # these have a counterpart for arrays
        space |= {name: getattr(bisect, name) for name in ("bisect_left", "bisect_right")}
    return space  # type: ignore[return-value]
