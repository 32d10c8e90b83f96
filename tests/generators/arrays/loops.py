"""The loops of random array programs: scans, maps, fori loops that write rows; alone and nested.

Each is a function of (writer, scope), which adds one step with the stacked outputs.
"""

import re

from tests.generators.arrays.elements import is_array
from tests.generators.arrays.writer import Step, Value, fit, real

UPDATES = (
    "jnp.sin({c})",
    "jnp.tanh(0.7 * {c} + {u})",
    "0.9 * {c} + 0.1 * {u}",
    "jnp.cos({c} * {u} + 0.3)",
    "{c} - 0.1 * jnp.tanh({u})",
    "jnp.where({u} > 0.1, {c} * 0.8, {u})",
    "lax.cond(jnp.sum({c}) > 0.1, lambda z: 0.9 * z, lambda z: 0.5 * z + 0.1, {c})",
    "lax.fori_loop(0, 2, lambda i, z: jnp.sin(z) + 0.1 * i, {c})",
)
WHILE = "lax.while_loop(lambda s: s[0] < 2, lambda s: (s[0] + 1, jnp.sin(s[1])), (0, {c}))[1]"
INTEGER_UPDATES = (
    "{c} * 1103515245 + 7",
    "(3 * {c} + 1) % 7",
    "{c} + 1",
    "jnp.maximum({c}, 2) ^ 3",
)


def carry_parts(w, scope):
    """[(value inside, text of its start)]: one to three, most of them floats."""
    parts = []
    for _ in range(w.pick((1, 1, 2, 3))):
        if parts and w.chance(3):
            shape = w.pick(((), (w.batch,)))
            start = w.pick((f"jnp.zeros({shape}, jnp.int32)", w.arg(shape, "int").name))
            parts.append((Value(w.name("c"), shape, "int32", 1e10, False), start))
            continue
        shape = w.row()
        given = [v for v, _ in w.args if v.shape == shape and v.dtype == "float"]
        start = w.pick(given) if given and w.chance(2) else w.arg(shape)
        zero = w.chance(6)
        text = f"jnp.zeros({shape})" if zero else start.name
        parts.append((Value(w.name("c"), shape, "float", 1.5, not zero), text))
    return parts


def scanned(w, scope, length, depth=0):
    """[(value inside, text of the array)]: arguments, earlier outputs, and a count."""
    parts = []
    for _ in range(w.pick((0, 1, 1, 2, 3))):
        earlier = w.read(
            scope, lambda v: is_array(v) and v.shape[0] == length and v.dtype != "bfloat16"
        )
        if earlier is None or w.chance(2):
            kind = w.pick(("signed", "signed", "signed", "positive", "int", "mask"))
            earlier = w.arg((length, *w.row()), kind)
        e = earlier
        parts.append((Value(w.name("p"), e.shape[1:], e.dtype, e.bound, e.distinct), e.name))
    if w.chance(4):
        parts.append((Value(w.name("i"), (), "int32", 6, False), f"jnp.arange({length})"))
    return parts


def packed(w, names):
    """(pattern to build or take apart, lines that take `it` apart): a name, tuple, or dict."""
    if len(names) == 1 and w.rng.integers(4):
        return names[0], lambda it: f"{names[0]} = {it}"
    if w.chance(3):
        keys = "hkmnpq"[: len(names)]
        build = "{" + ", ".join(f'"{k}": {name}' for k, name in zip(keys, names)) + "}"
        return build, lambda it: f"{', '.join(names)}, = ({it}[k] for k in '{keys}')"
    build = f"({', '.join(names)},)"
    if len(names) == 3 and w.chance(2):
        build = f"({names[0]}, ({names[1]}, {names[2]}))"
    return build, lambda it: f"{build} = {it}"


def rebuilt(pattern, names, texts):
    """The pattern with other texts in place of its names."""
    new = dict(zip(names, texts))
    return re.sub(r"\w+", lambda found: new.get(found[0], found[0]), pattern)


def update(w, scope, carry):
    """The next value of a carry."""
    if carry.dtype == "int32":
        text = w.pick(INTEGER_UPDATES).format(c=carry.name)
        return w.add(scope, "update", text, carry.shape, dtype="int32", bound=1e10, distinct=False)
    used = w.read(scope, lambda v: v.name != carry.name and v.rank < 4)
    weights = None
    if carry.rank and w.chance(3):
        n = carry.shape[-1]
        found = [v for v in scope.values if v.shape == (n, n) and v.dtype == "float"]
        weights = w.pick(found) if found else w.arg((n, n))
    c = carry.name if weights is None else f"({carry.name} @ {real(weights)} / {carry.shape[-1]})"
    text = WHILE if w.chance(16) else w.pick(UPDATES)
    if text == WHILE:
        w.differentiable = False
    u = fit(used, carry.shape) if used else "0.2"
    if not used:
        text = text.replace("{u} >", "{c} >")
    return w.add(
        scope, "update", text.format(c=c, u=u), carry.shape, bound=1.5, distinct=carry.distinct
    )


