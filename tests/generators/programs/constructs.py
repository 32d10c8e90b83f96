"""What random programs are made of: one function per construct, which writes one step.

To add a construct, write a function of (writer, scope), name it in SIMPLE or NESTED, and name its
steps in CONSTRUCTS. It returns NotImplemented where it does not apply.
"""

from dataclasses import replace

from tests.generators.programs.writer import (
    SHAPES,
    Count,
    Function,
    Scope,
    Step,
    Value,
    Writer,
    fit,
)

ARRAYS = SHAPES[1:]
# No pair of equal or tied operands gives a constant, or a gradient that rounding decides.
ARITHMETIC = {
    "add": "jnp.tanh({0} + {1})",
    "sub": "jnp.sin({0} - 0.6 * {1})",
    "mul": "jnp.cos({0} * {1})",
    "maximum": "jnp.maximum({0}, 0.7 * {1} - 0.1)",
}
CONSTRUCTS = {
    *ARITHMETIC, "where", "sum", "mean", "max", "broadcast",
    "gather", "take", "dynamic_slice", "scatter_set", "scatter_add",
    "jit", "checkpoint", "custom_jvp", "custom_vjp", "vmap", "grad",
    "cond", "switch", "scan", "scan_reverse", "fori", "fori_dynamic", "while",
    "tag", "noise",
}  # fmt: skip


def arithmetic(w, scope):
    a, b = w.read(scope), w.read(scope)
    construct = w.pick(list(ARITHMETIC))
    shape = max(a.shape, b.shape, key=len)
    w.add(scope, construct, ARITHMETIC[construct].format(a.name, b.name), shape)


def where(w, scope):
    sure = [v for v in scope.values if v.sure]
    if not sure:
        return NotImplemented
    test, a, b = w.pick(sure), w.read(scope), w.read(scope)
    shape = max(test.shape, a.shape, b.shape, key=len)
    w.add(scope, "where", f"jnp.where({test.name} > 0, {a.name}, 0.5 * {b.name})", shape)


def reduce(w, scope):
    a = w.read(scope, ARRAYS)
    if a is None:
        return NotImplemented
    construct = w.pick(("mean", "sum", "max"))
    # The gradient of max looks for the elements that equal it. XLA may compute an operand twice and
    # round it differently, and then finds none: let it look among arguments only.
    operand = a.name if a.sure else f"lax.stop_gradient({a.name})"
    text = {
        "mean": f"jnp.mean({a.name}, axis=0)",
        "sum": f"0.4 * jnp.sum({a.name}, axis=0)",
        "max": f"jnp.max({operand}, axis=0)",
    }[construct]
    w.add(scope, construct, text, a.shape[1:])


def broadcast(w, scope):
    a = w.read(scope, SHAPES[:-1])
    if a is None:
        return NotImplemented
    shape = w.pick(SHAPES[len(a.shape) + 1 :])
    w.add(scope, "broadcast", f"jnp.broadcast_to({a.name}, {shape})", shape)


def gather(w, scope):
    a = w.read(scope, ARRAYS)
    if a is None:
        return NotImplemented
    size, row = a.shape[0], a.shape[1:]
    construct = w.pick(("gather", "take", "dynamic_slice"))
    at = w.index(scope, size)
    start, extent = ((at,), (2,)) if row == () else ((at, "0"), (1, 3))
    text, shape = {
        "gather": (f"{a.name}[{at}]", row),
        "take": (f"jnp.take({a.name}, jnp.array([2, 0, 1]), axis=-1)", a.shape),
        "dynamic_slice": (
            f"lax.dynamic_slice({a.name}, ({', '.join(start)},), {extent}).mean(0)",
            row,
        ),
    }[construct]
    w.add(scope, construct, text, shape, sure=a.sure and construct != "dynamic_slice")


def scatter(w, scope):
    a = w.read(scope, ARRAYS)
    if a is None:
        return NotImplemented
    b = w.read(scope)
    method = w.pick(("set", "add"))
    at, row = w.index(scope, a.shape[0]), fit(b, a.shape[1:])
    scale = "0.5 * " if method == "add" else ""
    text = f"{a.name}.at[{at}].{method}({scale}{row})"
    w.add(scope, f"scatter_{method}", text, a.shape)


def param(w, value):
    return Value(w.name("p"), value.shape, value.sure)


