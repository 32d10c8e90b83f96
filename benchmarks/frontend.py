"""What the front end costs: converting, calling, tracing, and the programs that come out.

    python -m benchmarks.frontend [--json] [--smoke] [--only SECTION ...]

Times are CPU times, in one process, interleaved, medians; compare ratios.
"""

import importlib
import inspect
import linecache
import pkgutil
import statistics
import sys
import time
import types

import equinox
import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from benchmarks.measure import interleaved, report, table
from benchmarks.smoke import size
from benchmarks.staging import instructions
from malleable import autograph, loop, skip
from malleable.frontend.convert import OPERATORS
from malleable.frontend.syntax.rewrite import rewrite

MODULES = ["scipy.optimize._linesearch"]
MODULES += size(["scipy.optimize._zeros_py", "scipy.optimize._optimize"], [])
PACKAGES = size(["scipy.integrate._ivp", "scipy.sparse.linalg._isolve"], [])
DEPTHS = range(1, 13)
LAYERS, WIDTH, TOKENS = size(48, 2), 128, 16


def many(fun, times):
    """fun() so many times; what `interleaved` is to run for something short."""
    times = size(times, 1)

    def run():
        for _ in range(times):
            out = fun()
        return jax.block_until_ready(out)

    return run


def us(seconds, times):
    return 1e6 * seconds / times


# ---------------------------------------------------------------- converting


def functions_of_scipy():
    """The functions and methods written in these modules."""
    names = list(MODULES)
    for name in PACKAGES:
        found = pkgutil.iter_modules(importlib.import_module(name).__path__)
        names += [f"{name}.{module.name}" for module in found if module.name != "tests"]
    for name in names:
        module = importlib.import_module(name)
        mine = [v for v in vars(module).values() if getattr(v, "__module__", None) == name]
        for value in mine:
            inside = vars(value).values() if inspect.isclass(value) else [value]
            yield from (inspect.unwrap(f) for f in inside if inspect.isfunction(f))


def convert_afresh(fun):
    """Convert a function as if it had not been seen: by a code object of its own."""
    code = fun.__code__.replace()
    new = types.FunctionType(code, fun.__globals__, fun.__name__, closure=fun.__closure__)
    start = time.process_time()
    rewrite(new, OPERATORS)
    return 1e3 * (time.process_time() - start)


def conversion():
    funs = list(functions_of_scipy())
    for fun in funs:
        convert_afresh(fun)  # reads the files
    times = sorted(statistics.median(convert_afresh(fun) for _ in range(3)) for fun in funs)
    median, p90 = statistics.median(times), times[int(0.9 * len(times))]
    rows = [
        ("functions of SciPy", len(funs)),
        ("one function, median (target: 8 ms)", f"{median:.2f} ms"),
        ("one function, 9 of 10 below", f"{p90:.2f} ms"),
        ("the slowest", f"{times[-1]:.1f} ms"),
    ]
    table("Converting a function", rows)
    return {"convert_ms": round(median, 2), "convert_p90_ms": round(p90, 2)}


# ---------------------------------------------------------------- calling


def halve(x, y):
    return x if y is None else y


def norm(x):
    total = 0.0
    for value in x:
        total += value * value
    return total**0.5


