"""Run jitted, mapped and looped code as plain calls of Python: `unstage(fun)(*args)`.

Inside, `print`, `breakpoint()` and `if x > 0` see concrete values, in every body: of jit, pmap,
shard_map, vmap, scan, while, cond, checkpoint, custom derivatives.
"""

import contextlib
import contextvars
import functools
import io
import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax
from jax import numpy as jnp

from malleable import compat
from malleable.errors import MalleableError
from malleable.inspection.debugging import lanes
from malleable.inspection.unstaging.devices import on_devices, saying, together
from malleable.inspection.unstaging.ownership import is_installed, is_users
from malleable.inspection.unstaging.refusals import one_example, unless_refused
from malleable.notes import note
from malleable.python_source.misuse import called_as
from malleable.signatures import P, R


@called_as("unstage(fun)(*args)")
def unstage(fun: Callable[P, R]) -> Callable[P, R]:
    """Return a function that runs `fun` as Python, calling the user's functions for each value.

    A jitted function is called as it is; a scan, map, while or fori_loop is a loop; of a cond only
    the branch taken runs; a vmap calls its function once per example, a pmap or shard_map once
    per device. Where examples or devices are along an axis with a name, they run in turn, each up
    to the next collective, where they meet. Functions that were wrapped before count as well.
    Arguments and results are as without unstage, up to rounding.

    Types of carries are checked as JAX checks them, by JAX. Under a derivative, values print and
    compare, and the derivative itself is computed as always. What JAX insists on staging (kernels,
    `jax.eval_shape`) is staged, and leaves a note. So does what runs as a whole, by a rule: a vmap
    of a `custom_vmap`; under a derivative, a shard_map, pmap or vmap along a name of a `custom_vjp`
    or of a `custom_jvp` whose tangents meet at a collective. A vmap that an installed library makes
    of its own functions runs as a whole too. An error says in which step, example or device it
    happened. Raises MalleableError inside of jit or vmap, where there are no values.

    >>> import jax
    >>> @jax.jit
    ... def f(x):
    ...     return jax.lax.scan(lambda c, x: (c + x, print("at", float(c))), 0.0, x)[0]
    >>> float(unstage(f)(jax.numpy.arange(3.0)))
    at 0.0
    at 0.0
    at 1.0
    3.0
    """

    @functools.wraps(fun)
    def unstaged(*args, **kwargs):
        if compat.detour() is not None:
            return fun(*args, **kwargs)
        if "program" in compat.around():
            raise MalleableError(
                "unstage runs a function on its values, and these are being traced",
                hint="put unstage around what traces: unstage(jax.jit(f)), not jax.jit(unstage(f))",
            )
        if any(map(compat.is_elsewhere, jax.tree.leaves((args, kwargs)))):
            raise MalleableError(
                "unstage runs on values, and an argument has parts on devices of other processes",
                hint="gather it first: jax.experimental.multihost_utils.process_allgather(x, "
                "tiled=True), or run one process",
            )
        token = _said.set(set())
        try:
            with compat.detoured(_CONSTRUCTS), lanes.unguarded():
                return fun(*args, **kwargs)
        finally:
            _said.reset(token)

    return unstaged


_said: contextvars.ContextVar[set] = contextvars.ContextVar("said")  # what notes say already


