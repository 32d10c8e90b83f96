"""The statements of a region as a program: traced as they stand, or with their branches lifted."""

import ast
import functools
import operator
import re
import types
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.arrays import journal
from malleable.arrays.box import UNSIZED, Box
from malleable.arrays.masked import compacted, selections
from malleable.execution.common import code_objects
from malleable.execution.common.leaves import DICTS, flatten
from malleable.execution.host.host import is_raw
from malleable.execution.purity.facts import ARRAY, NUMBER, SCALAR, SIZE, Stays
from malleable.frontend.common.session import Options, Session, run_in_session
from malleable.frontend.convert import OPERATORS, box_all, finish_result, is_whole
from malleable.frontend.counterparts.bounded import BoundedList
from malleable.frontend.operators.tables import BoundedDict
from malleable.frontend.values.staging import candidates
from malleable.frontend.values.trees import UNSET
from malleable.programs.analyze import analyze
from malleable.programs.primitives import has, kind
from malleable.python_source.changes import watching
from malleable.python_source.nodes import copied, load

LIFTED, UNROLLED = Options(roll="auto", exact=True), Options(exact=True)
WATCH, UNBOUND = "_watch", "_unset"  # what the text of a region may name besides the user's
FUNCTIONS = has("costly", "special") - {"pow"}  # which only a function of JAX computes
LONG = 100  # steps of Python loops that one region may hold


_LEAF, _ONE = jax.tree.structure(0), jax.tree.structure((0,))


# of one array, and NumPy makes most of them without a copy
_VIEWS = kind("same", "place", "dims", "cut", "rearrange")


@dataclass(frozen=True)
class Traced:
    """A region as a program. dynamic: which leaves of the inputs are arguments of it.

    outs: per leaf of the output its number among the program's, or (value,) for one that is known;
    numbers: which outputs are Python numbers to the user; lifted: how branches were, "" if not.
    form: "leaf" or "tuple" where the program's outputs are what is handed out; else "tree".
    single: whether what is handed out is the one item of a tuple.
    """

    program: compat.Jaxpr
    dynamic: tuple[bool, ...]
    tree: Any
    outs: tuple
    numbers: tuple[bool, ...]
    lifted: str

    form: str = "tree"
    single: bool = False
    order: Any = None  # the keys of the dicts among the outputs, as the program put them
    tested: bool = False  # whether its last output says that nothing was empty that must not be
    narrows: bool = False  # whether a Python number comes out of it as an array


@dataclass(frozen=True)
class Failed:
    """Where a region did not trace: the number of its statement, and the error."""

    cut: int
    error: Exception


class Written(Stays):
    """A region wrote to a container of the caller's: its trace, which holds copies, shows it."""

    def __init__(self, name: str):
        super().__init__("effect", f"it changes {name}, which lives outside")


class Shared(Stays):
    """A region hands out what the caller has too, or one thing twice. outs: as what, by number."""

    def __init__(self, outs: list[int]):
        super().__init__("object", "it gives a name to what lives outside")
        self.outs = outs


@dataclass
class Body:
    """A region as a function: its text, and at which line each statement begins."""

    fun: types.FunctionType
    starts: list[int]
    filename: str
    guarded: bool = False  # whether an exception shows what was done before it
    copies: bool = False  # whether it may hand out copies of containers among its arguments
    watch: "Watch | None" = None  # what counts the steps of its loops, of each trace anew

    def statement_of(self, error: BaseException) -> int | None:
        """The number of the statement in which an error arose."""
        trace, line = error.__traceback__, None
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.filename:
                line = trace.tb_lineno
                break
            trace = trace.tb_next
        if line is None:
            return None
        found = [i for i, start in enumerate(self.starts) if start <= line]
        return found[-1] if found else None


_USER_LINES: dict = {}  # by the file name of a region: the user's code, and which line is whose


def user_line(where: str) -> str:
    """The user's line for one of a region, "" where it is no such line."""
    found = re.match(r"(<region .*>):(\d+)", where)
    if not found or found[1] not in _USER_LINES:
        return ""
    code, lines = _USER_LINES[found[1]]
    known = [theirs for ours, theirs in lines if ours <= int(found[2])]
    return f"{code.co_filename}:{known[-1] if known else code.co_firstlineno} in {code.co_name}"