def call(w, scope, construct, decorator):
    a, b = w.read(scope), w.read(scope)
    p, q = param(w, a), param(w, b)
    shape = w.pick(SHAPES)
    f = w.function(scope.inside([p, q]), "f", f"{p.name}, {q.name}", shape, decorator=decorator)
    w.add(scope, construct, f"{f.name}({a.name}, {b.name})", shape, [f])


def jit(w, scope):
    call(w, scope, "jit", "@jax.jit")


def checkpoint(w, scope):
    call(w, scope, "checkpoint", "@jax.checkpoint")


def custom(w, scope, kind, rule):
    """A function whose own rule differs from its true derivative, so that losing the rule shows.

    It closes over nothing, as JAX asks, and draws no noise, which its rule would have to repeat.
    """
    a = w.read(scope)
    p = param(w, a)
    inner = scope.inside([p], closed=True, keys=False)
    f = w.function(inner, "f", p.name, a.shape, decorator=f"@jax.{kind}")
    rule = rule.format(f=f.name, p=p.name)
    w.add(scope, kind, f"{f.name}({a.name})", a.shape, [replace(f, rule=rule)])


def custom_jvp(w, scope):
    rule = "{f}.defjvp(lambda ps, ts: ({f}(*ps), 0.5 * jnp.cos(ps[0]) * ts[0]))"
    custom(w, scope, "custom_jvp", rule)


def custom_vjp(w, scope):
    rule = "{f}.defvjp(lambda {p}: ({f}({p}), {p}), lambda {p}, ct: (0.5 * jnp.cos({p}) * ct,))"
    custom(w, scope, "custom_vjp", rule)


def vmap(w, scope):
    """Over the rows of an array and, as the count that lanes differ in, over their indices."""
    a = w.read(scope, ARRAYS)
    if a is None:
        return NotImplemented
    p, lane = Value(w.name("p"), a.shape[1:], a.sure), Count(w.name("lane"), lanes=True)
    inner = scope.inside([p], [lane], vmapped=True)
    f = w.function(inner, "f", f"{p.name}, {lane.name}", a.shape[1:])
    text = f"jax.vmap({f.name})({a.name}, jnp.arange({a.shape[0]}))"
    w.add(scope, "vmap", text, a.shape, [f])


def grad(w, scope):
    a = w.read(scope)
    p = param(w, a)
    f = w.function(scope.inside([p], whiles=False), "f", p.name, ())
    # plus `a`: the gradient of a linear function is a constant, which a vmap would not map
    text = f"jnp.sin({a.name} + 2 * jax.grad({f.name})({a.name}))"
    w.add(scope, "grad", text, a.shape, [f])


def branches(w, scope, number, lanes):
    """(operand, branches, shape). Tags: in none, one name in every, or any in one branch only."""
    a, shape = w.read(scope), w.pick(SHAPES)
    # a cond on lanes becomes a select, where both branches would write
    mode = None if lanes else scope.mode
    everywhere, only = "{}", None
    match w.choose(3) if mode else 0:
        # under vmap one branch may write a mapped value and another an unmapped one
        case 1 if not scope.vmapped:
            everywhere = w.tagged("{}", mode)
        case 2 if mode != "loop":
            only = w.choose(number)
    functions = []
    for i in range(number):
        p = param(w, a)
        inner = scope.inside([p], mode="masked" if i == only else None)
        functions.append(w.function(inner, "branch", p.name, shape, everywhere))
    return a, functions, shape


def cond(w, scope):
    predicate = w.predicate(scope)
    if predicate is None:
        return NotImplemented
    test, lanes = predicate
    a, (f, g), shape = branches(w, scope, 2, lanes)
    w.add(scope, "cond", f"lax.cond({test}, {f.name}, {g.name}, {a.name})", shape, [f, g])


def switch(w, scope):
    if not scope.counts:
        return NotImplemented
    count = w.pick(scope.counts[::-1])
    a, functions, shape = branches(w, scope, 3, count.lanes)
    names = ", ".join(f.name for f in functions)
    text = f"lax.switch({count.name} % 3, [{names}], {a.name})"
    w.add(scope, "switch", text, shape, functions)


