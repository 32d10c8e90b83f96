"""Says which index is out of bounds: JAX clamps it, drops the write or gives NaN, and is silent.

A program with an index in user code is followed by a check of its indices alone, compiled from
the same program; the first index found outside of each place in the source is told. After the
first runs of a program, its checks are left out where they would take over a tenth of the time.
"""

import ast
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.compat import Place
from malleable.core.frame import Frame
from malleable.core.interpret import Rulebook
from malleable.core.interpret import run as interpret
from malleable.inspection import places
from malleable.inspection.advice.evidence import sources
from malleable.inspection.advice.evidence.trouble import here
from malleable.inspection.advice.hint import Advice
from malleable.inspection.advice.watching import running
from malleable.inspection.advice.watching.running import Observer, Run
from malleable.programs.equations import every_within

ALWAYS = 16  # runs of a program that are checked, however long it takes
SHARE = 0.1  # of the time since the block was opened, for the checks of later runs
MOST = 64  # sites that are checked in one program
_METHODS = {"get", "set", "add", "subtract", "multiply", "divide", "power", "min", "max", "apply"}
_FUNCTIONS = {
    *("take", "take_along_axis", "dynamic_slice", "dynamic_slice_in_dim", "dynamic_index_in_dim"),
    *("dynamic_update_slice", "dynamic_update_slice_in_dim", "dynamic_update_index_in_dim"),
}


_ARRAYS = ("operand", "a", "arr")  # what these functions call the array


class Index(NamedTuple):
    """What the user wrote: `base`[`index`]. known: how much of the outcome is certain."""

    base: str
    index: str
    node: ast.expr


@dataclass
class Site:
    """One equation with an index, and the line it comes from."""

    eqn: Any
    place: Place
    wrote: Index


@dataclass
class Checked:
    """What checks the indices of one program."""

    run: Callable | None = None
    sites: list[Site] = field(default_factory=list)
    times: int = 0


class Indices(Observer):
    """Checks the indices of what runs."""

    def __init__(self):
        self.programs: dict[Any, Checked | dict[Place | None, Checked]] = {}
        self.told: set[Place] = set()
        self.opened, self.spent = time.perf_counter(), 0.0

    def follows(self, running: compat.Running) -> bool:
        known = self.programs.get(running.program, Checked())
        return isinstance(known, dict) or known.run is not None

    def ran(self, run: Run, caller):
        known = self.programs.get(run.program)
        if known is None:
            made = own_checks(run.program) if run.own else Checked()
            known = Checked(made.run, made.sites)
            if not run.own and any(True for _ in indexing(run.program)):
                known = {}  # by line: a function of a library is called from many
            self.programs[run.program] = known
        if isinstance(known, dict):
            place = running.place_in(caller)
            if place not in known:
                known[place] = checks(run.program, list(eager_sites(run.program, place)))
            known = known[place]
        if known.run is None or all(site.place in self.told for site in known.sites):
            return
        known.times, began = known.times + 1, time.perf_counter()
        if known.times > ALWAYS and self.spent > SHARE * (began - self.opened):
            return
        found = jax.device_get(known.run(*run.leaves))
        self.spent += time.perf_counter() - began if known.times > 1 else 0.0  # without compiling
        for site, (count, bad, size) in zip(known.sites, found, strict=True):
            if count and site.place not in self.told:
                self.told.add(site.place)
                running.warn(advice(site, int(count), int(bad), int(size)), site.place)


