"""What kind of code a file holds: code to convert, code that builds on JAX, or code left alone."""

import importlib.metadata
import pathlib
import re
import sys
import sysconfig
import types

from malleable import compat
from malleable.python_source.twins import FILES

CONVERT, JAX, PLAIN = "convert", "jax", "plain"

_OURS = pathlib.Path(compat.PACKAGE)
_TOUR = str(_OURS / "tour")
_STDLIB = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_SITE = re.compile(r".*[/\\](?:site|dist)-packages[/\\]([^/\\.]+)[/\\.]")
_NUMPY_INSIDE = re.compile(r"[/\\]numpy[/\\](_core|core|linalg|fft|random|ma|testing)[/\\]")

_MISUSE = str(_OURS / "python_source" / "misuse.py")
_BOXED = tuple(str(_OURS / x) for x in ("arrays", "execution", "frontend", "python_source"))
_kinds: dict[str, str] = {}
_modules: dict[str, bool] = {}
_packages: dict[str, bool] = {"jax": True, "jaxlib": True}


def of_file(filename: str) -> str:
    """The kind of the functions in a file, found once per file."""
    kind = _kinds.get(filename)
    if kind is None:
        kind = _kinds[filename] = _of_file(filename)
    return kind


def _of_file(filename: str) -> str:
    installed = _SITE.match(filename)
    if installed and not is_ours(filename):
        package = installed[1]
        if builds_on_jax(package):
            return JAX
        return PLAIN if _NUMPY_INSIDE.search(filename) else CONVERT
    if filename.startswith("<frozen") or filename.startswith(_STDLIB):
        return CONVERT if filename in FILES else PLAIN
    return PLAIN if is_ours(filename) else CONVERT


def is_installed(filename: str) -> bool:
    """Whether a file is of an installed package, and so none of the user's own."""
    return bool(_SITE.match(filename)) and not is_ours(filename)


def is_ours(filename: str) -> bool:
    """Whether a file is of this library, but for what is there to be converted."""
    ours = filename.startswith(compat.PACKAGE) and not filename.startswith(_TOUR)
    return ours and filename not in FILES


def takes_boxes(fun: types.FunctionType) -> bool:
    """Whether a function is of the part of this library that knows boxes: no effect, no pass."""
    while fun.__code__.co_filename == _MISUSE and hasattr(fun, "__wrapped__"):
        fun = fun.__wrapped__
    return is_ours(fun.__code__.co_filename) and fun.__code__.co_filename.startswith(_BOXED)


def builds_on_jax(package: str) -> bool:
    """Whether an installed package needs JAX: by what it declares, else by what it imported."""
    found = _packages.get(package)
    if found is None:
        found = _packages[package] = _needs_jax(package)
    return found


def _needs_jax(package: str) -> bool:
    try:
        requires = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        names = vars(sys.modules.get(package, types)).values()
        return any(isinstance(x, types.ModuleType) and x.__name__ == "jax" for x in names)
    needed = (re.match(r"[\w.-]+", r) for r in requires if "extra ==" not in r)
    names = {m[0].lower().replace("_", "-") for m in needed if m}
    return bool(names & {"jax", "jaxlib", "equinox", "flax", "optax", "jaxtyping"})


def of_type(kind: type) -> bool:
    """Whether the instances of a class are JAX's, or of an installed package that builds on it."""
    module = kind.__module__
    if module == "builtins" or not isinstance(module, str):
        return False
    found = _modules.get(module)
    if found is None:
        found = _modules[module] = _of_module(module)
    return found


def _of_module(module: str) -> bool:
    package = module.partition(".")[0]
    if package in ("jax", "jaxlib"):
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return bool(file) and of_file(file) == JAX


def is_standard(f) -> bool:
    """Whether a compiled function or method is of Python itself."""
    owner = getattr(f, "__self__", None)
    if owner is None or isinstance(owner, types.ModuleType):
        module = getattr(f, "__module__", None) or type(f).__module__
    else:
        module = (owner if isinstance(owner, type) else type(owner)).__module__
    return isinstance(module, str) and module.partition(".")[0] in sys.stdlib_module_names