def make_body(
    stmts: list, prelude: list, ins, outs, tail: bool, what: str, fun, watched=False, absent=(),
    guarded=False, copies=False,
) -> Body:  # fmt: skip
    """The function of a region. outs: names, None for one without a value.

    watched: a long loop in it raises Stays. absent: variables that have no value yet.
    """
    outs = [UNBOUND if name is None else name for name in outs]
    if watched:
        prelude, stmts = ([Watched().visit(copied(s)) for s in x] for x in (prelude, stmts))
    lines = [f"def region({', '.join(ins)}):"]
    lines += [f"    if False: {name} = 0" for name in sorted(absent)]  # or a global would be read
    starts = []
    for definition in prelude:
        lines += _indented(definition)
    for stmt in stmts:
        starts.append(len(lines) + 1)
        lines += _indented(stmt)
    if not tail:
        lines.append(f"    return ({', '.join(outs)}{',' if outs else ''})")
    elif not stmts:
        lines.append("    pass")
    cells = code_objects.cells_of(fun)
    cells[UNBOUND] = types.CellType(UNSET)
    watch = Watch() if watched else None
    if watch is not None:
        cells[WATCH] = types.CellType(watch)
    text = "\n".join([*lines, ""])
    made = code_objects.from_text(text, what, fun.__globals__, cells, fun.__qualname__)
    lines_of = [(line, stmt.lineno) for line, stmt in zip(starts, stmts, strict=True)]
    _USER_LINES[made.__code__.co_filename] = (fun.__code__, lines_of)
    return Body(made, starts, made.__code__.co_filename, guarded, copies, watch)


class Watched(ast.NodeTransformer):
    """Loops that count their steps."""

    def visit_For(self, node):
        self.generic_visit(node)
        node.iter = ast.Call(func=load(WATCH), args=[node.iter], keywords=[])
        return node

    def visit_While(self, node):
        self.generic_visit(node)
        tick = ast.Call(func=load(WATCH), args=[], keywords=[])
        node.test = ast.BoolOp(op=ast.And(), values=[tick, node.test])
        return node


class Watch:
    """Counts the steps of the loops of a region while it is traced."""

    def __init__(self):
        self.left = LONG

    def __call__(self, items=None):
        if items is None:
            return self.step()
        return (item for item in items if self.step())

    def step(self) -> bool:
        self.left -= 1
        if self.left < 0:
            raise Stays("loop", "a loop of many steps stays with Python")
        return True


def _indented(stmt):
    text = ast.unparse(ast.fix_missing_locations(stmt))
    return ["    " + line for line in text.split("\n")]


def is_dynamic(leaf) -> bool:
    """Whether a leaf is an argument of the program, and not part of its key."""
    if isinstance(leaf, int) and not isinstance(leaf, np.generic):
        return not isinstance(leaf, bool) and -(2**31) <= leaf < 2**31
    return isinstance(leaf, jax.Array | compat.Tracer | np.ndarray | np.generic | float | complex)


