"""The expressions of random Python programs: exact on small multiples of 1/8."""

import random
from dataclasses import dataclass, field, replace


@dataclass
class Scope:
    """What the next statement may read and do.

    names: readable names by type: f(loat), i(nt), b(ool), v(ector), a (matrix), l(ist), d(ict),
    o(bject), w (a list that a test filtered). grows: every path comes by here, so lists may grow.
    loop: break and continue allowed.
    results: types of what the function returns, "" where no return is allowed.
    """

    names: dict[str, list[str]] = field(default_factory=dict)
    frozen: frozenset = frozenset()
    calls: tuple = ()
    results: str = ""
    rank: int = 0
    left: int = 4
    grows: bool = True
    loop: bool = False
    jumped: bool = False

    def inside(self, names=(), **changes):
        """The scope of a nested block; what it defines is not seen outside."""
        inner = copied(self.names)
        for kind, name in names:
            inner.setdefault(kind, []).append(name)
        return replace(self, names=inner, rank=self.rank + 1, **changes)

    def targets(self, kind):
        return [name for name in self.names.get(kind, ()) if name not in self.frozen]


class Expressions:
    """Writes expressions of a type: f(loat), i(nt), b(ool), v(ector of 3)."""

    rng: random.Random

    def pick(self, options):
        return options[self.rng.randrange(len(options))]

    def choose(self, options):
        """One of the names, or None."""
        return self.pick(list(options)) if options else None

    def chance(self, n):
        return self.rng.randrange(n) == 0

    def weighted(self, options):
        weights, values = zip(*options, strict=True)
        return self.rng.choices(values, weights)[0]

    def expression(self, kind, scope):
        return {"f": self.f, "i": self.i, "b": self.test, "v": self.v}[kind](scope)

    def bounded(self, kind, scope):
        """An expression whose value stays small, however often it is fed back."""
        if kind == "b":
            return self.test(scope)
        text = self.expression(kind, scope)
        if kind == "v":
            return self.pick([f"np.clip({text}, -4, 4)", f"({text}) % 4"])
        if kind == "i":
            return self.pick([f"({text}) % 5", f"min(max({text}, -5), 5)", f"abs({text}) % 4"])
        return self.pick([f"min(max({text}, -4.0), 4.0)", f"({text}) % 4", f"({text}) % 8 - 4"])

    def eighth(self):
        return repr(self.rng.randrange(-12, 13) / 8)

    def index(self, scope, size):
        i = self.choose(scope.names.get("i", ()))
        if i is None or self.chance(3):
            return str(self.rng.randrange(size) if isinstance(size, int) else 0)
        return f"{i} % {size}"

    # ------------------------------------------------------------ floats

    def f(self, scope, depth=2):
        if depth == 0 or self.chance(3):
            return self.f_leaf(scope)
        e = lambda: self.f(scope, depth - 1)
        options = [
            lambda: f"({e()} {self.pick('+-')} {e()})",
            lambda: f"({e()} + {e()})",
            lambda: f"-{e()}",
            lambda: f"{e()} * {self.pick([2, -1, 0])}",
            lambda: f"({e()} * ({self.i(scope, 0)} % 3))",
            lambda: f"{self.pick(['min', 'max'])}({e()}, {e()})",
            lambda: f"max({e()}, {e()}, {self.eighth()})",
            lambda: f"abs({e()})",
            lambda: f"({e()}) % {self.pick([2, 0.75, -3])}",
            lambda: f"({e()}) // {self.pick([2, -1, 0.5])}",
            lambda: f"float({self.i(scope, depth - 1)})",
            lambda: f"({self.i(scope, 0)} / 2)",
            lambda: f"({e()} if {self.test(scope, depth - 1)} else {e()})",
            lambda: f"({e()} {self.pick(['and', 'or'])} {e()})",
            lambda: f"(lambda t, s={e()}: t - s)({e()})",
            lambda: f"float(np.floor({e()}))",
            lambda: f"np.where({self.test(scope, 0)}, {e()}, {e()})",
            lambda: f"np.clip({e()}, -1, {self.eighth().lstrip('-')})",
            lambda: f"math.floor({e()})",
            lambda: f"np.{self.pick(['sum', 'max', 'min'])}({self.v(scope, depth - 1)})",
            lambda: f"{self.v(scope, 0)}.{self.pick(['sum', 'max', 'min'])}()",
            lambda: f"sum({self.v(scope, 0)})",
        ]
        xs = self.choose(scope.names.get("l", ()))
        if xs:
            options += [
                lambda: f"{self.pick(['sum', 'max', 'min'])}({xs})",
                lambda: f"sum(t * 2 for t in {xs})",
                lambda: f"sum([abs(t) for t in {xs}])",
                lambda: f"np.array({xs}).sum()",
            ]
        if "w" in scope.names:
            options += [lambda: self.kept_f(scope)] * 3
        options += [(lambda text=t: text) for t in self.calls(scope)]
        return self.pick(options)()

    def calls(self, scope):
        """Calls of what the program defines."""
        if scope.rank > 2:
            return []
        e = lambda: self.f_leaf(scope)
        texts = [f"{g}({e()})" for g in scope.names.get("g", ())]
        if "deeper" in scope.calls and self.chance(3):
            o, v = self.choose(scope.names["o"]), self.choose(scope.names["v"])
            texts += [f"deeper({e()}, 2)", f"{o}.level", f"{o}.update({e()})"]
            texts += [f"helper({e()}, {e()}, {v})", f"helper(s={e()}, t={e()}, u={v}.copy())"]
        return texts

    def f_leaf(self, scope):
        names = scope.names
        options = [self.eighth()]
        options += names.get("f", [])[-4:] * 2
        options += [f"{v}[{self.index(scope, 3)}]" for v in names.get("v", [])[-2:]]
        options += [
            f"{a}[{self.index(scope, 2)}, {self.index(scope, 3)}]" for a in names.get("a", ())
        ]
        for xs in names.get("l", ()):
            size = self.pick([2, f"len({xs})"])
            options.append(f"{xs}[{self.index(scope, size)}]")
        options += [f'{d}["{self.pick("pq")}"]' for d in names.get("d", ())]
        options += [f'{d}.get("z", {self.eighth()})' for d in names.get("d", ()) if self.chance(3)]
        options += [f"{o}.total" for o in names.get("o", ())]
        return self.pick(options)

    # ------------------------------------------------------------ ints

    def i(self, scope, depth=2):
        names = scope.names.get("i", [])
        if depth <= 0 or self.chance(3):
            options = [str(self.rng.randrange(-2, 5)), *names[-4:] * 2]
            options += [f"{o}.count" for o in scope.names.get("o", ())]
            options += [f"len({xs})" for xs in scope.names.get("l", ()) if self.chance(3)]
            return self.pick(options)
        e = lambda: self.i(scope, depth - 1)
        options = [
            lambda: f"({e()} {self.pick('+-')} {e()})",
            lambda: f"{e()} * {self.pick([2, -1, 3])}",
            lambda: f"({e()}) // {self.pick([2, -2, 3])}",
            lambda: f"({e()}) % {self.pick([2, 3, -3])}",
            lambda: f"abs({e()})",
            lambda: f"{self.pick(['min', 'max'])}({e()}, {e()})",
            lambda: f"int({self.f(scope, depth - 1)})",
            lambda: f"int({self.test(scope, depth - 1)})",
            lambda: f"({e()} if {self.test(scope, depth - 1)} else {e()})",
            lambda: f"({e()} & 3)",
            lambda: f"({e()} | 1)",
            lambda: f"({e()} ^ 2)",
            lambda: f"({e()} >> 1)",
            lambda: f"int(np.argmax({self.v(scope, 0)}))",
            lambda: f"({e()} or {e()})",
            lambda: f"round(float({self.f(scope, 0)}))",
            lambda: f"int(np.sum({self.v(scope, 0)} > {self.eighth()}))",
        ]
        if "w" in scope.names:
            options += [lambda: self.kept_i(scope)] * 2
        return self.pick(options)()

    # ------------------------------------------------------------ tests

    def test(self, scope, depth=1):
        compare = lambda: self.pick(["<", "<=", ">", ">=", "<", ">", "==", "!="])
        f, i = (lambda: self.f(scope, depth)), (lambda: self.i(scope, depth))
        simple = [
            lambda: f"{f()} {compare()} {f()}",
            lambda: f"{self.f_leaf(scope)} {compare()} {self.eighth()}",
            lambda: f"{self.f_leaf(scope)} {compare()} {self.f_leaf(scope)}",
            lambda: f"{i()} {compare()} {i()}",
            lambda: f"({i()}) % 2 == {self.pick([0, 1])}",
            lambda: f"{self.f_leaf(scope)} < {f()} <= {self.f_leaf(scope)}",
            lambda: f"0 <= {i()} < {self.rng.randrange(1, 4)}",
        ]
        if scope.names.get("b"):
            simple += [lambda: self.choose(scope.names["b"])] * 2
        if depth == 0:
            return f"({self.pick(simple)()})"
        t = lambda: self.test(scope, depth - 1)
        more = [
            lambda: f"({t()} {self.pick(['and', 'or'])} {t()})",
            lambda: f"(not {t()})",
            lambda: f"({self.v(scope, 0)} > {self.f_leaf(scope)}).{self.pick(['any', 'all'])}()",
            lambda: f"np.any({self.v(scope, 0)} == {self.eighth()})",
            lambda: f"bool({self.i(scope, 0)})",
            lambda: f"({t()}) == ({t()})",
            lambda: f"{i()} in (0, 1, {self.rng.randrange(2, 5)})",
        ]
        if scope.names.get("l"):
            xs = self.choose(scope.names["l"])
            more.append(lambda: f"{self.pick(['any', 'all'])}(t > {self.eighth()} for t in {xs})")
        if "w" in scope.names:
            more.append(lambda: self.kept_test(scope))
        text = self.pick(simple * 2 + more)()
        return f"((w := {self.f_leaf(scope)}) > {self.eighth()})" if self.chance(25) else text

    # ------------------------------------------------------------ vectors

    def v(self, scope, depth=1):
        names = scope.names.get("v", ())
        leaves = [*names, *(f"{a}[{self.index(scope, 2)}]" for a in scope.names.get("a", ()))]
        leaves += [f"{o}.grid" for o in scope.names.get("o", ())]
        leaves = leaves or ["np.arange(3.0)"]
        if depth == 0 or self.chance(3):
            return self.pick(leaves)
        e, f = (lambda: self.v(scope, depth - 1)), (lambda: self.f_leaf(scope))
        options = [
            lambda: f"({e()} {self.pick('+-')} {e()})",
            lambda: f"({e()} + {f()})",
            lambda: f"{e()} * {self.pick([2, -1])}",
            lambda: f"np.array([{f()}, {f()}, {self.f(scope, 1)}])",
            lambda: "np.zeros(3)",
            lambda: f"np.full(3, {f()})",
            lambda: f"np.ones_like({e()})",
            lambda: f"np.where({e()} > {f()}, {e()}, {f()})",
            lambda: f"np.abs({e()})",
            lambda: f"np.{self.pick(['minimum', 'maximum'])}({e()}, {f()})",
            lambda: f"{self.pick(leaves)}[::-1]",
            lambda: f"np.roll({e()}, 1)",
            lambda: f"np.cumsum({e()})",
            lambda: f"np.sort({e()})",
            lambda: f"({e()} > {f()}) * 1.5",
            lambda: f"np.concatenate([{self.pick(leaves)}[1:], {self.pick(leaves)}[:1]])",
            lambda: f"{self.pick(leaves)}[[2, 0, 1]]",
            lambda: f"np.array([{f()} for t in range(3)])",
            lambda: f"np.floor({e()})",
        ]
        options += [lambda a=a: f"{a}.sum(axis=0)" for a in scope.names.get("a", ())]
        return self.pick(options)()


def copied(names):
    return {kind: list(some) for kind, some in names.items()}
