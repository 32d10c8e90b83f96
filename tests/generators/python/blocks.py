"""The compound statements of random Python programs, and the jumps between them."""

from tests.generators.python.expressions import Expressions


class Blocks(Expressions):
    """Each method returns the lines of a statement; None where the scope has nothing for it."""

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
            (
                n,
                self.pick(["range(1, 6, 2)", "range(3, 0, -1)", "reversed(range(3))"]),
                [("i", n)],
                (),
                True,
            ),
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
            head = [
                "while True:",
                f"    {k} += 1",
                f"    if {k} > {most} or {test}:",
                "        break",
            ]
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
        lines = [
            "try:",
            *indented(body),
            f"    if {self.test(scope)}:",
            '        raise ValueError("no")',
        ]
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
        changed = [
            n for n in (self.choose(scope.targets("f")), self.choose(scope.targets("i"))) if n
        ]
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


def indented(lines):
    return ["    " + line for line in lines or ["pass"]]
