"""Every name, method, rule and closure cell of JAX: to see which of them a program replaces."""

import sys
import types

ROOTS = ("jax", "jaxlib")


def _inside(where, value):
    """(where, value) of a function's code, defaults and closure cells."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, types.FunctionType):
        yield f"{where}.__code__", value.__code__
        yield f"{where}.__defaults__", value.__defaults__
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or ()):
            yield f"{where}.<{name}>", cell.cell_contents if cell != types.CellType() else None


def _found(module):
    """(where, value) of what stands in a module, in its classes and in its tables by primitive."""
    for name, value in list(vars(module).items()):
        where = f"{module.__name__}.{name}"
        yield where, value
        yield from _inside(where, value)
        if isinstance(value, type) and value.__module__ == module.__name__:
            for attribute, method in list(vars(value).items()):
                yield f"{where}.{attribute}", method
                yield from _inside(f"{where}.{attribute}", method)
        if type(value) is dict:
            for key, rule in list(value.items()):
                if callable(rule):
                    yield f"{where}[{key}]", rule
                    yield from _inside(f"{where}[{key}]", rule)


def names():
    """{where: value}; holding the values, so that none is collected and its place taken."""
    modules = [m for name, m in sorted(sys.modules.items()) if name.partition(".")[0] in ROOTS]
    return {where: value for module in modules for where, value in _found(module)}


def changed(before, after):
    """Where another value is now, or none, or one that a class of JAX did not have."""
    other = [where for where, value in before.items() if after.get(where, before) is not value]
    added = [
        where for where in after.keys() - before if _is_class(where.rpartition(".")[0], before)
    ]
    return sorted([*other, *added])


def _is_class(where, before):
    return isinstance(before.get(where), type)
