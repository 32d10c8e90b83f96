"""PyTensor's Scan in the mode "JAX_SELECTIVE": `until`, and as many steps as a value says.

A Scan that JAX can trace is a `lax.scan`, as PyTensor converts it; one with `until` is a
`lax.while_loop`, and only how often it went round is asked for. Where a step itself needs a value,
the loop runs in Python and the steps are compiled.
"""

from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from pytensor.compile.mode import JAX, get_mode
from pytensor.link.jax.dispatch.basic import jax_funcify
from pytensor.scan.op import Scan

from malleable.integrations.pytensor.graph import DEMANDS, demand, funcify, is_host, rule, theirs
from malleable.notes import first_line, note


@rule(Scan)
def scan(op, node, **kwargs):
    convert = _until if op.info.as_while else _all_steps
    compiled = jax.jit(convert(op, node, **kwargs), static_argnums=0)
    in_python = _python_loop(op, node, funcify(op.fgraph, **kwargs))
    is_traceable = True

    def scan(*values):
        nonlocal is_traceable
        steps, sizes, others = _take_sizes(op, values)
        if is_traceable or not is_host(values):
            try:
                outs = compiled((steps, *sizes), *others)
                return _as_long_as_made(op, values, sizes, outs) if op.info.as_while else outs
            except DEMANDS as error:
                if not is_host(values):
                    raise
                note("the steps of a Scan run one by one", str(op), first_line(error))
                is_traceable = False
        return in_python(steps, sizes, others)

    return scan


def _take_sizes(op, values):
    """(number of steps, how much of each nit-sot to keep, the other inputs)."""
    first = len(values) - len(op.outer_non_seqs(values)) - op.info.n_nit_sot
    after = first + op.info.n_nit_sot
    steps, *sizes = (int(demand(size)) for size in (values[0], *values[first:after]))
    return steps, tuple(sizes), (*values[1:first], *values[after:])


def _put_sizes(op, steps, sizes, others):
    """The inputs of the Scan, the inverse of `_take_sizes`."""
    first = len(others) - len(op.outer_non_seqs((steps, *sizes, *others)))
    return [steps, *others[:first], *sizes, *others[first:]]


def _single(outs):
    return outs[0] if len(outs) == 1 else outs


def _rewrite_inside(op):
    """Before PyTensor 3.1 the graph inside is rewritten by its conversion, not before."""
    if "get_mode" in jax_funcify.dispatch(Scan).__globals__:
        mode = get_mode(op.mode).including("jax").excluding("numba", *JAX._optimizer.exclude)
        rewriter: Any = mode.optimizer
        rewriter.rewrite(op.fgraph)


def _all_steps(op, node, **kwargs):
    """PyTensor's own conversion; what it needs to know of the shapes comes first."""
    scan = theirs(op, node, **kwargs)

    def all_steps(sizes, *others):
        return scan(*_put_sizes(op, sizes[0], sizes[1:], others))

    return all_steps


# ------------------------------------------------------------------------------------- `until`


def _recurrent(op, inputs):
    """[(buffer, taps)] of what a step reads of the steps before it: mit-sot, then sit-sot."""
    buffers = [*op.outer_mitsot(inputs), *op.outer_sitsot(inputs)]
    return list(zip(buffers, [*op.info.mit_sot_in_slices, *op.info.sit_sot_in_slices], strict=True))


def _until(op, node, **kwargs):
    """A `lax.while_loop` that writes the outputs of step i into row i, modulo what is kept.

    all(sizes, *inputs) -> (number of steps made, mit-mots, initial rows, traces, untraced).
    """
    _rewrite_inside(op)
    inner, info = funcify(op.fgraph, **kwargs), op.info

    def until(sizes, *others):
        steps = sizes[0]
        inputs = _put_sizes(op, steps, sizes[1:], others)
        seqs, constants = op.outer_seqs(inputs), op.outer_non_seqs(inputs)
        recurrent = _recurrent(op, inputs)
        first_rows = [jnp.asarray(buffer)[: -min(taps)] for buffer, taps in recurrent]

        def step(i, mit_mots, windows, untraced):
            args = [lax.dynamic_index_in_dim(seq, i, keepdims=False) for seq in seqs]
            for buffer, taps in zip(mit_mots, info.normalized_mit_mot_in_slices, strict=True):
                args += [lax.dynamic_index_in_dim(buffer, i + t, keepdims=False) for t in taps]
            for window, (_, taps) in zip(windows, recurrent, strict=True):
                args += [window[tap] for tap in taps]
            outs: Any = [*inner(*args, *untraced, *constants)]
            grouped, slices = op.inner_mitmot_outs_grouped(outs), info.normalized_mit_mot_out_slices
            mit_mots = [
                buffer.at[i + np.array(taps)].set(jnp.stack(new))
                for buffer, new, taps in zip(mit_mots, grouped, slices, strict=True)
            ]
            states = [*op.inner_mitsot_outs(outs), *op.inner_sitsot_outs(outs)]
            windows = [
                jnp.concatenate([window[1:], jnp.asarray(new, window.dtype)[None]])
                for window, new in zip(windows, states, strict=True)
            ]
            rows = [window[-1] for window in windows] + op.inner_nitsot_outs(outs)
            goes_on = jnp.logical_not(jnp.asarray(outs[-1], bool))
            return goes_on, mit_mots, windows, op.inner_untraced_sit_sot_outs(outs), rows

        start = list(map(jnp.asarray, op.outer_mitmot(inputs)))
        start = start, first_rows, [*op.outer_untraced_sit_sot(inputs)]
        *_, rows = jax.eval_shape(step, 0, *start)
        kept = [len(buffer) for buffer, _ in recurrent] + list(sizes[1:])
        pairs = zip(kept, rows, strict=True)
        traces = [jnp.zeros((max(min(steps, n), 1), *row.shape), row.dtype) for n, row in pairs]

        def body(carry):
            i, _, state, traces = carry
            goes_on, *state, rows = step(i, *state)
            traces = [
                lax.dynamic_update_index_in_dim(trace, row.astype(trace.dtype), i % len(trace), 0)
                for trace, row in zip(traces, map(jnp.asarray, rows), strict=True)
            ]
            return i + 1, goes_on, tuple(state), traces

        begin = 0, True, start, traces
        made, _, (mit_mots, _, untraced), traces = lax.while_loop(
            lambda carry: (carry[0] < steps) & carry[1], body, begin
        )
        return made, mit_mots, first_rows, traces, untraced

    return until


