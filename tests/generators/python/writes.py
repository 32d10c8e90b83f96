"""The statements of random Python programs that change something in place."""

from tests.generators.python.expressions import Expressions


class Writes(Expressions):
    """Each method returns the lines of a statement; None where the scope has nothing for it."""

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

    def augment(self, scope):
        kind = self.pick("ffiv")
        name = self.choose(scope.targets(kind))
        text = self.bounded(kind if self.chance(2) else "i" if kind == "i" else "f", scope)
        return name and [f"{name} {self.pick(['+=', '-='])} {text}"]

    def alias(self, scope):
        """Another name for an array, or for a part of one: writes are seen through both."""
        if self.chance(2) and scope.names.get("a"):
            text = f"{self.choose(scope.names['a'])}[{self.index(scope, 2)}]"
        else:
            text = self.choose(scope.names.get("v", ()))
        return text and [f"{self.new(scope, 'v')} = {text}"]

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
                    f'{d}["r"] = {f}'
                    if scope.grows and d not in scope.frozen
                    else f'{d}["p"] = {f}',
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
