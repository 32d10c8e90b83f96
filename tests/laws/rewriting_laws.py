"""What must hold for every pass on any program: optimized, it computes what it computed.

`try_seed(seed)` compiles one random program and three optimized ones as a whole, in one of the
ways a caller may use them. Passes that decline small programs are forced.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np

import malleable as mal
from malleable import compat, optimize, push_up_reductions, reroll, stage, stream
from malleable.rewriting.graph.graph import fingerprint
from malleable.rewriting.machine import Machine
from malleable.rewriting.streaming import cost
from tests.flags import USUAL
from tests.generators.arrays.programs import ArrayProgram, array_args, random_array_program, smaller

SHRINK_SECONDS = 60


def small_as_written(jaxpr):
    """`stream` that leaves small values as written, too, whatever XLA makes of them."""
    machine = replace(Machine.current(), fused_row=2)
    with patch.object(cost, "fuses_sums", lambda: True):
        return stream(jaxpr, threshold=1, machine=machine)


PASSES = {
    "dce": mal.dce,
    "cse": mal.cse,
    "fold": mal.fold,
    "hoist": mal.hoist,
    "scan_trim": mal.scan_trim,
    "scan_merge": mal.scan_merge,
    "unbuffer": mal.unbuffer,
    "matmul_order": mal.matmul_order,
    "merge_dims": mal.merge_dims,
    "library": mal.rewrite(*mal.LIBRARY),
    "push": push_up_reductions(threshold=0),
    "push 1": push_up_reductions(threshold=0, chunk=1),
    "push 2": push_up_reductions(threshold=0, chunk=2, remat="tail"),
    "push 4": push_up_reductions(threshold=0, chunk=4, remat="body"),
    "push as written": push_up_reductions(threshold=1),
    "stream": stream(threshold=0),
    "stream as written": small_as_written,
    "stream 2": stream(threshold=0, block=2),
    "stream 3": stream(threshold=0, block=3, remat=False),
    "reroll": reroll(repeats=2, least=1),
}


def largest(jaxpr: compat.Jaxpr) -> int:
    """The bytes of the largest value of a program, its bodies too."""
    found = 0
    for eqn in jaxpr.eqns:
        found = max([found, *map(largest, compat.bodies(eqn.params))])
        shapes = [v.aval for v in eqn.outvars if hasattr(v.aval, "dtype")]
        found = max([found, *(aval.size * aval.dtype.itemsize for aval in shapes)])
    return found


def scalar_of(fun):
    """A number that depends on every float that fun returns, for gradients."""

    def scalar(*args):
        floats = [x for x in jax.tree.leaves(fun(*args)) if jnp.issubdtype(x.dtype, jnp.inexact)]
        weights = [jnp.cos(jnp.arange(x.size)).reshape(x.shape) for x in floats]
        return sum((jnp.sum(x * w) for x, w in zip(floats, weights)), jnp.zeros(()))

    return scalar


def gradient(fun):
    """The gradient with respect to all arguments that are floats."""

    def grads(*args):
        floats = [i for i, x in enumerate(args) if jnp.issubdtype(x.dtype, jnp.inexact)]
        return jax.grad(scalar_of(fun), floats)(*args) if floats else ()

    return grads


def over_lanes(fun):
    both = jax.vmap(fun, axis_size=2)  # of a program without arguments, too
    return lambda *args: both(*(jnp.stack([x, x[::-1] if x.ndim else x]) for x in args))


# what a caller may do with an optimized function: (how to optimize, function) -> function
MODES: dict[str, Callable] = {
    "alone": lambda opt, fun: opt(fun),
    "gradient": lambda opt, fun: gradient(opt(fun)),
    "of a gradient": lambda opt, fun: opt(gradient(fun)),
    "vmap": lambda opt, fun: over_lanes(opt(fun)),
    "of a vmap": lambda opt, fun: opt(over_lanes(fun)),
    "of jit": lambda opt, fun: opt(jax.jit(fun)),
    "gradient of checkpoint": lambda opt, fun: gradient(jax.checkpoint(opt(fun))),
}
SMOOTH = ("gradient", "of a gradient", "gradient of checkpoint")


def drawn(seed: int, program: ArrayProgram) -> tuple[str, list[tuple[str, ...]]]:
    """(mode, the passes to try): a pass, another one, and a pipeline of several."""
    rng = np.random.default_rng([seed, 1])
    modes = ["alone", "gradient", *MODES]
    modes = [m for m in modes if program.differentiable or m not in SMOOTH]
    names, most = list(PASSES), [*PASSES, "push", "stream", "push 2", "stream 2"]
    first, second = rng.choice(most, 2)
    several = rng.choice(names, rng.integers(2, 6), replace=False)
    return str(rng.choice(modes)), [(str(first),), (str(second),), tuple(map(str, several))]


def optimizer(names: Sequence[str]):
    return lambda fun: optimize(fun, *(PASSES[name] for name in names))


def try_seed(seed: int, shrink=False) -> list[tuple[str, str]]:
    """[(pass or pipeline, what is wrong)] of the program of a seed; one in four in float64."""
    program = random_array_program(seed)
    mode, variants = drawn(seed, program)
    with jax.enable_x64(seed % 4 == 3):
        wrong = outcomes(program, variants, mode, seed)
        if wrong is None:  # one of them does not even compile
            one_by_one = {names: outcomes(program, [names], mode, seed) for names in variants}
            wrong = {names: text for found in one_by_one.values() for names, text in found.items()}
        for names, text in wrong.items():
            if shrink:
                wrong[names] = smallest(program, names, mode, seed) or text
                break
    return [(" ".join(names), f"seed {seed}, {mode}: {text}") for names, text in wrong.items()]


def outcomes(program, variants, mode, seed):
    """{passes: what is wrong}; None, with several variants, if something cannot be run."""
    args = array_args(program, seed)
    wrong = {}
    for names in variants:
        text = message(lambda names=names: repeats(program, names, args), names)
        if text:
            wrong[names] = text
    how = MODES[mode]

    def everything(*args):
        plain = how(lambda fun: fun, program)(*args)
        return plain, [how(optimizer(names), program)(*args) for names in variants]

    try:
        plain, others = jax.jit(everything)(*args)
    except Exception as error:  # whatever a pass may raise is a failure of it
        if len(variants) > 1:
            return None
        return wrong | {variants[0]: f"{type(error).__name__}: {error}"[:500]}
    for names, other in zip(variants, others):
        text = compare(other, plain, tolerance(program))
        if text and not is_rounding(program, names, mode, seed):
            wrong[names] = text
    return wrong


def message(run, names):
    """What `run` says or raises."""
    try:
        return run()
    except Exception as error:
        return f"{names}: {type(error).__name__}: {error}"[:500]


def repeats(program, names, args):
    """What is wrong if a single pass, run again, changes something more."""
    if len(names) > 1:
        return ""
    (name,), before = names, stage(program)(*args).jaxpr
    again = PASSES[name]
    if name == "reroll":
        again = reroll  # blocks of two equations appear anew where others were rolled
    elif name.startswith("stream"):  # a second run is to stream no block of what was streamed
        block = 400 if jax.config.jax_enable_x64 else 200  # of two dims: 7 x 7 numbers at most
        again = stream(block=1, threshold=max(block, 1 + largest(before) // 2))
    run = mal.pipeline(again)
    once = run(before)
    twice = run(once)
    if fingerprint(once) == fingerprint(twice):
        return ""
    return f"run twice, it changes something more\n{once}\n{twice}"


def tolerance(program) -> float:
    """Relative to the largest element: rounding differs with the order of sums."""
    text = str(program)
    if "bfloat16" in text:
        return 5e-2
    return 1e-8 if jax.config.jax_enable_x64 and "float32" not in text else 5e-4


def compare(got, wanted, tolerance) -> str:
    """What differs, in a few words; "" for nothing."""
    leaves, structure = jax.tree.flatten(got)
    expected, structure_wanted = jax.tree.flatten(wanted)
    if structure != structure_wanted:
        return f"structure {structure}, not {structure_wanted}"
    for k, (a, b) in enumerate(zip(leaves, expected, strict=True)):
        if jax.typeof(a) != jax.typeof(b):
            return f"result {k} is {jax.typeof(a)}, not {jax.typeof(b)}"
        kind = jnp.issubdtype(a.dtype, jnp.inexact)
        a, b = (np.asarray(x, float) if kind else np.asarray(x) for x in (a, b))
        scale = np.abs(b[np.isfinite(b)]).max(initial=1.0) if kind else 0
        if not np.allclose(a, b, rtol=0, atol=tolerance * scale, equal_nan=True):
            return f"result {k} is\n{a}\nnot\n{b}"
    return ""


def is_rounding(program, names, mode, seed) -> bool:
    """Whether a mismatch goes away with other inputs: a tie, or an index that rounding decides.

    Or XLA rounds the program itself in two ways: the passes changed nothing, or what comes of them
    is right, that is, what the program gives step by step. Where what XLA makes quickly of the
    program itself is not, it is made of both again as for users.
    """
    how, args = MODES[mode], array_args(program, seed)
    plain, ours = how(lambda fun: fun, program), how(optimizer(names), program)
    unchanged = how(optimizer(["dce"]), program)
    if len({fingerprint(stage(fun)(*args).jaxpr) for fun in (unchanged, ours)}) == 1:
        return True
    both = jax.jit(lambda *a: (ours(*a), plain(*a)))
    others = [array_args(program, seed + k) for k in (1, 2, 3)]
    if all(not compare(*both(*more), tolerance(program)) for more in others):
        return True
    try:
        with jax.disable_jit():
            right = plain(*args)
    except Exception:  # not everything runs so, such as a while loop under vmap
        return False
    found, quick = both(*args)
    if not compare(found, right, tolerance(program)):
        return True
    if not compare(quick, right, tolerance(program)):
        return False
    usual = jax.jit(lambda *a: (ours(*a), plain(*a)), compiler_options=USUAL)
    return not compare(*usual(*args), tolerance(program))


def smallest(program, names, mode, seed) -> str:
    """What is wrong with the smallest part of a program that is still wrong, and the part."""
    deadline = time.monotonic() + SHRINK_SECONDS

    def fails(part):
        if time.monotonic() > deadline:
            return False
        try:
            jax.eval_shape(MODES[mode](lambda fun: fun, part), *array_args(part, seed))
        except Exception:  # it was no program before any pass
            return False
        return bool(outcomes(part, [names], mode, seed))

    part = smaller(program, fails)
    found = outcomes(part, [names], mode, seed) or {}
    return "".join(f"{text}\n{part}" for text in found.values())
