"""Write a jaxpr as straight-line NumPy code: values, names, sizes and lines of the function."""

import contextlib
import dataclasses
import itertools
import keyword
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from malleable import compat
from malleable.execution.common.breaks import Unsupported
from malleable.execution.numpy.names import NAMES
from malleable.programs.equations import mentions
from malleable.programs.evaluate import evaluate
from malleable.programs.types import is_key

# how tightly the outermost operator of an expression binds
CHOICE, COMPARE, OR, XOR, AND, SHIFT, SUM, PRODUCT, SIGN, ATOM = range(10)

LONGEST = 80  # characters of an expression that is not worth a name of its own

Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}  # name of a primitive -> rule(writer, eqn, *operands) -> result(s)
ON_KEYS: list = []  # one function(writer, eqn, operands), put in by numpy_random


def numpy_rule(*names: str) -> Callable[[Rule], Rule]:
    """Say how equations of these primitives are written in NumPy.

    rule(writer, eqn, *operands) is given Values and returns one per result, or, for a full array
    and a single result, just its expression. It raises Unsupported for what it cannot do exactly.
    """

    def put(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, rule))
        return rule

    return put


@dataclasses.dataclass(eq=False)
class Value:
    """An array of the program, as an expression.

    shape: what the program says; sizes: what the expression has, which NumPy broadcasts to `shape`
    (aligned at the end, 1 or nothing where the axis is yet to be broadcast). weak: a Python number.
    columns: the slices along the last axis, where the array is nothing but those put together.
    natural: no element is negative. counts: the axis along which it is 0, 1, 2, ...
    cut: (array, index) of a slice, the index as texts such as `1:2` and `:`. mask: what is True
    where it is 1, and False where it is 0.
    """

    text: str
    shape: tuple
    dtype: np.dtype
    sizes: tuple
    binding: int = ATOM
    weak: bool = False
    named: bool = False
    columns: "tuple[Value, ...] | None" = None
    natural: bool = False
    counts: int | None = None
    cut: tuple[str, tuple[str, ...]] | None = None
    mask: "Value | None" = None

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def full(self) -> bool:
        return same_sizes(self.sizes, self.shape) and not (self.weak and self.shape)


