"""Random Python programs: `try` around what raises at a value, and its handlers.

Each kind of risk is an expression or a statement that Python refuses for some values: division by
zero, an index or a key that is not there, the domain of `math`, a name that is not bound, `assert`.
"""

from tests.generators.python.blocks import indented
from tests.generators.python.expressions import Expressions

PARENTS = {
    "ZeroDivisionError": ("ArithmeticError", "(ZeroDivisionError, ValueError)"),
    "IndexError": ("LookupError", "(KeyError, IndexError)"),
    "KeyError": ("LookupError", "(IndexError, KeyError)"),
    "ValueError": ("(ValueError, OverflowError)", "(TypeError, ValueError)"),
    "NameError": ("UnboundLocalError", "NameError"),
    "AssertionError": ("Exception", "(AssertionError, NameError)"),
}


class Guards(Expressions):
    """Statements with `try`, and what they guard."""

    @property
    def guards(self):
        return [(5, self.guard), (3, self.guarded_loop)]

    def risk(self, error, scope, name):
        """Lines that bind `name` to a float, or raise that error."""
        f, i, j = self.bounded("f", scope), self.i(scope, 1), self.i(scope, 1)
        lists, d = scope.names.get("l", ()), self.choose(scope.names.get("d", ()))
        v = self.choose(scope.names.get("v", ()))
        match error:
            case "ZeroDivisionError":
                texts = [
                    f"math.floor({f}) / (({i}) % 3)",
                    f"float({f}) // (({i}) % 3)",
                    f"float({f}) % (({i}) % 3)",
                    f"(({i}) % 8) // (({j}) % 3)",
                    f"(({i}) % 8) % (({j}) % 4)",
                    f"((({i}) % 3) ** -1)",
                    f"float(({i}) % 8) / float(({j}) % 3)",
                    f"sum(divmod(({i}) % 8, ({j}) % 3))",
                    f"1 / int({self.test(scope)})",
                ]
            case "IndexError":
                texts = [f"({f}, {self.eighth()}, {self.f_leaf(scope)})[({i}) % 5]"]
                texts += [f"{xs}[({i}) % 5]" for xs in lists]
                texts += [f"[{f}, 0.5][({i}) % 4 - 3]", f"range(3)[({i}) % 5]"]
                if v:
                    texts += [f"float({v}[({i}) % 5])"]
                if "L" in scope.names:
                    texts += [f"nest[({i}) % 4][0]", f"crew[({i}) % 5].total"]
                texts += [f"{w}[{self.pick([0, 1, -1])}]" for w in scope.names.get("w", ())]
            case "KeyError":
                texts = [
                    f"{{0: {f}, 1: 0.5, 2: {self.f_leaf(scope)}}}[({i}) % 4]",
                    f'{{"p": {f}}}["p" if {self.test(scope)} else "q"]',
                ]
                if d:
                    texts += [f'{d}["p" if {self.test(scope)} else "nowhere"]', f'{d}["nowhere"]']
            case "ValueError":
                texts = [
                    f"math.floor(math.sqrt({f}))",
                    f"math.floor(math.log({f}))",
                    f"math.floor(math.log2(float({i})))",
                    f"math.floor(math.acos({f}))",
                    f"math.factorial(({i}) % 5 - 1)",
                    f"math.isqrt(({i}) % 9 - 3)",
                    f"[0, 1, 2].index(({i}) % 4)",
                    *(f"{xs}.index({f})" for xs in lists),
                ]
            case "NameError":
                other = f"f{next(self.ids)}"
                lines = [f"if {self.test(scope)}:", f"    {other} = {f}"]
                if self.chance(3):
                    lines = [f"{other} = {f}", f"if {self.test(scope)}:", f"    del {other}"]
                return [*lines, f"{name} = {other} {self.pick(['+ 1', '* 2', '- 0.5'])}"]
            case "AssertionError":
                text = self.pick(["", ', "no"', f", {self.eighth()}"])
                return [f"assert {self.test(scope)}{text}", f"{name} = {f}"]
        if "risky" in scope.calls and error == "ZeroDivisionError":
            texts += [f"risky({f}, {i})"]
        elif "risky" in scope.calls and error == "ValueError":
            texts += [f"risky({f}, ({i}) % 2 + 1)"]
        return [f"{name} = {self.pick(texts)}"]

    def risky_write(self, error, scope):
        """A line that writes at an index that may be out of range; None for other errors."""
        if error != "IndexError":
            return None
        f, i = self.bounded("f", scope), f"({self.i(scope, 1)}) % 5"
        op = self.pick(["=", "+="])
        texts = [f"{xs}[{i}] {op} {f}" for xs in scope.names.get("l", ())]
        texts += [f"{v}[{i}] {op} {f}" for v in scope.names.get("v", ())]
        if "L" in scope.names:
            texts += [f"nest[{i}][0] {op} {f}", f"crew[{i}].total {op} {f}", f"vecs[{i}][0] = {f}"]
        return [self.pick(texts)] if texts else None

    def guard(self, scope):
        """try, except, at times with `as`, several handlers, else, finally, or a `raise` in one."""
        name, error = f"f{next(self.ids)}", self.pick(list(PARENTS))
        body, after, last = (scope.inside(left=2, grows=False) for _ in range(3))
        lines = self.block(body) if self.chance(2) else []
        lines += self.risk(error, body, name)
        if self.chance(3):
            lines += self.risky_write(error, body) or []
        after.names.setdefault("f", []).append(name)
        lines += self.block(after) if self.chance(2) else []
        lines = ["try:", *indented(lines)]
        caught = self.pick([error, error, error, *PARENTS[error]])
        if self.chance(4):
            lines += self.handler(self.pick([e for e in PARENTS if e != error]), name, scope)
        lines += self.handler(caught, name, scope)
        if self.chance(3):
            lines += ["else:", *indented(self.block(after))]
        if self.chance(4):
            lines += ["finally:", *indented(self.block(last, jumps=False))]
        self.new(scope, "f", name)
        scope.grows = False
        scope.jumped |= body.jumped or after.jumped
        return lines

    def handler(self, caught, name, scope):
        """A handler that binds the name, and at times leaves the loop or the function."""
        inner, end = scope.inside(left=2, grows=False), ""
        value = self.f(inner)
        block = self.block(inner) if self.chance(2) else []
        scope.jumped |= inner.jumped
        if self.chance(5):
            value, end = f"{value} + len(error.args)", " as error"
        return [f"except {caught}{end}:", *indented([f"{name} = {value}", *block])]

    def guarded_loop(self, scope):
        """A loop whose steps may fail, each for itself or all at once."""
        k, total, name = f"i{next(self.ids)}", f"f{next(self.ids)}", f"f{next(self.ids)}"
        error, first = self.pick(list(PARENTS)), self.f_leaf(scope)
        inner = scope.inside([("i", k), ("f", total)], loop=True, grows=False, left=1)
        inner.frozen = inner.frozen | {k}
        times = self.pick(["3", "4", "2", f"{self.i(scope, 0)} % 4"])
        body = [*self.risk(error, inner, name), f"{total} += {name} % 4"]
        ends = [["pass"], ["continue"], ["break"], [f"{total} -= 1"], self.block(inner)]
        loop = [f"for {k} in range({times}):"]
        if self.chance(3):
            whole = [*loop, *indented(body)]
            lines = ["try:", *indented(whole), f"except {error}:", f"    {total} -= 1"]
        else:
            step = ["try:", *indented(body), f"except {error}:", *indented(self.pick(ends))]
            lines = [*loop, *indented(step)]
        scope.grows = False
        scope.jumped |= inner.jumped
        self.new(scope, "f", total)
        return [f"{total} = {first}", *lines]