class _Constructs:
    """What each construct of JAX does instead. NotImplemented, or None: let JAX do it."""

    def jit(self, fun, args, kwargs, static_argnums, static_argnames):
        if compat.is_operation(fun) or not _is_live() or not is_users(fun, args, kwargs):
            return NotImplemented
        static = {i % len(args) for i in static_argnums if -len(args) <= i < len(args)}
        given = [x for i, x in enumerate(args) if i not in static]
        named = {k: x for k, x in kwargs.items() if k not in static_argnames}
        if not _all_arrays((given, named)):
            return NotImplemented
        args = [x if i in static else _arrays(x) for i, x in enumerate(args)]
        outs = fun(*args, **kwargs | _arrays(named))
        return _arrays(outs) if _all_arrays(outs) else NotImplemented

    def checkpoint(self, fun, args, kwargs):
        if not _is_live() or not is_users(fun, args, kwargs):
            return NotImplemented
        outs = fun(*_arrays(args), **_arrays(kwargs))
        return _arrays(outs) if _all_arrays(outs) else NotImplemented

    def closure_convert(self, fun):
        if compat.around() - {"lane"}:  # a derivative wants to see what is closed over
            return NotImplemented
        return lambda *args: fun(*args)

    def custom_root(self, original, f, initial_guess, solve, tangent_solve, has_aux=False):
        if compat.around() - {"lane"}:
            return original(f, initial_guess, solve, tangent_solve, has_aux)
        return _arrays(solve(f, _arrays(initial_guess)))

    def custom_linear_solve(self, original, matvec, b, solve, *rest, **options):
        if compat.around() - {"lane"} or not is_users(matvec, solve):
            return original(matvec, b, solve, *rest, **options)
        return _arrays(solve(matvec, _arrays(b)))

    def psum(self, original, x, axis_name, **options):
        names = axis_name if isinstance(axis_name, tuple | list) else (axis_name,)
        lane = next((t for t in compat.lanes_here() if set(names) & set(t.axes)), None)
        if lane is not None:  # JAX takes an array without a tracer for the same in all lanes
            x = jax.tree.map(lambda v: lane.dressed(v) if isinstance(v, jax.Array) else v, x)
        return original(x, axis_name, **options)

    def scan(self, original, f, init, xs=None, length=None, reverse=False, unroll=1, **options):
        staged = functools.partial(
            original, f, init, xs, length, reverse=reverse, unroll=unroll, **options
        )
        if not _is_live() or not is_users(f) or not _all_arrays((init, xs)):
            return staged()
        carry, leaves, tree = _arrays(init), *jax.tree.flatten(_arrays(xs))
        sizes = {jnp.shape(x)[:1] for x in leaves} | ({(length,)} if length is not None else set())
        if len(sizes) != 1 or sizes in ({()}, {(0,)}):  # an error, or no step that shows a type
            return _instead(staged)
        if any(lanes.axes_along(x, 0) for x in leaves):  # JAX refuses it
            return _instead(staged)
        ((n,),) = sizes
        ys: dict[int, Any] = {}

        def step(i, carry):
            with saying(f"scan[{i}/{n}]"):
                out = f(_arrays(carry), jax.tree.unflatten(tree, _pick(leaves, i)))
            return out if isinstance(out, tuple | list) and len(out) == 2 else None

        for turn, i in enumerate(range(n - 1, -1, -1) if reverse else range(n)):
            out = step(i, carry)
            if turn == 0 and out is not None and (wider := _promoted(carry, out[0])) is not None:
                carry, out = wider, step(i, wider)
            if out is None or not _fits(carry, out[0]):
                return _instead(staged, "the carry of a scan changes its type")
            last, ys[i] = _arrays(out[0]), out[1]
            carry = _as_weak_as(carry, last)
        try:
            return last, _stacked([ys[i] for i in range(n)])
        except _Unlike:
            return _instead(staged, "the results of the steps of a scan differ in type")

    def while_loop(self, original, cond_fun, body_fun, init_val):
        staged = functools.partial(original, cond_fun, body_fun, init_val)
        if not _is_live() or not is_users(cond_fun, body_fun) or not _all_arrays(init_val):
            return staged()
        if "derivative" in compat.around():
            note(
                "ran a while_loop under a derivative", compat.where(), "in reverse, JAX refuses it"
            )
        carry = last = _arrays(init_val)
        turn = 0
        while True:
            with saying(f"while[{turn}] test"):
                going = cond_fun(_arrays(carry))
            if jnp.shape(going) or not jnp.issubdtype(jnp.result_type(going), bool):
                return _instead(staged, "the test of a while_loop is no boolean")
            if not going:
                break
            with saying(f"while[{turn}]"):
                out = body_fun(_arrays(carry))
            if turn == 0 and (wider := _promoted(carry, out)) is not None:
                carry = wider
                continue
            if not _fits(carry, out):
                return _instead(staged, "the carry of a while_loop changes its type")
            last = _arrays(out)
            carry = _as_weak_as(carry, last)
            turn += 1
        weak = any(compat.is_weak(x) for x in jax.tree.leaves(carry))
        return _instead(staged) if turn == 0 and weak else last  # its body says of what type it is

    def cond(self, original, pred, true_fun, false_fun, *operands, **options):
        staged = functools.partial(original, pred, true_fun, false_fun, *operands, **options)
        if not _is_live() or not _chooses(pred, "biuf"):
            return staged()
        if callable(true_fun):
            given = [*operands, *options.values()]
            return self._branch(staged, (false_fun, true_fun), int(bool(pred)), given)
        x_true, (x_false, f_false) = true_fun, operands  # as it was called once
        true_fun, given = false_fun, [x_true] if pred else [x_false]
        return self._branch(staged, (f_false, true_fun), int(bool(pred)), given)

    def switch(self, original, index, branches, *operands, **options):
        staged = functools.partial(original, index, branches, *operands, **options)
        if not _is_live() or not _chooses(index, "iu"):
            return staged()
        taken = min(max(operator.index(index), 0), len(branches) - 1)
        return self._branch(staged, branches, taken, [*operands, *options.values()])

    def _branch(self, staged, branches, taken, operands):
        if not is_users(*branches):
            return staged()
        with saying(f"branch {taken} of {len(branches)}"):
            out = _arrays(branches[taken](*_arrays(operands)))
        if any(compat.is_weak(x) for x in jax.tree.leaves(out)):  # the others say how weak it is
            out = _as_weak_as(_types(staged), out)
        return out

    def vmap(self, run, args, dims, size, name, ends, fun):
        if not _is_live() or not is_users(fun) or is_installed(fun) or not size:
            return NotImplemented
        plain = all(d is None or isinstance(d, int) for d in dims)
        if not plain or not all(map(compat.is_array, args)):
            note("ran a vmap as a whole", compat.where(), "it maps something that is no array")
            return NotImplemented
        args = list(map(compat.as_array, args))
        along = [lanes.axes_along(x, d) for x, d in zip(args, dims, strict=True)]
        over = next(filter(None, along), None)  # the axes of a mesh that the examples lie along
        each = zip(args, dims, along, strict=True)
        args = [lanes.laid_along(x, d, None) if axes else x for x, d, axes in each]

        def example(i):
            one = [x if d is None else _slice(x, i, d) for x, d in zip(args, dims, strict=True)]
            with saying(f"vmap[{i}/{size}]"), one_example():
                return list(run(*one))

        def every():
            if name is not None:
                return together(example, name, size)
            return [example(i) for i in range(size)]

        rows = unless_refused(every, "vmap")
        if rows is NotImplemented:
            return NotImplemented
        columns, axes = zip(*rows, strict=True), ends()
        try:
            return [_stack_values(column, d, over) for column, d in zip(columns, axes, strict=True)]
        except _Unlike:
            return NotImplemented

    def shard_map(self, lane, fun, args, mesh, in_specs, axes, checked):
        if not _is_live() or not (is_users(fun) or compat.around()):
            return NotImplemented
        if not all(map(compat.is_array, args)):
            note("ran a shard_map as a whole", compat.where(), "it maps something that is no array")
            return NotImplemented
        if any(isinstance(x, compat.Tracer) and lanes.is_explicit(x) for x in args):
            why = "it is differentiated on an explicit mesh"
            note("ran a shard_map as a whole", compat.where(), why)
            return NotImplemented
        every = functools.partial(on_devices, lane, args, mesh, in_specs, axes, checked)
        outs = unless_refused(every, "shard_map")
        return None if outs is NotImplemented else outs  # nothing of it in parts, from now on

    def staged(self, what, function):
        name, _, where = function.partition(" at ")
        said = _said.get()
        if where and (what, function) not in said and compat.is_users(where.rpartition(":")[0]):
            said.add((what, function))
            note(f"{name} stays staged", where, f"JAX traces it for {what}")


