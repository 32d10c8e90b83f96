"""A program as Python: `source(fun, *args)` is the text of a module that computes the same.

Every body is a function: a scan's step, a branch, what was jitted. Values have the names that the
user gave them where the source tells; the user's lines stand above as comments.
"""

import keyword
import linecache
from collections.abc import Callable
from typing import Any

import jax

from malleable import compat
from malleable.core.stage import stage
from malleable.errors import MalleableError
from malleable.inspection import places as lines
from malleable.inspection.files import calls, names
from malleable.inspection.files.format import places, types
from malleable.inspection.files.format.program import Body, Equation, Number, Program, Ref
from malleable.inspection.files.save import Slot, take_apart
from malleable.inspection.show.arguments import of_arrays
from malleable.inspection.source import structures, trees, values
from malleable.inspection.source.calls import converted, expression
from malleable.inspection.source.layout import (
    RESERVED,
    atom,
    fresh,
    indent,
    pack,
    roomy,
    target,
    variables,
)
from malleable.inspection.source.structures import NO_DERIVATIVE, Role, custom

_WIDE = 90  # characters of a comment
_WIDE_TYPES = {"int64", "uint64", "float64", "complex128"}


def source(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The program `fun` is on these arguments, as the text of a Python module that runs.

    The module has a function of the name and the parameters of `fun` (`main` if it has none),
    which takes arguments of these shapes and dtypes, refuses others, and computes the same: scan,
    cond and their like are there as calls of lax, custom derivatives with their rules, constants
    bit by bit. It needs JAX alone (but for some collectives and for loops of `autograph`, which
    need malleable). Results are plain containers and named tuples; of other classes, a list.
    Raises MalleableError for what has no source, such as a callback, naming the user's line.

    >>> import jax.numpy as jnp
    >>> def wave(x):
    ...     y = jnp.sin(x) * 2.0
    ...     return {"y": y}
    >>> text = source(wave, jnp.zeros(3))
    >>> print(text[text.index("def wave"):])
    def wave(x):
        x = _argument(x, 'float32[3]')
        # y = jnp.sin(x) * 2.0
        a = jnp.sin(x)
        y = a * 2.0
        return {'y': y}
    <BLANKLINE>
    """
    around = places.outside()
    signature = calls.signature_of(fun)
    given = calls.arrange(signature, args, kwargs, "the function", fun=fun)
    with compat.apart():
        staged = stage(fun)(*given.tree[0], **given.tree[1])
        staged.refuse(staged.changes.names, "which this source could not do")
    called = getattr(fun, "__name__", "main")
    if not called.isidentifier() or keyword.iskeyword(called) or called in RESERVED:
        called = "main"
    wanted = [types.unparse(a) for a in staged.jaxpr.out_avals]
    text = _write(staged, called, signature, given, around, {})
    found = _results_of(text, called, given)
    weak = {i: k.startswith("~") for i, k in enumerate(wanted)}
    made = {i: w for i, w in weak.items() if found[i].startswith("~") != w}
    if made:  # results that came out weak, or strong, and are to be the other
        text = _write(staged, called, signature, given, around, made)
        found = _results_of(text, called, given)
    if found != wanted:
        raise MalleableError(
            f"the source of `{called}` would give {found}, and not {wanted}",
            hint="this is a bug of malleable; save the function with malleable.save",
        )
    return text


def _write(staged, called: str, signature, given: calls.Given, around, made: dict) -> str:
    try:
        program = roomy(take_apart(staged.jaxpr, around, given.paths))
        writer = _Writer(program, called, given)
        result = staged.rebuild([Slot() for _ in staged.jaxpr.out_avals])
        writer.main(calls.write_signature(signature, given), given, result, made)
    except MalleableError as err:
        said = ("cannot go into a transformable file", "cannot be written as source")
        hint = "save it with malleable.save" if "transformable" in (err.hint or "") else err.hint
        what = err.what.replace(*said).replace("a file holds no code", "source holds no functions")
        raise type(err)(what, where=err.where, hint=hint) from err.__cause__
    return writer.text(staged.jaxpr, given)


def _results_of(text: str, called: str, given: calls.Given) -> list[str]:
    """The types of the results of the function in a module."""
    module: dict[str, Any] = {}
    with compat.apart():
        exec(compile(text, f"<source of {called}>", "exec"), module)
        staged = stage(of_arrays(module[called], given.tree, given.traced))(*given.leaves)
    return [types.unparse(a) for a in staged.jaxpr.out_avals]


class _Writer:
    """Functions written so far, each after those it calls."""

    def __init__(self, program: Program, called: str, given: calls.Given):
        self.program, self.called = program, called
        self.taken = {called, *RESERVED, *program.constants}
        self.taken |= {path.partition("[")[0].partition(".")[0] for path in given.every}
        self.taken |= {n for body in program.bodies.values() for n in variables(body)}
        self.functions: list[list[str]] = []
        self.known: dict[Any, str] = {}

    def text(self, jaxpr: compat.Jaxpr, given: calls.Given) -> str:
        pairs = zip(given.paths, jaxpr.in_avals, strict=True)
        takes = ", ".join(f"{path}: {types.unparse(a)}" for path, a in pairs)
        constants = [
            f"{name} = {values.spell_constant(c)}" for name, c in self.program.constants.items()
        ]
        body = "\n".join(line for function in self.functions for line in function)
        parts = [text for name, text in _HELPERS.items() if f"{name}(" in body]
        parts += ["\n".join(constants)] * bool(constants)
        code = "\n\n\n".join([*parts, *("\n".join(f) for f in self.functions)])
        told = f"`{self.called}` as the program it is on ({takes}): JAX {jax.__version__}."
        told = told.replace("\\", "\\\\").replace('"', "'")
        wide = ["", values.WIDE] * self.is_wide()
        return "\n".join([f'"""{told}"""', "", *values.needs(code), *wide]) + f"\n\n\n{code}\n"

    def is_wide(self) -> bool:
        """Whether some value has a type that only jax_enable_x64 has."""
        kinds = [k for b in self.program.bodies.values() for k in self.kinds(b).values()]
        return any(str(types.parse(kind).dtype) in _WIDE_TYPES for kind in kinds)

    def kinds(self, body: Body) -> dict[str, str]:
        """The types of what a body may read."""
        found = dict(body.ins) | {n: k for e in body.equations for n, k in e.outs}
        return found | {n: c.type for n, c in self.program.constants.items()}

    # ------------------------------------------------------------ functions

    def name(self, ref: Ref, role: Role, params: dict | None = None) -> str:
        """The name of the function for a body in a role, written if it is not there yet."""
        key = (ref, role, str(params) if role.kind == "custom" else "")
        if key in self.known:
            return self.known[key]
        self.known[key] = name = names.free(names.identifier(ref.name), self.taken)
        self.taken |= {name, *(f"{name}_{rule}" for rule in ("jvp", "forward", "backward"))}
        body = self.program.bodies[ref.name]
        if role.kind == "custom":
            self.functions += custom(self, name, body, params or {})
        else:
            self.functions.append(self.function(name, body, role))
        return name

    def function(self, name: str, body: Body, role: Role) -> list[str]:
        """A body as a function."""
        ins = [n for n, _ in body.ins]
        bound, rest, first = ins[: role.consts], ins[role.consts :], []
        known = variables(body)
        if role.kind == "step":
            groups = [("carry", rest[: role.carry]), ("xs", rest[role.carry :])]
        elif role.kind == "state":
            groups = [("state", rest)]
        else:
            groups = [(n, [n]) for n in rest]
        params = [_group(whole, group, first, known) for whole, group in groups]
        head = f"def {name}({', '.join(params + ['*'] * bool(bound) + bound)}):"
        outs = list(map(atom, body.outs))
        if role.kind == "step":
            result = f"{pack(outs[: role.carry])}, {pack(outs[role.carry :])}"
        else:
            result = pack(outs)
        return [head, *indent([*first, *self.equations(body), f"return {result}"])]

    # ------------------------------------------------------------ equations

    def equations(self, body: Body) -> list[str]:
        """The statements of a body, the user's lines as comments above theirs."""
        kinds = self.kinds(body)
        preds = _predicates(body, kinds)
        skipped = _needless(body, preds)
        found, last = [], None
        for eqn in body.equations:
            if id(eqn) in skipped:
                continue
            place = lines.own(list(eqn.at))
            if place and place[:2] != last:
                last = place[:2]
                text = linecache.getline(place.file, place.line).strip()
                told = f"# {text or lines.spell(place)}"
                found.append(told if len(told) <= _WIDE else f"{told[: _WIDE - 3]}...")
            found.append(self.statement(eqn, kinds, preds))
        return found

    def statement(self, eqn: Equation, kinds: dict, preds: dict) -> str:
        outs = [n for n, _ in eqn.outs]
        body = lambda ref: self.program.bodies[ref.name]  # noqa: E731
        if eqn.operation == "cond" and eqn.ins[0] in preds and "platforms" not in eqn.params:
            value = structures.cond(preds[eqn.ins[0]], eqn, self.name)
        elif structures.has_bodies(eqn):
            value = structures.write(eqn, self.name, body)
        else:
            types_ = [a.type if isinstance(a, Number) else kinds[a] for a in eqn.ins]
            value = expression(eqn, types_)
        value = _under(eqn, value)
        if eqn.operation == "scan":
            n = eqn.params["carry"]
            return f"{target(outs[:n])}, {target(outs[n:])} = {value}"
        bodies = structures.has_bodies(eqn)
        alone = eqn.operation in structures.LISTED if bodies else _gives_list(eqn)
        if not outs:
            return value
        return (
            f"({outs[0]},) = {value}" if alone and len(outs) == 1 else f"{target(outs)} = {value}"
        )

    # ------------------------------------------------------------ the function itself

    def main(self, signature: list, given: calls.Given, result, made: dict[int, bool]) -> None:
        """The function with the parameters and the pytrees of the user's.

        made: of results, whether they are to be made weak or strong.
        """
        body = self.program.bodies[self.program.main]
        kinds = self.kinds(body)
        parameters = ", ".join(trees.parameters(signature, given))
        first = trees.take_arguments(body, given)
        outs = []
        for i, a in enumerate(body.outs):
            kind = a.type if isinstance(a, Number) else kinds[a]
            outs.append(converted(atom(a), kind, made[i]) if i in made else atom(a))
        equations = self.equations(body)
        ends = f"return {trees.result(result, outs, self.functions)}"
        function = [f"def {self.called}({parameters}):", *indent([*first, *equations, ends])]
        self.functions.append(function)


_HELPERS = {
    "_argument": '''def _argument(x, kind):
    """An argument as an array, if it has the type that the program was written for."""
    x = x if isinstance(x, jax.Array) else jnp.asarray(x)
    found = f"{x.dtype}[{','.join(map(str, x.shape))}]"
    if found != kind:
        raise TypeError(f"this program takes {kind} here, and not {found}")
    return x''',
    "_decided": '''def _decided(x, value, path):
    """Refuse what the program was not written for."""
    if x != value:
        raise TypeError(f"this program was written for {path} = {value!r}")''',
    "_flat": """def _flat(x):
    return list(x) if isinstance(x, tuple) else [x]""",
    "_where": '''def _where(going, new, old):
    """New values for the examples whose loop is still going."""
    shape = lambda x: going.reshape(going.shape + (1,) * (x.ndim - going.ndim))
    choose = lambda x, y: jnp.where(shape(x), x, y) if x.size else x
    return jax.tree.map(choose, new, old)''',
    "_no_derivative": NO_DERIVATIVE,
}


# ---------------------------------------------------------------- pieces


def _group(whole: str, group: list[str], first: list[str], known: set[str]) -> str:
    """A parameter for some values: itself for one, a tuple that is taken apart for more."""
    if len(group) == 1:
        return group[0]
    whole = fresh(whole if group else f"_{whole}", known)
    first += [f"{', '.join(group)} = {whole}"] * bool(group)
    return whole


def _gives_list(eqn: Equation) -> bool:
    prim = compat.named_primitives().get(eqn.operation)
    alone = eqn.operation in ("sort", "optimization_barrier") and len(eqn.ins) == 1
    return prim is not None and prim.multiple_results and not alone


def _under(eqn: Equation, value: str) -> str:
    """A value that depends on more than its operands says so."""
    if not eqn.context:
        return value
    raise MalleableError(
        f"`{eqn.operation}` stands in a context, {eqn.context}, that source does not keep",
        where=names.spell_frames(eqn.at),
        hint="leave the context, or save the function with malleable.save",
    )


def _predicates(body: Body, kinds: dict) -> dict:
    """{index: bool} of the indices that are a bool as a number."""
    found = {}
    for eqn in body.equations:
        pred = eqn.ins[0] if eqn.operation == "convert_element_type" else None
        if isinstance(pred, str) and types.plain(kinds[pred]) == "bool[]":
            found[eqn.outs[0][0]] = pred
    twos = {
        e.ins[0] for e in body.equations if e.operation == "cond" and len(e.params["branches"]) == 2
    }
    return {index: pred for index, pred in found.items() if index in twos}


def _needless(body: Body, preds: dict) -> set[int]:
    """Equations that only make the index of a branch on a bool."""
    used = {a for a in body.outs if isinstance(a, str)}
    for eqn in body.equations:
        read = eqn.ins[1:] if eqn.operation == "cond" and eqn.ins[0] in preds else eqn.ins
        used |= {a for a in read if isinstance(a, str)}
    first = {id(e): e.outs[0][0] for e in body.equations if e.outs}
    return {at for at, name in first.items() if name in preds and name not in used}
