"""A compiler for JAX programs that its users can read and change."""

from malleable.core.frame import Frame as Frame, Masked as Masked
from malleable.core.interpret import Rulebook as Rulebook, interpret as interpret
from malleable.core.live import live as live
from malleable.core.marker import marker as marker
from malleable.core.stage import Staged as Staged, stage as stage
from malleable.errors import (
    MalleableError as MalleableError,
    RuleError as RuleError,
    TransformError as TransformError,
    UnhandledError as UnhandledError,
)
from malleable.notes import Note as Note, listen as listen, note as note
from malleable.effects.params import apply as apply, init as init, param as param
from malleable.effects.rng import next_key as next_key, seed as seed
from malleable.effects.tags import (
    cotangents as cotangents,
    harvest as harvest,
    plant as plant,
    reap as reap,
    scope as scope,
    tag as tag,
)
from malleable.effects.arrays import mutable as mutable
from malleable.inspection.text import show as show
from malleable.core.analyze import analyze as analyze
