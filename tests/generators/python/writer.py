"""How a random Python program is written: blocks of statements, each a few lines of text."""

import itertools
import random
from dataclasses import replace

from tests.generators.python.blocks import Blocks
from tests.generators.python.expressions import Scope, copied
from tests.generators.python.filters import Filters
from tests.generators.python.guards import Guards
from tests.generators.python.objects import NESTED, Objects
from tests.generators.python.writes import Writes

MODULE = """\
class Thing:
    def __init__(self, total):
        self.total = total
        self.count = 0
        self.grid = np.zeros(3)
        self.log = [total, 1.0]

    @property
    def level(self):
{level}

    def update(self, t):
{update}


class Held:
    def __init__(self, thing):
        self.thing = thing

    def __enter__(self):
        self.thing.count += 1
        return self.thing

    def __exit__(self, *error):
{leave}
        return False


def deeper(t, depth):
    if depth == 0:
        return t
    if {deep_test}:
        return deeper({deep_one}, depth - 1) + 1
    return deeper({deep_other}, depth - 1)


def helper(t, s, u):
{helper}


def run(x, y, n, m, v, a, o, xs, d):
{run}


def program(x, y, n, m, v, a):
    o = Thing(y)
    xs = [x, 0.5, y]
    d = {{"p": x, "q": 1.0}}
    out = run(x, y, n, m, v, a, o, xs, d)
    return out, v, a, xs, d, o.total, o.count, o.grid, o.log
"""


NESTS = {
    "a, o, xs, d)": "a, o, xs, d, nest, crew, bins, vecs)",
    "    out = run": """\
    nest = [[x, 1.0], [0.5, y], xs[:2]]
    crew = [o, Thing(x), Thing(0.25)]
    bins = {{"p": nest[1], "q": [y, 2.0]}}
    vecs = [v, a[0], np.zeros(3)]
    out = run""",
    "o.grid, o.log": """\
o.grid, o.log, nest, bins, vecs, [
        (one.total, one.count, one.grid, one.log) for one in crew
    ]""",
}

RISKY = """\
def risky(t, k):
    if {risky_test}:
        raise ValueError(t)
    return math.floor(t) / (k % 3)


def run("""


def write_module(rng: random.Random, nested: bool = False, guarded: bool = False) -> str:
    """The text of a module; the same for the same state of `rng`.

    nested: with lists of lists, lists of objects and names for what is picked among them.
    guarded: with comprehensions that filter, and handlers of what Python raises at a value.
    """
    writer = Writer(rng)
    me = {"f": ["self.total"], "i": ["self.count"], "v": ["self.grid"], "l": ["self.log"]}
    held = {kind: [name.replace(".", ".thing.") for name in some] for kind, some in me.items()}
    inner = Scope(rank=1, calls=())
    parts = {
        "level": writer.function(replace(inner, names=copied(me), results="f", left=1), pure=True),
        "update": writer.function(
            replace(inner, names=copied({**me, "f": ["self.total", "t"]}), results="f", left=2)
        ),
        "leave": writer.block(replace(inner, names=held, left=2), jumps=False),
        "helper": writer.function(
            replace(inner, names={"f": ["t", "s"], "v": ["u"]}, results="f", left=3)
        ),
    }
    deep = Scope(names={"f": ["t"], "i": ["depth"]}, calls=())
    parts["deep_test"] = writer.test(deep)
    parts["deep_one"], parts["deep_other"] = writer.f(deep), writer.f(deep)
    names = {"f": ["x", "y"], "i": ["n", "m"], "v": ["v"], "a": ["a"], "l": ["xs"], "d": ["d"]}
    if nested:
        names |= {kind: [name] for kind, name in NESTED.items()}
    if guarded:
        names |= {"w": []}
        parts["risky_test"] = writer.test(Scope(names={"f": ["t"], "i": ["k"]}))
    scope = Scope(
        names=names | {"o": ["o"]},
        calls=("helper", "deeper", "update", "level", *["risky"] * guarded),
        results=writer.pick(["f", "f", "fi", "v"]),
        left=4 + rng.randrange(5),
    )
    parts["run"] = writer.function(scope)
    depth = {"run": 1, "helper": 1}
    module = MODULE
    for plain, more in NESTS.items() if nested else ():
        module = module.replace(plain, more)
    if guarded:
        module = module.replace("def run(", RISKY)
    return module.format(
        **{
            name: text if isinstance(text, str) else lay_out(text, depth.get(name, 2))
            for name, text in parts.items()
        }
    )


def lay_out(lines, depth):
    return "\n".join("    " * depth + line for line in lines)


class Writer(Blocks, Writes, Objects, Filters, Guards):
    """Writes statements. Each `statement_*` returns lines, or None where it does not apply."""

    def __init__(self, rng):
        self.rng = rng
        self.ids = itertools.count(1)

    # ------------------------------------------------------------ blocks and functions

    def function(self, scope, pure=False):
        lines = self.block(scope, pure=pure)
        return [*lines, self.result(scope)]

    def result(self, scope):
        return "return " + ", ".join(self.expression(kind, scope) for kind in scope.results)

    def block(self, scope, jumps=True, pure=False):
        """The statements of a block; one that ends it, at times."""
        if not jumps:
            scope.results, scope.loop = "", False
        lines = []
        for _ in range(1 + self.rng.randrange(max(1, scope.left))):
            lines += self.statement(scope, pure)
        return lines

    def statement(self, scope, pure=False):
        simple = [(3, self.fresh), (3, self.assign), (1, self.swap)]
        if not pure:
            simple += self.writes
            simple += self.picks if "L" in scope.names else []
            simple += self.filters if "w" in scope.names else []
        nested = [
            (6, self.branch),
            (5, self.for_loop),
            (3, self.while_loop),
            (1, self.best_so_far),
            (1, self.born_in_loop),
            (1, self.try_finally),
            (1, self.try_except),
            (1, self.with_block),
            (1, self.nested_function),
            (1, self.cases),
            *(self.guards if "w" in scope.names else ()),
        ]
        options = simple + (nested if scope.rank < 3 else [])
        if scope.rank and (scope.loop or scope.results):
            options = [*options, (3, self.jump)]
        while True:
            lines = self.weighted(options)(scope)
            if lines is not None:
                return lines

    # ------------------------------------------------------------ names

    def new(self, scope, kind, name=None):
        name = name or f"{kind}{next(self.ids)}"
        scope.names.setdefault(kind, []).append(name)
        return name

    def fresh(self, scope):
        kind = self.pick("ffiibvv")
        text = self.expression(kind, scope)
        if kind == "v" and text in scope.names.get("v", ()):
            text = f"{text}.copy()"
        return [f"{self.new(scope, kind)} = {text}"]

    def assign(self, scope):
        kind = self.pick("ffiibv")
        name = self.choose(scope.targets(kind))
        return name and [f"{name} = {self.bounded(kind, scope)}"]

    def swap(self, scope):
        names = scope.targets("f")
        if len(names) < 2:
            return None
        one, other = self.rng.sample(names, 2)
        if self.chance(2):
            return [f"{one}, {other} = {other}, {self.bounded('f', scope)}"]
        return [f"{one} = {other} = {self.bounded('f', scope)}"]