class Writer:
    """The function being written: its lines, and the constants they mention."""

    def __init__(self, symbols: Sequence[str] = ()):
        self.lines: list[tuple[int, str]] = []
        self.depth = 1
        self.globals: dict[str, Any] = {}
        self.symbols = {s: s if s.isidentifier() and len(s) > 2 else f"{s}_" for s in symbols}
        self.sizes: set[str] = set()  # symbols whose value is known here
        self._names = filter(_is_free, _letters())
        self._constants = itertools.count()

    # ------------------------------------------------------------ lines

    def line(self, text: str) -> None:
        self.lines.append((self.depth, text))

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Lines under a head such as `for i in range(3):`."""
        self.line(head)
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.line("pass")
        self.depth -= 1

    def new_name(self) -> str:
        return next(self._names)

    def assign(self, text: str) -> str:
        name = self.new_name()
        self.line(f"{name} = {text}")
        return name

    # ------------------------------------------------------------ values

    def value(self, aval, text: str, sizes=None, binding=ATOM, **known) -> Value:
        """A result of this type."""
        shape = words(aval)[0]
        given = shape if sizes is None else tuple(sizes)
        return Value(text, shape, dtype_of(aval), given, binding, **known)

    def named(self, aval, name: str) -> Value:
        return self.value(aval, name, named=True)

    def name(self, x: Value) -> str:
        """A name for the value, so that it may be written more than once."""
        if not x.named:
            x.text, x.binding, x.named = self.assign(x.text), ATOM, True
        return x.text

    def text(self, x: Value, binding: int = 0) -> str:
        """The expression, to be put beside an operator that binds this tightly."""
        return x.text if x.binding >= binding else f"({x.text})"

    def array(self, x: Value, binding: int = ATOM) -> str:
        """The expression of an array or a scalar of NumPy, which may need broadcasting yet."""
        return self.typed(x) if x.weak else self.text(x, binding)

    def typed(self, x: Value, binding: int = ATOM) -> str:
        if not x.weak:
            return self.text(x, binding)
        return f"{self.dtype(x.dtype)}({x.text})"

    def whole(self, x: Value, binding: int = ATOM) -> str:
        """The expression of an array of the very shape that the program says."""
        if x.full:
            return self.typed(x, binding)
        shape = self.shape(x.shape)
        if x.weak:
            if x.text in ("0", "0.0", "False"):
                return f"np.zeros({shape}, {self.dtype(x.dtype)})"
            return f"np.full({shape}, {x.text}, {self.dtype(x.dtype)})"
        if not x.sizes and all(same_size(d, 1) for d in x.shape):
            return f"{self.text(x, ATOM)}.reshape({shape})"
        return f"np.broadcast_to({self.text(x)}, {shape})"

    def owned(self, x: Value) -> str:
        """As `whole`, with memory for each of its elements: to be handed out."""
        if x.full or x.weak:
            return self.whole(x, 0)
        return f"np.array({self.whole(x)})"

    def argument(self, x: Value) -> str:
        """As `whole`, among the arguments of a call."""
        return self.whole(x, 0)

    def literal(self, value, aval) -> Value:
        """A number of the program."""
        array = np.asarray(value)
        dtype = dtype_of(aval)
        if array.shape or dtype == ml_dtypes.bfloat16 or dtype.kind == "c":
            return self.constant(array, aval)
        return self.value(aval, number_text(array.astype(dtype)[()]), (), weak=True, named=True)

    def constant(self, value, aval) -> Value:
        """An array that the program brings along."""
        if is_key(aval):
            raise Unsupported("a random key that the program brings along")
        dtype = dtype_of(aval)
        array = np.asarray(value)
        if not array.shape and dtype.kind in "biuf":
            return self.literal(array, aval)
        array = array.astype(dtype, copy=False)
        name = self.keep(array if array.shape else array[()], "constant")
        return self.value(aval, name, None if array.shape else (), named=True)

    def keep(self, thing, stem: str) -> str:
        """A global name for an object."""
        name = f"{stem}_{next(self._constants)}"
        self.globals[name] = thing
        return name

    # ------------------------------------------------------------ types and sizes

    def dtype(self, dtype) -> str:
        """The type as code: `np.float32`."""
        dtype = np.dtype(dtype)
        if dtype == ml_dtypes.bfloat16:
            return "bfloat16"
        return "np.bool_" if dtype.kind == "b" else f"np.{dtype.name}"

    def size(self, d) -> str:
        """A dimension as code."""
        if isinstance(d, int | np.integer):
            return str(int(d))
        return re.sub(r"[A-Za-z_]\w*", self._symbol, str(d).replace("^", "**"))

    def _symbol(self, word: re.Match) -> str:
        name = word.group()
        if name in _OPERATIONS:
            return _OPERATIONS[name]
        if name not in self.sizes:
            raise Unsupported(f"the size {name} is not one of an argument")
        return self.symbols[name]

    def shape(self, dims: Sequence) -> str:
        """A shape as code."""
        return tuple_of(map(self.size, dims))

    # ------------------------------------------------------------ programs

    def inline(self, closed: compat.Jaxpr, args: Sequence[Value]) -> list[Value]:
        """Put the equations of a program here; its results."""
        steps: list[Step] = []
        outs = self._flatten(closed, [Slot(x) for x in args], steps, {})
        uses = Counter(id(s) for s in outs)
        kept = []
        for step in reversed(steps):  # without what no result needs
            if step.eqn.effects or any(uses[id(s)] for s in step.outs):
                kept.append(step)
                uses.update(id(s) for s in step.ins)
        for step in reversed(kept):
            for slot in step.ins:
                if uses[id(slot)] > 1 and slot.value is not None and not slot.value.named:
                    self.share(slot.value)
            results = self.write(step.eqn, [s.known for s in step.ins])
            for slot, out in zip(step.outs, results, strict=True):
                if uses[id(slot)] > 1 or (uses[id(slot)] and len(out.text) > LONGEST):
                    self.share(out)
                slot.value = out
        for slot in outs:
            if uses[id(slot)] > 1:
                self.share(slot.known)
        return [s.known for s in outs]

    def share(self, x: Value) -> None:
        """A name for a value, unless it is nothing but a few others put together."""
        if not x.named and not x.columns:
            self.name(x)

    def _flatten(self, closed: compat.Jaxpr, args: list, steps: list, seen: dict) -> list:
        """Append the equations of a program, those of calls in their place, each one once.

        seen: {what is computed: its results}. Gives the slots of the results.
        """

        def literal(atom) -> Slot:
            x = self.literal(atom.val, atom.aval)
            return seen.setdefault((x.text, x.dtype), Slot(x))

        def step(eqn, ins) -> list[Slot]:
            body = called_program(eqn)
            if body is not None:
                return self._flatten(body, ins, steps, seen)
            key = compat.same_program(eqn), tuple(map(id, ins))
            outs = None if eqn.effects else seen.get(key)
            if outs is None:
                outs = seen[key] = [Slot() for _ in eqn.outvars]
                steps.append(Step(eqn, ins, outs))
            return outs

        known = zip(closed.jaxpr.constvars, closed.consts, strict=True)
        consts = [seen.setdefault(id(c), Slot(self.constant(c, v.aval))) for v, c in known]
        return evaluate(closed, args, step, consts=consts, literal=literal)

    def write(self, eqn: compat.Eqn, ins: Sequence[Value]) -> list[Value]:
        """The results of one equation."""
        rule = RULES.get(eqn.primitive.name)
        if rule is None:
            raise Unsupported(f"no NumPy code for {eqn.primitive.name}")
        if eqn.effects:
            raise Unsupported(f"{eqn.primitive.name} has a side effect")
        if any(is_key(v.aval) for v in (*eqn.invars, *eqn.outvars)):
            out = ON_KEYS[0](self, eqn, ins)
        else:
            out = rule(self, eqn, *ins)
        if isinstance(out, str):
            out = self.value(eqn.outvars[0].aval, out)
        return [out] if isinstance(out, Value) else list(out)


@dataclasses.dataclass(eq=False)
class Slot:
    """A place for a value of the program, which may not be written yet."""

    value: Value | None = None

    @property
    def known(self) -> Value:
        assert self.value is not None
        return self.value


@dataclasses.dataclass(eq=False)
class Step:
    """An equation to be written, and the places of its operands and results."""

    eqn: compat.Eqn
    ins: list[Slot]
    outs: list[Slot]


CALLS = {  # primitive -> the param that holds its program
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "eval_jaxpr": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vjp_call_jaxpr": "fun_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
    "remat": "jaxpr",
}


def called_program(eqn) -> compat.Jaxpr | None:
    """The program that an equation does nothing but call."""
    found = eqn.params.get(CALLS.get(eqn.primitive.name, ""))
    if found is None or searched_side(eqn):
        return None
    return compat.close(found)


def searched_side(eqn) -> str:
    """The side of a call of JAX's `searchsorted`, told by its comparison; "" for other calls."""
    if eqn.params.get("name") != "searchsorted" or eqn.invars[0].aval.ndim != 1:
        return ""
    body = compat.close(eqn.params["jaxpr"])
    if not compat.is_of_jax(body):
        return ""
    return "left" if mentions(body, {"le_to"}) else "right" if mentions(body, {"lt_to"}) else ""