def advice(site: Site, count: int, bad: int, size: int) -> Advice:
    base, index, node = site.wrote
    writes = site.eqn.primitive.name.startswith("scatter") or "update" in site.eqn.primitive.name
    sliced = "dynamic" in sources.called(node)
    asked = bad - size if bad < 0 and not sliced else bad
    many = f" ({count} indices are outside)" if count > 1 else ""
    if sliced:
        what = f"a slice of `{base}` starts at {asked}, where it no longer fits: the axis has size "
        what += f"{size}{many}; JAX moves the start back, silently"
        hint = f"pad `{base}`, or clip the start yourself if that is what you mean"
        return Advice(what, here(site.place), hint)
    outcome = "drops the write" if writes else _reads(site.eqn)
    subject = f"`{index}` is {asked}, outside"
    if _several(node):
        subject = f"an index of `{base}[{index}]` is {asked}, outside"
    elif index == str(asked):
        subject = f"the index {asked} is outside"
    what = f"{subject} of `{base}`, whose axis has size {size}{many}; JAX {outcome}, silently"
    other = "drop" if writes else "fill"
    if sources.called(node) in _FUNCTIONS:
        how = f"{sources.text_of(node.func)}(..., mode="  # type: ignore[attr-defined]
    elif isinstance(node, ast.Call):
        how = f"{base}.at[{index}].{sources.called(node)}(..., mode="
    else:
        how = f"{base}.at[{index}].get(mode="
    hint = f'correct the index, or say what shall happen: {how}"clip") or mode="{other}"'
    return Advice(what, here(site.place), hint)


def _several(node: ast.expr) -> bool:
    """Whether an index has several parts."""
    return any(
        isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Tuple)
        for n in (node, getattr(getattr(node, "func", None), "value", None))
    )


def _reads(eqn) -> str:
    if "FILL" in str(eqn.params.get("mode")):
        return "gives NaN, or the least number of the type, there"
    return "reads the nearest element within"


# ---------------------------------------------------------------- which equations


def indexing(program: compat.Jaxpr) -> Iterator[tuple]:
    """(equation, equations around it, innermost first) of everything that takes an index."""
    return (found for found in every_within(program.eqns) if found[0].primitive in RULES)


def sites(program: compat.Jaxpr) -> Iterator[Site]:
    """The indices that the user wrote into a program, and said nothing about."""
    for eqn, outer in indexing(program):
        place = places.of(eqn, *outer)
        wrote = written(place)
        if wrote and place:
            yield Site(eqn, place, wrote)


def eager_sites(program: compat.Jaxpr, place: Place | None) -> Iterator[Site]:
    """The index at the line that runs now, outside of any jit."""
    wrote = written(place)
    if wrote and place:
        for eqn, _ in indexing(program):
            yield Site(eqn, place, wrote)


def written(place: Place | None) -> Index | None:
    """The index at a place, unless the user said what shall happen to one out of bounds."""
    return wrote(sources.expression_at(place)) if place else None


def wrote(node: ast.expr | None) -> Index | None:
    """The index in an expression, unless it says what shall happen to one out of bounds."""
    if node is None or any(isinstance(n, ast.keyword) and n.arg == "mode" for n in ast.walk(node)):
        return None
    match node:
        case ast.Subscript(value=base, slice=index):
            return Index(sources.text_of(base), _plain(index), node)
        case ast.Call(
            func=ast.Attribute(
                value=ast.Subscript(value=ast.Attribute(value=base, attr="at"), slice=index),
                attr=how,
            )
        ) if how in _METHODS:
            return Index(sources.text_of(base), _plain(index), node)
        case ast.Call() if sources.called(node) in _FUNCTIONS:
            base = next(filter(None, (sources.argument(node, 0, k) for k in _ARRAYS)), None)
            second = 2 if "update" in sources.called(node) else 1
            index = sources.argument(node, second, "start_indices")
            return Index(sources.text_of(base), sources.text_of(index), node) if base else None
    return None


def _plain(index: ast.expr) -> str:
    """An index as it stands between the brackets: `i, j`."""
    if isinstance(index, ast.Tuple):
        return ", ".join(map(sources.text_of, index.elts))
    return sources.text_of(index)


# ---------------------------------------------------------------- the check


@functools.lru_cache(32)  # compiled once for all blocks
def own_checks(program: compat.Jaxpr) -> Checked:
    return checks(program, list(sites(program)))