def _as_long_as_made(op, values, sizes, outs):
    """The outputs of the Scan: initial rows and those of the steps made, the last of them kept."""
    made, mit_mots, first_rows, traces, untraced = outs
    made, xp = demand(made), np if is_host(outs) else jnp
    kept = [len(buffer) for buffer, _ in _recurrent(op, values)] + list(sizes)
    firsts = [*first_rows, *[trace[:0] for trace in traces[len(first_rows) :]]]
    found = []
    for first, trace, n in zip(firsts, map(xp.asarray, traces), kept, strict=True):
        oldest = made % len(trace) if made > len(trace) else 0
        rows = [trace[oldest:made], trace[:oldest]]
        found.append(jnp.asarray(_last(xp.concatenate([xp.asarray(first), *rows]), n)))
    return _single([*mit_mots, *found, *untraced])


def _last(rows, n):
    return rows[max(len(rows) - n, 0) :]


# ------------------------------------------------------------------------------ step by step


def _python_loop(op, node, inner):
    """The Scan as a loop in Python: what a step needs to know is known."""
    info, n_outs = op.info, len(node.outputs)

    def loop(steps, sizes, others):
        inputs = _put_sizes(op, steps, sizes, others)
        seqs = [np.asarray(seq) for seq in op.outer_seqs(inputs)]
        mit_mots = [np.array(buffer) for buffer in op.outer_mitmot(inputs)]
        recurrent = [(np.asarray(buffer), taps) for buffer, taps in _recurrent(op, inputs)]
        histories = [list(buffer[: -min(taps)]) for buffer, taps in recurrent]
        histories += [[] for _ in sizes]
        untraced, constants = op.outer_untraced_sit_sot(inputs), op.outer_non_seqs(inputs)
        for i in range(steps):
            args = [seq[i] for seq in seqs]
            for buffer, taps in zip(mit_mots, info.normalized_mit_mot_in_slices, strict=True):
                args += [buffer[i + tap].copy() for tap in taps]
            for history, (_, taps) in zip(histories, recurrent, strict=False):
                args += [history[tap] for tap in taps]
            outs: Any = [*inner(*args, *untraced, *constants)]
            grouped, slices = op.inner_mitmot_outs_grouped(outs), info.normalized_mit_mot_out_slices
            for buffer, new, taps in zip(mit_mots, grouped, slices, strict=True):
                for tap, value in zip(taps, new, strict=True):
                    buffer[i + tap] = value
            rows = [*op.inner_mitsot_outs(outs), *op.inner_sitsot_outs(outs)]
            rows += op.inner_nitsot_outs(outs)
            for history, row in zip(histories, rows, strict=True):
                history.append(np.asarray(row))
            untraced = op.inner_untraced_sit_sot_outs(outs)
            if info.as_while and bool(outs[-1]):
                break
        kept = [len(buffer) for buffer, _ in recurrent] + list(sizes)
        kinds = [out.type for out in node.outputs[len(mit_mots) : n_outs - len(untraced)]]
        each = zip(histories, kept, kinds, strict=True)
        found = [_stacked(_last(history, n), kind) for history, n, kind in each]
        return _single([*map(jnp.asarray, mit_mots), *found, *untraced])

    return loop


def _stacked(rows, kind):
    empty = np.empty((0, *(size or 0 for size in kind.shape[1:])), kind.dtype)
    return jnp.asarray(np.stack(rows).astype(kind.dtype) if rows else empty)
