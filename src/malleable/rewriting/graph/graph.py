"""The program as a graph: who makes a value, who uses it, and every equation kept once.

The one data structure of this folder. Values are integers. Equal equations are one node (their
key is the primitive, its operands and its parameters), so that to look an equation up is to prove
that the program computes it. One graph holds one body; bodies inside it are parameters.
Source: Ershov, "On programming of arithmetic operations", CACM 1(8), 1958 (hash-consing).
"""

import operator
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

from malleable import compat
from malleable.programs.evaluate import evaluate
from malleable.programs.primitives import has
from malleable.programs.reach import reach

COMMUTATIVE = has("commutative")
SCAN = ("jaxpr", "length", "reverse", "unroll")
KERNELS = {"mosaic"}  # platforms of Pallas, inside of a kernel
SMALL = 4096  # bytes: up to here constants are the same when their bytes are


class Node:
    """One equation: the template it came from, its operands and its results."""

    __slots__ = ("eqn", "ins", "key", "outs")

    def __init__(self, eqn, ins, outs, key):
        self.eqn, self.ins, self.outs, self.key = eqn, ins, outs, key

    @property
    def primitive(self):
        return self.eqn.primitive

    @property
    def name(self) -> str:
        return self.eqn.primitive.name

    @property
    def params(self) -> dict:
        return self.eqn.params

    def __repr__(self):
        return f"{self.outs} = {self.name} {self.ins}"