_CONSTRUCTS = _Constructs()


def _is_live() -> bool:
    """Whether what is done here has values, those behind a derivative included."""
    return "program" not in compat.around()


def _instead(staged: Callable, wrong: str = ""):
    """As JAX does it, which says better what is wrong."""
    with compat.detoured(None):
        out = staged()
    if wrong:
        raise MalleableError(
            wrong,
            where=compat.where(),
            hint="let each step return what it was given, in shape and dtype",
        )
    return out


def _chooses(x, kinds: str) -> bool:
    """Whether a value is a scalar with a value, of a dtype that JAX takes here."""
    scalar = compat.is_array(x) and jnp.shape(x) == () and compat.is_known(x)
    return scalar and jnp.result_type(x).kind in kinds


def _all_arrays(tree) -> bool:
    return all(map(compat.is_array, jax.tree.leaves(tree)))


def _arrays(tree):
    """A copy, with arrays in the place of numbers, as a traced function is given and gives it."""
    return jax.tree.map(lambda x: compat.as_array(x) if compat.is_array(x) else x, tree)


def _slice(x, i: int, d: int):
    return lax.squeeze(lax.dynamic_slice_in_dim(x, i, 1, d), (d % x.ndim,))


def _pick(leaves: list, i: int) -> list:
    if compat.around():
        return [_slice(x, i, 0) for x in leaves]
    return lanes.pick(leaves, i)


