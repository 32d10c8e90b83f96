"""Random Python programs: lists of lists, objects in lists, dicts of lists, names for parts.

`nest` is a list of lists, `crew` one of objects, `bins` a dict of lists, `vecs` a list of arrays.
What a statement picks among them gets a name, and the statements that follow write to it.
"""

from tests.generators.python.blocks import indented
from tests.generators.python.expressions import Expressions

NESTED = {"L": "nest", "O": "crew", "D": "bins", "V": "vecs"}


class Objects(Expressions):
    """Each method returns the lines of a statement; None where the scope has nothing for it."""

    @property
    def picks(self):
        return [
            (4, self.pick_list),
            (4, self.pick_object),
            (2, self.pick_array),
            (4, self.write_nested),
            (3, self.write_member),
            (2, self.swap_members),
            (2, self.best_member),
            (2, self.rebind_member),
        ]

    def number(self, scope):
        """An index in 0..2, which may be traced."""
        return self.pick([f"({self.i(scope, 1)}) % 3", self.index(scope, 3), self.index(scope, 3)])

    def list_text(self, scope):
        """A list of the program's, picked in one way or another."""
        nest, bins = scope.names["L"][0], scope.names["D"][0]
        lists, test = scope.names.get("l", ()), self.test(scope)
        texts = [
            f"{nest}[{self.number(scope)}]",
            f"{nest}[{self.number(scope)}]",
            f"{self.pick(['min', 'max'])}({nest}, key=lambda row: row[{self.pick([0, 1])}])",
            f"sorted({nest}, key=lambda row: {self.pick('+-')}row[0])[{self.pick([0, 1, -1])}]",
            f'{bins}["p" if {test} else "q"]',
            f"({nest}[0] if {test} else {nest}[{self.number(scope)}])",
        ]
        if lists:
            one, other = self.pick(lists), self.pick(lists)
            texts += [f"({one} if {test} else {other})", f"({one} if {test} else {nest}[1])"]
        return self.pick(texts)

    def object_text(self, scope):
        crew, things = scope.names["O"][0], scope.names["o"]
        test, key = self.test(scope), self.pick(["total", "count"])
        texts = [
            f"{crew}[{self.number(scope)}]",
            f"{crew}[{self.number(scope)}]",
            f"{self.pick(['min', 'max'])}({crew}, key=lambda one: one.{key})",
            f"sorted({crew}, key=lambda one: one.total)[{self.pick([0, 1, -1])}]",
            f"({self.pick(things)} if {test} else {self.pick(things)})",
            f"({crew}[1] if {test} else {self.pick(things)})",
        ]
        return self.pick(texts)

    def pick_list(self, scope):
        return self.named("l", self.list_text(scope), scope) if "L" in scope.names else None

    def pick_object(self, scope):
        return self.named("o", self.object_text(scope), scope) if "O" in scope.names else None

    def pick_array(self, scope):
        return self.named("v", f"vecs[{self.number(scope)}]", scope) if "V" in scope.names else None

    def named(self, kind, text, scope):
        return [f"{self.new(scope, kind)} = {text}"]

    def write_nested(self, scope):
        if "L" not in scope.names:
            return None
        f, op = self.bounded("f", scope), self.pick(["+=", "-="])
        i, j = self.number(scope), self.number(scope)
        return [
            self.pick(
                [
                    f"nest[{i}][{self.pick([0, 1])}] {op} {f}",
                    f"nest[{i}][{j} % 2] = {f}",
                    f"nest[{i}][0], nest[{j}][1] = nest[{j}][1], nest[{i}][0]",
                    f"vecs[{i}][{j}] {op} {f}",
                    f"vecs[{i}][1:] = {f}",
                    f"{self.list_text(scope)}[0] {op} {f}",
                    f"{self.list_text(scope)}[-1] = {f}",
                ]
            )
        ]

    def write_member(self, scope):
        if "O" not in scope.names:
            return None
        f, one = self.bounded("f", scope), self.object_text(scope)
        return [
            self.pick(
                [
                    f"{one}.total = {f}",
                    f"{one}.count += 1",
                    f"{one}.log[{self.pick([0, -1])}] += {f}",
                    f"{one}.grid[{self.number(scope)}] = {f}",
                    f"crew[{self.number(scope)}].total += {f}",
                ]
            )
        ]

    def swap_members(self, scope):
        if "L" not in scope.names:
            return None
        i, j, some = self.number(scope), self.number(scope), self.pick(["nest", "crew", "nest"])
        return [f"{some}[{i}], {some}[{j}] = {some}[{j}], {some}[{i}]"]

    def best_member(self, scope):
        """The best so far, of a loop over the members."""
        if "O" not in scope.names or scope.rank > 2:
            return None
        best, one = f"o{next(self.ids)}", f"o{next(self.ids)}"
        key = self.pick(["total", "count", "log[0]"])
        body = [f"if {one}.{key} {self.pick('<>')} {best}.{key}:", f"    {best} = {one}"]
        first = self.object_text(scope)
        self.new(scope, "o", best)
        return [f"{best} = {first}", f"for {one} in crew:", *indented(body)]

    def rebind_member(self, scope):
        if "L" not in scope.names:
            return None
        f, g = self.bounded("f", scope), self.bounded("f", scope)
        name = self.choose(scope.targets("l"))
        lines = [
            f"nest[{self.number(scope)}] = [{f}, {g}]",
            f"vecs[{self.number(scope)}] = {self.v(scope)} + 0.0",
        ]
        if name and "." not in name and name != "xs":
            lines += [f"{name} = {self.list_text(scope)}"] * 3
        return [self.pick(lines)]