def attempt(
    body: Body,
    values,
    leaf_static: Callable,
    kinds: Any,
    lifted: str,
    stage: Callable = compat.trace,
) -> Traced | Failed:
    """Trace a region on values. kinds: a list for the names it leaves, a tuple for its results.

    leaf_static(i): whether numbers of input i are part of the key. stage(fun, *args): the trace.
    """
    leaves, tree = [], []
    for i, value in enumerate(values):
        parts, structure = flatten(value)
        tree.append((structure, len(parts)))
        for leaf in parts:
            fixed = is_number(leaf) and (leaf_static(i) or leaf is not value)
            leaves.append((leaf, is_dynamic(leaf) and not fixed))
    dynamic = tuple(d for _, d in leaves)
    theirs_of_numpy = {id(x) for x, _ in leaves if is_numpys(x)}
    made: dict[str, Any] = {}

    def flat(*xs):
        if body.watch is not None:
            body.watch.left = LONG
        rest = iter(xs)
        filled = [next(rest) if d else leaf for leaf, d in leaves]
        given, at = [], 0
        for structure, count in tree:
            part = filled[at : at + count]
            given.append(part[0] if structure is None else jax.tree.unflatten(structure, part))
            at += count
        given = [reordered(x, skeleton(value)) for x, value in zip(given, values, strict=True)]
        given = [x for x in given if x is not UNSET]
        theirs = [x for x in values if x is not UNSET]
        views = [
            x
            for x, (leaf, d) in zip(filled, leaves, strict=True)
            if d and id(leaf) in theirs_of_numpy
        ]
        around = functools.partial(watched_run, body, tuple(theirs), views)
        if lifted:
            out, tests, made["pythons"] = lift(body.fun, given, lifted, around)
        else:
            out, tests = around(body.fun, *given), []
        if tests and body.guarded:
            raise Stays("mask", "an empty selection raises here")
        found, made["tree"] = flatten(out, lambda x: _is_open(x) or compat.is_iterator(x))
        if lifted and any(map(_is_open, found)):
            raise Stays("mask", "the size of the result depends on values")
        made["out"] = jax.tree.unflatten(made["tree"], [0] * len(found))
        made["order"] = skeleton(out)
        made["shared"] = [] if body.copies else shared(out if isinstance(kinds, list) else [out])
        same = {
            id(x): i
            for i, (x, (leaf, d)) in enumerate(zip(filled, leaves, strict=True))
            if (d and is_number(leaf)) or not (d or _can_leave(leaf))
        }
        entries, outs = [], []
        for x in found:
            if id(x) in same:
                entries.append(("in", same[id(x)]))
            elif isinstance(x, jax.Array | compat.Tracer | np.ndarray | np.generic):
                entries.append(len(outs))
                outs.append(x)
            elif isinstance(x, compat.SymbolicSize):
                entries.append(("size", str(x)))
            else:
                entries.append((x,))
        made["entries"], made["tested"] = entries, bool(tests)
        return [*outs, functools.reduce(jnp.logical_and, tests)] if tests else outs

    arguments = [leaf for leaf, d in leaves if d]
    try:
        with compat.unfiltered():  # the error may be the user's own, raised again
            program = stage(flat, *arguments)
    except Exception as e:
        cut = body.statement_of(e)
        return Failed(-1 if cut is None else cut, e)
    entries = tuple(made["entries"])
    if made["shared"]:
        return Failed(-1, Shared(made["shared"]))
    if theirs_of_numpy:
        given = [x for x, d in leaves if d]
        arrays = _agree(kinds, made["out"], len(entries), (ARRAY,))
        owners = [1 if id(x) in theirs_of_numpy else 2 * (not is_number(x)) for x in given]
        outs = numpy_alone(program, owners, made["out"], entries, arrays)
        if not body.copies:
            inside = [structure is not None for structure, count in tree for _ in range(count)]
            deep = [n for n, (_, d) in zip(inside, leaves, strict=True) if d]
            numpy = [(id(x) in theirs_of_numpy) * (1 + n) for x, n in zip(given, deep, strict=True)]
            outs += views_of(program, numpy, made["out"], entries, kinds)
        if outs:
            return Failed(-1, Shared(outs))
    if any(not _can_leave(e[0]) for e in entries if isinstance(e, tuple) and len(e) == 1):
        return Failed(-1, Stays("object", "it leaves an object"))
    numbers = _agree(kinds, made["out"], len(entries), _NUMBERS)
    avals = [v.aval for v in program.jaxpr.outvars]
    if any(n and type(e) is int and avals[e].shape for e, n in zip(entries, numbers, strict=True)):
        return Failed(-1, Stays("value", "a number is made of an array with dimensions"))
    weak = any(d and not is_number(x) and getattr(x, "weak_type", False) for x, d in leaves)
    pythons = () if weak else made.get("pythons", ())  # weak arrays of JAX look like numbers
    single = isinstance(kinds, list) and len(kinds) == 1
    plain = entries == tuple(range(len(entries))) and not any(numbers) and not made["tested"]
    form = "tree"
    if plain and (made["tree"] == _LEAF or (single and made["tree"] == _ONE)):
        form = "leaf"
    elif plain and not single and made["tree"] == jax.tree.structure((0,) * len(entries)):
        form = "tuple"
    return Traced(
        *(program, dynamic, made["tree"], entries, tuple(numbers), lifted, form, single),
        order=made["order"],
        tested=made["tested"],
        narrows=len(pythons) == len(numbers) and any(map(operator.gt, pythons, numbers)),
    )


def watched_run(body: Body, theirs: tuple, views: list, run: Callable, *given):
    """Run a region on copies of the caller's values. Raises Stays where a copy will not do.

    views: the arrays that stand for those of NumPy of the caller's.
    """
    with watching(body.fun, (theirs,), (given,)) as watch:
        out = run(*given)
        if name := watch.written():
            raise Written(name)
        same = {id(x) for x in views}
        parts = out if type(out) is tuple else (out,)
        is_view = lambda x: may_be_one(x, same)  # noqa: E731
        seen = [bool(same) and any(map(is_view, jax.tree.leaves(x))) for x in parts]
        outs = [i for i, x in enumerate(parts) if seen[i] or watch.hands_out(x)]
        if outs and not body.copies:
            raise Shared(outs)
    return out


