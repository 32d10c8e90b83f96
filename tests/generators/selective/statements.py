"""The statements of random programs for the law of `mal.jit`: each method returns lines of text."""

RESULTS = "FIgjfibl"


def indented(lines):
    return [f"    {line}" for line in lines]


class Statements:
    """`names`: {kind: variables that are bound here}; a block gets a copy, and may rebind them."""

    def function(self, names, result, statements, depth, calls=False):
        """The body of a function; `result`: the kind to return, None for all there is."""
        self.result, self.calls, self.loops = result, calls, 0
        lines = self.block(names, depth, statements)
        return [*lines, self.returned(names)]

    def returned(self, names):
        if self.result:
            return f"return {self.expression(self.result, names)}"
        some = [v for kind in names for v in names[kind]]
        if self.chance(6):
            return f"return {self.pick(some)}"
        if self.chance(6):
            return f"return {{{', '.join(f'{v!r}: {v}' for v in some)}}}"
        return f"return ({', '.join(some)},)"

    def block(self, names, depth, statements):
        lines = []
        for _ in range(statements):
            lines += self.statement(names, depth)
        return lines

    def inner(self, names, depth, statements=2, **bound):
        """An indented block that sees what is bound here and what it is given."""
        copy = {kind: list(some) for kind, some in names.items()}
        for kind, name in bound.items():
            copy.setdefault(kind, []).append(name)
        return indented(self.block(copy, depth - 1, 1 + self.rng.randrange(statements)))

    def statement(self, names, depth):
        simple = [self.fresh] * 6 + [self.assign] * 4
        simple += [self.say, self.say, self.noisy, self.alias, self.add, self.unpack]
        if self.calls:
            simple += [self.append, self.store, self.called, self.called]
            simple += [self.checked] * self.chance(3)
        nested = [self.branch] * 3 + [self.for_loop] * 2 + [self.while_loop, self.closure]
        nested += [self.try_except, self.with_block, self.cases] if self.calls else []
        jumps = [self.jump] * (5 if self.loops else 1)
        return self.pick(simple + nested * (depth > 0) + jumps)(names, depth)

    def new(self, names, kind):
        name = f"{kind}{next(self.ids)}"
        names.setdefault(kind, []).append(name)
        return name

    # ------------------------------------------------------------ simple statements

    def fresh(self, names, depth):
        kind = self.pick("FFFFIIggjifbl")
        text = self.expression(kind, names)
        if kind == "b":
            text = f"bool({text})"
        return [f"{self.new(names, kind)} = {text}"]

    def assign(self, names, depth):
        kinds = [kind for kind in "FFIgjif" if names.get(kind)]
        kind = self.pick(kinds)
        text = self.expression(kind, names)
        return [f"{self.pick(names[kind])} = {text}"]

    def noisy(self, names, depth):
        text = self.q_(names)
        return [f"{self.new(names, 'q')} = {text}"]

    def alias(self, names, depth):
        """Two names of one array, of which one is then changed, as Python sees it."""
        v = self.name(names, "F")
        return [f"{self.new(names, 'F')} = {v}", f"{v} {self.pick(['+= 1', '-= 0.5', '*= -1'])}"]

    def add(self, names, depth):
        if not names.get("i") or self.chance(2):
            return self.fresh(names, depth)
        return [f"{self.name(names, 'i')} += {self.short(names)}"]

    def unpack(self, names, depth):
        v = self.name(names, "F")
        two = f"{self.g_(names)}, {self.pick([f'{v}.sum()', self.g_(names)])}"
        pair = self.new(names, "g"), self.new(names, "g")
        if self.chance(2):
            return [f"{pair[0]}, {pair[1]} = {two}"]
        return [f"{pair[0]}, {pair[1]} = tame(jnp.stack([{two}]))"]

    def say(self, names, depth):
        """A print: of ints and bools, of exact floats, of others with few digits."""
        v, i, f = self.name(names, "F"), self.i_(names), self.f_(names)
        options = [
            f"print('i', {i})",
            f"print({self.b_(names)}, {i})",
            f"print('f', round({f}, 3))",
            f"print(f'{{{v}.shape[0]}} of {{{f}:.2f}}')",
            f"print({v}.tolist())",
            f"print({self.g_(names)})",
            f"print({self.expression('I', names)})",
            f"print(isinstance({v}, jax.Array), {v}.dtype, {v}.shape)",
            f"print(type({f}).__name__, type({i}).__name__)",
            f"print('{{}} {{}}'.format({i}, {v}.ndim), end=';')",
        ]
        return [self.pick(options)]

    def append(self, names, depth):
        kind = self.pick("iifgF")
        text = self.expression(kind, names)
        options = [f"log.append({text})"] * 3
        options += [f"log.extend({self.l_(names)})", f"log[0] += {self.i_(names)}"]
        return [self.pick(options)]

    def store(self, names, depth):
        kind = self.pick("iifgF")
        text = self.expression(kind, names)
        key = self.pick(["'a'", "'c'", self.short(names)])
        options = [f"d[{key}] = {text}"] * 3
        options += [f"d['a'] += {self.i_(names)}", f"d.setdefault({key}, {text})"]
        return [self.pick(options)]

    def called(self, names, depth):
        v = self.name(names, "F")
        options = [
            f"helper({v})",
            f"helper({v}, {self.threshold()})",
            f"helper({v}, low={self.name(names, 'f') or 0.5})",
            f"deeper({v}, 2)",
            f"helper(helper({v}))[:4]",
        ]
        return [f"{self.new(names, 'F')} = {self.pick(options)}[:6]"]

    def checked(self, names, depth):
        """A statement that raises on some inputs."""
        v, i, j = self.name(names, "F"), self.short(names), self.j_(names)
        kind, text = self.pick(
            [
                ("", f"assert {self.b_(names)}, f'not so: {{int({j})}}'"),
                ("", f"if {self.b_(names)}:\n    raise ValueError(f'no {{{i}}}')"),
                ("i", f"7 // {i}"),
                ("i", f"['a', 'b', 'c'].index('abcdefg'[{i}])"),
                ("f", f"{v}.tolist()[{i}]"),
                ("F", f"{v} + {v}[{v} > {self.threshold()}]"),
                ("g", f"{v}.max()"),
                ("", f"d[{i}]"),
            ]
        )
        return [f"{self.new(names, kind)} = {text}"] if kind else text.split("\n")

    def jump(self, names, depth):
        options = ["break", "continue"] * bool(self.loops)
        line = self.pick([*options, self.returned(names)])
        return [f"if {self.b_(names)}:", *self.inner(names, 0, 1), f"    {line}"]

    # ------------------------------------------------------------ compound statements

    def branch(self, names, depth):
        """if, elif, else; at times both sides bind the same new name."""
        kind = self.pick("Fgif")
        both = self.new({}, kind) if self.chance(2) else None
        lines = []
        heads = [f"if {self.b_(names)}:"]
        heads += [f"elif {self.b_(names)}:"] if self.chance(4) else []
        heads += ["else:"] if both or self.chance(2) else []
        for head in heads:
            first = [f"    {both} = {self.expression(kind, names)}"] if both else []
            lines += [head, *first, *self.inner(names, depth)]
        if both:
            names.setdefault(kind, []).append(both)
        return lines

    def looped(self, names, depth, **bound):
        self.loops += 1
        lines = self.inner(names, depth, **bound)
        self.loops -= 1
        return lines

    def for_loop(self, names, depth):
        v, i, e = self.name(names, "F"), self.short(names), f"e{next(self.ids)}"
        kind, text = self.pick(
            [
                ("i", "range(3)"),
                ("i", f"range({i} % 4)"),
                ("i", f"range({i}, 8, 3)"),
                ("g", f"{v}[:3]"),
                ("f", f"({v}).tolist()[:3]"),
                ("i", f"({self.I_(names)}).tolist()[:3]"),
                ("j", f"{self.I_(names)}[:3]"),
                ("f", f"{self.l_(names)}[:3]"),
            ]
        )
        target, iterable = e, text
        if self.chance(4):
            target, iterable = f"at, {e}", f"enumerate({text})"
        head = f"for {target} in {iterable}:"
        rows = self.chance(3)
        lines = [head, *self.looped(names, depth, **{kind: e})]
        if rows:
            inner = {kind_: list(some) for kind_, some in names.items()}
            inner.setdefault(kind, []).append(e)
            row = f"    rows{e}.append({self.g_(inner)})"
            lines = [f"rows{e} = []", lines[0], row, *lines[1:]]
        if self.chance(4):
            lines += ["else:", *self.inner(names, 0, 1)]
        if rows:
            stacked = f"jnp.stack(rows{e}) if rows{e} else jnp.zeros(0)"
            lines.append(f"{self.new(names, 'F')} = {stacked}")
        return lines

    def while_loop(self, names, depth):
        """A while that counts its steps first, so that `continue` cannot keep it from ending."""
        c, most = f"c{next(self.ids)}", self.rng.randrange(2, 5)
        body = self.looped(names, depth, i=c)
        test = self.b_(names)
        if self.chance(2):
            head = [f"while {c} < {most} and ({test}):", f"    {c} += 1"]
        elif self.chance(2):
            head = [f"while ({c} := {c} + 1) < {most} and ({test}):"]
        else:
            head = ["while True:", f"    {c} += 1", f"    if {c} > {most} or {test}:"]
            head += ["        break"]
        return [f"{c} = 0", *head, *body]

    def closure(self, names, depth):
        """A local function that reads what is around it; one in three counts its calls."""
        fun, outer = f"fun{next(self.ids)}", self.pick(["f", "g"])
        around = self.name(names, outer) or "0.5"
        counts = self.calls and self.chance(3)
        text = self.pick([f"tame(t * 2 + {around})", f"t[t > {self.threshold()}]", "t[1:]"])
        lines = [f"def {fun}(t):"]
        if counts:
            box = f"{fun}_calls"
            lines = [f"{box} = [0]", *lines, f"    {box}[0] += 1"]
        if self.chance(3):
            lines += [f"    if t.sum() > {self.threshold()}:", "        return t"]
        lines.append(f"    return {text}")
        v = self.name(names, "F")
        lines.append(f"{self.new(names, 'F')} = {fun}({v})")
        if self.chance(2):
            lines += [f"{self.new(names, 'F')} = {fun}({fun}({v}))"]
        if counts:
            lines.append(f"{self.new(names, 'i')} = {box}[0]")
        return lines

    def try_except(self, names, depth):
        """Something that may raise, and what follows it."""
        error = self.pick(["ValueError", "Missing", "(ValueError, KeyError)", "Exception"])
        raised = self.pick(["ValueError", "Missing", "KeyError"])
        lines = ["try:", *self.inner(names, depth)]
        lines += [
            f"    if {self.b_(names)}:",
            f"        raise {raised}(f'at {{{self.i_(names)}}}')",
        ]
        lines += indented(self.checked({k: list(v) for k, v in names.items()}, 0))
        lines += [f"except {error} as error:", "    print('caught', type(error).__name__)"]
        lines += self.inner(names, 0, 1)
        if self.chance(3):
            lines += ["    raise"]
        if self.chance(3):
            lines += ["else:", *self.inner(names, 0, 1)]
        if self.chance(3):
            lines += ["finally:", "    print('finally')", f"    log.append({self.i_(names)})"]
        return lines

    def with_block(self, names, depth):
        lines = [f"with Held({self.i_(names)}):", *self.inner(names, depth)]
        if self.chance(2):
            lines += [f"    if {self.b_(names)}:", f"        raise Missing({self.i_(names)})"]
        return lines

    def cases(self, names, depth):
        lines = [f"match {self.short(names)}:"]
        for pattern in ("0", "1 | 2", "_"):
            lines += indented([f"case {pattern}:", *self.inner(names, 0, 1)])
        return lines
