"""A compiler for JAX programs that its users can read and change."""

import ast
import importlib
import pkgutil
import sys

__version__ = "0.2.0"


def _sources() -> dict[str, str]:
    """The module of each public name, as the stub beside this file has it."""
    stub = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in imports for alias in node.names}


_SOURCES = _sources()
__all__ = sorted(_SOURCES)  # pyright: ignore[reportUnsupportedDunderAll]


def __dir__():
    return __all__


def __getattr__(name: str):
    """A public name, loaded now: `import malleable` itself loads and starts nothing (PEP 562)."""
    if name not in _SOURCES:
        what = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(what, name=name, obj=sys.modules[__name__])
    names = vars(importlib.import_module(_SOURCES[name]))
    if name not in names:  # a module
        importlib.import_module(f"{_SOURCES[name]}.{name}")
    globals()[name] = names[name]
    return names[name]