def views_of(program, numpy: list[int], out, entries: tuple, kinds) -> list[int]:
    """The numbers of the parts of an output that NumPy may have made as views of what came in.

    numpy: 1 for each argument of the program that is an array of NumPy, 2 if it is in a container,
    which may be known as one of JAX's arrays. What a function of JAX gave is no view.
    """
    view = lambda eqn, facts: [facts[0] if eqn.primitive.name in _VIEWS else 0] * len(eqn.outvars)  # noqa: E731
    seen, _ = analyze(program, numpy, view, max, 0)
    parts = by_part(out, entries)
    known = kinds if isinstance(kinds, list) else [""] * len(parts)
    is_view = lambda e, kind: type(e) is int and seen[e] > (kind == ARRAY)  # noqa: E731
    return [i for i, mine in enumerate(parts) if any(is_view(e, known[i]) for e in mine)]


def numpy_alone(program, owners: list[int], out, entries: tuple, arrays) -> list[int]:
    """The numbers of the parts of an output that NumPy computes: no array of JAX goes into them.

    owners: of each argument, 1 for an array of NumPy, 2 for one of JAX, 0 for a number. arrays:
    which leaves of the output are known as arrays of JAX, which a function of JAX gave.
    """

    def whose(eqn, facts):
        first = eqn.primitive.name in _VIEWS  # wherever an index is from
        return [facts[0] if first else max(facts, default=0)] * len(eqn.outvars)

    seen, _ = analyze(program, owners, whose, max, 0)
    theirs = [
        type(e) is int and seen[e] == 1 and not a for e, a in zip(entries, arrays, strict=True)
    ]
    return [i for i, mine in enumerate(by_part(out, theirs)) if any(mine)]


def by_part(out, found: Sequence) -> list[list]:
    """What is known of the leaves of an output, for each of its parts."""
    rest = iter(found)
    parts = out if type(out) is tuple else (out,)
    return [[next(rest) for _ in jax.tree.leaves(part)] for part in parts]


def may_be_one(x, same: set) -> bool:
    """Whether an output is an array with one of these ids, or a box that may be such a one."""
    if not isinstance(x, Box):
        return id(x) in same
    return any(id(box._value) in same for box in (x, *candidates(x)))


def shared(outs) -> list[int]:
    """Which of these, by number, hold a list or dict that stands in them twice: each is rebuilt."""
    owners: dict[int, int] = {}
    found: set[int] = set()

    def look(x, number):
        if isinstance(x, list | dict | deque):
            found.update({owners[id(x)], number} if id(x) in owners else ())
            if id(x) in owners:
                return
            owners[id(x)] = number
        if isinstance(x, list | tuple | dict | deque):
            for part in x.values() if isinstance(x, dict) else x:
                look(part, number)

    for number, out in enumerate(outs):
        look(out, number)
    return sorted(found)


def skeleton(x):
    """Where dicts stand in an output, with their keys in order; None where JAX keeps the order."""
    if type(x) in DICTS:
        parts = {key: skeleton(part) for key, part in x.items()}
        kept = all(part is None for part in parts.values()) and list(x) == sorted(x)
        return None if kept else parts
    if isinstance(x, list | tuple):
        parts = [skeleton(part) for part in x]
        return parts if any(part is not None for part in parts) else None
    return None


def reordered(x, order):
    """`x` with its dicts in the order of the skeleton: JAX sorts their keys."""
    if order is None:
        return x
    if type(order) is dict:
        made = {k: reordered(x[k], part) if part else x[k] for k, part in order.items()}
        return made if type(x) is dict else defaultdict(x.default_factory, made)
    parts = [reordered(a, b) for a, b in zip(x, order, strict=True)]
    return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)


def _is_open(x) -> bool:
    """Whether the front end left something whose size only a run knows."""
    return type(x) in UNSIZED or isinstance(x, BoundedList | BoundedDict)


_NUMBERS = (NUMBER, SCALAR, SIZE)  # the kinds of what is a Python number to the user


