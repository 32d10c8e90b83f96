"""How a random Python program is written: blocks of statements, each a few lines of text."""

import itertools
import random
from dataclasses import dataclass, field, replace

from tests.python_expressions import Expressions

MODULE = '''\
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
'''


def write_module(rng: random.Random) -> str:
    """The text of a module; the same for the same state of `rng`."""
    writer = Writer(rng)
    me = {"f": ["self.total"], "i": ["self.count"], "v": ["self.grid"], "l": ["self.log"]}
    held = {kind: [name.replace(".", ".thing.") for name in some] for kind, some in me.items()}
    inner = Scope(rank=1, calls=())
    parts = {
        "level": writer.function(replace(inner, names=copied(me), results="f", left=2), pure=True),
        "update": writer.function(
            replace(inner, names=copied({**me, "f": ["self.total", "t"]}), results="f", left=3)
        ),
        "leave": writer.block(replace(inner, names=held, left=2), jumps=False),
        "helper": writer.function(
            replace(inner, names={"f": ["t", "s"], "v": ["u"]}, results="f", left=4)
        ),
    }
    deep = Scope(names={"f": ["t"], "i": ["depth"]}, calls=())
    parts["deep_test"] = writer.test(deep)
    parts["deep_one"], parts["deep_other"] = writer.f(deep), writer.f(deep)
    names = {"f": ["x", "y"], "i": ["n", "m"], "v": ["v"], "a": ["a"], "l": ["xs"], "d": ["d"]}
    scope = Scope(
        names=names | {"o": ["o"]},
        calls=("helper", "deeper", "update", "level"),
        results=writer.pick(["f", "f", "fi", "v"]),
        left=6 + rng.randrange(5),
    )
    parts["run"] = writer.function(scope)
    depth = {"run": 1, "helper": 1}
    return MODULE.format(
        **{
            name: text if isinstance(text, str) else lay_out(text, depth.get(name, 2))
            for name, text in parts.items()
        }
    )


def lay_out(lines, depth):
    return "\n".join("    " * depth + line for line in lines)


def indented(lines):
    return ["    " + line for line in lines or ["pass"]]


def copied(names):
    return {kind: list(some) for kind, some in names.items()}


