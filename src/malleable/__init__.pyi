"""The public names, for type checkers and editors; `__init__.py` loads each when it is asked."""

from malleable import errors as errors
from malleable import prob as prob
from malleable.core.frame import Frame as Frame
from malleable.core.frame import Masked as Masked
from malleable.core.interpret import Rulebook as Rulebook
from malleable.core.interpret import interpret as interpret
from malleable.core.live import live as live
from malleable.core.marker import marker as marker
from malleable.core.stage import Staged as Staged
from malleable.core.stage import stage as stage
from malleable.core.values import value as value
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
    AdviceWarning as AdviceWarning,
)
from malleable.errors import (
    BreakWarning as BreakWarning,
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
from malleable.execution.explain.explain import explain as explain
from malleable.execution.explain.report import Report as Report
from malleable.execution.jit import Jitted as Jitted
from malleable.execution.jit import jit as jit
from malleable.frontend.common.hints import inline_cond as inline_cond
from malleable.frontend.common.hints import inline_scan as inline_scan
from malleable.frontend.common.hints import inline_stack as inline_stack
from malleable.frontend.common.hints import inline_while as inline_while
from malleable.frontend.common.hints import loop as loop
from malleable.frontend.common.hints import skip as skip
from malleable.frontend.convert import autograph as autograph
from malleable.inspection import export as export
from malleable.inspection.calls import trace_calls as trace_calls
from malleable.inspection.costs.communication import communication as communication
from malleable.inspection.costs.cost import cost as cost
from malleable.inspection.debugging.debugger import step as step
from malleable.inspection.debugging.nonfinite import first_nonfinite as first_nonfinite
from malleable.inspection.files.load import load as load
from malleable.inspection.files.save import save as save
from malleable.inspection.notebook import load_ipython_extension as load_ipython_extension
from malleable.inspection.notebook import unload_ipython_extension as unload_ipython_extension
from malleable.inspection.show.diff import diff as diff
from malleable.inspection.show.text import show as show
from malleable.inspection.unstaging.unstage import unstage as unstage
from malleable.inverses import inverse as inverse
from malleable.notes import Note as Note
from malleable.notes import listen as listen
from malleable.notes import note as note
from malleable.programs.analyze import analyze as analyze
from malleable.programs.analyze import propagate as propagate
from malleable.rewriting.check import check_rule as check_rule
from malleable.rewriting.incremental.as_scan import as_scan as as_scan
from malleable.rewriting.incremental.incremental import incremental as incremental
from malleable.rewriting.passes.buffers import unbuffer as unbuffer
from malleable.rewriting.passes.collectives import (
    defer_collectives as defer_collectives,
)
from malleable.rewriting.passes.collectives import (
    microbatch as microbatch,
)
from malleable.rewriting.passes.dims import merge_dims as merge_dims
from malleable.rewriting.passes.fold import fold as fold
from malleable.rewriting.passes.hoist import hoist as hoist
from malleable.rewriting.passes.loops import scan_merge as scan_merge
from malleable.rewriting.passes.loops import scan_trim as scan_trim
from malleable.rewriting.passes.passes import cse as cse
from malleable.rewriting.passes.passes import dce as dce
from malleable.rewriting.passes.passes import optimize as optimize
from malleable.rewriting.passes.passes import pipeline as pipeline
from malleable.rewriting.passes.products import matmul_order as matmul_order
from malleable.rewriting.passes.remat import remat as remat
from malleable.rewriting.passes.reroll import reroll as reroll
from malleable.rewriting.rules.library import LIBRARY as LIBRARY
from malleable.rewriting.rules.misses import Miss as Miss
from malleable.rewriting.rules.misses import why_not as why_not
from malleable.rewriting.rules.rewriting import rewrite as rewrite
from malleable.rewriting.rules.rules import NoMatch as NoMatch
from malleable.rewriting.rules.rules import rule as rule
from malleable.rewriting.rules.wildcards import Arr as Arr
from malleable.rewriting.rules.wildcards import Fun as Fun
from malleable.rewriting.rules.wildcards import Lit as Lit
from malleable.rewriting.rules.wildcards import Prim as Prim
from malleable.rewriting.rules.wildcards import Static as Static
from malleable.rewriting.sharding.layouts import Layouts as Layouts
from malleable.rewriting.sharding.layouts import layouts as layouts
from malleable.rewriting.streaming.push import push_up_reductions as push_up_reductions
from malleable.rewriting.streaming.region.sinks import SINKS as SINKS
from malleable.rewriting.streaming.region.sinks import Sink as Sink
from malleable.rewriting.streaming.region.sinks import sink as sink
from malleable.rewriting.streaming.stream import stream as stream

__version__: str
