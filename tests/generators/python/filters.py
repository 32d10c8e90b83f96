"""Random Python programs: comprehensions with `if`, and lists whose length they decide.

A name of kind "w" is such a list: of numbers, and of any length, so each use of it says what an
empty one gives.
"""

from tests.generators.python.expressions import Expressions


class Filters(Expressions):
    """Texts of expressions over what a test keeps, and statements that name and change it."""

    @property
    def filters(self):
        return [
            (4, self.filtered),
            (3, self.filtered_list),
            (2, self.kept_by_loop),
            (2, self.change_filtered),
        ]

    def source(self, scope, item="t"):
        """What a comprehension goes over, and the text of an item of that name."""
        names = scope.names
        options = ["range(3)", "range(4)", f"range({self.i(scope, 0)} % 4)"]
        for kind in "lvw":
            options += names.get(kind, [])[-3:] * 2
        options += [f"{d}.values()" for d in names.get("d", ())]
        options += [f"{a}[{self.index(scope, 2)}]" for a in names.get("a", ())]
        text = self.pick(options)
        array = text in names.get("v", ()) or text.endswith("]")
        return text, f"float({item})" if array else item

    def kept(self, scope, result=None):
        """`result(t) for t in ... if test`; the test is of the item, of the rest, or of both."""
        if "L" in scope.names and self.chance(4):
            return self.kept_members(scope, result)
        over, t = self.source(scope)
        tests = [
            f"{t} {self.pick(['<', '<=', '>', '>=', '==', '!='])} {self.f_leaf(scope)}",
            f"{t} > {self.eighth()}",
            f"{t} % 2 < 1",
            f"{self.eighth()} <= {t} < {self.f_leaf(scope)}",
            f"{t} > 0 and {self.test(scope, 0)}",
            self.test(scope, 0),
        ]
        test = self.pick(tests)
        if self.chance(6):
            test = f"{test} if {t} < {self.eighth()}"
        values = [t, t, f"{t} * 2", f"abs({t})", f"{t} + {self.f_leaf(scope)}", f"-{t}"]
        return f"{result(t) if result else self.pick(values)} for t in {over} if {test}"

    def kept_members(self, scope, result):
        name, value, test = self.pick(
            [
                ("row", "row[0]", f"row[1] {self.pick('<>')} {self.f_leaf(scope)}"),
                ("row", "sum(row)", f"row[0] > {self.eighth()}"),
                ("one", "one.total", f"one.count {self.pick('<>')} {self.i(scope, 0)}"),
                ("one", "one.total", f"one.total {self.pick('<>')} {self.f_leaf(scope)}"),
                ("one", "one.log[0]", f"one.level > {self.eighth()}"),
            ]
        )
        over = "crew" if name == "one" else self.pick(["nest", "nest", "bins.values()"])
        return f"{result(value) if result else value} for {name} in {over} if {test}"

    def kept_f(self, scope):
        """A float of what a test keeps."""
        first, kept, default = self.pick(["min", "max"]), self.kept(scope), self.f_leaf(scope)
        texts = [
            f"sum({kept})",
            f"sum([{kept}])",
            f"sum(({kept}), {default})",
            f"{first}(({kept}), default={default})",
            f"{first}([{kept}], default={default})",
            f"{first}([{kept}] or [{default}])",
            f"{first}([{default}, *[{kept}]])",
            f"next(({kept}), {default})",
            f"([{kept}] + [{default}])[0]",
            f"float(np.sum(np.array([{kept}])))",
        ]
        w = self.choose(scope.names.get("w", ()))
        if w:
            texts += [
                f"sum({w})",
                f"({w}[{self.pick([0, -1])}] if {w} else {default})",
                f"({w}[0] if len({w}) > {self.pick([0, 1, 2])} else {default})",
                f"{first}({w}, default={default})",
                f"sum({w}[:2])",
                f"sum({w}[::-1][:1])",
                f"(sorted({w}) + [{default}])[0]",
                f"sum(t * k for k, t in enumerate({w}))",
            ]
        return self.pick(texts)

    def kept_i(self, scope):
        texts = [
            f"len([{self.kept(scope)}])",
            f"sum({self.kept(scope, lambda t: '1')})",
            f"[{self.kept(scope)}].count({self.f_leaf(scope)})",
            *(f"len({w})" for w in scope.names.get("w", ())[-2:]),
        ]
        return self.pick(texts)

    def kept_test(self, scope):
        test = lambda t: f"{t} {self.pick(['<', '>', '!='])} {self.eighth()}"
        texts = [
            f"any({self.kept(scope, test)})",
            f"all({self.kept(scope, test)})",
            f"any([{self.kept(scope, test)}])",
            f"({self.f_leaf(scope)} in [{self.kept(scope)}])",
        ]
        w = self.choose(scope.names.get("w", ()))
        if w:
            texts += [f"bool({w})", f"(not {w})", f"(len({w}) > 1)", f"({self.eighth()} in {w})"]
            texts += [f"any(t > {self.eighth()} for t in {w})"]
        return self.pick(texts)

    # ------------------------------------------------------------ statements

    def filtered(self, scope):
        """A name for a number that hangs on what a test keeps."""
        kind = self.pick("ffib")
        text = {"f": self.kept_f, "i": self.kept_i, "b": self.kept_test}[kind](scope)
        return [f"{self.new(scope, kind)} = {text}"]

    def filtered_list(self, scope):
        text = self.pick([f"[{self.kept(scope)}]", f"list({self.kept(scope)})"])
        return [f"{self.new(scope, 'w')} = {text}"]

    def kept_by_loop(self, scope):
        """A list that a loop fills: what a comprehension with `if` does."""
        w, one = f"w{next(self.ids)}", f"f{next(self.ids)}"
        over, t = self.source(scope, one)
        test = f"{t} {self.pick('<>')} {self.f_leaf(scope)}"
        lines = [f"for {one} in {over}:", f"    if {test}:", f"        {w}.append({t} + 1)"]
        self.new(scope, "w", w)
        return [f"{w} = []", *lines]

    def change_filtered(self, scope):
        w = self.choose(scope.targets("w"))
        if w is None:
            return None
        f, k = self.bounded("f", scope), f"k{next(self.ids)}"
        write = [f"if {w}:", f"    {w}[{self.pick([0, -1])}] {self.pick(['=', '+='])} {f}"]
        more = [[f"{w}.append({f})"], [f"{w}.reverse()"], [f"{w}[:1] = []"], [f"{w}.extend([{f}])"]]
        each = [f"for {k} in range(len({w})):", f"    {w}[{k}] = -{w}[{k}]"]
        return self.pick([write, write, each, *more])