def scan(w, scope):
    """Over rows and their indices; the carry is one value or two that change places."""
    xs = w.read(scope, ARRAYS)
    if xs is None:
        return NotImplemented
    init = w.read(scope)
    length, row = xs.shape[0], xs.shape[1:]
    carry, item = Value(w.name("c"), init.shape), Value(w.name("p"), row, xs.sure)
    i = Count(w.name("i"))
    swap = w.choose(3) == 2
    second = Value(w.name("c"), init.shape)
    inner = scope.inside([carry, second, item] if swap else [carry, item], [i])
    carries = f"({carry.name}, {second.name})" if swap else carry.name
    inner.steps.append(Step("unpack", f"{carries}, ({item.name}, {i.name})", "carry, item"))
    y = Value(w.name("v"), row)
    result = f"({{}}, {carry.name}), " if swap else "{}, "
    body = w.function(inner, "body", "carry, item", init.shape, result)
    # the output comes from the step's newest value, which may be new or carried
    body = replace(body, result=body.result + fit(inner.values[-1], row))
    start = f"({init.name}, {init.name})" if swap else init.name
    reverse = bool(w.choose(2))
    text = f"lax.scan({body.name}, {start}, ({xs.name}, jnp.arange({length}))"
    text += ", reverse=True)" if reverse else ")"
    last = Value(w.name("v"), init.shape)
    out = f"({last.name}, _), {y.name}" if swap else f"{last.name}, {y.name}"
    y = replace(y, shape=xs.shape)
    construct = "scan_reverse" if reverse else "scan"
    scope.steps.append(Step(construct, out, text, (body,)))
    scope.values += [y, last]
    scope.loose += [y, last]


def fori(w, scope):
    """Of three trips, which JAX makes a scan, or of a number known at run time only."""
    init = w.read(scope)
    dynamic = scope.whiles and bool(scope.counts) and w.choose(2) == 1
    bound = w.pick(scope.counts) if dynamic else Count("3")
    carry, i = Value(w.name("c"), init.shape), Count(w.name("i"), bound.lanes)
    inner = scope.inside([carry], [i], mode=loop_mode(scope) if dynamic else scope.mode)
    f = w.function(inner, "body", f"{i.name}, {carry.name}", init.shape)
    text = f"lax.fori_loop(0, {bound.name}, {f.name}, {init.name})"
    w.add(scope, "fori_dynamic" if dynamic else "fori", text, init.shape, [f])


def while_loop(w, scope):
    """At most four trips; both the bound and the increment depend on data."""
    predicate = w.predicate(scope)
    if predicate is None or not scope.whiles:
        return NotImplemented
    test, lanes = predicate
    init = w.read(scope)
    carry, i = Value(w.name("c"), init.shape), Count(w.name("i"), lanes)
    bound = w.pick(scope.counts) if scope.counts else Count("2")
    i = replace(i, lanes=lanes or bound.lanes)
    inner = scope.inside([carry], [i], mode=loop_mode(scope))
    inner.steps.append(Step("unpack", f"{i.name}, {carry.name}", "state"))
    result = f"{i.name} + 1 + {i.name} % 2, {{}}"
    body = w.function(inner, "body", "state", init.shape, result)
    more = Function(w.name("more"), "state", (), f"state[0] < {bound.name} + ({test})")
    text = f"lax.while_loop({more.name}, {body.name}, (0, {init.name}))[1]"
    w.add(scope, "while", text, init.shape, [more, body])


def loop_mode(scope):
    return "loop" if scope.mode in ("stack", "loop") else None


SIMPLE = (arithmetic, where, reduce, gather, scatter, broadcast)
NESTED = (
    jit, checkpoint, custom_jvp, custom_vjp, vmap, grad,
    cond, switch, scan, fori, while_loop,
)  # fmt: skip


def write_program(choose, *, depth, tags, keys, whiles):
    """(program(x, y, z, n), its tags): 3 to 8 steps, tags and noise not counted.

    Every decision is `choose(n)`, an int below n, where 0 is the simplest. With `tags` or `keys`
    there is at least one tag or noise.
    """
    writer = Writer(choose, left=3 + choose(6), simple=SIMPLE, nested=NESTED)
    arguments = [Value("x", (3,), True), Value("y", (2, 3), True), Value("z", (), True)]
    mode = "stack" if tags else None
    scope = Scope(arguments, [Count("n")], depth, mode, keys, whiles)
    while writer.left > 0:
        writer.step(scope)
    if keys and not writer.noisy:
        writer.noise(scope)
    if tags and not writer.tags:
        writer.tag(scope)
    results = ", ".join(v.name for v in scope.loose)
    main = Function("program", "x, y, z, n", tuple(scope.steps), f"({results},)")
    return main, tuple(writer.tags)