@dataclass
class Scope:
    """What the next statement may read and do.

    names: readable names by type: f(loat), i(nt), b(ool), v(ector), a (matrix), l(ist), d(ict),
    o(bject). grows: every path comes by here, so lists may grow. loop: break and continue allowed.
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


class Writer(Expressions):
    """Writes statements. Each `statement_*` returns lines, or None where it does not apply."""

    def __init__(self, rng):
        self.rng = rng
        self.ids = itertools.count(1)
        self.defined = 0

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
        ]
        options = simple + (nested if scope.rank < 3 else [])
        if scope.rank and (scope.loop or scope.results):
            options = [*options, (3, self.jump)]
        while True:
            lines = self.weighted(options)(scope)
            if lines is not None:
                return lines

    @property
    def writes(self):
        return [
            (3, self.augment),
            (5, self.write_vector),
            (4, self.write_matrix),
            (3, self.write_list),
            (2, self.write_dict),
            (3, self.write_object),
            (2, self.call_statement),
            (1, self.alias),
        ]

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

    def augment(self, scope):
        kind = self.pick("ffiv")
        name = self.choose(scope.targets(kind))
        text = self.bounded(kind if self.chance(2) else "i" if kind == "i" else "f", scope)
        return name and [f"{name} {self.pick(['+=', '-='])} {text}"]

    def swap(self, scope):
        names = scope.targets("f")
        if len(names) < 2:
            return None
        one, other = self.rng.sample(names, 2)
        if self.chance(2):
            return [f"{one}, {other} = {other}, {self.bounded('f', scope)}"]
        return [f"{one} = {other} = {self.bounded('f', scope)}"]

    def alias(self, scope):
        """Another name for an array, or for a part of one: writes are seen through both."""
        if self.chance(2) and scope.names.get("a"):
            text = f"{self.choose(scope.names['a'])}[{self.index(scope, 2)}]"
        else:
            text = self.choose(scope.names.get("v", ()))
        return text and [f"{self.new(scope, 'v')} = {text}"]

    # ------------------------------------------------------------ writes

    def write_vector(self, scope):
        v = self.choose(scope.names.get("v", ()))
        if v is None:
            return None
        i, j = self.index(scope, 3), self.index(scope, 3)
        f, w = self.bounded("f", scope), self.bounded("v", scope)
        u = self.choose(scope.names["v"])
        op = self.pick(["+=", "-="])
        lines = self.pick(
            [
                f"{v}[{i}] = {f}",
                f"{v}[{i}] {op} {f}",
                f"{v}[{i}], {v}[{j}] = {v}[{j}], {v}[{i}]",
                f"{v}[1:] = {f}",
                f"{v}[:2] {op} ({w})[1:]",
                f"{v}[:] = {w}",
                f"{v}[::2] {op} {f}",
                f"{v}[{v} > {self.eighth()}] = {f}",
                f"{v}[{u} <= {self.eighth()}] {op} {self.eighth()}",
                f"{v}[{u} > {f}] = {u}[{u} > {f}] - 1" if "(" not in f else f"{v}[0] = {f}",
                f"{v}.fill({f})",
                f"np.maximum({v}, {f}, out={v})",
                f"{v}[[0, 2]] = {f}",
                f"{v}.sort()",
                f"np.add.at({v}, [0, {i}], {self.eighth()})",
            ]
        )
        return [lines]

    def write_matrix(self, scope):
        a = self.choose(scope.names.get("a", ()))
        if a is None:
            return None
        i, j = self.index(scope, 2), self.index(scope, 3)
        f, w = self.bounded("f", scope), self.bounded("v", scope)
        op = self.pick(["+=", "-="])
        line = self.pick(
            [
                f"{a}[{i}, {j}] = {f}",
                f"{a}[{i}, {j}] {op} {f}",
                f"{a}[{i}][{j}] {op} {f}",
                f"{a}[{i}] = {w}",
                f"{a}[{i}] {op} {w}",
                f"{a}[:, {j}] {op} {f}",
                f"{a}[0], {a}[1] = {a}[1].copy(), {w}",
                f"{a}[{a} > {self.eighth()}] {op} {self.eighth()}",
                f"{a} {op} {w}" if a not in scope.frozen else f"{a}[:] {op} {w}",
                f"{a}[:, 1:] = ({w})[1:]",
                f"{a}.T[{j}] = {f}",
                f"{a}[...] = np.where({a} < {f}, {a}, {self.eighth()})",
            ]
        )
        return [line]

    def write_list(self, scope):
        xs = self.choose(scope.names.get("l", ()))
        if xs is None:
            return None
        f = self.bounded("f", scope)
        lines = [
            f"{xs}[{self.index(scope, f'len({xs})')}] = {f}",
            f"{xs}[{self.pick([0, 1, -1])}] = {f}",
            f"{xs}[0] {self.pick(['+=', '-='])} {f}",
            f"{xs}[0], {xs}[-1] = {xs}[-1], {xs}[0]",
            f"{xs}[:2] = [{f}, {self.eighth()}]",
            f"{xs}.reverse()",
        ]
        if xs not in scope.frozen and (scope.grows or self.chance(30)):
            lines += [f"{xs}.append({f})"] * 4
            lines += [f"{xs}.insert(0, {f})", f"{xs} += [{f}]", f"{xs}.extend(({f}, 1.0))"]
            if self.chance(3):
                return [f"{xs}.append({f})", f"{self.new(scope, 'f')} = {xs}.pop(0)"]
        return [self.pick(lines)]

    def write_dict(self, scope):
        d = self.choose(scope.names.get("d", ()))
        f = self.bounded("f", scope)
        return d and [
            self.pick(
                [
                    f'{d}["p"] = {f}',
                    f'{d}["q"] += {f}',
                    f"{d}.update(p={f})",
                    f'{d}["p"], {d}["q"] = {d}["q"], {f}',
                    f'{d}.setdefault("p", {f})',
                    f'{d}["r"] = {f}' if scope.grows and d not in scope.frozen else f'{d}["p"] = {f}',
                ]
            )
        ]

    def write_object(self, scope):
        o = self.choose(scope.names.get("o", ()))
        f = self.bounded("f", scope)
        return o and [
            self.pick(
                [
                    f"{o}.total = {f}",
                    f"{o}.total += {f}",
                    f"{o}.count += 1",
                    f"{o}.count = {self.bounded('i', scope)}",
                    f"{o}.grid = ({self.bounded('v', scope)}) + 0.0",
                    f"{o}.grid[{self.index(scope, 3)}] += {f}",
                    f"{o}.log[0] = {f}",
                    f"{o}.log.append({f})" if scope.grows else f"{o}.log[-1] = {f}",
                ]
            )
        ]

    def call_statement(self, scope):
        if "update" not in scope.calls:
            return None
        o, v = self.choose(scope.names["o"]), self.choose(scope.names["v"])
        t, s = self.bounded("f", scope), self.bounded("f", scope)
        call = self.pick([f"{o}.update({t})", f"helper({t}, {s}, {v})"])
        return [call if self.chance(2) else f"{self.new(scope, 'f')} = {call}"]

    # ------------------------------------------------------------ branches and jumps

    def branch(self, scope):
        """if, elif, else; at times both sides bind the same new name."""
        tests = 1 + (self.rng.randrange(4) == 0)
        has_else = self.chance(2)
        inner = {"grows": False, "left": max(1, scope.left // 2)}
        both = self.pick("fi") if has_else and self.chance(4) else None
        name = both and f"{both}{next(self.ids)}"
        lines, scopes = [], []
        for k in range(tests + has_else):
            head = "else:" if k == tests else f"{'elif' if k else 'if'} {self.test(scope)}:"
            scopes.append(scope.inside(**inner))
            body = [f"{name} = {self.expression(both, scope)}"] if both else []
            lines += [head, *indented(body + self.block(scopes[-1]))]
        if any(s.jumped for s in scopes):
            scope.grows, scope.jumped = False, True
        if both:
            self.new(scope, both, name)
        return lines

    def jump(self, scope):
        options = ["break", "continue"] * scope.loop
        if scope.results:
            options.append(self.result(scope))
        scope.jumped = True
        line = self.pick(options)
        return [f"if {self.test(scope)}:", f"    {line}"] if self.chance(2) else [line]

    def cases(self, scope):
        i = self.choose(scope.names.get("i", ()))
        if i is None:
            return None
        inner = {"grows": False, "left": 1}
        lines = [f"match {i}:"]
        for pattern in ("0", "1 | 2", "_"):
            body = scope.inside(**inner)
            lines += [f"    case {pattern}:", *indented(indented(self.block(body)))]
            if body.jumped:
                scope.grows, scope.jumped = False, True
        return lines

    # ------------------------------------------------------------ loops

    def iterable(self, scope):
        """(targets, text, names bound, names not to change while it runs, whether it is static)."""
        v, a = self.choose(scope.names.get("v", ())), self.choose(scope.names.get("a", ()))
        xs, d = self.choose(scope.names.get("l", ())), self.choose(scope.names.get("d", ()))
        n, k, t, s = (f"{c}{next(self.ids)}" for c in "ikfv")
        traced = self.choose(scope.names.get("i", ()))
        options = [
            (n, f"range({self.rng.randrange(1, 4)})", [("i", n)], (), True),
            (n, self.pick(["range(1, 6, 2)", "range(3, 0, -1)", "reversed(range(3))"]), [("i", n)], (), True),
        ]
        if traced:
            ranges = [
                f"range({traced} % 4)",
                f"range({traced} % 3, 4)",
                f"range({traced} % 5, 0, -2)",
                f"range({traced} % 4, 3 + {traced} % 2)",
                f"range(min({traced}, 3))",
            ]
            options += [(n, text, [("i", n)], (), False) for text in ranges[:3]]
            options += [(n, self.pick(ranges), [("i", n)], (), False)]
        if v:
            options += [
                (t, f"{v}.copy()", [("f", t)], (), True),
                (f"{k}, {t}", f"enumerate({v} + 1)", [("i", k), ("f", t)], (), True),
                (f"{t}, {k}", f"zip(np.abs({v}), range(3))", [("f", t), ("i", k)], (), True),
            ]
        if a:
            options += [
                (s, a, [("v", s)], (a,), True),
                (f"{k}, {s}", f"enumerate({a})", [("i", k), ("v", s)], (a,), True),
            ]
        if xs:
            options += [
                (t, xs, [("f", t)], (xs,), True),
                (f"{k}, {t}", f"enumerate({xs})", [("i", k), ("f", t)], (xs,), True),
                (t, f"[{xs}[0], {self.f(scope)}]", [("f", t)], (), True),
            ]
        if d:
            options += [(f"_, {t}", f"{d}.items()", [("f", t)], (d,), True)]
            options += [(t, f"list({d}.values())", [("f", t)], (), True)]
        return self.pick(options)

    def loop_body(self, scope, names, frozen, grows):
        bound = {name for kind, name in names if kind in "ifk"}
        inner = scope.inside(
            names,
            frozen=scope.frozen | set(frozen) | (bound if self.chance(2) else set()),
            loop=True,
            grows=grows,
            left=max(1, scope.left // 2),
            jumped=False,
        )
        return inner, self.block(inner)

    def for_loop(self, scope):
        target, text, names, frozen, static = self.iterable(scope)
        inner, body = self.loop_body(scope, names, frozen, grows=scope.grows and static)
        return [f"for {target} in {text}:", *indented(body), *self.loop_else(scope, inner)]

    def loop_else(self, scope, inner):
        if inner.jumped and scope.results:
            scope.grows, scope.jumped = False, True
        if not self.chance(5):
            return []
        last = scope.inside(grows=False, left=2)
        lines = ["else:", *indented(self.block(last))]
        if last.jumped:
            scope.grows, scope.jumped = False, True
        return lines

    def while_loop(self, scope):
        """A while that counts its steps first, so that `continue` cannot keep it from ending."""
        k = f"k{next(self.ids)}"
        most = self.rng.randrange(1, 5)
        inner, body = self.loop_body(scope, [("i", k)], (k,), grows=False)
        test = self.test(scope)
        style = self.rng.randrange(4)
        if style == 0:
            head = [f"while {k} < {most} and {test}:", f"    {k} += 1"]
        elif style == 1:
            head = [f"while True:", f"    {k} += 1", f"    if {k} > {most} or {test}:", "        break"]
        elif style == 2:
            head = [f"while ({k} := {k} + 1) < {most} and {test}:"]
        else:
            i = self.bounded("i", scope)
            head = [f"while {k} < {i}:" if i.endswith("% 5") else f"while {k} < ({i}) % 4:"]
            head += [f"    {k} += 1"]
        lines = [f"{k} = 0", *head, *indented(body)]
        lines += self.loop_else(scope, inner)
        if self.chance(2):
            self.new(scope, "i", k)
        return lines

    def best_so_far(self, scope):
        """A name that is None until some step gives it a value."""
        best = f"f{next(self.ids)}"
        target, text, names, frozen, _ = self.iterable(scope)
        inner = scope.inside(names, frozen=scope.frozen | set(frozen), grows=False, loop=False)
        value = f"{best}_"
        guard = [f"if {self.test(inner)}:", "    break"] if self.chance(3) else []
        lines = [
            f"{best} = None",
            f"for {target} in {text}:",
            *indented([f"{value} = {self.f(inner)}", *guard]),
            f"    if {best} is None or {value} {self.pick('<>')} {best}:",
            f"        {best} = {value}",
            f"if {best} is None:",
            f"    {best} = {self.eighth()}",
        ]
        self.new(scope, "f", best)
        return lines

    def born_in_loop(self, scope):
        """A name that only the loop binds, and that is read after it."""
        name, k = f"f{next(self.ids)}", f"i{next(self.ids)}"
        inner, body = self.loop_body(scope, [("i", k), ("f", name)], (k,), grows=False)
        first = self.expression("f", scope)
        lines = [f"for {k} in range({self.rng.randrange(1, 4)}):"]
        lines += [f"    {name} = {first}", *indented(body)]
        if inner.jumped and scope.results:
            scope.grows, scope.jumped = False, True
        self.new(scope, "f", name)
        self.new(scope, "i", k)
        return lines

    # ------------------------------------------------------------ exceptions, with, functions

    def try_finally(self, scope):
        inner = scope.inside(left=3)
        lines = ["try:", *indented(self.block(inner))]
        last = scope.inside(left=1, grows=False)
        lines += ["finally:", *indented(self.block(last, jumps=False))]
        if inner.jumped:
            scope.grows, scope.jumped = False, True
        return lines

    def try_except(self, scope):
        """An exception on a path that depends on values, and its handler."""
        inner, handler = scope.inside(left=2, grows=False), scope.inside(left=2, grows=False)
        body = self.block(inner)
        lines = ["try:", *indented(body), f"    if {self.test(scope)}:", '        raise ValueError("no")']
        lines += ["except ValueError:", *indented(self.block(handler))]
        scope.grows = False
        scope.jumped |= inner.jumped or handler.jumped
        return lines

    def with_block(self, scope):
        o = self.choose(scope.names.get("o", ()))
        if o is None:
            return None
        name = f"o{next(self.ids)}"
        inner = scope.inside([("o", name)], left=3)
        lines = [f"with Held({o}) as {name}:", *indented(self.block(inner))]
        if inner.jumped:
            scope.grows, scope.jumped = False, True
        return lines

    def nested_function(self, scope):
        """A closure that changes what is around it, called at once and later."""
        if scope.rank > 1 or any("." in name for some in scope.names.values() for name in some):
            return None
        name, t = f"g{next(self.ids)}", f"t{next(self.ids)}"
        changed = [n for n in (self.choose(scope.targets("f")), self.choose(scope.targets("i"))) if n]
        held = frozenset(n for some in scope.names.values() for n in some if n not in changed)
        inner = scope.inside([("f", t)], loop=False, results="f", left=2, grows=False, jumped=False)
        inner.frozen, inner.rank, inner.calls = held, 2, ()
        body = self.function(inner)
        lines = [f"def {name}({t}):"]
        if changed:
            lines += [f"    nonlocal {', '.join(changed)}"]
        lines += indented(body)
        call = f"{name}({self.bounded('f', scope)})"
        self.new(scope, "g", name)
        lines += [f"{self.new(scope, 'f')} = {call}"]
        return lines
