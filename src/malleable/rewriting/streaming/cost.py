"""What a rewrite costs and gains: bytes that need not be, and whether that pays."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax import numpy as jnp

from malleable import compat
from malleable.notes import note
from malleable.programs.primitives import has, kind
from malleable.rewriting.graph.graph import Node
from malleable.rewriting.machine import Machine
from malleable.rewriting.streaming.region.frontier import FUSIBLE, size
from malleable.rewriting.streaming.region.region import (
    Carried,
    Ended,
    Kept,
    Mapped,
    Region,
    axes_of,
)
from malleable.rewriting.streaming.schedule.deferred import COSTLY, deferred_sums, is_costly
from malleable.rewriting.streaming.schedule.plan import Plan
from malleable.rewriting.streaming.schedule.residuals import is_heavy

FUSED = kind("reduce") & has("sum", "extremum")  # with what they reduce
APART = has("apart")  # never with what reduces them
KEPT = has("kept")
TWICE = has("recomputed")
WHOLE = has("whole")  # wants its operands in memory
CLAMP = frozenset(["max", "min"])  # of which XLA makes one, if there are both


def gains(region: Region, seeds: list[int], least: int | None, short: int = 0) -> str:
    """Why pushing up does not pay, or "" if it does.

    What it gains is what was stacked and is not any more, and what was worked out from it; what
    it costs is what has to leave stacked nevertheless. least: bytes to save; None: `pays_from`.
    short: the bytes of a slice that a step stacks in no time.
    """
    graph = region.graph
    least = pays_from(region, short) if least is None else least
    escapes = region.escapes()
    there = {v for v in region.streams if graph.maker[v] in region.pulled}
    gone = [v for v in region.streams if v not in escapes and v not in there]
    saved = sum(size(graph, v) for v in gone if v in seeds or is_kept(graph, v))
    lost = sum(size(graph, v) for v in escapes if v not in seeds)
    copied = sum(size(graph, v) for v, _, window in region.sources() if window != region.full)
    if not any(v in gone for v in seeds):
        return "all that the scan stacks is used as a whole elsewhere"
    if saved - lost <= 0:
        return f"it would stack {lost} bytes to save {saved}"
    if saved - lost <= copied / 2:  # a copy is read and written at once
        return f"it would copy {copied} bytes to save {saved}"
    if saved < least:
        return f"the scan stacks only {saved} bytes"
    return ""


def pays_from(region: Region, short: int) -> int:
    """The bytes from which on stacking takes longer than reducing: one cache.

    Less where steps only add slices; more, some of all caches, where they stack little each: there
    what a step does takes as long as to start it, and to stack a slice no time.
    """
    ends = {n for n, a in region.actions.items() if isinstance(a, Ended | Carried | Kept)}
    added, row = ends <= set(deferred_sums(region)), slice_bytes(region)
    machine = Machine.current()
    if row < (min(machine.vector_slice, short) if added else short):
        return machine.stacked
    return machine.core_cache // 8 if added else machine.core_cache


def is_kept(graph, value) -> bool:
    """Whether XLA would keep a value in memory, not fuse it into its only user."""
    maker = graph.maker[value]
    big = maker is not None and maker.name in KEPT
    return big or len(graph.users(value)) > 1


def takes_longer(region: Region) -> str:
    """Why a large value takes longer to work out than blocks of it save, or ""."""
    graph, machine = region.graph, Machine.current()
    if any(node.name == "conv_general_dilated" for node in region.actions):
        return "a convolution of all examples at once is faster"
    products = [node for node in region.actions if node.name == "dot_general"]
    largest = max(region.streams, key=lambda v: size(graph, v))
    work = machine.product_flop * math.prod(graph.avals[largest].shape)
    small = size(graph, largest) < machine.shared_cache
    if small and sum(map(multiplications, products)) > work:
        kept = size(graph, largest)
        more = f"; for less memory all the same: stream(threshold={kept // 16})"
        return f"its products take longer than to keep {kept} bytes{more}"
    return ""


def is_fused(region: Region) -> bool:
    """Whether XLA works a region out in one kernel, without what is large, as fast as in blocks.

    It does where a few floats are used once each, up to one reduction; booleans it keeps. It is
    slow at rows of a few numbers that are reduced, and at long ones of what is left.
    """
    machine, parts = Machine.current(), (region.actions, region.sources(), region.wholes())
    if sum(map(len, parts)) > machine.fused_equations:
        return False
    graph, names = region.graph, {node.name for node in region.actions}
    reductions = [node for node in region.actions if node.name in FUSED]
    if len(reductions) != 1 or names - FUSIBLE - FUSED or names & APART or names >= CLAMP:
        return False
    (value,), axes = reductions[0].ins, reductions[0].params["axes"]
    aval = graph.avals[value]
    made = {v for node in region.actions for v in node.outs}
    large = {v for v in made if 2 * graph.avals[v].size >= aval.size}
    if any(len(graph.users(v)) > 1 for v in large) or not large.isdisjoint(graph.outputs):
        return False
    if any(graph.avals[v].dtype.name not in ("float32", "float64") for v in large):
        return False
    row, left = aval.shape[-1], set(range(aval.ndim)) - {*axes}
    if left and aval.ndim - 1 in left and row > machine.fused_left:
        return False
    if left and aval.ndim - 1 not in left and row < machine.fused_row:
        return False
    return fuses_sums()


@functools.cache
def fuses_sums() -> bool:
    """Whether XLA sums what it works out without keeping it: a small program is compiled to see.

    XLA:CPU does with YNNPACK, which it has on x86 since jaxlib 0.10.2.
    """
    column, row = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((512, 1), (1, 512)))
    program = jax.jit(lambda x, y: jnp.exp(x - y).sum(1)).lower(column, row).compile()
    stats = program.memory_analysis()
    return stats is not None and stats.temp_size_in_bytes < 512 * 512


def multiplications(product: Node) -> int:
    """Those of a product of matrices."""
    (inner, _), _ = product.params["dimension_numbers"]
    x, out = product.eqn.invars[0].aval, product.eqn.outvars[0].aval
    return math.prod(out.shape) * math.prod(x.shape[d] for d in inner)


def is_better_behind(plan: Plan, node: Node, view: compat.Scan, deferred: Sequence[Node]) -> bool:
    """Whether accumulating the carry that comes in saves working it out twice.

    So it is for accumulators as large as a slice (a sum to a number makes XLA keep the slice),
    unless operands would have to be copied to be one step apart. deferred: sums that stay slices.
    """
    graph, machine = plan.graph, Machine.current()
    if plan.single or any(v in node.outs for v in plan.escapes):
        return False
    _, _, xs = view.split(list(node.ins))
    apart = sum(size(graph, v) for v in (*xs, *(v for v, *_ in plan.sources)))
    widest = max(size(graph, v) for v in plan.region.streams) // plan.n
    vectors = [v for v in plan.results if size(graph, v) * 2 >= widest]
    costly = any(e.primitive.name in TWICE for e in view.body.jaxpr.eqns)
    return (
        costly
        and widest >= machine.wide_slice
        and bool(vectors or deferred)
        and apart <= machine.core_cache
    )


def chunk_of(region: Region, light: bool) -> int:
    """Steps per chunk: enough rows for the products with a whole matrix, else one step.

    The rows of a product are those of one slice times the steps of a chunk; their bytes fill a
    block. light: whether a step takes no longer than a reduction; then there are enough steps for
    a loop of their own, as where a slice is small.
    """
    graph, machine, wanted = region.graph, Machine.current(), 1
    for node, action in region.actions.items():
        if node.name != "dot_general" or not isinstance(action, Mapped):
            continue
        axes = axes_of(action, node)
        if None not in axes:
            continue
        matrix = graph.avals[node.ins[axes.index(None)]]
        out = graph.avals[node.outs[0]]
        if math.prod(matrix.shape) < machine.product_matrix:
            continue
        per_step = math.prod(out.shape) // region.n
        wide = max(matrix.shape)
        enough = max(machine.product_rows, machine.block // (wide * out.dtype.itemsize))
        wanted = max(wanted, enough // max(1, per_step // wide))
    row = slice_bytes(region)
    k = pace(region, plain=2) if light or row < machine.narrow_slice else 1
    most = region.n // machine.chunks
    while 1 < k < machine.inner_steps and 2 * k * row <= machine.shared_block / 2:
        k *= 2
    while 1 < k <= most and 2 * k * row <= machine.shared_block / 4:
        k *= 2
    while k < min(wanted, region.n):
        k *= 2
    return even(min(k, region.n), region.n, row if wanted == 1 else 0)


def even(k: int, n: int, row: int = 0) -> int:
    """About k, and a divisor of n if there is one: what is cut evenly need not be copied.

    row: bytes of a step, of blocks that had better not be of an awkward size.

    >>> even(16, 5000), even(16, 17), even(7, 3000, 20_000)
    (20, 16, 6)
    """
    near = range(max(1, k // 2), min(2 * k, n // 2) + 1)
    near = [d for d in near if n % d == 0 and (d == k or not is_awkward(d * row))]
    return min(near, key=lambda d: abs(d - k)) if near and k > 1 else k


def steps_of(region: Region, node: Node, most: Any) -> int:
    """As many steps at a time as are asked for; a divisor where the place of an extremum counts.

    XLA may round in one way in a loop and in another in what is left over: no ties any more.
    """
    n, most = region.n, min(most, region.n)
    ended = (a for a in region.actions.values() if isinstance(a, Ended))
    if n % most == 0 or not any(a.sink.name in ("argmin", "argmax") for a in ended):
        return most
    k = max(d for d in range(1, most) if n % d == 0)
    why = f"the place of an extremum among {n} is looked for in equal parts"
    note(f"{k} steps at a time, not {most}", compat.where(node.eqn), why)
    return k


def is_awkward(block: int) -> bool:
    """Whether XLA:CPU shares out what each equation does with so many bytes, in vain."""
    shared = Machine.current().shared_block
    return shared < block < 2 * shared


def pace(region: Region, plain: int = 1) -> int:
    """Steps per reduction, so that reducing takes longer than to start it: 1 but for small slices.

    What is put right after each provisional result (a softmax, a variance) costs several starts;
    a reduction that nothing is put right after costs `plain`.
    """
    machine, starts = Machine.current(), 0.0
    for node in region.actions.keys() - deferred_sums(region):
        action = region.actions[node]
        kinds = {mark.kind for mark in getattr(action, "marks", ())}
        put_right = machine.power_starts if "power" in kinds else machine.scaled_starts
        if isinstance(action, Ended | Carried):
            starts += put_right if kinds & {"power", "scale"} else plain
    enough = min(starts * machine.kernel_start * machine.bandwidth, machine.core_cache / 4)
    row, k = slice_bytes(region), 1
    while machine.chunks * k <= region.n and k * row < enough:
        k *= 2
    if k > 1 and is_awkward(k * row):
        return k // 2 if k >= 16 else 2 * k
    return k


def is_slow(region: Region) -> bool:
    """Whether reductions should take several steps at once."""
    return pace(region, 4 if is_costly(region) else 1) > Machine.current().slow_pace


def free_slice(body: compat.Jaxpr) -> int:
    """The bytes of a slice that a step stacks in no time: fewer where it takes long itself."""
    if is_heavy(body):
        return 0
    return Machine.current().short_slice // (4 if is_heavy(body, COSTLY) else 1)


def slice_bytes(region: Region) -> int:
    """Bytes that a step adds to what is stacked."""
    slices = (v for v in region.streams if region.graph.maker[v] not in region.actions)
    return max(1, sum(size(region.graph, v) for v in slices) // region.n)
