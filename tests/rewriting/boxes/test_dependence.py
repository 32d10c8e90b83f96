"""What an equation needs is found, and no more is dirty: each primitive against its numbers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from malleable import compat, stage
from malleable.programs.evaluate import evaluate
from malleable.programs.primitives import PRIMITIVES, kind
from malleable.rewriting.boxes import dependence
from malleable.rewriting.boxes.blocks import compute, cut
from malleable.rewriting.boxes.dependence import Along, dirty_box, groups, rel
from malleable.rewriting.boxes.spans import Span, Start, hull, merged, sizes_of, whole
from malleable.rewriting.incremental.plan import opened


def x(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def reduce_window(computation, unit, **more):
    return lambda a: lax.reduce_window(a, unit, computation, **more)


NUMBERS = ("NHWC", "HWIO", "NHWC")
EQUATIONS = {
    "elementwise": (lambda a, b: lax.add(a, b), x(4, 5), x(4, 5, seed=1)),
    "extents of one": (lambda a, b: lax.mul(a, b), x(4, 5), x(4, 5, seed=1)),
    "select": (lambda a, b: lax.select(a > 0, a, b), x(4, 5), x(4, 5, seed=1)),
    "clamp": (lambda a: lax.clamp(np.float32(-1), a, np.float32(1)), x(4, 5)),
    "broadcast": (lambda a: lax.broadcast_in_dim(a, (3, 4, 5), (1, 2)), x(4, 1)),
    "transpose": (lambda a: lax.transpose(a, (2, 0, 1)), x(2, 3, 4)),
    "squeeze": (lambda a: lax.squeeze(a, (1,)), x(3, 1, 4)),
    "reshape": (lambda a: lax.reshape(a, (3, 1, 8)), x(3, 2, 4)),
    "reshape that splits": (lambda a: lax.reshape(a, (4, 3, 5)), x(12, 5)),
    "reshape that merges": (lambda a: lax.reshape(a, (12, 5)), x(4, 3, 5)),
    "reshape of both": (lambda a: lax.reshape(a, (4, 3)), x(6, 2)),
    "sum": (lambda a: lax.reduce_sum(a, (1,)), x(3, 4, 5)),
    "argmax": (lambda a: lax.argmax(a, 1, jnp.int32), x(3, 4)),
    "cumsum": (lambda a: lax.cumsum(a, 1), x(3, 6)),
    "cumsum from behind": (lambda a: lax.cumsum(a, 0, reverse=True), x(6, 2)),
    "dot": (lambda a, b: lax.dot(a, b), x(4, 3), x(3, 5, seed=1)),
    "batched dot": (
        lambda a, b: lax.dot_general(a, b, (((2,), (1,)), ((0,), (2,)))),
        x(2, 3, 4),
        x(5, 4, 2, seed=1),
    ),
    "convolution": (
        lambda a, w: lax.conv_general_dilated(
            a, w, (1, 2), [(2, 1), (0, 3)], rhs_dilation=(2, 1), dimension_numbers=NUMBERS
        ),
        x(2, 7, 8, 2),
        x(2, 3, 2, 3, seed=1),
    ),
    "convolution of each channel": (
        lambda a, w: lax.conv_general_dilated(
            a, w, (1,), [(4, 0)], rhs_dilation=(2,), feature_group_count=3
        ),
        x(2, 3, 7),
        x(3, 1, 3, seed=1),
    ),
    "convolution of groups of channels": (
        lambda a, w: lax.conv_general_dilated(a, w, (1,), [(1, 0)], feature_group_count=2),
        x(2, 4, 7),
        x(6, 2, 2, seed=1),
    ),
    "channels first": (
        lambda a, w: lax.conv_general_dilated(
            a, w, (1,), [(2, 0)], dimension_numbers=("NCW", "OIW", "WNC")
        ),
        x(2, 3, 7),
        x(4, 3, 3, seed=1),
    ),
    "dilated convolution": (
        lambda a, w: lax.conv_general_dilated(
            a, w, (1,), [(1, 1)], lhs_dilation=(2,), dimension_numbers=("NWC", "WIO", "NWC")
        ),
        x(1, 5, 2),
        x(3, 2, 2, seed=1),
    ),
    "window": (
        reduce_window(
            lax.add, np.float32(0), window_dimensions=(3, 1), window_strides=(2, 1), padding="SAME"
        ),
        x(8, 3),
    ),
    "maximum of windows": (
        lambda a: lax.reduce_window(a, -np.inf, lax.max, (2, 2), (1, 1), ((1, 0), (0, 1))),
        x(6, 4),
    ),
    "slope of maxima": (
        jax.grad(lambda a: lax.reduce_window(a, -np.inf, lax.max, (1, 2), (1, 2), "VALID").sum()),
        x(6, 4),
    ),
    "pad": (lambda a: lax.pad(a, np.float32(0), ((1, 2, 0), (-1, 3, 0))), x(4, 5)),
    "pad between": (lambda a: lax.pad(a, np.float32(0), ((1, 0, 1),)), x(4)),
    "slice": (lambda a: lax.slice(a, (1, 0), (8, 4), (3, 1)), x(9, 4)),
    "reversed": (lambda a: lax.rev(a, (0,)), x(5, 3)),
    "concatenate": (lambda a, b: lax.concatenate([a, b], 0), x(3, 2), x(4, 2, seed=1)),
    "split": (lambda a: lax.split(a, (2, 3), 1), x(4, 5)),
    "sort": (lambda a: lax.sort(a, dimension=0), x(5, 3)),
    "sort of several": (lambda a, b: lax.sort((a, b), dimension=1, num_keys=1), x(2, 5), x(2, 5)),
    "top_k": (lambda a: lax.top_k(a, 2), x(3, 6)),
    "approx_top_k": (lambda a: lax.approx_max_k(a, 2, reduction_dimension=0), x(6, 3)),
    "reduce by a function": (
        lambda a: lax.reduce(a, 0.0, lambda p, q: jnp.hypot(p, q), (1,)),
        x(3, 4, 5),
    ),
    "reduce of two by a function": (
        lambda a, b: lax.reduce(
            (a, b),
            (-np.inf, 0.0),
            lambda p, q: [jnp.where(p[0] > q[0], *s) for s in zip(p, q)],
            (1,),
        ),
        x(3, 4),
        x(3, 4),
    ),
    "gather of rows": (lambda a: a[np.array([2, 0, 2, 1])], x(3, 4)),
    "gather along": (lambda a: jnp.take_along_axis(a, np.array([[1], [0], [2]]), 1), x(3, 4)),
    "cholesky": (lambda a: lax.linalg.cholesky(a), x(3, 3) * 0 + np.eye(3, dtype=np.float32)),
    "matrices of a batch": (
        lambda a: jnp.linalg.qr(a)[0] + jnp.linalg.cholesky(a @ a.mT + 9 * jnp.eye(3)),
        x(4, 3, 3),
    ),
    "factorization": (lambda a: lax.linalg.lu(a), x(4, 3, 3)),
    "systems of a batch": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        x(4, 3, 3) + 3 * np.eye(3, dtype=np.float32),
        x(4, 3, 2, seed=1),
    ),
    "products of reflections": (
        lambda a, b: lax.linalg.householder_product(a, b),
        x(4, 3, 3),
        x(4, 3, seed=1),
    ),
    "block at a place": (
        lambda a, b, i: lax.dynamic_update_slice(a, b, (i, i * 0)),
        x(4, 3),
        x(2, 3, seed=1),
        np.int32(1),
    ),
    "rows by a table": (
        lambda a, b: lax.dot_general(
            a, b, (((0,), (2,)), ((1,), (0,))), preferred_element_type=float
        ),
        x(5, 2, 3),
        x(2, 4, 5, seed=1),
    ),
    "frequencies": (lambda a: lax.fft(a, "fft", (4,)), x(3, 5, 4) + 0j),
    "write of a column": (lambda a, b: a.at[:, 1].set(b), x(4, 3), x(4, seed=1)),
    "writes of a batch": (
        lambda a, b: jax.vmap(lambda a, b: a.at[np.array([2, 0])].add(b))(a, b),
        x(4, 3),
        x(4, 2, seed=1),
    ),
    "dynamic_update_slice": (lambda a, b: lax.dynamic_update_slice(a, b, (1, 0)), x(4, 3), x(2, 3)),
}


def equations():
    return [pytest.param(f, args, id=name) for name, (f, *args) in EQUATIONS.items()]


def last_equation(f, args):
    """The equation under test, with the values of its operands and of its results."""
    eqns, values = [], {}

    def remember(eqn, operands):
        outs = compat.bind(eqn, operands)
        eqns.append(eqn)
        values[id(eqn)] = operands, outs
        return outs

    evaluate(opened(stage(f)(*args).jaxpr).jaxpr(), args, remember)
    eqn = eqns[-1]
    return eqn, *values[id(eqn)]


@pytest.mark.parametrize(("f", "args"), equations())
def test_no_place_changes_outside_of_what_is_dirty(f, args):
    eqn, operands, before = last_equation(f, args)
    operands = [np.asarray(x) for x in operands]
    known = lambda k: operands[k]
    tables = rel(eqn, known)
    for k, (operand, entries) in enumerate(zip(operands, tables, strict=True)):
        if operand.dtype.kind != "f":
            continue
        for place in itertools.islice(np.ndindex(operand.shape), 0, None, 2):
            changed = operand.copy()
            changed[place] += 3.0
            after = compat.bind(eqn, [*operands[:k], changed, *operands[k + 1 :]])
            box = tuple(Span(Start(offset=i), 1) for i in place)
            for old, new in zip(before, after, strict=True):
                dirty = dirty_box(entries, box, old.shape)
                differs = ~np.isclose(old, new, rtol=0, atol=0, equal_nan=True)
                for at in np.argwhere(differs):
                    inside = [
                        s.start.offset <= i < s.start.offset + s.size
                        for i, s in zip(at, dirty, strict=True)
                    ]
                    assert all(inside), (place, at, dirty)


@pytest.mark.in_turns
@pytest.mark.parametrize(("f", "args"), equations())
def test_a_block_is_that_part_of_the_whole(f, args):
    eqn, operands, outs = last_equation(f, args)
    tables = rel(eqn, lambda k: np.asarray(operands[k]))
    rng = np.random.default_rng(0)
    for _ in range(6):
        k = int(rng.integers(len(operands)))
        place = [int(rng.integers(n)) for n in np.shape(operands[k])]
        box = tuple(Span(Start("x", 1, i), 1) for i in place)
        found = dirty_box(tables[k], box, outs[0].shape)
        limits = {"x": (0, 0)}
        box = tuple(s.clipped(n, limits) for s, n in zip(found, outs[0].shape, strict=True))
        at = {"x": jnp.int32(0)}

        def read(j, part, fill, at=at, limits=limits):
            return cut(jnp.asarray(operands[j]), part, fill, at, limits)

        blocks = compute(eqn, box, read, at, lambda j: np.asarray(operands[j]))
        starts = [int(s.start.value(at)) for s in box]
        for block, out in zip(blocks, outs, strict=True):
            sizes = [n if s == Span(Start(), m) else s.size
                     for s, n, m in zip(box, out.shape, outs[0].shape, strict=False)]  # fmt: skip
            want = lax.dynamic_slice(out, starts[: out.ndim], sizes)
            np.testing.assert_allclose(block, want, 1e-5, 1e-5)


def test_every_primitive_has_a_row_or_is_taken_whole_for_a_reason():
    rows = (
        dependence.ELEMENTWISE | dependence.REDUCTIONS | dependence.CUMULATIVE | dependence.WINDOWS
    ) | dependence._RELATIONS.keys()
    taken_whole = kind(
        *("linalg", "random", "collective", "reference", "callback", "object", "token"),
        *("shape", "kernel", "sparse", "marker"),  # each number may need any other
        *("control", "call"),  # bodies are opened, or gone through by loops
        *("write", "create"),  # places come at run time; what has no operand does not change
        "place",  # where a value is kept holds for all of it
    )
    odd = {"reduce_window", "select_and_scatter", "select_and_gather_add"}
    odd |= {"tile"}  # a broadcast and a reshape
    odd |= {"ragged_dot_general", "scaled_dot"}
    assert PRIMITIVES.keys() - rows - taken_whole == odd
    assert odd & rows == set()


def test_the_hull_of_two_boxes_is_known_where_their_distance_is():
    t, u = Span(Start("t", 1, 0), 2), Span(Start("u", 1, 0), 2)
    assert hull(t, Span(Start("t", 1, 5), 1), 9) == Span(Start("t", 1, 0), 6)
    assert hull(t, u, 9) == Span(Start(), 9)


def test_a_row_and_a_column_stay_two_boxes():
    row = (Span(Start("t", 1, 0), 1), Span(Start(), 50))
    column = (Span(Start(), 50), Span(Start("t", 1, 0), 1))
    assert set(merged([row, column, row], (50, 50))) == {row, column}
    assert merged([row, whole((50, 50))], (50, 50)) == (whole((50, 50)),)
    assert sizes_of(row) == (1, 50)


def test_groups_of_a_reshape_are_the_smallest():
    assert groups((2, 3, 4), (6, 2, 2)) == [([0, 1], [0]), ([2], [1, 2])]
    assert groups((), (1, 1)) == [([], [0]), ([], [1])]


def test_a_position_that_is_divided_stays_exact_where_it_can():
    assert Start("t", 6, 3).divided(3) == Start("t", 2, 1)
    assert Start(offset=-1).divided(2) == Start(offset=-1)
    assert Start("t", 1, 1).divided(2).bounds({"t": (0, 6)}) == (0, 3)
    assert int(Start("t", 1, 1).divided(2).value({"t": jnp.int32(6)})) == 3


def test_rel_gives_entries_for_each_dimension_of_each_operand():
    (eqn,) = stage(lambda a: jax.lax.rev(a, (0,)))(jnp.ones((3, 2))).jaxpr.eqns
    assert rel(eqn) == [[Along(0, -1, 2, 2), Along(1)]]
