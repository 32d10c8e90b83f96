"""What `malleable.errors.explain()` knows about the errors of JAX, one module per family.

A family is a plain function of a `Trouble` (the error, its text, every frame of its whole
traceback with the values of its variables) that yields `Advice`; it sits in FAMILIES below.
A family that has to see what happens before the error (what was donated, which key was used)
appends a context manager of its own to `malleable.errors.advisers`, which gives a function
error -> advice.

The heaviest advice is shown. 1: a general remark; 2: names the line; 3: names the line and what
disagrees there. Whoever is not sure stays silent: a wrong sentence is worse than none.
"""

import contextlib
import os
from collections.abc import Callable, Iterator

from malleable import compat, errors
from malleable.inspection.advice import observers as observers
from malleable.inspection.advice import steps as steps
from malleable.inspection.advice.ecosystem import ecosystem
from malleable.inspection.advice.evidence import creation
from malleable.inspection.advice.evidence.trouble import Trouble
from malleable.inspection.advice.hint import Advice
from malleable.inspection.advice.libraries import libraries
from malleable.inspection.advice.tracing.axes import axes
from malleable.inspection.advice.tracing.branches import branches
from malleable.inspection.advice.tracing.calls import calls
from malleable.inspection.advice.tracing.derivative_rules import derivative_rules
from malleable.inspection.advice.tracing.derivatives import derivatives
from malleable.inspection.advice.tracing.loops import loops
from malleable.inspection.advice.tracing.trees import trees
from malleable.inspection.advice.values.concrete import concrete, truths
from malleable.inspection.advice.values.dtypes import dtypes
from malleable.inspection.advice.values.leaks import leaks
from malleable.inspection.advice.values.shapes import shapes

_OURS = compat.PACKAGE + os.sep

FAMILIES: list[Callable[[Trouble], Iterator[Advice]]] = [
    concrete,
    truths,
    leaks,
    axes,
    trees,
    loops,
    branches,
    derivatives,
    derivative_rules,
    calls,
    shapes,
    dtypes,
    libraries,
    ecosystem,
]


@contextlib.contextmanager
def watch() -> Iterator[errors.Adviser]:
    """While open, JAX's transformations remember where they were called: see `creation`."""
    with compat.whole_tracebacks(), creation.recorded():
        yield advise


def advise(error: Exception) -> Iterator[Advice]:
    """What every family says about an error; one that fails is raised after the others."""
    trouble, failures = Trouble(error), []
    _unlink(error)
    for family in FAMILIES:
        try:
            yield from family(trouble)
        except Exception as failure:  # what one family cannot read, another may
            failures.append(failure)
    if failures:
        raise failures[0]


def _unlink(error: Exception) -> None:
    """Take our own frames out of the traceback: it is as it was without us."""
    before = error.__traceback__
    while before is not None and (inner := before.tb_next) is not None:
        if inner.tb_frame.f_code.co_filename.startswith(_OURS):
            before.tb_next = inner.tb_next
        else:
            before = inner


errors.advisers.append(watch)