def _fits(carry, out) -> bool:
    """Whether a step returned a carry of the type it was given."""
    ins, outs = jax.tree.leaves(carry), jax.tree.leaves(out)
    same = jax.tree.structure(carry) == jax.tree.structure(out) and all(map(compat.is_array, outs))
    return same and all(map(_same_type, ins, outs))


def _same_type(x, y) -> bool:
    """Whether two arrays are of one type, weak or not, wherever they lie."""
    one, other = jax.typeof(x), jax.typeof(y)
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and compat.varying(one) == compat.varying(other)


def _promoted(carry, out):
    """The carry with its numbers as wide as the step makes them, as JAX does; None if they are."""
    if jax.tree.structure(carry) != jax.tree.structure(out):
        return None
    pairs = list(zip(jax.tree.leaves(carry), jax.tree.leaves(out), strict=True))
    if not all(compat.is_array(y) for _, y in pairs):
        return None
    wider = [
        compat.convert(x, jnp.result_type(x, y), False)
        if compat.is_weak(x) and x.dtype != jnp.result_type(y)
        else x
        for x, y in pairs
    ]
    if all(w is x for w, (x, _) in zip(wider, pairs, strict=True)):
        return None
    return jax.tree.unflatten(jax.tree.structure(carry), wider)


def _as_weak_as(types, tree):
    """With each array as weak in its type as it should be."""

    def one(t, x):
        weak = t.weak_type if isinstance(t, jax.ShapeDtypeStruct) else compat.is_weak(t)
        return x if compat.is_weak(x) == weak else compat.convert(x, x.dtype, weak)

    return tree if types is None else jax.tree.map(one, types, tree)


def _types(staged: Callable):
    """The types of what a staged construct gives; None where it cannot be staged."""
    quiet = contextlib.redirect_stdout(io.StringIO())
    hook, sys.breakpointhook = sys.breakpointhook, lambda *args, **kwargs: None
    try:
        with compat.detoured(None), quiet:
            return jax.eval_shape(staged)
    except Exception:
        return None
    finally:
        sys.breakpointhook = hook


class _Unlike(Exception):
    """Values of several runs of a body do not go together."""


def _stack_values(values: Sequence, axis: int | None = 0, over: Any = None):
    """Values one above the other along an axis, or the one they all are. over: axes of a mesh."""
    if axis is None:
        known: list[Any] = [compat.concrete(x) for x in values]
        if not all(jnp.array_equal(known[0], x, equal_nan=True) for x in known[1:]):
            raise _Unlike
        return values[0]
    values = list(map(compat.as_array, values))
    first = jax.typeof(values[0])
    if not all(jnp.shape(x) == first.shape and jax.typeof(x).dtype == first.dtype for x in values):
        raise _Unlike
    if compat.around() or lanes.is_explicit(values[0]):
        whole = jnp.stack(values, axis)
        laid = over is not None and lanes.is_explicit(whole)
        return lanes.laid_along(whole, axis, over) if laid else whole
    return jnp.moveaxis(lanes.stack_lanes(values, first), 0, axis)


def _stacked(trees: list):
    """Pytrees of values one above the other."""
    tree = jax.tree.structure(trees[0])
    if any(jax.tree.structure(t) != tree for t in trees):
        raise _Unlike
    leaves = zip(*map(jax.tree.leaves, map(_arrays, trees)), strict=True)
    return jax.tree.unflatten(tree, [_stack_values(column) for column in leaves])