def checks(program: compat.Jaxpr, found: list[Site]) -> Checked:
    """A compiled function: arguments of the program -> (sites, 3): how many, one of them, size."""
    found = found[:MOST]
    if not found or program.jaxpr.effects:  # what it prints or calls may not happen twice
        return Checked()
    first = program.jaxpr.eqns[0]
    if first is found[0].eqn and first.invars == program.jaxpr.invars and len(found) == 1:
        return Checked(lambda *leaves: _at_once(first, leaves), found)
    numbers = {id(site.eqn): i for i, site in enumerate(found)}
    rules = {prim: _counting(bounds, numbers) for prim, bounds in RULES.items()}

    @jax.jit
    def run(*leaves):
        frame = Frame(carry=jnp.zeros((len(found), 3), jnp.int32))
        interpret(program, list(map(compat.as_array, leaves)), Rulebook(rules), frame)
        return frame.carry

    return Checked(run, found)


def _at_once(eqn, leaves) -> list:
    """The same for one equation, without compiling anything."""
    count, first, extent = 0, 0, 0
    whole = jax.ShapeDtypeStruct(np.shape(leaves[0]), np.int8)  # its values do not matter
    rest = map(np.asarray, leaves[1:])
    for index, last, size in RULES[eqn.primitive](whole, *rest, **eqn.params):
        index = np.ravel(index)
        bad = index[(index < 0) | (index > last)]
        first, extent = (int(bad[0]), size) if bad.size and not count else (first, extent)
        count += bad.size
    return [(count, first, extent)]


def _counting(bounds: Callable, numbers: dict[int, int]) -> Callable:
    def rule(frame, *args, **params):
        site = numbers.get(id(frame.eqn))
        if site is not None:
            for index, last, size in bounds(*args, **params):
                frame.carry = note(frame.carry, site, jnp.ravel(index), last, size)
        return frame.bind(*args)

    return rule


def note(carry, site: int, index, last: int, size: int):
    """Add the indices outside of 0..last to what is known of a site; keep the first of all."""
    if jnp.issubdtype(index.dtype, jnp.unsignedinteger):
        index = jnp.minimum(index, np.iinfo(np.int32).max)
    index = index.astype(jnp.int32)
    outside = (index < 0) | (index > last)
    count = jnp.sum(outside, dtype=jnp.int32)
    if not index.size:
        return carry
    bad = index[jnp.argmax(outside)]
    here = jnp.stack([carry[site, 0] + count, bad, jnp.int32(size)])
    first = (carry[site, 0] == 0) & (count > 0)
    kept = jnp.concatenate([(carry[site, 0] + count)[None], carry[site, 1:]])
    return carry.at[site].set(jnp.where(first, here, kept), mode="clip")


def _gather(operand, indices, *, dimension_numbers, slice_sizes, **_):
    for k, axis in enumerate(dimension_numbers.start_index_map):
        size = operand.shape[axis]
        yield indices[..., k], size - slice_sizes[axis], size


def _scatter(operand, indices, updates, *, dimension_numbers, **_):
    numbers = dimension_numbers
    alone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = [axis for axis in range(operand.ndim) if axis not in alone]
    sizes = dict(zip(windows, numbers.update_window_dims, strict=True))
    for k, axis in enumerate(numbers.scatter_dims_to_operand_dims):
        window = updates.shape[sizes[axis]] if axis in sizes else 1
        yield indices[..., k], operand.shape[axis] - window, operand.shape[axis]


def _dynamic_slice(operand, *starts, slice_sizes, **_):
    for start, part, size in zip(starts, slice_sizes, operand.shape, strict=True):
        yield start, size - part, size


def _dynamic_update_slice(operand, update, *starts, **_):
    return _dynamic_slice(operand, *starts, slice_sizes=update.shape)


RULES: dict[Any, Callable] = {
    lax.gather_p: _gather,
    lax.dynamic_slice_p: _dynamic_slice,
    lax.dynamic_update_slice_p: _dynamic_update_slice,
    lax.scatter_p: _scatter,
    **dict.fromkeys((lax.scatter_add_p, lax.scatter_mul_p), _scatter),
    **dict.fromkeys((lax.scatter_min_p, lax.scatter_max_p), _scatter),
}
