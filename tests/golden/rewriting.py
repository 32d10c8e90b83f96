"""What push, stream and the other passes make of the benchmarks and of the laws' programs."""

import functools
from unittest.mock import patch

import jax

import malleable as mal
from benchmarks import reroll
from benchmarks.rewriting import WORKLOADS, kinds, variant
from benchmarks.smoke import rewriting as smoke
from benchmarks.workloads import gradient
from malleable.notes import listen
from malleable.rewriting.streaming import cost
from tests.generators.arrays.programs import array_args, random_array_program
from tests.golden.outline import brief, digest, outline
from tests.golden.said import noted
from tests.laws.rewriting_laws import PASSES, optimizer

REST = ("dce", "cse", "fold", "hoist", "scan_trim", "scan_merge", "unbuffer")
REST += ("matmul_order", "merge_dims", "library", "reroll")
EVERY = ("push", "stream", *REST)
# One of them for each seed in turn, or all for every seed.
VARIANTS = (("push",), ("stream",), ("push as written",), ("stream as written",), REST)
VARIANTS += (("push 2", "stream 2"), EVERY)
SEEDS = 210


def on_any_machine(record):
    """With the one decision fixed that asks XLA: it sums in one kernel on x86, with JAX's flags."""

    @functools.wraps(record)
    def fixed():
        with patch.object(cost, "fuses_sums", lambda: True):
            yield from record()

    return fixed


@on_any_machine
def benchmarks():
    """Each program of `benchmarks.rewriting`, big, forward and gradient, by the three passes."""
    for workload in WORKLOADS:
        args = shapes(workload.make(False))
        for kind in kinds(workload):
            fun = variant(workload, kind, "ours")
            yield f"{workload.name}, {kind}", decided(fun, variant(workload, kind, "plain"), args)
    for name, case in smoke.CASES.items():
        args, ours = shapes(case.make("big")), mal.optimize(case.fn, mal.push_up_reductions)
        yield f"{name}, forward", decided(ours, case.fn, args)
        yield f"{name}, gradient", decided(gradient(ours, (0,)), gradient(case.fn, (0,)), args)
    with patch.object(reroll, "BLOCKS", 6):
        layers, lorenz = shapes(reroll.parameters()), jax.ShapeDtypeStruct((3, 100), "float32")
        for fun, args in ((reroll.transformer, layers), (reroll.runge_kutta, (lorenz,))):
            ours = mal.optimize(fun, mal.reroll)
            yield f"{fun.__name__}, rerolled", decided(ours, fun, args)
            yield (
                f"{fun.__name__}, rerolled, gradient",
                decided(gradient(ours, (0,)), gradient(fun, (0,)), args),
            )


def shapes(args):
    """The types of arguments: nothing is to run."""
    return jax.eval_shape(lambda *some: some, *args)


def decided(ours, plain, args, how=outline):
    """The notes, and the program that comes out where it is another one."""
    before = jax.make_jaxpr(plain)(*args)
    with listen() as notes:
        after = jax.make_jaxpr(ours)(*args)
    same = digest(before) == digest(after)
    return [*noted(notes), "unchanged" if same else how(after)]


@on_any_machine
def laws():
    """One way for each seed; in float64 for one seed in four, as in the laws."""
    for seed in range(SEEDS):
        names = VARIANTS[seed % len(VARIANTS)]
        way = {REST: "rest", EVERY: "all"}.get(names, " ".join(names))
        with jax.enable_x64(seed % 4 == 3):
            program = random_array_program(seed)
            ours = optimizer(names)(program.function)
            found = decided(ours, program.function, array_args(program, seed), brief)
        yield f"seed {seed}, {way}", found


assert all(name in PASSES for names in VARIANTS for name in names)