def calls(times=size(20_000, 100)):
    light, heavy = autograph(halve), autograph(norm)
    xs = [0.5] * 1000
    seconds = interleaved(
        {
            "clone": many(lambda: rewrite(halve, OPERATORS)(1.0, None), times),
            "plain": many(lambda: halve(1.0, None), times),
            "autographed": many(lambda: light(1.0, None), times),
            "plain loop": many(lambda: norm(xs), times // 100),
            "autographed loop": many(lambda: heavy(xs), times // 100),
        },
        rounds=15,
    )
    cached = us(seconds["clone"], times)
    extra = us(seconds["autographed"] - seconds["plain"], times)
    share = seconds["autographed loop"] / seconds["plain loop"] - 1
    rows = [
        ("fetch the converted clone and call it (target: 15 us)", f"{cached:.2f} us"),
        ("nothing traced: extra time of a call (target: 2 us)", f"{extra:.2f} us"),
        ("nothing traced: a loop of 1,000 steps (target: +5%)", f"{share:+.1%}"),
    ]
    table("Calling", rows)
    return {
        "cached_call_us": round(cached, 2),
        "untraced_extra_us": round(extra, 2),
        "untraced_share": round(share, 3),
    }


# ---------------------------------------------------------------- tracing


def nested(depth, entered):
    """A function of so many traced `if`s, one inside the other, which says when it runs a block."""
    lines = ["def nest(x):", "    y = x"]
    for d in range(depth):
        pad = "    " * (d + 1)
        lines += [f"{pad}if x > {d}:", f"{pad}    enter(x)", f"{pad}    y = y * 1.5"]
    for d in reversed(range(depth)):
        pad = "    " * (d + 1)
        lines += [f"{pad}else:", f"{pad}    enter(x)", f"{pad}    y = {d}"]
    lines += ["    return y"]
    name, space = f"<nested {depth}>", {"enter": skip(lambda x: entered.append(x))}
    source = [line + "\n" for line in lines]
    linecache.cache[name] = (0, None, source, name)
    exec(compile("".join(source), name, "exec"), space)
    return space["nest"]


def nesting():
    entered = {d: [] for d in DEPTHS}
    funs = {d: autograph(nested(d, entered[d])) for d in DEPTHS}
    trace = lambda fun: lambda: jax.make_jaxpr(lambda x: fun(x))(0.5)
    for d in DEPTHS:
        trace(funs[d])()
    counts = [len(entered[d]) for d in DEPTHS]
    seconds = interleaved({d: trace(funs[d]) for d in DEPTHS}, rounds=9)
    growth = seconds[12] / seconds[6]
    rows = [
        ("trace, depth 1 to 12", " ".join(f"{1e3 * seconds[d]:.1f}" for d in DEPTHS) + " ms"),
        ("depth 12 / depth 6 (linear: 2)", f"{growth:.2f}"),
        ("blocks run at depth 12 (there are 24)", counts[-1]),
    ]
    table("Traced `if`s, one in the other", rows)
    once = counts == [2 * d for d in DEPTHS]
    return {"nesting_growth": round(growth, 2), "blocks_run_once": once}


# ---------------------------------------------------------------- compiled loops


def newton(a, x):
    step = a
    while abs(step) > 1e-12:
        step = (x * x - a) / (2 * x)
        x = x - step
    return x


def newton_by_hand(a, x):
    def body(carry):
        _, x = carry
        step = (x * x - a) / (2 * x)
        return step, x - step

    return lax.while_loop(lambda carry: jnp.abs(carry[0]) > 1e-12, body, (a, x))[1]


def logistic(n, x):
    for _ in range(n):
        x = 3.7 * x * (1 - x)
    return x


def logistic_by_hand(n, x):
    return lax.fori_loop(0, n, lambda _, x: 3.7 * x * (1 - x), x)


def recur(w, xs):
    h, seen = np.zeros(64), []
    for x in xs:
        h = np.tanh(w @ h + x)
        seen.append(h)
    return np.stack(seen)


def recur_by_hand(w, xs):
    def step(h, x):
        h = jnp.tanh(w @ h + x)
        return h, h

    return lax.scan(step, jnp.zeros(64), xs)[1]


def escape(bound, points):
    total = 0
    for c in points:
        z, n = c, 0
        while abs(z) < bound and n < 200:
            z = z * z + c
            n += 1
        total += n
    return total


def escape_by_hand(bound, points):
    def point(total, c):
        def body(carry):
            n, z = carry
            return n + 1, z * z + c

        n, _ = lax.while_loop(lambda v: (jnp.abs(v[1]) < bound) & (v[0] < 200), body, (0, c))
        return total + n, None

    return lax.scan(point, 0, points)[0]


def loop_cases():
    """{name: (Python, by hand, arguments, runs per measurement)}"""
    rng = np.random.default_rng(0)
    w, xs = rng.normal(size=(64, 64)) / 10, rng.normal(size=(200, 64))
    points = rng.normal(size=500) * 0.6
    return {
        "while (Newton)": (newton, newton_by_hand, (np.float64(1e6), np.float64(1e30)), 500),
        "range(n), n traced": (logistic, logistic_by_hand, (10_000, np.float64(0.3)), 50),
        "over an array, append": (recur, recur_by_hand, (w, xs), 50),
        "while in for": (escape, escape_by_hand, (np.float64(2.0), points), 20),
    }


def same_program(fun, hand, args):
    """Whether both compile to the same instructions, names and their order apart."""
    return instructions(fun, *args) == instructions(hand, *args)


def loops():
    rows, figures = [], {}
    with jax.enable_x64(True):
        for name, (python, hand, args, times) in loop_cases().items():
            ours, theirs = jax.jit(autograph(python)), jax.jit(hand)
            expected = python(*args)
            assert np.allclose(ours(*args), expected) and np.allclose(theirs(*args), expected)
            held = jax.device_put(args)
            cases = {
                "ours": many(lambda f=ours, a=held: f(*a), times),
                "by hand": many(lambda f=theirs, a=held: f(*a), times),
            }
            seconds = interleaved(cases, rounds=31)
            numpy = interleaved({"": lambda f=python, a=args: f(*a)}, rounds=5)[""]
            ratio = seconds["ours"] / seconds["by hand"]
            faster = numpy / (seconds["ours"] / times)
            same = same_program(autograph(python), hand, args)
            figures[name] = {"ratio": round(ratio, 2), "same": same, "speedup": round(faster, 1)}
            rows.append(
                (name, f"{ratio:.2f}   {'yes' if same else 'no':4} {faster:6.1f} x   {times=}")
            )
    head = ("", "ours / by hand, same program, speed against NumPy")
    table("Compiled loops", [head, *[(n, f.partition("   times")[0]) for n, f in rows]])
    return {"loops": figures}


# ---------------------------------------------------------------- gradients


def fixed_point(w, b, most):
    x, before = np.zeros(200), np.ones(200)
    while loop(np.max(np.abs(x - before)) > 1e-8, max_steps=most):
        x, before = np.tanh(w @ x + b), x
    return x.sum()


def fixed_point_of(while_loop):
    """The same, for a while_loop(cond, body, init) of somebody else."""

    def fun(w, b):
        cond = lambda v: jnp.max(jnp.abs(v[0] - v[1])) > 1e-8
        body = lambda v: (jnp.tanh(w @ v[0] + b), v[0])
        return while_loop(cond, body, (jnp.zeros(200), jnp.ones(200)))[0].sum()

    return fun


def gradients(times=20):
    rng = np.random.default_rng(0)
    w = rng.normal(size=(200, 200))
    args = 0.75 * w / np.linalg.norm(w, 2), rng.normal(size=200)
    rows, figures = [("", "forward   gradient   temporary memory   compile")], {}
    with jax.enable_x64(True):
        args = jax.device_put(args)
        funs = {"lax.while_loop": fixed_point_of(lax.while_loop)}
        for most in size((50, 1000), (50,)):
            plain = lambda w, b, most=most: fixed_point(w, b, most)
            theirs = lambda *a, most=most: equinox.internal.while_loop(
                *a, max_steps=most, kind="checkpointed"
            )
            funs[f"ours, {most} steps at most"] = autograph(plain)
            funs[f"equinox, {most} steps at most"] = fixed_point_of(theirs)
        programs = {name: compiled(fun, args) for name, fun in funs.items()}
        cases = {
            (name, kind): many(lambda f=run: f(*args), times)
            for name, kinds in programs.items()
            for kind, (run, _, _) in kinds.items()
        }
        seconds = {key: 1e3 * s / times for key, s in interleaved(cases, rounds=15).items()}
    for name, kinds in programs.items():
        text = f"{seconds[name, 'forward']:.2f} ms"
        if "gradient" in kinds:
            _, megabytes, took = kinds["gradient"]
            text += f"   {seconds[name, 'gradient']:.2f} ms    {megabytes:.2f} MB            "
            text += f"{took:.2f} s"
            figures[name] = [round(seconds[name, "gradient"], 3), round(megabytes, 3)]
        rows.append((name, text))
    table("A fixed point of 200 numbers, 22 steps, by W (200, 200) and b", rows)
    return {"gradients": figures}


def compiled(fun, args):
    """{kind: (program, temporary memory in MB, seconds of CPU to trace and compile)}"""
    kinds = {"forward": fun, "gradient": jax.grad(fun, argnums=(0, 1))}
    programs = {}
    for kind, f in kinds.items():
        start = time.process_time()
        try:
            program = jax.jit(lambda *a, f=f: f(*a)).lower(*args).compile()
        except ValueError:  # reverse mode of lax.while_loop
            continue
        took = time.process_time() - start
        programs[kind] = program, program.memory_analysis().temp_size_in_bytes / 1e6, took
    return programs


# ---------------------------------------------------------------- rolling


class Block(equinox.Module):
    norm: equinox.nn.LayerNorm
    up: equinox.nn.Linear
    down: equinox.nn.Linear

    def __init__(self, key):
        one, two = jax.random.split(key)
        self.norm = equinox.nn.LayerNorm(WIDTH)
        self.up = equinox.nn.Linear(WIDTH, 4 * WIDTH, key=one)
        self.down = equinox.nn.Linear(4 * WIDTH, WIDTH, key=two)

    def __call__(self, x):
        return x + jax.vmap(lambda x: self.down(jax.nn.gelu(self.up(self.norm(x)))))(x)


def model(layers, x, roll):
    for layer in loop(layers, roll=roll):
        x = layer(x)
    return x.sum()


def model_of_dicts(layers, x, roll):
    for p in loop(layers, roll=roll):
        x = x + jax.nn.gelu(x @ p["up"] + p["b"]) @ p["down"] + p["c"]
    return x.sum()


def dicts(key):
    shapes = {"up": (WIDTH, 4 * WIDTH), "b": 4 * WIDTH, "down": (4 * WIDTH, WIDTH), "c": WIDTH}
    return {name: 0.05 * jax.random.normal(key, np.atleast_1d(s)) for name, s in shapes.items()}


def rolling(rounds=size(2, 1)):
    keys, x = jax.random.split(jax.random.key(0), LAYERS), jnp.ones((TOKENS, WIDTH))
    models = {"equinox blocks": (model, Block), "dicts of arrays": (model_of_dicts, dicts)}
    rows, figures = [("", "unrolled    rolled    ratio   (trace + compile)")], {}
    for name, (python, make) in models.items():
        layers = [make(key) for key in keys]
        arrays, rest = equinox.partition(layers, equinox.is_array)

        def run(arrays, x, roll, python=python, rest=rest):
            return autograph(python)(equinox.combine(arrays, rest), x, roll)

        for kind, transform in {"forward": lambda f: f, "gradient": jax.grad}.items():
            took = {True: [], False: []}
            for _ in range(rounds):
                for roll in took:
                    fun = transform(lambda arrays, x, roll=roll: run(arrays, x, roll))
                    start = time.process_time()
                    jax.jit(fun).lower(arrays, x).compile()
                    took[roll].append(time.process_time() - start)
            flat, rolled = min(took[False]), min(took[True])
            figures[f"{name}, {kind}"] = round(flat / rolled, 2)
            rows.append(
                (f"{name}, {kind}", f"{flat:6.2f} s   {rolled:5.2f} s   {flat / rolled:5.1f} x")
            )
    table(f"{LAYERS} layers, loop(layers, roll=True)", rows)
    return {"rolling": figures}


# ---------------------------------------------------------------- all of it

SECTIONS = {
    "conversion": conversion,
    "calls": calls,
    "nesting": nesting,
    "loops": loops,
    "gradients": gradients,
    "rolling": rolling,
}


def main():
    chosen = [word for word in sys.argv[1:] if word in SECTIONS] or SECTIONS
    print(f"The front end, JAX {jax.__version__}, Python {sys.version.split()[0]}")
    figures = {}
    for name in chosen:
        figures |= SECTIONS[name]()
    report("Figures", [(name, value) for name, value in figures.items()], figures)


if __name__ == "__main__":
    main()
