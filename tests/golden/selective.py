"""How `mal.jit` cuts a function, which engine takes each part, and the NumPy written for it."""

import ast
import contextlib
import io

import malleable as mal
from benchmarks.selective_programs import PROGRAMS
from malleable.execution.cutting import partition
from tests.generators.selective.programs import random_selective_program, selective_args
from tests.golden.outline import brief, total
from tests.golden.said import counted, noted
from tests.laws.execution_laws import copied

SEEDS, WHOLE = 24, 6  # of the first so many, the NumPy too


def benchmarks():
    """The programs of `benchmarks.selective_programs`, on one input."""
    for name, program in PROGRAMS.items():
        yield name, cut(program.eager, program.make(0))


def laws():
    """Random programs; of most the cuts only."""
    for seed in range(SEEDS):
        fun = random_selective_program(seed).function
        yield f"seed {seed}", cut(fun, selective_args(3 * seed), seed < WHOLE)


def cut(fun, args, whole=True):
    """What a call makes of a function: its report, the residual programs, the code of regions."""
    selective, raised = mal.jit(fun), ""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            report = mal.explain(selective)(*copied(args))
        except Exception as error:  # whatever the program raises
            report, raised = None, f"raises {type(error).__name__}"
    lines = [raised] if raised else []
    lines += reported(report) if report else []
    for part in selective.engine.known.values():
        lines += [f"{part.name} becomes", f"\n{residual(part)}"] if whole else []
        for number, region in enumerate(partition.regions(part.tree.body), 1):
            lines += engines(f"{part.name} R{number}", region, whole)
    return lines


def reported(report):
    """What `explain` says, without what was measured."""
    for r in report.regions:
        extra = f", static {', '.join(r.static)}" * bool(r.static) + ", lifted" * r.lifted
        yield (
            f"R{r.number} of {r.function}: {r.way}, {r.equations} eqns, "
            f"({', '.join(r.takes)}) -> ({', '.join(r.leaves)}){extra}"
        )
    texts = (f"{b.text} | {b.kind}: {b.why} | by {b.done}{instead(b)}" for b in report.breaks)
    yield from counted("break", texts)
    yield from noted(report.notes)


def instead(b):
    return f" | instead: {b.suggestion}" if b.suggestion else ""


def engines(name, region, whole):
    """The program of all sizes, or of a region's first signature, and the NumPy it became.

    Where there are both, sizes may depend on values, and these on how a machine rounds.
    """
    for state in region.states.values():
        some = [f.sized for f in state.families.values() if f.sized][:1]
        for variant in list(state.variants.values())[:1]:
            way = "NumPy" if variant.by_numpy else "XLA"
            program = variant.program
            yield f"{name} by {way}: {f'{total(program)} eqns' if some else brief(program)}"
            yield from code(variant, whole and not some)
        for sized in some:
            way = "NumPy" if sized.by_numpy else "buckets"
            yield f"{name}, any size, by {way}: {brief(sized.symbolic.jaxpr)}"
            yield from code(sized, whole)


def code(variant, whole):
    if whole and variant.by_numpy:
        lines = variant.by_numpy.source.splitlines()
        kept = [x for x in lines if x and not x.startswith(("import ", "from "))]
        yield "\n".join(["", *kept])


def residual(part) -> str:
    """The residual program as text."""
    part.residual(part.fun)
    return ast.unparse(ast.fix_missing_locations(part.residual_tree))