def outputs(w, scope, news, most=3):
    """What a body gives per step: new carries, old ones, or values on the way."""
    found = [v for v in scope.values[-6:] if v.size <= 24 and v.rank < 4]
    return w.some([*news, *found][-6:], most)


def stacked(w, inner, shape):
    """The output outside; `shape`: of the axes in front."""
    name = w.name("v")
    return Value(name, (*shape, *inner.shape), inner.dtype, inner.bound, inner.distinct)


def body(w, scope, parts, items, steps):
    """(scope inside, new carries)."""
    inner = scope.inside([*(v for v, _ in items), *(v for v, _ in parts)])
    w.write(inner, int(w.rng.integers(steps)))
    return inner, [update(w, inner, c) for c, _ in parts]


def write_scan(w, scope, length, steps=3):
    """(lines, text of the call, carries, outputs) of one scan, not yet added."""
    parts, items = carry_parts(w, scope), scanned(w, scope, length)
    names = [v.name for v, _ in parts]
    pattern, take = packed(w, names)
    lines = [f"    {take('carry')}"]
    start = rebuilt(pattern, names, [text for _, text in parts])
    rows = "None"
    if items:
        build, open_item = packed(w, [v.name for v, _ in items])
        rows = rebuilt(build, [v.name for v, _ in items], [text for _, text in items])
        lines += [f"    {open_item('item')}"]
    inner, news = body(w, scope, parts, items, steps)
    ys = outputs(w, inner, news)
    f = w.name("body")
    carried = rebuilt(pattern, names, [v.name for v in news])
    result = f"({', '.join(y.name for y in ys)},)"
    lines = [f"def {f}(carry, item):", *lines, *inner.lines(), f"    return {carried}, {result}"]
    options = [] if items else [f"length={length}"]
    options += ["reverse=True"] * w.chance(3)
    options += [f"unroll={w.pick((2, 3, 'True'))}"] * w.chance(6)
    text = f"lax.scan({f}, {start}, {rows}{''.join(', ' + o for o in options)})"
    return lines, text, pattern, parts, ys


def finish(w, scope, construct, lines, outs):
    """Add a step of several outputs; not all of them need be read."""
    scope.steps.append(Step(construct, tuple(v.name for v in outs), tuple(lines)))
    scope.values += outs


def finals(w, pattern, parts):
    """(pattern of the last carries under new names, their values)."""
    last = [Value(w.name("v"), v.shape, v.dtype, v.bound, v.distinct) for v, _ in parts]
    if pattern.startswith("{"):
        name = w.name("d")
        lines = [f"{', '.join(v.name for v in last)}, = {name}.values()"]
        return name, last, lines
    return rebuilt(pattern, [v.name for v, _ in parts], [v.name for v in last]), last, []


def scan(w, scope):
    length = w.length if w.rng.integers(4) else w.pick((1, 2, 4))
    lines, text, pattern, parts, ys = write_scan(w, scope, length, 2 + 2 * (scope.depth == 0))
    target, last, more = finals(w, pattern, parts)
    outs = [stacked(w, y, (length,)) for y in ys]
    lines += [f"{target}, ({', '.join(v.name for v in outs)},) = {text}", *more]
    finish(w, scope, "scan", lines, [*last, *outs])


def vmapped_scan(w, scope):
    """A scan per lane, whose outputs have the lanes in front of time or after it."""
    lanes, length = w.pick((1, 2, 3)), w.length
    x, f = w.arg((lanes, *w.row())), w.name("f")
    start = Value(w.name("p"), x.shape[1:])
    inner = scope.inside([start])
    c = Value(w.name("c"), start.shape, "float", 1.5)
    items = scanned(w, scope, length)
    deep = inner.inside([*(v for v, _ in items), c])
    w.write(deep, int(w.rng.integers(2)))
    new = update(w, deep, c)
    ys = outputs(w, deep, [new], 2)
    texts = ", ".join(text for _, text in items)
    names = ", ".join(v.name for v, _ in items)
    lines = [f"def {f}({start.name}):", f"    def body({c.name}, item):"]
    lines += [f"        ({names},) = item"] * bool(items)
    lines += [f"    {line}" for line in deep.lines()]
    lines += [f"        return {new.name}, ({', '.join(y.name for y in ys)},)"]
    rows = f"({texts},)" if items else f"None, length={length}"
    axis = w.pick((0, 1))
    lines += [f"    return lax.scan(body, {start.name}, {rows})[1]"]
    shape = (lanes, length) if axis == 0 else (length, lanes)
    outs = [stacked(w, y, shape) for y in ys]
    lines += [f"({', '.join(v.name for v in outs)},) = jax.vmap({f}, out_axes={axis})({x.name})"]
    finish(w, scope, "vmapped_scan", lines, outs)