def words(aval) -> tuple[tuple, Any]:
    """(shape, dtype) as an array of NumPy: of keys, that of their words."""
    if is_key(aval):
        return (*aval.shape, *aval.dtype._impl.key_shape), np.dtype(np.uint32)
    return tuple(aval.shape), aval.dtype


def dtype_of(aval) -> np.dtype:
    """The NumPy type of a value; raises Unsupported where there is none."""
    dtype = words(aval)[1] if hasattr(aval, "dtype") else None
    if not isinstance(dtype, np.dtype) or not (
        dtype.kind in "biufc" or dtype == ml_dtypes.bfloat16
    ):
        raise Unsupported(f"a value of type {aval}")
    return dtype


def number_text(x) -> str:
    """A NumPy scalar as a Python number that is the same in its type."""
    if x.dtype.kind in "biu":
        return str(x.item())
    if not math.isfinite(x):
        return "np.nan" if np.isnan(x) else "np.inf" if x > 0 else "(-np.inf)"
    usual = not x or 1e-4 <= abs(float(x)) <= 1e16
    text = str(x) if usual else np.format_float_scientific(x)
    text = text.replace("e+", "e")
    return f"({text})" if text.startswith("-") else text


def same_size(a, b) -> bool:
    """Whether two dimensions are the same one."""
    if isinstance(a, int | np.integer) and isinstance(b, int | np.integer):
        return int(a) == int(b)
    return str(a) == str(b)


def same_sizes(a: Sequence, b: Sequence) -> bool:
    return len(a) == len(b) and all(map(same_size, a, b))


def is_one(d) -> bool:
    return isinstance(d, int | np.integer) and int(d) == 1


def tuple_of(texts) -> str:
    """Expressions as a tuple."""
    texts = list(texts)
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


_OPERATIONS = {"floordiv": "floordiv", "mod": "mod", "max": "max", "min": "min"}


def _letters() -> Iterator[str]:
    for length in itertools.count(1):
        for word in itertools.product(string.ascii_lowercase, repeat=length):
            yield "".join(word)


def _is_free(name: str) -> bool:
    return not keyword.iskeyword(name) and name not in NAMES
