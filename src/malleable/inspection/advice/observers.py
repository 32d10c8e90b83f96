"""The advice that comes from watching what runs: opened with every `explain()` block."""

import contextlib
from collections.abc import Callable, Iterator

from malleable import errors
from malleable.inspection.advice.evidence.trouble import Trouble
from malleable.inspection.advice.hint import Advice
from malleable.inspection.advice.runtime import (
    checks,
    collectives,
    primitives,
    randomness,
    runtime,
    shard_specs,
    sharding,
)
from malleable.inspection.advice.runtime.runtime import Memory
from malleable.inspection.advice.watching import donations, nan, running, storms
from malleable.inspection.advice.watching.donations import Donations
from malleable.inspection.advice.watching.indices import Indices
from malleable.inspection.advice.watching.keys import Keys
from malleable.inspection.advice.watching.silent import Truncations
from malleable.inspection.advice.watching.storms import Storms

OBSERVERS = [
    Storms,
    Indices,
    Keys,
    Donations,
    Truncations,
    Memory,
]  # each says what is silent, or remembers

FAMILIES: list[Callable[[Trouble], Iterator[Advice]]] = [
    donations.used_again,
    checks.checkified,
    checks.overflow,
    primitives.missing_rules,
    runtime.out_of_memory,
    runtime.callbacks,
    runtime.callback_rules,
    runtime.ordered_effects,
    runtime.transfers,
    donations.given_twice,
    storms.not_again,
    randomness.reused_keys,
    randomness.wrong_keys,
    randomness.seeds,
    randomness.converted,
    nan.nonfinite,
    *sharding.FAMILIES,
    *shard_specs.FAMILIES,
    *collectives.FAMILIES,
]


@contextlib.contextmanager
def watch() -> Iterator[errors.Adviser]:
    """While open, everything that runs is looked at."""
    with running.observed(OBSERVERS) as block:

        def advise(error: Exception) -> Iterator[Advice]:
            trouble = Trouble(error)
            for family in FAMILIES:
                yield from family(trouble)
            if block.failures:
                raise block.failures[0]

        yield advise


errors.advisers.append(watch)
