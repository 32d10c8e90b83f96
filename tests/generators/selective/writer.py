"""How a random program for the law of `mal.jit` is written: expressions by kind, statements.

Kinds of variables: F and I are float32 and int32 arrays of any size up to 6, g and j such scalars,
f, i and b Python floats, ints and bools, l lists of Python floats, q floats that rounding may
change, which are returned and printed only.
"""

import itertools

from tests.generators.selective.statements import Statements

LITERALS = ("-1.0", "0.5", "2.0", "-0.5", "1.25")


class Writer(Statements):
    """Expressions: a method per kind, which takes the names in reach and returns text."""

    def __init__(self, rng):
        self.rng = rng
        self.ids = itertools.count(1)

    def chance(self, one_in):
        return self.rng.randrange(one_in) == 0

    def pick(self, options):
        """One of the options; of those that are functions, what it returns."""
        return self.rng.choice(options)

    def threshold(self):
        """A number that no multiple of 1/8 equals or comes near."""
        return self.rng.randrange(-16, 17) / 8 + 0.0625

    def name(self, names, kind):
        return self.pick(names[kind]) if names.get(kind) else None

    def expression(self, kind, names):
        return getattr(self, f"{kind}_")(names)

    def F_(self, names):
        v, u = self.name(names, "F"), self.name(names, "F")
        c, s = self.threshold(), self.pick(LITERALS)
        i, g = self.short(names), self.g_(names) if self.chance(3) else s
        plain = [
            f"tame({v} * {s})",
            f"tame({v} + {g})",
            f"tame({g} - {v})",
            f"jnp.where({v} > {c}, {v}, {s})",
            f"jnp.sort({v})",
            f"{v}[::-1]",
            f"jnp.abs({v})",
            f"jnp.maximum({v}, {s})",
            f"tame(jnp.cumsum({v}))",
            f"jnp.clip({v}, -1, 1)",
            f"-{v}",
            f"jnp.diff({v})" if self.chance(2) else f"jnp.roll({v}, 1)",
            f"lax.fori_loop(0, 3, lambda _, t: tame(t * 2 - 1), {v})" if self.chance(3) else v,
            f"jax.vmap(lambda e: tame(e * e))({v})",
            f"jnp.concatenate([{v}, {u}])[:6]",
            f"jnp.append({v}, {s})[:6]",
            f"tame({v} * {v}.shape[0])",
            f"{v}.at[0:1].set({s})",
        ]
        sized = [
            f"{v}[{v} > {c}]",
            f"{v}[{v} > {c}]",
            f"{v}[({v} > {c}) & ({v} < {c + 2})]",
            f"{v}[~({v} > {c})]",
            f"{v}[:{i}]",
            f"{v}[{i}:]",
            f"{v}[-{i} - 1 :]",
            f"{v}[jnp.nonzero({v} > {c})[0]]",
            f"{v}[{v} > {g}]",
            f"jnp.zeros({i})",
            f"jnp.full({i}, {s})",
            f"jnp.arange({i}).astype(jnp.float32)",
            f"jnp.repeat({v}, {i} % 3)[:6]",
            f"jnp.where({v} > {c})[0] * 0.5",
            f"jnp.asarray(np.asarray({v})[np.asarray({v}) > {c}])",
            f"jnp.asarray([e for e in {v}.tolist() if e > {c}], jnp.float32)",
            f"tame(jax.ops.segment_sum({v}, jnp.arange({v}.shape[0]) % ({i} + 1), {i} + 1))",
        ]
        if names.get("I"):
            j = self.name(names, "I")
            plain += [f"{j}.astype(jnp.float32)", f"{j} / 2"]
            sized += [f"{v}[{j}[{j} < {v}.shape[0]]]"]
        return self.pick(sized if self.chance(2) else plain)

    def I_(self, names):
        v, c, i = self.name(names, "F"), self.threshold(), self.short(names)
        options = [
            f"jnp.nonzero({v} > {c})[0]",
            f"jnp.flatnonzero({v} > {c})",
            f"jnp.argwhere({v} > {c}).ravel()",
            f"jnp.arange({i})",
            f"jnp.unique({v} > {c}).astype(jnp.int32)",
            f"jnp.argsort({v})",
            f"jnp.floor({v}).astype(jnp.int32)",
        ]
        if names.get("I"):
            j = self.name(names, "I")
            options += [
                f"jnp.unique({j})",
                f"jnp.unique({j}, return_counts=True)[1]",
                f"jnp.unique({j}, return_inverse=True)[1]",
                f"{j}[{j} % 2 == 0]",
                f"{j}[:{i}]",
                f"({j} + {i}) % 7",
                f"jnp.bincount(jnp.abs({j}), length=6)",
                f"jnp.setdiff1d({j}, jnp.arange({i}))",
            ]
        return self.pick(options)

    def g_(self, names):
        v, c = self.name(names, "F"), self.threshold()
        options = [
            f"{v}.sum()",
            f"jnp.max({v}, initial=-1.0)",
            f"jnp.min({v}, initial=1.0)",
            f"tame({v} @ {v})",
            f"({v}[0] if {v}.shape[0] else jnp.float32(0.5))",
            f"jnp.where({v} > {c}, {v}, 0).sum()",
            f"{v}[{v} > {c}].sum()",
            f"jnp.float32({self.f_(names)})" if self.chance(3) else f"tame({v}.sum() * 2)",
        ]
        if names.get("g"):
            g = self.name(names, "g")
            options += [g, f"tame({g} + {v}.sum())", f"tame({g} * 2 - 1)"]
            options += [f"lax.cond({g} > {c}, tame, jnp.negative, {g})"] * self.chance(3)
        return self.pick(options)

    def j_(self, names):
        v, c = self.name(names, "F"), self.threshold()
        options = [
            f"({v} > {c}).sum()",
            f"jnp.count_nonzero({v} > {c})",
            f"jnp.searchsorted(jnp.sort({v}), {c})",
            f"jnp.argmax(jnp.append({v}, 2.0))",
        ]
        if names.get("I"):
            j = self.name(names, "I")
            options += [f"jnp.max({j}, initial=0)", f"{j}.sum() % 7"]
        if names.get("j"):
            options += [self.name(names, "j"), f"{self.name(names, 'j')} % 3"]
        return self.pick(options)

    def short(self, names):
        """A Python int in 0..6, usually known at run time only."""
        options = [f"{v}.shape[0] % 7" for v in names["F"]] + ["2"]
        options += [f"int({j}) % 7" for j in names.get("j", ())] * 2
        options += [f"abs({i}) % 7" for i in names.get("i", ())]
        options += [f"int({self.j_(names)}) % 7"] if self.chance(2) else []
        return f"({self.pick(options)})"

    def i_(self, names):
        v = self.name(names, "F")
        options = [
            f"{v}.shape[0]",
            f"len({v})",
            f"int({self.j_(names)})",
            f"int({self.j_(names)}) % 5",
            f"({self.j_(names)}).item()",
            f"int({self.g_(names)})",
        ]
        if names.get("i"):
            i = self.name(names, "i")
            options += [f"({i} + 1) % 7", f"({i} * {v}.shape[0]) % 7"]
        if names.get("l"):
            options.append(f"len({self.name(names, 'l')})")
        return self.pick(options)

    def f_(self, names):
        v, c = self.name(names, "F"), self.threshold()
        g = self.name(names, "g") or f"{v}.sum()"
        options = [
            f"float({g})",
            f"float({v}.sum())",
            f"{g}.item()" if "." not in g else "0.5",
            f"bound(sum({v}.tolist()))",
            f"(float({g}) if {self.b_(names)} else {self.pick(LITERALS)})",
            f"bound(sum(float(e) for e in {v} if e > {c}))",
            f"max({v}.tolist(), default=0.5)",
        ]
        if names.get("f"):
            f = self.name(names, "f")
            options += [f"bound({f} + 0.5)", f"bound({f} * 2)", f"bound(float({g}) - {f})"]
        return self.pick(options)

    def b_(self, names):
        """A test: of a Python value, or of an array."""
        v, c = self.name(names, "F"), self.threshold()
        options = [
            f"{v}.sum() > {c}",
            f"jnp.any({v} > {c})",
            f"({v} > {c}).all()",
            f"{v}.shape[0] > {self.rng.randrange(1, 6)}",
            f"{c} < {v}.sum() < {c + 4}",
            f"any(bool(e > {c}) for e in {v})",
            f"bool(jnp.max({v}, initial=0) > {c})",
        ]
        for kind in "gf":
            options += [f"{g} > {c}" for g in names.get(kind, ())]
            options += [f"{g} > {c} and {v}.shape[0] > 2" for g in names.get(kind, ())]
            options += [f"not {g} > {c}" for g in names.get(kind, ())]
        for kind in "ji":
            options += [f"{j} > {self.rng.randrange(1, 5)}" for j in names.get(kind, ())]
            options += [f"{j} % 2 == 0 or {v}.sum() > {c}" for j in names.get(kind, ())]
        options += list(names.get("b", ()))
        return self.pick(options)

    def l_(self, names):
        v, c, i = self.name(names, "F"), self.threshold(), self.short(names)
        return self.pick(
            [
                f"{v}.tolist()",
                f"[float(e) for e in {v} if e > {c}]",
                f"[float(tame({v} * e).sum()) for e in range({i} % 4)]",
                f"sorted({v}.tolist())[:{i}]",
                f"[e * 2 for e in {v}.tolist() if e < {c}]",
                f"list(map(float, {v}[:{i}]))",
            ]
        )

    def q_(self, names):
        v, u, i = self.name(names, "F"), self.name(names, "F"), self.short(names)
        return self.pick(
            [
                f"jnp.sin({v})",
                f"jnp.exp(-{v} * {v}).sum()",
                f"jnp.sqrt(jnp.abs({v}))",
                f"jax.nn.softmax({v})",
                f"{v} / ({v}.shape[0] + 1.5)",
                f"jax.grad(lambda t: (jnp.tanh(t) * t).sum())({v})",
                f"jax.value_and_grad(lambda t: jnp.cos(t).sum())({v})",
                f"jnp.exp(-(({v}[:, None] - {u}[None]) ** 2)).sum(1)",
                f"(jnp.outer({v}, {u}) @ {u}) / 3",
                f"jax.jit(lambda t: jnp.log1p(t * t))({v})",
                f"jax.random.uniform(jax.random.key({i}), ({i},))",
                f"jnp.sin({v}[{v} > {self.threshold()}]).sum()",
                f"np.sin(np.asarray({v})).astype(np.float32)",
                f"lax.scan(smooth, 0.3, {v})" if self.chance(3) else f"jnp.cos({v})",
            ]
        )