class Graph:
    """The use-def graph of one program.

    >>> import jax.numpy as jnp
    >>> from malleable import stage
    >>> graph = Graph.of(stage(lambda x: jnp.sin(x) + jnp.sin(x))(1.0).jaxpr)
    >>> [node.name for node in graph.order()]
    ['sin', 'add']
    """

    def __init__(self, like: compat.Jaxpr, inline: Callable[[compat.Eqn], bool], body: Callable):
        self.like, self._inline, self._body = like, inline, body
        self.avals: list = []
        self.maker: list[Node | None] = []
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.nodes: dict[Node, None] = {}
        self.by_name: dict[str, dict[Node, None]] = {}
        self.intern: dict = {}
        self._users: list[dict[Node, None]] = []
        self._atoms: list = []  # the variable of the program a value came from, or a literal
        self._known: dict = {}  # value -> constant
        self._constants: dict = {}  # key of a constant -> value
        self._forward: dict[int, int] = {}  # a value that was replaced -> by which
        self._pins: Counter = Counter()  # how often a value is an output
        self._taken: set = set()

    @staticmethod
    def of(
        jaxpr: compat.Jaxpr,
        inline: Callable[[compat.Eqn], bool] = compat.is_transparent,
        body: Callable[[compat.Eqn], compat.Jaxpr] = lambda eqn: compat.bodies(eqn.params)[0],
    ) -> "Graph":
        """The graph of a program, with the calls that inline(eqn) tells substituted away.

        By default those that say nothing but a name. body(eqn): what is put in place of a call.
        """
        graph = Graph(jaxpr, inline, body)
        graph.inputs = [graph._value(v.aval, v) for v in jaxpr.jaxpr.invars]
        graph.outputs = graph._splice(jaxpr, graph.inputs)
        graph._pins = Counter(graph.outputs)
        return graph

    # ------------------------------------------------------------ reading

    def resolve(self, value: int) -> int:
        """The value that stands for this one now."""
        while value in self._forward:
            value = self._forward[value]
        return value

    def users(self, value: int) -> list[Node]:
        return list(self._users[value])

    def reach(
        self, values: Iterable[int], through: Callable | None = None, *, forward=False
    ) -> set:
        """The values that some are made of, or, forward, that are made of them; they are among it.

        through(node): whether to go on from its results to its operands, or the other way round.
        """

        def step(value):
            nodes = self._users[value] if forward else filter(None, (self.maker[value],))
            passed = filter(through, nodes)
            return [v for node in passed for v in (node.outs if forward else node.ins)]

        return set(reach(values, step))

    def value(self, value: int):
        """The constant behind a value, or None."""
        return self._known.get(value)

    def number(self, value: int):
        """The number that is written in the program where a value is, or None."""
        atom = self._atoms[self.resolve(value)]
        is_number = isinstance(atom, compat.Literal) and self.avals[value].shape == ()
        return atom.val if is_number else None

    def is_used(self, value: int) -> bool:
        return bool(self._users[value]) or self._pins[value] > 0

    def is_placed(self, value: int) -> bool:
        """Whether the type of a value says on which devices its parts are."""
        spec = self.avals[value].sharding.spec
        return bool({*spec.partitions} - {None} or spec.reduced or spec.unreduced)

    def order(self) -> list[Node]:
        """The live nodes, operands first; those with effects in the order they came."""
        makers = lambda values: [node for v in values if (node := self.maker[v]) is not None]  # noqa: E731
        ends = [*makers(self.outputs), *(n for n in self.nodes if n.eqn.effects)]
        live = reach(ends, lambda node: makers(node.ins))
        done: dict[Node, None] = {}
        for start in self.nodes:
            if start not in live or start in done:
                continue
            stack = [(start, iter(start.ins))]
            while stack:
                node, rest = stack[-1]
                for v in rest:
                    if (made := self.maker[v]) is not None and made not in done:
                        assert len(stack) <= len(self.nodes), f"{made.eqn} needs its own result"
                        stack.append((made, iter(made.ins)))
                        break
                else:
                    done[node] = None
                    stack.pop()
        return list(done)

    def jaxpr(self) -> compat.Jaxpr:
        """The program of this graph; equations that did not change are the same objects."""
        consts: dict = {}
        eqns = []

        def read(value):
            atom = self._atoms[value]
            if value in self._known and not isinstance(atom, compat.Literal):
                consts[atom] = self._known[value]
            return atom

        for node in self.order():
            ins, outs = list(map(read, node.ins)), [self._atoms[v] for v in node.outs]
            eqn = node.eqn
            if not _same(eqn.invars, ins) or not _same(eqn.outvars, outs):
                eqn = eqn.replace(invars=ins, outvars=outs)
            eqns.append(eqn)
        return compat.program(self.like, eqns, list(map(read, self.outputs)), consts)

    # ------------------------------------------------------------ writing

    def constant(self, value, aval=None, atom=None) -> int:
        """The value of a constant, the same for equal ones."""
        key = _constant_key(value, aval)
        if key not in self._constants:
            aval = jax.typeof(value) if aval is None else aval
            if atom is None and aval.shape == () and not isinstance(key, _Same):
                atom = compat.literal(value, aval)
            new = self._value(aval, compat.new_var(aval) if atom is None else atom)
            self._known[new], self._constants[key] = value, new
        return self._constants[key]

    def add(self, eqn: compat.Eqn, ins: Sequence[int]) -> tuple[int, ...]:
        """The results of an equation on values: of the node there is, or of a new one."""
        ins = tuple(map(self.resolve, ins))
        key = self._key(eqn, ins)
        if key is not None and key in self.intern:
            return self.intern[key].outs
        outs = tuple(self._value(v.aval, v) for v in eqn.outvars)
        node = Node(eqn, ins, outs, key)
        for v in outs:
            self.maker[v] = node
        for v in ins:
            self._users[v][node] = None
        self.nodes[node] = None
        self.by_name.setdefault(node.name, {})[node] = None
        if key is not None:
            self.intern[key] = node
        return outs

    def stage(self, fun: Callable, ins: Sequence[int], like: Node, rule: str = "") -> compat.Jaxpr:
        """fun of values with the types of `ins`, traced; its equations carry the line of `like`."""
        with compat.stamped(like.eqn, rule):
            return compat.dce(compat.trace(fun, *(self.avals[v] for v in ins)))

    def trace(self, fun: Callable, ins: Sequence[int], like: Node, rule: str = "") -> list[int]:
        """Run fun on values of the graph: what it does becomes part of it."""
        return self._splice(self.stage(fun, ins, like, rule), ins)

    def rewrite(
        self, node: Node, fun: Callable, ins: Sequence[int] | None = None, rule: str = ""
    ) -> None:
        """Put what fun makes of `ins`, the node's own operands by default, in its place."""
        new = self.trace(fun, node.ins if ins is None else ins, node, rule)
        self.replace(dict(zip(node.outs, new, strict=True)))

    def take_branch(self, node: Node, index: int) -> None:
        """Put the branch of a cond that this index takes in its place."""
        branches = compat.bodies(node.params)
        taken = branches[min(max(index, 0), len(branches) - 1)]
        outs = self.splice(taken, node.ins[1:])
        self.replace(dict(zip(node.outs, outs, strict=True)))

    def splice(
        self, jaxpr: compat.Jaxpr, ins: Sequence[int], like: Node | None = None, rule: str = ""
    ) -> list[int]:
        """Put a program on values of the graph, under the line of `like`; its results."""
        return self._splice(jaxpr if like is None else compat.moved(jaxpr, like.eqn, rule), ins)

    def find(
        self, jaxpr: compat.Jaxpr, ins: Sequence[int], other: Callable | None = None
    ) -> list[int] | None:
        """The results of a program on values, if the graph computes it already; adds nothing.

        other: (graph, equation, operands) -> the results of an equation that says the same in
        other words, or None: asked where there is none that says it in the same. What it gives
        that is no value of the graph it gets again, as an operand.
        """
        found = self._splice(jaxpr, ins, create=False, other=other)
        return found if found is None or all(isinstance(v, int) for v in found) else None

    def replace(self, new: dict[int, int], keep: Sequence[Node] = ()) -> list[Node]:
        """Users of each old value use the new one; the nodes that changed.

        Nodes that become equal are one from then on, and those that nobody uses any more go.
        keep: users that make the new value out of the old one, and so go on using it.
        """
        work, changed, gone = list(new.items()), {}, []
        while work:
            old, other = map(self.resolve, work.pop())
            if old == other:
                continue
            stays = {u: None for u in self._users[old] if u in keep}
            for user in [u for u in self._users[old] if u not in keep]:
                changed[user] = None
                if user.key is not None and self.intern.get(user.key) is user:
                    del self.intern[user.key]
                for v in user.ins:
                    self._users[v].pop(user, None)
                user.ins = tuple(other if v == old else v for v in user.ins)
                for v in user.ins:
                    self._users[v][user] = None
                user.key = self._key(user.eqn, user.ins)
                twin = self.intern.setdefault(user.key, user) if user.key is not None else user
                if twin is not user:
                    work.extend(zip(user.outs, twin.outs, strict=True))
            self._users[old] = stays
            if self._pins[old]:
                self.outputs = [other if v == old else v for v in self.outputs]
                self._pins[other] += self._pins.pop(old)
            if not stays:
                self._forward[old] = other
            gone.append(self.maker[old])
        for node in gone:
            if node is not None:
                self.drop(node)
        return [node for node in changed if node in self.nodes]

    def drop(self, node: Node) -> None:
        """Forget a node that nobody uses, and what only it used."""
        work = [node]
        while work:
            node = work.pop()
            if node not in self.nodes or node.eqn.effects or any(map(self.is_used, node.outs)):
                continue
            del self.nodes[node], self.by_name[node.name][node]
            if node.key is not None and self.intern.get(node.key) is node:
                del self.intern[node.key]
            for v in node.ins:
                self._users[v].pop(node, None)
                if self.maker[v] is not None:
                    work.append(self.maker[v])

    # ------------------------------------------------------------ inside

    def _value(self, aval, atom) -> int:
        if not isinstance(atom, compat.Literal):
            if atom in self._taken:  # the body of a call that is there twice
                atom = compat.new_var(aval)
            self._taken.add(atom)
        self.avals.append(aval)
        self._atoms.append(atom)
        self.maker.append(None)
        self._users.append({})
        return len(self.avals) - 1

    def _key(self, eqn, ins):
        """(primitive, operands, parameters, ...), equal for equal equations; None for one apart."""
        if eqn.effects or eqn.primitive.name == "rng_uniform":  # other numbers each time
            return None
        if eqn.primitive.name in COMMUTATIVE:
            ins = tuple(sorted(ins))
        weak = tuple(getattr(v.aval, "weak_type", None) for v in eqn.outvars)
        return eqn.primitive, ins, params_key(eqn), weak, compat.context_key(eqn)

    def _number(self, eqn, ins) -> int | None:
        """The scalar constant of another type that an equation gives, without rounding.

        `jnp.where(x > 0, x, 0)` converts its 0 inside, and is to match what is written with 0.0.
        """
        if eqn.primitive.name != "convert_element_type" or eqn.params.get("sharding"):
            return None
        if not isinstance(ins[0], int):  # a value that is not there: see `find`
            return None
        value, aval = self._known.get(self.resolve(ins[0])), eqn.outvars[0].aval
        old, new = self.avals[ins[0]].dtype, aval.dtype
        if not _is_plain(value) or aval.shape or not _is_ordinary(old) or not _is_ordinary(new):
            return None
        number = np.asarray(value, old)
        with np.errstate(all="ignore"):
            made = number.astype(new)
            same = made.astype(old) == number
        return self.constant(made[()], aval) if same else None

    def _found(self, eqn, values, other) -> Any:
        """The results of an equation that the graph has, in these words or in others."""
        if all(isinstance(v, int) for v in values):
            values = tuple(map(self.resolve, values))
            node = self.intern.get(self._key(eqn, values))
            if node is not None:
                return node.outs
        return other and other(self, eqn, values)

    def _splice(self, jaxpr, ins, *, create=True, call=None, other=None) -> Any:
        """The equations of a program, one by one, on values; None where one is missing."""

        def constant(v, c):
            scalar = getattr(v.aval, "shape", None) == () and not isinstance(c, compat.Tracer)
            return self.constant(c, v.aval, None if scalar else v)

        def literal(atom):
            return self.constant(atom.val, atom.aval, atom)

        def step(eqn, values):
            if self._inline(eqn):
                whole = eqn if call is None else compat.within(eqn, call)
                outs = self._splice(self._body(eqn), values, create=create, call=whole, other=other)
            elif (branch := _usual(eqn)) is not None and self._inline is not never:
                outs = self._splice(branch, values[1:], create=create, call=call, other=other)
            elif (number := self._number(eqn, values)) is not None:
                outs = [number]
            elif create:
                outs = self.add(eqn if call is None else compat.within(eqn, call), values)
            else:
                outs = self._found(eqn, values, other)
            if outs is None:
                raise _Missing
            return outs

        consts = list(map(constant, jaxpr.jaxpr.constvars, jaxpr.consts))
        try:
            return evaluate(jaxpr, ins, step, consts=consts, literal=literal)
        except _Missing:
            return None