def _agree(kinds, out, count: int, wanted: tuple) -> tuple[bool, ...]:
    """Which leaves of the output are of these kinds. A tuple of kinds: each `return` in turn."""
    ways = [tuple(kinds)] if isinstance(kinds, list) else list(kinds)
    agreed = [True] * count
    for way in ways:
        spread = lambda kind, part: jax.tree.map(lambda _: kind, part)  # noqa: E731
        try:
            found = jax.tree.leaves(jax.tree.map(spread, way, out))
        except ValueError:
            return (False,) * count
        agreed = [a and k in wanted for a, k in zip(agreed, found, strict=True)]
    return tuple(agreed) if ways else (False,) * count


def is_number(leaf) -> bool:
    """Whether a leaf is a number of Python's own."""
    return isinstance(leaf, int | float | complex) and not isinstance(leaf, np.generic)


def is_numpys(leaf) -> bool:
    """Whether a leaf is an array of NumPy's own, or a number that was taken out of one."""
    return isinstance(leaf, np.ndarray | np.generic) and not is_raw(leaf)


def _can_leave(x) -> bool:
    """Whether a value known while tracing may be handed out again and again."""
    return x is UNSET or isinstance(
        x, bool | int | float | complex | str | bytes | np.dtype | range
    )


def lift(fun: Callable, given: list, how: str, around: Callable):
    """Run a region under the front end: branches and loops on traced values are compiled.

    around(run, *given): runs it. how: "masks" if what a mask selects may be computed with, as long
    as nobody needs its size; "unrolled" if a loop that is known stays one of Python. Also gives the
    tests, arrays, that selections are not empty where Python would raise, and of each leaf of the
    result whether it is a number of Python's.
    """
    options = UNROLLED if "unrolled" in how else LIFTED

    def run():
        boxed = box_all(given)
        with journal.opened(base=True):
            out = around(functools.partial(OPERATORS.call, fun), *boxed)
            refuse_kept_numbers(out, 0)
            pythons = [is_pythons(x) for x in jax.tree.leaves(out, is_leaf=is_whole)]
            return reordered(finish_result(out), skeleton(out)), pythons

    tests: list = []
    token = compacted.set("masks" not in how)
    with compat.current_trace() as trace:  # which is taken away inside
        pass
    tested = selections.set((trace, tests))
    try:
        out, pythons = run_in_session(Session(options, OPERATORS.call), run)
        return out, tests, pythons
    finally:
        selections.reset(tested)
        compacted.reset(token)


def refuse_kept_numbers(out, depth: int) -> None:
    """A Python number in a list or dict would come out as an array."""
    if type(out) in (list, dict) or (isinstance(out, tuple) and (depth or hasattr(out, "_fields"))):
        parts = out.values() if type(out) is dict else out
        for part in parts:
            if is_pythons(part):
                raise Stays("number", "a Python number is kept in a list or dict")
            refuse_kept_numbers(part, depth + 1)
    elif isinstance(out, tuple):
        for part in out:
            refuse_kept_numbers(part, depth + 1)


def is_pythons(x) -> bool:
    """Whether a value of the front end is a traced number of Python's."""
    value = x.value if isinstance(x, Box) and x.scalar else None
    aval: Any = value.aval if isinstance(value, compat.Tracer) else None
    return aval is not None and aval.weak_type


def from_numbers_only(traced: Traced, leaves: list) -> bool:
    """Whether an output, an array to JAX, is made of Python numbers only, and so may be one.

    Python's operators have no `cos`: what came out of such an equation is an array.
    """
    outs: Any = [e for e, n in zip(traced.outs, traced.numbers, strict=True) if not n]
    given = [e[1] for e in outs if type(e) is tuple and len(e) == 2 and e[0] == "in"]
    if any(is_number(leaves[i]) for i in given):
        return True  # `jnp.asarray(a)` is `a` to a trace
    args = [leaf for leaf, d in zip(leaves, traced.dynamic, strict=True) if d]
    program = traced.program.jaxpr
    numbers = {v for v, x in zip(program.invars, args, strict=True) if is_number(x)}
    if not numbers:
        return False
    for eqn in program.eqns:
        inputs = [v for v in eqn.invars if not isinstance(v, compat.Literal)]
        if eqn.primitive.name not in FUNCTIONS and inputs and all(v in numbers for v in inputs):
            numbers.update(v for v in eqn.outvars if not v.aval.shape and v.aval.weak_type)
    outs = [v for v in program.outvars if not isinstance(v, compat.Literal)]
    known = {e for e, number in zip(traced.outs, traced.numbers, strict=True) if number}
    return any(v in numbers for i, v in enumerate(outs) if i not in known)
