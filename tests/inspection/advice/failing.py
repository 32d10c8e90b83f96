"""Programs that fail, each with the line to edit marked `#!`, and what its advice has to say."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Failing:
    """path, both, fix: patterns that the note has to match; of fix, one is enough."""

    run: Callable
    path: str
    both: tuple[str, ...]
    fix: tuple[str, ...]

    @property
    def name(self):
        return self.run.__name__.strip("_")

    @property
    def lines(self):
        """`failing_shapes.py:12` for every marked line; one of them has to be named."""
        code = self.run.__code__
        with open(code.co_filename) as file:
            text = file.read().splitlines()
        last = max((line for *_, line in _lines(code) if line), default=code.co_firstlineno)
        marked = [n for n in range(code.co_firstlineno, last + 1) if text[n - 1].endswith("#!")]
        return [f"{code.co_filename.rpartition('/')[2]}:{n}" for n in marked]


def _lines(code):
    yield from code.co_lines()
    for const in code.co_consts:
        if hasattr(const, "co_lines"):
            yield from _lines(const)


PROGRAMS: list[Failing] = []


def failing(path, both=(), fix=()):
    """Decorate a program that raises."""

    def add(run):
        PROGRAMS.append(Failing(run, path, tuple(both), tuple(fix)))
        return run

    return add
