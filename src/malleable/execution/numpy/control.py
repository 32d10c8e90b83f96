"""NumPy code for calls, branches and loops: calls in place, the others as Python's own."""

from typing import Any

from malleable import compat
from malleable.execution.common.breaks import Unsupported
from malleable.execution.numpy.library import searchsorted
from malleable.execution.numpy.writer import Value, Writer, numpy_rule, searched_side


@numpy_rule("jit", "pjit")
def search(w, eqn, *ins):
    side = searched_side(eqn)
    if not side:
        raise Unsupported(f"{eqn.primitive.name} without a program")
    return searchsorted(w, eqn, ins, side)


@numpy_rule("custom_linear_solve")
def custom_linear_solve(w, eqn, *ins):
    lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
    before = lengths.matvec + lengths.vecmat
    consts = ins[before : before + lengths.solve]
    rest = ins[sum(lengths) :]
    return w.inline(compat.close(jaxprs.solve), [*consts, *rest])


def hold(w: Writer, values) -> None:
    """Names for what is written more than once, or later."""
    for x in values:
        if not x.weak:
            w.name(x)


@numpy_rule("cond")
def cond(w, eqn, index, *ins):
    branches = eqn.params["branches"]
    hold(w, (index, *ins))
    names = [w.new_name() for _ in eqn.outvars]
    last = len(branches) - 1
    for i, branch in enumerate(branches):
        test = f"{w.text(index)} <= {i}" if index.dtype != bool else f"not {w.text(index)}"
        head = "else:" if i == last else f"{'if' if i == 0 else 'elif'} {test}:"
        with w.block(head if last else "if True:"):
            outs = w.inline(compat.close(branch), ins)
            for name, out in zip(names, outs, strict=True):
                w.line(f"{name} = {w.argument(out)}")
    return results(w, eqn, names)


def results(w: Writer, eqn, names) -> list[Value]:
    return [w.named(v.aval, name) for v, name in zip(eqn.outvars, names, strict=True)]


def carried(w: Writer, avals, ins) -> list[Value]:
    """Variables of a loop, with their first values."""
    names = [w.new_name() for _ in ins]
    for name, x in zip(names, ins, strict=True):
        w.line(f"{name} = {w.argument(x)}")
    return [w.named(aval, name) for aval, name in zip(avals, names, strict=True)]


def carry_on(w: Writer, carry, outs) -> None:
    """The next values of the variables of a loop, all at once."""
    pairs = [(c.text, w.whole(out)) for c, out in zip(carry, outs, strict=True)]
    pairs = [(c, out) for c, out in pairs if c != out]
    if pairs:
        w.line(f"{', '.join(c for c, _ in pairs)} = {', '.join(out for _, out in pairs)}")


@numpy_rule("while")
def while_(w, eqn, *ins):
    view: Any = compat.view(eqn)
    hold(w, ins)
    test_consts, body_consts, first = view.split(ins)
    carry = carried(w, [v.aval for v in eqn.outvars], first)
    with w.block("while True:"):
        (going,) = w.inline(view.cond, [*test_consts, *carry])
        some = w.name(going) if going.shape else w.array(going)
        with w.block(f"if not {some}.any():" if going.shape else f"if not {some}:"):
            w.line("break")
        outs = w.inline(view.body, [*body_consts, *carry])
        if going.shape:
            outs = [where_going(w, going, c, out) for c, out in zip(carry, outs, strict=True)]
        carry_on(w, carry, outs)
    return carry


def where_going(w: Writer, going: Value, before: Value, after: Value) -> Value:
    """The next value of a variable of a stack of loops: unchanged where a loop has ended."""
    more = before.rank - going.rank
    test = w.array(going) + (f"[{', '.join([':'] * going.rank + ['None'] * more)}]" if more else "")
    text = f"np.where({test}, {w.argument(after)}, {before.text})"
    return Value(text, before.shape, before.dtype, before.shape)


@numpy_rule("scan")
def scan(w, eqn, *ins):
    view: Any = compat.view(eqn)
    hold(w, ins)
    consts, first, xs = view.split(ins)
    m, length, body = len(first), w.size(view.length), view.body
    carry = carried(w, [v.aval for v in eqn.outvars[:m]], first)
    stacks = [w.new_name() for _ in eqn.outvars[m:]]
    for name, v in zip(stacks, eqn.outvars[m:], strict=True):
        w.line(f"{name} = np.empty({w.shape(v.aval.shape)}, {w.dtype(v.aval.dtype)})")
    arrays = [x.text if x.full else w.assign(w.argument(x)) for x in xs]
    i = w.new_name()
    span = f"reversed(range({length}))" if view.reverse else f"range({length})"
    with w.block(f"for {i} in {span}:"):
        slots = body.jaxpr.invars[len(consts) + m :]
        slices = [w.value(v.aval, f"{x}[{i}]") for v, x in zip(slots, arrays, strict=True)]
        outs = w.inline(body, [*consts, *carry, *slices])
        for name, out in zip(stacks, outs[m:], strict=True):
            w.line(f"{name}[{i}] = {w.text(out)}")
        carry_on(w, carry, outs[:m])
    return [*carry, *results(w, eqn, [*(c.text for c in carry), *stacks])[m:]]