def mapped(w, scope):
    """lax.map, or a vmap; with a batch size that may leave a remainder."""
    length = w.length
    items = scanned(w, scope, length) or [
        (Value("p0", (), "int32", 6, False), f"jnp.arange({length})")
    ]
    inner = scope.inside([v for v, _ in items])
    w.write(inner, 1 + int(w.rng.integers(3)))
    ys = outputs(w, inner, inner.values[-1:], 2)
    f = w.name("f")
    names = ", ".join(v.name for v, _ in items)
    lines = [f"def {f}(item):", f"    ({names},) = item", *inner.lines()]
    lines += [f"    return ({', '.join(y.name for y in ys)},)"]
    outs = [stacked(w, y, (length,)) for y in ys]
    rows = f"({', '.join(text for _, text in items)},)"
    text = f"jax.vmap({f})({rows})"
    if w.rng.integers(4):
        size = w.pick(("", "", f", batch_size={w.pick((1, 2, 3))}"))
        text = f"lax.map({f}, {rows}{size})"
    lines += [f"({', '.join(v.name for v in outs)},) = {text}"]
    finish(w, scope, "map", lines, outs)


def rows_by_fori(w, scope):
    """A fori loop that writes one row per trip, from the front or from the back."""
    length, f = w.length, w.name("body")
    start = w.arg(w.row())
    c, i = Value(w.name("c"), start.shape, "float", 1.5), Value(w.name("i"), (), "int32", 6, False)
    x = w.arg((length, *w.row()))
    item = Value(w.name("p"), x.shape[1:])
    inner = scope.inside([i, item, c])
    w.write(inner, int(w.rng.integers(2)))
    new = update(w, inner, c)
    row = w.pick([new, c])
    at = w.pick((i.name, i.name, f"{length - 1} - {i.name}"))
    rows = w.name("rows")
    lines = [
        f"def {f}({i.name}, state):",
        f"    {c.name}, {rows} = state",
        f"    {item.name} = {x.name}[{i.name}]",
    ]
    lines += [*inner.lines(), f"    return {new.name}, {rows}.at[{at}].set({row.name})"]
    last = Value(w.name("v"), start.shape, "float", 1.5)
    out = Value(w.name("v"), (length, *start.shape), "float", 1.5)
    buffer = f"jnp.zeros({out.shape})"
    lines += [
        f"{last.name}, {out.name} = lax.fori_loop(0, {length}, {f}, ({start.name}, {buffer}))"
    ]
    finish(w, scope, "fori", lines, [last, out])


def nested_scan(w, scope):
    """Scans in a scan: the stacked outputs have two axes of time."""
    outer, inner_length = w.pick((1, 2, 3)), w.pick((1, 2, 4))
    c = Value(w.name("c"), w.row(), "float", 1.5)
    start = w.arg(c.shape)
    items = scanned(w, scope, outer)
    inner = scope.inside([*(v for v, _ in items), c])
    lines, text, pattern, parts, ys = write_scan(w, inner, inner_length, 2)
    target, last, more = finals(w, pattern, parts)
    outs = [stacked(w, y, (inner_length,)) for y in ys]
    finish(
        w,
        inner,
        "scan",
        [*lines, f"{target}, ({', '.join(v.name for v in outs)},) = {text}", *more],
        [*last, *outs],
    )
    w.write(inner, int(w.rng.integers(2)))
    new = update(w, inner, c)
    ys = outputs(w, inner, [new, *outs])
    f = w.name("body")
    names = ", ".join(v.name for v, _ in items)
    lines = [
        f"def {f}({c.name}, item):",
        *([f"    ({names},) = item"] * bool(items)),
        *inner.lines(),
    ]
    lines += [f"    return {new.name}, ({', '.join(y.name for y in ys)},)"]
    rows = f"({', '.join(text for _, text in items)},)" if items else f"None, length={outer}"
    outs = [stacked(w, y, (outer,)) for y in ys]
    lines += [f"_, ({', '.join(v.name for v in outs)},) = lax.scan({f}, {start.name}, {rows})"]
    finish(w, scope, "nested_scan", lines, outs)


LOOPS = (scan, scan, scan, scan, vmapped_scan, mapped, rows_by_fori, nested_scan)