class _Missing(Exception):
    """An equation that is not in the graph."""


def _same(atoms, others):
    return len(atoms) == len(others) and all(map(operator.is_, atoms, others))


# ---------------------------------------------------------------- what is equal


def fingerprint(jaxpr: compat.Jaxpr):
    """A hashable key, equal for programs that are equal but for the names of their variables.

    >>> from malleable import stage
    >>> one, two = (stage(lambda x: x + 1)(1.0).jaxpr for _ in range(2))
    >>> fingerprint(one) == fingerprint(two)
    True
    """
    if jaxpr not in _fingerprints:
        _fingerprints[jaxpr] = _fingerprint(jaxpr)
    return _fingerprints[jaxpr]


_fingerprints: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class Key:
    """A tuple that knows its hash, since programs nest."""

    __slots__ = ("hash", "parts")

    def __init__(self, *parts):
        self.parts, self.hash = parts, hash(parts)

    def __hash__(self):
        return self.hash

    def __eq__(self, other):
        same = type(other) is Key and self.hash == other.hash
        return self is other or (same and self.parts == other.parts)


def _fingerprint(jaxpr):
    program, numbers = jaxpr.jaxpr, {}

    def define(variables):
        for v in variables:
            numbers[v] = len(numbers)
        return tuple((v.aval, getattr(v.aval, "weak_type", None)) for v in variables)

    def read(atom):
        if isinstance(atom, compat.Literal):
            return _constant_key(atom.val, atom.aval)
        return numbers[atom]

    types = define([*program.constvars, *program.invars])
    consts = tuple(_constant_key(c, None) for c in jaxpr.consts)
    eqns = tuple(
        (e.primitive, tuple(map(read, e.invars)), params_key(e), define(e.outvars))
        for e in program.eqns
    )
    return Key(types, consts, eqns, tuple(map(read, program.outvars)))


