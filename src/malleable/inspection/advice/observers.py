"""The advice that comes from watching what runs: opened with every `explain()` block."""

import contextlib
from collections.abc import Callable, Iterator

from malleable import errors
from malleable.inspection.advice import (
    checks,
    collectives,
    donations,
    nan,
    primitives,
    randomness,
    running,
    runtime,
    shard_specs,
    sharding,
    storms,
)
from malleable.inspection.advice.donations import Donations
from malleable.inspection.advice.hint import Advice
from malleable.inspection.advice.indices import Indices
from malleable.inspection.advice.keys import Keys
from malleable.inspection.advice.runtime import Memory
from malleable.inspection.advice.silent import Truncations
from malleable.inspection.advice.storms import Storms
from malleable.inspection.advice.trouble import Trouble

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
