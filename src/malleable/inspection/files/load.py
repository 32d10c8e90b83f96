"""Read what `save` wrote: `load(path)` is a function again. Nothing of the file is run by it."""

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from malleable import compat
from malleable.errors import MalleableError
from malleable.inspection.files import building, calls, portable
from malleable.inspection.files.format import container, spelling, trees, types
from malleable.programs.evaluate import evaluate, inlined
from malleable.python_source.misuse import called_as


class Loaded:
    """A function from a file: call it as the one that was saved, on arguments of the same types.

    metadata: what was written about it, your own under "metadata"; source_lines: the lines it
    comes from, as text; program: its jaxpr, None unless it is transformable. Raises MalleableError
    for arguments of another structure, shape or dtype, naming their path.
    """

    def __init__(
        self,
        about: dict[str, Any],
        program: compat.Jaxpr | None,
        run: Callable[..., Any],
        rebuild: trees.Rebuild,
    ):
        self.metadata: dict[str, Any] = about
        self.program: compat.Jaxpr | None = program
        self.source_lines: list[str] = about["source_lines"]
        self.__name__: str = about["function"]
        self.__qualname__: str = self.__name__
        self.__signature__: inspect.Signature = calls.read_signature(about["parameters"])
        self._run, self._rebuild = run, rebuild
        self._kinds = [(path, kind) for path, kind in about["arguments"]]

    @property
    def is_transformable(self) -> bool:
        """Whether vmap, every derivative and passes take it."""
        return self.program is not None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        static = self.metadata.get("static", ())
        given = calls.arrange(self.__signature__, args, kwargs, self.__name__, static=static)
        leaves = calls.fitted_arguments(given, self.metadata["takes"], self._kinds, self.__name__)
        return self._rebuild.tree(self.metadata["gives"], iter(self._run(leaves)))

    def __repr__(self) -> str:
        takes = ", ".join(f"{path}: {kind}" for path, kind in self._kinds)
        gives = ", ".join(self.metadata["results"])
        order = self.metadata.get("gradient_order", 0)
        can = "grad, vmap, rewriting" if self.is_transformable else f"gradients of order {order}"
        by = self.metadata["by"]
        return (
            f"<{self.__name__}({takes}) -> {gives}; {can}; written {self.metadata['written']} "
            f"by malleable {by['malleable']} on JAX {by['jax']}>"
        )


@called_as("load(path)")
def load(path: str | os.PathLike[str], *, nodes: Any = None, edited: bool = False) -> Loaded:
    """The function in a file that `save` wrote.

    Nothing of the file is run: operations are looked up by name, and traced. nodes: where the
    result has nodes of your own classes, an object of each (or a list of them); named tuples
    come back as their own class then, too. edited: read a transformable file that was changed
    by hand, which is refused otherwise.
    Raises MalleableError for a file that is damaged, of something else, or of a newer format.

    >>> load("README.md")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    malleable.errors.MalleableError: this is no file of malleable.save
      at <doctest malleable.inspection.files.load.load[0]>:1 in <module>
      hint: ...
    """
    data = container.read_bytes(path)
    if data.startswith(container.TEXT.encode()):
        return _load_program(data, nodes, edited)
    header, sections = container.unpack(data)
    if set(sections) != {"stablehlo"}:
        raise MalleableError("the file holds no function")
    about, rebuild = _checked(header, nodes)
    if type(about.get("gradient_order")) is not int:
        raise MalleableError("the header of the file makes no sense")
    exported = portable.restore(sections["stablehlo"], about["by"]["jax"], about["gradient_order"])
    got = [len(exported.in_avals), len(exported.out_avals)]
    if got != [len(about["arguments"]), len(about["results"])]:
        raise MalleableError("the header of the file does not fit the function in it")
    name = about["function"]
    run = functools.partial(portable.run_exported, exported, name)
    return Loaded(about, None, run, rebuild)


def _load_program(data: bytes, nodes, edited: bool) -> Loaded:
    header, lines = container.unpack_text(data, edited)
    about, rebuild = _checked(header, nodes)
    if about["wide"] and jnp.arange(0.0).dtype != "float64":
        hint = 'jax.config.update("jax_enable_x64", True) before loading'
        raise MalleableError("the program computes with 64 bits, which are off", hint=hint)
    program = building.build(spelling.parse(lines), about["results"])
    kinds = [kind for _, kind in about["arguments"]]
    if kinds != list(map(types.unparse, program.in_avals)):
        raise MalleableError("the header of the file does not fit the program in it")
    run = inlined(functools.partial(_replay, program))
    return Loaded(about, program, run, rebuild)


def _replay(program: compat.Jaxpr, leaves: Sequence) -> list:
    return list(map(compat.as_array, evaluate(program, list(map(compat.as_array, leaves)))))


_TEXTS = ("function", "written")
_LISTS = ("parameters", "arguments", "results", "source_lines")


def _checked(about: dict, nodes) -> tuple[dict, trees.Rebuild]:
    """A header that says all that is needed, and what makes the results."""
    try:
        sound = all(isinstance(about[name], str) for name in _TEXTS)
        sound &= all(isinstance(about[name], list) for name in _LISTS)
        sound &= all(isinstance(x, str) for x in (*about["source_lines"], *about["results"]))
        sound &= all(isinstance(x, str) for pair in about["arguments"] for x in pair)
        sound &= all(len(pair) == 2 for pair in (*about["arguments"], *about["parameters"]))
        sound &= all(isinstance(about["by"][name], str) for name in ("malleable", "jax"))
        sound &= {"takes", "gives", "wide", "metadata"} <= set(about)
        sound &= all(isinstance(x, str) for x in about.get("static", ()))
        calls.read_signature(about["parameters"])
        for kind in (*(k for _, k in about["arguments"]), *about["results"]):
            calls.check_kind(kind)
        rebuild = trees.Rebuild(nodes)
        missing = rebuild.missing(about["gives"])
    except (KeyError, TypeError, ValueError) as err:
        raise MalleableError("the header of the file makes no sense") from err
    if not sound:
        raise MalleableError("the header of the file makes no sense")
    if missing:
        raise MalleableError(
            f"the result has a node of a class that JAX was told of, {missing}",
            hint="load(path, nodes=an object of it, equal but for its arrays)",
        )
    slots = sum(_slots(about["gives"]))
    if slots != len(about["results"]):
        raise MalleableError(f"the result has {slots} arrays, and {len(about['results'])} types")
    return about, rebuild


def _slots(found):
    """1 for every array in the description of a pytree."""
    if isinstance(found, list):
        for x in found:
            yield from _slots(x)
    elif isinstance(found, dict):
        if found == {"leaf": "array"}:
            yield 1
        for key, x in found.items():
            if key in ("tuple", "of"):
                yield from _slots(x)
            elif key == "dict":
                yield from (n for _, y in x for n in _slots(y))