def params_key(eqn: compat.Eqn):
    """The parameters of an equation as something hashable."""
    params = eqn.params
    if not params:
        return ()
    if eqn.primitive.name in ("custom_jvp_call", "custom_vjp_call"):
        body = fingerprint(compat.bodies(params)[0])
        return body, compat.derivative_key(eqn), params.get("symbolic_zeros")
    if eqn.primitive.name == "scan":  # how its operands are grouped is spelled in several ways
        view: Any = compat.view(eqn)
        sizes = tuple(map(len, view.split(eqn.invars)))
        return sizes, tuple(_freeze(params[name]) for name in SCAN)
    return tuple((name, _freeze(p)) for name, p in sorted(params.items()))


def _freeze(p):
    match _way(p):
        case "number":
            return type(p), p
        case "generic":  # a number is a number: NumPy's compare with tuples element by element
            return _freeze(p.item())
        case "program":
            return fingerprint(compat.close(p))
        case "items":
            return tuple([_freeze(x) for x in p])
        case "dict":
            return tuple((k, _freeze(v)) for k, v in p.items())
        case "array":
            return _constant_key(p, None)
    try:
        hash(p)
    except TypeError:
        return id(p)
    return p


_ways: dict[type, str] = {}  # by type, since it is slow to ask whether a value is an array


