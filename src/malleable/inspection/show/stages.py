"""The forms a function takes on its way to the machine, gathered without running it."""

import inspect
from collections.abc import Callable, Iterator, Sequence

import jax

from malleable import compat
from malleable.core.stage import stage
from malleable.errors import TransformError
from malleable.execution.jit import Selective
from malleable.inspection import counting
from malleable.inspection.modules import module_scopes
from malleable.inspection.show.arguments import argument_names
from malleable.inspection.show.origins import heading_of, sources, unwrapped
from malleable.inspection.show.rows.aligned import align
from malleable.inspection.show.rows.outline import Body, outline
from malleable.inspection.show.rows.renamed import known
from malleable.inspection.show.shown import Cost, Shown, Stage
from malleable.notes import first_line, listen, note
from malleable.programs.evaluate import evaluate
from malleable.python_source.changes import unchanged
from malleable.python_source.source import NoSource
from malleable.rewriting.passes.passes import Pass, checked


def gather_stages(
    fun: Callable,
    args: tuple,
    kwargs: dict,
    *,
    passes: Sequence[Pass] = (),
    hlo: bool | str = False,
    limit: int | None = 500,
) -> Shown:
    """All forms of a function on arguments of these types; see `show`.

    Raises TypeError for what is no pass and for another `hlo`, RuleError for a pass that breaks
    the program; an error of the function itself goes through.

    >>> import jax.numpy as jnp
    >>> [s.name for s in gather_stages(jnp.sin, (1.0,), {}, hlo=True).stages]
    ['source', 'jaxpr', 'stablehlo']
    """
    wanted = _checked(passes, hlo)
    found: list[Stage] = []
    with unchanged(fun, (args, kwargs)), listen() as heard, compat.apart(), module_scopes():
        layers = list(unwrapped(fun))
        found += _source(layers[-1])
        found += _converted(layers)
        try:
            staged = stage(fun)(*args, **kwargs)
        except TransformError as e:
            if not any(isinstance(layer, Selective) for layer in layers):
                raise
            note("it is not one program", e.where, f"{e.what}; malleable.explain says more")
            return Shown(heading_of(fun), tuple(found), {}, tuple(heard), limit)
        names = tuple(argument_names(fun, args, kwargs))
        found.append(program_stage("jaxpr", outline(staged.jaxpr), names))
        last = _run_passes(staged.jaxpr, passes, found)
        if wanted:
            found += _hlo(fun, args, kwargs, last, staged, wanted, bool(passes))
    programs = [s.body for s in found if s.body]
    return Shown(heading_of(fun), tuple(found), sources(*programs), tuple(heard), limit)


def _checked(passes, hlo) -> list[str]:
    if callable(passes) or not all(map(callable, passes)):
        raise TypeError(f"passes are given as a tuple of functions of a program, not {passes!r}")
    kinds = {False: [], True: ["stablehlo"], "optimised": ["stablehlo", "optimised hlo"]}
    if hlo not in kinds:
        raise TypeError(f"hlo is True, False or 'optimised', not {hlo!r}")
    return kinds[hlo]


def _run_passes(program: compat.Jaxpr, passes: Sequence[Pass], found: list[Stage]) -> compat.Jaxpr:
    """The program after all passes; a stage is added for what each did."""
    taken: set[str] = set()  # a name means one value in all stages
    for p in passes:
        body, after = found[-1].body, checked(p, program)
        assert body is not None
        taken.update(known(body).values())
        name = f"pass {pass_name(p)}"
        found.append(_became(name, body, None if after is program else after, taken))
        program = after
    return program


def _became(name: str, old: Body, after: compat.Jaxpr | None, taken: set[str]) -> Stage:
    changes, new = align(old, outline(after), taken) if after else ((), old)
    return Stage(name, "program", body=new, costs=costs(new), before=old.size, changes=changes)


def pass_name(p: Pass) -> str:
    return getattr(p, "__name__", type(p).__name__)


def program_stage(name: str, body: Body, arguments: tuple[str, ...] = ()) -> Stage:
    """A program, with the cost of each equation, and its arguments if each is an input."""
    named = arguments if len(arguments) == len(body.ins) else ()
    return Stage(name, "program", body=body, arguments=named, costs=costs(body))


def costs(body: Body) -> dict[int, Cost]:
    """{row.number: cost} of every equation, at any depth, times the steps of loops around it."""
    whole = counting.total(body.program)
    found: dict[int, Cost] = {}

    def visit(body, times):
        for row in body.rows:
            each = row.count.times(times)
            parts = each.flops / (whole.flops or 1), each.bytes / (whole.bytes or 1)
            found[row.number] = Cost(each.flops, each.bytes, max(parts))
            inside = counting.bodies_of(row.eqn)
            if len(inside) == len(row.bodies):
                for inner, (_, steps) in zip(row.bodies, inside, strict=True):
                    visit(inner, times * steps(counting.once))

    visit(body, 1)
    return found


def _source(thing) -> Iterator[Stage]:
    try:
        texts, line = inspect.getsourcelines(thing)
        file = inspect.getfile(thing)
    except (TypeError, OSError, SyntaxError, IndexError):
        note("its source is not shown", "", "it is not at hand")
        return
    yield Stage("source", "code", "".join(texts), file, max(line, 1))


def _converted(layers: list) -> Iterator[Stage]:
    for layer in layers:
        try:
            if isinstance(layer, Selective):
                regions = (f"\n# {name}\n{text}" for name, text in layer.regions.items())
                yield Stage("converted", "code", "\n".join([layer.source, *regions]))
                return
            if hasattr(layer, "__malleable_converted__"):
                yield Stage("converted", "code", str(layer.source))
                return
        except (NoSource, TransformError) as e:
            note("its converted source is not shown", "", first_line(e))
            return


def _hlo(fun, args, kwargs, program, staged, wanted, passed) -> Iterator[Stage]:
    if hasattr(fun, "trace") and hasattr(fun, "lower") and not passed:
        lowered = fun.lower(*args, **kwargs)
    else:

        def run(*leaves):
            return evaluate(program, leaves)

        run.__name__ = getattr(fun, "__name__", "program")
        lowered = jax.jit(run).lower(*staged.args)
    yield Stage("stablehlo", "hlo", lowered.as_text(debug_info=True))
    if "optimised hlo" in wanted:
        yield Stage("optimised hlo", "hlo", compat.compiled_text(lowered))
