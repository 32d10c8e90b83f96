"""A compiler for JAX programs that its users can read and change."""

from malleable.core.analyze import analyze as analyze
from malleable.core.frame import Frame as Frame
from malleable.core.frame import Masked as Masked
from malleable.core.interpret import Rulebook as Rulebook
from malleable.core.interpret import interpret as interpret
from malleable.core.live import live as live
from malleable.core.marker import marker as marker
from malleable.core.stage import Staged as Staged
from malleable.core.stage import stage as stage
from malleable.effects.arrays import mutable as mutable
from malleable.effects.cotangents import cotangents as cotangents
from malleable.effects.names import scope as scope
from malleable.effects.params import apply as apply
from malleable.effects.params import init as init
from malleable.effects.params import param as param
from malleable.effects.rng import next_key as next_key
from malleable.effects.rng import seed as seed
from malleable.effects.tags import (
    harvest as harvest,
)
from malleable.effects.tags import (
    plant as plant,
)
from malleable.effects.tags import (
    reap as reap,
)
from malleable.effects.tags import (
    tag as tag,
)
from malleable.errors import (
    MalleableError as MalleableError,
)
from malleable.errors import (
    RuleError as RuleError,
)
from malleable.errors import (
    TransformError as TransformError,
)
from malleable.errors import (
    UnhandledError as UnhandledError,
)
from malleable.frontend.convert import autograph as autograph
from malleable.frontend.hints import inline_cond as inline_cond
from malleable.frontend.hints import inline_scan as inline_scan
from malleable.frontend.hints import inline_stack as inline_stack
from malleable.frontend.hints import inline_while as inline_while
from malleable.frontend.hints import loop as loop
from malleable.frontend.hints import skip as skip
from malleable.inspection.text import show as show
from malleable.notes import Note as Note
from malleable.notes import listen as listen
from malleable.notes import note as note