def _way(p) -> str:
    """How a parameter is frozen; the same for all of its type."""
    way = _ways.get(type(p))
    if way is None:
        found = [way for way, kinds in _KINDS if isinstance(p, kinds)]
        way = _ways[type(p)] = found[0] if found else "program" * hasattr(p, "eqns")
    return way


_KINDS = (
    ("generic", np.generic),
    ("number", (type(None), str, int, float, bool)),
    ("program", compat.Jaxpr),
    ("items", (tuple, list)),
    ("dict", dict),
    ("array", (np.ndarray, jax.Array)),
)


def _constant_key(value, aval):
    weak = getattr(aval, "weak_type", getattr(value, "weak_type", False))
    if not _is_plain(value):
        return _Same(value)
    typed = isinstance(value, np.ndarray | jax.Array)
    array = np.asarray(value, None if typed else getattr(aval, "dtype", None))
    return str(array.dtype), weak, array.shape, array.tobytes()


def _is_plain(value) -> bool:
    """Whether this is a number, or a small array whose elements are at hand."""
    if isinstance(value, bool | int | float | complex | np.generic):
        return True
    plain = isinstance(value, np.ndarray | jax.Array) and not isinstance(value, compat.Tracer)
    return plain and isinstance(value.dtype, np.dtype) and value.nbytes <= SMALL


class _Same:
    """Equal to itself only; keeps its object, so that no other takes its place in memory."""

    __slots__ = ("it",)

    def __init__(self, it):
        self.it = it

    def __hash__(self):
        return id(self.it)

    def __eq__(self, other):
        return type(other) is _Same and self.it is other.it


def _is_ordinary(dtype) -> bool:
    """Whether NumPy converts numbers of this type to all others of them, and back."""
    return isinstance(dtype, np.dtype) and (dtype.kind in "biuf" or dtype == jnp.bfloat16)


def _usual(eqn) -> compat.Jaxpr | None:
    """The branch for all platforms, of a choice that kernels alone make otherwise, or None."""
    platforms = eqn.params.get("branches_platforms") or ()
    if None not in platforms or not all(KERNELS.issuperset(p or ()) for p in platforms):
        return None
    return compat.bodies(eqn.params)[platforms.index(None)]


def never(eqn: compat.Eqn) -> bool:
    """For `Graph.of`: every call stays a call."""
    return False
