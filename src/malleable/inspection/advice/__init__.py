"""What `malleable.errors.explain()` knows about the errors of JAX, one topic per module.

A topic is a function of a `Trouble` (the error, its text, every frame of its whole traceback with
the values of its variables) that yields `Advice`: an ordered list of `Diagnosis` rows, mostly. It
sits in TOPICS below. What has to see what happens before the error (what was donated, which key
was used) is an Observer of all that runs, in OBSERVERS.

The heaviest advice is shown. 1: a general remark; 2: names the line; 3: names the line and what
disagrees there. Whoever is not sure stays silent: a wrong sentence is worse than none.
"""

import contextlib
import os
from collections.abc import Callable, Iterator

from malleable import compat, errors
from malleable.inspection.advice import steps as steps
from malleable.inspection.advice.ecosystem import ecosystem, libraries
from malleable.inspection.advice.evidence import creation
from malleable.inspection.advice.evidence.diagnosis import topic
from malleable.inspection.advice.evidence.trouble import Trouble
from malleable.inspection.advice.hint import Advice
from malleable.inspection.advice.runtime.checks import CHECKS
from malleable.inspection.advice.runtime.primitives import RULES
from malleable.inspection.advice.runtime.randomness import KEYS
from malleable.inspection.advice.runtime.runtime import HOST, Memory
from malleable.inspection.advice.runtime.shard_specs import SHARD_SPECS, VARYING
from malleable.inspection.advice.runtime.sharding import COLLECTIVES, SHARDING
from malleable.inspection.advice.tracing.axes import axes
from malleable.inspection.advice.tracing.branches import branches
from malleable.inspection.advice.tracing.calls import calls
from malleable.inspection.advice.tracing.derivatives import derivative_rules, derivatives
from malleable.inspection.advice.tracing.loops import loops
from malleable.inspection.advice.tracing.trees import trees
from malleable.inspection.advice.values.concrete import concrete, truths
from malleable.inspection.advice.values.dtypes import dtypes
from malleable.inspection.advice.values.leaks import leaks
from malleable.inspection.advice.values.shapes import shapes
from malleable.inspection.advice.watching import running
from malleable.inspection.advice.watching.changed import Changed
from malleable.inspection.advice.watching.constant import Constant
from malleable.inspection.advice.watching.donations import DELETED, Donations
from malleable.inspection.advice.watching.indices import Indices
from malleable.inspection.advice.watching.keys import Keys
from malleable.inspection.advice.watching.nan import NONFINITE
from malleable.inspection.advice.watching.silent import Truncations
from malleable.inspection.advice.watching.storms import NO_TRACING, Storms

_OURS = compat.PACKAGE + os.sep

# each says what is silent, or remembers
OBSERVERS = [Storms, Indices, Keys, Donations, Truncations, Memory, Changed, Constant]

WHILE_RUNNING = (
    *(DELETED, CHECKS, RULES, HOST, NO_TRACING, KEYS, NONFINITE),
    *(SHARDING, SHARD_SPECS, VARYING, COLLECTIVES),
)
TOPICS: list[Callable[[Trouble], Iterator[Advice]]] = [
    *(topic(*rows, weight=4) for rows in WHILE_RUNNING),
    *(concrete, truths, leaks, axes, trees, loops, branches, derivatives, derivative_rules, calls),
    *(shapes, dtypes, libraries, ecosystem),
]


@contextlib.contextmanager
def watch() -> Iterator[errors.Adviser]:
    """While open, what runs is looked at, and where transformations are called is remembered."""
    with compat.whole_tracebacks(), creation.recorded(), running.observed(OBSERVERS) as block:
        yield lambda error: advise(error, block.failures)


def advise(error: Exception, failures: list[Exception]) -> Iterator[Advice]:
    """What every topic says about an error; one that fails is raised after the others."""
    trouble, failures = Trouble(error), list(failures)
    _unlink(error)
    for one in TOPICS:
        try:
            yield from one(trouble)
        except Exception as failure:  # what one topic cannot read, another may
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
